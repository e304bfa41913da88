//! The rules of the log that a single schedule shows, by number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::{Error, ErrorKind};
use spinney_io::sim::{CrashMode, Fault, SimView, WriteObserver};
use spinney_io::{AlignedBuf, OpenMode, Purpose};

use super::*;
use crate::LogCopy;
use crate::block::{Block, BlockHeader, HEADER_BYTES};

/// All blocks of the log, header and byte offset, in the order of the file.
fn headers(disk: &SimDisk) -> Vec<(BlockHeader, u64)> {
    let contents = disk.contents(path()).unwrap();
    let blocks = contents.chunks_exact(PAGE_BYTES).enumerate().skip(2);
    blocks
        .filter_map(|(index, bytes)| {
            let block: &Block = bytes.try_into().unwrap();
            let header = BlockHeader::decode(tiny().tag, block).ok()?;
            Some((header, index as u64 * PAGE_BYTES as u64))
        })
        .collect()
}

/// The block that carries this record.
fn block_of(disk: &SimDisk, lsn: Lsn) -> u64 {
    let all = headers(disk);
    let found = all.iter().find(|(header, _)| header.first <= lsn && lsn <= header.last);
    found.expect("the record is in the file").1
}

/// Makes a block what it was before it was ever written.
fn lose(disk: &SimDisk, offset: u64) {
    let file = disk.open(path(), OpenMode::EXISTING.cached()).unwrap();
    file.write_at(AlignedBuf::new(1).bytes(), offset, Purpose::TOOL).unwrap();
    file.sync(Purpose::TOOL).unwrap();
}

fn corruption(disk: &SimDisk) -> Error {
    let error = Log::open(&*disk.at("/db"), "wal", &tiny()).expect_err("a promise is broken");
    assert!(error.is_corruption(), "{error}");
    error
}

/// Watches that no block that may still be needed is written again, but one that no sync has covered, to put records behind
/// those in it.
#[derive(Default)]
struct WrittenOnce {
    seen: Mutex<BTreeSet<u64>>,
    /// The blocks that were written since the last sync.
    unsynced: Mutex<BTreeMap<u64, Vec<u8>>>,
    extended: AtomicUsize,
}

impl WrittenOnce {
    fn is_longer(old: &[u8], new: &[u8]) -> bool {
        let decode = |block: &[u8]| BlockHeader::decode(tiny().tag, block.try_into().unwrap());
        let (Ok(old_header), Ok(new_header)) = (decode(old), decode(new)) else { return false };
        let end = HEADER_BYTES + old_header.length as usize;
        let same_run =
            BlockHeader { last: new_header.last, length: new_header.length, ..old_header };
        same_run == new_header
            && new_header.count == 1
            && new_header.last > old_header.last
            && new[HEADER_BYTES..end] == old[HEADER_BYTES..end]
    }
}

impl WriteObserver for WrittenOnce {
    fn before_write(&self, view: &SimView<'_>, path: &Path, offset: u64, bytes: &[u8]) {
        for (index, block) in bytes.chunks_exact(PAGE_BYTES).enumerate() {
            let offset = offset + (index * PAGE_BYTES) as u64;
            let Ok(new) = BlockHeader::decode(tiny().tag, block.try_into().unwrap()) else {
                continue;
            };
            let mut unsynced = self.unsynced.lock();
            if let Some(old) = unsynced.insert(new.position, block.to_vec()) {
                assert!(Self::is_longer(&old, block), "{new:?} goes over other records");
                self.extended.fetch_add(1, Relaxed);
                continue;
            }
            assert!(
                self.seen.lock().insert(new.position),
                "position {} is written twice",
                new.position
            );
            let old = view.page(path, offset).map(|old| BlockHeader::decode(tiny().tag, old));
            if let Some(Ok(old)) = old {
                let trimmed = old.position / 4 < new.position / 4;
                assert!(trimmed, "{new:?} goes over {old:?}");
            }
        }
    }

    fn after_sync(&self, _: &SimView<'_>, _: &Path) {
        self.unsynced.lock().clear();
    }
}

