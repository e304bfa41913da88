//! List-append histories before two judges: the crate `adya`, and our graph.
//!
//! `adya` reads the file that Elle reads. It passes over transactions that failed, as we do.

use std::collections::HashMap;
use std::time::Duration;

use adya::history::{Mop, OpType, ReadValue};
use adya::{Opts, Report, Valid, Workload};
use spinney_bench::append::history::{Event, History, Kind, Operation};

use super::graph::Story;
use super::lists;

/// What both say of a history.
#[derive(Debug)]
pub struct Verdicts {
    /// The anomalies that `adya` names. Empty when the history is strictly serializable.
    pub adya: Vec<String>,
    /// What our graph says.
    pub graph: Result<(), Story>,
}

impl Verdicts {
    /// Whether both say that the history is right, or both that it is not.
    #[must_use]
    pub fn agree(&self) -> bool {
        self.adya.is_empty() == self.graph.is_ok()
    }
}

/// Has both judge a history.
///
/// # Panics
/// As [`adya()`].
#[must_use]
pub fn both(history: &History) -> Verdicts {
    Verdicts { adya: adya(&parse(&edn(history))), graph: lists::check(history) }
}

/// Returns the text of a history.
///
/// # Panics
/// Never: memory takes all that is written to it.
#[must_use]
pub fn edn(history: &History) -> String {
    let mut text = Vec::new();
    history.write(&mut text).expect("memory takes it");
    String::from_utf8(text).expect("EDN is text")
}

/// Parses a history as `adya` does.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn parse(text: &str) -> adya::History {
    adya::History::from_edn(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Anomalies that keep a history from being strictly serializable, by Elle's names for them.
///
/// # Panics
/// When `adya` cannot decide.
#[must_use]
pub fn adya(history: &adya::History) -> Vec<String> {
    let options = Opts {
        models: vec!["strict-serializable".to_owned()],
        // Only a search for the name of a circle ends here, not one for whether there is one.
        timeout: Duration::from_millis(300),
        ..Opts::default()
    };
    let report: Report = adya::check(history, Workload::ListAppend, &options);
    // Where nothing comes before anything, every order is right.
    if report.anomaly_types == ["empty-transaction-graph"] {
        return Vec::new();
    }
    assert_ne!(report.valid, Valid::Unknown, "{:?}", report.anomaly_types);
    report.anomaly_types
}

/// Converts a history that `adya` has parsed or made.
///
/// # Panics
/// When it is no list-append history.
#[must_use]
pub fn convert(history: &adya::History) -> History {
    // Numbers stay, other names get numbers behind all that occur.
    let mut names: HashMap<adya::history::Id, u64> = HashMap::new();
    let mut number = |id| match history.show(id) {
        adya::history::Scalar::Int(number) => u64::try_from(*number).expect("numbers from 0"),
        adya::history::Scalar::Str(_) => {
            let next = u64::from(u32::MAX) + names.len() as u64;
            *names.entry(id).or_insert(next)
        }
    };
    let mut operation = |mop: &Mop| match mop {
        Mop::Append { key, value } => {
            Operation::Append { key: number(*key), value: number(*value) }
        }
        Mop::Read { key, value } => {
            let key = number(*key);
            let list = match value {
                ReadValue::Nil => None,
                ReadValue::List(values) => Some(values.iter().map(|it| number(*it)).collect()),
                ReadValue::Scalar(_) => panic!("a read of no list"),
            };
            Operation::Read { key, list }
        }
        Mop::Write { .. } => panic!("a write of no list"),
    };
    let events = history.ops.iter().map(|event| Event {
        kind: match event.kind {
            OpType::Invoke => Kind::Invoke,
            OpType::Ok => Kind::Ok,
            OpType::Fail => Kind::Fail,
            OpType::Info => Kind::Info,
        },
        process: u64::try_from(event.process.unwrap_or_default()).expect("processes from 0"),
        time: Duration::from_nanos(u64::try_from(event.time.unwrap_or_default()).unwrap_or(0)),
        operations: event.value.iter().map(&mut operation).collect(),
    });
    History { events: events.collect() }
}
