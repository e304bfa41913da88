//! The keyspace's file as the tree uses it: pieces of bytes in extents, which are given back when nobody
//! holds them any more.
//!
//! **Invariant**: every page that a [`Piece`] owns is counted in [`Files::pages`]; with the free
//! ones, those of large values and those of the checkpoint these are all pages of the file.

use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
use spinney_base::{Generation, Lsn, PageNumber, Result, probe};
use spinney_extent::{BlockHeader, BlockKind, Extent, HEADER_BYTES, Store};
use spinney_io::{AlignedBuf, Purpose};

/// Bytes of a piece in each page.
pub(crate) const PAYLOAD_BYTES: usize = PAGE_BYTES - HEADER_BYTES;

/// Largest extent of a piece.
const ORDER_MAX: u8 = 6;

/// One file. Thread-safe.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) store: Store,
    /// Pages that pieces own.
    pages: AtomicU64,
    /// Pages written.
    written: AtomicU64,
    /// Pages given back.
    freed: AtomicU64,
}

/// Bytes on disk, owned until the last clone of it goes.
#[derive(Debug)]
pub(crate) struct Piece {
    files: Arc<Files>,
    pub(crate) extents: Vec<(Extent, Generation)>,
    pub(crate) bytes: u64,
}

impl Drop for Piece {
    fn drop(&mut self) {
        for (extent, _) in &self.extents {
            self.files.store.release(*extent);
            self.files.pages.fetch_sub(u64::from(extent.pages()), SeqCst);
            self.files.freed.fetch_add(u64::from(extent.pages()), SeqCst);
        }
    }
}

impl Files {
    pub(crate) fn new(store: Store) -> Arc<Files> {
        Arc::new(Files {
            store,
            pages: AtomicU64::new(0),
            written: AtomicU64::new(0),
            freed: AtomicU64::new(0),
        })
    }

    /// Pages that pieces own.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(SeqCst)
    }

    /// Pages of pieces that were written since the keyspace was opened.
    pub(crate) fn pages_written(&self) -> u64 {
        self.written.load(SeqCst)
    }

    /// Takes over extents that a checkpoint names.
    pub(crate) fn adopt(self: &Arc<Self>, extents: Vec<(Extent, Generation)>, bytes: u64) -> Piece {
        let pages: u64 = extents.iter().map(|(extent, _)| u64::from(extent.pages())).sum();
        self.pages.fetch_add(pages, SeqCst);
        Piece { files: Arc::clone(self), extents, bytes }
    }

    /// Writes bytes into fresh extents; the log is durable up to `lsn`, and they hold nothing above.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`, and nothing is owned.
    pub(crate) fn write(self: &Arc<Self>, bytes: &[u8], lsn: Lsn) -> Result<Piece> {
        // What is freed is taken first.
        let _inside = (self.freed.load(SeqCst) > 0).then(|| probe::enter("page free"));
        // It gives back what it has if anything fails.
        let mut piece = self.adopt(Vec::new(), bytes.len() as u64);
        let mut left = bytes;
        while !left.is_empty() {
            let pages = left.len().div_ceil(PAYLOAD_BYTES);
            let order = u8::try_from(pages.ilog2()).map_or(ORDER_MAX, |order| order.min(ORDER_MAX));
            let (extent, generation) = self.store.allocate(order)?;
            self.pages.fetch_add(u64::from(extent.pages()), SeqCst);
            piece.extents.push((extent, generation));
            let here = left.len().min(extent.pages() as usize * PAYLOAD_BYTES);
            let (here, rest) = left.split_at(here);
            self.write_extent(extent, generation, here, lsn)?;
            left = rest;
        }
        Ok(piece)
    }

    fn write_extent(
        &self,
        extent: Extent,
        generation: Generation,
        bytes: &[u8],
        lsn: Lsn,
    ) -> Result<()> {
        let mut buf = AlignedBuf::new(extent.pages() as usize);
        let mut pieces = bytes.chunks(PAYLOAD_BYTES);
        let pages: Vec<PageNumber> = pages_of(extent).collect();
        for (index, page) in pages.iter().enumerate() {
            let block = buf.page_mut(index);
            let piece = pieces.next().unwrap_or(&[]);
            block[HEADER_BYTES..HEADER_BYTES + piece.len()].copy_from_slice(piece);
            let keyspace = self.store.keyspace();
            let header =
                BlockHeader { kind: BlockKind::Data, page: *page, generation, keyspace, lsn };
            header.seal(block);
        }
        self.store.write_fresh(&pages, &buf, Purpose::WriteBack)?;
        self.written.fetch_add(pages.len() as u64, SeqCst);
        Ok(())
    }

    /// Reads a piece whole.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn read(&self, piece: &Piece, purpose: Purpose) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for (extent, generation) in &piece.extents {
            let mut buf = AlignedBuf::new(extent.pages() as usize);
            let pages: Vec<_> =
                pages_of(*extent).enumerate().map(|(at, page)| (at, page, *generation)).collect();
            self.store.read_many(&pages, &mut buf, purpose, &mut |_, _| Ok(()))?;
            (0..pages.len()).for_each(|at| out.extend_from_slice(&buf.page(at)[HEADER_BYTES..]));
        }
        out.truncate(usize::try_from(piece.bytes).unwrap_or(usize::MAX));
        Ok(out)
    }
}

/// A file on a simulated disk.
#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) fn simulated() -> Arc<Files> {
    use spinney_base::{KeyspaceId, Poison};
    let disk = spinney_io::sim::SimDisk::new(1);
    let poison = Arc::new(Poison::new());
    let options =
        spinney_extent::StoreOptions { keyspace: KeyspaceId(1), double_write: false, poison };
    let store = Store::create(&disk, std::path::Path::new("/keyspace"), options, Lsn::ZERO);
    let store = store.unwrap();
    store.adopt(&[]).unwrap();
    Files::new(store)
}

/// The pages of an extent.
pub(crate) fn pages_of(extent: Extent) -> impl Iterator<Item = PageNumber> {
    (extent.page.0..extent.page.0 + extent.pages()).map(PageNumber)
}
