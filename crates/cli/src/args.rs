//! The command line.

use clap::{Parser, Subcommand};

use crate::bench::BenchArguments;
use crate::bench_engines::CHILD_COMMAND;
use crate::bench_transactions::ChildOf;
use crate::compact::CompactArguments;
use crate::copies::{BackupArguments, RestoreArguments, SalvageArguments};
use crate::database::{
    DatabaseArguments, GetArguments, KeyArguments, KeyspacesCommand, PutArguments, ReportArguments,
    ScanArguments,
};
use crate::exit;
use crate::transfer::{ExportArguments, ImportArguments};

/// An embedded key-value store: inspect databases, move data in and out, measure
#[derive(Debug, Parser)]
#[command(name = "spinney", version, max_term_width = 100, after_help = exit::HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Writes a record; makes the keyspace if it is missing, and the database if its directory is
    /// missing or empty
    Put(PutArguments),
    /// Prints the value of a key; exits with 3 if there is none
    Get(GetArguments),
    /// Removes a record; an absent key is no error
    Delete(KeyArguments),
    /// Prints the records of a range in key order: key, tab, value
    Scan(ScanArguments),
    /// Imports records from a file or a pipe; refused records do not stop it
    ///
    /// Without --key the file is an export: JSON lines with "key" and "value" ("key_hex" or
    /// "key_base64" for bytes, and so on), or CSV or TSV with a header of the same names. With
    /// --key FIELD, the key is that field of each record, and the value is the field of --value.
    /// Without --value, the value is the whole record: the line for JSON lines, a JSON object of
    /// the fields for CSV and TSV.
    ///
    /// Data is not changed: a JSON string becomes its text, and every other JSON value keeps its
    /// text in the file byte by byte. null, objects and arrays can be values, not keys. With --hex
    /// or --base64 the fields are decoded; a whole record is not.
    ///
    /// The first ten refused records are named, the others counted. If no record is accepted, a
    /// database or keyspace that was made for the import is removed again.
    Import(ImportArguments),
    /// Exports all records, so that importing them gives the same bytes
    Export(ExportArguments),
    /// Lists, makes, renames, converts and removes keyspaces
    #[command(subcommand)]
    Keyspaces(KeyspacesCommand),
    /// Prints what the database holds, and its statistics
    Stats(ReportArguments),
    /// Reads and checks everything; exits with 4 at the first damage
    Verify(ReportArguments),
    /// Writes all records to the keyspaces' files and trims the log
    Checkpoint(DatabaseArguments),
    /// Frees the space of removed and overwritten records
    Compact(CompactArguments),
    /// Copies the database into another directory; the copy is a database
    Backup(BackupArguments),
    /// Makes a database from a backup, and verifies it
    Restore(RestoreArguments),
    /// Copies what is readable of a damaged database into a new one; exits with 8 if anything is
    /// lost
    Salvage(SalvageArguments),
    /// Measures engines side by side
    Bench(BenchArguments),
    #[command(name = CHILD_COMMAND, hide = true)]
    BenchChild {
        /// What it runs
        #[arg(value_enum, default_value_t)]
        of: ChildOf,
    },
}
