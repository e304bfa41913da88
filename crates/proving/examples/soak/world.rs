//! One world: a disk, a database, its lives, and what is done to them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use spinney::{
    Batch, Db, Durability, EngineKind, Error, ErrorKind, Keyspace, KeyspaceOptions, Options,
};
use spinney_base::Runtime;
use spinney_base::limits::PAGE_BYTES;
use spinney_io::sim::{CrashMode, Fault, SimDisk};
use spinney_proving::tier::{Random, trace};

use crate::Tally;
use crate::books::{Books, Found, Kept, Loss, Place, Val, everything};

const ROOM: &str = "room cut";
const DESCRIPTOR: &str = "open fails";
const KILL: &str = "kill";
const KILL_INSIDE: &str = "kill inside a call";
const POWER: &str = "power loss";
const POWER_INSIDE: &str = "power loss inside a call";
const IN_RECOVERY: &str = "loss inside a recovery";
const FLIP_PAIR: &str = "flip in a pair";
const FLIP_PAGE: &str = "flip in a page";
const FLIP_LOG: &str = "flip in the log";
const READ: &str = "read fails";
const SHORT: &str = "read ends early";
const WRITE: &str = "write fails";
const SYNC: &str = "sync fails";

/// All kinds of faults.
pub(crate) const KINDS: [&str; 14] = [
    ROOM,
    DESCRIPTOR,
    KILL,
    KILL_INSIDE,
    POWER,
    POWER_INSIDE,
    IN_RECOVERY,
    FLIP_PAIR,
    FLIP_PAGE,
    FLIP_LOG,
    READ,
    SHORT,
    WRITE,
    SYNC,
];

/// What removals leave of the reserve, in bytes.
const LAST_ROOM: u64 = 256 << 10;

const NAMES: [&str; 4] = ["apple", "birch", "cedar", "dogwood"];
const MODES: [CrashMode; 4] =
    [CrashMode::Torn512, CrashMode::Torn512, CrashMode::KeepAll, CrashMode::LoseAll];

/// A flipped bit that was not taken back.
struct Flip {
    path: PathBuf,
    offset: u64,
    bit: u8,
    kind: &'static str,
    /// The page as the flip left it.
    page: Vec<u8>,
}

/// What happened in this life of the database that explains an error.
#[derive(Default)]
struct Life {
    armed: Vec<(&'static str, Fault)>,
    /// Whether a write of values may still find no room though it returned.
    was_cut: bool,
    poisoned: bool,
    cut_is_armed: bool,
}

/// An operation's purpose, as far as errors of it are judged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Read,
    Verify,
    Value,
    Removal,
    Other,
}

pub(crate) struct World<'a> {
    seed: u64,
    tally: &'a mut Tally,
    random: Random,
    disk: SimDisk,
    runtime: Runtime,
    path: PathBuf,
    db: Option<Db>,
    handles: BTreeMap<String, Keyspace>,
    books: Books,
    life: Life,
    flips: Vec<Flip>,
    /// Whether a flip could not be taken back.
    tainted: bool,
    cut: bool,
    /// Whether that left nothing of what the database keeps for removals.
    starved: bool,
    keys: usize,
    memory: u64,
    log: u64,
    number: u64,
    directories: u64,
    lives: u64,
    copies_on_write: bool,
    /// The world cannot go on.
    over: bool,
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        self.handles.clear();
        if std::thread::panicking() {
            // What it does as it goes is no matter of this failure.
            std::mem::forget(self.db.take());
        }
    }
}

/// A value that tells which write made it, if it is long enough.
fn value(number: u64, length: usize) -> Arc<[u8]> {
    let mut bytes = number.to_le_bytes().to_vec();
    let filler = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    while bytes.len() < length {
        bytes.extend_from_slice(&filler[..(length - bytes.len()).min(8)]);
    }
    bytes.truncate(length);
    bytes.into()
}

fn key(number: usize) -> Vec<u8> {
    let mut key = (number as u32).wrapping_mul(0x9E37_79B1).to_be_bytes().to_vec();
    key.resize(4 + number % 30, number as u8);
    key
}

