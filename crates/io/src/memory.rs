//! A disk that is memory and ends with its last handle, for a database without files. Nothing on it
//! survives the process, so syncs do nothing.
//!
//! ```text
//!   MemoryDisk -- path --> Directory -- name --> Node: length, pages (none where nothing was written)
//! ```
//!
//! **Invariants**
//! 1. A node has pages below its length only, and a page that is missing reads as zeros.
//! 2. A transfer is atomic: it holds the node's lock.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::shim::{Mutex, RwLock};
use spinney_base::{Error, ErrorKind, Result};

use crate::counters::{IoCounters, Purpose};
use crate::disk::{
    Directory, DirectoryLock, Disk, File, IfMissing, Mapping, OpenMode, Steps, Transfer,
    TransferBuf,
};

const PAGE: u64 = PAGE_BYTES as u64;

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    directories: Mutex<BTreeMap<PathBuf, Arc<Names>>>,
    counters: IoCounters,
    /// Pages that all files hold, those of removed files that are still open included.
    pages: AtomicU64,
}

#[derive(Debug, Default)]
struct Names {
    files: Mutex<BTreeMap<String, Arc<Node>>>,
    /// How many share the lock; `None` when nobody holds it, 0 when one holds it alone.
    lock: Mutex<Option<usize>>,
}

#[derive(Debug)]
struct Node {
    shared: Arc<Shared>,
    content: RwLock<Content>,
}

#[derive(Debug, Default)]
struct Content {
    bytes: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
}

impl MemoryDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        MemoryDisk::default()
    }
}

impl Disk for MemoryDisk {
    fn directory(&self, path: &Path, if_missing: IfMissing) -> Result<Arc<dyn Directory>> {
        let mut directories = self.0.directories.lock();
        let names = match (directories.get(path), if_missing) {
            (Some(names), _) => names.clone(),
            (None, IfMissing::Create) => directories.entry(path.to_owned()).or_default().clone(),
            (None, IfMissing::Fail) => return Err(not_found(path)),
        };
        Ok(Arc::new(MemoryDirectory { shared: self.0.clone(), path: path.to_owned(), names }))
    }

    fn counters(&self) -> &IoCounters {
        &self.0.counters
    }

    fn backend(&self) -> &'static str {
        "memory"
    }

    fn memory_bytes(&self) -> u64 {
        self.0.pages.load(Relaxed) * PAGE
    }
}

fn not_found(path: &Path) -> Error {
    Error::new(ErrorKind::NotFound, format!("{} is not there", path.display()))
}

#[derive(Debug)]
struct MemoryDirectory {
    shared: Arc<Shared>,
    path: PathBuf,
    names: Arc<Names>,
}

impl MemoryDirectory {
    fn take_lock(&self, shared: bool) -> Result<Box<dyn DirectoryLock>> {
        let mut lock = self.names.lock.lock();
        *lock = match *lock {
            None => Some(usize::from(shared)),
            Some(readers) if shared && readers > 0 => Some(readers + 1),
            Some(_) => {
                let message = format!("{} is open through another handle", self.path.display());
                return Err(Error::new(ErrorKind::Locked, message));
            }
        };
        Ok(Box::new(MemoryLock { names: self.names.clone() }))
    }
}

impl Directory for MemoryDirectory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
        let path = self.path.join(name);
        let mut files = self.names.files.lock();
        let node = match files.get(name) {
            Some(node) => node.clone(),
            None if mode.create => {
                let node = Node { shared: self.shared.clone(), content: RwLock::default() };
                files.entry(name.to_owned()).or_insert(Arc::new(node)).clone()
            }
            None => return Err(not_found(&path)),
        };
        Ok(Arc::new(MemoryFile { path, node, mode }))
    }

    fn exists(&self, name: &str) -> Result<bool> {
        Ok(self.names.files.lock().contains_key(name))
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.names.files.lock().keys().cloned().collect())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut files = self.names.files.lock();
        let node = files.remove(from).ok_or_else(|| not_found(&self.path.join(from)))?;
        files.insert(to.to_owned(), node);
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let removed = self.names.files.lock().remove(name);
        removed.map(|_| ()).ok_or_else(|| not_found(&self.path.join(name)))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn lock(&self) -> Result<Box<dyn DirectoryLock>> {
        self.take_lock(false)
    }

    fn lock_shared(&self) -> Result<Box<dyn DirectoryLock>> {
        self.take_lock(true)
    }

    /// No power loss tears a page that no power loss leaves.
    fn writes_pages_atomically(&self) -> Result<bool> {
        Ok(true)
    }
}

