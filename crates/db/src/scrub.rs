//! The scrub: a background job that reads every page that is owned, slowly, so that damage is known
//! before somebody needs what it took.
//!
//! It goes from keyspace to keyspace, piece by piece, and rests after each piece for as long as the
//! rate asks; while lookups and scans read much, ten times as long. What it finds is told in the
//! statistics and stops nothing: reads of a damaged page answer `Corruption` whether it is known or
//! not.

use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{KeyspaceId, Next, Result};
use spinney_engine::DamagedPage;
use spinney_io::Purpose;

use crate::state::State;

/// How long a pass waits after the database was opened or the pass before ended.
const PAUSE: Duration = Duration::from_secs(1);

/// So many reads of lookups and scans since the last piece mean that the disk is busy.
const BUSY: u64 = 64;

/// How often the scrub rests in a row because the disk is busy, each time as after so many pages.
const YIELDS_MAX: u32 = 9;
const YIELD_PAGES: u64 = 16;

/// Damaged pages that are named; more are counted.
const NAMED_MAX: usize = 256;

/// What the scrub has seen since the database was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// Pages read and checked.
    pub pages: u64,
    /// Passes over everything that came to their end.
    pub passes: u64,
    /// How long ago the last of them did.
    pub last_pass: Option<Duration>,
    /// How many damaged pages the last pass found, or the one under way if those are more.
    pub damaged_pages: u64,
    /// Which these two found, as far as they are not too many.
    pub damaged: Vec<DamagedPage>,
}

/// Where the scrub is.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    begun: bool,
    pages: u64,
    passes: u64,
    last_pass: Option<Duration>,
    /// What this pass found, and the one before.
    found: Found,
    before: Found,
    /// The keyspace that is read, and where in it.
    at: Option<(KeyspaceId, Vec<u8>)>,
    /// Reads of lookups and scans when it was last looked.
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
    /// Reads one piece, and says when to read the next at this many bytes per second.
    pub(crate) fn scrub_piece(&self, rate: u64) -> Result<Next> {
        let rest = |pages: u64| {
            let nanos = pages.saturating_mul(PAGE_BYTES as u64).saturating_mul(1_000_000_000);
            Next::Wait(Duration::from_nanos((nanos / rate.max(1)).max(1_000)))
        };
        let io = self.disk.counters().snapshot();
        let reads = [Purpose::Lookup, Purpose::Scan].map(|one| io.by_purpose[one as usize].reads);
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
        let later = self.keyspaces().into_iter().filter(|one| one.id >= id);
        let Some(keyspace) = later.min_by_key(|one| one.id) else {
            let mut scrub = self.scrub.lock();
            scrub.passes += 1;
            scrub.last_pass = Some(self.runtime.now());
            scrub.before = std::mem::take(&mut scrub.found);
            return Ok(Next::Wait(PAUSE));
        };
        let from = if keyspace.id == id { from } else { Vec::new() };
        // Nobody who asks for the numbers waits for the disk.
        let seen = keyspace.engine.scrub(&from);
        let mut scrub = self.scrub.lock();
        scrub.pages += seen.pages;
        scrub.note(seen.damaged);
        scrub.at = Some(match seen.next {
            Some(next) => (keyspace.id, next),
            None => (KeyspaceId(keyspace.id.0.saturating_add(1)), Vec::new()),
        });
        Ok(rest(seen.pages))
    }
}
