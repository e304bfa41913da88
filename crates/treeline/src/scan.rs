//! Reading ranges, in both directions.
//!
//! A range is read batch by batch (TreeLine, 4.1; rule P23): the pages that the request is likely
//! to need, of one segment or of several neighbours, are locked; their dirty records are copied out
//! of the cache; the pages are read, all together, neighbours in one piece; and both are merged,
//! newer over older. Because of that order, and because a record leaves the cache only after its
//! page was written under the exclusive lock, every record is always in one of the two places.
//! Nothing is held between batches or chunks (P24): the scan continues by key, and skips keys
//! behind it if pages were rewritten meanwhile.
//!
//! Only dirty records ahead of the scan are copied, and for a scan that wants few no more than it
//! may deliver: in a queue whose head is removed, all dirty records are of one page.
//!
//! How many pages are likely to be needed follows from the records that pages held so far, so a
//! short scan reads no page that it does not need, and a long one reads many at a time.

use std::ops::{Bound, Range};

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Result, ValueRef};
use spinney_engine::{Chunk, Direction, ScanRequest};
use spinney_io::{AlignedBuf, Purpose};
use spinney_page::PageView;

use crate::merge::{Dirty, Pages, Records};
use crate::policy::{self, SCAN_PAGES_MAX, SCAN_REMOVED_MAX};
use crate::segment::{Located, PageRef};
use crate::tree::TreeLine;
use spinney_records::{Cached, Visit};

/// Which keys' dirty records a scan passes over, so that their pages show (S12).
pub(crate) type Hidden<'a> = Option<&'a dyn Fn(&[u8]) -> bool>;

/// Some pages of one segment that are read together.
pub(crate) struct Run {
    pub(crate) located: Located,
    pub(crate) pages: Range<usize>,
}

impl TreeLine {
    pub(crate) fn scan_chunk(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        let look = request.first_key_from().and_then(|from| self.memory.gap.look(&from));
        let Some(look) = look else {
            return self.scan_from(Position::start(request), request, None, chunk);
        };
        let mut from = look.from();
        let mut value = Vec::new();
        for (index, key) in look.listed().iter().enumerate() {
            if !request.contains(key) {
                chunk.finished = true;
                self.memory.gap.found_listed(&look, index);
                return Ok(());
            }
            value.clear();
            let found = self.memory.cache.get(self.id_of(key), key, &mut value);
            match found {
                Cached::Present | Cached::Large => {
                    let value = ValueRef { bytes: &value, large: found == Cached::Large };
                    chunk.push(&[key], request.delivered(value));
                    self.workload.accesses.asked_for(false);
                    self.memory.gap.found_listed(&look, index);
                    return Ok(());
                }
                Cached::Absent => self.workload.accesses.asked_for(true),
                // Only its page tells.
                Cached::Unknown => {
                    from = key;
                    break;
                }
            }
        }
        if from == look.from()
            && let Some(gone) = look.listed().first()
        {
            // None of the listed keys is left, and what their page still holds of them takes room
            // for nothing.
            self.background.note_removed(self.shape.index.find(gone).lower.bytes());
        }
        let start = Position::At(from.to_vec());
        // What is named behind the first lies in the pages that are read for it.
        let more = ScanRequest { records_max: look.worth_naming(), ..*request };
        let result = self.scan_from(start, &more, None, chunk);
        if result.is_ok() {
            let found = (0..chunk.len()).map(|index| chunk.get(index).0);
            let end = match &chunk.resume {
                Some(Bound::Included(end)) => Some(end.as_slice()),
                _ => None,
            };
            self.memory.gap.found(look, found, end);
        } else {
            self.memory.gap.found(look, None, None);
        }
        chunk.truncate(request.records_max);
        result
    }

    /// Scans from a position on, past dirty records whose keys are `hidden`.
    pub(crate) fn scan_from(
        &self,
        start: Position,
        request: &ScanRequest<'_>,
        hidden: Hidden<'_>,
        chunk: &mut Chunk,
    ) -> Result<()> {
        let mut pages_min = 1;
        let mut next = Some(start);
        while let Some(position) = next {
            next = loop {
                match self.scan_batch(&position, request, hidden, chunk, &mut pages_min)? {
                    Step::Changed => {}
                    Step::Full => return Ok(()),
                    Step::Done(next) => break next,
                }
            };
            let enough =
                chunk.len() >= request.records_wanted || chunk.bytes() >= request.bytes_max;
            if let Some(position) = &next
                && enough
            {
                chunk.resume = Some(position.bound());
                return Ok(());
            }
        }
        chunk.finished = true;
        Ok(())
    }

