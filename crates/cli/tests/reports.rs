//! Faults that people from outside found in the program, each by its letter and number with the smallest input
//! that showed it, and its siblings. What only a library can show is in `crates/db/tests/told.rs`.

mod common;

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use common::{database, errors, expect, fails, lines, names, nap, scan, shell, spinney, start};
use proptest::prelude::*;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is() {
            return;
        }
        nap(20);
    }
    panic!("{what} did not come");
}

fn ended(code: i32, child: Child) -> Output {
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    output
}

#[test]
fn a4_an_import_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let keys = [
        "18446744073709551616",
        "18446744073709551617",
        "12345678901234567890123",
        "12345678901234567890124",
        "1.50",
        "1.5",
        "-0.0",
        "1E400",
        "true",
    ];
    let input: String = keys.iter().map(|key| format!("{{ \"id\" : {key} }}\n")).collect();
    expect(0, &["import", db, "--key", "id", "--value", "id"], input.as_bytes());
    for key in keys {
        assert_eq!(expect(0, &["get", db, "--", key], b""), format!("{key}\n"));
    }
    assert_eq!(scan(db).lines().count(), keys.len());

    // What is no key is refused; as values all of them are their text in the file.
    let db = &format!("{db}2");
    for no_key in ["null", "{\"a\": 1}", "[1]", "{}", "[]"] {
        let line = format!("{{\"id\": {no_key}}}\n{{\"id\":\"ok\"}}\n");
        let told = fails(7, &["import", db, "--key", "id"], line.as_bytes());
        assert!(told.contains("line 1 is refused: the key is "), "{told}");
    }
    assert_eq!(expect(0, &["scan", db, "--keys-only"], b""), "ok\n");
    for value in ["null", "{ \"a\" : 1.0 }", "[1,  2.50]", "false", "0.10"] {
        let line = format!("{{\"id\": \"k\", \"v\": {value} }}\n");
        expect(0, &["import", db, "--key", "id", "--value", "v"], line.as_bytes());
        assert_eq!(expect(0, &["get", db, "k"], b""), format!("{value}\n"));
    }
    // A string is what it stands for.
    let line = br#"{"id": "a\u00e9\n\"", "v": "\ud83d\ude00\/"}"#;
    expect(0, &["import", db, "--key", "id", "--value", "v"], line);
    assert_eq!(expect(0, &["get", db, "a\u{e9}\n\""], b""), "\u{1f600}/\n");
}

/// After a kill records are in the log only, and are counted.
#[test]
fn e1_a_verification_counts_what_a_scan_finds_after_a_kill() {
    for engine in ["treeline", "turtle"] {
        let directory = tempfile::tempdir().unwrap();
        let db = &database(directory.path());
        expect(0, &["keyspaces", "create", db, "default", "--engine", engine], b"");
        expect(0, &["import", db], &lines(0, 5000, 100));
        let mut import = start(&["import", db]);
        let mut input = import.stdin.take().unwrap();
        // Half of them overwrite.
        input.write_all(&lines(2500, 6000, 101)).unwrap();
        nap(300);
        import.kill().unwrap();
        import.wait().unwrap();
        for _ in 0..2 {
            let report = json(&expect(0, &["verify", db, "--json"], b""));
            let found = expect(0, &["scan", db, "--keys-only"], b"").lines().count();
            assert!(found > 5000, "{found}");
            assert_eq!(report["records"], found, "{engine}");
            expect(0, &["delete", db, "k0000001"], b"");
        }
    }
}

#[test]
fn e2_exit_codes_say_what_a_script_can_do() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    expect(0, &["put", db, "oak", "tall"], b"");
    // No key, no keyspace, no database.
    expect(3, &["get", db, "ash"], b"");
    for arguments in [
        &["get", db, "oak", "--keyspace", "nobody"][..],
        &["scan", db, "--keyspace", "nobody"],
        &["export", db, "--keyspace", "nobody"],
        &["delete", db, "oak", "--keyspace", "nobody"],
        &["keyspaces", "drop", db, "nobody"],
        &["get", &place("none"), "oak"],
        &["backup", &place("none"), &place("copy")],
        &["restore", &place("none"), &place("copy")],
        &["salvage", &place("none"), &place("copy")],
    ] {
        fails(9, arguments, b"");
    }
    // Limits.
    let long = "k".repeat(1025);
    fails(2, &["get", db, "oak", "--memory", "1K"], b"");
    fails(2, &["put", db, &long, "v"], b"");
    fails(2, &["get", db, &long], b"");
    fails(2, &["put", db, "long", "-"], &vec![1; (64 << 20) + 1]);
    fails(2, &["put", db, "k", "v", "--keyspace", &long], b"");
    fails(2, &["backup", db, &place("")], b"");
    assert_eq!(scan(db), "oak\ttall\n");
    // Files that the manifest promises.
    expect(0, &["backup", db, &place("copy")], b"");
    for lost in ["wal", "keyspace-00000001.spn"] {
        let broken = &place(&format!("without-{lost}"));
        expect(0, &["restore", &place("copy"), broken], b"");
        std::fs::remove_file(format!("{broken}/{lost}")).unwrap();
        for arguments in [
            &["get", broken, "oak"][..],
            &["scan", broken],
            &["export", broken],
            &["stats", broken],
            &["verify", broken],
            &["put", broken, "oak", "v"],
            &["delete", broken, "oak"],
            &["import", broken],
            &["keyspaces", "list", broken],
            &["backup", broken, &place("other")],
            &["restore", broken, &place("other")],
        ] {
            let told = fails(4, arguments, b"");
            assert!(told.contains("was lost") && told.contains(lost), "{told}");
        }
        assert!(!Path::new(&place("other")).join("MANIFEST").exists());
    }
    let help = expect(0, &["--help"], b"");
    for (code, meaning) in [
        (2, "usage"),
        (3, "no such key"),
        (4, "damage"),
        (9, "no such database or keyspace"),
        (130, "interrupted"),
    ] {
        let line = format!("  {code:<5}{meaning}");
        assert!(help.contains(&line), "{line:?} is not in: {help}");
    }
}

