//! Large values of a store that is being salvaged, read in pieces.

use std::io::Read;

use spinney_base::Result;

use crate::large::LargePointer;
use crate::large_io::Pieces;
use crate::store::Store;

/// A large value. Its last piece is delivered only if the whole value matches its hash.
#[derive(Debug)]
pub struct SalvagedValue<'a> {
    store: &'a Store,
    pieces: Pieces,
    /// Bytes read; those from `at` on have not been delivered.
    piece: Vec<u8>,
    at: usize,
    damaged: bool,
}

impl<'a> SalvagedValue<'a> {
    /// Opens a large value for reading.
    ///
    /// # Errors
    /// `Corruption` for bytes that are no pointer. A damaged value is found by reading.
    pub fn open(store: &'a Store, pointer: &[u8]) -> Result<SalvagedValue<'a>> {
        let pieces = Pieces::new(LargePointer::decode_in(store.path(), pointer)?);
        Ok(SalvagedValue { store, pieces, piece: Vec::new(), at: 0, damaged: false })
    }

    /// Returns the length of the value, in bytes, if it is whole.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.pieces.length()
    }

    /// Returns whether the value turned out to be damaged, so that reading it failed.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    fn fill(&mut self) -> Result<()> {
        if self.at == self.piece.len() && self.pieces.left() > 0 {
            self.piece.clear();
            self.at = 0;
            self.pieces.next(self.store, &mut self.piece)?;
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
