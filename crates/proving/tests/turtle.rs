//! The suite on TurtleKV.

use spinney::EngineKind;
use spinney_proving::product::Spinney;

spinney_proving::suite!(turtle, Spinney(EngineKind::Turtle));

/// Beside the toy, which keeps everything in memory and knows no batches.
mod beside_the_toy {
    use super::{EngineKind, Spinney};
    use spinney_proving::mirror::Mirror;
    use spinney_proving::toy::{Bug, Toy};

    spinney_proving::suite!(@tests Mirror(Spinney(EngineKind::Turtle), Toy(Bug::None));
        model_of_logged_keyspaces);
}
