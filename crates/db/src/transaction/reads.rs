//! What a transaction has read, and how it moves to a later moment.
//!
//! ```text
//!   stripes: index -> stamp, last key      keys: keyspace, key, digest of the value, the key before it
//! ```
//!
//! **Invariants**
//! 1. All noted values were so at one moment, at or after `moment`, and each stripe showed its noted
//!    stamp then.
//! 2. A value is compared by a digest of what the engine holds: of a large one, its pointer.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::{Bound, Range};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, LazyLock};

use spinney_base::limits::BATCH_BYTES_MAX;
use spinney_base::{Error, ErrorKind, Lsn, Result};
use spinney_engine::{Chunk, Direction, Found, ScanRequest};
use spinney_ssn::reads_are_current;
use spinney_sync::{Moment, Stamp, StripeGuards, hash_key};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::conflict;
use crate::guards::{NOBODY, Span, Touched};
use crate::keyspace_state::KeyspaceState;
use crate::options::Isolation;
use crate::part::Part;
use crate::place::Place;
use crate::state::State;
use crate::transaction_stats::Cause;
use crate::write::BatchWrite;

/// Keys that are noted. Of more than these only stripes are, and a change of such a stripe is a
/// conflict whatever its values are.
const KEYS_MAX: usize = 1 << 16;

/// Rounds of an extension that are made in any case, and at most. In between it continues while
/// fewer stripes change from round to round.
const ROUNDS_MIN: u32 = 3;
const ROUNDS_MAX: u32 = 16;

/// Attempts of a commit to be the first after its notes were found changed but equal in value.
const COMMITS_MAX: u32 = 4;

/// Reads of one chunk, each of which was written into meanwhile.
const SCANS_MAX: u32 = 3;

/// Nobody outside of the process can choose values with equal digests.
static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

/// What a transaction has read.
#[derive(Debug)]
pub(super) struct Reads {
    /// Every write up to here is seen, where it was read.
    moment: Moment,
    stripes: HashMap<usize, Noted>,
    keys: Vec<KeyNote>,
    /// The bytes of the keys noted, one behind the other: threads that allocate often wait for each
    /// other.
    bytes: Vec<u8>,
    /// The keyspaces, with their load counters at the first read.
    places: Vec<(Arc<Place>, u64)>,
    /// Number of the transaction, for its guards.
    owner: u64,
    /// Guards over ranges that were read, and whose they are.
    guards: Vec<(Arc<Place>, Touched)>,
    /// What it does over keyspaces with versions, once it has touched one.
    part: Option<Part>,
    isolation: Isolation,
    /// Why it cannot commit: a conflict, or a keyspace that is gone.
    ended: Option<Error>,
}

#[derive(Debug)]
struct Noted {
    /// Hash of one of its keys.
    hash: u64,
    stamp: Stamp,
    /// Index in `keys` of the last of its keys.
    last: Option<u32>,
    /// Whether more keys were read than are noted.
    lacks_keys: bool,
}

#[derive(Debug)]
struct KeyNote {
    /// Index in `places`.
    place: usize,
    /// Where its bytes lie.
    key: Range<usize>,
    hash: u64,
    digest: u128,
    /// The key of the same stripe that was noted before.
    before: Option<u32>,
}

fn digest(found: Found, raw: &[u8]) -> u128 {
    match found {
        Found::Absent => 0,
        Found::Inline => xxh3_128_with_seed(raw, *SEED) | 1,
        Found::Large => (xxh3_128_with_seed(raw, *SEED) & !1).max(2),
    }
}

impl Reads {
    pub(super) fn new(state: &State, isolation: Isolation) -> Reads {
        static OWNERS: AtomicU64 = AtomicU64::new(NOBODY + 1);
        Reads {
            owner: OWNERS.fetch_add(1, Relaxed),
            guards: Vec::new(),
            moment: state.moment(),
            stripes: HashMap::new(),
            keys: Vec::new(),
            bytes: Vec::new(),
            places: Vec::new(),
            part: None,
            isolation,
            ended: None,
        }
    }

