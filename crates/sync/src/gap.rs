//! A range of keys without values. With it, the first key of a queue, whose head is removed again
//! and again, is found without passing all removed keys.
//!
//! A *look* for the first key from some key on is announced, runs, and then reports what it found:
//! no key lies between the two. A look that begins inside the known range continues at its end. An
//! insert into the range cuts it off there. An insert during a look is noted, and the look leaves
//! no range that holds it.
//!
//! A reader that removes the head and reads the next one would read pages for each. So a look may
//! report some more keys after the first, and the range continues over them:
//!
//! ```text
//!   from                   listed                to
//!    |........................k....k......k.......|      dots: no key with a value
//! ```
//!
//! The next look asks for the listed keys one after the other, each by itself, and continues at the
//! end only where all are gone.
//!
//! Most reads of one record pass nothing, and announcing them would cost a lock. So a look is
//! announced only where it begins in the range, or for a while after some range [passed over
//! much](Gap::passed_much).
//!
//! **Invariant**: no key with a value lies in the range, but for those that are listed. A listed
//! key may have lost its value.
//!
//! **Concurrency.** An insert is visible before it asks; a look is announced before it looks. With
//! a fence on either side one of the two sees the other. An insert outside of the range reads one
//! or two words; the others, and all while somebody looks, take a lock.

use std::ops::Range;
use std::sync::Arc;

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

/// Number of looks that are announced after a range passed over much.
const EAGER: u64 = 64;

/// Most keys to report when a look ends. A queue is searched once in this many removals.
const NAMED_MAX: usize = 64;

/// The range of one keyspace. Thread-safe.
///
/// ```
/// let gap = spinney_sync::Gap::default();
/// gap.passed_much();
/// let look = gap.look(b"a").unwrap();
/// assert_eq!(look.from(), b"a");
/// gap.found(look, [&b"m"[..]], None);
/// // A look from there on begins where that one ended,
/// let look = gap.look(b"c").unwrap();
/// assert_eq!(look.from(), b"m");
/// gap.found(look, [&b"m"[..], b"p"], None);
/// // or asks for what is listed,
/// let look = gap.look(b"c").unwrap();
/// assert_eq!((look.listed(), look.from()), (&[b"m".to_vec()][..], &b"p"[..]));
/// gap.found_listed(&look, 0);
/// // unless something was inserted before it.
/// gap.inserted(b"d");
/// assert_eq!(gap.look(b"c").unwrap().from(), b"d");
/// ```
#[derive(Debug, Default)]
pub struct Gap {
    /// Inserts of keys whose first eight bytes are above this or below `low` need not ask. All ones
    /// and 0 during a look.
    high: AtomicU64,
    low: AtomicU64,
    /// Number of further looks that are announced.
    eager: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    range: Option<Known>,
    looks: Vec<Announced>,
    next: u64,
}

/// What is known of the keys from one up to, not including, a greater one.
#[derive(Debug)]
struct Known {
    from: Vec<u8>,
    to: Vec<u8>,
    /// In ascending order; those of `listed` lie in the range, and no other key there has a value.
    keys: Arc<[Vec<u8>]>,
    listed: Range<usize>,
}

impl Known {
    fn contains(&self, key: &[u8]) -> bool {
        *self.from <= *key && *key < *self.to
    }

    /// Returns the listed keys that are not below this one.
    fn listed_from(&self, from: &[u8]) -> Range<usize> {
        let below = self.keys[self.listed.clone()].partition_point(|key| **key < *from);
        self.listed.start + below..self.listed.end
    }

    /// Notes that a key has a value now: the range ends there, unless the key is listed. Returns
    /// whether anything is left.
    fn cut(&mut self, key: &[u8]) -> bool {
        let above = self.listed_from(key);
        let is_listed = self.keys[above.clone()].first().is_some_and(|listed| **listed == *key);
        if self.contains(key) && !is_listed {
            self.to = key.to_vec();
            self.listed.end = above.start;
        }
        self.from < self.to
    }
}

/// A running look.
#[derive(Debug)]
struct Announced {
    number: u64,
    from: Vec<u8>,
    /// Least key from there on that was inserted since.
    least: Option<Vec<u8>>,
}

/// A look that was announced; [`Gap::found`] ends it.
#[derive(Debug)]
#[must_use = "a look that is not ended makes every insert take a lock"]
pub struct Look {
    number: u64,
    from: Vec<u8>,
    keys: Arc<[Vec<u8>]>,
    listed: Range<usize>,
    is_inside: bool,
}

