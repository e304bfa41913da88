//! The traits of the disk seam.
//!
//! **Contract.** Offsets, lengths and buffers of [`File`] transfers are whole pages
//! ([`PAGE_BYTES`](spinney_base::limits::PAGE_BYTES)) and page-aligned in memory
//! ([`AlignedBuf`](crate::AlignedBuf)), so that a file opened for direct I/O takes them all. A
//! transfer is whole or an error: short ones are continued inside. Nothing written, created,
//! renamed, removed or grown is durable before the sync that the method names. All methods may be
//! called from any thread; transfers to different places run in parallel.

use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use spinney_base::Result;

use crate::counters::{IoCounters, Purpose};

/// Name of the file that is locked beside the directory itself. It has no content, and stays.
pub const LOCK_NAME: &str = "lock";

/// Bytes of a cache line: what [`Mapping::write_back`] writes back at least.
pub const LINE_BYTES: usize = 64;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode {
    /// Create the file if it is missing. Its directory entry is durable after [`Directory::sync`].
    pub create: bool,
    /// Refuse writes.
    pub read_only: bool,
    /// Bypass the page cache where the file system allows it; elsewhere this is silently the page
    /// cache, and [`File::is_direct`] says so.
    pub direct: bool,
}

impl OpenMode {
    /// Read and write, direct, existing files only.
    pub const EXISTING: OpenMode = OpenMode { create: false, read_only: false, direct: true };
    /// Read and write, direct, made when missing.
    pub const CREATE: OpenMode = OpenMode { create: true, read_only: false, direct: true };

    /// The same mode through the page cache.
    #[must_use]
    pub const fn cached(self) -> OpenMode {
        OpenMode { direct: false, ..self }
    }

    /// The same mode, refusing writes.
    #[must_use]
    pub const fn read_only(self) -> OpenMode {
        OpenMode { read_only: true, create: false, ..self }
    }
}

/// What [`Disk::directory`] does when the directory is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// Fail with `NotFound`.
    Fail,
    /// Create it and its parents, durably.
    Create,
}

/// A disk, which holds directories.
pub trait Disk: Send + Sync + Debug {
    /// Opens a directory. Only this call resolves a path: the result stays the same directory,
    /// whatever happens to the path or the working directory later.
    ///
    /// # Errors
    /// `NotFound` when it is missing and not to be made; `InvalidArgument` when a file has its
    /// name; `Io` or `Full` from the system.
    fn directory(&self, path: &Path, if_missing: IfMissing) -> Result<Arc<dyn Directory>>;

    /// Returns the counters of all files of this disk.
    fn counters(&self) -> &IoCounters;

    /// Returns the most descriptors that the process may have, if that is limited.
    fn descriptors_max(&self) -> Option<u64> {
        None
    }

    /// Returns how batches are carried out, for `stats`: `io_uring`, `pread`, `memory` or `simulated`.
    fn backend(&self) -> &'static str;

    /// Returns the bytes of memory that the files take, if they lie in memory.
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// An open directory. Names are those of files directly inside; a name with a `/` is
/// `InvalidArgument`.
pub trait Directory: Send + Sync + Debug {
    /// Returns the path by which it was opened, for messages.
    fn path(&self) -> &Path;

    /// Opens a file.
    ///
    /// # Errors
    /// `NotFound` when it is missing and not to be created; `Io` or `Full` from the system. An
    /// error concerns no other file, and nothing has changed.
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>>;

    /// Returns whether a name exists.
    ///
    /// # Errors
    /// `Io` from the system.
    fn exists(&self, name: &str) -> Result<bool>;

    /// Returns the names of the files, sorted, without subdirectories. Bytes that are not UTF-8 are
    /// shown as U+FFFD; such a name is no file of Spinney's.
    ///
    /// # Errors
    /// `Io`.
    fn list(&self) -> Result<Vec<String>>;

    /// Renames a file, over another one if `to` is there. Durable after [`Directory::sync`].
    ///
    /// # Errors
    /// `NotFound` or `Io`.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes a file. Durable after [`Directory::sync`]; open handles keep working.
    ///
    /// # Errors
    /// `NotFound` or `Io`.
    fn remove(&self, name: &str) -> Result<()>;

