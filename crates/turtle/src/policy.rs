//! Policy: the numbers by which the engine decides, and the decisions that are arithmetic alone.
//!
//! A number that follows from a format, or from how one module works inside, stays in that module.
//! What was measured to choose them is in `docs/lab/turtle-distance.md`.

use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_records::{CACHE_BYTES_MIN, Rules};

use crate::options::LEAF_BYTES_MIN;

// ---- The memory of writes ----

/// Equal parts of a keyspace's memory in which the shares below are counted.
const MEMORY_PARTS: u64 = 64;

/// Share of one memtable, and so of one leaf. With a larger share fewer batches gather in what is
/// pending; with a smaller one leaves are small, and flushes with them.
const BATCH_PARTS: u64 = 4;

/// Share of what is pending in the tree. The reads' need is for [`crate::auto`] to weigh, so writes
/// may have nearly all while nothing is read. With less, a checkpoint comes earlier and writes
/// more.
const PENDING_PARTS: u64 = 43;

/// Share that writes may hold before they are slowed. With more, the delays begin late and are
/// sudden; with less, writers wait although the pipeline keeps up.
const SOFT_PARTS: u64 = 51;

/// Share that writes may hold before they wait for room. With more, too little is left for what
/// the crew has under way, and the keyspace exceeds its memory.
const HARD_PARTS: u64 = 55;

/// Share of what the whole crew has under way, at most. With more, it does not fit beside
/// [`HARD_PARTS`]; with less, fewer threads get their memory.
const UNDER_WAY_PARTS_MAX: u64 = 9;

/// What one thread of the crew has under way, in leaves: a leaf as pages and as edits, what is
/// pending for it, and what is made of both; and its part of the batch, of levels that are merged,
/// and of what the batch keeps. With less, a load exceeds the keyspace's memory.
const UNDER_WAY_LEAVES: u64 = 6;

/// Times as much as memory holds that may gather between checkpoints, when what settles is written
/// early: at checkpoint distances from 32 on 38 to 43 % of it is kept (`tests::amplification`), and
/// less the larger flushes are. What is pending ends the gathering earlier where more is kept.
/// With less, checkpoints come earlier than memory asks for; with more, the bound never acts.
const STREAMED: u64 = 3;

/// Smallest memtable, in bytes, whatever the memory. With less, each write would seal one.
const BATCH_BYTES_MIN: u64 = 4 << 10;

/// Least memory that a keyspace works with beside its nodes and large values, in bytes: a memtable
/// and a batch under way. With less, writes wait for each other; with more, many small keyspaces
/// exceed the budget.
pub(crate) const FLOOR_BYTES: u64 = 32 << 10;

/// What a keyspace's memory allows, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of one memtable, when it is full.
    pub(crate) batch: u64,
    /// Pending in the tree, before it is written whatever chi is.
    pub(crate) pending: u64,
    /// Held by writes in all, before they are slowed.
    pub(crate) soft: u64,
    /// Held by writes in all, before they must wait.
    pub(crate) hard: u64,
    /// Under way in one thread that applies a batch or builds pages.
    pub(crate) under_way: u64,
}

impl Limits {
    /// Limits of a keyspace with `target` bytes of memory and leaves of at most `leaf` bytes.
    #[inline]
    pub(crate) fn of(target: u64, leaf: u64) -> Limits {
        let part = |parts: u64| target / MEMORY_PARTS * parts;
        let under_way = part(UNDER_WAY_PARTS_MAX) / CREW_MAX as u64;
        Limits {
            batch: part(BATCH_PARTS).min(leaf).max(BATCH_BYTES_MIN),
            pending: part(PENDING_PARTS),
            soft: part(SOFT_PARTS),
            hard: part(HARD_PARTS),
            under_way: under_way.min(UNDER_WAY_LEAVES * leaf),
        }
    }

    /// Bytes from which on a memtable is sealed when memory must be freed: half of a full one. With
    /// less, small batches are applied; with more, a writer waits although one could be.
    pub(crate) fn batch_under_pressure(&self) -> u64 {
        self.batch / 2
    }

    /// Bytes of a leaf: a full memtable fills one.
    pub(crate) fn leaf(&self) -> u64 {
        self.batch.max(LEAF_BYTES_MIN)
    }

    /// Largest checkpoint distance: more batches gather than memory holds, because a part of them
    /// is written early.
    pub(crate) fn chi_max(&self) -> u64 {
        (STREAMED * self.pending / self.batch).max(1)
    }

    /// Batches that may still gather while `pending` bytes are pending.
    pub(crate) fn batches_left(&self, pending: u64) -> u64 {
        STREAMED * self.pending.saturating_sub(pending) / self.batch
    }
}

/// Memory with which leaves of `leaf` bytes are made.
pub(crate) fn memory_for_leaves(leaf: u64) -> u64 {
    leaf * MEMORY_PARTS / BATCH_PARTS
}

/// Time in which most of what writes have held is forgotten while batches come. Shorter, and memory
/// goes to the caches after each checkpoint and is asked back with the next batches; longer, and
/// the caches wait for memory that writes do not need.
const ROOM_LASTS: Duration = Duration::from_secs(8);

