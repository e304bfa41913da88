//! Checks, copies, and room on the disk.

use std::ops::Bound;
use std::sync::atomic::Ordering::SeqCst;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Next, Result, ValueRef, probe};
use spinney_engine::{
    Bulk, Compacted, Engine as _, IDLE, KeyspaceBackup, Maintain, Scrubbed, SnapshotNumber,
    VerifyReport, Watch, scrub,
};
use spinney_extent::values::Loaded;
use spinney_extent::{GiveBack, LargePointer, StoreCopy};
use spinney_io::Directory;

use super::{Records, Toy, payload};

impl Maintain for Toy {
    fn background(&self) -> Result<Next> {
        if !self.context.poison.is_set() {
            self.values.reuse();
            self.values.store().give_back(GiveBack::Much)?;
        }
        Ok(Next::Wait(IDLE))
    }

    /// All of it: nothing can go.
    fn memory_floor(&self) -> u64 {
        self.context.memory.used()
    }

    fn takes_wish(&self) -> bool {
        false
    }

    fn verify(&self, watch: &mut Watch<'_>) -> Result<VerifyReport> {
        let _no_checkpoint = self.publishing.lock();
        let store = self.values.store();
        let pages = store.payload_pages();
        store.verify_checkpoint()?;
        watch(pages)?;
        let mut report = VerifyReport::default();
        report.pages = pages;
        report.free_pages = {
            let _still = self.values.still();
            store.audit(self.values.owned().map(|(extent, _)| extent).collect(), 0)?
        };
        let _pin = self.values.pin();
        let pointers: Vec<LargePointer> = {
            let records = self.records.read();
            report.records = records.len() as u64;
            let large = records.values().filter(|value| value.large);
            large.map(|value| self.values.decode(&value.bytes)).collect::<Result<_>>()?
        };
        for pointer in pointers {
            self.values.check_owned(&pointer)?;
            watch(self.values.verify(&pointer)?)?;
            report.large_values += 1;
        }
        Ok(report)
    }

    fn bulk(&self) -> Result<Box<dyn Bulk + '_>> {
        self.context.poison.check()?;
        let loaded = Loaded::new(&self.values);
        let loading = Loading { toy: self, records: Records::new(), loaded };
        loading.check_empty()?;
        Ok(Box::new(loading))
    }

    fn scrub(&self, from: &[u8]) -> Scrubbed {
        scrub(&self.values, from, |_, _| None)
    }

    fn compact(&self, _from: &[u8], _upper: Bound<&[u8]>) -> Result<Compacted> {
        Ok(Compacted::default())
    }

    fn compact_bytes(&self, _from: &[u8], _upper: Bound<&[u8]>) -> u64 {
        0
    }

    fn begin_backup(
        &self,
        directory: &dyn Directory,
        name: &str,
    ) -> Result<Box<dyn KeyspaceBackup + '_>> {
        let state = || {
            let records = self.records.read();
            let redo = self.redo();
            let large = self.values.list(&self.values.cut(redo.0)).live;
            (redo, payload::encode(&records, &large))
        };
        let (copy, payload) = StoreCopy::begin(&self.values, directory, name, state)?;
        Ok(Box::new(Copying { copy, payload }))
    }

    fn data_bytes(&self) -> u64 {
        (self.values.store().payload_pages() + self.values.live_pages()) * PAGE_BYTES as u64
    }

    fn unwritten_bytes(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    fn step_bytes(&self) -> u64 {
        0
    }

    fn make_room(&self) -> Result<()> {
        Ok(())
    }
}

/// A bulk load under way.
#[derive(Debug)]
struct Loading<'a> {
    toy: &'a Toy,
    records: Records,
    loaded: Loaded,
}

impl Loading<'_> {
    fn check_empty(&self) -> Result<()> {
        if self.toy.records.read().is_empty() {
            return Ok(());
        }
        Err(Error::invalid("a bulk load needs an empty keyspace"))
    }
}

impl Bulk for Loading<'_> {
    fn push(&mut self, key: &[u8], value: ValueRef<'_>) -> Result<()> {
        if self.records.last_key_value().is_some_and(|(last, _)| **last >= *key) {
            return Err(Error::invalid("keys of a bulk load ascend"));
        }
        if value.large {
            self.loaded.push(value.bytes)?;
        }
        self.records.insert(key.to_vec(), value.into());
        Ok(())
    }

    fn install(mut self: Box<Self>, _number: SnapshotNumber) -> Result<()> {
        let toy = self.toy;
        let _inside = probe::enter("bulk load");
        let _one_at_a_time = toy.publishing.lock();
        self.check_empty()?;
        let redo = toy.context.log.last_lsn();
        toy.publish(&payload::encode(&self.records, &self.loaded.extents()), redo)?;
        // What is left of the records before are values that were removed.
        toy.values.supersede_all();
        self.loaded.apply(redo.0);
        self.loaded.keep();
        let bytes = |(key, value): (&Vec<u8>, &spinney_engine::OwnedValue)| {
            super::bytes_of(key, value.bytes.len())
        };
        toy.count(self.records.iter().map(bytes).sum(), 0);
        *toy.records.write() = std::mem::take(&mut self.records);
        toy.values.settle(&toy.values.cut(redo.0));
        Ok(())
    }
}

/// A copy under construction.
#[derive(Debug)]
struct Copying<'a> {
    copy: StoreCopy<'a>,
    payload: Vec<u8>,
}

impl KeyspaceBackup for Copying<'_> {
    fn copy(&mut self) -> Result<Option<u64>> {
        self.copy.copy_values()
    }

    fn finish(&mut self) -> Result<u64> {
        let bytes = self.payload.len() as u64;
        Ok(bytes + self.copy.finish(Vec::new(), 0, &self.payload)?)
    }
}
