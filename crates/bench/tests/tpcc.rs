//! TPC-C at a small scale on our engines: the mix keeps the conditions, and each condition sees
//! damage.

use std::path::Path;
use std::time::Duration;

use spinney_base::Result;
use spinney_bench::driver::{Knobs, OpenConfig};
use spinney_bench::plan::{Durability, TornWrites};
use spinney_bench::record::Record;
use spinney_bench::tpcc::run::{Mix, Tpcc, TpccPlan, check};
use spinney_bench::tpcc::schema::{
    Customer, District, GATHERED, History, Order, OrderLine, Size, Stock, TABLES, Warehouse,
    customer_key, customer_order_key, district_key, history_key, line_key, name_key, order_key,
    stock_key, table, warehouse_key,
};
use spinney_bench::transactional::threads::{Measured, Round, measure};
use spinney_bench::transactional::workload::TransactionalWorkload;
use spinney_bench::transactional::{
    Access, Kind, TransactionalDriver, TransactionalStore, Verdict, own,
};

const SIZE: Size = Size { warehouses: 2, divisor: 150 };

fn open(driver: &dyn TransactionalDriver, directory: &Path) -> Box<dyn TransactionalStore> {
    let config = OpenConfig {
        directory: directory.to_owned(),
        memory: 64 << 20,
        durability: Durability::Buffered,
        torn_writes: TornWrites::Auto,
        threads: 4,
        keyspaces: TABLES.len(),
        knobs: Knobs::new(),
    };
    driver.open(&config, &TABLES).unwrap()
}

fn tpcc(mix: Mix) -> Tpcc {
    Tpcc::new(TpccPlan { mix, warehouses: SIZE.warehouses, scale: SIZE.divisor }, 7)
}

fn play(store: &dyn TransactionalStore, mix: Mix, operations: u64) -> Measured {
    let round = Round {
        number: 0,
        threads: 4,
        warmup: Duration::ZERO,
        time: Duration::from_secs(600),
        operations: Some(operations),
    };
    measure(store, &tpcc(mix), round, &mut |_, _| Ok(())).unwrap()
}

#[test]
fn the_mix_keeps_the_conditions() {
    for driver in own::drivers(GATHERED) {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&*driver, directory.path());
        let workload = tpcc(Mix::Full);
        workload.load(&*store).unwrap();
        let mut session = store.session().unwrap();
        assert_eq!(check(&mut *session, SIZE).unwrap().to_string(), "all conditions hold");
        let measured = play(&*store, Mix::Full, 1000);
        for (kind, name) in measured.kinds.iter().zip(workload.kinds()) {
            // Query 2 is in another mix.
            let is_right =
                if *name == "Query2" { kind.committed == 0 } else { kind.committed >= 20 };
            assert!(is_right, "{}: {name}: {}", driver.name(), kind.committed);
        }
        let all: u64 = measured.kinds.iter().map(|kind| kind.committed + kind.rolled_back).sum();
        assert_eq!(all, 1000);
        assert_eq!(check(&mut *session, SIZE).unwrap().to_string(), "all conditions hold");
        drop(session);
        store.close().unwrap();
        let store = open(&*driver, directory.path());
        assert_eq!(workload.check(&mut *store.session().unwrap()).unwrap(), None);
        store.close().unwrap();
    }
}

/// A check of a snapshot beside clients finds what a check at rest finds.
#[test]
fn a_snapshot_beside_clients_keeps_the_conditions() {
    let directory = tempfile::tempdir().unwrap();
    let driver = own::drivers(GATHERED).pop().unwrap();
    assert_eq!(driver.name(), "mixed");
    let store = open(&*driver, directory.path());
    tpcc(Mix::Full).load(&*store).unwrap();
    let mut session = store.session().unwrap();
    let mut looks = 0;
    let round = Round {
        number: 0,
        threads: 2,
        warmup: Duration::ZERO,
        time: Duration::from_secs(600),
        operations: Some(1000),
    };
    measure(&*store, &tpcc(Mix::Full), round, &mut |_, _| {
        looks += 1;
        let findings = check(&mut *session, SIZE)?;
        assert!(findings.is_empty(), "{findings}");
        Ok(())
    })
    .unwrap();
    assert!(looks > 1, "{looks} looks");
}

