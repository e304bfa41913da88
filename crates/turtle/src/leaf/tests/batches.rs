//! Many leaves and lookups at once, and real disks.

use super::*;

use crate::kinds;
use crate::kinds::purpose;

#[test]
fn several_leaves_are_read_together() {
    let bed = Bed::new(0);
    let models: Vec<Model> = [300_000, 50_000, 100_000, 30_000, 200_000, 1000].map(records).into();
    let leaves: Vec<_> = models.iter().map(|model| bed.write(model, 12)).collect();
    let (lower, upper) = (0x3000u16.to_be_bytes(), 0xb000u16.to_be_bytes());
    let load = |leaf, bounds: bool| match bounds {
        true => Load { leaf, lower: &lower[..], upper: Some(&upper[..]) },
        false => Load { leaf, lower: &[], upper: None },
    };
    let loads: Vec<Load<'_>> =
        leaves.iter().enumerate().map(|(at, leaf)| load(leaf, at % 2 == 1)).collect();
    let loaded = bed.files.load_many(&loads).unwrap();
    assert_eq!(loaded.len(), loads.len());
    for ((loaded, load), model) in loaded.iter().zip(&loads).zip(&models) {
        let end = load.upper.map_or(Bound::Unbounded, Bound::Excluded);
        let expected = model.range::<[u8], _>((Bound::Included(load.lower), end));
        let found = loaded.iter().map(|edit| (edit.key, edit.value.unwrap().bytes));
        assert!(found.eq(expected.map(|(key, value)| (&key[..], &value.as_ref().unwrap().0[..]))));
    }
    bed.disk.flip_bit(Path::new(PATH), leaves[2].run().first.offset() + (20 << 12), 1).unwrap();
    assert!(bed.files.load_many(&loads).unwrap_err().is_corruption());
}

/// With direct transfers, whose buffers must lie right.
#[test]
fn a_real_disk_does_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let place = RealDisk::new().directory(directory.path(), IfMissing::Fail).unwrap();
    let options =
        StoreOptions { keyspace: KEYSPACE, double_write: false, poison: Arc::new(Poison::new()) };
    let store = Store::create(&*place, PATH, options, Lsn::ZERO).unwrap();
    store.adopt(&[]).unwrap();
    let cache = Cache::new(400_000);
    let files = LeafStore::new(Arc::new(store), cache.file());
    let mut random = SplitMix(8);
    let model = random_model(&mut random, 3000);
    let leaf = Arc::new(Leaf::write(&files, &model, 12, Lsn(7), purpose::LEAF).unwrap());
    files.store.sync(Purpose::REORGANIZE).unwrap();
    check(&leaf, &model, &mut random);
    let lookup = |key| Lookup { leaf: &leaf, key, hash: hash(key), is_last: false };
    let lookups: Vec<_> = model.keys().take(50).map(|key| lookup(key)).collect();
    cache.set_bytes(0);
    cache.set_bytes(1 << 20);
    files.warm(&lookups);
    let misses = cache.stats().total().misses;
    for key in model.keys().take(50) {
        assert!(leaf.get(key, hash(key), &mut Vec::new()).unwrap().is_some());
    }
    assert_eq!(cache.stats().total().misses, misses);
}

