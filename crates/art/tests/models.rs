//! Shuttle models of the tree: the code itself under a scheduler that may stop any thread at any
//! access to a node. Run with `cargo test -p spinney-art --features shuttle --test models`.
#![cfg(feature = "shuttle")]

use std::ops::Bound;
use std::sync::Arc;

use spinney_art::{ArtMap, Direction};

/// Schedules of each model; many more in the full tier.
fn iterations() -> usize {
    match std::env::var("SPINNEY_PROVING").as_deref() {
        Ok("full") => 200_000,
        _ => 4000,
    }
}

fn map(keys: &[&[u8]]) -> Arc<ArtMap<u64>> {
    let map = ArtMap::new();
    for key in keys {
        map.insert(key, 0);
    }
    Arc::new(map)
}

/// Runs two bodies at the same time.
fn both<A: Send + 'static>(
    map: &Arc<ArtMap<u64>>,
    other: impl FnOnce(&ArtMap<u64>) -> A + Send + 'static,
    own: impl FnOnce(&ArtMap<u64>),
) -> A {
    let theirs = Arc::clone(map);
    let thread = shuttle::thread::spawn(move || other(&theirs));
    own(map);
    let answer = thread.join().unwrap();
    map.check().unwrap();
    answer
}

fn keys(map: &ArtMap<u64>, direction: Direction) -> Vec<Vec<u8>> {
    map.range(Bound::Unbounded, Bound::Unbounded, direction).map(|(key, _)| key).collect()
}

/// Two writers split the same edge, at different depths; a reader always finds what was there.
#[test]
fn splits_of_one_edge() {
    shuttle::check_random(
        || {
            let map = map(&[b"prefix-1", b"prefix-2"]);
            both(
                &map,
                |map| {
                    map.insert(b"pre", 1);
                    map.insert(b"prefix-1-longer", 1);
                },
                |map| {
                    map.insert(b"preamble", 2);
                    assert_eq!(map.get(b"prefix-2"), Some(0));
                },
            );
            let expected: [&[u8]; 5] =
                [b"pre", b"preamble", b"prefix-1", b"prefix-1-longer", b"prefix-2"];
            assert_eq!(keys(&map, Direction::Forward), expected);
        },
        iterations(),
    );
}

/// A node grows and shrinks again while readers pass through it: what stays is found, by key, as a
/// floor and in ranges both ways.
#[test]
fn readers_pass_through_a_changing_node() {
    shuttle::check_random(
        || {
            let map = map(&[b"a1", b"a3", b"a5", b"a7"]);
            both(
                &map,
                |map| {
                    map.insert(b"a4", 1);
                    map.remove(b"a4");
                    map.remove(b"a1");
                },
                |map| {
                    assert_eq!(map.get(b"a3"), Some(0));
                    assert_eq!(map.floor(b"a6"), Some((b"a5".to_vec(), 0)));
                    for direction in [Direction::Forward, Direction::Backward] {
                        let mut seen = keys(map, direction);
                        if direction == Direction::Backward {
                            seen.reverse();
                        }
                        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
                        for staying in [b"a3", b"a5", b"a7"] {
                            assert!(seen.contains(&staying.to_vec()), "{seen:?}");
                        }
                    }
                },
            );
        },
        iterations(),
    );
}

/// Children move within a node while others look for theirs.
#[test]
fn children_move_under_lookups() {
    type Look = fn(&ArtMap<u64>);
    let get: Look = |map| {
        assert_eq!(map.get(b"a7"), Some(0));
        assert_eq!(map.get(b"a3"), Some(0));
    };
    let floor: Look = |map| assert_eq!(map.floor(b"a6"), Some((b"a5".to_vec(), 0)));
    let remove: Look = |map| {
        assert_eq!(map.remove(b"a3"), Some(0));
        assert_eq!(map.remove(b"a7"), Some(0));
    };
    for look in [get, floor, remove] {
        let model = move || {
            let map = map(&[b"a1", b"a3", b"a5", b"a7"]);
            both(&map, |map| assert_eq!(map.remove(b"a1"), Some(0)), look);
            assert_eq!(map.get(b"a5"), Some(0));
        };
        shuttle::check_random(model, iterations());
        shuttle::check_pct(model, iterations(), 3);
    }
}

/// One writer makes a node give way to another kind, or joins it away; what another one writes to
/// the node meanwhile is not lost.
#[test]
fn nothing_is_written_to_a_node_that_gave_way() {
    type Write = fn(&ArtMap<u64>);
    let grow: Write = |map| assert_eq!(map.insert(b"a9", 1), None);
    let shrink: Write = |map| {
        map.insert(b"a9", 1);
        map.remove(b"a9");
        map.remove(b"a4");
    };
    let join: Write = |map| {
        map.remove(b"a4");
        map.remove(b"a1");
    };
    let cases: [(&[&[u8]], Write); 3] = [
        (&[b"a1", b"a2", b"a3", b"a4"], grow),
        (&[b"a1", b"a2", b"a3", b"a4"], shrink),
        (&[b"a1", b"a3", b"a4"], join),
    ];
    for (before, write) in cases {
        shuttle::check_random(
            move || {
                let map = map(before);
                both(&map, write, |map| {
                    map.insert(b"a3", 7);
                    map.insert(b"a6", 8);
                    map.remove(b"a2");
                });
                assert_eq!(map.get(b"a3"), Some(7));
                assert_eq!(map.get(b"a6"), Some(8));
                assert_eq!(map.get(b"a2"), None);
            },
            iterations(),
        );
    }
}

