//! The image of a leaf on disk, and the payload of a checkpoint, which names all of them.
//!
//! An image is one wide block of kind 13, of 1, 2 or 4 pages:
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 32 | 2 | lower | bytes of the lower bound |
//! | 34 | 2 | upper | bytes of the upper bound; `0xFFFF` at the end of all keys |
//! | 36 | 2 | records | how many follow |
//! | 38 | | bounds | the lower bound, then the upper one |
//! | | each | record | flags (1 byte: bit 0 the value is a pointer), bytes of the key behind what all share (2), bytes of the value (2), key, value |
//!
//! What all keys share are the bytes that both bounds begin with; without an upper bound none. The rest of the block is
//! zero.
//!
//! | size | field of the payload | meaning |
//! |---|---|---|
//! | 8 | images | how many follow, in the order of the keys |
//! | 9 each | place | page `u32`, generation `u32`, order `u8` |
//! | 8 | live | how many extents follow |
//! | 9 each | extent | of values that records name, as [`LargeExtent::encode`] writes it |
//! | 8 | freed | how many extents follow |
//! | 9 each | extent | of values that images may still name, though they were superseded |
//!
//! All integers are little-endian. A new keyspace has no payload. Checksums are the store's.
//!
//! **Invariant**: the images of a payload are for all keys: the first begins before all, each where the one before ends.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Result};
use spinney_extent::header::Damage;
use spinney_extent::values::{LargeExtent, LargeList};
use spinney_extent::{BlockKind, HEADER_BYTES, WIDE_ORDER_MAX};
use spinney_leaf::{Bounds, Records};

use crate::leaf::LARGE;
use crate::place::{PLACE_BYTES, Place};

/// The kind of an image's block.
pub(crate) const IMAGE: BlockKind = BlockKind::wide(13, "leaf image");

const RECORDS: usize = HEADER_BYTES + 4;
const BOUNDS: usize = RECORDS + 2;
const RECORD_BYTES: usize = 5;
const NO_BOUND: u16 = u16::MAX;

/// A leaf as its image tells it.
#[derive(Debug, Default)]
pub(crate) struct Image {
    pub(crate) lower: Vec<u8>,
    pub(crate) upper: Option<Vec<u8>>,
    pub(crate) records: Records,
}

impl Image {
    pub(crate) fn bounds(&self) -> Bounds<'_> {
        Bounds { lower: &self.lower, upper: self.upper.as_deref() }
    }
}

fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).expect("a leaf has fewer bytes").to_le_bytes()
}

/// The bytes of an image while they are made, with room for the header of the block.
#[derive(Debug)]
pub(crate) struct Encoder {
    out: Vec<u8>,
    records: usize,
}

impl Encoder {
    /// Makes it, with room for this number of bytes of records.
    pub(crate) fn new(bounds: Bounds<'_>, bytes: usize) -> Encoder {
        let ends = bounds.lower.len() + bounds.upper.map_or(0, <[u8]>::len);
        let mut out = Vec::with_capacity(BOUNDS + ends + bytes);
        out.resize(HEADER_BYTES, 0);
        out.extend(length(bounds.lower.len()));
        out.extend(bounds.upper.map_or(NO_BOUND.to_le_bytes(), |upper| length(upper.len())));
        out.extend(length(0));
        out.extend(bounds.lower);
        out.extend(bounds.upper.unwrap_or_default());
        Encoder { out, records: 0 }
    }

    /// Adds a record, of which `write` appends so many bytes: of its key behind what all share, then of its value.
    pub(crate) fn push(
        &mut self,
        flags: u8,
        bytes: (usize, usize),
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        self.records += 1;
        self.out.push(flags & LARGE);
        self.out.extend(length(bytes.0));
        self.out.extend(length(bytes.1));
        let before = self.out.len();
        write(&mut self.out);
        debug_assert_eq!(self.out.len() - before, bytes.0 + bytes.1);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.out[RECORDS..BOUNDS].copy_from_slice(&length(self.records));
        self.out
    }
}

/// Returns the order of the block for an image with this number of bytes.
pub(crate) fn order_of(bytes: usize) -> u8 {
    let pages = bytes.div_ceil(PAGE_BYTES).next_power_of_two();
    let order = u8::try_from(pages.ilog2()).expect("images are short");
    assert!(order <= WIDE_ORDER_MAX, "an image has at most as many bytes as its leaf");
    order
}

/// Decodes a block whose header is right.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn decode(block: &[u8]) -> Result<Image, Damage> {
    parse(block).ok_or_else(|| Damage::new("an image of a leaf", "bytes that no leaf has"))
}

fn parse(block: &[u8]) -> Option<Image> {
    let number = |at: usize| Some(u16::from_le_bytes(*block.get(at..at + 2)?.first_chunk()?));
    let (lower, upper) = (usize::from(number(HEADER_BYTES)?), number(HEADER_BYTES + 2)?);
    let count = number(RECORDS)?;
    let mut at = BOUNDS;
    let mut next = |bytes: usize| {
        let found = block.get(at..at + bytes)?;
        at += bytes;
        Some(found)
    };
    let mut image = Image { lower: next(lower)?.to_vec(), ..Image::default() };
    if upper != NO_BOUND {
        image.upper = Some(next(usize::from(upper))?.to_vec());
    }
    let prefix = image.lower[..image.bounds().prefix()].to_vec();
    for index in 0..usize::from(count) {
        let head = next(RECORD_BYTES)?;
        let flags = head[0];
        let suffix = next(usize::from(u16::from_le_bytes([head[1], head[2]])))?;
        let value = next(usize::from(u16::from_le_bytes([head[3], head[4]])))?;
        let key = |out: &mut Vec<u8>| {
            out.extend_from_slice(&prefix);
            out.extend_from_slice(suffix);
        };
        image.records.push((flags, 0), key, |out| out.extend_from_slice(value));
        let key = image.records.key(index);
        let follows = index == 0 || image.records.key(index - 1) < key;
        let is_inside =
            *key >= *image.lower && image.upper.as_deref().is_none_or(|upper| key < upper);
        if !follows || !is_inside || flags & !LARGE != 0 {
            return None;
        }
    }
    image.upper.as_ref().is_none_or(|upper| *upper > image.lower).then_some(image)
}