    /// Makes creations, renames and removals durable. Opens nothing.
    ///
    /// # Errors
    /// `Io`; it is then unknown what is durable.
    fn sync(&self) -> Result<()>;

    /// Locks the directory until the result is dropped. The lock is on the directory itself, so
    /// removing a name cannot take it away. The file [`LOCK_NAME`] in it is locked too, if it can
    /// be opened or made, because earlier versions lock only that.
    ///
    /// # Errors
    /// `Locked` when another process or handle holds it, naming the process where the system says.
    fn lock(&self) -> Result<Box<dyn DirectoryLock>>;

    /// Locks the directory together with others that only read it, until the result is dropped.
    /// Writes nothing, and creates no file.
    ///
    /// # Errors
    /// `Locked` when another process or handle holds it exclusively, naming the process where the
    /// system says.
    fn lock_shared(&self) -> Result<Box<dyn DirectoryLock>>;

    /// Returns whether the device promises never to tear an aligned write of one page.
    ///
    /// # Errors
    /// `Io` from the system.
    fn writes_pages_atomically(&self) -> Result<bool>;

    /// Returns the free bytes that the file system reports; `u64::MAX` where it does not. It is a
    /// hint: others take space too, and a write may need less or more.
    fn free_bytes(&self) -> u64 {
        u64::MAX
    }
}

/// A locked directory; dropping it unlocks.
pub trait DirectoryLock: Send + Sync + Debug {}

/// One open file.
#[expect(
    clippy::len_without_is_empty,
    reason = "a size in bytes that may fail to be read, not a collection"
)]
pub trait File: Send + Sync + Debug {
    /// Returns the path by which it was opened, for messages.
    fn path(&self) -> &Path;

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `Corruption` when the file ends before the buffer is full; `Io` from the system.
    fn read_at(&self, buf: &mut [u8], offset: u64, purpose: Purpose) -> Result<()>;

    /// Writes all of `buf` at `offset`, growing the file if needed. Durable after [`File::sync`].
    ///
    /// # Errors
    /// `Full` or `Io`; any part of the buffer may have been written.
    fn write_at(&self, buf: &[u8], offset: u64, purpose: Purpose) -> Result<()>;

