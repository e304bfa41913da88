//! Leaves beside a map.

use super::*;
use spinney_base::runtime::SplitMix;
use std::collections::BTreeMap;

fn block() -> Vec<Word> {
    (0..BLOCK_WORDS).map(|_| Word::new(0)).collect()
}

#[test]
fn a_leaf_agrees_with_a_map() {
    for seed in 0..40 {
        // A leaf has few records or many, with keys that differ in their first bytes or behind them.
        let (value_most, digits) = [(400, 1), (400, 9), (12, 1), (12, 9)][seed as usize % 4];
        let words = block();
        let leaf = Leaf::new(&words);
        let (lower, upper) = (b"pre/a".to_vec(), b"pre/x".to_vec());
        let bounds = Bounds { lower: &lower, upper: (seed / 4 % 2 == 0).then_some(&upper[..]) };
        leaf.write(bounds, std::iter::empty::<Moved<'_>>());
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut random = SplitMix(seed);
        for _ in 0..4_000 {
            let number = random.next_u64();
            let mut key = b"pre/b".to_vec();
            key.extend((0..number % 12).map(|at| (number >> (8 + at) & digits) as u8));
            if number >> 60 == 0 {
                key.extend_from_slice(&[7; 300]);
            }
            let value = vec![number as u8; (random.next_u64() % value_most) as usize];
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
        assert!(value_most > 12 || model.len() > 8 * GROUP, "{} records", model.len());
        let mut records = Records::default();
        leaf.copy(&mut records);
        let found: BTreeMap<_, _> =
            (records.iter()).map(|entry| (entry.key.to_vec(), entry.value.to_vec())).collect();
        assert_eq!(found, model);
        let lengths = (0..records.len()).map(|index| records.lengths(index));
        assert_eq!(words_of(bounds, lengths), leaf.live_words());
    }
}

/// What is copied lies elsewhere in words when its keys share more.
#[test]
fn parts_whose_keys_share_more_keep_their_records() {
    let mut random = SplitMix(1);
    for shared in 0..20 {
        let (words, part) = (block(), block());
        let (leaf, narrow) = (Leaf::new(&words), Leaf::new(&part));
        let common = vec![b'm'; 3 + shared];
        let all = Bounds { lower: b"mmm", upper: Some(b"mmz") };
        let (lower, upper) = (common.clone(), [&common[..], b"z"].concat());
        leaf.write(all, std::iter::empty::<Moved<'_>>());
        let mut model = BTreeMap::new();
        for number in 0..60_u8 {
            let more = (0..random.next_u64() % 30).map(|_| b"abcdefg"[number as usize % 7]);
            let key: Vec<u8> = common.iter().copied().chain([number]).chain(more).collect();
            let key = if number == 0 { common.clone() } else { key };
            let value: Vec<u8> = (0..random.next_u64() % 50).map(|at| at as u8).collect();
            let index = leaf.search(&key).unwrap_err();
            assert!(leaf.put(Err(index), Entry { key: &key, value: &value, flags: 0 }));
            leaf.set_cell(index, number.is_multiple_of(3).then_some(u32::from(number)));
            model.insert(key, (value, number.is_multiple_of(3).then_some(u32::from(number))));
        }
        let new = (Entry { key: &[common.as_slice(), b"x"].concat(), value: b"new", flags: 0 }, 0);
        let picks = (0..leaf.len()).map(Some).chain([None]);
        narrow.write_picked(Bounds { lower: &lower, upper: Some(&upper) }, leaf, picks, new);
        narrow.check().unwrap();
        model.insert(new.0.key.to_vec(), (b"new".to_vec(), None));
        assert_eq!(narrow.len(), model.len());
        for (at, (key, (value, cell))) in model.iter().enumerate() {
            let (mut found_key, mut found) = (Vec::new(), Vec::new());
            narrow.key(at, &mut found_key);
            narrow.value(narrow.data(at), &mut found);
            assert_eq!((&found_key, &found, narrow.cell(at)), (key, value, *cell), "{shared}");
            assert_eq!(narrow.search(key), Ok(at));
            assert!(narrow.is_at(at, key) && !narrow.is_at(at + 1, key), "{key:?}");
        }
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
