//! The part of a transaction over keyspaces with versions.
//!
//! ```text
//!   read     place on the board -> the engine copies what was so at the begin stamp -> the key or range is noted
//!   commit   stamp drawn -> overwriters of what is noted: pi        readers of what is written: eta
//! ```
//!
//! **Invariants**
//! 1. The keyspaces that were touched stay open: cells are theirs.
//! 2. None of them was parked between the beginning of the transaction and its first touch: then its versions are gone, and
//!    the transaction conflicts.
//! 3. Everything noted is the newest with a stamp of at most the begin stamp.

use std::ops::Range;
use std::sync::Arc;

use spinney_base::shim::atomic::Ordering::SeqCst;
use spinney_base::{Error, ErrorKind, KeyspaceId, Result};
use spinney_engine::{Cell, Chunk, Found, ScanRequest, Whereabouts};
use spinney_ssn::{NEVER, Sight, Stamp, Transaction};

use crate::guards::Span;
use crate::keyspace_state::KeyspaceState;
use crate::options::Isolation;
use crate::versions::{Versions, is_over};

/// Keys that there is room for from the start, and bytes of one.
const KEYS_EXPECTED: usize = 32;
const KEY_BYTES_EXPECTED: usize = 16;

/// A key that was read.
#[derive(Debug)]
struct KeyRead {
    /// Index of the keyspace.
    keyspace: usize,
    /// Where its bytes lie.
    key: Range<usize>,
    /// Where the engine has seen it.
    place: Whereabouts,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Part {
    /// `None` once it has committed.
    pub(crate) transaction: Option<Transaction<Cell>>,
    /// Whether the transaction may commit only if all that it read is current (T10).
    pub(crate) is_mixed: bool,
    isolation: Isolation,
    keyspaces: Vec<Arc<KeyspaceState>>,
    keys: Vec<KeyRead>,
    bytes: Vec<u8>,
    /// Ranges that were read, with the index of the keyspace.
    spans: Vec<(usize, Span)>,
    has_scanned: bool,
    versions: Arc<Versions>,
}

impl Part {
    /// Begins it. `quiesce` waits for all writers that are announced.
    ///
    /// # Errors
    /// `Conflict` when too many run.
    pub(crate) fn begin(
        versions: &Arc<Versions>,
        isolation: Isolation,
        quiesce: impl FnOnce(),
    ) -> Result<Part> {
        versions.count(quiesce);
        let mut part = Part {
            transaction: None,
            is_mixed: false,
            isolation,
            keyspaces: Vec::new(),
            keys: Vec::with_capacity(KEYS_EXPECTED),
            bytes: Vec::with_capacity(KEYS_EXPECTED * KEY_BYTES_EXPECTED),
            spans: Vec::new(),
            has_scanned: false,
            versions: versions.clone(),
        };
        let certifier = &versions.certifier;
        part.transaction = Some(certifier.begin()?);
        Ok(part)
    }

    /// Whether what it reads matters to its commit. Under snapshot isolation it is noted nowhere, so nothing comes before
    /// this transaction and nothing behind it: it fails only where another has updated a record first.
    pub(crate) fn is_certified(&self) -> bool {
        self.isolation == Isolation::Serializable
    }

    /// Returns the index of a keyspace. The first time `open` opens it, and it stays open.
    ///
    /// # Errors
    /// Those of `open`; `Conflict` if it was parked since the transaction began.
    pub(crate) fn keep(
        &mut self,
        id: KeyspaceId,
        open: impl FnOnce() -> Result<Arc<KeyspaceState>>,
    ) -> Result<usize> {
        if let Some(known) = self.keyspaces.iter().position(|kept| kept.id == id) {
            return Ok(known);
        }
        let keyspace = open()?;
        let transaction = self.transaction.as_ref().ok_or_else(is_over)?;
        keyspace.check_remembers(transaction.sight().begin)?;
        self.keyspaces.push(keyspace);
        Ok(self.keyspaces.len() - 1)
    }