/// Time in which it is forgotten once no batch came for twice as long. Longer, and reads after a
/// load miss what would fit.
const IDLE_ROOM_LASTS: Duration = Duration::from_secs(1);

/// Bytes of `over` that are forgotten when `passed` went by since the last look, and the last batch
/// came `since_batch` ago.
pub(crate) fn forgotten(over: u64, passed: Duration, since_batch: Duration) -> u64 {
    let is_idle = since_batch > 2 * IDLE_ROOM_LASTS;
    let lasts = if is_idle { IDLE_ROOM_LASTS } else { ROOM_LASTS };
    let part = passed.min(lasts).as_micros() * u128::from(over) / lasts.as_micros();
    u64::try_from(part).unwrap_or(over)
}

/// Time with less memory after which leaves are made for half as much, at least. Shorter, and a
/// keyspace that lends its memory for a while cuts its leaves into small ones; longer, and a flush
/// takes more memory than the keyspace has.
pub(crate) const SHAPE_LASTS: Duration = Duration::from_secs(30);

/// Time after which memory that flushes left for the next ones is given back. Shorter, and the next
/// flush asks the system for it again; longer, and the caches wait for it.
pub(crate) const IDLE_LASTS: Duration = Duration::from_secs(2);

/// Whether `used` bytes of `all` are so many that more memory would be used.
pub(crate) fn is_nearly_full(used: u64, all: u64) -> bool {
    used >= all / 8 * 7
}

// ---- Threads ----

/// Most threads that apply a batch or build pages at once: each waits for the disk about half of
/// its time. With more, each gets less memory ([`UNDER_WAY_PARTS_MAX`]); with fewer, the disk
/// waits.
pub(crate) const CREW_MAX: usize = 4;

/// Time after which one of the crew goes, when it was not needed. Shorter, and its memory goes to
/// the caches and is asked back with the next batch; longer, and reads wait for it.
pub(crate) const CREW_LASTS: Duration = Duration::from_secs(2);

/// Fewest threads that build a checkpoint: memtables wait while it is written, and building takes
/// less than half of the memory of a flush. With one, writers wait longer.
pub(crate) const BUILDERS_MIN: usize = 2;

/// Most threads of a step of tidying. With more, the ranges that it is for wait for the disk and
/// the processors.
pub(crate) const TIDYING_THREADS_MAX: usize = 2;

// ---- Backpressure ----

/// Longest delay of one write, just below the hard limit. With a shorter one writers reach the
/// limit and stall; with a longer one latencies grow although the pipeline keeps up.
const DELAY_MAX: Duration = Duration::from_millis(2);

/// Delay below which a thread does not sleep yet: falling asleep costs as much as a put, so it
/// sleeps for many writes at once. Longer, and single writes take long; shorter, and more time goes
/// to falling asleep.
const SLEEP_MIN: Duration = Duration::from_micros(500);

/// Sealed memtables that count as the hard limit: each costs every lookup a look.
pub(crate) const SEALED_MAX: u64 = 12;

/// Sealed memtables that delay no write. With fewer, writers wait although one batch is applied
/// as fast as another is filled.
pub(crate) const SEALED_FREE: u64 = 4;

/// Parts in which the active memtable counts by how full it is. With whole memtables the delay
/// would jump to sixteen times as much when one is sealed.
const FILLED_PARTS: u64 = 64;

/// Divides the delay that a thread owes into what it sleeps now and what it still owes.
pub(crate) fn due(owed: Duration) -> (Duration, Duration) {
    if owed < SLEEP_MIN { (Duration::ZERO, owed) } else { (owed, Duration::ZERO) }
}

/// Delay of a write when the pipeline is behind by `behind` of at most `most`. It grows by the
/// fourth power, because many threads share what the pipeline does: with 16 of them, a third of the
/// longest delay for the first memtable too many let in a twentieth of what was being written, and
/// processors were idle until the pipeline had caught up.
pub(crate) fn delay(behind: u64, most: u64) -> Duration {
    let nanos = (0..4).fold(DELAY_MAX.as_nanos() as u64, |nanos, _| {
        // A longest delay of 2^21 nanoseconds, of bytes below 2^43.
        nanos * behind.min(most) / most.max(1)
    });
    Duration::from_nanos(nanos)
}

/// Delay of a write while `sealed` memtables are sealed and `filled` bytes of the active one, which
/// takes `batch`, are used.
pub(crate) fn delay_of_sealed(sealed: u64, filled: u64, batch: u64) -> Duration {
    let filled = (FILLED_PARTS * filled / batch).min(FILLED_PARTS);
    let behind = (FILLED_PARTS * sealed + filled).saturating_sub(FILLED_PARTS * SEALED_FREE);
    delay(behind, FILLED_PARTS * (SEALED_MAX - SEALED_FREE))
}

// ---- Checkpoints ----

/// Part of the file's pages that may be kept only because a checkpoint waits. With a larger part
/// the file grows; with a smaller one checkpoints come before chi asks for them, and write more.
const KEPT_PART: u64 = 3;

