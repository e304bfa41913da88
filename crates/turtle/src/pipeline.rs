//! The way of what is written: memtable, batch, tree, pages, checkpoint (section 4.1 of the paper).
//!
//! ```text
//!   enter: full? seal ---> sealed memtables --apply--> tree, pending --write--> pages --publish--> slot: root, redo
//!          gate closed     oldest first, one at a time        every chi batches         log trimmable
//! ```
//!
//! One thread at a time works ([`Work`]): the background's, a checkpoint's, or a writer's for whom
//! memory has no room otherwise. An error leaves everything as it was, so the next attempt does the
//! same again; it reaches the background's caller, or the writer that had to do the work itself.
//!
//! **Back-pressure.** Up to the soft limit a write waits for nothing; from there to the hard limit its
//! delay grows with what is held, by the fourth power, and a thread sleeps when it owes half a millisecond; at the hard limit it
//! works itself until there is room. What is held is what memtables, sealed ones, pending batches and snapshots keep.
//!
//! **Invariants**
//! 1. A memtable is sealed while nobody is inside the gate, with the log's last LSN of that moment:
//!    what the log has up to it is in memtables up to this one, and nothing else is (P1).
//! 2. The redo LSN of a checkpoint is that of the newest memtable in its tree. Of memtables that were
//!    sealed while the log was replayed none is known, because the log's end says nothing of what was
//!    applied: a tree up to such a one may be written, but it is not published (P19).
//! 3. Before pages are written the log is made durable to its end, so no page has a record that it
//!    lacks (P10). Data, log, slot are synced in this order (P14).
//! 4. The tree of the newest durable checkpoint is kept until the next one is durable: its pages
//!    are not reused. So is what a new checkpoint does not name, until its slot is durable.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::Ordering::{Relaxed, SeqCst};
use spinney_base::{Lsn, Result, probe};
use spinney_extent::values::{LargeExtent, Loaded};
use spinney_extent::{Checkpoint, GiveBack};
use spinney_io::without_reserve;
use spinney_records::Side;
use spinney_wal::CHECKPOINT_FULLNESS;

use crate::core::{Core, Mark, Work, count};
use crate::crew::CREW_MAX;
use crate::memtable::Memtable;
use crate::options::Choice;
use crate::parallel;
use crate::payload;
use crate::run::Run;
use crate::version::{LEAF_BYTES_MIN, MergedAway, Outlook, Tree};
use crate::view::View;

/// The delay of one write when the hard limit is near.
const DELAY_MAX: Duration = Duration::from_millis(2);

/// A thread that owes less does not sleep yet.
const SLEEP_MIN: Duration = Duration::from_micros(500);

