//! The books of one world: for each key, the values that it may have.
//!
//! ```text
//!   logged:    base --entry 1-- entry 2-- ... -- entry n     a crash leaves one point of this line
//!                              ^ durable_to                  power loss: any from here on; kill: n
//!   no log:    per key: every value since the last checkpoint
//!   now:       per key: what a read may answer in this process
//! ```
//!
//! This is the line of [`spinney_proving::ledger`], with one thing more: an entry that answered an
//! error is in doubt. It may be missing though later entries are there, but not in part.
//! Values of eight bytes and more name the write that made them, so half a batch is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use spinney::{Db, EngineKind, Result};
use spinney_proving::model::{show, show_value};

/// A value, or that there is none.
pub(crate) type Val = Option<Arc<[u8]>>;
/// A keyspace's name and a key.
pub(crate) type Place = (String, Vec<u8>);
/// What a scan of everything found.
pub(crate) type Found = BTreeMap<Place, Arc<[u8]>>;

/// A value of this length shows which write made it.
pub(crate) const TELLING: usize = 8;

/// How a keyspace is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) engine: EngineKind,
    pub(crate) logged: bool,
}

/// What became of a database between two lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loss {
    /// Nothing: the page cache outlived the process.
    Nothing,
    /// What a failed sync covered may be gone, and what can be read of it may be on no stable storage.
    Doubtful,
    /// What was not durable.
    Unsynced,
    /// The log may have lost records to a flipped bit.
    Rot,
}

struct Entry {
    writes: Vec<(Place, Val)>,
    acknowledged: bool,
}

#[derive(Default)]
pub(crate) struct Books {
    pub(crate) keyspaces: BTreeMap<String, Kept>,
    /// Keyspaces whose creation failed, and those whose drop failed.
    pub(crate) maybe_made: BTreeMap<String, Kept>,
    pub(crate) maybe_dropped: BTreeSet<String>,
    /// What logged keyspaces hold before the line.
    base: BTreeMap<Place, Val>,
    line: Vec<Entry>,
    durable_to: usize,
    /// What keys of keyspaces without a log may have after a crash.
    unlogged: BTreeMap<Place, Vec<Val>>,
    now: BTreeMap<Place, Vec<Val>>,
    ever: BTreeMap<Place, BTreeSet<Arc<[u8]>>>,
}

fn shown(values: &[Val]) -> String {
    let all: Vec<_> = values.iter().map(|value| show_value(value.as_deref())).collect();
    all.join(" or ")
}

impl Books {
    fn is_logged(&self, keyspace: &str) -> bool {
        self.keyspaces.get(keyspace).is_some_and(|kept| kept.logged)
    }

    /// Keyspaces whose state is known, with which operations are done.
    pub(crate) fn usable(&self) -> Vec<String> {
        let known = |name: &&String| !self.maybe_dropped.contains(*name);
        self.keyspaces.keys().filter(known).cloned().collect()
    }

    /// A write was tried; `Ok(true)` of it is an acknowledgement under `Sync`.
    pub(crate) fn wrote(&mut self, writes: &[(Place, Val)], acknowledged: Option<bool>) {
        for (place, value) in writes {
            if let Some(value) = value {
                self.ever.entry(place.clone()).or_default().insert(value.clone());
            }
            let now = self.now.entry(place.clone()).or_insert_with(|| vec![None]);
            if acknowledged.is_some() {
                now.clear();
            }
            now.push(value.clone());
            if !self.is_logged(&place.0) {
                let may = self.unlogged.entry(place.clone()).or_insert_with(|| vec![None]);
                may.push(value.clone());
            }
        }
        let logged = writes.iter().filter(|(place, _)| self.is_logged(&place.0)).cloned();
        let writes: Vec<_> = logged.collect();
        if writes.is_empty() {
            return;
        }
        self.line.push(Entry { writes, acknowledged: acknowledged.is_some() });
        if acknowledged == Some(true) {
            self.flushed();
        }
    }

    /// Everything acknowledged is durable in the log.
    pub(crate) fn flushed(&mut self) {
        self.durable_to = self.line.len();
    }

    /// Everything acknowledged is in the keyspaces' own files.
    pub(crate) fn checkpointed(&mut self) {
        self.flushed();
        for (place, may) in &mut self.unlogged {
            *may = self.now.get(place).cloned().unwrap_or_else(|| vec![None]);
        }
    }

    pub(crate) fn made(&mut self, name: &str, kept: Kept, done: bool) {
        if done {
            self.keyspaces.insert(name.to_owned(), kept);
        } else {
            self.maybe_made.insert(name.to_owned(), kept);
        }
    }

    pub(crate) fn dropped(&mut self, name: &str, done: bool) {
        if done {
            self.forget(name);
        } else {
            self.maybe_dropped.insert(name.to_owned());
        }
    }

    /// Nothing is known of a keyspace of this name any more.
    fn forget(&mut self, name: &str) {
        self.keyspaces.remove(name);
        self.base.retain(|(keyspace, _), _| keyspace != name);
        self.unlogged.retain(|(keyspace, _), _| keyspace != name);
        self.now.retain(|(keyspace, _), _| keyspace != name);
        for entry in &mut self.line {
            entry.writes.retain(|((keyspace, _), _)| keyspace != name);
        }
    }

