//! Contexts: what others may know of a running transaction.
//!
//! ```text
//!   context, one cache line            owner word of a slot
//!   63               3 2    0          63          11 10     1  0
//!   +-----------------+------+         +-------------+--------+---+
//!   | generation      | state|         | generation  | index  | P |   P = publishing
//!   +-----------------+------+         +-------------+--------+---+   0 = no owner
//!   | begin | c | pi         |
//!
//!   FREE -> ACTIVE -> COMMITTING -> DECIDED -> FREE     c is 0 until it is drawn and published
//!              |           |                    ^
//!              +-----------+----> ABORTED ------+       (by its own thread, or a wound)
//! ```
//!
//! **Invariants**
//! 1. A claim adds one to the generation. An owner word names one transaction for all time.
//! 2. Only one compare-and-swap leaves ACTIVE: a wound and a commit exclude each other (rule T9).
//! 3. COMMITTING is stored before c is drawn. A transaction that drew a greater stamp never sees
//!    ACTIVE.
//! 4. pi is final before DECIDED. A context is freed after all its stamps are in versions, or
//!    undone.
//!
//! **Concurrency.** A field is read between two looks at the generation. If the generation differs,
//! the transaction is gone, and all that it left is in the stamps of the slots. Fields are stored
//! with Release after the claim, so a reader that sees a later field sees the later generation.
//!
//! The paper has a global table of active transactions under latches instead; after ERMIA's
//! contexts.

use std::task::Poll;

use spinney_base::shim::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::clock::{Clock, NEVER, Stamp};
use crate::readers::OWN_BITS;

/// Contexts of a database: how many transactions may run at once. An owner word has 10 bits for the
/// index. With fewer, threads that wait between two calls would use them up; one takes 64 bytes.
pub const CONTEXTS: usize = 1024;

/// Contexts of these that transactions leave to plain writes.
const PLAIN_CONTEXTS: usize = 64;

const FREE: u64 = 0;
const ACTIVE: u64 = 1;
const COMMITTING: u64 = 2;
const DECIDED: u64 = 3;
const ABORTED: u64 = 4;
const STATE_BITS: u32 = 3;
const STATE: u64 = (1 << STATE_BITS) - 1;

const PUBLISHING: u64 = 1;
const INDEX_BITS: u32 = 10;
const GENERATION_SHIFT: u32 = INDEX_BITS + 1;
const _: () = assert!(CONTEXTS == 1 << INDEX_BITS);

/// Names one transaction: a context and its generation. The word 0 names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u64);

impl Owner {
    /// The owner of a slot that nobody updates.
    pub const NONE: Owner = Owner(0);

    /// Reads the owner word of a slot.
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        Owner(word)
    }

    /// Returns the word for a slot.
    #[must_use]
    pub fn word(self) -> u64 {
        self.0
    }

    /// Returns whether the new version of the slot is being installed.
    #[must_use]
    pub fn is_publishing(self) -> bool {
        self.0 & PUBLISHING != 0
    }

    pub(crate) fn publishing(self) -> Self {
        Owner(self.0 | PUBLISHING)
    }

    pub(crate) fn index(self) -> usize {
        (self.0 >> 1) as usize % CONTEXTS
    }

    fn generation(self) -> u64 {
        self.0 >> GENERATION_SHIFT
    }

    fn of(index: usize, generation: u64) -> Self {
        Owner(generation << GENERATION_SHIFT | (index as u64) << 1)
    }
}

/// What became of a transaction, as far as stamps up to a limit are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It aborted, or if it commits, its c is above the limit.
    Later,
    /// It is decided, with these final stamps; c is at most the limit. Some of its versions may not
    /// be published yet.
    Committed {
        /// Commit stamp.
        c: Stamp,
        /// Least stamp of what must follow it.
        pi: Stamp,
    },
    /// Its context was freed: the stamps of slots say all.
    Gone,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Context {
    word: AtomicU64,
    begin: AtomicU64,
    cstamp: AtomicU64,
    pi: AtomicU64,
    /// The generation whose begin stamp `begin` is; 0 while it moves.
    begun: AtomicU64,
}

