//! The process that the kill test kills: four threads write batches, with `Sync` where the seed is even
//! and else with `Buffered`, and report every acknowledgement on standard output.
//!
//! Arguments: directory, first number, seed. A thread writes the same number under the same key
//! into two keyspaces in one batch, then prints `thread slot number`. It never ends by itself.

use std::io::Write as _;
use std::path::Path;

use spinney::{Batch, Db, Durability, KeyspaceOptions};
use spinney_proving::kill::{self, ENGINES, KEYSPACES, SLOTS, THREADS};
use spinney_proving::tier::Random;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, directory, first, seed] = &arguments[..] else {
        eprintln!("usage: spinney-proving-child DIRECTORY FIRST SEED");
        std::process::exit(2);
    };
    let first: u64 = first.parse().expect("a number");
    let seed: u64 = seed.parse().expect("a number");
    // The process alone dies: both promise the same.
    let durability = if seed.is_multiple_of(2) { Durability::Sync } else { Durability::Buffered };
    let db = Db::open(Path::new(directory), kill::options()).expect("the database opens");
    let keyspaces = [0, 1].map(|index| {
        let options = KeyspaceOptions::default().engine(ENGINES[index]);
        db.keyspace(KEYSPACES[index], options).expect("it opens")
    });
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, keyspaces) = (&db, &keyspaces);
            scope.spawn(move || {
                let mut random = Random::new(seed, 300 + thread as u64);
                for number in first.. {
                    let slot = random.below(SLOTS);
                    let mut batch = Batch::new();
                    for keyspace in keyspaces {
                        let key = kill::key(thread, slot);
                        batch.insert(keyspace, key, kill::value(number));
                    }
                    db.write_with(batch, durability).expect("a good disk");
                    let line = format!("{thread} {slot} {number}\n");
                    let mut out = std::io::stdout().lock();
                    if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
                        // Whoever listened is gone.
                        std::process::exit(0);
                    }
                }
            });
        }
    });
}