/// Pages that may be kept as well, for each page by which the tree has grown since the last
/// checkpoint: it will need their room as it grows on.
const KEPT_OF_GROWN: u64 = 2;

/// Leaves' worth of pages that may be kept in any case. With fewer, small keyspaces write a
/// checkpoint for every few batches.
const KEPT_LEAVES_MIN: u64 = 16;

/// Whether a checkpoint should not wait, because `kept` pages of a file of `pages` are kept only
/// for it: those whose place leaves that were written early have taken. The tree has grown by
/// `grown` pages since the last checkpoint, and its leaves take `leaf_bytes`.
pub(crate) fn keeps_much(kept: u64, grown: u64, pages: u64, leaf_bytes: u64) -> bool {
    let leaves = KEPT_LEAVES_MIN * leaf_bytes / PAGE_BYTES as u64;
    kept > (pages / KEPT_PART + KEPT_OF_GROWN * grown).max(leaves)
}

/// Share of what makes the log ask for a checkpoint that may gather, so that the checkpoint of chi
/// comes first: records take more room in a log than in memtables where they overwrite each other,
/// and about as much otherwise. With more, the log's checkpoint comes first, for all keyspaces;
/// with less, room of the log stays unused.
pub(crate) const LOG_SHARE: f64 = 0.875;

/// Most pages that are worth a sync ahead of the checkpoint: 32 MiB. With more, writers wait for
/// the checkpoint's own sync.
const AHEAD_PAGES_MAX: u64 = 8192;

/// Fewest pages that are worth one: 256 KiB. With fewer, syncs cost more than they spare.
const AHEAD_PAGES_MIN: u64 = 64;

/// Part of the memory that is synced at once: what gathers between checkpoints follows the memory.
const AHEAD_PART: u64 = 8;

/// Pages that are synced ahead at once by a keyspace with `memory` bytes.
pub(crate) fn ahead_pages(memory: u64) -> u64 {
    (memory / AHEAD_PART / PAGE_BYTES as u64).clamp(AHEAD_PAGES_MIN, AHEAD_PAGES_MAX)
}

/// Tombstones of which a memtable must have this many to be sealed for ranges. With fewer,
/// memtables are applied for little; with more, each range passes them.
pub(crate) const SEALED_TOMBSTONES_MIN: u64 = 64;

// ---- Updates ----

/// By how much pivots differ in what may be pending for them, in percent. With less, all leaves of
/// a node are flushed to by one batch; with more, the last ones are flushed to for little.
pub(crate) const SPREAD: u64 = 40;

/// Leaves' worth of segments that a merge of levels has in memory at once, for each thread. With
/// more, memory that caches need waits for merges; with less, merges read in smaller pieces.
pub(crate) const MERGED_LEAVES: u64 = 2;

/// Leaves' worth of a batch that is applied at once. It bounds what one flush moves down.
pub(crate) const BATCH_LEAVES_MAX: u64 = 8;

/// Leaves' worth of new leaves that one update keeps in memory at most, although they stay. With
/// more, a load exceeds its memory; with fewer, leaves are written that the next batch replaces.
pub(crate) const KEPT_LEAVES_MAX: u64 = 8;

/// Leaves' worth of levels that are merged when a full disk has no room to flush them. With more,
/// each batch takes longer; with fewer, lookups meet more levels.
pub(crate) const MERGED_ON_TOP: u64 = 2;

/// Leaves' worth of memory that is moved out of sparse pieces with one batch. With more, a batch
/// takes longer, and more is there twice meanwhile; with less, sparse pieces stay for longer.
pub(crate) const EVACUATED_LEAVES: u64 = 4;

/// Level from which on parts are written early. The levels above keep little memory, and are merged
/// into fewer segments if they wait: written early, they made 12 % more writes at chi 4 to 16.
pub(crate) const EARLY_LEVEL_MIN: usize = 2;

/// What may be pending for a leaf that overwrites something, in percent of the leaf: it takes its
/// space twice. With more, the file takes more space; with less, leaves are rewritten for less.
pub(crate) const SPACE_PERCENT: u64 = 40;

/// What may be pending for a leaf at all, in percent of the leaf: as much as when everything is
/// new. It bounds the segments that lookups meet beside a leaf.
pub(crate) const PENDING_PERCENT_MAX: u64 = 190;

/// What may be pending for a leaf before anything is known of what flushes add.
pub(crate) const PENDING_PERCENT: u64 = 90;

/// Leaves' worth of flushes that count, at least. With fewer, chance decides; with more, a change
/// of what is written is noticed late.
const REMEMBERED_LEAVES: u64 = 16;

/// Part of the keyspace whose flushes count, at least. Where keys were new and are overwritten from
/// now on, less may be pending for every leaf at once, and flushing the rest slows the writers: it
/// begins only once this much has come to leaves. Where much is overwritten few leaves are flushed
/// to, so older flushes are from a distant past.
const REMEMBERED_PART: u64 = 8;

