//! How the program ends: exit codes by what a script can do about them.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | an error that is none of those below; `bench`: an engine failed or a read was wrong |
//! | 2 | the command line or the input is not understood, a file that it names cannot be opened, or a limit is passed |
//! | 3 | the key is not there |
//! | 4 | damage on disk; files of a database are missing |
//! | 5 | another process has the database open |
//! | 6 | no room: the disk, the log or the memory budget is full |
//! | 7 | `import`: some records were refused, the others are in |
//! | 8 | `salvage`: something could not be saved, the rest is in |
//! | 9 | the database or the keyspace is not there |
//! | 130, 143 | interrupted by Ctrl-C, or by SIGTERM: how far it came was printed |

use std::fmt;
use std::process::ExitCode;

use spinney_base::{Error, ErrorKind};

use crate::interrupt;

/// What `--help` says about exit codes.
pub(crate) const HELP: &str = "\
Exit codes:
  0    done
  1    any other error; bench: an engine failed or a read was wrong
  2    usage: wrong arguments or input, a file that cannot be opened, a limit exceeded
  3    no such key
  4    damage on disk, or missing files of a database
  5    locked: another process has the database open
  6    full: the disk, the log or the memory budget
  7    import refused some records
  8    salvage lost something
  9    no such database or keyspace
  130  interrupted (143 by SIGTERM)";

/// How a command that ran to its end came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// `bench` with errors: they were printed with the table.
    Failed,
    /// `get` without a value: nothing is printed.
    NoKey,
    /// `salvage` that could not save everything: what, was printed.
    Lost,
    /// `import` that refused records: the first were named.
    Rejected,
    /// A signal ended it: how far it came was printed.
    Interrupted,
}

impl Outcome {
    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Outcome::Done => 0,
            Outcome::Failed => 1,
            Outcome::NoKey => 3,
            Outcome::Rejected => 7,
            Outcome::Lost => 8,
            Outcome::Interrupted => interrupt::code(),
        })
    }
}

/// Why a command did not run to its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The engine or the system said so.
    Error(Error),
    /// Standard input or output failed.
    Stream(std::io::Error),
    /// The command line or the input asks for something impossible.
    Usage(String),
}

impl Failure {
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Usage(_) => 2,
            Failure::Stream(_) => 1,
            Failure::Error(error) => match error.kind() {
                ErrorKind::InvalidArgument => 2,
                ErrorKind::Corruption => 4,
                ErrorKind::Locked => 5,
                ErrorKind::Full => 6,
                ErrorKind::NotFound => 9,
                ErrorKind::Cancelled => interrupt::code(),
                _ => 1,
            },
        })
    }

    /// Whether a reader of our output has had enough of it.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Stream(error) if error.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// Why a value could not be read: what the database answers keeps its exit code.
    pub(crate) fn of_reader(error: std::io::Error) -> Self {
        match error.downcast::<Error>() {
            Ok(error) => Failure::Error(error),
            Err(error) => Failure::Stream(error),
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::Usage(message.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Error(error) => error.fmt(f),
            Failure::Stream(error) => write!(f, "standard input or output: {error}"),
            Failure::Usage(message) => f.write_str(message),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Error(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::Stream(error)
    }
}
