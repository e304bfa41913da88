//! Writing and reading of large values (rule P17).
//!
//! A large value is written to the engine's file outside of pages and synced first ([`Staged`]).
//! Then an ordinary write logs and applies the pointer to it. If that write fails, the staged
//! extents are freed. A reader pins large values, looks the pointer up under the pin and reads
//! piece by piece ([`ValueReader`]). The bytes stay while the pin lasts, even if the key is
//! overwritten, so a reader never sees a mixture.
//!
//! Memory is bounded in both directions by one piece of [`LARGE_CALL_BYTES`], whatever the length
//! of the value.
//!
//! **Locks.** User code (the reader that is passed to
//! [`Keyspace::insert_from`](crate::Keyspace::insert_from)) runs while no lock is held. Each piece
//! is written under the shared door, so that no write reaches the file of a closed database.

use std::io::Read;
use std::sync::Arc;

use spinney_base::{Error, Lsn, Result, ValueRef, probe};
use spinney_engine::{Found, LARGE_CALL_BYTES, LargePieces, LargePointer, Pin};
use spinney_io::without_reserve;
use spinney_sync::{Stamp, hash_key};
use xxhash_rust::xxh3::Xxh3;

use crate::keyspace::Keyspace;
use crate::options::Durability;
use crate::snapshot::{Snapshot, Source};
use crate::state::{KeyspaceState, State};
use crate::write::{KeyspaceWrite, check_key, check_value};

/// Large values that are written, and that no record names yet. Dropping it frees them.
struct Staged<'a> {
    /// The values, with their positions in the batch.
    values: Vec<(usize, &'a KeyspaceState, LargePointer)>,
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        for (_, keyspace, pointer) in self.values.drain(..) {
            keyspace.engine.values().release(&pointer);
        }
    }
}

impl<'a> Staged<'a> {
    /// Returns the writes with pointers instead of staged values; `pointers` holds their bytes.
    fn with_pointers<'w>(
        &self,
        writes: &[KeyspaceWrite<'w>],
        pointers: &'w mut Vec<Vec<u8>>,
    ) -> Vec<KeyspaceWrite<'w>> {
        for (_, _, pointer) in &self.values {
            let mut bytes = Vec::new();
            pointer.encode(&mut bytes);
            pointers.push(bytes);
        }
        let mut writes = writes.to_vec();
        for ((place, _, _), bytes) in self.values.iter().zip(pointers.iter()) {
            writes[*place].write.value = Some(ValueRef::large(bytes));
        }
        writes
    }

    /// Makes all staged values durable, with one sync for each keyspace.
    fn seal(&self, state: &State) -> Result<()> {
        let mut sealed: Vec<&KeyspaceState> = Vec::new();
        for (_, keyspace, _) in &self.values {
            if sealed.iter().any(|other| other.id == keyspace.id) {
                continue;
            }
            sealed.push(keyspace);
            let own = self.values.iter().filter(|(_, other, _)| other.id == keyspace.id);
            let pointers: Vec<LargePointer> = own.map(|(_, _, pointer)| pointer.clone()).collect();
            state.with_room(|| {
                let _door = state.door.read();
                state.check_writable()?;
                keyspace.engine.values().seal(&pointers)
            })?;
        }
        Ok(())
    }

    /// Keeps the values, because a record names them now.
    fn keep(mut self) {
        self.values.clear();
    }

    /// Writes one value from a reader.
    fn add(
        &mut self,
        state: &State,
        place: usize,
        keyspace: &'a KeyspaceState,
        length: u64,
        reader: &mut dyn Read,
    ) -> Result<()> {
        let pointer = state.with_room(|| {
            let _door = state.door.read();
            state.check_writable()?;
            // Takes nothing of the reserve for removals and recoveries.
            without_reserve(|| keyspace.engine.values().allocate(length))
        })?;
        // From here on the value is freed if anything fails.
        let at = self.values.len();
        self.values.push((place, keyspace, pointer));
        let mut piece = Vec::new();
        let mut hasher = Xxh3::new();
        let mut offset = 0;
        while offset < length {
            read_piece(reader, length, offset, &mut piece)?;
            hasher.update(&piece);
            let _door = state.door.read();
            state.check_writable()?;
            let written = keyspace.engine.values().write(&self.values[at].2, offset, &piece);
            written.inspect_err(|error| state.note(error))?;
            offset += piece.len() as u64;
        }
        self.values[at].2.hash = hasher.digest();
        Ok(())
    }
}

/// Reads the piece of a value of `length` bytes that begins at `offset`.
fn read_piece(reader: &mut dyn Read, length: u64, offset: u64, piece: &mut Vec<u8>) -> Result<()> {
    let wanted = (length - offset).min(LARGE_CALL_BYTES as u64);
    piece.clear();
    let read = reader.take(wanted).read_to_end(piece);
    read.map_err(|error| Error::io(format!("read a value of {length} bytes at {offset}"), error))?;
    if (piece.len() as u64) < wanted {
        let found = offset + piece.len() as u64;
        return Err(Error::invalid(format!(
            "a value was to have {length} bytes, and its reader ended after {found}"
        )));
    }
    Ok(())
}

