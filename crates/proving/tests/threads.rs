//! Lost and stale records under real threads, on a real disk, with so little memory that pages go
//! home all the time.
//!
//! Every key number belongs to one thread, or to nobody: those of nobody are there throughout.
//! A thread knows exactly what its keys hold, whatever the others do, so each of its reads is
//! checked at once: a scan delivers keys in order, each once; of what it covers it misses none of
//! nobody's keys and shows the thread's own keys as the thread left them. At the end, and after a
//! reopening, everything is compared with what all threads know.

use std::collections::BTreeMap;
use std::ops::Range;

use spinney::{Batch, Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options, TornWrites};
use spinney_proving::tier::{self, Announce, Random};

const THREADS: usize = 4;

/// Key numbers of one keyspace.
const NUMBERS: u64 = 40_000;

/// One in so many numbers belongs to each thread, and one to nobody.
const STRIDE: u64 = 8;

/// An engine and its options.
type Choice = (EngineKind, &'static [(&'static str, &'static str)]);

/// What is tried.
const CHOICES: [Choice; 11] = [
    (EngineKind::TreeLine, &[]),
    (EngineKind::TreeLine, &[("staging", "on")]),
    (EngineKind::Turtle, &[]),
    (EngineKind::TreeLine, &[("batch-writeout", "off")]),
    (EngineKind::TreeLine, &[("page-grouping", "off")]),
    (EngineKind::Turtle, &[("leaf", "16KiB")]),
    (EngineKind::TreeLine, &[("record-cache", "off")]),
    (EngineKind::TreeLine, &[("optimistic-admission", "on")]),
    (EngineKind::Turtle, &[("chi", "1"), ("leaf", "16KiB")]),
    (EngineKind::TreeLine, &[("staging", "on"), ("optimistic-admission", "on")]),
    (
        EngineKind::TreeLine,
        &[("staging", "on"), ("batch-writeout", "off"), ("record-cache", "off")],
    ),
];

type Model = BTreeMap<u64, Vec<u8>>;

/// Keys ascend with their numbers; some are long.
fn key(number: u64) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    if number % 5 == 3 {
        key.resize(24, b'-');
    }
    key
}

fn number_of(key: &[u8]) -> u64 {
    let bytes = key.get(..8).and_then(|bytes| bytes.try_into().ok()).expect("a short key");
    u64::from_be_bytes(bytes)
}

/// Begins with its key's number, so that another key's value is noticed.
fn value(number: u64, version: u64, length: usize) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    value.extend_from_slice(&version.to_be_bytes());
    value.resize(length.max(16), b'a' + (version % 26) as u8);
    value
}

fn nobodys(number: u64) -> Vec<u8> {
    value(number, 0, 16 + (number % 120) as usize)
}

fn is_nobodys(number: u64) -> bool {
    number.is_multiple_of(STRIDE)
}

/// A keyspace as one thread sees it.
struct Part {
    keyspace: Keyspace,
    /// Whether keys of nobody are there.
    fixed: bool,
    own: Model,
}

/// One thread.
struct Worker<'a> {
    db: &'a Db,
    index: u64,
    random: Random,
    parts: Vec<Part>,
    version: u64,
    backups: &'a std::path::Path,
    backup: u64,
}

impl Part {
    fn is_own(index: u64, number: u64) -> bool {
        number % STRIDE == index + 1
    }

    /// What a read of these numbers must show of nobody's and of the thread's own.
    fn expected(&self, numbers: Range<u64>) -> Model {
        if numbers.is_empty() {
            return Model::new();
        }
        let mut expected: Model = self
            .own
            .range(numbers.clone())
            .map(|(number, value)| (*number, value.clone()))
            .collect();
        if self.fixed {
            let fixed = numbers.start.next_multiple_of(STRIDE)..numbers.end.min(NUMBERS);
            let fixed = fixed.step_by(usize::try_from(STRIDE).unwrap());
            expected.extend(fixed.map(|number| (number, nobodys(number))));
        }
        expected
    }

