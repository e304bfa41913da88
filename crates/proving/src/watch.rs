//! Asserts P10, P13 and P17 on every write that reaches the simulated disk.
//!
//! * **P10**: a data page (in place, fresh, or its copy in the double-write area) bears an LSN; the
//!   log on the media must be durable up to it. Where a page may be written sooner, because nothing
//!   names it before a slot does, that holds when the slot is written.
//! * **P13**: a structure record names pages that a change added; when the record is written to the
//!   log, the media must already hold each of those pages in the generation that the record names.
//! * **P17**: a record that points to large values, or says that they were allocated, is written to
//!   the log only when the media hold every page of them in its generation.
//!
//! Where pages are never written in place, checkpoint slots take the part of structure records
//! (`roots`).
//!
//! What is durable in the log is followed from the writes and syncs of its file alone, not from
//! what the database says of itself. After a recovery the log's superblock says where the cut is;
//! before that, the highest LSN in any block on the media is taken, which is at most too high and
//! then hides a violation, but never invents one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::database::BACKUP;
use crate::roots::{Layout, PAGE_FREE, Roots};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::{KeyspaceId, Lsn};
use spinney_extent::LargePointer;
use spinney_extent::header::{BlockHeader, BlockKind};
use spinney_io::sim::{SimView, WriteObserver};
use spinney_wal::RecordKind;
use spinney_wal::block::{self, BlockHeader as LogHeader, Parsed};
use spinney_wal::superblock::Superblock;

type Page = [u8; PAGE_BYTES];

/// Follows one disk from an opening of its database on. Thread-safe.
#[derive(Debug, Default)]
pub struct Watch {
    state: Mutex<State>,
    pages_checked: AtomicU64,
    records_checked: AtomicU64,
    large_checked: AtomicU64,
    roots_checked: AtomicU64,
    /// Where pages are never written in place.
    roots: Option<Mutex<Roots>>,
}

#[derive(Debug, Default)]
struct State {
    started: bool,
    tag: u64,
    epoch: u32,
    durable: Lsn,
    /// Written to the log and not yet synced.
    written: Lsn,
    /// The start of a new life, written and not yet synced.
    cut: Option<(u32, Lsn)>,
    /// Pieces of runs whose last block was not seen yet, by first LSN.
    runs: BTreeMap<u64, Vec<u8>>,
    violations: BTreeSet<String>,
}

impl Watch {
    /// For an engine that writes no page in place and logs no structure.
    #[must_use]
    pub fn over_roots(layout: Layout) -> Watch {
        Watch { roots: Some(Mutex::new(Roots::new(layout))), ..Watch::default() }
    }

    /// How many pages were looked at that slots name.
    #[must_use]
    pub fn roots_checked(&self) -> u64 {
        self.roots_checked.load(Relaxed)
    }

    /// How many data pages and how many structure records were checked.
    #[must_use]
    pub fn checked(&self) -> (u64, u64) {
        (self.pages_checked.load(Relaxed), self.records_checked.load(Relaxed))
    }

    /// How many records that name large values were checked.
    #[must_use]
    pub fn large_checked(&self) -> u64 {
        self.large_checked.load(Relaxed)
    }

    /// Panics when a rule was broken. The observer panics as well, but perhaps where the database
    /// catches it.
    ///
    /// # Panics
    /// See above.
    pub fn check(&self) {
        let violations = &self.state.lock().violations;
        assert!(violations.is_empty(), "{violations:#?}");
    }

    fn violated(state: &mut State, message: String) {
        state.violations.insert(message.clone());
        panic!("{message}");
    }
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or("")
}

/// The files of a backup are another database's.
fn is_ours(path: &Path) -> bool {
    !path.ancestors().any(|part| part.extension().is_some_and(|extension| extension == BACKUP))
}

fn is_log(path: &Path) -> bool {
    name(path) == "wal" && is_ours(path)
}

fn is_store(path: &Path) -> bool {
    name(path).starts_with("keyspace-") && is_ours(path)
}

fn pages(bytes: &[u8]) -> impl Iterator<Item = (u64, &Page)> {
    let pages = bytes.as_chunks::<PAGE_BYTES>().0.iter();
    pages.enumerate().map(|(index, page)| (index as u64, page))
}

impl State {
    /// Looks at what the media hold when the first thing is written or synced.
    fn start(&mut self, view: &SimView<'_>) {
        self.started = true;
        let Some(log) = view.files().find(|path| is_log(path)) else { return };
        let log = log.to_owned();
        let count = view.durable_len(&log) / PAGE_BYTES as u64;
        let page = |number: u64| view.durable_page(&log, number * PAGE_BYTES as u64);
        let superblocks = (0..2).filter_map(|slot| Superblock::decode(slot, page(slot)?).ok());
        let Some(newest) = superblocks.max_by_key(|superblock| superblock.generation) else {
            return;
        };
        self.tag = newest.tag;
        self.epoch = newest.epoch.0;
        let blocks =
            (2..count).filter_map(|number| LogHeader::decode(self.tag, page(number)?).ok());
        let highest = blocks.map(|header| header.last).max().unwrap_or(Lsn::ZERO);
        self.durable = highest.max(newest.promised());
        self.written = self.durable;
    }

