//! One open directory of the operating system: names, and the lock.
//!
//! ```text
//!   RealDirectory.descriptor  --openat, renameat, unlinkat, fsync-->  the directory, wherever it is
//!   RealLock                  --flock-->  the directory, by a descriptor of its own
//!                             --flock-->  the file `lock` in it, if there can be one
//! ```
//!
//! **Invariants.** (1) No call after [`open`] uses a path. (2) A lock ends when its descriptors
//! close, and never by `LOCK_UN`: a child after `fork` shares them, and its end must not let the
//! directory of its parent go.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use spinney_base::{Error, ErrorKind, Result};

use super::file::{self, RealFile};
use super::holder::holder_of;
use super::{RealDisk, named};
use crate::disk::{Directory, DirectoryLock, File, IfMissing, LOCK_NAME, OpenMode};

const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Permissions of files, before the process's mask.
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

#[derive(Debug)]
pub(super) struct RealDirectory {
    descriptor: OwnedFd,
    path: PathBuf,
    disk: RealDisk,
}

impl RealDirectory {
    pub(super) fn open(disk: &RealDisk, path: &Path, if_missing: IfMissing) -> Result<Self> {
        let descriptor = match if_missing {
            IfMissing::Fail => open(path).map_err(|error| refused(path, error))?,
            IfMissing::Create => open_or_make(path)?,
        };
        Ok(RealDirectory { descriptor, path: path.to_owned(), disk: disk.clone() })
    }

    /// Describes an operation on a name, for messages.
    fn context(&self, what: &str, name: &str) -> String {
        format!("{what} {}", self.path.join(name).display())
    }

    /// Makes the error of a call about a name.
    fn refused(&self, what: &str, name: &str, error: Errno) -> Error {
        named(self.context(what, name), error).with_place(self.path.join(name), None)
    }

    /// Takes the lock of one descriptor, if the file system has locks for such a file.
    ///
    /// # Errors
    /// `Locked` when it is held, or `Io`.
    fn take(&self, descriptor: &OwnedFd, name: &str, how: FlockOperation) -> Result<Taken> {
        match retry_on_intr(|| rustix::fs::flock(descriptor, how)) {
            Ok(()) => Ok(Taken::Held),
            Err(Errno::WOULDBLOCK) => Err(self.locked_by_another(descriptor)),
            // NFS locks only what is open for writing, which a directory never is.
            Err(error @ (Errno::BADF | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOLCK)) => {
                Ok(Taken::Impossible(error, self.context("lock", name)))
            }
            Err(error) => Err(self.refused("lock", name, error)),
        }
    }

    /// Opens the lock file that earlier versions use. `None` where it is missing and cannot be
    /// made, or where the file system is read-only, so that no earlier version can lock it either.
    fn lock_file(&self) -> Result<Option<OwnedFd>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        match retry_on_intr(|| rustix::fs::openat(&self.descriptor, LOCK_NAME, flags, FILE_MODE)) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM | Errno::NOSPC | Errno::DQUOT) => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                let there = || rustix::fs::openat(&self.descriptor, LOCK_NAME, flags, FILE_MODE);
                match retry_on_intr(there) {
                    Ok(file) => Ok(Some(file)),
                    Err(Errno::NOENT | Errno::ACCESS) => Ok(None),
                    Err(error) => Err(self.refused("lock", LOCK_NAME, error)),
                }
            }
            Err(error) => Err(self.refused("lock", LOCK_NAME, error)),
        }
    }

    /// Opens a file description for the lock alone. A lock belongs to a file description: this one
    /// is not shared with another handle of this process, nor held for as long as the other one
    /// names files.
    fn open_to_lock(&self) -> Result<OwnedFd> {
        let opened =
            retry_on_intr(|| rustix::fs::openat(&self.descriptor, ".", OPEN, Mode::empty()));
        opened.map_err(|error| self.refused("lock", "", error))
    }

    fn locked_by_another(&self, descriptor: &OwnedFd) -> Error {
        let who = match holder_of(descriptor) {
            Some(pid) if pid == std::process::id() => "through another handle of this process",
            Some(pid) => &format!("in process {pid}"),
            None => "in another process or handle",
        };
        Error::new(ErrorKind::Locked, format!("{} is open {who}", self.path.display()))
    }
}

/// Result of an attempt to lock that met no other holder.
enum Taken {
    Held,
    /// The file system cannot lock it; with the error and what was tried.
    Impossible(Errno, String),
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| rustix::fs::open(path, OPEN, Mode::empty()))
}

/// Why a directory cannot be opened.
fn refused(path: &Path, error: Errno) -> Error {
    match error {
        Errno::NOTDIR => Error::invalid(format!("{} is not a directory", path.display())),
        error => named(format!("open directory {}", path.display()), error).with_place(path, None),
    }
}

