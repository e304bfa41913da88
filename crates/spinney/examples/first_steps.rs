//! Opens a database, puts some records, and reads them back: by key, by range, by prefix.
//!
//! `cargo run --example first_steps`

use spinney::{Db, KeyspaceOptions, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("spinney-first-{}", std::process::id()));
    let db = Db::open(&directory, Options::default().memory(64 << 20))?;
    let born = db.keyspace("born", KeyspaceOptions::default())?;
    born.insert("ada", "1815")?;
    born.insert("alan", "1912")?;
    born.insert("grace", "1906")?;

    assert_eq!(born.get("ada")?.unwrap(), "1815");
    assert!(born.get("bob")?.is_none());
    for record in born.prefix("a") {
        let (name, year) = record?;
        println!("{} was born in {}", name.escape_ascii(), year.escape_ascii());
    }
    let (last, _) = born.range("a".."h").next_back().unwrap()?;
    assert_eq!(last, b"grace");
    born.remove("alan")?;
    assert_eq!((&born).into_iter().count(), 2);

    db.close()?;
    // The records are there when the database is opened again.
    let db = Db::open(&directory, Options::default())?;
    assert_eq!(db.existing_keyspace("born")?.get("grace")?.unwrap(), "1906");
    db.close()?;
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
