//! Tests of rules whose steps one thread can take: what others do comes between the steps of a reader.

use std::ops::Bound;
use std::path::Path;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{ErrorKind, ValueRef};
use spinney_engine::{Direction, EngineSnapshot, OwnedValue};
use spinney_io::sim::SimDisk;

use crate::run::{Pages, Run, RunWriter};
use crate::small::{self, Small, Step, get, hash, scan};
use crate::table::Link;

/// All values of a snapshot, without those of [`fill`], the same from either end and in chunks of any
/// size.
fn all(snapshot: &dyn EngineSnapshot) -> String {
    let found = scan(snapshot, Direction::Forward, 1);
    assert!(scan(snapshot, Direction::Forward, 1000) == found, "other chunks, other records");
    assert!(scan(snapshot, Direction::Reverse, 2) == found, "reversed");
    let ours = found.split(' ').filter(|value| !value.starts_with('x'));
    ours.collect::<Vec<_>>().join(" ")
}

/// Keeps values of other keys, for the newest table of a batch with this number, until its map is
/// worth a run. All their values begin with `x`.
fn fill(small: &Small, newest: u64, name: &str) {
    for number in 0..5 {
        let key = format!("~{name}{number}");
        small.put(0, &key, &"x".repeat(1000));
        small.put(newest, &key, "x");
    }
}

fn spill(small: &Small) {
    assert!(small.spill(), "nothing was written out");
}

/// S4: a batch that found number 1 links in table 1, also when there is a table 2: snapshot 2 has it.
#[test]
fn s04_links_go_to_the_newest_table_of_their_number() {
    let small = Small::with(&["a", "b"]);
    small.admit("a");
    let first = small.begin(1);
    let second = small.begin(2);
    // Linked, and marked.
    small.put(1, "a", "a1");
    small.put(1, "b", "b1");
    for _ in 0..2 {
        assert_eq!(all(&*first), "a0 b0");
        assert_eq!(all(&*second), "a1 b1");
        assert_eq!(
            (get(&*second, "a").unwrap(), get(&*second, "b").unwrap()),
            ("a1".into(), "b1".into())
        );
        small.write_back();
        small.evict();
    }
}

/// S5: the first link of a key in a map stays.
#[test]
fn s05_the_first_link_stays() {
    let small = Small::with(&["a"]);
    small.admit("a");
    let snapshot = small.begin(1);
    small.put(1, "a", "a1");
    small.put(1, "a", "a2");
    assert_eq!(get(&*snapshot, "a").unwrap(), "a0");
    assert_eq!(all(&*snapshot), "a0");
}

/// S5: the same where the first came from the page.
#[test]
fn s05_what_was_brought_home_stays() {
    let small = Small::with(&["a"]);
    let snapshot = small.begin(1);
    small.put(1, "a", "a1");
    small.write_back();
    small.put(1, "a", "a2");
    small.write_back();
    small.evict();
    small.put(1, "a", "a3");
    small.write_back();
    assert_eq!(get(&*snapshot, "a").unwrap(), "a0");
    assert_eq!(all(&*snapshot), "a0");
}

/// S6: of the links of a key in several tables the oldest counts.
#[test]
fn s06_of_tables_the_oldest_wins() {
    let small = Small::with(&["a", "b"]);
    small.admit("a");
    small.admit("b");
    let snapshots: Vec<_> = (1..5_u64)
        .map(|number| {
            let snapshot = small.begin(number);
            small.put(number, "a", &format!("a{number}"));
            if number > 2 {
                small.put(number, "b", &format!("b{number}"));
            }
            snapshot
        })
        .collect();
    for (snapshot, wanted) in snapshots.iter().zip(["a0 b0", "a1 b0", "a2 b0", "a3 b3"]) {
        assert_eq!(all(&**snapshot), wanted);
        assert_eq!(get(&**snapshot, "a").unwrap(), wanted[..2]);
    }
}

/// S6: a key that is linked again after its map was written out keeps its first link, also in another
/// run.
#[test]
fn s06_of_layers_the_oldest_wins() {
    let small = Small::with(&["a"]);
    small.admit("a");
    let snapshot = small.begin(1);
    for round in 1..12 {
        small.put(1, "a", &format!("a{round}"));
        assert_eq!(get(&*snapshot, "a").unwrap(), "a0", "round {round}");
        assert_eq!(all(&*snapshot), "a0", "round {round}");
        fill(&small, 1, &format!("{round:02}"));
        spill(&small);
        assert_eq!(get(&*snapshot, "a").unwrap(), "a0", "round {round}");
        if small.images.background().unwrap() {
            let mut runs = 0;
            small.images.each_run(|_| runs += 1);
            assert!(runs < 8, "no merge");
        }
    }
}

