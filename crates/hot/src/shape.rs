//! Changes of which keys a leaf is for: splits, merges, and records that move between neighbours.
//!
//! **How a reader notices.** The index says for each leaf the generation of its bounds, and the leaf says
//! it too. While bounds change, all leaves that take part are latched. Lower bounds that are no longer
//! ones leave the index first; then the new ones enter; the leaf that begins first, whose lower bound
//! stays, gets its new generation last. Whoever is led to it before finds another generation there, and
//! looks again.
//!
//! **Latch order**: leaves from left to right. The right neighbour is only tried.

use spinney_base::shim::atomic::Ordering::Relaxed;

use crate::leaf::{BLOCK_WORDS, Bounds, GAP, HEADER_WORDS, record_words};
use crate::records::Records;
use crate::tier::{Held, Home, HotTier};

/// Words of a leaf beyond which two neighbours become three instead of sharing what they have. With
/// more, leaves are rewritten more often; with less, memory is left unused.
const FULL_WORDS: usize = BLOCK_WORDS / 16 * 15;
/// Words of two neighbours together up to which they become one. With more, the next records split it
/// again.
const MERGED_WORDS: usize = BLOCK_WORDS / 8 * 6;
/// Most leaves that two become: records of a quarter of a block may leave the rest of three unused.
const PARTS_MAX: usize = 4;

/// All of one leaf, or of two that follow each other.
#[derive(Debug, Default)]
struct Image {
    records: Records,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    starts_gap: bool,
}

impl Image {
    fn of(held: &Held<'_>) -> Image {
        let mut image = Image { starts_gap: held.leaf.starts_gap(), ..Image::default() };
        held.leaf.lower(&mut image.lower);
        image.add(held);
        image
    }

    /// Adds the records of a leaf, up to its upper bound.
    fn add(&mut self, held: &Held<'_>) {
        let leaf = held.leaf;
        for index in 0..leaf.len() {
            let slot = leaf.slot(index);
            let about = (slot.flags(), held.references.get(index));
            self.records.push(about, |out| leaf.key(slot, out), |out| leaf.value(slot, out));
        }
        let mut upper = Vec::new();
        self.upper = leaf.upper(&mut upper).then_some(upper);
    }

    /// Adds the leaf that follows.
    fn join(&mut self, right: &Held<'_>) {
        let starts_gap = right.leaf.starts_gap();
        match self.records.len().checked_sub(1) {
            None => self.starts_gap &= starts_gap,
            Some(_) if starts_gap => {}
            Some(last) => self.records.set_flags(last, self.records.flags(last) & !GAP),
        }
        self.add(right);
    }

    /// Bytes that all keys share: no part of it shares fewer.
    fn prefix(&self) -> usize {
        let upper = self.upper.as_deref();
        Bounds { lower: &self.lower, upper, generation: 0, starts_gap: false }.prefix()
    }

    /// Words that a record takes in a leaf, at most, where keys share `prefix` bytes.
    fn words(&self, index: usize, prefix: usize) -> usize {
        let (key, value) = self.records.lengths(index);
        1 + record_words(key - prefix, value)
    }

    fn all_words(&self) -> usize {
        let prefix = self.prefix();
        (0..self.records.len()).map(|index| self.words(index, prefix)).sum()
    }

    /// Where `parts` parts of about the same size begin, so that `coming` fits into its part; `None`
    /// where one would not fit into a leaf.
    fn cuts(&self, parts: usize, coming: Coming<'_>) -> Option<Vec<usize>> {
        let place = (0..self.records.len()).position(|index| self.records.key(index) >= coming.key);
        let place = place.unwrap_or(self.records.len());
        let (total, prefix) = (self.all_words() + coming.words, self.prefix());
        let words_of = |key: &[u8]| key.len().div_ceil(8);
        let upper = self.upper.as_deref().map_or(0, words_of);
        let mut cuts = vec![0];
        let mut lower = words_of(&self.lower);
        let (mut words, mut of_part, mut expected) = (0, 0, 0);
        for index in 0..self.records.len() {
            let (key, more) = (self.records.key(index), self.words(index, prefix));
            if cuts.len() < parts && words + more / 2 >= total * cuts.len() / parts {
                cuts.push(index);
                (lower, of_part, expected) = (words_of(key), 0, 0);
            }
            (words, of_part) = (words + more, of_part + more);
            words += if index == place { coming.words } else { 0 };
            // Between two parts it may come to either.
            if index == place || index + 1 == place {
                expected = coming.words;
            }
            // A separator is at most a byte longer than the key below it.
            let bounds = lower + upper.max(words_of(key) + 1);
            if of_part + expected + bounds + HEADER_WORDS > BLOCK_WORDS {
                return None;
            }
        }
        (cuts.len() == parts).then_some(cuts)
    }
}

