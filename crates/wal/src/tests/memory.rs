//! A tail in persistent memory: `Sync` commits write back the lines of their records, and lose none
//! of them with the power.

use std::path::Path;

use spinney_io::LINE_BYTES;
use spinney_io::sim::CrashMode;

use super::*;
use crate::LogMemory;

const TAIL: &str = "/db/wal-tail";

fn persistent(seed: u64) -> SimDisk {
    let disk = disk(seed);
    disk.map_persistently(true);
    disk
}

/// Puts records with `Sync`, from `first` on. The power may go after each of them.
fn puts(log: &Log, disk: &SimDisk, numbers: std::ops::RangeInclusive<u64>, bytes: usize) {
    for number in numbers {
        let lsn = put(log, &payload(number, bytes), Durability::Sync).unwrap();
        assert_eq!(lsn, Lsn(number));
        if disk.contents(Path::new(TAIL)).is_ok_and(|tail| !tail.is_empty()) {
            assert_eq!(disk.unfenced_lines(Path::new(TAIL)).unwrap(), 0, "{lsn} is acknowledged");
        }
    }
}

fn check(recovered: &Recovered, last: u64, bytes: usize) {
    let all = records(recovered);
    let lsns: Vec<u64> = all.iter().map(|(lsn, ..)| lsn.0).collect();
    assert_eq!(lsns, (1..=last).collect::<Vec<_>>());
    assert!(all.iter().all(|(lsn, _, found)| *found == payload(lsn.0, bytes)));
}

/// A commit of n bytes writes back ceil((24 + n) / 64) lines and fences once, and nothing else.
#[test]
fn a_commit_writes_back_its_lines_and_fences_once() {
    for durability in [Durability::Sync, Durability::Buffered] {
        let disk = persistent(1);
        let log = create(&disk);
        // It makes the tail.
        put(&log, b"first", durability).unwrap();
        assert_eq!(log.stats().memory, "persistent");
        for payload_bytes in (1..=300).chain([511, 512, 513, 1000, 3000]) {
            log.ensure_durable(log.last_lsn()).unwrap();
            log.trim(log.durable_lsn()).unwrap();
            let (before, seen) = (log.stats(), disk.lines_and_fences());
            let calls = (disk.writes(), disk.syncs());
            // As in a run's stream.
            let n = RecordKind::User.header_bytes() + payload_bytes;
            let lsn = put(&log, &payload(1, payload_bytes), durability).unwrap();
            let lines = (24 + n).div_ceil(LINE_BYTES) as u64;
            let now = log.stats();
            assert_eq!((now.lines - before.lines, now.fences - before.fences), (lines, 1));
            assert_eq!(disk.lines_and_fences(), (seen.0 + lines, seen.1 + 1));
            if now.segments == before.segments {
                assert_eq!((disk.writes(), disk.syncs()), calls, "{payload_bytes} bytes");
            }
            assert!(log.durable_lsn() < lsn && log.written_lsn() < lsn);
            assert_eq!(open(&disk.crash(CrashMode::LoseAll)).1.last_lsn(), lsn);
        }
    }
}

/// An area has room for 32 of them, so that it is used again and again. Each run is given to the
/// kernel only, until its area is wanted.
#[test]
fn p06_an_area_is_used_again_after_its_run_is_durable() {
    let disk = persistent(1);
    let log = create(&disk);
    for number in 1..=300 {
        puts(&log, &disk, number..=number, 90);
        if number % 7 == 0 {
            log.write_out(log.last_lsn()).unwrap();
        }
        for mode in [CrashMode::LoseAll, CrashMode::Torn512] {
            let (_, recovered) = open(&disk.crash(mode));
            check(&recovered, number, 90);
        }
    }
    assert!(log.stats().syncs < 60, "{:?}", log.stats());
}

/// What no area has room for is synced in a run, and so is what comes behind it.
#[test]
fn records_that_do_not_fit_are_synced() {
    let disk = persistent(1);
    let log = create(&disk);
    puts(&log, &disk, 1..=2, 100);
    let large = append(&log, RecordKind::User, &payload(3, 5000)).unwrap();
    assert_eq!(open(&disk.crash(CrashMode::LoseAll)).1.last_lsn(), Lsn(2), "no answer yet");
    let small = put(&log, b"behind it", Durability::Sync).unwrap();
    assert!(log.durable_lsn() >= large);
    let (_, recovered) = open(&disk.crash(CrashMode::LoseAll));
    assert_eq!(recovered.last_lsn(), small);
    assert_eq!(records(&recovered)[2].2, payload(3, 5000));
}

