//! `compact`: frees the space of removed and overwritten records.

use std::io::Write;
use std::ops::Bound;

use clap::Args;
use serde_json::json;
use spinney::{CompactProgress, CompactReport, Db, ErrorKind};
use spinney_base::size::display_bytes;

use crate::database::{DatabaseArguments, EncodingArguments, Missing};
use crate::exit::{Failure, Outcome};
use crate::interrupt;
use crate::output::stdout;
use crate::progress::Progress;

#[derive(Debug, Args)]
pub(crate) struct CompactArguments {
    #[command(flatten)]
    database: DatabaseArguments,
    /// Keyspace to compact [default: all]
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
    interrupt::watch()?;
    let writing = arguments.database.open_for_writing(Missing::Fail)?;
    let compacted = all(&writing.db, arguments, (&from, &to));
    writing.end(compacted)
}

fn all(
    db: &Db,
    arguments: &CompactArguments,
    range: (&Bound<Vec<u8>>, &Bound<Vec<u8>>),
) -> Result<Outcome, Failure> {
    let names: Vec<String> = match &arguments.keyspace {
        Some(name) => vec![name.clone()],
        None => db.keyspaces().into_iter().map(|one| one.name).collect(),
    };
    for name in names {
        let report = match one(db, &name, range) {
            Err(Failure::Error(error)) if error.kind() == ErrorKind::Cancelled => {
                interrupt::say(format!("keyspace {name:?} is compacted in part"));
                return Ok(Outcome::Interrupted);
            }
            report => report?,
        };
        let mut out = stdout();
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
    Ok(Outcome::Done)
}

/// Compacts a range of one keyspace, and shows the progress on a terminal.
fn one(
    db: &Db,
    name: &str,
    (from, to): (&Bound<Vec<u8>>, &Bound<Vec<u8>>),
) -> Result<CompactReport, Failure> {
    let keyspace = db.existing_keyspace(name)?;
    let bar = Progress::of_bytes("compacting", Some(0));
    let report = keyspace.compact_with((from.clone(), to.clone()), |progress| {
        let CompactProgress { bytes, bytes_expected, .. } = progress;
        bar.set_of(bytes, bytes_expected);
        interrupt::go_on()
    })?;
    Ok(report)
}
