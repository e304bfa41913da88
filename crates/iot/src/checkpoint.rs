//! Checkpoints: images of the leaves that have changed, to new places, and a slot that names all images.
//!
//! 1. A walk goes through the leaves in the order of the keys, beside writers. It lists some, looks at their headers, and
//!    copies each leaf that has changed under its latch, some together, writes the copies, and lets the leaf name its new
//!    image. The old one is let go. Further walks do so with leaves that are *fresh*: split or joined since their image.
//! 2. Places for the last fresh leaves are allocated, and the store's gate closes. Then `changing` is held, so that bounds
//!    stay: the list of all images is made, and what is still fresh is copied.
//! 3. These copies are written, and the slot is published.
//!
//! **Why that is right.** A leaf that was changed before the first walk began is copied by it or was split or joined after the
//! walk began, perhaps between the list and its turn: its home tells. Then it is fresh, and copied later. So the images
//! have everything up to the redo LSN, and together are for all keys. They may be newer: replay applies later records again. Everything that the slot names was allocated before
//! the gate closed, so what is let go from then on waits for the next slot
//! ([`let_go`](spinney_extent::HeldBack)).
//!
//! **A full disk.** Where the images that have changed do not fit, those that were written are published with the redo
//! LSN of the slot before, which frees the old ones: a step (rule P29). Fresh leaves are written before others, because
//! a slot names an image of each. Where a step frees nothing, images take from the reserve, once the places of a step were
//! taken from it: otherwise what they take could not be published.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Lsn, PageNumber, Result, probe};
use spinney_engine::Engine as _;
use spinney_extent::values::{Cut, LargeList};
use spinney_extent::{BlockHeader, Checkpoint, Extent, WIDE_ORDER_MAX};
use spinney_io::{AlignedBuf, Purpose, without_reserve};
use spinney_leaf::Bounds;

use crate::engine::Iot;
use crate::image::{Encoder, IMAGE, Payload, order_of};
use crate::inner::Home;
use crate::place::{PLACE_BYTES, Place};
use crate::tree::Held;

/// Leaves that are copied and written together: at most 1 MiB. With more, a checkpoint takes more memory; with fewer,
/// the disk waits.
const AT_ONCE: usize = 64;
/// Leaves that are listed together. With more, the list is longer than what is written; with fewer, leaves that have not
/// changed cost more.
const LISTED: usize = 1024;
/// Leaves that are copied and written together where the disk is full.
const AT_ONCE_FULL: usize = 1;
/// Walks for fresh leaves, at most, in case splits are faster than the disk.
const ROUNDS_MAX: usize = 8;
/// Leaves that may be fresh when bounds are held still. With more, more is copied meanwhile; with fewer, more walks are made.
const FRESH_MAX: usize = 32;

/// Places allocated beyond those that were missing when bounds were held still.
const SPARE: usize = 4;
/// Places that a page of a payload names, at least.
const PLACES_OF_PIECE: u64 = (PAGE_BYTES / 2 / PLACE_BYTES) as u64;

/// Which leaves a walk writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Changed,
    Fresh,
}

/// A walk through all leaves.
#[derive(Debug)]
struct Walk<'i> {
    which: Which,
    /// Where it continues; `None` at the end.
    at: Option<Vec<u8>>,
    at_once: usize,
    written: usize,
    /// Places for a step, once images take from the reserve.
    kept: Option<Kept<'i>>,
}

impl Walk<'_> {
    fn new(which: Which) -> Self {
        Walk { which, at: Some(Vec::new()), at_once: AT_ONCE, written: 0, kept: None }
    }
}

/// Places that are free again when it is dropped.
#[derive(Debug)]
struct Kept<'i> {
    iot: &'i Iot,
    places: Vec<Place>,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.places.iter().for_each(|place| self.iot.store().release(place.owned().0));
    }
}

/// A leaf that was copied.
#[derive(Debug)]
struct Copied {
    home: Home,
    bytes: Vec<u8>,
    /// Whether no image has its bounds: the leaf was split or joined since.
    is_fresh: bool,
}

/// A copy that has its place, before it is written.
type Placed = (Copied, Place);

