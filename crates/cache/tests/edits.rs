//! Editable files against a map of what every page holds, in memory and on disk; and the promises
//! of their documentation one by one.
#![cfg(not(feature = "shuttle"))]

use std::collections::BTreeMap;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::runtime::SplitMix;
use spinney_base::{Error, ErrorKind, Generation, PageNumber, Result};
use spinney_cache::{
    Cache, DirtyHand, Edit, EditableFile, Kind, Look, PageId, Written, frame_bytes,
};
use spinney_sync::racy;

const LEAF: Kind = Kind::new(0, "leaf", 1);
const INNER: Kind = Kind::new(1, "inner", 4);

fn kind(page: u32) -> Kind {
    if page.is_multiple_of(16) { INNER } else { LEAF }
}

fn id(page: u32, generation: u32) -> PageId {
    PageId { page: PageNumber(page), generation: Generation(generation), kind: kind(page) }
}

/// A budget of so many frames beside the table of one file of less than 1024 units.
fn frames(count: u64, order: u32) -> u64 {
    count * frame_bytes(order) + 4096
}

/// The bytes of a page with a content.
fn bytes(content: u64, order: u32) -> Vec<u8> {
    (0..PAGE_BYTES << order >> 3)
        .flat_map(|at| (content ^ (at as u64) << 40).to_le_bytes())
        .collect()
}

fn store(edit: &Edit<'_>, content: u64, order: u32) {
    racy::store_bytes(edit.words(), &bytes(content, order));
}

/// The content of a page that is whole.
fn content(look: &Look<'_>, order: u32) -> u64 {
    let mut out = vec![0; PAGE_BYTES << order];
    racy::copy_bytes(look.words(), 0, &mut out);
    let content = u64::from_le_bytes(out[..8].try_into().unwrap());
    assert!(out == bytes(content, order), "a mixture");
    content
}

fn no_load(_: &mut [u8]) -> Result<()> {
    Err(Error::new(ErrorKind::Io, "on demand"))
}

/// A page of the model: where it lies, whether it was written there, what it holds in memory.
#[derive(Clone, Copy, Debug)]
struct Page {
    id: PageId,
    is_written: bool,
    content: u64,
}

/// The model: pages by number, places on disk, and places that no page has.
struct World {
    file: EditableFile,
    order: u32,
    pages: Vec<Page>,
    disk: BTreeMap<u32, (u32, u64)>,
    free: Vec<u32>,
    generation: u32,
    content: u64,
    random: SplitMix,
}

impl World {
    fn place(&mut self) -> Option<PageId> {
        if self.free.is_empty() {
            return None;
        }
        let free = self.free.swap_remove(self.random.below(self.free.len()));
        // Often the same generation as the page's before.
        self.generation += u32::from(self.random.below(4) == 0);
        Some(id(free, self.generation))
    }

    fn free(&mut self, id: PageId) {
        self.free.push(id.page.0);
    }

    fn load(&self, id: PageId) -> impl FnOnce(&mut [u8]) -> Result<()> {
        let (order, found) = (self.order, self.disk.get(&id.page.0).copied());
        move |out| {
            let (generation, content) = found.expect("a page that was written");
            assert_eq!(generation, id.generation.0);
            out.copy_from_slice(&bytes(content, order));
            Ok(())
        }
    }

    fn read(&mut self, page: Page) {
        let look = self.file.look(page.id, self.load(page.id)).unwrap();
        assert_eq!(content(&look, self.order), page.content, "{page:?}");
        assert!(self.file.is_valid(look.sight()));
        assert!(page.is_written || look.is_cached(), "{page:?}");
    }

    /// What a reader with an old pointer leaves in the cache.
    fn read_late(&mut self) {
        let Some((&place, &(generation, content))) =
            self.disk.iter().nth(self.random.below(self.disk.len().max(1)))
        else {
            return;
        };
        if self.pages.iter().any(|page| page.id.page.0 == place && !page.is_written) {
            return;
        }
        let (order, id) = (self.order, id(place, generation));
        let look = self.file.look(id, |out| {
            out.copy_from_slice(&bytes(content, order));
            Ok(())
        });
        let _ = look.unwrap();
    }

