//! Two products side by side: every call goes to both, and their answers must agree.
//!
//! Engines behind one contract are each other's oracle. Whatever runs on a product runs on a mirror
//! of two as well, the model test among them; that an error of one is an error of the other is not
//! asked, for their limits may differ.

use std::path::Path;
use std::sync::Arc;

use spinney_base::{Result, Runtime};
use spinney_io::{Disk, IfMissing};

use crate::database::{
    Bytes, Change, Config, Database, Items, KeyBound, Keys, Knobs, Product, Promise, Swapped, Write,
};

/// Opens two databases beside each other on one disk.
#[derive(Clone, Copy, Debug)]
pub struct Mirror<A, B>(pub A, pub B);

struct Mirrored(Box<dyn Database>, Box<dyn Database>);

impl<A: Product, B: Product> Product for Mirror<A, B> {
    fn knobs(&self, seed: u64) -> Knobs {
        self.0.knobs(seed)
    }

    fn takes_backups(&self) -> bool {
        self.0.takes_backups() && self.1.takes_backups()
    }

    fn open(
        &self,
        disk: Arc<dyn Disk>,
        runtime: Runtime,
        config: &Config,
    ) -> Result<Box<dyn Database>> {
        disk.directory(&config.path, IfMissing::Create)?;
        let part = |name| Config { path: config.path.join(name), ..config.clone() };
        let one = self.0.open(disk.clone(), runtime.clone(), &part("one"))?;
        let other = self.1.open(disk, runtime, &part("other"))?;
        Ok(Box::new(Mirrored(one, other)))
    }
}

/// Both answers, when both are answers, must be one.
fn same<T: PartialEq>(what: &str, one: Result<T>, other: Result<T>) -> Result<T> {
    let (one, other) = (one?, other?);
    assert!(one == other, "the two disagree on {what}");
    Ok(one)
}

/// Items of two cursors in step.
struct Both<'a, T> {
    one: Box<dyn DoubleEndedIterator<Item = Result<T>> + 'a>,
    other: Box<dyn DoubleEndedIterator<Item = Result<T>> + 'a>,
}

fn same_item<T: PartialEq>(one: Option<Result<T>>, other: Option<Result<T>>) -> Option<Result<T>> {
    same("an item", one.transpose(), other.transpose()).transpose()
}

impl<T: PartialEq> Iterator for Both<'_, T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        same_item(self.one.next(), self.other.next())
    }
}

impl<T: PartialEq> DoubleEndedIterator for Both<'_, T> {
    fn next_back(&mut self) -> Option<Result<T>> {
        same_item(self.one.next_back(), self.other.next_back())
    }
}

impl Database for Mirrored {
    fn create_keyspace(&self, name: &str, logged: bool) -> Result<()> {
        let one = self.0.create_keyspace(name, logged);
        same("a creation", one, self.1.create_keyspace(name, logged))
    }

    fn drop_keyspace(&self, name: &str) -> Result<()> {
        same("a drop", self.0.drop_keyspace(name), self.1.drop_keyspace(name))
    }

    fn keyspaces(&self) -> Vec<(String, bool)> {
        let one = self.0.keyspaces();
        assert_eq!(one, self.1.keyspaces(), "the two disagree on keyspaces");
        one
    }

    fn get(&self, keyspace: &str, key: &[u8]) -> Result<Option<Bytes>> {
        same("a get", self.0.get(keyspace, key), self.1.get(keyspace, key))
    }

    fn contains_key(&self, keyspace: &str, key: &[u8]) -> Result<bool> {
        let one = self.0.contains_key(keyspace, key);
        same("a key's presence", one, self.1.contains_key(keyspace, key))
    }

    fn multi_get(&self, keyspace: &str, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        let one = self.0.multi_get(keyspace, keys);
        same("many gets", one, self.1.multi_get(keyspace, keys))
    }

    fn write(&self, writes: &[Write], promise: Promise) -> Result<()> {
        same("a write", self.0.write(writes, promise), self.1.write(writes, promise))
    }

    fn compare_and_swap(
        &self,
        keyspace: &str,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swapped> {
        let one = self.0.compare_and_swap(keyspace, key, expected, new);
        same("a swap", one, self.1.compare_and_swap(keyspace, key, expected, new))
    }

    fn update(&self, keyspace: &str, key: &[u8], change: &mut Change<'_>) -> Result<Option<Bytes>> {
        let one = self.0.update(keyspace, key, change);
        same("an update", one, self.1.update(keyspace, key, change))
    }

    fn range(&self, keyspace: &str, from: KeyBound, to: KeyBound) -> Items<'_> {
        let one = self.0.range(keyspace, from.clone(), to.clone());
        Box::new(Both { one, other: self.1.range(keyspace, from, to) })
    }

    fn prefix(&self, keyspace: &str, prefix: &[u8]) -> Items<'_> {
        let one = self.0.prefix(keyspace, prefix);
        Box::new(Both { one, other: self.1.prefix(keyspace, prefix) })
    }

    fn keys(&self, keyspace: &str, from: KeyBound, to: KeyBound) -> Keys<'_> {
        let one = self.0.keys(keyspace, from.clone(), to.clone());
        Box::new(Both { one, other: self.1.keys(keyspace, from, to) })
    }

    fn first(&self, keyspace: &str) -> Result<Option<(Bytes, Bytes)>> {
        same("the first record", self.0.first(keyspace), self.1.first(keyspace))
    }

    fn last(&self, keyspace: &str) -> Result<Option<(Bytes, Bytes)>> {
        same("the last record", self.0.last(keyspace), self.1.last(keyspace))
    }

    fn flush(&self) -> Result<()> {
        same("a flush", self.0.flush(), self.1.flush())
    }

    fn checkpoint(&self) -> Result<()> {
        same("a checkpoint", self.0.checkpoint(), self.1.checkpoint())
    }

    fn compact(&self, keyspace: &str, from: &KeyBound, to: &KeyBound) -> Result<()> {
        same("a compaction", self.0.compact(keyspace, from, to), self.1.compact(keyspace, from, to))
    }

    fn verify(&self) -> Result<()> {
        same("a verification", self.0.verify(), self.1.verify())
    }

    fn backup(&self, directory: &Path) -> Result<()> {
        self.0.backup(&directory.join("one"))?;
        self.1.backup(&directory.join("other"))
    }

    fn bulk_load(&self, keyspace: &str, records: &[(Bytes, Bytes)]) -> Result<()> {
        let one = self.0.bulk_load(keyspace, records);
        same("a bulk load", one, self.1.bulk_load(keyspace, records))
    }

    fn set_memory(&self, bytes: u64) -> Result<()> {
        same("a budget", self.0.set_memory(bytes), self.1.set_memory(bytes))
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Mirrored(one, other) = *self;
        same("a close", one.close(), other.close())
    }
}
