//! From stolen records to the blocks of one run (rules P6 and P7): a pure function over memory.

use spinney_base::{Epoch, Lsn};
use spinney_io::AlignedBuf;

use crate::block::{BlockHeader, HEADER_BYTES, PAYLOAD_BYTES};
use crate::room::blocks_for;

/// Header fields that all blocks of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunHead {
    pub(crate) tag: u64,
    pub(crate) epoch: Epoch,
    pub(crate) position: u64,
    pub(crate) first: Lsn,
    pub(crate) last: Lsn,
    pub(crate) durable: Lsn,
}

/// Encodes the run's blocks at the front of `out`, and returns their number; a run without records
/// has one. `bytes` is the sum of the records' lengths. `out` grows if needed.
pub(crate) fn encode<'a>(
    head: RunHead,
    bytes: u64,
    records: impl Iterator<Item = &'a [u8]>,
    out: &mut AlignedBuf,
) -> u32 {
    let count = usize::try_from(blocks_for(bytes).max(1)).expect("records fit memory");
    if out.pages() < count {
        *out = AlignedBuf::new(count);
    }
    let mut stream = Stream { out, block: 0, at: HEADER_BYTES };
    for record in records {
        stream.put(record);
    }
    let written = stream.block * PAYLOAD_BYTES + stream.at - HEADER_BYTES;
    assert_eq!(written as u64, bytes, "the buffers counted what they hold");
    let (block, at) = (stream.block, stream.at);
    // The buffer is reused, and bytes after the last record must not be an older run's.
    if block < count {
        out.page_mut(block)[at..].fill(0);
    }
    let blocks = u32::try_from(count).expect("a run is far below 2^32 blocks");
    for index in 0..blocks {
        let rest = bytes - u64::from(index) * PAYLOAD_BYTES as u64;
        #[expect(clippy::cast_possible_truncation, reason = "at most PAYLOAD_BYTES")]
        let length = rest.min(PAYLOAD_BYTES as u64) as u32;
        let header = BlockHeader {
            epoch: head.epoch,
            position: head.position + u64::from(index),
            first: head.first,
            last: head.last,
            durable: head.durable,
            index,
            count: blocks,
            length,
        };
        header.seal(head.tag, out.page_mut(index as usize));
    }
    blocks
}

/// Adds records to the only block of a run, which is the first of `out`, after the `length` bytes
/// in it. `head` is the run's with its new last record. The records fit.
pub(crate) fn extend<'a>(
    head: RunHead,
    length: u64,
    records: impl Iterator<Item = &'a [u8]>,
    out: &mut AlignedBuf,
) {
    let before = usize::try_from(length).expect("at most PAYLOAD_BYTES");
    let mut stream = Stream { out, block: 0, at: HEADER_BYTES + before };
    for record in records {
        stream.put(record);
    }
    let written = stream.block * PAYLOAD_BYTES + stream.at - HEADER_BYTES;
    let length = u32::try_from(written).expect("at most PAYLOAD_BYTES");
    let RunHead { tag, epoch, position, first, last, durable } = head;
    let header = BlockHeader { epoch, position, first, last, durable, index: 0, count: 1, length };
    header.seal(tag, out.page_mut(0));
}

/// Writes bytes one after the other into the payloads of consecutive blocks.
struct Stream<'a> {
    out: &'a mut AlignedBuf,
    block: usize,
    at: usize,
}

impl Stream<'_> {
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let page = self.out.page_mut(self.block);
            let take = bytes.len().min(page.len() - self.at);
            let (now, later) = bytes.split_at(take);
            page[self.at..self.at + take].copy_from_slice(now);
            self.at += take;
            bytes = later;
            if self.at == page.len() {
                self.block += 1;
                self.at = HEADER_BYTES;
            }
        }
    }
}
