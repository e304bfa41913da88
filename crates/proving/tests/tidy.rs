//! The house keeps its own rules: crates use only what a table allows, every file says what it is, none
//! grows past a thousand lines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// What engines may use: the ground, and never each other.
const GROUND: [&str; 11] = [
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
];

/// Engines, which only `spinney-db` may use. A new one is entered here.
const ENGINES: [&str; 2] = ["spinney-treeline", "spinney-turtle"];

/// Which crates of the workspace a crate may use, by the ends of their names. A new crate, and a new
/// arrow, is entered here by a reviewed change. Engines have no row: they may use the ground.
const ALLOWED: [(&str, &[&str]); 17] = [
    ("spinney-base", &[]),
    ("spinney-io", &["base"]),
    ("spinney-sync", &["base"]),
    ("spinney-art", &["base", "sync"]),
    ("spinney-extent", &["base", "io"]),
    ("spinney-page", &["base", "extent"]),
    ("spinney-wal", &["base", "io"]),
    ("spinney-cache", &["base", "io", "sync"]),
    ("spinney-records", &["base", "sync"]),
    ("spinney-filter", &[]),
    ("spinney-engine", &["base", "extent", "io", "wal"]),
    ("spinney-db", &["base", "engine", "io", "sync", "wal"]),
    ("spinney", &["base", "db"]),
    ("spinney-bench", &["spinney", "base", "io"]),
    ("spinney-bench-peers", &["base", "bench"]),
    ("spinney-cli", &["spinney", "base", "bench", "bench-peers", "io"]),
    ("spinney-proving", &["spinney", "base", "engine", "extent", "io", "wal"]),
];

/// What tests may use beside that.
const ALLOWED_IN_TESTS: [(&str, &[&str]); 3] = [
    ("spinney-cache", &["extent"]),
    ("spinney-filter", &["base"]),
    ("spinney-proving", &["db", "page"]),
];

const LINES_MAX: usize = 1000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Whether a crate may use another.
fn may_use(name: &str, other: &str, in_tests: bool) -> bool {
    if ENGINES.contains(&name) {
        return GROUND.contains(&other);
    }
    if name == "spinney-db" && ENGINES.contains(&other) {
        return true;
    }
    let row = |table: &[(&str, &[&str])]| {
        let allowed = table.iter().find(|(row, _)| *row == name).map_or(&[][..], |row| row.1);
        allowed.iter().any(|end| other == *end || other.strip_prefix("spinney-") == Some(end))
    };
    row(&ALLOWED) || (in_tests && row(&ALLOWED_IN_TESTS))
}

#[test]
fn every_arrow_is_in_the_table() {
    let manifest = root().join("Cargo.toml");
    let metadata = MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .other_options(["--offline".into()])
        .exec()
        .unwrap();
    let house: BTreeSet<&str> = metadata.packages.iter().map(|package| &**package.name).collect();
    let known: BTreeSet<&str> = ALLOWED.iter().map(|row| row.0).chain(ENGINES).collect();
    assert_eq!(house, known, "the crates and the table of this test");
    for package in &metadata.packages {
        let name = package.name.as_str();
        let uses = package.dependencies.iter();
        for other in uses.filter(|other| other.name != name && house.contains(&*other.name)) {
            let in_tests = other.kind == DependencyKind::Development;
            assert!(
                may_use(name, &other.name, in_tests),
                "{name} uses {}, which the table of this test does not allow",
                other.name
            );
        }
    }
}

#[test]
fn engines_know_no_other_engine() {
    for name in ENGINES {
        for other in ENGINES {
            assert!(!may_use(name, other, true), "{name} may use {other}");
        }
        assert!(!may_use(name, "spinney-db", true));
        let below = GROUND.iter().find(|ground| may_use(ground, name, true));
        assert_eq!(below, None, "the ground may use {name}");
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
