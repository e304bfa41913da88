//! The board: readers of records and gaps that have no words of their own.
//!
//! ```text
//!   place = hash of a key, or of a gap     [readers | tag, latest | others] x 65,536     many keys have the same place
//!
//!   reader       set bit ........ draw c ........ raise the stamp, clear bit
//!   overwriter          draw c', look at bits, look at the stamp
//! ```
//!
//! **Stamps of a place**: that of the key that was read last, which its tag tells apart, and one for all others. So a key that was
//! read by nobody counts as read only once two others of its place were: a long transaction that overwrites
//! some of what it has read would otherwise meet readers of another key in nearly every run.
//!
//! An engine whose records get stamps only while they are written has no place for a reader's bit. So a
//! reader leaves it here. At its commit the engine names the overwriters of what it has read, by the stamps that
//! writers have left.
//!
//! **Invariants**
//! 1. As in [`readers`]: the bit is there before c is drawn, and the stamp is raised before it goes.
//! 2. A place that keys share makes an eta greater than it has to be, never less.
//! 3. The latest stamp is among the others before another key's takes its place, and is looked at before them.
//! 4. Bit S is never cleared. A writer that sees it looks at all shared contexts.
//!
//! **Differs from the paper**, which sets a bit for each record that is read, also in scans.

use std::sync::OnceLock;
use std::task::{Poll, ready};

use spinney_base::shim::atomic::{AtomicU64, Ordering, fence};

use crate::certify::Shared;
use crate::clock::Stamp;
use crate::context::Owner;
use crate::readers;
use crate::stamps::{Marks, Readable};

/// Places. With fewer, transactions take readers of other keys for readers of theirs more often; more take
/// the processor longer to reach.
#[cfg(not(feature = "shuttle"))]
const PLACES: usize = 1 << 16;
#[cfg(feature = "shuttle")]
const PLACES: usize = 1 << 4;

/// Bits of a stamp beside its tag. A greater stamp counts as one of all keys of its place.
const STAMP_BITS: u32 = 52;
const STAMP: u64 = (1 << STAMP_BITS) - 1;

/// See the module.
#[derive(Debug, Default)]
#[repr(align(32))]
pub(crate) struct Place {
    readers: AtomicU64,
    /// The stamp of who read a key last, and above [`STAMP_BITS`] some bits of the key's hash: its tag.
    latest: AtomicU64,
    /// At or above the stamps of those who read any other key.
    others: AtomicU64,
}

impl Place {
    /// Notes that a key with this hash was read at this stamp.
    fn raise(&self, hash: u64, stamp: Stamp) {
        let mut latest = self.latest.load(Ordering::SeqCst);
        loop {
            let (is_mine, known) = (latest & !STAMP == hash & !STAMP, latest & STAMP);
            if is_mine && known >= stamp {
                return;
            }
            if stamp > STAMP || !is_mine && known >= stamp {
                self.others.fetch_max(stamp, Ordering::SeqCst);
                return;
            }
            if !is_mine {
                self.others.fetch_max(known, Ordering::SeqCst);
            }
            let mine = hash & !STAMP | stamp;
            let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
            match self.latest.compare_exchange(latest, mine, success, failure) {
                Ok(_) => return,
                Err(now) => latest = now,
            }
        }
    }

    /// Returns a stamp at or above those of who read a key with this hash.
    fn stamp(&self, hash: u64) -> Stamp {
        let latest = self.latest.load(Ordering::SeqCst);
        let of_key = if latest & !STAMP == hash & !STAMP { latest & STAMP } else { 0 };
        // After the latest: what it has replaced is among them.
        of_key.max(self.others.load(Ordering::SeqCst))
    }
}

/// For the bits alone.
impl Readable for &Place {
    fn visit(&self, act: &mut dyn FnMut(Marks<'_>)) {
        act(Marks { pstamp: &self.others, readers: &self.readers });
    }
}

/// See the module. Thread-safe. It takes its memory when the first place is asked for.
#[derive(Debug, Default)]
pub(crate) struct Board(OnceLock<Box<[Place]>>);

impl Board {
    pub(crate) fn bytes(&self) -> usize {
        self.0.get().map_or(0, |places| size_of_val(&places[..]))
    }

