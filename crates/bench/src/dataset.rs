//! Data sets: from the ordinal of a record to its key, computed and never stored (but for `file:`).
//!
//! Ordinals `0..records` are what `load` inserts, in this order; later inserts go on from there.
//! Keys come in shuffled order of the ordinals, so loading is never sequential. Keys of different
//! ordinals differ, and the keys of `absent` are none of them.
//!
//! | name | key |
//! |---|---|
//! | `uniform` | 8 bytes big-endian, a bijective hash of the ordinal |
//! | `osm-like` | 8 bytes, clustered at every scale like cells of a street map |
//! | `amazon-like` | 8 bytes, a smooth bending curve like identifiers of a shop |
//! | `words` | 12 to 18 letters that can be pronounced |
//! | `groups` | 8 bytes; groups of 2 to 10 share the first seven ([`groups`]) |
//! | `file:PATH` | the distinct lines of a file, held in memory |

pub mod groups;
mod sorted;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use spinney_base::limits::KEY_BYTES_MAX;
use spinney_base::{Error, Result};

use crate::cascade::{Cascade, Shape};
pub use crate::dataset::sorted::{OrderedKeys, SortedKeys};
use crate::permutation::{Permutation, mix_bits, mix64};

/// The name of a data set, as options and rows carry it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DatasetName {
    /// Uniform 8-byte keys.
    Uniform,
    /// Clustered 8-byte keys.
    OsmLike,
    /// Smoothly spread 8-byte keys.
    AmazonLike,
    /// Pronounceable text.
    Words,
    /// Groups of neighbours.
    Groups,
    /// The lines of a file.
    File(PathBuf),
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatasetName::Uniform => f.write_str("uniform"),
            DatasetName::OsmLike => f.write_str("osm-like"),
            DatasetName::AmazonLike => f.write_str("amazon-like"),
            DatasetName::Words => f.write_str("words"),
            DatasetName::Groups => f.write_str("groups"),
            DatasetName::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl FromStr for DatasetName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "uniform" => Ok(DatasetName::Uniform),
            "osm-like" => Ok(DatasetName::OsmLike),
            "amazon-like" => Ok(DatasetName::AmazonLike),
            "words" => Ok(DatasetName::Words),
            "groups" => Ok(DatasetName::Groups),
            _ => match text.strip_prefix("file:") {
                Some(path) if !path.is_empty() => Ok(DatasetName::File(path.into())),
                _ => Err(Error::invalid(format!(
                    "unknown dataset {text:?}: uniform, osm-like, amazon-like, words, groups or file:PATH"
                ))),
            },
        }
    }
}

impl From<DatasetName> for String {
    fn from(name: DatasetName) -> String {
        name.to_string()
    }
}

impl TryFrom<String> for DatasetName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

/// Keys by ordinal. Immutable, so any number of threads may share it.
#[derive(Debug)]
pub struct Dataset {
    kind: Kind,
    seed: u64,
}

#[derive(Debug)]
enum Kind {
    Uniform,
    Clustered { cascade: Cascade, order: Permutation, count: u64 },
    Words,
    Groups { order: Permutation, count: u64 },
    Lines { lines: Lines, order: Permutation },
}

/// The lines of a file, end to end.
#[derive(Debug)]
struct Lines {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// Ordinals from here on are never inserted by any workload: `absent` draws from them.
const ABSENT_FROM: u64 = 1 << 63;
/// Inserts of `drift` carry their own number in this many low bits of the key.
const DRIFT_BITS: u32 = 40;
/// Words are drawn from this many bits of ordinal: six syllables of 64.
const WORD_BITS: u32 = 36;
/// How many places are hot at a time under `drift`.
const DRIFT_PLACES: u64 = 8;

impl Dataset {
    /// The data set `name` of which `records` records will be loaded.
    ///
    /// # Errors
    /// `Io` when a file cannot be read; `InvalidArgument` when it has fewer lines than `records` or
    /// a line is longer than a key.
    pub fn open(name: &DatasetName, records: u64, seed: u64) -> Result<Self> {
        let order = |count| Permutation::new(count, seed ^ 0x000D_0E4D);
        let clustered = |shape| Kind::Clustered {
            cascade: Cascade::new(records.max(1), shape, seed),
            order: order(records.max(1)),
            count: records.max(1),
        };
        let kind = match name {
            DatasetName::Uniform => Kind::Uniform,
            DatasetName::OsmLike => clustered(Shape::Rough),
            DatasetName::AmazonLike => clustered(Shape::Smooth),
            DatasetName::Words => Kind::Words,
            DatasetName::Groups => {
                Kind::Groups { order: order(records.max(1)), count: records.max(1) }
            }
            DatasetName::File(path) => {
                let lines = Lines::read(path, records)?;
                let order = order(lines.count());
                Kind::Lines { lines, order }
            }
        };
        Ok(Dataset { kind, seed: mix64(seed ^ 0x0DA7_A5E7) })
    }

