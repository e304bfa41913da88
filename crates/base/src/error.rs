//! The error type of all Spinney crates.
//!
//! Kinds are divided by what a caller can do about them. The message says everything else, in a
//! sentence without a final dot. An [`Error`] is cheap to clone, because a poisoned database hands
//! the same cause to every later write.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `Result` with Spinney's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of an error: what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused an operation; the message names the path and the system's own
    /// error.
    Io,
    /// Bytes on disk are not what was written. The message names file, offset, and what was
    /// expected and found.
    Corruption,
    /// The disk, the log (at its maximum size) or the memory budget is full. Nothing changed. The
    /// operation succeeds once space returns.
    Full,
    /// An earlier failure (a failed sync, a panic under a lock) stopped all writing. Reads still
    /// work; reopening recovers.
    Poisoned,
    /// The database or keyspace was closed or dropped, or this process is a forked child of the one
    /// that opened it.
    Closed,
    /// An argument is outside its documented range; the message names the limit. Nothing changed.
    InvalidArgument,
    /// The engine, platform or format version cannot do this.
    Unsupported,
    /// Another process or handle has the database open.
    Locked,
    /// A named thing (database, keyspace) does not exist.
    NotFound,
    /// The database was opened for reading. Nothing changed.
    ReadOnly,
    /// The caller stopped a long operation through its progress function. Nothing of it remains.
    Cancelled,
    /// A condition did not hold (see `Keyspace::compare_and_swap`), or what a transaction has read
    /// was changed: run it again. Nothing changed.
    Conflict,
    /// A snapshot ended, because the memory that it kept was needed and could not be written out;
    /// the message says why. A new one can be taken.
    SnapshotTooOld,
}

impl ErrorKind {
    /// Returns a short stable name, used by `--json` output and by bindings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Io => "io",
            ErrorKind::Corruption => "corruption",
            ErrorKind::Full => "full",
            ErrorKind::Poisoned => "poisoned",
            ErrorKind::Closed => "closed",
            ErrorKind::InvalidArgument => "invalid-argument",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Locked => "locked",
            ErrorKind::NotFound => "not-found",
            ErrorKind::ReadOnly => "read-only",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Conflict => "conflict",
            ErrorKind::SnapshotTooOld => "snapshot-too-old",
        }
    }
}

/// The error of every Spinney crate: a kind, a sentence, and a cause if there is one.
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

struct Inner {
    kind: ErrorKind,
    message: String,
    place: Option<Place>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    lacks_memory: bool,
}

/// The file that an error is about, and the offset in it.
#[derive(Clone)]
struct Place {
    path: PathBuf,
    offset: Option<u64>,
}