#[test]
fn one_new_order_in_a_hundred_is_rolled_back() {
    let directory = tempfile::tempdir().unwrap();
    let driver = own::drivers(GATHERED).remove(0);
    let store = open(&*driver, directory.path());
    tpcc(Mix::NewOrder).load(&*store).unwrap();
    let measured = play(&*store, Mix::NewOrder, 2000);
    let (placed, rolled_back) = (measured.kinds[0].committed, measured.kinds[0].rolled_back);
    assert_eq!(placed + rolled_back, 2000);
    assert!((5..50).contains(&rolled_back), "{rolled_back} were rolled back");
    let mut session = store.session().unwrap();
    let mut orders = 0;
    session
        .transact(Kind::Report, &mut |access| {
            for (w, d) in (1..=SIZE.warehouses).flat_map(|w| (1..=10).map(move |d| (w, d))) {
                let district: District = read(access, table::DISTRICT, &district_key(w, d))?;
                orders += u64::from(district.next_order - 1 - SIZE.customers());
            }
            Ok(Verdict::Commit)
        })
        .unwrap();
    assert_eq!(orders, placed, "a rolled back order left its number");
}

fn read<R: Record>(access: &mut dyn Access, table: usize, key: &[u8]) -> Result<R> {
    let mut value = Vec::new();
    assert!(access.get(table, key, &mut value)?, "{} {key:?}", TABLES[table]);
    R::decode(&value)
}

/// Changes a record by hand.
fn change<R: Record>(
    access: &mut dyn Access,
    table: usize,
    key: &[u8],
    change: impl FnOnce(&mut R),
) -> Result<()> {
    let mut record: R = read(access, table, key)?;
    change(&mut record);
    access.put(table, key, &record.encode())
}

type Damage = fn(&mut dyn Access) -> Result<()>;

/// A new order that is neither the first nor the last of its district.
fn middle() -> u32 {
    SIZE.delivered() + 2
}

