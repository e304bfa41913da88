//! Drivers of other engines for workloads of transactions. Each runs transactions as its own documentation advises for the
//! strongest isolation that it has without locking everything, and says what is left open.

#[cfg(feature = "canopydb")]
mod canopydb;
mod common;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocks;
#[cfg(feature = "sqlite")]
mod sqlite;

use spinney_bench::transactional::TransactionalDriver;

/// All peers that have transactions, in the order in which they are measured by default.
#[must_use]
pub fn drivers() -> Vec<Box<dyn TransactionalDriver>> {
    vec![
        #[cfg(feature = "rocksdb")]
        Box::new(rocks::Rocks),
        #[cfg(feature = "fjall")]
        Box::new(fjall::Fjall),
        #[cfg(feature = "redb")]
        Box::new(redb::Redb),
        #[cfg(feature = "canopydb")]
        Box::new(canopydb::Canopy),
        #[cfg(feature = "sqlite")]
        Box::new(sqlite::Sqlite),
    ]
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use spinney_bench::driver::OpenConfig;
    use spinney_bench::plan::{Durability, TornWrites};
    use spinney_bench::transactional::{
        Kind, Scan, TransactionalSession, TransactionalStore, Verdict,
    };

    use super::*;

    const THREADS: usize = 4;
    const ADDITIONS: u64 = 100;

    fn config(directory: &std::path::Path, durability: Durability) -> OpenConfig {
        OpenConfig {
            directory: directory.to_owned(),
            memory: 64 << 20,
            durability,
            torn_writes: TornWrites::Auto,
            threads: THREADS,
            keyspaces: 2,
            knobs: [("memory-limit".to_owned(), "off".to_owned())].into(),
        }
    }

    /// The keys that a scan of table 1 shows.
    fn keys(session: &mut dyn TransactionalSession, scan: Scan<'_>, most: usize) -> Vec<Vec<u8>> {
        let mut found = [Vec::new(), Vec::new()];
        for (kind, found) in [Kind::Read, Kind::Write].into_iter().zip(&mut found) {
            let looked = session.transact(kind, &mut |access| {
                found.clear();
                access.scan(scan, &mut |key, _| {
                    found.push(key.to_vec());
                    match found.len() == most {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                })?;
                Ok(Verdict::Rollback)
            });
            looked.unwrap();
        }
        let [read, written] = found;
        assert_eq!(read, written);
        read
    }

    fn ranges(store: &dyn TransactionalStore) {
        let records = (0..100_u8).map(|n| (vec![n], vec![n; 10]));
        assert_eq!(store.load(1, &mut records.into_iter()).unwrap(), 100);
        let mut session = store.session().unwrap();
        let (from, to) = (&[10][..], Some(&[14][..]));
        let scan = Scan { table: 1, from, to, reverse: false, limit: usize::MAX };
        let numbers = |found: Vec<Vec<u8>>| -> Vec<u8> { found.concat() };
        assert_eq!(numbers(keys(&mut *session, scan, 100)), [10, 11, 12, 13]);
        assert_eq!(numbers(keys(&mut *session, Scan { limit: 2, ..scan }, 100)), [10, 11]);
        let back = Scan { reverse: true, ..scan };
        assert_eq!(numbers(keys(&mut *session, back, 3)), [13, 12, 11]);
        let open = Scan { to: None, reverse: true, from: &[98], ..scan };
        assert_eq!(numbers(keys(&mut *session, open, 100)), [99, 98]);
        assert_eq!(numbers(keys(&mut *session, Scan { reverse: false, ..open }, 1)), [98]);
    }

    fn rollbacks(store: &dyn TransactionalStore) {
        let mut session = store.session().unwrap();
        let mut run = |verdict| {
            session.transact(Kind::Write, &mut |access| {
                let mut value = Vec::new();
                assert!(access.get(1, &[7], &mut value)?);
                assert_eq!(value, [7; 10]);
                access.put(1, &[7], b"new")?;
                assert!(access.get(1, &[7], &mut value)? && value == b"new");
                access.remove(1, &[8])?;
                assert!(!access.get(1, &[8], &mut value)? && value.is_empty());
                Ok(verdict)
            })
        };
        assert_eq!(run(Verdict::Rollback).unwrap().verdict, Verdict::Rollback);
        assert_eq!(run(Verdict::Commit).unwrap().verdict, Verdict::Commit);
        let gone = session.transact(Kind::Read, &mut |access| {
            let mut value = Vec::new();
            assert!(access.get(1, &[7], &mut value)? && value == b"new");
            assert!(!access.get(1, &[8], &mut value)?);
            Ok(Verdict::Commit)
        });
        gone.unwrap();
        let refused = session
            .transact(Kind::Read, &mut |access| access.put(1, &[9], b"").map(|()| Verdict::Commit));
        assert!(refused.is_err());
    }

    /// Every thread adds to one of two numbers that it has read both of.
    fn additions(store: &dyn TransactionalStore) {
        let add = |session: &mut dyn TransactionalSession, key: u8| {
            let ended = session.transact(Kind::Write, &mut |access| {
                let mut both = [0; 2];
                for (key, number) in both.iter_mut().enumerate() {
                    let mut value = Vec::new();
                    if access.get(0, &[key as u8], &mut value)? {
                        *number = u64::from_be_bytes(value[..8].try_into().expect("eight bytes"));
                    }
                }
                // The sum moves to this number, so that a lost update shows in it.
                access.put(0, &[key], &(both[0] + both[1] + 1).to_be_bytes())?;
                access.put(0, &[1 - key], &0_u64.to_be_bytes())?;
                Ok(Verdict::Commit)
            });
            ended.unwrap()
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut session = store.session().unwrap();
                    for round in 0..ADDITIONS {
                        add(&mut *session, (thread as u64 + round) as u8 % 2);
                    }
                });
            }
        });
        let mut session = store.session().unwrap();
        let mut sum = 0;
        let read = session.transact(Kind::Report, &mut |access| {
            sum = 0;
            for key in 0..2 {
                let mut value = Vec::new();
                assert!(access.get(0, &[key], &mut value)?);
                sum += u64::from_be_bytes(value[..8].try_into().expect("eight bytes"));
            }
            Ok(Verdict::Commit)
        });
        read.unwrap();
        assert_eq!(sum, THREADS as u64 * ADDITIONS);
    }

    #[test]
    fn every_driver_keeps_the_rules() {
        for driver in drivers() {
            for durability in [Durability::Buffered, Durability::Sync] {
                println!("{} {durability:?}", driver.name());
                let directory = tempfile::tempdir().unwrap();
                let mut config = config(directory.path(), durability);
                let tables = ["one", "two"];
                if driver.check_knobs(&config.knobs).is_err() {
                    config.knobs.clear();
                }
                let store = driver.open(&config, &tables).unwrap();
                ranges(&*store);
                rollbacks(&*store);
                additions(&*store);
                store.flush().unwrap();
                store.close().unwrap();
                // What was closed opens again.
                let store = driver.open(&config, &tables).unwrap();
                let mut session = store.session().unwrap();
                let found = session.transact(Kind::Read, &mut |access| {
                    assert!(access.get(1, &[99], &mut Vec::new())?);
                    Ok(Verdict::Commit)
                });
                found.unwrap();
                assert!(!driver.unprotected().is_empty() && driver.is_peer());
            }
        }
    }

    #[test]
    fn no_driver_runs_without_a_log() {
        let directory = tempfile::tempdir().unwrap();
        for driver in drivers() {
            assert!(driver.open(&config(directory.path(), Durability::None), &["one"]).is_err());
        }
    }
}