thread_local! {
    /// Delays of this thread's writes that it has not slept for.
    static OWED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// So many sealed memtables are as much as the hard limit: each costs every get a look.
const SEALED_MAX: u64 = 12;
/// So many are no reason to wait.
const SEALED_FREE: u64 = 4;

/// The active memtable counts by how full it is, in such parts: by whole ones the delay would jump to sixteen times as much.
const PARTS: u64 = 64;

/// The shares of the account's target, in parts of 64. What writes do not hold is the cache's, and what reads
/// need is for [`crate::auto`] to say, so writes may have nearly all while nobody reads.
pub(crate) const BATCH_PARTS: u64 = 4;
const PENDING_PARTS: u64 = 43;
const SOFT_PARTS: u64 = 51;
const HARD_PARTS: u64 = 55;
/// So many times what memory holds may gather between checkpoints when what settles is written early: at
/// distances from 32 on 38 to 43 % of it is kept (`tests::amplification`), and less the larger flushes are. What is
/// pending ends it earlier where more is kept.
const STREAMED: u64 = 3;
const UNDER_WAY_PARTS_MAX: u64 = 9;

/// What one thread of the crew has under way: a leaf as pages and as edits, what is pending for it, what is made of both;
/// and its part of the batch, of levels that are made one, and of what the batch keeps. With four for each of four threads
/// the peak of a load at a distance of 16 was at the promise.
const UNDER_WAY_LEAVES: u64 = 6;

/// Threads that build a checkpoint at least: memtables wait while it is written, and building takes less than
/// half of what a flush does.
const BUILDERS_MIN: usize = 2;

/// A checkpoint does not wait longer when so large a part of the pages beside twice those by which the tree has grown since
/// the last one (it goes on growing, and will need their room), and so many leaves, are kept only for that: pages that
/// leaves written early took the place of.
const KEPT_PART: u64 = 3;
const KEPT_OF_GROWN: u64 = 2;
const KEPT_LEAVES_MIN: u64 = 16;

/// So much of what makes the log ask for a checkpoint may gather, so that the distance's own comes first: records take
/// more room in a log than in memtables where they overwrite each other, and about as much otherwise.
const LOG_SHARE: f64 = 0.875;

/// A memtable of fewer tombstones is not sealed for ranges.
const TOMBSTONES_MIN: u64 = 64;

/// Least that a keyspace works with beside its nodes and large values: a memtable and a batch under way.
const FLOOR_BYTES: u64 = 32 << 10;

/// Smallest memtable, whatever the memory.
const BATCH_BYTES_MIN: u64 = 4 << 10;

/// What a keyspace's memory allows, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of one memtable, when it is full.
    pub(crate) batch: u64,
    /// Pending in the tree, before it is written whatever chi says.
    pub(crate) pending: u64,
    /// Held by writes in all, before they are slowed and before they must wait.
    pub(crate) soft: u64,
    pub(crate) hard: u64,
    /// What one thread may have under way that applies a batch or builds pages.
    under_way: u64,
}

impl Limits {
    pub(crate) fn of(target: u64, leaf: u64) -> Limits {
        let part = |parts: u64| target / 64 * parts;
        Limits {
            batch: part(BATCH_PARTS).min(leaf).max(BATCH_BYTES_MIN),
            pending: part(PENDING_PARTS),
            soft: part(SOFT_PARTS),
            hard: part(HARD_PARTS),
            under_way: (part(UNDER_WAY_PARTS_MAX) / CREW_MAX as u64).min(UNDER_WAY_LEAVES * leaf),
        }
    }

    /// Bytes of a leaf: a full memtable fills one.
    pub(crate) fn leaf(&self) -> u64 {
        self.batch.max(LEAF_BYTES_MIN)
    }

    /// The largest checkpoint distance: more batches gather than memory holds, since a part of them
    /// is written early.
    pub(crate) fn chi_max(&self) -> u64 {
        (STREAMED * self.pending / self.batch).max(1)
    }
}

impl Core {
    /// Has leaves as large as the memory allows, and gives the page cache what all else leaves.
    pub(crate) fn follow_limits(&self) {
        let memory = self.context.memory.target();
        let shaped = self.shaped.lock().follow(memory, self.context.runtime.now());
        self.shaped_bytes.store(shaped, Relaxed);
        self.files.disk.shape(memory, self.leaf_bytes(), self.tuning.filter_bits());
        let room = self.room_of_writes() + self.under_way();
        self.set_aside.set(usize::try_from(room).unwrap_or(usize::MAX));
        let left = self.left_for_reads();
        self.files.cache.set_bytes(left.saturating_sub(self.records.bytes()));
    }

    /// What writes and all else leave of the memory for records and pages that are cached.
    pub(crate) fn left_for_reads(&self) -> u64 {
        let writes = self.room_of_writes();
        let nodes = self.view.load().tree.node_bytes();
        let rest = self.large.bytes() + nodes + self.under_way();
        self.context.memory.target().saturating_sub(writes + rest)
    }

    /// What the crew may have under way.
    fn under_way(&self) -> u64 {
        let crew = self.crew.lock().follow(0, self.context.runtime.now()) as u64;
        crew * self.limits().under_way
    }

    /// What writes have held of late.
    fn room_of_writes(&self) -> u64 {
        self.room.lock().follow(self.held(), self.context.runtime.now())
    }