    /// Checks what a scan delivered, ascending, which covered these numbers.
    fn check(&self, index: u64, numbers: Range<u64>, found: Vec<(u64, Vec<u8>)>, what: &str) {
        let falls = found.windows(2).position(|pair| pair[0].0 >= pair[1].0);
        if let Some(at) = falls {
            let around = &found[at.saturating_sub(3)..found.len().min(at + 5)];
            let around: Vec<u64> = around.iter().map(|(number, _)| *number).collect();
            panic!("{what}: keys are out of order or come twice: {around:?}");
        }
        let mut seen = Model::new();
        for (number, value) in found {
            assert!(numbers.contains(&number), "{what}: {number} is not of {numbers:?}");
            assert_eq!(number_of(&value), number, "{what}: a value of another key");
            if is_nobodys(number) || Self::is_own(index, number) {
                seen.insert(number, value);
            }
        }
        same(&seen, &self.expected(numbers), what);
    }
}

/// Compares, and says where the difference is instead of all there is.
fn same(found: &Model, expected: &Model, what: &str) {
    if found == expected {
        return;
    }
    let short = |value: Option<&Vec<u8>>| {
        value.map(|value| (u64::from_be_bytes(value[8..16].try_into().unwrap()), value.len()))
    };
    let differ: Vec<_> = expected
        .keys()
        .chain(found.keys())
        .filter(|number| found.get(number) != expected.get(number))
        .map(|number| (number, short(found.get(number)), short(expected.get(number))))
        .take(10)
        .collect();
    panic!("{what}: key, (version, length) found, and expected: {differ:?}");
}

