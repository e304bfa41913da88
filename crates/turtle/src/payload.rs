//! What a checkpoint slot of the engine points to.
//!
//! | size | field | meaning |
//! |---|---|---|
//! | 1 | version | 1 |
//! | 4 | root length | bytes of the next field |
//! | n | root | what the tree needs to be opened again |
//! | 4 | large extents | how many follow |
//! | 9 each | large extent | as [`LargeExtent::encode`] writes it |
//!
//! All integers are little-endian. Checksums are the store's.

use spinney_base::{Error, ErrorKind, Result};
use spinney_extent::values::LargeExtent;

pub(crate) const VERSION: u8 = 1;

pub(crate) fn encode(root: &[u8], large: &[LargeExtent]) -> Vec<u8> {
    let mut out = Vec::with_capacity(9 + root.len() + 9 * large.len());
    let length = |length: usize| u32::try_from(length).expect("far below 2^32").to_le_bytes();
    out.push(VERSION);
    out.extend_from_slice(&length(root.len()));
    out.extend_from_slice(root);
    out.extend_from_slice(&length(large.len()));
    large.iter().for_each(|large| large.encode(&mut out));
    out
}

/// The root and the large extents of a payload; of a new keyspace, which has none, nothing.
///
/// # Errors
/// `Corruption`, or `Unsupported` for another version.
pub(crate) fn decode(payload: &[u8]) -> Result<(&[u8], Vec<LargeExtent>)> {
    if payload.is_empty() {
        return Ok((&[], Vec::new()));
    }
    if payload[0] != VERSION {
        let text = format!("a checkpoint of version {}; this program reads {VERSION}", payload[0]);
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    parse(&payload[1..]).ok_or_else(|| {
        Error::new(ErrorKind::Corruption, "a checkpoint's payload is not what its version says")
    })
}

fn parse(mut left: &[u8]) -> Option<(&[u8], Vec<LargeExtent>)> {
    fn number(left: &mut &[u8]) -> Option<u32> {
        let (bytes, rest) = left.split_first_chunk()?;
        *left = rest;
        Some(u32::from_le_bytes(*bytes))
    }
    let length = number(&mut left)? as usize;
    let (root, mut left) = left.split_at_checked(length)?;
    let count = number(&mut left)?;
    let large = LargeExtent::decode(&mut left, count.into())?;
    left.is_empty().then_some((root, large))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use spinney_base::{Generation, PageNumber};
    use spinney_extent::Extent;

    #[test]
    fn golden_bytes() {
        let extent = Extent { page: PageNumber(130), order: 1 };
        let large = [LargeExtent { extent, generation: Generation(7), first: true }];
        let bytes = encode(b"root", &large);
        assert_eq!(bytes[..9], [1, 4, 0, 0, 0, b'r', b'o', b'o', b't']);
        assert_eq!(bytes[9..], [1, 0, 0, 0, 130, 0, 0, 0, 0x81, 7, 0, 0, 0]);
        assert_eq!(decode(&bytes).unwrap(), (&b"root"[..], large.to_vec()));
        assert_eq!(decode(&[]).unwrap(), (&[][..], vec![]));
        assert_eq!(decode(&[2]).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    proptest! {
        #[test]
        fn nonsense_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes);
            let _ = decode(&[&[VERSION][..], &bytes].concat());
        }
    }
}
