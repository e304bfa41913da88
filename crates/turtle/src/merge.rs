//! Merging: of several lines of runs the newest edit of each key, in order.
//!
//! ```text
//!   newest   2  8 11            batch          the two smallest neighbours first: sizes double from
//!            1  7 10            level 1        level to level, so nothing is moved much more than
//!   oldest   0  1  4  5  7 10   level 2        twice
//!            ----------------
//!            0  1  2  4  5  7  8 10 11
//! ```
//!
//! **Invariants**
//! 1. The result holds every key of every line once, with the edit of the newest line that has it.
//! 2. A tombstone is dropped only when the caller says that nothing older lies below
//!    ([`Tombstones::Drop`]: the merge ends in a leaf), and never before all lines are one.
//! 3. A run of the result names only sources that one of its items needs, so that what is not
//!    needed any more is given back.
//!
//! Only items move (section 4.1). A tree of losers over all lines would compare log2(k) times an
//! item as well, without the intermediate runs; two lines at a time keep the inner loop at one
//! comparison of two integers that the processor can foresee better.

use std::cmp::Ordering;
use std::sync::Arc;

use spinney_base::mapped_vec::MappedVec;

use crate::run::{Item, Items, Run, SOURCES_MAX, Size, compare};
use crate::runs::Runs;
use crate::source::Source;

/// What becomes of tombstones that win.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tombstones {
    /// They stay: something older may lie below.
    Keep,
    /// They go: this is the bottom.
    Drop,
}

/// Pointers to large values that newer edits took the place of.
pub(crate) type Superseded = Vec<Vec<u8>>;

/// Merges lines, newest first. Runs of the result end when they hold `run_bytes` or a little more.
/// Pointers that are not in the result any more are appended to `superseded`.
pub(crate) fn merge(
    mut lines: Vec<Runs>,
    tombstones: Tombstones,
    run_bytes: u64,
    superseded: &mut Superseded,
) -> Runs {
    lines.retain(|line| !line.is_empty());
    while lines.len() > 2 {
        let pair = |at: usize| lines[at].len() + lines[at + 1].len();
        let at = (0..lines.len() - 1).min_by_key(|at| pair(*at)).expect("there are two lines");
        let older = lines.remove(at + 1);
        lines[at] = merge_two(&lines[at], &older, Tombstones::Keep, run_bytes, superseded);
    }
    let older = if lines.len() == 2 { lines.pop().unwrap_or_default() } else { Runs::default() };
    let newer = lines.pop().unwrap_or_default();
    if older.is_empty() && tombstones == Tombstones::Keep {
        return newer;
    }
    merge_two(&newer, &older, tombstones, run_bytes, superseded)
}

fn merge_two(
    newer: &Runs,
    older: &Runs,
    tombstones: Tombstones,
    run_bytes: u64,
    superseded: &mut Superseded,
) -> Runs {
    let bytes = newer.bytes() + older.bytes();
    let mut newer = Side::new(newer);
    let mut older = Side::new(older);
    let mut output = Output::new(tombstones, run_bytes, newer.left() + older.left(), bytes);
    while let (Some(new), Some(old)) = (newer.item(), older.item()) {
        match compare(new, newer.sources(), old, older.sources()) {
            Ordering::Less => {
                output.push(new, &mut newer);
                newer.advance();
            }
            Ordering::Greater => {
                output.push(old, &mut older);
                older.advance();
            }
            Ordering::Equal => {
                // A pointer that is put again, as a replay does, is not superseded.
                if let Some(pointer) = old.pointer(older.sources())
                    && new.pointer(newer.sources()) != Some(pointer)
                {
                    superseded.push(pointer.to_vec());
                }
                output.push(new, &mut newer);
                newer.advance();
                older.advance();
            }
        }
    }
    for mut side in [newer, older] {
        while let Some(item) = side.item() {
            output.push(item, &mut side);
            side.advance();
        }
    }
    output.finish()
}

/// A line that is being read.
struct Side<'a> {
    runs: std::slice::Iter<'a, Run>,
    run: Option<&'a Run>,
    items: &'a [Item],
    at: usize,
    /// Of each source of the run, its number in the output, or [`UNKNOWN`].
    numbers: Vec<u16>,
    /// Which run of the output the numbers are of.
    numbered: usize,
}