#[test]
fn p06_a_block_is_written_once() {
    let disk = disk(1);
    let log = create(&disk);
    disk.observe(Arc::new(WrittenOnce::default()));
    for number in 1..400 {
        let lsn = put(&log, &payload(number, 300), Durability::Sync).unwrap();
        if number % 7 == 0 {
            log.trim(Lsn(lsn.0 - 2)).unwrap();
        }
        if number % 10 == 0 {
            log.tick().unwrap();
        }
    }
    log.close().unwrap();
    drop(log);
    let (log, recovered) = open(&disk);
    assert_eq!(recovered.last_lsn(), Lsn(399));
    put(&log, b"more", Durability::Sync).unwrap();
}

/// Commits that wait for the kernel only share blocks, but none with what a sync has covered.
#[test]
fn p06_what_was_synced_is_not_written_again() {
    let disk = disk(1);
    let log = create(&disk);
    refuse_tail(&disk, &log);
    let observer = Arc::new(WrittenOnce::default());
    disk.observe(observer.clone());
    for number in 2..400 {
        let lsn = put(&log, &payload(number, 300), Durability::Buffered).unwrap();
        assert_eq!(open(&disk.kill()).1.last_lsn(), lsn);
        if number % 7 == 0 {
            log.ensure_durable(lsn).unwrap();
            log.trim(Lsn(lsn.0 - 2)).unwrap();
        }
        if number % 10 == 0 {
            log.tick().unwrap();
        }
    }
    assert!(observer.extended.load(Relaxed) > 200, "{:?}", observer.extended);
    log.close().unwrap();
    drop(log);
    let (_, recovered) = open(&disk);
    assert_eq!(recovered.last_lsn(), Lsn(399));
    let all = records(&recovered);
    assert!(all.iter().all(|(lsn, _, bytes)| bytes.as_slice() == payload(lsn.0, 300)));
}

#[test]
fn p07_a_flush_takes_every_thread_s_records() {
    let disk = disk(1);
    let log = create(&disk);
    // Another thread's record lies in another buffer and nobody waits for it.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| append(&log, RecordKind::User, b"idle").unwrap()).join().unwrap();
        }
    });
    let lsn = put(&log, b"eager", Durability::Sync).unwrap();
    assert_eq!((lsn, log.durable_lsn()), (Lsn(4), Lsn(4)));
    let (_, recovered) = open(&disk.crash(CrashMode::LoseAll));
    assert_eq!(recovered.last_lsn(), Lsn(4));
    assert_eq!(headers(&disk).len(), 1, "one run of one block");
}

#[test]
fn p07_rot_below_the_watermark_is_corruption_and_above_it_a_tear() {
    let disk = disk(1);
    let log = create(&disk);
    for number in 1..=5 {
        put(&log, &payload(number, 100), Durability::Sync).unwrap();
    }
    // The last run is durable, but no block says so yet.
    let image = disk.crash(CrashMode::LoseAll);
    lose(&image, block_of(&image, Lsn(5)));
    assert_eq!(open(&image).1.last_lsn(), Lsn(4));
    let image = disk.crash(CrashMode::LoseAll);
    let offset = block_of(&image, Lsn(4));
    lose(&image, offset);
    let error = corruption(&image).to_string();
    assert!(error.contains("/db/wal") && error.contains(&offset.to_string()), "{error}");
    // Idle: the watermark follows, and now rot in the last run is distinguished from a tear.
    log.tick().unwrap();
    log.tick().unwrap();
    let flushes = log.stats().flushes;
    log.tick().unwrap();
    assert_eq!(log.stats().flushes, flushes, "once is enough");
    let image = disk.crash(CrashMode::LoseAll);
    lose(&image, block_of(&image, Lsn(5)));
    corruption(&image);
}

#[test]
fn p07_close_leaves_the_watermark() {
    let disk = disk(1);
    let log = create(&disk);
    put(&log, b"a", Durability::Sync).unwrap();
    append(&log, RecordKind::User, b"b").unwrap();
    log.close().unwrap();
    let image = disk.crash(CrashMode::LoseAll);
    assert_eq!(open(&image).1.last_lsn(), Lsn(2));
    let image = disk.crash(CrashMode::LoseAll);
    lose(&image, block_of(&image, Lsn(2)));
    corruption(&image);
}

