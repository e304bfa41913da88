//! Running a transaction until it commits.

use std::time::Duration;

use spinney_base::runtime::SplitMix;
use spinney_base::{Error, Result};

use super::{Transaction, conflict};
use crate::database::Db;
use crate::options::{Durability, Isolation};
use crate::transaction_stats::Cause;

/// Most runs of a body.
const RUNS_MAX: u32 = 64;

/// Mean rest before the second run; it doubles up to [`REST_MAX`]. Without rests, transactions that
/// conflict would conflict again; with longer ones the processor idles.
const REST_MIN: Duration = Duration::from_micros(5);
const REST_MAX: Duration = Duration::from_millis(5);

/// How a transaction is run.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct TransactionOptions {
    pub(super) durability: Option<Durability>,
    pub(super) isolation: Isolation,
}

impl TransactionOptions {
    /// What a commit survives, instead of the database's default.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// What it is protected from.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, EngineKind, Error, Isolation, Options, TransactionOptions};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// let orders = db.keyspace("orders", EngineKind::Iot)?;
    /// let options = TransactionOptions::default().isolation(Isolation::Snapshot);
    /// db.transact_with(options, |it| it.insert(&orders, "1", "tea"))?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }
}

impl Db {
    /// Runs `body` in a transaction and commits it, again after a conflict, up to 64 times with rests
    /// between. The body may run more than once, so it should change nothing but the transaction.
    /// When it answers an error, the transaction is rolled back and the error returned.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, EngineKind, Error, ErrorKind, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// let checking = db.keyspace("checking", KeyspaceOptions::default())?;
    /// let savings = db.keyspace("savings", EngineKind::Turtle)?;
    /// checking.insert("ada", 70u64.to_be_bytes())?;
    /// db.transact(|transaction| {
    ///     let balance = |value: Option<&[u8]>| value.map_or(0, |it| u64::from_be_bytes(it.try_into().unwrap()));
    ///     transaction.update(&checking, "ada", |it| Some((balance(it) - 50).to_be_bytes().to_vec()))?;
    ///     transaction.update(&savings, "ada", |it| Some((balance(it) + 50).to_be_bytes().to_vec()))?;
    ///     Ok::<_, Error>(())
    /// })?;
    /// assert_eq!(savings.get("ada")?.unwrap(), 50u64.to_be_bytes());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The body's; `Conflict` when every run met one; or as [`Transaction::commit`].
    pub fn transact<T, E: From<Error>>(
        &self,
        body: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        self.transact_with(TransactionOptions::default(), body)
    }

    /// Runs `body` as [`Db::transact`] does, with options.
    ///
    /// # Errors
    /// As [`Db::transact`].
    pub fn transact_with<T, E: From<Error>>(
        &self,
        options: TransactionOptions,
        mut body: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut rest = REST_MIN;
        for run in 1..=RUNS_MAX {
            let mut transaction = self.begin_with(options)?;
            match body(&mut transaction) {
                Ok(answer) => match transaction.try_commit() {
                    Ok(_) => return Ok(answer),
                    Err(_) if transaction.is_in_conflict() => {}
                    Err(error) => return Err(error.into()),
                },
                // A body may answer an error of its own because a read answered a conflict.
                Err(_) if transaction.is_in_conflict() => {}
                Err(error) => return Err(error),
            }
            if run < RUNS_MAX {
                // Rests of transactions that conflict differ by their numbers, and a simulated run replays.
                let number = transaction.inner.reads.lock().owner();
                let part = SplitMix(number).next_u64() % 1024;
                self.handle.state.runtime.sleep(rest * u32::try_from(part).unwrap_or(0) / 512);
                rest = (rest * 2).min(REST_MAX);
            }
        }
        Err(conflict(Cause::Changed).context(format!("{RUNS_MAX} runs")).into())
    }
}
