//! The payload of a checkpoint: the root of the tree, the extents of large values, and the image.
//!
//! | size | field | meaning |
//! |---|---|---|
//! | 1 | order | binary logarithm of the 4 KiB pages of a page |
//! | 1 | level | of the root; leaves have 0 |
//! | 8 | place | of the root: page and generation |
//! | 8 | live | how many extents follow |
//! | 9 each | extent | of values that records name, as [`LargeExtent::encode`] writes it |
//! | 8 | freed | how many extents follow |
//! | 9 each | extent | of values that the root or the image may still name, though they were superseded |
//! | any | image | records that the root lacks, as [`Run::encode`] writes it |
//! | any | clean run | records of the tier that the tree has, too; empty if there are none |
//! | 8 | notes | how many hashes follow |
//! | 8 each | hash | of a key that was merged since the writing of the clean run began, ascending |
//!
//! All integers are little-endian. A new keyspace has no payload. Checksums are the store's.

use std::sync::Arc;

use spinney_access::{Place, TreeRoot};
use spinney_base::{Error, ErrorKind, Result};
use spinney_cache::ORDER_MAX;
use spinney_extent::values::{LargeExtent, LargeList};

use crate::run::Run;
use crate::warm::{CleanRun, Notes};

/// Most levels of a tree: each has at least twice as many pages as the one above.
const LEVELS_MAX: u8 = 32;

/// What a checkpoint names.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    pub(crate) order: u8,
    pub(crate) root: TreeRoot,
    pub(crate) large: LargeList,
    /// Records that the root lacks.
    pub(crate) dirty: Run,
    /// Records that the tier had clean, and those of them that do not count. Only on its way to a slot and from there: in
    /// memory `warm` keeps it.
    pub(crate) clean: Option<CleanRun>,
}

impl Payload {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.order, self.root.level];
        out.extend(self.root.place.encode());
        for list in [&self.large.live, &self.large.freed] {
            out.extend((list.len() as u64).to_le_bytes());
            list.iter().for_each(|extent| extent.encode(&mut out));
        }
        self.dirty.encode(&mut out);
        let none = CleanRun::default();
        let clean = self.clean.as_ref().unwrap_or(&none);
        clean.run.encode(&mut out);
        clean.notes.encode(&mut out);
        out
    }

    /// Decodes a payload; `None` for that of a new keyspace.
    ///
    /// # Errors
    /// `Corruption` for bytes that [`Payload::encode`] does not write.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Payload>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let wrong = || Error::new(ErrorKind::Corruption, "a checkpoint's payload is no tree");
        parse(bytes).map(Some).ok_or_else(wrong)
    }
}

fn parse(mut left: &[u8]) -> Option<Payload> {
    let ([order, level], rest) = left.split_first_chunk()?;
    let (place, rest) = rest.split_first_chunk()?;
    let is_right = u32::from(*order) <= ORDER_MAX && *level <= LEVELS_MAX;
    let root = is_right.then_some(TreeRoot { place: Place::decode(*place), level: *level })?;
    left = rest;
    let mut list = || {
        let (count, rest) = left.split_first_chunk()?;
        left = rest;
        LargeExtent::decode(&mut left, u64::from_le_bytes(*count))
    };
    let large = LargeList { live: list()?, freed: list()? };
    let dirty = Run::decode(&mut left)?;
    let clean =
        CleanRun { run: Arc::new(Run::decode(&mut left)?), notes: Notes::decode(&mut left)? };
    let clean = (clean.run.records > 0).then_some(clean);
    left.is_empty().then_some(Payload { order: *order, root, large, dirty, clean })
}
