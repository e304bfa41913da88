//! Commands that make a database from another one: backup, restore and salvage.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use spinney::{BackupOptions, Db, ErrorKind, LostRange, Options, SalvageReport};
use spinney_base::size::display_bytes;

use crate::database::DatabaseArguments;
use crate::directory::Room;
use crate::exit::{Failure, Outcome};
use crate::output::stdout;
use crate::progress::Progress;
use crate::text::Encoding;
use crate::{directory, interrupt, sizes};

#[derive(Debug, Args)]
pub(crate) struct BackupArguments {
    #[command(flatten)]
    database: DatabaseArguments,
    /// Directory of the backup: missing, empty, or of a backup that was interrupted
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// At most this many bytes of pages per second; 0 for no limit
    #[arg(long, default_value = "0", value_parser = sizes::size)]
    bytes_per_second: u64,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Returns the report of a copy, or `None` if a signal ended it, and then prints how far it came.
/// Without a copy, directories that were made for it are removed.
fn unless_interrupted<T>(
    made: spinney::Result<T>,
    how_far: &str,
    (target, room): (&Path, Room),
) -> Result<Option<T>, Failure> {
    let error = match made {
        Ok(report) => return Ok(Some(report)),
        Err(error) => error,
    };
    room.clear_directories();
    if error.kind() == ErrorKind::Cancelled {
        interrupt::say(format!("{how_far}; nothing of it is left in {}", target.display()));
        return Ok(None);
    }
    Err(error.into())
}

pub(crate) fn backup(arguments: &BackupArguments) -> Result<Outcome, Failure> {
    interrupt::watch()?;
    let room = directory::room_for_copy(&arguments.target)?;
    let db = arguments.database.open_for_reading()?;
    let options = BackupOptions::default().bytes_per_second(arguments.bytes_per_second);
    let bar = Progress::of_bytes("backup", Some(0));
    let mut copied = 0;
    let made = db.backup_with(&arguments.target, &options, |progress| {
        copied = progress.bytes;
        bar.set_of(progress.bytes, progress.bytes_expected);
        interrupt::go_on()
    });
    drop(bar);
    let closed = db.close();
    let how_far = format!("{} were copied", display_bytes(copied));
    let Some(report) = unless_interrupted(made, &how_far, (&arguments.target, room))? else {
        return Ok(Outcome::Interrupted);
    };
    closed?;
    let mut out = stdout();
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
    /// Directory of the backup, or of any database that is not open
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
    /// Directory of the new database: missing, empty, or of a restore that was interrupted
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// Memory budget while the command runs (64MiB)
    #[arg(long, default_value = "64MiB", value_parser = sizes::size)]
    memory: u64,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn restore(arguments: &RestoreArguments) -> Result<Outcome, Failure> {
    interrupt::watch()?;
    directory::check_source(&arguments.backup)?;
    let room = directory::room_for_copy(&arguments.target)?;
    let options = Options::default().memory(arguments.memory);
    let bar = Progress::of_bytes("restoring", Some(0));
    let mut done = 0;
    let made = Db::restore_with(&arguments.backup, &arguments.target, options, |progress| {
        done = progress.bytes;
        bar.set_of(progress.bytes, progress.bytes_expected);
        interrupt::go_on()
    });
    drop(bar);
    let how_far = format!("{} were copied or verified", display_bytes(done));
    let Some(report) = unless_interrupted(made, &how_far, (&arguments.target, room))? else {
        return Ok(Outcome::Interrupted);
    };
    let mut out = stdout();
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
    /// Directory of the new database: missing, empty, or of a salvage that was interrupted
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Memory budget while the command runs (64MiB)
    #[arg(long, default_value = "64MiB", value_parser = sizes::size)]
    memory: u64,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn salvage(arguments: &SalvageArguments) -> Result<Outcome, Failure> {
    interrupt::watch()?;
    directory::check_source(&arguments.old)?;
    let room = directory::room_for_copy(&arguments.new)?;
    let options = Options::default().memory(arguments.memory);
    let bar = Progress::of_things("salvaging records", None);
    let mut done = 0;
    let made = Db::salvage_with(&arguments.old, &arguments.new, options, |progress| {
        done = progress.records;
        bar.set(progress.records);
        interrupt::go_on()
    });
    drop(bar);
    let how_far = format!("{done} records and operations of the log were saved");
    let Some(report) = unless_interrupted(made, &how_far, (&arguments.new, room))? else {
        return Ok(Outcome::Interrupted);
    };
    let mut out = stdout();
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
    let upper = match range.upper.as_deref() {
        Some(upper) => format!("{:?}", show(upper)),
        None => "the end".to_owned(),
    };
    format!("from {:?} up to {upper}", show(&range.lower))
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
