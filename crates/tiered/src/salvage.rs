//! What the newest root of a file tells, without a manifest or a log; or its leaves, where no root can be read
//! (`by_pages`).
//!
//! A page that is damaged loses the keys that its parent says it is for; everything else is shown. Records of the image
//! lie above those of the tree.

mod by_pages;
mod images;

use std::sync::Arc;

use spinney_access::{Place, RootReader};
use spinney_base::{KeyspaceId, Lsn, Poison, Result, ValueRef};
use spinney_engine::{DamagedPage, KeyspaceSalvage, LostRange, SalvageFindings, Show, Span};
use spinney_extent::{Store, StoreOptions};
use spinney_io::{Directory, Purpose};

use crate::payload::Payload;
use crate::run::{Run, RunReader, What};
use crate::salvage::by_pages::Leaves;

/// A file that is being salvaged.
#[derive(Debug)]
pub(crate) struct TieredSalvage {
    store: Arc<Store>,
    redo: Option<Lsn>,
    named: Option<Payload>,
    /// All leaves of the file, where no root can be read.
    leaves: Option<Leaves>,
    /// The log has every record that the keyspace ever had.
    is_log_whole: bool,
    findings: SalvageFindings,
}

impl TieredSalvage {
    pub(crate) fn open(
        directory: &dyn Directory,
        name: &str,
        keyspace: KeyspaceId,
    ) -> Result<TieredSalvage> {
        let options =
            StoreOptions { keyspace, double_write: false, poison: Arc::new(Poison::new()) };
        let (store, newest) = Store::open_damaged(directory, name, options)?;
        let mut findings = SalvageFindings::default();
        let found = newest.and_then(|(checkpoint, payload)| {
            Payload::decode(&payload).map(|named| (checkpoint.redo, named))
        });
        let (redo, named) = match found {
            Ok((redo, named)) => (Some(redo), named),
            Err(error) => {
                findings.checkpoint = Some(error.to_string());
                (None, None)
            }
        };
        let leaves = redo.is_none().then(Leaves::default);
        let store = Arc::new(store);
        Ok(TieredSalvage { store, redo, named, leaves, is_log_whole: false, findings })
    }

    /// Shows the records below a page, which is for this range of keys.
    fn show_below(
        &mut self,
        reader: &mut RootReader,
        (place, level): (Place, u8),
        range: LostRange,
        show: &mut Show<'_>,
    ) -> Result<()> {
        let page = match reader.read(place, level) {
            Ok(page) => page,
            Err(error) => {
                let (file, offset) = (self.store.path().to_owned(), place.page.offset());
                self.findings.damaged.push(DamagedPage::new(file, offset, error.to_string()));
                self.findings.lost.push(range);
                return Ok(());
            }
        };
        for index in 0..page.image.records.len() {
            if level == 0 {
                let (key, bytes, large) = page.record(index);
                show(&self.store, key, Some(ValueRef { bytes, large }))?;
            } else if let Some((child, lower, upper)) = page.child(index) {
                let upper = upper.or_else(|| range.upper.clone());
                let of_child = LostRange { lower, upper };
                self.show_below(reader, (child, level - 1), of_child, show)?;
            }
        }
        Ok(())
    }
}

impl TieredSalvage {
    /// Shows the records of the image, which lie above those of the tree. Where a page of it is damaged, the tree has
    /// shown what was before.
    fn show_image(&mut self, run: &Run, show: &mut Show<'_>) -> Result<()> {
        let mut reader = RunReader::new(&self.store, run, What::Dirty, Purpose::TOOL);
        let (mut last, mut is_older) = (Vec::new(), false);
        while let Some(place) = reader.place() {
            if let Err(error) = reader.read(1) {
                let (file, offset) = (self.store.path().to_owned(), place.offset());
                self.findings.damaged.push(DamagedPage::new(file, offset, error.to_string()));
                is_older = true;
                continue;
            }
            for (key, value) in reader.records() {
                if std::mem::take(&mut is_older) {
                    let upper = Some(key.to_vec());
                    self.findings.older.push(LostRange { lower: last.clone(), upper });
                }
                show(&self.store, key, value)?;
                last = [key, &[0]].concat();
            }
        }
        if is_older {
            self.findings.older.push(LostRange { lower: last, upper: None });
        }
        Ok(())
    }
}

impl KeyspaceSalvage for TieredSalvage {
    fn end_of_log(&mut self, first: Lsn, _last: Lsn) {
        self.is_log_whole = first == Lsn(1);
    }

    fn read_pages(&mut self) -> Result<()> {
        match &mut self.leaves {
            Some(leaves) => leaves.find(&self.store, &mut self.findings),
            None => Ok(()),
        }
    }

    fn records(&mut self, show: &mut Show<'_>) -> Result<()> {
        if let Some(leaves) = &self.leaves {
            let (lost, older) = leaves.show(&self.store, show)?;
            if !self.is_log_whole {
                (self.findings.lost, self.findings.older) = (lost, older);
            }
            return Ok(());
        }
        let Some(named) = self.named.clone() else { return Ok(()) };
        let mut reader = RootReader::new(self.store.clone(), named.order);
        self.show_below(&mut reader, named.root.page(), Span::ALL.to_range(), show)?;
        self.show_image(&named.dirty, show)
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
