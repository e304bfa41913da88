//! Memory that a keyspace keeps free for its writes, and for what the crew has under way.
//!
//! The account of the keyspace has the target. What follows it here does so at its own pace,
//! because memory that goes to the caches for a moment is asked back with the next batch: the room
//! of writes, the memory for which leaves are made, the threads of the crew.

use std::time::Duration;

use spinney_base::mapping;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};

use crate::crew::Crew;
use crate::policy::{self, IDLE_LASTS, SHAPE_LASTS};

/// See the module. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    room: Mutex<Room>,
    shaped: Mutex<Shaped>,
    /// What `shaped` is now.
    shaped_bytes: AtomicU64,
    /// Bytes of mappings that are kept for what the crew has under way.
    set_aside: mapping::SetAside,
    crew: Mutex<Crew>,
    idle: Mutex<IdleSeen>,
    /// Bytes that writers under way have reserved.
    reserved: AtomicU64,
}

impl Memory {
    /// Reserves bytes for a write.
    #[inline]
    pub(crate) fn reserve(&self, bytes: u64) {
        self.reserved.fetch_add(bytes, Relaxed);
    }

    /// Ends a reservation.
    #[inline]
    pub(crate) fn release(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Relaxed);
    }

    /// Bytes that writers have reserved.
    #[inline]
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// Notes that a batch was applied.
    pub(crate) fn note_batch(&self, now: Duration) {
        self.room.lock().came = now;
    }

    /// Bytes that writes have held recently, when they hold `held` now.
    pub(crate) fn room_of_writes(&self, held: u64, now: Duration) -> u64 {
        self.room.lock().follow(held, now)
    }

    /// Number of threads of the crew, if `needed` are needed now.
    pub(crate) fn crew(&self, needed: usize, now: Duration) -> usize {
        self.crew.lock().follow(needed, now)
    }

    /// Follows the memory of the account, for which leaves are made.
    pub(crate) fn shape(&self, target: u64, now: Duration) {
        let shaped = self.shaped.lock().follow(target, now);
        self.shaped_bytes.store(shaped, Relaxed);
    }

    /// Bytes of memory for which leaves are made.
    pub(crate) fn shaped_bytes(&self) -> u64 {
        self.shaped_bytes.load(Relaxed)
    }

    /// Sets the bytes of mappings that are kept when they are free.
    pub(crate) fn set_aside(&self, bytes: u64) {
        self.set_aside.set(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Gives back the memory that flushes have left for the next ones, once there are none: the
    /// caches may have it then.
    pub(crate) fn release_idle(&self, now: Duration) {
        let moves = mapping::idle_moves();
        let mut seen = self.idle.lock();
        if seen.moves != moves {
            *seen = IdleSeen { moves, since: now, is_released: false };
        } else if !seen.is_released && now.saturating_sub(seen.since) >= IDLE_LASTS {
            seen.is_released = true;
            mapping::release_idle();
        }
    }
}

/// The most that writes have held. It is forgotten little by little, so that memory does not go to
/// the cache after each checkpoint to be asked back with the next batches; and soon where no batch
/// comes.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    bytes: u64,
    at: Duration,
    /// When the last batch came.
    came: Duration,
}

impl Room {
    /// Returns its bytes, now that writes hold `held`.
    fn follow(&mut self, held: u64, now: Duration) -> u64 {
        let over = self.bytes.saturating_sub(held);
        let (passed, since_batch) = (now.saturating_sub(self.at), now.saturating_sub(self.came));
        let forgotten = policy::forgotten(over, passed, since_batch);
        *self = Room { bytes: held + over - forgotten, at: now, ..*self };
        self.bytes
    }
}

/// The memory for which leaves are made: it follows the target up at once and down slowly. A
/// keyspace that lends its memory to others for a while, or that was opened a moment ago and has
/// not got its own yet, would otherwise cut its leaves into small ones with the first flush.
#[derive(Clone, Copy, Debug, Default)]
struct Shaped {
    bytes: u64,
    /// When it was as much as the target last, or went down.
    at: Duration,
}

impl Shaped {
    /// Returns its bytes, now that the target is `target`.
    fn follow(&mut self, target: u64, now: Duration) -> u64 {
        if target >= self.bytes {
            *self = Shaped { bytes: target, at: now };
        } else if now.saturating_sub(self.at) >= SHAPE_LASTS {
            *self = Shaped { bytes: target.max(self.bytes / 2), at: now };
        }
        self.bytes
    }
}

/// State of the memory that flushes leave ([`mapping::idle_moves`]): since when none was taken or
/// left, and whether it was given back since.
#[derive(Clone, Copy, Debug, Default)]
struct IdleSeen {
    moves: u64,
    since: Duration,
    is_released: bool,
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_made_for_less_memory_only_where_that_lasts() {
        let mut shaped = Shaped::default();
        let mut at = |target, seconds| shaped.follow(target, Duration::from_secs(seconds));
        assert_eq!(at(800, 1), 800);
        assert_eq!(at(100, 20), 800);
        assert_eq!(at(900, 25), 900);
        assert_eq!((at(100, 54), at(100, 55), at(100, 84)), (900, 450, 450));
        assert_eq!(at(300, 85), 300);
    }

    /// Between checkpoints the memory of writes is kept for them; once no batch comes it soon goes
    /// to the caches.
    #[test]
    fn room_for_writes_goes_when_no_batch_comes() {
        let memory = Memory::default();
        let seconds = Duration::from_secs;
        memory.note_batch(seconds(10));
        assert_eq!(memory.room_of_writes(800, seconds(10)), 800);
        assert_eq!(memory.room_of_writes(0, seconds(11)), 700, "an eighth of it a second");
        memory.note_batch(seconds(12));
        assert_eq!(memory.room_of_writes(0, seconds(13)), 525);
        assert_eq!(memory.room_of_writes(600, seconds(13)), 600);
        assert_eq!(memory.room_of_writes(100, seconds(15)), 100, "all of it after that time");
    }
}
