//! The five transactions of TPC-C (clauses 2.4 to 2.8). Each is an input, which is drawn once, and a
//! body, which may run again after a conflict.

use std::ops::ControlFlow;

use spinney_base::{Error, ErrorKind, Result};

use crate::record::{Record, unreadable};
use crate::tpcc::random::{Constants, ORIGINAL, Random, last_name};
use crate::tpcc::schema::{
    Customer, DIST_BYTES, DISTRICTS, District, History, Item, Order, OrderLine, Size, Stock,
    TABLES, Warehouse, customer_key, customer_order_key, district_key, end_of, history_key,
    item_key, line_key, name_prefix, named_customer, number_at, order_key, stock_key, table,
    warehouse_key,
};
use crate::transactional::{Access, Scan, Verdict, Visitor};

/// Longest data of a customer with bad credit.
const DATA_MAX: usize = 500;
/// Orders that Stock-Level looks at.
const LATEST: u32 = 20;

/// What inputs are drawn with, of one thread.
#[derive(Clone, Debug)]
pub struct Draw {
    /// The thread's generator.
    pub random: Random,
    /// Constants of the run.
    pub constants: Constants,
    /// Size of the database.
    pub size: Size,
    /// The thread's home warehouse.
    pub home: u16,
    /// The thread's district for Stock-Level.
    pub district: u8,
}

impl Draw {
    fn any_district(&mut self) -> u8 {
        small(self.random.number(1..=u32::from(DISTRICTS)))
    }

    fn any_customer(&mut self) -> u32 {
        self.random.uneven(1023, self.constants.customer, 1..=self.size.customers())
    }

    /// Another warehouse than the home, if there is one.
    fn remote(&mut self) -> u16 {
        let others = u32::from(self.size.warehouses) - 1;
        if others == 0 {
            return self.home;
        }
        let number = self.random.number(1..=others);
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        if number < self.home { number } else { number + 1 }
    }

    /// Six of ten customers are named by their last name.
    fn who(&mut self) -> Who {
        if self.random.percent(60) {
            let names = 0..=self.size.last_names() - 1;
            Who::Named(last_name(self.random.uneven(255, self.constants.last_name, names)))
        } else {
            Who::Numbered(self.any_customer())
        }
    }

    /// Draws a New-Order.
    pub fn new_order(&mut self, date: u64) -> NewOrder {
        let (d, c) = (self.any_district(), self.any_customer());
        let count = self.random.number(5..=15);
        let fails = self.random.percent(1);
        let lines = (1..=count).map(|line| {
            let unused = fails && line == count;
            let item = self.random.uneven(8191, self.constants.item, 1..=self.size.items());
            let is_remote = self.random.percent(1);
            Line {
                item: if unused { self.size.items() + 1 } else { item },
                supply: if is_remote { self.remote() } else { self.home },
                quantity: small(self.random.number(1..=10)),
            }
        });
        let lines = lines.collect();
        NewOrder { w: self.home, d, c, date, lines }
    }

    /// Draws a Payment.
    pub fn payment(&mut self, date: u64) -> Payment {
        let d = self.any_district();
        let (c_w, c_d) = if self.random.percent(85) {
            (self.home, d)
        } else {
            (self.remote(), self.any_district())
        };
        let who = self.who();
        let amount = i64::from(self.random.number(100..=500_000));
        Payment { w: self.home, d, c_w, c_d, who, amount, date }
    }

    /// Draws an Order-Status.
    pub fn order_status(&mut self) -> OrderStatus {
        OrderStatus { w: self.home, d: self.any_district(), who: self.who() }
    }

    /// Draws a Delivery.
    pub fn delivery(&mut self, date: u64) -> Delivery {
        Delivery { w: self.home, carrier: small(self.random.number(1..=10)), date }
    }

    /// Draws a Stock-Level.
    pub fn stock_level(&mut self) -> StockLevel {
        StockLevel { w: self.home, d: self.district, threshold: self.random.number(10..=20) }
    }
}

/// A number that was drawn from a range below 256.
fn small(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// How a customer is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// By number.
    Numbered(u32),
    /// By last name: the one in the middle, by first names.
    Named(String),
}

/// Reads and writes records in the body of a transaction.
pub(super) struct Work<'a> {
    access: &'a mut dyn Access,
    bytes: Vec<u8>,
}

