//! One operation on a database and its model: the answers must agree.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::{Result, Runtime};
use spinney_io::Disk;

use crate::database::{Bytes, Config, Database, Items, Product, View, Write};
use crate::model::{Model, ModelKeyspace, owned, show, show_value};
use crate::ops::Op;

/// What an operation does to the model when it succeeds.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Nothing.
    None,
    /// These writes, all or none.
    Writes(Vec<Write>),
    /// A new keyspace.
    Create(String, bool),
    /// One keyspace less.
    Drop(String),
}

/// What `op` will do to `model`.
#[must_use]
pub fn effect(op: &Op, model: &Model) -> Effect {
    let one = |keyspace: &String, key: &Bytes, value: Option<Bytes>| {
        Effect::Writes(vec![Write { keyspace: keyspace.clone(), key: key.clone(), value }])
    };
    match op {
        Op::Write { writes, .. } => Effect::Writes(writes.clone()),
        Op::CompareAndSwap { keyspace, key, expected, new }
            if model.get(keyspace, key) == expected.as_deref() =>
        {
            one(keyspace, key, new.clone())
        }
        Op::Update { keyspace, key, suffix } => {
            one(keyspace, key, changed(model.get(keyspace, key), suffix.as_ref()))
        }
        Op::BulkLoad { keyspace, records } => {
            let writes = records.iter().map(|(key, value)| Write {
                keyspace: keyspace.clone(),
                key: key.clone(),
                value: Some(value.clone()),
            });
            Effect::Writes(writes.collect())
        }
        Op::CreateKeyspace { name, logged } => Effect::Create(name.clone(), *logged),
        Op::DropKeyspace { name } => Effect::Drop(name.clone()),
        _ => Effect::None,
    }
}

impl Effect {
    /// Carries the effect out on a model.
    pub fn apply(&self, model: &mut Model) {
        match self {
            Effect::None => {}
            Effect::Writes(writes) => model.apply(writes),
            Effect::Create(name, logged) => {
                let keyspace = ModelKeyspace { logged: *logged, ..ModelKeyspace::default() };
                model.keyspaces.entry(name.clone()).or_insert(keyspace);
            }
            Effect::Drop(name) => {
                model.keyspaces.remove(name);
            }
        }
    }
}

/// The value that [`Op::Update`] makes.
fn changed(current: Option<&[u8]>, suffix: Option<&Bytes>) -> Option<Bytes> {
    let suffix = suffix?;
    let mut value = current.unwrap_or_default().to_vec();
    // Bounded, so that a value that is often updated stays within what a page holds.
    value.truncate(1000);
    value.extend_from_slice(suffix);
    Some(value)
}

fn agree(op: &Op, found: Option<&[u8]>, expected: Option<&[u8]>) {
    assert!(
        found == expected,
        "{op:?} answered {}, the model has {}",
        show_value(found),
        show_value(expected)
    );
}

fn agree_items(
    op: &Op,
    mut items: Items<'_>,
    expected: Vec<(&[u8], &[u8])>,
    pulls: &[bool],
) -> Result<()> {
    let mut expected: VecDeque<(Bytes, Bytes)> = expected.into_iter().map(owned).collect();
    for front in pulls {
        let found = if *front { items.next() } else { items.next_back() }.transpose()?;
        let right = if *front { expected.pop_front() } else { expected.pop_back() };
        assert!(
            found == right,
            "{op:?}: a pull from the {} answered {}, the model has {}",
            if *front { "front" } else { "back" },
            found.map_or_else(|| "the end".into(), |(key, value)| show(&key) + " " + &show(&value)),
            right.map_or_else(|| "the end".into(), |(key, value)| show(&key) + " " + &show(&value)),
        );
        if right.is_none() {
            assert!(items.next().transpose()?.is_none(), "{op:?} went on after its end");
            assert!(items.next_back().transpose()?.is_none(), "{op:?} went on after its end");
            break;
        }
    }
    Ok(())
}

