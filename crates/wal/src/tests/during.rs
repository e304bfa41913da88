//! What happens while a sync is under way, by tests that act inside it, after the media have what was
//! written before it and before the caller knows: schedules reach the same, but only now and then.

use spinney_base::shim::Mutex;
use spinney_io::sim::{Call, CrashMode, Fault};

use super::*;

/// A log with its first segments made.
fn log(disk: &SimDisk) -> Arc<Log> {
    let log = create(disk);
    drop(log.reserve(40_000, ReserveFor::User).unwrap());
    log
}

#[test]
fn p10_what_is_written_during_a_sync_is_not_synced_by_it() {
    let disk = disk(1);
    let log = log(&disk);
    let other = log.clone();
    disk.act_inside(Call::Sync, move || {
        let lsn = put(&other, b"during", Durability::Buffered).unwrap();
        assert_eq!((lsn, other.written_lsn()), (Lsn(2), Lsn(2)));
    });
    put(&log, b"before", Durability::Sync).unwrap();
    assert_eq!((log.durable_lsn(), log.written_lsn()), (Lsn(1), Lsn(2)));
    assert_eq!(open(&disk.crash(CrashMode::LoseAll)).1.last_lsn(), Lsn(1));
    log.ensure_durable(Lsn(2)).unwrap();
    assert_eq!(open(&disk.crash(CrashMode::LoseAll)).1.last_lsn(), Lsn(2));
}

#[test]
fn p21_what_is_written_during_a_sync_that_fails_is_not_acknowledged() {
    let disk = disk(1);
    let log = log(&disk);
    let other = log.clone();
    let told = Arc::new(Mutex::new(None));
    let tell = told.clone();
    disk.act_inside(Call::Sync, move || {
        *tell.lock() = Some(put(&other, b"during", Durability::Buffered));
    });
    disk.inject(Fault::SyncError { at: disk.syncs() + 1 });
    assert!(put(&log, b"before", Durability::Sync).unwrap_err().is_poisoned());
    told.lock().take().expect("it acted").expect("the log did not know yet");
    // The next sync of the file would succeed, and prove nothing.
    assert!(log.ensure_durable(Lsn(2)).unwrap_err().is_poisoned());
    assert_eq!(log.durable_lsn(), Lsn(0));
}
