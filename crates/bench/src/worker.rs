//! One client thread: picks operations, carries them out, checks what it reads and times it.
//!
//! Concurrency: everything that threads share is in [`Shared`]. Numbers for inserts are handed out
//! by [`Tickets`], which also knows below which number every insert has been acknowledged; readers
//! choose below that, so that a read that finds nothing is the engine's error.

mod bulk;

use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use spinney_base::runtime::SplitMix;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{
    AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use spinney_base::{Error, Result, Runtime};

use crate::dataset::{Dataset, OrderedKeys, groups};
use crate::distribution::Chooser;
use crate::driver::Session;
use crate::plan::Workload;
use crate::turns;
use crate::value;

/// Operations run but are not counted.
pub(crate) const WARM: u8 = 0;
/// Operations are counted.
pub(crate) const MEASURE: u8 = 1;
/// Threads end after their current operation.
pub(crate) const STOP: u8 = 2;

/// A thread that met this many errors ends.
const ERRORS_MAX: u64 = 100;
/// A thread keeps this many error messages.
const MESSAGES_MAX: usize = 3;
/// Keys of the queue begin with this and go on with a big-endian number.
const QUEUE_PREFIX: &[u8] = b"queue";
/// Latencies above this count as this.
const LATENCY_MAX: Duration = Duration::from_secs(300);

/// Hands out the numbers 0, 1, 2, ... and knows below which all are done.
///
/// Invariant: a thread's slot holds a number at most the one it was given from before the number is
/// taken until it is done, so the least of all slots and `next` bounds what may be unfinished.
#[derive(Debug)]
pub(crate) struct Tickets {
    next: AtomicU64,
    slots: Box<[AtomicU64]>,
}

impl Tickets {
    pub(crate) fn new(next: u64, threads: usize) -> Self {
        Tickets {
            next: AtomicU64::new(next),
            slots: (0..threads).map(|_| AtomicU64::new(u64::MAX)).collect(),
        }
    }

    /// The next number, unless it is `limit`.
    fn take_below(&self, thread: usize, limit: u64) -> Option<u64> {
        let mut number = self.next.load(SeqCst);
        while number < limit {
            self.slots[thread].store(number, SeqCst);
            match self.next.compare_exchange(number, number + 1, SeqCst, SeqCst) {
                Ok(_) => return Some(number),
                Err(taken) => number = taken,
            }
        }
        self.done(thread);
        None
    }

    fn done(&self, thread: usize) {
        self.slots[thread].store(u64::MAX, SeqCst);
    }

    /// All numbers below this are done.
    fn all_done_below(&self) -> u64 {
        let next = self.next.load(SeqCst);
        self.slots.iter().map(|slot| slot.load(SeqCst)).fold(next, u64::min)
    }

    /// The number that will be handed out next.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(SeqCst)
    }
}

/// What the threads of one workload share.
pub(crate) struct Shared {
    pub(crate) workload: Workload,
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) chooser: Chooser,
    pub(crate) record_size: usize,
    pub(crate) scan_length: Option<usize>,
    /// Keys that each operation of `m` asks for.
    pub(crate) multi_get: usize,
    /// Another one for each workload of a run: the second of two `c` is not to ask for the first
    /// one's keys again.
    pub(crate) seed: u64,
    /// Keyspaces that are driven at a time, and at some time.
    pub(crate) busy: usize,
    pub(crate) driven: usize,
    /// Which turn it is.
    pub(crate) turn: AtomicU64,
    pub(crate) clock: Runtime,
    /// `load` inserts up to here; nobody else has a bound.
    pub(crate) records: u64,
    pub(crate) phase: AtomicU8,
    /// Where the hot set of `shift` is.
    pub(crate) salt: AtomicU64,
    /// What a load in key order takes its keys from.
    pub(crate) ordered: Option<Mutex<OrderedKeys>>,
    /// Ordinals of records.
    pub(crate) inserts: Tickets,
    /// Inserts of `drift`, and about how many there will be.
    pub(crate) drifts: Tickets,
    pub(crate) drift_total: u64,
    pub(crate) queue_tail: Tickets,
    pub(crate) queue_head: Tickets,
    /// First reads of the queue by each thread; written by that thread alone.
    pub(crate) peeks: Box<[AtomicU64]>,
    /// Operations of each thread, for progress; written by that thread alone.
    pub(crate) done: Box<[AtomicU64]>,
    pub(crate) finished: AtomicUsize,
}

