//! Workloads, the driver trait and the runner behind `spinney bench`.
//!
//! A run is a [`Plan`] per engine. The parent process starts one child process per engine, so that
//! memory and I/O are the engine's own, and prints what the children report; the child opens the
//! engine through a [`Driver`] and runs the workloads in order on one state. Keys and values are
//! computed from ordinals and never stored, so every read is checked.
//!
//! Read [`plan`] first (what a run is), then [`dataset`] and [`value`] (keys and values),
//! [`distribution`] (which key next), [`driver`] (what an engine must do), `worker` and [`runner`]
//! (the threads), [`parent`] and `processes` (processes, files), `table` and `conclusion` (what
//! people read). [`recovery`] is about engines that were killed. [`append`], [`conflicts`] and [`snapshot`] are runs of their own, in one process.
//!
//! [`columns`] is about records of columns, and about the stores that `iot` is compared with.
//!
//! Workloads of transactions that are compared with peers have drivers, plans and tables of their
//! own: [`transactional`], then [`tpcc`] and [`smallbank`]. They share `processes` with the others.

pub mod append;
pub mod columns;
pub mod conflicts;
pub mod dataset;
pub mod distribution;
pub mod driver;
pub mod fields;
pub mod own;
pub mod paper;
pub mod parent;
pub mod plan;
pub mod record;
pub mod recovery;
pub mod row;
pub mod runner;
pub mod shape;
pub mod smallbank;
pub mod snapshot;
pub mod tpcc;
pub mod transactional;
pub mod value;

mod cascade;
mod conclusion;
mod permutation;
mod process;
mod processes;
mod queue;
mod table;
mod turns;
mod worker;

pub use driver::{Counters, Driver, OpenConfig, Session, Store};
pub use plan::{Durability, Plan, TornWrites, Workload};
pub use row::Row;
