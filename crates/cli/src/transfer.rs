//! `import` and `export`.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use serde_json::json;
use spinney::{Cursor, Error, ErrorKind, Keyspace};

use crate::database::{EncodingArguments, KeyspaceArguments};
use crate::dumps::{self, Dump};
use crate::exit::{Failure, Outcome};
use crate::files::{self, OutputFile};
use crate::interrupt::{self, Interruptible};
use crate::output::stdout;
use crate::progress::Progress;
use crate::records::{self, Fields, Format, Record, Writer};
use crate::text::{Encoding, abridged, shortened};

/// Number of refused records that are named; further ones are only counted.
const REFUSALS_SHOWN: u64 = 10;

/// Number of records after which the bar moves.
const RECORDS_A_STEP: u64 = 256;

/// What an import reads.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Records with fields that have names or numbers.
    Fields(Format),
    Dump(Dump),
}

impl ValueEnum for Source {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Source::Fields(Format::Csv),
            Source::Fields(Format::Tsv),
            Source::Fields(Format::Jsonl),
            Source::Dump(Dump::Ldb),
            Source::Dump(Dump::LdbText),
            Source::Dump(Dump::Mdb),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Source::Fields(format) => format.to_possible_value(),
            Source::Dump(dump) => dump.to_possible_value(),
        }
    }
}

impl Source {
    /// What the numbers of its records count.
    fn unit(self) -> &'static str {
        match self {
            Source::Fields(format) => format.unit(),
            Source::Dump(_) => "line",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    #[command(flatten)]
    keyspace: KeyspaceArguments,
    /// File to read; - or nothing reads standard input
    file: Option<PathBuf>,
    /// Format of the file [default: by its name, which ends in .csv, .tsv, .jsonl, .ndjson or
    /// .json; else jsonl]
    #[arg(long, value_enum)]
    format: Option<Source>,
    /// Field of the key; without it, the file is an export of this program
    #[arg(long)]
    key: Option<String>,
    /// Field of the value; without it, the value is the whole record
    #[arg(long, requires = "key")]
    value: Option<String>,
    /// CSV and TSV: the first line is a record too, and fields are numbered from 1
    #[arg(long)]
    no_header: bool,
    /// Print the counts as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    encoding: EncodingArguments,
}

/// Result of an import.
#[derive(Debug, Default)]
struct Counts {
    imported: u64,
    rejected: u64,
    bytes: u64,
}

/// Returns the path of a file that is not a standard stream.
fn named(file: Option<&PathBuf>) -> Option<&Path> {
    file.map(PathBuf::as_path).filter(|path| path.as_os_str() != "-")
}

/// Input that a signal ends; the number of bytes read, and the total if that is known.
type Input = (Box<dyn BufRead>, Rc<Cell<u64>>, Option<u64>);

fn open_input(path: Option<&Path>) -> Result<Input, Failure> {
    fn buffered(input: File) -> (Box<dyn BufRead>, Rc<Cell<u64>>) {
        let input = Interruptible::new(input);
        let read = input.count();
        (Box::new(BufReader::with_capacity(1 << 16, input)), read)
    }
    let Some(path) = path else {
        // Without the buffer of the standard library: a poll would not see what that holds.
        let input = std::io::stdin().as_fd().try_clone_to_owned()?;
        let (input, read) = buffered(File::from(input));
        return Ok((input, read, None));
    };
    let (file, metadata) = files::open(path)?;
    let (input, read) = buffered(file);
    Ok((input, read, metadata.is_file().then_some(metadata.len())))
}

pub(crate) fn import(arguments: &ImportArguments) -> Result<Outcome, Failure> {
    interrupt::watch()?;
    let path = named(arguments.file.as_ref());
    let source = arguments.format.unwrap_or_else(|| Source::Fields(Format::of_file(path)));
    arguments.check(source)?;
    let (input, read, total) = open_input(path)?;
    let fields = Fields {
        key: arguments.key.clone(),
        value: arguments.value.clone(),
        header: !arguments.no_header,
        encoding: arguments.encoding.encoding(),
    };
    let (writing, keyspace) = arguments.keyspace.open_for_writing()?;
    let bar = Progress::of_bytes("importing", total);
    let mut counts = Counts::default();
    let ended = interrupt::without_mark(input).and_then(|mut input| {
        let sink: records::Sink<'_> = &mut |number, parsed| {
            if interrupt::is_set() {
                return Err(Error::new(ErrorKind::Cancelled, "the import was interrupted").into());
            }
            if number.is_multiple_of(RECORDS_A_STEP) {
                bar.set(read.get());
            }
            let stored = parsed.map_err(Rejection::Record);
            match stored.and_then(|record| insert(&keyspace, &record)) {
                Ok(bytes) => {
                    counts.imported += 1;
                    counts.bytes += bytes;
                }
                Err(Rejection::Record(message)) => {
                    refuse(&mut counts, &bar, &format!("{} {number}", source.unit()), &message);
                }
                Err(Rejection::All(failure)) => return Err(failure),
            }
            Ok(())
        };
        match source {
            Source::Fields(format) => records::read(format, &fields, input.as_mut(), sink),
            Source::Dump(dump) => dumps::read(dump, input.as_mut(), sink),
        }
    });
    drop(bar);
    let ended = ended.map_err(|failure| match (failure, path) {
        (Failure::Stream(error), Some(path)) => {
            Error::io(format!("read {}", path.display()), error).into()
        }
        (failure, _) => failure,
    });
    // A reader that a signal ended has returned an error for it.
    let interrupted = ended.is_err() && interrupt::is_set();
    // Single writes were only buffered: one flush makes all of them durable.
    let flushed = writing.db.flush().map_err(Failure::from);
    let ended = if interrupted { flushed } else { ended.and(flushed) };
    let made_nothing =
        counts.imported == 0 && (ended.is_err() || interrupted || counts.rejected > 0);
    let ended = match (ended, made_nothing) {
        (ended, true) => {
            writing.undo();
            ended
        }
        (Ok(()), false) => writing.end(Ok(())),
        // Earlier records stay, in the database and keyspace that were made for them.
        (Err(failure), false) => {
            let _ = writing.db.close();
            Err(failure)
        }
    };
    // A script needs the number of records to continue.
    report(&counts, arguments.json)?;
    ended?;
    if interrupted {
        interrupt::say("the records above are in and durable");
        return Ok(Outcome::Interrupted);
    }
    Ok(if counts.rejected > 0 { Outcome::Rejected } else { Outcome::Done })
}

