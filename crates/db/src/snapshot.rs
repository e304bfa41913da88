//! Repeatable views of a keyspace, and the source of a cursor: a keyspace or such a view.

use std::ops::Bound;
use std::sync::Arc;

use spinney_base::{Error, ErrorKind, Result};
use spinney_engine::{Chunk, Direction, EngineSnapshot, Found, ScanRequest, SnapshotStats};
use spinney_sync::hash_key;

use crate::cursor::{Cursor, Keys};
use crate::keyspace::Keyspace;
use crate::keyspace_state::KeyspaceState;
use crate::moments::{Live, Part};
use crate::range::KeyRange;
use crate::reader::ValueReader;
use crate::value::Value;
use crate::write::{check_key, hashed};

/// A view of a keyspace at one moment between two batches. It is cheap to clone, and any number of
/// threads may read from it. Taking one copies nothing. The pages and records that it needs are
/// kept until its last clone, cursor and reader are dropped.
///
/// A snapshot keeps the database open as a [`Keyspace`] does, and answers `Closed` after
/// [`Db::close`](crate::Db::close).
#[derive(Clone, Debug)]
pub struct Snapshot {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Dropped before the snapshot of the database that it belongs to.
    part: Arc<Part>,
    _live: Arc<Live>,
    keyspace: Keyspace,
}

impl Inner {
    fn engine(&self) -> &dyn EngineSnapshot {
        &*self.part.engine
    }
}

impl Snapshot {
    /// The part of a database's snapshot in one keyspace.
    pub(crate) fn of(keyspace: &Keyspace, part: Arc<Part>, live: Arc<Live>) -> Snapshot {
        Snapshot { inner: Arc::new(Inner { keyspace: keyspace.clone(), part, _live: live }) }
    }

    /// The keyspace of the snapshot.
    pub(crate) fn keyspace(&self) -> &Keyspace {
        &self.inner.keyspace
    }

    /// The keyspace, which stays open.
    pub(crate) fn open(&self) -> &KeyspaceState {
        &self.inner.part.open
    }

    fn check_readable(&self) -> Result<()> {
        self.inner.keyspace.handle.state.life.check_open()?;
        self.inner.part.open.check_alive()
    }

    /// Appends the value of `key` at the snapshot's moment to `out`.
    fn read(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Found> {
        self.check_readable()?;
        check_key(key)?;
        self.inner.engine().get(key, hash_key(self.inner.part.open.id, key), out)
    }

    /// Returns the value of a key at the snapshot's moment.
    ///
    /// # Errors
    /// `SnapshotTooOld`, with the cause, when the snapshot had to end; else as [`Keyspace::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let mut value = Vec::new();
        Ok(self.read_into(key.as_ref(), &mut value)?.then(|| Value::from(value)))
    }

    /// Reads the value of a key into `out`, which is emptied first. Returns whether there was one.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn get_into(&self, key: impl AsRef<[u8]>, out: &mut Vec<u8>) -> Result<bool> {
        self.read_into(key.as_ref(), out)
    }

    fn read_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let found = self.read(key, out)?;
        if found == Found::Large {
            let pointer = std::mem::take(out);
            self.read_large(&pointer, out)?;
        }
        Ok(found != Found::Absent)
    }

    fn read_large(&self, pointer: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let keyspace = &self.inner.keyspace;
        keyspace.handle.state.read_whole(&self.inner.part.open, pointer, out)
    }

    /// Returns whether a key has a value.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.read(key.as_ref(), &mut Vec::new())? != Found::Absent)
    }

    /// Returns the values of many keys, in the order of the keys. Pages that are not cached are
    /// read together.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        self.get_all(&keys.iter().map(K::as_ref).collect::<Vec<_>>())
    }

    fn get_all(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>> {
        self.check_readable()?;
        let hashed = hashed(self.inner.part.open.id, keys)?;
        let whole = |value: spinney_engine::OwnedValue| {
            if !value.large {
                return Ok(Value::from(value.bytes));
            }
            let mut whole = Vec::new();
            self.read_large(&value.bytes, &mut whole)?;
            Ok(Value::from(whole))
        };
        let values = self.inner.engine().get_many(&hashed)?;
        values.into_iter().map(|value| value.map(whole).transpose()).collect()
    }

    /// Opens the value of a key for reading in pieces. See [`Keyspace::get_reader`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn get_reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        let mut value = Vec::new();
        Ok(match self.read(key.as_ref(), &mut value)? {
            Found::Absent => None,
            Found::Inline => Some(ValueReader::over(&Source::Then(self.clone()), value)),
            Found::Large => Some(ValueReader::kept(self, &value)?),
        })
    }

    /// Returns the records of a range, from either end, all of the snapshot's moment.
    pub fn range(&self, range: impl KeyRange) -> Cursor {
        Source::Then(self.clone()).range(&range)
    }

    /// Returns all records, from either end.
    #[must_use]
    pub fn iter(&self) -> Cursor {
        Source::Then(self.clone()).iter()
    }

    /// Returns the records whose keys begin with `prefix`, from either end.
    #[must_use]
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Cursor {
        Source::Then(self.clone()).prefix(prefix.as_ref())
    }

    /// Returns the keys of a range, from either end. Pages of values are not read.
    pub fn keys(&self, range: impl KeyRange) -> Keys {
        Keys::of(self.range(range))
    }

    /// Returns the record with the lowest key.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn first_key_value(&self) -> Result<Option<(Vec<u8>, Value)>> {
        self.iter().one(Direction::Forward)
    }

    /// Returns the record with the highest key.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn last_key_value(&self) -> Result<Option<(Vec<u8>, Value)>> {
        self.iter().one(Direction::Reverse)
    }

    /// Returns what the snapshot keeps from being reused, as of now.
    #[must_use]
    pub fn stats(&self) -> SnapshotStats {
        self.inner.engine().stats()
    }
}

