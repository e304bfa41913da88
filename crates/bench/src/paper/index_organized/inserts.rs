//! Figure 18 and table 2: inserts by what the log promises, and what they write.
//!
//! Each mode is one run, read at each duration: rates are of all inserts until then. Persistent memory
//! is emulated: the log carries out its instructions, write-backs of cache lines and fences, on an
//! ordinary mapping.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use spinney::{
    Db, Durability, EngineKind, Keyspace, KeyspaceOptions, LogMemory, LogStats, Options,
};
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use spinney_base::size::display_bytes;
use spinney_base::{Error, ErrorKind, Result, Runtime};
use spinney_io::Purpose;

use super::lines::number;
use super::plan::{Figure, IndexOrganized};
use super::published::TABLE_2;
use crate::columns::key_of;
use crate::paper::{draw, say};
use crate::parent::interrupted;
use crate::permutation::mix64;

/// Poll interval for the next reading and for an interrupt.
const TICK: Duration = Duration::from_millis(20);

/// Bytes of a cache line.
const LINE: u64 = 64;

/// What the log promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    None,
    Buffered,
    Emulated,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::None => "no log",
            Mode::Buffered => "buffered",
            Mode::Emulated => "emulated persistent memory",
        }
    }

    /// The paper's name.
    fn paper(self) -> &'static str {
        match self {
            Mode::None => "no logging",
            Mode::Buffered => "logging-DRAM",
            Mode::Emulated => "logging-PM",
        }
    }
}

/// Numbers at one moment of a run.
#[derive(Clone, Copy, Debug)]
struct Reading {
    seconds: f64,
    records: u64,
    log: LogStats,
    /// Bytes written to the file of the log.
    written: u64,
    is_full: bool,
}

/// A run.
struct Ran {
    mode: Mode,
    /// The log before the first insert.
    before: LogStats,
    readings: Vec<Reading>,
}

/// Measures those of the two that are among `figures`.
pub(super) fn run(
    how: &IndexOrganized,
    figures: &[Figure],
    directory: &Path,
    out: &mut dyn Write,
) -> Result<()> {
    let has_rates = figures.contains(&Figure::Fig18);
    let modes = if has_rates {
        &[Mode::None, Mode::Buffered, Mode::Emulated][..]
    } else {
        &[Mode::Emulated]
    };
    say(
        out,
        &format!(
            "\nfig18, table2: inserts of {} B over iot, {} threads, memory {}. Numbers of persistent memory are emulated.",
            how.inserts.bytes,
            how.threads[0],
            display_bytes(how.memory)
        ),
    )?;
    let mut all = Vec::new();
    for (at, mode) in modes.iter().enumerate() {
        let own = directory.join(format!("inserts-{at}"));
        let ran = run_mode(how, *mode, &own)?;
        if let Some(full) = ran.readings.iter().find(|one| one.is_full) {
            let (name, seconds) = (mode.name(), full.seconds);
            say(
                out,
                &format!("{name}: --memory was full after {seconds:.1} s, and the run ended"),
            )?;
        }
        all.push(ran);
        // The next run finds the disk as this one did. What is left goes with the directory.
        let _ = std::fs::remove_dir_all(&own);
    }
    if has_rates {
        tell_rates(how, &all, out)?;
    }
    if figures.contains(&Figure::Table2) {
        tell_counts(how, all.last(), out)?;
    }
    Ok(())
}

