//! What a reader sees: memtables over a version of the tree.
//!
//! ```text
//!   tables[0]   the active memtable         newest
//!   tables[1..] sealed, not yet applied
//!   tree        everything before           oldest
//! ```
//!
//! A view never changes except for its active memtable; its readers need no lock. A snapshot is a
//! view without an active memtable.
//!
//! **A range** is read from the tree, a chunk at a time, and what the memtables have for the keys
//! of the chunk is laid over it. A key that moves from a memtable to the tree meanwhile is in both,
//! because the view has both.

use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use spinney_art::{Direction as ArtDirection, Pinned};
use spinney_base::shim::Mutex;
use spinney_base::{Result, ValueRef};
use spinney_engine::overlay::{Edits, before, beyond, is_full, lay};
use spinney_engine::{Chunk, Direction, Found, OwnedValue, ScanRequest, VerifyReport, Watch};
use spinney_extent::LargePointer;

use crate::edit::Edit;
use crate::files::Passed;
use crate::memtable::{Memtable, Range};
use crate::policy::IN_VAIN_MAX;
use crate::runs::Kept;
use crate::version::Tree;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Newest first.
    pub(crate) tables: Vec<Arc<Memtable>>,
    pub(crate) tree: Tree,
    /// Bytes of what does not change: all memtables but the newest, and what is pending in the
    /// tree.
    settled_bytes: u64,
}

/// The newest view of a keyspace. Thread-safe; readers take no lock.
#[derive(Debug)]
pub(crate) struct Current {
    view: ArcSwap<View>,
    /// Held while the view is replaced.
    replacing: Mutex<()>,
}

impl Current {
    /// Begins with a view.
    pub(crate) fn new(view: View) -> Current {
        Current { view: ArcSwap::from_pointee(view), replacing: Mutex::new(()) }
    }

