//! The directory of a database as a command finds it, before anything is opened or made there.
//!
//! A database is made only in a directory that is missing or empty, or holds only `lost+found` (as
//! the root of a file system does). A typing error must not litter another directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use spinney::{Error, ErrorKind};

use crate::exit::Failure;

/// Returns whether a name is that of a database's file, or of an unfinished one.
fn is_of_database(name: &str) -> bool {
    const NAMES: [&str; 8] = [
        "MANIFEST",
        "MANIFEST.new",
        "wal",
        "wal-tail",
        "reserve",
        "lock",
        "UNFINISHED",
        "SALVAGING",
    ];
    let number = name.strip_prefix("keyspace-").and_then(|rest| rest.strip_suffix(".spn"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    NAMES.contains(&name) || number.is_some_and(is_number)
}

/// Describes a link to a missing target.
fn dangling(path: &Path) -> Option<String> {
    if !path.is_symlink() || path.exists() {
        return None;
    }
    let to = std::fs::read_link(path).unwrap_or_default();
    Some(format!("{} is a link to {}, which is not there", path.display(), to.display()))
}

/// Refuses a source that is a link to a missing target.
pub(crate) fn check_source(path: &Path) -> Result<(), Failure> {
    match dangling(path) {
        Some(message) => Err(Error::new(ErrorKind::NotFound, message).into()),
        None => Ok(()),
    }
}

/// Refuses a target that is a link to a missing target, or no directory.
pub(crate) fn check_target(path: &Path) -> Result<(), Failure> {
    match dangling(path) {
        Some(message) => Err(Failure::usage(message)),
        None if path.exists() && !path.is_dir() => {
            Err(Failure::usage(format!("{} is not a directory", path.display())))
        }
        None => Ok(()),
    }
}

/// A directory in which a database may be made.
#[derive(Debug)]
pub(crate) struct Room {
    path: PathBuf,
    /// Missing directories, the deepest first.
    missing: Vec<PathBuf>,
    /// Names that are there already, left by a process that was killed.
    there: Vec<OsString>,
}

/// Refuses a file or a directory inside the directory of a database, because it would be taken for
/// a part of it, or would replace one.
pub(crate) fn check_apart(path: &Path) -> Result<(), Failure> {
    // Resolves links, also above a path that does not exist yet.
    let there = path.ancestors().find_map(|above| {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        above.canonicalize().ok()
    });
    let is_database =
        |directory: &Path| directory.join("MANIFEST").exists() && directory.join("wal").exists();
    match there.iter().flat_map(|there| there.ancestors()).find(|above| is_database(above)) {
        Some(database) => Err(Failure::usage(format!(
            "{} lies inside the directory of a database, {}",
            path.display(),
            database.display()
        ))),
        None => Ok(()),
    }
}

/// Returns where a new database is made; `None` where there is one.
pub(crate) fn room(path: &Path) -> Result<Option<Room>, Failure> {
    check_target(path)?;
    if path.join("MANIFEST").exists() {
        return Ok(None);
    }
    check_apart(path)?;
    Room::find(path, "a new database").map(Some)
}

/// Returns where a copy is made. The copy itself judges files of a database there.
pub(crate) fn room_for_copy(path: &Path) -> Result<Room, Failure> {
    check_target(path)?;
    Room::find(path, "a copy")
}

/// Returns the names in a directory, if it exists. Refuses files and directories that are not a
/// database's.
fn check_strangers(path: &Path, what: &str) -> Result<Vec<OsString>, Failure> {
    let mut there = Vec::new();
    if !path.exists() {
        return Ok(there);
    }
    let listed = |error| Error::io(format!("list {}", path.display()), error);
    for entry in std::fs::read_dir(path).map_err(listed)? {
        there.push(entry.map_err(listed)?.file_name());
        let name = there[there.len() - 1].to_string_lossy();
        if name != "lost+found" && !is_of_database(&name) {
            let path = path.display();
            return Err(Failure::usage(format!(
                "{path} holds {name:?}; {what} is made in an empty directory only"
            )));
        }
    }
    Ok(there)
}

impl Room {
    /// Examines the directory in which `what` is to be made.
    fn find(path: &Path, what: &str) -> Result<Room, Failure> {
        let missing = path
            .ancestors()
            .filter(|above| !above.as_os_str().is_empty())
            .take_while(|above| !above.exists());
        let missing = missing.map(Path::to_owned).collect();
        let there = check_strangers(path, what)?;
        Ok(Room { path: path.to_owned(), missing, there })
    }

    /// Removes a closed database that was made here, and the directories that were made for it.
    /// Names that were there before stay. Errors are ignored, because an error that says more came
    /// before.
    pub(crate) fn clear(self) {
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if is_of_database(&name.to_string_lossy()) && !self.there.contains(&name) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        self.clear_directories();
    }

    /// Removes the directories that were made for a database, if they are empty.
    pub(crate) fn clear_directories(self) {
        for directory in self.missing {
            let _ = std::fs::remove_dir(directory);
        }
    }
}
