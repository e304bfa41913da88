//! What the writers of one open database share, beside the lock table.
//!
//! **Lock order**, first to last: `large_batch`, `door`, the engines' preparation, `large_logging`,
//! the stripes.

use std::sync::atomic::{AtomicBool, Ordering};

use spinney_base::Stalls;
use spinney_base::shim::{Mutex, RwLock};

use crate::transaction_stats::Counters;

/// What writers hold while they write, and what they leave behind.
#[derive(Debug)]
pub(crate) struct Writers {
    /// Held shared by every write from its check to its apply; held exclusively to close the
    /// database or to drop a keyspace.
    pub(crate) door: RwLock<()>,
    /// One large batch at a time, so that two do not wait for space that the other has reserved.
    pub(crate) large_batch: Mutex<()>,
    /// Held shared while the pointer to a large value is logged and applied; held exclusively by a
    /// backup from the end of its copies to the cut of the log.
    pub(crate) large_logging: RwLock<()>,
    /// Whether any write without a log came since the last look.
    unlogged_came: AtomicBool,
    pub(crate) stalls: Stalls,
    pub(crate) transactions: Counters,
}

impl Writers {
    pub(crate) fn new() -> Writers {
        Writers {
            door: RwLock::new(()),
            large_batch: Mutex::new(()),
            large_logging: RwLock::new(()),
            unlogged_came: AtomicBool::new(false),
            stalls: Stalls::default(),
            transactions: Counters::default(),
        }
    }

    /// Notes a write without a log.
    #[inline]
    pub(crate) fn set_unlogged(&self) {
        // It is usually set already, and then the line stays in every processor's cache.
        if !self.unlogged_came.load(Ordering::Relaxed) {
            self.unlogged_came.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether any write without a log came since the last call.
    pub(crate) fn take_unlogged(&self) -> bool {
        self.unlogged_came.swap(false, Ordering::Relaxed)
    }
}
