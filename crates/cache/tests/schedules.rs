//! Shuttle models of editable files: the code itself under a scheduler that may stop any thread at
//! any access to a state word, a table or a lock, and in the middle of a copy. Run with `cargo test
//! -p spinney-cache --features shuttle --test schedules`.
#![cfg(feature = "shuttle")]

use std::sync::Arc;

use shuttle::thread::{JoinHandle, spawn};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::schedules::check;
use spinney_base::shim::Mutex;
use spinney_base::{Generation, PageNumber, Result};
use spinney_cache::{
    Cache, DirtyHand, EditableFile, FRAME_BYTES, Kind, Look, PageId, Sight, Written,
};
use spinney_sync::racy;

const NODE: Kind = Kind::new(1, "node", 2);

/// Places of the models.
const PLACES: usize = 4;

/// Schedules of a model, as many times more in the full tier.
fn times(iterations: u64) -> u64 {
    match std::env::var("SPINNEY_PROVING").as_deref() {
        Ok("full") => 20 * iterations,
        _ => iterations,
    }
}

/// All pages have the same generation, as pages have that were allocated between two checkpoints.
fn id(page: u32) -> PageId {
    PageId { page: PageNumber(page), generation: Generation(1), kind: NODE }
}

/// A file of pages that hold one number all over, and the disk below it.
struct World {
    file: EditableFile,
    disk: [Mutex<u64>; PLACES],
}

fn world(frames: u64) -> Arc<World> {
    let file = Cache::with_frames(4096 + frames * FRAME_BYTES, 0).editable_file();
    Arc::new(World { file, disk: std::array::from_fn(|_| Mutex::new(0)) })
}

fn thread(world: &Arc<World>, body: impl FnOnce(&World) + Send + 'static) -> JoinHandle<()> {
    let world = Arc::clone(world);
    spawn(move || body(&world))
}

fn page_of(content: u64) -> Vec<u8> {
    content.to_le_bytes().repeat(PAGE_BYTES / 8)
}

/// The number of a page, or `None` if it is of two moments.
fn content_of(bytes: &[u8]) -> Option<u64> {
    let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    (bytes == page_of(first)).then_some(first)
}

impl World {
    fn load(&self, page: u32) -> impl FnOnce(&mut [u8]) -> Result<()> {
        move |out| {
            // A read takes a while.
            shuttle::thread::yield_now();
            out.copy_from_slice(&page_of(*self.disk[page as usize].lock()));
            shuttle::thread::yield_now();
            Ok(())
        }
    }

    fn look(&self, page: u32) -> Look<'_> {
        self.file.look(id(page), self.load(page)).unwrap()
    }

    /// Copies what was looked at; validated, it is of one moment.
    fn copy(&self, look: &Look<'_>) -> Option<u64> {
        let mut bytes = vec![0; PAGE_BYTES];
        racy::copy_bytes(look.words(), 0, &mut bytes);
        self.file.is_valid(look.sight()).then(|| content_of(&bytes).expect("a mixture"))
    }

    fn read(&self, page: u32) -> u64 {
        loop {
            if let Some(content) = self.copy(&self.look(page)) {
                return content;
            }
            shuttle::thread::yield_now();
        }
    }

    /// Replaces the number of a page by the next, and returns it.
    fn increase(&self, page: u32) -> u64 {
        loop {
            let look = self.look(page);
            if let Some(next) = self.copy(&look).map(|content| content + 1)
                && let Some(mut edit) = self.file.edit(look.sight())
            {
                racy::store_bytes(edit.words(), &page_of(next));
                edit.mark_dirty();
                return next;
            }
            shuttle::thread::yield_now();
        }
    }

    fn fresh(&self, page: u32, content: u64) {
        let edit = self.file.fresh(id(page)).expect("a frame");
        racy::store_bytes(edit.words(), &page_of(content));
    }

    /// Writes a page in place, if nobody holds it.
    fn write_back(&self, page: u32) -> Option<(Sight, bool)> {
        let mut bytes = vec![0; PAGE_BYTES];
        let sight = self.file.snapshot(id(page), &mut bytes)?;
        *self.disk[page as usize].lock() = content_of(&bytes).expect("a mixture");
        Some((sight, self.file.written_back(sight, Written::InPlace)))
    }

    /// Evicts everything that can be.
    fn evict(&self) {
        let bytes = self.file.cache().bytes();
        self.file.cache().set_bytes(0);
        self.file.cache().set_bytes(bytes);
    }

    /// No frame is lost and none is left behind.
    fn end(self: Arc<Self>) {
        let cache = Arc::clone(self.file.cache());
        drop(self);
        let stats = cache.stats();
        assert_eq!((stats.hot_pages, stats.cold_pages, stats.dirty_bytes), (0, 0, 0));
    }
}

