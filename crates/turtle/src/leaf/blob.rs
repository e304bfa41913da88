//! Pages that hold some bytes whole, such as a node: consecutive ones of kind 6, 4064 bytes in
//! each, zeros behind the last.
//!
//! What has to be remembered of them is twelve bytes: first page, generation and length, `u32`
//! each, little-endian.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use spinney_base::{Error, Generation, Lsn, PageNumber, Result};
use spinney_extent::header::Damage;
use spinney_extent::run::RUN_PAGES_MAX;
use spinney_extent::{HEADER_BYTES, PageRun};
use spinney_io::{AlignedBuf, Purpose};

use super::format::{PAYLOAD, read_u32};
use super::{LeafStore, payload};

use crate::kinds;
use crate::kinds::{block, purpose};

/// Pages of a node. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct NodePages {
    files: Arc<LeafStore>,
    run: PageRun,
    length: u32,
}

impl NodePages {
    pub(crate) const DESCRIPTION_BYTES: usize = 12;

    fn own(files: &Arc<LeafStore>, run: PageRun, length: u32) -> NodePages {
        files.counters.pages_owned.fetch_add(u64::from(run.pages), Relaxed);
        NodePages { files: Arc::clone(files), run, length }
    }

    /// Writes some bytes, one at least. No record above `lsn` is among them. Durable after a sync.
    ///
    /// # Errors
    /// `InvalidArgument` when they are too many; `Full`, `Poisoned` or `Io`; nothing is owned then.
    pub(crate) fn write(files: &Arc<LeafStore>, bytes: &[u8], lsn: Lsn) -> Result<NodePages> {
        let pages = u32::try_from(bytes.len().div_ceil(PAYLOAD)).unwrap_or(u32::MAX);
        if !(1..=RUN_PAGES_MAX).contains(&pages) {
            return Err(Error::invalid(format!("a node of {} bytes", bytes.len())));
        }
        let mut buf = AlignedBuf::new(pages as usize);
        for (index, piece) in bytes.chunks(PAYLOAD).enumerate() {
            buf.page_mut(index)[HEADER_BYTES..][..piece.len()].copy_from_slice(piece);
        }
        let run = files.store.allocate_run(pages)?;
        #[expect(clippy::cast_possible_truncation, reason = "at most 128 MiB")]
        let length = bytes.len() as u32;
        let node = NodePages::own(files, run, length);
        files.store.seal_run(&run, 0, block::NODE, &mut buf, lsn);
        files.store.write_runs(&[(run.first, buf.bytes())], purpose::NODE)?;
        files.counters.nodes_written.fetch_add(1, Relaxed);
        files.counters.node_pages_written.fetch_add(u64::from(pages), Relaxed);
        files.counters.pages_written.fetch_add(u64::from(pages), Relaxed);
        Ok(node)
    }

    /// Owns, from here on, the pages that were described, and reads them.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn open(files: &Arc<LeafStore>, description: &[u8]) -> Result<(NodePages, Vec<u8>)> {
        let (run, length) = decode(description)
            .map_err(|damage| damage.at(files.store.path(), PageNumber::NONE))?;
        let node = NodePages::own(files, run, length);
        let mut buf = AlignedBuf::new(run.pages as usize);
        files.store.read_run(&run, 0, block::NODE, &mut buf, Purpose::RECOVERY)?;
        let read = &files.counters.pages_read[kinds::NODE.index()];
        read.fetch_add(u64::from(run.pages), Relaxed);
        let mut bytes = Vec::with_capacity(run.pages as usize * PAYLOAD);
        (0..buf.pages()).for_each(|index| bytes.extend_from_slice(payload(buf.page(index))));
        bytes.truncate(length as usize);
        Ok((node, bytes))
    }

    /// What has to be remembered of it.
    pub(crate) fn describe(&self) -> [u8; Self::DESCRIPTION_BYTES] {
        encode(&self.run, self.length)
    }

    /// Its pages.
    pub(crate) fn run(&self) -> PageRun {
        self.run
    }
}

impl Drop for NodePages {
    fn drop(&mut self) {
        self.files.store.release_run(self.run);
        self.files.counters.pages_owned.fetch_sub(u64::from(self.run.pages), Relaxed);
    }
}

/// The bytes by which a reader finds pages again that hold `length` bytes.
pub(crate) fn encode(run: &PageRun, length: u32) -> [u8; NodePages::DESCRIPTION_BYTES] {
    let mut bytes = [0; NodePages::DESCRIPTION_BYTES];
    bytes[..4].copy_from_slice(&run.first.0.to_le_bytes());
    bytes[4..8].copy_from_slice(&run.generation.0.to_le_bytes());
    bytes[8..].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Its pages and how many bytes are in them, from what was remembered of them.
pub(crate) fn decode(description: &[u8]) -> Result<(PageRun, u32), Damage> {
    let fields = || {
        (description.len() == NodePages::DESCRIPTION_BYTES).then_some(())?;
        let first = PageNumber(read_u32(description, 0)?);
        let (generation, length) =
            (Generation(read_u32(description, 4)?), read_u32(description, 8)?);
        let pages = length.div_ceil(u32::try_from(PAYLOAD).ok()?);
        let sound = (1..=RUN_PAGES_MAX).contains(&pages) && first.0.checked_add(pages).is_some();
        sound.then_some((PageRun { first, pages, generation }, length))
    };
    fields().ok_or_else(|| Damage::new("a node's description", format!("{description:?}")))
}
