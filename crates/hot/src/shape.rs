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
use spinney_leaf::Coming;

use crate::blocks::Block;
use crate::leaf::{BLOCK_WORDS, DIRTY, GAP, TierLeaf};
use crate::tier::{Held, Home, HotTier};

/// Words of a leaf, on average over two neighbours, up to which these share what they have. With more,
/// leaves are rewritten more often; with less, memory is left unused.
const FULL_WORDS: usize = 31 * BLOCK_WORDS / 32;
/// Two neighbours share what they have while so many records like the one that comes have room in both. With fewer, long
/// records have all of both copied for each of them; with more, memory is left unused.
const SHARED_RECORDS: usize = 4;
/// Words up to which the hand fills a leaf. With more, the next records split it; with less, memory is
/// left unused.
const FILLED_WORDS: usize = BLOCK_WORDS / 16 * 15;
/// Words in use below which it does. With more, leaves are rewritten for little.
const SPARSE_WORDS: usize = BLOCK_WORDS / 8 * 7;
/// Most leaves that one becomes: a record of a quarter of a block may leave the rest of two unused.
const PARTS_MAX: usize = 4;

/// All of one leaf, or of up to three that follow each other.
#[derive(Debug)]
struct Image {
    all: spinney_leaf::Image,
    starts_gap: bool,
}

impl Image {
    fn of(held: &Held<'_>) -> Image {
        let all = spinney_leaf::Image::of(held.leaf, |index| held.references.get(index));
        Image { all, starts_gap: held.leaf.starts_gap() }
    }

    /// Adds the leaf that follows.
    fn joined(mut self, right: &Held<'_>) -> Image {
        let (records, starts_gap) = (&mut self.all.records, right.leaf.starts_gap());
        match records.len().checked_sub(1) {
            None => self.starts_gap &= starts_gap,
            Some(_) if starts_gap => {}
            Some(last) => records.set_flags(last, records.flags(last) & !GAP),
        }
        self.all.add(right.leaf, |index| right.references.get(index));
        self
    }
}

