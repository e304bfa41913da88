//! Running a job for several things at once, on threads that end with it.

use spinney_base::shim::atomic::{AtomicUsize, Ordering::Relaxed};
use spinney_base::shim::{Mutex, thread};
use spinney_base::{Error, Result};
use spinney_io::{takes_no_reserve, without_reserve};

/// Results of `job` for each number below `count`, in their order; by up to `threads` threads, the
/// caller's among them. Where the caller takes nothing from the reserve, none does.
///
/// # Errors
/// One of those that jobs had; others are not begun then.
pub(crate) fn each<T: Send>(
    threads: usize,
    count: usize,
    job: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    if threads < 2 || count < 2 {
        return (0..count).map(job).collect();
    }
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let made: Mutex<Vec<Option<T>>> = Mutex::new((0..count).map(|_| None).collect());
    let takes_none = takes_no_reserve();
    let work = || {
        while failed.lock().is_none() {
            let index = next.fetch_add(1, Relaxed);
            if index >= count {
                return;
            }
            match job(index) {
                Ok(one) => made.lock()[index] = Some(one),
                Err(error) => *failed.lock() = Some(error),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(|| if takes_none { without_reserve(work) } else { work() });
        }
        work();
    });
    match failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(made.into_inner().into_iter().flatten().collect()),
    }
}

/// Runs both, at once if there is a thread for the second.
pub(crate) fn both<A, B: Send>(
    threads: usize,
    first: impl FnOnce() -> A,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    if threads < 2 {
        return (first(), second());
    }
    thread::scope(|scope| {
        let second = scope.spawn(second);
        let first = first();
        let second = second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (first, second)
    })
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn both_are_done() {
        for threads in 0..3 {
            let numbers = both(threads, || vec![1], || vec![2]);
            assert_eq!(numbers, (vec![1], vec![2]));
        }
    }

    #[test]
    fn all_are_made_in_order_or_none() {
        for threads in 1..4 {
            let squares = each(threads, 100, |number| Ok(number * number)).unwrap();
            assert!(squares.into_iter().eq((0..100).map(|number| number * number)));
            let begun = AtomicUsize::new(0);
            let failed = each(threads, 100, |number| {
                begun.fetch_add(1, Relaxed);
                if number == 7 { Err(Error::invalid("seven")) } else { Ok(()) }
            });
            assert!(failed.unwrap_err().to_string().contains("seven"));
            assert!(begun.load(Relaxed) < 100);
        }
    }
}
