//! Locks of segments and of their pages (TreeLine, section 4.8).
//!
//! Segments are locked in four modes, named by the extent's first page:
//!
//! | held \ wanted | IR | IW | O | OX |
//! |---|---|---|---|---|
//! | **IR** (pages are read) | yes | yes | yes | no |
//! | **IW** (pages are rewritten in place) | yes | yes | no | no |
//! | **O** (reorganized: read, and written elsewhere) | yes | no | no | no |
//! | **OX** (the index changes) | no | no | no | no |
//!
//! Pages are locked shared or exclusively, under a segment lock of IR or IW; one lock covers a page
//! and its overflow page. So a lookup waits only while its own page is rewritten, and of a
//! reorganization only for the moment in which the index changes.
//!
//! Both are striped by page number; two segments of one stripe only wait for each other more often.
//! Stripes are made in chunks when the first of a chunk is locked, and the pages of a short file
//! have few ([`stripe_of`]). So a keyspace that may get much memory has small tables while it has
//! few pages. These locks are held across I/O; so are the write-back gate and the lock of the
//! journal of changes, and no other lock of the engine.
//!
//! **Invariants**
//! 1. A thread takes several in ascending order of stripes, each once, segments before pages; or it
//!    takes those after the first without waiting, or not at all. The upgrade from O to OX goes
//!    through the stripes in the same order. So a thread waits only for holders of higher stripes,
//!    and threads never wait in a circle: a reader of several segments gets IR on those still in O,
//!    and those already in OX are below.
//! 2. While a thread waits for O, no thread gets a new IW; while one waits for OX, none gets a new
//!    IR. So neither writers nor readers starve a reorganization.
//! 3. A thread that holds one never waits for a record-cache reservation.

use std::sync::OnceLock;
// Of the system, not of schedules: it is counted where a `OnceLock` keeps others out.
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use spinney_base::PageNumber;
use spinney_base::shim::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Stripes that are made at once.
const CHUNK: usize = 64;

/// The stripe of a page among `stripes`, a power of two and at least two. Pages from one power of
/// two up to the next have as many stripes of their own, at the places of their numbers, while
/// there are enough; the pages after them share all stripes.
fn stripe_of(page: PageNumber, stripes: usize) -> usize {
    let first = match page.0.checked_ilog2() {
        Some(power) if 2 << power <= stripes => 1 << power,
        _ => 0,
    };
    let among: usize = if first == 0 { stripes } else { first };
    // Extents begin at round numbers; the product spreads them.
    let spread = u64::from(page.0.wrapping_mul(0x9E37_79B1)) * among as u64;
    first + (spread >> u32::BITS) as usize
}

/// Stripes of one kind, made when they are needed.
#[derive(Debug)]
struct Stripes<T> {
    chunks: Box<[OnceLock<Box<[T]>>]>,
    made: AtomicUsize,
}

impl<T: Default> Stripes<T> {
    fn new(stripes: usize) -> Self {
        let chunks = (0..stripes.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Stripes { chunks, made: AtomicUsize::new(0) }
    }

    fn len(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    fn get(&self, stripe: usize) -> &T {
        let make = || {
            self.made.fetch_add(1, Relaxed);
            (0..CHUNK).map(|_| T::default()).collect()
        };
        &self.chunks[stripe / CHUNK].get_or_init(make)[stripe % CHUNK]
    }

    fn of(&self, page: PageNumber) -> &T {
        self.get(stripe_of(page, self.len()))
    }

    fn bytes(&self) -> u64 {
        (size_of_val(&*self.chunks) + self.made.load(Relaxed) * CHUNK * size_of::<T>()) as u64
    }
}

fn ascending(pages: impl Iterator<Item = PageNumber>, among: usize) -> Vec<usize> {
    let mut stripes: Vec<usize> = pages.map(|page| stripe_of(page, among)).collect();
    stripes.sort_unstable();
    stripes.dedup();
    stripes
}

/// How many threads hold a stripe, and in which modes.
#[derive(Debug, Default)]
struct State {
    reading: u32,
    writing: u32,
    reorganizing: bool,
    exclusive: bool,
    waiting_to_reorganize: u32,
}

#[derive(Debug, Default)]
struct Stripe {
    state: Mutex<State>,
    changed: Condvar,
}

impl Stripe {
    fn wait_until(&self, ready: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while !ready(&state) {
            self.changed.wait(&mut state);
        }
        state
    }

    fn read(&self) {
        self.wait_until(|state| !state.exclusive).reading += 1;
    }

    fn try_read(&self) -> bool {
        let mut state = self.state.lock();
        let free = !state.exclusive;
        state.reading += u32::from(free);
        free
    }

    fn write(&self) {
        let ready = |state: &State| !state.reorganizing && state.waiting_to_reorganize == 0;
        self.wait_until(ready).writing += 1;
    }

    fn reorganize(&self) {
        let mut state = self.state.lock();
        state.waiting_to_reorganize += 1;
        while state.reorganizing || state.writing > 0 {
            self.changed.wait(&mut state);
        }
        state.waiting_to_reorganize -= 1;
        state.reorganizing = true;
    }

    fn upgrade(&self) {
        let mut state = self.state.lock();
        state.exclusive = true;
        while state.reading > 0 {
            self.changed.wait(&mut state);
        }
    }

    fn release(&self, mode: Mode) {
        let mut state = self.state.lock();
        match mode {
            Mode::Read => state.reading -= 1,
            Mode::Write => state.writing -= 1,
            Mode::Reorganize => (state.reorganizing, state.exclusive) = (false, false),
        }
        drop(state);
        self.changed.notify_all();
    }
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Read,
    Write,
    Reorganize,
}

/// Locks of segments.
#[derive(Debug)]
pub(crate) struct SegmentLocks {
    stripes: Stripes<Stripe>,
}

/// Holds one segment in IR.
#[derive(Debug)]
pub(crate) struct Reading<'a>(&'a Stripe);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.release(Mode::Read);
    }
}

