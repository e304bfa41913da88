//! What the newest checkpoint of a file tells, without a manifest or a log.

use std::sync::Arc;

use spinney_base::{KeyspaceId, Lsn, Poison, Result, ValueRef};
use spinney_engine::{KeyspaceSalvage, SalvageFindings, Show, Span};
use spinney_extent::{Store, StoreOptions};
use spinney_io::Directory;

use super::{Records, payload};

/// A toy keyspace's file that is being salvaged.
#[derive(Debug)]
pub(crate) struct ToySalvage {
    store: Store,
    redo: Option<Lsn>,
    records: Records,
    findings: SalvageFindings,
}

impl ToySalvage {
    pub(crate) fn open(
        directory: &dyn Directory,
        name: &str,
        keyspace: KeyspaceId,
    ) -> Result<ToySalvage> {
        let options =
            StoreOptions { keyspace, double_write: false, poison: Arc::new(Poison::new()) };
        let (store, newest) = Store::open_damaged(directory, name, options)?;
        let mut salvage = ToySalvage {
            store,
            redo: None,
            records: Records::new(),
            findings: SalvageFindings::default(),
        };
        let found = newest.and_then(|(checkpoint, payload)| {
            payload::decode(&payload).map(|(records, _)| (checkpoint.redo, records))
        });
        match found {
            Ok((redo, records)) => {
                salvage.redo = Some(redo);
                salvage.records = records;
            }
            Err(error) => {
                salvage.findings.checkpoint = Some(error.to_string());
                salvage.findings.lost.push(Span::ALL.to_range());
            }
        }
        Ok(salvage)
    }
}

impl KeyspaceSalvage for ToySalvage {
    fn end_of_log(&mut self, first: Lsn, _last: Lsn) {
        // The log has every record that the keyspace ever had.
        if self.redo.is_none() && first == Lsn(1) {
            self.findings.lost.clear();
        }
    }

    fn read_pages(&mut self) -> Result<()> {
        Ok(())
    }

    fn records(&mut self, show: &mut Show<'_>) -> Result<()> {
        self.records.iter().try_for_each(|(key, value)| {
            show(&self.store, key, Some(ValueRef { bytes: &value.bytes, large: value.large }))
        })
    }

    fn redo(&self) -> Option<Lsn> {
        self.redo
    }

    fn findings(&self) -> &SalvageFindings {
        &self.findings
    }

    fn store(&self) -> &Store {
        &self.store
    }
}
