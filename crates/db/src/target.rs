//! A directory in which a database is being put together from another: by a backup, a restore or a salvage.
//!
//! A file beside the others says that it is not finished; the manifest is written last, after
//! everything else is on stable storage, and only then the mark goes away. So whatever a crash
//! leaves is either no database, and says so when it is opened, or a whole one.

use std::path::Path;
use std::sync::Arc;

use spinney_base::{Error, Result};
use spinney_io::{
    AlignedBuf, Directory, DirectoryLock, Disk, IfMissing, LOCK_NAME, OpenMode, Purpose,
};

use crate::manifest::{self, Manifest};

/// Says that what is beside it is not a whole database, unless there is a manifest.
const MARK: &str = "UNFINISHED";

/// A database under construction. Dropping it before [`Target::complete`] removes what was made.
#[derive(Debug)]
pub(crate) struct Target {
    directory: Arc<dyn Directory>,
    /// Until it is complete.
    lock: Option<Box<dyn DirectoryLock>>,
    /// Whether a manifest that is there is this database's.
    named: bool,
}

/// Says that a salvage has not yet saved all that it can.
const SALVAGING: &str = "SALVAGING";

/// Whether a salvage into a directory was never finished.
pub(crate) fn is_being_salvaged(directory: &dyn Directory) -> Result<bool> {
    directory.exists(SALVAGING)
}

/// Whether a directory holds what was left unfinished.
pub(crate) fn is_unfinished(directory: &dyn Directory) -> Result<bool> {
    directory.exists(MARK)
}

impl Target {
    /// Takes a directory that is empty or does not exist.
    ///
    /// # Errors
    /// `InvalidArgument` when there are files in it; `Locked`, `Full` or `Io`.
    pub(crate) fn begin(disk: &dyn Disk, path: &Path) -> Result<Target> {
        let directory = disk.directory(path, IfMissing::Create)?;
        let lock = directory.lock()?;
        check_empty(&*directory)?;
        let target = Target { directory, lock: Some(lock), named: false };
        mark(&*target.directory, MARK)?;
        Ok(target)
    }

    pub(crate) fn directory(&self) -> &Arc<dyn Directory> {
        &self.directory
    }

    /// Makes it a database: everything else in it is on stable storage but for its name. Answers the
    /// lock, so that nobody else opens it before the caller lets it go.
    ///
    /// # Errors
    /// `Corruption` when somebody has put a manifest there, and then nothing is removed; `Full` or
    /// `Io`, and everything that was made is removed.
    pub(crate) fn complete(
        mut self,
        manifest: &Manifest,
    ) -> Result<Option<Box<dyn DirectoryLock>>> {
        self.directory.sync()?;
        Manifest::check_none(&*self.directory)?;
        self.named = true;
        manifest.write_new(&*self.directory)?;
        self.directory.remove(MARK)?;
        self.directory.sync()?;
        Ok(self.lock.take())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Where somebody has put another database meanwhile, nothing is removed.
        let is_ours = self.named || Manifest::check_none(&*self.directory).is_ok();
        if self.lock.is_some() && is_ours {
            // Whatever cannot be removed, the mark goes last.
            remove_all(&*self.directory);
        }
    }
}

fn check_empty(directory: &dyn Directory) -> Result<()> {
    let files = directory.list()?;
    let Some(file) = files.iter().find(|file| *file != LOCK_NAME) else { return Ok(()) };
    let unfinished = is_unfinished(directory)? || is_being_salvaged(directory)?;
    let left = if unfinished { "what an earlier attempt left unfinished" } else { "files" };
    Err(Error::invalid(format!(
        "{} must be empty, and holds {left}: {}",
        directory.path().display(),
        directory.path().join(file).display()
    )))
}

fn mark(directory: &dyn Directory, name: &str) -> Result<()> {
    let file = directory.open(name, OpenMode::CREATE.cached())?;
    file.write_at(AlignedBuf::new(1).bytes(), 0, Purpose::Tool)?;
    file.sync(Purpose::Tool)?;
    directory.sync()
}

/// A database that is open while a salvage fills it: it has a manifest from the start, so its mark
/// counts whatever is beside it. Dropping it before [`Salvaging::complete`] removes what was made.
#[derive(Debug)]
pub(crate) struct Salvaging {
    directory: Arc<dyn Directory>,
    complete: bool,
}

impl Salvaging {
    /// Takes a directory that is empty or does not exist.
    ///
    /// # Errors
    /// `InvalidArgument` when there are files in it; `Full` or `Io`.
    pub(crate) fn begin(disk: &dyn Disk, path: &Path) -> Result<Salvaging> {
        let directory = disk.directory(path, IfMissing::Create)?;
        check_empty(&*directory)?;
        let salvaging = Salvaging { directory, complete: false };
        mark(&*salvaging.directory, SALVAGING)?;
        Ok(salvaging)
    }

    pub(crate) fn directory(&self) -> &Arc<dyn Directory> {
        &self.directory
    }

    /// Everything is in, and on stable storage: makes it a database like any other.
    ///
    /// # Errors
    /// `Io`; everything that was made is removed.
    pub(crate) fn complete(mut self) -> Result<()> {
        self.directory.remove(SALVAGING)?;
        self.directory.sync()?;
        self.complete = true;
        Ok(())
    }
}

impl Drop for Salvaging {
    fn drop(&mut self) {
        if !self.complete {
            remove_all(&*self.directory);
        }
    }
}

/// Removes the files of a database in a directory that is ours, as far as possible: the manifest
/// first, so that what is left is no database, and the mark last. An error here comes after one that
/// says more, and is not told.
pub(crate) fn remove_all(directory: &dyn Directory) {
    let _ = directory.remove(manifest::NAME);
    let _ = directory.sync();
    let kept = [LOCK_NAME, MARK, SALVAGING];
    for file in directory.list().unwrap_or_default() {
        if !kept.contains(&file.as_str()) {
            let _ = directory.remove(&file);
        }
    }
    let _ = directory.sync();
    for mark in [MARK, SALVAGING] {
        let _ = directory.remove(mark);
    }
    let _ = directory.sync();
}
