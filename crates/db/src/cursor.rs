//! Cursors: ranges read chunk by chunk from either end.
//!
//! A cursor holds no lock, no page and no place in the tree between calls (rule P24): it copies a
//! chunk and later goes on by key, so a thread may write while it iterates. The first chunk is
//! small and later ones grow, so a short look reads little and a long one reads in large pieces.
//! After an error it gives the same error again, never the records beyond it. Large values are read
//! one by one, when they are asked for; a cursor over keys reads none, and one over readers leaves
//! the reading to its caller.

use std::collections::VecDeque;
use std::ops::Bound;

use spinney_base::{Error, Result};
use spinney_engine::{Chunk, Direction, Record, ScanRequest};

use crate::keyspace::Keyspace;
use crate::large::ValueReader;
use crate::value::Value;

const CHUNK_RECORDS_MIN: usize = 16;
const CHUNK_RECORDS_MAX: usize = 1024;
const CHUNK_BYTES_MAX: usize = 256 << 10;

/// Iterates over records, from the front, the back, or both.
#[derive(Debug)]
pub struct Cursor {
    keyspace: Keyspace,
    /// The part of the range that was not read yet.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    exhausted: bool,
    /// Read and not yet given, ascending; all of `front` lies below the part not read, all of
    /// `back` above.
    front: VecDeque<Record>,
    back: VecDeque<Record>,
    chunk_records: usize,
    /// Records that it still gives, if that is limited.
    left: Option<usize>,
    error: Option<Error>,
}

impl Cursor {
    pub(crate) fn new(keyspace: Keyspace, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Self {
        let exhausted = is_empty(&lower, &upper);
        Cursor {
            keyspace,
            lower,
            upper,
            exhausted,
            front: VecDeque::new(),
            back: VecDeque::new(),
            chunk_records: CHUNK_RECORDS_MIN,
            left: None,
            error: None,
        }
    }

    /// Ends after so many records, and reads at once what they need and little more: better than
    /// `take` where it is known how many are wanted.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// # let keyspace = db.keyspace("k", KeyspaceOptions::default())?;
    /// # (0..10u8).try_for_each(|n| keyspace.insert(&[n], b""))?;
    /// assert_eq!(keyspace.range([3]..).limit(4).count(), 4);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn limit(mut self, records: usize) -> Self {
        self.left = Some(records);
        self
    }

