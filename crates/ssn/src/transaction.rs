//! A transaction before its commit: what it reads and updates, at one begin stamp.
//!
//! ```text
//!   read    look -> the engine copies the image -> note: bit, fold eta, fold pi of an overwriter
//!           Older -> the engine finds the version -> note_older: fold both, nothing is left to do
//!   scan    note_gap -> note what the leaf has -> the engine validates its node set in the commit
//!   write   own: the first updater wins; fold eta
//! ```
//!
//! A *plain write* is a transaction that overwrites what is newest and reads nothing. It wounds
//! ACTIVE owners instead of waiting for user code (rule T9). The test never refuses it, for its pi
//! is c.
//!
//! **Invariants**
//! 1. Each version that was read is the newest with a stamp of at most the begin stamp.
//! 2. pi <= eta is tested after every read and write.
//! 3. A conflict is sticky: every later call answers `Conflict`, and no other transaction waits for
//!    anything of this one.
//! 4. eta begins with the begin stamp: what has ended before this transaction began comes before it, too, so histories
//!    are strict. Without that, one thread may see its own reads out of order.
//! 5. A transaction that creates the slot of a key in a gap that it has read must own the slot, or
//!    note its absent version: the node set does not tell it of others that use a slot of its own
//!    making.
//!
//! Section 5.2 and Appendix A (`serializable_read`) of the paper.

use std::task::{Poll, ready};
use std::time::Duration;

use spinney_base::shim::atomic::{AtomicU64, Ordering};
use spinney_base::shim::thread;
use spinney_base::{Error, ErrorKind, Result, Runtime};

use crate::certify::{Certifier, Phase};
use crate::clock::{NEVER, Stamp};
use crate::context::{Fate, Owner};
use crate::readers;
use crate::stamps::{Seen, Stamps, Successor, Version, newest};

/// How long a second updater waits for the first: its commit takes less, but it may be descheduled.
/// Longer waits would add up where transactions own slots in different orders.
const OWN_WAIT: Duration = Duration::from_micros(50);

/// Yields after which a second updater gives up in any case: the time of a stepped runtime stands
/// still.
const OWN_YIELDS_MAX: u32 = 1_000;

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

/// What an engine has to know of a transaction to find the versions that it sees.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// The transaction.
    pub me: Owner,
    /// It sees versions with stamps up to this one.
    pub begin: Stamp,
}

#[derive(Clone, Debug)]
pub(crate) struct Read<S> {
    pub(crate) slot: S,
    pub(crate) version: Version,
}

#[derive(Clone, Debug)]
pub(crate) struct Write<S: Stamps> {
    pub(crate) slot: S,
    /// The gap that the write fills, if it overwrites an absent version.
    pub(crate) gap: Option<S::Gap>,
}

/// Reads that a transaction has room for from the start.
const EXPECTED: usize = 32;

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
pub struct Transaction<S: Stamps> {
    pub(crate) certifier: Certifier,
    pub(crate) me: Owner,
    pub(crate) is_plain: bool,
    pub(crate) begin: Stamp,
    pub(crate) cstamp: Stamp,
    pub(crate) pi: Stamp,
    pub(crate) eta: Stamp,
    /// The least end of a version that was older when it was read.
    pub(crate) first_end: Stamp,
    pub(crate) reads: Vec<Read<S>>,
    pub(crate) gaps: Vec<S::Gap>,
    /// Hashes of places on the board.
    pub(crate) places: Vec<u64>,
    pub(crate) writes: Vec<Write<S>>,
    pub(crate) phase: Phase,
}

impl Certifier {
    /// Begins a transaction, as of now. Its caller has taken the stamps of other keyspaces before
    /// (rule T12).
    ///
    /// # Errors
    /// `Conflict` when [`CONTEXTS`](crate::CONTEXTS) transactions run.
    pub fn begin<S: Stamps>(&self) -> Result<Transaction<S>> {
        self.begin_as(false)
    }

    /// Begins a plain write: a transaction that reads nothing. Its caller runs no user code until
    /// the end, and orders plain writes of one key by other means.
    ///
    /// # Errors
    /// As [`Certifier::begin`].
    pub fn begin_plain<S: Stamps>(&self) -> Result<Transaction<S>> {
        self.begin_as(true)
    }

    fn begin_as<S: Stamps>(&self, is_plain: bool) -> Result<Transaction<S>> {
        let full =
            || Error::new(ErrorKind::Conflict, "too many transactions over versions run at once");
        let (me, begin) =
            self.shared.contexts.claim(&self.shared.clock, is_plain).ok_or_else(full)?;
        Ok(Transaction {
            certifier: self.clone(),
            me,
            is_plain,
            begin,
            cstamp: 0,
            pi: NEVER,
            // All that ended before comes before it.
            eta: begin,
            first_end: NEVER,
            reads: Vec::new(),
            gaps: Vec::new(),
            places: Vec::with_capacity(if is_plain { 0 } else { EXPECTED }),
            writes: Vec::new(),
            phase: Phase::Running,
        })
    }
}

impl<S: Stamps> Transaction<S> {
    /// Returns the begin stamp.
    #[must_use]
    pub fn begin_stamp(&self) -> Stamp {
        self.begin
    }

