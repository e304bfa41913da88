//! Streams a large value in and out: it is never whole in memory.
//!
//! `cargo run --example large_values`

use std::io::Read;

use spinney::{Db, Durability, KeyspaceOptions, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let db = Db::in_memory(Options::default().memory(8 << 20))?;
    let pictures = db.keyspace("pictures", KeyspaceOptions::default())?;
    let bytes = 20 << 20;
    let picture = std::io::repeat(7).take(bytes);
    pictures.insert_from_with("sunset", bytes, picture, Durability::Sync)?;

    let mut reader = pictures.get_reader("sunset")?.expect("it was put");
    assert_eq!(reader.len(), bytes);
    let mut first = [0; 4];
    reader.read_exact(&mut first)?;
    assert_eq!(first, [7; 4]);
    // The reader keeps the value that it opened.
    pictures.remove("sunset")?;
    let rest = std::io::copy(&mut reader, &mut std::io::sink())?;
    println!("{rest} bytes more");
    assert_eq!(rest, bytes - 4);
    db.close()?;
    Ok(())
}
