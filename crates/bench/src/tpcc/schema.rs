//! Tables, keys and records of TPC-C (clauses 1.2 and 1.3).
//!
//! ```text
//!  table              key                          record
//!  warehouse          w                            Warehouse
//!  district           w d                          District
//!  customer           w d c                        Customer
//!  customer_name      w d last 0 first 0 c         nothing: finds customers by last name
//!  history            w d c n                      History
//!  new_order          w d o                        nothing
//!  orders             w d o                        Order
//!  orders_customer    w d c o                      nothing: finds the last order of a customer
//!  order_line         w d o l                      OrderLine
//!  item               i                            Item
//!  stock              w i                          Stock
//! ```
//!
//! Numbers in keys are big endian, so that keys are in the order of the numbers: `w` has 2 bytes,
//! `d` and `l` have 1, all others 4. A row of the history has no key in the specification. Here its
//! key is that of its customer and the number of the customer's payment, which the same transaction
//! counts.
//!
//! Records have the sizes of the specification's rows (clause 4.2.2), give or take the lengths of
//! their texts. Money is in cents, rates in hundredths of a percent, dates in microseconds; date 0
//! and carrier 0 stand for null.

use spinney_base::{Error, Result};

use crate::fields::{Field, TableFields};
use crate::record::{records, unreadable};

/// Names of the tables, in the order of their numbers.
pub const TABLES: [&str; 11] = [
    "warehouse",
    "district",
    "customer",
    "customer_name",
    "history",
    "new_order",
    "orders",
    "orders_customer",
    "order_line",
    "item",
    "stock",
];

/// Fields of the tables, in the order of their records, and the longest keys.
pub const FIELDS: &[TableFields] = {
    use Field::{Fixed, Text};
    &[
        TableFields {
            key: 2,
            fields: &[Text(10), Text(20), Text(20), Text(20), Text(2), Text(9), Fixed(4), Fixed(8)],
        },
        TableFields {
            key: 3,
            fields: &[
                Text(10),
                Text(20),
                Text(20),
                Text(20),
                Text(2),
                Text(9),
                Fixed(4),
                Fixed(8),
                Fixed(4),
            ],
        },
        TableFields {
            key: 7,
            fields: &[
                Text(16),
                Text(2),
                Text(16),
                Text(20),
                Text(20),
                Text(20),
                Text(2),
                Text(9),
                Text(16),
                Fixed(8),
                Text(2),
                Fixed(8),
                Fixed(4),
                Fixed(8),
                Fixed(8),
                Fixed(4),
                Fixed(4),
                Text(500),
            ],
        },
        TableFields { key: 41, fields: &[] },
        TableFields { key: 11, fields: &[Fixed(2), Fixed(1), Fixed(8), Fixed(8), Text(24)] },
        TableFields { key: 7, fields: &[] },
        TableFields { key: 7, fields: &[Fixed(4), Fixed(8), Fixed(1), Fixed(1), Fixed(1)] },
        TableFields { key: 11, fields: &[] },
        TableFields {
            key: 8,
            fields: &[Fixed(4), Fixed(2), Fixed(8), Fixed(1), Fixed(8), Fixed(DIST_BYTES)],
        },
        TableFields { key: 4, fields: &[Fixed(4), Text(24), Fixed(4), Text(50)] },
        TableFields {
            key: 6,
            fields: &[
                Fixed(4),
                Fixed(8),
                Fixed(4),
                Fixed(4),
                Fixed(DIST_BYTES),
                Fixed(DIST_BYTES),
                Fixed(DIST_BYTES),
                Fixed(DIST_BYTES),
                Fixed(DIST_BYTES),
                Fixed(DIST_BYTES),
                Fixed(DIST_BYTES),
                Fixed(DIST_BYTES),
                Fixed(DIST_BYTES),
                Fixed(DIST_BYTES),
                Text(50),
            ],
        },
        // Region, nation and supplier, of Query 2.
        TableFields { key: 1, fields: &[Text(25), Text(100)] },
        TableFields { key: 1, fields: &[Text(25), Fixed(1), Text(100)] },
        TableFields {
            key: 4,
            fields: &[Text(25), Text(40), Fixed(1), Text(15), Fixed(8), Text(100)],
        },
    ]
};