/// Holds several segments in one mode.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    locks: &'a SegmentLocks,
    mode: Mode,
    stripes: Vec<usize>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.stripes.iter().for_each(|stripe| self.locks.stripes.get(*stripe).release(self.mode));
    }
}

/// Holds several segments in O.
#[derive(Debug)]
pub(crate) struct Reorganizing<'a>(Held<'a>);

impl Reorganizing<'_> {
    /// From O to OX: waits until nobody reads the segments, and keeps new readers out until it is
    /// dropped.
    pub(crate) fn upgrade(&self) {
        let Held { locks, stripes, .. } = &self.0;
        stripes.iter().for_each(|stripe| locks.stripes.get(*stripe).upgrade());
    }
}

impl SegmentLocks {
    /// Locks of so many stripes; see [`lock_stripes`](crate::policy::lock_stripes).
    pub(crate) fn new(stripes: usize) -> Self {
        SegmentLocks { stripes: Stripes::new(stripes) }
    }

    /// Bytes of memory that they hold.
    pub(crate) fn bytes(&self) -> u64 {
        self.stripes.bytes()
    }

    /// IR on one segment.
    pub(crate) fn read(&self, segment: PageNumber) -> Reading<'_> {
        let stripe = self.stripes.of(segment);
        stripe.read();
        Reading(stripe)
    }

    /// IR on one segment, if that needs no waiting.
    pub(crate) fn try_read(&self, segment: PageNumber) -> Option<Reading<'_>> {
        let stripe = self.stripes.of(segment);
        stripe.try_read().then(|| Reading(stripe))
    }

    /// IR on several.
    pub(crate) fn read_many(&self, segments: impl Iterator<Item = PageNumber>) -> Held<'_> {
        self.hold(Mode::Read, segments, Stripe::read)
    }

    /// IW on several.
    pub(crate) fn write_many(&self, segments: impl Iterator<Item = PageNumber>) -> Held<'_> {
        self.hold(Mode::Write, segments, Stripe::write)
    }

    /// O on several.
    pub(crate) fn reorganize(
        &self,
        segments: impl Iterator<Item = PageNumber>,
    ) -> Reorganizing<'_> {
        Reorganizing(self.hold(Mode::Reorganize, segments, Stripe::reorganize))
    }

    fn hold(
        &self,
        mode: Mode,
        segments: impl Iterator<Item = PageNumber>,
        take: fn(&Stripe),
    ) -> Held<'_> {
        let stripes = ascending(segments, self.stripes.len());
        stripes.iter().for_each(|stripe| take(self.stripes.get(*stripe)));
        Held { locks: self, mode, stripes }
    }
}

/// Locks of pages.
#[derive(Debug)]
pub(crate) struct PageLocks {
    stripes: Stripes<RwLock<()>>,
}

impl PageLocks {
    /// Locks of so many stripes; see [`lock_stripes`](crate::policy::lock_stripes).
    pub(crate) fn new(stripes: usize) -> Self {
        PageLocks { stripes: Stripes::new(stripes) }
    }

    /// Bytes of memory that they hold.
    pub(crate) fn bytes(&self) -> u64 {
        self.stripes.bytes()
    }

