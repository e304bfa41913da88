//! Room for the links that write-backs under way may make.
//!
//! A write-back turns marks into links, in each thread that does one, and writes nothing out while it
//! has pages locked. So it takes room for its links before it locks anything:
//!
//! ```text
//!   0          half of theirs        three quarters            the bound
//!   | links ............| links to come .|                     |
//!                         of write-backs   past it: one write-back at a time,
//!                         side by side     after it has written the largest map out
//! ```
//!
//! How long the replaced values will be only their pages tell; until then each counts as much as a link
//! did so far, on average.

use spinney_base::Result;

use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
use spinney_base::shim::{Mutex, MutexGuard};

use crate::keep::PreImages;

/// Part of the bound that the links of one write-back may take: one of so many. With fewer, one thread
/// has all of the room; with more, write-backs are small, and each may cost a sync.
const PARTS: u64 = 16;

/// What a link counts before there was one.
const UNKNOWN_BYTES: u64 = 256;

/// Links that were made, and those to come.
#[derive(Debug, Default)]
pub(crate) struct Links {
    made: AtomicU64,
    made_bytes: AtomicU64,
    /// Bytes of links for which write-backs under way have room.
    to_come: AtomicU64,
    /// Held by a write-back for whose links there is no room, until it is done.
    turn: Mutex<()>,
}

impl Links {
    pub(crate) fn note(&self, bytes: u64) {
        self.made.fetch_add(1, SeqCst);
        self.made_bytes.fetch_add(bytes, SeqCst);
    }

    /// What a link takes, on average.
    fn average(&self) -> u64 {
        self.made_bytes.load(SeqCst).checked_div(self.made.load(SeqCst)).unwrap_or(UNKNOWN_BYTES)
    }
}

/// Room for the links of one write-back, until it is dropped.
#[derive(Debug)]
pub struct LinkRoom<'a> {
    links: &'a Links,
    bytes: u64,
    /// Where there is no room for several at once.
    _turn: Option<MutexGuard<'a, ()>>,
}

impl Drop for LinkRoom<'_> {
    fn drop(&mut self) {
        self.links.to_come.fetch_sub(self.bytes, SeqCst);
    }
}

impl PreImages {
    /// How many links a write-back should make at once.
    #[must_use]
    pub fn links_at_once(&self) -> u64 {
        (self.bound() / PARTS / self.links.average().max(1)).max(1)
    }

    /// Takes room for so many links. Waits for write-backs under way, and writes maps out, where there
    /// is none. The caller has not announced a write, holds no lock of segments or pages, and no other
    /// room.
    ///
    /// # Errors
    /// As [`PreImages::background`].
    pub fn room_for_links(&self, links: u64) -> Result<LinkRoom<'_>> {
        let bytes = links.min(self.marks.len()) * self.links.average();
        let take = || self.links.to_come.fetch_add(bytes, SeqCst) + bytes;
        let room = |turn| LinkRoom { links: &self.links, bytes, _turn: turn };
        let to_come = take();
        let together = room(None);
        if !self.is_over_with(to_come, 3) {
            self.relieve()?;
            return Ok(together);
        }
        drop(together);
        let turn = self.links.turn.lock();
        take();
        let alone = room(Some(turn));
        self.relieve()?;
        Ok(alone)
    }
}
