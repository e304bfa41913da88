//! One open file of the operating system.
//!
//! **Invariants.** (1) A transfer that answers `Ok` was whole: short ones are continued,
//! interrupted ones retried. (2) On a direct file every request that reaches the kernel begins at a
//! sector; a short answer that does not end at one is the end of the file. (3) Where the device
//! writes a page atomically, a direct write of exactly one page says so to the kernel, which then
//! keeps it in one piece (P18's `auto`); longer writes carry no such promise.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::{Error, Result};

use super::{RealDisk, filesystem, mapping, named, ring};
use crate::AlignedBuf;
use crate::counters::{IoCounters, Purpose};
use crate::disk::{File, Mapping, OpenMode, Steps, Transfer, TransferBuf};

/// Smallest unit in which a direct transfer may stop short of the end of a file, in bytes.
const SECTOR_BYTES: usize = 512;

/// Pages written at a time where the file system cannot preallocate.
const ZERO_PAGES: usize = 256;

/// `STATX_WRITE_ATOMIC` of `linux/stat.h` (6.11).
const STATX_WRITE_ATOMIC: u32 = 0x1_0000;

/// `RWF_ATOMIC` of `linux/fs.h` (6.11).
pub(super) const RWF_ATOMIC: u32 = 0x40;

#[derive(Debug)]
pub(super) struct RealFile {
    descriptor: OwnedFd,
    path: PathBuf,
    direct: bool,
    atomic_pages: bool,
    uring: bool,
    /// Whether threads poll for reads.
    polls: bool,
    counters: Arc<IoCounters>,
    /// Held while the file grows by [`File::allocate`], so that undoing a failed growth undoes no
    /// other.
    growing: Mutex<()>,
}

/// Returns whether the device writes a page of this file atomically in place. XFS promises atomic
/// pages without such a device, too: it then writes each page to a new block, which fragments the
/// file, and fails where there is no free block. The field `opt` of the answer is the device's
/// part.
pub(super) fn writes_pages_atomically(descriptor: &OwnedFd) -> bool {
    let asked = StatxFlags::from_bits_retain(STATX_WRITE_ATOMIC);
    let Ok(answer) = rustix::fs::statx(descriptor, "", AtFlags::EMPTY_PATH, asked) else {
        return false;
    };
    let page = u32::try_from(PAGE_BYTES).expect("a page is small");
    let by_device = answer.stx_atomic_write_unit_max_opt >= page;
    answer.stx_mask & STATX_WRITE_ATOMIC != 0
        && answer.stx_atomic_write_unit_min <= page
        && answer.stx_atomic_write_unit_max >= page
        && (by_device || !filesystem::is_xfs(descriptor))
}

