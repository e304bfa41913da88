//! The simulated disk's own promises: what survives, what does not, that a seed replays, and that
//! each fault strikes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use spinney_base::ErrorKind;
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;

use super::{CrashMode, Fault, SimDisk, SimView, WriteObserver};
use crate::disk::{Disk, File, IfMissing, OpenMode, Transfer};
use crate::{AlignedBuf, Purpose};

const PAGE: u64 = PAGE_BYTES as u64;

fn page(byte: u8) -> AlignedBuf {
    let mut page = AlignedBuf::new(1);
    page.bytes_mut().fill(byte);
    page
}

fn create(disk: &SimDisk, path: &str) -> Arc<dyn File> {
    let path = Path::new(path);
    disk.create_dir(path.parent().unwrap()).unwrap();
    disk.open(path, OpenMode::CREATE).unwrap()
}

fn write(file: &Arc<dyn File>, number: u64, byte: u8) {
    file.write_at(page(byte).bytes(), number * PAGE, Purpose::WRITE_BACK).unwrap();
}

fn read(disk: &SimDisk, path: &str, number: u64, mode: OpenMode) -> Vec<u8> {
    let mut buf = AlignedBuf::new(1);
    let file = disk.open(Path::new(path), mode).unwrap();
    file.read_at(buf.bytes_mut(), number * PAGE, Purpose::LOOKUP).unwrap();
    buf.bytes().to_vec()
}

/// A file `/db/f` with pages 1, 2, 3 synced and pages 0 and 1 then changed.
fn half_synced(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let file = create(&disk, "/db/f");
    (0..3).for_each(|number| write(&file, number, 1));
    file.sync(Purpose::WRITE_BACK).unwrap();
    disk.sync_dir(Path::new("/db")).unwrap();
    write(&file, 0, 2);
    write(&file, 1, 2);
    write(&file, 0, 3);
    write(&file, 3, 3);
    disk
}

#[test]
fn only_what_was_synced_is_sure() {
    let lost = half_synced(1).crash(CrashMode::LoseAll);
    assert_eq!(lost.contents(Path::new("/db/f")).unwrap(), vec![1; 3 * PAGE_BYTES]);
    let kept = half_synced(1).crash(CrashMode::KeepAll).contents(Path::new("/db/f")).unwrap();
    assert_eq!(
        (kept[0], kept[PAGE_BYTES], kept[2 * PAGE_BYTES], kept.len()),
        (3, 2, 1, 4 * PAGE_BYTES)
    );
}

#[test]
fn every_outcome_of_a_crash_is_drawn_and_torn_at_its_unit() {
    for (mode, unit) in [(CrashMode::Torn512, 512), (CrashMode::Torn4K, PAGE_BYTES)] {
        let mut first_page = BTreeSet::new();
        let mut sizes = BTreeSet::new();
        let mut mixed = false;
        for seed in 0..300 {
            let image = half_synced(seed).crash(mode).contents(Path::new("/db/f")).unwrap();
            for chunk in image.chunks(unit) {
                assert!(chunk.iter().all(|byte| *byte == chunk[0]));
            }
            first_page.insert(image[0]);
            mixed |= image[..PAGE_BYTES].iter().any(|byte| *byte != image[0]);
            assert!(image[2 * PAGE_BYTES..3 * PAGE_BYTES].iter().all(|byte| *byte == 1));
            sizes.insert(image.len());
        }
        assert_eq!(first_page, [1, 2, 3].into());
        assert_eq!(sizes, [3 * PAGE_BYTES, 4 * PAGE_BYTES].into());
        assert_eq!(mixed, mode == CrashMode::Torn512);
    }
}

#[test]
fn a_seed_replays_to_the_byte() {
    for seed in 0..20 {
        let image = |seed| half_synced(seed).crash(CrashMode::Torn512);
        let path = Path::new("/db/f");
        assert_eq!(image(seed).contents(path).unwrap(), image(seed).contents(path).unwrap());
    }
}

#[test]
fn names_are_durable_only_after_their_directory() {
    let path = Path::new("/db/manifest");
    let mut outcomes = BTreeSet::new();
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        let old = create(&disk, "/db/manifest");
        write(&old, 0, 1);
        old.sync(Purpose::MANIFEST).unwrap();
        disk.sync_dir(Path::new("/db")).unwrap();
        let new = create(&disk, "/db/manifest.new");
        write(&new, 0, 2);
        new.sync(Purpose::MANIFEST).unwrap();
        disk.rename(Path::new("/db/manifest.new"), path).unwrap();
        let image = disk.crash(CrashMode::Torn512);
        outcomes.insert(image.contents(path).unwrap()[0]);
        assert!(image.files().len() <= 2);
        disk.sync_dir(Path::new("/db")).unwrap();
        let image = disk.crash(CrashMode::Torn512);
        assert_eq!(image.contents(path).unwrap(), vec![2; PAGE_BYTES]);
        assert_eq!(image.files(), [path]);
    }
    assert_eq!(outcomes, [1, 2].into());
}

