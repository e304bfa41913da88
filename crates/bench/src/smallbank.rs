//! SmallBank: short transactions on accounts, some of them hot.
//!
//! ```text
//!  table      key             record
//!  account    name            number of the customer (4 bytes)
//!  savings    number          cents (8 bytes)
//!  checking   number          cents (8 bytes)
//!
//!  15 %  Balance           reads both accounts of a customer
//!  15 %  DepositChecking   adds to the checking account
//!  15 %  TransactSavings   adds to the savings account or takes from it; rolled back below 0
//!  15 %  Amalgamate        moves all that a customer has to another one's checking account
//!  15 %  WriteCheck        takes from the checking account, and a penalty if both hold too little
//!  25 %  SendPayment       moves between two checking accounts; rolled back if there is too little
//! ```
//!
//! A customer is one of the hot ones with the probability `hot_share`, else any of the others.
//!
//! **The audit.** Each client notes what its committed transactions did to each customer's money. After a
//! round, and after the database was reopened, each customer must have what they had at first and what
//! was noted, and all together what came in from outside. A lost update, a dirty read that was acted on
//! and half a transaction are seen by that.
//!
//! Tables and mix are those of M. Alomari et al., "The Cost of Serializability on Platforms That Use Snapshot
//! Isolation", ICDE 2008, with the mix of the OLTP-Bench suite.

use std::fmt;
use std::ops::{ControlFlow, RangeInclusive};

use serde::{Deserialize, Serialize};
use spinney_base::shim::atomic::{AtomicI64, Ordering::Relaxed};
use spinney_base::{Error, ErrorKind, Result};

use crate::fields::{Field, TableFields};
use crate::record::{Record, records};
use crate::tpcc::random::Random;
use crate::transactional::workload::{Client, Step, TransactionalWorkload};
use crate::transactional::{Access, Kind, Scan, TransactionalSession, TransactionalStore, Verdict};

/// Names of the tables, in the order of their numbers.
pub const TABLES: [&str; 3] = ["account", "savings", "checking"];

/// The table that `mixed` keeps on `turtle`, so that many transactions write to both engines.
pub const GATHERED: &[&str] = &["savings"];

/// Fields of the tables, and the longest keys.
pub const FIELDS: &[TableFields] = &[
    TableFields { key: 19, fields: &[Field::Fixed(4)] },
    TableFields { key: 4, fields: &[Field::Fixed(8)] },
    TableFields { key: 4, fields: &[Field::Fixed(8)] },
];

/// Names of the transactions.
pub const KINDS: [&str; 6] =
    ["Balance", "DepositChecking", "TransactSavings", "Amalgamate", "WriteCheck", "SendPayment"];

const ACCOUNT: usize = 0;
const SAVINGS: usize = 1;
const CHECKING: usize = 2;

/// Cents in each account at first.
const FIRST: RangeInclusive<u32> = 1_000_000..=5_000_000;
/// Cents that a transaction moves.
const AMOUNT: RangeInclusive<u32> = 100..=10_000;
/// Cents that a check without cover costs.
const PENALTY: i64 = 100;
/// Places that the audit names; all are counted.
const NAMED_MAX: usize = 3;

records! {
    /// Who a name belongs to.
    Account {
        /// Number of the customer.
        number: u32,
    }

    /// A savings or a checking account.
    Money {
        /// What it holds, in cents.
        cents: i64,
    }
}

/// Options of SmallBank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SmallBankPlan {
    /// Number of customers.
    pub accounts: u32,
    /// Number of hot customers, the first ones.
    pub hot_accounts: u32,
    /// Probability that a customer is one of the hot ones, 0 to 1.
    pub hot_share: f64,
}

impl SmallBankPlan {
    /// Checks the numbers.
    ///
    /// # Errors
    /// `InvalidArgument` that names the option.
    pub fn check(&self) -> Result<()> {
        let rules = [
            ((2..=1 << 30).contains(&self.accounts), "--accounts must be 2 to 2^30"),
            (
                (1..self.accounts).contains(&self.hot_accounts),
                "--hot-accounts must be at least 1 and below --accounts",
            ),
            ((0.0..=1.0).contains(&self.hot_share), "--hot-share must be 0 to 1"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, message)) => Err(Error::invalid(*message)),
            None => Ok(()),
        }
    }

    /// The options in words.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "{} customers, {} % of the choices among {}",
            self.accounts,
            self.hot_share * 100.0,
            self.hot_accounts
        )
    }
}

/// SmallBank.
pub struct SmallBank {
    plan: SmallBankPlan,
    seed: u64,
    /// Of each customer: what committed transactions added to both accounts together.
    noted: Vec<AtomicI64>,
    /// What came in from outside.
    outside: AtomicI64,
}

impl fmt::Debug for SmallBank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmallBank").field("plan", &self.plan).finish_non_exhaustive()
    }
}

fn name_of(customer: u32) -> Vec<u8> {
    format!("customer {customer:010}").into_bytes()
}

