//! Shuttle models of append, flush, group commit, announcements, trimming and poison: the log itself, over the simulated disk,
//! under a scheduler that may stop any thread at any lock or atomic. A lost wake-up is a deadlock, which shuttle reports.
//! Run with `cargo test -p spinney-wal --features shuttle --test models`.
#![cfg(feature = "shuttle")]

use std::path::Path;
use std::sync::Arc;

use spinney_base::Lsn;
use spinney_io::sim::{CrashMode, Fault, SimDisk};
use spinney_wal::{Durability, Log, LogOptions, RecordKind, ReserveFor};

const ITERATIONS: usize = 1000;

fn options() -> LogOptions {
    LogOptions { tag: 7, bytes_max: 8 * 4 * 4096, segment_bytes: 4 * 4096, tail_bytes: 0 }
}

/// A log with its first segment made, so that models do not spend their steps on that.
fn log() -> (SimDisk, Arc<Log>) {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    let log = Log::create(&*disk.at("/db"), "wal", &options()).unwrap();
    drop(log.reserve(1, ReserveFor::User).unwrap());
    (disk, log)
}

fn append(log: &Log, bytes: usize) -> Lsn {
    let mut room = log.reserve(bytes, ReserveFor::User).unwrap().expect("there is room");
    log.append(&mut room, RecordKind::User, &vec![7; bytes])
}

/// Last LSN of the log on this disk, all of whose records are replayed.
fn recovered(disk: &SimDisk) -> Lsn {
    let (_, recovered) = Log::open(&*disk.at("/db"), "wal", &options()).unwrap();
    let mut count = recovered.first_lsn().0 - 1;
    recovered
        .replay(Lsn::ZERO, |record| {
            count += 1;
            assert_eq!(record.lsn, Lsn(count));
            Ok(())
        })
        .unwrap();
    assert_eq!(count, recovered.last_lsn().0);
    recovered.last_lsn()
}

/// P1: nothing at or below the applied watermark is not applied. A third writer finds all slots taken now and then.
#[test]
fn p01_the_applied_watermark_never_passes_a_record_in_flight() {
    use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
    shuttle::check_random(
        || {
            let (_, log) = log();
            // A bit for each applied LSN.
            let applied = Arc::new(AtomicU64::new(0));
            let writers: Vec<_> = (0..3)
                .map(|_| {
                    let (log, applied) = (log.clone(), applied.clone());
                    shuttle::thread::spawn(move || {
                        let mut room = log.reserve(1, ReserveFor::User).unwrap().unwrap();
                        let announcement = log.announce();
                        let lsn = log.append(&mut room, RecordKind::User, b"x");
                        applied.fetch_or(1 << lsn.0, SeqCst);
                        drop(announcement);
                    })
                })
                .collect();
            for _ in 0..4 {
                let watermark = log.applied_watermark();
                let seen = applied.load(SeqCst);
                for lsn in 1..=watermark.0 {
                    assert!(seen & 1 << lsn != 0, "{lsn} is not applied at watermark {watermark}");
                }
            }
            for writer in writers {
                writer.join().unwrap();
            }
            assert_eq!(log.applied_watermark(), Lsn(3));
        },
        ITERATIONS,
    );
}

/// P7: a thread that learns that a record is durable finds it after a power loss at that moment; every committer is woken.
#[test]
fn p07_group_commit_acknowledges_only_what_is_on_the_media() {
    shuttle::check_random(
        || {
            let (disk, log) = log();
            let writers: Vec<_> = (0..3)
                .map(|_| {
                    let (log, disk) = (log.clone(), disk.clone());
                    shuttle::thread::spawn(move || {
                        let lsn = append(&log, 20);
                        log.commit(lsn, Durability::Sync).unwrap();
                        assert!(log.durable_lsn() >= lsn);
                        (lsn, disk.crash(CrashMode::LoseAll))
                    })
                })
                .collect();
            for writer in writers {
                let (lsn, image) = writer.join().unwrap();
                assert!(recovered(&image) >= lsn, "{lsn} was acknowledged");
            }
        },
        ITERATIONS,
    );
}

/// P10: a buffered commit beside a sync in progress finds its record after the death of the process.
#[test]
fn p10_buffered_and_sync_commits_mix() {
    shuttle::check_pct(
        || {
            let (disk, log) = log();
            let sync = log.clone();
            let sync = shuttle::thread::spawn(move || {
                let lsn = append(&sync, 5000);
                sync.commit(lsn, Durability::Sync).unwrap();
            });
            let ticker = log.clone();
            let ticker = shuttle::thread::spawn(move || {
                for _ in 0..3 {
                    ticker.tick().unwrap();
                }
            });
            let watcher = (log.clone(), disk.clone());
            let watcher = shuttle::thread::spawn(move || {
                let durable = watcher.0.durable_lsn();
                (durable, watcher.1.crash(CrashMode::LoseAll))
            });
            let lsn = append(&log, 20);
            log.commit(lsn, Durability::Buffered).unwrap();
            assert!(recovered(&disk.kill()) >= lsn);
            // What was written while another's sync was in progress is not covered by it.
            let durable = log.durable_lsn();
            assert!(recovered(&disk.crash(CrashMode::LoseAll)) >= durable);
            let (durable, image) = watcher.join().unwrap();
            assert!(recovered(&image) >= durable);
            sync.join().unwrap();
            ticker.join().unwrap();
            assert!(log.durable_lsn() <= log.written_lsn());
        },
        2 * ITERATIONS,
        3,
    );
}

