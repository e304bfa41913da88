//! The tables that people read: a line for each workload and engine.

use comfy_table::{CellAlignment, Table, presets};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::size::display_bytes;

use crate::row::Row;
use crate::shape::Shape;

/// Columns of a terminal that no line of a table or a sentence passes.
pub(crate) const WIDTH: usize = 100;

/// What the columns of [`draw`] mean.
pub(crate) const LEGEND: &str = "\
ops/s      operations per second of all threads together
p50, p99   latency in microseconds that 50 % and 99 % of the operations did not exceed
space      bytes on the disk per byte of keys and values
memory     highest resident memory of the engine's process
reads      requests that read from the disk, per operation; of peers, system calls and page faults
read B     bytes read from the disk per operation
writes     requests that write to the disk, per operation, background work included
written B  bytes written to the disk per operation
requests   reads and writes";

/// A finished workload, as the table shows it.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) row: Row,
    pub(crate) commits_per_flush: Option<f64>,
    pub(crate) shape: Option<Shape>,
}

/// Draws the table that each run prints.
#[expect(clippy::cast_precision_loss, reason = "numbers are shown with a few digits")]
pub(crate) fn draw(lines: &[Line]) -> String {
    let header = ["workload", "engine", "ops/s", "p50 us", "p99 us", "space", "memory"];
    let cells = |Line { row, .. }: &Line| {
        let space = row.space_bytes as f64 / row.logical_bytes.max(1) as f64;
        vec![
            row.workload.clone(),
            row.engine.clone(),
            grouped(row.ops_per_second),
            latency(row.p50_us),
            latency(row.p99_us),
            format!("{space:.2}"),
            display_bytes(row.peak_rss_bytes),
        ]
    };
    render(header.map(str::to_owned).to_vec(), lines.iter().map(cells))
}

/// Draws the table of I/O, which each run prints, too.
pub(crate) fn io(lines: &[Line]) -> String {
    let header = ["workload", "engine", "reads", "read B", "writes", "written B", "requests"];
    let cells = |Line { row, .. }: &Line| {
        vec![
            row.workload.clone(),
            row.engine.clone(),
            requests(per_operation(row, row.read_ios)),
            bytes(per_operation(row, row.read_bytes)),
            requests(per_operation(row, row.write_ios)),
            bytes(per_operation(row, row.write_bytes)),
            requests(per_operation(row, row.read_ios + row.write_ios)),
        ]
    };
    render(header.map(str::to_owned).to_vec(), lines.iter().map(cells))
}

/// Draws a third table, with what `--explain` adds; pages are those of one operation. `peer` is the engine that ratios refer to, if
/// one was measured.
#[expect(clippy::cast_precision_loss, reason = "numbers are shown with a few digits")]
pub(crate) fn details(lines: &[Line], peer: Option<&str>) -> String {
    let header = ["workload", "engine", "p99.9 us", "pages read", "pages written", "commits/flush"];
    let mut header = header.map(str::to_owned).to_vec();
    header.extend(peer.map(|peer| format!("x {peer}")));
    let shown = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |it| format!("{it:.2}"));
    let cells = |(index, line): (usize, &Line)| {
        let row = &line.row;
        let pages = |bytes: u64| format!("{:.3}", per_operation(row, bytes) / PAGE_BYTES as f64);
        let mut cells = vec![
            row.workload.clone(),
            row.engine.clone(),
            latency(row.p999_us),
            pages(row.read_bytes),
            pages(row.write_bytes),
            shown(line.commits_per_flush),
        ];
        cells.extend(peer.map(|peer| shown(ratio(lines, index, peer))));
        cells
    };
    render(header, lines.iter().enumerate().map(cells))
}

/// A table whose first two columns are names and whose others are numbers.
fn render(header: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// Breaks a text at spaces into lines of at most [`WIDTH`] columns, the later ones indented.
pub(crate) fn wrap(text: &str) -> String {
    const INDENT: &str = "  ";
    let mut wrapped = String::with_capacity(text.len());
    let mut columns = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if columns > 0 && columns + 1 + length > WIDTH {
            wrapped.push('\n');
            wrapped.push_str(INDENT);
            columns = INDENT.len();
        } else if columns > 0 {
            wrapped.push(' ');
            columns += 1;
        }
        wrapped.push_str(word);
        columns += length;
    }
    wrapped
}