#[derive(Debug)]
struct MemoryLock {
    names: Arc<Names>,
}

impl DirectoryLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        let mut lock = self.names.lock.lock();
        *lock = lock.filter(|readers| *readers > 1).map(|readers| readers - 1);
    }
}

impl Node {
    /// Pages that come into the node, or leave it.
    fn change(&self, content: &mut Content, work: impl FnOnce(&mut Content)) {
        let before = content.pages.len() as u64;
        work(content);
        let after = content.pages.len() as u64;
        self.shared.pages.fetch_add(after.wrapping_sub(before), Relaxed);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let pages = self.content.read().pages.len() as u64;
        self.shared.pages.fetch_sub(pages, Relaxed);
    }
}

#[derive(Debug)]
struct MemoryFile {
    path: PathBuf,
    node: Arc<Node>,
    mode: OpenMode,
}

impl MemoryFile {
    fn check_writable(&self) -> Result<()> {
        if self.mode.read_only {
            let message = format!("{} was opened to be read only", self.path.display());
            return Err(Error::new(ErrorKind::Io, message));
        }
        Ok(())
    }

    fn store(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        let mut content = self.node.content.write();
        self.node.change(&mut content, |content| {
            let (mut at, mut left) = (offset, bytes);
            while !left.is_empty() {
                let within = usize::try_from(at % PAGE).expect("a page is small");
                let (here, rest) = left.split_at(left.len().min(PAGE_BYTES - within));
                let page =
                    content.pages.entry(at / PAGE).or_insert_with(|| Box::new([0; PAGE_BYTES]));
                page[within..within + here.len()].copy_from_slice(here);
                at += here.len() as u64;
                left = rest;
            }
            content.bytes = content.bytes.max(at);
        });
        Ok(())
    }
}

