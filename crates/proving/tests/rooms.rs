//! Walls between the modules of a crate: how many import each other in a circle, how many fields a
//! struct has, how long a function is.
//!
//! The numbers are computed from the sources. A module is a file under `src`; a directory module and
//! its children are modules of their own. Module `a` imports `b` if a path in `a` names `b`: one that
//! begins with `crate::`, `super::` or `self::`, or with a child of `a`. Comments, strings and what
//! `cfg(test)` guards do not count. A circle is a strongly connected component of this graph.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Largest numbers that a crate may have.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Modules that import each other in one circle; 1 if none do.
    circle: usize,
    /// Fields of a struct.
    fields: usize,
    /// Lines of a function, from `fn` to its closing brace.
    lines: usize,
}

/// What every crate without a row of its own keeps.
const LIMITS: Limits = Limits { circle: 4, fields: 15, lines: 80 };

/// Crates that have a row of their own. A limit may only be lowered; a row that is no higher than
/// [`LIMITS`] anywhere is removed.
const ROWS: [(&str, Limits); 3] = [
    // Of its `Row`, a list of numbers.
    ("bench", Limits { fields: 33, ..LIMITS }),
    // Its `Stats` is a list of numbers.
    ("db", Limits { fields: 17, ..LIMITS }),
    // Its `EngineStats` is a list of numbers.
    ("engine", Limits { fields: 43, ..LIMITS }),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

#[test]
fn rooms_have_walls() {
    let mut over = Vec::new();
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(crates()).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        let name = name.into_string().unwrap();
        if !path.join("src").is_dir() {
            continue;
        }
        let limits = ROWS.iter().find(|row| row.0 == name).map_or(LIMITS, |row| row.1);
        let sources = Sources::read(&path.join("src"));
        let circle = sources.largest_circle();
        let (fields, structure) = sources.most_fields();
        let (lines, function) = sources.longest_function();
        println!(
            "{name}: {} modules, {} in a circle; {structure} has {fields} fields; {function} has {lines} lines",
            sources.modules.len(),
            circle.len(),
        );
        if circle.len() > limits.circle {
            let (circle, limit) = (circle.join(", "), limits.circle);
            over.push(format!("{name}: more than {limit} modules import each other: {circle}"));
        }
        if fields > limits.fields {
            over.push(format!("{name}: {structure} has {fields} fields, not {}", limits.fields));
        }
        if lines > limits.lines {
            over.push(format!("{name}: {function} has {lines} lines, not {}", limits.lines));
        }
        names.insert(name);
    }
    let unknown: Vec<&str> =
        ROWS.iter().map(|row| row.0).filter(|name| !names.contains(*name)).collect();
    assert!(unknown.is_empty(), "rows of crates that are gone: {unknown:?}");
    assert!(over.is_empty(), "\n{}", over.join("\n"));
}

/// A name or a sign, and its line.
type Token = (String, usize);

/// The modules of one crate: paths from the crate's root, and their code.
struct Sources {
    modules: BTreeMap<Vec<String>, Vec<Token>>,
}

impl Sources {
    fn read(src: &Path) -> Sources {
        let mut files = BTreeMap::new();
        read_directory(src, &[], &mut files);
        let mut modules = BTreeMap::new();
        let mut tests: Vec<Vec<String>> = Vec::new();
        for (path, text) in files {
            let (code, of_tests) = without_tests(&code_of(&text));
            tests.extend(of_tests.into_iter().map(|name| [&path[..], &[name]].concat()));
            modules.insert(path, tokens(&code));
        }
        modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
        Sources { modules }
    }

