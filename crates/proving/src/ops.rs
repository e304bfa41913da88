//! Random operations, drawn so that rare paths are common: few keys that collide, keys that share
//! long prefixes, values near the edges of a page, batches over keyspaces, keyspaces that come and
//! go.

use std::ops::{Bound, Range};

use crate::database::{Bytes, KeyBound, Promise, Write};
use crate::model::{Model, show, show_value};
use crate::tier::Random;

/// One operation on a database.
#[derive(Clone)]
#[expect(missing_docs, reason = "the fields are the arguments of the method of that name")]
pub enum Op {
    /// Point reads.
    Get { keyspace: String, key: Bytes },
    /// Whether a key is there.
    Contains { keyspace: String, key: Bytes },
    /// Several point reads at once.
    MultiGet { keyspace: String, keys: Vec<Bytes> },
    /// An insert, a removal or a batch.
    Write { writes: Vec<Write>, promise: Promise },
    /// A conditional write.
    CompareAndSwap { keyspace: String, key: Bytes, expected: Option<Bytes>, new: Option<Bytes> },
    /// A read, a function and a write: appends `suffix`, or removes when there is none.
    Update { keyspace: String, key: Bytes, suffix: Option<Bytes> },
    /// A range read: each pull is from the front (`true`) or the back.
    Range { keyspace: String, from: KeyBound, to: KeyBound, pulls: Vec<bool> },
    /// The keys of a range, forwards.
    Keys { keyspace: String, from: KeyBound, to: KeyBound, pulls: Vec<bool> },
    /// All of a keyspace, so often that the background thinks of making ranges cheaper.
    ReadOften { keyspace: String, times: usize },
    /// A prefix read, forwards.
    Prefix { keyspace: String, prefix: Bytes, count: usize },
    /// Both ends of a keyspace.
    Ends { keyspace: String },
    /// Make what is acknowledged durable.
    Flush,
    /// Write everything back.
    Checkpoint,
    /// Compact a range of a keyspace.
    Compact { keyspace: String, from: KeyBound, to: KeyBound },
    /// Look for damage.
    Verify,
    /// Copy the database beside itself.
    Backup,
    /// Save what a process that died now would leave into another database.
    Salvage,
    /// Change the memory budget.
    SetMemory { bytes: u64 },
    /// Load records in ascending order into a keyspace that is empty.
    BulkLoad { keyspace: String, records: Vec<(Bytes, Bytes)> },
    /// Keep a view of a keyspace.
    TakeSnapshot { keyspace: String },
    /// Read from a kept view: some keys, and a range of it. The number chooses among those there are.
    ReadSnapshot { which: usize, keys: Vec<Bytes>, from: KeyBound, to: KeyBound, pulls: Vec<bool> },
    /// Let a kept view go.
    DropSnapshot { which: usize },
    /// Set how many batches gather in memory, and let the background follow.
    SetDistance { keyspace: String, batches: u64 },
    /// Make a keyspace.
    CreateKeyspace { name: String, logged: bool },
    /// Drop a keyspace.
    DropKeyspace { name: String },
    /// Let background work run for some pieces, with virtual time passing before each.
    Step { pieces: usize, millis: u64 },
    /// End and open again, cleanly or by letting go.
    Reopen { clean: bool },
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bound = |bound: &KeyBound| match bound {
            Bound::Included(key) => format!("={}", show(key)),
            Bound::Excluded(key) => format!("~{}", show(key)),
            Bound::Unbounded => "..".to_owned(),
        };
        let value = |value: &Option<Bytes>| show_value(value.as_deref());
        match self {
            Op::Get { keyspace, key } => write!(f, "get {keyspace} {}", show(key)),
            Op::Contains { keyspace, key } => write!(f, "contains {keyspace} {}", show(key)),
            Op::MultiGet { keyspace, keys } => {
                write!(f, "multi-get {keyspace}, {} keys", keys.len())
            }
            Op::Write { writes, promise } => write!(f, "write {promise:?} {writes:?}"),
            Op::CompareAndSwap { keyspace, key, expected, new } => {
                let (expected, new) = (value(expected), value(new));
                write!(f, "swap {keyspace} {} from {expected} to {new}", show(key))
            }
            Op::Update { keyspace, key, suffix } => {
                write!(f, "update {keyspace} {} by {}", show(key), value(suffix))
            }
            Op::Range { keyspace, from, to, pulls } => {
                let (from, to) = (bound(from), bound(to));
                write!(f, "range {keyspace} {from} to {to}, {} pulls", pulls.len())
            }
            Op::Keys { keyspace, from, to, pulls } => {
                let (from, to) = (bound(from), bound(to));
                write!(f, "keys {keyspace} {from} to {to}, {} pulls", pulls.len())
            }
            Op::ReadOften { keyspace, times } => write!(f, "read all of {keyspace} {times} times"),
            Op::Prefix { keyspace, prefix, count } => {
                write!(f, "prefix {keyspace} {}, {count} pulls", show(prefix))
            }
            Op::Ends { keyspace } => write!(f, "ends of {keyspace}"),
            Op::Flush => f.write_str("flush"),
            Op::Checkpoint => f.write_str("checkpoint"),
            Op::Compact { keyspace, from, to } => {
                write!(f, "compact {keyspace} {} to {}", bound(from), bound(to))
            }
            Op::Verify => f.write_str("verify"),
            Op::Backup => f.write_str("backup"),
            Op::Salvage => f.write_str("salvage"),
            Op::SetMemory { bytes } => write!(f, "set memory to {bytes}"),
            Op::BulkLoad { keyspace, records } => {
                write!(f, "bulk load {keyspace}, {} records", records.len())
            }
            Op::TakeSnapshot { keyspace } => write!(f, "take a snapshot of {keyspace}"),
            Op::ReadSnapshot { which, keys, from, to, pulls } => {
                let (from, to) = (bound(from), bound(to));
                let (keys, pulls) = (keys.len(), pulls.len());
                write!(f, "read {keys} keys of snapshot {which}, {from} to {to}, {pulls} pulls")
            }
            Op::DropSnapshot { which } => write!(f, "drop snapshot {which}"),
            Op::SetDistance { keyspace, batches } => {
                write!(f, "set the checkpoint distance of {keyspace} to {batches}")
            }
            Op::CreateKeyspace { name, logged } => write!(f, "create {name}, logged: {logged}"),
            Op::DropKeyspace { name } => write!(f, "drop {name}"),
            Op::Step { pieces, millis } => write!(f, "step {pieces}, {millis} ms each"),
            Op::Reopen { clean } => write!(f, "reopen, clean: {clean}"),
        }
    }
}

