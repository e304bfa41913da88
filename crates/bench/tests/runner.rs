//! The runner and all workloads on an engine that is nothing but an ordered map, honest or lying.

use std::collections::BTreeMap;
use std::sync::Arc;

use spinney_base::Result;
use spinney_base::shim::RwLock;
use spinney_bench::dataset::DatasetName;
use spinney_bench::distribution::{Distribution, Generator};
use spinney_bench::driver::{Counters, Driver, Knobs, OpenConfig, Session, Store, Terms};
use spinney_bench::plan::{Durability, LoadOrder, Plan, TornWrites, Workload};
use spinney_bench::runner::{self, Event};
use spinney_bench::{Row, parent};

type Map = Arc<RwLock<BTreeMap<Vec<u8>, Vec<u8>>>>;

/// An ordered map; a lying one forgets every hundredth insert, a frail one panics at the hundredth.
#[derive(Clone, Copy, PartialEq)]
enum MapDriver {
    Honest,
    Lying,
    Frail,
}

struct MapStore {
    map: Map,
    character: MapDriver,
}

struct MapSession {
    map: Map,
    character: MapDriver,
    inserts: u64,
}

impl Driver for MapDriver {
    fn name(&self) -> &'static str {
        "map"
    }
    fn is_peer(&self) -> bool {
        false
    }
    fn check_knobs(&self, _: &Knobs) -> Result<()> {
        Ok(())
    }
    fn open(&self, _: &OpenConfig) -> Result<Box<dyn Store>> {
        Ok(Box::new(MapStore { map: Map::default(), character: *self }))
    }
}

impl Store for MapStore {
    fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(MapSession { map: self.map.clone(), character: self.character, inserts: 0 }))
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn counters(&self) -> Result<Counters> {
        Ok(Counters { commits: Some(0), ..Counters::default() })
    }
    fn terms(&self) -> Terms {
        Terms {
            version: "1".to_owned(),
            torn_writes: "none".to_owned(),
            memory_limited: false,
            notes: vec!["holds everything in memory".to_owned()],
        }
    }
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Session for MapSession {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let map = self.map.read();
        let found = map.get(key);
        value.extend_from_slice(found.map_or(&[], |found| found));
        Ok(found.is_some())
    }
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.inserts += 1;
        let hundredth = self.inserts.is_multiple_of(100);
        assert!(!hundredth || self.character != MapDriver::Frail, "a panic that the test asks for");
        if !hundredth || self.character != MapDriver::Lying {
            self.map.write().insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }
    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.map.write().remove(key);
        Ok(())
    }
    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        for (key, value) in self.map.read().range(start.to_vec()..).take(limit) {
            visit(key, value);
        }
        Ok(())
    }
}

fn plan(directory: &std::path::Path) -> Plan {
    Plan {
        engine: "map".to_owned(),
        workloads: Workload::ALL.to_vec(),
        records: 2000,
        load: LoadOrder::Random,
        kill: None,
        record_size: 64,
        threads: 3,
        warmup_seconds: 0.01,
        seconds: 0.05,
        operations: Some(1000),
        distribution: Distribution::Zipfian,
        theta: 0.99,
        zipf: Generator::Exact,
        memory: 1 << 20,
        durability: Durability::None,
        torn_writes: TornWrites::Assume4k,
        dataset: DatasetName::Groups,
        scan_length: None,
        multi_get: 7,
        keyspaces: 1,
        busy: 1,
        turns: 0.0,
        directory: directory.to_owned(),
        seed: 1,
        knobs: BTreeMap::new(),
    }
}

fn rows(plan: &Plan, driver: &MapDriver) -> Vec<Row> {
    let mut rows = Vec::new();
    runner::run(plan, driver, &mut |event| {
        if let Event::Done { row, .. } = event {
            rows.push(*row);
        }
        Ok(())
    })
    .unwrap();
    rows
}

#[test]
fn every_workload_runs_and_an_honest_map_makes_no_errors() {
    let directory = tempfile::tempdir().unwrap();
    for dataset in ["groups", "uniform", "osm-like", "amazon-like", "words"] {
        let mut plan = Plan { dataset: dataset.parse().unwrap(), ..plan(directory.path()) };
        plan.workloads.retain(|one| *one != Workload::Groups || dataset == "groups");
        let rows = rows(&plan, &MapDriver::Honest);
        let names: Vec<&str> = rows.iter().map(|row| row.workload.as_str()).collect();
        assert_eq!(names, plan.workloads.iter().map(|one| one.name()).collect::<Vec<_>>());
        for row in &rows {
            assert_eq!(row.errors, 0, "{dataset} {}", row.workload);
            let operations = if row.workload == "load" { 2000 } else { 1000 };
            assert_eq!(row.operations, operations, "{dataset} {}", row.workload);
            assert!(row.p50_us <= row.p99_us && row.p99_us <= row.max_us);
            assert!(row.memory_bytes.is_none());
        }
        assert_eq!(rows[0].logical_bytes, 2000 * 64, "{dataset}");
        assert_eq!(rows[4].distribution, "latest");
    }
}

