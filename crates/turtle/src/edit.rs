//! One change of one key, and what it costs in a leaf.
//!
//! **Invariant**: [`packed_bytes`] is additive, and is all that an edit takes of a leaf's capacity;
//! what a leaf has beside it (headers, index, filter) does not count.

use spinney_base::ValueRef;

/// What an edit takes of a leaf beside its key and value, in bytes.
pub(crate) const EDIT_BYTES: u64 = 8;

/// A key and its new value, or that it has none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edit<'a> {
    pub(crate) key: &'a [u8],
    /// `None` is a tombstone.
    pub(crate) value: Option<ValueRef<'a>>,
}

impl Edit<'_> {
    /// What it takes of a leaf's capacity, in bytes.
    pub(crate) fn packed_bytes(&self) -> u64 {
        packed_bytes(self.key.len(), self.value.map_or(0, ValueRef::len))
    }

    /// Appends the value or the pointer to `out`; returns which it is.
    pub(crate) fn hit(&self, out: &mut Vec<u8>) -> Hit {
        let Some(value) = self.value else { return Hit::Deleted };
        out.extend_from_slice(value.bytes);
        if value.large { Hit::Large } else { Hit::Inline }
    }
}

/// What an edit with a key and a value (or pointer) of these lengths takes of a leaf's capacity.
pub(crate) const fn packed_bytes(key: usize, value: usize) -> u64 {
    key as u64 + value as u64 + EDIT_BYTES
}

/// What a place has for a key that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    /// Its value was appended to the output.
    Inline,
    /// The pointer to its value was.
    Large,
    /// It was removed.
    Deleted,
}

/// The shortest key above `below` and not above `from`.
///
/// The one key of a cut: everything on its left is smaller, everything on its right is not.
pub(crate) fn separator<'a>(below: &[u8], from: &'a [u8]) -> &'a [u8] {
    debug_assert!(below < from);
    let common = below.iter().zip(from).take_while(|(a, b)| a == b).count();
    &from[..from.len().min(common + 1)]
}

/// The first eight bytes of a key as a number that orders like them.
#[inline]
pub(crate) fn head(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut bytes = [0; 8];
    bytes[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::separator;

    #[test]
    fn a_separator_is_short_and_separates() {
        for (below, from, expected) in [
            (&b""[..], &b"a"[..], &b"a"[..]),
            (b"", b"\0\0", b"\0"),
            (b"abc", b"abd", b"abd"),
            (b"abc", b"abcd", b"abcd"),
            (b"abc", b"b12", b"b"),
            (b"a\xff\xff", b"b", b"b"),
        ] {
            assert_eq!(separator(below, from), expected);
            assert!(below < expected && expected <= from);
        }
    }
}