    /// Returns the place of a hash.
    fn place(&self, hash: u64) -> &Place {
        let places = self.0.get_or_init(|| (0..PLACES).map(|_| Place::default()).collect());
        &places[(hash >> 32) as usize % PLACES]
    }
}

impl Shared {
    /// Sets the bit of a reader.
    pub(crate) fn enter_place(&self, me: Owner, hash: u64) {
        readers::enter(&self.contexts, me, &self.board.place(hash));
        // Whatever the reader looks at next, it looks at after that.
        fence(Ordering::SeqCst);
    }

    /// Notes that a transaction has committed which had set its bit, or ends.
    pub(crate) fn leave_place(&self, me: Owner, hash: u64) {
        readers::leave(&self.contexts, me, &self.board.place(hash));
    }

    pub(crate) fn raise_place(&self, hash: u64, cstamp: Stamp) {
        self.board.place(hash).raise(hash, cstamp);
    }

    /// Notes that no transaction reads what has this place, as of now.
    pub(crate) fn note_read(&self, hash: u64) {
        let (place, now) = (self.board.place(hash), self.clock.now());
        if place.stamp(hash) < now {
            place.raise(hash, now);
        }
    }

    /// Returns the greatest c below `limit` of the readers of what has this place. `Pending`: one of them commits
    /// and may be below the limit.
    pub(crate) fn latest_reader(&self, me: Owner, hash: u64, limit: Stamp) -> Poll<Stamp> {
        let place = self.board.place(hash);
        let latest = ready!(readers::latest(&self.contexts, me, &place, limit));
        // After the bits.
        Poll::Ready(latest.max(place.stamp(hash)))
    }

    /// Whether no running transaction has read what has this place, nor anyone that a running one does not come after
    /// already. A reader that is about to set its bit finds out by other means that this was asked.
    pub(crate) fn is_quiet(&self, hash: u64) -> bool {
        fence(Ordering::SeqCst);
        let horizon = self.contexts.horizon(&self.clock);
        let place = self.board.place(hash);
        readers::is_unread(&self.contexts, &place) && place.stamp(hash) <= horizon
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::collections::HashMap;

    use spinney_base::runtime::SplitMix;

    use super::*;

    #[test]
    fn one_other_key_does_not_count() {
        let place = Place::default();
        let [one, other, third] = [1, 2, 3].map(|tag| tag << STAMP_BITS);
        place.raise(one, 10);
        assert_eq!([one, other].map(|hash| place.stamp(hash)), [10, 0]);
        place.raise(other, 7);
        assert_eq!([one, other, third].map(|hash| place.stamp(hash)), [10, 7, 7]);
        place.raise(other, 20);
        assert_eq!([one, other, third].map(|hash| place.stamp(hash)), [10, 20, 10]);
        place.raise(third, STAMP + 1);
        assert_eq!([one, other, third].map(|hash| place.stamp(hash)), [STAMP + 1; 3]);
    }

    #[test]
    fn stamps_are_never_less_than_those_of_readers() {
        for seed in 0..50 {
            let (place, mut random) = (Place::default(), SplitMix(seed));
            let mut read: HashMap<u64, Stamp> = HashMap::new();
            for _ in 0..200 {
                let hash = (random.next_u64() % 5) << STAMP_BITS;
                let stamp = 1 + random.next_u64() % 1000;
                place.raise(hash, stamp);
                let known = read.entry(hash).or_default();
                *known = stamp.max(*known);
                for (hash, stamp) in &read {
                    assert!(place.stamp(*hash) >= *stamp, "seed {seed}");
                }
                let most = read.values().max().copied();
                assert!((0..6).all(|tag| Some(place.stamp(tag << STAMP_BITS)) <= most));
            }
        }
    }

    /// Each thread reads keys of its own, at ascending stamps, and sees its own stamp at once.
    #[test]
    fn threads_raise_beside_each_other() {
        let place = Place::default();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let place = &place;
                scope.spawn(move || {
                    for stamp in 1..50_000_u64 {
                        let hash = (4 * (stamp % 3) + thread) << STAMP_BITS;
                        place.raise(hash, stamp);
                        assert!(place.stamp(hash) >= stamp);
                    }
                });
            }
        });
    }
}