fn is_large(KeyspaceWrite { keyspace, write, .. }: &KeyspaceWrite<'_>) -> bool {
    write.value.is_some_and(|value| {
        !value.large && keyspace.engine.values().is_large(write.key.len(), value.len() as u64)
    })
}

impl State {
    /// Stages large values, and lets `write` write pointers instead of them. `write` says whether
    /// it did.
    pub(crate) fn with_large<T>(
        &self,
        writes: &[KeyspaceWrite<'_>],
        write: impl FnOnce(&[KeyspaceWrite<'_>]) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if !writes.iter().any(is_large) {
            return write(writes);
        }
        let inside = probe::enter("large value");
        let mut staged = Staged { values: Vec::new() };
        for (place, one) in writes.iter().enumerate().filter(|(_, one)| is_large(one)) {
            let mut bytes = one.write.value.unwrap_or(ValueRef::EMPTY).bytes;
            staged.add(self, place, one.keyspace, bytes.len() as u64, &mut bytes)?;
        }
        staged.seal(self)?;
        drop(inside);
        let mut pointers = Vec::new();
        let done = write(&staged.with_pointers(writes, &mut pointers))?;
        if done.is_some() {
            staged.keep();
        }
        Ok(done)
    }

    /// Returns whether a checkpoint would free extents of large values.
    pub(crate) fn has_freed_large(&self) -> bool {
        self.keyspaces().iter().any(|one| one.engine.stats().large_freed_bytes > 0)
    }

    /// Runs `attempt`, and once more after a checkpoint if it fails for extents that overwritten
    /// large values still hold.
    fn with_room<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let result = match attempt() {
            Err(error) if error.is_full() && self.has_freed_large() => {
                self.checkpoint()?;
                attempt()
            }
            result => result,
        };
        result.inspect_err(|error| self.note(error))
    }

    /// Puts a value of `length` bytes that is read from `reader`.
    pub(crate) fn insert_from(
        &self,
        keyspace: &KeyspaceState,
        key: &[u8],
        length: u64,
        reader: &mut dyn Read,
        durability: Durability,
    ) -> Result<()> {
        self.check_writable()?;
        keyspace.check_alive()?;
        check_key(key)?;
        check_value(length)?;
        if !keyspace.engine.values().is_large(key.len(), length) {
            let mut value = Vec::new();
            read_piece(reader, length, 0, &mut value)?;
            let value = ValueRef::inline(&value);
            return self.write(&[KeyspaceWrite::new(keyspace, key, Some(value))], durability);
        }
        let inside = probe::enter("large value");
        let mut staged = Staged { values: Vec::new() };
        staged.add(self, 0, keyspace, length, reader)?;
        staged.seal(self)?;
        drop(inside);
        let mut pointers = Vec::new();
        let write = KeyspaceWrite::new(keyspace, key, Some(ValueRef::EMPTY));
        let lsn = self.write_if(&staged.with_pointers(&[write], &mut pointers), |_| true)?;
        staged.keep();
        self.commit(lsn.unwrap_or(Lsn::ZERO), durability)
    }

    /// Passes a value to a bulk load, or the pointer to it if it is large. The load makes the large
    /// value durable, or frees it.
    pub(crate) fn push_to_bulk(
        &self,
        keyspace: &KeyspaceState,
        key: &[u8],
        mut value: &[u8],
        push: impl FnOnce(ValueRef<'_>) -> Result<()>,
    ) -> Result<()> {
        let length = value.len() as u64;
        if !keyspace.engine.values().is_large(key.len(), length) {
            return push(ValueRef::inline(value));
        }
        let _inside = probe::enter("large value");
        let mut staged = Staged { values: Vec::new() };
        staged.add(self, 0, keyspace, length, &mut value)?;
        let mut bytes = Vec::new();
        staged.values.iter().for_each(|(_, _, pointer)| pointer.encode(&mut bytes));
        push(ValueRef::large(&bytes))?;
        staged.keep();
        Ok(())
    }

    /// Reads one key and, if its value is large, the value, as of one moment. Appends what the
    /// engine keeps for the key to `raw` and the value to `value`.
    pub(crate) fn read_both(
        &self,
        keyspace: &KeyspaceState,
        key: &[u8],
        hash: u64,
        raw: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<(Found, Stamp)> {
        let mut found = self.read(keyspace, key, hash, raw)?;
        if found.0 == Found::Large {
            let _pin = keyspace.engine.values().pin();
            raw.clear();
            found = self.read(keyspace, key, hash, raw)?;
            if found.0 == Found::Large {
                self.read_whole(keyspace, raw, value)?;
                return Ok(found);
            }
        }
        value.extend_from_slice(raw);
        Ok(found)
    }

    /// Appends the value of a key whose value was found to be large. Returns whether the key still
    /// has one.
    pub(crate) fn read_large(
        &self,
        keyspace: &KeyspaceState,
        key: &[u8],
        hash: u64,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        Ok(self.read_both(keyspace, key, hash, &mut Vec::new(), out)?.0 != Found::Absent)
    }

    /// Appends the value behind a pointer that was looked up under a pin.
    pub(crate) fn read_whole(
        &self,
        keyspace: &KeyspaceState,
        pointer: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let values = keyspace.engine.values();
        let mut pieces = LargePieces::new(values.decode(pointer)?);
        out.reserve_exact(usize::try_from(pieces.left()).unwrap_or(0));
        while pieces.left() > 0 {
            pieces.next(values.store(), out)?;
        }
        Ok(())
    }
}

/// What keeps the bytes of a value while it is read in pieces.
enum Held {
    Pin(Arc<KeyspaceState>, #[expect(dead_code, reason = "held")] Pin),
    Snapshot(Snapshot),
}

impl Held {
    fn keyspace(&self) -> &KeyspaceState {
        match self {
            Held::Pin(keyspace, _) => keyspace,
            Held::Snapshot(snapshot) => snapshot.open(),
        }
    }
}

/// Reader of one value in pieces. See [`Keyspace::get_reader`].
///
/// It reads the value that the key had when the reader was made, whatever is written meanwhile, and
/// keeps the value's extents until it is dropped. It checks the value against its hash before it
/// hands out the last bytes. An error of the database is inside the [`std::io::Error`].
pub struct ValueReader {
    keyspace: Keyspace,
    length: u64,
    /// Bytes read; those from `at` on have not been handed out.
    piece: Vec<u8>,
    at: usize,
    large: Option<(LargePieces, Held)>,
}

impl ValueReader {
    pub(crate) fn open(keyspace: &Keyspace, key: &[u8]) -> Result<Option<ValueReader>> {
        let hash = hash_key(keyspace.place.id, key);
        let state = &keyspace.handle.state;
        let open = keyspace.enter()?;
        let mut piece = Vec::new();
        let mut found = state.read(&open, key, hash, &mut piece)?.0;
        let mut large = None;
        if found == Found::Large {
            let keyspace = open.pin();
            let values = Arc::clone(keyspace.engine.values());
            let pin = values.pin();
            piece.clear();
            found = state.read(&open, key, hash, &mut piece)?.0;
            if found == Found::Large {
                let pieces = LargePieces::new(values.decode(&piece)?);
                piece.clear();
                large = Some((pieces, Held::Pin(keyspace, pin)));
            }
        }
        let length = large.as_ref().map_or(piece.len() as u64, |(pieces, _)| pieces.left());
        let reader = ValueReader { keyspace: keyspace.clone(), length, piece, at: 0, large };
        Ok((found != Found::Absent).then_some(reader))
    }

    /// Makes a reader of a value that is in memory.
    pub(crate) fn over(source: &Source, value: Vec<u8>) -> ValueReader {
        let length = value.len() as u64;
        let keyspace = source.keyspace().clone();
        ValueReader { keyspace, length, piece: value, at: 0, large: None }
    }

    /// Makes a reader of a large value that a snapshot keeps.
    pub(crate) fn kept(snapshot: &Snapshot, pointer: &[u8]) -> Result<ValueReader> {
        let keyspace = snapshot.keyspace().clone();
        let pieces = LargePieces::new(snapshot.open().engine.values().decode(pointer)?);
        let length = pieces.left();
        let large = Some((pieces, Held::Snapshot(snapshot.clone())));
        Ok(ValueReader { keyspace, length, piece: Vec::new(), at: 0, large })
    }

    /// Returns to the beginning of the same value, even if the key was overwritten.
    pub fn rewind(&mut self) {
        self.at = 0;
        if let Some((pieces, _)) = &mut self.large {
            pieces.rewind();
            self.piece.clear();
        }
    }

    /// Returns the length of the whole value, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether the value is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn fill(&mut self) -> Result<()> {
        if let Some((pieces, held)) = &mut self.large
            && self.at == self.piece.len()
            && pieces.left() > 0
        {
            let state = &self.keyspace.handle.state;
            state.check_open()?;
            held.keyspace().check_alive()?;
            self.piece.clear();
            self.at = 0;
            pieces.next(held.keyspace().engine.values().store(), &mut self.piece)?;
        }
        Ok(())
    }
}

impl Read for ValueReader {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.fill().map_err(std::io::Error::other)?;
        let read = (&self.piece[self.at..]).read(buf)?;
        self.at += read;
        Ok(read)
    }
}

impl std::fmt::Debug for ValueReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ValueReader({} bytes)", self.length)
    }
}
