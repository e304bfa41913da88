//! One sentence for each workload: what its numbers show, and nothing that they do not.
//!
//! Of several engines it says which one was faster and by how much. Of one engine it says what most
//! of its I/O was, or how much of the time its writers waited.

use spinney_base::size::display_bytes;

use crate::plan::Workload;
use crate::row::Row;
use crate::table::{self, Line};

/// Rates whose ratio is below this are called equal: two runs of one engine differ by that much.
const EQUAL_BELOW: f64 = 1.05;

/// Share of the time of all threads from which the waits of writers are what a sentence tells.
const STALLED_FROM: f64 = 0.1;

/// Bytes of I/O per operation below which an engine hardly used the disk.
const HARDLY_BYTES: f64 = 1.0;

/// The sentences, in the order in which workloads first ended.
pub(crate) fn sentences(lines: &[Line]) -> Vec<String> {
    groups(lines).iter().map(|rows| sentence(rows)).collect()
}

/// What ran the same workload: for one that ran twice, its first runs and its second ones apart.
fn groups(lines: &[Line]) -> Vec<Vec<&Row>> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for Line { row, .. } in lines {
        let same = groups.iter_mut().find(|group| {
            group[0].workload == row.workload && group.iter().all(|one| one.engine != row.engine)
        });
        match same {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

fn sentence(rows: &[&Row]) -> String {
    let workload = &rows[0].workload;
    let meaning = workload.parse::<Workload>().map(Workload::meaning);
    let mut text = match meaning {
        Ok(meaning) => format!("{workload} ({meaning}):"),
        Err(_) => format!("{workload}:"),
    };
    let (sound, wrong): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.errors == 0);
    for row in wrong {
        let Row { engine, errors, .. } = row;
        text.push_str(&format!(" {engine} had {errors} errors, so its rate does not count."));
    }
    match sound[..] {
        [] => {}
        [row] => text.push_str(&format!(" {}.", alone(row))),
        _ => text.push_str(&format!(" {}.", compared(sound))),
    }
    text
}

/// Which of several engines was fastest, and by how much.
fn compared(mut rows: Vec<&Row>) -> String {
    rows.sort_by(|a, b| b.ops_per_second.total_cmp(&a.ops_per_second));
    let best = rows.remove(0);
    let times = |row: &Row| best.ops_per_second / row.ops_per_second.max(f64::MIN_POSITIVE);
    if best.ops_per_second <= 0.0 {
        return "no engine finished an operation".to_owned();
    }
    let engine = &best.engine;
    if let [other] = rows[..] {
        let (times, other) = (times(other), &other.engine);
        return if times < EQUAL_BELOW {
            format!("{engine} and {other} differed by less than 5 %")
        } else {
            format!("{engine} was {} as fast as {other}", shown(times))
        };
    }
    let others = rows.iter().map(|row| format!("{} {}", shown(times(row)), row.engine));
    format!("{engine} was fastest: {}", others.collect::<Vec<_>>().join(", "))
}

/// A ratio with three digits.
fn shown(times: f64) -> String {
    match times {
        0.0..10.0 => format!("{times:.2} times"),
        0.0..100.0 => format!("{times:.1} times"),
        0.0..1e6 => format!("{times:.0} times"),
        _ => "over a million times".to_owned(),
    }
}

/// What most of an engine's time or I/O was.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers are positive, and are shown with a few digits"
)]
fn alone(row: &Row) -> String {
    let engine = &row.engine;
    let stalled = row.stall_ms.unwrap_or(0.0) / 1e3 / (row.threads as f64 * row.seconds).max(1e-9);
    if stalled >= STALLED_FROM {
        let percent = 100.0 * stalled.min(1.0);
        return format!(
            "{engine}'s writers waited {percent:.0} % of the time for room in memory or log"
        );
    }
    let (what, bytes) = match row.read_bytes > row.write_bytes {
        true => ("reads", row.read_bytes),
        false => ("writes", row.write_bytes),
    };
    let each = table::per_operation(row, row.read_bytes + row.write_bytes);
    let mut text = if each < HARDLY_BYTES {
        format!("{engine} hardly used the disk, so memory and processor set its rate")
    } else {
        let each = table::per_operation(row, bytes);
        let unit = if each < 1e5 { " B" } else { "" };
        let rate = display_bytes((bytes as f64 / row.seconds.max(1e-9)) as u64);
        let each = table::bytes(each);
        format!("{engine}'s I/O was mostly {what}, {each}{unit} per operation ({rate}/s)")
    };
    let lookups = row.cache_hits.zip(row.cache_misses).map(|(hits, misses)| (hits, hits + misses));
    if let Some((hits, all)) = lookups.filter(|(_, all)| *all > 0) {
        let percent = 100.0 * hits as f64 / all as f64;
        text.push_str(&format!("; memory answered {percent:.0} % of its lookups"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::sample;

    fn told(rows: Vec<Row>) -> Vec<String> {
        let line = |row| Line { row, commits_per_flush: None, shape: None };
        sentences(&rows.into_iter().map(line).collect::<Vec<_>>())
    }

    #[test]
    fn the_faster_engine_is_named() {
        let rows = vec![
            sample("treeline", "load", 102.0),
            sample("treeline", "a", 400.0),
            sample("turtle", "load", 100.0),
            sample("turtle", "a", 50_000.0),
        ];
        assert_eq!(
            told(rows),
            [
                "load (inserts of all records): treeline and turtle differed by less than 5 %.",
                "a (half reads, half updates): turtle was 125 times as fast as treeline.",
            ]
        );
        let rows = [("x", 10.0), ("y", 42.0), ("z", 20.0)];
        let rows = rows.map(|(engine, rate)| sample(engine, "c", rate)).to_vec();
        assert_eq!(told(rows), ["c (reads): y was fastest: 2.10 times z, 4.20 times x."]);
        let rows = vec![sample("x", "c", 0.0), sample("y", "c", 0.0)];
        assert_eq!(told(rows), ["c (reads): no engine finished an operation."]);
        let rows = vec![sample("x", "c", 0.0), sample("y", "c", 1.0)];
        assert_eq!(told(rows), ["c (reads): y was over a million times as fast as x."]);
    }

    #[test]
    fn a_workload_that_runs_twice_is_compared_twice() {
        let rows = [("x", 10.0), ("x", 30.0), ("y", 20.0), ("y", 20.0)];
        let rows = rows.map(|(engine, rate)| sample(engine, "c", rate)).to_vec();
        assert_eq!(
            told(rows),
            [
                "c (reads): y was 2.00 times as fast as x.",
                "c (reads): x was 1.50 times as fast as y."
            ]
        );
    }

    /// 5,000 operations by 4 threads in one second each.
    #[test]
    fn one_engine_is_told_by_its_numbers() {
        let one = |change: &dyn Fn(&mut Row)| {
            let mut row = sample("turtle", "c", 5000.0);
            (row.read_bytes, row.write_bytes) = (0, 0);
            change(&mut row);
            told(vec![row]).remove(0)
        };
        assert_eq!(
            one(&|_| {}),
            "c (reads): turtle hardly used the disk, so memory and processor set its rate."
        );
        let lookups = |row: &mut Row| (row.cache_hits, row.cache_misses) = (Some(3), Some(1));
        assert_eq!(
            one(&|row| {
                (row.read_bytes, row.write_bytes) = (5000 << 10, 5000);
                lookups(row);
            }),
            "c (reads): turtle's I/O was mostly reads, 1024 B per operation (4.9MiB/s); \
             memory answered 75 % of its lookups."
        );
        assert_eq!(
            one(&|row| row.write_bytes = 5000 << 20),
            "c (reads): turtle's I/O was mostly writes, 1.0MiB per operation (4.9GiB/s)."
        );
        assert_eq!(
            one(&|row| row.stall_ms = Some(1000.0)),
            "c (reads): turtle's writers waited 25 % of the time for room in memory or log."
        );
    }

    #[test]
    fn an_engine_with_errors_is_not_compared() {
        let mut rows = ["x", "y"].map(|engine| sample(engine, "c", 1.0)).to_vec();
        rows[0].errors = 3;
        rows[1].write_bytes = 0;
        assert_eq!(
            told(rows),
            ["c (reads): x had 3 errors, so its rate does not count. \
              y's I/O was mostly reads, 8 B per operation (40.0KiB/s)."]
        );
        let mut rows = vec![sample("x", "hop", 1.0)];
        rows[0].errors = 3;
        assert_eq!(told(rows), ["hop: x had 3 errors, so its rate does not count."]);
    }
}
