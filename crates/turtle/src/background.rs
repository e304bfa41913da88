//! One turn of the background: it follows memory and use, and does one piece of work.

use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::Ordering::Relaxed;
use spinney_base::{Next, Result};
use spinney_engine::IDLE;
use spinney_extent::GiveBack;
use spinney_io::without_reserve;
use spinney_records::Side;

use crate::auto::{Look, Seen};
use crate::core::{Core, MISSES, RECORD_HITS};
use crate::kinds;
use crate::policy;
use crate::records::{Pages, smallest_cache};

impl Core {
    /// Takes one turn.
    ///
    /// # Errors
    /// `Corruption`, `Full`, `Poisoned` or `Io`; the next turn tries the same again.
    pub(crate) fn background(&self) -> Result<Next> {
        self.wanted.store(false, Relaxed);
        self.seal_full();
        self.follow_memory();
        self.follow_use();
        self.follow_records();
        self.follow_chi();
        self.memory.release_idle(self.context.runtime.now());
        if self.context.poison.is_set() {
            return Ok(Next::Wait(IDLE));
        }
        self.large.reuse();
        if self.step()? || without_reserve(|| self.tidy_in_background())? {
            return Ok(Next::Again);
        }
        let gave = self.files.store.give_back(GiveBack::Much)? > 0;
        Ok(if gave { Next::Again } else { Next::Wait(IDLE) })
    }

    /// Tells the account what the last bytes were worth, and whether more could be used.
    fn follow_use(&self) {
        let (account, cache) = (&self.context.memory, self.files.cache.stats());
        let pages = Side { worth: cache.regretted, bytes: cache.regret_bytes };
        account.set_worth(self.records.follow_worth(pages));
        let left = self.left_for_reads();
        let read = cache.used_bytes + self.records.usage().held;
        // With hardly any memory no page is ever kept, and none is evicted for another.
        let is_short = cache.evicted > 0 || cache.private > 0;
        let is_read_full = is_short && policy::is_nearly_full(read, left);
        let is_written_full = policy::is_nearly_full(self.room_of_writes(), self.limits().pending);
        account.set_full(is_read_full || is_written_full);
    }

    /// Divides the memory of reads between records and pages, and begins to keep records when that
    /// pays.
    fn follow_records(&self) {
        let all = self.left_for_reads();
        if self.records.are_kept() {
            let pages = || {
                let pages = self.files.cache.stats();
                Pages {
                    side: Side { worth: pages.regretted, bytes: pages.regret_bytes },
                    used: pages.used_bytes,
                    data: self.files.pages() * PAGE_BYTES as u64,
                    record_hits: self.counters.reads.sum(RECORD_HITS),
                }
            };
            let now = self.context.runtime.now();
            self.records.follow(all, now, pages, || self.follow_limits());
        } else if policy::records_pay(self.counters.reads.sum(MISSES), all)
            && !self.progress.is_replaying()
        {
            self.begin_records(all);
        }
    }

    /// Begins to keep records, in the least bytes that a cache needs; it gets more of the `all`
    /// bytes of reads later.
    pub(crate) fn begin_records(&self, all: u64) {
        let Some(cache) = smallest_cache(all, self.context.memory.most()) else { return };
        let bytes = cache.usage().bytes;
        // Nothing is written meanwhile.
        let begun = self.between(|| self.records.put_in_place(Arc::clone(&cache)));
        if begun.is_some() {
            self.records.note_begun(bytes);
            self.follow_limits();
        }
    }

    /// Decides on chi, if it is time.
    fn follow_chi(&self) {
        let now = self.context.runtime.now();
        self.auto.follow(now, || {
            let cache = self.files.cache.stats();
            let records = self.records.usage();
            // Nearly all misses are of values.
            let values = cache.of(kinds::VALUES);
            Look {
                seen: Seen {
                    at: now,
                    batches: self.counters.applied.load(Relaxed),
                    written_pages: self.files.pages_written_above_leaves(),
                    regretted: cache.regretted,
                    regret_bytes: cache.regret_bytes,
                    worth: records.worth,
                    worth_bytes: records.filled,
                    is_settled: records.passed >= records.filled,
                    answered: self.files.disk.in_memory(),
                    looked: values.hits + values.misses,
                    missed: values.misses,
                    gathered_bytes: self.view.load().tree.pending().bytes,
                },
                batch_pages: self.limits().batch / PAGE_BYTES as u64,
                gathered: self.progress.batches(),
                chi_max: self.chi_max(),
            }
        });
    }
}