    /// Has so many threads for what comes next, and takes their memory from the caches before they need it.
    pub(crate) fn call_crew(&self, needed: usize) {
        let threads = self.crew.lock().follow(needed, self.context.runtime.now());
        self.files.disk.set_threads(threads);
        self.follow_limits();
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits::of(self.context.memory.target(), self.tuning.leaf_bytes())
    }

    /// Bytes of the leaves that are written now.
    pub(crate) fn leaf_bytes(&self) -> u64 {
        Limits::of(self.shaped_bytes.load(Relaxed), self.tuning.leaf_bytes()).leaf()
    }

    /// Seals the active memtable where the memory has become so little that it is full.
    pub(crate) fn seal_full(&self) {
        let limits = self.limits();
        if self.view.load().tables[0].bytes() >= limits.batch {
            self.seal_if(|active| active.bytes() >= limits.batch);
        }
    }

    /// Says what the last bytes were worth, whether more could be used, and what cannot be given. For the background.
    pub(crate) fn follow_use(&self) {
        let (account, cache) = (&self.context.memory, self.files.cache.stats());
        let pages = Side { worth: cache.regretted, bytes: cache.regret_bytes };
        account.set_worth(self.records.follow_worth(pages));
        let left = self.left_for_reads();
        let read = cache.used_bytes + self.records.usage().held;
        // With hardly any memory no page is ever kept, and none leaves for another.
        let is_short = cache.evicted > 0 || cache.private > 0;
        let is_read_full = is_short && read >= left / 8 * 7;
        let is_written_full = self.room_of_writes() >= self.limits().pending / 8 * 7;
        account.set_full(is_read_full || is_written_full);
    }

    /// Bytes that it keeps though others want them.
    pub(crate) fn memory_floor(&self) -> u64 {
        FLOOR_BYTES + self.large.bytes() + self.view.load().tree.node_bytes()
    }

    /// The largest checkpoint distance: what memory allows and, where the keyspace is logged and alone in the log, what
    /// fits there before the database asks for a checkpoint.
    pub(crate) fn chi_max(&self) -> u64 {
        let limits = self.limits();
        if !self.context.logged {
            return limits.chi_max();
        }
        let in_log = self.context.log.bytes_at(CHECKPOINT_FULLNESS * LOG_SHARE);
        limits.chi_max().min(in_log / limits.batch).max(1)
    }

    /// The checkpoint distance now.
    pub(crate) fn chi(&self) -> u64 {
        let most = self.chi_max();
        self.tuning.chi().map_or_else(|| self.auto.chi(most), |chi| chi.min(most))
    }

    /// Bytes that are held for writes.
    fn held(&self) -> u64 {
        self.held_with(&self.view.load())
    }

    fn held_with(&self, view: &View) -> u64 {
        view.memory_bytes() + self.reserved.load(Relaxed) + self.pinned.load(Relaxed)
    }

    /// Goes in to write; seals the memtable if it is full, and waits while the pipeline is behind.
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

    /// Back-pressure; see the module.
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

    /// Works until there is room, or nothing is left that would make any.
    fn make_room(&self, limits: &Limits) -> Result<()> {
        loop {
            let sealed = self.view.load().tables.len() as u64 - 1;
            if self.held() <= limits.hard && sealed <= SEALED_MAX {
                return Ok(());
            }
            self.context.poison.check()?;
            count(&self.counters.foreground_steps);
            let progress = match self.step() {
                // Where the disk has no room either, snapshots end for writers' sake.
                Err(error) if error.is_full() => {
                    if !self.relieve()? {
                        return Err(error);
                    }
                    true
                }
                worked => {
                    worked?
                        || self.relieve()?
                        || self.seal_if(|active| active.bytes() >= limits.batch / 2)
                        || self.write_pending()?
                }
            };
            if !progress {
                return Ok(());
            }
        }
    }