impl<'a> World<'a> {
    pub(crate) fn new(seed: u64, tally: &'a mut Tally) -> Self {
        let mut random = Random::new(seed, 70);
        let disk = SimDisk::new(seed);
        let medium = random.below(6);
        match medium {
            0 => disk.copy_on_write(),
            1 => disk.refuse_mappings(),
            2 => disk.refuse_holes(),
            _ => {}
        }
        let media = ["copies on write", "has no mappings", "has no holes", "is plain"];
        trace(|| format!("world {seed}: the disk {}", media[medium.min(3)]));
        World {
            seed,
            tally,
            disk,
            runtime: Runtime::stepped(seed),
            path: "/db".into(),
            db: None,
            handles: BTreeMap::new(),
            books: Books::default(),
            life: Life::default(),
            flips: Vec::new(),
            tainted: false,
            cut: false,
            starved: false,
            keys: *random.pick(&[30, 300, 1500]),
            memory: *random.pick(&[1 << 20, 2 << 20, 4 << 20]),
            log: *random.pick(&[1 << 20, 2 << 20, 8 << 20]),
            number: 0,
            directories: 0,
            lives: 0,
            copies_on_write: medium == 0,
            over: false,
            random,
        }
    }

    fn options(&self) -> Options {
        Options::default()
            .memory(self.memory)
            .log_bytes_max(self.log)
            .park_after(Duration::from_millis([20, 200, 5000][(self.seed % 3) as usize]))
            .replay_bytes_max(64 << 20)
            .disk(Arc::new(self.disk.clone()))
            .runtime(self.runtime.clone())
    }

    /// Lives all lives. Answers a line about them.
    pub(crate) fn run(mut self) -> String {
        trace(|| {
            format!(
                "world {}: memory {}, log {}, {} keys",
                self.seed, self.memory, self.log, self.keys
            )
        });
        self.db =
            Some(Db::open(&self.path, self.options()).expect("a new database on a good disk"));
        for _ in 0..self.random.within(1..4) {
            self.make_keyspace();
        }
        let operations = self.random.within(100..500);
        for _ in 0..operations {
            if self.over {
                return self.told("over");
            }
            self.faults();
            self.operation();
            let must = self.disk.power_is_off();
            let wants = self.life.poisoned && self.random.one_in(5);
            if must || wants || self.random.one_in(60) {
                self.next_life();
            }
        }
        if !self.over {
            self.end();
        }
        self.told(if self.over { "over" } else { "to its end" })
    }

    fn told(&mut self, how: &str) -> String {
        self.tally.count("lives");
        format!("{} writes, {} lives, {how}", self.number, self.lives + 1)
    }

    fn db(&self) -> Db {
        self.db.clone().expect("it is open")
    }

    fn handle(&mut self, name: &str) -> spinney::Result<Keyspace> {
        if let Some(keyspace) = self.handles.get(name) {
            return Ok(keyspace.clone());
        }
        let keyspace = self.db().existing_keyspace(name)?;
        self.handles.insert(name.to_owned(), keyspace.clone());
        Ok(keyspace)
    }

    // ---- faults ----

    fn struck(&self, kinds: &[&str]) -> bool {
        let disk = &self.disk;
        self.life.armed.iter().any(|(kind, fault)| {
            let (counter, at) = match fault {
                Fault::ReadError { at } | Fault::ShortRead { at } => (disk.reads(), at),
                Fault::WriteError { at } => (disk.writes(), at),
                Fault::SyncError { at } => (disk.syncs(), at),
                Fault::NoDescriptor { at } => (disk.opens(), at),
                _ => return false,
            };
            kinds.contains(kind) && counter >= *at
        })
    }

    fn arm(&mut self, soon: usize) {
        let later = 1 + self.random.below(soon) as u64;
        let disk = &self.disk;
        let (kind, fault) = match self.random.below(7) {
            0 => (READ, Fault::ReadError { at: disk.reads() + later }),
            1 => (SHORT, Fault::ShortRead { at: disk.reads() + later }),
            2 => (WRITE, Fault::WriteError { at: disk.writes() + later }),
            3 => (SYNC, Fault::SyncError { at: disk.syncs() + later }),
            _ => (DESCRIPTOR, Fault::NoDescriptor { at: disk.opens() + 1 + later % 5 }),
        };
        trace(|| format!("throw {fault:?}"));
        disk.inject(fault.clone());
        self.life.armed.push((kind, fault));
        self.tally.throw(kind);
    }

