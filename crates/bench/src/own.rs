//! Drivers for our own engines, through the same face that every user has.

use spinney::{Db, EngineKind, EngineStats, Keyspace, KeyspaceOptions, LogMemory, Options};
use spinney_base::{Error, ErrorKind, Result};

use crate::driver::{
    Counters, Driver, KeyspaceMemory, Knobs, Loaded, OpenConfig, Scanned, Session, Store, Terms,
};
use crate::plan::{Durability, TornWrites};
use crate::shape::Shape;

/// The keyspace that is measured; of several the first one, and others bear a number behind it.
const KEYSPACE: &str = "bench";

/// The knobs that are options of the database and not of the keyspace.
const POLL_READS: &str = "poll-reads";
pub(crate) const PERSISTENT_MEMORY: &str = "pm";
/// The only value of the second: [`LogMemory::Emulated`].
pub(crate) const EMULATE: &str = "emulate";

/// One of our engines.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    kind: EngineKind,
    /// Name in output, if it is not the engine's, and options that go with it.
    variant: Option<(&'static str, &'static [(&'static str, &'static str)])>,
}

/// The base of Tiered-Indexing: the same tree of pages without a tier for reads.
const ONE_TIER: Own =
    Own { kind: EngineKind::TwoBTree, variant: Some(("btree", &[("tiers", "1")])) };

/// All of our engines.
#[must_use]
pub fn drivers() -> Vec<Box<dyn Driver>> {
    let own = EngineKind::ALL.into_iter().map(|kind| Own { kind, variant: None });
    own.chain([ONE_TIER]).map(|own| Box::new(own) as Box<dyn Driver>).collect()
}

/// Whether the log emulates persistent memory.
fn log_memory(knobs: &Knobs) -> LogMemory {
    if knobs.contains_key(PERSISTENT_MEMORY) { LogMemory::Emulated } else { LogMemory::Automatic }
}

/// Whether reads poll, and the options of a keyspace of an engine.
pub(crate) fn options(kind: EngineKind, knobs: &Knobs) -> Result<(bool, KeyspaceOptions)> {
    let (mut poll_reads, mut options) = (true, KeyspaceOptions::default().engine(kind));
    for (name, value) in knobs {
        match (name.as_str(), value.as_str()) {
            (POLL_READS, "on") => poll_reads = true,
            (POLL_READS, "off") => poll_reads = false,
            (POLL_READS, other) => {
                let message = format!("{POLL_READS} is on or off, not {other:?}");
                return Err(Error::invalid(message));
            }
            (PERSISTENT_MEMORY, EMULATE) => {}
            (name, value) => options = options.set(name, value)?,
        }
    }
    Ok((poll_reads, options))
}

/// The name of a keyspace.
fn name_of(number: usize) -> String {
    if number == 0 { KEYSPACE.to_owned() } else { format!("{KEYSPACE}{number}") }
}

struct OwnStore {
    db: Db,
    keyspaces: Vec<Keyspace>,
    durability: Durability,
    /// Whether numbers are those of emulated persistent memory.
    emulates: bool,
}

struct OwnSession {
    keyspaces: Vec<Keyspace>,
    keyspace: Keyspace,
}

impl Own {
    /// Whether reads poll, and the options of a keyspace.
    fn options(&self, knobs: &Knobs) -> Result<(bool, KeyspaceOptions)> {
        let (poll_reads, mut options) = options(self.kind, knobs)?;
        for (name, value) in self.variant.iter().flat_map(|(_, options)| *options) {
            options = options.set(name, value)?;
        }
        Ok((poll_reads, options))
    }
}

impl Driver for Own {
    fn name(&self) -> &'static str {
        self.variant.map_or(self.kind.name(), |(name, _)| name)
    }

    fn is_peer(&self) -> bool {
        false
    }

    fn keeps_all_in_memory(&self) -> bool {
        self.kind == EngineKind::Iot
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        self.options(knobs).map(|_| ())
    }

    fn open(&self, config: &OpenConfig) -> Result<Box<dyn Store>> {
        let durability = match config.durability {
            Durability::Sync => spinney::Durability::Sync,
            Durability::Buffered | Durability::None => spinney::Durability::Buffered,
        };
        let torn_writes = match config.torn_writes {
            TornWrites::Auto => spinney::TornWrites::Auto,
            TornWrites::DoubleWrite => spinney::TornWrites::DoubleWrite,
            TornWrites::Assume4k => spinney::TornWrites::Assume4k,
        };
        let (poll_reads, keyspace_options) = self.options(&config.knobs)?;
        let options = Options::default()
            .memory(config.memory)
            .poll_reads(poll_reads)
            .log_memory(log_memory(&config.knobs))
            .durability(durability)
            .torn_writes(torn_writes);
        let keyspace_options = keyspace_options.logged(config.durability != Durability::None);
        let db = Db::open(&config.directory, options)?;
        let keyspaces = (0..config.keyspaces)
            .map(|number| db.keyspace(&name_of(number), keyspace_options.clone()));
        let keyspaces = keyspaces.collect::<Result<_>>()?;
        let emulates = log_memory(&config.knobs) == LogMemory::Emulated;
        Ok(Box::new(OwnStore { db, keyspaces, durability: config.durability, emulates }))
    }
}