/// How keys look.
#[derive(Clone, Copy, Debug)]
pub enum KeyShape {
    /// Eight bytes, big-endian.
    Numbers,
    /// Text with long shared prefixes.
    Paths,
    /// Any bytes of any length, the empty key among them.
    Wild,
}

/// How long values are, in bytes.
#[derive(Clone, Debug)]
pub struct ValueLengths {
    /// Length of most values.
    pub most: Range<usize>,
    /// One write in this many has a value of up to `large` bytes.
    pub large_one_in: usize,
    /// Length of the longest of those.
    pub large: usize,
    /// One write in this many has a value of `huge` bytes, too long for a page; 0 is never.
    pub huge_one_in: usize,
    /// Length of those.
    pub huge: Range<usize>,
}

/// What to draw from.
#[derive(Clone, Debug)]
pub struct Mix {
    /// How keys look.
    pub shape: KeyShape,
    /// How many different keys there are.
    pub keys: usize,
    /// How long values are.
    pub values: ValueLengths,
    /// The memory budgets that [`Op::SetMemory`] sets; none, and it is never drawn.
    pub memory_bytes: Range<usize>,
    /// Whether [`Op::Reopen`] is drawn.
    pub reopen: bool,
    /// Whether writes are sometimes only `Buffered`.
    pub buffered: bool,
    /// Of every thousand operations, how many are on the whole database.
    pub rare_per_mille: usize,
    /// Whether empty keyspaces are sometimes loaded in bulk.
    pub bulk: bool,
    /// Whether every second write is of several keys at once, instead of every fifth.
    pub batches: bool,
    /// One write in this many is a removal.
    pub removes_one_in: usize,
    /// Most keyspaces alive at once.
    pub keyspaces_max: usize,
    /// Whether keyspaces without a log are made.
    pub unlogged: bool,
    /// Whether backups are taken, and salvages.
    pub backup: bool,
    /// Whether snapshots are taken and kept, and checkpoint distances set.
    pub snapshots: bool,
}

