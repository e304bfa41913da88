//! Pages in memory, and how long each is.
//!
//! A keyspace has no frames before its first page, so that many empty ones fit into little memory, and until then its
//! page order may be chosen. Afterwards every page has this order.

use std::sync::{Arc, OnceLock};

use spinney_base::shim::Mutex;
use spinney_cache::{Cache, frame_bytes};

/// Binary logarithm of the 4 KiB pages of a page, unless another is chosen.
pub(crate) const ORDER_DEFAULT: u8 = 0;

/// Least frames for pages, by their order: enough for the steps of two threads, and the nodes above, of which there are
/// fewer where pages are long.
const FRAMES_MIN: [u64; 3] = [120, 80, 56];
/// Bytes of the cache beside its frames, at most, where it is small.
const TABLE_BYTES: u64 = 32 << 10;

/// Least memory of pages of an order, in bytes, where tables take `tables`.
fn bytes_min(order: u8, tables: u64) -> u64 {
    FRAMES_MIN[usize::from(order)] * frame_bytes(u32::from(order)) + tables.max(TABLE_BYTES)
}

/// The frames of a keyspace. Thread-safe.
#[derive(Debug)]
pub(crate) struct Pages {
    /// Changes under its lock, and not once there is a cache.
    order: Mutex<u8>,
    cache: OnceLock<Arc<Cache>>,
}

impl Pages {
    pub(crate) fn new(order: u8) -> Pages {
        Pages { order: Mutex::new(order), cache: OnceLock::new() }
    }

    /// Binary logarithm of the 4 KiB pages of a page.
    pub(crate) fn order(&self) -> u8 {
        *self.order.lock()
    }

    /// Chooses an order, if there are no pages yet. Returns whether pages will have it, or have it already.
    pub(crate) fn choose(&self, order: u8) -> bool {
        let mut now = self.order.lock();
        if self.cache.get().is_none() {
            *now = order;
        }
        *now == order
    }

    /// Returns the least memory that pages work with, in bytes: none before there are any.
    pub(crate) fn bytes_min(&self) -> u64 {
        self.cache.get().map_or(0, |cache| bytes_min(self.order(), cache.table_bytes()))
    }

    /// Returns the bytes of tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.cache.get().map_or(0, |cache| cache.table_bytes())
    }

    /// Returns the cache, once there are pages.
    #[inline]
    pub(crate) fn cache(&self) -> Option<&Arc<Cache>> {
        self.cache.get()
    }

    /// Returns the cache, which is made if there is none, and the order.
    pub(crate) fn make(&self) -> (&Arc<Cache>, u8) {
        let order = self.order.lock();
        let cache = self.cache.get_or_init(|| {
            let cache = Cache::with_frames(bytes_min(*order, 0), u32::from(*order));
            // The file may become so long that its table takes all of the least memory.
            cache.keep_frames(FRAMES_MIN[usize::from(*order)]);
            cache
        });
        (cache, *order)
    }
}