    fn faults(&mut self) {
        match self.random.below(100) {
            0..=1 if !self.cut => self.cut_room(),
            2..=5 if self.cut => self.give_room(),
            6 => self.arm(60),
            7 if !self.life.cut_is_armed => {
                let step = self.disk.steps() + 1 + self.random.below(40) as u64;
                trace(|| format!("the power goes at step {step}"));
                self.disk.cut_power_at(step);
                self.life.cut_is_armed = true;
            }
            8 if self.random.one_in(3) => self.flip(),
            _ => {}
        }
    }

    fn cut_room(&mut self) {
        let room = self.disk.used() + self.random.below(64 << 10) as u64;
        trace(|| {
            let stats = self.db.as_ref().map(Db::stats);
            let numbers = stats.map(|it| (it.log.bytes_used, it.log.segments, it.reserved_bytes));
            format!("room is cut to {room}, used {}, log and reserve {numbers:?}", self.disk.used())
        });
        self.disk.set_capacity(Some(room));
        (self.cut, self.life.was_cut) = (true, true);
        self.starved = self.db.as_ref().is_none_or(|db| db.stats().reserved_bytes == 0);
        self.tally.throw(ROOM);
    }

    fn give_room(&mut self) {
        trace(|| "room returns".to_owned());
        self.disk.set_capacity(None);
        self.cut = false;
        let Some(db) = &self.db else { return };
        if db.is_read_only() || self.life.poisoned {
            return;
        }
        // A record can be removed at once, and soon one can be written.
        let Some(name) = self.books.usable().first().cloned() else { return };
        let place = (name, key(self.random.below(self.keys)));
        self.write(vec![(place.clone(), None)], Durability::Sync);
        for attempt in 0..4 {
            self.number += 1;
            let value = value(self.number, 100);
            if self.write(vec![(place.clone(), Some(value))], Durability::Sync)
                != Some(ErrorKind::Full)
            {
                break;
            }
            assert!(
                attempt < 3,
                "room returned, and a value of 100 bytes is refused again and again"
            );
            self.step();
        }
        self.life.was_cut = false;
    }

    fn flip(&mut self) {
        let all = self.disk.files().into_iter().filter(|path| path.starts_with(&self.path));
        let files: Vec<PathBuf> = all.collect();
        let path = self.random.pick(&files).clone();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        let length = self.disk.contents(&path).map_or(0, |bytes| bytes.len());
        if length == 0 || (name == "wal-tail" && self.db.is_some()) {
            return;
        }
        let pairs = match &*name {
            "wal" => 2,
            "wal-tail" => 1,
            _ if name.ends_with(".spn") => 4,
            _ => 0,
        } * PAGE_BYTES;
        let in_pair = pairs > 0 && self.random.one_in(2);
        let mut offset = self.random.below(if in_pair { pairs.min(length) } else { length });
        if in_pair && self.random.one_in(2) {
            // The rest of the page is empty.
            offset = offset / PAGE_BYTES * PAGE_BYTES + self.random.below(100);
        }
        let kind = match &*name {
            _ if offset < pairs => FLIP_PAIR,
            "wal" | "wal-tail" => FLIP_LOG,
            _ => FLIP_PAGE,
        };
        // At most one copy of a pair.
        let again = |flip: &Flip| kind == FLIP_PAIR && flip.kind == FLIP_PAIR && flip.path == path;
        if self.flips.iter().any(again) || (kind == FLIP_LOG && !self.random.one_in(4)) {
            return;
        }
        let bit = self.random.below(8) as u8;
        let offset = offset as u64;
        if self.disk.flip_bit(&path, offset, bit).is_err() {
            return;
        }
        trace(|| format!("flip bit {bit} of byte {offset} of {}", path.display()));
        let page = self.page(&path, offset);
        self.flips.push(Flip { path, offset, bit, kind, page });
        self.tally.throw(kind);
    }

