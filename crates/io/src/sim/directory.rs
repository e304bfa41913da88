//! Open directories of the simulated disk, and what becomes of the names behind them.
//!
//! A directory has a number; a handle knows that and not the path. So a handle stays with its
//! directory when that is moved, and has nothing but a directory without names when it was removed,
//! as a descriptor of the operating system does.
//!
//! **Invariant.** A handle, like a file's, counts as one open descriptor until it is dropped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::{Error, ErrorKind, Result};

use super::SimDisk;
use super::file::SimFile;
use super::state::{State, Step, not_found, power_cut};
use crate::disk::{Directory, DirectoryLock, Disk, File, IfMissing, OpenMode};

pub(super) type DirectoryNumber = u64;

/// All directories, and the working directory, which is there whatever becomes of them.
#[derive(Clone, Debug)]
pub(super) struct Directories {
    numbers: BTreeMap<PathBuf, DirectoryNumber>,
    next: DirectoryNumber,
    working: PathBuf,
}

impl Default for Directories {
    fn default() -> Self {
        let numbers = [(PathBuf::from("/"), 0), (PathBuf::new(), 1)].into();
        Directories { numbers, next: 2, working: PathBuf::new() }
    }
}

impl Directories {
    /// The directory at a path, which must not be relative any more.
    fn find(&self, path: &Path) -> Result<DirectoryNumber> {
        self.numbers.get(path).copied().ok_or_else(|| not_found(path))
    }

    fn path_of(&self, number: DirectoryNumber) -> Option<&Path> {
        self.numbers.iter().find(|(_, other)| **other == number).map(|(path, _)| path.as_path())
    }

    fn resolve(&self, path: &Path) -> PathBuf {
        self.working.join(path)
    }

    /// Makes what is missing of a path.
    fn make(&mut self, path: &Path) {
        for path in path.ancestors() {
            self.numbers.entry(path.to_owned()).or_insert_with(|| {
                self.next += 1;
                self.next - 1
            });
        }
    }
}

impl State {
    fn make_directory(&mut self, path: &Path) -> Result<()> {
        if self.directories.find(path).is_ok() {
            return Ok(());
        }
        if self.names.current().contains_key(path) {
            return Err(Error::invalid(format!("{} is not a directory", path.display())));
        }
        let step = self.step();
        if step != Step::CutBefore {
            self.directories.make(path);
        }
        step.result()
    }
}

#[derive(Debug)]
pub(super) struct SimDirectory {
    disk: SimDisk,
    number: DirectoryNumber,
    /// For messages.
    path: PathBuf,
}

impl SimDirectory {
    pub(super) fn open(disk: &SimDisk, path: &Path, if_missing: IfMissing) -> Result<Self> {
        let mut state = disk.shared.state.lock();
        state.take_descriptor(path)?;
        let resolved = state.directories.resolve(path);
        let found = match if_missing {
            IfMissing::Fail => Ok(()),
            IfMissing::Create => state.make_directory(&resolved),
        };
        match found.and_then(|()| state.directories.find(&resolved)) {
            Ok(number) => Ok(SimDirectory { disk: disk.clone(), number, path: path.to_owned() }),
            Err(error) => {
                state.descriptors -= 1;
                Err(error)
            }
        }
    }

    fn take_lock(&self, shared: bool) -> Result<Box<dyn DirectoryLock>> {
        self.at(|state, directory| {
            state.take_descriptor(directory)?;
            match state.locks.get_mut(&self.number) {
                Some(readers) if shared && *readers > 0 => *readers += 1,
                Some(_) => {
                    state.descriptors -= 1;
                    let who = "through another handle of this process";
                    let message = format!("{} is open {who}", self.path.display());
                    return Err(Error::new(ErrorKind::Locked, message));
                }
                None => _ = state.locks.insert(self.number, u32::from(shared)),
            }
            Ok(())
        })?;
        Ok(Box::new(SimLock { disk: self.disk.clone(), number: self.number }))
    }

    /// Does something with the directory at the path where it is now.
    fn at<T>(&self, work: impl FnOnce(&mut State, &Path) -> Result<T>) -> Result<T> {
        let mut state = self.disk.shared.state.lock();
        state.check_power()?;
        let path = state.directories.path_of(self.number).map(Path::to_owned);
        work(&mut state, &path.ok_or_else(|| not_found(&self.path))?)
    }
}