/// Iterates over all records. See [`Snapshot::iter`].
impl IntoIterator for &Snapshot {
    type Item = Result<(Vec<u8>, Value)>;
    type IntoIter = Cursor;

    fn into_iter(self) -> Cursor {
        self.iter()
    }
}

/// A view of a keyspace that is neither its present nor a snapshot: what a transaction sees.
pub(crate) trait View: std::fmt::Debug + Send + Sync {
    fn keyspace(&self) -> &Keyspace;
    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()>;
    fn get(&self, key: &[u8]) -> Result<Option<Value>>;
}

/// What a cursor reads from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The keyspace, as it is at each read.
    Now(Keyspace),
    /// A snapshot of it.
    Then(Snapshot),
    Inside(Arc<dyn View>),
}

impl Source {
    pub(crate) fn keyspace(&self) -> &Keyspace {
        match self {
            Source::Now(keyspace) => keyspace,
            Source::Then(snapshot) => snapshot.keyspace(),
            Source::Inside(view) => view.keyspace(),
        }
    }

    pub(crate) fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        match self {
            Source::Now(keyspace) => {
                let entered = keyspace.enter()?;
                if entered.has_versions {
                    keyspace.handle.state.versions.note_scan();
                }
                entered.engine.scan(request, chunk)
            }
            Source::Then(snapshot) => {
                snapshot.check_readable()?;
                snapshot.inner.engine().scan(request, chunk)
            }
            Source::Inside(view) => view.scan(request, chunk),
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        match self {
            Source::Now(keyspace) => keyspace.get(key),
            Source::Then(snapshot) => self.there(snapshot.get(key)),
            Source::Inside(view) => view.get(key),
        }
    }

    pub(crate) fn get_reader(&self, key: &[u8]) -> Result<Option<ValueReader>> {
        match self {
            Source::Now(keyspace) => keyspace.get_reader(key),
            Source::Then(snapshot) => self.there(snapshot.get_reader(key)),
            // Cursors of transactions give no readers: what they keep would outlive the check.
            Source::Inside(view) => view.keyspace().get_reader(key),
        }
    }

    /// Checks that a key which a scan of a snapshot delivered is in the snapshot.
    fn there<T>(&self, found: Result<Option<T>>) -> Result<Option<T>> {
        match found {
            Ok(None) => {
                let text = format!(
                    "keyspace {:?}: a scan of a snapshot met a record that a lookup does not find",
                    self.keyspace().name()
                );
                Err(Error::new(ErrorKind::Corruption, text))
            }
            found => found,
        }
    }

    pub(crate) fn range(self, range: &impl KeyRange) -> Cursor {
        let own = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        Cursor::new(self, own(range.lower()), own(range.upper()))
    }

    pub(crate) fn iter(self) -> Cursor {
        Cursor::new(self, Bound::Unbounded, Bound::Unbounded)
    }

    pub(crate) fn prefix(self, prefix: &[u8]) -> Cursor {
        Cursor::new(self, Bound::Included(prefix.to_vec()), after_prefix(prefix))
    }
}

/// The end of the range of keys that begin with `prefix`.
fn after_prefix(prefix: &[u8]) -> Bound<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte != u8::MAX);
    match kept {
        Some(last) => {
            let mut upper = prefix[..=last].to_vec();
            upper[last] += 1;
            Bound::Excluded(upper)
        }
        None => Bound::Unbounded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_where_they_should() {
        assert_eq!(after_prefix(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xff\xff"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff"), Bound::Unbounded);
        assert_eq!(after_prefix(b""), Bound::Unbounded);
    }
}
