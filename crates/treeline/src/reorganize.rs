//! Reorganization: new segments replace one that is full, or that holds too little, and its
//! neighbours (TreeLine, section 4.5).
//!
//! 1. *Choose*: the segment, and neighbours on both sides, at most
//!    [`REGION_RADIUS`](crate::policy::REGION_RADIUS), as long as they have overflow pages, so that
//!    one reorganization saves several.
//! 2. *Fit*: lock them (O: readers continue), read them whole, merge their pages with their dirty
//!    records, and cut the records into pieces with a model each ([`fit`](crate::fit)).
//! 3. *Place*: make the new segments' pages ([`build`](crate::build)) and write them into new
//!    extents, each in one write.
//! 4. *Switch*: lock exclusively (OX), make the dirty records clean and change the index at once.
//!    The old extents are free once the change is durable ([`publish`](crate::publish)).
//!
//! A segment whose pages have become half empty is rewritten, alone or together with a neighbour,
//! if that takes fewer pages.
//!
//! **Invariants**
//! 1. A region is bounded ([`REGION_PAGES_MAX`](crate::policy::REGION_PAGES_MAX)), and so is the
//!    memory of a reorganization.
//! 2. Nothing is changed before everything new is written, so a failure leaves the old segments and
//!    the dirty records as they were.
//! 3. Write-back's invariants 1, 2 and 4 hold here too.
//!
//! **Crash.** New extents that no durable record names have no owner, and are free at the next
//! open.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Generation, PageNumber, Result, probe};
use spinney_extent::Extent;
use spinney_io::{AlignedBuf, Lent, Purpose};
use spinney_page::PageView;

use crate::build::{NewSegment, Region};
use crate::counters::add;
use crate::fit::{Fill, Fit};
use crate::index::Listed;
use crate::locks::Reorganizing;
use crate::merge::{Dirty, Pages, Records, appends};
use crate::policy::{
    self, REGION_DIRTY_BYTES_MAX, REGION_PAGES_MAX, REGION_RADIUS, SHRUNK_AT_ONCE,
    SMALL_SEGMENT_PAGES,
};
use crate::segment::{Change, Located, PageRef, STAGED_MAX, Segment};
use crate::taken::{Bytes, Taken};
use crate::tree::TreeLine;

/// Why a segment is reorganized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Records find no room.
    Full,
    /// It may take fewer pages.
    Shrink,
    /// It may take fewer pages together with the next one.
    JoinRight,
    /// It may take fewer pages together with the one before.
    JoinLeft,
    /// Its staged pages are to be merged with the others.
    Merge,
    /// Its overflow pages are to be merged with the others.
    Tidy,
    /// Its pages and those behind it may have more room than is of use.
    Pack,
    /// The same, whatever it costs: a caller asked for it.
    Compact,
}

impl Why {
    /// Whether pages are to have as little room as may be.
    fn packs(self) -> bool {
        matches!(self, Why::Pack | Why::Compact)
    }
}

/// The outcome of a reorganization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Other segments replaced the region.
    Done,
    /// They would take no fewer pages.
    NotWorthIt,
    /// Others changed the segments first.
    Changed,
}

/// Neighbouring segments, read and merged with their dirty records.
struct Merged<'a> {
    region: Region<'a>,
    fit: Fit,
    /// The share of the inserts forecast for this region for which room is left.
    new_share: f64,
    /// Pages that the segments have now.
    pages: usize,
}

/// A new extent and what is in it.
type Placed<'p> = (Extent, Generation, NewSegment<'p>);

