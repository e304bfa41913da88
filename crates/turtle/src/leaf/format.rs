//! The bytes of a leaf or segment: sections over page payloads, and how they are taken apart.
//!
//! A leaf is a run of pages (kind 5), each with its block header and 4064 bytes of payload. The
//! payloads of a section's pages, one behind the other, are one space of addresses; each section
//! begins with a page of its own.
//!
//! ```text
//! +---------------+-----------------+---------------------+-------------------------------+
//! | head, index   | filter          | keys                | values                        |
//! +---------------+-----------------+---------------------+-------------------------------+
//!   nodes of the    blocks of 32      groups of 16, none    bytes of values, without gaps,
//!   search tree,    bytes, 127 a      across two pages      over page borders
//!                   page
//! ```
//!
//! **Head** (address 0 of the index; all integers are little-endian)
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 4 | root | a *target*, as in a node |
//! | 4 | 2 | prefix length | bytes that all keys of the leaf begin with, or some of them |
//! | 6 | 2 | reserved | zero, and checked |
//! | 8 | 32 | description | [`Description`]: must be the one that led here |
//! | 40 | | prefix | |
//!
//! **Node** of the search tree, within one page: left target `u32`, right target `u32`, length
//! `u16`, separator without the prefix. A key below the separator is to the left, any other to the
//! right. A target with the highest bit is a group: page of keys (bits 8 to 30) and group of the
//! page (bits 0 to 7); without it, the address of a node. `index` says in which order nodes lie.
//!
//! **Filter**: as `spinney_filter` has it; block `b` is in page `b / 127`.
//!
//! **Page of keys**
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | index of its first item |
//! | 4 | 2 | items, at least 1 |
//! | 6 | 2 | groups; all have 16 items but the last, which has the rest |
//! | 8 | 2 each | where each group begins in the payload; the highest bit: its keys are all as long, the next: its words are all the same |
//!
//! A group of n items: address of its first value `u32`; n times where the key ends (`u16`, from
//! the first key's beginning), or once how long each key is; n times, or once, a word: operation
//! (the highest two bits: 1 a value, 2 a pointer to a large value, 3 a tombstone) and length of the
//! value (`u16`); the keys. Values of a group follow each other, so that lengths say where each
//! lies. An item costs four bytes and six for its group; ten for the group alone where keys and
//! values are as long as their neighbours, as those of most tables are.
//!
//! **Invariants**
//! 1. Keys ascend strictly, are at most [`KEY_BYTES_MAX`] long, and values at most
//!    [`VALUE_BYTES_MAX`].
//! 2. Whatever bytes are taken apart: nothing panics, loops forever or is read out of bounds; what
//!    cannot be is [`Damage`].

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, PageNumber};
use spinney_extent::header::Damage;
use spinney_extent::run::RUN_PAGES_MAX;
use spinney_extent::{HEADER_BYTES, PageRun};

use crate::run::Op;

pub(crate) use spinney_base::limits::KEY_BYTES_MAX;

/// Bytes of a page that sections are made of.
pub(crate) const PAYLOAD: usize = PAGE_BYTES - HEADER_BYTES;

/// Longest value, or pointer to one, in a leaf: longer ones lie in extents of their own.
pub(crate) const VALUE_BYTES_MAX: usize = (1 << 14) - 1;

/// Items of a group: the index has every 16th key.
pub(crate) const GROUP: usize = 16;

/// Filter blocks in a page.
pub(crate) const PAGE_BLOCKS: u32 = (PAYLOAD / spinney_filter::BLOCK_BYTES) as u32;

pub(crate) const HEAD_BYTES: usize = 8 + Description::BYTES;
pub(crate) const NODE_BYTES: usize = 10;
pub(crate) const KEYS_HEAD_BYTES: usize = 8;
/// Bytes of a group beside ends, words and keys; the place in the page's list included.
pub(crate) const GROUP_BYTES: usize = 6;
/// In the list of a page: the keys of a group are all as long; its words are all the same.
pub(crate) const SAME_LENGTH: u16 = 1 << 15;
pub(crate) const SAME_WORD: u16 = 1 << 14;