    /// Runs `body` between two batches, if the caller is not inside of one itself.
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
        self.seal_if(|active| active.tombstones() >= TOMBSTONES_MIN)
    }

    /// Seals the active memtable, for who is [`Core::between`] batches. Answers the number of the
    /// newest sealed one, and whether there is a new one.
    pub(crate) fn seal_alone(&self) -> (u64, bool) {
        let active = self.view.load().tables[0].number();
        let is_new = !self.view.load().tables[0].is_empty();
        if is_new {
            let batch = self.limits().batch;
            self.replace(|view| {
                let mut tables = view.tables.clone();
                tables.insert(0, Arc::new(tables[0].next(batch)));
                View::new(tables, view.tree.clone())
            });
            count(&self.counters.seals);
        }
        let memtable = if is_new { active } else { active - 1 };
        if !self.is_replaying() {
            let mut marks = self.marks.lock();
            marks.retain(|mark| mark.memtable < memtable);
            marks.push_back(Mark { memtable, redo: self.context.log.last_lsn() });
        }
        (memtable, is_new)
    }

    /// Does a bounded piece of work; says whether there was any.
    pub(crate) fn step(&self) -> Result<bool> {
        let mut work = self.work.lock();
        if self.is_due(&work) {
            self.write(&mut work)?;
            return Ok(true);
        }
        self.apply_oldest(&mut work)
    }

    fn is_due(&self, work: &Work) -> bool {
        let batches = self.batches.load(Relaxed);
        let pending = self.view.load().tree.pending();
        if self.redo_of(work).is_none() {
            return pending.bytes >= self.limits().pending;
        }
        if batches == 0 {
            // Nothing has gathered that would be too much.
            self.lowered.store(false, SeqCst);
        }
        let lowered = self.lowered.load(SeqCst);
        lowered
            || batches >= self.chi()
            || pending.bytes >= self.limits().pending
            || (batches > 0 && self.keeps_much(work))
    }

    /// Whether a checkpoint would give back so much of the file that it should not wait.
    fn keeps_much(&self, work: &Work) -> bool {
        let tree = &self.view.load().tree;
        let kept = tree.pages_beside().saturating_sub(self.kept_pages.load(Relaxed));
        let grown = tree.pages().saturating_sub(work.published.pages());
        let leaves = KEPT_LEAVES_MIN * self.leaf_bytes() / PAGE_BYTES as u64;
        kept > (self.files.pages() / KEPT_PART + KEPT_OF_GROWN * grown).max(leaves)
    }

    /// Writes what is pending, though it is not due; says whether anything was.
    fn write_pending(&self) -> Result<bool> {
        let mut work = self.work.lock();
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
        // To gather a batch takes one thread, and a good part of what it takes to apply it.
        let (tree, next) = parallel::both(
            newer.len() + 1,
            || self.apply_with_room(&view.tree, batch, outlook, &mut merged_away),
            || newer.last().map(|next| (next.number(), next.batch())),
        );
        // If it failed, that is tried again, and said, when it is needed.
        work.next = next.and_then(|(number, batch)| Some((number, batch.ok()?)));
        let tree = tree?;
        self.replace(|view| {
            let (_, newer) = view.tables.split_last().expect("only this thread takes any");
            View::new(newer.to_vec(), tree.clone())
        });
        work.applied = oldest.number();
        self.batches.fetch_add(1, Relaxed);
        self.room.lock().batch(self.context.runtime.now());
        self.note_merged_away(&merged_away);
        self.upgrade_snapshots(work.applied, &tree);
        count(&self.counters.applied);
        self.follow_memory();
        Ok(true)
    }

    /// The tree with a batch on top that the disk has room for: on a full disk it waits where that takes the least.
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
                self.is_crowded.store(true, SeqCst);
                tree.apply_sparingly(batch, merged_away)
            }
        }
    }

    /// Whether what a tree has in memory can be written, as far as the disk says.
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
        let left = self.chi().saturating_sub(self.batches.load(Relaxed) + 1);
        let limits = self.limits();
        let room = limits.pending.saturating_sub(self.view.load().tree.pending().bytes);
        Ok(Outlook { lsn, left: left.min(STREAMED * room / limits.batch) })
    }

    /// The redo LSN of a checkpoint of the tree as it is, if it can have one.
    fn redo_of(&self, work: &Work) -> Option<Lsn> {
        let marks = self.marks.lock();
        let mark = marks.iter().find(|mark| mark.memtable == work.applied);
        let same = work.applied == work.published_memtable;
        mark.map(|mark| mark.redo).or(same.then(|| self.redo()))
    }

    /// Writes the tree, and publishes it if it can have a redo LSN.
    pub(crate) fn write(&self, work: &mut Work) -> Result<()> {
        // A change that only sets a number is over at once; one that gives memory back goes on until that is done.
        let _changing = self.lowered.load(SeqCst).then(|| probe::enter("chi change"));
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
        match self.redo_of(work) {
            Some(redo) => self.publish(work, redo),
            None => Ok(()),
        }
    }

    /// Puts a tree with the same records in the place of the one there is.
    pub(crate) fn put_tree(&self, work: &Work, tree: Tree, merged_away: MergedAway) {
        self.replace(|view| View::new(view.tables.clone(), tree.clone()));
        self.note_merged_away(&merged_away);
        self.upgrade_snapshots(work.applied, &tree);
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
        self.batches.store(0, Relaxed);
        self.lowered.store(false, SeqCst);
        Ok(())
    }

    /// Writes the slot of a checkpoint. If that fails, the one before stands.
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
        self.redo.store(redo.0, SeqCst);
        self.marks.lock().retain(|mark| mark.memtable > work.applied);
        // Its pages are reused from here on, unless a reader has it.
        work.published = tree;
        work.published_memtable = work.applied;
        count(&self.counters.checkpoints);
        Ok(())
    }

    /// Lets go what the checkpoint that was just published does not name.
    fn free(&self, work: &Work) {
        self.kept_pages.store(self.view.load().tree.pages_beside(), Relaxed);
        self.large.settle(&self.large.cut(work.applied));
        self.follow_memory();
    }

    /// Publishes a tree that was loaded past the log, in the place of one without records, and with
    /// the large values that it names. Nobody writes meanwhile, and no checkpoint is taken.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`; the keyspace is as it was.
    pub(crate) fn install(&self, tree: Tree, large: &Loaded) -> Result<()> {
        let _inside = probe::enter("bulk load");
        let sealed = self.gate.closed(|| self.seal_alone().0);
        let mut work = self.work.lock();
        while work.applied < sealed && self.apply_oldest(&mut work)? {}
        let redo = self.context.log.last_lsn();
        self.publish_root(&mut work, tree.clone(), redo, &large.extents())?;
        // What is left of the tree before are removals and what they removed.
        self.large.supersede_all();
        large.apply(sealed);
        self.replace(|view| View::new(view.tables.clone(), tree));
        self.files.disk.gap.forget();
        // What was on disk for them is not any more, and no edit of a memtable says so.
        self.residents.forget();
        self.batches.store(0, Relaxed);
        self.free(&work);
        Ok(())
    }

    /// Brings everything that was applied up to now into a checkpoint.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _inside = probe::enter("checkpoint");
        self.context.poison.check()?;
        // Who is inside of a batch himself does what he can; the redo LSN says how far that was.
        let sealed = self.between(|| self.seal_alone().0);
        let sealed = sealed.unwrap_or_else(|| self.view.load().tables[0].number() - 1);
        let mut work = self.work.lock();
        while work.applied < sealed && self.apply_oldest(&mut work)? {}
        self.write(&mut work)?;
        drop(work);
        self.settle_in_steps()?;
        // Who asks for a checkpoint looks at the file afterwards, or closes it.
        while self.files.store.give_back(GiveBack::Most)? > 0 {}
        Ok(())
    }

    /// The replay of the log is over: the end of the log is that of what was applied.
    pub(crate) fn end_replay(&self) {
        self.replaying.store(false, SeqCst);
        // Nobody else is here yet.
        self.between(|| self.seal_alone());
    }

    /// Sets the checkpoint distance, none for what the engine chooses; answers what it is now. Where it is
    /// lower than before, all that has gathered is due.
    pub(crate) fn set_chi(&self, chi: Option<u64>) -> u64 {
        let before = self.chi();
        self.tuning.set(Choice::Chi(chi));
        let now = self.chi();
        if now < before {
            self.lowered.store(true, SeqCst);
            self.wanted.store(true, Relaxed);
        }
        now
    }
}

