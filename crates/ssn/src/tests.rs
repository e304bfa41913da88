//! Random histories step by step on one thread, the same on many threads, and scripts of single rules.

use std::task::Poll;

use spinney_base::runtime::SplitMix;
use spinney_base::{ErrorKind, Runtime};

use crate::world::{Runner, World};
use crate::*;

const TRANSACTIONS: usize = 6;
const OPERATIONS: usize = 4;

/// Steps that find nothing to do but wait, one after the other, until nothing can go on.
const IDLE_MAX: usize = 5_000;

/// Runs one random history; returns how many transactions committed.
fn history(seed: u64, stamp_before_locks: bool) -> Result<usize, String> {
    let mut random = SplitMix(seed);
    let own_bits = [63, 63, 1][random.below(3)];
    let mut world = World::new(6, own_bits, &mut random);
    world.stamp_before_locks = stamp_before_locks;
    let mut running: Vec<Runner> =
        (0..TRANSACTIONS).map(|_| Runner::new(&world, OPERATIONS, &mut random)).collect();
    let mut idle = 0;
    while !running.is_empty() {
        let at = random.below(running.len());
        match running[at].step() {
            Poll::Pending => idle += 1,
            Poll::Ready(is_done) => {
                idle = 0;
                if is_done {
                    running.swap_remove(at);
                }
            }
        }
        if idle > IDLE_MAX {
            return Err("deadlock".to_owned());
        }
    }
    world.check()?;
    Ok(world.committed())
}

fn histories(seeds: std::ops::Range<u64>) {
    let (mut committed, count) = (0, seeds.end - seeds.start);
    for seed in seeds {
        committed += history(seed, false).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    let rate = committed as f64 / (count as f64 * TRANSACTIONS as f64);
    println!("{rate:.3} of the transactions committed");
    assert!(rate > 0.35, "only {rate:.3} of the transactions committed");
}

#[test]
fn no_cycle_is_committed() {
    histories(0..60_000);
}
