//! Salvage: copies what is readable of a damaged database into a new one (rule P22).
//!
//! 1. Read the manifest, if it is there; without it every store file is a keyspace, named after its
//!    file and taken to be logged.
//! 2. Recover a copy of the log, and take the structure records in it, which say with the newest
//!    checkpoints which segments there are. A log that has lost something is not used at all,
//!    because what it has left may be older than the pages.
//! 3. Read the pages of every store file and write the records that they hold into the new
//!    database, through its public interface (each engine's [`KeyspaceSalvage`] says which these
//!    are). Without a manifest the kinds of their blocks say, too, which engine's they are; a file
//!    of an engine that this program does not have is refused.
//! 4. A whole log holds everything that was promised: apply its user records above each keyspace's
//!    redo LSN, in order. Where a keyspace's checkpoint is lost, the whole log is applied. Records
//!    of a keyspace that was bulk loaded after them could then come back.
//!
//! The old database is not changed, and must not be open. The report says what could not be saved.
//!
//! **Crash.** Until everything is copied, the new directory is marked, and refuses to open.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, KeyspaceId, Result, ValueRef, probe};
use spinney_engine::{DamagedPage, KeyspaceSalvage, LostRange, Notes, Patch, SalvagedValue, Store};
use spinney_io::{AlignedBuf, Directory, Disk, IfMissing, OpenMode, Purpose};
use spinney_wal::superblock::Superblock;
use spinney_wal::{Log, LogOptions, RecordKind, tail_name};

use crate::database::{Db, go_on};
use crate::engines::EngineKind;
use crate::files::{LOG_COPY, LOG_NAME, file_name};
use crate::keyspace::Keyspace;
use crate::manifest::Manifest;
use crate::open::open_in;
use crate::options::{Durability, KeyspaceOptions, Options};
use crate::record::{self, Change};
use crate::restore::copy;
use crate::target::Salvaging;

/// Progress of a salvage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageProgress {
    /// Records and log operations written so far.
    pub records: u64,
}

/// Result of a salvage: what was copied, and what was lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageReport {
    /// Why the manifest could not be read, if so. Keyspaces are then named after their files.
    pub manifest: Option<String>,
    /// Why the log could not be used, if so. Writes that were not yet in pages are lost then.
    pub log: Option<String>,
    /// Number of log operations applied.
    pub log_operations: u64,
    /// The keyspaces, one entry each.
    pub keyspaces: Vec<SalvagedKeyspace>,
}

/// Result for one keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvagedKeyspace {
    /// Name of the keyspace in the new database.
    pub name: String,
    /// Number of records copied from pages. A record that was found in several pages counts each
    /// time, where no checkpoint led to the pages.
    pub records: u64,
    /// Why the file could not be read at all, if so.
    pub file: Option<String>,
    /// Why the newest checkpoint could not be read, if so.
    pub checkpoint: Option<String>,
    /// Damaged pages that may have held records. Where the checkpoint is lost as well, records may
    /// be missing outside the ranges below.
    pub damaged: Vec<DamagedPage>,
    /// Key ranges whose pages are lost. Records there are lost, except those in the log.
    pub lost: Vec<LostRange>,
    /// Key ranges whose newest pages are lost. Records there may be older versions.
    pub older: Vec<LostRange>,
    /// Keys whose large values are damaged. The new database does not have them.
    pub lost_values: Vec<Vec<u8>>,
}

impl SalvageReport {
    /// Returns whether everything was saved, including names of keyspaces.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let whole = |one: &SalvagedKeyspace| {
            // The ranges report what a damaged page of the checkpoint held. They may be empty,
            // because other pages may hold its records now.
            one.file.is_none()
                && (one.damaged.is_empty() || one.checkpoint.is_none())
                && one.lost.is_empty()
                && one.older.is_empty()
                && one.lost_values.is_empty()
        };
        self.manifest.is_none() && self.log.is_none() && self.keyspaces.iter().all(whole)
    }
}

