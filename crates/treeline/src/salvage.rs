//! Salvage: what the pages of a store file alone tell, when index and log are lost or damaged (rule
//! P22; TreeLine, 4.7).
//!
//! ```text
//!   pages --> segments, by generation and place (origin)      --> parts of the key space, newest first --> records
//!             of the newest checkpoint, if it can be read,
//!             and of the structure records of the log, if that is whole
//! ```
//!
//! A page says which segment it belongs to and which keys that segment covers, or another page of
//! the segment says it. A *part* is a page with its overflow page and the staged pages of its
//! segment. Parts of different times cover the same keys; the newest decides which of these keys
//! there are, and with which values. The newer part is the one with the higher LSN, and of equals
//! the later production (paper, checks I and II): a segment that a crash left behind was made no
//! later than what its successors say, which were written again since. A part whose page is damaged
//! gives what its other pages hold, and the rest comes from an older part, if there is one. A page
//! whose segment is unknown is a part that decides only about its own records.
//!
//! A readable checkpoint names segments. A page that it does not name and that was written before
//! its redo LSN was freed, or never owned. If the log is whole too, all segments are known; then a
//! segment whose pages are whole loses nothing, whatever became of other pages.
//!
//! **Invariant**: every key is shown once, and nothing is shown that a newer whole part lacks.
//!
//! **Differs from the paper**: pages of freed segments are not zeroed; order in time tells them
//! apart, part by part instead of segment by segment, so an incomplete segment loses only what it
//! lacks.

mod pieces;
mod structure;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use spinney_base::{Generation, KeyspaceId, Lsn, PageNumber, Poison, Result};
use spinney_engine::covered::Covered;
use spinney_engine::{KeyspaceSalvage, LostRange, Notes, OwnedValue, SalvageFindings, Show};
use spinney_extent::{BlockHeader, BlockKind, Copies, Store, StoreOptions};
use spinney_io::{AlignedBuf, Directory};
use spinney_page::PageView;

use pieces::{Found, Part, Pieces, Role, Stray, roles};
use structure::Structure;

use crate::codec::{Segments, decode_segments};
use crate::origin::Origin;
use crate::segment::PageRef;

/// The newest checkpoint, and what came after it.
#[derive(Debug)]
struct Index {
    redo: Lsn,
    checkpoint: Segments,
    structure: Structure,
    /// Whether the structure is followed to the log's end.
    whole: bool,
}

/// A store file being salvaged. Nothing is written to it.
#[derive(Debug)]
pub struct Salvage {
    store: Store,
    copies: Copies,
    index: Option<Index>,
    redo: Option<Lsn>,
    /// Whether all segments are known.
    complete: bool,
    roles: HashMap<PageRef, Role>,
    segments: BTreeMap<Generation, Pieces>,
    strays: Vec<Stray>,
    findings: SalvageFindings,
}

impl Salvage {
    /// Opens a keyspace's file and reads its newest checkpoint.
    ///
    /// # Errors
    /// `NotFound` or `Io` when the file cannot be opened; damage is none.
    pub fn open(directory: &dyn Directory, name: &str, keyspace: KeyspaceId) -> Result<Salvage> {
        let options =
            StoreOptions { keyspace, double_write: false, poison: Arc::new(Poison::new()) };
        let (store, checkpoint) = Store::open_damaged(directory, name, options)?;
        let mut findings = SalvageFindings::default();
        let decoded = checkpoint.and_then(|(checkpoint, payload)| {
            decode_segments(&payload).map(|(segments, _)| (checkpoint, segments))
        });
        let index = match decoded {
            Ok((found, checkpoint)) => {
                let structure = Structure::new(&checkpoint, found.structure);
                Some(Index { redo: found.redo, checkpoint, structure, whole: false })
            }
            Err(error) => {
                findings.checkpoint = Some(error.to_string());
                None
            }
        };
        Ok(Salvage {
            copies: store.double_written(),
            store,
            redo: index.as_ref().map(|index| index.redo),
            index,
            complete: false,
            roles: HashMap::new(),
            segments: BTreeMap::new(),
            strays: Vec::new(),
            findings,
        })
    }

    /// Finds out which segments the index knows, and returns which pages are known to be in use.
    fn name(&mut self) -> BTreeSet<PageNumber> {
        let Some(Index { checkpoint, structure, whole, .. }) = self.index.take() else {
            return BTreeSet::new();
        };
        let now = structure.end(whole);
        self.complete = now.is_some();
        // What the checkpoint names and the log replaced may serve where its successors are
        // damaged.
        let mut owned = BTreeSet::new();
        for (segments, is_now) in [(Some(checkpoint), now.is_none()), (now, true)] {
            let segments = segments.unwrap_or_default();
            let uppers: Vec<_> =
                segments.iter().skip(1).map(|(lower, _)| Some(lower.clone())).collect();
            let uppers = uppers.into_iter().chain([None]);
            for ((lower, segment), upper) in segments.into_iter().zip(uppers) {
                let pages = roles(&segment);
                owned.extend(pages.iter().filter(|_| is_now).map(|(at, _)| at.page));
                self.roles.extend(pages);
                let pieces = Pieces::named(lower, upper, &segment, is_now);
                self.segments.insert(segment.base.generation, pieces);
            }
        }
        owned
    }

