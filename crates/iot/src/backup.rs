//! The copy of a keyspace: images that the newest slot names, which stay as they are while they are held (rule P26).

use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Lsn, Result};
use spinney_engine::KeyspaceBackup;
use spinney_extent::{StoreCopy, WIDE_ORDER_MAX};
use spinney_io::{AlignedBuf, Directory, Purpose};

use crate::engine::Iot;
use crate::image::Payload;
use crate::read::{READ_AT_ONCE, read_block};

/// A copy under construction.
#[derive(Debug)]
pub(crate) struct Copying<'a> {
    keyspace: &'a Iot,
    copy: StoreCopy<'a>,
    named: Arc<Option<Payload>>,
    /// Images that were copied.
    copied: usize,
}

impl<'a> Copying<'a> {
    /// Begins it.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub(crate) fn begin(
        keyspace: &'a Iot,
        directory: &dyn Directory,
        name: &str,
        state: impl FnOnce() -> (Lsn, Arc<Option<Payload>>),
    ) -> Result<Copying<'a>> {
        let (copy, named) = StoreCopy::begin(&keyspace.values, directory, name, state)?;
        Ok(Copying { keyspace, copy, named, copied: 0 })
    }

    /// Copies some images; `None` when all of them were.
    fn copy_images(&mut self) -> Result<Option<u64>> {
        let Some(payload) = &*self.named else { return Ok(None) };
        let (mut buf, mut bytes) = (AlignedBuf::new(1 << WIDE_ORDER_MAX), 0);
        for place in payload.places.iter().skip(self.copied).take(READ_AT_ONCE) {
            read_block(self.keyspace.store(), *place, &mut buf)?;
            let block = &buf.bytes()[..PAGE_BYTES << place.order];
            self.copy.target().write_runs(&[(place.page, block)], Purpose::TOOL)?;
            bytes += block.len() as u64;
            self.copied += 1;
        }
        Ok((bytes > 0).then_some(bytes))
    }
}

impl KeyspaceBackup for Copying<'_> {
    fn copy(&mut self) -> Result<Option<u64>> {
        match self.copy_images()? {
            Some(bytes) => Ok(Some(bytes)),
            None => self.copy.copy_values(),
        }
    }

    fn finish(&mut self) -> Result<u64> {
        let mut bytes = 0;
        while let Some(copied) = self.copy_images()? {
            bytes += copied;
        }
        let payload = self.named.as_ref().as_ref();
        let owned = payload.iter().flat_map(|payload| &payload.places);
        let owned = owned.map(|place| place.owned()).collect();
        let payload = payload.map_or_else(Vec::new, Payload::encode);
        Ok(bytes + self.copy.finish(owned, 0, &payload)?)
    }
}
