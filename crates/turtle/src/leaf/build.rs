//! Writing a leaf: two passes over its sorted edits, then two large writes.
//!
//! The first pass counts, so that every section's pages are known and its bytes are laid where they
//! will be written from; the second fills keys and values and remembers separators and hashes, from
//! which index and filter are made at the end. Both ask [`Pager`] where a key goes, so they agree.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, KeyspaceId, Result};
use spinney_extent::HEADER_BYTES;
use spinney_io::AlignedBuf;

use super::format::{
    Description, GROUP, GROUP_BYTES, GroupAt, HEAD_BYTES, Head, KEY_BYTES_MAX, KEYS_HEAD_BYTES,
    PAGE_BLOCKS, PAYLOAD, SAME_LENGTH, SAME_WORD, VALUE_BYTES_MAX, item_word,
};
use super::index::Nodes;
use crate::edit::{Edit, packed_bytes, separator};
use crate::run::{Item, Op, Run};
use crate::runs::Runs;

/// A leaf's sections, complete but for the block headers, and for where they will lie.
#[derive(Debug)]
pub(crate) struct Built {
    /// Head, index and filter.
    pub(crate) front: AlignedBuf,
    /// Keys and values.
    pub(crate) body: AlignedBuf,
    /// Without place and generation.
    pub(crate) description: Description,
    prefix: Vec<u8>,
    root: super::format::Target,
}

impl Built {
    /// The description is part of the head, so it is written when the place is known.
    pub(crate) fn set_place(&mut self, description: Description) {
        self.description = description;
        let mut head = Vec::with_capacity(HEAD_BYTES + self.prefix.len());
        Head { root: self.root, prefix: &self.prefix }.encode(&description, &mut head);
        put(&mut self.front, 0, &head);
    }
}

/// Source of a leaf: sorted edits, ascending strictly by key, one at least, the same each time that
/// it is read.
pub(crate) trait Edits {
    /// Bytes of the key of each, what it does, and bytes of its value or pointer.
    fn shapes(&self) -> impl Iterator<Item = (usize, Op, usize)>;
    /// All, of which every byte will be read.
    fn edits(&self) -> impl Iterator<Item = Edit<'_>>;
}

impl Edits for Runs {
    fn shapes(&self) -> impl Iterator<Item = (usize, Op, usize)> {
        self.as_slice().iter().flat_map(Run::items).map(Item::shape)
    }

    fn edits(&self) -> impl Iterator<Item = Edit<'_>> {
        self.as_slice().iter().flat_map(Run::iter_ahead)
    }
}

/// Builds the leaf of these edits.
///
/// # Errors
/// `InvalidArgument` when a key or value is longer than a leaf holds, or the leaf larger than one
/// can be.
pub(crate) fn build(edits: &impl Edits, keyspace: KeyspaceId, filter_bits: u32) -> Result<Built> {
    let counts = Counts::of(edits.shapes())?;
    let key_pages = counts.key_pages as usize;
    let value_pages = counts.value_bytes.div_ceil(PAYLOAD);
    // Whatever is not filled is zeroed one by one: what lay there before must not come to the disk.
    let mut body = AlignedBuf::reused(key_pages + value_pages);
    let mut filler = Filler::new(&mut body, key_pages, counts.items);
    edits.edits().for_each(|edit| filler.push(&edit, keyspace));
    let Filled { separators, groups, hashes, first, last } = filler.finish();

    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let prefix = if counts.items > 1 { first[..common].to_vec() } else { Vec::new() };
    let separators = separators.into_iter().map(|separator| &separator[prefix.len()..]).collect();
    let nodes = Nodes::lay_out(separators, groups, HEAD_BYTES + prefix.len());
    let index_bytes = nodes.end();

    let filter_blocks = spinney_filter::block_count(hashes.len(), filter_bits);
    let index_pages = index_bytes.div_ceil(PAYLOAD);
    let filter_pages = filter_blocks.div_ceil(PAGE_BLOCKS) as usize;
    let mut front = AlignedBuf::reused(index_pages + filter_pages);
    front.bytes_mut().fill(0);
    nodes.encode(|address, node| put(&mut front, address, node));
    for hash in hashes.iter().filter(|_| filter_blocks > 0) {
        let block = spinney_filter::block_of(*hash, filter_blocks);
        let page = front.page_mut(index_pages + (block / PAGE_BLOCKS) as usize);
        let (blocks, _) = page[HEADER_BYTES..].as_chunks_mut();
        spinney_filter::insert(&mut blocks[(block % PAGE_BLOCKS) as usize], *hash);
    }
    let small = |number: usize| {
        u32::try_from(number).map_err(|_| Error::invalid("a leaf holds less than 4 GiB"))
    };
    let description = Description {
        items: small(counts.items)?,
        index_bytes: small(index_bytes)?,
        filter_blocks,
        key_pages: counts.key_pages,
        value_bytes: small(counts.value_bytes)?,
        packed_bytes: small(usize::try_from(counts.packed_bytes).unwrap_or(usize::MAX))?,
        first: spinney_base::PageNumber::NONE,
        generation: spinney_base::Generation(0),
    };
    Ok(Built { front, body, description, prefix, root: nodes.root() })
}