    /// Makes `key` the key of record `ordinal`.
    pub fn key(&self, ordinal: u64, key: &mut Vec<u8>) {
        debug_assert!(ordinal < ABSENT_FROM, "records are below the absent ones");
        self.any_key(ordinal, false, key);
    }

    /// Makes `key` the `index`-th of the keys that no workload ever inserts.
    pub fn absent_key(&self, index: u64, key: &mut Vec<u8>) {
        self.any_key(index % ABSENT_FROM, true, key);
    }

    /// Makes `key` the key of the `index`-th insert of `drift`, of `total` in all as far as known:
    /// one of a few hot places that live for a twentieth of the run and then move.
    pub fn drift_key(&self, index: u64, total: u64, key: &mut Vec<u8>) {
        let window = index / (total / 20).max(1);
        let place = mix64(index ^ self.seed) % DRIFT_PLACES;
        let base = mix64(mix64(window ^ self.seed) ^ place) << DRIFT_BITS;
        key.clear();
        key.extend_from_slice(&(base | mix_bits(index, DRIFT_BITS, self.seed)).to_be_bytes());
    }

    /// Makes `prefix` what the keys of a group begin with; of `groups` alone.
    pub fn group_prefix(&self, group: u64, prefix: &mut Vec<u8>) {
        groups::prefix(group, self.seed, prefix);
    }

    /// The keys of the first `records` records, ascending.
    #[must_use]
    pub fn sorted_keys(&self, records: u64) -> SortedKeys {
        let mut sorted = SortedKeys::default();
        let mut key = Vec::new();
        for ordinal in 0..records {
            self.key(ordinal, &mut key);
            sorted.push(&key);
        }
        sorted.sort();
        sorted
    }