impl TreeLine {
    /// Reorganizes a segment and, maybe, neighbours.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io`, `Corruption`: everything is as it was.
    pub(crate) fn reorganize(&self, seed: &Located, why: Why) -> Result<Outcome> {
        let region = self.choose_region(seed, why);
        let merges = region.iter().any(|located| !located.segment.staged.is_empty());
        let _inside = probe::enter(if merges { "stage merge" } else { "reorganize" });
        let bases = region.iter().map(|located| located.segment.base.page);
        let held = self.shape.segment_locks.reorganize(bases);
        let unchanged = !region.is_empty()
            && region.iter().all(|old| self.shape.index.find(old.lower.bytes()) == *old);
        if !unchanged {
            return Ok(Outcome::Changed);
        }
        let mut bytes = Bytes::new(&self.memory.buffers);
        let mut taken: Vec<Vec<Taken>> = Vec::with_capacity(region.len());
        let mut shown = Vec::with_capacity(region.len());
        for located in &region {
            let (ids, records) = self.take_all_dirty(located, &mut bytes);
            shown.push(ids);
            taken.push(records);
        }
        // Readers go on until the index changes, so what they must find stays listed until then.
        let forget = || {
            for (located, shown) in region.iter().zip(&shown) {
                self.shape.index.forget_dirty(located.lower.bytes(), shown, &[]);
            }
        };
        let result = self.make_anew(&region, &bytes, &taken, why, &held, forget);
        if !matches!(result, Ok(Outcome::Done)) {
            taken.iter().for_each(|taken| self.end_write(&bytes, taken, false));
        }
        result
    }

    /// The segments that take part, in order; none if the seed is not what it was.
    fn choose_region(&self, seed: &Located, why: Why) -> Vec<Located> {
        let found = self.shape.index.find(seed.lower.bytes());
        let same = found.segment.base == seed.segment.base && found.upper == seed.upper;
        if !same || found.lower != seed.lower {
            return Vec::new();
        }
        let mut pages = found.segment.pages();
        let mut fits = |neighbour: &Located| {
            pages += neighbour.segment.pages();
            pages <= REGION_PAGES_MAX
        };
        let right =
            |of: &Located| of.upper.as_ref().map(|upper| self.shape.index.find(upper.bytes()));
        let left = |of: &Located| self.shape.index.find_below(Some(of.lower.bytes()));
        let mut region = std::collections::VecDeque::from([found.clone()]);
        if why == Why::Shrink {
            return vec![found];
        }
        if why == Why::JoinRight {
            region.extend(right(&found).filter(|neighbour| fits(neighbour)));
            return region.into();
        }
        if why == Why::JoinLeft {
            let neighbour = left(&found).filter(|neighbour| fits(neighbour));
            neighbour.into_iter().for_each(|neighbour| region.push_front(neighbour));
            return region.into();
        }
        if why.packs() {
            while let Some(neighbour) = region.back().and_then(right).filter(&mut fits) {
                region.push_back(neighbour);
            }
            return region.into();
        }
        let gains = |segment: &Segment| match why {
            // Those that go on to stage would have to be merged soon again, but small ones are
            // better one.
            Why::Full | Why::Merge => {
                !segment.overflows.is_empty()
                    || segment.staged.len() + 1 >= STAGED_MAX
                    || (!segment.staged.is_empty() && segment.base_pages() < SMALL_SEGMENT_PAGES)
            }
            _ => segment.has_more(),
        };
        for _ in 0..REGION_RADIUS {
            let Some(neighbour) = region.back().and_then(right) else { break };
            if !gains(&neighbour.segment) || !fits(&neighbour) {
                break;
            }
            region.push_back(neighbour);
        }
        for _ in 0..REGION_RADIUS {
            let Some(neighbour) = region.front().and_then(left) else { break };
            if !gains(&neighbour.segment) || !fits(&neighbour) {
                break;
            }
            region.push_front(neighbour);
        }
        region.into()
    }

    fn take_all_dirty(
        &self,
        located: &Located,
        bytes: &mut Bytes<'_>,
    ) -> (Vec<Listed>, Vec<Taken>) {
        if bytes.len() >= REGION_DIRTY_BYTES_MAX {
            return (Vec::new(), Vec::new());
        }
        let mut room = REGION_DIRTY_BYTES_MAX - bytes.len();
        let most = self.oldest_within(located, &mut room, |_| ());
        self.mark_dirty(located, most, bytes, |_, _| Some(0))
    }

