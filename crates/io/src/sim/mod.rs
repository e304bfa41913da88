//! A simulated disk: all in memory, all from one seed, that loses power, tears and lies on demand.
//!
//! ```text
//!            write_at                sync
//!   caller ----------> current  ----------> durable        per file: pages and size      (inode.rs)
//!            create, rename,        sync
//!            remove   -> names  ----------> durable names   per directory: pending steps (names.rs)
//!
//!            store              write-back, fence
//!   mapping ----------> current  ----------> durable        persistent memory: per line     (lines.rs)
//!
//!   directory(path) -> number, wherever the directory is moved to            (directory.rs)
//!
//!   crash(mode): durable, plus of what is unsynced whatever the seed lets survive
//!   kill():      current and what is unsynced, as a new process finds it in the page cache
//! ```
//!
//! * A **step** is any call that changes the disk or makes changes durable: each write of a batch,
//!   a sync, an allocation that grows, a creation, a rename, a removal, a directory sync, and what
//!   is done to persistent memory. Steps are
//!   counted from 1; [`SimDisk::cut_power_at`] names one, which is carried out in part and fails,
//!   as all later calls do.
//! * A **fault** ([`Fault`]) strikes once, at the n-th read, write, request for room, sync or open
//!   of the disk.
//! * What others do **behind open descriptors**: [`SimDisk::remove`], [`SimDisk::rename`],
//!   [`SimDisk::move_directory`], [`SimDisk::remove_directory`], and what the process itself does
//!   with [`SimDisk::set_working_directory`]. [`SimDisk::limit_descriptors`] is its `ulimit -n`.
//! * An **act** ([`SimDisk::act_inside`]) is what a test does in the midst of a call, once.
//! * An **observer** ([`WriteObserver`]) sees every write before it happens and every sync after,
//!   with the state of the media, and may say what state it takes the disk to be in.
//!
//! **Invariants.** (1) Same seed, same calls in the same order: same answers and same images. (2)
//! Nothing is durable before the sync that the [`File`](crate::File) and [`Disk`] contracts name: a
//! file's sync does not make its name durable. (3) A request that breaks the contract (not whole
//! pages, a direct buffer that is not aligned) panics: it would fail on some real disk.
//!
//! **Concurrency.** One lock around everything, so steps have one order; with several threads that
//! order is the scheduler's.

mod directory;
mod fault;
mod file;
mod inode;
mod lines;
mod names;
mod state;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::runtime::SplitMix;
use spinney_base::shim::Mutex;
use spinney_base::{Error, Result};

use crate::counters::{IoCounters, Purpose};
use crate::disk::{Directory, Disk, IfMissing};
use directory::SimDirectory;
pub use fault::Fault;
use state::State;
pub use state::{SimView, WriteObserver};

/// What a power loss does to data that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMode {
    /// Each unsynced sector of 512 bytes survives, vanishes or keeps an earlier unsynced content;
    /// sizes and names likewise.
    Torn512,
    /// The same in units of 4 KiB: the device never tears a page.
    Torn4K,
    /// Everything survives: the device had written it all.
    KeepAll,
    /// Only what was synced survives.
    LoseAll,
}

/// A call inside which a test wants to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A read for this purpose.
    Read(Purpose),
    /// A sync of a file.
    Sync,
}

type Act = Box<dyn FnOnce() + Send>;

