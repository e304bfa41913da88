//! Killing a real process on the real disk.

use std::path::Path;

use spinney_proving::{kill, tier};

#[test]
fn what_was_acknowledged_outlives_the_process() {
    let place = tempfile::tempdir().unwrap();
    let child = Path::new(env!("CARGO_BIN_EXE_spinney-proving-child"));
    kill::run(child, &place.path().join("db"), tier::count(5, 200), tier::seeds(1).start);
}
