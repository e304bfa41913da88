//! Cursors: ranges read chunk by chunk from either end.
//!
//! A cursor holds no lock, no page and no position in the tree between calls (rule P24). It copies
//! a chunk of records and continues later by key, so a thread may write while it iterates. The
//! first chunk is small and later ones grow: a short range reads little, and a long one reads in
//! large pieces. A cursor over a snapshot reads its chunks from the snapshot, so all are of one
//! moment. After an error a cursor never
//! gives the records beyond it: its iterator ends, and its lending methods give the error again. Large
//! values are read one by one, when they are asked for. A cursor over keys reads none, and one over
//! readers leaves the reading to its caller.

use std::cell::Cell;
use std::ops::{Bound, Range};

use spinney_base::{Error, Result, ValueRef};
use spinney_engine::{Chunk, Direction, ScanRequest};

use crate::reader::ValueReader;
use crate::snapshot::Source;
use crate::value::Value;

const CHUNK_RECORDS_MIN: usize = 16;
const CHUNK_RECORDS_MAX: usize = 1024;
const CHUNK_BYTES_MAX: usize = 256 << 10;

/// A thread keeps the memory of a chunk no larger than this for its next cursor.
const SPARE_BYTES_MAX: usize = 32 << 10;

thread_local! {
    /// Memory of a chunk that an earlier cursor of this thread had. Without it a short range would
    /// ask the allocator for several pieces that are too large for its per-thread cache.
    static SPARE: Cell<Option<Chunk>> = const { Cell::new(None) };
}

/// Iterator over records of a range, from the front, the back, or both.
#[derive(Debug)]
pub struct Cursor {
    source: Source,
    /// The bounds that it was made with.
    range: [Bound<Vec<u8>>; 2],
    /// Part of the range that has not been read yet.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    exhausted: bool,
    /// Records read and not yet given: all of `front` lie below the part not read, all of `back`
    /// above.
    front: Queue,
    back: Queue,
    /// Key and value of the large record that was given last.
    large: (Vec<u8>, Value),
    chunk_records: usize,
    /// Number of records that may still be given, if limited.
    left: Option<usize>,
    /// Whether the cursor's front is the end of the range.
    reversed: bool,
    /// Whether no value will be asked for.
    keys_only: bool,
    error: Option<Error>,
    /// Whether the iterator has given the error: it ends then, or `count` would never return.
    gave_error: bool,
}

/// A chunk, and which of its records have not been given yet.
#[derive(Debug, Default)]
struct Queue {
    chunk: Chunk,
    left: Range<usize>,
}

impl Queue {
    /// Takes the memory that the thread has kept, if this queue has none.
    fn take_spare(&mut self) {
        if self.chunk.memory_bytes() == 0
            && let Ok(Some(spare)) = SPARE.try_with(Cell::take)
        {
            self.chunk = spare;
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let bytes = self.chunk.memory_bytes();
        if bytes > 0 && bytes <= SPARE_BYTES_MAX {
            let mut chunk = std::mem::take(&mut self.chunk);
            chunk.clear();
            // A thread that ends keeps nothing.
            _ = SPARE.try_with(|spare| spare.set(Some(chunk)));
        }
    }
}

/// A record of one of the queues, named by the direction in which the queue was read.
type Place = (Direction, usize);

impl Cursor {
    pub(crate) fn new(source: Source, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Self {
        let exhausted = is_empty(&lower, &upper);
        Cursor {
            source,
            range: [lower.clone(), upper.clone()],
            lower,
            upper,
            exhausted,
            front: Queue::default(),
            back: Queue::default(),
            large: (Vec::new(), Value::default()),
            chunk_records: CHUNK_RECORDS_MIN,
            left: None,
            reversed: false,
            keys_only: false,
            error: None,
            gave_error: false,
        }
    }

    /// Gives an error of the iterator once.
    fn once<T>(&mut self, given: Option<Result<T>>) -> Option<Result<T>> {
        if matches!(given, Some(Err(_))) && std::mem::replace(&mut self.gave_error, true) {
            return None;
        }
        given
    }

    /// Ends the range after `records` records, and reads at once what these need and little more.
    /// Prefer it to `take` where the number is known.
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

    /// Reverses the cursor: the last record comes first. A limit set before or after counts from
    /// the new front.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// # let keyspace = db.keyspace("k", KeyspaceOptions::default())?;
    /// (0..10u8).try_for_each(|n| keyspace.insert([n], ""))?;
    /// let newest: Vec<_> = keyspace.iter().rev().limit(2).collect::<Result<_, _>>()?;
    /// assert_eq!([&newest[0].0, &newest[1].0], [&[9], &[8]]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn rev(mut self) -> Self {
        self.reversed = !self.reversed;
        self
    }

