//! What a page remembers of the segment that it belongs to, for `salvage` (rule P22): when log and
//! index are lost, pages alone must tell whose keys they hold.
//!
//! These bytes lie beside the prefix of a slotted page (`spinney_page::layout`). All integers are
//! little-endian; bounds are without the page's prefix.
//!
//! | size | field | meaning |
//! |---|---|---|
//! | 1 | version | 1 |
//! | 1 | flags | 1: an overflow page or a staged page; 2: there is an upper bound; 4: there is a model; 8: a staged page |
//! | 1 | index | which page of the segment this is, or the page that this one is the overflow page of; 0 for a staged page |
//! | 1 | order | the binary logarithm of the segment's pages |
//! | 4 | generation | of the segment's extent, if this is an overflow page or a staged page |
//! | 26 | model | if there is one |
//! | 2 | lower length | bytes of the lower bound |
//! | 2 | upper length | bytes of the upper bound, if there is one |
//! | .. | lower, upper | the bounds |
//!
//! The extent's generation is the production id of the paper; a base page has it in its block
//! header. A page whose one record leaves no room for an origin has none.

use std::borrow::Cow;

use spinney_base::Generation;

use crate::model::{MODEL_BYTES, Model};
use crate::segment::SEGMENT_ORDER_MAX;

const VERSION: u8 = 1;
const OVERFLOW: u8 = 1;
const UPPER: u8 = 2;
const MODEL: u8 = 4;
const STAGED: u8 = 8;

/// Where a page comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Origin<'a> {
    /// The generation of the segment, if this is an overflow page or a staged page.
    pub(crate) overflow_of: Option<Generation>,
    /// Whether it is a staged page: newer than the others, of keys of all of them.
    pub(crate) staged: bool,
    pub(crate) index: u8,
    pub(crate) order: u8,
    pub(crate) model: Option<Model>,
    pub(crate) lower: Cow<'a, [u8]>,
    pub(crate) upper: Option<Cow<'a, [u8]>>,
}

impl Origin<'_> {
    /// Appends the bytes for a page whose prefix has `prefix` bytes.
    pub(crate) fn encode(&self, prefix: usize, out: &mut Vec<u8>) {
        let flag = |there: bool, flag: u8| if there { flag } else { 0 };
        out.push(VERSION);
        out.push(
            flag(self.overflow_of.is_some(), OVERFLOW)
                | flag(self.upper.is_some(), UPPER)
                | flag(self.model.is_some(), MODEL)
                | flag(self.staged, STAGED),
        );
        out.extend_from_slice(&[self.index, self.order]);
        out.extend(self.overflow_of.iter().flat_map(|generation| generation.0.to_le_bytes()));
        out.extend(self.model.iter().flat_map(|model| model.to_bytes()));
        let bounds = std::iter::once(&self.lower).chain(&self.upper);
        let suffixes = bounds.map(|bound| bound.get(prefix..).unwrap_or(&[]));
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
        if *version != VERSION || !known || *order > SEGMENT_ORDER_MAX || *index >= 1 << order {
            return None;
        }
        let overflow_of = if flags & OVERFLOW == 0 {
            None
        } else {
            Some(Generation(u32::from_le_bytes(*take(&mut left)?)))
        };
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
        let staged = flags & STAGED != 0;
        Some(Origin { overflow_of, staged, index: *index, order: *order, model, lower, upper })
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
            let prefix = crate::segment::common_prefix(&bounds[0], &bounds[1]);
            let origin = Origin {
                overflow_of: generation.map(Generation),
                staged: generation.is_some_and(|generation| generation % 2 == 0),
                index: index % (1 << order),
                order,
                model,
                lower: Cow::Borrowed(&bounds[0]),
                upper: generation.map(|_| Cow::Borrowed(&bounds[1][..])),
            };
            let mut bytes = Vec::new();
            origin.encode(prefix.len(), &mut bytes);
            prop_assert_eq!(Origin::decode(&bytes, prefix), Some(origin));
            let cut = cut.min(bytes.len() - 1);
            prop_assert_eq!(Origin::decode(&bytes[..cut], prefix), None);
        }

        #[test]
        fn nonsense_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Origin::decode(&bytes, b"a");
        }
    }
}