#[test]
fn p08_a_block_of_a_cut_life_does_not_come_back() {
    let disk = disk(1);
    let log = create(&disk);
    put(&log, b"kept", Durability::Sync).unwrap();
    put(&log, b"A, which is lost", Durability::Buffered).unwrap();
    put(&log, b"B, intact and never promised", Durability::Buffered).unwrap();
    drop(log);
    lose(&disk, block_of(&disk, Lsn(2)));
    let (log, recovered) = open(&disk);
    assert_eq!(recovered.last_lsn(), Lsn(1));
    drop(recovered);
    // The new life's own second record is as long as A was, so B fits behind it by its place and its LSN.
    put(&log, b"a new second", Durability::Sync).unwrap();
    drop(log);
    let (_, recovered) = open(&disk);
    let all = records(&recovered);
    assert_eq!(all.len(), 2);
    assert_eq!(all[1].2, b"a new second");
    // A third life stands on the cut of the second.
    drop(recovered);
    let (log, recovered) = open(&disk);
    drop(recovered);
    put(&log, b"a new third", Durability::Sync).unwrap();
    drop(log);
    assert_eq!(records(&open(&disk).1).len(), 3);
}

#[test]
fn p08_a_cut_life_s_watermark_promises_nothing() {
    let disk = disk(1);
    let log = create(&disk);
    put(&log, b"kept", Durability::Sync).unwrap();
    log.close().unwrap();
    drop(log);
    // A forged block of a life that never was kept, behind the cut, with a watermark far ahead.
    let (log, recovered) = open(&disk);
    drop(recovered);
    let epoch = log.stats().epoch;
    put(&log, b"of the second life", Durability::Buffered).unwrap();
    drop(log);
    let offset = block_of(&disk, Lsn(2));
    let mut contents = AlignedBuf::new(1);
    let file = disk.open(path(), OpenMode::EXISTING.cached()).unwrap();
    file.read_at(contents.bytes_mut(), offset, Purpose::TOOL).unwrap();
    let header = BlockHeader::decode(tiny().tag, contents.page(0)).unwrap();
    lose(&disk, offset);
    drop(open(&disk));
    let stale = BlockHeader { first: Lsn(900), last: Lsn(900), durable: Lsn(899), epoch, ..header };
    stale.seal(tiny().tag, contents.page_mut(0));
    file.write_at(contents.bytes(), offset, Purpose::TOOL).unwrap();
    assert_eq!(open(&disk).1.last_lsn(), Lsn(1));
}

#[test]
fn p09_what_a_killed_process_left_in_the_page_cache_is_made_durable_first() {
    let disk = disk(1);
    let log = create(&disk);
    put(&log, b"synced", Durability::Sync).unwrap();
    put(&log, b"in the page cache only", Durability::Buffered).unwrap();
    let killed = disk.kill();
    let (_log, recovered) = open(&killed);
    assert_eq!(recovered.last_lsn(), Lsn(2));
    // Power loss before the new life has written anything: what was served must be there.
    let (_, recovered) = open(&killed.crash(CrashMode::LoseAll));
    assert_eq!(recovered.last_lsn(), Lsn(2));
}

#[test]
fn p09_after_a_failed_sync_recovery_reads_the_media() {
    let mut kept = BTreeSet::new();
    for seed in 0..20 {
        let disk = disk(seed);
        let log = create(&disk);
        put(&log, b"safe", Durability::Sync).unwrap();
        disk.inject(Fault::SyncError { at: disk.syncs() + 1 });
        let told = put(&log, b"the disk may never get this", Durability::Sync).unwrap_err();
        assert!(told.is_poisoned());
        drop(log);
        // The same machine: its page cache still shows the record, whatever the media hold.
        let (log, recovered) = open(&disk);
        let last = recovered.last_lsn();
        kept.insert(last);
        drop(recovered);
        put(&log, b"after", Durability::Sync).unwrap();
        let (_, recovered) = open(&disk.crash(CrashMode::LoseAll));
        assert_eq!(recovered.last_lsn(), last.next());
        assert_eq!(records(&recovered).last().unwrap().2, b"after");
    }
    assert_eq!(kept, [Lsn(1), Lsn(2)].into(), "both happened");
}