    fn largest_circle(&self) -> Vec<String> {
        let paths: Vec<&Vec<String>> = self.modules.keys().collect();
        let place = |path: &[String]| paths.iter().position(|one| one[..] == *path);
        let mut reaches = vec![vec![false; paths.len()]; paths.len()];
        for (from, path) in paths.iter().enumerate() {
            for to in self.imports(path) {
                // The root declares all others, and is where re-exports are found.
                if let Some(to) = place(&to).filter(|to| !paths[*to].is_empty()) {
                    reaches[from][to] = !path.is_empty();
                }
            }
        }
        for via in 0..paths.len() {
            for from in 0..paths.len() {
                for to in 0..paths.len() {
                    reaches[from][to] |= reaches[from][via] && reaches[via][to];
                }
            }
        }
        let with = |one: usize| -> Vec<usize> {
            let both = |other: &usize| reaches[one][*other] && reaches[*other][one];
            (0..paths.len()).filter(|other| *other == one || both(other)).collect()
        };
        let circle = (0..paths.len()).map(with).max_by_key(Vec::len).unwrap_or_default();
        circle.into_iter().map(|one| paths[one].join("::")).collect()
    }

    /// Modules that one module names.
    fn imports(&self, module: &[String]) -> BTreeSet<Vec<String>> {
        let tokens = &self.modules[module];
        let mut found = BTreeSet::new();
        for at in 0..tokens.len() {
            let first = tokens[at].0.as_str();
            let is_child = || self.modules.contains_key(&[module, &[first.to_owned()]].concat());
            let begins = at == 0 || tokens[at - 1].0 != "::";
            let follows = tokens.get(at + 1).is_some_and(|next| next.0 == "::");
            if begins && follows && (["crate", "super", "self"].contains(&first) || is_child()) {
                let mut paths = Vec::new();
                expand(tokens, &mut { at }, &[], &mut paths);
                found.extend(paths.iter().filter_map(|path| self.resolve(module, path)));
            }
        }
        found.remove(module);
        found
    }

    /// The module in which what a path names is defined, as far as files and re-exports tell.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut at = module.to_vec();
        for (index, name) in path.iter().enumerate() {
            match name.as_str() {
                "crate" => at.clear(),
                "super" => drop(at.pop()),
                "self" => {}
                _ => {
                    let child = [&at[..], std::slice::from_ref(name)].concat();
                    if self.modules.contains_key(&child) {
                        at = child;
                        continue;
                    }
                    return match self.exported(&at, name) {
                        Some(exported) if index > 0 => self.resolve(&at, &exported),
                        _ => Some(at),
                    };
                }
            }
        }
        Some(at)
    }

    /// The path by which a module re-exports a name of one of its children.
    fn exported(&self, module: &[String], name: &str) -> Option<Vec<String>> {
        let tokens = self.modules.get(module)?;
        let mut paths = Vec::new();
        for at in 0..tokens.len() {
            let is_child =
                || self.modules.contains_key(&[module, &[tokens[at].0.clone()]].concat());
            if at > 0 && tokens[at - 1].0 == "use" && is_child() {
                expand(tokens, &mut { at }, &[], &mut paths);
            }
        }
        paths.into_iter().find(|path| path.last().is_some_and(|last| last == name))
    }

    fn most_fields(&self) -> (usize, String) {
        let mut most = (0, String::new());
        for (module, tokens) in &self.modules {
            for at in (1..tokens.len()).filter(|at| tokens[at - 1].0 == "struct") {
                let end = (at..tokens.len()).find(|at| ["{", "(", ";"].contains(&&*tokens[*at].0));
                let Some(open) = end.filter(|open| tokens[*open].0 == "{") else { continue };
                let (mut depth, mut fields) = (0, 0);
                for (token, _) in &tokens[open + 1..closing(tokens, open)] {
                    match token.as_str() {
                        "{" | "(" | "[" | "<" => depth += 1,
                        "}" | ")" | "]" | ">" => depth -= 1,
                        ":" if depth == 0 => fields += 1,
                        _ => {}
                    }
                }
                if fields > most.0 {
                    most = (fields, [&module[..], &[tokens[at].0.clone()]].concat().join("::"));
                }
            }
        }
        most
    }

    fn longest_function(&self) -> (usize, String) {
        let mut longest = (0, String::new());
        for (module, tokens) in &self.modules {
            let is_named = |at: &usize| tokens[at - 1].0 == "fn" && is_name(&tokens[*at].0);
            for at in (1..tokens.len()).filter(is_named) {
                let mut depth = 0;
                let open = tokens[at..].iter().position(|(token, _)| {
                    match token.as_str() {
                        "(" | "[" => depth += 1,
                        ")" | "]" => depth -= 1,
                        _ => {}
                    }
                    depth == 0 && ["{", ";"].contains(&token.as_str())
                });
                let open = open.map(|open| at + open).filter(|open| tokens[*open].0 == "{");
                let Some(open) = open else { continue };
                let lines = tokens[closing(tokens, open)].1 - tokens[at].1 + 1;
                if lines > longest.0 {
                    let name = tokens[at].0.clone();
                    longest = (lines, [&module[..], &[name]].concat().join("::"));
                }
            }
        }
        longest
    }
}

