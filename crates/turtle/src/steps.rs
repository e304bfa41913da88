//! Steps of tidying of a keyspace: made towards a goal ([`crate::tidy`]), and written at once.
//!
//! The background makes steps when they pay ([`crate::tidying`]); a compaction and a full disk ask
//! for them.

use std::ops::Bound;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::Ordering::Relaxed;
use spinney_base::{Result, probe};
use spinney_engine::Compacted;
use spinney_io::without_reserve;

use crate::core::Core;
use crate::policy::{
    COMPACT_STEPS_MAX, CREW_MAX, LEAVES_AT_ONCE, PASSED_PART, QUIET_PART, ROOM_STEPS_MAX,
};
use crate::range::KeyRange;
use crate::tidy::{Goal, Step};

impl Core {
    /// Whether nothing was written for a while.
    fn is_quiet(&self) -> bool {
        let view = self.view.load();
        let active = (view.tables[0].number(), view.tables[0].bytes());
        self.tidying.is_quiet(active, self.context.runtime.now())
    }

    /// Whether ranges have passed as many tombstones as it costs to flush them.
    fn wants_fewer_tombstones(&self) -> bool {
        let all = self.files.disk.all_passed().tombstones;
        self.tidying.wants_fewer_tombstones(all, || {
            let view = self.view.load();
            let pages = view.tree.pages_to_tidy(Goal::Room(PASSED_PART));
            pages.max(view.tables[0].bytes() / PAGE_BYTES as u64)
        })
    }

    /// Whether ranges have paid for tidying by now, and for writing what is pending before chi says
    /// so.
    fn is_paid_by_ranges(&self) -> bool {
        self.tidying.is_paid(self.files.disk.beside(), || {
            self.files.pages() + self.view.load().tree.pending().bytes / PAGE_BYTES as u64
        })
    }

    /// Makes a step, if there is time for one and something to gain; says whether it did. For the
    /// background.
    ///
    /// # Errors
    /// `Corruption`, `Poisoned` or `Io`.
    pub(crate) fn tidy_in_background(&self) -> Result<bool> {
        // A backup would have to follow, and nothing that is freed is reused meanwhile.
        if self.files.store.is_held() {
            return Ok(false);
        }
        if self.tidying.is_crowded() && self.is_quiet() {
            match self.tidy_if_room(Goal::Settled)? {
                Some(true) => return Ok(true),
                Some(false) => self.tidying.set_crowded(false),
                None => self.tidying.put_off(self.context.runtime.now()),
            }
        }
        let applied = self.counters.applied.load(Relaxed);
        if self.tidying.may_drain(applied) && self.is_quiet() {
            match self.tidy_if_room(Goal::Room(QUIET_PART))? {
                Some(true) => return Ok(true),
                Some(false) => self.tidying.note_drained(applied),
                // What the steps before have freed may be reused a little later.
                None => self.tidying.put_off(self.context.runtime.now()),
            }
        }
        if self.wants_fewer_tombstones() {
            if self.tidy_if_room(Goal::Room(PASSED_PART))? == Some(true) {
                // Until there are none: what was passed has paid for all of them.
                self.tidying.look_again();
                return Ok(true);
            }
            self.tidying.note_passed(self.files.disk.all_passed().tombstones);
            // Those of the memtable come next.
            return Ok(self.seal_for_reads());
        }
        if !self.is_paid_by_ranges() {
            return Ok(false);
        }
        let tidied = self.tidy_if_room(Goal::Reads)? == Some(true);
        if !tidied {
            self.tidying.note_tidied(self.files.disk.beside());
        }
        Ok(tidied)
    }

    /// Makes a step that may be left out: none if a full disk had no room for it.
    fn tidy_if_room(&self, goal: Goal<'_>) -> Result<Option<bool>> {
        match self.tidy(goal) {
            Err(error) if error.is_full() => Ok(None),
            tidied => tidied.map(Some),
        }
    }

