//! All leaves of a file, for when no root can be read.
//!
//! ```text
//!   file    [ants..cab: 3] [bee..dog: 7] [cab..dog: 2] ...     bounds, and how old a leaf is
//!   keys     ants      bee          dog
//!            |-- of 3 --|--- of 7 ---|                         the newest decides a range
//! ```
//!
//! Leaves of all times lie in a file until their places are used again. A leaf says which keys it is for, so it decides
//! that those of them that it does not have were removed. All leaves of a root together are for all keys, and
//! what is newer than the root is newer than the checkpoint.
//!
//! **Newer and older.** The LSN of a leaf is that of the log when it was written, so of one that was written later it is
//! no lower; of equals the later allocation counts. The order fails where a crash took records from the log whose
//! leaf had been written: later ones have their LSNs again. Then the allocations tell otherwise, and the
//! report names the range as one that may be older. So is everything where a page is damaged: it may have
//! been the newest leaf of any range.
//!
//! **Images.** Records of the newest image that is whole lie above leaves that are older than it. A leaf that was
//! written later may lack some of them, or be newer than they are: the leaf counts, and its range is named as one that
//! may be older. So is everything where a newer image is not whole.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use spinney_access::{Place, RootReader, is_leaf, parse};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, Lsn, Result, ValueRef};
use spinney_engine::covered::Covered;
use spinney_engine::{LostRange, Notes, SalvageFindings, Show, Span};
use spinney_extent::Store;

use crate::run::IMAGE;
use crate::salvage::images::FoundImages;

/// A leaf that was found.
#[derive(Debug)]
struct Found {
    lsn: Lsn,
    place: Place,
    /// Binary logarithm of the 4 KiB pages that it takes.
    order: u8,
    range: LostRange,
}

/// The leaves of a file.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    /// The newest first.
    found: Vec<Found>,
    images: FoundImages,
    has_damage: bool,
}

/// Ranges that are lost, and ranges whose records may be older ones.
type Doubtful = (Vec<LostRange>, Vec<LostRange>);

impl Leaves {
    /// Reads the whole file.
    ///
    /// # Errors
    /// `Io` when its length cannot be read.
    pub(super) fn find(&mut self, store: &Store, findings: &mut SalvageFindings) -> Result<()> {
        let mut notes = Notes::default();
        store.show_blocks(|page, header, block| {
            let header = match header {
                Ok(header) => header,
                Err(damage) if damage.is_of_written(block) => {
                    self.has_damage = true;
                    return notes.damaged(page, &damage);
                }
                Err(_) => return,
            };
            if IMAGE.reads(header.kind) {
                if let Ok(block) = block.try_into() {
                    self.images.note(page, &header, block);
                }
                return;
            }
            if !is_leaf(&header) {
                return;
            }
            let place = Place { page, generation: header.generation };
            match parse(store, block, (place, 0)) {
                Ok(leaf) => {
                    let range = LostRange { lower: leaf.image.lower, upper: leaf.image.upper };
                    let pages = (block.len() / PAGE_BYTES).ilog2();
                    let order = u8::try_from(pages).expect("blocks are short");
                    self.found.push(Found { lsn: header.lsn, place, order, range });
                }
                Err(error) => {
                    self.has_damage = true;
                    let (file, offset) = (store.path().to_owned(), page.offset());
                    let damaged = spinney_engine::DamagedPage::new(file, offset, error.to_string());
                    findings.damaged.push(damaged);
                }
            }
        })?;
        self.found.sort_unstable_by_key(|leaf| Reverse((leaf.lsn, leaf.place.generation)));
        notes.tell(store, findings);
        Ok(())
    }

    /// Shows the records of the newest leaf of each range.
    ///
    /// # Errors
    /// Errors of `show`.
    pub(super) fn show(&self, store: &Arc<Store>, show: &mut Show<'_>) -> Result<Doubtful> {
        let (mut covered, mut decided) = (Covered::default(), Decided::default());
        let mut notes = Notes::default();
        for leaf in &self.found {
            let Span { lower, upper } = leaf.range.span();
            decided.each_older(leaf, |range| notes.older(range));
            let free = covered.free(lower, upper);
            if free.is_empty() {
                continue;
            }
            let page = match RootReader::new(store.clone(), leaf.order).read(leaf.place, 0) {
                Ok(page) => page,
                // It was sound a moment ago. Older ones may serve.
                Err(_) => {
                    notes.older(leaf.range.clone());
                    continue;
                }
            };
            for index in 0..page.image.records.len() {
                let (key, bytes, large) = page.record(index);
                if !covered.contains(key) {
                    show(store, key, Some(ValueRef { bytes, large }))?;
                }
            }
            free.into_iter().for_each(|part| decided.add(part, leaf));
            covered.add(lower.to_vec(), upper.map(<[u8]>::to_vec));
        }
        self.images.show_newest(store, show, &mut |key, moment| {
            let later = decided.later(key, moment);
            later.into_iter().map(|range| notes.older(range)).count() > 0
        })?;
        if self.has_damage || !self.images.is_newest_whole() {
            notes.older(Span::ALL.to_range());
        }
        let mut findings = SalvageFindings::default();
        notes.tell(store, &mut findings);
        Ok((covered.free(&[], None), findings.older))
    }
}

/// Which leaf has decided which keys.
#[derive(Debug, Default)]
struct Decided(BTreeMap<Vec<u8>, By>);

/// Upper bound of what a leaf has decided, and how old the leaf is.
type By = (Option<Vec<u8>>, Lsn, Generation);

impl Decided {
    /// Returns the range around a key that a leaf has decided which was written after this moment.
    fn later(&self, key: &[u8], (lsn, generation): (Lsn, Generation)) -> Option<LostRange> {
        let (lower, (upper, of_leaf, allocated)) =
            self.0.range::<[u8], _>((Unbounded, Included(key))).next_back()?;
        let is_inside = upper.as_ref().is_none_or(|upper| key < &upper[..]);
        let is_later = (*of_leaf, *allocated) > (lsn, generation);
        (is_inside && is_later).then(|| LostRange { lower: lower.clone(), upper: upper.clone() })
    }

    fn add(&mut self, part: LostRange, leaf: &Found) {
        self.0.insert(part.lower, (part.upper, leaf.lsn, leaf.place.generation));
    }

    /// Calls `see` with what of this leaf's keys was decided by one of a greater LSN that was allocated earlier.
    fn each_older(&self, leaf: &Found, mut see: impl FnMut(LostRange)) {
        let Span { lower, upper } = leaf.range.span();
        let before = self.0.range::<[u8], _>((Unbounded, Included(lower))).next_back();
        let behind = self.0.range::<[u8], _>((Excluded(lower), Unbounded));
        let of_leaf = before.into_iter().chain(behind);
        for (start, (end, lsn, generation)) in
            of_leaf.take_while(|(start, _)| upper.is_none_or(|upper| &start[..] < upper))
        {
            let is_doubtful = *lsn > leaf.lsn && *generation < leaf.place.generation;
            if let Some(met) = leaf.range.span().meet(start, end.as_deref())
                && is_doubtful
            {
                see(met.to_range());
            }
        }
    }
}
