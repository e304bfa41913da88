//! The parent process: one child process per engine, one after the other, and the table of what they
//! report.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use spinney_base::size::display_bytes;
use spinney_base::{Error, Result};

use super::child::Event;
use super::plan::TransactionalPlan;
use super::row::TransactionalRow;
use super::table;
use crate::parent::{BAR_STEPS, append, bar, say};
use crate::processes::{self, Ended, Interrupted, OwnDirectory, interrupted, misunderstood};
use crate::table::{grouped, wrap};

/// What to run and where to put the results.
#[derive(Debug)]
pub struct TransactionalRun {
    /// A plan per engine, in order; [`TransactionalPlan::directory`] is filled in here.
    pub plans: Vec<TransactionalPlan>,
    /// Which of the engines are peers.
    pub peers: Vec<String>,
    /// Where the engines' files go, which is there: a directory of this run's own is made inside
    /// and removed at the end.
    pub directory: PathBuf,
    /// Leave the engines' files.
    pub keep: bool,
    /// Print latencies of each kind of transaction, too.
    pub explain: bool,
    /// Where to write rows, one a line.
    pub json: Option<PathBuf>,
    /// Arguments that make this program the child of a run.
    pub child_arguments: Vec<String>,
    /// Whether it is to end early.
    pub interrupted: Interrupted,
}

/// What the children have told so far.
struct Results {
    rows: Vec<TransactionalRow>,
    notes: Vec<String>,
    failed: bool,
    interrupted: bool,
    json: Option<(PathBuf, BufWriter<File>)>,
}

/// Runs everything and prints the table to `out`; whether all went well and all conditions hold.
///
/// # Errors
/// `InvalidArgument` when the directory is not there or a file cannot be made; `Io` when a child
/// cannot be started or a file not be written; `Cancelled` when it was interrupted, after the table
/// of what was measured. The table's notes name an engine that fails, and the answer is `false`
/// then.
pub fn run(run: &TransactionalRun, out: &mut dyn Write) -> Result<bool> {
    let directory = OwnDirectory::create(&run.directory, run.keep)?;
    let json = run.json.as_ref().map(|path| {
        let file = File::create(path)
            .map_err(|error| Error::unopened(format!("create {}", path.display()), error))?;
        Ok::<_, Error>((path.clone(), BufWriter::new(file)))
    });
    let json = json.transpose()?;
    let mut results =
        Results { rows: Vec::new(), notes: Vec::new(), failed: false, interrupted: false, json };
    if let Some(plan) = run.plans.first() {
        say(out, &wrap(&headline(plan)))?;
    }
    for plan in &run.plans {
        let own = directory.path.join(&plan.engine);
        std::fs::create_dir(&own)
            .map_err(|error| Error::io(format!("create {}", own.display()), error))?;
        let plan = TransactionalPlan { directory: own.clone(), ..plan.clone() };
        results.run_child(&plan, run)?;
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
        let all: usize = run.plans.iter().map(|plan| plan.threads.len()).sum();
        let rows = results.rows.len();
        return Err(interrupted(format!("{rows} of {all} rounds were measured")));
    }
    Ok(!results.failed)
}

fn headline(plan: &TransactionalPlan) -> String {
    let length = match plan.operations {
        Some(operations) => format!("{operations} transactions"),
        None => format!("{} s", plan.seconds),
    };
    let threads: Vec<String> = plan.threads.iter().map(ToString::to_string).collect();
    format!(
        "{}, {}, {} threads, {} of memory, durability {}, torn writes {}, {length} after {} s of warm-up{}, seed {}",
        plan.workload.name(),
        plan.workload.describe(),
        threads.join(" and "),
        display_bytes(plan.memory),
        plan.durability,
        plan.torn_writes,
        plan.warmup_seconds,
        if plan.warm { " and a read of every record" } else { "" },
        plan.seed,
    )
}

impl Results {
    fn run_child(&mut self, plan: &TransactionalPlan, run: &TransactionalRun) -> Result<()> {
        let bar = bar(&plan.engine);
        let hear = &mut |event| {
            match event {
                Event::Progress { what, fraction, per_second } => {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        clippy::cast_precision_loss,
                        reason = "a step of the bar"
                    )]
                    bar.set_position((fraction * BAR_STEPS as f64) as u64);
                    bar.set_message(format!("{what}: {} commits/s", grouped(per_second)));
                }
                Event::Done(row) => {
                    self.failed |= row.broken.is_some();
                    append(&mut self.json, &serde_json::to_string(&row).map_err(misunderstood)?)?;
                    if bar.is_hidden() {
                        let (engine, threads) = (&row.engine, row.threads);
                        let rate = grouped(row.committed_per_second);
                        eprintln!("{engine}, {threads} threads: {rate} commits/s");
                    }
                    self.rows.push(*row);
                }
                Event::Note(note) => self.notes.push(note),
                Event::Failed(message) => {
                    self.failed = true;
                    self.notes.push(format!("{}: failed: {message}", plan.engine));
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        let ended = processes::converse(&run.child_arguments, plan, run.interrupted, hear);
        bar.finish_and_clear();
        match ended? {
            Ended::InOrder | Ended::Killed => {}
            Ended::Interrupted => self.interrupted = true,
            Ended::Died(status) => {
                self.failed = true;
                self.notes.push(format!("{}: died ({status})", plan.engine));
            }
        }
        Ok(())
    }

    /// Prints the tables and what belongs to them.
    fn tell(&self, run: &TransactionalRun, out: &mut dyn Write) -> Result<()> {
        if !self.rows.is_empty() {
            say(out, &table::draw(&self.rows))?;
            if let Some(ratios) = table::ratios(&self.rows, &run.peers) {
                say(out, "")?;
                say(out, &ratios)?;
            }
            if run.explain {
                say(out, "")?;
                say(out, &table::kinds(&self.rows))?;
            }
            say(out, "")?;
            say(out, table::LEGEND)?;
            say(out, "")?;
            for sentence in table::protection(&self.rows).iter().chain(&table::broken(&self.rows)) {
                say(out, &wrap(sentence))?;
            }
        }
        for note in &self.notes {
            say(out, &wrap(note))?;
        }
        if !self.rows.is_empty() && !run.explain {
            say(out, "--explain shows latencies of each kind of transaction.")?;
        }
        Ok(())
    }
}
