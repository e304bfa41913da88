//! TreeLine: update in place under a record cache (Yu et al., VLDB'22).
//!
//! ```text
//!   get, put                      radix tree in memory               store file
//!      |                        lower bound -> segment          4 KiB pages, updated in place
//!  +---v----------+  miss, home   +---------------+   model    +----+----+----+----+ +----+
//!  | record cache | ------------> | segment index | ---------> |  0 |  1 |  2 |  3 | |over| ...
//!  +--------------+               +---------------+            +----+----+----+----+ +----+
//! ```
//!
//! Single hot records are cached, not pages: a put makes a dirty record, a get of a cold key reads
//! one page and keeps one record. Dirty records come home in the background, all of a page in one
//! write. A segment is 1 to 16 pages that lie one behind the other, and a model of its keys says
//! which of them has a key. A page that is full gets an overflow page; when that is full too, the
//! segment and neighbours are made anew, with as much room as forecasts say that will be needed.
//!
//! Reading order: the crate `records` (what is in memory), `segment` (what lies where), `model`, `plr` and `fit`
//! (which records go to which pages, pure), `forecast` (pure), `index` (from keys to segments),
//! `locks`, `merge` (what becomes of a page, pure), `write_back` (carrying it out), `build` and
//! `reorganize` (new segments), `stage` (bursts), `publish` (what a crash finds), `large` (values
//! outside of pages), `tree` (the engine), `lookup`, `scan` with `first`, `pages` (the page cache), `filters` (of pages), `bulk`, `verify`,
//! `scrub`, `backup`, `salvage`, `codec` and `origin` (bytes), `tuning` (switches for measuring).
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
