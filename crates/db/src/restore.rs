//! Restoring a backup: copies a closed database file by file, then opens and verifies the copy.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{ErrorKind, Result, probe};
use spinney_engine::{VerifyReport, mend_copied_slots};
use spinney_io::{AlignedBuf, Directory, DirectoryLock, Disk, IfMissing, OpenMode, Purpose};

use crate::database::{Db, go_on};
use crate::files::{LOG_NAME, file_name, lost, not_found};
use crate::manifest::Manifest;
use crate::open::{self, is_database};
use crate::options::Options;
use crate::target::{self, Target};

/// Number of pages copied at once (1 MiB).
const CHUNK_PAGES: usize = 256;

/// Progress of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreProgress {
    /// Bytes copied so far, plus bytes of the copy verified so far.
    pub bytes: u64,
    /// Expected total, approximately: each byte is copied, and each page is verified.
    pub bytes_expected: u64,
}

/// Result of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// Number of keyspaces.
    pub keyspaces: u64,
    /// Bytes read from the backup.
    pub bytes: u64,
    /// Result of the verification of the restored database.
    pub verified: VerifyReport,
}

impl Db {
    /// Copies a backup, or any other database that is not open, into `target`, opens the copy with
    /// `options`, verifies it, and closes it. `target` must be missing, empty, or hold only the
    /// remains of an unfinished copy. The backup is not changed. Where one copy of a checkpoint
    /// slot is damaged in the backup, the restored database has both copies again.
    ///
    /// # Errors
    /// `NotFound` when there is no database in `backup`; `Corruption` when the backup was never
    /// finished or is damaged; `InvalidArgument` when `target` holds files; `Locked`,
    /// `Unsupported`, `Full` or `Io`. Nothing of the copy is left then.
    pub fn restore(
        backup: impl AsRef<Path>,
        target: impl AsRef<Path>,
        options: Options,
    ) -> Result<RestoreReport> {
        Db::restore_with(backup, target, options, |_| ControlFlow::Continue(()))
    }

    /// Restores as [`Db::restore`] does, and calls `progress` after every piece; `Break` ends the
    /// restore.
    ///
    /// # Errors
    /// As [`Db::restore`]; `Cancelled` when `progress` ended it.
    pub fn restore_with(
        backup: impl AsRef<Path>,
        target: impl AsRef<Path>,
        options: Options,
        mut progress: impl FnMut(RestoreProgress) -> ControlFlow<()>,
    ) -> Result<RestoreReport> {
        let (backup, directory) = (backup.as_ref(), target.as_ref());
        let _inside = probe::enter("restore");
        options.check()?;
        let disk = options.open_disk();
        let source = match disk.directory(backup, IfMissing::Fail) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(not_found(backup)),
            opened => opened?,
        };
        if !is_database(&*source)? {
            return Err(not_found(backup));
        }
        let _lock = source.lock_shared()?;
        let manifest = Manifest::read(&*source)?;
        let mut names = vec![LOG_NAME.to_owned()];
        names.extend(manifest.keyspaces.iter().map(|keyspace| file_name(keyspace.id)));
        let mut length = 0;
        for name in &names {
            let file = source.open(name, OpenMode::EXISTING.read_only());
            length += file.map_err(lost)?.len()?;
        }
        let target = Target::begin(&*disk, directory)?;
        let copied = target.directory().clone();
        let mut so_far = RestoreProgress { bytes: 0, bytes_expected: 2 * length };
        let mut watch = |bytes: u64| {
            so_far.bytes += bytes;
            go_on(progress(so_far), "the restore")
        };
        let mut bytes = 0;
        for name in &names {
            // The log has no holes.
            let holes = name != LOG_NAME;
            bytes += copy((&*source, name), (&*copied, name), holes, &mut watch)?;
        }
        for keyspace in &manifest.keyspaces {
            let file = copied.open(&file_name(keyspace.id), OpenMode::EXISTING)?;
            mend_copied_slots(&*file, keyspace.id)?;
        }
        let made_lock = target.made_lock();
        let lock = target.complete(&manifest)?;
        let verified = verify((&disk, &copied), lock, options, &mut watch)
            .inspect_err(|_| target::take_back(&*copied, made_lock))
            .map_err(|error| error.context("the restored database does not verify"))?;
        Ok(RestoreReport { keyspaces: manifest.keyspaces.len() as u64, bytes, verified })
    }
}

fn verify(
    (disk, directory): (&Arc<dyn Disk>, &Arc<dyn Directory>),
    lock: Option<Box<dyn DirectoryLock>>,
    options: Options,
    watch: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<VerifyReport> {
    let options = options.create_if_missing(false);
    let db = Db::of(open::open_in(disk.clone(), directory.clone(), lock, options)?);
    let (mut pages, mut ended) = (0, Ok(()));
    let report = db.verify_with(|progress| {
        ended = watch((progress.pages - pages) * PAGE_BYTES as u64);
        pages = progress.pages;
        if ended.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let report = ended.and(report)?;
    db.close()?;
    Ok(report)
}

/// Copies a file and makes it durable. Calls `watch` after each piece with the number of bytes in
/// it. Pages of zeros become holes if the file may have holes.
pub(crate) fn copy(
    (source, from): (&dyn Directory, &str),
    (target, to): (&dyn Directory, &str),
    holes: bool,
    watch: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<u64> {
    let source = source.open(from, OpenMode::EXISTING.read_only())?;
    let file = target.open(to, OpenMode::CREATE)?;
    let length = source.len()?;
    let pages = usize::try_from(length / PAGE_BYTES as u64).unwrap_or(usize::MAX);
    let mut buf = AlignedBuf::new(CHUNK_PAGES);
    for first in (0..pages).step_by(CHUNK_PAGES) {
        let count = CHUNK_PAGES.min(pages - first);
        let offset = |page: usize| (page * PAGE_BYTES) as u64;
        let chunk = &mut buf.bytes_mut()[..count * PAGE_BYTES];
        source.read_at(chunk, offset(first), Purpose::TOOL)?;
        let is_hole = |page: usize| {
            let bytes = &chunk[page * PAGE_BYTES..(page + 1) * PAGE_BYTES];
            // The last page gives the file its length.
            holes && first + page + 1 < pages && bytes.iter().all(|byte| *byte == 0)
        };
        let mut page = 0;
        while page < count {
            let start = page;
            while page < count && !is_hole(page) {
                page += 1;
            }
            if page > start {
                let bytes = &chunk[start * PAGE_BYTES..page * PAGE_BYTES];
                file.write_at(bytes, offset(first + start), Purpose::TOOL)?;
            }
            page += usize::from(page < count);
        }
        watch(chunk.len() as u64)?;
    }
    file.sync(Purpose::TOOL)?;
    Ok(length)
}
