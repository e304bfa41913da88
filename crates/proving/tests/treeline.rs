//! The suite on TreeLine.

use spinney::EngineKind;
use spinney_proving::product::Spinney;

spinney_proving::suite!(treeline, Spinney(EngineKind::TreeLine));
