//! Every peer runs every workload without an error of its own or a wrong answer.

use std::collections::BTreeMap;

use spinney_bench::dataset::DatasetName;
use spinney_bench::distribution::{Distribution, Generator};
use spinney_bench::plan::{Durability, LoadOrder, Plan, TornWrites, Workload};
use spinney_bench::runner::{self, Event};

/// A test leaves the control groups of the machine alone.
fn knobs_of(engine: &str) -> BTreeMap<String, String> {
    let off = ("memory-limit".to_owned(), "off".to_owned());
    (!engine.starts_with("rocksdb")).then_some(off).into_iter().collect()
}

#[test]
fn every_peer_runs_every_workload() {
    for driver in spinney_bench_peers::drivers() {
        for &durability in Durability::ALL {
            let directory = tempfile::tempdir().unwrap();
            let plan = Plan {
                engine: driver.name().to_owned(),
                workloads: Workload::ALL.to_vec(),
                records: 500,
                load: LoadOrder::Random,
                kill: None,
                record_size: 64,
                threads: 2,
                warmup_seconds: 0.0,
                seconds: 0.05,
                operations: Some(100),
                distribution: Distribution::Zipfian,
                theta: 0.99,
                zipf: Generator::Exact,
                memory: 16 << 20,
                durability,
                torn_writes: TornWrites::Assume4k,
                dataset: DatasetName::Groups,
                scan_length: None,
                multi_get: 7,
                keyspaces: 1,
                busy: 1,
                turns: 0.0,
                directory: directory.path().to_owned(),
                seed: 1,
                knobs: knobs_of(driver.name()),
            };
            let mut rows = Vec::new();
            let mut ratios = Vec::new();
            runner::run(&plan, driver.as_ref(), &mut |event| {
                if let Event::Done { row, commits_per_flush, .. } = event {
                    rows.push(row);
                    ratios.push(commits_per_flush);
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(rows.len(), Workload::ALL.len());
            for row in rows {
                assert_eq!(row.errors, 0, "{} {} {durability}", row.engine, row.workload);
            }
            let counted = driver.name().starts_with("rocksdb") && durability == Durability::Sync;
            assert_eq!(ratios[0].is_some(), counted, "{} {durability}", driver.name());
        }
    }
}

#[test]
fn an_unknown_option_is_refused() {
    for driver in spinney_bench_peers::drivers() {
        let knobs = BTreeMap::from([("colour".to_owned(), "green".to_owned())]);
        let error = driver.check_knobs(&knobs).expect_err("there is no such option").to_string();
        assert!(error.contains("colour") && error.contains(driver.name()), "{error}");
        driver.check_knobs(&knobs_of(driver.name())).expect("these are its own");
    }
}