/// Records that the kernel has in a run, and no medium, do not count as durable, whatever memory has
/// behind them.
#[test]
fn p07_what_was_only_written_is_not_durable() {
    let disk = persistent(1);
    let log = create(&disk);
    puts(&log, &disk, 1..=2, 100);
    let large = append(&log, RecordKind::User, &payload(3, 5000)).unwrap();
    log.commit(large, Durability::Buffered).unwrap();
    assert!(log.written_lsn() >= large && log.durable_lsn() < large);
    let small = put(&log, b"behind it", Durability::Sync).unwrap();
    assert_eq!(open(&disk.crash(CrashMode::LoseAll)).1.last_lsn(), small);
}

/// The power goes at each step of an opening that takes in the tail, and again in the next one.
#[test]
fn p09_a_recovery_that_is_cut_off_finds_them_again() {
    let mut failed = 0;
    for seed in 0..600 {
        let disk = persistent(seed);
        let log = create(&disk);
        puts(&log, &disk, 1..=25, 100);
        drop(log);
        let mut image = disk.crash(CrashMode::LoseAll);
        for cut in [seed % 20, seed / 20] {
            image.cut_power_at(image.steps() + cut + 1);
            failed += u64::from(Log::open(&*image.at("/db"), "wal", &tiny()).is_err());
            image = image.crash([CrashMode::LoseAll, CrashMode::Torn512][seed as usize % 2]);
        }
        let (log, recovered) = open(&image);
        check(&recovered, 25, 100);
        drop(recovered);
        puts(&log, &image, 26..=40, 100);
        check(&open(&image.crash(CrashMode::LoseAll)).1, 40, 100);
    }
    assert!(failed > 300, "{failed}");
}

/// The power goes at each step of the first commits, which make the tail.
#[test]
fn p08_the_header_is_durable_before_frames_count() {
    let mut acknowledged = [false; 4];
    for (step, seed) in (1..60).flat_map(|step| (0..8).map(move |seed| (step, seed))) {
        let disk = persistent(seed);
        let log = create(&disk);
        disk.cut_power_at(disk.steps() + step);
        let mut last = 0;
        for number in 1..=3 {
            let result = put(&log, &payload(number, 100), Durability::Sync);
            if result.is_err() || disk.power_is_off() {
                break;
            }
            last = number;
        }
        acknowledged[last as usize] = true;
        let (_, recovered) = open(&disk.crash(CrashMode::Torn512));
        let found = recovered.last_lsn().0;
        assert!((last..=3).contains(&found), "step {step}: {found} of {last}");
        check(&recovered, found, 100);
    }
    assert_eq!(acknowledged, [true; 4]);
}

/// A tail with frames on lines is read where no memory is persistent, and the other way round.
#[test]
fn databases_move_between_machines() {
    let mut disk = persistent(1);
    let mut log = create(&disk);
    let mut last = 0;
    for round in 0..6 {
        let durability = if round % 2 == 0 { Durability::Sync } else { Durability::Buffered };
        for number in last + 1..=last + 10 {
            put(&log, &payload(number, 100), durability).unwrap();
        }
        last += 10;
        assert_eq!(log.stats().memory, if round % 2 == 0 { "persistent" } else { "mapped" });
        disk = if round % 2 == 0 { disk.crash(CrashMode::LoseAll) } else { disk.kill() };
        disk.map_persistently(round % 2 == 1);
        let (next, recovered) = open(&disk);
        check(&recovered, last, 100);
        log = next;
    }
}

/// Off: a commit that waits for stable storage syncs a run, and the tail is an ordinary one.
#[test]
fn it_can_be_turned_off() {
    let disk = persistent(1);
    let log = create(&disk);
    log.keep_tail_in(LogMemory::Off);
    let lsn = put(&log, b"one", Durability::Sync).unwrap();
    assert_eq!((log.durable_lsn(), log.stats().memory), (lsn, "none"));
    put(&log, b"two", Durability::Buffered).unwrap();
    let lsn = put(&log, b"three", Durability::Sync).unwrap();
    assert_eq!((log.durable_lsn(), log.stats().memory), (lsn, "mapped"));
    assert_eq!((log.stats().lines, log.stats().fences), (0, 0));
}

