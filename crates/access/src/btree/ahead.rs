//! Reading the leaves of many keys, or of a range, in one batch.
//!
//! It only fills the cache. A merge, or a range, descends to each leaf afterwards, and finds it there, or reads it alone. So
//! an error here is none, and neither is a page that has moved since its parent was seen (rule H4).

use spinney_base::shim::atomic::Ordering::Relaxed;
use spinney_cache::PageId;
use spinney_engine::{Direction, ScanRequest};
use spinney_io::{AlignedBuf, Purpose};

use crate::btree::descend::{Toward, entry_for, place_at};
use crate::btree::scan::is_not_above;
use crate::btree::tree::BTree;
use crate::pages::PageKind;
use crate::place::Place;

/// Most leaves of a batch. With more, the buffer takes more memory; with fewer, the disk waits.
const BATCH_LEAVES: usize = 64;
/// Part of the frames that a batch may fill, one in this many: others are being read meanwhile.
const FRAMES_PART: u64 = 8;

impl BTree {
    /// Reads the leaves of the first of these keys, which ascend, as far as they are not in memory. Returns the
    /// number of keys, of the first ones, whose leaves it has looked at: at least one, if there is one.
    pub(crate) fn read_ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> usize {
        let most = self.batch_max();
        let (mut places, mut count, mut end) = (Vec::new(), 0, Some(Vec::new()));
        for key in keys {
            let is_next = end.as_ref().is_none_or(|end| key >= &end[..]);
            if is_next && (places.len() >= most || end.is_none()) {
                break;
            }
            count += 1;
            if is_next {
                let Some((place, upper)) = self.leaf_of_key(key) else { break };
                places.push(place);
                end = upper;
            }
        }
        self.read_leaves(&places, Purpose::WRITE_BACK);
        count
    }

    /// Most leaves of a batch now.
    fn batch_max(&self) -> usize {
        let cache = self.pages.file().cache();
        let frames = cache.bytes() / cache.frame_bytes() / FRAMES_PART;
        usize::try_from(frames).unwrap_or(usize::MAX).min(BATCH_LEAVES)
    }

    /// Reads the first leaf of a range, and those that follow it in the range's direction, for this number of records, as
    /// far as the parent of the first one names them.
    pub(crate) fn read_range_ahead(&self, to: Toward<'_>, records: usize, range: &ScanRequest<'_>) {
        let Some(leaves) = records.checked_div(self.leaf_records.load(Relaxed)) else { return };
        let by_bytes = range.bytes_max / self.pages.page_bytes();
        let most = (leaves.min(by_bytes) + 1).min(self.batch_max());
        if most < 2 {
            return;
        }
        let Ok(Some(parent)) = self.descend_to(to, 1) else { return };
        let (node, mut key) = (parent.leaf(), Vec::new());
        let (first, is_forward) = (to.entry(node), range.direction == Direction::Forward);
        let mut places = Vec::with_capacity(most);
        for step in 0..most {
            let index = if is_forward { Some(first + step) } else { first.checked_sub(step) };
            let Some(index) = index.filter(|index| *index < node.len()) else { break };
            if step > 0 {
                // Where its keys begin, or end.
                key.clear();
                node.key(node.slot(if is_forward { index } else { index + 1 }), &mut key);
                let is_past = match is_forward {
                    true => range.is_past_upper(&key),
                    false => is_not_above(range, &key),
                };
                if is_past {
                    break;
                }
            }
            places.extend(place_at(node, index));
        }
        if !is_forward {
            // Neighbours that lie side by side are read at once.
            places.reverse();
        }
        if places.len() > 1 && self.pages.is_valid(parent.look.sight()) {
            self.read_leaves(&places, Purpose::LOOKUP);
        }
    }

    /// Where the leaf for a key lies, and where its keys end, as its parent says: `None` at the end of all keys, and
    /// where the parent does not know.
    fn leaf_of_key(&self, key: &[u8]) -> Option<(Place, Option<Vec<u8>>)> {
        let parent = self.descend(key, 1).ok().flatten()?;
        let (node, mut upper) = (parent.leaf(), Vec::new());
        let entry = entry_for(node, key);
        let place = place_at(node, entry);
        let has_upper = if entry + 1 < node.len() {
            node.key(node.slot(entry + 1), &mut upper);
            true
        } else {
            node.upper(&mut upper)
        };
        let is_valid = self.pages.is_valid(parent.look.sight());
        place.filter(|_| is_valid).map(|place| (place, has_upper.then_some(upper)))
    }

    /// Reads leaves that are not in memory in one batch.
    fn read_leaves(&self, places: &[Place], purpose: Purpose) {
        let ids: Vec<PageId> = places.iter().map(|place| self.pages.id_of(*place, 0)).collect();
        let order = self.pages.order();
        // The look-up of a page that cannot be read says so.
        _ = self.pages.file().prefetch_many(&ids, |missing, buf: &mut AlignedBuf| {
            let blocks: Vec<_> =
                missing.iter().map(|page| (page.place, page.id.page, page.id.generation)).collect();
            let kind = PageKind::Leaf.block();
            let check = &mut |index: usize, block: &[u8]| {
                let id = missing[index].id;
                self.pages.check(Place { page: id.page, generation: id.generation }, block)
            };
            self.pages.store().read_many_wide(&blocks, order, kind, buf, purpose, check)
        });
    }
}
