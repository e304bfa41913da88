//! Transactions over any keyspaces of one database, strictly serializable.
//!
//! A transaction notes what it reads and keeps what it writes to itself. At its commit it locks the
//! stripes of what it writes, checks that everything it noted is still so, and writes one batch. No
//! lock, pin or epoch is held between two calls, so a transaction that is left open holds nobody up.
//!
//! ```text
//!  begin       take a moment L
//!  get         own writes, else the engine: note (stripe, stamp, digest of the value, key)
//!              a stamp after L: extend = read again what changed, compare, and move L
//!  range       guard it -> wait for announced writers -> read -> narrow the guard to what was read
//!  commit      stripes of the writes -> announce -> touch others' guards -> fence -> check every note
//!              and guard -> append -> apply -> unlock
//! ```
//!
//! **Invariants** (rules T1 to T8 of `docs/rules.md`)
//! 1. What a body has read is of one moment, even if the run does not commit (T8).
//! 2. Notes are checked while the stripes of all writes are locked (T1), and a stripe that another
//!    writer holds is not as it was (T2).
//! 3. A conflict is sticky: every later call and the commit answer it.
//!
//! Values decide, stamps only tell where to look: a neighbour in the stripe costs a second read,
//! not an abort.
//!
//! Keyspaces with versions are read at a begin stamp instead, and nothing is compared: a certifier
//! decides at the commit ([`versions`](crate::versions), rules T9 to T13).

mod conditions;
mod ranges;
mod reads;
mod transact;
mod writes;

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use spinney_base::shim::Mutex;
use spinney_base::{Error, ErrorKind, Lsn, Result};
use spinney_engine::Direction;

use crate::database::Db;
use crate::handle::Handle;
use crate::keyspace::Keyspace;
use crate::options::{Durability, Isolation};
use crate::patch::{cut, part_at};
use crate::range::KeyRange;
use crate::snapshot::Source;
use crate::transaction_stats::Cause;
use crate::value::Value;
use crate::write::{check_key, check_value};
pub use ranges::{TransactionCursor, TransactionKeys};
use reads::Reads;
pub use transact::TransactionOptions;
pub use writes::Savepoint;
use writes::Writes;

/// A transaction: reads and writes over any keyspaces of one database that happen at one moment, or
/// not at all. See [`Db::transact`] and [`Db::begin`].
///
/// It sees its own writes; nobody else does before its commit. Dropping it rolls it back. It may be
/// left open for as long as you like: it holds no lock, and conflicts with whatever is written to
/// what it has read.
///
/// An error of kind [`Conflict`](crate::ErrorKind::Conflict) means that nothing was written and that
/// the transaction is to be run again; every later call answers the same. Limits are those of a
/// [`Batch`](crate::Batch).
#[derive(Debug)]
#[must_use = "it is rolled back when it is dropped"]
pub struct Transaction {
    inner: Arc<Inner>,
    durability: Durability,
    /// Two threads that read at once would extend against each other.
    not_sync: PhantomData<Cell<()>>,
}

/// What a transaction shares with its cursors.
#[derive(Debug)]
struct Inner {
    handle: Arc<Handle>,
    isolation: Isolation,
    reads: Mutex<Reads>,
    /// Locked after `reads`.
    writes: Mutex<Writes>,
}

impl Db {
    /// Begins a transaction with the database's durability. [`Db::transact`] is the way to run one
    /// again after a conflict.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// let stock = db.keyspace("stock", KeyspaceOptions::default())?;
    /// stock.insert("apples", "3")?;
    /// let mut transaction = db.begin()?;
    /// assert_eq!(transaction.get(&stock, "apples")?.unwrap(), "3");
    /// transaction.insert(&stock, "apples", "2")?;
    /// assert_eq!(stock.get("apples")?.unwrap(), "3", "nobody else sees it yet");
    /// transaction.commit()?;
    /// assert_eq!(stock.get("apples")?.unwrap(), "2");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Closed`.
    pub fn begin(&self) -> Result<Transaction> {
        self.begin_with(TransactionOptions::default())
    }

