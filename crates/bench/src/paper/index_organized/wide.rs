//! Figure 1: scans of a few of many columns, and inserts.
//!
//! ```text
//!   500 attributes of 4 bytes   [0 1] [2 3] .. [18 19] [20 .. 27] .. [252 .. 259] [260 .. 269] .. [490 .. 499]
//!   64 columns                  two each: 10           eight each: 30            ten each: 24
//! ```
//!
//! The baselines have at most 64 columns and keep each in whole words, so a column holds two attributes
//! or more. A scan reads all columns that its attributes are in. A record is 2,000 bytes long: `iot`
//! keeps records above 2,560 bytes in extents on disk.
//!
//! **Differs from the paper**, whose scans compare the first attribute with a bound: here every value
//! that is read is checked, which is more work.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use spinney_base::size::display_bytes;
use spinney_base::{Error, ErrorKind, Result, Runtime};

use super::lines::{Line, Lines, ratio};
use super::plan::{ATTRIBUTES, IndexOrganized, StoreName};
use super::published;
use super::ycsb::{open, say_gap};
use crate::columns::run::{Round, Widths, Work, measure};
use crate::columns::{ColumnStore, Load, Order, Shape, key_of};
use crate::distribution::{Chooser, Distribution, Generator};
use crate::paper::say;
use crate::parent::interrupted;

/// Columns of two, eight and ten attributes.
const TWOS: usize = 10;
const EIGHTS: usize = 30;
const TENS: usize = 24;

/// Bytes of an attribute.
const ATTRIBUTE: usize = 4;

const WIDTHS: [usize; TWOS + EIGHTS + TENS] = {
    let mut widths = [2 * ATTRIBUTE; TWOS + EIGHTS + TENS];
    let mut at = TWOS;
    while at < widths.len() {
        widths[at] = ATTRIBUTE * if at < TWOS + EIGHTS { 8 } else { 10 };
        at += 1;
    }
    widths
};

/// Returns the number of columns that the first attributes are in.
fn columns_of(attributes: usize) -> usize {
    let mut left = attributes * ATTRIBUTE;
    WIDTHS
        .iter()
        .take_while(|width| {
            let is_in = left > 0;
            left = left.saturating_sub(**width);
            is_in
        })
        .count()
}

/// Measures the figure.
pub(super) fn run(how: &IndexOrganized, directory: &Path, out: &mut dyn Write) -> Result<()> {
    let (shape, records, threads) = (Shape(&WIDTHS), how.wide.records, how.threads[0]);
    let data = display_bytes(records * shape.record_bytes());
    say(
        out,
        &format!(
            "\nfig1: {records} records of {ATTRIBUTES} attributes of {ATTRIBUTE} B ({data}), and as many inserts; {threads} threads. \
             A scan reads all records."
        ),
    )?;
    let (mut scans, mut inserts) = (vec![Vec::new(); how.wide.attributes.len()], Vec::new());
    for name in how.stores.iter().copied() {
        let own = directory.join(format!("{name}-wide"));
        let store = open(name, shape, how.memory, &own)?;
        store.load(Load { records, order: Order::Random, seed: how.seed })?;
        for (attributes, scans) in how.wide.attributes.iter().zip(&mut scans) {
            let columns = columns_of(*attributes);
            let all = Work::Scans { records: usize::try_from(records).unwrap_or(usize::MAX) };
            let round = Round {
                work: all,
                chooser: Chooser::new(Distribution::Uniform, Generator::Exact, 1.0, records),
                threads,
                operations: 1,
                columns: Widths { read: 1, update: 1, scan: columns },
                times: how.seconds.map(Duration::from_secs_f64),
                seed: how.seed,
            };
            let measured = measure(&*store, &round, how.interrupted)?;
            scans.push((measured.committed > 0).then(|| measured.rate() / 1e3));
        }
        inserts.push(Some(insert(how, &*store)? / 1e3));
        store.close()?;
    }
    tell(how, scans, inserts, out)
}

