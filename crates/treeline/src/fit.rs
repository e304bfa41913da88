//! Cuts records in key order into segments of 1, 2, 4, 8 or 16 pages with a model each: a pure
//! decision, from keys and sizes alone.
//!
//! ```text
//!   records    |a|b|c|d|e|f|g|h|i|j|k|l|m|n|o|p|q|r| ...      offset = bytes of all before
//!   regression  ----------- one line -----------x             refuses a record after 3.4 pages
//!   piece      |  page 0   |  page 1  |                       2 pages: the greatest size it fills
//!   fed again                         |i|j|k|l| ...
//! ```
//!
//! The regression is fed with the offset of each record and may be off by `epsilon_bytes`; where it
//! refuses, the piece takes the most pages that the line fills to `goal_bytes` each and the records
//! that the line puts there. The rest is fed again, at most as much as was taken, so the work is
//! linear in the records (times 16 at worst, where large records make the count of rule 1 refuse).
//!
//! **Rules**
//! 1. The records of a page, as the piece's model places them, take at most `capacity_bytes`: they
//!    are counted. If they take more, the piece becomes smaller, at last a single page, which is
//!    filled by counting. One record may take more than that; it is alone then.
//! 2. With records of one size and `goal` and `epsilon` multiples of it, a page that a line gives
//!    its records has at most goal + 2 epsilon of them, as the paper says.
//! 3. A piece's lower bound begins with the prefix of its model, so the model is right for every
//!    key from there on ([`model`](crate::model), invariant 4). The first piece has the bound of
//!    the region; each other begins with the shortest key above the piece before it, or, with a
//!    model, with as much of its first record as all of its records share.
//! 4. One page of a piece has room for its origin, however long the bounds
//!    ([`origin`](crate::origin), P22). [`ORIGIN_BYTES`] of it are no part of `capacity_bytes`; the
//!    emptiest page bears the rest. So the bound of a piece may be no longer than the piece before
//!    it bears; what cannot be helped by a shorter bound or fewer records takes a second page,
//!    which stays empty of them.
//!
//! A prefix that a long piece shares may be too short to tell its records apart by 8 bytes, as
//! `https:` says little about the host. So a piece that the regression refuses early is tried again
//! with the prefix of only what it would take.
//!
//! Where no line makes four pages, the piece becomes two or four pages cut at any word where they
//! are full: text is seldom close to a line ([`Fit::steps`]).
//!
//! Paper: 3.2, 4.5, 6; notes 1.1. **Differs from the paper**: offsets in bytes; records that share
//! their 8 bytes have one place in the line, which must be right for the first and last of them;
//! [`Fit::even`] spreads a region's rest; [`Fit::steps`].

use std::ops::Range;

use spinney_page::SLOT_BYTES;

use crate::model::{Model, NO_STEP, word_after};
use crate::origin::{ORIGIN_BYTES, origin_bytes};
use crate::plr::{Line, Plr};
use crate::policy;
use crate::segment::SEGMENT_ORDER_MAX;

/// A record: its key, and the bytes that it takes in a page, slot included, at least 1.
pub(crate) type Sized<'a> = (&'a [u8], usize);

/// How full pages are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// With room for inserts that come, beside what is forecast.
    Room,
    /// As full as is useful, because few inserts will come, if any.
    Packed,
}

/// How records are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    /// How full pages are made, in bytes of records and slots.
    pub(crate) goal_bytes: usize,
    /// How far a line may be off. A page may be filled to `goal_bytes + 2 * epsilon_bytes` by one.
    pub(crate) epsilon_bytes: usize,
    /// What a page holds at most.
    pub(crate) capacity_bytes: usize,
    /// A segment has at most `1 << orders_max` pages, at most 16; 0 makes single pages.
    pub(crate) orders_max: u8,
    /// Whether the goal is lowered a little so that a region's last page is about as full as the
    /// others. Not for appends: later ones fill the last page.
    pub(crate) even: bool,
    /// Whether a model may be steps where a line does worse; if not, models are lines, as in the
    /// paper.
    pub(crate) steps: bool,
    /// Whether rule 4 holds. Not where there are no extents of two pages.
    pub(crate) origins: bool,
}

/// A segment to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Which of the records.
    pub(crate) records: Range<usize>,
    /// The segment's lower bound.
    pub(crate) lower: Vec<u8>,
    /// It has `1 << order` pages.
    pub(crate) order: u8,
    /// Where in it records lie; `None` for one page.
    pub(crate) model: Option<Model>,
    /// The longest origin that its emptiest page has room for, or less, in bytes.
    origin_bytes_max: usize,
}

