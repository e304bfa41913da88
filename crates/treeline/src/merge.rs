//! What becomes of a segment's pages when its dirty records come home: a pure decision, carried out
//! by [`write_back`](crate::write_back).
//!
//! **Invariant**: a record moves between pages only into *new* pages ([`Plan::Replace`]). Pages
//! rewritten in place ([`Plan::InPlace`]) only gain, lose or change dirty records, so if one of two
//! in-place writes is lost in a crash, replaying the log onto the other still gives the newest
//! versions, and a record that is not in the log any more is never between two pages.
//!
//! Because of that a key may be in the base and, older, in the overflow page: the base wins, and
//! whatever changes the base takes the key out of the overflow page.

use spinney_base::limits::PAGE_BYTES;
use spinney_page::{PageEditor, PageView, Put, SLOT_BYTES};

use crate::index::{Located, common_prefix};

/// One dirty record: a key and its new value, or `None` if it was removed.
pub(crate) type Dirty = (Vec<u8>, Option<Vec<u8>>);

/// A page's bytes.
pub(crate) type PageBytes = Box<[u8; PAGE_BYTES]>;

/// Bytes that slots, records and prefix may use in one page.
const CAPACITY: usize = PAGE_BYTES - 80;

/// How full new pages are made: the rest takes later inserts.
const FILL_PERCENT: usize = 75;

/// How full the pages behind an append are made: nothing will be inserted there.
const FILL_APPEND_PERCENT: usize = 96;

/// Base and overflow page become one page when their records fill no more than this share of it.
const JOIN_PERCENT: usize = 60;

/// What to do with a segment's pages. Pages are unsealed.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Rewrite what is given in place; make a new overflow page of `new_overflow` if it is given.
    InPlace {
        base: Option<PageBytes>,
        overflow: Option<PageBytes>,
        new_overflow: Option<PageBytes>,
    },
    /// Replace the segment by these, lower bounds and pages in order.
    Replace(Vec<(Vec<u8>, PageBytes)>),
}

/// Decides for a segment whose pages were parsed. `dirty` ascends by key, each key once, all within
/// the bounds. A segment without a page is always replaced.
pub(crate) fn plan(
    located: &Located,
    base: &[u8; PAGE_BYTES],
    overflow: Option<&[u8; PAGE_BYTES]>,
    dirty: &[Dirty],
) -> Plan {
    if !located.segment.is_virtual()
        && let Some(plan) = edit_in_place(located, base, overflow, dirty)
        && !is_sparse(&plan, base, overflow)
    {
        return plan;
    }
    Plan::Replace(rebuild(located, base, overflow, dirty))
}

/// The page that stands for the one that a virtual segment does not have.
pub(crate) fn empty_page() -> PageBytes {
    let mut page: PageBytes = Box::new([0; PAGE_BYTES]);
    drop(PageEditor::format(&mut page, &[]));
    page
}

