//! Backup while writers run, and restore (rule P26).
//!
//! 1. Take a checkpoint, so that the pages of a keyspace without a log are written back, and from
//!    then on follow the log: no record that was not copied is trimmed, and nothing that is freed
//!    is reused.
//! 2. Copy every keyspace in passes, each over what has moved since the one before. After every
//!    piece copy the log's newest records; a checkpoint that is about to trim the log does the
//!    same, so that no writer waits for the backup (P12). Then copy those that are parked, each
//!    opened in turn: they hardly ever change meanwhile, and one that is used before step 3 is
//!    copied once more there.
//! 3. While no keyspace comes or goes: end every keyspace's copy, then take the cut, the log's last
//!    record of that moment.
//! 4. Copy the log up to the cut; sync; write the manifest.
//!
//! What is left is an ordinary database with an identity of its own, whose recovery replays what
//! users said from step 1 to the cut over the copied pages. Pages hold nothing above the cut,
//! because it is taken after them, so a batch is in the backup whole or not at all. Structure
//! records are not copied: every copied index is whole already, and what moved after it was copied
//! moved only here. Their LSNs are filled with records that say nothing.
//!
//! A keyspace made meanwhile is in the backup, one dropped meanwhile is not.
//!
//! **Crash.** The manifest is last; before that the directory is marked unfinished (see `target`).
//! The database itself changes only by the checkpoint.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use spinney_base::{Error, ErrorKind, KeyspaceId, Lsn, Result, probe};
use spinney_engine::KeyspaceBackup;
use spinney_io::Directory;

use crate::backup_log::{BackupEnds, LogBackup};
use crate::database::{Db, go_on};
use crate::files::file_name;
use crate::manifest::Manifest;
use crate::place::Place;
use crate::state::State;
use crate::target::Target;

/// Passes end when a round of them has copied no more than this, in bytes. Ending a copy blocks
/// write-back for as long as the copy takes.
const LITTLE_BYTES: u64 = 1 << 20;

/// Most passes over each keyspace, however much has changed.
const ROUNDS_MAX: usize = 5;

/// Longest sleep of a backup with a rate limit before it copies the log again.
const NAP: Duration = Duration::from_millis(20);

/// Options of a backup.
#[derive(Clone, Debug, Default)]
pub struct BackupOptions {
    bytes_per_second: u64,
}

impl BackupOptions {
    /// Limits the copying of pages to about this many bytes per second. 0, the default, sets no
    /// limit.
    #[must_use]
    pub fn bytes_per_second(mut self, bytes: u64) -> Self {
        self.bytes_per_second = bytes;
        self
    }
}

/// Progress of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupProgress {
    /// Bytes of pages copied so far. Pages that changed meanwhile count again.
    pub bytes: u64,
    /// Bytes of the keyspaces' files at the beginning, free pages included.
    pub bytes_expected: u64,
}

/// Result of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// Number of keyspaces.
    pub keyspaces: u64,
    /// Bytes of pages copied. Pages that changed meanwhile count again.
    pub bytes: u64,
    /// Bytes of the log that a recovery replays.
    pub log_bytes: u64,
    /// LSN of the last record that the backup contains.
    pub last_lsn: u64,
}

impl Db {
    /// Copies the database into a directory, while writes continue. The directory must be missing,
    /// hold no file, or hold only the remains of an unfinished backup, which are removed. The copy
    /// contains every write acknowledged before the call, later writes up to some moment before it
    /// returns, and batches whole. The copy is an ordinary database.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let (place, copy) = (directory.path().join("db"), directory.path().join("copy"));
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// let db = Db::open(&place, Options::default())?;
    /// let fruit = db.keyspace("fruit", KeyspaceOptions::default())?;
    /// fruit.insert(b"apple", b"red")?;
    /// db.backup(&copy)?;
    /// fruit.insert(b"apple", b"green")?;
    /// let copy = Db::open(&copy, Options::default())?;
    /// assert_eq!(copy.existing_keyspace("fruit")?.get(b"apple")?.as_deref(), Some(&b"red"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when the directory holds files or lies in that of a database; `Locked`
    /// when another backup runs or somebody has the directory; `Corruption` naming a page of this
    /// database that is damaged; `Full` or `Io` from either side; `Poisoned` or `Closed`. Nothing
    /// of the copy is left then, and this database is as it was.
    pub fn backup(&self, directory: impl AsRef<Path>) -> Result<BackupReport> {
        self.backup_with(directory, &BackupOptions::default(), |_| ControlFlow::Continue(()))
    }

