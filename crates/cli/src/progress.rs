//! Progress of a command, on standard error, if that is a terminal.

use std::fmt::Display;
use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar, or a counter where the total is unknown. It disappears when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Counts bytes up to `total`, if that is known.
    pub(crate) fn of_bytes(what: &'static str, total: Option<u64>) -> Self {
        Progress::new(
            what,
            total,
            "{prefix} [{bar:30}] {percent:>3}% {bytes} of {total_bytes}, {eta} left {msg}",
            "{prefix} {spinner} {bytes} {msg}",
        )
    }

    /// Counts items up to `total`, if that is known.
    pub(crate) fn of_things(what: &'static str, total: Option<u64>) -> Self {
        Progress::new(
            what,
            total,
            "{prefix} [{bar:30}] {percent:>3}% {human_pos} of {human_len}, {eta} left {msg}",
            "{prefix} {spinner} {human_pos} {msg}",
        )
    }

    fn new(what: &'static str, total: Option<u64>, known: &str, unknown: &str) -> Self {
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(total, target);
        let template = if total.is_some() { known } else { unknown };
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(what);
        Progress(bar)
    }

    /// Sets the progress.
    pub(crate) fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Sets the progress and the total, which may have changed.
    pub(crate) fn set_of(&self, done: u64, total: u64) {
        self.0.set_length(total.max(done));
        self.0.set_position(done);
    }

    /// Prints a line on standard error, above the bar. Ignores a closed standard error.
    pub(crate) fn say(&self, line: impl Display) {
        self.0.suspend(|| {
            let _ = writeln!(std::io::stderr(), "{line}");
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
