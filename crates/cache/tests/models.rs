//! Shuttle models of the cache: the code itself under a scheduler that may stop any thread at any
//! access to a state word, a table or a lock, and in the middle of a copy. Run with `cargo test -p
//! spinney-cache --features shuttle --test models`.
#![cfg(feature = "shuttle")]

use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Generation, PageNumber};
use spinney_cache::{Cache, CacheFile, FRAME_BYTES, Kind, PageId};

const KEYS: Kind = Kind::new(1, "keys", 2);

/// Schedules of each model; many more in the full tier.
fn iterations() -> usize {
    match std::env::var("SPINNEY_PROVING").as_deref() {
        Ok("full") => 50_000,
        _ => 1500,
    }
}

fn id(page: u32, generation: u32) -> PageId {
    PageId { page: PageNumber(page), generation: Generation(generation), kind: KEYS }
}

fn mark(id: PageId) -> u8 {
    (id.page.0 * 16 + id.generation.0) as u8
}

fn check(file: &CacheFile, id: PageId) {
    let page = file
        .get(id, |out| {
            out.fill(mark(id));
            Ok(())
        })
        .unwrap();
    assert!(page.iter().all(|byte| *byte == mark(id)), "{id:?} holds {}", page[0]);
}

fn check_copy(file: &CacheFile, id: PageId) {
    let mut out = [0; PAGE_BYTES];
    if file.copy(id, 0, &mut out) {
        assert!(out.iter().all(|byte| *byte == mark(id)), "a torn copy of {id:?}");
    }
}

fn with_frames(count: u64) -> Arc<CacheFile> {
    Arc::new(Cache::new(4096 + count * FRAME_BYTES).file())
}

/// Two threads and the main one do these at the same time.
fn together(
    frames: u64,
    first: impl Fn(&CacheFile) + Send + Sync + Copy + 'static,
    second: impl Fn(&CacheFile) + Send + Sync + Copy + 'static,
    main: impl Fn(&CacheFile) + Send + Sync + Copy + 'static,
) {
    let body = move || {
        let file = with_frames(frames);
        check(&file, id(0, 1));
        let (one, two) = (Arc::clone(&file), Arc::clone(&file));
        let one = shuttle::thread::spawn(move || first(&one));
        let two = shuttle::thread::spawn(move || second(&two));
        main(&file);
        one.join().unwrap();
        two.join().unwrap();
        let cache = Arc::clone(file.cache());
        // What was pinned or being filled when the budget shrank goes now.
        cache.set_bytes(cache.bytes());
        assert!(cache.used() <= cache.bytes().max(4096));
        drop(file);
        let stats = cache.stats();
        assert_eq!((stats.hot_pages, stats.cold_pages), (0, 0), "a frame was lost");
    };
    shuttle::check_random(body, iterations());
    // Evicting and filling a frame takes many steps, in which a reader must not have its turn.
    spinney_base::schedules::check(iterations() as u64, body);
}

/// P27, in the cache: a copy that was validated is of one page, while two frames take in three.
#[test]
fn p27_copies_are_of_one_page() {
    together(
        1,
        |file| {
            check_copy(file, id(0, 1));
            check_copy(file, id(1, 1));
        },
        |file| check(file, id(1, 1)),
        |file| {
            check_copy(file, id(0, 1));
            check(file, id(2, 1));
        },
    );
}

/// Pins keep a page what it is while its frame is wanted for others.
#[test]
fn pinned_pages_stay() {
    let reads = |file: &CacheFile| {
        check(file, id(1, 1));
        check(file, id(2, 1));
    };
    together(2, reads, reads, |file| check(file, id(0, 1)));
}

/// Waiters for a page whose load fails load it themselves; nobody sleeps forever.
#[test]
fn a_failed_load_wakes_who_waits() {
    let fails = |file: &CacheFile| {
        let page = file.get(id(5, 1), |_| Err(Error::new(ErrorKind::Io, "on demand")));
        assert!(page.is_err() || page.is_ok_and(|page| page[0] == mark(id(5, 1))));
    };
    together(2, fails, |file| check(file, id(5, 1)), |file| check(file, id(5, 1)));
}

/// A page is given back and allocated again while its neighbours are read and the budget shrinks.
#[test]
fn pages_change_hands() {
    together(
        2,
        |file| {
            file.forget(PageNumber(0), 2);
            check(file, id(0, 2));
        },
        |file| {
            file.cache().set_bytes(4096 + FRAME_BYTES);
            check(file, id(1, 1));
        },
        |file| {
            check_copy(file, id(0, 1));
            check_copy(file, id(0, 2));
            check(file, id(1, 1));
        },
    );
}
