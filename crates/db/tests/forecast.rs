//! Insert forecasting where it should matter: hot places that move, on the simulated disk.
#![cfg(not(feature = "shuttle"))]

use std::path::Path;
use std::sync::Arc;

use spinney_base::Runtime;
use spinney_db::{Db, Durability, EngineStats, KeyspaceOptions, Options};
use spinney_io::sim::SimDisk;

const INSERTS: u64 = 120_000;
/// Inserts between two moves.
const WINDOW: u64 = 30_000;
/// Inserts between two checkpoints, which write everything back: a hot place is full before the
/// next.
const CHECKPOINT: u64 = 24_000;

fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    number ^ (number >> 27)
}

fn run(forecast: &str) -> EngineStats {
    let options = Options::default()
        .memory(4 << 20)
        .disk(Arc::new(SimDisk::new(8)))
        .runtime(Runtime::stepped(1));
    let db = Db::open(Path::new("/db"), options).unwrap();
    let options = KeyspaceOptions::default().set("forecast", forecast).unwrap();
    let keyspace = db.keyspace("k", options).unwrap();
    for insert in 0..INSERTS {
        let place = mix(mix(insert / WINDOW) ^ (mix(insert) % 4));
        let key = ((place << 32) | (mix(insert ^ 77) & 0xFFFF_FFFF)).to_be_bytes();
        keyspace.insert_with(key, [7; 56], Durability::Buffered).unwrap();
        if insert % CHECKPOINT == CHECKPOINT - 1 {
            db.checkpoint().unwrap();
        }
    }
    let stats = keyspace.stats();
    assert_eq!(keyspace.iter().count() as u64, INSERTS);
    db.verify().unwrap();
    stats
}

#[test]
fn hot_places_that_move_are_given_their_room_at_once() {
    let (with, without) = (run("on"), run("off"));
    let told = format!("with {with:?}, without {without:?}");
    assert!(with.reorganizations * 10 <= without.reorganizations * 6, "{told}");
    assert!(
        with.pages + with.overflow_pages < 2 * (without.pages + without.overflow_pages),
        "{told}"
    );
    assert_eq!(without.inserts_forecast, 0);
}
