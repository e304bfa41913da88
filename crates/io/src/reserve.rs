//! Room that a database keeps for itself: a file that is shortened when the disk is full (rule
//! P29).
//!
//! A full disk must not keep a database from recovering, from removing records and from taking one
//! checkpoint. So a directory holds a file of room, [`RESERVE_NAME`], without content. A request of
//! any file of the directory that meets a full disk shortens that file by a part and is tried again,
//! until it succeeds or only the last bytes are left. From then on the reserve is *short*: its owner
//! accepts only what makes room, until the file is whole again. The last bytes are for requests
//! inside [`Reserve::with_last_room`]: they must succeed if anything can, because they give much
//! room back.
//!
//! ```text
//!   write, allocate --Full--> is there a reserve? --yes--> shorten it by a quarter, try again
//!                                                 --no---> Full
//! ```
//!
//! A request takes little more than it needs, because space that was given up is anyone's: tidying,
//! and checkpoints that need not be sparing, would spend it before the removals come.
//!
//! **Invariants**
//! 1. A request is tried again only after a part of the reserve went, so it ends.
//! 2. What a user adds never takes from the reserve, nor does what may wait, such as tidying: a
//!    thread inside [`without_reserve`] gets `Full`.
//!
//! Another program may take the room between the removal and the second try. Then the request is
//! `Full`, as it would be without a reserve.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use spinney_base::Result;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

use crate::counters::Purpose;
use crate::disk::{
    Directory, DirectoryLock, File, Mapping, OpenMode, Steps, Transfer, TransferBuf,
};

/// Name of the reserve file.
pub const RESERVE_NAME: &str = "reserve";

/// Unit in which space is taken and given back, in bytes.
const STEP_BYTES: u64 = 64 << 10;

/// Bytes by which it grows at once: this many, or this part of what it has.
const GROWTH_BYTES: u64 = 4 * STEP_BYTES;
const GROWTH_PART: u64 = 16;

/// Least bytes by which it is shortened for a request, where there are so many.
const PART_BYTES: u64 = 4 * STEP_BYTES;

/// Bytes that are left for requests inside [`Reserve::with_last_room`]: for a manifest, and for the
/// log and the checkpoint of some removals.
const LAST_BYTES: u64 = 4 * STEP_BYTES;

