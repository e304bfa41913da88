//! Engines whose records have versions: what transactions need of them beside [`Engine`](crate::Engine).
//!
//! ```text
//!   read      note a place on the board -> read_at, scan_at       as of the begin stamp, no latch is held
//!   write     cell -> owner -> draw the stamp -> gap_of           readers of ranges with the key
//!   commit    overwritten                                         overwriters of what was read
//!             Engine::apply, patch                                keeps the image that it replaces
//! ```
//!
//! The certifier of the database ([`spinney_ssn`]) decides at the commit. Records that are written while transactions
//! run have [cells](spinney_ssn::Cells) with their stamps; what transactions read gets none.

use std::fmt::Debug;
use std::ops::Bound;

use smallvec::SmallVec;
use spinney_base::Result;
use spinney_ssn::{CellRef, Kept, Running, Sight, Stamp, Successor};

use crate::{Chunk, Found, OwnedValue, Patch, Prepared, ScanRequest, SnapshotNumber, Write};

/// The bytes of a patch: of a short one without memory of their own, so that versions of a counter lie side by side, a
/// cache line each.
pub type UndoBytes = SmallVec<[u8; 24]>;

/// An older image of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OlderImage {
    /// The key had no value.
    Absent,
    /// The value, or the pointer to it.
    Whole(OwnedValue),
    /// The [`Patch`](crate::Patch) that leads from the value of the next version to this one's.
    Undo(UndoBytes),
}

impl Kept for OlderImage {
    fn bytes(&self) -> u64 {
        match self {
            OlderImage::Absent => 0,
            OlderImage::Whole(value) => value.bytes.capacity() as u64,
            OlderImage::Undo(undo) => {
                if undo.spilled() {
                    undo.capacity() as u64
                } else {
                    0
                }
            }
        }
    }

    fn is_whole(&self) -> bool {
        !matches!(self, OlderImage::Undo(_))
    }

    fn absorb(&mut self, newer: &Self) -> bool {
        let OlderImage::Undo(undo) = self else { return true };
        match newer {
            OlderImage::Absent => false,
            OlderImage::Whole(value) => {
                let mut value = value.clone();
                let is_laid =
                    Patch::parse(undo).is_some_and(|undo| undo.lay_over(&mut value.bytes));
                if is_laid {
                    *self = OlderImage::Whole(value);
                }
                is_laid
            }
            OlderImage::Undo(newer) => {
                let both = Patch::parse(newer).zip(Patch::parse(undo));
                let both = both.and_then(|(newer, undo)| newer.followed_by(undo));
                both.map(|both| *undo = both.into()).is_some()
            }
        }
    }

    fn prefetch(&self) {
        let bytes = match self {
            OlderImage::Absent => &[],
            OlderImage::Whole(value) => &value.bytes[..],
            // Short ones lie with the stamps.
            OlderImage::Undo(undo) if undo.spilled() => &undo[..],
            OlderImage::Undo(_) => &[],
        };
        if let Some(first) = bytes.first() {
            spinney_sync::prefetch(first);
        }
    }
}

/// Handle of the stamps of a record.
pub type Cell = CellRef<OlderImage>;

/// Where an engine has seen a record, in words with a meaning of its own: a guess, which saves it a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts(pub [u64; 2]);

/// What a transaction has seen at its begin stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenAt {
    /// What was appended.
    pub found: Found,
    /// Its overwriter, if it was not the newest.
    pub successor: Option<Successor>,
    /// For [`Versioned::overwritten_at`].
    pub place: Whereabouts,
}

/// What an engine with versions does for transactions. [`Engine::apply`](crate::Engine::apply) keeps the image
/// that it replaces where the owner of the cell publishes, and so does [`Versioned::patch`], or what leads back to it.
pub trait Versioned: Send + Sync + Debug {
    /// Returns the cell of a key, which it gets if it has none, also without a value. It is about to be written: room is
    /// kept for `value`, and the engine may note in what it has prepared where the record is.
    fn cell(&self, key: &[u8], value: &[u8], prepared: &mut Prepared) -> Cell;

    /// Makes a write visible, as [`Engine::apply`](crate::Engine::apply) does, whose value is a [`Patch`](crate::Patch) of
    /// the key's value. Returns false, and changes nothing, where the key has no value, a large one, or one that the
    /// patch does not fit: that can only be in replay.
    fn patch(&self, write: &Write<'_>, prepared: Prepared, newest: SnapshotNumber) -> bool;

    /// Appends what a transaction sees of a key. Waits for those that commit before its begin stamp.
    ///
    /// # Errors
    /// `Conflict` when the transaction was ended.
    fn read_at(&self, key: &[u8], sight: Sight, out: &mut Vec<u8>) -> Result<SeenAt>;

    /// Appends what a transaction sees of a range to a chunk, as [`Engine::scan`](crate::Engine::scan) does. Calls `note`
    /// with the place of each gap before it reads there. Returns the least stamps of the overwriters of what was not the newest.
    ///
    /// # Errors
    /// `Conflict` when the transaction was ended.
    fn scan_at(
        &self,
        request: &ScanRequest<'_>,
        sight: Sight,
        note: &mut dyn FnMut(u64),
        chunk: &mut Chunk,
    ) -> Result<Option<Successor>>;

    /// Returns the least pi of the overwriters of what a transaction sees of a range, with stamps of at most `limit`;
    /// [`NEVER`](spinney_ssn::NEVER) if there are none. Waits for transactions that commit with lesser ones.
    fn overwritten(&self, range: (Bound<&[u8]>, Bound<&[u8]>), sight: Sight, limit: Stamp)
    -> Stamp;

    /// Returns the same of one key that was read.
    fn overwritten_at(&self, key: &[u8], place: Whereabouts, sight: Sight, limit: Stamp) -> Stamp;

    /// Returns the place of the gap that a key lies in. A writer asks once it has drawn its commit stamp.
    fn gap_of(&self, key: &[u8]) -> u64;

    /// Takes cells from records of which no transaction needs them, and drops older images that none sees. Looks at
    /// `most` cells, and returns from how many it took something.
    fn collect(&self, running: &Running, most: usize) -> usize;

    /// Returns the bytes of memory of older images.
    fn older_bytes(&self) -> u64;
}