/// Tables that only gain records, all over: the history and both indexes.
pub const GATHERED: &[&str] = &["customer_name", "history", "orders_customer"];

#[expect(missing_docs, reason = "the module's table says what each holds")]
pub mod table {
    //! Numbers of the tables.
    pub const WAREHOUSE: usize = 0;
    pub const DISTRICT: usize = 1;
    pub const CUSTOMER: usize = 2;
    pub const CUSTOMER_NAME: usize = 3;
    pub const HISTORY: usize = 4;
    pub const NEW_ORDER: usize = 5;
    pub const ORDERS: usize = 6;
    pub const ORDERS_CUSTOMER: usize = 7;
    pub const ORDER_LINE: usize = 8;
    pub const ITEM: usize = 9;
    pub const STOCK: usize = 10;
}

/// Districts of each warehouse.
pub const DISTRICTS: u8 = 10;

/// Bytes of a district's text in stock.
pub const DIST_BYTES: usize = 24;

/// How large the database is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Warehouses, from 1.
    pub warehouses: u16,
    /// Divides items, and customers and orders of a district; 1 for the specification's numbers.
    pub divisor: u32,
}

impl Size {
    /// Most divisor: what is left are ten customers of a district.
    pub const DIVISOR_MAX: u32 = 300;

    /// Checks the numbers.
    ///
    /// # Errors
    /// `InvalidArgument` that names the option.
    pub fn check(self) -> Result<()> {
        if self.warehouses == 0 {
            return Err(Error::invalid("--warehouses must be at least 1"));
        }
        if !(1..=Self::DIVISOR_MAX).contains(&self.divisor) {
            return Err(Error::invalid("--scale must be 1 to 300"));
        }
        Ok(())
    }

    /// Number of items.
    #[must_use]
    pub fn items(self) -> u32 {
        100_000 / self.divisor
    }

    /// Number of customers of a district, and of its first orders.
    #[must_use]
    pub fn customers(self) -> u32 {
        3000 / self.divisor
    }

    /// Number of a district's first orders that are delivered.
    #[must_use]
    pub fn delivered(self) -> u32 {
        self.customers() / 10 * 7
    }

    /// Number of last names that customers have in each district.
    #[must_use]
    pub fn last_names(self) -> u32 {
        self.customers().min(super::random::LAST_NAMES)
    }
}

records! {
    /// A warehouse.
    #[expect(missing_docs, reason = "the specification's names")]
    Warehouse {
        name: String,
        street_1: String,
        street_2: String,
        city: String,
        state: String,
        zip: String,
        tax: u32,
        ytd: i64,
    }

    /// A district.
    #[expect(missing_docs, reason = "the specification's names")]
    District {
        name: String,
        street_1: String,
        street_2: String,
        city: String,
        state: String,
        zip: String,
        tax: u32,
        ytd: i64,
        next_order: u32,
    }

    /// A customer.
    #[expect(missing_docs, reason = "the specification's names")]
    Customer {
        first: String,
        middle: String,
        last: String,
        street_1: String,
        street_2: String,
        city: String,
        state: String,
        zip: String,
        phone: String,
        since: u64,
        /// Good (`GC`) or bad (`BC`).
        credit: String,
        credit_limit: i64,
        discount: u32,
        balance: i64,
        ytd_payment: i64,
        payments: u32,
        deliveries: u32,
        data: String,
    }

    /// A payment.
    #[expect(missing_docs, reason = "the specification's names")]
    History {
        /// The warehouse that was paid.
        warehouse: u16,
        district: u8,
        date: u64,
        amount: i64,
        data: String,
    }

    /// An order.
    #[expect(missing_docs, reason = "the specification's names")]
    Order {
        customer: u32,
        entry_date: u64,
        /// 0 until it is delivered.
        carrier: u8,
        /// Number of its lines.
        lines: u8,
        /// 1 if all lines are of the order's own warehouse.
        all_local: u8,
    }

    /// A line of an order.
    #[expect(missing_docs, reason = "the specification's names")]
    OrderLine {
        item: u32,
        supply_warehouse: u16,
        /// 0 until it is delivered.
        delivery_date: u64,
        quantity: u8,
        amount: i64,
        dist_info: [u8; DIST_BYTES],
    }

    /// An item.
    #[expect(missing_docs, reason = "the specification's names")]
    Item {
        image: u32,
        name: String,
        price: u32,
        data: String,
    }

    /// What a warehouse has of an item.
    #[expect(missing_docs, reason = "the specification's names")]
    Stock {
        quantity: u32,
        ytd: u64,
        orders: u32,
        remote: u32,
        /// The texts of the ten districts.
        dist: [u8; DIST_BYTES * DISTRICTS as usize],
        data: String,
    }
}

