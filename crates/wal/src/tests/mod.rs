//! Tests of the whole log over the simulated disk, by rule number where a rule is what they show.

use std::path::Path;
use std::sync::Arc;

use spinney_base::{KeyspaceId, Lsn, Result};
use spinney_io::Disk;
use spinney_io::sim::{Fault, SimDisk};

use crate::{Durability, Log, LogOptions, RecordKind, Recovered, ReserveFor};

mod basics;
mod crash;
mod damage;
mod during;
mod memory;
mod rules;
mod tail;
mod threads;

/// Where the tests keep their log.
fn path() -> &'static Path {
    Path::new("/db/wal")
}

/// Segments of four blocks, so that nearly everything spans some.
fn tiny() -> LogOptions {
    LogOptions { tag: 7, bytes_max: 24 * 4 * 4096, segment_bytes: 4 * 4096, tail_bytes: 0 }
}

fn disk(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    disk.create_dir(Path::new("/db")).unwrap();
    disk
}

fn create(disk: &SimDisk) -> Arc<Log> {
    Log::create(&*disk.at("/db"), "wal", &tiny()).unwrap()
}

fn open(disk: &SimDisk) -> (Arc<Log>, Recovered) {
    Log::open(&*disk.at("/db"), "wal", &tiny()).unwrap()
}

/// From now on commits that wait for the kernel only write runs: there is no room for a tail.
fn refuse_tail(disk: &SimDisk, log: &Log) {
    drop(log.reserve(1, ReserveFor::User).unwrap());
    disk.inject(Fault::NoSpace { at: disk.room_requests() + 1 });
    let lsn = put(log, &payload(0, 8), Durability::Buffered).unwrap();
    assert!(!log.buffers.has_tail());
    log.ensure_durable(lsn).unwrap();
}

/// Appends one record without committing it.
fn append(log: &Log, kind: RecordKind, payload: &[u8]) -> Result<Lsn> {
    let mut room = log.reserve(payload.len(), ReserveFor::User)?.expect("the log has room");
    Ok(log.append(&mut room, kind, payload))
}

/// Appends a user record and waits for it.
fn put(log: &Log, payload: &[u8], durability: Durability) -> Result<Lsn> {
    let lsn = append(log, RecordKind::User, payload)?;
    log.commit(lsn, durability)?;
    Ok(lsn)
}

/// All records of a recovery, owned.
fn records(recovered: &Recovered) -> Vec<(Lsn, RecordKind, Vec<u8>)> {
    let mut all = Vec::new();
    recovered
        .replay(Lsn::ZERO, |record| {
            all.push((record.lsn, record.kind, record.payload.to_vec()));
            Ok(())
        })
        .unwrap();
    all
}

/// A payload that tells its number and is `bytes` long.
fn payload(number: u64, bytes: usize) -> Vec<u8> {
    let mut payload = number.to_le_bytes().repeat(bytes / 8 + 1);
    payload.truncate(bytes);
    payload
}

/// The kind of the `number`th record: every third is a structure record.
fn kind(number: u64) -> RecordKind {
    match number % 3 {
        0 => RecordKind::Structure(KeyspaceId(u32::try_from(number % 1000).unwrap() + 1)),
        _ => RecordKind::User,
    }
}