impl Look {
    /// Returns the keys to ask for first, in this order. No key lies between them, and each may be
    /// gone.
    #[must_use]
    pub fn listed(&self) -> &[Vec<u8>] {
        &self.keys[self.listed.clone()]
    }

    /// Returns the key from which to look when the listed ones are gone.
    #[must_use]
    pub fn from(&self) -> &[u8] {
        &self.from
    }

    /// Returns how many keys to report when it ends: more than one where the first one is looked
    /// for again and again.
    #[must_use]
    pub fn worth_naming(&self) -> usize {
        if self.is_inside { NAMED_MAX } else { 1 }
    }
}

/// Returns the first eight bytes of a key as a number with the same order.
fn word(key: &[u8]) -> u64 {
    if let Some(word) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*word);
    }
    let mut word = [0; 8];
    word[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(word)
}

impl Gap {
    /// Notes that a key was given a value that lookups already see.
    #[inline]
    pub fn inserted(&self, key: &[u8]) {
        fence(SeqCst);
        // Either read alone is enough, whenever it was true.
        let word = word(key);
        if word > self.high.load(SeqCst) || word < self.low.load(SeqCst) {
            return;
        }
        self.inserted_inside(key);
    }

    #[cold]
    fn inserted_inside(&self, key: &[u8]) {
        let mut state = self.state.lock();
        for look in state.looks.iter_mut().filter(|look| *look.from <= *key) {
            if look.least.as_deref().is_none_or(|least| key < least) {
                look.least = Some(key.to_vec());
            }
        }
        state.range.take_if(|known| !known.cut(key));
        self.tell(&state);
    }

    /// Notes that a range passed over many keys without values, so that looks are announced.
    pub fn passed_much(&self) {
        self.eager.store(EAGER, Relaxed);
    }

    /// Begins a look for the first key from this one on. Returns `None` if announcing it does not
    /// pay.
    pub fn look(&self, from: &[u8]) -> Option<Look> {
        let word = word(from);
        let is_inside = word <= self.high.load(Relaxed) && word >= self.low.load(Relaxed);
        if !is_inside {
            let eager = self.eager.load(Relaxed);
            if eager == 0 {
                return None;
            }
            // A lost update means one look more.
            self.eager.store(eager - 1, Relaxed);
        }
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.looks.push(Announced { number, from: from.to_vec(), least: None });
        self.tell(&state);
        let known = state.range.as_ref().filter(|known| known.contains(from));
        let look = match known {
            Some(known) => Look {
                number,
                from: known.to.clone(),
                keys: known.keys.clone(),
                listed: known.listed_from(from),
                is_inside: true,
            },
            None => Look {
                number,
                from: from.to_vec(),
                keys: Arc::default(),
                listed: 0..0,
                is_inside: false,
            },
        };
        drop(state);
        fence(SeqCst);
        Some(look)
    }

    /// Ends a look. `keys` are the first keys with values, ascending, with no key between them;
    /// none if nothing was found. No key lies between the last one and `end` either, if it is
    /// given.
    pub fn found<'k>(
        &self,
        look: Look,
        first: impl IntoIterator<Item = &'k [u8]>,
        end: Option<&[u8]>,
    ) {
        let mut state = self.state.lock();
        let Some(Announced { from, least, .. }) = state.end(look.number) else { return };
        let mut keys: Vec<Vec<u8>> = first.into_iter().map(<[u8]>::to_vec).collect();
        if let Some(mut to) = end.or(keys.last().map(Vec::as_slice)) {
            // After a key that was inserted meanwhile, there may be others that the look has passed
            // before.
            to = least.as_deref().map_or(to, |least| to.min(least));
            let (to, inside) = (to.to_vec(), keys.partition_point(|key| **key < *to));
            keys.truncate(inside);
            state.extend(from, to, keys);
        }
        self.tell(&state);
    }

    /// Ends a look that stopped at one of the listed keys: those before it are gone.
    pub fn found_listed(&self, look: &Look, index: usize) {
        let mut state = self.state.lock();
        let Some(Announced { least, .. }) = state.end(look.number) else { return };
        let first = look.listed.start + index;
        if let Some(known) = &mut state.range
            && Arc::ptr_eq(&known.keys, &look.keys)
            && look.listed.start <= known.listed.start
            && known.listed.contains(&first)
            && least.is_none_or(|least| least >= look.keys[first])
        {
            known.listed.start = first;
        }
        self.tell(&state);
    }

    /// Drops everything that is known, including what present looks will find. No insert may run
    /// meanwhile.
    pub fn forget(&self) {
        let mut state = self.state.lock();
        state.range = None;
        state.looks.clear();
        self.tell(&state);
    }

    fn tell(&self, state: &State) {
        let (low, high) = match &state.range {
            _ if !state.looks.is_empty() => (0, u64::MAX),
            Some(known) => (word(&known.from), word(&known.to)),
            None => (0, 0),
        };
        self.low.store(low, SeqCst);
        self.high.store(high, SeqCst);
    }
}