    fn log_written(&mut self, slot: u64, page: &Page) -> Option<Vec<u8>> {
        if slot < 2 {
            if let Ok(superblock) = Superblock::decode(slot, page) {
                self.tag = superblock.tag;
                if superblock.epoch.0 > self.epoch {
                    self.cut = Some((superblock.epoch.0, superblock.cut_lsn));
                }
            }
            return None;
        }
        let header = LogHeader::decode(self.tag, page).ok()?;
        self.written = self.written.max(header.last);
        let run = self.runs.entry(header.first.0).or_default();
        if header.index == 0 {
            run.clear();
        }
        run.extend_from_slice(block::payload(page, &header));
        if header.index + 1 == header.count { self.runs.remove(&header.first.0) } else { None }
    }
}

impl WriteObserver for Watch {
    fn before_write(&self, view: &SimView<'_>, path: &Path, offset: u64, bytes: &[u8]) {
        let mut state = self.state.lock();
        if !state.started {
            state.start(view);
        }
        let first = offset / PAGE_BYTES as u64;
        for (index, page) in pages(bytes) {
            if let Some(roots) = &self.roots
                && is_store(path)
            {
                let number = u32::try_from(first + index).unwrap_or(u32::MAX);
                match roots.lock().before_write(view, path, number, page) {
                    Ok((pages, newest)) => {
                        self.roots_checked.fetch_add(pages, Relaxed);
                        if newest > state.durable {
                            let message = format!(
                                "P10: a slot of {} names a page with LSN {newest}, and the log is durable up to {}",
                                path.display(),
                                state.durable
                            );
                            Watch::violated(&mut state, message);
                        }
                    }
                    Err(message) => Watch::violated(&mut state, message),
                }
            }
            if is_log(path) {
                let Some(run) = state.log_written(first + index, page) else { continue };
                let checked = named_pages(&run).and_then(|named| {
                    let large = named.iter().filter(|named| named.kind == BlockKind::LARGE).count();
                    self.large_checked.fetch_add(large as u64, Relaxed);
                    self.records_checked.fetch_add((named.len() - large) as u64, Relaxed);
                    named.iter().try_for_each(|named| check_named(view, path, named))
                });
                if let Err(message) = checked {
                    Watch::violated(&mut state, message);
                }
            } else if is_store(path)
                && let Ok((header, _)) = BlockHeader::decode_copy(page)
                && header.kind.is_of_engine()
            {
                self.pages_checked.fetch_add(1, Relaxed);
                if header.lsn > state.durable && !Layout::is_named_by_slots(header.kind) {
                    let message = format!(
                        "P10: page {} of {} goes to the disk with LSN {}, and the log is durable up to {}",
                        header.page,
                        path.display(),
                        header.lsn,
                        state.durable
                    );
                    Watch::violated(&mut state, message);
                }
            }
        }
    }

    fn after_sync(&self, view: &SimView<'_>, path: &Path) {
        let mut state = self.state.lock();
        if !state.started {
            state.start(view);
        }
        if let Some(roots) = &self.roots
            && is_store(path)
            && let Err(message) = roots.lock().after_sync(view, path)
        {
            Watch::violated(&mut state, message);
        }
        if is_log(path) {
            if let Some((epoch, cut)) = state.cut.take() {
                // What a cut life wrote above the cut counts no more.
                state.epoch = epoch;
                state.written = cut;
            }
            state.durable = state.written;
        }
    }

    fn states(&self) -> Vec<&'static str> {
        let is_reusing = self.roots.as_ref().is_some_and(|roots| roots.lock().is_reusing());
        if is_reusing { vec![PAGE_FREE] } else { Vec::new() }
    }
}

/// Pages that a record of the log names, with their generations, and what they must be.
struct Named {
    keyspace: KeyspaceId,
    rule: &'static str,
    kind: BlockKind,
    pages: Vec<(u32, u32)>,
}

/// What the records of a run's stream name; `Err` if one does not parse.
fn named_pages(mut stream: &[u8]) -> Result<Vec<Named>, String> {
    let mut named = Vec::new();
    while let Parsed::Record(kind, start, end) = block::parse_record(stream) {
        let payload = &stream[start..end];
        match (kind, payload.get(1)) {
            // Large values that a page does not name any more.
            (RecordKind::Structure(_), Some(3)) => {}
            (RecordKind::Structure(keyspace), Some(2)) => {
                let pages =
                    large_pages(payload).ok_or("a record of large values does not parse")?;
                named.push(Named { keyspace, rule: "P17", kind: BlockKind::LARGE, pages });
            }
            (RecordKind::Structure(keyspace), _) => {
                let pages = added_pages(payload).ok_or("a structure record does not parse")?;
                named.push(Named { keyspace, rule: "P13", kind: BlockKind::DATA, pages });
            }
            (RecordKind::User, _) => {
                named.extend(pointed_pages(payload).ok_or("a user record does not parse")?);
            }
        }
        stream = &stream[end..];
    }
    Ok(named)
}

