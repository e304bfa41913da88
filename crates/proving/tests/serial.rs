//! Transactions of many threads are strictly serializable, beside plain reads, writes and batches, over each engine and
//! over keyspaces of all, and so are snapshots: the graph of what they read and wrote has no circle.

use std::time::Duration;

use spinney::{Db, Durability, EngineKind, Keyspace, Options, limits};
use spinney_proving::serial::{graph, run};
use spinney_proving::tier;

/// What the records of a keyspace take where all of them are in memory.
const RECORDS_BYTES: u64 = 16 << 20;

fn serializable(engines: &[EngineKind]) {
    let (count, operations) = if tier::is_full() { (34, 100_000) } else { (3, 3000) };
    let (mut conflicts_of_all, mut resolved) = (0, 0);
    for seed in tier::seeds(count) {
        let announce = tier::Announce(seed);
        let directory = tempfile::tempdir().unwrap();
        let in_memory = engines.iter().filter(|it| !it.row().capabilities.larger_than_memory);
        let memory = limits::MEMORY_BYTES_MIN + in_memory.count() as u64 * RECORDS_BYTES;
        let options = Options::default().memory(memory).durability(Durability::Buffered);
        let db = Db::open(directory.path(), options).unwrap();
        let keyspaces: Vec<Keyspace> = (engines.iter().enumerate())
            .map(|(number, engine)| db.keyspace(&number.to_string(), *engine).unwrap())
            .collect();
        let threads = [2, 4, 16][seed as usize % 3];
        let keys = [4, 16, 64][seed as usize / 3 % 3];
        let value_bytes = [200, 2000][seed as usize % 2];
        let work = run::Work {
            keys,
            threads,
            operations: operations / threads,
            value_bytes,
            pause: Duration::ZERO,
        };
        let outcome = run::run(&db, &keyspaces, &work, seed);
        graph::check(&outcome.records).unwrap_or_else(|story| panic!("{story}"));
        let stats = db.stats().transactions;
        let conflicts = stats.conflicts_changed + stats.conflicts_busy + stats.conflicts_loaded;
        assert_eq!(
            (conflicts, stats.begun - stats.committed),
            (outcome.conflicts, outcome.conflicts)
        );
        assert!(stats.guards == 0 && stats.committed > stats.begun / 4, "{stats:?}");
        conflicts_of_all += outcome.conflicts;
        let images: Vec<_> = keyspaces.iter().map(|one| one.stats().pre_images).collect();
        assert!(
            outcome.snapshots > 4 * outcome.ended
                && images.iter().all(|one| one.links + one.marks == 0)
        );
        assert_eq!(db.stats().transactions.snapshots, 0);
        resolved += images.iter().map(|one| one.resolved).sum::<u64>();
        let (records, snapshots) = (outcome.records.len(), outcome.snapshots);
        println!("seed {seed}: {records} records, {snapshots} snapshots, {stats:?}, {images:?}");
        drop(announce);
    }
    assert!(conflicts_of_all > 0 || tier::is_replay(), "nobody met anybody");
    let marks = [EngineKind::TreeLine, EngineKind::TwoBTree];
    let has_marks = engines.iter().any(|engine| marks.contains(engine));
    assert!(resolved > 0 || !has_marks || tier::is_replay(), "no page was a pre-image");
}

#[test]
fn treeline() {
    serializable(&[EngineKind::TreeLine]);
}

#[test]
fn turtle() {
    serializable(&[EngineKind::Turtle]);
}

#[test]
fn two_btree() {
    serializable(&[EngineKind::TwoBTree]);
}

#[test]
fn iot() {
    serializable(&[EngineKind::Iot]);
}

#[test]
fn iot_and_treeline() {
    serializable(&[EngineKind::Iot, EngineKind::TreeLine]);
}

#[test]
fn iot_and_turtle() {
    serializable(&[EngineKind::Iot, EngineKind::Turtle]);
}

/// Transactions over two keyspaces with versions are in no other engine.
#[test]
fn iot_twice() {
    serializable(&[EngineKind::Iot, EngineKind::Iot]);
}

/// Eight keyspaces that are parked and opened again all the time. Those of `iot` forget the versions that transactions know
/// each other by.
fn serializable_parked(engines: &[EngineKind]) {
    let (count, operations) = if tier::is_full() { (34, 20_000) } else { (3, 3000) };
    let (mut parked, mut conflicts) = (0, 0);
    for seed in tier::seeds(count) {
        let announce = tier::Announce(seed);
        let directory = tempfile::tempdir().unwrap();
        let options = Options::default().memory(64 << 20).durability(Durability::Buffered);
        let options = options.park_after(Duration::from_micros(300));
        let db = Db::open(directory.path(), options).unwrap();
        let keyspaces: Vec<Keyspace> = (0..8)
            .map(|number| {
                db.keyspace(&number.to_string(), engines[number % engines.len()]).unwrap()
            })
            .collect();
        let threads = [2, 2, 3][seed as usize % 3];
        let keys = [8, 8, 16][seed as usize / 3 % 3];
        let pause = Duration::from_millis(10);
        let work =
            run::Work { keys, threads, operations: operations / threads, value_bytes: 200, pause };
        let outcome = run::run(&db, &keyspaces, &work, seed);
        graph::check(&outcome.records).unwrap_or_else(|story| panic!("{story}"));
        parked += outcome.parked;
        conflicts += outcome.conflicts;
        let stats = db.stats().transactions;
        println!(
            "seed {seed}: {} parked, {} conflicts, {stats:?}",
            outcome.parked, outcome.conflicts
        );
        assert!(stats.guards == 0 && stats.committed > stats.begun / 4, "{stats:?}");
        drop(announce);
    }
    assert!(
        parked > 100 && conflicts > 0 || tier::is_replay(),
        "{parked} parked, {conflicts} conflicts"
    );
}

#[test]
fn iot_parked() {
    serializable_parked(&[EngineKind::Iot]);
}

#[test]
fn all_parked() {
    serializable_parked(&EngineKind::ALL);
}

#[test]
fn all_in_one() {
    serializable(&EngineKind::ALL);
}
