//! Frame allocation and eviction: the lists of free frames and the two CLOCK hands.
//!
//! ```text
//!            used again when the hand comes
//!   cold  ------------------------------------>  hot
//!    |   <------------------------------------    |
//!    |    uses counted down to none, when hot     |
//!    v    is over its share                       v  (never leaves directly)
//!   gone, when not used since it came
//! ```
//!
//! Dirty pages stay in the hot region until they were written back: the cold hand moves one that it
//! meets there, and the hot hand lowers its count and leaves it.
//!
//! **Invariants**
//! 1. A frame is free (with memory), absent (without), being emptied or in one region; free and
//!    absent ones are held exclusively, so that readers and hands pass by.
//! 2. Frames that are not absent are no more than the limit, or every frame that could go is
//!    pinned or dirty.
//! 3. A search ends: after so many steps it says that there is no frame.

use crate::frames::Frames;
use crate::page::Kind;

/// The cold region has at least one part in this many of all frames. Pages that are used once pass
/// through it, so it is small. With a fourth, pages of keys that are used often were evicted for
/// pages of values that hardly are.
const COLD_PART: u32 = 16;

/// Number of evictions for each unforced step of the hot hand.
const EVICTIONS_A_STEP: u64 = 8;

/// The region of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Region {
    None,
    Cold,
    Hot,
}

/// The lists, regions and hands; used under the cache's lock.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Held frames with memory.
    free: Vec<u32>,
    /// Held frames without memory.
    absent: Vec<u32>,
    regions: Vec<Region>,
    hot: u32,
    cold: u32,
    evictions: u64,
    hot_hand: usize,
    cold_hand: usize,
    /// Most frames that may have memory.
    limit: u32,
}

/// A frame for a new page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// A held, empty frame, in the region of the kind.
    Frame(u32),
    /// Every frame is in use.
    None,
}

