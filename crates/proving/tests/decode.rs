//! Bytes from disk may be anything: every decoder answers or refuses, and none panics.
//!
//! Two ways in: arbitrary bytes straight into the decoders, and whole databases in which a block
//! was changed and its checksum made right again, so that what lies behind the checksum is reached
//! as well.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use spinney::{Db, Durability, EngineKind, KeyspaceOptions, Options};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Epoch, KeyspaceId, Lsn, PageNumber, Runtime};
use spinney_db::fuzzing;
use spinney_extent::{BlockHeader, LargePointer, Slot};
use spinney_io::sim::SimDisk;
use spinney_io::{AlignedBuf, OpenMode, Purpose};
use spinney_page::{PageEditor, PageView};
use spinney_proving::tier::{self, Random};
use spinney_wal::block::{self, BlockHeader as LogHeader};
use spinney_wal::superblock::Superblock;
use xxhash_rust::xxh3::xxh3_64;

type Page = Box<[u8; PAGE_BYTES]>;

/// A page that is zero but for some runs of arbitrary bytes, mostly near its head, where the fields
/// are.
fn page() -> impl Strategy<Value = Page> {
    let run = (0usize..PAGE_BYTES, 0usize..6, prop::collection::vec(any::<u8>(), 1..40));
    prop::collection::vec(run, 0..12).prop_map(|runs| {
        let mut page = Box::new([0; PAGE_BYTES]);
        for (at, shift, bytes) in runs {
            let at = at >> (2 * shift);
            let end = (at + bytes.len()).min(PAGE_BYTES);
            page[at..end].copy_from_slice(&bytes[..end - at]);
        }
        page
    })
}

fn reseal(page: &mut [u8; PAGE_BYTES]) {
    let checksum = xxh3_64(&page[8..]);
    page[..8].copy_from_slice(&checksum.to_le_bytes());
}

/// Reads everything that a parsed page offers.
fn read_all(page: &[u8; PAGE_BYTES]) {
    if let Ok(view) = PageView::parse(page) {
        for index in 0..view.len() {
            let key = view.key(index);
            assert_eq!(view.find(&key), Some(view.value(index)));
            let _ = view.value(index).large.then(|| LargePointer::decode(view.value(index).bytes));
        }
        let _ = (view.search(b""), view.search(&[0xFF; 40]), view.used_bytes(), view.prefix());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(u32::try_from(tier::count(2000, 200_000)).unwrap()))]

    #[test]
    fn blocks_of_a_store((mut page, kind, version) in (page(), 0u8..5, 0u8..3)) {
        let _ = BlockHeader::decode(&page[..]);
        page[8] = kind;
        page[9] = version;
        reseal(&mut page);
        let _ = BlockHeader::decode(&page[..]);
        for slot in 0..4 {
            let _ = Slot::decode(&page, KeyspaceId(1), PageNumber(slot));
        }
        read_all(&page);
    }

    #[test]
    fn a_slotted_page_with_a_few_bytes_changed(
        prefix in prop::collection::vec(any::<u8>(), 0..10),
        records in prop::collection::btree_map(prop::collection::vec(any::<u8>(), 0..30), prop::collection::vec(any::<u8>(), 0..60), 0..40),
        changes in prop::collection::vec((0usize..PAGE_BYTES, 0usize..5, any::<u8>()), 0..6),
    ) {
        let mut page = Box::new([0; PAGE_BYTES]);
        let mut editor = PageEditor::format(&mut page, &prefix, b"origin");
        for (suffix, value) in &records {
            let key = [&prefix[..], suffix].concat();
            let _ = editor.put(&key, value);
        }
        drop(editor);
        read_all(&page);
        for (at, shift, byte) in changes {
            page[at >> (2 * shift)] ^= byte;
        }
        read_all(&page);
    }

    #[test]
    fn blocks_of_the_log(mut page in page(), tag in 0u64..2, slot in 0u64..2) {
        let _ = Superblock::decode(slot, &page);
        let _ = LogHeader::decode(tag, &page);
        let fields = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
        let small = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
        let header = LogHeader {
            epoch: Epoch(small(12) % 4),
            position: fields(16),
            first: Lsn(fields(24)),
            last: Lsn(fields(32)),
            durable: Lsn(fields(40)),
            index: small(48) % 3,
            count: small(52) % 3,
            length: small(56) % 5000,
        };
        let _ = block::payload(&page, &header);
        let _ = block::parse_record(&page[..]);
        let _ = block::parse_record(&page[64..]);
        page[8..12].copy_from_slice(b"SPWB");
        let _ = LogHeader::decode(tag, &page);
    }

    #[test]
    fn records_and_manifests(bytes in prop::collection::vec(any::<u8>(), 0..300), page in page()) {
        fuzzing::decode_anything(&bytes);
        fuzzing::decode_anything(&page[..]);
        let _ = (LargePointer::decode(&bytes), LargePointer::decode(&page[..]));
        let _ = fuzzing::decode_turtle_payload(&bytes);
        let _ = fuzzing::decode_turtle_payload(&[&[1][..], &bytes].concat());
        prop_assert!(fuzzing::manifest_round_trips(&bytes));
        prop_assert!(fuzzing::manifest_round_trips(&page[..]));
    }
}

