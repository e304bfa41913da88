//! A directory that does not change: writes go to memory, and are read from there.
//!
//! ```text
//!   reads ----> pages written since ----> the file below, up to its length ----> zeros
//!   writes ---> pages written since (memory, bounded)
//! ```
//!
//! An opening for reading runs the whole recovery over it (rule P29): a new life of the log,
//! restored torn pages, and records that are replayed and written back. All of that stays in
//! memory, so the files keep every byte, and any number of processes may read at once.
//!
//! **Invariants**
//! 1. Nothing reaches the directory below but opens for reading, reads, and a shared lock.
//! 2. All handles of one name share their pages, as handles of one file do.
//! 3. Pages in memory are at most as many bytes as the overlay may have; past them a write is
//!    `Full`, and nothing has changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::shim::{Mutex, RwLock};
use spinney_base::{Error, ErrorKind, Result};

use crate::buffer::AlignedBuf;
use crate::counters::Purpose;
use crate::disk::{
    Directory, DirectoryLock, File, Mapping, OpenMode, Steps, Transfer, TransferBuf,
};

const PAGE: u64 = PAGE_BYTES as u64;

/// A directory seen through memory.
#[derive(Debug)]
pub struct Overlay {
    below: Arc<dyn Directory>,
    names: Mutex<BTreeMap<String, Name>>,
    memory: Arc<Memory>,
}

/// State of a name.
#[derive(Debug)]
enum Name {
    Removed,
    File(Arc<Content>),
}

/// Bytes of memory that pages take, and may take.
#[derive(Debug)]
struct Memory {
    bytes: AtomicU64,
    bytes_max: u64,
}

#[derive(Debug)]
struct Content {
    path: PathBuf,
    below: Option<Arc<dyn File>>,
    pages: RwLock<Pages>,
    memory: Arc<Memory>,
}

#[derive(Debug)]
struct Pages {
    own: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
    len: u64,
    /// Bytes of the file below.
    below: u64,
}

impl Overlay {
    /// Makes an overlay of at most `bytes_max` bytes of written pages over a directory.
    #[must_use]
    pub fn new(below: Arc<dyn Directory>, bytes_max: u64) -> Overlay {
        let memory = Arc::new(Memory { bytes: AtomicU64::new(0), bytes_max });
        Overlay { below, names: Mutex::new(BTreeMap::new()), memory }
    }

    /// Returns the bytes of memory that written pages take.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes.load(Relaxed)
    }

    fn content(&self, name: &str, below: Option<Arc<dyn File>>) -> Result<Arc<Content>> {
        let bytes = below.as_ref().map_or(Ok(0), |file| file.len())?;
        Ok(Arc::new(Content {
            path: self.below.path().join(name),
            below,
            pages: RwLock::new(Pages { own: BTreeMap::new(), len: bytes, below: bytes }),
            memory: self.memory.clone(),
        }))
    }

    fn missing(&self, name: &str) -> Error {
        let path = self.below.path().join(name);
        Error::new(ErrorKind::NotFound, format!("open {}: no such file", path.display()))
    }
}

impl Directory for Overlay {
    fn path(&self) -> &Path {
        self.below.path()
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
        let mut names = self.names.lock();
        // A file that is neither open nor changed is the file below; keeping it open would take a
        // descriptor.
        names.retain(|_, state| match state {
            Name::Removed => true,
            Name::File(content) => Arc::strong_count(content) > 1 || !content.is_as_below(),
        });
        let content = match names.get(name) {
            Some(Name::File(content)) => content.clone(),
            Some(Name::Removed) if !mode.create => return Err(self.missing(name)),
            Some(Name::Removed) => self.content(name, None)?,
            None => match self.below.open(name, mode.read_only()) {
                Ok(file) => self.content(name, Some(file))?,
                Err(error) if error.kind() == ErrorKind::NotFound && mode.create => {
                    self.content(name, None)?
                }
                Err(error) => return Err(error),
            },
        };
        names.insert(name.to_owned(), Name::File(content.clone()));
        Ok(Arc::new(OverlayFile { content, read_only: mode.read_only }))
    }

