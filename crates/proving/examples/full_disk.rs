//! Fills a disk, is killed, and begins again on the full disk: the program of `crates/proving/full-disks`,
//! which says on which file systems.
//!
//! ```text
//!   full_disk fill  DIRECTORY ENGINE DURABILITY SEED FILLS PROMISES
//!   full_disk check DIRECTORY ENGINE DURABILITY SEED FILLS PROMISES
//! ```
//!
//! `fill` inserts until the disk is full and removes half of what is there, FILLS times, writes what was
//! promised to the file PROMISES (on another disk) and kills itself. `check` opens what is left, reads
//! every record, removes them all, takes a checkpoint, and drops the keyspace. Anything but `Full` from
//! a full disk ends either with 1.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use spinney::{
    Batch, Db, Durability, EngineKind, Error, ErrorKind, Keyspace, KeyspaceOptions, Options,
};
use spinney_base::runtime::SplitMix;

type Outcome<T> = Result<T, String>;

/// Writes in a row that a full disk refuses before it counts as full.
const REFUSALS: usize = 8;

/// Keys there may be: with all of them the records are 300 MB, more than any of the disks. Of fewer, an
/// engine could overwrite one after another for ever, on a disk that never is full of records.
const KEYS: u64 = 400_000;

struct Run {
    directory: String,
    engine: EngineKind,
    durability: Durability,
    seed: u64,
    fills: u64,
    promises: String,
}

/// What a key holds: the number of the write that made it.
type Promises = BTreeMap<u64, u64>;

fn value(key: u64, write: u64) -> Vec<u8> {
    let length = 20 + (key.wrapping_mul(31) ^ write).wrapping_mul(0x9E37_79B9) % 1500;
    let mut value = write.to_be_bytes().to_vec();
    value.resize(8 + usize::try_from(length).expect("it is short"), (key ^ write) as u8);
    value
}

fn options() -> Options {
    Options::default().memory(8 << 20).log_bytes_max(16 << 20)
}

/// `Ok(true)` for an answer of a full disk.
fn is_full(result: Result<(), Error>, what: &str) -> Outcome<bool> {
    match result {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == ErrorKind::Full => Ok(true),
        Err(error) => Err(format!("{what}: {} ({})", error, error.kind().name())),
    }
}

impl Run {
    /// Operations of a batch: where each waits for the disk they go together.
    fn batch(&self) -> usize {
        if self.durability == Durability::Sync { 32 } else { 1 }
    }

    fn open(&self) -> Outcome<(Db, Keyspace)> {
        let db = Db::open(&self.directory, options()).map_err(|error| format!("open: {error}"))?;
        let kept = KeyspaceOptions::default().engine(self.engine);
        let keyspace =
            if db.is_read_only() { db.existing_keyspace("k") } else { db.keyspace("k", kept) };
        Ok((db, keyspace.map_err(|error| format!("keyspace: {error}"))?))
    }

    fn fill(&self) -> Outcome<()> {
        let (db, keyspace) = self.open()?;
        let mut random = SplitMix(self.seed);
        let mut promises = Promises::new();
        let mut write = 0;
        let mut refused_removals: Vec<Error> = Vec::new();
        for fill in 0..self.fills {
            let mut refusals = 0;
            while refusals < REFUSALS {
                let mut batch = Batch::new();
                let mut written = Promises::new();
                for _ in 0..self.batch() {
                    write += 1;
                    let key = random.next_u64() % KEYS;
                    batch.insert(&keyspace, key.to_be_bytes(), value(key, write));
                    written.insert(key, write);
                }
                if is_full(db.write_with(batch, self.durability), "insert")? {
                    refusals += 1;
                } else {
                    refusals = 0;
                    promises.extend(written);
                }
            }
            println!("fill {fill} after {write} writes: {} records", promises.len());
            let keys: Vec<u64> = promises.keys().copied().step_by(2).collect();
            for keys in keys.chunks(self.batch()) {
                let mut batch = Batch::new();
                keys.iter().for_each(|key| {
                    batch.remove(&keyspace, key.to_be_bytes());
                });
                match db.write_with(batch, self.durability) {
                    Ok(()) => keys.iter().for_each(|key| _ = promises.remove(key)),
                    Err(error) if error.kind() == ErrorKind::Full => {
                        if refused_removals.is_empty() {
                            self.explain(&db);
                        }
                        refused_removals.push(error);
                    }
                    Err(error) => return Err(format!("remove: {error} ({})", error.kind().name())),
                }
            }
            is_full(db.checkpoint(), "checkpoint")?;
        }
        let mut text = String::new();
        for (key, write) in &promises {
            let _ = writeln!(text, "{key} {write}");
        }
        std::fs::write(&self.promises, text).map_err(|error| error.to_string())?;
        println!("{write} writes, {} records left", promises.len());
        if let Some(first) = refused_removals.first() {
            let times = refused_removals.len();
            return Err(format!("removals were refused {times} times, first: {first}"));
        }
        // Killed: nothing is closed.
        kill_myself()
    }

