//! The shape gate: a checkpoint closes it to take a copy of the shape of the tree (rules H10, H20).
//!
//! Whoever changes what pages name holds it shared, and waits for nothing meanwhile: no frame, no
//! allocation, no I/O, no stripe. Reads, and changes of records within a page, do not take it.

use spinney_base::shim::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The gate. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Gate(RwLock<()>);

/// Held while a page comes to be named by another, or no longer.
#[derive(Debug)]
pub(crate) struct ShapeOpen<'a>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

/// Held while nothing that pages name changes.
#[derive(Debug)]
pub(crate) struct ShapeClosed<'a>(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>);

impl Gate {
    /// Enters. It waits while a checkpoint takes its copy.
    pub(crate) fn enter(&self) -> ShapeOpen<'_> {
        ShapeOpen(self.0.read())
    }

    /// Closes the gate, and waits until nobody is inside.
    pub(crate) fn close(&self) -> ShapeClosed<'_> {
        ShapeClosed(self.0.write())
    }
}
