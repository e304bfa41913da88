//! Records of columns: look-ups, updates and scans of some of them, over row, column and row+column
//! stores and over our own engine, all as serializable transactions.
//!
//! ```text
//!   record   key: 8 bytes, big endian | columns: 10 of 100 bytes, or another shape
//!   column   8 bytes that follow from key and column | the byte of its latest update, repeated
//! ```
//!
//! After YCSB as section 6 of *Index-Organized storage model* runs it, and after the wide table of its
//! section 2. Every value that is read is checked: that it is of its key and column, and that its
//! first and last byte are of one update.
//!
//! Read [`ColumnStore`], then [`heap`] and [`own`] (the stores), and [`run`] (the threads).

pub mod heap;
pub mod own;
pub mod run;

use std::ops::ControlFlow;

use spinney_base::{Error, ErrorKind, Result};
pub use spinney_heap::Columns;

use crate::permutation::{Permutation, mix64};

/// Columns of a record of YCSB.
pub const COLUMNS: usize = 10;

/// Bytes of a column of YCSB.
pub const WIDTH: usize = 100;

/// Bytes of a key.
pub const KEY_BYTES: usize = 8;

/// Bytes of a column that follow from its key.
const TAG_BYTES: usize = 8;

/// Widths of the columns of a table in bytes: 8 or more each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape(pub &'static [usize]);

impl Shape {
    /// The table of YCSB.
    pub const TEN: Shape = Shape(&[WIDTH; COLUMNS]);

    /// Returns the number of columns.
    #[must_use]
    pub const fn columns(self) -> usize {
        self.0.len()
    }

    /// Returns the set of all columns.
    #[must_use]
    pub const fn all(self) -> Columns {
        Columns::first(self.columns())
    }

    /// Returns the bytes of a record with its key.
    #[must_use]
    pub fn record_bytes(self) -> u64 {
        (KEY_BYTES + self.0.iter().sum::<usize>()) as u64
    }

    /// Appends a column of a record after an update with this byte.
    pub fn fill(self, record: u64, column: usize, byte: u8, out: &mut Vec<u8>) {
        out.extend_from_slice(&tag_of(record, column));
        out.resize(out.len() + self.0[column] - TAG_BYTES, byte);
    }

    /// Appends all columns of a record as they are loaded.
    pub fn fill_row(self, record: u64, out: &mut Vec<u8>) {
        (0..self.columns()).for_each(|column| self.fill(record, column, 0, out));
    }

    /// Checks columns of a record.
    ///
    /// # Errors
    /// `Corruption`.
    pub fn check(self, record: u64, columns: Columns, values: &[u8]) -> Result<()> {
        let mut left = values;
        let is_right = columns.iter().all(|column| {
            let Some((value, rest)) = left.split_at_checked(self.0[column]) else { return false };
            left = rest;
            let (tag, bytes) = value.split_at(TAG_BYTES);
            *tag == tag_of(record, column) && bytes.first() == bytes.last()
        });
        if is_right && left.is_empty() {
            return Ok(());
        }
        let message = format!("record {record} has columns that were never written");
        Err(Error::new(ErrorKind::Corruption, message))
    }
}

/// Returns the first bytes of a column of a record.
fn tag_of(record: u64, column: usize) -> [u8; TAG_BYTES] {
    mix64(record << 6 | column as u64).to_le_bytes()
}

/// The order in which records are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the order of their keys.
    Key,
    /// Shuffled.
    Random,
}

impl Order {
    /// The name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Order::Key => "key",
            Order::Random => "random",
        }
    }
}

/// The records to load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Number of records; their keys are the numbers below.
    pub records: u64,
    /// The order.
    pub order: Order,
    /// Seed of the shuffled order.
    pub seed: u64,
}

impl Load {
    /// Numbers of the records in the order in which they are loaded.
    pub fn numbers(self) -> impl Iterator<Item = u64> {
        let shuffled = Permutation::new(self.records, self.seed);
        (0..self.records).map(move |at| match self.order {
            Order::Key => at,
            Order::Random => shuffled.at(at),
        })
    }
}

/// Returns the key of a record.
#[must_use]
pub fn key_of(record: u64) -> [u8; KEY_BYTES] {
    record.to_be_bytes()
}

/// A store of one table.
pub trait ColumnStore: Send + Sync {
    /// Returns the columns of its table.
    fn shape(&self) -> Shape;

    /// Loads all records into the empty table.
    ///
    /// # Errors
    /// Whatever the store says, `Full` among it.
    fn load(&self, load: Load) -> Result<()>;

    /// A handle for one thread.
    ///
    /// # Errors
    /// Whatever the store says.
    fn session(&self) -> Result<Box<dyn ColumnSession + '_>>;

    /// Bytes of memory that the table takes, with its index.
    fn used_bytes(&self) -> u64;

    /// Closes the store.
    ///
    /// # Errors
    /// Whatever the store says.
    fn close(self: Box<Self>) -> Result<()>;
}

/// The body of a transaction; it may run again after a conflict.
pub type Body<'a> = dyn FnMut(&mut dyn ColumnAccess) -> Result<()> + 'a;

/// Receives records in key order: the key, and the columns that were asked for.
pub type Visitor<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// One thread.
pub trait ColumnSession: Send {
    /// Runs a transaction to its commit, again after conflicts. Returns how many times again.
    ///
    /// # Errors
    /// The body's, or whatever the store says.
    fn transact(&mut self, body: &mut Body<'_>) -> Result<u64>;
}

/// What the body of a transaction does.
pub trait ColumnAccess {
    /// Reads some columns of a record into `out`, which is cleared first. Returns whether there is
    /// one.
    ///
    /// # Errors
    /// Whatever the store says, a conflict among it.
    fn read(&mut self, key: &[u8], columns: Columns, out: &mut Vec<u8>) -> Result<bool>;

    /// Changes some columns of a record. Returns whether there is one.
    ///
    /// # Errors
    /// Whatever the store says, a conflict among it.
    fn update(&mut self, key: &[u8], columns: Columns, values: &[u8]) -> Result<bool>;

    /// Writes a record with all its columns, whether its key is there or not.
    ///
    /// # Errors
    /// Whatever the store says, a conflict among it.
    fn insert(&mut self, key: &[u8], row: &[u8]) -> Result<()>;

    /// Shows some columns of the records from a key on, this many at most.
    ///
    /// # Errors
    /// Whatever the store says, a conflict among it.
    fn scan(
        &mut self,
        from: &[u8],
        records: usize,
        columns: Columns,
        visit: &mut Visitor<'_>,
    ) -> Result<()>;
}
