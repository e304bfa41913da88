//! A table: index, indirection array, tile groups and gaps.
//!
//! ```text
//!   key -> index (`art`) -> number -> entry (`heads`) -> place -> tiles of the columns
//! ```
//!
//! The index has no copies of keys. It compares with the key of the entry, or with that in the tile
//! group if it is long.
//!
//! **Invariant.** A key leads to an entry from the first insert on until the entry has no value, no
//! reader, no owner and no older version, and its last change is below the horizon.

use std::cmp::Ordering;

use spinney_art::{Art, Direction, KeySource, Parting};
use spinney_base::Result;
use spinney_sync::racy;
use std::ops::Bound;

use crate::gaps::{Gaps, KEYS_MAX};
use crate::heads::{Head, Heads, KEY_INLINE_MAX};
use crate::schema::{Layout, Schema};
use crate::tiles::Tiles;

/// What the index asks for keys.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) heads: Heads,
    pub(crate) tiles: Tiles,
}

/// A table. Thread-safe.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) schema: Schema,
    pub(crate) index: Art<Store>,
    pub(crate) gaps: Gaps,
}

impl Store {
    #[inline]
    pub(crate) fn head(&self, record: u32) -> Head<'_> {
        self.heads.head(record)
    }

    fn leaf(&self, leaf: u64) -> Head<'_> {
        self.heads.head(u32::try_from(leaf).unwrap_or(0))
    }

    /// Appends the key of an entry.
    pub(crate) fn key(&self, head: Head<'_>, out: &mut Vec<u8>) {
        let length = head.key_length();
        if length <= KEY_INLINE_MAX {
            out.extend_from_slice(&head.short_key()[..length]);
        } else {
            racy::append_bytes(self.tiles.key(head.place()), 0, length, out);
        }
    }
}

impl KeySource for Store {
    fn read_key(&self, leaf: u64, out: &mut Vec<u8>) {
        self.key(self.leaf(leaf), out);
    }

    fn prefetch(&self, leaf: u64) {
        self.leaf(leaf).prefetch();
    }

    fn compare(&self, leaf: u64, key: &[u8]) -> Parting {
        let head = self.leaf(leaf);
        let length = head.key_length();
        if length <= KEY_INLINE_MAX {
            return Parting::of(&head.short_key()[..length], key);
        }
        let mut own = Vec::with_capacity(length);
        self.key(head, &mut own);
        Parting::of(&own, key)
    }

    #[inline]
    fn matches(&self, leaf: u64, key: &[u8]) -> bool {
        let head = self.leaf(leaf);
        let length = head.key_length();
        if length <= KEY_INLINE_MAX {
            return head.short_key()[..length] == *key;
        }
        let words = self.tiles.key(head.place());
        racy::compare_bytes(words, 0, length, key) == Ordering::Equal
    }
}

impl Table {
    pub(crate) fn new(schema: Schema, layout: Layout) -> Table {
        let store = Store { heads: Heads::new(), tiles: Tiles::new(&schema, layout) };
        Table { schema, index: Art::new(store), gaps: Gaps::new() }
    }

    pub(crate) fn store(&self) -> &Store {
        self.index.source()
    }

    /// Returns all entries of the index, in the order of their keys.
    pub(crate) fn every(&self) -> spinney_art::Scan<'_, Store> {
        self.index.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward)
    }

    /// Returns the number of the record that a key leads to.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<u32> {
        self.index.get(key).and_then(|leaf| u32::try_from(leaf).ok())
    }

    /// Checks the length of a key.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        if key.len() <= self.schema.key_bytes() {
            return Ok(());
        }
        let most = self.schema.key_bytes();
        Err(spinney_base::Error::invalid(format!("keys of the table have at most {most} bytes")))
    }

    /// Splits the range of a key.
    pub(crate) fn split(&self, key: &[u8]) {
        self.gaps.split(key, |fence, middle| {
            let half = usize::try_from(KEYS_MAX / 2).unwrap_or(0);
            let from = Bound::Included(fence);
            let scan = self.index.scan(from, Bound::Unbounded, Direction::Forward);
            let (mut scan, mut at) = (scan.at_most(half + 1), 0);
            while let Some((key, _)) = scan.next() {
                if at == half {
                    middle.extend_from_slice(key);
                    return true;
                }
                at += 1;
            }
            false
        });
    }

    /// Bytes of everything but older versions.
    pub(crate) fn bytes(&self) -> u64 {
        let Store { heads, tiles } = self.store();
        let index = self.index.bytes() + self.index.retired_bytes();
        heads.bytes() + tiles.bytes() + self.gaps.bytes() + index as u64
    }
}
