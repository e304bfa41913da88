//! Levels: the parts of a node's buffer, each of them sorted.
//!
//! ```text
//!   level 1   [ 2 8 11 ]                            a run in memory
//!   level 2   [ 0 1 4 | 5 7 10 ]                    two segments on disk
//!             pivots  <--a--|--b--|--c-->
//!             active  1 1 0   0 1 1                 of each segment, a bit for each pivot
//! ```
//!
//! A level is a list of parts in ascending order. A part is a [`Run`] in memory, of which
//! everything is live, or a [`Segment`] on disk, of which only a part may be. Runs and segments may
//! stand side by side in one level, so that nodes can be joined, levels merged where they overlap,
//! and parts written early, without a rule of their own each (the paper's levels are one or the
//! other).
//!
//! **Invariants** (the numbers of the house's notes on the paper)
//! 1. I2: keys ascend strictly over the live edits of a level.
//! 2. I3: for one key a level above holds the newer edit.
//! 3. I6, I10: an edit of a segment is live if and only if its key lies within the segment's fences
//!    and the bit of its pivot is set. A set bit need not have live edits; a live edit has its bit.
//! 4. Where a part begins ([`Part::lower`]: its first key, or its lower fence, or the first of its
//!    pivots if that is above) is above every live edit of the parts before it. It never moves
//!    down: a pivot's key changes only while the pivot has no live edits.
//!
//! A flush takes everything that is pending for its pivot. The edits of a segment for one pivot
//! therefore are live together or flushed together, and the paper's flushed bounds (3.1), an index
//! per segment and pivot, have nothing to say: a bound would be zero or the bit not set. That is
//! possible because no more than some share of a leaf is pending for a pivot after an update
//! ([`crate::update`]), so a flush is small without being cut.
//!
//! Fences keep flushed edits from coming back when nodes that share a segment after a split are
//! joined again, and tell which one part of a level may hold a key.

use std::ops::{Bound, Range};
use std::sync::Arc;

use spinney_base::{Error, ErrorKind, Result};

use crate::edit::separator;
use crate::files::{Files, Limits, Load, write_parts};
use crate::kinds::purpose;
use crate::merge::{Superseded, Tombstones, merge};
use crate::range::KeyRange;
use crate::run::{Run, Size};
use crate::runs::Runs;

/// A key that cuts. Shared: it is copied into new versions of a node all the time.
pub(crate) type Key = Arc<[u8]>;

/// A set of pivots of one node. While it is updated a node may have more than
/// [`crate::files::PIVOTS_MAX`].
pub(crate) type Pivots = u128;

/// The set of these pivots.
pub(crate) fn set(pivots: Range<usize>) -> Pivots {
    let below = |end: usize| if end >= 128 { Pivots::MAX } else { (1 << end) - 1 };
    below(pivots.end) & !below(pivots.start)
}

/// Which pivot's range holds a key.
pub(crate) fn pivot_of(keys: &[Key], key: &[u8]) -> usize {
    keys[1..].partition_point(|lower| &lower[..] <= key)
}

/// A written leaf in a buffer.
#[derive(Debug)]
pub(crate) struct Segment<F: Files> {
    pub(crate) leaf: Arc<F::Leaf>,
    /// Live edits are not below this.
    pub(crate) lower: Key,
    /// They are below this.
    pub(crate) upper: Option<Key>,
    /// Pivots that have live edits here.
    pub(crate) active: Pivots,
}

/// A piece of a level.
#[derive(Debug)]
pub(crate) enum Part<F: Files> {
    Run(Run),
    Segment(Segment<F>),
}

impl<F: Files> Clone for Segment<F> {
    fn clone(&self) -> Self {
        Segment {
            leaf: Arc::clone(&self.leaf),
            lower: Arc::clone(&self.lower),
            upper: self.upper.clone(),
            active: self.active,
        }
    }
}

impl<F: Files> Clone for Part<F> {
    fn clone(&self) -> Self {
        match self {
            Part::Run(run) => Part::Run(run.clone()),
            Part::Segment(segment) => Part::Segment(segment.clone()),
        }
    }
}

impl<F: Files> Segment<F> {
    pub(crate) fn is_active(&self, pivot: usize) -> bool {
        self.active & set(pivot..pivot + 1) != 0
    }

