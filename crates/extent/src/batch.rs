//! Allocation of many blocks at once: the places of a batch of pages that is written side by side.
//!
//! All blocks of a batch have one generation, because 2^32 are soon used up by one for each page
//! of a structure that rewrites its pages.
//!
//! ```text
//! free        ..##....########........#...      a batch of 7: four of the eight side by side,
//! taken                1234567                  two more, and one
//! ```
//!
//! The largest power of two of blocks that is still missing is taken in one extent where there is
//! one, else half of it, down to single blocks. So a batch lies side by side where free pages do,
//! and what is scattered is used up, the lowest first, before the file grows.

use spinney_base::{Generation, PageNumber, Result};
use spinney_io::without_reserve;

use crate::free::{Extent, ORDER_MAX};
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
            taken.into_iter().for_each(|extent| space.free.release(extent));
            return Err(error);
        }
        taken.sort_unstable();
        taken.iter().for_each(|extent| space.holes.remove(*extent));
        let blocks = |extent: Extent| {
            let pages = extent.page.0..extent.page.0 + extent.pages();
            pages.step_by(1 << order).map(PageNumber)
        };
        Ok((taken.into_iter().flat_map(blocks).collect(), generation))
    }

    /// Takes the extents of a batch and puts them into `taken`, also when it fails.
    fn take_batch(
        &self,
        space: &mut Space,
        order: u8,
        count: u32,
        taken: &mut Vec<Extent>,
    ) -> Result<()> {
        let left = space.left();
        let mut missing = count;
        while missing > 0 {
            #[expect(clippy::cast_possible_truncation, reason = "an order is below 32")]
            let most = order + missing.ilog2() as u8;
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
            missing -= extent.pages() >> order;
            taken.push(extent);
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
