//! The rules that a store file keeps by itself, each by its number, on the simulated disk:
//! what a process left behind is made durable (P9), publishing in order (P14), reuse of what was freed (P16), torn pages (P18), poison (P21).

use std::path::Path;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Generation, KeyspaceId, Lsn, PageNumber, Poison, Result};
use spinney_extent::slot::SLOT_PAGES;
use spinney_extent::{BlockHeader, BlockKind, Checkpoint, Extent, GiveBack, Store, StoreOptions};
use spinney_io::sim::{CrashMode, Fault, SimDisk};
use spinney_io::{AlignedBuf, Directory, OpenMode, Purpose, Reserve, Reserved, without_reserve};

const KEYSPACE: KeyspaceId = KeyspaceId(3);

type Page = (PageNumber, Generation);

fn path() -> &'static Path {
    Path::new("/db/store")
}

fn options() -> StoreOptions {
    StoreOptions { keyspace: KEYSPACE, double_write: true, poison: Arc::new(Poison::new()) }
}

fn create(seed: u64) -> (SimDisk, Store) {
    let disk = SimDisk::new(seed);
    disk.create_dir(Path::new("/db")).unwrap();
    let store = create_in(&*disk.at("/db"));
    disk.sync_dir(Path::new("/db")).unwrap();
    (disk, store)
}

fn create_in(directory: &dyn Directory) -> Store {
    let store = Store::create(directory, "store", options(), Lsn(0)).unwrap();
    store.adopt(&[]).unwrap();
    store
}

fn open(disk: &SimDisk) -> Result<(Store, Checkpoint, Vec<u8>)> {
    Store::open(&*disk.at("/db"), "store", options())
}

/// A page whose bytes say which version it is.
fn fill(buf: &mut AlignedBuf, index: usize, (page, generation): Page, version: u8, lsn: Lsn) {
    buf.page_mut(index).fill(version);
    let header = BlockHeader { kind: BlockKind::DATA, page, generation, keyspace: KEYSPACE, lsn };
    header.seal(buf.page_mut(index));
}

/// Writes a version of some pages, fresh or in place; it is their LSN too.
fn write(store: &Store, pages: &[Page], version: u8, in_place: bool) -> Result<()> {
    write_with_lsn(store, pages, version, in_place, Lsn(version.into()))
}

fn write_with_lsn(
    store: &Store,
    pages: &[Page],
    version: u8,
    in_place: bool,
    lsn: Lsn,
) -> Result<()> {
    let mut buf = AlignedBuf::new(pages.len());
    for (index, page) in pages.iter().enumerate() {
        fill(&mut buf, index, *page, version, lsn);
    }
    let numbers: Vec<PageNumber> = pages.iter().map(|(page, _)| *page).collect();
    if in_place {
        store.write_in_place(&numbers, &mut buf, Purpose::WRITE_BACK)
    } else {
        store.write_fresh(&numbers, &buf, Purpose::REORGANIZE)
    }
}

/// Which version a page has.
fn version(store: &Store, (page, generation): Page) -> Result<u8> {
    let mut buf = AlignedBuf::new(1);
    store.read(page, generation, buf.page_mut(0), Purpose::LOOKUP)?;
    assert!(buf.page(0)[32..].iter().all(|byte| *byte == buf.page(0)[32]));
    Ok(buf.page(0)[32])
}

/// New pages in their first version, durable.
fn pages(store: &Store, count: usize) -> Vec<Page> {
    let allocate = |_| {
        let (extent, generation) = store.allocate(0).unwrap();
        (extent.page, generation)
    };
    let pages: Vec<Page> = (0..count).map(allocate).collect();
    write(store, &pages, 1, false).unwrap();
    store.sync(Purpose::REORGANIZE).unwrap();
    pages
}

fn owned(pages: &[Page]) -> Vec<(Extent, Generation)> {
    pages.iter().map(|(page, generation)| (Extent::single(*page), *generation)).collect()
}

/// The payload of the checkpoint at this LSN: its length and bytes tell which.
fn payload(redo: u64) -> Vec<u8> {
    vec![u8::try_from(redo).unwrap(); 3000 * usize::try_from(redo).unwrap()]
}

fn publish(store: &Store, redo: u64) -> Result<()> {
    let checkpoint = Checkpoint { redo: Lsn(redo), structure: redo };
    store.publish(checkpoint, &payload(redo), || Ok(()))
}

/// The checkpoint that an image opens with, whole.
fn newest(disk: &SimDisk) -> u64 {
    let (_, checkpoint, found) = open(disk).unwrap();
    assert_eq!(checkpoint.structure, checkpoint.redo.0);
    assert_eq!(found, payload(checkpoint.redo.0));
    checkpoint.redo.0
}

/// Runs `run` and keeps an image before every step.
fn images(disk: &SimDisk, mode: CrashMode, run: impl FnOnce()) -> Vec<SimDisk> {
    disk.capture_when(Arc::new(move |_, _| Some(mode)));
    run();
    disk.capture_when(Arc::new(|_, _| None));
    disk.take_captures().into_iter().map(|capture| capture.image).collect()
}