/// Inserts as many records as were loaded, behind them. Returns how many in a second.
fn insert(how: &IndexOrganized, store: &dyn ColumnStore) -> Result<f64> {
    let (records, threads, shape) = (how.wide.records, how.threads[0], store.shape());
    let batch = how.ycsb.operations as u64;
    let mut sessions = Vec::new();
    for _ in 0..threads {
        sessions.push(store.session()?);
    }
    let clock = Runtime::threads();
    std::thread::scope(|scope| {
        let each = sessions.into_iter().zip(0..).map(|(mut session, thread)| {
            scope.spawn(move || {
                let part = |thread: u64| records * thread / threads as u64;
                let (mut next, end) = (records + part(thread), records + part(thread + 1));
                let mut row = Vec::new();
                while next < end && !(how.interrupted)() {
                    let last = (next + batch).min(end);
                    session.transact(&mut |access| {
                        (next..last).try_for_each(|record| {
                            row.clear();
                            shape.fill_row(record, &mut row);
                            access.insert(&key_of(record), &row)
                        })
                    })?;
                    next = last;
                }
                Ok(())
            })
        });
        let each: Vec<_> = each.collect();
        each.into_iter().try_for_each(|thread| {
            let panicked = |_| Err(Error::new(ErrorKind::Io, "a client thread panicked"));
            thread.join().unwrap_or_else(panicked)
        })
    })?;
    if (how.interrupted)() {
        return Err(interrupted("the run was interrupted"));
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate with few digits")]
    Ok(records as f64 / clock.now().as_secs_f64().max(1e-9))
}

/// Prints the table.
fn tell(
    how: &IndexOrganized,
    scans: Vec<Vec<Option<f64>>>,
    inserts: Vec<Option<f64>>,
    out: &mut dyn Write,
) -> Result<()> {
    let at = |store| how.stores.iter().position(|one| *one == store);
    let gap = |of: &[Option<f64>], to, by| {
        let number = |store| of.get(at(store)?).copied().flatten();
        ratio(number(to), number(by))
    };
    let (row, column) = (StoreName::Row, StoreName::Column);
    let first = scans.first().map_or(&[][..], Vec::as_slice);
    let gaps = [gap(first, column, row), gap(&inserts, row, column)];
    let name = |attributes: &usize| format!("scans of {attributes} attributes");
    let mut lines: Vec<Line> = how
        .wide
        .attributes
        .iter()
        .zip(scans)
        .map(|(count, numbers)| Line { names: vec![name(count)], numbers, paper: "" })
        .collect();
    lines.push(Line { names: vec!["inserts".to_owned()], numbers: inserts, paper: "" });
    let title = "fig1: thousand records per second, scanned or inserted";
    Lines { title, names: &["work"], stores: &how.stores, digits: 1, lines }.print(out)?;
    say_gap(out, "The first scans, column / row", gaps[0], published::WIDE_SCANS)?;
    say_gap(out, "Inserts, row / column", gaps[1], published::WIDE_INSERTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::index_organized::plan::small;

    #[test]
    fn attributes_lie_in_columns() {
        assert_eq!(WIDTHS.iter().sum::<usize>(), ATTRIBUTES * ATTRIBUTE);
        assert_eq!([1, 2, 3, 20, 21, 28, 29, 500].map(columns_of), [1, 1, 2, 10, 11, 11, 12, 64]);
    }

    #[test]
    fn wide_records_are_scanned_and_inserted() {
        let directory = tempfile::tempdir().unwrap();
        let mut how = small(directory.path());
        how.seconds = [0.0, 0.2];
        let mut out = Vec::new();
        run(&how, directory.path(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for words in ["300 records of 500", "| scans of 5 attr", "| inserts", "Inserts, row / col"]
        {
            assert!(text.contains(words), "{words} is not in:\n{text}");
        }
    }
}
