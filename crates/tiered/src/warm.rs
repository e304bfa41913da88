//! Clean records of the tier on disk, and which of them count.
//!
//! ```text
//!   time     run is written      root 1           root 2          opening: K of the run enters the tier, unless noted
//!   notes    |--- keys that are merged from here on, by their hashes ----->
//! ```
//!
//! A clean record says what the tree says, so a run of them may be loaded after a restart, as long as the tree has not
//! changed below it. The hash of each key that is merged since the writing of the run began is noted, and a root names
//! the run with the notes (rule H9):
//!
//! 1. A key is noted before its leaf changes.
//! 2. Notes for a run begin with its writing; the run before keeps its own until then.
//! 3. A root's copy of the notes is taken after its last leaf was written.
//! 4. A root names a run only if its writing ended before the image of that root began: no checkpoint is under way while a
//!    run is written.
//! 5. What is loaded is compared with the notes as they are now, merges since the opening among them.
//! 6. No run begins while the one before is loaded: notes of the new one do not know what was merged before.
//!
//! Notes take a 64th of the memory. With more the run is void; before the first merge that is not noted, loading ends.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::run::Run;

/// Notes take one part in this many of the memory. With more they crowd out records; with fewer, runs are void early.
const MEMORY_PART: u64 = 64;
/// Bytes of memory of a note.
const NOTE_BYTES: u64 = 18;
/// A run is written when one part in this many of the tier has changed since the last one.
const CHANGED_PART: u64 = 4;
/// Most and least time between runs. The first ones follow each other more closely: as much time passes as had passed
/// until the last one. With less, runs cost more writing; with more, a restart finds less of what is hot.
const BETWEEN_MOST: Duration = Duration::from_secs(300);
const BETWEEN_LEAST: Duration = Duration::from_secs(2);

/// Hashes of keys that were merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(HashSet<u64>);

/// A run of clean records, with what is noted since its writing began.
#[derive(Clone, Debug, Default)]
pub(crate) struct CleanRun {
    pub(crate) run: Arc<Run>,
    pub(crate) notes: Notes,
}

/// The clean records of one keyspace.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    /// The run that roots name, unless it is void.
    named: Option<CleanRun>,
    /// Notes for the run that is being written.
    written: Option<Notes>,
    /// Pages of the named run that were loaded, while it is.
    loaded: Option<u32>,
    /// When the last run was written, and what had changed by then.
    last: Option<(Duration, u64)>,
}

impl Notes {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut hashes: Vec<u64> = self.0.iter().copied().collect();
        hashes.sort_unstable();
        out.extend((hashes.len() as u64).to_le_bytes());
        hashes.iter().for_each(|hash| out.extend(hash.to_le_bytes()));
    }

    /// Decodes the next notes; `None` for bytes that [`Notes::encode`] does not write.
    pub(crate) fn decode(left: &mut &[u8]) -> Option<Notes> {
        let (count, rest) = left.split_first_chunk()?;
        let bytes = usize::try_from(u64::from_le_bytes(*count)).ok()?.checked_mul(8)?;
        let (hashes, rest) = rest.split_at_checked(bytes)?;
        *left = rest;
        Some(Notes(hashes.as_chunks().0.iter().map(|hash| u64::from_le_bytes(*hash)).collect()))
    }

    /// Notes keys, whose hashes these are; returns `false` if they are too many.
    fn note(&mut self, hashes: &[u64], memory: u64) -> bool {
        self.0.extend(hashes);
        self.0.len() as u64 * NOTE_BYTES <= memory / MEMORY_PART
    }
}

impl Warm {
    /// Takes over the run that the slot names, to load it.
    pub(crate) fn open(named: Option<CleanRun>) -> Warm {
        let loaded = named.as_ref().map(|_| 0);
        Warm { named, loaded, ..Warm::default() }
    }

    /// Returns whether merges have to be noted.
    pub(crate) fn takes_notes(&self) -> bool {
        self.named.is_some() || self.written.is_some()
    }

    /// Notes keys that are about to be merged. Returns a run that is void by it.
    pub(crate) fn note(&mut self, hashes: &[u64], memory: u64) -> Option<Arc<Run>> {
        if self.written.as_mut().is_some_and(|notes| !notes.note(hashes, memory)) {
            self.written = None;
        }
        let fits = self.named.as_mut().is_none_or(|named| named.notes.note(hashes, memory));
        if fits { None } else { self.give_up() }
    }

    /// Returns the run that a root names, with the notes now.
    pub(crate) fn named(&self) -> Option<&CleanRun> {
        self.named.as_ref()
    }

    /// Gives the named run up. Nothing names it but a slot.
    pub(crate) fn give_up(&mut self) -> Option<Arc<Run>> {
        self.loaded = None;
        self.named.take().map(|named| named.run)
    }