/// The begin stamps of transactions that run, as of a moment: they tell which older versions are seen.
#[derive(Clone, Debug)]
pub struct Running {
    /// Drawn last before the others were looked at: what begins later begins there or above.
    now: Stamp,
    horizon: Stamp,
    /// Ascending; `None` if one of them was not known.
    begins: Option<Vec<Stamp>>,
}

impl Running {
    /// Returns the least begin stamp, or the newest stamp if none runs; see [`Contexts::horizon`].
    #[must_use]
    pub fn horizon(&self) -> Stamp {
        self.horizon
    }

    /// Whether a transaction may see a version that was overwritten at `end`.
    ///
    /// ```
    /// # use spinney_ssn::{Certifier, Slot};
    /// let ssn = Certifier::above(10);
    /// let reader = ssn.begin::<&Slot>().unwrap();
    /// (0..3).for_each(|_| _ = ssn.clock().draw());
    /// let running = ssn.running();
    /// assert!(running.may_see(8, 11));
    /// assert!(!running.may_see(11, 13), "nobody began in between");
    /// assert!(running.may_see(13, 14), "the next transaction does");
    /// ```
    #[must_use]
    pub fn may_see(&self, version: Stamp, end: Stamp) -> bool {
        let Some(begins) = &self.begins else { return end > self.horizon };
        let at = begins.partition_point(|begin| *begin < version);
        end > self.now || begins.get(at).is_some_and(|begin| *begin < end)
    }
}

/// The contexts of a database. Thread-safe.
#[derive(Debug)]
pub struct Contexts {
    contexts: Box<[Context]>,
    /// No context at or above this index was ever claimed.
    high: AtomicUsize,
    /// Contexts below this index have a reader bit of their own. 63, but for tests.
    pub(crate) own_bits: usize,
}

impl Default for Contexts {
    fn default() -> Self {
        Contexts::sized(CONTEXTS, OWN_BITS)
    }
}

impl Contexts {
    pub(crate) fn sized(contexts: usize, own_bits: usize) -> Self {
        assert!(contexts <= CONTEXTS && own_bits <= OWN_BITS);
        let contexts = (0..contexts).map(|_| Context::default()).collect();
        Contexts { contexts, high: AtomicUsize::new(0), own_bits }
    }

    /// Claims the first free context for a transaction and gives it a begin stamp; `None` if all
    /// are taken. Low indices have reader bits of their own, so they are tried first. Some contexts
    /// are for plain writes alone, which give them back soon.
    pub(crate) fn claim(&self, clock: &Clock, is_plain: bool) -> Option<(Owner, Stamp)> {
        let plain = if is_plain { 0 } else { PLAIN_CONTEXTS.min(self.contexts.len() / 4) };
        let open = self.contexts.len() - plain;
        for (index, context) in self.contexts[..open].iter().enumerate() {
            let word = context.word.load(Ordering::Relaxed);
            if word & STATE != FREE {
                continue;
            }
            let claimed = (word + (1 << STATE_BITS)) | ACTIVE;
            let claim =
                context.word.compare_exchange(word, claimed, Ordering::SeqCst, Ordering::Relaxed);
            if claim.is_err() {
                continue;
            }
            if self.high() <= index {
                self.high.fetch_max(index + 1, Ordering::SeqCst);
            }
            context.cstamp.store(0, Ordering::Release);
            context.pi.store(NEVER, Ordering::Release);
            // Until this store the begin stamp is that of an earlier transaction, which is smaller.
            let begin = clock.now();
            context.begin.store(begin, Ordering::SeqCst);
            context.begun.store(claimed >> STATE_BITS, Ordering::SeqCst);
            return Some((Owner::of(index, claimed >> STATE_BITS), begin));
        }
        None
    }

