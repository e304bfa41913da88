//! Salvage: what the pages of a store file alone tell, when index and log are lost or damaged (rule
//! P22; TreeLine, 4.7).
//!
//! ```text
//!   pages --> segments, by generation and place (origin)      --> parts of the key space, newest first --> records
//!             of the newest checkpoint, if it can be read
//! ```
//!
//! Every page says of which segment it is and which part of the keys is its own. A *part* is a page with its overflow page
//! and the staged pages of its segment. Parts of different times cover the same keys; the newest
//! decides what these are and that others are not there. Newer is what has the higher LSN, and of
//! equals the later production (paper, checks I and II): a segment that a crash left behind was made no later
//! than what its successors say, which were written again since. A part whose page is damaged gives what its other
//! pages hold, and the rest comes from an older part, if there is one.
//!
//! A checkpoint that can be read names segments; a page that it does not name and that was written
//! before its redo LSN was freed, or never owned.
//!
//! **Invariant**: every key is shown once, and nothing is shown that a newer whole part lacks.
//!
//! **Differs from the paper**: pages of freed segments are not zeroed; order in time tells them
//! apart, part by part instead of segment by segment, so an incomplete segment loses only what it lacks.

mod covered;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use spinney_base::{
    Error, ErrorKind, Generation, KeyspaceId, Lsn, PageNumber, Poison, Result, ValueRef,
};
use spinney_engine::DamagedPage;
use spinney_extent::header::Damage;
use spinney_extent::{BlockHeader, BlockKind, Copies, LargePointer, Store, StoreOptions};
use spinney_io::{AlignedBuf, Disk};
use spinney_page::PageView;
use xxhash_rust::xxh3::Xxh3;

use covered::Covered;

use crate::codec::decode_segments;
use crate::model::Model;
use crate::origin::Origin;
use crate::segment::PageRef;

/// Keys from one on and before another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The first key.
    pub lower: Vec<u8>,
    /// The first key behind it; `None` for no end.
    pub upper: Option<Vec<u8>>,
}

/// What a salvage of one file met beside records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageFindings {
    /// Data pages that are whole.
    pub pages: u64,
    /// Why the newest checkpoint cannot be read, if it cannot.
    pub checkpoint: Option<String>,
    /// Pages that are damaged and may have held records. Which range an overflow page is for only a
    /// checkpoint tells; without one, records of such a page are lost from any range.
    pub damaged: Vec<DamagedPage>,
    /// Ranges whose pages are gone: their records, if there were any, are lost.
    pub lost: Vec<LostRange>,
    /// Ranges whose newest pages are gone: their records are older ones.
    pub older: Vec<LostRange>,
}

/// A page that was found.
#[derive(Clone, Copy, Debug)]
struct Found {
    at: PageRef,
    lsn: Lsn,
}

#[derive(Debug, Default)]
struct Pieces {
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    order: u8,
    model: Option<Model>,
    bases: BTreeMap<usize, Found>,
    overflows: BTreeMap<usize, Found>,
    /// By generation, oldest first.
    staged: BTreeMap<Generation, Found>,
    named: bool,
    /// Overflow pages and staged pages that the checkpoint names.
    expected: BTreeSet<Extra>,
}

/// A page beside those of the extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Extra {
    Overflow(usize),
    Staged(Generation),
}

impl Pieces {
    /// Whether the pages beside page `index` are there, as far as it is known which there are.
    fn has_all(&self, index: usize) -> bool {
        self.expected.iter().all(|extra| match extra {
            Extra::Overflow(of) => *of != index || self.overflows.contains_key(of),
            Extra::Staged(generation) => self.staged.contains_key(generation),
        })
    }
}

/// What a page of the checkpoint is.
#[derive(Clone, Copy, Debug)]
enum Role {
    Base(Generation, usize),
    Overflow(Generation, usize),
    Staged(Generation),
}

/// One page's share of the keys, with all pages that tell of it.
#[derive(Debug)]
struct Part {
    lsn: Lsn,
    segment: Generation,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    /// Oldest first; the page itself is among them if `whole`.
    pages: Vec<PageRef>,
    whole: bool,
    named: bool,
}

/// A store file being salvaged. Nothing is written to it.
#[derive(Debug)]
pub struct Salvage {
    store: Store,
    copies: Copies,
    redo: Option<Lsn>,
    named: HashMap<(PageNumber, Generation), Role>,
    segments: BTreeMap<Generation, Pieces>,
    /// Pages that do not say where they belong.
    strays: Vec<Found>,
    findings: SalvageFindings,
}

