//! Maintenance of a keyspace: background work, checks, copies, and disk space.

use std::ops::Bound;

use spinney_base::{Error, Next, Result};
use spinney_io::Directory;

use crate::{Bulk, Compacted, KeyspaceBackup, Scrubbed, VerifyReport, Watch};

/// The maintenance of one keyspace. [`Engine`](crate::Engine) has the rules of threading.
pub trait Maintain {
    /// Does a bounded piece of background work: write-back, publishing of structure, giving back
    /// memory.
    ///
    /// # Errors
    /// The cause that stopped it; it is tried again later.
    fn background(&self) -> Result<Next>;

    /// Returns the bytes of memory that the keyspace keeps whatever others want: for its index and
    /// such, and the least that its caches work with. The number changes with the data. It waits
    /// for no I/O.
    fn memory_floor(&self) -> u64;

    /// Returns whether [`Maintain::background`] has new work that should not wait. Returns `true`
    /// once, to the writer that then wakes the job.
    fn takes_wish(&self) -> bool;

    /// Ends the oldest snapshot that keeps disk space which would be free without it, because of
    /// `cause`. Returns whether there was one.
    fn end_oldest_snapshot(&self, cause: &Error) -> bool {
        let _ = cause;
        false
    }

    /// Reads everything and checks that it is consistent: every block, every order, and that every
    /// page is owned once or free. Counts what a scan would find. Calls `watch` with the number of
    /// pages after each piece, while no page is locked.
    ///
    /// # Errors
    /// `Corruption` naming the first damage; `Io`; errors of `watch`, which end it.
    fn verify(&self, watch: &mut Watch<'_>) -> Result<VerifyReport>;

    /// Begins a load of sorted records.
    ///
    /// # Errors
    /// `Unsupported` when the engine has none, `Poisoned`.
    fn bulk(&self) -> Result<Box<dyn Bulk + '_>>;

    /// Reads and checks a bounded piece of the pages that the keyspace owns. An empty `from` starts
    /// at the beginning; other values come from the result of the previous piece.
    fn scrub(&self, from: &[u8]) -> Scrubbed;

    /// Compacts a bounded piece of the records from key `from` up to the bound `upper`. It merges
    /// pending edits with their pages, drops removed records, and fills pages. It follows a
    /// checkpoint; later writes may stay as they are. Records and answers do not change. Freed
    /// pages are reused and given back as after any other change (rules P14 and P16).
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`; the records are as they were.
    fn compact(&self, from: &[u8], upper: Bound<&[u8]>) -> Result<Compacted>;

    /// Returns about how many bytes of pages [`Maintain::compact`] processes for a range.
    fn compact_bytes(&self, from: &[u8], upper: Bound<&[u8]>) -> u64;

    /// Begins to copy the keyspace into a new file `name` of a directory. The copy holds everything
    /// up to the present redo LSN. Until the result is dropped, no freed page is reused (rule P26).
    ///
    /// # Errors
    /// `Full` or `Io`.
    fn begin_backup(
        &self,
        directory: &dyn Directory,
        name: &str,
    ) -> Result<Box<dyn KeyspaceBackup + '_>>;

    /// Returns the disk space of its pages in use, large values included, in bytes. Writers call
    /// this and the next two functions, so they wait for no I/O.
    fn data_bytes(&self) -> u64;

    /// Returns about how much disk space a checkpoint takes for pages that are in memory, in bytes.
    fn unwritten_bytes(&self) -> u64;

    /// Returns about how much disk space the smallest step of [`Maintain::make_room`] takes, in
    /// bytes.
    fn step_bytes(&self) -> u64;

    /// Frees pages on a full disk by bounded steps, each within [`Maintain::step_bytes`], where
    /// removed records take space that nothing else frees.
    ///
    /// # Errors
    /// `Io`, `Corruption` or `Poisoned`. A full disk is no error: steps that do not fit are left
    /// out.
    fn make_room(&self) -> Result<()>;
}
