//! What all benchmarks share: the engines of this build, which of them are chosen, and how a result
//! ends the program.

use spinney::ErrorKind;
use spinney_bench::driver::Driver;

use crate::exit::{Failure, Outcome};
use crate::interrupt;
use crate::knobs::Knobs;

/// Name of the hidden command that runs one engine of a benchmark as a child process.
pub(crate) const CHILD_COMMAND: &str = "bench-child";

/// Engines that the feature `peers` adds.
pub(crate) const PEERS: [&str; 6] = ["rocksdb", "rocksdb-rows", "lmdb", "redb", "fjall", "bf-tree"];

/// Every engine in this build, ours first.
pub(crate) fn drivers() -> Vec<Box<dyn Driver>> {
    #[cfg_attr(
        not(feature = "peers"),
        expect(unused_mut, reason = "peers are added when they are built in")
    )]
    let mut drivers: Vec<Box<dyn Driver>> = spinney_bench::own::drivers();
    #[cfg(feature = "peers")]
    drivers.extend(spinney_bench_peers::drivers());
    drivers
}

/// Turns the result of a benchmark into an outcome.
pub(crate) fn outcome(ran: spinney::Result<bool>) -> Result<Outcome, Failure> {
    match ran {
        Ok(true) => Ok(Outcome::Done),
        Ok(false) => Ok(Outcome::Failed),
        Err(error) if error.kind() == ErrorKind::Cancelled => {
            interrupt::say(error);
            Ok(Outcome::Interrupted)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the places among `names` of the engines that are asked for, in that order, or of all when none is.
/// `peers` are those that the feature `peers` brings.
pub(crate) fn chosen(
    engines: &[String],
    names: &[&str],
    peers: &[&str],
) -> Result<Vec<usize>, Failure> {
    if engines.is_empty() {
        return Ok((0..names.len()).collect());
    }
    let place = |(index, engine): (usize, &String)| {
        if engines[..index].contains(engine) {
            return Err(Failure::usage(format!("engine {engine:?} is named twice")));
        }
        names.iter().position(|name| name == engine).ok_or_else(|| {
            let is_left_out = !cfg!(feature = "peers") && peers.contains(&engine.as_str());
            let hint = if is_left_out {
                format!("; build with --features peers for {}", peers.join(", "))
            } else {
                String::new()
            };
            let names = names.join(", ");
            Failure::usage(format!("unknown engine {engine:?}: this program has {names}{hint}"))
        })
    };
    engines.iter().enumerate().map(place).collect()
}

/// Passes when each option of an engine was taken by one that is measured.
pub(crate) fn check_used(knobs: &Knobs) -> Result<(), Failure> {
    match knobs.keys().next() {
        Some(engine) => Err(Failure::usage(format!(
            "an option --{engine}.… is given, but {engine:?} is not among the engines"
        ))),
        None => Ok(()),
    }
}
