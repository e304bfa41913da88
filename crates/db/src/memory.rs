//! The memory of one open database: its budget, and the job that moves it between keyspaces as the
//! [`governor`](crate::governor) computes.
//!
//! A keyspace that has just been opened or used again gets what others can give at each look: most
//! of it within two seconds.
//!
//! **Batches.** What its keyspaces have now does not limit a batch. Before a batch is written, each
//! of its keyspaces is lent what the batch needs ([`Memory::lend`]), out of what others have not
//! filled or do not use, and keeps it until the next look.
//!
//! **Records that stay in memory** count from before they are read: as `being_read`, until their
//! keyspace is one of the open ones ([`Memory::begin_reading`]).
//!
//! **Lock order**, first to last: the list of all keyspaces, `sharing`, `being_read`, the list of
//! open ones, `filling`, `KeyspaceState::seen_use`.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::allocator::{give_back, resident_bytes};
use spinney_base::shim::Mutex;
use spinney_base::{Error, MemoryBudget, Next, Result, Runtime};
use spinney_wal::Log;

use crate::governor::{Claim, Seen, Why, divide, grant};
use crate::jobs::NOTHING_OPEN;
use crate::keyspace_state::KeyspaceState;
use crate::keyspaces::Keyspaces;
use crate::place::Place;
use crate::reading;
use crate::stats::KeyspaceMemory;

/// Bytes of the budget that the lock table, buffers and bookkeeping take before keyspaces share the
/// rest.
const OVERHEAD_BYTES: u64 = 768 << 10;

/// Beyond this many bytes of budget, the log's buffers may take one part in [`LOG_SHARE`] of the
/// rest, up to [`LOG_BYTES_MAX`]: for records that gather for a flush, and for buffers kept between
/// flushes.
const SMALL_BUDGET_BYTES: u64 = 16 << 20;
const LOG_SHARE: u64 = 32;
const LOG_BYTES_MAX: u64 = 2 << 20;

/// Least bytes of that for each kind of buffer.
const LOG_SPARE_BYTES_MIN: u64 = 16 << 10;

/// Least memory that a keyspace is opened with, in bytes. It limits the number of open keyspaces.
pub(crate) const KEYSPACE_BYTES_MIN: u64 = 128 << 10;

/// Interval between two looks while any keyspace is open.
const LOOK: Duration = Duration::from_millis(250);

/// Interval where a keyspace holds more than its target, which others wait for; and the most such
/// intervals in a row.
const SOON: Duration = Duration::from_millis(25);
const SOON_MOST: u32 = 8;

/// Bytes that the process may take beyond its budget before the allocator is asked to give memory
/// back. It is half of the 64 MiB that are promised, so that growth until the next look fits too.
const BESIDE_MAX: u64 = 32 << 20;

/// The allocator is asked again after [`HEAP_PAUSE_MIN`]. The pause doubles, up to
/// [`HEAP_PAUSE_MAX`], each time that the allocator gave less than [`HEAP_GAVE_MIN`] bytes: the
/// caller's own memory is then in use.
const HEAP_PAUSE_MIN: Duration = Duration::from_secs(1);
const HEAP_PAUSE_MAX: Duration = Duration::from_secs(60);
const HEAP_GAVE_MIN: u64 = 4 << 20;

/// Time at which the allocator may be asked again, and the pause before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeapPause {
    until: Duration,
    length: Duration,
}

impl HeapPause {
    /// Returns the next pause, after the allocator gave `gave` bytes.
    fn after(self, gave: u64, now: Duration) -> HeapPause {
        let length = match gave {
            HEAP_GAVE_MIN.. => HEAP_PAUSE_MIN,
            _ => (2 * self.length).clamp(HEAP_PAUSE_MIN, HEAP_PAUSE_MAX),
        };
        HeapPause { until: now + length, length }
    }
}

/// A batch needs this many times its bytes while it is written.
const LOAN: u64 = 2;

