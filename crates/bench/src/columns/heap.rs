//! Row, column and row+column store.

use std::path::Path;
use std::sync::Arc;

use spinney_base::Result;
use spinney_heap::{Columns, Heap, Layout, Scan, Schema, Session, Transaction};
use spinney_io::{Disk, IfMissing, RealDisk};

use super::{
    Body, COLUMNS, ColumnAccess, ColumnSession, ColumnStore, KEY_BYTES, Load, Visitor, WIDTH,
    fill_row, key_of,
};

/// Bytes of the log before it is trimmed. The database of `own` has as large a one for a budget of 1 GiB.
pub(crate) const LOG_BYTES: u64 = 256 << 20;

struct HeapStore(Arc<Heap>);

/// Opens a store with a log in an existing directory.
///
/// # Errors
/// Those of the log.
pub fn open(layout: Layout, memory: u64, directory: &Path) -> Result<Box<dyn ColumnStore>> {
    let schema = Schema::new(KEY_BYTES, &[WIDTH; COLUMNS])?;
    let directory = RealDisk::new().directory(directory, IfMissing::Fail)?;
    let heap = Heap::new(layout, &[schema], memory, Some((&*directory, LOG_BYTES)))?;
    Ok(Box::new(HeapStore(heap)))
}

impl ColumnStore for HeapStore {
    fn load(&self, load: Load) -> Result<()> {
        let mut numbers = load.numbers();
        self.0.load(0, |key, row| {
            let Some(number) = numbers.next() else { return Ok(false) };
            key.extend_from_slice(&key_of(number));
            fill_row(number, row);
            Ok(true)
        })?;
        Ok(())
    }

    fn session(&self) -> Result<Box<dyn ColumnSession + '_>> {
        Ok(Box::new(HeapSession(self.0.session())))
    }

    fn used_bytes(&self) -> u64 {
        self.0.memory().bytes()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.0.flush()
    }
}

struct HeapSession(Session);

impl ColumnSession for HeapSession {
    fn transact(&mut self, body: &mut Body<'_>) -> Result<u64> {
        let ran = self.0.transact(|transaction| body(&mut Inside(transaction)).map(|()| true))?;
        Ok(ran.retries)
    }
}

struct Inside<'a, 't>(&'a mut Transaction<'t>);

impl ColumnAccess for Inside<'_, '_> {
    fn read(&mut self, key: &[u8], columns: Columns, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        self.0.get(0, key, columns, out)
    }

    fn update(&mut self, key: &[u8], columns: Columns, values: &[u8]) -> Result<bool> {
        self.0.update(0, key, columns, values)
    }

    fn scan(
        &mut self,
        from: &[u8],
        records: usize,
        columns: Columns,
        visit: &mut Visitor<'_>,
    ) -> Result<()> {
        let scan = Scan { table: 0, from, to: None, reverse: false, limit: records, columns };
        self.0.scan(scan, visit)
    }
}
