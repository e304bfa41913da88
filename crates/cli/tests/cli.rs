//! The program from outside: what it prints and how it ends.

mod common;

use std::io::Write;
use std::process::{Command, Stdio};

use common::{database, expect, fails, spinney};

#[test]
fn records_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    fails(9, &["get", db, "oak"], b"");
    expect(0, &["put", db, "oak", "tall"], b"");
    expect(0, &["put", db, "elm", "-"], b"from\x00a\xffpipe");
    expect(0, &["put", db, "--hex", "00ff", "0102"], b"");
    assert_eq!(expect(0, &["get", db, "oak"], b""), "tall\n");
    assert_eq!(spinney(&["get", db, "elm", "--raw"], b"").stdout, b"from\x00a\xffpipe");
    assert_eq!(expect(0, &["get", db, "--hex", "00ff"], b""), "0102\n");
    assert_eq!(
        expect(0, &["get", db, "--json", "oak"], b""),
        "{\"key\":\"oak\",\"value\":\"tall\"}\n"
    );
    assert_eq!(expect(0, &["get", db, "-"], b"oak"), "tall\n");
    assert_eq!(expect(3, &["get", db, "ash"], b""), "");
    expect(0, &["delete", db, "oak"], b"");
    expect(0, &["delete", db, "oak"], b"");
    assert_eq!(expect(3, &["get", db, "oak"], b""), "");
}

#[test]
fn scans_take_ranges_both_ways() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    for key in ["a1", "a2", "b1", "b2", "c1"] {
        expect(0, &["put", db, key, "v", "--durability", "buffered"], b"");
    }
    let keys = |arguments: &[&str]| {
        let all = [&["scan", db, "--keys-only"], arguments].concat();
        expect(0, &all, b"").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys(&[]), "a1 a2 b1 b2 c1");
    assert_eq!(keys(&["--prefix", "b"]), "b1 b2");
    assert_eq!(keys(&["--prefix", "b", "--reverse"]), "b2 b1");
    assert_eq!(keys(&["--from", "a2", "--to", "b2"]), "a2 b1");
    assert_eq!(keys(&["--from", "b2", "--to", "a2"]), "");
    assert_eq!(keys(&["--reverse", "--limit", "2"]), "c1 b2");
    assert_eq!(expect(0, &["scan", db, "--prefix", "c"], b""), "c1\tv\n");
    assert_eq!(
        expect(0, &["scan", db, "--prefix", "c", "--json"], b""),
        "{\"key\":\"c1\",\"value\":\"v\"}\n"
    );
}

#[test]
fn an_export_imports_as_the_same_records() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    expect(0, &["put", db, "plain", "text, with \"quotes\"\nand lines"], b"");
    expect(0, &["put", db, "--hex", "00ff09", "fffe0d0a"], b"");
    expect(0, &["put", db, "empty", ""], b"");
    let whole = expect(0, &["scan", db, "--json"], b"");
    for format in ["jsonl", "csv", "tsv"] {
        let file = directory.path().join(format).to_str().unwrap().to_owned();
        let copy = directory.path().join(format!("{format}.db")).to_str().unwrap().to_owned();
        expect(0, &["export", db, &file, "--format", format], b"");
        let counts = expect(0, &["import", &copy, &file, "--format", format, "--json"], b"");
        assert!(counts.contains("\"imported\":3") && counts.contains("\"rejected\":0"), "{counts}");
        assert_eq!(expect(0, &["scan", &copy, "--json"], b""), whole, "{format}");
        let piped = spinney(&["export", &copy, "--format", format], b"").stdout;
        assert_eq!(piped, std::fs::read(&file).unwrap(), "{format}");
    }
}

#[test]
fn refused_records_are_named_and_the_rest_is_in() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let long = "x".repeat(2000);
    let lines = format!(
        "{{\"id\": \"a\", \"n\": 1}}\nnonsense\n{{\"id\": \"{long}\"}}\n{{\"n\": 2}}\n{{\"id\": \"z\"}}\n"
    );
    let error = fails(7, &["import", db, "--key", "id"], lines.as_bytes());
    for words in [
        "line 2 is refused",
        "line 3 is refused",
        "line 4 is refused",
        "2 records imported",
        "3 refused",
    ] {
        assert!(error.contains(words), "{words} is not in: {error}");
    }
    assert_eq!(expect(0, &["get", db, "a"], b""), "{\"id\": \"a\", \"n\": 1}\n");
    assert_eq!(expect(0, &["scan", db, "--keys-only"], b""), "a\nz\n");
    fails(2, &["import", db, "--format", "csv", "--key", "nobody"], b"id,name\n1,oak\n");
}

