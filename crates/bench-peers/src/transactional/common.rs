//! What drivers have in common.

#[cfg(any(feature = "canopydb", feature = "fjall", feature = "rocksdb"))]
use spinney_base::ErrorKind;
use spinney_base::{Error, Result};
use spinney_bench::plan::Durability;
#[cfg(any(feature = "canopydb", feature = "fjall", feature = "redb"))]
use spinney_bench::transactional::Scan;

/// The error that a body gets when the engine has found a conflict already.
#[cfg(any(feature = "canopydb", feature = "fjall", feature = "rocksdb"))]
pub(super) fn conflict() -> Error {
    Error::new(ErrorKind::Conflict, "another transaction was faster")
}

/// Transactions are whole in what is logged, so there is no run without a log.
pub(super) fn check_durability(durability: Durability) -> Result<()> {
    match durability {
        Durability::None => Err(Error::invalid("transactions are sync or buffered, not none")),
        Durability::Sync | Durability::Buffered => Ok(()),
    }
}

/// The error of a write in a transaction that only reads.
pub(super) fn only_reads() -> Error {
    Error::invalid("a transaction that only reads has no writes")
}

/// The bounds of a range.
#[cfg(any(feature = "canopydb", feature = "fjall", feature = "redb"))]
pub(super) fn bounds<'a>(
    scan: &Scan<'a>,
) -> (std::ops::Bound<&'a [u8]>, std::ops::Bound<&'a [u8]>) {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    (Included(scan.from), scan.to.map_or(Unbounded, Excluded))
}