const UNKNOWN: u16 = u16::MAX;
const _: () = assert!(SOURCES_MAX < UNKNOWN as usize);

impl<'a> Side<'a> {
    fn new(line: &'a Runs) -> Self {
        let runs = line.as_slice().iter();
        let mut side =
            Side { runs, run: None, items: &[], at: 0, numbers: Vec::new(), numbered: 0 };
        side.next_run();
        side
    }

    fn next_run(&mut self) {
        self.run = self.runs.next();
        self.items = self.run.map_or(&[], Run::items);
        self.at = 0;
        self.forget_numbers();
    }

    fn forget_numbers(&mut self) {
        self.numbers.clear();
        self.numbers.resize(self.sources().len(), UNKNOWN);
    }

    fn left(&self) -> usize {
        self.items.len() - self.at + self.runs.as_slice().iter().map(Run::len).sum::<usize>()
    }

    fn sources(&self) -> &'a [Source] {
        self.run.map_or(&[], Run::sources)
    }

    #[inline]
    fn item(&self) -> Option<&'a Item> {
        self.items.get(self.at)
    }

    #[inline]
    fn advance(&mut self) {
        self.at += 1;
        if self.at == self.items.len() {
            self.next_run();
        }
    }
}

/// The result that is being written.
struct Output {
    tombstones: Tombstones,
    run_bytes: u64,
    runs: Runs,
    /// How many runs were begun.
    begun: usize,
    items: MappedVec<Item>,
    sources: Vec<Source>,
    size: Size,
    /// How many more items may come, and how many a run will have.
    expected: usize,
    each: usize,
}

impl Output {
    /// Of so many items at most, of so many packed bytes.
    fn new(tombstones: Tombstones, run_bytes: u64, expected: usize, bytes: u64) -> Self {
        let each = run_bytes.saturating_mul(expected as u64) / bytes.max(1);
        // They differ in length.
        let each = usize::try_from(each + each / 16).unwrap_or(expected).max(16);
        Output {
            tombstones,
            run_bytes,
            runs: Runs::default(),
            begun: 0,
            items: MappedVec::with_capacity(expected.min(each)),
            sources: Vec::new(),
            size: Size::default(),
            expected,
            each,
        }
    }

    #[inline]
    fn push(&mut self, item: &Item, from: &mut Side<'_>) {
        if item.is_tombstone() && self.tombstones == Tombstones::Drop {
            return;
        }
        if self.size.bytes >= self.run_bytes || self.sources.len() >= SOURCES_MAX {
            self.end_run();
        }
        if from.numbered != self.begun {
            from.numbered = self.begun;
            from.forget_numbers();
        }
        let number = &mut from.numbers[item.source as usize];
        if *number == UNKNOWN {
            let source =
                &from.run.expect("an item comes from a run").sources()[item.source as usize];
            *number = number_of(&mut self.sources, source);
        }
        self.items.push(item.of_source(*number));
        self.size.add(item);
    }

    #[cold]
    fn end_run(&mut self) {
        let left = self.expected.saturating_sub(self.items.len());
        self.expected = left;
        let next = MappedVec::with_capacity(left.min(self.each));
        let mut items = std::mem::replace(&mut self.items, next);
        items.shrink_to_fit();
        let items = Items { items, sources: std::mem::take(&mut self.sources) };
        self.runs.push(Run::new(items, std::mem::take(&mut self.size)));
        self.begun += 1;
    }

    fn finish(mut self) -> Runs {
        self.expected = self.items.len();
        self.end_run();
        self.runs
    }
}

