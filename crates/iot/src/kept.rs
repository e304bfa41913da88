//! Snapshots of a keyspace: what the engine does for its [pre-images](spinney_preimages).
//!
//! A write keeps a copy of what it replaces, which is always in memory, so no key is ever marked, and nothing has to be
//! kept when an image is written.

use spinney_base::Result;
use spinney_engine::{Chunk, Found, ScanRequest, SnapshotNumber, Write};
use spinney_preimages::{InPlace, Known, PreImages};

use crate::engine::Iot;

impl InPlace for Iot {
    fn pre_images(&self) -> &PreImages {
        &self.pre_images
    }

    fn get_behind(
        &self,
        key: &[u8],
        _hash: u64,
        holds: &dyn Fn() -> bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<Found>> {
        let found = self.tree.get(key, out);
        Ok(holds().then_some(found))
    }

    fn scan_behind(
        &self,
        request: &ScanRequest<'_>,
        _hidden: &dyn Fn(&[u8]) -> bool,
        chunk: &mut Chunk,
    ) -> Result<()> {
        self.tree.scan(request, chunk);
        Ok(())
    }
}

impl Iot {
    /// Keeps what a write is about to replace. A reader that finds the new value finds this, too (S5).
    #[inline]
    pub(crate) fn keep_before_put(&self, write: &Write<'_>, newest: SnapshotNumber) {
        let know = |old: &mut Vec<u8>| match self.tree.get(write.key, old) {
            Found::Inline => Known::Value,
            Found::Large => Known::Large,
            Found::Absent => Known::Absent,
        };
        // Nothing is marked, so there is no note.
        _ = self.pre_images.keep(newest, (write.key, write.hash), know);
    }
}
