//! The real disk: files of the operating system, direct where the file system allows it, batches
//! through io_uring.
//!
//! * `file.rs`: one open file, its loops over short and interrupted transfers, allocation, sync.
//! * `ring.rs`: batches through one io_uring per thread (the only unsafe code of the four).
//! * `poll.rs`: waiting for reads without sleeping, where that is free and pays.
//! * this file: directories, names, the lock, and what the platform can do.
//!
//! **Crash.** Nothing is durable before `sync` (data, size) or `sync_dir` (names); `create_dir`
//! alone syncs its own parents.
//!
//! **Concurrency.** Everything may be called from any thread; there is no shared state beyond
//! counters and the kernel's own.

mod file;
mod mapping;
mod poll;
mod ring;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use spinney_base::{Error, ErrorKind, Result};

use crate::counters::IoCounters;
use crate::disk::{DirectoryLock, Disk, File, LOCK_NAME, OpenMode};
use file::RealFile;

/// Files of the operating system.
#[derive(Debug)]
pub struct RealDisk {
    counters: Arc<IoCounters>,
    uring: bool,
    polls: bool,
}

impl RealDisk {
    /// A disk that uses io_uring for batches when the kernel offers it to this process, and polls for reads.
    #[must_use]
    pub fn new() -> Self {
        RealDisk { counters: Arc::default(), uring: ring::is_available(), polls: poll::is_free() }
    }

    /// Whether a thread that reads from the device, through io_uring, polls for the end of it for up to a quarter of a
    /// millisecond before it sleeps; default yes. It does so only while no other thread wants its
    /// processor, seldom where it does not pay, and never in a process whose processor time a control group limits.
    #[must_use]
    pub fn poll_reads(mut self, yes: bool) -> Self {
        self.polls = yes && poll::is_free();
        self
    }

    /// A disk that carries out batches one transfer after the other.
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

/// The error of a system call that met a missing name, or any other.
fn named(context: String, error: impl Into<std::io::Error>) -> Error {
    let error = error.into();
    if error.kind() == std::io::ErrorKind::NotFound {
        return Error::new(ErrorKind::NotFound, format!("{context}: {error}"));
    }
    Error::io(context, error)
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        Ok(Arc::new(RealFile::open(path, mode, self.counters.clone(), self.uring, self.polls)?))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        path.try_exists().map_err(|error| Error::io(format!("look for {}", path.display()), error))
    }

    fn list(&self, directory: &Path) -> Result<Vec<PathBuf>> {
        let context = || format!("list {}", directory.display());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(|error| named(context(), error))? {
            let entry = entry.map_err(|error| named(context(), error))?;
            if !entry.file_type().map_err(|error| named(context(), error))?.is_dir() {
                files.push(entry.path());
            }
        }
        files.sort();
        Ok(files)
    }

    fn create_dir(&self, directory: &Path) -> Result<()> {
        if directory.is_dir() {
            return Ok(());
        }
        let parent = parent_of(directory);
        if parent != directory {
            self.create_dir(parent)?;
        }
        match std::fs::create_dir(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(named(format!("create directory {}", directory.display()), error))
            }
            _ if directory.is_dir() => self.sync_dir(parent),
            _ => Err(Error::invalid(format!("{} is not a directory", directory.display()))),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to)
            .map_err(|error| named(format!("rename {} to {}", from.display(), to.display()), error))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        std::fs::remove_file(path)
            .map_err(|error| named(format!("remove {}", path.display()), error))
    }

    fn sync_dir(&self, directory: &Path) -> Result<()> {
        let context = || format!("sync directory {}", directory.display());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(directory, flags, Mode::empty())
            .map_err(|error| named(context(), error))?;
        rustix::io::retry_on_intr(|| rustix::fs::fsync(&descriptor))
            .map_err(|error| named(context(), error))
    }

    fn lock(&self, directory: &Path) -> Result<Box<dyn DirectoryLock>> {
        // It stays when the lock is dropped: removing it would race with the next taker.
        let path = directory.join(LOCK_NAME);
        let context = || format!("lock {}", path.display());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o644))
            .map_err(|error| named(context(), error))?;
        // The lock belongs to this open file description, so a second handle of the same process is
        // refused as well.
        let taken = rustix::io::retry_on_intr(|| {
            rustix::fs::flock(&descriptor, FlockOperation::NonBlockingLockExclusive)
        });
        match taken {
            Ok(()) => Ok(Box::new(RealLock { _descriptor: descriptor })),
            Err(Errno::WOULDBLOCK) => Err(Error::new(
                ErrorKind::Locked,
                format!("{} is open in another process or handle", directory.display()),
            )),
            Err(error) => Err(named(context(), error)),
        }
    }

    fn counters(&self) -> &IoCounters {
        &self.counters
    }

    fn backend(&self) -> &'static str {
        if self.uring { "io_uring" } else { "pread" }
    }

    fn writes_pages_atomically(&self, directory: &Path) -> Result<bool> {
        // The kernel tells it for regular files only, so an unnamed one is asked. A file system
        // without unnamed files has no atomic writes either.
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::open(directory, flags, Mode::from_raw_mode(0o600)) {
            Ok(descriptor) => Ok(file::writes_pages_atomically(&descriptor)),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(false),
            Err(error) => Err(named(format!("probe {}", directory.display()), error)),
        }
    }
}

/// Holds the lock as long as its descriptor is open.
#[derive(Debug)]
struct RealLock {
    _descriptor: OwnedFd,
}

impl DirectoryLock for RealLock {}
