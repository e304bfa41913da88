//! A directory in which a database is being put together from another: by a backup, a restore or a salvage.
//!
//! A file beside the others says that it is not finished; the manifest is written last, after
//! everything else is on stable storage, and only then the mark goes away. So whatever a crash
//! leaves is either no database, and says so when it is opened, or a whole one. The next backup,
//! restore or salvage into the directory removes what is left; only files that are no database's are in its way.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::{Error, Result};
use spinney_io::{AlignedBuf, DirectoryLock, Disk, LOCK_NAME, OpenMode, Purpose};
use spinney_wal::tail_path;

use crate::manifest::{self, Manifest};
use crate::open::LOG_NAME;
use crate::salvage::LOG_COPY;
use crate::state::is_keyspace_file;

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

/// How many directories above a target are looked at for a database: more than any path has in practice.
const DEPTH_MAX: usize = 64;

/// Whether a directory holds what was left unfinished, unless there is a manifest.
pub(crate) fn is_unfinished(disk: &dyn Disk, directory: &Path) -> Result<bool> {
    disk.exists(&directory.join(MARK))
}

impl Target {
    /// Takes a directory that is empty, does not exist, or holds what was left unfinished.
    ///
    /// # Errors
    /// `InvalidArgument` when there are other files in it or it lies in that of a database; `Locked`,
    /// `Full` or `Io`.
    pub(crate) fn begin(disk: &Arc<dyn Disk>, directory: &Path) -> Result<Target> {
        let lock = take(&**disk, directory, MARK)?;
        Ok(Target { disk: disk.clone(), directory: directory.to_owned(), lock: Some(lock) })
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

/// Locks and marks a directory in which nothing else is, and makes it if need be. What an earlier attempt left
/// unfinished there is removed under its mark.
fn take(disk: &dyn Disk, directory: &Path, name: &str) -> Result<Box<dyn DirectoryLock>> {
    check_apart(disk, directory)?;
    if !disk.exists(directory)? {
        disk.create_dir(directory)?;
    }
    // Also before the lock, so that a database that is open is refused for its files, not as locked.
    check_room(disk, directory)?;
    let lock = disk.lock(directory)?;
    if check_room(disk, directory)? {
        remove_files(disk, directory);
    }
    match mark(disk, directory, name) {
        Ok(()) => Ok(lock),
        Err(error) => {
            remove_all(disk, directory);
            Err(error)
        }
    }
}

/// Refuses a directory with files in it, but for those that an earlier attempt left unfinished; says whether
/// there are such.
fn check_room(disk: &dyn Disk, directory: &Path) -> Result<bool> {
    let unfinished = is_unfinished(disk, directory)? && !Manifest::exists(disk, directory)?
        || is_being_salvaged(disk, directory)?;
    let files = disk.list(directory)?;
    let in_the_way = |file: &&PathBuf| !(is_lock(file) || unfinished && is_of_database(file));
    match files.iter().find(in_the_way) {
        Some(file) => {
            let (directory, file) = (directory.display(), file.display());
            Err(Error::invalid(format!("{directory} must be empty, and holds {file}")))
        }
        None => Ok(unfinished),
    }
}

/// Refuses a directory inside that of a database: what is there would go with the database, and be taken
/// for a part of it.
fn check_apart(disk: &dyn Disk, directory: &Path) -> Result<()> {
    let mut here = directory.to_owned();
    // What is not there yet will lie in the first that is.
    while !here.as_os_str().is_empty() && !disk.exists(&here)? {
        here.pop();
    }
    if here == directory {
        // Files in the directory itself are in the way for themselves.
        here.push("..");
    }
    for _ in 0..DEPTH_MAX {
        if Manifest::exists(disk, &here)? && disk.exists(&here.join(LOG_NAME))? {
            let directory = directory.display();
            let message = format!("{directory} lies inside the directory of a database");
            return Err(Error::invalid(message));
        }
        // The system resolves it, so links are followed.
        here.push("..");
    }
    Ok(())
}

/// Whether a name is one that files of a database have, finished or not.
fn is_of_database(file: &Path) -> bool {
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else { return false };
    let is_log = |log: &str| name == log || tail_path(Path::new(log)) == Path::new(name);
    [manifest::NAME, manifest::NEW_NAME].contains(&name)
        || [LOG_NAME, LOG_COPY].into_iter().any(is_log)
        || is_keyspace_file(name)
        || is_mark(file)
}

fn is_mark(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == MARK || name == SALVAGING)
}

/// Marks a directory, and only then takes the mark of another kind away that may be there.
fn mark(disk: &dyn Disk, directory: &Path, name: &str) -> Result<()> {
    let file = disk.open(&directory.join(name), OpenMode::CREATE.cached())?;
    file.write_at(AlignedBuf::new(1).bytes(), 0, Purpose::Tool)?;
    file.sync(Purpose::Tool)?;
    disk.sync_dir(directory)?;
    let other = directory.join(if name == MARK { SALVAGING } else { MARK });
    if disk.exists(&other)? {
        disk.remove(&other)?;
        disk.sync_dir(directory)?;
    }
    Ok(())
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
    /// Takes a directory that is empty, does not exist, or holds what was left unfinished. The lock is let
    /// go of for the database that is opened in it.
    ///
    /// # Errors
    /// `InvalidArgument` when there are other files in it or it lies in that of a database; `Locked`,
    /// `Full` or `Io`.
    pub(crate) fn begin(disk: &Arc<dyn Disk>, directory: &Path) -> Result<Salvaging> {
        drop(take(&**disk, directory, SALVAGING)?);
        Ok(Salvaging { disk: disk.clone(), directory: directory.to_owned(), complete: false })
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
        // Somebody else may have taken the directory between our lock and the database's.
        if !self.complete
            && let Ok(_lock) = self.disk.lock(&self.directory)
        {
            remove_all(&*self.disk, &self.directory);
        }
    }
}

/// Removes the files of a database in a directory that is ours, as far as possible: the manifest
/// first, so that what is left is no database, and the mark last. An error here comes after one that
/// says more, and is not told.
pub(crate) fn remove_all(disk: &dyn Disk, directory: &Path) {
    remove_files(disk, directory);
    for mark in [MARK, SALVAGING] {
        let _ = disk.remove(&directory.join(mark));
    }
    let _ = disk.sync_dir(directory);
}

/// Removes them but for the marks.
fn remove_files(disk: &dyn Disk, directory: &Path) {
    let _ = disk.remove(&directory.join(manifest::NAME));
    let _ = disk.sync_dir(directory);
    for file in disk.list(directory).unwrap_or_default() {
        if is_of_database(&file) && !is_mark(&file) {
            let _ = disk.remove(&file);
        }
    }
    let _ = disk.sync_dir(directory);
}

fn is_lock(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == LOCK_NAME)
}
