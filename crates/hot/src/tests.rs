//! The tier over a cold structure that is a map: every key has the value of the model, whatever leaves
//! the tier, and every gap bit is true.

use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;
use spinney_base::ValueRef;
use spinney_base::runtime::SplitMix;
use spinney_sync::VersionLatch;

use crate::{Cached, Direction, Hand, HotTier, Piece, Records, Refused, Replaced};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A tier, what lies below it, and what both together should say.
struct World {
    tier: HotTier,
    cold: Map,
    model: Map,
    latch: VersionLatch,
    hand: Vec<u8>,
}

fn value(bytes: &[u8]) -> ValueRef<'_> {
    ValueRef { bytes, large: bytes.first() == Some(&7) }
}

impl World {
    fn new(bytes: u64) -> World {
        let (cold, model) = (Map::new(), Map::new());
        World {
            tier: HotTier::new(bytes),
            cold,
            model,
            latch: VersionLatch::new(),
            hand: Vec::new(),
        }
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut out = vec![1, 2, 3];
        match self.tier.get(key, &mut out) {
            Cached::Unknown => {
                assert_eq!(out, [1, 2, 3]);
                return self.cold.get(key).cloned();
            }
            Cached::Absent => return None,
            Cached::Present => assert_ne!(out.get(3), Some(&7)),
            Cached::Large => assert_eq!(out[3], 7),
        }
        Some(out.split_off(3))
    }

    fn put(&mut self, key: &[u8], bytes: Option<&[u8]>) {
        let (old, mut replaced) = (self.get(key), Vec::new());
        let dirty = self.tier.dirty();
        let was = self.tier.put(key, bytes.map(value), &mut replaced);
        assert_eq!(
            self.tier.dirty() - dirty,
            u64::from(matches!(was, Replaced::Nothing | Replaced::Clean))
        );
        match old.filter(|old| old.first() == Some(&7)) {
            Some(pointer) if was != Replaced::Nothing => assert_eq!(replaced, pointer),
            _ => assert!(replaced.is_empty()),
        }
        match bytes {
            Some(bytes) => self.model.insert(key.to_vec(), bytes.to_vec()),
            None => self.model.remove(key),
        };
    }

    /// Admits what a lookup that missed has read from the cold structure.
    fn promote(&mut self, key: &[u8]) -> bool {
        let (cached, seen) = self.tier.look(key, &mut Vec::new());
        if cached != Cached::Unknown {
            return true;
        }
        let found = self.cold.get(key).cloned();
        self.tier.admit(key, found.as_deref().map(value), seen)
    }

    /// Changes the cold structure as a sweep does, and says whether it did.
    fn write(&mut self, victims: &Records, written: bool) {
        for victim in victims.iter().filter(|_| written) {
            assert!(victim.is_dirty);
            match victim.value {
                Some(value) => self.cold.insert(victim.key.to_vec(), value.bytes.to_vec()),
                None => self.cold.remove(victim.key),
            };
        }
        self.tier.finish(victims, if written { victims.len() } else { 0 }, &mut |_| {});
    }

    fn pass(&mut self, takes_dirty: bool) {
        let mut victims = Records::default();
        let (_, next) = self.tier.pass(&self.hand, takes_dirty, &mut victims);
        self.hand = next.unwrap_or_default();
        self.write(&victims, true);
    }

    /// Reads a range piece by piece, out of the tier where gap bits say that nothing lies between.
    fn range(&self, from: &[u8], direction: Direction, most: usize) -> (Map, usize) {
        self.range_by(from, direction, most, 0)
    }