/// Bytes of flushes that count, where leaves and the whole keyspace have this many.
pub(crate) fn remembered_bytes(leaf: u64, keyspace: u64) -> u64 {
    leaf.saturating_mul(REMEMBERED_LEAVES).max(keyspace / REMEMBERED_PART)
}

/// What may be pending for a leaf, in percent of the leaf, when leaves grew by `grown` of the
/// `flushed` bytes that were flushed to them: the part that is not new is [`SPACE_PERCENT`].
pub(crate) fn pending_percent(flushed: u64, grown: u64) -> u64 {
    if flushed == 0 {
        return PENDING_PERCENT;
    }
    let over = u128::from(flushed - grown).max(1);
    let percent = u128::from(SPACE_PERCENT) * u128::from(flushed) / over;
    u64::try_from(percent).unwrap_or(u64::MAX).min(PENDING_PERCENT_MAX)
}

/// Part of a leaf from which on what is pending for it is flushed when reads are many and writes
/// few: it is read beside the leaf, and a flush rewrites all of the leaf. With a smaller part
/// leaves are rewritten for less; with a larger one ranges look into more segments.
const TIDY_PART: u64 = 8;

/// Part of a full leaf or node below which it is joined with a neighbour. With a larger part halves
/// of a split are joined again; with a smaller one nearly empty leaves stay.
const JOINED_PART: u64 = 4;

/// Bytes pending for a leaf from which on tidying flushes it, where a full leaf has `leaf` bytes.
pub(crate) fn tidy_bytes(leaf: u64) -> u64 {
    leaf / TIDY_PART
}

/// Bytes below which a leaf, of which a full one has `leaf` bytes, is joined with a neighbour.
pub(crate) fn leaf_bytes_min(leaf: u64) -> u64 {
    leaf / JOINED_PART
}

/// Whether a node is joined with a neighbour that has `pivots` of at most `pivots_max` pivots, and
/// `bytes` of at most `bytes_max` bytes. Long keys make pages full of few pivots: a node that fills
/// a quarter either way may stay.
pub(crate) fn is_node_small(
    pivots: usize,
    pivots_max: usize,
    bytes: impl FnOnce() -> usize,
    bytes_max: usize,
) -> bool {
    let part = JOINED_PART as usize;
    pivots < 2 || (pivots < pivots_max / part && bytes() < bytes_max / part)
}

/// Whether less than half of a piece of memory, `live` of `all` bytes, is needed: moving out of it
/// gives back more than it copies.
pub(crate) fn is_sparse(live: u64, all: u64) -> bool {
    live * 2 < all
}

/// Whether what is pending keeps so much memory that sparse pieces are moved out of: `kept` bytes
/// beside the items, where the edits take `packed` bytes. With a smaller part more is copied; with
/// a larger one memory is kept that nothing needs.
pub(crate) fn is_evacuation_due(kept: u64, packed: u64) -> bool {
    kept > packed / 2 * 3
}

// ---- Kept records ----

/// Bytes that each shard of the record cache must get. With less, records are evicted before they
/// are asked for again.
const RECORD_SHARD_BYTES: u64 = 8 << 10;

/// How pages and records share the memory of reads, in sixteenths. Records, the second, have ten at
/// most: without pages of keys each lookup would read one more of them.
pub(crate) const SHARES: Rules = Rules { ratio: 1.5, step: 2, most: 10 };

/// Lookups that must have reached the tree before any record is kept. With fewer, keyspaces that
/// are hardly read have a record cache each.
const LOOKUPS_MIN: u64 = 64;

/// Part of the memory by which the record cache changes at once: moving records costs a copy. With
/// a smaller part they are copied more often, with a larger one the share is followed late.
const RECORD_STEP_PART: u64 = 32;

/// Fewest bytes of a record cache of this many shards.
pub(crate) fn record_bytes_min(shards: usize) -> u64 {
    shards as u64 * RECORD_SHARD_BYTES
}

/// Bytes by which a record cache changes at once, of `all` that reads have.
pub(crate) fn record_step(all: u64) -> u64 {
    all / RECORD_STEP_PART
}

/// Bytes by which a record cache of `bytes` grows at once, of `all` that reads have.
pub(crate) fn record_growth(bytes: u64, all: u64) -> u64 {
    (bytes / 8).max(record_step(all))
}

/// Whether records are kept once `lookups` have reached the tree, with `all` bytes for reads.
pub(crate) fn records_pay(lookups: u64, all: u64) -> bool {
    lookups >= LOOKUPS_MIN && all / 4 >= CACHE_BYTES_MIN
}

/// Whether `filled` of a record cache of `bytes` are so many that it may grow: pages give up what
/// records fill, no more.
pub(crate) fn are_records_many(filled: u64, bytes: u64) -> bool {
    filled > bytes / 16 * 13
}

/// Whether a record cache whose least is `least` bytes fits into the `all` bytes of reads.
pub(crate) fn fits_records(least: u64, all: u64) -> bool {
    least <= all / 2
}

