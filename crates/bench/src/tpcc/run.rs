//! TPC-C as a workload: its clients and its check.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use spinney_base::{Error, Result};

use crate::plan::named;
use crate::tpcc::conditions::{self, Findings};
use crate::tpcc::load;
use crate::tpcc::query2::{Query2, Supplied, TABLES_WITH_SUPPLIERS};
use crate::tpcc::random::{Constants, Random};
use crate::tpcc::schema::{DISTRICTS, Size, TABLES};
use crate::tpcc::transactions::{Draw, NewOrder, Paid, Payment, Placed};
use crate::transactional::workload::{Client, Step, TransactionalWorkload};
use crate::transactional::{
    Access, Ended, Kind, TransactionalSession, TransactionalStore, Verdict,
};

named! {
    /// Which transactions are run.
    Mix, "mix" {
        /// 45 % New-Order, 43 % Payment, 4 % of Order-Status, Delivery and Stock-Level each.
        Full = "full",
        /// New-Order only.
        NewOrder = "new-order",
        /// 90 % New-Order, 10 % Stock-Level: TPC-C RA of Index-Organized.
        Ra = "ra",
        /// 50 % New-Order, 50 % Stock-Level: TPC-C RB.
        Rb = "rb",
        /// New-Order in every other thread, Query 2 in the others: TPC-C RC.
        Rc = "rc",
        /// Query 2 in the first thread, New-Order in all others: figure 17 of Index-Organized.
        OneQuery = "one-query",
    }
}

/// Names of the transactions, in the order of rows.
pub const KINDS: [&str; 6] =
    ["New-Order", "Payment", "Order-Status", "Delivery", "Stock-Level", "Query2"];

/// The place of New-Order among them.
pub const NEW_ORDER: usize = Card::NewOrder as usize;

/// The place of Query 2 among them.
pub const QUERY_2: usize = Card::Query2 as usize;

/// Options of TPC-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TpccPlan {
    /// Which transactions are run.
    pub mix: Mix,
    /// Warehouses, from 1.
    pub warehouses: u16,
    /// Divides items, and customers and orders of a district; 1 for the specification's numbers.
    pub scale: u32,
}

impl TpccPlan {
    /// Returns how large the database is.
    #[must_use]
    pub fn size(&self) -> Size {
        Size { warehouses: self.warehouses, divisor: self.scale }
    }

    /// The options in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let size = self.size();
        format!(
            "{} warehouses, {} items, {} customers of a district",
            self.warehouses,
            size.items(),
            size.customers()
        )
    }
}

/// A transaction to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Card {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
    Query2,
}

impl Mix {
    /// The deck of a thread, which is shuffled and played again and again.
    fn deck(self, thread: usize) -> Vec<Card> {
        let counts: &[(Card, usize)] = match self {
            Mix::Full => &[
                (Card::NewOrder, 45),
                (Card::Payment, 43),
                (Card::OrderStatus, 4),
                (Card::Delivery, 4),
                (Card::StockLevel, 4),
            ],
            Mix::NewOrder => &[(Card::NewOrder, 1)],
            Mix::Ra => &[(Card::NewOrder, 9), (Card::StockLevel, 1)],
            Mix::Rb => &[(Card::NewOrder, 1), (Card::StockLevel, 1)],
            Mix::Rc if thread.is_multiple_of(2) => &[(Card::NewOrder, 1)],
            Mix::OneQuery if thread > 0 => &[(Card::NewOrder, 1)],
            Mix::Rc | Mix::OneQuery => &[(Card::Query2, 1)],
        };
        counts.iter().flat_map(|(card, count)| std::iter::repeat_n(*card, *count)).collect()
    }
}

/// A transaction that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub enum Acknowledged<'a> {
    /// A New-Order that was not rolled back.
    NewOrder(&'a NewOrder, Placed),
    /// A Payment.
    Payment(&'a Payment, Paid),
}

/// Learns of each acknowledged New-Order and Payment, on the thread of its client, before the client
/// begins another.
pub type Observer = dyn Fn(Acknowledged<'_>) + Send + Sync;

/// TPC-C.
pub struct Tpcc {
    plan: TpccPlan,
    seed: u64,
    observer: Option<Box<Observer>>,
    /// For Query 2.
    supplied: Option<Supplied>,
}

impl fmt::Debug for Tpcc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tpcc").field("plan", &self.plan).field("seed", &self.seed).finish()
    }
}

impl Tpcc {
    /// Makes the workload.
    #[must_use]
    pub fn new(plan: TpccPlan, seed: u64) -> Self {
        let has_query = matches!(plan.mix, Mix::Rc | Mix::OneQuery);
        let supplied = has_query.then(|| Supplied::new(plan.size()));
        Tpcc { plan, seed, observer: None, supplied }
    }