fn read_directory(directory: &Path, module: &[String], files: &mut BTreeMap<Vec<String>, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let below = [module, std::slice::from_ref(&stem)].concat();
        if path.is_dir() {
            read_directory(&path, &below, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let is_root = module.is_empty() && ["lib", "main"].contains(&&*stem);
            let at = if is_root || stem == "mod" { module.to_vec() } else { below };
            files.entry(at).or_default().push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

/// The code of a source file: comments and what stands in quotes are blank, lines stay where they are.
fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        let length = match rest {
            ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => comment_length(rest),
            ['"', ..] => quoted_length(rest),
            ['r', '"' | '#', ..] if !ends_in_name(&code) => raw_length(rest),
            ['\'', '\\', ..] => 2 + rest[3..].iter().position(|c| *c == '\'').unwrap_or(0) + 2,
            ['\'', _, '\'', ..] => 3,
            _ => 0,
        };
        if length == 0 {
            code.push(chars[at]);
            at += 1;
        } else {
            let blank = rest[..length].iter().map(|c| if *c == '\n' { '\n' } else { ' ' });
            code.extend(blank);
            at += length;
        }
    }
    code
}

fn ends_in_name(code: &str) -> bool {
    code.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn comment_length(rest: &[char]) -> usize {
    let mut depth = 0;
    for at in 0..rest.len() {
        match rest[at..] {
            ['/', '*', ..] => depth += 1,
            ['*', '/', ..] => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 2;
        }
    }
    rest.len()
}

fn quoted_length(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// The length of a raw string that begins here; 0 if none does.
fn raw_length(rest: &[char]) -> usize {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let body = &rest[2 + hashes..];
    let inside = body.windows(end.len()).position(|window| *window == end[..]);
    2 + hashes + inside.map_or(body.len(), |inside| inside + end.len())
}

/// Blanks what attributes say is for tests only; returns also the names of modules in files of their
/// own that are.
fn without_tests(code: &str) -> (String, Vec<String>) {
    let mut left = code.to_owned();
    let mut modules = Vec::new();
    let mut from = 0;
    while let Some(found) = left[from..].find("#[cfg(") {
        let start = from + found;
        let Some(end) = left[start..].find(']').map(|end| start + end) else { break };
        from = end;
        let condition = &left[start..end];
        if condition.contains("not(test") || !tokens(condition).iter().any(|name| name.0 == "test")
        {
            continue;
        }
        let item = &left[end + 1..];
        let open = item.find('{').unwrap_or(item.len());
        let close = item.find(';').unwrap_or(item.len());
        let length = if close < open {
            let item = tokens(&item[..close]);
            if let Some(at) = item.iter().position(|token| token.0 == "mod") {
                modules.push(item[at + 1].0.clone());
            }
            close
        } else {
            let mut depth = 0;
            let of_item = item.char_indices().skip_while(|(at, _)| *at < open).find(|(_, c)| {
                depth += i32::from(*c == '{') - i32::from(*c == '}');
                depth == 0
            });
            of_item.map_or(item.len() - 1, |(at, _)| at)
        };
        let range = start..end + 1 + length + 1;
        let blank: String =
            left[range.clone()].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        left.replace_range(range, &blank);
        from = start;
    }
    (left, modules)
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::`, `->`, `=>` and single characters.
fn tokens(code: &str) -> Vec<Token> {
    let mut found: Vec<Token> = Vec::new();
    let mut line = 1;
    let mut before = ' ';
    for c in code.chars() {
        let of_name = |c: char| c.is_alphanumeric() || c == '_';
        let joins = (of_name(before) && of_name(c))
            || (before == ':' && c == ':' && found.last().is_some_and(|last| last.0 == ":"))
            || (['-', '='].contains(&before) && c == '>');
        match found.last_mut() {
            Some(last) if joins => last.0.push(c),
            _ if c.is_whitespace() => {}
            _ => found.push((c.to_string(), line)),
        }
        line += usize::from(c == '\n');
        before = c;
    }
    found
}

/// Where the bracket closes that is opened here.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, (token, _)) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len() - 1
}

/// All paths of the tree that begins here: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(tokens: &[Token], at: &mut usize, prefix: &[String], paths: &mut Vec<Vec<String>>) {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        if token.0 == "{" {
            while tokens.get(*at).is_some_and(|token| token.0 != "}") {
                expand(tokens, at, &path, paths);
                if tokens.get(*at).is_some_and(|token| token.0 == ",") {
                    *at += 1;
                } else if tokens.get(*at).is_some_and(|token| token.0 != "}") {
                    // Something else than a tree of names.
                    return;
                }
            }
            *at += 1;
            return;
        }
        if is_name(&token.0) {
            path.push(token.0.clone());
        }
        if tokens.get(*at).is_none_or(|next| next.0 != "::") {
            break;
        }
        *at += 1;
        if !tokens.get(*at).is_some_and(|next| is_name(&next.0) || ["{", "*"].contains(&&*next.0)) {
            break;
        }
    }
    if tokens.get(*at).is_some_and(|token| token.0 == "as") {
        *at += 2;
    }
    paths.push(path);
}

#[test]
fn sources_are_understood() {
    let read = |modules: &[(&str, &str)]| {
        let modules = modules.iter().map(|(module, text)| {
            let path = module.split("::").filter(|part| !part.is_empty()).map(str::to_owned);
            (path.collect(), tokens(&without_tests(&code_of(text)).0))
        });
        Sources { modules: modules.collect() }
    };
    let three = [
        ("", "mod a; mod b; mod c; pub use c::{C, d::D};"),
        ("a", "use crate::{b::{self, B}, C}; // crate::c"),
        ("b", "fn f() -> u8 { let _ = \"crate::c\"; let _ = '\"'; super::c::d::f() }"),
        ("c", "mod d; use d::D; #[cfg(test)] mod tests { use crate::a; }"),
        ("c::d", "struct D<T> { a: Vec<(T, u8)>, b: fn(u8) -> u8, } fn f() {\n\n}"),
    ];
    assert_eq!(read(&three).largest_circle().len(), 1);
    let back = |text| [&three[..4], &[("c::d", text)]].concat();
    assert_eq!(read(&back("use crate::a::A;")).largest_circle(), ["a", "b", "c", "c::d"]);
    assert_eq!(read(&back("use super::C;")).largest_circle(), ["c", "c::d"]);
    assert_eq!(read(&back("/// [`A`](crate::a)\nfn f() {}")).largest_circle().len(), 1);
    assert_eq!(read(&three).most_fields(), (2, "c::d::D".to_owned()));
    assert_eq!(read(&three).longest_function(), (3, "c::d::f".to_owned()));
}
