//! Snapshots that are kept while something goes wrong (rule P25): what one answers may a key have had when it was taken,
//! it answers so again, or it says that it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use spinney_base::{Error, Result};

use crate::database::{Bytes, Database, KeyBound, View};
use crate::fault::{Books, Damage};
use crate::ops::Op;

/// Most snapshots that are kept at once.
const VIEWS_MAX: usize = 3;

/// See the module. Oldest first.
pub(crate) struct Views {
    kept: Vec<Kept>,
    /// Whether answers may change where a write was lost in silence.
    may_change: bool,
}

struct Kept {
    keyspace: String,
    view: Box<dyn View>,
    /// What was known when it was taken.
    then: Books,
    /// What it has answered; `None` where answers may change.
    answered: Option<BTreeMap<Bytes, Option<Bytes>>>,
}

impl Kept {
    fn check(&mut self, damage: Damage, key: &[u8], found: Option<&[u8]>, when: &str) {
        let when = format!("{when}, in a snapshot");
        self.then.check(damage, &self.keyspace, key, found, &when);
        let Some(answered) = &mut self.answered else { return };
        let before = answered.entry(key.to_vec()).or_insert_with(|| found.map(<[u8]>::to_vec));
        assert!(before.as_deref() == found, "{when}: an answer is not what it was");
    }

    /// Checks the records of a range, so many at most; answers their keys.
    fn read_range(
        &mut self,
        damage: Damage,
        (from, to): (KeyBound, KeyBound),
        count: usize,
        when: &str,
    ) -> Result<BTreeSet<Bytes>> {
        // A range that met an error meets it again forever.
        let records: Result<Vec<_>> = self.view.range(from, to).take(count).collect();
        let mut keys = BTreeSet::new();
        for (key, value) in records? {
            self.check(damage, &key, Some(&value), when);
            keys.insert(key);
        }
        Ok(keys)
    }
}

impl Views {
    /// No snapshots yet. `may_change` says whether answers may change, because a write may be lost in
    /// silence.
    pub(crate) fn new(may_change: bool) -> Views {
        Views { kept: Vec::new(), may_change }
    }

    /// Keeps a snapshot of a keyspace of which so much is known, where the product has such.
    pub(crate) fn take(
        &mut self,
        database: &dyn Database,
        keyspace: &str,
        books: &Books,
    ) -> Result<()> {
        if self.kept.len() == VIEWS_MAX {
            self.kept.remove(0);
        }
        let view = database.snapshot(keyspace)?;
        self.kept.extend(view.map(|view| Kept {
            keyspace: keyspace.to_owned(),
            view,
            then: books.clone(),
            answered: (!self.may_change).then(BTreeMap::new),
        }));
        Ok(())
    }

    /// Carries out what `op` says of snapshots, and checks what they answer.
    pub(crate) fn play(
        &mut self,
        database: &dyn Database,
        op: &Op,
        books: &Books,
        damage: Damage,
    ) -> Result<()> {
        match op {
            Op::TakeSnapshot { keyspace } => self.take(database, keyspace, books)?,
            Op::ReadSnapshot { which, keys, from, to, .. } if !self.kept.is_empty() => {
                let which = which % self.kept.len();
                let kept = &mut self.kept[which];
                let when = format!("{op:?}");
                let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                for (key, found) in keys.iter().zip(kept.view.multi_get(&slices)?) {
                    kept.check(damage, key, found.as_deref(), &when);
                    let found = kept.view.get(key)?;
                    kept.check(damage, key, found.as_deref(), &when);
                }
                kept.read_range(damage, (from.clone(), to.clone()), 100, &when)?;
            }
            Op::DropSnapshot { which } if !self.kept.is_empty() => {
                self.kept.remove(which % self.kept.len());
            }
            Op::DropKeyspace { name } => self.kept.retain(|kept| kept.keyspace != *name),
            _ => {}
        }
        Ok(())
    }

    /// Reads all of all snapshots and checks it; answers the errors.
    pub(crate) fn check_all(&mut self, damage: Damage, when: &str) -> Vec<Error> {
        let mut errors = Vec::new();
        for kept in &mut self.kept {
            let all = (Bound::Unbounded, Bound::Unbounded);
            let whole = kept.read_range(damage, all, usize::MAX, when);
            for key in kept.then.keys(&kept.keyspace) {
                if whole.as_ref().is_ok_and(|found| !found.contains(&key)) && damage == Damage::Told
                {
                    kept.check(damage, &key, None, when);
                }
                match kept.view.get(&key) {
                    Ok(found) => kept.check(damage, &key, found.as_deref(), when),
                    Err(error) => errors.push(error),
                }
            }
            errors.extend(whole.err());
        }
        errors
    }
}
