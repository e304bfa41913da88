//! The first population of TPC-C's database (clause 4.3.3.1), computed from the seed record by
//! record, so that each table can be loaded in the order of its keys.

use spinney_base::Result;

use crate::record::Record;
use crate::tpcc::query2;
use crate::tpcc::random::{Constants, Random, last_name};
use crate::tpcc::schema::{
    Customer, DIST_BYTES, DISTRICTS, District, History, Item, Order, OrderLine, Size, Stock,
    Warehouse, customer_key, customer_order_key, district_key, history_key, item_key, line_key,
    name_key, order_key, stock_key, table, warehouse_key,
};
use crate::transactional::TransactionalStore;

/// The date of everything that is loaded.
const LOADED: u64 = 1;
/// What each customer has paid before, in cents.
const FIRST_PAYMENT: i64 = 1000;

/// Records of a table in the order of their keys.
pub type Records<'a> = Box<dyn Iterator<Item = Pair> + 'a>;

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Loads this many tables, which are empty, and brings them to stable storage. Returns the number of
/// records and the bytes of their keys and values.
///
/// # Errors
/// Whatever the engine says.
pub fn load(
    store: &dyn TransactionalStore,
    size: Size,
    seed: u64,
    tables: usize,
) -> Result<(u64, u64)> {
    let (mut count, mut bytes) = (0, 0);
    for table in 0..tables {
        let counted = |(key, value): &(Vec<u8>, Vec<u8>)| bytes += (key.len() + value.len()) as u64;
        count += store.load(table, &mut records(size, seed, table).inspect(counted))?;
    }
    store.flush()?;
    Ok((count, bytes))
}

/// Returns the first records of a table.
#[must_use]
pub fn records<'a>(size: Size, seed: u64, table: usize) -> Records<'a> {
    let first = First { size, seed, constants: Constants::draw(seed)[0] };
    let warehouses = 1..=size.warehouses;
    let districts = warehouses.clone().flat_map(|w| (1..=DISTRICTS).map(move |d| (w, d)));
    let of_customers = move |make: fn(&First, u16, u8, u32) -> Pair| -> Records<'a> {
        Box::new(
            districts
                .clone()
                .flat_map(move |(w, d)| (1..=size.customers()).map(move |c| make(&first, w, d, c))),
        )
    };
    let districts = warehouses.clone().flat_map(|w| (1..=DISTRICTS).map(move |d| (w, d)));
    match table {
        table::WAREHOUSE => Box::new(
            warehouses.map(move |w| (warehouse_key(w).to_vec(), first.warehouse(w).encode())),
        ),
        table::DISTRICT => Box::new(
            districts
                .map(move |(w, d)| (district_key(w, d).to_vec(), first.district(w, d).encode())),
        ),
        table::CUSTOMER => of_customers(|first, w, d, c| {
            (customer_key(w, d, c).to_vec(), first.customer(w, d, c).encode())
        }),
        table::CUSTOMER_NAME => Box::new(districts.flat_map(move |(w, d)| {
            let customers = 1..=size.customers();
            sorted(customers.map(|c| name_key(w, d, &first.customer(w, d, c), c)).collect())
        })),
        table::HISTORY => of_customers(|first, w, d, c| {
            (history_key(w, d, c, 1).to_vec(), first.history(w, d, c).encode())
        }),
        table::NEW_ORDER => Box::new(districts.flat_map(move |(w, d)| {
            let orders = size.delivered() + 1..=size.customers();
            orders.map(move |o| (order_key(w, d, o).to_vec(), Vec::new()))
        })),
        table::ORDERS => Box::new(districts.flat_map(move |(w, d)| {
            let customers = first.customers_of_orders(w, d).into_iter();
            (1..)
                .zip(customers)
                .map(move |(o, c)| (order_key(w, d, o).to_vec(), first.order(w, d, o, c).encode()))
        })),
        table::ORDERS_CUSTOMER => Box::new(districts.flat_map(move |(w, d)| {
            let customers = first.customers_of_orders(w, d).into_iter();
            let keys = (1..).zip(customers).map(|(o, c)| customer_order_key(w, d, c, o).to_vec());
            sorted(keys.collect())
        })),
        table::ORDER_LINE => Box::new(districts.flat_map(move |(w, d)| {
            (1..=size.customers()).flat_map(move |o| {
                let first = first;
                first.lines(w, d, o)
            })
        })),
        table::ITEM => Box::new(
            (1..=size.items()).map(move |i| (item_key(i).to_vec(), first.item(i).encode())),
        ),
        table::STOCK => Box::new(warehouses.flat_map(move |w| {
            (1..=size.items()).map(move |i| (stock_key(w, i).to_vec(), first.stock(w, i).encode()))
        })),
        other => Box::new(query2::records(seed, other).into_iter()),
    }
}

/// Keys of an index in their order.
fn sorted(mut keys: Vec<Vec<u8>>) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    keys.sort_unstable();
    keys.into_iter().map(|key| (key, Vec::new()))
}

/// Computes first records.
#[derive(Clone, Copy)]
struct First {
    size: Size,
    seed: u64,
    constants: Constants,
}

