//! A tree as simple as can be, in the place of the TurtleTree until that is there: one sorted map in
//! memory that is written whole, under batches that wait to be merged into it.
//!
//! ```text
//!   Tree (an Arc): pending batches, newest last  over  base: BTreeMap, and the piece that holds it on disk
//! ```
//!
//! What the engine needs of a tree is what this one has: it is a value that never changes, so that
//! readers, snapshots and backups keep one by cloning it; applying and writing make a new one and
//! leave the old one whole when they fail; what it owns on disk goes with the last clone.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use spinney_base::{Error, ErrorKind, Generation, Lsn, PageNumber, Result};
use spinney_engine::{Chunk, Direction, Found, Resident, ScanRequest, VerifyReport};
use spinney_extent::{Extent, LargePointer};
use spinney_io::Purpose;

use crate::batch::{Batch, Edit, Operation};
use crate::files::{Files, Piece};

/// The bytes of pointers that newer edits took the place of.
pub(crate) type MergedAway = Vec<Vec<u8>>;

/// What of a tree is not on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Edits.
    pub(crate) items: u64,
    /// Memory that they keep, in bytes.
    pub(crate) bytes: u64,
}

type Base = BTreeMap<Box<[u8]>, (Operation, Box<[u8]>)>;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Tree(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    files: Arc<Files>,
    base: Arc<Base>,
    piece: Option<Arc<Piece>>,
    pending: Vec<Batch>,
    sum: Pending,
}

impl Tree {
    /// A tree without records, that will write to this file.
    pub(crate) fn empty(files: &Arc<Files>) -> Tree {
        Tree::over(files, Arc::default(), None)
    }

    fn over(files: &Arc<Files>, base: Arc<Base>, piece: Option<Arc<Piece>>) -> Tree {
        let (files, sum) = (Arc::clone(files), Pending::default());
        Tree(Arc::new(Inner { files, base, piece, pending: Vec::new(), sum }))
    }