impl Worker<'_> {
    fn own(&self, near: u64) -> u64 {
        near.min(NUMBERS - STRIDE) / STRIDE * STRIDE + self.index + 1
    }

    fn any_own(&mut self, from: u64, below: u64) -> u64 {
        let near = from + self.random.next_u64() % below;
        self.own(near)
    }

    fn any(&mut self) -> u64 {
        self.random.next_u64() % NUMBERS
    }

    fn insert(&mut self, part: usize, numbers: &[u64]) {
        self.version += 1;
        let large = self.random.one_in(40);
        let batch = self.random.one_in(4);
        let mut together = Batch::new();
        for number in numbers {
            let length = match self.random.below(30) {
                0 if large && !batch => 6000,
                1..=5 => 300 + self.random.below(500),
                _ => 16 + self.random.below(100),
            };
            let value = value(*number, self.version, length);
            let Part { keyspace, own, .. } = &mut self.parts[part];
            if batch {
                together.insert(keyspace, key(*number), value.clone());
            } else {
                keyspace.insert(key(*number), &value).unwrap();
            }
            own.insert(*number, value);
            // A batch takes no more than a share of the memory.
            if together.len() == 10 {
                self.db.write(std::mem::take(&mut together)).unwrap();
            }
        }
        self.db.write(together).unwrap();
    }

    fn remove(&mut self, part: usize, numbers: Range<u64>) {
        let Part { keyspace, own, .. } = &mut self.parts[part];
        let numbers: Vec<u64> = own.range(numbers).map(|(number, _)| *number).collect();
        for number in numbers {
            keyspace.remove(key(number)).unwrap();
            own.remove(&number);
        }
    }

    fn writes(&mut self, part: usize) {
        let start = self.any();
        let count = 20 + self.random.below(150) as u64;
        let numbers: Vec<u64> = match self.random.below(4) {
            0 => (0..count).map(|step| self.own(start + step * STRIDE)).collect(),
            1 => (0..count / 2).map(|_| self.any_own(0, NUMBERS)).collect(),
            2 => {
                // Where other threads write too.
                let centre = self.random.below(6) as u64 * (NUMBERS / 6);
                (0..count).map(|_| self.any_own(centre, 1500)).collect()
            }
            _ => {
                let own = self.parts[part].own.range(start..);
                own.map(|(number, _)| *number).take(count as usize).collect()
            }
        };
        let mut numbers = numbers;
        let mut seen = std::collections::BTreeSet::new();
        numbers.retain(|number| seen.insert(*number));
        self.insert(part, &numbers);
    }

    fn removes(&mut self, part: usize) {
        let first = self.parts[part].own.first_key_value().map_or(0, |(number, _)| *number);
        let start = if self.random.one_in(3) { first } else { self.any() };
        let length = 1 + self.random.below(6000) as u64;
        self.remove(part, start..start + length);
    }

    fn gets(&mut self, part: usize) {
        let start = self.any();
        let near = self.random.one_in(2);
        let mut numbers: Vec<u64> =
            (0..40).map(|step| if near { (start + step) % NUMBERS } else { self.any() }).collect();
        numbers.retain(|number| is_nobodys(*number) || Part::is_own(self.index, *number));
        let Part { keyspace, .. } = &self.parts[part];
        let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
        let found: Vec<Option<Vec<u8>>> = if near {
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let found = keyspace.multi_get(&keys).unwrap();
            found.into_iter().map(|value| value.map(Vec::from)).collect()
        } else {
            keys.iter().map(|key| keyspace.get(key).unwrap().map(Vec::from)).collect()
        };
        for (number, found) in numbers.into_iter().zip(found) {
            let found = found.map(|value| (number, value)).into_iter().collect();
            let what = if near { "multi_get" } else { "get" };
            same(&found, &self.parts[part].expected(number..number + 1), what);
        }
    }

    fn scans(&mut self, part: usize) {
        let start = self.any();
        let length = *self.random.pick(&[10, 300, 3000, NUMBERS]);
        let (start, end) = match self.random.below(4) {
            0 => (0, NUMBERS),
            _ => (start, (start + length).min(NUMBERS)),
        };
        let limit = self.random.one_in(2).then(|| *self.random.pick(&[1, 2, 10, 100, 1500]));
        let back = self.random.one_in(2);
        let cursor = match (start, end) {
            (0, NUMBERS) => self.parts[part].keyspace.iter(),
            _ => self.parts[part].keyspace.range(key(start)..key(end)),
        };
        let cursor = match limit {
            Some(limit) => cursor.limit(limit),
            None => cursor,
        };
        let take = |record: spinney::Result<(Vec<u8>, spinney::Value)>| {
            let (key, value) = record.unwrap();
            (number_of(&key), Vec::from(value))
        };
        let mut found: Vec<(u64, Vec<u8>)> = match back {
            true => cursor.rev().map(take).collect(),
            false => cursor.map(take).collect(),
        };
        let mut covered = start..end;
        if limit == Some(found.len()) && limit != Some(0) {
            match back {
                true => covered.start = found.last().unwrap().0,
                false => covered.end = found.last().unwrap().0 + 1,
            }
        }
        if back {
            found.reverse();
        }
        let what = format!("scan of {start}..{end} limit {limit:?} back {back}");
        self.parts[part].check(self.index, covered, found, &what);
    }

    fn ends(&mut self, part: usize) {
        let one = |record: Option<(Vec<u8>, spinney::Value)>| {
            record.map(|(key, value)| (number_of(&key), Vec::from(value)))
        };
        let here = &self.parts[part];
        let first = one(here.keyspace.first_key_value().unwrap());
        let end = first.as_ref().map_or(NUMBERS, |(number, _)| *number + 1);
        here.check(self.index, 0..end, first.into_iter().collect(), "first_key_value");
        let last = one(here.keyspace.last_key_value().unwrap());
        let start = last.as_ref().map_or(0, |(number, _)| *number);
        here.check(self.index, start..NUMBERS, last.into_iter().collect(), "last_key_value");
    }

    /// A queue: takes the first of its own again and again, and puts some in front.
    fn queue(&mut self, part: usize) {
        for _ in 0..20 {
            self.ends(part);
            let first = self.parts[part].own.first_key_value().map(|(number, _)| *number);
            let first = first.unwrap_or(NUMBERS - 1);
            self.remove(part, 0..first + 1);
            if self.random.one_in(3) {
                let number = self.any_own(0, first + 1);
                self.insert(part, &[number]);
            }
        }
        self.ends(part);
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            let part = usize::from(self.random.one_in(3));
            match self.random.below(100) {
                0..40 => self.writes(part),
                40..52 => self.removes(part),
                52..72 => self.gets(part),
                72..86 => self.scans(part),
                86..92 => self.ends(part),
                92..97 => self.queue(1),
                97 => self.db.checkpoint().unwrap(),
                98 if self.index == 0 => {
                    self.backup += 1;
                    let to = self.backups.join(self.backup.to_string());
                    self.db.backup(&to).unwrap();
                    std::fs::remove_dir_all(to).unwrap();
                }
                _ => self.db.flush().unwrap(),
            }
        }
    }
}

