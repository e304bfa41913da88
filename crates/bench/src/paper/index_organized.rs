//! Figures of *Index-Organized storage model* that a machine without Optane modules can measure: the
//! three stores that the paper compares with, beside our engine `iot`.
//!
//! Stores run in one process, one after the other, on the same records and the same choices. The
//! paper's ratios have stores that go through an interpreter in the denominator; here they share
//! certifier, index and log with `iot` (see the crate `spinney-heap`), so ours are smaller.
//!
//! | figure | what |
//! |---|---|
//! | 1 | scans of a few of many columns, and inserts: `wide` |
//! | 3, 10, 12, 13 | look-ups, updates and scans of ten columns: `ycsb` |
//! | 4 | traversal of a linked list, without a store: `list` |
//! | 8 | readers of chains of versions, with and without prefetching: `chains` |
//! | 11, 14 to 17 | TPC-C: `tpcc` |
//! | 18, table 2 | inserts by what the log promises: `inserts` |
//!
//! Figures 2, 5 to 7 and 9 are drawings; table 1 is characteristics of the paper's memory.

mod chains;
mod inserts;
mod lines;
mod list;
mod plan;
mod published;
mod tpcc;
mod wide;
mod ycsb;

use std::io::Write;

use spinney_base::Result;

pub use plan::{
    ChainFigure, Figure, IndexOrganized, InsertFigures, ListFigure, LoadOrder, StoreName,
    TpccFigures, WideFigure, YcsbFigures,
};

use super::say;
use crate::parent::OwnDirectory;

/// Measures figures and prints their tables; false when tables of TPC-C are inconsistent.
///
/// # Errors
/// `InvalidArgument` for a plan that cannot be; `Full` when the records have no room in the budget;
/// `Corruption` for a wrong answer; `Cancelled`.
pub fn run(how: &IndexOrganized, figures: &[Figure], out: &mut dyn Write) -> Result<bool> {
    let figures = if figures.is_empty() { Figure::ALL } else { figures };
    how.check(figures)?;
    let directory = OwnDirectory::create(&how.directory, false)?;
    let (directory, mut all_hold) = (&directory.path, true);
    let names: Vec<&str> = how.stores.iter().map(|store| store.name()).collect();
    say(
        out,
        &format!("Stores: {}. x NAME is the number of iot / that of NAME.", names.join(", ")),
    )?;
    // Figures of one group share loads and runs, and are measured where the first of them is named.
    let mut done: Vec<Figure> = Vec::new();
    for figure in figures.iter().copied() {
        if done.contains(&figure) {
            continue;
        }
        let group: &[Figure] = match figure {
            Figure::Fig10 | Figure::Fig12 | Figure::Fig13 => {
                &[Figure::Fig10, Figure::Fig12, Figure::Fig13]
            }
            Figure::Fig18 | Figure::Table2 => &[Figure::Fig18, Figure::Table2],
            _ => std::slice::from_ref(&figure),
        };
        let group = group.iter().copied().filter(|one| figures.contains(one));
        let group: Vec<Figure> = group.collect();
        match figure {
            Figure::Fig1 => wide::run(how, directory, out)?,
            Figure::Fig3 => ycsb::hybrid(how, directory, out)?,
            Figure::Fig4 => list::run(how, out)?,
            Figure::Fig8 => chains::run(how, out)?,
            Figure::Fig10 | Figure::Fig12 | Figure::Fig13 => {
                ycsb::run(how, &group, directory, out)?;
            }
            Figure::Fig18 | Figure::Table2 => inserts::run(how, &group, directory, out)?,
            Figure::Fig11 | Figure::Fig14 | Figure::Fig15 | Figure::Fig16 | Figure::Fig17 => {
                all_hold &= tpcc::run(how, figure, directory, out)?;
            }
        }
        done.extend(group);
    }
    Ok(all_hold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_measured_once() {
        let directory = tempfile::tempdir().unwrap();
        let mut how = plan::small(directory.path());
        how.ycsb.orders.truncate(1);
        let mut out = Vec::new();
        let figures = [Figure::Fig13, Figure::Fig4, Figure::Fig10, Figure::Fig4];
        assert!(run(&how, &figures, &mut out).unwrap());
        let text = String::from_utf8(out).unwrap();
        let count = |words: &str| text.matches(words).count();
        assert_eq!([count("iot: loaded"), count("fig4:"), count("fig10:")], [1, 1, 1], "{text}");
        assert!(!text.contains("fig12"), "{text}");
        how.ycsb.columns.read = 11;
        assert!(run(&how, &[], &mut Vec::new()).is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
    }
}
