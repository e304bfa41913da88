//! What may be chosen of a keyspace beyond its memory. It may change while the keyspace is used.

use std::ops::RangeInclusive;

use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use spinney_base::{Error, Result};
use spinney_hot::Promotion;

/// Percent of the memory that the tier may have where two tiers are kept; the paper's hot region.
const TIER_DEFAULT: u64 = 90;
const TIER_PERCENT: RangeInclusive<u64> = 10..=95;

/// The options of one keyspace. Thread-safe.
#[derive(Debug)]
pub(crate) struct Tuning {
    tiers: AtomicU64,
    tier_percent: AtomicU64,
    /// Bits of the share of promoted records; [`AUTO`] to choose by itself.
    promotion: AtomicU64,
    is_warm: AtomicBool,
    is_exclusive: AtomicBool,
}

/// No share has these bits.
const AUTO: u64 = u64::MAX;

/// An option, parsed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Choice {
    Tiers(u64),
    TierPercent(u64),
    Promotion(Promotion),
    /// Whether clean records are written, too.
    Image {
        is_warm: bool,
    },
    /// Whether promoted records leave the tree.
    Tiering {
        is_exclusive: bool,
    },
    /// Binary logarithm of the 4 KiB pages of a page.
    PageOrder(u8),
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            tiers: AtomicU64::new(2),
            tier_percent: AtomicU64::new(TIER_DEFAULT),
            promotion: AtomicU64::new(AUTO),
            is_warm: AtomicBool::new(true),
            is_exclusive: AtomicBool::new(false),
        }
    }
}

/// Checks the name and value of an option:
///
/// | option | values | default | what it does |
/// |---|---|---|---|
/// | `tiers` | 1, 2 | 2 | with 2, records that are asked for stay in memory singly; with 1, pages do, and records only until they are written |
/// | `tier` | 10 to 95 | 90 | most percent of the memory for single records, with 2 tiers |
/// | `page` | 4, 8, 16 | 4 | KiB of a page. A keyspace that has pages keeps theirs |
/// | `image` | warm, dirty | warm | whether clean records of the memory are there again after a restart, as dirty ones are |
/// | `promotion` | auto, 0 to 1 | auto | which part of the records that are read from pages come to be kept singly |
/// | `tiering` | inclusive, exclusive | inclusive | whether a promoted record stays in its page, or is only in memory until it leaves that again. Exclusive is the paper's, for its figure 21: each promotion changes a page |
///
/// # Errors
/// `InvalidArgument` for another name or a value out of range.
pub(crate) fn check_option(name: &str, value: &str) -> Result<()> {
    parse(name, value).map(|_| ())
}

pub(crate) fn parse(name: &str, value: &str) -> Result<Choice> {
    let wrong =
        |what: &str| Error::invalid(format!("2btree's option {name} is {what}, not {value:?}"));
    match name {
        "tiers" => match value {
            "1" => Ok(Choice::Tiers(1)),
            "2" => Ok(Choice::Tiers(2)),
            _ => Err(wrong("1 or 2")),
        },
        "tier" => {
            let percent = value.parse().ok().filter(|percent| TIER_PERCENT.contains(percent));
            percent.map(Choice::TierPercent).ok_or_else(|| wrong("a number from 10 to 95"))
        }
        "page" => match value {
            "4" => Ok(Choice::PageOrder(0)),
            "8" => Ok(Choice::PageOrder(1)),
            "16" => Ok(Choice::PageOrder(2)),
            _ => Err(wrong("4, 8 or 16")),
        },
        "image" => match value {
            "warm" => Ok(Choice::Image { is_warm: true }),
            "dirty" => Ok(Choice::Image { is_warm: false }),
            _ => Err(wrong("warm or dirty")),
        },
        "tiering" => match value {
            "inclusive" => Ok(Choice::Tiering { is_exclusive: false }),
            "exclusive" => Ok(Choice::Tiering { is_exclusive: true }),
            _ => Err(wrong("inclusive or exclusive")),
        },
        "promotion" if value == "auto" => Ok(Choice::Promotion(Promotion::Auto)),
        "promotion" => {
            let share = value.parse().ok().filter(|share| (0.0..=1.0).contains(share));
            let share = share.ok_or_else(|| wrong("auto or a number from 0 to 1"))?;
            Ok(Choice::Promotion(Promotion::Share(share)))
        }
        _ => Err(Error::invalid(format!(
            "2btree has no option {name:?}; there are tiers, tier, promotion, page, image, tiering"
        ))),
    }
}