    /// Rebuilds the segments of a region, if that is worth it.
    fn make_anew(
        &self,
        region: &[Located],
        bytes: &Bytes<'_>,
        taken: &[Vec<Taken>],
        why: Why,
        held: &Reorganizing<'_>,
        forget: impl FnOnce(),
    ) -> Result<Outcome> {
        let lsn = self.lsn_of_taken();
        let (buf, pages_in) = self.read_region(region)?;
        let (pages, staged) = pages_of(region, &buf);
        let dirty: Vec<Dirty<'_>> = taken.iter().flatten().map(|one| bytes.dirty(one)).collect();
        let used = |index| PageView::trusted(buf.page(index)).used_bytes() as u64;
        let old_bytes: u64 = (0..pages_in).map(used).sum();
        let records = Records::merge_staged(&pages, &staged, &dirty);
        self.bring_home(&pages, &staged, &dirty);
        let came =
            dirty.len() + staged.iter().map(|page| PageView::trusted(page).len()).sum::<usize>();
        self.workload.novelty.lock().were_written_back(records.inserted(), came);
        let (Some(first), Some(last)) = (region.first(), region.last()) else {
            return Ok(Outcome::NotWorthIt);
        };
        let whole = Region {
            lower: first.lower.bytes(),
            upper: last.upper.as_ref().map(|upper| upper.bytes()),
            records: &records,
        };
        let new_bytes = whole.bytes() as u64;
        let appends = whole.upper.is_none() && staged.is_empty() && appends(&pages, &dirty);
        let fill = if why.packs() { Fill::Packed } else { Fill::Room };
        let fit = self.fit(&whole, fill, appends);
        let forecast = self.tuning.forecast() && why == Why::Full && !appends;
        let new_share = if forecast {
            policy::new_share(records.inserted(), dirty.len()) * self.believed(&whole, &fit)
        } else {
            0.0
        };
        let merged = Merged { region: whole, fit, new_share, pages: pages_in };
        let Some(placed) = self.place(&merged, why)? else { return Ok(Outcome::NotWorthIt) };
        let all = (0..pages_in).map(|index| buf.page(index));
        let superseded = self.superseded_by_merge(all, &records);
        let durable = self.ensure_durable(lsn, taken.iter().flatten(), &superseded);
        if let Err(error) = durable {
            placed.iter().for_each(|(extent, ..)| self.shape.store.release(*extent));
            return Err(error);
        }
        let placed = self.write_segments(placed, lsn)?;
        let change = change_to(region, &placed);
        held.upgrade();
        forget();
        // Clean before anybody may write the new segments: whoever took a record there that was
        // changed meanwhile has marked it for itself, and that mark is not ours to end.
        let record = |sequence| {
            taken.iter().for_each(|taken| self.end_write(bytes, taken, true));
            self.note_change(sequence, &change);
        };
        self.shape.index.apply(&change, |id| self.dirty_keys(id), record)?;
        superseded.iter().for_each(|pointer| self.large.superseded(pointer));
        let pages_out = placed.iter().map(|(.., new)| new.page_count()).sum();
        self.workload.accesses.remade(
            self.shape.index.counts().base_pages(),
            (pages_in as u64, old_bytes),
            (pages_out as u64, new_bytes),
        );
        self.count(why, pages_in, pages_out, dirty.len());
        Ok(Outcome::Done)
    }

    /// Reads the pages of a region in the order of [`Segment::all`], and checks whose they are.
    /// Returns also how many there are.
    fn read_region(&self, region: &[Located]) -> Result<(Lent<'_>, usize)> {
        let refs: Vec<PageRef> = region.iter().flat_map(|located| located.segment.all()).collect();
        let mut buf = self.memory.buffers.lend(refs.len().max(1));
        self.shape.read_pages(&refs, &mut buf, Purpose::REORGANIZE)?;
        let owners = region.iter().flat_map(|one| one.segment.all().map(move |page| (one, page)));
        for (index, (located, page)) in owners.enumerate() {
            self.shape.check_bounds(located, page, buf.page(index))?;
        }
        Ok((buf, refs.len()))
    }