const _: () = assert!(PAYLOAD < SAME_WORD as usize);
const _: () = assert!(KEYS_HEAD_BYTES + GROUP_BYTES + 4 + KEY_BYTES_MAX <= PAYLOAD);
const _: () = assert!(HEAD_BYTES + KEY_BYTES_MAX + NODE_BYTES + KEY_BYTES_MAX <= PAYLOAD);
// A page's groups are counted by eight bits: one key of a group may be empty.
const _: () = assert!(PAYLOAD / (GROUP_BYTES + 4 + GROUP - 1) < 256);

/// The sections of a leaf, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Index,
    Filter,
    Keys,
    Values,
}

/// What has to be remembered of a leaf to read it. Thirty-two bytes:
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | first page |
/// | 4 | 4 | generation |
/// | 8 | 4 | items |
/// | 12 | 4 | bytes of head and index |
/// | 16 | 4 | blocks of the filter |
/// | 20 | 4 | pages of keys |
/// | 24 | 4 | bytes of values |
/// | 28 | 4 | what its edits take of a leaf's capacity |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) first: PageNumber,
    pub(crate) generation: Generation,
    pub(crate) items: u32,
    pub(crate) index_bytes: u32,
    pub(crate) filter_blocks: u32,
    pub(crate) key_pages: u32,
    pub(crate) value_bytes: u32,
    pub(crate) packed_bytes: u32,
}

impl Description {
    pub(crate) const BYTES: usize = 32;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let fields = [
            self.first.0,
            self.generation.0,
            self.items,
            self.index_bytes,
            self.filter_blocks,
            self.key_pages,
            self.value_bytes,
            self.packed_bytes,
        ];
        for (target, field) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(fields) {
            *target = field.to_le_bytes();
        }
        bytes
    }

    /// Decodes a description; whether it is true only reading shows.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Description, Damage> {
        let expected = "a leaf's description";
        let Ok(bytes) = <&[u8; Self::BYTES]>::try_from(bytes) else {
            return Err(Damage::new(expected, format!("{} bytes", bytes.len())));
        };
        let field = |at: usize| read_u32(bytes, at * 4).unwrap_or(0);
        let description = Description {
            first: PageNumber(field(0)),
            generation: Generation(field(1)),
            items: field(2),
            index_bytes: field(3),
            filter_blocks: field(4),
            key_pages: field(5),
            value_bytes: field(6),
            packed_bytes: field(7),
        };
        let pages: u64 = description.section_pages().iter().map(|pages| u64::from(*pages)).sum();
        let sound = description.index_bytes as usize >= HEAD_BYTES
            && (1..=description.items).contains(&description.key_pages)
            && pages <= u64::from(RUN_PAGES_MAX)
            && u64::from(description.first.0) + pages <= u64::from(u32::MAX);
        if sound { Ok(description) } else { Err(Damage::new(expected, format!("{description:?}"))) }
    }

    /// Pages of each section.
    pub(crate) fn section_pages(&self) -> [u32; 4] {
        let of_bytes = |bytes: u32| bytes.div_ceil(PAYLOAD as u32);
        [
            of_bytes(self.index_bytes),
            self.filter_blocks.div_ceil(PAGE_BLOCKS),
            self.key_pages,
            of_bytes(self.value_bytes),
        ]
    }

    /// Its pages.
    pub(crate) fn run(&self) -> PageRun {
        let pages = self.section_pages().iter().sum();
        PageRun { first: self.first, pages, generation: self.generation }
    }
}

/// Where a search continues: a node's address, or the group where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Node(u32),
    Group(GroupAt),
}

/// A group of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupAt {
    /// The page of the section of keys.
    pub(crate) page: u32,
    /// The group of the page.
    pub(crate) group: u32,
}

const IS_GROUP: u32 = 1 << 31;

impl Target {
    pub(crate) fn encode(self) -> u32 {
        match self {
            Target::Node(address) => address,
            Target::Group(at) => IS_GROUP | at.page << 8 | at.group,
        }
    }

