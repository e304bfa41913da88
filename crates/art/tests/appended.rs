//! The map that appends: against a model, with many threads, and what is left of it when it is sealed.
#![cfg(not(feature = "shuttle"))]

use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;
use spinney_art::{Appended, AppendedMap, Chunk, Direction, Pinned, Sealed, pin};
use spinney_base::runtime::SplitMix;

const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

/// Every entry of a sealed map lies in its chunks where it says, and they are all that is expected.
fn check_sealed(map: &AppendedMap, chunks: &[Chunk], model: &BTreeMap<Vec<u8>, (u8, Vec<u8>)>) {
    map.check().unwrap();
    let pinned = Pinned::new();
    let told: Vec<_> = map.range(ALL.0, ALL.1, Direction::Forward, &pinned).collect();
    assert_eq!(told.len(), model.len());
    for (entry, (key, (tag, value))) in told.iter().zip(model) {
        assert_eq!((entry.key(), entry.tag(), entry.value()), (&key[..], *tag, &value[..]));
        let place = entry.place();
        let lies = &chunks[place.chunk][place.key..][..key.len() + value.len()];
        assert_eq!(lies, [&key[..], &value[..]].concat());
    }
    assert!(chunks.iter().map(|chunk| chunk.len()).sum::<usize>() <= map.appended_bytes());
    assert_eq!(map.put(b"late", 0, b"", &pinned).map(|_| ()), Err(Sealed));
}

proptest! {
    #[test]
    fn it_is_a_map(
        puts in prop::collection::vec(
            (prop::collection::vec(prop::sample::select(vec![0u8, 1, 0xFF]), 0..5),
             any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)),
            0..300),
    ) {
        let (map, mut model) = (AppendedMap::new(), BTreeMap::new());
        for (key, tag, value) in puts {
            let pinned = Pinned::new();
            let old = map.put(&key, tag, &value, &pinned).unwrap();
            let old = old.map(|old| (old.tag(), old.value().to_vec()));
            prop_assert_eq!(old, model.insert(key.clone(), (tag, value)));
            pin().flush();
            let now = map.get(&key, &pinned).map(|now| (now.tag(), now.value().to_vec()));
            prop_assert_eq!(now.as_ref(), model.get(&key));
        }
        let pinned = Pinned::new();
        prop_assert!(map.get(b"absent", &pinned).is_none());
        let (low, high) = (Bound::Excluded(&[0u8][..]), Bound::Included(&[1u8, 1][..]));
        let keys = |from, to, direction| {
            map.range(from, to, direction, &pinned).map(|it| it.key().to_vec()).collect::<Vec<_>>()
        };
        let inside = |key: &&Vec<u8>| key[..] > [0][..] && key[..] <= [1, 1][..];
        let mut expected: Vec<Vec<u8>> = model.keys().filter(inside).cloned().collect();
        prop_assert_eq!(&keys(low, high, Direction::Forward), &expected);
        expected.reverse();
        prop_assert_eq!(&keys(high, low, Direction::Backward), &expected);
        check_sealed(&map, &map.seal(), &model);
    }
}

/// Records as large as chunks, and of all sizes between.
#[test]
fn records_of_all_sizes_find_room() {
    let (map, mut model, mut random) = (AppendedMap::new(), BTreeMap::new(), SplitMix(5));
    for round in 0..600 {
        let size = match round % 100 {
            0 => 700 << 10,
            1 => 0,
            _ => random.below(9000),
        };
        let (key, value) = (random.below(300).to_be_bytes().to_vec(), vec![round as u8; size]);
        map.put(&key, 3, &value, &Pinned::new()).unwrap();
        model.insert(key, (3, value));
    }
    let chunks = map.seal();
    assert!(chunks.len() > 2);
    check_sealed(&map, &chunks, &model);
    drop(map);
    assert!(chunks.iter().all(|chunk| chunk.iter().copied().max().is_some()), "they are kept");
}

/// What a key's value must look like, whoever wrote it last.
fn is_whole(entry: &Appended<'_>) -> bool {
    let stamp = entry.tag();
    entry.value().len().is_multiple_of(8)
        && entry.value().iter().all(|byte| *byte == stamp ^ entry.key()[0])
}

/// Writers of the same keys, readers that check what they are lent, and a sealer in the middle of it:
/// what is sealed does not change, and every write that was accepted before is in it.
#[test]
fn threads_write_read_and_seal() {
    for round in 0..20 {
        let map = AppendedMap::new();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let map = &map;
                scope.spawn(move || {
                    let mut random = SplitMix(thread * 1000 + round);
                    loop {
                        let pinned = Pinned::new();
                        let key = [random.below(40) as u8; 3];
                        let stamp = random.below(256) as u8;
                        let value = vec![stamp ^ key[0]; 8 * random.below(20)];
                        match map.put(&key, stamp, &value, &pinned) {
                            Err(Sealed) => return,
                            Ok(old) => assert!(old.is_none_or(|old| is_whole(&old))),
                        }
                        let read = map.get(&[random.below(40) as u8; 3], &pinned);
                        assert!(read.is_none_or(|read| is_whole(&read)));
                        if random.below(64) == 0 {
                            let mut all = map.range(ALL.0, ALL.1, Direction::Backward, &pinned);
                            assert!(all.all(|entry| is_whole(&entry)));
                        }
                    }
                });
            }
            while map.appended_bytes() < 300_000 {
                std::thread::yield_now();
            }
            let chunks = map.seal();
            let before: Vec<Vec<u8>> = chunks.iter().map(|chunk| chunk.to_vec()).collect();
            std::thread::yield_now();
            assert!(chunks.iter().zip(before).all(|(chunk, before)| **chunk == before[..]));
        });
        let pinned = Pinned::new();
        let mut all = map.range(ALL.0, ALL.1, Direction::Forward, &pinned);
        let model = all.by_ref().map(|it| (it.key().to_vec(), (it.tag(), it.value().to_vec())));
        let model = model.collect();
        check_sealed(&map, &map.seal(), &model);
    }
}
