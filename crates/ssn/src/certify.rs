//! Certification: the steps of a transaction over slots, and the order of its commit.
//!
//! ```text
//!   begin   b := now
//!   read    look -> copy the image -> note: bit, fold eta, fold pi of an overwriter
//!   write   own: first updater wins; fold eta
//!   commit  enter COMMITTING -> draw c -> publish c -> floor
//!           -> overwriters of what it read (pi)
//!           -> readers, then pstamps, of what it overwrites (eta)
//!           -> pi <= eta: abort            | the engine validates and appends to the log
//!           -> DECIDED -> publish versions -> raise pstamps -> clear bits -> free the context
//! ```
//!
//! A plain write is a transaction that overwrites without a look at what it replaces. It wounds
//! ACTIVE owners instead of waiting for user code (rule T9), and never fails by the test: its pi is
//! c.
//!
//! **Invariants**
//! 1. All slots are owned, and all locks of other keyspaces held, before COMMITTING (rules T9,
//!    T11): a transaction that is COMMITTING waits only for smaller stamps.
//! 2. pi <= eta is tested after every read and write and in the commit. Equality aborts: it is the
//!    plainest write skew.
//! 3. Nothing is published before DECIDED, and what is DECIDED is published.
//! 4. A conflict is sticky: after it every call answers `Conflict`, and others wait for nothing of
//!    it.
//!
//! **Crash.** Stamps live in memory only. They start above what recovery has found.
//!
//! The steps are those of section 5.2 and Appendix A of the paper, as corrected by the preface of
//! the crate.

use std::task::{Poll, ready};
use std::time::Duration;

use spinney_base::shim::atomic::{Ordering, fence};
use spinney_base::shim::{spin_hint, thread};
use spinney_base::{Error, ErrorKind, Result, Runtime};

use crate::clock::{Clock, NEVER, STAMP_MAX, Stamp};
use crate::context::{Contexts, Fate, Owner};
use crate::readers;
use crate::safe::Floor;
use crate::stamps::{Readable, Stamps, Successor, Version, visit};

/// How long a second updater waits for the first: its commit takes less, but it may be descheduled.
/// Longer waits would add up where transactions own slots in different orders.
const OWN_WAIT: Duration = Duration::from_micros(50);

/// Yields after which a second updater gives up in any case: the time of a stepped runtime stands
/// still.
const OWN_YIELDS_MAX: u32 = 1_000;

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

/// What all transactions of a database share. Thread-safe.
#[derive(Debug)]
pub struct Certifier {
    pub(crate) clock: Clock,
    pub(crate) floor: Floor,
    pub(crate) contexts: Contexts,
}

impl Certifier {
    /// Makes a certifier whose first stamp is `last + 1`.
    #[must_use]
    pub fn above(last: Stamp) -> Self {
        let (clock, contexts) = (Clock::above(last), Contexts::default());
        Certifier { clock, floor: Floor::default(), contexts }
    }

    /// Returns the clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the contexts.
    #[must_use]
    pub fn contexts(&self) -> &Contexts {
        &self.contexts
    }

    /// Begins a transaction, as of now.
    ///
    /// # Errors
    /// `Conflict` when [`CONTEXTS`](crate::CONTEXTS) transactions run.
    pub fn begin<S: Stamps>(&self) -> Result<Transaction<'_, S>> {
        self.begin_as(false)
    }

    /// Begins a plain write: a transaction that reads nothing. Its caller runs no user code until
    /// the end, and orders plain writes of one key by other means.
    ///
    /// # Errors
    /// As [`Certifier::begin`].
    pub fn begin_plain<S: Stamps>(&self) -> Result<Transaction<'_, S>> {
        self.begin_as(true)
    }

    fn begin_as<S: Stamps>(&self, is_plain: bool) -> Result<Transaction<'_, S>> {
        let full = || Error::new(ErrorKind::Conflict, "too many transactions run at once");
        let (me, begin) = self.contexts.claim(&self.clock).ok_or_else(full)?;
        Ok(Transaction {
            certifier: self,
            me,
            is_plain,
            begin,
            cstamp: 0,
            pi: NEVER,
            eta: 0,
            first_end: NEVER,
            reads: Vec::new(),
            gaps: Vec::new(),
            writes: Vec::new(),
            phase: Phase::Running,
        })
    }
}