/// Many lookups, in leaves of all sizes, take as many batches as one takes pages.
#[test]
fn what_many_lookups_need_comes_in_a_few_batches() {
    let bed = Bed::new(16 << 20);
    let models: Vec<Model> = [20_000, 300_000, 2 << 20].map(records).into();
    let leaves: Vec<_> = models.iter().map(|model| bed.write(model, 12)).collect();
    bed.chill();
    let wanted: Vec<(&Arc<Leaf>, &Vec<u8>)> = leaves
        .iter()
        .zip(&models)
        .flat_map(|(leaf, model)| {
            model.keys().step_by(model.len() / 50).map(move |key| (leaf, key))
        })
        .collect();
    let lookups: Vec<Lookup<'_>> = wanted
        .iter()
        .flat_map(|(_, key)| {
            leaves.iter().map(move |leaf| Lookup { leaf, key, hash: hash(key), is_last: false })
        })
        .collect();
    // One key alone: only its filters, if there are several.
    let before = bed.disk.reads();
    bed.files.warm(&lookups[..3]);
    assert_eq!(bed.disk.reads() - before, 3);
    bed.files.warm(&lookups[..3]);
    assert_eq!((bed.disk.reads() - before, bed.cache.stats().total().misses), (3, 3));
    bed.files.warm(&lookups);
    let reads = bed.disk.reads();
    let misses = bed.cache.stats().total().misses;
    let mut asked = 0;
    for (_, key) in &wanted {
        // As the tree asks: the newest first, until one has it.
        let mut out = Vec::new();
        let mut has_it = |leaf: &Arc<Leaf>| {
            asked += 1;
            leaf.get(key, hash(key), &mut out).unwrap().is_some()
        };
        assert!(leaves.iter().any(&mut has_it) && out.len() == 120);
    }
    assert_eq!((bed.disk.reads(), bed.cache.stats().total().misses), (reads, misses));
    let counters = &bed.files.counters;
    assert_eq!(counters.filter_probes.load(Relaxed), asked, "hints do not count");
    // With nowhere to keep them, and with damage, it is still only a hint.
    bed.cache.set_bytes(0);
    bed.files.warm(&lookups);
    bed.cache.set_bytes(16 << 20);
    let index = leaves[2].run().page(0).offset();
    bed.disk.flip_bit(Path::new(PATH), index + 77, 1).unwrap();
    bed.files.warm(&lookups);
    let (leaf, key) = wanted[wanted.len() - 1];
    assert!(leaf.get(key, hash(key), &mut Vec::new()).unwrap_err().is_corruption());
}

/// What a short range takes of several leaves comes together, no page of it twice, and none that it
/// does not need.
#[test]
fn what_several_cursors_expect_comes_in_one_batch() {
    let bed = Bed::new(16 << 20);
    let model: Vec<_> = records(1 << 20).into_iter().collect();
    // Every eighth record is in one leaf and the others are in another.
    let part = |eighth: bool| {
        let mine = model.iter().enumerate().filter(|(at, _)| (at % 8 == 3) == eighth);
        bed.write(&mine.map(|(_, record)| record.clone()).collect(), 12)
    };
    let leaves = [part(true), part(false)];
    for direction in [Direction::Forward, Direction::Reverse] {
        bed.chill();
        let middle = &model[model.len() / 2].0;
        let mut cursors = leaves
            .each_ref()
            .map(|leaf| LeafCursor::new(leaf, Bound::Included(middle), direction).unwrap());
        // As many as the page of keys has, whichever way.
        let last = cursors[1].expect(40).unwrap();
        cursors[0].expect_up_to(&last);
        let before = bed.files.counters.pages_read[kinds::VALUES.index()].load(Relaxed);
        bed.files.bring_in(&[&cursors[0], &cursors[1]]);
        let read =
            |bed: &Bed| bed.files.counters.pages_read[kinds::VALUES.index()].load(Relaxed) - before;
        let brought = read(&bed);
        let mut delivered = 0;
        for cursor in &mut cursors {
            let is_past = |key: &[u8]| match direction {
                Direction::Forward => *key > last[..],
                Direction::Reverse => *key < last[..],
            };
            while let Some((key, value)) = cursor.record().unwrap() {
                let expected = &model[model.binary_search_by(|it| it.0[..].cmp(key)).unwrap()];
                assert_eq!(value.bytes, expected.1.as_ref().unwrap().0);
                delivered += 1;
                cursor.advance().unwrap();
                if cursor.key().is_none_or(is_past) {
                    break;
                }
            }
        }
        assert!((40..=50).contains(&delivered), "{delivered}");
        assert_eq!(read(&bed), brought, "nothing was left to be read one by one");
        assert!((2..=6).contains(&brought), "{brought} pages");
    }
}
