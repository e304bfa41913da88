//! Claims: ranges of keys whose dirty records somebody merges, and nobody else (rule H17).
//!
//! ```text
//!   keys     a ......... f ......... m ......... t ......... z
//!   claims       [ 1: c to g )    [ 2: k to m )      ^ hand
//!   from e on: waits for 1
//!   from g on: takes along up to k, and the rest once 2 has ended
//! ```
//!
//! Without them, a sweep that takes a record along beside another one merges an older version of it after a newer:
//! the record is written again between the two copies.
//!
//! **Invariants**
//! 1. Who copies dirty records has a claim for their range, from before the first copy until they are clean or dirty
//!    again.
//! 2. No two claims overlap, but for one of all keys, which is made at once and waits for those before it: nobody
//!    begins meanwhile.
//! 3. Nobody waits for a claim while holding a latch of the tier or a page.

use spinney_base::shim::{Condvar, Mutex, MutexGuard};
use spinney_hot::{Hand, Records};

/// Copies of ended sweeps whose memory is kept.
const SPARE_MAX: usize = 4;

/// Whether the caller of a merge holds `publishing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alone {
    /// It does.
    Held,
    /// It does not; a step is left out while another publishes.
    Try,
}

/// Claims of one keyspace. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    sweepers: Mutex<Sweepers>,
    ended: Condvar,
}

/// Where the hand is, and what is claimed.
#[derive(Debug, Default)]
pub(crate) struct Sweepers {
    pub(crate) hand: Hand,
    claimed: Vec<Claimed>,
    next: u64,
    spare: Vec<Records>,
}

#[derive(Debug)]
struct Claimed {
    number: u64,
    from: Vec<u8>,
    /// `None`: the end of all keys.
    to: Option<Vec<u8>>,
}

/// A range that is claimed until this is dropped, with what was copied of it.
#[derive(Debug)]
#[must_use]
pub(crate) struct Claim<'a> {
    claims: &'a Claims,
    number: u64,
    pub(crate) victims: Records,
}

impl Sweepers {
    /// Returns whether somebody has claimed this key.
    pub(crate) fn is_claimed(&self, key: &[u8]) -> bool {
        let has =
            |one: &Claimed| &one.from[..] <= key && one.to.as_ref().is_none_or(|to| key < &to[..]);
        self.claimed.iter().any(has)
    }

    /// Returns where the first claim behind a key begins.
    pub(crate) fn next_claim(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.claimed.iter().map(|one| &one.from).filter(|from| &from[..] > key).min().cloned()
    }

    /// Returns the number of claims.
    pub(crate) fn count(&self) -> usize {
        self.claimed.len()
    }

    /// Returns empty records, to copy others to.
    pub(crate) fn take_spare(&mut self) -> Records {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps the memory of these.
    pub(crate) fn give_spare(&mut self, mut records: Records) {
        if self.spare.len() < SPARE_MAX {
            records.clear();
            self.spare.push(records);
        }
    }
}

impl Claims {
    /// Locks them. What is copied meanwhile is claimed before the lock goes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Sweepers> {
        self.sweepers.lock()
    }

    /// As [`Claims::lock`], unless somebody has.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Sweepers>> {
        self.sweepers.try_lock()
    }

    /// Waits until a claim has ended.
    pub(crate) fn wait(&self, sweepers: &mut MutexGuard<'_, Sweepers>) {
        self.ended.wait(sweepers);
    }

    /// Claims a range of which these were copied, and which nobody has claimed.
    pub(crate) fn claim(
        &self,
        sweepers: &mut Sweepers,
        (from, to): (&[u8], Option<&[u8]>),
        victims: Records,
    ) -> Claim<'_> {
        let number = sweepers.next;
        sweepers.next += 1;
        sweepers.claimed.push(Claimed { number, from: from.to_vec(), to: to.map(<[u8]>::to_vec) });
        Claim { claims: self, number, victims }
    }

    /// Claims one key, unless somebody has, or is about to claim others.
    pub(crate) fn try_key(&self, key: &[u8]) -> Option<Claim<'_>> {
        let mut sweepers = self.try_lock()?;
        let behind = [key, &[0]].concat();
        let is_free = !sweepers.is_claimed(key);
        is_free.then(|| self.claim(&mut sweepers, (key, Some(&behind)), Records::default()))
    }

    /// Claims all keys, and waits until nobody merges any.
    pub(crate) fn all(&self) -> Claim<'_> {
        let mut sweepers = self.lock();
        let claim = self.claim(&mut sweepers, (&[], None), Records::default());
        while sweepers.claimed.iter().any(|one| one.number < claim.number) {
            self.wait(&mut sweepers);
        }
        claim
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut sweepers = self.claims.lock();
        sweepers.claimed.retain(|one| one.number != self.number);
        sweepers.give_spare(std::mem::take(&mut self.victims));
        drop(sweepers);
        self.claims.ended.notify_all();
    }
}
