//! Gives the disk space of free pages back to the file system, as holes.
//!
//! When much of a file is free, free extents become holes, the largest first and of equals the
//! highest, for the lowest are reused first. Some are left solid, so that a little work needs no
//! new room, unless the disk is full: then all room is the disk's, for whichever page is written
//! next. Only what is in the free map is touched: its freeing is durable, and nobody may read it
//! (P16, P26).
//!
//! A page that was given back is reused like any other, but the write to it may meet a full disk,
//! as a write that grows the file does. An extent is out of the map while it is punched, so it has
//! no owner meanwhile whose write could be lost.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{PageNumber, Result, probe};

use crate::extents::Wanted;
use crate::store::{Space, Store};

/// Fewest free pages worth the work: 1 MiB.
const FREE_PAGES_MIN: u64 = 256;

/// It begins when one part in this many of the file's space is free, and ends when one part in
/// [`END_PART`] is.
const BEGIN_PART: u64 = 8;
const END_PART: u64 = 32;

/// Least number of free pages that stay allocated.
const SOLID_PAGES_MIN: u64 = 64;

/// Most extents and pages that one call punches.
const EXTENTS_MAX: usize = 64;
const PAGES_MAX: u64 = 4096;

/// How much to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveBack {
    /// A large part of the file, in calls from idle jobs.
    Much,
    /// Everything beyond what stays allocated, before the size of the file is measured.
    Most,
    /// Everything, because the disk is full.
    All,
}

impl Store {
    /// Gives the space of all free pages back.
    ///
    /// # Errors
    /// As [`Store::give_back`].
    pub fn give_all_back(&self) -> Result<()> {
        while self.give_back(GiveBack::All)? > 0 {}
        Ok(())
    }

    /// Gives the space of free pages back. Returns the number of pages that it processed, 0 when
    /// there is nothing to do.
    ///
    /// # Errors
    /// `Io` or `Poisoned`. The pages stay free.
    pub fn give_back(&self, what: GiveBack) -> Result<u64> {
        self.options.poison.check()?;
        let taken = {
            let mut space = self.space.lock();
            let solid = space.free.free_pages().saturating_sub(space.holes.pages());
            let takes = u64::from(space.end).saturating_sub(space.holes.pages());
            let begin = match what {
                GiveBack::Much => FREE_PAGES_MIN.max(takes / BEGIN_PART),
                GiveBack::Most => FREE_PAGES_MIN,
                GiveBack::All => 0,
            };
            let keep = match what {
                GiveBack::Much | GiveBack::Most => SOLID_PAGES_MIN.max(takes / END_PART),
                GiveBack::All => 0,
            };
            space.giving_back =
                space.can_have_holes && solid > keep && (solid > begin || space.giving_back);
            if !space.giving_back {
                return Ok(0);
            }
            let mut most = (solid - keep).min(PAGES_MAX);
            let mut parts = Vec::new();
            let Space { free, holes, .. } = &mut *space;
            let taken = free.take_largest(|extent| {
                if most == 0 || parts.len() == EXTENTS_MAX {
                    return Wanted::Stop;
                }
                let hollow = u64::from(holes.pages_of(extent));
                let pages = (u64::from(extent.pages()) - hollow).min(most);
                if pages == 0 {
                    return Wanted::Pass;
                }
                most -= pages;
                // The end of the extent: its beginning is reused first.
                let part = u32::try_from(pages + hollow).unwrap_or(u32::MAX).min(extent.pages());
                parts.push(part);
                Wanted::Take
            });
            // Until they are free again, no list has them.
            space.punched += taken.iter().map(|extent| u64::from(extent.pages())).sum::<u64>();
            taken.into_iter().zip(parts)
        };
        let _inside = probe::enter("give back");
        let mut result = Ok(());
        let mut pages = 0;
        for (extent, part) in taken {
            let end = extent.page.0 + extent.pages();
            let first = PageNumber(end - part);
            let bytes = u64::from(part) * PAGE_BYTES as u64;
            let punched = match &result {
                Ok(()) => self.file.punch_hole(first.offset(), bytes),
                Err(_) => Ok(false),
            };
            let mut space = self.space.lock();
            space.free.release(extent);
            space.punched -= u64::from(extent.pages());
            match punched {
                Ok(true) => {
                    space.holes.insert(first.0, end);
                    pages += u64::from(part);
                }
                Ok(false) if result.is_ok() => space.can_have_holes = false,
                Ok(false) => {}
                // Even punching may need space.
                Err(error) if error.is_full() => result = Ok(()),
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| pages)
    }
}
