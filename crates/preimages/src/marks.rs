//! Marks: keys whose pages hold their pre-images.
//!
//! There may be one for each dirty record, so a mark is a note of four bits in that record's header, and
//! takes no memory. A note names a slot, and the slot the table that the mark is for:
//!
//! ```text
//!   record in the engine's memory      slots 1 to 14, shared by all marks of a table
//!   | header: note 3 | key | value |   | table 5, 0 marks | table 9, 70 marks | table 7, 812 marks | ...
//!              |                                                                ^
//!              '----------------------------------------------------------------'
//!   note 15: the mark is in a table of its own (see `outside`), because no slot was free
//! ```
//!
//! A slot is another table's when it has no marks left. Marks of a table that is gone stand for nothing;
//! they go when their records are written back, as others do. Where records have no room for a note, all
//! marks are outside.
//!
//! **Invariants**
//! 1. A note is set by the put that makes the record dirty, and stays with later puts until it is taken
//!    away, under the exclusive lock of the record's page, before the record becomes clean.
//! 2. A mark is counted, in its slot and in all, before the put that sets it, and until it was taken away.
//! 3. Two marks of one key that are not the same differ (S9): each has the number of marks that had been
//!    taken away from its stripe of keys when it was looked at. So a mark may seem gone that is there.
//! 4. What a look at note, slot and number finds together was there together: a slot gets another table
//!    only after the number has grown.

use std::fmt::Debug;
use std::sync::Arc;

use spinney_base::KeyspaceId;
use spinney_base::shim::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::outside::Outside;

/// The note of a mark for which no slot was free.
pub(crate) const OUTSIDE: u8 = 15;

const SLOTS: usize = OUTSIDE as usize - 1;

/// Low bits of a slot, which count its marks. The others are those of its table's number: 2^40 snapshots.
const COUNT_BITS: u32 = 24;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Stripes of keys. With fewer, marks seem gone more often, and readers look again.
const STRIPES: usize = 256;

/// Notes beside the dirty records in an engine's memory: four bits each, 0 for none. The engine sets the
/// note that [`PreImages::keep`](crate::PreImages::keep) returns when it puts the record, if that was
/// not dirty, and later puts leave it as it is.
pub trait Notes: Debug + Send + Sync {
    /// Returns the note of a key's dirty record; 0 if there is none.
    fn note(&self, key: &[u8], hash: u64) -> u8;

    /// Takes a note away, if the key's dirty record has it. Returns whether it had.
    fn clear_note(&self, key: &[u8], hash: u64, note: u8) -> bool;
}

/// Says for which table the page of a key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) table: u64,
    /// Tells marks of one key apart (S9).
    pub(crate) number: u32,
    pub(crate) note: u8,
}

/// The marks of a keyspace.
#[derive(Debug)]
pub(crate) struct Marks {
    /// `None` where records have no room for notes: all marks are outside then.
    notes: Option<Arc<dyn Notes>>,
    slots: [AtomicU64; SLOTS],
    /// How many marks have been taken away, by stripes of keys.
    removed: Box<[AtomicU32]>,
    /// Number of marks in slots.
    noted: AtomicU64,
    outside: Outside,
}

impl Marks {
    pub(crate) fn new(keyspace: KeyspaceId, notes: Option<Arc<dyn Notes>>) -> Marks {
        Marks {
            notes,
            slots: std::array::from_fn(|_| AtomicU64::new(0)),
            removed: (0..STRIPES).map(|_| AtomicU32::new(0)).collect(),
            noted: AtomicU64::new(0),
            outside: Outside::new(keyspace),
        }
    }

    /// Number of marks.
    pub(crate) fn len(&self) -> u64 {
        self.noted.load(SeqCst) + self.outside.len()
    }

