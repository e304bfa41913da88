//! A concurrent ordered map that is freed as a whole: keys and values are appended to an
//! [arena](crate::arena), and nothing is freed before the map.
//!
//! The space of a replaced record is reused for records of the same size, or stays until then. So
//! the owner must end a map that grows too large. In return a write allocates only nodes, and the
//! content of a sealed map can be used in place after the map is gone. Entries are lent to a thread
//! that is [`Pinned`], as by [`ArtMap`](crate::ArtMap).

use std::ops::Bound;

use spinney_base::Result;

use crate::arena::{Arena, CHUNK_BYTES, Chunk, Record, Sealed};
use crate::direction::Direction;
use crate::entries::Pinned;
use crate::scan::Chunks;
use crate::tree::{Art, Census};

/// A concurrent ordered map from byte strings to byte strings with a tag. Thread-safe; reads take
/// no lock.
///
/// ```
/// use std::ops::Bound;
/// use spinney_art::{AppendedMap, Direction, Pinned};
///
/// let (map, pinned) = (AppendedMap::new(), Pinned::new());
/// assert!(map.put(b"ash", 0, b"tree", &pinned)?.is_none());
/// assert_eq!(map.put(b"ash", 1, b"rest", &pinned)?.map(|old| old.value()), Some(&b"tree"[..]));
/// let chunks = map.seal();
/// let ash = map.get(b"ash", &pinned).unwrap();
/// assert_eq!((ash.tag(), ash.value()), (1, &b"rest"[..]));
/// let place = ash.place();
/// assert_eq!(chunks[place.chunk][place.key..][..3], *b"ash");
/// assert!(map.put(b"oak", 0, b"", &pinned).is_err());
/// # Ok::<(), spinney_art::Sealed>(())
/// ```
#[derive(Debug)]
pub struct AppendedMap {
    art: Art<Arena>,
}

impl Default for AppendedMap {
    fn default() -> Self {
        Self::new()
    }
}

/// A key and its value, as the map lends them.
#[derive(Clone, Copy, Debug)]
pub struct Appended<'a> {
    map: &'a AppendedMap,
    record: Record<'a>,
}

/// Position of a key and its value: a chunk of a sealed map and an offset in it. The value follows
/// the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the chunk.
    pub chunk: usize,
    /// Offset of the key in it.
    pub key: usize,
}

impl<'a> Appended<'a> {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        self.record.key()
    }

    /// Returns the value.
    #[must_use]
    pub fn value(&self) -> &'a [u8] {
        self.record.value()
    }

    /// Returns the tag of the value.
    #[must_use]
    pub fn tag(&self) -> u8 {
        self.record.tag()
    }

    /// Returns the position.
    #[must_use]
    pub fn place(&self) -> Place {
        let (chunk, key) = self.map.art.source().place(self.record);
        Place { chunk, key }
    }
}

impl AppendedMap {
    /// Makes a map without keys.
    #[must_use]
    pub fn new() -> Self {
        AppendedMap::with_room(CHUNK_BYTES)
    }

    /// Makes a map without keys, with one chunk for the first `bytes` bytes of records.
    #[must_use]
    pub fn with_room(bytes: usize) -> Self {
        AppendedMap { art: Art::new(Arena::new(bytes)) }
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.art.len()
    }

    /// Returns whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.art.is_empty()
    }

    /// Returns the bytes that the map holds: appended records, replaced ones included, and
    /// reachable nodes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.art.source().own_bytes() + self.art.bytes() + self.appended_bytes()
    }

    /// Returns the bytes that were appended.
    #[must_use]
    pub fn appended_bytes(&self) -> usize {
        self.art.source().bytes()
    }

    /// Returns the bytes of replaced records that were not reused.
    #[must_use]
    pub fn unused_bytes(&self) -> usize {
        self.art.source().unused_bytes()
    }

    /// Gives `key` a value, and lends its old one.
    ///
    /// # Errors
    /// When the map was sealed.
    ///
    /// # Panics
    /// When the key is 64 KiB or longer, or the value 4 GiB.
    pub fn put<'a>(
        &'a self,
        key: &[u8],
        tag: u8,
        value: &[u8],
        pinned: &'a Pinned,
    ) -> std::result::Result<Option<Appended<'a>>, Sealed> {
        let leaf = self.art.source().append(key, tag, value)?;
        let Some(old) = self.art.upsert(key, leaf) else { return Ok(None) };
        // Only this call took it out.
        self.art.source().retire(old, pinned.guard());
        Ok(Some(self.entry(old)))
    }

    /// Returns the value of `key`.
    #[must_use]
    pub fn get<'a>(&'a self, key: &[u8], _: &'a Pinned) -> Option<Appended<'a>> {
        self.art.get(key).map(|leaf| self.entry(leaf))
    }

    /// Returns the entries from one bound to another, in either direction: when going backward,
    /// `from` is the greater one. Each chunk of it is of one moment.
    #[must_use]
    pub fn range<'a>(
        &'a self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        pinned: &'a Pinned,
    ) -> AppendedRange<'a> {
        let chunks = Chunks::new(from, to, direction);
        AppendedRange { map: self, pinned, chunks, leaves: Vec::new() }
    }

    /// Ends writing, and lends the chunks with keys and values. They stay as long as they are kept,
    /// even if the map is dropped.
    #[must_use]
    pub fn seal(&self) -> Vec<Chunk> {
        self.art.source().seal()
    }

    /// Checks every invariant of the tree, and counts its parts. The caller makes sure that no
    /// thread writes meanwhile.
    ///
    /// # Errors
    /// `Corruption` that says what is wrong first.
    pub fn check(&self) -> Result<Census> {
        self.art.check()
    }

    fn entry(&self, leaf: u64) -> Appended<'_> {
        Appended { map: self, record: self.art.source().record(leaf) }
    }
}

/// A range under way; see [`AppendedMap::range`].
#[derive(Debug)]
pub struct AppendedRange<'a> {
    map: &'a AppendedMap,
    pinned: &'a Pinned,
    chunks: Chunks,
    /// The leaves of the chunk, last first.
    leaves: Vec<u64>,
}

impl<'a> Iterator for AppendedRange<'a> {
    type Item = Appended<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunks.wants_more() {
            self.chunks.refill(&self.map.art, self.pinned.guard());
            self.leaves.clear();
            self.leaves.extend(self.chunks.chunk().leaves().rev());
        }
        self.chunks.take()?;
        self.leaves.pop().map(|leaf| self.map.entry(leaf))
    }
}
