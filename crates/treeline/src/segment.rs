//! Segments: where the records of one range of keys lie (TreeLine, sections 3.2 and 4.4).
//!
//! ```text
//!   lower bound <= keys < upper bound                       extent of 2^order pages
//!   +-----------------------------------+   model(key)   +------+------+------+------+
//!   | base page, generation, order,     | -------------> |  0   |  1   |  2   |  3   |
//!   | model, overflow pages             |                +------+------+------+------+
//!   +-----------------------------------+                          |
//!                                                        +---------v-+
//!                                                        | overflow  |  at most one per base page
//!                                                        +-----------+
//! ```
//!
//! A segment may also have *staged* pages: sorted runs of newer records of any of its keys, which
//! wait to be merged with all the others ([`stage`](crate::stage)). A lookup asks them first.
//!
//! A record lies in the page that the segment's [`Model`] gives its key, or in that page's overflow
//! page. The model decides where a record is put as well as where it is looked for, so it need not
//! be exact to be right; it rises with the key, so pages are in the order of keys.
//!
//! **Invariants**
//! 1. A segment of one page has no model; one of several has.
//! 2. All pages of the extent bear the extent's generation, an overflow page its own.
//! 3. Bounds, extent and model of a segment never change: what changes them makes a new segment of
//!    a new generation. Only overflow pages and staged pages are added.
//! 4. What a staged page says of a key is newer than what pages of the extent, their overflow pages
//!    and staged pages before it say; none of these is edited for such a key while it is there.

use std::borrow::Borrow;

use spinney_base::{Generation, PageNumber};
use spinney_extent::Extent;
use thin_vec::ThinVec;

use crate::marks::Marks;
use crate::model::Model;

/// Largest segment: 16 pages.
pub(crate) const SEGMENT_ORDER_MAX: u8 = 4;

/// Most staged pages of a segment.
pub(crate) const STAGED_MAX: usize = 4;

/// Longest key that the index keeps without an allocation of its own.
const INLINE_BYTES: usize = 22;

/// A key of the index. Short ones take 24 bytes and nothing else.
#[derive(Clone)]
pub(crate) enum IndexKey {
    /// Length and bytes.
    Inline(u8, [u8; INLINE_BYTES]),
    /// Elsewhere.
    Heap(Box<[u8]>),
}

const _: () = assert!(size_of::<IndexKey>() == 24);

impl IndexKey {
    pub(crate) fn new(key: &[u8]) -> Self {
        match u8::try_from(key.len()) {
            Ok(length) if key.len() <= INLINE_BYTES => {
                let mut bytes = [0; INLINE_BYTES];
                bytes[..key.len()].copy_from_slice(key);
                IndexKey::Inline(length, bytes)
            }
            _ => IndexKey::Heap(key.into()),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            IndexKey::Inline(length, bytes) => &bytes[..usize::from(*length)],
            IndexKey::Heap(bytes) => bytes,
        }
    }
}

impl Borrow<[u8]> for IndexKey {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

impl PartialEq for IndexKey {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for IndexKey {}

impl PartialOrd for IndexKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for IndexKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.bytes().cmp(other.bytes())
    }
}

impl std::fmt::Debug for IndexKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.bytes().escape_ascii())
    }
}

/// A page and the allocation that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PageRef {
    pub(crate) page: PageNumber,
    pub(crate) generation: Generation,
}

/// The overflow page of one page of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow {
    /// Which page of the segment it belongs to.
    pub(crate) index: u8,
    pub(crate) at: PageRef,
}

/// A staged page of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged {
    pub(crate) at: PageRef,
    pub(crate) marks: Marks,
}

