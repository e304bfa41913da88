//! What a transaction has read, and how it moves to a later moment.
//!
//! ```text
//!   stripes: index -> stamp, keys          keys: keyspace, key, digest of the value
//! ```
//!
//! **Invariants**
//! 1. All noted values were so at one moment, at or after `moment`, and each stripe showed its noted
//!    stamp then.
//! 2. A value is compared by a digest of what the engine holds: of a large one, its pointer.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use spinney_base::limits::BATCH_BYTES_MAX;
use spinney_base::{Error, Result};
use spinney_engine::Found;
use spinney_sync::{Moment, Stamp, StripeGuards, hash_key};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::conflict;
use crate::place::Place;
use crate::state::State;
use crate::transaction_stats::Cause;

/// Keys that are noted. Of more than these only stripes are, and a change of such a stripe is a
/// conflict whatever its values are.
const KEYS_MAX: usize = 1 << 16;

/// Rounds of an extension that are made in any case, and at most. In between it continues while
/// fewer stripes change from round to round.
const ROUNDS_MIN: u32 = 3;
const ROUNDS_MAX: u32 = 16;

/// Nobody outside of the process can choose values with equal digests.
static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

/// What a transaction has read.
#[derive(Debug)]
pub(super) struct Reads {
    /// Every write up to here is seen, where it was read.
    moment: Moment,
    stripes: HashMap<usize, Noted>,
    keys: Vec<KeyNote>,
    /// Bytes of the keys noted.
    bytes: usize,
    /// The keyspaces, with their load counters at the first read.
    places: Vec<(Arc<Place>, u64)>,
    conflict: Option<Cause>,
}

#[derive(Debug)]
struct Noted {
    /// Hash of one of its keys.
    hash: u64,
    stamp: Stamp,
    /// Indexes in `keys`.
    keys: Vec<u32>,
    /// Whether more keys were read than are noted.
    lacks_keys: bool,
}

#[derive(Debug)]
struct KeyNote {
    place: Arc<Place>,
    key: Box<[u8]>,
    hash: u64,
    digest: u128,
}

fn digest(found: Found, raw: &[u8]) -> u128 {
    match found {
        Found::Absent => 0,
        Found::Inline => xxh3_128_with_seed(raw, *SEED) | 1,
        Found::Large => (xxh3_128_with_seed(raw, *SEED) & !1).max(2),
    }
}

impl Reads {
    pub(super) fn new(state: &State) -> Reads {
        Reads {
            moment: state.moment(),
            stripes: HashMap::new(),
            keys: Vec::new(),
            bytes: 0,
            places: Vec::new(),
            conflict: None,
        }
    }

    /// Passes while there was no conflict.
    pub(super) fn check(&self) -> Result<()> {
        self.conflict.map_or(Ok(()), |cause| Err(conflict(cause)))
    }

    /// Notes a conflict, which stays. Returns its error.
    pub(super) fn conflict(&mut self, state: &State, cause: Cause) -> Error {
        if self.conflict.is_none() {
            state.writers.transactions.count_conflict(cause);
        }
        conflict(*self.conflict.get_or_insert(cause))
    }

    /// Reads a key as of a moment at which everything noted was so. Appends its value to `out`.
    pub(super) fn get(
        &mut self,
        state: &State,
        place: &Arc<Place>,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool> {
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
        let gone = place.check_alive();
        let conflict = self.conflict(state, Cause::Loaded);
        gone.and(Err(conflict))
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
        let noted = self.stripes.entry(state.stripes.index(hash)).or_insert_with(|| Noted {
            hash,
            stamp,
            keys: Vec::new(),
            lacks_keys: false,
        });
        let (keys, is_as_noted) = (&self.keys, noted.stamp == stamp);
        let known = noted.keys.iter().map(|index| &keys[*index as usize]);
        match known.into_iter().find(|it| it.place.id == place.id && *it.key == *key) {
            Some(known) if known.digest != digest => {
                return Err(self.conflict(state, Cause::Changed));
            }
            Some(_) => {}
            None if self.keys.len() < KEYS_MAX && self.bytes + key.len() <= BATCH_BYTES_MAX => {
                noted.keys.push(u32::try_from(self.keys.len()).expect("they are few"));
                self.bytes += key.len();
                let (place, key) = (place.clone(), key.into());
                self.keys.push(KeyNote { place, key, hash, digest });
            }
            None if is_as_noted => noted.lacks_keys = true,
            None => return Err(self.conflict(state, Cause::Busy)),
        }
        if is_as_noted && stamp.is_within(self.moment) { Ok(()) } else { self.extend(state) }
    }

    /// Moves to the present moment, if everything noted is still so.
    pub(super) fn extend(&mut self, state: &State) -> Result<()> {
        state.writers.transactions.count_extension();
        let mut least = usize::MAX;
        for round in 1..=ROUNDS_MAX {
            let moment = state.moment();
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
        let mut raw = Vec::new();
        for key in &noted.keys {
            let note = &self.keys[*key as usize];
            raw.clear();
            let read = state
                .enter(&note.place)
                .and_then(|keyspace| state.read(&keyspace, &note.key, note.hash, &mut raw));
            let (found, _) = match read {
                Ok(read) => read,
                // Dropped meanwhile, perhaps.
                Err(error) => return self.check_places(state).and(Err(error)),
            };
            if digest(found, &raw) != note.digest {
                return Err(self.conflict(state, Cause::Changed));
            }
        }
        // If the stripe changed while its keys were read, the next look finds it.
        self.stripes.get_mut(&index).expect("it is noted").stamp = stamp;
        Ok(())
    }

    /// Whether everything noted is so, for a writer that holds `guards`. Memory work only.
    pub(super) fn are_still(&self, guards: &StripeGuards<'_>) -> bool {
        self.stripes.values().all(|noted| guards.is_still(noted.hash, noted.stamp))
            && self.places.iter().all(|(place, loads)| place.loads() == *loads)
    }
}
