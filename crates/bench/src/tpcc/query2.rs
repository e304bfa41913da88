//! Query 2 of the CH-benCHmark, beside New-Order: it lists the suppliers of a region and, of the
//! items that each supplies, the one of which least is left.
//!
//! ```text
//!  table      key   record
//!  region     r     Region
//!  nation     n     Nation, of a region
//!  supplier   s     Supplier, of a nation
//!
//!  stock of item i in warehouse w is supplied by s = w * i mod 10,000
//! ```
//!
//! As section 6 of *Index-Organized storage model* has it, the query writes: where the least stock is
//! below a threshold and the item's data ends with `b`, 50 are ordered. So it is a long transaction
//! that reads a fifth of all stock and updates some of it.
//!
//! **Differs from the paper**, whose program never updates the minimum that it looks for, and leaves
//! out the items that the specification keeps.

use std::ops::ControlFlow;

use spinney_base::{Error, ErrorKind, Result};

use super::random::Random;
use super::schema::{Item, Size, Stock, TABLES, item_key, stock_key, table};
use super::transactions::Work;
use crate::record::{Record, records};
use crate::transactional::{Access, Scan, Verdict};

/// Names of the tables, in the order of their numbers: those of TPC-C, and three more.
pub const TABLES_WITH_SUPPLIERS: [&str; TABLES.len() + 3] = {
    let mut names = [""; TABLES.len() + 3];
    let mut at = 0;
    while at < TABLES.len() {
        names[at] = TABLES[at];
        at += 1;
    }
    names[REGION] = "region";
    names[NATION] = "nation";
    names[SUPPLIER] = "supplier";
    names
};

const REGION: usize = TABLES.len();
const NATION: usize = TABLES.len() + 1;
const SUPPLIER: usize = TABLES.len() + 2;

/// Number of regions, of nations, and of suppliers.
const REGIONS: u8 = 5;
const NATIONS: u8 = 62;
const SUPPLIERS: u32 = 10_000;

/// Stock of which less is left is ordered, and how much.
const LOW: u32 = 15;
const ORDERED: u32 = 50;

records! {
    /// A region.
    #[expect(missing_docs, reason = "the specification's names")]
    Region {
        name: String,
        comment: String,
    }

    /// A nation.
    #[expect(missing_docs, reason = "the specification's names")]
    Nation {
        name: String,
        region: u8,
        comment: String,
    }

    /// A supplier.
    #[expect(missing_docs, reason = "the specification's names")]
    Supplier {
        name: String,
        address: String,
        nation: u8,
        phone: String,
        balance: i64,
        comment: String,
    }
}

