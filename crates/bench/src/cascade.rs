//! Clustered key sets like those of real maps and shops, computed key by key.
//!
//! Picture: `count` keys fall down a binary tree over the 48-bit key space. At each node a share of
//! the keys goes left and the rest right, each half getting half the space; a node with one key
//! puts it somewhere in its space. The shares come from a hash of the node, so the `i`-th smallest
//! key needs only the walk to it and no table:
//!
//! ```text
//!              1000 keys, 2^48 wide
//!            /                      \
//!      830 keys, 2^47          170 keys, 2^47        rough: shares far from a half, dense cities and empty seas
//!       /        \               /        \
//!    ...                                             smooth: shares near a half, a gently bending curve
//! ```
//!
//! Invariants: (1) no node holds more keys than its space, so keys are distinct; (2) the `i`-th key
//! rises with `i`.

use crate::permutation::mix64;

/// Bits of the key space that the walk fills; the caller uses the bits below for later generations.
pub(crate) const SPACE_BITS: u32 = 48;

/// How keys spread, level by level.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// Shares anywhere from almost nothing to almost all, at every scale: the cell ids of a street
    /// map.
    Rough,
    /// A drift at the top and shares near a half below: identifiers handed out over time with
    /// changing demand.
    Smooth,
}

/// A set of `count` distinct 48-bit keys.
#[derive(Clone, Debug)]
pub(crate) struct Cascade {
    count: u64,
    shape: Shape,
    seed: u64,
}

impl Cascade {
    pub(crate) fn new(count: u64, shape: Shape, seed: u64) -> Self {
        Cascade { count, shape, seed: mix64(seed ^ 0x0C45_CADE) }
    }

    /// The `index`-th smallest key of the set; `index` is below the count.
    pub(crate) fn key(&self, index: u64) -> u64 {
        let (mut index, mut count) = (index, self.count);
        let (mut space, mut key, mut node) = (1_u64 << SPACE_BITS, 0_u64, self.seed);
        while count > 1 {
            let half = space / 2;
            let level = SPACE_BITS - space.trailing_zeros();
            let left = self
                .left_share(node, level, count)
                .clamp(count.saturating_sub(half), half.min(count));
            space = half;
            if index < left {
                count = left;
                node = mix64(node ^ 1);
            } else {
                index -= left;
                count -= left;
                key += half;
                node = mix64(node ^ 2);
            }
        }
        key + node % space
    }

    /// How many of `count` keys go left at `node`.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "any whole number near the share will do, and it is clamped by the caller"
    )]
    fn left_share(&self, node: u64, level: u32, count: u64) -> u64 {
        let chance = (mix64(node) >> 11) as f64 / (1_u64 << 53) as f64;
        let share = match self.shape {
            // Pushed towards both ends: half of the nodes give nine tenths of their keys to one
            // side.
            Shape::Rough => {
                let pushed = 2.0 * chance - 1.0;
                0.5 + 0.5 * pushed.signum() * pushed.abs().powf(0.35) * 0.98
            }
            Shape::Smooth if level < 6 => 0.58 + 0.16 * (chance - 0.5),
            Shape::Smooth => 0.5 + 0.10 * (chance - 0.5),
        };
        (count as f64 * share) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_rise_and_are_distinct() {
        for shape in [Shape::Rough, Shape::Smooth] {
            for count in [1, 2, 3, 1000, 50_000] {
                let cascade = Cascade::new(count, shape, 5);
                let keys: Vec<u64> = (0..count).map(|index| cascade.key(index)).collect();
                assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{shape:?} {count}");
                assert!(keys.iter().all(|&key| key < 1 << SPACE_BITS), "{shape:?} {count}");
            }
        }
    }

    /// A rough set leaves most of a fine grid empty; a smooth one fills it.
    #[test]
    fn rough_is_rougher_than_smooth() {
        let filled = |shape| {
            let cascade = Cascade::new(20_000, shape, 9);
            let mut cells = vec![false; 4096];
            for index in 0..20_000 {
                cells[usize::try_from(cascade.key(index) >> (SPACE_BITS - 12)).unwrap()] = true;
            }
            cells.iter().filter(|&&cell| cell).count()
        };
        let (rough, smooth) = (filled(Shape::Rough), filled(Shape::Smooth));
        assert!(rough < 1500, "{rough} cells");
        assert!(smooth > 3500, "{smooth} cells");
    }
}
