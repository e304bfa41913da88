//! Every example runs, and stays short.

use std::path::Path;
use std::process::Command;

/// The tour. Programs beside it measure something.
const EXAMPLES: [&str; 8] = [
    "first_steps",
    "batches",
    "conditions",
    "snapshots",
    "engines",
    "backup",
    "bulk_load",
    "large_values",
];

#[test]
fn examples_run() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    // Cargo builds examples with the tests: they lie beside the directory of this program.
    let here = std::env::current_exe().unwrap();
    let built = here.parent().unwrap().parent().unwrap().join("examples");
    for name in EXAMPLES {
        let source = std::fs::read_to_string(sources.join(format!("{name}.rs"))).unwrap();
        let lines = source.lines().count();
        assert!(lines < 60, "{name}: {lines} lines");
        let program = built.join(name);
        assert!(program.exists(), "{} was not built: cargo build --examples", program.display());
        let output = Command::new(&program).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {error}");
    }
}