impl PartialEq for Staged {
    /// Marks are a hint: what the log tells of the same page has others.
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

/// Where a segment lies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    /// The first page.
    pub(crate) base: PageRef,
    /// The binary logarithm of the number of pages.
    pub(crate) order: u8,
    pub(crate) model: Option<Model>,
    /// In the order of the pages they belong to.
    pub(crate) overflows: ThinVec<Overflow>,
    /// Oldest first.
    pub(crate) staged: ThinVec<Staged>,
}

impl Segment {
    /// The one segment of a keyspace that never held data: no page lies behind it yet.
    pub(crate) fn virtual_one() -> Self {
        Segment::new(PageRef { page: PageNumber::NONE, generation: Generation(0) }, 0, None)
    }

    /// A segment without overflow pages.
    pub(crate) fn new(base: PageRef, order: u8, model: Option<Model>) -> Self {
        Segment { base, order, model, overflows: ThinVec::new(), staged: ThinVec::new() }
    }

    /// Whether no page lies behind it.
    pub(crate) fn is_virtual(&self) -> bool {
        self.base.page == PageNumber::NONE
    }

    /// How many pages the extent has; none if the segment is virtual.
    pub(crate) fn base_pages(&self) -> usize {
        if self.is_virtual() { 0 } else { 1 << self.order }
    }

    /// Which page of the extent a key belongs to; `lower` is the segment's lower bound.
    pub(crate) fn page_of(&self, lower: &[u8], key: &[u8]) -> usize {
        self.model.map_or(0, |model| model.page(lower, key, 1 << self.order) as usize)
    }

    /// Page `index` of the extent.
    pub(crate) fn base_page(&self, index: usize) -> PageRef {
        let index = u32::try_from(index).expect("a segment has at most 16 pages");
        PageRef { page: PageNumber(self.base.page.0 + index), ..self.base }
    }

    /// The overflow page of page `index`.
    pub(crate) fn overflow(&self, index: usize) -> Option<PageRef> {
        let found = self.overflows.iter().find(|overflow| usize::from(overflow.index) == index);
        found.map(|overflow| overflow.at)
    }

    /// The same segment with one more overflow page.
    pub(crate) fn with_overflow(&self, overflow: Overflow) -> Self {
        let mut segment = self.clone();
        let at = segment.overflows.partition_point(|before| before.index < overflow.index);
        segment.overflows.insert(at, overflow);
        segment
    }

    /// The same segment with one more staged page; `None` when it has as many as it may have.
    pub(crate) fn with_staged(&self, page: Staged) -> Option<Self> {
        let mut segment = self.clone();
        segment.staged.push(page);
        (segment.staged.len() <= STAGED_MAX).then_some(segment)
    }

    /// Whether it has pages beside its extent, so that a reorganization would gain something.
    pub(crate) fn has_more(&self) -> bool {
        !self.overflows.is_empty() || !self.staged.is_empty()
    }

    /// All pages that exist: those of the extent, then the overflow pages in the order of those,
    /// then the staged pages, oldest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = PageRef> + '_ {
        let base = (0..self.base_pages()).map(|index| self.base_page(index));
        let overflows = self.overflows.iter().map(|overflow| overflow.at);
        base.chain(overflows).chain(self.staged.iter().map(|staged| staged.at))
    }

    /// Everything that it owns: its extent, its overflow pages and its staged pages.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (Extent, Generation)> + use<> {
        let PageRef { page, generation } = self.base;
        let base = (!self.is_virtual()).then_some((Extent { page, order: self.order }, generation));
        let single = |at: PageRef| (Extent::single(at.page), at.generation);
        let overflows = self.overflows.iter().map(|overflow| single(overflow.at));
        let staged = self.staged.iter().map(|staged| single(staged.at));
        let more: Vec<_> = overflows.chain(staged).collect();
        base.into_iter().chain(more)
    }

    /// Pages in all.
    pub(crate) fn pages(&self) -> usize {
        self.base_pages() + self.overflows.len() + self.staged.len()
    }

    /// Where the record of a key with this hash is in this segment, whose lower bound is `lower`.
    pub(crate) fn place(&self, lower: &[u8], key: &[u8], hash: u64) -> Place {
        let index = self.page_of(lower, key);
        let mut staged = [None; STAGED_MAX];
        let may_have = self.staged.iter().rev().filter(|staged| staged.marks.may_have(hash));
        staged.iter_mut().zip(may_have).for_each(|(to, from)| *to = Some(from.at));
        Place {
            segment: self.base,
            page: self.base_page(index),
            overflow: self.overflow(index),
            staged,
            plain: self.staged.is_empty(),
        }
    }
}

