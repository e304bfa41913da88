//! Reading an engine that updates in place as of a snapshot.

use std::ops::Bound;
use std::sync::Arc;

use spinney_base::Result;
use spinney_engine::{
    Chunk, Direction, Engine, EngineSnapshot, Found, OwnedValue, Pin, ScanRequest, SnapshotNumber,
    SnapshotStats, overlay,
};

use crate::find::{Seen, deliver};
use crate::keep::PreImages;
use crate::overlay::ends;

/// Binary logarithm of the most records that the engine is asked for where all that it delivers was
/// not there.
const IN_VAIN_MAX: u32 = 10;

/// What an engine that updates in place does for its snapshots.
pub trait InPlace: Engine + 'static {
    /// Returns its pre-images.
    fn pre_images(&self) -> &PreImages;

    /// Reads what the pages hold of a key, past everything in memory, while its page is locked and
    /// `holds` answers true. Returns `None` if it does not. It keeps nothing of what it reads.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    fn get_behind(
        &self,
        key: &[u8],
        hash: u64,
        holds: &dyn Fn() -> bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<Found>>;

    /// Scans as [`Engine::scan`] does, past dirty records whose keys are `hidden`, so that their pages
    /// show.
    ///
    /// # Errors
    /// As [`Engine::scan`].
    fn scan_behind(
        &self,
        request: &ScanRequest<'_>,
        hidden: &dyn Fn(&[u8]) -> bool,
        chunk: &mut Chunk,
    ) -> Result<()>;
}

/// A snapshot of an engine that updates in place. Dropping it lets its pre-images go.
#[derive(Debug)]
struct InPlaceSnapshot<E: InPlace> {
    engine: Arc<E>,
    number: u64,
    /// From before the number was known to writers (S18).
    _pin: Pin,
}

/// Begins snapshot `number` of an engine. No batch has the number yet, and numbers ascend.
pub fn begin<E: InPlace>(engine: Arc<E>, number: SnapshotNumber) -> Box<dyn EngineSnapshot> {
    let pin = engine.values().pin();
    engine.pre_images().publish(number.0, true);
    Box::new(InPlaceSnapshot { engine, number: number.0, _pin: pin })
}

impl<E: InPlace> Drop for InPlaceSnapshot<E> {
    fn drop(&mut self) {
        self.engine.pre_images().drop_snapshot(self.number);
    }
}

impl<E: InPlace> InPlaceSnapshot<E> {
    fn pre_images(&self) -> &PreImages {
        self.engine.pre_images()
    }

    /// Corrects what the engine answered for a key, which lies in `out` from `start` on. `None`: look
    /// again.
    fn correct(
        &self,
        (key, hash): (&[u8], u64),
        found: Found,
        start: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Found>> {
        match self.pre_images().find(self.number, key, hash)? {
            Seen::Unchanged => Ok(Some(found)),
            Seen::Link(link) => {
                out.truncate(start);
                Ok(Some(deliver(link, out)))
            }
            Seen::Page(mark) => {
                out.truncate(start);
                let holds = || self.pre_images().marks.get(key, hash) == Some(mark);
                self.engine.get_behind(key, hash, &holds, out)
            }
        }
    }

    fn check(&self) -> Result<()> {
        self.pre_images().lives.check(self.number)
    }
}

impl<E: InPlace> EngineSnapshot for InPlaceSnapshot<E> {
    fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found> {
        let start = out.len();
        loop {
            let found = self.engine.get(key, hash, out)?;
            if let Some(found) = self.correct((key, hash), found, start, out)? {
                return self.check().map(|()| found);
            }
            out.truncate(start);
        }
    }

    fn get_many(&self, keys: &[(&[u8], u64)]) -> Result<Vec<Option<OwnedValue>>> {
        let mut values = self.engine.get_many(keys)?;
        for ((key, hash), value) in keys.iter().zip(&mut values) {
            let found = match value {
                None => Found::Absent,
                Some(value) if value.large => Found::Large,
                Some(_) => Found::Inline,
            };
            let mut out = value.take().map_or_else(Vec::new, |value| value.bytes);
            let found = match self.correct((key, *hash), found, 0, &mut out)? {
                Some(found) => found,
                None => {
                    out.clear();
                    self.get(key, *hash, &mut out)?
                }
            };
            let large = found == Found::Large;
            *value = (found != Found::Absent).then_some(OwnedValue { bytes: out, large });
        }
        self.check().map(|()| values)
    }

    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        let scanned = self.scan_pieces(request, chunk).and_then(|()| self.check());
        if scanned.is_err() {
            chunk.clear();
        }
        scanned
    }

    fn stats(&self) -> SnapshotStats {
        let images = self.pre_images();
        SnapshotStats::new(images.memory_bytes(), images.lives.has_ended(self.number))
    }
}

impl<E: InPlace> InPlaceSnapshot<E> {
    fn scan_pieces(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        let images = self.pre_images();
        let forward = request.direction == Direction::Forward;
        let (near, far) = ends(request, forward);
        let mut near = near.map(<[u8]>::to_vec);
        let hidden = |key: &[u8]| images.hides(self.number, key);
        let mut piece = Chunk::default();
        let mut in_vain = 0;
        loop {
            piece.clear();
            let from = near.as_ref().map(Vec::as_slice);
            let (lower, upper) = if forward { (from, far) } else { (far, from) };
            // Where nothing that the engine delivers was there, it is asked for more each time.
            let least = 1 << u32::min(in_vain, IN_VAIN_MAX);
            let of_engine = ScanRequest {
                lower,
                upper,
                records_wanted: request.records_wanted.max(least),
                records_max: request.records_max.max(least),
                ..*request
            };
            self.engine.scan_behind(&of_engine, &hidden, &mut piece)?;
            let mut beyond = overlay::beyond(&mut piece);
            let to = beyond.as_ref().map_or(far, overlay::before);
            let mut links = images.overlay(self.number, (from, to), forward)?;
            if let Some(end) = links.end.take() {
                // What the engine delivered behind that is read again.
                let is_beyond = |key: &[u8]| if forward { key > &*end } else { key < &*end };
                let kept = (0..piece.len()).take_while(|index| !is_beyond(piece.get(*index).0));
                piece.truncate(kept.count());
                beyond = Some(Bound::Excluded(end));
            }
            if links.hides_rest {
                piece.clear();
            }
            let before = chunk.len();
            if !overlay::lay(&mut links, &piece, request, chunk) {
                return Ok(());
            }
            match beyond {
                None => {
                    chunk.finished = true;
                    return Ok(());
                }
                Some(bound) => near = bound,
            }
            if overlay::is_full(request, chunk) {
                chunk.resume = Some(near);
                return Ok(());
            }
            in_vain = if chunk.len() == before { in_vain + 1 } else { 0 };
        }
    }
}
