//! `compact`: gives back the room that removed and overwritten records take.

use std::io::{IsTerminal, Write};
use std::ops::Bound;

use clap::Args;
use serde_json::json;
use spinney::{CompactProgress, CompactReport, Db};
use spinney_base::size::display_bytes;

use crate::database::{DatabaseArguments, EncodingArguments};
use crate::exit::{Failure, Outcome};

#[derive(Debug, Args)]
pub(crate) struct CompactArguments {
    #[command(flatten)]
    database: DatabaseArguments,
    /// Keyspace to compact (default: each of them)
    #[arg(long)]
    keyspace: Option<String>,
    /// First key of the range to compact
    #[arg(long, value_name = "KEY", requires = "keyspace", allow_hyphen_values = true)]
    from: Option<String>,
    /// Key before which the range ends
    #[arg(long, value_name = "KEY", requires = "keyspace", allow_hyphen_values = true)]
    to: Option<String>,
    #[command(flatten)]
    encoding: EncodingArguments,
    /// Print a JSON object for each keyspace
    #[arg(long)]
    json: bool,
}

pub(crate) fn compact(arguments: &CompactArguments) -> Result<Outcome, Failure> {
    let word =
        |word: &Option<String>| word.as_ref().map(|word| arguments.encoding.word(word)).transpose();
    let (from, to) = (word(&arguments.from)?, word(&arguments.to)?);
    let from = from.map_or(Bound::Unbounded, Bound::Included);
    let to = to.map_or(Bound::Unbounded, Bound::Excluded);
    let db = arguments.database.open()?;
    let names = match &arguments.keyspace {
        Some(name) => vec![name.clone()],
        None => db.keyspaces().into_iter().map(|one| one.name).collect(),
    };
    for name in names {
        let report = one(&db, &name, (&from, &to))?;
        let mut out = std::io::stdout().lock();
        if arguments.json {
            let report = json!({ "keyspace": name, "bytes": report.bytes,
                "bytes_before": report.bytes_before, "bytes_after": report.bytes_after });
            writeln!(out, "{report}")?;
        } else {
            writeln!(
                out,
                "{name}: {} gone through, {} in use before, {} now",
                display_bytes(report.bytes),
                display_bytes(report.bytes_before),
                display_bytes(report.bytes_after)
            )?;
        }
    }
    db.close()?;
    Ok(Outcome::Done)
}

/// Compacts a range of one keyspace, and shows on a terminal how far it is.
fn one(
    db: &Db,
    name: &str,
    (from, to): (&Bound<Vec<u8>>, &Bound<Vec<u8>>),
) -> Result<CompactReport, Failure> {
    let keyspace = db.existing_keyspace(name)?;
    let mut shown = std::io::stderr().is_terminal().then(std::io::stderr);
    let report = keyspace.compact_with((from.clone(), to.clone()), |progress| {
        let CompactProgress { bytes, bytes_expected } = progress;
        let percent = (bytes * 100 / bytes_expected.max(1)).min(100);
        if let Some(out) = shown.as_mut() {
            // Who cannot be told how far it is can still be told how it ended.
            let _ = write!(out, "\r{name}: {} gone through, {percent}% ", display_bytes(bytes));
        }
    })?;
    if let Some(out) = &mut shown {
        let _ = writeln!(out);
    }
    Ok(report)
}