/// P27: a look that is valid is of one moment, and edits are not lost to each other.
#[test]
fn p27_edits_beside_looks() {
    check(times(1_500), || {
        let world = world(2);
        world.fresh(0, 1);
        let editor = thread(&world, |world| _ = world.increase(0));
        let reader = thread(&world, |world| {
            let first = world.read(0);
            assert!(world.read(0) >= first);
        });
        let mine = world.increase(0);
        assert!(world.read(0) >= mine);
        editor.join().unwrap();
        reader.join().unwrap();
        assert_eq!(world.read(0), 3);
        world.end();
    });
}

/// A page is written back and evicted while it is edited: the newest content is in memory, or on
/// disk.
#[test]
fn no_edit_is_lost_to_a_write_back() {
    check(times(2_000), || {
        let world = world(2);
        world.fresh(0, 1);
        let writer = thread(&world, |world| {
            for _ in 0..2 {
                let (mut dirty, mut hand) = (Vec::new(), DirtyHand::default());
                assert!(!world.file.dirty_pages(&mut hand, 9, &mut dirty));
                dirty.iter().for_each(|dirty| _ = world.write_back(dirty.id.page.0));
                world.evict();
            }
        });
        let reader = thread(&world, |world| {
            let first = world.read(0);
            assert!(world.read(0) >= first);
        });
        let mine = world.increase(0);
        assert!(world.read(0) >= mine);
        world.increase(0);
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!(world.read(0), 3);
        world.write_back(0);
        assert_eq!(*world.disk[0].lock(), 3);
        world.evict();
        assert_eq!(world.read(0), 3, "from disk");
        world.end();
    });
}

/// H11, H18: a page moves while readers and an editor reach it by its parent, and its old place
/// gets another owner; a pointer that was validated after the look leads to the newest content.
#[test]
fn h18_pages_move_under_readers() {
    const PARENT: u32 = 3;
    check(times(2_000), || {
        let world = world(4);
        *world.disk[0].lock() = 7;
        world.fresh(PARENT, 0);
        // The child by its parent: its place, and the look at it.
        fn child(world: &World) -> (u32, Look<'_>) {
            loop {
                let parent = world.look(PARENT);
                if let Some(place) = world.copy(&parent) {
                    let look = world.look(place as u32);
                    if world.file.is_valid(parent.sight()) {
                        return (place as u32, look);
                    }
                }
                shuttle::thread::yield_now();
            }
        }
        fn read(world: &World) -> u64 {
            loop {
                let (_, look) = child(world);
                if let Some(content) = world.copy(&look) {
                    return content;
                }
                shuttle::thread::yield_now();
            }
        }
        fn increase(world: &World) {
            loop {
                let (_, look) = child(world);
                if let Some(content) = world.copy(&look)
                    && let Some(mut edit) = world.file.edit(look.sight())
                {
                    racy::store_bytes(edit.words(), &page_of(content + 1));
                    edit.mark_dirty();
                    return;
                }
                shuttle::thread::yield_now();
            }
        }
        let reader = thread(&world, |world| {
            let first = read(world);
            assert!((7..10).contains(&first) && (first..10).contains(&read(world)));
        });
        let editor = thread(&world, increase);
        increase(&world);
        // Its writer copies it, writes it to a new place, and moves it.
        let mut bytes = vec![0; PAGE_BYTES];
        let sight = loop {
            match world.file.snapshot(id(0), &mut bytes) {
                Some(sight) => break sight,
                None => shuttle::thread::yield_now(),
            }
        };
        *world.disk[1].lock() = content_of(&bytes).expect("a mixture");
        let parent = world.look(PARENT);
        let edit = world.file.edit(parent.sight()).expect("nobody else edits the parent");
        assert!(world.file.rename(id(0), id(1)));
        racy::store_bytes(edit.words(), &page_of(1));
        drop(edit);
        world.file.written_back(sight, Written::Elsewhere);
        // The old place gets another owner, which is written and evicted.
        world.fresh(0, 100);
        assert_eq!(world.read(0), 100);
        assert!(world.write_back(0).is_some_and(|(_, is_clean)| is_clean));
        world.evict();
        assert_eq!(world.read(0), 100);
        assert!(read(&world) >= 8);
        reader.join().unwrap();
        editor.join().unwrap();
        assert_eq!((read(&world), world.read(0)), (9, 100));
        world.end();
    });
}

