//! The lock table: 64 Ki stripes, over which the keys of all keyspaces are spread
//! (Tiered-Indexing, section 5.1).
//!
//! A writer locks the stripes of its keys, appends to the log, applies, and unlocks with the stamp
//! of its write. A reader takes its stripe's stamp, reads, and validates. So for each key the order
//! of applying is the order of the log, and a batch is seen whole (rules P3 and P5).
//!
//! ```text
//!  63                                  2   1   0
//! +--------------------------------------+---+---+
//! | number of the last write             | C | L |   L = a writer holds the stripe
//! +--------------------------------------+---+---+   C = 0: an LSN; 1: a draw of the other clock
//! ```
//!
//! A stamp says when: a batch with a logged part stamps all its stripes with its LSN, one without
//! draws from a clock of the table. The two clocks are never compared. A [`Moment`] is a reading of
//! both: each stripe that is unlocked and whose stamp is within it shows what was there then.
//!
//! **Invariants**
//! 1. Stripes of one writer are locked in ascending order, each once, so writers never wait for
//!    each other in a circle.
//! 2. Nobody does I/O, runs user code or waits for anything but a latch while holding a stripe.
//! 3. A stamp never comes back to a stripe: an LSN and a draw belong to one writer. A writer that
//!    changed nothing leaves the stamp that was there.
//! 4. A write's stamp is drawn while its stripes are locked. So a stamp within a moment belongs to a
//!    write that is applied, or whose stripes are still locked.
//!
//! **Concurrency.** A stripe is locked by a sequentially consistent exchange. A writer that then
//! looks at other stripes puts a sequentially consistent fence between (rule T3).

use xxhash_rust::xxh3::xxh3_64_with_seed;

#[cfg(feature = "loom")]
use loom::{
    sync::atomic::{AtomicU64, Ordering, fence},
    thread,
};
use spinney_base::shim::spin_hint;
#[cfg(not(feature = "loom"))]
use spinney_base::shim::{
    atomic::{AtomicU64, Ordering, fence},
    thread,
};
use spinney_base::{KeyspaceId, Lsn};

const STRIPES: usize = 1 << 16;

const LOCKED: u64 = 1;
const DRAWN: u64 = 2;
const NUMBER_SHIFT: u32 = 2;
const SPINS_BEFORE_YIELD: u32 = 32;

/// Returns the hash of a key in its keyspace, which chooses its stripe and its position in caches.
/// Filters on disk are made of its bits: another hash is another format.
#[inline]
#[must_use]
pub fn hash_key(keyspace: KeyspaceId, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, u64::from(keyspace.0))
}

/// When a stripe was last written to: the word of the unlocked stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// The stamp of a write that was logged.
    #[inline]
    #[must_use]
    pub fn logged(lsn: Lsn) -> Stamp {
        Stamp(lsn.0 << NUMBER_SHIFT)
    }

    /// Whether the write was stamped at or before a moment.
    #[inline]
    #[must_use]
    pub fn is_within(self, moment: Moment) -> bool {
        let number = self.0 >> NUMBER_SHIFT;
        number <= if self.0 & DRAWN == 0 { moment.logged } else { moment.drawn }
    }
}

/// A reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    logged: u64,
    drawn: u64,
}

/// One stripe. Thread-safe; not fair; not reentrant.
#[derive(Debug, Default)]
pub struct Stripe {
    word: AtomicU64,
}

impl Stripe {
    /// Returns the stamp to read under; waits while a writer holds the stripe.
    #[inline]
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.try_stamp().unwrap_or_else(|| self.wait_unlocked())
    }

    /// Returns the stamp to read under, or `None` while a writer holds the stripe.
    #[inline]
    #[must_use]
    pub fn try_stamp(&self) -> Option<Stamp> {
        let word = self.word.load(Ordering::Acquire);
        (word & LOCKED == 0).then_some(Stamp(word))
    }

    /// Returns whether nothing changed since `stamp` was taken, and nobody holds the stripe:
    /// everything read in between is of one moment.
    #[inline]
    #[must_use]
    pub fn validate(&self, stamp: Stamp) -> bool {
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == stamp.0
    }

    #[inline]
    fn lock(&self) {
        loop {
            let stamp = self.stamp().0;
            // What follows in the program must not pass the lock: the stores of the change, for
            // readers, and the loads of other stripes (T3).
            let locked = self.word.compare_exchange(
                stamp,
                stamp | LOCKED,
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
            if locked.is_ok() {
                fence(Ordering::Release);
                return;
            }
        }
    }

    #[inline]
    fn unlock(&self, stamp: Stamp) {
        self.word.store(stamp.0, Ordering::Release);
    }

    /// Unlocks with the stamp that was there when it was locked.
    fn unlock_unchanged(&self) {
        let word = self.word.load(Ordering::Relaxed);
        self.unlock(Stamp(word & !LOCKED));
    }

    #[cold]
    fn wait_unlocked(&self) -> Stamp {
        let mut spins = 0;
        loop {
            if let Some(stamp) = self.try_stamp() {
                return stamp;
            }
            if spins < SPINS_BEFORE_YIELD {
                spins += 1;
                spin_hint();
            } else {
                thread::yield_now();
            }
        }
    }
}

