//! The record cache against a map, and its readers against its writers.

use std::collections::HashMap;

use proptest::prelude::*;
use spinney_base::runtime::SplitMix;
use spinney_base::{KeyspaceId, ValueRef};
use spinney_sync::hash_key;

use super::{CACHE_BYTES_MIN, Cached, Prepared, RecordCache, RecordId, Scratch, Ticket, Visit};

fn id_of(key: &[u8]) -> RecordId {
    RecordId::of(hash_key(KeyspaceId(1), key))
}

/// The value of these bytes: of some lengths they are pointers.
fn value_of(bytes: &[u8]) -> ValueRef<'_> {
    ValueRef { bytes, large: bytes.len() % 7 == 3 }
}

#[derive(Clone, Debug, PartialEq)]
struct Known {
    value: Option<Vec<u8>>,
    dirty: bool,
    note: u8,
}

/// Drives one cache and a map of what it may answer.
struct Driver {
    cache: RecordCache,
    /// What the pages hold.
    pages: HashMap<Vec<u8>, Vec<u8>>,
    /// What every key's newest version is.
    model: HashMap<Vec<u8>, Known>,
}

impl Driver {
    fn new(bytes: u64) -> Self {
        Driver {
            cache: RecordCache::new(bytes, bytes),
            pages: HashMap::new(),
            model: HashMap::new(),
        }
    }

    fn put(&mut self, key: &[u8], value: Option<&[u8]>) {
        let words = loop {
            match self.cache.prepare(id_of(key), key, value.map(value_of)) {
                Prepared::Ready(words) => break words,
                Prepared::Dirty(victim) => self.write_back(&victim, None),
                Prepared::Busy => panic!("one thread reserves nothing for long"),
            }
        };
        let was_dirty = self.model.get(key).is_some_and(|known| known.dirty);
        let mut cached = Vec::new();
        let large = self.cache.get(id_of(key), key, &mut cached) == Cached::Large;
        let mut replaced = Vec::new();
        let note = if was_dirty { 9 } else { value.map_or(3, |value| value.len() as u8 % 16) };
        let put =
            self.cache.put(id_of(key), key, (value.map(value_of), note), words, &mut replaced);
        let present = self.model.get(key).is_some_and(|known| known.value.is_some());
        assert_eq!(put.dirty, !was_dirty);
        assert!(!(put.may_be_new && was_dirty && present), "a dirty value is known");
        assert_eq!(replaced, if large { cached } else { Vec::new() });
        let note = if was_dirty { self.model[key].note } else { note };
        let value = value.map(<[u8]>::to_vec);
        self.model.insert(key.to_vec(), Known { value, dirty: true, note });
    }

    /// Writes one key back; `meanwhile` is put while its page is being written.
    fn write_back(&mut self, key: &[u8], meanwhile: Option<&[u8]>) {
        let mut taken = None;
        self.cache.visit_dirty(
            id_of(key),
            Visit::BeginWrite,
            &mut Scratch::default(),
            &mut |found, value| {
                if found == key {
                    assert!(value.is_none_or(|value| value == value_of(value.bytes)));
                    taken = Some(value.map(|value| value.bytes.to_vec()));
                }
                found == key
            },
        );
        let Some(value) = taken else { return };
        assert_eq!(self.model[key].value, value, "write-back sees the newest version");
        if let Some(newer) = meanwhile
            && let Prepared::Ready(words) = self.cache.prepare(id_of(key), key, Some(newer.into()))
        {
            assert!(
                self.cache
                    .put(id_of(key), key, (Some(newer.into()), 0), words, &mut Vec::new())
                    .dirty,
                "a change during write-back is dirty again"
            );
            let note = self.model[key].note;
            self.model
                .insert(key.to_vec(), Known { value: Some(newer.to_vec()), dirty: true, note });
        } else {
            self.model.get_mut(key).expect("it is dirty").dirty = false;
        }
        let note = std::mem::take(&mut self.model.get_mut(key).expect("it is known").note);
        assert_eq!(self.cache.note(id_of(key), key), note);
        assert!(note == 15 || !self.cache.clear_note(id_of(key), key, 15));
        assert!(note == 0 || self.cache.clear_note(id_of(key), key, note));
        match value {
            Some(value) => self.pages.insert(key.to_vec(), value),
            None => self.pages.remove(key),
        };
        self.cache.end_write(id_of(key), key, true);
    }