    /// Where live edits of these pivots can be: from the first key up to, not including, the
    /// second.
    pub(crate) fn span<'a>(
        &'a self,
        keys: &'a [Key],
        pivots: Range<usize>,
    ) -> (&'a [u8], Option<&'a [u8]>) {
        let lower: &[u8] = (&self.lower).max(&keys[pivots.start]);
        let above = keys.get(pivots.end).map(|key| &key[..]);
        (lower, least(self.upper.as_deref(), above))
    }

    /// From the first to behind the last pivot with live edits.
    fn active_range(&self) -> Range<usize> {
        self.active.trailing_zeros() as usize..128 - self.active.leading_zeros() as usize
    }

    /// Where the live edits of some pivots can be, as [`Segment::span`] says it, in order.
    fn spans<'a>(&'a self, keys: &'a [Key], wanted: Pivots) -> Vec<Load<'a, F>> {
        let mut loads = Vec::new();
        let mut left = self.active & wanted;
        while left != 0 {
            let start = left.trailing_zeros() as usize;
            let end = start + (left >> start).trailing_ones() as usize;
            left &= !set(start..end);
            let (lower, upper) = self.span(keys, start..end);
            if upper.is_none_or(|upper| lower < upper) {
                loads.push(Load { leaf: &*self.leaf, lower, upper });
            }
        }
        loads
    }

    /// Reads the live edits of some pivots.
    pub(crate) fn load(&self, files: &F, keys: &[Key], wanted: Pivots) -> Result<Runs> {
        Ok(files.load_many(&self.spans(keys, wanted))?.into_iter().collect())
    }
}

fn least<'a>(a: Option<&'a [u8]>, b: Option<&'a [u8]>) -> Option<&'a [u8]> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (some, None) | (None, some) => some,
    }
}

impl<F: Files> Part<F> {
    /// No live edit is below it.
    pub(crate) fn lower<'a>(&'a self, keys: &'a [Key]) -> &'a [u8] {
        match self {
            Part::Run(run) => run.key(0),
            Part::Segment(segment) => segment.span(keys, segment.active_range()).0,
        }
    }

    /// What has to be read for the live edits of some pivots.
    fn loads<'a>(&'a self, keys: &'a [Key], wanted: Pivots) -> Vec<Load<'a, F>> {
        match self {
            Part::Run(_) => Vec::new(),
            Part::Segment(segment) => segment.spans(keys, wanted),
        }
    }
}

/// Parts in ascending order; none is a vacant level.
#[derive(Debug)]
pub(crate) struct Level<F: Files> {
    pub(crate) parts: Vec<Part<F>>,
}

impl<F: Files> Clone for Level<F> {
    fn clone(&self) -> Self {
        Level { parts: self.parts.clone() }
    }
}

impl<F: Files> Default for Level<F> {
    fn default() -> Self {
        Level { parts: Vec::new() }
    }
}

impl<F: Files> From<Runs> for Level<F> {
    fn from(runs: Runs) -> Self {
        Level { parts: runs.into_vec().into_iter().map(Part::Run).collect() }
    }
}

impl<F: Files> Level<F> {
    /// Packed bytes of its parts, flushed edits included.
    pub(crate) fn bytes(&self, files: &F) -> u64 {
        let bytes = |part: &Part<F>| match part {
            Part::Run(run) => run.bytes(),
            Part::Segment(segment) => files.leaf_bytes(&segment.leaf),
        };
        self.parts.iter().map(bytes).sum()
    }

    pub(crate) fn is_vacant(&self) -> bool {
        self.parts.is_empty()
    }

    /// How many parts begin at or before a key.
    fn begun_at(&self, keys: &[Key], key: &[u8]) -> usize {
        self.parts.partition_point(|part| part.lower(keys) <= key)
    }

    /// The one part that may hold a key of a pivot.
    pub(crate) fn part(&self, keys: &[Key], pivot: usize, key: &[u8]) -> Option<&Part<F>> {
        let part = &self.parts[self.begun_at(keys, key).checked_sub(1)?];
        let may = match part {
            Part::Run(_) => true,
            Part::Segment(segment) => {
                segment.is_active(pivot) && segment.upper.as_deref().is_none_or(|upper| key < upper)
            }
        };
        may.then_some(part)
    }

    /// The parts that may have live edits in a range.
    pub(crate) fn parts_in(&self, keys: &[Key], range: &KeyRange<'_>) -> &[Part<F>] {
        let from = match range.lower {
            // The last of them may reach beyond it.
            Bound::Included(key) | Bound::Excluded(key) => {
                self.begun_at(keys, key).saturating_sub(1)
            }
            Bound::Unbounded => 0,
        };
        let to = match range.upper {
            Bound::Included(key) | Bound::Excluded(key) => self.begun_at(keys, key),
            Bound::Unbounded => self.parts.len(),
        };
        &self.parts[from..to.max(from)]
    }

