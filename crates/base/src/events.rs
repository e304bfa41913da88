//! Events for the crate `tracing`, behind the feature of that name. Without it they cost nothing: the
//! functions are empty.
//!
//! | event | level | fields |
//! |---|---|---|
//! | `database opened` | info | `path`, `records` replayed, `ms` |
//! | `checkpoint` | debug | `ms`; with `error` a warning |
//! | `stall` | debug from 1 ms, warn from 100 ms | `ms` |
//! | `damage` | error | `file`, `offset`, `what` |
//! | `writing stopped` | error | `cause` |
#![allow(unused_variables, reason = "without the feature nobody looks")]

use std::path::Path;
use std::time::Duration;

use crate::Error;

/// Shorter stalls are no events.
#[cfg(feature = "tracing")]
const STALL_MIN: Duration = Duration::from_millis(1);
/// A stall that users notice.
#[cfg(feature = "tracing")]
const STALL_LONG: Duration = Duration::from_millis(100);

/// A database was opened after `records` of its log were replayed.
#[inline]
pub fn opened(path: &Path, records: u64, took: Duration) {
    #[cfg(feature = "tracing")]
    tracing::info!(path = %path.display(), records, ms = ms(took), "database opened");
}

/// A checkpoint of all keyspaces ended.
#[inline]
pub fn checkpoint(took: Duration, error: Option<&Error>) {
    #[cfg(feature = "tracing")]
    match error {
        None => tracing::debug!(ms = ms(took), "checkpoint"),
        Some(error) => tracing::warn!(ms = ms(took), %error, "checkpoint"),
    }
}

/// A writer waited.
#[inline]
pub(crate) fn stall(took: Duration) {
    #[cfg(feature = "tracing")]
    if took >= STALL_LONG {
        tracing::warn!(ms = ms(took), "stall");
    } else if took >= STALL_MIN {
        tracing::debug!(ms = ms(took), "stall");
    }
}

/// The scrub found a damaged page.
#[inline]
pub fn damage(file: &Path, offset: u64, what: &str) {
    #[cfg(feature = "tracing")]
    tracing::error!(file = %file.display(), offset, what, "damage");
}

/// A failure stopped all writing until the database is reopened.
#[inline]
pub(crate) fn stopped(cause: &Error) {
    #[cfg(feature = "tracing")]
    tracing::error!(%cause, "writing stopped");
}

#[cfg(feature = "tracing")]
fn ms(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}