#[test]
fn dumps_of_other_engines_are_imported() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let ldb = "0x6F616B ==> 0x74616C6C\n0x00FF ==> 0x\nKeys in range: 2\n";
    let text = "oak ==> tall\nKeys in range: 1\n";
    let header = "VERSION=3\nformat=bytevalue\ntype=btree\nHEADER=END\n";
    let mdb = format!("{header} 00ff\n \n 6f616b\n 74616c6c\nDATA=END\n");
    let print = "VERSION=3\nformat=print\nHEADER=END\n \\00\\ff\n \n oak\n tall\nDATA=END\n";
    let both = "00ff\t\n6f616b\t74616c6c\n";
    for (name, format, dump, records) in [
        ("1", "ldb", ldb, both),
        ("2", "ldb-text", text, "6f616b\t74616c6c\n"),
        ("3", "mdb", &mdb, both),
        ("4", "mdb", print, both),
    ] {
        let (db, file) = (&place(name), &place(&format!("{name}.dump")));
        std::fs::write(file, dump).unwrap();
        let counts = expect(0, &["import", db, file, "--format", format, "--json"], b"");
        assert!(counts.contains("\"rejected\":0"), "{counts}");
        assert_eq!(expect(0, &["scan", db, "--hex"], b""), records, "{format}");
    }

    // A broken record is named and the others are in.
    let db = &place("broken");
    let broken = b"0x61 ==> 0x6\n0x62 ==> 0x63\nKeys in range: 2\n";
    let told = fails(7, &["import", db, "--format", "ldb"], broken);
    assert!(told.contains("line 1 is refused: \"6\" is not hexadecimal"), "{told}");
    assert!(told.contains("1 records imported") && told.contains("1 refused"), "{told}");
    assert_eq!(expect(0, &["scan", db], b""), "b\tc\n");
    // A dump that is cut off is an error; the records before the cut are in and durable.
    let db = &place("cut");
    let cut = format!("{header} 61\n 62\n 63\n 6");
    let told = fails(2, &["import", db, "--format", "mdb"], cut.as_bytes());
    assert!(told.contains("the dump is cut off: the input ends in line 8"), "{told}");
    assert!(told.contains("1 records imported"), "{told}");
    assert_eq!(expect(0, &["scan", db], b""), "a\tb\n");
    let missing = format!("{header} 61\nDATA=END\n");
    let db = &place("missing");
    let told = fails(2, &["import", db, "--format", "mdb"], missing.as_bytes());
    assert!(told.contains("line 6: the key in line 5 has no value"), "{told}");
    assert!(!directory.path().join("missing").exists(), "nothing was imported, nothing is left");
    for option in [&["--hex"][..], &["--key", "k"], &["--no-header"]] {
        let import = ["import", db, "--format", "ldb"];
        let told = fails(2, &[&import, option].concat(), ldb.as_bytes());
        assert!(told.contains("not for dumps"), "{told}");
    }
    // They are read, not written.
    fails(2, &["export", &place("1"), "--format", "ldb"], b"");
}

#[test]
fn keyspaces_are_apart() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    expect(0, &["keyspaces", "create", db, "trees"], b"");
    expect(0, &["keyspaces", "create", db, "cache", "--unlogged"], b"");
    fails(2, &["keyspaces", "create", db, "trees"], b"");
    expect(0, &["keyspaces", "create", db, "log", "--engine", "turtle"], b"");
    expect(0, &["put", db, "oak", "3", "--keyspace", "log"], b"");
    assert_eq!(expect(0, &["get", db, "oak", "--keyspace", "log"], b""), "3\n");
    let text = expect(0, &["stats", db], b"");
    for words in [
        "batches of ",
        "(set by itself), batches of ",
        "0 writes delayed; 0 snapshots that keep 0B, 0 were written out and 0 had to end",
    ] {
        assert!(text.contains(words), "{words} is not in: {text}");
    }
    let stats: serde_json::Value =
        serde_json::from_str(&expect(0, &["stats", db, "--json"], b"")).unwrap();
    let turtle = stats["keyspaces"].as_array().unwrap().last().unwrap()["turtle"].clone();
    assert_eq!(turtle["is_distance_automatic"], true, "{stats}");
    let bytes = |name: &str| turtle[name].as_u64().unwrap();
    assert!(bytes("leaf_bytes") < 2 << 20, "a leaf is cut to the memory: {stats}");
    // Memory has just moved to other keyspaces; leaves follow slowly.
    assert!(bytes("batch_bytes") <= bytes("leaf_bytes"), "{stats}");
    fails(2, &["keyspaces", "create", db, "other", "--engine", "hare"], b"");
    let list = expect(0, &["keyspaces", "list", db], b"");
    assert!(
        list.contains("trees\ttreeline\tlogged\n")
            && list.contains("cache\ttreeline\tnot logged\n"),
        "{list}"
    );
    expect(0, &["put", db, "oak", "1", "--keyspace", "trees"], b"");
    expect(0, &["put", db, "oak", "2", "--keyspace", "cache"], b"");
    assert_eq!(expect(0, &["get", db, "oak", "--keyspace", "trees"], b""), "1\n");
    assert_eq!(expect(0, &["get", db, "oak", "--keyspace", "cache"], b""), "2\n");
    fails(9, &["get", db, "oak"], b"");
    expect(0, &["keyspaces", "drop", db, "cache"], b"");
    fails(9, &["keyspaces", "drop", db, "cache"], b"");
    assert!(!expect(0, &["keyspaces", "list", db, "--json"], b"").contains("cache"));
}

