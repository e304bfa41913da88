//! Threads beside each other over a cold structure: nobody reads a value older than one that was there
//! before the read began.

use std::collections::BTreeMap;

#[cfg(not(feature = "shuttle"))]
use crate::Hand;
use spinney_base::ValueRef;
use spinney_base::shim::RwLock;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
#[cfg(not(feature = "shuttle"))]
use spinney_base::shim::thread;
use spinney_sync::VersionLatch;

use crate::{Cached, HotTier, Records};

/// A tier over a map. Values are numbers that count up, each padded to a length.
pub(crate) struct Shared {
    pub(crate) tier: HotTier,
    pub(crate) cold: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// One for each key, as the lock table has.
    stripes: Vec<VersionLatch>,
    /// The newest number of each key that its writer knows to be visible.
    known: Vec<AtomicU64>,
    length: usize,
    pub(crate) done: AtomicBool,
}

impl Shared {
    pub(crate) fn new(bytes: u64, keys: u64, length: usize) -> Shared {
        Shared {
            tier: HotTier::new(bytes),
            cold: RwLock::default(),
            stripes: (0..keys).map(|_| VersionLatch::new()).collect(),
            known: (0..keys).map(|_| AtomicU64::new(0)).collect(),
            length,
            done: AtomicBool::new(false),
        }
    }

    fn key(number: u64) -> Vec<u8> {
        format!("key {number:05}").into_bytes()
    }

    /// Gives a key its next number. Each key has one writer.
    pub(crate) fn write(&self, number: u64) {
        let place = usize::try_from(number).unwrap();
        let next = self.known[place].load(SeqCst) + 1;
        let length = 8 + usize::try_from(next).unwrap() * 7 % self.length.max(1);
        let mut value = next.to_be_bytes().to_vec();
        value.resize(length, number as u8);
        let stripe = self.stripes[place].lock();
        let value = ValueRef { bytes: &value, large: false };
        self.tier.put(&Self::key(number), Some(value), &mut Vec::new());
        drop(stripe);
        self.known[place].store(next, SeqCst);
    }

    /// Puts a key behind another one, which nobody reads.
    #[cfg(feature = "shuttle")]
    pub(crate) fn write_new(&self, number: u64) {
        let value = ValueRef { bytes: &[1; 8], large: false };
        let key = [&Self::key(number)[..], b"+"].concat();
        self.tier.put(&key, Some(value), &mut Vec::new());
    }

    /// Checks that gaps have nothing that only the cold structure has.
    #[cfg(feature = "shuttle")]
    pub(crate) fn no_cold_record_in_a_gap(&self, piece: &crate::Piece) {
        let (mut is_closed, mut begin) = (piece.starts_gap, Vec::new());
        let cold = self.cold.read();
        let nothing = |begin: &Vec<u8>, end: Option<&[u8]>| {
            let mut between = cold.range(begin.clone()..).map(|(key, _)| key);
            between.next().is_none_or(|key| end.is_some_and(|end| &key[..] >= end))
        };
        for record in piece.records.iter() {
            assert!(!is_closed || nothing(&begin, Some(record.key)), "{:?}", record.key);
            (is_closed, begin) = (record.ends_gap, [record.key, &[0]].concat());
        }
        assert!(!is_closed || nothing(&begin, None));
    }

    /// Promotes what the cold structure has for the first leaf.
    #[cfg(feature = "shuttle")]
    pub(crate) fn promote_first_leaf(&self) {
        let mut piece = crate::Piece::default();
        self.tier.range(None, crate::Direction::Forward, usize::MAX, &mut piece);
        let cold = self.cold.read().clone();
        let is_within = |key: &[u8]| piece.upper.as_ref().is_none_or(|upper| key < &upper[..]);
        let records: Vec<_> = (cold.iter())
            .take_while(|(key, _)| is_within(key))
            .map(|(key, bytes)| (&key[..], Some(ValueRef { bytes, large: false })))
            .collect();
        let bounds = (std::ops::Bound::Unbounded, piece.upper.as_deref());
        _ = self.tier.admit_run(&records, bounds, piece.seen.unwrap());
    }