/// What a checkpoint names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Payload {
    pub(crate) places: Vec<Place>,
    pub(crate) large: LargeList,
}

impl Payload {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = (self.places.len() as u64).to_le_bytes().to_vec();
        self.places.iter().for_each(|place| place.encode(&mut out));
        for list in [&self.large.live, &self.large.freed] {
            out.extend((list.len() as u64).to_le_bytes());
            list.iter().for_each(|extent| extent.encode(&mut out));
        }
        out
    }

    /// Decodes a payload; `None` for that of a new keyspace.
    ///
    /// # Errors
    /// `Corruption` for bytes that [`Payload::encode`] does not write.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Payload>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let wrong = || Error::new(ErrorKind::Corruption, "a checkpoint's payload names no leaves");
        parse_payload(bytes).map(Some).ok_or_else(wrong)
    }

    /// Returns the 4 KiB pages of all images.
    pub(crate) fn pages(&self) -> u64 {
        self.places.iter().map(|place| place.pages()).sum()
    }
}

fn parse_payload(mut left: &[u8]) -> Option<Payload> {
    let count = |left: &mut &[u8]| {
        let (count, rest) = left.split_first_chunk()?;
        *left = rest;
        Some(u64::from_le_bytes(*count))
    };
    let bytes = usize::try_from(count(&mut left)?).ok()?.checked_mul(PLACE_BYTES)?;
    let (places, rest) = left.split_at_checked(bytes)?;
    left = rest;
    let places: Option<Vec<Place>> =
        places.as_chunks::<PLACE_BYTES>().0.iter().map(Place::decode).collect();
    let places = places.filter(|places| !places.is_empty())?;
    let mut list = || {
        let count = count(&mut left)?;
        LargeExtent::decode(&mut left, count)
    };
    let large = LargeList { live: list()?, freed: list()? };
    left.is_empty().then_some(Payload { places, large })
}

#[cfg(test)]
mod tests {
    use spinney_leaf::Entry;

    use super::*;

    fn encode<'e>(bounds: Bounds<'_>, entries: impl Iterator<Item = Entry<'e>>) -> Vec<u8> {
        let mut image = Encoder::new(bounds, 0);
        for entry in entries {
            let suffix = &entry.key[bounds.prefix()..];
            image.push(entry.flags, (suffix.len(), entry.value.len()), |out| {
                out.extend(suffix);
                out.extend(entry.value);
            });
        }
        image.finish()
    }

    #[test]
    fn golden_bytes() {
        let bounds = Bounds { lower: b"ca", upper: Some(b"cz") };
        let entries = [
            Entry { key: b"cat", value: b"1", flags: 0 },
            Entry { key: b"cow", value: b"23", flags: LARGE },
        ];
        let bytes = encode(bounds, entries.into_iter());
        let expected =
            b"\x02\x00\x02\x00\x02\x00cacz\x00\x02\x00\x01\x00at1\x01\x02\x00\x02\x00ow23";
        assert_eq!(&bytes[HEADER_BYTES..], expected);
        let image = decode(&bytes).unwrap();
        assert_eq!((&image.lower[..], image.upper.as_deref()), (&b"ca"[..], Some(&b"cz"[..])));
        assert_eq!(image.records.key(1), b"cow");
        assert_eq!((image.records.entry(1).value, image.records.flags(1)), (&b"23"[..], LARGE));
        for length in HEADER_BYTES..bytes.len() {
            assert!(decode(&bytes[..length]).is_err());
        }
    }

    /// Bytes that are changed behind a right checksum are refused, or are those of some leaf.
    #[test]
    fn nonsense_does_not_panic() {
        let keys: Vec<Vec<u8>> = (0..40_u8).map(|at| vec![b'c', at, at]).collect();
        let entries = keys.iter().map(|key| Entry { key, value: &[7; 20], flags: 0 });
        let bytes = encode(Bounds { lower: b"c", upper: Some(b"d") }, entries);
        let mut random = spinney_base::runtime::SplitMix(1);
        let mut sound = 0;
        for _ in 0..20_000 {
            let mut bytes = bytes.clone();
            for _ in 0..1 + random.next_u64() % 3 {
                let place = HEADER_BYTES as u64 + random.next_u64() % (bytes.len() - 32) as u64;
                bytes[place as usize] = random.next_u64() as u8;
            }
            sound += usize::from(decode(&bytes).is_ok());
            let payload = &bytes[HEADER_BYTES..];
            _ = Payload::decode(&payload[random.next_u64() as usize % payload.len()..]);
        }
        assert!(sound > 1000 && sound < 20_000, "{sound} were leaves");
    }

    #[test]
    fn a_payload_is_what_it_was() {
        let places = vec![Place::from_word(9 << 32 | 128, 2), Place::from_word(8 << 32 | 140, 0)];
        let payload = Payload { places, large: LargeList::default() };
        let bytes = payload.encode();
        assert_eq!(Payload::decode(&bytes).unwrap().unwrap().places, payload.places);
        assert!(Payload::decode(&bytes[1..]).is_err());
        assert!(Payload::decode(&[]).unwrap().is_none());
    }
}
