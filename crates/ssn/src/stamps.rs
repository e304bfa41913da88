//! Stamps: the atomics of one slot, and of one gap between keys.
//!
//! ```text
//!   slot   owner   | transaction that updates it, 0 = none      (see `context`)
//!          cstamp  | A | c of the version in the slot            A = absent or tombstone
//!          pstamp  | greatest c of its creator and its committed readers
//!          readers | one bit for each transaction that reads it (see `readers`)
//!
//!   gap    pstamp, readers: the same for "no key here"
//!
//!   0 ----> owner X ----> X publishing ----> 0
//!           cstamp c      keep, readers := 0,    cstamp c'
//!                         image, pstamp := c'
//! ```
//!
//! A key whose first insert is pending or too new has a version all the same: the *absent version*,
//! with stamp 0 and bit A. Who cannot see the key reads that one. A *tombstone* is a version of a
//! removed key.
//!
//! **Invariants**
//! 1. Only the owner of a slot changes its version, and an abort changes no word but `owner`.
//! 2. The sstamp of the version in the slot is its owner word. An older version keeps its own: the
//!    pi of its immediate overwriter, stored before the newer cstamp.
//! 3. `readers` is zero before a new version can be read. A late bit of a reader of the old version
//!    is harmless: it can only make an eta greater.
//! 4. An operation that follows a word *looks at `forward` after it*, and repeats on the copy.
//!
//! **Concurrency.** Whoever moves a slot marks it frozen (SeqCst), then copies its words, then lets
//! `forward` return the copy. Either the copy has what an operation stored, or the operation sees
//! the mark. Slots that are being published do not move.
//!
//! The paper keeps a reader list and a pending copy in a mapping table that each reader asks first.

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering};

use crate::clock::{STAMP_MAX, Stamp};
use crate::context::Owner;

const ABSENT: u64 = 1 << 63;

/// A version of a slot: the commit stamp of its creator, and whether there is a value.
///
/// ```
/// use spinney_ssn::Version;
/// let tombstone = Version::absent(12);
/// assert_eq!((tombstone.stamp(), tombstone.is_absent()), (12, true));
/// assert!(!Version::present(12).is_absent());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(u64);

impl Version {
    /// A version with a value. `stamp` is at most [`STAMP_MAX`].
    #[must_use]
    pub fn present(stamp: Stamp) -> Self {
        debug_assert!(stamp <= STAMP_MAX);
        Version(stamp)
    }

    /// An absent version (stamp 0) or a tombstone.
    #[must_use]
    pub fn absent(stamp: Stamp) -> Self {
        debug_assert!(stamp <= STAMP_MAX);
        Version(stamp | ABSENT)
    }

    /// Reads the cstamp word of a slot.
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        Version(word)
    }

    /// Returns the word for a slot.
    #[must_use]
    pub fn word(self) -> u64 {
        self.0
    }

    /// Returns the commit stamp of the creator.
    #[must_use]
    pub fn stamp(self) -> Stamp {
        self.0 & STAMP_MAX
    }

    /// Returns whether the key has no value in this version.
    #[must_use]
    pub fn is_absent(self) -> bool {
        self.0 & ABSENT != 0
    }
}

/// What is known of the immediate overwriter of an older version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Successor {
    /// Its commit stamp: the version is visible to begin stamps below it.
    pub end: Stamp,
    /// Its pi: the sstamp of the version.
    pub pi: Stamp,
}

/// A place that transactions read: a slot or a gap. A cheap handle, which may outlive a move.
pub trait Readable: Clone {
    /// Greatest commit stamp of the creator and of committed readers.
    fn pstamp(&self) -> &AtomicU64;

    /// Reader bits.
    fn readers(&self) -> &AtomicU64;

    /// Returns the copies to use instead, if the place was frozen; looked up by a SeqCst load, and
    /// waits until they are written. A slot has one copy; the gap of a leaf that was split has two.
    fn forward(&self) -> [Option<Self>; 2] {
        [None, None]
    }
}

/// The stamps of one slot. Row and column stores implement it beside the leaf, and use one
/// certifier.
pub trait Stamps: Readable {
    /// Handle of a gap.
    type Gap: Readable;

    /// The transaction that updates the slot.
    fn owner(&self) -> &AtomicU64;

    /// The version in the slot.
    fn cstamp(&self) -> &AtomicU64;

    /// Keeps the version in the slot as an older one, with its image. Called by the owner alone,
    /// before any word of the slot changes.
    fn keep(&self, version: Version, successor: Successor);

