//! A small engine for tests: a few keys in two leaves, and transactions that run step by step. One
//! thread may run many in any order, many threads one each, and shuttle may stop them at any
//! atomic.

use std::collections::{BTreeMap, VecDeque};
// No step of a schedule.
use std::sync::atomic::AtomicU64 as Ticks;
use std::task::{Poll, ready};

use spinney_base::Result;
use spinney_base::runtime::SplitMix;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use crate::certify::Phase;
use crate::clock::Clock;
use crate::context::Contexts;
use crate::graph::{Done, check};
use crate::safe::Taking;
use crate::{Certifier, Gap, Image, Look, Slot, Stamp, Stamps, Successor, Transaction, Version};

/// Kinds of transactions, as often as they stand here.
pub(crate) const ALL: [Kind; 9] = {
    use Kind::{Mixed, Plain, Reads, Snapshot, Updates};
    [Updates, Updates, Updates, Mixed, Mixed, Reads, Reads, Plain, Snapshot]
};

/// Kinds among which the rules of snapshots matter most.
pub(crate) const WITH_SNAPSHOTS: [Kind; 3] = [Kind::Updates, Kind::Updates, Kind::Snapshot];

const LEAVES: usize = 2;

/// Times that an update finds an owner before it gives up.
const OWN_TRIES: u32 = 8;

#[derive(Debug, Default)]
struct Leaf {
    gap: Gap,
    /// One more for each new slot.
    version: AtomicU64,
}

#[derive(Debug)]
struct Key {
    slot: Slot,
    /// Whether the leaf has a slot of the key.
    exists: AtomicBool,
}

/// The keys, and what transactions over them did.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) certifier: Certifier,
    leaves: [Leaf; LEAVES],
    keys: Vec<Key>,
    initial: Vec<Stamp>,
    /// Locks of other keyspaces, which mixed transactions and plain writes take before their stamp.
    stripes: [AtomicBool; 2],
    /// Plants the error of rule T11: the stamp before the locks.
    pub(crate) stamp_before_locks: bool,
    kinds: &'static [Kind],
    history: Mutex<Vec<Done>>,
    ticks: Ticks,
}

impl Certifier {
    /// A certifier at stamp 10 with few contexts: under shuttle, an atomic takes a lot of memory.
    pub(crate) fn sized(contexts: usize, own_bits: usize) -> Self {
        Certifier::of(Clock::above(10), Contexts::sized(contexts, own_bits))
    }
}

impl World {
    /// Makes a world; with `own_bits` reader bits for one transaction each.
    pub(crate) fn new(
        keys: usize,
        own_bits: usize,
        kinds: &'static [Kind],
        random: &mut SplitMix,
    ) -> Self {
        let initial: Vec<Stamp> = (0..keys).map(|_| u64::from(random.below(10) < 6)).collect();
        let key = |stamp: &Stamp| Key {
            slot: Slot::new(match stamp {
                0 => Version::absent(0),
                stamp => Version::present(*stamp),
            }),
            exists: AtomicBool::new(*stamp > 0),
        };
        World {
            certifier: Certifier::sized(16, own_bits),
            leaves: Default::default(),
            keys: initial.iter().map(key).collect(),
            initial,
            stripes: Default::default(),
            stamp_before_locks: false,
            kinds,
            history: Mutex::default(),
            ticks: Ticks::new(1),
        }
    }

    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, std::sync::atomic::Ordering::SeqCst)
    }

    fn leaf_of(&self, key: usize) -> usize {
        key * LEAVES / self.keys.len()
    }

    /// Checks what happened, at the end.
    pub(crate) fn check(&self) -> Result<(), String> {
        check(&self.initial, &self.history.lock())?;
        let quiet = self.keys.iter().all(|key| key.slot.is_quiet());
        if quiet || self.certifier.shared.contexts.high() > self.certifier.shared.contexts.own_bits
        {
            return Ok(());
        }
        Err(format!("an owner or a reader stays: {:?}", self.keys))
    }

    #[cfg(feature = "shuttle")]
    pub(crate) fn all_exist(&self) -> bool {
        self.initial.iter().all(|stamp| *stamp > 0)
    }

    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn committed(&self) -> usize {
        self.history.lock().iter().filter(|done| done.committed).count()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Updates,
    Mixed,
    Reads,
    Plain,
    Snapshot,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Begin,
    Read(usize),
    Look(usize),
    Note(usize, Version),
    NoteOlder(usize, Version, Successor),
    Scan(usize),
    Keys(usize),
    Write(usize, Image),
    Own(usize, Image),
    Extend,
    Lock(usize),
    Stamp,
    Certify,
    Validate,
    Decide,
    Publish,
    Finish,
    Take,
}

/// One transaction and what is left of its program.
#[derive(Debug)]
pub(crate) struct Runner<'w> {
    world: &'w World,
    kind: Kind,
    transaction: Option<Transaction<&'w Slot>>,
    taking: Taking<'w>,
    steps: VecDeque<Step>,
    nodes: BTreeMap<usize, u64>,
    writes: Vec<(usize, Image)>,
    own_tries: u32,
    stripe: Option<usize>,
    done: Done,
}

