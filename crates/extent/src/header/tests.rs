//! The bytes of headers, and what is refused.

use super::*;
use proptest::prelude::*;

fn sample() -> (BlockHeader, [u8; PAGE_BYTES]) {
    let header = BlockHeader {
        kind: BlockKind::DATA,
        page: PageNumber(128),
        generation: Generation(7),
        keyspace: KeyspaceId(3),
        lsn: Lsn(513),
    };
    let mut block = [0; PAGE_BYTES];
    header.seal(&mut block);
    (header, block)
}

#[test]
fn golden_bytes() {
    let (header, block) = sample();
    assert_eq!(
        block[8..32],
        [1, 1, 0, 0, 0x80, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(BlockHeader::decode(&block).unwrap(), header);
}

#[test]
fn every_flipped_bit_is_caught() {
    let (_, block) = sample();
    for bit in (0..PAGE_BYTES * 8).step_by(7) {
        let mut damaged = block;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(BlockHeader::decode(&damaged).is_err(), "bit {bit}");
    }
    assert!(BlockHeader::decode(&[0; PAGE_BYTES]).is_err());
}

#[test]
fn a_copy_is_no_page() {
    let (header, block) = sample();
    let mut copy = block;
    BlockHeader::name_batch(&mut copy, 0x1234);
    assert_eq!(copy[10..12], [0x34, 0x12]);
    assert_eq!(BlockHeader::decode_copy(&copy).unwrap(), (header, 0x1234));
    assert!(BlockHeader::decode(&copy).is_err());
    BlockHeader::name_batch(&mut copy, 0);
    assert_eq!(copy, block);
}

const WIDE: BlockKind = BlockKind::wide(9, "bucket");

fn wide(order: u8, fill: u8) -> (BlockHeader, Vec<u8>) {
    let header = BlockHeader { kind: WIDE, ..sample().0 };
    let mut block = vec![fill; PAGE_BYTES << order];
    header.seal(&mut block);
    (header, block)
}

#[test]
fn golden_bytes_of_a_wide_block() {
    for order in 0..=WIDE_ORDER_MAX {
        let (header, block) = wide(order, 7);
        assert_eq!(block[8..16], [9, 2, order, 0, 0x80, 0, 0, 0]);
        assert_eq!(block[16..32], sample().1[16..32]);
        assert_eq!(BlockHeader::decode(&block).unwrap(), header);
        assert!(WIDE.reads(header.kind) && BlockHeader::stored_order(&block) == order);
    }
    let (_, block) = wide(2, 0);
    assert_eq!(u64_at(&block, 0), 0xea4e_2065_667e_a10a);
}

#[test]
fn every_flipped_bit_of_a_wide_block_is_caught() {
    let (_, block) = wide(2, 7);
    for bit in (0..block.len() * 8).step_by(61) {
        let mut damaged = block.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(BlockHeader::decode(&damaged).is_err(), "bit {bit}");
    }
}

/// Parts of two versions of a block, of which each alone is whole.
#[test]
fn p18_a_wide_block_torn_between_pages_is_caught() {
    for order in 1..=WIDE_ORDER_MAX {
        let versions = [wide(order, 1).1, wide(order, 2).1];
        for parts in 1..(1 << (1 << order)) - 1 {
            let mut torn = versions[0].clone();
            for part in (0..1 << order).filter(|part| parts & 1 << part != 0) {
                let bytes = part * PAGE_BYTES..(part + 1) * PAGE_BYTES;
                torn[bytes.clone()].copy_from_slice(&versions[1][bytes]);
            }
            assert!(BlockHeader::decode(&torn).is_err(), "parts {parts:b} of order {order}");
        }
    }
}

proptest! {
    #[test]
    fn nonsense_does_not_panic(order in 0u8..3, begin in prop::collection::vec(0u8..5, 32), sums in any::<bool>()) {
        let mut block = vec![0; PAGE_BYTES << order];
        block[..HEADER_BYTES].copy_from_slice(&begin);
        if sums {
            sum(&mut block);
        }
        // No block has a wide kind's order and not its bytes.
        let named = u16_at(&block, BATCH);
        match BlockHeader::decode(&block) {
            Ok(_) => prop_assert_eq!(named, u16::from(order)),
            Err(damage) => drop(damage),
        }
    }
}

#[test]
fn another_order_is_named() {
    let [one, two, four] = [0, 1, 2].map(|order| wide(order, 7).1);
    let longer = |block: &[u8]| [block, &vec![7; four.len() - block.len()]].concat();
    let orders = |expected, found| {
        Damage::new(format!("a block of order {expected}"), format!("a block of order {found}"))
    };
    assert_eq!(BlockHeader::decode(&longer(&one)).unwrap_err(), orders(2, 0));
    assert_eq!(BlockHeader::decode(&longer(&two)).unwrap_err(), orders(2, 1));
    // Of a longer block only a part was read, so only its header can be told.
    for (block, order) in [(&two, 1), (&four, 2)] {
        let damage = BlockHeader::decode(&block[..PAGE_BYTES]).unwrap_err();
        assert!(damage.expected.starts_with("a block of order 0, with checksum "));
        assert!(damage.found.ends_with(&format!(", in a header of a block of order {order}")));
    }
    // A sum over bytes that the order does not cover.
    let mut wrong = four.clone();
    wrong[BATCH] = 1;
    sum(&mut wrong);
    assert_eq!(BlockHeader::decode(&wrong).unwrap_err(), orders(2, 1));
    // Other kinds have one page, and their versions.
    let narrow = BlockKind::new(9, "bucket");
    assert!(!narrow.reads(BlockHeader::decode(&one).unwrap().kind));
}

#[test]
#[should_panic(expected = "has one page")]
fn other_kinds_have_one_page() {
    sample().0.seal(&mut vec![0; 2 * PAGE_BYTES]);
}

#[test]
fn a_block_elsewhere_is_caught() {
    let (_, block) = sample();
    let check = |kind, keyspace, page, generation| {
        BlockHeader::check(
            &block,
            std::path::Path::new("f"),
            kind,
            KeyspaceId(keyspace),
            PageNumber(page),
            Generation(generation),
        )
    };
    assert!(check(BlockKind::DATA, 3, 128, 7).is_ok());
    for error in [
        check(BlockKind::SLOT, 3, 128, 7),
        check(BlockKind::DATA, 4, 128, 7),
        check(BlockKind::DATA, 3, 129, 7),
        check(BlockKind::DATA, 3, 128, 8),
    ] {
        assert!(error.unwrap_err().is_corruption());
    }
}
