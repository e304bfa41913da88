//! Restoring a backup: a copy of a closed database, file by file, that is then opened and verified.

use std::path::Path;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Result, probe};
use spinney_engine::VerifyReport;
use spinney_io::{AlignedBuf, Directory, DirectoryLock, Disk, IfMissing, OpenMode, Purpose};

use crate::database::Db;
use crate::manifest::Manifest;
use crate::open::{self, LOG_NAME};
use crate::options::Options;
use crate::state::file_name;
use crate::target::{self, Target};

/// Pages copied at once: 1 MiB.
const CHUNK_PAGES: usize = 256;

/// What a restore made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Keyspaces.
    pub keyspaces: u64,
    /// Bytes read from the backup.
    pub bytes: u64,
    /// What the verification of the restored database saw.
    pub verified: VerifyReport,
}

impl Db {
    /// Copies a backup, or any other database that nobody has open, into a directory that is empty or does not
    /// exist, opens the copy with `options`, verifies it, and closes it. The backup is not changed.
    ///
    /// # Errors
    /// `NotFound` when there is no database in `backup`; `Corruption` when the backup was never finished or is
    /// damaged; `InvalidArgument` when `target` holds files; `Locked`, `Unsupported`, `Full` or `Io`. Nothing of the
    /// copy is left then.
    pub fn restore(
        backup: impl AsRef<Path>,
        target: impl AsRef<Path>,
        options: Options,
    ) -> Result<RestoreReport> {
        let (backup, directory) = (backup.as_ref(), target.as_ref());
        let _inside = probe::enter("restore");
        let disk = options.open_disk();
        let source = match disk.directory(backup, IfMissing::Fail) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(not_found(backup)),
            opened => opened?,
        };
        let _lock = source.lock()?;
        if target::is_being_salvaged(&*source)? {
            let message = format!("{} holds what a salvage never finished", backup.display());
            return Err(Error::new(ErrorKind::Corruption, message));
        }
        if !Manifest::exists(&*source)? {
            return Err(if target::is_unfinished(&*source)? {
                let message = format!("the backup in {} was never finished", backup.display());
                Error::new(ErrorKind::Corruption, message)
            } else {
                not_found(backup)
            });
        }
        let manifest = Manifest::read(&*source)?;
        let target = Target::begin(&*disk, directory)?;
        let copied = target.directory().clone();
        let copy = |name: &str, holes| copy((&*source, name), (&*copied, name), holes);
        let mut bytes = copy(LOG_NAME, false)?;
        for keyspace in &manifest.keyspaces {
            bytes += copy(&file_name(keyspace.id), true)?;
        }
        let lock = target.complete(&manifest)?;
        let verified = verify(&disk, &copied, lock, options)
            .inspect_err(|_| target::remove_all(&*copied))
            .map_err(|error| error.context("the restored database does not verify"))?;
        Ok(RestoreReport { keyspaces: manifest.keyspaces.len() as u64, bytes, verified })
    }
}

fn not_found(directory: &Path) -> Error {
    let message = format!("there is no Spinney database in {}", directory.display());
    Error::new(ErrorKind::NotFound, message)
}

fn verify(
    disk: &Arc<dyn Disk>,
    directory: &Arc<dyn Directory>,
    lock: Option<Box<dyn DirectoryLock>>,
    options: Options,
) -> Result<VerifyReport> {
    let options = options.create_if_missing(false);
    let db = Db::of(open::open_in(disk.clone(), directory.clone(), lock, options)?);
    let report = db.verify()?;
    db.close()?;
    Ok(report)
}

/// Copies a file and makes it durable. Pages of zeros become holes if the file may have some.
pub(crate) fn copy(
    (source, from): (&dyn Directory, &str),
    (target, to): (&dyn Directory, &str),
    holes: bool,
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
        source.read_at(chunk, offset(first), Purpose::Tool)?;
        let is_hole = |page: usize| {
            let bytes = &chunk[page * PAGE_BYTES..(page + 1) * PAGE_BYTES];
            // The last page makes the file as long as it was.
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
                file.write_at(bytes, offset(first + start), Purpose::Tool)?;
            }
            page += usize::from(page < count);
        }
    }
    file.sync(Purpose::Tool)?;
    Ok(length)
}
