//! The command line.

use clap::{Parser, Subcommand};

use crate::bench::BenchArguments;
use crate::compact::CompactArguments;
use crate::copies::{BackupArguments, RestoreArguments, SalvageArguments};
use crate::database::{
    DatabaseArguments, GetArguments, KeyArguments, KeyspacesCommand, PutArguments, ReportArguments,
    ScanArguments,
};
use crate::exit;
use crate::transfer::{ExportArguments, ImportArguments};

/// Name of the hidden command that makes this program the child process of one engine of a benchmark.
pub(crate) const CHILD_COMMAND: &str = "bench-child";

/// An embedded key-value store: look into databases, move data in and out, measure
#[derive(Debug, Parser)]
#[command(name = "spinney", version, after_help = exit::HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Writes a record; makes the keyspace when it is missing, and the database in a directory that is missing or empty
    Put(PutArguments),
    /// Prints the value of a key; exits with 3 when it has none
    Get(GetArguments),
    /// Removes a record; a key that is not there is no error
    Delete(KeyArguments),
    /// Prints the records of a range in key order: key, tab, value
    Scan(ScanArguments),
    /// Reads records from a file or a pipe; the first refused ones are named, the others are in
    ///
    /// Without --key the file is an export: JSON lines with "key" and "value" ("key_hex" or "key_base64" for bytes, and so on),
    /// or CSV or TSV with a header of the same names. With --key FIELD the key is that field of each record, and the value is the field of
    /// --value or, without it, the whole record: the line for JSON lines, a JSON object of the fields for CSV and TSV.
    ///
    /// Nothing is changed on the way: a JSON string is what it stands for, every other JSON value is its text in the file, byte by byte. null,
    /// objects and arrays can be values, not keys. With --hex or --base64 the fields are decoded (a whole record is not).
    ///
    /// A database or keyspace that is made for an import of which no record is accepted is removed again.
    Import(ImportArguments),
    /// Writes all records, so that importing them gives the same bytes
    Export(ExportArguments),
    /// Lists, makes, renames, converts and removes keyspaces
    #[command(subcommand)]
    Keyspaces(KeyspacesCommand),
    /// Prints what the database holds and how it is doing
    Stats(ReportArguments),
    /// Reads everything and checks it; exits with 4 at the first damage
    Verify(ReportArguments),
    /// Brings everything into the keyspaces' files and trims the log
    Checkpoint(DatabaseArguments),
    /// Gives back the room that removed and overwritten records take
    Compact(CompactArguments),
    /// Copies the database into another directory; the copy is a database
    Backup(BackupArguments),
    /// Makes a database of a backup, and verifies it
    Restore(RestoreArguments),
    /// Saves what can be read of a damaged database into a new one; exits with 8 when something is lost
    Salvage(SalvageArguments),
    /// Measures engines side by side
    Bench(BenchArguments),
    #[command(name = CHILD_COMMAND, hide = true)]
    BenchChild,
}

/// Reads a size or a count with a suffix.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    spinney_base::size::parse(text).map_err(|error| error.to_string())
}

/// The same, for what must fit in memory.
pub(crate) fn small_size(text: &str) -> Result<usize, String> {
    size(text)?.try_into().map_err(|_| format!("{text} does not fit in memory"))
}