    pub(crate) fn decode(bits: u32) -> Target {
        if bits & IS_GROUP == 0 {
            return Target::Node(bits);
        }
        Target::Group(GroupAt { page: (bits & !IS_GROUP) >> 8, group: bits & 0xff })
    }
}

/// The head of the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) root: Target,
    pub(crate) prefix: &'a [u8],
}

impl<'a> Head<'a> {
    pub(crate) fn encode(&self, description: &Description, out: &mut Vec<u8>) {
        let length = u16::try_from(self.prefix.len()).expect("a prefix of a key");
        out.extend_from_slice(&self.root.encode().to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&description.encode());
        out.extend_from_slice(self.prefix);
    }

    /// Takes apart what the index of the leaf that is described begins with.
    pub(crate) fn decode(payload: &'a [u8], description: &Description) -> Result<Head<'a>, Damage> {
        let damage = || Damage::new("the head of a leaf's index", "something else");
        let head = payload.get(..HEAD_BYTES).ok_or_else(damage)?;
        let length = read_u16(head, 4).ok_or_else(damage)? as usize;
        if head[6..8] != [0, 0] {
            return Err(damage());
        }
        if head[8..] != description.encode() {
            return Err(Damage::new("the leaf that was described", "another description"));
        }
        Ok(Head {
            root: Target::decode(read_u32(head, 0).ok_or_else(damage)?),
            prefix: payload[HEAD_BYTES..].get(..length).ok_or_else(damage)?,
        })
    }
}

/// A node of the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexNode<'a> {
    pub(crate) left: Target,
    pub(crate) right: Target,
    pub(crate) separator: &'a [u8],
}

impl<'a> IndexNode<'a> {
    /// The node at `at` of a page's payload.
    #[inline]
    pub(crate) fn decode(payload: &'a [u8], at: usize) -> Result<IndexNode<'a>, Damage> {
        let node = || {
            let length = read_u16(payload, at + 8)? as usize;
            Some(IndexNode {
                left: Target::decode(read_u32(payload, at)?),
                right: Target::decode(read_u32(payload, at + 4)?),
                separator: payload.get(at + NODE_BYTES..at + NODE_BYTES + length)?,
            })
        };
        node().ok_or_else(|| Damage::new("a node of a leaf's index", "the end of its page"))
    }
}

/// A page of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPage<'a> {
    payload: &'a [u8],
    pub(crate) first_item: u32,
    pub(crate) items: usize,
}

/// An item without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) op: Op,
    /// Where its value or pointer lies in the section of values.
    pub(crate) value: u64,
    pub(crate) value_length: usize,
}

impl<'a> KeyPage<'a> {
    pub(crate) fn decode(payload: &'a [u8]) -> Result<KeyPage<'a>, Damage> {
        let fields = || {
            let (items, groups) = (read_u16(payload, 4)? as usize, read_u16(payload, 6)? as usize);
            let sound = items > 0 && groups == items.div_ceil(GROUP);
            sound.then_some(())?;
            Some(KeyPage { payload, first_item: read_u32(payload, 0)?, items })
        };
        fields().ok_or_else(|| Damage::new("a page of keys", "counts that cannot be"))
    }

    /// How many groups it has.
    pub(crate) fn groups(&self) -> usize {
        self.items.div_ceil(GROUP)
    }

    /// A group of it.
    pub(crate) fn group(&self, group: usize) -> Result<Group<'a>, Damage> {
        let take = || {
            (group < self.groups()).then_some(())?;
            let items = (self.items - group * GROUP).min(GROUP);
            let place = read_u16(self.payload, KEYS_HEAD_BYTES + 2 * group)?;
            let bytes = self.payload.get((place & !(SAME_LENGTH | SAME_WORD)) as usize..)?;
            let same_length = place & SAME_LENGTH != 0;
            let same_word = place & SAME_WORD != 0;
            let words = 4 + 2 * if same_length { 1 } else { items };
            let keys = words + 2 * if same_word { 1 } else { items };
            let last = read_u16(bytes, words - 2)? as usize;
            let length = if same_length { last * items } else { last };
            let first = self.first_item.checked_add(u32::try_from(group * GROUP).ok()?)?;
            Some(Group {
                items,
                ends: bytes.get(4..words)?.as_chunks().0,
                same_length,
                words: bytes.get(words..keys)?.as_chunks().0,
                same_word,
                keys: bytes.get(keys..keys + length)?,
                base: read_u32(bytes, 0)?,
                first,
            })
        };
        take().ok_or_else(|| Damage::new("a group of keys", "places outside of its page"))
    }

