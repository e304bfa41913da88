//! Batches of transfers through io_uring: one ring per thread, so that no lock is taken and no
//! completion is another's.
//!
//! A batch larger than the ring goes in rounds: the ring is kept full, and every completion makes
//! room for the next submission. What comes back short or interrupted is finished by the file's
//! ordinary loop.
//!
//! **Invariants.** (1) [`transfer`] does not return while the kernel holds a pointer into the
//! batch: it reaps as many completions as the kernel consumed submissions, on every path. (2)
//! Entries that the kernel never consumed die with their ring, which is dropped and not used again.
//!
//! **Concurrency.** A ring is reached only through its thread's own cell.
#![expect(unsafe_code, reason = "submission hands buffers to the kernel by pointer")]

use std::cell::RefCell;

use io_uring::{IoUring, Probe, opcode, types};
use rustix::io::Errno;

use super::file::RealFile;
use crate::disk::{Transfer, TransferBuf};

/// Transfers in flight per thread.
const DEPTH: u32 = 64;

thread_local! {
    static RING: RefCell<Ring> = const { RefCell::new(Ring::Unmade) };
}

enum Ring {
    Unmade,
    Ready(Box<IoUring>),
    /// The kernel refused a ring to this thread or broke one; it goes on without.
    Refused,
}

/// Whether this process may make rings that read and write.
pub(super) fn is_available() -> bool {
    let Ok(ring) = IoUring::new(2) else { return false };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).is_ok()
        && probe.is_supported(opcode::Read::CODE)
        && probe.is_supported(opcode::Write::CODE)
}

/// Carries out the batch, in parallel where the kernel gives this thread a ring.
pub(super) fn transfer(file: &RealFile, batch: &mut [Transfer<'_>]) {
    let through_ring = RING.try_with(|cell| {
        let Ok(mut ring) = cell.try_borrow_mut() else { return false };
        if matches!(*ring, Ring::Unmade) {
            *ring = match IoUring::new(DEPTH) {
                Ok(made) => Ring::Ready(Box::new(made)),
                Err(_) => Ring::Refused,
            };
        }
        let Ring::Ready(ready) = &mut *ring else { return false };
        if !run(ready, file, batch) {
            *ring = Ring::Refused;
        }
        true
    });
    // The cell is gone while a thread ends; its last transfers take the plain way.
    if through_ring != Ok(true) {
        batch.iter_mut().for_each(|transfer| file.transfer_one(transfer));
    }
}

/// Runs the batch through `ring`. Answers whether the ring may be used again; every transfer has
/// its result either way.
fn run(ring: &mut IoUring, file: &RealFile, batch: &mut [Transfer<'_>]) -> bool {
    // What each completed transfer answered, and `None` for those that the kernel never took.
    let mut answers: Vec<Option<i32>> = vec![None; batch.len()];
    let mut pushed = 0;
    let mut consumed = 0;
    let mut reaped = 0;
    let mut broken = false;
    loop {
        while !broken && pushed < batch.len() && pushed - reaped < DEPTH as usize {
            let entry = entry(file, &mut batch[pushed], pushed as u64);
            // SAFETY: the entry's pointer is into a buffer that `batch` borrows; by invariant 1
            // this function waits for the entry's completion before it returns, and nothing touches
            // the buffer until then.
            let accepted = unsafe { ring.submission().push(&entry) };
            if accepted.is_err() {
                break;
            }
            pushed += 1;
        }
        let wanted = if broken { consumed } else { pushed };
        if reaped == wanted {
            break;
        }
        if broken {
            // Nothing more is submitted; completions still arrive in the shared ring by themselves.
            spinney_base::shim::thread::yield_now();
        } else {
            match ring.submit_and_wait(1) {
                Ok(count) => consumed += count,
                Err(error) => {
                    let raw = error.raw_os_error().map(Errno::from_raw_os_error);
                    // A kernel short of resources is asked again as long as something is under way
                    // that will free some.
                    broken = match raw {
                        Some(Errno::INTR) => false,
                        Some(Errno::AGAIN | Errno::BUSY) => consumed == reaped,
                        _ => true,
                    };
                }
            }
        }
        for completion in ring.completion() {
            reaped += 1;
            let index = usize::try_from(completion.user_data()).expect("we gave an index");
            answers[index] = Some(completion.result());
        }
    }
    for (transfer, answer) in batch.iter_mut().zip(answers) {
        finish(file, transfer, answer);
    }
    !broken
}

fn entry(file: &RealFile, transfer: &mut Transfer<'_>, index: u64) -> io_uring::squeue::Entry {
    // A buffer past 4 GiB is cut; `finish` sees a short transfer and goes on from there.
    let cut = |length: usize| u32::try_from(length).unwrap_or(1 << 30);
    let descriptor = types::Fd(file.raw_descriptor());
    let entry = match &mut transfer.buf {
        TransferBuf::Read(buf) => opcode::Read::new(descriptor, buf.as_mut_ptr(), cut(buf.len()))
            .offset(transfer.offset)
            .build(),
        TransferBuf::Write(buf) => {
            let flags = i32::try_from(file.write_flags(buf.len())).expect("a small flag");
            opcode::Write::new(descriptor, buf.as_ptr(), cut(buf.len()))
                .offset(transfer.offset)
                .rw_flags(flags)
                .build()
        }
    };
    entry.user_data(index)
}

/// Turns what the kernel answered into the transfer's result, doing what is missing.
fn finish(file: &RealFile, transfer: &mut Transfer<'_>, answer: Option<i32>) {
    let offset = transfer.offset;
    let done = match answer {
        None => 0,
        Some(count) if count >= 0 => usize::try_from(count).expect("not negative"),
        Some(negative) => match Errno::from_raw_os_error(-negative) {
            Errno::INTR | Errno::AGAIN | Errno::CANCELED => 0,
            error => {
                let (what, bytes) = match &transfer.buf {
                    TransferBuf::Read(buf) => ("read", buf.len()),
                    TransferBuf::Write(buf) => ("write", buf.len()),
                };
                transfer.result = Err(file.failed(what, bytes, offset, error));
                return;
            }
        },
    };
    transfer.result = match &mut transfer.buf {
        TransferBuf::Read(buf) => file.read_rest(buf, offset, done),
        TransferBuf::Write(buf) => file.write_rest(buf, offset, done),
    };
}