    /// Appends the records of one batch of pages, from a position on, to the chunk. Fewer pages
    /// than `pages_min` need not be looked at.
    fn scan_batch(
        &self,
        position: &Position,
        request: &ScanRequest<'_>,
        hidden: Hidden<'_>,
        chunk: &mut Chunk,
        pages_min: &mut usize,
    ) -> Result<Step> {
        let before = chunk.len();
        let version = self.shape.index.version();
        let wanted = self.pages_wanted(request, chunk).max(*pages_min);
        let (runs, next) = self.choose_runs(position, request, wanted);
        let bases = runs.iter().map(|run| run.located.segment.base.page);
        let _segments = self.shape.segment_locks.read_many(bases);
        let base_pages = runs.iter().flat_map(|run| {
            run.pages.clone().map(|index| run.located.segment.base_page(index).page)
        });
        let _pages = self.shape.page_locks.read_many(base_pages);
        let same = |run: &Run| self.shape.index.find(run.located.lower.bytes()) == run.located;
        if self.shape.index.version() != version && !runs.iter().all(same) {
            return Ok(Step::Changed);
        }
        let copies: Vec<DirtyCopies> =
            runs.iter().map(|run| self.copy_wanted(run, position, request, hidden)).collect();
        let refs: Vec<PageRef> = runs.iter().flat_map(Run::refs).collect();
        let mut buf = self.memory.buffers.lend(refs.len().max(1));
        let read = self.read_scanned(&refs, &mut buf, wanted < SCAN_PAGES_MAX)?;
        let mut at = 0;
        for (run, copies) in runs.iter().zip(&copies) {
            let here = at..at + run.refs().count();
            at = here.end;
            let removed = copies.removed();
            self.workload.accesses.passed_removed(removed as u64);
            if removed >= SCAN_REMOVED_MAX {
                self.memory.gap.passed_much();
                self.background.note_removed(run.located.lower.bytes());
            }
            if !self.deliver(run, copies, (&buf, here), position, request, chunk) {
                return Ok(Step::Full);
            }
        }
        // Where pages hold nothing any more, more of them are read each time.
        let in_vain = read && chunk.len() == before;
        if in_vain {
            self.memory.gap.passed_much();
        }
        *pages_min = if in_vain { (2 * *pages_min).min(SCAN_PAGES_MAX) } else { 1 };
        Ok(Step::Done(next))
    }

    /// Appends what the request wants of one run, whose pages lie in these of the buffer. Says
    /// whether it takes more.
    fn deliver(
        &self,
        run: &Run,
        copies: &DirtyCopies,
        (buf, here): (&AlignedBuf, Range<usize>),
        position: &Position,
        request: &ScanRequest<'_>,
        chunk: &mut Chunk,
    ) -> bool {
        let (pages, staged) = run.parse(buf, here);
        if staged.is_empty() && copies.places.is_empty() {
            // Each page is before the next, and most have no overflow page.
            let last = pages.len().wrapping_sub(1);
            return (0..pages.len()).all(|step| {
                let one = match request.direction {
                    Direction::Forward => &pages[step],
                    Direction::Reverse => &pages[last - step],
                };
                match (one.base, one.overflow) {
                    (Some(base), None) => {
                        self.deliver_page(PageView::trusted(base), position, request, chunk)
                    }
                    _ => {
                        let records = Records::merge(std::slice::from_ref(one), &[]);
                        self.workload.accesses.scanned(1, records.len() as u64);
                        deliver_merged(&records, |_| true, position, request, chunk)
                    }
                }
            });
        }
        let records = Records::merge_staged(&pages, &staged, &copies.records());
        self.workload.accesses.scanned(pages.len() as u64, records.len() as u64);
        // Staged pages hold keys of all pages of the segment.
        let whole = staged.is_empty();
        let of_run = |key: &[u8]| whole || run.pages.contains(&run.located.page_of(key));
        deliver_merged(&records, of_run, position, request, chunk)
    }