/// What one thread did while it was measured.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) latencies: Histogram<u64>,
    pub(crate) operations: u64,
    /// Errors and their first messages count from the start of the warm-up: a wrong answer is wrong
    /// then too.
    pub(crate) errors: u64,
    pub(crate) messages: Vec<String>,
    /// Bytes of keys and values inserted less those removed, from the start of the warm-up.
    pub(crate) logical_bytes: i64,
}

impl Tally {
    pub(crate) fn new() -> Result<Self> {
        let highest = u64::try_from(LATENCY_MAX.as_nanos()).unwrap_or(u64::MAX);
        let latencies = Histogram::new_with_bounds(1, highest, 3)
            .map_err(|error| Error::invalid(format!("latency histogram: {error}")))?;
        Ok(Tally { latencies, operations: 0, errors: 0, messages: Vec::new(), logical_bytes: 0 })
    }

    fn error(&mut self, message: String) {
        self.errors += 1;
        if self.messages.len() < MESSAGES_MAX {
            self.messages.push(message);
        }
    }
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Read,
    Update,
    Insert,
    Scan,
    ReadMany,
    ReadGroup,
    ReadModifyWrite,
    ReadAbsent,
    Push,
    Pop,
    Peek,
    DriftInsert,
}

/// The mix of a workload; `roll` is below 600, so that percents and thirds are whole numbers.
fn action(workload: Workload, roll: usize) -> Action {
    const HALF: usize = 300;
    const NINETY_FIVE_PERCENT: usize = 570;
    match workload {
        Workload::Load => Action::Insert,
        Workload::A if roll < HALF => Action::Read,
        Workload::A => Action::Update,
        Workload::B if roll < NINETY_FIVE_PERCENT => Action::Read,
        Workload::B => Action::Update,
        Workload::C | Workload::Shift => Action::Read,
        Workload::D if roll < NINETY_FIVE_PERCENT => Action::Read,
        Workload::E if roll < NINETY_FIVE_PERCENT => Action::Scan,
        Workload::D | Workload::E => Action::Insert,
        Workload::F if roll < HALF => Action::Read,
        Workload::F => Action::ReadModifyWrite,
        Workload::S => Action::Scan,
        Workload::M => Action::ReadMany,
        Workload::Su if roll < NINETY_FIVE_PERCENT => Action::Scan,
        Workload::Su => Action::ReadModifyWrite,
        Workload::Groups => Action::ReadGroup,
        Workload::Absent => Action::ReadAbsent,
        Workload::Queue => [Action::Push, Action::Pop, Action::Peek][roll / 200],
        Workload::Drift if roll < HALF => Action::Read,
        Workload::Drift => Action::DriftInsert,
    }
}

/// Counts a thread as finished when it ends, by a panic too: the runner waits for the count.
struct Finish(Arc<Shared>);

impl Drop for Finish {
    fn drop(&mut self) {
        self.0.finished.fetch_add(1, SeqCst);
    }
}

