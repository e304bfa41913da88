//! Everything behind the simulated disk's lock: files, names, power, faults, and the observer's
//! view of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::runtime::SplitMix;
use spinney_base::{Error, ErrorKind, Result};

use super::directory::{Directories, DirectoryNumber};
use super::fault::{Faults, WriteFault, input_output, no_descriptor, no_space};
use super::inode::{Inode, Survival};
use super::names::{InodeNumber, Names};
use super::{Act, Call, Capture, CapturePolicy, CrashMode, SimDisk};

/// What the message of every error after a power cut contains.
pub(super) const POWER_CUT: &str = "the power is off (simulated)";

/// Sees every write before it happens and every sync after. It is called under the disk's lock and
/// must not call the disk.
pub trait WriteObserver: Send + Sync {
    /// `bytes` are about to be written at `offset` of `path`.
    fn before_write(&self, view: &SimView<'_>, path: &Path, offset: u64, bytes: &[u8]);

    /// A sync of `path` has ended well.
    fn after_sync(&self, view: &SimView<'_>, path: &Path);

    /// States that it knows the disk to be in, for steps of all threads, beside the probes of the
    /// thread that makes one.
    fn states(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// What is on the media, for an observer.
pub struct SimView<'a> {
    state: &'a State,
}

impl SimView<'_> {
    fn inode(&self, path: &Path) -> Option<&Inode> {
        let number = self.state.names.current().get(path)?;
        self.state.inodes.get(number)
    }

    /// The page at `offset` of `path` that no power loss can take away. `None` past the durable
    /// size or when never written.
    #[must_use]
    pub fn durable_page(&self, path: &Path, offset: u64) -> Option<&[u8; PAGE_BYTES]> {
        self.inode(path)?.durable_page(offset / PAGE_BYTES as u64)
    }

    /// The size of `path` that no power loss can take away.
    #[must_use]
    pub fn durable_len(&self, path: &Path) -> u64 {
        self.inode(path).map_or(0, Inode::durable_len)
    }

    /// The page at `offset` of `path` as readers see it.
    #[must_use]
    pub fn page(&self, path: &Path, offset: u64) -> Option<&[u8; PAGE_BYTES]> {
        self.inode(path)?.read_page(offset / PAGE_BYTES as u64, false)
    }

    /// Whether all that was written to the page at `offset` of `path` is durable.
    #[must_use]
    pub fn is_synced(&self, path: &Path, offset: u64) -> bool {
        self.inode(path).is_none_or(|inode| inode.is_synced(offset / PAGE_BYTES as u64))
    }

    /// All files, sorted by path.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.state.names.current().keys().map(PathBuf::as_path)
    }
}

impl std::fmt::Debug for SimView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimView")
    }
}

/// Whether and when the power goes.
#[derive(Clone, Debug, Default)]
pub(super) struct Power {
    pub(super) steps: u64,
    pub(super) cut_at: Option<u64>,
    pub(super) off: bool,
    pub(super) states: Vec<&'static str>,
}

/// How a step fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The power stays on.
    Done,
    /// The power goes before the step did anything.
    CutBefore,
    /// The step is done (in part, where it has parts) and then the power goes.
    CutAfter,
}

impl Step {
    pub(super) fn result(self) -> Result<()> {
        if self == Step::Done { Ok(()) } else { Err(power_cut()) }
    }
}

pub(super) struct State {
    pub(super) random: SplitMix,
    pub(super) inodes: BTreeMap<InodeNumber, Inode>,
    pub(super) names: Names,
    pub(super) directories: Directories,
    /// Directories that are taken: by how many readers, or 0 by one that writes.
    pub(super) locks: BTreeMap<DirectoryNumber, u32>,
    /// Descriptors that are open, and how many may be.
    pub(super) descriptors: u64,
    pub(super) descriptors_max: Option<u64>,
    pub(super) power: Power,
    pub(super) faults: Faults,
    pub(super) capacity: Option<u64>,
    pub(super) atomic_pages: bool,
    pub(super) no_holes: bool,
    pub(super) no_mappings: bool,
    /// Whether mappings are persistent memory.
    pub(super) is_persistent: bool,
    /// Lines written back to persistent memory, and fences.
    pub(super) lines: u64,
    pub(super) fences: u64,
    pub(super) copy_on_write: bool,
    pub(super) observer: Option<Arc<dyn WriteObserver>>,
    pub(super) capture_policy: Option<Arc<CapturePolicy>>,
    pub(super) captures: Vec<Capture>,
    /// What a test does inside the next such call.
    pub(super) act: Option<(Call, Act)>,
}