    /// Appends what the request wants of one page; says whether it takes more.
    fn deliver_page(
        &self,
        view: PageView<'_>,
        position: &Position,
        request: &ScanRequest<'_>,
        chunk: &mut Chunk,
    ) -> bool {
        self.workload.accesses.scanned(1, view.len() as u64);
        self.workload.accesses.filled(1, view.used_bytes() as u64);
        let in_range = view.range(request.lower, request.upper);
        let ahead = position.ahead(&view, request.direction);
        let (start, end) = (in_range.start.max(ahead.start), in_range.end.min(ahead.end));
        let prefix = view.prefix();
        for step in 0..end.saturating_sub(start) {
            if chunk.len() >= request.records_max {
                return false;
            }
            let index = match request.direction {
                Direction::Forward => start + step,
                Direction::Reverse => end - 1 - step,
            };
            chunk.push(&[prefix, view.suffix(index)], request.delivered(view.value(index)));
        }
        true
    }

    /// Reads pages that the caller has locked, those that are not cached, and keeps them if asked
    /// to. Says whether there were any.
    fn read_scanned(&self, pages: &[PageRef], buf: &mut AlignedBuf, keep: bool) -> Result<bool> {
        let missing = self.memory.missing_pages(pages, buf);
        self.shape.read_some(&missing, buf, Purpose::SCAN)?;
        if keep {
            missing.iter().for_each(|(index, page)| self.memory.pages.put(*page, buf.page(*index)));
        }
        Ok(!missing.is_empty())
    }

    /// How many pages are likely to hold what the request still wants.
    fn pages_wanted(&self, request: &ScanRequest<'_>, chunk: &Chunk) -> usize {
        let left = request.records_wanted.saturating_sub(chunk.len());
        let per_page = self.workload.accesses.records_per_scanned_page();
        policy::pages_wanted(left, per_page, request.bytes_max.saturating_sub(chunk.bytes()))
    }

    /// The next `wanted` pages of a scan, and the position after them.
    fn choose_runs(
        &self,
        position: &Position,
        request: &ScanRequest<'_>,
        wanted: usize,
    ) -> (Vec<Run>, Option<Position>) {
        let mut runs = Vec::new();
        let mut left = wanted;
        let mut next = Some(position.clone());
        while let Some(position) = next.take_if(|_| left > 0) {
            let located = match &position {
                Position::At(key) => self.shape.index.find(key),
                Position::Below(key) => match self.shape.index.find_below(key.as_deref()) {
                    Some(located) => located,
                    None => self.shape.index.find(&[]),
                },
            };
            let count = located.segment.base_pages().max(1);
            let here = position.key().map(|key| located.page_of(key));
            let pages = match request.direction {
                Direction::Forward => {
                    let first = here.unwrap_or(0);
                    first..count.min(first + left)
                }
                Direction::Reverse => {
                    let last = here.unwrap_or(count - 1);
                    // Pages that no key can belong to tell nothing of where to go on, and the page
                    // that begins with the key has no key below it.
                    let has_keys = |index: &usize| {
                        let first = located.first_key(*index);
                        first.is_some_and(|first| position.is_ahead(&first, request.direction))
                    };
                    let end = (1..=last).rev().find(has_keys).map_or(1, |last| last + 1);
                    end.saturating_sub(left)..end
                }
            };
            left -= pages.len();
            next = Position::after(&located, &pages, request);
            runs.push(Run { located, pages });
        }
        (runs, next)
    }

    /// Copies those dirty records of a run's pages that a scan at this position may need.
    fn copy_wanted(
        &self,
        run: &Run,
        position: &Position,
        request: &ScanRequest<'_>,
        hidden: Hidden<'_>,
    ) -> DirtyCopies {
        let mut copies = self.copy_dirty(run, |key| {
            request.contains(key)
                && position.is_ahead(key, request.direction)
                && !hidden.is_some_and(|is_hidden| is_hidden(key))
        });
        // One more than is delivered: a page that gives just so many does not look as if nothing
        // came behind.
        copies.keep_first(request.records_max.saturating_add(1), request.direction);
        copies
    }