    /// Carries out many transfers, as parallel as the backend can, in any order. Each has its own
    /// result. Returns when all have ended.
    fn transfer(&self, batch: &mut [Transfer<'_>], purpose: Purpose) {
        self.transfer_in_steps(batch, purpose, &mut ());
    }

    /// As [`File::transfer`], and takes the steps with each transfer while others are under way:
    /// where one belongs need not be known before those ahead of it have begun, and what is done
    /// with what was read need not wait for the last.
    fn transfer_in_steps(
        &self,
        batch: &mut [Transfer<'_>],
        purpose: Purpose,
        steps: &mut dyn Steps,
    );

    /// Makes everything written before, and the size it needs, durable (`fdatasync`).
    ///
    /// # Errors
    /// `Io`; afterwards nothing is known of what is durable, and a second sync proves nothing.
    fn sync(&self, purpose: Purpose) -> Result<()>;

    /// The size in bytes.
    ///
    /// # Errors
    /// `Io` from the system.
    fn len(&self) -> Result<u64>;

    /// Grows the file to `bytes` with room that later writes will not lack; zero-filled. Never
    /// shrinks. The new size is durable after [`File::sync`].
    ///
    /// # Errors
    /// `Full` when there is no room (the file is as it was), or `Io`.
    fn allocate(&self, bytes: u64) -> Result<()>;

    /// Shortens the file to `bytes`, whole pages; does nothing when it is not longer. What was cut
    /// off may be there again after a power loss, unless [`File::sync`] came between.
    ///
    /// # Errors
    /// `Io` from the system.
    fn truncate(&self, bytes: u64) -> Result<()>;

    /// Gives the room of some pages back to the file system; they read as zeros from then on, and
    /// the file is as long as it was. A later write there asks for room as one that grows the file
    /// does. What was there may be seen again after a power loss, unless [`File::sync`] came
    /// between. Answers whether the file system can do this; if not, nothing has changed.
    ///
    /// # Errors
    /// `Io` from the system.
    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<bool>;

    /// Writes bytes of any number anywhere below the end of a file that goes through the page
    /// cache. Durable after [`File::sync`].
    ///
    /// # Errors
    /// `Full` or `Io`; any part of the bytes may have been written.
    ///
    /// # Panics
    /// When the file bypasses the page cache.
    fn write_bytes(&self, bytes: &[u8], offset: u64, purpose: Purpose) -> Result<()>;

    /// Maps the first `bytes` bytes of the file, whole pages that it has room for
    /// ([`File::allocate`]): what is stored there the kernel has, as if it was written, and reads
    /// through the page cache find it. `None` where the file system or the machine cannot do that,
    /// for files past the page cache, and wherever a store could need room, now or after files were
    /// cloned: a store has no answer, so without room the process would be killed (SIGBUS).
    fn map(&self, bytes: usize) -> Option<Box<dyn Mapping>>;

    /// Returns whether a mapping of the file would be persistent memory
    /// ([`Mapping::is_persistent`]). Takes no room in the file.
    fn is_persistent(&self) -> bool {
        false
    }

    /// Whether transfers bypass the page cache.
    fn is_direct(&self) -> bool;
}

/// Pages of a file as memory. What a process has stored there survives it, not the power; a page
/// may reach the media at any time, and in any state that it was in. If the mapping is persistent,
/// what was written back and fenced survives the power too; of other stores to a line a power loss
/// keeps some of the first ones, 8 bytes at a time.
pub trait Mapping: Send + Sync + Debug {
    /// Stores bytes from `offset` on, a multiple of 8; zeros fill up the last 8. Whoever stores at
    /// the same place at once leaves a mixture there.
    ///
    /// # Panics
    /// When the place is not in the mapping.
    fn store(&self, offset: usize, bytes: &[u8]);

    /// Returns whether stores survive a power loss once their lines were written back and fenced. No
    /// sync of the file is needed for them, except one after the file got its room.
    fn is_persistent(&self) -> bool;

    /// Begins to write back the cache lines of these bytes, with what was stored there before. They
    /// are written back for good after the next [`Mapping::fence`] of the same thread. On a mapping
    /// that is not persistent this costs the same and promises nothing.
    ///
    /// # Panics
    /// When the place is not in the mapping.
    fn write_back(&self, range: Range<usize>);

    /// Waits until all lines are on the medium that this thread has begun to write back.
    fn fence(&self);
}

/// What is done with each transfer of a batch while others are under way.
pub trait Steps {
    /// Asked of each transfer once, in order, before it begins: may still say where it belongs.
    /// `false` ends the batch before it.
    fn begin(&mut self, _index: usize, _offset: &mut u64) -> bool {
        true
    }

    /// Is shown each that began, with its place in the batch, once it has ended; in any order.
    fn ended(&mut self, _index: usize, _transfer: &Transfer<'_>) {}
}

/// No steps.
impl Steps for () {}

/// One transfer of a batch.
#[derive(Debug)]
pub struct Transfer<'a> {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Buffer to fill or to write.
    pub buf: TransferBuf<'a>,
    /// Result of the transfer; `Ok` until it was tried.
    pub result: Result<()>,
}

/// The buffer of a transfer, and with it the direction.
#[derive(Debug)]
pub enum TransferBuf<'a> {
    /// Fill this from the file.
    Read(&'a mut [u8]),
    /// Write this to the file.
    Write(&'a [u8]),
}

impl<'a> Transfer<'a> {
    /// Reads into `buf` from `offset`.
    pub fn read(buf: &'a mut [u8], offset: u64) -> Self {
        Transfer { offset, buf: TransferBuf::Read(buf), result: Ok(()) }
    }

    /// Writes `buf` at `offset`.
    pub fn write(buf: &'a [u8], offset: u64) -> Self {
        Transfer { offset, buf: TransferBuf::Write(buf), result: Ok(()) }
    }
}