/// Returns whether the file system takes page-aligned direct transfers. If a kernel is too old to
/// say, opening the file is enough.
fn takes_direct_pages(descriptor: &OwnedFd) -> bool {
    let Ok(answer) = rustix::fs::statx(descriptor, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
    else {
        return true;
    };
    let fits = |align: u32| align != 0 && (PAGE_BYTES as u64).is_multiple_of(u64::from(align));
    answer.stx_mask & StatxFlags::DIOALIGN.bits() == 0
        || (fits(answer.stx_dio_mem_align) && fits(answer.stx_dio_offset_align))
}

impl RealFile {
    /// Opens the file `name` of a directory; `path` is for messages.
    pub(super) fn open(
        disk: &RealDisk,
        directory: &OwnedFd,
        name: &str,
        path: PathBuf,
        mode: OpenMode,
    ) -> Result<Self> {
        let mut flags = OFlags::CLOEXEC;
        flags |= if mode.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        flags |= if mode.create { OFlags::CREATE } else { OFlags::empty() };
        let open = |flags| {
            let permissions = Mode::from_raw_mode(0o644);
            rustix::io::retry_on_intr(|| rustix::fs::openat(directory, name, flags, permissions))
        };
        let opened = if mode.direct {
            match open(flags | OFlags::DIRECT) {
                Ok(descriptor) if takes_direct_pages(&descriptor) => Ok((descriptor, true)),
                Ok(_) | Err(Errno::INVAL) => open(flags).map(|descriptor| (descriptor, false)),
                Err(error) => Err(error),
            }
        } else {
            open(flags).map(|descriptor| (descriptor, false))
        };
        let (descriptor, direct) =
            opened.map_err(|error| named(format!("open {}", path.display()), error))?;
        if mode.create {
            filesystem::ask_to_write_in_place(&descriptor);
        }
        let atomic_pages = direct && writes_pages_atomically(&descriptor);
        Ok(RealFile {
            descriptor,
            path,
            direct,
            atomic_pages,
            uring: disk.uring,
            polls: disk.polls && disk.uring && direct,
            counters: disk.counters.clone(),
            growing: Mutex::new(()),
        })
    }

    pub(super) fn raw_descriptor(&self) -> i32 {
        self.descriptor.as_fd().as_raw_fd()
    }

    pub(super) fn counters(&self) -> &IoCounters {
        &self.counters
    }

    /// Returns whether polling for the end of a batch pays.
    pub(super) fn polls_for(&self, batch: &[Transfer<'_>], purpose: Purpose) -> bool {
        self.polls && purpose.is_waited_for() && ring::are_reads(batch)
    }

    /// Returns the flags for a write of `bytes`, by invariant 3.
    pub(super) fn write_flags(&self, bytes: usize) -> u32 {
        if self.atomic_pages && bytes == PAGE_BYTES { RWF_ATOMIC } else { 0 }
    }

    /// Returns how many bytes of a short transfer of `bytes` count, by invariant 2.
    fn progress(&self, bytes: usize) -> usize {
        if self.direct { bytes - bytes % SECTOR_BYTES } else { bytes }
    }

    /// Reads what is missing after the first `done` bytes.
    pub(super) fn read_rest(&self, buf: &mut [u8], offset: u64, mut done: usize) -> Result<()> {
        done = if done < buf.len() { self.progress(done) } else { done };
        while done < buf.len() {
            let at = offset + done as u64;
            match rustix::io::pread(&self.descriptor, &mut buf[done..], at) {
                Ok(read) if done + read == buf.len() => return Ok(()),
                Ok(read) if self.progress(read) == 0 => {
                    let found = format!("the file's end after {}", done + read);
                    let expected = format!("{} bytes", buf.len());
                    return Err(Error::corruption(self.path.display(), offset, expected, found));
                }
                Ok(read) => done += self.progress(read),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(self.failed("read", buf.len(), offset, error)),
            }
        }
        Ok(())
    }

    /// Writes what is missing after the first `done` bytes.
    pub(super) fn write_rest(&self, buf: &[u8], offset: u64, mut done: usize) -> Result<()> {
        done = if done < buf.len() { self.progress(done) } else { done };
        while done < buf.len() {
            let (rest, at) = (&buf[done..], offset + done as u64);
            let flags = ReadWriteFlags::from_bits_retain(self.write_flags(rest.len()));
            let wrote = if flags.is_empty() {
                rustix::io::pwrite(&self.descriptor, rest, at)
            } else {
                rustix::io::pwritev2(&self.descriptor, &[IoSlice::new(rest)], at, flags)
            };
            match wrote {
                Ok(wrote) if wrote == rest.len() => return Ok(()),
                // A short write has usually met a full disk, and the next one then says so.
                Ok(wrote) if self.progress(wrote) == 0 => {
                    return Err(self.failed("write", buf.len(), offset, Errno::NOSPC));
                }
                Ok(wrote) => done += self.progress(wrote),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(self.failed("write", buf.len(), offset, error)),
            }
        }
        Ok(())
    }

    /// Makes the error of a call about the file as a whole.
    fn refused(&self, context: String, error: Errno) -> Error {
        Error::io(context, error.into()).with_place(&self.path, None)
    }

    pub(super) fn failed(&self, what: &str, bytes: usize, offset: u64, error: Errno) -> Error {
        let path = self.path.display();
        Error::io(format!("{what} {bytes} bytes at {offset} of {path}"), error.into())
            .with_place(&self.path, Some(offset))
    }

    /// The transfers of a batch, one after the other.
    pub(super) fn one_by_one(
        &self,
        batch: &mut [Transfer<'_>],
        purpose: Purpose,
        steps: &mut dyn Steps,
    ) {
        for (index, transfer) in batch.iter_mut().enumerate() {
            if !self.begin(transfer, index, purpose, steps) {
                break;
            }
            transfer.result = match &mut transfer.buf {
                TransferBuf::Read(buf) => self.read_rest(buf, transfer.offset, 0),
                TransferBuf::Write(buf) => self.write_rest(buf, transfer.offset, 0),
            };
            steps.ended(index, transfer);
        }
    }

    /// Asks whether a transfer is to begin, and counts it.
    pub(super) fn begin(
        &self,
        transfer: &mut Transfer<'_>,
        index: usize,
        purpose: Purpose,
        steps: &mut dyn Steps,
    ) -> bool {
        if !steps.begin(index, &mut transfer.offset) {
            return false;
        }
        match &transfer.buf {
            TransferBuf::Read(buf) => self.counters.read(purpose, buf.len()),
            TransferBuf::Write(buf) => self.counters.write(purpose, buf.len()),
        }
        true
    }

    fn size(&self) -> Result<u64> {
        let stat = rustix::fs::fstat(&self.descriptor)
            .map_err(|error| named(format!("stat {}", self.path.display()), error))?;
        u64::try_from(stat.st_size)
            .map_err(|_| Error::corruption(self.path.display(), 0, "a file size", stat.st_size))
    }

    /// Grows the file by writing zeros, for file systems that cannot preallocate.
    fn write_zeros(&self, from: u64, to: u64) -> Result<()> {
        let zeros = AlignedBuf::new(ZERO_PAGES);
        let mut at = from;
        while at < to {
            let left = usize::try_from(to - at).unwrap_or(usize::MAX);
            let chunk = &zeros.bytes()[..left.min(zeros.bytes().len())];
            self.counters.write(Purpose::TOOL, chunk.len());
            self.write_rest(chunk, at, 0)?;
            at += chunk.len() as u64;
        }
        Ok(())
    }
}

impl File for RealFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64, purpose: Purpose) -> Result<()> {
        let mut batch = [Transfer::read(buf, offset)];
        self.transfer(&mut batch, purpose);
        let [read] = batch;
        read.result
    }

    fn write_at(&self, buf: &[u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.counters.write(purpose, buf.len());
        self.write_rest(buf, offset, 0)
    }

    fn transfer_in_steps(
        &self,
        batch: &mut [Transfer<'_>],
        purpose: Purpose,
        steps: &mut dyn Steps,
    ) {
        // A single transfer gains nothing from a ring, unless the thread polls.
        if self.uring && (batch.len() > 1 || self.polls_for(batch, purpose)) {
            ring::transfer(self, batch, purpose, steps);
        } else {
            self.one_by_one(batch, purpose, steps);
        }
    }

    fn sync(&self, purpose: Purpose) -> Result<()> {
        self.counters.sync(purpose);
        rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.descriptor))
            .map_err(|error| self.refused(format!("sync {}", self.path.display()), error))
    }

    fn len(&self) -> Result<u64> {
        self.size()
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        let _growing = self.growing.lock();
        let before = self.size()?;
        if bytes <= before {
            return Ok(());
        }
        let all = FallocateFlags::empty();
        let grown = rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(&self.descriptor, all, before, bytes - before)
        });
        let context = || format!("allocate {bytes} bytes for {}", self.path.display());
        let result = match grown {
            Ok(()) => return Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(before, bytes),
            Err(error) => Err(self.refused(context(), error)),
        };
        if result.is_err() {
            // Undoes a failed growth, so that the space it took is free again. If even that fails,
            // the file is only too long, and the first error is the one to report.
            let _ = rustix::fs::ftruncate(&self.descriptor, before);
        }
        result
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        let _growing = self.growing.lock();
        if self.size()? <= bytes {
            return Ok(());
        }
        rustix::io::retry_on_intr(|| rustix::fs::ftruncate(&self.descriptor, bytes)).map_err(
            |error| {
                let context = format!("shorten {} to {bytes} bytes", self.path.display());
                self.refused(context, error)
            },
        )
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<bool> {
        if !filesystem::holes_give_room_back(&self.descriptor) {
            return Ok(false);
        }
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(&self.descriptor, mode, offset, bytes)
        });
        match punched {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(error) => {
                let context =
                    format!("give back {bytes} bytes at {offset} of {}", self.path.display());
                Err(self.refused(context, error))
            }
        }
    }

    fn write_bytes(&self, bytes: &[u8], offset: u64, purpose: Purpose) -> Result<()> {
        assert!(!self.direct, "single bytes go through the page cache");
        self.counters.write(purpose, bytes.len());
        self.write_rest(bytes, offset, 0)
    }

    fn map(&self, bytes: usize) -> Option<Box<dyn Mapping>> {
        if self.direct || !filesystem::stores_in_place(&self.descriptor) {
            return None;
        }
        // A file that was copied may have its length and holes.
        let all = FallocateFlags::empty();
        let allocate = || rustix::fs::fallocate(&self.descriptor, all, 0, bytes as u64);
        rustix::io::retry_on_intr(allocate).ok()?;
        mapping::RealMapping::new(self.descriptor.as_fd(), bytes)
            .map(|mapping| Box::new(mapping) as Box<dyn Mapping>)
    }

    fn is_persistent(&self) -> bool {
        !self.direct
            && filesystem::stores_in_place(&self.descriptor)
            && mapping::is_persistent(self.descriptor.as_fd())
    }

    fn is_direct(&self) -> bool {
        self.direct
    }
}
