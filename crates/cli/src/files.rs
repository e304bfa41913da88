//! Files that the command line names beside a database: where input comes from and where output goes.
//!
//! A name that leads to no file that may be opened is a mistake on the command line (exit code 2). What goes wrong
//! later, while the file is read or written, is an error of the system (1, or 6 where there is no room).

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};

use spinney::Error;

use crate::directory::check_apart;
use crate::exit::Failure;

/// Opens a file to read.
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

/// A file to write. It is made later, when there is something to write, so that a command that fails before
/// leaves what was there.
#[derive(Debug)]
pub(crate) struct OutputFile(PathBuf);

impl OutputFile {
    /// Refuses a file inside the directory of a database.
    pub(crate) fn at(path: &Path) -> Result<Self, Failure> {
        check_apart(path)?;
        Ok(OutputFile(path.to_owned()))
    }

    /// Makes the file, or empties the one that is there.
    pub(crate) fn create(&self) -> Result<File, Failure> {
        let context = || format!("create {}", self.0.display());
        File::create(&self.0).map_err(|error| Error::unopened(context(), error).into())
    }

    /// Why it could not be written.
    pub(crate) fn failed(&self, error: std::io::Error) -> Failure {
        Error::io(format!("write {}", self.0.display()), error).into()
    }
}
