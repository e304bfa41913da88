//! TurtleKV: a tree that trades memory for writes while it runs (arXiv 2509.10714, sections 3, 4).
//!
//! ```text
//!   update batch (a sorted run)
//!     |  apply                               in memory, by pointer
//!   +-v------------------------------+
//!   | root   pivots | level 1        |       a level is a list of parts, each a run in memory or
//!   |               | level 2 ....   |       a segment on disk; sizes double from level to level
//!   +---|--------------|-------------+
//!       |   flush: all that is pending for one pivot
//!   +---v------+  +----v-----+
//!   | node     |  | node     |  ...          4 to 8 KiB on disk, always in memory
//!   +---|------+  +----------+
//!   +---v--+ +------+ +------+
//!   | leaf | | leaf | | leaf | ...           up to 2 MiB, as segments are (option `leaf`:
//!   +------+ +------+ +------+               16 KiB to 16 MiB)
//! ```
//!
//! A tree is a value: applying a batch makes a new version that shares what did not change, and an
//! error leaves the old one whole. What batches make in memory becomes pages only when a checkpoint
//! is written, once as many batches have gathered as chi says; what was made and replaced in
//! between is never written. Pages are owned by the objects that refer to them, so they are given
//! back when the last tree, reader or snapshot that needs them is dropped.
//!
//! A checkpoint is a slot that names a root; the log has what came after. Pages are written where
//! no version owns any, so a crash at any point leaves the checkpoint before whole.
//!
//! Modules import only what lies below them. From the bottom up:
//!
//! * *Decisions*, without I/O: `policy` (the numbers), `options`, `crew`, `growth`, `auto` (chi
//!   that sets itself), `tidying` (when the background tidies).
//! * *Edits in memory*: `edit`, `range`, `source`, `run`, `runs`, `merge`; `memtable`.
//! * *Leaves on disk*: `leaf`, `sync_ahead`.
//! * *The tree*, over a store of leaves that `files` describes: `levels`, `node`, `update`, `tree`;
//!   `write` and `packed` (what becomes of it on disk); `stream` and `cursor` (scans); `tidy`,
//!   `evacuate`, `check`. `disk` is its store on a real disk, `version` the tree and its file as a
//!   keyspace uses them.
//! * *Parts of a keyspace*, each with what it owns: `view` (what readers see), `gate`, `residents`,
//!   `records` (what lookups keep), `pinned` (snapshots), `memory`, `progress` (what is applied and
//!   published), `large` (the owner of large values), `payload` (bytes of a checkpoint); `core`
//!   puts them together.
//! * *Operations*: `budget`, `pipeline` (the way of a put), `snapshot`, `steps` (of tidying),
//!   `background`, `bulk`, `backup`, `verify`.
//! * *The face*: `engine` (what a database calls), `row`, and `salvage`, which needs no keyspace.
//!
//! **Differs from the paper and its code**
//! * A flush takes all that is pending for its pivot. Between updates that is a share of the leaf
//!   below it, from 40 to 190 % (`growth`), or a leaf's worth where a node is below (`update`). So
//!   flushed bounds are not needed (`levels`), and no flush reads a segment to find out where it
//!   was cut.
//! * Segments have fences in their node: a lookup asks at most one segment of a level, and what was
//!   flushed or cut away cannot come back.
//! * Parts that overlap nothing move from level to level as they are: ascending keys are written
//!   once there and once in their leaf.
//! * When a checkpoint is written, the levels of a node that are in memory are merged: they cost
//!   the same to write, and the next checkpoint finds the levels above at their start (`node`).
//! * What will not change any more before the checkpoint can be written early (the paper's
//!   outlook), and memory of which little is needed is given back (`evacuate`).
//! * Deletes: tombstones end at leaves; leaves and nodes are joined with neighbours.
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
