//! The command line.

use clap::{Parser, Subcommand};

use crate::bench::BenchArguments;
use crate::exit;

/// Name of the hidden command that makes this program the child process of one engine of a benchmark.
pub(crate) const CHILD_COMMAND: &str = "bench-child";

/// An embedded key-value store: look into databases, move data in and out, measure
#[derive(Debug, Parser)]
#[command(name = "spinney", version, after_help = exit::HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measures engines side by side
    Bench(BenchArguments),
    #[command(name = CHILD_COMMAND, hide = true)]
    BenchChild,
}

/// Reads a size or a count with a suffix.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    spinney_base::size::parse(text).map_err(|error| error.to_string())
}

/// The same, for what must fit in memory.
pub(crate) fn small_size(text: &str) -> Result<usize, String> {
    size(text)?.try_into().map_err(|_| format!("{text} does not fit in memory"))
}
