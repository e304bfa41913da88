//! Division of a keyspace's memory: what the tier may have, and pages.
//!
//! An empty keyspace has no pages, so that many of them fit into little memory; the first merge takes the frames
//! that it works with. Where pages are evicted and missed again, they get more, as [`Share`](spinney_records::Share)
//! finds by the counts at the margins of both: hits on what the hand meets soon, and misses of pages that were evicted
//! lately.

use std::sync::Arc;

use spinney_base::shim::atomic::Ordering::Relaxed;
use spinney_cache::Cache;
use spinney_hot::{Admission, Hand};
use spinney_records::{More, Side};

use crate::engine::{TIER_BYTES_MIN, Tiered};

/// Bytes of an entry of an inner node: what divides the keys, and a place.
const NODE_ENTRY_BYTES: u64 = 32;

impl Tiered {
    /// Lets there be frames for pages, before the first one is made. Returns them, with the order of a page.
    pub(crate) fn make_frames(&self) -> (&Arc<Cache>, u8) {
        let made = self.pages.make();
        if made.0.bytes() < self.pages.bytes_min() {
            made.0.set_bytes(self.pages.bytes_min());
        }
        made
    }

    /// Bytes of memory that are neither the tier's nor pages'.
    fn others(&self) -> u64 {
        self.images.warm.lock().bytes()
            + self.values.bytes()
            + self.pre_images.memory_bytes()
            + self.chosen.admission.load().bytes()
            + self.copied_bytes()
    }

    /// Bytes that all inner nodes and the table of pages take: with them in memory a lookup reads one page at most.
    fn node_bytes(&self) -> u64 {
        self.tree().map_or(0, |tree| tree.pages() * NODE_ENTRY_BYTES) + self.pages.table_bytes()
    }

    /// Divides the memory between the tier and pages, and counts what is used.
    pub(crate) fn follow_memory(&self) {
        let target = self.context.memory.target();
        self.pre_images.follow(target, self.snapshot_bytes());
        let others = self.others();
        let both = target.saturating_sub(others);
        let least = self.pages.bytes_min().max(self.node_bytes().min(both / 8 * 7));
        let least = least.max(self.follow_share(both));
        let tier =
            self.chosen.tuning.tier_of(both).min(both.saturating_sub(least)).max(TIER_BYTES_MIN);
        self.hot.resize(tier);
        self.follow_admission(tier);
        // What the tier has above its target it gives as sweeps pass; pages get it then.
        let pages = both.saturating_sub(tier.max(self.hot.bytes())).max(self.pages.bytes_min());
        // What was dirty when it shrank may be written by now.
        let is_other = |cache: &&Arc<Cache>| cache.bytes() != pages || cache.used() > pages;
        if let Some(cache) = self.pages.cache().filter(is_other) {
            cache.set_bytes(pages);
        }
        if let Some(cache) = self.pages.cache() {
            // Frames above the share are lent for steps.
            let share = both.saturating_sub(self.hot.bytes());
            if share < pages && cache.used() > share {
                cache.evict_to(share);
            }
        }
        self.tell_account(both, others);
    }

    /// Decides again which part of so many bytes pages need, if it is time, by what the last bytes of either side were
    /// worth. Returns it. With one tier, pages have all but a fixed part.
    fn follow_share(&self, both: u64) -> u64 {
        if !self.chosen.tuning.keeps_records() {
            return 0;
        }
        let cache = self.pages.cache().map(|cache| cache.stats()).unwrap_or_default();
        // A larger tier gathers more changes for a leaf: with twice the bytes, half as many leaves are read and written.
        let merging = 2 * self.sweeps.merged_leaves.load(Relaxed) / Hand::SOON_PART;
        // What the tier does not fill is worth nothing.
        let bytes = self.hot.target() / Hand::SOON_PART;
        let records = Side { worth: self.hot.soon_hits() + merging, bytes };
        let pages = Side { worth: cache.regretted, bytes: cache.regret_bytes };
        let is_full = cache.used_bytes >= cache.budget_bytes / 8 * 7;
        // What lacks room in the tier is missed as a page meanwhile, and says nothing of either.
        let more = if is_full && !self.readers_lack_room() { More::Wanted } else { More::Idle };
        let mut share = self.chosen.share.lock();
        share.follow(records, pages, more, self.context.runtime.now());
        share.of_second(both)
    }

    /// Tells the account what is used, whether more could be, and what the last bytes were worth.
    fn tell_account(&self, both: u64, others: u64) {
        let account = &self.context.memory;
        let cache = self.pages.cache().map(|cache| cache.stats()).unwrap_or_default();
        let tier = self.hot.bytes();
        account.set_used(tier + cache.used_bytes + others);
        // What was never short of memory has no use for more.
        let is_short = cache.evicted > 0 || self.hot.is_full();
        account.set_full(is_short && tier + cache.used_bytes >= both / 8 * 7);
        let records = Side { worth: self.hot.soon_hits(), bytes: tier / Hand::SOON_PART };
        let pages = Side { worth: cache.regretted, bytes: cache.regret_bytes };
        account.set_worth(self.chosen.worth.lock().follow(&[records, pages]));
    }

    /// Lets admission remember as much as suits a tier of this size, and go by what was chosen.
    fn follow_admission(&self, tier: u64) {
        let now = self.chosen.admission.load();
        if !now.suits(self.chosen.tuning.promotion(), tier) {
            self.chosen
                .admission
                .store(Arc::new(Admission::new(self.chosen.tuning.promotion(), tier)));
        }
    }

    /// Bytes of memory that others cannot have.
    pub(crate) fn floor(&self) -> u64 {
        let tier = if self.pages.cache().is_some() { TIER_BYTES_MIN } else { 0 };
        tier.max(self.hot.bytes().min(TIER_BYTES_MIN))
            + self.pages.bytes_min()
            + self.values.bytes()
    }
}