impl ImportArguments {
    /// Refuses options that do not go with the format.
    fn check(&self, source: Source) -> Result<(), Failure> {
        let is_text = self.encoding.encoding() == Encoding::Text;
        match source {
            Source::Dump(_) if self.key.is_some() || self.no_header || !is_text => {
                Err(Failure::usage(
                    "--key, --value, --no-header, --hex and --base64 are not for dumps: a dump \
                     says itself what it holds",
                ))
            }
            _ => Ok(()),
        }
    }
}

/// Counts a refused record, and names it if it is among the first.
fn refuse(counts: &mut Counts, bar: &Progress, which: &str, why: &str) {
    counts.rejected += 1;
    if counts.rejected <= REFUSALS_SHOWN {
        bar.say(format_args!("{which} is refused: {}", shortened(why)));
    } else if counts.rejected == REFUSALS_SHOWN + 1 {
        bar.say("more records are refused; from here on they are only counted");
    }
}

/// Why a record was not written.
enum Rejection {
    /// The record is at fault; the next may be accepted.
    Record(String),
    /// No record can be written.
    All(Failure),
}

/// Writes one record. Returns its bytes.
fn insert(keyspace: &Keyspace, (key, value): &Record<'_>) -> Result<u64, Rejection> {
    match keyspace.insert_with(key, value, spinney::Durability::Buffered) {
        Ok(()) => Ok((key.len() + value.len()) as u64),
        Err(error)
            if matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Unsupported) =>
        {
            Err(Rejection::Record(format!("key {}: {error}", abridged(key))))
        }
        Err(error) => Err(Rejection::All(error.into())),
    }
}

fn report(counts: &Counts, as_json: bool) -> Result<(), Failure> {
    let Counts { imported, rejected, bytes } = counts;
    if as_json {
        let line = json!({ "imported": imported, "rejected": rejected, "bytes": bytes });
        writeln!(stdout(), "{line}")?;
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
    /// Format of the file [default: by its name, which ends in .csv, .tsv, .jsonl, .ndjson or
    /// .json; else jsonl]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Only keys that begin with PREFIX
    #[arg(long)]
    prefix: Option<String>,
    #[command(flatten)]
    encoding: EncodingArguments,
}

pub(crate) fn export(arguments: &ExportArguments) -> Result<Outcome, Failure> {
    interrupt::watch()?;
    let prefix =
        arguments.prefix.as_deref().map(|prefix| arguments.encoding.word(prefix)).transpose()?;
    let path = named(arguments.file.as_ref());
    let format = arguments.format.unwrap_or_else(|| Format::of_file(path));
    let file = path.map(OutputFile::at).transpose()?;
    let (db, keyspace) = arguments.keyspace.open_for_reading()?;
    let output: Box<dyn Write> = match &file {
        Some(file) => Box::new(file.create()?),
        None => Box::new(stdout()),
    };
    let output = BufWriter::with_capacity(1 << 16, output);
    let cursor = match &prefix {
        Some(prefix) => keyspace.prefix(prefix),
        None => keyspace.iter(),
    };
    let written =
        Writer::new(format, arguments.encoding.encoding(), output).and_then(|mut writer| {
            let written = write_all(cursor, &mut writer)?;
            writer.finish()?;
            Ok(written)
        });
    if let (Err(_), Some(file)) = (&written, &file) {
        file.leave_nothing();
    }
    let (exported, interrupted) = written.map_err(|failure| match (failure, &file) {
        (Failure::Stream(error), Some(file)) => file.failed(error),
        (failure, _) => failure,
    })?;
    db.close()?;
    if interrupted {
        let to =
            path.map_or_else(|| "standard output".to_owned(), |path| path.display().to_string());
        interrupt::say(format!("{exported} records are in {to}, which is not a whole export"));
        return Ok(Outcome::Interrupted);
    }
    Ok(Outcome::Done)
}

/// Writes records until the end or a signal. Returns how many, and whether a signal came.
fn write_all(cursor: Cursor, writer: &mut Writer<impl Write>) -> Result<(u64, bool), Failure> {
    let bar = Progress::of_things("exporting records", None);
    let mut exported = 0u64;
    for record in cursor.readers() {
        if interrupt::is_set() {
            return Ok((exported, true));
        }
        let (key, mut value) = record?;
        writer.write_from(&key, &mut value)?;
        exported += 1;
        if exported.is_multiple_of(RECORDS_A_STEP) {
            bar.set(exported);
        }
    }
    Ok((exported, false))
}