/// S7: the engine is asked first. A write that comes before its answer has linked what it replaced.
#[test]
fn s07_the_engine_is_asked_first() {
    let small = Small::with(&["a"]);
    small.admit("a");
    let snapshot = small.begin(1);
    small.at(Step::Get, |small| small.put(1, "a", "a1"));
    assert_eq!(get(&*snapshot, "a").unwrap(), "a0");
    let hashed = [(b"a".as_slice(), hash(b"a"))];
    let again = small.begin(2);
    small.at(Step::Get, |small| small.put(2, "a", "a2"));
    let found = again.get_many(&hashed).unwrap();
    assert_eq!(found, [Some(OwnedValue { bytes: b"a1".to_vec(), large: false })]);
}

/// S9: a marked key is brought home between the look at its mark and the lock of its page.
#[test]
fn s09_marks_are_compared_under_the_lock() {
    let small = Small::with(&["a"]);
    let snapshot = small.begin(1);
    small.put(1, "a", "a1");
    small.at(Step::GetBehind, Small::write_back);
    assert_eq!(get(&*snapshot, "a").unwrap(), "a0");
}

/// S9: the same, and then its map is written out, the record leaves the cache, and a write marks the
/// key for the same table again.
#[test]
fn s09_marks_are_compared_by_number() {
    let small = Small::with(&["a"]);
    let snapshot = small.begin(1);
    fill(&small, 1, "");
    small.put(1, "a", "a1");
    small.at(Step::GetBehind, |small| {
        small.write_back();
        spill(small);
        small.evict();
        small.put(1, "a", "a2");
        assert_eq!(small.images.stats().marks, 1);
    });
    assert_eq!(get(&*snapshot, "a").unwrap(), "a0");
    assert_eq!(all(&*snapshot), "a0");
}

/// S12: links are laid over after the engine delivered, and a write that came before that has linked.
#[test]
fn s12_links_are_laid_over_afterwards() {
    let small = Small::with(&["a", "b", "c"]);
    small.admit("a");
    let snapshot = small.begin(1);
    for step in [Step::Scan, Step::Scanned] {
        small.at(step, |small| {
            small.put(1, "a", "a1");
            small.put(1, "b", "b1");
            small.remove(1, "c");
            small.put(1, "d", "d1");
        });
        assert_eq!(scan(&*snapshot, Direction::Forward, 10), "a0 b0 c0");
    }
    small.at(Step::Scan, Small::write_back);
    assert_eq!(scan(&*snapshot, Direction::Reverse, 2), "a0 b0 c0");
    assert_eq!(all(&*snapshot), "a0 b0 c0");
}

/// S12: where an older table has a mark for a key, its page counts, and no link of a newer table.
#[test]
fn s12_pages_of_older_marks_count() {
    let small = Small::with(&["a", "b"]);
    let first = small.begin(1);
    small.put(1, "a", "a1");
    let second = small.begin(2);
    small.put(2, "a", "a2");
    let third = small.begin(3);
    small.remove(3, "a");
    assert_eq!((small.images.stats().marks, small.images.stats().links), (1, 2));
    assert_eq!(
        (all(&*first), all(&*second), all(&*third)),
        ("a0 b0".into(), "a1 b0".into(), "a2 b0".into())
    );
}

/// S14: a table stays, and takes links, while an older snapshot lives.
#[test]
fn s14_tables_stay_for_older_snapshots() {
    let small = Small::with(&["a", "b", "c"]);
    ["a", "b"].iter().for_each(|key| small.admit(key));
    let first = small.begin(1);
    let second = small.begin(2);
    small.put(2, "a", "a1");
    drop(second);
    small.put(2, "b", "b1");
    small.put(2, "c", "c1");
    assert_eq!(all(&*first), "a0 b0 c0");
    small.write_back();
    small.evict();
    assert_eq!(all(&*first), "a0 b0 c0");
    assert_eq!(get(&*first, "c").unwrap(), "c0");
    drop(first);
    assert!(small.images.is_empty());
}

