//! The user record: the content of one atomic batch in the log (one record per batch, idempotent by
//! key).
//!
//! version `u8` (1; 2 if a value is large; 3 if one is a patch), number of operations `u32`, then for
//! each: keyspace `u32`, kind `u8` (1 put, 2 remove, 3 put large: the value is the pointer to the
//! value, see `crates/extent/src/large.rs`, 4 patch: the value is the patch of the key's value, see
//! `crates/engine/src/patch.rs`), key length `u16`, value length `u32` (0 for a removal), key, value.
//! All integers are little-endian. Each key of a keyspace occurs once: the last operation of the batch
//! on it. A record has the least version that has its kinds.
//!
//! Patches are of keyspaces with versions only. A replay passes over one that does not fit the value
//! that it finds: the value is of a later record, which the replay comes to.
//!
//! Example: putting `v` at `k` in keyspace 3: `01  01 00 00 00  03 00 00 00  01  01 00  01 00 00 00
//! 6b  76`.

use spinney_base::{Error, ErrorKind, KeyspaceId, Lsn, Result, ValueRef};
use spinney_engine::Patch;

const VERSION: u8 = 1;
/// Version of a record with pointers to large values.
const VERSION_LARGE: u8 = 2;
/// Version of a record with patches.
const VERSION_PATCH: u8 = 3;
const HEAD_BYTES: usize = 5;
const OPERATION_BYTES: usize = 11;
const PUT: u8 = 1;
const REMOVE: u8 = 2;
const PUT_LARGE: u8 = 3;
const PATCH: u8 = 4;

/// What an operation does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    /// The new value, the pointer to it, or the patch of the value; `None` removes the key.
    pub(crate) value: Option<ValueRef<'a>>,
    /// Whether the value is a [`Patch`].
    pub(crate) is_patch: bool,
}

#[cfg(test)]
impl<'a> Change<'a> {
    fn put(value: Option<ValueRef<'a>>) -> Change<'a> {
        Change { value, is_patch: false }
    }
}

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
pub(crate) fn push(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], change: Change<'_>) {
    let Change { value, is_patch } = change;
    let (kind, version) = match value {
        Some(_) if is_patch => (PATCH, VERSION_PATCH),
        Some(value) if value.large => (PUT_LARGE, VERSION_LARGE),
        Some(_) => (PUT, VERSION),
        None => (REMOVE, VERSION),
    };
    out[0] = out[0].max(version);
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
    mut visit: impl FnMut(KeyspaceId, &[u8], Change<'_>) -> Result<()>,
) -> Result<()> {
    let damaged = || {
        Error::new(ErrorKind::Corruption, format!("log record {lsn} is not a batch of operations"))
    };
    let (head, mut left) = payload.split_at_checked(HEAD_BYTES).ok_or_else(damaged)?;
    let version = head[0];
    if !(VERSION..=VERSION_PATCH).contains(&version) {
        return Err(damaged());
    }
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
            PUT_LARGE if version >= VERSION_LARGE => Some(ValueRef::large(value)),
            PATCH if version >= VERSION_PATCH && Patch::parse(value).is_some() => {
                Some(ValueRef::inline(value))
            }
            REMOVE if value.is_empty() => None,
            _ => return Err(damaged()),
        };
        let change = Change { value, is_patch: kind == PATCH };
        visit(KeyspaceId(u32::from_le_bytes([k0, k1, k2, k3])), key, change)?;
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
        push(&mut out, KeyspaceId(3), b"k", Change::put(Some(ValueRef::inline(b"v"))));
        assert_eq!(out, [1, 1, 0, 0, 0, 3, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, b'k', b'v']);
    }

    #[test]
    fn golden_bytes_of_a_patch() {
        let (mut out, mut patch) = (Vec::new(), Vec::new());
        Patch::push(&mut patch, 2, b"v");
        begin(&mut out, 1);
        let change = Change { value: Some(ValueRef::inline(&patch)), is_patch: true };
        push(&mut out, KeyspaceId(3), b"k", change);
        let head = [3, 1, 0, 0, 0, 3, 0, 0, 0, 4, 1, 0, 9, 0, 0, 0, b'k'];
        assert_eq!(out, [&head[..], &[2, 0, 0, 0, 1, 0, 0, 0, b'v']].concat());
        let visit = |_, _: &[u8], found: Change<'_>| {
            assert_eq!(found, change);
            Ok(())
        };
        decode(&out, Lsn(1), visit).unwrap();
        // A program that knows versions up to 2 refuses it; a patch in a record of version 2 is none.
        out[0] = 2;
        decode(&out, Lsn(1), |_, _, _| Ok(())).unwrap_err();
        // Half of a part is no patch.
        (out[0], out[23]) = (3, 2);
        decode(&out, Lsn(1), |_, _, _| Ok(())).unwrap_err();
    }

    proptest! {
        #[test]
        fn comes_back(operations in proptest::collection::vec((any::<u32>(),
            proptest::collection::vec(any::<u8>(), 0..20),
            proptest::option::of((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..50)))), 0..10), cut in 0usize..200) {
            let mut out = Vec::new();
            begin(&mut out, operations.len());
            for (keyspace, key, value) in &operations {
                let value = value.as_ref().map(|(large, bytes)| ValueRef { bytes, large: *large });
                push(&mut out, KeyspaceId(*keyspace), key, Change::put(value));
            }
            let mut back = Vec::new();
            decode(&out, Lsn(1), |keyspace, key, change| {
                back.push((keyspace.0, key.to_vec(), change.value.map(|value| (value.large, value.bytes.to_vec()))));
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
