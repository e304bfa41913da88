//! Commands on one database: records, keyspaces and maintenance.
//!
//! A database is opened in two places only: [`DatabaseArguments::open_for_reading`] for commands
//! that read, [`DatabaseArguments::open_for_writing`] for all others.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use spinney::{
    Cursor, Db, EngineKind, Error, ErrorKind, Keyspace, KeyspaceInfo, KeyspaceOptions, Options,
    ValueReader, VerifyProgress,
};

use crate::directory::{self, Room};
use crate::exit::{Failure, Outcome};
use crate::files::{self, OutputFile};
use crate::output::stdout;
use crate::progress::Progress;
use crate::text::Encoding;
use crate::{interrupt, json, sizes};

/// Arguments that name a database and say how to open it.
#[derive(Debug, Args)]
pub(crate) struct DatabaseArguments {
    /// Directory of the database
    #[arg(value_name = "DB")]
    path: PathBuf,
    /// Memory budget while the command runs (64MiB)
    #[arg(long, default_value = "64MiB", value_parser = sizes::size)]
    memory: u64,
}

/// What a command that writes does if there is no database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Fail,
    Make,
}

/// A database that is open for writing, and what this command has made of it.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) db: Db,
    /// Directory in which the database was made, if this command made it.
    room: Option<Room>,
    /// The keyspace that this command made, if any.
    keyspace: Option<String>,
}

impl Writing {
    /// Ends a command: its changes stay if it succeeded; otherwise what it made is removed again.
    pub(crate) fn end<T>(self, result: Result<T, Failure>) -> Result<T, Failure> {
        match result {
            Ok(done) => {
                self.db.close()?;
                Ok(done)
            }
            Err(failure) => {
                self.undo();
                Err(failure)
            }
        }
    }

    /// Removes the database or the keyspace that was made, and closes what stays. Errors are
    /// ignored, because an error that says more came before.
    pub(crate) fn undo(self) {
        if self.room.is_none()
            && let Some(name) = &self.keyspace
        {
            let _ = self.db.drop_keyspace(name);
        }
        let _ = self.db.close();
        if let Some(room) = self.room {
            room.clear();
        }
    }
}

impl DatabaseArguments {
    /// Opens an existing database for a command that reads it. Its files do not change; the log of
    /// a killed process is replayed in as much memory as that needs.
    pub(crate) fn open_for_reading(&self) -> Result<Db, Failure> {
        directory::check_source(&self.path)?;
        let options = self.options().read_only(true).replay_bytes_max(u64::MAX);
        Ok(Db::open(&self.path, options)?)
    }

    /// Opens a database for a command that changes it.
    pub(crate) fn open_for_writing(&self, missing: Missing) -> Result<Writing, Failure> {
        let room = match missing {
            Missing::Make => directory::room(&self.path)?,
            Missing::Fail => {
                directory::check_source(&self.path)?;
                None
            }
        };
        match Db::open(&self.path, self.options().create_if_missing(room.is_some())) {
            Ok(db) => Ok(Writing { db, room, keyspace: None }),
            Err(error) => {
                // Damage that was there before, and what another process makes, are left alone.
                let ours = !matches!(
                    error.kind(),
                    ErrorKind::Locked | ErrorKind::Corruption | ErrorKind::Unsupported
                );
                if let Some(room) = room.filter(|_| ours) {
                    room.clear();
                }
                Err(error.into())
            }
        }
    }

