//! The cache against a map of what every page holds, with a budget that changes at random; and the
//! promises of its documentation one by one.
#![cfg(not(feature = "shuttle"))]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use spinney_base::limits::PAGE_BYTES;
use spinney_base::runtime::SplitMix;
use spinney_base::{Error, ErrorKind, Generation, PageNumber};
use spinney_cache::{Cache, CacheFile, FRAME_BYTES, Kind, PageId};

const VALUES: Kind = Kind::new(0, "values", 1);
const KEYS: Kind = Kind::new(1, "keys", 2);
const INDEX: Kind = Kind::new(2, "index", 3);
const FILTER: Kind = Kind::new(3, "filter", 4);
const NODE: Kind = Kind::new(4, "node", 5);

const KINDS: [Kind; 5] = [VALUES, KEYS, INDEX, FILTER, NODE];

fn id(page: u32, generation: u32, kind: Kind) -> PageId {
    PageId { page: PageNumber(page), generation: Generation(generation), kind }
}

/// What a page of a file holds: its own name all over.
fn fill(file: u8, id: PageId, out: &mut [u8; PAGE_BYTES]) {
    let word = u64::from(file) << 56 | u64::from(id.generation.0) << 32 | u64::from(id.page.0);
    for (at, bytes) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = (word ^ (at as u64) << 40).to_le_bytes();
    }
}

fn is_whole(file: u8, id: PageId, bytes: &[u8; PAGE_BYTES]) -> bool {
    let mut expected = [0; PAGE_BYTES];
    fill(file, id, &mut expected);
    *bytes == expected
}

/// A budget of so many frames beside the tables of one file of less than 1024 pages.
fn frames(count: u64) -> u64 {
    count * FRAME_BYTES + 4096
}

fn read(file: &CacheFile, number: u8, id: PageId) -> bool {
    let loaded = Cell::new(false);
    let page = file
        .get(id, |out| {
            loaded.set(true);
            fill(number, id, out);
            Ok(())
        })
        .unwrap();
    assert!(is_whole(number, id, &page), "{id:?}");
    loaded.get()
}

fn one_life(seed: u64) {
    let mut random = SplitMix(seed);
    let cache = Cache::new(frames(20));
    let mut files: Vec<CacheFile> = (0..2).map(|_| cache.file()).collect();
    let mut generations = vec![[1u32; 64]; 2];
    for _ in 0..4000 {
        let number = random.below(2);
        let page = random.below(64) as u32;
        // One kind a page, so that what is cached can be asked for.
        let id = id(page, generations[number][page as usize], KINDS[page as usize % 5]);
        let file = &files[number];
        match random.below(100) {
            0..50 => {
                read(file, number as u8, id);
            }
            50..65 => {
                let mut out = [0; 100];
                let offset = random.below(PAGE_BYTES - 100);
                if file.copy(id, offset, &mut out) {
                    let mut expected = [0; PAGE_BYTES];
                    fill(number as u8, id, &mut expected);
                    assert_eq!(out, expected[offset..offset + 100], "{id:?} at {offset}");
                }
            }
            65..70 => {
                if let Some(page) = file.peek(id) {
                    assert!(is_whole(number as u8, id, &page));
                }
            }
            70..75 => {
                let mut bytes = [0; PAGE_BYTES];
                fill(number as u8, id, &mut bytes);
                file.insert(id, &bytes);
            }
            75..80 => {
                // Another extent lies there from now on.
                let pages = 1 + random.below(8) as u32;
                file.forget(PageNumber(page), pages);
                for page in (page..page + pages).take_while(|page| *page < 64) {
                    generations[number][page as usize] += 1;
                }
            }
            80..85 => {
                let error = file.get(id, |_| Err(Error::new(ErrorKind::Io, "on demand")));
                assert!(
                    error.is_ok()
                        || !read(file, number as u8, id)
                        || file.peek(id).is_none_or(|page| is_whole(number as u8, id, &page))
                );
            }
            85..95 => {
                let ids: Vec<PageId> = (0..random.below(6))
                    .map(|_| random.below(64))
                    .map(|page| self::id(page as u32, generations[number][page], KINDS[page % 5]))
                    .collect();
                file.prefetch_many(&ids, |missing, buffer| {
                    for missing in missing {
                        fill(number as u8, missing.id, buffer.page_mut(missing.place));
                    }
                    Ok(())
                })
                .unwrap();
            }
            95..98 => cache.set_bytes(random.below(40) as u64 * FRAME_BYTES),
            98 => cache.set_bytes(frames(20)),
            _ => {
                let fresh = cache.file();
                files[number] = fresh;
                generations[number] = [random.below(5) as u32 + 1; 64];
            }
        }
        let tables = 2 * 4096;
        assert!(cache.used() <= cache.bytes().max(tables), "{:?}", cache.stats());
    }
    drop(files);
    let stats = cache.stats();
    assert_eq!((stats.hot_pages, stats.cold_pages), (0, 0), "dropped files leave nothing");
    cache.set_bytes(0);
    assert_eq!(cache.used(), 0);
}

