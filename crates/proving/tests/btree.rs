//! The suite on the B+tree of Tiered-Indexing.

use spinney::EngineKind;
use spinney_proving::product::Spinney;

spinney_proving::suite!(btree, Spinney(EngineKind::BTree));
