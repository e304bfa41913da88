//! What a keyspace knows of its images: when one is worth its pages, and which large values may be named by nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_extent::LargePointer;
use spinney_extent::values::{LargeExtent, LargeList};
use spinney_sync::Stripes;

use crate::warm::Warm;

/// Merging is chosen while it changes at most this many pages for each page of an image. With more, checkpoints write
/// more and reopening is slower; with less, work is put off that costs the same later.
const CHANGED_FOR_A_PAGE: u64 = 2;
/// An image repeats the one before if fewer records were put since than one in this many of those it has.
const NEW_PART: u64 = 8;
/// Time without a put after which the background merges what is dirty, so that removed records give their space
/// back and the next opening has nothing to load.
pub(crate) const QUIET: Duration = Duration::from_secs(10);

/// Images of one keyspace. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Images {
    /// Puts, and records that were promoted.
    puts: Stripes<2>,
    /// Puts when the last checkpoint began.
    puts_before: AtomicU64,
    /// Bytes of images since one that was mostly new, or since everything was merged.
    repeated: AtomicU64,
    pub(crate) warm: Mutex<Warm>,
    /// Where the background merges next while nothing is put.
    pub(crate) next: Mutex<Vec<u8>>,
    /// Puts when the background looked last, and since when there were none.
    quiet: Mutex<(u64, Duration)>,
    /// Large values that the root lists as superseded, of a keyspace without a log: leaves of the root may name them.
    doubtful: Mutex<BTreeSet<LargeExtent>>,
}

/// What there is to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dirty {
    pub(crate) records: u64,
    /// Pages of an image of them.
    pub(crate) pages: u64,
    /// Pages of leaves that merging them changes, at most.
    pub(crate) leaves: u64,
}

impl Images {
    #[inline]
    pub(crate) fn count_put(&self) {
        self.puts.add(0, 1);
    }

    #[inline]
    pub(crate) fn count_promoted(&self, records: u64) {
        self.puts.add(1, records);
    }

    /// Returns the puts so far.
    pub(crate) fn puts(&self) -> u64 {
        self.puts.sum(0)
    }

    /// Returns how often a record of the tier has changed.
    pub(crate) fn changed(&self) -> u64 {
        self.puts.sum(0) + self.puts.sum(1)
    }

    /// Decides how a checkpoint that begins now takes what is dirty: as an image, or merged into the tree.
    ///
    /// Merging is chosen (1) where it changes few leaves for what an image would take, and (2) once images that mostly
    /// repeat each other have taken as many bytes as merging does: each leaf is read and written.
    pub(crate) fn wants_image(&self, dirty: Dirty) -> bool {
        let puts = self.puts.sum(0);
        let new = puts - self.puts_before.swap(puts, Relaxed);
        let bytes = dirty.pages * PAGE_BYTES as u64;
        let repeated =
            if new < dirty.records / NEW_PART { self.repeated.load(Relaxed) + bytes } else { 0 };
        let merging = dirty.leaves * 2 * PAGE_BYTES as u64;
        let is_image = dirty.leaves > CHANGED_FOR_A_PAGE * dirty.pages && repeated <= merging;
        self.repeated.store(if is_image { repeated } else { 0 }, Relaxed);
        is_image
    }

    /// Returns whether nothing has been put for a while.
    pub(crate) fn is_quiet(&self, now: Duration) -> bool {
        let puts = self.puts.sum(0);
        let mut quiet = self.quiet.lock();
        if quiet.0 != puts || now < quiet.1 {
            *quiet = (puts, now);
        }
        now - quiet.1 >= QUIET
    }

    /// Prepares the list of large values of a root without a log. What was superseded while the root was made may be
    /// named by leaves that were written before (rule H23), so it counts as live, until a verification has
    /// read the leaves. With a log, replay lays newer records over such leaves.
    pub(crate) fn doubt(&self, list: &mut LargeList) {
        self.doubtful.lock().extend(list.freed.iter().copied());
        list.live.append(&mut list.freed);
    }

    /// Returns what is in doubt.
    pub(crate) fn in_doubt(&self) -> BTreeSet<LargeExtent> {
        self.doubtful.lock().clone()
    }

    /// Notes what is left of it.
    pub(crate) fn set_in_doubt(&self, left: BTreeSet<LargeExtent>) {
        *self.doubtful.lock() = left;
    }
}

/// Takes out of `unnamed` what a pointer names.
pub(crate) fn note_named(pointer: &[u8], unnamed: &mut BTreeSet<LargeExtent>) {
    if let Ok(pointer) = LargePointer::decode(pointer) {
        LargeExtent::all_of(&pointer).for_each(|large| _ = unnamed.remove(&large));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(images: &Images, count: u64) {
        (0..count).for_each(|_| images.count_put());
    }

    #[test]
    fn few_records_and_dense_ones_are_merged() {
        let images = Images::default();
        put(&images, 1000);
        assert!(!images.wants_image(Dirty { records: 2, pages: 1, leaves: 2 }));
        put(&images, 1000);
        assert!(images.wants_image(Dirty { records: 100, pages: 4, leaves: 100 }));
        put(&images, 100_000);
        let dense = Dirty { records: 100_000, pages: 3000, leaves: 5000 };
        assert!(!images.wants_image(dense), "all leaves change, and an image takes nearly as much");
    }

    #[test]
    fn images_that_repeat_each_other_come_to_an_end() {
        let images = Images::default();
        let dirty = Dirty { records: 10_000, pages: 400, leaves: 8000 };
        put(&images, 10_000);
        assert!(images.wants_image(dirty));
        for _ in 0..100 {
            put(&images, 5000);
            assert!(images.wants_image(dirty), "half of it is new");
        }
        let images_written = (0..1000).take_while(|_| images.wants_image(dirty)).count();
        assert_eq!(images_written, 40, "2 x 8000 pages of merging, 400 an image");
        assert!(images.wants_image(dirty), "it was merged, and all is as new");
    }

    #[test]
    fn a_while_without_puts_is_quiet() {
        let images = Images::default();
        let at = Duration::from_secs;
        put(&images, 1);
        assert!(!images.is_quiet(at(5)) && !images.is_quiet(at(14)) && images.is_quiet(at(15)));
        put(&images, 1);
        assert!(!images.is_quiet(at(20)) && images.is_quiet(at(31)));
    }
}
