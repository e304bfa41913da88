//! Keeps each keyspace with the engine that suits it, and moves one to another engine later.
//!
//! `cargo run --example engines`

use spinney::{Db, EngineKind, Options, Result, TreeLineOptions, TurtleOptions, TwoBTreeOptions};

fn main() -> Result<()> {
    let db = Db::in_memory(Options::default().memory(32 << 20))?;
    // Hot records that are read and updated in place; this engine is the default.
    let users = db.keyspace("users", TreeLineOptions::default())?;
    // Many writes, short ranges, snapshots. Options are for experiments: without any the engine
    // suits itself.
    let events = db.keyspace("events", TurtleOptions::default().checkpoint_distance(8))?;
    // Short ranges of records that lie together, such as all items of one user.
    let items = db.keyspace("items", TwoBTreeOptions::default())?;
    for number in 0..1000_u32 {
        users.insert(format!("user {number:04}"), "active")?;
        events.insert(number.to_be_bytes(), "signed up")?;
        items.insert(format!("user {:04} item {}", number / 5, number % 5), "book")?;
    }
    assert_eq!(items.prefix("user 0007 ").count(), 5);
    // What only one engine has is reached through its own handle.
    println!("checkpoint distance: {}", events.turtle()?.set_checkpoint_distance(4)?);

    // The choice is not for life: a copy, and one change of the manifest.
    let users = db.convert_keyspace("users", EngineKind::Turtle)?;
    assert_eq!((users.engine(), users.approximate_len()?), (EngineKind::Turtle, 1000));
    let before = users.snapshot()?;
    users.insert("user 0000", "gone")?;
    assert_eq!(before.get("user 0000")?.unwrap(), "active");
    drop(before);
    for keyspace in db.keyspaces() {
        println!("{} is kept by {}", keyspace.name, keyspace.engine);
    }
    db.close()
}