    fn page(&self, path: &Path, offset: u64) -> Vec<u8> {
        let bytes = self.disk.contents(path).unwrap_or_default();
        let from = offset as usize / PAGE_BYTES * PAGE_BYTES;
        bytes.get(from..(from + PAGE_BYTES).min(bytes.len())).unwrap_or_default().to_vec()
    }

    /// Takes flips back; only while nobody has the database open. Flips in pages that were written since stay what they
    /// are: what a crash may bring back.
    fn unflip(&mut self) {
        for flip in std::mem::take(&mut self.flips) {
            if self.page(&flip.path, flip.offset) == flip.page {
                trace(|| format!("flip byte {} of {} back", flip.offset, flip.path.display()));
                let _ = self.disk.flip_bit(&flip.path, flip.offset, flip.bit);
            } else if self.disk.files().contains(&flip.path) {
                self.tainted = true;
            }
        }
    }

    fn has_rot(&self) -> bool {
        self.flips.iter().any(|flip| flip.kind == FLIP_LOG)
    }

    // ---- errors ----

    /// Panics when no fault explains the error.
    fn explain(&mut self, what: What, error: &Error, when: &str) -> ErrorKind {
        trace(|| {
            let stats = self.db.as_ref().map(|db| {
                let stats = db.stats();
                format!("log {:?}, reserved {}", stats.log, stats.reserved_bytes)
            });
            format!("  {when}: {error:?}; {stats:?}")
        });
        let kind = error.kind();
        if self.disk.power_is_off() {
            return kind;
        }
        let is_read = matches!(what, What::Read | What::Verify);
        let flipped = !self.flips.is_empty() || self.tainted;
        let told = self.struck(&[READ, SHORT, WRITE, SYNC]);
        let right = match kind {
            ErrorKind::Full => match what {
                What::Removal if self.cut && self.starved => {
                    self.tally.count("removals refused without a reserve");
                    true
                }
                What::Removal => {
                    let db = self.db.as_ref();
                    // Removals leave the last of the reserve, so from a small one they get nothing.
                    let is_small = db.is_some_and(|db| db.stats().reserved_bytes <= LAST_ROOM);
                    if self.cut && is_small {
                        self.tally.count("removals refused by a small reserve");
                    }
                    (self.cut && is_small) || db.is_some_and(Db::is_read_only)
                }
                // A keyspace that was parked needs room when the read opens it.
                What::Read | What::Verify if self.cut && self.starved && self.copies_on_write => {
                    self.tally.count("reads refused without a reserve");
                    true
                }
                _ => (self.cut || self.life.was_cut) && !is_read,
            },
            ErrorKind::Io if error.is_out_of_descriptors() => self.struck(&[DESCRIPTOR]),
            ErrorKind::Io => told,
            ErrorKind::Corruption => flipped || self.struck(&[SHORT]),
            ErrorKind::Poisoned => {
                self.life.poisoned = true;
                (self.struck(&[WRITE, SYNC]) || flipped) && !is_read
            }
            _ => false,
        };
        assert!(right, "no fault explains that {when} answered {error:?}");
        let noticed = match kind {
            ErrorKind::Full => ROOM,
            ErrorKind::Io if error.is_out_of_descriptors() => DESCRIPTOR,
            ErrorKind::Corruption if flipped => {
                self.flips.last().map_or(FLIP_PAGE, |flip| flip.kind)
            }
            ErrorKind::Corruption => SHORT,
            _ => [SYNC, WRITE, READ].into_iter().find(|it| self.struck(&[it])).unwrap_or(SHORT),
        };
        self.tally.notice(noticed);
        if kind == ErrorKind::Corruption && flipped {
            let text = error.to_string();
            let named = ["offset", "needs those after", "already holds those"]
                .iter()
                .any(|it| text.contains(it));
            assert!(named, "no place is named: {text}");
        }
        kind
    }

    // ---- operations ----

