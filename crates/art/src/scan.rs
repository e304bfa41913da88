//! Neighbours and ranges, both ways.
//!
//! A neighbour (floor, ceiling, first, last) is found from where the key is or belongs, by going up
//! until some node has a child on the wanted side, and down its near edge. All nodes on that way
//! validate in the end, so the answer is that of one moment.
//!
//! A range copies a chunk of keys and leaves, validated like a neighbour, and then holds nothing:
//! no latch and no pin; it seeks again by the last key (rule P24). So each chunk is of one moment,
//! and over the whole range: every key that was there throughout comes, in order, none twice. A
//! chunk that writers keep breaking is tried again at half the length.

use std::cmp::Ordering;
use std::ops::Bound;

use crossbeam_epoch::{Guard, pin};

use crate::direction::Direction;
use crate::layout::Position;
use crate::node::Child;
use crate::source::KeySource;
use crate::trail::{Landing, Restart, Step, Trail, until_done};
use crate::tree::Art;

/// Where to look for the next leaf: a step of the trail and the position from which on.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    step: usize,
    position: Position,
}

/// Keys and leaves that were copied out.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    keys: Vec<u8>,
    /// Where each key ends, and its leaf.
    entries: Vec<(usize, u64)>,
}

impl Chunk {
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.entries.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn leaves(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.entries.iter().map(|(_, leaf)| *leaf)
    }

    pub(crate) fn entry(&self, index: usize) -> Option<(&[u8], u64)> {
        let (end, leaf) = *self.entries.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.entries[before].0);
        Some((&self.keys[start..end], leaf))
    }
}

/// Most steps that one chunk takes and validates, so that one over sparse nodes ends too.
const CHUNK_STEPS_MAX: usize = 64;

impl<S: KeySource> Art<S> {
    /// Returns the leaf with the greatest key that is at most `key`.
    #[must_use]
    pub fn floor(&self, key: &[u8]) -> Option<u64> {
        self.neighbour(Bound::Included(key), Direction::Backward, None)
    }

    /// Returns the leaf with the least key that is at least `key`.
    #[must_use]
    pub fn ceiling(&self, key: &[u8]) -> Option<u64> {
        self.neighbour(Bound::Included(key), Direction::Forward, None)
    }

    /// Returns the leaf with the least key.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.neighbour(Bound::Unbounded, Direction::Forward, None)
    }

    /// Returns the leaf with the greatest key.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.neighbour(Bound::Unbounded, Direction::Backward, None)
    }

    /// Returns the first leaf from a bound on, in either direction. Its key, if wanted, replaces
    /// the content of `key`.
    pub fn neighbour(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        mut key: Option<&mut Vec<u8>>,
    ) -> Option<u64> {
        let guard = pin();
        let mut trail = Trail::new(&self.root, &guard);
        until_done(|| {
            let mut found = None;
            if let Some(mut cursor) = self.seek(from, direction, &mut trail)? {
                found = advance(&mut trail, &mut cursor, direction, false)?;
            }
            if let (Some(leaf), Some(key)) = (found, key.as_deref_mut()) {
                key.clear();
                self.source.read_key(leaf, key);
            }
            trail.validate()?;
            Ok(found)
        })
    }

    /// Returns the keys from one bound to another, in either direction: when going backward, `from`
    /// is the greater one.
    pub fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, direction: Direction) -> Scan<'_, S> {
        Scan { art: self, chunks: Chunks::new(from, to, direction) }
    }

    /// Copies a chunk of at most `limit` entries; says whether it was the last.
    fn fill(&self, chunks: &mut Chunks, guard: &Guard) -> bool {
        let Chunks { from, to, direction, chunk, limit, .. } = chunks;
        let mut trail = Trail::new(&self.root, guard);
        let mut limit = *limit;
        until_done(|| {
            let to = to.as_ref().map(Vec::as_slice);
            let from = from.as_ref().map(Vec::as_slice);
            let last = self.try_fill(from, to, *direction, limit, chunk, &mut trail);
            if last.is_err() {
                limit = (limit / 2).max(1);
            }
            last
        })
    }

    fn try_fill(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        limit: usize,
        chunk: &mut Chunk,
        trail: &mut Trail<'_>,
    ) -> Result<bool, Restart> {
        chunk.clear();
        let mut last = true;
        if let Some(mut cursor) = self.seek(from, direction, trail)? {
            let steps_max = trail.len() + CHUNK_STEPS_MAX;
            while let Some(leaf) = advance(trail, &mut cursor, direction, true)? {
                self.source.prefetch(leaf);
                chunk.entries.push((0, leaf));
                if chunk.len() == limit || trail.len() > steps_max {
                    last = false;
                    break;
                }
            }
        }
        // Keys are read after all leaves are known, so that the memory they lie in, which is not in
        // the order of the keys, is waited for once and not for each.
        for index in 0..chunk.len() {
            let start = chunk.keys.len();
            self.source.read_key(chunk.entries[index].1, &mut chunk.keys);
            if direction.is_past(&chunk.keys[start..], to) {
                chunk.entries.truncate(index);
                last = true;
                break;
            }
            chunk.entries[index].0 = chunk.keys.len();
        }
        trail.validate()?;
        Ok(last)
    }

    /// Where to look for the first leaf from a bound on; `None` when the tree has no keys.
    fn seek(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        trail: &mut Trail<'_>,
    ) -> Result<Option<Cursor>, Restart> {
        let (key, included) = match from {
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
            Bound::Unbounded => {
                trail.restart();
                return Ok(Some(Cursor { step: 0, position: direction.start() }));
            }
        };
        let (parting, on_leaf) = match trail.follow(key, direction, &self.source)? {
            Landing::Empty => return Ok(None),
            Landing::Leaf { parting, .. } => (parting, true),
            Landing::Gap { parting } => (parting, false),
        };
        let wanted = match parting.order() {
            Ordering::Equal => included,
            order => order == direction.ahead(),
        };
        if let Some(beyond) = trail.first_beyond(parting.common()) {
            // All keys below that node lie on the same side of `key`.
            trail.truncate(beyond + 1);
            let above = trail.step(beyond).parent;
            return Ok(Some(if wanted {
                Cursor { step: beyond, position: direction.start() }
            } else {
                Cursor { step: above, position: direction.after(trail.step(above).position) }
            }));
        }
        let step = trail.len() - 1;
        let position = trail.last().position;
        // A gap may be looked at again; a leaf only if it is wanted.
        let again = wanted || !on_leaf;
        Ok(Some(Cursor {
            step,
            position: if again { position } else { direction.after(position) },
        }))
    }
}

