//! Drivers for our own engines, through the same face that every user has.

use spinney::{Db, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_base::{Error, Result};

use crate::driver::{Counters, Driver, Knobs, OpenConfig, Session, Store, Terms};
use crate::plan::{Durability, TornWrites};
use crate::shape::Shape;

/// The keyspace that is measured.
const KEYSPACE: &str = "bench";

/// The one knob that is an option of the database and not of the keyspace.
const POLL_READS: &str = "poll-reads";

/// One of our engines.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    kind: EngineKind,
}

/// All of our engines.
#[must_use]
pub fn drivers() -> Vec<Box<dyn Driver>> {
    EngineKind::ALL.into_iter().map(|kind| Box::new(Own { kind }) as Box<dyn Driver>).collect()
}

impl Own {
    /// Whether reads poll, and the options of the keyspace.
    fn options(&self, knobs: &Knobs) -> Result<(bool, KeyspaceOptions)> {
        let (mut poll_reads, mut options) = (true, KeyspaceOptions::default().engine(self.kind));
        for (name, value) in knobs {
            match (name.as_str(), value.as_str()) {
                (POLL_READS, "on") => poll_reads = true,
                (POLL_READS, "off") => poll_reads = false,
                (POLL_READS, other) => {
                    let message = format!("{POLL_READS} is on or off, not {other:?}");
                    return Err(Error::invalid(message));
                }
                (name, value) => options = options.set(name, value)?,
            }
        }
        Ok((poll_reads, options))
    }
}

struct OwnStore {
    db: Db,
    keyspace: Keyspace,
    durability: Durability,
}

struct OwnSession {
    keyspace: Keyspace,
}

impl Driver for Own {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn is_peer(&self) -> bool {
        false
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
            .durability(durability)
            .torn_writes(torn_writes);
        let keyspace_options = keyspace_options.logged(config.durability != Durability::None);
        let db = Db::open(&config.directory, options)?;
        let keyspace = db.keyspace(KEYSPACE, keyspace_options)?;
        Ok(Box::new(OwnStore { db, keyspace, durability: config.durability }))
    }
}

impl Store for OwnStore {
    fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(OwnSession { keyspace: self.keyspace.clone() }))
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
        let keyspace = self.keyspace.stats();
        #[expect(clippy::cast_precision_loss, reason = "milliseconds are shown with a few digits")]
        let stall_ms = stats.stall_ns as f64 / 1e6;
        let logged = self.durability != Durability::None;
        Ok(Counters {
            io: Some(stats.io),
            cache_hits: Some(keyspace.cache_hits),
            cache_misses: Some(keyspace.cache_misses),
            pages_read: Some(keyspace.pages_read),
            stall_ms: Some(stall_ms),
            commits: logged.then_some(stats.log.commits),
            log_flushes: logged.then_some(stats.log.flushes),
        })
    }

    fn describe(&self) -> Option<Shape> {
        Some(Shape::from(&self.keyspace.stats()))
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
        let OwnStore { db, keyspace, .. } = *self;
        drop(keyspace);
        db.close()
    }
}

impl Session for OwnSession {
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
}
