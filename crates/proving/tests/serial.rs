//! Transactions of many threads are strictly serializable, beside plain reads, writes and batches, over each engine and
//! over keyspaces of both: the graph of what they read and wrote has no circle.

use spinney::{Db, Durability, EngineKind, Keyspace, Options};
use spinney_proving::serial::{graph, run};
use spinney_proving::tier;

fn serializable(engines: &[EngineKind]) {
    let (count, operations) = if tier::is_full() { (34, 100_000) } else { (3, 3000) };
    let mut conflicts_of_all = 0;
    for seed in tier::seeds(count) {
        let announce = tier::Announce(seed);
        let directory = tempfile::tempdir().unwrap();
        let options = Options::default().memory(8 << 20).durability(Durability::Buffered);
        let db = Db::open(directory.path(), options).unwrap();
        let keyspaces: Vec<Keyspace> = (engines.iter().enumerate())
            .map(|(number, engine)| db.keyspace(&number.to_string(), *engine).unwrap())
            .collect();
        let threads = [2, 4, 16][seed as usize % 3];
        let keys = [4, 16, 64][seed as usize / 3 % 3];
        let work = run::Work { keys, threads, operations: operations / threads };
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
        println!("seed {seed}: {} records, {stats:?}", outcome.records.len());
        drop(announce);
    }
    assert!(conflicts_of_all > 0 || tier::is_replay(), "nobody met anybody");
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
fn both_in_one() {
    serializable(&[EngineKind::TreeLine, EngineKind::Turtle]);
}