#[test]
fn keyspaces_are_renamed_and_converted() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let list = || expect(0, &["keyspaces", "list", db], b"");
    fails(9, &["keyspaces", "rename", db, "oak", "elm"], b"");
    fails(9, &["keyspaces", "convert", db, "oak", "--engine", "turtle"], b"");
    assert!(!directory.path().join("db").exists());
    expect(0, &["keyspaces", "create", db, "trees", "--unlogged"], b"");
    expect(0, &["put", db, "oak", "tall", "--keyspace", "trees"], b"");
    expect(0, &["put", db, "elm", "old", "--keyspace", "trees"], b"");
    let records = "elm\told\noak\ttall\n";

    assert_eq!(expect(0, &["keyspaces", "rename", db, "trees", "woods"], b""), "");
    assert_eq!(list(), "woods\ttreeline\tnot logged\n");
    assert_eq!(expect(0, &["scan", db, "--keyspace", "woods"], b""), records);
    fails(9, &["keyspaces", "rename", db, "trees", "other"], b"");

    assert_eq!(expect(0, &["keyspaces", "convert", db, "woods", "--engine", "turtle"], b""), "");
    assert_eq!(list(), "woods\tturtle\tnot logged\n");
    assert_eq!(expect(0, &["scan", db, "--keyspace", "woods"], b""), records);
    expect(0, &["put", db, "ash", "new", "--keyspace", "woods"], b"");
    // An engine that the keyspace has already is no error.
    let said = expect(0, &["keyspaces", "convert", db, "woods", "--engine", "turtle"], b"");
    assert_eq!(said, "keyspace \"woods\" is kept by turtle already\n");
    expect(0, &["keyspaces", "convert", db, "woods", "--engine", "treeline"], b"");
    let records = format!("ash\tnew\n{records}");
    assert_eq!(expect(0, &["scan", db, "--keyspace", "woods"], b""), records);
    expect(0, &["verify", db], b"");

    expect(0, &["keyspaces", "create", db, "taken"], b"");
    let told = fails(2, &["keyspaces", "rename", db, "woods", "taken"], b"");
    assert!(told.contains("\"taken\""), "{told}");
    fails(2, &["keyspaces", "rename", db, "woods", ""], b"");
    fails(2, &["keyspaces", "rename", db, "woods"], b"");
    fails(9, &["keyspaces", "convert", db, "trees", "--engine", "turtle"], b"");
    fails(2, &["keyspaces", "convert", db, "woods", "--engine", "hare"], b"");
    fails(2, &["keyspaces", "convert", db, "woods"], b"");
    assert_eq!(list(), "woods\ttreeline\tnot logged\ntaken\ttreeline\tlogged\n");
}

#[test]
fn health_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    fails(9, &["verify", db], b"");
    expect(0, &["put", db, "oak", "tall"], b"");
    expect(0, &["checkpoint", db], b"");
    assert!(expect(0, &["verify", db], b"").contains("is sound"));
    let report: serde_json::Value =
        serde_json::from_str(&expect(0, &["verify", db, "--json"], b"")).unwrap();
    assert!(report["pages"].as_u64().unwrap() >= 1, "{report}");
    let stats: serde_json::Value =
        serde_json::from_str(&expect(0, &["stats", db, "--json"], b"")).unwrap();
    assert!(
        stats["keyspaces"].as_array().is_some_and(|keyspaces| !keyspaces.is_empty()),
        "{stats}"
    );
    assert!(expect(0, &["stats", db], b"").contains("keyspace"));
}

