//! The consistency conditions of TPC-C (clause 3.3.2), checked over the whole database.
//!
//! | | must hold |
//! |---|---|
//! | 1 | `W_YTD` = sum of `D_YTD`, for each warehouse |
//! | 2 | `D_NEXT_O_ID` - 1 = greatest `O_ID` = greatest `NO_O_ID`, for each district |
//! | 3 | the `NO_O_ID` of a district have no gaps |
//! | 4 | sum of `O_OL_CNT` = number of order lines, for each district |
//! | 5 | an order has no carrier if and only if it has a row among the new orders |
//! | 6 | `O_OL_CNT` = number of its lines, for each order |
//! | 7 | a line has no delivery date if and only if its order has no carrier |
//! | 8 | `W_YTD` = sum of `H_AMOUNT`, for each warehouse |
//! | 9 | `D_YTD` = sum of `H_AMOUNT`, for each district |
//! | 10 | `C_BALANCE` = sum of `OL_AMOUNT` that was delivered - sum of `H_AMOUNT`, for each customer |
//! | 11 | orders - new orders = first orders that were delivered + `C_DELIVERY_CNT`, for each district |
//! | 12 | `C_BALANCE` + `C_YTD_PAYMENT` = sum of `OL_AMOUNT` that was delivered, for each customer |
//! | 13 | each index names its table's records and no others; `C_PAYMENT_CNT` = rows of history, for each customer |
//! | 14 | `S_YTD` and `S_ORDER_CNT` = what orders since the load took, for each item of a warehouse |
//!
//! The specification's condition 11 has no deliveries and holds only before the first. 13 and 14 are
//! ours: without them a lost update of stock would be seen by nobody.
//!
//! The checker keeps numbers of all customers and all stock in memory, 40 MB for 40 warehouses.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;

use spinney_base::Result;

use crate::record::{Record, unreadable};
use crate::tpcc::schema::{
    Customer, DISTRICTS, District, History, Order, OrderLine, Size, Stock, Warehouse, customer_key,
    customer_order_key, district_key, end_of, name_key, number_at, table,
};
use crate::transactional::{Access, Scan};

/// Places that are named for each condition; all are counted.
const NAMED_MAX: usize = 3;

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// By condition: how many places break it, and the first of them.
    broken: BTreeMap<u8, (u64, Vec<String>)>,
}

impl Findings {
    /// Returns whether all conditions hold.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.broken.is_empty()
    }

    /// Returns the numbers of the conditions that do not hold, in order.
    #[must_use]
    pub fn conditions(&self) -> Vec<u8> {
        self.broken.keys().copied().collect()
    }

    fn demand(&mut self, condition: u8, holds: bool, text: impl FnOnce() -> String) {
        if holds {
            return;
        }
        let (count, texts) = self.broken.entry(condition).or_default();
        *count += 1;
        if texts.len() < NAMED_MAX {
            texts.push(text());
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("all conditions hold");
        }
        let broken = self.broken.iter().map(|(condition, (count, texts))| {
            format!("condition {condition} is broken {count} times: {}", texts.join("; "))
        });
        f.write_str(&broken.collect::<Vec<_>>().join(". "))
    }
}

/// Checks everything in the body of one transaction.
///
/// # Errors
/// As [`Access`]; `Corruption` for bytes that are no record.
pub fn check(access: &mut dyn Access, size: Size) -> Result<Findings> {
    let places = usize::from(size.warehouses) * usize::from(DISTRICTS);
    let customers = places * size.customers() as usize;
    let stock = usize::from(size.warehouses) * size.items() as usize;
    let mut checker = Checker {
        access,
        size,
        findings: Findings::default(),
        customers: vec![Totals::default(); customers],
        sold: vec![Sold::default(); stock],
    };
    checker.money()?;
    for w in 1..=size.warehouses {
        for d in 1..=DISTRICTS {
            checker.district(w, d)?;
        }
    }
    (1..=size.warehouses).try_for_each(|w| checker.stock(w))?;
    Ok(checker.findings)
}

/// Sums over one customer.
#[derive(Clone, Copy, Default)]
struct Totals {
    paid: i64,
    payments: u32,
    delivered: i64,
}

