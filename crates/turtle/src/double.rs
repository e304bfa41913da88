//! A disk in memory for the tree's tests: counts what is written, read and alive, and fails on
//! demand.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use spinney_base::{Error, ErrorKind, Result, ValueRef};
use spinney_engine::Direction;
use spinney_io::Purpose;

use crate::edit::{Edit, Hit};
use crate::files::{Files, LeafCursor, Limits, Load, Lookup};
use crate::range::{KeyRange, next_index};
use crate::run::{Run, RunBuilder};
use crate::runs::Runs;

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) leaves_written: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) nodes_written: AtomicU64,
    pub(crate) loads: AtomicU64,
    pub(crate) bytes_loaded: AtomicU64,
    /// Most packed bytes that were asked for at once.
    pub(crate) most_at_once: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) cursors: AtomicU64,
}

/// The disk. What it holds survives the trees over it only while they (or [`Double::crash`]) say
/// so.
#[derive(Debug)]
pub(crate) struct Double {
    pub(crate) limits: Limits,
    pub(crate) counts: Counts,
    /// What lookups were announced: leaf, key and hash.
    pub(crate) warmed: Mutex<Vec<(u64, Vec<u8>, u64)>>,
    /// Operations until one fails; negative for never.
    pub(crate) fails_after: AtomicI64,
    /// Whether what may wait for a leaf changes each time that it is asked for, and how often it
    /// was.
    pub(crate) wavers: bool,
    asked: AtomicU64,
    /// How many work on one update.
    threads: usize,
    disk: Arc<Mutex<Disk>>,
}

#[derive(Debug, Default)]
struct Disk {
    next: u64,
    leaves: BTreeMap<u64, Run>,
    nodes: BTreeMap<u64, Vec<u8>>,
    /// Whether owners give back what they own when they go.
    crashed: bool,
}

#[derive(Debug)]
pub(crate) struct DoubleLeaf {
    number: u64,
    bytes: u64,
    disk: Arc<Mutex<Disk>>,
}

#[derive(Debug)]
pub(crate) struct DoublePages {
    number: u64,
    disk: Arc<Mutex<Disk>>,
}

impl Drop for DoubleLeaf {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        if !disk.crashed {
            assert!(disk.leaves.remove(&self.number).is_some(), "a leaf was given back twice");
        }
    }
}

impl Drop for DoublePages {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        if !disk.crashed {
            assert!(disk.nodes.remove(&self.number).is_some(), "a node was given back twice");
        }
    }
}

impl Double {
    pub(crate) fn new(limits: Limits) -> Double {
        Double::of_threads(limits, 1)
    }

    /// One whose updates are worked on by several.
    pub(crate) fn of_threads(limits: Limits, threads: usize) -> Double {
        Double {
            limits,
            counts: Counts::default(),
            warmed: Mutex::default(),
            fails_after: AtomicI64::new(-1),
            wavers: false,
            asked: AtomicU64::new(0),
            threads,
            disk: Arc::default(),
        }
    }

    /// Numbers of all leaves and nodes that have owners.
    pub(crate) fn alive(&self) -> (Vec<u64>, Vec<u64>) {
        let disk = self.disk.lock();
        (disk.leaves.keys().copied().collect(), disk.nodes.keys().copied().collect())
    }

    /// Packed bytes of all leaves that have owners.
    pub(crate) fn bytes(&self) -> u64 {
        self.disk.lock().leaves.values().map(Run::bytes).sum()
    }

    /// Drops what is in memory as a crash would: nothing is given back meanwhile.
    pub(crate) fn crash<T>(&self, memory: T) {
        self.disk.lock().crashed = true;
        drop(memory);
        self.disk.lock().crashed = false;
    }

    /// Forgets what nobody adopted, as opening does that derives the free map.
    pub(crate) fn keep_only(&self, leaves: &[u64], nodes: &[u64]) {
        let mut disk = self.disk.lock();
        disk.leaves.retain(|number, _| leaves.contains(number));
        disk.nodes.retain(|number, _| nodes.contains(number));
    }

    fn step(&self) -> Result<()> {
        if self.fails_after.load(Relaxed) >= 0 && self.fails_after.fetch_sub(1, Relaxed) == 0 {
            return Err(Error::new(ErrorKind::Io, "the test disk fails here"));
        }
        Ok(())
    }

    fn run(&self, leaf: &DoubleLeaf) -> Run {
        self.disk.lock().leaves[&leaf.number].clone()
    }
}