    /// Bytes of memory that they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.outside.bytes()
    }

    fn removed(&self, hash: u64) -> &AtomicU32 {
        // Other bits than those that choose the shard of a record.
        &self.removed[(hash >> 32) as usize % STRIPES]
    }

    #[inline]
    pub(crate) fn get(&self, key: &[u8], hash: u64) -> Option<Mark> {
        if self.len() == 0 {
            return None;
        }
        let Some(notes) = &self.notes else { return self.outside.get(key, hash) };
        let removed = self.removed(hash);
        loop {
            let number = removed.load(SeqCst);
            let note = match notes.note(key, hash) {
                0 => return None,
                OUTSIDE => return self.outside.get(key, hash),
                note => note,
            };
            let table = self.slot(note).load(SeqCst) >> COUNT_BITS;
            if removed.load(SeqCst) == number {
                return Some(Mark { table, number, note });
            }
        }
    }

    fn slot(&self, note: u8) -> &AtomicU64 {
        &self.slots[usize::from(note) - 1]
    }

    /// Marks a key whose record is about to be put, and is not dirty. Returns the note to put with it,
    /// and the mark that the key had, which counts no more.
    pub(crate) fn set(&self, key: &[u8], hash: u64, table: u64) -> (u8, Option<Mark>) {
        match self.notes.as_ref().and_then(|_| self.take_slot(table)) {
            Some(note) => {
                self.noted.fetch_add(1, SeqCst);
                (note, None)
            }
            None => (OUTSIDE, self.outside.set(key, hash, table)),
        }
    }

    /// Counts one more mark in a slot of this table, if there is room.
    fn take_slot(&self, table: u64) -> Option<u8> {
        let wanted = table << COUNT_BITS;
        // A table has one slot, unless it has very many marks.
        let place = |step: usize| (table as usize % SLOTS + step) % SLOTS;
        loop {
            let mut free = None;
            let mut taken = None;
            for step in 0..SLOTS {
                let slot = self.slots[place(step)].load(SeqCst);
                let (of, count) = (slot & !COUNT_MAX, slot & COUNT_MAX);
                if of == wanted && count > 0 && count < COUNT_MAX {
                    taken = Some((place(step), slot, slot + 1));
                    break;
                }
                if count == 0 && free.is_none() {
                    free = Some((place(step), slot, wanted + 1));
                }
            }
            let (place, before, after) = taken.or(free)?;
            if self.slots[place].compare_exchange(before, after, SeqCst, SeqCst).is_ok() {
                return Some(u8::try_from(place + 1).expect("there are few"));
            }
        }
    }

    /// Takes a mark away, if the key still has this one. Returns whether it had. The caller has the
    /// key's page for itself.
    pub(crate) fn remove(&self, key: &[u8], hash: u64, mark: Mark) -> bool {
        if mark.note == OUTSIDE {
            let removed = self.outside.remove(key, hash, mark);
            if let Some(notes) = &self.notes {
                notes.clear_note(key, hash, OUTSIDE);
            }
            return removed;
        }
        let clear = |notes: &Arc<dyn Notes>| notes.clear_note(key, hash, mark.note);
        if !self.notes.as_ref().is_some_and(clear) {
            return false;
        }
        // Before the slot may be another table's.
        self.removed(hash).fetch_add(1, SeqCst);
        self.slot(mark.note).fetch_sub(1, SeqCst);
        self.noted.fetch_sub(1, SeqCst);
        true
    }

    /// Some of the marked keys whose marks take memory.
    pub(crate) fn some(&self, most: usize) -> Vec<Vec<u8>> {
        self.outside.some(most)
    }

    /// Frees the memory of all marks: none stands for anything any more.
    pub(crate) fn clear(&self) {
        self.outside.clear();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::collections::HashMap;

    use spinney_base::shim::Mutex;
    use spinney_sync::hash_key;

    use super::*;

    #[derive(Debug, Default)]
    struct Records(Mutex<HashMap<Vec<u8>, u8>>);

    impl Notes for Records {
        fn note(&self, key: &[u8], _hash: u64) -> u8 {
            self.0.lock().get(key).copied().unwrap_or_default()
        }

        fn clear_note(&self, key: &[u8], _hash: u64, note: u8) -> bool {
            let mut records = self.0.lock();
            let found = records.get_mut(key).filter(|found| **found == note);
            found.map(|found| *found = 0).is_some()
        }
    }

    /// Marks of as many tables as there are slots, and of more, come and go.
    #[test]
    fn marks_are_what_they_were_set_to() {
        let records = Arc::new(Records::default());
        let marks = Marks::new(KeyspaceId(3), Some(records.clone()));
        let mut random = spinney_base::runtime::SplitMix(7);
        let mut model: HashMap<[u8; 8], u64> = HashMap::new();
        let mut outside = 0;
        for turn in 0..200_000_u64 {
            let newest = turn / 2_000;
            // For a while of each hundred tables few have marks, and then more than there are slots.
            let tables = if newest % 50 < 25 { 8 } else { 40 };
            let key = (random.next_u64() % 3000).to_be_bytes();
            let hash = hash_key(KeyspaceId(3), &key);
            let found = marks.get(&key, hash);
            assert_eq!(found.map(|mark| mark.table), model.get(&key).copied());
            match found {
                Some(mark)
                    if newest > mark.table + tables / 2 || random.next_u64().is_multiple_of(2) =>
                {
                    assert!(marks.remove(&key, hash, mark) && !marks.remove(&key, hash, mark));
                    model.remove(&key);
                }
                Some(_) => {}
                None => {
                    let table = newest + random.next_u64() % tables;
                    let (note, before) = marks.set(&key, hash, table);
                    assert_eq!(before, None);
                    records.0.lock().insert(key.to_vec(), note);
                    outside += u64::from(note == OUTSIDE);
                    model.insert(key, table);
                }
            }
            assert_eq!(marks.len(), model.len() as u64);
        }
        assert!(outside > 1000, "{outside} marks had no slot");
        for (key, table) in model {
            let hash = hash_key(KeyspaceId(3), &key);
            let mark = marks.get(&key, hash).expect("it is there");
            assert_eq!(mark.table, table);
            assert!(marks.remove(&key, hash, mark));
        }
        assert_eq!((marks.len(), marks.bytes()), (0, 0));
        assert!(marks.slots.iter().all(|slot| slot.load(SeqCst) & COUNT_MAX == 0));
    }

    /// S9: the mark of a key that was marked, written back and marked again is another one.
    #[test]
    fn s09_a_mark_that_comes_again_is_another() {
        let records = Arc::new(Records::default());
        let marks = Marks::new(KeyspaceId(3), Some(records.clone()));
        let hash = hash_key(KeyspaceId(3), b"a");
        let mark = || {
            let (note, _) = marks.set(b"a", hash, 1);
            records.0.lock().insert(b"a".to_vec(), note);
            marks.get(b"a", hash).expect("it was set")
        };
        let first = mark();
        assert!(marks.remove(b"a", hash, first));
        assert_ne!(mark(), first);
    }

    /// A slot that is full is not counted over: the table has another one.
    #[test]
    fn a_table_may_have_several_slots() {
        let marks = Marks::new(KeyspaceId(3), Some(Arc::new(Records::default())));
        let (first, _) = marks.set(b"a", 1, 20);
        marks.slot(first).fetch_add(COUNT_MAX - 1, SeqCst);
        let (second, _) = marks.set(b"b", 2, 20);
        assert_ne!(first, second);
        assert_eq!(marks.set(b"c", 3, 20).0, second);
        assert_eq!(marks.slot(first).load(SeqCst), 20 << COUNT_BITS | COUNT_MAX);
    }
}