impl Db {
    /// Copies what is readable of a database into a new one, in a directory that is missing or
    /// empty. The old database is not changed. `options` are those of the new one.
    ///
    /// # Errors
    /// `NotFound` when there is no file of a database in `old`; `InvalidArgument` when `new` holds
    /// files; `Locked` when somebody has the old one open; `Unsupported` for one that a newer
    /// program has written, or that holds a file of an engine that this program does not have;
    /// `Full` or `Io`, and nothing is left in `new` then. Damage in `old` is no error: the report
    /// tells of it.
    pub fn salvage(
        old: impl AsRef<Path>,
        new: impl AsRef<Path>,
        options: Options,
    ) -> Result<SalvageReport> {
        Db::salvage_with(old, new, options, |_| ControlFlow::Continue(()))
    }

    /// Salvages as [`Db::salvage`] does, and calls `progress` for every record; `Break` ends the
    /// salvage. No calls come while it searches a file for pages.
    ///
    /// # Errors
    /// As [`Db::salvage`]; `Cancelled` when `progress` ended it.
    pub fn salvage_with(
        old: impl AsRef<Path>,
        new: impl AsRef<Path>,
        options: Options,
        mut progress: impl FnMut(SalvageProgress) -> ControlFlow<()>,
    ) -> Result<SalvageReport> {
        let (old, new) = (old.as_ref(), new.as_ref());
        let _inside = probe::enter("salvage");
        options.check()?;
        let disk = options.open_disk();
        let not_found = || {
            let message = format!("there is no file of a Spinney database in {}", old.display());
            Error::new(ErrorKind::NotFound, message)
        };
        let source = match disk.directory(old, IfMissing::Fail) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(not_found()),
            opened => opened?,
        };
        if !Manifest::exists(&*source)? && keyspaces(&*source, None)?.is_empty() {
            return Err(not_found());
        }
        // The old database may lie on a file system that cannot be written.
        let _lock = source.lock_shared()?;
        let mut report = SalvageReport::default();
        let manifest = match Manifest::read(&*source) {
            Ok(manifest) => Some(manifest),
            // The database is sound; this program is too old for it.
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Err(error) => {
                report.manifest = Some(error.to_string());
                None
            }
        };
        let found = keyspaces(&*source, manifest.as_ref())?;
        if manifest.is_none() && found.is_empty() {
            return Err(not_found());
        }
        let marked = Salvaging::begin(&*disk, new)?;
        let tag = manifest.as_ref().map(|manifest| manifest.tag);
        let (old, new) = (&*source, marked.directory());
        let mut so_far = SalvageProgress::default();
        let watch = &mut || {
            so_far.records += 1;
            go_on(progress(so_far), "the salvage")
        };
        let saved = save(disk, (old, &found, tag), new, options, &mut report, watch);
        saved.and_then(|()| marked.complete())?;
        Ok(report)
    }
}

/// A keyspace to be saved.
struct OldKeyspace {
    id: KeyspaceId,
    name: String,
    engine: EngineKind,
    logged: bool,
}

/// A keyspace that is being saved.
struct Saving {
    old: Option<Box<dyn KeyspaceSalvage>>,
    new: Keyspace,
    report: SalvagedKeyspace,
    /// Keys whose large values could not be read.
    lost: BTreeMap<Vec<u8>, ()>,
}

fn keyspaces(old: &dyn Directory, manifest: Option<&Manifest>) -> Result<Vec<OldKeyspace>> {
    if let Some(manifest) = manifest {
        let of = |entry: &crate::manifest::ManifestKeyspace| OldKeyspace {
            id: entry.id,
            name: entry.name.clone(),
            engine: entry.options.engine,
            logged: entry.options.logged,
        };
        return Ok(manifest.keyspaces.iter().map(of).collect());
    }
    let id_of = |name: String| {
        let number = name.strip_prefix("keyspace-")?.strip_suffix(".spn")?;
        number.parse().ok().map(KeyspaceId)
    };
    let ids = old.list()?.into_iter().filter_map(id_of);
    let named = |id: KeyspaceId| {
        let name = format!("keyspace-{:08}", id.0);
        Ok(OldKeyspace { id, name, engine: engine_of(old, id)?, logged: true })
    };
    ids.map(named).collect()
}

