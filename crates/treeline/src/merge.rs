//! What becomes of segments' pages when their dirty records come home: a pure decision, carried out
//! by [`write_back`](crate::write_back).
//!
//! **Invariant**: a record moves between pages only into *new* pages ([`Plan::Replace`]). Pages
//! rewritten in place ([`Plan::InPlace`]) only gain, lose or change dirty records, so if one of two
//! in-place writes is lost in a crash, replaying the log onto the other still gives the newest
//! versions, and a record that is not in the log any more is never between two pages.
//!
//! Because of that a key may be in the base and, older, in the overflow page: the base wins, and
//! whatever changes the base takes the key out of the overflow page.

use std::ops::Range;

use spinney_base::ValueRef;
use spinney_base::limits::PAGE_BYTES;
use spinney_io::{BufferPool, Lent};
use spinney_page::{PageEditor, PageView, Put, SLOT_BYTES};

use crate::index::{Located, common_prefix};

/// One dirty record: a key and its new value, or `None` if it was removed.
pub(crate) type Dirty<'a> = (&'a [u8], Option<ValueRef<'a>>);

/// The pages of one segment, read and parsed.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a> {
    /// `None` for a segment that has no page yet.
    pub(crate) base: Option<&'a [u8; PAGE_BYTES]>,
    pub(crate) overflow: Option<&'a [u8; PAGE_BYTES]>,
}

impl<'a> Pages<'a> {
    /// From as many pages as the segment has, base first.
    pub(crate) fn new(pages: &[&'a [u8; PAGE_BYTES]]) -> Self {
        Pages { base: pages.first().copied(), overflow: pages.get(1).copied() }
    }
}

/// Bytes that slots, records and prefix may use in one page.
const CAPACITY: usize = PAGE_BYTES - 80;

/// How full new pages are made: the rest takes later inserts.
const FILL_PERCENT: usize = 75;

/// How full the pages behind an append are made: nothing will be inserted there.
const FILL_APPEND_PERCENT: usize = 96;

/// Base and overflow page become one page when their records fill no more than this share of it.
const JOIN_PERCENT: usize = 60;

/// A segment that fills no more than this share of a page is to be joined with a neighbour.
const SPARSE_PERCENT: usize = 25;

/// What to do with segments' pages. Pages are unsealed.
#[derive(Debug)]
pub(crate) enum Plan<'p> {
    /// Rewrite what is given in place; make a new overflow page of `new_overflow` if it is given.
    InPlace { base: Option<Lent<'p>>, overflow: Option<Lent<'p>>, new_overflow: Option<Lent<'p>> },
    /// Replace the segments by these, lower bounds and pages in order.
    Replace(Vec<(Vec<u8>, Lent<'p>)>),
}

/// Decides for neighbouring segments with these pages. `dirty` ascends by key, each key once, all
/// within the bounds. A segment without a page, and several at once, are always replaced.
pub(crate) fn plan<'p>(
    pool: &'p BufferPool,
    segments: &[Located],
    pages: &[Pages<'_>],
    dirty: &[Dirty<'_>],
) -> Plan<'p> {
    if let ([located], [Pages { base: Some(base), overflow }]) = (segments, pages)
        && let Some(plan) = edit_in_place(pool, located, base, *overflow, dirty)
        && !may_drop_overflow(&plan, base, *overflow)
    {
        return plan;
    }
    Plan::Replace(rebuild(pool, segments, pages, dirty))
}

impl Plan<'_> {
    /// Whether what is left of a segment is so little that it should be joined with a neighbour.
    pub(crate) fn leaves_sparse(&self, pages: Pages<'_>) -> bool {
        let used = match self {
            Plan::InPlace { base, overflow: None, new_overflow: None }
                if pages.overflow.is_none() =>
            {
                base.as_ref().map(|base| used_bytes(base.page(0)))
            }
            Plan::Replace(pages) if pages.len() == 1 => Some(used_bytes(pages[0].1.page(0))),
            _ => None,
        };
        used.is_some_and(|used| used <= CAPACITY * SPARSE_PERCENT / 100)
    }
}

fn used_bytes(page: &[u8; PAGE_BYTES]) -> usize {
    PageView::trusted(page).used_bytes()
}

fn edit_in_place<'p>(
    pool: &'p BufferPool,
    located: &Located,
    base: &[u8; PAGE_BYTES],
    overflow: Option<&[u8; PAGE_BYTES]>,
    dirty: &[Dirty<'_>],
) -> Option<Plan<'p>> {
    let mut new_base = pool.lend(1);
    new_base.page_mut(0).copy_from_slice(base);
    let mut second = pool.lend(1);
    match overflow {
        Some(overflow) => second.page_mut(0).copy_from_slice(overflow),
        None => drop(PageEditor::format(second.page_mut(0), located.prefix())),
    }
    let (mut base_changed, mut second_changed) = (false, false);
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
    let second = second_changed.then_some(second);
    let (overflow, new_overflow) = if overflow.is_some() { (second, None) } else { (None, second) };
    Some(Plan::InPlace { base: base_changed.then_some(new_base), overflow, new_overflow })
}

/// Whether a segment with an overflow page would do with one page.
fn may_drop_overflow(
    plan: &Plan<'_>,
    old_base: &[u8; PAGE_BYTES],
    old_overflow: Option<&[u8; PAGE_BYTES]>,
) -> bool {
    let (Plan::InPlace { base, overflow, .. }, Some(old_overflow)) = (plan, old_overflow) else {
        return false;
    };
    let base = used_bytes(base.as_ref().map_or(old_base, |page| page.page(0)));
    let overflow = used_bytes(overflow.as_ref().map_or(old_overflow, |page| page.page(0)));
    base + overflow <= CAPACITY * JOIN_PERCENT / 100
}

/// Records in order, their keys in one piece of memory, their values where they were.
#[derive(Default)]
pub(crate) struct Records<'a> {
    keys: Vec<u8>,
    list: Vec<Record<'a>>,
}