/// P10: a thread that learns that the kernel has its record finds it after the death of the process, though nobody wrote it, and
/// others are half-way with records before and behind it, steal the buffers, or have one that is too large for the tail.
#[test]
fn p10_the_tail_holds_what_was_acknowledged() {
    shuttle::check_random(
        || {
            let (disk, log) = log();
            // It makes the tail.
            let lsn = append(&log, 20);
            log.commit(lsn, Durability::Buffered).unwrap();
            let writers: Vec<_> = [20, 30, 5000]
                .into_iter()
                .map(|bytes| {
                    let (log, disk) = (log.clone(), disk.clone());
                    shuttle::thread::spawn(move || {
                        let mut images = Vec::new();
                        for _ in 0..2 {
                            let lsn = append(&log, bytes);
                            log.commit(lsn, Durability::Buffered).unwrap();
                            images.push((lsn, disk.kill()));
                        }
                        images
                    })
                })
                .collect();
            let sync = log.clone();
            let sync = shuttle::thread::spawn(move || sync.tick().unwrap());
            for writer in writers {
                for (lsn, image) in writer.join().unwrap() {
                    assert!(recovered(&image) >= lsn, "{lsn} was acknowledged");
                }
            }
            sync.join().unwrap();
        },
        // One in 350 finds a commit that does not wait for others.
        4 * ITERATIONS,
    );
}

/// P7: a thread that learns that its record is on stable storage finds it after a power loss, though
/// only persistent memory has it, and others are half-way with records before and behind it, steal the
/// buffers, or have one that is too large for the tail.
#[test]
fn p07_persistent_memory_holds_what_was_acknowledged() {
    shuttle::check_random(
        || {
            let (disk, log) = log();
            disk.map_persistently(true);
            // It makes the tail.
            let lsn = append(&log, 20);
            log.commit(lsn, Durability::Sync).unwrap();
            let writers: Vec<_> = [20, 30, 5000]
                .into_iter()
                .map(|bytes| {
                    let (log, disk) = (log.clone(), disk.clone());
                    shuttle::thread::spawn(move || {
                        let mut images = Vec::new();
                        for durability in [Durability::Sync, Durability::Buffered] {
                            let lsn = append(&log, bytes);
                            log.commit(lsn, durability).unwrap();
                            if durability == Durability::Sync {
                                images.push((lsn, disk.crash(CrashMode::LoseAll)));
                            }
                        }
                        images
                    })
                })
                .collect();
            let sync = log.clone();
            let sync = shuttle::thread::spawn(move || sync.tick().unwrap());
            for writer in writers {
                for (lsn, image) in writer.join().unwrap() {
                    assert!(recovered(&image) >= lsn, "{lsn} was acknowledged");
                }
            }
            sync.join().unwrap();
        },
        ITERATIONS,
    );
}

/// P12: with appends, flushes and trims at once no room leaks, no promised room lacks, and trimmed segments are reused
/// only when nothing needs them.
#[test]
fn p12_trimming_beside_appends_keeps_the_accounts() {
    shuttle::check_random(
        || {
            let (disk, log) = log();
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    let log = log.clone();
                    shuttle::thread::spawn(move || {
                        for _ in 0..3 {
                            let lsn = append(&log, 7000);
                            log.commit(lsn, Durability::Sync).unwrap();
                        }
                    })
                })
                .collect();
            let trimmer = log.clone();
            let trimmer = shuttle::thread::spawn(move || {
                for _ in 0..3 {
                    trimmer.trim(trimmer.durable_lsn()).unwrap();
                }
            });
            for writer in writers {
                writer.join().unwrap();
            }
            trimmer.join().unwrap();
            assert_eq!(recovered(&disk.crash(CrashMode::LoseAll)), Lsn(6));
            log.trim(Lsn(6)).unwrap();
            assert!(log.stats().bytes_used < 4 * 4096);
            // Whatever was claimed is in the log or was given back; users may see 24 of the 32 blocks used.
            let used = log.stats().bytes_used / 4096;
            assert!(
                (log.fullness() * 24.0 - used as f64).abs() < 0.01,
                "{used} {}",
                log.fullness()
            );
        },
        ITERATIONS / 2,
    );
}

/// P21: when the sync fails, every thread that waits for it gets the error, and nobody is acknowledged what the media do not hold.
#[test]
fn p21_poison_reaches_every_waiter() {
    shuttle::check_random(
        || {
            let (disk, log) = log();
            disk.inject(Fault::SyncError { at: disk.syncs() + 1 });
            let writers: Vec<_> = (0..3)
                .map(|_| {
                    let (log, disk) = (log.clone(), disk.clone());
                    shuttle::thread::spawn(move || {
                        let Ok(Some(mut room)) = log.reserve(20, ReserveFor::User) else { return };
                        let lsn = log.append(&mut room, RecordKind::User, &[1; 20]);
                        drop(room);
                        if let Err(error) = log.commit(lsn, Durability::Sync) {
                            assert!(error.is_poisoned());
                        } else {
                            assert!(recovered(&disk.crash(CrashMode::LoseAll)) >= lsn);
                        }
                    })
                })
                .collect();
            let other = log.clone();
            let other = shuttle::thread::spawn(move || {
                // Making a segment syncs the file at the same time: it must not acknowledge what the first sync lost.
                let _ = other.reserve(20_000, ReserveFor::User);
            });
            for writer in writers {
                writer.join().unwrap();
            }
            other.join().unwrap();
            assert!(log.poisoned().is_some());
            assert_eq!(log.durable_lsn(), Lsn(0));
        },
        ITERATIONS,
    );
}
