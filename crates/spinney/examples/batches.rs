//! Moves money between accounts: a batch is written whole or not at all, over several keyspaces.
//!
//! `cargo run --example batches`

use spinney::{Batch, Db, Durability, KeyspaceOptions, Options, Result};

fn main() -> Result<()> {
    let db = Db::in_memory(Options::default())?;
    let accounts = db.keyspace("accounts", KeyspaceOptions::default())?;
    let journal = db.keyspace("journal", KeyspaceOptions::default())?;
    accounts.insert("ada", 100_u64.to_be_bytes())?;
    accounts.insert("bob", 50_u64.to_be_bytes())?;

    let balance = |name: &str| -> Result<u64> {
        let value = accounts.get(name)?.expect("the account is there");
        Ok(u64::from_be_bytes(value.try_into().expect("a balance has eight bytes")))
    };
    let (ada, bob) = (balance("ada")? - 30, balance("bob")? + 30);
    let mut batch = Batch::new();
    batch
        .insert(&accounts, "ada", ada.to_be_bytes())
        .insert(&accounts, "bob", bob.to_be_bytes())
        .insert(&journal, 1_u64.to_be_bytes(), "30 from ada to bob");
    // Durable before the call returns, whatever the database's own choice is.
    db.write_with(&batch, Durability::Sync)?;

    assert_eq!((balance("ada")?, balance("bob")?), (70, 80));
    println!("{} entries in the journal", journal.approximate_len()?);
    batch.clear();
    db.close()
}
