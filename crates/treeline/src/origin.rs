//! What a page remembers of the segment that it belongs to, for `salvage` (rule P22): when log and
//! index are lost, pages alone must tell whose keys they hold.
//!
//! These bytes lie beside the prefix of a slotted page (`spinney_page::layout`). All integers are
//! little-endian; bounds are without the page's prefix.
//!
//! | size | field | meaning |
//! |---|---|---|
//! | 1 | version | 1, or 2 for one without bounds |
//! | 1 | flags | 1: an overflow page or a staged page; 2: there is an upper bound; 4: there is a model; 8: a staged page |
//! | 1 | index | which page of the segment this is, or the page that this one is the overflow page of; 0 for a staged page |
//! | 1 | order | the binary logarithm of the segment's pages |
//! | 4 | generation | of the segment's extent, if this is an overflow page or a staged page |
//!
//! and in version 1, which has bounds:
//!
//! | size | field | meaning |
//! |---|---|---|
//! | 26 | model | if there is one |
//! | 2 | lower length | bytes of the lower bound |
//! | 2 | upper length | bytes of the upper bound, if there is one |
//! | .. | lower, upper | the bounds |
//!
//! The extent's generation is the production id of the paper; a base page has it in its block
//! header. So one page of an extent that bears an origin is enough to place the others, by their
//! generation and by where they lie in the aligned extent; there is one ([`fit`](crate::fit), rule
//! 4), and others bear theirs where that is short and finds room. Overflow pages and staged pages
//! leave long bounds to the extent (version 2). Extents in which no page bears an origin are those
//! of older databases, and of disks too full for what rule 4 takes.

use std::borrow::Cow;

use spinney_base::Generation;

use crate::model::{MODEL_BYTES, Model};
use crate::segment::{Located, SEGMENT_ORDER_MAX, common_prefix};

const VERSION: u8 = 1;
const VERSION_UNBOUNDED: u8 = 2;
const OVERFLOW: u8 = 1;
const UPPER: u8 = 2;
const MODEL: u8 = 4;
const STAGED: u8 = 8;

/// Longest origin that a page bears if another page of its segment bears one too. A longer one is
/// left out or has no bounds, so that bounds do not take the room of records.
pub(crate) const ORIGIN_BYTES_MAX: usize = 512;

/// Bytes of an origin with bounds beside model and bounds.
const FIXED_BYTES: usize = 8;

/// What an origin takes of a page in the reckoning of room for records: fixed fields, a model, and
/// bounds as long as short keys.
pub(crate) const ORIGIN_BYTES: usize = FIXED_BYTES + MODEL_BYTES + 2 * 8;

/// Bytes of the origin of a page of an extent with these bounds.
pub(crate) fn origin_bytes(lower: &[u8], upper: Option<&[u8]>, has_model: bool) -> usize {
    let prefix = upper.map_or(0, |upper| common_prefix(lower, upper).len());
    let bounds = lower.len() - prefix + upper.map_or(0, |upper| upper.len() - prefix);
    FIXED_BYTES + if has_model { MODEL_BYTES } else { 0 } + bounds
}

/// Where a page comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Origin<'a> {
    /// The generation of the segment, if this is an overflow page or a staged page.
    pub(crate) overflow_of: Option<Generation>,
    /// Whether it is a staged page: newer than the others, of keys of all of them.
    pub(crate) staged: bool,
    pub(crate) index: u8,
    pub(crate) order: u8,
    /// `None` where these are left to the pages of the extent.
    pub(crate) bounds: Option<Bounds<'a>>,
}

/// Whose keys are in a segment, and how they are spread over it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bounds<'a> {
    pub(crate) model: Option<Model>,
    pub(crate) lower: Cow<'a, [u8]>,
    pub(crate) upper: Option<Cow<'a, [u8]>>,
}

impl Origin<'_> {
    /// The bytes for an overflow page of page `index` of a segment, or for a staged page.
    pub(crate) fn beside(located: &Located, index: usize, staged: bool) -> Vec<u8> {
        let Located { lower, upper, segment } = located;
        let mut origin = Origin {
            overflow_of: Some(segment.base.generation),
            staged,
            index: u8::try_from(index).expect("a segment has at most 16 pages"),
            order: segment.order,
            bounds: Some(Bounds {
                model: segment.model,
                lower: lower.bytes().into(),
                upper: upper.as_ref().map(|upper| upper.bytes().into()),
            }),
        };
        let mut bytes = Vec::new();
        origin.encode(located.prefix().len(), &mut bytes);
        if bytes.len() > ORIGIN_BYTES_MAX {
            origin.bounds = None;
            bytes.clear();
            origin.encode(0, &mut bytes);
        }
        bytes
    }

    /// Appends the bytes for a page whose prefix has `prefix` bytes.
    pub(crate) fn encode(&self, prefix: usize, out: &mut Vec<u8>) {
        let flag = |there: bool, flag: u8| if there { flag } else { 0 };
        let bounds = self.bounds.as_ref();
        out.push(if bounds.is_some() { VERSION } else { VERSION_UNBOUNDED });
        out.push(
            flag(self.overflow_of.is_some(), OVERFLOW)
                | flag(bounds.is_some_and(|bounds| bounds.upper.is_some()), UPPER)
                | flag(bounds.is_some_and(|bounds| bounds.model.is_some()), MODEL)
                | flag(self.staged, STAGED),
        );
        out.extend_from_slice(&[self.index, self.order]);
        out.extend(self.overflow_of.iter().flat_map(|generation| generation.0.to_le_bytes()));
        let Some(Bounds { model, lower, upper }) = bounds else { return };
        out.extend(model.iter().flat_map(|model| model.to_bytes()));
        let suffixes = std::iter::once(lower).chain(upper);
        let suffixes = suffixes.map(|bound| bound.get(prefix..).unwrap_or(&[]));
        for suffix in suffixes.clone() {
            let length = u16::try_from(suffix.len()).expect("bounds are at most as long as keys");
            out.extend_from_slice(&length.to_le_bytes());
        }
        suffixes.for_each(|suffix| out.extend_from_slice(suffix));
    }
}