    /// Returns the number of the transaction.
    pub(super) fn owner(&self) -> u64 {
        self.owner
    }

    /// Passes while it may commit.
    pub(super) fn check(&self) -> Result<()> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Ends the transaction with an error: it can do nothing any more but be dropped.
    pub(super) fn end(&mut self, error: &Error) {
        self.ended.get_or_insert_with(|| error.clone());
    }

    /// Whether it met a conflict.
    pub(super) fn is_in_conflict(&self) -> bool {
        self.ended.as_ref().is_some_and(|error| error.kind() == ErrorKind::Conflict)
    }

    /// Notes a conflict that a certifier tells of.
    fn conflict_as(&mut self, state: &State, cause: Cause, error: &Error) -> Error {
        let text = "the transaction cannot commit; run it again";
        let error = error.clone().wrap(ErrorKind::Conflict, text);
        self.end_in_conflict(state, cause, error)
    }

    /// Notes a conflict, which stays. Returns its error.
    pub(super) fn conflict(&mut self, state: &State, cause: Cause) -> Error {
        self.end_in_conflict(state, cause, conflict(cause))
    }

    /// Ends the transaction with a conflict, which is counted once. Returns the first error.
    fn end_in_conflict(&mut self, state: &State, cause: Cause, error: Error) -> Error {
        if self.ended.is_none() {
            state.writers.transactions.count_conflict(cause);
        }
        self.part = None;
        self.ended.get_or_insert(error).clone()
    }

    /// Reads a key as of a moment at which everything noted was so. Appends its value to `out`.
    pub(super) fn get(
        &mut self,
        state: &State,
        place: &Arc<Place>,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        if has_versions(place) {
            self.note_place(state, place)?;
            return self.get_version(state, place, key, out);
        }
        self.check_places(state)?;
        self.note_place(state, place)?;
        let hash = hash_key(place.id, key);
        let (found, stamp, digest) = {
            let keyspace = state.enter(place)?;
            let (found, stamp) = state.read(&keyspace, key, hash, out)?;
            if found == Found::Large {
                let mut raw = Vec::new();
                out.clear();
                let (found, stamp) = state.read_both(&keyspace, key, hash, &mut raw, out)?;
                (found, stamp, digest(found, &raw))
            } else {
                (found, stamp, digest(found, out))
            }
        };
        self.check_places(state)?;
        self.note(state, place, key, hash, stamp, digest)?;
        Ok(found != Found::Absent)
    }

    /// Reads many keys, side by side where the engine can. Shows each value with the place of its key.
    pub(super) fn get_many(
        &mut self,
        state: &State,
        place: &Arc<Place>,
        keys: &[&[u8]],
        show: &mut dyn FnMut(usize, Vec<u8>),
    ) -> Result<()> {
        self.check_places(state)?;
        self.note_place(state, place)?;
        if has_versions(place) {
            for (index, key) in keys.iter().enumerate() {
                let mut out = Vec::new();
                if self.get(state, place, key, &mut out)? {
                    show(index, out);
                }
            }
            return Ok(());
        }
        let hashed: Vec<_> = keys.iter().map(|key| (*key, hash_key(place.id, key))).collect();
        let stamps: Vec<Stamp> =
            hashed.iter().map(|(_, hash)| state.stripes.stripe(*hash).stamp()).collect();
        let values = state.enter(place)?.engine.get_many(&hashed)?;
        for (index, (value, stamp)) in values.into_iter().zip(stamps).enumerate() {
            let (key, hash) = hashed[index];
            let is_large = value.as_ref().is_some_and(|value| value.large);
            // Not before: noting the key before this one may have moved the moment.
            if is_large || !state.stripes.stripe(hash).validate(stamp) {
                let mut out = Vec::new();
                if self.get(state, place, key, &mut out)? {
                    show(index, out);
                }
                continue;
            }
            self.check_places(state)?;
            let bytes = value.map(|value| value.bytes);
            let digest = bytes
                .as_ref()
                .map_or(digest(Found::Absent, &[]), |bytes| digest(Found::Inline, bytes));
            self.note(state, place, key, hash, stamp, digest)?;
            if let Some(bytes) = bytes {
                show(index, bytes);
            }
        }
        Ok(())
    }