/// A keyspace that lacks memory is lent this many bytes more than it lacks, and one part in this many.
const LACKED_PART: u64 = 32;
const LACKED_BYTES: u64 = 256 << 10;

/// What was in memory may take one part in this many of the budget beyond its share when it is opened again, within these
/// bytes. With less, a database whose memory was full may not open after a crash; with more, a budget says less.
const SLACK_PART: u64 = 4;
const SLACK_BYTES: Range<u64> = 1 << 20..32 << 20;

/// Steps in which the budget is found that leaves this much to keyspaces.
const BUDGET_STEPS: u32 = 16;

/// Longest wait of a batch for memory that was lent to it. What is missing then is taken beyond the
/// budget for a moment.
const LOAN_WAIT: Duration = Duration::from_millis(200);

/// How long writes of a keyspace that lack memory, or openings of it, are refused at once, after one has waited in vain.
pub(crate) const VAIN_PAUSE: Duration = Duration::from_secs(1);

const LOAN_NAP: Duration = Duration::from_millis(1);
/// Most steps of background work that a batch does meanwhile.
const LOAN_HELPS_MAX: u32 = 1_000;

/// The memory budget, and the right to divide it.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) budget: MemoryBudget,
    /// Bytes beside it that an opening for reading has set aside; `None` for one that writes.
    beside: Option<u64>,
    /// Held while the budget is shared out.
    sharing: Mutex<()>,
    /// Keyspaces that are being filled and are not open yet.
    filling: Mutex<Vec<Arc<KeyspaceState>>>,
    /// Bytes of records that are being read, of keyspaces that will keep them all in memory and are not open yet.
    being_read: Mutex<u64>,
}

/// Records that are being read into memory, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Read<'a> {
    memory: &'a Memory,
    bytes: u64,
}

impl Read<'_> {
    /// Ends the reading: `list` lists the keyspace as open, so that it counts all the time, and once.
    pub(crate) fn end<R>(mut self, list: impl FnOnce() -> R) -> R {
        let mut being_read = self.memory.being_read.lock();
        *being_read -= std::mem::take(&mut self.bytes);
        let listed = list();
        drop(being_read);
        listed
    }
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            *self.memory.being_read.lock() -= self.bytes;
        }
    }
}

/// A keyspace that is counted though it is not open yet.
#[derive(Debug)]
pub(crate) struct Filling<'a> {
    memory: &'a Memory,
    keyspace: Arc<KeyspaceState>,
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.memory.filling.lock().retain(|other| !Arc::ptr_eq(other, &self.keyspace));
    }
}

impl Memory {
    pub(crate) fn new(bytes: u64, beside: Option<u64>) -> Memory {
        Memory {
            budget: MemoryBudget::new(bytes),
            beside,
            sharing: Mutex::new(()),
            filling: Mutex::default(),
            being_read: Mutex::default(),
        }
    }

