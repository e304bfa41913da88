//! Node pages: the bytes are what the format says, and any bytes are a node or an error.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{limits, run};
use crate::double::Double;
use crate::files::Files;
use crate::kinds::purpose;
use crate::packed::{PackedNode, PackedPivot, PackedSegment};
use crate::runs::Runs;
use crate::tree::Tree;

/// The example of the format.
fn example() -> PackedNode {
    let pivot = |lower: &[u8], pending, child: &[u8]| PackedPivot {
        lower: lower.to_vec(),
        pending,
        tombstones: Some(pending as u32 / 100),
        child: child.to_vec(),
    };
    let segment =
        PackedSegment { active: 2, lower: b"m".to_vec(), upper: None, leaf: b"S".to_vec() };
    PackedNode {
        height: 1,
        pivots: vec![pivot(b"", 0, b"A"), pivot(b"m", 300, b"B")],
        levels: vec![vec![segment]],
    }
}

#[test]
fn the_example_is_these_bytes() {
    let bytes = [
        &[2, 1, 2, 1][..],
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, b'A'],
        &[1, 0, b'm', 0x2c, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, b'B'],
        &[1, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, b'm', 0, 1, b'S'],
    ]
    .concat();
    assert_eq!(example().encode(), bytes);
    assert_eq!(PackedNode::decode(&bytes).unwrap(), example());
    for length in 0..bytes.len() {
        assert!(PackedNode::decode(&bytes[..length]).unwrap_err().is_corruption());
    }
    assert!(PackedNode::decode(&[&bytes[..], &[0]].concat()).unwrap_err().is_corruption());
}

/// Nodes that earlier versions wrote do not count tombstones: as many are taken to be there as
/// there may be.
#[test]
fn nodes_of_version_1_are_read() {
    let bytes = [
        &[1, 1, 2, 1][..],
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, b'A'],
        &[1, 0, b'm', 0x2c, 1, 0, 0, 0, 0, 0, 0, 1, b'B'],
        &[1, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, b'm', 0, 1, b'S'],
    ]
    .concat();
    let node = PackedNode::decode(&bytes).unwrap();
    assert!(node.pivots.iter().all(|pivot| pivot.tombstones.is_none()));
    assert_eq!(node.pivots[1].tombstones_max(), 37, "of 8 bytes each at least");
    assert_eq!(node.encode(), bytes);
    let counted = |pivot: &mut PackedPivot| pivot.tombstones = Some(pivot.pending as u32 / 100);
    let mut node = node;
    node.pivots.iter_mut().for_each(counted);
    assert_eq!(node, example());
}

fn node() -> impl Strategy<Value = PackedNode> {
    let key = || vec(any::<u8>(), 0..20);
    let lowers = prop::collection::btree_set(vec(any::<u8>(), 1..20), 0..64);
    let segment = (any::<u64>(), key(), prop::option::of(key()), vec(any::<u8>(), 0..40));
    let levels = vec(vec(segment, 0..10), 0..7);
    let pending = (any::<u64>(), prop::option::of(any::<u32>()));
    (1..=255u8, lowers, pending, levels).prop_map(|(height, lowers, pending, levels)| {
        let lowers = std::iter::once(Vec::new()).chain(lowers);
        let (pending, tombstones) = pending;
        let pivot =
            |lower: Vec<u8>| PackedPivot { child: lower.clone(), lower, pending, tombstones };
        let pivots: Vec<_> = lowers.map(pivot).collect();
        let known = u64::MAX >> (64 - pivots.len());
        let levels = levels
            .into_iter()
            .map(|level| {
                let mut level: Vec<_> = level
                    .into_iter()
                    .map(|(active, lower, upper, leaf)| PackedSegment {
                        active: (active & known).max(1),
                        upper: upper.filter(|upper| lower < *upper),
                        lower,
                        leaf,
                    })
                    .collect();
                level.sort_by(|a, b| a.lower.cmp(&b.lower));
                level.dedup_by(|a, b| a.lower == b.lower);
                level
            })
            .collect();
        PackedNode { height, pivots, levels }
    })
}

proptest! {
    #[test]
    fn a_node_is_read_as_it_was_written(node in node()) {
        prop_assert_eq!(PackedNode::decode(&node.encode()).unwrap(), node);
    }

    #[test]
    fn a_changed_byte_is_another_node_or_an_error(node in node(), at: prop::sample::Index, with: u8) {
        let mut bytes = node.encode();
        let at = at.index(bytes.len());
        bytes[at] = with;
        match PackedNode::decode(&bytes) {
            Ok(node) => prop_assert_eq!(node.encode(), bytes),
            Err(error) => prop_assert!(error.is_corruption()),
        }
    }

    #[test]
    fn any_bytes_are_a_node_or_an_error(version in 1u8..3, bytes in vec(any::<u8>(), 0..300)) {
        let bytes = [&[version, 1, 2, 1][..], &bytes].concat();
        if let Ok(node) = PackedNode::decode(&bytes) {
            prop_assert_eq!(node.encode(), bytes);
        }
    }
}

/// Writes a node of these children, which are described, each at a key of its own.
fn write(files: &Double, height: u8, children: &[Vec<u8>]) -> Vec<u8> {
    let pivot = |(number, child): (usize, &Vec<u8>)| PackedPivot {
        lower: vec![b'k'; number],
        pending: 0,
        tombstones: Some(0),
        child: child.clone(),
    };
    let pivots = children.iter().enumerate().map(pivot).collect();
    let payload = PackedNode { height, pivots, levels: Vec::new() }.encode();
    let pages = files.write_node(&payload).unwrap();
    let mut description = Vec::new();
    files.describe_node(&pages, &mut description);
    // It stays on the disk, as what a checkpoint wrote does.
    files.crash(pages);
    description
}

#[test]
fn nodes_that_do_not_make_a_tree_are_damage() {
    let files = Double::new(limits(1000, 8));
    let leaf = || {
        let run = Runs::from(run([(&b"key"[..], Some(&b"value"[..]))]));
        let leaf = files.write_leaf(&run, purpose::LEAF).unwrap();
        let mut description = Vec::new();
        files.describe_leaf(&leaf, &mut description);
        files.crash(leaf);
        description
    };
    let low = || write(&files, 1, &[leaf(), leaf()]);
    let child = low();
    let twice = write(&files, 2, &[child.clone(), child]);
    let uneven = write(&files, 3, &[low(), write(&files, 2, &[low(), low()])]);
    let unknown = write(&files, 1, &[leaf(), vec![9; 8]]);
    let sound = write(&files, 2, &[low(), low()]);
    for (node, is_sound) in [(twice, false), (uneven, false), (unknown, false), (sound, true)] {
        let opened = Tree::open(&files, &[&[2][..], &node].concat());
        assert_eq!(opened.is_ok(), is_sound);
        files.crash(opened.map_err(|error| assert!(error.is_corruption())));
    }
    for description in [&[][..], &[3], &[1], &[2, 1, 2, 3]] {
        assert!(Tree::open(&files, description).unwrap_err().is_corruption());
    }
    assert!(Tree::open(&files, &[0]).unwrap().root.is_none());
}
