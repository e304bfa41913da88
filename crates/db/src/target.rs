//! A directory in which a database is being put together from another: by a backup, a restore or a salvage.
//!
//! A file beside the others says that it is not finished; the manifest is written last, after
//! everything else is on stable storage, and only then the mark goes away. So whatever a crash
//! leaves is either no database, and says so when it is opened, or a whole one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::{Error, Result};
use spinney_io::{AlignedBuf, DirectoryLock, Disk, LOCK_NAME, OpenMode, Purpose};

use crate::manifest::{self, Manifest};

/// Says that what is beside it is not a whole database, unless there is a manifest.
const MARK: &str = "UNFINISHED";

/// A database under construction. Dropping it before [`Target::complete`] removes what was made.
#[derive(Debug)]
pub(crate) struct Target {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    /// Until it is complete.
    lock: Option<Box<dyn DirectoryLock>>,
}

/// Says that a salvage has not yet saved all that it can.
const SALVAGING: &str = "SALVAGING";

/// Whether a salvage into a directory was never finished.
pub(crate) fn is_being_salvaged(disk: &dyn Disk, directory: &Path) -> Result<bool> {
    disk.exists(&directory.join(SALVAGING))
}

/// Whether a directory holds what was left unfinished.
pub(crate) fn is_unfinished(disk: &dyn Disk, directory: &Path) -> Result<bool> {
    disk.exists(&directory.join(MARK))
}

impl Target {
    /// Takes a directory that is empty or does not exist.
    ///
    /// # Errors
    /// `InvalidArgument` when there are files in it; `Locked`, `Full` or `Io`.
    pub(crate) fn begin(disk: &Arc<dyn Disk>, directory: &Path) -> Result<Target> {
        if !disk.exists(directory)? {
            disk.create_dir(directory)?;
        }
        let lock = disk.lock(directory)?;
        check_empty(&**disk, directory)?;
        let target =
            Target { disk: disk.clone(), directory: directory.to_owned(), lock: Some(lock) };
        mark(&**disk, directory, MARK)?;
        Ok(target)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes it a database: everything else in it is on stable storage but for its name.
    ///
    /// # Errors
    /// `Full` or `Io`; everything that was made is removed.
    pub(crate) fn complete(mut self, manifest: &Manifest) -> Result<()> {
        self.disk.sync_dir(&self.directory)?;
        manifest.write_new(&*self.disk, &self.directory)?;
        self.disk.remove(&self.directory.join(MARK))?;
        self.disk.sync_dir(&self.directory)?;
        self.lock = None;
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // Whatever cannot be removed, the mark goes last.
            remove_all(&*self.disk, &self.directory);
        }
    }
}

fn check_empty(disk: &dyn Disk, directory: &Path) -> Result<()> {
    let files = disk.list(directory)?;
    let Some(file) = files.iter().find(|file| !is_lock(file)) else { return Ok(()) };
    let unfinished = is_unfinished(disk, directory)? || is_being_salvaged(disk, directory)?;
    let left = if unfinished { "what an earlier attempt left unfinished" } else { "files" };
    Err(Error::invalid(format!(
        "{} must be empty, and holds {left}: {}",
        directory.display(),
        file.display()
    )))
}

fn mark(disk: &dyn Disk, directory: &Path, name: &str) -> Result<()> {
    let file = disk.open(&directory.join(name), OpenMode::CREATE.cached())?;
    file.write_at(AlignedBuf::new(1).bytes(), 0, Purpose::Tool)?;
    file.sync(Purpose::Tool)?;
    disk.sync_dir(directory)
}

/// A database that is open while a salvage fills it: it has a manifest from the start, so its mark
/// counts whatever is beside it. Dropping it before [`Salvaging::complete`] removes what was made.
#[derive(Debug)]
pub(crate) struct Salvaging {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    complete: bool,
}

impl Salvaging {
    /// Takes a directory that is empty or does not exist.
    ///
    /// # Errors
    /// `InvalidArgument` when there are files in it; `Full` or `Io`.
    pub(crate) fn begin(disk: &Arc<dyn Disk>, directory: &Path) -> Result<Salvaging> {
        if !disk.exists(directory)? {
            disk.create_dir(directory)?;
        }
        check_empty(&**disk, directory)?;
        let directory = directory.to_owned();
        let salvaging = Salvaging { disk: disk.clone(), directory, complete: false };
        mark(&**disk, &salvaging.directory, SALVAGING)?;
        Ok(salvaging)
    }

    /// Everything is in, and on stable storage: makes it a database like any other.
    ///
    /// # Errors
    /// `Io`; everything that was made is removed.
    pub(crate) fn complete(mut self) -> Result<()> {
        self.disk.remove(&self.directory.join(SALVAGING))?;
        self.disk.sync_dir(&self.directory)?;
        self.complete = true;
        Ok(())
    }
}

impl Drop for Salvaging {
    fn drop(&mut self) {
        if !self.complete {
            remove_all(&*self.disk, &self.directory);
        }
    }
}

/// Removes the files of a database in a directory that is ours, as far as possible: the manifest
/// first, so that what is left is no database, and the mark last. An error here comes after one that
/// says more, and is not told.
pub(crate) fn remove_all(disk: &dyn Disk, directory: &Path) {
    let _ = disk.remove(&directory.join(manifest::NAME));
    let _ = disk.sync_dir(directory);
    let marks = [MARK, SALVAGING].map(|mark| directory.join(mark));
    for file in disk.list(directory).unwrap_or_default() {
        if !is_lock(&file) && !marks.contains(&file) {
            let _ = disk.remove(&file);
        }
    }
    let _ = disk.sync_dir(directory);
    for mark in marks {
        let _ = disk.remove(&mark);
    }
    let _ = disk.sync_dir(directory);
}

fn is_lock(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == LOCK_NAME)
}
