//! Many real threads on one log: LSNs are dense, acknowledgements hold, the applied watermark never lies, room never leaks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use spinney_base::Runtime;
use spinney_base::shim::Mutex;
use spinney_io::sim::CrashMode;

use super::*;

const WRITERS: u64 = 8;
const RECORDS: u64 = 400;

/// Reserves, trimming everything that was applied and is durable whenever the log is full.
fn reserve(log: &Log, bytes: usize) -> crate::Reservation<'_> {
    loop {
        if let Some(room) = log.reserve(bytes, ReserveFor::User).unwrap() {
            return room;
        }
        let applied = log.applied_watermark();
        log.ensure_durable(applied).unwrap();
        log.trim(applied).unwrap();
        std::thread::yield_now();
    }
}

#[test]
fn p01_p07_many_writers_share_one_log() {
    let disk = disk(3);
    let log = create(&disk);
    let applied = Mutex::new(BTreeMap::new());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ticking = scope.spawn(|| {
            let runtime = Runtime::threads();
            while !done.load(SeqCst) {
                log.tick().unwrap();
                // Everything at or below the watermark is in the map already.
                let watermark = log.applied_watermark();
                let map = applied.lock();
                assert!(
                    map.range(..=watermark).count() as u64 == watermark.0,
                    "{watermark} is not applied"
                );
                drop(map);
                runtime.sleep(Duration::from_micros(200));
            }
        });
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (log, applied) = (&log, &applied);
                scope.spawn(move || {
                    for number in 0..RECORDS {
                        let bytes =
                            payload(writer * RECORDS + number, (number as usize * 13) % 700);
                        let mut room = reserve(log, bytes.len());
                        let announcement = log.announce();
                        let lsn = log.append(&mut room, RecordKind::User, &bytes);
                        assert!(applied.lock().insert(lsn, bytes).is_none());
                        drop((announcement, room));
                        match number % 3 {
                            0 => {
                                log.commit(lsn, Durability::Sync).unwrap();
                                assert!(log.durable_lsn() >= lsn);
                            }
                            1 => {
                                log.commit(lsn, Durability::Buffered).unwrap();
                            }
                            _ => {}
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, SeqCst);
        ticking.join().unwrap();
    });
    log.close().unwrap();
    let stats = log.stats();
    assert_eq!(stats.last_lsn, Lsn(WRITERS * RECORDS));
    assert_eq!(stats.durable_lsn, stats.last_lsn);
    drop(log);
    let (log, recovered) = open(&disk.crash(CrashMode::LoseAll));
    assert_eq!(recovered.last_lsn(), Lsn(WRITERS * RECORDS));
    let applied = applied.into_inner();
    for (lsn, _, bytes) in records(&recovered) {
        assert_eq!(applied[&lsn], bytes);
    }
    drop(recovered);
    log.trim(Lsn::MAX).unwrap();
    assert!(log.fullness() < 0.06, "what was reserved came back: {}", log.fullness());
}

#[test]
fn a_crash_under_many_writers_keeps_what_was_acknowledged() {
    for seed in 0..20 {
        let disk = disk(seed);
        disk.map_persistently(seed >= 10);
        let log = create(&disk);
        let acknowledged = AtomicU64::new(0);
        disk.cut_power_at(100 + seed * 37);
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let (log, disk, acknowledged) = (&log, &disk, &acknowledged);
                scope.spawn(move || {
                    for number in 0..500_u64 {
                        let Ok(Some(mut room)) = log.reserve(100, ReserveFor::User) else { return };
                        let lsn = log.append(
                            &mut room,
                            RecordKind::User,
                            &payload(writer * 1000 + number, 100),
                        );
                        drop(room);
                        // Persistent memory does not say that the power is off.
                        if log.commit(lsn, Durability::Sync).is_err() || disk.power_is_off() {
                            return;
                        }
                        acknowledged.fetch_max(lsn.0, SeqCst);
                    }
                });
            }
        });
        let acknowledged = acknowledged.load(SeqCst);
        assert!(acknowledged > 0);
        let (_, recovered) = open(&disk.crash(CrashMode::Torn512));
        assert!(recovered.last_lsn().0 >= acknowledged, "seed {seed}");
        assert_eq!(records(&recovered).len() as u64, recovered.last_lsn().0);
    }
}