/// Which engine has written a file, as far as its pages tell. Where there is none of records, any
/// engine finds the large values that the log names.
///
/// # Errors
/// `Unsupported` when it is an engine that this program does not have.
fn engine_of(old: &dyn Directory, keyspace: KeyspaceId) -> Result<EngineKind> {
    let name = file_name(keyspace);
    // The salvage of the keyspace reports a file that cannot be read.
    let Ok(Some(kind)) = Store::kind_of_data(old, &name, keyspace) else {
        return Ok(EngineKind::default());
    };
    EngineKind::of_block(kind).ok_or_else(|| {
        let path = old.path().join(name);
        let message = format!(
            "{} holds blocks of kind {}, which no engine of this program writes",
            path.display(),
            kind.number()
        );
        Error::new(ErrorKind::Unsupported, message)
    })
}

fn open(old: &dyn Directory, keyspace: &OldKeyspace) -> Result<Box<dyn KeyspaceSalvage>> {
    let row = keyspace.engine.row();
    (row.salvage)(old, &file_name(keyspace.id), keyspace.id, keyspace.logged)
}

fn save(
    disk: Arc<dyn Disk>,
    (old, found, tag): (&dyn Directory, &[OldKeyspace], Option<u64>),
    new: &Arc<dyn Directory>,
    options: Options,
    report: &mut SalvageReport,
    watch: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let log_bytes_max = options.log_bytes_max;
    let options = Options { salvaging: true, ..options };
    let db = Db::of(open_in(disk, new.clone(), None, options)?);
    let mut savings: BTreeMap<KeyspaceId, Saving> = BTreeMap::new();
    for keyspace in found {
        let options = KeyspaceOptions::default().engine(keyspace.engine).logged(keyspace.logged);
        let handle = db.keyspace(&keyspace.name, options)?;
        let mut saving = Saving {
            old: None,
            new: handle,
            report: SalvagedKeyspace { name: keyspace.name.clone(), ..Default::default() },
            lost: BTreeMap::new(),
        };
        match open(old, keyspace) {
            Ok(salvage) => saving.old = Some(salvage),
            Err(error) => saving.report.file = Some(error.to_string()),
        }
        savings.insert(keyspace.id, saving);
    }
    let log = copied_log(old, &**new, tag, log_bytes_max).and_then(|(log, recovered)| {
        follow(&recovered, &mut savings)?;
        Ok((log, recovered))
    });
    savings.values_mut().try_for_each(|saving| saving.save_pages(watch))?;
    // All dirty records are in pages before the log is applied over them.
    db.checkpoint()?;
    match log {
        Ok((_log, recovered)) => {
            recovered.replay(recovered.first_lsn(), |entry| {
                if entry.kind != RecordKind::User {
                    return Ok(());
                }
                record::decode(entry.payload, entry.lsn, |id, key, change| {
                    let Some(saving) = savings.get_mut(&id) else { return Ok(()) };
                    let redo = saving.old.as_ref().and_then(|old| old.redo());
                    if redo.is_some_and(|redo| entry.lsn <= redo) {
                        return Ok(());
                    }
                    report.log_operations += 1;
                    saving.put(key, change)?;
                    watch()
                })
            })?;
        }
        Err(error) => report.log = Some(error.to_string()),
    }
    for copy in [&tail_name(LOG_COPY), LOG_COPY] {
        if new.exists(copy)? {
            new.remove(copy)?;
        }
    }
    report.keyspaces = savings.into_values().map(Saving::end).collect();
    db.close()
}

/// Passes the structure records of the log to the keyspaces.
fn follow(
    recovered: &spinney_wal::Recovered,
    savings: &mut BTreeMap<KeyspaceId, Saving>,
) -> Result<()> {
    recovered.replay(recovered.first_lsn(), |entry| {
        if let RecordKind::Structure(id) = entry.kind
            && let Some(old) = savings.get_mut(&id).and_then(|saving| saving.old.as_mut())
        {
            old.follow(entry.payload);
        }
        Ok(())
    })?;
    for old in savings.values_mut().filter_map(|saving| saving.old.as_mut()) {
        old.end_of_log(recovered.first_lsn(), recovered.last_lsn());
    }
    Ok(())
}

/// Recovers a copy of the old log, so that the old one stays as it is.
fn copied_log(
    old: &dyn Directory,
    new: &dyn Directory,
    tag: Option<u64>,
    bytes_max: u64,
) -> Result<(Arc<Log>, spinney_wal::Recovered)> {
    let tag = match tag {
        Some(tag) => tag,
        None => tag_of_log(old)?,
    };
    copy((old, LOG_NAME), (new, LOG_COPY), false, &mut |_| Ok(()))?;
    let (tail, tail_copy) = (tail_name(LOG_NAME), tail_name(LOG_COPY));
    if old.exists(&tail)? {
        copy((old, &tail), (new, &tail_copy), false, &mut |_| Ok(()))?;
    }
    Log::open(new, LOG_COPY, &LogOptions::sized(tag, bytes_max))
}