/// Returns the first records of one of the three tables, in the order of their keys.
#[must_use]
pub fn records(seed: u64, table: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let random =
        |number: u32| Random::new(seed, 1 << 62 | (table as u64) << 32 | u64::from(number));
    let texts = |number: u32| {
        let mut random = random(number);
        (random.letters(10..=25), random.letters(30..=100), random.digits(15))
    };
    let (name_of, text_of) = (|number| texts(number).0, |number| texts(number).1);
    match table {
        REGION => (0..REGIONS)
            .map(|r| {
                let (name, comment) = (name_of(r.into()), text_of(r.into()));
                (vec![r], Region { name, comment }.encode())
            })
            .collect(),
        NATION => (0..NATIONS)
            .map(|n| {
                let (name, comment) = (name_of(n.into()), text_of(n.into()));
                (vec![n], Nation { name, region: n % REGIONS, comment }.encode())
            })
            .collect(),
        SUPPLIER => (0..SUPPLIERS)
            .map(|s| {
                let ((address, comment, phone), mut random) = (texts(s), random(s));
                let nation = u8::try_from(random.number(0..=u32::from(NATIONS) - 1)).unwrap_or(0);
                let (name, balance) = (format!("Supplier {s:016}"), 0);
                let supplier = Supplier { name, address, nation, phone, balance, comment };
                (s.to_be_bytes().to_vec(), supplier.encode())
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// The stock of each supplier: warehouse and item.
#[derive(Clone, Debug)]
pub struct Supplied(Vec<Vec<(u16, u32)>>);

impl Supplied {
    /// Computes what each supplies.
    #[must_use]
    pub fn new(size: Size) -> Supplied {
        let mut of = vec![Vec::new(); SUPPLIERS as usize];
        for w in 1..=size.warehouses {
            for i in 1..=size.items() {
                let supplier = u64::from(w) * u64::from(i) % u64::from(SUPPLIERS);
                of[usize::try_from(supplier).unwrap_or(0)].push((w, i));
            }
        }
        Supplied(of)
    }
}

/// A Query 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query2 {
    /// The region.
    pub region: u8,
}

impl Query2 {
    /// Draws a query.
    pub fn draw(random: &mut Random) -> Query2 {
        Query2 { region: u8::try_from(random.number(0..=u32::from(REGIONS) - 1)).unwrap_or(0) }
    }

    /// Runs the body. `listed` becomes the number of suppliers with an item that is shown.
    ///
    /// # Errors
    /// As [`Access`]; `Corruption` when a record is missing or unreadable.
    pub fn run(
        &self,
        access: &mut dyn Access,
        supplied: &Supplied,
        listed: &mut u32,
    ) -> Result<Verdict> {
        let regions = all(access, REGION, |_, region: Region| region.name)?;
        if regions.len() != usize::from(REGIONS) {
            return Err(Error::new(ErrorKind::Corruption, "a region is missing"));
        }
        let nations = all(access, NATION, |_, nation: Nation| nation.region)?;
        let suppliers = all(access, SUPPLIER, |key, supplier: Supplier| {
            let number = key.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
            let region = nations.get(usize::from(supplier.nation));
            (region == Some(&self.region)).then_some(number)
        })?;
        *listed = 0;
        let mut work = Work::of(access);
        for supplier in suppliers.into_iter().flatten() {
            let mut least: Option<(u16, u32, Stock)> = None;
            for (w, i) in &supplied.0[supplier as usize] {
                let stock: Stock = work.get(table::STOCK, &stock_key(*w, *i))?;
                if least.as_ref().is_none_or(|(_, _, least)| stock.quantity < least.quantity) {
                    least = Some((*w, *i, stock));
                }
            }
            let Some((w, i, mut stock)) = least else { continue };
            let item: Item = work.get(table::ITEM, &item_key(i))?;
            if !item.data.ends_with('b') {
                continue;
            }
            *listed += 1;
            if stock.quantity < LOW {
                stock.quantity += ORDERED;
                work.put(table::STOCK, &stock_key(w, i), &stock)?;
            }
        }
        Ok(Verdict::Commit)
    }
}

/// Reads all records of a table.
fn all<R: Record, T>(
    access: &mut dyn Access,
    table: usize,
    take: impl Fn(&[u8], R) -> T,
) -> Result<Vec<T>> {
    let mut found: Vec<Result<T>> = Vec::new();
    let scan = Scan { table, from: &[], to: None, reverse: false, limit: usize::MAX };
    access.scan(scan, &mut |key, value| {
        found.push(R::decode(value).map(|record| take(key, record)));
        ControlFlow::Continue(())
    })?;
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stock_has_a_supplier() {
        let size = Size { warehouses: 2, divisor: 10 };
        let supplied = Supplied::new(size);
        assert_eq!(supplied.0.iter().map(Vec::len).sum::<usize>(), 20_000);
        assert!(supplied.0[6].contains(&(2, 3)) && supplied.0[0].contains(&(1, 10_000)));
        assert_eq!(records(1, REGION).len() + records(1, NATION).len(), 67);
        assert_eq!(records(1, SUPPLIER).len(), 10_000);
        assert_eq!(TABLES_WITH_SUPPLIERS[SUPPLIER], "supplier");
    }
}