thread_local! {
    /// Whether this thread takes nothing from a reserve.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `request`, which may not take from a reserve: on a full disk it fails with `Full`.
pub fn without_reserve<R>(request: impl FnOnce() -> R) -> R {
    let before = REFUSED.replace(true);
    let result = request();
    REFUSED.set(before);
    result
}

/// Returns whether the calling thread is inside [`without_reserve`].
#[must_use]
pub fn takes_no_reserve() -> bool {
    REFUSED.get()
}

/// The reserve of one directory.
#[derive(Debug)]
pub struct Reserve {
    directory: Arc<dyn Directory>,
    /// Held while the file is made, grown or removed.
    held: Mutex<Held>,
    bytes: AtomicU64,
    /// Number of times it was given up.
    given_up: AtomicU64,
    is_short: AtomicBool,
    /// Number of requests that may take the last bytes.
    takers: AtomicUsize,
    /// Bytes that other requests leave of it, if that is more than the last bytes.
    floor: AtomicU64,
    /// Bytes that it had when it was not short.
    kept: AtomicU64,
    /// Whether it cannot be made, for another reason than a full disk: no descriptor, or the
    /// directory is gone.
    is_impossible: AtomicBool,
}

#[derive(Debug, Default)]
struct Held {
    /// The file, if it was opened in this process.
    file: Option<Arc<dyn File>>,
}

impl Reserve {
    /// Opens the reserve of a directory, if it has one. Touches nothing else.
    ///
    /// # Errors
    /// `Io`.
    pub fn open(directory: Arc<dyn Directory>) -> Result<Reserve> {
        let mut held = Held::default();
        let mut bytes = 0;
        if directory.exists(RESERVE_NAME)? {
            let file = directory.open(RESERVE_NAME, OpenMode::EXISTING.cached())?;
            bytes = file.len()?;
            held.file = Some(file);
        }
        Ok(Reserve {
            directory,
            held: Mutex::new(held),
            bytes: AtomicU64::new(bytes),
            given_up: AtomicU64::new(0),
            is_short: AtomicBool::new(false),
            takers: AtomicUsize::new(0),
            floor: AtomicU64::new(0),
            kept: AtomicU64::new(bytes),
            is_impossible: AtomicBool::new(false),
        })
    }

    /// Returns the bytes that are kept now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    /// Returns whether less than requested is kept, because the disk is full.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short.load(SeqCst)
    }

    /// Keeps about `bytes` bytes from now on. A difference of less than a step changes nothing.
    /// Where the file cannot be made for another reason than a full disk, there is no reserve,
    /// until [`Reserve::try_again`].
    ///
    /// # Errors
    /// `Full` when the disk has no such space: the reserve then stays as it was, and is short.
    pub fn keep(&self, bytes: u64) -> Result<()> {
        self.keep_between(bytes, bytes)
    }

    /// Keeps at least `least` bytes from now on, and about `most` where the disk has so much space.
    /// On a disk that has less, it takes half of what is there beyond `least`: an owner whose need
    /// grows then asks a few times until there is none, and not with every write.
    ///
    /// # Errors
    /// As [`Reserve::keep`].
    pub fn keep_between(&self, least: u64, most: u64) -> Result<()> {
        if self.is_impossible.load(SeqCst) {
            return Ok(());
        }
        let whole_steps = |bytes: u64| bytes.next_multiple_of(STEP_BYTES) * u64::from(bytes > 0);
        let (least, most) = (whole_steps(least), whole_steps(most));
        let mut held = self.held.lock();
        let kept = self.bytes();
        if (least..=most + most / 4).contains(&kept) {
            self.is_short.store(false, SeqCst);
            return Ok(());
        }
        let result = if most == 0 {
            self.remove(&mut held).map(drop)
        } else if most < kept {
            self.shorten(&mut held, most)
        } else {
            self.grow(&mut held, least, most)
        };
        match result {
            Err(error) if error.is_full() => {
                self.is_short.store(true, SeqCst);
                Err(error)
            }
            result => {
                self.is_short.store(false, SeqCst);
                self.kept.store(self.bytes(), SeqCst);
                self.is_impossible.store(result.is_err(), SeqCst);
                Ok(())
            }
        }
    }

    /// Allows another attempt to make a reserve that could not be made.
    pub fn try_again(&self) {
        self.is_impossible.store(false, SeqCst);
    }

    /// Grows the file to `most` bytes, or to some between `least` and that.
    fn grow(&self, held: &mut Held, least: u64, most: u64) -> Result<()> {
        let file = match &held.file {
            Some(file) => file.clone(),
            None => self.directory.open(RESERVE_NAME, OpenMode::CREATE.cached())?,
        };
        held.file = Some(file.clone());
        let before = self.bytes();
        let mut reached = before;
        // In pieces, because some file systems give back only whole extents: each is far smaller
        // than the quarter that a request takes. On a disk that is nearly full they become smaller.
        let mut largest = u64::MAX;
        while reached < most {
            let piece = (reached / GROWTH_PART / STEP_BYTES * STEP_BYTES).min(largest);
            let to = most.min(reached + piece.max(GROWTH_BYTES));
            match file.allocate(to) {
                Ok(()) => reached = to,
                Err(error) if error.is_full() && to - reached > GROWTH_BYTES => {
                    largest = (to - reached) / 2 / STEP_BYTES * STEP_BYTES;
                }
                Err(error) => {
                    let is_enough = error.is_full() && reached >= least;
                    let half = least.midpoint(reached) / STEP_BYTES * STEP_BYTES;
                    let left = if is_enough { half } else { before };
                    file.truncate(left)?;
                    self.bytes.store(left, SeqCst);
                    return if is_enough { Ok(()) } else { Err(error) };
                }
            }
        }
        self.bytes.store(most, SeqCst);
        Ok(())
    }

    fn shorten(&self, held: &mut Held, bytes: u64) -> Result<()> {
        if let Some(file) = &held.file {
            file.truncate(bytes)?;
            self.bytes.store(bytes, SeqCst);
        }
        Ok(())
    }

    fn remove(&self, held: &mut Held) -> Result<bool> {
        if held.file.take().is_none() {
            return Ok(false);
        }
        self.bytes.store(0, SeqCst);
        self.directory.remove(RESERVE_NAME)?;
        Ok(true)
    }

    /// Runs `request`, which may take the last bytes as well, with all threads that work for it.
    pub fn with_last_room<R>(&self, request: impl FnOnce() -> R) -> R {
        self.takers.fetch_add(1, SeqCst);
        let _taker = Taker(self);
        request()
    }

    /// Runs `request`, and leaves at least `bytes` in the reserve meanwhile. One request at a time
    /// may do so.
    pub fn with_floor<R>(&self, bytes: u64, request: impl FnOnce() -> R) -> R {
        self.floor.store(bytes.next_multiple_of(STEP_BYTES), SeqCst);
        let result = request();
        self.floor.store(0, SeqCst);
        result
    }

    /// Gives up a part for a request that met a full disk, unless another has since the request
    /// began. Returns whether another try may succeed.
    fn give_up(&self, began: u64) -> bool {
        if REFUSED.get() {
            return false;
        }
        let mut held = self.held.lock();
        if self.given_up.load(SeqCst) != began {
            return true;
        }
        self.is_short.store(true, SeqCst);
        // Half of a small reserve is for removals.
        let last = LAST_BYTES.min(self.kept.load(SeqCst) / 2 / STEP_BYTES * STEP_BYTES);
        let is_taker = self.takers.load(SeqCst) > 0;
        let floor = if is_taker { 0 } else { self.floor.load(SeqCst).max(last) };
        let before = self.bytes();
        let part = (before / 4).next_multiple_of(STEP_BYTES).max(PART_BYTES);
        let left = before.saturating_sub(part).max(floor);
        let given = if left >= before {
            false
        } else if left == 0 {
            self.remove(&mut held).is_ok()
        } else {
            self.shorten(&mut held, left).is_ok()
        };
        let is_more = given && before > self.bytes();
        self.given_up.fetch_add(u64::from(is_more), SeqCst);
        is_more
    }

    /// Runs a request, and again while it meets a full disk and there is a reserve.
    fn with<R>(&self, mut request: impl FnMut() -> Result<R>) -> Result<R> {
        loop {
            let began = self.given_up.load(SeqCst);
            match request() {
                Err(error) if error.is_full() && self.give_up(began) => {}
                result => return result,
            }
        }
    }
}

