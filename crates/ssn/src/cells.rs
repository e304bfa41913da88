//! Cells: the stamps of the records that transactions touch, at addresses that stay.
//!
//! ```text
//!   leaf       .. key value cell 7 ..      a record that no transaction touches has no cell
//!                              |
//!   cells      [0] [1] .. [7: owner cstamp pstamp readers holders | older images] ..
//!                              ^
//!   transactions hold it  -----+           by a handle, so it may move from leaf to leaf
//! ```
//!
//! A record gets a cell when a transaction first looks at it, and loses it when no transaction holds
//! it and all that its stamps say is below the *horizon*: the least begin stamp of running
//! transactions. Then its version is visible to all of them, and what the stamps would add to an eta
//! is no more than each begin stamp, with which it starts.
//!
//! **Invariants**
//! 1. The engine takes a handle of a cell, and gives the cell back, under the latch of the record's
//!    leaf. So a cell that is given back has no handle and gets none.
//! 2. Older images ascend by the stamps of their versions. The newest of them gets its image before
//!    the next version can be read.
//! 3. An image that is not whole leads from the image of the next version to its own. So a reader takes the images
//!    from the next whole one, or from the newest, down to the one that it sees, all at once. An image that nobody
//!    sees goes once the one before is led to without it.
//! 4. An older image that some transaction sees has its own overwriter with it, whatever was in between and is gone.
//!
//! **Differs from the paper**, whose mapping table each reader asks: here only transactions ask, and
//! the newest image is in the leaf.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::task::{Poll, ready};

use smallvec::SmallVec;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering};
use spinney_sync::{prefetch, prefetch_to_write};

use crate::certify::Certifier;
use crate::clock::Stamp;
use crate::context::{Fate, Owner, Running};
use crate::stamps::{Gap, Marks, Readable, Stamps, Successor, Version, Words};
use crate::transaction::Sight;

/// Cells of the first chunk; each following one has as many as all before it.
const FIRST: usize = 64;
const CHUNKS: usize = 24;

/// Most images one behind the other that are not whole. With more, readers of old versions take longer; with fewer,
/// images take more memory.
const PARTIAL_MAX: usize = 15;

/// A chain that has room for more than so many times its versions gives it back. With more, what was a long one takes memory; with
/// less, chains that grow and shrink allocate each time.
const SPARE: usize = 4;

/// An image as a cell keeps it.
pub trait Kept {
    /// Returns the bytes of memory that it has allocated.
    fn bytes(&self) -> u64;

    /// Returns whether it is an image by itself. Else it leads from the image of the next version to its own.
    fn is_whole(&self) -> bool {
        true
    }

    /// Lets the processor fetch what it has allocated: it is read soon.
    fn prefetch(&self) {}

    /// Becomes, if it can, the same image led to from where `newer` is led to from: that one goes, and this one was led to from
    /// it. Returns whether it did.
    fn absorb(&mut self, newer: &Self) -> bool;
}

/// An image that was replaced.
#[derive(Clone, Debug)]
struct Older<I> {
    version: Version,
    successor: Successor,
    image: Option<I>,
}

#[derive(Debug)]
struct Cell<I> {
    owner: AtomicU64,
    cstamp: AtomicU64,
    pstamp: AtomicU64,
    readers: AtomicU64,
    /// Handles that there are.
    holders: AtomicU64,
    /// Mostly one at most.
    older: Mutex<SmallVec<[Older<I>; 1]>>,
}

impl<I> Default for Cell<I> {
    fn default() -> Self {
        Cell {
            owner: AtomicU64::new(0),
            cstamp: AtomicU64::new(0),
            pstamp: AtomicU64::new(0),
            readers: AtomicU64::new(0),
            holders: AtomicU64::new(0),
            older: Mutex::new(SmallVec::new()),
        }
    }
}

#[derive(Debug, Default)]
struct Free {
    /// First cell that was never taken.
    end: usize,
    listed: Vec<u32>,
}

/// The cells of one keyspace, with older images of type `I`. Thread-safe.
#[derive(Debug)]
pub struct Cells<I> {
    chunks: [OnceLock<Box<[Cell<I>]>>; CHUNKS],
    free: Mutex<Free>,
    /// Bytes of older images.
    older_bytes: AtomicU64,
    /// Images that readers fetch ahead.
    ahead: usize,
}

