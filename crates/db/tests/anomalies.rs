//! Anomalies as scripts, over keyspaces of one engine and of two.
//!
//! A script is a line of steps, each with the number of its transaction. An anomaly has *occurred* if every step was
//! done, and read what the script says.
//!
//! ```text
//! 1 r x 0     1 reads key x and finds 0; - is nothing      1 w x 2    1 writes 2 to x        1 c   1 commits
//! 1 s x=0,xa=1    1 reads all keys that begin with x       1 d x      1 removes x            1 a   1 rolls back
//! ```
//!
//! Transaction 0 is none: it reads and writes plainly. Keys that begin with x are in one keyspace, those with y in the
//! other. Each begins with x = 0 and y = 0.
#![cfg(not(feature = "shuttle"))]

use std::collections::BTreeMap;

use spinney_db::{
    Db, Durability, EngineKind, ErrorKind, Isolation, Keyspace, KeyspaceOptions, Options, Result,
    Transaction, TransactionOptions,
};

/// Those that snapshot isolation prevents, too.
const PREVENTED: &[(&str, &str)] = &[
    ("dirty write", "1 w x 1;1 w y 1;2 w x 2;2 w y 2;2 c;1 c;0 r x 1;0 r y 2"),
    ("aborted read", "1 w x 1;2 r x 1;1 a;2 c"),
    ("intermediate read", "1 w x 1;2 r x 1;1 w x 2;1 c;2 c"),
    ("circular flow", "1 w x 1;2 w y 2;1 r y 2;2 r x 1;1 c;2 c"),
    ("vanishing", "3 r yb -;1 w x 1;1 w y 1;1 c;2 w x 2;2 w y 2;2 c;3 r x 1;3 r y 2;3 c"),
    ("many preceders", "1 s x=0;2 w xa 1;2 c;1 s x=0,xa=1;1 c"),
    ("many preceders, a plain one", "1 s x=0;0 w xa 1;1 s x=0,xa=1;1 c"),
    ("many preceders, behind", "1 s y=0;2 w xa 1;2 w y 1;2 c;1 s x=0,xa=1;1 c"),
    ("lost update", "1 r x 0;2 r x 0;2 w x 2;2 c;1 w x 1;1 c"),
    ("lost update, a plain one", "1 r x 0;0 w x 2;1 w x 1;1 c"),
    ("lost insert", "1 r xa -;2 r xa -;2 w xa 2;2 c;1 w xa 1;1 c"),
    ("lost update of a range", "1 s x=0;2 w x 2;2 c;1 w x 1;1 c"),
    ("read skew", "1 r x 0;2 w x 2;2 w y 2;2 c;1 r y 2;1 c"),
    ("read skew, the other way", "1 r y 0;2 w x 2;2 w y 2;2 c;1 r x 2;1 c"),
    ("repeated read", "1 r x 0;2 w x 2;2 c;1 r x 2;1 c"),
    ("repeated range", "1 s x=0;2 d x;2 c;1 s x;1 c"),
];

/// Those that it lets happen.
const OF_SNAPSHOTS: &[(&str, &str)] = &[
    ("write skew", "1 r x 0;1 r y 0;2 r x 0;2 r y 0;1 w x 1;2 w y 2;1 c;2 c"),
    ("write skew, one ends first", "1 r x 0;1 r y 0;2 r x 0;2 r y 0;2 w y 2;2 c;1 w x 1;1 c"),
    ("write skew, one begins late", "1 r y 0;2 r x 0;2 w y 2;2 c;1 w x 1;1 c"),
    ("write skew of three", "1 r x 0;1 w y 1;2 r y 0;2 w xb 2;3 r xb -;3 w x 3;1 c;2 c;3 c"),
    ("read only", "1 r x 0;1 r y 0;2 r y 0;2 w y 20;2 c;3 r x 0;3 r y 20;3 c;1 w x -11;1 c"),
    ("read only, by ranges", "1 r y 0;2 w y 1;2 c;3 r y 1;3 s x=0;3 c;1 w xa 1;1 c"),
    ("read only, by a miss", "1 r y 0;2 w y 1;2 c;3 r y 1;3 r xa -;3 c;1 w xa 1;1 c"),
    ("read only, of what is removed", "1 r y 0;2 w y 1;2 c;3 r y 1;3 s x=0;3 c;1 d x;1 c"),
    ("read only, plainly", "1 r y 0;2 w y 1;2 c;0 r y 1;0 r x 0;1 w x 1;1 c"),
    ("read only, plain ranges", "1 r y 0;2 w y 1;2 c;0 r y 1;0 s x=0;1 w xa 1;1 c"),
    ("batches", "1 r x 0;2 r x 0;2 w x 1;2 c;3 r x 1;3 s y=0;3 c;1 w ya 1;1 c"),
    ("phantoms", "1 s x=0;1 s y=0;2 s x=0;2 s y=0;1 w xa 1;2 w ya 1;1 c;2 c"),
    ("phantoms, one ends first", "1 s y=0;2 s x=0;2 w ya 1;2 c;1 w xa 1;1 c"),
    ("phantoms, and points", "1 s y=0;2 r xa -;2 w ya 1;2 c;1 w xa 1;1 c"),
    ("phantoms of misses", "1 r ya -;2 r xa -;1 w xa 1;2 w ya 1;1 c;2 c"),
    ("phantoms of removals", "1 s y=0;2 s x=0;1 d x;2 d y;1 c;2 c"),
    ("phantoms of removals, one ends first", "1 s y=0;2 s x=0;2 d y;2 c;1 d x;1 c"),
    (
        "two overwriters",
        "1 r x 0;2 r ya -;2 w x 1;2 c;3 w x 2;3 c;4 r x 2;4 w y 4;4 c;1 r y 0;1 w ya 1;1 c",
    ),
    ("a removed record", "1 r x 0;2 d x;2 c;3 r x -;3 w x 3;3 r ya -;3 c;1 w ya 1;1 c"),
];

