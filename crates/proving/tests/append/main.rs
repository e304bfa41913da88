//! List-append histories of transactions, judged by the crate `adya` and by our graph: those of the
//! engines are right, those of stores with planted faults are not, and both judges say the same.
//!
//! A history on which they differ is decided by hand and kept in `histories/`: its head says what
//! each of them answers, and what is so.

mod by_hand;

use std::path::Path;

use adya::r#gen::GenOpts;
use adya::sim::{self, Isolation, SimOpts};
use spinney::{Db, Durability, EngineKind, Error, ErrorKind, Options, Result, limits};
use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
use spinney_bench::append::history::{History, Kind, Operation};
use spinney_bench::append::lists::{InKeyspaces, InTransaction, ListTransaction, Lists};
use spinney_bench::append::work::{self, Work};
use spinney_proving::serial::judge::{self, Verdicts};
use spinney_proving::serial::lists;
use spinney_proving::serial::planted::{FAULTS, Planted};
use spinney_proving::tier::{self, Random};

/// Stores of the histories: engines of each kind, and several in one transaction.
const STORES: [&[EngineKind]; 6] = [
    &[EngineKind::TreeLine],
    &[EngineKind::Turtle],
    &[EngineKind::TreeLine, EngineKind::Turtle],
    &[EngineKind::Iot],
    &[EngineKind::TreeLine, EngineKind::Iot],
    &[EngineKind::Turtle, EngineKind::Iot],
];

/// Has both judge a history. A history on which they differ is kept in a file, which is named.
fn judged(name: &str, history: &History) -> Verdicts {
    let verdicts = judge::both(history);
    if !verdicts.agree() {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.edn"));
        std::fs::write(&file, judge::edn(history)).unwrap();
        panic!("the judges differ: {verdicts:?}; decide by hand: {}", file.display());
    }
    verdicts
}

fn open(directory: &Path, engines: &[EngineKind]) -> InKeyspaces {
    let options =
        Options::default().memory(8 * limits::MEMORY_BYTES_MIN).durability(Durability::Buffered);
    let db = Db::open(directory, options).unwrap();
    let keyspaces = (engines.iter().enumerate())
        .map(|(number, engine)| db.keyspace(&number.to_string(), *engine).unwrap())
        .collect();
    InKeyspaces { db, keyspaces }
}

/// The work of a seed.
fn work(seed: u64, transactions: u64) -> Work {
    let pick = |of: [u64; 3], by: u64| of[usize::try_from(seed / by % 3).unwrap()];
    Work {
        threads: pick([2, 4, 16], 1),
        transactions,
        keys: pick([8, 3, 24], 3),
        appends: pick([32, 12, 64], 9),
        longest: pick([5, 8, 3], 2),
        seed,
    }
}

fn run<L: Lists>(lists: &L, work: &Work) -> work::Outcome {
    let outcome = work::run(lists, work, &|| false);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    outcome
}

/// Transactions whose commit says that it does not know, now and then: half of these have
/// committed.
struct Doubtful {
    lists: InKeyspaces,
    commits: AtomicU64,
}

struct DoubtfulTransaction<'a>(InTransaction<'a>, u64);

impl Lists for Doubtful {
    type Transaction<'a> = DoubtfulTransaction<'a>;

    fn begin(&self) -> Result<DoubtfulTransaction<'_>> {
        Ok(DoubtfulTransaction(self.lists.begin()?, self.commits.fetch_add(1, SeqCst)))
    }
}

impl ListTransaction for DoubtfulTransaction<'_> {
    fn read(&mut self, key: u64) -> Result<Option<Vec<u64>>> {
        self.0.read(key)
    }

    fn write(&mut self, key: u64, list: &[u64]) -> Result<()> {
        self.0.write(key, list)
    }

    fn commit(self) -> Result<()> {
        match self.1 % 40 {
            0 => Err(Error::new(ErrorKind::Io, "planted: it did not commit")),
            20 => match self.0.commit() {
                Ok(()) => Err(Error::new(ErrorKind::Io, "planted: it committed")),
                failed => failed,
            },
            _ => self.0.commit(),
        }
    }
}