/// A process is killed at each step of its second checkpoint, also when it has written the slot and not synced
/// it; the next one opens what is there, adopts nothing, and `goes_on` by the slot that it found; then power is
/// lost. That slot must be what is found again: `newest` tells which checkpoint an image has, whole.
fn killed_in_a_checkpoint(
    seeds: u64,
    publish: impl Fn(&Store, u64) -> Result<()>,
    mut goes_on: impl FnMut(&Store, u64),
    newest: impl Fn(&SimDisk) -> u64,
) {
    for seed in 0..seeds {
        let (disk, store) = create(seed);
        publish(&store, 1).unwrap();
        let begun = disk.steps();
        publish(&store, 2).unwrap();
        let steps = disk.steps() - begun;
        for step in 1..=steps {
            let (disk, store) = create(seed);
            publish(&store, 1).unwrap();
            disk.cut_power_at(disk.steps() + step);
            assert!(publish(&store, 2).is_err() || step == steps);
            let killed = disk.kill();
            let (store, checkpoint, _) = open(&killed).unwrap();
            store.adopt(&[]).unwrap();
            goes_on(&store, checkpoint.redo.0);
            for mode in [CrashMode::LoseAll, CrashMode::Torn4K, CrashMode::Torn512] {
                let found = newest(&killed.crash(mode));
                assert_eq!(found, checkpoint.redo.0, "step {step} of {steps}");
            }
        }
    }
}

#[test]
fn p09_a_slot_that_a_killed_process_left_is_durable_before_others_pages_are_reused() {
    let mut went_on = 0;
    let reuse = |store: &Store, redo| {
        while store.space().free_pages > 0 {
            let (extent, generation) = store.allocate(0).unwrap();
            write(store, &[(extent.page, generation)], 9, false).unwrap();
        }
        went_on += u64::from(redo == 2);
    };
    killed_in_a_checkpoint(20, publish, reuse, newest);
    assert!(went_on > 0);
}

/// Giving room back reserves no generations, and so makes no slot durable by itself.
#[test]
fn p09_a_slot_that_a_killed_process_left_is_durable_before_others_room_is_given_back() {
    let large = |redo: u64| vec![u8::try_from(redo).unwrap(); 2 << 20];
    let publish = |store: &Store, redo| {
        let checkpoint = Checkpoint { redo: Lsn(redo), structure: redo };
        store.publish(checkpoint, &large(redo), || Ok(()))
    };
    let mut gave = 0;
    let give_back = |store: &Store, redo| {
        while store.give_back(GiveBack::Much).unwrap() > 0 {
            gave += u64::from(redo == 2);
        }
    };
    let newest = |disk: &SimDisk| {
        let (_, checkpoint, payload) = open(disk).unwrap();
        assert!(payload == large(checkpoint.redo.0));
        checkpoint.redo.0
    };
    killed_in_a_checkpoint(4, publish, give_back, newest);
    assert!(gave > 0);
}

/// An eighth of a file may stay free for what comes next; less does when somebody asks for the room.
#[test]
fn room_that_is_asked_for_is_given_back_to_a_32nd() {
    let (_, store) = create(1);
    let extents: Vec<_> = (0..100).map(|_| store.allocate(5).unwrap().0).collect();
    while store.give_back(GiveBack::Most).unwrap() > 0 {}
    let solid = || {
        let space = store.space();
        (space.free_pages - space.hole_pages, u64::from(space.end_page) - space.hole_pages)
    };
    assert!(solid().0 <= 128, "{:?}", solid());
    extents.iter().step_by(12).for_each(|extent| store.release(*extent));
    let (before, takes) = solid();
    assert!(before > 256 && before < takes / 8, "{before} of {takes}");
    assert_eq!(store.give_back(GiveBack::Much).unwrap(), 0);
    while store.give_back(GiveBack::Most).unwrap() > 0 {}
    let (after, takes) = solid();
    assert!(after <= takes / 32 + 1, "{after} of {takes}");
    while store.give_back(GiveBack::All).unwrap() > 0 {}
    assert_eq!(solid().0, 0, "on a full disk none is kept");
}

