//! Options of a TreeLine keyspace beyond its memory. None has to be set: they serve to measure what
//! each technique gains. They may change while the keyspace is in use; pages that were laid out
//! before stay as they are.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use spinney_base::{Error, Result, size};

/// Largest number that `goal` and `epsilon` take: no page holds more records.
const RECORDS_MAX: f32 = 400.0;

/// Fewest bytes that `snapshot-bytes` takes.
const SNAPSHOT_BYTES_MIN: u64 = 64 << 10;

/// Fewest bytes of disk that replaced values may take by default.
const SNAPSHOT_BYTES_AUTO_MIN: u64 = 16 << 20;

/// The options of one keyspace. Thread-safe.
#[derive(Debug)]
pub(crate) struct Tuning {
    page_grouping: AtomicBool,
    record_cache: AtomicBool,
    page_cache: AtomicBool,
    page_filters: AtomicBool,
    forecast: AtomicBool,
    batch_writeout: AtomicBool,
    steps: AtomicBool,
    staging: AtomicU8,
    optimistic_admission: AtomicBool,
    /// Bits of an `f32`; 0 for what the engine chooses.
    goal: AtomicU32,
    /// The same; an epsilon of 0 is not for choice.
    epsilon: AtomicU32,
    /// 0 for what the engine chooses.
    snapshot_bytes: AtomicU64,
}

/// Whether new records are staged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Staging {
    Off,
    /// Where it is likely to pay.
    #[default]
    Auto,
    /// All bursts.
    On,
}

/// An option, parsed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Choice {
    PageGrouping(bool),
    RecordCache(bool),
    PageCache(bool),
    PageFilters(bool),
    Forecast(bool),
    BatchWriteout(bool),
    Steps(bool),
    Staging(Staging),
    OptimisticAdmission(bool),
    Goal(f32),
    Epsilon(f32),
    SnapshotBytes(u64),
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            page_grouping: AtomicBool::new(true),
            record_cache: AtomicBool::new(true),
            page_cache: AtomicBool::new(true),
            page_filters: AtomicBool::new(true),
            forecast: AtomicBool::new(true),
            batch_writeout: AtomicBool::new(true),
            steps: AtomicBool::new(true),
            staging: AtomicU8::new(Staging::Auto as u8),
            optimistic_admission: AtomicBool::new(false),
            goal: AtomicU32::new(0),
            epsilon: AtomicU32::new(0),
            snapshot_bytes: AtomicU64::new(0),
        }
    }
}

/// Checks the name and value of an option:
///
/// | option | values | default | what it does |
/// |---|---|---|---|
/// | `page-grouping` | on, off | on | segments of several pages |
/// | `record-cache` | on, off | on | records that were read or written stay in memory |
/// | `page-cache` | on, off | on | pages that were scanned stay in memory |
/// | `page-filters` | on, off | on | pages that were read in vain leave a filter in memory |
/// | `forecast` | on, off | on | room is left where inserts are expected |
/// | `batch-writeout` | on, off | on | all dirty records of a page are written with the one that must go |
/// | `steps` | on, off | on | a segment's model may be steps where no line is close |
/// | `staging` | auto, on, off | auto | bursts of new records are written as sorted runs and merged later; `auto`: long ones |
/// | `optimistic-admission` | on, off | off | a read brings all records of its page into the cache |
/// | `goal` | auto, 1 to 400 | auto | records that a new page gets |
/// | `epsilon` | auto, above 0 to 400 | auto | records that a segment's model may be off by |
/// | `snapshot-bytes` | auto, a size from 64 KiB | auto | disk space that replaced values may take for snapshots; `auto`: as much as the keyspace's pages, 16 MiB at least |
///
/// # Errors
/// `InvalidArgument` for another name or a value out of range.
pub fn check_option(name: &str, value: &str) -> Result<()> {
    parse(name, value).map(|_| ())
}

fn parse(name: &str, value: &str) -> Result<Choice> {
    let refuse = |expected: &str| {
        Err(Error::invalid(format!("treeline option {name} takes {expected}, not {value:?}")))
    };
    let switch = || match value {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => refuse("on or off").map(|(): ()| false),
    };
    let number = |least: f32| match value.parse::<f32>() {
        _ if value == "auto" => Ok(0.0),
        Ok(number) if (least..=RECORDS_MAX).contains(&number) && number > 0.0 => Ok(number),
        _ => refuse(&format!("auto or a number up to {RECORDS_MAX}")).map(|(): ()| 0.0),
    };
    match name.replace('_', "-").as_str() {
        "page-grouping" => switch().map(Choice::PageGrouping),
        "record-cache" => switch().map(Choice::RecordCache),
        "page-cache" => switch().map(Choice::PageCache),
        "page-filters" => switch().map(Choice::PageFilters),
        "forecast" => switch().map(Choice::Forecast),
        "batch-writeout" => switch().map(Choice::BatchWriteout),
        "steps" => switch().map(Choice::Steps),
        "staging" if value == "auto" => Ok(Choice::Staging(Staging::Auto)),
        "staging" => {
            switch().map(|on| Choice::Staging(if on { Staging::On } else { Staging::Off }))
        }
        "optimistic-admission" => switch().map(Choice::OptimisticAdmission),
        "goal" => number(1.0).map(Choice::Goal),
        "epsilon" => number(0.0).map(Choice::Epsilon),
        "snapshot-bytes" if value == "auto" => Ok(Choice::SnapshotBytes(0)),
        "snapshot-bytes" => match size::parse(value) {
            Ok(bytes) if bytes >= SNAPSHOT_BYTES_MIN => Ok(Choice::SnapshotBytes(bytes)),
            _ => refuse("auto or a size from 64 KiB").map(|(): ()| Choice::SnapshotBytes(0)),
        },
        _ => Err(Error::invalid(format!(
            "treeline has no option {name:?}; there are page-grouping, record-cache, page-cache, \
             page-filters, forecast, batch-writeout, steps, staging, optimistic-admission, goal, epsilon and \
             snapshot-bytes"
        ))),
    }
}

