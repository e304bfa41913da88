//! What list-append transactions did, in the format that Elle reads.
//!
//! ```text
//! {:index 0, :time 120, :type :invoke, :process 0, :f :txn, :value [[:append 9 1] [:r 8 nil]]}
//! {:index 1, :time 950, :type :ok, :process 0, :f :txn, :value [[:append 9 1] [:r 8 [3 7]]]}
//! ```
//!
//! **Invariants**
//! 1. Events are in the order in which they happened: one that ended before another began stands
//!    before it. The index of an event is its place.
//! 2. A process has one transaction at a time. A process whose transaction ended with
//!    [`Kind::Info`] has no later one.
//! 3. No value is appended twice to one key.

use std::io::{self, Write};
use std::time::Duration;

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Appends a value to the list of a key.
    Append {
        /// Number of the key.
        key: u64,
        /// The value, which no other operation appends to this key.
        value: u64,
    },
    /// Reads the list of a key.
    Read {
        /// Number of the key.
        key: u64,
        /// The list that was read. `None` when the key was absent, and in all events but those of
        /// [`Kind::Ok`].
        list: Option<Vec<u64>>,
    },
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A transaction began.
    Invoke,
    /// It committed.
    Ok,
    /// It wrote nothing.
    Fail,
    /// Whether it committed is unknown.
    Info,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Invoke => "invoke",
            Kind::Ok => "ok",
            Kind::Fail => "fail",
            Kind::Info => "info",
        }
    }
}

/// Beginning or end of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kind.
    pub kind: Kind,
    /// Number of the process, which is a thread until an outcome is unknown.
    pub process: u64,
    /// Time since the run began.
    pub time: Duration,
    /// The operations, in the order of the transaction.
    pub operations: Vec<Operation>,
}

/// Events of a run, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The events.
    pub events: Vec<Event>,
}

impl History {
    /// Writes the history as EDN, one event in each line.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        for (index, event) in self.events.iter().enumerate() {
            write!(
                out,
                "{{:index {index}, :time {}, :type :{}, :process {}, :f :txn, :value [",
                event.time.as_nanos(),
                event.kind.name(),
                event.process
            )?;
            for (place, operation) in event.operations.iter().enumerate() {
                if place > 0 {
                    out.write_all(b" ")?;
                }
                write_operation(operation, out)?;
            }
            out.write_all(b"]}\n")?;
        }
        Ok(())
    }
}

fn write_operation(operation: &Operation, out: &mut dyn Write) -> io::Result<()> {
    match operation {
        Operation::Append { key, value } => write!(out, "[:append {key} {value}]"),
        Operation::Read { key, list: None } => write!(out, "[:r {key} nil]"),
        Operation::Read { key, list: Some(list) } => {
            write!(out, "[:r {key} [")?;
            for (place, value) in list.iter().enumerate() {
                let before = if place > 0 { " " } else { "" };
                write!(out, "{before}{value}")?;
            }
            out.write_all(b"]]")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines_that_elle_reads() {
        let event = |kind, process, nanos, list| Event {
            kind,
            process,
            time: Duration::from_nanos(nanos),
            operations: vec![
                Operation::Append { key: 9, value: 1 },
                Operation::Read { key: 8, list },
            ],
        };
        let history = History {
            events: vec![
                event(Kind::Invoke, 0, 120, None),
                event(Kind::Ok, 0, 950, Some(vec![3, 7])),
                event(Kind::Info, 3, 1_000_000_007, None),
                event(Kind::Fail, 4, 1_000_000_008, Some(Vec::new())),
            ],
        };
        let mut text = Vec::new();
        history.write(&mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "\
{:index 0, :time 120, :type :invoke, :process 0, :f :txn, :value [[:append 9 1] [:r 8 nil]]}
{:index 1, :time 950, :type :ok, :process 0, :f :txn, :value [[:append 9 1] [:r 8 [3 7]]]}
{:index 2, :time 1000000007, :type :info, :process 3, :f :txn, :value [[:append 9 1] [:r 8 nil]]}
{:index 3, :time 1000000008, :type :fail, :process 4, :f :txn, :value [[:append 9 1] [:r 8 []]]}
"
        );
    }
}