/// A file on the command line that cannot be opened is a mistake there, and nothing was made or changed.
#[test]
fn e2_a_file_that_cannot_be_opened_is_usage() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    expect(0, &["put", db, "oak", "tall"], b"");
    std::fs::create_dir(place("directory")).unwrap();
    std::fs::write(place("file"), "mine").unwrap();
    std::fs::write(place("secret"), "oak,1\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o000);
    std::fs::set_permissions(place("secret"), mode).unwrap();
    let before = names(directory.path());
    let (none, inside) = (place("none/file"), place("file/file"));
    let mut wrong = vec![none, inside, place("directory")];
    // Whoever runs the tests may be allowed everything.
    if std::fs::File::open(place("secret")).is_err() {
        wrong.push(place("secret"));
    }
    let bench = ["bench", "ycsb", "--dir", &place("directory"), "--workloads", "load"];
    for file in &wrong {
        let dataset = &format!("file:{file}");
        for arguments in [
            &["import", db, file][..],
            &["import", &place("new"), file],
            &["put", db, "oak", "--file", file],
            &["put", &place("new"), "oak", "--file", file],
            &["export", db, file],
            &["get", db, "oak", "--file", file],
            &[&bench[..], &["--json", file]].concat(),
            &[&bench[..], &["--series", file]].concat(),
            &["bench", "paper", "9", "--dir", &place("directory"), "--dataset", dataset],
        ] {
            refused(2, arguments, b"", file);
            assert_eq!(names(directory.path()), before, "{arguments:?}");
            assert_eq!(names(place("directory")), [] as [&str; 0], "{arguments:?}");
        }
    }
    assert_eq!(scan(db), "oak\ttall\n");
    // A pipe can be opened, and says nothing of its length.
    let (code, error) = shell(&format!("\"$0\" put {db} ash --file <(printf slender)"));
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(scan(db), "ash\tslender\noak\ttall\n");
}

/// Input without a record is reported as such.
#[test]
fn e3_empty_input_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let mark = "\u{feff}";
    for format in ["csv", "tsv"] {
        for input in ["", mark, "\n\n", &format!("{mark}\r\n")] {
            for key in [&[][..], &["--key", "id"]] {
                let arguments = [&["import", db, "--format", format][..], key].concat();
                refused(2, &arguments, input.as_bytes(), "the input is empty");
                assert!(!Path::new(db).exists());
            }
        }
        refused(2, &["import", db, "--format", format], b"\"\"\n", "only \"\"");
    }
    let separated = |input: &str| (input == mark || input.is_empty()).then_some("--no-header");
    for (format, inputs) in [
        ("jsonl", &["", mark, "\n \n"][..]),
        ("csv", &["", mark, "key,value\n", &format!("{mark}key,value")]),
        ("tsv", &["", "key\tvalue\n"]),
    ] {
        for input in inputs {
            let header = (format != "jsonl").then(|| separated(input)).flatten();
            let arguments = ["import", db, "--json", "--format", format].into_iter().chain(header);
            let counts = expect(0, &arguments.collect::<Vec<_>>(), input.as_bytes());
            assert_eq!(json(&counts)["imported"], 0, "{format} {input:?}");
        }
    }
}

/// Runs the program under a shell that does something to its standard output.
fn redirected(redirection: &str, arguments: &[&str]) -> Option<i32> {
    let script = format!("exec \"$0\" \"$@\" {redirection}");
    let status = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_spinney")])
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.unwrap().code()
}

#[test]
fn e2_output_that_is_lost_is_no_success() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    expect(0, &["put", db, "oak", "tall"], b"");
    let copy = directory.path().join("copy").to_str().unwrap().to_owned();
    for arguments in [
        &["scan", db][..],
        &["scan", db, "--json"],
        &["get", db, "oak"],
        &["get", db, "oak", "--raw"],
        &["export", db],
        &["export", db, "--format", "csv"],
        &["stats", db],
        &["verify", db, "--json"],
        &["keyspaces", "list", db],
        &["import", db, "--json"],
        &["backup", db, &copy],
        &["--help"],
        &["scan", "--help"],
        &["--version"],
    ] {
        for redirection in [">&-", ">/dev/full"] {
            assert_eq!(redirected(redirection, arguments), Some(1), "{arguments:?} {redirection}");
            let _ = std::fs::remove_dir_all(&copy);
        }
    }
    // What prints nothing loses nothing, and a null device is a place to write to.
    assert_eq!(redirected(">&-", &["put", db, "elm", "small"]), Some(0));
    for redirection in [">/dev/null", "1<>/dev/null"] {
        assert_eq!(redirected(redirection, &["scan", db]), Some(0));
    }
    // A reader that has had enough is no failure of ours.
    let script = "exec \"$0\" scan \"$1\" | :";
    let program = env!("CARGO_BIN_EXE_spinney");
    assert!(Command::new("sh").args(["-c", script, program, db]).status().unwrap().success());
}

