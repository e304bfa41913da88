//! Loads sorted records, the fastest way in, and reads many of them at once.
//!
//! `cargo run --example bulk_load`

use spinney::{Db, KeyspaceOptions, Options, Result};

fn main() -> Result<()> {
    let db = Db::in_memory(Options::default().memory(16 << 20))?;
    let squares = db.keyspace("squares", KeyspaceOptions::default())?;
    // Keys ascend: big-endian bytes are ordered as the numbers are.
    let records = (0..100_000_u64).map(|n| (n.to_be_bytes(), (n * n).to_be_bytes()));
    assert_eq!(squares.bulk_load(records)?, 100_000);

    let wanted: Vec<[u8; 8]> = [7_u64, 70_000, 700_000].map(u64::to_be_bytes).to_vec();
    let found = squares.multi_get(&wanted)?;
    assert_eq!(found[0].as_deref(), Some(&49_u64.to_be_bytes()[..]));
    assert!(found[1].is_some() && found[2].is_none());

    let mut cursor = squares.range(50_000_u64.to_be_bytes()..).limit(3);
    while let Some(record) = cursor.next() {
        let key: [u8; 8] = record?.0.try_into().expect("keys have eight bytes");
        println!("{}", u64::from_be_bytes(key));
    }
    println!("about {} bytes", squares.approximate_bytes(..)?);
    db.close()
}
