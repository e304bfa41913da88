//! Sizes and counts as text: `64MiB`, `1M`, `500K`, `4096`.

use std::num::{IntErrorKind, ParseIntError};

use crate::{Error, Result};

/// Parses a count or size: `K`, `M`, `G` are decimal, `KiB`, `MiB`, `GiB`, `TiB` (and `B`) binary;
/// no suffix is units.
///
/// # Errors
/// `InvalidArgument` when the text is not a whole number with a known suffix, or does not fit 64
/// bits.
///
/// ```
/// use spinney_base::size::parse;
/// assert_eq!(parse("16M").unwrap(), 16_000_000);
/// assert_eq!(parse("340MiB").unwrap(), 340 << 20);
/// assert!(parse("many").is_err());
/// ```
pub fn parse(text: &str) -> Result<u64> {
    let digits = text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = &text.trim()[digits.len()..];
    let unit: u64 = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => {
            let text = format!("unknown size suffix {suffix:?} in {text:?}: {SUFFIXES}");
            return Err(Error::invalid(text));
        }
    };
    let too_large = || Error::invalid(format!("{text:?} does not fit 64 bits"));
    let number: u64 =
        digits.trim_end().replace('_', "").parse().map_err(|error: ParseIntError| {
            if *error.kind() == IntErrorKind::PosOverflow {
                return too_large();
            }
            Error::invalid(format!("{text:?} is not a whole number with a size suffix: {SUFFIXES}"))
        })?;
    number.checked_mul(unit).ok_or_else(too_large)
}

/// What messages say about suffixes.
const SUFFIXES: &str = "there are K, M, G, KiB, MiB, GiB and TiB";

/// Formats `bytes` with a binary suffix and at most one decimal: `85.0MiB`.
#[must_use]
pub fn display_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (name, unit) in UNITS {
        if bytes >= unit {
            #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
            return format!("{:.1}{name}", bytes as f64 / unit as f64);
        }
    }
    format!("{bytes}B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes() {
        for (text, value) in
            [("0", 0), ("500K", 500_000), ("64 MiB", 64 << 20), ("1TiB", 1 << 40), ("8kib", 8192)]
        {
            assert_eq!(parse(text).unwrap(), value, "{text}");
        }
        for text in ["", "K", "1.5M", "-1", "1XB", "99999999999999999999", "18446744073709551615K"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["99999999999999999999", "18446744073709551615K"] {
            assert!(
                parse(text).unwrap_err().to_string().contains("does not fit 64 bits"),
                "{text}"
            );
        }
    }
}
