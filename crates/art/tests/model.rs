//! The map against a `BTreeMap`: random operations over adversarial keys, every answer compared, and
//! every invariant checked on the way. A failing case is shrunk and printed by proptest.
#![cfg(not(feature = "shuttle"))]

use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;
use spinney_art::{ArtMap, Direction};

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<u8>, u64),
    InsertIfAbsent(Vec<u8>, u64),
    Replace(Vec<u8>, u64, u64),
    Remove(Vec<u8>),
    RemoveIf(Vec<u8>, u64),
    Get(Vec<u8>),
    Neighbours(Vec<u8>),
    Range(Vec<u8>, Vec<u8>),
    Check,
}

/// Keys that meet often, end inside each other, share long prefixes or crowd one node.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()];
    prop_oneof![
        // Over few letters, so that many are prefixes of others; the empty one among them.
        4 => prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..6),
        // All children of one node, and of a node below it.
        4 => any::<u8>().prop_map(|last| vec![7, last]),
        2 => any::<u8>().prop_map(|last| vec![7, 7, 7, last]),
        // Long keys that part at some byte of a long common prefix, or end there.
        3 => (0usize..1025, byte.clone()).prop_map(|(length, last)| {
            let mut key = vec![b'p'; length.saturating_sub(1)];
            key.extend((length > 0).then_some(last));
            key
        }),
        2 => (0usize..1000, byte).prop_map(|(at, byte)| {
            let mut key = vec![b'q'; 1024];
            key[at] = byte;
            key
        }),
        1 => prop::collection::vec(any::<u8>(), 0..9),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let value = 0u64..3;
    prop_oneof![
        10 => (key(), value.clone()).prop_map(|(key, value)| Op::Insert(key, value)),
        3 => (key(), value.clone()).prop_map(|(key, value)| Op::InsertIfAbsent(key, value)),
        2 => (key(), value.clone(), value.clone()).prop_map(|(key, a, b)| Op::Replace(key, a, b)),
        5 => key().prop_map(Op::Remove),
        2 => (key(), value).prop_map(|(key, value)| Op::RemoveIf(key, value)),
        4 => key().prop_map(Op::Get),
        6 => key().prop_map(Op::Neighbours),
        2 => (key(), key()).prop_map(|(from, to)| Op::Range(from, to)),
        1 => Just(Op::Check),
    ]
}

type Model = BTreeMap<Vec<u8>, u64>;

fn owned(entry: Option<(&Vec<u8>, &u64)>) -> Option<(Vec<u8>, u64)> {
    entry.map(|(key, value)| (key.clone(), *value))
}

fn neighbours(map: &ArtMap<u64>, model: &Model, key: &[u8]) {
    let below = |bound| owned(model.range::<[u8], _>((Bound::Unbounded, bound)).next_back());
    let above = |bound| owned(model.range::<[u8], _>((bound, Bound::Unbounded)).next());
    let (at, beside) = (Bound::Included(key), Bound::Excluded(key));
    assert_eq!(map.floor(key), below(at));
    assert_eq!(map.floor_value(key), below(at).map(|(_, value)| value));
    assert_eq!(map.ceiling(key), above(at));
    assert_eq!(map.neighbour(beside, Direction::Backward), below(beside));
    assert_eq!(map.neighbour(beside, Direction::Forward), above(beside));
    assert_eq!(map.first(), owned(model.first_key_value()));
    assert_eq!(map.last(), owned(model.last_key_value()));
}

fn ranges(map: &ArtMap<u64>, model: &Model, low: &[u8], high: &[u8]) {
    for from in [Bound::Included(low), Bound::Excluded(low), Bound::Unbounded] {
        for to in [Bound::Included(high), Bound::Excluded(high), Bound::Unbounded] {
            // A `BTreeMap` panics where both bounds exclude the same key; there is nothing there.
            let empty = from == to && matches!(from, Bound::Excluded(_));
            let expected: Vec<_> = (!empty)
                .then(|| model.range::<[u8], _>((from, to)))
                .into_iter()
                .flatten()
                .map(|(key, value)| (key.clone(), *value))
                .collect();
            let found: Vec<_> = map.range(from, to, Direction::Forward).collect();
            assert_eq!(found, expected);
            let some = map.range(from, to, Direction::Forward).at_most(expected.len() / 2);
            assert!(some.eq(expected[..expected.len() / 2].iter().cloned()));
            let mut found: Vec<_> = map.range(to, from, Direction::Backward).collect();
            found.reverse();
            assert_eq!(found, expected);
        }
    }
}

