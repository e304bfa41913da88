//! Guards: the ranges of a keyspace that transactions have read.
//!
//! A transaction guards a range *before* it reads it. Every writer looks at the guards of its
//! keyspaces, under its stripes and before it checks anything (rules T4 and T6), and touches those of
//! other transactions that hold one of its keys. A guard that was touched is taken off the list, so
//! a transaction that is left open costs writers at most one touch for each range.
//!
//! ```text
//!  guards     |--a--|    |--b--|                       |---d---|
//!                     |---c---|
//!  clusters   [  a  ] [  b c   ]                       [   d   ]     disjoint, in the order of keys
//!  asked      |-----------------------e------------------------------->    under way: not read yet
//! ```
//!
//! A writer finds the cluster of its key by a binary search, so guards beside its key cost it nothing. A
//! guard over all that was asked for lies apart until it is narrowed to what was read: it would make one
//! cluster of all that it meets, and there is one at most for each thread that reads.
//!
//! **Invariants**
//! 1. `count` is the number of guards in the list. A writer that loads 0, sequentially consistent,
//!    has announced itself before; a guard registered later waits for it
//!    ([`Log::quiesce`](spinney_wal::Log::quiesce), rule T5).
//! 2. A guard that was not touched holds what it held when it was last narrowed.
//! 3. Clusters are disjoint and ascend; each holds guards that overlap one another, directly or by others
//!    of the cluster, and ends where they end.
//!
//! **Lock order**: the list comes after the stripes. Nothing is locked under it.

use std::ops::{Bound, Range};
use std::sync::Arc;

use spinney_base::shim::RwLock;
use spinney_base::shim::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// A part of the key space.
pub(crate) type Span = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The owner of what no transaction writes.
pub(crate) const NOBODY: u64 = 0;

/// The guards of one keyspace.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    count: AtomicUsize,
    list: RwLock<List>,
}

#[derive(Debug)]
struct Guard {
    owner: u64,
    span: Span,
    touched: Touched,
}

/// Whether a writer has written into a guard's range. Its transaction keeps it.
pub(crate) type Touched = Arc<AtomicBool>;

/// Keys that a writer writes: from the first to the second, both included.
type Written<'a> = (&'a [u8], &'a [u8]);

impl Guard {
    fn is_hit(&self, (least, greatest): Written<'_>, writer: u64) -> bool {
        self.owner != writer
            && !ends_before(&self.span.1, Bound::Included(least))
            && !begins_after(&self.span.0, greatest)
    }
}

impl Guards {
    /// Touches the guards of others that hold a key.
    #[inline]
    pub(crate) fn touch(&self, key: &[u8], owner: u64) {
        self.touch_between(key, key, owner);
    }

    /// Touches the guards of others that hold a key between these, both included.
    #[inline]
    pub(crate) fn touch_between(&self, least: &[u8], greatest: &[u8], owner: u64) {
        if self.count.load(SeqCst) > 0 {
            self.touch_listed((least, greatest), owner);
        }
    }

    #[cold]
    fn touch_listed(&self, written: Written<'_>, owner: u64) {
        if !self.list.read().is_hit(written, owner) {
            return;
        }
        let mut list = self.list.write();
        list.touch(written, owner);
        self.count.store(list.len(), SeqCst);
    }

    /// Guards a range for a transaction. It must quiesce before it reads.
    pub(crate) fn register(&self, owner: u64, span: Span) -> Touched {
        let touched = Touched::default();
        let mut list = self.list.write();
        list.asked.push(Guard { owner, span, touched: touched.clone() });
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
        let mut guard = list.take(touched)?;
        guard.span = span;
        if let Some(mut other) = before.and_then(|before| list.take(before)) {
            if let Some(joined) = joined(&other.span, &guard.span) {
                other.span = joined;
                guard = other;
            } else {
                list.insert(other);
            }
        }
        let kept = guard.touched.clone();
        list.insert(guard);
        self.count.store(list.len(), SeqCst);
        Some(kept)
    }