impl<'w> Runner<'w> {
    /// Makes a transaction with a random program.
    pub(crate) fn new(world: &'w World, operations: usize, random: &mut SplitMix) -> Self {
        use Kind::{Mixed, Plain, Reads, Snapshot, Updates};
        let kind = world.kinds[random.below(world.kinds.len())];
        let mut steps = Vec::new();
        for _ in 0..operations {
            let (key, choice) = (random.below(world.keys.len()), random.below(100));
            let image = if random.below(8) == 0 { Image::Tombstone } else { Image::Value };
            let scan = if kind == Updates { 8 } else { 20 };
            steps.push(match choice {
                _ if kind == Snapshot => Step::Read(key),
                _ if kind == Plain => Step::Write(key, image),
                _ if choice < scan => Step::Scan(random.below(LEAVES)),
                _ if choice < 25 && kind == Mixed => Step::Extend,
                _ if choice < 55 || kind == Reads => Step::Read(key),
                _ => Step::Write(key, image),
            });
        }
        if kind == Plain {
            steps.truncate(2);
        }
        let stripe = matches!(kind, Mixed | Plain).then(|| random.below(world.stripes.len()));
        Runner::with(world, kind, stripe, &steps)
    }

    /// Makes a transaction that takes these steps and commits.
    pub(crate) fn with(
        world: &'w World,
        kind: Kind,
        stripe: Option<usize>,
        program: &[Step],
    ) -> Self {
        let mut steps = VecDeque::from([Step::Begin]);
        steps.extend(program);
        let lock = stripe.map(Step::Lock);
        match (kind, world.stamp_before_locks) {
            (Kind::Snapshot, _) => steps[0] = Step::Take,
            (_, false) => steps.extend(lock),
            (_, true) => {
                steps.push_back(Step::Stamp);
                steps.extend(lock);
            }
        }
        if kind != Kind::Snapshot {
            steps.extend([Step::Certify, Step::Validate, Step::Decide, Step::Publish]);
        }
        steps.push_back(Step::Finish);
        Runner {
            world,
            kind,
            transaction: None,
            taking: Taking::new(&world.certifier),
            steps,
            nodes: BTreeMap::new(),
            writes: Vec::new(),
            own_tries: 0,
            stripe: None,
            done: Done::default(),
        }
    }

    /// Runs to the end, waiting where needed.
    pub(crate) fn run(mut self) {
        while !crate::certify::wait(|| self.step()) {}
    }

    /// Takes the next step; ready with whether it was the last. `Pending`: it has to be taken
    /// again.
    pub(crate) fn step(&mut self) -> Poll<bool> {
        let Some(step) = self.steps.pop_front() else { return Poll::Ready(true) };
        match self.take(step) {
            Poll::Pending => {
                self.steps.push_front(step);
                Poll::Pending
            }
            Poll::Ready(Ok(())) => Poll::Ready(self.steps.is_empty()),
            Poll::Ready(Err(_)) => {
                self.end();
                self.steps.clear();
                Poll::Ready(true)
            }
        }
    }

    /// Ends the transaction, which undoes what it did if it has not committed.
    fn end(&mut self) {
        if let Some(transaction) = &self.transaction {
            self.done.begin = transaction.begin_stamp();
            self.done.cstamp = transaction.commit_stamp();
            if self.kind == Kind::Plain {
                // It overwrites what is newest when it commits.
                self.done.begin = self.done.cstamp;
            }
        }
        self.done.ended = self.world.tick();
        self.world.history.lock().push(std::mem::take(&mut self.done));
        self.transaction = None;
        if let Some(stripe) = self.stripe {
            self.world.stripes[stripe].store(false, SeqCst);
        }
    }