    /// Returns the least begin stamp of running transactions, or the newest stamp if none runs. A
    /// version that was overwritten at or before it is invisible to all of them, and to all later
    /// ones.
    ///
    /// ```
    /// # use spinney_ssn::{Certifier, Slot};
    /// let ssn = Certifier::above(10);
    /// assert_eq!(ssn.contexts().horizon(ssn.clock()), 10);
    /// let transaction = ssn.begin::<&Slot>().unwrap();
    /// let _ = ssn.clock().draw();
    /// assert_eq!(ssn.contexts().horizon(ssn.clock()), 10);
    /// drop(transaction);
    /// assert_eq!(ssn.contexts().horizon(ssn.clock()), 11);
    /// ```
    #[must_use]
    pub fn horizon(&self, clock: &Clock) -> Stamp {
        // The clock first: a claim that the scan misses takes its begin stamp later.
        let now = clock.now();
        self.begins().fold(now, |least, (begin, _)| least.min(begin))
    }

    /// Returns the begin stamps of running transactions, and whether each is known: one that is not is at least this.
    fn begins(&self) -> impl Iterator<Item = (Stamp, bool)> {
        self.contexts[..self.high()].iter().filter_map(|context| {
            let word = context.word.load(Ordering::SeqCst);
            let state = word & STATE;
            let is_known = context.begun.load(Ordering::SeqCst) == word >> STATE_BITS;
            // An aborted transaction sees nothing any more.
            let sees = state != FREE && state != ABORTED;
            sees.then(|| (context.begin.load(Ordering::SeqCst), is_known))
        })
    }

    /// Returns the begin stamps of running transactions.
    #[must_use]
    pub fn running(&self, clock: &Clock) -> Running {
        // The clock first, as in `horizon`; nor does a begin stamp that moves meanwhile move below it.
        let now = clock.now();
        let (mut horizon, mut begins) = (now, Some(Vec::new()));
        for (begin, is_known) in self.begins() {
            horizon = horizon.min(begin);
            begins = begins.filter(|_| is_known);
            begins.iter_mut().for_each(|begins| begins.push(begin));
        }
        begins.iter_mut().for_each(|begins| begins.sort_unstable());
        Running { now, horizon, begins }
    }

    /// Returns what became of a transaction, as far as stamps up to `limit` are concerned.
    /// `Pending`: it is committing, and its c is not known or at most `limit`; ask again after a
    /// yield.
    pub fn fate(&self, owner: Owner, limit: Stamp) -> Poll<Fate> {
        let context = &self.contexts[owner.index()];
        let state = self.state(owner);
        let cstamp = context.cstamp.load(Ordering::Acquire);
        let pi = context.pi.load(Ordering::Acquire);
        if self.state(owner).is_none() {
            return Poll::Ready(Fate::Gone);
        }
        match state {
            None => Poll::Ready(Fate::Gone),
            Some(COMMITTING) if cstamp == 0 || cstamp <= limit => Poll::Pending,
            Some(DECIDED) if cstamp <= limit => Poll::Ready(Fate::Committed { c: cstamp, pi }),
            Some(_) => Poll::Ready(Fate::Later),
        }
    }

    /// Returns the c of a transaction that commits or is decided, if it is at most `limit`, else 0. `Pending`: it commits, and
    /// its c is not known.
    pub(crate) fn drawn(&self, owner: Owner, limit: Stamp) -> Poll<Stamp> {
        let state = self.state(owner);
        let cstamp = self.contexts[owner.index()].cstamp.load(Ordering::Acquire);
        match state {
            // Its stamps are where they belong.
            _ if self.state(owner).is_none() => Poll::Ready(0),
            Some(COMMITTING) if cstamp == 0 => Poll::Pending,
            Some(COMMITTING | DECIDED) if cstamp <= limit => Poll::Ready(cstamp),
            _ => Poll::Ready(0),
        }
    }

    /// Aborts a transaction that is still ACTIVE, on behalf of a plain write (rule T9). Returns
    /// whether it is aborted now.
    pub(crate) fn wound(&self, owner: Owner) -> bool {
        self.leave_active(owner, ABORTED) || self.is_aborted(owner)
    }

