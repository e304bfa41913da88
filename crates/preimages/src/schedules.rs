//! What readers, writers, write-back, spills and folds owe each other, under schedules that may stop a
//! thread at any lock or atomic: `cargo test -p spinney-preimages --features shuttle --lib schedules`.

use std::sync::Arc;

use shuttle::thread::{JoinHandle, spawn};
use spinney_base::schedules::check;
use spinney_base::shim::atomic::{AtomicUsize, Ordering::SeqCst};
use spinney_engine::{Direction, EngineSnapshot};

use crate::small::{Small, get, hash, scan};

/// A thread that does something with the engine.
fn thread(small: &Arc<Small>, body: impl FnOnce(&Small) + Send + 'static) -> JoinHandle<()> {
    let small = Arc::clone(small);
    spawn(move || body(&small))
}

/// What a snapshot has of `a`, looked up and scanned from both ends.
fn is_first(snapshot: &dyn EngineSnapshot) {
    assert_eq!(get(snapshot, "a").unwrap(), "a0");
    for direction in [Direction::Forward, Direction::Reverse] {
        let found = scan(snapshot, direction, 10);
        assert!(found.starts_with("a0"), "the scan found {:?}", &found[..2]);
    }
}

/// Writes as batches do: announced, with a number that was found after that.
fn announced(small: &Small, body: impl FnOnce()) {
    let _announced = small.images.context.log.announce();
    body();
}

/// Keeps so much for table 1 that its map is worth a run.
fn fill(small: &Small) {
    for key in ["~1", "~2"] {
        small.put(0, key, &"x".repeat(2500));
        small.put(1, key, "x");
    }
}

/// S6: a reader that looks from the newest table to the oldest finds the link of the older table, if
/// that of the newer one. (From the oldest to the newest it passes the first over, and takes the
/// second.)
#[test]
fn s06_a_reader_passes_none_over() {
    check(1000, || {
        let small = Small::with(&["a"]);
        small.admit("a");
        let snapshot = small.begin(1);
        let _second = small.begin(2);
        let writer = thread(&small, |small| {
            small.put(1, "a", "a1");
            small.put(2, "a", "a2");
        });
        (0..2).for_each(|_| is_first(&*snapshot));
        writer.join().unwrap();
        is_first(&*snapshot);
    });
}

/// S7: in each table the mark is looked up again. A key is marked for table 1 after a reader looked at
/// its mark, and linked in table 2 before the reader comes there.
#[test]
fn s07_marks_are_looked_up_anew() {
    check(2000, || {
        let small = Small::with(&["a"]);
        let snapshot = small.begin(1);
        let _second = small.begin(2);
        let writer = thread(&small, |small| {
            small.put(1, "a", "a1");
            small.put(2, "a", "a2");
        });
        is_first(&*snapshot);
        writer.join().unwrap();
        is_first(&*snapshot);
    });
}

/// A slot that another table gets while a mark is looked at: the mark is of its own table, or gone.
#[test]
fn s07_a_slot_is_another_tables_only_afterwards() {
    check(2000, || {
        let small = Small::with(&["a", "b"]);
        let _snapshots = [small.begin(1), small.begin(15)];
        small.put(1, "a", "a1");
        let writer = thread(&small, |small| {
            small.write_back();
            small.put(15, "b", "b1");
        });
        let mark = small.images.marks.get(b"a", hash(b"a"));
        assert!(mark.is_none_or(|mark| mark.table == 1), "{mark:?}");
        writer.join().unwrap();
        assert_eq!(small.images.marks.get(b"b", hash(b"b")).unwrap().note, 2);
    });
}

/// S7: the mark is looked at before the map. The map is written out, and then the marked key is linked
/// in the next one.
#[test]
fn s07_marks_come_before_maps() {
    check(2000, || {
        let small = Small::with(&["a"]);
        let snapshot = small.begin(1);
        fill(&small);
        small.put(1, "a", "a1");
        let writer = thread(&small, |small| {
            small.spill();
            small.write_back();
        });
        (0..2).for_each(|_| is_first(&*snapshot));
        writer.join().unwrap();
        is_first(&*snapshot);
    });
}

/// S10: a key that is brought home is linked before its mark goes, and both before the page is
/// rewritten; S9: a reader that saw the mark looks whether it is still there.
#[test]
fn s10_a_key_on_its_way_home_is_found() {
    check(1000, || {
        let small = Small::with(&["a"]);
        let snapshot = small.begin(1);
        small.put(1, "a", "a1");
        let writer = thread(&small, |small| {
            small.write_back();
            small.evict();
            small.put(1, "a", "a2");
            small.write_back();
        });
        (0..2).for_each(|_| is_first(&*snapshot));
        writer.join().unwrap();
        is_first(&*snapshot);
    });
}

/// S12: a key that is marked for table 1 and linked in table 2 is brought home while a scan gathers
/// links: the page counts, or the link that it became.
#[test]
fn s12_marks_that_go_during_a_scan() {
    check(2000, || {
        let small = Small::with(&["a"]);
        let snapshot = small.begin(1);
        small.put(1, "a", "a1");
        let second = small.begin(2);
        small.put(2, "a", "a2");
        let writer = thread(&small, |small| {
            small.write_back();
            small.put(2, "a", "a3");
        });
        is_first(&*snapshot);
        assert_eq!(scan(&*second, Direction::Forward, 10), "a1");
        writer.join().unwrap();
        is_first(&*snapshot);
        assert_eq!(get(&*second, "a").unwrap(), "a1");
    });
}

