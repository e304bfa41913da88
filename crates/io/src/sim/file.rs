//! A handle to a file of the simulated disk: checks the contract, counts, and orders batches by the
//! seed.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Result};

use super::lines::WORD_BYTES;
use super::names::InodeNumber;
use super::state::State;
use super::{Call, SimDisk};
use crate::counters::Purpose;
use crate::disk::{File, Mapping, OpenMode, Steps, Transfer, TransferBuf};

#[derive(Debug)]
pub(super) struct SimFile {
    disk: SimDisk,
    path: PathBuf,
    inode: InodeNumber,
    mode: OpenMode,
}

impl SimFile {
    /// A handle whose descriptor was taken.
    pub(super) fn new(disk: SimDisk, path: PathBuf, inode: InodeNumber, mode: OpenMode) -> Self {
        SimFile { disk, path, inode, mode }
    }

    /// Makes a call that a test may act inside of.
    fn call(&self, call: Call, work: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
        let mut state = self.disk.shared.state.lock();
        let result = work(&mut state);
        let act = state.take_act(call);
        drop(state);
        if let Some(act) = act {
            act();
        }
        result
    }

    fn target(&self) -> (&Path, InodeNumber, bool) {
        (&self.path, self.inode, self.mode.direct)
    }

    fn check_writable(&self) -> Result<()> {
        if self.mode.read_only {
            let message = format!("{} was opened to be read only", self.path.display());
            return Err(Error::new(ErrorKind::Io, message));
        }
        Ok(())
    }

    /// Panics on a request that some real disk would refuse: that is an error of the caller,
    /// whatever the data.
    fn check_contract(&self, buf: &[u8], offset: u64) {
        let path = self.path.display();
        let bytes = buf.len();
        assert!(
            offset.is_multiple_of(PAGE_BYTES as u64) && bytes.is_multiple_of(PAGE_BYTES),
            "transfer of {bytes} bytes at {offset} of {path} is not whole pages"
        );
        assert!(
            !self.mode.direct || buf.as_ptr().addr().is_multiple_of(PAGE_BYTES),
            "the buffer of a direct transfer of {path} is not aligned"
        );
    }
}