/// Appends numbers, big endian.
macro_rules! key {
    ($length:literal: $($part:expr),+) => {{
        let mut key = [0; $length];
        let mut at = 0;
        $(
            let part = $part.to_be_bytes();
            key[at..at + part.len()].copy_from_slice(&part);
            at += part.len();
        )+
        debug_assert_eq!(at, $length);
        key
    }};
}

/// Key of a warehouse, and prefix of all that is its own.
#[must_use]
pub fn warehouse_key(w: u16) -> [u8; 2] {
    w.to_be_bytes()
}

/// Key of a district, and prefix of all that is its own.
#[must_use]
pub fn district_key(w: u16, d: u8) -> [u8; 3] {
    key!(3: w, d)
}

/// Key of a customer, and prefix of its orders in the index.
#[must_use]
pub fn customer_key(w: u16, d: u8, c: u32) -> [u8; 7] {
    key!(7: w, d, c)
}

/// Prefix of the customers of a last name, in the order of their first names.
#[must_use]
pub fn name_prefix(w: u16, d: u8, last: &str) -> Vec<u8> {
    [&district_key(w, d)[..], last.as_bytes(), &[0]].concat()
}

/// Key of a customer in the index of names.
#[must_use]
pub fn name_key(w: u16, d: u8, customer: &Customer, c: u32) -> Vec<u8> {
    let prefix = name_prefix(w, d, &customer.last);
    [&prefix[..], customer.first.as_bytes(), &[0], &c.to_be_bytes()].concat()
}

/// Key of the payment `n` of a customer.
#[must_use]
pub fn history_key(w: u16, d: u8, c: u32, n: u32) -> [u8; 11] {
    key!(11: w, d, c, n)
}

/// Key of an order, in the tables of orders and new orders, and prefix of its lines.
#[must_use]
pub fn order_key(w: u16, d: u8, o: u32) -> [u8; 7] {
    key!(7: w, d, o)
}

/// Key of an order in the index of customers.
#[must_use]
pub fn customer_order_key(w: u16, d: u8, c: u32, o: u32) -> [u8; 11] {
    key!(11: w, d, c, o)
}

/// Key of a line of an order.
#[must_use]
pub fn line_key(w: u16, d: u8, o: u32, line: u8) -> [u8; 8] {
    key!(8: w, d, o, line)
}

/// Key of an item.
#[must_use]
pub fn item_key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

/// Key of an item in the stock of a warehouse.
#[must_use]
pub fn stock_key(w: u16, i: u32) -> [u8; 6] {
    key!(6: w, i)
}

/// The key above all keys with a prefix, which is not all 255.
#[must_use]
pub fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    end
}

/// The number of 4 bytes at a place of a key.
///
/// # Errors
/// `Corruption` when the key is too short.
pub fn number_at(key: &[u8], at: usize) -> Result<u32> {
    let bytes = key.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map(|bytes| u32::from_be_bytes(*bytes)).ok_or_else(|| unreadable("key", key))
}

