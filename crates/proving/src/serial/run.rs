//! Random transactions and snapshots of many threads, recorded.
//!
//! A snapshot is a record that only reads, and that ended when it was taken: what it answers later counts
//! as of then. Beside all that, records of other keys push those of the run out of caches, so that pages
//! are what snapshots are read from.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use spinney::{
    Batch, Db, DbSnapshot, Durability, ErrorKind, Keyspace, Result, Snapshot, Transaction,
};
use spinney_db::fuzzing;

use super::graph::Record;
use crate::tier::Random;

/// What is run.
#[derive(Clone, Debug)]
pub struct Work {
    /// Number of keys, spread over the keyspaces.
    pub keys: usize,
    /// Number of threads.
    pub threads: usize,
    /// Operations of each thread: transactions, plain writes, batches, plain reads.
    pub operations: usize,
    /// Most bytes of a value. Where few records fill a leaf, leaves are split and joined all the time.
    pub value_bytes: usize,
    /// Longest time that a thread waits, between operations and inside of transactions, so that keyspaces are parked
    /// meanwhile. If it is not zero, there are no snapshots and no other records, which would keep them open.
    pub pause: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Everything that committed or read, for [`check`](super::graph::check).
    pub records: Vec<Record>,
    /// Transactions that ended with a conflict.
    pub conflicts: u64,
    /// Snapshots that were taken, and lived until they were let go.
    pub snapshots: u64,
    /// Keyspaces that were found parked, counted after each wait between operations.
    pub parked: u64,
    /// Snapshots that ended before: a thread that had to wait for a processor kept them for long.
    pub ended: u64,
}

/// Most snapshots that a thread keeps at once.
const KEPT_MAX: usize = 2;

/// A snapshot that is kept, and what it has answered.
struct Kept {
    snapshot: DbSnapshot,
    record: Record,
}

struct Ground<'a> {
    db: &'a Db,
    keyspaces: &'a [Keyspace],
    keys: usize,
    value_bytes: usize,
    pause: Duration,
    clock: AtomicU64,
    ids: AtomicU64,
}

