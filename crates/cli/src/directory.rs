//! The directory of a database as a command finds it, before anything is opened or made there.
//!
//! A database is made only where nothing is, or nothing but `lost+found` (the root of a file system has
//! one): a typing error must not litter a directory of other things.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use spinney::{Error, ErrorKind};

use crate::exit::Failure;

/// Names of files that are a database's, or of a making of one that was killed.
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

/// What is wrong with a link that leads nowhere.
fn dangling(path: &Path) -> Option<String> {
    if !path.is_symlink() || path.exists() {
        return None;
    }
    let to = std::fs::read_link(path).unwrap_or_default();
    Some(format!("{} is a link to {}, which is not there", path.display(), to.display()))
}

/// Refuses a place to read from that is a link to nothing.
pub(crate) fn check_source(path: &Path) -> Result<(), Failure> {
    match dangling(path) {
        Some(message) => Err(Error::new(ErrorKind::NotFound, message).into()),
        None => Ok(()),
    }
}

/// Refuses a place to put a database that is a link to nothing, or no directory.
pub(crate) fn check_target(path: &Path) -> Result<(), Failure> {
    match dangling(path) {
        Some(message) => Err(Failure::usage(message)),
        None if path.exists() && !path.is_dir() => {
            Err(Failure::usage(format!("{} is not a directory", path.display())))
        }
        None => Ok(()),
    }
}

/// A place where a database may be made, and what will have to be made for it.
#[derive(Debug)]
pub(crate) struct Room {
    path: PathBuf,
    /// Directories that are missing, the deepest first.
    missing: Vec<PathBuf>,
    /// Names that are there already: what was left of a making that was killed.
    there: Vec<OsString>,
}

/// Refuses a file to write, or a directory to make, inside the directory of a database: it would be taken for a part of
/// it, or would replace one.
pub(crate) fn check_apart(path: &Path) -> Result<(), Failure> {
    // Through links, and from where it will be if it is not there yet.
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

/// Room for a new database; `None` where one is.
pub(crate) fn room(path: &Path) -> Result<Option<Room>, Failure> {
    check_target(path)?;
    if path.join("MANIFEST").exists() {
        return Ok(None);
    }
    check_apart(path)?;
    Room::find(path, "a new database").map(Some)
}

/// Room for a copy. What is a database's there is for the copy to judge.
pub(crate) fn room_for_copy(path: &Path) -> Result<Room, Failure> {
    check_target(path)?;
    Room::find(path, "a copy")
}

/// The names in a directory, if it is there; refuses those of files or directories that are not a database's.
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
    /// Looks what there is at a place for `what`.
    fn find(path: &Path, what: &str) -> Result<Room, Failure> {
        let missing = path
            .ancestors()
            .filter(|above| !above.as_os_str().is_empty())
            .take_while(|above| !above.exists());
        let missing = missing.map(Path::to_owned).collect();
        let there = check_strangers(path, what)?;
        Ok(Room { path: path.to_owned(), missing, there })
    }

    /// Removes a database that was made here and is closed, and the directories that were made for it. A name
    /// that was there before stays. An error here comes after one that says more, and is not told.
    pub(crate) fn clear(self) {
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if is_of_database(&name.to_string_lossy()) && !self.there.contains(&name) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        self.clear_directories();
    }

    /// Removes the directories that were made for a database, as far as they are empty.
    pub(crate) fn clear_directories(self) {
        for directory in self.missing {
            let _ = std::fs::remove_dir(directory);
        }
    }
}