    fn options(&self) -> Options {
        Options::default().memory(self.memory)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Arguments that name a keyspace of a database.
#[derive(Debug, Args)]
pub(crate) struct KeyspaceArguments {
    #[command(flatten)]
    pub(crate) database: DatabaseArguments,
    /// Name of the keyspace
    #[arg(long, default_value = "default")]
    pub(crate) keyspace: String,
}

impl KeyspaceArguments {
    pub(crate) fn open_for_reading(&self) -> Result<(Db, Keyspace), Failure> {
        let db = self.database.open_for_reading()?;
        let keyspace = db.existing_keyspace(&self.keyspace)?;
        Ok((db, keyspace))
    }

    /// Opens the keyspace whatever its engine, or makes one with the default engine.
    pub(crate) fn open_for_writing(&self) -> Result<(Writing, Keyspace), Failure> {
        let mut writing = self.database.open_for_writing(Missing::Make)?;
        let made = !writing.db.keyspaces().iter().any(|one| one.name == self.keyspace);
        let keyspace = match made {
            true => writing.db.keyspace(&self.keyspace, KeyspaceOptions::default()),
            false => writing.db.existing_keyspace(&self.keyspace),
        };
        match keyspace {
            Ok(keyspace) => {
                writing.keyspace = made.then(|| self.keyspace.clone());
                Ok((writing, keyspace))
            }
            Err(error) => {
                writing.undo();
                Err(error.into())
            }
        }
    }
}

/// How keys and values are encoded.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct EncodingArguments {
    /// Keys and values are hexadecimal, on the command line and in output
    #[arg(long, conflicts_with = "base64")]
    hex: bool,
    /// Keys and values are base64, on the command line and in output
    #[arg(long)]
    base64: bool,
}

impl EncodingArguments {
    pub(crate) fn encoding(self) -> Encoding {
        match (self.hex, self.base64) {
            (true, _) => Encoding::Hex,
            (_, true) => Encoding::Base64,
            _ => Encoding::Text,
        }
    }

    /// Returns the bytes of a word of the command line; `-` reads all of standard input as it is.
    pub(crate) fn bytes(self, word: &str) -> Result<Vec<u8>, Failure> {
        if word == "-" {
            return Ok(most_of(&mut std::io::stdin().lock())?);
        }
        self.encoding().decode(word).map_err(Failure::usage)
    }