    fn create(&mut self) {
        let Some(id) = self.place() else { return };
        self.content += 1;
        let Some(edit) = self.file.fresh(id) else {
            self.write_back(usize::MAX);
            return self.free(id);
        };
        assert!(
            edit.words().iter().all(|word| word.load(std::sync::atomic::Ordering::Relaxed) == 0)
        );
        assert_eq!(edit.id(), Some(id));
        store(&edit, self.content, self.order);
        let sight = edit.release().unwrap();
        assert!(self.file.is_valid(sight));
        self.pages.push(Page { id, is_written: false, content: self.content });
    }

    fn edit(&mut self, index: usize) {
        let page = self.pages[index];
        let look = self.file.look(page.id, self.load(page.id)).unwrap();
        let Some(mut edit) = self.file.edit(look.sight()) else {
            assert!(!look.is_cached());
            return;
        };
        if self.random.below(4) == 0 {
            edit.release_unchanged();
            assert!(self.file.is_valid(look.sight()));
            return;
        }
        self.content += 1;
        store(&edit, self.content, self.order);
        edit.mark_dirty();
        assert_eq!(edit.id(), Some(page.id));
        drop(edit);
        assert!(!self.file.is_valid(look.sight()) && self.file.edit(look.sight()).is_none());
        self.pages[index].content = self.content;
    }

    /// Writes dirty pages to new places, or fresh ones at theirs; some are edited in between.
    fn write_back(&mut self, most: usize) {
        let (mut hand, mut dirty) = (DirtyHand::default(), Vec::new());
        while self.file.dirty_pages(&mut hand, 7, &mut dirty) && dirty.len() < most {}
        dirty.sort_by_key(|dirty| dirty.id.page);
        for dirty in dirty {
            let index = self.pages.iter().position(|page| page.id == dirty.id).unwrap();
            let page = self.pages[index];
            assert_eq!(dirty.is_fresh, !page.is_written);
            let mut copy = vec![0; PAGE_BYTES << self.order];
            let sight = self.file.snapshot(page.id, &mut copy).unwrap();
            assert!(copy == bytes(page.content, self.order));
            let is_edited = self.random.below(4) == 0;
            if is_edited {
                self.edit(index);
            }
            let is_edited = self.pages[index].content != page.content;
            let written = if page.is_written {
                let Some(to) = self.place() else { return };
                self.disk.insert(to.page.0, (to.generation.0, page.content));
                assert!(self.file.rename(page.id, to));
                self.pages[index].id = to;
                self.free(page.id);
                Written::Elsewhere
            } else {
                self.disk.insert(page.id.page.0, (page.id.generation.0, page.content));
                Written::InPlace
            };
            self.pages[index].is_written = true;
            assert_eq!(self.file.written_back(sight, written), !is_edited);
        }
    }

    fn remove(&mut self, index: usize) {
        let page = self.pages.swap_remove(index);
        self.file.forget(page.id);
        assert!(self.file.find(page.id).is_none());
        self.free(page.id);
    }
}

