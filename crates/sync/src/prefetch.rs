//! Prefetching of memory: random accesses cost a wait each, unless all are requested first.

/// Prefetches the cache line of `what`, where the processor supports it.
#[inline]
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the processor's instruction takes a pointer")
)]
pub fn prefetch<T>(what: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it reads nothing, and every processor of this kind has it.
        unsafe { _mm_prefetch(std::ptr::from_ref(what).cast(), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = what;
}

/// Does the same for a line that is written soon, so that other processors let go of it by then.
#[inline]
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the processor's instruction takes a pointer")
)]
pub fn prefetch_to_write<T>(what: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: it changes nothing, and a processor that does not have it goes on.
        unsafe { _mm_prefetch(std::ptr::from_ref(what).cast(), _MM_HINT_ET0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = what;
}