/// Where the next key goes.
#[derive(Debug, Default)]
struct Pager {
    /// Of groups that are full.
    bytes: usize,
    items: usize,
    group: Shape,
}

impl Pager {
    /// Takes room for a key; returns whether it begins a page.
    fn add(&mut self, key_length: usize, word: u16) -> bool {
        if self.group.items == GROUP {
            self.bytes += std::mem::take(&mut self.group).bytes();
        }
        let group = self.group.with(key_length, word);
        let begins = self.items == 0 || KEYS_HEAD_BYTES + self.bytes + group.bytes() > PAYLOAD;
        if begins {
            let group = Shape::default().with(key_length, word);
            *self = Pager { bytes: 0, items: 1, group };
        } else {
            self.items += 1;
            self.group = group;
        }
        begins
    }
}

/// The properties of a group by which it takes its bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Shape {
    items: usize,
    /// Bytes of all keys, and of one if they are all as long.
    keys: usize,
    key_length: usize,
    same_length: bool,
    word: u16,
    same_word: bool,
}

impl Shape {
    fn with(self, key_length: usize, word: u16) -> Shape {
        let alone = self.items == 0;
        Shape {
            items: self.items + 1,
            keys: self.keys + key_length,
            key_length,
            same_length: alone || (self.same_length && self.key_length == key_length),
            word,
            same_word: alone || (self.same_word && self.word == word),
        }
    }

    fn ends(&self) -> usize {
        if self.same_length { 1 } else { self.items }
    }

    fn words(&self) -> usize {
        if self.same_word { 1 } else { self.items }
    }

    /// Its place in the page's list included.
    fn bytes(&self) -> usize {
        GROUP_BYTES + 2 * (self.ends() + self.words()) + self.keys
    }
}

/// What an edit puts into the sections of keys and values.
pub(crate) fn parts<'a>(edit: &Edit<'a>) -> (Op, &'a [u8]) {
    match edit.value {
        None => (Op::Delete, &[][..]),
        Some(value) if value.large => (Op::PutLarge, value.bytes),
        Some(value) => (Op::Put, value.bytes),
    }
}

/// What the first pass finds.
#[derive(Debug, Default)]
struct Counts {
    items: usize,
    key_pages: u32,
    value_bytes: usize,
    packed_bytes: u64,
}

impl Counts {
    fn of(shapes: impl Iterator<Item = (usize, Op, usize)>) -> Result<Counts> {
        let mut counts = Counts::default();
        let mut pager = Pager::default();
        for (key_length, op, value_length) in shapes {
            if key_length > KEY_BYTES_MAX || value_length > VALUE_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "a leaf holds keys of {KEY_BYTES_MAX} and values of {VALUE_BYTES_MAX} bytes"
                )));
            }
            counts.items += 1;
            let word = item_word(op, value_length);
            counts.key_pages += u32::from(pager.add(key_length, word));
            counts.value_bytes += value_length;
            counts.packed_bytes += packed_bytes(key_length, value_length);
        }
        let pages = counts.key_pages as usize + counts.value_bytes.div_ceil(PAYLOAD);
        // Index and filter take a quarter at most of what a run can have.
        if counts.items == 0 || pages > spinney_extent::run::RUN_PAGES_MAX as usize / 2 {
            return Err(Error::invalid(format!("a leaf of {pages} pages")));
        }
        Ok(counts)
    }
}

/// The second pass.
#[derive(Debug)]
struct Filler<'a, 'b> {
    body: &'b mut AlignedBuf,
    key_pages: usize,
    /// Where the next value goes, in the section of values.
    value: usize,
    pager: Pager,
    /// The items of the page of keys that is being filled: key, word, and where the value lies.
    page: Vec<(&'a [u8], u16, usize)>,
    pages_done: usize,
    item: u32,
    filled: Filled<'a>,
}

/// What is remembered for index and filter.
#[derive(Debug, Default)]
struct Filled<'a> {
    /// Between each group and the next.
    separators: Vec<&'a [u8]>,
    groups: Vec<GroupAt>,
    hashes: Vec<u64>,
    first: &'a [u8],
    last: &'a [u8],
}

