//! Probes: named states that code announces while it is in them, so that a crash test can count in
//! which state it struck.
//!
//! A probe costs one thread-local push and pop; states are coarse (a checkpoint, a split), never
//! per operation.

use std::cell::RefCell;

thread_local! {
    static STATES: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Leaves the state when it is dropped.
#[derive(Debug)]
#[must_use = "the state lasts until the guard is dropped"]
pub struct Inside(());

/// Announces that this thread is in `state` until the result is dropped. States nest.
pub fn enter(state: &'static str) -> Inside {
    // In the destructors of a thread that ends there are none any more.
    _ = STATES.try_with(|states| states.borrow_mut().push(state));
    Inside(())
}

/// Returns the states that this thread is in, outermost first.
#[must_use]
pub fn current() -> Vec<&'static str> {
    STATES.with_borrow(Clone::clone)
}

impl Drop for Inside {
    fn drop(&mut self) {
        _ = STATES.try_with(|states| states.borrow_mut().pop());
    }
}