/// Decides at every step (its number, the probes of its thread and the observer's states) whether
/// an image is kept, and of what kind.
pub type CapturePolicy = dyn Fn(u64, &[&'static str]) -> Option<CrashMode> + Send + Sync;

/// An image kept in the middle of a run.
#[derive(Debug)]
pub struct Capture {
    /// The step that was about to be made.
    pub step: u64,
    /// The probes that its thread was in, and the observer's states.
    pub states: Vec<&'static str>,
    /// The disk after a power loss at that moment.
    pub image: SimDisk,
}

/// The simulated disk; clones are handles to the same one. Thread-safe.
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    counters: IoCounters,
}

impl SimDisk {
    /// An empty disk with only the root directory; all its choices come from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        SimDisk::from_state(State::new(SplitMix(seed)))
    }

    fn from_state(state: State) -> Self {
        let shared = Shared { state: Mutex::new(state), counters: IoCounters::default() };
        SimDisk { shared: Arc::new(shared) }
    }

    /// The disk as a machine finds it after a power loss now. This disk is left as it is; another
    /// call draws another image.
    #[must_use]
    pub fn crash(&self, mode: CrashMode) -> SimDisk {
        SimDisk::from_state(self.shared.state.lock().after_crash(mode))
    }

    /// The disk as a new process finds it when this one is killed now: everything written is seen,
    /// nothing more is durable. The old handles keep their own copy of the past.
    #[must_use]
    pub fn kill(&self) -> SimDisk {
        SimDisk::from_state(self.shared.state.lock().after_kill())
    }

    /// Step number `step` (the first is 1) is carried out in part and fails, and everything after
    /// it fails.
    pub fn cut_power_at(&self, step: u64) {
        self.shared.state.lock().power.cut_at = Some(step);
    }

    /// Asks `policy` before every step whether to keep an image of the disk as after a crash at
    /// that moment. The policy gets the step's number, the probes of its thread, and the observer's
    /// states. The run continues undisturbed; [`SimDisk::take_captures`] returns the images.
    pub fn capture_when(&self, policy: Arc<CapturePolicy>) {
        self.shared.state.lock().capture_policy = Some(policy);
    }

    /// The images kept since the last call, in order.
    #[must_use]
    pub fn take_captures(&self) -> Vec<Capture> {
        std::mem::take(&mut self.shared.state.lock().captures)
    }

    /// Steps so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.shared.state.lock().power.steps
    }

    /// Whether the power was cut.
    #[must_use]
    pub fn power_is_off(&self) -> bool {
        self.shared.state.lock().power.off
    }

    /// The probes ([`spinney_base::probe`]) that the thread was in whose step met the cut, and the
    /// observer's states.
    #[must_use]
    pub fn states_at_power_cut(&self) -> Vec<&'static str> {
        self.shared.state.lock().power.states.clone()
    }

    /// The error of every call after a power cut, for callers of persistent memory, which gives none.
    #[must_use]
    pub fn power_cut() -> Error {
        state::power_cut()
    }

    /// Whether `error` says that the power was cut.
    #[must_use]
    pub fn is_power_cut(error: &Error) -> bool {
        error.to_string().contains(state::POWER_CUT)
    }

    /// Arms a fault.
    pub fn inject(&self, fault: Fault) {
        self.shared.state.lock().faults.arm(fault);
    }

    /// Runs `act` inside the next such call: when it has done its work, and before its caller hears
    /// of it. Nothing of the disk is held meanwhile.
    pub fn act_inside(&self, call: Call, act: impl FnOnce() + Send + 'static) {
        self.shared.state.lock().act = Some((call, Box::new(act)));
    }

    /// The probes ([`spinney_base::probe`]) that the thread was in that met the last fault.
    #[must_use]
    pub fn states_at_fault(&self) -> Vec<&'static str> {
        self.shared.state.lock().faults.states()
    }

    /// How many armed faults have struck.
    #[must_use]
    pub fn faults_struck(&self) -> u64 {
        self.shared.state.lock().faults.struck()
    }

    /// Reads so far; each of a batch counts.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.shared.state.lock().faults.reads
    }

    /// Writes so far; each of a batch counts.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.shared.state.lock().faults.writes
    }

    /// Requests for room so far: every write and every allocation that grows its file.
    #[must_use]
    pub fn room_requests(&self) -> u64 {
        self.shared.state.lock().faults.room_requests
    }

    /// Syncs of files and directories so far.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.shared.state.lock().faults.syncs
    }

    /// Opens of directories, files and locks so far.
    #[must_use]
    pub fn opens(&self) -> u64 {
        self.shared.state.lock().faults.opens
    }

    /// Descriptors that are open now: directories, files and locks.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        self.shared.state.lock().descriptors
    }

    /// From now on an open fails with EMFILE while `limit` descriptors are open; `None` is no
    /// bound, the default.
    pub fn limit_descriptors(&self, limit: Option<u64>) {
        self.shared.state.lock().descriptors_max = limit;
    }

    /// Files may take `bytes` in all; `None` is no bound, the default.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.state.lock().capacity = bytes;
    }

    /// Bytes of room that all files take.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.shared.state.lock().used()
    }

    /// What [`Directory::writes_pages_atomically`] answers; at first `false`. A failed sync leaves
    /// no torn page then, and for a power loss there is [`CrashMode::Torn4K`].
    pub fn promise_atomic_pages(&self, yes: bool) {
        self.shared.state.lock().atomic_pages = yes;
    }

    /// From now on files are not mapped ([`File::map`](crate::File::map)), as some file systems
    /// have it.
    pub fn refuse_mappings(&self) {
        self.shared.state.lock().no_mappings = true;
    }

    /// Whether files are mapped as persistent memory from now on
    /// ([`Mapping::is_persistent`](crate::Mapping::is_persistent)); at first not. Stores to it,
    /// write-backs and fences are steps. A power loss keeps what was fenced, and of each line's later
    /// stores any first ones, 8 bytes at a time. [`CrashMode::Torn512`]
    /// tears what was written by calls to a file that was mapped at 8 bytes, too.
    pub fn map_persistently(&self, yes: bool) {
        let mut state = self.shared.state.lock();
        state.is_persistent = yes;
        if !yes {
            state.inodes.values_mut().for_each(|inode| inode.be_persistent(false));
        }
    }

    /// Whether files are mapped as persistent memory.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.shared.state.lock().is_persistent
    }

    /// Lines written back to persistent memory so far, and fences.
    #[must_use]
    pub fn lines_and_fences(&self) -> (u64, u64) {
        let state = self.shared.state.lock();
        (state.lines, state.fences)
    }

    /// Lines of a file in persistent memory with stores that no fence covers: a power loss may take
    /// them, so nobody may have been promised what is there.
    ///
    /// # Errors
    /// `NotFound` when there is no such file.
    pub fn unfenced_lines(&self, path: &Path) -> Result<u64> {
        Ok(self.shared.state.lock().inode_at(path)?.unfenced_lines())
    }

    /// From now on nothing is written in place, as on file systems that copy on write: every write
    /// needs room ([`SimDisk::set_capacity`]), and files are not mapped.
    pub fn copy_on_write(&self) {
        let mut state = self.shared.state.lock();
        state.copy_on_write = true;
        state.no_mappings = true;
    }

    /// From now on files have no holes: [`File::punch_hole`](crate::File::punch_hole) answers
    /// `false`.
    pub fn refuse_holes(&self) {
        self.shared.state.lock().no_holes = true;
    }

    /// The room that a file takes, in bytes: less than its size when it has holes.
    ///
    /// # Errors
    /// `NotFound` when there is no such file.
    pub fn room(&self, path: &Path) -> Result<u64> {
        Ok(self.shared.state.lock().inode_at(path)?.room())
    }

    /// Shows every write and sync from now on to `observer`.
    pub fn observe(&self, observer: Arc<dyn WriteObserver>) {
        self.shared.state.lock().observer = Some(observer);
    }

    /// Inverts bit `bit` (0 to 7) of the byte at `offset`, in the cache and on the media.
    ///
    /// # Errors
    /// `NotFound` when there is no such file, `InvalidArgument` when it is shorter.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) -> Result<()> {
        let mut state = self.shared.state.lock();
        let inode = state.inode_at(path)?;
        if offset >= inode.len() {
            return Err(Error::invalid(format!("{} ends before {offset}", path.display())));
        }
        inode.flip_bit(offset, bit);
        Ok(())
    }

    /// The bytes of a file as a reader sees them now, for tests that look at or compare whole
    /// images.
    ///
    /// # Errors
    /// `NotFound` when there is no such file.
    pub fn contents(&self, path: &Path) -> Result<Vec<u8>> {
        Ok(self.shared.state.lock().inode_at(path)?.contents())
    }

    /// All files, sorted by path.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        self.shared.state.lock().names.current().keys().cloned().collect()
    }
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimDisk")
    }
}

impl Disk for SimDisk {
    fn directory(&self, path: &Path, if_missing: IfMissing) -> Result<Arc<dyn Directory>> {
        Ok(Arc::new(SimDirectory::open(self, path, if_missing)?))
    }

    fn counters(&self) -> &IoCounters {
        &self.shared.counters
    }

    fn backend(&self) -> &'static str {
        "simulated"
    }
}