fn chunk_of(index: usize) -> (usize, usize) {
    if index < FIRST {
        return (0, index);
    }
    let chunk = (index / FIRST).ilog2() as usize + 1;
    (chunk, index - (FIRST << (chunk - 1)))
}

impl<I> Default for Cells<I> {
    fn default() -> Self {
        let chunks = [const { OnceLock::new() }; CHUNKS];
        let older_bytes = AtomicU64::new(0);
        Cells { chunks, free: Mutex::default(), older_bytes, ahead: FETCHED_AHEAD }
    }
}

/// Lets the image before the last of these be led to without that one. Returns whether the last may go.
fn lets_go<I: Kept>(all: &mut [Older<I>]) -> bool {
    let [.., before, last] = all else { return true };
    match (&mut before.image, &last.image) {
        (Some(before), _) if before.is_whole() => true,
        (Some(before), Some(last)) => before.absorb(last),
        _ => false,
    }
}

/// Bytes of memory of an image that was replaced.
fn bytes_of<I: Kept>(older: &Older<I>) -> u64 {
    size_of::<Older<I>>() as u64 + older.image.as_ref().map_or(0, Kept::bytes)
}

impl<I> Cells<I> {
    /// Makes some whose readers fetch so many images ahead of the one that they look at; with 0 nothing is fetched.
    #[must_use]
    pub fn fetching(ahead: usize) -> Self {
        Cells { ahead, ..Cells::default() }
    }

    /// Returns the bytes of older images.
    #[must_use]
    pub fn older_bytes(&self) -> u64 {
        self.older_bytes.load(Ordering::Relaxed)
    }

    fn get(&self, index: u32) -> Option<&Cell<I>> {
        let (chunk, place) = chunk_of(index as usize);
        self.chunks.get(chunk)?.get()?.get(place)
    }

    fn cell(&self, index: u32) -> &Cell<I> {
        let (chunk, place) = chunk_of(index as usize);
        &self.chunks[chunk].get().expect("it was taken")[place]
    }

    /// Takes a free cell for a version that is visible to all transactions.
    ///
    /// # Panics
    /// When there are 2^29 cells.
    pub fn take(self: &Arc<Self>, version: Version) -> CellRef<I> {
        let mut free = self.free.lock();
        let index = free.listed.pop().unwrap_or_else(|| {
            let (chunk, _) = chunk_of(free.end);
            let length = FIRST << chunk.saturating_sub(1);
            self.chunks[chunk].get_or_init(|| (0..length).map(|_| Cell::default()).collect());
            free.end += 1;
            u32::try_from(free.end - 1).expect("cells are few")
        });
        let next = free.listed.last().copied();
        drop(free);
        if let Some(next) = next {
            self.fetch_cell(next);
        }
        let cell = self.cell(index);
        cell.cstamp.store(version.word(), Ordering::Release);
        self.hold(index)
    }

    /// Returns a handle of a cell that is in use.
    pub fn hold(self: &Arc<Self>, index: u32) -> CellRef<I> {
        self.cell(index).holders.fetch_add(1, Ordering::SeqCst);
        CellRef { cells: self.clone(), index }
    }

    /// Whether it seems that a cell can be [released](Cells::release): its stamps are not above the horizon.
    pub fn may_release(&self, index: u32, running: &Running) -> bool {
        let cell = self.cell(index);
        let stamp = Version::from_word(cell.cstamp.load(Ordering::Acquire)).stamp();
        stamp <= running.horizon() && cell.holders.load(Ordering::Relaxed) == 0
    }

    /// Drops older images that no transaction sees, if there are at least so many. Returns whether it dropped any.
    pub fn thin(&self, index: u32, running: &Running, least: usize) -> bool
    where
        I: Kept,
    {
        let mut older = self.cell(index).older.lock();
        let count = older.len();
        if count < least {
            return false;
        }
        let sum = |older: &[Older<I>]| older.iter().map(bytes_of).sum::<u64>();
        let is_seen = |older: &Older<I>| {
            let may_see = running.may_see(older.version.stamp(), older.successor.end);
            // The image of the newest is still to be kept.
            older.image.is_none() || may_see
        };
        if older.iter().all(is_seen) {
            return false;
        }
        let before = sum(&older);
        // None of the others needs the oldest ones.
        let gone = older.iter().position(is_seen).unwrap_or(count);
        older.drain(..gone);
        for at in (0..older.len()).rev() {
            if !is_seen(&older[at]) && lets_go(&mut older[..=at]) {
                older.remove(at);
            }
        }
        if older.capacity() > SPARE * older.len().max(1) {
            older.shrink_to_fit();
        }
        let after = sum(&older);
        if after < before {
            self.older_bytes.fetch_sub(before - after, Ordering::Relaxed);
        } else {
            self.older_bytes.fetch_add(after - before, Ordering::Relaxed);
        }
        older.len() < count
    }

