//! Certification: the order of a commit, and the test that it passes or not.
//!
//! ```text
//!   enter COMMITTING -> draw c -> publish c -> floor
//!     -> overwriters of what it read: pi      -> readers, then pstamps, of what it overwrites: eta
//!     -> pi <= eta: abort                     | the engine validates and appends to the log
//!     -> DECIDED -> publish versions -> raise pstamps -> clear reader bits -> free the context
//! ```
//!
//! **Invariants**
//! 1. All slots are owned, and all locks of other keyspaces held, before COMMITTING (rule T11). A
//!    transaction that is COMMITTING waits only for smaller stamps, so no two wait for each other.
//! 2. Equality of pi and eta aborts: it is the plainest write skew.
//! 3. Nothing is published before DECIDED, and what is DECIDED is published.
//!
//! **Crash.** Stamps live in memory only. They start above what recovery has found.
//!
//! Section 5.2 and Appendix A (`serializable_commit`) of the paper, as corrected by the preface of
//! the crate.

use std::sync::Arc;
use std::task::{Poll, ready};

use spinney_base::Result;
use spinney_base::shim::atomic::{Ordering, fence};
use spinney_base::shim::{spin_hint, thread};

use crate::board::Board;
use crate::clock::{Clock, STAMP_MAX, Stamp};
use crate::context::{Contexts, Fate, Owner, Running};
use crate::readers;
use crate::safe::Floor;
use crate::stamps::{Seen, Stamps, Successor, Version, newest};
use crate::transaction::{AGAIN, Read, Transaction, conflict};

const SPINS_BEFORE_YIELD: u32 = 32;

/// Repeats `poll` until it is ready: a few spins, then yields, for the other thread may be
/// descheduled.
pub(crate) fn wait<T>(mut poll: impl FnMut() -> Poll<T>) -> T {
    let mut spins = 0;
    loop {
        if let Poll::Ready(ready) = poll() {
            return ready;
        }
        if spins < SPINS_BEFORE_YIELD {
            spins += 1;
            spin_hint();
        } else {
            thread::yield_now();
        }
    }
}

/// Rule T10: returns whether a transaction that read or wrote outside versioned keyspaces may
/// commit. It must not come before anything that committed earlier, for reads there have no pi and
/// no eta to find a cycle by.
///
/// ```
/// assert!(spinney_ssn::reads_are_current(13, 13));
/// assert!(!spinney_ssn::reads_are_current(11, 13));
/// ```
#[must_use]
pub const fn reads_are_current(pi: Stamp, cstamp: Stamp) -> bool {
    pi == cstamp
}

/// What all transactions of a database share. Thread-safe; clones share it.
#[derive(Clone, Debug)]
pub struct Certifier {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) floor: Floor,
    pub(crate) contexts: Contexts,
    pub(crate) board: Board,
}

impl Certifier {
    /// Makes a certifier whose first stamp is `last + 1`.
    #[must_use]
    pub fn above(last: Stamp) -> Self {
        Certifier::of(Clock::above(last), Contexts::default())
    }

    pub(crate) fn of(clock: Clock, contexts: Contexts) -> Self {
        Certifier {
            shared: Arc::new(Shared {
                clock,
                floor: Floor::default(),
                contexts,
                board: Board::default(),
            }),
        }
    }

    /// Returns the clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Returns the contexts.
    #[must_use]
    pub fn contexts(&self) -> &Contexts {
        &self.shared.contexts
    }

    /// Returns the begin stamps of transactions that run.
    #[must_use]
    pub fn running(&self) -> Running {
        self.shared.contexts.running(&self.shared.clock)
    }

    /// Passes while a transaction may commit.
    ///
    /// # Errors
    /// `Conflict` when it was ended.
    pub fn check(&self, transaction: Owner) -> Result<()> {
        if self.shared.contexts.is_aborted(transaction) { Err(conflict(AGAIN)) } else { Ok(()) }
    }

