//! Schedules under which tests have shuttle run whole engines and databases, which take thousands
//! of steps each.
//!
//! Shuttle's own random scheduler chooses a thread at every step. It hardly ever lets one thread
//! take a whole checkpoint while another stands between two steps. [`check`] lets a thread run for
//! a while before another's turn. All magnitudes of a while are equally likely.

use std::ops::Range;

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use crate::runtime::SplitMix;

/// Magnitudes of a while, in steps.
const MAGNITUDES: usize = 14;

/// Bytes of a stack: a whole database does not fit shuttle's default.
const STACK_BYTES: usize = 16 << 20;

/// Chooses how long a thread runs and which comes next, by a seed for each run.
#[derive(Debug)]
struct Bursts {
    runs: Range<u64>,
    random: SplitMix,
    left: usize,
}

impl Bursts {
    fn burst(&mut self) -> usize {
        let magnitude = self.random.below(MAGNITUDES);
        self.random.below(2 << magnitude)
    }
}

impl Scheduler for Bursts {
    fn new_execution(&mut self) -> Option<Schedule> {
        let seed = self.runs.next()?;
        self.random = SplitMix(seed);
        self.left = self.burst();
        Some(Schedule::new(seed))
    }

    fn next_task(&mut self, ready: &[&Task], now: Option<TaskId>, yields: bool) -> Option<TaskId> {
        let goes_on = ready.iter().map(|task| task.id()).find(|task| Some(*task) == now);
        let others: Vec<_> =
            ready.iter().map(|task| task.id()).filter(|task| Some(*task) != now).collect();
        match goes_on {
            Some(task) if others.is_empty() => Some(task),
            Some(task) if !yields && self.left > 0 => {
                self.left -= 1;
                Some(task)
            }
            _ => {
                self.left = self.burst();
                Some(others[self.random.below(others.len())])
            }
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.random.next_u64()
    }
}

/// Percent of all schedules to run, in the environment: the gate runs the first ones only.
const PERCENT: &str = "SPINNEY_SCHEDULES";

/// Runs a body under `iterations` schedules, always the same ones, or under the first ones of them.
///
/// # Panics
/// When the body does, or `SPINNEY_SCHEDULES` is no number.
pub fn check(iterations: u64, body: impl Fn() + Send + Sync + 'static) {
    let percent = std::env::var(PERCENT).map_or(100, |text| {
        text.parse::<u64>().unwrap_or_else(|_| panic!("{PERCENT} is a number of percent"))
    });
    let iterations = (iterations * percent / 100).max(1);
    let mut config = shuttle::Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = shuttle::MaxSteps::None;
    let bursts = Bursts { runs: 0..iterations, random: SplitMix(0), left: 0 };
    shuttle::Runner::new(bursts, config).run(body);
}
