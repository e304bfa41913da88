//! The [`Plan`] of a run, which the parent passes to the child process of one engine, and the names
//! in it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use spinney_base::limits::{KEYSPACES_MAX, MEMORY_BYTES_MIN};
use spinney_base::{Error, Result};

use crate::dataset::DatasetName;
use crate::distribution::{Distribution, Generator};
use crate::own;
use crate::recovery::Kill;

/// Number of records in a scan of `su`.
const SCAN_UPDATE_RECORDS: usize = 100;
/// Least number of records of which `groups` reads: one group of every size.
const GROUPED_RECORDS_MIN: u64 = 54;

/// Everything the child process of one engine needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Bare name of the engine.
    pub engine: String,
    /// What to run, in this order, each on the state that the one before it left.
    pub workloads: Vec<Workload>,
    /// Number of records that `load` inserts.
    pub records: u64,
    /// How `load` inserts them.
    pub load: LoadOrder,
    /// Bytes of key and value together.
    pub record_size: usize,
    /// Client threads.
    pub threads: usize,
    /// Seconds before each measurement; `load` has none.
    pub warmup_seconds: f64,
    /// Seconds of each measurement, unless `operations` is given.
    pub seconds: f64,
    /// Ends each measurement after this many operations instead.
    pub operations: Option<u64>,
    /// Whether the engine's process is killed in the last workload, or was.
    pub kill: Option<Kill>,
    /// Distribution of the records, where the workload does not say.
    pub distribution: Distribution,
    /// The exponent of the Zipf law.
    pub theta: f64,
    /// What draws from the Zipf law.
    pub zipf: Generator,
    /// The memory budget, in bytes.
    pub memory: u64,
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// Protection of pages written in place.
    pub torn_writes: TornWrites,
    /// The data set.
    pub dataset: DatasetName,
    /// Number of records in every scan; without it 100 in `su`, and 1 to 100 at random elsewhere.
    pub scan_length: Option<usize>,
    /// Number of keys that each operation of `m` reads.
    pub multi_get: usize,
    /// Number of keyspaces. Each one that is ever driven holds all records; the others are empty.
    pub keyspaces: usize,
    /// Number of keyspaces that are driven at a time.
    pub busy: usize,
    /// Seconds after which others are driven, in turn; 0 for never.
    pub turns: f64,
    /// A directory of this engine's own; it exists and is empty.
    pub directory: PathBuf,
    /// The seed of keys and choices.
    pub seed: u64,
    /// Engine options given as `--<engine>.<option>`.
    pub knobs: BTreeMap<String, String>,
}