    /// The newest view, for a short time.
    #[inline]
    pub(crate) fn load(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// The newest view, to keep.
    #[inline]
    pub(crate) fn load_full(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Replaces the newest view by what `next` makes of it.
    pub(crate) fn replace(&self, next: impl FnOnce(&View) -> View) {
        let _alone = self.replacing.lock();
        let next = next(&self.view.load());
        self.view.store(Arc::new(next));
    }
}

impl View {
    /// Of these memtables, newest first; all others are sealed.
    pub(crate) fn new(tables: Vec<Arc<Memtable>>, tree: Tree) -> View {
        let sealed: u64 = tables.iter().skip(1).map(|table| table.memory_bytes()).sum();
        let settled_bytes = sealed + tree.pending().bytes;
        View { tables, tree, settled_bytes }
    }

    /// Appends the value of a key or the pointer to it; returns which.
    pub(crate) fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found> {
        match self.get_resident(key, hash, out) {
            Some(found) => Ok(found),
            None => self.tree.get(key, hash, out),
        }
    }

    /// The values of many keys; those that only the tree has are looked up together, unless `kept`
    /// appends the value of the key at a place.
    pub(crate) fn get_many(
        &self,
        keys: &[(&[u8], u64)],
        mut kept: impl FnMut(usize, &mut Vec<u8>) -> bool,
    ) -> Result<Vec<Option<OwnedValue>>> {
        let mut values = Vec::with_capacity(keys.len());
        let (mut cold, mut places) = (Vec::new(), Vec::new());
        for (place, (key, hash)) in keys.iter().enumerate() {
            let mut bytes = Vec::new();
            let mut found = self.get_resident(key, *hash, &mut bytes);
            if found.is_none() && kept(place, &mut bytes) {
                found = Some(Found::Inline);
            }
            if found.is_none() {
                cold.push((*key, *hash));
                places.push(place);
            }
            let large = found == Some(Found::Large);
            let there = found.is_some_and(|found| found != Found::Absent);
            values.push(there.then_some(OwnedValue { bytes, large }));
        }
        for (place, value) in places.into_iter().zip(self.tree.get_many(&cold)?) {
            values[place] = value;
        }
        Ok(values)
    }

    /// What the memtables know of a key.
    pub(crate) fn get_resident(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Option<Found> {
        self.tables.iter().find_map(|table| table.get(key, hash, out))
    }

    /// Counts the memory that it keeps.
    pub(crate) fn add_kept(&self, kept: &mut Kept) {
        self.tables.iter().for_each(|table| kept.add_table(table));
        self.tree.add_kept(kept);
    }

    /// Bytes of memory that it holds, at most: other views share them.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.settled_bytes + self.tables.first().map_or(0, |newest| newest.memory_bytes())
    }

    /// Verifies the tree as [`Tree::verify`] does, and counts the records that a scan would find.
    ///
    /// # Errors
    /// As [`Tree::verify`].
    pub(crate) fn verify(
        &self,
        report: &mut VerifyReport,
        watch: &mut Watch<'_>,
        large: &mut dyn FnMut(&LargePointer) -> Result<()>,
    ) -> Result<()> {
        let pinned = Pinned::new();
        let mut over = Over::new(&self.tables, (Bound::Unbounded, Bound::Unbounded), true, &pinned);
        let mut records = 0;
        let mut count = |edit: Edit<'_>| records += u64::from(edit.value.is_some());
        let mut under = 0;
        self.tree.verify(
            report,
            watch,
            &mut |key| {
                while let Some(edit) = over.peek().filter(|edit| edit.key < key) {
                    count(edit);
                    over.pass(edit.key);
                }
                // What a memtable has for the key itself is counted with the next one.
                under += u64::from(over.peek().is_none_or(|edit| edit.key != key));
            },
            large,
        )?;
        while let Some(edit) = over.peek() {
            count(edit);
            over.pass(edit.key);
        }
        report.records += records + under;
        Ok(())
    }

    /// As [`spinney_engine::Engine::scan`].
    pub(crate) fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        let forward = request.direction == Direction::Forward;
        let near = if forward { request.lower } else { request.upper };
        let far = if forward { request.upper } else { request.lower };
        let mut near = near.map(<[u8]>::to_vec);
        let mut part = Chunk::default();
        let pinned = Pinned::new();
        let mut in_vain = 0;
        loop {
            let from = near.as_ref().map(Vec::as_slice);
            let (lower, upper) = if forward { (from, far) } else { (far, from) };
            // The first piece needs no copy where memtables have nothing for it.
            let is_first = chunk.is_empty() && in_vain == 0;
            let piece = if is_first { &mut *chunk } else { &mut part };
            piece.clear();
            // Where memtables remove all that the tree delivers, it is asked for more each time.
            let least = 1 << in_vain.min(IN_VAIN_MAX);
            let request_of_tree = ScanRequest {
                lower,
                upper,
                records_wanted: request.records_wanted.max(least),
                records_max: request.records_max.max(least),
                ..*request
            };
            let scanned = self.tree.scan(&request_of_tree, piece);
            if let Err(error) = scanned {
                piece.clear();
                return Err(error);
            }
            let beyond = beyond(piece);
            let to = beyond.as_ref().map_or(far, before);
            let mut over = Over::new(&self.tables, (from, to), forward, &pinned);
            let is_done = is_first && over.peek().is_none();
            if is_first && !is_done {
                std::mem::swap(chunk, &mut part);
                chunk.clear();
            }
            if !is_done && !lay(&mut over, &part, request, chunk) {
                self.tree.passed(over.passed);
                return Ok(());
            }
            self.tree.passed(over.passed);
            match beyond {
                None => {
                    chunk.finished = true;
                    return Ok(());
                }
                Some(bound) => near = bound,
            }
            if is_full(request, chunk) {
                chunk.resume = Some(near);
                return Ok(());
            }
            in_vain = if chunk.is_empty() { in_vain + 1 } else { 0 };
        }
    }
}

/// The newest edits of memtables, in order.
struct Over<'a> {
    ranges: Vec<Peekable<Range<'a>>>,
    forward: bool,
    passed: Passed,
}

impl<'a> Over<'a> {
    fn new(
        tables: &'a [Arc<Memtable>],
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        forward: bool,
        pinned: &'a Pinned,
    ) -> Self {
        let direction = if forward { ArtDirection::Forward } else { ArtDirection::Backward };
        let ranges = tables.iter().filter(|table| !table.is_empty());
        let ranges = ranges.map(|table| table.range(from, to, direction, pinned).peekable());
        Over { ranges: ranges.collect(), forward, passed: Passed::default() }
    }

    /// The next edit: of equal keys the newest memtable's.
    fn peek(&mut self) -> Option<Edit<'a>> {
        let forward = self.forward;
        let nexts = self.ranges.iter_mut().filter_map(|range| range.peek().copied());
        nexts.reduce(|best, next| {
            let nearer = if forward { next.key < best.key } else { next.key > best.key };
            if nearer { next } else { best }
        })
    }

    /// Passes over all edits of a key.
    fn pass(&mut self, key: &[u8]) {
        for range in &mut self.ranges {
            while range.next_if(|edit| edit.key == key).is_some() {
                self.passed.edits += 1;
            }
        }
    }
}

