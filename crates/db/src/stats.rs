//! Numbers about an open database.

use spinney_engine::EngineStats;
use spinney_io::IoSnapshot;

use crate::scrub::ScrubStats;
use crate::transaction_stats::TransactionStats;

/// A snapshot of a database's numbers. Counters count since it was opened.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// The memory budget, in bytes.
    pub memory_bytes: u64,
    /// What the accounts, the lock table and the log's buffers hold, in bytes.
    pub memory_used: u64,
    /// Bytes of memory that the files take, on top of the budget: 0 but for a database of
    /// [`Db::in_memory`](crate::Db::in_memory).
    pub files_in_memory_bytes: u64,
    /// Memory by component.
    pub accounts: Vec<AccountStats>,
    /// Calls and bytes by purpose. Serialized as a map from the names of purposes, without those that
    /// counted nothing.
    #[cfg_attr(feature = "serde", serde(serialize_with = "by_name"))]
    pub io: IoSnapshot,
    /// How batches of transfers are carried out: `io_uring`, `pread`, `memory` or `simulated`.
    pub io_backend: &'static str,
    /// How pages are protected from tearing: `double-write` or `assume-4k`.
    pub torn_writes: &'static str,
    /// The log.
    pub log: LogStats,
    /// Why nothing can be written, when the database is open for reading.
    pub read_only: Option<String>,
    /// Bytes of memory that pages take which the replay of the log wrote, when the database is open for
    /// reading.
    pub replay_bytes: u64,
    /// Bytes of disk that are kept for recovery, removals and a checkpoint on a full disk.
    pub reserved_bytes: u64,
    /// Bytes of pages that the backup under way has copied, if one is.
    pub backup_bytes: Option<u64>,
    /// What the scrub has seen.
    pub scrub: ScrubStats,
    /// Transactions and snapshots.
    pub transactions: TransactionStats,
    /// Time that writers waited for room in caches or log, in nanoseconds.
    pub stall_ns: u64,
    /// The longest of those waits, in nanoseconds.
    pub longest_stall_ns: u64,
    /// Every keyspace, in the order they were made.
    pub keyspaces: Vec<KeyspaceStats>,
}

#[cfg(feature = "serde")]
fn by_name<S: serde::Serializer>(io: &IoSnapshot, serializer: S) -> Result<S::Ok, S::Error> {
    let counts = crate::purposes().map(|purpose| (purpose.name(), io.by_purpose[purpose.index()]));
    serializer
        .collect_map(counts.filter(|(_, counts)| *counts != spinney_io::PurposeCounts::default()))
}

/// One memory account.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AccountStats {
    /// What the memory is for.
    pub name: String,
    /// Bytes held.
    pub used: u64,
    /// Bytes that may be held.
    pub target: u64,
    /// How many hits the last mebibyte has given since the account was opened.
    pub worth: u64,
}

/// The memory of a keyspace that is open, and why it has that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct KeyspaceMemory {
    /// Bytes that it holds.
    pub used: u64,
    /// Bytes that it may hold.
    pub target: u64,
    /// Bytes that it keeps whatever others want: its engine names them, and they change with its data.
    pub floor: u64,
    /// Hits that its last mebibyte gives in a second, by what was seen last: what would be missed first, and about what
    /// one more would give.
    pub worth: u64,
    /// Why the target is what it is: `fills` (used, and has not filled it), `wants` (used and filled: gets what others can
    /// give), `yields` (used and filled, but memory is worth more to others), `idle` (not used, and nobody
    /// wants what it has), `gives` (not used, and gives all but its floor to others) or `lent` (for a batch).
    pub why: &'static str,
}

/// One keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// Its name.
    pub name: String,
    /// Its engine.
    pub engine: &'static str,
    /// Whether it is parked: nobody has used it for a while, and the next use opens it. The numbers are what
    /// they were when it was parked; of one that was not used since the database was opened they are what
    /// its file tells without being read.
    pub is_parked: bool,
    /// Its memory; a parked one has none.
    pub memory: Option<KeyspaceMemory>,
    /// What the engine counts, since the keyspace was last opened.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub numbers: EngineStats,
}

impl std::ops::Deref for KeyspaceStats {
    type Target = EngineStats;

    fn deref(&self) -> &EngineStats {
        &self.numbers
    }
}

/// The log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LogStats {
    /// Bytes from the first record that is needed to the last.
    pub bytes_used: u64,
    /// Most bytes that it may take.
    pub bytes_max: u64,
    /// Segments in the file.
    pub segments: u64,
    /// Commits asked for.
    pub commits: u64,
    /// Runs written.
    pub flushes: u64,
    /// Syncs of the file.
    pub syncs: u64,
    /// What records are in before a block of the log holds them: `none`, nothing yet; a file that is
    /// `written` by calls, or `mapped`; `persistent` memory, or `emulated` for
    /// [`LogMemory::Emulated`](crate::LogMemory::Emulated).
    pub memory: &'static str,
    /// Cache lines written back to persistent memory, or to what emulates it.
    pub lines: u64,
    /// Fences that waited for them, one for each record.
    pub fences: u64,
    /// Every record up to this LSN is on stable storage.
    pub durable_lsn: u64,
    /// The latest LSN.
    pub last_lsn: u64,
}

impl From<spinney_wal::LogStats> for LogStats {
    fn from(log: spinney_wal::LogStats) -> Self {
        LogStats {
            bytes_used: log.bytes_used,
            bytes_max: log.bytes_max,
            segments: log.segments,
            commits: log.commits,
            flushes: log.flushes,
            syncs: log.syncs,
            memory: log.memory,
            lines: log.lines,
            fences: log.fences,
            durable_lsn: log.durable_lsn.0,
            last_lsn: log.last_lsn.0,
        }
    }
}