impl Salvage {
    /// Reads all pages of a keyspace's file.
    ///
    /// # Errors
    /// `NotFound` or `Io` when the file cannot be opened; damage is none.
    pub fn open(disk: &dyn Disk, path: &Path, keyspace: KeyspaceId) -> Result<Salvage> {
        let options =
            StoreOptions { keyspace, double_write: false, poison: Arc::new(Poison::new()) };
        let (store, checkpoint) = Store::open_damaged(disk, path, options)?;
        let mut salvage = Salvage {
            copies: store.double_written(),
            store,
            redo: None,
            named: HashMap::new(),
            segments: BTreeMap::new(),
            strays: Vec::new(),
            findings: SalvageFindings::default(),
        };
        let decoded = checkpoint.and_then(|(checkpoint, payload)| {
            decode_segments(&payload).map(|(segments, _)| (checkpoint.redo, segments))
        });
        match decoded {
            Ok((redo, segments)) => salvage.name(redo, segments),
            Err(error) => salvage.findings.checkpoint = Some(error.to_string()),
        }
        salvage.sort_pages()?;
        Ok(salvage)
    }

    /// Records of the log above this LSN are newer than the checkpoint, if that could be read.
    #[must_use]
    pub fn redo(&self) -> Option<Lsn> {
        self.redo
    }

    /// What was met so far; ranges are known once the records were shown.
    #[must_use]
    pub fn findings(&self) -> &SalvageFindings {
        &self.findings
    }

    fn name(&mut self, redo: Lsn, segments: Vec<(Vec<u8>, crate::segment::Segment)>) {
        self.redo = Some(redo);
        let uppers: Vec<_> =
            segments.iter().skip(1).map(|(lower, _)| Some(lower.clone())).chain([None]).collect();
        for ((lower, segment), upper) in segments.into_iter().zip(uppers) {
            let id = segment.base.generation;
            let mut expected = BTreeSet::new();
            for index in 0..segment.base_pages() {
                let page = segment.base_page(index);
                self.named.insert((page.page, id), Role::Base(id, index));
                if let Some(over) = segment.overflow(index) {
                    self.named.insert((over.page, over.generation), Role::Overflow(id, index));
                    expected.insert(Extra::Overflow(index));
                }
            }
            for staged in &segment.staged {
                self.named.insert((staged.page, staged.generation), Role::Staged(id));
                expected.insert(Extra::Staged(staged.generation));
            }
            let (order, model) = (segment.order, segment.model);
            let pieces =
                Pieces { lower, upper, order, model, named: true, expected, ..Pieces::default() };
            self.segments.insert(id, pieces);
        }
    }