impl Tuning {
    /// Sets one option; see [`check_option`].
    pub(crate) fn set(&self, name: &str, value: &str) -> Result<()> {
        match parse(name, value)? {
            Choice::PageGrouping(on) => self.page_grouping.store(on, Relaxed),
            Choice::RecordCache(on) => self.record_cache.store(on, Relaxed),
            Choice::PageCache(on) => self.page_cache.store(on, Relaxed),
            Choice::PageFilters(on) => self.page_filters.store(on, Relaxed),
            Choice::Forecast(on) => self.forecast.store(on, Relaxed),
            Choice::BatchWriteout(on) => self.batch_writeout.store(on, Relaxed),
            Choice::Steps(on) => self.steps.store(on, Relaxed),
            Choice::Staging(when) => self.staging.store(when as u8, Relaxed),
            Choice::OptimisticAdmission(on) => self.optimistic_admission.store(on, Relaxed),
            Choice::Goal(records) => self.goal.store(records.to_bits(), Relaxed),
            Choice::Epsilon(records) => self.epsilon.store(records.to_bits(), Relaxed),
            Choice::SnapshotBytes(bytes) => self.snapshot_bytes.store(bytes, Relaxed),
        }
        Ok(())
    }

    pub(crate) fn page_grouping(&self) -> bool {
        self.page_grouping.load(Relaxed)
    }

    pub(crate) fn record_cache(&self) -> bool {
        self.record_cache.load(Relaxed)
    }

    pub(crate) fn page_cache(&self) -> bool {
        self.page_cache.load(Relaxed)
    }

    pub(crate) fn page_filters(&self) -> bool {
        self.page_filters.load(Relaxed)
    }

    pub(crate) fn forecast(&self) -> bool {
        self.forecast.load(Relaxed)
    }

    pub(crate) fn batch_writeout(&self) -> bool {
        self.batch_writeout.load(Relaxed)
    }

    pub(crate) fn steps(&self) -> bool {
        self.steps.load(Relaxed)
    }

    pub(crate) fn staging(&self) -> Staging {
        let staging = self.staging.load(Relaxed);
        [Staging::Off, Staging::On]
            .into_iter()
            .find(|when| *when as u8 == staging)
            .unwrap_or_default()
    }

    pub(crate) fn optimistic_admission(&self) -> bool {
        self.optimistic_admission.load(Relaxed)
    }

    /// Records that a new page gets, if that is not the engine's choice.
    pub(crate) fn goal(&self) -> Option<f32> {
        Some(f32::from_bits(self.goal.load(Relaxed))).filter(|goal| *goal > 0.0)
    }

    /// Records that a model may be off by, if that is not the engine's choice.
    pub(crate) fn epsilon(&self) -> Option<f32> {
        Some(f32::from_bits(self.epsilon.load(Relaxed))).filter(|epsilon| *epsilon > 0.0)
    }

    /// Most bytes of disk that replaced values may take for snapshots of a keyspace whose pages take
    /// `data` bytes.
    pub(crate) fn snapshot_bytes(&self, data: u64) -> u64 {
        match self.snapshot_bytes.load(Relaxed) {
            0 => data.max(SNAPSHOT_BYTES_AUTO_MIN),
            bytes => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_set_or_refused() {
        let tuning = Tuning::default();
        assert!(tuning.page_grouping() && tuning.forecast() && tuning.goal().is_none());
        tuning.set("page-grouping", "off").unwrap();
        tuning.set("page_grouping", "off").unwrap();
        tuning.set("goal", "44").unwrap();
        tuning.set("epsilon", "0.5").unwrap();
        assert!(!tuning.page_grouping());
        assert_eq!((tuning.goal(), tuning.epsilon()), (Some(44.0), Some(0.5)));
        tuning.set("goal", "auto").unwrap();
        assert_eq!(tuning.goal(), None);
        for (name, value) in [
            ("page-grouping", "maybe"),
            ("goal", "0"),
            ("goal", "-3"),
            ("goal", "NaN"),
            ("epsilon", "0"),
            ("epsilon", "1e9"),
            ("colour", "red"),
        ] {
            let error = tuning.set(name, value).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
