//! The suite on Tiered-Indexing with one tier and with two.

use spinney::EngineKind;
use spinney_proving::product::Spinney;

spinney_proving::suite!(two_btree, Spinney(EngineKind::TwoBTree));
