//! A tree that is read from its root on, whatever is damaged below.
//!
//! Of each leaf the edits are merged with those that wait for it in the buffers on its path, the
//! newest first, as a range from end to end would do. Where a node cannot be read there is a *gap*:
//! of it only the buffers above are known.
//!
//! **Memory**: the nodes of one path, and a few pages of each leaf and segment that a leaf's range
//! has.

use std::collections::HashSet;

use spinney_base::{Generation, PageNumber, Result, ValueRef};
use spinney_engine::{LostRange, Notes, Show, Span};
use spinney_extent::{FoundPage, HEADER_BYTES, PageRun, Store};
use spinney_io::AlignedBuf;

use super::edits::{Edits, Pages, Use};
use crate::kinds::block;
use crate::leaf::blob;
use crate::leaf::format::{Description, PAYLOAD};
use crate::packed::{PackedNode, PackedSegment, Root};
use crate::run::Op;

/// First page and generation: they tell one run of pages of the file from any other, at any time.
pub(super) type RunId = (PageNumber, Generation);

/// A segment and where its edits are live.
#[derive(Clone, Copy, Debug)]
struct Waiting<'a> {
    description: Description,
    span: Span<'a>,
}

/// What lies below a node's buffer for a range.
pub(super) enum Bottom {
    Leaf(Description),
    /// A node or a description that cannot be read. Its generation, if that is known: whatever is
    /// below has a lower one.
    Gap(Option<Generation>),
}

/// Takes the range of each leaf or gap, what waits for it above, and which it is.
type Visit<'v> = dyn FnMut(Span<'_>, &[Waiting<'_>], Bottom) -> Result<()> + 'v;

/// A range below a node that cannot be read.
#[derive(Debug)]
pub(super) struct Gap {
    pub(super) range: LostRange,
    pub(super) below: Option<Generation>,
}

/// What a tree consists of, as far as its nodes can be read.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) gaps: Vec<Gap>,
    pub(super) named: HashSet<RunId>,
}

/// A tree of a store.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    store: &'a Store,
    notes: &'a mut Notes,
    /// Whether a page of a node was one of another time.
    is_of_another_time: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(store: &'a Store, notes: &'a mut Notes) -> Walk<'a> {
        Walk { store, notes, is_of_another_time: false }
    }

    /// Whether everything that the root leads to is of its time or damaged. If not, pages were
    /// never written, or others were in their places since.
    pub(super) fn is_of_its_time(&mut self, root: &[u8]) -> Result<bool> {
        let survey = self.survey(root)?;
        let mut buf = AlignedBuf::new(1);
        let mut other = |(first, generation): &RunId| {
            let run = PageRun { first: *first, pages: 1, generation: *generation };
            let found = self.store.read_found(&run, 0, block::LEAF, &mut buf);
            matches!(found[..], [FoundPage::Other(_)])
        };
        Ok(!self.is_of_another_time && !survey.named.iter().any(&mut other))
    }

    /// Finds out what a tree consists of.
    pub(super) fn survey(&mut self, root: &[u8]) -> Result<Survey> {
        let mut survey = Survey::default();
        let Survey { gaps, named } = &mut survey;
        self.walk(root, &mut |span, above, bottom| {
            let runs = above.iter().map(|waiting| waiting.description);
            named.extend(runs.map(|it| (it.first, it.generation)));
            match bottom {
                Bottom::Leaf(leaf) => _ = named.insert((leaf.first, leaf.generation)),
                Bottom::Gap(below) => gaps.push(Gap { range: span.to_range(), below }),
            }
            Ok(())
        })?;
        Ok(survey)
    }

    /// Shows the records of a tree. Above gaps removals are shown, too.
    ///
    /// # Errors
    /// Errors of `show`.
    pub(super) fn records(&mut self, root: &[u8], show: &mut Show<'_>) -> Result<()> {
        let mut notes = Notes::default();
        let store = self.store;
        let mut checked: HashSet<RunId> = HashSet::new();
        self.walk(root, &mut |span, above, bottom| {
            let leaf = if let Bottom::Leaf(leaf) = bottom { Some(leaf) } else { None };
            for it in above.iter().map(|waiting| waiting.description).chain(leaf) {
                if checked.insert((it.first, it.generation)) {
                    Pages::new(store, it, Use::Named).check_front(&mut notes);
                }
            }
            let above = above.iter().map(|waiting| {
                let Span { lower, upper } = waiting.span;
                Edits::new(store, waiting.description, Use::Named, lower, upper)
            });
            let mut lines: Vec<Edits<'_>> = above.collect();
            let Span { lower, upper } = span;
            lines.extend(leaf.map(|leaf| Edits::new(store, leaf, Use::Named, lower, upper)));
            merge(store, lines, leaf.is_some(), &mut notes, show)
        })?;
        self.notes.add(notes);
        Ok(())
    }

    fn walk(&mut self, root: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        let all = Span::ALL;
        match Root::decode(root) {
            Ok(Root::Empty) => Ok(()),
            Ok(Root::Leaf(leaf)) => visit(all, &[], leaf_or_gap(leaf)),
            Ok(Root::Node(node)) => self.node(node, None, all, &[], &mut HashSet::new(), visit),
            Err(_) => visit(all, &[], Bottom::Gap(None)),
        }
    }

    /// `height` is what its parent says that it must have.
    fn node(
        &mut self,
        description: &[u8],
        height: Option<u8>,
        span: Span<'_>,
        above: &[Waiting<'_>],
        seen: &mut HashSet<RunId>,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let Ok((run, length)) = blob::decode(description) else {
            return visit(span, above, Bottom::Gap(None));
        };
        // A node has one parent.
        let is_new = seen.insert((run.first, run.generation));
        let (notes, another) = (&mut *self.notes, &mut self.is_of_another_time);
        let mut met = |page: PageNumber, found: &FoundPage| {
            *another |= matches!(found, FoundPage::Other(_));
            notes.page(page, found);
        };
        let node = is_new.then(|| read_node(self.store, &run, Some(length), &mut met)).flatten();
        let Some(node) = node.filter(|node| height.is_none_or(|height| height == node.height))
        else {
            return visit(span, above, Bottom::Gap(Some(run.generation)));
        };
        let uppers = node.pivots.iter().skip(1).map(|pivot| Some(&pivot.lower[..])).chain([None]);
        for (index, (pivot, upper)) in node.pivots.iter().zip(uppers).enumerate() {
            let Some(span) = span.meet(&pivot.lower, upper) else { continue };
            let of_parents = above.iter().filter_map(|waiting| {
                let live = waiting.span.meet(span.lower, span.upper)?;
                Some(Waiting { span: live, ..*waiting })
            });
            let segments = node.levels.iter().flatten();
            let own = segments.filter_map(|segment| {
                let live = live(segment, index, span)?;
                match Description::decode(&segment.leaf) {
                    Ok(description) => Some(Waiting { description, span: live }),
                    Err(_) => {
                        self.notes.older(live.to_range());
                        None
                    }
                }
            });
            let above: Vec<Waiting<'_>> = of_parents.chain(own).collect();
            if node.height == 1 {
                visit(span, &above, leaf_or_gap(&pivot.child))?;
            } else {
                self.node(&pivot.child, Some(node.height - 1), span, &above, seen, visit)?;
            }
        }
        Ok(())
    }
}