#[test]
fn a_file_removed_and_not_synced_may_come_back() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..100 {
        let disk = half_synced(seed);
        disk.remove(Path::new("/db/f")).unwrap();
        outcomes.insert(disk.crash(CrashMode::Torn4K).at("/db").exists("f").unwrap());
    }
    assert_eq!(outcomes, [false, true].into());
}

#[test]
fn the_cut_step_and_all_later_ones_fail() {
    let mut partial = BTreeSet::new();
    for seed in 0..100 {
        let disk = half_synced(seed);
        let file = disk.open(Path::new("/db/f"), OpenMode::EXISTING).unwrap();
        disk.cut_power_at(disk.steps() + 2);
        write(&file, 0, 4);
        let _state = spinney_base::probe::enter("writing");
        let mut four = AlignedBuf::new(4);
        four.bytes_mut().fill(9);
        let error = file.write_at(four.bytes(), 0, Purpose::TOOL).unwrap_err();
        assert!(SimDisk::is_power_cut(&error) && disk.power_is_off());
        assert_eq!(disk.states_at_power_cut(), ["writing"]);
        assert!(file.read_at(four.bytes_mut(), 0, Purpose::TOOL).is_err());
        assert!(disk.sync_dir(Path::new("/db")).is_err());
        let image = disk.crash(CrashMode::KeepAll).contents(Path::new("/db/f")).unwrap();
        partial.insert(image.chunks(PAGE_BYTES).filter(|page| page[0] == 9).count());
    }
    assert_eq!(partial, [0, 1, 2, 3, 4].into());
}

#[test]
fn a_killed_process_leaves_the_cache_and_no_lock() {
    let disk = half_synced(7);
    let _held = disk.at("/db").lock().unwrap();
    assert_eq!(disk.at("/db").lock().unwrap_err().kind(), ErrorKind::Locked);
    let next = disk.kill();
    next.at("/db").lock().unwrap();
    assert_eq!(read(&next, "/db/f", 0, OpenMode::EXISTING)[0], 3);
    assert_eq!(next.crash(CrashMode::LoseAll).contents(Path::new("/db/f")).unwrap()[0], 1);
}

#[test]
fn a_failed_sync_drops_what_it_should_have_kept() {
    for seed in 0..40 {
        let disk = half_synced(seed);
        let file = disk.open(Path::new("/db/f"), OpenMode::EXISTING.cached()).unwrap();
        file.sync(Purpose::LOG).unwrap();
        write(&file, 0, 7);
        disk.inject(Fault::SyncError { at: disk.syncs() + 1 });
        assert_eq!(file.sync(Purpose::LOG).unwrap_err().kind(), ErrorKind::Io);
        file.sync(Purpose::LOG).unwrap();
        assert_eq!(disk.faults_struck(), 1);
        assert_eq!(read(&disk, "/db/f", 0, OpenMode::EXISTING.cached()), vec![7; PAGE_BYTES]);
        let media = read(&disk, "/db/f", 0, OpenMode::EXISTING);
        let image = disk.crash(CrashMode::KeepAll).contents(Path::new("/db/f")).unwrap();
        assert_eq!(image[..PAGE_BYTES], media);
        write(&file, 0, 8);
        file.sync(Purpose::LOG).unwrap();
        let image = disk.crash(CrashMode::LoseAll).contents(Path::new("/db/f")).unwrap();
        assert_eq!(image[..PAGE_BYTES], vec![8; PAGE_BYTES]);
    }
}

