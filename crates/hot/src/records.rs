//! Records that were copied out of the tier, in memory of one piece.

use spinney_base::ValueRef;
use spinney_leaf::Entry;

use crate::leaf::{DIRTY, GAP, LARGE, REMOVED};

/// Records in the order of their keys. It is filled again and again, so its memory is kept.
#[derive(Clone, Debug, Default)]
pub struct Records(pub(crate) spinney_leaf::Records);

/// A record of [`Records`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value; `None` where the key is known to have none.
    pub value: Option<ValueRef<'a>>,
    /// The cold structure does not hold the record as it is here.
    pub is_dirty: bool,
    /// No cold record lies between this one and the next, or the end of the piece.
    pub ends_gap: bool,
}

impl Records {
    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes of all keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns them in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Record<'_>> {
        self.0.iter().map(|Entry { key, value, flags }| Record {
            key,
            value: (flags & REMOVED == 0)
                .then_some(ValueRef { bytes: value, large: flags & LARGE != 0 }),
            is_dirty: flags & DIRTY != 0,
            ends_gap: flags & GAP != 0,
        })
    }
}