/// Emulated: the instructions are counted, and what `Sync` promises is kept as everywhere.
#[test]
fn emulated_memory_promises_nothing_more() {
    let disk = disk(1);
    let log = create(&disk);
    log.keep_tail_in(LogMemory::Emulated);
    put(&log, b"one", Durability::Buffered).unwrap();
    let lsn = put(&log, &payload(2, 100), Durability::Buffered).unwrap();
    let stats = log.stats();
    assert_eq!((stats.memory, stats.lines, stats.fences), ("emulated", 3, 1));
    assert_eq!(open(&disk.kill()).1.last_lsn(), lsn, "frames on lines, read as such");
    log.ensure_durable(lsn).unwrap();
    let lsn = put(&log, b"three", Durability::Sync).unwrap();
    assert_eq!(log.durable_lsn(), lsn);
    assert_eq!(open(&disk.crash(CrashMode::LoseAll)).1.last_lsn(), lsn);
}

/// Without room for the tail, commits write and sync runs.
#[test]
fn without_room_commits_sync_runs() {
    let disk = persistent(1);
    let log = create(&disk);
    drop(log.reserve(1, ReserveFor::User).unwrap());
    disk.set_capacity(Some(disk.used()));
    for number in 1..=5 {
        let lsn = put(&log, &payload(number, 100), Durability::Sync).unwrap();
        assert_eq!((log.durable_lsn(), log.stats().memory), (lsn, "none"));
    }
}

/// The file of a tail in persistent memory had its size before its first frame.
#[test]
fn p28_a_tail_cut_short_is_found() {
    let disk = persistent(1);
    let log = create(&disk);
    puts(&log, &disk, 1..=5, 100);
    drop(log);
    let image = disk.kill();
    let file = image.open(Path::new(TAIL), spinney_io::OpenMode::EXISTING.cached()).unwrap();
    file.truncate(8 * 4096).unwrap();
    let error = Log::open(&*image.at("/db"), "wal", &tiny()).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("the areas"), "{error}");
}

/// A damaged frame before others in its area was promised, and is found. Only damage to the last one
/// looks like a crash in its midst.
#[test]
fn p28_damage_before_the_last_frame_is_found() {
    const FRAME: u64 = 2 * LINE_BYTES as u64;
    let disk = persistent(1);
    let log = create(&disk);
    // The first is in a run: it makes the tail.
    puts(&log, &disk, 1..=15, 90);
    drop(log);
    let tail = disk.contents(Path::new(TAIL)).unwrap();
    let begin = (1..=8).map(|area| area * 4096).find(|at| tail[*at] != 0).unwrap() as u64;
    let last = begin + 13 * FRAME;
    for at in begin..last + FRAME {
        let image = disk.kill();
        image.flip_bit(Path::new(TAIL), at, 3).unwrap();
        // Header, header of the record, payload.
        let is_padding = (at - begin) % FRAME >= 24 + 5 + 90;
        let opened = Log::open(&*image.at("/db"), "wal", &tiny());
        match opened {
            Ok((_, recovered)) if is_padding => check(&recovered, 15, 90),
            Ok((_, recovered)) => {
                assert!(at >= last, "{at}");
                check(&recovered, 14, 90);
            }
            Err(error) => {
                assert!(error.is_corruption() && at < last && !is_padding, "{at}: {error}");
            }
        }
    }
}

/// The bytes of a header and a frame, which later versions must read.
#[test]
fn the_golden_tail_of_the_format() {
    let disk = persistent(1);
    let log = create(&disk);
    put(&log, b"first", Durability::Sync).unwrap();
    put(&log, b"hi", Durability::Sync).unwrap();
    let tail = disk.contents(Path::new(TAIL)).unwrap();
    let begin = (1..=8).map(|area| area * 4096).find(|at| tail[*at] != 0).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let header = "ebb1d079e664f1415350574c0100000008000000010000000100000000000000";
    assert_eq!(hex(&tail[..32]), header);
    assert_eq!(hex(&tail[2048..2080]), header);
    let frame = "37dd5701a6a02f88020000000000000007000000000000000102000000686900";
    assert_eq!(hex(&tail[begin..begin + 32]), frame);
}
