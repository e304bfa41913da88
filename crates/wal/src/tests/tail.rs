//! Commits that wait for the kernel only write no run, and lose nothing with the process.

use std::collections::BTreeSet;

use spinney_io::sim::{CrashMode, Fault};

use super::*;

const TAIL: &str = "/db/wal-tail";

/// Puts numbered records of this many bytes, from `first` on, and answers the last LSN.
fn puts(log: &Log, numbers: std::ops::RangeInclusive<u64>, bytes: usize) -> Lsn {
    numbers
        .map(|number| put(log, &payload(number, bytes), Durability::Buffered).unwrap())
        .last()
        .unwrap()
}

fn check(recovered: &Recovered, last: u64, bytes: usize) {
    let all = records(recovered);
    let lsns: Vec<u64> = all.iter().map(|(lsn, ..)| lsn.0).collect();
    assert_eq!(lsns, (1..=last).collect::<Vec<_>>());
    assert!(all.iter().all(|(lsn, _, found)| *found == payload(lsn.0, bytes)));
}

#[test]
fn commits_write_no_run_and_survive_the_process() {
    for is_mapped in [true, false] {
        commits_write_no_run(is_mapped);
    }
}

fn commits_write_no_run(is_mapped: bool) {
    let disk = disk(1);
    if !is_mapped {
        disk.refuse_mappings();
    }
    let log = create(&disk);
    puts(&log, 1..=1, 100);
    let flushes = log.stats().flushes;
    for number in 2..=30 {
        let lsn = puts(&log, number..=number, 100);
        let (_, recovered) = open(&disk.kill());
        check(&recovered, lsn.0, 100);
    }
    assert_eq!(log.stats().flushes, flushes, "none of them was written");
    assert_eq!(log.written_lsn(), Lsn(1));
}

/// An area has room for 30 of them: so it is used again and again, and older frames lie behind newer ones.
#[test]
fn areas_are_used_again() {
    let disk = disk(1);
    let log = create(&disk);
    for number in 1..=200 {
        puts(&log, number..=number, 100);
        if number % 7 == 0 {
            log.write_out(log.last_lsn()).unwrap();
        }
        let (_, recovered) = open(&disk.kill());
        check(&recovered, number, 100);
    }
}

/// What no area has room for goes to runs, and so does what is committed behind it.
#[test]
fn records_that_do_not_fit_are_written() {
    let disk = disk(1);
    let log = create(&disk);
    puts(&log, 1..=2, 100);
    let large = append(&log, RecordKind::User, &payload(3, 5000)).unwrap();
    assert_eq!(open(&disk.kill()).1.last_lsn(), Lsn(2), "no error reported it");
    let small = put(&log, b"behind it", Durability::Buffered).unwrap();
    assert!(log.written_lsn() >= large);
    let (_, recovered) = open(&disk.kill());
    assert_eq!(recovered.last_lsn(), small);
    assert_eq!(records(&recovered)[2].2, payload(3, 5000));
}

/// The power goes at each step of a recovery that has records of the tail to write back, and again in the next one.
#[test]
fn a_recovery_that_is_cut_off_finds_them_again() {
    let mut steps = BTreeSet::new();
    for seed in 0..40 {
        let disk = disk(seed);
        let log = create(&disk);
        puts(&log, 1..=25, 100);
        assert_eq!(log.written_lsn(), Lsn(1));
        let mut image = disk.kill();
        for cut in [seed % 12, seed / 12] {
            image.cut_power_at(image.steps() + cut + 1);
            let result = Log::open(&*image.at("/db"), "wal", &tiny());
            steps.insert((cut, result.is_ok()));
            drop(result);
            // What the kernel had not written to the media by then is lost with the power, so the kernel continues here.
            image = image.kill();
        }
        let (log, recovered) = open(&image);
        check(&recovered, 25, 100);
        drop(recovered);
        puts(&log, 26..=40, 100);
        check(&open(&image.kill()).1, 40, 100);
    }
    assert!(steps.iter().any(|(_, is_done)| !is_done), "{steps:?}");
}

