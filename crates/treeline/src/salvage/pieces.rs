//! What was found of a segment, and the parts of the key space that its pages tell of.

use std::collections::{BTreeMap, BTreeSet};

use spinney_base::{Generation, Lsn};

use crate::model::Model;
use crate::segment::{PageRef, Segment};

/// A page that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) at: PageRef,
    pub(super) lsn: Lsn,
}

/// A page of which nobody knows whose keys it holds, but for those that it holds.
#[derive(Debug)]
pub(super) struct Stray {
    pub(super) found: Found,
    /// Its first key.
    pub(super) lower: Vec<u8>,
    /// Its last key, and a zero behind it.
    pub(super) upper: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Pieces {
    pub(super) lower: Vec<u8>,
    pub(super) upper: Option<Vec<u8>>,
    pub(super) order: u8,
    pub(super) model: Option<Model>,
    pub(super) bases: BTreeMap<usize, Found>,
    pub(super) overflows: BTreeMap<usize, Found>,
    /// By generation, oldest first.
    pub(super) staged: BTreeMap<Generation, Found>,
    /// Whether it is known to be one of those that there are.
    pub(super) named: bool,
    /// Whether it is known to have no page.
    pub(super) is_virtual: bool,
    /// Overflow pages and staged pages that it is known to have.
    pub(super) expected: BTreeSet<Extra>,
}

/// A page beside those of the extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Extra {
    Overflow(usize),
    Staged(Generation),
}

/// What a page is of which segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    Base(Generation, usize),
    Overflow(Generation, usize),
    Staged(Generation),
}

/// One page's share of the keys, with all pages that tell of it.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) lsn: Lsn,
    pub(super) segment: Generation,
    pub(super) lower: Vec<u8>,
    pub(super) upper: Option<Vec<u8>>,
    /// Oldest first; the page itself is among them if `whole`.
    pub(super) pages: Vec<PageRef>,
    pub(super) whole: bool,
    pub(super) named: bool,
    /// Whether it is a page of an unknown segment, whose share may be larger.
    pub(super) stray: bool,
}

impl From<&Stray> for Part {
    fn from(stray: &Stray) -> Part {
        let Stray { found: Found { at, lsn }, lower, upper } = stray;
        Part {
            lsn: *lsn,
            segment: at.generation,
            lower: lower.clone(),
            upper: Some(upper.clone()),
            pages: vec![*at],
            whole: false,
            named: false,
            stray: true,
        }
    }
}

/// The pages of a segment, each with what it is.
pub(super) fn roles(segment: &Segment) -> Vec<(PageRef, Role)> {
    let id = segment.base.generation;
    let mut roles = Vec::new();
    for index in 0..segment.base_pages() {
        roles.push((segment.base_page(index), Role::Base(id, index)));
        let overflow = segment.overflow(index);
        roles.extend(overflow.map(|at| (at, Role::Overflow(id, index))));
    }
    roles.extend(segment.staged.iter().map(|staged| (staged.at, Role::Staged(id))));
    roles
}

impl Pieces {
    /// A segment that an index names, nothing of it found yet.
    pub(super) fn named(
        lower: Vec<u8>,
        upper: Option<Vec<u8>>,
        segment: &Segment,
        named: bool,
    ) -> Pieces {
        let extra = |(at, role): (PageRef, Role)| match role {
            Role::Base(..) => None,
            Role::Overflow(_, index) => Some(Extra::Overflow(index)),
            Role::Staged(_) => Some(Extra::Staged(at.generation)),
        };
        Pieces {
            lower,
            upper,
            order: segment.order,
            model: segment.model,
            named,
            is_virtual: segment.is_virtual(),
            expected: roles(segment).into_iter().filter_map(extra).collect(),
            ..Pieces::default()
        }
    }

    /// Which page of the extent a page is that bears its generation: extents are aligned.
    pub(super) fn index_in_extent(&self, at: PageRef) -> usize {
        (at.page.0 % (1 << self.order)) as usize
    }

    /// Whether the pages beside page `index` are there, as far as it is known which there are.
    fn has_all(&self, index: usize) -> bool {
        self.expected.iter().all(|extra| match extra {
            Extra::Overflow(of) => *of != index || self.overflows.contains_key(of),
            Extra::Staged(generation) => self.staged.contains_key(generation),
        })
    }

    /// The shares of its pages.
    pub(super) fn parts(&self, segment: Generation, parts: &mut Vec<Part>) {
        let count = 1_u32 << self.order;
        let first_key = |index: u32| match (&self.model, index) {
            (_, 0) => Some(self.lower.clone()),
            (Some(model), _) if index < count => model.first_key(&self.lower, index, count),
            _ => None,
        };
        let within = |key: &Vec<u8>| self.upper.as_ref().is_none_or(|upper| key < upper);
        for index in 0..count {
            let Some(lower) = first_key(index).filter(within) else { continue };
            let upper = (index + 1..count).find_map(first_key).filter(within);
            let upper = upper.or_else(|| self.upper.clone());
            if upper.as_ref().is_some_and(|upper| *upper <= lower) {
                continue;
            }
            let at = index as usize;
            let base = self.bases.get(&at);
            let own = self.overflows.get(&at).into_iter().chain(base);
            let pages: Vec<Found> = own.chain(self.staged.values()).copied().collect();
            parts.push(Part {
                lsn: pages.iter().map(|found| found.lsn).max().unwrap_or_default(),
                segment,
                lower,
                upper,
                pages: pages.into_iter().map(|found| found.at).collect(),
                whole: self.is_virtual || base.is_some() && self.has_all(at),
                named: self.named,
                stray: false,
            });
        }
    }
}