/// Checks that the media hold the pages that a record names (P13, P17).
fn check_named(view: &SimView<'_>, log: &Path, named: &Named) -> Result<(), String> {
    let Named { keyspace, rule, kind, pages } = named;
    let store: PathBuf = log.with_file_name(format!("keyspace-{:08}.spn", keyspace.0));
    if !view.files().any(|path| path == store) {
        // The keyspace was dropped before its last records left memory; replay passes over them.
        return Ok(());
    }
    for (page, generation) in pages {
        let offset = u64::from(*page) * PAGE_BYTES as u64;
        let durable = view.durable_page(&store, offset);
        let header = durable.and_then(|durable| BlockHeader::decode(durable).ok());
        let there = header.is_some_and(|header| {
            header.page.0 == *page && header.generation.0 == *generation && header.kind == *kind
        });
        if !there {
            return Err(format!(
                "{rule}: a record names page {page} of generation {generation} in {}, and the media hold {header:?}",
                store.display()
            ));
        }
    }
    Ok(())
}

fn take<'a, const N: usize>(left: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = left.split_first_chunk()?;
    *left = rest;
    Some(taken)
}

/// The pages of the large values that a structure record says were allocated. The layout is
/// TreeLine's `codec`.
fn large_pages(payload: &[u8]) -> Option<Vec<(u32, u32)>> {
    let mut left = payload.strip_prefix(&[2, 2])?;
    let mut pages = Vec::new();
    for _ in 0..u64::from_le_bytes(*take(&mut left)?) {
        let page = u32::from_le_bytes(*take(&mut left)?);
        let [order] = *take(&mut left)?;
        let generation = u32::from_le_bytes(*take(&mut left)?);
        pages.extend((0..1 << (order & 0x7f)).map(|index| (page + index, generation)));
    }
    left.is_empty().then_some(pages)
}

/// The pages of the large values that a user record points to. The layout is that of the
/// database's `record`.
fn pointed_pages(payload: &[u8]) -> Option<Vec<Named>> {
    let mut left = payload;
    let [_version] = *take(&mut left)?;
    let mut named = Vec::new();
    for _ in 0..u32::from_le_bytes(*take(&mut left)?) {
        let keyspace = KeyspaceId(u32::from_le_bytes(*take(&mut left)?));
        let [operation] = *take(&mut left)?;
        let key = usize::from(u16::from_le_bytes(*take(&mut left)?));
        let value = u32::from_le_bytes(*take(&mut left)?) as usize;
        left = left.get(key..)?;
        let (bytes, rest) = left.split_at_checked(value)?;
        left = rest;
        if operation == 3 {
            let pointer = LargePointer::decode(bytes).ok()?;
            let pages = pointer.extents.iter().flat_map(|(extent, generation)| {
                (0..extent.pages()).map(|index| (extent.page.0 + index, generation.0))
            });
            let pages = pages.collect();
            named.push(Named { keyspace, rule: "P17", kind: BlockKind::LARGE, pages });
        }
    }
    left.is_empty().then_some(named)
}

/// The pages that a record adds, with their generations; those that the replaced segments had
/// already are among them. The layout is TreeLine's `codec`.
fn added_pages(payload: &[u8]) -> Option<Vec<(u32, u32)>> {
    const MODEL_BYTES: usize = 26;

    fn page(left: &mut &[u8]) -> Option<(u32, u32)> {
        Some((u32::from_le_bytes(*take(left)?), u32::from_le_bytes(*take(left)?)))
    }

    /// Takes a list of segments.
    fn segments(left: &mut &[u8]) -> Option<Vec<(u32, u32)>> {
        let mut pages = Vec::new();
        for _ in 0..u16::from_le_bytes(*take(left)?) {
            let bound = usize::from(u16::from_le_bytes(*take(left)?));
            *left = left.get(bound..)?;
            let (base, generation) = page(left)?;
            let [order] = *take(left)?;
            if order > 0 {
                take::<MODEL_BYTES>(left)?;
            }
            pages.extend((0..1 << order).map(|index| (base + index, generation)));
            let [overflows] = *take(left)?;
            for _ in 0..overflows {
                take::<1>(left)?;
                pages.push(page(left)?);
            }
            let [staged] = *take(left)?;
            for _ in 0..staged {
                pages.push(page(left)?);
            }
        }
        Some(pages)
    }

    const REPLACE: [u8; 2] = [2, 1];
    let mut left = payload.strip_prefix(&REPLACE)?.get(8..)?;
    segments(&mut left)?;
    let added = segments(&mut left)?;
    left.is_empty().then(|| added.into_iter().filter(|(page, _)| *page != 0).collect())
}
