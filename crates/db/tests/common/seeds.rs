//! How often a test repeats itself with other seeds.

use std::ops::Range;

/// All of so many seeds in the full tier (`SPINNEY_PROVING=full`), and the first third in the quick one.
pub(crate) fn seeds(all: u64) -> Range<u64> {
    let is_full = std::env::var("SPINNEY_PROVING").is_ok_and(|tier| tier == "full");
    0..if is_full { all } else { all.div_ceil(3) }
}