/// Whether a record cache of `bytes` that cannot shrink takes too much of `all`.
pub(crate) fn is_record_cache_too_large(bytes: u64, all: u64) -> bool {
    bytes > all / 4 * 3
}

// ---- The checkpoint distance that sets itself ----

/// Time between two decisions. Longer, and a load has gone by before it is noticed; shorter, and
/// each rests on few counts.
pub(crate) const CHI_PERIOD: Duration = Duration::from_millis(250);

/// Part of what was counted before that is forgotten with each period. A few batches and
/// checkpoints are always counted, because what gathers, and what it answers, rises and falls with
/// these. With a larger part chi swings, with a smaller one it follows late.
const FORGOTTEN_PART: u64 = 8;

/// Pages of a batch that twice the distance spares, in percent: what `tests::amplification` shows
/// from 8 to 128. With more, reads lose memory for writes that are not spared.
const SAVED_PERCENT: f64 = 50.0;

/// Most of what is written for a batch that twice the distance spares, in percent: a level, and
/// what more of it is overwritten before it is written. With less, chi stays low where keys repeat.
const SAVED_OF_WRITTEN_PERCENT: f64 = 25.0;

/// Batches over which what is written for one is averaged: pages are written in bursts, with
/// checkpoints. With fewer, each burst moves chi.
pub(crate) const WRITTEN_BATCHES: u64 = 128;

/// Lookups that twice as much gathering answers in addition, in percent of those that it answers:
/// the older half is asked less often. With more, memory is kept that the caches would use better.
const HELD_PERCENT: u64 = 50;

/// Worth of a page that is written, in percent of one that is read alone. By time it would be a
/// fourth (drives of 80,000 reads a second and 1.2 GB/s), but writing wears drives out, and a
/// distance costs reads less than the worth of the last bytes times all that gathers. With less,
/// more is written; with more, more is read.
const WRITE_WORTH_PERCENT: u64 = 150;

/// How much larger one side must be than the other to change chi, in percent. With less, it swings
/// between two values.
const MARGIN_PERCENT: u64 = 120;

/// Shortest time between two changes where both sides have something to lose: the effect of one
/// shows only when what gathers has followed, and what was counted before is forgotten. Shorter,
/// and chi overshoots.
pub(crate) const CHI_STEPS_APART: Duration = Duration::from_secs(2);

/// Distance at which a keyspace begins that was not read before: what a larger one costs shows only
/// when memory has filled. With more, the first reads miss more; with less, writes rise at once.
pub(crate) const CHI_READ: u64 = 16;

/// A keyspace counts as read from when chi would be lowered until less is lost than this part of
/// what could be saved. With a smaller part, each pause of readers starts at [`CHI_READ`] again.
const READ_PART: u64 = 8;

/// `sum` after another period in which `more` was counted.
pub(crate) fn remembered(sum: u64, more: u64) -> u64 {
    (sum - sum.div_ceil(FORGOTTEN_PART)).saturating_add(more)
}

/// `most`, if it was not reached in this period.
pub(crate) fn lessened(most: u64) -> u64 {
    most - most.div_ceil(FORGOTTEN_PART)
}

/// Pages written for each page of a batch, until some were counted.
pub(crate) const AMPLIFICATION_ASSUMED: f64 = SAVED_PERCENT / SAVED_OF_WRITTEN_PERCENT;

/// Pages of a batch that twice the distance spares, in percent, when `amplification` pages were
/// written for each.
pub(crate) fn saved_percent(amplification: f64) -> f64 {
    SAVED_PERCENT.min(amplification * SAVED_OF_WRITTEN_PERCENT)
}

/// Worth of `pages` that are not written, in pages that are not read.
pub(crate) fn worth_of_written(pages: u64) -> u64 {
    part(pages, WRITE_WORTH_PERCENT, 100)
}

/// Lookups that twice as much gathering would answer beside the `held` that it answers.
pub(crate) fn held_more(held: u64) -> u64 {
    part(held, HELD_PERCENT, 100)
}

/// Whether `a` exceeds `b` by enough for chi to follow it.
pub(crate) fn is_more(a: u64, b: u64) -> bool {
    a.saturating_mul(100) > b.saturating_mul(MARGIN_PERCENT)
}

/// Whether a keyspace that was read still is, when `lost` pages are lost and `saved` could be.
pub(crate) fn is_still_read(lost: u64, saved: u64) -> bool {
    lost > saved / READ_PART
}