#[cold]
fn number_of(sources: &mut Vec<Source>, source: &Source) -> u16 {
    let number = sources.iter().position(|known| Arc::ptr_eq(known, source));
    let number = number.unwrap_or_else(|| {
        sources.push(Arc::clone(source));
        sources.len() - 1
    });
    number as u16
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use spinney_base::ValueRef;

    use super::*;
    use crate::edit::Edit;
    use crate::run::RunBuilder;

    type Model = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

    fn key(rng: &mut StdRng) -> Vec<u8> {
        let length =
            if rng.random_bool(0.2) { rng.random_range(8..12) } else { rng.random_range(0..4) };
        (0..length).map(|_| [0, 1, b'a', 0xff][rng.random_range(0..4)]).collect()
    }

    fn line(rng: &mut StdRng, stamp: u8) -> (Runs, Model) {
        let mut model = Model::new();
        for _ in 0..rng.random_range(0..60) {
            let value = rng.random_bool(0.7).then(|| vec![stamp; rng.random_range(0..20)]);
            model.insert(key(rng), value);
        }
        // Several runs, of several sources.
        let mut runs = Runs::default();
        let mut builder = RunBuilder::default();
        for (key, value) in &model {
            if rng.random_bool(0.1) {
                runs.push(std::mem::take(&mut builder).finish().unwrap());
            }
            builder.push(Edit { key, value: value.as_deref().map(ValueRef::inline) });
        }
        runs.push(builder.finish().unwrap());
        (runs, model)
    }

    #[test]
    fn the_newest_of_each_key_wins() {
        for seed in 0..500 {
            let mut rng = StdRng::seed_from_u64(seed);
            let count = rng.random_range(0..7);
            let (lines, models): (Vec<_>, Vec<_>) =
                (0..count).map(|stamp| line(&mut rng, stamp)).unzip();
            let mut expected = Model::new();
            models.iter().rev().for_each(|model| expected.extend(model.clone()));
            let policy = [Tombstones::Keep, Tombstones::Drop][rng.random_range(0..2)];
            if policy == Tombstones::Drop {
                expected.retain(|_, value| value.is_some());
            }
            let merged = merge(lines, policy, rng.random_range(1..400), &mut Vec::new());
            let found: Model = merged
                .iter()
                .map(|edit| (edit.key.to_vec(), edit.value.map(|value| value.bytes.to_vec())))
                .collect();
            assert_eq!(found, expected, "seed {seed}");
            assert_eq!(merged.len(), expected.len(), "seed {seed}: keys twice");
            let bytes: u64 = merged.iter().map(|edit| edit.packed_bytes()).sum();
            assert_eq!(merged.bytes(), bytes, "seed {seed}");
            for run in merged.as_slice() {
                let used = |number: usize| run.items().iter().any(|i| i.source as usize == number);
                assert!((0..run.sources().len()).all(used), "seed {seed}: sources without items");
            }
        }
    }

    #[test]
    fn pointers_that_are_gone_are_named() {
        let line = |key: &[u8], value| {
            let mut builder = RunBuilder::default();
            builder.push(Edit { key, value });
            Runs::from(builder.finish().unwrap())
        };
        let old = || line(b"key", Some(ValueRef::large(b"old")));
        for (newer, gone) in [
            (line(b"key", Some(ValueRef::large(b"new"))), true),
            (line(b"key", Some(ValueRef::inline(b"old"))), true),
            (line(b"key", None), true),
            (line(b"key", Some(ValueRef::large(b"old"))), false),
            (line(b"yek", None), false),
        ] {
            for tombstones in [Tombstones::Keep, Tombstones::Drop] {
                let mut superseded = Vec::new();
                merge(vec![newer.clone(), old()], tombstones, 1000, &mut superseded);
                assert_eq!(superseded, vec![b"old".to_vec(); usize::from(gone)]);
            }
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "prints what a merge costs, decides nothing")]
    fn what_an_item_costs() {
        let count = 400_000u64;
        let run = |odd: u64| {
            let mut builder = RunBuilder::default();
            let mut key = odd;
            for step in 0..count {
                key += 1 + (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) * 1_000_003;
                let value = Some(ValueRef::inline(&[7; 56]));
                builder.push(Edit { key: &key.to_be_bytes(), value });
            }
            builder.finish().unwrap()
        };
        let lines = vec![Runs::from(run(0)), Runs::from(run(5))];
        let start = std::time::Instant::now();
        let merged = merge(lines, Tombstones::Keep, 2 << 20, &mut Vec::new());
        let nanos = start.elapsed().as_nanos() as u64 / (2 * count);
        println!("merged {} items at {nanos} ns each", merged.len());
        assert!(merged.len() as u64 > count);
    }
}
