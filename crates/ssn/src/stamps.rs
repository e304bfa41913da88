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
//! 4. Each operation is one *visit*. A place that may move meanwhile is visited again where it is
//!    then, so what an operation stores is not lost.
//!
//! **Concurrency.** An engine keeps a place where it is during a visit, by a latch. Or it marks the
//! place frozen (SeqCst) before it copies the words: either the copy has what a visit stored, or the
//! visit sees the mark after it and goes to the copy.
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

/// Words of a place that transactions read.
#[derive(Clone, Copy, Debug)]
pub struct Marks<'a> {
    /// Greatest commit stamp of the creator and of committed readers.
    pub pstamp: &'a AtomicU64,
    /// Reader bits.
    pub readers: &'a AtomicU64,
}

/// Words of a slot.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// The transaction that updates the slot.
    pub owner: &'a AtomicU64,
    /// The version in the slot.
    pub cstamp: &'a AtomicU64,
    /// What readers change.
    pub marks: Marks<'a>,
}

/// A place that transactions read: a slot or a gap. A handle, which outlives a move.
pub trait Readable: Clone {
    /// Calls `act` with the words where they are. If they were moved meanwhile it is called again
    /// with the copies: a slot has one, the gap of a leaf that was split has two. The last call is
    /// for words that were not moved before its end. `act` waits for nothing.
    fn visit(&self, act: &mut dyn FnMut(Marks<'_>));
}

/// The stamps of one slot. Row and column stores implement it beside the leaf, and use one
/// certifier.
pub trait Stamps: Readable {
    /// Handle of a gap.
    type Gap: Readable;

    /// Does as [`Readable::visit`], with all words of the slot.
    fn visit_slot(&self, act: &mut dyn FnMut(Words<'_>));

    /// Keeps the version in the slot as an older one, with its image. Called by the owner alone,
    /// before any word of the slot changes.
    fn keep(&self, version: Version, successor: Successor);

    /// Returns what [`Stamps::keep`] got for a version. The certifier asks for versions that a
    /// running transaction has noted, so they end after its begin stamp and must still be there.
    fn successor(&self, version: Version) -> Successor;
}

/// What a look at a slot finds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) owner: Owner,
    pub(crate) version: Version,
    pub(crate) pstamp: Stamp,
}

/// Loads owner, then version and pstamp, of a slot where it is now.
pub(crate) fn newest<S: Stamps>(slot: &S) -> Seen {
    let mut seen = Seen { owner: Owner::NONE, version: Version::present(0), pstamp: 0 };
    slot.visit_slot(&mut |words| {
        seen.owner = Owner::from_word(words.owner.load(Ordering::Acquire));
        seen.version = Version::from_word(words.cstamp.load(Ordering::Acquire));
        seen.pstamp = words.marks.pstamp.load(Ordering::Acquire);
    });
    seen
}

/// The stamp of a gap between keys, one for each leaf. Scans and failed look-ups read it, inserts
/// overwrite it, in no order among themselves.
#[derive(Debug, Default)]
pub struct Gap {
    pstamp: AtomicU64,
    readers: AtomicU64,
}

impl Readable for &Gap {
    fn visit(&self, act: &mut dyn FnMut(Marks<'_>)) {
        act(Marks { pstamp: &self.pstamp, readers: &self.readers });
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

    pub(crate) fn words(&self) -> Words<'_> {
        let marks = Marks { pstamp: &self.pstamp, readers: &self.readers };
        Words { owner: &self.owner, cstamp: &self.cstamp, marks }
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
    fn visit(&self, act: &mut dyn FnMut(Marks<'_>)) {
        act(self.words().marks);
    }
}

impl<'a> Stamps for &'a Slot {
    type Gap = &'a Gap;

    fn visit_slot(&self, act: &mut dyn FnMut(Words<'_>)) {
        act(self.words());
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