/// A record for which room is made.
#[derive(Clone, Copy, Debug)]
struct Coming<'a> {
    key: &'a [u8],
    words: usize,
}

/// Returns the shortest key that is above `below` and at most `above`.
fn separator(below: &[u8], above: &[u8]) -> Vec<u8> {
    let common = below.iter().zip(above).take_while(|(one, other)| one == other).count();
    above[..above.len().min(common + 1)].to_vec()
}

impl HotTier {
    /// Rewrites a leaf, so that all of its unused words lie together.
    pub(crate) fn compact(&self, held: &Held<'_>) {
        let image = Image::of(held);
        let bounds = Bounds {
            lower: &image.lower,
            upper: image.upper.as_deref(),
            generation: held.leaf.generation(),
            starts_gap: image.starts_gap,
        };
        let entries = (0..image.records.len()).map(|index| image.records.entry(index));
        held.leaf.write(bounds, entries);
    }

    /// Makes room in a full leaf, for `words` words of a record that would lie at this place. The caller
    /// looks for its leaf again.
    pub(crate) fn make_room(&self, held: Held<'_>, words: usize, (index, key): (usize, &[u8])) {
        if held.leaf.spare_words() >= words {
            self.compact(&held);
            return;
        }
        let image = Image::of(&held);
        let longest = image.lower.len().div_ceil(8) + key.len().div_ceil(8) + HEADER_WORDS;
        let is_end = image.upper.is_none() && index == image.records.len();
        if is_end && image.all_words() + longest <= BLOCK_WORDS {
            // Where keys ascend, leaves stay full.
            self.rewrite(&image, (vec![held], &[0, index]), key);
            return;
        }
        let coming = Coming { key, words };
        if let Some(right) = image.upper.as_ref().and_then(|upper| self.try_lock(upper)) {
            let mut both = Image::of(&held);
            both.join(&right);
            let shares = both.all_words() + words <= 2 * FULL_WORDS;
            let least = if shares { 2 } else { 3 };
            if let Some(cuts) = (least..=PARTS_MAX).find_map(|parts| both.cuts(parts, coming)) {
                self.rewrite(&both, (vec![held, right], &cuts), key);
                return;
            }
            right.guard.release_unchanged();
        }
        let cuts = (2..=PARTS_MAX).find_map(|parts| image.cuts(parts, coming));
        let cuts = cuts.expect("a third, two records and two bounds fit into a leaf");
        self.rewrite(&image, (vec![held], &cuts), key);
    }

    /// Joins a leaf with the next one, if both are sparse.
    pub(crate) fn merge(&self, held: Held<'_>) {
        let mut upper = Vec::new();
        if !held.leaf.upper(&mut upper) {
            held.guard.release_unchanged();
            return;
        }
        let Some(right) = self.try_lock(&upper) else {
            held.guard.release_unchanged();
            return;
        };
        let mut image = Image::of(&held);
        image.join(&right);
        if image.all_words() > MERGED_WORDS
            || image.cuts(1, Coming { key: &[], words: 0 }).is_none()
        {
            held.guard.release_unchanged();
            right.guard.release_unchanged();
            return;
        }
        self.rewrite(&image, (vec![held, right], &[0]), &[]);
    }