    /// Finds out what every page is.
    fn sort_pages(&mut self) -> Result<()> {
        let owned: BTreeSet<PageNumber> = self.named.keys().map(|(page, _)| *page).collect();
        let mut whole: Vec<(Found, Option<Origin<'static>>)> = Vec::new();
        let mut damaged: Vec<(PageNumber, Damage)> = Vec::new();
        let copies = &self.copies;
        let has_checkpoint = self.redo.is_some();
        self.store.show_blocks(|page, header, block| {
            let read = |header: BlockHeader, block: &[u8; 4096]| {
                let view = PageView::parse(block)?;
                let at = PageRef { page, generation: header.generation };
                let origin = Origin::decode(view.origin(), view.prefix());
                Ok((Found { at, lsn: header.lsn }, origin))
            };
            let found = match header {
                Ok(header) if header.kind == BlockKind::Data => read(header, block),
                Ok(_) => return,
                Err(damage) => match copies.get(&page) {
                    Some((header, copy)) => read(*header, copy),
                    None => Err(damage),
                },
            };
            match found {
                Ok(found) => whole.push(found),
                Err(damage) => {
                    // What nobody owned may be anything. A page of zeros was never written or was
                    // given back since the checkpoint; if it was not, its range is told as lost.
                    let unreadable = damage.expected.starts_with("a page");
                    let written = unreadable || block.iter().any(|byte| *byte != 0);
                    if written && (owned.contains(&page) || !has_checkpoint) {
                        damaged.push((page, damage));
                    }
                }
            }
        })?;
        self.findings.pages = whole.len() as u64;
        for (page, damage) in damaged {
            let (file, offset) = (self.store.path().to_owned(), page.offset());
            let what = format!("expected {}, found {}", damage.expected, damage.found);
            self.findings.damaged.push(DamagedPage { file, offset, what });
        }
        whole.into_iter().for_each(|(found, origin)| self.place(found, origin));
        Ok(())
    }

    /// Gives a page to its segment.
    fn place(&mut self, found: Found, origin: Option<Origin<'static>>) {
        let Found { at, lsn } = found;
        let role = self.named.get(&(at.page, at.generation)).copied();
        let freed = lsn > Lsn::ZERO && self.redo.is_some_and(|redo| lsn < redo);
        let role = match (role, origin) {
            (Some(role), _) => role,
            (None, _) if freed => return,
            (None, None) => return self.strays.push(found),
            (None, Some(origin)) => {
                let id = origin.overflow_of.unwrap_or(at.generation);
                let index = usize::from(origin.index);
                let role = match origin.overflow_of {
                    Some(_) if origin.staged => Role::Staged(id),
                    Some(_) => Role::Overflow(id, index),
                    None => Role::Base(id, index),
                };
                self.segments.entry(id).or_insert_with(|| Pieces {
                    lower: origin.lower.into_owned(),
                    upper: origin.upper.map(std::borrow::Cow::into_owned),
                    order: origin.order,
                    model: origin.model,
                    ..Pieces::default()
                });
                role
            }
        };
        let is_named = self.named.contains_key(&(at.page, at.generation));
        let (Role::Base(id, _) | Role::Overflow(id, _) | Role::Staged(id)) = role;
        let Some(pieces) = self.segments.get_mut(&id) else { return };
        let newer = |old: &Found| is_named || (old.lsn, old.at) < (lsn, at);
        match role {
            Role::Base(_, index) => _ = pieces.bases.insert(index, found),
            Role::Overflow(_, index) => {
                // Of two, one was left behind by a crash.
                if pieces.overflows.get(&index).is_none_or(newer) {
                    pieces.overflows.insert(index, found);
                }
            }
            Role::Staged(_) => _ = pieces.staged.insert(at.generation, found),
        }
    }

    /// All parts, newest first.
    fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        for (id, pieces) in &self.segments {
            let count = 1_u32 << pieces.order;
            let first_key = |index: u32| match (&pieces.model, index) {
                (_, 0) => Some(pieces.lower.clone()),
                (Some(model), _) if index < count => model.first_key(&pieces.lower, index, count),
                _ => None,
            };
            let within = |key: &Vec<u8>| pieces.upper.as_ref().is_none_or(|upper| key < upper);
            for index in 0..count {
                let Some(lower) = first_key(index).filter(within) else { continue };
                let upper = (index + 1..count).find_map(first_key).filter(within);
                let upper = upper.or_else(|| pieces.upper.clone());
                if upper.as_ref().is_some_and(|upper| *upper <= lower) {
                    continue;
                }
                let at = index as usize;
                let base = pieces.bases.get(&at);
                let own = pieces.overflows.get(&at).into_iter().chain(base);
                let pages: Vec<Found> = own.chain(pieces.staged.values()).copied().collect();
                parts.push(Part {
                    lsn: pages.iter().map(|found| found.lsn).max().unwrap_or_default(),
                    segment: *id,
                    lower,
                    upper,
                    pages: pages.into_iter().map(|found| found.at).collect(),
                    whole: base.is_some() && pieces.has_all(at),
                    named: pieces.named,
                });
            }
        }
        parts.sort_unstable_by_key(|part| std::cmp::Reverse((part.lsn, part.segment)));
        parts
    }

