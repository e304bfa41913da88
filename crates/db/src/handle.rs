//! What the handles of one open database share.

use std::sync::Arc;

use spinney_base::mapping::ReleaseIdle;

use crate::state::State;

/// What user-visible handles share; background jobs hold only the state inside, so that dropping
/// the last handle can stop them.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) state: Arc<State>,
    /// After the state.
    pub(crate) idle: Option<ReleaseIdle>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.state.life.is_of_this_process() {
            // The jobs are the parent's, and its threads may have held any lock at the fork. So
            // everything stays as it is, but for the inherited descriptor of the directory's lock,
            // which would keep the directory locked after the parent has ended.
            std::mem::forget(self.state.clone());
            std::mem::forget(self.idle.take());
            self.state.files.unlock_inherited();
            return;
        }
        self.state.life.close();
        self.state.stop_jobs();
        // The state itself may live on in a batch that was never written; the directory is free
        // now.
        self.state.files.unlock();
    }
}