    /// Latches the leaf with this lower bound, if nobody has it latched.
    fn try_lock(&self, lower: &[u8]) -> Option<Held<'_>> {
        let home = self.index.get(lower)?;
        let latch = self.blocks.latch(home.block());
        let guard = latch.try_upgrade(latch.try_version()?)?;
        let held = self.held(home.block(), guard);
        if held.leaf.generation() != home.generation() {
            held.guard.release_unchanged();
            return None;
        }
        Some(held)
    }

    /// Writes all records of these leaves into as many as there are cuts. `key` decides where a part
    /// without records begins.
    fn rewrite(&self, image: &Image, (leaves, cuts): (Vec<Held<'_>>, &[usize]), key: &[u8]) {
        let mut old_bounds: Vec<Vec<u8>> = Vec::new();
        for leaf in leaves.iter().skip(1) {
            old_bounds.push(Vec::new());
            leaf.leaf.lower(old_bounds.last_mut().expect("it was pushed"));
        }
        let mut leaves = leaves;
        let surplus = leaves.split_off(leaves.len().min(cuts.len()));
        while leaves.len() < cuts.len() {
            let block = self.blocks.take();
            leaves.push(self.held(block, self.blocks.latch(block).lock()));
        }
        let records = &image.records;
        let mut lowers = vec![image.lower.clone()];
        for cut in &cuts[1..] {
            let above = if *cut < records.len() { records.key(*cut) } else { key };
            let below = cut.checked_sub(1).map_or(&image.lower[..], |before| records.key(before));
            lowers.push(separator(below, above));
        }
        let mut homes = Vec::new();
        for (part, held) in leaves.iter().enumerate() {
            let range = cuts[part]..cuts.get(part + 1).copied().unwrap_or(records.len());
            let starts_gap = match range.start.checked_sub(1) {
                Some(before) if part > 0 => records.flags(before) & GAP != 0,
                _ => image.starts_gap,
            };
            let bounds = Bounds {
                lower: &lowers[part],
                upper: lowers.get(part + 1).map(Vec::as_slice).or(image.upper.as_deref()),
                generation: self.next_generation(),
                starts_gap,
            };
            held.leaf.write(bounds, range.clone().map(|index| records.entry(index)));
            for (slot, index) in range.enumerate() {
                held.references.set(slot, records.references(index));
            }
            homes.push(Home::new(held.block, bounds.generation));
        }
        old_bounds.iter().for_each(|lower| _ = self.index.remove(lower));
        for (lower, home) in lowers.iter().zip(&homes).skip(1) {
            self.index.insert(lower, *home);
        }
        self.index.insert(&lowers[0], homes[0]);
        drop(leaves);
        for held in surplus {
            let block = held.block;
            held.leaf.free();
            drop(held);
            self.blocks.give(block);
        }
    }

    /// Checks every invariant. The caller makes sure that no thread writes meanwhile.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn check(&self) -> Result<(), String> {
        let all = std::ops::Bound::Unbounded;
        let leaves: Vec<_> = self.index.range(all, all, spinney_art::Direction::Forward).collect();
        let (mut count, mut dirty) = (0, 0);
        for (place, (lower, home)) in leaves.iter().enumerate() {
            let held = self.held(home.block(), self.blocks.latch(home.block()).lock());
            let leaf = held.leaf;
            let image = Image::of(&held);
            held.guard.release_unchanged();
            let upper = leaves.get(place + 1).map(|(lower, _)| lower);
            if leaf.generation() != home.generation() {
                return Err(format!("leaf {lower:?} has another generation"));
            }
            if image.lower != *lower || image.upper.as_ref() != upper {
                return Err(format!(
                    "leaf {lower:?} goes from {:?} to {:?}",
                    image.lower, image.upper
                ));
            }
            let mut live = 0;
            for index in 0..image.records.len() {
                let key = image.records.key(index);
                let above = match index.checked_sub(1) {
                    Some(before) => image.records.key(before) < key,
                    None => &lower[..] <= key,
                };
                if !above || upper.is_some_and(|upper| key >= &upper[..]) {
                    return Err(format!("{key:?} is out of order in leaf {lower:?}"));
                }
                if leaf.search(key) != Ok(index) {
                    return Err(format!("{key:?} is not found in leaf {lower:?}"));
                }
                live += leaf.slot(index).words();
                dirty += u64::from(image.records.flags(index) & crate::leaf::DIRTY != 0);
            }
            if live != leaf.live() || leaf.free_words() > leaf.spare_words() {
                return Err(format!("leaf {lower:?} has {live} words, not {}", leaf.live()));
            }
            count += image.records.len() as u64;
        }
        let counted = (self.records.load(Relaxed), self.dirty.load(Relaxed));
        if counted != (count, dirty) {
            return Err(format!("{count} records, {dirty} dirty, but {counted:?} are counted"));
        }
        self.index.check().map(drop).map_err(|error| error.to_string())
    }
}