fn edit_in_place(
    located: &Located,
    base: &[u8; PAGE_BYTES],
    overflow: Option<&[u8; PAGE_BYTES]>,
    dirty: &[Dirty],
) -> Option<Plan> {
    let mut new_base: PageBytes = Box::new(*base);
    let mut second: PageBytes = Box::new([0; PAGE_BYTES]);
    match overflow {
        Some(overflow) => second.copy_from_slice(overflow),
        None => drop(PageEditor::format(&mut second, located.prefix())),
    }
    let (mut base_changed, mut second_changed) = (false, false);
    {
        let mut base_editor = PageEditor::edit(&mut new_base);
        let mut second_editor = PageEditor::edit(&mut second);
        for (key, value) in dirty {
            let Some(value) = value else {
                base_changed |= base_editor.remove(key);
                second_changed |= second_editor.remove(key);
                continue;
            };
            let in_base = base_editor.contains(key);
            let in_second = second_editor.contains(key);
            if in_base || !in_second {
                match base_editor.put(key, value) {
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
            if second_editor.put(key, value) == Put::Full {
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
fn is_sparse(
    plan: &Plan,
    old_base: &[u8; PAGE_BYTES],
    old_overflow: Option<&[u8; PAGE_BYTES]>,
) -> bool {
    let (Plan::InPlace { base, overflow, .. }, Some(old_overflow)) = (plan, old_overflow) else {
        return false;
    };
    let used = |page: &[u8; PAGE_BYTES]| PageView::trusted(page).used_bytes();
    let base = used(base.as_deref().unwrap_or(old_base));
    let overflow = used(overflow.as_deref().unwrap_or(old_overflow));
    base + overflow <= CAPACITY * JOIN_PERCENT / 100
}

type Record = (Vec<u8>, Vec<u8>);

fn rebuild(
    located: &Located,
    base: &[u8; PAGE_BYTES],
    overflow: Option<&[u8; PAGE_BYTES]>,
    dirty: &[Dirty],
) -> Vec<(Vec<u8>, PageBytes)> {
    let base = PageView::trusted(base);
    let last_key = base.len().checked_sub(1).map(|last| base.key(last));
    let overflow = overflow.map(PageView::trusted);
    // All that comes lies behind all that was: an append.
    let appends = located.upper.is_none()
        && overflow.is_none_or(|overflow| overflow.is_empty() || Some(overflow.key(0)) > last_key)
        && dirty.first().map(|(key, _)| key) > last_key.as_ref();
    let records = merge(base, overflow, dirty.iter().cloned());
    lay_out(located, records, appends)
}

/// The records of a segment as they are after `dirty`, in order of keys.
pub(crate) fn merge(
    base: PageView<'_>,
    overflow: Option<PageView<'_>>,
    dirty: impl IntoIterator<Item = Dirty>,
) -> Vec<Record> {
    let mut records = std::collections::BTreeMap::new();
    // Older versions first, so that newer ones replace them.
    for view in overflow.into_iter().chain([base]) {
        for index in 0..view.len() {
            records.insert(view.key(index), view.value(index).to_vec());
        }
    }
    for (key, value) in dirty {
        match value {
            Some(value) => records.insert(key, value),
            None => records.remove(&key),
        };
    }
    records.into_iter().collect()
}

/// Lays records out in as many new pages as they need, at least one.
fn lay_out(located: &Located, records: Vec<Record>, appends: bool) -> Vec<(Vec<u8>, PageBytes)> {
    let groups = group(&records, appends);
    let mut bounds: Vec<Vec<u8>> = vec![located.lower.bytes().to_vec()];
    for pair in groups.windows(2) {
        let (left, right) = (&records[pair[0].end - 1].0, &records[pair[1].start].0);
        bounds.push(separator(left, right));
    }
    let mut pages = Vec::with_capacity(groups.len());
    for (index, group) in groups.into_iter().enumerate() {
        let lower = bounds[index].clone();
        let upper = bounds
            .get(index + 1)
            .map(Vec::as_slice)
            .or_else(|| located.upper.as_ref().map(|key| key.bytes()));
        let prefix = upper.map_or(&[][..], |upper| common_prefix(&lower, upper));
        let mut page: PageBytes = Box::new([0; PAGE_BYTES]);
        let mut editor = PageEditor::format(&mut page, prefix);
        for (key, value) in &records[group] {
            let put = editor.put(key, value);
            assert_eq!(put, Put::Done, "groups were made to fit");
        }
        drop(editor);
        pages.push((lower, page));
    }
    pages
}

/// Cuts records into runs that fit a page each and are about equally full.
fn group(records: &[Record], appends: bool) -> Vec<std::ops::Range<usize>> {
    let size = |record: &Record| record.0.len() + record.1.len() + SLOT_BYTES;
    let total: usize = records.iter().map(size).sum();
    let fill = if appends { FILL_APPEND_PERCENT } else { FILL_PERCENT };
    let pages = total.div_ceil(CAPACITY * fill / 100).max(1);
    // An append leaves full pages behind; otherwise all share alike.
    let share = if appends { CAPACITY * fill / 100 } else { total.div_ceil(pages) };
    let mut groups = Vec::new();
    let (mut start, mut used) = (0, 0);
    for (index, record) in records.iter().enumerate() {
        let bytes = size(record);
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

    fn located(lower: &[u8], upper: Option<&[u8]>) -> Located {
        let base = PageRef { page: PageNumber(128), generation: Generation(1) };
        Located {
            lower: IndexKey::new(lower),
            upper: upper.map(IndexKey::new),
            segment: Segment { base, overflow: None },
        }
    }

    fn records_of(page: &[u8; PAGE_BYTES]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let view = PageView::parse(page).expect("whole");
        (0..view.len()).map(|index| (view.key(index), view.value(index).to_vec())).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Round after round of dirty records: the pages hold what a map would, bounds hold, and
        /// every plan keeps the invariant that unchanged records stay where they are unless pages
        /// are new.
        #[test]
        fn plans_keep_every_record(
            rounds in proptest::collection::vec(proptest::collection::btree_map(
                proptest::collection::vec(any::<u8>(), 1..12),
                proptest::option::weighted(0.8, proptest::collection::vec(any::<u8>(), 0..400)), 1..20), 1..20),
        ) {
            let located = located(b"", None);
            let (mut base, mut overflow): (PageBytes, Option<PageBytes>) = (empty_page(), None);
            let mut model = BTreeMap::new();
            for round in rounds {
                let dirty: Vec<Dirty> = round.into_iter().collect();
                for (key, value) in dirty.clone() {
                    match value {
                        Some(value) => model.insert(key, value),
                        None => model.remove(&key),
                    };
                }
                match plan(&located, &base, overflow.as_deref(), &dirty) {
                    Plan::InPlace { base: new_base, overflow: changed, new_overflow } => {
                        for (old, new) in [(Some(&base), &new_base), (overflow.as_ref(), &changed)] {
                            let (Some(old), Some(new)) = (old, new) else { continue };
                            let new = records_of(new);
                            for (key, value) in records_of(old) {
                                let touched = dirty.iter().any(|(dirty, _)| *dirty == key);
                                prop_assert!(touched || new.get(&key) == Some(&value), "an unchanged record moved");
                            }
                        }
                        base = new_base.unwrap_or(base);
                        overflow = changed.or(new_overflow).or(overflow);
                        let view = PageView::parse(&base).unwrap();
                        let second = overflow.as_ref().map(|page| PageView::parse(page).unwrap());
                        let now: BTreeMap<_, _> = merge(view, second, []).into_iter().collect();
                        prop_assert_eq!(&now, &model);
                    }
                    Plan::Replace(pages) => {
                        let mut all = BTreeMap::new();
                        for (index, (lower, page)) in pages.iter().enumerate() {
                            let upper = pages.get(index + 1).map(|(upper, _)| upper);
                            for (key, value) in records_of(page) {
                                prop_assert!(key >= *lower && upper.is_none_or(|upper| key < *upper));
                                all.insert(key, value);
                            }
                        }
                        prop_assert_eq!(&all, &model);
                        if pages.len() > 1 {
                            // Go on with a model cut to the first page: a segment of its own would
                            // have an upper bound.
                            return Ok(());
                        }
                        base = pages.into_iter().next().unwrap().1;
                        overflow = None;
                    }
                }
            }
        }
    }

    #[test]
    fn appends_leave_full_pages_behind() {
        let key = |number: u32| number.to_be_bytes().to_vec();
        let located = located(b"", None);
        let dirty: Vec<Dirty> = (0..500).map(|number| (key(number), Some(vec![1; 56]))).collect();
        let Plan::Replace(pages) = plan(&located, &empty_page(), None, &dirty) else {
            panic!("too many for a page")
        };
        let fullest = pages.iter().map(|(_, page)| records_of(page).len()).max().unwrap();
        assert!(fullest >= 50, "{fullest}");
        assert_eq!(pages.iter().map(|(_, page)| records_of(page).len()).sum::<usize>(), 500);
    }

    #[test]
    fn separators_are_short() {
        assert_eq!(separator(b"abc", b"abdef"), b"abd");
        assert_eq!(separator(b"", b"x"), b"x");
        assert_eq!(separator(b"a", b"ab"), b"ab");
    }

    #[test]
    fn large_records_get_pages_of_their_own() {
        let located = located(b"", Some(b"z"));
        let dirty: Vec<Dirty> = (0..5u8)
            .map(|number| {
                (vec![b'a' + number; 1000], Some(vec![number; 3000 - usize::from(number)]))
            })
            .collect();
        let Plan::Replace(pages) = plan(&located, &empty_page(), None, &dirty) else {
            panic!("too large for a page")
        };
        assert_eq!(pages.len(), 5);
    }
}