/// All stripes, and the clock of writes without a log. Thread-safe.
#[derive(Debug)]
pub struct LockTable {
    stripes: Box<[Stripe]>,
    /// The last stamp drawn.
    drawn: AtomicU64,
}

/// Stripes held by one writer, which unlocks them with the stamp of its write, or unchanged.
/// Dropping them counts as a change.
#[derive(Debug)]
#[must_use = "the stripes are held until they are unlocked"]
pub struct StripeGuards<'a> {
    table: &'a LockTable,
    held: Held,
}

/// Indexes of stripes, ascending.
#[derive(Debug)]
enum Held {
    One(usize),
    Many(Vec<usize>),
}

impl Default for Held {
    fn default() -> Self {
        Held::Many(Vec::new())
    }
}

impl Held {
    #[inline]
    fn as_slice(&self) -> &[usize] {
        match self {
            Held::One(index) => std::slice::from_ref(index),
            Held::Many(indexes) => indexes,
        }
    }
}

impl Default for LockTable {
    fn default() -> Self {
        Self::new()
    }
}

impl LockTable {
    /// Makes a table of 64 Ki unlocked stripes.
    #[must_use]
    pub fn new() -> Self {
        Self::with_stripes(STRIPES)
    }

    /// Makes a table of `stripes` unlocked stripes, at least one. Tests use few to make collisions
    /// likely.
    #[must_use]
    pub fn with_stripes(stripes: usize) -> Self {
        let stripes = (0..stripes.max(1)).map(|_| Stripe::default()).collect();
        LockTable { stripes, drawn: AtomicU64::new(0) }
    }

    /// Returns the bytes of the table.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.stripes.len() * size_of::<Stripe>()
    }

    /// Returns the stripe of a key's hash.
    #[inline]
    #[must_use]
    pub fn stripe(&self, hash: u64) -> &Stripe {
        &self.stripes[self.index(hash)]
    }

    /// Locks the stripe of one key.
    #[inline]
    pub fn lock(&self, hash: u64) -> StripeGuards<'_> {
        let index = self.index(hash);
        self.stripes[index].lock();
        StripeGuards { table: self, held: Held::One(index) }
    }

    /// Locks the stripes of many keys, in ascending order and each once.
    pub fn lock_all(&self, hashes: impl Iterator<Item = u64>) -> StripeGuards<'_> {
        let mut indexes: Vec<usize> = hashes.map(|hash| self.index(hash)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        indexes.iter().for_each(|index| self.stripes[*index].lock());
        StripeGuards { table: self, held: Held::Many(indexes) }
    }

    /// Draws the stamp of a write that is not logged. The writer holds its stripes.
    #[inline]
    pub fn draw(&self) -> Stamp {
        let number = self.drawn.fetch_add(1, Ordering::SeqCst) + 1;
        Stamp(number << NUMBER_SHIFT | DRAWN)
    }

    /// Returns a moment: `last`, which the caller has loaded *before*, is the LSN of the latest
    /// record of the log.
    #[must_use]
    pub fn moment(&self, last: Lsn) -> Moment {
        Moment { logged: last.0, drawn: self.drawn.load(Ordering::SeqCst) }
    }

    /// Locks each stripe, one after the other, and unlocks it with a new stamp: everything read
    /// before is then of another one. It is for a change of unlisted keys while no writer could
    /// enter.
    pub fn change_all(&self) {
        let stamp = self.draw();
        for stripe in &self.stripes {
            stripe.lock();
            stripe.unlock(stamp);
        }
    }

    /// Returns the number of a key's stripe.
    #[inline]
    #[must_use]
    pub fn index(&self, hash: u64) -> usize {
        // The high bits: caches use the low ones.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the product is below the number of stripes"
        )]
        let index = ((u128::from(hash) * self.stripes.len() as u128) >> 64) as usize;
        index
    }
}

