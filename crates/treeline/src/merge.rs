//! How dirty records change the pages that they belong to, and how the records of pages and cache
//! are merged: pure decisions, carried out by [`write_back`](crate::write_back) and
//! [`reorganize`](crate::reorganize).
//!
//! **Invariant**: a record moves between pages only into *new* pages, those of a reorganization.
//! Pages edited in place ([`Edit`]) only gain, lose or change dirty records, so if one of two
//! in-place writes is lost in a crash, replaying the log onto the other still gives the newest
//! versions, and a record that is not in the log any more is never between two pages.
//!
//! Because of that a key may be in the base and, older, in the overflow page: the base wins, and
//! whatever changes the base takes the key out of the overflow page.

use std::ops::Range;

use spinney_base::ValueRef;
use spinney_base::limits::PAGE_BYTES;
use spinney_io::{BufferPool, Lent};
use spinney_page::{PageEditor, PageView, Put};

use crate::origin::Origin;
use crate::policy;
use crate::segment::Located;

/// One dirty record: a key and its new value, or `None` if it was removed.
pub(crate) type Dirty<'a> = (&'a [u8], Option<ValueRef<'a>>);

/// A page of a segment and its overflow page, read and parsed.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a> {
    /// `None` for a segment that has no page yet.
    pub(crate) base: Option<&'a [u8; PAGE_BYTES]>,
    pub(crate) overflow: Option<&'a [u8; PAGE_BYTES]>,
}

/// Bytes that slots, records, origin and prefix may use in one page.
pub(crate) const CAPACITY: usize = PAGE_BYTES - spinney_page::layout::SLOTS_BEGIN;

/// What to rewrite of a page and its overflow page, unsealed.
#[derive(Debug)]
pub(crate) struct Edit<'p> {
    pub(crate) base: Option<Lent<'p>>,
    pub(crate) overflow: Option<Lent<'p>>,
    /// Becomes an overflow page that was not there before.
    pub(crate) new_overflow: Option<Lent<'p>>,
    /// Whether the segment would now do with less.
    pub(crate) may_shrink: bool,
    /// How many of the dirty records have keys that were not there.
    pub(crate) inserted: usize,
}

/// Applies the dirty records of page `index` of a segment to that page and its overflow page.
/// `dirty` ascends by key, each key once. `None` when there is no room, or no page yet.
pub(crate) fn edit_in_place<'p>(
    pool: &'p BufferPool,
    located: &Located,
    index: usize,
    pages: Pages<'_>,
    dirty: &[Dirty<'_>],
) -> Option<Edit<'p>> {
    let base = pages.base?;
    let mut new_base = pool.lend(1);
    new_base.page_mut(0).copy_from_slice(base);
    let mut second = pool.lend(1);
    match pages.overflow {
        Some(overflow) => second.page_mut(0).copy_from_slice(overflow),
        None => format_overflow(second.page_mut(0), located, index),
    }
    let (mut base_changed, mut second_changed) = (false, false);
    let mut inserted = 0;
    {
        let mut base_editor = PageEditor::edit(new_base.page_mut(0));
        let mut second_editor = PageEditor::edit(second.page_mut(0));
        for (key, value) in dirty {
            let Some(value) = value else {
                base_changed |= base_editor.remove(key);
                second_changed |= second_editor.remove(key);
                continue;
            };
            let in_base = base_editor.contains(key);
            let in_second = second_editor.contains(key);
            inserted += usize::from(!in_base && !in_second);
            if in_base || !in_second {
                match base_editor.put(key, *value) {
                    Put::Done => {
                        base_changed = true;
                        second_changed |= in_second && second_editor.remove(key);
                        continue;
                    }
                    // Growing it elsewhere would move it.
                    Put::Full if in_base => return None,
                    Put::Full => {}
                }
            }
            if second_editor.put(key, *value) == Put::Full {
                return None;
            }
            second_changed = true;
        }
    }
    let may_shrink = may_shrink(pages, new_base.page(0), second.page(0));
    let base = base_changed.then_some(new_base);
    let second = second_changed.then_some(second);
    let (overflow, new_overflow) =
        if pages.overflow.is_some() { (second, None) } else { (None, second) };
    Some(Edit { base, overflow, new_overflow, may_shrink, inserted })
}

fn format_overflow(page: &mut [u8; PAGE_BYTES], located: &Located, index: usize) {
    drop(PageEditor::format(page, located.prefix(), &Origin::beside(located, index, false)));
}

/// Whether an overflow page became needless, or a page's records have become fewer by a step.
fn may_shrink(
    old: Pages<'_>,
    new_base: &[u8; PAGE_BYTES],
    new_overflow: &[u8; PAGE_BYTES],
) -> bool {
    let now = used_bytes(new_base);
    if old.overflow.is_some() {
        return policy::is_overflow_needless(now + used_bytes(new_overflow), CAPACITY);
    }
    policy::fell_by_a_step(old.base.map_or(0, used_bytes), now, CAPACITY)
}