struct Record<'a> {
    key: Range<usize>,
    /// Later ones win.
    rank: u8,
    value: Option<ValueRef<'a>>,
}

impl<'a> Records<'a> {
    /// The records of neighbouring segments as they are after `dirty`.
    pub(crate) fn merge(pages: &[Pages<'a>], dirty: &[Dirty<'a>]) -> Self {
        let mut records = Records::default();
        for Pages { base, overflow } in pages {
            for (rank, page) in [(0, overflow), (1, base)] {
                if let Some(page) = page {
                    records.add_page(PageView::trusted(page), rank);
                }
            }
        }
        for (key, value) in dirty {
            records.add(&[], key, 2, *value);
        }
        let Records { keys, list } = &mut records;
        list.sort_unstable_by(|a, b| {
            keys[a.key.clone()].cmp(&keys[b.key.clone()]).then(b.rank.cmp(&a.rank))
        });
        list.dedup_by(|later, first| keys[later.key.clone()] == keys[first.key.clone()]);
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
        self.list.push(Record { key: start..self.keys.len(), rank, value });
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn get(&self, index: usize) -> (&[u8], ValueRef<'a>) {
        let Record { key, value, .. } = &self.list[index];
        (&self.keys[key.clone()], value.unwrap_or(ValueRef::EMPTY))
    }
}

fn rebuild<'p>(
    pool: &'p BufferPool,
    segments: &[Located],
    pages: &[Pages<'_>],
    dirty: &[Dirty<'_>],
) -> Vec<(Vec<u8>, Lent<'p>)> {
    let (Some(first), Some(last)) = (segments.first(), segments.last()) else { return Vec::new() };
    let upper = last.upper.as_ref().map(|upper| upper.bytes());
    let appends = upper.is_none() && segments.len() == 1 && appends(pages[0], dirty);
    let records = Records::merge(pages, dirty);
    lay_out(pool, first.lower.bytes(), upper, &records, appends)
}

/// Pointers to large values that these pages hold and that `dirty` puts others in the place of.
pub(crate) fn superseded(pages: &[Pages<'_>], dirty: &[Dirty<'_>]) -> Vec<Vec<u8>> {
    let mut gone = Vec::new();
    let pages = pages.iter().flat_map(|pages| [pages.base, pages.overflow]);
    for view in pages.flatten().map(PageView::trusted) {
        for (key, new) in dirty {
            let old = view.find(key).filter(|old| old.large && Some(*old) != *new);
            gone.extend(old.map(|old| old.bytes.to_vec()));
        }
    }
    gone
}

/// Whether all that comes lies behind all that was.
fn appends(pages: Pages<'_>, dirty: &[Dirty<'_>]) -> bool {
    let Some(base) = pages.base.map(PageView::trusted).filter(|base| !base.is_empty()) else {
        return true;
    };
    let last = base.key(base.len() - 1);
    let overflow = pages.overflow.map(PageView::trusted);
    overflow.is_none_or(|overflow| overflow.is_empty() || overflow.key(0) > last)
        && dirty.first().is_some_and(|(key, _)| *key > last.as_slice())
}

/// Lays records out in as many new pages as they need, at least one.
fn lay_out<'p>(
    pool: &'p BufferPool,
    lower: &[u8],
    upper: Option<&[u8]>,
    records: &Records<'_>,
    appends: bool,
) -> Vec<(Vec<u8>, Lent<'p>)> {
    let groups = group(records, appends);
    let mut bounds: Vec<Vec<u8>> = vec![lower.to_vec()];
    for pair in groups.windows(2) {
        let (left, right) = (records.get(pair[0].end - 1).0, records.get(pair[1].start).0);
        bounds.push(separator(left, right));
    }
    let mut pages = Vec::with_capacity(groups.len());
    for (index, group) in groups.into_iter().enumerate() {
        let lower = bounds[index].clone();
        let upper = bounds.get(index + 1).map(Vec::as_slice).or(upper);
        let prefix = upper.map_or(&[][..], |upper| common_prefix(&lower, upper));
        let mut page = pool.lend(1);
        let mut editor = PageEditor::format(page.page_mut(0), prefix);
        for record in group {
            let (key, value) = records.get(record);
            let put = editor.put(key, value);
            assert_eq!(put, Put::Done, "groups were made to fit");
        }
        drop(editor);
        pages.push((lower, page));
    }
    pages
}