/// Returns the tag of the database that a log belongs to.
fn tag_of_log(old: &dyn Directory) -> Result<u64> {
    let file = old.open(LOG_NAME, OpenMode::EXISTING.read_only())?;
    let mut buf = AlignedBuf::new(1);
    for slot in 0..2 {
        file.read_at(buf.bytes_mut(), slot * PAGE_BYTES as u64, Purpose::TOOL)?;
        if let Ok(superblock) = Superblock::decode(slot, buf.page(0)) {
            return Ok(superblock.tag);
        }
    }
    Err(Error::corruption(file.path().display(), 0, "a superblock", "two damaged ones"))
}

impl Saving {
    fn save_pages(&mut self, watch: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let Saving { old, new, report, lost } = self;
        let Some(salvage) = old else { return Ok(()) };
        if let Err(error) = salvage.read_pages() {
            report.file = Some(error.to_string());
            *old = None;
            return Ok(());
        }
        salvage.records(&mut |store, key, value| {
            report.records += u64::from(value.is_some());
            put(new, lost, Some(store), key, value)?;
            watch()
        })
    }

    /// Applies an operation of the log.
    fn put(&mut self, key: &[u8], change: Change<'_>) -> Result<()> {
        if change.is_patch {
            return self.patch(key, change.value);
        }
        let store = self.old.as_ref().map(|old| old.store());
        put(&self.new, &mut self.lost, store, key, change.value)
    }

    /// Lays a patch of the log over the value that was saved. As in a replay, one that does not fit is of a value that
    /// a later record replaces; or the value is lost, and the report names its range.
    fn patch(&self, key: &[u8], patch: Option<ValueRef<'_>>) -> Result<()> {
        let patch = patch.and_then(|value| Patch::parse(value.bytes));
        let Some((patch, value)) = patch.zip(self.new.get(key)?) else { return Ok(()) };
        let mut value = value.to_vec();
        match patch.lay_over(&mut value) {
            true => self.new.insert_with(key, value, Durability::Buffered),
            false => Ok(()),
        }
    }

    fn end(self) -> SalvagedKeyspace {
        let mut report = self.report;
        report.lost_values = self.lost.into_keys().collect();
        if let Some(salvage) = self.old {
            let mut findings = salvage.findings().clone();
            if let Some((page, damage)) = salvage.store().early_end() {
                let mut notes = Notes::default();
                notes.damaged(page, &damage);
                notes.tell(salvage.store(), &mut findings);
            }
            report.checkpoint = findings.checkpoint;
            report.damaged = findings.damaged;
            report.lost = findings.lost;
            report.older = findings.older;
        }
        report
    }
}

/// Gives a key its value in the old keyspace, whose large values lie in `store`.
fn put(
    new: &Keyspace,
    lost: &mut BTreeMap<Vec<u8>, ()>,
    store: Option<&Store>,
    key: &[u8],
    value: Option<ValueRef<'_>>,
) -> Result<()> {
    lost.remove(key);
    match value {
        None => new.remove_with(key, Durability::Buffered),
        Some(value) if !value.large => new.insert_with(key, value.bytes, Durability::Buffered),
        Some(pointer) => {
            if let Some(store) = store
                && put_large(new, key, store, pointer.bytes)?
            {
                return Ok(());
            }
            // A later operation decides the key's value, or it is lost; its earlier value is
            // neither.
            lost.insert(key.to_vec(), ());
            new.remove_with(key, Durability::Buffered)
        }
    }
}

/// Copies the large value behind a pointer of the old keyspace. Returns whether it is whole; if
/// not, nothing has changed.
fn put_large(new: &Keyspace, key: &[u8], store: &Store, pointer: &[u8]) -> Result<bool> {
    let Ok(mut value) = SalvagedValue::open(store, pointer) else { return Ok(false) };
    let put = new.insert_from_with(key, value.length(), &mut value, Durability::Buffered);
    if value.is_damaged() { Ok(false) } else { put.map(|()| true) }
}