impl Mix {
    /// A small one drawn from a seed, for the model test.
    #[must_use]
    pub fn small(random: &mut Random) -> Mix {
        Mix {
            shape: *random.pick(&[KeyShape::Numbers, KeyShape::Paths, KeyShape::Wild]),
            keys: *random.pick(&[20, 300, 4000]),
            values: ValueLengths {
                most: random.pick(&[0..12, 10..200, 300..900]).clone(),
                large_one_in: 20,
                large: 1500,
                huge_one_in: 50,
                huge: 3_990..200_000,
            },
            memory_bytes: 2 << 20..4 << 20,
            reopen: true,
            buffered: true,
            rare_per_mille: 50,
            bulk: true,
            batches: false,
            removes_one_in: 4,
            keyspaces_max: 6,
            unlogged: true,
            backup: true,
            snapshots: false,
        }
    }
}

/// Draws operations.
#[derive(Debug)]
pub struct Generator {
    random: Random,
    mix: Mix,
    stamp: u64,
    fresh: u32,
    keyspaces_made: u64,
}

impl Generator {
    /// A generator for one seed.
    #[must_use]
    pub fn new(seed: u64, mix: Mix) -> Self {
        Generator { random: Random::new(seed, 1), mix, stamp: 0, fresh: 0, keyspaces_made: 0 }
    }

    /// The key of number `n`.
    #[must_use]
    pub fn key(shape: KeyShape, n: usize) -> Bytes {
        // Spread, so that neighbours in number are strangers in order.
        let mut spread = Random::new(n as u64, 2);
        match shape {
            KeyShape::Numbers => spread.next_u64().to_be_bytes().to_vec(),
            KeyShape::Paths => {
                let (shelf, book) = (spread.below(7), spread.below(40));
                format!("library/shelf-{shelf:04}/book-{book:06}/page-{n:08}").into_bytes()
            }
            KeyShape::Wild => {
                let length = match n {
                    0 => 0,
                    n if n % 50 == 1 => 1024 - spread.below(3),
                    _ => 1 + spread.below(30),
                };
                let mut key: Bytes =
                    (0..length).map(|_| *spread.pick(&[0, 1, b'a', b'b', 0xFE, 0xFF])).collect();
                // The number keeps short ones apart.
                key.extend(
                    (n > 0 && length < 1000).then_some(n.to_le_bytes()).into_iter().flatten(),
                );
                key
            }
        }
    }

    fn any_key(&mut self) -> Bytes {
        // Half of all operations meet an eighth of the keys.
        let few = self.mix.keys.div_ceil(8);
        let n = if self.random.one_in(2) {
            self.random.below(few)
        } else {
            self.random.below(self.mix.keys)
        };
        Generator::key(self.mix.shape, n)
    }

    /// A new key just after one of a few others, so that some pages fill up and split however many
    /// there are.
    fn crowded_key(&mut self) -> Bytes {
        let mut key = Generator::key(self.mix.shape, self.random.below(3));
        key.truncate(900);
        self.fresh += 1;
        key.extend_from_slice(&self.fresh.to_be_bytes());
        key
    }