    /// Where `step` is not 0, pieces end with the first record at or above the key that lies so far above their begin.
    fn range_by(&self, from: &[u8], direction: Direction, most: usize, step: u8) -> (Map, usize) {
        let (mut found, mut asked) = (Map::new(), 0);
        let mut at = Some(from.to_vec()).filter(|_| direction == Direction::Forward);
        let mut piece = Piece::default();
        loop {
            let to = at.clone().filter(|_| step > 0).map(|mut to| {
                match to.last_mut() {
                    Some(last) => *last = last.saturating_add(step),
                    None => to.push(step),
                }
                to
            });
            self.tier.range_to((at.as_deref(), to.as_deref()), direction, most, &mut piece);
            let above =
                |to: &Vec<u8>| piece.records.iter().filter(|one| one.key >= &to[..]).count();
            let is_short =
                direction == Direction::Backward || to.as_ref().is_none_or(|to| above(to) <= 1);
            assert!(is_short, "a piece has more behind its end");
            let lower = match direction {
                Direction::Forward => at.clone().unwrap_or_default(),
                Direction::Backward => piece.lower.clone(),
            };
            let upper = match direction {
                Direction::Forward => piece.upper.clone(),
                Direction::Backward => at.clone(),
            };
            let mut is_closed = piece.starts_gap;
            let mut begin = lower.clone();
            let mut cold = |begin: &[u8], end: Option<&[u8]>| {
                asked += 1;
                let records = self.cold.range(begin.to_vec()..);
                let records = records.take_while(|(key, _)| end.is_none_or(|end| &key[..] < end));
                records.map(|(key, value)| (key.clone(), value.clone())).collect::<Map>()
            };
            for record in piece.records.iter() {
                if !is_closed {
                    found.append(&mut cold(&begin, Some(record.key)));
                }
                found.remove(record.key);
                if let Some(value) = record.value {
                    found.insert(record.key.to_vec(), value.bytes.to_vec());
                }
                (is_closed, begin) = (record.ends_gap, [record.key, &[0]].concat());
            }
            if !is_closed {
                found.append(&mut cold(&begin, upper.as_deref()));
            }
            match direction {
                Direction::Forward if upper.is_none() => return (found, asked),
                Direction::Forward => at = upper,
                Direction::Backward if lower.is_empty() => return (found, asked),
                Direction::Backward => at = Some(lower),
            }
        }
    }

    /// Promotes all of a range, and says so in gap bits.
    fn close_gaps(&mut self, from: Bound<&[u8]>, to: Option<&[u8]>) {
        let mut piece = Piece::default();
        let (Bound::Included(first) | Bound::Excluded(first)) = from else { unreachable!() };
        self.tier.range(Some(first), Direction::Forward, usize::MAX, &mut piece);
        let seen = piece.seen.unwrap();
        let end = match (piece.upper, to) {
            (None, to) => to.map(<[u8]>::to_vec),
            (Some(upper), Some(to)) if *to < *upper => Some(to.to_vec()),
            (upper, _) => upper,
        };
        let within = |key: &[u8]| end.as_ref().is_none_or(|end| key < &end[..]);
        let cold = self.cold.range::<[u8], _>((from, Bound::Unbounded));
        let records: Vec<_> = cold
            .map(|(key, bytes)| (&key[..], Some(value(bytes))))
            .take_while(|(key, _)| within(key))
            .collect();
        let before = self.tier.len();
        let entered = self.tier.admit_run(&records, (from, end.as_deref()), seen);
        assert_eq!(self.tier.len() - before, entered.unwrap_or(0));
        assert_ne!(entered, Err(Refused::Changed));
    }

    fn check(&self) {
        self.tier.check().unwrap();
        for key in self.model.keys().chain(self.cold.keys()) {
            assert_eq!(self.get(key).as_ref(), self.model.get(key), "{key:?}");
        }
        for direction in [Direction::Forward, Direction::Backward] {
            assert_eq!(self.range(&[], direction, usize::MAX).0, self.model);
        }
    }
}

/// A key out of a few, short or long; neighbours share much.
fn key(number: u64) -> Vec<u8> {
    match number % 5 {
        0 => number.to_be_bytes().to_vec(),
        1 => format!("{:04}", number / 5).into_bytes(),
        2 => [vec![b'k'; 40], (number as u32).to_be_bytes().to_vec()].concat(),
        3 => [vec![b'z'; (number % 997) as usize], vec![number as u8]].concat(),
        _ => (number as u16).to_be_bytes()[..(number % 3) as usize].to_vec(),
    }
}

fn bytes(random: &mut SplitMix, most: u64) -> Vec<u8> {
    let length = match random.next_u64() % 8 {
        0 => random.next_u64() % most,
        _ => random.next_u64() % 200,
    };
    vec![random.next_u64() as u8 % 16; length as usize]
}

