//! The suite on TreeLine.

use spinney::EngineKind;
use spinney_proving::product::Spinney;

spinney_proving::suite!(treeline, Spinney(EngineKind::TreeLine));

/// Beside the toy, which keeps everything in memory and knows no pages.
mod beside_the_toy {
    use super::{EngineKind, Spinney};
    use spinney_proving::mirror::Mirror;
    use spinney_proving::toy::{Bug, Toy};

    spinney_proving::suite!(@tests Mirror(Spinney(EngineKind::TreeLine), Toy(Bug::None));
        model_of_logged_keyspaces);
}