impl Ground<'_> {
    fn keyspace(&self, key: usize) -> &Keyspace {
        &self.keyspaces[key % self.keyspaces.len()]
    }

    fn name(key: usize) -> [u8; 8] {
        (key as u64).to_be_bytes()
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    fn record(&self) -> Record {
        let id = self.ids.fetch_add(1, SeqCst);
        Record { id, began: self.tick(), ..Record::default() }
    }

    /// A value that names its writer at both ends, of a length that changes.
    fn value(&self, id: u64, random: &mut Random) -> Vec<u8> {
        let mut value = id.to_be_bytes().to_vec();
        value.resize(8 + random.below(self.value_bytes), 7);
        if value.len() >= 16 {
            value.truncate(value.len() - 8);
            value.extend_from_slice(&id.to_be_bytes());
        }
        value
    }

    fn writer(value: &[u8]) -> u64 {
        let (first, last) = (&value[..8], &value[value.len() - 8..]);
        assert!(value.len() < 16 || first == last, "a value of two writers");
        u64::from_be_bytes(first.try_into().expect("it has a writer"))
    }

    /// Reads and writes in a transaction; the record has what was read even if it did not commit.
    fn body(
        &self,
        transaction: &mut Transaction,
        record: &mut Record,
        random: &mut Random,
    ) -> spinney::Result<()> {
        if random.one_in(4) {
            return self.range(transaction, record, random);
        }
        let is_long = random.one_in(20);
        let reads = match (is_long, random.one_in(2)) {
            (true, true) => {
                self.many(transaction, record)?;
                0
            }
            (true, false) => self.keys,
            (false, _) => 1 + random.below(4),
        };
        let mut own: Vec<usize> = Vec::new();
        for number in 0..reads {
            let key = if is_long { number } else { random.below(self.keys) };
            let value = transaction.get(self.keyspace(key), Self::name(key))?;
            if !own.contains(&key) {
                record.reads.push((key, value.as_deref().map(Self::writer)));
            }
            if random.one_in(4) {
                std::thread::yield_now();
                self.pause(random);
            }
            if !is_long && random.one_in(2) && !own.contains(&key) {
                own.push(key);
                self.change(transaction, record, key, random)?;
            }
        }
        if random.one_in(4) {
            // Blind.
            let key = random.below(self.keys);
            if !own.contains(&key) {
                self.change(transaction, record, key, random)?;
            }
        }
        Ok(())
    }

    /// Reads all keys, those of a keyspace at once.
    fn many(&self, transaction: &Transaction, record: &mut Record) -> spinney::Result<()> {
        for (number, keyspace) in self.keyspaces.iter().enumerate() {
            let keys = (number..self.keys).step_by(self.keyspaces.len());
            let values = transaction.multi_get(keyspace, keys.clone().map(Self::name))?;
            let seen = values.iter().map(|value| value.as_deref().map(Self::writer));
            record.reads.extend(keys.zip(seen));
        }
        Ok(())
    }

    /// Reads a range from either end, perhaps not to its other end, and writes into it or elsewhere.
    fn range(
        &self,
        transaction: &mut Transaction,
        record: &mut Record,
        random: &mut Random,
    ) -> spinney::Result<()> {
        let first = random.below(self.keys);
        let keyspace = self.keyspace(first);
        let end = first + 1 + random.below(self.keys - first);
        let limit = if random.one_in(2) { usize::MAX } else { 1 + random.below(4) };
        let is_back = random.one_in(3);
        let cursor = transaction.range(keyspace, Self::name(first)..Self::name(end));
        let cursor = if is_back { cursor.rev() } else { cursor };
        let mut found: Vec<(usize, u64)> = Vec::new();
        for one in cursor.take(limit) {
            let (key, value) = one?;
            let key = u64::from_be_bytes(key[..].try_into().expect("it is a number"));
            found.push((key as usize, Self::writer(&value)));
        }
        // What lies between the end where it began and the last record, or all if there was no other.
        let is_whole = found.len() < limit;
        let seen = match found.last() {
            Some((last, _)) if !is_whole && is_back => *last..end,
            Some((last, _)) if !is_whole => first..last + 1,
            _ => first..end,
        };
        for key in seen.filter(|key| std::ptr::eq(self.keyspace(*key), keyspace)) {
            let writer = found.iter().find(|(it, _)| *it == key).map(|(_, writer)| *writer);
            record.reads.push((key, writer));
        }
        if random.one_in(2) {
            let key = random.below(self.keys);
            self.change(transaction, record, key, random)?;
        }
        Ok(())
    }

    fn change(
        &self,
        transaction: &mut Transaction,
        record: &mut Record,
        key: usize,
        random: &mut Random,
    ) -> spinney::Result<()> {
        let (keyspace, name) = (self.keyspace(key), Self::name(key));
        if random.one_in(3) && self.patch(transaction, record, key)? {
            return Ok(());
        }
        let is_value = !random.one_in(5);
        record.writes.push((key, is_value));
        if is_value {
            transaction.insert(keyspace, name, self.value(record.id, random))
        } else {
            transaction.remove(keyspace, name)
        }
    }

    /// Writes its name into both ends of a value, if there is one.
    fn patch(
        &self,
        transaction: &mut Transaction,
        record: &mut Record,
        key: usize,
    ) -> spinney::Result<bool> {
        let (keyspace, name) = (self.keyspace(key), Self::name(key));
        let value = transaction.get(keyspace, name)?;
        record.reads.push((key, value.as_deref().map(Self::writer)));
        let Some(value) = value else { return Ok(false) };
        let id = record.id.to_be_bytes();
        if value.len() >= 16 {
            assert!(transaction.patch(keyspace, name, value.len() - 8, id)?);
        }
        assert!(transaction.patch(keyspace, name, 0, id)?);
        record.writes.push((key, true));
        Ok(true)
    }

    /// Waits, where that is wanted.
    fn pause(&self, random: &mut Random) {
        if !self.pause.is_zero() {
            let micros =
                random.below(usize::try_from(self.pause.as_micros()).expect("it is short"));
            std::thread::sleep(Duration::from_micros(micros as u64));
        }
    }

    /// Waits, and counts the keyspaces that are parked then.
    fn rest(&self, random: &mut Random, outcome: &mut Outcome) {
        self.pause(random);
        let stats = self.db.stats();
        let parked = stats.keyspaces.iter().filter(|keyspace| keyspace.is_parked);
        outcome.parked += parked.count() as u64;
    }

    fn transaction(&self, random: &mut Random, outcome: &mut Outcome) {
        let mut record = self.record();
        let mut transaction = self.db.begin().expect("it is open");
        let done = self.body(&mut transaction, &mut record, random);
        let committed = done.and_then(|()| fuzzing::commit(transaction));
        match committed {
            Ok(lsn) => record.lsn = lsn,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                outcome.conflicts += 1;
                record.writes.clear();
                // With versions a body may see what only a certified one may have seen: a moment that is in
                // no serial order.
                if self.keyspaces.iter().any(|it| it.engine().row().capabilities.versions) {
                    return;
                }
            }
        }
        record.ended = self.tick();
        outcome.records.push(record);
    }

    fn batch(&self, random: &mut Random, outcome: &mut Outcome) {
        let mut record = self.record();
        let mut batch = Batch::new();
        for _ in 0..1 + random.below(3) {
            let key = random.below(self.keys);
            if record.writes.iter().any(|(other, _)| *other == key) {
                continue;
            }
            let is_value = !random.one_in(5);
            record.writes.push((key, is_value));
            if is_value {
                let value = self.value(record.id, random);
                batch.insert(self.keyspace(key), Self::name(key), value);
            } else {
                batch.remove(self.keyspace(key), Self::name(key));
            }
        }
        record.lsn = fuzzing::write(self.db, &batch, Durability::Buffered).expect("there is room");
        record.ended = self.tick();
        outcome.records.push(record);
    }

    /// Takes a snapshot, reads from one that is kept, or lets one go.
    fn snapshot(&self, kept: &mut Vec<Kept>, random: &mut Random, outcome: &mut Outcome) {
        if kept.is_empty() || (kept.len() < KEPT_MAX && random.one_in(3)) {
            let mut record = self.record();
            let snapshot = self.db.snapshot().expect("it is open");
            record.ended = self.tick();
            kept.push(Kept { snapshot, record });
        }
        let which = random.below(kept.len());
        let lives = self.look(&mut kept[which], random);
        if !lives || random.one_in(4) {
            let mut last = kept.swap_remove(which);
            let lives = lives && self.look(&mut last, random);
            *if lives { &mut outcome.snapshots } else { &mut outcome.ended } += 1;
            // What it has answered counts.
            outcome.records.push(last.record);
        }
    }

    /// Reads some keys of a snapshot, or a range from either end. Returns whether it lives.
    fn look(&self, kept: &mut Kept, random: &mut Random) -> bool {
        let Err(error) = self.look_at(kept, random) else { return true };
        assert_eq!(error.kind(), ErrorKind::SnapshotTooOld, "{error}");
        false
    }

    fn look_at(&self, kept: &mut Kept, random: &mut Random) -> Result<()> {
        let part = |keyspace: &Keyspace| -> Snapshot {
            kept.snapshot.keyspace(keyspace).expect("it covers all")
        };
        let mut seen: Vec<(usize, Option<u64>)> = Vec::new();
        if random.one_in(2) {
            for _ in 0..1 + random.below(4) {
                let key = random.below(self.keys);
                let value = part(self.keyspace(key)).get(Self::name(key))?;
                seen.push((key, value.as_deref().map(Self::writer)));
            }
        } else {
            let first = random.below(self.keys);
            let keyspace = self.keyspace(first);
            let range = part(keyspace).range(Self::name(first)..Self::name(self.keys));
            let found: Result<Vec<_>> =
                if random.one_in(2) { range.collect() } else { range.rev().collect() };
            let found: Vec<(usize, u64)> = found?
                .into_iter()
                .map(|(key, value)| {
                    let key = u64::from_be_bytes(key[..].try_into().expect("it is a number"));
                    (key as usize, Self::writer(&value))
                })
                .collect();
            for key in (first..self.keys).filter(|key| std::ptr::eq(self.keyspace(*key), keyspace))
            {
                let writer = found.iter().find(|(it, _)| *it == key).map(|(_, writer)| *writer);
                seen.push((key, writer));
            }
        }
        for (key, writer) in seen {
            match kept.record.reads.iter().find(|(it, _)| *it == key) {
                Some((_, before)) => assert_eq!(*before, writer, "key {key} moved in a snapshot"),
                None => kept.record.reads.push((key, writer)),
            }
        }
        Ok(())
    }

    /// Writes records of other keys.
    fn noise(&self, random: &mut Random) {
        for keyspace in self.keyspaces {
            for _ in 0..8 {
                let key = [&[0xFF][..], &(random.below(4000) as u64).to_be_bytes()].concat();
                keyspace.insert(key, [9; 400]).expect("there is room");
            }
        }
    }

    fn read(&self, random: &mut Random, outcome: &mut Outcome) {
        let mut record = self.record();
        let key = random.below(self.keys);
        let value = self.keyspace(key).get(Self::name(key)).expect("nothing is damaged");
        record.reads.push((key, value.as_deref().map(Self::writer)));
        record.ended = self.tick();
        outcome.records.push(record);
    }
}

