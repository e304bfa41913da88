//! Bytes written against the checkpoint distance: each doubling saves about one level (section
//! 3.4).

use std::sync::atomic::Ordering::Relaxed;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::run;
use crate::check::check;
use crate::double::Double;
use crate::files::Limits;
use crate::policy::SPREAD;
use crate::runs::Runs;
use crate::tree::Tree;

const LEAF: u64 = 4096;
const EDIT: u64 = 8 + 24 + 8;

struct Load {
    /// Packed bytes written for each packed byte loaded.
    amplification: f64,
    nodes: u64,
    height: u8,
    /// Most memory that was pending at once, in leaves.
    pending: u64,
    /// Most bytes on disk for each byte of data at the time.
    space: f64,
    /// Packed bytes on disk at the end.
    bytes: u64,
    /// Memory that nodes take for each leaf of data, in bytes.
    resident: u64,
}

/// How a tree is loaded.
struct Plan {
    /// Batches of about a leaf each.
    batches: u32,
    /// Batches between two checkpoints.
    distance: u32,
    /// Early what has settled.
    streams: bool,
    /// What may be pending for a leaf, in percent of a leaf.
    pending_share: u64,
}

fn load(plan: &Plan, mut key: impl FnMut(u64) -> u64) -> Load {
    let Plan { batches, distance, streams, pending_share } = *plan;
    let pending_percent = Some(pending_share);
    let limits =
        Limits { pending_percent, spread: SPREAD, edit_bytes_max: 64, ..super::limits(LEAF, 32) };
    let files = Double::new(limits);
    let mut tree = Tree::empty();
    let mut bytes = 0;
    let mut pending = 0;
    let mut space = 0f64;
    for batch in 0..batches {
        let count = limits.flush_bytes() / EDIT;
        let first = u64::from(batch) * count;
        let mut keys: Vec<[u8; 8]> = (first..first + count).map(|n| key(n).to_be_bytes()).collect();
        keys.sort_unstable();
        keys.dedup();
        let edits = Runs::from(run(keys.iter().map(|key| (&key[..], Some(&[7; 24][..])))));
        bytes += edits.bytes();
        let left = distance - 1 - batch % distance;
        let ahead = streams.then_some(u64::from(left));
        tree = tree.apply(&files, &edits, ahead, &mut Vec::new()).unwrap();
        if left == 0 {
            pending = pending.max(tree.pending().pinned);
            tree = tree.write(&files, &mut Vec::new()).unwrap();
        } else if streams {
            tree = tree.write_early(&files, u64::from(left)).unwrap().evacuate(u64::MAX);
        }
        pending = pending.max(tree.pending().pinned);
        if batch > 50 {
            space = space.max(files.bytes() as f64 / bytes as f64);
        }
    }
    check(&tree, &files, true).unwrap();
    let written = files.counts.bytes_written.load(Relaxed);
    Load {
        amplification: written as f64 / bytes as f64,
        nodes: files.counts.nodes_written.load(Relaxed),
        height: tree.height(),
        pending: pending / LEAF,
        space,
        bytes: files.bytes(),
        resident: tree.totals(&files).resident_bytes * LEAF / bytes,
    }
}

#[test]
fn each_doubling_of_the_distance_saves_writes() {
    let mut last = f64::INFINITY;
    let mut first = 0.0;
    for distance in [1, 2, 4, 8, 16, 32, 64, 128] {
        let random = || {
            let mut rng = StdRng::seed_from_u64(7);
            move |_| rng.random()
        };
        let plan = Plan { batches: 1024, distance, streams: false, pending_share: 100 };
        let Load { amplification, nodes, height, pending, space, .. } = load(&plan, random());
        let streamed = load(&Plan { streams: true, ..plan }, random());
        println!(
            "distance {distance:3}: {amplification:.2} bytes written per byte, {nodes} nodes, \
             height {height}, {pending} leaves of memory at most, {space:.2} bytes of space per \
             byte; streaming {:.2} bytes, {} leaves, {:.2} of space",
            streamed.amplification, streamed.pending, streamed.space
        );
        assert!(amplification < last, "distance {distance} writes more than half of it");
        // What streaming is for: half of the memory for little more that is written.
        assert!(streamed.amplification < 1.12 * amplification);
        assert!(distance < 16 || streamed.pending * 2 < pending);
        last = amplification;
        first = if distance == 1 { amplification } else { first };
    }
    assert!(first > 2.3 * last, "{first} at 1, {last} at 128");
}

#[test]
fn ascending_keys_are_written_about_once() {
    for distance in [1, 8] {
        let plan = Plan { batches: 512, distance, streams: false, pending_share: 100 };
        let Load { amplification, nodes, height, resident, .. } = load(&plan, |n| n);
        println!(
            "ascending, distance {distance}: {amplification:.2} bytes written per byte, \
             {nodes} nodes, height {height}, {resident} bytes of nodes for each leaf"
        );
        assert!(amplification < 2.1);
        assert!((50..500).contains(&resident));
    }
}

#[test]
fn less_pending_for_leaves_is_less_space_and_more_writes() {
    let records = 512 * 100;
    let mut last = (f64::INFINITY, 0.0);
    for pending_share in [100, 50, 25, 12] {
        let plan = Plan { batches: 1536, distance: 16, streams: true, pending_share };
        // All records once, then twice as many overwrites without favourites.
        let mut rng = StdRng::seed_from_u64(7);
        let loaded = load(&plan, |n| {
            let record = if n < records { n } else { rng.random_range(0..records) };
            record.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        let space = loaded.bytes as f64 / (records * EDIT) as f64;
        println!(
            "{pending_share:3} % of a leaf pending: {space:.2} bytes of space per byte of data, {:.2} \
             written per byte",
            loaded.amplification
        );
        assert!(space < last.0 && loaded.amplification > last.1);
        last = (space, loaded.amplification);
    }
}
