//! Transactions that scan 1,000 records and update one of them, beside writes outside of what they scan.
//!
//! * *Bounded*: 64 ranges far apart; writes come on both sides of each, half of them within 1,000 records.
//! * *Limited*: `range(a..).limit(1000)`, and all writes above the thousandth record, half of them within
//!   1,000 records and a quarter of them new keys between two records. The range moves down after each
//!   transaction, so the thousandth record lies at every place of a page. A writer that has seen an earlier
//!   place writes above it, which is above the range of today, too.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use spinney::{ErrorKind, TransactionCursor};
use spinney_base::runtime::SplitMix;
use spinney_base::{Error, Result};

use super::world::{Finding, RANGE, Tries, World, counted, float};

/// Ranges that bounded scans choose from.
const RANGES: u64 = 64;

/// Records that a limited range moves down.
const STEP: u64 = 7;

/// Where the scans are.
enum Shape {
    Bounded,
    Limited { first: AtomicU64 },
}

impl Shape {
    /// The first record of the next scan.
    fn place(&self, records: u64, random: &mut SplitMix) -> u64 {
        match self {
            Shape::Bounded => (random.next_u64() % RANGES) * (records / RANGES),
            Shape::Limited { first } => first.load(SeqCst),
        }
    }

    /// Ends a scan.
    fn advance(&self) {
        if let Shape::Limited { first } = self {
            first.store(first.load(SeqCst).saturating_sub(STEP), SeqCst);
        }
    }

    /// A key outside of every range that is scanned or will be.
    fn outside(&self, records: u64, random: &mut SplitMix) -> (u64, bool) {
        let choice = random.next_u64();
        let is_near = choice.is_multiple_of(2);
        match self {
            Shape::Bounded => {
                let apart = records / RANGES;
                let range = random.next_u64() % RANGES;
                let free = apart - RANGE;
                let place = random.next_u64() % if is_near { free.min(RANGE) } else { free };
                let is_behind = choice.is_multiple_of(4);
                let offset = if is_behind { RANGE + place } else { apart - 1 - place };
                (range * apart + offset, false)
            }
            Shape::Limited { first } => {
                let end = first.load(SeqCst) + RANGE;
                let free = records - end;
                let place = random.next_u64() % if is_near { free.min(RANGE) } else { free };
                // A new key follows the record before.
                let is_new = choice.is_multiple_of(4);
                (end + place - u64::from(is_new), is_new)
            }
        }
    }
}

/// Writes outside of the ranges.
fn write(world: &World<'_>, shape: &Shape, random: &mut SplitMix, value: &[u8]) -> Result<()> {
    let (key, is_new) = shape.outside(world.plan.records, random);
    let mut bytes = key.to_be_bytes().to_vec();
    if is_new {
        bytes.push(random.next_u64().to_le_bytes()[0]);
    }
    world.main.insert(bytes, value)
}

/// What the scanning thread knows: the version of each record.
struct Scanner<'a> {
    world: &'a World<'a>,
    shape: &'a Shape,
    versions: Vec<u32>,
    /// Values of versions, made once.
    expected: Vec<u8>,
}

/// The version of a record, told by its value, or none.
fn version_of(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

impl Scanner<'_> {
    fn value(&mut self, version: u32) -> &[u8] {
        self.expected[..4].copy_from_slice(&version.to_le_bytes());
        &self.expected
    }

    /// Scans, checks, and updates one record.
    fn attempt(&mut self, first: u64, updated: u64) -> Result<()> {
        let mut transaction = self.world.db.begin()?;
        let keys = first.to_be_bytes()..(first + RANGE).to_be_bytes();
        let cursor = match self.shape {
            Shape::Bounded => transaction.range(&self.world.main, keys),
            Shape::Limited { .. } => {
                let limit = usize::try_from(RANGE).expect("few");
                transaction.range(&self.world.main, keys.start..).limit(limit)
            }
        };
        self.check(first, cursor)?;
        let version = self.versions[index(updated)] + 1;
        let value = self.value(version).to_vec();
        transaction.insert(&self.world.main, updated.to_be_bytes(), value)?;
        transaction.commit()?;
        self.versions[index(updated)] = version;
        Ok(())
    }

    fn check(&self, first: u64, mut cursor: TransactionCursor<'_>) -> Result<()> {
        let mut key = first;
        while let Some((found, value)) = cursor.next_ref()? {
            let is_right = found == key.to_be_bytes()
                && version_of(value) == self.versions.get(index(key)).copied();
            if !is_right {
                let text = format!("record {key} is not what it was");
                return Err(Error::new(ErrorKind::Corruption, text));
            }
            key += 1;
        }
        if key == first + RANGE {
            return Ok(());
        }
        let text = format!("{} records of {RANGE}", key - first);
        Err(Error::new(ErrorKind::Corruption, text))
    }
}

fn index(key: u64) -> usize {
    usize::try_from(key).expect("it fits in memory")
}

pub(super) fn bounded(world: &World<'_>) -> Result<Finding> {
    run(world, &Shape::Bounded)
}

pub(super) fn limited(world: &World<'_>) -> Result<Finding> {
    // Two thirds of the records lie below the first place, and are passed in some hours.
    run(world, &Shape::Limited { first: AtomicU64::new(world.plan.records / 3 * 2) })
}

fn run(world: &World<'_>, shape: &Shape) -> Result<Finding> {
    let records = world.plan.records;
    let mut first_value = world.value(0, 0);
    first_value[..4].fill(0);
    world.main.bulk_load((0..records).map(|key| (key.to_be_bytes(), &first_value)))?;
    let versions = vec![0; index(records)];
    let mut scanner = Scanner { world, shape, versions, expected: first_value.clone() };
    let (written, mut tries) = (AtomicU64::new(0), Tries::default());
    let before = world.db.stats().transactions;
    let begun = world.time.now();
    let scanned = world.beside(
        |thread| {
            let mut random = world.random(thread);
            world.write_paced(&written, || write(world, shape, &mut random, &first_value))
        },
        || {
            let mut random = world.random(1 << 20);
            let elapsed = || world.time.now().saturating_sub(begun).as_secs_f64();
            while elapsed() < world.plan.seconds && !world.is_done() {
                let first = shape.place(records, &mut random);
                let updated = first + random.next_u64() % RANGE;
                tries.run(|| scanner.attempt(first, updated))?;
                shape.advance();
            }
            Ok(float(written.load(SeqCst)) / elapsed().max(1e-9))
        },
    );
    let text = counted(&before, &world.db.stats().transactions);
    match scanned {
        Ok(rate) => {
            let text = format!("{} beside {rate:.0} writes/s outside of it; {text}", tries.text());
            Ok(Finding { text, is_right: true })
        }
        Err(error) if error.kind() == ErrorKind::Corruption => {
            Ok(Finding { text: format!("{error}; {text}"), is_right: false })
        }
        Err(error) => Err(error),
    }
}
