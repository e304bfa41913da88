//! The format of a checkpoint slot, and which of the four slot pages of a store file counts (rules
//! P14 and P28).
//!
//! A slot names the newest checkpoint of a keyspace. Every slot is written twice, into two pages:
//! first into its copy, then, after a sync, into its own page, and its checkpoint counts once both
//! are durable. The slot of the next generation goes to the other pair.
//!
//! ```text
//! page       0           1           2            3
//!       +-----------+-----------+------------+------------+
//!       | even slot | odd slot  | copy of 0  | copy of 1  |
//!       +-----------+-----------+------------+------------+
//! ```
//!
//! So one damaged page never hides a promised checkpoint, and a damaged page is distinguished from
//! one that was never written: [`Slots::choose`] takes the newest slot of all pages, and refuses a
//! file in which both pages of the other pair are damaged, because they may have held a newer one.
//!
//! After the block header (kind 2; the header's generation is the low half of the slot's, its LSN
//! the redo LSN, its page the page it lies in):
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 32 | 8 | generation | one more than the slot before; even ones live in pages 0 and 2, odd ones in pages 1 and 3 |
//! | 40 | 8 | redo | recovery replays records above this LSN |
//! | 48 | 8 | structure | sequence number of the last structure change that the payload holds |
//! | 56 | 8 | payload length | bytes of the payload |
//! | 64 | 8 | payload hash | XXH3-64 of the payload |
//! | 72 | 4 | next generation | no page of this file has this generation or a higher one, until another slot says so: those below it that no page has yet are reserved for the process that wrote this slot |
//! | 76 | 4 | end | pages from here on were never used |
//! | 80 | 2 | extents | how many extents hold the payload, at most [`EXTENTS_MAX`] |
//! | 82 | 2 | reserved | zero |
//! | 84 | 12 each | extents | page u32, generation u32, order u8, three zero bytes |
//!
//! The rest is zero.
//!
//! **Released formats.** Slots of block version 1 have no copy: pages 2 and 3 belong to the
//! double-write area there. Of two of them, one damaged, the other is the newest only if the
//! damaged one says twice (in its header and in its generation) that it is the older one; else the
//! file is refused. The first checkpoint by this version makes all four pages.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, KeyspaceId, Lsn, PageNumber};

use crate::free::{Extent, ORDER_MAX};
use crate::header::{BlockHeader, BlockKind, Damage, HEADER_BYTES, u32_at, u64_at};
use crate::store::Checkpoint;

const GENERATION: usize = 32;
const REDO: usize = 40;
const STRUCTURE: usize = 48;
const PAYLOAD_LENGTH: usize = 56;
const PAYLOAD_HASH: usize = 64;
const NEXT_GENERATION: usize = 72;
const END: usize = 76;
const EXTENT_COUNT: usize = 80;
const EXTENTS: usize = 84;
const EXTENT_BYTES: usize = 12;
const _: () = assert!(GENERATION == HEADER_BYTES);
const _: () = assert!(EXTENTS + EXTENTS_MAX * EXTENT_BYTES <= PAGE_BYTES);

/// Pages of a store file that hold slots.
pub const SLOT_PAGES: u32 = 4;

/// Most extents that one payload may lie in.
pub const EXTENTS_MAX: usize = 256;

/// Content of a slot: a published checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Number of the checkpoint in this store.
    pub generation: u64,
    /// Recovery replays records above this LSN.
    pub redo: Lsn,
    /// Last structure change in the payload.
    pub structure: u64,
    /// Length of the payload, in bytes.
    pub payload_length: u64,
    /// XXH3-64 of the payload.
    pub payload_hash: u64,
    /// Generation of the next allocated page.
    pub next_generation: Generation,
    /// First page that was never used, before the sync that made the payload durable.
    pub end: PageNumber,
    /// Extents of the payload, in order.
    pub extents: Vec<(Extent, Generation)>,
}

impl Slot {
    /// Returns the page of a slot of `generation`.
    #[must_use]
    pub fn page(generation: u64) -> PageNumber {
        PageNumber(u32::from(!generation.is_multiple_of(2)))
    }

