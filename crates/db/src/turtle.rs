//! What only keyspaces of the engine `turtle` have: the checkpoint distance.

use spinney_base::{Error, ErrorKind, Result};

use crate::engines::EngineKind;
use crate::keyspace::Keyspace;

/// A handle to a keyspace of the engine `turtle`, for what other engines do not have. It is cheap
/// to make.
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
    /// Returns a handle for what only keyspaces of the engine `turtle` have.
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
    /// Sets the checkpoint distance: the number of update batches between two checkpoints. It holds
    /// until the database is closed. Returns the distance in force: memory limits it and, in a
    /// logged keyspace, so does the log of
    /// [`Options::log_bytes_max`](crate::Options::log_bytes_max) bytes.
    ///
    /// A longer distance writes fewer bytes; a shorter one leaves more memory to reads. Lowering
    /// the distance writes pending batches at once. A checkpoint comes sooner where other keyspaces
    /// fill the log, where the keyspace is quiet for a second, and where writes are so few that a
    /// checkpoint comes by time.
    ///
    /// An update batch is a full memtable, not a [`Batch`](crate::Batch). It has the bytes of a
    /// leaf (2 MiB, unless the option `leaf` says otherwise), or a sixteenth of the keyspace's
    /// memory if that is less ([`TurtleStats::batch_bytes`](crate::TurtleStats::batch_bytes)).
    ///
    /// # Errors
    /// `InvalidArgument` for 0; `Closed`; errors of opening a parked keyspace.
    pub fn set_checkpoint_distance(&self, batches: u64) -> Result<u64> {
        if batches == 0 {
            return Err(Error::invalid("a checkpoint distance is at least 1"));
        }
        self.set_chi(&batches.min(spinney_turtle::CHI_MAX).to_string())
    }

    /// Lets the engine adjust the checkpoint distance to its reads and writes, which is the
    /// default. Returns the distance in force.
    ///
    /// # Errors
    /// `Closed`; errors of opening a parked keyspace.
    pub fn set_automatic_checkpoint_distance(&self) -> Result<u64> {
        self.set_chi("auto")
    }

    fn set_chi(&self, value: &str) -> Result<u64> {
        // The keyspace stays open until the answer is read.
        let keyspace = self.keyspace.enter()?;
        self.keyspace.set_own("chi", value)?;
        keyspace.job.wake();
        Ok(keyspace.engine.stats().turtle.map_or(0, |turtle| turtle.checkpoint_distance))
    }
}