#[test]
fn the_command_line_is_checked() {
    for arguments in [
        &["frobnicate"][..],
        &["put", "db"],
        &["get", "db", "--hex", "zz"],
        &["scan", "db", "--prefix", "a", "--from", "b"],
        &["bench", "append"],
        &["bench", "append", "--history", "h.edn", "--engines", "oak"],
        &["bench", "append", "--history", "h.edn", "--turtle.chi", "8"],
        &["bench", "snapshot", "--turtle.chi", "8"],
        &["bench", "ycsb", "--engines", "oak"],
        &["bench", "ycsb", "--workloads", "g"],
        &["bench", "ycsb", "--records", "many"],
        &["bench", "ycsb", "--theta", "0"],
        &["bench", "ycsb", "--treeline.x"],
        &["bench", "ycsb", "--engines", "treeline", "--turtle.chi", "8"],
        &["bench", "ycsb", "--hare.chi", "8"],
        &["bench", "tpcc", "--engines", "oak"],
        &["bench", "tpcc", "--mix", "some"],
        &["bench", "tpcc", "--warehouses", "0"],
        &["bench", "tpcc", "--scale", "301"],
        &["bench", "tpcc", "--threads", "4,0"],
        &["bench", "tpcc", "--durability", "none"],
        &["bench", "tpcc", "--engines", "mixed", "--mixed.chi", "8"],
        &["bench", "smallbank", "--accounts", "100"],
        &["bench", "smallbank", "--hot-share", "1.5"],
    ] {
        fails(2, arguments, b"");
    }
    if !cfg!(feature = "peers") {
        let told = fails(2, &["bench", "ycsb", "--engines", "redb"], b"");
        assert!(
            told.contains("--features peers for rocksdb, rocksdb-rows, lmdb, redb, fjall, bf-tree"),
            "{told}"
        );
        let told = fails(2, &["bench", "tpcc", "--engines", "sqlite"], b"");
        assert!(
            told.contains("--features peers for rocksdb, fjall, redb, canopydb, sqlite"),
            "{told}"
        );
        let told = fails(2, &["bench", "ycsb", "--engines", "oak"], b"");
        assert!(!told.contains("--features"), "{told}");
    }
    assert!(expect(0, &["--help"], b"").contains("Exit codes:\n  0    done"));
}

#[test]
fn a_benchmark_of_transactions_checks_what_it_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (json, files) = (path("out.jsonl"), path("files"));
    std::fs::create_dir(&files).unwrap();
    let common = ["--engines", "mixed", "--threads", "1,2", "--operations", "200", "--warmup", "0"];
    let places = ["--dir", &files, "--json", &json];
    let tpcc = ["bench", "tpcc", "--warehouses", "1", "--scale", "300", "--explain"];
    let bank = ["bench", "smallbank", "--accounts", "500", "--hot-accounts", "5"];
    for (workload, words) in [
        (&tpcc[..], ["| mixed  |       2 |", "| mixed  | Stock-Level "]),
        (&bank[..], ["| mixed  |       2 |", "500 customers"]),
    ] {
        let table = expect(0, &[workload, &common, &places].concat(), b"");
        let of_all = ["commits/s", " hold |", "mixed is strictly serializable"];
        for word in of_all.iter().chain(&words) {
            assert!(table.contains(word), "{word} is not in: {table}");
        }
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
        let rows = std::fs::read_to_string(&json).unwrap();
        assert_eq!(rows.lines().count(), 2);
        for (row, threads) in rows.lines().zip([1, 2]) {
            let row: serde_json::Value = serde_json::from_str(row).unwrap();
            assert_eq!((&row["engine"], &row["threads"]), (&"mixed".into(), &threads.into()));
            let ended = ["committed", "rolled_back"].map(|name| row[name].as_u64().unwrap());
            assert_eq!(ended[0] + ended[1], 200, "{row}");
            assert!(row["broken"].is_null() && row["kinds"][0]["p99_us"].is_f64(), "{row}");
        }
        assert_eq!(std::fs::read_dir(&files).unwrap().count(), 0, "files are removed");
    }
}

