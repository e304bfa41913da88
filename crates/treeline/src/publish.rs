//! Making changes durable: structure records ([`Journal`](spinney_engine::Journal)) and
//! checkpoints.
//!
//! A crash before a change of structure is in the log finds the old structure whole; the log still
//! has every record that went into the new pages, because the redo LSN moves only by a checkpoint,
//! and a checkpoint covers everything pending.
//!
//! **Invariants**
//! 1. A checkpoint's payload is the state after one of the changes, and replay begins with the
//!    next.
//! 2. Slots are published one at a time, and the redo LSN never falls.

use std::sync::atomic::Ordering;

use spinney_base::{Lsn, Result, probe};
use spinney_extent::Checkpoint;
use spinney_extent::values::Cut;

use crate::codec::{SegmentsEncoder, encode_change};
use crate::counters::add;
use crate::segment::Change;
use crate::tree::TreeLine;

impl TreeLine {
    /// Notes a change of structure for the log.
    pub(crate) fn note_change(&self, sequence: u64, change: &Change) {
        self.shape.journal.push(sequence, encode_change(change, sequence), change.freed());
    }

    /// Publishes the index as it is, with everything applied up to `redo` written back; `cut`
    /// divides the large values freed before that from those freed later.
    pub(crate) fn publish_index(&self, redo: Lsn, cut: &Cut) -> Result<()> {
        let _one_at_a_time = self.shape.slots.lock();
        self.publish_alone(redo, cut)
    }

    /// Publishes the index and which large values are freed by now, with the redo LSN that there
    /// is: nothing was written back for it, so nothing becomes reusable by it but what changes of
    /// structure freed.
    ///
    /// # Errors
    /// `Full`, and the checkpoint before stands; `Poisoned`, `Io`.
    pub(crate) fn publish_again(&self) -> Result<()> {
        let _inside = probe::enter("checkpoint");
        // A checkpoint that ends meanwhile moves the redo LSN, and the log may be trimmed up to it.
        let _one_at_a_time = self.shape.slots.lock();
        self.publish_alone(self.shape.redo_lsn(), &Cut::NOTHING)
    }

    fn publish_alone(&self, redo: Lsn, cut: &Cut) -> Result<()> {
        let mut payload = SegmentsEncoder::default();
        let structure = self.shape.index.for_each(|lower, segment| payload.push(lower, segment));
        let payload = payload.finish(&self.large.list(cut));
        let log = &self.context.log;
        self.shape.store.publish(Checkpoint { redo, structure }, &payload, || {
            log.ensure_durable(log.last_lsn())
        })?;
        self.shape.journal.cover(structure, &self.shape.store);
        self.large.settle(cut);
        self.shape.redo.store(redo.0, Ordering::Release);
        self.shape.published.store(structure, Ordering::Release);
        add(&self.workload.writes.checkpoints, 1);
        Ok(())
    }
}