/// S12: the same, and the map that the link goes to was made after the scan looked at the table.
#[test]
fn s12_marks_that_go_to_a_new_map() {
    check(2000, || {
        let small = Small::with(&["a"]);
        let snapshot = small.begin(1);
        small.put(1, "a", "a1");
        fill(&small);
        let _second = small.begin(2);
        small.put(2, "a", "a2");
        let writer = thread(&small, |small| {
            small.spill();
            small.write_back();
        });
        is_first(&*snapshot);
        writer.join().unwrap();
        is_first(&*snapshot);
    });
}

/// S13: a link that an announced writer appended to a map before it was sealed is in the run.
#[test]
fn s13_late_links_are_written_out() {
    check(1000, || {
        let small = Small::with(&["a"]);
        small.admit("a");
        let snapshot = small.begin(1);
        fill(&small);
        let writer = thread(&small, |small| announced(small, || small.put(1, "a", "a1")));
        small.spill();
        writer.join().unwrap();
        is_first(&*snapshot);
    });
}

/// S13: the same for what is brought home, by nobody that is announced.
#[test]
fn s13_what_comes_home_late_is_written_out() {
    check(1000, || {
        let small = Small::with(&["a"]);
        let snapshot = small.begin(1);
        fill(&small);
        small.put(1, "a", "a1");
        let home = thread(&small, Small::write_back);
        small.spill();
        home.join().unwrap();
        is_first(&*snapshot);
    });
}

/// S15: tables are folded while a key is brought home, a map is written out, and a reader looks.
#[test]
fn s15_folds_beside_others() {
    check(1000, || {
        let small = Small::with(&["a", "b"]);
        small.admit("b");
        let snapshot = small.begin(1);
        fill(&small);
        small.put(1, "a", "a1");
        let second = small.begin(2);
        small.put(2, "a", "a2");
        small.put(2, "b", "b1");
        let home = thread(&small, Small::write_back);
        let folds = thread(&small, move |small| {
            drop(second);
            small.images.trim();
        });
        let spills = thread(&small, |small| _ = small.spill());
        is_first(&*snapshot);
        [home, folds, spills].into_iter().for_each(|thread| thread.join().unwrap());
        small.images.trim();
        assert_eq!(small.images.tables.load().len(), 1, "nothing was folded");
        is_first(&*snapshot);
        assert_eq!(get(&*snapshot, "b").unwrap(), "b0");
    });
}

/// Write-backs that together would link more than there is room for come one after another: of four, of
/// which each wants 10 KiB of 24, two have room, and one has its turn.
#[test]
fn room_for_links_is_not_given_twice() {
    check(500, || {
        let small = Small::new();
        let _snapshot = small.begin(1);
        // Each counts 256 bytes, as long as nothing has been linked.
        (0..40).for_each(|key| small.put(1, &key.to_string(), "new"));
        let under_way = Arc::new(AtomicUsize::new(0));
        let write_back = || {
            let under_way = under_way.clone();
            thread(&small, move |small| {
                let room = small.images.room_for_links(1000).unwrap();
                let others = under_way.fetch_add(1, SeqCst);
                assert!(others < 3, "room for {} write-backs", others + 1);
                // As long as a write-back may take.
                (0..20).for_each(|_| shuttle::thread::yield_now());
                under_way.fetch_sub(1, SeqCst);
                drop(room);
            })
        };
        let threads = [write_back(), write_back(), write_back(), write_back()];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// All at once: two writers, of the number before and of this one; write-back, eviction, spills and
/// folds; snapshots that are taken and dropped; and a reader, who finds the same all the time.
#[test]
fn snapshots_do_not_move() {
    check(1500, || {
        let small = Small::with(&["a", "b", "c"]);
        ["a", "c"].iter().for_each(|key| small.admit(key));
        small.put(0, "c", "c1");
        let snapshot = small.begin(1);
        fill(&small);
        let second = small.begin(2);
        let late = thread(&small, |small| {
            announced(small, || small.put(1, "b", "b1"));
            announced(small, || small.remove(1, "a"));
        });
        let writer = thread(&small, |small| {
            announced(small, || small.put(2, "c", "c2"));
            announced(small, || small.put(2, "d", "d1"));
        });
        let background = thread(&small, |small| {
            small.write_back();
            small.evict();
            small.spill();
            small.admit("b");
            small.write_back();
        });
        let wanted = |snapshot: &dyn EngineSnapshot, direction| {
            let found = scan(snapshot, direction, 2);
            assert_eq!(found.split(' ').take(3).collect::<Vec<_>>(), ["a0", "b0", "c1"]);
            for (key, value) in
                [("a", Some("a0")), ("b", Some("b0")), ("c", Some("c1")), ("d", None)]
            {
                assert_eq!(get(snapshot, key).as_deref(), value);
            }
        };
        wanted(&*snapshot, Direction::Forward);
        late.join().unwrap();
        // Handed out now, and what the writer of the number before wrote is in it.
        assert_eq!(get(&*second, "a"), None);
        assert_eq!(get(&*second, "b").unwrap(), "b1");
        assert_eq!(get(&*second, "c").unwrap(), "c1");
        assert_eq!(get(&*second, "d"), None);
        drop(second);
        wanted(&*snapshot, Direction::Reverse);
        [writer, background].into_iter().for_each(|thread| thread.join().unwrap());
        wanted(&*snapshot, Direction::Forward);
    });
}
