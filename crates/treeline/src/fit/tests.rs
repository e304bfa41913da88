//! The rules of [`fit`](super) on generated records, and the statistics of its datasets.

use super::*;
use proptest::prelude::*;
use spinney_base::runtime::SplitMix;

const CAPACITY: usize = 4016;

/// Records of 8-byte keys and one size.
fn numbers(keys: &[u64]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.to_be_bytes().to_vec()).collect()
}

fn sized(keys: &[Vec<u8>], bytes: usize) -> Vec<Sized<'_>> {
    keys.iter().map(|key| (key.as_slice(), bytes)).collect()
}

/// `count` different numbers from 1 to `most`, in order.
fn uniform(count: usize, most: u64, seed: u64) -> Vec<u64> {
    let mut random = SplitMix(seed);
    let mut keys: Vec<u64> = (0..count).map(|_| random.next_u64() % most + 1).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The rules that hold for all input; returns the pages' loads.
fn check(
    fit: &Fit,
    lower: &[u8],
    upper: Option<&[u8]>,
    records: &[Sized<'_>],
    pieces: &[Piece],
) -> Vec<usize> {
    let mut loads = Vec::new();
    let mut end = 0;
    assert_eq!(pieces[0].lower, lower);
    for (index, piece) in pieces.iter().enumerate() {
        assert_eq!(piece.records.start, end, "pieces follow each other");
        end = piece.records.end;
        assert!((piece.order > 0) == piece.model.is_some());
        let bears_only = is_first_page(piece);
        assert!(piece.order <= fit.orders_max || bears_only);
        let upper = pieces.get(index + 1).map_or(upper, |next| Some(&next.lower));
        if let Some(next) = pieces.get(index + 1) {
            assert!(!piece.records.is_empty());
            assert!(
                next.lower.as_slice() > records[end - 1].0,
                "the bound is above the piece before"
            );
        }
        let here = &records[piece.records.clone()];
        assert!(here.first().is_none_or(|(key, _)| *key >= piece.lower.as_slice()));
        let mut pages = vec![(0, 0); piece.pages() as usize];
        let mut before = 0;
        for (key, bytes) in here {
            let page = piece.page(key);
            assert!(page >= before, "pages rise with the keys");
            before = page;
            let (count, load) = &mut pages[page as usize];
            (*count, *load) = (*count + 1, *load + bytes);
        }
        let emptiest = pages.iter().map(|(_, load)| *load).min().unwrap_or(0);
        let origin = origin_bytes(&piece.lower, upper, piece.model.is_some());
        let room = (ORIGIN_BYTES + fit.capacity_bytes).saturating_sub(emptiest);
        assert!(!fit.origins || origin <= room || bears_only, "{origin} bytes of {room}");
        for (count, load) in pages {
            assert!(load <= fit.capacity_bytes || count == 1, "{load} bytes in a page");
            loads.push(load);
        }
        if let Some(model) = piece.model {
            let stored = Model::from_bytes(&model.to_bytes(), &piece.lower);
            assert_eq!(stored.unwrap(), model, "the bound begins with the prefix");
        }
    }
    assert_eq!(end, records.len(), "all records are laid out");
    loads
}

/// Whether all records are in the first of two pages.
fn is_first_page(piece: &Piece) -> bool {
    let only = Model::line(0, 0, 0.0, 0.0).unwrap();
    piece.order == 1 && piece.model == Some(only)
}

fn pages_per_segment(pieces: &[Piece]) -> f64 {
    f64::from(pieces.iter().map(Piece::pages).sum::<u32>()) / pieces.len() as f64
}

fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let byte = prop_oneof![Just(0_u8), Just(255), b'a'..b'e', any::<u8>()];
    let tail = prop::collection::vec(byte, 0..12);
    let head = prop_oneof![
        Just(Vec::new()),
        Just(b"https://www.".to_vec()),
        Just(b"https://www.spinney.example/path/".to_vec()),
        Just(vec![255; 9]),
    ];
    prop::collection::btree_set((head, tail).prop_map(|(head, tail)| [head, tail].concat()), 0..300)
        .prop_map(|keys| keys.into_iter().collect())
}

/// Small and large goals, so that every way out is taken.
fn fits() -> impl Strategy<Value = Fit> {
    let switches = (any::<bool>(), any::<bool>(), any::<bool>());
    (1_usize..400, 0_usize..100, 0_usize..200, 0_u8..5, switches).prop_map(
        |(goal_bytes, epsilon_bytes, more, orders_max, (even, steps, origins))| Fit {
            goal_bytes,
            epsilon_bytes,
            capacity_bytes: goal_bytes + more,
            orders_max,
            even,
            steps,
            origins,
        },
    )
}

proptest! {
    #[test]
    fn the_rules_hold_for_any_records(
        fit in fits(), keys in keys(), seed: u64, most in 1_usize..120, lower_length in 0_usize..40,
    ) {
        let mut random = SplitMix(seed);
        let records: Vec<Sized<'_>> =
            keys.iter().map(|key| (key.as_slice(), random.below(most) + 1)).collect();
        let first = keys.first().map_or(&[][..], Vec::as_slice);
        let lower = &first[..first.len().min(lower_length)];
        let last = keys.last().filter(|_| seed.is_multiple_of(2));
        let upper = last.map(|last| [last.as_slice(), &[0]].concat());
        let upper = upper.as_deref();
        check(&fit, lower, upper, &records, &fit.pieces(lower, upper, &records));
    }

    #[test]
    fn records_of_one_size_behave_as_records(
        seed: u64, scale in 0_u32..8, goal in 2_usize..45, halves in 0_usize..20,
    ) {
        // A power of two, with which floats round alike.
        let (size, halves) = (1 << scale, halves.min(goal));
        let keys = numbers(&uniform(2000, 1_000_000, seed));
        let at = |size: usize| Fit {
            goal_bytes: 2 * goal * size,
            epsilon_bytes: halves * size,
            capacity_bytes: usize::MAX / 2,
            orders_max: 4,
            even: false,
            steps: false,
            origins: true,
        };
        let records = sized(&keys, 2 * size);
        let pieces = at(size).pieces(&[], None, &records);
        for load in check(&at(size), &[], None, &records, &pieces) {
            prop_assert!(load <= (2 * goal + 2 * halves) * size, "over goal + 2 epsilon");
        }
        // The size itself makes no difference.
        let ones = at(1).pieces(&[], None, &sized(&keys, 2));
        let shape = |pieces: &[Piece]| -> Vec<_> {
            pieces.iter().map(|piece| (piece.records.clone(), piece.order)).collect()
        };
        prop_assert_eq!(shape(&pieces), shape(&ones));
    }

    #[test]
    fn a_stream_is_cut_like_the_whole(seed: u64, size in 20_usize..300) {
        let keys = numbers(&uniform(4000, 1 << 40, seed));
        let records = sized(&keys, size);
        let fit = Fit { even: false, ..Fit::choose(Fill::Room, size, CAPACITY) };
        let mut from = 0;
        let mut last: Option<Piece> = None;
        for piece in fit.pieces(&[], None, &records) {
            let start = match &last {
                None => Start::At(&[]),
                Some(last) => last.next(&keys[from - 1], &keys[from]),
            };
            let window = (fit.window_bytes() / size + 2).min(records.len() - from);
            let cut = fit.first_piece(start, None, &records[from..from + window]);
            prop_assert_eq!(piece.records.len(), cut.records.len());
            prop_assert_eq!((&piece.lower, piece.model), (&cut.lower, cut.model));
            from = piece.records.end;
            last = Some(piece);
        }
    }
}

/// The figures of notes 1.2: the authors' optimal builder makes 1.76 pages a segment of these keys,
/// the greedy one 1.02.
fn paper_statistics(count: usize) {
    // As dense as 20 M keys in [1, 2e9].
    let keys = numbers(&uniform(count, 100 * count as u64, 42));
    let records = sized(&keys, 74);
    let fit = Fit {
        goal_bytes: 44 * 74,
        epsilon_bytes: 5 * 74,
        capacity_bytes: CAPACITY,
        orders_max: 4,
        even: false,
        steps: false,
        origins: true,
    };
    let pieces = fit.pieces(&[], None, &records);
    let loads = check(&fit, &[], None, &records, &pieces);
    let most = loads.iter().max().unwrap() / 74;
    let (segments, pages) = (pieces.len(), loads.len());
    let per_segment = pages_per_segment(&pieces);
    println!("{segments} segments, {pages} pages, {per_segment:.3} pages/segment, most {most}");
    for order in 0..=4 {
        println!("order {order}: {}", pieces.iter().filter(|piece| piece.order == order).count());
    }
    assert!(per_segment >= 1.7, "{per_segment} pages a segment");
    assert!(most <= 54, "{most} records in a page");
}

#[test]
fn a_million_uniform_keys_make_as_long_segments_as_the_authors() {
    paper_statistics(1_000_000);
}

#[test]
#[ignore = "20 M keys take a while; the figure of issue 3"]
fn twenty_million_uniform_keys_make_as_long_segments_as_the_authors() {
    paper_statistics(20_000_000);
}

#[test]
fn the_defaults_are_the_papers() {
    let fit = Fit::choose(Fill::Room, 74, CAPACITY);
    assert_eq!((fit.goal_bytes, fit.epsilon_bytes), (44 * 74, 5 * 74));
    // The paper leaves the third place of a page of 1 KiB records free, and every scan pays for it.
    let fit = Fit::choose(Fill::Room, 1024 + SLOT_BYTES, CAPACITY);
    assert_eq!((fit.goal_bytes, fit.epsilon_bytes), (3 * 1034, 0));
    let fit = Fit::choose(Fill::Room, 1900, CAPACITY);
    assert_eq!((fit.goal_bytes, fit.epsilon_bytes), (2 * 1900, 0));
    for bytes in 0..5000 {
        for fill in [Fill::Room, Fill::Packed] {
            let fit = Fit::choose(fill, bytes, CAPACITY);
            assert!(fit.goal_bytes >= 2 * fit.epsilon_bytes && fit.goal_bytes > 0);
            assert!(fit.goal_bytes + 2 * fit.epsilon_bytes <= CAPACITY);
        }
    }
}

/// Text of which no part is close to a line: syllables, some far more frequent than others.
fn word(random: &mut SplitMix) -> String {
    const SYLLABLES: [&str; 24] = [
        "an", "ba", "co", "de", "er", "fi", "go", "in", "ka", "le", "lib", "mo", "ne", "on", "per",
        "py", "qua", "re", "sta", "ti", "un", "ve", "xi", "zo",
    ];
    let often = |random: &mut SplitMix| random.below(24).min(random.below(24));
    (0..2 + random.below(3)).map(|_| SYLLABLES[often(random)]).collect()
}

fn texts(count: usize, mut text: impl FnMut(&mut SplitMix) -> String) -> Vec<Vec<u8>> {
    let mut random = SplitMix(11);
    let mut keys: Vec<Vec<u8>> = (0..count).map(|_| text(&mut random).into_bytes()).collect();
    keys.sort();
    keys.dedup();
    keys
}

#[test]
fn text_makes_segments_longer_than_a_page() {
    let long = "spinney/".repeat(25);
    let hosts = {
        let mut random = SplitMix(3);
        (0..400).map(|_| word(&mut random) + ".example").collect::<Vec<_>>()
    };
    let cases = [
        ("words", 3.5, texts(60_000, word)),
        (
            "packages",
            2.5,
            texts(60_000, |random| {
                let parts: Vec<String> = (0..1 + random.below(4)).map(|_| word(random)).collect();
                parts.join("-")
            }),
        ),
        (
            "addresses",
            2.0,
            texts(60_000, |random| {
                let host = &hosts[random.below(400).min(random.below(400)).min(random.below(400))];
                let number = random.below(10_000);
                format!("https://www.{host}/{}/{}/{number}.html", word(random), word(random))
            }),
        ),
        (
            "shared prefixes",
            3.5,
            texts(60_000, |random| format!("{long}{}", word(random) + &word(random))),
        ),
        (
            "decimals",
            3.5,
            texts(60_000, |random| format!("user{:012}", random.below(1_000_000_000))),
        ),
    ];
    for (name, least, keys) in cases {
        let mut random = SplitMix(5);
        let size = |key: &Vec<u8>| key.len() + 40 + random.below(40) + SLOT_BYTES;
        let sizes: Vec<usize> = keys.iter().map(size).collect();
        let total: usize = sizes.iter().sum();
        let records: Vec<Sized<'_>> =
            keys.iter().map(Vec::as_slice).zip(sizes.iter().copied()).collect();
        let fit = Fit::choose(Fill::Room, total / keys.len(), CAPACITY);
        let pieces = fit.pieces(&[], None, &records);
        let pages = check(&fit, &[], None, &records, &pieces).len();
        let (found, fill) = (pages_per_segment(&pieces), total * 100 / (pages * CAPACITY));
        let lines = fit
            .pieces(&[], None, &records)
            .iter()
            .filter(|piece| piece.model.is_some_and(|model| !model.is_steps()))
            .count();
        println!(
            "{name}: {found:.2} pages a segment, {lines} of {} with lines, {fill} % full",
            pieces.len()
        );
        assert!(found >= least, "{name}: {found} pages a segment");
        assert!(fill >= 70, "{name}: {fill} % full");
        // Never a longer piece, nor fuller pages, at the price of more of them.
        let single = Fit { orders_max: 0, ..fit }.pieces(&[], None, &records);
        assert!(pages * 100 <= single.len() * 108, "{name}: {pages} pages, alone {}", single.len());
    }
}

#[test]
fn even_numbers_make_the_longest_segments() {
    let keys = numbers(&(0..100_000).map(|key| key * 3 + 5_000_000).collect::<Vec<_>>());
    let fit = Fit::choose(Fill::Room, 74, CAPACITY);
    let pieces = fit.pieces(&[], None, &sized(&keys, 74));
    check(&fit, &[], None, &sized(&keys, 74), &pieces);
    assert!(pages_per_segment(&pieces) > 15.0);
}

/// Records a page, and pages, of keys without any order that are cut in regions of many sizes.
fn records_per_page(fit: &Fit, records: &[Sized<'_>], region_max: usize) -> f64 {
    let mut random = SplitMix(1);
    let (mut from, mut pages) = (0, 0);
    while from < records.len() {
        let part = &records[from..records.len().min(from + 1 + random.below(region_max))];
        let pieces = fit.pieces(part[0].0, None, part);
        pages += check(fit, part[0].0, None, part, &pieces).len();
        from += part.len();
    }
    records.len() as f64 / pages as f64
}

#[test]
fn packed_pages_are_as_full_as_is_any_good() {
    let keys = numbers(&uniform(30_000, u64::MAX - 1, 9));
    // Bytes of a record, how many fit a page, and how many there are with room and packed.
    for (bytes, most, room, packed) in
        [(74, 54, 43.0, 49.0), (400, 10, 7.5, 9.8), (1034, 3, 2.95, 2.95), (1900, 2, 1.95, 1.95)]
    {
        let records = sized(&keys, bytes);
        for (fill, least) in [(Fill::Room, room), (Fill::Packed, packed)] {
            let fit = Fit::choose(fill, bytes, CAPACITY);
            let found = records_per_page(&fit, &records, 60 * most);
            assert!(found >= least, "{bytes} bytes, {fill:?}: {found} of {most} records a page");
            assert!(fill == Fill::Packed || found <= least + 1.0, "{bytes} bytes: {found}");
        }
    }
}

/// What one page of steps has too little the next ones have too much.
#[test]
fn goals_between_two_numbers_of_records_are_met_on_average() {
    let keys = numbers(&uniform(12_000, u64::MAX - 1, 9));
    let records = sized(&keys, 1000);
    for goal_bytes in [2250, 2500, 2800] {
        let fit = Fit { goal_bytes, ..Fit::choose(Fill::Packed, 1000, CAPACITY) };
        let found = records_per_page(&fit, &records, 12_000) * 1000.0;
        assert!((found - goal_bytes as f64).abs() < 60.0, "{found} bytes a page for {goal_bytes}");
    }
}

#[test]
fn records_of_many_sizes_are_packed_too() {
    let keys = numbers(&uniform(20_000, u64::MAX - 1, 9));
    let mut random = SplitMix(4);
    for (least, spread, fill) in [(20, 100, 90), (600, 800, 75), (200, 400, 82)] {
        let records: Vec<Sized<'_>> =
            keys.iter().map(|key| (key.as_slice(), least + random.below(spread))).collect();
        let total: usize = records.iter().map(|(_, bytes)| bytes).sum();
        let fit = Fit::choose(Fill::Packed, total / records.len(), CAPACITY);
        let pieces = fit.pieces(&[], None, &records);
        let pages = check(&fit, &[], None, &records, &pieces).len();
        let found = total * 100 / (pages * CAPACITY);
        assert!(found >= fill, "{least} to {} bytes: {found} % full", least + spread);
        assert!(pages_per_segment(&pieces) > 3.0);
    }
}
