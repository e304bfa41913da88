//! Figure 9 and section 5.4.2: the segments that page grouping makes of sorted keys, and what that
//! saves in the index.
//!
//! Each data set is bulk-loaded three times: with single pages, with the paper's page grouping
//! (lines alone), and with ours (lines and steps). `goal` and `epsilon` are the paper's, 44 and 5
//! for records of 64 bytes, 2 and 0.5 for 1 KiB; the engine's own choice may differ. Both record
//! sizes load as many bytes.
//!
//! The authors' uniform keys are 20 M of the numbers from 1 to 2 * 10^9, ours are spread over all
//! 64-bit numbers. Lines see no difference: they depend on gaps relative to the mean gap, and one
//! number in a hundred taken at random leaves gaps that are as good as exponential (fit's own test
//! uses the authors' range and finds the same 1.76 pages a segment).

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use spinney::{Db, Durability, KeyspaceOptions, Options, TornWrites};
use spinney_base::size::display_bytes;
use spinney_base::{Error, Result};

use crate::dataset::{Dataset, DatasetName, SortedKeys};
use crate::paper::{draw, say};
use crate::parent::{Interrupted, OwnDirectory, interrupted};
use crate::shape::Shape;

/// What the engine needs besides its index.
const MEMORY_BYTES: u64 = 64 << 20;
/// Room for the index, for each record: several times what single pages of 44 records take.
const MEMORY_BYTES_PER_RECORD: u64 = 8;

/// What to load.
#[derive(Clone, Debug)]
pub struct Segments {
    /// Records of 64 bytes; a sixteenth as many of 1 KiB.
    pub records: u64,
    /// Their keys.
    pub datasets: Vec<DatasetName>,
    /// Seed of the keys.
    pub seed: u64,
    /// Where to put databases: a directory of this run's own is made inside and removed at the end.
    pub directory: PathBuf,
    /// Whether it is to end early.
    pub interrupted: Interrupted,
}

