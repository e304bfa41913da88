//! Memory for engines of either kind.

use spinney_db::EngineKind;

/// This budget, and for an engine that keeps all records in memory what those of a test take beside it.
pub(crate) fn with_records(engine: EngineKind, bytes: u64) -> u64 {
    if engine.row().capabilities.larger_than_memory { bytes } else { 2 * bytes + (14 << 20) }
}