    /// A read in this process found this.
    pub(crate) fn check_now(&self, place: &Place, found: Option<&[u8]>, when: &str) {
        let none = [None];
        let may = self.now.get(place).map_or(&none[..], Vec::as_slice);
        assert!(
            may.iter().any(|value| value.as_deref() == found),
            "{when}: {} {} is {}, may be {}",
            place.0,
            show(&place.1),
            show_value(found),
            shown(may)
        );
    }

    /// Keys of a keyspace that may be there now.
    pub(crate) fn keys(&self, keyspace: &str) -> Vec<Vec<u8>> {
        let of = self.now.range((keyspace.to_owned(), Vec::new())..);
        let of = of.take_while(|((name, _), _)| name == keyspace);
        let there = of.filter(|(_, may)| may.iter().any(Option::is_some));
        there.map(|((_, key), _)| key.clone()).collect()
    }

    /// A scan of a whole keyspace in this process found this.
    pub(crate) fn check_scan(
        &self,
        keyspace: &str,
        found: &BTreeMap<Vec<u8>, Vec<u8>>,
        when: &str,
    ) {
        for (key, value) in found {
            self.check_now(&(keyspace.to_owned(), key.clone()), Some(value), when);
        }
        for key in self.keys(keyspace) {
            if !found.contains_key(&key) {
                self.check_now(&(keyspace.to_owned(), key), None, when);
            }
        }
    }

    /// Compares everything that another database holds with what this process may read.
    pub(crate) fn check_copy(&self, found: &Found, when: &str) {
        for (place, value) in found {
            self.check_now(place, Some(value), when);
        }
        for place in self.now.keys().filter(|place| !found.contains_key(*place)) {
            if !self.maybe_dropped.contains(&place.0) {
                self.check_now(place, None, when);
            }
        }
    }

    /// The keyspaces that were found are those that were made and not dropped.
    pub(crate) fn check_names(&self, db: &Db, when: &str) -> BTreeMap<String, Kept> {
        let all = db.keyspaces().into_iter();
        let found: BTreeMap<String, Kept> =
            all.map(|it| (it.name, Kept { engine: it.engine, logged: it.logged })).collect();
        for (name, kept) in &found {
            let known = self.keyspaces.get(name).or_else(|| self.maybe_made.get(name));
            assert_eq!(known, Some(kept), "{when}: keyspace {name} came from nowhere");
        }
        for name in self.keyspaces.keys() {
            let there = found.contains_key(name) || self.maybe_dropped.contains(name);
            assert!(there, "{when}: keyspace {name} is gone");
        }
        found
    }

    /// What a crash left must be a point of the line.
    pub(crate) fn check_crash(
        &self,
        names: &BTreeMap<String, Kept>,
        found: &Found,
        loss: Loss,
        when: &str,
    ) {
        let mut places: BTreeSet<&Place> = found.keys().collect();
        places.extend(self.base.keys().chain(self.unlogged.keys()));
        places.extend(self.line.iter().flat_map(|entry| &entry.writes).map(|(place, _)| place));
        places.retain(|place| names.contains_key(&place.0));
        if loss == Loss::Rot {
            for place in places {
                let ever =
                    |value: &Arc<[u8]>| self.ever.get(place).is_some_and(|e| e.contains(value));
                let wrong = found.get(place).filter(|value| !ever(value));
                assert!(wrong.is_none(), "{when}: {} {} was never", place.0, show(&place.1));
            }
            return;
        }
        let none = vec![None];
        for place in places.iter().filter(|place| !names[&place.0].logged) {
            let may = self.unlogged.get(*place).unwrap_or(&none);
            let is = found.get(*place);
            assert!(
                may.iter().any(|value| value.as_ref() == is),
                "{when}: {} (no log) {} is {}, may be {}",
                place.0,
                show(&place.1),
                show_value(is.map(|value| &**value)),
                shown(may)
            );
        }
        let from = if loss == Loss::Nothing { self.line.len() } else { self.durable_to };
        let logged = places.into_iter().filter(|place| names[&place.0].logged).collect();
        self.check_line(logged, found, from, when);
        self.check_batches(names, found, when);
    }

