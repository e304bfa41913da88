//! The proving ground: everything a Spinney database promises, tried against a model, against crashes, faults, threads and kills.
//!
//! Reading order: [`database`] (the door through which all of it reaches what it tests), [`ops`] (random operations), [`model`] (what they
//! should answer), [`play`] (one operation on both), [`ledger`] (what may be there after a crash), [`watch`] (what may be written when), [`crash`] (the crash
//! test), [`fault`] (one thing goes wrong), [`history`] and [`threads`] (what threads saw), [`kill`] (a process that dies), [`outage`] (power lost beside threads), [`mirror`] (two
//! products at once), [`suite`] (all of it,
//! mounted once per engine), [`tier`] (how long, and which seeds). [`product`] is Spinney behind the door, [`toy`] is a database small enough to be
//! broken on purpose: the harness is itself tested by bugs that it must find.
//!
//! Every run comes from a seed; a failure prints it, and `SPINNEY_SEED=n` replays it. `SPINNEY_PROVING=full` runs the large counts.

pub mod crash;
pub mod database;
pub mod fault;
pub mod history;
pub mod kill;
pub mod ledger;
pub mod mirror;
pub mod model;
pub mod ops;
pub mod outage;
pub mod play;
pub mod product;
pub mod suite;
pub mod threads;
pub mod tier;
pub mod toy;
pub mod watch;