#[test]
fn faults_strike_once_at_their_number() {
    let disk = half_synced(3);
    let other = create(&disk, "/db/g");
    write(&other, 0, 5);
    let file = disk.open(Path::new("/db/f"), OpenMode::EXISTING).unwrap();
    let mut buf = AlignedBuf::new(1);
    disk.inject(Fault::ReadError { at: disk.reads() + 1 });
    disk.inject(Fault::ShortRead { at: disk.reads() + 2 });
    let kinds: Vec<_> = (0..3)
        .map(|_| file.read_at(buf.bytes_mut(), 0, Purpose::LOOKUP).err().map(|e| e.kind()))
        .collect();
    assert_eq!(kinds, [Some(ErrorKind::Io), Some(ErrorKind::Corruption), None]);

    let next = disk.writes() + 1;
    disk.inject(Fault::WriteError { at: next });
    disk.inject(Fault::LostWrite { at: next + 1 });
    let elsewhere = Some("/db/g".into());
    disk.inject(Fault::MisdirectedWrite { at: next + 2, path: elsewhere, offset: 0 });
    disk.inject(Fault::NoSpaceInPlace { at: next + 3 });
    disk.inject(Fault::NoSpace { at: disk.room_requests() + 1 });
    let nine = page(9);
    let kinds: Vec<_> = (0..5)
        .map(|_| file.write_at(nine.bytes(), 2 * PAGE, Purpose::TOOL).err().map(|e| e.kind()))
        .collect();
    assert_eq!(kinds, [Some(ErrorKind::Io), None, None, Some(ErrorKind::Full), None]);
    assert_eq!(disk.contents(Path::new("/db/g")).unwrap(), vec![9; PAGE_BYTES]);
    let grown = file.write_at(nine.bytes(), 9 * PAGE, Purpose::TOOL);
    assert!(grown.unwrap_err().is_full() && file.len().unwrap() == 4 * PAGE);
    disk.flip_bit(Path::new("/db/g"), 100, 1).unwrap();
    assert_eq!(read(&disk, "/db/g", 0, OpenMode::EXISTING)[100], 11);
    assert_eq!(disk.faults_struck(), 7);
}

#[test]
fn capacity_bounds_growth_and_room_returns() {
    let disk = SimDisk::new(0);
    let file = create(&disk, "/db/f");
    let other = create(&disk, "/db/g");
    disk.set_capacity(Some(4 * PAGE));
    other.allocate(2 * PAGE).unwrap();
    file.allocate(2 * PAGE).unwrap();
    assert!(file.allocate(3 * PAGE).unwrap_err().is_full());
    write(&file, 1, 1);
    assert!(file.write_at(page(1).bytes(), 2 * PAGE, Purpose::TOOL).unwrap_err().is_full());
    assert_eq!(file.len().unwrap(), 2 * PAGE);
    disk.remove(Path::new("/db/g")).unwrap();
    file.allocate(4 * PAGE).unwrap();
}

#[test]
fn a_batch_ends_in_any_order_with_the_cut_between() {
    let mut images = BTreeSet::new();
    for seed in 0..60 {
        let disk = SimDisk::new(seed);
        let file = create(&disk, "/db/f");
        disk.cut_power_at(disk.steps() + 2);
        let pages: Vec<AlignedBuf> = (1..=3).map(page).collect();
        let mut batch: Vec<Transfer<'_>> = (0..3)
            .map(|number| Transfer::write(pages[number].bytes(), number as u64 * PAGE))
            .collect();
        file.transfer(&mut batch, Purpose::WRITE_BACK);
        let ended: Vec<bool> = batch.iter().map(|one| one.result.is_ok()).collect();
        assert_eq!(ended.iter().filter(|ok| **ok).count(), 1);
        images.insert(ended);
    }
    assert_eq!(images.len(), 3);
}

#[test]
fn persistent_memory_keeps_what_was_fenced() {
    let path = Path::new("/db/f");
    let disk = SimDisk::new(0);
    disk.map_persistently(true);
    drop(create(&disk, "/db/f"));
    let file = disk.open(path, OpenMode::EXISTING.cached()).unwrap();
    disk.sync_dir(Path::new("/db")).unwrap();
    file.allocate(PAGE).unwrap();
    file.sync(Purpose::TOOL).unwrap();
    assert!(file.is_persistent());
    let memory = file.map(4096).unwrap();
    assert!(memory.is_persistent());
    memory.store(64, &[1; 64]);
    memory.store(128, &[2; 8]);
    memory.write_back(64..65);
    assert_eq!(disk.unfenced_lines(path).unwrap(), 2);
    memory.fence();
    assert_eq!(disk.unfenced_lines(path).unwrap(), 1);
    assert_eq!(disk.lines_and_fences(), (1, 1));
    let lost = disk.crash(CrashMode::LoseAll).contents(path).unwrap();
    assert_eq!((&lost[64..128], &lost[128..136]), (&[1; 64][..], &[0; 8][..]));
    let kept = disk.crash(CrashMode::KeepAll).contents(path).unwrap();
    assert_eq!(kept[128..136], [2; 8]);
    assert_eq!(disk.kill().contents(path).unwrap(), kept);
    // After the power went nothing is stored, and no caller learns of it.
    disk.cut_power_at(disk.steps() + 1);
    memory.fence();
    memory.store(256, &[3; 8]);
    assert!(disk.power_is_off());
    assert_eq!(disk.crash(CrashMode::KeepAll).contents(path).unwrap()[256..264], [0; 8]);
}

