//! What the soak (`examples/soak`) found and nobody has mended yet, each as small as it goes.

use std::sync::Arc;

use spinney_base::Runtime;
use spinney_db::{Db, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_io::sim::SimDisk;

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