/// Carries out `op` on `database`, which holds what `model` holds, and checks what it answers. The
/// model is not changed.
///
/// # Errors
/// What the database answered instead.
///
/// # Panics
/// When an answer is not the model's.
pub fn play(database: &dyn Database, runtime: &Runtime, op: &Op, model: &Model) -> Result<()> {
    match op {
        Op::Write { writes, promise } => database.write(writes, *promise)?,
        Op::CompareAndSwap { keyspace, key, expected, new } => {
            let current = model.get(keyspace, key);
            let answer =
                database.compare_and_swap(keyspace, key, expected.as_deref(), new.as_deref())?;
            match answer {
                Ok(()) => agree(op, expected.as_deref(), current),
                Err(found) => {
                    agree(op, found.as_deref(), current);
                    assert!(current != expected.as_deref(), "{op:?} failed on the expected value");
                }
            }
        }
        Op::Update { keyspace, key, suffix } => {
            let mut change = |current: Option<&[u8]>| changed(current, suffix.as_ref());
            let found = database.update(keyspace, key, &mut change)?;
            let right = changed(model.get(keyspace, key), suffix.as_ref());
            agree(op, found.as_deref(), right.as_deref());
        }
        Op::Flush => database.flush()?,
        Op::Checkpoint => database.checkpoint()?,
        Op::Compact { keyspace, from, to } => database.compact(keyspace, from, to)?,
        Op::Verify => database.verify()?,
        Op::SetMemory { bytes } => database.set_memory(*bytes)?,
        Op::BulkLoad { keyspace, records } => database.bulk_load(keyspace, records)?,
        Op::CreateKeyspace { name, logged } => database.create_keyspace(name, *logged)?,
        Op::DropKeyspace { name } => database.drop_keyspace(name)?,
        Op::Step { pieces, millis } => {
            for _ in 0..*pieces {
                runtime.sleep(Duration::from_millis(*millis));
                runtime.step();
            }
        }
        Op::SetDistance { keyspace, batches } => {
            database.set_checkpoint_distance(keyspace, *batches)?;
            (0..3).for_each(|_| _ = runtime.step());
        }
        Op::ReadOften { .. } => {
            read(database, op, model)?;
            (0..6).for_each(|_| _ = runtime.step());
        }
        _ => read(database, op, model)?,
    }
    Ok(())
}

/// Carries out `op` if it reads records, and checks what the database answers.
fn read(database: &dyn Database, op: &Op, model: &Model) -> Result<()> {
    match op {
        Op::Get { keyspace, key } => {
            agree(op, database.get(keyspace, key)?.as_deref(), model.get(keyspace, key));
        }
        Op::Contains { keyspace, key } => {
            let found = database.contains_key(keyspace, key)?;
            assert_eq!(found, model.get(keyspace, key).is_some(), "{op:?}");
        }
        Op::MultiGet { keyspace, keys } => {
            let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let found = database.multi_get(keyspace, &slices)?;
            assert_eq!(found.len(), keys.len(), "{op:?}");
            for (key, value) in keys.iter().zip(found) {
                agree(op, value.as_deref(), model.get(keyspace, key));
            }
        }
        Op::Range { keyspace, from, to, pulls } => {
            let items = database.range(keyspace, from.clone(), to.clone());
            agree_items(op, items, model.range(keyspace, from, to), pulls)?;
        }
        Op::Keys { keyspace, from, to, pulls } => {
            let keys = database.keys(keyspace, from.clone(), to.clone());
            let items = Box::new(keys.map(|key| key.map(|key| (key, Bytes::new()))));
            let expected = model.range(keyspace, from, to);
            let expected = expected.into_iter().map(|(key, _)| (key, &[][..])).collect();
            agree_items(op, items, expected, pulls)?;
        }
        Op::ReadOften { keyspace, times } => {
            let (from, to) = (Bound::Unbounded, Bound::Unbounded);
            for _ in 0..*times {
                let items = database.range(keyspace, from.clone(), to.clone());
                let expected = model.range(keyspace, &from, &to);
                let pulls = vec![true; expected.len() + 1];
                agree_items(op, items, expected, &pulls)?;
            }
        }
        Op::Prefix { keyspace, prefix, count } => {
            let items = database.prefix(keyspace, prefix);
            agree_items(op, items, model.prefix(keyspace, prefix), &vec![true; *count])?;
        }
        Op::Ends { keyspace } => {
            let records = model.records(keyspace);
            let own = |record: Option<_>| record.map(owned);
            let first = records.first_key_value().map(|(key, value)| (&**key, &**value));
            assert_eq!(database.first(keyspace)?, own(first), "{op:?}, first");
            let last = records.last_key_value().map(|(key, value)| (&**key, &**value));
            assert_eq!(database.last(keyspace)?, own(last), "{op:?}, last");
        }
        // `play` carries these out.
        Op::Write { .. }
        | Op::CompareAndSwap { .. }
        | Op::Update { .. }
        | Op::Flush
        | Op::Checkpoint
        | Op::Compact { .. }
        | Op::Verify
        | Op::SetMemory { .. }
        | Op::BulkLoad { .. }
        | Op::CreateKeyspace { .. }
        | Op::DropKeyspace { .. }
        | Op::Step { .. }
        | Op::SetDistance { .. } => {}
        // These need more than the database.
        Op::Reopen { .. }
        | Op::Backup
        | Op::Salvage
        | Op::TakeSnapshot { .. }
        | Op::ReadSnapshot { .. }
        | Op::DropSnapshot { .. } => {}
    }
    Ok(())
}