impl Error {
    /// Makes an error of `kind` with the message `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let (message, lacks_memory) = (message.into(), false);
        let inner = Inner { kind, message, place: None, source: None, lacks_memory };
        Error { inner: Arc::new(inner) }
    }

    /// Makes the error for a write that finds no memory. Its database may divide the memory otherwise.
    pub fn lacking_memory(message: impl Into<String>) -> Self {
        let (kind, message) = (ErrorKind::Full, message.into());
        let inner = Inner { kind, message, place: None, source: None, lacks_memory: true };
        Error { inner: Arc::new(inner) }
    }

    /// Returns the same error, about this file and, if an offset is given, about the bytes from
    /// there on.
    #[must_use]
    pub fn with_place(self, path: impl Into<PathBuf>, offset: Option<u64>) -> Self {
        let place = Some(Place { path: path.into(), offset });
        let inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => Inner { place, ..inner },
            Err(shared) => {
                let (kind, message) = (shared.kind, shared.message.clone());
                let lacks_memory = shared.lacks_memory;
                let source = Some(Box::new(Error { inner: shared }) as _);
                Inner { kind, message, place, source, lacks_memory }
            }
        };
        Error { inner: Arc::new(inner) }
    }

    /// Makes an error of the operating system, met while doing `context` (for example `read 4096
    /// bytes at 8192 of wal`).
    ///
    /// A full disk or quota becomes [`ErrorKind::Full`]; everything else is [`ErrorKind::Io`].
    pub fn io(context: impl fmt::Display, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Os;
        let kind = match source.kind() {
            Os::StorageFull | Os::QuotaExceeded | Os::FileTooLarge => ErrorKind::Full,
            _ => ErrorKind::Io,
        };
        Error::of_system(kind, context, source)
    }

    fn of_system(kind: ErrorKind, context: impl fmt::Display, source: std::io::Error) -> Self {
        let message = format!("{context}: {source}");
        let source = Some(Box::new(source) as _);
        let inner = Inner { kind, message, place: None, source, lacks_memory: false };
        Error { inner: Arc::new(inner) }
    }

    /// Makes the error for a file named by a user that cannot be opened or created:
    /// `InvalidArgument` when its name or permissions are the cause, else as [`Error::io`].
    pub fn unopened(context: impl fmt::Display, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Os;
        match source.kind() {
            Os::NotFound
            | Os::PermissionDenied
            | Os::IsADirectory
            | Os::NotADirectory
            | Os::ReadOnlyFilesystem
            | Os::InvalidFilename
            | Os::InvalidInput => Error::of_system(ErrorKind::InvalidArgument, context, source),
            _ => Error::io(context, source),
        }
    }

    /// Makes the error for damage at `offset` of `file`.
    pub fn corruption(
        file: impl fmt::Display,
        offset: u64,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        let file = file.to_string();
        let message = format!("{file} at offset {offset}: expected {expected}, found {found}");
        Error::new(ErrorKind::Corruption, message).with_place(file, Some(offset))
    }

    /// Makes the error for an argument outside its range.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidArgument, message)
    }

    /// Returns an error of another kind, with `context` before the message and this error as the
    /// cause.
    #[must_use]
    pub fn wrap(self, kind: ErrorKind, context: impl fmt::Display) -> Self {
        let message = format!("{context}: {}", self.inner.message);
        let place = self.inner.place.clone();
        let lacks_memory = self.inner.lacks_memory;
        let source = Some(Box::new(self) as _);
        Error { inner: Arc::new(Inner { kind, message, place, source, lacks_memory }) }
    }

    /// Returns the same error, of the same kind, with `context` before the message.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        let kind = self.kind();
        self.wrap(kind, context)
    }

    /// Returns the kind: what a caller can do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Returns the file or directory that the error is about, if there is one.
    ///
    /// ```
    /// use spinney_base::Error;
    /// let error = Error::corruption("db/wal", 8192, "a superblock", "zeros");
    /// assert_eq!(error.path(), Some("db/wal".as_ref()));
    /// assert_eq!(error.offset(), Some(8192));
    /// ```
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.inner.place.as_ref().map(|place| place.path.as_path())
    }

    /// Returns the offset in that file where the damaged bytes begin, or those that could not be
    /// read or written.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.inner.place.as_ref()?.offset
    }

    /// Returns whether this is damage on disk.
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        self.kind() == ErrorKind::Corruption
    }

    /// Returns whether space ran out (and may return).
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.kind() == ErrorKind::Full
    }

    /// Returns whether it is memory that ran out.
    #[must_use]
    pub fn lacks_memory(&self) -> bool {
        self.inner.lacks_memory
    }

    /// Returns whether the process, or the whole system, had no descriptor left.
    #[must_use]
    pub fn is_out_of_descriptors(&self) -> bool {
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            if let Some(system) = error.downcast_ref::<std::io::Error>() {
                return matches!(system.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
            }
            cause = error.source();
        }
        false
    }

    /// Returns whether an earlier failure stopped all writing.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.kind() == ErrorKind::Poisoned
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.inner.kind.name(), self.inner.message)
    }
}

/// The kind is the system's own where the system refused, else the nearest one.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        use std::io::ErrorKind as Os;
        let system = std::error::Error::source(&error)
            .and_then(|source| source.downcast_ref::<std::io::Error>())
            .map(std::io::Error::kind);
        let kind = match error.kind() {
            ErrorKind::Corruption => Os::InvalidData,
            ErrorKind::Full => Os::StorageFull,
            ErrorKind::InvalidArgument => Os::InvalidInput,
            ErrorKind::Unsupported => Os::Unsupported,
            ErrorKind::NotFound => Os::NotFound,
            ErrorKind::ReadOnly => Os::ReadOnlyFilesystem,
            _ => Os::Other,
        };
        std::io::Error::new(system.unwrap_or(kind), error)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn a_full_disk_is_its_own_kind() {
        let full = Error::io("write", std::io::Error::from_raw_os_error(28));
        assert!(full.is_full());
        let eio = Error::io("write", std::io::Error::from_raw_os_error(5));
        assert_eq!(eio.kind(), ErrorKind::Io);
        assert!(eio.source().is_some());
    }

    #[test]
    fn wrapping_keeps_the_cause() {
        let cause = Error::io("sync wal", std::io::Error::from_raw_os_error(5));
        let poisoned = cause.wrap(ErrorKind::Poisoned, "an earlier sync failed");
        assert!(poisoned.is_poisoned());
        assert!(poisoned.to_string().contains("sync wal"));
    }
}