#[test]
fn e3_bytes_go_both_ways_in_every_format() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let db = &database(directory.path());
    expect(0, &["put", db, "--hex", "00ff", "0a0d22"], b"");
    expect(0, &["put", db, "plain", "text"], b"");
    let whole = expect(0, &["scan", db, "--hex"], b"");
    for (name, flag, header) in [
        ("a.csv", "--hex", "key_hex,value_hex\n00ff,0a0d22\n"),
        ("a.tsv", "--base64", "key_base64\tvalue_base64\nAP8=\tCg0i\n"),
        ("a.jsonl", "--hex", "{\"key_hex\":\"00ff\",\"value_hex\":\"0a0d22\"}\n"),
        ("a.ndjson", "--base64", "{\"key_base64\":\"AP8=\",\"value_base64\":\"Cg0i\"}\n"),
    ] {
        let file = &place(name);
        expect(0, &["export", db, file, flag], b"");
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.starts_with(header), "{name}: {text}");
        // The file says itself what it is, and the flag may be given, too.
        for (copy, flags) in [("1", &[][..]), ("2", &[flag])] {
            let copy = &place(&format!("{name}{copy}.db"));
            expect(0, &[&["import", copy, file][..], flags].concat(), b"");
            assert_eq!(expect(0, &["scan", copy, "--hex"], b""), whole, "{name}");
        }
    }
    // Fields of other programs' files.
    let db = &place("named");
    expect(0, &["import", db, "--key", "k", "--value", "v", "--hex"], br#"{"k":"00FF","v":"61"}"#);
    let csv = b"v,k\nYg==,AQ==\n";
    let named = ["import", db, "--key", "k", "--value", "v", "--base64", "--format", "csv"];
    expect(0, &named, csv);
    assert_eq!(expect(0, &["scan", db, "--hex"], b""), "00ff\t61\n01\t62\n");
    let told = fails(7, &["import", db, "--key", "k", "--hex"], br#"{"k":"0g"}"#);
    assert!(told.contains("\"0g\" is not hexadecimal"), "{told}");
    // One record as JSON, too.
    let json = expect(0, &["get", db, "--json", "--hex", "00ff"], b"");
    assert_eq!(json, "{\"key_hex\":\"00ff\",\"value_hex\":\"61\"}\n");
}

#[test]
fn e3_the_name_of_a_file_says_its_format() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (csv, tsv) = ("name,height\noak,30\n", "name\theight\noak\t30\n");
    let lines = "{\"name\":\"oak\",\"height\":\"30\"}\n";
    for (name, text) in [
        ("x.csv", csv),
        ("x.CSV", csv),
        ("x.tsv", tsv),
        ("x.jsonl", lines),
        ("x.json", lines),
        ("x.ndjson", lines),
        ("x.txt", lines),
        ("x", lines),
    ] {
        for (mark, with) in [("", "plain"), ("\u{feff}", "marked")] {
            let (file, db) = (place(name), place(&format!("{name}.{with}.db")));
            std::fs::write(&file, format!("{mark}{text}")).unwrap();
            expect(0, &["import", &db, &file, "--key", "name", "--value", "height"], b"");
            assert_eq!(scan(&db), "oak\t30\n", "{name} {with}");
        }
    }
    // What is said counts for more.
    std::fs::write(place("y.csv"), lines).unwrap();
    let db = &place("y.db");
    expect(0, &["import", db, &place("y.csv"), "--key", "name", "--format", "jsonl"], b"");
    let utf16: Vec<u8> = "\u{feff}{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let told = fails(2, &["import", db, "--key", "name"], &utf16);
    assert!(told.contains("UTF-16"), "{told}");
}

#[test]
fn e3_an_open_quote_is_told_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let text = b"id,note\n1,\"a\nb\"\n2,\"never closed\n3,c\n4,d\n";
    let told = fails(2, &["import", db, "--key", "id", "--format", "csv"], text);
    assert!(told.contains("the quote that opens in line 4 is never closed"), "{told}");
    assert!(told.contains("1 records imported"), "{told}");
    assert_eq!(scan(db), "1\t{\"id\":\"1\",\"note\":\"a\\\\nb\"}\n");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Through files and the whole program: the same bytes.
    #[test]
    fn e3_arbitrary_bytes_are_the_same_again(
        records in prop::collection::btree_map(any::<Vec<u8>>(), any::<Vec<u8>>(), 1..20)
    ) {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let lines: String =
            records.iter().map(|(key, value)| format!("{}\t{}\n", hex(key), hex(value))).collect();
        let db = &place("db");
        expect(0, &["import", db, "--format", "tsv", "--hex", "--no-header"], lines.as_bytes());
        prop_assert_eq!(&expect(0, &["scan", db, "--hex"], b""), &lines);
        for name in ["x.csv", "x.tsv", "x.jsonl"] {
            for flags in [&[][..], &["--hex"], &["--base64"]] {
                let (file, copy) = (place(name), place(&format!("{name}{}.db", flags.concat())));
                expect(0, &[&["export", db, &file][..], flags].concat(), b"");
                expect(0, &[&["import", &copy, &file][..], flags].concat(), b"");
                prop_assert_eq!(&expect(0, &["scan", &copy, "--hex"], b""), &lines);
            }
        }
    }
}

