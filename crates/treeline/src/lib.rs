//! TreeLine: update in place under a record cache (Yu et al., VLDB'22).
//!
//! ```text
//!   get, put                      radix tree in memory               store file
//!      |                        lower bound -> segment          4 KiB pages, updated in place
//!  +---v----------+  miss, dirty  +---------------+   model    +----+----+----+----+ +----+
//!  | record cache | ------------> | segment index | ---------> |  0 |  1 |  2 |  3 | |over| ...
//!  +--------------+               +---------------+            +----+----+----+----+ +----+
//! ```
//!
//! The cache holds single hot records, not pages: a put makes a dirty record; a get of a cold key
//! reads one page and keeps one record. The background writes dirty records back, all of a page in
//! one write. A segment is 1 to 16 neighbouring pages, and a model of its keys says which of them
//! has a key. A full page gets an overflow page. When that is full too, the segment and its
//! neighbours are rewritten, with as much room as forecasts ask for.
//!
//! Modules import only what lies below them. From the bottom up:
//!
//! * *Decisions and bytes*, without I/O: `segment` (what lies where), `marks`, `model`, `plr` and
//!   `fit` (which records go to which pages), `build` (new segments), `merge` (what becomes of a
//!   page), `taken`, `forecast`, `novelty`, `tidying`, `policy` (the numbers), `codec` and `origin`
//!   (bytes), `tuning` (options).
//! * *Parts of a keyspace*, each with what it owns: `shape` (file, `index`, `locks`), `memory`
//!   (record cache of the crate `records`, `pages`, `filters`, buffers), `workload` (`counters`,
//!   forecasts), `background` (what waits to be done), `by_log` (the owner of large values); `tree`
//!   puts them together.
//! * *Operations*: `lookup`, `lookup_many`, `scan`; `publish`, `large`, `dirty`, `reorganize`,
//!   `stage`, `write_back`, `checkpoint`, each over those before it; `tidy`, `bulk`, `verify`,
//!   `scrub`, `backup`.
//! * *The face*: `engine` (what a database calls), `row`, and `salvage`, which needs no keyspace.
//!
//! **Differs from the paper**: structure records carry the change, so recovery reads no data; new
//! pages are synced in batches before their records; records move only into new pages; models are
//! over bytes and keys of any kind, and may be steps; deletes give their room back.
#![forbid(unsafe_code)]

mod background;
mod backup;
mod build;
mod bulk;
mod by_log;
mod checkpoint;
mod codec;
mod counters;
mod dirty;
mod engine;
mod filters;
mod fit;
mod forecast;
mod index;
mod kept;
mod large;
mod locks;
mod lookup;
mod lookup_many;
mod marks;
mod memory;
mod merge;
mod model;
mod novelty;
mod origin;
mod pages;
mod plr;
mod policy;
mod publish;
mod reorganize;
mod row;
mod salvage;
mod scan;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod scrub;
mod segment;
mod shape;
mod stage;
mod taken;
mod tidy;
mod tidying;
mod tree;
mod tuning;
mod verify;
mod workload;
mod write_back;

pub use row::ROW;
pub use salvage::Salvage;
pub use tree::TreeLine;
pub use tuning::check_option;
