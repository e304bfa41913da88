//! Reading of one value in pieces.

use std::io::Read;
use std::sync::Arc;

use spinney_base::Result;
use spinney_engine::{Found, LargePieces, Pin};
use spinney_sync::hash_key;

use crate::keyspace::Keyspace;
use crate::keyspace_state::KeyspaceState;
use crate::snapshot::{Snapshot, Source};

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
            state.life.check_open()?;
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
