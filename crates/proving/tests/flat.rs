//! Memory of a keyspace of `iot` whose records are updated all the time, beside readers: it stays as it is while readers
//! end, and a reader that never does ends with a conflict, while no write waits or fails for it.
//!
//! The full tier takes an hour, with a reader of a minute each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use spinney::{Db, Durability, EngineKind, ErrorKind, Options, TransactionOptions};
use spinney_base::Runtime;
use spinney_base::allocator::resident_bytes;
use spinney_base::runtime::SplitMix;
use spinney_proving::tier::is_full;

const MEMORY: u64 = 128 << 20;
/// Resident bytes that a process may have beyond its budget.
const BESIDE: u64 = 64 << 20;
const WRITERS: u64 = 2;

fn key(number: u64) -> [u8; 8] {
    SplitMix(number).next_u64().to_be_bytes()
}

/// All records that a writer wrote last bear its number of the round.
fn value(round: u64, words: usize) -> Vec<u8> {
    round.to_be_bytes().repeat(words)
}

/// Lets writers end, also where the reader panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn memory_stays_flat_beside_readers() {
    let (records, long, of_reader) = match is_full() {
        true => (100_000, Duration::from_secs(3600), Duration::from_secs(60)),
        false => (5_000, Duration::from_secs(4), Duration::from_millis(200)),
    };
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().memory(MEMORY).durability(Durability::Buffered);
    let db = Db::open(directory.path(), options).unwrap();
    let table = db.keyspace("table", EngineKind::Iot).unwrap();
    (0..records).for_each(|number| table.insert(key(number), value(0, 12)).unwrap());
    let (clock, ends, writes) = (Runtime::threads(), AtomicBool::new(false), AtomicU64::new(0));
    let (early, late) = std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (table, ends, writes) = (&table, &ends, &writes);
            scope.spawn(move || {
                let mut random = SplitMix(writer);
                for round in 1.. {
                    if ends.load(SeqCst) {
                        return;
                    }
                    table.insert(key(random.next_u64() % records), value(round, 12)).unwrap();
                    writes.fetch_add(1, SeqCst);
                }
            });
        }
        let _ended = Ends(&ends);
        let (mut early, mut late) = (0, 0);
        while clock.now() < long {
            let until = clock.now() + of_reader;
            let reader = db.begin_with(TransactionOptions::default()).unwrap();
            let first = reader.get(&table, key(7)).unwrap();
            while clock.now() < until {
                clock.sleep(of_reader / 8);
                assert_eq!(reader.get(&table, key(7)).unwrap(), first, "it sees what was");
                let used = db.stats().memory_used;
                let most = if clock.now() < long / 4 { &mut early } else { &mut late };
                *most = used.max(*most);
                let resident = resident_bytes().unwrap_or(0);
                // Of this test alone.
                assert!(!is_full() || resident <= MEMORY + BESIDE, "{resident} bytes are resident");
            }
            reader.commit().unwrap();
        }
        (early, late)
    });
    println!("{} writes; at most {early} bytes, later {late}", writes.load(SeqCst));
    assert!(late <= early + early / 2, "{early} bytes at most in the first quarter, {late} later");
    db.verify().unwrap();
}

#[test]
fn a_reader_that_never_ends_is_ended_and_no_write_fails() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().memory(64 << 20).durability(Durability::Buffered);
    let db = Db::open(directory.path(), options).unwrap();
    let table = db.keyspace("table", EngineKind::Iot).unwrap();
    // What they take fits into the memory, and not twice.
    const RECORDS: u64 = 60_000;
    const WORDS: usize = 38;
    (0..RECORDS).for_each(|number| table.insert(key(number), value(0, WORDS)).unwrap());
    let reader = db.begin().unwrap();
    assert_eq!(reader.get(&table, key(0)).unwrap().unwrap()[..], value(0, WORDS));
    let mut random = SplitMix(1);
    let ended = (1..3_000_000).find_map(|round| {
        table.insert(key(random.next_u64() % RECORDS), value(round, WORDS)).unwrap();
        let looks = round.is_multiple_of(1000);
        let seen = looks.then(|| reader.get(&table, key(0)))?;
        match seen {
            Ok(seen) => {
                assert_eq!(seen.unwrap()[..], value(0, WORDS));
                None
            }
            Err(error) => Some(error),
        }
    });
    let error = ended.expect("its versions take more than the memory");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    drop(reader);
    (0..1000).for_each(|round| table.insert(key(round), value(round, WORDS)).unwrap());
}