impl Tuning {
    pub(crate) fn choose(&self, choice: Choice) {
        match choice {
            Choice::Tiers(tiers) => self.tiers.store(tiers, Relaxed),
            Choice::Image { is_warm } => self.is_warm.store(is_warm, Relaxed),
            Choice::Tiering { is_exclusive } => self.is_exclusive.store(is_exclusive, Relaxed),
            Choice::TierPercent(percent) => self.tier_percent.store(percent, Relaxed),
            // It is not kept here.
            Choice::PageOrder(_) => {}
            Choice::Promotion(Promotion::Auto) => self.promotion.store(AUTO, Relaxed),
            Choice::Promotion(Promotion::Share(share)) => {
                self.promotion.store(share.to_bits(), Relaxed);
            }
        }
    }

    /// Whether clean records of the tier are there again after a restart.
    pub(crate) fn is_warm(&self) -> bool {
        self.is_warm.load(Relaxed)
    }

    /// Whether promoted records leave the tree.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.is_exclusive.load(Relaxed)
    }

    /// Whether records stay in the tier for reads.
    #[inline]
    pub(crate) fn keeps_records(&self) -> bool {
        self.tiers.load(Relaxed) == 2
    }

    /// Most bytes of the tier, of those for tier and pages.
    pub(crate) fn tier_of(&self, bytes: u64) -> u64 {
        if self.keeps_records() {
            bytes / 100 * self.tier_percent.load(Relaxed)
        } else {
            bytes / ONE_TIER_PART
        }
    }

    pub(crate) fn promotion(&self) -> Promotion {
        match self.promotion.load(Relaxed) {
            AUTO => Promotion::Auto,
            bits => Promotion::Share(f64::from_bits(bits)),
        }
    }
}

/// With one tier, it may have one part in this many of the memory. With more, fewer pages stay; with less,
/// fewer writes are gathered to a page.
const ONE_TIER_PART: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_refused() {
        for (name, value) in [
            ("tiers", "1"),
            ("tiers", "2"),
            ("tier", "10"),
            ("tier", "95"),
            ("tiering", "inclusive"),
            ("tiering", "exclusive"),
            ("promotion", "auto"),
            ("promotion", "0"),
            ("page", "4"),
            ("page", "16"),
            ("promotion", "0.3"),
            ("promotion", "1"),
            ("image", "warm"),
            ("image", "dirty"),
        ] {
            check_option(name, value).unwrap();
        }
        for (name, value) in [
            ("tiers", "3"),
            ("tiers", ""),
            ("tier", "9"),
            ("tiering", ""),
            ("tier", "96"),
            ("tier", "-1"),
            ("promotion", "1.01"),
            ("promotion", "-0.1"),
            ("promotion", "NaN"),
            ("promotion", "often"),
            ("image", "cold"),
            ("page", "5"),
            ("page", "32"),
            ("leaf", "4"),
        ] {
            let error = check_option(name, value).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn what_is_chosen_holds() {
        let tuning = Tuning::default();
        assert!(tuning.keeps_records());
        assert_eq!(tuning.tier_of(1000), 900);
        for (name, value) in [("tiers", "1"), ("promotion", "0.25")] {
            tuning.choose(parse(name, value).unwrap());
        }
        assert!(!tuning.keeps_records());
        assert_eq!(tuning.promotion(), Promotion::Share(0.25));
    }
}