    /// Counts a keyspace that is being filled among those that share the budget.
    pub(crate) fn count(&self, keyspace: Arc<KeyspaceState>) -> Filling<'_> {
        self.filling.lock().push(keyspace.clone());
        Filling { memory: self, keyspace }
    }

    /// Changes the budget.
    ///
    /// # Errors
    /// `Full`: what open keyspaces keep in memory needs more.
    pub(crate) fn set_total(&self, keyspaces: &Keyspaces, bytes: u64) -> Result<()> {
        let _one_at_a_time = self.sharing.lock();
        if bytes < self.budget.total() && !self.is_enough(keyspaces, bytes, 0) {
            return Err(lacking(self.kept(keyspaces), bytes, None));
        }
        self.budget.set_total(bytes);
        Ok(())
    }

    /// Returns whether a budget of `total` bytes has room for what keyspaces keep, if that were `freed` bytes less.
    pub(crate) fn is_enough(&self, keyspaces: &Keyspaces, total: u64, freed: u64) -> bool {
        self.kept(keyspaces).saturating_sub(freed) <= Self::shareable_of(total)
    }

    /// Bytes that keyspaces keep in memory always: those that are open, being read, and being filled.
    fn kept(&self, keyspaces: &Keyspaces) -> u64 {
        self.kept_beside(keyspaces, *self.being_read.lock())
    }

    fn kept_beside(&self, keyspaces: &Keyspaces, being_read: u64) -> u64 {
        let open = keyspaces.open.read();
        being_read + kept(open.iter().chain(&*self.filling.lock()))
    }

    /// Checks that this number of bytes, which keyspaces will keep in memory always, fit beside what open ones keep.
    ///
    /// # Errors
    /// `Full`, if they do not.
    pub(crate) fn check_fits(&self, keyspaces: &Keyspaces, own: u64) -> Result<()> {
        self.check_kept(own, own + self.kept(keyspaces))
    }

    fn check_kept(&self, own: u64, all: u64) -> Result<()> {
        if own == 0 || self.holds(all) {
            return Ok(());
        }
        Err(lacking(all, self.budget.total(), self.beside))
    }

    /// Does the same, and counts them until the returned value is dropped, while they are read.
    ///
    /// # Errors
    /// `Full`, if they do not fit.
    pub(crate) fn begin_reading(&self, keyspaces: &Keyspaces, own: u64) -> Result<Read<'_>> {
        let mut being_read = self.being_read.lock();
        self.check_kept(own, own + self.kept_beside(keyspaces, *being_read))?;
        *being_read += own;
        Ok(Read { memory: self, bytes: own })
    }

    /// Returns whether this number of bytes would fit beside what open keyspaces keep, if those kept `freed` bytes less.
    pub(crate) fn would_fit(&self, keyspaces: &Keyspaces, own: u64, freed: u64) -> bool {
        self.holds(own + self.kept(keyspaces).saturating_sub(freed))
    }

    /// Returns whether a keyspace could be lent this number of bytes, if others kept `freed` bytes less.
    pub(crate) fn could_lend(
        &self,
        keyspaces: &Keyspaces,
        keyspace: &KeyspaceState,
        (lacked, freed): (u64, u64),
    ) -> bool {
        let being_read = *self.being_read.lock();
        let (open, filling) = (keyspaces.open.read(), self.filling.lock());
        let others = open.iter().chain(&*filling).filter(|other| other.id != keyspace.id);
        let floors: u64 = being_read + others.map(|other| other.memory_floor()).sum::<u64>();
        lacked + floors.saturating_sub(freed) <= self.shareable()
    }

    /// Returns whether this number of bytes may be kept in memory always. What was in memory when a process ended may take a
    /// little more in the next one, for its records came in another order: that is not refused.
    fn holds(&self, kept: u64) -> bool {
        let total = self.budget.total();
        let slack = (total / SLACK_PART).clamp(SLACK_BYTES.start, SLACK_BYTES.end);
        kept <= Self::shareable_of(total) + slack
    }

    /// Bytes of the budget that keyspaces share.
    pub(crate) fn shareable(&self) -> u64 {
        Self::shareable_of(self.budget.total())
    }

    fn shareable_of(total: u64) -> u64 {
        let overhead = OVERHEAD_BYTES + Self::log_bytes(total) + Self::tail_bytes(total);
        total.saturating_sub(overhead)
    }

    /// Bytes of a budget for the buffers of the log, beyond what is always there.
    fn log_bytes(total: u64) -> u64 {
        (total.saturating_sub(SMALL_BUDGET_BYTES) / LOG_SHARE).min(LOG_BYTES_MAX)
    }

    /// Bytes of a budget for the mapped tail of the log, beyond a few pages.
    pub(crate) fn tail_bytes(total: u64) -> u64 {
        Self::log_bytes(total) / 2
    }

    /// Tells the log how much its buffers may keep.
    pub(crate) fn limit_log(&self, log: &Log) {
        let total = self.budget.total();
        let spare = (Self::log_bytes(total) / 4).max(LOG_SPARE_BYTES_MIN);
        log.keep_spare(usize::try_from(spare).unwrap_or(usize::MAX));
    }

    /// Share of each of `count` keyspaces that recovery opens together, when it is not known which
    /// of them will be used.
    pub(crate) fn first_share(&self, count: usize) -> u64 {
        (self.shareable() / count.max(1) as u64).max(KEYSPACE_BYTES_MIN)
    }

    /// Number of keyspaces that may be open at once, as far as the budget allows.
    pub(crate) fn open_max(&self) -> usize {
        usize::try_from(self.shareable() / KEYSPACE_BYTES_MIN).unwrap_or(usize::MAX)
    }

    /// Runs the job: measures the open keyspaces, and moves their targets.
    pub(crate) fn govern(
        &self,
        (keyspaces, runtime): (&Keyspaces, &Runtime),
        soon: &mut u32,
        pause: &mut HeapPause,
    ) -> Next {
        if keyspaces.none_open() {
            return Next::Wait(NOTHING_OPEN);
        }
        // Looks in between measure nothing, because their interval is too short.
        let is_kept_back = self.move_targets(keyspaces, *soon == 0, None);
        if *soon == 0 && !runtime.is_stepped() {
            self.give_back_heap(runtime.now(), pause);
        }
        *soon = if is_kept_back && *soon < SOON_MOST { *soon + 1 } else { 0 };
        Next::Wait(if *soon > 0 { SOON } else { LOOK })
    }

    /// Asks the allocator to give memory back, where the process takes much more than its budget.
    fn give_back_heap(&self, now: Duration, pause: &mut HeapPause) {
        if now < pause.until {
            return;
        }
        let Some(before) = resident_bytes() else { return };
        if before <= self.budget.total() + BESIDE_MAX {
            return;
        }
        give_back();
        let gave = before.saturating_sub(resident_bytes().unwrap_or(before));
        *pause = pause.after(gave, now);
    }

    /// Divides the budget among the open keyspaces after one came or went, or the budget changed.
    pub(crate) fn share_out(&self, keyspaces: &Keyspaces) {
        self.move_targets(keyspaces, false, None);
    }

    /// Returns the memory that a keyspace is opened with: what no other open one has filled or
    /// uses. [`Memory::share_out`] takes it from the others once the keyspace is one of them.
    pub(crate) fn opening_share(&self, keyspaces: &Keyspaces) -> u64 {
        let open = keyspaces.open.read();
        let mut claims: Vec<Claim> =
            open.iter().map(|keyspace| keyspace.claim(&keyspace.seen_use.lock())).collect();
        let (floor, is_busy) = (KEYSPACE_BYTES_MIN, true);
        claims.push(Claim { floor, target: floor, is_busy, ..Claim::default() });
        divide(self.shareable(), &claims).pop().unwrap_or(floor)
    }

    /// Lets a keyspace hold a batch of `bytes` bytes, whatever its target is now. No lock is held.
    pub(crate) fn lend(
        &self,
        (keyspaces, runtime): (&Keyspaces, &Runtime),
        keyspace: &KeyspaceState,
        bytes: u64,
    ) {
        if !keyspace.holds_batch(bytes) {
            self.lend_all((keyspaces, runtime), keyspace, LOAN * bytes, LOAN_WAIT);
        }
    }

    /// Lets a keyspace have what one of its writes has lacked, which an engine says that keeps all its records in memory.
    /// What lacks after a wait `make` may make, and says whether it has. Returns whether the write may be tried again; `None`
    /// if another thread has asked for this meanwhile. No lock is held.
    pub(crate) fn lend_lacked(
        &self,
        who: (&Keyspaces, &Runtime),
        keyspace: &KeyspaceState,
        make: impl FnOnce(u64) -> bool,
    ) -> Option<bool> {
        let lacked = Some(keyspace.memory.take_lacked()).filter(|lacked| *lacked > 0)?;
        let is_there = || keyspace.memory.target() >= lacked;
        if !is_there() {
            // So that not each write asks.
            let asked = lacked + lacked / LACKED_PART + LACKED_BYTES;
            let runtime = who.1;
            let is_patient = keyspace.is_patient(runtime.now());
            let wait = if is_patient { LOAN_WAIT } else { Duration::ZERO };
            self.lend_all(who, keyspace, asked, wait);
            if is_patient && !is_there() && make(lacked) {
                self.lend_all(who, keyspace, asked, wait);
            }
            // In simulations time stands still.
            if is_patient && !is_there() && !runtime.is_stepped() {
                keyspace.lose_patience(runtime.now() + VAIN_PAUSE);
            }
        }
        Some(is_there())
    }

    /// Raises the target of a keyspace to this, as far as others can give it, and waits for that.
    fn lend_all(
        &self,
        (keyspaces, runtime): (&Keyspaces, &Runtime),
        keyspace: &KeyspaceState,
        needed: u64,
        wait: Duration,
    ) {
        let until = runtime.now() + wait;
        let mut helps = 0..LOAN_HELPS_MAX;
        while self.move_targets(keyspaces, false, Some((keyspace, needed))) {
            if keyspace.memory.target() >= needed || runtime.now() >= until {
                return;
            }
            // In simulations time stands still while this thread does the background's work.
            if !runtime.help() {
                runtime.sleep(LOAN_NAP);
            } else if helps.next().is_none() {
                return;
            }
        }
    }

    /// Moves the targets of all open keyspaces to what they should be; `measured` where a full look
    /// has passed since the last time. Returns whether some memory is kept back, because others
    /// hold more than they should.
    fn move_targets(
        &self,
        keyspaces: &Keyspaces,
        measured: bool,
        loan: Option<(&KeyspaceState, u64)>,
    ) -> bool {
        let places = keyspaces.places.read();
        let _one_at_a_time = self.sharing.lock();
        let (open, filling) = (keyspaces.open.read(), self.filling.lock());
        let keyspaces: Vec<&Arc<KeyspaceState>> = open.iter().chain(&*filling).collect();
        let uses = |keyspace: &KeyspaceState| {
            let found = places.binary_search_by_key(&keyspace.id, |place| place.id);
            found.map_or(0, |found| Place::uses(&places[found]))
        };
        let mut claims: Vec<Claim> = Vec::with_capacity(keyspaces.len());
        for keyspace in &keyspaces {
            let (account, mut seen) = (&keyspace.memory, keyspace.seen_use.lock());
            if measured {
                seen.look(uses(keyspace), account.used(), account.worth(), account.is_full());
            }
            claims.push(keyspace.claim(&seen));
        }
        let total = self.shareable();
        let lent = loan.and_then(|(keyspace, needed)| {
            let at = keyspaces.iter().position(|one| one.id == keyspace.id)?;
            let floors: u64 = claims.iter().map(|claim| claim.floor).sum();
            let most = total.saturating_sub(floors - claims[at].floor);
            claims[at].floor = claims[at].floor.max(needed.min(most));
            Some(at)
        });
        let wanted = divide(total, &claims);
        let wants = claims.iter().any(Claim::wants_more);
        for (at, (keyspace, claim)) in keyspaces.iter().zip(&claims).enumerate() {
            let why = match claim.is_busy {
                _ if lent == Some(at) => Why::Lent,
                true if claim.is_hungry && wanted[at] < claim.target => Why::Yields,
                true if claim.is_hungry => Why::Wants,
                true => Why::Fills,
                false if wants => Why::Gives,
                false => Why::Idle,
            };
            keyspace.seen_use.lock().set_why(why);
        }
        set_targets(total, &keyspaces, &claims, &wanted)
    }
}