#[test]
fn histories_of_the_engines_are_right() {
    let (count, transactions) = if tier::is_full() { (100, 5000) } else { (6, 600) };
    let mut conflicts = 0;
    for seed in tier::seeds(count) {
        let announce = tier::Announce(seed);
        let engines = STORES[usize::try_from(seed).unwrap() % STORES.len()];
        let directory = tempfile::tempdir().unwrap();
        let work = work(seed / 3, transactions);
        let lists = open(directory.path(), engines);
        let outcome = if seed % 2 == 0 {
            run(&lists, &work)
        } else {
            let outcome = run(&Doubtful { lists, commits: AtomicU64::new(0) }, &work);
            assert!(outcome.unknown > 0);
            outcome
        };
        assert!(outcome.committed > transactions / 4, "{} committed", outcome.committed);
        let verdicts = judged(&format!("right-{seed}"), &outcome.history);
        assert!(verdicts.graph.is_ok(), "{verdicts:?}");
        println!(
            "seed {seed}: {engines:?}, {work:?}: {} committed, {} conflicts, {} unknown",
            outcome.committed, outcome.conflicts, outcome.unknown
        );
        conflicts += outcome.conflicts;
        drop(announce);
    }
    assert!(conflicts > 0 || tier::is_replay(), "nobody met anybody");
}

#[test]
fn planted_faults_are_found() {
    let (of_each, transactions) = if tier::is_full() { (10, 2000) } else { (1, 500) };
    let mut missed = Vec::new();
    for seed in tier::seeds(of_each * FAULTS.len() as u64) {
        let announce = tier::Announce(seed);
        let fault = FAULTS[usize::try_from(seed).unwrap() % FAULTS.len()];
        let engines = STORES[usize::try_from(seed).unwrap() % STORES.len()];
        let directory = tempfile::tempdir().unwrap();
        let lists = Planted::new(open(directory.path(), engines), fault);
        let work = work(seed / 3 + 1, transactions);
        let outcome = run(&lists, &work);
        let verdicts = judged(&format!("{fault:?}-{seed}"), &outcome.history);
        let story = verdicts.graph.as_ref().err().and_then(|story| story.lines().next());
        println!("seed {seed}: {fault:?}, {engines:?}, {work:?}: {:?}, {story:?}", verdicts.adya);
        if verdicts.adya.is_empty() {
            missed.push((fault, seed));
        }
        drop(announce);
    }
    // Which transactions meet is the scheduler's choice, so one history may show nothing.
    assert!(missed.len() as u64 <= of_each, "no anomaly in {missed:?}");
    for fault in FAULTS {
        let of_fault = missed.iter().filter(|(missed, _)| *missed == fault).count() as u64;
        assert!(of_fault * 2 < of_each + 2, "no anomaly in {missed:?}");
    }
}