    fn any_key(&self, ordinal: u64, absent: bool, key: &mut Vec<u8>) {
        key.clear();
        match &self.kind {
            Kind::Uniform => {
                let ordinal = if absent { ordinal | ABSENT_FROM } else { ordinal };
                key.extend_from_slice(&mix64(ordinal ^ self.seed).to_be_bytes());
            }
            Kind::Clustered { cascade, order, count } => {
                // Below the 48 bits of the set: which generation of inserts (15 bits), and whether
                // it is an absent one.
                let generation = (ordinal / count) & 0x7FFF;
                let place = cascade.key(order.at(ordinal % count));
                let number = (place << 16) | (generation << 1) | u64::from(absent);
                key.extend_from_slice(&number.to_be_bytes());
            }
            Kind::Words => {
                word(mix_bits(ordinal & ((1 << WORD_BITS) - 1), WORD_BITS, self.seed), key);
                if absent {
                    key.push(b'-');
                }
            }
            Kind::Groups { order, count } => {
                let number = ordinal / count * count + order.at(ordinal % count);
                groups::key(number, absent, self.seed, key);
            }
            Kind::Lines { lines, order } => {
                let count = lines.count();
                key.extend_from_slice(lines.line(order.at(ordinal % count)));
                // A file that ends before the inserts do is gone through again, under other names.
                if ordinal >= count {
                    key.extend_from_slice(format!("\n{}", ordinal / count).as_bytes());
                }
                if absent {
                    key.push(b'\n');
                }
            }
        }
    }
}

/// Spells 36 bits as six syllables. Every syllable ends at its only vowel, so different numbers
/// give different words.
fn word(mut number: u64, key: &mut Vec<u8>) {
    const ONSETS: [&[u8]; 16] = [
        b"b", b"br", b"ch", b"d", b"f", b"g", b"k", b"l", b"m", b"n", b"p", b"r", b"s", b"st",
        b"t", b"v",
    ];
    for _ in 0..WORD_BITS / 6 {
        let syllable = usize::try_from(number & 63).unwrap_or_default();
        key.extend_from_slice(ONSETS[syllable / 4]);
        key.push(b"aeio"[syllable % 4]);
        number >>= 6;
    }
}

impl Lines {
    fn read(path: &Path, records: u64) -> Result<Self> {
        let text = std::fs::read(path)
            .map_err(|error| Error::unopened(format!("read dataset {}", path.display()), error))?;
        let mut lines: Vec<&[u8]> = text
            .split(|&byte| byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .filter(|line| !line.is_empty())
            .collect();
        lines.sort_unstable();
        lines.dedup();
        // Leaves room for the mark of a later generation.
        let longest = lines.iter().map(|line| line.len()).max().unwrap_or(0);
        if longest + 24 > KEY_BYTES_MAX {
            return Err(Error::invalid(format!(
                "dataset {}: a line of {longest} bytes is longer than a key may be ({} bytes)",
                path.display(),
                KEY_BYTES_MAX - 24
            )));
        }
        let count = lines.len() as u64;
        if count < records.max(1) {
            return Err(Error::invalid(format!(
                "dataset {} has {count} distinct lines, fewer than the {records} records asked for",
                path.display()
            )));
        }
        let mut bytes = Vec::with_capacity(text.len());
        let mut ends = Vec::with_capacity(lines.len());
        for line in lines {
            bytes.extend_from_slice(line);
            ends.push(bytes.len());
        }
        Ok(Lines { bytes, ends })
    }

    fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    fn line(&self, index: u64) -> &[u8] {
        let index = usize::try_from(index).expect("a line in memory has a usize index");
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Arc;

    fn names() -> (tempfile::TempDir, Vec<DatasetName>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        let text: String = (0..3000).map(|line| format!("line {line}\r\n")).collect();
        std::fs::write(&path, text).unwrap();
        let names = ["uniform", "osm-like", "amazon-like", "words", "groups"]
            .map(|name| name.parse().unwrap())
            .into_iter()
            .chain([DatasetName::File(path)])
            .collect();
        (directory, names)
    }

    #[test]
    fn keys_are_distinct_and_absent_ones_are_absent() {
        let (_directory, names) = names();
        for name in names {
            let dataset = Dataset::open(&name, 3000, 1).unwrap();
            let mut seen = HashSet::new();
            let mut key = Vec::new();
            for ordinal in 0..10_000 {
                dataset.key(ordinal, &mut key);
                assert!(seen.insert(key.clone()), "{name} ordinal {ordinal}");
            }
            for index in 0..10_000 {
                dataset.absent_key(index, &mut key);
                assert!(!seen.contains(&key), "{name} absent {index}");
            }
        }
    }

    #[test]
    fn keys_come_in_shuffled_order() {
        let (_directory, names) = names();
        for name in names {
            let dataset = Dataset::open(&name, 3000, 1).unwrap();
            let keys: Vec<Vec<u8>> = (0..3000)
                .map(|ordinal| {
                    let mut key = Vec::new();
                    dataset.key(ordinal, &mut key);
                    key
                })
                .collect();
            let ascents = keys.windows(2).filter(|pair| pair[0] < pair[1]).count();
            assert!((1300..1700).contains(&ascents), "{name}: {ascents} ascents");
        }
    }

    #[test]
    fn sorted_keys_are_the_same_keys_in_order() {
        let (_directory, names) = names();
        for name in names {
            let dataset = Dataset::open(&name, 2000, 1).unwrap();
            let mut keys: Vec<Vec<u8>> = (0..2000)
                .map(|ordinal| {
                    let mut key = Vec::new();
                    dataset.key(ordinal, &mut key);
                    key
                })
                .collect();
            keys.sort();
            let sorted = dataset.sorted_keys(2000);
            assert_eq!(sorted.len(), 2000);
            assert!(sorted.iter().eq(keys.iter().map(Vec::as_slice)), "{name}");
            let dataset = Arc::new(dataset);
            for part in [100, 300, 2000, 10_000] {
                let mut ordered = OrderedKeys::in_parts_of(dataset.clone(), 2000, part);
                let mut key = Vec::new();
                for expected in &keys {
                    assert!(ordered.next_into(&mut key), "{name}");
                    assert_eq!(&key, expected, "{name}, parts of {part}");
                }
                assert!(!ordered.next_into(&mut key), "{name}");
            }
        }
    }

    #[test]
    fn the_hot_places_of_drift_move() {
        let dataset = Dataset::open(&DatasetName::Uniform, 1000, 1).unwrap();
        let mut key = Vec::new();
        let mut places = |range: std::ops::Range<u64>| -> HashSet<Vec<u8>> {
            range
                .map(|index| {
                    dataset.drift_key(index, 20_000, &mut key);
                    key[..3].to_vec()
                })
                .collect()
        };
        let (early, late) = (places(0..1000), places(10_000..11_000));
        assert_eq!(early.len(), usize::try_from(DRIFT_PLACES).unwrap());
        assert!(early.is_disjoint(&late));
    }

    #[test]
    fn names_are_read_back() {
        for text in ["uniform", "osm-like", "amazon-like", "words", "groups", "file:a/b"] {
            assert_eq!(text.parse::<DatasetName>().unwrap().to_string(), text);
        }
        assert!("file:".parse::<DatasetName>().is_err());
        assert!("osm".parse::<DatasetName>().is_err());
    }

    #[test]
    fn a_short_file_is_refused() {
        let (_directory, names) = names();
        let error = Dataset::open(names.last().unwrap(), 3001, 1).unwrap_err();
        assert!(error.to_string().contains("3000 distinct lines"), "{error}");
    }
}