#[test]
fn e4_refusals_are_few_and_short() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let told = fails(7, &["import", db, "--key", "wrong"], &lines(0, 5000, 3));
    assert_eq!(told.matches("is refused").count(), 10, "{told}");
    assert!(told.contains("more records are refused"), "{told}");
    assert!(told.contains("0 records imported (0 bytes), 5000 refused"), "{told}");
    // A key of megabytes, and a record that is only text.
    let long = "x".repeat(3 << 20);
    let input = format!("{{\"id\":\"{long}\"}}\n\"{long}\"\n{{\"id\":{{\"a\":\"{long}\"}}}}\n");
    let told = fails(7, &["import", db, "--key", "id"], input.as_bytes());
    assert!(told.contains("(3145728 bytes)") && told.len() < 1000, "{} bytes", told.len());
    let header = format!("{long}\n");
    let told = fails(2, &["import", db, "--format", "csv"], header.as_bytes());
    assert!(told.len() < 400, "{} bytes", told.len());
}

/// What an import makes of which no record is accepted goes away again; what was there stays.
#[test]
fn e4_a_failed_import_leaves_nothing_new() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(place("empty")).unwrap();
    let wrong: [(i32, &[&str], &[u8]); 4] = [
        (7, &["--key", "nobody"], b"{\"id\":1}\n"),
        (2, &["--key", "nobody", "--format", "csv"], b"id\n1\n"),
        (2, &["--format", "csv"], b"key,value\n\"a,b\n"),
        (2, &["--memory", "900K"], b""),
    ];
    for (code, arguments, input) in wrong {
        for to in ["db", "a/b/c", "empty"] {
            fails(code, &[&["import", &place(to)][..], arguments].concat(), input);
            assert_eq!(names(directory.path()), ["empty"], "{arguments:?}");
            assert_eq!(names(place("empty")), [] as [&str; 0], "{arguments:?}");
        }
    }
    let db = &place("db");
    fails(2, &["import", db, &place("no-file")], b"");
    assert!(!Path::new(db).exists());
    expect(0, &["put", db, "oak", "tall"], b"");
    fails(7, &["import", db, "--keyspace", "new", "--key", "nobody"], b"{\"id\":1}\n");
    assert_eq!(expect(0, &["keyspaces", "list", db], b""), "default\ttreeline\tlogged\n");
    fails(7, &["import", db, "--key", "nobody"], b"{\"id\":1}\n");
    assert_eq!(scan(db), "oak\ttall\n");
    // So does a record that is refused, and a keyspace that cannot be.
    let long = &"k".repeat(2000);
    fails(2, &["put", &place("other"), long, "v"], b"");
    fails(2, &["put", db, long, "v", "--keyspace", "new"], b"");
    fails(2, &["keyspaces", "create", &place("other"), long], b"");
    assert!(!Path::new(&place("other")).exists());
    assert_eq!(expect(0, &["keyspaces", "list", db], b"").lines().count(), 1);
    // Records that are in are not taken back with those that are not.
    let some = b"{\"id\":\"a\"}\nnonsense\n";
    fails(7, &["import", &place("some"), "--key", "id"], some);
    assert_eq!(expect(0, &["scan", &place("some"), "--keys-only"], b""), "a\n");
}

#[test]
fn e4_an_interrupted_import_says_how_far_it_came() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let db = &format!("{db}{code}");
        let mut import = start(&["import", db, "--json"]);
        let mut input = import.stdin.take().unwrap();
        input.write_all(&lines(0, 3000, 10)).unwrap();
        // It waits for the rest of this line.
        input.write_all(b"{\"key\":\"half").unwrap();
        nap(1500);
        kill_process(pid(&import), signal).unwrap();
        let output = ended(code, import);
        let counts = json(std::str::from_utf8(&output.stdout).unwrap());
        assert!(errors(&output).contains("interrupted: "), "{}", errors(&output));
        // What a slow machine left in the pipe is not in; what was counted is.
        let found = expect(0, &["scan", db, "--keys-only"], b"").lines().count();
        assert!(found > 0 && found <= 3000, "{found}");
        assert_eq!((&counts["imported"], &counts["rejected"]), (&found.into(), &0.into()));
        drop(input);
    }
    // Before the first record nothing is made.
    let other = &format!("{db}2");
    let import = start(&["import", other]);
    wait_for("the database", || Path::new(other).join("MANIFEST").exists());
    nap(300);
    kill_process(pid(&import), Signal::INT).unwrap();
    ended(130, import);
    assert!(!Path::new(other).exists());
}

#[test]
fn e4_an_interrupted_export_says_how_far_it_came() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    expect(0, &["import", db], &lines(0, 20_000, 100));
    let mut export = start(&["export", db]);
    let mut output = export.stdout.take().unwrap();
    let mut first = [0; 1000];
    output.read_exact(&mut first).unwrap();
    kill_process(pid(&export), Signal::INT).unwrap();
    nap(100);
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).unwrap();
    let told = errors(&ended(130, export));
    let whole = [&first[..], &rest].concat();
    let count = whole.iter().filter(|byte| **byte == b'\n').count();
    assert!(count < 20_000 && whole.ends_with(b"\"}\n"), "{count}");
    assert!(
        told.contains(&format!("interrupted: {count} records are in standard output")),
        "{told}"
    );
}