/// What a transaction sees of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Its own new image.
    Own,
    /// The version in the slot.
    Newest(Version),
    /// The version in the slot is too new: one of the older ones.
    Older,
}

/// What a transaction leaves in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// A value.
    Value,
    /// A removed key.
    Tombstone,
}

#[derive(Clone, Debug)]
struct Read<S> {
    slot: S,
    version: Version,
}

#[derive(Clone, Debug)]
struct Write<S: Stamps> {
    slot: S,
    /// The gap that the write fills, if it overwrites an absent version.
    gap: Option<S::Gap>,
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

/// One attempt of a transaction. Call [`look`](Transaction::look) and [`note`](Transaction::note)
/// for reads, [`own`](Transaction::own) for writes, then [`certify`](Transaction::certify),
/// [`decide`](Transaction::decide), [`publish`](Transaction::publish) and
/// [`finish`](Transaction::finish) in this order. Dropping it before `decide` aborts it.
///
/// Write skew is refused:
///
/// ```
/// use spinney_ssn::{Certifier, Image, Slot, Transaction, Version};
/// let ssn = Certifier::above(10);
/// let (x, y) = (Slot::new(Version::present(1)), Slot::new(Version::present(1)));
/// let (mut one, mut two) = (ssn.begin().unwrap(), ssn.begin().unwrap());
/// for slot in [&x, &y] {
///     one.note(&slot, Version::present(1)).unwrap();
///     two.note(&slot, Version::present(1)).unwrap();
/// }
/// assert!(two.poll_own(&&y, None).is_ready());
/// two.certify().unwrap();
/// two.decide();
/// two.publish(|_| Image::Value);
/// two.finish();
///
/// let owned = one.poll_own(&&x, None);
/// assert!(one.certify().is_err());
/// ```
#[derive(Debug)]
pub struct Transaction<'a, S: Stamps> {
    certifier: &'a Certifier,
    me: Owner,
    is_plain: bool,
    begin: Stamp,
    cstamp: Stamp,
    pi: Stamp,
    eta: Stamp,
    /// The least end of a version that was older when it was read.
    first_end: Stamp,
    reads: Vec<Read<S>>,
    gaps: Vec<S::Gap>,
    writes: Vec<Write<S>>,
    phase: Phase,
}

