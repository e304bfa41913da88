//! What happens while a sync is under way, by a file that lets a test act inside it: schedules
//! reach the same, but only now and then.

use spinney_base::shim::Mutex;
use spinney_io::sim::{CrashMode, Fault};
use spinney_io::{File, Purpose, Transfer};

use super::*;

type Act = Box<dyn FnOnce() + Send>;

/// A file whose next sync lets a test act after the media have what was written before it, and
/// before the caller knows.
struct Acting {
    file: Arc<dyn File>,
    act: Mutex<Option<Act>>,
}

impl std::fmt::Debug for Acting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}

impl File for Acting {
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

    fn sync(&self, purpose: Purpose) -> Result<()> {
        let result = self.file.sync(purpose);
        let act = self.act.lock().take();
        if let Some(act) = act {
            act();
        }
        result
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

/// A log with its first segments made, and the handle to act in its next sync.
fn acting(disk: &SimDisk) -> (Arc<Log>, Arc<Acting>) {
    let mut log = create(disk);
    drop(log.reserve(40_000, ReserveFor::User).unwrap());
    let file = Arc::new(Acting { file: log.file.clone(), act: Mutex::new(None) });
    Arc::get_mut(&mut log).expect("nobody else has it yet").file = file.clone();
    (log, file)
}

#[test]
fn p10_what_is_written_during_a_sync_is_not_synced_by_it() {
    let disk = disk(1);
    let (log, file) = acting(&disk);
    let other = log.clone();
    *file.act.lock() = Some(Box::new(move || {
        let lsn = put(&other, b"during", Durability::Buffered).unwrap();
        assert_eq!((lsn, other.written_lsn()), (Lsn(2), Lsn(2)));
    }));
    put(&log, b"before", Durability::Sync).unwrap();
    assert_eq!((log.durable_lsn(), log.written_lsn()), (Lsn(1), Lsn(2)));
    assert_eq!(open(&disk.crash(CrashMode::LoseAll)).1.last_lsn(), Lsn(1));
    log.ensure_durable(Lsn(2)).unwrap();
    assert_eq!(open(&disk.crash(CrashMode::LoseAll)).1.last_lsn(), Lsn(2));
}

#[test]
fn p21_what_is_written_during_a_sync_that_fails_is_not_acknowledged() {
    let disk = disk(1);
    let (log, file) = acting(&disk);
    let other = log.clone();
    let told = Arc::new(Mutex::new(None));
    let tell = told.clone();
    *file.act.lock() = Some(Box::new(move || {
        *tell.lock() = Some(put(&other, b"during", Durability::Buffered));
    }));
    disk.inject(Fault::SyncError { at: disk.syncs() + 1 });
    assert!(put(&log, b"before", Durability::Sync).unwrap_err().is_poisoned());
    told.lock().take().expect("it acted").expect("the log did not know yet");
    // The next sync of the file would succeed, and prove nothing.
    assert!(log.ensure_durable(Lsn(2)).unwrap_err().is_poisoned());
    assert_eq!(log.durable_lsn(), Lsn(0));
}
