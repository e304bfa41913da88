//! List-append histories, judged by what they say alone: the versions of a key are the prefixes of
//! the longest list that was read of it, and the [`graph`] does the rest.
//!
//! Before the graph each list is judged by itself:
//!
//! ```text
//!  every list is a prefix of the longest one of its key, without a value twice
//!  a value was appended by a transaction that did not fail, and all of them show together
//!  a transaction sees its own appends, and its key does not change under it
//! ```
//!
//! A transaction of unknown outcome counts as committed if a value of it was read. It may have
//! committed at any time after it began. Values that no list shows come after all that one does.

use std::collections::{BTreeMap, HashMap, HashSet};

use spinney_bench::append::history::{History, Kind, Operation};

use super::graph::{self, Order, Record, Story};

/// A transaction of a history.
struct Transaction<'a> {
    record: Record,
    kind: Kind,
    operations: &'a [Operation],
}

/// What a history says.
struct Lists<'a> {
    transactions: Vec<Transaction<'a>>,
    /// Number of the transaction that appended a value to a key.
    writers: HashMap<(u64, u64), usize>,
    /// The longest list of each key, in the order of the keys.
    longest: BTreeMap<u64, Vec<u64>>,
}

/// Checks that a history is strictly serializable.
///
/// # Errors
/// The story of a circle, or of a list that cannot be.
pub fn check(history: &History) -> Result<(), Story> {
    let mut lists = Lists::of(history)?;
    lists.find_longest()?;
    let mut orders: HashMap<usize, Order> = HashMap::new();
    for (key, longest) in &lists.longest {
        orders.insert(number(*key), lists.order(*key, longest)?);
    }
    let seen = lists.seen();
    let mut records = Vec::new();
    for (place, transaction) in lists.transactions.iter().enumerate() {
        match transaction.kind {
            Kind::Ok => records.push(lists.committed(place)?),
            Kind::Info if seen.contains(&place) => records.push(transaction.record.clone()),
            _ => {}
        }
    }
    for record in &records {
        for (key, _) in &record.writes {
            let order = orders.entry(*key).or_default();
            // One that had more to append to the last version shows in it, too.
            if !order.writers.contains(&record.id) {
                order.behind.push(record.id);
            }
        }
    }
    graph::check_order(&records, &orders)
}

fn number(key: u64) -> usize {
    usize::try_from(key).expect("keys are numbered from 0")
}

impl<'a> Lists<'a> {
    /// Pairs the events.
    fn of(history: &'a History) -> Result<Self, Story> {
        let mut lists =
            Lists { transactions: Vec::new(), writers: HashMap::new(), longest: BTreeMap::new() };
        let mut running: HashMap<u64, (u64, &[Operation])> = HashMap::new();
        for (tick, event) in (1..).zip(&history.events) {
            let operations = &event.operations[..];
            if event.kind == Kind::Invoke {
                running.insert(event.process, (tick, operations));
                continue;
            }
            let Some((began, _)) = running.remove(&event.process) else {
                return Err(format!("{event:?} ends what did not begin"));
            };
            lists.push(began, tick, event.kind, operations)?;
        }
        // Those that never ended.
        for (began, operations) in running.into_values() {
            lists.push(began, 0, Kind::Info, operations)?;
        }
        Ok(lists)
    }

    fn push(
        &mut self,
        began: u64,
        tick: u64,
        kind: Kind,
        operations: &'a [Operation],
    ) -> Result<(), Story> {
        let place = self.transactions.len();
        let ended = if kind == Kind::Info { u64::MAX } else { tick };
        let mut record = Record { id: place as u64 + 1, began, ended, ..Record::default() };
        for operation in operations {
            let Operation::Append { key, value } = operation else { continue };
            if !record.writes.contains(&(number(*key), true)) {
                record.writes.push((number(*key), true));
            }
            if self.writers.insert((*key, *value), place).is_some() {
                return Err(format!("{value} was appended twice to key {key}"));
            }
        }
        self.transactions.push(Transaction { record, kind, operations });
        Ok(())
    }

    /// Transactions that committed, with their reads.
    fn reads(&self) -> impl Iterator<Item = (u64, &[u64])> {
        let committed = self.transactions.iter().filter(|it| it.kind == Kind::Ok);
        committed.flat_map(|it| it.operations).filter_map(|operation| match operation {
            Operation::Read { key, list } => Some((*key, list.as_deref().unwrap_or_default())),
            Operation::Append { .. } => None,
        })
    }