pub(super) fn power_cut() -> Error {
    Error::new(ErrorKind::Io, POWER_CUT)
}

pub(super) fn not_found(path: &Path) -> Error {
    Error::new(ErrorKind::NotFound, format!("{} does not exist", path.display()))
}

impl State {
    /// What is to be done inside a call like this one, once nothing is held.
    pub(super) fn take_act(&mut self, call: Call) -> Option<Act> {
        self.act.take_if(|(wanted, _)| *wanted == call).map(|(_, act)| act)
    }

    pub(super) fn new(random: SplitMix) -> Self {
        State {
            random,
            inodes: BTreeMap::new(),
            names: Names::default(),
            directories: Directories::default(),
            locks: BTreeMap::new(),
            descriptors: 0,
            descriptors_max: None,
            power: Power::default(),
            faults: Faults::default(),
            capacity: None,
            atomic_pages: false,
            no_holes: false,
            no_mappings: false,
            is_persistent: false,
            lines: 0,
            fences: 0,
            copy_on_write: false,
            observer: None,
            capture_policy: None,
            captures: Vec::new(),
            act: None,
        }
    }

    pub(super) fn after_crash(&mut self, mode: CrashMode) -> State {
        let mut random = SplitMix(self.random.next_u64());
        let (unit_bytes, survival) = match mode {
            CrashMode::Torn512 => (512, Survival::draw(&mut random)),
            CrashMode::Torn4K => (4096, Survival::draw(&mut random)),
            CrashMode::KeepAll => (4096, Survival::All),
            CrashMode::LoseAll => (4096, Survival::Nothing),
        };
        let names = self.names.after_crash(&mut random, survival);
        let mut inodes = BTreeMap::new();
        for number in names.current().values() {
            let inode = self.inodes[number].after_crash(&mut random, survival, unit_bytes);
            inodes.insert(*number, inode);
        }
        State {
            inodes,
            names,
            directories: self.directories.clone(),
            capacity: self.capacity,
            atomic_pages: self.atomic_pages,
            no_holes: self.no_holes,
            no_mappings: self.no_mappings,
            is_persistent: self.is_persistent,
            copy_on_write: self.copy_on_write,
            ..State::new(random)
        }
    }

    pub(super) fn after_kill(&mut self) -> State {
        State {
            inodes: self.inodes.clone(),
            names: self.names.clone(),
            directories: self.directories.clone(),
            capacity: self.capacity,
            atomic_pages: self.atomic_pages,
            no_holes: self.no_holes,
            no_mappings: self.no_mappings,
            is_persistent: self.is_persistent,
            copy_on_write: self.copy_on_write,
            ..State::new(SplitMix(self.random.next_u64()))
        }
    }

    pub(super) fn check_power(&self) -> Result<()> {
        if self.power.off { Err(power_cut()) } else { Ok(()) }
    }

    /// Counts an open, which fails when an armed fault or the limit says so.
    pub(super) fn take_descriptor(&mut self, path: &Path) -> Result<()> {
        self.check_power()?;
        self.faults.open(path)?;
        if self.descriptors_max.is_some_and(|most| self.descriptors >= most) {
            return Err(no_descriptor(path));
        }
        self.descriptors += 1;
        Ok(())
    }

