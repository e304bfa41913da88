//! What the index owes its callers while segments change, under schedules that may stop a thread
//! at any lock or atomic: `cargo test -p spinney-treeline --features shuttle --lib schedules`.

use super::*;
use crate::segment::Overflow;
use spinney_base::{Generation, PageNumber};
use std::sync::Arc;

/// Schedules of each; many more in the full tier.
fn iterations() -> usize {
    match std::env::var("SPINNEY_PROVING").as_deref() {
        Ok("full") => 100_000,
        _ => 3000,
    }
}

fn segment(page: u32) -> Segment {
    let base = PageRef { page: PageNumber(page), generation: Generation(1) };
    Segment::new(base, 0, None)
}

/// Two segments, of the keys below `m` and of the others.
fn two(first: u32) -> Vec<(Vec<u8>, Segment)> {
    vec![(Vec::new(), segment(first)), (b"m".to_vec(), segment(first + 1))]
}

fn one(page: u32) -> Vec<(Vec<u8>, Segment)> {
    vec![(Vec::new(), segment(page))]
}

fn keys_of(id: RecordId) -> Vec<Vec<u8>> {
    vec![if id.0 < 10 { b"a".to_vec() } else { b"z".to_vec() }]
}

fn apply(index: &SegmentIndex, before: Vec<(Vec<u8>, Segment)>, after: Vec<(Vec<u8>, Segment)>) {
    index.apply(&Change { before, after }, keys_of, |_| ()).unwrap();
}

/// A record becomes dirty while its segment splits, joins and gets an overflow page: afterwards it
/// is on the list of the segment that it belongs to, whatever came between.
#[test]
fn p14_a_dirty_record_is_listed_however_its_segment_changes() {
    let model = || {
        let index = Arc::new(SegmentIndex::new(one(1), 0));
        let theirs = Arc::clone(&index);
        let writer = shuttle::thread::spawn(move || {
            theirs.push_dirty(b"a", RecordId(1));
            theirs.push_dirty(b"z", RecordId(10));
        });
        apply(&index, one(1), two(2));
        let overflow = PageRef { page: PageNumber(9), generation: Generation(1) };
        let overflow = Overflow { index: 0, at: overflow };
        let with = |segment: &Segment| Some(segment.with_overflow(overflow));
        index.add_page(b"m", segment(3).base, with, |_, _| ()).unwrap();
        writer.join().unwrap();
        assert_eq!(index.dirty(&[], &(0..16)), [RecordId(1)]);
        assert_eq!(index.dirty(b"m", &(0..16)), [RecordId(10)]);
        let taken = index.take_dirty(b"m", 1);
        index.return_dirty(b"m", taken.iter().map(|listed| (&b"z"[..], listed.id())));
        let theirs = Arc::clone(&index);
        let writer = shuttle::thread::spawn(move || theirs.push_dirty(b"z", RecordId(11)));
        let before =
            vec![(Vec::new(), segment(2)), (b"m".to_vec(), segment(3).with_overflow(overflow))];
        apply(&index, before, one(4));
        writer.join().unwrap();
        // What was put back is due, and first.
        assert_eq!(index.dirty(&[], &(0..16)), [RecordId(10), RecordId(1), RecordId(11)]);
    };
    shuttle::check_random(model, iterations());
    shuttle::check_pct(model, iterations(), 3);
}

/// A place is that of one version: before a change or after it, never of half of it, although the
/// lookup takes no lock.
#[test]
fn p23_a_place_is_never_of_half_a_change() {
    let model = || {
        let index = Arc::new(SegmentIndex::new(one(1), 0));
        let theirs = Arc::clone(&index);
        let changes = shuttle::thread::spawn(move || {
            apply(&theirs, one(1), two(2));
            apply(&theirs, two(2), one(4));
        });
        for _ in 0..2 {
            let (place, version) = index.find_place(b"z", 0);
            let expected = match version {
                0 => 1,
                2 => 3,
                _ => 4,
            };
            assert_eq!((place.page.page.0, version % 2), (expected, 0));
            let located = index.find(b"a");
            let expected = if located.upper.is_some() { [2, 2] } else { [1, 4] };
            assert!(expected.contains(&located.segment.base.page.0), "{located:?}");
        }
        changes.join().unwrap();
    };
    shuttle::check_random(model, iterations());
    shuttle::check_pct(model, iterations(), 3);
}

/// The dirty segments that one call shows are those of one version: whatever was dirty before it is
/// in one of them, however segments change meanwhile.
#[test]
fn p14_due_segments_are_never_of_half_a_change() {
    let model = || {
        let index = Arc::new(SegmentIndex::new(two(1), 0));
        index.push_dirty(b"a", RecordId(1));
        index.push_dirty(b"z", RecordId(10));
        index.mark_due();
        let theirs = Arc::clone(&index);
        let changes = shuttle::thread::spawn(move || {
            apply(&theirs, two(1), one(3));
            apply(&theirs, one(3), two(4));
        });
        let (found, next) = index.due_segments(b"q", 4, &mut 0);
        assert!(found.iter().any(|located| located.contains(b"z")) && next.is_none(), "{found:?}");
        let (found, _) = index.due_segments(&[], 4, &mut 0);
        for key in [b"a", b"z"] {
            let count = found.iter().filter(|located| located.contains(key)).count();
            assert_eq!(count, 1, "{found:?}");
        }
        changes.join().unwrap();
    };
    shuttle::check_random(model, iterations());
    shuttle::check_pct(model, iterations(), 3);
}
