//! Which snapshots of a keyspace live, and which have ended before they were dropped.

use std::collections::BTreeSet;

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
use spinney_base::{Error, ErrorKind, Result};

/// The snapshots of one keyspace. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    numbers: Mutex<BTreeSet<u64>>,
    /// All up to this number have ended.
    ended: AtomicU64,
    cause: Mutex<Option<Error>>,
    /// How many ended while they were used.
    count: AtomicU64,
}

impl Lives {
    pub(crate) fn add(&self, number: u64) {
        self.numbers.lock().insert(number);
    }

    pub(crate) fn remove(&self, number: u64) {
        self.numbers.lock().remove(&number);
    }

    /// The oldest that lives and has not ended.
    pub(crate) fn least(&self) -> Option<u64> {
        let ended = self.ended.load(SeqCst);
        self.numbers.lock().range(ended + 1..).next().copied()
    }

    /// Whether one lives between these numbers, the second included.
    pub(crate) fn has_between(&self, first: u64, second: u64) -> bool {
        let from = self.ended.load(SeqCst).max(first);
        from < second && self.numbers.lock().range(from + 1..=second).next().is_some()
    }

    /// Number of those that live and have not ended.
    pub(crate) fn len(&self) -> u64 {
        let ended = self.ended.load(SeqCst);
        self.numbers.lock().range(ended + 1..).count() as u64
    }

    /// How many ended while they were used.
    pub(crate) fn ended_count(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// Ends all up to a number, unless they have ended.
    pub(crate) fn end(&self, number: u64, cause: &Error) {
        let numbers = self.numbers.lock();
        let ended = self.ended.load(SeqCst);
        if number <= ended {
            return;
        }
        let count = numbers.range(ended + 1..=number).count() as u64;
        self.count.fetch_add(count, SeqCst);
        *self.cause.lock() = Some(cause.clone());
        self.ended.store(number, SeqCst);
    }

    #[inline]
    pub(crate) fn has_ended(&self, number: u64) -> bool {
        number <= self.ended.load(SeqCst)
    }

    /// Checks that a snapshot has not ended. It is asked after the read that it is asked for (S16).
    ///
    /// # Errors
    /// `SnapshotTooOld` with the cause.
    pub(crate) fn check(&self, number: u64) -> Result<()> {
        if !self.has_ended(number) {
            return Ok(());
        }
        let text = "the snapshot ended (take a new one)";
        Err(match &*self.cause.lock() {
            Some(cause) => cause.clone().wrap(ErrorKind::SnapshotTooOld, text),
            None => Error::new(ErrorKind::SnapshotTooOld, text),
        })
    }
}
