//! Locks, atomics and threads behind one door: `parking_lot` and `std` in the product, `shuttle`
//! when the feature of that name is on, so that a randomized or exhaustive scheduler drives the
//! code itself and not a copy of it.
//!
//! The API is the part of `parking_lot`'s that Spinney uses: guards without poisoning. All shared
//! types elsewhere in Spinney take their locks and atomics from here; `clippy.toml` refuses the std
//! ones.

#[cfg(not(feature = "shuttle"))]
mod chosen {
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub use std::sync::atomic;

    /// Threads of the operating system.
    pub mod thread {
        pub use std::thread::{JoinHandle, scope, yield_now};

        /// Starts a named thread.
        ///
        /// # Errors
        /// The operating system's error when it has no room for a thread.
        pub fn spawn<F, T>(name: &str, body: F) -> std::io::Result<JoinHandle<T>>
        where
            F: FnOnce() -> T + Send + 'static,
            T: Send + 'static,
        {
            std::thread::Builder::new().name(name.to_owned()).spawn(body)
        }
    }

    /// Waits a little inside a spin loop.
    #[inline]
    pub fn spin_hint() {
        std::hint::spin_loop();
    }
}

#[cfg(feature = "shuttle")]
mod chosen {
    #![allow(
        missing_docs,
        missing_debug_implementations,
        reason = "a mirror of parking_lot's API for tests"
    )]
    pub use shuttle::sync::atomic;
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

    #[derive(Debug)]
    pub struct MutexGuard<'a, T>(
        Option<shuttle::sync::MutexGuard<'a, T>>,
        &'a shuttle::sync::Mutex<T>,
    );

    impl<T> Mutex<T> {
        pub const fn new(value: T) -> Self {
            Mutex(shuttle::sync::Mutex::new(value))
        }
        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(|poison| poison.into_inner())), &self.0)
        }
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard), &self.0))
        }
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(|poison| poison.into_inner())
        }
        pub fn into_inner(self) -> T {
            self.0.into_inner().unwrap_or_else(|poison| poison.into_inner())
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("the guard is only empty inside Condvar::wait")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("the guard is only empty inside Condvar::wait")
        }
    }

    #[derive(Debug, Default)]
    pub struct RwLock<T>(shuttle::sync::RwLock<T>);
    pub type RwLockReadGuard<'a, T> = shuttle::sync::RwLockReadGuard<'a, T>;
    pub type RwLockWriteGuard<'a, T> = shuttle::sync::RwLockWriteGuard<'a, T>;

    impl<T> RwLock<T> {
        pub const fn new(value: T) -> Self {
            RwLock(shuttle::sync::RwLock::new(value))
        }
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(|poison| poison.into_inner())
        }
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(|poison| poison.into_inner())
        }
        pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }
        pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(|poison| poison.into_inner())
        }
    }

    #[derive(Debug, Default)]
    pub struct Condvar(shuttle::sync::Condvar);

    #[derive(Debug, Clone, Copy)]
    pub struct WaitTimeoutResult(bool);

    impl WaitTimeoutResult {
        pub fn timed_out(&self) -> bool {
            self.0
        }
    }

    impl Condvar {
        pub const fn new() -> Self {
            Condvar(shuttle::sync::Condvar::new())
        }
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let inner = guard.0.take().expect("the guard holds its lock");
            guard.0 = Some(self.0.wait(inner).unwrap_or_else(|poison| poison.into_inner()));
        }
        /// Shuttle has no time: this yields once and reports a time-out, so waiters must loop.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> WaitTimeoutResult {
            drop(guard.0.take());
            shuttle::thread::yield_now();
            guard.0 = Some(guard.1.lock().unwrap_or_else(|poison| poison.into_inner()));
            WaitTimeoutResult(true)
        }
        pub fn notify_one(&self) -> bool {
            self.0.notify_one();
            true
        }
        pub fn notify_all(&self) -> usize {
            self.0.notify_all();
            0
        }
    }

    pub mod thread {
        pub use shuttle::thread::{JoinHandle, scope, yield_now};
        pub fn spawn<F, T>(name: &str, body: F) -> std::io::Result<JoinHandle<T>>
        where
            F: FnOnce() -> T + Send + 'static,
            T: Send + 'static,
        {
            shuttle::thread::Builder::new().name(name.to_owned()).spawn(body)
        }
    }

    pub fn spin_hint() {
        shuttle::thread::yield_now();
    }

    /// A step at which another thread may run, as at any access to an atomic. One that yields says that it waits,
    /// and ends its turn: one that yields in each copy would hardly come on beside others.
    pub fn step() {
        atomic::AtomicBool::new(false).load(atomic::Ordering::SeqCst);
    }
}

pub use chosen::*;