/// The simulator of `adya` is a second maker of histories whose anomalies are known.
#[test]
fn simulated_histories_show_what_their_isolation_allows() {
    let count = tier::count(2, 20);
    for (isolation, anomalies) in [
        (Isolation::Serializable, &[][..]),
        (Isolation::SnapshotIsolation, &["G2-item"]),
        (Isolation::ReadCommitted, &["G-single-item", "G-nonadjacent-item"]),
        (Isolation::ReadUncommitted, &["G1a"]),
        (Isolation::LostUpdate, &["incompatible-order"]),
    ] {
        for seed in tier::seeds(count) {
            let generated = GenOpts { max_txn_len: 6, ..GenOpts::default() };
            let options =
                SimOpts { isolation, txns: 700, seed, r#gen: generated, ..SimOpts::default() };
            let simulated = adya::History::from_json(&sim::run(&options)).unwrap();
            let name = format!("{isolation:?}-{seed}");
            let Verdicts { adya, graph } = judged(&name, &judge::convert(&simulated));
            assert_eq!(graph.is_ok(), anomalies.is_empty(), "{name}: {graph:?}");
            assert!(
                anomalies.is_empty() || adya.iter().any(|it| anomalies.contains(&&it[..])),
                "{name}: {adya:?}"
            );
        }
    }
}

/// Changes what one event says: a read shows less, or what another one showed; a commit becomes a
/// failure or is in doubt; two events change places.
fn change(history: &mut History, random: &mut Random) {
    let place = random.below(history.events.len());
    let event = &history.events[place];
    if random.one_in(3) {
        let next = history.events.get(place + 1);
        if next.is_some_and(|next| next.process != event.process) {
            history.events.swap(place, place + 1);
        }
        return;
    }
    if event.kind != Kind::Ok {
        return;
    }
    if random.one_in(3) {
        let event = &mut history.events[place];
        event.kind = *random.pick(&[Kind::Fail, Kind::Info]);
        for operation in &mut event.operations {
            if let Operation::Read { list, .. } = operation {
                *list = None;
            }
        }
        return;
    }
    let which = random.below(event.operations.len());
    let Operation::Read { key, list } = &event.operations[which] else { return };
    let shows = |operation: &Operation| match operation {
        Operation::Read { key: of, list } if of == key => Some(list.clone()),
        _ => None,
    };
    let shown: Vec<_> = (history.events.iter())
        .filter(|event| event.kind == Kind::Ok)
        .flat_map(|event| event.operations.iter().filter_map(shows))
        .collect();
    let shorter = list.as_deref().and_then(|list| list.split_last()).map(|(_, rest)| rest.to_vec());
    let new = if random.one_in(2) { random.pick(&shown).clone() } else { shorter };
    let key = *key;
    history.events[place].operations[which] = Operation::Read { key, list: new };
}

/// Short histories are right or wrong by one event, so here the judges could differ.
#[test]
fn both_judges_agree_on_short_histories() {
    let isolations = [
        Isolation::Serializable,
        Isolation::SnapshotIsolation,
        Isolation::ReadCommitted,
        Isolation::ReadUncommitted,
        Isolation::LostUpdate,
    ];
    let (mut right, mut wrong) = (0, 0);
    for seed in tier::seeds(tier::count(1500, 100_000)) {
        let mut random = Random::new(seed, 7);
        let generated = GenOpts { key_count: 1 + random.below(4), ..GenOpts::default() };
        let options = SimOpts {
            isolation: *random.pick(&isolations),
            processes: 2 + random.below(4),
            txns: 3 + random.below(20),
            info_rate: 0.1,
            seed,
            r#gen: generated,
            ..SimOpts::default()
        };
        let simulated = adya::History::from_json(&sim::run(&options)).unwrap();
        let mut history = judge::convert(&simulated);
        for _ in 0..random.below(3) {
            change(&mut history, &mut random);
        }
        match judged(&format!("short-{seed}"), &history).graph {
            Ok(()) => right += 1,
            Err(_) => wrong += 1,
        }
    }
    println!("{right} right, {wrong} wrong");
    assert!(right.min(wrong) * 5 > right.max(wrong) || tier::is_replay(), "{right}, {wrong}");
}

/// Each kept history is answered as its head says, and our graph is right.
#[test]
fn differences_are_as_they_were_decided() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("histories");
    let mut count = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let head = |field: &str| -> bool {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("; {field}: ")));
            match line.unwrap_or_else(|| panic!("{} has no {field}", path.display())) {
                line if line.starts_with("right") => true,
                line if line.starts_with("wrong") => false,
                line => panic!("{}: {line}", path.display()),
            }
        };
        let parsed = judge::parse(&text);
        let graph = lists::check(&judge::convert(&parsed));
        let adya = judge::adya(&parsed);
        assert_eq!(adya.is_empty(), head("adya"), "{}: {adya:?}", path.display());
        assert_eq!(graph.is_ok(), head("graph"), "{}: {graph:?}", path.display());
        assert_eq!(graph.is_ok(), head("decided"), "{}: {graph:?}", path.display());
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn processes_of_unknown_outcome_are_not_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let lists = Doubtful {
        lists: open(directory.path(), &[EngineKind::TreeLine]),
        commits: AtomicU64::new(0),
    };
    let outcome = run(&lists, &work(0, 300));
    let mut ended: Vec<u64> = Vec::new();
    let mut running: Vec<u64> = Vec::new();
    for event in &outcome.history.events {
        assert!(!ended.contains(&event.process), "process {} went on", event.process);
        match event.kind {
            Kind::Invoke => {
                assert!(!running.contains(&event.process));
                running.push(event.process);
            }
            kind => {
                running.retain(|process| *process != event.process);
                if kind == Kind::Info {
                    ended.push(event.process);
                }
            }
        }
    }
    assert!(running.is_empty());
    assert_eq!(ended.len() as u64, outcome.unknown);
}