impl Edits for Over<'_> {
    fn peek(&mut self) -> Option<(&[u8], Option<ValueRef<'_>>)> {
        Over::peek(self).map(|edit| (edit.key, edit.value))
    }

    fn advance(&mut self) {
        if let Some(edit) = Over::peek(self) {
            self.passed.tombstones += u64::from(edit.value.is_none());
            self.pass(edit.key);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::run::RunBuilder;
    use proptest::prelude::*;
    use spinney_base::ValueRef;
    use std::collections::BTreeMap;

    type Edits = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

    fn edits() -> impl Strategy<Value = Edits> {
        let key = prop::collection::vec(prop::sample::select(vec![0u8, 1, 2, 0xFF]), 0..4);
        let value = prop::option::of(prop::collection::vec(any::<u8>(), 0..9));
        prop::collection::btree_map(key, value, 0..40)
    }

    fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
        let key = prop::collection::vec(prop::sample::select(vec![0u8, 1, 2, 0xFF]), 0..4);
        prop_oneof![
            Just(Bound::Unbounded),
            key.clone().prop_map(Bound::Included),
            key.prop_map(Bound::Excluded)
        ]
    }

    fn view(parts: &[Edits]) -> View {
        let (tree, tables) = parts.split_at(parts.len() / 2);
        let (mut made, mut all) = (Tree::empty(&crate::version::simulated()), Vec::new());
        for edits in tree {
            let mut packer = RunBuilder::default();
            for (key, value) in edits {
                packer.push(Edit { key, value: value.as_ref().map(ValueRef::from) });
            }
            made = made.apply(packer.finish().unwrap(), None, &mut Vec::new()).unwrap();
        }
        for (number, edits) in tables.iter().enumerate() {
            let table = Memtable::new(number as u64, 0);
            for (key, value) in edits {
                table.put(key, 0, value.as_ref().map(ValueRef::from));
            }
            all.insert(0, Arc::new(table));
        }
        View::new(all, made)
    }

    proptest! {
        /// Gets and ranges from either end are those of a map, however they are cut.
        #[test]
        fn reads_are_those_of_a_map(
            parts in prop::collection::vec(edits(), 0..6), lower in bound(), upper in bound(),
            forward in any::<bool>(), wanted in 1usize..9, bytes_max in 1usize..60, keys_only in any::<bool>(),
        ) {
            let view = view(&parts);
            let mut model = BTreeMap::new();
            parts.iter().flatten().for_each(|(key, value)| _ = model.insert(key.clone(), value.clone()));
            for (key, value) in &model {
                let mut out = Vec::new();
                let found = view.get(key, 0, &mut out).unwrap();
                prop_assert_eq!((found != Found::Absent).then_some(out), value.clone());
            }
            let direction = if forward { Direction::Forward } else { Direction::Reverse };
            let (mut low, mut high) = (lower.clone(), upper.clone());
            let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let mut chunk = Chunk::default();
            while !chunk.finished {
                chunk.clear();
                let request = ScanRequest {
                    lower: low.as_ref().map(Vec::as_slice), upper: high.as_ref().map(Vec::as_slice),
                    direction, records_wanted: wanted, records_max: usize::MAX, bytes_max, keys_only,
                };
                view.scan(&request, &mut chunk).unwrap();
                prop_assert!(chunk.finished || !chunk.is_empty());
                for index in 0..chunk.len() {
                    let (key, value) = chunk.get(index);
                    found.push((key.to_vec(), value.bytes.to_vec()));
                }
                let last = found.last().map(|(key, _)| Bound::Excluded(key.clone()));
                if let Some(next) = chunk.resume.clone().or(last) {
                    if forward { low = next } else { high = next }
                }
            }
            let request = ScanRequest {
                lower: lower.as_ref().map(Vec::as_slice), upper: upper.as_ref().map(Vec::as_slice),
                direction, records_wanted: 1, records_max: 1, bytes_max: 1, keys_only,
            };
            let mut expected: Vec<(Vec<u8>, Vec<u8>)> = model.into_iter()
                .filter(|(key, _)| request.contains(key))
                .filter_map(|(key, value)| value.map(|value| (key, value)))
                .map(|(key, value)| (key, if keys_only { Vec::new() } else { value }))
                .collect();
            if !forward {
                expected.reverse();
            }
            prop_assert_eq!(found, expected);
        }
    }
}
