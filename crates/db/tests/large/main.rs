//! Large values (rule P17), on the simulated disk: what a crash finds at every step, what becomes of
//! their extents, what readers see, and what happens when the disk is full or damaged.
#![cfg(not(feature = "shuttle"))]

mod crash;
mod room;
mod values;

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use spinney_base::limits::VALUE_BYTES_MAX;
use spinney_base::runtime::SplitMix;
use spinney_base::{ErrorKind, Runtime};
use spinney_db::{Batch, Db, Durability, Keyspace, KeyspaceOptions, Options};
use spinney_io::sim::{CrashMode, Fault, SimDisk};
use spinney_io::{AlignedBuf, OpenMode, Purpose};

const FILE: &str = "/db/keyspace-00000001.spn";

fn options(disk: &SimDisk) -> Options {
    Options::default()
        .memory(1 << 20)
        .log_bytes_max(2 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(1))
}

fn open(disk: &SimDisk) -> Db {
    Db::open(Path::new("/db"), options(disk)).unwrap()
}

fn keyspace(db: &Db) -> Keyspace {
    db.keyspace("main", KeyspaceOptions::default()).unwrap()
}

/// A value of `length` bytes that no other seed has.
fn value(seed: u64, length: usize) -> Vec<u8> {
    let mut random = SplitMix(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:04}").into_bytes()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn check(keyspace: &Keyspace, model: &Model) {
    let found: Model = keyspace
        .iter()
        .map(|record| record.unwrap())
        .map(|(key, value)| (key, value.into()))
        .collect();
    assert_eq!(found.keys().collect::<Vec<_>>(), model.keys().collect::<Vec<_>>());
    assert!(found == *model, "values differ");
    for (key, value) in model {
        assert!(keyspace.get(key).unwrap().unwrap() == **value, "{}", key.escape_ascii());
    }
}