    fn make_keyspace(&mut self) {
        let known = |name: &str| {
            self.books.keyspaces.contains_key(name) || self.books.maybe_made.contains_key(name)
        };
        let free: Vec<_> = NAMES.into_iter().filter(|name| !known(name)).collect();
        if free.is_empty() {
            return;
        }
        let name = *self.random.pick(&free);
        let engine = *self.random.pick(&EngineKind::ALL);
        let kept = Kept { engine, logged: !self.random.one_in(5) };
        trace(|| format!("make {name}: {kept:?}"));
        let mut options = KeyspaceOptions::default().engine(engine).logged(kept.logged);
        let own = *self.random.pick(engine.row().proving.options);
        for (name, value) in own {
            options = options.set(name, value).expect("an option");
        }
        match self.db().keyspace(name, options) {
            Ok(keyspace) => {
                self.handles.insert(name.to_owned(), keyspace);
                self.books.made(name, kept, true);
            }
            Err(error) => {
                self.explain(What::Other, &error, "a creation");
                self.books.made(name, kept, false);
            }
        }
    }

    fn drop_keyspace(&mut self) {
        let usable = self.books.usable();
        if usable.len() < 2 {
            return;
        }
        let name = self.random.pick(&usable).clone();
        trace(|| format!("drop {name}"));
        self.handles.remove(&name);
        let result = self.db().drop_keyspace(&name);
        if let Err(error) = &result {
            self.explain(What::Removal, error, "a drop");
        }
        self.books.dropped(&name, result.is_ok());
    }

    fn draw_value(&mut self) -> Val {
        self.number += 1;
        let length = match self.random.below(40) {
            0 => self.random.within(20 << 10..100 << 10),
            1..=5 => self.random.below(20),
            _ => self.random.below(2000),
        };
        Some(value(self.number, length))
    }

    fn draw_write(&mut self, names: &[String]) -> (Place, Val) {
        let place = (self.random.pick(names).clone(), key(self.random.below(self.keys)));
        let value = if self.random.one_in(4) { None } else { self.draw_value() };
        (place, value)
    }

    /// Writes, and books it. Answers what it answered.
    fn write(&mut self, writes: Vec<(Place, Val)>, durability: Durability) -> Option<ErrorKind> {
        trace(|| {
            let mut line = format!("write {durability:?}");
            for ((name, key), value) in &writes {
                let length = value.as_ref().map(|value| value.len());
                let _ = write!(line, " {name} {} {length:?}", key.escape_ascii());
            }
            line
        });
        let removes = writes.iter().all(|(_, value)| value.is_none());
        let result = self.write_to(&writes, durability);
        // Memory that is mapped takes writes without the power, and keeps none.
        let heard = result.is_ok() && !self.disk.power_is_off();
        let acknowledged = heard.then_some(durability == Durability::Sync);
        self.books.wrote(&writes, acknowledged);
        let error = result.err()?;
        let what = if removes { What::Removal } else { What::Value };
        Some(self.explain(what, &error, if removes { "a removal" } else { "a write" }))
    }

    fn write_to(&mut self, writes: &[(Place, Val)], durability: Durability) -> spinney::Result<()> {
        if let [((name, key), value)] = writes {
            let keyspace = self.handle(name)?;
            return match value {
                Some(value) => keyspace.insert_with(key, value, durability),
                None => keyspace.remove_with(key, durability),
            };
        }
        let mut batch = Batch::new();
        for ((name, key), value) in writes {
            let keyspace = self.handle(name)?;
            match value {
                Some(value) => batch.insert(&keyspace, key.clone(), &**value),
                None => batch.remove(&keyspace, key.clone()),
            };
        }
        self.db().write_with(batch, durability)
    }

    fn write_some(&mut self, names: &[String]) {
        let durability = *self.random.pick(&[Durability::Sync, Durability::Buffered]);
        let (calls, batch) = match self.random.below(40) {
            0 => (self.random.within(50..400), 1),
            1..=8 => (1, self.random.within(2..12)),
            _ => (self.random.within(1..6), 1),
        };
        for _ in 0..calls {
            let mut writes: Vec<_> = (0..batch).map(|_| self.draw_write(names)).collect();
            if batch > 1 && self.random.one_in(4) {
                writes.iter_mut().for_each(|(_, value)| *value = None);
            }
            let refused = self.write(writes, durability);
            if self.disk.power_is_off() || (refused.is_some() && self.random.one_in(3)) {
                return;
            }
        }
    }

    fn read(&mut self, name: &str) {
        let place = (name.to_owned(), key(self.random.below(self.keys)));
        let found = self.handle(name).and_then(|keyspace| keyspace.get(&place.1));
        match found {
            Ok(found) => self.books.check_now(&place, found.as_deref(), "a get"),
            Err(error) => _ = self.explain(What::Read, &error, "a get"),
        }
    }

