//! Crashes at any step of a random run, again and again on the same log, against a model.
//!
//! The model knows each record by its LSN, with a payload that no other record ever had. After a crash the log must hold every
//! record from the last trim on that was promised under the kind of crash that struck, whole and in order, and nothing
//! that the model does not know under that LSN. What it lost is forgotten by the model, so that a later return of it is found (rule P8).

use std::collections::BTreeMap;

use spinney_base::runtime::SplitMix;
use spinney_io::sim::CrashMode;

use super::*;

struct Model {
    random: SplitMix,
    /// To see whether the power is still on: persistent memory does not answer.
    disk: SimDisk,
    /// Every record is its own run of one block, so that the runs of two lives begin at the same LSNs and blocks.
    aligned: bool,
    records: BTreeMap<u64, (RecordKind, Vec<u8>)>,
    serial: u64,
    last: u64,
    /// Survives power loss.
    synced: u64,
    /// Survives the process.
    written: u64,
    trimmed: u64,
}

/// What a run has met, to show that it met everything.
#[derive(Default, Debug)]
struct Tally {
    crashes: u64,
    kills: u64,
    in_recovery: u64,
    lost: u64,
    kept_unsynced: u64,
    trims: u64,
    full: u64,
    /// Commits whose records memory made durable.
    in_memory: u64,
    /// Power losses that took lines which were not fenced.
    lines_lost: u64,
}

impl Model {
    fn new(seed: u64, disk: &SimDisk) -> Self {
        Model {
            random: SplitMix(seed),
            disk: disk.clone(),
            aligned: seed.is_multiple_of(2),
            records: BTreeMap::new(),
            serial: 0,
            last: 0,
            synced: 0,
            written: 0,
            trimmed: 0,
        }
    }

    fn size(&mut self) -> usize {
        if self.aligned {
            // No two share a block.
            return 2050 + self.random.below(300);
        }
        match self.random.below(20) {
            0 => self.random.below(60_000),
            1..4 => self.random.below(9_000),
            4..8 => 4032 - 5 + self.random.below(3),
            _ => self.random.below(300),
        }
    }

    /// One random action; an error ends the run.
    fn act(&mut self, log: &Log, tally: &mut Tally) -> Result<()> {
        match self.random.below(if self.aligned { 9 } else { 12 }) {
            0..8 => {
                self.serial += 1;
                let size = self.size();
                let (kind, bytes) = (kind(self.serial), payload(self.serial, size));
                let Some(mut room) = log.reserve(bytes.len(), ReserveFor::User)? else {
                    tally.full += 1;
                    return self.trim(log, tally);
                };
                let announcement = log.announce();
                let lsn = log.append(&mut room, kind, &bytes);
                assert!(log.applied_watermark() < lsn);
                drop(announcement);
                assert_eq!(lsn.0, self.last + 1);
                self.last = lsn.0;
                self.records.insert(lsn.0, (kind, bytes));
                drop(room);
                match self.random.below(3) {
                    0 => {
                        log.commit(lsn, Durability::Sync)?;
                        self.power_is_on()?;
                        tally.in_memory += u64::from(log.durable_lsn() < lsn);
                        assert_eq!(unfenced(&self.disk), 0, "nothing is acknowledged before");
                        self.synced = lsn.0;
                        self.written = lsn.0;
                    }
                    choice if choice == 1 || self.aligned => {
                        log.commit(lsn, Durability::Buffered)?;
                        self.power_is_on()?;
                        self.written = lsn.0;
                    }
                    _ => {}
                }
            }
            8..10 => log.tick()?,
            10 => self.trim(log, tally)?,
            _ => {
                let lsn = self.trimmed
                    + self.random.below(usize::try_from(self.last - self.trimmed + 1).unwrap())
                        as u64;
                log.ensure_durable(Lsn(lsn))?;
                self.synced = self.synced.max(lsn);
            }
        }
        self.synced = self.synced.max(log.durable_lsn().0);
        self.written = self.written.max(log.written_lsn().0);
        Ok(())
    }

    fn power_is_on(&self) -> Result<()> {
        if self.disk.power_is_off() {
            return Err(SimDisk::power_cut());
        }
        Ok(())
    }

    fn trim(&mut self, log: &Log, tally: &mut Tally) -> Result<()> {
        let span =
            usize::try_from(log.durable_lsn().0.max(self.trimmed) - self.trimmed + 1).unwrap();
        let lsn =
            self.trimmed + (self.random.below(span) as u64).max(self.random.below(span) as u64);
        self.trimmed = self.trimmed.max(lsn);
        tally.trims += 1;
        log.trim(Lsn(lsn))
    }

