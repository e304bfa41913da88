//! Counts from several threads: an update reads and writes as one step, and a compare-and-swap sets a
//! value only if nobody was faster.
//!
//! `cargo run --example conditions`

use spinney::{Db, ErrorKind, KeyspaceOptions, Options, Result};

fn number(value: Option<&[u8]>) -> u64 {
    value.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes)
}

fn main() -> Result<()> {
    let db = Db::in_memory(Options::default())?;
    let counters = db.keyspace("counters", KeyspaceOptions::default())?;
    std::thread::scope(|scope| {
        let count = || -> Result<()> {
            for _ in 0..100 {
                let more =
                    |before: Option<&[u8]>| Some((number(before) + 1).to_be_bytes().to_vec());
                counters.update("visits", more)?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    assert_eq!(number(counters.get("visits")?.as_deref()), 400);

    // Take a name that nobody has.
    counters.compare_and_swap("name", None, Some(b"ada"))??;
    let taken = counters.compare_and_swap("name", None, Some(b"bob"))?;
    println!("bob found {:?} there", taken.unwrap_err().current);
    // With a second `?` a refusal is an error as any other.
    let refused = || -> Result<()> { Ok(counters.compare_and_swap("name", None, Some(b"eve"))??) };
    assert_eq!(refused().unwrap_err().kind(), ErrorKind::Conflict);
    db.close()
}