    /// Notes the load counter of a keyspace before it is first read.
    fn note_place(&mut self, state: &State, place: &Arc<Place>) -> Result<()> {
        if self.places.iter().any(|(known, _)| known.id == place.id) {
            return Ok(());
        }
        place.check_alive()?;
        let loads = place.loads();
        if loads % 2 == 1 {
            return Err(self.conflict(state, Cause::Loaded));
        }
        self.places.push((place.clone(), loads));
        Ok(())
    }

    /// Passes while no keyspace was loaded, dropped or converted since it was first read.
    fn check_places(&mut self, state: &State) -> Result<()> {
        let changed = self.places.iter().find(|(place, loads)| place.loads() != *loads);
        let Some((place, _)) = changed else { return Ok(()) };
        if let Err(gone) = place.check_alive() {
            return Err(self.ended.get_or_insert(gone).clone());
        }
        Err(self.conflict(state, Cause::Loaded))
    }

    /// Notes what was read, and moves to a later moment if it was written after this one.
    fn note(
        &mut self,
        state: &State,
        place: &Arc<Place>,
        key: &[u8],
        hash: u64,
        stamp: Stamp,
        digest: u128,
    ) -> Result<()> {
        let index = state.stripes.index(hash);
        let noted = self.stripes.get(&index);
        let is_as_noted = noted.is_none_or(|noted| noted.stamp == stamp);
        let last = noted.and_then(|noted| noted.last);
        let known = self.keys_of(last).find(|(of, known, _)| of.id == place.id && *known == key);
        let known = known.map(|(_, _, known)| known.digest);
        let noted = Noted { hash, stamp, last: None, lacks_keys: false };
        match known {
            Some(known) if known != digest => {
                return Err(self.conflict(state, Cause::Changed));
            }
            Some(_) => {}
            None if self.keys.len() < KEYS_MAX
                && self.bytes.len() + key.len() <= BATCH_BYTES_MAX =>
            {
                let noted = self.stripes.entry(index).or_insert(noted);
                let number = u32::try_from(self.keys.len()).expect("they are few");
                let before = noted.last.replace(number);
                let of = |(known, _): &(Arc<Place>, u64)| known.id == place.id;
                let place = self.places.iter().position(of).expect("it was noted");
                let from = self.bytes.len();
                self.bytes.extend_from_slice(key);
                let key = from..self.bytes.len();
                self.keys.push(KeyNote { place, key, hash, digest, before });
            }
            None if is_as_noted => self.stripes.entry(index).or_insert(noted).lacks_keys = true,
            None => return Err(self.conflict(state, Cause::Busy)),
        }
        if is_as_noted && stamp.is_within(self.moment) { Ok(()) } else { self.extend(state) }
    }

    /// The keys of a stripe whose last one this is: each with its keyspace and its note.
    fn keys_of(&self, last: Option<u32>) -> impl Iterator<Item = (&Arc<Place>, &[u8], &KeyNote)> {
        let note = |number: u32| &self.keys[number as usize];
        let all = std::iter::successors(last.map(note), move |it| it.before.map(note));
        all.map(|it| (&self.places[it.place].0, &self.bytes[it.key.clone()], it))
    }

