//! Pages that a copy-on-write structure has let go, until no checkpoint slot names them.
//!
//! Such a structure writes a changed page to a new place and lets the old one go. Recovery begins
//! at the durable slot, so what that slot names must stay as it is until a slot that does not name
//! it is durable. *Named* means by the durable slot, or by the copy of the root that is on its way
//! to the next one. That copy is taken while the structure's gate is closed.
//!
//! ```text
//! gate 7 closes             gate 9 closes   slot 9 durable      gate 12 closes   slot 12 durable
//!    |   slot 7 durable  p let go  |   q let go   |                   |                |
//! ---+----------+------------+-----+-------+------+-------------------+----------------+---->
//!               |            '- after --> before -+-> free            |                |
//!               |                          '- after ------------> before --------------+-> free
//! ```
//!
//! `p` is let go before gate 9: slot 7 names it, slot 9 does not. `q` is let go after gate 9, while
//! slot 9 is on its way: slot 9 may name it, and one set for both would free it too early.
//!
//! A gate takes a generation of its own. A page of a later one was allocated after the gate, so no
//! copy names it, and it is free as soon as it is let go.
//!
//! The store has one [`LetGo`] beside its free map, under the same lock ([`gate`](crate::gate)). Whatever becomes free here
//! is held back while a [`Hold`](crate::Hold) exists, as everything that is freed (P26). Nothing of
//! it is on disk: opening derives the free map from what the durable slot names.
//!
//! **Invariants**
//! 1. A page that the durable slot or the slot on its way names is not in the free map.
//! 2. `before_gate` is empty while no slot is on its way.
//! 3. Every page in the sets has a generation of at most `gate`.

use spinney_base::{Generation, PageNumber};

use crate::extents::Extents;
use crate::free::Extent;

/// Extents that were let go and may be named. A set takes memory once it is used.
#[derive(Debug, Default)]
pub(crate) struct LetGo {
    /// The generation of the last gate. Until the first gate of a life: the last generation that
    /// the life before may have used.
    pub(crate) gate: Generation,
    /// While a slot is on its way: the generation of the gate before.
    on_its_way: Option<Generation>,
    /// Let go before the gate whose slot is on its way.
    before_gate: Option<Box<Extents>>,
    /// Let go since the last gate.
    after_gate: Option<Box<Extents>>,
}

/// Number of pages that were let go and wait for a checkpoint slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBack {
    /// Pages that are free when the slot on its way is durable.
    pub before_gate: u64,
    /// Pages that are free when the slot after that one is durable.
    pub after_gate: u64,
}

impl HeldBack {
    /// Returns the number of all of them.
    #[must_use]
    pub fn sum(self) -> u64 {
        self.before_gate + self.after_gate
    }
}

impl LetGo {
    /// Keeps an extent if it may be named. Returns whether it does; otherwise the extent is free.
    #[must_use]
    pub(crate) fn keeps(&mut self, extent: Extent, generation: Generation) -> bool {
        let may_be_named = generation <= self.gate;
        if may_be_named {
            self.after_gate.get_or_insert_default().put(extent);
        }
        may_be_named
    }

    pub(crate) fn close(&mut self, gate: Generation) {
        self.before_gate = self.after_gate.take();
        self.on_its_way = Some(self.gate);
        self.gate = gate;
    }

    /// Returns what no slot names any more.
    pub(crate) fn published(&mut self) -> Option<Box<Extents>> {
        self.on_its_way.take()?;
        self.before_gate.take()
    }

    /// Joins the sets. The gate before counts again if the slot that was on its way is certainly
    /// not on disk.
    pub(crate) fn failed(&mut self, may_be_on_disk: bool) {
        let Some(before) = self.on_its_way.take() else { return };
        if let Some(waiting) = self.before_gate.take() {
            self.after_gate.get_or_insert_default().join(*waiting);
        }
        if !may_be_on_disk {
            self.gate = before;
        }
    }

    /// Returns the numbers of pages.
    pub(crate) fn pages(&self) -> HeldBack {
        let pages = |set: &Option<Box<Extents>>| set.as_ref().map_or(0, |set| set.pages());
        HeldBack { before_gate: pages(&self.before_gate), after_gate: pages(&self.after_gate) }
    }

    /// Returns whether a page waits.
    pub(crate) fn contains(&self, page: PageNumber) -> bool {
        self.before_gate.iter().chain(&self.after_gate).any(|set| set.contains(page))
    }
}