    fn check(&self, key: &[u8]) {
        let mut out = b"before".to_vec();
        let known = self.model.get(key);
        assert_eq!(self.cache.note(id_of(key), key), known.map_or(0, |known| known.note));
        match self.cache.get(id_of(key), key, &mut out) {
            cached @ (Cached::Present | Cached::Large) => {
                assert_eq!(cached == Cached::Large, value_of(&out[6..]).large);
                assert_eq!(known.and_then(|known| known.value.as_deref()), Some(&out[6..]));
            }
            Cached::Absent => assert_eq!(known.and_then(|known| known.value.as_ref()), None),
            Cached::Unknown => {
                assert!(known.is_none_or(|known| !known.dirty), "a dirty record left the cache");
                assert_eq!(known.and_then(|known| known.value.as_ref()), self.pages.get(key));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// P23: whatever is put, read, written back and resized, the newest version is in the cache or
    /// on its page.
    #[test]
    fn the_newest_version_is_never_lost(seed in any::<u64>(), keys in 1usize..4000, longest in 1usize..3000) {
        let mut random = SplitMix(seed);
        let mut driver = Driver::new(CACHE_BYTES_MIN * 3);
        for _ in 0..6000 {
            let number = random.below(keys);
            let key = format!("{number:0width$}", width = 1 + number % 40).into_bytes();
            match random.below(16) {
                0..7 => {
                    let value = vec![random.below(256) as u8; random.below(longest)];
                    driver.put(&key, Some(&value));
                }
                7 => driver.put(&key, None),
                8 => driver.write_back(&key, None),
                9 => driver.write_back(&key, Some(b"newer")),
                10..12 => {
                    // What a reader does after a miss.
                    if driver.cache.get(id_of(&key), &key, &mut Vec::new()) == Cached::Unknown {
                        driver.cache.admit(id_of(&key), &key, driver.pages.get(&key).map(|value| value_of(value)));
                    }
                }
                12 if random.below(50) == 0 => {
                    driver.cache.resize(CACHE_BYTES_MIN * (1 + random.below(6) as u64));
                }
                _ => driver.check(&key),
            }
        }
        let keys: Vec<Vec<u8>> = driver.model.keys().cloned().collect();
        for key in &keys {
            driver.check(key);
        }
        let dirty = driver.model.values().filter(|known| known.dirty).count() as u64;
        prop_assert_eq!(driver.cache.usage().dirty, dirty);
        for key in &keys {
            driver.write_back(key, None);
        }
        prop_assert_eq!(driver.cache.usage().dirty, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// P3: a writer through the cache never finds an old version there, however long lookups take
    /// to keep what they have read.
    #[test]
    fn what_is_kept_is_the_newest(seed in any::<u64>(), keys in 1usize..2000, longest in 1usize..3000) {
        let mut random = SplitMix(seed);
        let cache = RecordCache::new(CACHE_BYTES_MIN * 3, CACHE_BYTES_MIN * 3);
        let mut values: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let mut lookups: Vec<(Vec<u8>, Vec<u8>, Ticket)> = Vec::new();
        let (mut kept, mut refused) = (0, 0);
        for _ in 0..8000 {
            let key = format!("key {}", random.below(keys)).into_bytes();
            let id = id_of(&key);
            let held = |out: &mut Vec<u8>| cache.get(id, &key, out) == Cached::Present;
            match random.below(8) {
                0 if random.below(10) == 0 => {
                    values.remove(&key);
                    cache.change(id, &key, None);
                    prop_assert!(!held(&mut Vec::new()));
                }
                0 | 1 => {
                    // Every other is as long as the one before.
                    let length = values.get(&key).map_or(9, Vec::len);
                    let length = if random.below(2) == 0 { length } else { random.below(longest) };
                    let value = vec![random.below(256) as u8; length];
                    cache.change(id, &key, Some((&value[..]).into()));
                    values.insert(key, value);
                }
                2 if random.below(100) == 0 => {
                    cache.resize(CACHE_BYTES_MIN * (1 + random.below(6) as u64));
                }
                2..5 => {
                    let mut out = Vec::new();
                    if held(&mut out) {
                        prop_assert_eq!(Some(&out), values.get(&key));
                    } else if let Some(value) = values.get(&key) {
                        lookups.push((key.clone(), value.clone(), cache.ticket(id)));
                    }
                }
                _ => {
                    if lookups.is_empty() {
                        continue;
                    }
                    let at = random.below(lookups.len());
                    let (key, value, ticket) = lookups.swap_remove(at);
                    cache.admit_unchanged(id_of(&key), &key, value[..].into(), ticket);
                    let mut out = Vec::new();
                    if cache.get(id_of(&key), &key, &mut out) == Cached::Present {
                        prop_assert_eq!(Some(&out), values.get(&key));
                        kept += 1;
                    } else {
                        refused += 1;
                    }
                }
            }
        }
        prop_assert!(kept > 10 && refused > 10, "{} kept, {} refused", kept, refused);
        prop_assert_eq!(cache.usage().dirty, 0);
    }
}

/// Tiny records fill the table before the ring: the table grows, and the memory stays within its
/// bounds.
#[test]
fn small_records_get_a_larger_table() {
    let mut driver = Driver::new(1 << 20);
    for number in 0..60_000u32 {
        driver.put(&number.to_be_bytes(), Some(b"v"));
    }
    let usage = driver.cache.usage();
    assert!(usage.bytes <= 1 << 20, "{usage:?}");
    assert!(usage.records > 30_000, "{usage:?}");
}

/// Records that are read often survive many that are read once.
#[test]
fn hot_records_stay() {
    let mut driver = Driver::new(1 << 20);
    let hot = |number: u32| format!("hot{number:08}").into_bytes();
    for number in 0..1000 {
        driver.put(&hot(number), Some(&[1; 50]));
        driver.write_back(&hot(number), None);
    }
    for cold in 0..100_000u32 {
        let key = format!("cold{cold:08}").into_bytes();
        driver.cache.admit(id_of(&key), &key, Some(ValueRef::inline(&[2; 50])));
        if cold % 10 == 0 {
            for number in (cold / 10 % 10)..1000 {
                if number % 10 == cold / 10 % 10 {
                    driver.cache.get(id_of(&hot(number)), &hot(number), &mut Vec::new());
                }
            }
        }
    }
    let stayed = (0..1000).filter(|number| {
        driver.cache.get(id_of(&hot(*number)), &hot(*number), &mut Vec::new()) == Cached::Present
    });
    assert!(stayed.count() > 900);
}

/// A reader by Zipf's law misses at most a fourth more than if the most asked for were kept always;
/// also after others have become that. What is known of it counts for what the last bytes are
/// worth.
#[test]
fn what_is_asked_for_again_is_kept() {
    const KEYS: usize = 30_000;
    let sums: Vec<f64> = (1..=KEYS)
        .scan(0.0, |sum, rank| {
            *sum += (rank as f64).powf(-0.99);
            Some(*sum)
        })
        .collect();
    let cache = RecordCache::new(1 << 20, 1 << 20);
    let mut random = SplitMix(11);
    let mut look_up = |shift: usize, lookups: usize| {
        let mut misses = 0;
        for _ in 0..lookups {
            let drawn = random.below(1 << 30) as f64 / (1u64 << 30) as f64 * sums[KEYS - 1];
            let rank = sums.partition_point(|sum| *sum < drawn);
            let key = ((rank + shift) % KEYS).to_be_bytes();
            if cache.get(id_of(&key), &key, &mut Vec::new()) == Cached::Unknown {
                misses += 1;
                cache.admit(id_of(&key), &key, Some(ValueRef::inline(&[1; 60])));
            }
        }
        misses
    };
    look_up(0, 5 * KEYS);
    let before = cache.usage();
    let misses = look_up(0, 10 * KEYS);
    let usage = cache.usage();
    let kept = usize::try_from(usage.records).unwrap();
    let best = (1.0 - sums[kept] / sums[KEYS - 1]) * (10 * KEYS) as f64;
    assert!(f64::from(misses) < best * 1.25, "{misses} misses, {best} at best, {kept} kept");
    let worth = usage.worth - before.worth;
    assert!(0 < worth && worth < 10 * KEYS as u64 - u64::try_from(misses).unwrap(), "{worth}");
    look_up(KEYS / 2, 10 * KEYS);
    let misses = look_up(KEYS / 2, 10 * KEYS);
    assert!(f64::from(misses) < best * 1.4, "{misses} misses after a change, {best} at best");
}

/// P27: optimistic readers never accept a mixture, whatever writers do.
#[test]
fn readers_see_whole_values() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let cache = Arc::new(RecordCache::new(CACHE_BYTES_MIN, CACHE_BYTES_MIN));
    let stop = Arc::new(AtomicBool::new(false));
    let keys: Vec<Vec<u8>> = (0..64u32).map(|number| number.to_be_bytes().to_vec()).collect();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (cache, stop, keys) = (cache.clone(), stop.clone(), keys.clone());
            spinney_base::shim::thread::spawn("reader", move || {
                let mut out = Vec::new();
                let mut seen = 0u64;
                while !stop.load(Relaxed) {
                    for key in &keys {
                        out.clear();
                        if cache.get(id_of(key), key, &mut out) == Cached::Present {
                            assert!(out.iter().all(|byte| *byte == out[0]), "torn value");
                            assert_eq!(
                                out.len(),
                                1 + usize::from(out[0]) * 3,
                                "length and bytes of two versions"
                            );
                            seen += 1;
                        }
                    }
                }
                seen
            })
            .unwrap()
        })
        .collect();
    let mut random = SplitMix(7);
    for _ in 0..200_000 {
        let key = &keys[random.below(keys.len())];
        let fill = random.below(200) as u8;
        let value = vec![fill; 1 + usize::from(fill) * 3];
        let words = loop {
            match cache.prepare(id_of(key), key, Some(ValueRef::inline(&value))) {
                Prepared::Ready(words) => break words,
                Prepared::Dirty(victim) => {
                    let mut found = false;
                    cache.visit_dirty(
                        id_of(&victim),
                        Visit::BeginWrite,
                        &mut Scratch::default(),
                        &mut |key, _| {
                            found |= key == victim;
                            key == victim
                        },
                    );
                    if found {
                        cache.end_write(id_of(&victim), &victim, true);
                    }
                }
                Prepared::Busy => panic!("one writer"),
            }
        };
        cache.put(id_of(key), key, (Some(ValueRef::inline(&value)), 0), words, &mut Vec::new());
    }
    stop.store(true, Relaxed);
    for reader in readers {
        assert!(reader.join().unwrap() > 0);
    }
}

/// Room that was reserved stays, however small the cache is to become meanwhile.
#[test]
fn reserved_room_outlasts_a_smaller_size() {
    for (count, length) in [(600u32, 1000), (5000, 1)] {
        let cache = RecordCache::new(1 << 20, 1 << 20);
        let value = vec![7; length];
        let key = |number: u32| number.to_be_bytes();
        let prepare = |number| {
            let key = key(number);
            match cache.prepare(id_of(&key), &key, Some((&value[..]).into())) {
                Prepared::Ready(words) => words,
                other => panic!("{other:?}"),
            }
        };
        let reserved: Vec<usize> = (0..count).map(prepare).collect();
        cache.resize(CACHE_BYTES_MIN);
        for (number, words) in (0..).zip(reserved) {
            let value = Some((&value[..]).into());
            cache.put(id_of(&key(number)), &key(number), (value, 0), words, &mut Vec::new());
        }
        for number in 0..count {
            let mut out = Vec::new();
            assert_eq!(cache.get(id_of(&key(number)), &key(number), &mut out), Cached::Present);
            assert!(out == value);
        }
    }
}

/// Room that was reserved stays, also where nothing leaves for what is read meanwhile.
#[test]
fn reserved_room_outlasts_what_is_read() {
    let cache = RecordCache::new(CACHE_BYTES_MIN, CACHE_BYTES_MIN);
    let value = [7; 60];
    let value = || Some(ValueRef::inline(&value));
    let key = |number: u32| number.to_be_bytes();
    let mut written = Vec::new();
    for number in 0..10_000 {
        let (key, read) = (key(number), key(1 << 20 | number));
        let id = id_of(&key);
        let words = loop {
            match cache.prepare(id, &key, value()) {
                Prepared::Ready(words) => break words,
                Prepared::Dirty(victim) => {
                    let id = id_of(&victim);
                    let scratch = &mut Scratch::default();
                    cache.visit_dirty(id, Visit::BeginWrite, scratch, &mut |_, _| true);
                    cache.end_write(id, &victim, true);
                    written.push(victim);
                }
                Prepared::Busy => panic!("one thread reserves nothing for long"),
            }
        };
        cache.admit(id_of(&read), &read, value());
        cache.put(id, &key, (value(), 0), words, &mut Vec::new());
        assert!(cache.usage().filled <= cache.usage().bytes);
    }
    assert!(written.len() > 1000, "all that stays is dirty");
    for number in (0..10_000).filter(|number| !written.contains(&key(*number).to_vec())) {
        let mut out = Vec::new();
        assert_eq!(cache.get(id_of(&key(number)), &key(number), &mut out), Cached::Present);
    }
}

/// As long as enough clean records are there to be evicted, none is written back for its room.
#[test]
fn dirty_records_wait_while_there_are_clean_ones() {
    let mut driver = Driver::new(CACHE_BYTES_MIN);
    let key = |number: u32| number.to_be_bytes().to_vec();
    // A little more than it holds; later several times as much, so that the hand passes all by.
    let count = u32::try_from(CACHE_BYTES_MIN / 64).unwrap();
    let mut brought = Vec::new();
    for number in 0..count {
        driver.put(&key(number), Some(&[1; 40]));
        if number % 2 == 0 {
            driver.write_back(&key(number), None);
        }
        driver.cache.soon_evicted(0, 100, &mut brought);
    }
    assert!(brought.is_empty(), "half of the records are clean");
    for number in count..4 * count {
        driver.put(&key(number), Some(&[1; 40]));
        driver.cache.soon_evicted(0, 100, &mut brought);
    }
    assert!(!brought.is_empty(), "all records are dirty");
}

/// Where a ring has room for few records, all of them dirty, the one that is named for write-back
/// is one of them; and what writers under way have reserved makes a ring grow past its limit, which
/// it has again once its records are written back.
#[test]
fn a_full_ring_of_few_records_names_one_of_them_and_grows_for_what_is_reserved() {
    let cache = RecordCache::new(8 << 10, 8 << 10);
    let keys: Vec<[u8; 4]> = (0..100u32).map(u32::to_be_bytes).collect();
    let value = ValueRef::inline(&[7; 1000]);
    let write_back = |key: &[u8]| {
        let mut found = false;
        let show: super::Show<'_> = &mut |shown, _| {
            found |= shown == key;
            shown == key
        };
        cache.visit_dirty(id_of(key), Visit::BeginWrite, &mut Scratch::default(), show);
        cache.end_write(id_of(key), key, true);
        found
    };
    for key in &keys {
        let words = loop {
            match cache.prepare(id_of(key), key, Some(value)) {
                Prepared::Ready(words) => break words,
                Prepared::Dirty(victim) => assert!(write_back(&victim), "{victim:?} is none"),
                Prepared::Busy => panic!("nobody else is there"),
            }
        };
        cache.put(id_of(key), key, (Some(value), 0), words, &mut Vec::new());
    }
    assert!(cache.usage().bytes <= 8 << 10);
    // All of a batch is prepared before any is put.
    let prepared: Vec<usize> = keys
        .iter()
        .map(|key| {
            loop {
                match cache.prepare(id_of(key), key, Some(value)) {
                    Prepared::Ready(words) => break words,
                    Prepared::Dirty(victim) => assert!(write_back(&victim)),
                    Prepared::Busy => panic!("its own batch has all the room"),
                }
            }
        })
        .collect();
    for (key, words) in keys.iter().zip(prepared) {
        cache.put(id_of(key), key, (Some(value), 0), words, &mut Vec::new());
    }
    cache.resize(8 << 10);
    assert!(cache.usage().bytes > 100_000, "dirty records keep what they need");
    let mut soon = Vec::new();
    cache.soon_evicted(0, 1000, &mut soon);
    assert!(soon.len() >= 99, "{} are to be written back", soon.len());
    keys.iter().for_each(|key| _ = write_back(key));
    cache.resize(8 << 10);
    assert!(cache.usage().bytes <= 8 << 10);
}
