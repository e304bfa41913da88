//! Sequential reading of log blocks, many at a time, with one chunk in memory.

use spinney_base::Result;
use spinney_base::limits::PAGE_BYTES;
use spinney_io::{AlignedBuf, File, Purpose};

use crate::block::Block;
use crate::segments::Extent;

/// Blocks fetched at once: enough to stream from a disk, and little beside any memory budget.
const CHUNK_BLOCKS: usize = 64;

/// A sequential reader of blocks.
#[derive(Debug)]
pub(crate) struct BlockReader<'a> {
    file: &'a dyn File,
    buf: AlignedBuf,
    /// Byte offset of the first block in `buf`.
    offset: u64,
    /// Number of blocks of `buf` that were read.
    filled: usize,
}

impl<'a> BlockReader<'a> {
    pub(crate) fn new(file: &'a dyn File) -> Self {
        BlockReader { file, buf: AlignedBuf::new(CHUNK_BLOCKS), offset: 0, filled: 0 }
    }

    /// The first block of `extent`; later ones of the extent may be fetched with it.
    pub(crate) fn block(&mut self, extent: Extent) -> Result<&Block> {
        let page = PAGE_BYTES as u64;
        let end = self.offset + self.filled as u64 * page;
        if extent.offset < self.offset || extent.offset >= end {
            self.filled = 0;
            let wanted = usize::try_from(extent.blocks)
                .map_or(CHUNK_BLOCKS, |blocks| blocks.min(CHUNK_BLOCKS));
            let bytes = &mut self.buf.bytes_mut()[..wanted * PAGE_BYTES];
            self.file.read_at(bytes, extent.offset, Purpose::RECOVERY)?;
            self.offset = extent.offset;
            self.filled = wanted;
        }
        let index =
            usize::try_from((extent.offset - self.offset) / page).expect("inside the chunk");
        Ok(self.buf.page(index))
    }
}
