//! Reads two keyspaces as they were at one moment, while others write to them. Engines may differ.
//!
//! `cargo run --example snapshots`

use spinney::{Db, EngineKind, Options, Result, Snapshot};

fn main() -> Result<()> {
    let db = Db::in_memory(Options::default())?;
    let stock = db.keyspace("stock", EngineKind::TreeLine)?;
    let sales = db.keyspace("sales", EngineKind::Turtle)?;
    for (fruit, count) in [("apples", 10_u32), ("cherries", 200), ("plums", 30)] {
        stock.insert(fruit, count.to_be_bytes())?;
    }
    let sum = |snapshot: &Snapshot| -> Result<u32> {
        let count = |record: Result<_>| {
            let (_, value): (Vec<u8>, spinney::Value) = record?;
            Ok(u32::from_be_bytes(value.try_into().expect("four bytes")))
        };
        snapshot.iter().map(count).sum()
    };

    let monday = db.snapshot()?;
    stock.remove("apples")?;
    sales.insert("apples", 10_u32.to_be_bytes())?;
    let tuesday = db.snapshot()?;

    for (day, sold) in [(&monday, 0), (&tuesday, 10)] {
        let (stock, sales) = (day.keyspace(&stock)?, day.keyspace(&sales)?);
        assert_eq!((sum(&stock)?, sum(&sales)?), (240 - sold, sold));
        println!("{} in stock, {} sold: {:?}", sum(&stock)?, sum(&sales)?, stock.stats());
    }
    // What only the snapshots needed is free once they are dropped.
    drop((monday, tuesday));
    db.close()
}