    fn scan(&mut self, name: &str) {
        trace(|| format!("scan {name}"));
        let keyspace = match self.handle(name) {
            Ok(keyspace) => keyspace,
            Err(error) => {
                _ = self.explain(What::Read, &error, "a handle");
                return;
            }
        };
        let mut found = BTreeMap::new();
        let backwards = self.random.one_in(3);
        let mut cursor = keyspace.iter();
        while let Some(record) = if backwards { cursor.next_back() } else { cursor.next() } {
            match record {
                Ok((key, value)) => _ = found.insert(key, value.into()),
                Err(error) => {
                    _ = self.explain(What::Read, &error, "a scan");
                    return;
                }
            }
        }
        self.books.check_scan(name, &found, "a scan");
    }

    fn step(&mut self) {
        let pieces = self.random.within(1..30);
        let millis = *self.random.pick(&[0, 1, 20, 300, 2000]);
        trace(|| format!("{pieces} steps of {millis} ms"));
        for _ in 0..pieces {
            self.runtime.sleep(Duration::from_millis(millis));
            self.runtime.step();
        }
    }

    /// A call that answers nothing: says whether it was done.
    fn done(&mut self, result: spinney::Result<()>, what: What, when: &'static str) -> bool {
        match result {
            Ok(()) => !self.disk.power_is_off(),
            Err(error) => {
                if self.explain(what, &error, when) == ErrorKind::Full {
                    self.tally.count(if when == "a checkpoint" {
                        "checkpoints refused: full"
                    } else {
                        "other calls refused: full"
                    });
                }
                false
            }
        }
    }

    fn operation(&mut self) {
        let names = self.books.usable();
        if names.is_empty() {
            return self.make_keyspace();
        }
        let name = self.random.pick(&names).clone();
        trace(|| {
            let stats = self.db().stats();
            format!("log {} reserve {}", stats.log.bytes_used, stats.reserved_bytes)
        });
        match self.random.below(100) {
            0..=49 => self.write_some(&names),
            50..=64 => self.read(&name),
            65..=69 => self.scan(&name),
            70..=87 => self.step(),
            88..=90 => {
                trace(|| "checkpoint".to_owned());
                let result = self.db().checkpoint();
                if self.done(result, What::Other, "a checkpoint") {
                    self.books.checkpointed();
                }
            }
            91 => {
                trace(|| "flush".to_owned());
                let result = self.db().flush();
                if self.done(result, What::Other, "a flush") {
                    self.books.flushed();
                }
            }
            92 => {
                trace(|| format!("compact {name}"));
                let result = self.handle(&name).and_then(|it| it.compact().map(|_| ()));
                if self.done(result, What::Other, "a compaction") {
                    self.books.checkpointed();
                }
            }
            93 => self.copy(),
            94 => self.make_keyspace(),
            95 => self.drop_keyspace(),
            96..=97 => {
                trace(|| "verify".to_owned());
                let result = self.db().verify().map(|_| ());
                self.done(result, What::Verify, "a verification");
            }
            _ => {
                let batches = *self.random.pick(&[1, 4, 1000]);
                if let Ok(keyspace) = self.handle(&name) {
                    let _ = keyspace.turtle().and_then(|it| it.set_checkpoint_distance(batches));
                }
            }
        }
    }

    // ---- copies ----

    /// Takes a backup, restores it, and looks at what that holds; now and then it lives on in there.
    fn copy(&mut self) {
        self.directories += 1;
        let copy = PathBuf::from(format!("/copy{}", self.directories));
        let restored = PathBuf::from(format!("/restored{}", self.directories));
        trace(|| format!("back up into {}", copy.display()));
        let db = self.db();
        let backed_up = db.backup(&copy).map(|_| ());
        if self.done(backed_up, What::Other, "a backup") {
            if !db.is_read_only() {
                self.books.checkpointed();
            }
            self.tally.count("backups");
            let names = db.keyspaces().len();
            drop(db);
            self.restore(&copy, &restored, names);
        } else if !self.disk.power_is_off() && !self.struck(&[DESCRIPTOR, READ, SHORT, WRITE, SYNC])
        {
            let left = self.disk.files().into_iter().find(|path| path.starts_with(&copy));
            assert!(left.is_none(), "a backup that failed left {left:?}");
        }
        let _ = self.disk.remove_directory(&copy);
        if self.path != restored {
            let _ = self.disk.remove_directory(&restored);
        }
    }