fn leaf_or_gap(description: &[u8]) -> Bottom {
    Description::decode(description).map_or(Bottom::Gap(None), Bottom::Leaf)
}

/// Where edits of a segment are live for a pivot, whose range is given.
pub(super) fn live<'a>(
    segment: &'a PackedSegment,
    pivot: usize,
    span: Span<'a>,
) -> Option<Span<'a>> {
    let is_active = segment.active >> pivot & 1 != 0;
    is_active.then(|| span.meet(&segment.lower, segment.upper.as_deref()))?
}

/// Reads a node. If its length is unknown, zeros are behind it.
pub(super) fn read_node(
    store: &Store,
    run: &PageRun,
    length: Option<u32>,
    met: &mut dyn FnMut(PageNumber, &FoundPage),
) -> Option<PackedNode> {
    let mut buf = AlignedBuf::new(run.pages as usize);
    let found = store.read_found(run, 0, block::NODE, &mut buf);
    for (index, found) in found.iter().enumerate() {
        met(PageNumber(run.first.0 + index as u32), found);
    }
    if found.iter().any(|found| *found != FoundPage::Whole) {
        return None;
    }
    let mut bytes = Vec::with_capacity(run.pages as usize * PAYLOAD);
    (0..buf.pages()).for_each(|index| bytes.extend_from_slice(&buf.page(index)[HEADER_BYTES..]));
    match length {
        Some(length) => {
            bytes.truncate(length as usize);
            PackedNode::decode(&bytes).ok()
        }
        None => {
            let (node, rest) = PackedNode::decode_first(&bytes).ok()?;
            rest.iter().all(|byte| *byte == 0).then_some(node)
        }
    }
}

/// Shows the newest edit of each key of some lines, newest first. The last one is a leaf's if
/// `has_leaf`; otherwise removals are shown.
fn merge(
    store: &Store,
    mut lines: Vec<Edits<'_>>,
    has_leaf: bool,
    notes: &mut Notes,
    show: &mut Show<'_>,
) -> Result<()> {
    let count = lines.len();
    loop {
        let mut least: Option<Vec<u8>> = None;
        for (index, line) in lines.iter_mut().enumerate() {
            if let Some(edit) = line.peek(notes)
                && least.as_ref().is_none_or(|least| edit.key < *least)
            {
                least = Some(edit.key.clone());
            }
            for hole in std::mem::take(&mut line.holes) {
                if has_leaf && index + 1 == count { notes.lost(hole) } else { notes.older(hole) }
            }
        }
        let Some(key) = least else { return Ok(()) };
        let (mut is_known, mut is_damaged) = (false, false);
        for line in &mut lines {
            if line.peek(notes).is_none_or(|edit| edit.key != key) {
                continue;
            }
            let Some(edit) = line.take().filter(|_| !is_known) else { continue };
            is_known = match edit.op {
                Op::Delete => {
                    if !has_leaf {
                        show(store, &key, None)?;
                    }
                    // What was removed before its newest value came is lost with that.
                    if is_damaged {
                        notes.key(&key, false);
                    }
                    true
                }
                Op::Put | Op::PutLarge => match line.value(&edit, notes) {
                    Some(bytes) => {
                        let large = edit.op == Op::PutLarge;
                        show(store, &key, Some(ValueRef { bytes: &bytes, large }))?;
                        if is_damaged {
                            notes.key(&key, true);
                        } else {
                            notes.whole();
                        }
                        true
                    }
                    None => {
                        is_damaged = true;
                        false
                    }
                },
            };
        }
        if !is_known {
            notes.key(&key, false);
        }
    }
}
