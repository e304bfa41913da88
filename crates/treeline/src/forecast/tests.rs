//! Workloads of which the inserts to come are known, and any keys at all.

use super::*;
use proptest::prelude::*;

const EPOCH: u64 = 10_000;

/// A forecaster that saw so many epochs; `key` tells the key of an insert from its epoch (with the
/// part of it that has passed) and a random number.
fn after(epochs: u64, key: impl Fn(f64, u64) -> Vec<u8>) -> Forecaster {
    let forecaster = Forecaster::new(7, EPOCH, 1);
    record(&forecaster, 0..epochs * EPOCH, key);
    forecaster
}

fn record(
    forecaster: &Forecaster,
    inserts: std::ops::Range<u64>,
    key: impl Fn(f64, u64) -> Vec<u8>,
) {
    for insert in inserts {
        let random = SplitMix(insert ^ 0x5555).next_u64();
        forecaster.record(&key(insert as f64 / EPOCH as f64, random));
    }
}

fn near(found: f64, wanted: f64, within: f64) {
    assert!((found - wanted).abs() <= within, "{found} is not {wanted}");
}

/// A number as a key behind a prefix of 200 bytes.
fn long(number: u64) -> Vec<u8> {
    [&[b'k'; 200][..], &number.to_be_bytes()].concat()
}

#[test]
fn nothing_is_expected_before_an_epoch_ended() {
    let forecaster = Forecaster::new(1, EPOCH, 1);
    record(&forecaster, 0..EPOCH / 2, |_, random| random.to_be_bytes().to_vec());
    assert_eq!(forecaster.forecast(&[], None), Expected::default());
    assert_eq!(forecaster.stats().epochs, 0);
    assert_eq!(forecaster.stats().inserts, EPOCH / 2);
}

#[test]
fn uniform_inserts_go_on_as_they_were() {
    for key in [|number: u64| number.to_be_bytes().to_vec(), long] {
        let forecaster = after(6, |_, random| key(random));
        let all = EPOCH as f64;
        near(forecaster.forecast(&[], None).total(), all, all * 0.05);
        for tenth in 0..10_u64 {
            let bound = |tenth: u64| key(tenth * (u64::MAX / 10));
            let expected = forecaster.forecast(&bound(tenth), Some(&bound(tenth + 1)));
            near(expected.inside, all / 10.0, all * 0.02);
        }
        let narrow = forecaster.forecast(&key(1 << 62), Some(&key((1 << 62) + (1 << 54))));
        near(narrow.inside, all / 1024.0, 8.0);
        let stats = forecaster.stats();
        assert_eq!((stats.epochs, stats.inserts), (6, 6 * EPOCH));
        assert!(stats.came_as_forecast > stats.forecast * 0.8, "{stats:?}");
    }
}

#[test]
fn a_hot_spot_that_stays_is_expected_there() {
    // Nine of ten go to a thousandth of the keys.
    let width = u64::MAX / 1000;
    let spot = u64::MAX / 3;
    let forecaster = after(5, |_, random| {
        let hot = !random.is_multiple_of(10);
        (if hot { spot + random % width } else { random }).to_be_bytes().to_vec()
    });
    let at = |from: u64, to: u64| {
        forecaster.forecast(&from.to_be_bytes(), Some(&to.to_be_bytes())).total()
    };
    near(at(spot, spot + width), 0.9 * EPOCH as f64, 0.05 * EPOCH as f64);
    near(at(spot, spot + width / 2), 0.45 * EPOCH as f64, 0.05 * EPOCH as f64);
    near(at(0, spot), EPOCH as f64 / 30.0, 0.02 * EPOCH as f64);
}

/// A hot spot that moves by three of its own widths in an epoch, and few inserts everywhere.
fn drifting(epoch: f64, random: u64) -> Vec<u8> {
    let width = (1_u64 << 40) as f64;
    let key = if random.is_multiple_of(50) {
        random
    } else {
        (1 << 62) + ((epoch * 3.0 + (random >> 11) as f64 / (1_u64 << 53) as f64) * width) as u64
    };
    key.to_be_bytes().to_vec()
}