/// Cuts records into runs that fit a page each and are about equally full.
fn group(records: &Records<'_>, appends: bool) -> Vec<Range<usize>> {
    let size = |index: usize| {
        let (key, value) = records.get(index);
        key.len() + value.len() + SLOT_BYTES
    };
    let total: usize = (0..records.len()).map(size).sum();
    let fill = if appends { FILL_APPEND_PERCENT } else { FILL_PERCENT };
    let pages = total.div_ceil(CAPACITY * fill / 100).max(1);
    // An append leaves full pages behind; otherwise all share alike.
    let share = if appends { CAPACITY * fill / 100 } else { total.div_ceil(pages) };
    let mut groups = Vec::new();
    let (mut start, mut used) = (0, 0);
    for index in 0..records.len() {
        let bytes = size(index);
        // Past its share by more than half of the record, or past the page.
        let full = used + bytes / 2 > share || used + bytes > CAPACITY;
        if full && index > start {
            groups.push(start..index);
            (start, used) = (index, 0);
        }
        used += bytes;
    }
    groups.push(start..records.len());
    groups
}

/// The shortest key that is above `left` and not above `right`.
fn separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    debug_assert!(left < right, "records ascend");
    let shared = common_prefix(left, right).len();
    right[..=shared].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{IndexKey, PageRef, Segment};
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
            segment: Segment { base, overflow: None },
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

    /// One segment that lives through rounds of dirty records until it splits.
    struct Life {
        base: Option<Box<[u8; PAGE_BYTES]>>,
        overflow: Option<Box<[u8; PAGE_BYTES]>>,
        model: Model,
    }

    impl Life {
        fn pages(&self) -> Pages<'_> {
            Pages { base: self.base.as_deref(), overflow: self.overflow.as_deref() }
        }

        /// Lives one round; says whether the segment is still one.
        fn live(&mut self, round: &Round) -> bool {
            let pool = BufferPool::new(64);
            let located = located(b"", None);
            apply(&mut self.model, round);
            let dirty = dirty_of(round);
            let boxed = |page: &Lent<'_>| Box::new(*page.page(0));
            match plan(&pool, &[located], &[self.pages()], &dirty) {
                Plan::InPlace { base, overflow, new_overflow } => {
                    let (base, overflow) = (base.as_ref().map(boxed), overflow.as_ref().map(boxed));
                    self.check_unmoved(self.base.as_deref(), base.as_deref(), round);
                    self.check_unmoved(self.overflow.as_deref(), overflow.as_deref(), round);
                    self.base = base.or(self.base.take());
                    let new = new_overflow.as_ref().map(boxed);
                    self.overflow = overflow.or(new).or(self.overflow.take());
                }
                Plan::Replace(pages) => {
                    let mut all = Model::new();
                    for (index, (lower, page)) in pages.iter().enumerate() {
                        let upper = pages.get(index + 1).map(|(upper, _)| upper);
                        for (key, value) in records_of(page.page(0)) {
                            assert!(key >= *lower && upper.is_none_or(|upper| key < *upper));
                            all.insert(key, value);
                        }
                    }
                    assert_eq!(all, self.model);
                    if pages.len() > 1 {
                        return false;
                    }
                    self.base = pages.first().map(|(_, page)| boxed(page));
                    self.overflow = None;
                }
            }
            let records = Records::merge(&[self.pages()], &[]);
            let now: Model = (0..records.len())
                .map(|index| records.get(index))
                .map(|(key, value)| (key.to_vec(), value.bytes.to_vec()))
                .collect();
            assert_eq!(now, self.model);
            true
        }

        fn check_unmoved(
            &self,
            old: Option<&[u8; PAGE_BYTES]>,
            new: Option<&[u8; PAGE_BYTES]>,
            round: &Round,
        ) {
            let (Some(old), Some(new)) = (old, new) else { return };
            let new = records_of(new);
            for (key, value) in records_of(old) {
                let untouched = !round.contains_key(&key);
                assert!(!untouched || new.get(&key) == Some(&value), "an unchanged record moved");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Round after round of dirty records: the pages hold what a map would, bounds hold, and
        /// unchanged records stay where they are unless pages are new.
        #[test]
        fn plans_keep_every_record(
            rounds in proptest::collection::vec(proptest::collection::btree_map(
                proptest::collection::vec(any::<u8>(), 1..12),
                proptest::option::weighted(0.8, proptest::collection::vec(any::<u8>(), 0..400)),
                1..20), 1..20),
        ) {
            let mut life = Life { base: None, overflow: None, model: Model::new() };
            let _ = rounds.iter().all(|round| life.live(round));
        }

        /// Neighbours become one segment, or share alike, and nothing is lost.
        #[test]
        fn joined_neighbours_keep_every_record(
            left in proptest::collection::btree_map(0u8..100, 0usize..60, 0..20),
            right in proptest::collection::btree_map(100u8..200, 0usize..60, 0..20),
            removed in proptest::collection::btree_set(any::<u8>(), 0..20),
        ) {
            let pool = BufferPool::new(64);
            let mut model = Model::new();
            let mut segments = Vec::new();
            let mut images = Vec::new();
            for (records, lower, upper) in [(left, &[][..], Some(&[100][..])), (right, &[100][..], None)] {
                let mut page = Box::new([0; PAGE_BYTES]);
                let mut editor = PageEditor::format(&mut page, &[]);
                for (key, length) in records {
                    prop_assert_eq!(editor.put(&[key], &vec![key; length]), Put::Done);
                    model.insert(vec![key], vec![key; length]);
                }
                drop(editor);
                images.push(page);
                segments.push(located(lower, upper));
            }
            let round: Round = removed.into_iter().map(|key| (vec![key], None)).collect();
            apply(&mut model, &round);
            let pages = images.iter().map(|page| Pages::new(&[&**page])).collect::<Vec<_>>();
            let Plan::Replace(pages) = plan(&pool, &segments, &pages, &dirty_of(&round)) else {
                panic!("two segments are always replaced");
            };
            prop_assert_eq!(&pages[0].0, b"");
            let all: Model = pages.iter().flat_map(|(_, page)| records_of(page.page(0))).collect();
            prop_assert_eq!(all, model);
        }
    }

    #[test]
    fn appends_leave_full_pages_behind() {
        let pool = BufferPool::new(64);
        let round: Round =
            (0..500u32).map(|number| (number.to_be_bytes().to_vec(), Some(vec![1; 56]))).collect();
        let none = Pages { base: None, overflow: None };
        let planned = plan(&pool, &[located(b"", None)], &[none], &dirty_of(&round));
        let Plan::Replace(pages) = planned else { panic!("too many for a page") };
        let counts: Vec<usize> =
            pages.iter().map(|(_, page)| records_of(page.page(0)).len()).collect();
        assert!(counts.iter().max() >= Some(&50), "{counts:?}");
        assert_eq!(counts.iter().sum::<usize>(), 500);
    }

    #[test]
    fn separators_are_short() {
        assert_eq!(separator(b"abc", b"abdef"), b"abd");
        assert_eq!(separator(b"", b"x"), b"x");
        assert_eq!(separator(b"a", b"ab"), b"ab");
    }

    #[test]
    fn large_records_get_pages_of_their_own() {
        let pool = BufferPool::new(64);
        let round: Round = (0..5u8)
            .map(|n| (vec![b'a' + n; 1000], Some(vec![n; 3000 - usize::from(n)])))
            .collect();
        let none = Pages { base: None, overflow: None };
        let planned = plan(&pool, &[located(b"", Some(b"z"))], &[none], &dirty_of(&round));
        let Plan::Replace(pages) = planned else { panic!("too large for a page") };
        assert_eq!(pages.len(), 5);
    }
}
