//! The commit of a transaction.
//!
//! ```text
//!   room in the log -> certify -> ranges as noted? -> append -> DECIDED
//!     -> each record: old values to a block, new ones to the tiles, cstamp -> readers out
//! ```
//!
//! Appending comes before DECIDED, and others read or overwrite what is published after it: so the
//! log has a transaction behind all that it depends on.
//!
//! **Record**, all numbers little endian: for each write the table (2 bytes), 1 for a value or 0 for
//! a removal (1), the bytes of the key (2) and the key, the set of columns (8) and their values.
//!
//! **What it is not.** Nothing is ever replayed, and no checkpoint is written: a log that is full is
//! trimmed as if there were one. That saves these stores work which `iot` does.

use spinney_base::{Error, Lsn, Result};
use spinney_ssn::{Image, Stamp, Successor, Version};
use spinney_wal::{Durability, Log, RecordKind, ReserveFor};

use crate::collect::Ended;
use crate::heap::Heap;
use crate::schema::Columns;
use crate::session::{Local, MEMORY_EVERY};
use crate::transaction::{Pending, Transaction, conflict};

impl Transaction<'_> {
    /// Commits: all that it wrote, or nothing. With a log, the writes survive a kill of the process.
    /// Returns the commit stamp.
    ///
    /// # Errors
    /// `Conflict` or `Full`: nothing was written. Those of the log.
    pub fn commit(self) -> Result<Stamp> {
        let Transaction { heap, local, mut ssn, ranges, writes } = self;
        if !writes.is_empty() {
            local.commits += 1;
            if local.commits.is_multiple_of(MEMORY_EVERY) {
                heap.check_memory()?;
            }
        }
        let log = heap.log.as_deref().filter(|_| !writes.is_empty());
        let mut room = None;
        if let Some(log) = log {
            encode(heap, local, &writes);
            room = Some(reserve(log, local.record.len())?);
        }
        ssn.certify()?;
        if !ranges.is_current(&heap.tables) {
            return Err(conflict("another transaction added to a range that was read"));
        }
        let announcement = log.map(Log::announce);
        let lsn = match (log, &mut room) {
            (Some(log), Some(room)) => log.append(room, RecordKind::User, &local.record),
            _ => Lsn::ZERO,
        };
        ssn.decide();
        let (end, (pi, _)) = (ssn.commit_stamp(), ssn.pi_eta());
        let mut next = writes.iter();
        ssn.publish(|record| {
            let pending = next.next().expect("each record that is owned has a new version");
            assert!(pending.record.head.is(record.head), "records are owned in their order");
            install(heap, local, pending, Successor { end, pi });
            pending.image
        });
        drop(announcement);
        ssn.finish();
        for Pending { table, number, .. } in &writes {
            local.ended.push_back(Ended::new(*table, *number, end));
        }
        local.collect_some(heap, writes.len());
        if let Some(log) = log {
            log.commit(lsn, Durability::Buffered)?;
        }
        Ok(end)
    }

    /// Ends the transaction without its writes, as dropping it does.
    pub fn rollback(self) {}
}

/// Replaces the version of a record, which the transaction owns and publishes.
fn install(heap: &Heap, local: &mut Local, pending: &Pending<'_>, successor: Successor) {
    let table = &heap.tables[pending.table as usize];
    let (tiles, head) = (&table.store().tiles, pending.record.head);
    let (version, place) = (head.own_version(), head.place());
    // Before its first value a record has nothing to save.
    let is_first = version == Version::absent(0);
    let saved = if is_first { Columns::NONE } else { pending.columns };
    let address = heap.undo.take(&mut local.pool, tiles.saved_words(saved));
    let block = heap.undo.block(address);
    tiles.save(place, saved, block.values(), &mut local.row);
    head.with_older(|older| {
        let older = heap.undo.trim(&mut local.pool, older, local.horizon);
        block.begin(version, successor, older, saved.0);
        (address, ())
    });
    let mut at = pending.at;
    for column in pending.columns.iter() {
        let end = at + table.schema.width(column);
        tiles.store(place, column, &local.values[at..end]);
        at = end;
    }
}

fn encode(heap: &Heap, local: &mut Local, writes: &[Pending<'_>]) {
    let out = &mut local.record;
    out.clear();
    for Pending { record, table: number, image, columns, at, .. } in writes {
        let table = &heap.tables[*number as usize];
        out.extend_from_slice(&number.to_le_bytes()[..2]);
        out.push(u8::from(*image == Image::Value));
        out.extend_from_slice(&record.head.key_length().to_le_bytes()[..2]);
        table.store().key(record.head, out);
        out.extend_from_slice(&columns.0.to_le_bytes());
        out.extend_from_slice(&local.values[*at..*at + table.schema.bytes_of(*columns)]);
    }
}

/// Reserves room in the log; trims it if there is none.
fn reserve(log: &Log, bytes: usize) -> Result<spinney_wal::Reservation<'_>> {
    const TRIES: usize = 16;
    for _ in 0..TRIES {
        if let Some(room) = log.reserve(bytes, ReserveFor::User)? {
            return Ok(room);
        }
        log.ensure_durable(log.last_lsn())?;
        log.trim(log.durable_lsn())?;
    }
    Err(Error::new(spinney_base::ErrorKind::Full, "the log has no room"))
}