fn one_life(seed: u64) {
    let order = seed as u32 % 3;
    let mut random = SplitMix(seed);
    let cache = Cache::with_frames(frames(20, order), order);
    let (disk, free) = (BTreeMap::new(), (0..80).map(|unit| unit << order).collect());
    let mut world = World {
        file: cache.editable_file(),
        order,
        pages: Vec::new(),
        disk,
        free,
        generation: 1,
        content: 0,
        random: SplitMix(!seed),
    };
    for _ in 0..2000 {
        let index = random.below(world.pages.len().max(1));
        match random.below(100) {
            0..10 => world.create(),
            10..90 if world.pages.is_empty() => {}
            10..50 => world.read(world.pages[index]),
            50..75 => world.edit(index),
            75..80 => world.remove(index),
            80..85 => world.read_late(),
            85..95 => world.write_back(random.below(10)),
            95..98 => cache.set_bytes(random.below(40) as u64 * frame_bytes(order)),
            98 => cache.set_bytes(frames(20, order)),
            _ => (0..world.pages.len()).for_each(|index| world.read(world.pages[index])),
        }
        // Frames of pages that were dirty when the budget shrank go now.
        cache.set_bytes(cache.bytes());
        let stats = cache.stats();
        let dirty = stats.dirty_bytes / frame_bytes(order);
        let least = 4096 + (dirty + dirty.div_ceil(3)) * frame_bytes(order);
        assert!(stats.used_bytes <= stats.budget_bytes.max(least), "{stats:?}");
    }
    (0..2).for_each(|_| world.write_back(usize::MAX));
    (0..world.pages.len()).for_each(|index| world.read(world.pages[index]));
    let dirty = (cache.stats().dirty_bytes / frame_bytes(order)) as usize;
    let (mut hand, mut listed) = (DirtyHand::default(), Vec::new());
    assert!(!world.file.dirty_pages(&mut hand, usize::MAX, &mut listed));
    assert_eq!(listed.len(), dirty);
    drop(world);
    let stats = cache.stats();
    assert_eq!((stats.hot_pages, stats.cold_pages, stats.dirty_bytes), (0, 0, 0));
    assert!(stats.written_back > 100, "{stats:?}");
    cache.set_bytes(0);
    assert_eq!(cache.used(), 0);
}

#[test]
fn looks_show_the_newest_edit_within_any_budget() {
    for seed in 0..30 {
        println!("seed {seed}");
        one_life(seed);
    }
}

fn file(count: u64, order: u32) -> EditableFile {
    Cache::with_frames(frames(count, order), order).editable_file()
}

fn filled(content: u64, order: u32) -> impl FnOnce(&mut [u8]) -> Result<()> {
    move |out| {
        out.copy_from_slice(&bytes(content, order));
        Ok(())
    }
}

#[test]
fn dirty_pages_stay_and_reads_do_not_fail_for_want_of_frames() {
    let file = file(4, 1);
    for unit in 0..4 {
        let edit = file.fresh(id(2 * unit, 1)).unwrap();
        store(&edit, u64::from(unit), 1);
    }
    assert!(file.fresh(id(100, 1)).is_none());
    for page in 50..60 {
        let look = file.look(id(2 * page, 1), filled(9, 1)).unwrap();
        assert!(!look.is_cached() && content(&look, 1) == 9);
        assert!(file.is_valid(look.sight()) && file.edit(look.sight()).is_none());
        assert!(!file.written_back(look.sight(), Written::InPlace));
    }
    file.cache().set_bytes(0);
    assert_eq!(file.cache().used(), 4096 + 4 * frame_bytes(1), "dirty frames exceed the budget");
    for unit in 0..4 {
        let mut copy = vec![0; 2 * PAGE_BYTES];
        let sight = file.snapshot(id(2 * unit, 1), &mut copy).unwrap();
        assert!(copy == bytes(u64::from(unit), 1));
        assert!(file.written_back(sight, Written::InPlace));
        assert!(file.written_back(sight, Written::InPlace), "clean already");
    }
    assert_eq!((file.cache().stats().dirty_bytes, file.cache().stats().written_back), (0, 4));
    let look = file.look(id(120, 1), filled(9, 1)).unwrap();
    assert!(!look.is_cached());
    assert_eq!(file.cache().used(), 4096, "they leave at the next miss");
}

#[test]
fn loads_that_fail_leave_nothing_behind() {
    let file = file(4, 2);
    assert_eq!(file.look(id(4, 1), no_load).unwrap_err().kind(), ErrorKind::Io);
    assert!(file.find(id(4, 1)).is_none());
    let look = file.look(id(4, 1), filled(3, 2)).unwrap();
    assert!(look.is_cached() && content(&look, 2) == 3);
    assert!(file.look(id(4, 1), no_load).is_ok());
}