    /// Reads a key, and promotes it.
    pub(crate) fn read(&self, number: u64) {
        let place = usize::try_from(number).unwrap();
        let known = self.known[place].load(SeqCst);
        let key = Self::key(number);
        let mut found = Vec::new();
        let (cached, seen) = self.tier.look(&key, &mut found);
        match cached {
            Cached::Present => {}
            Cached::Unknown => {
                found = self.cold.read().get(&key).cloned().unwrap_or_default();
                if !found.is_empty() {
                    let value = ValueRef { bytes: &found, large: false };
                    self.tier.admit(&key, Some(value), seen);
                }
            }
            other => panic!("{other:?}"),
        }
        let number = found.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        assert!(number >= known, "{number} of {known}");
    }

    /// Sweeps once through all of the tier.
    pub(crate) fn sweep(&self) {
        let mut hand = Vec::new();
        loop {
            let mut victims = Records::default();
            let (_, next) = self.tier.pass(&hand, true, &mut victims);
            for victim in victims.iter() {
                let value = victim.value.expect("nothing is removed").bytes.to_vec();
                self.cold.write().insert(victim.key.to_vec(), value);
            }
            self.tier.finish(&victims, victims.len(), &mut |_| {});
            let Some(next) = next else { return };
            hand = next;
        }
    }

    /// Lets threads loose.
    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn run(&self, writers: u64, steps: u64) {
        let keys = self.known.len() as u64;
        thread::scope(|scope| {
            let workers: Vec<_> = (0..writers)
                .map(|worker| {
                    scope.spawn(move || {
                        let mut random = spinney_base::runtime::SplitMix(worker);
                        for _ in 0..steps {
                            let number = random.next_u64() % keys;
                            if number % writers == worker {
                                self.write(number);
                            } else {
                                self.read(number);
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(move || {
                while !self.done.load(SeqCst) {
                    self.sweep();
                    thread::yield_now();
                }
            });
            for worker in workers {
                worker.join().unwrap();
            }
            self.done.store(true, SeqCst);
        });
        self.tier.check().unwrap();
        (0..keys).for_each(|number| self.read(number));
    }
}

#[cfg(not(feature = "shuttle"))]
#[test]
fn nobody_reads_an_older_value() {
    for (bytes, keys, length) in [(200_000, 64, 8), (300_000, 3_000, 300), (2_000_000, 20_000, 900)]
    {
        let shared = Shared::new(bytes, keys, length);
        shared.run(4, 60_000);
        // Of 64 keys none is left alone for long enough.
        assert!(keys == 64 || !shared.cold.read().is_empty());
    }
}

/// Leaves that lie side by side divide at once: each key stays with the one leaf that is for it.
#[cfg(not(feature = "shuttle"))]
#[test]
fn leaves_beside_each_other_divide() {
    const EACH: u64 = 60_000;
    let tier = &HotTier::new(64 << 20);
    thread::scope(|scope| {
        let put = |worker: u64| {
            for number in 0..EACH {
                let key = (number * 3 + worker).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let value = ValueRef { bytes: &[7; 100], large: false };
                tier.put(&key.to_be_bytes(), Some(value), &mut Vec::new());
            }
        };
        let writers = [0, 1, 2].map(|worker| scope.spawn(move || put(worker)));
        // What is swept leaves, so leaves are joined while others divide.
        let (mut hand, mut victims) = (Hand::default(), Records::default());
        while !writers.iter().all(|writer| writer.is_finished()) {
            victims.clear();
            tier.advance(&mut hand, true, &mut victims);
            tier.finish(&victims, victims.len(), &mut |_| {});
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
    tier.check().unwrap();
}