/// What a signal meets somewhere in these commands: they say how far they came, and leave nothing.
#[test]
fn e4_reading_commands_and_copies_are_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let db = &database(directory.path());
    expect(0, &["import", db], &lines(0, 60_000, 300));
    let backup = start(&["backup", db, &place("copy"), "--bytes-per-second", "100K"]);
    wait_for("the copy", || Path::new(&place("copy")).join("keyspace-00000001.spn").exists());
    nap(200);
    kill_process(pid(&backup), Signal::INT).unwrap();
    let told = errors(&ended(130, backup));
    assert!(told.contains("were copied; nothing of it is left in"), "{told}");
    assert!(!Path::new(&place("copy")).exists());
    expect(0, &["backup", db, &place("copy")], b"");
    // It would wait for days until its next piece.
    let slow = start(&["backup", db, &place("slow"), "--bytes-per-second", "1"]);
    wait_for("the copy", || Path::new(&place("slow")).join("keyspace-00000001.spn").exists());
    nap(200);
    kill_process(pid(&slow), Signal::TERM).unwrap();
    ended(143, slow);

    for (arguments, words) in [
        (&["verify", &place("copy")][..], "pages were read, and they are sound"),
        (&["restore", &place("copy"), &place("back")], "copied or verified; nothing of it is left"),
        (&["salvage", &place("copy"), &place("saved")], "were saved; nothing of it is left"),
    ] {
        let mut met = 0;
        for delay in 1..40 {
            let child = start(arguments);
            nap(delay * 10);
            let _ = kill_process(pid(&child), Signal::INT);
            let output = child.wait_with_output().unwrap();
            match output.status.code() {
                // Before it was asked to watch.
                None => assert_eq!(output.status.signal(), Some(2)),
                Some(130) => {
                    met += 1;
                    assert!(errors(&output).contains(words), "{}", errors(&output));
                }
                code => {
                    assert_eq!(code, Some(0), "{arguments:?}: {}", errors(&output));
                    let made = arguments.get(2).copied().unwrap_or_default();
                    let _ = std::fs::remove_dir_all(made);
                }
            }
            if met > 2 {
                break;
            }
        }
        assert!(met > 0, "{arguments:?} was never interrupted");
    }
    expect(0, &["verify", &place("copy")], b"");
}

#[test]
fn e5_a_benchmark_checks_everything_first() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path().to_str().unwrap();
    let no_such = &format!("{there}/no/such");
    for (arguments, words) in [
        (&["ycsb", "--dir", no_such][..], "there is no such directory"),
        (&["paper", "8", "--dir", no_such], "there is no such directory"),
        (&["paper", "9", "--dir", no_such], "there is no such directory"),
        (&["paper", "treeline", "9", "8", "--dir", no_such], "there is no such directory"),
        (&["paper", "treeline", "8", "7", "--dir", there], "7"),
        (&["paper", "treeline", "9", "10", "--dir", there, "--runs", "1"], "--runs"),
        (&["paper", "turtle", "fig9", "--dir", there], "--dir"),
        (&["paper", "turtle", "fig9"], "no fig9 of turtle"),
        (&["paper", "index-organized", "fig9", "--dir", there], "fig10"),
        (&["paper", "index-organized", "--dir", there, "--update-columns", "11"], "columns"),
        (&["paper", "index-organized", "fig4", "--dir", there, "--nodes", "1M"], "--nodes"),
        (&["paper", "index-organized", "fig11", "--dir", there, "--scale", "0"], "--scale"),
        (&["paper", "index-organized", "--dir", there, "--stores", "row,row"], "a store twice"),
        (&["paper", "index-organized", "--dir", there, "--durations", "2,1"], "--durations"),
        (&["paper", "tiered", "--engines", "oak,treeline", "--dir", there], "has no oak"),
        (&["paper", "tiered", "fig11", "--dir", there], "fig21"),
        (
            &["paper", "tiered", "fig21", "--engines", "treeline", "--dir", there],
            "fig21 sets --treeline.tiering exclusive",
        ),
        (
            &["paper", "tiered", "fig12", "--engines", "treeline", "--turtle.chi", "2"],
            "not among the engines",
        ),
        (
            &["paper", "tiered", "fig12", "--engines", "treeline", "--dir", no_such],
            "there is no such directory",
        ),
        (&["snapshot", "--dir", no_such], "there is no such directory"),
        (&["conflicts", "--dir", no_such], "there is no such directory"),
        (&["append", "--history", "h.edn", "--dir", no_such], "there is no such directory"),
        (&["append", "--history", no_such, "--dir", there], "create"),
        (&["append", "--history", no_such, "--dir", there, "--keys", "0"], "--keys 0 is not"),
        (&["ycsb", "--dir", there, "--treeline.colour", "green"], "colour"),
        (&["ycsb", "--dir", there, "--turtle.chi", "many"], "chi"),
        (&["ycsb", "--dir", there, "--treeline.poll-reads", "perhaps"], "poll-reads"),
        (&["ycsb", "--dir", there, "--memory", "100"], "--memory must be at least 1MiB"),
        (
            &["ycsb", "--dir", there, "--workloads", "c", "--kill-after", "0"],
            "--kill-after must be above 0",
        ),
        (&["ycsb", "--dir", there, "--kill-after", "1"], "not for d, e, queue and drift"),
        (
            &["ycsb", "--dir", there, "--kill-after", "1", "--workloads", "c,load"],
            "a last workload that is not load",
        ),
        (
            &["ycsb", "--dir", there, "--workloads", "c", "--kill-after", "1", "--operations", "9"],
            "does not go with --operations",
        ),
        (&["ycsb", "--dir", there, "--workloads", "groups", "--dataset", "words"], "groups"),
        (&["ycsb", "--dir", there, "--zipf", "authors", "--theta", "1"], "--theta below 1"),
        (&["snapshot", "--dir", there, "--theta", "nan"], "--theta must be above 0"),
        (&["snapshot", "--dir", there, "--threads", "0"], "--threads must be 1 to 1024"),
        (&["snapshot", "--dir", there, "--records", "1000G"], "--records must be below 2^32"),
        (&["snapshot", "--dir", there, "--record-size", "8"], "--record-size must be 16"),
        (&["snapshot", "--dir", there, "--seconds", "inf"], "--seconds must be above 0"),
        (&["snapshot", "--dir", there, "--distribution", "latest"], "uniform or zipfian"),
        (&["snapshot", "--dir", there, "--memory", "100"], "--memory must be at least 1MiB"),
        (&["conflicts", "--dir", there, "--seconds", "0"], "--seconds must be above 0"),
        (&["conflicts", "--dir", there, "--records", "9"], "--records must be at least 100K"),
        (&["conflicts", "--dir", there, "--records", "100K", "--record-size", "16"], "4MiB"),
        (&["conflicts", "--dir", there, "--memory", "100"], "--memory must be at least 1MiB"),
    ] {
        let output = spinney(&[&["bench"], arguments].concat(), b"");
        let told = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.contains(words), "{arguments:?}: {told}");
        assert!(output.stdout.is_empty(), "{arguments:?}: nothing is printed before");
    }
    assert_eq!(names(there), [] as [&str; 0]);
}

