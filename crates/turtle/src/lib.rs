//! TurtleKV: a tree that trades memory for writes while it runs (arXiv 2509.10714, sections 3 and 4).
//!
//! ```text
//!   batch (a sorted run)
//!     |  apply                               in memory, by pointer
//!   +-v------------------------------+
//!   | root   pivots | level 1        |       a level is a list of parts, each a run in memory or a
//!   |               | level 2 ....   |       segment on disk; sizes double from level to level
//!   +---|--------------|-------------+
//!       |   flush: all that is pending for one pivot
//!   +---v------+  +----v-----+
//!   | node     |  | node     |  ...          4 to 8 KiB on disk, always in memory
//!   +---|------+  +----------+
//!   +---v--+ +------+ +------+
//!   | leaf | | leaf | | leaf | ...           up to 2 MiB (option `leaf`: 16 KiB to 16 MiB); so have segments
//!   +------+ +------+ +------+
//! ```
//!
//! A tree is a value: applying a batch makes a new one that shares what did not change, and an error
//! leaves the old one whole. What batches make in memory becomes pages only when a checkpoint is
//! written, after as many batches as the checkpoint distance says; what came and went in between
//! never was written. Pages are owned by what refers to them, so they are given back when the last
//! tree, reader or snapshot that needs them goes.
//!
//! Reading order: `edit`, `source`, `run` and `runs` (edits in memory), `merge`; `files` (what is asked of the
//! disk); `levels`, `node` and `update` (the TurtleTree itself), `tree`; `write` and `packed` (what
//! becomes of it on disk); `range`, `stream` and `cursor` (scans); `evacuate` (memory), `check`.
//!
//! **Differs from the paper and its code**
//! * A flush takes all that is pending for its pivot. Between updates that is a share of the leaf below it, from
//!   40 to 190 % (`growth`), or a leaf's worth where a node is below (`update`). So flushed bounds have nothing to
//!   say (`levels`), and no flush reads a segment to find out where it was cut.
//! * Segments have fences in their node: a lookup asks at most one segment of a level, and what was
//!   flushed or cut away cannot come back.
//! * Parts that overlap nothing move from level to level as they are: ascending keys are written
//!   once there and once in their leaf.
//! * When a checkpoint is written, the levels of a node that are in memory become one: they cost the
//!   same to write, and the next checkpoint finds the levels above at their start (`node`).
//! * What will not change any more before the checkpoint can be written early (the paper's outlook),
//!   and memory of which little is needed is given back (`evacuate`).
//! * Deletes: tombstones end at leaves; leaves and nodes are joined with neighbours.
//!
//! Around the tree are the engine's parts. Reading order: `view` (what readers see), `memtable`,
//! `gate`, `pipeline` and `crew` (the way of a write), `records` (what lookups keep), `core` (what they share), `version` (the tree and its
//! file as they use them), `snapshot`, `large` (values outside of the tree), `payload` (bytes of a
//! checkpoint), `bulk`, `backup`, `verify`, `salvage`, and `engine` (the contract). A checkpoint is a slot that
//! names a root; the log has what came after. Pages are written where nobody owns any, so a crash
//! at any point finds the checkpoint before whole.
#![forbid(unsafe_code)]

mod auto;
mod background;
mod backup;
mod budget;
mod bulk;
mod check;
mod core;
mod crew;
mod cursor;
mod disk;
#[cfg(all(test, not(feature = "shuttle")))]
mod double;
mod edit;
mod engine;
mod evacuate;
mod files;
mod gate;
mod growth;
mod kinds;
mod large;
mod leaf;
mod levels;
mod memory;
mod memtable;
mod merge;
mod node;
mod options;
mod packed;
mod parallel;
mod payload;
mod pinned;
mod pipeline;
mod policy;
mod progress;
mod range;
mod records;
mod residents;
mod row;
mod run;
mod runs;
mod salvage;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod snapshot;
mod source;
mod steps;
mod stream;
mod sync_ahead;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
mod tidy;
mod tidying;
mod tree;
mod update;
mod verify;
mod version;
mod view;
mod write;

pub use engine::Turtle;
pub use options::{CHI_MAX, check_option};
pub use row::ROW;
pub use salvage::Salvage;

#[doc(hidden)]
pub mod fuzzing {
    //! Decoders of bytes from disk, for fuzzing.

    /// Decodes a checkpoint's payload, whatever it is.
    pub fn decode_payload(bytes: &[u8]) -> bool {
        crate::payload::decode(bytes).is_ok()
    }
}