#[test]
fn list_append_transactions_leave_their_history() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("history.edn");
    let there = directory.path().to_str().unwrap();
    let common = ["bench", "append", "--seed", "3", "--transactions", "200", "--dir", there];
    for engines in [&["--engines", "turtle"][..], &[]] {
        let history = ["--history", file.to_str().unwrap()];
        let told = expect(0, &[&common[..], &history, engines].concat(), b"");
        let words: Vec<&str> = told.split_whitespace().collect();
        let (committed, conflicts): (usize, usize) =
            (words[0].parse().unwrap(), words[3].parse().unwrap());
        assert!(told.contains(" transactions committed, ") && told.contains(" 0 are of unknown"));
        let text = std::fs::read_to_string(&file).unwrap();
        let of_kind = |kind| text.lines().filter(|line| line.contains(kind)).count();
        assert_eq!(of_kind(":type :invoke"), committed + conflicts);
        assert_eq!(of_kind(":type :ok"), committed);
        assert_eq!(of_kind(":type :fail"), conflicts);
        assert!(committed + conflicts >= 200);
        for (index, line) in text.lines().enumerate() {
            assert!(line.starts_with(&format!("{{:index {index}, :time ")), "{line}");
        }
        assert!(text.contains("[:append 15 1]") && text.contains("[:r 0 ["), "{text}");
    }
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "the history alone");
}

/// Where no engine is named, those are measured that have room in the memory.
#[test]
fn a_benchmark_leaves_out_what_has_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path().to_str().unwrap();
    let common = ["bench", "ycsb", "--memory", "8MiB", "--warmup", "0", "--operations", "1K"];
    let run = |records: &str| {
        let more = ["--workloads", "c", "--records", records, "--dir", files];
        expect(0, &[&common[..], &more].concat(), b"")
    };
    let table = run("80K");
    assert!(table.contains("iot is left out") && !table.contains("| iot "), "{table}");
    let table = run("2K");
    assert!(!table.contains("left out") && table.contains("| iot "), "{table}");
}

#[test]
fn a_benchmark_prints_a_table_and_writes_rows() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (json, series, files) = (path("out.jsonl"), path("series.csv"), path("files"));
    std::fs::create_dir(&files).unwrap();
    let common = [
        "bench",
        "ycsb",
        "--engines",
        "treeline",
        "--records",
        "2K",
        "--seconds",
        "0.2",
        "--warmup",
        "0",
        "--dir",
        &files,
    ];
    let all =
        [&common[..], &["--workloads", "load,a,e,queue", "--json", &json, "--series", &series]]
            .concat();
    let table = expect(0, &all, b"");
    for word in
        ["ops/s", "p99 us", "read B", "requests |", "memory", "| queue ", "e (95 % short scans"]
    {
        assert!(table.contains(word), "{word} is not in: {table}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    for word in ["pages a segment", "B written/op", "p99.9 us"] {
        assert!(!table.contains(word), "{word} is in: {table}");
    }
    let rows: Vec<serde_json::Value> = std::fs::read_to_string(&json)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 4);
    for row in &rows {
        assert_eq!(row["engine"], "treeline");
        assert_eq!(row["errors"], 0, "{row}");
        assert!(
            row["operations"].as_u64().unwrap() > 0 && row["io_by_purpose"].is_object(),
            "{row}"
        );
    }
    assert!(
        std::fs::read_to_string(&series)
            .unwrap()
            .starts_with("engine,workload,second,operations\n")
    );
    assert_eq!(std::fs::read_dir(&files).unwrap().count(), 0, "the engines' files are gone");

    let mut turtle = common;
    turtle[3] = "turtle";
    let chi = ["--workloads", "load,a,c,e", "--turtle.chi", "2", "--turtle.leaf", "64KiB"];
    let table = expect(0, &[&turtle[..], &chi, &["--explain"]].concat(), b"");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    assert!(table.contains("p99.9 us") && table.contains("pages written"), "{table}");
    let table = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(table.contains("chi 2 of 64.0KiB, leaves of 64.0KiB, "), "{table}");
    assert!(table.contains("pages of the tree"), "{table}");
    assert!(table.contains("turtle load: B written/op: "), "{table}");
    fails(2, &[&turtle[..], &["--workloads", "load", "--treeline.goal", "3"]].concat(), b"");

    let unknown = [&common[..], &["--workloads", "load", "--treeline.colour", "green"]].concat();
    let told = fails(2, &unknown, b"");
    assert!(told.contains("colour"), "{told}");
}