impl<'a, 'b> Filler<'a, 'b> {
    fn new(body: &'b mut AlignedBuf, key_pages: usize, items: usize) -> Self {
        let filled = Filled { hashes: Vec::with_capacity(items), ..Filled::default() };
        Filler {
            body,
            key_pages,
            value: 0,
            pager: Pager::default(),
            page: Vec::new(),
            pages_done: 0,
            item: 0,
            filled,
        }
    }

    fn push(&mut self, edit: &Edit<'a>, keyspace: KeyspaceId) {
        let (op, bytes) = parts(edit);
        let word = item_word(op, bytes.len());
        if self.pager.add(edit.key.len(), word) {
            self.end_page();
        }
        let filled = &mut self.filled;
        if self.page.len().is_multiple_of(GROUP) {
            #[expect(clippy::cast_possible_truncation, reason = "counted by the first pass")]
            let (page, group) = (self.pages_done as u32, (self.page.len() / GROUP) as u32);
            if filled.groups.is_empty() {
                filled.first = edit.key;
            } else {
                debug_assert!(filled.last < edit.key, "keys ascend");
                filled.separators.push(separator(filled.last, edit.key));
            }
            filled.groups.push(GroupAt { page, group });
        }
        filled.last = edit.key;
        filled.hashes.push(spinney_sync::hash_key(keyspace, edit.key));
        self.page.push((edit.key, word, self.value));
        put(self.body, self.key_pages * PAYLOAD + self.value, bytes);
        self.value += bytes.len();
    }

    /// Lays the page of keys out.
    fn end_page(&mut self) {
        if self.page.is_empty() {
            return;
        }
        let page = self.body.page_mut(self.pages_done);
        let payload = &mut page[HEADER_BYTES..];
        let items = self.page.len();
        let groups = items.div_ceil(GROUP);
        let small = |number: usize| u16::try_from(number).expect("within a page").to_le_bytes();
        payload[..4].copy_from_slice(&self.item.to_le_bytes());
        payload[4..6].copy_from_slice(&small(items));
        payload[6..8].copy_from_slice(&small(groups));
        let mut at = KEYS_HEAD_BYTES + 2 * groups;
        for (index, group) in self.page.chunks(GROUP).enumerate() {
            let shape = group
                .iter()
                .fold(Shape::default(), |shape, (key, word, _)| shape.with(key.len(), *word));
            let mut place = u16::try_from(at).expect("within a page");
            place |= if shape.same_length { SAME_LENGTH } else { 0 };
            place |= if shape.same_word { SAME_WORD } else { 0 };
            payload[KEYS_HEAD_BYTES + 2 * index..][..2].copy_from_slice(&place.to_le_bytes());
            let base = u32::try_from(group[0].2).expect("counted by the first pass");
            payload[at..at + 4].copy_from_slice(&base.to_le_bytes());
            let (ends, words) = (at + 4, at + 4 + 2 * shape.ends());
            let keys = words + 2 * shape.words();
            let mut end = 0;
            for (place, (key, word, _)) in group.iter().enumerate() {
                payload[keys + end..][..key.len()].copy_from_slice(key);
                end += key.len();
                // The first of each is enough where all are the same.
                if place < shape.ends() {
                    payload[ends + 2 * place..][..2].copy_from_slice(&small(end));
                }
                if place < shape.words() {
                    payload[words + 2 * place..][..2].copy_from_slice(&word.to_le_bytes());
                }
            }
            at = keys + end;
        }
        payload[at..].fill(0);
        self.item += u32::try_from(items).expect("within a page");
        self.pages_done += 1;
        self.page.clear();
    }

    fn finish(mut self) -> Filled<'a> {
        self.end_page();
        let used = self.value % PAYLOAD;
        if used > 0 {
            let last = self.body.pages() - 1;
            self.body.page_mut(last)[HEADER_BYTES + used..].fill(0);
        }
        debug_assert_eq!(self.pages_done, self.key_pages, "both passes agree");
        self.filled
    }
}

/// Copies bytes to an address of the payloads of pages that follow each other.
fn put(pages: &mut AlignedBuf, address: usize, mut bytes: &[u8]) {
    let mut address = address;
    while !bytes.is_empty() {
        let (page, at) = (address / PAYLOAD, HEADER_BYTES + address % PAYLOAD);
        let (now, rest) = bytes.split_at(bytes.len().min(PAGE_BYTES - at));
        pages.page_mut(page)[at..at + now.len()].copy_from_slice(now);
        address += now.len();
        bytes = rest;
    }
}
