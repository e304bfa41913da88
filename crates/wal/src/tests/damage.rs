//! Damaged files: every block, cut or flipped, and bytes that nobody wrote. The answer is `Corruption` or a prefix that holds
//! everything promised; never a panic, never a record that was not written.

use proptest::prelude::*;
use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Epoch, Result};
use spinney_io::sim::CrashMode;
use spinney_io::{AlignedBuf, OpenMode, Purpose};

use super::*;
use crate::block::{self, Block, BlockFault, BlockHeader, HEADER_BYTES, Parsed, parse_record};
use crate::superblock::{SlotFault, Superblock};

/// A log of several segments that was trimmed, recycled and reopened; its last run is durable and not known to be.
fn sample() -> (SimDisk, u64) {
    let disk = disk(5);
    let log = create(&disk);
    for number in 1..=40 {
        let lsn =
            append(&log, kind(number), &payload(number, (number as usize * 331) % 5000)).unwrap();
        log.commit(lsn, Durability::Sync).unwrap();
    }
    log.trim(Lsn(20)).unwrap();
    drop(log);
    let (log, recovered) = open(&disk);
    drop(recovered);
    for number in 41..=60 {
        let lsn =
            append(&log, kind(number), &payload(number, (number as usize * 331) % 5000)).unwrap();
        log.commit(lsn, Durability::Sync).unwrap();
    }
    (disk, 60)
}

/// A disk whose log file has these bytes.
fn with_contents(bytes: &[u8]) -> SimDisk {
    let disk = disk(9);
    let file = disk.open(path(), OpenMode::CREATE.cached()).unwrap();
    for (index, block) in bytes.chunks_exact(PAGE_BYTES).enumerate() {
        let mut buf = AlignedBuf::new(1);
        buf.page_mut(0).copy_from_slice(block);
        file.write_at(buf.bytes(), (index * PAGE_BYTES) as u64, Purpose::TOOL).unwrap();
    }
    file.sync(Purpose::TOOL).unwrap();
    disk.sync_dir(Path::new("/db")).unwrap();
    disk
}

/// Opens and replays; checks every record against what `sample` wrote. The last LSN, or the error.
fn read(disk: &SimDisk) -> Result<Lsn> {
    let (_, recovered) = Log::open(&*disk.at("/db"), "wal", &tiny())?;
    recovered.replay(Lsn::ZERO, |record| {
        let number = record.lsn.0;
        assert_eq!(record.kind, kind(number));
        assert_eq!(record.payload, payload(number, (number as usize * 331) % 5000));
        Ok(())
    })?;
    Ok(recovered.last_lsn())
}