#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl WriteObserver for Seen {
    fn before_write(&self, view: &SimView<'_>, path: &Path, offset: u64, bytes: &[u8]) {
        let durable = view.durable_page(path, offset).map(|page| page[0]);
        let synced = view.is_synced(path, offset);
        self.0.lock().push(format!("write {} {durable:?} {synced}", bytes[0]));
    }

    fn after_sync(&self, view: &SimView<'_>, path: &Path) {
        self.0.lock().push(format!("sync {}", view.durable_len(path)));
    }
}

#[test]
fn an_observer_sees_the_media() {
    let disk = SimDisk::new(0);
    let seen = Arc::new(Seen::default());
    disk.observe(seen.clone());
    let file = create(&disk, "/db/f");
    write(&file, 0, 1);
    write(&file, 0, 2);
    file.sync(Purpose::WRITE_BACK).unwrap();
    write(&file, 0, 3);
    let expected = ["write 1 None true", "write 2 None false", "sync 4096", "write 3 Some(2) true"];
    assert_eq!(*seen.0.lock(), expected);
}

#[test]
fn captures_are_images_of_the_middle_of_a_run() {
    let disk = SimDisk::new(0);
    let file = create(&disk, "/db/f");
    disk.sync_dir(Path::new("/db")).unwrap();
    let first = disk.steps() + 1;
    disk.capture_when(Arc::new(move |step, states| {
        (step >= first && states.contains(&"here")).then_some(CrashMode::KeepAll)
    }));
    write(&file, 0, 1);
    {
        let _here = spinney_base::probe::enter("here");
        write(&file, 0, 2);
        write(&file, 0, 3);
    }
    write(&file, 0, 4);
    let captures = disk.take_captures();
    let seen: Vec<u8> = captures
        .iter()
        .map(|capture| capture.image.contents(Path::new("/db/f")).unwrap()[0])
        .collect();
    assert_eq!(seen, [1, 2]);
    assert_eq!(captures[1].step, first + 2);
    assert!(disk.take_captures().is_empty());
}

/// Knows what state the disk is in after the first write.
struct Knows(Mutex<bool>);

impl WriteObserver for Knows {
    fn before_write(&self, _: &SimView<'_>, _: &Path, _: u64, _: &[u8]) {
        *self.0.lock() = true;
    }

    fn after_sync(&self, _: &SimView<'_>, _: &Path) {}

    fn states(&self) -> Vec<&'static str> {
        if *self.0.lock() { vec!["written"] } else { Vec::new() }
    }
}

#[test]
fn what_an_observer_knows_is_a_state_of_every_thread() {
    let disk = SimDisk::new(0);
    let file = create(&disk, "/db/f");
    disk.observe(Arc::new(Knows(Mutex::new(false))));
    disk.capture_when(Arc::new(|_, states| {
        states.contains(&"written").then_some(CrashMode::KeepAll)
    }));
    disk.sync_dir(Path::new("/db")).unwrap();
    write(&file, 0, 1);
    let _here = spinney_base::probe::enter("here");
    disk.cut_power_at(disk.steps() + 1);
    file.sync(Purpose::WRITE_BACK).unwrap_err();
    let states: Vec<_> = disk.take_captures().into_iter().map(|one| one.states).collect();
    assert_eq!(states, [vec!["written"], vec!["here", "written"]]);
    assert_eq!(disk.states_at_power_cut(), ["here", "written"]);
}

