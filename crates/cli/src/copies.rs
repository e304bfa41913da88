//! Commands that make a database out of another: backup, restore and salvage.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use spinney::{BackupOptions, Db, LostRange, Options, SalvageReport};
use spinney_base::size::display_bytes;

use crate::args;
use crate::database::DatabaseArguments;
use crate::exit::{Failure, Outcome};
use crate::text::Encoding;

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

#[derive(Debug, Args)]
pub(crate) struct SalvageArguments {
    /// Directory of the damaged database, which is not changed
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// Directory of the database to make: empty or not there
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Memory budget while the command runs (64MiB)
    #[arg(long, default_value = "64MiB", value_parser = args::size)]
    memory: u64,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn salvage(arguments: &SalvageArguments) -> Result<Outcome, Failure> {
    let options = Options::default().memory(arguments.memory);
    let report = Db::salvage(&arguments.old, &arguments.new, options)?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", to_json(&report))?;
    } else {
        write!(out, "{}", to_text(&report))?;
    }
    Ok(if report.is_whole() { Outcome::Done } else { Outcome::Lost })
}

fn show(key: &[u8]) -> String {
    Encoding::Text.show(key)
}

fn range_text(range: &LostRange) -> String {
    let upper = range.upper.as_deref().map_or_else(|| "the end".to_owned(), show);
    format!("from {:?} up to {upper:?}", show(&range.lower))
}

fn to_json(report: &SalvageReport) -> serde_json::Value {
    let hex = |key: &[u8]| Encoding::Hex.show(key);
    let ranges = |ranges: &[LostRange]| -> serde_json::Value {
        let one = |range: &LostRange| json!({ "lower_hex": hex(&range.lower), "upper_hex": range.upper.as_deref().map(hex) });
        ranges.iter().map(one).collect()
    };
    let keyspaces = report.keyspaces.iter().map(|one| {
        let damaged = one
            .damaged
            .iter()
            .map(|page| json!({ "file": page.file, "offset": page.offset, "what": page.what }));
        json!({
            "name": one.name,
            "records": one.records,
            "file": one.file,
            "checkpoint": one.checkpoint,
            "damaged": damaged.collect::<serde_json::Value>(),
            "lost": ranges(&one.lost),
            "older": ranges(&one.older),
            "lost_values_hex": one.lost_values.iter().map(|key| hex(key)).collect::<Vec<_>>(),
        })
    });
    json!({
        "whole": report.is_whole(),
        "manifest": report.manifest,
        "log": report.log,
        "log_operations": report.log_operations,
        "keyspaces": keyspaces.collect::<serde_json::Value>(),
    })
}

fn to_text(report: &SalvageReport) -> String {
    let mut lines = Vec::new();
    for (what, lost) in [("manifest", &report.manifest), ("log", &report.log)] {
        lines.extend(lost.iter().map(|why| format!("{what}: not used: {why}")));
    }
    if report.log.is_none() {
        lines.push(format!("log: {} operations applied", report.log_operations));
    }
    for one in &report.keyspaces {
        lines.push(format!("keyspace {}: {} records from its pages", one.name, one.records));
        for (what, why) in [("file", &one.file), ("checkpoint", &one.checkpoint)] {
            lines.extend(why.iter().map(|why| format!("  {what}: not used: {why}")));
        }
        for page in &one.damaged {
            let (file, offset) = (page.file.display(), page.offset);
            lines.push(format!("  damaged: {file} at {offset}: {}", page.what));
        }
        let lost = one.lost.iter().map(|range| format!("  lost: keys {}", range_text(range)));
        let older = one.older.iter().map(|range| format!("  older: keys {}", range_text(range)));
        lines.extend(lost.chain(older));
        let values = one.lost_values.iter();
        lines.extend(values.map(|key| format!("  lost: the large value of {:?}", show(key))));
    }
    lines.push(if report.is_whole() {
        "everything was saved".to_owned()
    } else {
        "not everything could be saved".to_owned()
    });
    lines.join("\n") + "\n"
}
