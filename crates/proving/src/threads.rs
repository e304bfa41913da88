//! Real threads on one database: every key's history must be linearizable, and no reader may see
//! half a batch.
//!
//! Seeds shape the load, not the schedule: a failure here does not replay exactly.

use std::sync::Arc;

use spinney_base::Runtime;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use spinney_io::Disk;

use crate::database::{Config, Database, Product, Promise, Write};
use crate::history::{Action, Event, ValueId, explain};
use crate::tier::Random;

/// How long and how wide.
#[derive(Clone, Debug)]
pub struct Load {
    /// Threads that read and write contended keys.
    pub threads: usize,
    /// Operations of each.
    pub operations: usize,
    /// Keys that they contend for.
    pub keys: usize,
    /// Records beside them, so that the contended ones are evicted and their pages split.
    pub ballast: usize,
}

const KEYSPACES: [&str; 2] = ["one", "two"];

fn value(id: u64) -> Vec<u8> {
    let mut value = id.to_be_bytes().to_vec();
    // One in fifty does not fit a page; its bytes tell it from others of that length.
    let (length, filler) = if id % 50 == 7 { (4_000 + id % 9_000, id) } else { (id % 400, 0x5A) };
    let filler = u8::try_from(filler % 256).expect("a byte");
    value.resize(8 + usize::try_from(length).expect("small"), filler);
    value
}

fn id(value: Option<&[u8]>) -> ValueId {
    value.map(|value| {
        let id = u64::from_be_bytes(value[..8].try_into().expect("every value begins with its id"));
        assert!(
            value == self::value(id),
            "a value of {} bytes is not what was written",
            value.len()
        );
        id
    })
}

fn key(number: usize) -> Vec<u8> {
    Random::new(number as u64, 9).next_u64().to_be_bytes().to_vec()
}

fn ballast(number: usize) -> Vec<u8> {
    Random::new(number as u64, 10).next_u64().to_be_bytes().to_vec()
}

fn open(
    product: &dyn Product,
    disk: Arc<dyn Disk>,
    config: &Config,
    load: &Load,
) -> Box<dyn Database> {
    let database = product.open(disk, Runtime::threads(), config).expect("a good disk");
    for name in KEYSPACES {
        database.create_keyspace(name, true).expect("a good disk");
        for chunk in (0..load.ballast).collect::<Vec<_>>().chunks(7) {
            let writes: Vec<Write> = chunk
                .iter()
                .map(|number| Write {
                    keyspace: name.into(),
                    key: ballast(*number),
                    value: Some(value(*number as u64 | 1 << 60)),
                })
                .collect();
            database.write(&writes, Promise::Buffered).expect("a good disk");
        }
    }
    database
}

/// Threads contend for keys; each key's history must be linearizable.
///
/// # Panics
/// When it is not, or when an operation fails.
pub fn linearizable(
    product: &dyn Product,
    disk: Arc<dyn Disk>,
    config: &Config,
    load: &Load,
    seed: u64,
) {
    let database = open(product, disk, config, load);
    let clock = AtomicU64::new(1);
    let ids = AtomicU64::new(1);
    let histories: Vec<Mutex<Vec<Event>>> =
        (0..load.keys * 2).map(|_| Mutex::new(Vec::new())).collect();
    let stop = AtomicBool::new(false);
    let client = |thread: usize| {
        let mut random = Random::new(seed, 100 + thread as u64);
        for _ in 0..load.operations {
            let number = random.below(load.keys * 2);
            let place = (KEYSPACES[number % 2], key(number / 2));
            let start = clock.fetch_add(1, SeqCst);
            let action = act(&*database, &mut random, &ids, place);
            let end = clock.fetch_add(1, SeqCst);
            histories[number].lock().push(Event { start, end, action });
            // Reads of the ballast push the contended records out of memory.
            let other = random.below(load.ballast.max(1));
            let found = database.get(KEYSPACES[other % 2], &ballast(other)).expect("a good disk");
            if load.ballast > 0 {
                assert_eq!(id(found.as_deref()), Some(other as u64 | 1 << 60));
            }
        }
    };
    let disturb = || {
        let mut random = Random::new(seed, 99);
        while !stop.load(SeqCst) {
            match random.below(4) {
                0 => database.checkpoint(),
                1 => database.flush(),
                2 => database.set_memory((2 + random.below(3) as u64) << 20),
                _ => database.verify(),
            }
            .expect("a good disk");
        }
    };
    std::thread::scope(|scope| {
        let disturb = scope.spawn(disturb);
        let client = &client;
        let clients: Vec<_> =
            (0..load.threads).map(|thread| scope.spawn(move || client(thread))).collect();
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        stop.store(true, SeqCst);
        let disturbed = disturb.join();
        ended.into_iter().chain([disturbed]).for_each(|end| end.expect("no thread panics"));
    });
    for (number, history) in histories.iter().enumerate() {
        let history = history.lock();
        if let Err(around) = explain(&history, None) {
            panic!("no order explains key {number}; around the furthest point: {around:#?}");
        }
    }
    database.verify().expect("a good disk");
    database.close().expect("a good disk");
}

