//! The slotted page against a `BTreeMap`, its golden dump, and decoding of arbitrary bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, KeyspaceId, Lsn, PageNumber, ValueRef};
use spinney_extent::{BlockHeader, BlockKind};
use spinney_page::{PageEditor, PageView, Put, RECORD_BYTES_MAX, SLOT_BYTES};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn records_of(page: &[u8; PAGE_BYTES]) -> Records {
    let view = PageView::parse(page).expect("the page is whole");
    (0..view.len()).map(|index| (view.key(index), view.value(index).bytes.to_vec())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any puts and removes leave what a map would hold; a put that does not fit changes nothing,
    /// and only one that truly does not fit is refused.
    #[test]
    fn a_page_is_a_map(
        prefix in proptest::collection::vec(any::<u8>(), 0..20),
        steps in proptest::collection::vec(
            (proptest::collection::vec(0u8..4, 0..6), proptest::option::weighted(0.7, 0usize..300)), 1..300),
    ) {
        let mut page = [0; PAGE_BYTES];
        drop(PageEditor::format(&mut page, &prefix, b"origin"));
        let mut model = Records::new();
        for (number, (suffix, value)) in steps.into_iter().enumerate() {
            let key = [prefix.as_slice(), &suffix].concat();
            let mut editor = PageEditor::edit(&mut page);
            match value {
                Some(length) => {
                    let value = vec![number as u8; length];
                    let mut after = model.clone();
                    after.insert(key.clone(), value.clone());
                    let size: usize = after
                        .iter()
                        .map(|(key, value)| key.len() - prefix.len() + value.len() + SLOT_BYTES)
                        .sum();
                    let fits = size + prefix.len() + b"origin".len() + 80 <= PAGE_BYTES;
                    prop_assert_eq!(editor.put(&key, &value), if fits { Put::Done } else { Put::Full });
                    if fits {
                        model = after;
                    }
                }
                None => prop_assert_eq!(editor.remove(&key), model.remove(&key).is_some()),
            }
            drop(editor);
            prop_assert_eq!(&records_of(&page), &model);
            let view = PageView::parse(&page).unwrap();
            prop_assert_eq!(view.find(&key).map(|value| value.bytes), model.get(&key).map(Vec::as_slice));
            let below = model.range(..key.clone()).count();
            prop_assert_eq!(view.search(&key).unwrap_or_else(|index| index), below);
        }
    }

    /// No bytes make the decoder or a decoded view panic.
    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), PAGE_BYTES),
        count in 0u16..60, heap in any::<u16>(), live in any::<u16>(), prefix in 0u16..2000,
    ) {
        for (at, value) in [(32, count), (34, heap), (36, live), (38, prefix)] {
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        let page: [u8; PAGE_BYTES] = bytes.try_into().unwrap();
        if let Ok(view) = PageView::parse(&page) {
            let _ = view.find(b"key");
        }
    }

    /// A whole page with one byte changed is refused or still safe to read.
    #[test]
    fn one_changed_byte_never_panics(at in 32usize..PAGE_BYTES, byte in any::<u8>()) {
        let mut page = sample();
        page[at] = byte;
        if let Ok(view) = PageView::parse(&page) {
            for index in 0..view.len() {
                let _ = (view.key(index), view.value(index));
            }
            let _ = view.find(b"pre-07");
        }
    }
}

fn sample() -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    let mut editor = PageEditor::format(&mut page, b"pre-", b"");
    for number in (0..30).rev() {
        let key = format!("pre-{number:02}");
        assert_eq!(editor.put(key.as_bytes(), &[b'v'; 10]), Put::Done);
    }
    drop(editor);
    page
}

#[test]
fn the_largest_record_fits_any_prefix() {
    for prefix_length in [0, 1, 500, 1024] {
        let key = vec![7; 1024];
        let value = vec![1; RECORD_BYTES_MAX - key.len()];
        let mut page = [0; PAGE_BYTES];
        let mut editor = PageEditor::format(&mut page, &key[..prefix_length], b"");
        assert_eq!(editor.put(&key, &value), Put::Done);
        drop(editor);
        assert_eq!(records_of(&page), Records::from([(key, value)]));
    }
}

/// Compaction keeps every field of the block header (whoever wrote it) and every record.
#[test]
fn compaction_keeps_the_header() {
    let mut page = sample();
    let header = BlockHeader {
        kind: BlockKind::DATA,
        page: PageNumber(200),
        generation: Generation(3),
        keyspace: KeyspaceId(9),
        lsn: Lsn(77),
    };
    header.seal(&mut page);
    let before = page[..32].to_vec();
    let mut editor = PageEditor::edit(&mut page);
    for round in 1..40 {
        // Growing one value again and again makes holes until compaction closes them.
        assert_eq!(editor.put(b"pre-00", &vec![9; round * 60]), Put::Done);
    }
    drop(editor);
    assert_eq!(page[..32], before);
    assert_eq!(records_of(&page).len(), 30);
}

/// The bytes of a small page: a change of format changes this test and the golden files.
#[test]
fn golden_dump() {
    let mut page = [0; PAGE_BYTES];
    let mut editor = PageEditor::format(&mut page, b"k", b"from here");
    assert_eq!(editor.put(b"kb", b"22"), Put::Done);
    assert_eq!(editor.put(b"ka", b"1"), Put::Done);
    drop(editor);
    // count 2, heap start 4081, heap live 15, prefix length 1, origin length 9.
    assert_eq!(page[32..42], [2, 0, 0xf1, 0x0f, 15, 0, 1, 0, 9, 0]);
    assert_eq!(page[80..90], [0xf1, 0x0f, 1, 0, 1, 0, 0, 0, 0, b'a']);
    assert_eq!(page[90..100], [0xf3, 0x0f, 1, 0, 2, 0, 0, 0, 0, b'b']);
    assert_eq!(&page[4081..], b"a1b22from herek");
    assert_eq!(PageView::parse(&page).unwrap().origin(), b"from here");
}

/// Whether a value is the pointer to a large one stays with it, whatever happens around it.
#[test]
fn pointers_stay_pointers() {
    let mut page = sample();
    let mut editor = PageEditor::edit(&mut page);
    for (round, large) in [true, false, true].into_iter().enumerate() {
        for length in [10, 3, 400] {
            let bytes = vec![round as u8; length];
            let value = ValueRef { bytes: &bytes, large };
            assert_eq!(editor.put(b"pre-07", value), Put::Done);
        }
        // Makes holes until compaction closes them.
        for length in (0..1500).step_by(100) {
            assert_eq!(editor.put(b"pre-08", &vec![7; length]), Put::Done);
        }
    }
    drop(editor);
    let view = PageView::parse(&page).unwrap();
    assert_eq!(view.find(b"pre-07"), Some(ValueRef::large(&[2; 400])));
    assert!((0..view.len()).all(|index| view.value(index).large == (index == 7)));
    // Slot 7: the length of 400 with the highest bit.
    assert_eq!(page[80 + 7 * 10 + 4..][..2], [0x90, 0x81]);
}
