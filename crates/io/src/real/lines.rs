//! Write-back of cache lines to persistent memory.
//!
//! A store reaches the processor's cache first, and leaves it when the processor likes. A *write-back*
//! of its line sends it on its way to the memory, and a *fence* waits until all write-backs of
//! the same thread have arrived where the power cannot take them. Of a line that was not written
//! back, or not fenced, a power loss keeps any of the states that it had since, in units of 8
//! bytes.
//!
//! | instruction | what it does | CPUID |
//! |---|---|---|
//! | `CLWB` | writes the line back and may keep it in the cache | leaf 7, EBX bit 24 |
//! | `CLFLUSHOPT` | writes the line back and drops it | leaf 7, EBX bit 23 |
//! | `CLFLUSH` | the same, one line after the other | leaf 1, EDX bit 19 |
//! | `SFENCE` | waits for the write-backs before it | with SSE |
//!
//! The best one that the processor has is taken. Processors other than x86-64, and those whose lines
//! are not of [`LINE_BYTES`] bytes, have none here: no mapping counts as persistent there.

use std::sync::atomic::AtomicU64;

#[cfg(target_arch = "x86_64")]
use crate::disk::LINE_BYTES;

#[cfg(target_arch = "x86_64")]
const WORDS: usize = LINE_BYTES / size_of::<u64>();

/// An instruction that writes a cache line back.
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "other processors have none of them here")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    Clwb,
    ClflushOpt,
    Clflush,
}

#[cfg(target_arch = "x86_64")]
impl Instruction {
    /// Returns the best instruction of this processor, if it has lines of [`LINE_BYTES`].
    pub(super) fn of_this_processor() -> Option<Instruction> {
        use std::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max};

        let most = __get_cpuid_max(0).0;
        if most < 1 {
            return None;
        }
        let basic = __cpuid(1);
        // In units of 8 bytes.
        let line = (basic.ebx >> 8 & 0xFF) as usize * 8;
        if basic.edx >> 19 & 1 == 0 || line != LINE_BYTES {
            return None;
        }
        let features = if most < 7 { 0 } else { __cpuid_count(7, 0).ebx };
        Some(match (features >> 24 & 1, features >> 23 & 1) {
            (1, _) => Instruction::Clwb,
            (_, 1) => Instruction::ClflushOpt,
            _ => Instruction::Clflush,
        })
    }

    /// Writes back the lines of some words, which begin at a line.
    #[expect(unsafe_code, reason = "instructions that the language does not have")]
    pub(super) fn write_back(self, words: &[AtomicU64]) {
        use std::arch::asm;

        // Without `nomem`, so that the compiler leaves each store on its side.
        for line in words.chunks(WORDS).map(<[AtomicU64]>::as_ptr) {
            match self {
                // SAFETY: the processor has the instruction, by its answer to CPUID. The address is
                // that of a word that is borrowed, and no byte changes.
                Instruction::Clwb => unsafe {
                    asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
                },
                // SAFETY: as above.
                Instruction::ClflushOpt => unsafe {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                },
                // SAFETY: as above.
                Instruction::Clflush => unsafe {
                    asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
                },
            }
        }
    }

    /// Waits until what this thread has written back is where the power cannot take it.
    #[expect(unsafe_code, reason = "an instruction that the language does not have")]
    pub(super) fn fence(self) {
        // SAFETY: every processor with 64 bits has SSE; the instruction reads and changes nothing.
        unsafe { std::arch::asm!("sfence", options(nostack, preserves_flags)) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Instruction {
    pub(super) fn of_this_processor() -> Option<Instruction> {
        None
    }

    pub(super) fn write_back(self, _: &[AtomicU64]) {}

    pub(super) fn fence(self) {}
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn lines_of_this_processor_are_written_back() {
        let Some(best) = Instruction::of_this_processor() else { return };
        let words: Vec<AtomicU64> = (0..4 * WORDS as u64).map(AtomicU64::new).collect();
        // A processor that has a better one has the others too.
        let all = [Instruction::Clwb, Instruction::ClflushOpt, Instruction::Clflush];
        let from = all.iter().position(|one| *one == best).unwrap();
        for instruction in &all[from..] {
            instruction.write_back(&words);
            instruction.fence();
        }
        assert!(words.into_iter().map(AtomicU64::into_inner).eq(0..4 * WORDS as u64));
    }
}
