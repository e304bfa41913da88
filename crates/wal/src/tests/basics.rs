//! What a log does when nothing goes wrong.

use super::*;
use spinney_base::{Epoch, ErrorKind};

#[test]
fn what_was_appended_is_replayed() {
    let disk = disk(1);
    let log = create(&disk);
    let sizes = [0, 1, 100, 4032, 4033, 9000, 16 * 4096, 70_000, 3];
    let mut expected = Vec::new();
    for (number, bytes) in sizes.into_iter().enumerate() {
        let number = number as u64 + 1;
        let lsn = append(&log, kind(number), &payload(number, bytes)).unwrap();
        assert_eq!(lsn, Lsn(number));
        expected.push((lsn, kind(number), payload(number, bytes)));
        if number.is_multiple_of(2) {
            log.commit(lsn, Durability::Sync).unwrap();
        }
    }
    log.close().unwrap();
    assert_eq!(log.reserve(1, ReserveFor::User).unwrap_err().kind(), ErrorKind::Closed);
    drop(log);
    let (log, recovered) = open(&disk);
    assert_eq!(records(&recovered), expected);
    assert_eq!(records(&recovered), expected, "a second pass sees the same");
    let mut from = Vec::new();
    recovered
        .replay(Lsn(5), |record| {
            from.push(record.lsn.0);
            Ok(())
        })
        .unwrap();
    assert_eq!(from, [5, 6, 7, 8, 9]);
    assert_eq!((recovered.first_lsn(), recovered.last_lsn()), (Lsn(1), Lsn(9)));
    assert_eq!(log.stats().epoch, Epoch(2));
    assert_eq!(log.durable_lsn(), Lsn(9));
}

#[test]
fn an_empty_log_is_two_blocks_and_opens_empty() {
    let disk = disk(1);
    create(&disk).close().unwrap();
    for _ in 0..3 {
        let (log, recovered) = open(&disk);
        assert!(recovered.is_empty());
        drop(recovered);
        log.tick().unwrap();
        log.tick().unwrap();
        log.trim(Lsn::MAX).unwrap();
        log.close().unwrap();
    }
    assert_eq!(disk.contents(path()).unwrap().len(), 2 * 4096);
}

#[test]
fn trimming_recycles_segments_for_ever() {
    let disk = disk(1);
    let log = create(&disk);
    for number in 1..=2000 {
        let lsn = put(&log, &payload(number, 1 + (number as usize * 37) % 6000), Durability::Sync)
            .unwrap();
        if number.is_multiple_of(5) {
            log.trim(Lsn(lsn.0 - 3)).unwrap();
        }
    }
    let stats = log.stats();
    assert!(stats.segments < 12, "{stats:?}");
    drop(log);
    let (log, recovered) = open(&disk);
    assert_eq!(recovered.last_lsn(), Lsn(2000));
    assert!(recovered.first_lsn() <= Lsn(1998), "{}", recovered.first_lsn());
    for (lsn, _, bytes) in records(&recovered) {
        assert_eq!(bytes, payload(lsn.0, 1 + (lsn.0 as usize * 37) % 6000));
    }
    drop(recovered);
    log.trim(Lsn(2000)).unwrap();
    put(&log, b"after", Durability::Sync).unwrap();
    drop(log);
    let (_, recovered) = open(&disk);
    assert_eq!(records(&recovered), [(Lsn(2001), RecordKind::User, b"after".to_vec())]);
}

#[test]
fn a_replay_may_trim_behind_itself() {
    let disk = disk(1);
    let log = create(&disk);
    for number in 1..=45 {
        let mut room = log.reserve(6000, ReserveFor::Recovery).unwrap().expect("the log has room");
        log.append(&mut room, RecordKind::User, &payload(number, 6000));
        log.ensure_durable(Lsn(number)).unwrap();
    }
    drop(log);
    let (log, recovered) = open(&disk);
    log.trim(Lsn(45)).unwrap();
    assert_eq!(log.stats().first_lsn, Lsn(1), "the records are held");
    let (mut seen, mut refused) = (0, 0);
    let structure = RecordKind::Structure(KeyspaceId(1));
    recovered
        .replay(Lsn(1), |record| {
            seen += 1;
            assert_eq!((record.lsn.0, record.payload), (seen, payload(seen, 6000).as_slice()));
            // Replaying writes as much as it reads: without trimming it would not end in this log.
            if let Some(mut room) = log.reserve(6000, ReserveFor::Recovery)? {
                log.append(&mut room, structure, &[1; 6000]);
                return Ok(());
            }
            refused += 1;
            log.ensure_durable(log.last_lsn())?;
            recovered.release(Lsn(record.lsn.0 - 1));
            log.trim(Lsn(record.lsn.0 - 1))?;
            let mut room = log.reserve(6000, ReserveFor::Recovery)?.expect("trimming made room");
            log.append(&mut room, structure, &[1; 6000]);
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, 45);
    assert!(refused > 0);
    assert!(log.stats().first_lsn > Lsn(1));
    recovered.release(Lsn::MAX);
    log.ensure_durable(Lsn(90)).unwrap();
    log.trim(Lsn(45)).unwrap();
    recovered.replay(Lsn(1), |record| panic!("{record:?} was released")).unwrap();
    drop(recovered);
    drop(log);
    assert_eq!(open(&disk).1.last_lsn(), Lsn(90));
}

#[test]
fn the_real_disk_keeps_it_too() {
    let directory = tempfile::tempdir().unwrap();
    let disk = spinney_io::RealDisk::new();
    let place = disk.directory(directory.path(), spinney_io::IfMissing::Fail).unwrap();
    let options = LogOptions::sized(3, 4 << 20);
    let log = Log::create(&*place, "wal", &options).unwrap();
    for number in 1..=300 {
        let lsn = put(&log, &payload(number, 9000), Durability::Buffered).unwrap();
        if number.is_multiple_of(100) {
            log.ensure_durable(lsn).unwrap();
            log.trim(Lsn(lsn.0 - 50)).unwrap();
        }
    }
    // Not closed: the tail is in the page cache, and the direct reader sees it all the same.
    drop(log);
    let (log, recovered) = Log::open(&*place, "wal", &options).unwrap();
    assert_eq!(recovered.last_lsn(), Lsn(300));
    for (lsn, _, bytes) in records(&recovered) {
        assert_eq!(bytes, payload(lsn.0, 9000));
    }
    drop(recovered);
    put(&log, b"more", Durability::Sync).unwrap();
    log.close().unwrap();
    assert_eq!(Log::open(&*place, "wal", &options).unwrap().1.last_lsn(), Lsn(301));
}
