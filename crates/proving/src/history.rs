//! Histories: what several threads did to a key and saw of it, and whether some order explains it.
//!
//! A history of one key is *linearizable* when its events can be put in one order such that each
//! takes effect at one moment between its start and its end, and every answer is right in that
//! order. The search walks sets of events already ordered; what it has seen it does not walk again,
//! so histories of a few threads are checked in about linear time.

use std::collections::HashSet;

/// A value, by a number that no other write has; `None` is absence.
pub type ValueId = Option<u64>;

/// What was done and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A read that saw this.
    Read(ValueId),
    /// A write or a removal.
    Write(ValueId),
    /// A write whose outcome is not known: it happened at some moment after its start, or never.
    MaybeWrite(ValueId),
    /// A conditional write that found the first and left the second.
    Swap(ValueId, ValueId),
    /// A conditional write that expected the first and found the second.
    NoSwap(ValueId, ValueId),
}

/// One event of a key. Moments are drawn from one counter.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Just before the call.
    pub start: u64,
    /// Just after the answer.
    pub end: u64,
    /// What happened.
    pub action: Action,
}

/// The value after `action` took effect on `value`, or `None` when its answer would be wrong.
fn takes_effect(action: Action, value: ValueId) -> Option<ValueId> {
    match action {
        Action::Read(seen) => (seen == value).then_some(value),
        Action::Write(new) | Action::MaybeWrite(new) => Some(new),
        Action::Swap(expected, new) => (expected == value).then_some(new),
        Action::NoSwap(expected, told) => (told == value && told != expected).then_some(value),
    }
}

/// Looks for an order that explains the events of one key that first holds `initial`.
///
/// # Errors
/// The events around the furthest point that an order reached.
pub fn explain(events: &[Event], initial: ValueId) -> Result<(), Vec<Event>> {
    let mut events = events.to_vec();
    events.sort_by_key(|event| event.start);
    // A state of the search: all events before `base` are ordered, those of `beyond` (all after
    // `base`) as well, and the key holds the value.
    let mut states: Vec<(usize, Vec<usize>, ValueId)> = vec![(0, Vec::new(), initial)];
    let mut seen: HashSet<(usize, Vec<usize>, ValueId)> = HashSet::new();
    let mut furthest = 0;
    while let Some(state) = states.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        let (base, beyond, value) = state;
        furthest = furthest.max(base);
        if base == events.len() {
            return Ok(());
        }
        // The next event must start before any event that is not yet ordered ends.
        let mut first_end = u64::MAX;
        for (index, event) in events.iter().enumerate().skip(base) {
            if event.start > first_end {
                break;
            }
            if beyond.binary_search(&index).is_err() {
                first_end = first_end.min(event.end);
            }
        }
        for (index, event) in events.iter().enumerate().skip(base) {
            if event.start > first_end {
                break;
            }
            let Err(place) = beyond.binary_search(&index) else { continue };
            let ordered = || {
                let mut beyond = beyond.clone();
                beyond.insert(place, index);
                let mut base = base;
                while beyond.first() == Some(&base) {
                    beyond.remove(0);
                    base += 1;
                }
                (base, beyond)
            };
            if let Some(next) = takes_effect(event.action, value) {
                let (base, beyond) = ordered();
                states.push((base, beyond, next));
            }
            if matches!(event.action, Action::MaybeWrite(_)) {
                let (base, beyond) = ordered();
                states.push((base, beyond, value));
            }
        }
    }
    let from = furthest.saturating_sub(8);
    Err(events[from..events.len().min(furthest + 8)].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::Random;

    fn event(start: u64, end: u64, action: Action) -> Event {
        Event { start, end, action }
    }

    #[test]
    fn small_histories() {
        use Action::{MaybeWrite, NoSwap, Read, Swap, Write};
        let one = Some(1);
        let two = Some(2);
        let right: [&[Event]; 5] = [
            &[event(1, 4, Write(one)), event(2, 3, Read(None))],
            &[event(1, 4, Write(one)), event(2, 3, Read(one))],
            &[event(1, 6, Write(one)), event(2, 3, Read(one)), event(4, 5, Swap(one, two))],
            &[event(1, 2, MaybeWrite(one)), event(3, 4, Read(None))],
            &[event(1, 2, Write(one)), event(3, 4, NoSwap(two, one))],
        ];
        for events in right {
            assert!(explain(events, None).is_ok(), "{events:?}");
        }
        let wrong: [&[Event]; 4] = [
            &[event(1, 2, Write(one)), event(3, 4, Read(None))],
            &[event(1, 6, Write(one)), event(2, 3, Read(one)), event(4, 5, Read(None))],
            &[event(1, 2, Swap(None, one)), event(3, 4, Swap(None, two))],
            &[event(1, 2, NoSwap(None, None))],
        ];
        for events in wrong {
            assert!(explain(events, None).is_err(), "{events:?}");
        }
    }

    /// A register with four clients, each of whose operations takes effect at a drawn moment
    /// between start and end.
    #[test]
    fn long_histories_are_quick_and_one_wrong_read_is_found() {
        let mut random = Random::new(1, 1);
        let mut events = Vec::new();
        let (mut now, mut value) = (0, None);
        let mut pending: Vec<Option<(u64, Option<Action>)>> = vec![None; 4];
        while events.len() < 4000 {
            now += 1;
            let client = random.below(4);
            match pending[client] {
                None => pending[client] = Some((now, None)),
                Some((start, None)) => {
                    let action = match random.below(3) {
                        0 => Action::Read(value),
                        1 => Action::Write(Some(now)),
                        _ => Action::Swap(value, Some(now)),
                    };
                    value = takes_effect(action, value).unwrap();
                    pending[client] = Some((start, Some(action)));
                }
                Some((start, Some(action))) => {
                    events.push(event(start, now, action));
                    pending[client] = None;
                }
            }
        }
        for (start, action) in pending.into_iter().flatten() {
            events.extend(action.map(|action| event(start, now + 1, action)));
        }
        assert!(explain(&events, None).is_ok());
        let read =
            events.iter().rposition(|event| matches!(event.action, Action::Read(_))).unwrap();
        events[read].action = Action::Read(Some(0));
        assert!(explain(&events, None).is_err());
    }
}