    /// Returns whether a run is due, given how much has changed, and how many records there are.
    pub(crate) fn is_due(&self, now: Duration, changed: u64, records: u64) -> bool {
        let (wait, before) = match self.last {
            Some((last, before)) => {
                let least = last.clamp(BETWEEN_LEAST, BETWEEN_MOST);
                (now.saturating_sub(last) >= least, before)
            }
            None => (now >= BETWEEN_LEAST, 0),
        };
        let is_other = (changed - before) * CHANGED_PART >= records && records > 0;
        self.loaded.is_none() && self.written.is_none() && wait && is_other
    }

    /// Begins a run.
    pub(crate) fn begin(&mut self, now: Duration, changed: u64) {
        self.last = Some((now, changed));
        self.written = Some(Notes::default());
    }

    /// Ends the run that was begun, which roots name from now on, unless it is void. Returns the run that nothing but a
    /// slot names now.
    pub(crate) fn install(&mut self, run: Run) -> Option<Arc<Run>> {
        let run = Arc::new(run);
        let Some(notes) = self.written.take() else { return Some(run) };
        self.named.replace(CleanRun { run, notes }).map(|before| before.run)
    }

    /// Gives up the run that was begun.
    pub(crate) fn fail(&mut self) {
        self.written = None;
    }

    /// Returns the run that is loaded, and from which page on.
    pub(crate) fn loading(&self) -> Option<(Arc<Run>, u32)> {
        let named = self.named.as_ref()?;
        Some((named.run.clone(), self.loaded?))
    }

    /// Notes how far loading has come; `None` at its end.
    pub(crate) fn set_loaded(&mut self, pages: Option<u32>) {
        if self.loaded.is_some() {
            self.loaded = pages;
        }
    }

    /// Returns whether the run says what the tree says of a key.
    pub(crate) fn counts(&self, hash: u64) -> bool {
        self.named.as_ref().is_some_and(|named| !named.notes.0.contains(&hash))
    }

    /// Returns the bytes of memory of all notes.
    pub(crate) fn bytes(&self) -> u64 {
        let named = self.named.as_ref().map(|named| &named.notes);
        named.into_iter().chain(&self.written).map(|notes| notes.0.len() as u64 * NOTE_BYTES).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 1 << 20;

    fn run(records: u64) -> Run {
        Run { records, pieces: Vec::new() }
    }

    #[test]
    fn h9_both_runs_are_noted_while_one_is_written() {
        let mut warm = Warm::default();
        warm.begin(Duration::ZERO, 0);
        warm.note(&[1], MEMORY);
        assert!(warm.install(run(1)).is_none());
        assert!(!warm.counts(1) && warm.counts(2));
        warm.begin(Duration::ZERO, 0);
        warm.note(&[2], MEMORY);
        assert!(!warm.counts(2), "the run before is named until the next one is whole");
        assert_eq!(warm.install(run(2)).unwrap().records, 1);
        assert!(warm.counts(1) && !warm.counts(2), "1 was merged before it began");
    }

    #[test]
    fn h9_no_run_begins_beside_the_loader() {
        let clean = CleanRun { run: Arc::new(run(4)), notes: Notes::default() };
        let mut warm = Warm::open(Some(clean));
        let later = Duration::from_secs(10_000);
        assert!(!warm.is_due(later, 100, 100));
        warm.set_loaded(None);
        assert!(warm.is_due(later, 100, 100) && !warm.is_due(later, 24, 100));
        warm.begin(later, 100);
        assert!(warm.install(run(5)).is_some());
        assert!(!warm.is_due(later + BETWEEN_MOST / 2, 200, 100));
        assert!(warm.is_due(later + BETWEEN_MOST, 200, 100));
    }

    #[test]
    fn h9_a_run_of_which_too_much_was_merged_is_void() {
        let clean = CleanRun { run: Arc::new(run(4)), notes: Notes::default() };
        let mut warm = Warm::open(Some(clean));
        let hashes: Vec<u64> = (0..2000).collect();
        let void = hashes.chunks(10).find_map(|some| warm.note(some, MEMORY));
        assert_eq!(void.unwrap().records, 4);
        assert!(warm.loading().is_none() && !warm.counts(u64::MAX), "loading has ended");
    }

    #[test]
    fn notes_are_decoded() {
        let mut notes = Notes::default();
        notes.note(&[7, u64::MAX, 0], MEMORY);
        let mut bytes = Vec::new();
        notes.encode(&mut bytes);
        let mut left = &bytes[..];
        assert_eq!(Notes::decode(&mut left).unwrap().0, notes.0);
        assert!(left.is_empty() && Notes::decode(&mut &bytes[..31]).is_none());
    }
}