impl Work<'_> {
    pub(super) fn of(access: &mut dyn Access) -> Work<'_> {
        Work { access, bytes: Vec::new() }
    }

    /// A record that may be missing.
    fn find<R: Record>(&mut self, table: usize, key: &[u8]) -> Result<Option<R>> {
        let found = self.access.get(table, key, &mut self.bytes)?;
        found.then(|| R::decode(&self.bytes)).transpose()
    }

    /// A record that is there.
    pub(super) fn get<R: Record>(&mut self, table: usize, key: &[u8]) -> Result<R> {
        self.find(table, key)?.ok_or_else(|| {
            let message = format!("{} has no record {}", TABLES[table], key.escape_ascii());
            Error::new(ErrorKind::Corruption, message)
        })
    }

    pub(super) fn put(&mut self, table: usize, key: &[u8], record: &impl Record) -> Result<()> {
        record.encode_into(&mut self.bytes);
        self.access.put(table, key, &self.bytes)
    }

    /// Shows the records of a prefix.
    fn prefix(&mut self, table: usize, prefix: &[u8], visit: &mut Visitor<'_>) -> Result<()> {
        let to = end_of(prefix);
        let limit = usize::MAX;
        self.access.scan(Scan { table, from: prefix, to: Some(&to), reverse: false, limit }, visit)
    }

    /// The first key of a prefix, or the last one.
    fn one_key(&mut self, table: usize, prefix: &[u8], reverse: bool) -> Result<Option<Vec<u8>>> {
        let (to, mut found) = (end_of(prefix), None);
        let scan = Scan { table, from: prefix, to: Some(&to), reverse, limit: 1 };
        self.access.scan(scan, &mut |key, _| {
            found = Some(key.to_vec());
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// The number of a customer.
    fn number_of(&mut self, w: u16, d: u8, who: &Who) -> Result<u32> {
        let last = match who {
            Who::Numbered(c) => return Ok(*c),
            Who::Named(last) => last,
        };
        let mut all = Vec::new();
        self.prefix(table::CUSTOMER_NAME, &name_prefix(w, d, last), &mut |key, _| {
            all.push(named_customer(key));
            ControlFlow::Continue(())
        })?;
        let middle = all.len().saturating_sub(1) / 2;
        all.into_iter().nth(middle).unwrap_or_else(|| {
            let message = format!("district {w}/{d} has no customer named {last}");
            Err(Error::new(ErrorKind::Corruption, message))
        })
    }

    /// The lines of an order, with their keys.
    fn lines(&mut self, w: u16, d: u8, o: u32) -> Result<Vec<(Vec<u8>, OrderLine)>> {
        let mut lines = Vec::with_capacity(15);
        self.prefix(table::ORDER_LINE, &order_key(w, d, o), &mut |key, value| {
            lines.push(OrderLine::decode(value).map(|line| (key.to_vec(), line)));
            ControlFlow::Continue(())
        })?;
        lines.into_iter().collect()
    }
}

/// A line of a [`NewOrder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The item; one above the last stands for an unused number.
    pub item: u32,
    /// The warehouse that supplies it.
    pub supply: u16,
    /// How many.
    pub quantity: u8,
}

/// A New-Order (clause 2.4): enters an order of 5 to 15 lines, and takes them from stock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "warehouse, district and customer, as in keys")]
pub struct NewOrder {
    pub w: u16,
    pub d: u8,
    pub c: u32,
    /// The date of entry.
    pub date: u64,
    /// What is ordered.
    pub lines: Vec<Line>,
}

/// What a New-Order has entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Number of the order in its district.
    pub order: u32,
    /// Total with taxes and discount, in cents.
    pub total: i64,
}

impl NewOrder {
    /// Runs the body. An unused item rolls it back.
    ///
    /// # Errors
    /// As [`Access`]; `Corruption` when a record is missing or unreadable.
    pub fn run(&self, access: &mut dyn Access, placed: &mut Placed) -> Result<Verdict> {
        let (mut work, &NewOrder { w, d, c, .. }) = (Work::of(access), self);
        let warehouse: Warehouse = work.get(table::WAREHOUSE, &warehouse_key(w))?;
        let mut district: District = work.get(table::DISTRICT, &district_key(w, d))?;
        let customer: Customer = work.get(table::CUSTOMER, &customer_key(w, d, c))?;
        let o = district.next_order;
        district.next_order += 1;
        work.put(table::DISTRICT, &district_key(w, d), &district)?;
        let order = Order {
            customer: c,
            entry_date: self.date,
            carrier: 0,
            lines: small(u32::try_from(self.lines.len()).unwrap_or(u32::MAX)),
            all_local: u8::from(self.lines.iter().all(|line| line.supply == w)),
        };
        work.put(table::ORDERS, &order_key(w, d, o), &order)?;
        work.access.put(table::ORDERS_CUSTOMER, &customer_order_key(w, d, c, o), &[])?;
        work.access.put(table::NEW_ORDER, &order_key(w, d, o), &[])?;
        let mut sum = 0;
        for (number, line) in (1..).zip(&self.lines) {
            let Some(item) = work.find::<Item>(table::ITEM, &item_key(line.item))? else {
                return Ok(Verdict::Rollback);
            };
            sum += self.take(&mut work, (o, number), line, &item)?;
        }
        let taxes = 10_000 + i64::from(warehouse.tax) + i64::from(district.tax);
        let total = sum * (10_000 - i64::from(customer.discount)) / 10_000 * taxes / 10_000;
        *placed = Placed { order: o, total };
        Ok(Verdict::Commit)
    }

