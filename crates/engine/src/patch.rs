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

/// Most bytes of a patch that is made of two. With more, what is kept of a long value takes more than the value; with fewer,
/// more versions are kept.
const FOLLOWED_BYTES_MAX: usize = 2048;

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
        out.extend_from_slice(&Self::header(offset, bytes.len()));
        out.extend_from_slice(bytes);
    }

    /// Returns the bytes of a part that come before those of the value.
    ///
    /// # Panics
    /// When it lies beyond all values.
    #[must_use]
    pub fn header(offset: usize, length: usize) -> [u8; 8] {
        let number = |number| u32::try_from(number).expect("VALUE_BYTES_MAX is far below");
        (u64::from(number(length)) << 32 | u64::from(number(offset))).to_le_bytes()
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

    /// Returns the patch that does what this one and then another does, if it is not long.
    #[must_use]
    pub fn followed_by(self, last: Patch<'_>) -> Option<Vec<u8>> {
        let is_replaced = |(offset, bytes): &(usize, &[u8])| {
            let covers = |(from, other): (usize, &[u8])| {
                from <= *offset && offset + bytes.len() <= from + other.len()
            };
            last.parts().any(covers)
        };
        let mut both = Vec::new();
        for (offset, bytes) in self.parts().filter(|part| !is_replaced(part)) {
            Self::push(&mut both, offset, bytes);
        }
        both.extend_from_slice(last.0);
        (both.len() <= FOLLOWED_BYTES_MAX.max(last.0.len())).then_some(both)
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
    fn two_are_as_one() {
        let list = |parts: &[(usize, &[u8])]| {
            let mut list = Vec::new();
            parts.iter().for_each(|(offset, bytes)| Patch::push(&mut list, *offset, bytes));
            list
        };
        let (first, last) = (list(&[(0, b"ab"), (3, b"c"), (6, b"zz")]), list(&[(2, b"xyz")]));
        let [one, other] = [&first, &last].map(|list| Patch::parse(list).unwrap());
        let both = one.followed_by(other).unwrap();
        assert_eq!(Patch::parse(&both).unwrap().parts().count(), 3, "one part is covered");
        let (mut apart, mut at_once) = (b"01234567".to_vec(), b"01234567".to_vec());
        assert!(one.lay_over(&mut apart) && other.lay_over(&mut apart));
        assert!(Patch::parse(&both).unwrap().lay_over(&mut at_once));
        assert_eq!(apart, at_once);
        let long = list(&[(0, &[1; 2000]), (3000, &[2; 2000])]);
        let long = Patch::parse(&long).unwrap();
        assert_eq!(long.followed_by(other), None);
        assert_eq!(one.followed_by(long).unwrap().len(), long.bytes().len(), "covered by it");
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
