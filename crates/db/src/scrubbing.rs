//! The scrub: a background job that slowly reads every owned page, so that damage is known before a
//! reader needs the page.
//!
//! It goes from keyspace to keyspace, piece by piece, and rests after each piece as the configured
//! rate asks. While lookups and scans read much, it rests ten times as long. It reports what it
//! finds in the statistics and stops nothing: reads of a damaged page answer `Corruption` whether
//! the damage is known or not.
//!
//! A parked keyspace is opened for its piece and parked again. A keyspace without writes since its
//! last full read waits a day ([`SOUND_FOR`](crate::scrub::SOUND_FOR)). A pass that reads nothing is
//! not counted.

use std::sync::Arc;
use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, KeyspaceId, Next, Result, events};
use spinney_engine::{DamagedPage, Scrubbed};
use spinney_io::Purpose;

use crate::place::Place;
use crate::scrub::Turn;
use crate::state::State;

/// Pause after the database was opened, and between two passes.
const PAUSE: Duration = Duration::from_secs(1);

/// Poll interval when no keyspace is due.
const NOTHING_DUE: Duration = Duration::from_secs(10);

/// Shortest rest after a keyspace that was opened for the scrub. Opening costs more than reading a
/// page.
const REST_PARKED: Duration = Duration::from_secs(1);

/// Number of pages whose reading takes as long as a rest because the disk is busy.
const YIELD_PAGES: u64 = 16;

impl State {
    /// What is seen of a keyspace that cannot be opened.
    fn cannot_be_opened(&self, id: KeyspaceId, error: &Error) -> Scrubbed {
        let mut seen = Scrubbed { pages: 1, ..Scrubbed::default() };
        if error.kind() == ErrorKind::Corruption {
            let file = self.files.path_of(id);
            seen.damaged.push(DamagedPage::new(file, 0, error.to_string()));
        }
        seen
    }

    /// Returns whether a keyspace is open, or can be opened beside those that are.
    fn has_memory_for(&self, place: &Place) -> bool {
        let fits = |bytes| self.memory.check_fits(&self.keyspaces, bytes).is_ok();
        self.keyspaces.open_one(place.id).is_some() || fits(place.kept.lock().in_memory())
    }

    /// Reads one piece, and says when to read the next at this many bytes per second.
    pub(crate) fn scrub_piece(&self, rate: u64) -> Result<Next> {
        let rest = |pages: u64| {
            let nanos = pages.saturating_mul(PAGE_BYTES as u64).saturating_mul(1_000_000_000);
            Next::Wait(Duration::from_nanos((nanos / rate.max(1)).max(1_000)))
        };
        let io = self.files.disk.counters().snapshot();
        let reads = [Purpose::LOOKUP, Purpose::SCAN].map(|one| io.by_purpose[one.index()].reads);
        let reads = reads.iter().sum::<u64>();
        let (id, from) = match self.scrub.lock().next(reads) {
            Turn::Begin => return Ok(Next::Wait(PAUSE)),
            Turn::Yield => return Ok(rest(YIELD_PAGES)),
            Turn::Piece(id, from) => (id, from),
        };
        let now = self.runtime.now();
        // One that was dropped meanwhile is followed by the next.
        let is_next = |one: &Arc<Place>| {
            one.id == id && !from.is_empty()
                || one.id >= id && self.keyspaces.is_scrub_due(one, now)
        };
        let later = self.keyspaces.places().into_iter().find(is_next);
        let Some(place) = later else {
            let has_read = self.scrub.lock().end_pass(now);
            return Ok(Next::Wait(if has_read { PAUSE } else { NOTHING_DUE }));
        };
        let from = if place.id == id { from } else { Vec::new() };
        if from.is_empty() {
            self.keyspaces.scrub_begins(&place, now);
            self.scrub.lock().opened = self.keyspaces.open_one(place.id).is_none();
        }
        let opened = self.scrub.lock().opened;
        let seen = if self.has_memory_for(&place) {
            // A thread that asks for the statistics does not wait for the disk.
            place.count_scrub();
            match self.enter(&place) {
                Ok(keyspace) => keyspace.engine.scrub(&from),
                Err(error) => self.cannot_be_opened(place.id, &error),
            }
        } else {
            // A later pass reads it. Others are not parked for it.
            place.scrub_again();
            Scrubbed::default()
        };
        let is_over = seen.next.is_none();
        if is_over && opened {
            // The thread that holds the checkpoints parks it later.
            if let Some(_no_checkpoint) = self.checkpoints.try_hold() {
                self.park(&place)?;
            }
        }
        let mut scrub = self.scrub.lock();
        if !seen.damaged.is_empty() {
            place.scrub_again();
        }
        for page in &seen.damaged {
            events::damage(&page.file, page.offset, &page.what);
        }
        let pages = seen.pages;
        scrub.end_piece(place.id, seen);
        Ok(match rest(pages) {
            Next::Wait(time) if opened && is_over => Next::Wait(time.max(REST_PARKED)),
            next => next,
        })
    }
}
