//! The same over keyspaces with versions: what transactions read there is certified.

use std::path::Path;

use shuttle::thread::{JoinHandle, spawn};
use spinney_base::Runtime;
use spinney_base::schedules::check;
use spinney_db::{Db, EngineKind, ErrorKind, Keyspace, Result, Transaction};
use spinney_io::sim::SimDisk;

use super::options;

/// Records of which some fill a leaf.
const LONG: [u8; 2000] = [7; 2000];

/// A database with a keyspace of `iot`, whose one leaf is so full that one more long record splits it, and one of
/// another engine.
fn fresh() -> (Db, Keyspace, Keyspace) {
    let disk = SimDisk::new(1);
    let db = Db::open(Path::new("/db"), options(&disk, Runtime::stepped(1), 4 << 20)).unwrap();
    let versioned = db.keyspace("v", EngineKind::Iot).unwrap();
    let other = db.keyspace("o", EngineKind::TreeLine).unwrap();
    for key in ["g", "h", "i", "r", "s", "t", "u"] {
        versioned.insert(key, LONG).unwrap();
    }
    (db, versioned, other)
}

/// Runs a transaction in a thread. Answers whether it committed; a conflict is no failure.
fn run(
    db: &Db,
    body: impl FnOnce(&mut Transaction) -> Result<bool> + Send + 'static,
) -> JoinHandle<bool> {
    let db = db.clone();
    spawn(move || {
        let mut transaction = db.begin().unwrap();
        let done = body(&mut transaction);
        let done = done.and_then(|goes_on| transaction.commit().map(|()| goes_on));
        done.unwrap_or_else(|error| {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            false
        })
    })
}

/// Splits the leaf, or joins it again, beside what else runs.
fn stir(keyspace: &Keyspace) -> JoinHandle<()> {
    let keyspace = keyspace.clone();
    spawn(move || {
        keyspace.insert("j", LONG).unwrap();
        keyspace.insert("q", LONG).unwrap();
        for key in ["g", "h", "i", "j", "q", "r"] {
            keyspace.remove(key).unwrap();
        }
    })
}

/// Of two transactions that read what the other writes, one commits at most: by keys or by ranges, beside splits and
/// joins, over one keyspace with versions, or with another engine beside it.
fn write_skew_has_a_loser(by_ranges: bool, is_mixed: bool, is_stirred: bool) {
    check(1500, move || {
        let (db, versioned, other) = fresh();
        let other = if is_mixed { other } else { versioned.clone() };
        let write = |mine: Keyspace, key: &'static str, theirs: Keyspace, read: &'static str| {
            run(&db, move |transaction| {
                let is_there = if by_ranges {
                    let end = format!("{read}~");
                    transaction.keys(&theirs, read..&end).next().transpose()?.is_some()
                } else {
                    transaction.contains_key(&theirs, read)?
                };
                if !is_there {
                    transaction.insert(&mine, key, "taken")?;
                }
                Ok(!is_there)
            })
        };
        let stirring = is_stirred.then(|| stir(&versioned));
        let one = write(versioned.clone(), "k", other.clone(), "p");
        let two = write(other, "p", versioned, "k");
        assert!(!(one.join().unwrap() && two.join().unwrap()), "both found nothing");
        stirring.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn t10_write_skew_has_a_loser() {
    write_skew_has_a_loser(false, false, false);
    write_skew_has_a_loser(false, true, false);
}

#[test]
fn t10_write_skew_by_ranges_has_a_loser() {
    write_skew_has_a_loser(true, false, false);
    write_skew_has_a_loser(true, true, false);
    write_skew_has_a_loser(true, false, true);
}

/// A transaction that must come before a plain write, because it has not seen that, does not write what a reader of the
/// plain write has not seen.
fn readers_are_followed(by_ranges: bool, is_stirred: bool) {
    check(2500, move || {
        let (db, versioned, _) = fresh();
        let keyspace = versioned.clone();
        let writer = run(&db, move |transaction| {
            let is_old = !transaction.contains_key(&keyspace, "x")?;
            transaction.insert(&keyspace, "k", "1")?;
            Ok(is_old)
        });
        let keyspace = versioned.clone();
        let plain = spawn(move || keyspace.insert("x", "1").unwrap());
        let keyspace = versioned.clone();
        let reader = run(&db, move |transaction| {
            let has_plain = transaction.contains_key(&keyspace, "x")?;
            let has_written = if by_ranges {
                transaction.keys(&keyspace, "j~".."o").next().transpose()?.is_some()
            } else {
                transaction.contains_key(&keyspace, "k")?
            };
            Ok(has_plain && !has_written)
        });
        let stirring = is_stirred.then(|| stir(&versioned));
        let (came_before, saw_one) = (writer.join().unwrap(), reader.join().unwrap());
        assert!(!(came_before && saw_one), "writer, plain write, reader, writer");
        plain.join().unwrap();
        stirring.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn t12_readers_of_keys_are_followed() {
    readers_are_followed(false, false);
}

#[test]
fn t12_readers_of_ranges_are_followed() {
    readers_are_followed(true, false);
    readers_are_followed(true, true);
}