    /// Makes a step towards a goal, and writes it; says whether there was one to be made. It is a
    /// small one where the disk is full.
    ///
    /// # Errors
    /// `Corruption`, `Full`, `Poisoned` or `Io`; all is as it was.
    fn tidy(&self, goal: Goal<'_>) -> Result<bool> {
        match without_reserve(|| self.make_step(Step::with_room(goal))) {
            Err(error) if error.is_full() => {
                self.files.store.give_all_back()?;
                self.make_step(Step::sparing(goal))
            }
            made => made,
        }
    }

    /// Makes room in the file by small steps, while there is something to gain and the disk has the
    /// room that they take.
    ///
    /// # Errors
    /// `Corruption`, `Poisoned` or `Io`.
    pub(crate) fn make_room_on_disk(&self) -> Result<()> {
        self.make_small_steps(Goal::Room(QUIET_PART)).map(drop)
    }

    /// Flushes by small steps what a full disk kept in the topmost levels.
    ///
    /// # Errors
    /// `Corruption`, `Poisoned` or `Io`.
    pub(crate) fn settle_in_steps(&self) -> Result<()> {
        if self.tidying.is_crowded() && self.make_small_steps(Goal::Settled)? {
            self.tidying.set_crowded(false);
        }
        Ok(())
    }

    /// Makes small steps towards a goal; says whether it is reached.
    fn make_small_steps(&self, goal: Goal<'_>) -> Result<bool> {
        for _ in 0..ROOM_STEPS_MAX {
            match self.make_step(Step::sparing(goal)) {
                Ok(true) => self.files.store.give_all_back()?,
                Ok(false) => return Ok(true),
                Err(error) if error.is_full() => break,
                Err(error) => return Err(error),
            }
        }
        self.files.store.give_all_back()?;
        Ok(false)
    }

    fn make_step(&self, step: Step<'_>) -> Result<bool> {
        let mut work = self.progress.work.lock();
        let _inside = probe::enter("tidying");
        let view = self.view.load_full();
        if !view.tree.is_untidy(step.goal) {
            return Ok(false);
        }
        // For their memory: what nodes merge is in it until the step is written. The caches give it
        // up, so not before it is needed.
        self.call_crew(CREW_MAX);
        let log = &self.context.log;
        let end = log.last_lsn();
        log.ensure_durable(end)?;
        let mut merged_away = Vec::new();
        let tidied = view.tree.tidy(end, step, &mut merged_away)?;
        let Some(tidied) = tidied else { return Ok(false) };
        // Before it is the tree: what a step has moved takes more room than what was there, and a full disk may have
        // none for it.
        let written = tidied.write(end, &mut merged_away)?;
        // Otherwise what the step and the write replaced would outlive the checkpoint.
        drop((view, tidied));
        self.put_tree(&work, written, merged_away);
        self.publish_written(&mut work)?;
        Ok(true)
    }

    /// Flushes all that is pending for some leaves of a range, from the one with `from` on.
    ///
    /// # Errors
    /// `Corruption`, `Full`, `Poisoned` or `Io`; the records are as they were.
    pub(crate) fn compact(&self, from: &[u8], upper: Bound<&[u8]>) -> Result<Compacted> {
        let tree = self.view.load().tree.clone();
        let end = tree.end_of_leaves(from, LEAVES_AT_ONCE);
        let beyond = KeyRange { lower: Bound::Included(from), upper };
        let beyond = end.filter(|end| !beyond.within(end, None).is_empty());
        let upper = beyond.as_deref().map_or(upper, Bound::Excluded);
        let range = KeyRange { lower: Bound::Included(from), upper };
        let bytes = tree.pages_in(&range) * PAGE_BYTES as u64;
        // Otherwise what a step replaces would outlive its checkpoint.
        drop(tree);
        for _ in 0..COMPACT_STEPS_MAX {
            if !self.tidy(Goal::Range(range))? {
                break;
            }
        }
        Ok(Compacted { bytes, next: beyond.map(|key| key.to_vec()) })
    }
}