impl Plan {
    /// Checks what no single field can.
    ///
    /// # Errors
    /// `InvalidArgument` that names the option.
    pub fn check(&self) -> Result<()> {
        let last = self.workloads.last();
        let times = |workload| self.workloads.iter().filter(|one| *one == workload).count();
        let is_load = |workload: &Workload| *workload == Workload::Load;
        let rules = [
            (self.records > 0, "--records must be at least 1"),
            (self.records < 1 << 36, "--records must be below 2^36"),
            (self.record_size >= 8, "--record-size must be at least 8, the size of a key"),
            (self.threads > 0 && self.threads <= 1024, "--threads must be 1 to 1024"),
            (self.theta > 0.0 && self.theta <= 10.0, "--theta must be above 0 and at most 10"),
            (
                self.zipf == Generator::Exact || self.theta < 1.0,
                "--zipf authors needs a --theta below 1: from there on it draws one record alone",
            ),
            (
                self.kill.is_none() || self.operations.is_none(),
                "--kill-after counts seconds, so it does not go with --operations",
            ),
            (
                self.kill.is_none() || !self.workloads.iter().any(|one| one.inserts()),
                "--kill-after is for records that are known: not for d, e, queue and drift",
            ),
            (
                self.kill.is_none() || last.is_some_and(|last| !is_load(last) && times(last) == 1),
                "--kill-after needs a last workload that is not load, and that is run once",
            ),
            (
                self.load != LoadOrder::Bulk || !self.workloads.iter().skip(1).any(is_load),
                "--load bulk is for empty keyspaces: load can only be the first workload",
            ),
            (self.seconds > 0.0 && self.seconds < 1e6, "--seconds must be above 0"),
            ((0.0..1e6).contains(&self.warmup_seconds), "--warmup must be 0 or more seconds"),
            (self.scan_length != Some(0), "--scan-length must be at least 1"),
            ((1..=1 << 16).contains(&self.multi_get), "--multi-get must be 1 to 65536"),
            (self.operations != Some(0), "--operations must be at least 1"),
            (self.memory >= MEMORY_BYTES_MIN, "--memory must be at least 1MiB"),
            (!self.workloads.is_empty(), "--workloads names no workload"),
            (
                !self.emulates_memory() || self.durability == Durability::Buffered,
                "--pm emulate promises what buffered does: --durability must be buffered",
            ),
            ((1..=KEYSPACES_MAX).contains(&self.keyspaces), "--keyspaces must be 1 to 4096"),
            ((1..=self.keyspaces).contains(&self.busy), "--busy must be 1 to --keyspaces"),
            ((0.0..1e6).contains(&self.turns), "--turns must be 0 or more seconds"),
            (
                self.keyspaces == 1 || !self.workloads.iter().any(|one| one.inserts()),
                "d, e, queue and drift insert records: --keyspaces must be 1 with them",
            ),
            (
                !self.workloads.contains(&Workload::Groups) || self.dataset == DatasetName::Groups,
                "groups reads the groups of a data set that has some: it needs --dataset groups",
            ),
            (
                !self.workloads.contains(&Workload::Groups) || self.records >= GROUPED_RECORDS_MIN,
                "groups needs --records of at least 54",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, message)) => Err(Error::invalid(*message)),
            None => Ok(()),
        }
    }

    /// Whether the log writes back cache lines of an ordinary mapping, as of persistent memory.
    #[must_use]
    pub fn emulates_memory(&self) -> bool {
        self.knobs.contains_key(own::PERSISTENT_MEMORY)
    }

    /// Makes the log emulate persistent memory.
    pub fn emulate_memory(&mut self) {
        self.knobs.insert(own::PERSISTENT_MEMORY.to_owned(), own::EMULATE.to_owned());
    }

    /// Returns the name of the engine in output, which says when memory is emulated: the name stands
    /// beside every number.
    #[must_use]
    pub fn engine_name(&self) -> String {
        let suffix = if self.emulates_memory() { ", emulated persistent memory" } else { "" };
        format!("{}{suffix}", self.engine)
    }

    /// Returns the number of keyspaces that are driven at some time: the first ones.
    #[must_use]
    pub fn driven(&self) -> usize {
        if self.turns > 0.0 { self.keyspaces } else { self.busy }
    }

    /// Number of records in every scan of `workload`; `None` for 1 to 100 at random.
    #[must_use]
    pub fn scan_length_of(&self, workload: Workload) -> Option<usize> {
        let usual = (workload == Workload::Su).then_some(SCAN_UPDATE_RECORDS);
        self.scan_length.or(usual)
    }

    /// The distribution of `workload` in this run: `d` reads the latest records whatever was asked
    /// for.
    #[must_use]
    pub fn distribution_of(&self, workload: Workload) -> Distribution {
        match workload {
            Workload::D => Distribution::Latest,
            Workload::Load | Workload::Absent | Workload::Queue => Distribution::Uniform,
            _ => self.distribution,
        }
    }

    /// The distribution of `workload` as rows name it, with what draws from it.
    #[must_use]
    pub fn distribution_name(&self, workload: Workload) -> String {
        let distribution = self.distribution_of(workload);
        match self.zipf {
            Generator::Authors if distribution != Distribution::Uniform => {
                format!("{distribution}-{}", self.zipf)
            }
            _ => distribution.name().to_owned(),
        }
    }
}

/// Declares an enum whose variants have one lower-case name each, used in options, rows and JSON
/// alike.
macro_rules! named {
    ($(#[$meta:meta])* $type:ident, $what:literal { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $type { $($(#[$doc])* #[serde(rename = $name)] $variant,)+ }

        impl $type {
            /// Every one, in order.
            pub const ALL: &'static [$type] = &[$($type::$variant),+];

            /// The name used in options and rows.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                $type::ALL.iter().copied().find(|one| one.name() == text).ok_or_else(|| {
                    let names: Vec<&str> = $type::ALL.iter().map(|one| one.name()).collect();
                    Error::invalid(format!("unknown {} {text:?}: one of {}", $what, names.join(", ")))
                })
            }
        }
    };
}

