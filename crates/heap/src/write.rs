//! Writes of a transaction. New values stay with the transaction until its commit is decided.
//!
//! ```text
//!   entry      owner := transaction        the first updater wins
//!   session    values | a c of record 7 | all of record 12 |
//! ```
//!
//! A key that has no entry gets one without a value, which its readers note as any other. It stays
//! in the index if the transaction rolls back, until it is collected.
//!
//! **Invariant.** The certifier's writes and those of the transaction are in one order.

use std::task::Poll;

use spinney_base::Result;
use spinney_base::shim::thread;
use spinney_ssn::{Image, Look, Version};

use crate::collect::Ended;
use crate::gaps::GapRef;
use crate::heads::RecordRef;
use crate::schema::Columns;
use crate::transaction::{Pending, Transaction, conflict};

/// What a writer sees of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// A value.
    Value,
    /// No value; the version, if the transaction does not own the entry.
    Nothing(Option<Version>),
    /// Something newer than the begin stamp.
    Newer,
    /// It leaves the index.
    Gone,
}

impl<'a> Transaction<'a> {
    /// Changes some columns of a record to new values, which lie side by side in the order of the
    /// columns. Returns whether there is a record.
    ///
    /// # Errors
    /// `Conflict`, or `InvalidArgument` when the values have not the bytes of the columns.
    pub fn update(
        &mut self,
        table: usize,
        key: &[u8],
        columns: Columns,
        values: &[u8],
    ) -> Result<bool> {
        self.check(table, key, Some((columns, values)))?;
        let Some((record, number)) = self.find_value(table, key)? else { return Ok(false) };
        self.own(record, None)?;
        self.set((table, number), record, Image::Value, (columns, values));
        Ok(true)
    }

