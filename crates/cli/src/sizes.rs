//! Sizes and counts on the command line, with suffixes.

/// Parses a size or a count with a suffix.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    spinney_base::size::parse(text).map_err(|error| error.to_string())
}

/// Parses a size or a count that must fit in memory.
pub(crate) fn small_size(text: &str) -> Result<usize, String> {
    size(text)?.try_into().map_err(|_| format!("{text} does not fit in memory"))
}

/// Parses a count with a suffix, below 2^32.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    size(text)?.try_into().map_err(|_| format!("{text} is not below 2^32"))
}