/// Bytes that these keyspaces keep in memory always.
pub(crate) fn kept<'k>(keyspaces: impl Iterator<Item = &'k Arc<KeyspaceState>>) -> u64 {
    keyspaces.map(|keyspace| keyspace.kept_bytes()).sum()
}

/// Makes the error for records that stay in memory, with this number of bytes, and do not fit into what keyspaces share. It
/// names a budget that is enough: an opening for reading sets a part of it aside.
fn lacking(kept: u64, budget: u64, set_aside: Option<u64>) -> Error {
    // What the log and the database itself take grows with the budget, up to a bound. Writes need some more.
    let wanted = kept + kept / LACKED_PART + LACKED_BYTES;
    let beside = |total: u64| total - Memory::shareable_of(total);
    let needed = (0..BUDGET_STEPS).fold(wanted, |total, _| wanted + beside(total.max(wanted)));
    let needed = if set_aside.is_none() { needed } else { reading::whole_of(needed) };
    let budget = budget + set_aside.unwrap_or(0);
    let text = "of memory are needed for keyspaces that keep all records in it, and the budget is";
    Error::lacking_memory(format!("{needed} bytes {text} {budget} (Options::memory)"))
}

/// Lowers targets at once, and raises others by what those have given. Returns whether some memory
/// is kept back.
fn set_targets(
    total: u64,
    keyspaces: &[&Arc<KeyspaceState>],
    claims: &[Claim],
    wanted: &[u64],
) -> bool {
    let (grants, is_kept_back) = grant(total, claims, wanted);
    for (keyspace, granted) in keyspaces.iter().zip(grants) {
        let account = &keyspace.memory;
        account.set_target(granted);
        // A keyspace near its target, or beyond it, must follow now, not at its next look.
        if account.used() > granted / 4 * 3 {
            keyspace.job.wake();
        }
    }
    is_kept_back
}

