//! Spinney behind the door: a database whose keyspaces are all kept by one engine ([`Spinney`]), or by each of them
//! ([`EveryEngine`]).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spinney::{
    Batch, Db, Durability, EngineKind, KeyspaceOptions, Options, TornWrites, TransactionOptions,
    Value,
};
use spinney_base::shim::RwLock;
use spinney_base::{Error, ErrorKind, Result, Runtime};
use spinney_engine::{Row, Watched};
use spinney_io::{Disk, IfMissing};

use crate::database::{
    Bytes, Change, Config, Database, Items, KeyBound, Keys, Knobs, Product, Promise, Swapped, View,
    Write,
};

use crate::roots::Layout;
use crate::watch::Watch;

/// Opens Spinney databases with one engine.
#[derive(Clone, Copy, Debug)]
pub struct Spinney(pub EngineKind);

/// Opens Spinney databases with keyspaces of every engine: which one keeps a keyspace follows from its name. All writes
/// but those of every fourth first key are transactions.
#[derive(Debug, Default)]
pub struct EveryEngine {
    /// How many transactions wrote into keyspaces of more than one engine.
    pub mixed: Arc<AtomicU64>,
}

impl EveryEngine {
    /// The engine that keeps the keyspace of this name.
    fn engine(name: &str) -> EngineKind {
        let sum: usize = name.bytes().map(usize::from).sum();
        EngineKind::ALL[sum % EngineKind::ALL.len()]
    }
}

/// Which engine keeps a keyspace, and which writes are transactions.
enum Kept {
    ByOne(EngineKind),
    ByEach(Arc<AtomicU64>),
}

impl Kept {
    fn engine(&self, name: &str) -> EngineKind {
        match self {
            Kept::ByOne(engine) => *engine,
            Kept::ByEach(_) => EveryEngine::engine(name),
        }
    }

    /// Whether these writes are a transaction, and whether it reads what it writes.
    fn transacts(&self, writes: &[Write]) -> Option<bool> {
        let first =
            writes.first().map_or(0, |write| write.key.iter().map(|it| u32::from(*it)).sum());
        // The same writes come as a transaction, whatever is tried.
        let transacts = match self {
            Kept::ByOne(_) => first % 3 == 1,
            Kept::ByEach(_) => !first.is_multiple_of(4),
        };
        transacts.then_some(first % 2 == 1)
    }

    /// Bytes of memory beside what a run gives: what the records of a run take where an engine keeps all of them there.
    fn memory_beside(&self) -> u64 {
        match self {
            Kept::ByOne(engine) if engine.row().capabilities.larger_than_memory => 0,
            Kept::ByOne(_) => 16 << 20,
            Kept::ByEach(_) => 4 << 20,
        }
    }

    fn count(&self, writes: &[Write]) {
        if let Kept::ByEach(mixed) = self {
            let mut engines = writes.iter().map(|write| EveryEngine::engine(&write.keyspace));
            let first = engines.next();
            if engines.any(|engine| Some(engine) != first) {
                mixed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

struct SpinneyDatabase {
    kept: Kept,
    db: Db,
    disk: Arc<dyn Disk>,
    keyspaces: RwLock<HashMap<String, spinney::Keyspace>>,
    knobs: Knobs,
    /// How many snapshots were taken.
    snapshots: AtomicU64,
}

impl SpinneyDatabase {
    /// Writes in a transaction, which perhaps reads first what it writes.
    fn transact(&self, writes: &[Write], promise: Promise, reads: bool) -> Result<()> {
        let options = TransactionOptions::default().durability(durability(promise));
        self.db.transact_with(options, |transaction| {
            for Write { keyspace, key, value } in writes {
                let keyspace = self.keyspace(keyspace)?;
                let savepoint = transaction.savepoint();
                transaction.insert(&keyspace, key, "not this")?;
                transaction.rollback_to(&savepoint)?;
                if reads {
                    transaction.contains_key(&keyspace, key)?;
                    transaction.prefix(&keyspace, key).next().transpose()?;
                }
                match value {
                    Some(value) => transaction.insert(&keyspace, key, value)?,
                    None => transaction.remove(&keyspace, key)?,
                }
            }
            Ok(())
        })
    }
}

impl Product for Spinney {
    fn open(
        &self,
        disk: Arc<dyn Disk>,
        runtime: Runtime,
        config: &Config,
    ) -> Result<Box<dyn Database>> {
        open(Kept::ByOne(self.0), disk, runtime, config)
    }

    fn salvage(
        &self,
        disk: Arc<dyn Disk>,
        runtime: Runtime,
        config: &Config,
        to: &Path,
    ) -> Result<Option<bool>> {
        salvage(&Kept::ByOne(self.0), disk, runtime, config, to)
    }

    fn knobs(&self, seed: u64) -> Knobs {
        let options = self.row().proving.options;
        options[usize::try_from(seed % options.len() as u64).expect("it is below a length")]
    }

    fn states(&self) -> [&'static [(&'static str, u64)]; 2] {
        self.row().proving.states
    }

    fn logs_structure(&self) -> bool {
        self.row().proving.watched == Watched::Records
    }

    fn rewrites_pages(&self) -> bool {
        !matches!(self.row().proving.watched, Watched::Roots | Watched::Pages)
    }

    fn takes_snapshots(&self) -> bool {
        self.row().capabilities.snapshots
    }

    fn watch(&self) -> Option<Arc<Watch>> {
        match self.row().proving.watched {
            Watched::Records => Some(Arc::new(Watch::default())),
            Watched::Roots => Some(Arc::new(Watch::over_roots(Layout::Turtle))),
            Watched::Pages => Some(Arc::new(Watch::over_roots(Layout::Pages))),
            Watched::Nowhere => None,
        }
    }
}

impl Spinney {
    fn row(&self) -> &'static Row {
        self.0.row()
    }
}

impl Product for EveryEngine {
    fn open(
        &self,
        disk: Arc<dyn Disk>,
        runtime: Runtime,
        config: &Config,
    ) -> Result<Box<dyn Database>> {
        open(Kept::ByEach(self.mixed.clone()), disk, runtime, config)
    }

