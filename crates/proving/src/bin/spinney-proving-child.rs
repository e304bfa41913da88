//! The process that the kill test kills: four threads write batches, with `Sync` where the seed is even
//! and else with `Buffered`, and report every acknowledgement on standard output.
//!
//! Arguments: directory, first number, seed. A thread writes the same number under the same key
//! into a keyspace of each engine at once, or removes the key from all, then prints
//! `thread slot number`. Every second number is a transaction, which reads a slot of another thread first; the
//! others are batches. Now and then it changes the checkpoint distance, or keeps a snapshot of the
//! database through a few batches. It never ends by itself.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use spinney::{
    Batch, Db, Durability, Error, Keyspace, KeyspaceOptions, Snapshot, TransactionOptions,
};
use spinney_proving::kill::{self, CHANGED, KEYSPACES, LOOKED, SLOTS, THREADS};
use spinney_proving::tier::Random;

/// What a thread knows of its slots: the numbers of the batches that were acknowledged in this life.
type Known = BTreeMap<usize, u64>;

/// A snapshot, and what its taker knew when it was taken.
struct Kept {
    /// Of each keyspace, at one moment.
    parts: Vec<Snapshot>,
    then: Known,
    /// The number of the last batch that it is kept through.
    until: u64,
}

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
    let keyspaces = KEYSPACES.map(|kind| {
        let options = KeyspaceOptions::default().engine(kind);
        db.keyspace(kind.name(), options).expect("it opens")
    });
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, keyspaces) = (&db, &keyspaces);
            scope.spawn(move || {
                let mut random = Random::new(seed, 300 + thread as u64);
                let (mut known, mut kept) = (Known::new(), None);
                for number in first.. {
                    let slot = random.below(SLOTS);
                    if number.is_multiple_of(2) {
                        let other = (random.below(THREADS), random.below(SLOTS));
                        let options = TransactionOptions::default().durability(durability);
                        transact((db, keyspaces), options, (thread, slot, number), other);
                    } else {
                        let batch = batch(keyspaces, thread, slot, number);
                        db.write_with(batch, durability).expect("a good disk");
                    }
                    say(&format!("{thread} {slot} {number}"));
                    known.insert(slot, number);
                    disturb(keyspaces, &mut random);
                    look((db, keyspaces), thread, number, (&known, &mut kept), &mut random);
                }
            });
        }
    });
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).is_err() {
        // Whoever listened is gone.
        std::process::exit(0);
    }
}

fn batch(keyspaces: &[Keyspace], thread: usize, slot: usize, number: u64) -> Batch {
    let mut batch = Batch::new();
    for keyspace in keyspaces {
        let key = kill::key(thread, slot);
        match kill::removes(number) {
            true => batch.remove(keyspace, key),
            false => batch.insert(keyspace, key, kill::value(number)),
        };
    }
    batch
}

/// Writes a number in a transaction that reads a slot of any thread: every keyspace holds the same there.
fn transact(
    (db, keyspaces): (&Db, &[Keyspace]),
    options: TransactionOptions,
    (thread, slot, number): (usize, usize, u64),
    (other_thread, other_slot): (usize, usize),
) {
    let other = kill::key(other_thread, other_slot);
    let body = |transaction: &mut spinney::Transaction| {
        let found = keyspaces.iter().map(|keyspace| transaction.get(keyspace, &other));
        let found = found.collect::<Result<Vec<_>, Error>>()?;
        let is_whole = found.iter().all(|one| one.as_deref() == found[0].as_deref());
        assert!(is_whole, "slot {other_slot} of thread {other_thread} is torn");
        for keyspace in keyspaces {
            let key = kill::key(thread, slot);
            match kill::removes(number) {
                true => transaction.remove(keyspace, key)?,
                false => transaction.insert(keyspace, key, kill::value(number))?,
            }
        }
        Ok::<_, Error>(())
    };
    db.transact_with(options, body).expect("a good disk");
}

/// Changes the checkpoint distance where there is one, sometimes.
fn disturb(keyspaces: &[Keyspace], random: &mut Random) {
    if random.one_in(16) {
        let batches = *random.pick(&[1, 1, 2, 5, 1000]);
        for turtle in keyspaces.iter().filter_map(|keyspace| keyspace.turtle().ok()) {
            turtle.set_checkpoint_distance(batches).expect("a good disk");
        }
        say(CHANGED);
    }
}

/// Takes a snapshot of the database if none is kept, and looks at the one that was kept long enough.
fn look(
    (db, keyspaces): (&Db, &[Keyspace]),
    thread: usize,
    number: u64,
    (known, kept): (&Known, &mut Option<Kept>),
    random: &mut Random,
) {
    if kept.is_none() && random.one_in(4) {
        let snapshot = db.snapshot().expect("it is open");
        let part = |keyspace: &Keyspace| snapshot.keyspace(keyspace).expect("it has snapshots");
        let until = number + random.below(12) as u64;
        let parts = keyspaces.iter().map(part).collect();
        *kept = Some(Kept { parts, then: known.clone(), until });
    }
    let Some(Kept { parts, then, .. }) = kept.take_if(|kept| kept.until <= number) else {
        return;
    };
    parts.iter().for_each(|snapshot| check(snapshot, thread, &then));
    say(LOOKED);
}

/// Checks what a thread knew when a snapshot was taken.
fn check(snapshot: &Snapshot, thread: usize, then: &Known) {
    let holds = |number: u64| (!kill::removes(number)).then(|| kill::value(number));
    for (slot, number) in then.iter().rev().take(20) {
        let found = snapshot.get(kill::key(thread, *slot)).expect("a good disk");
        assert!(found.as_deref() == holds(*number).as_deref(), "slot {slot} of a snapshot");
    }
    // Of an earlier life there may be others.
    let records = snapshot.prefix(format!("thread-{thread}/").as_bytes());
    let records: BTreeMap<_, _> = records.map(|record| record.expect("a good disk")).collect();
    for (slot, number) in then {
        let found = records.get(&kill::key(thread, *slot));
        assert!(found.map(|value| &**value) == holds(*number).as_deref(), "slot {slot} in a range");
    }
}