/// A leaf after a neighbour was asked for room.
#[derive(Debug)]
enum Shared<'a> {
    /// They share what they have; this one is for the key now.
    Done(Held<'a>),
    /// There was none.
    Not(Held<'a>),
}

/// Which neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl HotTier {
    /// Rewrites a leaf, so that all of its unused words lie together.
    pub(crate) fn compact(&self, held: &Held<'_>) {
        let image = Image::of(held);
        let about = (held.leaf.generation(), image.starts_gap);
        held.leaf.write_all(image.all.bounds(), about, image.all.records.iter());
    }

    /// Makes room in a full leaf, for `words` words of what comes at this key. Returns the leaf that is for the key
    /// now, whose keys were latched all the time.
    pub(crate) fn make_room<'a>(&'a self, held: Held<'a>, words: usize, key: &[u8]) -> Held<'a> {
        if held.leaf.spare_words() >= words {
            self.compact(&held);
            return held;
        }
        let block = held.block;
        let index = held.leaf.search(key).unwrap_or_else(|at| at);
        if index == held.leaf.len() && !held.leaf.upper(&mut Vec::new()) {
            // Where keys ascend, leaves stay full.
            let image = Image::of(&held);
            let cuts = [0, index];
            if image.all.fits(&cuts, key) {
                return self.rewrite(&image, (vec![held], &cuts), key);
            }
        }
        let coming = Coming { key, words };
        let held = match self.share(held, coming, Side::Right) {
            Shared::Done(held) => return held,
            Shared::Not(held) => held,
        };
        let held = match self.share(held, coming, Side::Left) {
            Shared::Done(held) => return held,
            Shared::Not(held) => held,
        };
        // No neighbour has room: three become four.
        let mut leaves = Vec::with_capacity(3);
        leaves.extend(self.neighbour(&held, Side::Left));
        let right = self.neighbour(&held, Side::Right);
        leaves.push(held);
        leaves.extend(right);
        let all = leaves.iter().skip(1).fold(Image::of(&leaves[0]), Image::joined);
        let parts = leaves.len() + 1..=leaves.len() + 2;
        if let Some(cuts) = parts.into_iter().find_map(|parts| all.all.cuts(parts, coming)) {
            return self.rewrite(&all, (leaves, &cuts), key);
        }
        // Keys of several leaves share less than those of one.
        let own = leaves.iter().position(|leaf| leaf.block == block).expect("it is among them");
        let held = leaves.swap_remove(own);
        leaves.into_iter().for_each(|leaf| leaf.release_unchanged());
        let image = Image::of(&held);
        let cuts = (2..=PARTS_MAX).find_map(|parts| image.all.cuts(parts, coming));
        let cuts = cuts.expect("a third, two records and two bounds fit into a leaf");
        self.rewrite(&image, (vec![held], &cuts), key)
    }

    /// Spreads the records of a leaf and a neighbour evenly, if that gives room for what comes.
    fn share<'a>(&'a self, held: Held<'a>, coming: Coming<'_>, side: Side) -> Shared<'a> {
        let Some(other) = self.neighbour(&held, side) else { return Shared::Not(held) };
        let (left, right) = match side {
            Side::Right => (held, other),
            Side::Left => (other, held),
        };
        let words = left.leaf.live() + left.leaf.len() + right.leaf.live() + right.leaf.len();
        if words + SHARED_RECORDS * coming.words <= 2 * FULL_WORDS {
            let both = Image::of(&left).joined(&right);
            if let Some(cuts) = both.all.cuts(2, coming) {
                return Shared::Done(self.rewrite(&both, (vec![left, right], &cuts), coming.key));
            }
        }
        let (held, other) = match side {
            Side::Right => (left, right),
            Side::Left => (right, left),
        };
        other.release_unchanged();
        Shared::Not(held)
    }

    /// Latches a neighbour, if there is one that nobody has latched.
    fn neighbour(&self, held: &Held<'_>, side: Side) -> Option<Held<'_>> {
        let mut bound = Vec::new();
        if side == Side::Right {
            held.leaf.upper(&mut bound).then_some(())?;
            return self.try_lock(&bound);
        }
        held.leaf.lower(&mut bound);
        let before = self.try_lock(&self.index.before(&bound, false)?.0)?;
        // It may have been divided since the index was asked: then another leaf lies between the two.
        let mut upper = Vec::new();
        if before.leaf.upper(&mut upper) && upper == bound {
            return Some(before);
        }
        before.release_unchanged();
        None
    }

    /// Fills a leaf with records of the next one, or joins the two, if that makes it much fuller. The caller may have
    /// changed it, so its latch is given back as that of a changed leaf.
    pub(crate) fn fill(&self, held: Held<'_>) {
        let used = held.leaf.live() + held.leaf.len();
        let right = if used < SPARSE_WORDS { self.neighbour(&held, Side::Right) } else { None };
        let Some(right) = right else { return };
        let both = Image::of(&held).joined(&right);
        match both.all.filled(FILLED_WORDS) {
            Some(cuts) => drop(self.rewrite(&both, (vec![held, right], &cuts), &[])),
            None => right.release_unchanged(),
        }
    }

    /// Latches the leaf with this lower bound, if nobody has it latched.
    fn try_lock(&self, lower: &[u8]) -> Option<Held<'_>> {
        let home = self.index.get(lower)?;
        let Block { leaf, latch, references } = self.blocks.block(home.block());
        let guard = latch.try_upgrade(latch.try_version()?)?;
        let held = Held::new(home.block(), leaf, references, guard);
        if held.leaf.generation() != home.generation() {
            held.release_unchanged();
            return None;
        }
        Some(held)
    }

    /// Writes all records of these leaves into as many as there are cuts. `key` decides where a part
    /// without records begins. Returns the leaf that is for it.
    fn rewrite<'a>(
        &'a self,
        image: &Image,
        (leaves, cuts): (Vec<Held<'a>>, &[usize]),
        key: &[u8],
    ) -> Held<'a> {
        let mut old_bounds: Vec<Vec<u8>> = Vec::new();
        for leaf in leaves.iter().skip(1) {
            old_bounds.push(Vec::new());
            leaf.leaf.lower(old_bounds.last_mut().expect("it was pushed"));
        }
        debug_assert!(leaves.windows(2).all(|two| two[0].lies_before(&two[1])), "no neighbours");
        let mut leaves = leaves;
        let surplus = leaves.split_off(leaves.len().min(cuts.len()));
        while leaves.len() < cuts.len() {
            leaves.push(self.latch(self.blocks.take()));
        }
        let records = &image.all.records;
        let lowers = image.all.lowers(cuts, key);
        let mut homes = Vec::new();
        for (part, held) in leaves.iter().enumerate() {
            let range = cuts[part]..cuts.get(part + 1).copied().unwrap_or(records.len());
            let starts_gap = match range.start.checked_sub(1) {
                Some(before) if part > 0 => records.flags(before) & GAP != 0,
                _ => image.starts_gap,
            };
            let (bounds, generation) = (image.all.bounds_of(part, &lowers), self.next_generation());
            let entries = range.clone().map(|index| records.entry(index));
            held.leaf.write_all(bounds, (generation, starts_gap), entries);
            for (slot, index) in range.enumerate() {
                held.references.set(slot, records.about(index));
            }
            homes.push(Home::new(held.block, generation));
        }
        old_bounds.iter().for_each(|lower| self.index.remove(lower));
        // From the last to the first: a key whose leaf is not entered yet leads to the first one as it was, and is
        // looked for again. To another new one it would not belong.
        for (lower, home) in lowers.iter().zip(&homes).rev() {
            self.index.insert(lower, *home);
        }
        let place = lowers.iter().rposition(|lower| &lower[..] <= key).unwrap_or(0);
        let own = leaves.swap_remove(place);
        drop(leaves);
        for held in surplus {
            let block = held.block;
            held.leaf.free();
            drop(held);
            self.blocks.give(block);
        }
        own
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
            let image = Image::of(&held).all;
            held.release_unchanged();
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
                dirty += u64::from(image.records.flags(index) & DIRTY != 0);
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

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use spinney_base::runtime::SplitMix;
    use spinney_leaf::{Bounds, Records, record_words};

    use super::*;
    use crate::tier::RECORD_BYTES_MAX;

    /// Whatever a leaf has, it can be divided so that another record fits: keys of a kilobyte beside short ones, records
    /// of the greatest size beside small ones.
    #[test]
    fn every_leaf_can_be_divided() {
        let mut random = SplitMix(1);
        for round in 0..100_000 {
            let mut draw = |most: usize| random.next_u64() as usize % most;
            let long = [9, 900, 1024][draw(3)];
            let mut lengths = || {
                let key = if draw(2) == 0 { long } else { 9 };
                let most = RECORD_BYTES_MAX - key;
                (key, [draw(40), draw(most + 1), most][draw(3)])
            };
            let bounds = (vec![0; lengths().0], vec![255; lengths().0]);
            let mut words = spinney_leaf::HEADER_WORDS + (bounds.0.len() + bounds.1.len()) / 4 + 2;
            let mut records = Records::default();
            loop {
                let (key, value) = lengths();
                words += 1 + record_words(key, value);
                if words > BLOCK_WORDS {
                    break;
                }
                let number = records.len() as u32 + 1;
                let key = [&number.to_be_bytes()[..], &vec![7; key - 4]].concat();
                records.push((0, 0), |out| out.extend(&key), |out| out.extend(vec![7; value]));
            }
            let count = records.len() as u32;
            let between = Bounds { lower: &bounds.0, upper: Some(&bounds.1) };
            let image = spinney_leaf::Image::new(records, between, BLOCK_WORDS);
            let (key, value) = lengths();
            let at = random.next_u64() as u32 % (count + 1);
            let key = [&at.to_be_bytes()[..], &vec![9; key - 4]].concat();
            let coming = Coming { key: &key, words: 1 + record_words(key.len(), value) };
            let cuts = (2..=PARTS_MAX).find_map(|parts| image.cuts(parts, coming));
            assert!(cuts.is_some(), "round {round}: {count} records");
        }
    }
}