pub(crate) fn used_bytes(page: &[u8; PAGE_BYTES]) -> usize {
    PageView::trusted(page).used_bytes()
}

/// Ranks: overflow pages, base pages, staged pages from the oldest on, dirty records.
const RANK_OVERFLOW: u8 = 0;
const RANK_BASE: u8 = 1;
const RANK_STAGED: u8 = 2;
const RANK_DIRTY: u8 = u8::MAX;

/// Records in order: their keys in one piece of memory, their values where they were.
#[derive(Default)]
pub(crate) struct Records<'a> {
    keys: Vec<u8>,
    list: Vec<Record<'a>>,
}

struct Record<'a> {
    key: Range<usize>,
    /// Later ones win.
    rank: u8,
    /// Whether it won over another.
    wins: bool,
    value: Option<ValueRef<'a>>,
}

impl<'a> Records<'a> {
    /// The records of neighbouring segments as they are after `dirty`.
    pub(crate) fn merge(pages: &[Pages<'a>], dirty: &[Dirty<'a>]) -> Self {
        Self::merge_staged(pages, &[], dirty)
    }

    /// As [`Records::merge`], with staged pages, those of one segment oldest first.
    pub(crate) fn merge_staged(
        pages: &[Pages<'a>],
        staged: &[&'a [u8; PAGE_BYTES]],
        dirty: &[Dirty<'a>],
    ) -> Self {
        let mut records = Records::default();
        for (rank, page) in (RANK_STAGED..RANK_DIRTY).zip(staged) {
            records.add_page(PageView::trusted(page), rank);
        }
        for Pages { base, overflow } in pages {
            for (rank, page) in [(RANK_OVERFLOW, overflow), (RANK_BASE, base)] {
                if let Some(page) = page {
                    records.add_page(PageView::trusted(page), rank);
                }
            }
        }
        for (key, value) in dirty {
            records.add(&[], key, RANK_DIRTY, *value);
        }
        let Records { keys, list } = &mut records;
        list.sort_unstable_by(|a, b| {
            keys[a.key.clone()].cmp(&keys[b.key.clone()]).then(b.rank.cmp(&a.rank))
        });
        list.dedup_by(|later, first| {
            let same = keys[later.key.clone()] == keys[first.key.clone()];
            first.wins |= same;
            same
        });
        list.retain(|record| record.value.is_some());
        records
    }

    fn add_page(&mut self, view: PageView<'a>, rank: u8) {
        for index in 0..view.len() {
            self.add(view.prefix(), view.suffix(index), rank, Some(view.value(index)));
        }
    }

    fn add(&mut self, prefix: &[u8], suffix: &[u8], rank: u8, value: Option<ValueRef<'a>>) {
        let start = self.keys.len();
        self.keys.extend_from_slice(prefix);
        self.keys.extend_from_slice(suffix);
        self.list.push(Record { key: start..self.keys.len(), rank, wins: false, value });
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The value of a key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<ValueRef<'a>> {
        let at = |record: &Record<'_>| self.keys[record.key.clone()].cmp(key);
        let found = self.list.binary_search_by(at).ok()?;
        self.list[found].value
    }

    /// How many dirty and staged records have keys that no other page had.
    pub(crate) fn inserted(&self) -> usize {
        self.list.iter().filter(|record| record.rank >= RANK_STAGED && !record.wins).count()
    }

    pub(crate) fn get(&self, index: usize) -> (&[u8], ValueRef<'a>) {
        let Record { key, value, .. } = &self.list[index];
        (&self.keys[key.clone()], value.unwrap_or(ValueRef::EMPTY))
    }
}

/// Pointers to large values that these pages hold and that `dirty` replaces or removes. `dirty`
/// ascends by key.
pub(crate) fn superseded(pages: &[Pages<'_>], dirty: &[Dirty<'_>]) -> Vec<Vec<u8>> {
    let mut gone = Vec::new();
    let pages = pages.iter().flat_map(|pages| [pages.base, pages.overflow]);
    for view in pages.flatten().map(PageView::trusted) {
        for index in (0..view.len()).filter(|index| view.value(*index).large) {
            let (key, old) = (view.key(index), view.value(index));
            let found = dirty.binary_search_by(|(dirty, _)| dirty.cmp(&key.as_slice()));
            if found.is_ok_and(|found| dirty[found].1 != Some(old)) {
                gone.push(old.bytes.to_vec());
            }
        }
    }
    gone
}

/// Pointers to large values that these pages hold and that the merged records do not.
pub(crate) fn superseded_by<'a>(
    pages: impl Iterator<Item = &'a [u8; PAGE_BYTES]>,
    records: &Records<'_>,
) -> Vec<Vec<u8>> {
    let mut gone = Vec::new();
    for view in pages.map(PageView::trusted) {
        for index in (0..view.len()).filter(|index| view.value(*index).large) {
            if records.find(&view.key(index)) != Some(view.value(index)) {
                gone.push(view.value(index).bytes.to_vec());
            }
        }
    }
    gone
}

/// Whether all dirty records lie behind all that these pages hold. `dirty` ascends by key.
pub(crate) fn appends(pages: &[Pages<'_>], dirty: &[Dirty<'_>]) -> bool {
    let Some((first, _)) = dirty.first() else { return false };
    let pages = pages.iter().flat_map(|pages| [pages.base, pages.overflow]);
    let mut views = pages.flatten().map(PageView::trusted);
    views.all(|view| view.is_empty() || view.key(view.len() - 1).as_slice() < *first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Region;
    use crate::fit::{Fill, Fit};
    use crate::segment::{IndexKey, PageRef, Segment};
    use proptest::prelude::*;
    use spinney_base::{Generation, PageNumber};
    use std::collections::BTreeMap;

    type Model = BTreeMap<Vec<u8>, Vec<u8>>;
    type Round = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

    fn located(lower: &[u8], upper: Option<&[u8]>) -> Located {
        let base = PageRef { page: PageNumber(128), generation: Generation(1) };
        Located {
            lower: IndexKey::new(lower),
            upper: upper.map(IndexKey::new),
            segment: Segment::new(base, 0, None),
        }
    }

    fn records_of(page: &[u8; PAGE_BYTES]) -> Model {
        let view = PageView::parse(page).expect("whole");
        (0..view.len()).map(|index| (view.key(index), view.value(index).bytes.to_vec())).collect()
    }

    fn dirty_of(round: &Round) -> Vec<Dirty<'_>> {
        round
            .iter()
            .map(|(key, value)| (key.as_slice(), value.as_deref().map(ValueRef::inline)))
            .collect()
    }

    fn apply(model: &mut Model, round: &Round) {
        for (key, value) in round {
            match value {
                Some(value) => model.insert(key.clone(), value.clone()),
                None => model.remove(key),
            };
        }
    }

    fn merged(pages: &[Pages<'_>], dirty: &[Dirty<'_>]) -> Model {
        let records = Records::merge(pages, dirty);
        (0..records.len())
            .map(|index| records.get(index))
            .map(|(key, value)| (key.to_vec(), value.bytes.to_vec()))
            .collect()
    }

    /// One segment that lives through rounds of dirty records until it is reorganized.
    struct Life {
        base: Box<[u8; PAGE_BYTES]>,
        overflow: Option<Box<[u8; PAGE_BYTES]>>,
        model: Model,
    }

    impl Life {
        fn new() -> Self {
            let mut base = Box::new([0; PAGE_BYTES]);
            drop(PageEditor::format(&mut base, b"", b"from"));
            Life { base, overflow: None, model: Model::new() }
        }

        fn pages(&self) -> Pages<'_> {
            Pages { base: Some(&self.base), overflow: self.overflow.as_deref() }
        }

        /// Lives one round; says whether the segment is still one.
        fn live(&mut self, round: &Round) -> bool {
            let pool = BufferPool::new(64);
            let located = located(b"", None);
            apply(&mut self.model, round);
            let dirty = dirty_of(round);
            let edit = edit_in_place(&pool, &located, 0, self.pages(), &dirty);
            let Some(Edit { base, overflow, new_overflow, .. }) = edit else {
                assert_eq!(merged(&[self.pages()], &dirty), self.model);
                return false;
            };
            assert!(overflow.is_none() || new_overflow.is_none());
            let boxed = |page: &Lent<'_>| Box::new(*page.page(0));
            if let Some(base) = base.as_ref().map(boxed) {
                check_unmoved(&self.base, &base, round);
                self.base = base;
            }
            if let Some(overflow) = overflow.as_ref().map(boxed) {
                check_unmoved(self.overflow.as_ref().expect("it was there"), &overflow, round);
                self.overflow = Some(overflow);
            }
            if let Some(overflow) = new_overflow.as_ref().map(boxed) {
                assert!(self.overflow.is_none());
                let view = PageView::parse(&overflow).expect("whole");
                let origin = Origin::decode(view.origin(), view.prefix()).expect("an origin");
                assert_eq!(origin.overflow_of, Some(Generation(1)));
                self.overflow = Some(overflow);
            }
            assert_eq!(merged(&[self.pages()], &[]), self.model);
            true
        }
    }

    fn check_unmoved(old: &[u8; PAGE_BYTES], new: &[u8; PAGE_BYTES], round: &Round) {
        let new = records_of(new);
        for (key, value) in records_of(old) {
            let untouched = !round.contains_key(&key);
            assert!(!untouched || new.get(&key) == Some(&value), "an unchanged record moved");
        }
    }

    /// Keys that share long prefixes, and keys that do not.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..12),
            (0u32..5000).prop_map(|n| [&[7; 200][..], &n.to_be_bytes()].concat()),
            (0u64..100_000).prop_map(|n| n.to_be_bytes().to_vec()),
            proptest::collection::vec(97u8..99, 1000..1024),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Round after round of dirty records: the pages hold what a map would, and unchanged
        /// records stay where they are.
        #[test]
        fn edits_keep_every_record(
            rounds in proptest::collection::vec(proptest::collection::btree_map(
                proptest::collection::vec(any::<u8>(), 1..12),
                proptest::option::weighted(0.8, proptest::collection::vec(any::<u8>(), 0..400)),
                1..20), 1..20),
        ) {
            let mut life = Life::new();
            let _ = rounds.iter().all(|round| life.live(round));
        }

        /// Records become segments in whose pages every one is where the model says.
        #[test]
        fn new_segments_hold_every_record(
            records in proptest::collection::btree_map(key(), 0usize..200, 1..800),
            appends in any::<bool>(),
            large in any::<bool>(),
        ) {
            let pool = BufferPool::new(64);
            let bound = |length: usize, key: &[u8]| {
                length.min(spinney_page::RECORD_BYTES_MAX - key.len())
            };
            let times = if large { 19 } else { 1 };
            let round: Round = records
                .into_iter()
                .map(|(key, length)| {
                    let length = bound(length * times, &key);
                    (key, Some(vec![9; length]))
                })
                .collect();
            let mut model = Model::new();
            apply(&mut model, &round);
            let records = Records::merge(&[], &dirty_of(&round));
            let region = Region { lower: b"", upper: None, records: &records };
            let mut fit = Fit::choose(Fill::Room, region.bytes() / records.len(), region.room());
            fit.even = !appends;
            let segments = region.build(&pool, region.pieces(&fit, |_, _| 0.0));
            prop_assert_eq!(&segments[0].lower, b"");
            let mut all = Model::new();
            for (index, new) in segments.iter().enumerate() {
                let base = PageRef { page: PageNumber(128), generation: Generation(1) };
                let located = Located {
                    lower: IndexKey::new(&new.lower),
                    upper: segments.get(index + 1).map(|next| IndexKey::new(&next.lower)),
                    segment: Segment::new(base, new.order, new.model),
                };
                let mut bear = 0;
                for page in 0..new.page_count() {
                    let view = PageView::parse(new.pages.page(page)).expect("whole");
                    if !view.origin().is_empty() {
                        let origin = Origin::decode(view.origin(), view.prefix()).expect("whole");
                        let bounds = origin.bounds.expect("of an extent");
                        prop_assert_eq!(&*bounds.lower, located.lower.bytes());
                        prop_assert_eq!(bounds.model, new.model);
                        bear += 1;
                    }
                    for (key, value) in records_of(new.pages.page(page)) {
                        prop_assert!(located.contains(&key));
                        prop_assert_eq!(located.page_of(&key), page);
                        all.insert(key, value);
                    }
                }
                prop_assert!(bear > 0, "no page says whose these keys are");
            }
            prop_assert_eq!(all, model);
        }
    }