    /// Gives a reader in the place of each value, so that no large one need be whole in memory.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// # let keyspace = db.keyspace("k", KeyspaceOptions::default())?;
    /// keyspace.insert(b"picture", &[7; 1 << 20])?;
    /// for record in keyspace.iter().readers() {
    ///     let (_, mut value) = record?;
    ///     assert_eq!(std::io::copy(&mut value, &mut std::io::sink())?, 1 << 20);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn readers(self) -> Readers {
        Readers(self)
    }

    /// Reads one record from one end and no more.
    pub(crate) fn one(mut self, direction: Direction) -> Result<Option<(Vec<u8>, Value)>> {
        self.chunk_records = 1;
        match direction {
            Direction::Forward => self.next().transpose(),
            Direction::Reverse => self.next_back().transpose(),
        }
    }

    fn fetch(&mut self, direction: Direction) -> Result<()> {
        self.keyspace.check_readable()?;
        let request = ScanRequest {
            lower: self.lower.as_ref().map(Vec::as_slice),
            upper: self.upper.as_ref().map(Vec::as_slice),
            direction,
            records_max: match self.left {
                Some(left) => left.clamp(1, CHUNK_RECORDS_MAX),
                None => self.chunk_records,
            },
            bytes_max: CHUNK_BYTES_MAX,
        };
        let mut chunk = Chunk::default();
        self.keyspace.state.engine.scan(&request, &mut chunk)?;
        self.exhausted = chunk.finished;
        self.chunk_records = (self.chunk_records * 4).min(CHUNK_RECORDS_MAX);
        let last = || chunk.records.last().map(|record| Bound::Excluded(record.key.clone()));
        if let Some(end) = chunk.resume.take().or_else(last) {
            match direction {
                Direction::Forward => self.lower = end,
                Direction::Reverse => self.upper = end,
            }
        }
        match direction {
            Direction::Forward => self.front.extend(chunk.records),
            Direction::Reverse => self.back.extend(chunk.records.into_iter().rev()),
        }
        Ok(())
    }

    /// One record with its value, large ones included.
    fn step_whole(&mut self, direction: Direction) -> Option<Result<(Vec<u8>, Value)>> {
        self.step_with(direction, |_, bytes| Value::from(bytes), Keyspace::get)
    }

    fn step_reader(&mut self, direction: Direction) -> Option<Result<(Vec<u8>, ValueReader)>> {
        self.step_with(direction, ValueReader::over, Keyspace::get_reader)
    }

    /// One record with what `inline` makes of its value or, if that is large, what `large` finds.
    fn step_with<T>(
        &mut self,
        direction: Direction,
        inline: impl Fn(&Keyspace, Vec<u8>) -> T,
        large: impl Fn(&Keyspace, &[u8]) -> Result<Option<T>>,
    ) -> Option<Result<(Vec<u8>, T)>> {
        loop {
            let Record { key, value } = match self.step(direction)? {
                Ok(record) => record,
                Err(error) => return Some(Err(error)),
            };
            if !value.large {
                return Some(Ok((key, inline(&self.keyspace, value.bytes))));
            }
            // The pointer of the chunk may be stale, for nothing holds the bytes since then: the key
            // is looked up anew. If it has gone, the range never promised it, and another takes its
            // place within the limit.
            match large(&self.keyspace, &key) {
                Ok(Some(value)) => return Some(Ok((key, value))),
                Ok(None) => self.left = self.left.map(|left| left + 1),
                Err(error) => {
                    self.error = Some(error.clone());
                    return Some(Err(error));
                }
            }
        }
    }

    /// One record as the engine delivers it.
    fn step(&mut self, direction: Direction) -> Option<Result<Record>> {
        if let Some(error) = &self.error {
            return Some(Err(error.clone()));
        }
        if self.left == Some(0) {
            return None;
        }
        loop {
            let (near, far) = match direction {
                Direction::Forward => (&mut self.front, &mut self.back),
                Direction::Reverse => (&mut self.back, &mut self.front),
            };
            let take = |queue: &mut VecDeque<Record>| match direction {
                Direction::Forward => queue.pop_front(),
                Direction::Reverse => queue.pop_back(),
            };
            let mut record = take(near);
            if record.is_none() && self.exhausted {
                record = take(far);
                record.as_ref()?;
            }
            if let Some(record) = record {
                self.left = self.left.map(|left| left - 1);
                return Some(Ok(record));
            }
            if let Err(error) = self.fetch(direction) {
                self.error = Some(error.clone());
                return Some(Err(error));
            }
        }
    }
}

fn is_empty(lower: &Bound<Vec<u8>>, upper: &Bound<Vec<u8>>) -> bool {
    match (lower, upper) {
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper))
        | (Bound::Excluded(lower), Bound::Included(upper)) => lower >= upper,
        _ => false,
    }
}

impl Iterator for Cursor {
    type Item = Result<(Vec<u8>, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step_whole(Direction::Forward)
    }
}

impl DoubleEndedIterator for Cursor {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step_whole(Direction::Reverse)
    }
}

/// Iterates over keys and readers of their values, from the front, the back, or both.
#[derive(Debug)]
pub struct Readers(Cursor);

impl Iterator for Readers {
    type Item = Result<(Vec<u8>, ValueReader)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.step_reader(Direction::Forward)
    }
}

impl DoubleEndedIterator for Readers {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.step_reader(Direction::Reverse)
    }
}

/// Iterates over keys, from the front, the back, or both.
#[derive(Debug)]
pub struct Keys(pub(crate) Cursor);

impl Iterator for Keys {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.step(Direction::Forward)?.map(|record| record.key))
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        Some(self.0.step(Direction::Reverse)?.map(|record| record.key))
    }
}