impl File for MemoryFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.node.shared.counters.read(purpose, buf.len());
        let content = self.node.content.read();
        let end = offset + buf.len() as u64;
        if end > content.bytes {
            let expected = format!("{} bytes", buf.len());
            let found = format!("{} before the file ends", content.bytes.saturating_sub(offset));
            return Err(Error::corruption(self.path.display(), offset, expected, found));
        }
        for (page, block) in (offset / PAGE..).zip(buf.chunks_mut(PAGE_BYTES)) {
            match content.pages.get(&page) {
                Some(bytes) => block.copy_from_slice(&bytes[..block.len()]),
                None => block.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.node.shared.counters.write(purpose, buf.len());
        self.store(buf, offset)
    }

    fn transfer_in_steps(
        &self,
        batch: &mut [Transfer<'_>],
        purpose: Purpose,
        steps: &mut dyn Steps,
    ) {
        for (index, transfer) in batch.iter_mut().enumerate() {
            if !steps.begin(index, &mut transfer.offset) {
                return;
            }
            transfer.result = match &mut transfer.buf {
                TransferBuf::Read(buf) => self.read_at(buf, transfer.offset, purpose),
                TransferBuf::Write(buf) => self.write_at(buf, transfer.offset, purpose),
            };
            steps.ended(index, transfer);
        }
    }

    fn sync(&self, purpose: Purpose) -> Result<()> {
        self.node.shared.counters.sync(purpose);
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.node.content.read().bytes)
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        self.check_writable()?;
        let mut content = self.node.content.write();
        content.bytes = content.bytes.max(bytes);
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        self.check_writable()?;
        let mut content = self.node.content.write();
        self.node.change(&mut content, |content| {
            content.pages.split_off(&bytes.div_ceil(PAGE));
            content.bytes = content.bytes.min(bytes);
        });
        Ok(())
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.check_writable()?;
        let mut content = self.node.content.write();
        self.node.change(&mut content, |content| {
            for page in offset / PAGE..(offset + bytes) / PAGE {
                content.pages.remove(&page);
            }
        });
        Ok(true)
    }

    fn write_bytes(&self, bytes: &[u8], offset: u64, purpose: Purpose) -> Result<()> {
        assert!(!self.mode.direct, "bytes of any number go through the page cache");
        self.node.shared.counters.write(purpose, bytes.len());
        self.store(bytes, offset)
    }

    fn map(&self, _bytes: usize) -> Option<Box<dyn Mapping>> {
        None
    }

    fn is_direct(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> (MemoryDisk, Arc<dyn Directory>) {
        let disk = MemoryDisk::new();
        let directory = disk.directory(Path::new("/db"), IfMissing::Create).unwrap();
        (disk, directory)
    }

    #[test]
    fn bytes_come_back_and_room_is_given_back() {
        let (disk, directory) = made();
        let file = directory.open("a", OpenMode::CREATE).unwrap();
        file.write_at(&[7; 3 * PAGE_BYTES], 2 * PAGE, Purpose::TOOL).unwrap();
        assert_eq!((file.len().unwrap(), disk.memory_bytes()), (5 * PAGE, 3 * PAGE));
        let mut read = [1; 4 * PAGE_BYTES];
        file.read_at(&mut read, PAGE, Purpose::TOOL).unwrap();
        assert!(read[..PAGE_BYTES].iter().all(|byte| *byte == 0));
        assert!(read[PAGE_BYTES..].iter().all(|byte| *byte == 7));
        let error = file.read_at(&mut read, 2 * PAGE, Purpose::TOOL).unwrap_err();
        assert!(error.is_corruption(), "{error}");
        assert!(file.punch_hole(3 * PAGE, PAGE).unwrap());
        assert_eq!(disk.memory_bytes(), 2 * PAGE);
        file.allocate(9 * PAGE).unwrap();
        file.truncate(3 * PAGE).unwrap();
        assert_eq!((file.len().unwrap(), disk.memory_bytes()), (3 * PAGE, PAGE));
        // What was cut off does not come back.
        file.allocate(5 * PAGE).unwrap();
        file.read_at(&mut read, PAGE, Purpose::TOOL).unwrap();
        assert!(read[2 * PAGE_BYTES..].iter().all(|byte| *byte == 0));
        directory.remove("a").unwrap();
        assert_eq!(disk.memory_bytes(), PAGE, "a handle keeps it");
        drop(file);
        assert_eq!(disk.memory_bytes(), 0);
    }

    #[test]
    fn names_and_locks_are_those_of_a_directory() {
        let (disk, directory) = made();
        assert_eq!(
            directory.open("a", OpenMode::EXISTING).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        directory.open("a", OpenMode::CREATE).unwrap();
        directory.open("b", OpenMode::CREATE.cached()).unwrap().allocate(PAGE).unwrap();
        directory.rename("b", "a").unwrap();
        assert_eq!(directory.list().unwrap(), ["a"]);
        let kept = directory.open("a", OpenMode::EXISTING.read_only()).unwrap();
        assert_eq!(kept.len().unwrap(), PAGE);
        assert!(kept.write_at(&[0; PAGE_BYTES], 0, Purpose::TOOL).is_err());
        assert!(disk.directory(Path::new("/other"), IfMissing::Fail).is_err());
        let again = disk.directory(Path::new("/db"), IfMissing::Fail).unwrap();
        let alone = directory.lock().unwrap();
        assert_eq!(again.lock_shared().unwrap_err().kind(), ErrorKind::Locked);
        drop(alone);
        let readers = (again.lock_shared().unwrap(), directory.lock_shared().unwrap());
        assert!(again.lock().is_err());
        drop(readers.0);
        assert!(again.lock().is_err(), "one reads on");
        drop(readers.1);
        again.lock().unwrap();
    }
}