    /// Copies the dirty records of a run's pages out of the cache, those with keys that are wanted.
    pub(crate) fn copy_dirty(&self, run: &Run, is_wanted: impl Fn(&[u8]) -> bool) -> DirtyCopies {
        let Run { located, pages } = run;
        let mut copies = DirtyCopies::default();
        let mut ids = self.shape.index.dirty(located.lower.bytes(), pages);
        ids.sort_unstable();
        ids.dedup();
        self.memory.cache.visit_all_dirty(&ids, Visit::Look, &mut |_, key, value| {
            let is_here = || located.contains(key) && pages.contains(&located.page_of(key));
            if is_wanted(key) && is_here() {
                copies.push(key, value);
            }
            false
        });
        copies
    }
}

/// Pages of a run, and the staged pages of its segment.
type Parsed<'b> = (Vec<Pages<'b>>, Vec<&'b [u8; PAGE_BYTES]>);

impl Run {
    /// Those of its pages that exist.
    fn existing(&self) -> Range<usize> {
        self.pages.start..self.pages.end.min(self.located.segment.base_pages())
    }

    /// What was read of it into `here` of a buffer, in the order of [`Run::refs`]: its pages, each
    /// with its overflow page, and the staged pages.
    pub(crate) fn parse<'b>(&self, buf: &'b AlignedBuf, here: Range<usize>) -> Parsed<'b> {
        let existing = self.existing();
        let mut overflow = here.start + existing.len();
        let pages = (here.start..)
            .zip(existing)
            .map(|(base, index)| Pages {
                base: Some(buf.page(base)),
                overflow: self.located.segment.overflow(index).map(|_| {
                    overflow += 1;
                    buf.page(overflow - 1)
                }),
            })
            .collect();
        (pages, (overflow..here.end).map(|page| buf.page(page)).collect())
    }

    /// The pages to read: those of the extent, then their overflow pages, then staged pages.
    fn refs(&self) -> impl Iterator<Item = PageRef> + '_ {
        let segment = &self.located.segment;
        let base = self.existing().map(|index| segment.base_page(index));
        let overflows = self.existing().filter_map(|index| segment.overflow(index));
        base.chain(overflows).chain(segment.staged.iter().map(|staged| staged.at))
    }
}

/// Appends what the request wants of merged records; says whether it takes more. As far as it may,
/// what was read is delivered to its end, so that the next chunk need not read it again.
fn deliver_merged(
    records: &Records<'_>,
    of_run: impl Fn(&[u8]) -> bool,
    position: &Position,
    request: &ScanRequest<'_>,
    chunk: &mut Chunk,
) -> bool {
    for step in 0..records.len() {
        let index = match request.direction {
            Direction::Forward => step,
            Direction::Reverse => records.len() - 1 - step,
        };
        let (key, value) = records.get(index);
        // Where the segments changed since the batch before, the page of this position holds keys
        // that were delivered.
        let wanted = request.contains(key) && position.is_ahead(key, request.direction);
        if !wanted || !of_run(key) {
            continue;
        }
        if chunk.len() >= request.records_max {
            return false;
        }
        chunk.push(&[key], request.delivered(value));
    }
    true
}

/// How the reading of one batch ended.
enum Step {
    /// The pages changed before they were locked: look again.
    Changed,
    /// The chunk is full.
    Full,
    /// The chunk has all of the batch that the request wants; the scan continues here.
    Done(Option<Position>),
}

/// Where a value lies, and whether it is the pointer to a large one.
type ValuePlace = (Range<usize>, bool);

/// Copies of dirty records, in one piece of memory.
#[derive(Default)]
pub(crate) struct DirtyCopies {
    bytes: Vec<u8>,
    places: Vec<(Range<usize>, Option<ValuePlace>)>,
}

impl DirtyCopies {
    fn push(&mut self, key: &[u8], value: Option<ValueRef<'_>>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value.unwrap_or(ValueRef::EMPTY).bytes);
        let value = value.map(|value| (middle..self.bytes.len(), value.large));
        self.places.push((start..middle, value));
    }

    /// How many of them are removals.
    fn removed(&self) -> usize {
        self.places.iter().filter(|(_, value)| value.is_none()).count()
    }