    /// Returns what [`Stamps::keep`] got for a version. The certifier asks for versions that a
    /// running transaction has noted, so they end after its begin stamp and must still be there.
    fn successor(&self, version: Version) -> Successor;
}

/// Does something with a place and, if it was moved meanwhile, with its copies. The last call is on
/// a place that was not frozen after it.
pub(crate) fn visit<R: Readable>(place: &R, act: &mut impl FnMut(&R)) {
    act(place);
    for copy in place.forward().iter().flatten() {
        visit(copy, act);
    }
}

/// Loads owner, then version, of a slot where it is now.
pub(crate) fn newest<S: Stamps>(slot: &S) -> (Owner, Version, S) {
    let mut found = (Owner::NONE, Version::present(0), slot.clone());
    visit(slot, &mut |place| {
        let owner = Owner::from_word(place.owner().load(Ordering::Acquire));
        let version = Version::from_word(place.cstamp().load(Ordering::Acquire));
        found = (owner, version, place.clone());
    });
    found
}

/// The stamp of a gap between keys, one for each leaf. Scans and failed look-ups read it, inserts
/// overwrite it, in no order among themselves.
#[derive(Debug, Default)]
pub struct Gap {
    pstamp: AtomicU64,
    readers: AtomicU64,
}

impl Readable for &Gap {
    fn pstamp(&self) -> &AtomicU64 {
        &self.pstamp
    }

    fn readers(&self) -> &AtomicU64 {
        &self.readers
    }
}

/// A slot that never moves and keeps the stamps of all its versions: for tests and examples.
///
/// ```
/// use spinney_ssn::{Certifier, Image, Slot, Version};
/// let (ssn, slot) = (Certifier::above(10), Slot::new(Version::present(1)));
/// let mut transaction = ssn.begin().unwrap();
/// assert!(transaction.poll_own(&&slot, None).is_ready());
/// transaction.certify().unwrap();
/// transaction.decide();
/// transaction.publish(|_| Image::Value);
/// transaction.finish();
/// assert_eq!(slot.version(), Version::present(11));
/// assert_eq!(slot.version_at(10), Version::present(1));
/// ```
#[derive(Debug)]
pub struct Slot {
    pub(crate) owner: AtomicU64,
    pub(crate) cstamp: AtomicU64,
    pub(crate) pstamp: AtomicU64,
    pub(crate) readers: AtomicU64,
    older: Mutex<Vec<(Version, Successor)>>,
}

impl Slot {
    /// Makes a slot with one version, which nobody reads or updates.
    #[must_use]
    pub fn new(version: Version) -> Self {
        Slot {
            owner: AtomicU64::new(0),
            cstamp: AtomicU64::new(version.word()),
            pstamp: AtomicU64::new(version.stamp()),
            readers: AtomicU64::new(0),
            older: Mutex::new(Vec::new()),
        }
    }

    /// Returns the newest published version.
    #[must_use]
    pub fn version(&self) -> Version {
        Version(self.cstamp.load(Ordering::Acquire))
    }

    /// Returns the newest published version with a stamp of at most `at`.
    ///
    /// # Panics
    /// When all versions are newer.
    #[must_use]
    pub fn version_at(&self, at: Stamp) -> Version {
        let newest = self.version();
        if newest.stamp() <= at {
            return newest;
        }
        let older = self.older.lock();
        let found = older.iter().rev().find(|(version, _)| version.stamp() <= at);
        found.expect("a first version has a stamp below all begin stamps").0
    }

    /// Returns whether the slot has neither owner nor readers.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.owner.load(Ordering::Acquire) == 0 && self.readers.load(Ordering::Acquire) == 0
    }
}

impl Readable for &Slot {
    fn pstamp(&self) -> &AtomicU64 {
        &self.pstamp
    }

    fn readers(&self) -> &AtomicU64 {
        &self.readers
    }
}

impl<'a> Stamps for &'a Slot {
    type Gap = &'a Gap;

    fn owner(&self) -> &AtomicU64 {
        &self.owner
    }

    fn cstamp(&self) -> &AtomicU64 {
        &self.cstamp
    }

    fn keep(&self, version: Version, successor: Successor) {
        self.older.lock().push((version, successor));
    }

    fn successor(&self, version: Version) -> Successor {
        let older = self.older.lock();
        let found = older.iter().rev().find(|(kept, _)| *kept == version);
        found.expect("a version that was replaced was kept before").1
    }
}