    /// Removes a record. Returns whether there was one.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn remove(&mut self, table: usize, key: &[u8]) -> Result<bool> {
        self.check(table, key, None)?;
        let Some((record, number)) = self.find_value(table, key)? else { return Ok(false) };
        self.own(record, None)?;
        self.set((table, number), record, Image::Tombstone, (Columns::NONE, &[]));
        Ok(true)
    }

    /// Adds a record if its key has none. Returns whether it did.
    ///
    /// # Errors
    /// As [`Transaction::update`], and `Full`.
    pub fn insert(&mut self, table: usize, key: &[u8], row: &[u8]) -> Result<bool> {
        self.write_all(table, key, row, false)
    }

    /// Writes all columns of a record, whether its key has one or not. Of a record that is there,
    /// only the columns that differ are written.
    ///
    /// # Errors
    /// As [`Transaction::update`], and `Full`.
    pub fn put(&mut self, table: usize, key: &[u8], row: &[u8]) -> Result<()> {
        self.write_all(table, key, row, true).map(drop)
    }

    fn check(&self, table: usize, key: &[u8], new: Option<(Columns, &[u8])>) -> Result<()> {
        let of = self.table(table);
        of.check_key(key)?;
        match new {
            Some((columns, values)) if values.len() != of.schema.bytes_of(columns) => {
                Err(spinney_base::Error::invalid("values have not the bytes of their columns"))
            }
            _ => Ok(()),
        }
    }

    fn sight(&mut self, record: RecordRef<'a>) -> Result<Sight> {
        loop {
            match self.ssn.look(&record) {
                Poll::Pending => thread::yield_now(),
                Poll::Ready(look) => {
                    return Ok(match look? {
                        Look::Own if self.pending(record) == Some(Image::Value) => Sight::Value,
                        Look::Own => Sight::Nothing(None),
                        Look::Newest(version) if version.is_absent() => {
                            Sight::Nothing(Some(version))
                        }
                        Look::Newest(_) => Sight::Value,
                        Look::Older if record.head.is_gone() => Sight::Gone,
                        Look::Older => Sight::Newer,
                    });
                }
            }
        }
    }

    fn pending(&self, record: RecordRef<'a>) -> Option<Image> {
        let found = self.writes.iter().rev().find(|write| write.record.head.is(record.head));
        found.map(|write| write.image)
    }

    /// Finds a record that has a value, for a write that needs one; else notes that it has none.
    fn find_value(&mut self, table: usize, key: &[u8]) -> Result<Option<(RecordRef<'a>, u32)>> {
        loop {
            let Some(number) = self.find_or_note(table, key)? else { return Ok(None) };
            let record = self.heap.record(table, number);
            match self.sight(record)? {
                Sight::Value => return Ok(Some((record, number))),
                Sight::Nothing(None) => return Ok(None),
                Sight::Nothing(Some(version)) => {
                    self.note(record, version)?;
                    if !record.head.is_gone() {
                        return Ok(None);
                    }
                }
                Sight::Newer => return Err(self.too_new()),
                Sight::Gone => {}
            }
        }
    }

    fn too_new(&self) -> spinney_base::Error {
        conflict("another transaction updated the record first")
    }

    fn write_all(&mut self, table: usize, key: &[u8], row: &[u8], replace: bool) -> Result<bool> {
        let of = self.table(table);
        let all = of.schema.all();
        self.check(table, key, Some((all, row)))?;
        loop {
            let number = match of.find(key) {
                Some(number) => number,
                None => match self.link(table, key)? {
                    Some(number) => number,
                    None => continue,
                },
            };
            let record = self.heap.record(table, number);
            match self.sight(record)? {
                Sight::Value if replace => {
                    self.own(record, None)?;
                    if self.pending(record).is_none() {
                        self.set_changed((table, number), record, row);
                        return Ok(true);
                    }
                }
                Sight::Value => {
                    // The read of it: that it is there.
                    let mut nothing = Vec::new();
                    if self.get(table, key, Columns::NONE, &mut nothing)? {
                        return Ok(false);
                    }
                    continue;
                }
                Sight::Nothing(None) => {}
                Sight::Nothing(Some(_)) => {
                    let gap = of.gaps.find(key);
                    self.own(record, Some(&gap))?;
                }
                Sight::Newer => return Err(self.too_new()),
                Sight::Gone => continue,
            }
            self.set((table, number), record, Image::Value, (all, row));
            return Ok(true);
        }
    }

    /// Notes those columns of a row that differ from the record's, which the transaction owns.
    fn set_changed(&mut self, at: (usize, u32), record: RecordRef<'a>, row: &[u8]) {
        let of = self.table(at.0);
        let mut before = std::mem::take(&mut self.local.row);
        before.clear();
        of.store().tiles.append(record.head.place(), of.schema.all(), &mut before);
        let (mut columns, mut values) = (Columns::NONE, std::mem::take(&mut self.local.changed));
        values.clear();
        let mut begin = 0;
        for column in of.schema.all().iter() {
            let end = begin + of.schema.width(column);
            if row[begin..end] != before[begin..end] {
                columns = columns.with(Columns::one(column));
                values.extend_from_slice(&row[begin..end]);
            }
            begin = end;
        }
        self.set(at, record, Image::Value, (columns, &values));
        (self.local.row, self.local.changed) = (before, values);
    }

    /// Makes an entry without a value for a key. `None`: another did.
    fn link(&mut self, table: usize, key: &[u8]) -> Result<Option<u32>> {
        let of = self.table(table);
        let number = self.local.new_record(self.heap, table, key, Version::absent(0))?;
        if of.index.insert_if_absent(key, u64::from(number)).is_err() {
            self.local.free[table].push(number);
            return Ok(None);
        }
        let is_full = of.gaps.linked(key, |range| self.ranges.count_own(range));
        self.ranges.link(table, number);
        of.store().head(number).thaw();
        if is_full {
            of.split(key);
        }
        let of_table = u32::try_from(table).unwrap_or(u32::MAX);
        self.local.ended.push_back(Ended::new(of_table, number, self.ssn.begin_stamp()));
        Ok(Some(number))
    }

    fn own(&mut self, record: RecordRef<'a>, gap: Option<&GapRef<'a>>) -> Result<()> {
        self.ssn.own(&record, gap, &self.heap.runtime)
    }

    /// Notes the new version of a record that the transaction owns.
    fn set(
        &mut self,
        (table, number): (usize, u32),
        record: RecordRef<'a>,
        image: Image,
        (columns, values): (Columns, &[u8]),
    ) {
        let at = self.local.values.len();
        let schema = &self.table(table).schema;
        let before = self.writes.iter_mut().rev().find(|write| write.record.head.is(record.head));
        let Some(before) = before else {
            self.local.values.extend_from_slice(values);
            let table = u32::try_from(table).unwrap_or(u32::MAX);
            self.writes.push(Pending { record, table, number, image, columns, at });
            return;
        };
        let both = before.columns.with(columns);
        if image == Image::Tombstone || before.image == Image::Tombstone || both == columns {
            self.local.values.extend_from_slice(values);
            *before = Pending { image, columns, at, ..*before };
            return;
        }
        let (mut old, mut new) = (before.at, 0);
        for column in both.iter() {
            let width = schema.width(column);
            let has_old = before.columns.has(column);
            if columns.has(column) {
                self.local.values.extend_from_slice(&values[new..new + width]);
                new += width;
            } else {
                self.local.values.extend_from_within(old..old + width);
            }
            old += if has_old { width } else { 0 };
        }
        *before = Pending { columns: both, at, ..*before };
    }
}