    fn check_line(&self, places: BTreeSet<&Place>, found: &Found, from: usize, when: &str) {
        let is =
            |place: &Place, may: &[Val]| may.iter().any(|value| value.as_ref() == found.get(place));
        let mut may: BTreeMap<&Place, Vec<Val>> = BTreeMap::new();
        let mut differing = BTreeSet::new();
        for place in &places {
            let value = vec![self.base.get(*place).cloned().flatten()];
            if !is(place, &value) {
                differing.insert(*place);
            }
            may.insert(place, value);
        }
        let mut nearest = (usize::MAX, 0, BTreeSet::new());
        for point in 0..=self.line.len() {
            if point > 0 {
                let entry = &self.line[point - 1];
                for (place, value) in &entry.writes {
                    let Some(values) = may.get_mut(place) else { continue };
                    if entry.acknowledged {
                        values.clear();
                    }
                    values.push(value.clone());
                    if is(place, values) {
                        differing.remove(place);
                    } else {
                        differing.insert(place);
                    }
                }
            }
            if point >= from {
                if differing.is_empty() {
                    return;
                }
                if differing.len() < nearest.0 {
                    nearest = (differing.len(), point, differing.clone());
                }
            }
        }
        let mut message = format!(
            "{when}: no point of the log from {from} to {} explains what was found; {} keys differ at the nearest, {}",
            self.line.len(),
            nearest.0,
            nearest.1
        );
        for place in nearest.2.into_iter().take(8) {
            message += &format!("\n  {} {}: found {}", place.0, show(&place.1), {
                show_value(found.get(place).map(|value| &**value))
            });
            message += &format!(
                ", base {}",
                show_value(self.base.get(place).cloned().flatten().as_deref())
            );
            for (index, entry) in self.line.iter().enumerate() {
                for (_, value) in entry.writes.iter().filter(|(other, _)| other == place) {
                    let doubt = if entry.acknowledged { "" } else { " in doubt" };
                    message +=
                        &format!(", {} is {}{doubt}", index + 1, show_value(value.as_deref()));
                }
            }
        }
        panic!("{message}");
    }

    /// No entry is there in part: where one value of it is seen, no other key shows an earlier one.
    fn check_batches(&self, names: &BTreeMap<String, Kept>, found: &Found, when: &str) {
        // Which entry wrote a value that tells.
        let mut written: BTreeMap<(&Place, &Arc<[u8]>), usize> = BTreeMap::new();
        for (index, entry) in self.line.iter().enumerate() {
            for (place, value) in &entry.writes {
                if let Some(value) = value.as_ref().filter(|value| value.len() >= TELLING) {
                    written.insert((place, value), index);
                }
            }
        }
        for (index, entry) in self.line.iter().enumerate() {
            let by = |place: &Place| {
                let value = found.get(place)?;
                Some(written.get(&(place, value)).copied())
            };
            let there = entry.writes.iter().any(|(place, _)| by(place) == Some(Some(index)));
            if entry.writes.len() < 2 || !there {
                continue;
            }
            for (place, value) in entry.writes.iter().filter(|(it, _)| names.contains_key(&it.0)) {
                let Some(value) = value.as_ref().filter(|value| value.len() >= TELLING) else {
                    continue;
                };
                let removed = |entry: &Entry| entry.writes.contains(&(place.clone(), None));
                let earlier = match found.get(place) {
                    None => !self.line[index..].iter().any(removed),
                    Some(is) if is.len() < TELLING || is == value => false,
                    Some(_) => by(place).flatten().is_none_or(|other| other < index),
                };
                assert!(
                    !earlier,
                    "{when}: entry {} is there in part: {} {} is {}",
                    index + 1,
                    place.0,
                    show(&place.1),
                    show_value(found.get(place).map(|value| &**value))
                );
            }
        }
    }

    /// Reads answer what was found; what a crash may do does not change, because nothing was made durable.
    pub(crate) fn looked(&mut self, found: &Found) {
        self.now = found.iter().map(|(k, v)| (k.clone(), vec![Some(v.clone())])).collect();
    }

    /// What was found is durable; but what has no log may be in the page cache only, unless the power was lost.
    /// Then a later loss of power takes a key back to its last checkpoint (P11).
    pub(crate) fn settle(&mut self, names: BTreeMap<String, Kept>, found: &Found, loss: Loss) {
        let gone: Vec<String> =
            self.keyspaces.keys().filter(|it| !names.contains_key(*it)).cloned().collect();
        gone.iter().for_each(|name| self.forget(name));
        self.keyspaces = names;
        self.maybe_made.clear();
        self.maybe_dropped.clear();
        self.looked(found);
        self.line.clear();
        self.durable_to = 0;
        let mut before = std::mem::take(&mut self.unlogged);
        let was_cut = loss > Loss::Doubtful;
        if was_cut {
            before.clear();
        }
        self.base.clear();
        for (place, value) in found {
            if self.is_logged(&place.0) {
                self.base.insert(place.clone(), Some(value.clone()));
            } else {
                let fresh = || if was_cut { Vec::new() } else { vec![None] };
                before.entry(place.clone()).or_insert_with(fresh).push(Some(value.clone()));
            }
        }
        self.unlogged = before;
    }
}

/// Reads everything.
pub(crate) fn everything(db: &Db) -> Result<Found> {
    let mut found = Found::new();
    for info in db.keyspaces() {
        let keyspace = db.existing_keyspace(&info.name)?;
        let mut last: Option<Vec<u8>> = None;
        for record in keyspace.iter() {
            let (key, value) = record?;
            assert!(last.as_ref().is_none_or(|last| *last < key), "{} is out of order", info.name);
            last = Some(key.clone());
            let value: Vec<u8> = value.into();
            found.insert((info.name.clone(), key), value.into());
        }
    }
    Ok(found)
}
