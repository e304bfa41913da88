//! What happens while a lookup reads its page (rule P23), by a disk that lets a test act inside it:
//! schedules reach the same, but only now and then.
#![cfg(not(feature = "shuttle"))]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use spinney_base::Runtime;
use spinney_base::shim::{Mutex, thread};
use spinney_db::{Db, KeyspaceOptions, Options, Result};
use spinney_io::sim::SimDisk;
use spinney_io::{DirectoryLock, Disk, File, IoCounters, OpenMode, Purpose, Transfer};

type Act = Box<dyn FnOnce() + Send>;

/// A disk that lets a test act once, when a lookup has read its page and has not looked at it yet.
#[derive(Clone)]
struct Acting {
    disk: SimDisk,
    act: Arc<Mutex<Option<Act>>>,
}

struct ActingFile {
    file: Arc<dyn File>,
    act: Arc<Mutex<Option<Act>>>,
}

impl std::fmt::Debug for Acting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.disk.fmt(f)
    }
}

impl std::fmt::Debug for ActingFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}

impl Disk for Acting {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let file = self.disk.open(path, mode)?;
        Ok(Arc::new(ActingFile { file, act: self.act.clone() }))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.disk.exists(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<PathBuf>> {
        self.disk.list(directory)
    }

    fn create_dir(&self, directory: &Path) -> Result<()> {
        self.disk.create_dir(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.disk.remove(path)
    }

    fn sync_dir(&self, directory: &Path) -> Result<()> {
        self.disk.sync_dir(directory)
    }

    fn lock(&self, directory: &Path) -> Result<Box<dyn DirectoryLock>> {
        self.disk.lock(directory)
    }

    fn counters(&self) -> &IoCounters {
        self.disk.counters()
    }

    fn backend(&self) -> &'static str {
        self.disk.backend()
    }

    fn writes_pages_atomically(&self, directory: &Path) -> Result<bool> {
        self.disk.writes_pages_atomically(directory)
    }
}

impl File for ActingFile {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.file.read_at(buf, offset, purpose)?;
        let act = if purpose == Purpose::Lookup { self.act.lock().take() } else { None };
        if let Some(act) = act {
            act();
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.file.write_at(buf, offset, purpose)
    }

    fn transfer(&self, batch: &mut [Transfer<'_>], purpose: Purpose) {
        self.file.transfer(batch, purpose);
    }

    fn sync(&self, purpose: Purpose) -> Result<()> {
        self.file.sync(purpose)
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        self.file.allocate(bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.file.punch_hole(offset, bytes)
    }

    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }
}

/// While a lookup stands between reading its page and keeping what it found, the key is changed,
/// brought home and evicted, if the page's lock allows it. What was found must not come back.
#[test]
fn p23_a_late_lookup_keeps_nothing_old() {
    let disk = Acting { disk: SimDisk::new(1), act: Arc::default() };
    let options = Options::default()
        .memory(1 << 20)
        .log_bytes_max(1 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(1));
    let db = Db::open(Path::new("/db"), options).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default().logged(false)).unwrap();
    // More than the cache holds, in a place of their own, so that everything else leaves it.
    let evict = |keyspace: &spinney_db::Keyspace, turn: u8| {
        for number in 0..200u8 {
            keyspace.insert(&[b'x', turn, number], &[3; 3000]).unwrap();
        }
    };
    keyspace.insert(b"k", b"old").unwrap();
    db.checkpoint().unwrap();
    evict(&keyspace, 0);
    let (home, writer) = (db.clone(), keyspace.clone());
    let (threads, thread) = mpsc::channel();
    *disk.act.lock() = Some(Box::new(move || {
        let (ends, end) = mpsc::channel();
        let thread = thread::spawn("writer", move || {
            writer.insert(b"k", b"new").unwrap();
            home.checkpoint().unwrap();
            evict(&writer, 1);
            // Nobody waits any more, if the lock did its work.
            let _ = ends.send(());
        })
        .unwrap();
        // The page's lock keeps it from ending before this lookup has ended.
        let ended = end.recv_timeout(Duration::from_millis(500)).is_ok();
        threads.send((thread, ended)).unwrap();
    }));
    let first = keyspace.get(b"k").unwrap().unwrap();
    let (thread, ended) = thread.try_recv().expect("the lookup read its page");
    thread.join().unwrap();
    assert_eq!(keyspace.get(b"k").unwrap().unwrap(), b"new", "{first:?} came back ({ended})");
    assert!(!ended, "the page changed under the lookup");
}