    fn restore(&mut self, copy: &Path, restored: &Path, names: usize) {
        // It is another process, whose jobs do not mix with this one's.
        let options = self.options().runtime(Runtime::stepped(self.random.next_u64()));
        let result = Db::restore(copy, restored, options.clone()).map(|_| ());
        if !self.done(result, What::Other, "a restore") {
            return;
        }
        let opened = Db::open(restored, options);
        let found = opened.and_then(|db| Ok((db.keyspaces().len(), everything(&db)?)));
        let (there, found) = match found {
            Ok(found) => found,
            Err(error) => {
                _ = self.explain(What::Other, &error, "what was restored");
                return;
            }
        };
        if self.has_rot() {
            return;
        }
        assert_eq!(there, names, "what was restored has other keyspaces");
        self.books.check_copy(&found, "what was restored");
        self.tally.count("copies compared");
        if self.random.one_in(4)
            && self.flips.is_empty()
            && !self.tainted
            && !self.life.cut_is_armed
        {
            trace(|| format!("move to {}", restored.display()));
            self.close_all();
            let old = std::mem::replace(&mut self.path, restored.to_path_buf());
            let _ = self.disk.remove_directory(&old);
            self.disk = self.disk.kill();
            self.reopen(Some(found));
        }
    }

    // ---- lives ----

    fn close_all(&mut self) {
        self.handles.clear();
        self.db = None;
    }

    /// Ends this life somehow and begins the next.
    fn next_life(&mut self) {
        let inside = self.disk.power_is_off();
        let mut loss = Loss::Nothing;
        let how = self.random.below(5);
        if how == 0 && !inside {
            trace(|| "close".to_owned());
            self.handles.clear();
            let db = self.db.take().expect("it is open");
            let writable = !db.is_read_only();
            let result = db.close();
            if self.done(result, What::Other, "a close") && writable {
                self.books.checkpointed();
            }
        }
        if how > 2 || (how == 0 && self.random.one_in(2)) {
            let mode = *self.random.pick(&MODES);
            trace(|| format!("the power is lost: {mode:?}"));
            self.tally.throw(if inside { POWER_INSIDE } else { POWER });
            loss = Loss::Unsynced;
            self.close_later(|disk| disk.crash(mode));
        } else {
            trace(|| "killed".to_owned());
            self.tally.throw(if inside { KILL_INSIDE } else { KILL });
            if self.struck(&[SYNC]) {
                // The kernel may have dropped what it could not write.
                loss = Loss::Doubtful;
            }
            self.close_later(SimDisk::kill);
        }
        self.come_back(loss);
    }

    /// Takes the disk as it is now, and then lets the database go on the old one.
    fn close_later(&mut self, image: impl Fn(&SimDisk) -> SimDisk) {
        self.disk = image(&self.disk);
        self.close_all();
    }

