//! What may be there after a crash: the promises of every acknowledged write, kept while a database
//! runs.
//!
//! ```text
//!   logged:    durable --tail 1-- tail 2-- ... -- tail n     recovered must be one point of this line
//!   unlogged:  per key: the checkpointed value, or that of any later write
//!   names:     exactly those whose creation was acknowledged and whose drop was not; in flight, either way
//! ```
//!
//! Logged writes are recovered as a prefix of the log: the contract asks for whole batches and
//! every acknowledged one, and the single log makes everything that survives a prefix, which is
//! stronger and is what is checked. A `Sync` write that was acknowledged moves `durable` past
//! itself, and so past every write before it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use spinney_base::Result;

use crate::database::{Bytes, Database, Promise, Write};
use crate::model::{Model, ModelKeyspace, show, show_value};
use crate::play::Effect;

type Place = (String, Bytes);

/// The books of one run.
#[derive(Debug)]
pub struct Ledger {
    /// What reads must answer now.
    now: Model,
    /// What no crash can take from logged keyspaces, and the last checkpoint of unlogged ones.
    durable: Model,
    /// Logged writes after `durable`, in order; the last may be in flight.
    tail: Vec<Vec<Write>>,
    /// Later values of keys in unlogged keyspaces.
    later: BTreeMap<Place, Vec<Option<Bytes>>>,
    /// A creation or a drop whose outcome is not known.
    doubt: Option<Effect>,
}

