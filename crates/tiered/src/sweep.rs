//! Sweeps: the hand goes through the tier, and what it takes along is merged into the tree.
//!
//! With one tier, everything in a leaf of the tier goes that the hand meets. With two, a clean record leaves when
//! nobody has asked for it since the hand came by; dirty ones are merged only where most of the tier is dirty, or
//! where nothing else gives room, since each merge rewrites leaves of the tree. A leaf that is rewritten takes along
//! whatever is dirty beside what has to go.
//!
//! After a load nearly all is dirty, and what is read finds no room. Then readers sweep, too: the background is one
//! thread beside all of theirs, and gets as little of the processors.

use std::cell::Cell;

use spinney_access::Change;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use spinney_base::{Error, ErrorKind, Result, probe};
use spinney_hot::Records;

use crate::claims::{Alone, Claim, Claims, Sweepers};
use crate::engine::Tiered;

/// Laps after which a sweep for room gives up: others reserve what it frees. Priorities are at most 3.
const LAPS_MAX: u32 = 8;
/// Dirty records are merged for the sake of room while at least this many of four are dirty.
const DIRTY_FOURTHS: u64 = 3;

/// With fewer dirty records than one in this many, they are not in the way of what is read.
const DIRTY_PART: u64 = 8;
/// Where readers lack room, the background makes some once the tier has filled so many sixteenths of its target.
const FILLED_SIXTEENTHS: u64 = 15;
/// Sweeps of the background at once.
const SWEEPS_AT_ONCE: u64 = 4;
/// Leaves of the tree whose changes are merged at once, about. With more, more records are copied; with fewer, the
/// disk waits.
const LEAVES_AT_ONCE: u64 = 64;
/// Most bytes of records that are copied at once.
const VICTIM_BYTES_MAX: u64 = 256 << 10;
/// All sweeps together take one part in this many of the tier, at most.
const VICTIM_PART: u64 = 32;
/// Leaves of the tier that it passes at once where the tier has too many.
const PASSES_AT_ONCE: u64 = 256;
/// Most places of removals that are noted for the background.
const MET_MAX: usize = 64;
/// Sweeps beside each other: while one waits for the disk, others merge. With more, more records are copied.
const SWEEPERS_MAX: u64 = 3;
/// A sweep more is worth this many times the least memory of pages. With less, it finds no frames; with more, small
/// keyspaces sweep one at a time.
const PAGES_EACH: u64 = 3;

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
    /// What is swept at the moment.
    pub(crate) claims: Claims,
    pub(crate) novelty: Novelty,
    /// Records that were read and did not enter since the last look, and puts up to it.
    refused: AtomicU64,
    puts_before: AtomicU64,
    /// Whether the last look found that readers lack room.
    readers_lack_room: AtomicBool,
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
        let mut sweepers = self.sweeps.claims.lock();
        let mut laps = 0;
        loop {
            if self.hot.reserve(key, value) {
                return Ok(());
            }
            if laps > LAPS_MAX {
                let text = "the tier is full of records that are being written";
                return Err(Error::new(ErrorKind::Full, text));
            }
            if !self.has_seat(&sweepers) {
                self.sweeps.claims.wait(&mut sweepers);
                continue;
            }
            match self.pass(&mut sweepers, laps > 0) {
                // What others merge may be all there is.
                (None, true) if sweepers.count() > 0 => self.sweeps.claims.wait(&mut sweepers),
                (None, is_end) => laps += u32::from(is_end),
                (Some(claim), is_end) => {
                    drop(sweepers);
                    self.bring_home(&claim.victims, Alone::Try)?;
                    drop(claim);
                    laps += u32::from(is_end);
                    sweepers = self.sweeps.claims.lock();
                }
            }
        }
    }

    /// Sweeps so that writers find room, and follows a target that has shrunk; says whether it did something.
    pub(crate) fn sweep_in_background(&self) -> Result<bool> {
        // Looked at each time, for readers.
        let wants_sweep = self.wants_sweep();
        let is_over = self.hot.bytes() > self.hot.target();
        if !is_over && !wants_sweep {
            return Ok(false);
        }
        for _ in 0..if is_over { PASSES_AT_ONCE } else { SWEEPS_AT_ONCE } {
            if is_over && self.hot.bytes() <= self.hot.target() {
                break;
            }
            let sweepers = self.sweeps.claims.try_lock();
            let Some(mut sweepers) = sweepers.filter(|sweepers| self.has_seat(sweepers)) else {
                return Ok(false);
            };
            let (claim, _) = self.pass(&mut sweepers, true);
            drop(sweepers);
            claim.map_or(Ok(()), |claim| self.bring_home(&claim.victims, Alone::Try))?;
        }
        Ok(true)
    }

    /// Whether one more may sweep from the hand on.
    fn has_seat(&self, sweepers: &Sweepers) -> bool {
        (sweepers.count() as u64) < self.sweepers_most() && !sweepers.is_claimed(sweepers.hand.at())
    }

    /// Sweeps that may go on beside each other.
    fn sweepers_most(&self) -> u64 {
        let each = self.pages.bytes_min() * PAGES_EACH;
        self.pages.cache().map_or(1, |cache| (cache.bytes() / each.max(1)).clamp(1, SWEEPERS_MAX))
    }

    /// Whether the background should sweep, so that writers find room, or what is read.
    fn wants_sweep(&self) -> bool {
        let is_due = match self.chosen.tuning.keeps_records() {
            true => {
                // Room that is there already is filled first.
                let is_filled = self.hot.bytes() >= self.hot.target() / 16 * FILLED_SIXTEENTHS;
                self.look_whether_readers_lack_room() && is_filled
                    || self.hot.is_full() && self.is_mostly_dirty()
            }
            false => self.hot.bytes() > self.hot.target() / 2,
        };
        is_due && self.hot.dirty() > 0
    }

    /// Whether more records were read and did not enter, since the last call, than were put: then what is dirty and
    /// nobody asks for is in the way of what is read.
    fn look_whether_readers_lack_room(&self) -> bool {
        let puts = self.images.puts();
        let new = puts - self.sweeps.puts_before.swap(puts, Relaxed);
        let refused = self.sweeps.refused.swap(0, Relaxed);
        let lacks = refused > new && self.hot.dirty() * DIRTY_PART >= self.hot.len();
        self.sweeps.readers_lack_room.store(lacks, Relaxed);
        lacks
    }

    /// Whether readers lacked room at the last look.
    pub(crate) fn readers_lack_room(&self) -> bool {
        self.sweeps.readers_lack_room.load(Relaxed)
    }

    /// Notes that a record that was read did not enter the tier.
    pub(crate) fn note_refused(&self) {
        self.sweeps.refused.fetch_add(1, Relaxed);
    }

    /// Notes that a record that was read found no room, and makes some: merges what is dirty where readers lack room,
    /// for the background alone is one thread beside all of them, and lets clean records leave otherwise.
    pub(crate) fn refuse(&self) {
        self.note_refused();
        let Some(mut sweepers) = self.sweeps.claims.try_lock() else { return };
        if self.readers_lack_room() && self.has_seat(&sweepers) {
            let (claim, _) = self.pass(&mut sweepers, true);
            drop(sweepers);
            // What cannot be merged stays dirty. The read has what it wants, and the next write is told.
            _ = claim.map(|claim| self.bring_home(&claim.victims, Alone::Try));
        } else {
            let passed = self.hot.advance(&mut sweepers.hand, false, &mut Records::default());
            self.chosen.admission.load().note(passed);
        }
    }

    /// Whether so much is dirty that it is merged to make room.
    pub(crate) fn is_mostly_dirty(&self) -> bool {
        self.hot.dirty() * 4 >= self.hot.len() * DIRTY_FOURTHS
    }

    /// Moves the hand over a leaf of the tier, and lets what is clean there leave. Where it is due to merge what is
    /// dirty, or `takes_dirty`, it goes on, and takes along changes of many leaves of the tree. Returns them, and
    /// whether the hand begins again.
    fn pass(&self, sweepers: &mut Sweepers, takes_dirty: bool) -> (Option<Claim<'_>>, bool) {
        let keeps = self.chosen.tuning.keeps_records();
        let mut victims = sweepers.take_spare();
        let first = sweepers.hand.at().to_vec();
        let stop = sweepers.next_claim(&first);
        let end = loop {
            let begin = sweepers.hand.at().to_vec();
            if !keeps {
                // Nothing is kept for reads: pages are.
                self.hot.pass(&begin, false, &mut Records::default());
            }
            let passed = self.hot.advance(&mut sweepers.hand, false, &mut victims);
            self.chosen.admission.load().note(passed);
            let end = Some(sweepers.hand.at()).filter(|at| !at.is_empty());
            let is_last = stop.as_ref().is_some_and(|stop| end.is_none_or(|end| end >= &stop[..]));
            let upper = if is_last { stop.as_deref() } else { end };
            let stays = passed.records - passed.asked - passed.left;
            let merges = !keeps || stays > 0 && (takes_dirty || self.is_mostly_dirty());
            // What lies between the two places of the hand, and no more: the next step begins there, so keys ascend.
            let mut from = merges.then_some(begin);
            while let Some(at) = from {
                from = self.hot.take_along(&at, upper, &mut victims);
            }
            if end.is_none() || is_last || !merges || self.is_enough(&victims) {
                break upper.map(<[u8]>::to_vec);
            }
        };
        let is_end = sweepers.hand.at().is_empty();
        if victims.is_empty() {
            sweepers.give_spare(victims);
            return (None, is_end);
        }
        let range = (&first[..], end.as_deref());
        (Some(self.sweeps.claims.claim(sweepers, range, victims)), is_end)
    }

    /// Takes dirty records along, from a key on, until they are enough, and claims them. Others that merge there are
    /// waited for; it ends before those further on. Returns also where to go on, `None` at the end of the range.
    pub(crate) fn take_range(
        &self,
        (from, to): (&[u8], Option<&[u8]>),
        is_enough: &dyn Fn(&Records) -> bool,
    ) -> (Claim<'_>, Option<Vec<u8>>) {
        let mut sweepers = self.sweeps.claims.lock();
        while sweepers.is_claimed(from) {
            self.sweeps.claims.wait(&mut sweepers);
        }
        let is_within = |key: &Vec<u8>| to.is_none_or(|to| &key[..] < to);
        let stop = sweepers.next_claim(from).filter(is_within);
        let upper = stop.as_deref().or(to);
        let (mut victims, mut next) = (sweepers.take_spare(), Some(from.to_vec()));
        while let Some(at) = next.take() {
            next = self.hot.take_along(&at, upper, &mut victims);
            if is_enough(&victims) {
                break;
            }
        }
        let end = next.as_deref().or(upper);
        let claim = self.sweeps.claims.claim(&mut sweepers, (from, end), victims);
        (claim, next.or(stop))
    }

    /// Whether these records lie in about as many leaves of the tree as are changed at once.
    pub(crate) fn is_enough(&self, victims: &Records) -> bool {
        let leaves = self.tree().map_or(1, |tree| tree.pages());
        let each = self.hot.dirty() / leaves + 1;
        victims.len() as u64 >= each * LEAVES_AT_ONCE
            || victims.bytes() as u64 >= self.victim_bytes()
    }

    /// Bytes of the records that all sweeps copy, about.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.victim_bytes() * self.sweepers_most()
    }

    /// Bytes of the records that a sweep copies, about.
    fn victim_bytes(&self) -> u64 {
        VICTIM_BYTES_MAX.min(self.hot.target() / VICTIM_PART / self.sweepers_most())
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

    /// Merges all records that are dirty now into the tree. The caller holds `publishing`.
    ///
    /// # Errors
    /// As [`Tiered::reserve`].
    pub(crate) fn bring_all_home(&self) -> Result<()> {
        let mut from = Some(Vec::new());
        while let Some(at) = from {
            let claim;
            (claim, from) = self.take_range((&at, None), &|victims| self.is_enough(victims));
            self.bring_home(&claim.victims, Alone::Held)?;
        }
        Ok(())
    }

    /// Merges the dirty records of the leaves of the tier that these keys lie in.
    ///
    /// # Errors
    /// As [`Tiered::reserve`].
    pub(crate) fn sweep_keys(&self, keys: &[Vec<u8>]) -> Result<()> {
        for key in keys {
            let (claim, _) = self.take_range((key, None), &|_| true);
            self.bring_home(&claim.victims, Alone::Try)?;
        }
        Ok(())
    }

    /// Changes the leaves of records that were taken, and ends their sweep.
    pub(crate) fn bring_home(&self, victims: &Records, alone: Alone) -> Result<()> {
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
        let tree = self.tree_made();
        let merged = tree.and_then(|tree| self.merge_in_steps(&tree, &changes, &home, alone));
        // After an error the first ones are home, and the others are dirty as before.
        self.hot.finish(victims, home.get(), &mut |lost| {
            if let Some(value) = lost.value.filter(|value| value.large) {
                self.values.superseded(value.bytes);
            }
        });
        merged
    }
}
