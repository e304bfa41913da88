//! RocksDB: direct I/O, Bloom filters of 10 bits a key, 4 KiB blocks, no compression; a quarter of
//! the memory, at most 64 MiB, for memtables, and the rest for the block cache, with index and
//! filter blocks inside it.
//!
//! `rocksdb-rows` is the same with its row cache, which keeps single records that lookups found. It
//! has three quarters of what the block cache has otherwise. Scans do not use it, and a write does
//! not change it: the record is cached again when it is read from a file.

use std::sync::Arc;

use rocksdb::statistics::Ticker;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, LruCacheOptions, Options, ReadOptions,
    WriteOptions,
};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Result};
use spinney_bench::driver::{
    Counters, Driver, Knobs, OpenConfig, Session, Store, Terms, prefix_end,
};
use spinney_bench::plan::Durability;

use crate::refuse_knobs;

/// Memtables take a quarter of the budget and at most this, in all.
const MEMTABLE_BYTES_MAX: u64 = 64 << 20;
/// One memtable takes writes while the other is written out.
const MEMTABLES: u32 = 2;
/// A shard of the block cache holds several filter blocks, which are 1.3 MiB for a file of a
/// million keys.
const SHARD_BYTES_MIN: u64 = 16 << 20;
/// Bits of Bloom filter for each key.
const BLOOM_BITS: f64 = 10.0;

/// Share of the caches for single records. Indexes and filters are in the block cache and must fit
/// there, or each lookup reads them again; they take a fiftieth of records of 128 bytes.
const ROWS_SHARE: f64 = 0.75;

/// RocksDB.
#[derive(Clone, Copy, Debug)]
pub struct Rocks {
    has_rows: bool,
}

impl Rocks {
    /// With a block cache alone.
    pub const BLOCKS: Rocks = Rocks { has_rows: false };
    /// With a row cache, too.
    pub const ROWS: Rocks = Rocks { has_rows: true };
}

struct RocksStore {
    db: Arc<DB>,
    options: Options,
    durability: Durability,
    has_rows: bool,
}

struct RocksSession {
    db: Arc<DB>,
    write: WriteOptions,
}

pub(crate) fn failed(error: &rocksdb::Error) -> Error {
    let kind = match error.kind() {
        rocksdb::ErrorKind::Corruption => ErrorKind::Corruption,
        rocksdb::ErrorKind::InvalidArgument => ErrorKind::InvalidArgument,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("rocksdb: {error}"))
}

fn bytes(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// A cache of `capacity` bytes, in shards large enough for whole filter blocks.
///
/// By default there are up to 64 shards of at least 512 KiB. The filter of a 64 MiB file of small
/// records is larger than that and is then never kept: every read would fetch it again, which is a
/// hundred times slower and not what RocksDB's users run.
fn lru_cache(capacity: u64) -> Cache {
    let shards = (capacity / SHARD_BYTES_MIN).clamp(1, 64);
    let mut options = LruCacheOptions::default();
    options.set_capacity(bytes(capacity));
    options.set_num_shard_bits(i32::try_from(shards.ilog2()).unwrap_or(0));
    Cache::new_lru_cache_opts(&options)
}

/// Options without a row cache.
pub(crate) fn options(config: &OpenConfig) -> Options {
    options_with(config, 0)
}

/// Bytes of the row cache of a budget.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a budget, which is far below 2^53"
)]
fn row_bytes(memory: u64) -> u64 {
    let caches = memory - (memory / 4).min(MEMTABLE_BYTES_MAX);
    (caches as f64 * ROWS_SHARE) as u64
}

fn options_with(config: &OpenConfig, row_bytes: u64) -> Options {
    let memtables = (config.memory / 4).min(MEMTABLE_BYTES_MAX);
    let mut table = BlockBasedOptions::default();
    table.set_block_size(PAGE_BYTES);
    table.set_bloom_filter(BLOOM_BITS, false);
    table.set_block_cache(&lru_cache(config.memory - memtables - row_bytes));
    table.set_cache_index_and_filter_blocks(true);
    let mut options = Options::default();
    options.create_if_missing(true);
    if row_bytes > 0 {
        options.set_row_cache(&lru_cache(row_bytes));
    }
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::None);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    options.set_write_buffer_size(bytes(memtables / u64::from(MEMTABLES)));
    options.set_max_write_buffer_number(2);
    options.set_db_write_buffer_size(bytes(memtables));
    if config.durability == Durability::Sync {
        // Only these runs report commits per sync; the others do not pay for counting.
        options.enable_statistics();
    }
    options
}

