//! Syncs of a store file that fail beside others or for want of room (P14, P21), on the simulated disk with files whose
//! syncs end as a test says.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use spinney_base::shim::Mutex;
use spinney_base::{Error, ErrorKind, KeyspaceId, Lsn, Poison, Result};
use spinney_extent::{Checkpoint, Store, StoreOptions};
use spinney_io::sim::SimDisk;
use spinney_io::{Directory, DirectoryLock, File, Mapping, OpenMode, Purpose, Steps, Transfer};

/// How a sync ends.
#[derive(Debug)]
enum Ending {
    Well,
    /// With such an error, and those after it learn nothing of it.
    Failed(ErrorKind),
    /// The same, but first it says that it has begun and waits for a word.
    Late(Sender<()>, Receiver<()>),
}

type Endings = Arc<Mutex<VecDeque<Ending>>>;

/// A directory of the simulated disk but for the syncs of its files: they end in this order, then all
/// well.
#[derive(Debug)]
struct Told {
    directory: Arc<dyn Directory>,
    endings: Endings,
}

#[derive(Debug)]
struct ToldFile {
    file: Arc<dyn File>,
    endings: Endings,
}

impl File for ToldFile {
    fn sync(&self, purpose: Purpose) -> Result<()> {
        let ending = self.endings.lock().pop_front();
        match ending {
            None | Some(Ending::Well) => self.file.sync(purpose),
            Some(Ending::Failed(kind)) => Err(Error::new(kind, "sync of the store")),
            Some(Ending::Late(begun, word)) => {
                begun.send(()).unwrap();
                word.recv().unwrap();
                Err(Error::new(ErrorKind::Io, "sync of the store"))
            }
        }
    }

    fn path(&self) -> &Path {
        self.file.path()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.file.read_at(buf, offset, purpose)
    }

    fn write_at(&self, buf: &[u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.file.write_at(buf, offset, purpose)
    }

    fn transfer(&self, batch: &mut [Transfer<'_>], purpose: Purpose) {
        self.file.transfer(batch, purpose);
    }

    fn transfer_in_steps(
        &self,
        batch: &mut [Transfer<'_>],
        purpose: Purpose,
        steps: &mut dyn Steps,
    ) {
        self.file.transfer_in_steps(batch, purpose, steps);
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        self.file.allocate(bytes)
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        self.file.truncate(bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.file.punch_hole(offset, bytes)
    }

    fn write_bytes(&self, bytes: &[u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.file.write_bytes(bytes, offset, purpose)
    }

    fn map(&self, bytes: usize) -> Option<Box<dyn Mapping>> {
        self.file.map(bytes)
    }

    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }
}

impl Directory for Told {
    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
        let file = self.directory.open(name, mode)?;
        Ok(Arc::new(ToldFile { file, endings: self.endings.clone() }))
    }

    fn exists(&self, name: &str) -> Result<bool> {
        self.directory.exists(name)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.directory.list()
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.directory.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.directory.remove(name)
    }

    fn sync(&self) -> Result<()> {
        self.directory.sync()
    }

    fn lock(&self) -> Result<Box<dyn DirectoryLock>> {
        self.directory.lock()
    }

    fn lock_shared(&self) -> Result<Box<dyn DirectoryLock>> {
        self.directory.lock_shared()
    }

    fn writes_pages_atomically(&self) -> Result<bool> {
        self.directory.writes_pages_atomically()
    }
}

fn options() -> StoreOptions {
    let poison = Arc::new(Poison::new());
    StoreOptions { keyspace: KeyspaceId(3), double_write: true, poison }
}

fn publish(store: &Store, redo: u64) -> Result<()> {
    store.publish(Checkpoint { redo: Lsn(redo), structure: redo }, &[7; 5000], || Ok(()))
}

/// A store with a first checkpoint, and how its syncs will end from now on.
fn store() -> (SimDisk, Store, Endings) {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    let endings = Endings::default();
    let told = Told { directory: disk.at("/db"), endings: endings.clone() };
    let store = Store::create(&told, "store", options(), Lsn(0)).unwrap();
    disk.sync_dir(Path::new("/db")).unwrap();
    store.adopt(&[]).unwrap();
    publish(&store, 1).unwrap();
    (disk, store, endings)
}

/// The redo LSN that a killed process's file opens with.
fn redo(disk: &SimDisk) -> u64 {
    Store::open(&*disk.kill().at("/db"), "store", options()).unwrap().1.redo.0
}

/// The first of two gets the error that sync at once; the other, whose own sync ends well, publishes nothing.
#[test]
fn p21_a_checkpoint_does_not_pass_a_sync_that_fails_beside_it() {
    let (disk, store, endings) = store();
    let (begun, has_begun) = channel();
    let (word, waits) = channel();
    endings.lock().push_back(Ending::Late(begun, waits));
    std::thread::scope(|scope| {
        let ahead = scope.spawn(|| store.sync(Purpose::CHECKPOINT));
        has_begun.recv().unwrap();
        let publisher = scope.spawn(|| publish(&store, 2));
        // So long it may go on: if it can end, it will have.
        for _ in 0..100 {
            if publisher.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        word.send(()).unwrap();
        assert!(ahead.join().unwrap().unwrap_err().is_poisoned());
        assert!(publisher.join().unwrap().unwrap_err().is_poisoned());
    });
    assert_eq!(redo(&disk), 1);
}

/// A slot was written and its sync finds no room: it may be on the disk, so what it names must not be used again.
#[test]
fn p21_a_slot_whose_sync_finds_no_room_stops_the_store() {
    let (disk, store, endings) = store();
    endings.lock().extend([Ending::Well, Ending::Failed(ErrorKind::Full)]);
    assert!(publish(&store, 2).unwrap_err().is_poisoned());
    assert!(store.allocate(0).unwrap_err().is_poisoned());
    assert!(publish(&store, 3).unwrap_err().is_poisoned());
    assert_eq!(redo(&disk), 2);
}
