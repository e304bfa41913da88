//! Reservation of space in the log (rule P12), by one number.
//!
//! ```text
//! start segment         head            claimed         ready end                limit of the asker
//!   |  written blocks     |  promised      |  free           |   not preallocated      |
//! ```
//!
//! `claimed` is a position: where the log's head would be if everything promised were written in
//! the worst way. Invariants: (1) `claimed` = head + blocks of the next run + blocks of all live
//! reservations. A flush moves blocks from the second term to the first, so it changes nothing
//! here. (2) `claimed` <= `ready`: every promised block lies in a preallocated segment, so an
//! append and its flush never lack room. (3) `claimed` was raised for a purpose only below that
//! purpose's limit; users' limit leaves a quarter of the log to internal records and theirs leaves
//! a sixteenth to recovery, so that checkpoints and recovery always proceed.
//!
//! A record's worst case is a run of its own, padded. When it is appended beside others it takes
//! less, and dropping the reservation returns the difference.
//!
//! **Concurrency**: all methods may be called from any thread. Limits and `ready` only grow, and
//! only under the segment table's lock.

use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};

use crate::block::{PAYLOAD_BYTES, RECORD_HEADER_BYTES_MAX};

/// Purpose of a reservation; it decides how much must be left to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum ReserveFor {
    /// A user record. It leaves a quarter of the log to internal records, so that checkpoints can
    /// always proceed.
    User = 0,
    /// A structure record. It leaves a sixteenth to recovery.
    Internal = 1,
    /// A structure record of a replay, or a watermark block of the log itself. It may use the whole
    /// log.
    Recovery = 2,
}

const PURPOSES: [ReserveFor; 3] = [ReserveFor::User, ReserveFor::Internal, ReserveFor::Recovery];

/// Returns the blocks that a record stream of `bytes` takes in one run.
pub(crate) fn blocks_for(bytes: u64) -> u64 {
    bytes.div_ceil(PAYLOAD_BYTES as u64)
}

/// Returns the most blocks that `records` records of together `bytes` payload can take, each in a
/// run of its own.
pub(crate) fn worst_blocks(records: usize, bytes: usize) -> u64 {
    let headers = (records as u64).saturating_mul(RECORD_HEADER_BYTES_MAX as u64);
    let stream = (bytes as u64).saturating_add(headers);
    (stream / PAYLOAD_BYTES as u64).saturating_add(records as u64)
}

/// Space accounting of one log.
#[derive(Debug)]
pub(crate) struct Room {
    claimed: AtomicU64,
    ready: AtomicU64,
    /// Limits by [`ReserveFor`].
    limits: [AtomicU64; 3],
    blocks_max: u64,
}

/// Result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Granted,
    /// Segments must be made up to this position first.
    NotReady(u64),
    /// The log is too full for this purpose.
    NeedRoom,
}

/// Space that a later [`Log::append`](crate::Log::append) cannot lack. Dropping it gives back what
/// was not used.
#[derive(Debug)]
#[must_use = "dropping a reservation gives the room back"]
pub struct Reservation<'a> {
    room: &'a Room,
    blocks: u64,
}

impl Room {
    /// Makes the accounting of a log whose head is at `head`, whose segments are ready up to
    /// `ready`, and which may hold `blocks_max` blocks from position `begin` on.
    pub(crate) fn new(head: u64, ready: u64, begin: u64, blocks_max: u64) -> Self {
        let room = Room {
            claimed: AtomicU64::new(head),
            ready: AtomicU64::new(ready),
            limits: std::array::from_fn(|_| AtomicU64::new(0)),
            blocks_max,
        };
        room.begin_at(begin);
        room
    }

    /// Returns the most blocks in use that this purpose may see.
    pub(crate) fn span(&self, purpose: ReserveFor) -> u64 {
        match purpose {
            ReserveFor::User => self.blocks_max - self.blocks_max.div_ceil(4),
            ReserveFor::Internal => self.blocks_max - self.blocks_max.div_ceil(16),
            ReserveFor::Recovery => self.blocks_max,
        }
    }

    /// Moves the limits: the log now begins at the segment boundary `begin`.
    pub(crate) fn begin_at(&self, begin: u64) {
        for purpose in PURPOSES {
            self.limits[purpose as usize].fetch_max(begin + self.span(purpose), SeqCst);
        }
    }

    /// Notes that segments are ready up to `end`.
    pub(crate) fn ready_to(&self, end: u64) {
        self.ready.fetch_max(end, SeqCst);
    }

    pub(crate) fn ready(&self) -> u64 {
        self.ready.load(SeqCst)
    }

    pub(crate) fn claimed(&self) -> u64 {
        self.claimed.load(SeqCst)
    }

    pub(crate) fn limit(&self, purpose: ReserveFor) -> u64 {
        self.limits[purpose as usize].load(SeqCst)
    }

    /// Claims `blocks` blocks, or says what prevents it; then nothing has changed.
    pub(crate) fn claim(&self, blocks: u64, purpose: ReserveFor) -> Claim {
        let mut claimed = self.claimed.load(SeqCst);
        loop {
            let end = claimed + blocks;
            if end > self.limit(purpose) {
                return Claim::NeedRoom;
            }
            if end > self.ready() {
                return Claim::NotReady(end);
            }
            match self.claimed.compare_exchange(claimed, end, SeqCst, SeqCst) {
                Ok(_) => return Claim::Granted,
                Err(now) => claimed = now,
            }
        }
    }

    /// Gives back `blocks` blocks: the records of the next run went into the block of the last one.
    pub(crate) fn give_back(&self, blocks: u64) {
        self.claimed.fetch_sub(blocks, SeqCst);
    }

    /// Makes the reservation of a granted claim.
    pub(crate) fn reservation(&self, blocks: u64) -> Reservation<'_> {
        Reservation { room: self, blocks }
    }

    /// Returns how full the log is for users: 0 when empty, 1 when they are refused, above 1 when
    /// internal records use their share.
    pub(crate) fn fullness(&self) -> f64 {
        let span = self.span(ReserveFor::User);
        let begin = self.limit(ReserveFor::User) - span;
        #[expect(clippy::cast_precision_loss, reason = "a hint")]
        let fullness = self.claimed().saturating_sub(begin) as f64 / span as f64;
        fullness
    }
}

impl Reservation<'_> {
    /// Returns whether a record of `bytes` in the stream certainly fits into the rest.
    pub(crate) fn holds(&self, bytes: u64) -> bool {
        blocks_for(bytes) <= self.blocks
    }

    /// Notes that a record was appended and the next run grew by `blocks`; they stay claimed until
    /// the run is written.
    pub(crate) fn consume(&mut self, blocks: u64) {
        self.blocks -= blocks;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.blocks > 0 {
            self.room.claimed.fetch_sub(self.blocks, SeqCst);
        }
    }
}
