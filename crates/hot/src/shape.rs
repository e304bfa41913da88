//! Changes of which keys a leaf is for: splits, merges, and records that move between neighbours.
//!
//! **How a reader notices.** The index says for each leaf the generation of its bounds, and the leaf says
//! it too. While bounds change, all leaves that take part are latched. Lower bounds that are no longer
//! ones leave the index first; then the new ones enter; the leaf that begins first, whose lower bound
//! stays, gets its new generation last. A thread that the index leads to it before finds another
//! generation there, and looks again.
//!
//! **Latch order**: neighbours of a latched leaf are only tried, never waited for, so no order is needed.

use spinney_base::shim::atomic::Ordering::Relaxed;

use crate::blocks::Block;
use crate::leaf::{BLOCK_WORDS, Bounds, GAP, HEADER_WORDS, record_words};
use crate::records::Records;
use crate::tier::{Held, Home, HotTier};

/// Words of a leaf, on average over two neighbours, up to which these share what they have. With more,
/// leaves are rewritten more often; with less, memory is left unused.
const FULL_WORDS: usize = 31 * BLOCK_WORDS / 32;
/// Words up to which the hand fills a leaf. With more, the next records split it; with less, memory is
/// left unused.
const FILLED_WORDS: usize = BLOCK_WORDS / 16 * 15;
/// Words in use below which it does. With more, leaves are rewritten for little.
const SPARSE_WORDS: usize = BLOCK_WORDS / 8 * 7;
/// Most leaves that one becomes: a record of a quarter of a block may leave the rest of two unused.
const PARTS_MAX: usize = 4;

/// All of one leaf, or of up to three that follow each other.
#[derive(Debug, Default)]
struct Image {
    records: Records,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    starts_gap: bool,
}