fn keyspaces(db: &Db, (engine, choice): Choice) -> [Keyspace; 2] {
    let mut options = KeyspaceOptions::default().engine(engine);
    for (name, value) in choice {
        options = options.set(name, value).unwrap();
    }
    ["main", "queue"].map(|name| db.keyspace(name, options.clone()).unwrap())
}

fn everything(keyspace: &Keyspace) -> Model {
    let found = |record: spinney::Result<(Vec<u8>, spinney::Value)>| {
        let (key, value) = record.unwrap();
        (number_of(&key), Vec::from(value))
    };
    let ahead: Vec<_> = keyspace.iter().map(found).collect();
    let mut back: Vec<_> = keyspace.iter().rev().map(found).collect();
    back.reverse();
    assert!(ahead == back, "a scan and its reverse differ");
    assert!(ahead.windows(2).all(|pair| pair[0].0 < pair[1].0), "out of order");
    ahead.into_iter().collect()
}

fn run(seed: u64, choice: Choice, steps: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let mut random = Random::new(seed, 1);
    let options = Options::default()
        .memory(*random.pick(&[1 << 20, 1 << 20, 3 << 20]))
        .durability(Durability::Buffered)
        .torn_writes(*random.pick(&[TornWrites::Auto, TornWrites::Assume4k]))
        .log_bytes_max(*random.pick(&[2 << 20, 16 << 20]));
    let db = Db::open(&path, options.clone()).unwrap();
    let spaces = keyspaces(&db, choice);
    let fixed = (0..NUMBERS).filter(|number| is_nobodys(*number));
    if random.one_in(2) {
        let records = fixed.map(|number| (key(number), nobodys(number)));
        spaces[0].bulk_load(records).unwrap();
    } else {
        fixed.for_each(|number| spaces[0].insert(key(number), nobodys(number)).unwrap());
    }
    let backups = directory.path().join("backups");
    std::fs::create_dir(&backups).unwrap();
    let mut workers: Vec<Worker<'_>> = (0..THREADS as u64)
        .map(|index| Worker {
            db: &db,
            index,
            random: Random::new(seed, 10 + index),
            parts: (spaces.iter().zip([true, false]))
                .map(|(keyspace, fixed)| Part {
                    keyspace: keyspace.clone(),
                    fixed,
                    own: Model::new(),
                })
                .collect(),
            version: 0,
            backups: &backups,
            backup: 0,
        })
        .collect();
    std::thread::scope(|scope| {
        for worker in &mut workers {
            scope.spawn(move || {
                let announce = Announce(seed);
                worker.run(steps);
                drop(announce);
            });
        }
    });
    let expected: Vec<Model> = (0..spaces.len())
        .map(|part| {
            let fixed = (0..NUMBERS).filter(|number| part == 0 && is_nobodys(*number));
            let mut all: Model = fixed.map(|number| (number, nobodys(number))).collect();
            workers.iter().for_each(|worker| all.extend(worker.parts[part].own.clone()));
            all
        })
        .collect();
    drop(workers);
    let compare = |spaces: &[Keyspace], when: &str| {
        for (keyspace, expected) in spaces.iter().zip(&expected) {
            same(&everything(keyspace), expected, when);
            for (number, value) in expected {
                let found = keyspace.get(key(*number)).unwrap();
                assert!(found.as_deref() == Some(&value[..]), "{when}: get of {number}");
            }
        }
    };
    compare(&spaces, "at the end");
    db.verify().unwrap();
    drop(spaces);
    db.close().unwrap();
    let db = Db::open(&path, options).unwrap();
    compare(&keyspaces(&db, choice), "opened again");
    db.verify().unwrap();
}

/// What each thread wrote last is what it reads, and what nobody touches is always there.
#[test]
fn threads_lose_nothing() {
    let steps = tier::count(25, 600);
    for seed in tier::seeds(tier::count(CHOICES.len() as u64, 12 * CHOICES.len() as u64)) {
        let announce = Announce(seed);
        run(seed, CHOICES[(seed % CHOICES.len() as u64) as usize], steps);
        drop(announce);
    }
}