/// A signal to the parent alone or to the whole group, as a terminal sends it: what was measured is printed,
/// and neither files nor processes are left.
#[test]
fn e5_an_interrupted_benchmark_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path().to_str().unwrap();
    let children = |parent: Pid| -> Vec<String> {
        let parent = parent.as_raw_nonzero();
        let path = format!("/proc/{parent}/task/{parent}/children");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    };
    let common = ["bench", "ycsb", "--dir", there, "--engines", "treeline", "--records", "2K"];
    let rows = tempfile::NamedTempFile::new().unwrap();
    let ycsb = ["--workloads", "load,c", "--warmup", "0", "--seconds", "300", "--json"];
    let ycsb = [&common[..], &ycsb, &[rows.path().to_str().unwrap()]].concat();
    let figure = ["bench", "paper", "8", "--dir", there, "--records", "2K", "--seconds", "300"];
    let loads = ["bench", "paper", "9", "--dir", there, "--records", "3M", "--dataset", "uniform"];
    let history = tempfile::NamedTempFile::new().unwrap();
    let append = ["bench", "append", "--dir", there, "--transactions", "1G", "--history"];
    let append = [&append[..], &[history.path().to_str().unwrap()]].concat();
    let snapshot = ["bench", "snapshot", "--dir", there, "--records", "20K", "--seconds", "300"];
    let load = ["bench", "snapshot", "--dir", there, "--records", "20M", "--seconds", "300"];
    let takes = ["--seconds", "0.01", "--takes", "1000000000", "--engines", "treeline"];
    let takes = [&snapshot[..6], &takes].concat();
    let conflicts = ["bench", "conflicts", "--dir", there, "--records", "100K", "--seconds", "300"];
    for (arguments, of_group) in [
        (&ycsb[..], false),
        (&ycsb[..], true),
        (&figure[..], false),
        (&loads[..], false),
        (&append[..], false),
        (&snapshot[..], false),
        (&load[..], false),
        (&takes[..], false),
        (&conflicts[..], false),
    ] {
        rows.as_file().set_len(0).unwrap();
        let bench = start(arguments);
        let parent = pid(&bench);
        wait_for("a file", || !names(there).is_empty());
        if arguments == ycsb {
            wait_for("a row", || rows.as_file().metadata().unwrap().len() > 0);
        } else if arguments == figure {
            wait_for("a child", || !children(parent).is_empty());
        }
        nap(500);
        let children = children(parent);
        match of_group {
            true => kill_process_group(parent, Signal::INT).unwrap(),
            false => kill_process(parent, Signal::INT).unwrap(),
        }
        let output = ended(130, bench);
        assert!(errors(&output).contains("interrupted: "), "{}", errors(&output));
        assert_eq!(names(there), [] as [&str; 0], "{arguments:?}");
        for child in children {
            assert!(!Path::new(&format!("/proc/{child}")).exists(), "{child} runs");
        }
        if arguments == append {
            let lines = std::fs::read_to_string(history.path()).unwrap();
            assert!(lines.ends_with("]}\n"), "what was run is whole");
        }
        if arguments == ycsb {
            let table = String::from_utf8_lossy(&output.stdout);
            assert!(table.contains("| load "), "{table}");
            assert!(
                errors(&output).contains("1 of 2 workloads were measured"),
                "{}",
                errors(&output)
            );
        }
    }
}

