//! The `spinney` program: the door for people and scripts.
//!
//! Reading order: `args` (what can be asked), `exit` (how it ends), then a file per group of commands. `text` and `records` turn
//! bytes into what people and other programs read, and back.

mod args;
mod bench;
mod compact;
mod copies;
mod database;
mod exit;
mod json;
mod knobs;
mod paper;
mod records;
mod stats;
mod text;
mod transfer;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Arguments, Command};
use crate::exit::{Failure, Outcome};
use crate::knobs::Knobs;

fn main() -> ExitCode {
    let (arguments, knobs) = match knobs::extract(std::env::args_os()) {
        Ok(split) => split,
        Err(failure) => return finish(Err(failure)),
    };
    // Clap prints its own help and errors and exits with 0 or 2.
    let arguments = Arguments::parse_from(arguments);
    finish(run(arguments.command, knobs))
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
        Command::BenchChild => bench::child(),
    }
}

fn finish(result: Result<Outcome, Failure>) -> ExitCode {
    match result {
        Ok(outcome) => outcome.code(),
        // Whoever read our output has had enough; that is no failure.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // When standard error is gone too there is nobody left to tell.
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            failure.code()
        }
    }
}