/// Damage by hand, and the conditions that it breaks.
const DAMAGES: [(&str, &[u8], Damage); 20] = [
    ("money of a warehouse", &[1, 8], |it| {
        change(it, table::WAREHOUSE, &warehouse_key(2), |it: &mut Warehouse| it.ytd += 1)
    }),
    ("money of a district", &[1, 9], |it| {
        change(it, table::DISTRICT, &district_key(2, 3), |it: &mut District| it.ytd -= 1)
    }),
    ("money that changed districts", &[9], |it| {
        change(it, table::DISTRICT, &district_key(1, 1), |it: &mut District| it.ytd += 5)?;
        change(it, table::DISTRICT, &district_key(1, 2), |it: &mut District| it.ytd -= 5)
    }),
    ("the next order", &[2], |it| {
        change(it, table::DISTRICT, &district_key(1, 10), |it: &mut District| it.next_order += 1)
    }),
    ("a new order that is gone", &[3, 5, 11], |it| {
        it.remove(table::NEW_ORDER, &order_key(1, 1, middle()))
    }),
    ("a new order without an order", &[2, 3, 5, 11], |it| {
        it.put(table::NEW_ORDER, &order_key(1, 1, SIZE.customers() + 5), &[])
    }),
    ("a line too many", &[4, 6], |it| {
        let line: OrderLine = read(it, table::ORDER_LINE, &line_key(1, 1, 1, 1))?;
        it.put(table::ORDER_LINE, &line_key(1, 1, 1, 99), &line.encode())
    }),
    ("a line of no order", &[4, 6], |it| {
        let line: OrderLine = read(it, table::ORDER_LINE, &line_key(1, 1, 1, 1))?;
        it.put(table::ORDER_LINE, &line_key(1, 1, 0, 1), &line.encode())
    }),
    ("a carrier of a new order", &[5, 7], |it| {
        change(it, table::ORDERS, &order_key(2, 10, middle()), |it: &mut Order| it.carrier = 3)
    }),
    ("counts of lines", &[6], |it| {
        change(it, table::ORDERS, &order_key(1, 4, 1), |it: &mut Order| it.lines += 1)?;
        change(it, table::ORDERS, &order_key(1, 4, 2), |it: &mut Order| it.lines -= 1)
    }),
    ("an early delivery", &[7, 10, 12], |it| {
        let key = line_key(1, 1, middle(), 1);
        change(it, table::ORDER_LINE, &key, |it: &mut OrderLine| it.delivery_date = 9)
    }),
    ("a delivery without a date", &[7], |it| {
        let key = line_key(1, 1, 1, 2);
        change(it, table::ORDER_LINE, &key, |it: &mut OrderLine| it.delivery_date = 0)
    }),
    ("money of a payment", &[8, 9, 10], |it| {
        let key = history_key(1, 1, 1, 1);
        change(it, table::HISTORY, &key, |it: &mut History| it.amount += 1)
    }),
    ("the balance of a customer", &[10, 12], |it| {
        change(it, table::CUSTOMER, &customer_key(2, 2, 2), |it: &mut Customer| it.balance += 1)
    }),
    ("deliveries of a customer", &[11], |it| {
        change(it, table::CUSTOMER, &customer_key(2, 2, 2), |it: &mut Customer| it.deliveries += 1)
    }),
    ("payments of a customer", &[12], |it| {
        change(it, table::CUSTOMER, &customer_key(1, 1, 1), |it: &mut Customer| it.ytd_payment -= 1)
    }),
    ("a customer that the index lacks", &[13], |it| {
        let customer: Customer = read(it, table::CUSTOMER, &customer_key(1, 1, 1))?;
        it.remove(table::CUSTOMER_NAME, &name_key(1, 1, &customer, 1))
    }),
    ("an order too many in the index", &[13], |it| {
        it.put(table::ORDERS_CUSTOMER, &customer_order_key(1, 1, 1, 999), &[])
    }),
    ("stock that was taken twice", &[14], |it| {
        change(it, table::STOCK, &stock_key(2, 2), |it: &mut Stock| it.ytd += 1)
    }),
    ("an item that is gone", &[14], |it| it.remove(table::STOCK, &stock_key(1, 1))),
];

#[test]
fn each_condition_sees_damage() {
    let mut seen = Vec::new();
    let directory = tempfile::tempdir().unwrap();
    let driver = own::drivers(GATHERED).remove(0);
    let store = open(&*driver, directory.path());
    tpcc(Mix::Full).load(&*store).unwrap();
    let mut session = store.session().unwrap();
    for (what, expected, damage) in DAMAGES {
        // The damage and the check are one transaction that is rolled back.
        let mut found = Vec::new();
        session
            .transact(Kind::Write, &mut |access| {
                damage(access)?;
                let findings = spinney_bench::tpcc::conditions::check(access, SIZE)?;
                found = findings.conditions();
                assert_eq!(findings.is_empty(), found.is_empty());
                for condition in &found {
                    let text = format!("condition {condition} is broken");
                    assert!(findings.to_string().contains(&text), "{findings}");
                }
                Ok(Verdict::Rollback)
            })
            .unwrap();
        assert_eq!(found, expected, "{what}");
        seen.extend(found);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (1..=14).collect::<Vec<u8>>(), "conditions that damage has shown");
    assert!(check(&mut *session, SIZE).unwrap().is_empty(), "damage was rolled back");
}

/// A retry must not count twice, and a thread must not be left behind: the error of one ends all.
#[test]
fn an_error_of_a_client_ends_the_round() {
    let directory = tempfile::tempdir().unwrap();
    let driver = own::drivers(GATHERED).remove(0);
    let store = open(&*driver, directory.path());
    // Nothing was loaded.
    let round = Round {
        number: 0,
        threads: 2,
        warmup: Duration::ZERO,
        time: Duration::from_secs(600),
        operations: None,
    };
    let error = measure(&*store, &tpcc(Mix::Full), round, &mut |_, _| Ok(())).unwrap_err();
    assert!(error.to_string().contains("has no "), "{error}");
}
