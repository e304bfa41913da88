//! Reads a keyspace as it was at one moment, while others write to it. The engine `turtle` has
//! snapshots.
//!
//! `cargo run --example snapshots`

use spinney::{Db, EngineKind, Options, Result};

fn main() -> Result<()> {
    let db = Db::in_memory(Options::default())?;
    let stock = db.keyspace("stock", EngineKind::Turtle)?;
    for (fruit, count) in [("apples", 10_u32), ("cherries", 200), ("plums", 30)] {
        stock.insert(fruit, count.to_be_bytes())?;
    }
    let sum = |records: spinney::Cursor| -> Result<u32> {
        records
            .map(|record| Ok(u32::from_be_bytes(record?.1.try_into().expect("four bytes"))))
            .sum()
    };

    let monday = stock.snapshot()?;
    stock.remove("apples")?;
    stock.insert("plums", 25_u32.to_be_bytes())?;

    assert_eq!(sum(monday.iter())?, 240);
    assert_eq!(sum(stock.iter())?, 225);
    println!("{:?}", monday.stats());
    // What only the snapshot needed is free once it is dropped.
    drop(monday);
    db.close()
}
