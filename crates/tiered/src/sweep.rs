//! Sweeps: the hand goes through the tier, and what it takes along is merged into the tree.
//!
//! With one tier, everything in a leaf of the tier goes that the hand meets. With two, a clean record leaves when
//! nobody has asked for it since the hand came by; dirty ones are merged only where most of the tier is dirty, or
//! where nothing else gives room, since each merge rewrites leaves of the tree. A leaf that is rewritten takes along
//! whatever is dirty beside what has to go.

use std::cell::Cell;

use spinney_access::Change;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::{Error, ErrorKind, Result, probe};
use spinney_hot::{Hand, Records};

use crate::engine::Tiered;

/// Laps after which a sweep for room gives up: others reserve what it frees. Priorities are at most 3.
const LAPS_MAX: u32 = 8;
/// Dirty records are merged for the sake of room while at least this many of four are dirty.
const DIRTY_FOURTHS: u64 = 3;

/// With fewer dirty records than one in this many, they are not in the way of what is read.
const DIRTY_PART: u64 = 8;
/// Sweeps of the background at once.
const SWEEPS_AT_ONCE: u64 = 4;
/// Leaves of the tree whose changes are merged at once, about. With more, more records are copied; with fewer, the
/// disk waits.
const LEAVES_AT_ONCE: u64 = 64;
/// Most bytes of records that are copied at once.
const VICTIM_BYTES_MAX: u64 = 256 << 10;
/// They take one part in this many of the tier, at most.
const VICTIM_PART: u64 = 32;
/// Leaves of the tier that it passes at once where the tier has too many.
const PASSES_AT_ONCE: u64 = 256;
/// Most places of removals that are noted for the background.
const MET_MAX: usize = 64;

/// Who sweeps: where it is in the order of the keys, and what it has taken.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    pub(crate) hand: Hand,
    victims: Records,
}

/// Which part of the changes that are merged are new records: a moving average, for estimates.
#[derive(Debug)]
pub(crate) struct Novelty(AtomicU64);

impl Novelty {
    const ALL: u64 = 1 << 16;

    /// Notes what a merge has come to. Notes can be lost where several threads note at once.
    pub(crate) fn note(&self, records: i64, changes: usize) {
        let now = records.max(0).unsigned_abs() * Self::ALL / changes.max(1) as u64;
        self.0.store((self.0.load(Relaxed) * 7 + now) / 8, Relaxed);
    }

    /// The part of this number that is new, about.
    pub(crate) fn of(&self, count: u64) -> u64 {
        (u128::from(count) * u128::from(self.0.load(Relaxed)) / u128::from(Self::ALL)) as u64
    }
}

/// Before anything is merged, all is new.
impl Default for Novelty {
    fn default() -> Self {
        Novelty(AtomicU64::new(Self::ALL))
    }
}

/// Sweeps of a keyspace.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    /// Held by the one thread that sweeps (H17).
    pub(crate) sweeper: Mutex<Sweeper>,
    pub(crate) novelty: Novelty,
    /// Records that were read and found no room, and puts, up to the last look.
    refused: AtomicU64,
    puts_before: AtomicU64,
    /// Leaves of the tree that merges have changed.
    pub(crate) merged_leaves: AtomicU64,
    /// Where ranges passed over many removals.
    met: Mutex<Vec<Vec<u8>>>,
}

impl Tiered {
    /// Reserves room in the tier, and sweeps until there is some.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`: what is dirty cannot be merged.
    pub(crate) fn reserve(&self, key: usize, value: usize) -> Result<()> {
        if self.hot.reserve(key, value) {
            return Ok(());
        }
        let mut sweeper = self.sweeps.sweeper.lock();
        let mut laps = 0;
        loop {
            if self.hot.reserve(key, value) {
                return Ok(());
            }
            if laps > LAPS_MAX {
                let text = "the tier is full of records that are being written";
                return Err(Error::new(ErrorKind::Full, text));
            }
            laps += u32::from(self.sweep(&mut sweeper, laps > 0)?);
        }
    }

    /// Sweeps so that writers find room, and follows a target that has shrunk; says whether it did something.
    pub(crate) fn sweep_in_background(&self) -> Result<bool> {
        let is_over = self.hot.bytes() > self.hot.target();
        if !is_over && !self.wants_sweep() {
            return Ok(false);
        }
        let Some(mut sweeper) = self.sweeps.sweeper.try_lock() else { return Ok(false) };
        for _ in 0..if is_over { PASSES_AT_ONCE } else { SWEEPS_AT_ONCE } {
            if is_over && self.hot.bytes() <= self.hot.target() {
                break;
            }
            self.sweep(&mut sweeper, true)?;
        }
        Ok(true)
    }

    /// Whether the background should sweep, so that writers find room.
    fn wants_sweep(&self) -> bool {
        let is_due = match self.chosen.tuning.keeps_records() {
            true => self.hot.is_full() && (self.is_mostly_dirty() || self.do_readers_lack_room()),
            false => self.hot.bytes() > self.hot.target() / 2,
        };
        is_due && self.hot.dirty() > 0
    }

    /// Whether more records were read and found no room, since the last call, than were put: then what is dirty and
    /// nobody asks for is in the way of what is read.
    fn do_readers_lack_room(&self) -> bool {
        let puts = self.images.puts();
        let new = puts - self.sweeps.puts_before.swap(puts, Relaxed);
        let refused = self.sweeps.refused.swap(0, Relaxed);
        refused > new && self.hot.dirty() * DIRTY_PART >= self.hot.len()
    }