/// S15: tables are not folded beneath a snapshot that tells them apart.
#[test]
fn s15_snapshots_keep_tables_apart() {
    let small = Small::with(&["a", "b"]);
    ["a", "b"].iter().for_each(|key| small.admit(key));
    let first = small.begin(1);
    small.put(1, "a", "a1");
    let second = small.begin(2);
    small.put(2, "b", "b1");
    drop(small.begin(3));
    assert_eq!(small.images.tables.load().len(), 2, "table 2 goes into table 3");
    assert_eq!(all(&*first), "a0 b0");
    assert_eq!(all(&*second), "a1 b0");
    drop(first);
    assert_eq!(all(&*second), "a1 b0");
}

/// S15: a table is not folded while it has marks.
#[test]
fn s15_marks_keep_tables_apart() {
    let small = Small::with(&["a", "b", "c"]);
    ["a", "b"].iter().for_each(|key| small.admit(key));
    let first = small.begin(1);
    small.put(1, "a", "a1");
    small.put(1, "c", "c1");
    let second = small.begin(2);
    small.put(2, "b", "b1");
    drop(small.begin(3));
    assert_eq!(all(&*first), "a0 b0 c0");
    assert_eq!(all(&*second), "a1 b0 c1");
    drop(second);
    assert_eq!(all(&*first), "a0 b0 c0");
    small.write_back();
    small.images.trim();
    assert_eq!(small.images.tables.load().len(), 1, "nothing was folded");
    assert_eq!(all(&*first), "a0 b0 c0");
}

/// S15: what is older counts in the folded table.
#[test]
fn s15_older_layers_come_first() {
    let small = Small::with(&["a"]);
    small.admit("a");
    let first = small.begin(1);
    small.put(1, "a", "a1");
    fill(&small, 1, "1");
    spill(&small);
    let second = small.begin(2);
    small.put(2, "a", "a2");
    fill(&small, 2, "2");
    spill(&small);
    drop(second);
    assert_eq!(small.images.tables.load().len(), 1, "nothing was folded");
    assert_eq!(get(&*first, "a").unwrap(), "a0");
    assert_eq!(all(&*first), "a0");
}

/// Keeps more than there may be, without writing anything out.
fn overfill(small: &Small, newest: u64) {
    for number in 0..300 {
        let key = format!("~{number:03}");
        small.put(0, &key, &"x".repeat(4000));
        small.put(newest, &key, "");
    }
}

fn try_get(snapshot: &dyn EngineSnapshot, key: &str) -> Result<(), ErrorKind> {
    let key = key.as_bytes();
    snapshot.get(key, hash(key), &mut Vec::new()).map(drop).map_err(|error| error.kind())
}

/// S16: a write whose pre-image has no room ends all snapshots before it is seen, and a reader that
/// saw it says so.
#[test]
fn s16_whether_it_ended_is_asked_afterwards() {
    let small = Small::with(&["a", "b"]);
    small.admit("a");
    let snapshot = small.begin(1);
    small.at(Step::Get, |small| {
        overfill(small, 1);
        small.put(1, "a", "a1");
    });
    assert_eq!(try_get(&*snapshot, "a"), Err(ErrorKind::SnapshotTooOld));
    assert_eq!(try_get(&*snapshot, "b"), Err(ErrorKind::SnapshotTooOld));
    assert!(snapshot.stats().ended);
    let next = small.begin(2);
    assert!(small.images.background().is_ok());
    assert_eq!(get(&*next, "a").unwrap(), "a1");
    drop(snapshot);
    assert_eq!(get(&*next, "a").unwrap(), "a1");
}

/// S16: the same for a scan, and for a record that is brought home.
#[test]
fn s16_scans_say_that_it_ended() {
    let small = Small::with(&["a"]);
    let snapshot = small.begin(1);
    small.put(1, "a", "a1");
    small.at(Step::Scan, |small| {
        overfill(small, 1);
        small.write_back();
    });
    let request = spinney_engine::ScanRequest {
        lower: Bound::Unbounded,
        upper: Bound::Unbounded,
        direction: Direction::Forward,
        records_wanted: 10,
        records_max: 10,
        bytes_max: usize::MAX,
        keys_only: false,
    };
    let mut chunk = spinney_engine::Chunk::default();
    let error = snapshot.scan(&request, &mut chunk).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SnapshotTooOld);
    assert_eq!(chunk.len(), 0);
}

