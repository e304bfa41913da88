//! The house keeps its own rules: crates use only what a table allows, every file says what it is, none
//! grows past a thousand lines, and prose avoids the wordings that `words.txt` lists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};
use regex::{RegexSet, RegexSetBuilder};

/// What engines may use: the ground, and never each other.
const GROUND: [&str; 16] = [
    "spinney-base",
    "spinney-io",
    "spinney-sync",
    "spinney-art",
    "spinney-extent",
    "spinney-page",
    "spinney-wal",
    "spinney-cache",
    "spinney-records",
    "spinney-leaf",
    "spinney-hot",
    "spinney-filter",
    "spinney-engine",
    "spinney-preimages",
    "spinney-access",
    "spinney-ssn",
];

/// Engines, which only `spinney-db` may use. A new one is entered here.
const ENGINES: [&str; 4] = ["spinney-treeline", "spinney-turtle", "spinney-tiered", "spinney-iot"];

/// Which crates of the workspace a crate may use, by the ends of their names. A new crate, and a new
/// arrow, is entered here by a reviewed change. Engines have no row: they may use the ground.
const ALLOWED: [(&str, &[&str]); 23] = [
    ("spinney-base", &[]),
    ("spinney-io", &["base"]),
    ("spinney-sync", &["base"]),
    ("spinney-art", &["base", "sync"]),
    ("spinney-extent", &["base", "io"]),
    ("spinney-page", &["base", "extent"]),
    ("spinney-wal", &["base", "io"]),
    ("spinney-cache", &["base", "io", "sync"]),
    ("spinney-records", &["base", "sync"]),
    ("spinney-access", &["base", "cache", "engine", "extent", "io", "leaf", "sync", "wal"]),
    ("spinney-leaf", &["base", "sync"]),
    ("spinney-hot", &["base", "leaf", "sync"]),
    ("spinney-filter", &[]),
    ("spinney-ssn", &["base", "sync"]),
    ("spinney-heap", &["art", "base", "io", "ssn", "sync", "wal"]),
    ("spinney-engine", &["base", "extent", "io", "ssn", "sync", "wal"]),
    (
        "spinney-preimages",
        &["art", "base", "engine", "extent", "filter", "io", "page", "sync", "wal"],
    ),
    ("spinney-db", &["base", "engine", "io", "ssn", "sync", "wal"]),
    ("spinney", &["base", "db"]),
    ("spinney-bench", &["spinney", "base", "engine", "heap", "io", "ssn", "sync"]),
    ("spinney-bench-peers", &["base", "bench"]),
    ("spinney-cli", &["spinney", "base", "bench", "bench-peers", "io"]),
    ("spinney-proving", &["spinney", "base", "bench", "db", "engine", "extent", "io", "wal"]),
];

/// What tests may use beside that.
const ALLOWED_IN_TESTS: [(&str, &[&str]); 3] = [
    ("spinney-cache", &["extent"]),
    ("spinney-filter", &["base"]),
    ("spinney-proving", &["bench", "page"]),
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

/// Files below a directory whose names end in `.` and `ending`, in order.
fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                found.extend(files(&path, ending));
            }
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn every_file_says_what_it_is_and_stays_small() {
    let sources = files(&root().join("crates"), "rs");
    assert!(sources.len() > 50);
    for file in sources {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.display();
        assert!(text.starts_with("//! "), "{name} does not open with what it is");
        assert!(text.lines().count() <= LINES_MAX, "{name} is longer than {LINES_MAX} lines");
    }
}

/// Most matches of `words.txt` in comments that users do not read.
const WORDS_IN_COMMENTS_MAX: usize = 60;

/// The readers of a piece of text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Documents, documentation of public items and modules, messages.
    Public,
    /// All other comments.
    Comment,
}

/// Text that stands together, on one line.
struct Piece {
    line: usize,
    kind: Kind,
    text: String,
}

fn forbidden() -> RegexSet {
    let lines = include_str!("words.txt").lines();
    RegexSetBuilder::new(lines.filter(|line| !line.is_empty() && !line.starts_with('#')))
        .case_insensitive(true)
        .build()
        .unwrap()
}

/// Paragraphs of a Markdown file, without blocks of code.
fn paragraphs(document: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut in_code, mut in_paragraph) = (false, false);
    for (at, line) in document.lines().enumerate() {
        in_code ^= line.trim_start().starts_with("```");
        if in_code || line.trim().is_empty() {
            in_paragraph = false;
        } else if in_paragraph && !line.starts_with(['|', '*', '#', '-']) {
            let text = &mut pieces.last_mut().unwrap().text;
            text.push(' ');
            text.push_str(line.trim());
        } else {
            pieces.push(Piece { line: at + 1, kind: Kind::Public, text: line.trim().to_owned() });
            in_paragraph = true;
        }
    }
    pieces
}

