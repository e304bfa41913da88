//! Figures of papers as measurements of our own, each with the paper's numbers beside ours.
//!
//! Of TreeLine, [`factors`] is figures 8 and 10 (what each technique gains where it should matter),
//! [`segments`] is figure 9 and section 5.4.2 (what page grouping makes of keys). [`tiered`] is what
//! Tiered-Indexing shows of B+trees, and [`index_organized`] is what Index-Organized shows of storage
//! models.
//!
//! The papers' machine had a faster disk and its data sets were larger, so ratios are comparable
//! and rates are not.

pub mod factors;
pub mod index_organized;
pub mod segments;
pub mod tiered;

use std::io::Write;

use comfy_table::{CellAlignment, Table, presets};
use spinney_base::{Error, Result};

/// Prints a line of results.
fn say(out: &mut dyn Write, text: &str) -> Result<()> {
    writeln!(out, "{text}").map_err(|error| Error::io("write the results", error))
}

/// Draws a table whose first `names` columns are words and whose other columns are numbers.
fn draw(header: &[&str], names: usize, rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header.to_vec());
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(names) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}
