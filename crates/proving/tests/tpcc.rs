//! TPC-C in a process that is killed: its consistency conditions hold afterwards, and every New-Order and
//! Payment that was acknowledged is there.
//!
//! The process is this test program again, with the one test that is ignored else. It runs the full mix with
//! `Sync` and prints a line for each acknowledgement, before its thread begins another transaction. So there is at most one
//! transaction of each thread that has happened and was not acknowledged.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use spinney::{Db, Options};
use spinney_bench::driver::{Knobs, OpenConfig};
use spinney_bench::plan::{Durability, TornWrites};
use spinney_bench::record::Record as _;
use spinney_bench::tpcc::run::{Acknowledged, Mix, Tpcc, TpccPlan, check};
use spinney_bench::tpcc::schema::{
    DISTRICTS, District, GATHERED, History, Order, Size, TABLES, district_key, history_key,
    order_key, table,
};
use spinney_bench::transactional::threads::{Round, measure};
use spinney_bench::transactional::workload::TransactionalWorkload as _;
use spinney_bench::transactional::{Access, Kind, TransactionalStore, Verdict, own};
use spinney_proving::kill::start_and_kill;
use spinney_proving::tier::{self, Random};

const THREADS: usize = 16;
const WAREHOUSES: u16 = 4;
/// Names what a child runs on: driver, scale, round and directory.
const CHILD: &str = "SPINNEY_TPCC_CHILD";

/// What parent and child run on.
#[derive(Clone)]
struct Place {
    driver: String,
    scale: u32,
    directory: PathBuf,
}

impl Place {
    fn size(&self) -> Size {
        Size { warehouses: WAREHOUSES, divisor: self.scale }
    }

    fn workload(&self) -> Tpcc {
        Tpcc::new(TpccPlan { mix: Mix::Full, warehouses: WAREHOUSES, scale: self.scale }, 1)
    }

    /// A quarter of the data at the full scale, so that pages are read and written back meanwhile.
    fn memory(&self) -> u64 {
        (64 << 20) / u64::from(self.scale.min(4))
    }

    fn open(&self) -> Box<dyn TransactionalStore> {
        let config = OpenConfig {
            directory: self.directory.clone(),
            memory: self.memory(),
            durability: Durability::Sync,
            torn_writes: TornWrites::Auto,
            threads: THREADS,
            keyspaces: TABLES.len(),
            knobs: Knobs::new(),
        };
        let drivers = own::drivers(GATHERED);
        let driver =
            drivers.iter().find(|driver| driver.name() == self.driver).expect("it is ours");
        driver.open(&config, &TABLES).expect("what a kill left opens")
    }
}

#[test]
#[ignore = "the process that the other tests kill"]
fn the_process_that_is_killed() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let mut parts = told.splitn(4, ' ');
    let mut next = || parts.next().expect("four parts").to_owned();
    let (driver, scale, round) = (next(), next().parse().expect("a number"), next());
    let place = Place { driver, scale, directory: next().into() };
    let store = place.open();
    say("");
    let workload = place.workload().observed(Box::new(|acknowledged| match acknowledged {
        Acknowledged::NewOrder(order, placed) => say(&format!(
            "n {} {} {} {} {}",
            order.w,
            order.d,
            placed.order,
            order.c,
            order.lines.len()
        )),
        Acknowledged::Payment(payment, paid) => say(&format!(
            "p {} {} {} {} {}",
            payment.c_w, payment.c_d, paid.customer, paid.number, payment.amount
        )),
    }));
    let round = Round {
        number: round.parse().expect("a number"),
        threads: THREADS,
        warmup: Duration::ZERO,
        time: Duration::from_secs(3600),
        operations: None,
    };
    measure(&*store, &workload, round, &mut |_, _| Ok(())).expect("a good disk");
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).is_err() {
        // The parent is gone.
        std::process::exit(0);
    }
}

/// What was acknowledged, over all rounds.
#[derive(Default)]
struct Known {
    /// Customer and number of lines of each order.
    orders: BTreeMap<(u16, u8, u32), (u32, u8)>,
    /// Amount of each payment of a customer.
    payments: BTreeMap<(u16, u8, u32, u32), i64>,
}

impl Known {
    fn hear(&mut self, line: &str) {
        let mut words = line.split(' ');
        let kind = words.next();
        let numbers: Result<Vec<u32>, _> = words.map(str::parse).collect();
        let Ok([w, d, number, two, three]) = numbers.as_deref() else { return };
        let (w, d) = (u16::try_from(*w).expect("small"), u8::try_from(*d).expect("small"));
        match kind {
            Some("n") => {
                let lines = u8::try_from(*three).expect("small");
                self.orders.insert((w, d, *number), (*two, lines));
            }
            Some("p") => {
                self.payments.insert((w, d, *number, *two), i64::from(*three));
            }
            _ => {}
        }
    }

