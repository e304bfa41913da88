//! The root word: place and level of the root, with a latch that stands for a parent.

use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_sync::{LatchGuard, Version, VersionLatch};

use crate::place::Place;

/// Place and level of the root. Thread-safe.
#[derive(Debug)]
pub(crate) struct Root {
    latch: VersionLatch,
    place: AtomicU64,
    level: AtomicU64,
}

/// The root as it was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RootSeen {
    pub(crate) place: Place,
    pub(crate) level: u8,
    version: Version,
}

/// The root word, held.
#[derive(Debug)]
pub(crate) struct RootHeld<'a> {
    root: &'a Root,
    guard: LatchGuard<'a>,
}

impl Root {
    pub(crate) fn new(place: Place, level: u8) -> Root {
        let (place, level) = (AtomicU64::new(place.as_word()), AtomicU64::new(level.into()));
        Root { latch: VersionLatch::new(), place, level }
    }

    /// Returns place and level, which belong together.
    pub(crate) fn see(&self) -> RootSeen {
        loop {
            let version = self.latch.version();
            let place = Place::from_word(self.place.load(Relaxed));
            #[expect(clippy::cast_possible_truncation, reason = "levels are few")]
            let level = self.level.load(Relaxed) as u8;
            if self.latch.validate(version) {
                return RootSeen { place, level, version };
            }
        }
    }

    pub(crate) fn is_valid(&self, seen: RootSeen) -> bool {
        self.latch.validate(seen.version)
    }

    /// Takes it to change it, if nothing has changed since it was seen.
    pub(crate) fn edit(&self, seen: RootSeen) -> Option<RootHeld<'_>> {
        Some(RootHeld { root: self, guard: self.latch.try_upgrade(seen.version)? })
    }
}

impl RootHeld<'_> {
    pub(crate) fn set(&self, place: Place, level: u8) {
        self.root.place.store(place.as_word(), Relaxed);
        self.root.level.store(level.into(), Relaxed);
    }

    pub(crate) fn release_unchanged(self) {
        self.guard.release_unchanged();
    }
}
