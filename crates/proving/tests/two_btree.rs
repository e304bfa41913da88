//! The suite on Tiered-Indexing with one tier.

use spinney::EngineKind;
use spinney_proving::product::Spinney;

spinney_proving::suite!(btree, Spinney(EngineKind::TwoBTree));