    /// Begins a transaction with options.
    ///
    /// # Errors
    /// `Closed`.
    pub fn begin_with(&self, options: TransactionOptions) -> Result<Transaction> {
        let state = &self.handle.state;
        state.life.check_open()?;
        state.writers.transactions.count_begin();
        let inner = Inner {
            handle: self.handle.clone(),
            reads: Mutex::new(Reads::new(state, options.isolation)),
            isolation: options.isolation,
            writes: Mutex::default(),
        };
        Ok(Transaction {
            inner: Arc::new(inner),
            durability: options.durability.unwrap_or(state.options.durability),
            not_sync: PhantomData,
        })
    }
}

impl Transaction {
    /// The value of a key, with the transaction's own writes.
    ///
    /// # Errors
    /// `Conflict`, or as [`Keyspace::get`]; `InvalidArgument` for a keyspace of another database.
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let mut value = Vec::new();
        Ok(self.inner.read(keyspace, key.as_ref(), &mut value)?.then(|| Value::from(value)))
    }

    /// Reads the value of a key into `out`, which is emptied first; says whether there is one.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn get_into(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        self.inner.read(keyspace, key.as_ref(), out)
    }

    /// Reads a part of the value of a key into `out`, as [`Keyspace::get_part`] does. What conflicts is a change of the
    /// value, also of another part.
    ///
    /// # Errors
    /// `InvalidArgument` when the part ends behind the value, or before it begins; as [`Transaction::get`].
    pub fn get_part(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        part: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let is_there = self.inner.read(keyspace, key.as_ref(), out)?;
        if is_there {
            cut(out, &part)?;
        }
        Ok(is_there)
    }

    /// Whether a key has a value.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.inner.read(keyspace, key.as_ref(), &mut Vec::new())
    }

    /// The values of many keys, in their order. They are read side by side where the engine can.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        self.inner.read_all(keyspace, &keys.iter().map(K::as_ref).collect::<Vec<_>>())
    }

    /// The records of a range, from either end, with the transaction's own writes.
    ///
    /// All are of the moment that the transaction sees. A write of another into what was read so far
    /// is a conflict; one into the part that was not is none.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// let tasks = db.keyspace("tasks", KeyspaceOptions::default())?;
    /// tasks.insert("1", "sow")?;
    /// let mut transaction = db.begin()?;
    /// transaction.insert(&tasks, "2", "reap")?;
    /// let all = transaction.range(&tasks, ..).collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(all.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> TransactionCursor<'_> {
        TransactionCursor::new(self.source(keyspace).range(&range))
    }

    /// The records whose keys begin with `prefix`; see [`Transaction::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> TransactionCursor<'_> {
        TransactionCursor::new(self.source(keyspace).prefix(prefix.as_ref()))
    }

    /// The keys of a range; see [`Transaction::range`].
    pub fn keys(&self, keyspace: &Keyspace, range: impl KeyRange) -> TransactionKeys<'_> {
        TransactionKeys::new(self.source(keyspace).range(&range))
    }

    /// The record with the lowest key.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn first_key_value(&self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
        self.source(keyspace).iter().one(Direction::Forward)
    }

    /// The record with the highest key.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn last_key_value(&self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
        self.source(keyspace).iter().one(Direction::Reverse)
    }

    fn source(&self, keyspace: &Keyspace) -> Source {
        ranges::source(&self.inner, keyspace)
    }

    /// Puts a value at a key when the transaction commits.
    ///
    /// # Errors
    /// `InvalidArgument` for a key or value past its limit or a keyspace of another database,
    /// `Conflict`.
    pub fn insert(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.put(keyspace, key.as_ref(), Some(value.as_ref().to_vec()))
    }

    /// Puts a value at a key that has none, and says whether it did: `false` means that the key has
    /// a value, which stays.
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::insert`].
    pub fn insert_new(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        check_value(value.len() as u64)?;
        let is_new = !self.contains_key(keyspace, key)?;
        if is_new {
            self.insert(keyspace, key, value)?;
        }
        Ok(is_new)
    }

    /// Removes a key, if it is there, when the transaction commits. It is not read.
    ///
    /// # Errors
    /// As [`Transaction::insert`].
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.put(keyspace, key.as_ref(), None)
    }

    /// Sets a key to what `f` makes of its value: `None` in means that it has none, `None` out
    /// removes it. Returns the new value.
    ///
    /// # Errors
    /// As [`Transaction::get`] and [`Transaction::insert`].
    pub fn update(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        f: impl FnOnce(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Value>> {
        let mut value = Vec::new();
        let is_there = self.inner.read(keyspace, key.as_ref(), &mut value)?;
        let new = f(is_there.then_some(&value[..]));
        self.put(keyspace, key.as_ref(), new.clone())?;
        Ok(new.map(Value::from))
    }

    /// Replaces the part of a key's value that begins at `offset` when the transaction commits. The length of the value
    /// stays. Returns false, and changes nothing, if the key has no value. It reads the value, so a change of that is a
    /// conflict, also of another part.
    ///
    /// In a keyspace with versions (engine `iot`) what is logged and kept for older readers is as small as the parts.
    /// Elsewhere, and for a large value, it is the whole value.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, EngineKind, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// let accounts = db.keyspace("accounts", EngineKind::Iot)?;
    /// accounts.insert("david", "100 EUR")?;
    /// db.transact(|transaction| {
    ///     let mut balance = Vec::new();
    ///     transaction.get_part(&accounts, "david", 0..3, &mut balance)?;
    ///     assert_eq!(balance, b"100");
    ///     transaction.patch(&accounts, "david", 0, "070")?;
    ///     transaction.get_part(&accounts, "david", 0..3, &mut balance)?;
    ///     assert_eq!(balance, b"070", "it sees its own writes");
    ///     Ok::<_, spinney_db::Error>(())
    /// })?;
    /// assert_eq!(accounts.get("david")?.unwrap(), "070 EUR");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when the part ends behind the value: nothing has changed. As [`Transaction::get`] and
    /// [`Transaction::insert`].
    pub fn patch(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        offset: usize,
        bytes: impl AsRef<[u8]>,
    ) -> Result<bool> {
        let (key, bytes) = (key.as_ref(), bytes.as_ref());
        let mut value = Vec::new();
        if !self.inner.read(keyspace, key, &mut value)? {
            return Ok(false);
        }
        let part = part_at(offset, bytes.len(), value.len())?;
        if part.is_empty() {
            return Ok(true);
        }
        value[part.clone()].copy_from_slice(bytes);
        let place = &keyspace.place;
        let is_kept_whole = !reads::has_versions(place) || {
            let open = self.inner.handle.state.enter(place)?;
            open.engine.values().is_large(key.len(), value.len() as u64)
        };
        let mut writes = self.inner.writes.lock();
        match is_kept_whole {
            true => writes.put(place, key, Some(value))?,
            false => writes.patch(place, key, value, part)?,
        }
        Ok(true)
    }

    fn put(&mut self, keyspace: &Keyspace, key: &[u8], value: Option<Vec<u8>>) -> Result<()> {
        self.inner.check(keyspace)?;
        check_key(key)?;
        check_value(value.as_ref().map_or(0, Vec::len) as u64)?;
        self.inner.writes.lock().put(&keyspace.place, key, value)
    }

    /// Marks the writes so far, for [`Transaction::rollback_to`].
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// # let keyspace = db.keyspace("k", KeyspaceOptions::default())?;
    /// let mut transaction = db.begin()?;
    /// transaction.insert(&keyspace, "a", "1")?;
    /// let savepoint = transaction.savepoint();
    /// transaction.insert(&keyspace, "a", "2")?;
    /// transaction.rollback_to(&savepoint)?;
    /// transaction.commit()?;
    /// assert_eq!(keyspace.get("a")?.unwrap(), "1");
    /// # Ok(())
    /// # }
    /// ```
    pub fn savepoint(&mut self) -> Savepoint {
        self.inner.writes.lock().savepoint()
    }

    /// Takes back the writes since a savepoint. What was read stays read: a change of it is still a
    /// conflict. The savepoint may be used again; later ones are gone.
    ///
    /// # Errors
    /// `InvalidArgument` for a savepoint of another transaction, or one that is gone.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        self.inner.writes.lock().rollback_to(savepoint)
    }

    /// Makes the writes happen, all at one moment at which everything that was read was so, with the
    /// durability that it began with.
    ///
    /// # Errors
    /// `Conflict`, and nothing was written; `Full` and others as [`Keyspace::insert`]; `Poisoned` or
    /// `Io` when whether it happened is unknown until the database is reopened.
    pub fn commit(mut self) -> Result<()> {
        self.try_commit().map(|_| ())
    }

    /// Commits with a durability of its own. With `Sync` and without writes it waits until
    /// everything that it read is durable.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_with(mut self, durability: Durability) -> Result<()> {
        self.durability = durability;
        if self.inner.writes.lock().is_empty() && durability == Durability::Sync {
            self.inner.reads.lock().check()?;
            let state = &self.inner.handle.state;
            state.commit(state.log.last_lsn(), durability)?;
        }
        self.try_commit().map(|_| ())
    }

    /// Gives the writes up. Dropping the transaction does the same.
    pub fn rollback(self) {}

    /// Commits. Returns the LSN, 0 if nothing was logged.
    pub(crate) fn try_commit(&mut self) -> Result<Lsn> {
        let state = &self.inner.handle.state;
        let (mut reads, writes) = (self.inner.reads.lock(), self.inner.writes.lock());
        reads.check()?;
        let lsn = if writes.is_empty() {
            // What was read is of one moment already.
            reads.end_reading(state)?;
            Lsn::ZERO
        } else {
            reads.write(state, &writes.all())?
        };
        state.writers.transactions.count_commit();
        state.commit(lsn, self.durability).map(|()| lsn)
    }

    /// Whether it met a conflict.
    fn is_in_conflict(&mut self) -> bool {
        self.inner.reads.lock().is_in_conflict()
    }
}