impl Driver for Rocks {
    fn name(&self) -> &'static str {
        if self.has_rows { "rocksdb-rows" } else { "rocksdb" }
    }

    fn is_peer(&self) -> bool {
        true
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        refuse_knobs(self.name(), knobs, &[])
    }

    fn open(&self, config: &OpenConfig) -> Result<Box<dyn Store>> {
        let row_bytes = if self.has_rows { row_bytes(config.memory) } else { 0 };
        let options = options_with(config, row_bytes);
        let db = DB::open(&options, &config.directory).map_err(|error| failed(&error))?;
        Ok(Box::new(RocksStore {
            db: Arc::new(db),
            options,
            durability: config.durability,
            has_rows: self.has_rows,
        }))
    }
}

impl Store for RocksStore {
    fn session(&self) -> Result<Box<dyn Session>> {
        let mut write = WriteOptions::default();
        match self.durability {
            Durability::Sync => write.set_sync(true),
            Durability::Buffered => write.set_sync(false),
            Durability::None => write.disable_wal(true),
        }
        Ok(Box::new(RocksSession { db: self.db.clone(), write }))
    }

    /// What was acknowledged is on stable storage afterwards: through the log where there is one.
    fn flush(&self) -> Result<()> {
        match self.durability {
            Durability::None => self.db.flush(),
            Durability::Sync | Durability::Buffered => self.db.flush_wal(true),
        }
        .map_err(|error| failed(&error))
    }

    fn counters(&self) -> Result<Counters> {
        let text = self.db.property_value("rocksdb.dbstats").map_err(|error| failed(&error))?;
        let counted = self.durability == Durability::Sync;
        let ticker = |ticker| counted.then(|| self.options.get_ticker_count(ticker));
        Ok(Counters {
            stall_ms: text.as_deref().and_then(stall_ms),
            commits: ticker(Ticker::NumberKeysWritten),
            log_flushes: ticker(Ticker::WalFileSynced),
            ..Counters::default()
        })
    }

    fn terms(&self) -> Terms {
        let mut notes = vec!["writes copies, so torn pages do not concern it".to_owned()];
        if self.has_rows {
            notes.push("three quarters of its caches are its row cache".to_owned());
        }
        Terms {
            version: "rocksdb crate 0.25".to_owned(),
            torn_writes: "copy-on-write".to_owned(),
            memory_limited: true,
            notes,
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.cancel_all_background_work(true);
        Ok(())
    }
}

/// Reads `Cumulative stall: 00:00:1.234 H:M:S, ...` out of the engine's own report.
fn stall_ms(text: &str) -> Option<f64> {
    let time = text.split("Cumulative stall: ").nth(1)?.split_whitespace().next()?;
    let mut seconds = 0.0;
    for part in time.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    Some(seconds * 1000.0)
}

impl Session for RocksSession {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.db.get_pinned(key).map_err(|error| failed(&error))?;
        if let Some(found) = &found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn get_many(
        &mut self,
        keys: &[Vec<u8>],
        show: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        for (place, value) in self.db.multi_get(keys).into_iter().enumerate() {
            show(place, value.map_err(|error| failed(&error))?.as_deref());
        }
        Ok(())
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put_opt(key, value, &self.write).map_err(|error| failed(&error))
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.db.delete_opt(key, &self.write).map_err(|error| failed(&error))
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut cursor = self.db.raw_iterator_opt(ReadOptions::default());
        cursor.seek(start);
        for _ in 0..limit {
            let Some((key, value)) = cursor.item() else { break };
            visit(key, value);
            cursor.next();
        }
        cursor.status().map_err(|error| failed(&error))
    }

    fn prefix(
        &mut self,
        prefix: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut read = ReadOptions::default();
        if let Some(end) = prefix_end(prefix) {
            read.set_iterate_upper_bound(end);
        }
        let mut cursor = self.db.raw_iterator_opt(read);
        cursor.seek(prefix);
        for _ in 0..limit {
            let Some((key, value)) = cursor.item() else { break };
            visit(key, value);
            cursor.next();
        }
        cursor.status().map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_leave_room_for_blocks() {
        // 340 MiB: 64 for memtables, and of 276 three quarters for rows.
        assert_eq!(row_bytes(340 << 20), 207 << 20);
        assert_eq!(row_bytes(16 << 20), 9 << 20);
        assert_eq!([Rocks::BLOCKS.name(), Rocks::ROWS.name()], ["rocksdb", "rocksdb-rows"]);
    }

    #[test]
    fn stalls_are_read_from_the_report() {
        let text = "** DB Stats **\nCumulative stall: 00:01:2.500 H:M:S, 3.0 percent\n";
        assert_eq!(stall_ms(text), Some(62_500.0));
        assert_eq!(stall_ms("nothing"), None);
    }
}