    /// Takes the guards of a transaction off the list.
    pub(crate) fn remove(&self, owner: u64) {
        let mut list = self.list.write();
        list.remove(owner);
        self.count.store(list.len(), SeqCst);
    }

    /// Number of guards.
    pub(crate) fn len(&self) -> usize {
        self.count.load(SeqCst)
    }
}

/// Guards, in the order of keys where they have been narrowed.
#[derive(Debug, Default)]
struct List {
    /// Guards over what is being read, and over nothing.
    asked: Vec<Guard>,
    clusters: Vec<Cluster>,
    /// Number of guards in clusters.
    clustered: usize,
}

/// Guards that overlap, and the range that they hold together.
#[derive(Debug)]
struct Cluster {
    span: Span,
    guards: Vec<Guard>,
}

impl List {
    fn len(&self) -> usize {
        self.asked.len() + self.clustered
    }

    /// The first cluster that holds a key above a bound.
    fn first_met(&self, lower: Bound<&[u8]>) -> usize {
        self.clusters.partition_point(|one| ends_before(&one.span.1, lower))
    }

    /// The clusters that hold keys between two bounds.
    fn met(&self, lower: Bound<&[u8]>, upper: &Bound<&[u8]>) -> Range<usize> {
        let start = self.first_met(lower);
        let is_met = |one: &Cluster| !ends_before(upper, borrowed(&one.span.0));
        start..start + self.clusters[start..].partition_point(is_met)
    }

    fn is_hit(&self, written: Written<'_>, writer: u64) -> bool {
        let is_hit = |guard: &Guard| guard.is_hit(written, writer);
        if self.asked.iter().any(is_hit) {
            return true;
        }
        let start = self.first_met(Bound::Included(written.0));
        let met =
            self.clusters[start..].iter().take_while(|one| !begins_after(&one.span.0, written.1));
        met.flat_map(|one| &one.guards).any(is_hit)
    }

    /// Touches what is hit, and takes it off.
    fn touch(&mut self, written: Written<'_>, writer: u64) {
        let is_left = |guard: &Guard| {
            let is_hit = guard.is_hit(written, writer);
            if is_hit {
                guard.touched.store(true, SeqCst);
            }
            !is_hit
        };
        self.asked.retain(is_left);
        let met = self.met(Bound::Included(written.0), &Bound::Included(written.1));
        self.keep(met, is_left);
    }

    /// Takes the guards of some clusters off that are not to be kept.
    fn keep(&mut self, clusters: Range<usize>, is_kept: impl Fn(&Guard) -> bool) {
        let guards = self.clusters.splice(clusters.clone(), []).flat_map(|one| one.guards);
        let mut left: Vec<Guard> = guards.collect();
        let before = left.len();
        left.retain(is_kept);
        self.clustered -= before - left.len();
        let start = clusters.start;
        self.clusters.splice(start..start, clusters_of(left));
    }

    /// Takes a guard off, if it is there.
    fn take(&mut self, touched: &Touched) -> Option<Guard> {
        let is_it = |guard: &Guard| Arc::ptr_eq(&guard.touched, touched);
        if let Some(place) = self.asked.iter().position(is_it) {
            return Some(self.asked.swap_remove(place));
        }
        let cluster = self.clusters.iter().position(|one| one.guards.iter().any(is_it))?;
        let mut left = self.clusters.remove(cluster).guards;
        let place = left.iter().position(is_it)?;
        let guard = left.swap_remove(place);
        self.clustered -= 1;
        self.clusters.splice(cluster..cluster, clusters_of(left));
        Some(guard)
    }

    /// Adds a guard to the clusters, and joins those that it meets.
    fn insert(&mut self, guard: Guard) {
        if is_empty(&guard.span) {
            self.asked.push(guard);
            return;
        }
        let met = self.met(borrowed(&guard.span.0), &borrowed(&guard.span.1));
        let mut cluster = Cluster { span: guard.span.clone(), guards: vec![guard] };
        let start = met.start;
        for one in self.clusters.splice(met, []) {
            cluster.join(one);
        }
        self.clustered += 1;
        self.clusters.insert(start, cluster);
    }