fn run_mode(how: &IndexOrganized, mode: Mode, directory: &Path) -> Result<Ran> {
    std::fs::create_dir(directory)
        .map_err(|error| Error::io(format!("create {}", directory.display()), error))?;
    let memory = if mode == Mode::Emulated { LogMemory::Emulated } else { LogMemory::Off };
    let options =
        Options::default().memory(how.memory).durability(Durability::Buffered).log_memory(memory);
    let db = Db::open(directory, options)?;
    let keyspace = KeyspaceOptions::default().engine(EngineKind::Iot).logged(mode != Mode::None);
    let keyspace = db.keyspace("usertable", keyspace)?;
    let before = db.stats().log;
    let (is_over, clock) = (AtomicBool::new(false), Runtime::threads());
    let counts: Vec<AtomicU64> = how.threads[..1]
        .iter()
        .flat_map(|threads| (0..*threads).map(|_| AtomicU64::new(0)))
        .collect();
    let readings = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(&counts)
            .map(|(thread, count)| {
                let (keyspace, is_over) = (&keyspace, &is_over);
                let step = counts.len() as u64;
                scope.spawn(move || {
                    let ended = insert(keyspace, how.inserts.bytes, (thread, step), count, is_over);
                    is_over.store(true, Relaxed);
                    ended
                })
            })
            .collect();
        let readings = read(how, &db, &counts, &is_over, &clock);
        is_over.store(true, Relaxed);
        for thread in threads {
            let panicked = |_| Err(Error::new(ErrorKind::Io, "a client thread panicked"));
            thread.join().unwrap_or_else(panicked)?;
        }
        readings
    })?;
    drop(keyspace);
    db.close()?;
    let log = readings.last().map(|last| last.log.memory);
    if mode == Mode::Emulated && log != Some("emulated") {
        let message = format!("the log's memory is {} here", log.unwrap_or("unknown"));
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(Ran { mode, before, readings })
}

/// Inserts records until it is over, or memory is full.
fn insert(
    keyspace: &Keyspace,
    bytes: usize,
    (first, step): (u64, u64),
    count: &AtomicU64,
    is_over: &AtomicBool,
) -> Result<()> {
    let (mut number, value) = (first, vec![7; bytes - size_of::<u64>()]);
    while !is_over.load(Relaxed) {
        match keyspace.insert(key_of(mix64(number)), &value) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Full => return Ok(()),
            Err(error) => return Err(error),
        }
        number += step;
        count.store(count.load(Relaxed) + 1, Relaxed);
    }
    Ok(())
}

/// Reads the numbers at each duration, the last time when it is over.
fn read(
    how: &IndexOrganized,
    db: &Db,
    counts: &[AtomicU64],
    is_over: &AtomicBool,
    clock: &Runtime,
) -> Result<Vec<Reading>> {
    let mut readings = Vec::new();
    for duration in &how.inserts.durations {
        let end = Duration::from_secs_f64(*duration);
        while clock.now() < end && !is_over.load(Relaxed) {
            if (how.interrupted)() {
                return Err(interrupted("the run was interrupted"));
            }
            clock.sleep(TICK.min(end.saturating_sub(clock.now())));
        }
        let is_full = is_over.load(Relaxed);
        let (seconds, stats) = (clock.now().as_secs_f64(), db.stats());
        let records = counts.iter().map(|count| count.load(Relaxed)).sum();
        let written = stats.io.by_purpose[Purpose::LOG.index()].write_bytes;
        readings.push(Reading { seconds, records, log: stats.log, written, is_full });
        if is_full {
            break;
        }
    }
    Ok(readings)
}

/// Prints figure 18.
#[expect(clippy::cast_precision_loss, reason = "rates with few digits")]
fn tell_rates(how: &IndexOrganized, all: &[Ran], out: &mut dyn Write) -> Result<()> {
    let rate = |ran: &Ran, at: usize| {
        let one = ran.readings.get(at).filter(|one| !one.is_full)?;
        Some(one.records as f64 / one.seconds.max(1e-9))
    };
    let rows = how.inserts.durations.iter().enumerate().map(|(at, duration)| {
        let rates: Vec<_> = all.iter().map(|ran| rate(ran, at)).collect();
        let mut cells = vec![duration.to_string()];
        cells.extend(rates.iter().map(|rate| number(rate.map(|it| it / 1e3), 1)));
        let of_none = |rate: &Option<f64>| super::lines::ratio(*rate, rates[0]);
        cells.extend(rates[1..].iter().map(|rate| number(of_none(rate), 2)));
        cells
    });
    let mut header = vec!["seconds".to_owned()];
    header.extend(all.iter().map(|ran| ran.mode.name().to_owned()));
    header.extend(all[1..].iter().map(|ran| format!("{} / no log", ran.mode.name())));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    say(out, "\nfig18: thousand inserts per second, until then")?;
    say(out, &draw(&header, 1, rows.collect()))?;
    let names = all.iter().map(|ran| format!("{} is {}", ran.mode.name(), ran.mode.paper()));
    let names: Vec<String> = names.collect();
    say(
        out,
        &format!(
            "In the paper's words, {}. Its rates are highest after 10 s, but of logging-PM, whose rates grow until 20 s; it states no ratio.",
            names.join(", ")
        ),
    )
}