impl SmallBank {
    /// Makes the workload, for tables that it loads itself: what clients did in another process is
    /// not known to its audit.
    #[must_use]
    pub fn new(plan: SmallBankPlan, seed: u64) -> Self {
        let noted = (0..plan.accounts).map(|_| AtomicI64::new(0)).collect();
        SmallBank { plan, seed, noted, outside: AtomicI64::new(0) }
    }

    /// What an account holds at first.
    fn first(&self, table: usize, customer: u32) -> i64 {
        let mut random = Random::new(self.seed, (table as u64) << 40 | u64::from(customer));
        i64::from(random.number(FIRST))
    }

    fn note(&self, customer: u32, cents: i64) {
        self.noted[customer as usize].fetch_add(cents, Relaxed);
    }

    fn audit(&self, access: &mut dyn Access) -> Result<Option<String>> {
        let mut found: Vec<i64> = Vec::with_capacity(self.noted.len());
        let mut wrong: Vec<String> = Vec::new();
        let mut failed = Ok(());
        for table in [SAVINGS, CHECKING] {
            let mut count = 0;
            let scan = Scan { table, from: &[], to: None, reverse: false, limit: usize::MAX };
            access.scan(scan, &mut |key, value| {
                let cents = match Money::decode(value) {
                    Ok(money) => money.cents,
                    Err(error) => {
                        failed = Err(error);
                        return ControlFlow::Break(());
                    }
                };
                if key != (count as u32).to_be_bytes() {
                    wrong.push(format!("{} has {}", TABLES[table], key.escape_ascii()));
                } else if table == SAVINGS {
                    found.push(cents);
                    if cents < 0 {
                        wrong.push(format!("customer {count} has savings of {cents}"));
                    }
                } else if let Some(sum) = found.get_mut(count) {
                    *sum += cents;
                }
                count += 1;
                ControlFlow::Continue(())
            })?;
            std::mem::replace(&mut failed, Ok(()))?;
            if count != self.noted.len() {
                wrong.push(format!("{} has {count} records", TABLES[table]));
            }
        }
        let mut first = 0;
        for (customer, (found, noted)) in (0..).zip(found.iter().zip(&self.noted)) {
            let at_first = self.first(SAVINGS, customer) + self.first(CHECKING, customer);
            first += at_first;
            let expected = at_first + noted.load(Relaxed);
            if *found != expected {
                wrong.push(format!("customer {customer} has {found}, not {expected}"));
            }
        }
        let (total, expected) = (found.iter().sum::<i64>(), first + self.outside.load(Relaxed));
        if total != expected {
            wrong.insert(0, format!("all have {total} together, not {expected}"));
        }
        let count = wrong.len();
        wrong.truncate(NAMED_MAX);
        Ok((count > 0).then(|| format!("{count} faults: {}", wrong.join("; "))))
    }
}

impl TransactionalWorkload for SmallBank {
    fn tables(&self) -> &'static [&'static str] {
        &TABLES
    }

    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn load(&self, store: &dyn TransactionalStore) -> Result<(u64, u64)> {
        let (mut count, mut bytes) = (0, 0);
        for table in 0..TABLES.len() {
            let mut records = (0..self.plan.accounts).map(|customer| match table {
                ACCOUNT => (name_of(customer), Account { number: customer }.encode()),
                _ => {
                    let cents = self.first(table, customer);
                    (customer.to_be_bytes().to_vec(), Money { cents }.encode())
                }
            });
            let mut counted = records.by_ref().inspect(|(key, value)| {
                bytes += (key.len() + value.len()) as u64;
            });
            count += store.load(table, &mut counted)?;
        }
        store.flush()?;
        Ok((count, bytes))
    }

    fn client(&self, round: u64, thread: usize) -> Box<dyn Client + '_> {
        let purpose = (1 << 63) | (round << 32) | thread as u64;
        Box::new(Teller { bank: self, random: Random::new(self.seed, purpose) })
    }

    fn check(&self, session: &mut dyn TransactionalSession) -> Result<Option<String>> {
        let mut found = None;
        session.transact(Kind::Report, &mut |access| {
            found = self.audit(access)?;
            Ok(Verdict::Commit)
        })?;
        Ok(found)
    }
}

/// A client.
struct Teller<'a> {
    bank: &'a SmallBank,
    random: Random,
}

/// What a transaction did to the money of customers, and to all of it.
#[derive(Default)]
struct Effect {
    of: [Option<(u32, i64)>; 2],
    outside: i64,
}

impl Effect {
    fn outside(customer: u32, cents: i64) -> Self {
        Effect { of: [Some((customer, cents)), None], outside: cents }
    }

    fn moved(from: u32, to: u32, cents: i64) -> Self {
        Effect { of: [Some((from, -cents)), Some((to, cents))], outside: 0 }
    }
}

/// The accounts in the body of a transaction.
struct Books<'a> {
    access: &'a mut dyn Access,
    bytes: Vec<u8>,
}