impl Store for OwnStore {
    fn session(&self) -> Result<Box<dyn Session>> {
        let keyspaces = self.keyspaces.clone();
        Ok(Box::new(OwnSession { keyspace: keyspaces[0].clone(), keyspaces }))
    }

    /// What was acknowledged is on stable storage afterwards: through the log where there is one.
    fn flush(&self) -> Result<()> {
        match self.durability {
            Durability::None => self.db.checkpoint(),
            Durability::Sync | Durability::Buffered => self.db.flush(),
        }
    }

    fn settle(&self) -> Result<()> {
        self.db.checkpoint()
    }

    fn counters(&self) -> Result<Counters> {
        let stats = self.db.stats();
        if self.emulates && !["none", "emulated"].contains(&stats.log.memory) {
            let message = format!("--pm emulate: the log's memory is {} here", stats.log.memory);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let sum =
            |of: fn(&EngineStats) -> u64| Some(stats.keyspaces.iter().map(|one| of(one)).sum());
        #[expect(clippy::cast_precision_loss, reason = "milliseconds are shown with a few digits")]
        let stall_ms = stats.stall_ns as f64 / 1e6;
        let logged = self.durability != Durability::None;
        Ok(Counters {
            io: Some(stats.io),
            cache_hits: sum(|one| one.cache_hits),
            cache_misses: sum(|one| one.cache_misses),
            scanned: Some(Scanned {
                pages: sum(|one| one.scan_pages).unwrap_or(0),
                records: sum(|one| one.scan_records).unwrap_or(0),
                tombstones: sum(|one| one.scan_tombstones).unwrap_or(0),
            }),
            pages_read: sum(|one| one.pages_read),
            stall_ms: Some(stall_ms),
            commits: logged.then_some(stats.log.commits),
            log_flushes: logged.then_some(stats.log.flushes),
        })
    }

    fn describe(&self) -> Option<Shape> {
        Some(Shape::from(&self.keyspaces[0].stats()))
    }

    fn memory_of(&self, keyspaces: &[usize]) -> Option<KeyspaceMemory> {
        let stats = self.db.stats();
        let names: Vec<String> = keyspaces.iter().map(|number| name_of(*number)).collect();
        let of = stats.keyspaces.iter().filter(|one| names.contains(&one.name));
        let memory = of.filter_map(|one| one.memory);
        Some(memory.fold(KeyspaceMemory::default(), |sum, one| KeyspaceMemory {
            target: sum.target + one.target,
            used: sum.used + one.used,
        }))
    }

    fn has_bulk_load(&self) -> bool {
        true
    }

    fn terms(&self) -> Terms {
        let stats = self.db.stats();
        Terms {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            torn_writes: stats.torn_writes.to_owned(),
            memory_limited: true,
            notes: vec![format!("I/O by {}, torn writes: {}", stats.io_backend, stats.torn_writes)],
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        let OwnStore { db, keyspaces, .. } = *self;
        drop(keyspaces);
        db.close()
    }
}

impl Session for OwnSession {
    fn turn_to(&mut self, keyspace: usize) {
        self.keyspace = self.keyspaces[keyspace].clone();
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.keyspace.get_into(key, value)
    }

    fn get_many(
        &mut self,
        keys: &[Vec<u8>],
        show: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let values = self.keyspace.multi_get(&keys)?;
        values.iter().enumerate().for_each(|(place, value)| show(place, value.as_deref()));
        Ok(())
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.insert(key, value)
    }

    fn bulk_load(&mut self, records: &mut dyn Iterator<Item = Loaded>) -> Result<()> {
        self.keyspace.bulk_load(records).map(|_| ())
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.keyspace.remove(key)
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut cursor = self.keyspace.range(start..).limit(limit);
        while let Some((key, value)) = cursor.next_ref()? {
            visit(key, value);
        }
        Ok(())
    }
    fn prefix(
        &mut self,
        prefix: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut cursor = self.keyspace.prefix(prefix).limit(limit);
        while let Some((key, value)) = cursor.next_ref()? {
            visit(key, value);
        }
        Ok(())
    }
}
