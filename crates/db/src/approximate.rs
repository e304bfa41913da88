//! Sizes without a full scan.
//!
//! What has few records is counted. Of the rest the engine knows the bytes, and samples tell how many
//! bytes a record takes: the first and last records of the keyspace, and some between, at keys that lie
//! evenly between these two as numbers.

use std::ops::Bound;

use spinney_base::Result;
use spinney_base::limits::PAGE_BYTES;
use spinney_engine::LargePointer;

use crate::keyspace::Keyspace;
use crate::range::KeyRange;

/// Up to how many records are counted one by one: a few pages of small ones.
const COUNTED_MAX: usize = 1000;

/// Records of one sample, and how many samples lie between the two ends.
const SAMPLE_RECORDS: usize = 32;
const SAMPLES_BETWEEN: u64 = 6;

/// Number of records, and bytes of their keys and values.
type Count = (u64, u64);

fn count(records: impl Iterator<Item = Result<(Vec<u8>, crate::Value)>>) -> Result<Count> {
    let mut all = (0, 0);
    for record in records {
        let (key, value) = record?;
        all.0 += 1;
        all.1 += (key.len() + value.len()) as u64;
    }
    Ok(all)
}

/// The eight bytes of a key after what it shares with another one.
fn number(key: &[u8], shared: usize) -> u64 {
    let mut bytes = [0; 8];
    let rest = key.get(shared..).unwrap_or_default();
    let length = rest.len().min(8);
    bytes[..length].copy_from_slice(&rest[..length]);
    u64::from_be_bytes(bytes)
}

/// Keys that lie evenly between two others.
fn between(first: &[u8], last: &[u8]) -> Vec<Vec<u8>> {
    let shared = first.iter().zip(last).take_while(|(one, other)| one == other).count();
    let (low, high) = (number(first, shared), number(last, shared));
    let step = high.saturating_sub(low) / (SAMPLES_BETWEEN + 1);
    let at = |nth: u64| [&first[..shared], &(low + nth * step).to_be_bytes()[..]].concat();
    (1..=SAMPLES_BETWEEN).map(at).collect()
}

impl Keyspace {
    /// About how many records there are: exact up to 1,000, else by the bytes that are in use and the
    /// size of some hundred records, which are read. Where records of very different sizes lie
    /// apart, it may be off by their ratio; where memory holds many changes that are not written
    /// back, by their number.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::in_memory(Options::default())?;
    /// let fruit = db.keyspace("fruit", KeyspaceOptions::default())?;
    /// fruit.insert("apple", "red")?;
    /// fruit.insert("cherry", "black")?;
    /// assert_eq!(fruit.approximate_len()?, 2);
    /// assert_eq!(fruit.approximate_bytes("b"..)?, 11);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn approximate_len(&self) -> Result<u64> {
        let counted = self.keys(..).take(COUNTED_MAX + 1).collect::<Result<Vec<_>>>()?;
        if counted.len() <= COUNTED_MAX {
            return Ok(counted.len() as u64);
        }
        let bytes = self.enter()?.engine.approximate_bytes(&[], None);
        let known = self.stats().records_cached.max(COUNTED_MAX as u64);
        let overhead = self.engine().row().record_overhead;
        Ok((bytes / (self.sample()?.record_bytes() + overhead)).max(known))
    }

    /// About how many bytes the keys and values of a range take: exact where it has up to 1,000
    /// records. Of large values beyond, the range has the share that it has of all other bytes. It may
    /// be off by half a leaf or segment at either end, and by what memory holds of changes that are not
    /// written back.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn approximate_bytes(&self, range: impl KeyRange) -> Result<u64> {
        let (records, bytes) = count(self.range(&range).take(COUNTED_MAX + 1))?;
        if records <= COUNTED_MAX as u64 {
            return Ok(bytes);
        }
        let successor = |key: &[u8]| [key, &[0][..]].concat();
        let lower = match range.lower() {
            Bound::Included(key) => key.to_vec(),
            Bound::Excluded(key) => successor(key),
            Bound::Unbounded => Vec::new(),
        };
        let upper = match range.upper() {
            Bound::Included(key) => Some(successor(key)),
            Bound::Excluded(key) => Some(key.to_vec()),
            Bound::Unbounded => None,
        };
        let keyspace = self.enter()?;
        let inline = keyspace.engine.approximate_bytes(&lower, upper.as_deref());
        let all = keyspace.engine.approximate_bytes(&[], None);
        let sample = self.sample()?;
        let large = sample.large_of(keyspace.engine.stats().large_bytes);
        let share = large * u128::from(inline) / u128::from(all.max(1));
        // Keys and values alone.
        let record = u128::from(sample.record_bytes());
        let overhead = u128::from(self.engine().row().record_overhead);
        let records = u128::from(inline) * record / (record + overhead);
        Ok(u64::try_from(records + share).unwrap_or(u64::MAX).max(bytes))
    }

    /// Reads some records.
    fn sample(&self) -> Result<Sample> {
        let mut sample = Sample::default();
        let Some((first, _)) = self.first_key_value()? else { return Ok(sample) };
        let last = self.last_key_value()?.map_or_else(Vec::new, |(key, _)| key);
        let keyspace = self.enter()?;
        let is_large =
            |key: &[u8], length: u64| keyspace.engine.values().is_large(key.len(), length);
        let mut add = |records: &mut dyn Iterator<Item = Result<(Vec<u8>, crate::Value)>>| {
            records.take(SAMPLE_RECORDS).try_for_each(|record| {
                let (key, value) = record?;
                sample.add(&key, value.len() as u64, is_large(&key, value.len() as u64));
                Ok::<(), spinney_base::Error>(())
            })
        };
        add(&mut self.iter())?;
        add(&mut self.iter().rev())?;
        for key in between(&first, &last) {
            add(&mut self.range(key..))?;
        }
        Ok(sample)
    }
}

/// Records that were read.
#[derive(Debug, Default)]
struct Sample {
    records: u64,
    /// Bytes that they take where records lie: keys and values, or the pointers to large ones.
    inline: u64,
    /// Bytes of large values, and of their pages.
    large: u64,
    pages: u64,
}

impl Sample {
    fn add(&mut self, key: &[u8], value: u64, is_large: bool) {
        self.records += 1;
        self.inline +=
            key.len() as u64 + if is_large { LargePointer::bytes_for(value) } else { value };
        if is_large {
            let pages: u64 = LargePointer::orders(value).map(|order| 1 << order).sum();
            self.large += value;
            self.pages += pages * PAGE_BYTES as u64;
        }
    }

    /// Bytes of a record where records lie; at least 1.
    fn record_bytes(&self) -> u64 {
        (self.inline / self.records.max(1)).max(1)
    }

    /// The bytes of large values whose pages take `pages` bytes.
    fn large_of(&self, pages: u64) -> u128 {
        match self.pages {
            0 => pages.into(),
            of_sample => u128::from(pages) * u128::from(self.large) / u128::from(of_sample),
        }
    }
}
