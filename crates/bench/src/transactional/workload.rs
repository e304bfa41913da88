//! What is run on an engine that has transactions: a [`TransactionalWorkload`] fills the tables,
//! makes a [`Client`] for each thread, and checks what they left.

use spinney_base::Result;

use super::{Ended, TransactionalSession, TransactionalStore};

/// Tables, their first records, clients, and what must hold.
pub trait TransactionalWorkload: Send + Sync {
    /// Names of the tables, in the order of their numbers.
    fn tables(&self) -> &'static [&'static str];

    /// Names of the kinds of transactions; rows and [`Step::kind`] are in this order.
    fn kinds(&self) -> &'static [&'static str];

    /// Fills the tables, which are empty. Returns the number of records and the bytes of their keys
    /// and values.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn load(&self, store: &dyn TransactionalStore) -> Result<(u64, u64)>;

    /// A client thread of a round; rounds are numbered from 0 over the life of the tables.
    fn client(&self, round: u64, thread: usize) -> Box<dyn Client + '_>;

    /// Checks everything, while no client runs. Returns what is wrong, if anything is.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn check(&self, session: &mut dyn TransactionalSession) -> Result<Option<String>>;
}

/// A transaction that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its kind.
    pub kind: usize,
    /// How it ended.
    pub ended: Ended,
}

/// One client thread.
pub trait Client: Send {
    /// Draws a transaction and runs it. `date` is the time in microseconds, not 0.
    ///
    /// # Errors
    /// Whatever the engine says, or `Corruption` when a transaction read what cannot be.
    fn step(&mut self, session: &mut dyn TransactionalSession, date: u64) -> Result<Step>;
}