/// A node gives way while the edge above it is split, or joined again.
#[test]
fn nothing_is_lost_above_a_node_that_gives_way() {
    shuttle::check_random(
        || {
            let map = map(&[b"stem-1", b"stem-2", b"stem-3", b"stem-4"]);
            both(
                &map,
                |map| {
                    map.insert(b"st", 1);
                    map.insert(b"ste", 1);
                    map.remove(b"st");
                },
                |map| assert_eq!(map.insert(b"stem-5", 2), None),
            );
            assert_eq!(map.get(b"ste"), Some(1));
            assert_eq!(map.get(b"stem-5"), Some(2));
            assert_eq!(map.len(), 6);
        },
        iterations(),
    );
}

/// Two writers add the same key to a full node, in which one makes room first.
#[test]
fn a_key_is_added_once() {
    shuttle::check_random(
        || {
            let map = map(&[b"a1", b"a2", b"a3", b"a4"]);
            let mut own = None;
            let other = both(
                &map,
                |map| {
                    map.remove(b"a2");
                    map.insert(b"a5", 1)
                },
                |map| own = map.insert(b"a5", 2),
            );
            assert!(matches!((own, other), (None, Some(2)) | (Some(1), None)));
            assert_eq!(keys(&map, Direction::Backward), [b"a5", b"a4", b"a3", b"a1"]);
        },
        iterations(),
    );
}

/// An edge is joined and split again above a key that stays.
#[test]
fn joins_and_splits_above_a_key_that_stays() {
    shuttle::check_random(
        || {
            let map = map(&[b"b", b"stem-x-1", b"stem-x-2", b"stem-y"]);
            both(
                &map,
                |map| {
                    map.remove(b"stem-y");
                    map.remove(b"stem-x-2");
                    map.insert(b"stem-x-1-more", 1);
                    map.remove(b"b");
                },
                |map| {
                    assert_eq!(map.get(b"stem-x-1"), Some(0));
                    assert_eq!(map.get(b"stem-x-1"), Some(0));
                    let ceiling = map.ceiling(b"stem-x").unwrap();
                    assert_eq!(ceiling.0, b"stem-x-1");
                },
            );
            assert_eq!(keys(&map, Direction::Forward), [&b"stem-x-1"[..], b"stem-x-1-more"]);
        },
        iterations(),
    );
}

/// Of two that add the same key one succeeds, and of two that remove it.
#[test]
fn one_of_two_wins() {
    shuttle::check_random(
        || {
            let map = map(&[]);
            let mut own = false;
            let other = both(
                &map,
                |map| map.insert_if_absent(b"key", 1).is_ok(),
                |map| own = map.insert_if_absent(b"key", 2).is_ok(),
            );
            assert!(own != other);
            let value = map.get(b"key").unwrap();
            let mut own = false;
            let other = both(
                &map,
                move |map| map.remove_if(b"key", value),
                |map| own = map.replace(b"key", value, 3),
            );
            assert!(own != other);
            assert_eq!(map.get(b"key"), own.then_some(3));
        },
        iterations(),
    );
}

/// A floor is that of one moment: once a nearer key is there, one that came later further down is
/// never the answer, although both ways to them were looked at.
#[test]
fn floors_are_of_one_moment() {
    let model = || {
        let map = map(&[b"a1", b"a5", b"c7", b"c8"]);
        both(
            &map,
            |map| {
                map.insert(b"c5", 0);
                map.insert(b"a9", 0);
            },
            |map| {
                let (floor, _) = map.floor(b"c6").expect("there is always a lesser key");
                assert!(floor == b"a5" || floor == b"c5", "{floor:?}");
            },
        );
    };
    shuttle::check_random(model, iterations());
    shuttle::check_pct(model, iterations(), 3);
}

/// Two writers of one key and a sealer: what is sealed holds what was accepted, whole.
#[test]
fn a_seal_divides_writers() {
    use spinney_art::{AppendedMap, Pinned};
    shuttle::check_random(
        || {
            let map = Arc::new(AppendedMap::new());
            let write = |map: Arc<AppendedMap>, stamp: u8| {
                shuttle::thread::spawn(move || {
                    let accepted = [b"a", b"b", b"a"]
                        .map(|key| map.put(key, stamp, &[stamp; 9], &Pinned::new()).is_ok());
                    assert!(accepted.is_sorted_by(|a, b| a >= b), "none after a refusal");
                })
            };
            let writers = [write(Arc::clone(&map), 1), write(Arc::clone(&map), 2)];
            let chunks = map.seal();
            let sealed: Vec<Vec<u8>> = chunks.iter().map(|chunk| chunk.to_vec()).collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            assert!(chunks.iter().zip(&sealed).all(|(chunk, sealed)| **chunk == sealed[..]));
            let pinned = Pinned::new();
            let all = (Bound::Unbounded, Bound::Unbounded);
            for entry in map.range(all.0, all.1, Direction::Forward, &pinned) {
                let place = entry.place();
                assert_eq!(chunks[place.chunk][place.key..][1..10], [entry.tag(); 9]);
            }
        },
        iterations(),
    );
}