/// `number * a / b`.
pub(crate) fn part(number: u64, a: u64, b: u64) -> u64 {
    let part = u128::from(number) * u128::from(a) / u128::from(b.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

// ---- Tidying ----

/// Pivots that one step flushes to leaves: some 60 MiB that are read and written. With more, a step
/// holds up writers; with fewer, checkpoints are written for little.
pub(crate) const LEAVES_AT_ONCE: usize = 16;

/// Pivots that one step flushes to nodes. What comes into their buffers, and levels that are merged
/// there, is in memory until the step is written. With more, a step takes too much memory.
pub(crate) const NODES_AT_ONCE: usize = 2;

/// Levels of a buffer that a range may look into when all is tidy. With fewer, levels are merged
/// after each batch; with more, each range looks into more segments.
pub(crate) const TIDY_LEVELS_MAX: usize = 2;

/// Looks into segments that cost a range as much as rebuilding a page of a leaf. A look without
/// reading costs about a third of a page that is read alone; rebuilding a page, which is read and
/// written with others, half of one. With more, ranges pay for longer; with fewer, leaves are
/// rewritten for few ranges.
const LOOKS_A_PAGE: u64 = 2;

/// Looks that a page of a segment counts for when a range had to read it. With fewer, buffers in a
/// file much larger than memory stay untidy for longer.
pub(crate) const LOOKS_A_MISS: usize = 2;

/// Time without writes after which a keyspace is quiet. Shorter, and a pause of a writer costs
/// flushes that the next batches would have shared; longer, and removed records keep their room.
pub(crate) const QUIET: Duration = Duration::from_secs(1);

/// Share of what lies below a pivot, as one byte in this many, that tombstones for it may remove in
/// a quiet keyspace. A larger number writes more, a smaller one keeps more room taken.
pub(crate) const QUIET_PART: u64 = 8;

/// The same share where ranges passed many tombstones: they do so again each time.
pub(crate) const PASSED_PART: u64 = 64;

/// Tombstones, of some 50 ns each, that cost as much to pass as a page of a leaf to rebuild. With
/// more, ranges pass them for longer; with fewer, leaves are rewritten for few of them.
const TOMBSTONES_A_PAGE: u64 = 128;

/// Most small steps that one writer waits for after a full disk refused it: each flushes to one
/// leaf. With fewer, writes fail although room could be had; with more, they take longer to fail.
pub(crate) const ROOM_STEPS_MAX: usize = 64;

/// Most steps of one piece of a compaction: more than the leaves of a piece need in a tree of any
/// height. Without it a fast writer could keep one busy forever.
pub(crate) const COMPACT_STEPS_MAX: usize = 64;

/// Tombstones that a range must pass for the engine to remember where nothing is. With fewer,
/// remembering costs more than passing them.
pub(crate) const PASSED_TOMBSTONES_MIN: u64 = 16;

/// Whether `looks` beside leaves have cost ranges as much as rebuilding `pages`.
pub(crate) fn tidying_pays(looks: u64, pages: u64) -> bool {
    looks > pages.saturating_mul(LOOKS_A_PAGE)
}

/// Tombstones that cost as much to pass as `pages` to rebuild.
pub(crate) fn price_in_tombstones(pages: u64) -> u64 {
    pages.max(1).saturating_mul(TOMBSTONES_A_PAGE)
}

/// How many more tombstones ranges pass before the price is computed again, when they have passed
/// `passed` of `price`.
pub(crate) fn tombstones_until_next_look(price: u64, passed: u64) -> u64 {
    price.saturating_sub(passed) / 8 + TOMBSTONES_A_PAGE
}

// ---- Reads ----

/// Pages of a section that a cursor has used when it begins to read ahead. With fewer, short scans
/// read pages that they do not need; with more, long ones wait for the disk page by page.
pub(crate) const PAGES_BEFORE_AHEAD: u32 = 8;

/// Part of the pages that a cursor has used which it reads ahead. With a larger part a scan that
/// ends soon has read more in vain; with a smaller one it takes more requests.
const AHEAD_SHARE: u32 = 4;

/// Most pages that a cursor reads ahead: 256 KiB. With more, each scan takes more memory; with
/// fewer, it takes more requests.
const AHEAD_MAX: u32 = 64;

/// Most pages of values that a cursor reads because its caller expects to ask for them. With more,
/// a caller that stops early has read more in vain; with fewer, it takes more requests.
pub(crate) const EXPECTED_PAGES_MAX: u32 = 16;

/// Records of a range for which room is made at once, at most. With fewer, the chunk grows in
/// steps; with more, a short range takes memory that it does not fill.
pub(crate) const EXPECTED_RECORDS_MAX: usize = 128;

/// Most pages that a load reads one by one, through the cache. With more, a merge evicts pages of
/// lookups; with fewer, small loads read cached pages again.
pub(crate) const SINGLES_MAX: u32 = 2;

/// Leaves that are read in one batch: enough to keep a disk busy. With more, merges take more
/// memory at once; with fewer, they wait for the disk.
pub(crate) const LOADS_AT_ONCE: usize = 4;

/// Pages that a cursor reads ahead after it has used `used`.
pub(crate) fn pages_ahead(used: u32) -> u32 {
    (used / AHEAD_SHARE).min(AHEAD_MAX)
}

/// Records that the tree is asked for at once while memtables remove them all: two to this power.
/// With more, a range reads what it does not need; with fewer, a long row of removals takes many
/// small reads.
pub(crate) const IN_VAIN_MAX: u32 = 8;

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn the_delay_does_not_jump_where_a_memtable_is_sealed() {
        let (batch, mut before) = (2 << 20, Duration::ZERO);
        for sealed in 0..=SEALED_MAX {
            assert!(before <= delay_of_sealed(sealed, 0, batch));
            for filled in (0..=batch + 5000).step_by(5000) {
                let now = delay_of_sealed(sealed, filled, batch);
                let step = now.saturating_sub(before);
                assert!(step <= before / 4 + Duration::from_micros(1), "{sealed} {filled} {now:?}");
                assert!(now >= before && (sealed >= SEALED_FREE || now.is_zero()));
                before = now;
            }
        }
        assert_eq!(before, DELAY_MAX);
    }

    #[test]
    fn sleeps_are_for_many_writes_and_bounded() {
        let (mut owed, mut slept, mut asked) = (Duration::ZERO, Vec::new(), Duration::ZERO);
        for behind in (0..=100).cycle().take(10_000) {
            asked += delay(behind, 100);
            let (sleep, left) = due(owed + delay(behind, 100));
            owed = left;
            if !sleep.is_zero() {
                slept.push(sleep);
            }
        }
        assert!(slept.iter().all(|sleep| (SLEEP_MIN..SLEEP_MIN + DELAY_MAX).contains(sleep)));
        assert_eq!(
            slept.iter().sum::<Duration>() + owed,
            asked,
            "no more and no less than was asked"
        );
        assert!(slept.len() < 5000, "{} sleeps", slept.len());
    }

    #[test]
    fn delays_grow_smoothly() {
        let delays: Vec<_> = (0..=7).map(|behind| delay(behind, 6)).collect();
        let micros: Vec<_> = delays.iter().map(Duration::as_micros).collect();
        assert_eq!(micros, [0, 1, 24, 125, 395, 964, 2000, 2000]);
        assert_eq!(delay(1 << 40, 1 << 40), DELAY_MAX);
    }

    #[test]
    fn limits_leave_room_for_each_other() {
        for target in [128 << 10, 1 << 20, 340 << 20, 64 << 30] {
            for leaf in [4 << 10, 2 << 20, 16 << 20] {
                let Limits { batch, pending, soft, hard, under_way } = Limits::of(target, leaf);
                assert!(hard + CREW_MAX as u64 * under_way <= target);
                assert!(batch < pending && pending < soft && soft < hard && hard < target);
                assert!(pending + 2 * batch <= soft, "{target} {leaf}");
            }
        }
        assert_eq!(Limits::of(340 << 20, 2 << 20).chi_max(), 342);
        assert_eq!(Limits::of(0, 2 << 20).chi_max(), 1);
    }

    #[test]
    fn limits_follow_memory_and_leaf() {
        let mib = 1 << 20;
        for (memory, leaf, batch, leaf_made, chi) in [
            (0, 2 * mib, 4 << 10, 16 << 10, 1),
            (mib, 2 * mib, 64 << 10, 64 << 10, 32),
            (16 * mib, 2 * mib, mib, mib, 32),
            (64 * mib, 2 * mib, 2 * mib, 2 * mib, 64),
            (64 * mib, 4 * mib, 4 * mib, 4 * mib, 32),
        ] {
            let limits = Limits::of(memory, leaf);
            let found = (limits.batch, limits.leaf(), limits.chi_max());
            assert_eq!(found, (batch, leaf_made, chi), "{memory} bytes, leaves of {leaf}");
            assert_eq!(limits.batches_left(limits.pending), 0);
        }
        assert_eq!(memory_for_leaves(2 * mib), 32 * mib);
        let limits = Limits::of(64 * mib, 2 * mib);
        assert_eq!([0, limits.pending / 2].map(|pending| limits.batches_left(pending)), [64, 32]);
    }

    #[test]
    fn memory_is_given_back_in_time() {
        let seconds = Duration::from_secs;
        for (over, passed, since_batch, gone) in
            [(800, 0, 0, 0), (800, 1, 0, 100), (800, 9, 2, 800), (800, 1, 3, 800), (0, 1, 1, 0)]
        {
            let found = forgotten(over, seconds(passed), seconds(since_batch));
            assert_eq!(found, gone, "{over} after {passed} s, {since_batch} s after a batch");
        }
        for (used, all, full) in [(0, 0, true), (6, 8, false), (7, 8, true), (699, 800, false)] {
            assert_eq!(is_nearly_full(used, all), full, "{used} of {all}");
        }
    }

    #[test]
    fn a_checkpoint_does_not_keep_much_of_the_file() {
        // Leaves of 16 KiB: 64 pages may be kept in any case.
        for (kept, grown, pages, much) in [
            (64, 0, 0, false),
            (65, 0, 0, true),
            (100, 0, 300, false),
            (101, 0, 300, true),
            (120, 10, 300, false),
            (121, 10, 300, true),
        ] {
            let found = keeps_much(kept, grown, pages, 16 << 10);
            assert_eq!(found, much, "{kept} of {pages} pages, {grown} more");
        }
    }

    #[test]
    fn pages_that_are_synced_ahead_follow_the_memory() {
        let pages = [1, 2, 16, 64, 256, 340, 65536].map(|mib| ahead_pages(mib << 20));
        assert_eq!(pages, [64, 64, 512, 2048, 8192, 8192, 8192]);
    }

    #[test]
    fn more_may_be_pending_where_records_are_new() {
        assert_eq!(
            [remembered_bytes(1000, 100_000), remembered_bytes(1000, 1 << 20)],
            [16_000, 1 << 17]
        );
        for (flushed, grown, percent) in [
            (0, 0, PENDING_PERCENT),
            (1000, 0, SPACE_PERCENT),
            (1000, 500, 2 * SPACE_PERCENT),
            (1000, 1000, PENDING_PERCENT_MAX),
            (u64::MAX, u64::MAX, PENDING_PERCENT_MAX),
        ] {
            assert_eq!(pending_percent(flushed, grown), percent, "{grown} of {flushed}");
        }
    }

    #[test]
    fn records_are_kept_where_they_get_memory() {
        let least = 4 * CACHE_BYTES_MIN;
        for (lookups, all, pay) in
            [(63, u64::MAX, false), (64, least, true), (64, least - 1, false), (1 << 40, 0, false)]
        {
            assert_eq!(records_pay(lookups, all), pay, "{lookups} lookups, {all} bytes");
        }
        assert_eq!([0, 1, 64].map(record_bytes_min), [0, 8 << 10, 512 << 10]);
        assert_eq!([0, 31, 32, 1 << 20].map(record_step), [0, 0, 1, 32 << 10]);
        assert_eq!([record_growth(800, 320), record_growth(8, 320)], [100, 10]);
        for (filled, many) in [(0, false), (1300, false), (1301, true)] {
            assert_eq!(are_records_many(filled, 1600), many, "{filled} of 1600");
        }
        assert_eq!([0, 100, 101].map(|least| fits_records(least, 200)), [true, true, false]);
        for (bytes, too_large) in [(0, false), (300, false), (301, true)] {
            assert_eq!(is_record_cache_too_large(bytes, 400), too_large, "{bytes} of 400");
        }
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "powers of two")]
    fn chi_is_weighed_by_sums_that_are_forgotten() {
        for (sum, more, then) in [(0, 0, 0), (0, 7, 7), (1, 0, 0), (16, 4, 18), (17, 0, 14)] {
            assert_eq!(remembered(sum, more), then, "{sum} and {more}");
        }
        assert_eq!([0, 1, 8, 9].map(lessened), [0, 0, 7, 7]);
        for (amplification, percent) in [(0.0, 0.0), (1.0, 25.0), (2.0, 50.0), (9.0, 50.0)] {
            assert_eq!(saved_percent(amplification), percent, "{amplification} pages for one");
        }
        assert_eq!((worth_of_written(200), held_more(200)), (300, 100));
        for (a, b, more) in [(0, 0, false), (120, 100, false), (121, 100, true)] {
            assert_eq!(is_more(a, b), more, "{a} and {b}");
        }
        for (lost, saved, read) in [(0, 0, false), (1, 8, false), (2, 8, true), (1, 0, true)] {
            assert_eq!(is_still_read(lost, saved), read, "{lost} lost, {saved} saved");
        }
        assert_eq!((part(10, 3, 2), part(1, 1, 0), part(u64::MAX, 2, 1)), (15, 1, u64::MAX));
    }

    #[test]
    fn reads_ahead_follow_what_was_used() {
        let ahead = [0, 7, 8, 100, 256, u32::MAX].map(pages_ahead);
        assert_eq!(ahead, [0, 1, 2, 25, 64, 64]);
    }

    #[test]
    fn small_and_sparse_things_are_cleared_away() {
        for (leaf, tidy, joined) in [(16 << 10, 2 << 10, 4 << 10), (2 << 20, 256 << 10, 512 << 10)]
        {
            assert_eq!((tidy_bytes(leaf), leaf_bytes_min(leaf)), (tidy, joined), "{leaf}");
        }
        for (pivots, bytes, small) in
            [(1, 4000, true), (15, 999, true), (15, 1000, false), (16, 10, false)]
        {
            let found = is_node_small(pivots, 64, || bytes, 4000);
            assert_eq!(found, small, "{pivots} pivots, {bytes} bytes");
        }
        for (live, all, sparse) in [(0, 0, false), (49, 100, true), (50, 100, false)] {
            assert_eq!(is_sparse(live, all), sparse, "{live} of {all}");
        }
        for (kept, due) in [(150, false), (151, true)] {
            assert_eq!(is_evacuation_due(kept, 100), due, "{kept} for 100");
        }
    }

    #[test]
    fn tidying_waits_until_ranges_have_paid() {
        for (looks, pages, pays) in [(0, 0, false), (1, 0, true), (20, 10, false), (21, 10, true)] {
            assert_eq!(tidying_pays(looks, pages), pays, "{looks} looks, {pages} pages");
        }
        assert_eq!([0, 1, 3].map(price_in_tombstones), [128, 128, 384]);
        for (price, passed, more) in [(128, 128, 128), (128, 0, 144), (1024, 0, 256), (0, 9, 128)] {
            assert_eq!(tombstones_until_next_look(price, passed), more, "{passed} of {price}");
        }
    }
}