fn act(
    database: &dyn Database,
    random: &mut Random,
    ids: &AtomicU64,
    (keyspace, key): (&str, Vec<u8>),
) -> Action {
    let promise = if random.one_in(8) { Promise::Sync } else { Promise::Buffered };
    let fresh = || Some(ids.fetch_add(1, SeqCst));
    match random.below(10) {
        0..4 => Action::Read(id(database.get(keyspace, &key).expect("a good disk").as_deref())),
        4 => {
            let found = database.multi_get(keyspace, &[&key]).expect("a good disk");
            Action::Read(id(found[0].as_deref()))
        }
        5..8 => {
            let new = if random.one_in(4) { None } else { fresh() };
            let keyspace = keyspace.to_owned();
            let write = Write { keyspace, key, value: new.map(value) };
            database.write(&[write], promise).expect("a good disk");
            Action::Write(new)
        }
        8 => {
            let current = database.get(keyspace, &key).expect("a good disk");
            let new = fresh();
            let bytes = new.map(value);
            let swapped = database
                .compare_and_swap(keyspace, &key, current.as_deref(), bytes.as_deref())
                .expect("a good disk");
            match swapped {
                Ok(()) => Action::Swap(id(current.as_deref()), new),
                Err(told) => Action::NoSwap(id(current.as_deref()), id(told.as_deref())),
            }
        }
        _ => {
            let new = fresh();
            let mut before = None;
            let mut change = |current: Option<&[u8]>| {
                before = id(current);
                new.map(value)
            };
            database.update(keyspace, &key, &mut change).expect("a good disk");
            Action::Swap(before, new)
        }
    }
}

/// Stops the readers when the writer ends, by a panic too.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// One writer puts rising numbers into groups of keys, a batch at a time; once a reader has seen a
/// number in a group, no later point read of that group may show a smaller one (rule P3).
///
/// # Panics
/// When a reader sees half a batch, or when an operation fails.
pub fn whole_batches(
    product: &dyn Product,
    disk: Arc<dyn Disk>,
    config: &Config,
    load: &Load,
    seed: u64,
) {
    const GROUP: usize = 6;
    let database = open(product, disk, config, load);
    let stop = AtomicBool::new(false);
    let place = |group: usize, member: usize| {
        (KEYSPACES[member % 2], format!("group-{group}-{}", member * 7919 % 101).into_bytes())
    };
    let write = || {
        let _stop = StopAtEnd(&stop);
        let mut random = Random::new(seed, 7);
        for round in 1..=load.operations as u64 {
            for group in 0..load.keys {
                let mut writes: Vec<Write> = (0..GROUP)
                    .map(|member| {
                        let (keyspace, key) = place(group, member);
                        Write { keyspace: keyspace.into(), key, value: Some(value(round)) }
                    })
                    .collect();
                let first = random.below(GROUP);
                writes.rotate_left(first);
                database.write(&writes, Promise::Buffered).expect("a good disk");
            }
        }
    };
    let read = |thread: usize| {
        let mut random = Random::new(seed, 200 + thread as u64);
        let mut newest = vec![0; load.keys];
        while !stop.load(SeqCst) {
            let group = random.below(load.keys);
            let (keyspace, key) = place(group, random.below(GROUP));
            let found = database.get(keyspace, &key).expect("a good disk");
            let seen = id(found.as_deref()).unwrap_or(0);
            assert!(
                seen >= newest[group],
                "after {} of group {group} a reader saw {seen}: half a batch",
                newest[group]
            );
            newest[group] = seen;
        }
    };
    std::thread::scope(|scope| {
        let read = &read;
        for thread in 1..load.threads {
            scope.spawn(move || read(thread));
        }
        scope.spawn(write);
    });
    database.close().expect("a good disk");
}
