//! Runs one behind the other, and what memory they keep.
//!
//! **Invariant**: no run is empty, and keys ascend strictly over all runs.

use std::collections::HashMap;
use std::sync::Arc;

use crate::edit::Edit;
use crate::memtable::Memtable;
use crate::run::{Item, Items, Run};
use crate::source::Source;

/// Runs one behind the other, together sorted: what is too large for one run, or was cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    runs: Vec<Run>,
}

impl From<Run> for Runs {
    fn from(run: Run) -> Runs {
        let mut runs = Runs::default();
        runs.push(run);
        runs
    }
}

impl FromIterator<Run> for Runs {
    fn from_iter<I: IntoIterator<Item = Run>>(iter: I) -> Runs {
        let mut runs = Runs::default();
        iter.into_iter().for_each(|run| runs.push(run));
        runs
    }
}

impl Runs {
    /// Appends a run whose keys are above all before it.
    pub(crate) fn push(&mut self, run: Run) {
        if run.is_empty() {
            return;
        }
        debug_assert!(self.last_key().is_none_or(|last| last < run.key(0)));
        self.runs.push(run);
    }

    pub(crate) fn extend(&mut self, runs: Runs) {
        runs.runs.into_iter().for_each(|run| self.push(run));
    }

    pub(crate) fn as_slice(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn into_vec(self) -> Vec<Run> {
        self.runs
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many edits.
    pub(crate) fn len(&self) -> usize {
        self.runs.iter().map(Run::len).sum()
    }

    /// What its edits take of a leaf's capacity.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(Run::bytes).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Edit<'_>> {
        self.runs.iter().flat_map(Run::iter)
    }

    pub(crate) fn first_key(&self) -> Option<&[u8]> {
        self.runs.first().map(|run| run.key(0))
    }

    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.runs.last().map(|run| run.key(run.len() - 1))
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Edit<'_>> {
        let after = self.runs.partition_point(|run| run.key(0) <= key);
        self.runs[after.checked_sub(1)?].get(key)
    }

    /// Cuts it into as few parts of about equal size as surely fit into leaves of `leaf_bytes`, of
    /// edits of `edit_bytes_max` at most. No part is empty; nothing has no parts.
    pub(crate) fn even_parts(&self, leaf_bytes: u64, edit_bytes_max: u64) -> Vec<Runs> {
        let total = self.bytes();
        if total <= leaf_bytes {
            return self.cut(|_, _| false);
        }
        // A part ends with the edit that crosses its even share, so it may be one edit larger.
        let count = total.div_ceil(leaf_bytes - edit_bytes_max);
        let (mut sum, mut parts) = (0, 0);
        self.cut(|_, bytes| {
            let ends = sum * count >= total * (parts + 1);
            sum += bytes;
            parts += u64::from(ends);
            ends
        })
    }

    /// Cuts it into parts as full as leaves of `leaf_bytes` can be, but for the last.
    pub(crate) fn full_parts(&self, leaf_bytes: u64) -> Vec<Runs> {
        self.cut(|part, bytes| part + bytes > leaf_bytes)
    }

    /// Cuts it before every edit for which `ends` says so of the bytes of the part so far and of
    /// the edit; never before the first.
    fn cut(&self, mut ends: impl FnMut(u64, u64) -> bool) -> Vec<Runs> {
        let mut parts: Vec<Runs> = Vec::new();
        let mut part = Runs::default();
        let mut sum = 0;
        for run in &self.runs {
            let mut from = 0;
            for (index, item) in run.items().iter().enumerate() {
                let bytes = item.packed_bytes();
                if ends(sum, bytes) && sum > 0 {
                    part.push(run.slice(from, index));
                    parts.push(std::mem::take(&mut part));
                    (from, sum) = (index, 0);
                }
                sum += bytes;
            }
            part.push(run.slice(from, run.len()));
        }
        parts.extend(Some(part).filter(|part| !part.is_empty()));
        parts
    }
}

/// Memory that runs and memtables keep from being given back, each piece counted once.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pieces: HashMap<usize, u64>,
    total: u64,
}

impl Kept {
    /// Bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.total
    }

    /// Counts what a run keeps.
    pub(crate) fn add(&mut self, run: &Run) {
        let items = run.all().items.capacity() * size_of::<Item>();
        let lists = run.all().sources.capacity() * size_of::<Source>() + size_of::<Items>();
        if !self.add_piece(std::ptr::from_ref(run.all()) as usize, items + lists) {
            return;
        }
        for source in &run.all().sources {
            self.add_piece(Arc::as_ptr(source) as usize, source.memory_bytes());
        }
    }

    /// Counts a memtable.
    pub(crate) fn add_table(&mut self, table: &Arc<Memtable>) {
        self.add_piece(Arc::as_ptr(table) as usize, table.memory_bytes() as usize);
    }

    /// Whether it is new.
    fn add_piece(&mut self, address: usize, bytes: usize) -> bool {
        let new = self.pieces.insert(address, bytes as u64).is_none();
        self.total += if new { bytes as u64 } else { 0 };
        new
    }
}

#[cfg(test)]
mod tests {
    use spinney_base::ValueRef;

    use super::*;
    use crate::run::RunBuilder;

    fn run(keys: &[&[u8]]) -> Run {
        let mut builder = RunBuilder::default();
        for key in keys {
            builder.push(Edit { key, value: Some(ValueRef::inline(b"value")) });
        }
        builder.finish().unwrap()
    }

    #[test]
    fn parts_are_even_and_none_is_too_large() {
        let keys: Vec<Vec<u8>> =
            (0..1000u32).map(|n| n.to_be_bytes()[..].repeat(1 + n as usize % 5)).collect();
        let run = run(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let mut runs = Runs::default();
        runs.push(run.slice(0, 300));
        runs.push(run.slice(300, 1000));
        for leaf in [200, 333, 1000, 5000, 20_000, 1 << 20] {
            let (even, full) = (runs.even_parts(leaf, 40), runs.full_parts(leaf));
            for parts in [&even, &full] {
                assert_eq!(parts.iter().map(Runs::len).sum::<usize>(), 1000);
                assert!(parts.iter().flat_map(Runs::iter).eq(runs.iter()));
                assert!(parts.iter().all(|part| part.bytes() <= leaf && !part.is_empty()));
            }
            assert!(even.len() == 1 || even.iter().all(|part| part.bytes() >= leaf / 4));
            assert!(full[1..].iter().zip(&full).all(|(_, part)| part.bytes() > leaf - 40));
        }
        assert!(Runs::default().even_parts(100, 10).is_empty());
        assert!(Runs::default().full_parts(100).is_empty());
    }

    #[test]
    fn what_runs_share_is_pinned_once() {
        let run = run(&[b"", b"a", b"a\0", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]);
        let mut pinned = Kept::default();
        pinned.add(&run);
        let once = pinned.bytes();
        assert!(once >= run.bytes() && once <= run.bytes() + 10 * 24 + 200);
        pinned.add(&run.slice(2, 5));
        assert_eq!(pinned.bytes(), once);
    }
}