/// A size of records with the paper's parameters for it.
struct Size {
    bytes: usize,
    goal: &'static str,
    epsilon: &'static str,
    /// `goal + 2 * epsilon`.
    page_records_max: u64,
    /// How many times fewer index entries page grouping gave the authors, by our nearest data set.
    paper: [(&'static str, f64); 3],
}

const SIZES: [Size; 2] = [
    Size {
        bytes: 64,
        goal: "44",
        epsilon: "5",
        page_records_max: 54,
        paper: [("amazon-like", 4.8), ("osm-like", 1.9), ("uniform", 1.8)],
    },
    Size {
        bytes: 1024,
        goal: "2",
        epsilon: "0.5",
        page_records_max: 3,
        paper: [("amazon-like", 3.8), ("osm-like", 4.5), ("uniform", 1.8)],
    },
];

/// How pages are grouped: a name, and the engine's options for it.
const GROUPINGS: [(&str, [(&str, &str); 2]); 3] = [
    ("none", [("page-grouping", "off"), ("steps", "off")]),
    ("lines (paper)", [("page-grouping", "on"), ("steps", "off")]),
    ("lines and steps", [("page-grouping", "on"), ("steps", "on")]),
];

/// What a load made.
#[derive(Clone, Debug)]
struct Made {
    shape: Shape,
    page_records_max: u64,
    /// Bytes of keys and values.
    bytes: u64,
}

/// Loads everything and prints a table for each size; false when some page holds more records than
/// `goal + 2 * epsilon`.
///
/// # Errors
/// Whatever the engine says, and `Io` for a data set that cannot be read; `Cancelled` when it was
/// interrupted.
pub fn run(what: &Segments, out: &mut dyn Write) -> Result<bool> {
    let directory = OwnDirectory::create(&what.directory, false)?;
    let mut well = true;
    for size in &SIZES {
        let records = (what.records * SIZES[0].bytes as u64 / size.bytes as u64).max(1);
        let mut rows = Vec::new();
        for name in &what.datasets {
            let keys = Dataset::open(name, records, what.seed)?.sorted_keys(records);
            let mut single: Option<Made> = None;
            for (grouping, options) in GROUPINGS {
                let made = load(&directory.path, size, &keys, &options, what.interrupted)?;
                let paper = size.paper.iter().find(|(paper, _)| *paper == name.to_string());
                well &= made.page_records_max <= size.page_records_max;
                let base = single.get_or_insert_with(|| made.clone());
                rows.push(row(&name.to_string(), grouping, &made, base, paper.map(|one| one.1)));
            }
        }
        say(
            out,
            &format!(
                "{records} records of {} B, goal {}, epsilon {}: at most {} records a page",
                size.bytes, size.goal, size.epsilon, size.page_records_max
            ),
        )?;
        say(out, &draw(&HEADER, 2, rows))?;
    }
    say(
        out,
        "entries/: how many times fewer segments than single pages; the paper's data sets are like ours in kind only",
    )?;
    if !well {
        say(out, "some page holds more records than goal + 2 epsilon")?;
    }
    Ok(well)
}

const HEADER: [&str; 14] = [
    "keys",
    "page grouping",
    "1 page",
    "2",
    "4",
    "8",
    "16",
    "pages/segment",
    "% pages grouped",
    "most records",
    "index per GiB",
    "index /",
    "entries /",
    "paper",
];

#[expect(clippy::cast_precision_loss, reason = "ratios are shown with two digits")]
fn row(name: &str, grouping: &str, made: &Made, single: &Made, paper: Option<f64>) -> Vec<String> {
    let Shape { segments, pages, index_bytes, .. } = made.shape;
    let mut cells = vec![name.to_owned(), grouping.to_owned()];
    cells.extend(segments.map(|count| count.to_string()));
    let ratio = |single: u64, ours: u64| format!("{:.2}", single as f64 / ours.max(1) as f64);
    let grouped = grouping != GROUPINGS[0].0;
    let beside = |text: String| if grouped { text } else { "-".to_owned() };
    cells.extend([
        format!("{:.2}", made.shape.pages_per_segment()),
        format!("{:.1}", 100.0 * (1.0 - segments[0] as f64 / pages.max(1) as f64)),
        made.page_records_max.to_string(),
        per_gib(index_bytes, made.bytes),
        beside(ratio(single.shape.index_bytes, index_bytes)),
        beside(ratio(single.shape.segment_count(), made.shape.segment_count())),
        beside(paper.map_or_else(|| "-".to_owned(), |paper| format!("{paper:.1}"))),
    ]);
    cells
}

/// Bytes of index for a gibibyte of keys and values.
fn per_gib(index: u64, data: u64) -> String {
    let bytes = u128::from(index) * (1 << 30) / u128::from(data.max(1));
    display_bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Bulk-loads a new database, asks for its shape, verifies it and removes it.
fn load(
    directory: &Path,
    size: &Size,
    keys: &SortedKeys,
    options: &[(&str, &str)],
    is_interrupted: Interrupted,
) -> Result<Made> {
    let path = directory.join("segments");
    let memory = MEMORY_BYTES + keys.len() as u64 * MEMORY_BYTES_PER_RECORD;
    let db = Db::open(
        &path,
        Options::default()
            .memory(memory)
            .durability(Durability::Buffered)
            .torn_writes(TornWrites::Assume4k),
    )?;
    let mut keyspace_options =
        KeyspaceOptions::default().set("goal", size.goal)?.set("epsilon", size.epsilon)?;
    for (name, value) in options {
        keyspace_options = keyspace_options.set(name, value)?;
    }
    let keyspace = db.keyspace("keys", keyspace_options)?;
    let value = vec![0; size.bytes];
    let mut bytes = 0;
    keyspace.bulk_load(keys.iter().take_while(|_| !is_interrupted()).map(|key| {
        let value = &value[..size.bytes.saturating_sub(key.len())];
        bytes += (key.len() + value.len()) as u64;
        (key, value)
    }))?;
    let shape = Shape::from(&keyspace.stats());
    let go_on = || {
        if is_interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    if go_on().is_break() {
        return Err(interrupted("the load was interrupted"));
    }
    let page_records_max = db.verify_with(|_| go_on())?.page_records_max;
    drop(keyspace);
    db.close()?;
    std::fs::remove_dir_all(&path)
        .map_err(|error| Error::io(format!("remove {}", path.display()), error))?;
    Ok(Made { shape, page_records_max, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_have_a_row_for_every_data_set_and_grouping() {
        let directory = tempfile::tempdir().unwrap();
        let what = Segments {
            records: 30_000,
            datasets: vec![DatasetName::Uniform, DatasetName::Words],
            seed: 1,
            directory: directory.path().into(),
            interrupted: || false,
        };
        let mut out = Vec::new();
        assert!(run(&what, &mut out).unwrap());
        let text = String::from_utf8(out).unwrap();
        for (grouping, _) in GROUPINGS {
            let rows = text.lines().filter(|line| line.contains(&format!(" {grouping} ")));
            assert_eq!(rows.count(), 4, "{text}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