#[test]
fn seconds_end_a_measurement_too() {
    let directory = tempfile::tempdir().unwrap();
    let plan = Plan {
        operations: None,
        workloads: vec![Workload::C, Workload::Shift],
        ..plan(directory.path())
    };
    let rows = rows(&plan, &MapDriver::Honest);
    assert_eq!(rows.len(), 2, "the load that was not asked for is not shown");
    for row in rows {
        assert!(row.operations > 0 && row.seconds >= 0.05 && row.errors == 0);
    }
}

#[test]
fn a_lost_record_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let mut plan = plan(directory.path());
    plan.dataset = DatasetName::Groups;
    plan.workloads = vec![Workload::Load, Workload::C, Workload::S, Workload::M, Workload::Groups];
    plan.distribution = Distribution::Uniform;
    plan.operations = Some(20_000);
    let rows = rows(&plan, &MapDriver::Lying);
    assert_eq!(rows[0].errors, 0);
    assert!(rows[1..].iter().all(|row| row.errors > 0), "{rows:?}");
}

/// Every order leaves the same records, and later workloads find all of them.
#[test]
fn records_can_be_loaded_in_key_order() {
    let directory = tempfile::tempdir().unwrap();
    // An exponent at which the authors' generator draws more than two records.
    for (&load, zipf) in
        LoadOrder::ALL.iter().zip([Generator::Exact, Generator::Authors].iter().cycle())
    {
        let workloads = vec![Workload::Load, Workload::C, Workload::E, Workload::Groups];
        let plan = Plan { load, zipf: *zipf, theta: 0.5, workloads, ..plan(directory.path()) };
        let rows = rows(&plan, &MapDriver::Honest);
        for row in &rows {
            assert_eq!(row.errors, 0, "{load} {}", row.workload);
        }
        assert_eq!((rows[0].operations, rows[0].logical_bytes), (2000, 2000 * 64), "{load}");
        assert_eq!(rows[0].threads, if load == LoadOrder::Bulk { 1 } else { 3 });
        let name = if *zipf == Generator::Exact { "zipfian" } else { "zipfian-authors" };
        assert_eq!((&*rows[0].distribution, &*rows[1].distribution), ("uniform", name));
        let lost = self::rows(&plan, &MapDriver::Lying);
        assert!(lost.iter().any(|row| row.errors > 0), "{load}");
    }
    let twice = vec![Workload::C, Workload::Load];
    let twice = Plan { load: LoadOrder::Bulk, workloads: twice, ..plan(directory.path()) };
    assert!(twice.check().unwrap_err().to_string().contains("first workload"));
    let constant = Plan { zipf: Generator::Authors, theta: 1.0, ..plan(directory.path()) };
    assert!(constant.check().unwrap_err().to_string().contains("--theta below 1"));
}

#[test]
fn groups_are_read_of_a_data_set_that_has_some() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |plan: Plan, words: &str| {
        let told = plan.check().unwrap_err().to_string();
        assert!(told.contains(words), "{told}");
    };
    refused(Plan { dataset: DatasetName::Uniform, ..plan(directory.path()) }, "--dataset groups");
    refused(Plan { records: 53, ..plan(directory.path()) }, "at least 54");
}

#[test]
fn a_panic_ends_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let ran = runner::run(&plan(directory.path()), &MapDriver::Frail, &mut |_| Ok(()));
    assert!(ran.unwrap_err().to_string().contains("panicked"));
}

#[test]
fn a_child_speaks_lines_of_json() {
    let directory = tempfile::tempdir().unwrap();
    let drivers: Vec<Box<dyn Driver>> = vec![Box::new(MapDriver::Honest)];
    let talk = |plan: &Plan| {
        let input = serde_json::to_string(plan).unwrap() + "\n";
        let mut output = Vec::new();
        let well = parent::child(&drivers, &mut input.as_bytes(), &mut output).unwrap();
        let events: Vec<Event> = String::from_utf8(output)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        (well, events)
    };
    let good = Plan { workloads: vec![Workload::Load, Workload::A], ..plan(directory.path()) };
    let (well, events) = talk(&good);
    assert!(well);
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Done { .. })).count(), 2);
    assert!(
        events.iter().any(|event| matches!(event, Event::Note(note) if note.contains("in memory")))
    );
    assert!(events.iter().any(|event| matches!(event, Event::Point { .. })));
    let (well, events) = talk(&Plan { engine: "oak".to_owned(), ..good });
    assert!(!well);
    assert!(
        matches!(events.last(), Some(Event::Failed(message)) if message.contains("oak")),
        "{events:?}"
    );
}
