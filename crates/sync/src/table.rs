//! The lock table: 64 Ki version latches, one for each stripe of the keys of all keyspaces
//! (Tiered-Indexing, section 5.1).
//!
//! A writer locks the stripes of its keys, appends to the log, applies, unlocks. A reader takes its
//! stripe's version, reads, and validates. So for each key the order of applying is the order of
//! the log, and a batch is seen whole (rules P3 and P5).
//!
//! **Invariants**
//! 1. Stripes of one writer are locked in ascending order, each once, so writers never wait for
//!    each other in a circle.
//! 2. Nobody does I/O, runs user code or waits for anything but a latch while holding a stripe.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use spinney_base::KeyspaceId;

use crate::latch::{LatchGuard, VersionLatch};

const STRIPES: usize = 1 << 16;

/// Returns the hash of a key in its keyspace, which chooses its stripe and its position in caches.
/// Filters on disk are made of its bits: another hash is another format.
#[inline]
#[must_use]
pub fn hash_key(keyspace: KeyspaceId, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, u64::from(keyspace.0))
}

/// All stripes. Thread-safe.
#[derive(Debug)]
pub struct LockTable {
    stripes: Box<[VersionLatch]>,
}

/// Stripes held by one writer; dropping it unlocks them all.
#[derive(Debug)]
#[must_use = "the stripes are held until the guards are dropped"]
pub struct StripeGuards<'a> {
    #[expect(dead_code, reason = "held for its drop")]
    guards: Guards<'a>,
}

#[derive(Debug)]
#[expect(dead_code, reason = "held for their drop")]
enum Guards<'a> {
    One(LatchGuard<'a>),
    Many(Vec<LatchGuard<'a>>),
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
        LockTable { stripes: (0..stripes.max(1)).map(|_| VersionLatch::new()).collect() }
    }

    /// Returns the bytes of the table.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.stripes.len() * size_of::<VersionLatch>()
    }

    /// Returns the stripe of a key's hash.
    #[inline]
    #[must_use]
    pub fn stripe(&self, hash: u64) -> &VersionLatch {
        &self.stripes[self.index(hash)]
    }

    /// Locks the stripe of one key.
    #[inline]
    pub fn lock(&self, hash: u64) -> StripeGuards<'_> {
        StripeGuards { guards: Guards::One(self.stripe(hash).lock()) }
    }

    /// Locks the stripes of many keys, in ascending order and each once.
    pub fn lock_all(&self, hashes: impl Iterator<Item = u64>) -> StripeGuards<'_> {
        let mut indexes: Vec<usize> = hashes.map(|hash| self.index(hash)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let guards = indexes.into_iter().map(|index| self.stripes[index].lock()).collect();
        StripeGuards { guards: Guards::Many(guards) }
    }

    /// Locks and unlocks each stripe, one after the other: everything read before is then of
    /// another version. It is for a change of unlisted keys while no writer could enter.
    pub fn change_all(&self) {
        self.stripes.iter().for_each(|stripe| drop(stripe.lock()));
    }

    #[inline]
    fn index(&self, hash: u64) -> usize {
        // The high bits: caches use the low ones.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the product is below the number of stripes"
        )]
        let index = ((u128::from(hash) * self.stripes.len() as u128) >> 64) as usize;
        index
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_batch_may_name_a_stripe_twice() {
        let table = LockTable::with_stripes(4);
        let guards = table.lock_all((0..64).map(|i| hash_key(KeyspaceId(1), &[i])));
        assert!(
            (0..64).all(|i| table.stripe(hash_key(KeyspaceId(1), &[i])).try_version().is_none())
        );
        drop(guards);
        assert!(table.stripe(0).try_version().is_some());
    }

    #[test]
    fn a_change_of_all_is_one_of_each() {
        let table = LockTable::with_stripes(4);
        let versions: Vec<_> = table.stripes.iter().map(VersionLatch::version).collect();
        table.change_all();
        let stripes = || table.stripes.iter().zip(&versions);
        assert!(stripes().all(|(stripe, before)| !stripe.validate(*before)));
        assert!(stripes().all(|(stripe, _)| stripe.try_version().is_some()));
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
