//! Databases in persistent memory: what `Sync` promised is there after the loss of cache lines, on each
//! engine, and on all of them in one database.

use spinney::EngineKind;
use spinney_proving::product::{EveryEngine, Spinney};
use spinney_proving::suite::crash_in_persistent_memory;

#[test]
fn crash_of_treeline() {
    crash_in_persistent_memory(&Spinney(EngineKind::TreeLine));
}

#[test]
fn crash_of_turtle() {
    crash_in_persistent_memory(&Spinney(EngineKind::Turtle));
}

#[test]
fn crash_of_two_btree() {
    crash_in_persistent_memory(&Spinney(EngineKind::TwoBTree));
}

#[test]
fn crash_of_iot() {
    crash_in_persistent_memory(&Spinney(EngineKind::Iot));
}

#[test]
fn crash_of_every_engine() {
    crash_in_persistent_memory(&EveryEngine::default());
}