impl Ledger {
    /// Books for a database that holds `model`, all of it durable.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Ledger {
            now: model.clone(),
            durable: model,
            tail: Vec::new(),
            later: BTreeMap::new(),
            doubt: None,
        }
    }

    /// Books for a database that was found to hold `found` after its process died. What a keyspace without
    /// a log shows then may be in pages that are not durable: power loss may take it back to its last
    /// checkpoint.
    #[must_use]
    pub fn after_kill(&self, found: Model) -> Self {
        let mut next = Ledger::new(found);
        for (name, keyspace) in next.now.keyspaces.iter().filter(|(_, one)| !one.logged) {
            let before = self.durable.keyspaces.get(name);
            let before = before.into_iter().flat_map(|one| one.records.keys());
            let keys = before.chain(keyspace.records.keys()).map(|key| key.to_vec());
            let later = self.later.keys().filter(|(of, _)| of == name);
            for key in keys.chain(later.map(|(_, key)| key.clone())).collect::<BTreeSet<_>>() {
                let place = (name.clone(), key);
                let mut may = vec![self.durable.get(name, &place.1).map(<[u8]>::to_vec)];
                may.extend(self.later.get(&place).into_iter().flatten().cloned());
                let is = next.durable.get(name, &place.1);
                if may.iter().any(|value| value.as_deref() != is) {
                    next.later.insert(place, may);
                }
            }
        }
        next
    }

    /// What reads must answer now.
    #[must_use]
    pub fn now(&self) -> &Model {
        &self.now
    }

    fn is_logged(&self, keyspace: &str) -> bool {
        self.now.keyspaces.get(keyspace).is_some_and(|keyspace| keyspace.logged)
    }

    /// Before the operation is tried: from here on a crash may show it.
    pub fn begin(&mut self, effect: &Effect) {
        match effect {
            Effect::None => {}
            Effect::Create(..) | Effect::Drop(_) => self.doubt = Some(effect.clone()),
            Effect::Writes(writes) => {
                let (logged, unlogged): (Vec<Write>, Vec<Write>) =
                    writes.iter().cloned().partition(|write| self.is_logged(&write.keyspace));
                if !logged.is_empty() {
                    self.tail.push(logged);
                }
                for write in unlogged {
                    let place = (write.keyspace, write.key);
                    self.later.entry(place).or_default().push(write.value);
                }
            }
        }
    }

    /// The operation was acknowledged under `promise`.
    pub fn acknowledge(&mut self, effect: &Effect, promise: Promise) {
        effect.apply(&mut self.now);
        match effect {
            Effect::None => {}
            Effect::Writes(writes) => {
                let logged = writes.iter().any(|write| self.is_logged(&write.keyspace));
                if promise == Promise::Sync && logged {
                    self.flushed();
                }
            }
            Effect::Create(..) => {
                effect.apply(&mut self.durable);
                self.doubt = None;
            }
            Effect::Drop(name) => {
                effect.apply(&mut self.durable);
                self.doubt = None;
                self.later.retain(|(keyspace, _), _| keyspace != name);
                for writes in &mut self.tail {
                    writes.retain(|write| write.keyspace != *name);
                }
                self.tail.retain(|writes| !writes.is_empty());
            }
        }
    }

    /// Everything acknowledged is durable in the log.
    pub fn flushed(&mut self) {
        for writes in std::mem::take(&mut self.tail) {
            self.durable.apply(&writes);
        }
    }

    /// Everything acknowledged is in the keyspaces' own files.
    pub fn checkpointed(&mut self) {
        self.flushed();
        for (keyspace, key) in std::mem::take(&mut self.later).into_keys() {
            let value = self.now.get(&keyspace, &key).map(<[u8]>::to_vec);
            self.durable.apply(&[Write { keyspace, key, value }]);
        }
    }

    /// Compares what a crash left with the promises. Answers what it holds.
    ///
    /// # Errors
    /// What the database answered to a read.
    ///
    /// # Panics
    /// When a promise is broken.
    pub fn check(&self, recovered: &dyn Database) -> Result<Model> {
        let mut found = self.check_names(recovered);
        let mut differing = BTreeMap::new();
        for (name, keyspace) in &mut found.keyspaces {
            let expected = self.durable.keyspaces.get(name);
            let nothing = ModelKeyspace::default();
            let expected = expected.unwrap_or(&nothing);
            for item in recovered.range(name, Bound::Unbounded, Bound::Unbounded) {
                let (key, value) = item?;
                let (key, value) = (key.as_slice().into(), value.as_slice().into());
                assert!(
                    keyspace.records.last_key_value().is_none_or(|(last, _)| *last < key),
                    "{name} is out of order at {}",
                    show(&key)
                );
                keyspace.records.insert(key, value);
            }
            let keys: BTreeSet<_> =
                expected.records.keys().chain(keyspace.records.keys()).cloned().collect();
            for key in keys {
                let (is, was) = (keyspace.records.get(&key), expected.records.get(&key));
                if is != was {
                    let is = is.map(|value| value.to_vec());
                    differing.insert((name.clone(), key.to_vec()), is);
                }
            }
        }
        self.check_unlogged(&found, &mut differing);
        self.check_logged(&found, differing);
        Ok(found)
    }

    /// The keyspaces that are there, still empty, and right.
    fn check_names(&self, recovered: &dyn Database) -> Model {
        let mut allowed = vec![self.durable.clone_names()];
        if let Some(doubt) = &self.doubt {
            let mut other = self.durable.clone_names();
            doubt.apply(&mut other);
            allowed.push(other);
        }
        let mut found = Model::default();
        for (name, logged) in recovered.keyspaces() {
            let keyspace = ModelKeyspace { logged, ..ModelKeyspace::default() };
            found.keyspaces.insert(name, keyspace);
        }
        assert!(
            allowed.contains(&found),
            "keyspaces are {:?}, should be {:?} with {:?} in doubt",
            found.keyspaces.keys(),
            self.durable.keyspaces.keys(),
            self.doubt
        );
        found
    }

    /// Takes the differences that keyspaces without a log may show out of `differing`.
    fn check_unlogged(&self, found: &Model, differing: &mut BTreeMap<Place, Option<Bytes>>) {
        differing.retain(|(name, key), value| {
            if found.keyspaces[name].logged {
                return true;
            }
            let place = (name.clone(), key.clone());
            let allowed = self.later.get(&place).map_or(&[][..], Vec::as_slice);
            assert!(
                allowed.contains(value),
                "{name} (no log) has {} at {}, which is neither its checkpointed value {} nor one of {} later writes",
                show_value(value.as_deref()),
                show(key),
                show_value(self.durable.get(name, key)),
                allowed.len()
            );
            false
        });
    }

    /// Looks for a point of the line at which the logged keyspaces are.
    fn check_logged(&self, found: &Model, mut differing: BTreeMap<Place, Option<Bytes>>) {
        if differing.is_empty() {
            return;
        }
        let first = differing.clone();
        // What each key that the tail wrote holds at the point reached.
        let mut reached: BTreeMap<Place, Option<Bytes>> = BTreeMap::new();
        let mut nearest = (differing.len(), 0);
        for (index, writes) in self.tail.iter().enumerate() {
            for write in writes {
                if !found.keyspaces.contains_key(&write.keyspace) {
                    continue;
                }
                let place = (write.keyspace.clone(), write.key.clone());
                reached.insert(place, write.value.clone());
            }
            for write in writes {
                let place = (write.keyspace.clone(), write.key.clone());
                let Some(value) = reached.get(&place) else { continue };
                let is = found.get(&place.0, &place.1);
                if is == value.as_deref() {
                    differing.remove(&place);
                } else {
                    differing.insert(place, is.map(<[u8]>::to_vec));
                }
            }
            if differing.is_empty() {
                return;
            }
            nearest = nearest.min((differing.len(), index + 1));
        }
        let mut message = format!(
            "no point of the log explains what was recovered: {} records differ from what was durable, and still {} after \
             {} of {} later writes, the nearest point",
            first.len(),
            nearest.0,
            nearest.1,
            self.tail.len()
        );
        for ((name, key), value) in first.iter().take(8) {
            let mut history = vec![show_value(self.durable.get(name, key))];
            for write in self.tail.iter().flatten() {
                if write.keyspace == *name && write.key == *key {
                    history.push(show_value(write.value.as_deref()));
                }
            }
            message += &format!(
                "\n  {name} {}: recovered {}, was {}",
                show(key),
                show_value(value.as_deref()),
                history.join(", then ")
            );
        }
        panic!("{message}");
    }
}

impl Model {
    fn clone_names(&self) -> Model {
        let mut names = Model::default();
        for (name, keyspace) in &self.keyspaces {
            let empty = ModelKeyspace { logged: keyspace.logged, ..ModelKeyspace::default() };
            names.keyspaces.insert(name.clone(), empty);
        }
        names
    }
}
