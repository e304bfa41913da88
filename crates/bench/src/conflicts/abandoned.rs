//! Puts beside transactions that have read a range and were left open.
//!
//! A put looks at the ranges that open transactions have read. Of 256 ranges with 64 hot records behind each, the
//! transactions read 16 records before the hot ones (*beside*: no put ever touches them) or the hot ones
//! themselves (*among*: the first put into a range touches it, and none looks at it afterwards).

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use spinney::{Error, ErrorKind, Transaction};
use spinney_base::Result;

use super::world::{Finding, World, float};

/// Transactions that are left open.
const ABANDONED: u64 = 256;

/// Records that each reads.
const READ: u64 = 16;

/// Records that are put behind those.
const HOT: u64 = 64;

/// Pairs of halves.
const ROUNDS: usize = 3;

pub(super) fn beside(world: &World<'_>) -> Result<Finding> {
    run(world, 0, ABANDONED)
}

pub(super) fn among(world: &World<'_>) -> Result<Finding> {
    run(world, READ, 0)
}

/// Begins the transactions, each of which reads a range.
fn abandon(world: &World<'_>, offset: u64) -> Result<Vec<Transaction>> {
    let apart = world.plan.records / ABANDONED;
    let begin = |number: u64| {
        let transaction = world.db.begin()?;
        let first = number * apart + offset;
        let keys = first.to_be_bytes()..(first + READ).to_be_bytes();
        let read = transaction
            .range(&world.main, keys)
            .try_fold(0, |count, record| record.map(|_| count + 1))?;
        if read == READ {
            return Ok(transaction);
        }
        Err(Error::new(ErrorKind::Corruption, format!("{read} records of {READ}")))
    };
    (0..ABANDONED).map(begin).collect()
}

/// Puts hot records for a half; returns puts a second.
fn half(world: &World<'_>, seconds: f64) -> Result<f64> {
    let puts = AtomicU64::new(0);
    let apart = world.plan.records / ABANDONED;
    let value = world.value(0, 0);
    let begun = world.time.now();
    world.beside(
        |thread| {
            let mut random = world.random(thread);
            let mut mine = 0;
            while !world.is_done() {
                let range = random.next_u64() % ABANDONED;
                let key = range * apart + READ + random.next_u64() % HOT;
                world.main.insert(key.to_be_bytes(), &value)?;
                mine += 1;
            }
            puts.fetch_add(mine, SeqCst);
            Ok(())
        },
        || {
            world.wait(seconds);
            Ok(())
        },
    )?;
    let seconds = world.time.now().saturating_sub(begun).as_secs_f64();
    Ok(float(puts.load(SeqCst)) / seconds.max(1e-9))
}

/// Measures with ranges `offset` records behind the first of each. `live` of them are to be guarded at
/// the end.
fn run(world: &World<'_>, offset: u64, live: u64) -> Result<Finding> {
    world.load()?;
    let seconds = world.plan.seconds / (2 * ROUNDS) as f64;
    half(world, seconds)?;
    let (mut ratios, mut rates, mut is_right) = (Vec::new(), [Vec::new(), Vec::new()], true);
    let mut guards = Vec::new();
    for _ in 0..ROUNDS {
        let none = half(world, seconds)?;
        let open = abandon(world, offset)?;
        let before = world.db.stats().transactions.guards;
        let with = half(world, seconds)?;
        let after = world.db.stats().transactions.guards;
        is_right &= before == ABANDONED && after == live;
        drop(open);
        is_right &= world.db.stats().transactions.guards == 0;
        guards.push(format!("{before} to {after}"));
        ratios.push(with / none.max(1e-9));
        rates[0].push(none);
        rates[1].push(with);
    }
    ratios.sort_by(f64::total_cmp);
    let shown = |numbers: &[f64]| {
        numbers.iter().map(|number| format!("{number:.0}")).collect::<Vec<_>>().join(", ")
    };
    let text = format!(
        "{:.3} of the puts/s without (least {:.3}, most {:.3}); without {}, with {}; guards from {}",
        ratios[ROUNDS / 2],
        ratios[0],
        ratios[ROUNDS - 1],
        shown(&rates[0]),
        shown(&rates[1]),
        guards.join(", "),
    );
    Ok(Finding { text, is_right })
}