#[test]
fn e6_an_interrupted_backup_can_be_run_again() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let db = &database(directory.path());
    expect(0, &["import", db], &lines(0, 20_000, 300));
    let whole = scan(db);
    expect(0, &["backup", db, &place("good")], b"");
    for again in ["backup", "restore", "salvage"] {
        let to = &place(again);
        let mut backup = start(&["backup", db, to, "--bytes-per-second", "100K"]);
        wait_for("the copy", || Path::new(to).join("keyspace-00000001.spn").exists());
        backup.kill().unwrap();
        backup.wait().unwrap();
        assert!(names(to).contains(&"UNFINISHED".to_owned()));
        fails(4, &["get", to, "k0000001"], b"");
        fails(4, &["put", to, "k", "v"], b"");
        // Something of the user's own is in the way, and stays.
        std::fs::write(format!("{to}/notes.txt"), "mine").unwrap();
        let from = if again == "backup" { db.clone() } else { place("good") };
        let told = fails(2, &[again, &from, to], b"");
        assert!(told.contains("notes.txt"), "{told}");
        std::fs::remove_file(format!("{to}/notes.txt")).unwrap();
        expect(0, &[again, &from, to], b"");
        assert_eq!(scan(to), whole);
    }
    for inside in [&format!("{db}/bk"), &format!("{db}/a/b"), db] {
        let told = fails(2, &["backup", db, inside], b"");
        assert!(!told.is_empty() && !Path::new(&format!("{inside}/UNFINISHED")).exists());
        fails(2, &["restore", &place("good"), inside], b"");
        fails(2, &["salvage", &place("good"), inside], b"");
    }
    assert!(!Path::new(&format!("{db}/bk")).exists());
    assert_eq!(scan(db), whole);
}

#[test]
fn e7_places_are_told_for_what_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (db, link) = (&place("db"), &place("link"));
    expect(0, &["put", db, "oak", "tall"], b"");
    std::os::unix::fs::symlink(place("nowhere"), link).unwrap();
    let words = format!("link is a link to {}, which is not there", place("nowhere"));
    for (code, arguments) in [
        (9, &["get", link, "oak"][..]),
        (9, &["stats", link]),
        (9, &["delete", link, "oak"]),
        (9, &["restore", link, &place("x")]),
        (9, &["salvage", link, &place("x")]),
        (2, &["put", link, "oak", "tall"]),
        (2, &["import", link]),
        (2, &["keyspaces", "create", link, "k"]),
        (2, &["backup", db, link]),
        (2, &["restore", db, link]),
        (2, &["salvage", db, link]),
    ] {
        let told = fails(code, arguments, b"");
        assert!(told.contains(&words), "{arguments:?}: {told}");
    }
    // A link that leads to a database is as good as the database.
    std::os::unix::fs::symlink(db, place("good")).unwrap();
    assert_eq!(expect(0, &["get", &place("good"), "oak"], b""), "tall\n");
    // A file is no directory.
    std::fs::write(place("file"), "text").unwrap();
    assert!(fails(2, &["put", &place("file"), "k", "v"], b"").contains("is not a directory"));
    let told = fails(9, &["scan", db, "--keyspace", "trees"], b"");
    assert!(told.contains("there is no keyspace \"trees\"; there is only \"default\""), "{told}");
}

#[test]
fn e7_a_database_is_made_in_an_empty_place_only() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(place("home")).unwrap();
    std::fs::write(place("home/letter.txt"), "dear").unwrap();
    for arguments in [
        &["put", &place("home"), "k", "v"][..],
        &["import", &place("home")],
        &["keyspaces", "create", &place("home"), "k"],
    ] {
        let told = fails(2, arguments, b"");
        assert!(told.contains("letter.txt"), "{told}");
    }
    assert_eq!(names(place("home")), ["letter.txt"]);
    // Names that only begin like those of a database are others'.
    for name in ["wallpaper.png", "MANIFESTO.txt", "keyspace-notes.spn", "lock.txt"] {
        let other = &place(&format!("{name}.d"));
        std::fs::create_dir(other).unwrap();
        std::fs::write(format!("{other}/{name}"), "mine").unwrap();
        fails(2, &["put", other, "k", "v"], b"");
        fails(2, &["backup", &place("other"), other], b"");
        assert_eq!(names(other), [name]);
    }
    // The root of a file system has this, and a making that was killed those.
    std::fs::create_dir_all(place("root/lost+found")).unwrap();
    expect(0, &["put", &place("root"), "k", "v"], b"");
    std::fs::create_dir(place("killed")).unwrap();
    for name in ["lock", "wal", "MANIFEST.new"] {
        std::fs::write(format!("{}/{name}", place("killed")), []).unwrap();
    }
    expect(0, &["put", &place("killed"), "k", "v"], b"");
    expect(0, &["put", &place("a/b/c"), "k", "v"], b"");
    for made in ["root", "killed", "a/b/c"] {
        assert_eq!(scan(&place(made)), "k\tv\n");
    }
}

/// Commands that find no database leave no file behind.
#[test]
fn e7_looking_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path().join("there").to_str().unwrap().to_owned();
    let other = directory.path().join("other").to_str().unwrap().to_owned();
    let missing = &format!("{there}/missing");
    std::fs::create_dir(&there).unwrap();
    for place in [&there, missing] {
        for arguments in [
            &["get", place, "k"][..],
            &["scan", place],
            &["export", place],
            &["stats", place],
            &["verify", place],
            &["delete", place, "k"],
            &["checkpoint", place],
            &["keyspaces", "list", place],
            &["keyspaces", "drop", place, "k"],
            &["backup", place, &other],
            &["restore", place, &other],
            &["salvage", place, &other],
        ] {
            fails(9, arguments, b"");
            assert_eq!(names(&there), [] as [&str; 0], "{arguments:?}");
            assert!(!Path::new(&other).exists(), "{arguments:?}");
        }
    }
    let report = directory.path().join("report").to_str().unwrap().to_owned();
    fails(9, &["export", &there, &report], b"");
    fails(9, &["get", &there, "k", "--file", &report], b"");
    assert!(!Path::new(&report).exists());
    assert_eq!(spinney(&["get", &there, "k"], b"").stdout, b"");
}

