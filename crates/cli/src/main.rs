//! The `spinney` program, for people and scripts.
//!
//! Reading order: `args` (commands and options), `exit` (exit codes), `directory` and `database`
//! (how a database is opened), then a file for each group of commands. `sizes`, `text`, `json`,
//! `records` and `dumps` convert between bytes and text; `output`, `progress` and `interrupt` are
//! for the terminal.

// The statistics of a keyspace are one call of `json!`, which takes a level for each field.
#![recursion_limit = "256"]

mod args;
mod bench;
mod bench_engines;
mod bench_transactions;
mod compact;
mod conflicts;
mod copies;
mod database;
mod directory;
mod dumps;
mod exit;
mod files;
mod interrupt;
mod json;
mod knobs;
mod output;
mod paper;
mod progress;
mod quotes;
mod records;
mod sizes;
mod stats;
mod text;
mod transfer;
mod ycsb;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Arguments, Command};
use crate::exit::{Failure, Outcome};
use crate::knobs::Knobs;

fn main() -> ExitCode {
    interrupt::survive_size_limits();
    let (arguments, knobs) = match knobs::extract(std::env::args_os()) {
        Ok(split) => split,
        Err(failure) => return finish(Err(failure)),
    };
    match Arguments::try_parse_from(arguments) {
        Ok(arguments) => finish(run(arguments.command, knobs)),
        Err(error) if error.use_stderr() => {
            // When standard error is closed too, no message can be printed.
            let _ = error.print();
            ExitCode::from(2)
        }
        // The request was for help or the version.
        Err(help) => {
            let printed = write!(output::stdout(), "{}", help.render());
            finish(printed.map(|()| Outcome::Done).map_err(Failure::from))
        }
    }
}

fn run(command: Command, knobs: Knobs) -> Result<Outcome, Failure> {
    match command {
        Command::Put(arguments) => database::put(&arguments),
        Command::Get(arguments) => database::get(&arguments),
        Command::Delete(arguments) => database::delete(&arguments),
        Command::Scan(arguments) => database::scan(&arguments),
        Command::Import(arguments) => transfer::import(&arguments),
        Command::Export(arguments) => transfer::export(&arguments),
        Command::Keyspaces(command) => database::keyspaces(&command),
        Command::Stats(arguments) => database::stats(&arguments),
        Command::Verify(arguments) => database::verify(&arguments),
        Command::Checkpoint(arguments) => database::checkpoint(&arguments),
        Command::Compact(arguments) => compact::compact(&arguments),
        Command::Backup(arguments) => copies::backup(&arguments),
        Command::Restore(arguments) => copies::restore(&arguments),
        Command::Salvage(arguments) => copies::salvage(&arguments),
        Command::Bench(bench) => bench::run(bench, knobs),
        Command::BenchChild { of } => bench::child(of),
    }
}

fn finish(result: Result<Outcome, Failure>) -> ExitCode {
    // Flush the rest of standard output now, so that an error can still be printed.
    let result = result.and_then(|outcome| {
        output::stdout().flush()?;
        Ok(outcome)
    });
    match result {
        Ok(outcome) => outcome.code(),
        // The reader of the output has closed it; that is no failure.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // When standard error is closed too, no message can be printed.
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            failure.code()
        }
    }
}