/// Name, two streets, city, state and zip of warehouses and districts.
fn place(random: &mut Random) -> [String; 6] {
    [
        random.letters(6..=10),
        random.letters(10..=20),
        random.letters(10..=20),
        random.letters(10..=20),
        random.letters(2..=2),
        random.zip(),
    ]
}

/// A number for the random draws of one record: kind of record, warehouse, district, number.
fn purpose(table: usize, w: u16, d: u8, number: u32) -> u64 {
    (table as u64 + 2) << 56 | u64::from(w) << 40 | u64::from(d) << 32 | u64::from(number)
}

impl First {
    fn random(&self, table: usize, w: u16, d: u8, number: u32) -> Random {
        Random::new(self.seed, purpose(table, w, d, number))
    }

    /// What all customers of a district have paid.
    fn paid(&self) -> i64 {
        FIRST_PAYMENT * i64::from(self.size.customers())
    }

    fn warehouse(&self, w: u16) -> Warehouse {
        let mut random = self.random(table::WAREHOUSE, w, 0, 0);
        let [name, street_1, street_2, city, state, zip] = place(&mut random);
        let (tax, ytd) = (random.number(0..=2000), self.paid() * i64::from(DISTRICTS));
        Warehouse { name, street_1, street_2, city, state, zip, tax, ytd }
    }

    fn district(&self, w: u16, d: u8) -> District {
        let mut random = self.random(table::DISTRICT, w, d, 0);
        let [name, street_1, street_2, city, state, zip] = place(&mut random);
        let next_order = self.size.customers() + 1;
        let (tax, ytd) = (random.number(0..=2000), self.paid());
        District { name, street_1, street_2, city, state, zip, tax, ytd, next_order }
    }

    fn customer(&self, w: u16, d: u8, c: u32) -> Customer {
        let mut random = self.random(table::CUSTOMER, w, d, c);
        let names = self.size.last_names();
        let last = if c <= names {
            last_name(c - 1)
        } else {
            last_name(random.uneven(255, self.constants.last_name, 0..=names - 1))
        };
        let [_, street_1, street_2, city, state, zip] = place(&mut random);
        Customer {
            first: random.letters(8..=16),
            middle: "OE".to_owned(),
            last,
            street_1,
            street_2,
            city,
            state,
            zip,
            phone: random.digits(16),
            since: LOADED,
            credit: if random.percent(10) { "BC" } else { "GC" }.to_owned(),
            credit_limit: 5_000_000,
            discount: random.number(0..=5000),
            balance: -FIRST_PAYMENT,
            ytd_payment: FIRST_PAYMENT,
            payments: 1,
            deliveries: 0,
            data: random.letters(300..=500),
        }
    }

    fn history(&self, w: u16, d: u8, c: u32) -> History {
        let data = self.random(table::HISTORY, w, d, c).letters(12..=24);
        History { warehouse: w, district: d, date: LOADED, amount: FIRST_PAYMENT, data }
    }

    /// The customers of a district's first orders: each has one.
    fn customers_of_orders(&self, w: u16, d: u8) -> Vec<u32> {
        self.random(table::ORDERS_CUSTOMER, w, d, 0).shuffled(1..=self.size.customers())
    }

    fn is_delivered(&self, o: u32) -> bool {
        o <= self.size.delivered()
    }

    fn order(&self, w: u16, d: u8, o: u32, customer: u32) -> Order {
        let mut random = self.random(table::ORDERS, w, d, o);
        let lines = small(random.number(5..=15));
        let carrier = if self.is_delivered(o) { small(random.number(1..=10)) } else { 0 };
        Order { customer, entry_date: LOADED, carrier, lines, all_local: 1 }
    }

    fn lines(self, w: u16, d: u8, o: u32) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + use<> {
        let mut random = self.random(table::ORDER_LINE, w, d, o);
        let (is_delivered, items) = (self.is_delivered(o), self.size.items());
        (1..=self.order(w, d, o, 0).lines).map(move |line| {
            let amount = if is_delivered { 0 } else { i64::from(random.number(1..=999_999)) };
            let record = OrderLine {
                item: random.number(1..=items),
                supply_warehouse: w,
                delivery_date: if is_delivered { LOADED } else { 0 },
                quantity: 5,
                amount,
                dist_info: dist_info(&mut random),
            };
            (line_key(w, d, o, line).to_vec(), record.encode())
        })
    }

    fn item(&self, i: u32) -> Item {
        let mut random = self.random(table::ITEM, 0, 0, i);
        Item {
            image: random.number(1..=10_000),
            name: random.letters(14..=24),
            price: random.number(100..=10_000),
            data: random.data(),
        }
    }

    fn stock(&self, w: u16, i: u32) -> Stock {
        let mut random = self.random(table::STOCK, w, 0, i);
        let mut dist = [0; DIST_BYTES * DISTRICTS as usize];
        for one in dist.chunks_exact_mut(DIST_BYTES) {
            one.copy_from_slice(&dist_info(&mut random));
        }
        let quantity = random.number(10..=100);
        Stock { quantity, ytd: 0, orders: 0, remote: 0, dist, data: random.data() }
    }
}

fn dist_info(random: &mut Random) -> [u8; DIST_BYTES] {
    let text = random.letters(24..=24);
    std::array::from_fn(|at| text.as_bytes()[at])
}

/// A number that was drawn from a range below 256.
fn small(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}
