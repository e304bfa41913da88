//! Memory accounts: how much of the one budget each component holds.
//!
//! Every component that holds memory in proportion to data or traffic owns a [`MemoryAccount`] and
//! keeps `used` correct. The memory governor moves `target`. The budget itself is only the sum that
//! the targets share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::shim::Mutex;

/// One component's share of the budget. It is thread-safe; all numbers are bytes unless they say
/// otherwise.
#[derive(Debug)]
pub struct MemoryAccount {
    name: Mutex<String>,
    used: AtomicU64,
    target: AtomicU64,
    /// The budget when the account was opened.
    most: u64,
    worth: AtomicU64,
    is_full: AtomicBool,
    lacked: AtomicU64,
}

impl MemoryAccount {
    /// Returns what the memory is for, for example `treeline/orders/records`.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.lock().clone()
    }

    /// Changes the name that statistics show.
    pub fn rename(&self, name: impl Into<String>) {
        *self.name.lock() = name.into();
    }

    /// Returns the bytes held now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Returns the most bytes that the component should hold.
    #[must_use]
    pub fn target(&self) -> u64 {
        self.target.load(Relaxed)
    }

    /// Returns the most bytes that the target may reach: the whole budget when the account was
    /// opened. Permanent sizes, such as the number of a cache's shards, follow it.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Returns how many hits the last mebibyte has given since the account was opened: what would
    /// be lost first, and about what one more would give.
    #[must_use]
    pub fn worth(&self) -> u64 {
        self.worth.load(Relaxed)
    }

    /// Returns whether the component has filled its target and could use more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full.load(Relaxed)
    }

    /// Records how much is held now.
    pub fn set_used(&self, bytes: u64) {
        self.used.store(bytes, Relaxed);
    }

    /// Moves the target. The component follows when it next makes room.
    pub fn set_target(&self, bytes: u64) {
        self.target.store(bytes, Relaxed);
    }

    /// Records how many hits the last mebibyte has given so far.
    pub fn set_worth(&self, hits: u64) {
        self.worth.store(hits, Relaxed);
    }

    /// Records that a write was refused for want of memory, and the target with which the component can do it. The database
    /// may raise the target and try the write again.
    pub fn set_lacked(&self, bytes: u64) {
        self.lacked.fetch_max(bytes, Relaxed);
    }

    /// Returns the most bytes that writes have lacked since the last call, 0 if none did.
    #[must_use]
    pub fn take_lacked(&self) -> u64 {
        self.lacked.swap(0, Relaxed)
    }

    /// Records whether the target is filled and more could be used.
    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Relaxed);
    }
}

/// The accounts of one database and the total they share.
#[derive(Debug)]
pub struct MemoryBudget {
    total: AtomicU64,
    accounts: Mutex<Vec<Arc<MemoryAccount>>>,
}

impl MemoryBudget {
    /// Makes a budget of `total` bytes without accounts.
    #[must_use]
    pub fn new(total: u64) -> Self {
        MemoryBudget { total: AtomicU64::new(total), accounts: Mutex::new(Vec::new()) }
    }

    /// Returns the budget, in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// Changes the budget. The memory governor moves the targets.
    pub fn set_total(&self, bytes: u64) {
        self.total.store(bytes, Relaxed);
    }

    /// Opens an account that starts empty.
    pub fn open(&self, name: impl Into<String>, target: u64) -> Arc<MemoryAccount> {
        let account = Arc::new(MemoryAccount {
            name: Mutex::new(name.into()),
            used: AtomicU64::new(0),
            target: AtomicU64::new(target),
            most: self.total().max(target),
            worth: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            lacked: AtomicU64::new(0),
        });
        self.accounts.lock().push(account.clone());
        account
    }

    /// Closes an account whose owner has given everything back.
    pub fn close(&self, account: &Arc<MemoryAccount>) {
        self.accounts.lock().retain(|other| !Arc::ptr_eq(other, account));
    }

    /// Returns all accounts, in the order they were opened.
    #[must_use]
    pub fn accounts(&self) -> Vec<Arc<MemoryAccount>> {
        self.accounts.lock().clone()
    }

    /// Returns the bytes held by all accounts together.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.accounts.lock().iter().map(|account| account.used()).sum()
    }
}
