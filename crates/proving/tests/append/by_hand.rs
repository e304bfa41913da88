//! Histories of a few transactions, written by hand.
//!
//! Each line is the number of a process, the kind of an event, and operations.

use spinney_bench::append::history::History;
use spinney_proving::serial::judge;

use super::judged;

/// A name, an anomaly that `adya` finds in it, and the history.
const ANOMALIES: [(&str, &str, &str); 14] = [
    (
        "lost update",
        "lost-update",
        "0 invoke [:r 1 nil] [:append 1 1]
         1 invoke [:r 1 nil] [:append 1 2]
         0 ok [:r 1 nil] [:append 1 1]
         1 ok [:r 1 nil] [:append 1 2]
         0 invoke [:r 1 nil]
         0 ok [:r 1 [2]]",
    ),
    (
        "dirty write",
        "G0",
        "0 invoke [:append 1 1] [:append 2 1]
         1 invoke [:append 1 2] [:append 2 2]
         0 ok [:append 1 1] [:append 2 1]
         1 ok [:append 1 2] [:append 2 2]
         0 invoke [:r 1 nil] [:r 2 nil]
         0 ok [:r 1 [1 2]] [:r 2 [2 1]]",
    ),
    (
        "aborted read",
        "G1a",
        "0 invoke [:append 1 1]
         1 invoke [:r 1 nil]
         1 ok [:r 1 [1]]
         0 fail [:append 1 1]",
    ),
    (
        "intermediate read",
        "G1b",
        "0 invoke [:append 1 1] [:append 1 2]
         1 invoke [:r 1 nil]
         1 ok [:r 1 [1]]
         0 ok [:append 1 1] [:append 1 2]",
    ),
    (
        "circular flow of information",
        "G1c",
        "0 invoke [:append 1 1] [:r 2 nil]
         1 invoke [:append 2 1] [:r 1 nil]
         0 ok [:append 1 1] [:r 2 [1]]
         1 ok [:append 2 1] [:r 1 [1]]",
    ),
    (
        "read skew",
        "G-single-item",
        "0 invoke [:append 1 1] [:append 2 1]
         1 invoke [:r 1 nil] [:r 2 nil]
         0 ok [:append 1 1] [:append 2 1]
         1 ok [:r 1 nil] [:r 2 [1]]",
    ),
    (
        "write skew",
        "G2-item",
        "0 invoke [:r 1 nil] [:append 2 1]
         1 invoke [:r 2 nil] [:append 1 1]
         0 ok [:r 1 nil] [:append 2 1]
         1 ok [:r 2 nil] [:append 1 1]",
    ),
    (
        "stale read",
        "G-single-item-realtime",
        "0 invoke [:append 1 1]
         0 ok [:append 1 1]
         1 invoke [:r 1 nil]
         1 ok [:r 1 nil]",
    ),
    (
        "stale read of an absent key",
        "G-single-item-realtime",
        "0 invoke [:append 1 1]
         0 ok [:append 1 1]
         1 invoke [:r 1 nil]
         1 ok [:r 1 nil]
         1 invoke [:r 1 nil]
         1 ok [:r 1 [1]]",
    ),
    (
        "acknowledged and lost",
        "G-single-item-realtime",
        "0 invoke [:append 1 1]
         0 ok [:append 1 1]
         0 invoke [:append 1 2]
         0 ok [:append 1 2]
         1 invoke [:r 1 nil]
         1 ok [:r 1 [2]]",
    ),
    (
        "two orders",
        "incompatible-order",
        "0 invoke [:append 1 1]
         1 invoke [:append 1 2]
         2 invoke [:r 1 nil]
         3 invoke [:r 1 nil]
         0 ok [:append 1 1]
         1 ok [:append 1 2]
         2 ok [:r 1 [1 2]]
         3 ok [:r 1 [2 1]]",
    ),
    (
        "written twice",
        "duplicate-elements",
        "0 invoke [:append 1 1]
         0 ok [:append 1 1]
         0 invoke [:r 1 nil]
         0 ok [:r 1 [1 1]]",
    ),
    (
        "own write not seen",
        "internal",
        "0 invoke [:append 1 1] [:r 1 nil]
         0 ok [:append 1 1] [:r 1 nil]",
    ),
    (
        "unknown, and read too early",
        "G1c-realtime",
        "0 invoke [:r 1 nil]
         0 ok [:r 1 [1]]
         1 invoke [:append 1 1]
         1 info [:append 1 1]",
    ),
];

/// Names and histories in which there is no anomaly.
const RIGHT: [(&str, &str); 4] = [
    (
        "unknown, and seen late",
        "0 invoke [:append 1 1]
         0 info [:append 1 1]
         1 invoke [:r 1 nil] [:append 1 2]
         1 ok [:r 1 nil] [:append 1 2]
         1 invoke [:r 1 nil]
         1 ok [:r 1 [2 1]]",
    ),
    (
        "unknown, and never seen",
        "0 invoke [:append 1 1] [:append 2 1]
         0 info [:append 1 1] [:append 2 1]
         1 invoke [:r 1 nil] [:append 2 2]
         1 ok [:r 1 nil] [:append 2 2]
         1 invoke [:r 2 nil]
         1 ok [:r 2 [2]]",
    ),
    (
        "seen by itself",
        "0 invoke [:append 1 1] [:r 1 nil] [:append 1 2]
         0 ok [:append 1 1] [:r 1 [1]] [:append 1 2]
         0 invoke [:append 1 3]
         0 ok [:append 1 3]",
    ),
    (
        "one of two orders at a time",
        "0 invoke [:append 1 1]
         1 invoke [:append 1 2]
         0 ok [:append 1 1]
         1 ok [:append 1 2]
         0 invoke [:append 2 1]
         0 ok [:append 2 1]",
    ),
];

/// Parses a history.
fn history(lines: &str) -> History {
    let events = lines.trim().lines().enumerate().map(|(index, line)| {
        let (process, rest) = line.trim().split_once(' ').unwrap();
        let (kind, operations) = rest.split_once(' ').unwrap();
        let when = format!(":index {index}, :time {index}");
        format!("{{{when}, :type :{kind}, :process {process}, :f :txn, :value [{operations}]}}\n")
    });
    let text: String = events.collect();
    let history = judge::convert(&judge::parse(&text));
    assert_eq!(judge::edn(&history), text);
    history
}

#[test]
fn anomalies_written_by_hand_are_found() {
    for (name, anomaly, lines) in ANOMALIES {
        let verdicts = judged(name, &history(lines));
        assert!(verdicts.adya.iter().any(|it| it == anomaly), "{name}: {verdicts:?}");
    }
}

#[test]
fn histories_written_by_hand_are_right() {
    for (name, lines) in RIGHT {
        let verdicts = judged(name, &history(lines));
        assert!(verdicts.adya.is_empty(), "{name}: {verdicts:?}");
    }
}
