//! The way of what is written: memtable, batch, tree, pages, checkpoint (section 4.1 of the paper).
//!
//! ```text
//!   enter: full? seal --> sealed memtables --apply--> tree, pending --write--> pages --publish-->
//!          gate closed    oldest first, one at a time        every chi batches
//!
//!   --publish--> slot: root, redo LSN; the log can be trimmed
//! ```
//!
//! One thread at a time works ([`Work`]): the background's, a checkpoint's, or that of a writer for
//! which memory has no room otherwise. An error leaves everything as it was, so the next attempt
//! does the same again; it is returned to the background's caller, or to the writer that had to do
//! the work itself.
//!
//! **Backpressure.** Up to the soft limit a write does not wait. From there to the hard limit its
//! delay grows with what is held, by the fourth power, and a thread sleeps once it owes half a
//! millisecond. At the hard limit it works itself until there is room. Held is what memtables,
//! sealed ones, pending batches and snapshots keep ([`crate::policy`]).
//!
//! 1. A memtable is sealed while no batch is inside the gate, with the log's last LSN of that
//!    moment: what the log has up to it is in memtables up to this one, and nothing else is (P1).
//! 2. The redo LSN of a checkpoint is that of the newest memtable in its tree. Memtables that were
//!    sealed while the log was replayed have none, because the log's end tells nothing of what was
//!    applied: a tree up to such a memtable may be written, but it is not published (P19).
//! 3. Before pages are written the log is made durable to its end, so no page has a record that the
//!    log lacks (P10). Data, log and slot are synced in this order (P14).
//! 4. The tree of the newest durable checkpoint is kept until the next one is durable: its pages
//!    are not reused. So is what a new checkpoint does not name, until its slot is durable.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::shim::atomic::Ordering::Relaxed;
use spinney_base::{Lsn, Result, probe};
use spinney_extent::values::{LargeExtent, Loaded};
use spinney_extent::{Checkpoint, GiveBack};
use spinney_io::without_reserve;

use crate::core::{Core, count};
use crate::memtable::Memtable;
use crate::options::Choice;
use crate::parallel;
use crate::payload;
use crate::policy::{
    self, BUILDERS_MIN, Limits, SEALED_FREE, SEALED_MAX, SEALED_TOMBSTONES_MIN, delay,
    delay_of_sealed, due,
};
use crate::progress::Work;
use crate::run::Run;
use crate::version::{MergedAway, Outlook, Tree};
use crate::view::View;

