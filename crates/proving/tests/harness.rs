//! The proving ground proves itself: a sound toy passes the crash test, and every bug of a toy is
//! found.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use spinney_io::sim::SimDisk;
use spinney_proving::crash::{self, Plan, Tally};
use spinney_proving::ops::{KeyShape, Mix, ValueLengths};
use spinney_proving::threads::{self, Load};
use spinney_proving::tier;
use spinney_proving::toy::{Bug, Toy};

// The parts of the suite that a toy can pass: it has no checkpoints to crash in, and its keyspaces
// live in the file whose rot it cannot tell from a tear.
mod sound_toy {
    use super::{Bug, Toy};

    spinney_proving::suite!(@tests Toy(Bug::None);
        model_on_simulated_disk model_on_real_disk crash_while_creating crash_beside_threads linearizable whole_batches);
}

fn plan() -> Plan {
    Plan {
        mix: Mix {
            shape: KeyShape::Paths,
            keys: 60,
            values: ValueLengths {
                most: 0..100,
                large_one_in: 1000,
                large: 200,
                huge_one_in: 0,
                huge: 0..1,
            },
            memory_bytes: 0..0,
            reopen: false,
            buffered: true,
            rare_per_mille: 150,
            bulk: true,
            batches: false,
            removes_one_in: 4,
            keyspaces_max: 6,
            unlogged: true,
            snapshots: false,
            backup: false,
        },
        config: crash::config(1 << 20, 1 << 24),
        operations: 60,
        lives: 3,
        captures: 5,
        start: None,
    }
}

#[test]
fn a_sound_toy_survives() {
    let tally = Arc::new(Tally::default());
    tier::for_each_seed(tier::count(40, 1000), |seed| {
        crash::run(&Toy(Bug::None), &plan(), &tally, seed)
    });
    for state in
        [crash::ALL, crash::RECOVERY, crash::SECOND_RECOVERY, "keyspace create", "keyspace drop"]
    {
        assert!(tally.count(state) > 0, "{state} was never struck: {:?}", tally.counts());
    }
}

#[test]
fn every_bug_of_a_toy_is_found() {
    for bug in [
        Bug::ForgetsSync,
        Bug::ForgetsDirectory,
        Bug::SplitsBatches,
        Bug::TrustsEveryByte,
        Bug::LeavesOldTail,
        Bug::LosesRemovals,
    ] {
        let found = (0..400).any(|seed| {
            let tally = Arc::new(Tally::default());
            let run = || crash::run(&Toy(bug), &plan(), &tally, seed);
            catch_unwind(AssertUnwindSafe(run)).is_err()
        });
        assert!(found, "{bug:?} was not found");
    }
}

#[test]
fn threads_on_a_toy_are_linearizable() {
    let load = Load { threads: 4, operations: 500, keys: 4, ballast: 20 };
    let disk = || Arc::new(SimDisk::new(1));
    threads::linearizable(&Toy(Bug::None), disk(), &plan().config, &load, 1);
    threads::whole_batches(&Toy(Bug::None), disk(), &plan().config, &load, 1);
}