    /// Takes the guards of a transaction off, in one pass: it may have any number.
    fn remove(&mut self, owner: u64) {
        let is_left = |guard: &Guard| guard.owner != owner;
        self.asked.retain(is_left);
        if self.clusters.iter().flat_map(|one| &one.guards).all(is_left) {
            return;
        }
        for mut one in std::mem::take(&mut self.clusters) {
            let before = one.guards.len();
            one.guards.retain(is_left);
            let gone = before - one.guards.len();
            self.clustered -= gone;
            match gone {
                0 => self.clusters.push(one),
                _ => self.clusters.extend(clusters_of(one.guards)),
            }
        }
    }
}

impl Cluster {
    /// Takes in what overlaps this one.
    fn join(&mut self, other: Cluster) {
        let (lower, upper) = other.span;
        if starts_before(&lower, &self.span.0) {
            self.span.0 = lower;
        }
        if ends_behind(&upper, &self.span.1) {
            self.span.1 = upper;
        }
        self.guards.extend(other.guards);
    }
}

/// The clusters of guards in any order.
fn clusters_of(mut guards: Vec<Guard>) -> Vec<Cluster> {
    guards.sort_by(|one, other| lower_key(&one.span.0).cmp(&lower_key(&other.span.0)));
    let mut clusters: Vec<Cluster> = Vec::new();
    for guard in guards {
        let one = Cluster { span: guard.span.clone(), guards: vec![guard] };
        match clusters.last_mut() {
            Some(last) if !ends_before(&last.span.1, borrowed(&one.span.0)) => last.join(one),
            _ => clusters.push(one),
        }
    }
    clusters
}

/// The order of lower bounds: the least key, and whether it is excluded.
fn lower_key(lower: &Bound<Vec<u8>>) -> (&[u8], bool) {
    match lower {
        Bound::Unbounded => (&[], false),
        Bound::Included(key) => (key, false),
        Bound::Excluded(key) => (key, true),
    }
}

fn starts_before(one: &Bound<Vec<u8>>, other: &Bound<Vec<u8>>) -> bool {
    lower_key(one) < lower_key(other)
}

/// Whether the first of two upper bounds is the greater.
fn ends_behind(one: &Bound<Vec<u8>>, other: &Bound<Vec<u8>>) -> bool {
    match (one, other) {
        (_, Bound::Unbounded) => false,
        (Bound::Unbounded, _) => true,
        (Bound::Included(one), Bound::Excluded(other)) => one >= other,
        (
            Bound::Included(one) | Bound::Excluded(one),
            Bound::Included(other) | Bound::Excluded(other),
        ) => one > other,
    }
}

/// Whether no key is below the one bound and above the other.
fn ends_before<K: AsRef<[u8]>>(upper: &Bound<K>, lower: Bound<&[u8]>) -> bool {
    #[cfg(test)]
    COMPARED.set(COMPARED.get() + 1);
    match (upper, lower) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(upper), Bound::Included(lower)) => upper.as_ref() < lower,
        (
            Bound::Included(upper) | Bound::Excluded(upper),
            Bound::Included(lower) | Bound::Excluded(lower),
        ) => upper.as_ref() <= lower,
    }
}

