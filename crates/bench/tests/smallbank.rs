//! SmallBank on our engines: hot accounts keep their money, and the audit sees damage.

use std::path::Path;
use std::time::Duration;

use spinney_bench::driver::{Knobs, OpenConfig};
use spinney_bench::plan::{Durability, TornWrites};
use spinney_bench::record::Record;
use spinney_bench::smallbank::{GATHERED, Money, SmallBank, SmallBankPlan, TABLES};
use spinney_bench::transactional::threads::{Round, measure};
use spinney_bench::transactional::workload::TransactionalWorkload;
use spinney_bench::transactional::{Kind, TransactionalDriver, TransactionalStore, Verdict, own};

const PLAN: SmallBankPlan = SmallBankPlan { accounts: 500, hot_accounts: 3, hot_share: 0.9 };

fn open(driver: &dyn TransactionalDriver, directory: &Path) -> Box<dyn TransactionalStore> {
    let config = OpenConfig {
        directory: directory.to_owned(),
        memory: 16 << 20,
        durability: Durability::Buffered,
        torn_writes: TornWrites::Auto,
        threads: 4,
        keyspaces: TABLES.len(),
        knobs: Knobs::new(),
    };
    driver.open(&config, &TABLES).unwrap()
}

fn audit(bank: &SmallBank, store: &dyn TransactionalStore) -> Option<String> {
    bank.check(&mut *store.session().unwrap()).unwrap()
}

#[test]
fn hot_accounts_keep_their_money() {
    for driver in own::drivers(GATHERED) {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&*driver, directory.path());
        let bank = SmallBank::new(PLAN, 5);
        bank.load(&*store).unwrap();
        assert_eq!(audit(&bank, &*store), None);
        let round = Round {
            number: 0,
            threads: 4,
            warmup: Duration::ZERO,
            time: Duration::from_secs(600),
            operations: Some(10_000),
        };
        let measured = measure(&*store, &bank, round, &mut |_, _| Ok(())).unwrap();
        for (kind, name) in measured.kinds.iter().zip(bank.kinds()) {
            assert!(kind.committed > 500, "{}: {name}: {}", driver.name(), kind.committed);
        }
        let retries: u64 = measured.kinds.iter().map(|kind| kind.retries).sum();
        assert!(retries > 0, "{}: nobody met anybody", driver.name());
        assert_eq!(audit(&bank, &*store), None);
        store.close().unwrap();
        let store = open(&*driver, directory.path());
        assert_eq!(audit(&bank, &*store), None);
        store.close().unwrap();
    }
}

#[test]
fn the_audit_sees_damage() {
    let directory = tempfile::tempdir().unwrap();
    let driver = own::drivers(GATHERED).remove(0);
    let store = open(&*driver, directory.path());
    let bank = SmallBank::new(PLAN, 5);
    bank.load(&*store).unwrap();
    let (savings, checking) = (1, 2);
    let change = |changes: &[(usize, u32, i64)]| {
        let mut session = store.session().unwrap();
        let body = &mut |access: &mut dyn spinney_bench::transactional::Access| {
            for (table, customer, cents) in changes {
                let (key, mut value) = (customer.to_be_bytes(), Vec::new());
                assert!(access.get(*table, &key, &mut value)?);
                let cents = Money::decode(&value)?.cents + cents;
                access.put(*table, &key, &Money { cents }.encode())?;
            }
            Ok(Verdict::Commit)
        };
        session.transact(Kind::Write, body).unwrap();
    };
    change(&[(savings, 7, 1)]);
    let found = audit(&bank, &*store).unwrap();
    assert!(found.starts_with("2 faults: all have") && found.contains("customer 7"), "{found}");
    change(&[(savings, 7, -2), (checking, 9, 1)]);
    let found = audit(&bank, &*store).unwrap();
    assert!(found.contains("customer 7") && found.contains("customer 9"), "{found}");
    assert!(!found.contains("all have"), "money was moved, none came: {found}");
    change(&[(savings, 7, 1), (checking, 9, -1)]);
    assert_eq!(audit(&bank, &*store), None);
    change(&[(savings, 7, -6_000_000), (checking, 7, 6_000_000)]);
    let found = audit(&bank, &*store).unwrap();
    assert!(found.starts_with("1 faults: customer 7 has savings of -"), "{found}");
}