/// The first row of `engine` that ran the `occurrence`-th time what `lines[index]` ran is its
/// counterpart.
fn ratio(lines: &[Line], index: usize, peer: &str) -> Option<f64> {
    let row = &lines[index].row;
    let same = |other: &Row, engine: &str| other.engine == engine && other.workload == row.workload;
    let occurrence = lines[..index].iter().filter(|line| same(&line.row, &row.engine)).count();
    let counterpart = lines.iter().filter(|line| same(&line.row, peer)).nth(occurrence)?;
    let base = counterpart.row.ops_per_second;
    (base > 0.0).then(|| row.ops_per_second / base)
}

/// What each row wrote, by purpose, for the engines that know it: bytes for each operation, the
/// most first.
pub(crate) fn written(lines: &[Line]) -> Vec<String> {
    let mut sentences = Vec::new();
    for Line { row, .. } in lines {
        let Some(purposes) = &row.io_by_purpose else { continue };
        let mut wrote: Vec<(&str, u64)> =
            purposes.iter().map(|(name, counts)| (name.as_str(), counts.write_bytes)).collect();
        wrote.retain(|(_, bytes)| *bytes > 0);
        wrote.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let parts: Vec<String> = wrote
            .iter()
            .map(|(name, bytes)| format!("{name} {:.1}", per_operation(row, *bytes)))
            .collect();
        if !parts.is_empty() {
            let (engine, workload) = (&row.engine, &row.workload);
            sentences.push(format!("{engine} {workload}: B written/op: {}", parts.join(", ")));
        }
    }
    sentences
}

/// The geometric mean of an engine's ratios to `peer`, over all workloads but `load`, and of `load`
/// alone.
pub(crate) fn means(lines: &[Line], peer: &str) -> Vec<String> {
    let mut engines: Vec<&str> = Vec::new();
    for line in lines {
        if line.row.engine != peer && !engines.contains(&line.row.engine.as_str()) {
            engines.push(&line.row.engine);
        }
    }
    let mut sentences = Vec::new();
    for engine in engines {
        let ratios: Vec<f64> = (0..lines.len())
            .filter(|&index| {
                lines[index].row.engine == engine && lines[index].row.workload != "load"
            })
            .filter_map(|index| ratio(lines, index, peer))
            .filter(|ratio| *ratio > 0.0)
            .collect();
        if let Some(mean) = geometric_mean(&ratios) {
            sentences
                .push(format!("{engine} runs at {mean:.2}x {peer} (geometric mean without load)"));
        }
    }
    sentences
}

#[expect(clippy::cast_precision_loss, reason = "a handful of workloads")]
fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    (!ratios.is_empty())
        .then(|| (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp())
}

#[expect(clippy::cast_precision_loss, reason = "numbers are shown with a few digits")]
pub(crate) fn per_operation(row: &Row, bytes: u64) -> f64 {
    bytes as f64 / row.operations.max(1) as f64
}

/// Microseconds; seconds from one on.
pub(crate) fn latency(microseconds: f64) -> String {
    match microseconds {
        0.0..1e3 => format!("{microseconds:.1}"),
        0.0..1e6 => format!("{microseconds:.0}"),
        _ => format!("{:.1} s", microseconds / 1e6),
    }
}

/// A number of requests for an operation: three digits behind the point where they count.
pub(crate) fn requests(requests: f64) -> String {
    let digits = if requests < 10.0 { 3 } else { 1 };
    format!("{requests:.digits$}")
}

/// A number of bytes that fits a narrow column.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes are positive, and are shown with a few digits"
)]
pub(crate) fn bytes(bytes: f64) -> String {
    if bytes < 1e5 { format!("{bytes:.0}") } else { display_bytes(bytes as u64) }
}

