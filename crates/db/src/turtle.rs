//! What only keyspaces of the engine `turtle` have.

use spinney_base::{Error, ErrorKind, Result};

use crate::engines::EngineKind;
use crate::keyspace::Keyspace;

/// A keyspace of the engine `turtle`, for what other engines do not have. Cheap to make.
///
/// ```
/// # fn main() -> spinney_db::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let db = spinney_db::Db::open(directory.path(), spinney_db::Options::default())?;
/// use spinney_db::{EngineKind, ErrorKind, KeyspaceOptions};
/// let events = db.keyspace("events", KeyspaceOptions::default().engine(EngineKind::Turtle))?;
/// let now = events.turtle()?.set_checkpoint_distance(8)?;
/// assert!((1..=8).contains(&now));
/// events.turtle()?.set_automatic_checkpoint_distance()?;
/// let other = db.keyspace("other", KeyspaceOptions::default())?;
/// assert_eq!(other.turtle().unwrap_err().kind(), ErrorKind::Unsupported);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TurtleKeyspace {
    keyspace: Keyspace,
}

impl Keyspace {
    /// The keyspace as one of the engine `turtle`.
    ///
    /// # Errors
    /// `Unsupported` when another engine keeps it.
    pub fn turtle(&self) -> Result<TurtleKeyspace> {
        if self.engine() != EngineKind::Turtle {
            let message = format!("{} is no keyspace of turtle", self.name());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(TurtleKeyspace { keyspace: self.clone() })
    }
}

impl TurtleKeyspace {
    /// Sets the checkpoint distance: how many update batches gather in memory before a checkpoint
    /// writes them. It holds until the database is closed. Returns the distance that is in force:
    /// memory limits it and, where the keyspace is logged, so does the log of
    /// [`Options::log_bytes_max`](crate::Options::log_bytes_max) bytes.
    ///
    /// More batches mean fewer bytes written; fewer leave more memory to reads. When the distance is
    /// lowered, what has gathered is written at once. Fewer batches gather where other keyspaces fill
    /// the log, where the keyspace is quiet for a second, and where writes are so few that a
    /// checkpoint comes by time.
    ///
    /// An update batch is a full memtable, not a [`Batch`](crate::Batch). It has the bytes of a leaf (2 MiB,
    /// unless the option `leaf` says otherwise), or a sixteenth of the keyspace's memory if that is
    /// less ([`TurtleStats::batch_bytes`](crate::TurtleStats::batch_bytes)).
    ///
    /// # Errors
    /// `InvalidArgument` for 0; `Closed`; what opening a parked keyspace meets.
    pub fn set_checkpoint_distance(&self, batches: u64) -> Result<u64> {
        if batches == 0 {
            return Err(Error::invalid("a checkpoint distance is at least 1"));
        }
        self.set_chi(&batches.min(spinney_turtle::CHI_MAX).to_string())
    }

    /// Lets the engine set the checkpoint distance by the reads and writes that it sees, which is the
    /// default. Returns the distance that is in force.
    ///
    /// # Errors
    /// `Closed`; what opening a parked keyspace meets.
    pub fn set_automatic_checkpoint_distance(&self) -> Result<u64> {
        self.set_chi("auto")
    }

    fn set_chi(&self, value: &str) -> Result<u64> {
        // It stays open until the answer is read.
        let keyspace = self.keyspace.enter()?;
        self.keyspace.set_own("chi", value)?;
        if let Some(task) = &*keyspace.task.lock() {
            task.wake();
        }
        Ok(keyspace.engine.stats().turtle.map_or(0, |turtle| turtle.checkpoint_distance))
    }
}
