//! Promotion: records that were read from pages come to be kept singly (Tiered-Indexing, 3.4).
//!
//! A copy enters only under the moment of the tier's leaf at the look that missed it, before the tree was read
//! (rule H3): whatever replaced the record since is in that leaf, or has left it, which is counted there. The
//! paper validates the hot and the cold page.

use arc_swap::ArcSwap;
use spinney_access::Change;
use spinney_base::ValueRef;
use spinney_base::runtime::SplitMix;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use spinney_engine::Found;
use spinney_hot::{Admission, Promotion, Seen};
use spinney_records::{Rules, Share, Worth};

use crate::engine::{TIER_BYTES_MIN, Tiered};
use crate::options::Tuning;

/// Division between the tier and pages. With a lower ratio, memory goes to and fro; with a larger step, more records are
/// merged at once to make way for pages; with more at most, writes are not gathered.
const SHARES: Rules = Rules { ratio: 2.0, step: 2, most: 12 };

/// What was chosen of a keyspace, and which records are kept.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) tuning: Tuning,
    pub(crate) admission: ArcSwap<Admission>,
    /// Draws of [`Admission::admits`] so far.
    draws: AtomicU64,
    /// Records that have left the tree for the tier.
    left_tree: AtomicU64,
    /// What the memory has been worth.
    pub(crate) worth: Mutex<Worth>,
    /// Division of the memory between the tier and pages.
    pub(crate) share: Mutex<Share>,
}

impl Default for Chosen {
    fn default() -> Self {
        let admission = Admission::new(Promotion::Auto, TIER_BYTES_MIN);
        Chosen {
            tuning: Tuning::default(),
            admission: ArcSwap::from_pointee(admission),
            draws: AtomicU64::new(0),
            left_tree: AtomicU64::new(0),
            worth: Mutex::default(),
            share: Mutex::new(Share::new(SHARES)),
        }
    }
}

impl Tiered {
    /// Whether records stay in the tier because they are asked for.
    #[inline]
    pub(crate) fn promotes(&self) -> bool {
        self.chosen.tuning.keeps_records() && !self.is_replaying()
    }

    /// Promotes what a look-up has read from the tree, or not.
    pub(crate) fn promote(
        &self,
        key: &[u8],
        hash: u64,
        (found, bytes): (Found, &[u8]),
        seen: Seen,
    ) {
        let value = match found {
            Found::Absent => return,
            Found::Inline => Some(ValueRef { bytes, large: false }),
            Found::Large => Some(ValueRef { bytes, large: true }),
        };
        if self.admits(hash)
            && self.admit(key, value, seen)
            && found == Found::Inline
            && self.chosen.tuning.is_exclusive()
        {
            self.take_out_of_tree(key);
        }
    }

    /// Returns how many records have left the tree for the tier (rule H21). A key that is in neither is absent only if
    /// this is as it was before the tier was looked at.
    pub(crate) fn left_tree(&self) -> u64 {
        self.chosen.left_tree.load(SeqCst)
    }

    /// Lets the tier alone have a promoted record (figure 21). While it does, the record is dirty, and comes back as any
    /// other does: with an image, a sweep or a checkpoint. Where one of these is under way, or a snapshot looks at the
    /// tree, the record stays in both.
    fn take_out_of_tree(&self, key: &[u8]) {
        // A checkpoint that has taken its image would have it neither there nor in its leaf (H12); a sweep that has
        // copied it would end with a clean record that is in no leaf (H2).
        let Some(_no_checkpoint) = self.publishing.try_lock() else { return };
        let Some(_no_sweep) = self.sweeps.claims.try_key(key) else { return };
        let Some(tree) = self.tree().filter(|_| self.pre_images.is_empty()) else { return };
        if self.hot.own(key) {
            self.set_dirty(true);
            // Before it goes: who misses it in the tree finds that this has changed since it was missed in the tier.
            self.chosen.left_tree.fetch_add(1, SeqCst);
            // If its leaf cannot be changed now, it is in both.
            _ = tree.merge(&[Change { key, value: None }], &mut |_, _| {});
        }
    }

    /// Whether a record with this hash of its key comes to be kept, now that it was missed.
    pub(crate) fn admits(&self, hash: u64) -> bool {
        let draw = SplitMix(self.chosen.draws.fetch_add(1, Relaxed)).next_u64();
        if self.chosen.admission.load().admits(hash, draw) {
            return true;
        }
        if self.chosen.tuning.promotion() != Promotion::Auto {
            return false;
        }
        self.note_refused();
        // What is dirty and nobody asks for is worth less than anything that is read.
        self.readers_lack_room()
    }

    /// Admits a record, or lets others leave to make room for the next one.
    pub(crate) fn admit(&self, key: &[u8], value: Option<ValueRef<'_>>, seen: Seen) -> bool {
        let is_there = self.hot.admit(key, value, seen);
        if is_there {
            self.images.count_promoted(1);
        }
        if !is_there && self.hot.is_full() {
            self.refuse();
        }
        is_there
    }
}
