//! The handle of one keyspace: points, ranges, conditional writes.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use spinney_base::{Error, ErrorKind, KeyspaceId, Lsn, Result, ValueRef};
use spinney_engine::{Capabilities, Direction, EngineStats, Found};
use spinney_sync::hash_key;

use crate::cursor::{Cursor, Keys};
use crate::engines::EngineKind;
use crate::guards::NOBODY;
use crate::handle::Handle;
use crate::options::Durability;
use crate::patch::cut;
use crate::place::{Open, Place};
use crate::range::KeyRange;
use crate::reader::ValueReader;
use crate::snapshot::{Snapshot, Source};
use crate::value::Value;
use crate::write::{KeyspaceWrite, check_key, check_value, hashed};

/// A keyspace of an open database. Cheap to clone; any number of threads may use it.
///
/// Keys are byte strings of at most 1 KiB, ordered byte by byte; the empty key is a key.
#[derive(Clone, Debug)]
pub struct Keyspace {
    pub(crate) handle: Arc<Handle>,
    pub(crate) place: Arc<Place>,
}

/// Why [`Keyspace::compare_and_swap`] left a key as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompareAndSwapError {
    /// The value that the key has instead of the expected one.
    pub current: Option<Value>,
}

impl std::fmt::Display for CompareAndSwapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the key does not have the expected value")
    }
}

impl std::error::Error for CompareAndSwapError {}

/// For `compare_and_swap(..)??`, where nobody asks for the value that was there.
impl From<CompareAndSwapError> for Error {
    fn from(error: CompareAndSwapError) -> Error {
        Error::new(ErrorKind::Conflict, error.to_string())
    }
}

impl Keyspace {
    /// Name of the keyspace, as of now: [`Db::rename_keyspace`](crate::Db::rename_keyspace) changes it.
    #[must_use]
    pub fn name(&self) -> String {
        self.place.name.get()
    }

    /// Identifier of the keyspace, never used again.
    #[must_use]
    pub fn id(&self) -> KeyspaceId {
        self.place.id
    }

