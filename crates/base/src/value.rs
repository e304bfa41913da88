//! The stored form of a value: its bytes, or a pointer to them.
//!
//! A value that fits beside its key in a page is kept there (*inline*). A larger one is kept in
//! extents of its own, and log, cache and pages hold a short pointer to them (rule P17). Everything
//! that carries a value must carry the flag with it, so that a pointer is never taken for a value.

/// The bytes of a value, or of a pointer to a large one. Cheap to copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ValueRef<'a> {
    /// The value, or the encoded pointer.
    pub bytes: &'a [u8],
    /// Whether the bytes are a pointer.
    pub large: bool,
}

impl<'a> ValueRef<'a> {
    /// The value of a removed key where one must be named: empty and inline.
    pub const EMPTY: ValueRef<'static> = ValueRef { bytes: &[], large: false };

    /// Makes an inline value.
    #[must_use]
    pub const fn inline(bytes: &'a [u8]) -> Self {
        ValueRef { bytes, large: false }
    }

    /// Makes an encoded pointer to a large value.
    #[must_use]
    pub const fn large(pointer: &'a [u8]) -> Self {
        ValueRef { bytes: pointer, large: true }
    }

    /// Returns the number of bytes of the value or of the pointer.
    #[must_use]
    pub const fn len(self) -> usize {
        self.bytes.len()
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }
}

impl<'a> From<&'a [u8]> for ValueRef<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        ValueRef::inline(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for ValueRef<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        ValueRef::inline(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for ValueRef<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        ValueRef::inline(bytes)
    }
}

impl std::fmt::Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.large { "large " } else { "" };
        write!(f, "{kind}b\"{}\"", self.bytes.escape_ascii())
    }
}
