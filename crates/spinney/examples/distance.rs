//! How long it takes to go back to a checkpoint distance of 1: a `turtle` keyspace is loaded until some part of
//! its memory is pending, then the distance is lowered, and the clock says when nothing is pending any more.
//!
//!     cargo run --release -p spinney --example distance -- DIRECTORY [RECORD_BYTES [MEMORY_MIB]]
//!
//! DIRECTORY must not exist; it is removed at the end.

use std::path::Path;
use std::time::Duration;

use spinney::{Db, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_base::Runtime;

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

fn pending(keyspace: &Keyspace) -> u64 {
    keyspace.stats().turtle.map_or(0, |turtle| turtle.pending_bytes)
}

/// Loads records until this many bytes are pending; answers the next one.
fn load(keyspace: &Keyspace, from: u64, value: &[u8], bytes: u64) -> spinney::Result<u64> {
    let mut number = from;
    while !number.is_multiple_of(1000) || pending(keyspace) < bytes {
        keyspace.insert(key(number), value)?;
        number += 1;
    }
    Ok(number)
}

fn measure(directory: &str, record_bytes: usize, memory: u64) -> spinney::Result<()> {
    let runtime = Runtime::threads();
    let db = Db::open(Path::new(directory), Options::default().memory(memory))?;
    let options = KeyspaceOptions::default().engine(EngineKind::Turtle).logged(false);
    let keyspace = db.keyspace("k", options)?;
    let value = vec![7; record_bytes - 8];
    // A tree to be pending for.
    let mut next = 0;
    while next < 3 * memory / record_bytes as u64 {
        keyspace.insert(key(next), &value)?;
        next += 1;
    }
    println!("pending MiB  distance  until nothing is, ms  us for each KiB");
    for parts in [1, 2, 4, 8, 12, 16] {
        keyspace.turtle()?.set_checkpoint_distance(1)?;
        db.checkpoint()?;
        let most = keyspace.turtle()?.set_checkpoint_distance(u64::MAX)?;
        next = load(&keyspace, next, &value, memory / 32 * parts)?;
        let bytes = pending(&keyspace);
        let start = runtime.now();
        keyspace.turtle()?.set_checkpoint_distance(1)?;
        while pending(&keyspace) > 0 {
            runtime.sleep(Duration::from_micros(200));
        }
        let micros = runtime.now().saturating_sub(start).as_micros();
        let (mib, kib) = (bytes >> 20, u128::from(bytes >> 10).max(1));
        println!("{mib:11}  {most:8}  {:20}  {:14.2}", micros / 1000, micros as f64 / kib as f64);
    }
    drop(keyspace);
    db.close()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| match arguments.get(index) {
        Some(text) => text.parse().ok(),
        None => Some(default),
    };
    let parsed = arguments.first().zip(number(1, 128)).zip(number(2, 340));
    let Some(((directory, record_bytes), memory)) = parsed else {
        eprintln!("usage: distance DIRECTORY [RECORD_BYTES [MEMORY_MIB]]");
        std::process::exit(2);
    };
    if Path::new(directory).exists() {
        eprintln!("{directory} exists");
        std::process::exit(2);
    }
    let record_bytes = usize::try_from(record_bytes).unwrap_or(usize::MAX).clamp(9, 3000);
    let result = measure(directory, record_bytes, memory.clamp(1, 1 << 20) << 20);
    let removed = std::fs::remove_dir_all(directory);
    if let Err(error) = result {
        eprintln!("{error}");
        std::process::exit(1);
    }
    if let Err(error) = removed {
        eprintln!("{directory}: {error}");
        std::process::exit(1);
    }
}