    /// Returns what an engine has to know to find the versions that the transaction sees.
    #[must_use]
    pub fn sight(&self) -> Sight {
        Sight { me: self.me, begin: self.begin }
    }

    /// Passes while the transaction may commit.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn check(&mut self) -> Result<()> {
        self.still_active()
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
        let Seen { owner, version, .. } = newest(slot);
        if owner == self.me {
            return Poll::Ready(Ok(Look::Own));
        }
        if owner != Owner::NONE {
            let fate = ready!(self.certifier.shared.contexts.fate(owner, self.begin));
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
        readers::enter(&self.certifier.shared.contexts, self.me, slot);
        self.reads.push(Read { slot: slot.clone(), version });
        self.eta = self.eta.max(version.stamp());
        // Not to be waited for: the commit looks again.
        let _ = self.fold_successor(self.reads.len() - 1);
        self.exclude()
    }

    /// Notes a read of an older version, whose overwriter is known: there is nothing to look at
    /// later. Its creator's stamp is in the eta already, for that begins with the begin stamp.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn note_older(&mut self, successor: Successor) -> Result<()> {
        self.still_active()?;
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
        readers::enter(&self.certifier.shared.contexts, self.me, gap);
        self.gaps.push(gap.clone());
        Ok(())
    }

    /// Notes on the board that the transaction is about to read what has this hash. The engine remembers what it was,
    /// and tells at the commit who overwrote it ([`precede`](Transaction::precede)).
    pub fn note_place(&mut self, hash: u64) {
        self.certifier.shared.enter_place(self.me, hash);
        self.places.push(hash);
    }

    /// Returns the present moment, to which the begin stamp is about to move by
    /// [`extend_to`](Transaction::extend_to). Versions that are seen there stay until then.
    #[must_use]
    pub fn moment(&self) -> Stamp {
        self.certifier.shared.contexts.begin_moves(self.me);
        self.certifier.shared.clock.now()
    }

    /// Moves the begin stamp to a later one, the [`moment`](Transaction::moment) that was taken, once the engine has found
    /// that nothing which it noted on the board was
    /// overwritten up to there.
    ///
    /// # Errors
    /// `Conflict` when a version that was read was older already.
    pub fn extend_to(&mut self, begin: Stamp) -> Result<()> {
        self.still_active()?;
        if self.first_end <= begin {
            return Err(self.conflict("what it has read was overwritten"));
        }
        self.begin = begin;
        // As if it began now: cells tell nothing that lies below the begin stamps of all.
        self.eta = self.eta.max(begin);
        self.certifier.shared.contexts.move_begin(self.me, begin);
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
        let begin = self.moment();
        let mut is_current = self.first_end > begin;
        for read in &self.reads {
            is_current &= ready!(self.successor(read, begin)).is_none();
        }
        if !is_current {
            return Poll::Ready(Err(self.conflict("what it has read was overwritten")));
        }
        Poll::Ready(self.extend_to(begin))
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
        if newest(slot).owner == self.me {
            return Poll::Ready(Ok(()));
        }
        let mut is_mine = false;
        slot.visit_slot(&mut |words| is_mine = self.take(words.owner));
        if !is_mine {
            return Poll::Pending;
        }
        let Seen { version, pstamp, .. } = newest(slot);
        let gap = gap.filter(|_| version.is_absent()).cloned();
        self.writes.push(Write { slot: slot.clone(), gap });
        if !self.is_plain && version.stamp() > self.begin {
            return Poll::Ready(Err(self.conflict("another transaction updated the record first")));
        }
        self.eta = self.eta.max(pstamp);
        Poll::Ready(self.exclude())
    }

    /// Makes room for this number of writes more.
    pub fn expect_writes(&mut self, writes: usize) {
        self.writes.reserve(writes);
    }

    /// Takes a slot that has no owner, or one that is aborted or may be wounded.
    fn take(&self, place: &AtomicU64) -> bool {
        let contexts = &self.certifier.shared.contexts;
        let word = place.load(Ordering::Acquire);
        let owner = Owner::from_word(word);
        if owner == self.me {
            return true;
        }
        let is_free = owner == Owner::NONE
            || contexts.is_aborted(owner)
            || (self.is_plain && contexts.wound(owner));
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        is_free && place.compare_exchange(word, self.me.word(), success, failure).is_ok()
    }

    fn still_active(&mut self) -> Result<()> {
        let is_open = matches!(self.phase, Phase::Running | Phase::Conflicted);
        assert!(is_open, "a transaction that commits reads and writes nothing more");
        if self.phase == Phase::Running && self.certifier.shared.contexts.is_active(self.me) {
            return Ok(());
        }
        Err(self.conflict(AGAIN))
    }

    pub(crate) fn exclude(&mut self) -> Result<()> {
        if self.pi <= self.eta {
            return Err(self.conflict("it would have to come before and after another transaction"));
        }
        Ok(())
    }

    /// Aborts, before anything is undone: nobody waits for what is undone.
    pub(crate) fn conflict(&mut self, why: &str) -> Error {
        self.certifier.shared.contexts.abort(self.me);
        self.phase = Phase::Conflicted;
        conflict(why)
    }
}

pub(crate) const AGAIN: &str =
    "the transaction was ended: versions that it may see take memory that others need";

pub(crate) fn conflict(why: &str) -> Error {
    Error::new(ErrorKind::Conflict, why)
}