    /// Tells `observer` of each acknowledged transaction.
    #[must_use]
    pub fn observed(mut self, observer: Box<Observer>) -> Self {
        self.observer = Some(observer);
        self
    }
}

/// Checks the conditions in a transaction of a session.
///
/// # Errors
/// Whatever the engine says; `Corruption` for bytes that are no record.
pub fn check(session: &mut dyn TransactionalSession, size: Size) -> Result<Findings> {
    let mut findings = Findings::default();
    session.transact(Kind::Report, &mut |access| {
        findings = conditions::check(access, size)?;
        Ok(Verdict::Commit)
    })?;
    Ok(findings)
}

impl TransactionalWorkload for Tpcc {
    fn tables(&self) -> &'static [&'static str] {
        if self.supplied.is_some() { &TABLES_WITH_SUPPLIERS } else { &TABLES }
    }

    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn load(&self, store: &dyn TransactionalStore) -> Result<(u64, u64)> {
        load::load(store, self.plan.size(), self.seed, self.tables().len())
    }

    fn client(&self, round: u64, thread: usize) -> Box<dyn Client + '_> {
        let warehouses = usize::from(self.plan.warehouses);
        let home = u16::try_from(thread % warehouses + 1).unwrap_or(1);
        let district = u8::try_from(thread / warehouses % usize::from(DISTRICTS) + 1).unwrap_or(1);
        // Not a number of the load's.
        let purpose = (1 << 63) | (round << 32) | thread as u64;
        let draw = Draw {
            random: Random::new(self.seed, purpose),
            constants: Constants::draw(self.seed)[1],
            size: self.plan.size(),
            home,
            district,
        };
        let observer = self.observer.as_deref();
        let cards = self.plan.mix.deck(thread);
        let supplied = self.supplied.as_ref();
        Box::new(Terminal { draw, cards, deck: Vec::new(), observer, supplied })
    }

    fn check(&self, session: &mut dyn TransactionalSession) -> Result<Option<String>> {
        let findings = check(session, self.plan.size())?;
        Ok((!findings.is_empty()).then(|| findings.to_string()))
    }
}

/// A client.
struct Terminal<'a> {
    draw: Draw,
    cards: Vec<Card>,
    deck: Vec<Card>,
    observer: Option<&'a Observer>,
    supplied: Option<&'a Supplied>,
}

impl Terminal<'_> {
    /// The next card.
    fn card(&mut self) -> Card {
        if let Some(card) = self.deck.pop() {
            return card;
        }
        let cards = &self.cards;
        let last = u32::try_from(cards.len() - 1).unwrap_or(0);
        let order = self.draw.random.shuffled(0..=last);
        self.deck = order.into_iter().map(|at| cards[at as usize]).collect();
        self.deck.pop().unwrap_or(Card::NewOrder)
    }

    fn observe(&self, ended: Ended, acknowledged: Acknowledged<'_>) {
        if let (Some(observer), Verdict::Commit) = (self.observer, ended.verdict) {
            observer(acknowledged);
        }
    }

    fn play(
        &mut self,
        card: Card,
        session: &mut dyn TransactionalSession,
        date: u64,
    ) -> Result<Ended> {
        match card {
            Card::NewOrder => {
                let (input, mut placed) = (self.draw.new_order(date), Placed::default());
                let body = &mut |access: &mut dyn Access| input.run(access, &mut placed);
                let ended = session.transact(Kind::Write, body)?;
                self.observe(ended, Acknowledged::NewOrder(&input, placed));
                Ok(ended)
            }
            Card::Payment => {
                let (input, mut paid) = (self.draw.payment(date), Paid::default());
                let body = &mut |access: &mut dyn Access| input.run(access, &mut paid);
                let ended = session.transact(Kind::Write, body)?;
                self.observe(ended, Acknowledged::Payment(&input, paid));
                Ok(ended)
            }
            Card::OrderStatus => {
                let input = self.draw.order_status();
                session.transact(Kind::Read, &mut |access| input.run(access))
            }
            Card::Delivery => {
                let input = self.draw.delivery(date);
                session.transact(Kind::Write, &mut |access| input.run(access))
            }
            Card::StockLevel => {
                let (input, mut low) = (self.draw.stock_level(), 0);
                session.transact(Kind::Read, &mut |access| input.run(access, &mut low))
            }
            Card::Query2 => {
                let (input, mut listed) = (Query2::draw(&mut self.draw.random), 0);
                let supplied =
                    self.supplied.ok_or_else(|| Error::invalid("the mix has no suppliers"))?;
                session
                    .transact(Kind::Write, &mut |access| input.run(access, supplied, &mut listed))
            }
        }
    }
}

impl Client for Terminal<'_> {
    fn step(&mut self, session: &mut dyn TransactionalSession, date: u64) -> Result<Step> {
        let card = self.card();
        let ended = self.play(card, session, date)?;
        Ok(Step { kind: card as usize, ended })
    }
}