impl Copied {
    /// Takes a copy of a leaf, which has no change since then.
    fn of(iot: &Iot, held: Held<'_>) -> Copied {
        let (lower, upper) = held.bounds();
        let bounds = Bounds { lower: &lower, upper: upper.as_deref() };
        let mut image = Encoder::new(bounds, held.leaf.image_bytes());
        held.leaf.encode_present(&mut image);
        let home = Home::new(held.block, held.leaf.incarnation());
        let is_fresh = held.leaf.is_fresh();
        iot.tree.clear_changed(held.leaf);
        held.release_unchanged();
        Copied { home, bytes: image.finish(), is_fresh }
    }
}

impl Iot {
    /// Writes all that was applied before, and publishes it. The caller holds `publishing`. `beside` is called once all
    /// was copied that had changed: whatever happens then may be in the slot or not.
    pub(crate) fn publish_all(&self, redo: Lsn, beside: impl FnOnce()) -> Result<()> {
        // Before the walk: what is superseded from here on may be named by images.
        let cut = self.values.cut(redo.0);
        if self.has_nothing() {
            return self.publish_nothing(redo);
        }
        // A step needs images of all bounds.
        self.write_leaves(Which::Fresh)?;
        self.write_leaves(Which::Changed)?;
        beside();
        self.publish_images(redo, || self.values.list(&cut))?;
        self.values.settle(&cut);
        Ok(())
    }

    /// Does the same and takes its time: it rests between pieces, as [`Engine::checkpoint_slowly`] says. Nothing is held
    /// then, so another slot may be published meanwhile, which has more.
    pub(crate) fn publish_slowly(
        &self,
        redo: Lsn,
        rest: &mut dyn FnMut(f64) -> bool,
    ) -> Result<()> {
        let cut = self.values.cut(redo.0);
        let (mut walk, expected) = (Walk::new(Which::Changed), self.tree.changed().max(1));
        let mut has_time = !self.has_nothing() && rest(0.0);
        loop {
            let goes_further = {
                let _one_at_a_time = self.publishing.lock();
                self.context.poison.check()?;
                if self.has_nothing() {
                    return self.publish_nothing(redo);
                }
                self.advance(&mut walk)?
            };
            if !goes_further {
                break;
            }
            has_time = has_time && rest((walk.written as f64 / expected as f64).min(1.0));
        }
        let _one_at_a_time = self.publishing.lock();
        self.publish_images(redo.max(self.redo()), || self.values.list(&cut))?;
        self.values.settle(&cut);
        Ok(())
    }

    /// Whether there was never a record, as far as slots tell, and there is none.
    fn has_nothing(&self) -> bool {
        let is_new = self.named.lock().is_none();
        is_new && self.tree.records() == 0 && self.tree.leaves() == 1 && self.values.is_empty()
    }

    /// Publishes an empty keyspace without images.
    fn publish_nothing(&self, redo: Lsn) -> Result<()> {
        if redo > self.redo() {
            self.publish(redo, &[])?;
            self.progress.published(redo);
        }
        Ok(())
    }

    fn publish(&self, redo: Lsn, payload: &[u8]) -> Result<()> {
        let log = &self.context.log;
        let durable = || log.ensure_durable(log.last_lsn());
        self.store().publish(Checkpoint { redo, structure: 0 }, payload, durable)
    }