impl Directory for SimDirectory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
        let shown = self.path.join(name);
        let inode = self.at(|state, directory| {
            let path = directory.join(name);
            state.take_descriptor(&path)?;
            let opened = match state.names.current().get(&path) {
                Some(inode) => Ok(*inode),
                None if mode.create => match state.step() {
                    Step::CutBefore => Err(power_cut()),
                    step => {
                        let inode = state.new_inode();
                        state.names.create(&path, inode);
                        step.result().map(|()| inode)
                    }
                },
                None => Err(not_found(&path)),
            };
            opened.inspect_err(|_| state.descriptors -= 1)
        })?;
        Ok(Arc::new(SimFile::new(self.disk.clone(), shown, inode, mode)))
    }

    fn exists(&self, name: &str) -> Result<bool> {
        self.at(|state, directory| {
            let path = directory.join(name);
            let is_directory = state.directories.find(&path).is_ok();
            Ok(is_directory || state.names.current().contains_key(&path))
        })
    }

    fn list(&self) -> Result<Vec<String>> {
        self.at(|state, directory| {
            let paths = state.names.current().keys();
            let ours = paths.filter(|path| path.parent() == Some(directory));
            Ok(ours.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
        })
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.at(|state, directory| {
            let (from, to) = (directory.join(from), directory.join(to));
            if !state.names.current().contains_key(&from) {
                return Err(not_found(&from));
            }
            let step = state.step();
            if step != Step::CutBefore {
                state.names.rename(&from, &to);
            }
            step.result()
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.at(|state, directory| {
            let path = directory.join(name);
            if !state.names.current().contains_key(&path) {
                return Err(not_found(&path));
            }
            let step = state.step();
            if step != Step::CutBefore {
                state.names.remove(&path);
            }
            step.result()
        })
    }

    fn sync(&self) -> Result<()> {
        self.at(|state, directory| {
            state.step().result()?;
            state.faults.sync(directory)?;
            state.names.sync(directory);
            Ok(())
        })
    }

    fn lock(&self) -> Result<Box<dyn DirectoryLock>> {
        self.take_lock(false)
    }

    fn lock_shared(&self) -> Result<Box<dyn DirectoryLock>> {
        self.take_lock(true)
    }

    fn writes_pages_atomically(&self) -> Result<bool> {
        Ok(self.disk.shared.state.lock().atomic_pages)
    }

    fn free_bytes(&self) -> u64 {
        let state = self.disk.shared.state.lock();
        state.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(state.used()))
    }
}

impl Drop for SimDirectory {
    fn drop(&mut self) {
        self.disk.shared.state.lock().descriptors -= 1;
    }
}

#[derive(Debug)]
struct SimLock {
    disk: SimDisk,
    number: DirectoryNumber,
}

impl DirectoryLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.shared.state.lock();
        match state.locks.get_mut(&self.number) {
            Some(readers) if *readers > 1 => *readers -= 1,
            _ => _ = state.locks.remove(&self.number),
        }
        state.descriptors -= 1;
    }
}

/// What others do with names, and tests that look at files: by paths, as a shell does.
impl SimDisk {
    fn parent_of(&self, path: &Path) -> Result<(Arc<dyn Directory>, String)> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| Error::invalid("a path ends with a name"))?;
        let parent = path.parent().unwrap_or(Path::new(""));
        Ok((self.directory(parent, IfMissing::Fail)?, name.to_owned()))
    }

    /// A directory that is there.
    ///
    /// # Panics
    /// When it is not, or cannot be opened.
    #[must_use]
    pub fn at(&self, path: &str) -> Arc<dyn Directory> {
        self.directory(path.as_ref(), IfMissing::Fail).expect("a directory that is there")
    }

    /// Opens a file.
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let (directory, name) = self.parent_of(path)?;
        directory.open(&name, mode)
    }

    /// Removes a file; handles that are open keep working.
    ///
    /// # Errors
    /// As [`Directory::remove`].
    pub fn remove(&self, path: &Path) -> Result<()> {
        let (directory, name) = self.parent_of(path)?;
        directory.remove(&name)
    }

    /// Moves a file, over another one if there is one at `to`, also from one directory to another.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.shared.state.lock();
        let number = state.names.current().get(from).copied().ok_or_else(|| not_found(from))?;
        state.directories.find(to.parent().unwrap_or(Path::new("")))?;
        state.names.remove(from);
        state.names.create(to, number);
        Ok(())
    }

    /// Makes a directory and its parents.
    ///
    /// # Errors
    /// As [`Disk::directory`].
    pub fn create_dir(&self, path: &Path) -> Result<()> {
        self.directory(path, IfMissing::Create).map(drop)
    }

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// As [`Directory::sync`].
    pub fn sync_dir(&self, path: &Path) -> Result<()> {
        self.directory(path, IfMissing::Fail)?.sync()
    }

    /// Moves a directory with all that is in it, durably, to where there is none.
    ///
    /// # Errors
    /// `NotFound` when there is none at `from`, `InvalidArgument` when there is one at `to`.
    pub fn move_directory(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.shared.state.lock();
        state.directories.find(from)?;
        if state.directories.find(to).is_ok() {
            return Err(Error::invalid(format!("{} is there", to.display())));
        }
        state.names.move_directory(from, to);
        let numbers = std::mem::take(&mut state.directories.numbers);
        let moved = |path: PathBuf| match path.strip_prefix(from) {
            Ok(rest) if rest.as_os_str().is_empty() => to.to_owned(),
            Ok(rest) => to.join(rest),
            Err(_) => path,
        };
        state.directories.numbers = numbers.into_iter().map(|(p, n)| (moved(p), n)).collect();
        Ok(())
    }

    /// Removes a directory and all that is in it, durably. Handles of files keep working.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub fn remove_directory(&self, path: &Path) -> Result<()> {
        let mut state = self.shared.state.lock();
        state.directories.find(path)?;
        state.names.remove_directory(path);
        state.directories.numbers.retain(|other, _| !other.starts_with(path));
        Ok(())
    }

    /// Where relative paths begin from now on (`chdir`); at first at a directory without a name.
    ///
    /// # Errors
    /// `NotFound` when there is no such directory.
    pub fn set_working_directory(&self, path: &Path) -> Result<()> {
        let mut state = self.shared.state.lock();
        state.directories.find(path)?;
        state.directories.working = path.to_owned();
        Ok(())
    }
}
