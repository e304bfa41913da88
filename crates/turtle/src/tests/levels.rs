//! Levels that are cut and put together again.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{limits, run};
use crate::double::Double;
use crate::edit::packed_bytes;
use crate::files::{Files, Limits, Lookup};
use crate::kinds::purpose;
use crate::levels::{Key, Level, Part, Pivots, Segment, by_pivot, set};
use crate::node::{Child, Leaf, Node, Replacement};
use crate::runs::Runs;

fn live(level: &Level<Double>, files: &Double, keys: &[Key]) -> Vec<Vec<u8>> {
    let mut live = Vec::new();
    for part in &level.parts {
        let runs = match part {
            Part::Run(run) => Runs::from(run.clone()),
            Part::Segment(segment) => segment.load(files, keys, Pivots::MAX).unwrap(),
        };
        live.extend(runs.iter().map(|edit| edit.key.to_vec()));
    }
    live
}

/// A level of runs and segments over sixteen pivots, of which some were flushed.
fn level(rng: &mut StdRng, files: &Double, keys: &[Key]) -> Level<Double> {
    let mut level = Level::default();
    let mut edits: BTreeMap<[u8; 2], ()> = BTreeMap::new();
    for _ in 0..rng.random_range(0..200) {
        edits.insert([rng.random(), rng.random()], ());
    }
    let all: Vec<[u8; 2]> = edits.into_keys().collect();
    for piece in all.chunk_by(|a, b| b[0] - a[0] < 2 && (a[0] ^ b[0]) & 0x20 == 0) {
        let run = run(piece.iter().map(|key| (&key[..], Some(&b"v"[..]))));
        let runs = Runs::from(run.clone());
        let mut active = 0;
        by_pivot(&run, keys, |pivot, _| active |= set(pivot..pivot + 1));
        level.parts.push(if rng.random_bool(0.3) {
            Part::Run(run)
        } else {
            let leaf = files.write_leaf(&runs, purpose::LEAF).unwrap();
            let lower = runs.first_key().unwrap().into();
            Part::Segment(Segment { leaf, lower, upper: None, active })
        });
    }
    for pivot in 0..keys.len() {
        if rng.random_bool(0.2) {
            let loads: Vec<_> = level.loads(keys, pivot..pivot + 1).collect();
            let mut loaded = files.load_many(&loads).unwrap().into_iter();
            level.take(keys, pivot..pivot + 1, &mut loaded);
            assert!(loaded.next().is_none());
        }
    }
    level
}

#[test]
fn what_is_split_and_joined_is_what_it_was() {
    let files = Double::new(limits(1 << 20, 64));
    let first = std::iter::once(Key::from(&b""[..]));
    let keys: Vec<Key> = first.chain((1..16u8).map(|n| Key::from(&[n << 4][..]))).collect();
    for seed in 0..300 {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let level = level(&mut rng, &files, &keys);
        let before = live(&level, &files, &keys);
        assert!(before.is_sorted());
        let middle = rng.random_range(1..16);
        let (mut left, right) = level.clone().split(&keys, middle);
        let right_keys = [&[Key::from(&b""[..])], &keys[middle + 1..]].concat();
        let halves = (live(&left, &files, &keys[..middle]), live(&right, &files, &right_keys));
        assert!(halves.0.iter().all(|key| key[..] < keys[middle][..]));
        assert!(halves.1.iter().all(|key| key[..] >= keys[middle][..]));
        assert_eq!([halves.0, halves.1].concat(), before);
        let runs_cut = |level: &Level<Double>| {
            level.parts.iter().filter(|part| matches!(part, Part::Segment(_))).count()
        };
        left.join(right, middle);
        assert_eq!(live(&left, &files, &keys), before);
        assert_eq!(runs_cut(&left), runs_cut(&level), "a segment that was cut is one again");
    }
}