/// Many snapshots keep a little each: no map fills a page, and all of them are far more than the bound.
#[test]
fn s16_many_small_maps_are_written_out() {
    let small = Small::new();
    let name = |number: u64| format!("{number:03}");
    let snapshots: Vec<_> = (1..=400)
        .map(|number| {
            small.put(0, &name(number), &"x".repeat(3000));
            let snapshot = small.begin(number);
            small.put(number, &name(number), "");
            small.images.relieve().unwrap();
            snapshot
        })
        .collect();
    let bytes = small.images.link_bytes();
    assert!(bytes <= small.images.bound(), "{bytes} bytes of links");
    for (snapshot, number) in snapshots.iter().zip(1..) {
        assert_eq!(get(&**snapshot, &name(number)).unwrap(), "x".repeat(3000), "{number}");
    }
}

/// Runs take no more than they may: the oldest snapshot ends, and no younger one.
#[test]
fn s16_past_the_bound_of_runs_the_oldest_ends() {
    let small = Small::with(&["a"]);
    small.admit("a");
    small.images.follow(0, 0);
    let first = small.begin(1);
    small.put(1, "a", "a1");
    fill(&small, 1, "");
    let second = small.begin(2);
    assert!(small.spill());
    assert_eq!(try_get(&*first, "a"), Err(ErrorKind::SnapshotTooOld));
    assert_eq!(get(&*second, "a").unwrap(), "a1");
}

/// A key of a run of records.
fn key(number: usize) -> Vec<u8> {
    format!("k{number:05}").into_bytes()
}

/// What a run has of a key.
fn link(number: usize) -> Link {
    let bytes = vec![number as u8; number % 300];
    match number % 7 {
        0 => None,
        1 => Some(OwnedValue { bytes: vec![number as u8; 16], large: true }),
        _ => Some(OwnedValue { bytes, large: false }),
    }
}

/// A run of the links of these keys, and how many pages it has.
fn run(disk: &SimDisk, numbers: impl ExactSizeIterator<Item = usize>) -> (Run, u64) {
    let pages = Pages::of(small::store(&small::context(disk)));
    let mut writer = RunWriter::new(pages.clone(), (1, 0), numbers.len() as u64);
    for number in numbers {
        let value = link(number);
        let key = key(number);
        writer.push(&key, hash(&key), value.as_ref().map(OwnedValue::as_value)).unwrap();
    }
    let run = writer.finish().unwrap();
    let count = *pages.hold();
    (run, count)
}

#[test]
fn runs_have_what_was_pushed() {
    const COUNT: usize = 12_000;
    // Even numbers only.
    let (run, pages) = run(&SimDisk::new(1), (0..COUNT).step_by(2));
    assert!(pages > 2 * 64, "{pages} pages");
    for number in 0..COUNT {
        let found = run.get(&key(number), hash(&key(number))).unwrap();
        assert_eq!(found, (number % 2 == 0).then(|| link(number)), "key {number}");
    }
    assert_eq!(run.get(b"a", hash(b"a")).unwrap(), None);
    let mut random = 1_usize;
    let mut below = |limit: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % limit
    };
    for _ in 0..200 {
        let (one, other) = (below(COUNT + 10), below(COUNT + 10));
        let (low, high) = (key(one.min(other)), key(one.max(other)));
        let bound = |kind: usize, key: &[u8]| match kind {
            0 => Bound::Included(key.to_vec()),
            1 => Bound::Excluded(key.to_vec()),
            _ => Bound::Unbounded,
        };
        let (lower, upper) = (bound(below(3), &low), bound(below(3), &high));
        if low == high && matches!((&lower, &upper), (Bound::Excluded(_), Bound::Excluded(_))) {
            continue;
        }
        let range = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
        let is_in = |key: &[u8]| std::ops::RangeBounds::<[u8]>::contains(&range, key);
        let mut wanted: Vec<usize> =
            (0..COUNT).step_by(2).filter(|number| is_in(&key(*number))).collect();
        let most = 1 + below(2 * COUNT);
        for forward in [true, false] {
            if !forward {
                wanted.reverse();
            }
            let mut left = wanted.iter().take(most);
            let mut count = 0;
            let ends = if forward { range } else { (range.1, range.0) };
            run.each(ends, forward, &mut |found, value| {
                let number = *left.next().expect("no more than there are");
                assert_eq!(found, key(number));
                assert_eq!(value.map(OwnedValue::from), link(number));
                count += 1;
                Ok(count < most)
            })
            .unwrap();
            assert_eq!(left.next(), None, "some are missing");
        }
    }
}

