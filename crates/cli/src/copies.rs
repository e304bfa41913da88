//! Commands that make a database out of another: backup and restore.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use spinney::{BackupOptions, Db, Options};
use spinney_base::size::display_bytes;

use crate::args;
use crate::database::DatabaseArguments;
use crate::exit::{Failure, Outcome};

#[derive(Debug, Args)]
pub(crate) struct BackupArguments {
    #[command(flatten)]
    database: DatabaseArguments,
    /// Directory of the backup: empty or not there
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// At most so many bytes of pages per second; 0 is no limit
    #[arg(long, default_value = "0", value_parser = args::size)]
    bytes_per_second: u64,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn backup(arguments: &BackupArguments) -> Result<Outcome, Failure> {
    let db = arguments.database.open()?;
    let options = BackupOptions::default().bytes_per_second(arguments.bytes_per_second);
    let mut shown = std::io::stderr().is_terminal().then(std::io::stderr);
    let mut percent_shown = None;
    let report = db.backup_with(&arguments.target, &options, |progress| {
        let percent = progress.bytes * 100 / progress.bytes_expected.max(1);
        if let Some(out) = shown.as_mut().filter(|_| percent_shown != Some(percent)) {
            percent_shown = Some(percent);
            // Who cannot be told how far it is can still be told how it ended.
            let _ =
                write!(out, "\r{} copied, {}% ", display_bytes(progress.bytes), percent.min(100));
        }
    })?;
    db.close()?;
    if let Some(out) = &mut shown {
        let _ = writeln!(out);
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let report = json!({ "keyspaces": report.keyspaces, "bytes": report.bytes, "log_bytes": report.log_bytes,
            "last_lsn": report.last_lsn });
        writeln!(out, "{report}")?;
    } else {
        let (pages, log) = (display_bytes(report.bytes), display_bytes(report.log_bytes));
        let target = arguments.target.display();
        writeln!(
            out,
            "{target} is a backup: {} keyspaces, {pages} of pages, {log} of log",
            report.keyspaces
        )?;
    }
    Ok(Outcome::Done)
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArguments {
    /// Directory of the backup, or of any database that nobody has open
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
    /// Directory of the database to make: empty or not there
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// Memory budget while the command runs (64MiB)
    #[arg(long, default_value = "64MiB", value_parser = args::size)]
    memory: u64,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn restore(arguments: &RestoreArguments) -> Result<Outcome, Failure> {
    let options = Options::default().memory(arguments.memory);
    let report = Db::restore(&arguments.backup, &arguments.target, options)?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let report = json!({ "keyspaces": report.keyspaces, "bytes": report.bytes,
            "pages": report.verified.pages, "records": report.verified.records });
        writeln!(out, "{report}")?;
    } else {
        writeln!(
            out,
            "{} is restored and sound: {} keyspaces, {} pages with {} records",
            arguments.target.display(),
            report.keyspaces,
            report.verified.pages,
            report.verified.records
        )?;
    }
    Ok(Outcome::Done)
}
