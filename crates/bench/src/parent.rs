//! The parent process: one child process per engine, a progress bar, the table, and the files of
//! results.
//!
//! A child reads its [`Plan`] and reports [`Event`]s as `processes` says. An interrupted run prints
//! what it has measured.

use std::fs::File;
use std::io::{BufRead, BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use spinney_base::size::display_bytes;
use spinney_base::{Error, ErrorKind, Result};

use crate::conclusion;
use crate::distribution::Generator;
use crate::driver::Driver;
use crate::plan::Plan;
pub use crate::processes::Interrupted;
use crate::processes::{self, Ended, misunderstood, tell_parent};
pub(crate) use crate::processes::{OwnDirectory, interrupted};
use crate::recovery::{self, Kill, Killed, Points};
use crate::row::Row;
use crate::runner::{self, Event};
use crate::shape::Shape;
use crate::table::{self, Line};

/// Steps of the progress bar.
pub(crate) const BAR_STEPS: u64 = 1000;

/// What to run and where to put the results.
#[derive(Debug)]
pub struct Run {
    /// A plan per engine, in order; [`Plan::directory`] is filled in here.
    pub plans: Vec<Plan>,
    /// Which of the engines are peers.
    pub peers: Vec<String>,
    /// Where the engines' files go, which is there: a directory of this run's own is made inside
    /// and removed at the end.
    pub directory: PathBuf,
    /// Leave the engines' files.
    pub keep: bool,
    /// Print what the engines did inside, too.
    pub explain: bool,
    /// Where to write rows, one a line.
    pub json: Option<PathBuf>,
    /// Where to write the time series.
    pub series: Option<PathBuf>,
    /// Seconds of the last workload after which each engine's process is killed.
    pub kill_after: Option<f64>,
    /// Arguments that make this program the child of a run.
    pub child_arguments: Vec<String>,
    /// Sentences about the run, which stand below the table.
    pub notes: Vec<String>,
    /// Whether it is to end early.
    pub interrupted: Interrupted,
}

/// Runs everything and prints the table to `out`; whether all went well.
///
/// # Errors
/// `InvalidArgument` when the directory is not there or a file cannot be made; `Io` when a child
/// cannot be started or a file not be written; `Cancelled` when it was interrupted, after the table
/// of what was measured. The table's notes name an engine that fails, and the answer is `false`
/// then.
pub fn run(run: &Run, out: &mut dyn Write) -> Result<bool> {
    let directory = OwnDirectory::create(&run.directory, run.keep)?;
    let mut results = Results::create(run)?;
    if let Some(plan) = run.plans.first() {
        say(out, &table::wrap(&headline(plan)))?;
    }
    for plan in &run.plans {
        let own = directory.path.join(&plan.engine);
        std::fs::create_dir(&own)
            .map_err(|error| Error::io(format!("create {}", own.display()), error))?;
        let plan = Plan { directory: own.clone(), ..plan.clone() };
        match run.kill_after {
            Some(seconds) => results.run_and_kill(&plan, seconds, run)?,
            None => _ = results.run_child(&plan, &run.child_arguments, run.interrupted)?,
        }
        if !run.keep {
            // The next engine should find the disk as this one did. What is left is removed with
            // the whole directory.
            let _ = std::fs::remove_dir_all(&own);
        }
        if results.interrupted {
            break;
        }
    }
    results.tell(run, out)?;
    if results.interrupted {
        let all: usize = run.plans.iter().map(|plan| plan.workloads.len()).sum();
        return Err(interrupted(format!(
            "{} of {all} workloads were measured",
            results.lines.len()
        )));
    }
    Ok(!results.failed)
}
/// The result of one workload.
pub(crate) type Measured = (Row, Option<Shape>);

/// Runs one plan in a child process, in a new directory that is removed afterwards: the row and the
/// shape of each workload, or why there are none. `Cancelled` when it was interrupted.
pub(crate) fn measure(
    plan: &Plan,
    arguments: &[String],
    is_interrupted: Interrupted,
) -> Result<std::result::Result<Vec<Measured>, String>> {
    let measured = measure_with_points(plan, arguments, is_interrupted)?;
    Ok(measured.map(|(lines, _)| lines))
}

/// As [`measure`], with the time series of the last workload.
pub(crate) fn measure_with_points(
    plan: &Plan,
    arguments: &[String],
    is_interrupted: Interrupted,
) -> Result<std::result::Result<(Vec<Measured>, Points), String>> {
    let own = &plan.directory;
    std::fs::create_dir(own)
        .map_err(|error| Error::io(format!("create {}", own.display()), error))?;
    let mut results = Results::default();
    let ran = results.run_child(plan, arguments, is_interrupted);
    std::fs::remove_dir_all(own)
        .map_err(|error| Error::io(format!("remove {}", own.display()), error))?;
    ran?;
    if results.interrupted {
        return Err(interrupted("the run was interrupted"));
    }
    Ok(if results.failed {
        Err(results.notes.join("; "))
    } else {
        let lines = results.lines.into_iter().map(|line| (line.row, line.shape)).collect();
        Ok((lines, results.points.1))
    })
}

pub(crate) fn say(out: &mut dyn Write, text: &str) -> Result<()> {
    writeln!(out, "{text}").map_err(|error| Error::io("write the results", error))
}

fn headline(plan: &Plan) -> String {
    let length = match plan.operations {
        Some(operations) => format!("{operations} operations"),
        None => format!("{} s", plan.seconds),
    };
    format!(
        "{} records of {} B ({} keys, {} load), {} {}, {} threads, {} of memory, durability {}{}, torn writes {}, {length} after {} s of warm-up, seed {}",
        plan.records,
        plan.record_size,
        plan.dataset,
        plan.load,
        match plan.zipf {
            Generator::Exact => plan.distribution.to_string(),
            Generator::Authors => format!("{} by the authors' generator", plan.distribution),
        },
        plan.theta,
        plan.threads,
        display_bytes(plan.memory),
        plan.durability,
        if plan.emulates_memory() { " on emulated persistent memory" } else { "" },
        plan.torn_writes,
        plan.warmup_seconds,
        plan.seed,
    )
}

/// What the children have told so far, and the files that it goes to.
#[derive(Default)]
struct Results {
    lines: Vec<Line>,
    /// The time series of the last workload.
    points: (String, Points),
    /// When to kill the child: a workload, and the second of its measurement.
    kill: Option<(String, f64)>,
    kills: Vec<Killed>,
    notes: Vec<String>,
    internals: Vec<String>,
    failed: bool,
    interrupted: bool,
    json: Option<(PathBuf, BufWriter<File>)>,
    series: Option<(PathBuf, BufWriter<File>)>,
}

impl Results {
    fn create(run: &Run) -> Result<Self> {
        let create = |path: &Option<PathBuf>| -> Result<Option<(PathBuf, BufWriter<File>)>> {
            let Some(path) = path else { return Ok(None) };
            let file = File::create(path)
                .map_err(|error| Error::unopened(format!("create {}", path.display()), error))?;
            Ok(Some((path.clone(), BufWriter::new(file))))
        };
        let mut results = Results {
            json: create(&run.json)?,
            series: create(&run.series)?,
            notes: run.notes.clone(),
            ..Results::default()
        };
        append(&mut results.series, "engine,workload,second,operations")?;
        Ok(results)
    }

    /// Prints the table and what belongs to it.
    fn tell(&self, run: &Run, out: &mut dyn Write) -> Result<()> {
        let engines = run.plans.iter().map(|plan| &plan.engine);
        let peer = engines.into_iter().find(|engine| run.peers.contains(engine));
        let peer = peer.filter(|peer| self.lines.iter().any(|line| line.row.engine == **peer));
        let peer = peer.map(String::as_str);
        if !self.lines.is_empty() {
            say(out, &table::draw(&self.lines))?;
            say(out, "")?;
            say(out, &table::io(&self.lines))?;
            say(out, "")?;
            let means = peer.map(|peer| table::means(&self.lines, peer)).unwrap_or_default();
            for sentence in conclusion::sentences(&self.lines).iter().chain(&means) {
                say(out, &table::wrap(sentence))?;
            }
            say(out, "")?;
            say(out, table::LEGEND)?;
            say(out, "")?;
        }
        if !self.kills.is_empty() {
            say(out, &recovery::draw(&self.kills))?;
            say(out, "")?;
        }
        for note in &self.notes {
            say(out, &table::wrap(note))?;
        }
        if run.explain && !self.lines.is_empty() {
            say(out, "")?;
            say(out, &table::details(&self.lines, peer))?;
            say(out, "")?;
            for note in table::written(&self.lines).iter().chain(&self.internals) {
                say(out, &table::wrap(note))?;
            }
        } else if !self.lines.is_empty() {
            say(out, "--explain shows what the engines did inside.")?;
        }
        Ok(())
    }

    /// Kills the child in its last workload, and lets another one open what it left.
    fn run_and_kill(&mut self, plan: &Plan, after: f64, run: &Run) -> Result<()> {
        let Some(workload) = plan.workloads.last().map(ToString::to_string) else { return Ok(()) };
        let killed = Plan { kill: Some(Kill::Comes), ..plan.clone() };
        self.kill = Some((workload.clone(), after));
        self.points = (workload.clone(), Points::default());
        let ended = self.run_child(&killed, &run.child_arguments, run.interrupted)?;
        self.kill = None;
        if ended != Ended::Killed {
            return Ok(());
        }
        let before = self.points.1.last_rate();
        let kill = Some(Kill::Came { ops_per_second: before });
        let reopened = Plan { kill, ..plan.clone() };
        let waited = plan.seconds;
        let engine = plan.engine.clone();
        self.kills.push(Killed {
            engine,
            workload,
            before,
            open_seconds: 0.0,
            seconds: None,
            waited,
        });
        let count = self.kills.len();
        self.run_child(&reopened, &run.child_arguments, run.interrupted)?;
        if self.kills[count - 1].open_seconds == 0.0 {
            // It has failed or was interrupted before it was open, and a note says so.
            self.kills.pop();
        }
        Ok(())
    }

    fn run_child(
        &mut self,
        plan: &Plan,
        arguments: &[String],
        is_interrupted: Interrupted,
    ) -> Result<Ended> {
        let bar = bar(&plan.engine);
        let hear = &mut |event| self.event(plan, &bar, event);
        let ended = processes::converse(arguments, plan, is_interrupted, hear);
        bar.finish_and_clear();
        let ended = ended?;
        match ended {
            Ended::InOrder | Ended::Killed => {}
            Ended::Interrupted => self.interrupted = true,
            Ended::Died(status) => {
                self.failed = true;
                self.notes.push(format!("{}: died ({status})", plan.engine));
            }
        }
        Ok(ended)
    }

    /// Notes an event; a break if it is time to kill the child.
    fn event(&mut self, plan: &Plan, bar: &ProgressBar, event: Event) -> Result<ControlFlow<()>> {
        match event {
            Event::Progress { workload, fraction, ops_per_second } => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    clippy::cast_precision_loss,
                    reason = "a step of the bar"
                )]
                bar.set_position((fraction * BAR_STEPS as f64) as u64);
                bar.set_message(format!("{workload}: {} ops/s", table::grouped(ops_per_second)));
            }
            Event::Point { workload, second, operations } => {
                append(
                    &mut self.series,
                    &format!("{},{workload},{second:.3},{operations}", plan.engine),
                )?;
                let is_due = |kill: &(String, f64)| kill.0 == workload && second >= kill.1;
                let is_due = self.kill.as_ref().is_some_and(is_due);
                if self.points.0 != workload {
                    self.points = (workload, Points::default());
                }
                self.points.1.push(second, operations);
                if is_due {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Event::Recovered { open_seconds, seconds, errors } => {
                self.failed |= errors > 0;
                if let Some(kill) = self.kills.last_mut() {
                    (kill.open_seconds, kill.seconds) = (open_seconds, seconds);
                }
            }
            Event::Done { row, commits_per_flush, shape } => {
                self.failed |= row.errors > 0;
                let line = serde_json::to_string(&row).map_err(misunderstood)?;
                append(&mut self.json, &line)?;
                if bar.is_hidden() {
                    eprintln!(
                        "{} {}: {} ops/s",
                        row.engine,
                        row.workload,
                        table::grouped(row.ops_per_second)
                    );
                }
                self.lines.push(Line { row: *row, commits_per_flush, shape });
            }
            Event::Note(note) => self.notes.push(note),
            Event::Internals(note) => self.internals.push(note),
            Event::Failed(message) => {
                self.failed = true;
                self.notes.push(format!("{}: failed: {message}", plan.engine));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

pub(crate) fn append(file: &mut Option<(PathBuf, BufWriter<File>)>, line: &str) -> Result<()> {
    let Some((path, file)) = file else { return Ok(()) };
    writeln!(file, "{line}")
        .and_then(|()| file.flush())
        .map_err(|error| Error::io(format!("write {}", path.display()), error))
}

pub(crate) fn bar(engine: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(BAR_STEPS), target);
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {percent:>3}% {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar.set_prefix(engine.to_owned());
    bar
}

/// The child process: reads a plan from `input`, runs it on the driver of that name and reports to
/// `output`. Returns whether all went well.
///
/// # Errors
/// `Io` when the parent cannot be reached. An engine's failure is reported as an event and by
/// `false`.
pub fn child(
    drivers: &[Box<dyn Driver>],
    input: &mut dyn BufRead,
    output: &mut dyn Write,
) -> Result<bool> {
    let plan: Plan = processes::read_plan(input)?;
    let mut lost = false;
    // When the parent is gone, the run ends with it.
    let mut tell = |event: Event| {
        let sent = tell_parent(output, &event);
        lost |= sent.is_err();
        sent
    };
    let driver = drivers.iter().find(|driver| driver.name() == plan.engine);
    let ran = match driver {
        Some(driver) => runner::run(&plan, driver.as_ref(), &mut tell),
        None => {
            Err(Error::new(ErrorKind::NotFound, format!("no engine is named {:?}", plan.engine)))
        }
    };
    match ran {
        Err(error) if !lost => {
            tell_parent(output, &Event::Failed(error.to_string()))?;
            Ok(false)
        }
        ran => ran.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::sample;
    use crate::table::WIDTH;

    /// Every line fits a terminal, and counters of the engines' inside come with `explain` only.
    #[test]
    fn the_screen_is_narrow_and_internals_are_asked_for() {
        let line = |engine: &str, workload: &str, rate| Line {
            row: sample(engine, workload, rate),
            commits_per_flush: Some(4.0),
            shape: None,
        };
        let results = Results {
            lines: vec![
                line("treeline", "load", 1e6),
                line("treeline", "queue", 1e6),
                line("rocksdb", "load", 2e6),
                line("rocksdb", "queue", 2.5e5),
            ],
            notes: vec![format!("treeline: {}", "condition ".repeat(20))],
            internals: vec![format!("treeline load: {}", "counter ".repeat(30))],
            ..Results::default()
        };
        let told = |explain| {
            let run = Run {
                plans: ["treeline", "rocksdb"].map(plan).to_vec(),
                peers: vec!["rocksdb".to_owned()],
                directory: PathBuf::new(),
                keep: false,
                explain,
                json: None,
                series: None,
                kill_after: None,
                child_arguments: Vec::new(),
                notes: Vec::new(),
                interrupted: || false,
            };
            let mut text = Vec::new();
            say(&mut text, &table::wrap(&headline(&run.plans[0]))).unwrap();
            results.tell(&run, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let (short, long) = (told(false), told(true));
        for line in short.lines().chain(long.lines()) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        let sentences = [
            "load (inserts of all records): rocksdb was 2.00 times as fast as treeline.",
            "removals and reads at the head): treeline was 4.00 times as fast as",
            "treeline runs at 4.00x rocksdb (geometric mean without load)",
            "read B     bytes read from the disk per operation",
            "condition",
        ];
        for words in sentences {
            assert!(short.contains(words) && long.contains(words), "{words} is not in:\n{short}");
        }
        for words in ["counter", "pages read", "commits/flush", " x rocksdb |"] {
            assert!(!short.contains(words) && long.contains(words), "{words}:\n{short}\n{long}");
        }
        assert!(short.contains("--explain") && !long.contains("--explain"), "{short}");
    }

    fn plan(engine: &str) -> Plan {
        use crate::dataset::DatasetName;
        use crate::distribution::Distribution;
        use crate::plan::{Durability, LoadOrder, TornWrites, Workload};
        Plan {
            engine: engine.to_owned(),
            workloads: vec![Workload::Load, Workload::Queue],
            records: 1_000_000,
            load: LoadOrder::Random,
            record_size: 64,
            threads: 4,
            warmup_seconds: 1.0,
            seconds: 3.0,
            operations: None,
            kill: None,
            distribution: Distribution::Zipfian,
            theta: 0.99,
            zipf: Generator::Exact,
            memory: 32 << 20,
            durability: Durability::Buffered,
            torn_writes: TornWrites::Auto,
            dataset: DatasetName::Uniform,
            scan_length: None,
            multi_get: 32,
            keyspaces: 1,
            busy: 1,
            turns: 0.0,
            directory: PathBuf::new(),
            seed: 1,
            knobs: std::collections::BTreeMap::new(),
        }
    }
}