/// Snapshots that are kept while other operations go on, each with what the model had when it was taken.
#[derive(Default)]
pub struct Snapshots {
    kept: Vec<Kept>,
}

struct Kept {
    keyspace: String,
    view: Box<dyn View>,
    then: Model,
}

impl std::fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} snapshots", self.kept.len())
    }
}

/// Most snapshots that are kept at once.
const SNAPSHOTS_MAX: usize = 4;

impl Snapshots {
    /// Carries out what `op` says of snapshots, and checks what they answer.
    ///
    /// # Errors
    /// What the database answered instead.
    ///
    /// # Panics
    /// When an answer is not the model's of the snapshot's moment.
    pub fn play(&mut self, database: &dyn Database, op: &Op, model: &Model) -> Result<()> {
        match op {
            Op::TakeSnapshot { keyspace } => {
                if self.kept.len() == SNAPSHOTS_MAX {
                    self.kept.remove(0);
                }
                let then = model.of(keyspace);
                let view = database.snapshot(keyspace)?;
                let keyspace = keyspace.clone();
                self.kept.extend(view.map(|view| Kept { keyspace, view, then }));
            }
            Op::ReadSnapshot { which, keys, from, to, pulls } if !self.kept.is_empty() => {
                let Kept { keyspace, view, then } = &self.kept[which % self.kept.len()];
                let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let found = view.multi_get(&slices)?;
                for (key, together) in keys.iter().zip(found) {
                    agree(op, view.get(key)?.as_deref(), then.get(keyspace, key));
                    agree(op, together.as_deref(), then.get(keyspace, key));
                }
                let items = view.range(from.clone(), to.clone());
                agree_items(op, items, then.range(keyspace, from, to), pulls)?;
            }
            Op::DropSnapshot { which } if !self.kept.is_empty() => {
                self.kept.remove(which % self.kept.len());
            }
            Op::DropKeyspace { name } => self.kept.retain(|kept| kept.keyspace != *name),
            Op::Reopen { .. } => self.kept.clear(),
            _ => {}
        }
        Ok(())
    }

    /// Lets all go: they hold their database open.
    pub fn clear(&mut self) {
        self.kept.clear();
    }
}

/// Opens the backup that a database took and compares it with the model; `disk` is the one that it lies on, as another
/// process sees it.
///
/// # Panics
/// When it does not open, or something differs.
pub fn agree_with_backup(
    product: &dyn Product,
    disk: Arc<dyn Disk>,
    config: &Config,
    model: &Model,
) {
    let config = Config { path: config.backup_path(), ..config.clone() };
    let copy = product.open(disk, Runtime::stepped(26), &config).expect("a backup opens");
    agree_whole(&*copy, model).expect("nothing is wrong with the disk");
    copy.verify().expect("nothing is wrong with the disk");
    copy.close().expect("nothing is wrong with the disk");
}

/// Reads everything back and compares it with the model.
///
/// # Errors
/// What the database answered instead.
///
/// # Panics
/// When something differs.
pub fn agree_whole(database: &dyn Database, model: &Model) -> Result<()> {
    let names: Vec<(String, bool)> =
        model.keyspaces.iter().map(|(name, keyspace)| (name.clone(), keyspace.logged)).collect();
    assert_eq!(database.keyspaces(), names, "keyspaces");
    for name in model.keyspaces.keys() {
        let unbounded = std::ops::Bound::Unbounded;
        let op = Op::Range {
            keyspace: name.clone(),
            from: unbounded.clone(),
            to: unbounded.clone(),
            pulls: Vec::new(),
        };
        let items = database.range(name, unbounded.clone(), unbounded.clone());
        let expected = model.range(name, &unbounded, &unbounded);
        let pulls = vec![true; expected.len() + 1];
        agree_items(&op, items, expected, &pulls)?;
    }
    Ok(())
}