/// One request that may take the last bytes, until it is dropped.
struct Taker<'a>(&'a Reserve);

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        self.0.takers.fetch_sub(1, SeqCst);
    }
}

/// A directory whose files may take from a reserve.
#[derive(Debug)]
pub struct Reserved {
    below: Arc<dyn Directory>,
    reserve: Arc<Reserve>,
}

impl Reserved {
    /// Makes a directory over the one of `reserve`.
    #[must_use]
    pub fn new(reserve: Arc<Reserve>) -> Reserved {
        Reserved { below: reserve.directory.clone(), reserve }
    }
}

impl Directory for Reserved {
    fn path(&self) -> &Path {
        self.below.path()
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
        let file = self.reserve.with(|| self.below.open(name, mode))?;
        Ok(Arc::new(ReservedFile { below: file, reserve: self.reserve.clone() }))
    }

    fn exists(&self, name: &str) -> Result<bool> {
        self.below.exists(name)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.below.list()
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.reserve.with(|| self.below.rename(from, to))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.reserve.with(|| self.below.remove(name))
    }

    fn sync(&self) -> Result<()> {
        self.below.sync()
    }

    fn lock(&self) -> Result<Box<dyn DirectoryLock>> {
        self.below.lock()
    }

    fn lock_shared(&self) -> Result<Box<dyn DirectoryLock>> {
        self.below.lock_shared()
    }

    fn writes_pages_atomically(&self) -> Result<bool> {
        self.below.writes_pages_atomically()
    }

    fn free_bytes(&self) -> u64 {
        self.below.free_bytes()
    }
}

#[derive(Debug)]
struct ReservedFile {
    below: Arc<dyn File>,
    reserve: Arc<Reserve>,
}

impl File for ReservedFile {
    fn path(&self) -> &Path {
        self.below.path()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.below.read_at(buf, offset, purpose)
    }