/// Runs random transactions, snapshots, batches and plain reads over keyspaces that are empty.
///
/// # Panics
/// When one ends with an error that is no conflict.
#[must_use]
pub fn run(db: &Db, keyspaces: &[Keyspace], work: &Work, seed: u64) -> Outcome {
    let (clock, ids) = (AtomicU64::new(1), AtomicU64::new(1));
    let (keys, value_bytes, pause) = (work.keys, work.value_bytes, work.pause);
    let ground = Ground { db, keyspaces, keys, value_bytes, pause, clock, ids };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..work.threads)
            .map(|thread| {
                let ground = &ground;
                scope.spawn(move || {
                    let mut random = Random::new(seed, 100 + thread as u64);
                    let mut outcome = Outcome::default();
                    let mut kept = Vec::new();
                    for _ in 0..work.operations {
                        match random.below(16) {
                            0..2 => ground.batch(&mut random, &mut outcome),
                            2..4 => ground.read(&mut random, &mut outcome),
                            4..7 if !pause.is_zero() => ground.rest(&mut random, &mut outcome),
                            4..6 => ground.snapshot(&mut kept, &mut random, &mut outcome),
                            6 => ground.noise(&mut random),
                            _ => ground.transaction(&mut random, &mut outcome),
                        }
                    }
                    outcome.snapshots += kept.len() as u64;
                    outcome.records.extend(kept.into_iter().map(|kept| kept.record));
                    outcome
                })
            })
            .collect();
        threads.into_iter().fold(Outcome::default(), |mut all, thread| {
            let one = thread.join().expect("it did not panic");
            all.records.extend(one.records);
            all.conflicts += one.conflicts;
            all.parked += one.parked;
            all.snapshots += one.snapshots;
            all.ended += one.ended;
            all
        })
    })
}
