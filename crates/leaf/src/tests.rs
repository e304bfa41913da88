//! Leaves against a map, at every size of a block, and against damage.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use spinney_sync::racy::Word;

use crate::image::{Coming, Image, separator};
use crate::layout::{Bounds, Entry, Leaf, record_words};

type Model = BTreeMap<Vec<u8>, (Vec<u8>, u8)>;

/// Words of pages of 4, 8 and 16 KiB without their header, and of a whole block.
const SIZES: [usize; 4] = [508, 1020, 2044, 2048];

fn block(words: usize) -> Vec<Word> {
    // Nothing may depend on what lay there before.
    (0..words).map(|_| Word::new(0xA5A5_A5A5_A5A5_A5A5)).collect()
}

fn entry<'a>((key, (value, flags)): (&'a Vec<u8>, &'a (Vec<u8>, u8))) -> Entry<'a> {
    Entry { key, value, flags: *flags }
}

fn written<'a>(words: &'a [Word], bounds: Bounds<'_>, model: &Model) -> Leaf<'a> {
    let leaf = Leaf::new(words);
    leaf.set_owner(7);
    assert_eq!(leaf.write(bounds, 3, model.iter().map(entry)), model.len());
    leaf
}

fn contents(leaf: Leaf<'_>) -> Model {
    let image = Image::of(leaf, |_| 0);
    image.records.iter().map(|one| (one.key.to_vec(), (one.value.to_vec(), one.flags))).collect()
}

fn assert_same(leaf: Leaf<'_>, model: &Model, bounds: Bounds<'_>) {
    assert_eq!(contents(leaf), *model);
    assert_eq!(leaf.check(31, 3), Ok(()));
    assert_eq!((leaf.owner(), leaf.notes()), (7, 3));
    let image = Image::of(leaf, |_| 0);
    assert_eq!((&image.lower[..], image.upper.as_deref()), (bounds.lower, bounds.upper));
    for (index, key) in model.keys().enumerate() {
        assert_eq!(leaf.search(key), Ok(index));
        let above = [&key[..], &[0]].concat();
        let next = model.range::<[u8], _>((Bound::Excluded(&key[..]), Bound::Unbounded)).next();
        if next.is_none_or(|(next, _)| *next != above) {
            assert_eq!(leaf.search(&above), Err(index + 1));
        }
    }
}

/// Puts as an owner does: in place, else elsewhere in the same leaf. Returns whether it fits.
fn put(leaf: Leaf<'_>, entry: Entry<'_>) -> bool {
    let index = match leaf.search(entry.key) {
        Ok(index) if leaf.overwrite(index, entry) => return true,
        Ok(index) => {
            let words = leaf.words_for(entry.key.len(), entry.value.len());
            if leaf.spare_words() + 1 + leaf.slot(index).words() < words {
                return false;
            }
            leaf.take_out(index);
            index
        }
        Err(index) => index,
    };
    let words = leaf.words_for(entry.key.len(), entry.value.len());
    if leaf.spare_words() < words {
        return false;
    }
    if leaf.free_words() < words {
        let image = Image::of(leaf, |_| 0);
        leaf.write(image.bounds(), leaf.notes(), image.records.iter());
    }
    leaf.insert(index, entry);
    true
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    // Many share long beginnings; some are empty behind what all share.
    ("ab(x{0,9}|[a-c]{0,4}|y{20})[\\x00a\\xFF]{0,3}", 0..40_u8).prop_map(|(key, more)| {
        let mut key = key.into_bytes();
        key.extend(std::iter::repeat_n(b'z', if more == 0 { 300 } else { 0 }));
        key
    })
}

