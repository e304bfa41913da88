//! Large values of a store that is salvaged, read piece by piece.

use std::io::Read;

use spinney_base::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::Xxh3;

use crate::large::LargePointer;
use crate::store::Store;

/// A large value. Its last piece is handed out only if the whole is what was written.
#[derive(Debug)]
pub struct SalvagedValue<'a> {
    store: &'a Store,
    pointer: LargePointer,
    /// Read and not yet handed out, from `at` on.
    piece: Vec<u8>,
    at: usize,
    offset: u64,
    hasher: Hasher,
    damaged: bool,
}

/// The hash so far.
struct Hasher(Xxh3);

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0.digest())
    }
}

impl<'a> SalvagedValue<'a> {
    /// Opens a large value for reading.
    ///
    /// # Errors
    /// `Corruption` for bytes that are no pointer; what is not there whole is found by reading.
    pub fn open(store: &'a Store, pointer: &[u8]) -> Result<SalvagedValue<'a>> {
        let pointer = LargePointer::decode(pointer).map_err(|damage| {
            let found = format!("{} instead of {}", damage.found, damage.expected);
            Error::new(ErrorKind::Corruption, format!("{}: {found}", store.path().display()))
        })?;
        Ok(SalvagedValue {
            store,
            pointer,
            piece: Vec::new(),
            at: 0,
            offset: 0,
            hasher: Hasher(Xxh3::new()),
            damaged: false,
        })
    }

    /// Bytes of the whole value, if it is whole.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.pointer.length
    }

    /// Whether it turned out not to be there whole: then reading it has failed.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    fn fill(&mut self) -> Result<()> {
        if self.at < self.piece.len() || self.offset == self.pointer.length {
            return Ok(());
        }
        self.piece.clear();
        self.at = 0;
        self.store.read_large(&self.pointer, self.offset, &mut self.piece)?;
        self.hasher.0.update(&self.piece);
        self.offset += self.piece.len() as u64;
        if self.offset == self.pointer.length && self.hasher.0.digest() != self.pointer.hash {
            self.piece.clear();
            let path = self.store.path().display();
            let message = format!("{path}: a large value has another hash");
            return Err(Error::new(ErrorKind::Corruption, message));
        }
        Ok(())
    }
}

impl Read for SalvagedValue<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if let Err(error) = self.fill() {
            self.damaged = true;
            return Err(std::io::Error::other(error));
        }
        let read = (&self.piece[self.at..]).read(buf)?;
        self.at += read;
        Ok(read)
    }
}
