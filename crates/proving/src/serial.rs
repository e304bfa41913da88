//! Histories of transactions, and whether they are strictly serializable.
//!
//! *White box*: a [`run`] records what each transaction read and wrote, with the LSN of its
//! commit, by which the versions of each key are in order. So the [`graph`] of dependencies is
//! exact: a cycle in it is a proof, and its absence is one.
//!
//! *Black box*: a list-append history, as `spinney bench append` writes it, says nothing of the
//! store. A published checker, the crate `adya`, judges it ([`judge`]), and beside it our graph,
//! which takes the order of versions from the [`lists`]. Both are tried on stores with [`planted`]
//! faults. Where they differ, the history is decided by hand and kept in `histories/`.

pub mod graph;
pub mod judge;
pub mod lists;
pub mod planted;
pub mod run;