    /// Notes that no transaction reads what has a place on the [board](crate::Transaction::note_place), as of now:
    /// whoever overwrites it later comes after that.
    pub fn note_read(&self, hash: u64) {
        self.shared.note_read(hash);
    }

    /// Returns the bytes of memory of the board.
    #[must_use]
    pub fn board_bytes(&self) -> usize {
        self.shared.board.bytes()
    }

    /// Whether what has a place on the board may get another one: no transaction that runs has read it, and each
    /// comes after all that have. Its engine keeps readers from it meanwhile, or lets them begin again.
    #[must_use]
    pub fn is_quiet(&self, hash: u64) -> bool {
        self.shared.is_quiet(hash)
    }
}

/// What a transaction leaves in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// A value.
    Value,
    /// A removed key.
    Tombstone,
}

/// Steps of a commit; a number counts reads, or writes, that are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    Conflicted,
    Drawing,
    Stamping,
    Floor,
    Successors(usize),
    Readers(usize),
    Predecessors(usize),
    Certified,
    Publishing(usize),
    Raising(usize),
    Leaving,
    Finished,
}

impl<S: Stamps> Transaction<S> {
    /// Draws the commit stamp and tests that no cycle passes through this transaction. Waits for
    /// transactions that commit with smaller stamps. Before it, the caller has locked all that it
    /// locks elsewhere. After it, the caller validates node sets and reads elsewhere, asks
    /// [`reads_are_current`] if there were any, and appends.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn certify(&mut self) -> Result<()> {
        while self.phase != Phase::Certified {
            wait(|| self.step())?;
        }
        Ok(())
    }

    /// Draws the commit stamp, the first part of [`certify`](Transaction::certify). What the caller
    /// learns after it of others that read what this transaction overwrites goes to
    /// [`follow`](Transaction::follow).
    ///
    /// # Errors
    /// `Conflict`.
    pub fn draw(&mut self) -> Result<()> {
        while matches!(self.phase, Phase::Running | Phase::Drawing | Phase::Stamping | Phase::Floor)
        {
            wait(|| self.step())?;
        }
        if self.phase == Phase::Conflicted { Err(conflict(AGAIN)) } else { Ok(()) }
    }

    /// Lets the transaction come after others that read at this stamp what it overwrites, and that
    /// no cell knows of. A stamp above its own counts as the one below, so that what nothing has to
    /// follow is never refused. Called between [`draw`](Transaction::draw) and `certify`.
    ///
    /// # Panics
    /// When no commit stamp is drawn.
    pub fn follow(&mut self, stamp: Stamp) {
        assert!(self.cstamp > 0, "what comes before is known once the stamp is drawn");
        self.eta = self.eta.max(stamp.min(self.cstamp - 1));
    }

    /// Lets the transaction come after those that have read what it overwrites and has this place on the board. Waits
    /// for those that commit with lesser stamps. Called between [`draw`](Transaction::draw) and `certify`.
    pub fn follow_place(&mut self, hash: u64) {
        let latest = wait(|| self.certifier.shared.latest_reader(self.me, hash, self.cstamp));
        self.follow(latest);
    }

    /// Lets the transaction come before one that overwrote what it has read, and whose pi this is. The engine tells
    /// of reads that it noted by [`note_place`](Transaction::note_place), between `draw` and `certify`.
    pub fn precede(&mut self, pi: Stamp) {
        self.pi = self.pi.min(pi);
    }

    /// Makes the commit final: after the log has it. No error may follow.
    ///
    /// # Panics
    /// When the transaction is not certified.
    pub fn decide(&mut self) {
        assert_eq!(self.phase, Phase::Certified, "only what is certified is decided");
        self.certifier.shared.contexts.decide(self.me, self.pi);
        self.phase = Phase::Publishing(0);
    }

    /// Publishes the new versions. `install` replaces the image of a slot, which does not move
    /// meanwhile, and says what it is. A reader that copies an image validates owner and cstamp
    /// after it.
    ///
    /// # Panics
    /// When the transaction is not decided.
    pub fn publish(&mut self, mut install: impl FnMut(&S) -> Image) {
        while !self.publish_next(&mut install) {}
    }

    /// Publishes one version; returns whether it was the last.
    pub(crate) fn publish_next(&mut self, install: &mut impl FnMut(&S) -> Image) -> bool {
        let Phase::Publishing(at) = self.phase else { panic!("only what is decided is published") };
        let Some(write) = self.writes.get(at) else {
            self.phase = Phase::Raising(0);
            return true;
        };
        let slot = &write.slot;
        let Seen { version, .. } = newest(slot);
        slot.keep(version, Successor { end: self.cstamp, pi: self.pi });
        let publishing = self.me.publishing().word();
        slot.visit_slot(&mut |words| {
            words.marks.readers.store(0, Ordering::Release);
            words.owner.store(publishing, Ordering::Release);
        });
        // The image changes after the mark is seen.
        fence(Ordering::Release);
        let version = match install(slot) {
            Image::Value => Version::present(self.cstamp),
            Image::Tombstone => Version::absent(self.cstamp),
        };
        slot.visit_slot(&mut |words| {
            words.marks.pstamp.store(version.stamp(), Ordering::Release);
            words.cstamp.store(version.word(), Ordering::Release);
            words.owner.store(Owner::NONE.word(), Ordering::Release);
        });
        self.phase = Phase::Publishing(at + 1);
        false
    }

    /// Leaves all that was read, and ends the transaction.
    ///
    /// # Panics
    /// When the transaction is not published.
    pub fn finish(mut self) {
        assert!(matches!(self.phase, Phase::Raising(_)), "only what is published is finished");
        while self.phase != Phase::Finished {
            let _ = self.step();
        }
    }

    #[cfg(test)]
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Takes one step of the commit: each is one that another thread may come between.
    pub(crate) fn step(&mut self) -> Poll<Result<()>> {
        self.phase = match self.phase {
            Phase::Running => {
                if !self.certifier.shared.contexts.commit(self.me) {
                    return Poll::Ready(Err(self.conflict("a plain write took its place")));
                }
                Phase::Drawing
            }
            Phase::Drawing => {
                self.cstamp = self.certifier.shared.clock.draw();
                Phase::Stamping
            }
            Phase::Stamping => {
                self.certifier.shared.contexts.publish_stamp(self.me, self.cstamp);
                self.pi = self.pi.min(self.cstamp);
                Phase::Floor
            }
            // No snapshot has read what it overwrites.
            Phase::Floor if self.writes.is_empty() => Phase::Successors(0),
            Phase::Floor => {
                self.eta =
                    self.eta.max(ready!(self.certifier.shared.floor.poll()).min(self.cstamp - 1));
                Phase::Successors(0)
            }
            Phase::Successors(at) if at < self.reads.len() => {
                ready!(self.fold_successor(at));
                Phase::Successors(at + 1)
            }
            Phase::Successors(_) => Phase::Readers(0),
            Phase::Readers(at) if at < self.writes.len() => {
                ready!(self.fold_readers(at));
                Phase::Readers(at + 1)
            }
            Phase::Readers(_) => Phase::Predecessors(0),
            Phase::Predecessors(at) if at < self.writes.len() => {
                self.fold_predecessors(at);
                Phase::Predecessors(at + 1)
            }
            Phase::Predecessors(_) => {
                self.exclude()?;
                Phase::Certified
            }
            Phase::Raising(at) if at < self.reads.len() + self.gaps.len() => {
                self.raise(at);
                Phase::Raising(at + 1)
            }
            Phase::Raising(at) if at < self.reads.len() + self.gaps.len() + self.places.len() => {
                let hash = self.places[at - self.reads.len() - self.gaps.len()];
                self.certifier.shared.raise_place(hash, self.cstamp);
                Phase::Raising(at + 1)
            }
            Phase::Raising(_) => Phase::Leaving,
            Phase::Leaving => {
                self.leave();
                Phase::Finished
            }
            Phase::Conflicted => return Poll::Ready(Err(conflict(AGAIN))),
            phase @ (Phase::Certified | Phase::Publishing(_) | Phase::Finished) => phase,
        };
        Poll::Ready(Ok(()))
    }

    pub(crate) fn fold_successor(&mut self, at: usize) -> Poll<()> {
        let limit = if self.cstamp == 0 { STAMP_MAX } else { self.cstamp };
        if let Some(successor) = ready!(self.successor(&self.reads[at], limit)) {
            self.pi = self.pi.min(successor.pi);
        }
        Poll::Ready(())
    }

    /// Returns who overwrote a version that was read, with a stamp of at most `limit`.
    pub(crate) fn successor(&self, read: &Read<S>, limit: Stamp) -> Poll<Option<Successor>> {
        let Seen { owner, version, .. } = newest(&read.slot);
        if version != read.version {
            let successor = read.slot.successor(read.version);
            return Poll::Ready(Some(successor).filter(|successor| successor.end <= limit));
        }
        if owner == Owner::NONE || owner == self.me {
            return Poll::Ready(None);
        }
        match ready!(self.certifier.shared.contexts.fate(owner, limit)) {
            Fate::Later => Poll::Ready(None),
            Fate::Committed { c, pi } => Poll::Ready(Some(Successor { end: c, pi })),
            // It published or aborted: the slot says which.
            Fate::Gone => Poll::Pending,
        }
    }

    fn fold_readers(&mut self, at: usize) -> Poll<()> {
        let (contexts, write) = (&self.certifier.shared.contexts, &self.writes[at]);
        let mut latest = ready!(readers::latest(contexts, self.me, &write.slot, self.cstamp));
        if let Some(gap) = &write.gap {
            latest = latest.max(ready!(readers::latest(contexts, self.me, gap, self.cstamp)));
        }
        self.eta = self.eta.max(latest);
        Poll::Ready(())
    }

    /// Folds pstamps: after the bits of the same version.
    fn fold_predecessors(&mut self, at: usize) {
        let write = &self.writes[at];
        let mut latest = readers::pstamp(&write.slot);
        if let Some(gap) = &write.gap {
            latest = latest.max(readers::pstamp(gap));
        }
        self.eta = self.eta.max(latest);
    }

    fn raise(&self, at: usize) {
        match self.reads.get(at) {
            // The pstamp of a version that was replaced is of no use.
            Some(read) if newest(&read.slot).version != read.version => {}
            Some(read) => readers::raise(&read.slot, self.cstamp),
            None => readers::raise(&self.gaps[at - self.reads.len()], self.cstamp),
        }
    }

    fn leave(&self) {
        let contexts = &self.certifier.shared.contexts;
        self.reads.iter().for_each(|read| readers::leave(contexts, self.me, &read.slot));
        self.gaps.iter().for_each(|gap| readers::leave(contexts, self.me, gap));
        self.places.iter().for_each(|hash| self.certifier.shared.leave_place(self.me, *hash));
    }
}

impl<S: Stamps> Drop for Transaction<S> {
    fn drop(&mut self) {
        let contexts = &self.certifier.shared.contexts;
        match self.phase {
            Phase::Finished => {}
            // A panic amid publishing. Its slots stay owned: the database is poisoned.
            Phase::Publishing(_) | Phase::Raising(_) | Phase::Leaving => return,
            _ => {
                contexts.abort(self.me);
                self.leave();
                for write in &self.writes {
                    // Whoever wounded this transaction may own the slot now.
                    write.slot.visit_slot(&mut |words| {
                        let (mine, none) = (self.me.word(), Owner::NONE.word());
                        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
                        let _ = words.owner.compare_exchange(mine, none, success, failure);
                    });
                }
            }
        }
        contexts.free(self.me);
    }
}