    fn write_at(&self, buf: &[u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.reserve.with(|| self.below.write_at(buf, offset, purpose))
    }

    fn transfer_in_steps(
        &self,
        batch: &mut [Transfer<'_>],
        purpose: Purpose,
        steps: &mut dyn Steps,
    ) {
        let began = self.reserve.given_up.load(SeqCst);
        self.below.transfer_in_steps(batch, purpose, steps);
        for transfer in batch {
            let Err(error) = &transfer.result else { continue };
            if let TransferBuf::Write(buf) = &transfer.buf
                && error.is_full()
                && self.reserve.give_up(began)
            {
                let again = || self.below.write_at(buf, transfer.offset, purpose);
                transfer.result = self.reserve.with(again);
            }
        }
    }

    fn sync(&self, purpose: Purpose) -> Result<()> {
        self.below.sync(purpose)
    }

    fn len(&self) -> Result<u64> {
        self.below.len()
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        self.reserve.with(|| self.below.allocate(bytes))
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        self.below.truncate(bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.below.punch_hole(offset, bytes)
    }

    fn write_bytes(&self, bytes: &[u8], offset: u64, purpose: Purpose) -> Result<()> {
        self.reserve.with(|| self.below.write_bytes(bytes, offset, purpose))
    }

    fn map(&self, bytes: usize) -> Option<Box<dyn Mapping>> {
        self.below.map(bytes)
    }

    fn is_persistent(&self) -> bool {
        self.below.is_persistent()
    }

    fn is_direct(&self) -> bool {
        self.below.is_direct()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDisk;

    const MIB: u64 = 1 << 20;

    fn full() -> (SimDisk, Arc<Reserve>, Reserved) {
        let disk = SimDisk::new(1);
        disk.create_dir(Path::new("/db")).unwrap();
        let reserve = Arc::new(Reserve::open(disk.at("/db")).unwrap());
        reserve.keep(MIB).unwrap();
        disk.set_capacity(Some(disk.used()));
        let reserved = Reserved::new(reserve.clone());
        (disk, reserve, reserved)
    }

    /// Allocates `bytes` bytes for `name`. Returns whether it succeeded.
    fn ask(reserved: &Reserved, name: &str, bytes: u64) -> bool {
        let file = reserved.open(name, OpenMode::CREATE).unwrap();
        match file.allocate(bytes) {
            Ok(()) => true,
            Err(error) => {
                assert!(error.is_full(), "{error}");
                false
            }
        }
    }

    /// What is given up beyond a request would be anyone's, and lost to the removals.
    #[test]
    fn p29_a_request_takes_little_more_than_it_needs() {
        let (disk, reserve, reserved) = full();
        disk.set_capacity(None);
        reserve.keep(16 * MIB).unwrap();
        disk.set_capacity(Some(disk.used()));
        for (name, bytes, least) in [("a", 4096, 12 * MIB), ("b", 5 * MIB, 8 * MIB)] {
            assert!(ask(&reserved, name, bytes));
            assert!(reserve.is_short() && reserve.bytes() >= least, "{}", reserve.bytes());
        }
        assert!(!without_reserve(|| ask(&reserved, "tidying", 4 * MIB)));
        assert!(ask(&reserved, "removals", 10 * MIB), "all but the last bytes, part by part");
        assert!(reserve.bytes() >= LAST_BYTES);
        assert!(!ask(&reserved, "more", MIB));
        assert_eq!(reserve.bytes(), LAST_BYTES);
    }

    #[test]
    fn p29_each_leaves_what_it_may_not_take() {
        let (_disk, reserve, reserved) = full();
        assert!(!without_reserve(|| ask(&reserved, "value", 4096)));
        assert!(!reserve.is_short() && reserve.bytes() == MIB);
        reserve.with_floor(MIB / 2, || {
            assert!(ask(&reserved, "checkpoint", 4096));
            assert_eq!(reserve.bytes(), MIB - PART_BYTES);
            assert!(!ask(&reserved, "more", MIB), "there is as much in no case");
            assert_eq!(reserve.bytes(), MIB / 2);
        });
        assert!(reserve.is_short());
        assert!(
            ask(&reserved, "removal", MIB / 2 + 65536),
            "its room and what was given up before"
        );
        assert_eq!(reserve.bytes(), LAST_BYTES);
        assert!(!ask(&reserved, "removal", MIB));
        assert!(reserve.with_last_room(|| ask(&reserved, "drop", LAST_BYTES)));
        assert_eq!(reserve.bytes(), 0);
        assert!(reserve.keep(MIB).unwrap_err().is_full() && reserve.is_short());
    }

    /// A need that grows step by step, on a disk that has not what is kept beyond it.
    #[test]
    fn p29_a_need_that_grows_is_met_by_few_requests() {
        let (disk, reserve, _reserved) = full();
        disk.set_capacity(Some(disk.used() + 256 * MIB));
        let before = disk.room_requests();
        let mut grown = 0;
        let needed = (1..).map(|step| step * MIB / 4);
        let met = needed.take_while(|least| {
            let bytes = reserve.bytes();
            let kept = reserve.keep_between(*least, *least / 4 * 5);
            grown += u64::from(reserve.bytes() != bytes);
            assert!(kept.is_err() || reserve.bytes() >= *least && !reserve.is_short());
            kept.is_ok()
        });
        assert!(met.last() > Some(256 * MIB), "all that there is, but for a piece");
        assert!(reserve.is_short() && disk.used() <= 258 * MIB);
        assert!(grown < 50, "{grown}");
        let asked = disk.room_requests() - before;
        assert!(asked < 300, "{asked}");
    }
}