/// Frames behind one that was lost with the power are no records of the next life, whose LSNs go on where they lie.
#[test]
fn p08_frames_of_an_earlier_life_do_not_count() {
    let disk = disk(1);
    let log = create(&disk);
    puts(&log, 1..=20, 100);
    drop(log);
    let image = disk.kill();
    let lost = payload(11, 100);
    let tail = image.contents(Path::new(TAIL)).unwrap();
    let at = tail.windows(100).position(|bytes| *bytes == *lost).expect("it is in the tail");
    image.flip_bit(Path::new(TAIL), at as u64, 0).unwrap();
    let (log, recovered) = open(&image);
    check(&recovered, 10, 100);
    drop(recovered);
    put(&log, &payload(11, 100), Durability::Sync).unwrap();
    let (log, recovered) = open(&image.kill());
    check(&recovered, 11, 100);
    drop((log, recovered));
}

#[test]
fn p08_a_tail_of_a_later_life_than_the_logs_is_refused() {
    let disk = disk(1);
    let log = create(&disk);
    puts(&log, 1..=20, 100);
    drop(log);
    let (log, recovered) = open(&disk.kill());
    drop((log, recovered));
    let later = disk.kill();
    let (log, _) = open(&later);
    puts(&log, 21..=25, 100);
    drop(log);
    // The tail of the second life beside the log of the first.
    let file = later.open(Path::new(TAIL), spinney_io::OpenMode::EXISTING.cached()).unwrap();
    let mut buf = spinney_io::AlignedBuf::new(1);
    file.read_at(buf.bytes_mut(), 0, spinney_io::Purpose::TOOL).unwrap();
    let file = disk.open(Path::new(TAIL), spinney_io::OpenMode::EXISTING.cached()).unwrap();
    file.write_at(buf.bytes(), 0, spinney_io::Purpose::TOOL).unwrap();
    let error = Log::open(&*disk.at("/db"), "wal", &tiny()).unwrap_err();
    assert!(error.is_corruption(), "{error}");
    assert!(error.to_string().contains("no tail after life 1"), "{error}");
}

/// Without room for a tail commits write runs.
#[test]
fn without_a_tail_commits_write() {
    let disk = disk(1);
    let log = create(&disk);
    // A segment is there already.
    put(&log, b"first", Durability::Sync).unwrap();
    disk.set_capacity(Some(0));
    for number in 1..=20 {
        let lsn = put(&log, &payload(number, 100), Durability::Buffered).unwrap();
        assert_eq!(log.written_lsn(), lsn);
        assert_eq!(open(&disk.kill()).1.last_lsn(), lsn);
    }
}

/// A frame that finds no room, or is written in part, is none: its record goes to a run, and the log continues.
#[test]
fn b1_a_frame_that_is_not_written() {
    for (fault, seed) in (0..40).flat_map(|seed| [(true, seed), (false, seed)]) {
        let disk = disk(seed);
        disk.refuse_mappings();
        let log = create(&disk);
        puts(&log, 1..=5, 100);
        let at = disk.writes() + 1;
        disk.inject(if fault { Fault::WriteError { at } } else { Fault::NoSpaceInPlace { at } });
        puts(&log, 6..=6, 100);
        assert_eq!(disk.faults_struck(), 1);
        assert_eq!(log.written_lsn(), Lsn(6));
        puts(&log, 7..=20, 100);
        assert_eq!(log.written_lsn(), Lsn(6));
        check(&open(&disk.kill()).1, 20, 100);
    }
}

/// With the power what was not synced may go, in any order; a prefix stays.
#[test]
fn the_power_leaves_a_prefix() {
    let mut lengths = BTreeSet::new();
    for seed in 0..400 {
        let disk = disk(seed);
        if seed >= 200 {
            disk.refuse_mappings();
        }
        let log = create(&disk);
        puts(&log, 1..=3, 100);
        log.ensure_durable(Lsn(3)).unwrap();
        puts(&log, 4..=60, 100);
        let mode = [CrashMode::Torn512, CrashMode::Torn4K, CrashMode::KeepAll][seed as usize % 3];
        let (_, recovered) = open(&disk.crash(mode));
        let last = recovered.last_lsn().0;
        assert!((3..=60).contains(&last));
        check(&recovered, last, 100);
        lengths.insert(last);
    }
    assert!(lengths.len() > 5, "{lengths:?}");
}
