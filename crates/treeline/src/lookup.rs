//! Lookups behind the record cache: one page for a key (TreeLine, section 4.1).
//!
//! A lookup finds the key's place in the index without a lock, locks the segment (IR) and the page
//! (shared), checks that the place is still right, and asks the cache once more before it reads: a
//! record that became dirty meanwhile cannot leave the cache while its page is locked (rule P23).
//! It offers what it reads to the cache.

use spinney_base::{Result, ValueRef};
use spinney_engine::Found;
use spinney_io::{AlignedBuf, Purpose};
use spinney_page::PageView;
use spinney_sync::hash_key;

use crate::segment::Place;
use crate::tree::TreeLine;
use spinney_records::{Cached, RecordId};

impl TreeLine {
    /// Looks a key up behind the cache, and offers the cache what it finds. If filters refuse the
    /// key, its absence is offered only if it is `to_stay`: the filters will refuse the key the
    /// next time as well, and take less memory.
    pub(crate) fn read_through(
        &self,
        key: &[u8],
        hash: u64,
        out: &mut Vec<u8>,
        to_stay: bool,
    ) -> Result<Found> {
        let id = RecordId::of(hash);
        loop {
            let (place, version) = self.shape.index.find_place(key, hash);
            let _segment = self.shape.segment_locks.read(place.segment.page);
            let _page = self.shape.page_locks.read(place.page.page);
            if !self.is_still(key, hash, place, version) {
                continue;
            }
            // A record that became dirty meanwhile cannot leave the cache while the page is locked
            // (P23).
            if let Some(found) = found_in(self.memory.cache.get(id, key, out)) {
                return Ok(found);
            }
            let start = out.len();
            let Seen { found, looked, read } = self.look_in_pages(key, hash, place, true, out)?;
            self.workload.accesses.miss(read);
            if read > 0 && found == Found::Absent {
                self.memory.filters.want();
            }
            if looked || to_stay {
                let value = ValueRef { bytes: &out[start..], large: found == Found::Large };
                self.admit(id, key, (found != Found::Absent).then_some(value));
            }
            return Ok(found);
        }
    }

    /// Looks a key up in the pages of its place, which the caller has locked, the newest first. Offers
    /// the cache the neighbours, if it is told to.
    pub(crate) fn look_in_pages(
        &self,
        key: &[u8],
        hash: u64,
        place: Place,
        with_neighbours: bool,
        out: &mut Vec<u8>,
    ) -> Result<Seen> {
        let mut seen = Seen { found: Found::Absent, looked: false, read: 0 };
        for (index, page) in place.pages().enumerate() {
            if self.memory.filters.refuse(page, hash) {
                continue;
            }
            seen.looked = true;
            seen.found = with_page_buffer(|buf| {
                let cached = self.memory.pages.get(page, buf.page_mut(0));
                if !cached {
                    seen.read += 1;
                    self.shape.read_page(page, buf.page_mut(0), Purpose::LOOKUP)?;
                }
                let view = PageView::trusted(buf.page(0));
                let value = view.find(key);
                if value.is_none() && !cached {
                    self.memory.keep_filter(self.context.keyspace, page, view);
                }
                // Neighbours are the newest versions only in the base page, and only where nothing is
                // staged: an overflow page may hold older versions of what the base page has.
                if with_neighbours && place.is_plain() && index == 0 {
                    self.admit_neighbours(key, view);
                }
                out.extend_from_slice(value.unwrap_or(ValueRef::EMPTY).bytes);
                Ok(match value {
                    None => Found::Absent,
                    Some(value) if value.large => Found::Large,
                    Some(_) => Found::Inline,
                })
            })?;
            if seen.found != Found::Absent {
                break;
            }
        }
        Ok(seen)
    }

    /// Offers the cache what was read from a page that is still locked.
    pub(crate) fn admit(&self, id: RecordId, key: &[u8], value: Option<ValueRef<'_>>) {
        if self.tuning.record_cache() {
            self.memory.cache.admit(id, key, value);
        }
    }

    /// Offers the cache the other records of a page that was read for `key` and is still locked, if
    /// that option is on (optimistic caching, section 4.2).
    fn admit_neighbours(&self, key: &[u8], view: PageView<'_>) {
        if !self.tuning.optimistic_admission() || !self.tuning.record_cache() {
            return;
        }
        for index in 0..view.len() {
            let neighbour = view.key(index);
            if neighbour != key {
                let id = RecordId::of(hash_key(self.context.keyspace, &neighbour));
                self.memory.cache.admit_neighbour(id, &neighbour, view.value(index));
            }
        }
    }

    /// Whether a key's place is still the one that was found when the index had this version. Stays
    /// true while its segment and its page are locked.
    pub(crate) fn is_still(&self, key: &[u8], hash: u64, place: Place, version: u64) -> bool {
        self.shape.index.version() == version || self.shape.index.find_place(key, hash).0 == place
    }
}

/// What a look into the pages of a key has found.
pub(crate) struct Seen {
    pub(crate) found: Found,
    /// Whether a page could have had it.
    looked: bool,
    /// Pages that were read.
    read: u64,
}

/// What a lookup answers when the cache knows.
pub(crate) fn found_in(cached: Cached) -> Option<Found> {
    match cached {
        Cached::Present => Some(Found::Inline),
        Cached::Large => Some(Found::Large),
        Cached::Absent => Some(Found::Absent),
        Cached::Unknown => None,
    }
}

/// Lends this thread's page buffer; a nested call gets one of its own.
pub(crate) fn with_page_buffer<T>(body: impl FnOnce(&mut AlignedBuf) -> T) -> T {
    thread_local! {
        static BUFFER: std::cell::Cell<Option<AlignedBuf>> = const { std::cell::Cell::new(None) };
    }
    let mut buffer = BUFFER.take().unwrap_or_else(|| AlignedBuf::new(1));
    let result = body(&mut buffer);
    BUFFER.set(Some(buffer));
    result
}