    /// Prints what there is besides the records when a removal is refused.
    fn explain(&self, db: &Db) {
        let stats = db.stats();
        println!(
            "a removal is refused: log {} of {} bytes in {} segments, reserve {} bytes",
            stats.log.bytes_used, stats.log.bytes_max, stats.log.segments, stats.reserved_bytes,
        );
        for arguments in [["ls", "-ls"], ["df", "-k"]] {
            let [program, option] = arguments;
            let printed =
                std::process::Command::new(program).args([option, &self.directory]).output();
            print!(
                "{}",
                String::from_utf8_lossy(&printed.map(|all| all.stdout).unwrap_or_default())
            );
        }
    }

    fn check(&self) -> Outcome<()> {
        let text = std::fs::read_to_string(&self.promises).map_err(|error| error.to_string())?;
        let mut promises = Promises::new();
        for line in text.lines() {
            let (key, write) = line.split_once(' ').ok_or("a line of two numbers")?;
            promises.insert(
                key.parse().map_err(|_| "a key")?,
                write.parse().map_err(|_| "the number of a write")?,
            );
        }
        let (db, keyspace) = self.open()?;
        for (key, write) in &promises {
            let found = keyspace.get(key.to_be_bytes()).map_err(|error| error.to_string())?;
            if found.as_deref() != Some(&value(*key, *write)) {
                return Err(format!("key {key} does not hold what write {write} put there"));
            }
        }
        let records = keyspace.iter().count();
        if records != promises.len() {
            return Err(format!("{records} records, and {} were promised", promises.len()));
        }
        if db.is_read_only() {
            return Err(format!("open for reading only: {:?}", db.stats().read_only));
        }
        let keys: Vec<u64> = promises.keys().copied().collect();
        for keys in keys.chunks(self.batch()) {
            let mut batch = Batch::new();
            keys.iter().for_each(|key| {
                batch.remove(&keyspace, key.to_be_bytes());
            });
            let removed = db.write_with(batch, self.durability);
            removed.map_err(|error| format!("remove after the restart: {error}"))?;
        }
        db.checkpoint().map_err(|error| format!("checkpoint after the restart: {error}"))?;
        if let Some(record) = keyspace.iter().next() {
            return Err(format!("a record came back: {record:?}"));
        }
        db.drop_keyspace("k").map_err(|error| format!("drop: {error}"))?;
        let again = db.keyspace("k", KeyspaceOptions::default().engine(self.engine));
        let again =
            again.map_err(|error| format!("a new keyspace where there is room: {error}"))?;
        let put = again.insert_with(b"there is room", b"again", self.durability);
        put.map_err(|error| format!("a write where there is room: {error}"))?;
        db.drop_keyspace("k").map_err(|error| format!("drop: {error}"))?;
        db.close().map_err(|error| format!("close: {error}"))?;
        println!("{} records were there", promises.len());
        Ok(())
    }
}

/// Ends the process as `kill -9` does.
fn kill_myself() -> Outcome<()> {
    let me = std::process::id().to_string();
    let killed = std::process::Command::new("kill").args(["-9", &me]).status();
    Err(format!("still alive: {killed:?}"))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, directory, engine, durability, seed, fills, promises] = &arguments[..] else {
        eprintln!("full_disk fill|check DIRECTORY ENGINE DURABILITY SEED FILLS PROMISES");
        return ExitCode::from(2);
    };
    let run = Run {
        directory: directory.clone(),
        engine: engine.parse().expect("treeline or turtle"),
        durability: match &**durability {
            "sync" => Durability::Sync,
            _ => Durability::Buffered,
        },
        seed: seed.parse().expect("a number"),
        fills: fills.parse().expect("a number"),
        promises: promises.clone(),
    };
    let outcome = if what == "fill" { run.fill() } else { run.check() };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("full_disk {what}: {message}");
            ExitCode::FAILURE
        }
    }
}
