//! Marks of a staged page ([`stage`](crate::stage)): a small filter, in memory only, by which
//! lookups skip the page.

/// A Bloom filter of one word over the keys of a staged page, by their hashes. Of other keys it
/// passes one in 1,000 for 3 keys, one in 12 for 12 keys, and nearly all for 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks(u64);

impl Marks {
    /// Marks of a page whose keys are unknown: any key may be there.
    pub(crate) const ALL: Marks = Marks(u64::MAX);

    /// Bits for each key.
    const BITS: u32 = 4;

    pub(crate) fn of(hashes: impl Iterator<Item = u64>) -> Self {
        Marks(hashes.fold(0, |marks, hash| marks | Self::bits(hash)))
    }

    /// Whether the page may have a key with this hash.
    pub(crate) fn may_have(self, hash: u64) -> bool {
        let bits = Self::bits(hash);
        self.0 & bits == bits
    }

    /// By six bits of the hash each.
    fn bits(hash: u64) -> u64 {
        (0..Self::BITS).fold(0, |bits, which| bits | 1 << (hash >> (40 + 6 * which) & 63))
    }
}

#[cfg(test)]
mod tests {
    use spinney_sync::hash_key;

    use super::*;

    #[test]
    fn marks_know_their_keys_and_refuse_most_others() {
        let hash = |key: u64| hash_key(spinney_base::KeyspaceId(1), &key.to_be_bytes());
        for (keys, passed_max) in [(1, 2), (3, 10), (12, 1200), (400, 10_000)] {
            let marks = Marks::of((0..keys).map(hash));
            assert!((0..keys).all(|key| marks.may_have(hash(key))));
            let passed = (1000..11_000).filter(|key| marks.may_have(hash(*key))).count();
            assert!(passed <= passed_max, "{passed} of 10,000 pass the marks of {keys}");
        }
        assert!((0..1000).all(|key| Marks::ALL.may_have(hash(key))));
        assert!(!Marks::of([].into_iter()).may_have(hash(1)));
    }
}