impl KeyspaceState {
    /// Returns whether the target is enough for a batch of this many bytes.
    pub(crate) fn holds_batch(&self, bytes: u64) -> bool {
        self.memory.target() >= LOAN * bytes
    }

    /// Reports what the keyspace has, and why.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "hits, which are not negative"
    )]
    pub(crate) fn memory_stats(&self) -> KeyspaceMemory {
        let (worth, why) = self.seen_use.lock().result();
        KeyspaceMemory {
            used: self.memory.used(),
            target: self.memory.target(),
            floor: self.memory_floor(),
            worth: (worth / LOOK.as_secs_f64()) as u64,
            why,
        }
    }

    /// What the governor knows of the keyspace.
    fn claim(&self, seen: &Seen) -> Claim {
        let (used, target) = (self.memory.used(), self.memory.target());
        seen.claim(self.memory_floor(), used, target)
    }

    /// Bytes of what the keyspace keeps in memory always, of an engine that keeps all records there.
    pub(crate) fn kept_bytes(&self) -> u64 {
        let is_in_memory = !self.engine.capabilities().larger_than_memory;
        if is_in_memory { self.engine.memory_floor() } else { 0 }
    }

    /// Bytes that the keyspace keeps whatever others want.
    pub(crate) fn memory_floor(&self) -> u64 {
        self.engine.memory_floor().max(FLOOR_BYTES_MIN)
    }
}

/// Lowest floor of any keyspace, in bytes.
const FLOOR_BYTES_MIN: u64 = KEYSPACE_BYTES_MIN / 4;

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn an_allocator_that_gives_little_is_asked_less_and_less() {
        let (mut pause, mut now, mut times) = (HeapPause::default(), Duration::ZERO, 0);
        while now < Duration::from_secs(600) {
            now = now.max(pause.until);
            pause = pause.after(1 << 20, now);
            times += 1;
        }
        assert!((10..=20).contains(&times), "{times} in ten minutes");
        pause = pause.after(HEAP_GAVE_MIN, now);
        assert_eq!(pause, HeapPause { until: now + HEAP_PAUSE_MIN, length: HEAP_PAUSE_MIN });
    }
}