    #[test]
    fn appends_are_told_from_inserts() {
        let mut life = Life::new();
        let round = |key: &[u8]| Round::from([(key.to_vec(), Some(vec![1]))]);
        assert!(life.live(&round(b"m")));
        assert!(appends(&[life.pages()], &dirty_of(&round(b"n"))));
        assert!(!appends(&[life.pages()], &dirty_of(&round(b"m"))));
        assert!(!appends(&[life.pages()], &dirty_of(&round(b"a"))));
        assert!(!appends(&[life.pages()], &[]));
    }

    #[test]
    fn needless_overflow_pages_and_half_empty_pages_are_noticed() {
        let pool = BufferPool::new(8);
        let mut life = Life::new();
        let keys = |range: std::ops::Range<u8>, value: Option<usize>| -> Round {
            range.map(|key| (vec![key], value.map(|length| vec![key; length]))).collect()
        };
        assert!(life.live(&keys(0..60, Some(80))));
        assert!(life.overflow.is_some());
        let edit = |life: &Life, round: &Round| {
            edit_in_place(&pool, &located(b"", None), 0, life.pages(), &dirty_of(round))
                .expect("room")
                .may_shrink
        };
        assert!(!edit(&life, &keys(0..2, None)));
        assert!(edit(&life, &keys(0..40, None)));
        let mut life = Life::new();
        assert!(life.live(&keys(0..30, Some(80))));
        assert!(!edit(&life, &keys(0..4, None)), "two thirds full");
        assert!(edit(&life, &keys(0..20, None)));
    }
}