/// Pages that become holes just now are in no list of free ones, and still belong to the file.
#[test]
fn p28_an_audit_beside_a_giving_back_accounts_for_all_pages() {
    let (_, store) = create(1);
    for round in 0..40 {
        let extents: Vec<_> = (0..600).map(|_| store.allocate(0).unwrap().0).collect();
        let (kept, gone): (Vec<_>, Vec<_>) =
            extents.into_iter().partition(|extent| extent.page.0 % 2 == 0);
        gone.iter().for_each(|extent| store.release(*extent));
        std::thread::scope(|scope| {
            let giving = scope.spawn(|| while store.give_back(GiveBack::All).unwrap() > 0 {});
            while !giving.is_finished() {
                let audited = store.audit(kept.clone(), 0);
                audited.unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
        });
        kept.iter().for_each(|extent| store.release(*extent));
    }
}

#[test]
fn p14_a_cut_checkpoint_leaves_the_one_before() {
    for seed in 0..20 {
        let (disk, store) = create(seed);
        for redo in 1..8 {
            let mode =
                [CrashMode::Torn512, CrashMode::LoseAll, CrashMode::KeepAll][redo as usize % 3];
            for image in images(&disk, mode, || publish(&store, redo).unwrap()) {
                let found = newest(&image);
                assert!(found == redo || found == redo - 1, "{found} instead of {redo}");
            }
            assert_eq!(newest(&disk.crash(CrashMode::LoseAll)), redo);
        }
    }
}

/// The file grows for others between the sync of the payload and the slot. Its new size may be lost though the slot is not: the
/// slot does not count on it.
#[test]
fn p13_a_slot_counts_on_no_room_that_came_after_the_sync() {
    for seed in 0..40 {
        let (disk, store) = create(seed);
        publish(&store, 1).unwrap();
        let grow = || {
            let before = store.space().end_page;
            while store.space().end_page == before {
                store.allocate(0)?;
            }
            Ok(())
        };
        let checkpoint = Checkpoint { redo: Lsn(2), structure: 2 };
        let publish = || store.publish(checkpoint, &payload(2), grow).unwrap();
        for image in images(&disk, CrashMode::Torn512, publish) {
            assert!(newest(&image) <= 2);
        }
        assert_eq!(newest(&disk.crash(CrashMode::LoseAll)), 2);
    }
}

/// The sync of a slot's own page fails, and the next process reads that page: it is torn on the media, and a crash while
/// its copy is written over would leave neither. Slots of one sector are not torn, so these name many extents.
#[test]
fn p21_a_slots_own_page_that_no_sync_kept_is_written_again() {
    let large = |store: &Store, redo: u64| {
        let checkpoint = Checkpoint { redo: Lsn(redo), structure: redo };
        store.publish(checkpoint, &vec![u8::try_from(redo).unwrap(); 45 * 4000], || Ok(()))
    };
    for seed in 0..40 {
        let (disk, store) = create(seed);
        let mut kept = pages(&store, 200);
        while store.space().free_pages > 0 {
            let (extent, generation) = store.allocate(0).unwrap();
            kept.push((extent.page, generation));
        }
        let gone: Vec<_> = kept.extract_if(.., |(page, _)| page.0 % 2 == 0).collect();
        gone.iter().for_each(|(page, _)| store.release(Extent::single(*page)));
        disk.set_capacity(Some(disk.used()));
        large(&store, 1).unwrap();
        disk.inject(Fault::SyncError { at: disk.syncs() + 3 });
        assert!(large(&store, 2).unwrap_err().is_poisoned());
        let disk = disk.kill();
        let (store, checkpoint, _) = open(&disk).unwrap();
        assert_eq!(checkpoint.redo, Lsn(2));
        store.adopt(&owned(&kept)).unwrap();
        for redo in 3..6 {
            for image in images(&disk, CrashMode::Torn512, || large(&store, redo).unwrap()) {
                let found = open(&image).unwrap().1.redo.0;
                assert!(found == redo - 1 || found == redo, "{found}");
            }
        }
    }
}

/// The log must be durable to its end before a slot says that records below its redo LSN are not
/// needed; if it cannot be, the checkpoint before stands and nothing is lost.
#[test]
fn p14_the_log_comes_before_the_slot() {
    let (disk, store) = create(1);
    publish(&store, 1).unwrap();
    let free = store.space().free_pages;
    let checkpoint = Checkpoint { redo: Lsn(2), structure: 2 };
    let failed = store.publish(checkpoint, &payload(2), || {
        assert_eq!(newest(&disk.crash(CrashMode::KeepAll)), 1, "the slot came before the log");
        Err(Error::new(ErrorKind::Full, "no room in the log"))
    });
    assert!(failed.unwrap_err().is_full());
    assert_eq!(newest(&disk.crash(CrashMode::KeepAll)), 1);
    assert_eq!(store.space().free_pages, free, "what no slot names was given back");
    publish(&store, 3).unwrap();
    assert_eq!(newest(&disk.crash(CrashMode::LoseAll)), 3);
}

/// A slot has a copy, so one damaged page hides nothing; with both pages of a pair damaged the file
/// is refused, whichever pair it is, for each may have held the newest slot.
#[test]
fn p28_a_damaged_slot_hides_no_checkpoint() {
    let (disk, store) = create(1);
    for redo in 1..6 {
        publish(&store, redo).unwrap();
        for page in 0..SLOT_PAGES {
            let image = disk.crash(CrashMode::LoseAll);
            let flip = |page: u32| {
                image.flip_bit(path(), PageNumber(page).offset() + 100, 3).unwrap();
            };
            flip(page);
            let (store, checkpoint, _) = open(&image).unwrap();
            assert_eq!(checkpoint.redo, Lsn(redo), "page {page}");
            assert!(store.verify_checkpoint().unwrap_err().is_corruption());
            for other in (0..SLOT_PAGES).filter(|other| *other != page) {
                flip(other);
                if other % 2 == page % 2 {
                    assert!(open(&image).unwrap_err().is_corruption(), "pages {page} and {other}");
                } else {
                    assert_eq!(open(&image).unwrap().1.redo, Lsn(redo), "pages {page} and {other}");
                }
                flip(other);
            }
            // The next two checkpoints write all pages.
            store.adopt(&[]).unwrap();
            publish(&store, redo + 1).unwrap();
            publish(&store, redo + 2).unwrap();
            store.verify_checkpoint().unwrap();
            assert_eq!(newest(&image), redo + 2);
        }
    }
}

/// Every single byte of every slot page, in a file with checkpoints and in one without.
#[test]
fn p28_no_byte_of_a_slot_loses_a_checkpoint() {
    for published in [0, 1, 2] {
        let (disk, store) = create(1);
        (1..=published).for_each(|redo| publish(&store, redo).unwrap());
        drop(store);
        for at in 0..SLOT_PAGES as usize * PAGE_BYTES {
            disk.flip_bit(path(), at as u64, (at % 8) as u8).unwrap();
            assert_eq!(open(&disk).unwrap().1.redo, Lsn(published), "byte {at}");
            disk.flip_bit(path(), at as u64, (at % 8) as u8).unwrap();
        }
    }
}

#[test]
fn p16_what_is_freed_waits_until_its_record_is_durable() {
    let (_, store) = create(1);
    let pages = pages(&store, 4);
    store.retire([Extent::single(pages[1].0)], Lsn(5));
    store.retire([Extent::single(pages[2].0)], Lsn(7));
    let lowest = |store: &Store| {
        let (extent, generation) = store.allocate(0).unwrap();
        assert!(generation > pages[3].1, "a generation is never used again");
        store.release(extent);
        extent.page
    };
    store.reclaim(Lsn(4));
    assert_eq!(store.space().retired_pages, 2);
    assert!(
        lowest(&store) > pages[3].0,
        "a page was reused that a crash would give back to its owner"
    );
    store.reclaim(Lsn(6));
    assert_eq!(lowest(&store), pages[1].0);
    assert!(store.is_free(pages[2].0), "it belongs to nobody, though it must wait");
    let (taken, _) = store.allocate(0).unwrap();
    store.reclaim(Lsn(7));
    assert_eq!((taken.page, lowest(&store)), (pages[1].0, pages[2].0));
}

#[test]
fn p16_two_owners_are_found() {
    let (disk, store) = create(1);
    let pages = pages(&store, 3);
    publish(&store, 1).unwrap();
    let opened = |owned: &[(Extent, Generation)]| {
        let (store, ..) = open(&disk.crash(CrashMode::LoseAll)).unwrap();
        store.adopt(owned).map(|_| store)
    };
    opened(&owned(&pages)).unwrap();
    let mut twice = owned(&pages);
    twice.push(twice[1]);
    assert!(opened(&twice).unwrap_err().is_corruption());
    // The checkpoint's own pages have an owner, too.
    let (store, ..) = open(&disk.crash(CrashMode::LoseAll)).unwrap();
    let own = store.verify_checkpoint().unwrap()[0];
    assert!(opened(&[(own, Generation(1))]).unwrap_err().is_corruption());
}

/// A page was allocated and written, and the crash took the record that named it. Any thread that gets the
/// page next does not take those bytes for its own.
#[test]
fn p16_a_lost_allocation_does_not_come_back() {
    let (disk, store) = create(1);
    publish(&store, 1).unwrap();
    let lost = pages(&store, 1)[0];
    let (store, ..) = open(&disk.crash(CrashMode::LoseAll)).unwrap();
    store.adopt(&[]).unwrap();
    assert_eq!(version(&store, lost).unwrap(), 1, "the bytes are still there");
    let mut again = None;
    while again.is_none_or(|(page, _)| page < lost.0) {
        let (extent, generation) = store.allocate(0).unwrap();
        again = Some((extent.page, generation));
    }
    let again = again.unwrap();
    assert_eq!(again.0, lost.0);
    assert!(version(&store, again).unwrap_err().is_corruption());
}

/// One life after the other loses what it allocated, however much that was: no page is ever written
/// twice in one generation.
#[test]
fn p16_no_life_has_generations_of_another() {
    let (mut disk, store) = create(1);
    let mut seen = std::collections::BTreeSet::new();
    let mut take = |store: &Store, count: usize| {
        for _ in 0..count {
            let (extent, generation) = store.allocate(0).unwrap();
            assert!(seen.insert((extent.page, generation)), "{extent:?} in {generation} again");
            store.release(extent);
        }
    };
    take(&store, 10);
    publish(&store, 1).unwrap();
    take(&store, 10);
    for life in 0..6 {
        disk = disk.crash([CrashMode::LoseAll, CrashMode::Torn512][life % 2]);
        let (store, ..) = open(&disk).unwrap();
        store.adopt(&[]).unwrap();
        take(&store, if life == 2 { 10_000 } else { 10 });
        assert_eq!(newest(&disk), 1);
    }
}

/// Batches go over the same pages again and again; whatever sectors a crash takes, each page is
/// whole, in its old version or its new one.
#[test]
fn p18_every_page_is_old_or_new() {
    let mut restored = 0;
    for seed in 0..40 {
        let (disk, store) = create(seed);
        let pages = pages(&store, 12);
        for next in 2..6 {
            // Not the same pages each time: what one batch wrote is not synced when the next
            // begins.
            let batch = if next % 2 == 0 { &pages[..8] } else { &pages[4..] };
            let before: Vec<u8> =
                pages.iter().map(|page| version(&store, *page).unwrap()).collect();
            let cut =
                images(&disk, CrashMode::Torn512, || write(&store, batch, next, true).unwrap());
            for image in cut {
                let (store, ..) = open(&image).unwrap();
                restored += store.adopt(&owned(&pages)).unwrap();
                for (page, before) in pages.iter().zip(&before) {
                    // The batch before was not synced either, so its pages may be a version older
                    // still.
                    let found = version(&store, *page).unwrap();
                    assert!(
                        found == next || found <= *before,
                        "{found} and not {next} or {before}"
                    );
                }
            }
        }
    }
    assert!(restored > 100, "only {restored} pages were ever torn");
}

/// The pages of a keyspace without a log bear no LSN, and those of one with a log may bear the same for a
/// while. Short batches leave older copies behind them in both halves: a torn page becomes what its
/// newest copy says, never less than what was durable.
#[test]
fn p18_of_several_copies_the_newest_is_restored() {
    let mut restored = 0;
    for (seed, lsn) in (0..30).flat_map(|seed| [(seed, Lsn::ZERO), (seed, Lsn(7))]) {
        let (disk, store) = create(seed);
        let pages = pages(&store, 8);
        let versions =
            || -> Vec<u8> { pages.iter().map(|page| version(&store, *page).unwrap()).collect() };
        // The first copy of a batch makes durable what the one before wrote in place.
        let mut durable = versions();
        let batches = [0..8, 3..8, 6..8, 7..8, 6..8, 5..8, 0..2, 1..8];
        for (next, batch) in (2..).zip(batches) {
            let before = versions();
            let cut = images(&disk, CrashMode::Torn512, || {
                write_with_lsn(&store, &pages[batch.clone()], next, true, lsn).unwrap();
            });
            for image in cut.into_iter().chain([disk.crash(CrashMode::Torn512)]) {
                let (store, ..) = open(&image).unwrap();
                restored += store.adopt(&owned(&pages)).unwrap();
                for (index, page) in pages.iter().enumerate() {
                    let found = version(&store, *page).unwrap();
                    let allowed = [durable[index], before[index], next];
                    assert!(
                        allowed.contains(&found),
                        "seed {seed}, batch {next}, page {index}: {found} and none of {allowed:?}"
                    );
                }
            }
            durable = before;
        }
    }
    assert!(restored > 100, "only {restored} pages were ever torn");
}

/// A page that rots was not torn. Its newest copy was overwritten by another batch's, and an older one
/// lies behind the front of its half: that one is not taken for the page.
#[test]
fn p28_a_page_that_rots_does_not_become_an_older_copy() {
    let (disk, store) = create(1);
    let pages = pages(&store, 3);
    // As without a log: nothing but the batch tells which copy is newer.
    // The first half: 2 2 2; the second: 3; the first: 4 2 2; the second: 5.
    write_with_lsn(&store, &pages, 2, true, Lsn(7)).unwrap();
    write_with_lsn(&store, &pages[2..], 3, true, Lsn(7)).unwrap();
    write_with_lsn(&store, &pages[..1], 4, true, Lsn(7)).unwrap();
    write_with_lsn(&store, &pages[..1], 5, true, Lsn(7)).unwrap();
    for newest in [5, 6] {
        store.sync(Purpose::CHECKPOINT).unwrap();
        for rotten in 0..3 {
            let image = disk.crash(CrashMode::LoseAll);
            image.flip_bit(path(), pages[rotten].0.offset() + 1000, 1).unwrap();
            let (store, ..) = open(&image).unwrap();
            let restored = store.adopt(&owned(&pages)).unwrap();
            let found = version(&store, pages[rotten]);
            match rotten {
                0 => assert_eq!((restored, found.unwrap()), (1, newest)),
                _ => assert!(restored == 0 && found.unwrap_err().is_corruption(), "page {rotten}"),
            }
        }
        // Its newest copy lies before the other one now.
        write_with_lsn(&store, &pages[..1], newest + 1, true, Lsn(7)).unwrap();
    }
}

/// The next life begins with an empty area: its copies have lower numbers than those of the one before had.
#[test]
fn p18_copies_of_one_life_mean_nothing_in_the_next() {
    let (disk, store) = create(1);
    let pages = pages(&store, 1);
    (2..6).for_each(|next| write(&store, &pages, next, true).unwrap());
    drop(store);
    let disk = disk.kill();
    let (store, ..) = open(&disk).unwrap();
    store.adopt(&owned(&pages)).unwrap();
    write(&store, &pages, 6, true).unwrap();
    store.sync(Purpose::CHECKPOINT).unwrap();
    let image = disk.crash(CrashMode::LoseAll);
    image.flip_bit(path(), pages[0].0.offset() + 1000, 1).unwrap();
    let (store, ..) = open(&image).unwrap();
    assert_eq!(store.adopt(&owned(&pages)).unwrap(), 1);
    assert_eq!(version(&store, pages[0]).unwrap(), 6);
}

/// A recovery writes no page of the area that nothing was written to.
#[test]
fn p29_a_recovery_takes_no_more_room() {
    let (disk, store) = create(1);
    let pages = pages(&store, 2);
    write(&store, &pages, 2, true).unwrap();
    drop(store);
    let disk = disk.kill();
    disk.set_capacity(Some(disk.used()));
    let (store, ..) = open(&disk).unwrap();
    store.adopt(&owned(&pages)).unwrap();
    assert_eq!(version(&store, pages[0]).unwrap(), 2);
    // The first write ends the recovery, which clears the area.
    write(&store, &pages, 3, true).unwrap();
    assert_eq!(version(&store, pages[0]).unwrap(), 3);
}

/// When the numbers of batches begin again no copy has a higher one.
#[test]
fn p18_the_newest_copy_has_the_highest_number_for_ever() {
    let (disk, store) = create(1);
    let pages = pages(&store, 2);
    for _ in 1..u16::MAX {
        write(&store, &pages[..1], 2, true).unwrap();
    }
    // Its copy of the other page lies behind the front of its half.
    write(&store, &pages, 3, true).unwrap();
    for next in [4, 6, 8] {
        write(&store, &pages[..1], next, true).unwrap();
        write(&store, &pages[1..], next + 1, true).unwrap();
    }
    let mut restored = 0;
    for _ in 0..20 {
        let image = disk.crash(CrashMode::Torn512);
        let (store, ..) = open(&image).unwrap();
        restored += store.adopt(&owned(&pages)).unwrap();
        let found = [0, 1].map(|page| version(&store, pages[page]).unwrap());
        assert!(found[0] == 8 && (found[1] == 7 || found[1] == 9), "{found:?}");
    }
    assert!(restored > 0);
}

/// A copy that was left behind is older than the page in place, which is whole: the page stays.
#[test]
fn p18_a_whole_page_is_never_touched() {
    let (disk, store) = create(1);
    let pages = pages(&store, 10);
    let last = pages[9];
    // Its copy is the last of the first half.
    write(&store, &pages, 2, true).unwrap();
    // The next ones lie where nothing but the front of a half is written again.
    write(&store, &[last], 3, true).unwrap();
    write(&store, &pages[..1], 4, true).unwrap();
    write(&store, &pages[..1], 5, true).unwrap();
    store.sync(Purpose::CHECKPOINT).unwrap();
    let image = disk.crash(CrashMode::LoseAll);
    let (store, ..) = open(&image).unwrap();
    assert_eq!(store.adopt(&owned(&pages)).unwrap(), 0);
    assert_eq!(version(&store, last).unwrap(), 3);
    assert_eq!(version(&store, pages[0]).unwrap(), 5);
    // The area is empty now: what this life wrote is never put back over the next one's pages.
    drop(store);
    image.flip_bit(path(), last.0.offset() + 1000, 1).unwrap();
    let (store, ..) = open(&image).unwrap();
    assert_eq!(store.adopt(&owned(&pages)).unwrap(), 0);
    assert!(version(&store, last).unwrap_err().is_corruption());
}

/// A copy of a page that was freed and given to another owner is not put over what the other wrote.
#[test]
fn p18_a_copy_of_another_generation_is_not_restored() {
    let (disk, store) = create(1);
    let before = pages(&store, 1)[0];
    write(&store, &[before], 2, true).unwrap();
    store.release(Extent::single(before.0));
    let after = pages(&store, 1)[0];
    assert_eq!(after.0, before.0);
    let image = disk.crash(CrashMode::LoseAll);
    image.flip_bit(path(), after.0.offset() + 1000, 1).unwrap();
    let (store, ..) = open(&image).unwrap();
    assert_eq!(
        store.adopt(&owned(&[after])).unwrap(),
        0,
        "it could only be restored to what it was not"
    );
    assert!(version(&store, after).unwrap_err().is_corruption());
}

#[test]
fn p21_a_failed_sync_stops_the_store() {
    let (disk, store) = create(1);
    let pages = pages(&store, 2);
    publish(&store, 1).unwrap();
    disk.inject(Fault::SyncError { at: disk.syncs() + 1 });
    assert!(store.sync(Purpose::CHECKPOINT).unwrap_err().is_poisoned());
    let writes = disk.writes();
    let refused = [
        store.sync(Purpose::CHECKPOINT),
        write(&store, &pages, 2, false),
        write(&store, &pages, 2, true),
        publish(&store, 2),
        store.allocate(0).map(|_| ()),
    ];
    for answer in refused {
        let error = answer.unwrap_err();
        assert!(error.is_poisoned() && error.to_string().contains("sync"), "{error}");
    }
    assert_eq!(disk.writes(), writes, "nothing was written any more");
    assert_eq!(version(&store, pages[0]).unwrap(), 1, "reads go on");
}

/// A slot whose writing failed may be in the file, whole or torn. That is no damage, in the process that knows; a byte
/// that rots elsewhere in the slots is.
#[test]
fn p21_a_slot_whose_writing_failed_is_no_damage() {
    // Of another length each time, so that a page that is counted for the wrong one shows.
    let publish = |store: &Store, redo: u64| {
        let payload = vec![7; usize::try_from(redo).unwrap() * PAGE_BYTES];
        store.publish(Checkpoint { redo: Lsn(redo), structure: redo }, &payload, || Ok(()))
    };
    let unaccounted = |store: &Store| {
        let space = store.space();
        let accounted = space.free_pages + space.retired_pages + space.checkpoint_pages;
        u64::from(space.end_page) - accounted
    };
    let mut found = std::collections::BTreeSet::new();
    for (nth, of_sync) in (1..6).flat_map(|nth| [(nth, true), (nth, false)]) {
        let (disk, store) = create(nth);
        publish(&store, 1).unwrap();
        publish(&store, 2).unwrap();
        let owned = unaccounted(&store);
        let slots = || {
            let bytes = disk.contents(Path::new("/db/store")).unwrap();
            bytes.chunks(PAGE_BYTES).take(4).map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        let were = slots();
        disk.inject(match of_sync {
            true => Fault::SyncError { at: disk.syncs() + nth },
            false => Fault::WriteError { at: disk.writes() + nth },
        });
        let published = publish(&store, 3);
        let are = slots();
        let at = format!("{nth} {of_sync} {published:?}");
        let verified = || store.verify_checkpoint().map(|_| ());
        verified().unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(unaccounted(&store), owned, "{at}");
        let rot = |page: usize| {
            let offset = (page * PAGE_BYTES + 50) as u64;
            disk.flip_bit(Path::new("/db/store"), offset, 0).unwrap();
        };
        // A write that failed may have torn the page: of the pair the copy is written first.
        let written = [0, 1, 2, 3].into_iter().find(|page| were[*page] != are[*page]);
        if let (Some(page), true) = (written, published.is_err()) {
            rot(page);
            verified().unwrap_or_else(|error| panic!("{at}: torn: {error}"));
            rot(page);
        }
        found.insert((written, published.is_ok()));
        // A page of the slot that was not written rots.
        let other = [0, 1].into_iter().find(|page| were[page + 2] == are[page + 2]).unwrap();
        rot(other);
        assert!(verified().unwrap_err().is_corruption(), "{at}");
    }
    // Before the slot, its copy, its page, and none of them.
    assert!(found.len() >= 4, "{found:?}");
}

/// A full disk may have no large extent for a payload: then smaller ones hold it.
#[test]
fn p29_a_payload_takes_what_a_full_disk_has() {
    let (disk, store) = create(1);
    publish(&store, 1).unwrap();
    let mut pages: Vec<_> = (0..16).map(|_| store.allocate(0).unwrap().0).collect();
    disk.set_capacity(Some(0));
    while let Ok((extent, _)) = store.allocate(0) {
        pages.push(extent);
    }
    pages.into_iter().filter(|extent| extent.page.0 % 2 == 0).for_each(|it| store.release(it));
    assert!(store.allocate(1).unwrap_err().is_full(), "no two free pages lie side by side");
    let long = vec![7; 5 * PAGE_BYTES];
    store.publish(Checkpoint { redo: Lsn(2), structure: 2 }, &long, || Ok(())).unwrap();
    drop(store);
    let (_, checkpoint, found) = open(&disk.crash(CrashMode::LoseAll)).unwrap();
    assert_eq!((checkpoint.redo, found), (Lsn(2), long));
}

/// What may wait leaves the free pages that the next checkpoint needs, and what may not takes them.
#[test]
fn p29_what_may_wait_leaves_the_pages_of_the_next_checkpoint() {
    let (disk, store) = create(1);
    let long = vec![7; 20 * PAGE_BYTES];
    for redo in 1..3 {
        store.publish(Checkpoint { redo: Lsn(redo), structure: 1 }, &long, || Ok(())).unwrap();
    }
    disk.set_capacity(Some(0));
    let mut pages = 0;
    while without_reserve(|| store.allocate(0)).is_ok() {
        pages += 1;
    }
    assert!(pages > 0, "a file has more free pages than a checkpoint needs");
    assert!(without_reserve(|| store.allocate_run(1)).unwrap_err().is_full());
    assert!(store.space().free_pages > 20, "{:?}", store.space());
    store.publish(Checkpoint { redo: Lsn(3), structure: 2 }, &long, || Ok(())).unwrap();
    let left = store.space().free_pages;
    (0..left).for_each(|_| _ = store.allocate(0).unwrap());
    assert!(store.allocate(0).unwrap_err().is_full());
}

/// A batch leaves them as a whole, and one that does not fit takes nothing.
#[test]
fn p29_a_batch_that_may_wait_leaves_the_pages_of_the_next_checkpoint() {
    let (disk, store) = create(1);
    let long = vec![7; 20 * PAGE_BYTES];
    for redo in 1..3 {
        store.publish(Checkpoint { redo: Lsn(redo), structure: 1 }, &long, || Ok(())).unwrap();
    }
    disk.set_capacity(Some(0));
    let (free, left) = (store.space().free_pages, store.payload_pages());
    let room = u32::try_from(free - left).unwrap();
    assert!(room > 1 && left > 1, "{free} free, {left} to be left");
    assert!(without_reserve(|| store.allocate_batch(0, room + 1)).unwrap_err().is_full());
    assert_eq!(store.space().free_pages, free);
    assert_eq!(without_reserve(|| store.allocate_batch(0, room)).unwrap().0.len(), room as usize);
    assert_eq!(store.space().free_pages, left);
    store.allocate_batch(0, u32::try_from(left).unwrap()).unwrap();
}

/// A file that grows on a full disk asks for less before it gives the reserve up.
#[test]
fn p29_the_smallest_growth_is_tried_before_the_reserve_goes() {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    let reserve = Arc::new(Reserve::open(disk.at("/db")).unwrap());
    let store = create_in(&Reserved::new(reserve.clone()));
    reserve.keep(1 << 20).unwrap();
    (0..100).for_each(|_| _ = store.allocate(0).unwrap());
    let before = store.space();
    (0..before.free_pages).for_each(|_| _ = store.allocate(0).unwrap());
    disk.set_capacity(Some(disk.used() + 2 * PAGE_BYTES as u64));
    for pages in 1..3 {
        store.allocate(0).unwrap();
        assert_eq!(store.space().end_page, before.end_page + pages, "the smallest step");
        assert_eq!(reserve.bytes(), 1 << 20, "which fits without the reserve");
    }
    store.allocate(0).unwrap();
    assert!(reserve.bytes() < 1 << 20, "which the third one takes");
}

/// A step of growth may be smaller than what is to be left: the file grows until it is there.
#[test]
fn p29_what_may_wait_has_room_on_a_disk_that_has() {
    let (_, store) = create(1);
    let long = vec![7; 1000 * PAGE_BYTES];
    store.publish(Checkpoint { redo: Lsn(1), structure: 1 }, &long, || Ok(())).unwrap();
    while store.space().free_pages > 0 {
        store.allocate(0).unwrap();
    }
    without_reserve(|| store.allocate(0)).unwrap();
    without_reserve(|| store.allocate_run(3)).unwrap();
    assert!(store.space().free_pages >= 1000, "{:?}", store.space());
}

/// An opening writes nothing but torn pages, so that a full disk refuses no read; what else is due waits for the first
/// write, and then nothing of the life before is left in the area.
#[test]
fn p29_an_opening_writes_torn_pages_only() {
    let (disk, store) = create(1);
    let pages = pages(&store, 8);
    write(&store, &pages, 1, false).unwrap();
    publish(&store, 1).unwrap();
    write(&store, &pages, 2, true).unwrap();
    let disk = disk.kill();
    disk.copy_on_write();
    disk.set_capacity(Some(disk.used()));
    let (writes, syncs) = (disk.writes(), disk.syncs());
    let (store, ..) = open(&disk).unwrap();
    store.adopt(&owned(&pages)).unwrap();
    assert_eq!((disk.writes(), disk.syncs()), (writes, syncs));
    let mut buf = AlignedBuf::new(1);
    for (page, generation) in &pages {
        store.read(*page, *generation, buf.page_mut(0), Purpose::LOOKUP).unwrap();
    }
    assert!(store.allocate(0).unwrap_err().is_full());
    disk.set_capacity(None);
    store.allocate(0).unwrap();
    let contents = disk.crash(CrashMode::LoseAll).contents(path()).unwrap();
    let area = spinney_extent::store::DATA_PAGE_FIRST as usize * PAGE_BYTES;
    assert!(contents[SLOT_PAGES as usize * PAGE_BYTES..area].iter().all(|byte| *byte == 0));
}

/// A read that fails while what is due is done stops nothing: it is due as before.
#[test]
fn p21_a_read_that_fails_in_what_is_due_is_no_poison() {
    let (disk, store) = create(1);
    let pages = pages(&store, 8);
    publish(&store, 1).unwrap();
    write(&store, &pages, 2, true).unwrap();
    let disk = disk.kill();
    let (store, ..) = open(&disk).unwrap();
    store.adopt(&owned(&pages)).unwrap();
    for later in 1..10 {
        disk.inject(Fault::ReadError { at: disk.reads() + later });
        assert_eq!(store.sync(Purpose::CHECKPOINT).unwrap_err().kind(), ErrorKind::Io);
    }
    store.sync(Purpose::CHECKPOINT).unwrap();
    write(&store, &pages, 3, true).unwrap();
}

/// In a file of an earlier format the double-write area begins where slots have their copies now: it is emptied before
/// these are written. The first slot of today brings copies of both.
#[test]
fn p28_a_released_file_gets_copies_of_its_slots() {
    let golden = "../spinney/tests/golden/v2/keyspace-00000001.spn";
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(golden);
    let bytes = std::fs::read(golden).unwrap();
    let is_used =
        |page: usize| bytes[page * PAGE_BYTES..][..PAGE_BYTES].iter().any(|byte| *byte > 0);
    assert!(is_used(2) && is_used(3), "it has copies there");
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    let file = disk.at("/db").open("store", OpenMode::CREATE).unwrap();
    let mut buf = AlignedBuf::new(bytes.len() / PAGE_BYTES);
    buf.bytes_mut().copy_from_slice(&bytes);
    file.write_at(buf.bytes(), 0, Purpose::TOOL).unwrap();
    file.sync(Purpose::TOOL).unwrap();
    disk.sync_dir(Path::new("/db")).unwrap();
    let options = || StoreOptions { keyspace: KeyspaceId(1), ..options() };
    let (store, before, _) = Store::open(&*disk.at("/db"), "store", options()).unwrap();
    store.adopt(&[]).unwrap();
    store.allocate(0).unwrap();
    assert!(!store.is_unproven(), "the first allocation writes a slot");
    store.verify_checkpoint().unwrap();
    let disk = disk.crash(CrashMode::LoseAll);
    let (store, after, _) = Store::open(&*disk.at("/db"), "store", options()).unwrap();
    assert_eq!(before, after);
    store.verify_checkpoint().unwrap();
    // Each slot stands twice from then on: one damaged page hides nothing.
    for page in 0..u64::from(SLOT_PAGES) {
        let disk = disk.kill();
        disk.flip_bit(path(), page * PAGE_BYTES as u64 + 100, 3).unwrap();
        let (_, found, _) = Store::open(&*disk.at("/db"), "store", options()).unwrap();
        assert_eq!(found, after, "page {page}");
    }
}

/// In a poisoned database, which writes nothing, a store whose slot is in doubt is opened and read.
#[test]
fn p21_a_poisoned_database_opens_a_store_with_a_slot_in_doubt() {
    for failing in 2..4 {
        let (disk, store) = create(1);
        publish(&store, 1).unwrap();
        disk.inject(Fault::SyncError { at: disk.syncs() + failing });
        assert!(publish(&store, 2).unwrap_err().is_poisoned());
        drop(store);
        let options = options();
        options.poison.set(Error::new(ErrorKind::Io, "an earlier failure"));
        let (store, checkpoint, payload) = Store::open(&*disk.at("/db"), "store", options).unwrap();
        assert_eq!((checkpoint.redo, payload), (Lsn(2), self::payload(2)));
        store.adopt(&[]).unwrap();
        store.mend_slots().unwrap();
        assert!(store.allocate(0).unwrap_err().is_poisoned());
    }
}