#[test]
fn what_a_late_load_reads_is_not_put_into_a_page_of_another_owner() {
    let file = file(8, 0);
    // A page is made at the number while an old pointer is followed.
    let look = file.look(id(1, 1), |out| {
        store(&file.fresh(id(1, 1)).unwrap(), 7, 0);
        filled(3, 0)(out)
    });
    let look = look.unwrap();
    assert!(!look.is_cached() && content(&look, 0) == 3);
    assert_eq!(content(&file.find(id(1, 1)).unwrap(), 0), 7);
    // A page moves there.
    let look = file.look(id(2, 1), |out| {
        assert!(file.rename(id(1, 1), id(2, 1)));
        filled(3, 0)(out)
    });
    assert!(!look.unwrap().is_cached());
    assert!(file.find(id(1, 1)).is_none());
    assert_eq!(content(&file.find(id(2, 1)).unwrap(), 0), 7);
    // A page that is being loaded moves away, or is freed.
    let look = file.look(id(3, 1), |out| {
        assert!(!file.rename(id(3, 1), id(4, 1)));
        filled(3, 0)(out)
    });
    assert!(!look.unwrap().is_cached() && file.find(id(4, 1)).is_none());
    let look = file.look(id(3, 1), |out| {
        file.forget(id(3, 1));
        filled(3, 0)(out)
    });
    assert!(!look.unwrap().is_cached() && file.find(id(3, 1)).is_none());
    let failed = file.look(id(3, 1), |out| {
        file.forget(id(3, 1));
        no_load(out)
    });
    assert!(failed.is_err());
    file.cache().set_bytes(0);
    assert_eq!(file.cache().stats().dirty_bytes, frame_bytes(0));
    assert_eq!(
        file.cache().used(),
        4096 + 2 * frame_bytes(0),
        "the dirty page and one more are left"
    );
}

#[test]
fn pages_are_renamed_and_forgotten_under_their_editors() {
    let file = file(8, 0);
    drop(file.fresh(id(1, 1)).unwrap());
    let before = file.find(id(1, 1)).unwrap().sight();
    assert!(file.rename(id(1, 1), id(1, 2)) && file.is_valid(before), "the place stays");
    let edit = file.edit(before).unwrap();
    assert!(file.rename(id(1, 2), id(5, 3)) && !file.rename(id(1, 2), id(6, 3)));
    assert_eq!(edit.id(), Some(id(5, 3)));
    store(&edit, 4, 0);
    let after = edit.release().unwrap();
    assert_eq!(content(&file.find(id(5, 3)).unwrap(), 0), 4);
    assert!(file.find(id(1, 1)).is_none() && file.find(id(1, 2)).is_none());

    file.forget(id(5, 2));
    assert!(file.is_valid(after), "of another allocation");
    let mut edit = file.edit(after).unwrap();
    edit.mark_dirty();
    file.forget(id(5, 3));
    assert_eq!((edit.id(), edit.release()), (None, None));
    assert_eq!(file.cache().stats().dirty_bytes, 0);
    assert!(file.find(id(5, 3)).is_none());
}

#[test]
fn a_page_of_another_allocation_is_never_found() {
    let file = file(8, 0);
    let _ = file.look(id(1, 1), filled(3, 0)).unwrap();
    let look = file.look(id(1, 2), filled(4, 0)).unwrap();
    assert!(look.is_cached() && content(&look, 0) == 4, "a clean one gives way");
    let mut edit = file.edit(look.sight()).unwrap();
    edit.mark_dirty();
    drop(edit);
    let old = file.look(id(1, 1), filled(3, 0)).unwrap();
    assert!(!old.is_cached(), "a dirty one stays");
    assert!(file.find(id(1, 1)).is_none() && file.find(id(1, 2)).is_some());
}