    /// Lets the processor fetch a cell: it is looked at and written soon.
    pub fn fetch_cell(&self, index: u32) {
        let cell = self.cell(index);
        prefetch_to_write(&cell.cstamp);
        prefetch_to_write(&cell.older);
    }

    /// Takes a cell out of use if nobody holds it, it keeps no older image, and its stamps are not above the horizon, and
    /// says whether it did. No handle of it can be taken meanwhile, nor later until it was [given back](Cells::give_back).
    pub fn release(&self, index: u32, running: &Running) -> bool {
        let (cell, horizon) = (self.cell(index), running.horizon());
        let older = cell.older.lock();
        let stamp = Version::from_word(cell.cstamp.load(Ordering::Acquire)).stamp();
        let newest = stamp.max(cell.pstamp.load(Ordering::SeqCst));
        let is_idle = cell.holders.load(Ordering::SeqCst) == 0;
        if !is_idle || !older.is_empty() || newest > horizon {
            return false;
        }
        drop(older);
        for word in [&cell.owner, &cell.pstamp, &cell.readers] {
            word.store(0, Ordering::Release);
        }
        true
    }

    /// Lets cells be taken again that were [released](Cells::release).
    pub fn give_back(&self, released: &[u32]) {
        self.free.lock().listed.extend(released);
    }

    /// Keeps an image that is about to be replaced, if the owner of its cell publishes: the image of the version that was
    /// kept last. The argument of `image` says whether it has to be whole. No handle of the cell can be given back meanwhile.
    ///
    /// An owner writes a record once: the image may lead from what it writes.
    pub fn keep_image(&self, index: u32, image: impl FnOnce(bool) -> I)
    where
        I: Kept,
    {
        let cell = self.cell(index);
        if !Owner::from_word(cell.owner.load(Ordering::Acquire)).is_publishing() {
            return;
        }
        let mut older = cell.older.lock();
        let Some((newest, before)) = older.split_last_mut() else { return };
        if newest.image.is_none() {
            let is_partial =
                |older: &&Older<I>| older.image.as_ref().is_some_and(|image| !image.is_whole());
            let partial = before.iter().rev().take(PARTIAL_MAX).take_while(is_partial).count();
            let image = newest.image.insert(image(partial == PARTIAL_MAX));
            self.older_bytes.fetch_add(image.bytes(), Ordering::Relaxed);
        }
    }

    /// Returns how many cells are in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        let free = self.free.lock();
        (free.end - free.listed.len()) as u64
    }

    /// Returns the bytes of memory of all cells, without what images have allocated.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let made =
            self.chunks.iter().filter_map(OnceLock::get).map(|chunk| chunk.len()).sum::<usize>();
        (made * size_of::<Cell<I>>()) as u64
    }
}

/// What a transaction sees of a record that has a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees<T> {
    /// The newest image.
    Newest,
    /// An older one, which was replaced: what was made of the images that lead to it.
    Older(T, Successor),
}

/// Images that are fetched ahead of the one that is looked at. With more, those that are fetched first may be gone again; with
/// fewer, each is waited for.
const FETCHED_AHEAD: usize = 4;
/// Versions whose stamps are fetched before the one that is seen is searched. With more, those that are fetched first may be
/// gone again; with fewer, a search in a long chain waits for each that it looks at.
const STAMPS_FETCHED: usize = 32;

/// Images that lead to an older one, each from the one before: the first is whole, or leads from the newest image.
#[derive(Debug)]
pub struct Images<'a, I> {
    /// The last comes next.
    left: &'a [Older<I>],
    ahead: usize,
}