/// The next leaf from the cursor on, which moves past it. Steps that are left behind stay in the
/// trail, to be validated. `go_on` says that those after it will be wanted too.
fn advance(
    trail: &mut Trail<'_>,
    cursor: &mut Cursor,
    direction: Direction,
    go_on: bool,
) -> Result<Option<u64>, Restart> {
    loop {
        let step = *trail.step(cursor.step);
        match step.node.next(cursor.position, direction) {
            None if cursor.step == 0 => return Ok(None),
            None => {
                cursor.step = step.parent;
                cursor.position = direction.after(trail.step(step.parent).position);
            }
            Some((position, Child::Leaf(leaf))) => {
                cursor.position = direction.after(position);
                return Ok(Some(leaf));
            }
            Some((position, Child::Node(node))) => {
                let version = step.enter(node)?;
                let above = trail.step_mut(cursor.step);
                above.position = position;
                if go_on {
                    above.ask_ahead(position, direction);
                }
                trail.push(Step::new(node, version, cursor.step));
                *cursor = Cursor { step: trail.len() - 1, position: direction.start() };
            }
            Some((_, Child::Nothing)) => return Err(Restart),
        }
    }
}

/// Entries of the first chunk of a range: often it has one, or none, and what is read beyond it is
/// for nothing.
const CHUNK_FIRST: usize = 8;

/// Factor by which each chunk has more entries than the one before.
const CHUNK_GROWTH: usize = 4;

/// Most entries of a chunk.
const CHUNK_MAX: usize = 128;

/// A range that is copied out in chunks; between them it holds nothing of the tree.
#[derive(Debug)]
pub(crate) struct Chunks {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    direction: Direction,
    chunk: Chunk,
    /// Entries of the next chunk.
    limit: usize,
    /// Entries that are wanted beyond the chunk.
    left: usize,
    next: usize,
    exhausted: bool,
}

impl Chunks {
    pub(crate) fn new(from: Bound<&[u8]>, to: Bound<&[u8]>, direction: Direction) -> Self {
        Chunks {
            from: from.map(<[u8]>::to_vec),
            to: to.map(<[u8]>::to_vec),
            direction,
            chunk: Chunk::default(),
            limit: CHUNK_FIRST,
            left: usize::MAX,
            next: 0,
            exhausted: false,
        }
    }

    /// Limits the range to `entries` entries.
    pub(crate) fn at_most(&mut self, entries: usize) {
        self.left = entries;
        self.limit = CHUNK_MAX;
        self.exhausted = entries == 0;
    }

    /// Whether the next entry takes another chunk.
    pub(crate) fn wants_more(&self) -> bool {
        self.next == self.chunk.len() && !self.exhausted
    }

    /// Copies the next chunk.
    pub(crate) fn refill<S: KeySource>(&mut self, art: &Art<S>, guard: &Guard) {
        self.limit = self.limit.min(self.left);
        let last = art.fill(self, guard);
        self.left -= self.chunk.len();
        self.exhausted = last || self.left == 0;
        self.next = 0;
        self.limit = (self.limit * CHUNK_GROWTH).min(CHUNK_MAX);
        if let Some((last, _)) = self.chunk.len().checked_sub(1).and_then(|at| self.chunk.entry(at))
        {
            self.from = Bound::Excluded(last.to_vec());
        }
    }

    /// The entries of the chunk.
    pub(crate) fn chunk(&self) -> &Chunk {
        &self.chunk
    }

    /// The next entry of the chunk.
    pub(crate) fn take(&mut self) -> Option<(&[u8], u64)> {
        let entry = self.chunk.entry(self.next)?;
        self.next += 1;
        Some(entry)
    }
}

/// A range in progress; see [`Art::scan`]. A leaf that it returns may have been removed meanwhile.
/// A caller that follows leaves stays pinned from before the call that returned them.
#[derive(Debug)]
pub struct Scan<'a, S> {
    art: &'a Art<S>,
    chunks: Chunks,
}

impl<S: KeySource> Scan<'_, S> {
    /// Ends the range after `entries` entries, which saves reading ahead. Must be called before the
    /// first entry.
    #[must_use]
    pub fn at_most(mut self, entries: usize) -> Self {
        self.chunks.at_most(entries);
        self
    }

    /// Returns the next key and leaf.
    #[expect(clippy::should_implement_trait, reason = "the key is lent, which an iterator cannot")]
    pub fn next(&mut self) -> Option<(&[u8], u64)> {
        if self.chunks.wants_more() {
            self.chunks.refill(self.art, &pin());
        }
        self.chunks.take()
    }
}
