//! The write path: limits, room, stripes, log, apply, durability (rules P1 to P5 and P12).
//!
//! ```text
//! check limits -> throttle -> reserve log room -> enter engines -> they prepare -> [ stripes: announce -> check -> append -> apply ] -> leave -> commit
//!                 may wait, may fail, no lock is held                              memory only, cannot fail                            waits
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use spinney_base::limits::{BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use spinney_base::{Error, ErrorKind, KeyspaceId, Lsn, Result, ValueRef};
use spinney_engine::{
    Cell as Stamps, Found, POINTER_BYTES_MAX, Prepared, Resident, SnapshotNumber, Write,
};
use spinney_io::without_reserve;
use spinney_ssn::{Image, Transaction, reads_are_current};
use spinney_sync::{Stamp, StripeGuards, hash_key};
use spinney_wal::{CHECKPOINT_FULLNESS, RecordKind, Reservation, ReserveFor};

use crate::guards::NOBODY;
use crate::keyspace_state::KeyspaceState;
use crate::options::Durability;
use crate::part::Part;
use crate::place::Place;
use crate::record::{self, Change};
use crate::state::State;
use crate::versions::{Written, is_over};

/// One part in this many of the memory may be taken by the log's records when they are replayed,
/// where an engine does not replay them in bulk. Records that do not fit must be written back
/// during the replay, a page read and written for every few records, which is ten times as slow.
const REPLAYED_SHARE: u64 = 2;
/// Fullness of the log at which writers are slowed.
const THROTTLE_FULLNESS: f64 = 0.75;
/// Delay of one write when the log is full.
const THROTTLE_DELAY_MAX: Duration = Duration::from_millis(4);
/// Poll interval of a writer that waits for space in the log.
const ROOM_WAIT: Duration = Duration::from_millis(1);
/// Operations of a batch that each look for guards. Of a longer one all is touched that lies between
/// its least and its greatest key, because its stripes are held meanwhile.
const TOUCHED_APART_MAX: usize = 1024;
/// Batches of more bytes than this are written one at a time.
const LARGE_BATCH_BYTES: usize = 16 << 10;
/// A write is tried at most this often because others took the memory that was lent to it.
const LOANS_MAX: usize = 64;

/// One write to one keyspace.
#[derive(Clone)]
pub(crate) struct KeyspaceWrite<'a> {
    pub(crate) keyspace: &'a KeyspaceState,
    pub(crate) write: Write<'a>,
    /// Whether the value is a [`Patch`](spinney_engine::Patch), which only engines with versions get.
    pub(crate) is_patch: bool,
    /// What the engine has prepared for the write.
    prepared: Cell<Prepared>,
}

impl<'a> KeyspaceWrite<'a> {
    pub(crate) fn new(
        keyspace: &'a KeyspaceState,
        key: &'a [u8],
        value: Option<ValueRef<'a>>,
    ) -> Self {
        Self::of(keyspace, key, Change { value, is_patch: false })
    }

    pub(crate) fn of(keyspace: &'a KeyspaceState, key: &'a [u8], change: Change<'a>) -> Self {
        let Change { value, is_patch } = change;
        let write = Write { key, hash: hash_key(keyspace.id, key), value };
        KeyspaceWrite { keyspace, write, is_patch, prepared: Cell::default() }
    }