    /// Notes that a record that was read found no room.
    pub(crate) fn note_refused(&self) {
        self.sweeps.refused.fetch_add(1, Relaxed);
    }

    /// Whether so much is dirty that it is merged to make room.
    pub(crate) fn is_mostly_dirty(&self) -> bool {
        self.hot.dirty() * 4 >= self.hot.len() * DIRTY_FOURTHS
    }

    /// Moves the hand over a leaf of the tier, and lets what is clean there leave. Where it is due to merge what is
    /// dirty, or `takes_dirty`, it goes on, and merges changes of many leaves of the tree at once. Returns whether the
    /// hand begins again.
    pub(crate) fn sweep(&self, sweeper: &mut Sweeper, takes_dirty: bool) -> Result<bool> {
        let Sweeper { hand, victims } = sweeper;
        victims.clear();
        let keeps = self.chosen.tuning.keeps_records();
        loop {
            let begin = hand.at().to_vec();
            if !keeps {
                // Nothing is kept for reads: pages are.
                self.hot.pass(&begin, false, &mut Records::default());
            }
            let passed = self.hot.advance(hand, false, victims);
            self.chosen.admission.load().note(passed);
            let end = Some(hand.at()).filter(|at| !at.is_empty());
            let stays = passed.records - passed.asked - passed.left;
            let merges = !keeps || stays > 0 && (takes_dirty || self.is_mostly_dirty());
            // What lies between the two places of the hand, and no more: the next step begins there, so keys ascend.
            let mut from = merges.then_some(begin);
            while let Some(at) = from {
                from = self.hot.take_along(&at, end, victims);
            }
            if end.is_none() || !merges || self.is_enough(victims) {
                break;
            }
        }
        self.bring_home(victims)?;
        Ok(hand.at().is_empty())
    }

    /// Whether these records lie in about as many leaves of the tree as are changed at once.
    fn is_enough(&self, victims: &Records) -> bool {
        let leaves = self.tree().map_or(1, |tree| tree.pages());
        let each = self.hot.dirty() / leaves + 1;
        victims.len() as u64 >= each * LEAVES_AT_ONCE
            || victims.bytes() as u64 >= self.victim_bytes()
    }

    /// Bytes of the records that a sweep copies, about.
    pub(crate) fn victim_bytes(&self) -> u64 {
        VICTIM_BYTES_MAX.min(self.hot.target() / VICTIM_PART)
    }

    /// Notes that a range has passed over removals at a key.
    pub(crate) fn met_removals(&self, at: &[u8]) {
        if let Some(mut met) = self.sweeps.met.try_lock()
            && met.len() < MET_MAX
            && met.last().is_none_or(|last| last != at)
        {
            met.push(at.to_vec());
        }
    }

    /// Merges removals that ranges passed over; says whether there were any.
    pub(crate) fn sweep_removals(&self) -> Result<bool> {
        let met = std::mem::take(&mut *self.sweeps.met.lock());
        self.sweep_keys(&met)?;
        Ok(!met.is_empty())
    }

    /// Merges all records that are dirty now into the tree.
    ///
    /// # Errors
    /// As [`Tiered::reserve`].
    pub(crate) fn bring_all_home(&self) -> Result<()> {
        let mut from = Some(Vec::new());
        while from.is_some() {
            // Writers that need room have their turn between two batches.
            let mut sweeper = self.sweeps.sweeper.lock();
            let victims = &mut sweeper.victims;
            victims.clear();
            while let Some(at) = from.take() {
                from = self.hot.take_along(&at, None, victims);
                if self.is_enough(victims) {
                    break;
                }
            }
            self.bring_home(victims)?;
        }
        Ok(())
    }

    /// Merges the dirty records of the leaves of the tier that these keys lie in.
    ///
    /// # Errors
    /// As [`Tiered::reserve`].
    pub(crate) fn sweep_keys(&self, keys: &[Vec<u8>]) -> Result<()> {
        if keys.is_empty() {
            // Writers beside a snapshot come here each time: they wait for no sweep.
            return Ok(());
        }
        let mut sweeper = self.sweeps.sweeper.lock();
        for key in keys {
            sweeper.victims.clear();
            self.hot.take_along(key, None, &mut sweeper.victims);
            self.bring_home(&sweeper.victims)?;
        }
        Ok(())
    }

    /// Changes the leaves of records that were taken, and ends their sweep.
    pub(crate) fn bring_home(&self, victims: &Records) -> Result<()> {
        if victims.is_empty() {
            return Ok(());
        }
        let _inside = probe::enter("sweep");
        let changes: Vec<Change<'_>> = (victims.iter())
            .map(|record| Change { key: record.key, value: record.value })
            .collect();
        let home = Cell::new(0);
        // Before the first leaf changes (rule H9).
        self.note_merged(victims);
        let merged = self.tree_made().and_then(|tree| self.merge_home(&tree, &changes, &home));
        // After an error the first ones are home, and the others are dirty as before.
        self.hot.finish(victims, home.get(), &mut |lost| {
            if let Some(value) = lost.value.filter(|value| value.large) {
                self.values.superseded(value.bytes);
            }
        });
        merged
    }
}