    /// Reads the tree that [`Tree::root`] described.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn open(files: &Arc<Files>, root: &[u8]) -> Result<Tree> {
        if root.is_empty() {
            return Ok(Tree::empty(files));
        }
        let damaged = || {
            let text =
                format!("{}: the tree is not what its root says", files.store.path().display());
            Error::new(ErrorKind::Corruption, text)
        };
        let (bytes, extents) = decode_root(root).ok_or_else(damaged)?;
        let piece = files.adopt(extents, bytes);
        let bytes = files.read(&piece, Purpose::Recovery)?;
        let base = Arc::new(decode_base(&bytes).ok_or_else(damaged)?);
        Ok(Tree::over(files, base, Some(Arc::new(piece))))
    }

    /// What is needed to open it again.
    ///
    /// # Panics
    /// When something is pending.
    pub(crate) fn root(&self) -> Vec<u8> {
        assert!(self.0.pending.is_empty(), "only what was written has a root");
        let Some(piece) = &self.0.piece else { return Vec::new() };
        let mut out = piece.bytes.to_le_bytes().to_vec();
        for (extent, generation) in &piece.extents {
            out.extend_from_slice(&extent.page.0.to_le_bytes());
            out.push(extent.order);
            out.extend_from_slice(&generation.0.to_le_bytes());
        }
        out
    }

    /// The tree with a batch on top.
    ///
    /// # Errors
    /// `Corruption`, `Full` or `Io`; this tree is as it was.
    #[expect(clippy::unnecessary_wraps, reason = "a tree on disk must read what it merges")]
    pub(crate) fn apply(&self, batch: Batch, _merged_away: &mut MergedAway) -> Result<Tree> {
        let mut inner = Inner::clone(&self.0);
        inner.sum.items += batch.len() as u64;
        inner.sum.bytes += batch.memory_bytes();
        inner.pending.push(batch);
        Ok(Tree(Arc::new(inner)))
    }

    /// The same tree, on disk. The log is durable up to `lsn`, and it holds nothing above.
    ///
    /// # Errors
    /// `Corruption`, `Full`, `Poisoned` or `Io`; this tree is as it was.
    pub(crate) fn write(&self, lsn: Lsn, merged_away: &mut MergedAway) -> Result<Tree> {
        let files = &self.0.files;
        if self.0.pending.is_empty() {
            return Ok(self.clone());
        }
        let mut base = Base::clone(&self.0.base);
        for edit in self.0.pending.iter().flat_map(Batch::edits) {
            let before = match edit.value {
                Some(value) => {
                    base.insert(edit.key.into(), (Operation::of(edit.value), value.bytes.into()))
                }
                None => base.remove(edit.key),
            };
            if let Some((Operation::PutLarge, pointer)) = before {
                merged_away.push(pointer.into_vec());
            }
        }
        let bytes = encode_base(&base);
        let piece = (!bytes.is_empty()).then(|| files.write(&bytes, lsn)).transpose()?;
        let (base, piece) = (Arc::new(base), piece.map(Arc::new));
        Ok(Tree::over(files, base, piece))
    }

    /// What is not on disk.
    pub(crate) fn pending(&self) -> Pending {
        self.0.sum
    }

    /// Whether both are the same version.
    pub(crate) fn is(&self, other: &Tree) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Appends the value of a key, or the pointer to a large one; says which.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    #[expect(clippy::unnecessary_wraps, reason = "a tree on disk must read")]
    pub(crate) fn get(&self, key: &[u8], _hash: u64, out: &mut Vec<u8>) -> Result<Found> {
        let pending = self.0.pending.iter().rev().find_map(|batch| batch.find(key));
        let value = pending.map_or_else(
            || self.0.base.get(key).and_then(|(operation, value)| operation.value(value)),
            |edit| edit.value,
        );
        Ok(value.map_or(Found::Absent, |value| {
            out.extend_from_slice(value.bytes);
            if value.large { Found::Large } else { Found::Inline }
        }))
    }

    /// What memory alone knows of a key.
    pub(crate) fn get_resident(&self, key: &[u8], out: &mut Vec<u8>) -> Resident {
        let Some(edit) = self.0.pending.iter().rev().find_map(|batch| batch.find(key)) else {
            return Resident::Unknown;
        };
        let Some(value) = edit.value else { return Resident::Absent };
        out.extend_from_slice(value.bytes);
        if value.large { Resident::Large } else { Resident::Present }
    }

    /// As [`spinney_engine::Engine::scan`], of this version.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    #[expect(clippy::unnecessary_wraps, reason = "a tree on disk must read")]
    pub(crate) fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        let forward = request.direction == Direction::Forward;
        let mut from = if forward { request.lower } else { request.upper }.map(<[u8]>::to_vec);
        let wanted = request.records_wanted.max(1).min(request.records_max.max(1));
        while let Some(edit) = self.next(&from, forward).filter(|edit| request.contains(edit.key)) {
            if chunk.len() >= wanted || (!chunk.is_empty() && chunk.bytes() >= request.bytes_max) {
                return Ok(());
            }
            if let Some(value) = edit.value {
                chunk.push(&[edit.key], value);
            }
            from = Bound::Excluded(edit.key.to_vec());
        }
        chunk.finished = true;
        Ok(())
    }

    /// The newest edit of the first key from a bound on.
    fn next(&self, from: &Bound<Vec<u8>>, forward: bool) -> Option<Edit<'_>> {
        let mut best: Option<Edit<'_>> = None;
        for batch in self.0.pending.iter().rev() {
            let index = match (from, forward) {
                (Bound::Unbounded, true) => Some(0),
                (Bound::Unbounded, false) => batch.len().checked_sub(1),
                (Bound::Included(key) | Bound::Excluded(key), _) => {
                    let at = batch.lower_bound(key);
                    let here = at < batch.len() && batch.get(at).key == key;
                    let included = here && matches!(from, Bound::Included(_));
                    match (included, forward) {
                        (true, _) => Some(at),
                        (false, true) => Some(at + usize::from(here)),
                        (false, false) => at.checked_sub(1),
                    }
                }
            };
            let next = index.filter(|index| *index < batch.len()).map(|index| batch.get(index));
            best = nearer(best, next, forward);
        }
        let bound = from.as_ref().map(Vec::as_slice);
        let range = if forward { (bound, Bound::Unbounded) } else { (Bound::Unbounded, bound) };
        let mut range = self.0.base.range::<[u8], _>(range);
        let base = if forward { range.next() } else { range.next_back() };
        let base =
            base.map(|(key, (operation, value))| Edit { key, value: operation.value(value) });
        nearer(best, base, forward)
    }

    /// The extents that this version owns on disk.
    pub(crate) fn owned(&self) -> Vec<(Extent, Generation)> {
        self.0.piece.iter().flat_map(|piece| piece.extents.clone()).collect()
    }

    /// Reads everything that is on disk and proves that it is consistent; shows the pointers to
    /// large values in it.
    ///
    /// # Errors
    /// `Corruption` naming the first damage; `Io`.
    pub(crate) fn verify(
        &self,
        report: &mut VerifyReport,
        large: &mut dyn FnMut(&LargePointer) -> Result<()>,
    ) -> Result<()> {
        let Some(piece) = &self.0.piece else { return Ok(()) };
        let files = &self.0.files;
        let bytes = files.read(piece, Purpose::Tool)?;
        report.pages += piece.extents.iter().map(|(one, _)| u64::from(one.pages())).sum::<u64>();
        let page = piece.extents.first().map_or(PageNumber(0), |(extent, _)| extent.page);
        let path = files.store.path().display();
        let damaged = |found: &str| Error::corruption(&path, page.offset(), "the tree", found);
        let base = decode_base(&bytes).ok_or_else(|| damaged("something else"))?;
        if base != *self.0.base {
            return Err(damaged("another one"));
        }
        report.records += base.len() as u64;
        let pointers = base.values().filter(|(operation, _)| *operation == Operation::PutLarge);
        for (_, pointer) in pointers {
            let decoded = LargePointer::decode(pointer);
            large(&decoded.map_err(|damage| damaged(&format!("{damage:?}")))?)?;
        }
        Ok(())
    }
}

