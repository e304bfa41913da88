//! Engines whose records have versions: what transactions need of them beside [`Engine`](crate::Engine).
//!
//! A transaction reads the image of a version, and the certifier of the database ([`spinney_ssn`]) decides at
//! its commit. The stamps of records that transactions touch are in [cells](spinney_ssn::Cells), which the
//! engine finds by the key.

use std::fmt::Debug;

use spinney_ssn::{CellRef, Stamp, Successor, Version};

use crate::{Found, OwnedValue};

/// An older image: the value or the pointer to it, or `None` where the key had none.
pub type OlderImage = Option<OwnedValue>;

/// Handle of the stamps of a record.
pub type Cell = CellRef<OlderImage>;

/// What an engine with versions does for transactions. [`Engine::apply`](crate::Engine::apply) keeps the image
/// that it replaces where the owner of the cell publishes.
pub trait Versioned: Send + Sync + Debug {
    /// Returns the cell of a key, which it gets if it has none, also without a value.
    fn cell(&self, key: &[u8]) -> Cell;

    /// Appends the newest image of a key to `out`. `None` if it is not of this version any more, or is being
    /// replaced: look again.
    fn copy(&self, key: &[u8], cell: &Cell, version: Version, out: &mut Vec<u8>) -> Option<Found>;

    /// Takes cells from records that no transaction needs below the horizon, and drops older images. Looks at
    /// `most` cells, and returns how many it took.
    fn collect(&self, horizon: Stamp, most: usize) -> usize;

    /// Returns the bytes of memory of older images.
    fn older_bytes(&self) -> u64;
}

/// Appends an older image that a transaction sees which began at `begin`: with its version, and what is known
/// of the next one. `None` if the newest image is the one.
pub fn copy_older(
    cell: &Cell,
    begin: Stamp,
    out: &mut Vec<u8>,
) -> Option<(Version, Successor, Found)> {
    let (version, successor, image) = cell.older(begin)?;
    let Some(image) = image else { return Some((version, successor, Found::Absent)) };
    out.extend_from_slice(&image.bytes);
    Some((version, successor, if image.large { Found::Large } else { Found::Inline }))
}
