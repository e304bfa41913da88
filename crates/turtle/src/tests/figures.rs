//! The worked examples of the paper: figure 5 (levels after each batch, a flush) and figure 6
//! (pages written at different checkpoint distances).
//!
//! A leaf holds three keys here, and the node has pivots enough for three levels.

use std::sync::Arc;

use super::run;
use crate::double::Double;
use crate::edit::EDIT_BYTES;
use crate::files::{Files, Limits};
use crate::levels::{Key, Level, Part};
use crate::merge::{Tombstones, merge};
use crate::node::{Child, Leaf, Node};
use crate::runs::Runs;

const BATCHES: [[u8; 3]; 4] = [[1, 7, 10], [0, 4, 5], [2, 8, 11], [3, 6, 9]];

/// Key and value are a byte each.
fn limits() -> Limits {
    let edit = EDIT_BYTES + 2;
    // The slack for an uneven cut is nothing, since all edits are of one size.
    Limits { edit_bytes_max: 0, ..super::limits(3 * edit, 8) }
}

/// Pivots at 0, 2, 6, 7, 8, 9, 10, 11, whose leaves are empty.
fn node() -> Node<Double> {
    let children = [0u8, 2, 6, 7, 8, 9, 10, 11];
    let leaf = || Child::Leaf(Leaf::Memory(Runs::default()));
    Node::new(1, children.iter().map(|key| (Key::from(&[*key][..]), leaf())).collect())
}

fn batch(keys: &[u8]) -> Runs {
    Runs::from(run(keys.iter().map(|key| (std::slice::from_ref(key), Some(&b"v"[..])))))
}

fn keys(runs: &Runs) -> Vec<u8> {
    runs.iter().map(|edit| edit.key[0]).collect()
}

/// The segments that the levels are or would be written as.
fn segments(node: &Node<Double>, files: &Double) -> Vec<Vec<Vec<u8>>> {
    let level = |level: &Level<Double>| {
        let mut runs = Runs::default();
        for part in &level.parts {
            match part {
                Part::Run(run) => runs.push(run.clone()),
                Part::Segment(segment) => {
                    runs.extend(segment.load(files, &node.keys, segment.active).unwrap());
                }
            }
        }
        let limits = files.limits();
        runs.full_parts(limits.leaf_bytes).iter().map(keys).collect()
    };
    node.levels.iter().map(level).collect()
}

#[test]
fn figure_5_levels_after_each_batch() {
    let files = Double::new(limits());
    let mut node = node();
    let expected: [Vec<Vec<Vec<u8>>>; 4] = [
        vec![vec![vec![1, 7, 10]]],
        vec![vec![], vec![vec![0, 1, 4], vec![5, 7, 10]]],
        vec![vec![vec![2, 8, 11]], vec![vec![0, 1, 4], vec![5, 7, 10]]],
        vec![vec![], vec![], vec![vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8], vec![9, 10, 11]]],
    ];
    for (keys, expected) in BATCHES.iter().zip(expected) {
        node.insert(&files, &limits(), batch(keys), &mut Vec::new()).unwrap();
        assert_eq!(segments(&node, &files), expected);
    }
}

#[test]
fn figure_5_flush_of_a_pivot_after_batch_3() {
    for written in [false, true] {
        let files = Double::new(limits());
        let mut node = node();
        for keys in &BATCHES[..3] {
            node.insert(&files, &limits(), batch(keys), &mut Vec::new()).unwrap();
            if written {
                node.write_levels(&files).unwrap();
            }
        }
        let lines = node.take(&files, 1..2).unwrap();
        assert_eq!(keys(&merge(lines, Tombstones::Keep, 1 << 20, &mut Vec::new())), [2, 4, 5]);
        assert_eq!(node.pending[1], 0);
        let left = [vec![vec![8, 11]], vec![vec![0, 1, 7], vec![10]]];
        let joined = |levels: &[Vec<Vec<u8>>]| -> Vec<Vec<u8>> {
            levels.iter().map(|level| level.concat()).collect()
        };
        assert_eq!(joined(&segments(&node, &files)), joined(&left));
    }
}

#[test]
fn figure_6_pages_written_by_checkpoint_distance() {
    use std::sync::atomic::Ordering::Relaxed;
    for (distance, expected) in [(1, 8), (2, 6), (4, 4)] {
        let files = Double::new(limits());
        let mut node = Arc::new(node());
        for (number, keys) in BATCHES.iter().enumerate() {
            let mut next = node.to_change();
            next.insert(&files, &limits(), batch(keys), &mut Vec::new()).unwrap();
            if (number + 1) % distance == 0 {
                next.write_levels(&files).unwrap();
            }
            node = Arc::new(next);
        }
        assert_eq!(files.counts.leaves_written.load(Relaxed), expected, "distance {distance}");
    }
}
