//! A keyspace's store file: pages in extents of 2^k. Each block, of one page or of a few, has a
//! header that says where it belongs.
//!
//! ```text
//! page    0      1      2      3      4 .......... 127    128 ........................
//!      +------+------+------+------+--------------------+------------------------------
//!      | slot | slot | copy | copy | double-write area  | extents: data, large values, checkpoints
//!      +------+------+------+------+--------------------+------------------------------
//! ```
//!
//! [`header`] is the one home of the block header; [`slot`] of the checkpoint slots, which `slots`
//! writes; [`double_write`] of the double-write area; [`large`] of pointers to large values, which
//! [`large_io`] writes and reads and whose owners [`values`] knows. [`free`] has the unowned pages,
//! as `extents` of `bits`; `let_go` has those that wait for a slot; [`batch`] and [`run`] allocate
//! many at once; `read` and `write` move blocks side by side; [`store`] puts them together. The
//! crate knows no tree: the engine says which pages are
//! owned.

mod adjacent;
mod audit;
pub mod batch;
mod bits;
mod copy;
pub mod double_write;
mod extents;
pub mod free;
mod gate;
mod give_back;
pub mod header;
mod holes;
pub mod large;
pub mod large_io;
mod let_go;
mod read;
pub mod run;
mod salvage;
mod salvaged_value;
mod shared_sync;
pub mod slot;
mod slots;
pub mod store;
pub mod values;
mod write;

pub use copy::StoreCopy;
pub use free::{Extent, FreeMap};
pub use give_back::GiveBack;
pub use header::{BlockHeader, BlockKind, HEADER_BYTES, WIDE_ORDER_MAX};
pub use large::LargePointer;
pub use let_go::HeldBack;
pub use read::Wanted;
pub use run::PageRun;
pub use salvage::{Copies, FoundPage, FoundSlot, Newest};
pub use salvaged_value::SalvagedValue;
pub use shared_sync::SharedSync;
pub use slot::Slot;
pub use slots::mend_copied_slots;
pub use store::{Checkpoint, Hold, Store, StoreOptions};
pub use values::Values;