proptest! {
    #[test]
    fn a_leaf_is_a_map(
        size in 0..SIZES.len(),
        has_upper in any::<bool>(),
        steps in proptest::collection::vec(
            (keys(), proptest::collection::vec(any::<u8>(), 0..60), 0..32_u8, 0..4_u8), 1..400),
    ) {
        let words = block(SIZES[size]);
        let bounds = Bounds { lower: b"ab", upper: has_upper.then_some(b"ac") };
        let mut model = Model::new();
        let leaf = written(&words, bounds, &model);
        for (key, value, flags, what) in steps {
            match (what, leaf.search(&key)) {
                (0, Ok(index)) => {
                    leaf.take_out(index);
                    model.remove(&key);
                }
                (1, Ok(index)) => {
                    leaf.set_flags(index, flags);
                    model.get_mut(&key).expect("it is there").1 = flags;
                }
                _ => if put(leaf, Entry { key: &key, value: &value, flags }) {
                    model.insert(key, (value, flags));
                }
            }
        }
        assert_same(leaf, &model, bounds);
    }

    /// All records spread over some leaves are in them, each between its bounds, and what comes fits.
    #[test]
    fn cuts_lose_nothing(
        size in 0..SIZES.len(),
        all in proptest::collection::btree_map(keys(), (proptest::collection::vec(any::<u8>(), 0..60), 0..32_u8), 1..300),
        coming in keys(),
        parts in 1..6_usize,
    ) {
        let words = SIZES[size];
        let bounds = Bounds { lower: b"ab", upper: Some(b"ac") };
        let mut records = crate::Records::default();
        for (key, (value, flags)) in &all {
            let (key, value) = (|out: &mut Vec<u8>| out.extend(key), |out: &mut Vec<u8>| out.extend(value));
            records.push((*flags, 0), key, value);
        }
        let image = Image::new(records, bounds, words);
        let room = Coming { key: &coming, words: 1 + record_words(coming.len(), 40) };
        let Some(cuts) = image.cuts(parts, room) else { return Ok(()) };
        prop_assert!(image.fits(&cuts, &coming));
        let lowers = image.lowers(&cuts, &coming);
        prop_assert!(lowers.is_sorted_by(|one, next| one < next));
        let mut found = Model::new();
        for part in 0..parts {
            let words = block(words);
            let bounds = image.bounds_of(part, &lowers);
            let end = cuts.get(part + 1).copied().unwrap_or(image.records.len());
            let leaf = Leaf::new(&words);
            leaf.write(bounds, 0, (cuts[part]..end).map(|index| image.records.entry(index)));
            prop_assert_eq!(leaf.check(31, 0), Ok(()));
            if bounds.lower <= &coming[..] && bounds.upper.is_none_or(|upper| &coming[..] < upper) {
                prop_assert!(leaf.spare_words() >= leaf.words_for(coming.len(), 40));
            }
            found.append(&mut contents(leaf));
        }
        prop_assert_eq!(found, all);
    }

    #[test]
    fn a_separator_is_short_and_lies_between(below in keys(), above in keys()) {
        prop_assume!(below < above);
        let key = separator(&below, &above);
        prop_assert!(below < key && key <= above);
        prop_assert!(key.len() <= below.len() + 1);
    }

    /// Whatever bytes a page has, a check of it ends, and what it lets pass can be read.
    #[test]
    fn damage_is_found_or_harmless(
        size in 0..SIZES.len(),
        count in 0..60_usize,
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u64>(), any::<bool>()), 1..4),
    ) {
        let words = block(SIZES[size]);
        let model: Model =
            (0..count).map(|n| (format!("ab{:03}", n * 7).into_bytes(), (vec![n as u8; n % 20], 0))).collect();
        let leaf = written(&words, Bounds { lower: b"ab", upper: Some(b"ac") }, &model);
        for (place, bits, is_header) in damage {
            let place = place.index(if is_header { 8 + count } else { words.len() });
            words[place].fetch_xor(if is_header { 1 << (bits % 64) } else { bits }, Relaxed);
        }
        if leaf.check(0, 3).is_ok() {
            let all = contents(leaf);
            prop_assert!(all.keys().is_sorted() && all.len() == leaf.len());
            all.keys().for_each(|key| assert!(leaf.search(key).is_ok()));
        }
        // A reader that lost a race reads such bytes unchecked.
        leaf.search(b"ab007").ok();
        let mut out = Vec::new();
        for index in 0..leaf.len().min(100) {
            leaf.key(leaf.slot(index), &mut out);
            leaf.value(leaf.slot(index), &mut out);
        }
        leaf.lower(&mut out);
        leaf.upper(&mut out);
    }
}

#[test]
fn each_invariant_is_checked() {
    let words = block(508);
    let bounds = Bounds { lower: b"ab", upper: Some(b"ac") };
    let model: Model = (0..30_u8).map(|n| (vec![b'a', b'b', n], (vec![n; 9], 0))).collect();
    let leaf = written(&words, bounds, &model);
    let expect = |expected: &str, change: &dyn Fn()| {
        let before: Vec<u64> = words.iter().map(|word| word.load(Relaxed)).collect();
        change();
        let wrong = leaf.check(0, 3).expect_err(expected);
        assert!(wrong.expected.contains(expected), "{wrong:?}");
        words.iter().zip(before).for_each(|(word, before)| word.store(before, Relaxed));
        assert_eq!(leaf.check(0, 3), Ok(()));
    };
    expect("at most 250 records", &|| _ = words[0].fetch_or(0xFFFF, Relaxed));
    expect("in this order", &|| _ = words[0].fetch_and(!0xFFFF_0000, Relaxed));
    expect("unused bits", &|| _ = words[0].fetch_or(1 << 60, Relaxed));
    expect("unused bits", &|| leaf.set_notes(4));
    expect("words of records", &|| _ = words[0].fetch_sub(1 << 32, Relaxed));
    expect("both bounds begin", &|| _ = words[2].fetch_sub(1 << 32, Relaxed));
    expect("heads of records as hints", &|| _ = words[4].fetch_xor(1, Relaxed));
    expect("inside the heap", &|| leaf.set_flags(3, 1));
    expect("inside the heap", &|| _ = words[7].fetch_xor(0x7FF, Relaxed));
    expect("above the one before", &|| {
        let (one, next) = (words[9].load(Relaxed), words[10].load(Relaxed));
        words[9].store(next, Relaxed);
        words[10].store(one, Relaxed);
    });
    expect("below the upper one", &|| words[507].store(u64::from(b'0'), Relaxed));
}

/// Where no number of parts takes about as much each, parts take what fits.
#[test]
fn uneven_records_with_long_keys_are_packed() {
    let values = [26, 26, 395, 26, 26, 361, 26, 26, 26, 26, 26, 375, 328, 384];
    for shared in [0, 100, 500, 900] {
        let mut records = crate::Records::default();
        for (number, length) in values.into_iter().enumerate() {
            let key = [vec![b'x'; shared], vec![number as u8 + 1; 904 - shared]].concat();
            records.push((0, 0), |out| out.extend(&key), |out| out.extend(vec![7; length]));
        }
        let image = Image::new(records, Bounds { lower: &[1; 904], upper: Some(b"y..") }, 508);
        let nothing = Coming { key: &[], words: 0 };
        assert!((1..=14).all(|parts| image.cuts(parts, nothing).is_none()));
        let cuts = image.packed_cuts();
        assert!(cuts.len() <= 14 && cuts.is_sorted_by(|one, next| one < next), "{cuts:?}");
        assert!(image.fits(&cuts, &[]), "{shared}: {cuts:?}");
    }
}