/// What orders took of one item of a warehouse.
#[derive(Clone, Copy, Default)]
struct Sold {
    quantity: u32,
    lines: u32,
}

/// An order of the district that is checked.
struct Seen {
    o: u32,
    order: Order,
    lines: u32,
}

struct Checker<'a> {
    access: &'a mut dyn Access,
    size: Size,
    findings: Findings,
    customers: Vec<Totals>,
    sold: Vec<Sold>,
}

impl Checker<'_> {
    /// All records of a prefix.
    fn each(
        &mut self,
        table: usize,
        prefix: &[u8],
        mut visit: impl FnMut(&mut Self, &[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        // The visitor needs the checker, so records are read in pieces.
        const PIECE: usize = 1000;
        let to = end_of(prefix);
        let mut from = prefix.to_vec();
        loop {
            let mut piece: Vec<(Vec<u8>, Vec<u8>)> = Vec::with_capacity(PIECE);
            let to = (!prefix.is_empty()).then_some(&to[..]);
            let scan = Scan { table, from: &from, to, reverse: false, limit: PIECE };
            self.access.scan(scan, &mut |key, value| {
                piece.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })?;
            piece.iter().try_for_each(|(key, value)| visit(self, key, value))?;
            match piece.pop() {
                Some((last, _)) if piece.len() + 1 == PIECE => {
                    from = last;
                    from.push(0);
                }
                _ => return Ok(()),
            }
        }
    }

    /// The place of a customer among the totals.
    fn customer_at(&self, key: &[u8]) -> Option<usize> {
        let (w, d) = (u16::from_be_bytes(*key.first_chunk()?), *key.get(2)?);
        let c = number_at(key, 3).ok()?;
        let is_one = (1..=self.size.warehouses).contains(&w)
            && (1..=DISTRICTS).contains(&d)
            && (1..=self.size.customers()).contains(&c);
        let district = usize::from(w.wrapping_sub(1)) * usize::from(DISTRICTS) + usize::from(d);
        let customers = self.size.customers() as usize;
        is_one.then(|| (district - 1) * customers + c as usize - 1)
    }

    /// Sums the history, and checks conditions 1, 8 and 9.
    fn money(&mut self) -> Result<()> {
        let mut of_district: BTreeMap<(u16, u8), i64> = BTreeMap::new();
        self.each(table::HISTORY, &[], |this, key, value| {
            let row = History::decode(value)?;
            *of_district.entry((row.warehouse, row.district)).or_default() += row.amount;
            let at = this.customer_at(key);
            this.findings.demand(10, at.is_some(), || {
                format!("history {} belongs to no customer", key.escape_ascii())
            });
            if let Some(at) = at {
                this.customers[at].paid += row.amount;
                this.customers[at].payments += 1;
            }
            Ok(())
        })?;
        for w in 1..=self.size.warehouses {
            let (mut ytd, mut districts) = (None, 0);
            self.each(table::WAREHOUSE, &w.to_be_bytes(), |_, _, value| {
                ytd = Some(Warehouse::decode(value)?.ytd);
                Ok(())
            })?;
            self.each(table::DISTRICT, &w.to_be_bytes(), |this, key, value| {
                let d = key.get(2).copied().ok_or_else(|| unreadable("district", key))?;
                let ytd = District::decode(value)?.ytd;
                let paid = of_district.get(&(w, d)).copied().unwrap_or_default();
                districts += ytd;
                this.findings.demand(9, ytd == paid, || {
                    format!("district {w}/{d} has {ytd}, its history {paid}")
                });
                Ok(())
            })?;
            let paid: i64 = of_district.range((w, 0)..=(w, u8::MAX)).map(|(_, paid)| paid).sum();
            self.findings.demand(1, ytd == Some(districts), || {
                format!("warehouse {w} has {ytd:?}, its districts {districts}")
            });
            self.findings.demand(8, ytd == Some(paid), || {
                format!("warehouse {w} has {ytd:?}, its history {paid}")
            });
        }
        Ok(())
    }

    /// Checks the orders and the customers of a district.
    fn district(&mut self, w: u16, d: u8) -> Result<()> {
        let prefix = district_key(w, d);
        let mut new = Vec::new();
        self.each(table::NEW_ORDER, &prefix, |_, key, _| {
            new.push(number_at(key, 3)?);
            Ok(())
        })?;
        let mut orders: Vec<Seen> = Vec::new();
        self.each(table::ORDERS, &prefix, |_, key, value| {
            orders.push(Seen { o: number_at(key, 3)?, order: Order::decode(value)?, lines: 0 });
            Ok(())
        })?;
        self.numbers(w, d, &new, &orders)?;
        self.lines(w, d, &mut orders)?;
        for Seen { o, order, .. } in &orders {
            let is_new = new.binary_search(o).is_ok();
            self.findings.demand(5, (order.carrier == 0) == is_new, || {
                let carrier = order.carrier;
                format!("order {w}/{d}/{o} has carrier {carrier}, and is new: {is_new}")
            });
        }
        for o in &new {
            let has_order = orders.binary_search_by_key(o, |seen| seen.o).is_ok();
            self.findings.demand(5, has_order, || format!("new order {w}/{d}/{o} has no order"));
        }
        let mut index: Vec<[u8; 11]> = orders
            .iter()
            .map(|seen| customer_order_key(w, d, seen.order.customer, seen.o))
            .collect();
        index.sort_unstable();
        self.index(table::ORDERS_CUSTOMER, &prefix, &index)?;
        let deliveries = self.buyers(w, d)?;
        let gone = orders.len() as i64 - new.len() as i64;
        let expected = i64::from(self.size.delivered()) + deliveries;
        self.findings.demand(11, gone == expected, || {
            format!("district {w}/{d} has {gone} orders that are not new, not {expected}")
        });
        Ok(())
    }

    /// Checks conditions 2 and 3.
    fn numbers(&mut self, w: u16, d: u8, new: &[u32], orders: &[Seen]) -> Result<()> {
        let mut next = 0;
        self.each(table::DISTRICT, &district_key(w, d), |_, _, value| {
            next = District::decode(value)?.next_order;
            Ok(())
        })?;
        let last = orders.last().map_or(0, |seen| seen.o);
        let last_new = new.last().copied();
        let holds = u64::from(next) == u64::from(last) + 1 && last_new.is_none_or(|it| it == last);
        self.findings.demand(2, holds, || {
            format!(
                "district {w}/{d} has next order {next}, last order {last}, last new order {last_new:?}"
            )
        });
        let span = new.first().zip(last_new).map_or(0, |(first, last)| last - first + 1);
        self.findings.demand(3, span as usize == new.len(), || {
            format!("district {w}/{d} has {} new orders in a span of {span}", new.len())
        });
        Ok(())
    }

    /// Reads the lines of a district, and checks conditions 4, 6 and 7.
    fn lines(&mut self, w: u16, d: u8, orders: &mut [Seen]) -> Result<()> {
        let mut rows: u64 = 0;
        let expected: u64 = orders.iter().map(|seen| u64::from(seen.order.lines)).sum();
        let mut at = 0;
        self.each(table::ORDER_LINE, &district_key(w, d), |this, key, value| {
            let (o, line) = (number_at(key, 3)?, OrderLine::decode(value)?);
            rows += 1;
            while orders.get(at).is_some_and(|seen| seen.o < o) {
                at += 1;
            }
            let Some(seen) = orders.get_mut(at).filter(|seen| seen.o == o) else {
                this.findings.demand(6, false, || {
                    format!("a line belongs to order {w}/{d}/{o}, which is not there")
                });
                return Ok(());
            };
            seen.lines += 1;
            let is_delivered = line.delivery_date != 0;
            this.findings.demand(7, is_delivered == (seen.order.carrier != 0), || {
                let date = line.delivery_date;
                format!("a line of order {w}/{d}/{o} has delivery date {date}")
            });
            let key = customer_key(w, d, seen.order.customer);
            if let (true, Some(customer)) = (is_delivered, this.customer_at(&key)) {
                this.customers[customer].delivered += line.amount;
            }
            if o > this.size.customers() {
                this.sell(&line);
            }
            Ok(())
        })?;
        self.findings.demand(4, rows == expected, || {
            format!("district {w}/{d} has {rows} lines, its orders {expected}")
        });
        for Seen { o, order, lines } in orders {
            self.findings.demand(6, u32::from(order.lines) == *lines, || {
                format!("order {w}/{d}/{o} says {} lines and has {lines}", order.lines)
            });
        }
        Ok(())
    }

    /// Counts a line of an order that was entered after the load.
    fn sell(&mut self, line: &OrderLine) {
        let w = usize::from(line.supply_warehouse).wrapping_sub(1);
        let i = (line.item as usize).wrapping_sub(1);
        let items = self.size.items() as usize;
        let at = w.saturating_mul(items).saturating_add(i);
        match self.sold.get_mut(at).filter(|_| i < items) {
            Some(sold) => {
                sold.quantity += u32::from(line.quantity);
                sold.lines += 1;
            }
            None => self.findings.demand(14, false, || {
                format!("a line takes item {} of warehouse {}", line.item, line.supply_warehouse)
            }),
        }
    }

    /// Compares an index with the sorted keys that it should have.
    fn index<K: AsRef<[u8]>>(&mut self, table: usize, prefix: &[u8], keys: &[K]) -> Result<()> {
        let mut expected = keys.iter();
        self.each(table, prefix, |this, key, _| {
            let next = expected.next().map(AsRef::as_ref);
            this.findings.demand(13, next == Some(key), || {
                format!(
                    "an index has {} for {:?}",
                    key.escape_ascii(),
                    next.map(<[u8]>::escape_ascii)
                )
            });
            Ok(())
        })?;
        let missing = expected.count();
        self.findings.demand(13, missing == 0, || format!("an index misses {missing} records"));
        Ok(())
    }

    /// Checks conditions 10 and 12 for the customers of a district. Returns the sum of their
    /// deliveries.
    fn buyers(&mut self, w: u16, d: u8) -> Result<i64> {
        let (mut deliveries, mut count, mut names) = (0, 0, Vec::new());
        self.each(table::CUSTOMER, &district_key(w, d), |this, key, value| {
            let (c, customer) = (number_at(key, 3)?, Customer::decode(value)?);
            let at = this.customer_at(&customer_key(w, d, c));
            let at = at.ok_or_else(|| unreadable("customer", key))?;
            let Totals { paid, payments, delivered } = this.customers[at];
            let (balance, ytd) = (customer.balance, customer.ytd_payment);
            this.findings.demand(10, balance == delivered - paid, || {
                format!("customer {w}/{d}/{c} has {balance}, but got {delivered} and paid {paid}")
            });
            this.findings.demand(12, balance + ytd == delivered, || {
                format!("customer {w}/{d}/{c} has {balance} and {ytd} paid, but got {delivered}")
            });
            this.findings.demand(13, customer.payments == payments, || {
                format!("customer {w}/{d}/{c} made {} of {payments} payments", customer.payments)
            });
            deliveries += i64::from(customer.deliveries);
            count += 1;
            names.push(name_key(w, d, &customer, c));
            Ok(())
        })?;
        self.findings.demand(10, count == self.size.customers(), || {
            format!("district {w}/{d} has {count} customers")
        });
        names.sort_unstable();
        self.index(table::CUSTOMER_NAME, &district_key(w, d), &names)?;
        Ok(deliveries)
    }

    /// Checks condition 14. All orders of all districts must have been read, because an order may
    /// take from any warehouse.
    fn stock(&mut self, w: u16) -> Result<()> {
        let items = self.size.items();
        let first = usize::from(w - 1) * items as usize;
        let mut count = 0;
        self.each(table::STOCK, &w.to_be_bytes(), |this, key, value| {
            let (i, stock) = (number_at(key, 2)?, Stock::decode(value)?);
            let at = i.checked_sub(1).map(|i| first + i as usize).filter(|_| i <= items);
            let Sold { quantity, lines } = at.map(|at| this.sold[at]).unwrap_or_default();
            let holds = stock.ytd == u64::from(quantity) && stock.orders == lines;
            this.findings.demand(14, holds && at.is_some(), || {
                let (ytd, orders) = (stock.ytd, stock.orders);
                format!(
                    "stock {w}/{i} has {ytd} in {orders} lines, its orders {quantity} in {lines}"
                )
            });
            count += 1;
            Ok(())
        })?;
        self.findings.demand(14, count == items, || format!("warehouse {w} has {count} items"));
        Ok(())
    }
}