impl StripeGuards<'_> {
    /// Unlocks all stripes with the stamp of what was written.
    #[inline]
    pub fn unlock(mut self, stamp: Stamp) {
        let held = std::mem::take(&mut self.held);
        held.as_slice().iter().for_each(|index| self.table.stripes[*index].unlock(stamp));
    }

    /// Unlocks all stripes as they were: nothing was changed, and what readers read stays valid.
    pub fn unlock_unchanged(mut self) {
        let held = std::mem::take(&mut self.held);
        let stripes = held.as_slice().iter().map(|index| &self.table.stripes[*index]);
        stripes.for_each(Stripe::unlock_unchanged);
    }

    /// Separates the locks of these stripes from looks at what other writers may have locked or
    /// touched (T3). Of two writers that then look at each other, one at least sees the other.
    #[inline]
    pub fn before_looking_at_others(&self) {
        fence(Ordering::SeqCst);
    }

    /// Returns whether the stripe of a key is among these, and had this stamp when it was locked.
    #[must_use]
    pub fn locked_since(&self, hash: u64, stamp: Stamp) -> bool {
        let index = self.table.index(hash);
        let is_mine = self.held.as_slice().binary_search(&index).is_ok();
        is_mine && self.table.stripes[index].word.load(Ordering::Relaxed) == stamp.0 | LOCKED
    }

    /// Returns whether the stripe of a key has this stamp still: locked by nobody, or by this writer
    /// (T2). The caller has called [`StripeGuards::before_looking_at_others`] (T3).
    #[must_use]
    pub fn is_still(&self, hash: u64, stamp: Stamp) -> bool {
        let word = self.table.stripe(hash).word.load(Ordering::Acquire);
        word == stamp.0 || (word == stamp.0 | LOCKED && self.locked_since(hash, stamp))
    }
}

impl Drop for StripeGuards<'_> {
    /// A panic, if they are still held: something may have changed.
    #[inline]
    fn drop(&mut self) {
        if let indexes @ [_, ..] = self.held.as_slice() {
            let stamp = self.table.draw();
            indexes.iter().for_each(|index| self.table.stripes[*index].unlock(stamp));
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn hash(byte: u8) -> u64 {
        hash_key(KeyspaceId(1), &[byte])
    }

    #[test]
    fn a_batch_may_name_a_stripe_twice() {
        let table = LockTable::with_stripes(4);
        let guards = table.lock_all((0..64).map(hash));
        assert!((0..64).all(|i| table.stripe(hash(i)).try_stamp().is_none()));
        guards.unlock(Stamp::logged(Lsn(1)));
        assert!(table.stripe(0).try_stamp().is_some());
    }

    #[test]
    fn a_change_of_all_is_one_of_each() {
        let table = LockTable::with_stripes(4);
        let stamps: Vec<_> = table.stripes.iter().map(Stripe::stamp).collect();
        table.change_all();
        let stripes = || table.stripes.iter().zip(&stamps);
        assert!(stripes().all(|(stripe, before)| !stripe.validate(*before)));
        assert!(stripes().all(|(stripe, _)| stripe.try_stamp().is_some()));
    }

    #[test]
    fn a_stripe_keeps_its_stamp_unless_something_changed() {
        let table = LockTable::with_stripes(4);
        let (one, other) =
            (hash(0), (1..).map(hash).find(|h| table.index(*h) != table.index(hash(0))));
        let other = other.unwrap();
        let stamp = || table.stripe(one).stamp();
        table.lock(one).unlock(Stamp::logged(Lsn(7)));
        let seven = stamp();
        assert_eq!(seven, Stamp::logged(Lsn(7)));
        let guards = table.lock(one);
        assert!(guards.locked_since(one, seven) && guards.is_still(one, seven));
        assert!(!guards.locked_since(one, Stamp::logged(Lsn(6))));
        assert!(!table.stripe(one).validate(seven), "it is locked");
        // Locked by another is not as it was, though the number is.
        let others = table.lock(other);
        assert!(!others.is_still(one, seven) && !others.locked_since(one, seven));
        others.unlock_unchanged();
        guards.unlock_unchanged();
        assert!(table.stripe(one).validate(seven));
        // A drop, as in a panic, is a change.
        drop(table.lock(one));
        assert!(!table.stripe(one).validate(seven) && stamp() != seven);
    }

    #[test]
    fn a_moment_has_the_writes_before_it_by_either_clock() {
        let table = LockTable::with_stripes(1);
        let stamp = || table.stripe(0).stamp();
        let before = table.moment(Lsn(100));
        let drawn = table.draw();
        table.lock(0).unlock(drawn);
        let between = table.moment(Lsn(100));
        assert!(!stamp().is_within(before) && stamp().is_within(between));
        // An unlogged write is no older than a logged one because its number is smaller.
        table.lock(0).unlock(Stamp::logged(Lsn(101)));
        assert!(!stamp().is_within(between) && stamp().is_within(table.moment(Lsn(101))));
        assert_ne!(table.draw(), drawn);
    }

    #[test]
    fn the_hash_stays_what_it_is() {
        assert_eq!(hash_key(KeyspaceId(7), b"a key of some length"), GOLDEN);
    }

    const GOLDEN: u64 = 10_660_815_387_719_698_019;

    #[test]
    fn keyspaces_hash_apart() {
        assert_ne!(hash_key(KeyspaceId(1), b"k"), hash_key(KeyspaceId(2), b"k"));
    }
}