    /// The engine that keeps it.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.place.options.engine
    }

    /// What it can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.place.options.engine.row().capabilities
    }

    /// The value of a key.
    ///
    /// # Errors
    /// `Corruption` when the page that should hold it is damaged, `Io`, `InvalidArgument` for a key
    /// that is too long, `Closed`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let mut value = Vec::new();
        Ok(self.read_into(key.as_ref(), &mut value)?.then(|| Value::from(value)))
    }

    /// Reads the value of a key into `out`, which is emptied first; says whether there is one.
    /// Allocates nothing when `out` has room.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get_into(&self, key: impl AsRef<[u8]>, out: &mut Vec<u8>) -> Result<bool> {
        self.read_into(key.as_ref(), out)
    }

    /// Reads a part of the value of a key into `out`, which is emptied first; says whether there is a value. A column of
    /// a record is a part that lies at the same place in all values.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, EngineKind, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// let accounts = db.keyspace("accounts", EngineKind::Iot)?;
    /// accounts.insert("david", "100 EUR")?;
    /// let mut currency = Vec::new();
    /// assert!(accounts.get_part("david", 4..7, &mut currency)?);
    /// assert_eq!(currency, b"EUR");
    /// assert!(!accounts.get_part("rosa", 4..7, &mut currency)?, "she has no account");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when the part ends behind the value, or before it begins; as [`Keyspace::get`].
    pub fn get_part(
        &self,
        key: impl AsRef<[u8]>,
        part: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let is_there = self.read_into(key.as_ref(), out)?;
        if is_there {
            cut(out, &part)?;
        }
        Ok(is_there)
    }

    fn read_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let hash = hash_key(self.place.id, key);
        let state = &self.handle.state;
        let keyspace = state.enter(&self.place)?;
        match state.read(&keyspace, key, hash, out)?.0 {
            Found::Absent => Ok(false),
            Found::Inline => Ok(true),
            Found::Large => {
                out.clear();
                state.read_large(&keyspace, key, hash, out)
            }
        }
    }

    /// Whether a key has a value.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        let hash = hash_key(self.place.id, key);
        let keyspace = self.enter()?;
        let (found, _) = self.handle.state.read(&keyspace, key, hash, &mut Vec::new())?;
        Ok(found != Found::Absent)
    }

    /// Opens the value of a key for reading piece by piece: a large value is never whole in memory.
    /// The reader keeps the value that the key has now, even if it is overwritten meanwhile.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// # let keyspace = db.keyspace("k", KeyspaceOptions::default())?;
    /// use std::io::Read;
    /// keyspace.insert(b"picture", &[7; 1 << 20])?;
    /// let mut reader = keyspace.get_reader(b"picture")?.expect("it was put");
    /// assert_eq!(reader.len(), 1 << 20);
    /// let mut first = [0; 10];
    /// reader.read_exact(&mut first)?;
    /// assert_eq!(first, [7; 10]);
    /// std::io::copy(&mut reader, &mut std::io::sink())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`]; damage further on is found by the reader.
    pub fn get_reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        ValueReader::open(self, key.as_ref())
    }

    /// The values of many keys, in their order; cold ones are read together. Each is of one moment,
    /// all of them need not be.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        self.get_all(&keys.iter().map(K::as_ref).collect::<Vec<_>>())
    }

    fn get_all(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>> {
        let state = &self.handle.state;
        let keyspace = self.enter()?;
        let hashed = hashed(self.place.id, keys)?;
        let stamps: Vec<_> =
            hashed.iter().map(|(_, hash)| state.stripes.stripe(*hash).stamp()).collect();
        if keyspace.has_versions {
            hashed.iter().for_each(|(_, hash)| state.versions.note_read(*hash));
        }
        let values = keyspace.engine.get_many(&hashed)?;
        let mut answers = Vec::with_capacity(keys.len());
        for ((value, (key, hash)), stamp) in values.into_iter().zip(hashed).zip(stamps) {
            let large = value.as_ref().is_some_and(|value| value.large);
            answers.push(if !large && state.stripes.stripe(hash).validate(stamp) {
                value.map(|value| Value::from(value.bytes))
            } else {
                self.get(key)?
            });
        }
        Ok(answers)
    }

    /// Puts a value at a key, with the database's durability.
    ///
    /// # Errors
    /// `InvalidArgument` for a key or value past its limit, `Full` when disk or log have no room:
    /// nothing has changed, unless the message says that the write is kept in memory. That happens on
    /// file systems that copy on write, which may refuse a block of the log that was there: the write is
    /// seen, and becomes as safe as any other with the next that succeeds. `Poisoned` or `Io`: whether the write happened is unknown until the
    /// database is reopened. `Closed`.
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.insert_with(key, value, self.handle.state.options.durability)
    }

    /// Puts a value at a key, with a durability of its own.
    ///
    /// # Errors
    /// As [`Keyspace::insert`].
    pub fn insert_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        self.write(key.as_ref(), Some(ValueRef::inline(value.as_ref())), durability)
    }

    fn write(&self, key: &[u8], value: Option<ValueRef<'_>>, durability: Durability) -> Result<()> {
        let (keyspace, state) = (self.enter()?, &self.handle.state);
        let lsn = state.write_if(&[KeyspaceWrite::new(&keyspace, key, value)], NOBODY, |_| true)?;
        state.commit(lsn.unwrap_or(Lsn::ZERO), durability)
    }

    /// Puts a value of `length` bytes, read from `reader`, at a key, with the database's durability.
    /// A large value is never whole in memory. The reader is called while nothing is locked; what it
    /// holds beyond `length` bytes is left in it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// # let keyspace = db.keyspace("k", KeyspaceOptions::default())?;
    /// let file = directory.path().join("picture");
    /// std::fs::write(&file, [7; 100_000])?;
    /// keyspace.insert_from(b"picture", 100_000, std::fs::File::open(&file)?)?;
    /// assert_eq!(keyspace.get(b"picture")?.expect("it was put").len(), 100_000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::insert`]; `InvalidArgument` when the reader ends before `length` bytes, `Io`
    /// with its own error when it fails: nothing has changed then.
    pub fn insert_from(&self, key: impl AsRef<[u8]>, length: u64, reader: impl Read) -> Result<()> {
        self.insert_from_with(key, length, reader, self.handle.state.options.durability)
    }

    /// The same with a durability of its own. The bytes of a large value are on stable storage in
    /// any case; the durability is that of the record that points to them.
    ///
    /// # Errors
    /// As [`Keyspace::insert_from`].
    pub fn insert_from_with(
        &self,
        key: impl AsRef<[u8]>,
        length: u64,
        mut reader: impl Read,
        durability: Durability,
    ) -> Result<()> {
        let keyspace = self.enter()?;
        self.handle.state.insert_from(&keyspace, key.as_ref(), length, &mut reader, durability)
    }

    /// Removes a key, if it is there, with the database's durability.
    ///
    /// # Errors
    /// As [`Keyspace::insert`].
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.remove_with(key, self.handle.state.options.durability)
    }

    /// Removes a key, if it is there, with a durability of its own.
    ///
    /// # Errors
    /// As [`Keyspace::insert`].
    pub fn remove_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.write(key.as_ref(), None, durability)
    }

    /// Sets a key to `new` (or removes it) if its value is `expected` (or it has none).
    ///
    /// # Errors
    /// As [`Keyspace::insert`]. The inner error says that another value was there, and which.
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Result<(), CompareAndSwapError>> {
        self.compare_and_swap_with(key, expected, new, self.handle.state.options.durability)
    }

    /// Sets a key as [`Keyspace::compare_and_swap`] does, with a durability of its own.
    ///
    /// # Errors
    /// As [`Keyspace::compare_and_swap`].
    #[expect(clippy::missing_panics_doc, reason = "the closure always leaves an answer")]
    pub fn compare_and_swap_with(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        durability: Durability,
    ) -> Result<Result<(), CompareAndSwapError>> {
        let mut other = None;
        let keyspace = self.enter()?;
        let lsn = self.handle.state.change(&keyspace, key.as_ref(), |current| {
            if current == expected {
                return Some(new.map(<[u8]>::to_vec));
            }
            other = Some(current.map(|value| Value::from(value.to_vec())));
            None
        })?;
        match lsn {
            Some(lsn) => {
                self.handle.state.commit(lsn, durability)?;
                Ok(Ok(()))
            }
            None => Ok(Err(CompareAndSwapError { current: other.expect("a refusal was noted") })),
        }
    }

    /// Sets a key to what `f` makes of its value: `None` in means that it has none, `None` out
    /// removes it. `f` may run more than once and holds no lock. Returns the new value.
    ///
    /// # Errors
    /// As [`Keyspace::insert`].
    pub fn update(
        &self,
        key: impl AsRef<[u8]>,
        f: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Value>> {
        self.update_with(key, f, self.handle.state.options.durability)
    }

    /// Updates a key as [`Keyspace::update`] does, with a durability of its own.
    ///
    /// # Errors
    /// As [`Keyspace::insert`].
    pub fn update_with(
        &self,
        key: impl AsRef<[u8]>,
        mut f: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
        durability: Durability,
    ) -> Result<Option<Value>> {
        let mut made = None;
        let keyspace = self.enter()?;
        let lsn = self.handle.state.change(&keyspace, key.as_ref(), |current| {
            made = f(current);
            Some(made.clone())
        })?;
        self.handle.state.commit(lsn.unwrap_or(Lsn::ZERO), durability)?;
        Ok(made.map(Value::from))
    }

    /// Replaces the part of a key's value that begins at `offset`, with the database's durability. The length of the value
    /// stays. Returns false, and changes nothing, if the key has no value.
    ///
    /// In a keyspace with versions (engine `iot`) the log has as many bytes as the part, and a few more. Elsewhere, and
    /// for a large value, the whole value is written.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, EngineKind, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// let accounts = db.keyspace("accounts", EngineKind::Iot)?;
    /// accounts.insert("david", "100 EUR")?;
    /// assert!(accounts.patch("david", 0, "070")?);
    /// assert_eq!(accounts.get("david")?.unwrap(), "070 EUR");
    /// assert!(!accounts.patch("rosa", 0, "030")?, "she has no account");
    /// assert!(accounts.patch("david", 4, "DOLLARS").is_err(), "the length of a value stays");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when the part ends behind the value: nothing has changed. As [`Keyspace::insert`].
    pub fn patch(
        &self,
        key: impl AsRef<[u8]>,
        offset: usize,
        bytes: impl AsRef<[u8]>,
    ) -> Result<bool> {
        self.patch_with(key, offset, bytes, self.handle.state.options.durability)
    }

    /// Replaces a part of a value as [`Keyspace::patch`] does, with a durability of its own.
    ///
    /// # Errors
    /// As [`Keyspace::patch`].
    pub fn patch_with(
        &self,
        key: impl AsRef<[u8]>,
        offset: usize,
        bytes: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<bool> {
        let (keyspace, state) = (self.enter()?, &self.handle.state);
        let Some(lsn) = state.patch(&keyspace, key.as_ref(), offset, bytes.as_ref())? else {
            return Ok(false);
        };
        state.commit(lsn, durability)?;
        Ok(true)
    }

    /// Loads records in strictly ascending order of their keys into the keyspace, which must be
    /// empty: the fastest way in, past cache and log. They become visible and durable all at once
    /// when the last one was taken (and no backup runs); until then, and after an error or a crash, the keyspace is as
    /// it was. Writes to any keyspace wait while they become visible. Returns how many there were.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// let squares = db.keyspace("squares", KeyspaceOptions::default())?;
    /// let records = (0..1000u64).map(|n| (n.to_be_bytes(), (n * n).to_le_bytes()));
    /// assert_eq!(squares.bulk_load(records)?, 1000);
    /// assert_eq!(squares.get(&7u64.to_be_bytes())?.as_deref(), Some(&49u64.to_le_bytes()[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when keys do not ascend, a key or value is past its limit or the keyspace is
    /// not empty; `Full`, `Io`, `Poisoned` or `Closed`.
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        let state = &self.handle.state;
        state.life.check_writable()?;
        let keyspace = self.enter()?.pin();
        keyspace.check_alive()?;
        let mut count = 0;
        let mut bulk = keyspace.engine.bulk()?;
        for (key, value) in records {
            let (key, value) = (key.as_ref(), value.as_ref());
            check_key(key)?;
            check_value(value.len() as u64)?;
            let push = |value: ValueRef<'_>| bulk.push(key, value);
            state
                .push_to_bulk(&keyspace, key, value, push)
                .inspect_err(|error| state.note(error))?;
            count += 1;
        }
        // A backup replays what was written while it ran over pages of any moment, so what is loaded
        // past the log must not come between: one waits for the other.
        let _no_backup = state.exclude_backup()?;
        let _no_checkpoint = state.checkpoints.hold();
        let _no_writes = state.writers.door.write();
        state.life.check_writable()?;
        keyspace.check_thawed()?;
        self.place.count_load();
        let installed =
            state.moments.load(state.versions.certifier.clock(), |number| bulk.install(number));
        // A conditional write may have read before and wait at the door: no stripe was locked for what is there
        // now, so it would not look again (P4).
        state.stripes.change_all();
        self.place.count_load();
        installed.inspect_err(|error| state.note(error))?;
        Ok(count)
    }

    /// The records of a range, from either end. What is read is of some moment during the reading,
    /// key by key: a batch may be seen in part.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// # let keyspace = db.keyspace("k", KeyspaceOptions::default())?;
    /// keyspace.insert(b"a", b"1")?;
    /// keyspace.insert(b"b", b"2")?;
    /// let last = keyspace.range("a".."c").next_back();
    /// assert_eq!(last.unwrap()?.0, b"b");
    /// # Ok(())
    /// # }
    /// ```
    pub fn range(&self, range: impl KeyRange) -> Cursor {
        Source::Now(self.clone()).range(&range)
    }

    /// All records, from either end; see [`Keyspace::range`].
    #[must_use]
    pub fn iter(&self) -> Cursor {
        Source::Now(self.clone()).iter()
    }

    /// The records whose keys begin with `prefix`, from either end; see [`Keyspace::range`].
    #[must_use]
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Cursor {
        Source::Now(self.clone()).prefix(prefix.as_ref())
    }

    /// The keys of a range, from either end; see [`Keyspace::range`]. Values are not copied and, on `turtle`, their pages
    /// not read.
    pub fn keys(&self, range: impl KeyRange) -> Keys {
        Keys::of(self.range(range))
    }

    /// The record with the lowest key.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn first_key_value(&self) -> Result<Option<(Vec<u8>, Value)>> {
        self.iter().one(Direction::Forward)
    }

    /// The record with the highest key.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn last_key_value(&self) -> Result<Option<(Vec<u8>, Value)>> {
        self.iter().one(Direction::Reverse)
    }

    /// Takes a snapshot: a view of the keyspace as it is now, which later writes do not change. It
    /// holds batches whole or not at all, and everything acknowledged before. [`Db::snapshot`](crate::Db::snapshot) takes one
    /// of several keyspaces at one moment.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let db = spinney_db::Db::open(directory.path(), spinney_db::Options::default())?;
    /// use spinney_db::{EngineKind, KeyspaceOptions};
    /// let accounts = db.keyspace("accounts", KeyspaceOptions::default().engine(EngineKind::Turtle))?;
    /// accounts.insert(b"ada", b"100")?;
    /// accounts.insert(b"bob", b"50")?;
    /// let snapshot = accounts.snapshot()?;
    /// accounts.insert(b"ada", b"70")?;
    /// accounts.remove(b"bob")?;
    /// let mut sum = 0;
    /// for record in snapshot.iter() {
    ///     sum += String::from_utf8_lossy(&record?.1).parse::<u32>().unwrap();
    /// }
    /// assert_eq!(sum, 150);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Unsupported` when its engine takes none (see [`Keyspace::capabilities`]); `Closed`;
    /// `InvalidArgument` from inside of a batch, which only a job of a stepped runtime can be.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let open = self.enter()?.pin();
        let live = self.handle.state.take_snapshot(Some(vec![open]))?;
        Ok(Snapshot::of(self, live.part(&self.place)?, live))
    }

    /// Sets an option of the engine's own until the database is closed.
    pub(crate) fn set_own(&self, name: &str, value: &str) -> Result<()> {
        self.handle.state.keyspaces.set_own(&self.place, &[(name.to_owned(), value.to_owned())])
    }

    /// Numbers about the keyspace now. Those of a keyspace that is parked are what they were when it was
    /// parked, or what its file tells; counters begin at 0 when it is next opened.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.handle.state.keyspaces.stats_of(&self.place).0
    }

    /// Enters the keyspace for one operation, and opens it if it is parked.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Open<'_>> {
        self.handle.state.life.check_open()?;
        let keyspace = self.handle.state.enter(&self.place)?;
        keyspace.check_alive()?;
        Ok(keyspace)
    }
}

/// All records; see [`Keyspace::iter`].
impl IntoIterator for &Keyspace {
    type Item = Result<(Vec<u8>, Value)>;
    type IntoIter = Cursor;

    fn into_iter(self) -> Cursor {
        self.iter()
    }
}
