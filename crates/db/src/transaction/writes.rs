//! What a transaction is going to write.

use std::collections::BTreeMap;
use std::mem;
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use spinney_base::{Error, KeyspaceId, Result};
use spinney_engine::Patch;

use crate::place::Place;
use crate::write::{BatchWrite, check_operations};

/// A key; a short one without memory of its own, for threads that allocate often wait for each other.
type Key = SmallVec<[u8; 24]>;

/// Own writes of a keyspace by key.
type Values = BTreeMap<Key, Own>;

/// What a transaction makes of a key.
#[derive(Debug)]
struct Own {
    /// The new value, whole; `None` is a removal.
    value: Option<Vec<u8>>,
    /// The parts in which it differs from the value that was read, if that was patched and nothing else.
    patched: Option<Patched>,
}

/// Parts that were patched, in order and apart from each other.
#[derive(Debug)]
struct Patched {
    parts: Vec<Range<usize>>,
    /// The same as a [`Patch`].
    patch: Vec<u8>,
}

impl Patched {
    /// Makes it of one more part.
    fn with(before: Vec<Range<usize>>, mut part: Range<usize>, value: &[u8]) -> Patched {
        // Two parts that lie close to each other take more bytes than one of both and what is between.
        let are_close = |one: &Range<usize>, other: &Range<usize>| {
            one.start <= other.end + Patch::PART_BYTES && other.start <= one.end + Patch::PART_BYTES
        };
        let mut parts = Vec::with_capacity(before.len() + 1);
        for other in before {
            if are_close(&other, &part) {
                part = part.start.min(other.start)..part.end.max(other.end);
            } else {
                parts.push(other);
            }
        }
        let at = parts.partition_point(|other| other.start < part.start);
        parts.insert(at, part);
        let mut patch = Vec::new();
        for part in &parts {
            Patch::push(&mut patch, part.start, &value[part.clone()]);
        }
        Patched { parts, patch }
    }
}

/// The last write of each key.
#[derive(Debug, Default)]
pub(super) struct Writes {
    keyspaces: BTreeMap<KeyspaceId, (Arc<Place>, Values)>,
    /// Keys of all keyspaces.
    count: usize,
    /// What each write since the first savepoint has replaced; the inner option says whether there
    /// was a write.
    undo: Vec<Undo>,
    /// The savepoints that there are: their numbers, and how many writes were undoable then.
    savepoints: Vec<(u64, usize)>,
}

#[derive(Debug)]
struct Undo {
    keyspace: KeyspaceId,
    key: Key,
    before: Option<Own>,
}

/// The writes of a transaction up to a point. See [`Transaction::savepoint`](crate::Transaction::savepoint).
#[derive(Clone, Debug)]
pub struct Savepoint {
    /// No other savepoint of the process has it.
    number: u64,
}

impl Writes {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What was written to a key, if anything: a value or its removal.
    pub(super) fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<Option<&[u8]>> {
        let (_, values) = self.keyspaces.get(&keyspace)?;
        values.get(key).map(|own| own.value.as_deref())
    }

    /// The writes in a range of a keyspace, in the order of their keys.
    pub(super) fn range(
        &self,
        keyspace: KeyspaceId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let values = self.keyspaces.get(&keyspace).map(|(_, values)| values);
        // A range that the map would panic over: it begins behind its end.
        let values = values.filter(|_| !is_empty(lower, upper));
        values.into_iter().flat_map(move |values| {
            let range = values.range::<[u8], _>((lower, upper));
            range.map(|(key, own)| (&key[..], own.value.as_deref()))
        })
    }

    pub(super) fn put(
        &mut self,
        place: &Arc<Place>,
        key: &[u8],
        value: Option<Vec<u8>>,
    ) -> Result<()> {
        self.write(place, key, |_| Own { value, patched: None })
    }

    /// Replaces a part of a value, which is this afterwards. It was read by the transaction, or is its own.
    pub(super) fn patch(
        &mut self,
        place: &Arc<Place>,
        key: &[u8],
        value: Vec<u8>,
        part: Range<usize>,
    ) -> Result<()> {
        self.write(place, key, |before| {
            let parts = match before {
                None => Some(Vec::new()),
                Some(own) => own.patched.as_ref().map(|patched| patched.parts.clone()),
            };
            let patched = parts.map(|parts| Patched::with(parts, part, &value));
            Own { value: Some(value), patched }
        })
    }

    fn write(
        &mut self,
        place: &Arc<Place>,
        key: &[u8],
        own: impl FnOnce(Option<&Own>) -> Own,
    ) -> Result<()> {
        let (_, values) =
            self.keyspaces.entry(place.id).or_insert_with(|| (place.clone(), Values::new()));
        let before = match values.get_mut(key) {
            Some(known) => {
                let own = own(Some(known));
                Some(mem::replace(known, own))
            }
            None => {
                check_operations(self.count + 1)?;
                values.insert(Key::from_slice(key), own(None));
                self.count += 1;
                None
            }
        };
        if !self.savepoints.is_empty() {
            self.undo.push(Undo { keyspace: place.id, key: Key::from_slice(key), before });
        }
        Ok(())
    }

    /// All of them, for a commit.
    pub(super) fn all(&self) -> Vec<BatchWrite<'_>> {
        let mut all = Vec::with_capacity(self.count);
        all.extend(self.keyspaces.values().flat_map(|(place, values)| {
            values.iter().map(move |(key, own)| {
                let whole = own.value.as_deref();
                let patch = own.patched.as_ref().map(|patched| &patched.patch[..]);
                let patch = patch.filter(|patch| whole.is_some_and(|it| patch.len() < it.len()));
                BatchWrite { place, key, value: patch.or(whole), is_patch: patch.is_some() }
            })
        }));
        all
    }

    pub(super) fn savepoint(&mut self) -> Savepoint {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        self.savepoints.push((number, self.undo.len()));
        Savepoint { number }
    }

    pub(super) fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        let place = self.savepoints.iter().position(|(number, _)| *number == savepoint.number);
        let Some(place) = place else {
            return Err(Error::invalid("the savepoint is of another transaction, or gone"));
        };
        self.savepoints.truncate(place + 1);
        let (_, writes) = self.savepoints[place];
        for Undo { keyspace, key, before } in self.undo.drain(writes..).rev() {
            let Some((_, values)) = self.keyspaces.get_mut(&keyspace) else { continue };
            match before {
                Some(own) => _ = values.insert(key, own),
                None => self.count -= usize::from(values.remove(&key[..]).is_some()),
            }
        }
        Ok(())
    }
}

fn is_empty(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper))
        | (Bound::Excluded(lower), Bound::Included(upper)) => lower >= upper,
        _ => false,
    }
}