/// Random operations; `bytes` of memory and keys out of `keys`.
fn play(seed: u64, memory: u64, keys: u64, steps: usize) {
    let (mut world, mut random) = (World::new(memory), SplitMix(seed));
    for step in 0..steps {
        let number = random.next_u64() % keys;
        let key = key(number);
        match random.next_u64() % 16 {
            0..6 => {
                let bytes = bytes(&mut random, 3_000);
                world.put(&key, Some(&bytes));
            }
            6 | 7 => world.put(&key, None),
            8 => assert_eq!(world.get(&key), world.model.get(&key).cloned()),
            9 | 10 => _ = world.promote(&key),
            11 => world.close_gaps(Bound::Included(&key), None),
            12 => {
                let to = self::key(random.next_u64() % keys);
                if to > key {
                    let is_included = random.next_u64().is_multiple_of(2);
                    let from = if is_included { Bound::Included } else { Bound::Excluded };
                    world.close_gaps(from(&key[..]), Some(&to));
                }
            }
            13 => {
                let mut victims = Records::default();
                let next = world.tier.take_along(&key, None, &mut victims);
                assert!(next.is_none_or(|next| next > key));
                // Changed while it is written, or not written at all.
                if let Some(one) = victims.iter().next().filter(|_| number.is_multiple_of(2)) {
                    let one = one.key.to_vec();
                    world.put(&one, Some(b"later"));
                }
                world.write(&victims, !number.is_multiple_of(3));
            }
            14 => {
                let (from, most) = (&key[..], 1 + (number % 20) as usize);
                let step = (number % 7) as u8;
                let (found, _) = world.range_by(from, Direction::Forward, most, step);
                let expected: Map =
                    world.model.range(key.clone()..).map(|(k, v)| (k.clone(), v.clone())).collect();
                assert_eq!(found, expected);
                assert_eq!(world.range(&[], Direction::Backward, most).0, world.model);
            }
            _ => world.pass(number.is_multiple_of(2)),
        }
        if step % 100 == 0 {
            world.check();
        }
    }
    world.check();
    // Everything leaves, and then it all is below.
    for _ in 0..6 {
        world.hand.clear();
        loop {
            world.pass(true);
            if world.hand.is_empty() {
                break;
            }
        }
    }
    assert_eq!((world.tier.len(), world.tier.dirty()), (0, 0));
    assert_eq!(world.cold, world.model);
    world.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn the_tier_and_what_is_below_say_what_the_model_says(
        seed in any::<u64>(), memory in 50_000u64..2_000_000, keys in 10u64..3_000,
    ) {
        play(seed, memory, keys, 1_500);
    }
}

/// H3: v1 is read from the cold structure; v2 is put, swept, and leaves; v1 must not enter.
#[test]
fn h3_what_was_read_before_a_change_is_not_admitted() {
    let mut world = World::new(1 << 20);
    world.cold.insert(b"key".to_vec(), b"v1".to_vec());
    let (cached, before) = world.tier.look(b"key", &mut Vec::new());
    assert_eq!(cached, Cached::Unknown);
    let stripe = world.latch.lock();
    world.tier.put(b"key", Some(value(b"v2")), &mut Vec::new());
    drop(stripe);
    (0..4).for_each(|_| world.pass(true));
    assert!(world.tier.is_empty());
    assert!(!world.tier.admit(b"key", Some(value(b"v1")), before));
    assert_eq!(world.get(b"key").as_deref(), Some(&b"v2"[..]));
    // One that came meanwhile is newer as well.
    let (_, before) = world.tier.look(b"key", &mut Vec::new());
    world.tier.put(b"key", Some(value(b"v3")), &mut Vec::new());
    assert!(!world.tier.admit(b"key", Some(value(b"v2")), before));
    assert_eq!(world.get(b"key").as_deref(), Some(&b"v3"[..]));
}

/// H24: what was read before all clean records left does not enter, though none of them was in its leaf.
#[test]
fn h24_what_was_read_before_a_load_is_not_admitted() {
    let world = World::new(1 << 20);
    let (cached, before) = world.tier.look(b"key", &mut Vec::new());
    assert_eq!(cached, Cached::Unknown);
    world.tier.let_all_leave();
    assert!(!world.tier.admit(b"key", None, before));
    let (_, now) = world.tier.look(b"key", &mut Vec::new());
    assert!(world.tier.admit(b"key", None, now));
}

