//! What a file holds: what readers see, what is on the media for good, and everything between.
//!
//! ```text
//!   page 7:  durable D   unsynced V1 V2   current = V2
//!   crash:   each unit (sector or page) is D, V1 or V2, as the seed says
//! ```
//!
//! **Invariants.** (1) `unsynced` holds, oldest first, every content that a page had since the last
//! sync, so the last one is the current one unless the page was dropped. (2) After a failed sync a
//! page is *dropped*: it is current and no longer unsynced, so no later sync makes it durable. A
//! dropped page that was written through the page cache is seen there, while direct reads see the
//! media. (3) Of a file in persistent memory, stores through a mapping are in [`lines`](super::lines)
//! until a fence, and what is written by calls is torn in units of 8 bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::thread::ThreadId;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::runtime::SplitMix;

use super::lines::{Lines, Store, WORD_BYTES};

/// Most contents of a page that mapped stores leave behind.
const STORED_VERSIONS: usize = 3;

pub(super) type Page = Arc<[u8; PAGE_BYTES]>;

/// How much of what is unsynced survives.
#[derive(Clone, Copy, Debug)]
pub(super) enum Survival {
    All,
    Nothing,
    /// Of every 16 units, how many survive.
    Sixteenths(usize),
}

impl Survival {
    /// Draws a style: now and then all or nothing, else few, half or most.
    pub(super) fn draw(random: &mut SplitMix) -> Survival {
        match random.below(8) {
            0 => Survival::All,
            1 => Survival::Nothing,
            2 | 3 => Survival::Sixteenths(1),
            4 | 5 => Survival::Sixteenths(8),
            _ => Survival::Sixteenths(15),
        }
    }