/// Expects an exit code and a word of what is said on stderr.
fn refused(code: i32, arguments: &[&str], input: &[u8], word: &str) {
    let error = fails(code, arguments, input);
    assert!(error.contains(word), "{arguments:?}: {error}");
}

/// What a command writes for its user never lands in a database's directory, through a link or not, and no database
/// is made in another's.
#[test]
fn e8_nothing_is_written_into_a_database() {
    let place = tempfile::tempdir().unwrap();
    let db = database(place.path());
    expect(0, &["put", &db, "a", "1"], b"");
    let before = names(&db);
    for name in ["wal", "keyspace-00000001.spn", "MANIFEST", "lock", "new.csv"] {
        let file = format!("{db}/{name}");
        refused(2, &["export", &db, &file], b"", "inside the directory of a database");
        refused(2, &["get", &db, "a", "--file", &file], b"", "inside the directory of a database");
    }
    let link = place.path().join("link.csv");
    std::os::unix::fs::symlink(Path::new(&db).join("wal"), &link).unwrap();
    let link = link.to_str().unwrap();
    refused(2, &["export", &db, link], b"", "inside the directory of a database");
    let there = place.path().to_str().unwrap();
    for file in [&format!("{db}/wal"), &format!("{db}/new.csv"), link] {
        for option in ["--json", "--series"] {
            let bench = ["bench", "ycsb", "--dir", there, "--workloads", "load", option, file];
            refused(2, &bench, b"", "inside the directory of a database");
        }
        let bench = ["bench", "append", "--dir", there, "--history", file];
        refused(2, &bench, b"", "inside the directory of a database");
    }
    let append = &["append", "--history", "h.edn"];
    for bench in [&["ycsb"][..], append, &["paper", "8"], &["paper", "9"], &["paper", "10"]] {
        let bench = [&["bench"], bench, &["--dir", &db]].concat();
        refused(2, &bench, b"", "inside the directory of a database");
    }
    for inner in ["inner", "deep/er"] {
        let inner = format!("{db}/{inner}");
        refused(2, &["put", &inner, "a", "1"], b"", "inside the directory of a database");
        refused(2, &["import", &inner, "-"], b"", "inside the directory of a database");
    }
    assert_eq!(names(&db), before);
    expect(0, &["verify", &db], b"");
    assert_eq!(scan(&db).lines().count(), 1);
}

/// A full disk and the limit of a file's size are errors with a code and a name, and no signal.
#[test]
fn e8_a_write_that_finds_no_room_is_no_signal() {
    let place = tempfile::tempdir().unwrap();
    let db = database(place.path());
    expect(0, &["put", &db, "a", &"1".repeat(100_000)], b"");
    let out = place.path().join("out.csv");
    let (code, error) = shell(&format!("ulimit -f 64; exec \"$0\" export {db} {}", out.display()));
    assert_eq!(code, Some(6), "{error}");
    assert!(error.contains("out.csv"), "{error}");
    // What an export made is removed if nothing came into it.
    let none = place.path().join("none.csv");
    let (code, error) = shell(&format!("ulimit -f 0; exec \"$0\" export {db} {}", none.display()));
    assert_eq!((code, none.exists()), (Some(6), false), "{error}");
    std::fs::write(&none, "old").unwrap();
    let (code, _) = shell(&format!("ulimit -f 0; exec \"$0\" export {db} {}", none.display()));
    assert_eq!((code, none.exists()), (Some(6), true));
    let (code, error) = shell(&format!("ulimit -f 64; exec \"$0\" put {db}-new a b"));
    assert_eq!(code, Some(6), "{error}");
    if Path::new("/dev/full").exists() {
        refused(6, &["export", &db, "/dev/full"], b"", "/dev/full");
    }
    expect(0, &["verify", &db], b"");
}

/// A line with more fields than the header names is refused, whichever fields are wanted.
#[test]
fn e3_surplus_fields_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let db = database(place.path());
    let lines = b"key,value\na,1\nb,2,3\nc,4\n";
    refused(7, &["import", &db, "-", "--format", "csv"], lines, "3 fields");
    let wanted = ["import", &db, "-", "--format", "csv", "--key", "key", "--value", "value"];
    refused(7, &wanted, lines, "3 fields");
    assert_eq!(scan(&db).lines().count(), 2);
}

/// Commands that only read keep as few files open as those that write.
#[test]
fn d4_reading_many_keyspaces_takes_few_descriptors() {
    let place = tempfile::tempdir().unwrap();
    let db = database(place.path());
    for number in 0..40 {
        expect(0, &["put", &db, "a", "1", "--keyspace", &format!("k{number}")], b"");
    }
    let copy = place.path().join("copy");
    let commands = [
        format!("get {db} a --keyspace k39"),
        format!("verify {db}"),
        format!("stats {db}"),
        format!("export {db} - --keyspace k7"),
        format!("backup {db} {}", copy.display()),
    ];
    for command in commands {
        let (code, error) = shell(&format!("ulimit -n 32; \"$0\" {command} > /dev/null"));
        assert_eq!(code, Some(0), "{command}: {error}");
    }
}
