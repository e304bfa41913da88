//! The disk seam: every byte that Spinney keeps goes through [`Disk`], [`Directory`] and [`File`].
//!
//! Three implementations: the real one (`RealDisk`), one in memory ([`MemoryDisk`]) and, behind the
//! feature `sim`, a simulated one that crashes, tears and lies on demand. No other crate touches the operating system's files.

mod buffer;
mod counters;
mod disk;
mod memory;
pub mod overlay;
mod pool;
mod real;
pub mod reserve;
#[cfg(any(test, feature = "sim"))]
pub mod sim;

pub use buffer::AlignedBuf;
pub use counters::{IoCounters, IoSnapshot, PURPOSES_MAX, Purpose, PurposeCounts};
pub use disk::{
    Directory, DirectoryLock, Disk, File, IfMissing, LINE_BYTES, LOCK_NAME, Mapping, OpenMode,
    Steps, Transfer, TransferBuf,
};
pub use memory::MemoryDisk;
pub use overlay::Overlay;
pub use pool::{BufferPool, Lent};
pub use real::{RealDisk, machine_memory_bytes};
pub use reserve::{RESERVE_NAME, Reserve, Reserved, takes_no_reserve, without_reserve};
