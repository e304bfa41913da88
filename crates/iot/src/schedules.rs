//! What readers and writers owe each other while leaves are split and joined, under schedules that may stop a
//! thread at any latch: `cargo test -p spinney-iot --features shuttle --lib schedules`.

use std::sync::Arc;

use shuttle::thread::{JoinHandle, spawn};
use spinney_base::ValueRef;
use spinney_base::schedules::check;
use spinney_engine::{Certifier, Chunk, Direction, Found, ScanRequest};
use spinney_leaf::{Bounds, Entry};

use crate::gaps::Gaps;
use crate::inner::Index;
use crate::tree::Tree;

/// Six of them fill a leaf.
const VALUE_BYTES: usize = 2500;

fn thread(tree: &Arc<Tree>, body: impl FnOnce(&Tree) + Send + 'static) -> JoinHandle<()> {
    let tree = Arc::clone(tree);
    spawn(move || body(&tree))
}

fn put(tree: &Tree, key: u8, byte: u8) {
    tree.put(&[key], ValueRef::inline(&[byte; VALUE_BYTES]), None);
}

/// Every second key, each with its own byte.
fn world(keys: u8) -> Arc<Tree> {
    let tree = Arc::new(Tree::new(Gaps::new(Certifier::above(0), 1)));
    (0..keys).for_each(|key| put(&tree, 2 * key, key));
    tree
}

/// Reads a key that nobody changes.
fn read(tree: &Tree, key: u8) {
    let mut out = Vec::new();
    assert_eq!(tree.get(&[2 * key], &mut out), Found::Inline, "key {key}");
    assert!(out.len() == VALUE_BYTES && out.iter().all(|byte| *byte == key), "key {key}");
}

/// Reads all keys, and checks that those are there which stay.
fn scan(tree: &Tree, direction: Direction, stay: &[u8]) {
    let request = ScanRequest {
        direction,
        records_wanted: usize::MAX,
        records_max: usize::MAX,
        bytes_max: usize::MAX,
        keys_only: true,
        ..ScanRequest::FIRST_KEY
    };
    let mut chunk = Chunk::default();
    tree.scan(&request, &mut chunk);
    let mut keys: Vec<u8> = (0..chunk.len()).map(|index| chunk.get(index).0[0]).collect();
    if direction == Direction::Reverse {
        keys.reverse();
    }
    assert!(keys.is_sorted_by(|one, next| one < next), "{keys:?}");
    assert!(stay.iter().all(|key| keys.contains(&(2 * key))), "{keys:?} have not all of {stay:?}");
}

#[test]
fn a_value_is_read_whole() {
    check(2_000, || {
        let tree = world(2);
        let writer = thread(&tree, |tree| [7, 8].into_iter().for_each(|byte| put(tree, 0, byte)));
        let mut last = 0;
        for _ in 0..3 {
            let mut out = Vec::new();
            assert_eq!(tree.get(&[0], &mut out), Found::Inline);
            assert!(out.len() == VALUE_BYTES && out.iter().all(|byte| *byte == out[0]));
            assert!([0, 7, 8].contains(&out[0]) && out[0] >= last);
            last = out[0];
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_split_hides_no_key() {
    check(2_000, || {
        let tree = world(6);
        let writer = thread(&tree, |tree| (0..2).for_each(|key| put(tree, 2 * key + 1, 9)));
        let reader = thread(&tree, |tree| [0, 4, 2].into_iter().for_each(|key| read(tree, key)));
        scan(&tree, Direction::Forward, &[0, 1, 2, 3, 4]);
        writer.join().unwrap();
        reader.join().unwrap();
        (0..6).for_each(|key| read(&tree, key));
        tree.check().unwrap();
        assert!(tree.records() == 8 && tree.leaves() > 1);
    });
}

#[test]
fn writers_of_a_leaf_that_is_split_lose_nothing() {
    check(2_000, || {
        let tree = world(5);
        let writers = [1, 5, 9].map(|key| thread(&tree, move |tree| put(tree, key, 9)));
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        scan(&tree, Direction::Forward, &[0, 1, 2, 3, 4]);
        tree.check().unwrap();
        assert_eq!(tree.records(), 8);
    });
}

/// Leaves are joined while others read, and one is split again.
#[test]
fn a_join_hides_no_key() {
    check(2_000, || {
        let tree = world(14);
        assert_eq!(tree.leaves(), 3);
        let writer = thread(&tree, |tree| {
            let gone = [1, 2, 3, 4, 7, 8, 10, 11, 5, 13];
            gone.into_iter().for_each(|key| _ = tree.remove(&[2 * key], None));
            put(tree, 11, 9);
        });
        let reader = thread(&tree, |tree| [6, 9, 12].into_iter().for_each(|key| read(tree, key)));
        scan(&tree, Direction::Reverse, &[0, 6, 9, 12]);
        scan(&tree, Direction::Forward, &[0, 6, 9, 12]);
        writer.join().unwrap();
        reader.join().unwrap();
        tree.check().unwrap();
        assert!(tree.records() == 5 && tree.leaves() == 1, "{} leaves", tree.leaves());
    });
}

/// A load comes in whole: a reader that has found one key of it finds all.
#[test]
fn another_index_is_seen_at_once() {
    check(2_000, || {
        let tree = Arc::new(Tree::new(Gaps::new(Certifier::above(0), 1)));
        let loader = thread(&tree, |tree| {
            let index = Index::new();
            let lowers: [&[u8]; 3] = [b"", b"m", b"t"];
            for (at, lower) in lowers.into_iter().enumerate() {
                let bounds = Bounds { lower, upper: lowers.get(at + 1).copied() };
                let entry = Entry { key: lower, value: b"1", flags: 0 };
                index.insert(lower, tree.make(bounds, [(entry, 0)].into_iter(), None));
            }
            tree.replace(index);
        });
        let is_there = |key: &[u8]| tree.get(key, &mut Vec::new()) == Found::Inline;
        let first = is_there(b"t");
        assert!(!first || is_there(b""));
        assert!(!is_there(b"") || is_there(b"m"));
        loader.join().unwrap();
        tree.check().unwrap();
        assert_eq!(tree.records(), 3);
    });
}
