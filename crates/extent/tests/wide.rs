//! Blocks of 1 to 4 pages: written and read side by side, what their owner does not expect is an
//! error, and salvage finds them without an owner.

use std::path::Path;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, KeyspaceId, Lsn, PageNumber, Poison, Result};

use spinney_extent::{
    BlockHeader, BlockKind, Extent, FoundPage, Store, StoreOptions, WIDE_ORDER_MAX, Wanted,
};
use spinney_io::sim::SimDisk;
use spinney_io::{AlignedBuf, Purpose};

const KEYSPACE: KeyspaceId = KeyspaceId(3);
const LEAF: BlockKind = BlockKind::wide(40, "leaf");
const NODE: BlockKind = BlockKind::wide(41, "node");
const PATH: &str = "/db/store";

fn options(keyspace: KeyspaceId) -> StoreOptions {
    StoreOptions { keyspace, double_write: true, poison: Arc::new(Poison::new()) }
}

fn create() -> (SimDisk, Store) {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    let store = Store::create(&*disk.at("/db"), "store", options(KEYSPACE), Lsn(0)).unwrap();
    store.adopt(&[]).unwrap();
    (disk, store)
}

/// Writes blocks of one batch, whose LSNs and bytes count up from 1. Returns their headers.
fn write(store: &Store, order: u8, count: u32) -> Vec<BlockHeader> {
    let (pages, generation) = store.allocate_batch(order, count).unwrap();
    let keyspace = store.keyspace();
    let headers: Vec<BlockHeader> = (1u64..)
        .zip(pages)
        .map(|(lsn, page)| BlockHeader { kind: LEAF, page, generation, keyspace, lsn: Lsn(lsn) })
        .collect();
    write_at(store, order, &headers);
    headers
}

fn write_at(store: &Store, order: u8, headers: &[BlockHeader]) {
    let mut buf = AlignedBuf::new(headers.len() << order);
    for (header, block) in headers.iter().zip(buf.bytes_mut().chunks_mut(PAGE_BYTES << order)) {
        block.fill(u8::try_from(header.lsn.0).unwrap());
    }
    store.write_wide(headers, order, &mut buf, Purpose::CHECKPOINT).unwrap();
}

/// Whether a block has the bytes of its header's LSN, from behind the header to the end.
fn is_of(header: &BlockHeader, block: &[u8]) -> bool {
    block[32..].iter().all(|byte| u64::from(*byte) == header.lsn.0)
}

fn read(store: &Store, order: u8, header: &BlockHeader) -> Result<BlockHeader> {
    let mut buf = AlignedBuf::new(1 << order);
    let BlockHeader { page, generation, kind, .. } = *header;
    let buf = buf.bytes_mut();
    let found = store.read_wide(page, order, generation, kind, buf, Purpose::LOOKUP)?;
    assert!(is_of(&found, buf));
    Ok(found)
}

#[test]
fn a_block_is_what_its_owner_expects() {
    let (disk, store) = create();
    for order in 0..=WIDE_ORDER_MAX {
        let headers = write(&store, order, 3);
        for header in &headers {
            assert_eq!(read(&store, order, header).unwrap(), *header);
        }
        let header = headers[1];
        let others = [
            BlockHeader { kind: NODE, ..header },
            BlockHeader { kind: BlockKind::new(40, "leaf"), ..header },
            BlockHeader { generation: Generation(header.generation.0 + 1), ..header },
        ];
        for other in others {
            assert!(read(&store, order, &other).unwrap_err().is_corruption());
        }
        for other in (0..=WIDE_ORDER_MAX).filter(|other| *other != order) {
            let error = read(&store, other, &header).unwrap_err();
            assert!(error.is_corruption());
            let text = error.to_string();
            for order in [order, other] {
                assert!(text.contains(&format!("a block of order {order}")), "{text}");
            }
        }
        // A block that lies where another belongs, and one of another keyspace.
        let mut block = AlignedBuf::new(1 << order);
        block.bytes_mut().fill(1);
        for other in [
            BlockHeader { page: headers[0].page, ..header },
            BlockHeader { keyspace: KeyspaceId(4), ..header },
        ] {
            other.seal(block.bytes_mut());
            store.write_runs(&[(header.page, block.bytes())], Purpose::CHECKPOINT).unwrap();
            let text = read(&store, order, &header).unwrap_err().to_string();
            assert!(text.contains("misdirected"), "{text}");
        }
        // A bit of the last page.
        let last = headers[2].page.offset() + (PAGE_BYTES << order) as u64 - 1;
        disk.flip_bit(Path::new(PATH), last, 3).unwrap();
        assert!(read(&store, order, &headers[2]).unwrap_err().is_corruption());
        assert!(read(&store, order, &headers[0]).is_ok());
    }
}