impl File for SimFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.check_contract(buf, offset);
        self.disk.shared.counters.read(purpose, buf.len());
        self.call(Call::Read(purpose), |state| state.read(self.target(), buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.check_contract(buf, offset);
        self.check_writable()?;
        self.disk.shared.counters.write(purpose, buf.len());
        self.disk.shared.state.lock().write(self.target(), buf, offset)
    }

    fn transfer_in_steps(
        &self,
        batch: &mut [Transfer<'_>],
        purpose: Purpose,
        steps: &mut dyn Steps,
    ) {
        // The order of completion is the seed's, by a shuffle; between any two transfers the power
        // may go.
        let begun = batch.iter_mut().enumerate().map_while(|(index, transfer)| {
            steps.begin(index, &mut transfer.offset).then_some(index)
        });
        let mut order: Vec<usize> = begun.collect();
        {
            let mut state = self.disk.shared.state.lock();
            for last in (1..order.len()).rev() {
                let other = state.random.below(last + 1);
                order.swap(last, other);
            }
        }
        for index in order {
            let transfer = &mut batch[index];
            transfer.result = match &mut transfer.buf {
                TransferBuf::Read(buf) => self.read_at(buf, transfer.offset, purpose),
                TransferBuf::Write(buf) => self.write_at(buf, transfer.offset, purpose),
            };
            steps.ended(index, transfer);
        }
    }

    fn sync(&self, purpose: Purpose) -> Result<()> {
        self.disk.shared.counters.sync(purpose);
        self.call(Call::Sync, |state| state.sync(&self.path, self.inode))
    }

    fn len(&self) -> Result<u64> {
        let mut state = self.disk.shared.state.lock();
        state.check_power()?;
        Ok(state.inode(self.inode).len())
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        self.check_writable()?;
        self.disk.shared.state.lock().allocate(&self.path, self.inode, bytes)
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        self.check_writable()?;
        assert!(bytes.is_multiple_of(PAGE_BYTES as u64), "files are whole pages");
        self.disk.shared.state.lock().truncate(self.inode, bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.check_writable()?;
        let page = PAGE_BYTES as u64;
        assert!(offset.is_multiple_of(page) && bytes.is_multiple_of(page), "holes are whole pages");
        self.disk.shared.state.lock().punch_hole(self.inode, offset, bytes)
    }

    fn write_bytes(&self, bytes: &[u8], offset: u64, purpose: Purpose) -> Result<()> {
        assert!(!self.mode.direct, "single bytes go through the page cache");
        self.check_writable()?;
        self.disk.shared.counters.write(purpose, bytes.len());
        self.disk.shared.state.lock().write_bytes((&self.path, self.inode), bytes, offset)
    }

    fn map(&self, bytes: usize) -> Option<Box<dyn Mapping>> {
        let is_there = self.len().is_ok_and(|len| len >= bytes as u64);
        assert!(is_there || self.disk.shared.state.lock().check_power().is_err(), "it has room");
        let (disk, inode) = (self.disk.clone(), self.inode);
        let mut state = self.disk.shared.state.lock();
        if self.mode.direct || state.no_mappings {
            return None;
        }
        if !state.is_persistent {
            return Some(Box::new(SimMapping { disk, inode, bytes }));
        }
        state.inode(inode).be_persistent(true);
        Some(Box::new(SimMemory { disk, inode, bytes }))
    }

    fn is_persistent(&self) -> bool {
        let state = self.disk.shared.state.lock();
        state.is_persistent && !self.mode.direct && !state.no_mappings
    }

    fn is_direct(&self) -> bool {
        self.mode.direct
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.disk.shared.state.lock().descriptors -= 1;
    }
}

/// A mapped file. Stores are no steps: where power goes between two of them it may as well go
/// before the next write.
#[derive(Debug)]
struct SimMapping {
    disk: SimDisk,
    inode: InodeNumber,
    bytes: usize,
}

/// Bytes as whole words of 8, with zeros behind them.
fn padded(offset: usize, bytes: &[u8], mapped: usize) -> Vec<u8> {
    let length = bytes.len().next_multiple_of(WORD_BYTES);
    let is_there = offset.is_multiple_of(WORD_BYTES) && offset + length <= mapped;
    assert!(is_there, "a place in the mapping");
    let mut padded = bytes.to_vec();
    padded.resize(length, 0);
    padded
}

impl Mapping for SimMapping {
    fn store(&self, offset: usize, bytes: &[u8]) {
        let padded = padded(offset, bytes, self.bytes);
        let end = offset + padded.len();
        let mut state = self.disk.shared.state.lock();
        if state.check_power().is_err() {
            return;
        }
        let mut at = offset;
        while at < end {
            let (page, within) = (at / PAGE_BYTES, at % PAGE_BYTES);
            let take = (end - at).min(PAGE_BYTES - within);
            let part = &padded[at - offset..][..take];
            state.inode(self.inode).store(page as u64, within, part);
            at += take;
        }
    }

    fn is_persistent(&self) -> bool {
        false
    }

    fn write_back(&self, range: Range<usize>) {
        assert!(range.end <= self.bytes, "a place in the mapping");
    }

    fn fence(&self) {}
}

/// A file in persistent memory. Stores, write-backs and fences are steps. They have no answer: after
/// a power cut they do nothing, and only [`SimDisk::power_is_off`] says that what a caller takes for
/// done is not.
#[derive(Debug)]
struct SimMemory {
    disk: SimDisk,
    inode: InodeNumber,
    bytes: usize,
}

impl Mapping for SimMemory {
    fn store(&self, offset: usize, bytes: &[u8]) {
        let padded = padded(offset, bytes, self.bytes);
        self.disk.shared.state.lock().in_memory(self.inode, |inode| {
            for (number, word) in padded.as_chunks::<WORD_BYTES>().0.iter().enumerate() {
                inode.store_word(((offset + number * WORD_BYTES) as u64, *word));
            }
        });
    }

    fn is_persistent(&self) -> bool {
        true
    }

    fn write_back(&self, range: Range<usize>) {
        assert!(range.end <= self.bytes, "a place in the mapping");
        let bytes = range.start as u64..range.end as u64;
        let mut state = self.disk.shared.state.lock();
        state.lines +=
            state.in_memory(self.inode, |inode| inode.write_back(bytes, thread::current().id()));
    }

    fn fence(&self) {
        let mut state = self.disk.shared.state.lock();
        state.in_memory(self.inode, |inode| inode.fence(thread::current().id()));
        state.fences += 1;
    }
}
