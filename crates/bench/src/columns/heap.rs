//! Row, column and row+column store.

use std::path::Path;
use std::sync::Arc;

use spinney_base::Result;
use spinney_heap::{Columns, Heap, Layout, Scan, Schema, Session, Transaction};
use spinney_io::{Disk, IfMissing, RealDisk};

use super::{
    Body, ColumnAccess, ColumnSession, ColumnStore, KEY_BYTES, Load, Shape, Visitor, key_of,
};

/// Bytes of the log before it is trimmed. The database of `own` has as large a one for a budget of 1 GiB.
pub(crate) const LOG_BYTES: u64 = 256 << 20;

struct HeapStore {
    heap: Arc<Heap>,
    shape: Shape,
}

/// Opens a store with a log in an existing directory.
///
/// # Errors
/// Those of the log.
pub fn open(
    layout: Layout,
    shape: Shape,
    memory: u64,
    directory: &Path,
) -> Result<Box<dyn ColumnStore>> {
    let schema = Schema::new(KEY_BYTES, shape.0)?;
    let directory = RealDisk::new().directory(directory, IfMissing::Fail)?;
    let heap = Heap::new(layout, &[schema], memory, Some((&*directory, LOG_BYTES)))?;
    Ok(Box::new(HeapStore { heap, shape }))
}

impl ColumnStore for HeapStore {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn load(&self, load: Load) -> Result<()> {
        let mut numbers = load.numbers();
        self.heap.load(0, |key, row| {
            let Some(number) = numbers.next() else { return Ok(false) };
            key.extend_from_slice(&key_of(number));
            self.shape.fill_row(number, row);
            Ok(true)
        })?;
        Ok(())
    }

    fn session(&self) -> Result<Box<dyn ColumnSession + '_>> {
        Ok(Box::new(HeapSession(self.heap.session())))
    }

    fn used_bytes(&self) -> u64 {
        self.heap.memory().bytes()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.heap.flush()
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

    fn insert(&mut self, key: &[u8], row: &[u8]) -> Result<()> {
        self.0.put(0, key, row)
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