impl Origin<'static> {
    /// Reads what [`Origin::encode`] wrote into a page with this prefix. `None` for other bytes,
    /// and for a page without an origin.
    pub(crate) fn decode(bytes: &[u8], prefix: &[u8]) -> Option<Self> {
        let ([version, flags, index, order], mut left) = bytes.split_first_chunk()?;
        let known = flags & !(OVERFLOW | UPPER | MODEL | STAGED) == 0;
        let known = known && (VERSION..=VERSION_UNBOUNDED).contains(version);
        if !known || *order > SEGMENT_ORDER_MAX || *index >= 1 << order {
            return None;
        }
        let overflow_of = if flags & OVERFLOW == 0 {
            None
        } else {
            Some(Generation(u32::from_le_bytes(*take(&mut left)?)))
        };
        let staged = flags & STAGED != 0;
        let (index, order) = (*index, *order);
        if *version == VERSION_UNBOUNDED {
            let sound = overflow_of.is_some() && flags & (UPPER | MODEL) == 0 && left.is_empty();
            return sound.then_some(Origin { overflow_of, staged, index, order, bounds: None });
        }
        let model = if flags & MODEL == 0 { None } else { Some(take::<MODEL_BYTES>(&mut left)?) };
        let lower = usize::from(u16::from_le_bytes(*take(&mut left)?));
        let upper = if flags & UPPER == 0 {
            None
        } else {
            Some(usize::from(u16::from_le_bytes(*take(&mut left)?)))
        };
        let (lower, left) = left.split_at_checked(lower)?;
        if left.len() != upper.unwrap_or(0) {
            return None;
        }
        let lower = [prefix, lower].concat();
        let model = match model {
            Some(model) => Some(Model::from_bytes(model, &lower).ok()?),
            None => None,
        };
        let upper = upper.map(|_| Cow::Owned([prefix, left].concat()));
        let lower = Cow::Owned(lower);
        let bounds = Some(Bounds { model, lower, upper });
        Some(Origin { overflow_of, staged, index, order, bounds })
    }
}

fn take<'a, const N: usize>(left: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = left.split_first_chunk()?;
    *left = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn comes_back(
            generation in proptest::option::of(any::<u32>()),
            index in 0u8..16,
            order in 0u8..5,
            bounds in proptest::collection::btree_set(
                proptest::collection::vec(any::<u8>(), 0..20), 2),
            cut in 0usize..80,
        ) {
            let bounds: Vec<_> = bounds.into_iter().collect();
            let model = (order > 0).then(|| Model::line(0, 2, 0.25, 1.5).unwrap());
            let prefix = common_prefix(&bounds[0], &bounds[1]);
            let told = generation.is_none_or(|generation| generation % 3 != 0);
            let origin = Origin {
                overflow_of: generation.map(Generation),
                staged: generation.is_some_and(|generation| generation % 2 == 0),
                index: index % (1 << order),
                order,
                bounds: told.then(|| Bounds {
                    model,
                    lower: Cow::Borrowed(&bounds[0]),
                    upper: generation.map(|_| Cow::Borrowed(&bounds[1][..])),
                }),
            };
            let mut bytes = Vec::new();
            origin.encode(prefix.len(), &mut bytes);
            prop_assert_eq!(Origin::decode(&bytes, prefix), Some(origin));
            let cut = cut.min(bytes.len() - 1);
            prop_assert_eq!(Origin::decode(&bytes[..cut], prefix), None);
        }

        /// What is reckoned with is what it takes.
        #[test]
        fn origins_are_as_long_as_is_said(
            bounds in proptest::collection::btree_set(
                proptest::collection::vec(0_u8..3, 0..20), 2),
            has_model: bool,
            has_upper: bool,
        ) {
            let bounds: Vec<_> = bounds.into_iter().collect();
            let upper = has_upper.then_some(&bounds[1][..]);
            let origin = Origin {
                overflow_of: None,
                staged: false,
                index: 0,
                order: 1,
                bounds: Some(Bounds {
                    model: has_model.then(|| Model::line(0, 2, 0.25, 1.5).unwrap()),
                    lower: Cow::Borrowed(&bounds[0]),
                    upper: upper.map(Into::into),
                }),
            };
            let mut bytes = Vec::new();
            let prefix = upper.map_or(0, |upper| common_prefix(&bounds[0], upper).len());
            origin.encode(prefix, &mut bytes);
            let length = origin_bytes(&bounds[0], upper, has_model);
            prop_assert_eq!(bytes.len() + if has_upper { 0 } else { 2 }, length);
        }

        #[test]
        fn nonsense_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Origin::decode(&bytes, b"a");
        }
    }
}
