//! Copies an open database, makes the copy newer later, and restores it elsewhere.
//!
//! `cargo run --example backup`

use spinney::{Db, KeyspaceOptions, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = std::env::temp_dir().join(format!("spinney-backup-{}", std::process::id()));
    std::fs::create_dir_all(&place)?;
    let (here, copy, there) = (place.join("db"), place.join("copy"), place.join("restored"));
    let db = Db::open(&here, Options::default())?;
    let notes = db.keyspace("notes", KeyspaceOptions::default())?;
    notes.insert("1", "buy milk")?;

    // Writers go on meanwhile; the copy is of one moment.
    let report = db.backup(&copy)?;
    println!("{report:?}");
    notes.insert("2", "this is not in the copy")?;
    db.verify()?;
    db.close()?;

    // A copy stays what it is; a restored database may be written to.
    Db::restore(&copy, &there, Options::default())?;
    let db = Db::open(&there, Options::default())?;
    let notes = db.existing_keyspace("notes")?;
    assert_eq!(notes.get("1")?.unwrap(), "buy milk");
    assert!(!notes.contains_key("2")?);
    db.close()?;
    std::fs::remove_dir_all(&place)?;
    Ok(())
}
