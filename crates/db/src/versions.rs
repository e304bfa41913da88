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
//! **When a transaction begins** it counts itself, and waits for all writers that had announced themselves
//! before: later ones find the count. So what was written without a stamp was written before it began, and
//! its begin stamp is above all that.
//!
//! **Ranges** that transactions read are under guards, as on every engine, and read as they are now. So such a transaction
//! commits only if nothing that it read was overwritten (T10), and leaves its commit stamp to all that overwrite later:
//! after the draw, before it looks at its guards. A writer touches guards before it draws, so either it finds the
//! stamp, or the reader finds its guard touched.
//!
//! **Plain reads** are of one key and are tracked by no bit. Where a transaction has to come before another that has
//! committed already, a read between the two may have seen the later one. So each plain read raises a stamp of its
//! key's hash before it reads; a transaction that writes the key counts that among what comes before it.
//!
//! **Invariants**
//! 1. Stripes are locked before a commit stamp is drawn (T11), for plain writes as well.
//! 2. A plain write reads nothing, so its certification never fails.

use std::sync::Arc;
use std::task::Poll;

use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
use spinney_base::shim::thread;
use spinney_base::{Error, ErrorKind, Result};
use spinney_engine::Cell;
use spinney_ssn::{Certifier, Stamp, Transaction};

use crate::keyspace_state::KeyspaceState;

/// Stamps of plain reads. With fewer, a transaction takes reads of other keys for reads of its own more often.
const READS: usize = 4096;

/// One part in this many of a keyspace's memory may be older images when that is full. With more, transactions that
/// are left open keep writers from their room; with less, they end early.
const OLDER_PART: u64 = 8;

/// What transactions over versions share. Thread-safe.
#[derive(Debug)]
pub(crate) struct Versions {
    pub(crate) certifier: Certifier,
    running: AtomicU64,
    /// The latest plain reads, by the hash of the key.
    reads: Box<[AtomicU64]>,
    /// The latest read of a range, plain or by a transaction that committed.
    scans: AtomicU64,
}

impl Default for Versions {
    fn default() -> Self {
        Versions {
            certifier: Certifier::above(0),
            running: AtomicU64::new(0),
            reads: (0..READS).map(|_| AtomicU64::new(0)).collect(),
            scans: AtomicU64::new(0),
        }
    }
}

impl Versions {
    /// Returns whether transactions over versions run. A writer asks once it is announced.
    #[inline]
    pub(crate) fn are_used(&self) -> bool {
        self.running.load(SeqCst) > 0
    }

    /// Notes that a key is about to be read by no transaction.
    #[inline]
    pub(crate) fn note_read(&self, hash: u64) {
        if self.are_used() {
            self.raise(&self.reads[Self::index(hash)]);
        }
    }

    /// Notes the same of a range.
    #[inline]
    pub(crate) fn note_scan(&self) {
        if self.are_used() {
            self.raise(&self.scans);
        }
    }

    #[cold]
    fn raise(&self, stamp: &AtomicU64) {
        let now = self.certifier.clock().now();
        if stamp.load(SeqCst) < now {
            stamp.fetch_max(now, SeqCst);
        }
    }

    fn index(hash: u64) -> usize {
        usize::try_from(hash % READS as u64).expect("they are few")
    }

    /// Returns the latest stamp of plain reads of a key.
    pub(crate) fn latest_read(&self, hash: u64) -> Stamp {
        self.reads[Self::index(hash)].load(SeqCst).max(self.scans.load(SeqCst))
    }

    /// Returns the least begin stamp of what runs: nobody needs what ended at or before it.
    pub(crate) fn horizon(&self) -> Stamp {
        self.certifier.contexts().horizon(self.certifier.clock())
    }

    /// Makes room in a keyspace whose memory is full. If older images take much of it, the transaction that began first
    /// ends with a conflict. Returns whether there is more room now.
    pub(crate) fn relieve(&self, keyspace: &KeyspaceState) -> bool {
        let Some(versioned) = keyspace.engine.versioned() else { return false };
        let before = versioned.older_bytes();
        versioned.collect(self.horizon(), usize::MAX);
        let most = keyspace.memory.target() / OLDER_PART;
        if versioned.older_bytes() > most && self.certifier.contexts().abort_oldest() {
            versioned.collect(self.horizon(), usize::MAX);
        }
        let has_more = versioned.older_bytes() < before;
        if has_more {
            // That was before.
            _ = keyspace.memory.take_lacked();
        }
        has_more
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

    /// Becomes the owner of cells, each given with the hash of its key, and certifies. The stripes of all of them
    /// are locked, so no other owner commits.
    ///
    /// # Errors
    /// `Conflict`.
    pub(crate) fn certify(
        &self,
        transaction: &mut Transaction<Cell>,
        cells: &[(Cell, u64)],
        has_scanned: bool,
    ) -> Result<()> {
        for (cell, _) in cells {
            loop {
                match transaction.poll_own(cell, None) {
                    Poll::Ready(owned) => break owned?,
                    Poll::Pending => thread::yield_now(),
                }
            }
        }
        transaction.draw()?;
        if has_scanned {
            self.scans.fetch_max(transaction.commit_stamp(), SeqCst);
        }
        for (_, hash) in cells {
            transaction.follow(self.latest_read(*hash));
        }
        transaction.certify()
    }
}

/// The error of a part that has committed or failed.
pub(crate) fn is_over() -> Error {
    Error::new(ErrorKind::Conflict, "the transaction is over")
}

/// The part of a transaction over keyspaces with versions.
#[derive(Debug)]
pub(crate) struct Part {
    /// `None` once it has committed.
    pub(crate) transaction: Option<Transaction<Cell>>,
    /// The keyspaces that were touched stay open: cells are theirs.
    pub(crate) keyspaces: Vec<Arc<KeyspaceState>>,
    /// Whether the transaction may commit only if all that it read is current (T10).
    pub(crate) is_mixed: bool,
    /// Whether it has read a range of a keyspace with versions.
    pub(crate) has_scanned: bool,
    versions: Arc<Versions>,
}

impl Part {
    /// Begins it. `quiesce` waits for all writers that are announced.
    ///
    /// # Errors
    /// `Conflict` when too many run.
    pub(crate) fn begin(versions: &Arc<Versions>, quiesce: impl FnOnce()) -> Result<Part> {
        versions.running.fetch_add(1, SeqCst);
        let mut part = Part {
            transaction: None,
            keyspaces: Vec::new(),
            is_mixed: false,
            has_scanned: false,
            versions: versions.clone(),
        };
        quiesce();
        part.transaction = Some(versions.certifier.begin()?);
        Ok(part)
    }

    /// Returns the transaction.
    ///
    /// # Errors
    /// `Conflict` once it has committed or failed.
    pub(crate) fn transaction(&mut self) -> Result<&mut Transaction<Cell>> {
        self.transaction.as_mut().ok_or_else(is_over)
    }

    /// Keeps a keyspace open.
    pub(crate) fn keep(&mut self, keyspace: Arc<KeyspaceState>) {
        if !self.keyspaces.iter().any(|kept| kept.id == keyspace.id) {
            self.keyspaces.push(keyspace);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.transaction = None;
        self.versions.running.fetch_sub(1, SeqCst);
    }
}