    /// How many segments it is or will be when it is written.
    pub(crate) fn segments(&self, limits: &Limits) -> usize {
        let mut segments = 0;
        let mut bytes = 0;
        for part in &self.parts {
            match part {
                Part::Run(run) => bytes += run.bytes(),
                Part::Segment(_) => segments += 1 + limits.segments_of(std::mem::take(&mut bytes)),
            }
        }
        segments + limits.segments_of(bytes)
    }

    /// What has to be read to take out what these pivots have.
    pub(crate) fn loads<'a>(
        &'a self,
        keys: &'a [Key],
        pivots: Range<usize>,
    ) -> impl Iterator<Item = Load<'a, F>> {
        self.parts.iter().flat_map(move |part| part.loads(keys, set(pivots.clone())))
    }

    /// Takes out everything live that these pivots have. What [`Level::loads`] said comes from
    /// `loaded`.
    pub(crate) fn take(
        &mut self,
        keys: &[Key],
        pivots: Range<usize>,
        loaded: &mut impl Iterator<Item = Run>,
    ) -> Runs {
        let lower = &keys[pivots.start][..];
        let upper = keys.get(pivots.end).map(|key| &key[..]);
        let wanted = set(pivots);
        let mut taken = Runs::default();
        let mut kept = Vec::with_capacity(self.parts.len() + 1);
        for part in self.parts.drain(..) {
            match part {
                Part::Run(run) => {
                    let from = run.lower_bound(lower);
                    let to = upper.map_or(run.len(), |upper| run.lower_bound(upper)).max(from);
                    let mut keep = |run: Run| {
                        if !run.is_empty() {
                            kept.push(Part::Run(run));
                        }
                    };
                    keep(run.slice(0, from));
                    keep(run.slice(to, run.len()));
                    taken.push(run.slice(from, to));
                }
                Part::Segment(mut segment) => {
                    let loads = segment.spans(keys, wanted).len();
                    taken.extend(loaded.take(loads).collect());
                    segment.active &= !wanted;
                    if segment.active != 0 {
                        kept.push(Part::Segment(segment));
                    }
                }
            }
        }
        self.parts = kept;
        taken
    }

    /// Cuts a level of a node that is split before pivot `middle`, whose key is `keys[middle]`.
    pub(crate) fn split(self, keys: &[Key], middle: usize) -> (Level<F>, Level<F>) {
        let cut = &keys[middle];
        let (mut left, mut right) = (Level::default(), Level::default());
        for part in self.parts {
            match part {
                Part::Run(run) => {
                    let at = run.lower_bound(cut);
                    if at > 0 {
                        left.parts.push(Part::Run(run.slice(0, at)));
                    }
                    if at < run.len() {
                        right.parts.push(Part::Run(run.slice(at, run.len())));
                    }
                }
                Part::Segment(segment) => {
                    let below = segment.active & set(0..middle);
                    if below != 0 {
                        let upper = segment.upper.clone().filter(|upper| upper < cut);
                        let upper = Some(upper.unwrap_or_else(|| Arc::clone(cut)));
                        left.parts.push(Part::Segment(Segment {
                            active: below,
                            upper,
                            ..segment.clone()
                        }));
                    }
                    let active = segment.active >> middle;
                    if active != 0 {
                        let lower = Arc::clone((&segment.lower).max(cut));
                        right.parts.push(Part::Segment(Segment { active, lower, ..segment }));
                    }
                }
            }
        }
        (left, right)
    }

    /// Appends the level of the node behind this one's, which has `pivots` pivots.
    pub(crate) fn join(&mut self, right: Level<F>, pivots: usize) {
        for part in right.parts {
            let Part::Segment(mut segment) = part else {
                self.parts.push(part);
                continue;
            };
            segment.active <<= pivots;
            // What a split of the node had made two is one again.
            if let Some(Part::Segment(before)) = self.parts.last_mut()
                && Arc::ptr_eq(&before.leaf, &segment.leaf)
                && before.upper.as_ref() == Some(&segment.lower)
            {
                before.upper = segment.upper;
                before.active |= segment.active;
                continue;
            }
            self.parts.push(Part::Segment(segment));
        }
    }

    /// Appends a part that was written as a segment; `last` is the last key of the one before, if
    /// that is a part of the same runs.
    pub(crate) fn push_written(
        &mut self,
        keys: &[Key],
        part: &Runs,
        leaf: Arc<F::Leaf>,
        last: &mut Option<Vec<u8>>,
    ) {
        let first = part.first_key().expect("no part is empty");
        let lower = match last {
            Some(last) => separator(last, first).into(),
            None => fence(keys, self.parts.last(), first),
        };
        *last = part.last_key().map(<[u8]>::to_vec);
        let mut active = 0;
        for run in part.as_slice() {
            by_pivot(run, keys, |pivot, _| active |= set(pivot..pivot + 1));
        }
        self.parts.push(Part::Segment(Segment { leaf, lower, upper: None, active }));
    }

    /// Has pivots `old` replaced by `new` others. None of the old ones has live edits.
    pub(crate) fn replace_pivots(&mut self, old: Range<usize>, new: usize) {
        let after = old.start + new;
        for part in &mut self.parts {
            if let Part::Segment(segment) = part {
                debug_assert_eq!(segment.active & set(old.clone()), 0);
                let below = segment.active & set(0..old.start);
                let above = if old.end < 128 { segment.active >> old.end } else { 0 };
                // Where the new ones take the last bit, no pivot is above them.
                segment.active = below | if after < 128 { above << after } else { 0 };
            }
        }
    }
}