    /// Locks one page for reading.
    pub(crate) fn read(&self, page: PageNumber) -> RwLockReadGuard<'_, ()> {
        self.stripes.of(page).read()
    }

    /// Locks one page for reading, if that needs no waiting.
    pub(crate) fn try_read(&self, page: PageNumber) -> Option<RwLockReadGuard<'_, ()>> {
        self.stripes.of(page).try_read()
    }

    /// Locks many pages for reading.
    pub(crate) fn read_many(
        &self,
        pages: impl Iterator<Item = PageNumber>,
    ) -> Vec<RwLockReadGuard<'_, ()>> {
        ascending(pages, self.stripes.len())
            .into_iter()
            .map(|stripe| self.stripes.get(stripe).read())
            .collect()
    }

    /// Locks many pages for writing.
    pub(crate) fn write_many(
        &self,
        pages: impl Iterator<Item = PageNumber>,
    ) -> Vec<RwLockWriteGuard<'_, ()>> {
        ascending(pages, self.stripes.len())
            .into_iter()
            .map(|stripe| self.stripes.get(stripe).write())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::STRIPES_MIN;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Duration;

    const PAGE: PageNumber = PageNumber(128);

    fn one() -> impl Iterator<Item = PageNumber> {
        std::iter::once(PAGE)
    }

    /// A short file has few stripes, a long one all, and neighbours have different ones.
    #[test]
    fn stripes_follow_the_pages() {
        const STRIPES: usize = 4096;
        let made = |pages: std::ops::Range<u32>| {
            let locks = PageLocks::new(STRIPES);
            pages.for_each(|page| drop(locks.read(PageNumber(page))));
            locks.bytes()
        };
        let (short, all) = (made(0..64), made(0..8192));
        assert!(short < all / 16, "{short} bytes of {all}");
        assert!(all >= STRIPES as u64 * size_of::<RwLock<()>>() as u64);
        for (first, pages, least) in [(0, 64, 40), (2048, 2048, 1200), (1 << 20, 16_384, 4000)] {
            let stripes = (first..first + pages).map(|page| stripe_of(PageNumber(page), STRIPES));
            let used: std::collections::BTreeSet<_> = stripes.collect();
            assert!(used.len() >= least && *used.last().unwrap() < STRIPES, "{}", used.len());
        }
        // Round numbers, as segments begin at, are spread.
        let rounds = (64..128).map(|at| stripe_of(PageNumber(at * 16), STRIPES));
        assert!(rounds.collect::<std::collections::BTreeSet<_>>().len() > 40);
    }

    type Hold = for<'a> fn(&'a SegmentLocks) -> Box<dyn std::fmt::Debug + 'a>;

    const ALL: [(&str, Hold); 4] = [
        ("IR", |locks| Box::new(locks.read(PAGE))),
        ("IW", |locks| Box::new(locks.write_many(one()))),
        ("O", |locks| Box::new(locks.reorganize(one()))),
        ("OX", |locks| {
            let held = locks.reorganize(one());
            held.upgrade();
            Box::new(held)
        }),
    ];

    /// Whether a second holder gets in beside the first within so many milliseconds.
    fn passes(first: Hold, second: Hold, most: usize) -> bool {
        let locks = SegmentLocks::new(STRIPES_MIN);
        let inside = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let held = first(&locks);
            scope.spawn(|| {
                drop(second(&locks));
                inside.store(true, SeqCst);
            });
            for _ in 0..most {
                std::thread::sleep(Duration::from_millis(1));
                if inside.load(SeqCst) {
                    break;
                }
            }
            let passed = inside.load(SeqCst);
            drop(held);
            passed
        })
    }

    #[test]
    fn the_matrix_is_the_papers() {
        let allowed = [
            [true, true, true, false],
            [true, true, false, false],
            [true, false, false, false],
            [false, false, false, false],
        ];
        for ((held, first), row) in ALL.into_iter().zip(allowed) {
            for ((wanted, second), allowed) in ALL.into_iter().zip(row) {
                // A thread that gets the lock may be slow on a busy machine.
                let most = if allowed { 20_000 } else { 30 };
                let passed = passes(first, second, most);
                assert_eq!(passed, allowed, "{held} is held, {wanted} is wanted");
            }
        }
    }

    /// An attempt that would have to wait leaves nothing behind, and succeeds afterwards.
    #[test]
    fn trying_changes_nothing_where_it_fails() {
        let locks = SegmentLocks::new(STRIPES_MIN);
        let reorganizing = locks.reorganize(one());
        let before = locks.try_read(PAGE);
        assert!(before.is_some());
        drop(before);
        reorganizing.upgrade();
        assert!(locks.try_read(PAGE).is_none());
        drop(reorganizing);
        let after = locks.try_read(PAGE);
        assert!(after.is_some());
        drop(after);
        locks.reorganize(one()).upgrade();
    }

    /// Writers that come and go without a pause do not keep a reorganization out.
    #[test]
    fn writers_do_not_starve_a_reorganization() {
        let locks = SegmentLocks::new(STRIPES_MIN);
        let done = AtomicBool::new(false);
        // Nobody begins before both write.
        let both_write = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut held = Some(locks.write_many(one()));
                    both_write.wait();
                    while !done.load(SeqCst) {
                        let waiting = locks.stripes.of(PAGE).state.lock();
                        let wanted = waiting.waiting_to_reorganize > 0;
                        drop(waiting);
                        if wanted {
                            held = None;
                        }
                        held = Some(held.unwrap_or_else(|| locks.write_many(one())));
                    }
                });
            }
            scope.spawn(|| {
                both_write.wait();
                for _ in 0..100 {
                    locks.reorganize(one()).upgrade();
                }
                done.store(true, SeqCst);
            });
        });
    }
}