/// Bounds that exclude each other, and the largest record that a page may hold.
#[test]
fn runs_at_their_limits() {
    let context = small::context(&SimDisk::new(1));
    let pages = Pages::of(small::store(&context));
    let empty = RunWriter::new(pages.clone(), (1, 0), 0).finish().unwrap();
    assert_eq!((*pages.hold(), empty.get(b"a", hash(b"a")).unwrap()), (0, None));
    let mut writer = RunWriter::new(pages, (1, 0), 3);
    let keys: Vec<Vec<u8>> =
        (0..3_u8).map(|byte| vec![b'a' + byte; spinney_base::limits::KEY_BYTES_MAX]).collect();
    let value = vec![7; spinney_page::RECORD_BYTES_MAX - spinney_base::limits::KEY_BYTES_MAX];
    for key in &keys {
        writer.push(key, hash(key), Some(ValueRef::inline(&value))).unwrap();
    }
    let run = writer.finish().unwrap();
    for key in &keys {
        let link = run.get(key, hash(key)).unwrap().unwrap();
        assert_eq!(link.unwrap().bytes, value);
    }
    let (low, high) = (Bound::Excluded(&keys[0][..]), Bound::Excluded(&keys[1][..]));
    for (ends, forward) in [
        ((low, high), true),
        ((high, low), false),
        ((high, low), true),
        ((low, high), false),
        ((low, low), true),
    ] {
        let mut shown = 0;
        run.each(ends, forward, &mut |_, _| {
            shown += 1;
            Ok(true)
        })
        .unwrap();
        assert_eq!(shown, 0);
    }
}

/// A page that was damaged on disk is named; nothing is made up from it.
#[test]
fn a_damaged_page_is_corruption() {
    let disk = SimDisk::new(1);
    let (run, _) = run(&disk, 0..3000);
    let path = Path::new("/db/keyspace");
    // All pages behind the slots.
    let length = disk.contents(path).unwrap().len() as u64;
    for page in 2..length / 4096 {
        disk.flip_bit(path, page * 4096 + 2000, 0).unwrap();
    }
    let error = run.get(&key(100), hash(&key(100))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    let error = run.each((Bound::Unbounded, Bound::Unbounded), false, &mut |_, _| Ok(true));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Corruption);
}

/// Eight runs that were read become one; of a key in several of them the oldest link stays, absent ones too.
#[test]
fn of_merged_runs_the_oldest_wins() {
    let small = Small::new();
    let name = |number: usize| format!("k{number:02}");
    let snapshot = small.begin(1);
    // Round r replaces keys from r on: the first link of key k is of round 0, that it was absent.
    for round in 0..8 {
        for number in round * 3..40 {
            small.put(1, &name(number), &format!("{number}-{round}"));
        }
        fill(&small, 1, &format!("{round}"));
        spill(&small);
    }
    let second = small.begin(2);
    let wanted: Vec<String> =
        (0..40).map(|number| format!("{number}-{}", (number / 3).min(7))).collect();
    for is_merged in [false, true] {
        let mut runs = 0;
        small.images.each_run(|_| runs += 1);
        assert_eq!(runs, if is_merged { 1 } else { 8 });
        assert_eq!(all(&*snapshot), "");
        assert_eq!(get(&*snapshot, "k39"), None);
        assert_eq!(all(&*second), wanted.join(" "));
        if !is_merged {
            assert!(small.images.background().unwrap());
        }
    }
    drop((snapshot, second));
    assert_eq!(small.images.run_pages(), 0);
}