    /// A value that no other write of this generator has, unless it is too short to tell.
    pub fn value(&mut self) -> Bytes {
        let lengths = &self.mix.values;
        let huge = lengths.huge_one_in > 0 && self.random.one_in(lengths.huge_one_in);
        let length = if huge {
            self.random.within(lengths.huge.clone())
        } else if self.random.one_in(lengths.large_one_in) {
            self.random.below(lengths.large + 1)
        } else {
            self.random.within(lengths.most.clone())
        };
        self.stamp += 1;
        let mut value = format!("{}:", self.stamp).into_bytes();
        let filler = self.random.next_u64().to_le_bytes();
        while value.len() < length {
            value.extend_from_slice(&filler);
        }
        value.truncate(length);
        value
    }

    fn any_write(&mut self, model: &Model) -> Write {
        let keyspace = self.any_keyspace(model);
        if self.random.one_in(3) {
            return Write { keyspace, key: self.crowded_key(), value: Some(self.value()) };
        }
        let removes = self.random.one_in(self.mix.removes_one_in);
        let value = (!removes).then(|| self.value());
        Write { keyspace, key: self.any_key(), value }
    }

    fn any_keyspace(&mut self, model: &Model) -> String {
        let names: Vec<&String> = model.keyspaces.keys().collect();
        (*self.random.pick(&names)).clone()
    }

    fn promise(&mut self) -> Promise {
        if self.mix.buffered && !self.random.one_in(4) { Promise::Buffered } else { Promise::Sync }
    }

    fn bound(&mut self) -> KeyBound {
        match self.random.below(5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(self.any_key()),
            _ => Bound::Excluded(self.any_key()),
        }
    }

    fn pulls(&mut self) -> Vec<bool> {
        let count = self.random.below(120);
        match self.random.below(3) {
            0 => vec![true; count],
            1 => vec![false; count],
            _ => (0..count).map(|_| self.random.one_in(2)).collect(),
        }
    }

    /// The next operation, for a database that holds what `model` holds.
    pub fn next(&mut self, model: &Model) -> Op {
        let keyspace = self.any_keyspace(model);
        let key = self.any_key();
        if self.random.below(1000) < self.mix.rare_per_mille {
            return self.rare(model);
        }
        if self.mix.bulk
            && self.random.one_in(4)
            && let Some(load) = self.bulk_load(model)
        {
            return load;
        }
        if self.mix.snapshots && self.random.one_in(25) {
            return self.with_snapshots(keyspace);
        }
        match self.random.below(950) {
            160..560 if self.mix.batches && self.random.one_in(2) => self.batch(model),
            0..120 => Op::Get { keyspace, key },
            120..140 => Op::Contains { keyspace, key },
            140..160 => {
                let keys = (0..self.random.below(20)).map(|_| self.any_key()).collect();
                Op::MultiGet { keyspace, keys }
            }
            160..560 => {
                let write = self.any_write(model);
                Op::Write { writes: vec![write], promise: self.promise() }
            }
            560..660 => self.batch(model),
            660..720 => {
                let right = !self.random.one_in(3);
                let current = model.get(&keyspace, &key).map(<[u8]>::to_vec);
                let expected =
                    if right { current } else { self.random.one_in(2).then(|| self.value()) };
                let new = (!self.random.one_in(4)).then(|| self.value());
                Op::CompareAndSwap { keyspace, key, expected, new }
            }
            720..760 => {
                let suffix = (!self.random.one_in(5)).then(|| vec![b'+'; self.random.below(9)]);
                Op::Update { keyspace, key, suffix }
            }
            760..810 => {
                let (from, to, pulls) = (self.bound(), self.bound(), self.pulls());
                Op::Range { keyspace, from, to, pulls }
            }
            810..820 => {
                let (from, to, pulls) = (self.bound(), self.bound(), self.pulls());
                Op::Keys { keyspace, from, to, pulls }
            }
            820..840 => {
                let length = self.random.below(key.len() + 1);
                Op::Prefix {
                    keyspace,
                    prefix: key[..length].to_vec(),
                    count: self.random.below(200),
                }
            }
            840..850 => Op::Ends { keyspace },
            _ => self.step(),
        }
    }