/// Opens a directory. Creates missing parts, and makes each name durable before the next.
fn open_or_make(path: &Path) -> Result<OwnedFd> {
    let missing = match open(path) {
        Err(Errno::NOENT) => Errno::NOENT,
        opened => return opened.map_err(|error| refused(path, error)),
    };
    let Some(name) = path.components().next_back() else { return Err(refused(path, missing)) };
    let parent_path = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = open_or_make(parent_path)?;
    let name: &OsStr = name.as_os_str();
    let context = || format!("create directory {}", path.display());
    match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(named(context(), error)),
    }
    retry_on_intr(|| rustix::fs::fsync(&parent)).map_err(|error| named(context(), error))?;
    match retry_on_intr(|| rustix::fs::openat(&parent, name, OPEN, Mode::empty())) {
        // The name exists and leads to nothing.
        Err(Errno::NOENT) => {
            let what = "is a symbolic link to something that does not exist";
            Err(Error::new(ErrorKind::NotFound, format!("{} {what}", path.display())))
        }
        opened => opened.map_err(|error| refused(path, error)),
    }
}

/// Refuses names that would lead out of the directory.
fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return Err(Error::invalid(format!("{name:?} is not the name of a file in a directory")));
    }
    Ok(())
}

impl Directory for RealDirectory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
        check_name(name)?;
        let path = self.path.join(name);
        Ok(Arc::new(RealFile::open(&self.disk, &self.descriptor, name, path, mode)?))
    }

    fn exists(&self, name: &str) -> Result<bool> {
        check_name(name)?;
        let stat = || rustix::fs::statat(&self.descriptor, name, AtFlags::empty());
        match retry_on_intr(stat) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(self.refused("look for", name, error)),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        let failed = |error: Errno| {
            named(format!("list {}", self.path.display()), error).with_place(&self.path, None)
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.descriptor).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    match rustix::fs::statat(&self.descriptor, name, flags) {
                        Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                        // It was removed during the listing.
                        Err(Errno::NOENT) => continue,
                        Err(error) => return Err(failed(error)),
                    }
                }
                kind => kind,
            };
            if kind != FileType::Directory {
                names.push(name.to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from).and_then(|()| check_name(to))?;
        let rename = || rustix::fs::renameat(&self.descriptor, from, &self.descriptor, to);
        retry_on_intr(rename)
            .map_err(|error| named(format!("{} to {to}", self.context("rename", from)), error))
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        retry_on_intr(|| rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty()))
            .map_err(|error| self.refused("remove", name, error))
    }

    fn sync(&self) -> Result<()> {
        retry_on_intr(|| rustix::fs::fsync(&self.descriptor)).map_err(|error| {
            let context = format!("sync directory {}", self.path.display());
            named(context, error).with_place(&self.path, None)
        })
    }

    fn lock(&self) -> Result<Box<dyn DirectoryLock>> {
        let directory = self.open_to_lock()?;
        let how = FlockOperation::NonBlockingLockExclusive;
        let of_directory = self.take(&directory, "", how)?;
        let file = self.lock_file()?;
        let of_file = file.as_ref().map(|file| self.take(file, LOCK_NAME, how)).transpose()?;
        // At least one of the two must be locked.
        match (of_directory, of_file) {
            (Taken::Impossible(error, what), None | Some(Taken::Impossible(..))) => {
                Err(named(what, error))
            }
            _ => Ok(Box::new(RealLock { _directory: directory, _file: file })),
        }
    }

    fn lock_shared(&self) -> Result<Box<dyn DirectoryLock>> {
        let how = FlockOperation::NonBlockingLockShared;
        let directory = self.open_to_lock()?;
        // Where neither can be locked, a reader may still read, because it changes nothing.
        self.take(&directory, "", how)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let there =
            retry_on_intr(|| rustix::fs::openat(&self.descriptor, LOCK_NAME, flags, FILE_MODE));
        let file = match there {
            Ok(file) => Some(file),
            Err(Errno::NOENT | Errno::ACCESS) => None,
            Err(error) => return Err(self.refused("lock", LOCK_NAME, error)),
        };
        file.as_ref().map(|file| self.take(file, LOCK_NAME, how)).transpose()?;
        Ok(Box::new(RealLock { _directory: directory, _file: file }))
    }

    fn free_bytes(&self) -> u64 {
        let Ok(answer) = rustix::fs::fstatvfs(&self.descriptor) else { return u64::MAX };
        answer.f_bavail.saturating_mul(answer.f_frsize)
    }

    fn writes_pages_atomically(&self) -> Result<bool> {
        // The kernel reports it only for regular files, so an unnamed file is used. A file system
        // without unnamed files has no atomic writes either; one without space for another file is
        // not asked.
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let unnamed =
            || rustix::fs::openat(&self.descriptor, ".", flags, Mode::from_raw_mode(0o600));
        match retry_on_intr(unnamed) {
            Ok(descriptor) => Ok(file::writes_pages_atomically(&descriptor)),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(false),
            Err(Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::ACCESS) => Ok(false),
            Err(error) => Err(named(format!("probe {}", self.path.display()), error)),
        }
    }
}

/// Holds the locks for as long as its descriptors are open.
#[derive(Debug)]
struct RealLock {
    _directory: OwnedFd,
    _file: Option<OwnedFd>,
}

impl DirectoryLock for RealLock {}
