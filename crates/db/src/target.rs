//! A directory in which a backup, a restore or a salvage builds a database from another one.
//!
//! A file beside the others marks it as unfinished. The manifest is written last, when everything
//! else is on stable storage, and only then is the mark removed. So a crash leaves either no
//! database, and opening says so, or a whole one. The next backup, restore or salvage into the
//! directory removes the remains. It refuses a directory only for files that do not belong to a
//! database.

use std::path::Path;
use std::sync::Arc;

use spinney_base::{Error, ErrorKind, Result};
use spinney_io::{
    AlignedBuf, Directory, DirectoryLock, Disk, IfMissing, LOCK_NAME, OpenMode, Purpose,
    RESERVE_NAME,
};
use spinney_wal::tail_name;

use crate::files::{LOG_COPY, LOG_NAME, is_keyspace_file};
use crate::manifest::{self, Manifest};

/// Marks that the files beside it are not a whole database, unless there is a manifest.
const MARK: &str = "UNFINISHED";

/// A database under construction. Dropping it before [`Target::complete`] removes its files.
#[derive(Debug)]
pub(crate) struct Target {
    directory: Arc<dyn Directory>,
    /// Until it is complete.
    lock: Option<Box<dyn DirectoryLock>>,
    /// Whether a manifest that is there is this database's.
    named: bool,
    made_lock: bool,
}

/// Marks a salvage that has not yet saved everything it can.
const SALVAGING: &str = "SALVAGING";

/// Returns whether a salvage into a directory was never finished.
pub(crate) fn is_being_salvaged(directory: &dyn Directory) -> Result<bool> {
    directory.exists(SALVAGING)
}

/// Number of parent directories that are searched for a database; more than any path has in
/// practice.
const DEPTH_MAX: usize = 64;

/// Returns whether a directory holds the remains of an unfinished copy. A directory with a manifest
/// does not.
pub(crate) fn is_unfinished(directory: &dyn Directory) -> Result<bool> {
    directory.exists(MARK)
}

impl Target {
    /// Takes a directory that is missing, empty, or holds the remains of an unfinished copy.
    ///
    /// # Errors
    /// `InvalidArgument` when there are other files in it or it lies in that of a database;
    /// `Locked`, `Full` or `Io`.
    pub(crate) fn begin(disk: &dyn Disk, path: &Path) -> Result<Target> {
        let Taken { directory, lock, made_lock } = take(disk, path, MARK)?;
        Ok(Target { directory, lock: Some(lock), named: false, made_lock })
    }

    /// Whether the lock file is removed together with the copy.
    pub(crate) fn made_lock(&self) -> bool {
        self.made_lock
    }

    pub(crate) fn directory(&self) -> &Arc<dyn Directory> {
        &self.directory
    }

    /// Makes the directory a database. Everything else in it is on stable storage except its name.
    /// Returns the lock, so that no other process opens the database before the caller drops it.
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
        // Where another program has put a database meanwhile, nothing is removed.
        let is_ours = self.named || Manifest::check_none(&*self.directory).is_ok();
        if self.lock.is_some() && is_ours {
            // Even if some files cannot be removed, the mark is removed last.
            remove_all(&*self.directory, self.made_lock);
        }
    }
}

/// A directory that was taken.
struct Taken {
    directory: Arc<dyn Directory>,
    lock: Box<dyn DirectoryLock>,
    /// Whether this attempt, or an unfinished one before it, made the file [`LOCK_NAME`]. Such a
    /// file is removed with the copy; an older one stays.
    made_lock: bool,
}

/// Locks and marks a directory that holds no other files, and creates it if it is missing. Removes
/// the remains of an unfinished attempt under its mark.
fn take(disk: &dyn Disk, path: &Path, name: &str) -> Result<Taken> {
    check_apart(disk, path)?;
    let directory = disk.directory(path, IfMissing::Create)?;
    // Checked before the lock, so that an open database is refused for its files, not as locked.
    check_room(&*directory)?;
    let had_lock = directory.exists(LOCK_NAME)?;
    let lock = directory.lock()?;
    let unfinished = check_room(&*directory)?;
    if unfinished {
        remove_files(&*directory);
    }
    let made_lock = unfinished || !had_lock;
    match mark(&*directory, name) {
        Ok(()) => Ok(Taken { directory, lock, made_lock }),
        Err(error) => {
            remove_all(&*directory, made_lock);
            Err(error)
        }
    }
}