/// Prints table 2, of the run with emulated persistent memory.
#[expect(clippy::cast_precision_loss, reason = "numbers with few digits")]
fn tell_counts(how: &IndexOrganized, ran: Option<&Ran>, out: &mut dyn Write) -> Result<()> {
    let Some(ran) = ran else { return Ok(()) };
    let rows = ran.readings.iter().map(|one| {
        let (lines, fences) =
            (one.log.lines - ran.before.lines, one.log.fences - ran.before.fences);
        let each = |count: u64| number(Some(count as f64 / one.records.max(1) as f64), 2);
        let paper = TABLE_2.iter().find(|paper| (paper.seconds - one.seconds).abs() < 0.5);
        let of_paper = paper.map_or(["-", "-"].map(str::to_owned), |paper| {
            [paper.dram_bytes, paper.pm_bytes].map(|bytes| bytes.to_string())
        });
        let hits = paper.map_or("-".to_owned(), |it| format!("{}, {}", it.l2_hits, it.l3_hits));
        let cells = [
            format!("{:.2}", one.seconds),
            one.records.to_string(),
            (one.records * how.inserts.bytes as u64).to_string(),
            one.written.to_string(),
            lines.to_string(),
            (lines * LINE).to_string(),
            fences.to_string(),
            each(lines),
            each(fences),
        ];
        cells.into_iter().chain(of_paper).chain([hits]).collect()
    });
    let header = [
        "seconds",
        "records",
        "bytes of records",
        "bytes to the log's file",
        "lines (emulated)",
        "their bytes (emulated)",
        "fences (emulated)",
        "lines an insert",
        "fences an insert",
        "paper: DRAM writes",
        "PM writes",
        "L2, L3 hits",
    ];
    say(out, "\ntable2: counted by the log, with emulated persistent memory")?;
    say(out, &draw(&header, 1, rows.collect()))?;
    say(
        out,
        "Lines are cache lines of 64 B, written back. Their records go to the log's file later. Bytes that memory modules wrote, and hit ratios of caches, are \
         absent: the paper counts them in the hardware, the former in Optane modules.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::index_organized::plan::small;

    #[test]
    fn inserts_are_measured_in_each_mode() {
        let directory = tempfile::tempdir().unwrap();
        let how = small(directory.path());
        let mut out = Vec::new();
        run(&how, &[Figure::Fig18, Figure::Table2], directory.path(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for words in ["| no log", "emulated persistent memory / no log", "| lines (emulated)"] {
            assert!(text.contains(words), "{words} is not in:\n{text}");
        }
        // An insert fences once, unless it goes to a block of the log.
        let ran = run_mode(&how, Mode::Emulated, &directory.path().join("again")).unwrap();
        let last = ran.readings.last().unwrap();
        let fences = last.log.fences - ran.before.fences;
        let (least, most) = (last.records / 2, last.records + how.threads[0] as u64);
        assert!(last.records > 0 && (least..=most).contains(&fences), "{last:?}");
    }

    #[test]
    fn full_memory_ends_a_run() {
        let directory = tempfile::tempdir().unwrap();
        let mut how = small(directory.path());
        // Inside leaves: larger values are on the disk, and it would take a slow one long to fill memory with pointers to them.
        (how.memory, how.inserts.bytes, how.inserts.durations) = (8 << 20, 1024, vec![30.0, 60.0]);
        let ran = run_mode(&how, Mode::None, &directory.path().join("full")).unwrap();
        let [only] = ran.readings[..] else { panic!("{} readings", ran.readings.len()) };
        assert!(only.is_full && only.seconds < 30.0, "{only:?}");
    }
}