    fn take(&mut self, step: Step) -> Poll<Result<()>> {
        let world = self.world;
        let Some(transaction) = &mut self.transaction else { return self.take_without(step) };
        match step {
            Step::Begin | Step::Take => unreachable!("it has begun"),
            Step::Read(key) => self.steps.push_front(if world.keys[key].exists.load(SeqCst) {
                Step::Look(key)
            } else {
                Step::Scan(world.leaf_of(key))
            }),
            Step::Look(key) => {
                let slot = &world.keys[key].slot;
                match ready!(transaction.look(&slot))? {
                    Look::Own => {}
                    Look::Newest(version) => self.steps.push_front(Step::Note(key, version)),
                    Look::Older => {
                        let version = slot.version_at(transaction.begin_stamp());
                        let successor = slot.successor(version);
                        self.steps.push_front(Step::NoteOlder(key, version, successor));
                    }
                }
            }
            Step::Note(key, version) => {
                self.done.reads.push((key, version.stamp()));
                transaction.note(&&world.keys[key].slot, version)?;
            }
            Step::NoteOlder(key, version, successor) => {
                self.done.reads.push((key, version.stamp()));
                transaction.note_older(successor)?;
            }
            Step::Scan(leaf) => {
                transaction.note_gap(&&world.leaves[leaf].gap)?;
                self.steps.push_front(Step::Keys(leaf));
            }
            Step::Keys(leaf) => return Poll::Ready(self.scan(leaf)),
            Step::Write(key, image) => {
                if !world.keys[key].exists.swap(true, SeqCst) {
                    self.bump(world.leaf_of(key))?;
                }
                self.steps.push_front(Step::Own(key, image));
            }
            Step::Own(key, image) => return self.own(key, image),
            Step::Extend => {
                ready!(transaction.extend())?;
                if let Err(changed) = self.validate() {
                    self.done.reads.clear();
                    return Poll::Ready(Err(changed));
                }
            }
            Step::Lock(stripe) => {
                if world.stripes[stripe].swap(true, SeqCst) {
                    return Poll::Pending;
                }
                self.stripe = Some(stripe);
            }
            Step::Stamp => {
                ready!(transaction.step())?;
                if transaction.phase() != Phase::Floor {
                    self.steps.push_front(step);
                }
            }
            Step::Certify => {
                ready!(transaction.step())?;
                if transaction.phase() != Phase::Certified {
                    self.steps.push_front(step);
                }
            }
            Step::Validate => self.validate()?,
            Step::Decide => transaction.decide(),
            Step::Publish => {
                let written = self.done.writes.len();
                let next = self.writes.get(written);
                let is_last = transaction.publish_next(&mut |slot| {
                    let (key, image) = *next.expect("each own is published once");
                    self.done.writes.push((key, slot.version().stamp()));
                    image
                });
                if !is_last {
                    self.steps.push_front(step);
                }
            }
            Step::Finish => {
                ready!(transaction.step())?;
                if transaction.phase() == Phase::Finished {
                    self.done.committed = true;
                    self.end();
                } else {
                    self.steps.push_front(step);
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Steps of a snapshot, and the first one of all others.
    fn take_without(&mut self, step: Step) -> Poll<Result<()>> {
        let (world, begin) = (self.world, self.done.begin);
        if self.done.began == 0 {
            self.done.began = world.tick();
        }
        match step {
            Step::Begin if self.kind == Kind::Plain => {
                self.transaction = Some(world.certifier.begin_plain()?);
            }
            Step::Begin => self.transaction = Some(world.certifier.begin()?),
            Step::Take => {
                let stamp = ready!(self.taking.poll());
                (self.done.begin, self.done.cstamp, self.done.committed) = (stamp, stamp, true);
            }
            Step::Read(key) => {
                let key_of = &world.keys[key];
                let exists = key_of.exists.load(SeqCst);
                let stamp = if exists { key_of.slot.version_at(begin).stamp() } else { 0 };
                self.done.reads.push((key, stamp));
            }
            _ => self.end(),
        }
        Poll::Ready(Ok(()))
    }

    fn transaction(&mut self) -> &mut Transaction<&'w Slot> {
        self.transaction.as_mut().expect("it runs")
    }

    /// Reads all keys of a leaf whose gap is noted.
    fn scan(&mut self, leaf: usize) -> Result<()> {
        let world = self.world;
        let version = world.leaves[leaf].version.load(SeqCst);
        if *self.nodes.entry(leaf).or_insert(version) != version {
            return Err(changed());
        }
        for key in (0..world.keys.len()).filter(|key| world.leaf_of(*key) == leaf) {
            if world.keys[key].exists.load(SeqCst) {
                self.steps.push_front(Step::Look(key));
            } else {
                self.done.reads.push((key, 0));
            }
        }
        Ok(())
    }

    /// Counts a new slot in a leaf, and takes it for seen.
    fn bump(&mut self, leaf: usize) -> Result<()> {
        let version = self.world.leaves[leaf].version.fetch_add(1, SeqCst);
        match self.nodes.get_mut(&leaf) {
            Some(seen) if *seen != version => return Err(changed()),
            Some(seen) => *seen += 1,
            None => {}
        }
        Ok(())
    }

    fn own(&mut self, key: usize, image: Image) -> Poll<Result<()>> {
        let world = self.world;
        let gap = &world.leaves[world.leaf_of(key)].gap;
        match self.transaction().poll_own(&&world.keys[key].slot, Some(&gap)) {
            Poll::Pending if self.kind == Kind::Plain => return Poll::Pending,
            Poll::Pending if self.own_tries < OWN_TRIES => {
                self.own_tries += 1;
                return Poll::Pending;
            }
            Poll::Pending => return Poll::Ready(Err(changed())),
            Poll::Ready(owned) => owned?,
        }
        match self.writes.iter_mut().find(|write| write.0 == key) {
            Some(write) => write.1 = image,
            None => self.writes.push((key, image)),
        }
        Poll::Ready(Ok(()))
    }

    /// The node set: no leaf whose gap was read has a new slot.
    fn validate(&self) -> Result<()> {
        let now = |leaf: usize| self.world.leaves[leaf].version.load(SeqCst);
        if self.nodes.iter().all(|(leaf, seen)| now(*leaf) == *seen) {
            return Ok(());
        }
        Err(changed())
    }
}

fn changed() -> spinney_base::Error {
    spinney_base::Error::new(spinney_base::ErrorKind::Conflict, "a node that was read has changed")
}
