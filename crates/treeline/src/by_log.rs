//! By what the log says: when the extents of large values may be reused, and who says that they are
//! owned.

use std::sync::Arc;

use spinney_base::Result;
use spinney_engine::{EngineContext, log_is_full};
use spinney_extent::Store;
use spinney_extent::values::{LargeExtent, Owner};

use crate::codec::{LargeChange, encode_large};

/// Owner of the large values of one keyspace, whose positions are LSNs.
#[derive(Debug)]
pub(crate) struct ByLog {
    pub(crate) context: EngineContext,
    pub(crate) store: Arc<Store>,
}

impl Owner for ByLog {
    fn reclaim(&self) {
        self.store.reclaim(self.context.log.durable_lsn());
    }

    fn position(&self) -> u64 {
        self.context.log.last_lsn().0
    }

    fn sealed(
        &self,
        extents: &mut dyn Iterator<Item = LargeExtent>,
        live: &dyn Fn(),
    ) -> Result<()> {
        if self.context.logged {
            return Ok(());
        }
        let record = encode_large(LargeChange::Allocated, &extents.collect::<Vec<_>>());
        // A checkpoint beyond the record then names them.
        self.context.log_structure(&record, live)?.map(drop).ok_or_else(log_is_full)
    }
}