fn begins_after(lower: &Bound<Vec<u8>>, greatest: &[u8]) -> bool {
    ends_before(&Bound::Included(greatest), borrowed(lower))
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

fn is_empty((lower, upper): &Span) -> bool {
    ends_before(upper, borrowed(lower))
}

/// Both ranges together, if one ends where the other begins.
fn joined(one: &Span, other: &Span) -> Option<Span> {
    if meet(&one.1, &other.0) {
        Some((one.0.clone(), other.1.clone()))
    } else if meet(&other.1, &one.0) {
        Some((other.0.clone(), one.1.clone()))
    } else {
        None
    }
}

/// Whether one range ends where the next begins.
fn meet(upper: &Bound<Vec<u8>>, lower: &Bound<Vec<u8>>) -> bool {
    match (upper, lower) {
        (Bound::Included(one), Bound::Excluded(other))
        | (Bound::Excluded(one), Bound::Included(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
std::thread_local! {
    /// Bounds that this thread has compared.
    static COMPARED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
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
        assert_eq!(guards.len(), 0);
    }

    /// A put beside many ranges compares its key with a few of them, and touches none.
    #[test]
    fn guards_beside_a_key_cost_little_and_are_not_touched() {
        let guards = Guards::default();
        let name = |number: usize| format!("{number:05}");
        let all: Vec<Touched> = (0..1024)
            .map(|number| {
                let touched = guards.register(1, (Bound::Unbounded, Bound::Unbounded));
                let span = span(&name(10 * number), &name(10 * number + 5));
                guards.narrow(&touched, span, None).unwrap()
            })
            .collect();
        COMPARED.set(0);
        for number in 0..1024 {
            guards.touch(name(10 * number + 7).as_bytes(), 2);
        }
        assert!(COMPARED.get() <= 1024 * 15, "{} comparisons", COMPARED.get());
        assert!(guards.len() == 1024 && all.iter().all(|one| !one.load(SeqCst)));
        guards.touch_between(name(20).as_bytes(), name(44).as_bytes(), 2);
        let touched: Vec<usize> = (0..1024).filter(|index| all[*index].load(SeqCst)).collect();
        assert_eq!((touched, guards.len()), (vec![2, 3, 4], 1021));
    }

    /// Random guards of three owners are touched as a list without an order says.
    #[test]
    fn clusters_hold_what_a_plain_list_holds() {
        let mut random = spinney_base::runtime::SplitMix(7);
        let guards = Guards::default();
        let mut plain: Vec<(u64, Span, Touched, bool)> = Vec::new();
        let name = |number: usize| format!("{number:02}").into_bytes();
        for _ in 0..3000 {
            let owner = 1 + random.next_u64() % 3;
            let (from, to) = (random.below(60), random.below(60));
            let bound = |random: &mut spinney_base::runtime::SplitMix, number| match random.below(9)
            {
                0 => Bound::Unbounded,
                1..=4 => Bound::Included(name(number)),
                _ => Bound::Excluded(name(number)),
            };
            match random.below(8) {
                0..4 => {
                    let touched = guards.register(owner, (Bound::Unbounded, Bound::Unbounded));
                    let span = (bound(&mut random, from), bound(&mut random, to.min(from + 9)));
                    guards.narrow(&touched, span.clone(), None).unwrap();
                    plain.push((owner, span, touched, false));
                }
                4..7 => {
                    let (least, greatest) = (name(from.min(to)), name(from.max(to).min(from + 2)));
                    let (least, greatest) =
                        (least.clone().min(greatest.clone()), greatest.max(least));
                    guards.touch_between(&least, &greatest, owner);
                    for (other, span, _, is_touched) in &mut plain {
                        let ends_before = ends_before(&span.1, Bound::Included(&least[..]));
                        *is_touched |=
                            *other != owner && !ends_before && !begins_after(&span.0, &greatest);
                    }
                }
                _ => {
                    guards.remove(owner);
                    plain.retain(|one| one.0 != owner);
                }
            }
            assert!(plain.iter().all(|(_, _, touched, is)| touched.load(SeqCst) == *is));
            assert_eq!(guards.len(), plain.iter().filter(|one| !one.3).count());
            let list = guards.list.read();
            let is_apart =
                |pair: &[Cluster]| ends_before(&pair[0].span.1, borrowed(&pair[1].span.0));
            assert!(list.clusters.windows(2).all(is_apart), "{list:?}");
        }
    }
}