    /// Copies the database as [`Db::backup`] does, and calls `progress` after every piece and while it
    /// waits for its rate; `Break` ends the backup. `progress` runs on this thread while no lock is
    /// held, and may use the database, except for a bulk load, which waits for the end of the backup.
    ///
    /// # Errors
    /// As [`Db::backup`]; `Cancelled` when `progress` ended it.
    pub fn backup_with(
        &self,
        directory: impl AsRef<Path>,
        options: &BackupOptions,
        mut progress: impl FnMut(BackupProgress) -> ControlFlow<()>,
    ) -> Result<BackupReport> {
        let state = &self.handle.state;
        state.life.check_sound()?;
        let Some(_ends) = state.backups.begin() else {
            return Err(Error::new(
                ErrorKind::Locked,
                "a backup of this database is running, or a bulk load ends",
            ));
        };
        let _inside = probe::enter("backup");
        let target = Target::begin(&*state.files.disk, directory.as_ref())?;
        let mut backup =
            Backup { state, options, progress: &mut progress, begun: state.runtime.now() };
        let (report, manifest) = backup.run(&target)?;
        target.complete(&manifest)?;
        Ok(report)
    }
}

impl State {
    /// Waits until no backup runs, and keeps others from starting one.
    pub(crate) fn exclude_backup(&self) -> Result<BackupEnds<'_>> {
        loop {
            if let Some(ends) = self.backups.begin() {
                return Ok(ends);
            }
            self.life.check_writable()?;
            if !self.runtime.help() {
                self.runtime.sleep(NAP);
            }
        }
    }
}

struct Backup<'a> {
    state: &'a State,
    options: &'a BackupOptions,
    progress: &'a mut dyn FnMut(BackupProgress) -> ControlFlow<()>,
    begun: Duration,
}