/// Where nothing is written in place a full disk refuses the log's blocks: that is `Full`, for the write that met it and
/// for all behind it, which change nothing. With room the log continues where it was, and has lost nothing.
#[test]
fn b1_no_room_for_a_run_is_full_and_goes_away() {
    for durability in [Durability::Sync, Durability::Buffered] {
        for bytes in [100, 9000] {
            let disk = disk(1);
            disk.copy_on_write();
            let log = create(&disk);
            let first = put(&log, &payload(1, bytes), durability).unwrap();
            for round in 0..3 {
                // Segments are ready: what lacks room is what is written in them.
                drop(log.reserve(40_000, ReserveFor::User).unwrap());
                disk.set_capacity(Some(0));
                let last = log.last_lsn();
                let next = last.0 + 1;
                let error = put(&log, &payload(next, bytes), durability).unwrap_err();
                assert!(error.is_full(), "{error:?}");
                assert_eq!(log.last_lsn(), Lsn(next));
                for _ in 0..3 {
                    let refused = log.reserve(100, ReserveFor::User).unwrap_err();
                    assert!(refused.is_full(), "{refused:?}");
                    assert!(log.tick().is_ok() || log.tick().unwrap_err().is_full());
                    assert!(log.ensure_durable(Lsn(next)).unwrap_err().is_full());
                }
                assert_eq!(log.last_lsn(), Lsn(next));
                if durability == Durability::Sync {
                    let image = disk.crash(CrashMode::LoseAll);
                    image.set_capacity(None);
                    assert!(open(&image).1.last_lsn() >= last);
                }
                disk.set_capacity(None);
                if round == 1 {
                    log.ensure_durable(Lsn(next)).unwrap();
                }
                put(&log, &payload(next + 1, bytes), durability).unwrap();
                assert_eq!(open(&disk.kill()).1.last_lsn(), Lsn(next + 1));
            }
            log.ensure_durable(log.last_lsn()).unwrap();
            let (_, recovered) = open(&disk.crash(CrashMode::LoseAll));
            let all = records(&recovered);
            assert_eq!((first, all.len()), (Lsn(1), 7));
            assert!(all.iter().all(|(lsn, _, found)| *found == payload(lsn.0, bytes)));
        }
    }
}

/// The block that was open when a record found no room for it may be synced before there is some: it is not written again.
#[test]
fn b1_a_block_that_is_synced_meanwhile_is_not_written_again() {
    let disk = disk(1);
    let log = create(&disk);
    refuse_tail(&disk, &log);
    disk.observe(Arc::new(WrittenOnce::default()));
    for number in 2..=20 {
        put(&log, &payload(number, 300), Durability::Buffered).unwrap();
        disk.inject(Fault::NoSpaceInPlace { at: disk.writes() + 1 });
        let lsn = append(&log, RecordKind::User, &payload(number, 300)).unwrap();
        assert!(log.commit(lsn, Durability::Buffered).unwrap_err().is_full());
        // As when a segment is made.
        log.sync_file().unwrap();
        log.commit(lsn, Durability::Buffered).unwrap();
        assert_eq!(open(&disk.kill()).1.last_lsn(), lsn);
    }
}

#[test]
fn p09_an_intact_segment_behind_a_gap_is_not_replayed() {
    let disk = disk(1);
    let log = create(&disk);
    // Three segments are made ahead, because making one syncs what was written before.
    drop(log.reserve(40_000, ReserveFor::User).unwrap());
    refuse_tail(&disk, &log);
    for number in 2..=10 {
        put(&log, &payload(number, 3000), Durability::Buffered).unwrap();
    }
    drop(log);
    // Nothing was synced; the second of three segments never reached the disk.
    lose(&disk, block_of(&disk, Lsn(5)));
    let (log, recovered) = open(&disk);
    assert_eq!(recovered.last_lsn(), Lsn(4));
    drop(recovered);
    for number in 5..=20 {
        put(&log, &payload(number + 100, 2000), Durability::Sync).unwrap();
    }
    drop(log);
    let (_, recovered) = open(&disk);
    let all = records(&recovered);
    assert_eq!(all.len(), 20);
    assert!(all[4..].iter().all(|(lsn, _, bytes)| *bytes == payload(lsn.0 + 100, 2000)));
}

