//! Keys that lie together in groups, as all items of one user do.
//!
//! ```text
//!  number   0 1 2 3 4 5 | 6 7 | 8 9 10 ... 16 | 17 ...      groups of 6, 2, 9, 4, 10, 3, 7, 5, 8, and
//!  group         0      |  1  |      2        |  3          so on again: nine groups of 54 records
//!
//!  key      | group, scattered: 7 bytes | item: 1 byte |    the item of an absent key has its high bit
//! ```
//!
//! Invariant: the scatter is a bijection, so no two groups share a prefix.

use crate::permutation::mix_bits;

/// Sizes of the groups of a cycle; shuffled, so that the numbers of a size are spread evenly.
const SIZES: [u64; 9] = [6, 2, 9, 4, 10, 3, 7, 5, 8];
/// Records of a cycle.
const CYCLE: u64 = 54;
/// Most records of a group.
pub const SIZE_MAX: usize = 10;
/// Bits of a scattered group.
const GROUP_BITS: u32 = 56;
/// Marks the item of a key that no workload inserts.
const ABSENT: u8 = 0x80;

/// Number of records in a group.
#[must_use]
pub fn size(group: u64) -> u64 {
    let place = group % SIZES.len() as u64;
    SIZES.iter().zip(0..).find(|(_, at)| *at == place).map_or(0, |(size, _)| *size)
}

/// Number of groups all of whose records are among the first `records` numbers.
#[must_use]
pub fn whole(records: u64) -> u64 {
    let mut rest = records % CYCLE;
    let mut groups = records / CYCLE * SIZES.len() as u64;
    for size in SIZES {
        if rest < size {
            break;
        }
        rest -= size;
        groups += 1;
    }
    groups
}

/// Group and item of a number.
fn place(number: u64) -> (u64, u8) {
    let mut item = number % CYCLE;
    let mut group = number / CYCLE * SIZES.len() as u64;
    for size in SIZES {
        if item < size {
            break;
        }
        item -= size;
        group += 1;
    }
    (group, u8::try_from(item).unwrap_or(u8::MAX))
}

/// Makes `out` what all keys of a group begin with.
pub(super) fn prefix(group: u64, seed: u64, out: &mut Vec<u8>) {
    let scattered = mix_bits(group & (u64::MAX >> (64 - GROUP_BITS)), GROUP_BITS, seed);
    out.clear();
    out.extend_from_slice(&scattered.to_be_bytes()[1..]);
}

/// Makes `out` the key of a number.
pub(super) fn key(number: u64, absent: bool, seed: u64, out: &mut Vec<u8>) {
    let (group, item) = place(number);
    prefix(group, seed, out);
    out.push(if absent { item | ABSENT } else { item });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fill_group_after_group() {
        let mut expected = (0, 0);
        for number in 0..3 * CYCLE {
            assert_eq!(place(number), expected, "number {number}");
            assert_eq!(whole(number), expected.0, "number {number}");
            expected.1 += 1;
            if u64::from(expected.1) == size(expected.0) {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(expected, (27, 0));
        assert_eq!(SIZES.iter().sum::<u64>(), CYCLE);
        let mut sizes = SIZES.map(|size| usize::try_from(size).unwrap());
        sizes.sort_unstable();
        assert_eq!(sizes, [2, 3, 4, 5, 6, 7, 8, 9, SIZE_MAX]);
    }

    #[test]
    fn a_group_shares_its_prefix_with_nobody() {
        let mut key_of = Vec::new();
        let mut prefixes = std::collections::BTreeMap::new();
        for number in 0..10 * CYCLE {
            key(number, false, 7, &mut key_of);
            *prefixes.entry(key_of[..7].to_vec()).or_insert(0) += 1;
        }
        let mut prefix_of = Vec::new();
        for group in 0..90 {
            prefix(group, 7, &mut prefix_of);
            assert_eq!(prefixes.remove(&prefix_of), Some(size(group)), "group {group}");
        }
        assert!(prefixes.is_empty());
    }
}
