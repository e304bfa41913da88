//! The user record: the content of one atomic batch in the log (one record per batch, idempotent by
//! key).
//!
//! version `u8` (1; 2 if a value is large), number of operations `u32`, then for each: keyspace
//! `u32`, kind `u8` (1 put, 2 remove, 3 put large: the value is the pointer to the value, see
//! `crates/extent/src/large.rs`), key length `u16`, value length `u32` (0 for a removal), key,
//! value. All integers are little-endian. Each key of a keyspace occurs once: the last operation of
//! the batch on it.
//!
//! Example: putting `v` at `k` in keyspace 3: `01  01 00 00 00  03 00 00 00  01  01 00  01 00 00 00
//! 6b  76`.

use spinney_base::{Error, ErrorKind, KeyspaceId, Lsn, Result, ValueRef};

const VERSION: u8 = 1;
/// Version of a record with pointers to large values.
const VERSION_LARGE: u8 = 2;
const HEAD_BYTES: usize = 5;
const OPERATION_BYTES: usize = 11;
const PUT: u8 = 1;
const REMOVE: u8 = 2;
const PUT_LARGE: u8 = 3;

/// Bytes that one more operation with these lengths adds to a record.
pub(crate) fn operation_bytes(key: usize, value: usize) -> usize {
    OPERATION_BYTES + key + value
}

/// Begins a record of `count` operations in `out`, which is emptied first.
pub(crate) fn begin(out: &mut Vec<u8>, count: usize) {
    let count = u32::try_from(count).expect("BATCH_OPERATIONS_MAX is far below");
    let mut head = [0; HEAD_BYTES];
    head[0] = VERSION;
    head[1..].copy_from_slice(&count.to_le_bytes());
    out.clear();
    out.extend_from_slice(&head);
}

/// Appends one operation.
pub(crate) fn push(
    out: &mut Vec<u8>,
    keyspace: KeyspaceId,
    key: &[u8],
    value: Option<ValueRef<'_>>,
) {
    let kind = match value {
        Some(value) if value.large => {
            out[0] = VERSION_LARGE;
            PUT_LARGE
        }
        Some(_) => PUT,
        None => REMOVE,
    };
    let value = value.unwrap_or(ValueRef::EMPTY);
    let key_length = u16::try_from(key.len()).expect("KEY_BYTES_MAX is below");
    let value_length = u32::try_from(value.len()).expect("VALUE_BYTES_MAX is below");
    let mut head = [0; OPERATION_BYTES];
    head[..4].copy_from_slice(&keyspace.0.to_le_bytes());
    head[4] = kind;
    head[5..7].copy_from_slice(&key_length.to_le_bytes());
    head[7..].copy_from_slice(&value_length.to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(key);
    out.extend_from_slice(value.bytes);
}

/// Passes every operation of a record to `visit`.
///
/// # Errors
/// `Corruption` for bytes that [`begin`] and [`push`] do not make; errors of `visit`.
pub(crate) fn decode(
    payload: &[u8],
    lsn: Lsn,
    mut visit: impl FnMut(KeyspaceId, &[u8], Option<ValueRef<'_>>) -> Result<()>,
) -> Result<()> {
    let damaged = || {
        Error::new(ErrorKind::Corruption, format!("log record {lsn} is not a batch of operations"))
    };
    let (head, mut left) = payload.split_at_checked(HEAD_BYTES).ok_or_else(damaged)?;
    let may_be_large = match head[0] {
        VERSION => false,
        VERSION_LARGE => true,
        _ => return Err(damaged()),
    };
    let count = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    for _ in 0..count {
        let (operation, rest) = left.split_first_chunk::<OPERATION_BYTES>().ok_or_else(damaged)?;
        let [k0, k1, k2, k3, kind, l0, l1, v0, v1, v2, v3] = *operation;
        let key_length = usize::from(u16::from_le_bytes([l0, l1]));
        let value_length = u32::from_le_bytes([v0, v1, v2, v3]) as usize;
        let (key, rest) = rest.split_at_checked(key_length).ok_or_else(damaged)?;
        let (value, rest) = rest.split_at_checked(value_length).ok_or_else(damaged)?;
        let value = match kind {
            PUT => Some(ValueRef::inline(value)),
            PUT_LARGE if may_be_large => Some(ValueRef::large(value)),
            REMOVE if value.is_empty() => None,
            _ => return Err(damaged()),
        };
        visit(KeyspaceId(u32::from_le_bytes([k0, k1, k2, k3])), key, value)?;
        left = rest;
    }
    if left.is_empty() { Ok(()) } else { Err(damaged()) }
}

/// Decodes arbitrary bytes, for fuzzing: never panics.
#[doc(hidden)]
pub fn decode_anything(payload: &[u8]) {
    let _ = decode(payload, Lsn(1), |_, _, _| Ok(()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        begin(&mut out, 1);
        push(&mut out, KeyspaceId(3), b"k", Some(ValueRef::inline(b"v")));
        assert_eq!(out, [1, 1, 0, 0, 0, 3, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, b'k', b'v']);
    }

    proptest! {
        #[test]
        fn comes_back(operations in proptest::collection::vec((any::<u32>(),
            proptest::collection::vec(any::<u8>(), 0..20),
            proptest::option::of((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..50)))), 0..10), cut in 0usize..200) {
            let mut out = Vec::new();
            begin(&mut out, operations.len());
            for (keyspace, key, value) in &operations {
                push(&mut out, KeyspaceId(*keyspace), key, value.as_ref().map(|(large, bytes)| ValueRef { bytes, large: *large }));
            }
            let mut back = Vec::new();
            decode(&out, Lsn(1), |keyspace, key, value| {
                back.push((keyspace.0, key.to_vec(), value.map(|value| (value.large, value.bytes.to_vec()))));
                Ok(())
            }).unwrap();
            prop_assert_eq!(back, operations);
            if cut < out.len() {
                prop_assert!(decode(&out[..cut], Lsn(1), |_, _, _| Ok(())).is_err());
            }
        }

        #[test]
        fn nonsense_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            decode_anything(&bytes);
        }
    }
}
