//! A range of keys without values: so that the first key of a queue, whose head is removed again and
//! again, is not looked for among all that is gone.
//!
//! A *look* for the first key from some key on is announced, looks, and then says what it found: nothing lies
//! between the two. A look that begins inside of the range that is known goes on at its end. An insert
//! into the range cuts it off there; one that comes while somebody looks is noted, and a look leaves no
//! range that holds it.
//!
//! Most reads of one record pass nothing, and announcing them would cost a lock. So a look is announced only where it
//! begins in the range, or for a while after some range [passed over much](Gap::passed_much).
//!
//! **Invariant**: no key with a value lies in the range.
//!
//! **Concurrency.** An insert is visible before it asks; a look is announced before it looks. With a
//! fence on either side one of the two sees the other. An insert outside of the range reads one or two
//! words; the others, and all while somebody looks, take a lock.

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

/// Looks that are announced after a range passed over much.
const EAGER: u64 = 64;

/// The range of one keyspace. Thread-safe.
///
/// ```
/// let gap = spinney_sync::Gap::default();
/// gap.passed_much();
/// let look = gap.look(b"a").unwrap();
/// assert_eq!(look.from(), b"a");
/// gap.found(look, Some(b"m"));
/// // Whoever looks from there on begins where that one ended,
/// let look = gap.look(b"c").unwrap();
/// assert_eq!(look.from(), b"m");
/// gap.found(look, Some(b"m"));
/// // unless something was inserted before it.
/// gap.inserted(b"d");
/// assert_eq!(gap.look(b"c").unwrap().from(), b"d");
/// ```
#[derive(Debug, Default)]
pub struct Gap {
    /// Inserts of keys whose first eight bytes are above this or below `low` need not ask: all ones and 0
    /// while somebody looks.
    high: AtomicU64,
    low: AtomicU64,
    /// How many looks more are announced.
    eager: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// From the first key up to, not including, the second; the first is below it.
    range: Option<(Vec<u8>, Vec<u8>)>,
    looks: Vec<Announced>,
    next: u64,
}

/// A look that is under way.
#[derive(Debug)]
struct Announced {
    number: u64,
    from: Vec<u8>,
    /// The least key from there on that was inserted since.
    least: Option<Vec<u8>>,
}

/// A look that was announced; it is ended by [`Gap::found`].
#[derive(Debug)]
#[must_use = "a look that is not ended makes every insert take a lock"]
pub struct Look {
    number: u64,
    from: Vec<u8>,
}

impl Look {
    /// The key from which it is enough to look.
    #[must_use]
    pub fn from(&self) -> &[u8] {
        &self.from
    }
}

/// The first eight bytes of a key as a number that orders like them.
fn word(key: &[u8]) -> u64 {
    if let Some(word) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*word);
    }
    let mut word = [0; 8];
    word[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(word)
}

impl Gap {
    /// A key was given a value that lookups already see.
    #[inline]
    pub fn inserted(&self, key: &[u8]) {
        fence(SeqCst);
        // Either answer alone is enough, whenever it was true.
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
        if let Some((from, to)) = &mut state.range
            && **from <= *key
            && *key < **to
        {
            *to = key.to_vec();
        }
        state.range.take_if(|(from, to)| from == to);
        self.tell(&state);
    }

    /// A range passed over many keys without values: looks are worth announcing.
    pub fn passed_much(&self) {
        self.eager.store(EAGER, Relaxed);
    }

    /// Somebody begins to look for the first key from this one on; nothing if that is not worth announcing.
    pub fn look(&self, from: &[u8]) -> Option<Look> {
        let word = word(from);
        let is_inside = word <= self.high.load(Relaxed) && word >= self.low.load(Relaxed);
        if !is_inside {
            let eager = self.eager.load(Relaxed);
            if eager == 0 {
                return None;
            }
            // A lost update is one look more.
            self.eager.store(eager - 1, Relaxed);
        }
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.looks.push(Announced { number, from: from.to_vec(), least: None });
        self.tell(&state);
        let end = state.range.as_ref().filter(|(lower, to)| **lower <= *from && *from < **to);
        let from = end.map_or(from, |(_, to)| to).to_vec();
        drop(state);
        fence(SeqCst);
        Some(Look { number, from })
    }

    /// Ends a look: this is the first key, if one was found.
    pub fn found(&self, look: Look, first: Option<&[u8]>) {
        let mut state = self.state.lock();
        let place = state.looks.iter().position(|one| one.number == look.number);
        let Some(place) = place else { return };
        let Announced { from, least, .. } = state.looks.swap_remove(place);
        if let Some(first) = first
            && *from < *first
            && least.as_deref().is_none_or(|least| least >= first)
        {
            // What lies before it is known already, if it began there.
            let known = state.range.take();
            let known = known.filter(|(lower, to)| *lower <= from && from <= *to);
            let from = known.map_or(from, |(lower, _)| lower);
            state.range = Some((from, first.to_vec()));
        }
        self.tell(&state);
    }

    /// Nothing is known any more, and what those who look now will find does not count; while nobody
    /// inserts.
    pub fn forget(&self) {
        let mut state = self.state.lock();
        state.range = None;
        state.looks.clear();
        self.tell(&state);
    }

    fn tell(&self, state: &State) {
        let (low, high) = match &state.range {
            _ if !state.looks.is_empty() => (0, u64::MAX),
            Some((from, to)) => (word(from), word(to)),
            None => (0, 0),
        };
        self.low.store(low, SeqCst);
        self.high.store(high, SeqCst);
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
        gap.found(look, first);
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
            gap.found(look, None);
        }
        assert!(gap.look(b"q").is_none());
        look(&gap, b"b", Some(b"f"));
        gap.eager.store(0, Relaxed);
        let inside = gap.look(b"c").unwrap();
        gap.found(inside, Some(b"f"));
        assert!(gap.look(b"g").is_none());
    }

    /// A look that found its key before a bulk load says so after it.
    #[test]
    fn a_look_beside_a_bulk_load_leaves_no_range() {
        let gap = Gap::default();
        gap.passed_much();
        let before = gap.look(b"a").unwrap();
        gap.forget();
        gap.found(before, Some(b"m"));
        assert_eq!(look(&gap, b"a", Some(b"b")), b"a");
        assert_eq!(look(&gap, b"a", Some(b"b")), b"b", "and the next one does");
    }

    #[test]
    fn an_insert_beside_a_look_is_noticed() {
        let gap = Gap::default();
        gap.passed_much();
        let one = gap.look(b"a").unwrap();
        gap.inserted(b"b");
        // The look came by before.
        gap.found(one, Some(b"k"));
        assert_eq!(look(&gap, b"a", None), b"a");
        let one = gap.look(b"a").unwrap();
        gap.inserted(b"z");
        gap.found(one, Some(b"b"));
        assert_eq!(look(&gap, b"a", Some(b"b")), b"b");
        // Two looks: what came since the first began counts for that one, below the other for none.
        let (one, other) = (gap.look(b"a").unwrap(), gap.look(b"d").unwrap());
        gap.inserted(b"c");
        gap.found(one, Some(b"e"));
        gap.found(other, Some(b"e"));
        assert_eq!(look(&gap, b"a", None), b"a");
        assert_eq!(look(&gap, b"d", None), b"e");
    }
}