impl Piece {
    /// How many pages it has.
    pub(crate) fn pages(&self) -> u32 {
        1 << self.order
    }

    /// The page of one of its keys.
    pub(crate) fn page(&self, key: &[u8]) -> u32 {
        self.model.map_or(0, |model| model.page(&self.lower, key, self.pages()))
    }

    /// Where the next piece begins: its first record is `first`, and this one's last is `left`.
    pub(crate) fn next<'a>(&self, left: &'a [u8], first: &[u8]) -> Start<'a> {
        // What bounds share is not in an origin, and the next bound shares as much with this one
        // as its first record does.
        let longest = origin_bytes(&self.lower, Some(first), self.model.is_some());
        let most = self.origin_bytes_max.saturating_add(first.len());
        Start::After(left, most.saturating_sub(longest))
    }
}

/// Where a piece begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start<'a> {
    /// At this key.
    At(&'a [u8]),
    /// Anywhere after this record, the last of the piece before, with a bound of at most this many
    /// bytes if possible.
    After(&'a [u8], usize),
}

/// How many prefixes are tried for a line.
const PREFIXES_MAX: usize = 3;

/// Steps tell at most `1 << STEPS_ORDER_MAX` pages apart.
const STEPS_ORDER_MAX: u8 = 2;

impl Fit {
    /// What suits records of this size (slot included) in pages of this capacity, in whole records,
    /// as a fraction of one is no room. What is not filled is what models may be off by.
    ///
    /// With [`Fill::Room`] about four fifths of a page are filled: 44 and 5 for records of 64
    /// bytes, as in the paper. With [`Fill::Packed`] every page keeps room for one or two records
    /// that come nevertheless, and none where one record takes a large part of the page.
    pub(crate) fn choose(fill: Fill, average_record_bytes: usize, capacity_bytes: usize) -> Fit {
        let average = average_record_bytes.clamp(SLOT_BYTES, capacity_bytes.max(SLOT_BYTES));
        let fit = capacity_bytes / average;
        let goal = match fill {
            Fill::Room => policy::filled_with_room(fit),
            Fill::Packed => policy::filled_packed(fit),
        };
        let goal = goal.max(1);
        Fit {
            goal_bytes: goal * average,
            epsilon_bytes: (fit.max(goal) - goal) * average / 2,
            capacity_bytes,
            orders_max: SEGMENT_ORDER_MAX,
            even: true,
            steps: true,
            origins: true,
        }
    }

    /// Cuts the records of a region, which ascend by key, each key once, into pieces that cover
    /// them all. There is at least one piece, with the region's lower bound.
    pub(crate) fn pieces(
        &self,
        lower: &[u8],
        upper: Option<&[u8]>,
        records: &[Sized<'_>],
    ) -> Vec<Piece> {
        let mut builder = Builder { fit: *self, upper, plr: Plr::default(), loads: Vec::new() };
        let mut pieces: Vec<Piece> = Vec::new();
        let mut from = 0;
        let mut left: usize = records.iter().map(|(_, bytes)| bytes).sum();
        while from < records.len() || pieces.is_empty() {
            if self.even {
                // Computed for each piece, as none takes exactly what it should.
                let pages =
                    left.saturating_sub(self.epsilon_bytes).div_ceil(self.goal_bytes.max(1));
                builder.fit.goal_bytes = self.goal_bytes.min(left.div_ceil(pages.max(1))).max(1);
            }
            let start = match pieces.last() {
                None => Start::At(lower),
                Some(last) => last.next(records[from - 1].0, records[from].0),
            };
            let mut piece = builder.piece(start, &records[from..]);
            piece.records = from..from + piece.records.end;
            left -= records[piece.records.clone()].iter().map(|(_, bytes)| bytes).sum::<usize>();
            from = piece.records.end;
            pieces.push(piece);
        }
        pieces
    }

    /// Cuts only the first piece, for records that arrive in a stream: it is what [`Fit::pieces`]
    /// makes if these records are all that come or are at least [`Fit::window_bytes`].
    pub(crate) fn first_piece(
        &self,
        start: Start<'_>,
        upper: Option<&[u8]>,
        records: &[Sized<'_>],
    ) -> Piece {
        Builder { fit: *self, upper, plr: Plr::default(), loads: Vec::new() }.piece(start, records)
    }

    /// How many bytes of records a piece is chosen from, not counting the last record.
    pub(crate) fn window_bytes(&self) -> usize {
        (self.goal_bytes << self.orders_max.min(SEGMENT_ORDER_MAX)) + 2 * self.epsilon_bytes
    }
}

/// A piece that would be possible.
struct Candidate {
    count: usize,
    order: u8,
    prefix: usize,
    model: Model,
}

struct Builder<'a> {
    fit: Fit,
    /// The bound of all records.
    upper: Option<&'a [u8]>,
    plr: Plr,
    loads: Vec<usize>,
}

impl Builder<'_> {
    /// The first piece of these records.
    fn piece(&mut self, start: Start<'_>, records: &[Sized<'_>]) -> Piece {
        let Some((first, _)) = records.first() else {
            let lower = match start {
                Start::At(lower) => lower.to_vec(),
                Start::After(left, _) => [left, &[0]].concat(),
            };
            let origin_bytes_max = self.origin_room(&[], 1);
            return Piece { records: 0..0, lower, order: 0, model: None, origin_bytes_max };
        };
        let grouped = self.grouped(start, records).filter(|found| {
            let lower = lower(start, first, found.prefix);
            self.bears(&lower, records, found.count, Some(1 << found.order))
        });
        let lower = lower(start, first, grouped.as_ref().map_or(0, |found| found.prefix));
        let (count, order, model) = match grouped {
            Some(Candidate { count, order, model, .. }) => (count, order, Some(model)),
            None => self.alone(&lower, records),
        };
        let origin_bytes_max = self.origin_room(&records[..count], 1 << order);
        Piece { records: 0..count, lower, order, model, origin_bytes_max }
    }

    /// A piece whose records are all in one page: how many records it has, its order and model.
    fn alone(&self, lower: &[u8], records: &[Sized<'_>]) -> (usize, u8, Option<Model>) {
        let most = self.single_page(records);
        let bears = |count: &usize| self.bears(lower, records, *count, None);
        match (1..=most).rev().find(bears) {
            Some(count) if 2 * count >= most => (count, 0, None),
            // Of two pages the model never names the second, which bears the origin.
            _ => match Model::line(0, 0, 0.0, 0.0) {
                Ok(first_page) => (most, 1, Some(first_page)),
                Err(_) => (most, 0, None),
            },
        }
    }

    /// Rule 4 for the first `count` records with the shortest bound that may follow: whether the
    /// emptiest of `pages` pages has room for the origin. `None` means a piece of one page, without
    /// a model.
    fn bears(
        &self,
        lower: &[u8],
        records: &[Sized<'_>],
        count: usize,
        pages: Option<usize>,
    ) -> bool {
        if !self.fit.origins {
            return true;
        }
        let upper = match records.get(count) {
            Some((next, _)) => Some(&next[..shared(records[count - 1].0, next) + 1]),
            None => self.upper,
        };
        let needed = origin_bytes(lower, upper, pages.is_some());
        // Only a record that is alone takes more than the capacity.
        (count > 1 && needed <= ORIGIN_BYTES)
            || needed <= self.origin_room(&records[..count], pages.unwrap_or(1))
    }

    /// Bytes of the longest origin that the emptiest page of these records has room for: that page
    /// is no fuller than the pages are on average.
    fn origin_room(&self, records: &[Sized<'_>], pages: usize) -> usize {
        if !self.fit.origins {
            return usize::MAX;
        }
        let total: usize = records.iter().map(|(_, bytes)| bytes).sum();
        (ORIGIN_BYTES + self.fit.capacity_bytes).saturating_sub(total.div_ceil(pages))
    }

    /// How many records go to a single page: those that fill it to the goal, at least one.
    fn single_page(&self, records: &[Sized<'_>]) -> usize {
        let Fit { goal_bytes: goal, epsilon_bytes, capacity_bytes: capacity, even, .. } = self.fit;
        if even {
            // A little rest is not worth a page.
            if total_within(records, capacity.min(goal + epsilon_bytes)) {
                return records.len();
            }
        }
        let mut used = 0;
        let fits = records.iter().take_while(|(_, bytes)| {
            // Past the goal by more than half of the record, or past the page.
            let fits = used + bytes / 2 < goal && used + bytes <= capacity;
            used += bytes;
            fits
        });
        fits.count().max(1)
    }

    /// The longest piece of several pages that is possible with one of a few prefixes.
    fn grouped(&mut self, start: Start<'_>, records: &[Sized<'_>]) -> Option<Candidate> {
        let orders_max = self.fit.orders_max.min(SEGMENT_ORDER_MAX);
        if orders_max == 0 {
            return None;
        }
        let first = records[0].0;
        // The prefix must be one of the lower bound too.
        let bound = match start {
            Start::At(lower) => shared(lower, first),
            Start::After(_, bytes_max) => first.len().min(bytes_max),
        };
        let bound = bound.min(usize::from(u16::MAX));
        let mut window = begin_within(records, self.fit.window_bytes());
        // No line of two pages ends before here, so a longer prefix than this does not help.
        let two_pages = (2 * self.fit.goal_bytes).saturating_sub(self.fit.epsilon_bytes);
        let two_pages = begin_within(records, two_pages);
        let longest = shared(first, records[two_pages - 1].0).min(bound);
        let mut prefix = shared(first, records[window - 1].0).min(bound);
        let mut best: Option<Candidate> = None;
        for _ in 0..PREFIXES_MAX {
            let fed = self.feed(&records[..window], prefix);
            if let Some(candidate) = self.candidate(records, fed, prefix)
                && best.as_ref().is_none_or(|best| candidate.count > best.count)
            {
                best = Some(candidate);
            }
            if fed == window || best.as_ref().is_some_and(|best| best.order == orders_max) {
                break;
            }
            // A longer prefix tells nothing new where the 8 bytes already hold all of the keys.
            if records[..=fed].iter().all(|(key, _)| key.len() <= prefix + 8) {
                break;
            }
            let next = shared(first, records[fed].0).min(longest);
            if next <= prefix {
                break;
            }
            prefix = next;
            window = records[..window].partition_point(|(key, _)| shared(first, key) >= prefix);
        }
        let order = best.as_ref().map_or(0, |best| best.order);
        if self.fit.steps && order < STEPS_ORDER_MAX.min(orders_max) {
            let orders = (order.max(1)..=STEPS_ORDER_MAX.min(orders_max)).rev();
            let steps = orders.filter_map(|order| self.steps(records, bound, order)).next();
            return steps.or(best);
        }
        best
    }

    /// A piece of `1 << order` pages with steps, filled to the goal on average: what one page has
    /// less or more than that, as records are not cut, the next make good.
    fn steps(&self, records: &[Sized<'_>], bound: usize, order: u8) -> Option<Candidate> {
        let pages = 1_usize << order;
        // What the pages hold is not known before the prefix is, so it is that of a little more,
        // and of one more record: a page ends where the next one's word differs.
        let most = begin_within(records, pages * (self.fit.goal_bytes + self.fit.epsilon_bytes));
        let most = records.len().min(most + 1);
        let first = records[0].0;
        let prefix = shared(first, records[most - 1].0).min(bound);
        let mut steps = [NO_STEP; 3];
        let (mut count, mut used) = (0, 0);
        for step in 0..pages {
            let rest = &records[count..most];
            let goal = ((step + 1) * self.fit.goal_bytes).saturating_sub(used);
            let goal = goal.min(self.fit.capacity_bytes);
            let ends = most == records.len() && step == pages - 1;
            let (taken, bytes) = self.step(rest, prefix, goal, ends)?;
            (count, used) = (count + taken, used + bytes);
            if let Some(step) = steps[..pages - 1].get_mut(step) {
                *step = word_after(records.get(count)?.0, prefix);
            }
        }
        let model = Model::steps(u16::try_from(prefix).ok()?, steps).ok()?;
        Some(Candidate { count, order, prefix, model })
    }

    /// The records that make a page about as full as `goal` and end where the word changes, or with
    /// all records: how many, and their bytes.
    fn step(
        &self,
        records: &[Sized<'_>],
        prefix: usize,
        goal: usize,
        is_last: bool,
    ) -> Option<(usize, usize)> {
        let mut best: Option<(usize, (usize, usize))> = None;
        let mut used = 0;
        for (index, (key, bytes)) in records.iter().enumerate() {
            used += bytes;
            if used > self.fit.capacity_bytes {
                break;
            }
            let off = used.abs_diff(goal);
            if best.is_some_and(|(least, _)| off > least) && used > goal {
                break;
            }
            let word = word_after(key, prefix);
            let ends = match records.get(index + 1) {
                Some((next, _)) => word_after(next, prefix) != word,
                None => is_last,
            };
            if ends && best.is_none_or(|(least, _)| off < least) {
                best = Some((off, (index + 1, used)));
            }
        }
        best.filter(|(off, _)| 2 * off <= self.fit.goal_bytes).map(|(_, found)| found)
    }

    /// Feeds the regression; returns how many records it accepts.
    fn feed(&mut self, records: &[Sized<'_>], prefix: usize) -> usize {
        self.plr.clear();
        let epsilon = offset_of(self.fit.epsilon_bytes);
        let (mut at, mut offset) = (0, 0);
        while at < records.len() {
            let word = word_after(records[at].0, prefix);
            let (mut end, mut last_offset, mut end_offset) = (at, offset, offset);
            while end < records.len() && word_after(records[end].0, prefix) == word {
                last_offset = end_offset;
                end_offset += records[end].1;
                end += 1;
            }
            let (low, high) = (offset_of(last_offset) - epsilon, offset_of(offset) + epsilon);
            if !self.plr.add(word, low, high) {
                break;
            }
            (at, offset) = (end, end_offset);
        }
        at
    }

    /// The largest piece of several pages that the line through the `fed` first records fills.
    fn candidate(&mut self, records: &[Sized<'_>], fed: usize, prefix: usize) -> Option<Candidate> {
        let line = self.plr.finish()?;
        let accepted = &records[..fed];
        let (last, last_bytes) = accepted.last()?;
        let model = self.model_of(line, prefix)?;
        let lower = &records[0].0[..prefix];
        let goal = float(self.fit.goal_bytes);
        #[expect(clippy::cast_precision_loss, reason = "far apart keys need no exact distance")]
        let distance = (word_after(last, prefix) - line.origin) as f64;
        let end = (distance * line.slope + line.intercept).max(0.0) + float(*last_bytes);
        let fills = |order: &u8| float(1 << order) * goal <= end;
        let largest = (1..=self.fit.orders_max.min(SEGMENT_ORDER_MAX)).rev().find(fills)?;
        for order in (1..=largest).rev() {
            let pages = 1_u32 << order;
            let taken =
                accepted.partition_point(|(key, _)| model.page(lower, key, u32::MAX) < pages);
            // A little rest may fit the last page, where the model puts what is beyond.
            let all = self.fit.even && total_within(&records[taken..], self.fit.epsilon_bytes);
            for count in [if all { records.len() } else { taken }, taken] {
                if count > 0 && self.fits_pages(&records[..count], lower, model, pages) {
                    return Some(Candidate { count, order, prefix, model });
                }
            }
        }
        None
    }

    /// The line as a model that counts in pages.
    fn model_of(&self, line: Line, prefix: usize) -> Option<Model> {
        let goal = float(self.fit.goal_bytes.max(1));
        let prefix = u16::try_from(prefix).ok()?;
        Model::line(prefix, line.origin, line.slope / goal, line.intercept / goal).ok()
    }

    /// Rule 1: counts what the model puts on each page.
    fn fits_pages(
        &mut self,
        records: &[Sized<'_>],
        lower: &[u8],
        model: Model,
        pages: u32,
    ) -> bool {
        self.loads.clear();
        self.loads.resize(pages as usize, 0);
        for (key, bytes) in records {
            self.loads[model.page(lower, key, pages) as usize] += bytes;
        }
        self.loads.iter().all(|load| *load <= self.fit.capacity_bytes)
    }
}

/// The lower bound of a piece whose first record is `first` and whose model has a prefix of
/// `prefix` bytes.
fn lower(start: Start<'_>, first: &[u8], prefix: usize) -> Vec<u8> {
    match start {
        Start::At(lower) => lower.to_vec(),
        Start::After(left, _) => {
            let length = (shared(left, first) + 1).max(prefix);
            first[..length.min(first.len())].to_vec()
        }
    }
}

/// How many of the records begin in the first `bytes` bytes, at least 1.
fn begin_within(records: &[Sized<'_>], bytes: usize) -> usize {
    let mut offset = 0;
    let begin = records.iter().take_while(|(_, size)| {
        let begins = offset < bytes;
        offset += size;
        begins
    });
    begin.count().max(1)
}

/// Whether all records take at most `most` bytes together; stops at the first that exceeds them.
fn total_within(records: &[Sized<'_>], most: usize) -> bool {
    let mut left = most;
    records.iter().all(|(_, bytes)| {
        let fits = *bytes <= left;
        left = left.saturating_sub(*bytes);
        fits
    })
}

/// How many bytes two keys share at their beginning.
fn shared(a: &[u8], b: &[u8]) -> usize {
    crate::segment::common_prefix(a, b).len()
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a few pages are exact")]
fn float(bytes: usize) -> f64 {
    bytes as f64
}

/// An offset within a window, which is a few hundred KiB.
fn offset_of(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX).min(1 << 60)
}

#[cfg(test)]
mod tests;
