//! Faults: what can go wrong once, at a numbered call, and the counters that number the calls.

use std::path::{Path, PathBuf};

use spinney_base::{Error, Result};

/// One thing that goes wrong once. `at` counts from 1 over the whole life of the disk; see the
/// counters of [`SimDisk`](super::SimDisk) of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Read number `at` fails with EIO.
    ReadError {
        /// Among the reads.
        at: u64,
    },
    /// Read number `at` meets the end of the file half-way.
    ShortRead {
        /// Among the reads.
        at: u64,
    },
    /// Write number `at` fails with EIO after a part of it.
    WriteError {
        /// Among the writes.
        at: u64,
    },
    /// Write number `at` is acknowledged and never happens.
    LostWrite {
        /// Among the writes.
        at: u64,
    },
    /// Write number `at` is acknowledged and lands elsewhere.
    MisdirectedWrite {
        /// Among the writes.
        at: u64,
        /// The file it hits, or its own.
        path: Option<PathBuf>,
        /// Where it begins there, in bytes; a whole number of pages.
        offset: u64,
    },
    /// Request for room number `at` (a write or an allocation that grows the file) meets a full
    /// disk and changes nothing.
    NoSpace {
        /// Among the requests for room.
        at: u64,
    },
    /// Write number `at` meets a full disk and changes nothing, even in place, as on a file system
    /// that copies on write.
    NoSpaceInPlace {
        /// Among the writes.
        at: u64,
    },
    /// Open number `at` (of a directory, a file or a lock) fails with EMFILE: the process has no
    /// descriptor left. Nothing is made.
    NoDescriptor {
        /// Among the opens.
        at: u64,
    },
    /// Sync number `at` fails with EIO. What it should have made durable never will be, though
    /// readers still see it; the next sync succeeds.
    SyncError {
        /// Among the syncs.
        at: u64,
    },
}

/// What a write meets.
#[derive(Debug)]
pub(super) enum WriteFault {
    Error,
    NoSpace,
    Lost,
    Misdirected(Option<PathBuf>, u64),
}

/// Counters and armed faults of one disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) room_requests: u64,
    pub(super) syncs: u64,
    pub(super) opens: u64,
    armed: Vec<Fault>,
    struck: u64,
    /// The probes of the thread that met the last one.
    states: Vec<&'static str>,
}

impl Faults {
    pub(super) fn arm(&mut self, fault: Fault) {
        self.armed.push(fault);
    }

    pub(super) fn struck(&self) -> u64 {
        self.struck
    }

    pub(super) fn states(&self) -> Vec<&'static str> {
        self.states.clone()
    }

    fn strike(&mut self, hits: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let index = self.armed.iter().position(hits)?;
        self.struck += 1;
        self.states = spinney_base::probe::current();
        Some(self.armed.swap_remove(index))
    }

    /// Counts a read; `Some(true)` is a short one, `Some(false)` an error.
    pub(super) fn read(&mut self) -> Option<bool> {
        self.reads += 1;
        let now = self.reads;
        let hits = |fault: &Fault| matches!(fault, Fault::ReadError { at } | Fault::ShortRead { at } if *at == now);
        self.strike(hits).map(|fault| matches!(fault, Fault::ShortRead { .. }))
    }

    /// Counts a request for room.
    pub(super) fn room(&mut self, path: &Path) -> Result<()> {
        self.room_requests += 1;
        let now = self.room_requests;
        match self.strike(|fault| matches!(fault, Fault::NoSpace { at } if *at == now)) {
            Some(_) => Err(no_space(path)),
            None => Ok(()),
        }
    }

    /// Counts a write.
    pub(super) fn write(&mut self) -> Option<WriteFault> {
        self.writes += 1;
        let now = self.writes;
        let hits = |fault: &Fault| match fault {
            Fault::WriteError { at }
            | Fault::NoSpaceInPlace { at }
            | Fault::LostWrite { at }
            | Fault::MisdirectedWrite { at, .. } => *at == now,
            _ => false,
        };
        self.strike(hits).map(|fault| match fault {
            Fault::NoSpaceInPlace { .. } => WriteFault::NoSpace,
            Fault::LostWrite { .. } => WriteFault::Lost,
            Fault::MisdirectedWrite { path, offset, .. } => WriteFault::Misdirected(path, offset),
            _ => WriteFault::Error,
        })
    }

    /// Counts an open.
    pub(super) fn open(&mut self, path: &Path) -> Result<()> {
        self.opens += 1;
        let now = self.opens;
        match self.strike(|fault| matches!(fault, Fault::NoDescriptor { at } if *at == now)) {
            Some(_) => Err(no_descriptor(path)),
            None => Ok(()),
        }
    }

    /// Counts a sync.
    pub(super) fn sync(&mut self, path: &Path) -> Result<()> {
        self.syncs += 1;
        let now = self.syncs;
        match self.strike(|fault| matches!(fault, Fault::SyncError { at } if *at == now)) {
            Some(_) => Err(input_output("sync", path)),
            None => Ok(()),
        }
    }
}

/// `EIO`, as the real disk would tell it.
pub(super) fn input_output(what: &str, path: &Path) -> Error {
    const EIO: i32 = 5;
    let error = std::io::Error::from_raw_os_error(EIO);
    Error::io(format!("{what} {} (simulated)", path.display()), error).with_place(path, None)
}

/// `ENOSPC`, as the real disk would tell it.
pub(super) fn no_space(path: &Path) -> Error {
    const ENOSPC: i32 = 28;
    let error = std::io::Error::from_raw_os_error(ENOSPC);
    Error::io(format!("make room in {} (simulated)", path.display()), error).with_place(path, None)
}

/// `EMFILE`, as the real disk would tell it.
pub(super) fn no_descriptor(path: &Path) -> Error {
    const EMFILE: i32 = 24;
    let error = std::io::Error::from_raw_os_error(EMFILE);
    Error::io(format!("open {} (simulated)", path.display()), error).with_place(path, None)
}
