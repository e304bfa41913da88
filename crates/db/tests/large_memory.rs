//! The longest value goes through little memory, in and out: a counting allocator under the whole
//! test, which therefore is alone in its program.
#![cfg(not(feature = "shuttle"))]
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Read;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use spinney_base::limits::VALUE_BYTES_MAX;
use spinney_base::mapping::mapped_bytes;
use spinney_db::{Db, KeyspaceOptions, Options};

struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

/// What is allocated, and the mappings (rings of the cache, page buffers), which the allocator
/// never sees.
fn held() -> isize {
    BYTES.load(Relaxed) + isize::try_from(mapped_bytes()).unwrap_or(isize::MAX)
}

fn count(layout: Layout) -> isize {
    isize::try_from(layout.size()).unwrap()
}

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(count(layout), Relaxed);
        PEAK.fetch_max(held(), Relaxed);
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

/// How many bytes more than before were held at once while `run` did.
fn peak(run: impl FnOnce()) -> isize {
    let before = held();
    PEAK.store(before, Relaxed);
    run();
    PEAK.load(Relaxed) - before
}

#[test]
fn p17_a_value_is_never_whole_in_memory() {
    // A piece on its way in: as it is read, as it is written, and some of the log's and cache's
    // own.
    const PIECES: isize = 3 << 20;
    const MEMORY: isize = 4 << 20;
    let directory = tempfile::tempdir().unwrap();
    let db =
        Db::open(directory.path().join("db"), Options::default().memory(MEMORY as u64)).unwrap();
    let main = db.keyspace("main", KeyspaceOptions::default()).unwrap();
    main.insert(b"warm", [1; 100_000]).unwrap();
    let length = VALUE_BYTES_MAX as u64;
    let written = peak(|| main.insert_from(b"k", length, std::io::repeat(7)).unwrap());
    assert!(written < PIECES, "{written} bytes while it was written");
    let read = peak(|| {
        let mut reader = main.get_reader(b"k").unwrap().unwrap();
        let mut buf = vec![0; 64 << 10];
        let mut left = length;
        while left > 0 {
            let read = reader.read(&mut buf).unwrap();
            assert!(read > 0 && buf[..read].iter().all(|byte| *byte == 7));
            left -= read as u64;
        }
    });
    assert!(read < PIECES, "{read} bytes while it was read");
    let copied = peak(|| _ = db.backup(directory.path().join("copy")).unwrap());
    assert!(copied < PIECES, "{copied} bytes while it was copied");
    let (copy, saved) = (directory.path().join("copy"), directory.path().join("saved"));
    let options = Options::default().memory(MEMORY as u64);
    let salvaged = peak(|| _ = Db::salvage(&copy, &saved, options).unwrap());
    assert!(salvaged < MEMORY + PIECES, "{salvaged} bytes while it was salvaged");
    let verified = peak(|| _ = db.verify().unwrap());
    assert!(verified < PIECES, "{verified} bytes while it was verified");
}