fn open(disk: &SimDisk) -> spinney::Result<Db> {
    let options = Options::default()
        .memory(2 << 20)
        .log_bytes_max(4 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(1));
    Db::open(Path::new("/db"), options)
}

/// A database with split pages, a log tail, and a keyspace that was dropped.
fn sample(engine: EngineKind) -> SimDisk {
    let disk = SimDisk::new(1);
    let db = open(&disk).unwrap();
    let main = db.keyspace("main", KeyspaceOptions::default().engine(engine)).unwrap();
    let gone = db.keyspace("gone", KeyspaceOptions::default()).unwrap();
    gone.insert(b"k", b"v").unwrap();
    db.drop_keyspace("gone").unwrap();
    let mut random = Random::new(1, 30);
    for number in 0..600u32 {
        let length = if number % 40 == 7 { 20_000 } else { random.below(300) };
        let value = vec![b'v'; length];
        main.insert_with(number.to_be_bytes(), &value, Durability::Buffered).unwrap();
        if number == 400 {
            db.checkpoint().unwrap();
        }
    }
    db.flush().unwrap();
    disk.kill()
}

/// Changes some bytes of a page of a store file, makes its checksum right, and lets the database
/// have it.
#[test]
fn damage_behind_a_right_checksum_does_not_panic() {
    EngineKind::ALL.into_iter().for_each(damage_does_not_panic);
}

fn damage_does_not_panic(engine: EngineKind) {
    let sample = sample(engine);
    let stores: Vec<_> = sample
        .files()
        .into_iter()
        .filter(|path| path.to_string_lossy().contains("keyspace"))
        .collect();
    let path = &stores[0];
    let bytes = sample.contents(path).unwrap();
    let used: Vec<usize> = (0..bytes.len() / PAGE_BYTES)
        .filter(|page| {
            bytes[page * PAGE_BYTES..(page + 1) * PAGE_BYTES].iter().any(|byte| *byte != 0)
        })
        .collect();
    tier::for_each_seed(tier::count(250, 20_000), |seed| {
        let mut random = Random::new(seed, 31);
        let image = sample.kill();
        let file = image.open(path, OpenMode::EXISTING).unwrap();
        let mut buf = AlignedBuf::new(1);
        let offset = (*random.pick(&used) * PAGE_BYTES) as u64;
        file.read_at(buf.bytes_mut(), offset, Purpose::TOOL).unwrap();
        for _ in 0..random.within(1..4) {
            let bound = *random.pick(&[64, 160, PAGE_BYTES]);
            let at = random.below(bound);
            buf.bytes_mut()[at] = u8::try_from(random.below(256)).unwrap();
        }
        reseal(buf.page_mut(0));
        file.write_at(buf.bytes(), offset, Purpose::TOOL).unwrap();
        let Ok(db) = open(&image) else { return };
        if let Ok(main) = db.existing_keyspace("main") {
            let _ = main.iter().take(5000).filter(Result::is_err).count();
            let _ = main.iter().rev().take(5000).filter(Result::is_err).count();
            for number in (0..600u32).step_by(7) {
                let _ = main.get(number.to_be_bytes());
                let _ = main.insert(number.to_be_bytes(), [b'n'; 200]);
            }
        }
        let _ = db.verify();
        let _ = db.checkpoint();
        let _ = db.close();
    });
}

/// Data pages whose checksum is right but whose prefix is not their segment's: whoever changes them
/// says so.
#[test]
fn a_page_with_another_prefix_is_damage() {
    let sample = sample(EngineKind::TreeLine);
    let stores: Vec<_> = sample
        .files()
        .into_iter()
        .filter(|path| path.to_string_lossy().contains("keyspace"))
        .collect();
    let bytes = sample.contents(&stores[0]).unwrap();
    let mut damaged = 0;
    for (page, block) in bytes.as_chunks::<PAGE_BYTES>().0.iter().enumerate() {
        // After the double-write area.
        if page < 128 || block[8] != 1 || PageView::parse(block).is_err() {
            continue;
        }
        let view = PageView::trusted(block);
        let prefix = view.prefix();
        if prefix.is_empty() {
            continue;
        }
        for at in 0..prefix.len() {
            let mut forged = *block;
            forged[PAGE_BYTES - prefix.len() + at] ^= 0x40;
            assert_ne!(
                PageView::parse(&forged).map(|view| view.prefix().to_vec()),
                Ok(prefix.to_vec())
            );
            reseal(&mut forged);
            let image = sample.kill();
            let file = image.open(&stores[0], OpenMode::EXISTING).unwrap();
            let mut buf = AlignedBuf::new(1);
            buf.page_mut(0).copy_from_slice(&forged);
            file.write_at(buf.bytes(), (page * PAGE_BYTES) as u64, Purpose::TOOL).unwrap();
            let Ok(db) = open(&image) else { continue };
            let Ok(main) = db.existing_keyspace("main") else { continue };
            for number in 0..600u32 {
                let _ = main.insert(number.to_be_bytes(), [b'n'; 200]);
            }
            if let Err(error) = db.checkpoint() {
                assert!(error.is_corruption(), "{error}");
                damaged += 1;
            }
        }
    }
    assert!(damaged > 0, "no damage was met");
}
