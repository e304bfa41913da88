//! LMDB through `heed`: its cache is the page cache, so its memory is limited by a control group
//! where one can be made.
//!
//! Every write is a transaction of its own, as for the other engines. `buffered` and `none` both
//! leave out the sync at commit; its pages are then in the kernel's hands when a write returns.
#![expect(
    unsafe_code,
    reason = "opening an LMDB environment is unsafe by signature, because files are mapped"
)]

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions};
use spinney_base::{Error, ErrorKind, Result};
use spinney_bench::driver::{Driver, Knobs, OpenConfig, Session, Store, Terms};
use spinney_bench::plan::Durability;

use crate::cgroup::{Limited, MEMORY_LIMIT};
use crate::refuse_knobs;

/// Address space of the map: far more than any run writes; no memory is taken for it.
const MAP_BYTES: usize = 1 << 40;

/// LMDB.
#[derive(Clone, Copy, Debug)]
pub struct Lmdb;

type Records = Database<'static, Bytes, Bytes>;

struct LmdbStore {
    env: Env,
    records: Records,
    limit: Limited,
}

struct LmdbSession {
    env: Env,
    records: Records,
}

fn failed(error: &heed::Error) -> Error {
    let kind = match error {
        heed::Error::Mdb(heed::MdbError::Corrupted | heed::MdbError::PageNotFound) => {
            ErrorKind::Corruption
        }
        heed::Error::Mdb(heed::MdbError::MapFull) => ErrorKind::Full,
        heed::Error::Mdb(heed::MdbError::BadValSize) => ErrorKind::InvalidArgument,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("lmdb: {error}"))
}

impl Driver for Lmdb {
    fn name(&self) -> &'static str {
        "lmdb"
    }

    fn is_peer(&self) -> bool {
        true
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        refuse_knobs("lmdb", knobs, &[MEMORY_LIMIT])
    }

    fn open(&self, config: &OpenConfig) -> Result<Box<dyn Store>> {
        let limit = Limited::enter("lmdb", config)?;
        let mut options = EnvOpenOptions::new();
        let readers = u32::try_from(config.threads).unwrap_or(u32::MAX).saturating_add(8);
        options.map_size(MAP_BYTES).max_readers(readers);
        // Random reads of a file larger than memory: fetching neighbours would only push out what
        // is wanted.
        let mut flags = EnvFlags::NO_READ_AHEAD;
        if config.durability != Durability::Sync {
            flags |= EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC;
        }
        // SAFETY: leaving out syncs risks the environment only when the machine crashes, and its files are thrown away after the run.
        unsafe { options.flags(flags) };
        // SAFETY: the directory was made for this run alone; nobody else opens or changes the files in it.
        let opened = unsafe { options.open(&config.directory) };
        let env = opened.map_err(|error| failed(&error))?;
        let records = create(&env).map_err(|error| failed(&error))?;
        Ok(Box::new(LmdbStore { env, records, limit }))
    }
}

fn create(env: &Env) -> heed::Result<Records> {
    let transaction = env.write_txn()?;
    let created =
        env.create_databases_and_commit(transaction, |opener, transaction| -> heed::Result<_> {
            let records = opener.create_database::<Bytes, Bytes>(transaction, None)?;
            Ok(CommitOrAbort::<_, ()>::Commit(records))
        })?;
    Ok(created.unwrap_commit())
}

impl Store for LmdbStore {
    fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(LmdbSession { env: self.env.clone(), records: self.records }))
    }

    fn flush(&self) -> Result<()> {
        self.env.force_sync().map_err(|error| failed(&error))
    }

    fn terms(&self) -> Terms {
        let (memory_limited, memory) = self.limit.terms();
        Terms {
            version: "heed crate 0.23".to_owned(),
            torn_writes: "copy-on-write".to_owned(),
            memory_limited,
            notes: vec!["writes copies, so torn pages do not concern it".to_owned(), memory],
        }
    }
}

impl Session for LmdbSession {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let transaction = self.env.read_txn().map_err(|error| failed(&error))?;
        let found = self.records.get(&transaction, key).map_err(|error| failed(&error))?;
        value.extend_from_slice(found.unwrap_or_default());
        Ok(found.is_some())
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let write = || {
            let mut transaction = self.env.write_txn()?;
            self.records.put(&mut transaction, key, value)?;
            transaction.commit()
        };
        write().map_err(|error| failed(&error))
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        let write = || {
            let mut transaction = self.env.write_txn()?;
            self.records.delete(&mut transaction, key)?;
            transaction.commit()
        };
        write().map_err(|error| failed(&error))
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut read = || {
            let transaction = self.env.read_txn()?;
            let from = (std::ops::Bound::Included(start), std::ops::Bound::Unbounded);
            for record in self.records.range(&transaction, &from)?.take(limit) {
                let (key, value) = record?;
                visit(key, value);
            }
            heed::Result::Ok(())
        };
        read().map_err(|error| failed(&error))
    }

    fn prefix(
        &mut self,
        prefix: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut read = || {
            let transaction = self.env.read_txn()?;
            for record in self.records.prefix_iter(&transaction, prefix)?.take(limit) {
                let (key, value) = record?;
                visit(key, value);
            }
            heed::Result::Ok(())
        };
        read().map_err(|error| failed(&error))
    }
}
