//! Our own engine `iot`: a record is a value, and its columns are ranges of bytes.
//!
//! A look-up reads the part of the value that holds its columns, and an update replaces the parts
//! that it changes.

use std::ops::{ControlFlow, Range};
use std::path::Path;

use spinney::{Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options, Transaction};
use spinney_base::{Error, ErrorKind, Result};

use super::{
    Body, ColumnAccess, ColumnSession, ColumnStore, Columns, Load, Order, Shape, Visitor, key_of,
};

/// Times that `transact` is called again after it has answered a conflict, which it does after 64
/// runs. More would hide that a workload gets nowhere.
const ROUNDS_MAX: u64 = 1000;

struct OwnStore {
    db: Db,
    table: Keyspace,
    shape: Shape,
}

/// Opens a database in an existing directory.
///
/// # Errors
/// Those of the database.
pub fn open(shape: Shape, memory: u64, directory: &Path) -> Result<Box<dyn ColumnStore>> {
    let options = Options::default().memory(memory).durability(Durability::Buffered);
    let db = Db::open(directory, options)?;
    let table = db.keyspace("usertable", KeyspaceOptions::default().engine(EngineKind::Iot))?;
    Ok(Box::new(OwnStore { db, table, shape }))
}

impl ColumnStore for OwnStore {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn load(&self, load: Load) -> Result<()> {
        let record = |number| {
            let mut row = Vec::new();
            self.shape.fill_row(number, &mut row);
            (key_of(number), row)
        };
        let mut records = load.numbers().map(record);
        if load.order == Order::Key {
            self.table.bulk_load(records)?;
            return Ok(());
        }
        records.try_for_each(|(key, row)| self.table.insert(key, row))
    }

    fn session(&self) -> Result<Box<dyn ColumnSession + '_>> {
        Ok(Box::new(OwnSession { store: self, value: Vec::new() }))
    }

    fn used_bytes(&self) -> u64 {
        self.db.stats().memory_used
    }

    fn close(self: Box<Self>) -> Result<()> {
        let OwnStore { db, table, .. } = *self;
        drop(table);
        db.close()
    }
}

struct OwnSession<'a> {
    store: &'a OwnStore,
    value: Vec<u8>,
}