    fn salvage(
        &self,
        disk: Arc<dyn Disk>,
        runtime: Runtime,
        config: &Config,
        to: &Path,
    ) -> Result<Option<bool>> {
        salvage(&Kept::ByEach(self.mixed.clone()), disk, runtime, config, to)
    }

    fn rewrites_pages(&self) -> bool {
        EngineKind::ALL.into_iter().any(|kind| Spinney(kind).rewrites_pages())
    }

    fn takes_snapshots(&self) -> bool {
        EngineKind::ALL.into_iter().all(|kind| Spinney(kind).takes_snapshots())
    }
}

fn open(
    kept: Kept,
    disk: Arc<dyn Disk>,
    runtime: Runtime,
    config: &Config,
) -> Result<Box<dyn Database>> {
    let beside = kept.memory_beside();
    let options = options(disk.clone(), runtime, config).memory(config.memory_bytes + beside);
    let db = Db::open(&config.path, options)?;
    let (keyspaces, snapshots) = (RwLock::default(), AtomicU64::new(0));
    let database = SpinneyDatabase { kept, db, disk, keyspaces, knobs: config.knobs, snapshots };
    for info in database.db.keyspaces() {
        database.create_keyspace(&info.name, info.logged)?;
    }
    Ok(Box::new(database))
}

fn salvage(
    kept: &Kept,
    disk: Arc<dyn Disk>,
    runtime: Runtime,
    config: &Config,
    to: &Path,
) -> Result<Option<bool>> {
    let memory = config.memory_bytes + kept.memory_beside();
    let options = options(disk, runtime, config).memory(memory);
    let report = Db::salvage(&config.path, to, options)?;
    if !report.is_whole() {
        eprintln!("{report:#?}");
    }
    Ok(Some(report.is_whole()))
}

fn options(disk: Arc<dyn Disk>, runtime: Runtime, config: &Config) -> Options {
    let torn = if config.assume_4k { TornWrites::Assume4k } else { TornWrites::Auto };
    // Some park all the time, some now and then, some hardly ever.
    let park_after = match runtime.random() % 4 {
        0 => Duration::from_millis(20),
        1 => Duration::from_millis(200),
        2 => Duration::from_secs(1),
        _ => Duration::from_secs(5),
    };
    Options::default()
        .park_after(park_after)
        .log_bytes_max(config.log_bytes_max)
        .torn_writes(torn)
        .disk(disk)
        .runtime(runtime)
}

impl SpinneyDatabase {
    fn keyspace(&self, name: &str) -> Result<spinney::Keyspace> {
        if let Some(keyspace) = self.keyspaces.read().get(name) {
            return Ok(keyspace.clone());
        }
        let keyspace = self.db.existing_keyspace(name)?;
        self.keyspaces.write().insert(name.to_owned(), keyspace.clone());
        Ok(keyspace)
    }
}

fn durability(promise: Promise) -> Durability {
    match promise {
        Promise::Sync => Durability::Sync,
        Promise::Buffered => Durability::Buffered,
    }
}

/// The items of a cursor that could not be made: its error alone.
fn only<'a, T: 'a>(error: Error) -> Box<dyn DoubleEndedIterator<Item = Result<T>> + 'a> {
    Box::new(std::iter::once(Err(error)))
}

