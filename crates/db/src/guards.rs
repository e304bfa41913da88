//! Guards: the ranges of a keyspace that transactions have read.
//!
//! A transaction guards a range *before* it reads it. Every writer looks at the guards of its
//! keyspaces, under its stripes and before it checks anything (rules T4 and T6), and touches those of
//! other transactions that hold one of its keys. A guard that was touched is taken off the list, so
//! a transaction that is left open costs writers one look each until the first hit.
//!
//! **Invariants**
//! 1. `count` is the number of guards in the list. A writer that loads 0, sequentially consistent,
//!    has announced itself before; a guard registered later waits for it
//!    ([`Log::quiesce`](spinney_wal::Log::quiesce), rule T5).
//! 2. A guard that was not touched holds what it held when it was last narrowed.
//!
//! **Lock order**: the list comes after the stripes. Nothing is locked under it.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use spinney_base::shim::RwLock;
use spinney_base::shim::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Guards of one keyspace beyond which a new one holds all keys. With more, writers compare more
/// bounds; with fewer, transactions that read apart conflict.
const APART_MAX: usize = 256;

/// A part of the key space.
pub(crate) type Span = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The owner of what no transaction writes.
pub(crate) const NOBODY: u64 = 0;

/// The guards of one keyspace.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    count: AtomicUsize,
    list: RwLock<Vec<Guard>>,
}

#[derive(Debug)]
struct Guard {
    owner: u64,
    span: Span,
    touched: Touched,
}

/// Whether a writer has written into a guard's range. Its transaction keeps it.
pub(crate) type Touched = Arc<AtomicBool>;

impl Guards {
    /// Touches the guards of others that hold a key.
    #[inline]
    pub(crate) fn touch(&self, key: &[u8], owner: u64) {
        if self.count.load(SeqCst) > 0 {
            self.touch_span(owner, |span| contains(&span.0, &span.1, key));
        }
    }

    /// Touches the guards of others that hold a key between these, both included.
    pub(crate) fn touch_between(&self, least: &[u8], greatest: &[u8], owner: u64) {
        if self.count.load(SeqCst) > 0 {
            let ends_before = |span: &Span| !contains(&Bound::Unbounded, &span.1, least);
            let begins_after = |span: &Span| !contains(&span.0, &Bound::Unbounded, greatest);
            self.touch_span(owner, |span| !ends_before(span) && !begins_after(span));
        }
    }

    #[cold]
    fn touch_span(&self, owner: u64, is_met: impl Fn(&Span) -> bool) {
        let is_hit = |guard: &Guard| guard.owner != owner && is_met(&guard.span);
        if !self.list.read().iter().any(is_hit) {
            return;
        }
        let mut list = self.list.write();
        list.retain(|guard| {
            let is_hit = is_hit(guard);
            if is_hit {
                guard.touched.store(true, SeqCst);
            }
            !is_hit
        });
        self.count.store(list.len(), SeqCst);
    }

    /// Guards a range for a transaction. It must quiesce before it reads.
    pub(crate) fn register(&self, owner: u64, span: Span) -> Touched {
        let touched = Touched::default();
        let mut list = self.list.write();
        let is_apart = list.len() < APART_MAX;
        let span = if is_apart { span } else { (Bound::Unbounded, Bound::Unbounded) };
        list.push(Guard { owner, span, touched: touched.clone() });
        self.count.store(list.len(), SeqCst);
        touched
    }

    /// Narrows a guard to what was read, unless it was touched, and lets the guard before it grow by
    /// that, if the two meet and it was not touched either. Returns the guard that holds the range
    /// now, or `None` if it was touched.
    pub(crate) fn narrow(
        &self,
        touched: &Touched,
        span: Span,
        before: Option<&Touched>,
    ) -> Option<Touched> {
        let mut list = self.list.write();
        let place = list.iter().position(|guard| Arc::ptr_eq(&guard.touched, touched))?;
        let is_all = matches!(list[place].span, (Bound::Unbounded, Bound::Unbounded));
        if !(is_all && list.len() > APART_MAX) {
            list[place].span = span;
        }
        let before = before
            .and_then(|before| list.iter().position(|guard| Arc::ptr_eq(&guard.touched, before)));
        let Some(other) = before else { return Some(touched.clone()) };
        let (one, next) = (list[other].span.clone(), list[place].span.clone());
        let joined = if meet(&one.1, &next.0) {
            (one.0, next.1)
        } else if meet(&next.1, &one.0) {
            (next.0, one.1)
        } else {
            return Some(touched.clone());
        };
        list[other].span = joined;
        let kept = list[other].touched.clone();
        list.swap_remove(place);
        self.count.store(list.len(), SeqCst);
        Some(kept)
    }

    /// Takes the guards of a transaction off the list.
    pub(crate) fn remove(&self, owner: u64) {
        let mut list = self.list.write();
        list.retain(|guard| guard.owner != owner);
        self.count.store(list.len(), SeqCst);
    }

    /// Number of guards.
    pub(crate) fn len(&self) -> usize {
        self.count.load(SeqCst)
    }
}

fn contains(lower: &Bound<Vec<u8>>, upper: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    let borrowed = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
    RangeBounds::<[u8]>::contains(&borrowed, key)
}

/// Whether one range ends where the next begins.
fn meet(upper: &Bound<Vec<u8>>, lower: &Bound<Vec<u8>>) -> bool {
    match (upper, lower) {
        (Bound::Included(one), Bound::Excluded(other))
        | (Bound::Excluded(one), Bound::Included(other)) => one == other,
        _ => false,
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn span(lower: &str, upper: &str) -> Span {
        (Bound::Included(lower.into()), Bound::Excluded(upper.into()))
    }

    #[test]
    fn writers_touch_what_holds_their_keys() {
        let guards = Guards::default();
        let [one, two] = [span("b", "d"), span("d", "f")].map(|span| guards.register(1, span));
        let is_touched = |guard: &Touched| guard.load(SeqCst);
        guards.touch(b"d", 1);
        guards.touch(b"a", 2);
        guards.touch(b"f", 2);
        assert!(!is_touched(&one) && !is_touched(&two) && guards.len() == 2);
        guards.touch(b"d", 2);
        assert!(!is_touched(&one) && is_touched(&two) && guards.len() == 1);
        guards.touch_between(b"a", b"a", 2);
        guards.touch_between(b"d", b"z", 2);
        assert!(!is_touched(&one));
        guards.touch_between(b"a", b"z", 2);
        assert!(is_touched(&one) && guards.len() == 0);
    }

    #[test]
    fn guards_narrow_and_grow_together() {
        let guards = Guards::default();
        let one = guards.register(1, span("a", "z"));
        assert!(guards.narrow(&one, span("a", "c"), None).is_some());
        let two = guards.register(1, span("c", "z"));
        let kept = guards.narrow(&two, span("c", "f"), Some(&one)).unwrap();
        assert!(Arc::ptr_eq(&kept, &one) && guards.len() == 1);
        guards.touch(b"x", 2);
        assert!(!one.load(SeqCst), "narrowed");
        guards.touch(b"e", 2);
        assert!(one.load(SeqCst) && guards.narrow(&one, span("a", "b"), None).is_none());
        // Beyond so many each holds everything.
        for number in 0..=APART_MAX {
            let touched = guards.register(number as u64, span("a", "b"));
            guards.narrow(&touched, span("a", "b"), None).unwrap();
        }
        guards.touch(b"q", 9_999);
        assert_eq!(guards.len(), APART_MAX);
        (0..APART_MAX).for_each(|number| guards.remove(number as u64));
        assert_eq!(guards.len(), 0);
    }
}