thread_local! {
    /// Delays of this thread's writes that it has not slept for.
    static OWED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

impl Core {
    /// Seals the active memtable if the memory has become so small that it is full.
    pub(crate) fn seal_full(&self) {
        let limits = self.limits();
        if self.view.load().tables[0].bytes() >= limits.batch {
            self.seal_if(|active| active.bytes() >= limits.batch);
        }
    }

    /// Enters to write: seals the memtable if it is full, and waits while the pipeline is behind.
    pub(crate) fn enter(&self) -> Result<()> {
        let limits = self.limits();
        if self.view.load().tables[0].bytes() >= limits.batch {
            self.seal_if(|active| active.bytes() >= limits.batch);
            self.wanted.store(true, Relaxed);
            self.follow_limits();
        }
        self.wait_for_room(&limits)?;
        self.gate.enter();
        Ok(())
    }

    /// Backpressure; see the module.
    fn wait_for_room(&self, limits: &Limits) -> Result<()> {
        let view = self.view.load();
        let (sealed, held) = (view.tables.len() as u64 - 1, self.held_with(&view));
        let filled = view.tables[0].bytes();
        drop(view);
        if held <= limits.soft && sealed < SEALED_FREE {
            return Ok(());
        }
        self.wanted.store(true, Relaxed);
        if held > limits.hard || sealed > SEALED_MAX {
            return self.stall(|| self.make_room(limits));
        }
        if self.progress.is_replaying() {
            // Delays let the background catch up, and there is none yet.
            return Ok(());
        }
        let of_memory = delay(held.saturating_sub(limits.soft), limits.hard - limits.soft);
        let delay = of_memory.max(delay_of_sealed(sealed, filled, limits.batch));
        if delay.is_zero() {
            return Ok(());
        }
        if self.context.runtime.is_stepped() {
            count(&self.counters.delays);
            self.stall(|| self.context.runtime.help());
            return Ok(());
        }
        let (sleep, owed) = due(OWED.get() + delay);
        OWED.set(owed);
        if !sleep.is_zero() {
            count(&self.counters.delays);
            self.stall(|| self.context.runtime.sleep(sleep));
        }
        Ok(())
    }

    /// Works until there is room, or until no work is left that would make any.
    fn make_room(&self, limits: &Limits) -> Result<()> {
        loop {
            let sealed = self.view.load().tables.len() as u64 - 1;
            if self.held() <= limits.hard && sealed <= SEALED_MAX {
                return Ok(());
            }
            self.context.poison.check()?;
            count(&self.counters.foreground_steps);
            let progress = match self.step() {
                // Where the disk has no room either, snapshots end so that writes can continue.
                Err(error) if error.is_full() => {
                    if !self.relieve()? {
                        return Err(error);
                    }
                    true
                }
                worked => {
                    worked?
                        || self.relieve()?
                        || self.seal_if(|active| active.bytes() >= limits.batch_under_pressure())
                        || self.write_pending()?
                }
            };
            if !progress {
                return Ok(());
            }
        }
    }

    /// Runs `body` between two batches, unless the caller is inside one itself.
    pub(crate) fn between<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        if self.context.runtime.is_stepped() {
            // There is one thread, and it may be here because a writer lets the background run.
            return self.gate.try_closed(body);
        }
        Some(self.gate.closed(body))
    }

    /// Seals the active memtable if `wanted`; says whether it did.
    fn seal_if(&self, wanted: impl Fn(&Memtable) -> bool) -> bool {
        let seal = || wanted(&self.view.load().tables[0]) && self.seal_alone().1;
        self.between(seal).unwrap_or(false)
    }

    /// Seals the active memtable because ranges passed what it removes; says whether it did.
    pub(crate) fn seal_for_reads(&self) -> bool {
        self.seal_if(|active| active.tombstones() >= SEALED_TOMBSTONES_MIN)
    }

    /// Seals the active memtable; the caller is [`Core::between`] batches. Returns the number of
    /// the newest sealed memtable, and whether this call sealed it.
    pub(crate) fn seal_alone(&self) -> (u64, bool) {
        let active = self.view.load().tables[0].number();
        let is_new = !self.view.load().tables[0].is_empty();
        if is_new {
            let batch = self.limits().batch;
            self.view.replace(|view| {
                let mut tables = view.tables.clone();
                tables.insert(0, Arc::new(tables[0].next(batch)));
                View::new(tables, view.tree.clone())
            });
            count(&self.counters.seals);
        }
        let memtable = if is_new { active } else { active - 1 };
        self.progress.mark(memtable, || self.context.log.last_lsn());
        (memtable, is_new)
    }

    /// Does a bounded piece of work; says whether there was any.
    pub(crate) fn step(&self) -> Result<bool> {
        let mut work = self.progress.work.lock();
        if self.is_due(&work) {
            self.write(&mut work)?;
            return Ok(true);
        }
        self.apply_oldest(&mut work)
    }

    fn is_due(&self, work: &Work) -> bool {
        let batches = self.progress.batches();
        let pending = self.view.load().tree.pending();
        if self.progress.redo_of(work).is_none() {
            return pending.bytes >= self.limits().pending;
        }
        if batches == 0 {
            // Nothing has gathered that would be too much.
            self.progress.set_lowered(false);
        }
        self.progress.is_lowered()
            || batches >= self.chi()
            || pending.bytes >= self.limits().pending
            || (batches > 0 && self.keeps_much(work))
    }

    /// Whether a checkpoint would give back a part of the file for which it should not wait.
    fn keeps_much(&self, work: &Work) -> bool {
        let tree = &self.view.load().tree;
        let kept = tree.pages_beside().saturating_sub(self.progress.kept_pages());
        let grown = tree.pages().saturating_sub(work.published.pages());
        policy::keeps_much(kept, grown, self.files.pages(), self.leaf_bytes())
    }

    /// Writes what is pending, even if it is not due; says whether anything was.
    fn write_pending(&self) -> Result<bool> {
        let mut work = self.progress.work.lock();
        let pending = self.view.load().tree.pending();
        if pending.items == 0 {
            return Ok(false);
        }
        self.write(&mut work).map(|()| true)
    }

    /// Applies the oldest sealed memtable to the tree; says whether there was one.
    fn apply_oldest(&self, work: &mut Work) -> Result<bool> {
        let view = self.view.load_full();
        let [_, newer @ .., oldest] = &view.tables[..] else { return Ok(false) };
        let _inside = probe::enter("batch apply");
        let mut merged_away = Vec::new();
        self.call_crew(view.tables.len() - 1);
        let made = work.next.take().filter(|(number, _)| *number == oldest.number());
        let batch = made.map_or_else(|| oldest.batch(), |(_, batch)| Ok(batch))?;
        let outlook = self.outlook()?;
        // Gathering a batch takes one thread, and a good part of the time of applying one.
        let (tree, next) = parallel::both(
            newer.len() + 1,
            || self.apply_with_room(&view.tree, batch, outlook, &mut merged_away),
            || newer.last().map(|next| (next.number(), next.batch())),
        );
        // If gathering failed it is tried again when the batch is needed, and reports the error
        // then.
        work.next = next.and_then(|(number, batch)| Some((number, batch.ok()?)));
        let tree = tree?;
        self.view.replace(|view| {
            let (_, newer) = view.tables.split_last().expect("only this thread takes any");
            View::new(newer.to_vec(), tree.clone())
        });
        work.applied = oldest.number();
        self.progress.note_batch();
        self.memory.note_batch(self.context.runtime.now());
        self.note_merged_away(&merged_away);
        self.snapshots.upgrade(work.applied, &tree, &self.view.load());
        count(&self.counters.applied);
        self.follow_memory();
        Ok(true)
    }

    /// Returns the tree with a batch on top, if the disk has room for it. On a full disk the batch
    /// waits where that takes the least.
    fn apply_with_room(
        &self,
        tree: &Tree,
        batch: Run,
        outlook: Outlook,
        merged_away: &mut MergedAway,
    ) -> Result<Tree> {
        let applied = without_reserve(|| tree.apply(batch.clone(), Some(outlook), merged_away));
        match applied {
            Ok(applied) if self.has_room_for(&applied)? => Ok(applied),
            Err(error) if !error.is_full() => Err(error),
            refused => {
                // Its pages are free again.
                drop(refused);
                merged_away.clear();
                self.files.store.give_all_back()?;
                self.tidying.set_crowded(true);
                tree.apply_sparingly(batch, merged_away)
            }
        }
    }

    /// Whether the disk has room to write what a tree has in memory.
    fn has_room_for(&self, tree: &Tree) -> Result<bool> {
        let has_room = || tree.pending().bytes <= self.context.directory.free_bytes();
        if has_room() {
            return Ok(true);
        }
        // Free pages are room as well.
        self.files.store.give_all_back()?;
        Ok(has_room())
    }

    /// What the next batch may write before the checkpoint.
    fn outlook(&self) -> Result<Outlook> {
        let log = &self.context.log;
        let lsn = log.last_lsn();
        log.ensure_durable(lsn)?;
        let left = self.chi().saturating_sub(self.progress.batches() + 1);
        let room = self.limits().batches_left(self.view.load().tree.pending().bytes);
        Ok(Outlook { lsn, left: left.min(room) })
    }

    /// Writes the tree, and publishes it if it can have a redo LSN.
    pub(crate) fn write(&self, work: &mut Work) -> Result<()> {
        // A lowered chi that gives memory back is at work until this checkpoint is done.
        let _changing = self.progress.is_lowered().then(|| probe::enter("chi change"));
        let log = &self.context.log;
        let end = log.last_lsn();
        log.ensure_durable(end)?;
        let view = self.view.load_full();
        self.call_crew(view.tables.len().max(BUILDERS_MIN));
        let mut merged_away = Vec::new();
        let tree = {
            let _inside = probe::enter("checkpoint build");
            view.tree.write(end, &mut merged_away)?
        };
        self.put_tree(work, tree, merged_away);
        self.publish_written(work)
    }

    /// Publishes the tree, all of which is on disk, if it can have a redo LSN.
    pub(crate) fn publish_written(&self, work: &mut Work) -> Result<()> {
        match self.progress.redo_of(work) {
            Some(redo) => self.publish(work, redo),
            None => Ok(()),
        }
    }

    /// Replaces the tree by one with the same records.
    pub(crate) fn put_tree(&self, work: &Work, tree: Tree, merged_away: MergedAway) {
        self.view.replace(|view| View::new(view.tables.clone(), tree.clone()));
        self.note_merged_away(&merged_away);
        self.snapshots.upgrade(work.applied, &tree, &self.view.load());
        self.follow_memory();
    }

    /// Publishes the tree as it is, all of which is on disk.
    fn publish(&self, work: &mut Work, redo: Lsn) -> Result<()> {
        let tree = self.view.load().tree.clone();
        let is_news = !tree.is(&work.published) || redo != self.redo();
        let cut = self.large.cut(work.applied);
        if is_news || self.large.settles(&cut) {
            self.publish_root(work, tree, redo, &self.large.list(&cut).live)?;
            self.free(work);
        }
        self.progress.forget_batches();
        self.progress.set_lowered(false);
        Ok(())
    }

    /// Writes the slot of a checkpoint. If that fails, the one before stays valid.
    fn publish_root(
        &self,
        work: &mut Work,
        tree: Tree,
        redo: Lsn,
        large: &[LargeExtent],
    ) -> Result<()> {
        let _inside = probe::enter("root publish");
        let log = &self.context.log;
        let payload = payload::encode(&tree.root()?, large);
        let durable = || log.ensure_durable(log.last_lsn());
        self.files.store.publish(Checkpoint { redo, structure: 0 }, &payload, durable)?;
        self.progress.published(work, tree, redo);
        count(&self.counters.checkpoints);
        Ok(())
    }

    /// Frees what the checkpoint that was just published does not name.
    fn free(&self, work: &Work) {
        self.progress.set_kept_pages(self.view.load().tree.pages_beside());
        self.large.settle(&self.large.cut(work.applied));
        self.follow_memory();
    }

    /// Publishes a tree that was loaded past the log, with the large values that it names; it
    /// replaces a tree without records. Nothing is written meanwhile, and no checkpoint is taken.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`; the keyspace is as it was.
    pub(crate) fn install(&self, tree: Tree, large: &Loaded) -> Result<()> {
        let _inside = probe::enter("bulk load");
        let sealed = self.gate.closed(|| self.seal_alone().0);
        let mut work = self.progress.work.lock();
        while work.applied < sealed && self.apply_oldest(&mut work)? {}
        let redo = self.context.log.last_lsn();
        self.publish_root(&mut work, tree.clone(), redo, &large.extents())?;
        // All that is left of the tree before are removals and what they removed.
        self.large.supersede_all();
        large.apply(sealed);
        self.view.replace(|view| View::new(view.tables.clone(), tree));
        self.files.disk.gap.forget();
        // The values that were on disk are gone, and no edit of a memtable tells it.
        self.residents.forget();
        self.progress.forget_batches();
        self.free(&work);
        Ok(())
    }

    /// Writes everything that was applied up to now into a checkpoint.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _inside = probe::enter("checkpoint");
        self.context.poison.check()?;
        // A caller inside a batch does what it can; the redo LSN says how far that was.
        let sealed = self.between(|| self.seal_alone().0);
        let sealed = sealed.unwrap_or_else(|| self.view.load().tables[0].number() - 1);
        let mut work = self.progress.work.lock();
        while work.applied < sealed && self.apply_oldest(&mut work)? {}
        self.write(&mut work)?;
        drop(work);
        self.settle_in_steps()?;
        // The caller looks at the file afterwards, or closes it.
        while self.files.store.give_back(GiveBack::Most)? > 0 {}
        Ok(())
    }

    /// Notes that the replay of the log is over: from now on the log's end is that of what was
    /// applied.
    pub(crate) fn end_replay(&self) {
        self.progress.end_replay();
        // No other thread is here yet.
        self.between(|| self.seal_alone());
    }

    /// Sets the checkpoint distance; none for what the engine chooses. Returns what it is now. If
    /// it falls, all that has gathered is due.
    pub(crate) fn set_chi(&self, chi: Option<u64>) -> u64 {
        let before = self.chi();
        self.tuning.set(Choice::Chi(chi));
        let now = self.chi();
        if now < before {
            self.progress.set_lowered(true);
            self.wanted.store(true, Relaxed);
        }
        now
    }
}