    /// Finds the longest list of each key, of which all others are prefixes.
    fn find_longest(&mut self) -> Result<(), Story> {
        let mut longest: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (key, list) in self.reads() {
            let known = longest.entry(key).or_default();
            let (short, long) =
                if known.len() < list.len() { (&known[..], list) } else { (list, &known[..]) };
            if !long.starts_with(short) {
                return Err(format!(
                    "key {key} was {short:?} and {long:?}: no prefix of each other"
                ));
            }
            if known.len() < list.len() {
                *known = list.to_vec();
            }
        }
        for (key, list) in &longest {
            let mut values = HashSet::new();
            if let Some(twice) = list.iter().find(|value| !values.insert(**value)) {
                return Err(format!("key {key} has {twice} twice: {list:?}"));
            }
        }
        self.longest = longest;
        Ok(())
    }

    /// The transaction that appended a value, which must not have failed.
    fn writer(&self, key: u64, value: u64) -> Result<usize, Story> {
        let Some(writer) = self.writers.get(&(key, value)) else {
            return Err(format!("key {key} has {value}, which nobody appended"));
        };
        if self.transactions[*writer].kind == Kind::Fail {
            return Err(format!("key {key} has {value}, whose transaction failed"));
        }
        Ok(*writer)
    }

    /// The values that a transaction appended to a key, in their order.
    fn appended(&self, place: usize, key: u64) -> Vec<u64> {
        let operations = self.transactions[place].operations.iter();
        let values = operations.filter_map(|operation| match operation {
            Operation::Append { key: to, value } if *to == key => Some(*value),
            _ => None,
        });
        values.collect()
    }

    /// The writers of a key, in the order of its longest list. All that one appended to the key
    /// must stand together; the last one of the list may be seen in part, by itself.
    fn order(&self, key: u64, list: &[u64]) -> Result<Order, Story> {
        let mut order = Order::default();
        let mut rest = list;
        while let Some(first) = rest.first() {
            let place = self.writer(key, *first)?;
            let appended = self.appended(place, key);
            let shown = appended.len().min(rest.len());
            if rest[..shown] != appended[..shown] {
                return Err(format!("key {key} was {list:?}, but one appended {appended:?} to it"));
            }
            rest = &rest[shown..];
            order.writers.push(self.transactions[place].record.id);
        }
        Ok(order)
    }

    /// Transactions of which a value was read.
    fn seen(&self) -> HashSet<usize> {
        let values = self.longest.iter().flat_map(|(key, list)| list.iter().map(|it| (*key, *it)));
        values.filter_map(|value| self.writers.get(&value).copied()).collect()
    }

    /// The record of a committed transaction, with what it read of others.
    fn committed(&self, place: usize) -> Result<Record, Story> {
        let transaction = &self.transactions[place];
        let mut record = transaction.record.clone();
        // What each key held before, if that was read, and what was appended since.
        let mut keys: HashMap<u64, (Option<&[u64]>, Vec<u64>)> = HashMap::new();
        for operation in transaction.operations {
            match operation {
                Operation::Append { key, value } => keys.entry(*key).or_default().1.push(*value),
                Operation::Read { key, list } => {
                    let list = list.as_deref().unwrap_or_default();
                    let (before, own) = keys.entry(*key).or_default();
                    let Some(others) = list.strip_suffix(&own[..]) else {
                        return Err(format!("{list:?} of key {key} lacks its reader's {own:?}"));
                    };
                    if *before.get_or_insert(others) != others {
                        return Err(format!("key {key} was {before:?}, then {others:?}, to one"));
                    }
                }
            }
        }
        for (key, (before, _)) in keys {
            let Some(before) = before else { continue };
            let writer = match before.last() {
                None => None,
                Some(last) => {
                    let writer = self.writer(key, *last)?;
                    let all = self.appended(writer, key);
                    if writer == place || all.last() != Some(last) {
                        return Err(format!(
                            "{before:?} of key {key} was read, but its last writer appended {all:?}"
                        ));
                    }
                    Some(self.transactions[writer].record.id)
                }
            };
            record.reads.push((number(key), writer));
        }
        Ok(record)
    }
}