    /// Whether the values of a stripe, whose last key this is, are as they were.
    fn are_as_read(&self, state: &State, last: Option<u32>) -> Result<bool> {
        let mut raw = Vec::new();
        for (place, key, note) in self.keys_of(last) {
            raw.clear();
            let (found, _) = state.read(&*state.enter(place)?, key, note.hash, &mut raw)?;
            if digest(found, &raw) != note.digest {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves to the present moment, if everything noted is still so.
    pub(super) fn extend(&mut self, state: &State) -> Result<()> {
        state.writers.transactions.count_extension();
        let mut least = usize::MAX;
        for round in 1..=ROUNDS_MAX {
            let moment = state.moment();
            self.extend_part(state)?;
            // A stripe that is locked is waited for: its writer may have shown a part of a batch already
            // (T7).
            let changed: Vec<usize> = self
                .stripes
                .iter()
                .filter(|(_, noted)| state.stripes.stripe(noted.hash).stamp() != noted.stamp)
                .map(|(index, _)| *index)
                .collect();
            for index in changed {
                self.look_again(state, index)?;
            }
            let is_at_rest =
                |noted: &&Noted| state.stripes.stripe(noted.hash).validate(noted.stamp);
            let restless = self.stripes.len() - self.stripes.values().filter(is_at_rest).count();
            self.check_places(state)?;
            // After the looks: a guard that is whole now was whole at the moment between them.
            self.check_guards(state)?;
            if restless == 0 {
                self.moment = moment;
                return Ok(());
            }
            if round >= ROUNDS_MIN && restless >= least {
                break;
            }
            least = least.min(restless);
        }
        Err(self.conflict(state, Cause::Busy))
    }

    /// Reads the keys of a stripe again, and notes its stamp if their values are as they were.
    fn look_again(&mut self, state: &State, index: usize) -> Result<()> {
        let noted = &self.stripes[&index];
        if noted.lacks_keys {
            return Err(self.conflict(state, Cause::Busy));
        }
        let stripe = state.stripes.stripe(noted.hash);
        let stamp = stripe.stamp();
        match self.are_as_read(state, noted.last) {
            // Dropped meanwhile, perhaps.
            Err(error) => return self.check_places(state).and(Err(error)),
            Ok(false) => return Err(self.conflict(state, Cause::Changed)),
            Ok(true) => {}
        }
        // If the stripe changed while its keys were read, the next look finds it.
        self.stripes.get_mut(&index).expect("it is noted").stamp = stamp;
        Ok(())
    }

    /// Writes if everything noted is still so. Returns the LSN, 0 if nothing was logged.
    pub(super) fn write(&mut self, state: &State, writes: &[BatchWrite<'_>]) -> Result<Lsn> {
        if writes.iter().any(|write| has_versions(write.place)) {
            self.part(state)?;
        }
        for attempt in 1..=COMMITS_MAX {
            let mut part = self.part.take();
            if let Some(part) = &mut part {
                part.is_mixed = !self.stripes.is_empty() || !self.guards.is_empty();
            }
            let written = state.write_all(writes, self.owner, part.as_mut(), |guards| {
                guards.before_looking_at_others();
                self.are_still(guards)
            });
            let is_over = part.as_ref().is_some_and(|part| part.transaction.is_none());
            let written = match written {
                // Its certifier says so, and not a condition of the batch.
                Err(error) if is_over && error.kind() == ErrorKind::Conflict => {
                    return Err(self.conflict_as(state, Cause::Changed, &error));
                }
                written => written?,
            };
            if let Some(lsn) = written {
                return Ok(lsn);
            }
            self.part = part;
            if attempt < COMMITS_MAX {
                self.extend(state)?;
            }
        }
        Err(self.conflict(state, Cause::Busy))
    }

    /// Whether everything noted is so, for a writer that holds `guards`. Memory work only.
    fn are_still(&self, guards: &StripeGuards<'_>) -> bool {
        self.stripes.values().all(|noted| guards.is_still(noted.hash, noted.stamp))
            && self.guards.iter().all(|(_, touched)| !touched.load(SeqCst))
            && self.places.iter().all(|(place, loads)| place.loads() == *loads)
    }

    /// Passes while no writer wrote into a range that was read.
    fn check_guards(&mut self, state: &State) -> Result<()> {
        if self.guards.iter().all(|(_, touched)| !touched.load(SeqCst)) {
            return Ok(());
        }
        Err(self.conflict(state, Cause::Changed))
    }

    /// Returns the part over keyspaces with versions, which begins with the first of them: once everything noted so
    /// far was so at its begin stamp (T12).
    fn part(&mut self, state: &State) -> Result<&mut Part> {
        if self.part.is_none() {
            match Part::begin(&state.versions, self.isolation, || state.log.quiesce()) {
                Ok(part) => self.part = Some(part),
                Err(error) => return Err(self.conflict_as(state, Cause::Busy, &error)),
            }
            if !self.stripes.is_empty() || !self.guards.is_empty() {
                self.extend(state)?;
            }
        }
        Ok(self.part.as_mut().expect("it has begun"))
    }

    /// Moves the part over versions to the present moment, if all that it has read is current.
    fn extend_part(&mut self, state: &State) -> Result<()> {
        let Some(part) = &mut self.part else { return Ok(()) };
        part.extend().map_err(|error| self.conflict_as(state, Cause::Changed, &error))
    }

    /// Reads a key of a keyspace with versions, at the begin stamp.
    fn get_version(
        &mut self,
        state: &State,
        place: &Arc<Place>,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let index = self.keep(state, place)?;
        let part = self.part(state)?;
        let whole = |keyspace: &KeyspaceState, pointer: &[u8], out: &mut Vec<u8>| {
            state.read_whole(keyspace, pointer, out)
        };
        let read = part.read(index, (key, hash_key(place.id, key)), out, whole);
        let is_there = self.or_conflict(state, read)?;
        self.check_places(state)?;
        Ok(is_there)
    }

    /// Reads a chunk of a range of a keyspace with versions, at the begin stamp.
    fn scan_versions(
        &mut self,
        state: &State,
        place: &Arc<Place>,
        request: &ScanRequest<'_>,
        chunk: &mut Chunk,
    ) -> Result<()> {
        let index = self.keep(state, place)?;
        let part = self.part(state)?;
        chunk.clear();
        let read = part.scan(index, request, chunk);
        self.or_conflict(state, read)?;
        resume_behind(chunk, request, request);
        let part = self.part.as_mut().expect("it has begun");
        part.note_span(index, covered(chunk, request));
        self.check_places(state)
    }

    /// Returns the index of a keyspace with versions in the part, which keeps it open.
    fn keep(&mut self, state: &State, place: &Arc<Place>) -> Result<usize> {
        let part = self.part(state)?;
        let kept = part.keep(place.id, || Ok(state.enter(place)?.pin()));
        self.or_conflict(state, kept)
    }

    /// Notes a conflict that a read of versions met.
    fn or_conflict<T>(&mut self, state: &State, read: Result<T>) -> Result<T> {
        read.map_err(|error| match error.kind() {
            ErrorKind::Conflict => self.conflict_as(state, Cause::Changed, &error),
            _ => error,
        })
    }

    /// Ends a transaction that writes nothing: what it read of versions is certified, at a moment at which all that it
    /// read elsewhere was so.
    pub(super) fn end_reading(&mut self, state: &State) -> Result<()> {
        let is_mixed = !self.stripes.is_empty() || !self.guards.is_empty();
        if is_mixed && self.part.is_some() {
            self.extend(state)?;
        }
        let Some(mut part) = self.part.take() else { return Ok(()) };
        let Some(mut transaction) = part.transaction.take() else { return Ok(()) };
        if !part.is_certified() {
            return Ok(());
        }
        let certified = state.versions.certify(&mut transaction, &[], Some(&part)).is_ok();
        let (pi, _) = transaction.pi_eta();
        let is_current = reads_are_current(pi, transaction.commit_stamp());
        if !certified || is_mixed && !(is_current && self.are_unlocked(state)) {
            drop((transaction, part));
            return Err(self.conflict(state, Cause::Changed));
        }
        transaction.decide();
        transaction.publish(|_| unreachable!("it writes nothing"));
        transaction.finish();
        Ok(())
    }

    /// Whether everything noted elsewhere is so and nobody is changing it: a holder of a stripe may wait for this
    /// transaction.
    fn are_unlocked(&self, state: &State) -> bool {
        let is_still = |noted: &Noted| state.stripes.stripe(noted.hash).validate(noted.stamp);
        self.stripes.values().all(is_still)
            && self.guards.iter().all(|(_, touched)| !touched.load(SeqCst))
            && self.places.iter().all(|(place, loads)| place.loads() == *loads)
    }

    /// Reads a chunk of a range of a keyspace, as of a moment at which everything noted was so.
    /// `before` is the guard of what its cursor read last at this end; it becomes that of the chunk.
    /// The part of the range that the chunk covers ends where it resumes.
    pub(super) fn scan(
        &mut self,
        state: &State,
        place: &Arc<Place>,
        request: &ScanRequest<'_>,
        before: &mut Option<Touched>,
        chunk: &mut Chunk,
    ) -> Result<()> {
        self.check_places(state)?;
        self.note_place(state, place)?;
        if has_versions(place) {
            return self.scan_versions(state, place, request, chunk);
        }
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let mut span = (owned(request.lower), owned(request.upper));
        for _ in 0..SCANS_MAX {
            let touched = place.guards.register(self.owner, span.clone());
            self.guards.push((place.clone(), touched.clone()));
            // Each writer that looked for guards before this one was there has applied (T5).
            state.log.quiesce();
            chunk.clear();
            let part = ScanRequest {
                lower: span.0.as_ref().map(Vec::as_slice),
                upper: span.1.as_ref().map(Vec::as_slice),
                ..*request
            };
            state.enter(place)?.engine.scan(&part, chunk)?;
            resume_behind(chunk, &part, request);
            let covered = covered(chunk, request);
            let kept = place.guards.narrow(&touched, covered.clone(), before.as_ref());
            let is_whole = kept.is_some();
            self.guards.retain(|(_, it)| {
                !Arc::ptr_eq(it, &touched)
                    || kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, it))
            });
            if is_whole {
                *before = kept;
                self.check_places(state)?;
                let is_now = state.moment() == self.moment;
                return if is_now { Ok(()) } else { self.extend(state) };
            }
            // Once more what this chunk covered: not all that was asked for, or the head of a queue could
            // not be read beside writes at its tail.
            span = covered;
        }
        Err(self.conflict(state, Cause::Busy))
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        let mut places: Vec<&Arc<Place>> = self.guards.iter().map(|(place, _)| place).collect();
        places.dedup_by_key(|place| place.id);
        places.into_iter().for_each(|place| place.guards.remove(self.owner));
    }
}

/// Whether the records of a keyspace have versions.
pub(super) fn has_versions(place: &Place) -> bool {
    place.options.engine.row().capabilities.versions
}

/// Says where a chunk of a part of a range ends, if not with the whole range.
fn resume_behind(chunk: &mut Chunk, part: &ScanRequest<'_>, whole: &ScanRequest<'_>) {
    let (end, is_last) = match part.direction {
        Direction::Forward => (part.upper, part.upper == whole.upper),
        Direction::Reverse => (part.lower, part.lower == whole.lower),
    };
    if chunk.finished && !is_last {
        chunk.finished = false;
        // The part ended before a key that its bound excludes, or with one that it includes.
        chunk.resume = Some(match end {
            Bound::Included(key) => Bound::Excluded(key.to_vec()),
            Bound::Excluded(key) => Bound::Included(key.to_vec()),
            Bound::Unbounded => Bound::Unbounded,
        });
    }
    let last = chunk.len().checked_sub(1).map(|last| chunk.get(last).0.to_vec());
    // The engine may know that nothing lies in the gap behind the last record that was allowed, or at the
    // end of the range. The cursor gives no sign of it, so a write there changes no answer.
    if chunk.len() >= whole.records_max && last.is_some() {
        (chunk.finished, chunk.resume) = (false, None);
    }
    if !chunk.finished && chunk.resume.is_none() {
        chunk.resume = last.map(Bound::Excluded);
    }
}

/// The part of a range that a chunk covers.
fn covered(chunk: &Chunk, request: &ScanRequest<'_>) -> Span {
    let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
    let end = chunk.resume.as_ref().filter(|_| !chunk.finished).map(|resume| match resume {
        Bound::Included(key) => Bound::Excluded(key.clone()),
        Bound::Excluded(key) => Bound::Included(key.clone()),
        Bound::Unbounded => Bound::Unbounded,
    });
    let (lower, upper) = (owned(request.lower), owned(request.upper));
    match request.direction {
        Direction::Forward => (lower, end.unwrap_or(upper)),
        Direction::Reverse => (end.unwrap_or(lower), upper),
    }
}