    /// The probes of this thread, and what the observer says.
    fn states(&self) -> Vec<&'static str> {
        let mut states = spinney_base::probe::current();
        states.extend(self.observer.iter().flat_map(|observer| observer.states()));
        states
    }

    /// Counts a step and says whether it meets the cut.
    pub(super) fn step(&mut self) -> Step {
        self.power.steps += 1;
        if let Some(policy) = self.capture_policy.clone() {
            let (step, states) = (self.power.steps, self.states());
            if let Some(mode) = policy(step, &states) {
                let image = SimDisk::from_state(self.after_crash(mode));
                self.captures.push(Capture { step, states, image });
            }
        }
        if self.power.cut_at.is_none_or(|at| self.power.steps < at) {
            return Step::Done;
        }
        self.power.off = true;
        self.power.states = self.states();
        if self.random.below(2) == 0 { Step::CutBefore } else { Step::CutAfter }
    }

    pub(super) fn new_inode(&mut self) -> InodeNumber {
        let number = self.inodes.last_key_value().map_or(1, |(last, _)| last + 1);
        self.inodes.insert(number, Inode::default());
        number
    }

    pub(super) fn inode(&mut self, number: InodeNumber) -> &mut Inode {
        self.inodes.get_mut(&number).expect("a handle's file stays as long as the disk")
    }

    pub(super) fn inode_at(&mut self, path: &Path) -> Result<&mut Inode> {
        let number = self.names.current().get(path).copied().ok_or_else(|| not_found(path))?;
        Ok(self.inode(number))
    }

    /// Whether a file may grow to `bytes`, by the armed faults and the capacity.
    fn ask_room(&mut self, path: &Path, number: InodeNumber, bytes: u64) -> Result<()> {
        let begin = self.inode(number).len().min(bytes);
        self.ask_room_at(path, number, begin..bytes)
    }

    /// Whether bytes of a file may get room that they lack: those past its end, and holes.
    fn ask_room_at(&mut self, path: &Path, number: InodeNumber, at: Range<u64>) -> Result<()> {
        let page = PAGE_BYTES as u64;
        let pages = at.start / page..at.end.div_ceil(page);
        let whole = self.copy_on_write.then_some((pages.end - pages.start) * page);
        let inode = self.inode(number);
        // What is skipped between the end and a write behind it becomes a hole.
        let lacks = at.end.saturating_sub(at.start.max(inode.len())) + inode.holes_in(pages) * page;
        let more = whole.unwrap_or(lacks).max(lacks);
        if more == 0 {
            return Ok(());
        }
        self.faults.room(path)?;
        let Some(capacity) = self.capacity else { return Ok(()) };
        if self.used() + more > capacity { Err(no_space(path)) } else { Ok(()) }
    }

    /// Bytes of room that files with a name take.
    pub(super) fn used(&self) -> u64 {
        let named: BTreeSet<InodeNumber> = self.names.current().values().copied().collect();
        named.iter().map(|number| self.inodes[number].room()).sum()
    }

    pub(super) fn read(
        &mut self,
        (path, number, direct): (&Path, InodeNumber, bool),
        buf: &mut [u8],
        offset: u64,
    ) -> Result<()> {
        self.check_power()?;
        let short = match self.faults.read() {
            Some(false) => return Err(input_output("read", path)),
            fault => fault.is_some(),
        };
        let inode = self.inode(number);
        let end = if short { offset + buf.len() as u64 / 2 } else { inode.len() };
        if offset + buf.len() as u64 > end {
            let found = format!("the file's end after {}", end.saturating_sub(offset));
            let expected = format!("{} bytes", buf.len());
            return Err(Error::corruption(path.display(), offset, expected, found));
        }
        for (index, part) in buf.chunks_exact_mut(PAGE_BYTES).enumerate() {
            match inode.read_page(offset / PAGE_BYTES as u64 + index as u64, direct) {
                Some(content) => part.copy_from_slice(content),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        (path, number, direct): (&Path, InodeNumber, bool),
        buf: &[u8],
        offset: u64,
    ) -> Result<()> {
        self.check_power()?;
        if let Some(observer) = self.observer.clone() {
            observer.before_write(&SimView { state: self }, path, offset, buf);
        }
        let step = self.step();
        self.ask_room_at(path, number, offset..offset + buf.len() as u64)?;
        let pages = buf.len() / PAGE_BYTES;
        let (mut target, mut at, mut count) = (number, offset, pages);
        let mut result = step.result();
        match self.faults.write() {
            Some(WriteFault::Error) => {
                count = self.random.below(pages + 1);
                result = Err(input_output("write", path));
            }
            Some(WriteFault::NoSpace) => {
                count = 0;
                result = Err(no_space(path));
            }
            Some(WriteFault::Lost) => count = 0,
            Some(WriteFault::Misdirected(other, other_offset)) => {
                at = other_offset;
                if let Some(other) = other {
                    target = self.names.current().get(&other).copied().unwrap_or(number);
                }
            }
            None => {}
        }
        match step {
            Step::Done => {}
            Step::CutBefore => count = 0,
            Step::CutAfter => count = count.min(self.random.below(pages + 1)),
        }
        let inode = self.inode(target);
        for (index, part) in buf.chunks_exact(PAGE_BYTES).take(count).enumerate() {
            inode.write_page(at / PAGE_BYTES as u64 + index as u64, part, direct);
        }
        result
    }

    /// Writes single bytes through the page cache; a lost or misdirected one is lost.
    pub(super) fn write_bytes(
        &mut self,
        (path, number): (&Path, InodeNumber),
        bytes: &[u8],
        offset: u64,
    ) -> Result<()> {
        self.check_power()?;
        let step = self.step();
        self.ask_room_at(path, number, offset..offset + bytes.len() as u64)?;
        let mut result = step.result();
        let mut count = match self.faults.write() {
            None => bytes.len(),
            Some(WriteFault::Error) => {
                result = Err(input_output("write", path));
                self.random.below(bytes.len() + 1)
            }
            Some(WriteFault::NoSpace) => {
                result = Err(no_space(path));
                0
            }
            Some(WriteFault::Lost | WriteFault::Misdirected(..)) => 0,
        };
        match step {
            Step::Done => {}
            Step::CutBefore => count = 0,
            Step::CutAfter => count = count.min(self.random.below(bytes.len() + 1)),
        }
        let inode = self.inode(number);
        let mut at = offset;
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            let within = usize::try_from(at % PAGE_BYTES as u64).expect("below a page");
            let (part, behind) = rest.split_at(rest.len().min(PAGE_BYTES - within));
            inode.store(at / PAGE_BYTES as u64, within, part);
            at += part.len() as u64;
            rest = behind;
        }
        result
    }

    /// Carries out what a persistent mapping is asked for, unless the power is off or goes before.
    pub(super) fn in_memory<R: Default>(
        &mut self,
        number: InodeNumber,
        work: impl FnOnce(&mut Inode) -> R,
    ) -> R {
        if self.power.off || self.step() == Step::CutBefore {
            return R::default();
        }
        work(self.inode(number))
    }

    pub(super) fn sync(&mut self, path: &Path, number: InodeNumber) -> Result<()> {
        self.check_power()?;
        // A sync that meets the cut leaves everything as unsynced as it was: any part may survive.
        self.step().result()?;
        if let Err(error) = self.faults.sync(path) {
            let mut random = SplitMix(self.random.next_u64());
            let unit_bytes = if self.atomic_pages { PAGE_BYTES } else { 512 };
            self.inode(number).fail_sync(&mut random, unit_bytes);
            return Err(error);
        }
        self.inode(number).sync();
        if let Some(observer) = self.observer.clone() {
            observer.after_sync(&SimView { state: self }, path);
        }
        Ok(())
    }

    pub(super) fn punch_hole(
        &mut self,
        number: InodeNumber,
        offset: u64,
        bytes: u64,
    ) -> Result<bool> {
        self.check_power()?;
        if self.no_holes {
            return Ok(false);
        }
        let page = PAGE_BYTES as u64;
        let mut pages = bytes / page;
        let step = self.step();
        match step {
            Step::Done => {}
            Step::CutBefore => pages = 0,
            Step::CutAfter => pages /= 2,
        }
        let inode = self.inode(number);
        (offset / page..offset / page + pages).for_each(|page| inode.punch(page));
        step.result().map(|()| true)
    }

    pub(super) fn truncate(&mut self, number: InodeNumber, bytes: u64) -> Result<()> {
        self.check_power()?;
        let step = self.step();
        if step != Step::CutBefore {
            self.inode(number).truncate(bytes);
        }
        step.result()
    }

    pub(super) fn allocate(&mut self, path: &Path, number: InodeNumber, bytes: u64) -> Result<()> {
        self.check_power()?;
        if bytes <= self.inode(number).len() {
            return Ok(());
        }
        let step = self.step();
        if step == Step::CutBefore {
            return step.result();
        }
        self.ask_room(path, number, bytes)?;
        self.inode(number).grow(bytes);
        step.result()
    }
}
