//! The house keeps its own rules: crates depend downwards only, every file says what it is, none
//! grows past a thousand lines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Every crate may use those before it. New crates are entered here, by a reviewed change.
const FLOORS: [&str; 19] = [
    "spinney-base",
    "spinney-io",
    "spinney-sync",
    "spinney-art",
    "spinney-extent",
    "spinney-page",
    "spinney-wal",
    "spinney-cache",
    "spinney-records",
    "spinney-filter",
    "spinney-engine",
    "spinney-treeline",
    "spinney-turtle",
    "spinney-db",
    "spinney",
    "spinney-bench",
    "spinney-bench-peers",
    "spinney-cli",
    "spinney-proving",
];

const LINES_MAX: usize = 1000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

#[test]
fn no_arrow_points_up() {
    let manifest = root().join("Cargo.toml");
    let metadata = MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .other_options(["--offline".into()])
        .exec()
        .unwrap();
    let floor = |name: &str| FLOORS.iter().position(|crate_name| *crate_name == name);
    let mut seen = BTreeSet::new();
    for package in &metadata.packages {
        let name = package.name.as_str();
        let mine = floor(name).unwrap_or_else(|| panic!("{name} has no floor in this test"));
        assert!(seen.insert(mine));
        for dependency in &package.dependencies {
            // Tests may look up, at a crate's own simulated parts for example; what ships may not.
            if dependency.kind == DependencyKind::Development {
                continue;
            }
            if let Some(other) = floor(&dependency.name) {
                assert!(other < mine, "{name} depends on {}, which lies above it", dependency.name);
            }
        }
    }
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_file_says_what_it_is_and_stays_small() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    assert!(files.len() > 50);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.display();
        assert!(text.starts_with("//! "), "{name} does not open with what it is");
        assert!(text.lines().count() <= LINES_MAX, "{name} is longer than {LINES_MAX} lines");
    }
}
