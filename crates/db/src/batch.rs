//! Atomic batches over any keyspaces of one database.

use crate::keyspace::Keyspace;
use crate::write::{Condition, Operation};

/// Writes that are applied together or not at all, over any keyspaces of one database. Readers of
/// single keys see all of them or none. The last operation on a key wins.
///
/// Holds at most [`BATCH_OPERATIONS_MAX`](spinney_base::limits::BATCH_OPERATIONS_MAX) operations
/// and [`BATCH_BYTES_MAX`](spinney_base::limits::BATCH_BYTES_MAX) bytes of keys and values, and no
/// more than an eighth of the memory budget. A large value counts with the bytes of its pointer,
/// and is written before the batch.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) operations: Vec<Operation>,
    pub(crate) conditions: Vec<Condition>,
}

impl Batch {
    /// Makes an empty batch.
    #[must_use]
    pub fn new() -> Self {
        Batch::default()
    }

    /// Adds a write that puts `value` at `key`.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// use spinney_db::{Batch, Db, KeyspaceOptions, Options};
    /// let db = Db::open(directory.path(), Options::default())?;
    /// let users = db.keyspace("users", KeyspaceOptions::default())?;
    /// let by_year = db.keyspace("by year", KeyspaceOptions::default())?;
    /// let mut batch = Batch::new();
    /// batch.insert(&users, "ada", "1815").insert(&by_year, "1815 ada", "").remove(&users, "eve");
    /// db.write(batch)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> &mut Self {
        self.add(keyspace, key.as_ref(), Some(value.as_ref()));
        self
    }

    /// Adds a removal of `key`. Removing an absent key is no error.
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> &mut Self {
        self.add(keyspace, key.as_ref(), None);
        self
    }

    /// Adds a condition: the batch is written only if `key` has this value, or none. All conditions
    /// are to hold at the moment of the batch, as it is before its writes. If one does not, nothing
    /// is written, and the error of kind `Conflict` names the first. A condition counts as an
    /// operation.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// use spinney_db::{Batch, Db, ErrorKind, KeyspaceOptions, Options};
    /// let db = Db::open(directory.path(), Options::default())?;
    /// let users = db.keyspace("users", KeyspaceOptions::default())?;
    /// let by_mail = db.keyspace("by mail", KeyspaceOptions::default())?;
    /// let mut sign_up = Batch::new();
    /// sign_up.expect(&users, "ada", None).expect(&by_mail, "ada@example.org", None);
    /// sign_up.insert(&users, "ada", "").insert(&by_mail, "ada@example.org", "ada");
    /// db.write(&sign_up)?;
    /// assert_eq!(db.write(&sign_up).unwrap_err().kind(), ErrorKind::Conflict);
    /// # Ok(())
    /// # }
    /// ```
    pub fn expect(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: Option<&[u8]>,
    ) -> &mut Self {
        let (place, key) = (keyspace.place.clone(), key.as_ref().to_vec());
        self.conditions.push(Condition { place, key, value: value.map(<[u8]>::to_vec) });
        self
    }

    /// Removes all operations and conditions. Their memory is kept for later ones.
    pub fn clear(&mut self) {
        self.conditions.clear();
        self.operations.clear();
    }

    fn add(&mut self, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>) {
        let (place, value) = (keyspace.place.clone(), value.map(<[u8]>::to_vec));
        self.operations.push(Operation { place, key: key.to_vec(), value });
    }

    /// Returns the number of operations, conditions among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len() + self.conditions.len()
    }

    /// Returns whether the batch has neither an operation nor a condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
