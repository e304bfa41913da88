//! What lookups and scans ask of the disk, counted.

use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use spinney_engine::{Chunk, Direction, Found, ScanRequest};

use super::{limits, run};
use crate::double::Double;
use crate::node::Child;
use crate::runs::Runs;
use crate::tree::Tree;

/// A tree of two levels of nodes, all on pages, of which many buffers hold something.
fn tree() -> (Double, Tree<Double>, Vec<[u8; 8]>) {
    let files = Double::new(limits(2000, 8));
    let mut rng = StdRng::seed_from_u64(11);
    let mut tree = Tree::empty();
    let mut all: Vec<[u8; 8]> = Vec::new();
    for _ in 0..120 {
        let mut keys: Vec<[u8; 8]> = (0..40).map(|_| rng.random::<u64>().to_be_bytes()).collect();
        keys.sort_unstable();
        all.extend(&keys);
        let batch = Runs::from(run(keys.iter().map(|key| (&key[..], Some(&[7; 20][..])))));
        tree = tree.apply(&files, &batch, None, &mut Vec::new()).unwrap();
        tree = tree.write(&files, &mut Vec::new()).unwrap();
    }
    assert!(tree.height() >= 2);
    all.sort_unstable();
    (files, tree, all)
}

/// Levels on a path from the root to a leaf, at most.
fn levels(child: &Child<Double>) -> u64 {
    match child {
        Child::Leaf(_) => 0,
        Child::Node(node) => {
            node.levels.len() as u64 + node.children.iter().map(levels).max().unwrap_or(0)
        }
    }
}

#[test]
fn a_lookup_asks_each_level_once_and_for_all_of_them_together() {
    let (files, tree, keys) = tree();
    let levels = levels(tree.root.as_ref().unwrap());
    let mut together = 0;
    for key in &keys {
        let gets = files.counts.gets.load(Relaxed);
        files.warmed.lock().clear();
        assert_eq!(tree.get(&files, key, 9, &mut Vec::new()).unwrap(), Found::Inline);
        let asked = files.counts.gets.load(Relaxed) - gets;
        assert!((1..=levels + 1).contains(&asked), "{asked} of {levels}");
        let warmed = files.warmed.lock();
        assert!(asked == 1 || warmed.len() as u64 >= asked, "{asked}, {warmed:?}");
        assert!(warmed.iter().all(|warmed| (&warmed.1[..], warmed.2) == (&key[..], 9)));
        together += u64::from(warmed.len() > 1);
    }
    assert!(together > 100, "{together} of {}", keys.len());
}

#[test]
fn a_short_scan_opens_little_more_than_it_reads() {
    let (files, tree, keys) = tree();
    let levels = levels(tree.root.as_ref().unwrap());
    let mut chunk = Chunk::default();
    let mut most = 0;
    for at in 0..keys.len() - 10 {
        for direction in [Direction::Forward, Direction::Reverse] {
            let request = ScanRequest {
                lower: Bound::Included(&keys[at][..]),
                upper: Bound::Included(&keys[at + 9][..]),
                direction,
                records_wanted: 10,
                records_max: 10,
                bytes_max: 1 << 20,
                keys_only: false,
            };
            let cursors = files.counts.cursors.load(Relaxed);
            chunk.clear();
            tree.scan(&files, &request, &mut chunk).unwrap();
            assert_eq!(chunk.len(), 10);
            let opened = files.counts.cursors.load(Relaxed) - cursors;
            // Ten records lie in two leaves' ranges at most; in a range a level may go on in
            // another segment.
            assert!(opened <= 3 * (levels + 1), "{opened} of {levels} levels");
            most = most.max(opened);
        }
    }
    println!("{levels} levels, {most} leaves and segments opened at most");
}
