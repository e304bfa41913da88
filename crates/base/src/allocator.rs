//! What the C library's allocator keeps though nobody uses it.
//!
//! Its arenas, one for a few threads each, keep pages from which anything is still in use anywhere behind them. Where
//! many keyspaces are written at once, what one thread allocates another frees, and arenas hold a multiple of what
//! is in use. The C library gives whole free pages back when it is asked.
#![expect(unsafe_code, reason = "the C library is asked")]

/// Bytes of memory that the process takes now, or `None` where the system does not tell.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// Has the C library give free pages of all arenas back to the system. It takes milliseconds, and who allocates may wait
/// for it. Does nothing where the C library cannot, or another allocator took its place.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it may be called at any time, from any thread.
        let _gave = unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_between_pieces_in_use_goes_back() {
        let pieces: Vec<Box<[u8; 9000]>> = (0..8000).map(|_| Box::new([1; 9000])).collect();
        let kept: Vec<_> = pieces.into_iter().step_by(100).collect();
        give_back();
        let resident = resident_bytes().expect("Linux tells");
        assert!((1 << 20..60 << 20).contains(&resident), "{resident} beside {} pieces", kept.len());
    }
}