    /// Takes a line from stock and enters it. Returns its amount.
    fn take(
        &self,
        work: &mut Work<'_>,
        (o, number): (u32, u8),
        line: &Line,
        item: &Item,
    ) -> Result<i64> {
        let key = stock_key(line.supply, line.item);
        let mut stock: Stock = work.get(table::STOCK, &key)?;
        let quantity = u32::from(line.quantity);
        let enough = stock.quantity >= quantity + 10;
        stock.quantity = if enough { stock.quantity } else { stock.quantity + 91 } - quantity;
        stock.ytd += u64::from(quantity);
        stock.orders += 1;
        stock.remote += u32::from(line.supply != self.w);
        work.put(table::STOCK, &key, &stock)?;
        // The terminal would show it.
        let is_brand = item.data.contains(ORIGINAL) && stock.data.contains(ORIGINAL);
        std::hint::black_box(is_brand);
        let amount = i64::from(quantity) * i64::from(item.price);
        let at = DIST_BYTES * usize::from(self.d - 1);
        let dist_info = stock.dist[at..].first_chunk().ok_or_else(|| unreadable("stock", &key))?;
        let record = OrderLine {
            item: line.item,
            supply_warehouse: line.supply,
            delivery_date: 0,
            quantity: line.quantity,
            amount,
            dist_info: *dist_info,
        };
        work.put(table::ORDER_LINE, &line_key(self.w, self.d, o, number), &record)?;
        Ok(amount)
    }
}

/// A Payment (clause 2.5): a customer pays, perhaps at another warehouse than its own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "warehouses and districts, as in keys")]
pub struct Payment {
    pub w: u16,
    pub d: u8,
    pub c_w: u16,
    pub c_d: u8,
    /// The customer.
    pub who: Who,
    /// In cents.
    pub amount: i64,
    /// The date of the payment.
    pub date: u64,
}

/// A payment that was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paid {
    /// The customer.
    pub customer: u32,
    /// How many payments the customer has made: the number of the row of history.
    pub number: u32,
}

impl Payment {
    /// Runs the body.
    ///
    /// # Errors
    /// As [`Access`]; `Corruption` when a record is missing or unreadable.
    pub fn run(&self, access: &mut dyn Access, paid: &mut Paid) -> Result<Verdict> {
        let (mut work, &Payment { w, d, c_w, c_d, amount, .. }) = (Work::of(access), self);
        let mut warehouse: Warehouse = work.get(table::WAREHOUSE, &warehouse_key(w))?;
        warehouse.ytd += amount;
        work.put(table::WAREHOUSE, &warehouse_key(w), &warehouse)?;
        let mut district: District = work.get(table::DISTRICT, &district_key(w, d))?;
        district.ytd += amount;
        work.put(table::DISTRICT, &district_key(w, d), &district)?;
        let c = work.number_of(c_w, c_d, &self.who)?;
        let key = customer_key(c_w, c_d, c);
        let mut customer: Customer = work.get(table::CUSTOMER, &key)?;
        customer.balance -= amount;
        customer.ytd_payment += amount;
        customer.payments += 1;
        if customer.credit == "BC" {
            let mut data = format!("{c} {c_d} {c_w} {d} {w} {amount}|{}", customer.data);
            data.truncate(data.floor_char_boundary(DATA_MAX));
            customer.data = data;
        }
        work.put(table::CUSTOMER, &key, &customer)?;
        let data = format!("{}    {}", warehouse.name, district.name);
        let record = History { warehouse: w, district: d, date: self.date, amount, data };
        work.put(table::HISTORY, &history_key(c_w, c_d, c, customer.payments), &record)?;
        *paid = Paid { customer: c, number: customer.payments };
        Ok(Verdict::Commit)
    }
}

