//! Below which key nothing is: so that the first key of a queue, whose head is removed again and
//! again, is not looked for among all that is gone.
//!
//! A look at the first key *arms* the hint, looks, and then leaves the key that it found: nothing
//! lies below it. An insert below a hint takes it away; one that comes while somebody looks is
//! noted, and a look leaves no hint above it.
//!
//! **Invariant**: every key with a value is at or above the hint.
//!
//! **Concurrency.** An insert is visible before it asks the hint; a look arms the hint before it
//! looks. With a fence on either side one of the two sees the other. Inserts above the hint read one
//! word; the others, and all while somebody looks, take a lock.

use std::sync::atomic::fence;

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};

use crate::model::word_after;

/// The hint of one keyspace. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct FirstKey {
    /// Inserts of keys whose first eight bytes are above need not look: those of the hint, all ones
    /// while somebody looks, 0 without a hint.
    word: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    hint: Option<Vec<u8>>,
    looking: usize,
    /// The least key inserted since somebody began to look.
    least: Option<Vec<u8>>,
}

impl State {
    fn word(&self) -> u64 {
        match &self.hint {
            _ if self.looking > 0 => u64::MAX,
            Some(hint) => word_after(hint, 0),
            None => 0,
        }
    }
}

impl FirstKey {
    /// A key was given a value that lookups already see.
    pub(crate) fn inserted(&self, key: &[u8]) {
        fence(SeqCst);
        if word_after(key, 0) > self.word.load(SeqCst) {
            return;
        }
        let mut state = self.state.lock();
        if state.hint.as_deref().is_some_and(|hint| key < hint) {
            state.hint = None;
        }
        if state.looking > 0 && state.least.as_deref().is_none_or(|least| key < least) {
            state.least = Some(key.to_vec());
        }
        self.word.store(state.word(), SeqCst);
    }

    /// Somebody begins to look for the first key; returns where it is enough to begin.
    pub(crate) fn look(&self) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        if state.looking == 0 {
            state.least = None;
        }
        state.looking += 1;
        self.word.store(state.word(), SeqCst);
        let hint = state.hint.clone();
        drop(state);
        fence(SeqCst);
        hint
    }

    /// Ends what [`FirstKey::look`] began: this is the first key, if one was found.
    pub(crate) fn found(&self, first: Option<&[u8]>) {
        let mut state = self.state.lock();
        state.looking -= 1;
        if let Some(first) = first
            && state.least.as_deref().is_none_or(|least| least >= first)
        {
            state.hint = Some(first.to_vec());
        }
        self.word.store(state.word(), SeqCst);
    }

    /// Nothing is known any more, and what those who look now will find does not count; while nobody
    /// inserts.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock();
        state.hint = None;
        state.least = Some(Vec::new());
        self.word.store(state.word(), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserts_below_take_the_hint_away() {
        let first = FirstKey::default();
        assert_eq!(first.look(), None);
        first.found(Some(b"m"));
        first.inserted(b"n");
        first.inserted(b"m");
        assert_eq!(first.look().as_deref(), Some(&b"m"[..]));
        first.found(None);
        first.inserted(b"c");
        assert_eq!(first.look(), None);
        first.found(Some(b"c"));
        first.forget();
        assert_eq!(first.look(), None);
        first.found(None);
    }

    /// A look that found its key before a bulk load says so after it.
    #[test]
    fn a_look_beside_a_bulk_load_leaves_no_hint() {
        let first = FirstKey::default();
        first.look();
        first.forget();
        first.found(Some(b"m"));
        assert_eq!(first.look(), None);
        first.found(Some(b"b"));
        assert_eq!(first.look().as_deref(), Some(&b"b"[..]), "and the next one does");
        first.found(None);
    }

    #[test]
    fn an_insert_beside_a_look_is_noticed() {
        let first = FirstKey::default();
        first.look();
        first.inserted(b"b");
        // The look came by before.
        first.found(Some(b"k"));
        assert_eq!(first.look(), None);
        first.inserted(b"z");
        first.found(Some(b"b"));
        assert_eq!(first.look().as_deref(), Some(&b"b"[..]));
        // Two looks: what came since the first began counts for both.
        first.look();
        first.inserted(b"a");
        first.found(Some(b"b"));
        first.found(Some(b"b"));
        assert_eq!(first.look(), None);
    }
}