    /// Checks that all that is known is there. Returns the number of orders that there are.
    fn check(&self, access: &mut dyn Access) -> spinney_base::Result<u64> {
        let mut value = Vec::new();
        for (&(w, d, o), &(customer, lines)) in &self.orders {
            let is_there = access.get(table::ORDERS, &order_key(w, d, o), &mut value)?;
            assert!(is_there, "order {w}/{d}/{o} was acknowledged and is not there");
            let order = Order::decode(&value)?;
            assert_eq!((order.customer, order.lines), (customer, lines), "order {w}/{d}/{o}");
        }
        for (&(w, d, c, n), &amount) in &self.payments {
            let is_there = access.get(table::HISTORY, &history_key(w, d, c, n), &mut value)?;
            assert!(is_there, "payment {n} of {w}/{d}/{c} was acknowledged and is not there");
            assert_eq!(History::decode(&value)?.amount, amount, "payment {n} of {w}/{d}/{c}");
        }
        let mut orders = 0;
        for (w, d) in (1..=WAREHOUSES).flat_map(|w| (1..=DISTRICTS).map(move |d| (w, d))) {
            assert!(access.get(table::DISTRICT, &district_key(w, d), &mut value)?);
            orders += u64::from(District::decode(&value)?.next_order - 1);
        }
        Ok(orders)
    }
}

fn run(driver: &str, rounds: u64, scale: u32) {
    let temporary = tempfile::tempdir().unwrap();
    let place = Place { driver: driver.to_owned(), scale, directory: temporary.path().join("db") };
    std::fs::create_dir(&place.directory).unwrap();
    let store = place.open();
    place.workload().load(&*store).expect("a good disk");
    store.close().expect("a good disk");
    let (mut known, mut random) = (Known::default(), Random::new(tier::seeds(1).start, 77));
    let first = u64::from(place.size().customers()) * u64::from(WAREHOUSES) * u64::from(DISTRICTS);
    let mut orders = first;
    for round in 0..rounds {
        let mut command = Command::new(std::env::current_exe().expect("it runs"));
        command.args(["--ignored", "--exact", "the_process_that_is_killed", "--nocapture"]);
        command.env(CHILD, format!("{driver} {scale} {round} {}", place.directory.display()));
        let time = Duration::from_millis(300 + random.below(1200) as u64);
        let before = known.orders.len() as u64;
        start_and_kill(&mut command, time, &mut |line| known.hear(line));
        let acknowledged = known.orders.len() as u64 - before;
        verify(&place);
        let store = place.open();
        let mut session = store.session().expect("it is open");
        let findings = check(&mut *session, place.size()).expect("what a kill left is whole");
        assert!(findings.is_empty(), "{driver}, round {round}: {findings}");
        let mut there = 0;
        let looked = session.transact(Kind::Report, &mut |access| {
            there = known.check(access)?;
            Ok(Verdict::Commit)
        });
        looked.expect("what a kill left is whole");
        let expected = orders + acknowledged..=orders + acknowledged + THREADS as u64;
        assert!(
            expected.contains(&there),
            "{driver}, round {round}: {there} orders, not {expected:?}"
        );
        tier::trace(|| {
            format!("{driver}, round {round}: {acknowledged} orders acknowledged, {there} there")
        });
        orders = there;
        drop(session);
        store.close().expect("a good disk");
    }
    let (acknowledged, payments) = (known.orders.len(), known.payments.len());
    println!(
        "{driver}: {rounds} kills, {acknowledged} acknowledged orders of {}, {payments} payments",
        orders - first
    );
    assert!(acknowledged > 0 && payments > 0, "no child lived long enough");
}

/// Opens what a kill left, and checks every page.
fn verify(place: &Place) {
    let db = Db::open(Path::new(&place.directory), Options::default().memory(place.memory()));
    let db = db.expect("what a kill left opens");
    db.verify().expect("what a kill left is whole");
    db.close().expect("a good disk");
}

#[test]
fn the_conditions_hold_after_kills() {
    if tier::is_full() {
        run("mixed", 100, 1);
        run("treeline", 20, 10);
        run("turtle", 20, 10);
    } else {
        run("mixed", 2, 100);
    }
}
