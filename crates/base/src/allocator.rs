//! Memory that the C library's allocator keeps without using it.
//!
//! The allocator has an arena for every few threads. An arena keeps all pages below the last one
//! that is still in use. Where many keyspaces are written at once, one thread frees what another
//! allocated, and arenas hold a multiple of what is in use. The C library gives whole free pages
//! back on request.
#![expect(unsafe_code, reason = "the C library is asked")]

/// Returns the bytes of memory that the process takes now, or `None` where the system does not say.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// Asks the C library to give free pages of all arenas back to the system. The call takes
/// milliseconds, and allocations may wait for it. It does nothing where the C library cannot do
/// this, or another allocator is in use.
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