#[test]
fn pages_are_what_they_were_said_to_be_within_any_budget() {
    for seed in 0..60 {
        println!("seed {seed}");
        one_life(seed);
    }
}

#[test]
fn a_failed_load_leaves_nothing_behind() {
    let cache = Cache::new(frames(4));
    let file = cache.file();
    let id = id(7, 1, KEYS);
    let error = file.get(id, |_| Err(Error::new(ErrorKind::Io, "on demand"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(file.peek(id).is_none());
    assert!(read(&file, 0, id) && !read(&file, 0, id));
    let loader =
        std::panic::AssertUnwindSafe(|| file.get(self::id(8, 1, KEYS), |_| panic!("in a loader")));
    assert!(std::panic::catch_unwind(|| loader().map(|_| ())).is_err());
    assert!(read(&file, 0, self::id(8, 1, KEYS)));
}

#[test]
fn priority_survives_a_flood() {
    let cache = Cache::new(frames(100));
    let file = cache.file();
    for page in 0..20 {
        read(&file, 0, id(page, 1, FILTER));
    }
    for page in 20..40 {
        read(&file, 0, id(page, 1, KEYS));
    }
    for page in 100..1000 {
        read(&file, 0, id(page, 1, VALUES));
        if page % 300 == 0 {
            (20..40).for_each(|page| assert!(!read(&file, 0, id(page, 1, KEYS))));
        }
    }
    let lost = |range: std::ops::Range<u32>, kind| {
        range.filter(|page| file.peek(id(*page, 1, kind)).is_none()).count()
    };
    assert_eq!(lost(0..20, FILTER), 0, "{:?}", cache.stats());
    assert_eq!(lost(20..40, KEYS), 0, "{:?}", cache.stats());
}

/// Whatever was hot leaves in the end when it is never used again.
#[test]
fn what_is_not_used_any_more_leaves() {
    let cache = Cache::new(frames(64));
    let file = cache.file();
    for page in (0..40).chain(0..40) {
        read(&file, 0, id(page, 1, FILTER));
    }
    for round in 0..20 {
        for page in (100..150).chain(100..150) {
            read(&file, 0, id(page + round % 2 * 50, 1, KEYS));
        }
    }
    let left = (0..40).filter(|page| file.peek(id(*page, 1, FILTER)).is_some()).count();
    assert!(left < 10, "{left} are left");
}

#[test]
fn what_a_little_more_would_have_spared_is_regretted() {
    let rounds = |pages: u32| {
        let cache = Cache::new(frames(320));
        let file = cache.file();
        for _ in 0..10 {
            (0..pages).for_each(|page| _ = read(&file, 0, id(page, 1, VALUES)));
        }
        cache.stats()
    };
    assert_eq!(rounds(320).regretted, 0, "all fit");
    let close = rounds(335);
    let misses = close.total().misses;
    assert!(close.regretted * 10 > misses * 8, "{close:?}");
    assert_eq!(close.regret_bytes, 20 * FRAME_BYTES);
    assert_eq!(rounds(500).regretted, 0, "a sixteenth more would not have helped");
}

#[test]
fn when_all_is_pinned_a_page_is_read_into_a_buffer_of_its_own() {
    let cache = Cache::new(frames(3));
    let file = cache.file();
    let load = |id: PageId| {
        file.get(id, move |out| {
            fill(0, id, out);
            Ok(())
        })
        .unwrap()
    };
    let pinned: Vec<_> = (0..3).map(|page| load(id(page, 1, NODE))).collect();
    assert!(pinned.iter().all(|page| page.is_cached()));
    let fourth = load(id(3, 1, NODE));
    assert!(!fourth.is_cached() && is_whole(0, id(3, 1, NODE), &fourth));
    cache.set_bytes(frames(1));
    assert_eq!(cache.used(), frames(3), "what is pinned stays");
    drop(pinned);
    read(&file, 0, id(4, 1, NODE));
    assert!(cache.used() <= frames(1));
    assert!(read(&file, 0, id(5, 1, NODE)) && !read(&file, 0, id(5, 1, NODE)));
}

/// Threads that miss, hit, evict, forget and change the budget at once; every page is whole and the
/// one that was asked for.
#[test]
fn threads_see_only_whole_pages_of_their_own() {
    let cache = Cache::new(frames(30));
    let file = Arc::new(cache.file());
    let stop = Arc::new(AtomicBool::new(false));
    let (loads, hits) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let readers: Vec<_> = (0..4u64)
        .map(|seed| {
            let (file, stop) = (Arc::clone(&file), Arc::clone(&stop));
            let (loads, hits) = (Arc::clone(&loads), Arc::clone(&hits));
            let body = move || {
                let mut random = SplitMix(seed);
                while !stop.load(Relaxed) {
                    let page = random.below(64) as u32;
                    let id = id(page, 1 + random.below(20) as u32 / 19, KINDS[page as usize % 5]);
                    let mut out = [0; 100];
                    let offset = random.below(PAGE_BYTES - 100);
                    if random.below(2) == 0 && file.copy(id, offset, &mut out) {
                        let mut expected = [0; PAGE_BYTES];
                        fill(0, id, &mut expected);
                        assert_eq!(out, expected[offset..offset + 100], "{id:?}");
                        hits.fetch_add(1, Relaxed);
                    } else if read(&file, 0, id) {
                        loads.fetch_add(1, Relaxed);
                    } else {
                        hits.fetch_add(1, Relaxed);
                    }
                }
            };
            spinney_base::shim::thread::spawn("reader", body).unwrap()
        })
        .collect();
    let mut random = SplitMix(99);
    for _ in 0..300 {
        cache.set_bytes(frames(1 + random.below(40) as u64));
        assert!(cache.used() <= cache.bytes() + 8 * FRAME_BYTES);
        file.forget(PageNumber(random.below(64) as u32), 8);
        spinney_base::Runtime::threads().sleep(std::time::Duration::from_millis(2));
    }
    stop.store(true, Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    println!("{loads:?} loads, {hits:?} hits, {:?}", cache.stats());
    assert!(loads.load(Relaxed) > 0 && hits.load(Relaxed) > 0);
    cache.set_bytes(0);
    assert_eq!(cache.used(), 4096, "only the table is left");
}

/// Eight threads miss the same page: it is loaded once.
#[test]
fn one_load_serves_all_who_miss() {
    for round in 0..50 {
        let cache = Cache::new(frames(8));
        let file = Arc::new(cache.file());
        let loads = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (file, loads) = (Arc::clone(&file), Arc::clone(&loads));
                let body = move || {
                    let id = id(round, 1, VALUES);
                    let page = file.get(id, |out| {
                        loads.fetch_add(1, Relaxed);
                        spinney_base::Runtime::threads().sleep(std::time::Duration::from_millis(1));
                        fill(0, id, out);
                        Ok(())
                    });
                    assert!(is_whole(0, id, &page.unwrap()));
                };
                spinney_base::shim::thread::spawn("misser", body).unwrap()
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(loads.load(Relaxed), 1);
    }
}