    /// Moves the cursor to the first record at or after `key`, forwards or backwards, within the
    /// range. In a cursor reversed with [`Cursor::rev`], "after" means lower.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// # let keyspace = db.keyspace("k", KeyspaceOptions::default())?;
    /// (0..10u8).try_for_each(|n| keyspace.insert([n], ""))?;
    /// let mut cursor = keyspace.range([2]..);
    /// cursor.seek([7]);
    /// assert_eq!(cursor.next().expect("it is there")?.0, [7]);
    /// cursor.seek([0]);
    /// assert_eq!(cursor.next().expect("the range begins there")?.0, [2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        let [mut lower, mut upper] = self.range.clone();
        if self.reversed {
            if is_inside_upper(&upper, key) {
                upper = Bound::Included(key.to_vec());
            }
        } else if is_inside_lower(&lower, key) {
            lower = Bound::Included(key.to_vec());
        }
        self.exhausted = is_empty(&lower, &upper);
        (self.lower, self.upper) = (lower, upper);
        (self.front.left, self.back.left) = (0..0, 0..0);
        self.chunk_records = CHUNK_RECORDS_MIN;
    }

    /// Returns an iterator that gives a reader instead of each value, so that no large value has to
    /// fit into memory.
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

    /// Reads a single record from one end.
    pub(crate) fn one(mut self, direction: Direction) -> Result<Option<(Vec<u8>, Value)>> {
        self.chunk_records = 1;
        match direction {
            Direction::Forward => self.next().transpose(),
            Direction::Reverse => self.next_back().transpose(),
        }
    }

    /// Returns the next record from the front, lent until the next call on the cursor. Unlike the
    /// iterator, it does not allocate for each record.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// # let keyspace = db.keyspace("k", KeyspaceOptions::default())?;
    /// # (0..10u8).try_for_each(|n| keyspace.insert(&[n], b"value"))?;
    /// let mut cursor = keyspace.range([3]..).limit(4);
    /// let mut bytes = 0;
    /// while let Some((key, value)) = cursor.next_ref()? {
    ///     bytes += key.len() + value.len();
    /// }
    /// assert_eq!(bytes, 4 * 6);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As the iterator's.
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.lend(self.ahead())
    }

    /// Returns the next record from the back, lent until the next call on the cursor.
    ///
    /// # Errors
    /// As the iterator's.
    pub fn next_back_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.lend(self.behind())
    }

    /// Direction in which the cursor's iterator moves.
    fn ahead(&self) -> Direction {
        if self.reversed { Direction::Reverse } else { Direction::Forward }
    }

    /// The opposite direction.
    fn behind(&self) -> Direction {
        if self.reversed { Direction::Forward } else { Direction::Reverse }
    }

    fn lend(&mut self, direction: Direction) -> Result<Option<(&[u8], &[u8])>> {
        let place = loop {
            let Some(place) = self.step(direction)? else { return Ok(None) };
            let (key, value) = self.at(place);
            if !value.large {
                break place;
            }
            let key = key.to_vec();
            if let Some(value) = self.find_large(&key, Source::get)? {
                self.large = (key, value);
                return Ok(Some((&self.large.0, &self.large.1)));
            }
        };
        let (key, value) = self.at(place);
        Ok(Some((key, value.bytes)))
    }

    fn next_key(&mut self, direction: Direction) -> Result<Option<Vec<u8>>> {
        let place = self.step(direction)?;
        Ok(place.map(|place| self.at(place).0.to_vec()))
    }

    fn step_key(&mut self, direction: Direction) -> Option<Result<Vec<u8>>> {
        let given = self.next_key(direction);
        self.once(given.transpose())
    }

    fn fetch(&mut self, direction: Direction) -> Result<()> {
        let (wanted, max) = match self.left {
            Some(left) => (left.clamp(1, CHUNK_RECORDS_MAX), left),
            None if self.chunk_records == 1 => (1, 1),
            None => (self.chunk_records, usize::MAX),
        };
        let request = ScanRequest {
            lower: self.lower.as_ref().map(Vec::as_slice),
            upper: self.upper.as_ref().map(Vec::as_slice),
            direction,
            records_wanted: wanted,
            records_max: max,
            bytes_max: CHUNK_BYTES_MAX,
            keys_only: self.keys_only,
        };
        let queue = match direction {
            Direction::Forward => &mut self.front,
            Direction::Reverse => &mut self.back,
        };
        queue.take_spare();
        let Queue { chunk, left } = queue;
        chunk.clear();
        *left = 0..0;
        self.source.scan(&request, chunk)?;
        *left = 0..chunk.len();
        self.exhausted = chunk.finished;
        self.chunk_records = (self.chunk_records * 4).min(CHUNK_RECORDS_MAX);
        let last = chunk.len().checked_sub(1);
        let last = || last.map(|last| Bound::Excluded(chunk.get(last).0.to_vec()));
        if let Some(end) = chunk.resume.clone().or_else(last) {
            match direction {
                Direction::Forward => self.lower = end,
                Direction::Reverse => self.upper = end,
            }
        }
        Ok(())
    }

    fn at(&self, (direction, index): Place) -> (&[u8], ValueRef<'_>) {
        match direction {
            Direction::Forward => self.front.chunk.get(index),
            Direction::Reverse => self.back.chunk.get(index),
        }
    }

    /// Gives one record with its value, large values included.
    fn step_whole(&mut self, direction: Direction) -> Option<Result<(Vec<u8>, Value)>> {
        let given = self.step_with(direction, |_, bytes| Value::from(bytes), Source::get);
        self.once(given.transpose())
    }

    fn step_reader(&mut self, direction: Direction) -> Option<Result<(Vec<u8>, ValueReader)>> {
        let given = self.step_with(direction, ValueReader::over, Source::get_reader);
        self.once(given.transpose())
    }

    /// Gives one record with what `inline` makes from its value or, if that is large, what `large`
    /// finds.
    fn step_with<T>(
        &mut self,
        direction: Direction,
        inline: impl Fn(&Source, Vec<u8>) -> T,
        large: impl Fn(&Source, &[u8]) -> Result<Option<T>>,
    ) -> Result<Option<(Vec<u8>, T)>> {
        loop {
            let Some(place) = self.step(direction)? else { return Ok(None) };
            let (key, value) = self.at(place);
            let key = key.to_vec();
            if !value.large {
                return Ok(Some((key, inline(&self.source, value.bytes.to_vec()))));
            }
            if let Some(value) = self.find_large(&key, &large)? {
                return Ok(Some((key, value)));
            }
        }
    }

    /// Reads the large value of a key. The pointer of the chunk may be stale, because nothing has
    /// held the bytes since: the key is looked up again. If it has gone, the range never promised
    /// it, and another record takes its place within the limit.
    fn find_large<T>(
        &mut self,
        key: &[u8],
        large: impl Fn(&Source, &[u8]) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let found = large(&self.source, key);
        match &found {
            Ok(Some(_)) => {}
            Ok(None) => self.left = self.left.map(|left| left + 1),
            Err(error) => self.error = Some(error.clone()),
        }
        found
    }

    /// Gives one record as the engine delivers it.
    fn step(&mut self, direction: Direction) -> Result<Option<Place>> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if self.left == Some(0) {
            return Ok(None);
        }
        loop {
            let (near, far, other) = match direction {
                Direction::Forward => (&mut self.front, &mut self.back, Direction::Reverse),
                Direction::Reverse => (&mut self.back, &mut self.front, Direction::Forward),
            };
            let mut found = near.left.next().map(|index| (direction, index));
            if found.is_none() && self.exhausted {
                found = far.left.next_back().map(|index| (other, index));
                if found.is_none() {
                    return Ok(None);
                }
            }
            if found.is_some() {
                self.left = self.left.map(|left| left - 1);
                return Ok(found);
            }
            if let Err(error) = self.fetch(direction) {
                self.error = Some(error.clone());
                return Err(error);
            }
        }
    }
}

