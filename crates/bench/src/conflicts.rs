//! Conflicts of transactions, counted: which are false, and what snapshots and open transactions cost
//! puts.
//!
//! ```text
//!  disjoint    each thread reads and writes keys of its own         every conflict is a false one
//!  ranges      one thread scans, the others write beside its range  commits at the first try
//!  queue       one thread takes the head, the others push           commits at the first try
//!  cold        blind puts, with and without a snapshot              pages read per put
//!  abandoned   puts, with and without 256 open transactions         puts a second
//! ```
//!
//! Each case knows what its reads must find, so a case says also whether transactions were right. A case
//! has a database of its own, or two.

mod abandoned;
mod cold;
mod disjoint;
mod queue;
mod ranges;
mod world;

use std::io::Write;

use spinney_base::Result;

pub use world::ConflictsPlan;
use world::{Finding, in_a_database, write_error};

type Case = fn(&ConflictsPlan) -> Result<Finding>;

const CASES: [(&str, Case); 7] = [
    ("disjoint transactions, 30 reads and 5 writes each", |plan| {
        in_a_database(plan, plan.memory, disjoint::run)
    }),
    ("scans of a bounded range of 1,000 records", |plan| {
        in_a_database(plan, plan.memory, ranges::bounded)
    }),
    ("range(a..).limit(1000)", |plan| in_a_database(plan, plan.memory, ranges::limited)),
    ("first_key_value, and the removal of that record", |plan| {
        in_a_database(plan, plan.memory, queue::run)
    }),
    ("blind puts of cold keys", cold::run),
    ("256 abandoned transactions beside the puts", |plan| {
        in_a_database(plan, plan.memory, abandoned::beside)
    }),
    ("256 abandoned transactions among the puts", |plan| {
        in_a_database(plan, plan.memory, abandoned::among)
    }),
];

/// Runs every case and prints what was counted. Returns whether all transactions and values were right.
///
/// # Errors
/// Of the database, and of `out`.
pub fn run(plan: &ConflictsPlan, out: &mut dyn Write) -> Result<bool> {
    plan.check()?;
    let mut is_right = true;
    for (name, case) in CASES {
        let Finding { text, is_right: case_is_right } = case(plan)?;
        let wrong = if case_is_right { "" } else { "WRONG: " };
        writeln!(out, "{name}: {wrong}{text}").map_err(write_error)?;
        out.flush().map_err(write_error)?;
        is_right &= case_is_right;
    }
    Ok(is_right)
}
