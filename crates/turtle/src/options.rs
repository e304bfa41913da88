//! What may be chosen of a turtle keyspace beyond its memory. It may change while the keyspace is
//! used.

use spinney_base::shim::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use spinney_base::size;
use spinney_base::{Error, Result};

/// Smallest leaf, in bytes: four of the largest edits. With less, a leaf could not be cut in two.
pub(crate) const LEAF_BYTES_MIN: u64 = 16 << 10;

/// Smallest and largest leaf, in bytes. The small ones are for tests.
const LEAF_BYTES: std::ops::RangeInclusive<u64> = LEAF_BYTES_MIN..=16 << 20;
const LEAF_BYTES_DEFAULT: u64 = 2 << 20;

/// Largest checkpoint distance that can be said; memory allows far less.
pub const CHI_MAX: u64 = 1 << 20;

const FILTER_BITS_MAX: u32 = 32;
const FILTER_BITS_DEFAULT: u32 = 12;

/// The options of one keyspace. Thread-safe.
#[derive(Debug)]
pub(crate) struct Tuning {
    /// 0 for what the engine chooses.
    chi: AtomicU64,
    leaf: AtomicU64,
    filter_bits: AtomicU32,
}

/// An option, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// None for what the engine chooses.
    Chi(Option<u64>),
    Leaf(u64),
    FilterBits(u32),
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            chi: AtomicU64::new(0),
            leaf: AtomicU64::new(LEAF_BYTES_DEFAULT),
            filter_bits: AtomicU32::new(FILTER_BITS_DEFAULT),
        }
    }
}

/// Checks the name and value of an option:
///
/// | option | values | default | what it does |
/// |---|---|---|---|
/// | `chi` | auto, 1 and more | auto | checkpoint distance: batches that gather in memory before they are written, as far as memory allows |
/// | `leaf` | 16KiB to 16MiB | 2MiB | most bytes of a leaf and of a batch; a sixteenth of the keyspace's memory where that is less |
/// | `filter-bits` | 0 to 32 | 12 | bits of a filter for each key of what is written from now on |
///
/// # Errors
/// `InvalidArgument` for another name or a value out of range.
pub fn check_option(name: &str, value: &str) -> Result<()> {
    parse(name, value).map(|_| ())
}

pub(crate) fn parse(name: &str, value: &str) -> Result<Choice> {
    let refuse = |expected: &str| {
        Err(Error::invalid(format!("turtle option {name} takes {expected}, not {value:?}")))
    };
    match name.replace('_', "-").as_str() {
        "chi" if value == "auto" => Ok(Choice::Chi(None)),
        "chi" => match value.parse() {
            Ok(chi @ 1..=CHI_MAX) => Ok(Choice::Chi(Some(chi))),
            _ => refuse(&format!("auto or a number from 1 to {CHI_MAX}")),
        },
        "leaf" => match size::parse(value) {
            Ok(bytes) if LEAF_BYTES.contains(&bytes) => Ok(Choice::Leaf(bytes)),
            _ => refuse("a size from 16KiB to 16MiB"),
        },
        "filter-bits" => match value.parse() {
            Ok(bits @ 0..=FILTER_BITS_MAX) => Ok(Choice::FilterBits(bits)),
            _ => refuse(&format!("a number from 0 to {FILTER_BITS_MAX}")),
        },
        _ => Err(Error::invalid(format!(
            "turtle has no option {name:?}; there are chi, leaf and filter-bits"
        ))),
    }
}

impl Tuning {
    pub(crate) fn set(&self, choice: Choice) {
        match choice {
            Choice::Chi(chi) => self.chi.store(chi.unwrap_or(0), Relaxed),
            Choice::Leaf(bytes) => self.leaf.store(bytes, Relaxed),
            Choice::FilterBits(bits) => self.filter_bits.store(bits, Relaxed),
        }
    }

    /// The checkpoint distance that was chosen, if one was.
    pub(crate) fn chi(&self) -> Option<u64> {
        Some(self.chi.load(Relaxed)).filter(|chi| *chi > 0)
    }

    /// Most bytes of a leaf.
    pub(crate) fn leaf_bytes(&self) -> u64 {
        self.leaf.load(Relaxed)
    }

    /// Bits of a filter for each key.
    pub(crate) fn filter_bits(&self) -> u32 {
        self.filter_bits.load(Relaxed)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked() {
        for (name, value) in
            [("chi", "auto"), ("chi", "1"), ("leaf", "512KiB"), ("filter_bits", "0")]
        {
            check_option(name, value).unwrap();
        }
        for (name, value) in [
            ("chi", "0"),
            ("chi", "-1"),
            ("leaf", "1KiB"),
            ("leaf", "17MiB"),
            ("filter-bits", "33"),
            ("colour", "red"),
        ] {
            assert!(check_option(name, value).is_err(), "{name} {value}");
        }
        let tuning = Tuning::default();
        assert_eq!((tuning.chi(), tuning.leaf_bytes(), tuning.filter_bits()), (None, 2 << 20, 12));
        tuning.set(parse("chi", "7").unwrap());
        assert_eq!(tuning.chi(), Some(7));
        tuning.set(parse("chi", "auto").unwrap());
        assert_eq!(tuning.chi(), None);
    }
}