/// The pages that a key's record may lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The segment's first page, which names the segment.
    pub(crate) segment: PageRef,
    pub(crate) page: PageRef,
    pub(crate) overflow: Option<PageRef>,
    /// Those that may have the key, newest first.
    staged: [Option<PageRef>; STAGED_MAX],
    plain: bool,
}

impl Place {
    /// Whether the segment has no staged pages.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Whether no staged page may have the key.
    pub(crate) fn is_home(&self) -> bool {
        self.staged.iter().all(Option::is_none)
    }

    /// The pages that exist, in the order in which the first that has the key is right.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageRef> + use<> {
        let base = (self.segment.page != PageNumber::NONE).then_some(self.page);
        self.staged.into_iter().flatten().chain(base).chain(self.overflow)
    }
}

/// A segment with its bounds, as it was at some version of the index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Located {
    pub(crate) lower: IndexKey,
    /// The next segment's lower bound; `None` for the last segment.
    pub(crate) upper: Option<IndexKey>,
    pub(crate) segment: Segment,
}

impl Located {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        key >= self.lower.bytes() && self.upper.as_ref().is_none_or(|upper| key < upper.bytes())
    }

    /// Which page of the segment's extent a key belongs to.
    pub(crate) fn page_of(&self, key: &[u8]) -> usize {
        self.segment.page_of(self.lower.bytes(), key)
    }

    /// The least key that belongs to page `index` or a later one, if the segment has such a page
    /// and it may hold keys.
    pub(crate) fn first_key(&self, index: usize) -> Option<Vec<u8>> {
        let pages = self.segment.base_pages();
        let model = self.segment.model.filter(|_| index < pages)?;
        let pages = u32::try_from(pages).expect("a segment has at most 16 pages");
        let index = u32::try_from(index).expect("a segment has at most 16 pages");
        let key = model.first_key(self.lower.bytes(), index, pages)?;
        self.upper.as_ref().is_none_or(|upper| key.as_slice() < upper.bytes()).then_some(key)
    }

    /// What all keys of the segment begin with.
    pub(crate) fn prefix(&self) -> &[u8] {
        self.upper.as_ref().map_or(&[], |upper| common_prefix(self.lower.bytes(), upper.bytes()))
    }
}

/// What two keys both begin with.
pub(crate) fn common_prefix<'a>(a: &'a [u8], b: &[u8]) -> &'a [u8] {
    let length = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    &a[..length]
}

/// One change of structure: neighbouring segments give way to others in their place (a
/// reorganization, a new overflow page).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    /// The segments that go: lower bounds and places, in order, at least one.
    pub(crate) before: Vec<(Vec<u8>, Segment)>,
    /// What comes instead, in order, at least one; the first has the bound of the first that goes.
    pub(crate) after: Vec<(Vec<u8>, Segment)>,
}

impl Change {
    /// Extents that nobody owns any more after it.
    pub(crate) fn freed(&self) -> Vec<Extent> {
        let owned = |segments: &[(Vec<u8>, Segment)]| -> Vec<(Extent, Generation)> {
            segments.iter().flat_map(|(_, segment)| segment.extents()).collect()
        };
        let kept = owned(&self.after);
        let before = owned(&self.before).into_iter();
        before.filter(|extent| !kept.contains(extent)).map(|(extent, _)| extent).collect()
    }
}
