//! Batches with conditions: what they expect is read as a transaction reads.

use spinney_base::{Error, ErrorKind, Lsn, Result};

use super::conflict;
use super::reads::Reads;
use crate::options::{Durability, Isolation};
use crate::state::State;
use crate::transaction_stats::Cause;
use crate::write::{Condition, Operation, check_key, check_operations, last_of_each};

/// Looks at the conditions, each because something that the one before had read was changed.
const LOOKS_MAX: u32 = 64;

impl State {
    /// Writes a batch if each key has the value that is expected of it. Returns the LSN.
    ///
    /// # Errors
    /// `Conflict` names the first condition that does not hold; others as [`State::write_batch`].
    pub(crate) fn write_expecting(
        &self,
        conditions: &[Condition],
        operations: &[Operation],
        durability: Durability,
    ) -> Result<Lsn> {
        check_operations(conditions.len() + operations.len())?;
        self.check_ours(conditions.iter().map(|it| &*it.place))?;
        self.check_ours(operations.iter().map(|it| &*it.place))?;
        conditions.iter().try_for_each(|condition| check_key(&condition.key))?;
        for _ in 0..LOOKS_MAX {
            let mut reads = Reads::new(self, Isolation::default());
            match self.write_if_met(&mut reads, conditions, operations) {
                // What was expected may hold again, or not: only another look tells.
                Err(_) if reads.is_in_conflict() => {}
                Err(error) => return Err(error),
                Ok(lsn) => return self.commit(lsn, durability).map(|()| lsn),
            }
        }
        Err(conflict(Cause::Busy).context("the conditions of a batch"))
    }

    fn write_if_met(
        &self,
        reads: &mut Reads,
        conditions: &[Condition],
        operations: &[Operation],
    ) -> Result<Lsn> {
        let mut value = Vec::new();
        for condition in conditions {
            value.clear();
            let is_there = reads.get(self, &condition.place, &condition.key, &mut value)?;
            if is_there.then_some(&value[..]) != condition.value.as_deref() {
                return Err(unmet(condition, is_there));
            }
        }
        reads.write(self, &last_of_each(operations))
    }
}

#[cold]
fn unmet(condition: &Condition, is_there: bool) -> Error {
    let (key, name) = (condition.key.escape_ascii(), condition.place.name.get());
    let found = match (is_there, &condition.value) {
        (true, None) => "has a value, and none was expected",
        (true, Some(_)) => "has another value than was expected",
        (false, _) => "has no value, and one was expected",
    };
    Error::new(ErrorKind::Conflict, format!("key \"{key}\" of keyspace {name:?} {found}"))
}
