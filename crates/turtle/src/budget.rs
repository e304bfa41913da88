//! The budget of a keyspace: what its parts may hold of its memory, and what they hold.
//!
//! ```text
//!   target of the account
//!   | writes: memtables, pending, snapshots | nodes, large values | crew | records | pages |
//!     what they have held recently            what there is         what all else leaves
//! ```

use spinney_wal::CHECKPOINT_FULLNESS;

use crate::core::Core;
use crate::policy::{FLOOR_BYTES, LOG_SHARE, Limits};
use crate::view::View;

impl Core {
    /// What the keyspace's memory allows.
    #[inline]
    pub(crate) fn limits(&self) -> Limits {
        Limits::of(self.context.memory.target(), self.tuning.leaf_bytes())
    }

    /// Bytes of the leaves that are written now.
    pub(crate) fn leaf_bytes(&self) -> u64 {
        Limits::of(self.memory.shaped_bytes(), self.tuning.leaf_bytes()).leaf()
    }

    /// Follows the memory: leaves are as large as it allows, and the page cache gets what all else
    /// leaves.
    pub(crate) fn follow_limits(&self) {
        let memory = self.context.memory.target();
        self.memory.shape(memory, self.context.runtime.now());
        self.files.disk.shape(memory, self.leaf_bytes(), self.tuning.filter_bits());
        self.memory.set_aside(self.room_of_writes() + self.under_way());
        let left = self.left_for_reads();
        self.files.cache.set_bytes(left.saturating_sub(self.records.bytes()));
    }

    /// Follows the memory, and tells the account what the keyspace holds.
    pub(crate) fn follow_memory(&self) {
        self.follow_limits();
        let view = self.view.load();
        let writes = view.memory_bytes() + self.snapshots.bytes();
        let reads = view.tree.node_bytes() + self.files.cache.used() + self.records.bytes();
        let used = writes + reads + self.large.bytes();
        self.context.memory.set_used(used);
    }

    /// Bytes that writes and all else leave for cached records and pages.
    pub(crate) fn left_for_reads(&self) -> u64 {
        let writes = self.room_of_writes();
        let nodes = self.view.load().tree.node_bytes();
        let rest = self.large.bytes() + nodes + self.under_way();
        self.context.memory.target().saturating_sub(writes + rest)
    }

    /// Bytes that the crew may have under way.
    fn under_way(&self) -> u64 {
        let crew = self.memory.crew(0, self.context.runtime.now()) as u64;
        crew * self.limits().under_way
    }

    /// Bytes that writes have held recently.
    pub(crate) fn room_of_writes(&self) -> u64 {
        self.memory.room_of_writes(self.held(), self.context.runtime.now())
    }

    /// Has `needed` threads for what comes next, and takes their memory from the caches before they
    /// need it.
    pub(crate) fn call_crew(&self, needed: usize) {
        let threads = self.memory.crew(needed, self.context.runtime.now());
        self.files.disk.set_threads(threads);
        self.follow_limits();
    }

    /// Bytes that the keyspace keeps even if others want its memory.
    pub(crate) fn memory_floor(&self) -> u64 {
        FLOOR_BYTES + self.large.bytes() + self.view.load().tree.node_bytes()
    }

    /// Largest checkpoint distance: what memory allows and, where the keyspace is logged and alone
    /// in the log, what fits there before the database asks for a checkpoint.
    pub(crate) fn chi_max(&self) -> u64 {
        let limits = self.limits();
        if !self.context.logged {
            return limits.chi_max();
        }
        let in_log = self.context.log.bytes_at(CHECKPOINT_FULLNESS * LOG_SHARE);
        limits.chi_max().min(in_log / limits.batch).max(1)
    }

    /// Checkpoint distance now.
    pub(crate) fn chi(&self) -> u64 {
        let most = self.chi_max();
        self.tuning.chi().map_or_else(|| self.auto.chi(most), |chi| chi.min(most))
    }

    /// Bytes that are held for writes.
    pub(crate) fn held(&self) -> u64 {
        self.held_with(&self.view.load())
    }

    /// Bytes that are held for writes, with this view as the newest.
    #[inline]
    pub(crate) fn held_with(&self, view: &View) -> u64 {
        view.memory_bytes() + self.memory.reserved() + self.snapshots.bytes()
    }
}