/// What commits where all is in keyspaces with versions, under either.
const HARMLESS: &[(&str, &str)] = &[
    ("an old reader", "1 r x 0;2 w x 2;2 w y 2;2 c;1 r y 0;1 c"),
    ("an old reader of ranges", "1 s x=0;2 w xb 1;2 d x;2 w y 2;2 c;1 s y=0;1 s x=0;1 c"),
    ("a plain write", "1 r x 0;0 w x 2;0 w y 2;1 r y 0;1 c"),
    ("who came before", "1 r x 0;2 w x 2;2 c;1 w ya 1;1 c"),
    ("who came before, by ranges", "1 s x=0;2 w xb 1;2 c;1 w ya 1;1 c"),
    ("blind writes", "1 w x 1;2 w y 2;1 c;2 c"),
    ("one after the other", "1 r x 0;1 w y 1;1 c;2 r y 1;2 w x 2;2 c"),
    ("neighbours", "1 s x=0;2 r xa -;2 w y 2;2 c;1 w ya 1;1 c"),
    ("what was removed comes back", "1 r x 0;1 d x;1 c;2 r x -;2 w x 2;2 c;0 r x 2"),
];

struct World<'a> {
    db: &'a Db,
    spaces: [&'a Keyspace; 2],
    isolation: Isolation,
    open: BTreeMap<&'a str, Transaction>,
}

impl<'a> World<'a> {
    fn space(&self, key: &str) -> &'a Keyspace {
        self.spaces[usize::from(key.starts_with('y'))]
    }

    fn reset(&self) {
        for space in self.spaces {
            for key in space.keys(..).collect::<Result<Vec<_>>>().unwrap() {
                space.remove(&key).unwrap();
            }
        }
        self.spaces[0].insert("x", "0").unwrap();
        self.spaces[1].insert("y", "0").unwrap();
    }

    fn get(&mut self, who: &str, key: &str) -> Result<String> {
        let space = self.space(key);
        let found = match self.open.get(who) {
            Some(transaction) => transaction.get(space, key)?,
            None => space.get(key)?,
        };
        Ok(found.map_or("-".to_owned(), |value| String::from_utf8(value.to_vec()).unwrap()))
    }

    fn scan(&mut self, who: &str, prefix: &str) -> Result<String> {
        let space = self.space(prefix);
        let found = match self.open.get(who) {
            Some(transaction) => transaction.prefix(space, prefix).collect::<Result<Vec<_>>>()?,
            None => space.prefix(prefix).collect::<Result<Vec<_>>>()?,
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let all = found.iter().map(|(key, value)| format!("{}={}", text(key), text(value)));
        Ok(all.collect::<Vec<_>>().join(","))
    }

    fn put(&mut self, who: &str, key: &str, value: Option<&str>) -> Result<()> {
        let space = self.space(key);
        match (self.open.get_mut(who), value) {
            (Some(transaction), Some(value)) => transaction.insert(space, key, value),
            (Some(transaction), None) => transaction.remove(space, key),
            (None, Some(value)) => space.insert(key, value),
            (None, None) => space.remove(key).map(drop),
        }
    }

    /// Takes a step. Returns whether it was done, and read what it says.
    fn step(&mut self, step: &'a str) -> Result<bool> {
        let words: Vec<&'a str> = step.split(' ').collect();
        let who = words[0];
        if who != "0" && !self.open.contains_key(who) {
            let options = TransactionOptions::default().isolation(self.isolation);
            self.open.insert(who, self.db.begin_with(options)?);
        }
        match words[1..] {
            ["r", key, value] => Ok(self.get(who, key)? == value),
            ["s", all] => Ok(self.scan(who, &all[..1])? == if all.len() == 1 { "" } else { all }),
            ["w", key, value] => self.put(who, key, Some(value)).map(|()| true),
            ["d", key] => self.put(who, key, None).map(|()| true),
            ["c"] => self.open.remove(who).unwrap().commit().map(|()| true),
            ["a"] => {
                self.open.remove(who).unwrap().rollback();
                Ok(true)
            }
            _ => panic!("no step: {step}"),
        }
    }

    /// Writes and removes neighbours, so that leaves are split and joined.
    fn stir(&self, number: usize) {
        for key in (0..8).map(|at| format!("{}{at}", ["w", "z"][at % 2])) {
            for space in self.spaces {
                if number.is_multiple_of(2) {
                    space.insert(&key, [7; 2000]).unwrap();
                } else {
                    space.remove(&key).unwrap();
                }
            }
        }
    }

    /// Plays a script, and says whether all of it happened.
    fn play(&mut self, script: &'a str, is_stirred: bool) -> bool {
        self.reset();
        let mut steps = script.split(';').enumerate();
        let all = steps.all(|(number, step)| {
            if is_stirred {
                self.stir(number);
            }
            self.step(step).unwrap_or_else(|error| {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{step} of {script}: {error}");
                false
            })
        });
        self.open.clear();
        all
    }
}

