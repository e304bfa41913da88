//! The bytes of a checkpoint; the crate's documentation has their layout.

use spinney_base::{Error, ErrorKind, Result};
use spinney_extent::values::{LargeExtent, LargeList};

use super::Records;

pub(crate) fn encode(records: &Records, large: &[LargeExtent]) -> Vec<u8> {
    let mut out = (records.len() as u64).to_le_bytes().to_vec();
    for (key, value) in records {
        for length in [key.len(), value.bytes.len()] {
            let length = u32::try_from(length).expect("keys and values are far below 4 GiB");
            out.extend_from_slice(&length.to_le_bytes());
        }
        out.push(u8::from(value.large));
        out.extend_from_slice(key);
        out.extend_from_slice(&value.bytes);
    }
    out.extend_from_slice(&(large.len() as u64).to_le_bytes());
    large.iter().for_each(|large| large.encode(&mut out));
    out
}

/// # Errors
/// `Corruption` for bytes that [`encode`] does not write.
pub(crate) fn decode(payload: &[u8]) -> Result<(Records, LargeList)> {
    if payload.is_empty() {
        return Ok(Default::default());
    }
    parse(payload).ok_or_else(|| {
        Error::new(ErrorKind::Corruption, "a checkpoint's payload is not what it should be")
    })
}

fn parse(mut left: &[u8]) -> Option<(Records, LargeList)> {
    fn take<const N: usize>(left: &mut &[u8]) -> Option<[u8; N]> {
        let (bytes, rest) = left.split_first_chunk()?;
        *left = rest;
        Some(*bytes)
    }
    fn bytes(left: &mut &[u8], length: usize) -> Option<Vec<u8>> {
        let (bytes, rest) = left.split_at_checked(length)?;
        *left = rest;
        Some(bytes.to_vec())
    }
    let mut records = Records::new();
    for _ in 0..u64::from_le_bytes(take(&mut left)?) {
        let key = u32::from_le_bytes(take(&mut left)?) as usize;
        let value = u32::from_le_bytes(take(&mut left)?) as usize;
        let [large] = take(&mut left)?;
        let key = bytes(&mut left, key)?;
        let bytes = bytes(&mut left, value)?;
        records.insert(key, spinney_engine::OwnedValue { bytes, large: large == 1 });
    }
    let count = u64::from_le_bytes(take(&mut left)?);
    let live = LargeExtent::decode(&mut left, count)?;
    left.is_empty().then(|| (records, LargeList { live, ..LargeList::default() }))
}