#[test]
fn a_drifting_hot_spot_is_followed_by_the_trend_which_answers() {
    let forecaster = after(8, drifting);
    let stats = forecaster.stats();
    assert!(stats.trend_answers, "{stats:?}");
    assert!(stats.trend_error * 2.0 < stats.histogram_error, "{stats:?}");
    let at =
        |epoch: f64| ((1_u64 << 62) + (epoch * 3.0 * (1_u64 << 40) as f64) as u64).to_be_bytes();
    let next = forecaster.forecast(&at(8.0), Some(&at(9.3))).total();
    near(next, 0.98 * EPOCH as f64, 0.15 * EPOCH as f64);
    let passed = forecaster.forecast(&at(6.9), Some(&at(7.9))).total();
    assert!(passed < 0.15 * EPOCH as f64, "{passed} where it was");
}

#[test]
fn many_epochs_of_drift_are_spread_along_its_way() {
    let forecaster = Forecaster::new(7, EPOCH, 10);
    record(&forecaster, 0..8 * EPOCH, drifting);
    let at =
        |epoch: f64| ((1_u64 << 62) + (epoch * 3.0 * (1_u64 << 40) as f64) as u64).to_be_bytes();
    for epoch in 8..16 {
        let next = forecaster.forecast(&at(f64::from(epoch)), Some(&at(f64::from(epoch) + 1.0)));
        near(next.total(), 0.98 * EPOCH as f64, 0.45 * EPOCH as f64);
    }
}

#[test]
fn appended_keys_are_expected_behind_the_last_and_nowhere_else() {
    for key in [|number: u64| number.to_be_bytes().to_vec(), long] {
        let forecaster = Forecaster::new(3, EPOCH, 1);
        let inserts = 5 * EPOCH;
        (0..inserts).for_each(|insert| forecaster.record(&key(1000 + insert)));
        let last = forecaster.forecast(&key(inserts - 500), None);
        near(last.appended, EPOCH as f64, 0.1 * EPOCH as f64);
        near(last.inside, 0.0, 0.06 * EPOCH as f64);
        let before = forecaster.forecast(&[], Some(&key(inserts - 500)));
        near(before.total(), 0.0, 0.06 * EPOCH as f64);
    }
}

#[test]
fn appends_beside_uniform_inserts_are_told_from_them() {
    // Half of the inserts append above all others.
    let forecaster = Forecaster::new(3, EPOCH, 1);
    for insert in 0..6 * EPOCH {
        let random = SplitMix(insert).next_u64() >> 1;
        let key = if insert % 2 == 0 { (1 << 63) + insert } else { random };
        forecaster.record(&key.to_be_bytes());
    }
    let edge = (1_u64 << 63).to_be_bytes();
    let below = forecaster.forecast(&[], Some(&edge));
    near(below.inside, EPOCH as f64 / 2.0, 0.06 * EPOCH as f64);
    near(below.appended, 0.0, 1.0);
    let above = forecaster.forecast(&edge, None);
    near(above.appended, EPOCH as f64 / 2.0, 0.1 * EPOCH as f64);
}

/// The workload `drift` of the benchmark: eight places a window, each as likely, and then others.
#[test]
fn places_that_jump_are_expected_an_epoch_later() {
    let forecaster = Forecaster::new(3, EPOCH, 1);
    let place =
        |window: u64, place: u64| SplitMix(window << 8 | place).next_u64() & !0xFF_FFFF_FFFF;
    let (mut expected, mut right) = (0.0, 0.0);
    for epoch in 0..60 {
        let window = epoch / 6;
        for insert in 0..EPOCH {
            let random = SplitMix(epoch * EPOCH + insert).next_u64();
            forecaster.record(&(place(window, random % 8) | random >> 24).to_be_bytes());
        }
        for hot in 0..8 {
            let bound = |end: u64| (place(window, hot) + (end << 40)).to_be_bytes();
            let found = forecaster.forecast(&bound(0), Some(&bound(1))).total();
            expected += EPOCH as f64 / 8.0;
            right += found.min(EPOCH as f64 / 8.0);
        }
    }
    assert!(right > 0.9 * expected, "{right} of {expected}");
    let stats = forecaster.stats();
    assert!(stats.came_as_forecast > 0.7 * stats.forecast, "{stats:?}");
}

#[test]
fn a_burst_is_forgotten_soon_after() {
    let spot = u64::MAX / 2;
    let forecaster = after(9, |epoch, random| {
        let burst = (4.0..5.0).contains(&epoch);
        (if burst { spot + random % 1_000_000 } else { random }).to_be_bytes().to_vec()
    });
    let expected = |forecaster: &Forecaster| {
        forecaster.forecast(&spot.to_be_bytes(), Some(&(spot + 1_000_000).to_be_bytes())).total()
    };
    near(expected(&forecaster), 0.0, 0.05 * EPOCH as f64);
    near(forecaster.forecast(&[], None).total(), EPOCH as f64, 0.05 * EPOCH as f64);
}

