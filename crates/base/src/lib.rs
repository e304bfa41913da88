//! The base of every Spinney crate: errors, ids, limits, memory accounts, and the two seams that
//! let a test step time and threads ([`runtime`] and [`shim`]).
//!
//! It does no I/O and depends on no engine. Read [`error`] first, then [`runtime`].

pub mod allocator;
pub mod error;
pub mod events;
pub mod fork;
pub mod ids;
pub mod limits;
pub mod mapped_vec;
pub mod mapping;
pub mod memory;
pub mod poison;
mod pool;
pub mod probe;
pub mod runtime;
#[cfg(feature = "shuttle")]
pub mod schedules;
pub mod shim;
pub mod size;
mod stalls;
pub mod value;

pub use error::{Error, ErrorKind, Result};
pub use fork::Process;
pub use ids::{Epoch, Generation, KeyspaceId, Lsn, PageNumber};
pub use memory::{MemoryAccount, MemoryBudget};
pub use poison::Poison;
pub use runtime::{Next, Runtime, Task};
pub use stalls::Stalls;
pub use value::ValueRef;
