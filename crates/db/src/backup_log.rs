//! The backup that runs, and the log's part in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spinney_base::shim::Mutex;
use spinney_base::{Error, ErrorKind, Lsn, Result};
use spinney_io::Directory;
use spinney_wal::{Follower, Log, LogCopy, RecordKind};

use crate::files::LOG_NAME;
use crate::record;

/// The backups of one open database. One runs at a time.
#[derive(Debug, Default)]
pub(crate) struct Backups {
    running: AtomicBool,
    /// How many bytes of pages the backup that runs has copied.
    bytes: AtomicU64,
    /// The log's part in the backup that runs.
    log_part: Mutex<LogPart>,
}

/// Right to take a backup, or to keep others from taking one.
pub(crate) struct BackupEnds<'a> {
    backups: &'a Backups,
}

impl Drop for BackupEnds<'_> {
    fn drop(&mut self) {
        *self.backups.log_part.lock() = LogPart::None;
        self.backups.bytes.store(0, Ordering::Relaxed);
        self.backups.running.store(false, Ordering::Release);
    }
}

impl Backups {
    /// Takes the right to a backup, unless another thread has it.
    pub(crate) fn begin(&self) -> Option<BackupEnds<'_>> {
        let is_running = self.running.swap(true, Ordering::AcqRel);
        (!is_running).then(|| BackupEnds { backups: self })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Returns the bytes of pages that the backup has copied, if one runs.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.is_running().then(|| self.bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn set_bytes(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Keeps the copy of the log that the backup has begun.
    pub(crate) fn set_log(&self, log: LogBackup) {
        *self.log_part.lock() = LogPart::Copying(log);
    }

    /// Copies the durable part of the log into the backup that runs, if any, and releases it.
    pub(crate) fn copy_log(&self, log: &Log) {
        let mut part = self.log_part.lock();
        if let LogPart::Copying(copy) = &mut *part
            && let Err(error) = copy.copy_to(log.durable_lsn())
        {
            *part = LogPart::Failed(error);
        }
    }

    /// Does the same for the backup itself, and returns the error of a failed copy.
    pub(crate) fn copy_log_of_mine(&self, log: &Log) -> Result<()> {
        self.copy_log(log);
        match &*self.log_part.lock() {
            LogPart::Failed(error) => Err(error.clone()),
            LogPart::None | LogPart::Copying(_) => Ok(()),
        }
    }

    /// Takes the copy of the log out, to be ended.
    ///
    /// # Errors
    /// That of a failed copy.
    pub(crate) fn take_log(&self) -> Result<LogBackup> {
        match std::mem::take(&mut *self.log_part.lock()) {
            LogPart::Copying(log) => Ok(log),
            LogPart::Failed(error) => Err(error),
            LogPart::None => Err(Error::new(ErrorKind::Closed, "the backup has lost its log")),
        }
    }
}

/// The copy of the log, and how far it has got.
#[derive(Debug)]
pub(crate) struct LogBackup {
    follower: Follower,
    copy: LogCopy,
    /// A batch of no operations.
    nothing: Vec<u8>,
}

impl LogBackup {
    pub(crate) fn begin(
        log: &Arc<Log>,
        place: &dyn Directory,
        tag: u64,
        after: Lsn,
    ) -> Result<LogBackup> {
        let follower = log.follow(after)?;
        let segment_bytes = log.stats().segment_bytes;
        let copy = LogCopy::create(place, LOG_NAME, tag, segment_bytes, after.next())?;
        let mut nothing = Vec::new();
        record::begin(&mut nothing, 0);
        Ok(LogBackup { follower, copy, nothing })
    }

    /// Copies the log up to `lsn`, as far as it is durable.
    pub(crate) fn copy_to(&mut self, lsn: Lsn) -> Result<()> {
        let LogBackup { follower, copy, nothing } = self;
        follower.read(lsn, |entry| match entry.kind {
            RecordKind::User => copy.append(RecordKind::User, entry.payload),
            RecordKind::Structure(_) => copy.append(RecordKind::User, nothing),
        })
    }

    /// Ends the copy, and returns its bytes. The log of the original is no longer needed.
    pub(crate) fn finish(self) -> Result<u64> {
        let LogBackup { follower, copy, .. } = self;
        // The rest takes time.
        drop(follower);
        copy.finish()
    }
}

/// The log's part in the backup that runs. The backup copies the log, and so does every checkpoint
/// before it trims. So a writer that waits for space in the log does not wait for the backup.
#[derive(Debug, Default)]
enum LogPart {
    /// No backup runs.
    #[default]
    None,
    /// The backup is copying the log.
    Copying(LogBackup),
    /// The backup failed, and no longer holds the log.
    Failed(Error),
}