/// Names blocks one after the other, and notes which came.
struct Named<'a> {
    headers: &'a [BlockHeader],
    next: usize,
    came: Vec<usize>,
}

impl Wanted for Named<'_> {
    fn next(&mut self) -> Option<(PageNumber, Generation)> {
        let header = self.headers.get(self.next)?;
        self.next += 1;
        Some((header.page, header.generation))
    }

    fn came(&mut self, index: usize, block: &[u8]) -> Result<()> {
        assert!(is_of(&self.headers[index], block));
        self.came.push(index);
        Ok(())
    }
}

#[test]
fn many_are_written_and_read_side_by_side() {
    for order in 0..=WIDE_ORDER_MAX {
        let (disk, store) = create();
        let writes = disk.writes();
        let mut headers = write(&store, order, 16);
        // The last page of the double-write area makes room for it, and one transfer is the batch.
        assert_eq!(disk.writes() - writes, 2);
        headers.remove(5);
        // Blocks 3 and 4 of the buffer are nobody's: the run ends there.
        let places = |index: usize| if index < 3 { index } else { index + 2 };
        let wanted: Vec<_> = (0..)
            .zip(&headers)
            .map(|(index, header)| (places(index), header.page, header.generation))
            .collect();
        let mut buf = AlignedBuf::new(17 << order);
        let mut came = Vec::new();
        let reads = disk.reads();
        let mut also = |index: usize, block: &[u8]| {
            came.push(index);
            assert_eq!(block.len(), PAGE_BYTES << order);
            Ok(())
        };
        store.read_many_wide(&wanted, order, LEAF, &mut buf, Purpose::LOOKUP, &mut also).unwrap();
        assert_eq!(disk.reads() - reads, 3);
        came.sort_unstable();
        assert!(came.into_iter().eq(wanted.iter().map(|(place, ..)| *place)));
        let mut blocks = buf.bytes().chunks(PAGE_BYTES << order);
        for (index, header) in headers.iter().enumerate() {
            assert!(is_of(header, blocks.clone().nth(places(index)).unwrap()));
        }
        assert!(blocks.nth(3).unwrap().iter().all(|byte| *byte == 0));

        let mut named = Named { headers: &headers, next: 0, came: Vec::new() };
        store.read_as_found_wide(order, LEAF, &mut buf, Purpose::LOOKUP, &mut named).unwrap();
        named.came.sort_unstable();
        assert!(named.came.into_iter().eq(0..headers.len()));

        // Of several that are not what they should be the first is the error.
        for index in [9, 4] {
            let at = headers[index].page.offset() + (PAGE_BYTES << order) as u64 - 1;
            disk.flip_bit(Path::new(PATH), at, 0).unwrap();
        }
        let mut nothing = |_: usize, _: &[u8]| Ok(());
        let at = headers[4].page.offset().to_string();
        for error in [
            store.read_many_wide(&wanted, order, LEAF, &mut buf, Purpose::LOOKUP, &mut nothing),
            store.read_as_found_wide(
                order,
                LEAF,
                &mut buf,
                Purpose::LOOKUP,
                &mut Named { headers: &headers, next: 0, came: Vec::new() },
            ),
        ] {
            let error = error.unwrap_err();
            assert!(error.is_corruption() && error.to_string().contains(&at), "{error}");
        }
    }
}