/// What a kill leaves is opened, and read without an error.
#[test]
fn a_benchmark_kills_its_engine_and_opens_it_again() {
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path().to_str().unwrap();
    let common = ["bench", "ycsb", "--records", "2K", "--warmup", "0", "--dir", files];
    let kill = ["--workloads", "load,a,c", "--seconds", "2", "--kill-after", "1.2"];
    for load in ["random", "bulk"] {
        let load = ["--load", load, "--durability", "none"];
        let table = expect(0, &[&common[..], &kill, &load].concat(), b"");
        let line = |engine: &str| {
            let cells: Vec<&str> = table
                .lines()
                .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
                .find(|cells| cells.len() == 7 && cells[1..3] == ["c", engine])
                .unwrap_or_else(|| panic!("no line of {engine} in: {table}"));
            cells[4].parse::<f64>().unwrap()
        };
        assert!(table.contains("s to open") && table.contains("s to 90 %"), "{table}");
        assert!(line("treeline") < 60.0 && line("turtle") < 60.0, "{table}");
        assert!(!table.contains("c (reads)"), "the killed workload has no row: {table}");
        assert_eq!(std::fs::read_dir(files).unwrap().count(), 0, "the engines' files are gone");
    }
}

/// Every figure but the last prints its table, on engines that are there.
#[test]
fn figures_of_a_paper_are_measured() {
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path().to_str().unwrap();
    let common = ["--records", "2K", "--seconds", "0.05", "--dir", files];
    let tiered = ["bench", "paper", "tiered", "--engines", "turtle,treeline", "--threads", "2"];
    let memory = ["--memory", "1MiB,2MiB", "--warmup", "0"];
    let figures = ["table1", "table2", "fig12", "fig13", "fig14", "fig15", "fig16", "fig17"];
    let tables = expect(0, &[&tiered[..], &common, &memory, &figures].concat(), b"");
    for figure in figures {
        assert!(tables.contains(&format!("\n{figure}: ")), "no {figure} in: {tables}");
    }
    assert_eq!(tables.matches("| turtle").count(), 19, "{tables}");
    for bare in [&["10"][..], &["treeline", "10"]] {
        let figure = [&["bench", "paper"], bare, &common, &["--runs", "1"]].concat();
        let table = expect(0, &figure, b"");
        assert!(table.contains("| forecast "), "{table}");
    }
    let help = expect(0, &["bench", "paper", "treeline", "8", "--help"], b"");
    assert!(help.contains("--technique"), "{help}");
    assert_eq!(std::fs::read_dir(files).unwrap().count(), 0, "the engines' files are gone");
}

#[test]
fn a_database_in_use_is_locked() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    expect(0, &["put", db, "oak", "tall"], b"");
    // An import holds the database for as long as its input is open.
    let mut import = Command::new(env!("CARGO_BIN_EXE_spinney"))
        .args(["import", db])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let locked = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        spinney(&["get", db, "oak"], b"").status.code() == Some(5)
    });
    assert!(locked, "somebody else could open the database");
    drop(import.stdin.take());
    assert!(import.wait().unwrap().success());
    assert_eq!(expect(0, &["get", db, "oak"], b""), "tall\n");
}

#[test]
fn damage_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let value = "a value that is found again in the file";
    expect(0, &["put", db, "oak", value], b"");
    expect(0, &["checkpoint", db], b"");
    let mut damaged = 0;
    for entry in std::fs::read_dir(db).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let found = bytes.windows(value.len()).position(|window| window == value.as_bytes());
        // The log holds the value too; damage there is of something no longer needed.
        if let Some(place) = found.filter(|_| !path.to_str().unwrap().contains("wal")) {
            bytes[place] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "the value is in some file");
    let error = fails(4, &["verify", db], b"");
    assert!(error.contains("expected"), "{error}");
    fails(4, &["get", db, "oak"], b"");
}

#[test]
fn backups_are_taken_and_restored() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let [copy, back] =
        ["copy", "back"].map(|name| directory.path().join(name).to_str().unwrap().to_owned());
    for key in ["oak", "elm", "ash"] {
        expect(0, &["put", db, key, "tall"], b"");
    }
    let told = expect(0, &["backup", db, &copy], b"");
    assert!(told.contains("1 keyspaces"), "{told}");
    expect(0, &["delete", db, "oak"], b"");
    let told = expect(0, &["restore", &copy, &back, "--json"], b"");
    let report: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&report["keyspaces"], &report["records"]), (&1.into(), &3.into()));
    for place in [&copy, &back] {
        assert_eq!(expect(0, &["get", place, "oak"], b""), "tall\n");
        expect(0, &["verify", place], b"");
    }
    fails(2, &["backup", db, &copy], b"");
    fails(2, &["restore", &copy, &back], b"");
    fails(9, &["restore", &format!("{copy}/nowhere"), &format!("{back}2")], b"");
    std::fs::remove_file(format!("{copy}/MANIFEST")).unwrap();
    fails(4, &["restore", &copy, &format!("{back}3")], b"");
}

