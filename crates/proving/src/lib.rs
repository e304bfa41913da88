//! The proving ground: everything a Spinney database promises, tried against a model, against
//! crashes, faults, threads and kills.
//!
//! Reading order: [`database`] (the door through which all of it reaches what it tests), [`ops`]
//! (random operations), [`model`] (what they should answer), [`play`] (one operation on both),
//! [`ledger`] (what may be there after a crash), [`watch`] (what may be written when; `roots`, where pages are not written in place), [`crash`]
//! (the crash test), [`fault`] (one thing goes wrong), [`history`] and [`threads`] (what threads
//! saw), [`outage`] (power lost beside threads), [`kill`] (a process that dies), [`serial`] (whether transactions are serializable), [`mirror`] (two
//! products at once), [`mod@suite`] (all of it, mounted once per engine), [`tier`] (how long, and
//! which seeds). [`product`] is Spinney behind the door, [`toy`] a database small enough to be
//! broken on purpose: the harness is itself tested by bugs that it must find.
//!
//! Every run comes from a seed; a failure prints it, and `SPINNEY_SEED=n` replays it, with
//! `SPINNEY_TRACE=1` telling its story. `SPINNEY_PROVING=full` runs the large counts. The rules of
//! the protocols have their mutants in `mutants/`: patches that take a guard out and must turn a
//! test red.

pub mod crash;
pub mod database;
pub mod fault;
mod fault_views;
pub mod history;
pub mod kill;
pub mod ledger;
pub mod mirror;
pub mod model;
pub mod ops;
pub mod outage;
pub mod play;
pub mod product;
pub mod roots;
pub mod serial;
pub mod suite;
pub mod threads;
pub mod tier;
pub mod toy;
pub mod watch;