/// A short lower fence for a segment that begins with `first`, behind `before`.
fn fence<F: Files>(keys: &[Key], before: Option<&Part<F>>, first: &[u8]) -> Key {
    let pivot = pivot_of(keys, first);
    match before {
        Some(Part::Segment(before)) if before.active & !set(0..pivot) == 0 => {
            Arc::clone(&keys[pivot])
        }
        None => Arc::clone(&keys[pivot]),
        Some(_) => first.into(),
    }
}

/// What of a run belongs to each pivot.
pub(crate) fn by_pivot(run: &Run, keys: &[Key], mut each: impl FnMut(usize, Size)) {
    let mut from = 0;
    while from < run.len() {
        let pivot = pivot_of(keys, run.key(from));
        let to = keys.get(pivot + 1).map_or(run.len(), |upper| run.lower_bound(upper));
        each(pivot, run.slice(from, to).size());
        from = to;
    }
}

/// A part and where it can have live edits.
struct Placed<F: Files> {
    lower: Vec<u8>,
    /// Exclusive.
    upper: Option<Vec<u8>>,
    line: usize,
    part: Part<F>,
}

fn place<F: Files>(keys: &[Key], line: usize, level: Level<F>) -> Vec<Placed<F>> {
    let lowers: Vec<Vec<u8>> = level.parts.iter().map(|part| part.lower(keys).to_vec()).collect();
    let mut nexts =
        lowers[..].iter().skip(1).map(|lower| &lower[..]).collect::<Vec<_>>().into_iter();
    let uppers: Vec<Option<Vec<u8>>> = level
        .parts
        .iter()
        .map(|part| {
            let next = nexts.next();
            match part {
                Part::Run(run) => {
                    let mut above = run.key(run.len() - 1).to_vec();
                    above.push(0);
                    Some(above)
                }
                Part::Segment(segment) => {
                    let upper = segment.span(keys, segment.active_range()).1;
                    least(upper, next).map(<[u8]>::to_vec)
                }
            }
        })
        .collect();
    let places = lowers.into_iter().zip(uppers).zip(level.parts);
    places.map(|((lower, upper), part)| Placed { lower, upper, line, part }).collect()
}

/// What merging levels needs to know of their node.
pub(crate) struct Merging<'a, F: Files> {
    pub(crate) files: &'a F,
    pub(crate) keys: &'a [Key],
    /// Of each pivot, corrected by what older edits of merged keys took.
    pub(crate) pending: &'a mut [u64],
    pub(crate) tombstones: &'a mut [u64],
    pub(crate) run_bytes: u64,
    /// Packed bytes of segments above which they are merged in slices, and what is made of them is
    /// written at once: they were on pages before, and memory has no room for all of them.
    pub(crate) merge_bytes: u64,
    pub(crate) superseded: &'a mut Superseded,
}