/// An Order-Status (clause 2.6): the last order of a customer. It only reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "warehouse and district, as in keys")]
pub struct OrderStatus {
    pub w: u16,
    pub d: u8,
    /// The customer.
    pub who: Who,
}

impl OrderStatus {
    /// Runs the body.
    ///
    /// # Errors
    /// As [`Access`]; `Corruption` when a record is missing or unreadable, or an order has not as
    /// many lines as it says.
    pub fn run(&self, access: &mut dyn Access) -> Result<Verdict> {
        let (mut work, &OrderStatus { w, d, .. }) = (Work::of(access), self);
        let c = work.number_of(w, d, &self.who)?;
        let customer: Customer = work.get(table::CUSTOMER, &customer_key(w, d, c))?;
        std::hint::black_box(customer.balance);
        let Some(key) = work.one_key(table::ORDERS_CUSTOMER, &customer_key(w, d, c), true)? else {
            return Ok(Verdict::Commit);
        };
        let o = number_at(&key, 7)?;
        let order: Order = work.get(table::ORDERS, &order_key(w, d, o))?;
        let lines = work.lines(w, d, o)?;
        if lines.len() == usize::from(order.lines) {
            return Ok(Verdict::Commit);
        }
        let message = format!(
            "Order-Status saw {} of {} lines of order {w}/{d}/{o}",
            lines.len(),
            order.lines
        );
        Err(Error::new(ErrorKind::Corruption, message))
    }
}

/// A Delivery (clause 2.7): delivers the oldest new order of each district of a warehouse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The warehouse.
    pub w: u16,
    /// The carrier, from 1.
    pub carrier: u8,
    /// The date of the delivery, not 0.
    pub date: u64,
}

impl Delivery {
    /// Runs the body. Districts without a new order are left out.
    ///
    /// # Errors
    /// As [`Access`]; `Corruption` when a record is missing or unreadable.
    pub fn run(&self, access: &mut dyn Access) -> Result<Verdict> {
        let (mut work, w) = (Work::of(access), self.w);
        for d in 1..=DISTRICTS {
            let Some(key) = work.one_key(table::NEW_ORDER, &district_key(w, d), false)? else {
                continue;
            };
            let o = number_at(&key, 3)?;
            work.access.remove(table::NEW_ORDER, &key)?;
            let mut order: Order = work.get(table::ORDERS, &key)?;
            order.carrier = self.carrier;
            work.put(table::ORDERS, &key, &order)?;
            let mut sum = 0;
            for (key, mut line) in work.lines(w, d, o)? {
                sum += line.amount;
                line.delivery_date = self.date;
                work.put(table::ORDER_LINE, &key, &line)?;
            }
            let key = customer_key(w, d, order.customer);
            let mut customer: Customer = work.get(table::CUSTOMER, &key)?;
            customer.balance += sum;
            customer.deliveries += 1;
            work.put(table::CUSTOMER, &key, &customer)?;
        }
        Ok(Verdict::Commit)
    }
}

/// A Stock-Level (clause 2.8): counts the items of a district's latest orders of which little is
/// left. It only reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "warehouse and district, as in keys")]
pub struct StockLevel {
    pub w: u16,
    pub d: u8,
    /// How many are enough.
    pub threshold: u32,
}

impl StockLevel {
    /// Runs the body.
    ///
    /// # Errors
    /// As [`Access`]; `Corruption` when a record is missing or unreadable.
    pub fn run(&self, access: &mut dyn Access, low: &mut u32) -> Result<Verdict> {
        let (mut work, &StockLevel { w, d, .. }) = (Work::of(access), self);
        let district: District = work.get(table::DISTRICT, &district_key(w, d))?;
        let next = district.next_order;
        let from = order_key(w, d, next.saturating_sub(LATEST));
        let (to, mut items) = (order_key(w, d, next), Vec::new());
        let scan = Scan {
            table: table::ORDER_LINE,
            from: &from,
            to: Some(&to),
            reverse: false,
            limit: usize::MAX,
        };
        work.access.scan(scan, &mut |_, value| {
            items.push(OrderLine::decode(value).map(|line| line.item));
            ControlFlow::Continue(())
        })?;
        let mut items = items.into_iter().collect::<Result<Vec<u32>>>()?;
        items.sort_unstable();
        items.dedup();
        *low = 0;
        for item in items {
            let stock: Stock = work.get(table::STOCK, &stock_key(w, item))?;
            *low += u32::from(stock.quantity < self.threshold);
        }
        Ok(Verdict::Commit)
    }
}
