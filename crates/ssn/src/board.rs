//! The board: readers of records and gaps that have no words of their own.
//!
//! ```text
//!   place = hash of a key, or of a gap     [pstamp | readers] x 65,536     many keys have the same place
//!
//!   reader       set bit ........ draw c ........ raise pstamp, clear bit
//!   overwriter          draw c', look at bits, look at pstamp
//! ```
//!
//! An engine whose records get stamps only while they are written has no place for a reader's bit. So a
//! reader leaves it here. At its commit the engine names the overwriters of what it has read, by the stamps that
//! writers have left.
//!
//! **Invariants**
//! 1. As in [`readers`]: the bit is there before c is drawn, and pstamp is raised before it goes.
//! 2. A place that two keys share makes an eta greater than it has to be, never less.
//! 3. Bit S is never cleared. A writer that sees it looks at all shared contexts.
//!
//! **Differs from the paper**, which sets a bit for each record that is read, also in scans.

use std::sync::OnceLock;
use std::task::{Poll, ready};

use spinney_base::shim::atomic::{Ordering, fence};

use crate::certify::Shared;
use crate::clock::Stamp;
use crate::context::Owner;
use crate::readers;
use crate::stamps::Gap;

/// Places. With fewer, transactions take readers of other keys for readers of theirs more often; more take
/// the processor longer to reach.
#[cfg(not(feature = "shuttle"))]
const PLACES: usize = 1 << 16;
#[cfg(feature = "shuttle")]
const PLACES: usize = 1 << 4;

/// See the module. Thread-safe. It takes its memory when the first place is asked for.
#[derive(Debug, Default)]
pub(crate) struct Board(OnceLock<Box<[Gap]>>);

impl Board {
    pub(crate) fn bytes(&self) -> usize {
        self.0.get().map_or(0, |places| size_of_val(&places[..]))
    }

    /// Returns the place of a hash.
    pub(crate) fn place(&self, hash: u64) -> &Gap {
        let places = self.0.get_or_init(|| (0..PLACES).map(|_| Gap::default()).collect());
        &places[(hash >> 32) as usize % PLACES]
    }
}

impl Shared {
    /// Sets the bit of a reader.
    pub(crate) fn enter_place(&self, me: Owner, hash: u64) {
        readers::enter(&self.contexts, me, &self.board.place(hash));
        // Whatever the reader looks at next, it looks at after that.
        fence(Ordering::SeqCst);
    }

    /// Notes that a transaction has committed which had set its bit, or ends.
    pub(crate) fn leave_place(&self, me: Owner, hash: u64) {
        readers::leave(&self.contexts, me, &self.board.place(hash));
    }

    pub(crate) fn raise_place(&self, hash: u64, cstamp: Stamp) {
        readers::raise(&self.board.place(hash), cstamp);
    }

    /// Returns the greatest c below `limit` of the readers of what has this place. `Pending`: one of them commits
    /// and may be below the limit.
    pub(crate) fn latest_reader(&self, me: Owner, hash: u64, limit: Stamp) -> Poll<Stamp> {
        let place = self.board.place(hash);
        let latest = ready!(readers::latest(&self.contexts, me, &place, limit));
        // After the bits.
        Poll::Ready(latest.max(readers::pstamp(&place)))
    }

    /// Whether no running transaction has read what has this place, nor anyone that a running one does not come after
    /// already. A reader that is about to set its bit finds out by other means that this was asked.
    pub(crate) fn is_quiet(&self, hash: u64) -> bool {
        fence(Ordering::SeqCst);
        let horizon = self.contexts.horizon(&self.clock);
        let place = self.board.place(hash);
        readers::is_unread(&self.contexts, &place) && readers::pstamp(&place) <= horizon
    }
}