    /// Counts a reorganization of `pages_in` pages into `pages_out`, with `records` dirty records.
    fn count(&self, why: Why, pages_in: usize, pages_out: usize, records: usize) {
        let counters = &self.workload.writes;
        let full = matches!(why, Why::Full | Why::Merge);
        add(&counters.reorganizations, usize::from(full));
        add(&counters.reorganized_pages_in, pages_in);
        add(&counters.reorganized_pages_out, pages_out);
        add(&counters.packed_pages_out, if why.packs() { pages_out } else { 0 });
        add(&counters.pages_written_back, pages_out);
        add(&counters.records_written_back, records);
    }

    /// How the records of a region are to be laid out. A region that is to take fewer pages has few
    /// records: no room is kept there for inserts.
    pub(crate) fn fit(&self, region: &Region<'_>, fill: Fill, appends: bool) -> Fit {
        let room = region.room();
        let average = region.bytes() / region.records.len().max(1);
        let mut fit = Fit::choose(fill, average, room);
        fit.steps &= self.tuning.steps();
        if !self.tuning.page_grouping() {
            fit.orders_max = 0;
        }
        if let Some(goal) = self.tuning.goal() {
            fit.goal_bytes = in_bytes(goal, average).clamp(1, room);
        } else if appends {
            fit.goal_bytes = policy::filled_by_appends(room);
            fit.epsilon_bytes = (room - fit.goal_bytes) / 2;
        }
        if let Some(epsilon) = self.tuning.epsilon() {
            fit.epsilon_bytes = in_bytes(epsilon, average).min(room);
        }
        if appends {
            // Later appends fill the last page.
            fit.even = false;
        }
        fit
    }

