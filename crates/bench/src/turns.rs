//! Which of several keyspaces are driven, and how those perform that were just turned to.
//!
//! One note describes each turn: the memory of the driven keyspaces two seconds after its beginning
//! and at its end, and the pages read per operation, once as many operations had run as their
//! memory holds records, and in its last quarter.

use std::time::Duration;

use crate::driver::KeyspaceMemory;

/// How often is looked.
const LOOK: Duration = Duration::from_millis(250);

/// The keyspaces that are driven in a turn.
pub(crate) fn busy(turn: u64, busy: usize, driven: usize) -> impl Iterator<Item = usize> {
    let first = usize::try_from(turn).unwrap_or(0).wrapping_mul(busy);
    (0..busy).map(move |nth| first.wrapping_add(nth) % driven)
}

/// One look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) at: Duration,
    pub(crate) operations: u64,
    pub(crate) pages_read: u64,
    pub(crate) memory: KeyspaceMemory,
}

/// The looks at one turn.
#[derive(Debug, Default)]
pub(crate) struct Turn(Vec<Look>);

impl Turn {
    /// Whether it is time to look.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.0.last().is_none_or(|last| now.saturating_sub(last.at) >= LOOK)
    }

    pub(crate) fn add(&mut self, look: Look) {
        self.0.push(look);
    }

    /// Result of a turn, with records of `record_bytes` bytes.
    #[expect(clippy::cast_precision_loss, reason = "ratios are shown with a few digits")]
    pub(crate) fn note(&self, record_bytes: u64) -> Option<String> {
        let (first, last) = (self.0.first()?, self.0.last()?);
        let time = last.at.saturating_sub(first.at);
        let look_at = |time| self.0.iter().find(|look| look.at - first.at >= time);
        let soon = look_at(Duration::from_secs(2))?;
        let held = last.memory.used / record_bytes.max(1);
        let asked = self.0.iter().position(|look| look.operations - first.operations >= held);
        let each = |from: &Look, to: &Look| {
            let operations = to.operations.saturating_sub(from.operations).max(1);
            to.pages_read.saturating_sub(from.pages_read) as f64 / operations as f64
        };
        let late = each(look_at(time / 4 * 3)?, last);
        let asked = asked.and_then(|at| Some((&self.0[at], self.0.get(at + 8)?)));
        let asked = match asked {
            Some((from, to)) => {
                let seconds = (from.at - first.at).as_secs_f64();
                let pages = each(from, to);
                format!("{pages:.3} pages read an operation after {held} of them ({seconds:.1} s)")
            }
            None => format!("fewer than {held} operations"),
        };
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        Some(format!(
            "memory {:.1} MiB after 2 s, {:.1} MiB at the end ({:.1} MiB used); {asked}, {late:.3} in the last quarter",
            mib(soon.memory.target),
            mib(last.memory.target),
            mib(last.memory.used),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_go_round() {
        let all = |turn, count, driven| busy(turn, count, driven).collect::<Vec<_>>();
        assert_eq!(all(0, 1, 2), [0]);
        assert_eq!(all(3, 1, 2), [1]);
        assert_eq!(all(1, 2, 3), [2, 0]);
        assert_eq!(all(9, 2, 2), [0, 1]);
    }

    #[test]
    fn a_turn_says_what_it_was_like() {
        let mut turn = Turn::default();
        assert!(turn.is_due(Duration::ZERO) && turn.note(1).is_none());
        for step in 0..=80u64 {
            turn.add(Look {
                at: step as u32 * LOOK,
                operations: 1000 * step,
                pages_read: if step < 40 { 500 * step } else { 20_000 + 100 * (step - 40) },
                memory: KeyspaceMemory { target: step << 20, used: 10_000 * step },
            });
        }
        assert!(!turn.is_due(80 * LOOK) && turn.is_due(81 * LOOK));
        assert_eq!(
            turn.note(20).unwrap(),
            "memory 8.0 MiB after 2 s, 80.0 MiB at the end (0.8 MiB used); 0.100 pages read an operation after 40000 of them (10.0 s), 0.100 in the last quarter"
        );
    }
}