    /// Checks the limits of the contract.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        check_key(self.write.key)?;
        check_value(self.write.value.map_or(0, ValueRef::len) as u64)?;
        if self.is_patch && !self.keyspace.has_versions {
            return Err(Error::invalid("a patch is for a keyspace with versions"));
        }
        self.keyspace.check_alive()
    }

    /// Applies the write. Returns false, and changes nothing, if it is a patch that does not fit the value.
    #[inline]
    pub(crate) fn apply(&self, prepared: Prepared, lsn: Lsn, newest: SnapshotNumber) -> bool {
        let engine = &self.keyspace.engine;
        if !self.is_patch {
            engine.apply(&self.write, prepared, lsn, newest);
            return true;
        }
        let versioned = engine.versioned().expect("it has versions");
        versioned.patch(&self.write, prepared, newest)
    }

    fn cancel(&self) {
        self.keyspace.engine.cancel(&self.write, self.prepared.get());
    }

    /// Bytes of key and value. A large value counts as the pointer that it will get.
    fn bytes(&self) -> usize {
        let Write { key, value, .. } = self.write;
        let value = value.map_or(0, ValueRef::len);
        let large = self.is_large();
        key.len() + if large { POINTER_BYTES_MAX } else { value }
    }

    /// Whether the value is large, and has no pointer yet. A patch is none: it lies in the record of the log only.
    pub(crate) fn is_large(&self) -> bool {
        let values = self.keyspace.engine.values();
        let is_large =
            |value: ValueRef<'_>| values.is_large(self.write.key.len(), value.len() as u64);
        !self.is_patch && self.write.value.is_some_and(|value| !value.large && is_large(value))
    }

    /// Bytes of a write whose large value has its pointer already.
    fn bytes_with_pointer(&self) -> usize {
        self.write.key.len() + self.write.value.map_or(0, ValueRef::len)
    }
}

/// A batch that may be written.
struct Approved {
    /// The newest snapshot that it follows.
    newest: SnapshotNumber,
    /// What publishes its writes to keyspaces with versions.
    versioned: Option<Transaction<Stamps>>,
}

/// Applies writes that the log has, those to keyspaces with versions as their owner publishes.
fn apply_all(
    writes: &[KeyspaceWrite<'_>],
    (lsn, newest): (Lsn, SnapshotNumber),
    versioned: Option<&mut Transaction<Stamps>>,
) {
    let apply = |write: &KeyspaceWrite<'_>| {
        let is_applied = write.apply(write.prepared.get(), lsn, newest);
        assert!(is_applied, "a patch was not of the value that it is laid over");
    };
    let Some(transaction) = versioned else { return writes.iter().for_each(apply) };
    let of_versions = |write: &&KeyspaceWrite<'_>| write.keyspace.has_versions;
    writes.iter().filter(|write| !of_versions(write)).for_each(apply);
    transaction.decide();
    let mut left = writes.iter().filter(of_versions);
    transaction.publish(|_| {
        let write = left.next().expect("each has its cell");
        apply(write);
        if write.write.value.is_some() { Image::Value } else { Image::Tombstone }
    });
}

/// One operation of a batch, which has its own copy of key and value.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) place: Arc<Place>,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
}

/// What a batch expects of a key: this value, or none.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) place: Arc<Place>,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
}

/// One write of a batch or a transaction; without a value it is a removal.
#[derive(Clone, Copy)]
pub(crate) struct BatchWrite<'a> {
    pub(crate) place: &'a Place,
    pub(crate) key: &'a [u8],
    pub(crate) value: Option<&'a [u8]>,
    /// Whether the value is a patch.
    pub(crate) is_patch: bool,
}

/// Checks the number of operations of a batch or a transaction.
pub(crate) fn check_operations(count: usize) -> Result<()> {
    if count <= BATCH_OPERATIONS_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{count} operations are too many for a batch or a transaction (BATCH_OPERATIONS_MAX, {BATCH_OPERATIONS_MAX})"
    )))
}

/// Checks the limits of a key.
#[inline]
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > KEY_BYTES_MAX { Err(too_long(key.len())) } else { Ok(()) }
}

/// Checks the limits of keys, and returns them with their hashes in a keyspace.
pub(crate) fn hashed<'a>(id: KeyspaceId, keys: &[&'a [u8]]) -> Result<Vec<(&'a [u8], u64)>> {
    let hash = |key: &&'a [u8]| check_key(key).map(|()| (*key, hash_key(id, key)));
    keys.iter().map(hash).collect()
}

#[cold]
fn too_long(bytes: usize) -> Error {
    Error::invalid(format!("a key of {bytes} bytes is too long (KEY_BYTES_MAX, {KEY_BYTES_MAX})"))
}

/// Checks the limits of a value.
#[inline]
pub(crate) fn check_value(length: u64) -> Result<()> {
    if length > VALUE_BYTES_MAX as u64 { Err(value_too_long(length)) } else { Ok(()) }
}