fn is_inside_lower(lower: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match lower {
        Bound::Included(lower) => key >= &lower[..],
        Bound::Excluded(lower) => key > &lower[..],
        Bound::Unbounded => true,
    }
}

fn is_inside_upper(upper: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match upper {
        Bound::Included(upper) => key <= &upper[..],
        Bound::Excluded(upper) => key < &upper[..],
        Bound::Unbounded => true,
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
        self.step_whole(self.ahead())
    }
}

impl DoubleEndedIterator for Cursor {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step_whole(self.behind())
    }
}

/// Iterator over keys and readers of their values, from the front, the back, or both.
#[derive(Debug)]
pub struct Readers(Cursor);

impl Iterator for Readers {
    type Item = Result<(Vec<u8>, ValueReader)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.step_reader(self.0.ahead())
    }
}

impl DoubleEndedIterator for Readers {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.step_reader(self.0.behind())
    }
}

/// Iterator over keys, from the front, the back, or both.
#[derive(Debug)]
pub struct Keys(Cursor);

impl Keys {
    /// The keys of a cursor from which nothing has been read yet.
    pub(crate) fn of(mut cursor: Cursor) -> Keys {
        cursor.keys_only = true;
        Keys(cursor)
    }

    /// Ends the range after `keys` keys. See [`Cursor::limit`].
    #[must_use]
    pub fn limit(self, keys: usize) -> Self {
        Keys(self.0.limit(keys))
    }

    /// Reverses the iterator. See [`Cursor::rev`].
    #[must_use]
    pub fn rev(self) -> Self {
        Keys(self.0.rev())
    }

    /// Moves to the first key at or after `key`. See [`Cursor::seek`].
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.0.seek(key);
    }
}

impl Iterator for Keys {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.step_key(self.0.ahead())
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.step_key(self.0.behind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a queue accounts for, when the one before it held a record of `bytes` bytes.
    fn taken_after(bytes: usize) -> usize {
        SPARE.set(None);
        let mut queue = Queue::default();
        queue.take_spare();
        queue.chunk.push(&[b"key"], ValueRef::inline(&vec![7; bytes]));
        queue.chunk.finished = true;
        drop(queue);
        let mut next = Queue::default();
        next.take_spare();
        assert!(next.chunk.is_empty() && !next.chunk.finished, "what was in it is gone");
        next.chunk.memory_bytes()
    }

    #[test]
    fn a_thread_keeps_the_memory_of_a_small_chunk() {
        assert!(taken_after(1000) >= 1000);
        assert_eq!(taken_after(SPARE_BYTES_MAX), 0);
    }
}