    pub(super) fn survives(self, random: &mut SplitMix) -> bool {
        match self {
            Survival::All => true,
            Survival::Nothing => false,
            Survival::Sixteenths(sixteenths) => random.below(16) < sixteenths,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    current: BTreeMap<u64, Page>,
    len: u64,
    durable: BTreeMap<u64, Page>,
    durable_len: u64,
    unsynced: BTreeMap<u64, Vec<Page>>,
    /// Sizes that the file had since the last sync.
    unsynced_len: Vec<u64>,
    /// Pages last written through the page cache.
    cached: BTreeSet<u64>,
    dropped: BTreeSet<u64>,
    /// Pages below the size that take no room.
    holes: BTreeSet<u64>,
    /// Whether it was mapped as persistent memory.
    is_persistent: bool,
    lines: Lines,
}

fn zeros() -> Page {
    Arc::new([0; PAGE_BYTES])
}

/// Carries out a store to persistent memory.
fn apply(pages: &mut BTreeMap<u64, Page>, (place, word): Store) {
    let at = usize::try_from(place % PAGE_BYTES as u64).expect("below a page");
    let page = pages.entry(place / PAGE_BYTES as u64).or_insert_with(zeros);
    Arc::make_mut(page)[at..at + WORD_BYTES].copy_from_slice(&word);
}

impl Inode {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// What a reader finds on page `page`.
    pub(super) fn read_page(&self, page: u64, direct: bool) -> Option<&[u8; PAGE_BYTES]> {
        let media = direct && self.dropped.contains(&page) && self.cached.contains(&page);
        let pages = if media { &self.durable } else { &self.current };
        pages.get(&page).map(|page| &**page)
    }

    /// What is on the media for good on page `page`, and nothing when that lies past the durable
    /// size.
    pub(super) fn durable_page(&self, page: u64) -> Option<&[u8; PAGE_BYTES]> {
        if (page + 1) * PAGE_BYTES as u64 > self.durable_len {
            return None;
        }
        self.durable.get(&page).map(|page| &**page)
    }

    pub(super) fn durable_len(&self) -> u64 {
        self.durable_len
    }

    /// Whether everything written to page `page` is durable.
    pub(super) fn is_synced(&self, page: u64) -> bool {
        !self.unsynced.contains_key(&page) && !self.dropped.contains(&page)
    }

    /// Bytes of room that it takes.
    pub(super) fn room(&self) -> u64 {
        self.len - (self.holes.len() * PAGE_BYTES) as u64
    }

    /// How many of these pages take no room although the file has them.
    pub(super) fn holes_in(&self, pages: Range<u64>) -> u64 {
        self.holes.range(pages).count() as u64
    }

    /// Makes a page a hole: until a sync a power loss may bring back what was there.
    pub(super) fn punch(&mut self, page: u64) {
        if (page + 1) * PAGE_BYTES as u64 > self.len || !self.holes.insert(page) {
            return;
        }
        self.unsynced.entry(page).or_default().push(zeros());
        self.current.remove(&page);
        self.dropped.remove(&page);
        self.cached.remove(&page);
    }

    pub(super) fn write_page(&mut self, page: u64, bytes: &[u8], direct: bool) {
        let mut content = [0; PAGE_BYTES];
        content.copy_from_slice(bytes);
        let content = Arc::new(content);
        self.unsynced.entry(page).or_default().push(content.clone());
        self.holes.extend(self.len.div_ceil(PAGE_BYTES as u64)..page);
        self.holes.remove(&page);
        self.current.insert(page, content);
        self.dropped.remove(&page);
        if direct {
            self.cached.remove(&page);
        } else {
            self.cached.insert(page);
        }
        self.grow((page + 1) * PAGE_BYTES as u64);
    }

    /// Stores bytes of a page through a mapping. A page is stored to often, and the disk may have
    /// caught it in any of the states between: the first ones and the last one are remembered.
    pub(super) fn store(&mut self, page: u64, at: usize, bytes: &[u8]) {
        let content = self.current.entry(page).or_insert_with(zeros);
        Arc::make_mut(content)[at..at + bytes.len()].copy_from_slice(bytes);
        let versions = self.unsynced.entry(page).or_default();
        if versions.len() >= STORED_VERSIONS {
            versions.pop();
        }
        versions.push(content.clone());
        self.holes.remove(&page);
        self.dropped.remove(&page);
        self.cached.insert(page);
    }

    /// Whether it is torn as persistent memory is, from now on.
    pub(super) fn be_persistent(&mut self, yes: bool) {
        self.is_persistent = yes;
    }

    /// Stores 8 bytes through a persistent mapping.
    pub(super) fn store_word(&mut self, store: Store) {
        let page = store.0 / PAGE_BYTES as u64;
        apply(&mut self.current, store);
        self.lines.store(store);
        self.holes.remove(&page);
        self.dropped.remove(&page);
        self.cached.insert(page);
    }

    /// Begins to write back the lines of these bytes, and answers their number.
    pub(super) fn write_back(&mut self, bytes: Range<u64>, thread: ThreadId) -> u64 {
        self.lines.write_back(bytes, thread)
    }

    /// Makes durable what this thread has begun to write back.
    pub(super) fn fence(&mut self, thread: ThreadId) {
        for store in self.lines.fence(thread) {
            apply(&mut self.durable, store);
        }
    }

    /// Lines with stores that no fence covers.
    pub(super) fn unfenced_lines(&self) -> u64 {
        self.lines.len()
    }

    pub(super) fn grow(&mut self, bytes: u64) {
        if bytes > self.len {
            self.len = bytes;
            self.unsynced_len.push(bytes);
        }
    }

    /// Cuts the file off. Until a sync a power loss may bring back what was there.
    pub(super) fn truncate(&mut self, bytes: u64) {
        if bytes >= self.len {
            return;
        }
        let (first, end) = (bytes / PAGE_BYTES as u64, self.len / PAGE_BYTES as u64);
        for page in first..end {
            // As a page of zeros, if the file grows over it again before the next sync.
            self.unsynced.entry(page).or_default().push(zeros());
            self.current.remove(&page);
            self.dropped.remove(&page);
            self.cached.remove(&page);
            self.holes.remove(&page);
        }
        self.len = bytes;
        self.unsynced_len.push(bytes);
        self.lines.cut(bytes);
    }

    pub(super) fn sync(&mut self) {
        for (page, mut versions) in std::mem::take(&mut self.unsynced) {
            if let Some(last) = versions.pop() {
                self.durable.insert(page, last);
            }
        }
        for page in self.lines.pages() {
            if let Some(content) = self.current.get(&page) {
                self.durable.insert(page, content.clone());
            }
        }
        self.lines = Lines::default();
        self.unsynced_len.clear();
        self.durable_len = self.len;
    }

    /// A sync that fails: part of what it should have written reached the media, in such units, and
    /// the rest never will.
    pub(super) fn fail_sync(&mut self, random: &mut SplitMix, unit_bytes: usize) {
        let survival = Survival::draw(random);
        let unsynced = std::mem::take(&mut self.unsynced);
        for (page, versions) in unsynced {
            let before = self.durable.get(&page).cloned().unwrap_or_else(zeros);
            let after = resolve(&before, &versions, survival, unit_bytes, random);
            self.durable.insert(page, after);
            self.dropped.insert(page);
        }
    }

    pub(super) fn flip_bit(&mut self, offset: u64, bit: u8) {
        let page = offset / PAGE_BYTES as u64;
        let at = usize::try_from(offset % PAGE_BYTES as u64).expect("below a page");
        let flip = |content: &mut Page| Arc::make_mut(content)[at] ^= 1 << (bit % 8);
        flip(self.current.entry(page).or_insert_with(zeros));
        flip(self.durable.entry(page).or_insert_with(zeros));
        self.unsynced.get_mut(&page).into_iter().flatten().for_each(flip);
    }

    pub(super) fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.len).expect("it is in memory")];
        for (page, content) in &self.current {
            let at = usize::try_from(*page).expect("it is in memory") * PAGE_BYTES;
            bytes[at..at + PAGE_BYTES].copy_from_slice(&**content);
        }
        bytes
    }

    /// The file after a power loss: all that is left is durable.
    pub(super) fn after_crash(
        &self,
        random: &mut SplitMix,
        survival: Survival,
        unit_bytes: usize,
    ) -> Inode {
        let mut pages = self.durable.clone();
        for (page, versions) in &self.unsynced {
            let before = pages.get(page).cloned().unwrap_or_else(zeros);
            // A page that was cut off or punched is no store to memory.
            let is_stored = !versions.iter().any(|content| content.iter().all(|byte| *byte == 0));
            let is_torn = self.is_persistent && unit_bytes < PAGE_BYTES;
            let unit_bytes = if is_torn && is_stored { WORD_BYTES } else { unit_bytes };
            pages.insert(*page, resolve(&before, versions, survival, unit_bytes, random));
        }
        for store in self.lines.kept(random, survival) {
            apply(&mut pages, store);
        }
        let mut len = self.durable_len;
        if survival.survives(random)
            && let Some(last) = self.unsynced_len.last()
        {
            // Mostly the newest size, sometimes one on the way to it.
            let index = random.below(2 * self.unsynced_len.len());
            len = *self.unsynced_len.get(index).unwrap_or(last);
        }
        pages.split_off(&len.div_ceil(PAGE_BYTES as u64));
        let is_hole = |page: &u64| {
            (page + 1) * PAGE_BYTES as u64 <= len
                && pages.get(page).is_none_or(|content| content.iter().all(|byte| *byte == 0))
        };
        let holes = self.holes.iter().copied().filter(is_hole).collect();
        Inode {
            current: pages.clone(),
            len,
            durable: pages,
            durable_len: len,
            holes,
            is_persistent: self.is_persistent,
            ..Inode::default()
        }
    }
}

/// What one page holds after a power loss: unit by unit what was durable or one of the unsynced
/// contents.
fn resolve(
    before: &Page,
    versions: &[Page],
    survival: Survival,
    unit_bytes: usize,
    random: &mut SplitMix,
) -> Page {
    let mut content = **before;
    for unit in (0..PAGE_BYTES).step_by(unit_bytes) {
        if !survival.survives(random) {
            continue;
        }
        // Mostly the newest content, sometimes one that it replaced before any sync.
        let newest = matches!(survival, Survival::All) || random.below(4) != 0;
        let chosen =
            if newest { versions.last() } else { versions.get(random.below(versions.len())) };
        if let Some(chosen) = chosen {
            content[unit..unit + unit_bytes].copy_from_slice(&chosen[unit..unit + unit_bytes]);
        }
    }
    Arc::new(content)
}
