//! Batches of transfers through io_uring: one ring per thread, so that no lock is taken and no
//! completion is another's.
//!
//! A batch larger than the ring goes in rounds: the ring is kept full, and completions make room
//! for the next submissions. What comes back short or interrupted is finished by the file's
//! ordinary loop.
//!
//! The kernel hands what one call submits to the device together, when it has prepared all of it:
//! so reads go a few at a time, and the device works on the first while the rest is prepared.
//! Writes go together, for those that lie side by side then become one.
//!
//! A thread that reads polls for completions for a while (`poll.rs`); only one that polls gains
//! from a ring for one transfer alone.
//!
//! **Invariants.** (1) [`transfer`] does not end, not even by a panic, while the kernel holds a
//! pointer into the batch: it reaps as many completions as the kernel consumed submissions, on
//! every path. (2) Entries that the kernel never consumed die with their ring, which is dropped and
//! not used again.
//!
//! **Concurrency.** A ring is reached only through its thread's own cell, and is out of it while in
//! use.
#![expect(unsafe_code, reason = "submission hands buffers to the kernel by pointer")]

use std::cell::Cell;

use io_uring::{IoUring, Probe, opcode, types};
use rustix::io::Errno;

use super::file::RealFile;
use super::poll::{self, Ended, Patience};
use crate::counters::Purpose;
use crate::disk::{Steps, Transfer, TransferBuf};

/// Transfers in flight per thread.
const DEPTH: u32 = 64;

/// Number of reads that are submitted together.
const READS_TOGETHER: usize = 4;

/// While more is to be submitted, wait for this many completions at a time.
const REAP_TOGETHER: usize = 8;

thread_local! {
    static RING: Cell<Ring> = const { Cell::new(Ring::Unmade) };
}

enum Ring {
    Unmade,
    Ready(Box<Own>),
    /// No ring: the kernel refused one to this thread or broke it. Also the state while one is in
    /// use.
    Refused,
}

/// A thread's ring, and its record of polling.
struct Own {
    ring: IoUring,
    patience: Patience,
}

/// Returns whether this process may make rings that read and write.
pub(super) fn is_available() -> bool {
    let Ok(ring) = IoUring::new(2) else { return false };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).is_ok()
        && probe.is_supported(opcode::Read::CODE)
        && probe.is_supported(opcode::Write::CODE)
}

/// A ring for this thread alone. Where the kernel knows how, completions wait until the thread
/// enters it and do not interrupt what it does.
fn make() -> Ring {
    let quiet = IoUring::builder().setup_single_issuer().setup_coop_taskrun().build(DEPTH);
    match quiet.or_else(|_| IoUring::new(DEPTH)) {
        Ok(ring) => Ring::Ready(Box::new(Own { ring, patience: Patience::default() })),
        Err(_) => Ring::Refused,
    }
}

/// Carries out the batch, in parallel where the kernel gives this thread a ring, and takes the
/// steps.
pub(super) fn transfer(
    file: &RealFile,
    batch: &mut [Transfer<'_>],
    purpose: Purpose,
    steps: &mut dyn Steps,
) {
    // The cell is gone while a thread ends; its last transfers take the plain way, as do those of a
    // step.
    let ring = RING.try_with(|cell| match cell.replace(Ring::Refused) {
        Ring::Unmade => make(),
        ring => ring,
    });
    let Ok(Ring::Ready(mut own)) = ring else {
        return file.one_by_one(batch, purpose, steps);
    };
    let polls = file.polls_for(batch, purpose) && own.patience.polls();
    if batch.len() > 1 || polls {
        let mut flight = Flight::new(&mut own.ring, polls);
        run(&mut flight, file, batch, purpose, steps);
        let (broken, in_vain) = (flight.broken, flight.in_vain);
        drop(flight);
        if broken {
            return;
        }
        if polls {
            file.counters().polled(in_vain);
            own.patience.ended(in_vain);
        }
    } else {
        file.one_by_one(batch, purpose, steps);
    }
    let _ = RING.try_with(|cell| cell.set(Ring::Ready(own)));
}

/// What is under way in a ring.
struct Flight<'a> {
    ring: &'a mut IoUring,
    /// Entries that were put into the ring, that the kernel took from there, and that have ended.
    pushed: usize,
    consumed: usize,
    reaped: usize,
    broken: bool,
    /// Whether to poll for completions. A poll in vain ends it.
    polls: bool,
    /// Whether polling was in vain, or completions came while the thread was away.
    in_vain: bool,
}

impl Drop for Flight<'_> {
    /// Invariant 1, where something panicked.
    fn drop(&mut self) {
        while self.reaped < self.consumed {
            self.broken = true;
            self.enter(0);
            while self.reap().is_some() {}
        }
    }
}

