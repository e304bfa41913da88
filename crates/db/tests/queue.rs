//! What the head of a queue costs, alone in its process: the engines give memory back when no thread of
//! the process reads, so beside other tests the counts differ from run to run.
#![cfg(not(feature = "shuttle"))]

#[path = "common/first_read.rs"]
mod first_read;

use std::path::Path;
use std::sync::Arc;

use spinney_base::Runtime;
use spinney_db::{Db, Durability, EngineKind, KeyspaceOptions, Options};
use spinney_io::sim::SimDisk;

use first_read::first_read;

// `2btree` counts no pages of ranges yet.
const ENGINES: [EngineKind; 2] = [EngineKind::TreeLine, EngineKind::Turtle];

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Insert at the tail, remove at the head, read the first: a read costs no more after many removals
/// than after few.
#[test]
fn d1_the_head_of_a_queue_costs_the_same_for_ever() {
    for engine in ENGINES {
        let runtime = Runtime::stepped(1);
        let options = Options::default()
            .memory(16 << 20)
            .scrub_bytes_per_second(0)
            .disk(Arc::new(SimDisk::new(1)))
            .runtime(runtime.clone());
        let db = Db::open(Path::new("/db"), options).unwrap();
        let main = db.keyspace("main", KeyspaceOptions::default().engine(engine)).unwrap();
        let insert = |number| main.insert_with(key(number), [7; 300], Durability::Buffered);
        (0..2_000).for_each(|number| insert(number).unwrap());
        let mut windows = Vec::new();
        for window in 0..36u64 {
            let mut sums = [0; 3];
            for number in window * 2_000..(window + 1) * 2_000 {
                insert(number + 2_000).unwrap();
                main.remove_with(key(number), Durability::Buffered).unwrap();
                if number % 10 == 0 {
                    let (first, counts) = first_read(&main, key(0));
                    assert_eq!(first.as_deref(), Some(&key(number + 1)[..]));
                    (0..3).for_each(|index| sums[index] += counts[index]);
                }
                if number % 64 == 0 {
                    runtime.step();
                }
            }
            windows.push(sums);
        }
        let sum = |windows: &[[u64; 3]], index| windows.iter().map(|sums| sums[index]).sum::<u64>();
        for index in 0..3 {
            let (second, last) = (sum(&windows[6..18], index), sum(&windows[24..], index));
            // Of 2,400 reads; buffers are merged now and then, which is half a page of some reads.
            assert!(last * 5 <= second * 6 + 5 * 1_200, "{engine:?}: {last} after {second}");
        }
        let pages = sum(&windows[24..], 0) / (12 * 200);
        assert!(pages <= 4, "{engine:?}: {pages} pages for the first record");
    }
}
