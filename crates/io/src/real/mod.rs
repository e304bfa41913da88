//! The real disk: files of the operating system, direct where the file system allows it, batches
//! through io_uring.
//!
//! * `file.rs`: one open file, its loops over short and interrupted transfers, allocation, sync.
//! * `ring.rs`: batches through one io_uring per thread (unsafe code, as in `mapping.rs`,
//!   `lines.rs` and `filesystem.rs`).
//! * `poll.rs`: waiting for reads without sleeping, where that is free and pays.
//! * `filesystem.rs`: where a store into a mapped file never needs room.
//! * `lines.rs`: how cache lines of a mapped file are written back, where it is persistent memory.
//! * `directory.rs`: one open directory, its names, the lock; `holder.rs`: the holder of the lock.
//! * this file: what the platform can do.
//!
//! **Crash.** Nothing is durable before the `sync` of the file (data, size) or of the directory
//! (names); a directory that [`Disk::directory`] makes is durable when that returns.
//!
//! **Concurrency.** Everything may be called from any thread; there is no shared state beyond
//! counters and the kernel's own.

mod directory;
mod file;
mod filesystem;
mod holder;
mod lines;
mod mapping;
mod poll;
mod ring;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use spinney_base::{Error, ErrorKind, Result};

use crate::counters::IoCounters;
use crate::disk::{Directory, Disk, IfMissing};
use directory::RealDirectory;

/// The files of the operating system. Clones share their counters.
#[derive(Clone, Debug)]
pub struct RealDisk {
    counters: Arc<IoCounters>,
    uring: bool,
    polls: bool,
}

impl RealDisk {
    /// Makes a disk that uses io_uring for batches if the kernel offers it to this process, and
    /// that polls for reads.
    #[must_use]
    pub fn new() -> Self {
        RealDisk { counters: Arc::default(), uring: ring::is_available(), polls: poll::is_free() }
    }

    /// Sets whether a thread that reads from the device through io_uring polls for up to a quarter
    /// of a millisecond before it sleeps. The default is yes. It polls only while no other thread
    /// wants its processor, seldom where it does not pay, and never where a control group limits
    /// processor time.
    #[must_use]
    pub fn poll_reads(mut self, yes: bool) -> Self {
        self.polls = yes && poll::is_free();
        self
    }

    /// Makes a disk that carries out batches one transfer after the other.
    #[must_use]
    pub fn without_uring() -> Self {
        RealDisk { counters: Arc::default(), uring: false, polls: false }
    }
}

impl Default for RealDisk {
    fn default() -> Self {
        RealDisk::new()
    }
}

/// Makes the error of a system call about a missing name, or of any other.
fn named(context: String, error: impl Into<std::io::Error>) -> Error {
    let error = error.into();
    if error.kind() == std::io::ErrorKind::NotFound {
        return Error::new(ErrorKind::NotFound, format!("{context}: {error}"));
    }
    Error::io(context, error)
}

/// Returns the bytes of memory and swap of the machine; `u64::MAX` when it does not say.
#[must_use]
pub fn machine_memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    let units = system.totalram.saturating_add(system.totalswap);
    match units.saturating_mul(u64::from(system.mem_unit)) {
        0 => u64::MAX,
        bytes => bytes,
    }
}

impl Disk for RealDisk {
    fn directory(&self, path: &Path, if_missing: IfMissing) -> Result<Arc<dyn Directory>> {
        Ok(Arc::new(RealDirectory::open(self, path, if_missing)?))
    }

    fn counters(&self) -> &IoCounters {
        &self.counters
    }

    fn descriptors_max(&self) -> Option<u64> {
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current
    }

    fn backend(&self) -> &'static str {
        if self.uring { "io_uring" } else { "pread" }
    }
}