/// What salvage shows of the file: first page, number of pages, and whether the block is sound.
fn shown(store: &Store) -> Vec<(u32, usize, bool)> {
    let mut shown = Vec::new();
    store
        .show_blocks(|page, header, block| {
            let is_blank = block.iter().all(|byte| *byte == 0);
            assert!(header.as_ref().is_ok_and(|header| is_of(header, block)) || header.is_err());
            if !is_blank {
                shown.push((page.0, block.len() / PAGE_BYTES, header.is_ok()));
            }
        })
        .unwrap();
    shown
}

#[test]
fn p22_salvage_finds_wide_blocks() {
    let (disk, store) = create();
    let four = write(&store, 2, 4);
    let two = write(&store, 1, 2);
    let one = write(&store, 0, 1);
    let sound = |header: &BlockHeader, pages: usize| (header.page.0, pages, true);
    let mut wanted: Vec<_> = four
        .iter()
        .map(|header| sound(header, 4))
        .chain(two.iter().map(|header| sound(header, 2)))
        .chain(one.iter().map(|header| sound(header, 1)))
        .collect();
    wanted.sort_unstable();
    assert_eq!(shown(&store), wanted);
    let kind = Store::kind_of_data(&*disk.at("/db"), "store", KEYSPACE).unwrap();
    assert_eq!(kind, Some(LEAF));

    // One is damaged in its third page: it is one damaged block.
    let damaged = four[1].page;
    disk.flip_bit(Path::new(PATH), damaged.offset() + 3 * PAGE_BYTES as u64 - 9, 0).unwrap();
    wanted.iter_mut().filter(|block| block.0 == damaged.0).for_each(|block| block.2 = false);
    assert_eq!(shown(&store), wanted);

    // One was freed, and its last two pages are another's: both are shown.
    let [first, second] = [four[2].page.0, four[2].page.0 + 2];
    write_at(&store, 1, &[BlockHeader { page: PageNumber(second), ..four[2] }]);
    wanted.retain(|block| block.0 != first);
    wanted.extend([(first, 2, false), (second, 2, true)]);
    wanted.sort_unstable();
    assert_eq!(shown(&store), wanted);

    // Without its first page nothing says what it was.
    let zeros = AlignedBuf::new(1);
    let lost = four[3].page.0;
    store.write_runs(&[(PageNumber(lost), zeros.bytes())], Purpose::CHECKPOINT).unwrap();
    wanted.retain(|block| block.0 != lost);
    wanted.extend([1, 2, 3].map(|page| (lost + page, 1, false)));
    wanted.sort_unstable();
    assert_eq!(shown(&store), wanted);
}

#[test]
fn p22_a_wide_block_is_found_or_what_is_there() {
    let (disk, store) = create();
    let header = write(&store, 2, 1)[0];
    let found = |order: u8, generation: Generation, kind: BlockKind| {
        let mut buf = AlignedBuf::new(1 << order);
        store.read_found_wide(header.page, order, generation, kind, buf.bytes_mut())
    };
    assert_eq!(found(2, header.generation, LEAF), FoundPage::Whole);
    assert!(matches!(found(2, Generation(9), LEAF), FoundPage::Other(_)));
    assert!(matches!(found(2, header.generation, NODE), FoundPage::Other(_)));
    assert!(matches!(found(1, header.generation, LEAF), FoundPage::Damaged(_)));
    disk.flip_bit(Path::new(PATH), header.page.offset() + 9000, 0).unwrap();
    assert!(matches!(found(2, header.generation, LEAF), FoundPage::Damaged(_)));
    write_at(&store, 1, &[header]);
    let FoundPage::Other(damage) = found(2, header.generation, LEAF) else { panic!("not other") };
    assert_eq!(damage.found, "a block of order 1");
    assert_eq!(found(1, header.generation, LEAF), FoundPage::Whole);
    let zeros = AlignedBuf::new(4);
    store.write_runs(&[(header.page, zeros.bytes())], Purpose::CHECKPOINT).unwrap();
    assert!(matches!(found(2, header.generation, LEAF), FoundPage::Blank(_)));
    store.release(Extent { page: header.page, order: 2 });
}
