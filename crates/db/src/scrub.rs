//! What the scrub has found, and where it is. The job is in [`scrubbing`](crate::scrubbing).

use std::time::Duration;

use spinney_base::KeyspaceId;
use spinney_engine::{DamagedPage, Scrubbed};

/// Time after which a keyspace without writes is read again. A write makes it due at once.
pub(crate) const SOUND_FOR: Duration = Duration::from_secs(24 * 3600);

/// More reads by lookups and scans than this since the last piece mean that the disk is busy.
const BUSY: u64 = 64;

/// Most rests in a row because the disk is busy.
const YIELDS_MAX: u32 = 9;

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
    pub(crate) opened: bool,
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

/// What the scrub does next.
pub(crate) enum Turn {
    /// It waits, because the database was only just opened.
    Begin,
    /// It rests, because the disk is busy.
    Yield,
    /// It continues with this keyspace, or the next one, from this key.
    Piece(KeyspaceId, Vec<u8>),
}

impl Scrub {
    /// Begins a turn. `reads` counts the reads by lookups and scans up to now.
    pub(crate) fn next(&mut self, reads: u64) -> Turn {
        let busy = reads.saturating_sub(std::mem::replace(&mut self.reads, reads)) > BUSY;
        if !std::mem::replace(&mut self.begun, true) {
            return Turn::Begin;
        }
        if busy && self.yields < YIELDS_MAX {
            self.yields += 1;
            return Turn::Yield;
        }
        self.yields = 0;
        let (id, from) = self.at.take().unwrap_or((KeyspaceId(0), Vec::new()));
        Turn::Piece(id, from)
    }

    /// Ends a pass. Returns whether it has read anything; otherwise it does not count.
    pub(crate) fn end_pass(&mut self, now: Duration) -> bool {
        if !std::mem::take(&mut self.has_read) {
            return false;
        }
        self.passes += 1;
        self.last_pass = Some(now);
        self.before = std::mem::take(&mut self.found);
        true
    }

    /// Ends a piece of a keyspace.
    pub(crate) fn end_piece(&mut self, id: KeyspaceId, seen: Scrubbed) {
        self.has_read |= seen.pages > 0;
        self.pages += seen.pages;
        self.note(seen.damaged);
        self.at = Some(match seen.next {
            Some(next) => (id, next),
            None => (KeyspaceId(id.0.saturating_add(1)), Vec::new()),
        });
    }

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