/// A hole reads as zeros, takes no room and asks for it again; until a sync a power loss may bring
/// back what was there.
#[test]
fn holes_take_no_room() {
    let disk = SimDisk::new(40);
    let path = Path::new("/f");
    let file = disk.open(path, OpenMode::CREATE).unwrap();
    let mut buf = AlignedBuf::new(8);
    buf.bytes_mut().fill(7);
    file.write_at(buf.bytes(), 0, Purpose::TOOL).unwrap();
    file.sync(Purpose::TOOL).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    assert!(file.punch_hole(2 * 4096, 3 * 4096).unwrap());
    assert_eq!((file.len().unwrap(), disk.room(path).unwrap()), (8 * 4096, 5 * 4096));
    let mut read = AlignedBuf::new(8);
    file.read_at(read.bytes_mut(), 0, Purpose::TOOL).unwrap();
    let zeroed: Vec<bool> = read.bytes().chunks(4096).map(|page| page == [0; 4096]).collect();
    assert_eq!(zeroed, [false, false, true, true, true, false, false, false]);
    let lost = disk.crash(CrashMode::LoseAll);
    assert_eq!(
        (lost.room(path).unwrap(), lost.contents(path).unwrap()),
        (8 * 4096, vec![7; 8 * 4096])
    );
    file.sync(Purpose::TOOL).unwrap();
    let kept = disk.crash(CrashMode::LoseAll);
    assert_eq!(kept.room(path).unwrap(), 5 * 4096);
    disk.set_capacity(Some(7 * 4096));
    file.write_at(&buf.bytes()[..8192], 3 * 4096, Purpose::TOOL).unwrap();
    let full = file.write_at(&buf.bytes()[..4096], 2 * 4096, Purpose::TOOL);
    assert!(full.unwrap_err().is_full());
    file.write_at(&buf.bytes()[..8192], 3 * 4096, Purpose::TOOL).unwrap();
    assert_eq!(disk.room(path).unwrap(), 7 * 4096);
    disk.refuse_holes();
    assert!(!file.punch_hole(0, 4096).unwrap());
    assert_eq!(disk.room(path).unwrap(), 7 * 4096);
}

/// A handle knows its directory, not the path: moved, replaced or removed, and from wherever the
/// process works.
#[test]
fn a_handle_stays_with_its_directory() {
    let disk = SimDisk::new(1);
    for path in ["/a", "/b"] {
        create(&disk, &format!("{path}/db/f")).write_at(page(1).bytes(), 0, Purpose::TOOL).unwrap();
    }
    disk.set_working_directory(Path::new("/a")).unwrap();
    let directory = disk.directory(Path::new("db"), IfMissing::Fail).unwrap();
    let _held = directory.lock().unwrap();
    disk.set_working_directory(Path::new("/b")).unwrap();
    directory.open("g", OpenMode::CREATE).unwrap();
    disk.directory(Path::new("db"), IfMissing::Fail).unwrap().lock().unwrap();
    disk.move_directory(Path::new("/a/db"), Path::new("/moved")).unwrap();
    disk.create_dir(Path::new("/a/db")).unwrap();
    directory.rename("g", "h").unwrap();
    directory.sync().unwrap();
    assert_eq!(disk.at("/moved").lock().unwrap_err().kind(), ErrorKind::Locked);
    disk.at("/a/db").lock().unwrap();
    let files = |disk: &SimDisk| disk.files();
    let there = ["/b/db/f", "/moved/f", "/moved/h"].map(Path::new);
    assert_eq!(files(&disk), there);
    assert_eq!(files(&disk.crash(CrashMode::LoseAll)), there[1..]);
    let file = directory.open("f", OpenMode::EXISTING).unwrap();
    disk.remove_directory(Path::new("/moved")).unwrap();
    assert_eq!(file.len().unwrap(), PAGE);
    assert_eq!(directory.open("f", OpenMode::CREATE).unwrap_err().kind(), ErrorKind::NotFound);
    disk.rename(Path::new("/b/db/f"), Path::new("/a/db/f")).unwrap();
    assert_eq!(files(&disk), [Path::new("/a/db/f")]);
}

/// An open that finds no descriptor makes nothing, whichever kind it is and why ever.
#[test]
fn opens_fail_without_descriptors() {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    assert_eq!((disk.opens(), disk.descriptors()), (1, 0));
    let directory = disk.at("/db");
    let has_none = |result: spinney_base::Result<()>| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("os error 24"), "{error}");
    };
    let open = |name| directory.open(name, OpenMode::CREATE);
    let lock = || directory.lock();
    for limited in [false, true] {
        disk.limit_descriptors(limited.then_some(1));
        let arm = || disk.inject(Fault::NoDescriptor { at: disk.opens() + 1 });
        arm();
        has_none(open("f").map(drop));
        arm();
        has_none(lock().map(drop));
        arm();
        has_none(disk.directory(Path::new("/new"), IfMissing::Create).map(drop));
        if limited {
            has_none(open("f").map(drop));
            has_none(lock().map(drop));
            has_none(disk.directory(Path::new("/new"), IfMissing::Create).map(drop));
        }
    }
    assert_eq!(disk.faults_struck(), 6);
    assert!(disk.files().is_empty());
    assert!(disk.directory(Path::new("/new"), IfMissing::Fail).is_err());
    disk.limit_descriptors(Some(3));
    let held = (open("f").unwrap(), lock().unwrap());
    has_none(open("g").map(drop));
    drop(held);
    assert_eq!(disk.descriptors(), 1);
    drop((open("g").unwrap(), open("h").unwrap()));
    assert_eq!(open("g").map(drop).and(lock().map(drop)).unwrap(), ());
}
