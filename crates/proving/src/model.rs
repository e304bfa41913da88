//! The model: what a database holds, as ordered maps.
//!
//! It is the meaning of every operation; the rest of the proving ground only asks whether a product
//! agrees with it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::database::{Bytes, KeyBound, Write};

/// Records of a keyspace in key order. Keys and values are shared, so that a copy of a model is
/// cheap.
pub type Records = BTreeMap<Arc<[u8]>, Arc<[u8]>>;

/// One keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelKeyspace {
    /// Whether its writes go through the log.
    pub logged: bool,
    /// Its records.
    pub records: Records,
}

/// A whole database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Its keyspaces by name.
    pub keyspaces: BTreeMap<String, ModelKeyspace>,
}

impl Model {
    /// The records of a keyspace.
    ///
    /// # Panics
    /// When there is no such keyspace: operations are only made for those of the model.
    #[must_use]
    pub fn records(&self, keyspace: &str) -> &Records {
        &self.keyspaces[keyspace].records
    }

    /// A model of one keyspace alone.
    #[must_use]
    pub fn of(&self, keyspace: &str) -> Model {
        let one = self.keyspaces.get(keyspace).cloned().unwrap_or_default();
        Model { keyspaces: [(keyspace.to_owned(), one)].into() }
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, keyspace: &str, key: &[u8]) -> Option<&[u8]> {
        self.keyspaces.get(keyspace)?.records.get(key).map(|value| &**value)
    }

    /// Carries out writes; those to keyspaces that are gone do nothing.
    pub fn apply(&mut self, writes: &[Write]) {
        for write in writes {
            let Some(keyspace) = self.keyspaces.get_mut(&write.keyspace) else { continue };
            match &write.value {
                Some(value) => {
                    keyspace.records.insert(write.key.as_slice().into(), value.as_slice().into());
                }
                None => {
                    keyspace.records.remove(write.key.as_slice());
                }
            }
        }
    }

    /// The records of a range, in order.
    #[must_use]
    pub fn range(&self, keyspace: &str, from: &KeyBound, to: &KeyBound) -> Vec<(&[u8], &[u8])> {
        if is_empty_range(from, to) {
            return Vec::new();
        }
        let bounds = (as_slice(from), as_slice(to));
        let records = self.records(keyspace).range::<[u8], _>(bounds);
        records.map(|(key, value)| (&**key, &**value)).collect()
    }

    /// The records whose keys begin with `prefix`, in order.
    #[must_use]
    pub fn prefix(&self, keyspace: &str, prefix: &[u8]) -> Vec<(&[u8], &[u8])> {
        let records = self.records(keyspace);
        let from = records.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
        from.take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (&**key, &**value))
            .collect()
    }
}

fn as_slice(bound: &KeyBound) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Whether no key lies in the range; the standard map panics on some of these, a database must not.
fn is_empty_range(from: &KeyBound, to: &KeyBound) -> bool {
    let (Bound::Included(start) | Bound::Excluded(start)) = from else { return false };
    let (Bound::Included(end) | Bound::Excluded(end)) = to else { return false };
    let both_included = matches!((from, to), (Bound::Included(_), Bound::Included(_)));
    start > end || (start == end && !both_included)
}

/// Bytes in a short form for messages.
#[must_use]
pub fn show(bytes: &[u8]) -> String {
    let head = bytes[..bytes.len().min(40)].escape_ascii();
    if bytes.len() > 40 {
        format!("\"{head}\"... ({} bytes)", bytes.len())
    } else {
        format!("\"{head}\"")
    }
}

/// A value or its absence in a short form for messages.
#[must_use]
pub fn show_value(value: Option<&[u8]>) -> String {
    value.map_or_else(|| "nothing".to_owned(), show)
}

/// An owned copy of a record.
#[must_use]
pub fn owned((key, value): (&[u8], &[u8])) -> (Bytes, Bytes) {
    (key.to_vec(), value.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_prefixes() {
        let mut model = Model::default();
        model.keyspaces.insert("k".into(), ModelKeyspace::default());
        for key in ["", "a", "ab", "b"] {
            let (key, value) = (key.into(), Some(b"v".to_vec()));
            model.apply(&[Write { keyspace: "k".into(), key, value }]);
        }
        let at = |key: &str| Bound::Excluded(key.as_bytes().to_vec());
        assert_eq!(model.range("k", &at("a"), &at("b")).len(), 1);
        assert_eq!(model.range("k", &at("b"), &at("a")).len(), 0);
        assert_eq!(model.range("k", &at("a"), &at("a")).len(), 0);
        assert_eq!(model.prefix("k", b"a").len(), 2);
        assert_eq!(model.prefix("k", b"").len(), 4);
    }
}