#[test]
fn p10_buffered_survives_the_process_and_a_timer_syncs_it() {
    let disk = disk(1);
    let log = create(&disk);
    put(&log, b"x", Durability::Buffered).unwrap();
    assert_eq!(open(&disk.kill()).1.last_lsn(), Lsn(1));
    assert_eq!((log.written_lsn(), log.durable_lsn()), (Lsn(1), Lsn(0)));
    log.tick().unwrap();
    assert_eq!(log.durable_lsn(), Lsn(0), "it may be a moment old");
    log.tick().unwrap();
    assert_eq!(log.durable_lsn(), Lsn(1));
    let lsn = append(&log, RecordKind::User, b"a page wants to be written").unwrap();
    log.ensure_durable(lsn).unwrap();
    assert_eq!(open(&disk.crash(CrashMode::LoseAll)).1.last_lsn(), Lsn(2));
}

#[test]
fn p12_a_full_log_refuses_users_and_leaves_room_for_checkpoints() {
    let disk = disk(1);
    let log = create(&disk);
    let mut count = 0;
    loop {
        let Some(mut room) = log.reserve(1000, ReserveFor::User).unwrap() else { break };
        let lsn = log.append(&mut room, RecordKind::User, &payload(count, 1000));
        drop(room);
        log.commit(lsn, Durability::Buffered).unwrap();
        count += 1;
    }
    assert!(
        count >= 3 * 72,
        "three quarters of 96 blocks, with more than three records each: {count}"
    );
    assert!(log.fullness() >= 1.0);
    let mut internal = Vec::new();
    while let Some(room) = log.reserve(1000, ReserveFor::Internal).unwrap() {
        internal.push(room);
    }
    assert_eq!(internal.len(), 18);
    let mut recovery = Vec::new();
    while let Some(room) = log.reserve(1000, ReserveFor::Recovery).unwrap() {
        recovery.push(room);
    }
    assert_eq!(recovery.len(), 6);
    assert!(disk.contents(path()).unwrap().len() <= 2 * 4096 + 24 * 4 * 4096);
    // What was reserved and not used comes back, and a checkpoint frees the rest.
    drop((internal, recovery));
    log.ensure_durable(log.last_lsn()).unwrap();
    log.trim(Lsn(count * 40 / 72)).unwrap();
    assert!(log.fullness() < 0.6, "{}", log.fullness());
    put(&log, b"room again", Durability::Sync).unwrap();
}

#[test]
fn p12_a_log_larger_than_its_option_still_opens_and_can_be_written_to() {
    let disk = disk(1);
    let log = create(&disk);
    while let Some(mut room) = log.reserve(4000, ReserveFor::Recovery).unwrap() {
        let lsn = log.append(&mut room, RecordKind::User, &[1; 4000]);
        drop(room);
        log.commit(lsn, Durability::Sync).unwrap();
    }
    drop(log);
    let small = LogOptions { bytes_max: 4 * 4 * 4096, ..tiny() };
    for _ in 0..3 {
        let (log, recovered) = Log::open(&*disk.at("/db"), "wal", &small).unwrap();
        assert_eq!(recovered.last_lsn().0 % 4, 0);
        drop(recovered);
        for _ in 0..4 {
            let mut room =
                log.reserve(4000, ReserveFor::Recovery).unwrap().expect("recovery proceeds");
            let lsn = log.append(&mut room, RecordKind::User, &[2; 4000]);
            drop(room);
            log.commit(lsn, Durability::Sync).unwrap();
        }
    }
    let (log, recovered) = Log::open(&*disk.at("/db"), "wal", &small).unwrap();
    drop(recovered);
    log.trim(log.last_lsn()).unwrap();
    drop(log);
    let (log, recovered) = Log::open(&*disk.at("/db"), "wal", &small).unwrap();
    drop(recovered);
    let mut count = 0;
    while let Some(mut room) = log.reserve(4000, ReserveFor::User).unwrap() {
        log.append(&mut room, RecordKind::User, &[3; 4000]);
        count += 1;
    }
    assert_eq!(count, 12, "the option rules again");
}

