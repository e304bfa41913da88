//! Warm restarts: clean records of the tier are written behind, and loaded behind (see `warm` for what counts).
//!
//! Opening serves at once. The background reads the run in large sequential pieces, and each record enters as one that
//! was promoted does: under the moment of the tier's leaf at a look that missed it, after which the notes are asked. A key
//! that is merged after the look has left the leaf or is in it (H3); one that was merged before is noted. Loading ends
//! where the tier is full. Gap bits are not written: they are learned again.
//!
//! A run is only worth reads, so damage in it is no error: it is given up.

use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Result, ValueRef, probe};
use spinney_extent::Store;
use spinney_hot::{Cached, Direction, Piece, Records};
use spinney_io::{Purpose, without_reserve};
use spinney_sync::hash_key;

use crate::engine::Tiered;
use crate::run::{Run, RunReader, RunWriter, TOGETHER, What};

/// Pages of a run that the background loads at once.
const LOADED_AT_ONCE: usize = 4 * TOGETHER;

/// How often a record is offered to the tier: a full leaf is split first, and another is the one for the key.
const ADMITS_MAX: u32 = 3;

/// Gives a run up that nothing names any more, but for a slot.
pub(crate) fn let_go(store: &Store, run: Option<Arc<Run>>) {
    for (extent, generation) in run.iter().flat_map(|run| run.extents()) {
        store.let_go(extent, generation);
    }
}

impl Tiered {
    /// Notes that these records are about to be merged (rule H9).
    pub(crate) fn note_merged(&self, victims: &Records) {
        let mut warm = self.images.warm.lock();
        if !warm.takes_notes() {
            return;
        }
        let hash = |key: &[u8]| hash_key(self.context.keyspace, key);
        let hashes: Vec<u64> = victims.iter().map(|record| hash(record.key)).collect();
        let void = warm.note(&hashes, self.context.memory.target());
        let_go(self.store(), void);
    }

    /// Gives up the run of clean records, if there is one.
    pub(crate) fn give_up_clean(&self) {
        let void = self.images.warm.lock().give_up();
        let_go(self.store(), void);
    }

    /// Loads or writes clean records, if that is due; says whether it did.
    pub(crate) fn tend_clean(&self) -> Result<bool> {
        if !self.chosen.tuning.is_warm() {
            self.give_up_clean();
            return Ok(false);
        }
        let loading = self.images.warm.lock().loading();
        match loading {
            Some((run, from)) => {
                self.load_clean(&run, from);
                Ok(true)
            }
            None => self.write_clean_if_due(),
        }
    }

    /// Loads a piece of the run of clean records.
    fn load_clean(&self, run: &Arc<Run>, from: u32) {
        let mut reader = RunReader::new(self.store(), run, What::Clean, Purpose::RECOVERY);
        reader.skip_to(from);
        let mut pages = 0;
        while pages < LOADED_AT_ONCE {
            match reader.read(TOGETHER) {
                Ok(Some(part)) => pages += part.pages as usize,
                Ok(None) => return self.images.warm.lock().set_loaded(None),
                // It may also have been given up, and be another's by now.
                Err(_) => return self.give_up_clean(),
            }
            for (key, value) in reader.records() {
                if self.hot.is_full() || !self.promotes() {
                    return self.images.warm.lock().set_loaded(None);
                }
                self.load_record(key, value);
            }
        }
        self.images.warm.lock().set_loaded(Some(reader.index()));
    }

    /// Lets a record of the run enter the tier, if it says what the tree says.
    pub(crate) fn load_record(&self, key: &[u8], value: Option<ValueRef<'_>>) {
        for _ in 0..ADMITS_MAX {
            let (cached, seen) = self.hot.look(key, &mut Vec::new());
            // After the look: what is merged from here on leaves the leaf, or is in it.
            let counts = self.images.warm.lock().counts(hash_key(self.context.keyspace, key));
            if cached != Cached::Unknown || !counts || self.hot.admit(key, value, seen) {
                return;
            }
        }
    }

    fn write_clean_if_due(&self) -> Result<bool> {
        let (now, changed) = (self.context.runtime.now(), self.images.changed());
        let is_due = self.images.warm.lock().is_due(now, changed, self.hot.len());
        if !is_due || !self.promotes() {
            return Ok(false);
        }
        self.write_clean()
    }

    /// Writes all clean records of the tier as a run, which later roots name; says whether it did.
    ///
    /// # Errors
    /// `Poisoned` or `Io`. Without room there is no run.
    pub(crate) fn write_clean(&self) -> Result<bool> {
        // A root that is being made does not know what of the run counts.
        let Some(_no_checkpoint) = self.publishing.try_lock() else { return Ok(false) };
        let _inside = probe::enter("clean run");
        let (now, changed) = (self.context.runtime.now(), self.images.changed());
        self.images.warm.lock().begin(now, changed);
        let run = without_reserve(|| self.clean_run());
        let run = match run {
            Ok(run) => run,
            Err(error) => {
                self.images.warm.lock().fail();
                return if error.is_full() { Ok(false) } else { Err(error) };
            }
        };
        let before = self.images.warm.lock().install(run);
        let_go(self.store(), before);
        // The next slot names it.
        self.set_dirty(true);
        Ok(true)
    }

    pub(crate) fn clean_run(&self) -> Result<Run> {
        let lsn = || self.context.log.last_lsn();
        let expected = self.hot.bytes() / PAGE_BYTES as u64 + 1;
        let about = (lsn(), Purpose::WRITE_BACK);
        let mut writer = RunWriter::new(self.store(), What::Clean, about, expected);
        let (mut from, mut piece) = (Vec::new(), Piece::default());
        loop {
            self.hot.range(Some(&from), Direction::Forward, usize::MAX, &mut piece);
            writer.follow(lsn());
            for record in piece.records.iter().filter(|record| !record.is_dirty) {
                writer.push(record.key, record.value)?;
            }
            match &piece.upper {
                Some(upper) => from.clone_from(upper),
                None => return writer.finish(),
            }
        }
    }
}