#[test]
fn large_values_come_and_go_in_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let value: Vec<u8> =
        (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(path("in"), &value).unwrap();
    expect(0, &["put", db, "film", "--file", &path("in")], b"");
    expect(0, &["put", db, "piped", "-"], &value);
    expect(0, &["get", db, "film", "--file", &path("out")], b"");
    assert!(std::fs::read(path("out")).unwrap() == value);
    assert!(spinney(&["get", db, "piped", "--raw"], b"").stdout == value);
    let stats: serde_json::Value =
        serde_json::from_str(&expect(0, &["stats", db, "--json"], b"")).unwrap();
    assert_eq!(stats["keyspaces"][0]["large_values"], 2, "{stats}");
    for format in ["jsonl", "csv", "tsv"] {
        let copy = path(&format!("{format}.db"));
        expect(0, &["export", db, &path(format), "--format", format], b"");
        expect(0, &["import", &copy, &path(format), "--format", format], b"");
        expect(0, &["get", &copy, "film", "--file", &path("out")], b"");
        assert!(std::fs::read(path("out")).unwrap() == value, "{format}");
        assert!(expect(0, &["verify", &copy], b"").contains("2 large values"));
    }
    fails(2, &["put", db, "film", "--file", &path("missing")], b"");
    fails(2, &["put", db, "film", "value", "--file", &path("in")], b"");
    expect(3, &["get", db, "nobody", "--file", &path("nothing")], b"");
    assert!(!directory.path().join("nothing").exists());
}

#[test]
fn what_can_be_saved_is_saved() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    for key in ["oak", "elm", "ash"] {
        expect(0, &["put", db, key, "tall"], b"");
    }
    let told = expect(0, &["salvage", db, &place("whole")], b"");
    assert!(told.contains("3 records") && told.contains("everything was saved"), "{told}");
    assert_eq!(expect(0, &["get", &place("whole"), "oak"], b""), "tall\n");
    std::fs::remove_file(format!("{db}/MANIFEST")).unwrap();
    std::fs::remove_file(format!("{db}/wal")).unwrap();
    let told = expect(8, &["salvage", db, &place("rest"), "--json"], b"");
    let report: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(report["manifest"].is_string() && report["log"].is_string(), "{report}");
    let name = report["keyspaces"][0]["name"].as_str().unwrap();
    let found = expect(0, &["scan", &place("rest"), "--keyspace", name, "--keys-only"], b"");
    assert_eq!(found.split_whitespace().collect::<Vec<_>>(), ["ash", "elm", "oak"]);
    fails(2, &["salvage", db, &place("rest")], b"");
    fails(9, &["salvage", &place("nowhere"), &place("new")], b"");
}

#[test]
fn what_a_turtle_has_is_saved() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    expect(0, &["keyspaces", "create", db, "trees", "--engine", "turtle"], b"");
    for key in ["oak", "elm", "ash"] {
        expect(0, &["put", db, key, "tall", "--keyspace", "trees"], b"");
    }
    expect(0, &["delete", db, "elm", "--keyspace", "trees"], b"");
    let told = expect(0, &["salvage", db, &place("whole")], b"");
    assert!(told.contains("2 records") && told.contains("everything was saved"), "{told}");
    let saved = expect(0, &["get", &place("whole"), "oak", "--keyspace", "trees"], b"");
    assert_eq!(saved, "tall\n");
    // Manifest, log and slots are gone.
    std::fs::remove_file(format!("{db}/MANIFEST")).unwrap();
    std::fs::remove_file(format!("{db}/wal")).unwrap();
    let files = std::fs::read_dir(db).unwrap().map(|entry| entry.unwrap().path());
    let file = files.filter(|path| path.extension().is_some_and(|it| it == "spn")).max().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(file);
    file.unwrap().write_all(&[0; 4 * 4096]).unwrap();
    let told = expect(8, &["salvage", db, &place("rest"), "--json"], b"");
    let report: serde_json::Value = serde_json::from_str(&told).unwrap();
    let one = report["keyspaces"].as_array().unwrap().last().unwrap();
    assert!(
        one["checkpoint"].is_string() && one["lost"].as_array().unwrap().is_empty(),
        "{report}"
    );
    let name = one["name"].as_str().unwrap();
    let found = expect(0, &["scan", &place("rest"), "--keyspace", name, "--keys-only"], b"");
    assert_eq!(found.split_whitespace().collect::<Vec<_>>(), ["ash", "oak"]);
}

