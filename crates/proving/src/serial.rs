//! Histories of transactions, and whether they are strictly serializable.
//!
//! A run records what each transaction read and wrote, with the LSN of its commit, by which the
//! versions of each key are in order. So the graph of dependencies is exact: a cycle in it is a
//! proof, and its absence is one.

pub mod graph;
pub mod run;
