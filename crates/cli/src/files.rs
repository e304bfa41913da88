//! Input and output files on the command line.
//!
//! A file that cannot be opened is a mistake on the command line (exit code 2). An error while it
//! is read or written is an error of the system (1, or 6 on a full disk).

use std::cell::Cell;
use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};

use spinney::Error;

use crate::directory::check_apart;
use crate::exit::Failure;

/// Opens a file for reading.
pub(crate) fn open(path: &Path) -> Result<(File, Metadata), Failure> {
    let opened = File::open(path).and_then(|file| {
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(std::io::ErrorKind::IsADirectory.into());
        }
        Ok((file, metadata))
    });
    opened.map_err(|error| Error::unopened(format!("open {}", path.display()), error).into())
}

/// A file to write. It is created when there is something to write, so that a command that fails
/// before leaves the old file alone.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    /// Whether there was none before.
    is_new: Cell<bool>,
}

impl OutputFile {
    /// Refuses a file inside the directory of a database.
    pub(crate) fn at(path: &Path) -> Result<Self, Failure> {
        check_apart(path)?;
        Ok(OutputFile { path: path.to_owned(), is_new: Cell::new(false) })
    }

    /// Creates the file, or empties an existing one.
    pub(crate) fn create(&self) -> Result<File, Failure> {
        let context = || format!("create {}", self.path.display());
        self.is_new.set(!self.path.exists());
        File::create(&self.path).map_err(|error| Error::unopened(context(), error).into())
    }

    /// Removes the file after a failure, if the command made it and nothing is in it.
    pub(crate) fn leave_nothing(&self) {
        if self.is_new.get() && self.path.metadata().is_ok_and(|file| file.len() == 0) {
            // It is left where that fails; the failure before it counts.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Makes the error for a file that could not be written.
    pub(crate) fn failed(&self, error: std::io::Error) -> Failure {
        Error::io(format!("write {}", self.path.display()), error).into()
    }
}