named! {
    /// A workload. `a` to `f` are YCSB's.
    Workload, "workload" {
        /// Inserts every record, in shuffled order unless [`LoadOrder`] says otherwise, and ends with
        /// a flush that counts.
        Load = "load",
        /// Half reads, half updates.
        A = "a",
        /// 95 % reads, 5 % updates.
        B = "b",
        /// Reads only.
        C = "c",
        /// 95 % reads of the latest records, 5 % inserts.
        D = "d",
        /// 95 % scans of 1 to 100 records, 5 % inserts.
        E = "e",
        /// Half reads, half read-modify-writes.
        F = "f",
        /// Scans of 1 to 100 records only.
        S = "s",
        /// Reads of many keys at once.
        M = "m",
        /// 95 % scans of 100 records, 5 % read-modify-writes.
        Su = "su",
        /// Reads of whole groups of 2 to 10 neighbours, by their prefix.
        Groups = "groups",
        /// Reads of keys that are not there.
        Absent = "absent",
        /// Inserts at the tail, removals at the head, reads of the first: a third each.
        Queue = "queue",
        /// Half reads, half inserts at a few hot places that move.
        Drift = "drift",
        /// Reads whose hot set jumps ten times.
        Shift = "shift",
    }
}

pub(crate) use named;

impl Workload {
    /// Its operations, in a few words.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Workload::Load => "inserts of all records",
            Workload::A => "half reads, half updates",
            Workload::B => "95 % reads, 5 % updates",
            Workload::C => "reads",
            Workload::D => "95 % reads of the latest records, 5 % inserts",
            Workload::E => "95 % short scans, 5 % inserts",
            Workload::F => "half reads, half read-modify-writes",
            Workload::S => "short scans",
            Workload::M => "reads of many keys at once",
            Workload::Su => "95 % scans of 100 records, 5 % read-modify-writes",
            Workload::Groups => "prefix reads of groups of 2 to 10 records",
            Workload::Absent => "reads of keys that are not there",
            Workload::Queue => "inserts at the tail, removals and reads at the head",
            Workload::Drift => "half reads, half inserts at places that move",
            Workload::Shift => "reads whose hot set jumps",
        }
    }
}

impl Workload {
    /// Whether it inserts records beside those that were loaded.
    fn inserts(self) -> bool {
        matches!(self, Workload::D | Workload::E | Workload::Queue | Workload::Drift)
    }
}

named! {
    /// How `load` inserts records.
    LoadOrder, "load order" {
        /// In shuffled order, by all threads.
        Random = "random",
        /// In key order, by all threads.
        Sorted = "sorted",
        /// In key order, through the engine's bulk load, by one thread.
        Bulk = "bulk",
    }
}

named! {
    /// What an acknowledged write survives.
    Durability, "durability" {
        /// The loss of power.
        Sync = "sync",
        /// The death of the process.
        Buffered = "buffered",
        /// Nothing until the next checkpoint.
        None = "none",
    }
}

named! {
    /// Protection of pages written in place against torn writes.
    TornWrites, "torn-write protection" {
        /// Ask the device; double-write when it makes no promise.
        Auto = "auto",
        /// Always write twice.
        DoubleWrite = "double-write",
        /// Trust that 4 KiB writes are whole.
        Assume4k = "assume-4k",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for &workload in Workload::ALL {
            assert_eq!(workload.name().parse::<Workload>().unwrap(), workload);
        }
        let error = "g".parse::<Workload>().unwrap_err().to_string();
        assert!(
            error.contains("load, a, b, c, d, e, f, s, m, su, groups, absent, queue, drift, shift"),
            "{error}"
        );
        for workload in Workload::ALL {
            assert!(!workload.meaning().is_empty());
        }
        assert_eq!("assume-4k".parse::<TornWrites>().unwrap(), TornWrites::Assume4k);
        assert!("SYNC".parse::<Durability>().is_err());
    }
}
