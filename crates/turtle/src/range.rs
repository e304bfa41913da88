//! Ranges of keys with either kind of bound, cut and narrowed; ranges of indexes, gone through
//! either way.

use std::ops::{Bound, Range};

use spinney_engine::Direction;

use crate::edit::head;

/// A range of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange<'a> {
    pub(crate) lower: Bound<&'a [u8]>,
    pub(crate) upper: Bound<&'a [u8]>,
}

impl<'a> KeyRange<'a> {
    /// Whether no key can be in it.
    pub(crate) fn is_empty(&self) -> bool {
        use Bound::{Excluded, Included};
        match (self.lower, self.upper) {
            (Included(lower), Included(upper)) => lower > upper,
            (Included(lower) | Excluded(lower), Included(upper) | Excluded(upper)) => {
                lower >= upper
            }
            _ => false,
        }
    }

    /// Where it begins in a direction.
    pub(crate) fn near(&self, direction: Direction) -> Bound<&'a [u8]> {
        if direction == Direction::Forward { self.lower } else { self.upper }
    }

    /// The head of its end in a direction: keys whose heads lie before it are not past it.
    pub(crate) fn far_head(&self, direction: Direction) -> u64 {
        let (far, unbounded) = match direction {
            Direction::Forward => (self.upper, u64::MAX),
            Direction::Reverse => (self.lower, 0),
        };
        match far {
            Bound::Included(key) | Bound::Excluded(key) => head(key),
            Bound::Unbounded => unbounded,
        }
    }

    /// Whether a key lies beyond its end in a direction.
    pub(crate) fn is_past(&self, key: &[u8], direction: Direction) -> bool {
        match (direction, self.lower, self.upper) {
            (Direction::Forward, _, Bound::Included(upper)) => key > upper,
            (Direction::Forward, _, Bound::Excluded(upper)) => key >= upper,
            (Direction::Reverse, Bound::Included(lower), _) => key < lower,
            (Direction::Reverse, Bound::Excluded(lower), _) => key <= lower,
            _ => false,
        }
    }

    /// The part of it from key `lower` on up to, not including, key `upper`.
    pub(crate) fn within(&self, lower: &'a [u8], upper: Option<&'a [u8]>) -> KeyRange<'a> {
        let mut within = *self;
        let above = match self.lower {
            Bound::Included(own) | Bound::Excluded(own) => own >= lower,
            Bound::Unbounded => lower.is_empty(),
        };
        if !above {
            within.lower = Bound::Included(lower);
        }
        if let Some(upper) = upper {
            let below = match self.upper {
                Bound::Included(own) => own < upper,
                Bound::Excluded(own) => own <= upper,
                Bound::Unbounded => false,
            };
            if !below {
                within.upper = Bound::Excluded(upper);
            }
        }
        within
    }

    /// Cuts it below a key: the part at the near end in a direction, and the rest if there is any.
    pub(crate) fn cut(self, key: &'a [u8], direction: Direction) -> (Self, Option<Self>) {
        let below = self.within(b"", Some(key));
        let above = self.within(key, None);
        let (near, rest) = match direction {
            Direction::Forward => (below, above),
            Direction::Reverse => (above, below),
        };
        (near, Some(rest).filter(|rest| !rest.is_empty()))
    }
}

/// The next of these indexes in a direction.
pub(crate) fn next_index(left: &mut Range<usize>, direction: Direction) -> Option<usize> {
    match direction {
        Direction::Forward => left.next(),
        Direction::Reverse => left.next_back(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All ranges over a few keys against the definition.
    #[test]
    fn parts_of_ranges_hold_what_they_should() {
        let keys: [&[u8]; 5] = [b"", b"a", b"a\0", b"b", b"c"];
        let bounds = || {
            let of = |key| [Bound::Included(key), Bound::Excluded(key)];
            keys.into_iter().flat_map(of).chain([Bound::Unbounded])
        };
        let holds = |range: &KeyRange<'_>, key: &[u8]| {
            !range.is_past(key, Direction::Forward) && !range.is_past(key, Direction::Reverse)
        };
        for lower in bounds() {
            for upper in bounds() {
                let range = KeyRange { lower, upper };
                for key in keys {
                    let (up, down) = (Direction::Forward, Direction::Reverse);
                    assert!(head(key) >= range.far_head(up) || !range.is_past(key, up));
                    assert!(head(key) <= range.far_head(down) || !range.is_past(key, down));
                }
                assert!(!range.is_empty() || keys.iter().all(|key| !holds(&range, key)));
                for cut in &keys[1..] {
                    for direction in [Direction::Forward, Direction::Reverse] {
                        let (near, rest) = range.cut(cut, direction);
                        for key in keys {
                            let below = (key < *cut) == (direction == Direction::Forward);
                            let inside = holds(&range, key);
                            assert_eq!(holds(&near, key), inside && below);
                            let in_rest = rest.as_ref().is_some_and(|rest| holds(rest, key));
                            assert_eq!(in_rest, inside && !below);
                        }
                    }
                }
            }
        }
    }
}