    fn exists(&self, name: &str) -> Result<bool> {
        match self.names.lock().get(name) {
            Some(Name::File(_)) => Ok(true),
            Some(Name::Removed) => Ok(false),
            None => self.below.exists(name),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        let names = self.names.lock();
        let mut all = self.below.list()?;
        all.retain(|name| !matches!(names.get(name), Some(Name::Removed)));
        let own = names.iter().filter(|(_, state)| matches!(state, Name::File(_)));
        all.extend(own.map(|(name, _)| name.clone()));
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        // Opens the file in the overlay, if it is not there yet.
        self.open(from, OpenMode::EXISTING.cached())?;
        let mut names = self.names.lock();
        if let Some(content) = names.insert(from.to_owned(), Name::Removed) {
            names.insert(to.to_owned(), content);
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        if !self.exists(name)? {
            return Err(self.missing(name));
        }
        self.names.lock().insert(name.to_owned(), Name::Removed);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn lock(&self) -> Result<Box<dyn DirectoryLock>> {
        self.below.lock_shared()
    }

    fn lock_shared(&self) -> Result<Box<dyn DirectoryLock>> {
        self.below.lock_shared()
    }

    fn writes_pages_atomically(&self) -> Result<bool> {
        // Memory does not tear writes.
        Ok(true)
    }
}

/// A handle of a file in an overlay.
#[derive(Debug)]
struct OverlayFile {
    content: Arc<Content>,
    read_only: bool,
}

impl Content {
    /// Returns whether it is identical to the file below.
    fn is_as_below(&self) -> bool {
        let pages = self.pages.read();
        let below = self.below.as_ref().and_then(|below| below.len().ok());
        pages.own.is_empty() && below == Some(pages.len) && pages.below == pages.len
    }

    /// Fills `buf` from `offset`, both whole pages.
    fn read(&self, buf: &mut [u8], offset: u64, purpose: Purpose) -> Result<()> {
        let pages = self.pages.read();
        if offset + buf.len() as u64 > pages.len {
            let found = format!("the file's end after {}", pages.len.saturating_sub(offset));
            let expected = format!("{} bytes", buf.len());
            return Err(Error::corruption(self.path.display(), offset, expected, found));
        }
        let from_below = pages.below.saturating_sub(offset).min(buf.len() as u64);
        let from_below = usize::try_from(from_below).expect("at most the buffer");
        let (there, beyond) = buf.split_at_mut(from_below);
        beyond.fill(0);
        if let Some(below) = self.below.as_ref().filter(|_| !there.is_empty()) {
            below.read_at(there, offset, purpose)?;
        }
        patch(&pages.own, buf, offset);
        Ok(())
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let mut pages = self.pages.write();
        let numbers = (offset / PAGE..).take(buf.len() / PAGE_BYTES);
        let new = numbers.filter(|number| !pages.own.contains_key(number)).count() as u64 * PAGE;
        let before = self.memory.bytes.fetch_add(new, Relaxed);
        if new > 0 && before + new > self.memory.bytes_max {
            self.memory.bytes.fetch_sub(new, Relaxed);
            return Err(Error::new(
                ErrorKind::Full,
                format!(
                    "reading {} needs more than the {} bytes of memory that pages may take",
                    self.path.display(),
                    self.memory.bytes_max
                ),
            ));
        }
        for (number, page) in (offset / PAGE..).zip(buf.as_chunks::<PAGE_BYTES>().0) {
            pages
                .own
                .entry(number)
                .or_insert_with(|| Box::new([0; PAGE_BYTES]))
                .copy_from_slice(page);
        }
        pages.len = pages.len.max(offset + buf.len() as u64);
        Ok(())
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        let pages = self.pages.get_mut().own.len() as u64;
        self.memory.bytes.fetch_sub(pages * PAGE, Relaxed);
    }
}

/// Puts written pages over the bytes read from below.
fn patch(own: &BTreeMap<u64, Box<[u8; PAGE_BYTES]>>, buf: &mut [u8], offset: u64) {
    let first = offset / PAGE;
    let end = first + (buf.len() / PAGE_BYTES) as u64;
    for (number, page) in own.range(first..end) {
        let at = usize::try_from(number - first).expect("inside the buffer") * PAGE_BYTES;
        buf[at..at + PAGE_BYTES].copy_from_slice(&page[..]);
    }
}

impl File for OverlayFile {
    fn path(&self) -> &Path {
        &self.content.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.content.read(buf, offset, purpose)
    }

    fn write_at(&self, buf: &[u8], offset: u64, _: Purpose) -> Result<()> {
        if self.read_only {
            let path = self.content.path.display();
            return Err(Error::invalid(format!("{path} was opened for reading")));
        }
        self.content.write(buf, offset)
    }

    fn transfer_in_steps(
        &self,
        batch: &mut [Transfer<'_>],
        purpose: Purpose,
        steps: &mut dyn Steps,
    ) {
        let mut begun = 0;
        for (index, transfer) in batch.iter_mut().enumerate() {
            if !steps.begin(index, &mut transfer.offset) {
                break;
            }
            begun += 1;
        }
        let batch = &mut batch[..begun];
        // Reads that the file below can serve whole go to it together, as parallel as it can.
        let below = {
            let pages = self.content.pages.read();
            let is_below = |one: &Transfer<'_>| match &one.buf {
                TransferBuf::Read(buf) => one.offset + buf.len() as u64 <= pages.below,
                TransferBuf::Write(_) => false,
            };
            self.content.below.as_ref().filter(|_| batch.iter().all(is_below))
        };
        if let Some(below) = below {
            below.transfer(batch, purpose);
            let pages = self.content.pages.read();
            for transfer in batch.iter_mut() {
                let offset = transfer.offset;
                if let (TransferBuf::Read(buf), Ok(())) = (&mut transfer.buf, &transfer.result) {
                    patch(&pages.own, buf, offset);
                }
            }
        } else {
            for transfer in batch.iter_mut() {
                transfer.result = match &mut transfer.buf {
                    TransferBuf::Read(buf) => self.content.read(buf, transfer.offset, purpose),
                    TransferBuf::Write(buf) => self.write_at(buf, transfer.offset, purpose),
                };
            }
        }
        for (index, transfer) in batch.iter().enumerate() {
            steps.ended(index, transfer);
        }
    }

    fn sync(&self, _: Purpose) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.content.pages.read().len)
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        let mut pages = self.content.pages.write();
        pages.len = pages.len.max(bytes);
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        let mut pages = self.content.pages.write();
        if bytes < pages.len {
            let cut = pages.own.split_off(&(bytes / PAGE));
            self.content.memory.bytes.fetch_sub(cut.len() as u64 * PAGE, Relaxed);
            pages.len = bytes;
            pages.below = pages.below.min(bytes);
        }
        Ok(())
    }

    fn punch_hole(&self, _: u64, _: u64) -> Result<bool> {
        Ok(false)
    }

    fn write_bytes(&self, bytes: &[u8], offset: u64, purpose: Purpose) -> Result<()> {
        let first = offset / PAGE;
        let end = (offset + bytes.len() as u64).div_ceil(PAGE);
        let at = usize::try_from(offset % PAGE).expect("inside a page");
        let mut buf = AlignedBuf::new(usize::try_from(end - first).unwrap_or(0));
        self.read_at(buf.bytes_mut(), first * PAGE, purpose)?;
        buf.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        self.write_at(buf.bytes(), first * PAGE, purpose)
    }

    fn map(&self, _: usize) -> Option<Box<dyn Mapping>> {
        None
    }

    fn is_direct(&self) -> bool {
        self.content.below.as_ref().is_some_and(|below| below.is_direct())
    }
}
