//! TreeLine: update in place under a record cache (Yu et al., VLDB'22), in its first shape.
//!
//! ```text
//!   get, put                      radix tree in memory               store file
//!      |                        lower bound -> base, overflow     4 KiB pages, updated in place
//!  +---v----------+  miss, home   +---------------+                +----+----+----+----+
//!  | record cache | ------------> | segment index | -------------> |base|base|over|base| ...
//!  +--------------+               +---------------+                +----+----+----+----+
//! ```
//!
//! Single hot records are cached, not pages: a put makes a dirty record, a get of a cold key reads
//! one page and keeps one record. Dirty records come home in the background, all of a page in one
//! write. A page that is full gets an overflow page; when that is full too, both are split into new
//! pages.
//!
//! Reading order: `cache` (records in memory), `index` (where segments lie), `merge` (what becomes
//! of a page, a pure decision), `write_back` (carrying it out), `publish` (what a crash finds),
//! `large` (values outside of pages), `tree` (the engine), `scan`, `verify`, `backup`, `codec`
//! (bytes).
//!
//! **Differs from the paper**: structure records carry the change, so recovery reads no data; new
//! pages are synced in batches before their records; changed pages are copied when records would
//! move between pages. Segments of several pages, forecasting and the radix tree come next.
#![forbid(unsafe_code)]

mod backup;
mod build;
mod bulk;
mod cache;
mod codec;
mod counters;
mod first;
mod fit;
mod forecast;
mod index;
mod large;
mod locks;
mod merge;
mod model;
mod origin;
mod peek;
mod plr;
mod publish;
mod reorganize;
mod scan;
mod scrub;
mod segment;
mod stage;
mod tree;
mod tuning;
mod verify;
mod write_back;

pub use tree::TreeLine;
pub use tuning::check_option;
