//! What the soak (`examples/soak`) found and nobody has mended yet, each as small as it goes.

use std::sync::Arc;

use spinney_base::Runtime;
use spinney_db::{Db, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_io::sim::{CrashMode, Fault, SimDisk};

fn options(disk: &SimDisk, runtime: &Runtime) -> Options {
    Options::default()
        .memory(1 << 20)
        .log_bytes_max(1 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone())
}

fn opened(disk: &SimDisk, engine: EngineKind) -> (Db, Keyspace) {
    let db = Db::open("/db", options(disk, &Runtime::stepped(1))).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
    (db, keyspace)
}

/// A small database that was closed is opened, and others take all room: its reserve is smaller than what removals
/// leave of it, and the log has no room.
#[test]
#[ignore = "open: a removal answers Full"]
fn c1_a_small_database_takes_removals_when_others_fill_the_disk() {
    for engine in EngineKind::ALL {
        let disk = SimDisk::new(1);
        let (db, keyspace) = opened(&disk, engine);
        (0..20u8).for_each(|n| keyspace.insert(&[n], &[n; 500]).unwrap());
        drop(keyspace);
        db.close().unwrap();
        let (_db, keyspace) = opened(&disk, engine);
        disk.set_capacity(Some(disk.used() + (8 << 10)));
        for n in 0..20u8 {
            keyspace.remove(&[n]).unwrap_or_else(|error| panic!("{engine} {n}: {error}"));
        }
    }
}

/// What a failed sync should have made durable is read by the next process, and never becomes durable: a power loss
/// after that must not take back what was promised.
#[test]
#[ignore = "open: records acknowledged under Sync are gone"]
fn p21_a_failed_sync_a_restart_and_a_power_loss_lose_nothing() {
    let mut broken = Vec::new();
    for engine in EngineKind::ALL {
        for later in 1..12 {
            let disk = SimDisk::new(later);
            let (db, keyspace) = opened(&disk, engine);
            (0..100u8).for_each(|n| keyspace.insert(&[n], &[n; 500]).unwrap());
            db.checkpoint().unwrap();
            (50..150u8).for_each(|n| keyspace.insert(&[n], &[n; 700]).unwrap());
            disk.inject(Fault::SyncError { at: disk.syncs() + later });
            let failed = db.checkpoint();
            drop((db, keyspace));
            let disk = disk.kill();
            let (db, keyspace) = opened(&disk, engine);
            assert_eq!(keyspace.iter().filter(Result::is_ok).count(), 150, "{engine} {later}");
            drop(keyspace);
            db.close().unwrap();
            let disk = disk.crash(CrashMode::LoseAll);
            let found = Db::open("/db", options(&disk, &Runtime::stepped(1))).and_then(|db| {
                let keyspace = db.existing_keyspace("k")?;
                keyspace.iter().map(|record| record.map(|(_, value)| value.len())).collect()
            });
            let expected = [vec![500; 50], vec![700; 100]].concat();
            if found.as_ref().ok() != Some(&expected) {
                let found = found.map(|all: Vec<usize>| all.len());
                broken.push(format!("{engine} {later} ({failed:?}): {found:?}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
