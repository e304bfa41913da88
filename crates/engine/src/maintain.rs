//! What keeps a keyspace in order: background work, checks, copies, and the room on the disk.

use std::ops::Bound;

use spinney_base::{Next, Result};
use spinney_io::Directory;

use crate::{Bulk, Compacted, KeyspaceBackup, Scrubbed, VerifyReport, Watch};

/// The maintenance of one keyspace. The threading is [`Engine`](crate::Engine)'s.
pub trait Maintain {
    /// Does a bounded piece of background work: write-back, publishing of structure, giving back
    /// memory.
    ///
    /// # Errors
    /// What stopped it; it is tried again later.
    fn background(&self) -> Result<Next>;

    /// Bytes of memory that it keeps though others want them: what it cannot do without now, such as its
    /// index, and the least that its caches work with. It changes with the data. Waits for no I/O.
    fn memory_floor(&self) -> u64;

    /// Whether work for [`Maintain::background`] has come up that should not wait; says so once, to the writer who
    /// then wakes it.
    fn takes_wish(&self) -> bool;

    /// Reads everything and proves that it is consistent: every block, every order, and that every
    /// page is owned once or free. Counts what a scan would find. Calls `watch` after each piece, while
    /// no page is locked, with the number of its pages.
    ///
    /// # Errors
    /// `Corruption` naming the first damage; `Io`; what `watch` answers, which ends it.
    fn verify(&self, watch: &mut Watch<'_>) -> Result<VerifyReport>;

    /// Begins a load of sorted records.
    ///
    /// # Errors
    /// `Unsupported` when the engine has none, `Poisoned`.
    fn bulk(&self) -> Result<Box<dyn Bulk + '_>>;

    /// Reads a bounded piece of what the keyspace owns from a place on and checks it; an empty place
    /// is the start, others are what a piece before answered.
    fn scrub(&self, from: &[u8]) -> Scrubbed;

    /// Compacts a bounded piece of the records from key `from` up to the bound `upper`: what is pending
    /// for their pages is merged with them, removed records go, and pages are filled. It follows
    /// a checkpoint; what came since may stay as it is. The records and what others see of them stay the same,
    /// and what the piece frees is reused and given back as after any other change (rules P14 and P16).
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`; the records are as they were.
    fn compact(&self, from: &[u8], upper: Bound<&[u8]>) -> Result<Compacted>;

    /// About how many bytes of pages [`Maintain::compact`] goes through for a range.
    fn compact_bytes(&self, from: &[u8], upper: Bound<&[u8]>) -> u64;

    /// Begins to copy the keyspace into a new file `name` of a directory. The copy holds everything up to the
    /// redo LSN of now. Until the result is dropped nothing that is freed is reused (rule P26).
    ///
    /// # Errors
    /// `Full` or `Io`.
    fn begin_backup(
        &self,
        directory: &dyn Directory,
        name: &str,
    ) -> Result<Box<dyn KeyspaceBackup + '_>>;

    /// How much room its pages take that are in use, large values included, in bytes. Like the two below it, this is
    /// asked by writers, so it waits for no I/O.
    fn data_bytes(&self) -> u64;

    /// About how much room a checkpoint takes for what is in memory already in the form of pages, in bytes.
    fn unwritten_bytes(&self) -> u64;

    /// About how much room the smallest step takes that makes room, in bytes.
    fn step_bytes(&self) -> u64;

    /// Makes pages free on a full disk by bounded steps, each with less room than [`Maintain::step_bytes`], where removed
    /// records take room that nothing else gives back.
    ///
    /// # Errors
    /// `Io`, `Corruption` or `Poisoned`. A full disk is none: what it has no room for is not done.
    fn make_room(&self) -> Result<()>;
}