/// One client thread with its buffers.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    index: usize,
    session: Box<dyn Session>,
    /// The keyspace that the session has turned to.
    keyspace: usize,
    random: SplitMix,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Keys that are asked for together.
    keys: Vec<Vec<u8>>,
    tally: Tally,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        index: usize,
        session: Box<dyn Session>,
    ) -> Result<Self> {
        let mut seeds = SplitMix(shared.seed ^ ((index as u64 + 1) << 32) ^ shared.workload as u64);
        let random = SplitMix(seeds.next_u64());
        Ok(Worker {
            shared,
            index,
            session,
            keyspace: 0,
            random,
            key: Vec::new(),
            value: Vec::new(),
            keys: Vec::new(),
            tally: Tally::new()?,
        })
    }

    /// Runs until told to stop, until `quota` operations were measured, or until a load has no more
    /// records.
    pub(crate) fn run(mut self, quota: Option<u64>) -> Tally {
        let _finish = Finish(self.shared.clone());
        let mut measuring = false;
        let mut done = 0;
        let mut last = self.shared.clock.now();
        loop {
            match self.shared.phase.load(Relaxed) {
                STOP => break,
                MEASURE if !measuring => {
                    measuring = true;
                    last = self.shared.clock.now();
                }
                _ => {}
            }
            if quota.is_some_and(|quota| self.tally.operations >= quota)
                || self.tally.errors >= ERRORS_MAX
            {
                break;
            }
            match self.operate() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => self.tally.error(error.to_string()),
            }
            // The end of one operation is the start of the next: one look at the clock for each.
            let now = self.shared.clock.now();
            done += 1;
            self.shared.done[self.index].store(done, Relaxed);
            if measuring {
                let nanoseconds = u64::try_from((now - last).as_nanos()).unwrap_or(u64::MAX);
                self.tally.latencies.saturating_record(nanoseconds);
                self.tally.operations += 1;
            }
            last = now;
        }
        self.tally
    }

    /// One operation; false when there is nothing left to do.
    fn operate(&mut self) -> Result<bool> {
        if self.shared.driven > 1 && self.shared.workload != Workload::Load {
            self.turn();
        }
        let roll = self.random.below(600);
        match action(self.shared.workload, roll) {
            Action::Read => self.read()?,
            Action::Update => self.update()?,
            Action::Insert => return self.insert(),
            Action::Scan => self.scan()?,
            Action::ReadMany => self.read_many()?,
            Action::ReadGroup => self.read_group()?,
            Action::ReadModifyWrite => {
                self.read()?;
                self.write_chosen()?;
            }
            Action::ReadAbsent => self.read_absent()?,
            Action::Push => self.push()?,
            Action::Pop => self.pop()?,
            Action::Peek => self.peek()?,
            Action::DriftInsert => self.drift()?,
        }
        Ok(true)
    }

    /// Turns to one of the keyspaces that are driven now.
    fn turn(&mut self) {
        let shared = &self.shared;
        let mut busy = turns::busy(shared.turn.load(Relaxed), shared.busy, shared.driven);
        let nth = if shared.busy > 1 { self.random.below(shared.busy) } else { 0 };
        let keyspace = busy.nth(nth).unwrap_or(0);
        if keyspace != self.keyspace {
            self.session.turn_to(keyspace);
            self.keyspace = keyspace;
        }
    }

    /// Makes `key` the key of some record that is there.
    fn choose(&mut self) -> u64 {
        let shared = &self.shared;
        let salt = shared.salt.load(Relaxed);
        let ordinal =
            shared.chooser.next(&mut self.random, || shared.inserts.all_done_below(), salt);
        self.shared.dataset.key(ordinal, &mut self.key);
        ordinal
    }

    fn value_length(&self, key_length: usize) -> usize {
        self.shared.record_size.saturating_sub(key_length)
    }

    /// Makes `value` a new value of `key`.
    fn fill_value(&mut self) {
        let length = self.value_length(self.key.len());
        #[expect(clippy::cast_possible_truncation, reason = "any 32 bits are a version")]
        let version = self.random.next_u64() as u32;
        value::fill(&self.key, version, length, &mut self.value);
    }

    fn record_bytes(&self) -> i64 {
        i64::try_from(self.key.len() + self.value.len()).unwrap_or(i64::MAX)
    }

    fn read(&mut self) -> Result<()> {
        let ordinal = self.choose();
        if !self.session.get(&self.key, &mut self.value)? {
            self.tally.error(format!("record {ordinal} (key {:02x?}) was not found", self.key));
        } else if !value::check(&self.key, &self.value, self.value_length(self.key.len())) {
            self.tally.error(format!("record {ordinal} (key {:02x?}) has a wrong value", self.key));
        }
        Ok(())
    }

    fn read_many(&mut self) -> Result<()> {
        let mut keys = std::mem::take(&mut self.keys);
        keys.resize_with(self.shared.multi_get, Vec::new);
        for key in &mut keys {
            self.choose();
            std::mem::swap(key, &mut self.key);
        }
        let record_size = self.shared.record_size;
        let (mut shown, mut wrong) = (0, None);
        self.session.get_many(&keys, &mut |place, value| {
            shown += 1;
            let length = record_size.saturating_sub(keys[place].len());
            if !value.is_some_and(|value| value::check(&keys[place], value, length)) {
                wrong = Some(place);
            }
        })?;
        if let Some(place) = wrong {
            let key = &keys[place];
            self.tally.error(format!("key {key:02x?} of many has no value or a wrong one"));
        } else if shown != keys.len() {
            self.tally.error(format!("{shown} answers for {} keys", keys.len()));
        }
        self.keys = keys;
        Ok(())
    }

    fn update(&mut self) -> Result<()> {
        self.choose();
        self.write_chosen()
    }

    fn write_chosen(&mut self) -> Result<()> {
        self.fill_value();
        self.session.update(&self.key, &self.value)
    }

    fn insert(&mut self) -> Result<bool> {
        let limit =
            if self.shared.workload == Workload::Load { self.shared.records } else { u64::MAX };
        let Some(ordinal) = self.shared.inserts.take_below(self.index, limit) else {
            return Ok(false);
        };
        match &self.shared.ordered {
            // As many keys as ordinals, in another order.
            Some(keys) => _ = keys.lock().next_into(&mut self.key),
            None => self.shared.dataset.key(ordinal, &mut self.key),
        }
        self.fill_value();
        // An insert that failed keeps its slot, so that nobody reads the record that is missing.
        for keyspace in 0..self.shared.driven {
            if self.shared.driven > 1 {
                self.session.turn_to(keyspace);
                self.keyspace = keyspace;
            }
            self.session.insert(&self.key, &self.value)?;
            self.tally.logical_bytes += self.record_bytes();
        }
        self.shared.inserts.done(self.index);
        Ok(true)
    }

    fn drift(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let Some(number) = shared.drifts.take_below(self.index, u64::MAX) else { return Ok(()) };
        shared.dataset.drift_key(number, shared.drift_total, &mut self.key);
        self.fill_value();
        self.session.insert(&self.key, &self.value)?;
        self.tally.logical_bytes += self.record_bytes();
        shared.drifts.done(self.index);
        Ok(())
    }

    fn read_absent(&mut self) -> Result<()> {
        let index = self.random.next_u64();
        self.shared.dataset.absent_key(index, &mut self.key);
        if self.session.get(&self.key, &mut self.value)? {
            self.tally.error(format!("a key that was never inserted was found: {:02x?}", self.key));
        }
        Ok(())
    }

    fn scan(&mut self) -> Result<()> {
        let ordinal = self.choose();
        let limit = self.shared.scan_length.unwrap_or_else(|| 1 + self.random.below(100));
        let record_size = self.shared.record_size;
        let mut last: Vec<u8> = Vec::new();
        let (mut seen, mut starts, mut ordered, mut right) = (0, false, true, true);
        self.session.scan(&self.key, limit, &mut |key, value| {
            if seen == 0 {
                starts = key == self.key;
            } else {
                ordered &= last.as_slice() < key;
            }
            right &= value::check(key, value, record_size.saturating_sub(key.len()));
            last.clear();
            last.extend_from_slice(key);
            seen += 1;
        })?;
        if !starts {
            self.tally.error(format!(
                "a scan from record {ordinal} (key {:02x?}) does not begin with it",
                self.key
            ));
        } else if !ordered || !right || seen > limit {
            self.tally.error(format!(
                "a scan of {limit} from record {ordinal}: {seen} records, in order: {ordered}, right values: {right}"
            ));
        }
        Ok(())
    }

    /// Reads a group by its prefix: all of it, and nothing else.
    fn read_group(&mut self) -> Result<()> {
        let shared = &self.shared;
        let groups = shared.chooser.count();
        let group = shared.chooser.next(&mut self.random, || groups, shared.salt.load(Relaxed));
        shared.dataset.group_prefix(group, &mut self.key);
        let (prefix, record_size) = (&self.key, shared.record_size);
        let (mut seen, mut right) = (0_u8, true);
        self.session.prefix(prefix, groups::SIZE_MAX + 1, &mut |key, value| {
            right &= key.strip_prefix(&prefix[..]) == Some(&[seen]);
            right &= value::check(key, value, record_size.saturating_sub(key.len()));
            seen = seen.saturating_add(1);
        })?;
        let size = groups::size(group);
        if u64::from(seen) != size || !right {
            self.tally.error(format!(
                "group {group} (prefix {prefix:02x?}) of {size} records: {seen} were read, right keys and values: {right}"
            ));
        }
        Ok(())
    }

    fn queue_key(&mut self, number: u64) {
        self.key.clear();
        self.key.extend_from_slice(QUEUE_PREFIX);
        self.key.extend_from_slice(&number.to_be_bytes());
    }

    fn push(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let Some(number) = shared.queue_tail.take_below(self.index, u64::MAX) else {
            return Ok(());
        };
        self.queue_key(number);
        self.fill_value();
        self.session.insert(&self.key, &self.value)?;
        self.tally.logical_bytes += self.record_bytes();
        shared.queue_tail.done(self.index);
        Ok(())
    }

    /// Removes the head; an empty queue is pushed to instead, so that every operation does
    /// something.
    fn pop(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let limit = shared.queue_tail.all_done_below();
        let Some(number) = shared.queue_head.take_below(self.index, limit) else {
            return self.push();
        };
        self.queue_key(number);
        self.session.remove(&self.key)?;
        let length = self.key.len() + self.value_length(self.key.len());
        self.tally.logical_bytes -= i64::try_from(length).unwrap_or(i64::MAX);
        shared.queue_head.done(self.index);
        Ok(())
    }

    /// Reads the first element: none that was removed before may show, and it may be missing only
    /// from an empty queue.
    fn peek(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        shared.peeks[self.index].fetch_add(1, Relaxed);
        let removed_below = shared.queue_head.all_done_below();
        let pushed_below = shared.queue_tail.all_done_below();
        self.queue_key(0);
        let mut first = None;
        let record_size = shared.record_size;
        let mut right = true;
        self.session.scan(&self.key, 1, &mut |key, value| {
            let number =
                key.strip_prefix(QUEUE_PREFIX).and_then(|rest| <[u8; 8]>::try_from(rest).ok());
            if let Some(number) = number {
                first = Some(u64::from_be_bytes(number));
                right = value::check(key, value, record_size.saturating_sub(key.len()));
            }
        })?;
        match first {
            Some(number) if number < removed_below => {
                self.tally.error(format!("element {number} of the queue was removed and is there"));
            }
            Some(number) if !right => {
                self.tally.error(format!("element {number} of the queue has a wrong value"))
            }
            None if pushed_below > shared.queue_head.next() => {
                self.tally.error(format!(
                    "the queue holds elements below {pushed_below} and looks empty"
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_the_documented_ones() {
        let share =
            |workload, wanted| (0..600).filter(|&roll| action(workload, roll) == wanted).count();
        assert_eq!(share(Workload::A, Action::Read), 300);
        assert_eq!(share(Workload::A, Action::Update), 300);
        assert_eq!(share(Workload::B, Action::Read), 570);
        assert_eq!(share(Workload::C, Action::Read), 600);
        assert_eq!(share(Workload::D, Action::Insert), 30);
        assert_eq!(share(Workload::E, Action::Scan), 570);
        assert_eq!(share(Workload::E, Action::Insert), 30);
        assert_eq!(share(Workload::F, Action::ReadModifyWrite), 300);
        assert_eq!(share(Workload::S, Action::Scan), 600);
        assert_eq!(share(Workload::M, Action::ReadMany), 600);
        assert_eq!(share(Workload::Su, Action::Scan), 570);
        assert_eq!(share(Workload::Su, Action::ReadModifyWrite), 30);
        assert_eq!(share(Workload::Groups, Action::ReadGroup), 600);
        assert_eq!(share(Workload::Absent, Action::ReadAbsent), 600);
        assert_eq!(share(Workload::Drift, Action::DriftInsert), 300);
        for wanted in [Action::Push, Action::Pop, Action::Peek] {
            assert_eq!(share(Workload::Queue, wanted), 200);
        }
    }

    #[test]
    fn tickets_know_what_is_unfinished() {
        let tickets = Tickets::new(10, 2);
        assert_eq!(tickets.all_done_below(), 10);
        assert_eq!(tickets.take_below(0, 12), Some(10));
        assert_eq!(tickets.take_below(1, 12), Some(11));
        assert_eq!(tickets.all_done_below(), 10);
        tickets.done(0);
        assert_eq!(tickets.all_done_below(), 11);
        assert_eq!(tickets.take_below(0, 12), None);
        tickets.done(1);
        assert_eq!(tickets.all_done_below(), 12);
    }
}