/// Where a string or a character that starts at `at` ends; `None` where neither starts there. Good
/// enough for sources that `rustfmt` has seen.
fn literal_end(text: &str, at: usize) -> Option<usize> {
    let rest = &text[at..];
    if let Some(raw) = rest.strip_prefix('r') {
        let hashes = raw.bytes().take_while(|byte| *byte == b'#').count();
        let named = text[..at].ends_with(|before: char| before.is_alphanumeric() && before != 'b');
        if !named && raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = at + 1 + hashes + 1;
            return Some(start + text[start..].find(&end).unwrap() + end.len());
        }
    }
    let quote = rest.chars().next().filter(|first| matches!(first, '"' | '\''))?;
    let mut inside = rest.char_indices().skip(1);
    if quote == '\'' {
        let (mut ahead, first) = (inside.clone(), rest.chars().nth(1)?);
        if first != '\\' && ahead.nth(1)?.1 != '\'' {
            return None; // a lifetime
        }
    }
    while let Some((offset, next)) = inside.next() {
        if next == '\\' {
            inside.next();
        } else if next == quote {
            return Some(at + offset + 1);
        }
    }
    None
}

/// Whether the item that follows documentation is public: by its own word, or as part of a public
/// enum or trait.
fn is_public(before: &str, after: &str) -> bool {
    let mut lines = after.lines().map(str::trim_start);
    let mut depth = 0;
    let item = lines.find(|line| {
        let attribute = depth > 0 || line.starts_with("#[");
        if attribute {
            depth += line.matches(['[', '(']).count();
            depth -= line.matches([']', ')']).count().min(depth);
        }
        !attribute && !line.is_empty() && !line.starts_with("//")
    });
    let inside = before
        .lines()
        .rev()
        .find(|line| line.starts_with('}') || line.starts_with("pub ") || line.starts_with("impl"));
    let inside = inside.unwrap_or_default();
    item.is_some_and(|item| item.starts_with("pub "))
        || ["pub trait ", "pub enum "].iter().any(|start| inside.starts_with(start))
}

/// Comments and strings of a source file. All documentation of the program is public: it is the
/// program's help.
fn prose(text: &str, is_program: bool) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < text.len() {
        let rest = &text[at..];
        if let Some(marker) = ["//!", "///", "//"].iter().find(|marker| rest.starts_with(**marker))
        {
            let (start, first) = (at, line);
            let mut words = Vec::new();
            while let Some(comment) = text[at..].strip_prefix(marker) {
                let end = comment.find('\n').unwrap_or(comment.len());
                words.push(comment[..end].trim());
                let next = &comment[end..];
                let indent = next.len() - next.trim_start_matches([' ', '\n']).len();
                let newlines = next[..indent].matches('\n').count();
                at += marker.len() + end;
                if newlines != 1 {
                    break;
                }
                (at, line) = (at + indent, line + 1);
            }
            let public = match *marker {
                "//!" => true,
                "///" => is_program || is_public(&text[..start], &text[at..]),
                _ => false,
            };
            let kind = if public { Kind::Public } else { Kind::Comment };
            pieces.push(Piece { line: first, kind, text: words.join(" ") });
            continue;
        }
        let end = literal_end(text, at);
        let skipped = end.map_or(rest.chars().next().unwrap().len_utf8(), |end| end - at);
        let literal = &rest[..skipped];
        if end.is_some() && literal.contains(' ') {
            let words: Vec<&str> = literal.split(['\n', '\\']).map(str::trim).collect();
            pieces.push(Piece { line, kind: Kind::Public, text: words.join(" ") });
        }
        line += literal.matches('\n').count();
        at += skipped;
    }
    pieces
}

#[test]
fn prose_avoids_the_words_of_the_list() {
    let (root, forbidden) = (root(), forbidden());
    let lab = root.join("docs/lab");
    let mut documents = files(&root.join("docs"), "md");
    documents.retain(|path| !path.starts_with(&lab));
    documents.extend(
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "crates/cli/README.md"]
            .map(|name| root.join(name)),
    );
    let (mut public, mut comments) = (Vec::new(), Vec::new());
    for path in documents.into_iter().chain(files(&root.join("crates"), "rs")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        let pieces = if name.ends_with(".md") {
            paragraphs(&text)
        } else {
            prose(&text, name.starts_with("crates/cli/src"))
        };
        for piece in pieces {
            for match_of in &forbidden.matches(&piece.text) {
                let found = format!(
                    "{name}:{}: {} in: {:.160}",
                    piece.line,
                    &forbidden.patterns()[match_of],
                    piece.text
                );
                if piece.kind == Kind::Public {
                    public.push(found);
                } else {
                    comments.push(found);
                }
            }
        }
    }
    println!("words.txt in comments: {}\n{}", comments.len(), comments.join("\n"));
    assert!(public.is_empty(), "{} in what users read:\n{}", public.len(), public.join("\n"));
    assert!(comments.len() <= WORDS_IN_COMMENTS_MAX, "{} in comments", comments.len());
}