    /// Aborts the transaction that began first, if it is still ACTIVE: what it may see takes memory that
    /// others need. It learns so at its next call. Returns whether one was aborted.
    ///
    /// ```
    /// # use spinney_ssn::{Certifier, Slot, Version};
    /// let (ssn, slot) = (Certifier::above(10), Slot::new(Version::present(1)));
    /// let mut transaction = ssn.begin::<&Slot>().unwrap();
    /// assert!(ssn.contexts().abort_oldest());
    /// assert!(transaction.note(&&slot, slot.version()).is_err());
    /// ```
    pub fn abort_oldest(&self) -> bool {
        let running = (0..self.high()).map(|index| (self.at(index), &self.contexts[index]));
        let active = running.filter(|(owner, _)| self.is_active(*owner));
        let begun =
            |(owner, context): (Owner, &Context)| (context.begin.load(Ordering::SeqCst), owner);
        let oldest = active.map(begun).min_by_key(|(begin, _)| *begin);
        oldest.is_some_and(|(_, owner)| self.wound(owner))
    }

    /// Whether a transaction runs that shares its reader bit with others.
    pub(crate) fn are_shared_used(&self) -> bool {
        let shared = self.contexts[..self.high()].iter().skip(self.own_bits);
        shared.map(|context| context.word.load(Ordering::SeqCst)).any(|word| word & STATE != FREE)
    }

    /// Enters COMMITTING. Returns false if the transaction was wounded.
    pub(crate) fn commit(&self, me: Owner) -> bool {
        self.leave_active(me, COMMITTING)
    }

    fn leave_active(&self, owner: Owner, state: u64) -> bool {
        let generation = owner.generation() << STATE_BITS;
        let word = &self.contexts[owner.index()].word;
        let (from, to) = (generation | ACTIVE, generation | state);
        word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Publishes the commit stamp of a transaction that is COMMITTING.
    pub(crate) fn publish_stamp(&self, me: Owner, cstamp: Stamp) {
        self.contexts[me.index()].cstamp.store(cstamp, Ordering::Release);
    }

    /// Publishes the final pi, then DECIDED.
    pub(crate) fn decide(&self, me: Owner, pi: Stamp) {
        assert_eq!(self.state(me), Some(COMMITTING), "nobody wounds what commits");
        self.contexts[me.index()].pi.store(pi, Ordering::Release);
        self.store_state(me, DECIDED);
    }

    pub(crate) fn abort(&self, me: Owner) {
        self.store_state(me, ABORTED);
    }

    pub(crate) fn free(&self, me: Owner) {
        self.store_state(me, FREE);
    }

    /// Notes that a begin stamp is about to move to one that is yet to be taken: what may be seen there stays.
    pub(crate) fn begin_moves(&self, me: Owner) {
        self.contexts[me.index()].begun.store(0, Ordering::SeqCst);
    }

    pub(crate) fn move_begin(&self, me: Owner, begin: Stamp) {
        let context = &self.contexts[me.index()];
        context.begin.store(begin, Ordering::SeqCst);
        context.begun.store(me.generation(), Ordering::SeqCst);
    }

    pub(crate) fn is_active(&self, owner: Owner) -> bool {
        self.state(owner) == Some(ACTIVE)
    }

    pub(crate) fn is_aborted(&self, owner: Owner) -> bool {
        self.state(owner) == Some(ABORTED)
    }

    /// Returns the transaction that has the context with this index now.
    pub(crate) fn at(&self, index: usize) -> Owner {
        Owner::of(index, self.contexts[index].word.load(Ordering::Acquire) >> STATE_BITS)
    }

    pub(crate) fn high(&self) -> usize {
        self.high.load(Ordering::SeqCst)
    }

    /// State of a transaction, or `None` if its context has another generation.
    fn state(&self, owner: Owner) -> Option<u64> {
        let word = self.contexts[owner.index()].word.load(Ordering::Acquire);
        (word >> STATE_BITS == owner.generation() && word & STATE != FREE).then_some(word & STATE)
    }

    fn store_state(&self, me: Owner, state: u64) {
        let word = me.generation() << STATE_BITS | state;
        self.contexts[me.index()].word.store(word, Ordering::Release);
    }
}