impl Inner {
    /// Reads a key; see [`Transaction::get_into`].
    fn read(&self, keyspace: &Keyspace, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        self.check(keyspace)?;
        check_key(key)?;
        let mut reads = self.reads.lock();
        if let Some(own) = self.writes.lock().get(keyspace.place.id, key) {
            out.extend_from_slice(own.unwrap_or_default());
            return Ok(own.is_some());
        }
        reads.get(&self.handle.state, &keyspace.place, key, out)
    }

    /// Reads many keys; see [`Transaction::multi_get`].
    fn read_all(&self, keyspace: &Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Value>>> {
        self.check(keyspace)?;
        keys.iter().try_for_each(|key| check_key(key))?;
        let mut reads = self.reads.lock();
        let mut values = vec![None; keys.len()];
        let mut others = Vec::new();
        {
            let writes = self.writes.lock();
            for (place, key) in keys.iter().enumerate() {
                match writes.get(keyspace.place.id, key) {
                    Some(own) => values[place] = own.map(|own| Value::from(own.to_vec())),
                    None => others.push(place),
                }
            }
        }
        let rest: Vec<&[u8]> = others.iter().map(|place| keys[*place]).collect();
        reads.get_many(&self.handle.state, &keyspace.place, &rest, &mut |place, value| {
            values[others[place]] = Some(Value::from(value));
        })?;
        Ok(values)
    }

    /// Passes while there is no conflict and the keyspace is of this database.
    fn check(&self, keyspace: &Keyspace) -> Result<()> {
        self.handle.state.life.check_open()?;
        self.reads.lock().check()?;
        let name = || keyspace.place.name.get();
        if self.isolation == Isolation::Snapshot && !reads::has_versions(&keyspace.place) {
            return Err(Error::invalid(format!(
                "keyspace {:?} has no versions, which snapshot isolation reads: use engine iot",
                name()
            )));
        }
        if keyspace.place.owner == self.handle.state.life.owner {
            return Ok(());
        }
        let name = name();
        Err(Error::invalid(format!(
            "keyspace {name:?} of the transaction belongs to another database"
        )))
    }
}

/// The error of a conflict.
fn conflict(cause: Cause) -> Error {
    Error::new(
        ErrorKind::Conflict,
        match cause {
            Cause::Changed => "what the transaction has read was changed meanwhile: run it again",
            Cause::Busy => {
                "what the transaction has read is changed all the time (values may be equal): run it again"
            }
            Cause::Loaded => {
                "a keyspace that the transaction has read was loaded meanwhile: run it again"
            }
        },
    )
}