#[test]
fn what_is_told_of_a_page_that_has_left_does_not_touch_its_frame() {
    let file = file(1, 0);
    drop(file.fresh(id(1, 1)).unwrap());
    let mut copy = vec![0; PAGE_BYTES];
    let sight = file.snapshot(id(1, 1), &mut copy).unwrap();
    file.forget(id(1, 1));
    drop(file.fresh(id(1, 1)).unwrap());
    assert!(!file.written_back(sight, Written::InPlace));
    let mut dirty = Vec::new();
    assert!(!file.dirty_pages(&mut DirtyHand::default(), 9, &mut dirty));
    assert!(dirty.len() == 1 && dirty[0].is_fresh && dirty[0].id == id(1, 1));
}

/// Threads that look at pages, edit them and write them back, in a cache too small for them.
#[test]
fn threads_lose_no_edit() {
    const PAGES: u32 = 40;
    let file = Arc::new(file(12, 0));
    let disk: Arc<Vec<spinney_base::shim::Mutex<u64>>> =
        Arc::new((0..PAGES).map(|_| spinney_base::shim::Mutex::new(0)).collect());
    let threads: Vec<_> = (0..4u64)
        .map(|seed| {
            let (file, disk) = (Arc::clone(&file), Arc::clone(&disk));
            let body = move || {
                let mut random = SplitMix(seed);
                let mut copy = vec![0; PAGE_BYTES];
                let mut edits = vec![0u64; PAGES as usize];
                for _ in 0..20_000 {
                    let page = random.below(PAGES as usize);
                    let id = id(page as u32, 1);
                    if random.below(4) == 0 {
                        let mut written = disk[page].lock();
                        if let Some(sight) = file.snapshot(id, &mut copy) {
                            *written = u64::from_le_bytes(copy[..8].try_into().unwrap());
                            assert!(copy == bytes(*written, 0));
                            file.written_back(sight, Written::InPlace);
                        }
                        continue;
                    }
                    let look = file.look(id, |out| filled(*disk[page].lock(), 0)(out)).unwrap();
                    racy::copy_bytes(look.words(), 0, &mut copy);
                    let Some(mut edit) = file.edit(look.sight()) else { continue };
                    let content = u64::from_le_bytes(copy[..8].try_into().unwrap());
                    assert!(copy == bytes(content, 0), "a mixture");
                    store(&edit, content + 1, 0);
                    edit.mark_dirty();
                    edits[page] += 1;
                }
                edits
            };
            spinney_base::shim::thread::spawn("editor", body).unwrap()
        })
        .collect();
    let edits: Vec<Vec<u64>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let mut all = 0;
    for page in 0..PAGES {
        let look = file.look(id(page, 1), |out| filled(*disk[page as usize].lock(), 0)(out));
        let sum: u64 = edits.iter().map(|edits| edits[page as usize]).sum();
        assert_eq!(content(&look.unwrap(), 0), sum, "page {page}");
        all += sum;
    }
    let stats = file.cache().stats();
    println!("{all} edits, {stats:?}");
    assert!(all > 100 && stats.written_back > 100 && stats.evicted > 100);
}

#[test]
fn evicted_pages_leave_room_within_the_budget() {
    let file = file(8, 0);
    let cache = file.cache();
    for page in 0..6 {
        _ = file.look(id(page, 1), filled(page.into(), 0)).unwrap();
    }
    store(&file.fresh(id(7, 1)).unwrap(), 7, 0);
    let budget = cache.bytes();
    cache.evict_to(4096 + 3 * frame_bytes(0));
    assert_eq!((cache.used(), cache.bytes()), (4096 + 3 * frame_bytes(0), budget));
    assert_eq!(content(&file.find(id(7, 1)).unwrap(), 0), 7, "it is dirty");
    cache.evict_to(0);
    assert_eq!(cache.used(), 4096 + frame_bytes(0));
    for page in 0..6 {
        assert!(file.look(id(page, 1), filled(page.into(), 0)).unwrap().is_cached());
    }
}