/// What a damaged copy may answer: everything but the one run that no block knows to be durable, or `Corruption`.
fn check(disk: &SimDisk, last: u64, what: &str) -> bool {
    match read(disk) {
        Ok(found) => {
            assert!(found.0 + 1 >= last, "{what}: the log ends at {found}");
            true
        }
        Err(error) => {
            assert!(error.is_corruption(), "{what}: {error}");
            false
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_noticed_or_harmless() {
    let (disk, last) = sample();
    let bytes = disk.contents(path()).unwrap();
    let mut harmless = 0;
    for block in 0..bytes.len() / PAGE_BYTES {
        for offset in [0, 9, 13, 17, 25, 33, 41, 49, 53, 57, 61, 64, 70, 2000, 4095] {
            let mut damaged = bytes.clone();
            damaged[block * PAGE_BYTES + offset] ^= 1 << (offset % 8);
            harmless += u32::from(check(
                &with_contents(&damaged),
                last,
                &format!("block {block}, byte {offset}"),
            ));
        }
    }
    assert!(harmless > 0);
}

#[test]
fn a_lost_torn_or_misdirected_block_is_noticed_or_harmless() {
    let (disk, last) = sample();
    let bytes = disk.contents(path()).unwrap();
    let blocks = bytes.len() / PAGE_BYTES;
    for block in 0..blocks {
        let range = block * PAGE_BYTES..(block + 1) * PAGE_BYTES;
        let mut damaged = bytes.clone();
        damaged[range.clone()].fill(0);
        check(&with_contents(&damaged), last, &format!("block {block} lost"));
        damaged[range.clone()].fill(0xA5);
        check(&with_contents(&damaged), last, &format!("block {block} garbage"));
        for sectors in 1..8 {
            let mut damaged = bytes.clone();
            damaged[range.start + sectors * 512..range.end].fill(0);
            check(&with_contents(&damaged), last, &format!("block {block} torn at {sectors}"));
        }
        for other in [2, blocks / 2, blocks - 1] {
            let mut damaged = bytes.clone();
            damaged.copy_within(range.clone(), other * PAGE_BYTES);
            check(&with_contents(&damaged), last, &format!("block {block} written over {other}"));
        }
    }
}

#[test]
fn a_truncated_or_extended_file_is_noticed_or_harmless() {
    let (disk, last) = sample();
    let bytes = disk.contents(path()).unwrap();
    for blocks in 0..bytes.len() / PAGE_BYTES {
        // A file cut short may lose the newest watermark with the blocks it speaks of: then the end is an end like any other.
        match read(&with_contents(&bytes[..blocks * PAGE_BYTES])) {
            Ok(found) => assert!(found.0 <= last),
            Err(error) => assert!(error.is_corruption(), "{error}"),
        }
    }
    for (fill, blocks) in [(0, 3), (0, 40), (0xFF, 5), (0x53, 64)] {
        let mut longer = bytes.clone();
        longer.resize(bytes.len() + blocks * PAGE_BYTES, fill);
        assert_eq!(read(&with_contents(&longer)).unwrap(), Lsn(last), "a tail of {fill:#x}");
    }
}

#[test]
fn a_record_stream_that_contradicts_its_sealed_blocks_is_corruption_or_other_records() {
    let (disk, _) = sample();
    let bytes = disk.contents(path()).unwrap();
    for index in 2..bytes.len() / PAGE_BYTES {
        let range = index * PAGE_BYTES..(index + 1) * PAGE_BYTES;
        let block: &Block = bytes[range.clone()].try_into().unwrap();
        let Ok(header) = BlockHeader::decode(tiny().tag, block) else { continue };
        for (offset, value) in
            [(0, 0), (0, 1), (0, 2), (0, 9), (1, 0), (1, 255), (2, 7), (3, 1), (4, 255)]
        {
            let mut forged = bytes.clone();
            let block: &mut Block = (&mut forged[range.clone()]).try_into().unwrap();
            block[HEADER_BYTES + offset] = value;
            header.seal(tiny().tag, block);
            let (_, recovered) =
                Log::open(&*with_contents(&forged).at("/db"), "wal", &tiny()).unwrap();
            let mut next = recovered.first_lsn();
            let outcome = recovered.replay(Lsn::ZERO, |record| {
                assert_eq!(record.lsn, next);
                next = next.next();
                Ok(())
            });
            match outcome {
                Ok(()) => assert_eq!(next, recovered.last_lsn().next()),
                Err(error) => assert!(error.is_corruption(), "{error}"),
            }
        }
    }
}

#[test]
fn both_superblocks_bad_is_corruption_and_the_older_one_never_loses_silently() {
    let (disk, last) = sample();
    let bytes = disk.contents(path()).unwrap();
    let mut both = bytes.clone();
    for copy in [0, PAGE_BYTES / 2, PAGE_BYTES, PAGE_BYTES * 3 / 2] {
        both[copy + 100] ^= 1;
    }
    let error = read(&with_contents(&both)).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("superblock"), "{error}");
    let kept: Vec<bool> = [0, PAGE_BYTES]
        .into_iter()
        .map(|at| {
            let mut one = bytes.clone();
            one[at + 100] ^= 1;
            one[at + PAGE_BYTES / 2 + 100] ^= 1;
            check(&with_contents(&one), last, "one superblock")
        })
        .collect();
    assert!(kept.contains(&true), "the older slot is not needed");
}

/// Every byte of the superblocks, in a log that is open and in one that was closed, with records in blocks and in
/// the tail: nothing is lost, and a closed log stays one.
#[test]
fn p28_no_byte_of_a_superblock_or_of_the_tail_s_header_loses_a_record() {
    for closed in [false, true] {
        let disk = disk(1);
        let log = create(&disk);
        put(&log, b"one", Durability::Sync).unwrap();
        put(&log, b"two", Durability::Buffered).unwrap();
        if closed {
            log.close().unwrap();
        }
        drop(log);
        let disk = disk.kill();
        let tail = Path::new("/db").join(crate::tail_name("wal"));
        let flips = (0..2 * PAGE_BYTES as u64).map(|at| (path(), at));
        let of_tail = if closed { 0 } else { PAGE_BYTES as u64 };
        for (file, at) in flips.chain((0..of_tail).map(|at| (&*tail, at))) {
            let image = disk.kill();
            image.flip_bit(file, at, (at % 8) as u8).unwrap();
            let (log, recovered) = Log::open(&*image.at("/db"), "wal", &tiny()).unwrap();
            assert_eq!((recovered.last_lsn(), log.was_closed()), (Lsn(2), closed), "{at}");
        }
        if closed {
            continue;
        }
        // With both headers gone nothing tells whether records lay behind them.
        let image = disk.kill();
        for at in [8, PAGE_BYTES as u64 / 2 + 8] {
            image.flip_bit(&tail, at, 1).unwrap();
        }
        assert!(Log::open(&*image.at("/db"), "wal", &tiny()).unwrap_err().is_corruption());
    }
}

#[test]
fn the_log_of_another_database_or_version_is_refused() {
    let (disk, _) = sample();
    let other = LogOptions { tag: 8, ..tiny() };
    assert!(Log::open(&*disk.at("/db"), "wal", &other).unwrap_err().is_corruption());
    let mut bytes = disk.contents(path()).unwrap();
    for slot in 0..2 {
        let block = &mut bytes[slot * PAGE_BYTES..(slot + 1) * PAGE_BYTES];
        block[12] = 3;
        block[96] ^= 1;
        block[PAGE_BYTES / 2 + 96] ^= 1;
        let checksum = xxhash_rust::xxh3::xxh3_64_with_seed(&block[8..], slot as u64);
        block[..8].copy_from_slice(&checksum.to_le_bytes());
    }
    let error = read(&with_contents(&bytes)).unwrap_err();
    assert_eq!(error.kind(), spinney_base::ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 3"), "{error}");
}

#[test]
fn the_golden_block_of_the_format() {
    let disk = disk(1);
    let log = create(&disk);
    append(&log, RecordKind::User, b"hi").unwrap();
    log.ensure_durable(Lsn(1)).unwrap();
    let contents = disk.contents(path()).unwrap();
    let found = &contents[2 * PAGE_BYTES..3 * PAGE_BYTES];
    let mut golden = [0; PAGE_BYTES];
    let head: [u8; 71] = [
        0xce, 0x41, 0xf2, 0xfe, 0xa6, 0xd5, 0x1f, 0x6e, 0x53, 0x50, 0x57, 0x42, 1, 0, 0, 0, //
        0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, //
        1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
        0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, //
        1, 2, 0, 0, 0, 0x68, 0x69,
    ];
    golden[..head.len()].copy_from_slice(&head);
    assert_eq!(found[..head.len()], golden[..head.len()], "{:02x?}", &found[..head.len()]);
    assert_eq!(found, golden);
}

const CHECKSUMS: [[u8; 8]; 2] = [
    [0x9e, 0x2c, 0x63, 0x6b, 0x71, 0x1c, 0xa2, 0x37],
    [0x80, 0xa2, 0x37, 0x5a, 0xbb, 0x7c, 0xe6, 0xad],
];

#[test]
fn the_golden_superblock_of_the_format() {
    let disk = disk(1);
    create(&disk);
    let contents = disk.contents(path()).unwrap();
    // Generation 2 lives in slot 0.
    let golden: [u8; 64] = [
        0x53, 0x50, 0x57, 0x53, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, //
        2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
        1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
        0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0,
    ];
    for (at, checksum) in [(0, CHECKSUMS[0]), (PAGE_BYTES / 2, CHECKSUMS[1])] {
        let found = &contents[at..at + 104];
        assert_eq!(found[8..72], golden, "{found:02x?}");
        assert_eq!(found[72..96], [0; 24]);
        assert_eq!(found[96..], checksum, "{:02x?}", &found[96..]);
    }
}

/// Life, position, first record, how many, durable watermark, blocks of the run, and what the payload is made of.
type Fields = (u32, u64, u64, u64, u64, u32, u8);

/// A log of four segments of four blocks whose blocks say so, under one superblock.
fn sealed_file(fields: &[Fields], start: u64, cut: (u64, Lsn), epoch: Epoch) -> Vec<u8> {
    let mut bytes = vec![0; 2 * PAGE_BYTES];
    let superblock = Superblock {
        tag: 7,
        generation: 4,
        start,
        start_lsn: Lsn(1),
        cut: cut.0,
        cut_lsn: cut.1,
        epoch,
        segment_blocks: 4,
        closed: None,
    };
    superblock.encode(0, (&mut bytes[..PAGE_BYTES]).try_into().unwrap());
    for (epoch, position, first, more, durable, count, noise) in fields.iter().copied() {
        let mut block: Block = [noise; PAGE_BYTES];
        let count = if more == 0 { 1 } else { count };
        let length = if count == 1 && more == 0 { 0 } else { 4032 };
        let header = BlockHeader {
            epoch: Epoch(epoch),
            position,
            first: Lsn(first),
            last: Lsn(first + more - 1),
            durable: Lsn(durable.min(first - 1)),
            index: 0,
            count,
            length,
        };
        header.seal(7, &mut block);
        bytes.extend_from_slice(&block);
    }
    bytes.resize((2 + 16) * PAGE_BYTES, 0);
    bytes
}

/// Found by `any_file_of_sealed_blocks_opens_or_is_refused`: nobody looked at what lies before the start in its segment, and
/// two lives later such a block counted.
#[test]
fn a_block_of_a_later_life_is_noticed_before_the_start() {
    let fields = [
        (1, 0, 1, 0, 0, 1, 0),
        (1, 0, 1, 0, 0, 1, 0),
        (3, 4, 3, 0, 2, 1, 0),
        (1, 0, 1, 0, 0, 1, 0),
    ];
    let disk = with_contents(&sealed_file(&fields, 3, (0, Lsn(0)), Epoch(1)));
    let error = Log::open(&*disk.at("/db"), "wal", &tiny()).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("one of life 3"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decoders_take_any_bytes(bytes in proptest::collection::vec(any::<u8>(), PAGE_BYTES), slot in 0_u64..2) {
        let block: &Block = bytes.as_slice().try_into().unwrap();
        let _ = BlockHeader::decode(7, block);
        let _ = Superblock::decode(slot, block);
        match parse_record(&bytes) {
            Parsed::Record(_, begin, end) => prop_assert!(begin <= end && end <= bytes.len()),
            Parsed::Needs(needed) => prop_assert!(needed > bytes.len()),
            Parsed::Malformed => {}
        }
    }

    /// Bytes with a right checksum and wild fields.
    #[test]
    fn sealed_nonsense_is_refused(words in proptest::collection::vec(prop_oneof![0..5_u32, any::<u32>()], 16), slot in 0_u64..2) {
        let mut block: Block = [0; PAGE_BYTES];
        for (index, word) in words.iter().enumerate() {
            block[index * 4..index * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        block[8..12].copy_from_slice(b"SPWS");
        block[12..16].copy_from_slice(&1_u32.to_le_bytes());
        let checksum = xxhash_rust::xxh3::xxh3_64_with_seed(&block[8..], slot);
        block[..8].copy_from_slice(&checksum.to_le_bytes());
        match Superblock::decode(slot, &block) {
            Ok(superblock) => {
                let mut again = [0; PAGE_BYTES];
                superblock.encode(slot, &mut again);
                prop_assert_eq!(Superblock::decode(slot, &again), Ok(superblock));
            }
            Err(fault) => prop_assert_eq!(fault, SlotFault::Damaged),
        }
    }

    /// A file of valid blocks in any order with any fields: opening answers, and never panics.
    #[test]
    fn any_file_of_sealed_blocks_opens_or_is_refused(
        fields in proptest::collection::vec((1..4_u32, 0..20_u64, 1..6_u64, 0..4_u64, 0..3_u64, 1..4_u32, any::<u8>()), 0..16),
        start in 0..12_u64, cut in 0..12_u64, cut_lsn in 0..4_u64, epoch in 1..4_u32,
    ) {
        let bytes = sealed_file(&fields, start, (cut, Lsn(cut_lsn)), Epoch(epoch));
        let disk = with_contents(&bytes);
        match Log::open(&*disk.at("/db"), "wal", &tiny()) {
            Ok((log, recovered)) => {
                // Sealed blocks of noise are no records; that is for the replay to say.
                let _ = recovered.replay(Lsn::ZERO, |_| Ok(()));
                drop(recovered);
                let last = put(&log, b"on it goes", Durability::Sync).unwrap();
                let (_, again) = Log::open(&*disk.crash(CrashMode::LoseAll).at("/db"), "wal", &tiny()).unwrap();
                prop_assert_eq!(again.last_lsn(), last);
            }
            Err(error) => prop_assert!(error.is_corruption(), "{}", error),
        }
    }
}

#[test]
fn a_block_knows_its_place() {
    let header = BlockHeader {
        epoch: Epoch(1),
        position: 9,
        first: Lsn(5),
        last: Lsn(4),
        durable: Lsn(4),
        index: 0,
        count: 1,
        length: 0,
    };
    let mut block: Block = [0; PAGE_BYTES];
    header.seal(7, &mut block);
    assert_eq!(BlockHeader::decode(7, &block), Ok(header));
    assert_eq!(BlockHeader::decode(8, &block), Err(BlockFault::Checksum));
    assert_eq!(BlockHeader::decode(7, &[0; PAGE_BYTES]), Err(BlockFault::Magic));
    assert_eq!(block::payload(&block, &header).len(), 0);
    assert_eq!(HEADER_BYTES + block::PAYLOAD_BYTES, PAGE_BYTES);
}
