//! Lists by key, and transactions over them: what the workload needs of a store.

use spinney::{Db, Keyspace, Transaction};
use spinney_base::{Error, ErrorKind, Result};

/// A store of lists with transactions. Threads share it.
pub trait Lists: Sync {
    /// Transactions of this store.
    type Transaction<'a>: ListTransaction
    where
        Self: 'a;

    /// Begins a transaction.
    ///
    /// # Errors
    /// The store's; nothing was written.
    fn begin(&self) -> Result<Self::Transaction<'_>>;
}

/// A transaction over lists. Dropping it gives its writes up.
pub trait ListTransaction {
    /// Reads the list of a key, with the transaction's own writes; `None` when the key is absent.
    ///
    /// # Errors
    /// The store's; nothing was written.
    fn read(&mut self, key: u64) -> Result<Option<Vec<u64>>>;

    /// Replaces the list of a key when the transaction commits.
    ///
    /// # Errors
    /// The store's; nothing was written.
    fn write(&mut self, key: u64, list: &[u64]) -> Result<()>;

    /// Commits.
    ///
    /// # Errors
    /// `Conflict`, `Full`, `InvalidArgument` or `ReadOnly` when nothing was written; any other
    /// when that is unknown.
    fn commit(self) -> Result<()>;
}

/// Lists in keyspaces of one database: a key lies in the keyspace that its number chooses.
#[derive(Debug)]
pub struct InKeyspaces {
    /// The database.
    pub db: Db,
    /// Its keyspaces, at least one.
    pub keyspaces: Vec<Keyspace>,
}

impl InKeyspaces {
    /// Returns the keyspace of a key.
    #[must_use]
    pub fn keyspace(&self, key: u64) -> &Keyspace {
        // The remainder is an index, so it fits.
        let place = key % self.keyspaces.len() as u64;
        &self.keyspaces[usize::try_from(place).unwrap_or_default()]
    }
}

/// Returns the bytes under which a key is stored.
#[must_use]
pub fn name(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

/// Returns the bytes of a list.
#[must_use]
pub fn encode(list: &[u64]) -> Vec<u8> {
    list.iter().flat_map(|value| value.to_be_bytes()).collect()
}

/// Parses the bytes of a list.
///
/// # Errors
/// `Corruption` when they are not those of a list.
pub fn decode(bytes: &[u8]) -> Result<Vec<u64>> {
    let (values, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        let length = bytes.len();
        return Err(Error::new(
            ErrorKind::Corruption,
            format!("a list has {length} bytes, which is no multiple of 8"),
        ));
    }
    Ok(values.iter().map(|value| u64::from_be_bytes(*value)).collect())
}

/// A [`Transaction`] over lists.
#[derive(Debug)]
pub struct InTransaction<'a> {
    lists: &'a InKeyspaces,
    transaction: Transaction,
}

impl Lists for InKeyspaces {
    type Transaction<'a> = InTransaction<'a>;

    fn begin(&self) -> Result<InTransaction<'_>> {
        Ok(InTransaction { lists: self, transaction: self.db.begin()? })
    }
}

impl ListTransaction for InTransaction<'_> {
    fn read(&mut self, key: u64) -> Result<Option<Vec<u64>>> {
        let value = self.transaction.get(self.lists.keyspace(key), name(key))?;
        value.map(|bytes| decode(&bytes)).transpose()
    }

    fn write(&mut self, key: u64, list: &[u64]) -> Result<()> {
        self.transaction.insert(self.lists.keyspace(key), name(key), encode(list))
    }

    fn commit(self) -> Result<()> {
        self.transaction.commit()
    }
}
