//! Bulk loads: sorted records become leaves that no index leads to, with images on disk. A slot that names them makes them
//! durable, and another index makes them visible, both at once.

use spinney_base::{Error, Result, ValueRef, probe};
use spinney_engine::{Bulk, SnapshotNumber, not_ascending};
use spinney_extent::values::{LargeList, Loaded};
use spinney_leaf::{Bounds, Records, separator};

use crate::engine::Iot;
use crate::inner::{Home, Index};
use crate::leaf::{BLOCK_BYTES, BLOCK_WORDS, flags_of, least_bytes, moved, words_of};

/// Bytes of records that are gathered before leaves are made of them: enough for some leaves.
const GATHERED_BYTES: usize = 8 * BLOCK_BYTES;
/// Words up to which a leaf is filled. With more, the next records split it, or values that grow a little; with less, memory is
/// left unused.
const FILLED_WORDS: usize = BLOCK_WORDS / 8 * 7;

/// A bulk load under way.
#[derive(Debug)]
pub(crate) struct Loading<'a> {
    keyspace: &'a Iot,
    /// Leaves, and where each begins.
    homes: Vec<Home>,
    index: Index,
    /// Records that are in no leaf yet, and where the next leaf begins.
    some: Records,
    lower: Vec<u8>,
    is_installed: bool,
    loaded: Loaded,
}

impl<'a> Loading<'a> {
    pub(crate) fn new(keyspace: &'a Iot) -> Result<Loading<'a>> {
        let loading = Loading {
            keyspace,
            homes: Vec::new(),
            index: Index::new(),
            some: Records::default(),
            lower: Vec::new(),
            is_installed: false,
            loaded: Loaded::new(&keyspace.values),
        };
        loading.check_empty()?;
        Ok(loading)
    }

    fn check_empty(&self) -> Result<()> {
        match self.keyspace.tree.records() {
            0 => Ok(()),
            _ => Err(Error::invalid("a bulk load needs an empty keyspace")),
        }
    }

    /// Makes leaves of what was gathered: of all, or as long as the last one would be full.
    fn make_leaves(&mut self, all: bool) -> Result<()> {
        let mut from = 0;
        let least = if all { 0 } else { 2 * BLOCK_BYTES };
        let mut made = Vec::new();
        loop {
            let left: usize = (from..self.some.len()).map(|index| self.bytes_at(index)).sum();
            if left < least {
                break;
            }
            let (end, upper) = self.end_of_leaf(from);
            let bounds = Bounds { lower: &self.lower, upper: upper.as_deref() };
            let entries = moved(&self.some, from..end);
            let home = self.keyspace.tree.make(bounds, entries, None);
            self.index.insert(&self.lower, home);
            made.push(home);
            from = end;
            match upper {
                Some(upper) => self.lower = upper,
                None => break,
            }
        }
        self.homes.extend(&made);
        let mut rest = Records::default();
        for entry in (from..self.some.len()).map(|index| self.some.entry(index)) {
            let key = |out: &mut Vec<u8>| out.extend_from_slice(entry.key);
            rest.push((entry.flags, 0), key, |out| out.extend_from_slice(entry.value));
        }
        self.some = rest;
        self.keyspace.write_new(&made)
    }

    fn bytes_at(&self, index: usize) -> usize {
        let (key, value) = self.some.lengths(index);
        key + value
    }

    /// Returns behind which record the leaf ends that begins at this one, and its upper bound.
    fn end_of_leaf(&self, from: usize) -> (usize, Option<Vec<u8>>) {
        let count = self.some.len();
        let upper_of = |end: usize| {
            (end < count).then(|| separator(self.some.key(end - 1), self.some.key(end)))
        };
        let words = |end: usize| {
            let upper = upper_of(end);
            let bounds = Bounds { lower: &self.lower, upper: upper.as_deref() };
            words_of(bounds, (from..end).map(|index| self.some.lengths(index)))
        };
        if words(count) <= FILLED_WORDS {
            return (count, None);
        }
        // As many as may fit if the key and the lower bound tell what all share; then as few less as is needed.
        let (mut end, mut bytes) = (from, 0);
        while end < count && bytes < FILLED_WORDS * 8 {
            let key = self.some.key(end);
            let shared = self.lower.iter().zip(key).take_while(|(one, other)| one == other).count();
            let (key, value) = self.some.lengths(end);
            bytes += least_bytes(key - shared, value);
            end += 1;
        }
        let fits = (from + 1..=end.min(count)).rev().find(|end| words(*end) <= FILLED_WORDS);
        let end = fits.unwrap_or(from + 1);
        (end, upper_of(end))
    }
}

impl Bulk for Loading<'_> {
    fn push(&mut self, key: &[u8], value: ValueRef<'_>) -> Result<()> {
        self.keyspace.values.check(key.len(), value)?;
        let last = self.some.len().checked_sub(1).map(|last| self.some.key(last));
        if let Some(last) = last.filter(|last| *last >= key) {
            return Err(not_ascending(last, key));
        }
        let is_enough = self.some.bytes() >= GATHERED_BYTES;
        if is_enough {
            // Before anything changes: it is tried again once there is memory.
            let reserved = self.keyspace.reserve(self.some.bytes() as u64)?;
            self.keyspace.memory.release(reserved);
        }
        if value.large {
            self.loaded.push(value.bytes)?;
        }
        let of_key = |out: &mut Vec<u8>| out.extend_from_slice(key);
        self.some.push((flags_of(value), 0), of_key, |out| out.extend_from_slice(value.bytes));
        if is_enough { self.make_leaves(false) } else { Ok(()) }
    }

    fn install(mut self: Box<Self>, number: SnapshotNumber) -> Result<()> {
        let keyspace = self.keyspace;
        let _inside = probe::enter("bulk load");
        self.make_leaves(true)?;
        let _one_at_a_time = keyspace.publishing.lock();
        self.check_empty()?;
        let redo = keyspace.context.log.last_lsn();
        let live = self.loaded.extents();
        keyspace.publish_new(&self.homes, redo, LargeList { live, ..LargeList::default() })?;
        keyspace.pre_images.before_load(number);
        keyspace.values.supersede_all();
        self.loaded.apply(0);
        self.loaded.keep();
        self.is_installed = true;
        let before = keyspace.tree.replace(std::mem::take(&mut self.index));
        before.into_iter().for_each(|place| keyspace.let_go(place));
        keyspace.values.settle(&keyspace.values.cut(redo.0));
        keyspace.follow_memory();
        Ok(())
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        if self.is_installed {
            return;
        }
        for home in self.homes.drain(..) {
            let tree = &self.keyspace.tree;
            if let Some(place) = tree.discard(tree.latch(home.block())) {
                self.keyspace.let_go(place);
            }
        }
    }
}