    /// Publishes a slot that names all images, once none is fresh, with these large values.
    fn publish_images(&self, redo: Lsn, large: impl FnOnce() -> LargeList) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            if self.write_leaves(Which::Fresh)? <= FRESH_MAX {
                break;
            }
        }
        let mut spare = Vec::new();
        let taken = self.take_images(&mut spare);
        spare.iter().for_each(|place: &Place| self.store().release(place.owned().0));
        let (places, placed) = taken.inspect_err(|_| self.store().failed())?;
        let written = self.write_placed(placed).and_then(|()| {
            let payload = Payload { places, large: large() };
            self.publish(redo, &payload.encode())?;
            Ok(payload)
        });
        match written {
            Ok(payload) => {
                self.store().published();
                self.set_named(Some(payload));
                self.progress.published(redo);
                Ok(())
            }
            Err(error) => {
                self.store().failed();
                Err(error)
            }
        }
    }

    /// Publishes what was written so far, so that places that images have left are free. Returns whether any are.
    fn step(&self) -> Result<bool> {
        let before = self.store().held_back().sum();
        if before == 0 {
            return Ok(false);
        }
        let _inside = probe::enter("step");
        self.publish_images(self.redo(), || self.values.list(&Cut::NOTHING))?;
        Ok(self.store().held_back().sum() < before)
    }

    /// Writes leaves that have changed, or are fresh. Returns how many.
    fn write_leaves(&self, which: Which) -> Result<usize> {
        let mut walk = Walk::new(which);
        while self.advance(&mut walk)? {}
        Ok(walk.written)
    }

    /// Writes the next leaves of a walk, if it has not ended. Returns whether it goes further. The caller holds
    /// `publishing`.
    fn advance<'i>(&'i self, walk: &mut Walk<'i>) -> Result<bool> {
        let gone = std::mem::take(&mut *self.tree.gone.lock());
        gone.into_iter().for_each(|place| self.let_go(place));
        let Some(from) = walk.at.take() else { return Ok(false) };
        let (which, at_once) = (walk.which, walk.at_once);
        let some = || self.write_some(&from, which, at_once);
        // What may wait leaves room for a step.
        let is_sparing = which == Which::Changed && walk.kept.is_none();
        let some = if is_sparing { without_reserve(some) } else { some() };
        match some {
            Ok((next, count)) => {
                walk.at = next;
                walk.written += count;
            }
            Err(error) if !error.is_full() => return Err(error),
            Err(error) => {
                if at_once == AT_ONCE_FULL && !self.has_made_room(walk)? {
                    return Err(error);
                }
                walk.at_once = AT_ONCE_FULL;
                walk.at = Some(from);
            }
        }
        Ok(walk.at.is_some())
    }

    /// Makes room for a walk that found none for one leaf. Returns whether there may be some now.
    fn has_made_room<'i>(&'i self, walk: &mut Walk<'i>) -> Result<bool> {
        if walk.which == Which::Fresh {
            return Ok(false);
        }
        let has_taken = walk.kept.take().is_some();
        if self.step()? {
            return Ok(true);
        }
        if !has_taken {
            walk.kept = Some(self.keep_step()?);
        }
        Ok(!has_taken)
    }

    /// Takes the places of a step, from the reserve where there is no other room.
    fn keep_step(&self) -> Result<Kept<'_>> {
        let mut kept = Kept { iot: self, places: Vec::new() };
        let count = usize::try_from(self.pages_of_step() >> WIDE_ORDER_MAX).expect("there are few");
        self.take_spare(&mut kept.places, count)?;
        Ok(kept)
    }

    /// Writes some leaves from a key on. Returns where to go on, and how many there were.
    fn write_some(
        &self,
        from: &[u8],
        which: Which,
        at_once: usize,
    ) -> Result<(Option<Vec<u8>>, usize)> {
        let (homes, mut next) = self.tree.index.some_homes(from, LISTED);
        let mut copies = Vec::new();
        for (home, leaf) in self.tree.headers(&homes) {
            let is_wanted = leaf.is_fresh() || which == Which::Changed && leaf.is_changed();
            if !is_wanted {
                continue;
            }
            // A leaf that was split or joined since the list was made is fresh, and for a later walk.
            let Some(held) = self.tree.latch_if(home) else { continue };
            let is_last = copies.len() + 1 == at_once;
            if is_last {
                next = held.upper();
            }
            copies.push(Copied::of(self, held));
            if is_last {
                break;
            }
        }
        let count = copies.len();
        match self.place(&copies) {
            Ok(places) => self.write_placed(copies.into_iter().zip(places).collect())?,
            Err(error) => {
                copies.iter().for_each(|copied| self.is_changed_still(copied.home));
                return Err(error);
            }
        }
        Ok((next, count))
    }

    /// Allocates places for copies.
    fn place(&self, copies: &[Copied]) -> Result<Vec<Place>> {
        let mut places = vec![None; copies.len()];
        for order in 0..=WIDE_ORDER_MAX {
            let of_order = |copied: &Copied| order_of(copied.bytes.len()) == order;
            let count = copies.iter().filter(|copied| of_order(copied)).count();
            if count == 0 {
                continue;
            }
            let count = u32::try_from(count).expect("few are written together");
            match self.store().allocate_batch(order, count) {
                Ok((pages, generation)) => {
                    let wanted =
                        places.iter_mut().zip(copies).filter(|(_, copied)| of_order(copied));
                    wanted.zip(pages).for_each(|((place, _), page)| {
                        *place = Some(Place { page, generation, order });
                    });
                }
                Err(error) => {
                    let taken = places.iter().flatten();
                    taken.for_each(|place: &Place| self.store().release(place.owned().0));
                    return Err(error);
                }
            }
        }
        Ok(places.into_iter().map(|place| place.expect("each has an order")).collect())
    }

    /// Writes copies to their places, and lets the leaves name them whose bounds have not changed since.
    fn write_placed(&self, placed: Vec<Placed>) -> Result<()> {
        let written = self.write_blocks(&placed);
        for (copied, place) in placed {
            match written {
                Ok(()) => self.has_image(copied.home, place),
                Err(_) => {
                    self.store().release(place.owned().0);
                    self.is_changed_still(copied.home);
                }
            }
        }
        written
    }

    fn write_blocks(&self, placed: &[Placed]) -> Result<()> {
        let _inside = probe::enter("leaf image");
        let is_fresh = placed.iter().any(|(copied, _)| copied.is_fresh);
        let _after_split = is_fresh.then(|| probe::enter("image after a split"));
        let _versions = (self.tree.cells.used() > 0).then(|| probe::enter("image beside versions"));
        // No record above it is in a copy.
        let (lsn, keyspace) = (self.context.log.last_lsn(), self.store().keyspace());
        for order in 0..=WIDE_ORDER_MAX {
            let mut some: Vec<&Placed> =
                placed.iter().filter(|(_, place)| place.order == order).collect();
            some.sort_unstable_by_key(|(_, place)| place.page);
            let mut buf = AlignedBuf::new(some.len() << order);
            let header = |(_, place): &&Placed| {
                let Place { page, generation, .. } = *place;
                BlockHeader { kind: IMAGE, page, generation, keyspace, lsn }
            };
            let headers: Vec<BlockHeader> = some.iter().map(header).collect();
            let blocks = buf.bytes_mut().chunks_exact_mut(PAGE_BYTES << order);
            for ((copied, _), block) in some.iter().zip(blocks) {
                block[..copied.bytes.len()].copy_from_slice(&copied.bytes);
            }
            if !headers.is_empty() {
                self.store().write_wide(&headers, order, &mut buf, Purpose::CHECKPOINT)?;
            }
        }
        Ok(())
    }

    /// Lets a leaf name its new image, and lets the old one go; or the new one, if bounds have changed since the copy.
    fn has_image(&self, home: Home, place: Place) {
        let Some(held) = self.tree.latch_if(home) else { return self.let_go(place) };
        let before = held.leaf.image();
        held.leaf.set_image(Some(place));
        held.release_unchanged();
        before.into_iter().for_each(|before| self.let_go(before));
    }

    /// Notes that a copy was not written.
    fn is_changed_still(&self, home: Home) {
        if let Some(held) = self.tree.latch_if(home) {
            self.tree.mark_changed(held.leaf);
            held.release_unchanged();
        }
    }

    /// Lets an image go that no leaf names any more.
    pub(crate) fn let_go(&self, place: Place) {
        let (extent, generation) = place.owned();
        self.store().let_go(extent, generation);
    }

    /// Closes the gate, makes the list of all images, and copies what is fresh to places of `spare`, where those come
    /// from that are allocated for it.
    fn take_images(&self, spare: &mut Vec<Place>) -> Result<(Vec<Place>, Vec<Placed>)> {
        let fresh_of = |leaves: &[(Home, Option<Place>)]| {
            leaves.iter().filter(|(_, image)| image.is_none()).count()
        };
        let mut missing = fresh_of(&self.tree.all());
        for _ in 0..ROUNDS_MAX {
            self.take_spare(spare, missing)?;
            self.store().close_gate()?;
            let _bounds_stay = self.tree.changing.lock();
            let leaves = self.tree.all();
            let fresh = fresh_of(&leaves);
            if fresh > spare.len() {
                missing = fresh - spare.len() + SPARE;
                continue;
            }
            let (mut places, mut placed) = (Vec::with_capacity(leaves.len()), Vec::new());
            for (home, image) in leaves {
                places.push(image.unwrap_or_else(|| {
                    let place = spare.pop().expect("there are as many");
                    let held = self.tree.latch(home.block());
                    placed.push((Copied::of(self, held), place));
                    place
                }));
            }
            return Ok((places, placed));
        }
        Err(Error::new(ErrorKind::Full, "leaves are split faster than places are allocated"))
    }

    fn take_spare(&self, spare: &mut Vec<Place>, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let order = WIDE_ORDER_MAX;
        let count = u32::try_from(count).expect("there are few");
        let (pages, generation) = self.store().allocate_batch(order, count)?;
        let place = |page: PageNumber| Place { page, generation, order };
        spare.extend(pages.into_iter().map(place));
        Ok(())
    }

    /// Returns the extents of all images that leaves name, or that wait to be let go.
    pub(crate) fn image_extents(&self) -> Vec<Extent> {
        let _bounds_stay = self.tree.changing.lock();
        let mut owned = Vec::new();
        self.tree.walk(|held| {
            owned.extend(held.leaf.image().map(|place| place.owned().0));
            held.release_unchanged();
            true
        });
        owned.extend(self.tree.gone.lock().iter().map(|place| place.owned().0));
        owned
    }

    /// Writes images of leaves that no index leads to, for a load.
    pub(crate) fn write_new(&self, homes: &[Home]) -> Result<()> {
        for some in homes.chunks(AT_ONCE) {
            let copy = |home: &Home| Copied::of(self, self.tree.latch(home.block()));
            let copies: Vec<Copied> = some.iter().map(copy).collect();
            let places = self.place(&copies)?;
            self.write_placed(copies.into_iter().zip(places).collect())?;
        }
        Ok(())
    }

    /// Publishes leaves that no index leads to yet instead of all that there are.
    pub(crate) fn publish_new(&self, homes: &[Home], redo: Lsn, large: LargeList) -> Result<()> {
        let image = |home: &Home| self.tree.block(home.block()).0.image();
        let places = homes.iter().map(image).collect::<Option<Vec<Place>>>();
        let payload = Payload { places: places.expect("each was written"), large };
        self.store().close_gate()?;
        match self.publish(redo, &payload.encode()) {
            Ok(()) => {
                self.store().published();
                self.set_named(Some(payload));
                self.progress.published(redo);
                Ok(())
            }
            Err(error) => {
                self.store().failed();
                Err(error)
            }
        }
    }

    /// Makes room on a full disk: images are written in steps, each of which frees what it replaces.
    ///
    /// # Errors
    /// `Poisoned`, `Io` or `Corruption`. A full disk is no error.
    pub(crate) fn give_room(&self) -> Result<()> {
        if self.is_replaying() {
            return Ok(());
        }
        let Some(_one_at_a_time) = self.publishing.try_lock() else { return Ok(()) };
        // Records that came since the last checkpoint may be in images, too.
        let published = self.publish_all(self.redo(), || ());
        if published.as_ref().is_err_and(Error::is_full) { Ok(()) } else { published }
    }

    /// Returns the disk space of the smallest step, in bytes.
    pub(crate) fn bytes_of_step(&self) -> u64 {
        let is_empty = self.tree.changed() == 0;
        if is_empty { 0 } else { self.pages_of_step() * PAGE_BYTES as u64 }
    }

    /// Returns the pages of a step: of a leaf, of those that are split meanwhile, and of the payload.
    fn pages_of_step(&self) -> u64 {
        let payload = self.tree.leaves() / PLACES_OF_PIECE + 1;
        let leaves = self.tree.leaves().min((AT_ONCE_FULL + SPARE) as u64);
        ((leaves << WIDE_ORDER_MAX) + payload).next_multiple_of(1 << WIDE_ORDER_MAX)
    }
}
