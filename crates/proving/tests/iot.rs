//! The suite on Index-Organized.

use spinney::EngineKind;
use spinney_proving::product::Spinney;

spinney_proving::suite!(iot, Spinney(EngineKind::Iot));