impl<'a, I: Kept> Images<'a, I> {
    /// Those that lead to the first of these; `None` where one of them is gone.
    fn to_first(seen: &'a [Older<I>], ahead: usize) -> Option<Self> {
        let is_whole = |older: &Older<I>| older.image.as_ref().is_none_or(Kept::is_whole);
        let count = seen.iter().position(is_whole).map_or(seen.len(), |whole| whole + 1);
        let images = Images { left: &seen[..count], ahead };
        images.left.last()?.image.as_ref()?;
        (1..ahead).for_each(|ahead| images.fetch(ahead));
        Some(images)
    }

    fn fetch(&self, ahead: usize) {
        let at = self.left.len().checked_sub(ahead + 1);
        if let Some(image) = at.and_then(|at| self.left[at].image.as_ref()) {
            image.prefetch();
        }
    }
}

impl<'a, I: Kept> Iterator for Images<'a, I> {
    type Item = &'a I;

    fn next(&mut self) -> Option<&'a I> {
        if self.ahead > 0 {
            self.fetch(self.ahead);
        }
        let (next, before) = self.left.split_last()?;
        self.left = before;
        next.image.as_ref()
    }
}

/// Looks without a handle, for readers that validate afterwards that the cell was the record's. An index that is none
/// answers `Pending`, too.
impl<I: Kept> Cells<I> {
    /// Returns what a transaction sees, an older image as `follow` makes it of those that lead there. `Pending`: the owner
    /// commits at or before the begin stamp, or publishes; look again after a yield.
    pub fn see<T>(
        &self,
        index: u32,
        (sight, certifier): (Sight, &Certifier),
        follow: impl FnOnce(Images<'_, I>) -> T,
    ) -> Poll<Sees<T>> {
        let Some(cell) = self.get(index) else { return Poll::Pending };
        let owner = Owner::from_word(cell.owner.load(Ordering::Acquire));
        let version = Version::from_word(cell.cstamp.load(Ordering::Acquire));
        if owner != Owner::NONE && owner != sight.me {
            let fate = ready!(certifier.contexts().fate(owner, sight.begin));
            if owner.is_publishing() || fate != Fate::Later {
                return Poll::Pending;
            }
        }
        if version.stamp() <= sight.begin {
            return Poll::Ready(Sees::Newest);
        }
        let older = cell.older.lock();
        if self.ahead > 0 && older.len() > 1 {
            older.iter().rev().take(STAMPS_FETCHED).for_each(prefetch);
        }
        let at = older.partition_point(|older| older.version.stamp() <= sight.begin).checked_sub(1);
        let seen = at.map(|at| &older[at..]).filter(|seen| seen[0].successor.end > sight.begin);
        // An image that is gone: its transaction was aborted, or the cell is another's.
        let images =
            seen.and_then(|seen| Some((Images::to_first(seen, self.ahead)?, seen[0].successor)));
        images.map_or(Poll::Pending, |(images, successor)| {
            Poll::Ready(Sees::Older(follow(images), successor))
        })
    }

    /// Returns who overwrote what a transaction sees, with a stamp of at most `limit`. `Pending`: the owner commits,
    /// and may be below the limit.
    pub fn overwriter(
        &self,
        index: u32,
        (sight, limit): (Sight, Stamp),
        certifier: &Certifier,
    ) -> Poll<Option<Successor>> {
        let Some(cell) = self.get(index) else { return Poll::Pending };
        let owner = Owner::from_word(cell.owner.load(Ordering::Acquire));
        let version = Version::from_word(cell.cstamp.load(Ordering::Acquire));
        if version.stamp() > sight.begin {
            let older = cell.older.lock();
            let seen = older.iter().rev().find(|older| older.version.stamp() <= sight.begin);
            // What is gone is below the horizon: only a transaction that was aborted meanwhile can ask. It conflicts.
            let successor = seen.map_or(Successor { end: 0, pi: 0 }, |seen| seen.successor);
            return Poll::Ready(Some(successor).filter(|successor| successor.end <= limit));
        }
        if owner == Owner::NONE || owner == sight.me {
            return Poll::Ready(None);
        }
        match ready!(certifier.contexts().fate(owner, limit)) {
            Fate::Later => Poll::Ready(None),
            Fate::Committed { c, pi } => Poll::Ready(Some(Successor { end: c, pi })),
            // It published or aborted: the cell says which.
            Fate::Gone => Poll::Pending,
        }
    }
}

/// Handle of a cell. While there is one the cell stays in use.
#[derive(Debug)]
pub struct CellRef<I> {
    cells: Arc<Cells<I>>,
    index: u32,
}

impl<I> Clone for CellRef<I> {
    fn clone(&self) -> Self {
        self.cells.hold(self.index)
    }
}

impl<I> Drop for CellRef<I> {
    fn drop(&mut self) {
        self.cell().holders.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<I> CellRef<I> {
    fn cell(&self) -> &Cell<I> {
        self.cells.cell(self.index)
    }

    /// Returns the index of the cell.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl<I> Readable for CellRef<I> {
    fn visit(&self, act: &mut dyn FnMut(Marks<'_>)) {
        let cell = self.cell();
        act(Marks { pstamp: &cell.pstamp, readers: &cell.readers });
    }
}

/// Engines with cells keep no stamps of gaps.
impl<I: Kept> Stamps for CellRef<I> {
    type Gap = &'static Gap;

    fn visit_slot(&self, act: &mut dyn FnMut(Words<'_>)) {
        let cell = self.cell();
        let marks = Marks { pstamp: &cell.pstamp, readers: &cell.readers };
        act(Words { owner: &cell.owner, cstamp: &cell.cstamp, marks });
    }

    fn keep(&self, version: Version, successor: Successor) {
        let older = Older { version, successor, image: None };
        self.cells.older_bytes.fetch_add(bytes_of(&older), Ordering::Relaxed);
        self.cell().older.lock().push(older);
    }

    fn successor(&self, version: Version) -> Successor {
        let older = self.cell().older.lock();
        let found = older.iter().rev().find(|older| older.version == version);
        // What is gone is below the horizon: only a transaction that was aborted meanwhile can ask. It conflicts.
        found.map_or(Successor { end: 0, pi: 0 }, |older| older.successor)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::{Certifier, Image, Look};

    /// Images from 1,000 on are not whole.
    impl Kept for u64 {
        fn bytes(&self) -> u64 {
            8
        }

        fn is_whole(&self) -> bool {
            *self < 1000
        }

        fn absorb(&mut self, newer: &u64) -> bool {
            if newer.is_whole() {
                *self %= 1000;
            }
            true
        }
    }

    fn copied(images: Images<'_, u64>) -> Vec<u64> {
        images.copied().collect()
    }

    /// Reads as an engine does, with an image that the test has beside the cell.
    fn overwrite(ssn: &Certifier, cell: &CellRef<u64>, image: u64) -> Stamp {
        let mut writer = ssn.begin_plain().unwrap();
        assert!(writer.poll_own(cell, None).is_ready());
        writer.certify().unwrap();
        writer.decide();
        writer.publish(|cell| {
            cell.cells
                .keep_image(cell.index, |is_whole| if is_whole { image % 1000 } else { image });
            Image::Value
        });
        let stamp = writer.commit_stamp();
        writer.finish();
        stamp
    }

    #[test]
    fn images_stay_for_those_that_see_them() {
        let (ssn, cells) = (Certifier::above(10), Arc::<Cells<u64>>::default());
        let cell = cells.take(Version::present(0));
        let mut early = ssn.begin().unwrap();
        assert_eq!(overwrite(&ssn, &cell, 1), 11);
        let mut late = ssn.begin().unwrap();
        assert_eq!(overwrite(&ssn, &cell, 2), 12);
        assert_eq!(early.look(&cell).map(Result::unwrap), Poll::Ready(Look::Older));
        assert_eq!(late.look(&cell).map(Result::unwrap), Poll::Ready(Look::Older));
        let see = |sight| cells.see(cell.index(), (sight, &ssn), copied);
        let older = |image, end, pi| Poll::Ready(Sees::Older(vec![image], Successor { end, pi }));
        assert_eq!(see(early.sight()), older(1, 11, 11));
        assert_eq!(see(late.sight()), older(2, 12, 12));
        let now = Sight { begin: 12, ..late.sight() };
        assert_eq!(see(now), Poll::Ready(Sees::Newest));
        let overwriter = |sight, limit| cells.overwriter(cell.index(), (sight, limit), &ssn);
        assert_eq!(overwriter(early.sight(), 12), Poll::Ready(Some(Successor { end: 11, pi: 11 })));
        assert_eq!(overwriter(late.sight(), 11), Poll::Ready(None));
        assert_eq!(overwriter(now, 12), Poll::Ready(None));
        early.note_older(Successor { end: 11, pi: 11 }).unwrap();
        drop(early);
        assert!(cells.thin(cell.index(), &ssn.running(), 1));
        assert!(!cells.release(cell.index(), &ssn.running()));
        let first = Sight { begin: 10, ..late.sight() };
        assert!(
            cells.see(cell.index(), (first, &ssn), copied).is_pending(),
            "nobody sees the first"
        );
        assert!(cells.see(cell.index(), (late.sight(), &ssn), copied).is_ready());
        drop(late);
        assert!(cells.thin(cell.index(), &ssn.running(), 1));
        assert!(!cells.release(cell.index(), &ssn.running()), "it is held");
        let index = cell.index();
        drop(cell);
        let before = Certifier::above(11).running();
        assert!(!cells.release(index, &before), "its version is above the horizon");
        assert!(cells.release(index, &ssn.running()));
        assert_ne!(cells.take(Version::absent(0)).index(), index, "it is not given back");
        cells.give_back(&[index]);
        assert_eq!((cells.used(), cells.older_bytes()), (1, 0));
        assert_eq!(cells.take(Version::absent(0)).index(), index, "it is used again");
    }

    #[test]
    fn images_lead_to_the_one_that_is_seen() {
        let (ssn, cells) = (Certifier::above(10), Arc::<Cells<u64>>::default());
        let cell = cells.take(Version::present(0));
        let begin = || ssn.begin().unwrap();
        let readers: Vec<crate::Transaction<CellRef<u64>>> = (0..40)
            .map(|number| {
                let reader = begin();
                // One that is whole among them.
                overwrite(&ssn, &cell, if number == 3 { 3 } else { 1000 + number });
                reader
            })
            .collect();
        let see = |reader: usize| match cells.see(
            cell.index(),
            (readers[reader].sight(), &ssn),
            copied,
        ) {
            Poll::Ready(Sees::Older(images, successor)) => {
                assert_eq!(successor.end, 11 + reader as u64);
                images
            }
            _ => panic!("it is older"),
        };
        assert_eq!(see(0), [3, 1002, 1001, 1000]);
        assert_eq!(see(3), [3]);
        // No more than fifteen one behind the other.
        let fifteen: Vec<u64> = (1004..1019).rev().collect();
        assert_eq!(see(4), [&[19], &fifteen[..]].concat());
        assert_eq!(see(36), [1039, 1038, 1037, 1036], "down from the newest image");
        drop(readers);
    }

    /// A transaction that is aborted for its versions may be about to ask for one that is gone.
    #[test]
    fn what_is_gone_is_a_conflict() {
        let (ssn, cells) = (Certifier::above(10), Arc::<Cells<u64>>::default());
        let cell = cells.take(Version::present(0));
        let early: crate::Transaction<CellRef<u64>> = ssn.begin().unwrap();
        overwrite(&ssn, &cell, 1);
        assert_eq!(cell.successor(Version::present(0)), Successor { end: 11, pi: 11 });
        assert!(ssn.contexts().abort_oldest());
        assert!(cells.thin(cell.index(), &ssn.running(), 1));
        assert!(!cells.release(cell.index(), &ssn.running()), "it is held");
        assert_eq!(cell.successor(Version::present(0)), Successor { end: 0, pi: 0 });
        drop(early);
    }

    #[test]
    fn many_cells_keep_their_places() {
        let cells = Arc::<Cells<u64>>::default();
        let taken: Vec<_> = (0..1000).map(|stamp| cells.take(Version::present(stamp))).collect();
        for (stamp, cell) in (0..).zip(&taken) {
            let version = Version::from_word(cell.cell().cstamp.load(Ordering::Acquire));
            assert_eq!((version, cell.index()), (Version::present(stamp), stamp as u32));
        }
        assert!(cells.bytes() >= 1000 * 40);
        drop(taken);
        let running = Certifier::above(1000).running();
        assert!((0..1000).all(|index| cells.release(index, &running)));
        cells.give_back(&(0..1000).collect::<Vec<_>>());
        assert_eq!(cells.used(), 0);
    }
}
