//! What others see of a database: statistics as JSON, and events.
#![cfg(all(feature = "serde", feature = "tracing"))]

use std::sync::{Arc, Mutex};

use spinney::{Db, KeyspaceOptions, Options};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Writes events down.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{field}={value:?}"));
    }
}

impl Subscriber for Seen {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn events_and_statistics() {
    let directory = tempfile::tempdir().unwrap();
    let seen = Seen::default();
    tracing::subscriber::with_default(seen.clone(), || {
        let db = Db::open(directory.path(), Options::default()).unwrap();
        db.keyspace("k", KeyspaceOptions::default()).unwrap().insert("a", "b").unwrap();
        db.checkpoint().unwrap();
        db.close().unwrap();
    });
    let seen = seen.0.lock().unwrap();
    for expected in ["message=database opened", "records=0", "message=checkpoint"] {
        assert!(seen.iter().any(|one| one == expected), "{expected} in {seen:?}");
    }
    let path = format!("path={}", directory.path().display());
    assert!(seen.contains(&path), "{path} in {seen:?}");
    statistics_serialize();
}

/// Called by the test above: a thread without a subscriber must not come to an event first.
fn statistics_serialize() {
    let db = Db::in_memory(Options::default()).unwrap();
    db.keyspace("fruit", KeyspaceOptions::default()).unwrap().insert("a", "b").unwrap();
    let json = serde_json::to_value(db.stats()).unwrap();
    assert_eq!(json["memory_bytes"], 64 << 20);
    assert_eq!(json["keyspaces"][0]["name"], "fruit");
    assert_eq!(json["keyspaces"][0]["records_dirty"], 1, "an engine's numbers are the keyspace's");
    assert!(json["log"]["last_lsn"].as_u64() > Some(0));
    assert!(json["io"]["log"]["writes"].as_u64() > Some(0), "{}", json["io"]);
    assert!(
        json["io"].as_object().unwrap().len() < 20,
        "purposes that counted nothing are left out"
    );
}
