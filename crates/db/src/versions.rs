//! Keyspaces with versions: what their transactions share, and what plain reads and writes owe them.
//!
//! ```text
//!   no transaction runs:   plain writes replace, plain reads read              as on every engine
//!   some run:              a plain write draws a stamp and keeps what it replaces
//!                          a plain read leaves its moment, by the hash of its key
//!                              |
//!                              v
//!                          a transaction that writes the key comes after it, or conflicts
//! ```
//!
//! **When a transaction begins** it counts itself, and if none ran before it waits for all writers that had announced
//! themselves by then: later ones find the count. So what was written without a stamp was written before it began, and
//! its begin stamp is above all that.
//!
//! **What transactions read** gets no stamps of its own. They leave their marks on the certifier's board, by the hash of
//! the key, or of the gap that a range lies in. Their [part](crate::part) notes keys and ranges, and asks at
//! its commit for their overwriters.
//!
//! **Plain reads** are tracked by no bit. Where a transaction has to come before another that has
//! committed already, a read between the two may have seen the later one. So each plain read raises the stamp of its
//! place on the board before it reads; a transaction that writes the key counts that among what comes before it.
//!
//! **Invariants**
//! 1. Stripes are locked before a commit stamp is drawn (T11), for plain writes as well.
//! 2. A plain write reads nothing, so its certification never fails, and it need not know what comes before it.
//! 3. A reader of ranges counts itself before its first mark, and leaves the stamp of its end. A writer looks for that once
//!    it has drawn its stamp.

use std::task::Poll;

use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
use spinney_base::shim::thread;
use spinney_base::{Error, ErrorKind, Result};
use spinney_engine::{Cell, Versioned};
use spinney_ssn::{Certifier, Stamp, Transaction};

use crate::keyspace_state::KeyspaceState;
use crate::part::Part;

/// All writers that did not find transactions have applied. It stays while one runs.
const FOUND: u64 = 1 << 63;

/// One part in this many of a keyspace's memory may be older images when that is full. With more, transactions that
/// are left open keep writers from their room; with less, they end early.
const OLDER_PART: u64 = 8;

/// What transactions over versions share. Thread-safe.
#[derive(Debug)]
pub(crate) struct Versions {
    pub(crate) certifier: Certifier,
    /// Transactions that run, and from bit 63 on whether every writer finds them.
    running: AtomicU64,
    /// The latest plain read of a range.
    scans: AtomicU64,
    /// Transactions that run and have read ranges.
    pub(crate) scanning: AtomicU64,
    /// A stamp at or above those of all that have read ranges and ended.
    pub(crate) scanned: AtomicU64,
}

impl Default for Versions {
    fn default() -> Self {
        Versions {
            certifier: Certifier::above(0),
            running: AtomicU64::new(0),
            scans: AtomicU64::new(0),
            scanning: AtomicU64::new(0),
            scanned: AtomicU64::new(0),
        }
    }
}

impl Versions {
    /// Returns whether transactions over versions run. A writer asks once it is announced.
    #[inline]
    pub(crate) fn are_used(&self) -> bool {
        self.running.load(SeqCst) > 0
    }

    /// Counts a transaction, and returns once every writer finds it. If none ran before, `quiesce` waits for all
    /// writers that are announced.
    pub(crate) fn count(&self, quiesce: impl FnOnce()) {
        if self.running.fetch_add(1, SeqCst) & FOUND == 0 {
            quiesce();
            self.running.fetch_or(FOUND, SeqCst);
        }
    }

    /// Takes a transaction back that was counted.
    pub(crate) fn discount(&self) {
        let less = |running: u64| Some(if running & !FOUND == 1 { 0 } else { running - 1 });
        self.running.fetch_update(SeqCst, SeqCst, less).expect("it was counted");
    }

    /// Notes that a key is about to be read by no transaction.
    #[inline]
    pub(crate) fn note_read(&self, hash: u64) {
        if self.are_used() {
            self.certifier.note_read(hash);
        }
    }

    /// Notes the same of a range.
    #[inline]
    pub(crate) fn note_scan(&self) {
        if self.are_used() {
            self.scans.fetch_max(self.certifier.clock().now(), SeqCst);
        }
    }

    /// Whether somebody reads ranges, or did after a transaction began. Asked once that has drawn its stamp.
    fn are_ranges_read(&self, begin: Stamp) -> bool {
        self.scanning.load(SeqCst) > 0 || self.scanned.load(SeqCst) > begin
    }

    /// Makes room in a keyspace whose memory is full. If older images take much of it, the transaction that began first
    /// ends with a conflict. Returns whether there is more room now.
    pub(crate) fn relieve(&self, keyspace: &KeyspaceState) -> bool {
        let Some(versioned) = keyspace.engine.versioned() else { return false };
        let before = versioned.older_bytes();
        versioned.collect(&self.certifier.running(), usize::MAX);
        let most = keyspace.memory.target() / OLDER_PART;
        if versioned.older_bytes() > most && self.certifier.contexts().abort_oldest() {
            versioned.collect(&self.certifier.running(), usize::MAX);
        }
        versioned.older_bytes() < before
    }

    /// Begins a plain write, under its stripes. It waits while all contexts are taken: others that write plainly
    /// give theirs back soon, and transactions leave some to them.
    pub(crate) fn begin_plain(&self) -> Transaction<Cell> {
        loop {
            match self.certifier.begin_plain() {
                Ok(plain) => return plain,
                Err(_) => thread::yield_now(),
            }
        }
    }

    /// Becomes the owner of cells, and certifies. The stripes of all of them are locked, so no other owner commits.
    ///
    /// # Errors
    /// `Conflict`.
    pub(crate) fn certify(
        &self,
        transaction: &mut Transaction<Cell>,
        writes: &[Written<'_>],
        part: Option<&Part>,
    ) -> Result<()> {
        transaction.expect_writes(writes.len());
        for write in writes {
            loop {
                match transaction.poll_own(&write.cell, None) {
                    Poll::Ready(owned) => break owned?,
                    Poll::Pending => thread::yield_now(),
                }
            }
        }
        transaction.draw()?;
        if let Some(part) = part.filter(|part| part.is_certified()) {
            let sight = transaction.sight();
            transaction.precede(part.overwritten(sight, transaction.commit_stamp()));
            let are_ranges_read = self.are_ranges_read(sight.begin);
            for write in writes {
                transaction.follow(self.scans.load(SeqCst));
                transaction.follow_place(write.hash);
                if are_ranges_read {
                    transaction.follow_place(write.versioned.gap_of(write.key));
                }
            }
        }
        transaction.certify()
    }
}

/// A write to a keyspace with versions.
#[derive(Debug)]
pub(crate) struct Written<'a> {
    pub(crate) versioned: &'a dyn Versioned,
    pub(crate) cell: Cell,
    pub(crate) key: &'a [u8],
    pub(crate) hash: u64,
}

/// The error of a part that has committed or failed.
pub(crate) fn is_over() -> Error {
    Error::new(ErrorKind::Conflict, "the transaction is over")
}