    /// Returns what the checkpoint holds beside its payload.
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint { redo: self.redo, structure: self.structure }
    }

    /// Says what is wrong with a file of `bytes` that has this slot, if it ends too early.
    pub(crate) fn too_long_for(&self, bytes: u64) -> Option<Damage> {
        let needed = self.end.offset();
        let expected = format!("a file of at least {needed} bytes");
        (bytes < needed).then(|| Damage::new(expected, format!("{bytes} bytes (truncated)")))
    }

    /// Returns the number of pages of the payload.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.extents.iter().map(|(extent, _)| u64::from(extent.pages())).sum()
    }

    /// Returns the page of the copy of a slot of `generation`.
    #[must_use]
    pub fn copy_page(generation: u64) -> PageNumber {
        PageNumber(Self::page(generation).0 + 2)
    }

    /// Encodes the slot into a block for `page`, its own or that of its copy, and seals it.
    ///
    /// # Panics
    /// When there are more extents than [`EXTENTS_MAX`]; the store refuses such a payload before.
    pub fn encode(&self, keyspace: KeyspaceId, page: PageNumber, block: &mut [u8; PAGE_BYTES]) {
        assert!(self.extents.len() <= EXTENTS_MAX, "the store bounds the extents of a payload");
        block.fill(0);
        block[GENERATION..GENERATION + 8].copy_from_slice(&self.generation.to_le_bytes());
        block[REDO..REDO + 8].copy_from_slice(&self.redo.0.to_le_bytes());
        block[STRUCTURE..STRUCTURE + 8].copy_from_slice(&self.structure.to_le_bytes());
        block[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 8]
            .copy_from_slice(&self.payload_length.to_le_bytes());
        block[PAYLOAD_HASH..PAYLOAD_HASH + 8].copy_from_slice(&self.payload_hash.to_le_bytes());
        block[NEXT_GENERATION..NEXT_GENERATION + 4]
            .copy_from_slice(&self.next_generation.0.to_le_bytes());
        block[END..END + 4].copy_from_slice(&self.end.0.to_le_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
        block[EXTENT_COUNT..EXTENT_COUNT + 2]
            .copy_from_slice(&(self.extents.len() as u16).to_le_bytes());
        for (index, (extent, generation)) in self.extents.iter().enumerate() {
            let at = EXTENTS + index * EXTENT_BYTES;
            block[at..at + 4].copy_from_slice(&extent.page.0.to_le_bytes());
            block[at + 4..at + 8].copy_from_slice(&generation.0.to_le_bytes());
            block[at + 8] = extent.order;
        }
        self.header(keyspace, page).seal(block);
    }

    /// Decodes the slot in page `page` of `keyspace`'s file.
    ///
    /// # Errors
    /// What was expected and found.
    pub fn decode(
        block: &[u8; PAGE_BYTES],
        keyspace: KeyspaceId,
        page: PageNumber,
    ) -> Result<Slot, Damage> {
        let header = BlockHeader::decode(block)?;
        let count = usize::from(u16::from_le_bytes([block[EXTENT_COUNT], block[EXTENT_COUNT + 1]]));
        if count > EXTENTS_MAX {
            return Err(Damage::new(format!("at most {EXTENTS_MAX} extents"), count));
        }
        let mut extents = Vec::with_capacity(count);
        for index in 0..count {
            let at = EXTENTS + index * EXTENT_BYTES;
            let extent = Extent { page: PageNumber(u32_at(block, at)), order: block[at + 8] };
            if extent.order > ORDER_MAX || !extent.page.0.is_multiple_of(extent.pages()) {
                return Err(Damage::new("an aligned extent", format!("{extent:?}")));
            }
            extents.push((extent, Generation(u32_at(block, at + 4))));
        }
        let slot = Slot {
            generation: u64_at(block, GENERATION),
            redo: Lsn(u64_at(block, REDO)),
            structure: u64_at(block, STRUCTURE),
            payload_length: u64_at(block, PAYLOAD_LENGTH),
            payload_hash: u64_at(block, PAYLOAD_HASH),
            next_generation: Generation(u32_at(block, NEXT_GENERATION)),
            end: PageNumber(u32_at(block, END)),
            extents,
        };
        let belongs = if BlockHeader::version(block) == RELEASED_VERSION {
            Slot::page(slot.generation) == page
        } else {
            Slot::page(slot.generation).0 == page.0 % 2
        };
        let is_slot = BlockKind::SLOT.reads(header.kind);
        if !is_slot || header != slot.header(keyspace, page) || !belongs {
            return Err(Damage::new(
                format!("a slot of keyspace {keyspace} in page {page}"),
                format!("{header:?}"),
            ));
        }
        Ok(slot)
    }

    fn header(&self, keyspace: KeyspaceId, page: PageNumber) -> BlockHeader {
        let generation = low_half(self.generation);
        BlockHeader { kind: BlockKind::SLOT, page, generation, keyspace, lsn: self.redo }
    }
}