/// The last child of a node may become as many as there are bits left, when leaves have become much
/// smaller.
#[test]
fn a_node_has_as_many_pivots_as_bits() {
    let files = Double::new(limits(1 << 20, 64));
    let leaf = || Child::Leaf(Leaf::Memory(Runs::default()));
    let children = |numbers: std::ops::Range<u8>| -> Vec<(Key, Child<Double>)> {
        numbers.map(|number| (Key::from(&[number][..]), leaf())).collect()
    };
    let mut node = Node::new(1, children(0..64));
    let keys: Vec<[u8; 1]> = (0..63).map(|number| [number]).collect();
    let run = run(keys.iter().map(|key| (&key[..], Some(&b"v"[..]))));
    let limits = files.limits();
    node.insert(&files, &limits, Runs::from(run), &mut Vec::new()).unwrap();
    node.write_levels(&files).unwrap();
    let before = live(&node.levels[0], &files, &node.keys);
    assert_eq!(before.len(), 63);
    let replacement = Replacement { old: 63..64, new: children(63..128) };
    assert!(node.has_room(&replacement));
    node.replace(replacement);
    assert_eq!(node.keys.len(), 128);
    let [Part::Segment(segment)] = &node.levels[0].parts[..] else { panic!("one segment") };
    assert_eq!(segment.active, set(0..63));
    assert_eq!(live(&node.levels[0], &files, &node.keys), before);
}

#[test]
fn a_merge_of_many_segments_has_few_of_them_in_memory() {
    let edit = packed_bytes(3, 1);
    let leaf_bytes = 10 * edit;
    // From how many bytes of segments on a merge goes in slices, and how much of them is in memory
    // then at most.
    for (merge_bytes, most) in [(3 * leaf_bytes, 5 * leaf_bytes), (u64::MAX, u64::MAX)] {
        let limits = Limits { merge_bytes, edit_bytes_max: 0, ..limits(leaf_bytes, 16) };
        let files = Double::new(limits);
        let leaf = || Child::Leaf(Leaf::Memory(Runs::default()));
        let children = (0..16u8).map(|n| (Key::from(&[n << 4][..]), leaf())).collect();
        let mut node = Node::new(1, children);
        let mut keys: BTreeMap<[u8; 3], u8> = BTreeMap::new();
        let mut rng = StdRng::seed_from_u64(3);
        for batch in 0..15u8 {
            let mut edits: Vec<[u8; 3]> =
                (0..10).map(|_| [rng.random(), rng.random(), 0]).collect();
            // Some come with every batch.
            edits.extend((0..4u8).map(|n| [n << 6, 7, 7]));
            edits.sort_unstable();
            edits.dedup();
            let value = [batch];
            let run = run(edits.iter().map(|key| (&key[..], Some(&value[..]))));
            node.insert(&files, &limits, Runs::from(run), &mut Vec::new()).unwrap();
            node.write_levels(&files).unwrap();
            keys.extend(edits.into_iter().map(|key| (key, batch)));
        }
        files.counts.most_at_once.store(0, Relaxed);
        let written = files.counts.leaves_written.load(Relaxed);
        node.merge_all(&files, &limits, &mut Vec::new()).unwrap();
        let at_once = files.counts.most_at_once.load(Relaxed);
        assert!(0 < at_once && at_once <= most, "{at_once} of {most}");
        let wrote = files.counts.leaves_written.load(Relaxed) > written;
        assert_eq!(wrote, merge_bytes < u64::MAX);
        assert_eq!(node.levels.iter().filter(|level| !level.is_vacant()).count(), 1);
        let merged = node.levels.last().unwrap();
        let expected: Vec<Vec<u8>> = keys.keys().map(|key| key.to_vec()).collect();
        assert_eq!(live(merged, &files, &node.keys), expected);
        for (key, value) in &keys {
            let pivot = usize::from(key[0] >> 4);
            let found = match merged.part(&node.keys, pivot, key).unwrap() {
                Part::Run(run) => run.get(key).unwrap().value.unwrap().bytes.to_vec(),
                Part::Segment(segment) => {
                    let mut out = Vec::new();
                    let lookup = Lookup { leaf: &*segment.leaf, key, hash: 0, is_last: false };
                    files.get(&lookup, &mut out).unwrap().unwrap();
                    out
                }
            };
            assert_eq!(found, [*value], "{key:?}");
        }
        let pending: u64 = node.pending.iter().sum();
        assert_eq!(pending, keys.len() as u64 * edit);
    }
}