impl Image {
    fn of(held: &Held<'_>) -> Image {
        // Room for two leaves and what their keys share.
        let records = Records::with_capacity(2 * held.leaf.len(), 5 * BLOCK_WORDS * 4);
        let mut image = Image { records, starts_gap: held.leaf.starts_gap(), ..Image::default() };
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
    fn joined(mut self, right: &Held<'_>) -> Image {
        let starts_gap = right.leaf.starts_gap();
        match self.records.len().checked_sub(1) {
            None => self.starts_gap &= starts_gap,
            Some(_) if starts_gap => {}
            Some(last) => self.records.set_flags(last, self.records.flags(last) & !GAP),
        }
        self.add(right);
        self
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

    /// Where two parts begin of which the first is as full as the hand leaves a leaf; one part, if all
    /// fits there.
    fn filled(&self) -> Option<Vec<usize>> {
        let prefix = self.prefix();
        let most = FILLED_WORDS.checked_sub(HEADER_WORDS + self.lower.len().div_ceil(8))?;
        let mut words = 0;
        let end = (0..self.records.len()).position(|index| {
            words += self.words(index, prefix);
            words > most
        });
        let cuts = end.map_or(vec![0], |end| vec![0, end]);
        (end != Some(0) && self.fits(&cuts, &[])).then_some(cuts)
    }

    /// Lower bounds of parts that begin at `cuts`. `key` decides where one without records begins.
    fn lowers(&self, cuts: &[usize], key: &[u8]) -> Vec<Vec<u8>> {
        let mut lowers = vec![self.lower.clone()];
        for cut in &cuts[1..] {
            let above = if *cut < self.records.len() { self.records.key(*cut) } else { key };
            let below =
                cut.checked_sub(1).map_or(&self.lower[..], |before| self.records.key(before));
            lowers.push(separator(below, above));
        }
        lowers
    }

    /// Whether each of these parts fits into a leaf.
    fn fits(&self, cuts: &[usize], key: &[u8]) -> bool {
        let lowers = self.lowers(cuts, key);
        (0..cuts.len()).all(|part| {
            let upper = lowers.get(part + 1).map(Vec::as_slice).or(self.upper.as_deref());
            let bounds = Bounds { lower: &lowers[part], upper, generation: 0, starts_gap: false };
            let end = cuts.get(part + 1).copied().unwrap_or(self.records.len());
            let prefix = bounds.prefix();
            let records: usize = (cuts[part]..end).map(|index| self.words(index, prefix)).sum();
            records + bounds.words() <= BLOCK_WORDS
        })
    }
}

/// Which neighbour.
#[derive(Clone, Copy, Debug)]
enum Side {
    Left,
    Right,
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
        let block = held.block;
        if index == held.leaf.len() && !held.leaf.upper(&mut Vec::new()) {
            // Where keys ascend, leaves stay full.
            let image = Image::of(&held);
            let cuts = [0, index];
            if image.fits(&cuts, key) {
                self.rewrite(&image, (vec![held], &cuts), key);
                return;
            }
        }
        let coming = Coming { key, words };
        let Some(held) = self.share(held, coming, Side::Right) else { return };
        let Some(held) = self.share(held, coming, Side::Left) else { return };
        // No neighbour has room: three become four.
        let mut leaves = Vec::with_capacity(3);
        leaves.extend(self.neighbour(&held, Side::Left));
        let right = self.neighbour(&held, Side::Right);
        leaves.push(held);
        leaves.extend(right);
        let all = leaves.iter().skip(1).fold(Image::of(&leaves[0]), Image::joined);
        let parts = leaves.len() + 1..=leaves.len() + 2;
        if let Some(cuts) = parts.into_iter().find_map(|parts| all.cuts(parts, coming)) {
            self.rewrite(&all, (leaves, &cuts), key);
            return;
        }
        // Keys of several leaves share less than those of one.
        let own = leaves.iter().position(|leaf| leaf.block == block).expect("it is among them");
        let held = leaves.swap_remove(own);
        leaves.into_iter().for_each(|leaf| leaf.guard.release_unchanged());
        let image = Image::of(&held);
        let cuts = (2..=PARTS_MAX).find_map(|parts| image.cuts(parts, coming));
        let cuts = cuts.expect("a third, two records and two bounds fit into a leaf");
        self.rewrite(&image, (vec![held], &cuts), key);
    }

    /// Spreads the records of a leaf and a neighbour evenly, if that gives room for what comes. Gives the
    /// leaf back otherwise.
    fn share<'a>(&'a self, held: Held<'a>, coming: Coming<'_>, side: Side) -> Option<Held<'a>> {
        let Some(other) = self.neighbour(&held, side) else { return Some(held) };
        let (left, right) = match side {
            Side::Right => (held, other),
            Side::Left => (other, held),
        };
        let words = left.leaf.live() + left.leaf.len() + right.leaf.live() + right.leaf.len();
        if words + coming.words <= 2 * FULL_WORDS {
            let both = Image::of(&left).joined(&right);
            if let Some(cuts) = both.cuts(2, coming) {
                self.rewrite(&both, (vec![left, right], &cuts), coming.key);
                return None;
            }
        }
        let (held, other) = match side {
            Side::Right => (left, right),
            Side::Left => (right, left),
        };
        other.guard.release_unchanged();
        Some(held)
    }

    /// Latches a neighbour, if there is one that nobody has latched.
    fn neighbour(&self, held: &Held<'_>, side: Side) -> Option<Held<'_>> {
        let mut bound = Vec::new();
        match side {
            Side::Right => held.leaf.upper(&mut bound).then_some(())?,
            Side::Left => {
                held.leaf.lower(&mut bound);
                bound = self.index.before(&bound, false)?.0;
            }
        }
        self.try_lock(&bound)
    }

    /// Fills a leaf with records of the next one, or joins the two, if that makes it much fuller.
    pub(crate) fn fill(&self, held: Held<'_>) {
        let used = held.leaf.live() + held.leaf.len();
        let right = if used < SPARSE_WORDS { self.neighbour(&held, Side::Right) } else { None };
        let Some(right) = right else {
            held.guard.release_unchanged();
            return;
        };
        let both = Image::of(&held).joined(&right);
        match both.filled() {
            Some(cuts) => self.rewrite(&both, (vec![held, right], &cuts), &[]),
            None => {
                held.guard.release_unchanged();
                right.guard.release_unchanged();
            }
        }
    }

    /// Latches the leaf with this lower bound, if nobody has it latched.
    fn try_lock(&self, lower: &[u8]) -> Option<Held<'_>> {
        let home = self.index.get(lower)?;
        let Block { leaf, latch, references } = self.blocks.block(home.block());
        let guard = latch.try_upgrade(latch.try_version()?)?;
        let held = Held { block: home.block(), leaf, references, guard };
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
            leaves.push(self.latch(self.blocks.take()));
        }
        let records = &image.records;
        let lowers = image.lowers(cuts, key);
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
        old_bounds.iter().for_each(|lower| self.index.remove(lower));
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
        let leaves = self.index.all();
        let (mut count, mut dirty) = (0, 0);
        for (place, (lower, home)) in leaves.iter().enumerate() {
            let held = self.latch(home.block());
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
        Ok(())
    }
}