impl<S: Stamps> Transaction<'_, S> {
    /// Returns the begin stamp.
    #[must_use]
    pub fn begin_stamp(&self) -> Stamp {
        self.begin
    }

    /// Returns the commit stamp c, or 0 before it is drawn.
    #[must_use]
    pub fn commit_stamp(&self) -> Stamp {
        self.cstamp
    }

    /// Returns pi and eta as far as they are known; final once certified.
    #[must_use]
    pub fn pi_eta(&self) -> (Stamp, Stamp) {
        (self.pi, self.eta)
    }

    /// Returns which version of a slot the transaction sees. `Pending`: the owner commits at or
    /// before the begin stamp, or publishes; ask again after a yield.
    ///
    /// # Errors
    /// `Conflict`, as all later calls, once the transaction was wounded or failed a test.
    pub fn look(&mut self, slot: &S) -> Poll<Result<Look>> {
        self.still_active()?;
        let (owner, version, _) = newest(slot);
        if owner == self.me {
            return Poll::Ready(Ok(Look::Own));
        }
        if owner != Owner::NONE {
            let fate = ready!(self.certifier.contexts.fate(owner, self.begin));
            if owner.is_publishing() || fate != Fate::Later {
                return Poll::Pending;
            }
        }
        let is_visible = version.stamp() <= self.begin;
        Poll::Ready(Ok(if is_visible { Look::Newest(version) } else { Look::Older }))
    }

    /// Notes a read of a version that was seen in the slot, present or absent: sets the reader bit,
    /// then looks whether the version was overwritten meanwhile.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn note(&mut self, slot: &S, version: Version) -> Result<()> {
        self.still_active()?;
        readers::enter(&self.certifier.contexts, self.me, slot);
        self.reads.push(Read { slot: slot.clone(), version });
        self.eta = self.eta.max(version.stamp());
        // Not to be waited for: the commit looks again.
        let _ = self.fold_successor(self.reads.len() - 1);
        self.exclude()
    }

    /// Notes a read of an older version, whose overwriter is known: there is nothing to look at
    /// later.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn note_older(&mut self, version: Version, successor: Successor) -> Result<()> {
        self.still_active()?;
        self.eta = self.eta.max(version.stamp());
        self.pi = self.pi.min(successor.pi);
        self.first_end = self.first_end.min(successor.end);
        self.exclude()
    }

    /// Notes a read of a gap. Called before the keys of its leaf are read: whatever inserts later
    /// finds the bit, or changes the node that the engine validates.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn note_gap(&mut self, gap: &S::Gap) -> Result<()> {
        self.still_active()?;
        readers::enter(&self.certifier.contexts, self.me, gap);
        self.gaps.push(gap.clone());
        Ok(())
    }

    /// Moves the begin stamp to now, if all that was read is still what a reader sees then (rule
    /// T12). The engine takes what it needs of other keyspaces before, and validates node sets
    /// after. `Pending`: an overwriter commits; ask again after a yield.
    ///
    /// # Errors
    /// `Conflict` when a version that was read is overwritten.
    pub fn extend(&mut self) -> Poll<Result<()>> {
        self.still_active()?;
        // The stamp first: what is overwritten after the look has a greater one.
        let begin = self.certifier.clock.now();
        let mut overwritten = self.first_end <= begin;
        for read in &self.reads {
            overwritten |= ready!(self.successor(read, begin)).is_some();
        }
        if overwritten {
            return Poll::Ready(Err(self.conflict("what it has read was overwritten")));
        }
        self.begin = begin;
        self.certifier.contexts.move_begin(self.me, begin);
        Poll::Ready(Ok(()))
    }

    /// Becomes the owner of a slot: at the first update, and once for each slot. `gap` is the one
    /// that the key lies in, for a write that may overwrite an absent version. Waits for another
    /// owner up to 50 microseconds. A plain write wounds an ACTIVE one, and waits for one that
    /// commits as long as it takes.
    ///
    /// # Errors
    /// `Conflict` when another owns the slot, or its version is newer than the begin stamp.
    pub fn own(&mut self, slot: &S, gap: Option<&S::Gap>, runtime: &Runtime) -> Result<()> {
        let mut started = None;
        for yields in 0.. {
            if let Poll::Ready(owned) = self.poll_own(slot, gap) {
                return owned;
            }
            let now = runtime.now();
            let waited = now - *started.get_or_insert(now);
            if !self.is_plain && (waited > OWN_WAIT || yields > OWN_YIELDS_MAX) {
                break;
            }
            thread::yield_now();
        }
        Err(self.conflict("another transaction updates the record"))
    }

    /// Tries to become the owner of a slot, as [`own`](Transaction::own) does. `Pending`: another
    /// owns it.
    ///
    /// # Errors
    /// `Conflict` when its version is newer than the begin stamp.
    pub fn poll_own(&mut self, slot: &S, gap: Option<&S::Gap>) -> Poll<Result<()>> {
        self.still_active()?;
        if newest(slot).0 == self.me {
            return Poll::Ready(Ok(()));
        }
        let mut is_mine = false;
        visit(slot, &mut |place| is_mine = self.take(place));
        if !is_mine {
            return Poll::Pending;
        }
        let (_, version, place) = newest(slot);
        let gap = gap.filter(|_| version.is_absent()).cloned();
        self.writes.push(Write { slot: slot.clone(), gap });
        if !self.is_plain && version.stamp() > self.begin {
            return Poll::Ready(Err(self.conflict("another transaction updated the record first")));
        }
        self.eta = self.eta.max(place.pstamp().load(Ordering::Acquire));
        Poll::Ready(self.exclude())
    }

    /// Takes a slot that has no owner, or one that is aborted or may be wounded.
    fn take(&self, place: &S) -> bool {
        let contexts = &self.certifier.contexts;
        let word = place.owner().load(Ordering::Acquire);
        let owner = Owner::from_word(word);
        if owner == self.me {
            return true;
        }
        let is_free = owner == Owner::NONE
            || contexts.is_aborted(owner)
            || (self.is_plain && contexts.wound(owner));
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        is_free && place.owner().compare_exchange(word, self.me.word(), success, failure).is_ok()
    }

    /// Draws the commit stamp and tests that no cycle passes through this transaction. Waits for
    /// transactions that commit with smaller stamps. Before it, the caller has locked all that it
    /// locks elsewhere; after it, a caller that read or wrote elsewhere asks [`reads_are_current`],
    /// validates and appends.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn certify(&mut self) -> Result<()> {
        while self.phase != Phase::Certified {
            wait(|| self.step())?;
        }
        Ok(())
    }

    /// Makes the commit final: after the log has it. No error may follow.
    ///
    /// # Panics
    /// When the transaction is not certified.
    pub fn decide(&mut self) {
        assert_eq!(self.phase, Phase::Certified, "only what is certified is decided");
        self.certifier.contexts.decide(self.me, self.pi);
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
        let (_, version, place) = newest(&write.slot);
        place.keep(version, Successor { end: self.cstamp, pi: self.pi });
        place.readers().store(0, Ordering::Release);
        place.owner().store(self.me.publishing().word(), Ordering::Release);
        // The image changes after the mark is seen.
        fence(Ordering::Release);
        let version = match install(&place) {
            Image::Value => Version::present(self.cstamp),
            Image::Tombstone => Version::absent(self.cstamp),
        };
        place.pstamp().store(self.cstamp, Ordering::Release);
        place.cstamp().store(version.word(), Ordering::Release);
        place.owner().store(Owner::NONE.word(), Ordering::Release);
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
        let Certifier { clock, floor, contexts } = self.certifier;
        self.phase = match self.phase {
            Phase::Running => {
                if !contexts.commit(self.me) {
                    return Poll::Ready(Err(self.conflict("a plain write took its place")));
                }
                Phase::Drawing
            }
            Phase::Drawing => {
                self.cstamp = clock.draw();
                Phase::Stamping
            }
            Phase::Stamping => {
                contexts.publish_stamp(self.me, self.cstamp);
                self.pi = self.pi.min(self.cstamp);
                Phase::Floor
            }
            Phase::Floor => {
                self.eta = self.eta.max(ready!(floor.poll()).min(self.cstamp - 1));
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

    fn fold_successor(&mut self, at: usize) -> Poll<()> {
        let limit = if self.cstamp == 0 { STAMP_MAX } else { self.cstamp };
        if let Some(successor) = ready!(self.successor(&self.reads[at], limit)) {
            self.pi = self.pi.min(successor.pi);
        }
        Poll::Ready(())
    }

    /// Returns who overwrote a version that was read, with a stamp of at most `limit`.
    fn successor(&self, read: &Read<S>, limit: Stamp) -> Poll<Option<Successor>> {
        let (owner, version, place) = newest(&read.slot);
        if version != read.version {
            let successor = place.successor(read.version);
            return Poll::Ready(Some(successor).filter(|successor| successor.end <= limit));
        }
        if owner == Owner::NONE || owner == self.me {
            return Poll::Ready(None);
        }
        match ready!(self.certifier.contexts.fate(owner, limit)) {
            Fate::Later => Poll::Ready(None),
            Fate::Committed { c, pi } => Poll::Ready(Some(Successor { end: c, pi })),
            // It published or aborted: the slot says which.
            Fate::Gone => Poll::Pending,
        }
    }

    fn fold_readers(&mut self, at: usize) -> Poll<()> {
        let (contexts, write) = (&self.certifier.contexts, &self.writes[at]);
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
        let mut latest = pstamp(&write.slot);
        if let Some(gap) = &write.gap {
            latest = latest.max(pstamp(gap));
        }
        self.eta = self.eta.max(latest);
    }

    fn raise(&self, at: usize) {
        match self.reads.get(at) {
            // The pstamp of a version that was replaced is of no use.
            Some(read) if newest(&read.slot).1 != read.version => {}
            Some(read) => readers::raise(&read.slot, self.cstamp),
            None => readers::raise(&self.gaps[at - self.reads.len()], self.cstamp),
        }
    }

    fn leave(&self) {
        let contexts = &self.certifier.contexts;
        self.reads.iter().for_each(|read| readers::leave(contexts, self.me, &read.slot));
        self.gaps.iter().for_each(|gap| readers::leave(contexts, self.me, gap));
    }

    fn still_active(&mut self) -> Result<()> {
        let is_open = matches!(self.phase, Phase::Running | Phase::Conflicted);
        assert!(is_open, "a transaction that commits reads and writes nothing more");
        if self.phase == Phase::Running && self.certifier.contexts.is_active(self.me) {
            return Ok(());
        }
        Err(self.conflict(AGAIN))
    }

    fn exclude(&mut self) -> Result<()> {
        if self.pi <= self.eta {
            return Err(self.conflict("it would have to come before and after another transaction"));
        }
        Ok(())
    }

    /// Aborts, before anything is undone: nobody waits for what is undone.
    fn conflict(&mut self, why: &str) -> Error {
        self.certifier.contexts.abort(self.me);
        self.phase = Phase::Conflicted;
        conflict(why)
    }
}

impl<S: Stamps> Drop for Transaction<'_, S> {
    fn drop(&mut self) {
        let contexts = &self.certifier.contexts;
        match self.phase {
            Phase::Finished => {}
            // A panic amid publishing. Its slots stay owned: the database is poisoned.
            Phase::Publishing(_) | Phase::Raising(_) | Phase::Leaving => return,
            _ => {
                contexts.abort(self.me);
                self.leave();
                for write in &self.writes {
                    // Whoever wounded this transaction may own the slot now.
                    visit(&write.slot, &mut |place| {
                        let (mine, none) = (self.me.word(), Owner::NONE.word());
                        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
                        let _ = place.owner().compare_exchange(mine, none, success, failure);
                    });
                }
            }
        }
        contexts.free(self.me);
    }
}

const AGAIN: &str = "the transaction was aborted";

fn conflict(why: &str) -> Error {
    Error::new(ErrorKind::Conflict, why)
}

/// Loads owner, then version, of a slot where it is now.
fn newest<S: Stamps>(slot: &S) -> (Owner, Version, S) {
    let mut found = (Owner::NONE, Version::present(0), slot.clone());
    visit(slot, &mut |place| {
        let owner = Owner::from_word(place.owner().load(Ordering::Acquire));
        let version = Version::from_word(place.cstamp().load(Ordering::Acquire));
        found = (owner, version, place.clone());
    });
    found
}

fn pstamp<R: Readable>(place: &R) -> Stamp {
    let mut greatest = 0;
    visit(place, &mut |place| greatest = greatest.max(place.pstamp().load(Ordering::Acquire)));
    greatest
}
