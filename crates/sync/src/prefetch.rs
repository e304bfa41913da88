//! Asking the processor for memory before it is needed: what is looked up in many places at random costs
//! a wait for each, unless all are asked for first.

/// Brings the cache line of `what` near, where the processor can be asked; nothing else happens.
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
