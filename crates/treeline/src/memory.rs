//! Memory: what a keyspace keeps of its records and pages, and how it divides its memory between
//! them.
//!
//! ```text
//!   target of the account
//!   | index, locks, forecasts | buffers | records | pages | page filters |
//!     what there is             fixed     what all else leaves, by the worth of the last bytes
//! ```
//!
//! **Invariant**: a cache that gets less is cut before another gets more, so together they stay
//! below the target, except for dirty records that have to wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spinney_base::KeyspaceId;
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_engine::EngineContext;
use spinney_io::{AlignedBuf, BufferPool};
use spinney_page::PageView;
use spinney_records::{More, RecordCache, Share, Side, Usage, Worth};
use spinney_sync::{Gap, hash_key};

use crate::filters::PageFilters;
use crate::pages::PageCache;
use crate::policy;
use crate::segment::PageRef;
use crate::tuning::Tuning;

/// The caches of one keyspace, and the shares that they have.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) cache: Arc<RecordCache>,
    pub(crate) pages: PageCache,
    pub(crate) filters: PageFilters,
    /// Buffers of batches.
    pub(crate) buffers: BufferPool,
    pub(crate) gap: Gap,
    /// Bytes that the keyspace keeps even if others want its memory.
    floor: AtomicU64,
    worth: Mutex<Worth>,
    /// Most bytes that the index has had.
    index_bytes_most: AtomicU64,
    /// How records and pages share.
    share: Mutex<Share>,
    /// How page filters share with both.
    filter_share: Mutex<Share>,
}

impl Memory {
    /// Empty caches of a keyspace with `target` bytes of memory now, which may get `most`.
    pub(crate) fn new(target: u64, most: u64) -> Self {
        Memory {
            cache: Arc::new(RecordCache::new(target, most)),
            pages: PageCache::new(most),
            filters: PageFilters::new(target),
            buffers: BufferPool::new(policy::BUFFERS_BURST * policy::buffer_pages(target)),
            gap: Gap::default(),
            floor: AtomicU64::new(0),
            worth: Mutex::default(),
            index_bytes_most: AtomicU64::new(0),
            share: Mutex::new(Share::new(policy::SHARES)),
            filter_share: Mutex::new(Share::new(policy::FILTER_SHARES)),
        }
    }

    /// Bytes that the keyspace keeps even if others want its memory.
    pub(crate) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Relaxed)
    }

    /// Copies those of the pages, which the caller has locked, that are cached into the pages of
    /// `buf`, and says where the others belong.
    pub(crate) fn missing_pages(
        &self,
        pages: &[PageRef],
        buf: &mut AlignedBuf,
    ) -> Vec<(usize, PageRef)> {
        let pages = pages.iter().copied().enumerate();
        pages.filter(|(index, page)| !self.pages.get(*page, buf.page_mut(*index))).collect()
    }

    /// Keeps the filter of a page that the caller has locked and read in vain, or written.
    pub(crate) fn keep_filter(&self, keyspace: KeyspaceId, page: PageRef, view: PageView<'_>) {
        if !self.filters.have_room() {
            return;
        }
        let mut key = view.prefix().to_vec();
        let prefix = key.len();
        let hashes: Vec<u64> = (0..view.len())
            .map(|index| {
                key.truncate(prefix);
                key.extend_from_slice(view.suffix(index));
                hash_key(keyspace, &key)
            })
            .collect();
        self.filters.put(page, &hashes);
    }

    /// Gives the caches what all else leaves of the keyspace's memory: the index, which has `index`
    /// bytes, and what takes `rest` bytes.
    pub(crate) fn follow(&self, context: &EngineContext, tuning: &Tuning, index: u64, rest: u64) {
        let held = index + rest;
        let index_most = self.index_bytes_most.fetch_max(index, Ordering::Relaxed).max(index);
        let index_taken = policy::index_taken(index_most);
        let account = &context.memory;
        let pages_max = policy::buffer_pages(account.target());
        self.buffers.set_pages_max(policy::BUFFERS_BURST * pages_max);
        let taken = held - index + index_taken + (pages_max * PAGE_BYTES) as u64;
        let left = account.target().saturating_sub(taken).max(self.cache.bytes_min());
        let usage = self.share_memory(context, tuning, left);
        let buffers = self.buffers.pages_kept().min(pages_max) * PAGE_BYTES;
        let pages = self.pages.bytes();
        let cached = usage.held + pages + self.filters.bytes();
        account.set_used(held + buffers as u64 + cached);
        account.set_full(policy::is_filled(cached, left));
        let records = Side { worth: usage.worth, bytes: usage.filled };
        let of_pages = Side { worth: self.pages.hits().1, bytes: pages };
        account.set_worth(self.worth.lock().follow(&[records, of_pages]));
        let least = self.cache.bytes_min().min(usage.held) + self.pages.bytes_min().min(pages);
        self.floor.store(held - index + index_taken + least, Ordering::Relaxed);
    }

    /// Divides `bytes` between cached records, cached pages and page filters.
    fn share_memory(&self, context: &EngineContext, tuning: &Tuning, bytes: u64) -> Usage {
        let usage = self.cache.usage();
        let records = Side { worth: usage.worth, bytes: usage.bytes };
        let of_filters = self.share_of_filters(context, tuning, bytes, records);
        let bytes = bytes - of_filters;
        let pages = Side { worth: self.pages.hits().1, bytes: self.pages.bytes() };
        let now = context.runtime.now();
        let of_pages = {
            let mut share = self.share.lock();
            let is_filled = policy::is_filled(pages.bytes, share.of_second(bytes));
            let more = if is_filled { More::Wanted } else { More::Idle };
            share.follow(records, pages, more, now);
            share.of_second(bytes)
        };
        let of_pages = if tuning.page_cache() { of_pages } else { 0 };
        // Caches that get less are cut first. Others are not cut to what they have: shards are not
        // equally full.
        if of_pages < pages.bytes {
            self.pages.resize(of_pages);
        }
        if of_filters < self.filters.bytes() {
            self.filters.resize(of_filters);
        }
        let of_records = if tuning.record_cache() { bytes - of_pages } else { 0 };
        self.cache.resize(of_records.max(self.cache.bytes_min()));
        let usage = self.cache.usage();
        // Dirty records that have to wait may keep more.
        let of_pages = of_pages.min(bytes.saturating_sub(usage.bytes));
        self.pages.resize(of_pages);
        self.filters
            .resize(of_filters.min((bytes + of_filters).saturating_sub(usage.bytes + of_pages)));
        usage
    }

    /// Returns how many of `bytes` page filters may have beside these records.
    fn share_of_filters(
        &self,
        context: &EngineContext,
        tuning: &Tuning,
        bytes: u64,
        records: Side,
    ) -> u64 {
        if !self.filters.are_wanted() || !tuning.page_filters() {
            return 0;
        }
        // Records keep what they cannot do without.
        let bytes = bytes.saturating_sub(self.cache.bytes_min());
        let filters = Side { worth: self.filters.refused(), bytes: self.filters.bytes() };
        let mut share = self.filter_share.lock();
        let is_filled = policy::is_filled(filters.bytes, share.of_second(bytes));
        let more = if is_filled { More::Wanted } else { More::Idle };
        share.follow(records, filters, more, context.runtime.now());
        share.of_second(bytes)
    }
}
