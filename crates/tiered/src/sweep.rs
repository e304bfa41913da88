//! Sweeps: the hand goes through the tier, and what it takes along is merged into the tree.

use spinney_access::Change;
use spinney_base::{Error, ErrorKind, Result, probe};
use spinney_hot::Records;

use crate::engine::Tiered;

/// Laps after which a sweep for room gives up: others reserve what it frees.
const LAPS_MAX: u32 = 8;

/// Who sweeps: where it is in the order of the keys, and what it has taken.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    at: Vec<u8>,
    victims: Records,
}

impl Tiered {
    /// Reserves room in the tier, and sweeps until there is some.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`: what is dirty cannot be merged.
    pub(crate) fn reserve(&self, key: usize, value: usize) -> Result<()> {
        if self.hot.reserve(key, value) {
            return Ok(());
        }
        let mut sweeper = self.sweeper.lock();
        let mut laps = 0;
        loop {
            if self.hot.reserve(key, value) {
                return Ok(());
            }
            if laps > LAPS_MAX {
                let text = "the tier is full of records that are being written";
                return Err(Error::new(ErrorKind::Full, text));
            }
            laps += u32::from(self.sweep(&mut sweeper)?);
        }
    }

    /// Merges the dirty records of one leaf of the tier into the tree, and lets what is clean there leave. Returns
    /// whether it begins again.
    pub(crate) fn sweep(&self, sweeper: &mut Sweeper) -> Result<bool> {
        let Sweeper { at, victims } = sweeper;
        victims.clear();
        let next = self.hot.take_along(at, None, victims);
        self.bring_home(victims)?;
        // Nothing is kept for reads: pages are.
        for _ in 0..2 {
            self.hot.pass(at, false, &mut Records::default());
        }
        *at = next.unwrap_or_default();
        Ok(at.is_empty())
    }

    /// Merges all records that are dirty now into the tree.
    ///
    /// # Errors
    /// As [`Tiered::reserve`].
    pub(crate) fn bring_all_home(&self) -> Result<()> {
        let mut sweeper = self.sweeper.lock();
        let victims = &mut sweeper.victims;
        let mut from = Some(Vec::new());
        while let Some(at) = from {
            victims.clear();
            from = self.hot.take_along(&at, None, victims);
            self.bring_home(victims)?;
        }
        Ok(())
    }

    /// Merges the dirty records of the leaves of the tier that these keys lie in.
    ///
    /// # Errors
    /// As [`Tiered::reserve`].
    pub(crate) fn sweep_keys(&self, keys: &[Vec<u8>]) -> Result<()> {
        let mut sweeper = self.sweeper.lock();
        for key in keys {
            sweeper.victims.clear();
            self.hot.take_along(key, None, &mut sweeper.victims);
            self.bring_home(&sweeper.victims)?;
        }
        Ok(())
    }

    /// Changes the leaves of records that were taken, and ends their sweep.
    fn bring_home(&self, victims: &Records) -> Result<()> {
        let _inside = probe::enter("sweep");
        let changes: Vec<Change<'_>> = (victims.iter())
            .map(|record| Change { key: record.key, value: record.value })
            .collect();
        if changes.is_empty() {
            return Ok(());
        }
        let tree = match self.tree_made() {
            Ok(tree) => tree,
            Err(error) => {
                self.hot.finish(victims, false);
                return Err(error);
            }
        };
        let merged = self.merge_home(&tree, &changes);
        // After an error some are merged, and others are not: all are merged once more.
        self.hot.finish(victims, merged.is_ok());
        merged
    }
}