impl<'a> Flight<'a> {
    fn new(ring: &'a mut IoUring, polls: bool) -> Self {
        Flight { ring, pushed: 0, consumed: 0, reaped: 0, broken: false, polls, in_vain: false }
    }

    /// Submits pushed entries and waits until `wait_for` have ended, or until any has ended if not
    /// all could be submitted.
    fn enter(&mut self, wait_for: usize) {
        if self.broken {
            // Nothing more is submitted; completions still arrive in the shared ring by themselves.
            spinney_base::shim::thread::yield_now();
            return;
        }
        if self.polls && wait_for > 0 {
            if self.consumed < self.pushed {
                self.submit_and_wait(0);
            }
            if self.broken || self.consumed < self.pushed {
                return;
            }
            let ended = poll::until(|| self.ring.completion().len() >= wait_for);
            self.in_vain |= ended != Ended::Came;
            self.polls = ended != Ended::InVain;
            if self.polls {
                return;
            }
        }
        self.submit_and_wait(wait_for);
    }

    fn submit_and_wait(&mut self, wait_for: usize) {
        match self.ring.submit_and_wait(wait_for) {
            Ok(count) => self.consumed += count,
            Err(error) => {
                let raw = error.raw_os_error().map(Errno::from_raw_os_error);
                // A kernel short of resources is asked again as long as something is under way
                // that will free some.
                self.broken = match raw {
                    Some(Errno::INTR) => false,
                    Some(Errno::AGAIN | Errno::BUSY) => self.consumed == self.reaped,
                    _ => true,
                };
            }
        }
    }

    /// The next completion: which transfer it is of, and the kernel's answer.
    fn reap(&mut self) -> Option<(usize, i32)> {
        let completion = self.ring.completion().next()?;
        self.reaped += 1;
        let index = usize::try_from(completion.user_data()).expect("we gave an index");
        Some((index, completion.result()))
    }
}

/// Runs the batch through the flight's ring. Every transfer that began has its result afterwards,
/// also where the flight is broken.
fn run(
    flight: &mut Flight<'_>,
    file: &RealFile,
    batch: &mut [Transfer<'_>],
    purpose: Purpose,
    steps: &mut dyn Steps,
) {
    let reads = are_reads(batch);
    let together = if reads { READS_TOGETHER } else { DEPTH as usize };
    let mut has_ended = vec![false; batch.len()];
    // Those before it are to be carried out; it and those after it were not asked yet.
    let mut begun = 0;
    let mut more = true;
    loop {
        while !flight.broken && flight.pushed - flight.reaped < DEPTH as usize {
            if begun == flight.pushed {
                more = more
                    && begun < batch.len()
                    && file.begin(&mut batch[begun], begun, purpose, steps);
                if !more {
                    break;
                }
                begun += 1;
            }
            let entry = entry(file, &mut batch[flight.pushed], flight.pushed as u64);
            // SAFETY: the entry's pointer is into a buffer that `batch` borrows; by invariant 1
            // this function waits for the entry's completion before it ends, and nothing touches
            // the buffer until then.
            let accepted = unsafe { flight.ring.submission().push(&entry) };
            if accepted.is_err() {
                break;
            }
            flight.pushed += 1;
            if flight.pushed - flight.consumed == together {
                flight.enter(0);
            }
        }
        let wanted = if flight.broken { flight.consumed } else { flight.pushed };
        let under_way = wanted - flight.reaped;
        if under_way == 0 {
            break;
        }
        // Of the last ones half, and half of the rest, and so on: what is done with each is then
        // done while others are under way, without a call for each.
        flight.enter(match more {
            true => under_way.min(REAP_TOGETHER),
            false if reads => under_way.div_ceil(2),
            false => under_way,
        });
        while let Some((index, answer)) = flight.reap() {
            has_ended[index] = true;
            finish(file, &mut batch[index], Some(answer));
            steps.ended(index, &batch[index]);
        }
    }
    // Those that the kernel never took.
    while more && begun < batch.len() && file.begin(&mut batch[begun], begun, purpose, steps) {
        begun += 1;
    }
    for index in (0..begun).filter(|index| !has_ended[*index]) {
        finish(file, &mut batch[index], None);
        steps.ended(index, &batch[index]);
    }
}

/// Returns whether a batch, which goes in one direction, is one of reads.
pub(super) fn are_reads(batch: &[Transfer<'_>]) -> bool {
    matches!(batch.first(), Some(Transfer { buf: TransferBuf::Read(_), .. }))
}

fn entry(file: &RealFile, transfer: &mut Transfer<'_>, index: u64) -> io_uring::squeue::Entry {
    // A buffer past 4 GiB is cut; `finish` sees a short transfer and continues from there.
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
