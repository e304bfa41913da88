//! Tidying: overflow pages are merged into their segments when nothing else is to be done (TreeLine,
//! section 4.5, which only does so when they are full).
//!
//! A load in random order leaves every third page with an overflow page: until that is full, writing
//! it costs less than making the segment anew. Reading does not agree: an overflow page is a second
//! read for absent keys and one more page for every scan. So once a keyspace has been quiet for a
//! moment, the background goes through the index in the order of keys and reorganizes what has many
//! of them, and rests as long as each reorganization took, for whoever reads meanwhile.
//!
//! **Invariants**
//! 1. Nothing is tidied while the background brings records home ([`QUIET_ROUNDS`]).
//! 2. Nothing is tidied while a copy of the keyspace is made, which would have to follow.
//! 3. A pass that changed nothing is the last until there are more overflow pages.

use std::time::Duration;

use spinney_base::{ErrorKind, Result};

use crate::reorganize::Why;
use crate::segment::Segment;
use crate::tree::TreeLine;
use crate::write_back::Missed;

/// So often in a row the background must have found nothing to do.
const QUIET_ROUNDS: u32 = 4;

/// Shortest rest between two reorganizations.
const REST_MIN: Duration = Duration::from_millis(1);

/// Where tidying is.
#[derive(Debug, Default)]
pub(crate) struct Tidying {
    quiet_rounds: u32,
    /// The lower bound to go on from.
    from: Vec<u8>,
    /// Whether this pass has changed something.
    changed: bool,
    /// How many overflow pages there were when a pass changed nothing.
    settled: Option<u64>,
}

/// Whether a segment has so many overflow pages that it is worth to make it anew: one for every four
/// pages.
fn is_untidy(segment: &Segment) -> bool {
    !segment.overflows.is_empty() && 4 * segment.overflows.len() >= segment.base_pages()
}

impl TreeLine {
    /// Somebody has written: tidying waits.
    pub(crate) fn disturb_tidying(&self) {
        self.tidying.lock().quiet_rounds = 0;
    }

    /// Makes one region anew, if it is time and there is one to be; says how long to rest after it.
    ///
    /// # Errors
    /// `Poisoned`, `Io`, `Corruption`. A full disk is none: what is not tidy is right all the same.
    pub(crate) fn tidy(&self) -> Result<Option<Duration>> {
        if self.store.is_held() {
            return Ok(None);
        }
        let overflow_pages = self.index.counts().overflow_pages;
        let from = {
            let mut tidying = self.tidying.lock();
            tidying.quiet_rounds += 1;
            let settled = tidying.settled.is_some_and(|settled| overflow_pages <= settled);
            if tidying.quiet_rounds <= QUIET_ROUNDS || overflow_pages == 0 || settled {
                return Ok(None);
            }
            tidying.quiet_rounds = QUIET_ROUNDS;
            std::mem::take(&mut tidying.from)
        };
        let start = self.context.runtime.now();
        let (found, next) = self.index.segments_where(&from, 1, is_untidy);
        let mut changed = false;
        let mut full = false;
        if let Some(located) = found.first() {
            let _gate = self.gate.read();
            match self.reorganize(located, Why::Tidy, &mut Missed::default()) {
                Err(error) if error.kind() == ErrorKind::Full => full = true,
                done => changed = done?,
            }
        }
        let mut tidying = self.tidying.lock();
        tidying.changed |= changed;
        let ended = next.is_none();
        tidying.from = next.unwrap_or_default();
        if full || ended && !std::mem::take(&mut tidying.changed) {
            tidying.settled = Some(self.index.counts().overflow_pages);
        } else if changed {
            tidying.settled = None;
        }
        Ok(Some(self.context.runtime.now().saturating_sub(start).max(REST_MIN)))
    }
}
