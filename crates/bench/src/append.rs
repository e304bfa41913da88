//! List-append transactions over our engines, and their history for a checker of serializability.
//!
//! Every value is a list, and a transaction appends numbers to some lists and reads others. No
//! number is appended twice to one key, so each list that is read names all transactions that
//! wrote it, in their order. From that a checker that knows nothing of the store finds who must
//! come before whom: Elle (Kingsbury and Alvaro, VLDB 2020), which reads the file that is written
//! here, or the proving ground.
//!
//! [`history`] is what was done and its format, [`lists`] what the workload needs of a store,
//! [`work`] the threads. Stores broken on purpose are run by the same threads.

pub mod history;
pub mod lists;
pub mod work;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use spinney::{Db, Durability, EngineKind, Options};
use spinney_base::{Error, Result};

use crate::parent::{Interrupted, OwnDirectory, interrupted};
use lists::InKeyspaces;
use work::Work;

/// What `spinney bench append` runs.
#[derive(Clone, Debug)]
pub struct AppendPlan {
    /// Engines: the keys are spread over a keyspace of each, so transactions span all of them.
    pub engines: Vec<EngineKind>,
    /// Threads, transactions, keys, seed.
    pub work: Work,
    /// The memory budget in bytes.
    pub memory: u64,
    /// File for the history, which replaces an existing one.
    pub history: PathBuf,
    /// An existing directory for the files, which are removed at the end.
    pub directory: PathBuf,
    /// Asked before each transaction; the run ends early when it answers true.
    pub interrupted: Interrupted,
}

impl AppendPlan {
    /// Checks the numbers.
    ///
    /// # Errors
    /// `InvalidArgument` naming what is out of range.
    pub fn check(&self) -> Result<()> {
        let Work { threads, transactions, keys, appends, longest, .. } = self.work;
        for (name, number, most) in [
            ("--threads", threads, 1024),
            ("--transactions", transactions, u64::MAX),
            ("--keys", keys, 1 << 20),
            ("--appends", appends, 1 << 16),
            ("--longest", longest, 1 << 10),
        ] {
            if number == 0 || number > most {
                return Err(Error::invalid(format!("{name} {number} is not from 1 to {most}")));
            }
        }
        if self.engines.is_empty() {
            return Err(Error::invalid("--engines names no engine"));
        }
        Ok(())
    }
}

/// Runs the plan, writes the history, and says to `out` what became of the transactions.
///
/// What was run before an error or an interrupt is written, too.
///
/// # Errors
/// `InvalidArgument` when the directory is not there or the file cannot be created; those of the
/// database and of `out`; `Cancelled` when it was interrupted.
pub fn run(plan: &AppendPlan, out: &mut dyn Write) -> Result<()> {
    plan.check()?;
    let directory = OwnDirectory::create(&plan.directory, false)?;
    let path = plan.history.display();
    let file = File::create(&plan.history)
        .map_err(|error| Error::unopened(format!("create {path}"), error))?;
    let options = Options::default().memory(plan.memory).durability(Durability::Buffered);
    let db = Db::open(directory.path.join("db"), options)?;
    let open = |(number, engine): (usize, &EngineKind)| db.keyspace(&number.to_string(), *engine);
    let keyspaces = plan.engines.iter().enumerate().map(open).collect::<Result<_>>()?;
    let lists = InKeyspaces { db, keyspaces };
    let outcome = work::run(&lists, &plan.work, &plan.interrupted);
    let mut file = BufWriter::new(file);
    let written = outcome.history.write(&mut file).and_then(|()| file.flush());
    written.map_err(|error| Error::io(format!("write {path}"), error))?;
    let ran = outcome.committed + outcome.conflicts + outcome.unknown;
    writeln!(
        out,
        "{} transactions committed, {} met a conflict, {} are of unknown outcome",
        outcome.committed, outcome.conflicts, outcome.unknown
    )
    .map_err(|error| Error::io("write to standard output", error))?;
    match outcome.error {
        Some(error) => Err(error),
        None if (plan.interrupted)() => {
            Err(interrupted(format!("{ran} of {} transactions were run", plan.work.transactions)))
        }
        None => lists.db.close(),
    }
}
