//! Patches: bytes that replace parts of a value, whose length stays.
//!
//! ```text
//!   value    d a v i d   1 0 0   e u r
//!   patch                0 7 0           one part: offset 5, 3 bytes
//! ```
//!
//! A patch is a list of parts. Each part is the offset in the value `u32`, the number of bytes `u32`, and the bytes. All
//! integers are little-endian. A patch *fits* a value that ends at or behind the end of each part.
//!
//! Example: `070` at 5: `05 00 00 00  03 00 00 00  30 37 30`.

/// A list of parts. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch<'a>(&'a [u8]);

impl<'a> Patch<'a> {
    /// Bytes of a part without those of the value.
    pub const PART_BYTES: usize = 8;

    /// Appends a part.
    ///
    /// # Panics
    /// When it lies beyond all values.
    pub fn push(out: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
        for number in [offset, bytes.len()] {
            let number = u32::try_from(number).expect("VALUE_BYTES_MAX is far below");
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(bytes);
    }

    /// Returns the patch that bytes are, if they are one.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Patch<'a>> {
        let mut left = bytes;
        while !left.is_empty() {
            (_, left) = first(left)?;
        }
        Some(Patch(bytes))
    }

    /// Returns the parts: where each begins, and its bytes.
    pub fn parts(self) -> impl Iterator<Item = (usize, &'a [u8])> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let (part, rest) = first(left)?;
            left = rest;
            Some(part)
        })
    }

    /// Returns where the part ends that lies behind all others.
    #[must_use]
    pub fn end(self) -> usize {
        self.parts().map(|(offset, bytes)| offset + bytes.len()).max().unwrap_or(0)
    }

    /// Replaces the parts of a value. Returns false, and changes nothing, if the patch does not fit.
    #[must_use]
    pub fn lay_over(self, value: &mut [u8]) -> bool {
        let fits = self.end() <= value.len();
        if fits {
            for (offset, bytes) in self.parts() {
                value[offset..offset + bytes.len()].copy_from_slice(bytes);
            }
        }
        fits
    }

    /// Makes of a copy of the list the patch that takes this one back from a value which it fits. `old` copies bytes of the
    /// value, as they are before, from an offset on.
    pub fn undo(self, copy: &mut [u8], mut old: impl FnMut(usize, &mut [u8])) {
        let mut left = copy;
        for (offset, bytes) in self.parts() {
            let (part, rest) = left.split_at_mut(Self::PART_BYTES + bytes.len());
            old(offset, &mut part[Self::PART_BYTES..]);
            left = rest;
        }
    }

    /// Returns the bytes of the list.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// Where a part begins, and its bytes.
type Part<'a> = (usize, &'a [u8]);

/// Divides a list behind its first part.
fn first(list: &[u8]) -> Option<(Part<'_>, &[u8])> {
    let (offset, rest) = list.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some(((u32::from_le_bytes(*offset) as usize, bytes), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        Patch::push(&mut out, 5, b"070");
        assert_eq!(out, [5, 0, 0, 0, 3, 0, 0, 0, b'0', b'7', b'0']);
    }

    #[test]
    fn what_is_laid_over_is_taken_back() {
        let mut list = Vec::new();
        Patch::push(&mut list, 1, b"xy");
        Patch::push(&mut list, 2, b"zz");
        let patch = Patch::parse(&list).unwrap();
        let mut value = b"abcd".to_vec();
        let mut undo = list.clone();
        patch.undo(&mut undo, |from, out| out.copy_from_slice(&value[from..from + out.len()]));
        assert!(patch.lay_over(&mut value));
        assert_eq!((&value[..], patch.end()), (&b"axzz"[..], 4));
        assert!(Patch::parse(&undo).unwrap().lay_over(&mut value));
        assert_eq!(value, b"abcd");
        assert!(!patch.lay_over(&mut value[..3]), "it does not fit");
        assert_eq!(value, b"abcd");
    }

    #[test]
    fn cut_lists_are_none() {
        let mut list = Vec::new();
        Patch::push(&mut list, 0, b"abc");
        Patch::push(&mut list, 7, b"");
        for length in 0..list.len() {
            let is_whole = length == 0 || length == Patch::PART_BYTES + 3;
            assert_eq!(Patch::parse(&list[..length]).is_some(), is_whole, "{length}");
        }
        assert_eq!(Patch::parse(&list).unwrap().parts().count(), 2);
    }
}