/// Hits count as soon in the leaves before the hand, an eighth of all, and nowhere else.
#[test]
fn hits_before_the_hand_are_counted() {
    let tier = HotTier::new(100 << 20);
    let key = |number: u64| (number * 1_000).to_be_bytes();
    let bytes = [3; 100];
    for number in 0..20_000 {
        tier.put(&key(number), Some(value(&bytes)), &mut Vec::new());
    }
    // Where keys ascend, leaves are full.
    assert_eq!(tier.blocks.used(), 148);
    let (mut hand, mut victims) = (Hand::default(), Records::default());
    let count = |tier: &HotTier| {
        let before = tier.soon_hits();
        for number in 0..20_000 {
            assert_eq!(tier.get(&key(number), &mut Vec::new()), Cached::Present);
        }
        tier.soon_hits() - before
    };
    let count_by_ranges = |tier: &HotTier| {
        let (before, mut piece, mut from) = (tier.soon_hits(), Piece::default(), Some(Vec::new()));
        while let Some(at) = from {
            tier.range(Some(&at), Direction::Forward, 7, &mut piece);
            tier.touch(&piece, Direction::Forward, piece.records.len());
            from = piece.upper.take();
        }
        tier.soon_hits() - before
    };
    assert_eq!(count(&tier), 0);
    for round in 0..400 {
        tier.advance(&mut hand, false, &mut victims);
        if round % 37 == 5 {
            let soon = count(&tier);
            assert!((2_000..3_000).contains(&soon), "{soon} of 20,000, from {:?}", hand.at());
            assert_eq!(count_by_ranges(&tier), soon);
        }
    }
    assert!(tier.soon_hits() > 10_000 && victims.is_empty());
    tier.check().unwrap();
}

/// Reserved room counts until it is given back, and a tier that is full has some again once the hand has
/// passed.
#[test]
fn room_is_reserved_given_back_and_made() {
    let tier = HotTier::new(400_000);
    let bytes = [3; 100];
    let key = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let mut count = 0;
    while tier.reserve(8, 100) {
        tier.put(&key(count), Some(value(&bytes)), &mut Vec::new());
        tier.release(8, 100);
        count += 1;
    }
    // A split takes its block whatever is reserved.
    assert!(count > 2_000 && tier.bytes() < 400_000 + 16_800, "{count} in {}", tier.bytes());
    // What is read enters where a leaf has room, and takes no memory for another one.
    let full = tier.bytes();
    let admitted = (count..2 * count).filter(|&number| {
        let (_, seen) = tier.look(&key(number), &mut Vec::new());
        tier.admit(&key(number), Some(value(&bytes)), seen)
    });
    let admitted = admitted.count() as u64;
    assert!(admitted > 0 && admitted < count && tier.bytes() == full, "{admitted} of {count}");
    let (mut hand, mut victims) = (Hand::default(), Records::default());
    while !tier.reserve(8, 100) {
        victims.clear();
        tier.advance(&mut hand, true, &mut victims);
        tier.finish(&victims, victims.len(), &mut |_| {});
    }
    tier.resize(tier.bytes());
    assert!(!tier.reserve(8, 100), "the room is reserved already");
    tier.resize(1 << 20);
    let mut reserved = 1;
    while tier.reserve(8, 100) {
        reserved += 1;
    }
    assert!(reserved * 108 <= 1 << 20);
    (0..reserved).for_each(|_| tier.release(8, 100));
    assert!(tier.reserve(8, 100));
    tier.check().unwrap();
}

