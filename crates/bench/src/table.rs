//! The table that people read: a line per workload and engine, ratios to the first peer of the same
//! run.

use comfy_table::{CellAlignment, Table, presets};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::size::display_bytes;

use crate::row::Row;
use crate::shape::Shape;

/// A finished workload, as the table shows it.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) row: Row,
    pub(crate) commits_per_flush: Option<f64>,
    pub(crate) shape: Option<Shape>,
}

/// Draws the table; `peer` is the engine that ratios refer to, if one was measured.
pub(crate) fn draw(lines: &[Line], peer: Option<&str>) -> String {
    let with_commits = lines.iter().any(|line| line.commits_per_flush.is_some());
    let mut header: Vec<String> = [
        "workload",
        "engine",
        "ops/s",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "pages read/op",
        "B read/op",
        "pages written/op",
        "B written/op",
        "space amp",
        "peak memory",
    ]
    .map(str::to_owned)
    .to_vec();
    if with_commits {
        header.push("commits/flush".to_owned());
    }
    if let Some(peer) = peer {
        header.push(format!("x {peer}"));
    }
    if lines.iter().any(|line| line.row.errors > 0) {
        header.push("errors".to_owned());
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(&header);
    for (index, line) in lines.iter().enumerate() {
        let mut cells = cells(&line.row);
        if with_commits {
            cells.push(
                line.commits_per_flush
                    .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            );
        }
        if let Some(peer) = peer {
            cells.push(
                ratio(lines, index, peer)
                    .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            );
        }
        if line.row.errors > 0 {
            cells.push(line.row.errors.to_string());
        }
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
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
#[expect(clippy::cast_precision_loss, reason = "numbers are shown with a few digits")]
pub(crate) fn written(lines: &[Line]) -> Vec<String> {
    let mut sentences = Vec::new();
    for Line { row, .. } in lines {
        let Some(purposes) = &row.io_by_purpose else { continue };
        let mut wrote: Vec<(&str, u64)> =
            purposes.iter().map(|(name, counts)| (name.as_str(), counts.write_bytes)).collect();
        wrote.retain(|(_, bytes)| *bytes > 0);
        wrote.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let each = |bytes: u64| bytes as f64 / row.operations.max(1) as f64;
        let parts: Vec<String> =
            wrote.iter().map(|(name, bytes)| format!("{name} {:.1}", each(*bytes))).collect();
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
fn cells(row: &Row) -> Vec<String> {
    let operations = row.operations.max(1) as f64;
    let per_operation = |bytes: u64| bytes as f64 / operations;
    let pages = |bytes: u64| format!("{:.3}", per_operation(bytes) / PAGE_BYTES as f64);
    let amplification = row.space_bytes as f64 / row.logical_bytes.max(1) as f64;
    vec![
        row.workload.clone(),
        row.engine.clone(),
        grouped(row.ops_per_second),
        format!("{:.1}", row.p50_us),
        format!("{:.1}", row.p99_us),
        format!("{:.1}", row.p999_us),
        pages(row.read_bytes),
        format!("{:.0}", per_operation(row.read_bytes)),
        pages(row.write_bytes),
        format!("{:.0}", per_operation(row.write_bytes)),
        format!("{amplification:.2}"),
        display_bytes(row.peak_rss_bytes),
    ]
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
        let text = draw(&lines, Some("rocksdb"));
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

    #[test]
    fn thousands_stand_apart() {
        assert_eq!(grouped(0.0), "0");
        assert_eq!(grouped(999.4), "999");
        assert_eq!(grouped(1_234_567.0), "1 234 567");
    }
}
