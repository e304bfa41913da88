//! Bytes that are not what was written, and what cannot be: readers say so and go on living.

use proptest::prelude::*;

use super::*;

use crate::kinds::{block, purpose};

/// Whatever bit flips, a reader hears of it or gets what was written.
#[test]
fn damage_is_found() {
    let mut random = SplitMix(3);
    for round in 0..150 {
        let bed = Bed::new(1 << 20);
        let count = 1 + random.below(300);
        let model = random_model(&mut random, count);
        let leaf = bed.write(&model, 12);
        bed.chill();
        let run = leaf.description().run();
        let page = run.page(random.below(run.pages as usize) as u32);
        let offset = page.offset() + random.below(PAGE_BYTES) as u64;
        bed.disk.flip_bit(Path::new(PATH), offset, random.below(8) as u8).unwrap();
        let mut found = 0;
        for (key, value) in &model {
            let mut out = Vec::new();
            match leaf.get(key, hash(key), &mut out) {
                Ok(hit) => {
                    assert!(hit.is_some(), "round {round}");
                    assert_eq!(out, value.as_ref().map_or(&[][..], |(bytes, _)| bytes));
                }
                Err(error) => {
                    assert!(error.is_corruption() && out.is_empty());
                    found += 1;
                }
            }
        }
        let filter = leaf.section(Section::Filter);
        let in_filter = (filter.0..filter.0 + filter.1).any(|index| run.page(index) == page);
        let damaged = bed.files.counters.filter_damaged.load(Relaxed);
        assert_eq!(in_filter, damaged > 0);
        assert!(in_filter || found > 0 || model.values().all(Option::is_none), "round {round}");
        if !in_filter && page.0 - run.first.0 >= filter.0 {
            assert!(leaf.load(b"", None).unwrap_err().is_corruption());
        }
    }
}

/// Pages whose checksums hold but whose contents are anything: no reader panics or runs forever.
#[test]
fn lying_pages_are_survived() {
    let mut random = SplitMix(11);
    for _ in 0..300 {
        let bed = Bed::new(1 << 20);
        let count = 1 + random.below(500);
        let model = random_model(&mut random, count);
        let leaf = bed.write(&model, 12);
        bed.chill();
        let run = leaf.description().run();
        for _ in 0..1 + random.below(3) {
            let index = random.below(run.pages as usize) as u32;
            let mut buf = AlignedBuf::new(1);
            let store = &bed.files.store;
            store.read_run(&run, index, block::LEAF, &mut buf, Purpose::TOOL).unwrap();
            for _ in 0..1 + random.below(20) {
                // Counts and places lie at the beginning.
                let most = [16, 200, PAYLOAD][random.below(3)];
                let at = HEADER_BYTES + random.below(most);
                buf.page_mut(0)[at] = random.next_u64() as u8;
            }
            store.seal_run(&run, index, block::LEAF, &mut buf, Lsn::ZERO);
            store.write_runs(&[(run.page(index), buf.bytes())], Purpose::TOOL).unwrap();
        }
        for key in model.keys() {
            let _ = leaf.get(key, hash(key), &mut Vec::new());
            let _ = leaf.load(key, None);
        }
        let _ = leaf.load(b"", None);
        for direction in [Direction::Forward, Direction::Reverse] {
            let Ok(mut cursor) = LeafCursor::new(&leaf, Bound::Unbounded, direction) else {
                continue;
            };
            for _ in 0..2 * model.len() {
                let _ = cursor.record();
                if cursor.advance().is_err() {
                    break;
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_owns_nothing() {
    let bed = Bed::new(1 << 20);
    let used = || {
        let space = bed.files.store.space();
        u64::from(space.end_page) - space.free_pages
    };
    let before = used();
    let value = Some((vec![0; 10], false));
    let long_key = Model::from([(vec![0; KEY_BYTES_MAX + 1], value.clone())]);
    let long_value = Model::from([(vec![], Some((vec![0; VALUE_BYTES_MAX + 1], false)))]);
    for model in [Model::new(), long_key, long_value] {
        let refused = Leaf::write(&bed.files, &model, 12, Lsn::ZERO, purpose::LEAF).unwrap_err();
        assert_eq!(refused.kind(), spinney_base::ErrorKind::InvalidArgument);
    }
    bed.disk.set_capacity(Some(300 * 4096));
    let large = records(4 << 20);
    assert!(Leaf::write(&bed.files, &large, 12, Lsn::ZERO, purpose::LEAF).unwrap_err().is_full());
    assert_eq!(used(), before);
    bed.disk.set_capacity(None);
    bed.write(&Model::from([(vec![], value)]), 12);
    assert_eq!(used(), before, "dropped");
}

#[test]
fn nodes_come_back_and_own_their_pages() {
    let bed = Bed::new(0);
    let used = || {
        let space = bed.files.store.space();
        u64::from(space.end_page) - space.free_pages
    };
    let before = used();
    for length in [1, PAYLOAD - 1, PAYLOAD, PAYLOAD + 1, 5 * PAYLOAD] {
        let bytes: Vec<u8> = (0..length).map(|at| (at % 253) as u8).collect();
        let node = NodePages::write(&bed.files, &bytes, Lsn(9)).unwrap();
        assert_eq!(used() - before, length.div_ceil(PAYLOAD) as u64);
        let description = node.describe();
        std::mem::forget(node);
        let (node, read) = NodePages::open(&bed.files, &description).unwrap();
        assert_eq!(read, bytes);
        let offset = node.run().first.offset() + 100;
        bed.disk.flip_bit(Path::new(PATH), offset, 3).unwrap();
        drop(node);
        assert_eq!(used(), before);
        assert!(NodePages::write(&bed.files, &[], Lsn(9)).is_err());
    }
    for broken in [&[][..], &[0; 11], &[0; 12], &[0xff; 12]] {
        assert!(NodePages::open(&bed.files, broken).unwrap_err().is_corruption());
    }
    let node = NodePages::write(&bed.files, b"node", Lsn(9)).unwrap();
    bed.disk.flip_bit(Path::new(PATH), node.run().first.offset() + 33, 1).unwrap();
    let description = node.describe();
    std::mem::forget(node);
    assert!(NodePages::open(&bed.files, &description).unwrap_err().is_corruption());
    assert_eq!(used(), before, "who fails to open owns them no more");
}

proptest! {
    #[test]
    fn any_bytes_are_taken_apart(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..400) {
        let description = Description::decode(&bytes);
        if let Ok(description) = description {
            prop_assert_eq!(&description.encode()[..], &bytes[..]);
            let _ = (description.run(), Head::decode(&bytes, &description));
        }
        let _ = IndexNode::decode(&bytes, at);
        if let Ok(page) = KeyPage::decode(&bytes) {
            for group in 0..page.groups().min(300) {
                if let Ok(group) = page.group(group) {
                    let _ = group.search(&bytes);
                    let _ = group.items(|_| Ok(()));
                }
            }
            let _ = page.item(at);
        }
    }

    #[test]
    fn descriptions_come_back(bytes: [u8; Description::BYTES]) {
        if let Ok(description) = Description::decode(&bytes) {
            prop_assert_eq!(description.encode(), bytes);
            prop_assert!(description.run().pages >= 2);
            prop_assert!(description.first != PageNumber(u32::MAX));
        }
    }
}