    /// An item by its index in the page.
    pub(crate) fn item(&self, index: usize) -> Result<Item<'a>, Damage> {
        self.group(index / GROUP)?.item(index % GROUP)
    }
}

/// A group of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<'a> {
    items: usize,
    /// Where each key ends, or the length of all.
    ends: &'a [[u8; 2]],
    same_length: bool,
    /// Of each item, or one for all.
    words: &'a [[u8; 2]],
    same_word: bool,
    keys: &'a [u8],
    base: u32,
    /// Index of its first item in the leaf.
    pub(crate) first: u32,
}

impl<'a> Group<'a> {
    pub(crate) fn len(&self) -> usize {
        self.items
    }

    #[inline]
    pub(crate) fn key(&self, index: usize) -> Result<&'a [u8], Damage> {
        let end = |index: usize| {
            let end = self.ends.get(if self.same_length { 0 } else { index })?;
            let end = u16::from_le_bytes(*end) as usize;
            Some(if self.same_length { end * (index + 1) } else { end })
        };
        let start = if index == 0 { Some(0) } else { end(index - 1) };
        start
            .zip(end(index))
            .and_then(|(start, end)| self.keys.get(start..end))
            .ok_or_else(|| Damage::new("a key of a group", "places that do not ascend"))
    }

    #[inline]
    fn word(&self, index: usize) -> Option<[u8; 2]> {
        self.words.get(if self.same_word { 0 } else { index }).copied()
    }

    pub(crate) fn item(&self, index: usize) -> Result<Item<'a>, Damage> {
        let before = if self.same_word {
            self.words.first().map_or(0, |word| (index * value_length(*word)) as u64)
        } else {
            let before = self.words.get(..index).unwrap_or_default();
            before.iter().map(|word| value_length(*word) as u64).sum()
        };
        self.item_at(index, u64::from(self.base) + before)
    }

    fn item_at(&self, index: usize, value: u64) -> Result<Item<'a>, Damage> {
        let key = self.key(index)?;
        let word = self.word(index).ok_or_else(|| Damage::new("an item", "none"))?;
        let op = match u16::from_le_bytes(word) >> 14 {
            1 => Op::Put,
            2 => Op::PutLarge,
            3 => Op::Delete,
            other => return Err(Damage::new("an operation of 1 to 3", other)),
        };
        Ok(Item { key, op, value, value_length: value_length(word) })
    }

    /// Shows all items in order.
    pub(crate) fn items(
        &self,
        mut show: impl FnMut(&Item<'a>) -> Result<(), Damage>,
    ) -> Result<(), Damage> {
        let mut value = u64::from(self.base);
        for index in 0..self.len() {
            let item = self.item_at(index, value)?;
            value += item.value_length as u64;
            show(&item)?;
        }
        Ok(())
    }

    /// Index of the first key of the group that is not below `key`, and whether it is that key.
    pub(crate) fn search(&self, key: &[u8]) -> Result<(usize, bool), Damage> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.key(middle)?.cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok((middle, true)),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok((low, false))
    }
}

/// The word of an item: what it does and how long its value is.
pub(crate) fn item_word(op: Op, value_length: usize) -> u16 {
    let code: u16 = match op {
        Op::Put => 1,
        Op::PutLarge => 2,
        Op::Delete => 3,
    };
    code << 14 | u16::try_from(value_length).expect("checked before")
}

fn value_length(word: [u8; 2]) -> usize {
    u16::from_le_bytes(word) as usize & VALUE_BYTES_MAX
}

pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}