impl Books<'_> {
    fn get<R: Record>(&mut self, table: usize, key: &[u8]) -> Result<R> {
        if !self.access.get(table, key, &mut self.bytes)? {
            let message = format!("{} has no record {}", TABLES[table], key.escape_ascii());
            return Err(Error::new(ErrorKind::Corruption, message));
        }
        R::decode(&self.bytes)
    }

    fn customer(&mut self, customer: u32) -> Result<u32> {
        Ok(self.get::<Account>(ACCOUNT, &name_of(customer))?.number)
    }

    fn cents(&mut self, table: usize, customer: u32) -> Result<i64> {
        Ok(self.get::<Money>(table, &customer.to_be_bytes())?.cents)
    }

    fn set(&mut self, table: usize, customer: u32, cents: i64) -> Result<()> {
        Money { cents }.encode_into(&mut self.bytes);
        self.access.put(table, &customer.to_be_bytes(), &self.bytes)
    }
}

impl Teller<'_> {
    fn choose(&mut self) -> u32 {
        let SmallBankPlan { accounts, hot_accounts, hot_share } = self.bank.plan;
        let is_hot = f64::from(self.random.number(0..=999_999)) < hot_share * 1e6;
        let range = if is_hot { 0..=hot_accounts - 1 } else { hot_accounts..=accounts - 1 };
        self.random.number(range)
    }

    fn another(&mut self, one: u32) -> u32 {
        loop {
            let other = self.choose();
            if other != one {
                return other;
            }
            // With one hot customer, the choice may never be another.
            let other = self.random.number(0..=self.bank.plan.accounts - 1);
            if other != one {
                return other;
            }
        }
    }

    fn kind(&mut self) -> usize {
        match self.random.number(0..=99) {
            0..15 => 0,
            15..30 => 1,
            30..45 => 2,
            45..60 => 3,
            60..75 => 4,
            _ => 5,
        }
    }
}

/// One transaction, drawn.
struct Drawn {
    kind: usize,
    one: u32,
    other: u32,
    cents: i64,
}

impl Drawn {
    /// Runs the body. Returns what it would do, or nothing if it rolls back.
    fn run(&self, access: &mut dyn Access) -> Result<Option<Effect>> {
        let mut books = Books { access, bytes: Vec::new() };
        let Drawn { kind, cents, .. } = *self;
        let one = books.customer(self.one)?;
        match kind {
            0 => {
                let sum = books.cents(SAVINGS, one)? + books.cents(CHECKING, one)?;
                std::hint::black_box(sum);
                Ok(Some(Effect::default()))
            }
            1 => {
                let checking = books.cents(CHECKING, one)?;
                books.set(CHECKING, one, checking + cents)?;
                Ok(Some(Effect::outside(one, cents)))
            }
            2 => {
                let savings = books.cents(SAVINGS, one)? + cents;
                if savings < 0 {
                    return Ok(None);
                }
                books.set(SAVINGS, one, savings)?;
                Ok(Some(Effect::outside(one, cents)))
            }
            3 => {
                let other = books.customer(self.other)?;
                let all = books.cents(SAVINGS, one)? + books.cents(CHECKING, one)?;
                let checking = books.cents(CHECKING, other)?;
                books.set(SAVINGS, one, 0)?;
                books.set(CHECKING, one, 0)?;
                books.set(CHECKING, other, checking + all)?;
                Ok(Some(Effect::moved(one, other, all)))
            }
            4 => {
                let checking = books.cents(CHECKING, one)?;
                let is_covered = books.cents(SAVINGS, one)? + checking >= cents;
                let taken = if is_covered { cents } else { cents + PENALTY };
                books.set(CHECKING, one, checking - taken)?;
                Ok(Some(Effect::outside(one, -taken)))
            }
            _ => {
                let other = books.customer(self.other)?;
                let (from, to) = (books.cents(CHECKING, one)?, books.cents(CHECKING, other)?);
                if from < cents {
                    return Ok(None);
                }
                books.set(CHECKING, one, from - cents)?;
                books.set(CHECKING, other, to + cents)?;
                Ok(Some(Effect::moved(one, other, cents)))
            }
        }
    }
}

impl Client for Teller<'_> {
    fn step(&mut self, session: &mut dyn TransactionalSession, _: u64) -> Result<Step> {
        let (kind, one) = (self.kind(), self.choose());
        let other = self.another(one);
        let mut cents = i64::from(self.random.number(AMOUNT));
        if kind == 2 && self.random.percent(50) {
            cents = -cents;
        }
        let (drawn, mut effect) = (Drawn { kind, one, other, cents }, Effect::default());
        let how = if kind == 0 { Kind::Read } else { Kind::Write };
        let ended = session.transact(how, &mut |access| {
            Ok(match drawn.run(access)? {
                Some(done) => {
                    effect = done;
                    Verdict::Commit
                }
                None => Verdict::Rollback,
            })
        })?;
        if ended.verdict == Verdict::Commit {
            let of = effect.of.into_iter().flatten();
            of.for_each(|(customer, cents)| self.bank.note(customer, cents));
            self.bank.outside.fetch_add(effect.outside, Relaxed);
        }
        Ok(Step { kind, ended })
    }
}