/// Refuses a directory that holds files other than remains of an unfinished attempt. Returns
/// whether there are remains.
fn check_room(directory: &dyn Directory) -> Result<bool> {
    let unfinished =
        is_unfinished(directory)? && !Manifest::exists(directory)? || is_being_salvaged(directory)?;
    let files = directory.list()?;
    let in_the_way = |file: &&String| !(*file == LOCK_NAME || unfinished && is_of_database(file));
    match files.iter().find(in_the_way) {
        Some(file) => {
            let path = directory.path();
            let (shown, file) = (path.display(), path.join(file));
            let file = file.display();
            Err(Error::invalid(format!("{shown} must be empty, and holds {file}")))
        }
        None => Ok(unfinished),
    }
}

/// Refuses a directory inside that of a database. Removing that database would remove the copy, and
/// the copy would be taken for a part of it.
fn check_apart(disk: &dyn Disk, path: &Path) -> Result<()> {
    let look = |path: &Path| match disk.directory(path, IfMissing::Fail) {
        Ok(directory) => Ok(Some(directory)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let mut here = path.to_owned();
    // A missing directory will be made in the first parent that exists.
    while !here.as_os_str().is_empty() && look(&here)?.is_none() {
        here.pop();
    }
    if here == path {
        // Files in the directory itself are checked elsewhere.
        here.push("..");
    }
    for _ in 0..DEPTH_MAX {
        let Some(directory) = look(&here)? else { return Ok(()) };
        if Manifest::exists(&*directory)? && directory.exists(LOG_NAME)? {
            let message = format!("{} lies inside the directory of a database", path.display());
            return Err(Error::invalid(message));
        }
        // The system resolves the path, so links are followed.
        here.push("..");
    }
    Ok(())
}

/// Returns whether files of a database have this name, finished or not.
fn is_of_database(name: &str) -> bool {
    let is_log = |log: &str| name == log || name == tail_name(log);
    [manifest::NAME, manifest::NEW_NAME, RESERVE_NAME, MARK, SALVAGING].contains(&name)
        || [LOG_NAME, LOG_COPY].into_iter().any(is_log)
        || is_keyspace_file(name)
}

/// Marks a directory, and then removes a mark of the other kind, if there is one.
fn mark(directory: &dyn Directory, name: &str) -> Result<()> {
    let file = directory.open(name, OpenMode::CREATE.cached())?;
    file.write_at(AlignedBuf::new(1).bytes(), 0, Purpose::TOOL)?;
    file.sync(Purpose::TOOL)?;
    directory.sync()?;
    let other = if name == MARK { SALVAGING } else { MARK };
    if directory.exists(other)? {
        directory.remove(other)?;
        directory.sync()?;
    }
    Ok(())
}

/// A database that is open while a salvage fills it. It has a manifest from the start, so its mark
/// counts beside any file. Dropping it before [`Salvaging::complete`] removes its files.
#[derive(Debug)]
pub(crate) struct Salvaging {
    directory: Arc<dyn Directory>,
    complete: bool,
    made_lock: bool,
}

impl Salvaging {
    /// Takes a directory that is missing, empty, or holds the remains of an unfinished copy.
    /// Releases the lock for the database that is opened in it.
    ///
    /// # Errors
    /// `InvalidArgument` when there are other files in it or it lies in that of a database;
    /// `Locked`, `Full` or `Io`.
    pub(crate) fn begin(disk: &dyn Disk, path: &Path) -> Result<Salvaging> {
        let Taken { directory, made_lock, .. } = take(disk, path, SALVAGING)?;
        Ok(Salvaging { directory, complete: false, made_lock })
    }

    pub(crate) fn directory(&self) -> &Arc<dyn Directory> {
        &self.directory
    }

    /// Makes it a database like any other, once everything is in it and on stable storage.
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
            take_back(&*self.directory, self.made_lock);
        }
    }
}

/// Removes a closed copy that was opened as a database, unless another process has taken the
/// directory between that database's lock and this one.
pub(crate) fn take_back(directory: &dyn Directory, made_lock: bool) {
    if let Ok(_lock) = directory.lock() {
        remove_all(directory, made_lock);
    }
}

/// Removes the files of a database in a directory that is ours, as far as possible. The manifest
/// goes first, so that the rest is no database. The mark goes last, except for the lock file, if
/// that is removed too. Errors are ignored, because an error that says more came before.
fn remove_all(directory: &dyn Directory, made_lock: bool) {
    remove_files(directory);
    for mark in [MARK, SALVAGING] {
        let _ = directory.remove(mark);
    }
    if made_lock {
        let _ = directory.remove(LOCK_NAME);
    }
    let _ = directory.sync();
}

/// Removes them but for the marks.
fn remove_files(directory: &dyn Directory) {
    let _ = directory.remove(manifest::NAME);
    let _ = directory.sync();
    for file in directory.list().unwrap_or_default() {
        if is_of_database(&file) && ![MARK, SALVAGING].contains(&file.as_str()) {
            let _ = directory.remove(&file);
        }
    }
    let _ = directory.sync();
}