impl State {
    /// Ends an announcement; `None` if all were dropped since.
    fn end(&mut self, number: u64) -> Option<Announced> {
        let place = self.looks.iter().position(|one| one.number == number)?;
        Some(self.looks.swap_remove(place))
    }

    /// Notes that only these keys may have values from `from` up to `to`.
    fn extend(&mut self, from: Vec<u8>, to: Vec<u8>, keys: Vec<Vec<u8>>) {
        if from >= to {
            return;
        }
        // A known range before it, if the look began there, stays without its list.
        let known = self.range.take().filter(|known| {
            let lists_none = known.listed_from(&from).start == known.listed.start;
            known.from <= from && from <= known.to && lists_none
        });
        let from = known.map_or(from, |known| known.from);
        let listed = 0..keys.len();
        self.range = Some(Known { from, to, keys: keys.into(), listed });
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// Looks from a key on and finds another.
    fn look(gap: &Gap, from: &[u8], first: Option<&[u8]>) -> Vec<u8> {
        gap.passed_much();
        let look = gap.look(from).unwrap();
        let begun = look.from().to_vec();
        gap.found(look, first, None);
        begun
    }

    #[test]
    fn inserts_cut_the_range_off() {
        let gap = Gap::default();
        assert_eq!(look(&gap, b"", Some(b"m")), b"");
        gap.inserted(b"n");
        gap.inserted(b"m");
        assert_eq!(look(&gap, b"", Some(b"m")), b"m");
        gap.inserted(b"c");
        assert_eq!(look(&gap, b"", Some(b"c")), b"c");
        assert_eq!(look(&gap, b"d", Some(b"m")), b"d", "the other end is not known any more");
        gap.inserted(b"d");
        assert_eq!(look(&gap, b"d", Some(b"d")), b"d");
        gap.forget();
        assert_eq!(look(&gap, b"", None), b"");
    }

    #[test]
    fn a_range_grows_where_a_look_goes_on() {
        let gap = Gap::default();
        look(&gap, b"b", Some(b"f"));
        assert_eq!(look(&gap, b"c", Some(b"k")), b"f");
        assert_eq!(look(&gap, b"b", Some(b"k")), b"k");
        // From its end on, too; and a look below it knows nothing of it.
        assert_eq!(look(&gap, b"k", Some(b"p")), b"k");
        assert_eq!(look(&gap, b"b", Some(b"p")), b"p");
        assert_eq!(look(&gap, b"a", Some(b"aa")), b"a");
        assert_eq!(look(&gap, b"b", Some(b"p")), b"b");
    }

    #[test]
    fn looks_are_announced_where_that_is_worth_it() {
        let gap = Gap::default();
        assert!(gap.look(b"q").is_none());
        gap.passed_much();
        for _ in 0..EAGER {
            let look = gap.look(b"q").unwrap();
            gap.found(look, None, None);
        }
        assert!(gap.look(b"q").is_none());
        look(&gap, b"b", Some(b"f"));
        gap.eager.store(0, Relaxed);
        let inside = gap.look(b"c").unwrap();
        gap.found(inside, Some(&b"f"[..]), None);
        assert!(gap.look(b"g").is_none());
    }

    /// A look that found its key before a bulk load says so after it.
    #[test]
    fn a_look_beside_a_bulk_load_leaves_no_range() {
        let gap = Gap::default();
        gap.passed_much();
        let before = gap.look(b"a").unwrap();
        gap.forget();
        gap.found(before, Some(&b"m"[..]), None);
        assert_eq!(look(&gap, b"a", Some(b"b")), b"a");
        assert_eq!(look(&gap, b"a", Some(b"b")), b"b", "and the next one does");
    }

    #[test]
    fn an_insert_beside_a_look_is_noticed() {
        let gap = Gap::default();
        gap.passed_much();
        let one = gap.look(b"a").unwrap();
        gap.inserted(b"b");
        // The look came by before: it says nothing of what lies behind.
        gap.found(one, Some(&b"k"[..]), None);
        assert_eq!(look(&gap, b"a", None), b"b");
        let one = gap.look(b"a").unwrap();
        gap.inserted(b"z");
        gap.found(one, Some(&b"b"[..]), None);
        assert_eq!(look(&gap, b"a", Some(b"b")), b"b");
        // Two looks: what came since the first began counts for that one, below the other for none.
        let (one, other) = (gap.look(b"a").unwrap(), gap.look(b"d").unwrap());
        gap.inserted(b"c");
        gap.found(one, Some(&b"e"[..]), None);
        gap.found(other, Some(&b"e"[..]), None);
        assert_eq!(look(&gap, b"a", None), b"a");
        assert_eq!(look(&gap, b"d", None), b"e");
    }

    /// Looks from `a` on and names these keys.
    fn list(gap: &Gap, keys: &[&[u8]]) {
        look(gap, b"a", Some(keys[0]));
        let one = gap.look(b"a").unwrap();
        assert_eq!(one.worth_naming(), NAMED_MAX);
        gap.found(one, keys.iter().copied(), None);
    }

    /// Returns what a look from a key on asks for, and where it continues.
    fn listed(gap: &Gap, from: &[u8]) -> (String, String) {
        gap.passed_much();
        let one = gap.look(from).unwrap();
        let asked: String = one.listed().iter().map(|key| key.escape_ascii().to_string()).collect();
        let end = one.from().escape_ascii().to_string();
        gap.found(one, None, None);
        (asked, end)
    }

    fn pair(listed: &str, end: &str) -> (String, String) {
        (listed.to_owned(), end.to_owned())
    }

    #[test]
    fn listed_keys_are_asked_for_until_they_are_gone() {
        let gap = Gap::default();
        list(&gap, &[b"d", b"f", b"h", b"k"]);
        assert_eq!(listed(&gap, b"a"), pair("dfh", "k"));
        assert_eq!(listed(&gap, b"e"), pair("fh", "k"));
        // Only a look that asked for all of them says which are gone.
        let beyond = gap.look(b"e").unwrap();
        gap.found_listed(&beyond, 1);
        assert_eq!(listed(&gap, b"a"), pair("dfh", "k"));
        let one = gap.look(b"a").unwrap();
        gap.found_listed(&one, 1);
        assert_eq!(listed(&gap, b"a"), pair("fh", "k"));
        // With an end all are listed.
        list(&gap, &[b"d"]);
        let one = gap.look(b"a").unwrap();
        gap.found(one, [&b"f"[..], b"h"], Some(b"k"));
        assert_eq!(listed(&gap, b"a"), pair("fh", "k"));
        // A look that begins behind a listed key knows nothing of what lies before.
        gap.found(gap.look(b"g").unwrap(), [&b"n"[..]], None);
        assert_eq!(listed(&gap, b"a"), pair("", "a"));
        assert_eq!(listed(&gap, b"h"), pair("", "n"));
    }

    #[test]
    fn inserts_between_listed_keys_cut_the_range_off() {
        let gap = Gap::default();
        list(&gap, &[b"d", b"f", b"h", b"k"]);
        // What is listed may get a value again, and what lies behind the end says nothing.
        gap.inserted(b"f");
        gap.inserted(b"k");
        assert_eq!(listed(&gap, b"a"), pair("dfh", "k"));
        gap.inserted(b"g");
        assert_eq!(listed(&gap, b"a"), pair("df", "g"));
        gap.inserted(b"b");
        assert_eq!(listed(&gap, b"a"), pair("", "b"));
        // Beside a look: what it names behind the key does not count.
        look(&gap, b"a", Some(b"d"));
        let one = gap.look(b"a").unwrap();
        gap.inserted(b"g");
        gap.found(one, [&b"d"[..], b"f", b"h"], Some(b"k"));
        assert_eq!(listed(&gap, b"a"), pair("df", "g"));
    }

    #[test]
    fn a_listed_key_that_comes_back_beside_a_look_stays_listed() {
        let gap = Gap::default();
        list(&gap, &[b"d", b"f", b"h", b"k"]);
        let one = gap.look(b"a").unwrap();
        gap.inserted(b"d");
        // It had asked for that one before.
        gap.found_listed(&one, 1);
        assert_eq!(listed(&gap, b"a"), pair("dfh", "k"));
        let one = gap.look(b"a").unwrap();
        gap.inserted(b"n");
        gap.found_listed(&one, 2);
        assert_eq!(listed(&gap, b"a"), pair("h", "k"));
    }
}
