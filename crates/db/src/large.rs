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

use spinney_base::{Error, Lsn, Result, ValueRef, probe};
use spinney_engine::{Found, LARGE_CALL_BYTES, LargePieces, LargePointer};
use spinney_io::without_reserve;
use spinney_sync::Stamp;
use xxhash_rust::xxh3::Xxh3;

use crate::guards::NOBODY;
use crate::keyspace_state::KeyspaceState;
use crate::options::Durability;
use crate::state::State;
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
                let _door = state.writers.door.read();
                state.life.check_writable()?;
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
            let _door = state.writers.door.read();
            state.life.check_writable()?;
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
            let _door = state.writers.door.read();
            state.life.check_writable()?;
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

impl State {
    /// Stages large values, and lets `write` write pointers instead of them. `write` says whether
    /// it did.
    pub(crate) fn with_large<T>(
        &self,
        writes: &[KeyspaceWrite<'_>],
        write: impl FnOnce(&[KeyspaceWrite<'_>]) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if !writes.iter().any(KeyspaceWrite::is_large) {
            return write(writes);
        }
        let inside = probe::enter("large value");
        let mut staged = Staged { values: Vec::new() };
        for (place, one) in writes.iter().enumerate().filter(|(_, one)| one.is_large()) {
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

    /// Runs `attempt`, and once more after a checkpoint if it fails for extents that overwritten
    /// large values still hold.
    fn with_room<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let result = match attempt() {
            Err(error) if error.is_full() && self.keyspaces.has_freed_large() => {
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
        self.life.check_writable()?;
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
        let lsn =
            self.write_if(&staged.with_pointers(&[write], &mut pointers), NOBODY, |_| true)?;
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
        mut push: impl FnMut(ValueRef<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut push = |value| loop {
            match push(value) {
                Err(error) if error.lacks_memory() && self.lend_lacked(keyspace) != Some(false) => {
                }
                pushed => return pushed,
            }
        };
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