fn owned(item: Result<(Bytes, Value)>) -> Result<(Bytes, Bytes)> {
    item.map(|(key, value)| (key, value.into()))
}

impl Database for SpinneyDatabase {
    fn create_keyspace(&self, name: &str, logged: bool) -> Result<()> {
        let mut options = KeyspaceOptions::default().engine(self.kept.engine(name)).logged(logged);
        for (name, value) in self.knobs {
            options = options.set(name, value)?;
        }
        let keyspace = self.db.keyspace(name, options)?;
        self.keyspaces.write().insert(name.to_owned(), keyspace);
        Ok(())
    }

    fn bulk_load(&self, keyspace: &str, records: &[(Bytes, Bytes)]) -> Result<()> {
        let records = records.iter().map(|(key, value)| (key, value));
        self.keyspace(keyspace)?.bulk_load(records).map(|_| ())
    }

    fn drop_keyspace(&self, name: &str) -> Result<()> {
        let kept = self.keyspaces.write().remove(name);
        self.db.drop_keyspace(name)?;
        // A handle to what was dropped must say so.
        if let Some(keyspace) = kept {
            let answer = keyspace.get(b"").map(|_| ());
            let closed = answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed);
            assert!(closed, "a dropped keyspace answered {answer:?}");
        }
        Ok(())
    }

    fn keyspaces(&self) -> Vec<(String, bool)> {
        let mut all: Vec<_> =
            self.db.keyspaces().into_iter().map(|info| (info.name, info.logged)).collect();
        all.sort();
        all
    }

    fn get(&self, keyspace: &str, key: &[u8]) -> Result<Option<Bytes>> {
        let keyspace = self.keyspace(keyspace)?;
        // Both ways of reading are the same to a caller; which one is tried is left to the key.
        if key.len().is_multiple_of(2) {
            return Ok(keyspace.get(key)?.map(Bytes::from));
        }
        let mut into = b"left over".to_vec();
        Ok(keyspace.get_into(key, &mut into)?.then_some(into))
    }

    fn contains_key(&self, keyspace: &str, key: &[u8]) -> Result<bool> {
        self.keyspace(keyspace)?.contains_key(key)
    }

    fn multi_get(&self, keyspace: &str, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        let found = self.keyspace(keyspace)?.multi_get(keys)?;
        Ok(found.into_iter().map(|value| value.map(Bytes::from)).collect())
    }

    fn write(&self, writes: &[Write], promise: Promise) -> Result<()> {
        if let Some(reads) = self.kept.transacts(writes) {
            self.transact(writes, promise, reads)?;
            self.kept.count(writes);
            return Ok(());
        }
        if let [write] = writes {
            let keyspace = self.keyspace(&write.keyspace)?;
            return match &write.value {
                Some(value) => keyspace.insert_with(&write.key, value, durability(promise)),
                None => keyspace.remove_with(&write.key, durability(promise)),
            };
        }
        let mut batch = Batch::new();
        for write in writes {
            let keyspace = self.keyspace(&write.keyspace)?;
            match &write.value {
                Some(value) => batch.insert(&keyspace, &write.key, value),
                None => batch.remove(&keyspace, &write.key),
            };
        }
        self.db.write_with(batch, durability(promise))
    }

    fn compare_and_swap(
        &self,
        keyspace: &str,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swapped> {
        let answer = self.keyspace(keyspace)?.compare_and_swap(key, expected, new)?;
        Ok(answer.map_err(|error| error.current.map(Bytes::from)))
    }

    fn update(&self, keyspace: &str, key: &[u8], change: &mut Change<'_>) -> Result<Option<Bytes>> {
        Ok(self.keyspace(keyspace)?.update(key, change)?.map(Bytes::from))
    }

    fn range(&self, keyspace: &str, from: KeyBound, to: KeyBound) -> Items<'_> {
        match self.keyspace(keyspace) {
            Ok(keyspace) => Box::new(keyspace.range((from, to)).map(owned)),
            Err(error) => only(error),
        }
    }

    fn prefix(&self, keyspace: &str, prefix: &[u8]) -> Items<'_> {
        match self.keyspace(keyspace) {
            Ok(keyspace) => Box::new(keyspace.prefix(prefix).map(owned)),
            Err(error) => only(error),
        }
    }

    fn keys(&self, keyspace: &str, from: KeyBound, to: KeyBound) -> Keys<'_> {
        match self.keyspace(keyspace) {
            Ok(keyspace) => Box::new(keyspace.keys((from, to))),
            Err(error) => only(error),
        }
    }

    fn first(&self, keyspace: &str) -> Result<Option<(Bytes, Bytes)>> {
        self.keyspace(keyspace)?
            .first_key_value()
            .map(|found| found.map(|(key, value)| (key, value.into())))
    }

    fn last(&self, keyspace: &str) -> Result<Option<(Bytes, Bytes)>> {
        self.keyspace(keyspace)?
            .last_key_value()
            .map(|found| found.map(|(key, value)| (key, value.into())))
    }

    fn flush(&self) -> Result<()> {
        self.db.flush()
    }

    fn checkpoint(&self) -> Result<()> {
        self.db.checkpoint()
    }

    fn compact(&self, keyspace: &str, from: &KeyBound, to: &KeyBound) -> Result<()> {
        self.keyspace(keyspace)?.compact_range((from.clone(), to.clone())).map(|_| ())
    }

    fn verify(&self) -> Result<()> {
        self.db.verify().map(|_| ())
    }

    fn backup(&self, directory: &Path) -> Result<()> {
        let place = self.disk.directory(directory, IfMissing::Create)?;
        for file in place.list()? {
            place.remove(&file)?;
        }
        self.db.backup(directory).map(|_| ())
    }

    fn snapshot(&self, keyspace: &str) -> Result<Option<Box<dyn View>>> {
        let keyspace = self.keyspace(keyspace)?;
        if !keyspace.capabilities().snapshots {
            return Ok(None);
        }
        // Of this keyspace alone, or of all: what a run does follows from its seed.
        let taken = self.snapshots.fetch_add(1, Ordering::Relaxed);
        let snapshot = match taken % 2 {
            0 => keyspace.snapshot()?,
            _ => self.db.snapshot()?.keyspace(&keyspace)?,
        };
        Ok(Some(Box::new(snapshot)))
    }

    fn set_checkpoint_distance(&self, keyspace: &str, batches: u64) -> Result<()> {
        let keyspace = self.keyspace(keyspace)?;
        match keyspace.turtle().and_then(|turtle| turtle.set_checkpoint_distance(batches)) {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
            clamped => {
                let clamped = clamped?;
                assert!((1..=batches).contains(&clamped), "{batches} came out as {clamped}");
                Ok(())
            }
        }
    }

    fn states(&self) -> Vec<&'static str> {
        let turtles: Vec<_> =
            self.keyspaces.read().values().filter_map(|one| one.stats().turtle).collect();
        let mut states = Vec::new();
        if turtles.iter().any(|turtle| turtle.memtables > 1) {
            states.push("seal");
        }
        if turtles.iter().any(|turtle| turtle.pending_batches > 0) {
            states.push("pending batches");
        }
        if turtles.iter().any(|turtle| turtle.snapshots > 0) {
            states.push("snapshot kept");
        }
        states
    }

    fn set_memory(&self, bytes: u64) -> Result<()> {
        self.db.set_memory(bytes + self.kept.memory_beside())
    }

    fn memory(&self) -> Option<(u64, u64)> {
        let stats = self.db.stats();
        Some((stats.memory_used, stats.memory_bytes))
    }

    fn open_keyspaces(&self) -> usize {
        self.db.stats().keyspaces.iter().filter(|keyspace| !keyspace.is_parked).count()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.close()
    }
}

impl View for spinney::Snapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let mut into = b"left over".to_vec();
        let found = self.get_into(key, &mut into)?;
        assert_eq!(self.contains_key(key)?, found);
        Ok(found.then_some(into))
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        let found = spinney::Snapshot::multi_get(self, keys)?;
        Ok(found.into_iter().map(|value| value.map(Bytes::from)).collect())
    }

    fn range(&self, from: KeyBound, to: KeyBound) -> Items<'_> {
        Box::new(spinney::Snapshot::range(self, (from, to)).map(owned))
    }
}