/// H11: a page is made, or moves, to a number whose page of before is being loaded by a reader with
/// an old pointer; the load puts nothing into the cache.
#[test]
fn h11_numbers_get_other_owners_beside_loads() {
    check(times(2_000), || {
        let world = world(3);
        *world.disk[0].lock() = 7;
        *world.disk[1].lock() = 8;
        let late = |place: u32| {
            move |world: &World| {
                // What an old pointer leads to means nothing.
                let _ = world.copy(&world.look(place));
                let _ = world.copy(&world.look(place));
            }
        };
        let (one, two) = (thread(&world, late(0)), thread(&world, late(1)));
        world.fresh(0, 100);
        assert_eq!(world.read(0), 100);
        assert!(world.file.rename(id(0), id(1)));
        assert_eq!(world.read(1), 100);
        world.file.forget(id(1));
        world.fresh(1, 101);
        assert_eq!(world.increase(1), 102);
        one.join().unwrap();
        two.join().unwrap();
        assert_eq!(world.read(1), 102);
        world.end();
    });
}

/// A page is forgotten under its editor, and its number given out again.
#[test]
fn pages_are_forgotten_under_their_editors() {
    check(times(1_500), || {
        let world = world(4);
        world.fresh(0, 1);
        let editor = thread(&world, |world| {
            let look = world.look(0);
            if let Some(mut edit) = world.file.edit(look.sight()) {
                racy::store_bytes(edit.words(), &page_of(50));
                edit.mark_dirty();
            }
        });
        let waiter = thread(&world, |world| {
            let _ = world.copy(&world.look(0));
        });
        world.file.forget(id(0));
        let edit = world.file.fresh(id(0)).expect("a frame");
        racy::store_bytes(edit.words(), &page_of(2));
        drop(edit);
        let content = world.read(0);
        assert!([2, 50].contains(&content));
        editor.join().unwrap();
        waiter.join().unwrap();
        world.end();
    });
}

/// Frames are evicted and filled with other pages between a look and an edit.
#[test]
fn evictions_beside_edits() {
    check(times(2_000), || {
        let world = world(1);
        let other = thread(&world, |world| {
            world.evict();
            assert_eq!(world.read(1), 0);
            world.evict();
        });
        let reader = thread(&world, |world| assert!(world.read(0) <= 1));
        let look = world.look(0);
        if let Some(mut edit) = world.file.edit(look.sight()) {
            racy::store_bytes(edit.words(), &page_of(1));
            edit.mark_dirty();
            assert_eq!(edit.id(), Some(id(0)));
            drop(edit);
            assert_eq!(world.read(0), 1);
        }
        other.join().unwrap();
        reader.join().unwrap();
        assert_eq!(world.read(1), 0);
        world.end();
    });
}
