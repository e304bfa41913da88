//! Cache lines of a file in persistent memory: what was stored to them and may vanish.
//!
//! ```text
//!   store a, b, c    line 7:  durable D   stores a b c
//!   write back       line 7:  durable D   stores a b c, of thread T: the first 3
//!   store d          line 7:  durable D   stores a b c d
//!   fence of T       line 7:  durable D+a+b+c   stores d
//!   crash:           each line is its durable bytes and any first ones of its stores, as the seed says
//! ```
//!
//! A store here is one of 8 bytes, the unit that memory never tears. Lines go on their own, because
//! a processor evicts them in any order.
//!
//! **Invariants.** (1) `stores` holds all stores since the last one that a fence covers, oldest
//! first. (2) A fence covers only what its own thread has begun to write back.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread::ThreadId;

use spinney_base::runtime::SplitMix;

use super::inode::Survival;
use crate::disk::LINE_BYTES;

pub(super) const WORD_BYTES: usize = 8;

/// 8 bytes and where they are in the file.
pub(super) type Store = (u64, [u8; WORD_BYTES]);

#[derive(Clone, Debug, Default)]
struct Line {
    stores: Vec<Store>,
    /// How many of the stores a thread has begun to write back.
    begun: Vec<(ThreadId, usize)>,
}

/// The lines of a file with stores that no fence covers.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    lines: BTreeMap<u64, Line>,
}

impl Lines {
    pub(super) fn store(&mut self, store: Store) {
        let line = self.lines.entry(store.0 / LINE_BYTES as u64).or_default();
        line.stores.push(store);
    }

    /// Begins to write back the lines of these bytes, and answers their number.
    pub(super) fn write_back(&mut self, bytes: Range<u64>, thread: ThreadId) -> u64 {
        let size = LINE_BYTES as u64;
        let lines = bytes.start / size..bytes.end.div_ceil(size);
        for line in self.lines.range_mut(lines.clone()).map(|(_, line)| line) {
            line.begun.push((thread, line.stores.len()));
        }
        lines.end - lines.start
    }

    /// Ends what this thread has begun, and answers the stores that are durable now.
    pub(super) fn fence(&mut self, thread: ThreadId) -> Vec<Store> {
        let mut durable = Vec::new();
        for line in self.lines.values_mut() {
            let own = line.begun.iter().filter(|(by, _)| *by == thread);
            let Some(count) = own.map(|(_, count)| *count).max() else { continue };
            durable.extend(line.stores.drain(..count));
            line.begun.retain_mut(|(by, of)| {
                *of = of.saturating_sub(count);
                *by != thread && *of > 0
            });
        }
        self.lines.retain(|_, line| !line.stores.is_empty());
        durable
    }

    /// The stores that a power loss keeps.
    pub(super) fn kept(&self, random: &mut SplitMix, survival: Survival) -> Vec<Store> {
        let mut kept = Vec::new();
        for line in self.lines.values() {
            if survival.survives(random) {
                let all = matches!(survival, Survival::All);
                let count =
                    if all { line.stores.len() } else { 1 + random.below(line.stores.len()) };
                kept.extend_from_slice(&line.stores[..count]);
            }
        }
        kept
    }

    /// Forgets stores from this place in the file on.
    pub(super) fn cut(&mut self, bytes: u64) {
        self.lines.split_off(&(bytes / LINE_BYTES as u64));
    }

    /// Pages with stores that no fence covers.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> {
        let of = spinney_base::limits::PAGE_BYTES / LINE_BYTES;
        self.lines.keys().map(move |line| line / of as u64)
    }

    pub(super) fn len(&self) -> u64 {
        self.lines.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_cover_what_their_thread_has_begun() {
        let (one, other) = (std::thread::current().id(), {
            #[expect(clippy::disallowed_methods, reason = "only its name is wanted")]
            let thread = std::thread::spawn(|| std::thread::current().id());
            thread.join().unwrap()
        });
        let word = |number: u8| [number; WORD_BYTES];
        let mut lines = Lines::default();
        lines.store((64, word(1)));
        lines.store((72, word(2)));
        lines.store((128, word(3)));
        assert_eq!(lines.write_back(64..65, one), 1);
        lines.store((64, word(4)));
        assert_eq!(lines.write_back(64..192, other), 2);
        assert_eq!(lines.fence(one), [(64, word(1)), (72, word(2))]);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines.fence(one), []);
        assert_eq!(lines.fence(other), [(64, word(4)), (128, word(3))]);
        assert_eq!(lines.len(), 0);
    }

    #[test]
    fn a_crash_keeps_first_stores_of_each_line() {
        let mut lines = Lines::default();
        for place in [0, 8, 16, 64, 72] {
            lines.store((place, [1; WORD_BYTES]));
        }
        let mut seen = std::collections::BTreeSet::new();
        let mut random = SplitMix(1);
        for _ in 0..1000 {
            let survival = Survival::draw(&mut random);
            let kept = lines.kept(&mut random, survival);
            seen.insert(kept.iter().map(|store| store.0).collect::<Vec<_>>());
        }
        // Four states of the first line, three of the second.
        assert_eq!(seen.len(), 4 * 3);
        assert!(seen.iter().all(|kept| !kept.contains(&16) || kept.starts_with(&[0, 8])));
    }
}