impl<F: Files> Merging<'_, F> {
    /// Merges levels, newest first, into one. Parts that overlap no part of another level stay as
    /// they are, unless everything is to be rewritten (`whole`).
    pub(crate) fn merge(&mut self, levels: Vec<Level<F>>, whole: bool) -> Result<Level<F>> {
        let mut placed: Vec<Placed<F>> = Vec::new();
        for (line, level) in levels.into_iter().enumerate() {
            placed.extend(place(self.keys, line, level));
        }
        placed.sort_by(|a, b| a.lower.cmp(&b.lower));
        let mut merged = Level::default();
        let mut cluster: Vec<Placed<F>> = Vec::new();
        // Exclusive; none is above everything.
        let mut end: Option<Vec<u8>> = Some(Vec::new());
        for part in placed {
            let apart = end.as_ref().is_some_and(|end| *end <= part.lower);
            if apart && !whole {
                self.merge_cluster(std::mem::take(&mut cluster), whole, &mut merged)?;
            }
            end = match (end, &part.upper) {
                (Some(end), Some(upper)) => Some(end.max(upper.clone())),
                _ => None,
            };
            cluster.push(part);
        }
        self.merge_cluster(cluster, whole, &mut merged)?;
        Ok(merged)
    }

    fn merge_cluster(
        &mut self,
        cluster: Vec<Placed<F>>,
        whole: bool,
        merged: &mut Level<F>,
    ) -> Result<()> {
        if cluster.len() < 2 && !whole {
            merged.parts.extend(cluster.into_iter().map(|placed| placed.part));
            return Ok(());
        }
        let slices = self.slices(&cluster);
        let writes = slices.len() > 1;
        let mut made = Runs::default();
        let mut last = None;
        for slice in slices {
            made.extend(self.merge_slice(&cluster, slice)?);
            if writes {
                let mut parts = made.full_parts(self.run_bytes);
                made = parts.pop().unwrap_or_default();
                let leaves = write_parts(self.files, &parts, purpose::MERGE)?;
                for (part, leaf) in parts.iter().zip(leaves) {
                    merged.push_written(self.keys, part, leaf, &mut last);
                }
            }
        }
        merged.parts.extend(Level::from(made).parts);
        Ok(())
    }

    /// Ranges of pivots that are merged one after the other: all at once if segments have few
    /// bytes.
    fn slices(&self, cluster: &[Placed<F>]) -> Vec<Range<usize>> {
        let bytes = |placed: &Placed<F>| match &placed.part {
            Part::Run(_) => 0,
            Part::Segment(segment) => self.files.leaf_bytes(&segment.leaf),
        };
        let pivots = self.keys.len();
        if cluster.iter().map(bytes).sum::<u64>() <= self.merge_bytes {
            return std::iter::once(0..pivots).collect();
        }
        let mut slices = Vec::new();
        let (mut start, mut sum) = (0, 0);
        for (pivot, pending) in self.pending.iter().enumerate() {
            if sum > 0 && sum + pending > self.merge_bytes {
                slices.push(start..pivot);
                (start, sum) = (pivot, 0);
            }
            sum += pending;
        }
        slices.push(start..pivots);
        slices
    }

    /// Merges what some pivots have.
    fn merge_slice(&mut self, cluster: &[Placed<F>], slice: Range<usize>) -> Result<Runs> {
        let wanted = set(slice.clone());
        let (lower, upper) = (&self.keys[slice.start][..], self.keys.get(slice.end));
        let parts = cluster.iter().map(|placed| &placed.part);
        let loads: Vec<Load<'_, F>> =
            parts.flat_map(|part| part.loads(self.keys, wanted)).collect();
        let mut loaded = self.files.load_many(&loads)?.into_iter();
        let mut lines: Vec<Runs> = Vec::new();
        for placed in cluster {
            lines.resize_with(lines.len().max(placed.line + 1), Runs::default);
            match &placed.part {
                Part::Run(run) => {
                    lines[placed.line].push(run.between(lower, upper.map(|upper| &upper[..])));
                }
                part => {
                    let loads = part.loads(self.keys, wanted).len();
                    lines[placed.line].extend(loaded.by_ref().take(loads).collect());
                }
            }
        }
        for run in lines.iter().flat_map(Runs::as_slice) {
            let mut known = true;
            by_pivot(run, self.keys, |pivot, size| {
                known &= self.pending[pivot] >= size.bytes;
                self.pending[pivot] = self.pending[pivot].saturating_sub(size.bytes);
                let tombstones = &mut self.tombstones[pivot];
                *tombstones = tombstones.saturating_sub(size.tombstones);
            });
            if !known {
                let message = "a node of the tree says that less is pending than its segments hold";
                return Err(Error::new(ErrorKind::Corruption, message));
            }
        }
        let made = merge(lines, Tombstones::Keep, self.run_bytes, self.superseded);
        for run in made.as_slice() {
            by_pivot(run, self.keys, |pivot, size| {
                self.pending[pivot] += size.bytes;
                self.tombstones[pivot] += size.tombstones;
            });
        }
        Ok(made)
    }
}