/// Leaves are written again for several records each, long ones too, and are well filled all the same.
#[test]
fn few_leaves_are_written_again() {
    for (length, most, bytes) in [(1_024, 0.6, 1_400), (100, 0.085, 145)] {
        let tier = HotTier::new(1 << 30);
        let count = (16 << 20) / length as u64;
        let mut random = SplitMix(3);
        for _ in 0..count {
            let key = random.next_u64().to_be_bytes();
            tier.put(&key, Some(value(&vec![3; length])), &mut Vec::new());
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio of small numbers")]
        let written = tier.next_generation() as f64 / count as f64;
        assert!(written < most, "{length}: {written} leaves a record");
        assert!(tier.bytes() / count < bytes, "{length}: {} bytes a record", tier.bytes() / count);
    }
}

/// Short ranges enter whole or not at all: what is left out would cost their pages all the same.
#[test]
fn a_range_enters_whole_or_not_at_all() {
    let tier = HotTier::new(600_000);
    let bytes = [3; 100];
    let key = |group: u64, one: u8| {
        [&group.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()[..], &[one]].concat()
    };
    let look = |group: u64| {
        let (begin, end) = (key(group, 0), key(group, 9));
        let mut piece = Piece::default();
        let part = (Some(&begin[..]), Some(&end[..]));
        tier.range_to(part, Direction::Forward, usize::MAX, &mut piece);
        (begin, end, piece)
    };
    let (mut whole, mut refused) = (0, 0);
    for group in 0..2_000 {
        let (begin, end, piece) = look(group);
        let keys: Vec<_> = (0..6).map(|one| key(group, one)).collect();
        let values = keys.iter().map(|key| (&key[..], Some(value(&bytes))));
        let records: Vec<_> = values.chain([(&end[..], None)]).collect();
        let bounds = (Bound::Included(&begin[..]), Some(&end[..]));
        match tier.admit_run(&records, bounds, piece.seen.unwrap()) {
            // Where its leaf was divided amid it, the next one has the rest.
            Ok(entered) => whole += u64::from(entered == 7),
            Err(error) => {
                assert_eq!(error, Refused::Full);
                refused += 1;
                let found =
                    keys.iter().filter(|key| tier.peek(key, &mut Vec::new()) != Cached::Unknown);
                assert_eq!(found.count(), 0, "group {group}");
            }
        }
    }
    assert!(refused > 1_000 && whole + refused > 1_990, "{whole} whole, {refused} not at all");
    let known = (0..2_000).filter(|group| {
        let (begin, end, piece) = look(*group);
        let all: Vec<_> = piece.records.iter().collect();
        let own = all.iter().take_while(|record| record.key < &end[..]);
        let is_first = all.first().is_some_and(|first| first.key == begin);
        is_first && own.map(|record| assert!(record.ends_gap)).count() == 6
    });
    // Leaves were divided amid some of them since.
    let (known, blocks) = (known.count() as u64, tier.blocks.used());
    assert!(known <= whole && whole <= known + blocks, "{known} of {whole}, {blocks} leaves");
    let long = vec![([&key(1, 1)[..], &[1]].concat(), vec![3; 3_000]); 2];
    let records: Vec<_> = long.iter().map(|(key, bytes)| (&key[..], Some(value(bytes)))).collect();
    let seen = look(1).2.seen.unwrap();
    let refused = tier.admit_run(&records, (Bound::Unbounded, None), seen);
    assert_eq!(refused, Err(Refused::Long));
    tier.check().unwrap();
}

/// Keys that share much in their leaf, and little once it has records of a neighbour: what was short is long then.
#[test]
fn a_range_may_become_long_while_room_is_made() {
    let mut refused = 0;
    for seed in 0..10 {
        let (tier, mut random) = (HotTier::new(1 << 30), SplitMix(seed));
        let length = 850 + random.next_u64() as usize % 150;
        let long = |number: u64| [&vec![b'k'; length][..], &number.to_be_bytes()].concat();
        for _ in 0..2_000 {
            let number = random.next_u64() % 4_000;
            let put = match random.next_u64() % 3 {
                0 => [&[b'a' + (number % 20) as u8], &number.to_be_bytes()[..]].concat(),
                _ => long(number * 100),
            };
            let bytes = vec![3; random.next_u64() as usize % 60];
            tier.put(&put, Some(value(&bytes)), &mut Vec::new());
            let first = random.next_u64() % 4_000 * 100;
            let keys: Vec<_> = (1..17).map(|one| long(first + one)).collect();
            let mut piece = Piece::default();
            tier.range(Some(&keys[0]), Direction::Forward, usize::MAX, &mut piece);
            let within = |key: &&Vec<u8>| piece.upper.as_ref().is_none_or(|upper| *key < upper);
            let within = keys.iter().take_while(within);
            let records: Vec<_> = within.map(|key| (&key[..], Some(value(b"v")))).collect();
            let bounds = (Bound::Included(&keys[0][..]), records.last().map(|(key, _)| *key));
            let entered = tier.admit_run(&records, bounds, piece.seen.unwrap());
            refused += u64::from(entered == Err(Refused::Long));
        }
        tier.check().unwrap();
    }
    assert!(refused > 0, "none became long");
}

/// What a load has put was not asked for again, however often the hand meets it; what is read then was.
#[test]
fn a_load_proves_nothing() {
    let mut world = World::new(256 << 10);
    let keys: Vec<Vec<u8>> = (0..200_u32).map(|number| number.to_be_bytes().to_vec()).collect();
    let (mut hand, mut again, mut asked) = (Hand::default(), 0, 0);
    for round in 0..4 {
        for key in &keys {
            if round < 2 {
                world.put(key, Some(b"value"));
            } else {
                assert!(world.get(key).is_some());
            }
        }
        (again, asked) = (0, 0);
        loop {
            let passed = world.tier.advance(&mut hand, false, &mut Records::default());
            (again, asked) = (again + passed.again, asked + passed.asked);
            if hand.at().is_empty() {
                break;
            }
        }
        assert!(asked == 200 && (round != 0 || again == 0), "{round}: {again} of {asked}");
    }
    assert_eq!(again, 200, "{asked}");
}
