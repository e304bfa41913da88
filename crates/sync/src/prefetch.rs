//! Prefetching of memory: random accesses cost a wait each, unless all are requested first.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};

#[cfg(not(target_arch = "x86_64"))]
const _MM_HINT_T0: i32 = 0;
#[cfg(not(target_arch = "x86_64"))]
const _MM_HINT_ET0: i32 = 0;

/// Prefetches the cache line of `what`, where the processor supports it.
#[inline]
pub fn prefetch<T>(what: &T) {
    fetch::<_MM_HINT_T0, T>(what);
}

/// Does the same for a line that is written soon, so that other processors let go of it by then.
#[inline]
pub fn prefetch_to_write<T>(what: &T) {
    fetch::<_MM_HINT_ET0, T>(what);
}

#[inline]
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the processor's instruction takes a pointer")
)]
fn fetch<const HINT: i32, T>(what: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it reads and changes nothing, and a processor that does not have it goes on.
    unsafe {
        _mm_prefetch(std::ptr::from_ref(what).cast(), HINT);
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = what;
}