#[cold]
fn value_too_long(bytes: u64) -> Error {
    let most = VALUE_BYTES_MAX;
    Error::invalid(format!("a value of {bytes} bytes is too long (VALUE_BYTES_MAX, {most})"))
}

/// A batch may take one part in this many of the memory budget, however many keyspaces there are.
const BATCH_PART: u64 = 8;

/// Most bytes of encoding buffer that a thread keeps.
const RECORD_BYTES_KEPT: usize = 64 << 10;

thread_local! {
    static RECORD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl State {
    /// Writes a batch. Returns the LSN, 0 when nothing was logged.
    pub(crate) fn write_batch(
        &self,
        operations: &[Operation],
        durability: Durability,
    ) -> Result<Lsn> {
        check_operations(operations.len())?;
        self.check_ours(operations.iter().map(|operation| &*operation.place))?;
        let written = self.write_all(&last_of_each(operations), NOBODY, None, |_| true)?;
        let lsn = written.unwrap_or(Lsn::ZERO);
        self.commit(lsn, durability).map(|()| lsn)
    }

    /// Refuses keyspaces of other databases.
    pub(crate) fn check_ours<'a>(&self, mut places: impl Iterator<Item = &'a Place>) -> Result<()> {
        let Some(foreign) = places.find(|place| place.owner != self.life.owner) else {
            return Ok(());
        };
        let name = foreign.name.get();
        Err(Error::invalid(format!("keyspace {name:?} belongs to another database")))
    }

    /// Writes to different keys within the limits of a batch, if `still` says so, as
    /// [`State::write_if`] does.
    pub(crate) fn write_all(
        &self,
        writes: &[BatchWrite<'_>],
        owner: u64,
        part: Option<&mut Part>,
        still: impl FnMut(&StripeGuards<'_>) -> bool,
    ) -> Result<Option<Lsn>> {
        check_operations(writes.len())?;
        let entered = self.enter_all(writes.iter().map(|write| write.place))?;
        let writes: Vec<KeyspaceWrite<'_>> = writes
            .iter()
            .map(|&BatchWrite { place, key, value, is_patch }| {
                let change = Change { value: value.map(ValueRef::inline), is_patch };
                KeyspaceWrite::of(entered.of(place.id), key, change)
            })
            .collect();
        self.check_batch(&writes)?;
        self.lend_for(&writes);
        self.write_with(&writes, (owner, part), still)
    }

    fn check_batch(&self, writes: &[KeyspaceWrite<'_>]) -> Result<()> {
        let bytes: usize = writes.iter().map(KeyspaceWrite::bytes).sum();
        if bytes > BATCH_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a batch of {bytes} bytes is too large (BATCH_BYTES_MAX, {BATCH_BYTES_MAX})"
            )));
        }
        let memory = self.memory.budget.total();
        if writes.len() > 1 && bytes as u64 > memory / BATCH_PART {
            return Err(Error::invalid(format!(
                "a batch of {bytes} bytes is more than an eighth of the memory budget of {memory} bytes"
            )));
        }
        Ok(())
    }

    /// Lets each keyspace of a batch hold its part of the batch.
    fn lend_for(&self, writes: &[KeyspaceWrite<'_>]) {
        let all = writes.iter().map(KeyspaceWrite::bytes).sum::<usize>() as u64;
        if writes.iter().all(|write| write.keyspace.holds_batch(all)) {
            return;
        }
        let mut parts: BTreeMap<KeyspaceId, (&KeyspaceState, usize)> = BTreeMap::new();
        for write in writes {
            let part = parts.entry(write.keyspace.id).or_insert((write.keyspace, 0));
            part.1 += write.bytes();
        }
        let lend = |keyspace, bytes: &usize| {
            self.memory.lend((&self.keyspaces, &self.runtime), keyspace, *bytes as u64);
        };
        parts.values().for_each(|(keyspace, bytes)| lend(keyspace, bytes));
    }

    /// Lets a keyspace have the memory that one of these writes has lacked; says whether the write may be tried again. Where
    /// others can give none, older images make room.
    fn lend_all_lacked(&self, writes: &[KeyspaceWrite<'_>]) -> bool {
        // Of a keyspace only its first write says so.
        let lend = |write: &KeyspaceWrite<'_>| {
            let is_lent = self.lend_lacked(write.keyspace)?;
            Some(is_lent || self.versions.relieve(write.keyspace))
        };
        // What another thread has lacked this one may have been lent as well.
        writes.iter().find_map(lend).unwrap_or(true)
    }

    /// Writes operations on different keys atomically.
    pub(crate) fn write(&self, writes: &[KeyspaceWrite<'_>], durability: Durability) -> Result<()> {
        let lsn = self.write_if(writes, NOBODY, |_| true)?;
        self.commit(lsn.unwrap_or(Lsn::ZERO), durability)
    }

    /// Waits until a record is as durable as requested.
    pub(crate) fn commit(&self, lsn: Lsn, durability: Durability) -> Result<()> {
        if lsn == Lsn::ZERO {
            return Ok(());
        }
        let committed = match self.log.commit(lsn, durability) {
            // The record is in the log's memory, and all later records wait for it, removals too.
            Err(error) if error.is_full() => {
                self.room.with_last_room(|| self.log.commit(lsn, durability))
            }
            committed => committed,
        };
        committed.inspect_err(|error| self.note(error))
    }

    /// Writes operations if `still` says so under their stripes; it does memory work only. Large
    /// values are staged before. Guards of other transactions than `owner` are touched. Returns the LSN, 0 when nothing was logged, or `None` when nothing
    /// was written.
    pub(crate) fn write_if(
        &self,
        writes: &[KeyspaceWrite<'_>],
        owner: u64,
        still: impl FnMut(&StripeGuards<'_>) -> bool,
    ) -> Result<Option<Lsn>> {
        self.write_with(writes, (owner, None), still)
    }

    /// Does the same for a transaction, whose part over versions is certified. `still` is asked again after that.
    ///
    /// # Errors
    /// `Conflict` where it cannot be certified; it is over then.
    fn write_with(
        &self,
        writes: &[KeyspaceWrite<'_>],
        (owner, mut part): (u64, Option<&mut Part>),
        mut still: impl FnMut(&StripeGuards<'_>) -> bool,
    ) -> Result<Option<Lsn>> {
        self.life.check_writable()?;
        writes.iter().try_for_each(KeyspaceWrite::check)?;
        if writes.is_empty() {
            return Ok(Some(Lsn::ZERO));
        }
        self.with_large(writes, |writes| {
            writes.iter().try_for_each(|write| write.keyspace.engine.check(&write.write))?;
            // Taken out while in use: code that runs meanwhile may write, too.
            let mut record = RECORD.take();
            let mut loans = 0..LOANS_MAX;
            let result = loop {
                match self.write_encoded(writes, &mut record, (owner, &mut part), &mut still) {
                    Err(error)
                        if error.lacks_memory()
                            && self.lend_all_lacked(writes)
                            && loans.next().is_some() => {}
                    result => break result,
                }
            };
            if record.capacity() <= RECORD_BYTES_KEPT {
                RECORD.set(record);
            }
            result
        })
    }

    fn write_encoded(
        &self,
        writes: &[KeyspaceWrite<'_>],
        record: &mut Vec<u8>,
        (owner, part): (u64, &mut Option<&mut Part>),
        still: &mut impl FnMut(&StripeGuards<'_>) -> bool,
    ) -> Result<Option<Lsn>> {
        if let [one] = writes {
            spinney_sync::prefetch(self.stripes.stripe(one.write.hash));
        }
        let logged = encode(writes, record);
        let bytes = writes.iter().map(KeyspaceWrite::bytes_with_pointer).sum::<usize>();
        let mut room = if logged {
            Some(self.log_room(record.len(), writes)?)
        } else {
            self.room_beside_log(bytes, writes)?;
            None
        };
        let large = bytes > LARGE_BATCH_BYTES;
        let _one_at_a_time = large.then(|| self.writers.large_batch.lock());
        let _door = self.writers.door.read();
        self.life.check_writable()?;
        writes.iter().try_for_each(|write| write.keyspace.check_thawed())?;
        let _inside = Entered::enter(writes).inspect_err(|error| self.note(error))?;
        self.prepare(writes)?;
        let points = writes.iter().any(|one| one.write.value.is_some_and(|value| value.large));
        let _logging = points.then(|| self.writers.large_logging.read());
        let mut on_panic = PoisonOnPanic { state: self, armed: true };
        writes.iter().for_each(|write| write.keyspace.set_changed());
        let guards = match writes {
            [one] => self.stripes.lock(one.write.hash),
            _ => self.stripes.lock_all(writes.iter().map(|write| write.write.hash)),
        };
        // Before the check: a thread that waits until all announced writers have left has then waited
        // for every writer whose check may lie before its own change (T5).
        let announced = self.log.announce();
        // Before the check, too: of two writers that write into what the other has read, the second to
        // check finds its guard touched (T4).
        touch_guards(writes, owner);
        let Approved { newest, mut versioned } = match self.approve(writes, part, || still(&guards))
        {
            Ok(Some(approved)) => approved,
            refused => {
                drop(announced);
                guards.unlock_unchanged();
                writes.iter().for_each(KeyspaceWrite::cancel);
                on_panic.armed = false;
                return refused.map(|_| None);
            }
        };
        let (lsn, stamp) = match &mut room {
            Some(room) => {
                let lsn = self.log.append(room, RecordKind::User, record);
                (lsn, Stamp::logged(lsn))
            }
            None => {
                self.writers.set_unlogged();
                (Lsn::ZERO, self.stripes.draw())
            }
        };
        apply_all(writes, (lsn, newest), versioned.as_mut());
        drop(announced);
        guards.unlock(stamp);
        on_panic.armed = false;
        if let Some(transaction) = versioned {
            transaction.finish();
        }
        Ok(Some(lsn))
    }

    /// Looks for its place in the order of snapshots, whether what the writer has read is `still` so, and whether it can
    /// be certified. `None` if it is not so; the writer may look again.
    ///
    /// # Errors
    /// `Conflict`, for a transaction: it is over.
    fn approve(
        &self,
        writes: &[KeyspaceWrite<'_>],
        part: &mut Option<&mut Part>,
        mut still: impl FnMut() -> bool,
    ) -> Result<Option<Approved>> {
        // One load for the whole batch: its place in the order of snapshots (S1).
        let newest = self.moments.newest();
        if !still() {
            return Ok(None);
        }
        let Some(transaction) = self.certify(writes, part)? else {
            return Ok(Some(Approved { newest, versioned: None }));
        };
        // What it read elsewhere was so when the stamp was drawn. That is drawn once.
        if part.is_some() && !still() {
            return Err(Error::new(ErrorKind::Conflict, "what was read has changed"));
        }
        let newest = self.moments.before(transaction.commit_stamp());
        Ok(Some(Approved { newest, versioned: Some(transaction) }))
    }

    /// Certifies writes to keyspaces with versions, and what a transaction read there. Returns what is to be
    /// published, `None` if no transaction runs that would see it.
    fn certify(
        &self,
        writes: &[KeyspaceWrite<'_>],
        part: &mut Option<&mut Part>,
    ) -> Result<Option<Transaction<Stamps>>> {
        let mut transaction = match part {
            Some(part) => part.transaction.take().ok_or_else(is_over)?,
            None if !writes.iter().any(|write| write.keyspace.has_versions) => return Ok(None),
            None if !self.versions.are_used() => return Ok(None),
            None => self.versions.begin_plain(),
        };
        let is_plain = part.is_none();
        if !is_plain {
            // Other engines have no versions that parking could forget.
            let begin = transaction.sight().begin;
            let mut versioned = writes.iter().filter(|write| write.keyspace.has_versions);
            versioned.try_for_each(|write| write.keyspace.check_remembers(begin))?;
        }
        let mut cells = Vec::with_capacity(writes.len());
        cells.extend(writes.iter().filter_map(|write| {
            let versioned = write.keyspace.engine.versioned()?;
            let Write { key, hash, value } = write.write;
            let mut prepared = write.prepared.get();
            let cell =
                versioned.cell(key, value.map_or(&[][..], |value| value.bytes), &mut prepared);
            write.prepared.set(prepared);
            Some(Written { versioned, cell, key, hash })
        }));
        let reads = part.as_deref();
        while let Err(error) = self.versions.certify(&mut transaction, &cells, reads) {
            if !is_plain {
                return Err(error);
            }
            // It was taken for the transaction that keeps others from their memory.
            transaction = self.versions.begin_plain();
        }
        let (pi, _) = transaction.pi_eta();
        let is_mixed =
            cells.len() < writes.len() || part.as_ref().is_some_and(|part| part.is_mixed);
        if is_mixed && !reads_are_current(pi, transaction.commit_stamp()) {
            return Err(Error::new(ErrorKind::Conflict, "what was read was overwritten (T10)"));
        }
        Ok(Some(transaction))
    }

    /// Lets engines make space. If one cannot, what was prepared is given back (P2).
    fn prepare(&self, writes: &[KeyspaceWrite<'_>]) -> Result<()> {
        for (index, KeyspaceWrite { keyspace, write, prepared, .. }) in writes.iter().enumerate() {
            let engine = &*keyspace.engine;
            match engine.prepare(write) {
                Ok(room) => prepared.set(room),
                Err(error) => {
                    writes[..index].iter().for_each(KeyspaceWrite::cancel);
                    self.note(&error);
                    return Err(error);
                }
            }
            if engine.values().wants_checkpoint() {
                self.want_checkpoint();
            }
            if engine.takes_wish() {
                keyspace.job.wake();
            }
        }
        Ok(())
    }

    /// Without a log, values are refused once the disk is full: their pages would take the reserve
    /// for removals. Removals keep it.
    fn room_beside_log(&self, bytes: usize, writes: &[KeyspaceWrite<'_>]) -> Result<()> {
        self.room.note_beside_log(bytes);
        match has_values(writes) {
            true if self.room.short().is_some() => self.make_room(true, 0),
            true => Ok(()),
            false => self.keep_room_for_removals(self.log.fullness()),
        }
    }

    /// Reserves space in the log, and waits smoothly for checkpoints when it is short (P12).
    fn log_room(&self, bytes: usize, writes: &[KeyspaceWrite<'_>]) -> Result<Reservation<'_>> {
        let fullness = self.log.fullness();
        if self.is_full_at(fullness, writes.iter().map(|write| write.keyspace)) {
            self.want_checkpoint();
        }
        if fullness > THROTTLE_FULLNESS {
            let share = ((fullness - THROTTLE_FULLNESS) / (1.0 - THROTTLE_FULLNESS)).min(1.0);
            self.stall(|| {
                if !self.runtime.help() {
                    self.runtime.sleep(THROTTLE_DELAY_MAX.mul_f64(share));
                }
            });
        }
        // Values never take from the reserve for removals and recoveries.
        let has_values = has_values(writes);
        match has_values {
            true => self.keep_room_for_values(fullness)?,
            false => self.keep_room_for_removals(fullness)?,
        }
        let mut may_make_room = true;
        loop {
            let reserve = || self.log.reserve(bytes, ReserveFor::User);
            let room = match if has_values { without_reserve(reserve) } else { reserve() } {
                Err(error) if error.is_full() && std::mem::take(&mut may_make_room) => {
                    match self.make_room(has_values, bytes) {
                        // The log may have space all the same, for a removal.
                        Err(error) if error.is_full() && !has_values => {}
                        made => made?,
                    }
                    continue;
                }
                room => room.inspect_err(|error| self.note(error))?,
            };
            if let Some(room) = room {
                return Ok(room);
            }
            self.life.check_writable()?;
            self.want_checkpoint();
            if let Some(error) = self.checkpoints.error() {
                // That failure may be old: before a writer is refused it tries once itself.
                if std::mem::take(&mut may_make_room) {
                    if error.is_full() {
                        self.make_room(has_values, bytes)?;
                    } else if let Err(error) = self.checkpoint() {
                        self.checkpoints.set_error(Some(error));
                    }
                    continue;
                }
                // The kind of the cause: free space helps against a full disk, not against damage.
                return Err(error.context("the log is full and no checkpoint succeeds"));
            }
            self.stall(|| {
                if !self.runtime.help() {
                    self.runtime.sleep(ROOM_WAIT);
                }
            });
        }
    }

    /// Returns whether the log has enough records of these keyspaces that a checkpoint is due.
    pub(crate) fn is_log_full<'a>(
        &self,
        keyspaces: impl Iterator<Item = &'a KeyspaceState>,
    ) -> bool {
        self.is_full_at(self.log.fullness(), keyspaces)
    }

    fn is_full_at<'a>(
        &self,
        fullness: f64,
        mut keyspaces: impl Iterator<Item = &'a KeyspaceState>,
    ) -> bool {
        if fullness >= CHECKPOINT_FULLNESS {
            return true;
        }
        let one_by_one = |it: &KeyspaceState| it.options.logged && !it.engine.replays_in_bulk();
        keyspaces.any(one_by_one)
            && fullness >= self.log.fullness_of(self.memory.budget.total() / REPLAYED_SHARE)
    }

    fn want_checkpoint(&self) {
        if self.checkpoints.want() {
            self.jobs.checkpoint.wake();
        }
    }

    /// Runs a wait, and counts it as a stall.
    fn stall(&self, wait: impl FnOnce()) {
        self.writers.stalls.during(&self.runtime, wait);
    }

    /// Reads one key as of one moment: validated against its stripe (P3). Appends to `out`. Returns
    /// what was found, and under which stamp.
    #[inline]
    pub(crate) fn read(
        &self,
        keyspace: &KeyspaceState,
        key: &[u8],
        hash: u64,
        out: &mut Vec<u8>,
    ) -> Result<(Found, Stamp)> {
        self.life.check_open()?;
        keyspace.check_alive()?;
        check_key(key)?;
        if keyspace.has_versions {
            self.versions.note_read(hash);
        }
        let stripe = self.stripes.stripe(hash);
        let start = out.len();
        loop {
            let stamp = stripe.stamp();
            let found = keyspace.engine.get(key, hash, out)?;
            if stripe.validate(stamp) {
                return Ok((found, stamp));
            }
            out.truncate(start);
        }
    }

    /// Replaces a key's value by what `next` makes from it. `next` runs outside all locks and
    /// perhaps more than once (P4). It answers `None` to leave the key unchanged, else the new
    /// value or a removal. Returns the LSN, or `None` when the key was left unchanged.
    pub(crate) fn change(
        &self,
        keyspace: &KeyspaceState,
        key: &[u8],
        mut next: impl FnMut(Option<&[u8]>) -> Option<Option<Vec<u8>>>,
    ) -> Result<Option<Lsn>> {
        let hash = hash_key(keyspace.id, key);
        let (mut current, mut raw) = (Vec::new(), Vec::new());
        let (mut found, mut stamp) = self.read_both(keyspace, key, hash, &mut raw, &mut current)?;
        loop {
            let Some(new) = next((found != Found::Absent).then_some(&current)) else {
                return Ok(None);
            };
            let write = KeyspaceWrite::new(keyspace, key, new.as_deref().map(ValueRef::inline));
            let mut resident = Resident::Unknown;
            let mut now = Vec::new();
            let written = self.write_if(&[write], NOBODY, |guards| {
                if guards.locked_since(hash, stamp) {
                    return true;
                }
                // Another key of the stripe may have changed, or this one. Memory tells, without
                // I/O.
                resident = keyspace.engine.get_resident(key, hash, &mut now);
                match resident {
                    Resident::Present => found == Found::Inline && now == raw,
                    Resident::Large => found == Found::Large && now == raw,
                    Resident::Absent => found == Found::Absent,
                    Resident::Unknown => false,
                }
            })?;
            if let Some(lsn) = written {
                return Ok(Some(lsn));
            }
            if resident == Resident::Unknown {
                keyspace.engine.make_resident(key, hash)?;
            }
            raw.clear();
            current.clear();
            (found, stamp) = self.read_both(keyspace, key, hash, &mut raw, &mut current)?;
        }
    }
}

/// Returns whether any of these puts a value.
fn has_values(writes: &[KeyspaceWrite<'_>]) -> bool {
    writes.iter().any(|one| one.write.value.is_some())
}

/// Touches the guards that transactions have set over what is written.
#[inline]
fn touch_guards(writes: &[KeyspaceWrite<'_>], owner: u64) {
    if writes.len() <= TOUCHED_APART_MAX {
        for write in writes {
            write.keyspace.guards.touch(write.write.key, owner);
        }
    } else {
        touch_whole(writes, owner);
    }
}

#[cold]
fn touch_whole(writes: &[KeyspaceWrite<'_>], owner: u64) {
    let mut ends: BTreeMap<KeyspaceId, [&KeyspaceWrite<'_>; 2]> = BTreeMap::new();
    for write in writes {
        let [least, greatest] = ends.entry(write.keyspace.id).or_insert([write; 2]);
        if write.write.key < least.write.key {
            *least = write;
        }
        if write.write.key > greatest.write.key {
            *greatest = write;
        }
    }
    for [least, greatest] in ends.values() {
        least.keyspace.guards.touch_between(least.write.key, greatest.write.key, owner);
    }
}

/// The engines that a batch has entered; dropping it leaves them.
struct Entered<'a> {
    first: Option<&'a KeyspaceState>,
    /// Further keyspaces, if the batch writes to several.
    others: Vec<&'a KeyspaceState>,
}

impl<'a> Entered<'a> {
    /// Enters each engine once, in ascending order of keyspace ids, so that no two batches wait for
    /// each other.
    fn enter(writes: &[KeyspaceWrite<'a>]) -> Result<Self> {
        let mut entered = Entered { first: None, others: Vec::new() };
        if let [one] = writes {
            one.keyspace.engine.enter()?;
            entered.first = Some(one.keyspace);
            return Ok(entered);
        }
        let mut last = None;
        loop {
            let left = writes.iter().map(|write| write.keyspace);
            let left = left.filter(|keyspace| last.is_none_or(|last| keyspace.id > last));
            let Some(next) = left.min_by_key(|keyspace| keyspace.id) else { return Ok(entered) };
            next.engine.enter()?;
            if last.is_none() {
                entered.first = Some(next)
            } else {
                entered.others.push(next)
            }
            last = Some(next.id);
        }
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        self.first.iter().chain(&self.others).for_each(|keyspace| keyspace.engine.leave());
    }
}

/// Encodes the logged part of a batch. Returns whether there is one.
fn encode(writes: &[KeyspaceWrite<'_>], out: &mut Vec<u8>) -> bool {
    let logged = writes.iter().filter(|write| write.keyspace.options.logged);
    let count = logged.clone().count();
    record::begin(out, count);
    let bytes = |one: &KeyspaceWrite<'_>| record::operation_bytes(one.bytes_with_pointer(), 0);
    out.reserve(logged.clone().map(bytes).sum());
    for KeyspaceWrite { keyspace, write, is_patch, .. } in logged {
        let change = Change { value: write.value, is_patch: *is_patch };
        record::push(out, keyspace.id, write.key, change);
    }
    count > 0
}

/// Returns the last operation on each key, in their order (P5).
pub(crate) fn last_of_each(operations: &[Operation]) -> Vec<BatchWrite<'_>> {
    let mut seen = HashSet::with_capacity(operations.len());
    let mut kept = Vec::with_capacity(operations.len());
    for Operation { place, key, value } in operations.iter().rev() {
        if operations.len() < 2 || seen.insert((place.id, &key[..])) {
            kept.push(BatchWrite { place, key, value: value.as_deref(), is_patch: false });
        }
    }
    kept.reverse();
    kept
}

/// Poisons the database if a panic unwinds: what was half done under the stripes is unknown until
/// the database is reopened (P21).
struct PoisonOnPanic<'a> {
    state: &'a State,
    armed: bool,
}

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if self.armed && std::thread::panicking() {
            let error = Error::new(ErrorKind::Poisoned, "a panic struck while a write was applied");
            self.state.note(&error);
        }
    }
}
