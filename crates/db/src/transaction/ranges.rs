//! Ranges in a transaction: chunks under guards, with its own writes laid over.

use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::Arc;

use spinney_base::shim::Mutex;
use spinney_base::{Result, ValueRef};
use spinney_engine::{Chunk, Direction, ScanRequest};

use super::{Inner, Transaction};
use crate::cursor::{Cursor, Keys};
use crate::guards::Touched;
use crate::keyspace::Keyspace;
use crate::snapshot::{Source, View};
use crate::value::Value;

/// What one cursor of a transaction reads.
#[derive(Debug)]
struct Seen {
    inner: Arc<Inner>,
    keyspace: Keyspace,
    /// The guards of what was read from the front and from the back.
    ends: Mutex<[Option<Touched>; 2]>,
}

/// Makes the source of a cursor.
pub(super) fn source(inner: &Arc<Inner>, keyspace: &Keyspace) -> Source {
    let (inner, keyspace) = (inner.clone(), keyspace.clone());
    Source::Inside(Arc::new(Seen { inner, keyspace, ends: Mutex::default() }))
}

impl Seen {
    /// Passes a result on. An error ends the transaction: its cursor gives it as an item, which `count()` and
    /// the like do not look at.
    fn or_end<T>(&self, read: Result<T>) -> Result<T> {
        read.inspect_err(|error| self.inner.reads.lock().end(error))
    }

    /// Reads a chunk, with the transaction's own writes.
    fn read_chunk(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        self.inner.check(&self.keyspace)?;
        let mut reads = self.inner.reads.lock();
        let mut ends = self.ends.lock();
        let before = match request.direction {
            Direction::Forward => &mut ends[0],
            Direction::Reverse => &mut ends[1],
        };
        let (state, place) = (&self.inner.handle.state, &self.keyspace.place);
        reads.scan(state, place, request, before, chunk)?;
        let writes = self.inner.writes.lock();
        let (lower, upper) = match (request.direction, &chunk.resume) {
            (Direction::Forward, Some(resume)) => (request.lower, until(resume)),
            (Direction::Reverse, Some(resume)) => (until(resume), request.upper),
            (_, None) => (request.lower, request.upper),
        };
        let mut own: Vec<Own<'_>> = writes.range(place.id, lower, upper).collect();
        if own.is_empty() {
            return Ok(());
        }
        if request.direction == Direction::Reverse {
            own.reverse();
        }
        *chunk = laid_over(chunk, &own, request);
        Ok(())
    }
}

impl View for Seen {
    fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        self.or_end(self.read_chunk(request, chunk))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        let mut value = Vec::new();
        let is_there = self.or_end(self.inner.read(&self.keyspace, key, &mut value))?;
        Ok(is_there.then(|| Value::from(value)))
    }
}

/// The bound of what lies before a place where a chunk resumes.
fn until(resume: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match resume {
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// A chunk with own writes of the same range in the same direction. It holds no more records than
/// the request allows, and resumes behind the last.
fn laid_over(chunk: &Chunk, own: &[Own<'_>], request: &ScanRequest<'_>) -> Chunk {
    let is_before = |one: &[u8], other: &[u8]| match request.direction {
        Direction::Forward => one < other,
        Direction::Reverse => one > other,
    };
    let mut all = Chunk::default();
    let push_own = |all: &mut Chunk, (key, value): &Own<'_>| {
        if let Some(value) = value {
            all.push(&[key], request.delivered(ValueRef::inline(value)));
        }
    };
    let mut own = own.iter().peekable();
    for (key, value) in (0..chunk.len()).map(|index| chunk.get(index)) {
        while let Some(one) = own.next_if(|(it, _)| is_before(it, key)) {
            push_own(&mut all, one);
        }
        match own.next_if(|(it, _)| *it == key) {
            Some(one) => push_own(&mut all, one),
            None => all.push(&[key], value),
        }
    }
    own.for_each(|one| push_own(&mut all, one));
    (all.finished, all.resume) = (chunk.finished, chunk.resume.clone());
    all.truncate(request.records_max);
    all
}

/// A key that the transaction wrote, and its value or its removal.
type Own<'a> = (&'a [u8], Option<&'a [u8]>);

/// Iterator over records of a range in a transaction, from the front, the back, or both. The
/// transaction cannot be written to while it lives. See [`Transaction::range`].
#[derive(Debug)]
pub struct TransactionCursor<'a> {
    cursor: Cursor,
    transaction: PhantomData<&'a Transaction>,
}

impl TransactionCursor<'_> {
    pub(super) fn new(cursor: Cursor) -> Self {
        TransactionCursor { cursor, transaction: PhantomData }
    }

    /// Ends the range after `records` records. See [`Cursor::limit`].
    #[must_use]
    pub fn limit(self, records: usize) -> Self {
        Self::new(self.cursor.limit(records))
    }

    /// Reverses the cursor: the last record comes first. See [`Cursor::rev`].
    #[must_use]
    pub fn rev(self) -> Self {
        Self::new(self.cursor.rev())
    }

    /// Moves to the first record at or after `key`. See [`Cursor::seek`].
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.cursor.seek(key);
    }

    /// Returns the next record, lent until the next call on the cursor. See [`Cursor::next_ref`].
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.cursor.next_ref()
    }
}

impl Iterator for TransactionCursor<'_> {
    type Item = Result<(Vec<u8>, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.cursor.next()
    }
}

impl DoubleEndedIterator for TransactionCursor<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.cursor.next_back()
    }
}

/// Iterator over keys of a range in a transaction. See [`Transaction::keys`].
#[derive(Debug)]
pub struct TransactionKeys<'a> {
    keys: Keys,
    transaction: PhantomData<&'a Transaction>,
}

impl TransactionKeys<'_> {
    pub(super) fn new(cursor: Cursor) -> Self {
        TransactionKeys { keys: Keys::of(cursor), transaction: PhantomData }
    }

    /// Ends the range after `keys` keys. See [`Cursor::limit`].
    #[must_use]
    pub fn limit(self, keys: usize) -> Self {
        TransactionKeys { keys: self.keys.limit(keys), ..self }
    }

    /// Reverses the iterator. See [`Cursor::rev`].
    #[must_use]
    pub fn rev(self) -> Self {
        TransactionKeys { keys: self.keys.rev(), ..self }
    }
}

impl Iterator for TransactionKeys<'_> {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.keys.next()
    }
}

impl DoubleEndedIterator for TransactionKeys<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.keys.next_back()
    }
}