    /// The share of the forecast for which room is left: all of it while it is little beside what
    /// the keyspace holds. So a wrong forecast leaves at most that much space unused.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn believed(&self, region: &Region<'_>, fit: &Fit) -> f64 {
        let average = region.bytes() / region.records.len().max(1);
        let page = fit.goal_bytes as f64 / average.max(1) as f64;
        let records = self.shape.index.counts().base_pages() as f64 * page;
        let expected = self.workload.forecaster.forecast(&[], None).inside;
        policy::believed(records, expected)
    }

    /// Cuts the records into segments and finds room for them; `None` if it is not worth it.
    fn place(&self, merged: &Merged<'_>, why: Why) -> Result<Option<Vec<Placed<'_>>>> {
        let mut fit = merged.fit;
        loop {
            let pieces = merged.region.pieces(&fit, |lower, upper| {
                merged.new_share * self.workload.forecaster.forecast(lower, upper).inside
            });
            let pages: u32 = pieces.iter().map(crate::fit::Piece::pages).sum();
            let (now, then) = (merged.pages, pages as usize);
            let saves = match why {
                Why::Pack => policy::packing_pays(now, then),
                Why::Shrink | Why::JoinRight | Why::JoinLeft => policy::shrinking_pays(now, then),
                Why::Compact => then < now,
                Why::Full | Why::Merge | Why::Tidy => true,
            };
            if !saves {
                return Ok(None);
            }
            let mut placed: Vec<Placed<'_>> = Vec::with_capacity(pieces.len());
            let mut failure: Option<Error> = None;
            for segment in merged.region.build(&self.memory.buffers, pieces) {
                match self.allocate(segment.order) {
                    Ok((extent, generation)) => placed.push((extent, generation, segment)),
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            let Some(error) = failure else { return Ok(Some(placed)) };
            placed.iter().for_each(|(extent, ..)| self.shape.store.release(*extent));
            // Where the disk has no long extents left it may have single pages.
            if !error.is_full() || !fit.origins {
                return Err(error);
            }
            (fit.orders_max, fit.origins) = (0, false);
        }
    }

    /// Writes new segments, each in one piece; gives the extents back if that fails.
    fn write_segments<'p>(
        &self,
        mut placed: Vec<Placed<'p>>,
        lsn: spinney_base::Lsn,
    ) -> Result<Vec<Placed<'p>>> {
        for (extent, generation, segment) in &mut placed {
            let base = PageRef { page: extent.page, generation: *generation };
            self.seal_segment(base, lsn, segment);
        }
        let runs: Vec<(PageNumber, &[u8])> =
            placed.iter().map(|(extent, _, segment)| (extent.page, segment.blocks())).collect();
        let written = self.shape.store.write_runs(&runs, Purpose::REORGANIZE);
        if let Err(error) = written {
            placed.iter().for_each(|(extent, ..)| self.shape.store.release(*extent));
            return Err(error);
        }
        Ok(placed)
    }

    pub(crate) fn seal_segment(
        &self,
        base: PageRef,
        lsn: spinney_base::Lsn,
        segment: &mut NewSegment<'_>,
    ) {
        for index in 0..segment.page_count() {
            let page = PageNumber(base.page.0 + u32::try_from(index).unwrap_or(u32::MAX));
            self.seal(PageRef { page, ..base }, lsn, segment.pages.page_mut(index));
        }
    }

    /// Looks at some segments that may take fewer pages; says whether any waited. So many at a time
    /// that the head of a queue, which leaves nearly empty ones behind as fast as they are written,
    /// is followed: what does not fit into the list stays as it is until the keyspace is quiet.
    pub(crate) fn shrink_some(&self) -> Result<bool> {
        for done in 0..SHRUNK_AT_ONCE {
            if !self.shrink_sparse()? {
                return Ok(done > 0);
            }
        }
        Ok(true)
    }

    /// Looks at one segment that may take fewer pages; says whether any waited.
    pub(crate) fn shrink_sparse(&self) -> Result<bool> {
        let Some(key) = self.background.take_sparse() else { return Ok(false) };
        let located = self.shape.index.find(&key);
        if located.lower.bytes() != key || located.segment.is_virtual() {
            return Ok(true);
        }
        let _inside = probe::enter("join");
        let _gate = self.shape.gate.read();
        let try_to = |why| Ok::<_, Error>(self.reorganize(&located, why)? == Outcome::Done);
        let done = (located.segment.pages() > 1 && try_to(Why::Shrink)?)
            || try_to(Why::JoinRight)?
            || try_to(Why::JoinLeft)?;
        if done {
            // The new segment may be joined with another.
            self.background.note_sparse(self.shape.index.find(&key).lower.bytes());
        }
        Ok(true)
    }
}

/// Bytes that `records` records of this size take.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "both are small and positive"
)]
fn in_bytes(records: f32, average: usize) -> usize {
    (f64::from(records) * average as f64).round() as usize
}

/// The change by which the segments of a region give way to new ones.
fn change_to(region: &[Located], placed: &[Placed<'_>]) -> Change {
    let before = region.iter().map(|one| (one.lower.bytes().to_vec(), one.segment.clone()));
    let after = placed.iter().map(|(extent, generation, new)| {
        let base = PageRef { page: extent.page, generation: *generation };
        (new.lower.clone(), Segment::new(base, new.order, new.model))
    });
    Change { before: before.collect(), after: after.collect() }
}

/// The pages of a region, read in the order of [`Segment::all`], and apart from them the staged
/// ones.
fn pages_of<'a>(
    region: &[Located],
    buf: &'a AlignedBuf,
) -> (Vec<Pages<'a>>, Vec<&'a [u8; PAGE_BYTES]>) {
    let mut next = 0;
    let (mut pages, mut staged) = (Vec::new(), Vec::new());
    for Located { segment, .. } in region {
        let base = next;
        next += segment.base_pages();
        for index in 0..segment.base_pages() {
            let overflow = segment.overflow(index).map(|_| {
                next += 1;
                buf.page(next - 1)
            });
            pages.push(Pages { base: Some(buf.page(base + index)), overflow });
        }
        // Of different segments, so that only the order within one matters.
        staged.extend((next..next + segment.staged.len()).map(|page| buf.page(page)));
        next += segment.staged.len();
    }
    (pages, staged)
}