fn low_half(generation: u64) -> Generation {
    #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
    Generation(generation as u32)
}

/// Block version of slots that have no copy.
const RELEASED_VERSION: u8 = 1;

/// Result of reading the slot pages of a store file.
#[derive(Clone, Debug)]
pub struct Slots {
    /// Newest slot that was promised.
    pub newest: Slot,
    /// Whether all slots are of an earlier format, without copies.
    pub is_released: bool,
    /// Whether the newest slot's own page was written, whatever its state now. If so, its copy was
    /// durable before, with everything that it names.
    pub is_settled: bool,
    /// Pages without a slot, and what each should hold: a crash tore them, or the drive damaged
    /// them.
    pub damaged: Vec<(PageNumber, Option<Slot>, Damage)>,
}

impl Slots {
    /// Finds the newest slot in the first [`SLOT_PAGES`] pages of a file.
    ///
    /// # Errors
    /// The page and its fault, if a slot newer than all readable ones may have been promised.
    pub fn choose(
        blocks: [&[u8; PAGE_BYTES]; SLOT_PAGES as usize],
        keyspace: KeyspaceId,
    ) -> Result<Slots, (PageNumber, Damage)> {
        let pages = [0, 1, 2, 3].map(PageNumber);
        let found = pages.map(|page| Slot::decode(blocks[page.0 as usize], keyspace, page));
        let is_current = |page: PageNumber| {
            found[page.0 as usize].is_ok()
                && BlockHeader::version(blocks[page.0 as usize]) != RELEASED_VERSION
        };
        if !pages.into_iter().any(is_current) {
            let [even, odd, ..] = found;
            return Self::choose_released([even, odd], [blocks[0], blocks[1]]);
        }
        let newest = found.iter().flatten().max_by_key(|slot| slot.generation).cloned();
        let newest = newest.expect("one of them is current");
        let mut damaged = Vec::new();
        for page in pages {
            let Err(damage) = &found[page.0 as usize] else { continue };
            let other = PageNumber((page.0 + 2) % SLOT_PAGES);
            match &found[other.0 as usize] {
                Ok(slot) => damaged.push((page, Some(slot.clone()), damage.clone())),
                // Either page may have held a slot that was promised after the newest one found.
                Err(_) => return Err((page, damage.clone())),
            }
        }
        let own = &found[Slot::page(newest.generation).0 as usize];
        let is_settled = own.as_ref().map_or(true, |slot| *slot == newest);
        Ok(Slots { newest, is_released: false, is_settled, damaged })
    }