impl ColumnSession for OwnSession<'_> {
    fn transact(&mut self, body: &mut Body<'_>) -> Result<u64> {
        let OwnSession { store: OwnStore { db, table, shape }, value } = self;
        let (mut runs, mut rounds) = (0, 0);
        loop {
            let ended = db.transact(|transaction| {
                runs += 1;
                body(&mut Inside { transaction, table, shape: *shape, value })
            });
            rounds += 1;
            match ended {
                Ok(()) => return Ok(runs - 1),
                Err(error) if is_conflict(&error) && rounds < ROUNDS_MAX => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_conflict(error: &Error) -> bool {
    error.kind() == ErrorKind::Conflict
}

struct Inside<'a> {
    transaction: &'a mut Transaction,
    table: &'a Keyspace,
    shape: Shape,
    value: &'a mut Vec<u8>,
}

/// Returns the runs of columns side by side, as ranges of bytes of the value.
fn runs(shape: Shape, columns: Columns) -> impl Iterator<Item = Range<usize>> {
    let (mut left, mut at) = (0..shape.columns(), 0);
    std::iter::from_fn(move || {
        let mut run: Option<Range<usize>> = None;
        for column in left.by_ref() {
            let begin = at;
            at += shape.0[column];
            match (&mut run, columns.has(column)) {
                (Some(run), true) => run.end = at,
                (Some(_), false) => break,
                (None, true) => run = Some(begin..at),
                (None, false) => {}
            }
        }
        run
    })
}

/// Appends some columns of a value, of which `value` is the part from `first` on.
fn take(shape: Shape, (value, first): (&[u8], usize), columns: Columns, out: &mut Vec<u8>) {
    for run in runs(shape, columns) {
        out.extend_from_slice(&value[run.start - first..run.end - first]);
    }
}

impl ColumnAccess for Inside<'_> {
    fn read(&mut self, key: &[u8], columns: Columns, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let mut parts = runs(self.shape, columns);
        let Some(first) = parts.next() else {
            return self.transaction.contains_key(self.table, key);
        };
        let Some(last) = parts.last() else {
            return self.transaction.get_part(self.table, key, first, out);
        };
        // One read of all from the first to the last column: columns are of one version.
        let part = first.start..last.end;
        let is_there = self.transaction.get_part(self.table, key, part, self.value)?;
        if is_there {
            take(self.shape, (self.value, first.start), columns, out);
        }
        Ok(is_there)
    }

    fn update(&mut self, key: &[u8], columns: Columns, values: &[u8]) -> Result<bool> {
        let (mut left, mut is_there) = (values, true);
        for run in runs(self.shape, columns) {
            let (bytes, rest) = left.split_at(run.len());
            is_there &= self.transaction.patch(self.table, key, run.start, bytes)?;
            left = rest;
        }
        Ok(is_there)
    }

    fn insert(&mut self, key: &[u8], row: &[u8]) -> Result<()> {
        self.transaction.insert(self.table, key, row)
    }

    fn scan(
        &mut self,
        from: &[u8],
        records: usize,
        columns: Columns,
        visit: &mut Visitor<'_>,
    ) -> Result<()> {
        let mut cursor = self.transaction.range(self.table, from..).limit(records);
        while let Some((key, value)) = cursor.next_ref()? {
            let shown = if columns == self.shape.all() {
                visit(key, value)
            } else {
                self.value.clear();
                take(self.shape, (value, 0), columns, self.value);
                visit(key, self.value)
            };
            if shown == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_ranges_of_a_value() {
        let of = |columns| runs(Shape::TEN, Columns(columns)).collect::<Vec<_>>();
        assert_eq!(of(0b11_0000_0110), [100..300, 800..1000]);
        assert_eq!(of(0b11_1111_1111), std::slice::from_ref(&(0..1000)));
        assert_eq!(of(0), []);
        let narrow = Shape(&[8, 16, 24]);
        assert_eq!(runs(narrow, Columns(0b101)).collect::<Vec<_>>(), [0..8, 24..48]);
    }

    /// Columns are read of one version, updated apart, and both as one transaction sees them.
    #[test]
    fn parts_are_read_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let shape = Shape::TEN;
        let store = open(shape, 64 << 20, directory.path()).unwrap();
        store.load(Load { records: 10, order: Order::Key, seed: 1 }).unwrap();
        let mut session = store.session().unwrap();
        let mut out = Vec::new();
        let ends = Columns(0b10_0000_1001);
        let (mut values, mut inserted) = (Vec::new(), Vec::new());
        ends.iter().for_each(|column| shape.fill(7, column, 9, &mut values));
        shape.fill_row(11, &mut inserted);
        let body = &mut |access: &mut dyn ColumnAccess| {
            assert!(access.update(&key_of(7), ends, &values)?);
            assert!(!access.update(&key_of(10), ends, &values)?, "there is none");
            assert!(access.read(&key_of(7), ends, &mut out)?);
            assert_eq!(out, values, "it sees its own");
            access.insert(&key_of(11), &inserted)
        };
        assert_eq!(session.transact(body).unwrap(), 0);
        let body = &mut |access: &mut dyn ColumnAccess| {
            assert!(access.read(&key_of(7), shape.all(), &mut out)?);
            shape.check(7, shape.all(), &out)?;
            let last = |column: usize| out[(column + 1) * 100 - 1];
            assert_eq!([0, 1, 2, 3, 8, 9].map(last), [9, 0, 0, 9, 0, 9]);
            assert!(access.read(&key_of(7), Columns(0b110), &mut out)?);
            shape.check(7, Columns(0b110), &out)?;
            assert!(!access.read(&key_of(10), ends, &mut out)?);
            assert!(access.read(&key_of(11), shape.all(), &mut out)?);
            shape.check(11, shape.all(), &out)
        };
        session.transact(body).unwrap();
        drop(session);
        store.close().unwrap();
    }
}