fn database() -> (tempfile::TempDir, Db, Vec<Keyspace>) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().memory(32 << 20).durability(Durability::Buffered);
    let db = Db::open(directory.path(), options).unwrap();
    let kinds = EngineKind::ALL.into_iter().map(KeyspaceOptions::from);
    let kinds = kinds.chain([
        KeyspaceOptions::default().logged(false),
        KeyspaceOptions::from(EngineKind::Iot).logged(false),
    ]);
    let spaces = kinds.enumerate().map(|(at, kind)| db.keyspace(&at.to_string(), kind).unwrap());
    let spaces = spaces.collect();
    (directory, db, spaces)
}

fn pairs(spaces: &[Keyspace]) -> impl Iterator<Item = [&Keyspace; 2]> {
    spaces.iter().flat_map(move |one| spaces.iter().map(move |other| [one, other]))
}

fn has_versions(spaces: [&Keyspace; 2]) -> bool {
    spaces.iter().all(|it| it.engine() == EngineKind::Iot)
}

/// Plays all scripts over a pair of keyspaces, calm and stirred; `expected` says whether all of a script happens.
fn play(
    (db, spaces): (&Db, [&Keyspace; 2]),
    isolation: Isolation,
    scripts: &[&[(&str, &str)]],
    expected: bool,
) {
    for (name, script) in scripts.iter().copied().flatten() {
        for is_stirred in [false, true] {
            let mut world = World { db, spaces, isolation, open: BTreeMap::new() };
            let happened = world.play(script, is_stirred);
            let of = spaces.map(|space| space.engine().name());
            assert!(
                happened == expected,
                "{name}, over {of:?}, {isolation:?}, stirred {is_stirred}"
            );
        }
    }
}

#[test]
fn none_occurs_where_transactions_are_serializable() {
    let (_directory, db, spaces) = database();
    for pair in pairs(&spaces) {
        play((&db, pair), Isolation::Serializable, &[PREVENTED, OF_SNAPSHOTS], false);
        if has_versions(pair) {
            play((&db, pair), Isolation::Serializable, &[HARMLESS], true);
        }
    }
}

#[test]
fn snapshot_isolation_lets_write_skew_and_its_kin_happen_and_no_other() {
    let (_directory, db, spaces) = database();
    for pair in pairs(&spaces).filter(|pair| has_versions(*pair)) {
        play((&db, pair), Isolation::Snapshot, &[PREVENTED], false);
        play((&db, pair), Isolation::Snapshot, &[OF_SNAPSHOTS, HARMLESS], true);
    }
}

#[test]
fn snapshot_isolation_is_for_keyspaces_with_versions() {
    let (_directory, db, spaces) = database();
    let snapshot = TransactionOptions::default().isolation(Isolation::Snapshot);
    for space in spaces.iter().filter(|space| space.engine() != EngineKind::Iot) {
        let mut transaction = db.begin_with(snapshot).unwrap();
        let refused = |result: Result<()>| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains("iot"), "{error}");
        };
        refused(transaction.get(space, "x").map(drop));
        refused(transaction.range(space, ..).try_for_each(|one| one.map(drop)));
        refused(transaction.insert(space, "x", "1"));
        refused(transaction.remove(space, "x"));
    }
}
