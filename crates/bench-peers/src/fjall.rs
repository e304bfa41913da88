//! fjall: a log-structured merge tree with a block cache of its own over the page cache, which a
//! control group limits together where one can be made.
//!
//! A quarter of the memory, at most 64 MiB, is for its memtable, half of it for the block cache,
//! and the rest for the page cache and memtables that are being written out. No compression. `sync`
//! syncs the journal after each write, `buffered` hands it to the kernel as fjall does by itself,
//! `none` leaves it in the process.

use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Result};
use spinney_bench::driver::{Driver, Knobs, OpenConfig, Session, Store, Terms};
use spinney_bench::plan::Durability;

use crate::cgroup::{Limited, MEMORY_LIMIT};
use crate::refuse_knobs;

pub(crate) const MEMTABLE_BYTES_MAX: u64 = 64 << 20;

/// fjall.
#[derive(Clone, Copy, Debug)]
pub struct Fjall;

struct FjallStore {
    db: Database,
    records: Keyspace,
    durability: Durability,
    limit: Limited,
}

struct FjallSession {
    db: Database,
    records: Keyspace,
    durability: Durability,
}

pub(crate) fn failed(error: fjall::Error) -> Error {
    Error::new(ErrorKind::Io, format!("fjall: {error}"))
}

/// Options of a keyspace.
pub(crate) fn keyspace_options(memtable_bytes: u64) -> KeyspaceCreateOptions {
    let block = u32::try_from(PAGE_BYTES).unwrap_or(u32::MAX);
    KeyspaceCreateOptions::default()
        .max_memtable_size(memtable_bytes)
        .data_block_size_policy(BlockSizePolicy::all(block))
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
}

impl Driver for Fjall {
    fn name(&self) -> &'static str {
        "fjall"
    }

    fn is_peer(&self) -> bool {
        true
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        refuse_knobs("fjall", knobs, &[MEMORY_LIMIT])
    }

    fn open(&self, config: &OpenConfig) -> Result<Box<dyn Store>> {
        let limit = Limited::enter("fjall", config)?;
        let by_hand = config.durability != Durability::Buffered;
        let db = Database::builder(&config.directory)
            .cache_size(config.memory / 2)
            .manual_journal_persist(by_hand)
            .open()
            .map_err(failed)?;
        let memtable = (config.memory / 4).min(MEMTABLE_BYTES_MAX);
        let options = || keyspace_options(memtable).manual_journal_persist(by_hand);
        let records = db.keyspace("records", options).map_err(failed)?;
        Ok(Box::new(FjallStore { db, records, durability: config.durability, limit }))
    }
}

impl Store for FjallStore {
    fn session(&self) -> Result<Box<dyn Session>> {
        let (db, records) = (self.db.clone(), self.records.clone());
        Ok(Box::new(FjallSession { db, records, durability: self.durability }))
    }

    fn flush(&self) -> Result<()> {
        self.db.persist(PersistMode::SyncAll).map_err(failed)
    }

    fn terms(&self) -> Terms {
        let (memory_limited, memory) = self.limit.terms();
        Terms {
            version: "fjall crate 3".to_owned(),
            torn_writes: "log-structured".to_owned(),
            memory_limited,
            notes: vec!["writes new files, so torn pages do not concern it".to_owned(), memory],
        }
    }
}

impl FjallSession {
    fn commit(&self) -> Result<()> {
        match self.durability {
            Durability::Sync => self.db.persist(PersistMode::SyncData).map_err(failed),
            // It has done so by itself.
            Durability::Buffered | Durability::None => Ok(()),
        }
    }
}

impl Session for FjallSession {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.records.get(key).map_err(failed)?;
        if let Some(found) = &found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.records.insert(key, value).map_err(failed)?;
        self.commit()
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.records.remove(key).map_err(failed)?;
        self.commit()
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        for record in self.records.range(start..).take(limit) {
            let (key, value) = record.into_inner().map_err(failed)?;
            visit(&key, &value);
        }
        Ok(())
    }

    fn prefix(
        &mut self,
        prefix: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        for record in self.records.prefix(prefix).take(limit) {
            let (key, value) = record.into_inner().map_err(failed)?;
            visit(&key, &value);
        }
        Ok(())
    }
}