/// Of so much that a thread owes, what it sleeps now and what it goes on owing: going to sleep costs as much as a
/// put does, so it sleeps for many at once.
fn due(owed: Duration) -> (Duration, Duration) {
    if owed < SLEEP_MIN { (Duration::ZERO, owed) } else { (owed, Duration::ZERO) }
}

/// What a write waits that comes when the pipeline is behind by so much of the most that it may be: by the fourth power, for
/// many threads share what the pipeline does. With 16 of them a third of the longest delay for the first memtable too
/// many let in a twentieth of what was being brought away, and processors were idle until it had caught up.
fn delay(behind: u64, most: u64) -> Duration {
    let nanos = (0..4).fold(DELAY_MAX.as_nanos() as u64, |nanos, _| {
        // A longest delay of 2^21 nanoseconds, of bytes below 2^43.
        nanos * behind.min(most) / most.max(1)
    });
    Duration::from_nanos(nanos)
}

/// The same where so many memtables are sealed and so many bytes of the active one are filled.
fn delay_of_sealed(sealed: u64, filled: u64, batch: u64) -> Duration {
    let filled = (PARTS * filled / batch).min(PARTS);
    let behind = (PARTS * sealed + filled).saturating_sub(PARTS * SEALED_FREE);
    delay(behind, PARTS * (SEALED_MAX - SEALED_FREE))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn the_delay_does_not_jump_where_a_memtable_is_sealed() {
        let (batch, mut before) = (2 << 20, Duration::ZERO);
        for sealed in 0..=SEALED_MAX {
            assert!(before <= delay_of_sealed(sealed, 0, batch));
            for filled in (0..=batch + 5000).step_by(5000) {
                let now = delay_of_sealed(sealed, filled, batch);
                let step = now.saturating_sub(before);
                assert!(step <= before / 4 + Duration::from_micros(1), "{sealed} {filled} {now:?}");
                assert!(now >= before && (sealed >= SEALED_FREE || now.is_zero()));
                before = now;
            }
        }
        assert_eq!(before, DELAY_MAX);
    }

    #[test]
    fn sleeps_are_for_many_writes_and_bounded() {
        let (mut owed, mut slept, mut asked) = (Duration::ZERO, Vec::new(), Duration::ZERO);
        for behind in (0..=100).cycle().take(10_000) {
            asked += delay(behind, 100);
            let (sleep, left) = due(owed + delay(behind, 100));
            owed = left;
            if !sleep.is_zero() {
                slept.push(sleep);
            }
        }
        assert!(slept.iter().all(|sleep| (SLEEP_MIN..SLEEP_MIN + DELAY_MAX).contains(sleep)));
        assert_eq!(
            slept.iter().sum::<Duration>() + owed,
            asked,
            "no more and no less than was asked"
        );
        assert!(slept.len() < 5000, "{} sleeps", slept.len());
    }

    #[test]
    fn delays_grow_smoothly() {
        let delays: Vec<_> = (0..=7).map(|behind| delay(behind, 6)).collect();
        let micros: Vec<_> = delays.iter().map(Duration::as_micros).collect();
        assert_eq!(micros, [0, 1, 24, 125, 395, 964, 2000, 2000]);
        assert_eq!(delay(1 << 40, 1 << 40), DELAY_MAX);
    }

    #[test]
    fn limits_leave_room_for_each_other() {
        for target in [128 << 10, 1 << 20, 340 << 20, 64 << 30] {
            for leaf in [4 << 10, 2 << 20, 16 << 20] {
                let Limits { batch, pending, soft, hard, under_way } = Limits::of(target, leaf);
                assert!(hard + CREW_MAX as u64 * under_way <= target);
                assert!(batch < pending && pending < soft && soft < hard && hard < target);
                assert!(pending + 2 * batch <= soft, "{target} {leaf}");
            }
        }
        assert_eq!(Limits::of(340 << 20, 2 << 20).chi_max(), 342);
        assert_eq!(Limits::of(0, 2 << 20).chi_max(), 1);
    }
}