impl Clock {
    /// Returns the number of frames with memory, including free ones.
    pub(crate) fn resident(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "frames are counted by 32 bits")]
        let all = self.regions.len() as u32 - self.absent.len() as u32;
        all
    }

    /// Returns the number of frames that were ever used.
    pub(crate) fn frames(&self) -> u32 {
        self.resident() + u32::try_from(self.absent.len()).unwrap_or(u32::MAX)
    }

    /// Returns the numbers of frames in the hot and in the cold region.
    pub(crate) fn regions(&self) -> (u32, u32) {
        (self.hot, self.cold)
    }

    /// Sets how many frames may have memory. [`Clock::surplus`] enforces it.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Returns a held and empty frame above the limit, if one can be evicted. The caller gives its
    /// memory back, and then calls [`Clock::put_absent`].
    pub(crate) fn surplus(&mut self, frames: &Frames, empty: &mut Emptier<'_>) -> Option<u32> {
        if self.resident() <= self.limit {
            return None;
        }
        self.free.pop().or_else(|| self.victim(frames, empty))
    }

    /// Adds a frame without memory.
    pub(crate) fn put_absent(&mut self, frame: u32) {
        self.absent.push(frame);
    }

    /// Adds an empty frame.
    pub(crate) fn put_free(&mut self, frame: u32) {
        self.set_region(frame, Region::None);
        self.free.push(frame);
    }

    /// Returns a held frame for a page of `kind`: a free one, a new one, or one whose page is
    /// evicted.
    pub(crate) fn take(&mut self, frames: &Frames, kind: Kind, empty: &mut Emptier<'_>) -> Taken {
        let frame = if self.resident() > self.limit {
            None
        } else if let Some(frame) = self.free.pop() {
            Some(frame)
        } else if self.resident() < self.limit {
            Some(self.absent.pop().unwrap_or_else(|| self.grow(frames)))
        } else {
            self.victim(frames, empty)
        };
        let Some(frame) = frame else { return Taken::None };
        self.set_region(frame, if kind.begins_hot() { Region::Hot } else { Region::Cold });
        Taken::Frame(frame)
    }

    fn grow(&mut self, frames: &Frames) -> u32 {
        let frame = self.frames();
        frames.reach(frame);
        frames.state(frame).hold_new();
        self.regions.push(Region::None);
        frame
    }

    fn set_region(&mut self, frame: u32, region: Region) {
        let place = &mut self.regions[frame as usize];
        match std::mem::replace(place, region) {
            Region::None => {}
            Region::Cold => self.cold -= 1,
            Region::Hot => self.hot -= 1,
        }
        match region {
            Region::None => {}
            Region::Cold => self.cold += 1,
            Region::Hot => self.hot += 1,
        }
    }

    /// Empties the first unused frame of the cold region that the hand meets.
    fn victim(&mut self, frames: &Frames, empty: &mut Emptier<'_>) -> Option<u32> {
        self.age(frames);
        let mut can_cool = true;
        for _ in 0..2 * (self.hot + self.cold) {
            let hot_max = self.resident() - self.resident().div_ceil(COLD_PART);
            while can_cool && (self.hot > hot_max || self.cold == 0) {
                can_cool = self.cool_one(frames);
            }
            let frame = next(&self.regions, &mut self.cold_hand, Region::Cold)?;
            if frames.uses(frame) > 0 || frames.state(frame).see().is_dirty() {
                // Used since it came, or since the hot hand left it; or not to be evicted.
                self.set_region(frame, Region::Hot);
            } else if frames.state(frame).hold() {
                empty(frame);
                self.set_region(frame, Region::None);
                return Some(frame);
            } else {
                // All of the cold region may be pinned.
                can_cool = can_cool && self.cool_one(frames);
            }
        }
        None
    }

    /// Moves the hot hand by a step at every eighth eviction, even if the hot region is not over
    /// its share. Otherwise old hot pages would stay for as long as nothing else becomes hot.
    fn age(&mut self, frames: &Frames) {
        self.evictions = self.evictions.wrapping_add(1);
        if self.evictions.is_multiple_of(EVICTIONS_A_STEP) {
            let at = if self.hot_hand < self.regions.len() { self.hot_hand } else { 0 };
            self.hot_hand = at + 1;
            if let (Some(Region::Hot), Ok(frame)) = (self.regions.get(at), u32::try_from(at)) {
                self.pass(frames, frame);
            }
        }
    }

    /// Moves the hot hand past a frame.
    fn pass(&mut self, frames: &Frames, frame: u32) -> Passed {
        let uses = frames.uses(frame);
        if uses > 0 {
            frames.set_uses(frame, uses - 1);
        }
        if frames.state(frame).see().is_dirty() {
            Passed::Dirty
        } else if uses > 0 {
            Passed::Used
        } else {
            self.set_region(frame, Region::Cold);
            Passed::Cooled
        }
    }

    /// Moves one page from the hot region to the cold one. Returns `false` if there is none.
    fn cool_one(&mut self, frames: &Frames) -> bool {
        let mut dirty = 0;
        // After as many laps as the highest priority, some count is zero.
        for _ in 0..(u64::from(Kind::PRIORITY_MAX) + 2) * u64::from(self.hot) {
            let Some(frame) = next(&self.regions, &mut self.hot_hand, Region::Hot) else { break };
            match self.pass(frames, frame) {
                Passed::Cooled => return true,
                Passed::Used => dirty = 0,
                Passed::Dirty => dirty += 1,
            }
            if dirty >= self.hot {
                // All of the region is.
                break;
            }
        }
        false
    }
}

/// What the hot hand did about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    /// It counted a use down.
    Used,
    /// It left a dirty page.
    Dirty,
    /// It moved the frame to the cold region.
    Cooled,
}

/// Removes the page of a held frame: the table of its file names the frame no longer.
pub(crate) type Emptier<'a> = dyn FnMut(u32) + 'a;

/// Returns the next frame of a region from a hand on.
fn next(regions: &[Region], hand: &mut usize, region: Region) -> Option<u32> {
    for _ in 0..regions.len() {
        let at = if *hand < regions.len() { *hand } else { 0 };
        *hand = at + 1;
        if regions[at] == region {
            return u32::try_from(at).ok();
        }
    }
    None
}