/// Keys that are written again after each map was written out: their first links alone are on disk, in a run or
/// in the table's older one, however often.
#[test]
fn what_was_linked_again_is_not_written_out() {
    let small = Small::new();
    let name = |number: usize| format!("k{number:04}");
    // Long enough for a run of some pages.
    let value = |round: usize, number: usize| format!("{round}-{number:080}");
    (0..200).for_each(|number| small.put(0, &name(number), &value(9, number)));
    let first = small.begin(1);
    let mut second = None;
    let mut links = Vec::new();
    for round in 0..8 {
        // In the sixth round the newest table is another.
        if round == 6 {
            second = Some(small.begin(2));
        }
        let newest = if round < 6 { 1 } else { 2 };
        (0..200).for_each(|number| small.put(newest, &name(number), &value(round, number)));
        // Nothing is looked up while runs take less than half of what they may.
        let bytes = small.images.run_pages() * PAGE_BYTES as u64;
        small.images.follow(0, if round < 2 { u64::MAX } else { 2 * bytes - 1 });
        spill(&small);
        let mut all = 0;
        small.images.each_run(|run| all += run.len());
        links.push(all);
    }
    assert_eq!(links, [200, 400, 400, 400, 400, 400, 600, 600]);
    let of_round =
        |round| (0..200).map(|number| value(round, number)).collect::<Vec<_>>().join(" ");
    assert_eq!(all(&*first), of_round(9));
    assert_eq!(all(second.as_deref().unwrap()), of_round(5));
    // Folded, the runs of both tables have the same keys, and the older ones count.
    drop(second);
    small.images.trim();
    assert_eq!(small.images.tables.load().len(), 1);
    assert_eq!(all(&*first), of_round(9));
}

/// The bound of disk is for runs that are needed: those that a reader still has after they were merged
/// end no snapshot.
#[test]
fn runs_that_were_merged_away_do_not_count() {
    let small = Small::new();
    let name = |number: usize| format!("k{number:04}");
    (0..400).for_each(|number| small.put(0, &name(number), &"y".repeat(100)));
    let snapshot = small.begin(1);
    let before = all(&*snapshot);
    for _ in 0..8 {
        (0..200).for_each(|number| small.put(1, &name(number), &"x".repeat(100)));
        spill(&small);
    }
    let mut read = Vec::new();
    small.images.each_run(|run| read.push(run.clone()));
    while !small.images.background().unwrap() {
        assert_eq!(all(&*snapshot), before);
    }
    let pages = small.images.run_pages();
    small.images.follow(0, pages / 2 * PAGE_BYTES as u64);
    (200..400).for_each(|number| small.put(1, &name(number), &"x".repeat(100)));
    spill(&small);
    assert_eq!(small.images.stats().ended, 0);
    assert_eq!(all(&*snapshot), before);
    drop(read);
    assert!(small.images.run_pages() < pages / 2);
}

/// Runs that nobody reads are merged when there are very many, and after reads when there are some: puts
/// beside a snapshot that is only held pay for no merge.
#[test]
fn runs_are_merged_for_those_who_read_them() {
    let small = Small::new();
    let snapshot = small.begin(1);
    let runs = || {
        let mut runs = 0;
        small.images.each_run(|_| runs += 1);
        runs
    };
    let read = || small.images.pages.looked();
    for round in 0..63 {
        (0..40).for_each(|number| small.put(1, &format!("{round:02}-{number:02}"), "1"));
        fill(&small, 1, &format!("{round:02}-"));
        spill(&small);
        while small.images.background().unwrap() {}
        assert_eq!((runs(), read()), (round + 1, 0));
    }
    // A reader pays once for what a merge spares it.
    assert_eq!(get(&*snapshot, "00-00"), None);
    assert!(!small.images.background().unwrap() && runs() == 63);
    while read() < 63 * 64 && runs() == 63 {
        assert_eq!(all(&*snapshot), "");
        small.images.background().unwrap();
    }
    assert_eq!((runs(), read()), (1, 0));
    assert_eq!(all(&*snapshot), "");
}

/// A range with more links than are gathered at once, in several sources, where the engine has nothing
/// any more.
#[test]
fn more_links_than_are_gathered_at_once() {
    let small = Small::new();
    let name = |number: usize| format!("k{number:05}");
    let before = small.begin(1);
    (0..9000).for_each(|number| small.put(1, &name(number), &name(number)));
    let all_there = small.begin(2);
    (0..9000).step_by(2).for_each(|number| small.remove(2, &name(number)));
    spill(&small);
    let half = small.begin(3);
    (1..9000).step_by(2).for_each(|number| small.remove(3, &name(number)));
    for (snapshot, first, step) in [(&before, 9000, 1), (&all_there, 0, 1), (&half, 1, 2)] {
        let wanted: Vec<String> = (first..9000).step_by(step).map(name).collect();
        for (direction, most) in [(Direction::Forward, 700), (Direction::Reverse, 10_000)] {
            let found = scan(&**snapshot, direction, most);
            assert!(found == wanted.join(" "), "{direction:?}, {} bytes", found.len());
        }
    }
}
