//! What a hit costs, pinned, copied and looked at, and how many misses a disk gives: `cargo run --release -p
//! spinney-cache --example hits [DIRECTORY]`. The directory gets a file of 512 MiB and loses it
//! again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::runtime::SplitMix;
use spinney_base::shim::thread;
use spinney_base::{Generation, PageNumber, Result, Runtime};
use spinney_cache::{Cache, FRAME_BYTES, Kind, PageId};
use spinney_io::{Disk, IfMissing, OpenMode, Purpose, RealDisk};
use spinney_sync::racy;

const VALUES: Kind = Kind::new(0, "values", 1);

const HITS: u64 = 4_000_000;
const MISS_TIME: Duration = Duration::from_secs(2);
const FILE_PAGES: u32 = 128 << 10;

fn id(page: u32) -> PageId {
    PageId { page: PageNumber(page), generation: Generation(1), kind: VALUES }
}

fn main() -> Result<()> {
    let runtime = Runtime::threads();
    for pages in [64, 2_000, 30_000] {
        hits(&runtime, pages)?;
    }
    let directory = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    misses(&runtime, &directory, &format!("spinney-hits-{}", std::process::id()))
}

/// Hits of 100 bytes at random places of `pages` pages, all cached.
fn hits(runtime: &Runtime, pages: u32) -> Result<()> {
    let cache = Cache::new(u64::from(pages) * 2 * FRAME_BYTES + (1 << 20));
    let file = Arc::new(cache.file());
    for page in 0..pages {
        file.get(id(page), |bytes| {
            bytes.fill(page as u8);
            Ok(())
        })?;
    }
    let editable = Cache::with_frames(cache.bytes(), 0);
    let editable = Arc::new(editable.editable_file());
    for page in 0..pages {
        drop(editable.look(id(page), |bytes| {
            bytes.fill(page as u8);
            Ok(())
        })?);
    }
    timed(runtime, pages, "copied", &file, |file, id, offset, out| file.copy(id, offset, out));
    timed(runtime, pages, "pinned", &file, |file, id, offset, out| {
        let Ok(page) = file.get(id, |_| Ok(())) else { return false };
        out.copy_from_slice(&page[offset..offset + 100]);
        true
    });
    timed(runtime, pages, "looked at", &editable, |file, id, offset, out| {
        let Ok(look) = file.look(id, |_| Ok(())) else { return false };
        racy::copy_bytes(look.words(), offset, out);
        file.is_valid(look.sight())
    });
    Ok(())
}

/// Times one way of reading 100 bytes of a cached page of a file, by one thread and by two.
fn timed<F: Send + Sync + 'static>(
    runtime: &Runtime,
    pages: u32,
    name: &str,
    file: &Arc<F>,
    hit: impl Fn(&F, PageId, usize, &mut [u8; 100]) -> bool + Copy + Send + 'static,
) {
    for threads in [1, 2] {
        let before = runtime.now();
        let running: Vec<_> = (0..threads)
            .map(|seed| {
                let file = Arc::clone(file);
                let body = move || {
                    let mut random = SplitMix(seed);
                    let mut out = [0; 100];
                    for _ in 0..HITS {
                        let random = random.next_u64();
                        let page = (((random >> 32) * u64::from(pages)) >> 32) as u32;
                        let offset = random as usize % (PAGE_BYTES - 100);
                        assert!(hit(&file, id(page), offset, &mut out));
                    }
                    std::hint::black_box(out);
                };
                thread::spawn("hits", body).expect("a thread")
            })
            .collect();
        running.into_iter().for_each(|thread| thread.join().expect("hits"));
        let nanoseconds = (runtime.now() - before).as_nanos() as f64 / HITS as f64;
        println!("{pages:>6} pages, {threads} threads, {name}: {nanoseconds:.1} ns a hit");
    }
}

/// Misses of single pages, by one and more threads, of a file that bypasses the page cache.
fn misses(runtime: &Runtime, directory: &Path, name: &str) -> Result<()> {
    let directory = RealDisk::new().directory(directory, IfMissing::Create)?;
    let file = directory.open(name, OpenMode::CREATE)?;
    let buffer = spinney_io::AlignedBuf::new(256);
    for step in 0..u64::from(FILE_PAGES) / 256 {
        file.write_at(buffer.bytes(), step * (256 * PAGE_BYTES) as u64, Purpose::TOOL)?;
    }
    file.sync(Purpose::TOOL)?;
    for threads in [1, 4, 16] {
        let cache = Cache::new(u64::from(FILE_PAGES / 32) * FRAME_BYTES);
        let pages = Arc::new(cache.file());
        let before = runtime.now();
        let running: Vec<_> = (0..threads)
            .map(|seed| {
                let (pages, file, runtime) =
                    (Arc::clone(&pages), Arc::clone(&file), runtime.clone());
                let body = move || {
                    let mut random = SplitMix(seed);
                    while runtime.now() - before < MISS_TIME {
                        let id = id(random.below(FILE_PAGES as usize) as u32);
                        let read = |out: &mut [u8; PAGE_BYTES]| {
                            file.read_at(out, id.page.offset(), Purpose::TOOL)
                        };
                        pages.get(id, read).expect("a page of the file");
                    }
                };
                thread::spawn("misses", body).expect("a thread")
            })
            .collect();
        running.into_iter().for_each(|thread| thread.join().expect("misses"));
        let seconds = (runtime.now() - before).as_secs_f64();
        let misses = cache.stats().total().misses as f64 / seconds;
        println!("{threads} threads: {misses:.0} misses a second, direct: {}", file.is_direct());
    }
    directory.remove(name)
}
