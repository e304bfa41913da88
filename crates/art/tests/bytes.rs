//! The bytes that a map says it holds are those that the allocator gave: a counting allocator under
//! the whole test, which therefore is alone in its program.
#![cfg(not(feature = "shuttle"))]
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Bound;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use spinney_art::{ArtMap, Direction, pin};
use spinney_base::runtime::SplitMix;

struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);

fn count(layout: Layout) -> isize {
    isize::try_from(layout.size()).unwrap()
}

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(count(layout), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(count(layout), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What the epochs themselves keep is of the order of one bag of deferred calls for each thread.
const EPOCHS_BYTES: usize = 16 << 10;

/// Lets all garbage be freed: nobody else is pinned.
fn collect(map: &ArtMap<u64>) {
    for _ in 0..10_000 {
        pin().flush();
        if map.retired_bytes() == 0 {
            return;
        }
    }
    panic!("{} retired bytes are never freed", map.retired_bytes());
}

fn key(random: &mut SplitMix) -> Vec<u8> {
    match random.below(3) {
        0 => random.next_u64().to_be_bytes().to_vec(),
        1 => format!("package-{:05}", random.below(40_000)).into_bytes(),
        _ => [vec![b'u'; 200], random.next_u64().to_be_bytes().to_vec()].concat(),
    }
}

#[test]
fn a_map_takes_what_it_says() {
    let warm_up = ArtMap::new();
    (0..10_000u64).for_each(|number| {
        warm_up.insert(&number.to_be_bytes(), number);
        warm_up.remove(&number.to_be_bytes());
    });
    collect(&warm_up);
    drop(warm_up);

    let before = BYTES.load(Relaxed);
    let map = Box::new(ArtMap::new());
    // The map itself counts; here it is in a box so that the allocator counts it as well.
    let says = |map: &ArtMap<u64>| {
        let given = usize::try_from(BYTES.load(Relaxed) - before).unwrap();
        let held = map.bytes() + map.retired_bytes();
        assert!(given.abs_diff(held) <= EPOCHS_BYTES, "given {given}, says {held}");
    };
    assert_eq!(BYTES.load(Relaxed) - before, isize::try_from(map.bytes()).unwrap());
    let empty = map.bytes();
    let mut random = SplitMix(3);
    for round in 0..100_000 {
        map.insert(&key(&mut random), round);
        if round % 1000 == 0 {
            says(&map);
        }
    }
    collect(&map);
    says(&map);
    let full = map.bytes();
    let mut random = SplitMix(3);
    for _ in 0..100_000 {
        map.remove(&key(&mut random));
    }
    collect(&map);
    says(&map);
    assert!(map.is_empty() && full > 100 * empty);
    assert_eq!(map.bytes(), empty);
    let mut none = map.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    assert_eq!(none.next(), None);
    drop(none);
    // Dropping a full map gives everything back as well.
    let mut random = SplitMix(4);
    for round in 0..20_000 {
        map.insert(&key(&mut random), round);
    }
    drop(map);
    pin().flush();
    let left = BYTES.load(Relaxed) - before;
    assert!(left.unsigned_abs() <= EPOCHS_BYTES, "{left} bytes are lost");
}
