//! Leaves beside a map.

use super::*;
use spinney_base::runtime::SplitMix;
use std::collections::BTreeMap;

fn block() -> Vec<Word> {
    (0..BLOCK_WORDS).map(|_| Word::new(0)).collect()
}

#[test]
fn a_leaf_agrees_with_a_map() {
    for seed in 0..20 {
        let words = block();
        let leaf = Leaf::new(&words);
        let (lower, upper) = (b"pre/a".to_vec(), b"pre/x".to_vec());
        let bounds = Bounds { lower: &lower, upper: (seed % 2 == 0).then_some(&upper[..]) };
        leaf.write(bounds, std::iter::empty::<Moved<'_>>());
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut random = SplitMix(seed);
        for _ in 0..4_000 {
            let number = random.next_u64();
            let mut key = b"pre/b".to_vec();
            key.extend((0..number % 12).map(|at| (number >> (8 + at) & 1) as u8));
            if number >> 60 == 0 {
                key.extend_from_slice(&[7; 300]);
            }
            let value = vec![number as u8; (random.next_u64() % 400) as usize];
            let entry = Entry { key: &key, value: &value, flags: 0 };
            let index = leaf.search(&key);
            assert_eq!(index.is_ok(), model.contains_key(&key));
            if number >> 59 & 3 == 0 {
                if let Ok(index) = index {
                    leaf.remove(index);
                    model.remove(&key);
                }
            } else if leaf.put(index, entry) {
                model.insert(key, value);
            }
            leaf.check().unwrap();
        }
        let mut records = Records::default();
        leaf.copy(&mut records);
        let found: BTreeMap<_, _> =
            (records.iter()).map(|entry| (entry.key.to_vec(), entry.value.to_vec())).collect();
        assert_eq!(found, model);
        let lengths = (0..records.len()).map(|index| records.lengths(index));
        assert_eq!(words_of(bounds, lengths), leaf.live_words());
    }
}

#[test]
fn status_and_image_are_apart() {
    let words = block();
    let leaf = Leaf::new(&words);
    leaf.set_image(None);
    assert!(leaf.is_fresh() && leaf.image().is_none());
    leaf.set_changed(true);
    let place = Place::from_word(7 << 32 | 128, 2);
    leaf.set_image(Some(place));
    assert!(leaf.is_changed() && !leaf.is_fresh());
    leaf.set_fresh();
    leaf.set_changed(false);
    assert!(!leaf.is_changed() && leaf.is_fresh() && leaf.image() == Some(place));
}