fn run(map: &ArtMap<u64>, model: &mut Model, op: Op) {
    match op {
        Op::Insert(key, value) => {
            assert_eq!(map.insert(&key, value), model.insert(key, value));
        }
        Op::InsertIfAbsent(key, value) => {
            let expected = model.get(&key).copied().map_or(Ok(()), Err);
            assert_eq!(map.insert_if_absent(&key, value), expected);
            model.entry(key).or_insert(value);
        }
        Op::Replace(key, old, new) => {
            let is = model.get(&key) == Some(&old);
            assert_eq!(map.replace(&key, old, new), is);
            if is {
                model.insert(key, new);
            }
        }
        Op::Remove(key) => assert_eq!(map.remove(&key), model.remove(&key)),
        Op::RemoveIf(key, value) => {
            let is = model.get(&key) == Some(&value);
            assert_eq!(map.remove_if(&key, value), is);
            if is {
                model.remove(&key);
            }
        }
        Op::Get(key) => assert_eq!(map.get(&key), model.get(&key).copied()),
        Op::Neighbours(key) => neighbours(map, model, &key),
        Op::Range(from, to) => {
            let (low, high) = if from <= to { (from, to) } else { (to, from) };
            ranges(map, model, &low, &high);
        }
        Op::Check => {
            map.check().unwrap();
        }
    }
    assert_eq!(map.len(), model.len());
}

/// Runs of random operations; many more in the full tier.
fn cases() -> u32 {
    match std::env::var("SPINNEY_PROVING").as_deref() {
        Ok("full") => 20_000,
        _ => 256,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_btree_map(ops in prop::collection::vec(op(), 1..600)) {
        let map = ArtMap::new();
        let empty = map.bytes();
        let mut model = Model::new();
        for op in ops {
            run(&map, &mut model, op);
        }
        map.check().unwrap();
        ranges(&map, &model, &[], &[255; 8]);
        for key in model.keys() {
            neighbours(&map, &model, key);
        }
        for (key, value) in &model {
            assert_eq!(map.remove(key), Some(*value));
        }
        assert_eq!(map.check().unwrap().leaves, 0);
        assert_eq!(map.bytes(), empty);
    }
}

/// Every kind of node is grown to and shrunk from, at each depth of long keys.
#[test]
fn nodes_grow_and_shrink() {
    for prefix in [0, 1, 300] {
        let map = ArtMap::new();
        let empty = map.bytes();
        let key = |byte: u8| {
            let mut key = vec![b'x'; prefix];
            key.push(byte);
            key
        };
        map.insert(&key(0)[..prefix], 1000);
        for byte in 0..=255u8 {
            let byte = byte.reverse_bits();
            assert_eq!(map.insert(&key(byte), u64::from(byte)), None);
            let census = map.check().unwrap();
            assert_eq!(census.nodes.iter().sum::<usize>(), 1);
        }
        assert_eq!(map.check().unwrap().nodes[6], 1);
        for byte in 0..=255u8 {
            assert_eq!(map.remove(&key(byte)), Some(u64::from(byte)));
            map.check().unwrap();
        }
        assert_eq!(map.check().unwrap().nodes, [0; 7]);
        assert_eq!(map.remove(&key(0)[..prefix]), Some(1000));
        assert_eq!(map.bytes(), empty);
    }
}

/// Every prefix of a key of 1 KiB is a key: as high as a tree gets.
#[test]
fn a_key_and_all_its_prefixes() {
    let map = ArtMap::new();
    let long: Vec<u8> = (0..1024u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
    for length in (0..=1024).step_by(2).chain((1..1024).step_by(2)) {
        assert_eq!(map.insert(&long[..length], length), None);
    }
    assert_eq!(map.check().unwrap().height, 1024);
    for length in 0..=1024 {
        assert_eq!(map.get(&long[..length]), Some(length));
        let mut beside = long[..length].to_vec();
        beside.push(255);
        assert_eq!(map.floor_value(&beside), Some(1024));
        beside[length] = 0;
        let next = usize::from(long.get(length) == Some(&0));
        assert_eq!(map.floor_value(&beside), Some(length + next));
    }
    let all = map.range(Bound::Unbounded, Bound::Unbounded, Direction::Backward);
    assert!(all.map(|(_, value)| value).eq((0..=1024).rev()));
}

/// All orders of adding a few keys that are prefixes of each other, and of removing them: every
/// neighbour of every probe is right at every step.
#[test]
fn all_small_trees() {
    let keys: [&[u8]; 6] = [b"", b"a", b"ab", b"ab\0", b"abc", b"b"];
    let probes: [&[u8]; 11] =
        [b"", b"\0", b"a", b"a\xff", b"ab", b"ab\0", b"ab\0\0", b"abb", b"abcd", b"b", b"c"];
    let compare = |map: &ArtMap<u64>, model: &Model| {
        map.check().unwrap();
        for probe in probes {
            assert_eq!(map.get(probe), model.get(probe).copied());
            neighbours(map, model, probe);
        }
    };
    // The order is the digits of a number to falling bases, each the place among those not yet taken.
    for order in 0..720 {
        let map = ArtMap::new();
        let mut model = Model::new();
        for adding in [true, false] {
            let (mut rest, mut order) = (keys.to_vec(), order);
            while !rest.is_empty() {
                let key = rest.remove(order % rest.len());
                order /= rest.len() + 1;
                if adding {
                    assert_eq!(map.insert(key, 1), model.insert(key.to_vec(), 1));
                } else {
                    assert_eq!(map.remove(key), model.remove(key));
                }
                compare(&map, &model);
            }
        }
        assert!(map.is_empty());
    }
}