    /// Gives a page to its segment.
    fn place(&mut self, page: Stray, origin: Option<Origin<'static>>) {
        let Found { at, lsn } = page.found;
        let named = self.roles.get(&at).copied();
        if named.is_none() && lsn > Lsn::ZERO && self.redo.is_some_and(|redo| lsn < redo) {
            // It was freed.
            return;
        }
        let role = named.or_else(|| self.role(at, origin));
        let pieces = role.and_then(|role| {
            let (Role::Base(id, _) | Role::Overflow(id, _) | Role::Staged(id)) = role;
            self.segments.get_mut(&id).map(|pieces| (role, pieces))
        });
        let Some((role, pieces)) = pieces else {
            if !page.upper.is_empty() {
                self.strays.push(page);
            }
            return;
        };
        if named.is_none() && lsn == Lsn::ZERO && pieces.named {
            // Of a keyspace without a log: made since the checkpoint, or left behind by a crash,
            // and then older than the other pages. Without it there is what the checkpoint
            // promises, for such pages take nothing out of others.
            return;
        }
        let newer = |old: &Found| named.is_some() || (old.lsn, old.at) < (lsn, at);
        match role {
            Role::Base(_, index) if named.is_some() => _ = pieces.bases.insert(index, page.found),
            Role::Base(_, index) => _ = pieces.bases.entry(index).or_insert(page.found),
            Role::Overflow(_, index) => {
                // Of two, one was left behind by a crash.
                if pieces.overflows.get(&index).is_none_or(newer) {
                    pieces.overflows.insert(index, page.found);
                }
            }
            Role::Staged(_) => _ = pieces.staged.insert(at.generation, page.found),
        }
    }

    /// What a page is that no index names, from what it says of itself.
    fn role(&mut self, at: PageRef, origin: Option<Origin<'static>>) -> Option<Role> {
        let Some(origin) = origin else {
            // Another page of its extent may have said it.
            let pieces = self.segments.get(&at.generation)?;
            return Some(Role::Base(at.generation, pieces.index_in_extent(at)));
        };
        let id = origin.overflow_of.unwrap_or(at.generation);
        if let Some(bounds) = origin.bounds {
            self.segments.entry(id).or_insert_with(|| Pieces {
                lower: bounds.lower.into_owned(),
                upper: bounds.upper.map(std::borrow::Cow::into_owned),
                order: origin.order,
                model: bounds.model,
                ..Pieces::default()
            });
        }
        Some(match origin.overflow_of {
            Some(_) if origin.staged => Role::Staged(id),
            Some(_) => Role::Overflow(id, usize::from(origin.index)),
            None => Role::Base(id, usize::from(origin.index)),
        })
    }

    /// All parts, newest first.
    fn parts(&self) -> Vec<Part> {
        let mut parts = self.strays.iter().map(Part::from).collect();
        self.segments.iter().for_each(|(id, pieces)| pieces.parts(*id, &mut parts));
        parts.sort_unstable_by_key(|part| std::cmp::Reverse(self.age(part)));
        parts
    }

    /// Age of a part: the greater, the newer. A part that is known to be in use comes before all
    /// others. So does, in a keyspace without a log, a part that the checkpoint names: its pages
    /// bear no LSN, and a part that a crash left behind may be of a later production than pages
    /// that are still written in place.
    fn age(&self, part: &Part) -> (bool, Lsn, Generation) {
        let in_use = part.named && (self.complete || part.lsn == Lsn::ZERO);
        (in_use, part.lsn, part.segment)
    }

    /// The records of a part, and whether all of its pages could be read.
    fn read(&self, part: &Part) -> (BTreeMap<Vec<u8>, OwnedValue>, bool) {
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
                    records.insert(key, OwnedValue::from(view.value(index)));
                }
            }
        }
        (records, whole)
    }
}

/// The same keys in as few ranges as there can be, in order.
fn joined(mut ranges: Vec<LostRange>) -> Vec<LostRange> {
    ranges.sort_unstable_by(|one, other| one.lower.cmp(&other.lower));
    let mut joined: Vec<LostRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.upper.as_ref().is_none_or(|upper| range.lower <= *upper) => {
                let longer = range
                    .upper
                    .as_ref()
                    .is_none_or(|new| last.upper.as_ref().is_some_and(|upper| upper < new));
                if longer {
                    last.upper = range.upper;
                }
            }
            _ => joined.push(range),
        }
    }
    joined
}

