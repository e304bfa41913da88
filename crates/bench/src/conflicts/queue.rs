//! Transactions that take the first record of a queue, beside pushes at its other end.
//!
//! The queue never becomes short, so the head is always the next number, and every conflict is a false one.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use spinney::ErrorKind;
use spinney_base::{Error, Result};

use super::world::{Finding, REST, Tries, World, counted, float};

/// Records that the queue has at least when its head is taken.
const LENGTH_MIN: u64 = 10_000;

pub(super) fn run(world: &World<'_>) -> Result<Finding> {
    let loaded = 2 * LENGTH_MIN;
    world.main.bulk_load((0..loaded).map(|key| (key.to_be_bytes(), world.value(key, 0))))?;
    let (next, pushed) = (AtomicU64::new(loaded), AtomicU64::new(0));
    let (mut tries, mut head) = (Tries::default(), 0_u64);
    let before = world.db.stats().transactions;
    let begun = world.time.now();
    let taken = world.beside(
        |_| {
            world.write_paced(&pushed, || {
                let key = next.fetch_add(1, SeqCst);
                world.main.insert(key.to_be_bytes(), world.value(key, 0))
            })
        },
        || {
            let elapsed = || world.time.now().saturating_sub(begun).as_secs_f64();
            while elapsed() < world.plan.seconds && !world.is_done() {
                if loaded + pushed.load(SeqCst) < head + LENGTH_MIN {
                    world.time.sleep(REST);
                    continue;
                }
                tries.run(|| take(world, head))?;
                head += 1;
            }
            Ok(float(pushed.load(SeqCst)) / elapsed().max(1e-9))
        },
    );
    let text = counted(&before, &world.db.stats().transactions);
    let checked = taken.and_then(|rate| check(world, head..next.load(SeqCst)).map(|()| rate));
    match checked {
        Ok(rate) => {
            let text = format!("{} beside {rate:.0} pushes/s; {text}", tries.text());
            Ok(Finding { text, is_right: true })
        }
        Err(error) if error.kind() == ErrorKind::Corruption => {
            Ok(Finding { text: format!("{error}; {text}"), is_right: false })
        }
        Err(error) => Err(error),
    }
}

/// Takes the head, which has this number.
fn take(world: &World<'_>, number: u64) -> Result<()> {
    let mut transaction = world.db.begin()?;
    let first = transaction.first_key_value(&world.main)?;
    match first {
        Some((key, value)) if key == number.to_be_bytes() && *value == *world.value(number, 0) => {
            transaction.remove(&world.main, key)?;
            transaction.commit()
        }
        _ => Err(wrong(number, first.map(|(key, _)| key))),
    }
}

fn wrong(number: u64, found: Option<Vec<u8>>) -> Error {
    let found = found.map(|key| key.escape_ascii().to_string());
    let text = format!("record {number} of the queue is not where it should be: {found:?}");
    Error::new(ErrorKind::Corruption, text)
}

/// What was not taken is there.
fn check(world: &World<'_>, left: std::ops::Range<u64>) -> Result<()> {
    let mut number = left.start;
    for key in world.main.keys(..) {
        let key = key?;
        if key != number.to_be_bytes() {
            return Err(wrong(number, Some(key)));
        }
        number += 1;
    }
    if number == left.end { Ok(()) } else { Err(wrong(number, None)) }
}