#[test]
fn the_same_seed_and_keys_forecast_the_same() {
    let two = [after(4, drifting), after(4, drifting)];
    assert_eq!(two[0].stats(), two[1].stats());
    let lower = (1_u64 << 62).to_be_bytes();
    assert_eq!(two[0].forecast(&lower, None), two[1].forecast(&lower, None));
}

#[test]
fn memory_is_bounded_and_reported() {
    let forecaster = after(5, |_, random| random.to_be_bytes().repeat(100));
    let bytes = forecaster.bytes();
    assert!((50_000..300_000).contains(&bytes), "{bytes} bytes");
}

#[test]
fn threads_record_at_once() {
    let forecaster = Forecaster::new(9, EPOCH, 1);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let forecaster = &forecaster;
            scope.spawn(move || {
                for insert in 0..4 * EPOCH {
                    let random = SplitMix(insert * 3 + thread).next_u64();
                    forecaster.record(&random.to_be_bytes());
                }
            });
        }
    });
    let stats = forecaster.stats();
    assert_eq!(stats.inserts, 12 * EPOCH);
    assert_eq!(stats.epochs, 12);
    // A thread that was stopped where an epoch ends may have left the next one hardly any sample.
    record(&forecaster, 0..EPOCH, |_, random| random.to_be_bytes().to_vec());
    let half = forecaster.forecast(&[], Some(&(1_u64 << 63).to_be_bytes())).total();
    near(half, EPOCH as f64 / 2.0, 0.2 * EPOCH as f64);
}

/// Many threads that append at once do so in no strict order; no room is left behind the edge.
#[test]
fn appends_out_of_order_are_appends() {
    let forecaster = Forecaster::new(3, EPOCH, 1);
    let mut random = SplitMix(5);
    for insert in 0..6 * EPOCH {
        let key = insert + random.below(100) as u64;
        forecaster.record(&key.to_be_bytes());
    }
    let all = forecaster.forecast(&[], None);
    near(all.total(), EPOCH as f64, 0.05 * EPOCH as f64);
    assert!(all.inside < 0.1 * EPOCH as f64, "{all:?}");
}

/// Not a limit for this machine's load, but far from what would be felt.
#[test]
fn recording_is_cheap() {
    let forecaster = Forecaster::new(7, 100_000, 1);
    let runtime = spinney_base::Runtime::threads();
    let began = runtime.now();
    let inserts = 1_000_000;
    record(&forecaster, 0..inserts, |_, random| random.to_be_bytes().to_vec());
    let each = (runtime.now() - began).as_nanos() / u128::from(inserts);
    println!("{each} ns an insert, its key's allocation included");
    assert!(each < 2000, "{each} ns an insert");
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0_u8), Just(255), any::<u8>()];
    let head = prop_oneof![Just(0_usize), Just(40), Just(1000)];
    (head, prop::collection::vec(byte, 0..20))
        .prop_map(|(head, tail)| [vec![9; head], tail].concat())
}

proptest! {
    #[test]
    fn any_keys_give_a_forecast_that_adds_up(
        all in prop::collection::vec(keys(), 300..900), a in keys(), b in keys(), c in keys(),
        future in 1_u32..40,
    ) {
        let forecaster = Forecaster::new(1, 64, future);
        all.iter().for_each(|key| forecaster.record(key));
        let mut bounds = [a, b, c];
        bounds.sort();
        let [a, b, c] = &bounds;
        let total = |a: &[u8], b: Option<&[u8]>| {
            let expected = forecaster.forecast(a, b);
            assert!(expected.inside >= 0.0 && expected.appended >= 0.0);
            expected.total()
        };
        let whole = total(a, Some(c));
        prop_assert!((total(a, Some(b)) + total(b, Some(c)) - whole).abs() < 1e-6);
        let everything = total(&[], None);
        let sum = total(&[], Some(a)) + whole + total(c, None);
        prop_assert!((sum - everything).abs() < 1e-6);
        let most = 70.0 * f64::from(future);
        prop_assert!(everything > 0.0 && everything <= most, "{}", everything);
    }
}