/// Runs the program with no more than so many MiB of its own memory.
#[cfg(target_os = "linux")]
fn confined(mebibytes: usize, arguments: &[&str]) {
    let limited = format!("ulimit -d {} && exec \"$0\" \"$@\"", mebibytes << 10);
    let output = Command::new("sh")
        .args(["-c", &limited, env!("CARGO_BIN_EXE_spinney")])
        .args(arguments)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?} in {mebibytes} MiB: {error}");
}

/// The longest values go through little more memory than the line that they are in.
#[test]
#[cfg(target_os = "linux")]
fn the_longest_values_take_little_memory() {
    const VALUE: usize = 64 << 20;
    // The program itself: threads, caches, buffers.
    const BASE: usize = 32;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let db = &database(directory.path());
    let bytes = "/".repeat(VALUE / 3 * 4);
    let lines = |name: &str, value: &str| format!("{{\"key\":\"{name}\",\"{value}\"}}\n");
    let text = "a\\n".repeat(VALUE / 2);
    let all = [
        lines("bytes", &format!("value_base64\":\"{bytes}")),
        lines("text", &format!("value\":\"{text}")),
    ];
    std::fs::write(path("in"), all.concat()).unwrap();
    let longest = all.iter().map(String::len).max().unwrap() >> 20;
    confined(BASE + longest * 9 / 8, &["import", db, &path("in"), "--memory", "4MiB"]);
    confined(BASE, &["export", db, &path("out"), "--memory", "4MiB"]);
    assert!(std::fs::read(path("out")).unwrap() == all.concat().as_bytes());
    confined(BASE, &["backup", db, &path("copy"), "--memory", "4MiB"]);
    confined(BASE, &["verify", &path("copy"), "--memory", "4MiB"]);
}

/// A keyspace, or a range of it, is compacted by one command, which says what came of it.
#[test]
fn d1_compact_gives_room_back() {
    let directory = tempfile::tempdir().unwrap();
    let db = &database(directory.path());
    let value = "v".repeat(300);
    for (name, engine) in [("one", "treeline"), ("other", "turtle")] {
        expect(0, &["keyspaces", "create", db, name, "--engine", engine], b"");
        let lines = (0..20_000).map(|n| format!("{{\"key\":\"k{n:05}\",\"value\":\"{value}\"}}\n"));
        let lines: String = lines.collect();
        expect(0, &["import", db, "--keyspace", name], lines.as_bytes());
        let spare: String =
            (0..20_000).filter(|n| n % 100 > 0).map(|n| format!("k{n:05}\n")).collect();
        // As many times as there are keys is too often for a program: one batch from a library.
        let options = spinney::Options::default().create_if_missing(false);
        let open = spinney::Db::open(db, options).unwrap();
        let keyspace = open.existing_keyspace(name).unwrap();
        for key in spare.lines() {
            keyspace.remove_with(key.as_bytes(), spinney::Durability::Buffered).unwrap();
        }
        open.close().unwrap();
    }
    let part = expect(
        0,
        &["compact", db, "--keyspace", "one", "--from", "k00000", "--to", "k00100", "--json"],
        b"",
    );
    let part: serde_json::Value = serde_json::from_str(&part).unwrap();
    assert!(part["bytes"].as_u64() < part["bytes_before"].as_u64(), "{part}");
    let all = || -> Vec<serde_json::Value> {
        let all = expect(0, &["compact", db, "--json"], b"");
        all.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    assert_eq!(all().len(), 2);
    // What the first one freed nobody holds any more.
    for one in &all() {
        assert!(one["bytes_after"].as_u64().unwrap() < 2 << 20, "{one}");
    }
    assert!(expect(0, &["compact", db, "--keyspace", "one"], b"").contains("gone through"));
    let stats: serde_json::Value =
        serde_json::from_str(&expect(0, &["stats", db, "--json"], b"")).unwrap();
    for keyspace in stats["keyspaces"].as_array().unwrap() {
        assert_eq!(keyspace["tombstones"], 0);
        assert!(keyspace["live_bytes"].as_u64().unwrap() < 200_000, "{keyspace}");
    }
    // What is left is there, and naming what is not there is an error.
    let left = expect(0, &["scan", db, "--keyspace", "other", "--limit", "1000"], b"");
    assert_eq!(left.lines().count(), 200);
    fails(2, &["compact", db, "--from", "k"], b"");
    fails(2, &["compact", db, "--keyspace", "one", "--from", "xyz", "--hex"], b"");
}
