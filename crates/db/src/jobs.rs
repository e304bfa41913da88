//! The database's own background jobs. Those of keyspaces are in their
//! [`KeyspaceState`](crate::keyspace_state::KeyspaceState).

use std::time::Duration;

use spinney_base::shim::Mutex;
use spinney_base::{Result, Task};

/// Poll interval of a job when nothing is open. Opening a keyspace wakes it.
pub(crate) const NOTHING_OPEN: Duration = Duration::from_secs(10);

/// One job, from its start to its stop.
#[derive(Debug)]
pub(crate) struct Job(Mutex<Option<Task>>);

impl Job {
    pub(crate) fn none() -> Job {
        Job(Mutex::new(None))
    }

    /// Keeps the task that `start` has started.
    pub(crate) fn start(&self, start: impl FnOnce() -> Result<Task>) -> Result<()> {
        *self.0.lock() = Some(start()?);
        Ok(())
    }

    /// Lets the job run now, if there is one.
    pub(crate) fn wake(&self) {
        if let Some(task) = &*self.0.lock() {
            task.wake();
        }
    }

    /// Takes the task out. The caller stops it.
    pub(crate) fn take(&self) -> Option<Task> {
        self.0.lock().take()
    }

    /// Stops the job, if there is one, and waits for its end.
    pub(crate) fn stop(&self) {
        if let Some(task) = self.take() {
            task.stop();
        }
    }
}

/// The jobs of one open database.
#[derive(Debug)]
pub(crate) struct Jobs {
    pub(crate) log: Job,
    pub(crate) checkpoint: Job,
    pub(crate) scrub: Job,
    pub(crate) park: Job,
    pub(crate) memory: Job,
}

impl Jobs {
    pub(crate) fn none() -> Jobs {
        let none = Job::none;
        Jobs { log: none(), checkpoint: none(), scrub: none(), park: none(), memory: none() }
    }

    /// Wakes jobs that wait for a keyspace to be opened.
    pub(crate) fn wake(&self) {
        [&self.park, &self.checkpoint, &self.log, &self.memory].into_iter().for_each(Job::wake);
    }

    /// Stops all jobs and waits for them to end.
    pub(crate) fn stop(&self) {
        let all = [&self.log, &self.checkpoint, &self.scrub, &self.park, &self.memory];
        let all = all.map(Job::take);
        all.into_iter().flatten().for_each(|task| task.stop());
    }
}