    /// Forgets what lies behind the first `most` of them that have values: a scan that wants no
    /// more, and wants each of these, ends there at the latest.
    fn keep_first(&mut self, most: usize, direction: Direction) {
        let DirtyCopies { bytes, places } = self;
        let key = |range: &Range<usize>| &bytes[range.clone()];
        let mut live: Vec<&[u8]> = places
            .iter()
            .filter(|(_, value)| value.is_some())
            .map(|(range, _)| key(range))
            .collect();
        if live.len() <= most || most == 0 {
            return;
        }
        let in_order = |a: &&[u8], b: &&[u8]| match direction {
            Direction::Forward => a.cmp(b),
            Direction::Reverse => b.cmp(a),
        };
        let last = *live.select_nth_unstable_by(most - 1, in_order).1;
        places.retain(|(range, _)| in_order(&key(range), &last).is_le());
    }

    pub(crate) fn records(&self) -> Vec<Dirty<'_>> {
        let place = |range: &Range<usize>| &self.bytes[range.clone()];
        let value = |(range, large): &ValuePlace| ValueRef { bytes: place(range), large: *large };
        self.places.iter().map(|(key, found)| (place(key), found.as_ref().map(value))).collect()
    }
}

/// Which page a scan reads next.
#[derive(Clone)]
pub(crate) enum Position {
    /// The one that a key belongs to.
    At(Vec<u8>),
    /// The one that the greatest key below this one belongs to, or the last one.
    Below(Option<Vec<u8>>),
}

impl Position {
    pub(crate) fn start(request: &ScanRequest<'_>) -> Self {
        match (request.direction, request.lower, request.upper) {
            (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _) => {
                Position::At(key.to_vec())
            }
            (Direction::Forward, Bound::Unbounded, _) => Position::At(Vec::new()),
            (Direction::Reverse, _, Bound::Included(key)) => Position::At(key.to_vec()),
            (Direction::Reverse, _, Bound::Excluded(key)) => Position::Below(Some(key.to_vec())),
            (Direction::Reverse, _, Bound::Unbounded) => Position::Below(None),
        }
    }

    /// The key that the page is found by; none for the last page of all.
    fn key(&self) -> Option<&[u8]> {
        match self {
            Position::At(key) => Some(key),
            Position::Below(key) => key.as_deref(),
        }
    }

    /// Whether a key is not behind it.
    fn is_ahead(&self, key: &[u8], direction: Direction) -> bool {
        match (self, direction) {
            (Position::At(from), Direction::Forward) => key >= from.as_slice(),
            (Position::At(from), Direction::Reverse) => key <= from.as_slice(),
            (Position::Below(bound), _) => {
                bound.as_ref().is_none_or(|bound| key < bound.as_slice())
            }
        }
    }

    /// Which records of a page are not behind it.
    fn ahead(&self, view: &PageView<'_>, direction: Direction) -> Range<usize> {
        match (self, direction) {
            (Position::At(from), Direction::Forward) => {
                view.range(Bound::Included(from), Bound::Unbounded)
            }
            (Position::At(from), Direction::Reverse) => {
                view.range(Bound::Unbounded, Bound::Included(from))
            }
            (Position::Below(bound), _) => {
                let bound = bound.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                view.range(Bound::Unbounded, bound)
            }
        }
    }

    /// Where the part of the range that was not read begins, or in reverse ends.
    fn bound(&self) -> Bound<Vec<u8>> {
        match self {
            Position::At(key) => Bound::Included(key.clone()),
            Position::Below(Some(key)) => Bound::Excluded(key.clone()),
            Position::Below(None) => Bound::Unbounded,
        }
    }

    /// The position of a scan after these pages of a segment; `None` at the end of the range.
    fn after(located: &Located, pages: &Range<usize>, request: &ScanRequest<'_>) -> Option<Self> {
        match request.direction {
            Direction::Forward => {
                let upper = located.upper.as_ref().map(|upper| upper.bytes().to_vec());
                let from = located.first_key(pages.end).or(upper)?;
                (!request.is_past_upper(&from)).then_some(Position::At(from))
            }
            Direction::Reverse => {
                let lower = match pages.start {
                    0 => None,
                    start => located.first_key(start),
                };
                let lower = lower.unwrap_or_else(|| located.lower.bytes().to_vec());
                let past = match request.lower {
                    Bound::Included(bound) | Bound::Excluded(bound) => lower.as_slice() <= bound,
                    Bound::Unbounded => lower.is_empty(),
                };
                (!past).then_some(Position::Below(Some(lower)))
            }
        }
    }
}