impl KeyspaceSalvage for Salvage {
    fn follow(&mut self, payload: &[u8]) {
        if let Some(index) = &mut self.index {
            index.structure.follow(payload);
        }
    }

    fn end_of_log(&mut self, first: Lsn, last: Lsn) {
        if let Some(index) = &mut self.index {
            // A keyspace that rested did not hold the log. What that was trimmed of is in the
            // checkpoint, if this is known to be the newest (P28).
            let begins = index.redo.next() >= first || !self.store.is_unproven();
            index.whole = begins && index.redo <= last;
        }
    }

    fn read_pages(&mut self) -> Result<()> {
        let owned = self.name();
        let mut whole: Vec<(Stray, Option<Origin<'static>>)> = Vec::new();
        let mut notes = Notes::default();
        let copies = &self.copies;
        let has_checkpoint = self.redo.is_some();
        self.store.show_blocks(|page, header, block| {
            let read = |header: BlockHeader, block: &[u8; 4096]| {
                let view = PageView::parse(block)?;
                let at = PageRef { page, generation: header.generation };
                let origin = Origin::decode(view.origin(), view.prefix());
                let found = Found { at, lsn: header.lsn };
                let (mut lower, mut upper) = (Vec::new(), Vec::new());
                let told = origin.as_ref().is_some_and(|origin| origin.bounds.is_some());
                if !told && !view.is_empty() {
                    lower = view.key(0);
                    upper = [view.key(view.len() - 1), vec![0]].concat();
                }
                Ok((Stray { found, lower, upper }, origin))
            };
            let found = match header {
                Ok(header) if BlockKind::DATA.reads(header.kind) => {
                    let page = block.first_chunk().expect("data pages are blocks of one page");
                    read(header, page)
                }
                Ok(_) => return,
                Err(damage) => match copies.get(&page) {
                    Some((header, copy)) => read(*header, copy),
                    None => Err(damage),
                },
            };
            match found {
                Ok(found) => whole.push(found),
                Err(damage) => {
                    // A page without an owner may hold anything. A page of zeros was never written
                    // or was given back since the checkpoint; if neither holds, its range is
                    // reported as lost.
                    let matters = owned.contains(&page) || !has_checkpoint;
                    if matters && damage.is_of_written(block) {
                        notes.damaged(page, &damage);
                    }
                }
            }
        })?;
        notes.tell(&self.store, &mut self.findings);
        // Pages without bounds are placed by those that have some.
        let (told, untold): (Vec<_>, Vec<_>) = whole
            .into_iter()
            .partition(|(_, origin)| origin.as_ref().is_some_and(|origin| origin.bounds.is_some()));
        for (page, origin) in told.into_iter().chain(untold) {
            self.place(page, origin);
        }
        Ok(())
    }

    fn records(&mut self, show: &mut Show<'_>) -> Result<()> {
        let parts = self.parts();
        let mut covered = Covered::default();
        let mut shown: BTreeSet<Vec<u8>> = BTreeSet::new();
        let mut older = Vec::new();
        // Of a page that is not in use nothing is missing.
        let may_be_missed = |part: &&Part| !part.whole && (part.named || !self.complete);
        let missing: Vec<&Part> = parts.iter().filter(may_be_missed).collect();
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
                show(&self.store, &key, Some(value.as_value()))?;
                if !whole {
                    shown.insert(key);
                }
            }
            if whole {
                let redo = self.redo.unwrap_or_default();
                for gone in &missing {
                    let later = self.age(gone) > self.age(part) || gone.named && part.lsn < redo;
                    let ranges =
                        free.iter().filter_map(|range| later.then(|| meet(range, gone))?);
                    older.extend(ranges);
                }
                covered.add(part.lower.clone(), part.upper.clone());
            }
        }
        // Where nothing tells which pages there were, nothing tells that there were no more.
        self.findings.lost = covered.free(&[], None);
        self.findings.older = joined(older);
        Ok(())
    }

    fn redo(&self) -> Option<Lsn> {
        self.redo
    }

    fn findings(&self) -> &SalvageFindings {
        &self.findings
    }

    fn store(&self) -> &Store {
        &self.store
    }
}

/// What a range and a missing part have in common.
fn meet(range: &LostRange, gone: &Part) -> Option<LostRange> {
    let met = range.span().meet(&gone.lower, gone.upper.as_deref())?;
    // How far the share of a stray page goes is unknown.
    Some(if gone.stray { range.clone() } else { met.to_range() })
}
