//! Allocation of many blocks at once: the places of a batch of pages that is written side by side.
//!
//! All blocks of a batch have one generation, because 2^32 are soon used up by one for each page
//! of a structure that rewrites its pages.
//!
//! ```text
//! free           ..##....########..#..      a batch of 7: the extent of eight has room for all
//! taken          ........1234567......
//!
//! free           ..##....####..######      no extent has: four, and then the other three
//! taken          ........1234....567.
//! ```
//!
//! The smallest extent that has room for all that is missing is taken, and its rest given back. If
//! there is none, half as many are looked for, down to single blocks. So a batch lies side by side
//! where free pages do, and what is scattered is used up, the lowest first, before the file grows.

use std::ops::Range;

use spinney_base::{Generation, PageNumber, Result};
use spinney_io::without_reserve;

use crate::free::{ORDER_MAX, extents_of};
use crate::store::{Space, Store};

/// Most pages of a batch: 128 MiB.
pub const BATCH_PAGES_MAX: u32 = 1 << ORDER_MAX;

impl Store {
    /// Allocates `count` blocks of 2^`order` pages, at most [`BATCH_PAGES_MAX`] pages together, and
    /// one generation for all of them. The file grows when too few are free. Returns their first
    /// pages in ascending order.
    ///
    /// # Errors
    /// `Full` when the disk has no room (nothing was allocated), `Poisoned`, or `Io`.
    ///
    /// # Panics
    /// When the batch has too many pages.
    pub fn allocate_batch(&self, order: u8, count: u32) -> Result<(Vec<PageNumber>, Generation)> {
        let pages = u64::from(count) << order;
        assert!(pages <= u64::from(BATCH_PAGES_MAX), "{count} blocks of order {order}");
        let mut space = self.space_to_take()?;
        self.options.poison.check()?;
        let generation = self.take_generation(&mut space)?;
        let mut taken = Vec::new();
        if let Err(error) = self.take_batch(&mut space, order, count, &mut taken) {
            // They were free before, so no hold has to keep them.
            taken.into_iter().for_each(|run| space.free.add_range(run.start, run.end));
            return Err(error);
        }
        taken.sort_unstable_by_key(|run| run.start);
        let extents = taken.iter().flat_map(|run| extents_of(run.start, run.end));
        extents.for_each(|extent| space.holes.remove(extent));
        let blocks = taken.into_iter().flat_map(|run| run.step_by(1 << order));
        Ok((blocks.map(PageNumber).collect(), generation))
    }

    /// Takes the pages of a batch and puts them into `taken`, also when it fails.
    fn take_batch(
        &self,
        space: &mut Space,
        order: u8,
        count: u32,
        taken: &mut Vec<Range<u32>>,
    ) -> Result<()> {
        let left = space.left();
        let mut missing = count;
        while missing > 0 {
            #[expect(clippy::cast_possible_truncation, reason = "an order is below 32")]
            let most = (order + missing.next_power_of_two().ilog2() as u8).min(ORDER_MAX);
            let pages = missing << order;
            let extent = loop {
                // All that is missing is there before the next is taken, so that all together leave
                // what must be left.
                let is_enough = left == 0 || space.free.free_pages() >= u64::from(pages) + left;
                let mut orders = (order..=most).rev();
                if is_enough
                    && let Some(extent) = orders.find_map(|order| space.free.allocate(order))
                {
                    break extent;
                }
                self.grow_for(space, pages, 1 << order)?;
            };
            let first = extent.page.0;
            let pages = pages.min(extent.pages());
            space.free.add_range(first + pages, first + extent.pages());
            taken.push(first..first + pages);
            missing -= pages >> order;
        }
        Ok(())
    }

    /// Grows the file for `pages` side by side, or where the disk has no room for that, for `least`
    /// of them.
    fn grow_for(&self, space: &mut Space, pages: u32, least: u32) -> Result<()> {
        match without_reserve(|| self.grow(space, pages.next_power_of_two())) {
            Err(error) if error.is_full() => self.grow(space, least),
            grown => grown,
        }
    }
}
