//! A directory in which a database is being put together from another: by a backup, a restore or a salvage.
//!
//! A file beside the others says that it is not finished; the manifest is written last, after
//! everything else is on stable storage, and only then the mark goes away. So whatever a crash
//! leaves is either no database, and says so when it is opened, or a whole one. The next backup,
//! restore or salvage into the directory removes what is left; only files that are no database's are in its way.

use std::path::Path;
use std::sync::Arc;

use spinney_base::{Error, ErrorKind, Result};
use spinney_io::{
    AlignedBuf, Directory, DirectoryLock, Disk, IfMissing, LOCK_NAME, OpenMode, Purpose,
    RESERVE_NAME,
};
use spinney_wal::tail_name;

use crate::manifest::{self, Manifest};
use crate::open::LOG_NAME;
use crate::salvage::LOG_COPY;
use crate::state::is_keyspace_file;

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
    made_lock: bool,
}

/// Says that a salvage has not yet saved all that it can.
const SALVAGING: &str = "SALVAGING";

/// Whether a salvage into a directory was never finished.
pub(crate) fn is_being_salvaged(directory: &dyn Directory) -> Result<bool> {
    directory.exists(SALVAGING)
}

/// How many directories above a target are looked at for a database: more than any path has in practice.
const DEPTH_MAX: usize = 64;

/// Whether a directory holds what was left unfinished, unless there is a manifest.
pub(crate) fn is_unfinished(directory: &dyn Directory) -> Result<bool> {
    directory.exists(MARK)
}

impl Target {
    /// Takes a directory that is empty, does not exist, or holds what was left unfinished.
    ///
    /// # Errors
    /// `InvalidArgument` when there are other files in it or it lies in that of a database; `Locked`,
    /// `Full` or `Io`.
    pub(crate) fn begin(disk: &dyn Disk, path: &Path) -> Result<Target> {
        let Taken { directory, lock, made_lock } = take(disk, path, MARK)?;
        Ok(Target { directory, lock: Some(lock), named: false, made_lock })
    }

    /// Whether the file that locks the directory goes away with the copy.
    pub(crate) fn made_lock(&self) -> bool {
        self.made_lock
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
            remove_all(&*self.directory, self.made_lock);
        }
    }
}

/// A directory that was taken.
struct Taken {
    directory: Arc<dyn Directory>,
    lock: Box<dyn DirectoryLock>,
    /// Whether the file [`LOCK_NAME`] was made by this attempt, or by one that was left unfinished. Such a file
    /// goes away with the copy; one that was there before stays.
    made_lock: bool,
}

/// Locks and marks a directory in which nothing else is, and makes it if need be. What an earlier attempt left
/// unfinished there is removed under its mark.
fn take(disk: &dyn Disk, path: &Path, name: &str) -> Result<Taken> {
    check_apart(disk, path)?;
    let directory = disk.directory(path, IfMissing::Create)?;
    // Also before the lock, so that a database that is open is refused for its files, not as locked.
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

/// Refuses a directory with files in it, but for those that an earlier attempt left unfinished; says whether
/// there are such.
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

/// Refuses a directory inside that of a database: what is there would go with the database, and be taken
/// for a part of it.
fn check_apart(disk: &dyn Disk, path: &Path) -> Result<()> {
    let look = |path: &Path| match disk.directory(path, IfMissing::Fail) {
        Ok(directory) => Ok(Some(directory)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let mut here = path.to_owned();
    // What is not there yet will lie in the first that is.
    while !here.as_os_str().is_empty() && look(&here)?.is_none() {
        here.pop();
    }
    if here == path {
        // Files in the directory itself are in the way for themselves.
        here.push("..");
    }
    for _ in 0..DEPTH_MAX {
        let Some(directory) = look(&here)? else { return Ok(()) };
        if Manifest::exists(&*directory)? && directory.exists(LOG_NAME)? {
            let message = format!("{} lies inside the directory of a database", path.display());
            return Err(Error::invalid(message));
        }
        // The system resolves it, so links are followed.
        here.push("..");
    }
    Ok(())
}

/// Whether a name is one that files of a database have, finished or not.
fn is_of_database(name: &str) -> bool {
    let is_log = |log: &str| name == log || name == tail_name(log);
    [manifest::NAME, manifest::NEW_NAME, RESERVE_NAME, MARK, SALVAGING].contains(&name)
        || [LOG_NAME, LOG_COPY].into_iter().any(is_log)
        || is_keyspace_file(name)
}

/// Marks a directory, and only then takes the mark of another kind away that may be there.
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

/// A database that is open while a salvage fills it: it has a manifest from the start, so its mark
/// counts whatever is beside it. Dropping it before [`Salvaging::complete`] removes what was made.
#[derive(Debug)]
pub(crate) struct Salvaging {
    directory: Arc<dyn Directory>,
    complete: bool,
    made_lock: bool,
}

impl Salvaging {
    /// Takes a directory that is empty, does not exist, or holds what was left unfinished. The lock is let
    /// go of for the database that is opened in it.
    ///
    /// # Errors
    /// `InvalidArgument` when there are other files in it or it lies in that of a database; `Locked`,
    /// `Full` or `Io`.
    pub(crate) fn begin(disk: &dyn Disk, path: &Path) -> Result<Salvaging> {
        let Taken { directory, made_lock, .. } = take(disk, path, SALVAGING)?;
        Ok(Salvaging { directory, complete: false, made_lock })
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
            take_back(&*self.directory, self.made_lock);
        }
    }
}

/// Removes a copy that was opened as a database and is closed, unless somebody else has taken the directory
/// between that database's lock and ours.
pub(crate) fn take_back(directory: &dyn Directory, made_lock: bool) {
    if let Ok(_lock) = directory.lock() {
        remove_all(directory, made_lock);
    }
}

/// Removes the files of a database in a directory that is ours, as far as possible: the manifest
/// first, so that what is left is no database, and the mark last but for the lock's file, if that is
/// to go too. An error here comes after one that says more, and is not told.
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
