//! `import` and `export`.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use spinney::{Error, ErrorKind, Keyspace};

use crate::database::{EncodingArguments, KeyspaceArguments};
use crate::exit::{Failure, Outcome};
use crate::records::{self, Fields, Format, Record, Writer};

#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    #[command(flatten)]
    keyspace: KeyspaceArguments,
    /// File to read; - or nothing reads standard input
    file: Option<PathBuf>,
    /// Format of the file
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Format,
    /// Field of the key; without it, the file is an export of this program
    #[arg(long)]
    key: Option<String>,
    /// Field of the value; without it, the value is the whole record
    #[arg(long, requires = "key")]
    value: Option<String>,
    /// CSV and TSV: the first line is a record too, and fields are numbers from 1
    #[arg(long)]
    no_header: bool,
    /// Print the counts as a JSON object
    #[arg(long)]
    json: bool,
}

/// How an import went.
#[derive(Debug, Default)]
struct Counts {
    imported: u64,
    rejected: u64,
    bytes: u64,
}

pub(crate) fn import(arguments: &ImportArguments) -> Result<Outcome, Failure> {
    let mut input: Box<dyn BufRead> = match &arguments.file {
        Some(path) if path.as_os_str() != "-" => {
            let file = File::open(path)
                .map_err(|error| Error::io(format!("open {}", path.display()), error))?;
            Box::new(BufReader::with_capacity(1 << 16, file))
        }
        _ => Box::new(std::io::stdin().lock()),
    };
    let fields = Fields {
        key: arguments.key.clone(),
        value: arguments.value.clone(),
        header: !arguments.no_header,
    };
    let (db, keyspace) = arguments.keyspace.open_or_create()?;
    let mut counts = Counts::default();
    let unit = arguments.format.unit();
    let read = records::read(arguments.format, &fields, input.as_mut(), &mut |number, parsed| {
        match parsed.map_err(Rejection::Record).and_then(|record| insert(&keyspace, &record)) {
            Ok(bytes) => {
                counts.imported += 1;
                counts.bytes += bytes;
                Ok(())
            }
            Err(Rejection::Record(message)) => {
                counts.rejected += 1;
                // When standard error is gone, the count and the exit code still tell.
                let _ = writeln!(std::io::stderr(), "{unit} {number} is refused: {message}");
                Ok(())
            }
            Err(Rejection::All(failure)) => Err(failure),
        }
    });
    if let Err(failure) = read {
        // What was imported before stays; how much that was is what a script needs to go on.
        report(&counts, arguments.json)?;
        return Err(failure);
    }
    // Single writes were only buffered: one flush makes all of them durable.
    db.flush()?;
    db.close()?;
    report(&counts, arguments.json)?;
    Ok(if counts.rejected > 0 { Outcome::Rejected } else { Outcome::Done })
}

/// Why a record was not written.
enum Rejection {
    /// The record is at fault; the next may be better.
    Record(String),
    /// No record can be written.
    All(Failure),
}

/// Writes one record; its bytes.
fn insert(keyspace: &Keyspace, (key, value): &Record<'_>) -> Result<u64, Rejection> {
    match keyspace.insert_with(key, value, spinney::Durability::Buffered) {
        Ok(()) => Ok((key.len() + value.len()) as u64),
        Err(error)
            if matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Unsupported) =>
        {
            Err(Rejection::Record(format!("key {:?}: {error}", String::from_utf8_lossy(key))))
        }
        Err(error) => Err(Rejection::All(error.into())),
    }
}

fn report(counts: &Counts, as_json: bool) -> Result<(), Failure> {
    let Counts { imported, rejected, bytes } = counts;
    if as_json {
        let line = json!({ "imported": imported, "rejected": rejected, "bytes": bytes });
        writeln!(std::io::stdout(), "{line}")?;
    } else {
        writeln!(
            std::io::stderr(),
            "{imported} records imported ({bytes} bytes), {rejected} refused"
        )?;
    }
    Ok(())
}

#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    #[command(flatten)]
    keyspace: KeyspaceArguments,
    /// File to write; - or nothing writes standard output
    file: Option<PathBuf>,
    /// Format of the file
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Format,
    /// Only keys that begin with this
    #[arg(long)]
    prefix: Option<String>,
    #[command(flatten)]
    encoding: EncodingArguments,
}

pub(crate) fn export(arguments: &ExportArguments) -> Result<Outcome, Failure> {
    let prefix =
        arguments.prefix.as_deref().map(|prefix| arguments.encoding.word(prefix)).transpose()?;
    let (db, keyspace) = arguments.keyspace.open()?;
    let output: Box<dyn Write> = match &arguments.file {
        Some(path) if path.as_os_str() != "-" => Box::new(
            File::create(path)
                .map_err(|error| Error::io(format!("create {}", path.display()), error))?,
        ),
        _ => Box::new(std::io::stdout().lock()),
    };
    let mut writer = Writer::new(arguments.format, BufWriter::with_capacity(1 << 16, output))?;
    let cursor = match &prefix {
        Some(prefix) => keyspace.prefix(prefix),
        None => keyspace.iter(),
    };
    for record in cursor.readers() {
        let (key, mut value) = record?;
        writer.write_from(&key, &mut value)?;
    }
    writer.finish()?;
    db.close()?;
    Ok(Outcome::Done)
}
