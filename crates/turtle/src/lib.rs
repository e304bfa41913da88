//! TurtleKV: batches gather in memory, over trees that are never changed in place (Astolfi, Silk and
//! others, 2025; section numbers are those of that paper).
//!
//! ```text
//! put -> memtable (sorted, concurrent) --seal--> batch --apply--> tree (a value; versions share what did not change)
//!                                                                 every chi batches: write --> pages --> slot (root, redo LSN)
//! get -> memtables: the active one and the few that are not applied yet -> tree
//! ```
//!
//! The knob is chi, the *checkpoint distance*: how many batches are applied in memory before
//! anything is written. What is replaced meanwhile is never written at all. It may be changed at
//! any time, for nothing on disk depends on it.
//!
//! Reading order: `view` (what readers see), `memtable` and `batch`, `gate` and `pipeline` (the way of
//! a write), `core` (what they share), `snapshot`, `large` (values outside of the tree), `payload`
//! (bytes of a checkpoint), `bulk`, `backup`, `verify`, and `engine` (the contract).
//!
//! **Differs from the paper.** The tree in which batches are pending answers reads, so a get looks
//! into a few memtables and not into up to 2 chi of them. Recovery, removals, snapshots, large
//! values, back-pressure by bounded delays and a memory budget are ours.
//!
//! **Crash.** A checkpoint is a slot that names a root; the log has what came after. Pages are written
//! where nobody owns any, so a crash at any point finds the checkpoint before whole.
#![forbid(unsafe_code)]

mod backup;
mod batch;
mod bulk;
mod core;
mod engine;
mod files;
mod gate;
mod large;
mod memtable;
mod options;
mod payload;
mod pipeline;
mod residents;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod snapshot;
mod standin;
mod verify;
mod view;

pub use engine::Turtle;
pub use options::check_option;

#[doc(hidden)]
pub mod fuzzing {
    //! Decoders of bytes from disk, for fuzzing.

    /// Decodes a checkpoint's payload, whatever it is.
    pub fn decode_payload(bytes: &[u8]) -> bool {
        crate::payload::decode(bytes).is_ok()
    }
}
