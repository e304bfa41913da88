//! Our own engine `iot`: a record is a value, and its columns are ranges of bytes.
//!
//! `part_of` and `patched` stand where reads of a part of a value and patches belong: today a
//! look-up copies the whole value, and an update reads it and writes all of it.

use std::ops::ControlFlow;
use std::path::Path;

use spinney::{Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options, Transaction};
use spinney_base::{Error, ErrorKind, Result};

use super::{
    Body, COLUMNS, ColumnAccess, ColumnSession, ColumnStore, Columns, Load, Order, Visitor, WIDTH,
    fill_row, key_of,
};

/// Times that `transact` is called again after it has answered a conflict, which it does after 64
/// runs. More would hide that a workload gets nowhere.
const ROUNDS_MAX: u64 = 1000;

struct OwnStore {
    db: Db,
    table: Keyspace,
}

/// Opens a database in an existing directory.
///
/// # Errors
/// Those of the database.
pub fn open(memory: u64, directory: &Path) -> Result<Box<dyn ColumnStore>> {
    let options = Options::default().memory(memory).durability(Durability::Buffered);
    let db = Db::open(directory, options)?;
    let table = db.keyspace("usertable", KeyspaceOptions::default().engine(EngineKind::Iot))?;
    Ok(Box::new(OwnStore { db, table }))
}

impl ColumnStore for OwnStore {
    fn load(&self, load: Load) -> Result<()> {
        let record = |number| {
            let mut row = Vec::with_capacity(COLUMNS * WIDTH);
            fill_row(number, &mut row);
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
        let OwnStore { db, table } = *self;
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
        let OwnSession { store: OwnStore { db, table }, value } = self;
        let (mut runs, mut rounds) = (0, 0);
        loop {
            let ended = db.transact(|transaction| {
                runs += 1;
                body(&mut Inside { transaction, table, value })
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
    value: &'a mut Vec<u8>,
}

/// Calls `act` with runs of columns side by side, as ranges of bytes of the value.
fn runs(columns: Columns, mut act: impl FnMut(usize, usize)) {
    let (mut begin, mut end) = (0, 0);
    for column in columns.iter() {
        if column * WIDTH != end || begin == end {
            if begin < end {
                act(begin, end);
            }
            begin = column * WIDTH;
        }
        end = (column + 1) * WIDTH;
    }
    if begin < end {
        act(begin, end);
    }
}

/// Appends some columns of a value. A read of a part of the value takes the place of the read before
/// it.
fn part_of(value: &[u8], columns: Columns, out: &mut Vec<u8>) {
    runs(columns, |begin, end| out.extend_from_slice(&value[begin..end]));
}

/// Changes some columns of a value. A patch takes the place of the read before it and the write after
/// it.
fn patched(value: &mut [u8], columns: Columns, values: &[u8]) {
    let mut at = 0;
    runs(columns, |begin, end| {
        value[begin..end].copy_from_slice(&values[at..at + end - begin]);
        at += end - begin;
    });
}

impl ColumnAccess for Inside<'_> {
    fn read(&mut self, key: &[u8], columns: Columns, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        if columns == Columns::first(COLUMNS) {
            return self.transaction.get_into(self.table, key, out);
        }
        let is_there = self.transaction.get_into(self.table, key, self.value)?;
        if is_there {
            part_of(self.value, columns, out);
        }
        Ok(is_there)
    }

    fn update(&mut self, key: &[u8], columns: Columns, values: &[u8]) -> Result<bool> {
        if columns == Columns::first(COLUMNS) {
            self.transaction.insert(self.table, key, values)?;
            return Ok(true);
        }
        let is_there = self.transaction.get_into(self.table, key, self.value)?;
        if is_there {
            patched(self.value, columns, values);
            self.transaction.insert(self.table, key, &self.value[..])?;
        }
        Ok(is_there)
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
            let shown = if columns == Columns::first(COLUMNS) {
                visit(key, value)
            } else {
                self.value.clear();
                part_of(value, columns, self.value);
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
        let mut ranges = Vec::new();
        runs(Columns(0b11_0000_0110), |begin, end| ranges.push((begin, end)));
        assert_eq!(ranges, [(100, 300), (800, 1000)]);
        let (mut row, mut out) = (Vec::new(), Vec::new());
        fill_row(7, &mut row);
        part_of(&row, Columns(0b11), &mut out);
        super::super::check(7, Columns(0b11), &out).unwrap();
        let mut column = Vec::new();
        super::super::fill(7, 3, 9, &mut column);
        patched(&mut row, Columns(0b1000), &column);
        super::super::check(7, Columns::first(COLUMNS), &row).unwrap();
        assert_eq!(row[399], 9);
    }
}
