//! What the newest slot of a file names, without a manifest or a log; or all images of the file, where no slot can be
//! read (`by_pages`).
//!
//! An image that is damaged loses the keys between those of its neighbours; everything else is shown.

mod by_pages;

use std::sync::Arc;

use spinney_base::{KeyspaceId, Lsn, Poison, Result};
use spinney_engine::{DamagedPage, KeyspaceSalvage, LostRange, SalvageFindings, Show};
use spinney_extent::{Store, StoreOptions};
use spinney_io::{Directory, Purpose};

use crate::image::{Image, Payload};
use crate::leaf::value_of;
use crate::place::Place;
use crate::read::read_images;
use crate::salvage::by_pages::Images;

/// A file that is being salvaged.
#[derive(Debug)]
pub(crate) struct IotSalvage {
    store: Arc<Store>,
    redo: Option<Lsn>,
    named: Option<Payload>,
    /// All images of the file, where no slot can be read.
    images: Option<Images>,
    /// The log has every record that the keyspace ever had.
    is_log_whole: bool,
    findings: SalvageFindings,
}

impl IotSalvage {
    pub(crate) fn open(
        directory: &dyn Directory,
        name: &str,
        keyspace: KeyspaceId,
    ) -> Result<IotSalvage> {
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
        let images = redo.is_none().then(Images::default);
        let store = Arc::new(store);
        Ok(IotSalvage { store, redo, named, images, is_log_whole: false, findings })
    }

    /// Reads the image at a place, or notes its damage.
    fn read(&mut self, place: Place) -> Option<Image> {
        match read_images(&self.store, &[place], Purpose::TOOL) {
            Ok(mut images) => images.pop(),
            Err(error) => {
                let (file, offset) = (self.store.path().to_owned(), place.page.offset());
                self.findings.damaged.push(DamagedPage::new(file, offset, error.to_string()));
                None
            }
        }
    }
}

/// Shows the records of an image.
fn show_image(store: &Store, image: &Image, show: &mut Show<'_>) -> Result<()> {
    image.records.iter().try_for_each(|entry| show(store, entry.key, Some(value_of(&entry))))
}

impl KeyspaceSalvage for IotSalvage {
    fn end_of_log(&mut self, first: Lsn, _last: Lsn) {
        self.is_log_whole = first == Lsn(1);
    }

    fn read_pages(&mut self) -> Result<()> {
        match &mut self.images {
            Some(images) => images.find(&self.store, &mut self.findings),
            None => Ok(()),
        }
    }

    fn records(&mut self, show: &mut Show<'_>) -> Result<()> {
        if let Some(images) = &self.images {
            let (lost, older) = images.show(&self.store, show)?;
            if !self.is_log_whole {
                (self.findings.lost, self.findings.older) = (lost, older);
            }
            return Ok(());
        }
        let places = self.named.as_ref().map_or_else(Vec::new, |named| named.places.clone());
        // Where the last image has ended that could be read.
        let (mut end, mut is_lost) = (Some(Vec::new()), false);
        for place in places {
            let Some(image) = self.read(place) else {
                is_lost = true;
                continue;
            };
            if std::mem::take(&mut is_lost) {
                let lower = end.take().unwrap_or_default();
                self.findings.lost.push(LostRange { lower, upper: Some(image.lower.clone()) });
            }
            show_image(&self.store, &image, show)?;
            end = image.upper;
        }
        if is_lost {
            self.findings.lost.push(LostRange { lower: end.unwrap_or_default(), upper: None });
        }
        Ok(())
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
