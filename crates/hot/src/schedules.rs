//! What readers, writers and sweeps owe each other, under schedules that may stop a thread at any latch
//! or atomic: `cargo test -p spinney-hot --features shuttle --lib schedules`.

use std::sync::Arc;

use shuttle::thread::{JoinHandle, spawn};
use spinney_base::schedules::check;
use spinney_base::shim::atomic::Ordering::SeqCst;

use crate::threads::Shared;
use crate::{Direction, Piece, Records};

fn thread(shared: &Arc<Shared>, body: impl FnOnce(&Shared) + Send + 'static) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    spawn(move || body(&shared))
}

fn world(keys: u64) -> Arc<Shared> {
    let shared = Arc::new(Shared::new(1 << 20, keys, 1));
    (0..keys).for_each(|number| shared.write(number));
    shared
}

/// H1, H2, H3: a record that leaves while it is read, written and promoted is never an older one.
#[test]
fn h2_a_put_between_copy_and_end_is_kept() {
    check(3_000, || {
        let shared = world(1);
        let sweeper = thread(&shared, |shared| (0..3).for_each(|_| shared.sweep()));
        let reader = thread(&shared, |shared| (0..3).for_each(|_| shared.read(0)));
        (0..2).for_each(|_| shared.write(0));
        shared.read(0);
        sweeper.join().unwrap();
        reader.join().unwrap();
        shared.read(0);
        shared.tier.check().unwrap();
    });
}

/// H5: nobody meets a new value that is not dirty yet.
#[test]
fn h5_a_put_is_dirty_at_once() {
    check(3_000, || {
        let shared = world(2);
        let sweeper = thread(&shared, |shared| (0..4).for_each(|_| shared.sweep()));
        (0..2).for_each(|_| shared.write(1));
        shared.read(1);
        sweeper.join().unwrap();
        shared.read(1);
    });
}

/// A leaf splits under those who look for its keys.
#[test]
fn a_split_hides_no_key() {
    check(2_000, || {
        let shared = world(12);
        let writer = thread(&shared, |shared| (2..8).for_each(|number| shared.write_new(number)));
        let reader =
            thread(&shared, |shared| [0, 5, 11].into_iter().for_each(|key| shared.read(key)));
        shared.write(6);
        shared.read(6);
        writer.join().unwrap();
        reader.join().unwrap();
        (0..12).for_each(|number| shared.read(number));
        shared.tier.check().unwrap();
    });
}

/// Leaves join while the hand passes; what stays is found, and a range has each key once.
#[test]
fn the_hand_hides_no_key() {
    check(1_500, || {
        let shared = world(12);
        (0..12).for_each(|number| shared.write_new(number));
        let sweeper = thread(&shared, |shared| (0..3).for_each(|_| shared.sweep()));
        let reader = thread(&shared, |shared| {
            let (mut from, mut last, mut piece) = (Some(Vec::new()), Vec::new(), Piece::default());
            while let Some(at) = from {
                shared.tier.range(Some(&at), Direction::Forward, usize::MAX, &mut piece);
                for record in piece.records.iter() {
                    assert!(record.key > &last[..]);
                    last = record.key.to_vec();
                }
                from = piece.upper.take();
            }
        });
        [3, 8].into_iter().for_each(|number| {
            shared.write(number);
            shared.read(number);
        });
        sweeper.join().unwrap();
        reader.join().unwrap();
        (0..12).for_each(|number| shared.read(number));
        shared.tier.check().unwrap();
    });
}

/// H8: a gap bit that is set says the truth, whatever leaves meanwhile.
#[test]
fn h8_no_gap_bit_is_set_for_what_has_left() {
    check(2_000, || {
        let shared = world(4);
        // The middle ones are clean, and nobody asks for them.
        (0..3).for_each(|_| shared.sweep());
        [0, 3].into_iter().for_each(|number| shared.write(number));
        shared.read(1);
        let sweeper = thread(&shared, |shared| (0..2).for_each(|_| shared.sweep()));
        (0..2).for_each(|_| shared.promote_first_leaf());
        sweeper.join().unwrap();
        let mut piece = Piece::default();
        shared.tier.range(None, Direction::Forward, usize::MAX, &mut piece);
        shared.no_cold_record_in_a_gap(&piece);
        shared.done.store(true, SeqCst);
    });
}

/// H3, H8: a range that enters whole while its leaf divides, and others write and sweep there, hides no newer value.
#[test]
fn h8_a_range_enters_beside_writers() {
    check(2_000, || {
        let shared = world(10);
        (0..4).for_each(|_| shared.sweep());
        let sweeper = thread(&shared, |shared| (0..2).for_each(|_| shared.sweep()));
        let promoter = thread(&shared, |shared| (0..2).for_each(|_| shared.promote_first_leaf()));
        for number in [1, 4, 7] {
            shared.write(number);
            shared.read(number);
        }
        promoter.join().unwrap();
        sweeper.join().unwrap();
        let mut piece = Piece::default();
        shared.tier.range(None, Direction::Forward, usize::MAX, &mut piece);
        shared.no_cold_record_in_a_gap(&piece);
        (0..10).for_each(|number| shared.read(number));
        shared.tier.check().unwrap();
        shared.done.store(true, SeqCst);
    });
}