/// A whole number with its thousands apart: `1 234 567`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are small and positive"
)]
pub(crate) fn grouped(number: f64) -> String {
    let digits = (number.round() as u64).to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{PurposeRow, sample};

    fn line(engine: &str, workload: &str, ops_per_second: f64) -> Line {
        Line { row: sample(engine, workload, ops_per_second), commits_per_flush: None, shape: None }
    }

    #[test]
    fn ratios_refer_to_the_same_workload_of_the_peer() {
        let lines = [
            line("treeline", "load", 50.0),
            line("treeline", "a", 400.0),
            line("treeline", "c", 100.0),
            line("rocksdb", "load", 100.0),
            line("rocksdb", "a", 100.0),
            line("rocksdb", "c", 100.0),
        ];
        assert_eq!(ratio(&lines, 0, "rocksdb"), Some(0.5));
        assert_eq!(ratio(&lines, 1, "rocksdb"), Some(4.0));
        assert_eq!(ratio(&lines, 4, "rocksdb"), Some(1.0));
        assert_eq!(
            means(&lines, "rocksdb"),
            ["treeline runs at 2.00x rocksdb (geometric mean without load)"]
        );
        let text = details(&lines, Some("rocksdb"));
        assert!(text.contains("x rocksdb") && text.contains("4.00"), "{text}");
    }

    #[test]
    fn what_was_written_is_told_by_purpose() {
        let mut known = line("turtle", "a", 1.0);
        let bytes = |write_bytes| PurposeRow { write_bytes, ..PurposeRow::default() };
        let purposes = [("flush", 5000), ("log", 12_500), ("lookup", 0)];
        let purposes = purposes.map(|(name, written)| (name.to_owned(), bytes(written)));
        known.row.io_by_purpose = Some(purposes.into());
        let mut nothing = line("turtle", "c", 1.0);
        nothing.row.io_by_purpose = Some([("lookup".to_owned(), bytes(0))].into());
        // 5,000 operations each.
        assert_eq!(
            written(&[known, nothing, line("rocksdb", "a", 1.0)]),
            ["turtle a: B written/op: log 2.5, flush 1.0"]
        );
    }

    /// All tables hold the longest names and numbers that are likely.
    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let mut widest = line("rocksdb", "workload", 12_345_678.0);
        widest.commits_per_flush = Some(12_345.67);
        widest.row.engine = "rocksdb-rows".to_owned();
        (widest.row.p50_us, widest.row.p99_us, widest.row.p999_us) = (999_999.0, 59.9e6, 599.9e6);
        widest.row.read_bytes = (widest.row.operations << 20) - 1;
        widest.row.write_bytes = (widest.row.operations << 30) - 1;
        (widest.row.read_ios, widest.row.write_ios) = (6_172_839, 617_283_900_000);
        (widest.row.space_bytes, widest.row.logical_bytes) = (99_999, 1000);
        widest.row.peak_rss_bytes = (1 << 30) - 1;
        let lines = [widest, line("rocksdb", "load", 1.0)];
        let tables = [draw(&lines), io(&lines), details(&lines, Some("rocksdb"))];
        let text = [&tables.join("\n"), LEGEND].join("\n");
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{}: {line}", line.chars().count());
        }
        for table in &tables {
            assert_eq!(table.lines().count(), 4, "a line for each row:\n{table}");
        }
        for word in ["12 345 678", "999999", "59.9 s", "1024.0KiB", "1024.0MiB", "100.00"] {
            assert!(text.contains(word), "{word} is not in:\n{text}");
        }
        let headers = tables[..2].iter().flat_map(|table| table.lines().next());
        let headers = headers.flat_map(|line| line.split('|').map(str::trim).skip(3));
        for header in headers {
            let meaning = |line: &str| {
                line.starts_with(header.trim_end_matches(" us")) || line.starts_with("p50, p99 ")
            };
            assert!(header.is_empty() || LEGEND.lines().any(meaning), "{header} has no meaning");
        }
    }

    #[test]
    fn requests_are_for_each_operation() {
        // 5,000 operations, 10 reads and 20 writes.
        let table = io(&[line("treeline", "c", 1.0)]);
        let cells: Vec<&str> = table.lines().nth(2).unwrap().split('|').map(str::trim).collect();
        assert_eq!(cells[3..8], ["0.002", "8", "0.004", "16", "0.006"]);
        assert_eq!([0.0, 9.99, 12.34].map(requests), ["0.000", "9.990", "12.3"]);
    }

    #[test]
    fn long_texts_are_broken_at_spaces() {
        assert_eq!(wrap("short"), "short");
        let text = "words ".repeat(50);
        let wrapped = wrap(text.trim_end());
        assert!(wrapped.lines().count() > 2);
        assert!(wrapped.lines().all(|line| line.len() <= WIDTH), "{wrapped}");
        assert!(wrapped.lines().skip(1).all(|line| line.starts_with("  words")), "{wrapped}");
        assert_eq!(wrapped.split_whitespace().count(), 50);
        let path = "p".repeat(150);
        assert_eq!(wrap(&format!("at {path}")), format!("at\n  {path}"));
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!(grouped(0.0), "0");
        assert_eq!(grouped(999.4), "999");
        assert_eq!(grouped(1_234_567.0), "1 234 567");
    }
}