    fn batch(&mut self, model: &Model) -> Op {
        let count = self.random.within(1..12);
        let writes = (0..count).map(|_| self.any_write(model)).collect();
        Op::Write { writes, promise: self.promise() }
    }

    /// Mostly a little background work, sometimes as much as a quiet second sees.
    fn step(&mut self) -> Op {
        if self.random.one_in(6) {
            return Op::Step {
                pieces: self.random.within(5..40),
                millis: self.random.below(60) as u64,
            };
        }
        Op::Step { pieces: self.random.within(1..5), millis: 0 }
    }

    fn with_snapshots(&mut self, keyspace: String) -> Op {
        let which = self.random.below(1000);
        match self.random.below(11) {
            10 => Op::ReadOften { keyspace, times: self.random.within(1..12) },
            0..2 => Op::TakeSnapshot { keyspace },
            2..7 => {
                let keys = (0..self.random.below(6)).map(|_| self.any_key()).collect();
                let (from, to, pulls) = (self.bound(), self.bound(), self.pulls());
                Op::ReadSnapshot { which, keys, from, to, pulls }
            }
            7 => Op::DropSnapshot { which },
            _ => {
                let batches = *self.random.pick(&[1, 1, 2, 5, 1000]);
                Op::SetDistance { keyspace, batches }
            }
        }
    }

    /// Sorted records for a keyspace that is empty, if there is one that promises them all.
    fn bulk_load(&mut self, model: &Model) -> Option<Op> {
        let mut keyspaces = model.keyspaces.iter();
        let empty = keyspaces.find(|(_, one)| one.logged && one.records.is_empty())?;
        let keyspace = empty.0.clone();
        let keys: std::collections::BTreeSet<Bytes> =
            (0..self.random.within(20..600)).map(|_| self.any_key()).collect();
        let records = keys.into_iter().map(|key| (key, self.value())).collect();
        Some(Op::BulkLoad { keyspace, records })
    }

    /// An operation on the whole database.
    fn rare(&mut self, model: &Model) -> Op {
        match self.random.below(50) {
            0..8 => Op::Flush,
            8..18 => Op::Checkpoint,
            18..20 => Op::Verify,
            20..28 if !self.mix.memory_bytes.is_empty() => {
                Op::SetMemory { bytes: self.random.within(self.mix.memory_bytes.clone()) as u64 }
            }
            28..32 if self.mix.reopen => Op::Reopen { clean: self.random.one_in(2) },
            32..41 if model.keyspaces.len() < self.mix.keyspaces_max => {
                // Mostly a new name, sometimes one that was dropped before.
                self.keyspaces_made += 1;
                let number =
                    1 + self.random.below(usize::try_from(self.keyspaces_made).unwrap_or(1));
                let fresh = format!("keyspace-{number}");
                let name = if model.keyspaces.contains_key(&fresh) {
                    format!("keyspace-{}", self.keyspaces_made + 100)
                } else {
                    fresh
                };
                let logged = !self.mix.unlogged || self.random.one_in(2);
                Op::CreateKeyspace { name, logged }
            }
            41..46 if model.keyspaces.len() > 1 => {
                let names: Vec<&String> =
                    model.keyspaces.keys().filter(|name| *name != "main").collect();
                Op::DropKeyspace { name: (*self.random.pick(&names)).clone() }
            }
            46..48 if self.mix.backup => Op::Backup,
            48 if self.mix.backup => Op::Salvage,
            49 => {
                let (keyspace, from, to) = (self.any_keyspace(model), self.bound(), self.bound());
                Op::Compact { keyspace, from, to }
            }
            _ => self.step(),
        }
    }
}
