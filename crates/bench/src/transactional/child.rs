//! The child process of one engine: fills the tables, runs the rounds, checks after each round and
//! at each reopening, and reports events. The first reopening follows the load, so that each
//! round begins on tables that were read whole by a check.

use std::io::{BufRead, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spinney_base::size::display_bytes;
use spinney_base::{Error, ErrorKind, Result, Runtime};

use super::plan::TransactionalPlan;
use super::row::{KindRow, TransactionalRow};
use super::threads::{self, Measured, Round};
use super::workload::TransactionalWorkload;
use super::{Kind, Scan, TransactionalDriver, TransactionalStore, Verdict};
use crate::driver::{Counters, OpenConfig};
use crate::process::{self, ProcessIo};
use crate::processes::{read_plan, tell_parent};

/// Interval of reports of how far a round is.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// Report of a run in progress, a line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// How far the current round is, from 0 to 1, and its rate.
    Progress { what: String, fraction: f64, per_second: f64 },
    /// A round ended, and was checked.
    Done(Box<TransactionalRow>),
    /// Something a reader of the table must know.
    Note(String),
    /// The run cannot continue.
    Failed(String),
}

type Emit<'a> = dyn FnMut(Event) -> Result<()> + 'a;

/// The child process: reads a plan from `input`, runs it on the driver of that name and reports to
/// `output`. `drivers` makes the drivers for a plan. Returns whether all went well.
///
/// # Errors
/// `Io` when the parent cannot be reached. An engine's failure is reported as an event and by
/// `false`.
pub fn child(
    drivers: fn(&TransactionalPlan) -> Vec<Box<dyn TransactionalDriver>>,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
) -> Result<bool> {
    let plan: TransactionalPlan = read_plan(input)?;
    let mut lost = false;
    // When the parent is gone, the run ends with it.
    let mut tell = |event: Event| {
        let sent = tell_parent(output, &event);
        lost |= sent.is_err();
        sent
    };
    let drivers = drivers(&plan);
    let ran = match drivers.iter().find(|driver| driver.name() == plan.engine) {
        Some(driver) => run(&plan, driver.as_ref(), &mut tell),
        None => {
            Err(Error::new(ErrorKind::NotFound, format!("no engine is named {:?}", plan.engine)))
        }
    };
    match ran {
        Err(error) if !lost => {
            tell_parent(output, &Event::Failed(error.to_string()))?;
            Ok(false)
        }
        ran => ran.map(|()| true),
    }
}

/// Runs `plan` on `driver`, and reports to `emit`.
pub(crate) fn run(
    plan: &TransactionalPlan,
    driver: &dyn TransactionalDriver,
    emit: &mut Emit<'_>,
) -> Result<()> {
    plan.check()?;
    let workload = plan.workload.make(plan.seed);
    let workload = workload.as_ref();
    let open = || {
        let config = OpenConfig {
            directory: plan.directory.clone(),
            memory: plan.memory,
            durability: plan.durability,
            torn_writes: plan.torn_writes,
            threads: plan.threads.iter().copied().max().unwrap_or(1),
            keyspaces: workload.tables().len(),
            knobs: plan.knobs.clone(),
        };
        driver.open(&config, workload.tables())
    };
    let store = open()?;
    for note in store.terms().notes {
        emit(Event::Note(format!("{}: {note}", plan.engine)))?;
    }
    let clock = Runtime::threads();
    emit(Event::Progress { what: "load".to_owned(), fraction: 0.0, per_second: 0.0 })?;
    let (records, loaded_bytes) = workload.load(store.as_ref())?;
    let (engine, seconds) = (&plan.engine, clock.now().as_secs_f64());
    let bytes = display_bytes(loaded_bytes);
    emit(Event::Note(format!("{engine}: loaded {records} records, {bytes}, in {seconds:.1} s")))?;
    let mut found = Vec::new();
    let reopened = |store: Box<dyn TransactionalStore>, emit: &mut Emit<'_>| {
        emit(Event::Progress { what: "check".to_owned(), fraction: 1.0, per_second: 0.0 })?;
        store.close()?;
        let store = open()?;
        Ok::<_, Error>((workload.check(&mut *store.session()?)?, store))
    };
    let (what, mut store) = reopened(store, emit)?;
    found.extend(what.map(|what| format!("after the load: {what}")));
    for (number, threads) in (0..).zip(plan.threads.iter().copied()) {
        if plan.warm {
            emit(Event::Progress { what: "warm".to_owned(), fraction: 0.0, per_second: 0.0 })?;
            warm(store.as_ref(), workload.tables().len())?;
        }
        let mut row = round(plan, store.as_ref(), workload, (number, threads), emit)?;
        row.unprotected = driver.unprotected().to_owned();
        row.loaded_bytes = loaded_bytes;
        let what = workload.check(&mut *store.session()?)?;
        found.extend(what.map(|what| format!("after the round: {what}")));
        let what;
        (what, store) = reopened(store, emit)?;
        found.extend(what.map(|what| format!("after reopening: {what}")));
        row.broken = (!found.is_empty()).then(|| found.join("; "));
        found.clear();
        emit(Event::Done(Box::new(row)))?;
    }
    store.close()
}