/// The customer that a key of the index of names ends with.
///
/// # Errors
/// `Corruption` when the key is too short.
pub fn named_customer(key: &[u8]) -> Result<u32> {
    let at = key.len().checked_sub(4).ok_or_else(|| unreadable("key", key))?;
    number_at(key, at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::Record;

    fn read_back<R: Record + PartialEq + std::fmt::Debug>(record: &R) {
        let bytes = record.encode();
        assert_eq!(&R::decode(&bytes).unwrap(), record);
        assert!(R::decode(&bytes[..bytes.len() - 1]).is_err(), "cut short");
        assert!(R::decode(&[&bytes[..], &[0]].concat()).is_err(), "one byte too many");
    }

    proptest! {
        #[test]
        fn records_are_read_back(
            texts in proptest::array::uniform12("\\PC{0,30}"),
            data in "[a-z]{0,500}",
            numbers in any::<[u32; 4]>(), small in any::<[u8; 4]>(), w in any::<u16>(),
            dates in any::<[u64; 2]>(), money in any::<[i64; 3]>(), dist in any::<[u8; 24]>(),
        ) {
            let [name, street_1, street_2, city, state, zip, phone, first, middle, last, credit, _] = texts;
            let [tax, next_order, discount, payments] = numbers;
            let [ytd, balance, credit_limit] = money;
            read_back(&Warehouse {
                name: name.clone(), street_1: street_1.clone(), street_2: street_2.clone(),
                city: city.clone(), state: state.clone(), zip: zip.clone(), tax, ytd,
            });
            read_back(&District {
                name: name.clone(), street_1: street_1.clone(), street_2: street_2.clone(),
                city: city.clone(), state: state.clone(), zip: zip.clone(), tax, ytd, next_order,
            });
            read_back(&Customer {
                first, middle, last, street_1, street_2, city, state, zip, phone, since: dates[0],
                credit, credit_limit, discount, balance, ytd_payment: ytd, payments,
                deliveries: next_order, data: data.clone(),
            });
            read_back(&History {
                warehouse: w, district: small[0], date: dates[0], amount: ytd, data: data.clone(),
            });
            read_back(&Order {
                customer: tax, entry_date: dates[0], carrier: small[0], lines: small[1], all_local: small[2],
            });
            read_back(&OrderLine {
                item: tax, supply_warehouse: w, delivery_date: dates[1], quantity: small[0], amount: ytd,
                dist_info: dist,
            });
            read_back(&Item { image: tax, name, price: discount, data: data.clone() });
            let mut ten = [0; 240];
            ten[..24].copy_from_slice(&dist);
            read_back(&Stock {
                quantity: tax, ytd: dates[1], orders: payments, remote: discount, dist: ten, data,
            });
        }

        #[test]
        fn keys_are_in_the_order_of_their_numbers(
            one in any::<(u16, u8, u32, u32)>(), other in any::<(u16, u8, u32, u32)>(),
        ) {
            let key = |(w, d, c, o)| customer_order_key(w, d, c, o);
            prop_assert_eq!(one.cmp(&other), key(one).cmp(&key(other)));
            let (w, d, c, o) = one;
            prop_assert_eq!(number_at(&key(one), 3).unwrap(), c);
            prop_assert_eq!(number_at(&key(one), 7).unwrap(), o);
            let prefix = customer_key(w, d, c);
            if prefix != [255; 7] {
                prop_assert!(key(one)[..] < end_of(&prefix)[..] && prefix[..] <= key(one)[..]);
            }
        }
    }

    /// Average rows of clause 4.2.2, give or take a fifth.
    #[test]
    fn records_have_the_sizes_of_the_specification() {
        let size = Size { warehouses: 1, divisor: 300 };
        let sizes = [89, 95, 655, 46, 24, 54, 82, 306];
        let of = [table::WAREHOUSE, table::DISTRICT, table::CUSTOMER, table::HISTORY]
            .into_iter()
            .chain([table::ORDERS, table::ORDER_LINE, table::ITEM, table::STOCK]);
        for (table, expected) in of.zip(sizes) {
            let (mut bytes, mut count) = (0, 0);
            for (key, value) in crate::tpcc::load::records(size, 1, table) {
                bytes += key.len() + value.len();
                count += 1;
            }
            let average = bytes / count;
            let range = expected * 8 / 10 - 2..=expected * 12 / 10 + 2;
            assert!(range.contains(&average), "{}: {average} for {expected}", TABLES[table]);
        }
    }
}