    /// Opens what is left, perhaps through more faults, and settles the books.
    fn come_back(&mut self, mut loss: Loss) {
        self.lives += 1;
        self.tally.count("lives");
        // What was thrown at the old life did not reach the new disk.
        self.life = Life { was_cut: self.cut, ..Life::default() };
        if self.random.one_in(8) {
            self.flip();
        }
        if !self.flips.is_empty() && self.random.one_in(2) {
            self.unflip();
        }
        if self.cut && self.random.one_in(3) {
            self.disk.set_capacity(None);
            self.cut = false;
        }
        let mut attempts = 0;
        loop {
            self.runtime = Runtime::stepped(self.random.next_u64());
            if attempts < 3 && self.random.one_in(4) {
                self.arm(30);
            }
            if attempts < 3 && self.random.one_in(5) {
                self.disk.cut_power_at(1 + self.random.below(30) as u64);
                self.life.cut_is_armed = true;
            }
            attempts += 1;
            if self.has_rot() {
                loss = Loss::Rot;
            }
            match self.open_and_look(loss) {
                Ok(()) => return,
                Err(error) => {
                    if self.struck(&[SYNC]) {
                        loss = loss.max(Loss::Doubtful);
                    }
                    if self.disk.power_is_off() {
                        self.tally.throw(IN_RECOVERY);
                        let mode = *self.random.pick(&MODES);
                        self.close_later(|disk| disk.crash(mode));
                        loss = loss.max(Loss::Unsynced);
                    } else {
                        let kind = self.explain(What::Other, &error, "an opening");
                        assert!(kind != ErrorKind::Full, "a full disk does not open: {error}");
                        self.close_later(SimDisk::kill);
                        if error.is_corruption() {
                            self.unflip();
                            if self.tainted || loss == Loss::Rot {
                                self.over = true;
                                return;
                            }
                        }
                    }
                    self.life = Life { was_cut: self.cut, ..Life::default() };
                    assert!(attempts < 20, "it does not open: {error}");
                }
            }
        }
    }

    fn open_and_look(&mut self, loss: Loss) -> spinney::Result<()> {
        trace(|| format!("open, {loss:?}"));
        let db = Db::open(&self.path, self.options())?;
        trace(|| format!("opened, read-only {}", db.is_read_only()));
        if self.disk.power_is_off() {
            return Err(Error::new(ErrorKind::Io, "the power went"));
        }
        let found = everything(&db)?;
        let when = "after a crash";
        let names = self.books.check_names(&db, when);
        self.books.check_crash(&names, &found, loss, when);
        if db.is_read_only() {
            assert!(self.cut, "it opened for reading, though there is room");
            self.tally.count("opened for reading");
            self.books.looked(&found);
        } else {
            self.books.settle(names, &found, loss);
        }
        if loss == Loss::Rot {
            // Which records were lost is not known, so nothing more can be said.
            self.tally.count("rot in the log");
            self.over = true;
        }
        self.db = Some(db);
        Ok(())
    }

    fn reopen(&mut self, restored: Option<Found>) {
        self.life = Life { was_cut: self.cut, ..Life::default() };
        self.runtime = Runtime::stepped(self.random.next_u64());
        match Db::open(&self.path, self.options()) {
            Ok(db) => {
                let found = everything(&db).expect("nothing is wrong with the disk");
                assert!(restored.is_none_or(|restored| restored == found), "it changed");
                if db.is_read_only() {
                    // Not what the books are made for.
                    self.over = true;
                }
                let names = self.books.check_names(&db, "restored");
                self.books.settle(names, &found, Loss::Unsynced);
                self.db = Some(db);
            }
            Err(error) => panic!("what was restored does not open: {error:?}"),
        }
    }

    /// Takes all faults back: everything must be right then, and can be removed.
    fn end(&mut self) {
        self.disk.set_capacity(None);
        self.cut = false;
        let loss = if self.struck(&[SYNC]) { Loss::Doubtful } else { Loss::Nothing };
        self.close_later(SimDisk::kill);
        self.unflip();
        if self.tainted {
            self.over = true;
            return;
        }
        trace(|| "the end: no fault any more".to_owned());
        self.life = Life::default();
        self.runtime = Runtime::stepped(self.random.next_u64());
        self.open_and_look(loss).expect("nothing is wrong with the disk");
        let db = self.db();
        db.verify().expect("nothing is wrong with the disk");
        for name in self.books.usable() {
            for key in self.books.keys(&name) {
                self.write(vec![((name.clone(), key), None)], Durability::Buffered);
            }
            self.scan(&name);
            assert!(self.books.keys(&name).is_empty());
        }
        self.step();
        db.checkpoint().expect("nothing is wrong with the disk");
        db.verify().expect("nothing is wrong with the disk");
        drop(db);
        self.handles.clear();
        let db = self.db.take().expect("it is open");
        db.close().expect("nothing is wrong with the disk");
        self.disk = self.disk.crash(CrashMode::LoseAll);
        let db = Db::open(&self.path, self.options()).expect("nothing is wrong with the disk");
        let left = everything(&db).expect("nothing is wrong with the disk").len();
        assert_eq!(left, 0, "records came back");
    }
}