/// The one of two edits that comes first; of the same key the newer one.
fn nearer<'a>(newer: Option<Edit<'a>>, older: Option<Edit<'a>>, forward: bool) -> Option<Edit<'a>> {
    match (newer, older) {
        (Some(newer), Some(older)) => {
            let order = older.key.cmp(newer.key);
            let first = if forward { Ordering::Less } else { Ordering::Greater };
            Some(if order == first { older } else { newer })
        }
        (newer, older) => newer.or(older),
    }
}

fn decode_root(root: &[u8]) -> Option<(u64, Vec<(Extent, Generation)>)> {
    let (bytes, left) = root.split_first_chunk()?;
    let (entries, []) = left.as_chunks::<9>() else { return None };
    let extents = entries.iter().map(|entry| {
        let page = u32::from_le_bytes(*entry.first_chunk()?);
        let generation = u32::from_le_bytes(*entry.last_chunk()?);
        let extent = Extent { page: PageNumber(page), order: entry[4] };
        let sound = extent.order <= spinney_extent::free::ORDER_MAX
            && page.is_multiple_of(extent.pages())
            && page.checked_add(extent.pages()).is_some();
        sound.then_some((extent, Generation(generation)))
    });
    Some((u64::from_le_bytes(*bytes), extents.collect::<Option<_>>()?))
}

fn encode_base(base: &Base) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, (operation, value)) in base {
        out.push(if *operation == Operation::PutLarge { 2 } else { 1 });
        out.extend_from_slice(&u16::try_from(key.len()).unwrap_or(u16::MAX).to_le_bytes());
        out.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }
    out
}

fn decode_base(mut left: &[u8]) -> Option<Base> {
    let mut base = Base::new();
    while let Some((operation, rest)) = left.split_first() {
        let operation = match operation {
            1 => Operation::Put,
            2 => Operation::PutLarge,
            _ => return None,
        };
        let (key_bytes, rest) = rest.split_first_chunk()?;
        let (value_bytes, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_at_checked(u16::from_le_bytes(*key_bytes).into())?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_bytes) as usize)?;
        if base.last_key_value().is_some_and(|(last, _)| **last >= *key) {
            return None;
        }
        base.insert(key.into(), (operation, value.into()));
        left = rest;
    }
    Some(base)
}