    /// Reads a key. Appends what it finds to `out`; `whole` appends the large value that a pointer names.
    ///
    /// # Errors
    /// `Conflict`, or what reading a large value fails with.
    pub(crate) fn read(
        &mut self,
        index: usize,
        (key, hash): (&[u8], u64),
        out: &mut Vec<u8>,
        whole: impl FnOnce(&KeyspaceState, &[u8], &mut Vec<u8>) -> Result<()>,
    ) -> Result<bool> {
        let (keyspace, is_certified) = (&self.keyspaces[index], self.is_certified());
        let transaction = self.transaction.as_mut().ok_or_else(is_over)?;
        transaction.check()?;
        if is_certified {
            transaction.note_place(hash);
        }
        let versioned = keyspace.engine.versioned().expect("it has versions");
        let start = out.len();
        let mut seen = versioned.read_at(key, transaction.sight(), out)?;
        if seen.found == Found::Large {
            // What a pointer names stays while it is read.
            let _pin = keyspace.engine.values().pin();
            out.truncate(start);
            seen = versioned.read_at(key, transaction.sight(), out)?;
            if seen.successor.is_some() {
                // Its extents may be others' by now.
                let text =
                    "a large value was replaced since the transaction began, and has no versions";
                return Err(Error::new(ErrorKind::Conflict, text));
            }
            let pointer = out.split_off(start);
            whole(keyspace, &pointer, out)?;
        }
        if is_certified {
            let from = self.bytes.len();
            self.bytes.extend_from_slice(key);
            let key = from..self.bytes.len();
            self.keys.push(KeyRead { keyspace: index, key, place: seen.place });
            if let Some(successor) = seen.successor {
                transaction.note_older(successor)?;
            }
        }
        Ok(seen.found != Found::Absent)
    }

    /// Reads a chunk of a range.
    ///
    /// # Errors
    /// `Conflict`.
    pub(crate) fn scan(
        &mut self,
        index: usize,
        request: &ScanRequest<'_>,
        chunk: &mut Chunk,
    ) -> Result<()> {
        let (keyspace, is_certified) = (&self.keyspaces[index], self.is_certified());
        if is_certified && !self.has_scanned {
            self.has_scanned = true;
            self.versions.scanning.fetch_add(1, SeqCst);
        }
        let transaction = self.transaction.as_mut().ok_or_else(is_over)?;
        transaction.check()?;
        let versioned = keyspace.engine.versioned().expect("it has versions");
        let sight = transaction.sight();
        let mut note = |place| {
            if is_certified {
                transaction.note_place(place);
            }
        };
        let successor = versioned.scan_at(request, sight, &mut note, chunk)?;
        match successor {
            Some(successor) if is_certified => transaction.note_older(successor),
            _ => Ok(()),
        }
    }

    /// Notes what a chunk of a range covered.
    pub(crate) fn note_span(&mut self, index: usize, span: Span) {
        if self.is_certified() {
            self.spans.push((index, span));
        }
    }

    /// Returns the least pi of the overwriters of what was read, with stamps of at most `limit`.
    pub(crate) fn overwritten(&self, sight: Sight, limit: Stamp) -> Stamp {
        let of =
            |keyspace: usize| self.keyspaces[keyspace].engine.versioned().expect("it has versions");
        let keys = self.keys.iter().map(|read| {
            let key = &self.bytes[read.key.clone()];
            of(read.keyspace).overwritten_at(key, read.place, sight, limit)
        });
        let spans = self.spans.iter().map(|(keyspace, (lower, upper))| {
            let range = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
            of(*keyspace).overwritten(range, sight, limit)
        });
        keys.chain(spans).fold(NEVER, Stamp::min)
    }

    /// Moves it to the present moment, if all that it has read is current.
    ///
    /// # Errors
    /// `Conflict`.
    pub(crate) fn extend(&mut self) -> Result<()> {
        let transaction = self.transaction.as_ref().ok_or_else(is_over)?;
        // The stamp first: what is overwritten after the look has a greater one.
        let (sight, now) = (transaction.sight(), transaction.moment());
        let is_current = !self.is_certified() || self.overwritten(sight, now) == NEVER;
        let transaction = self.transaction.as_mut().ok_or_else(is_over)?;
        if !is_current {
            return Err(Error::new(ErrorKind::Conflict, "what it has read was overwritten"));
        }
        transaction.extend_to(now)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.transaction = None;
        if self.has_scanned {
            self.versions.scanned.fetch_max(self.versions.certifier.clock().now(), SeqCst);
            self.versions.scanning.fetch_sub(1, SeqCst);
        }
        self.versions.discount();
    }
}
