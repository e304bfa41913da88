//! The tables of transactions that people read.

use comfy_table::{CellAlignment, Table, presets};
use spinney_base::size::display_bytes;

use super::row::TransactionalRow;
use crate::table::{grouped, latency};

/// What the columns of the tables mean.
pub(crate) const LEGEND: &str = "\
commits/s  committed transactions per second of all threads together
p50, p99   latency in microseconds that 50 % and 99 % of the first kind of transaction did not
           exceed, with all their runs
retries    runs after conflicts, per hundred committed transactions
per sync   committed transactions per flush of the log to stable storage
memory     highest resident memory of the engine's process, checks not included
checks     whether what must hold did, after the run and after reopening";

/// Draws a table whose first `names` columns are words and whose others are numbers.
fn render(names: usize, header: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(names) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

#[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
fn ratio(one: u64, other: u64) -> f64 {
    one as f64 / other.max(1) as f64
}

/// Draws the table that each run prints.
pub(crate) fn draw(rows: &[TransactionalRow]) -> String {
    let header = [
        "engine",
        "threads",
        "commits/s",
        "p50 us",
        "p99 us",
        "retries",
        "per sync",
        "memory",
        "checks",
    ];
    let cells = |row: &TransactionalRow| {
        let first = row.kinds.first();
        let per_sync = row.commits_per_sync.map(|it| format!("{it:.1}"));
        vec![
            row.engine.clone(),
            row.threads.to_string(),
            grouped(row.committed_per_second),
            latency(first.map_or(0.0, |kind| kind.p50_us)),
            latency(first.map_or(0.0, |kind| kind.p99_us)),
            format!("{:.1}%", 100.0 * ratio(row.retries, row.committed)),
            per_sync.unwrap_or_else(|| "-".to_owned()),
            display_bytes(row.peak_rss_bytes),
            if row.broken.is_some() { "BROKEN" } else { "hold" }.to_owned(),
        ]
    };
    render(1, header.map(str::to_owned).to_vec(), rows.iter().map(cells))
}

/// Draws the rates in ratio to each peer with as many threads, if a peer was measured.
pub(crate) fn ratios(rows: &[TransactionalRow], peers: &[String]) -> Option<String> {
    let measured = |peer: &&String| rows.iter().any(|row| row.engine == **peer);
    let peers: Vec<&String> = peers.iter().filter(measured).collect();
    if peers.is_empty() {
        return None;
    }
    let mut header = vec!["engine".to_owned(), "threads".to_owned()];
    header.extend(peers.iter().map(|peer| format!("x {peer}")));
    let cells = |row: &TransactionalRow| {
        let mut cells = vec![row.engine.clone(), row.threads.to_string()];
        cells.extend(peers.iter().map(|peer| {
            let same =
                |other: &&TransactionalRow| other.engine == **peer && other.threads == row.threads;
            let base = rows.iter().find(same).map_or(0.0, |other| other.committed_per_second);
            let by = row.committed_per_second / base;
            if base > 0.0 { format!("{by:.2}") } else { "-".to_owned() }
        }));
        cells
    };
    Some(render(1, header, rows.iter().map(cells)))
}

/// Draws the latencies of each kind of transaction.
pub(crate) fn kinds(rows: &[TransactionalRow]) -> String {
    let header = [
        "engine",
        "transaction",
        "threads",
        "committed",
        "rolled",
        "retries",
        "p50 us",
        "p99 us",
        "max us",
    ];
    let cells = rows.iter().flat_map(|row| {
        row.kinds.iter().filter(|kind| kind.committed + kind.rolled_back > 0).map(|kind| {
            vec![
                row.engine.clone(),
                kind.name.clone(),
                row.threads.to_string(),
                kind.committed.to_string(),
                kind.rolled_back.to_string(),
                kind.retries.to_string(),
                latency(kind.p50_us),
                latency(kind.p99_us),
                latency(kind.max_us),
            ]
        })
    });
    render(2, header.map(str::to_owned).to_vec(), cells)
}

/// What the transactions of each engine do and do not protect against.
pub(crate) fn protection(rows: &[TransactionalRow]) -> Vec<String> {
    let mut sentences: Vec<String> = Vec::new();
    for row in rows {
        let sentence = format!("{} {}.", row.engine, row.unprotected);
        if !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    }
    sentences
}

/// What checks found.
pub(crate) fn broken(rows: &[TransactionalRow]) -> Vec<String> {
    let found = rows.iter().filter_map(|row| {
        let broken = row.broken.as_ref()?;
        Some(format!("{}, {} threads: BROKEN: {broken}", row.engine, row.threads))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::row::KindRow;
    use super::*;
    use crate::table::WIDTH;

    fn row(engine: &str, threads: usize, rate: f64) -> TransactionalRow {
        let kind = KindRow {
            name: "DepositChecking".to_owned(),
            committed: 999_999_999,
            rolled_back: 999_999,
            retries: 9_999_999,
            p50_us: 999_999.0,
            p99_us: 59.9e6,
            max_us: 59.9e6,
        };
        TransactionalRow {
            engine: engine.to_owned(),
            workload: "tpcc full".to_owned(),
            options: String::new(),
            threads,
            memory_bytes: None,
            durability: "sync".to_owned(),
            torn_writes: String::new(),
            seed: 1,
            seconds: 1.0,
            committed: 1000,
            committed_per_second: rate,
            rolled_back: 1,
            retries: 1234,
            kinds: vec![kind],
            log_flushes: Some(1),
            commits_per_sync: Some(99_999.9),
            read_bytes: 0,
            write_bytes: 0,
            space_bytes: 0,
            loaded_bytes: 0,
            peak_rss_bytes: (1 << 30) - 1,
            broken: None,
            unprotected: "protects nothing".to_owned(),
            version: String::new(),
        }
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let peers = ["rocksdb", "fjall", "redb", "canopydb", "sqlite"].map(str::to_owned);
        let mut rows = vec![row("treeline", 16, 1_234_567.0)];
        rows.extend(peers.iter().map(|peer| row(peer, 16, 1000.0)));
        rows[1].broken = Some("condition 1".to_owned());
        let ratios = ratios(&rows, &peers).unwrap();
        let text = [draw(&rows), ratios, kinds(&rows), LEGEND.to_owned()].join("\n");
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{}: {line}", line.chars().count());
        }
        for word in ["BROKEN", "hold", "123.4%", "1 234 567", "59.9 s"] {
            assert!(text.contains(word), "{word} is not in:\n{text}");
        }
        assert_eq!(broken(&rows), ["rocksdb, 16 threads: BROKEN: condition 1"]);
        assert_eq!(protection(&rows[..1]), ["treeline protects nothing."]);
    }

    #[test]
    fn ratios_refer_to_as_many_threads() {
        let rows = [
            row("treeline", 2, 300.0),
            row("treeline", 16, 800.0),
            row("redb", 2, 100.0),
            row("redb", 16, 200.0),
        ];
        let text = ratios(&rows, &["sqlite".to_owned(), "redb".to_owned()]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("x redb") && !lines[0].contains("x sqlite"), "{text}");
        assert!(lines[2].contains("3.00") && lines[3].contains("4.00"), "{text}");
        assert!(lines[4].contains("1.00"), "{text}");
        assert_eq!(ratios(&rows[..2], &["redb".to_owned()]), None);
    }
}