    /// Compares what a recovery gives with what it must and may give, and forgets what was lost.
    fn check(&mut self, recovered: &Recovered, promised: u64, tally: &mut Tally) {
        let last = recovered.last_lsn().0;
        assert!(last >= promised, "{last} of {promised} promised records came back");
        assert!(last <= self.last, "{last} of {} records came back", self.last);
        assert!(recovered.first_lsn().0 <= self.trimmed + 1);
        let mut next = recovered.first_lsn().0;
        recovered
            .replay(Lsn::ZERO, |record| {
                assert_eq!(record.lsn.0, next);
                let (kind, bytes) = &self.records[&next];
                assert_eq!(
                    (record.kind, record.payload),
                    (*kind, bytes.as_slice()),
                    "record {next}"
                );
                next += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(next, last + 1);
        tally.lost += self.last - last;
        tally.kept_unsynced += last - self.synced.min(last);
        self.records.split_off(&(last + 1));
        (self.last, self.synced, self.written) = (last, last, last);
    }
}

/// Lines of the tail with stores that a power loss may take.
fn unfenced(disk: &SimDisk) -> u64 {
    disk.unfenced_lines(Path::new("/db/wal-tail")).unwrap_or(0)
}

/// Loses the power. The next machine may have other memory, if this one's is persistent.
fn lose_power(model: &mut Model, disk: &SimDisk, persistent: bool, tally: &mut Tally) -> SimDisk {
    let mode = mode(&mut model.random);
    tally.lines_lost += u64::from(unfenced(disk) > 0 && mode != CrashMode::KeepAll);
    let next = disk.crash(mode);
    if persistent {
        next.map_persistently(model.random.below(8) > 0);
    }
    next
}

fn mode(random: &mut SplitMix) -> CrashMode {
    [CrashMode::Torn512, CrashMode::Torn4K, CrashMode::KeepAll, CrashMode::LoseAll][random.below(4)]
}

/// Opens the log of `disk`, crashing in the opening a few times first if the seed says so.
fn reopen(
    model: &mut Model,
    mut disk: SimDisk,
    persistent: bool,
    tally: &mut Tally,
) -> (SimDisk, Arc<Log>, Recovered) {
    model.disk = disk.clone();
    for _ in 0..model.random.below(3) {
        disk.cut_power_at(disk.steps() + 1 + model.random.below(5) as u64);
        match Log::open(&*disk.at("/db"), "wal", &tiny()) {
            Ok((log, recovered)) => {
                // Some appends of the new life, lost with it or not: the next recovery decides.
                model.check(&recovered, model.synced, tally);
                drop(recovered);
                for _ in 0..model.random.below(4) {
                    if model.act(&log, tally).is_err() {
                        break;
                    }
                }
                model.synced = model.synced.max(log.durable_lsn().0);
            }
            Err(error) => assert!(SimDisk::is_power_cut(&error), "{error}"),
        }
        tally.in_recovery += 1;
        disk = lose_power(model, &disk, persistent, tally);
        model.disk = disk.clone();
    }
    let (log, recovered) = Log::open(&*disk.at("/db"), "wal", &tiny()).unwrap();
    (disk, log, recovered)
}

fn run(seed: u64, persistent: bool, tally: &mut Tally) {
    let mut disk = disk(seed);
    disk.map_persistently(persistent);
    let mut model = Model::new(seed, &disk);
    let mut log = create(&disk);
    for _ in 0..12 {
        let at = disk.steps() + 1 + model.random.below(60) as u64;
        if model.random.below(4) > 0 {
            disk.cut_power_at(at);
        }
        for _ in 0..model.random.below(80) {
            if let Err(error) = model.act(&log, tally) {
                assert!(SimDisk::is_power_cut(&error), "{error}");
                break;
            }
        }
        let closes = model.random.below(8) == 0 && log.close().is_ok();
        if closes && !disk.power_is_off() {
            (model.synced, model.written) = (model.last, model.last);
        }
        model.synced = model.synced.max(log.durable_lsn().0);
        drop(log);
        let promised = if model.random.below(3) == 0 && !disk.power_is_off() {
            tally.kills += 1;
            disk = disk.kill();
            model.written
        } else {
            tally.crashes += 1;
            disk = lose_power(&mut model, &disk, persistent, tally);
            model.synced
        };
        model.disk = disk.clone();
        // A crash in recovery may take what only the process's death had spared.
        let first = model.random.below(2) == 0;
        let recovered;
        if first {
            let synced = model.synced;
            (disk, log, recovered) = reopen(&mut model, disk, persistent, tally);
            let promised = model.synced.max(synced);
            model.check(&recovered, promised, tally);
        } else {
            (log, recovered) = Log::open(&*disk.at("/db"), "wal", &tiny()).unwrap();
            model.check(&recovered, promised, tally);
        }
    }
}

/// Runs seeds, all of them or the one that is wished for.
fn runs(count: u64, persistent: bool) -> Option<Tally> {
    let wished = std::env::var("SPINNEY_SEED").ok().and_then(|seed| seed.parse().ok());
    let (first, count) = wished.map_or((0, count), |seed| (seed, 1));
    let mut tally = Tally::default();
    for seed in first..first + count {
        let run = || run(seed, persistent, &mut tally);
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            eprintln!("replay with SPINNEY_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
    eprintln!("{tally:?}");
    (count > 1).then_some(tally)
}

fn is_full() -> bool {
    std::env::var("SPINNEY_PROVING").is_ok_and(|tier| tier == "full")
}

#[test]
fn p08_p09_no_crash_loses_a_promise_or_brings_back_the_dead() {
    let Some(tally) = runs(if is_full() { 20_000 } else { 300 }, false) else { return };
    assert!(tally.lost > 0 && tally.kept_unsynced > 0 && tally.full > 0, "{tally:?}");
    assert!(tally.kills > 100 && tally.in_recovery > 100 && tally.trims > 100, "{tally:?}");
}

/// The same with the tail in persistent memory. In full there are 10,000 power losses that take lines.
#[test]
fn p07_p08_p09_no_crash_loses_a_promise_of_persistent_memory() {
    let Some(tally) = runs(if is_full() { 5_000 } else { 200 }, true) else { return };
    assert!(tally.lost > 0 && tally.kept_unsynced > 0 && tally.full > 0, "{tally:?}");
    assert!(tally.kills > 50 && tally.in_recovery > 50 && tally.trims > 50, "{tally:?}");
    assert!(tally.in_memory > 500, "{tally:?}");
    assert!(tally.lines_lost >= if is_full() { 10_000 } else { 200 }, "{tally:?}");
}