    /// Returns the bytes of a word; `-` is a word like any other.
    pub(crate) fn word(self, word: &str) -> Result<Vec<u8>, Failure> {
        self.encoding().decode(word).map_err(Failure::usage)
    }
}

/// Reads all of an input, but at most one byte more than a value may have. The error then names the
/// limit.
fn most_of(input: &mut dyn Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(spinney::limits::VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What a write survives.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Durability {
    /// Power loss
    Sync,
    /// Death of the process
    Buffered,
}

impl From<Durability> for spinney::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Sync => spinney::Durability::Sync,
            Durability::Buffered => spinney::Durability::Buffered,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PutArguments {
    #[command(flatten)]
    keyspace: KeyspaceArguments,
    /// Key
    key: String,
    /// Value; - reads it from standard input as it is
    #[arg(allow_hyphen_values = true, required_unless_present = "file")]
    value: Option<String>,
    /// File whose bytes are the value; a large one is read in pieces
    #[arg(long, conflicts_with = "value")]
    file: Option<PathBuf>,
    /// What the write survives once this command is done
    #[arg(long, value_enum, default_value = "sync")]
    durability: Durability,
    #[command(flatten)]
    encoding: EncodingArguments,
}

pub(crate) fn put(arguments: &PutArguments) -> Result<Outcome, Failure> {
    let key = arguments.encoding.word(&arguments.key)?;
    let durability = arguments.durability.into();
    if let Some(path) = &arguments.file {
        let (mut file, metadata) = files::open(path)?;
        let failed = |error| Error::io(format!("read {}", path.display()), error);
        // The length of a pipe is not known.
        let (length, file): (u64, Box<dyn Read>) = match metadata.is_file() {
            true => (metadata.len(), Box::new(file)),
            false => {
                let bytes = most_of(&mut file).map_err(failed)?;
                (bytes.len() as u64, Box::new(std::io::Cursor::new(bytes)))
            }
        };
        let (writing, keyspace) = arguments.keyspace.open_for_writing()?;
        let put = keyspace.insert_from_with(&key, length, file, durability);
        return writing.end(put.map(|()| Outcome::Done).map_err(Failure::from));
    }
    let value = arguments.encoding.bytes(arguments.value.as_deref().unwrap_or_default())?;
    let (writing, keyspace) = arguments.keyspace.open_for_writing()?;
    let put = keyspace.insert_with(&key, &value, durability);
    writing.end(put.map(|()| Outcome::Done).map_err(Failure::from))
}

#[derive(Debug, Args)]
pub(crate) struct KeyArguments {
    #[command(flatten)]
    keyspace: KeyspaceArguments,
    /// Key; - reads it from standard input as it is
    key: String,
    #[command(flatten)]
    encoding: EncodingArguments,
}

#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    #[command(flatten)]
    record: KeyArguments,
    /// Print a JSON object with key and value
    #[arg(long)]
    json: bool,
    /// Print only the bytes of the value, without a line end
    #[arg(long, conflicts_with_all = ["json", "hex", "base64"])]
    raw: bool,
    /// Write only the bytes of the value to this file
    #[arg(long, conflicts_with_all = ["json", "hex", "base64", "raw"])]
    file: Option<PathBuf>,
}

pub(crate) fn get(arguments: &GetArguments) -> Result<Outcome, Failure> {
    let KeyArguments { keyspace, key, encoding } = &arguments.record;
    let key = encoding.bytes(key)?;
    let file = arguments.file.as_deref().map(OutputFile::at).transpose()?;
    let (db, keyspace) = keyspace.open_for_reading()?;
    let Some(mut reader) = keyspace.get_reader(&key)? else {
        db.close()?;
        return Ok(Outcome::NoKey);
    };
    if let Some(output) = &file {
        let mut file = output.create()?;
        copy(&mut reader, &mut file, |error| output.failed(error))?;
        file.sync_all().map_err(|error| output.failed(error))?;
    } else {
        let mut out = stdout();
        match encoding.encoding() {
            _ if arguments.raw => copy(&mut reader, &mut out, Failure::Stream)?,
            Encoding::Text if !arguments.json => {
                copy(&mut reader, &mut out, Failure::Stream)?;
                writeln!(out)?;
            }
            encoding => {
                let mut value = Vec::new();
                copy(&mut reader, &mut value, Failure::Stream)?;
                if arguments.json {
                    writeln!(out, "{}", json::to_json(&key, Some(&value), encoding))?;
                } else {
                    writeln!(out, "{}", encoding.show(&value))?;
                }
            }
        }
        out.flush()?;
    }
    drop(reader);
    db.close()?;
    Ok(Outcome::Done)
}

/// Copies a value in pieces. Errors of the database keep their exit code; `failed` makes the error
/// of the output.
fn copy(
    value: &mut ValueReader,
    out: &mut dyn Write,
    failed: impl Fn(std::io::Error) -> Failure,
) -> Result<(), Failure> {
    const PIECE_BYTES: usize = 64 << 10;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = value.read(&mut piece).map_err(Failure::of_reader)?;
        if read == 0 {
            return Ok(());
        }
        out.write_all(&piece[..read]).map_err(&failed)?;
    }
}

pub(crate) fn delete(arguments: &KeyArguments) -> Result<Outcome, Failure> {
    let key = arguments.encoding.bytes(&arguments.key)?;
    let KeyspaceArguments { database, keyspace } = &arguments.keyspace;
    let writing = database.open_for_writing(Missing::Fail)?;
    let removed = writing.db.existing_keyspace(keyspace).and_then(|found| found.remove(&key));
    writing.end(removed.map(|()| Outcome::Done).map_err(Failure::from))
}

#[derive(Debug, Args)]
pub(crate) struct ScanArguments {
    #[command(flatten)]
    keyspace: KeyspaceArguments,
    /// Only keys that begin with PREFIX
    #[arg(long, conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    /// Only keys from this one on
    #[arg(long)]
    from: Option<String>,
    /// Only keys before this one
    #[arg(long)]
    to: Option<String>,
    /// At most this many records
    #[arg(long, value_parser = sizes::small_size)]
    limit: Option<usize>,
    /// In descending order
    #[arg(long)]
    reverse: bool,
    /// Print keys without values
    #[arg(long)]
    keys_only: bool,
    /// Print one JSON object per line, as `export` does
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    encoding: EncodingArguments,
}

pub(crate) fn scan(arguments: &ScanArguments) -> Result<Outcome, Failure> {
    let encoding = arguments.encoding;
    let decode =
        |word: &Option<String>| word.as_deref().map(|word| encoding.word(word)).transpose();
    let (prefix, from, to) =
        (decode(&arguments.prefix)?, decode(&arguments.from)?, decode(&arguments.to)?);
    let (db, keyspace) = arguments.keyspace.open_for_reading()?;
    let cursor = match &prefix {
        Some(prefix) => keyspace.prefix(prefix),
        None => range(&keyspace, from, to),
    };
    let limit = arguments.limit.unwrap_or(usize::MAX);
    if arguments.reverse {
        print(cursor.rev().take(limit), arguments)?;
    } else {
        print(cursor.take(limit), arguments)?;
    }
    db.close()?;
    Ok(Outcome::Done)
}

/// Returns the records from `from` on and before `to`.
pub(crate) fn range(keyspace: &Keyspace, from: Option<Vec<u8>>, to: Option<Vec<u8>>) -> Cursor {
    match (from, to) {
        (None, None) => keyspace.iter(),
        (Some(from), None) => keyspace.range(from..),
        (None, Some(to)) => keyspace.range(..to),
        // A range that ends before it begins is empty.
        (Some(from), Some(to)) if from > to => keyspace.range(to.clone()..to),
        (Some(from), Some(to)) => keyspace.range(from..to),
    }
}

fn print(
    found: impl Iterator<Item = spinney::Result<(Vec<u8>, spinney::Value)>>,
    arguments: &ScanArguments,
) -> Result<(), Failure> {
    let mut out = std::io::BufWriter::new(stdout());
    let encoding = arguments.encoding.encoding();
    for record in found {
        let (key, value) = record?;
        let value: Option<&[u8]> = (!arguments.keys_only).then_some(&value);
        match value {
            _ if arguments.json => writeln!(out, "{}", json::to_json(&key, value, encoding))?,
            Some(value) => writeln!(out, "{}\t{}", encoding.show(&key), encoding.show(value))?,
            None => writeln!(out, "{}", encoding.show(&key))?,
        }
    }
    Ok(out.flush()?)
}

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    #[command(flatten)]
    database: DatabaseArguments,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn verify(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    interrupt::watch()?;
    let db = arguments.database.open_for_reading()?;
    let bar = Progress::of_things("verifying pages", Some(0));
    let mut so_far = VerifyProgress::default();
    let verified = db.verify_with(|progress| {
        so_far = progress;
        bar.set_of(progress.pages, progress.pages_expected);
        interrupt::go_on()
    });
    drop(bar);
    let report = match verified {
        Err(error) if error.kind() == ErrorKind::Cancelled => {
            db.close()?;
            let VerifyProgress { pages, pages_expected, .. } = so_far;
            interrupt::say(format!(
                "{pages} of about {pages_expected} pages were read, and they are sound"
            ));
            return Ok(Outcome::Interrupted);
        }
        verified => verified?,
    };
    db.close()?;
    let mut out = stdout();
    if arguments.json {
        let report = json!({
            "pages": report.pages,
            "records": report.records,
            "large_values": report.large_values,
            "free_pages": report.free_pages,
            "page_records_max": report.page_records_max,
        });
        writeln!(out, "{report}")?;
    } else {
        let path = arguments.database.path().display();
        writeln!(
            out,
            "{path} is sound: {} pages with {} records, {} large values, {} free pages",
            report.pages, report.records, report.large_values, report.free_pages
        )?;
    }
    Ok(Outcome::Done)
}

pub(crate) fn checkpoint(arguments: &DatabaseArguments) -> Result<Outcome, Failure> {
    let writing = arguments.open_for_writing(Missing::Fail)?;
    let taken = writing.db.checkpoint();
    writing.end(taken.map(|()| Outcome::Done).map_err(Failure::from))
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyspacesCommand {
    /// Lists the keyspaces: name, engine, and whether their writes are logged
    List(ReportArguments),
    /// Makes a keyspace, and the database when it is missing
    ///
    /// Engine and logging are kept with the keyspace. Options of an engine are not: a program sets
    /// them when it opens the keyspace, and these commands open it without any.
    Create(CreateArguments),
    /// Removes a keyspace and all its records
    Drop(DropArguments),
    /// Gives a keyspace another name
    Rename(RenameArguments),
    /// Moves a keyspace to another engine, with all its records
    ///
    /// The records are copied into a new file, and the old file is removed at the end. The
    /// database needs room on the disk for both until then. A command that is killed leaves the
    /// keyspace with one engine or the other, with all its records.
    Convert(ConvertArguments),
}

#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    #[command(flatten)]
    database: DatabaseArguments,
    /// Name of the keyspace
    name: String,
    /// Engine that keeps the keyspace
    #[arg(long, default_value_t)]
    engine: EngineKind,
    /// Do not log its writes: after a crash each key has its value of the last checkpoint or a
    /// later one
    #[arg(long)]
    unlogged: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DropArguments {
    #[command(flatten)]
    database: DatabaseArguments,
    /// Name of the keyspace
    name: String,
}

#[derive(Debug, Args)]
pub(crate) struct RenameArguments {
    #[command(flatten)]
    database: DatabaseArguments,
    /// Name of the keyspace
    name: String,
    /// Its new name
    to: String,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArguments {
    #[command(flatten)]
    database: DatabaseArguments,
    /// Name of the keyspace
    name: String,
    /// Engine to move it to
    #[arg(long)]
    engine: EngineKind,
}

pub(crate) fn keyspaces(command: &KeyspacesCommand) -> Result<Outcome, Failure> {
    match command {
        KeyspacesCommand::List(arguments) => list(arguments),
        KeyspacesCommand::Create(arguments) => {
            let writing = arguments.database.open_for_writing(Missing::Make)?;
            let name = &arguments.name;
            let made = if writing.db.keyspaces().iter().any(|one| one.name == *name) {
                Err(Failure::usage(format!("keyspace {name:?} is already there")))
            } else {
                let options = KeyspaceOptions::default();
                let options = options.engine(arguments.engine).logged(!arguments.unlogged);
                writing.db.keyspace(name, options).map_err(Failure::from)
            };
            writing.end(made.map(|_| Outcome::Done))
        }
        KeyspacesCommand::Drop(arguments) => {
            let writing = arguments.database.open_for_writing(Missing::Fail)?;
            let dropped = writing.db.drop_keyspace(&arguments.name);
            writing.end(dropped.map(|()| Outcome::Done).map_err(Failure::from))
        }
        KeyspacesCommand::Rename(RenameArguments { database, name, to }) => {
            let writing = database.open_for_writing(Missing::Fail)?;
            let renamed = writing.db.rename_keyspace(name, to);
            writing.end(renamed.map(|()| Outcome::Done).map_err(Failure::from))
        }
        KeyspacesCommand::Convert(ConvertArguments { database, name, engine }) => {
            let writing = database.open_for_writing(Missing::Fail)?;
            let is_same = |one: &KeyspaceInfo| one.name == *name && one.engine == *engine;
            if writing.db.keyspaces().iter().any(is_same) {
                let said = writeln!(stdout(), "keyspace {name:?} is kept by {engine} already");
                return writing.end(said.map(|()| Outcome::Done).map_err(Failure::from));
            }
            let converted = writing.db.convert_keyspace(name, *engine);
            writing.end(converted.map(|_| Outcome::Done).map_err(Failure::from))
        }
    }
}

fn list(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    let db = arguments.database.open_for_reading()?;
    let keyspaces = db.keyspaces();
    db.close()?;
    let mut out = stdout();
    for one in keyspaces {
        if arguments.json {
            let (id, engine) = (one.id.0, one.engine.to_string());
            writeln!(
                out,
                "{}",
                json!({ "id": id, "name": one.name, "engine": engine, "logged": one.logged })
            )?;
        } else {
            let logged = if one.logged { "logged" } else { "not logged" };
            writeln!(out, "{}\t{}\t{logged}", one.name, one.engine)?;
        }
    }
    Ok(Outcome::Done)
}

pub(crate) fn stats(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    let db = arguments.database.open_for_reading()?;
    // A keyspace that the log does not name is parked; once opened, it has all statistics.
    for keyspace in db.keyspaces() {
        db.existing_keyspace(&keyspace.name)?.contains_key(b"")?;
    }
    let stats = db.stats();
    db.close()?;
    let mut out = stdout();
    if arguments.json {
        writeln!(out, "{}", crate::stats::to_json(&stats))?;
    } else {
        write!(out, "{}", crate::stats::to_text(&stats))?;
    }
    Ok(Outcome::Done)
}