    /// Shows every record that can be saved, once, in no order; a large value by the pointer to it.
    ///
    /// # Errors
    /// What `show` answers, which ends it.
    pub fn records(
        &mut self,
        show: &mut dyn FnMut(&[u8], ValueRef<'_>) -> Result<()>,
    ) -> Result<()> {
        let parts = self.parts();
        let mut covered = Covered::default();
        let mut shown: BTreeSet<Vec<u8>> = BTreeSet::new();
        let mut older = Vec::new();
        let missing: Vec<&Part> = parts.iter().filter(|part| !part.whole).collect();
        for part in &parts {
            let free = covered.free(&part.lower, part.upper.as_deref());
            if free.is_empty() {
                continue;
            }
            let (records, whole) = self.read(part);
            for (key, value) in records {
                if covered.contains(&key) || shown.contains(&key) {
                    continue;
                }
                show(&key, value.as_ref())?;
                if !whole {
                    shown.insert(key);
                }
            }
            if whole {
                let redo = self.redo.unwrap_or_default();
                for gone in &missing {
                    let later = (gone.lsn, gone.segment) > (part.lsn, part.segment)
                        || gone.named && part.lsn < redo;
                    let ranges =
                        free.iter().filter_map(|range| later.then(|| meet(range, gone))?);
                    older.extend(ranges);
                }
                covered.add(part.lower.clone(), part.upper.clone());
            }
        }
        self.show_strays(&covered, &shown, show)?;
        let empty = parts.is_empty();
        self.findings.lost = if empty { Vec::new() } else { covered.free(&[], None) };
        self.findings.older = older;
        Ok(())
    }

    /// The records of a part, and whether all of its pages could be read.
    fn read(&self, part: &Part) -> (BTreeMap<Vec<u8>, OwnedRecord>, bool) {
        let mut records = BTreeMap::new();
        let mut whole = part.whole;
        let mut buf = AlignedBuf::new(1);
        for page in &part.pages {
            let block = buf.page_mut(0);
            let read = self.store.read_salvaged(page.page, page.generation, &self.copies, block);
            let Some(view) = PageView::parse(block).ok().filter(|_| read) else {
                whole = false;
                continue;
            };
            for index in 0..view.len() {
                let key = view.key(index);
                let below = part.upper.as_ref().is_none_or(|upper| key < *upper);
                if below && key >= part.lower {
                    records.insert(key, OwnedRecord::from(view.value(index)));
                }
            }
        }
        (records, whole)
    }

    /// Pages of unknown segments have what nobody else has.
    fn show_strays(
        &self,
        covered: &Covered,
        shown: &BTreeSet<Vec<u8>>,
        show: &mut dyn FnMut(&[u8], ValueRef<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut strays = self.strays.clone();
        strays.sort_unstable_by_key(|found| (found.lsn, found.at.generation));
        let mut records: BTreeMap<Vec<u8>, OwnedRecord> = BTreeMap::new();
        let mut buf = AlignedBuf::new(1);
        for Found { at, .. } in strays {
            let block = buf.page_mut(0);
            if !self.store.read_salvaged(at.page, at.generation, &self.copies, block) {
                continue;
            }
            let Ok(view) = PageView::parse(block) else { continue };
            for index in 0..view.len() {
                let key = view.key(index);
                if !covered.contains(&key) && !shown.contains(&key) {
                    records.insert(key, OwnedRecord::from(view.value(index)));
                }
            }
        }
        records.iter().try_for_each(|(key, value)| show(key, value.as_ref()))
    }

    /// Reads a large value.
    ///
    /// # Errors
    /// `Corruption` when it is not there whole; `Io`.
    pub fn large(&self, pointer: &[u8]) -> Result<Vec<u8>> {
        let path = self.store.path();
        let pointer = LargePointer::decode(pointer).map_err(|damage| {
            let found = format!("{} instead of {}", damage.found, damage.expected);
            Error::new(ErrorKind::Corruption, format!("{}: {found}", path.display()))
        })?;
        let mut value = Vec::new();
        while (value.len() as u64) < pointer.length {
            self.store.read_large(&pointer, value.len() as u64, &mut value)?;
        }
        let mut hasher = Xxh3::new();
        hasher.update(&value);
        if hasher.digest() != pointer.hash {
            let message = format!("{}: a large value has another hash", path.display());
            return Err(Error::new(ErrorKind::Corruption, message));
        }
        Ok(value)
    }
}

/// A value that was read.
#[derive(Debug)]
struct OwnedRecord {
    bytes: Vec<u8>,
    large: bool,
}

impl From<ValueRef<'_>> for OwnedRecord {
    fn from(value: ValueRef<'_>) -> Self {
        OwnedRecord { bytes: value.bytes.to_vec(), large: value.large }
    }
}

impl OwnedRecord {
    fn as_ref(&self) -> ValueRef<'_> {
        ValueRef { bytes: &self.bytes, large: self.large }
    }
}

/// What a range and a missing part have in common.
fn meet(range: &LostRange, gone: &Part) -> Option<LostRange> {
    let lower = range.lower.clone().max(gone.lower.clone());
    let upper = match (&range.upper, &gone.upper) {
        (Some(one), Some(other)) => Some(one.min(other).clone()),
        (one, other) => one.clone().or_else(|| other.clone()),
    };
    let some = upper.as_ref().is_none_or(|upper| lower < *upper);
    some.then_some(LostRange { lower, upper })
}