    fn choose_released(
        found: [Result<Slot, Damage>; 2],
        blocks: [&[u8; PAGE_BYTES]; 2],
    ) -> Result<Slots, (PageNumber, Damage)> {
        let slots =
            |newest, damaged| Ok(Slots { newest, is_released: true, is_settled: false, damaged });
        match found {
            [Ok(even), Ok(odd)] if even.generation > odd.generation => slots(even, Vec::new()),
            [Ok(_), Ok(odd)] => slots(odd, Vec::new()),
            [Err(damage), Err(_)] => Err((PageNumber(0), damage)),
            [Ok(slot), Err(damage)] | [Err(damage), Ok(slot)] => {
                let page = PageNumber(1 - Slot::page(slot.generation).0);
                let block = blocks[page.0 as usize];
                // A file that was created and never published has only its first slot.
                if slot.generation == 0 && block.iter().all(|byte| *byte == 0) {
                    return slots(slot, Vec::new());
                }
                let before = slot.generation.wrapping_sub(1);
                let says = (u64_at(block, GENERATION), BlockHeader::stored_generation(block));
                if says == (before, low_half(before)) {
                    return slots(slot, vec![(page, None, damage)]);
                }
                Err((page, damage))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_slot_comes_back() {
        let slot = Slot {
            generation: 9,
            redo: Lsn(77),
            structure: 5,
            payload_length: 5000,
            payload_hash: 42,
            next_generation: Generation(12),
            end: PageNumber(400),
            extents: vec![(Extent { page: PageNumber(130), order: 1 }, Generation(11))],
        };
        let mut block = [0; PAGE_BYTES];
        for page in [1, 3] {
            slot.encode(KeyspaceId(2), PageNumber(page), &mut block);
            assert_eq!(Slot::decode(&block, KeyspaceId(2), PageNumber(page)).unwrap(), slot);
            for other in (0..SLOT_PAGES).filter(|other| *other != page) {
                assert!(Slot::decode(&block, KeyspaceId(2), PageNumber(other)).is_err());
            }
            assert!(Slot::decode(&block, KeyspaceId(3), PageNumber(page)).is_err());
        }
    }

    /// A block as released programs wrote it.
    fn released(generation: u64) -> [u8; PAGE_BYTES] {
        let slot = Slot {
            generation,
            redo: Lsn(generation * 10),
            structure: generation,
            payload_length: 0,
            payload_hash: 0,
            next_generation: Generation(12),
            end: PageNumber(400),
            extents: Vec::new(),
        };
        let (keyspace, page) = (KeyspaceId(2), Slot::page(generation));
        let mut block = [0; PAGE_BYTES];
        slot.encode(keyspace, page, &mut block);
        BlockHeader { kind: BlockKind::new(2, "slot"), ..slot.header(keyspace, page) }
            .seal(&mut block);
        block
    }

    /// Whichever byte of a released pair is damaged, the older slot is never taken for the newest;
    /// and damage to the older one that leaves its generation alone hides nothing.
    #[test]
    fn p28_the_older_slot_of_a_released_pair_is_never_taken() {
        let empty = [0; PAGE_BYTES];
        for newest in [6, 7] {
            let (mut taken, mut refused) = (0, 0);
            for (generation, at) in [newest, newest - 1]
                .into_iter()
                .flat_map(|g| (0..PAGE_BYTES).map(move |at| (g, at)))
            {
                let mut pair = [newest, newest - 1].map(released);
                pair[usize::from(generation != newest)][at] ^= 1 << (at % 8);
                pair.rotate_right(usize::from(newest % 2 == 1));
                match Slots::choose([&pair[0], &pair[1], &empty, &empty], KeyspaceId(2)) {
                    Ok(slots) => {
                        assert_eq!(slots.newest.generation, newest, "byte {at} of {generation}");
                        taken += 1;
                    }
                    Err((page, _)) => {
                        assert_eq!(page, Slot::page(generation));
                        refused += 1;
                    }
                }
            }
            // All of the newest, and both places of the older one's generation.
            assert_eq!((taken, refused), (PAGE_BYTES - 12, PAGE_BYTES + 12));
        }
    }

    proptest! {
        /// Bytes that pass the checksum by design but are nonsense inside are refused or decoded,
        /// never a panic.
        #[test]
        fn nonsense_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), PAGE_BYTES)) {
            let mut block: [u8; PAGE_BYTES] = bytes.try_into().unwrap();
            let header = BlockHeader {
                kind: BlockKind::SLOT,
                page: PageNumber(0),
                generation: Generation(0),
                keyspace: KeyspaceId(1),
                lsn: Lsn(0),
            };
            header.seal(&mut block);
            let _ = Slot::decode(&block, KeyspaceId(1), PageNumber(0));
        }
    }
}