impl Backup<'_> {
    fn run(&mut self, target: &Target) -> Result<(BackupReport, Manifest)> {
        let state = self.state;
        let place: &dyn Directory = &**target.directory();
        let tag = state.runtime.random();
        let no_change = state.checkpoints.hold();
        let after = self.begin()?;
        state.backups.set_log(LogBackup::begin(&state.log, place, tag, after)?);
        let keyspaces = state.keyspaces.open();
        let mut copies: Vec<(KeyspaceId, Box<dyn KeyspaceBackup + '_>)> = Vec::new();
        for keyspace in &keyspaces {
            copies
                .push((keyspace.id, keyspace.engine.begin_backup(place, &file_name(keyspace.id))?));
        }
        drop(no_change);
        let places = state.keyspaces.places();
        let file_bytes = places.iter().map(|place| state.keyspaces.stats_of(place).0.file_bytes);
        let mut so_far = BackupProgress { bytes: 0, bytes_expected: file_bytes.sum() };
        // Rounds go over all keyspaces. What changed in one while others were copied is left to the
        // next round, not to the end.
        let mut before = u64::MAX;
        for _ in 0..ROUNDS_MAX {
            let mut bytes = 0;
            for (_, copy) in &mut copies {
                bytes += self.pass(&mut **copy, &mut so_far)?;
            }
            // Where writers are as fast as the copy, further rounds gain nothing.
            if bytes <= LITTLE_BYTES || bytes > before / 2 {
                break;
            }
            before = bytes;
        }
        let mut parked: BTreeMap<KeyspaceId, Option<u64>> = BTreeMap::new();
        for place in places.iter().filter(|place| !copies.iter().any(|(id, _)| *id == place.id)) {
            self.copy_parked(place, target, &mut so_far, &mut parked)?;
        }
        // Until the cut no keyspace is made or dropped, and no record points to a large value that
        // the copies do not have.
        let no_change = state.checkpoints.hold();
        let no_large = state.writers.large_logging.write();
        state.life.check_sound()?;
        let now = state.keyspaces.places();
        for one in &now {
            let name = file_name(one.id);
            let copied = parked.get(&one.id);
            if let Some((_, copy)) = copies.iter_mut().find(|(id, _)| *id == one.id) {
                so_far.bytes += copy.finish()?;
            } else if copied.is_none_or(|entries| *entries != Some(one.open.entries())) {
                // Keyspaces that were made meanwhile, or used since they were copied.
                if copied.is_some() {
                    place.remove(&name)?;
                }
                let keyspace = state.enter_held(one, &no_change)?;
                so_far.bytes += keyspace.engine.begin_backup(place, &name)?.finish()?;
            }
        }
        let cut = state.log.last_lsn();
        drop(no_large);
        let mut manifest = state.keyspaces.manifest.lock().clone();
        drop(no_change);
        manifest.tag = tag;
        let of_open = copies.iter().map(|(id, _)| *id);
        let copied: Vec<KeyspaceId> = of_open.chain(parked.into_keys()).collect();
        drop(copies);
        for id in copied {
            if !now.iter().any(|place| place.id == id) {
                place.remove(&file_name(id))?;
            }
        }
        state.log.ensure_durable(cut).inspect_err(|error| state.note(error))?;
        let mut log = state.backups.take_log()?;
        log.copy_to(cut)?;
        let report = BackupReport {
            keyspaces: manifest.keyspaces.len() as u64,
            bytes: so_far.bytes,
            log_bytes: log.finish()?,
            last_lsn: cut.0,
        };
        Ok((report, manifest))
    }

    /// Takes a checkpoint; the caller holds `checkpointing`. Returns the LSN after which the log of
    /// the copy begins.
    fn begin(&self) -> Result<Lsn> {
        let state = self.state;
        let keyspaces = state.keyspaces.open();
        match state.checkpoint_held() {
            // Without room for a checkpoint the log still has everything that is logged.
            Err(error)
                if error.is_full() && keyspaces.iter().all(|keyspace| keyspace.options.logged) => {}
            result => result?,
        }
        // A keyspace that is opened after this read of the log's end has its records behind it.
        let end = state.log.applied_watermark();
        Ok(state.keyspaces.least_redo(end))
    }

    /// Copies a parked keyspace, and notes how often it had been entered when the copy began. Notes
    /// nothing if an operation was inside, because it may write what the copy lacks.
    fn copy_parked(
        &mut self,
        place: &Place,
        target: &Target,
        so_far: &mut BackupProgress,
        parked: &mut BTreeMap<KeyspaceId, Option<u64>>,
    ) -> Result<()> {
        let state = self.state;
        let keyspace = match state.enter(place) {
            // A dropped keyspace is not in the backup.
            Err(error) if place.check_alive().is_err() && error.kind() == ErrorKind::Closed => {
                return Ok(());
            }
            entered => entered?.pin(),
        };
        let entries = place.open.entries();
        parked.insert(place.id, place.open.is_idle().then_some(entries));
        let mut copy = keyspace.engine.begin_backup(&**target.directory(), &file_name(place.id))?;
        self.pass(&mut *copy, so_far)?;
        so_far.bytes += copy.finish()?;
        drop(copy);
        drop(keyspace);
        let _no_change = state.checkpoints.hold();
        state.park(place).map(|_| ())
    }

    /// Runs one pass over one keyspace. Returns the number of bytes copied.
    fn pass(&mut self, copy: &mut dyn KeyspaceBackup, so_far: &mut BackupProgress) -> Result<u64> {
        let before = so_far.bytes;
        while let Some(bytes) = copy.copy()? {
            so_far.bytes += bytes;
            self.state.backups.set_bytes(so_far.bytes);
            self.between(so_far)?;
        }
        Ok(so_far.bytes - before)
    }

    /// Runs after every piece, while no lock is held: copies the log, calls the caller's progress
    /// function, and helps other jobs.
    fn between(&mut self, so_far: &BackupProgress) -> Result<()> {
        let state = self.state;
        state.runtime.help();
        loop {
            go_on((self.progress)(*so_far), "the backup")?;
            state.life.check_sound()?;
            state.backups.copy_log_of_mine(&state.log)?;
            let rate = self.options.bytes_per_second;
            let due = so_far.bytes.saturating_mul(1_000_000_000).checked_div(rate).unwrap_or(0);
            let passed = state.runtime.now().saturating_sub(self.begun);
            let early = Duration::from_nanos(due).saturating_sub(passed);
            if early.is_zero() {
                return Ok(());
            }
            state.runtime.help();
            state.runtime.sleep(early.min(NAP));
        }
    }
}