#[test]
fn p12_a_full_disk_is_an_error_that_goes_away() {
    let disk = disk(1);
    let log = create(&disk);
    put(&log, b"first", Durability::Sync).unwrap();
    disk.set_capacity(Some(disk.contents(path()).unwrap().len() as u64));
    let mut count = 0;
    let error = loop {
        match put(&log, &[7; 3000], Durability::Sync) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    // Two segments of four blocks.
    assert_eq!((error.kind(), count), (ErrorKind::Full, 7), "{error}");
    assert!(log.poisoned().is_none());
    assert_eq!(log.last_lsn(), Lsn(8), "nothing changed");
    log.tick().unwrap();
    // A checkpoint frees a segment, with no room on the disk needed.
    log.trim(Lsn(8)).unwrap();
    put(&log, &[8; 3000], Durability::Sync).unwrap();
    disk.set_capacity(None);
    for _ in 0..10 {
        put(&log, &[9; 3000], Durability::Sync).unwrap();
    }
    assert_eq!(open(&disk.crash(CrashMode::LoseAll)).1.last_lsn(), Lsn(19));
}

#[test]
fn p12_enospc_at_every_request_in_turn_loses_nothing() {
    for at in 1..40 {
        let disk = disk(at);
        let log = create(&disk);
        disk.inject(Fault::NoSpace { at: disk.room_requests() + at });
        let mut acknowledged = 0;
        for number in 1..=15 {
            match put(&log, &payload(number, 3000), Durability::Sync) {
                Ok(lsn) => acknowledged = lsn.0,
                Err(error) => assert!(error.is_full() || error.is_poisoned(), "{error}"),
            }
        }
        if log.poisoned().is_none() {
            assert!(acknowledged >= 14);
        }
        let (_, recovered) = open(&disk.crash(CrashMode::LoseAll));
        assert!(recovered.last_lsn().0 >= acknowledged);
    }
}

#[test]
fn p21_a_failed_write_or_sync_stops_the_writing_side_for_good() {
    for at in 1..20 {
        for sync in [false, true] {
            let disk = disk(at);
            let log = create(&disk);
            put(&log, b"before", Durability::Sync).unwrap();
            let fault = if sync {
                Fault::SyncError { at: disk.syncs() + at }
            } else {
                Fault::WriteError { at: disk.writes() + at }
            };
            disk.inject(fault);
            let mut acknowledged = 1;
            let mut failed = None;
            for number in 0..30 {
                match put(&log, &payload(number, 900), Durability::Sync) {
                    Ok(lsn) => {
                        assert!(log.poisoned().is_none());
                        acknowledged = lsn.0;
                        if number % 4 == 0 {
                            let _ = log.trim(Lsn(1));
                        }
                    }
                    Err(error) => failed = Some(error),
                }
            }
            let failed = failed.expect("the fault struck");
            // A failed write of zeros into a segment that is being made is the only one that harms nothing.
            if let Some(cause) = log.poisoned() {
                assert!(
                    failed.is_poisoned() && cause.to_string().contains("simulated"),
                    "{failed}"
                );
                assert!(log.reserve(1, ReserveFor::Internal).unwrap_err().is_poisoned());
                assert!(log.trim(Lsn(1)).unwrap_err().is_poisoned());
                assert!(log.tick().unwrap_err().is_poisoned());
                assert!(log.close().unwrap_err().is_poisoned());
                log.commit(Lsn(1), Durability::Sync).expect("what is durable stays acknowledged");
            } else {
                assert!(!sync);
            }
            let (_, recovered) = open(&disk.crash(CrashMode::LoseAll));
            assert!(recovered.last_lsn().0 >= acknowledged);
            let (_, recovered) = open(&disk);
            assert!(recovered.last_lsn().0 >= acknowledged);
        }
    }
}

/// A disk that writes over nothing has no room for the word that the log was closed.
#[test]
fn b1_a_close_without_room_is_no_poison() {
    let disk = disk(1);
    disk.copy_on_write();
    let log = create(&disk);
    put(&log, b"durable", Durability::Sync).unwrap();
    disk.set_capacity(Some(disk.used()));
    assert!(log.close().unwrap_err().is_full());
    assert!(log.poisoned().is_none());
    disk.set_capacity(None);
    assert_eq!(open(&disk).1.last_lsn(), Lsn(1));
}

#[test]
fn p21_the_database_may_poison_the_log() {
    let disk = disk(1);
    let log = create(&disk);
    put(&log, b"x", Durability::Sync).unwrap();
    log.poison(Error::new(ErrorKind::Io, "a page could not be synced"));
    log.poison(Error::new(ErrorKind::Io, "and something later"));
    let told = put(&log, b"y", Durability::Sync).unwrap_err();
    assert!(
        told.is_poisoned() && told.to_string().contains("a page could not be synced"),
        "{told}"
    );
}

/// What a follower has not read is not trimmed, what it has read is; a log written from what it read recovers to the
/// same records under the same LSNs.
#[test]
fn p26_followed_records_stay() {
    let disk = disk(26);
    let log = create(&disk);
    let write = |number| put(&log, &payload(number, 3000), Durability::Sync).unwrap();
    (1..=10).for_each(|number| _ = write(number));
    let mut follower = log.follow(Lsn(4)).unwrap();
    assert_eq!(log.follow(Lsn(4)).unwrap_err().kind(), ErrorKind::Locked);
    let mut copy = LogCopy::create(&*disk.at("/db"), "copy", 8, 4 * 4096, Lsn(5)).unwrap();
    let mut last = 10;
    for round in 0..12 {
        log.trim(Lsn(last)).unwrap();
        follower
            .read(Lsn(last - round % 2), |record| {
                assert_eq!(record.payload, payload(record.lsn.0, 3000));
                copy.append(record.kind, record.payload)
            })
            .unwrap();
        log.trim(Lsn(last)).unwrap();
        assert!(log.stats().first_lsn.0 + 2 >= last, "what was read is held");
        (0..5).for_each(|more| _ = write(last + 1 + more));
        last += 5;
    }
    let (mut durable, mut read) = (log.durable_lsn(), 0);
    append(&log, RecordKind::User, b"not durable").unwrap();
    follower
        .read(log.last_lsn(), |record| {
            durable = record.lsn;
            read += 1;
            copy.append(record.kind, record.payload)
        })
        .unwrap();
    assert!(durable == log.durable_lsn() && read > 4, "{read} records up to {durable}");
    copy.finish().unwrap();
    drop(follower);
    log.trim(log.durable_lsn()).unwrap();
    assert_eq!(log.follow(Lsn(4)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let options = LogOptions { tag: 8, ..tiny() };
    let (copied, recovered) = Log::open(&*disk.at("/db"), "copy", &options).unwrap();
    let all = records(&recovered);
    let expected = (5..=last).map(|n| (Lsn(n), RecordKind::User, payload(n, 3000)));
    assert_eq!(all, expected.collect::<Vec<_>>());
    drop(recovered);
    assert_eq!(put(&copied, b"continues", Durability::Sync).unwrap(), Lsn(last + 1));
}

/// Room that an idle log gave back comes again when it is needed; when the disk is full then, that is an error that goes
/// away, in this life and the next.
#[test]
fn p12_room_that_was_given_back() {
    let disk = disk(27);
    let log = create(&disk);
    let write = |log: &Log, number| put(log, &payload(number, 3000), Durability::Sync);
    (1..=40).for_each(|number| _ = write(&log, number).unwrap());
    let room = || disk.room(path()).unwrap();
    let before = (room(), log.stats().segments);
    let segment = log.stats().segment_bytes;
    log.give_back(0).unwrap();
    assert!(room() + 2 * segment >= before.0, "nothing but what is ready is free");
    log.trim(Lsn(40)).unwrap();
    log.give_back(3 * segment - 1).unwrap();
    let kept = log.stats().segments;
    log.give_back(3 * segment).unwrap();
    assert_eq!(log.stats().segments, kept, "three are kept either way");
    log.give_back(0).unwrap();
    assert_eq!(log.stats().segments + 3, kept);
    assert!(room() * 4 < before.0 && log.stats().segments <= 2, "{} of {before:?}", room());
    let refused = |log: &Log| {
        disk.set_capacity(Some(room()));
        let full = (0..60).find_map(|number| write(log, number).err()).expect("no room");
        assert!(full.is_full() && log.poisoned().is_none(), "{full}");
        disk.set_capacity(None);
        write(log, 99).unwrap();
    };
    refused(&log);
    log.trim(log.durable_lsn()).unwrap();
    log.give_back(0).unwrap();
    drop(log);
    let (log, recovered) = open(&disk);
    drop(recovered);
    refused(&log);
    let last = log.last_lsn();
    drop(log);
    assert_eq!(open(&disk).1.last_lsn(), last);
}

/// A log that was closed is as long as its superblocks. Opening it reads these, and writes nothing before
/// the first record; closing it again without one writes nothing either.
#[test]
fn d2_a_closed_log_is_opened_by_its_superblocks_alone() {
    let disk = disk(31);
    let log = create(&disk);
    (1..=40).for_each(|number| _ = put(&log, &payload(number, 3000), Durability::Sync).unwrap());
    put(&log, b"in the tail", Durability::Buffered).unwrap();
    log.ensure_durable(Lsn(41)).unwrap();
    log.trim(Lsn(41)).unwrap();
    log.close().unwrap();
    drop(log);
    let bytes = || {
        let tail = disk.contents(Path::new("/db/wal-tail")).unwrap();
        (disk.contents(path()).unwrap().len(), tail.len())
    };
    assert_eq!(bytes(), (2 * 4096, 0));
    let counts = || (disk.writes(), disk.syncs());
    for _ in 0..2 {
        let (before, reads) = (counts(), disk.reads());
        let (log, recovered) = open(&disk);
        assert!(log.was_closed() && recovered.is_empty());
        assert_eq!((recovered.last_lsn(), recovered.first_lsn()), (Lsn(41), Lsn(42)));
        drop(recovered);
        log.tick().unwrap();
        log.close().unwrap();
        assert_eq!(counts(), before, "nothing was written");
        assert!(disk.reads() - reads <= 2);
        assert_eq!(bytes(), (2 * 4096, 0));
    }
}

/// The life of an opening that wrote nothing begins with its first record, wherever the power goes.
#[test]
fn d2_p08_the_life_of_a_closed_log_begins_before_its_first_record() {
    let disk = disk(32);
    let log = create(&disk);
    put(&log, b"before", Durability::Sync).unwrap();
    log.trim(Lsn(1)).unwrap();
    log.close().unwrap();
    drop(log);
    let closed = disk.crash(CrashMode::LoseAll);
    for seed in 0..40 {
        let disk = closed.kill();
        disk.cut_power_at(disk.steps() + seed);
        let (log, recovered) = open(&disk);
        drop(recovered);
        let acknowledged = (2..=6)
            .take_while(|number| put(&log, &payload(*number, 3000), Durability::Sync).is_ok())
            .count() as u64;
        drop(log);
        for mode in [CrashMode::LoseAll, CrashMode::KeepAll, CrashMode::Torn512] {
            let (_, recovered) = open(&disk.crash(mode));
            let last = recovered.last_lsn().0;
            assert!(last > acknowledged && last <= 6, "{last} of {acknowledged}");
        }
    }
}

/// After a crash the segments that a trim freed are not read: their first blocks tell that they are not needed.
#[test]
fn d2_an_opening_reads_what_it_needs_of_a_log() {
    let disk = disk(33);
    let options = LogOptions::sized(7, 16 << 20);
    let log = Log::create(&*disk.at("/db"), "wal", &options).unwrap();
    for number in 1..=1000 {
        let lsn = append(&log, RecordKind::User, &payload(number, 3000)).unwrap();
        log.commit(lsn, Durability::Sync).unwrap();
    }
    log.trim(Lsn(990)).unwrap();
    drop(log);
    let pages = disk.contents(path()).unwrap().len() as u64 / 4096;
    let counted = || disk.counters().snapshot().total().read_bytes / 4096;
    let before = counted();
    let (_, recovered) = Log::open(&*disk.at("/db"), "wal", &options).unwrap();
    assert_eq!(recovered.last_lsn(), Lsn(1000));
    let read = counted() - before;
    assert!(pages > 800 && read < pages / 2, "{read} of {pages} pages");
}
