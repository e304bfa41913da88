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