/// Reads every record by its key.
fn warm(store: &dyn TransactionalStore, tables: usize) -> Result<()> {
    const PIECE: usize = 1000;
    let (mut session, mut value) = (store.session()?, Vec::new());
    for table in 0..tables {
        let mut from = Vec::new();
        loop {
            let mut keys: Vec<Vec<u8>> = Vec::with_capacity(PIECE);
            session.transact(Kind::Report, &mut |access| {
                keys.clear();
                let scan = Scan { table, from: &from, to: None, reverse: false, limit: PIECE };
                access.scan(scan, &mut |key, _| {
                    keys.push(key.to_vec());
                    ControlFlow::Continue(())
                })?;
                Ok(Verdict::Commit)
            })?;
            session.transact(Kind::Read, &mut |access| {
                keys.iter().try_for_each(|key| access.get(table, key, &mut value).map(drop))?;
                Ok(Verdict::Commit)
            })?;
            match keys.pop() {
                Some(last) if keys.len() + 1 == PIECE => from = [&last[..], &[0]].concat(),
                _ => break,
            }
        }
    }
    Ok(())
}

/// Counters at one moment.
struct Moment {
    engine: Counters,
    process: ProcessIo,
}

impl Moment {
    fn of(store: &dyn TransactionalStore) -> Result<Self> {
        Ok(Moment { engine: store.counters()?, process: process::io()? })
    }
}

/// Runs one round.
fn round(
    plan: &TransactionalPlan,
    store: &dyn TransactionalStore,
    workload: &dyn TransactionalWorkload,
    (number, threads): (u64, usize),
    emit: &mut Emit<'_>,
) -> Result<TransactionalRow> {
    process::reset_peak_memory();
    let round = Round {
        number,
        threads,
        warmup: Duration::from_secs_f64(plan.warmup_seconds),
        time: Duration::from_secs_f64(plan.seconds),
        operations: plan.operations,
    };
    let (clock, mut before, mut last) = (Runtime::threads(), None, (Duration::ZERO, 0));
    let measured = threads::measure(store, workload, round, &mut |fraction, committed| {
        if before.is_none() {
            before = Some(Moment::of(store)?);
        }
        let time = clock.now().saturating_sub(last.0);
        if time < PROGRESS_EVERY {
            return Ok(());
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate with few digits")]
        let per_second = (committed - last.1) as f64 / time.as_secs_f64();
        last = (clock.now(), committed);
        emit(Event::Progress { what: format!("{threads} threads"), fraction, per_second })
    })?;
    let after = Moment::of(store)?;
    let before = before.ok_or_else(|| Error::invalid("a round was not measured"))?;
    store.flush()?;
    let kinds = kinds(workload, &measured);
    row(plan, store, threads, (&measured, kinds), [&before, &after])
}

fn row(
    plan: &TransactionalPlan,
    store: &dyn TransactionalStore,
    threads: usize,
    (measured, kinds): (&Measured, Vec<KindRow>),
    [before, after]: [&Moment; 2],
) -> Result<TransactionalRow> {
    let sum = |of: fn(&KindRow) -> u64, kinds: &[KindRow]| kinds.iter().map(of).sum::<u64>();
    let committed = sum(|kind| kind.committed, &kinds);
    let since = |of: fn(&Counters) -> Option<u64>| {
        Some(of(&after.engine)?.saturating_sub(of(&before.engine)?))
    };
    let log_flushes = since(|counters| counters.log_flushes);
    let io = after.process.since(before.process);
    let terms = store.terms();
    #[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
    let ratio = |count: u64, by: f64| count as f64 / by;
    #[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
    let commits_per_sync =
        log_flushes.filter(|it| *it > 0).map(|flushes| ratio(committed, flushes as f64));
    Ok(TransactionalRow {
        engine: plan.engine.clone(),
        workload: plan.workload.name(),
        options: plan.workload.describe(),
        threads,
        memory_bytes: terms.memory_limited.then_some(plan.memory),
        durability: plan.durability.to_string(),
        torn_writes: terms.torn_writes,
        seed: plan.seed,
        seconds: measured.seconds,
        committed,
        committed_per_second: ratio(committed, measured.seconds.max(1e-9)),
        rolled_back: sum(|kind| kind.rolled_back, &kinds),
        retries: sum(|kind| kind.retries, &kinds),
        kinds,
        log_flushes,
        commits_per_sync,
        read_bytes: io.read_bytes,
        write_bytes: io.write_bytes,
        space_bytes: process::space(&plan.directory)?,
        loaded_bytes: 0,
        peak_rss_bytes: process::peak_memory()?,
        broken: None,
        unprotected: String::new(),
        version: terms.version,
    })
}

fn kinds(workload: &dyn TransactionalWorkload, measured: &Measured) -> Vec<KindRow> {
    let names = workload.kinds().iter().zip(&measured.kinds);
    #[expect(clippy::cast_precision_loss, reason = "a latency with a few digits")]
    let us = |nanos: u64| nanos as f64 / 1000.0;
    let row = |(name, kind): (&&str, &threads::OfKind)| KindRow {
        name: (*name).to_owned(),
        committed: kind.committed,
        rolled_back: kind.rolled_back,
        retries: kind.retries,
        p50_us: us(kind.times.value_at_quantile(0.5)),
        p99_us: us(kind.times.value_at_quantile(0.99)),
        max_us: us(kind.times.max()),
    };
    names.map(row).collect()
}