impl DoubleLeaf {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl DoublePages {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

fn number(description: &[u8]) -> Result<u64> {
    let bytes =
        description.try_into().map_err(|_| Error::new(ErrorKind::Corruption, "a number"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Copies, so that nothing on this disk keeps a memtable alive.
fn copy(edits: impl IntoIterator<Item = impl Into<Option<Run>>>) -> Run {
    let mut builder = RunBuilder::default();
    for run in edits.into_iter().filter_map(Into::into) {
        run.iter().for_each(|edit| builder.push(edit));
    }
    builder.finish().unwrap()
}

impl Files for Double {
    type Leaf = DoubleLeaf;
    type Pages = DoublePages;
    type Cursor<'a> = DoubleCursor;

    fn limits(&self) -> Limits {
        if !self.wavers {
            return self.limits;
        }
        let percent = 90 + self.asked.fetch_add(1, Relaxed) % 8 * 14;
        Limits { pending_percent: Some(percent), ..self.limits }
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn write_leaf(&self, edits: &Runs, _purpose: Purpose) -> Result<Arc<DoubleLeaf>> {
        self.step()?;
        assert!(!edits.is_empty() && edits.bytes() <= self.limits.leaf_bytes);
        let run = copy(edits.as_slice().iter().cloned());
        self.counts.leaves_written.fetch_add(1, Relaxed);
        self.counts.bytes_written.fetch_add(run.bytes(), Relaxed);
        let mut disk = self.disk.lock();
        disk.next += 1;
        let (number, bytes) = (disk.next, run.bytes());
        disk.leaves.insert(number, run);
        Ok(Arc::new(DoubleLeaf { number, bytes, disk: Arc::clone(&self.disk) }))
    }

    fn leaf_bytes(&self, leaf: &DoubleLeaf) -> u64 {
        leaf.bytes
    }

    fn leaf_pages(&self, leaf: &DoubleLeaf) -> u64 {
        leaf.bytes.div_ceil(PAGE_BYTES as u64)
    }

    fn leaf_edits(&self, leaf: &DoubleLeaf) -> u64 {
        self.disk.lock().leaves[&leaf.number].len() as u64
    }

    fn load(&self, leaf: &DoubleLeaf, lower: &[u8], upper: Option<&[u8]>) -> Result<Run> {
        self.step()?;
        let run = self.run(leaf).between(lower, upper);
        self.counts.loads.fetch_add(1, Relaxed);
        self.counts.bytes_loaded.fetch_add(run.bytes(), Relaxed);
        Ok(copy([run]))
    }

    fn load_many(&self, loads: &[Load<'_, Self>]) -> Result<Vec<Run>> {
        let load = |it: &Load<'_, Self>| self.load(it.leaf, it.lower, it.upper);
        let loaded = loads.iter().map(load).collect::<Result<Vec<Run>>>()?;
        let bytes = loaded.iter().map(Run::bytes).sum();
        self.counts.most_at_once.fetch_max(bytes, Relaxed);
        Ok(loaded)
    }

    fn warm(&self, lookups: &[Lookup<'_, Double>]) {
        let announced = lookups.iter().map(|at| (at.leaf.number, at.key.to_vec(), at.hash));
        *self.warmed.lock() = announced.collect();
    }

    fn get(&self, lookup: &Lookup<'_, Double>, out: &mut Vec<u8>) -> Result<Option<Hit>> {
        self.step()?;
        self.counts.gets.fetch_add(1, Relaxed);
        let run = self.run(lookup.leaf);
        Ok(run.get(lookup.key).map(|edit| edit.hit(out)))
    }

    fn cursor(
        &self,
        leaf: &Arc<DoubleLeaf>,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<DoubleCursor> {
        self.step()?;
        self.counts.cursors.fetch_add(1, Relaxed);
        let run = self.run(leaf);
        let mut left = run.within(&match direction {
            Direction::Forward => KeyRange { lower: from, upper: Bound::Unbounded },
            Direction::Reverse => KeyRange { lower: Bound::Unbounded, upper: from },
        });
        let at = next_index(&mut left, direction);
        Ok(DoubleCursor { run, at, left, direction, leaf: Arc::clone(leaf) })
    }

    fn write_node(&self, payload: &[u8]) -> Result<Arc<DoublePages>> {
        self.step()?;
        self.counts.nodes_written.fetch_add(1, Relaxed);
        let mut disk = self.disk.lock();
        disk.next += 1;
        let number = disk.next;
        disk.nodes.insert(number, payload.to_vec());
        Ok(Arc::new(DoublePages { number, disk: Arc::clone(&self.disk) }))
    }

    fn open_node(&self, description: &[u8]) -> Result<(Arc<DoublePages>, Vec<u8>)> {
        self.step()?;
        let number = number(description)?;
        let payload = self.disk.lock().nodes.get(&number).cloned();
        let payload = payload.ok_or_else(|| Error::new(ErrorKind::Corruption, "no such node"))?;
        Ok((Arc::new(DoublePages { number, disk: Arc::clone(&self.disk) }), payload))
    }

    fn open_leaf(&self, description: &[u8]) -> Result<Arc<DoubleLeaf>> {
        let number = number(description)?;
        let bytes = self.disk.lock().leaves.get(&number).map(Run::bytes);
        let bytes = bytes.ok_or_else(|| Error::new(ErrorKind::Corruption, "no such leaf"))?;
        Ok(Arc::new(DoubleLeaf { number, bytes, disk: Arc::clone(&self.disk) }))
    }

    fn describe_leaf(&self, leaf: &DoubleLeaf, out: &mut Vec<u8>) {
        out.extend_from_slice(&leaf.number.to_le_bytes());
    }

    fn describe_node(&self, pages: &DoublePages, out: &mut Vec<u8>) {
        out.extend_from_slice(&pages.number.to_le_bytes());
    }
}

/// Holds the leaf, as a cursor over real pages must.
#[derive(Debug)]
pub(crate) struct DoubleCursor {
    run: Run,
    at: Option<usize>,
    /// What lies behind it.
    left: Range<usize>,
    direction: Direction,
    #[expect(dead_code, reason = "it is held, not read")]
    leaf: Arc<DoubleLeaf>,
}

impl DoubleCursor {
    fn edit(&self) -> Option<Edit<'_>> {
        self.at.map(|at| self.run.edit(at))
    }
}

impl LeafCursor for DoubleCursor {
    fn key(&self) -> Option<&[u8]> {
        self.edit().map(|edit| edit.key)
    }

    fn is_tombstone(&self) -> bool {
        self.edit().is_some_and(|edit| edit.value.is_none())
    }

    fn record(&mut self) -> Result<Option<(&[u8], ValueRef<'_>)>> {
        Ok(self.edit().and_then(|edit| Some((edit.key, edit.value?))))
    }

    fn advance(&mut self) -> Result<()> {
        self.at = next_index(&mut self.left, self.direction);
        Ok(())
    }
}
