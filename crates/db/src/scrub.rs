//! The scrub: a background job that slowly reads every owned page, so that damage is known before a
//! reader needs the page.
//!
//! It goes from keyspace to keyspace, piece by piece, and rests after each piece as the configured
//! rate asks. While lookups and scans read much, it rests ten times as long. It reports what it
//! finds in the statistics and stops nothing: reads of a damaged page answer `Corruption` whether
//! the damage is known or not.
//!
//! A parked keyspace is opened for its piece and parked again. A keyspace without writes since its
//! last full read waits a day ([`SOUND_FOR`]). A pass that reads nothing is not counted.

use std::sync::Arc;
use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, KeyspaceId, Next, Result, events};
use spinney_engine::{DamagedPage, Scrubbed};
use spinney_io::Purpose;

use crate::place::Place;
use crate::state::State;

/// Pause after the database was opened, and between two passes.
const PAUSE: Duration = Duration::from_secs(1);

/// Time after which a keyspace without writes is read again. A write makes it due at once.
pub(crate) const SOUND_FOR: Duration = Duration::from_secs(24 * 3600);

/// Poll interval when no keyspace is due.
const NOTHING_DUE: Duration = Duration::from_secs(10);

/// Shortest rest after a keyspace that was opened for the scrub. Opening costs more than reading a
/// page.
const REST_PARKED: Duration = Duration::from_secs(1);

/// More reads by lookups and scans than this since the last piece mean that the disk is busy.
const BUSY: u64 = 64;

/// Most rests in a row because the disk is busy; each is as long as the rest after [`YIELD_PAGES`]
/// pages.
const YIELDS_MAX: u32 = 9;
const YIELD_PAGES: u64 = 16;

/// Most damaged pages that are named in the statistics; further ones are only counted.
const NAMED_MAX: usize = 256;

/// What the scrub has found since the database was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ScrubStats {
    /// Pages read and checked.
    pub pages: u64,
    /// Completed passes over the whole database.
    pub passes: u64,
    /// Time since the last completed pass ended.
    pub last_pass: Option<Duration>,
    /// Number of damaged pages in the last completed pass or in the pass under way, whichever is
    /// more.
    pub damaged_pages: u64,
    /// Damaged pages of these two passes, 256 of each at most.
    pub damaged: Vec<DamagedPage>,
}

/// State of the scrub.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    begun: bool,
    pages: u64,
    passes: u64,
    last_pass: Option<Duration>,
    /// Damage found in this pass and in the one before.
    found: Found,
    before: Found,
    /// Keyspace that is being read, and the key to continue from.
    at: Option<(KeyspaceId, Vec<u8>)>,
    /// Whether the keyspace was opened for the scrub.
    opened: bool,
    /// Whether this pass has read anything.
    has_read: bool,
    /// Number of reads by lookups and scans at the last check.
    reads: u64,
    yields: u32,
}

#[derive(Debug, Default)]
struct Found {
    count: u64,
    named: Vec<DamagedPage>,
}

impl Scrub {
    pub(crate) fn stats(&self, now: Duration) -> ScrubStats {
        let mut damaged = self.before.named.clone();
        for page in &self.found.named {
            if !damaged.iter().any(|one| one.file == page.file && one.offset == page.offset) {
                damaged.push(page.clone());
            }
        }
        ScrubStats {
            pages: self.pages,
            passes: self.passes,
            last_pass: self.last_pass.map(|then| now.saturating_sub(then)),
            damaged_pages: self.found.count.max(self.before.count),
            damaged,
        }
    }

    fn note(&mut self, damaged: Vec<DamagedPage>) {
        self.found.count += damaged.len() as u64;
        let room = NAMED_MAX - self.found.named.len().min(NAMED_MAX);
        self.found.named.extend(damaged.into_iter().take(room));
    }
}

impl State {
    /// What is seen of a keyspace that cannot be opened.
    fn cannot_be_opened(&self, id: KeyspaceId, error: &Error) -> Scrubbed {
        let mut seen = Scrubbed { pages: 1, ..Scrubbed::default() };
        if error.kind() == ErrorKind::Corruption {
            let file = self.file_of(id);
            seen.damaged.push(DamagedPage { file, offset: 0, what: error.to_string() });
        }
        seen
    }

    /// Reads one piece, and says when to read the next at this many bytes per second.
    pub(crate) fn scrub_piece(&self, rate: u64) -> Result<Next> {
        let rest = |pages: u64| {
            let nanos = pages.saturating_mul(PAGE_BYTES as u64).saturating_mul(1_000_000_000);
            Next::Wait(Duration::from_nanos((nanos / rate.max(1)).max(1_000)))
        };
        let io = self.disk.counters().snapshot();
        let reads = [Purpose::LOOKUP, Purpose::SCAN].map(|one| io.by_purpose[one.index()].reads);
        let reads = reads.iter().sum::<u64>();
        let (id, from) = {
            let mut scrub = self.scrub.lock();
            let busy = reads.saturating_sub(std::mem::replace(&mut scrub.reads, reads)) > BUSY;
            if !std::mem::replace(&mut scrub.begun, true) {
                return Ok(Next::Wait(PAUSE));
            }
            if busy && scrub.yields < YIELDS_MAX {
                scrub.yields += 1;
                return Ok(rest(YIELD_PAGES));
            }
            scrub.yields = 0;
            scrub.at.take().unwrap_or((KeyspaceId(0), Vec::new()))
        };
        // One that was dropped meanwhile is followed by the next.
        let is_next = |one: &Arc<Place>| {
            one.id == id && !from.is_empty() || one.id >= id && self.is_scrub_due(one)
        };
        let later = self.places().into_iter().find(is_next);
        let Some(place) = later else {
            let mut scrub = self.scrub.lock();
            if !std::mem::take(&mut scrub.has_read) {
                return Ok(Next::Wait(NOTHING_DUE));
            }
            scrub.passes += 1;
            scrub.last_pass = Some(self.runtime.now());
            scrub.before = std::mem::take(&mut scrub.found);
            return Ok(Next::Wait(PAUSE));
        };
        let from = if place.id == id { from } else { Vec::new() };
        if from.is_empty() {
            self.scrub_begins(&place);
            self.scrub.lock().opened = self.open_one(place.id).is_none();
        }
        let opened = self.scrub.lock().opened;
        // A thread that asks for the statistics does not wait for the disk.
        place.count_scrub();
        let seen = match self.enter(&place) {
            Ok(keyspace) => keyspace.engine.scrub(&from),
            Err(error) => self.cannot_be_opened(place.id, &error),
        };
        let is_over = seen.next.is_none();
        if is_over && opened {
            // The thread that holds the checkpoints parks it later.
            if let Some(_no_checkpoint) = self.checkpointing.try_lock() {
                self.park(&place)?;
            }
        }
        let mut scrub = self.scrub.lock();
        scrub.has_read = true;
        scrub.pages += seen.pages;
        if !seen.damaged.is_empty() {
            self.scrub_again(&place);
        }
        for page in &seen.damaged {
            events::damage(&page.file, page.offset, &page.what);
        }
        scrub.note(seen.damaged);
        scrub.at = Some(match seen.next {
            Some(next) => (place.id, next),
            None => (KeyspaceId(place.id.0.saturating_add(1)), Vec::new()),
        });
        Ok(match rest(seen.pages) {
            Next::Wait(time) if opened && is_over => Next::Wait(time.max(REST_PARKED)),
            next => next,
        })
    }
}
