//! Memory of replaced records is used again. Alone in its program: whoever else is pinned holds it back.
#![cfg(not(feature = "shuttle"))]

use spinney_art::{AppendedMap, Pinned};

/// Few hot keys take no more than they need, whatever is written to them: what nobody can see any more
/// is used again.
#[test]
fn what_was_replaced_is_used_again() {
    let map = AppendedMap::new();
    for round in 0..100_000_u32 {
        let pinned = Pinned::new();
        let value = [round.to_be_bytes(), round.to_be_bytes()].concat().repeat(8);
        map.put(&(round % 10).to_be_bytes(), 0, &value, &pinned).unwrap();
    }
    assert!(map.appended_bytes() < 1 << 20, "{} of 8 MB", map.appended_bytes());
    assert!(map.unused_bytes() < map.appended_bytes());
}
