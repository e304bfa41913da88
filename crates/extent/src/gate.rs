//! Letting pages go, and the gates of slots that are made: [`let_go`](crate::let_go) says what becomes of
//! them.

use spinney_base::{Generation, Result};

use crate::free::Extent;
use crate::let_go::HeldBack;
use crate::store::{Space, Store};

impl Space {
    /// Takes all generations up to here for those of pages that the durable slot names.
    pub(crate) fn nothing_is_new(&mut self) {
        self.let_go.gate = Generation(self.next_generation.saturating_sub(1));
    }
}

impl Store {
    /// Lets an extent of this generation go. It is free at once if no slot can name it, else when
    /// a slot that does not name it is durable. The structure names it no more, and no reader
    /// relies on it.
    ///
    /// # Panics
    /// When it was let go or freed before.
    pub fn let_go(&self, extent: Extent, generation: Generation) {
        let mut space = self.space.lock();
        if !space.let_go.keeps(extent, generation) {
            space.free(extent);
        }
    }

    /// Begins a slot: what was let go so far is free once it is durable. The caller copies the root
    /// before the structure changes again, publishes the copy, and then calls [`Store::published`]
    /// or [`Store::failed`]. Returns the generation that the gate took: pages of later ones are not
    /// in the copy. A slot that is on its way counts as failed.
    ///
    /// # Errors
    /// As [`Store::allocate`], and then no gate was closed.
    pub fn close_gate(&self) -> Result<Generation> {
        let mut space = self.space_to_take()?;
        self.options.poison.check()?;
        let gate = self.take_generation(&mut space)?;
        space.let_go.failed(false);
        space.let_go.close(gate);
        Ok(gate)
    }

    /// Ends a slot that is durable, and frees what was let go before its gate. Without a slot on
    /// its way nothing changes.
    pub fn published(&self) {
        let mut space = self.space.lock();
        let freed = space.let_go.published();
        freed.iter().flat_map(|freed| freed.iter()).for_each(|extent| space.free(extent));
    }

    /// Ends a slot that was not written: all that waits, waits for the next one. A slot that may
    /// have been written has poisoned the database (P21), and its gate still counts. Without a slot
    /// on its way nothing changes.
    pub fn failed(&self) {
        let may_be_on_disk = self.options.poison.is_set();
        self.space.lock().let_go.failed(may_be_on_disk);
    }

    /// Returns how many pages were let go and wait for a slot.
    #[must_use]
    pub fn held_back(&self) -> HeldBack {
        self.space.lock().let_go.pages()
    }
}
