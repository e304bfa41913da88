//! Policy: the numbers by which the engine decides, and the decisions that are arithmetic alone.
//!
//! A number that follows from a format, or from how one module works inside, stays in that module.

use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_records::Rules;

// ---- Write-back ----

/// Pages of one batch of background write-back. One half of a double-write area protects this many:
/// with more a batch would need two syncs of the area, with fewer each sync would serve fewer
/// pages.
pub(crate) const BATCH_PAGES: usize = spinney_extent::double_write::HALF_PAGES;

/// Pages that a writer writes back itself when it finds no clean record to evict, and segments that
/// a checkpoint with time does at once. A compromise: with more the writer waits longer, with fewer
/// it has to do so more often. Where each batch costs a sync, [`BATCH_PAGES`] applies instead.
pub(crate) const FEW_PAGES: usize = 8;

/// Entries of a dirty list after each multiple of which its segment is written back soon. Keys that
/// arrive in order all belong to the last segment, which must not wait for the CLOCK hand. Too
/// small a number writes pages back for few records each, too large a one makes lists that a batch
/// cannot take.
const LONG_LIST: usize = 1024;

/// Long dirty lists that the background may be behind with before writers help. With more, lists
/// grow while the background is busy; with fewer, writers wait for what the background would do.
pub(crate) const LONG_LISTS_MAX: usize = 2;

/// Whether a dirty list that has just reached this many entries is to be written back soon.
#[inline]
pub(crate) fn is_long_list(entries: usize) -> bool {
    entries.is_multiple_of(LONG_LIST)
}

/// Most dirty records that one batch takes of one segment. It bounds the batch's memory; with
/// fewer, a segment with many is written more often.
pub(crate) const TARGET_RECORDS_MAX: usize = 2048;

/// Oldest entries of a dirty list that a batch takes however long the records are: 500 KiB of the
/// longest. With more, long records take more memory than [`BATCH_BYTES_MAX`] bounds; with fewer,
/// more batches are needed.
pub(crate) const TARGET_RECORDS_MIN: usize = 128;

/// A batch with this many bytes of dirty records takes no more. It bounds the batch's memory; with
/// less, a batch writes fewer pages for its sync.
pub(crate) const BATCH_BYTES_MAX: usize = 256 << 10;

/// Base and overflow page are to become one page when their records fill no more than this share of
/// it, in percent. With more, the page soon needs an overflow page again; with less, lookups and
/// scans read two pages where one would do.
const DROP_OVERFLOW_PERCENT: usize = 60;

/// Equal parts of a page. Each time a page without overflow page falls below one more of those in
/// its lower half, its segment may shrink. With more, segments are looked at more often in vain;
/// with fewer, half empty pages stay.
const SHRINK_STEPS: usize = 8;

/// Whether an overflow page is needless: `used` bytes of it and its base page together would fill
/// one page of `capacity` bytes well.
pub(crate) fn is_overflow_needless(used: usize, capacity: usize) -> bool {
    used <= capacity * DROP_OVERFLOW_PERCENT / 100
}

/// Whether a page of `capacity` bytes has become so much emptier that its segment may shrink.
pub(crate) fn fell_by_a_step(before: usize, now: usize, capacity: usize) -> bool {
    let steps = |used: usize| used * SHRINK_STEPS / capacity;
    now < before && steps(now) < steps(before) && steps(now) < SHRINK_STEPS / 2
}

// ---- Staging ----

/// Records are long if a page holds no more of them than this: each would cost the reading and the
/// writing of a page. With a larger number short records are staged, of whose pages many records
/// are dirty by the time they are written back.
const LONG_PER_PAGE: usize = 8;

/// Where staging was asked for: fewest records that are worth a page of their own. With fewer,
/// staged pages are mostly empty.
const STAGED_RECORDS_MIN: usize = 12;

/// Where staging was asked for: most records for each page that they belong to. With more, the
/// reading of the page is paid for, and they are written back in place.
const STAGED_PER_PAGE_MAX: usize = 20;

/// A segment's share may take one page for this many of the segment's; a larger one is merged at
/// once, because hardly a page would be left as it is.
const STAGED_SHARE_OF_SEGMENT: usize = 2;

/// Records that count for [`are_new`], in the order of a batch or two. Then both numbers are
/// halved, so that old records count less. With more, the end of a load is noticed late.
pub(crate) const NOVELTY_COUNTED_MAX: u64 = 4096;

/// Fewest records from which [`are_new`] tells something. With fewer, chance decides.
const NOVELTY_COUNTED_MIN: u64 = 64;

/// Whether `records` with `bytes` in all are long, in pages of `capacity` bytes.
pub(crate) fn are_long(bytes: usize, records: usize, capacity: usize) -> bool {
    bytes * LONG_PER_PAGE >= capacity * records
}

/// Whether this many records of this many pages are a burst that is worth staging.
pub(crate) fn is_burst(records: usize, pages: usize) -> bool {
    (STAGED_RECORDS_MIN..=STAGED_PER_PAGE_MAX * pages).contains(&records)
}

/// Most pages in which a share of a segment with this many base pages is staged.
pub(crate) fn staged_pages_max(base_pages: usize) -> usize {
    (base_pages / STAGED_SHARE_OF_SEGMENT).max(1)
}

/// Whether enough records are counted, and all but one in eight of them are new.
pub(crate) fn are_new(new: u64, all: u64) -> bool {
    all >= NOVELTY_COUNTED_MIN && 8 * (all - new) <= all
}

// ---- Memory ----

/// How records and pages share memory, in sixteenths. Pages, the second, have three quarters at
/// most: new records need room whatever is read. With a higher limit scans would leave writers no
/// clean records to evict.
pub(crate) const SHARES: Rules = Rules { ratio: 2.0, step: 4, most: 12 };

/// How page filters, the second, share memory with records and pages, in sixteenths. They have half
/// at most: those of 64 byte records take a 20th of what the pages take, so more would belong to
/// data that no memory helps much.
pub(crate) const FILTER_SHARES: Rules = Rules { ratio: 2.0, step: 2, most: 8 };

/// Least memory of a keyspace whose inserts are forecast, in bytes. What forecasting keeps, about
/// 88 KiB, would be more than a third of less, and most of the floor of a small keyspace among
/// many. With a higher limit keyspaces of medium size get no room where their inserts come.
const FORECAST_MEMORY_MIN: u64 = 240 << 10;

/// Most pages of buffers that wait for the next batch: 2 MiB. With more, memory waits that the
/// caches could use; with fewer, batches allocate their buffers each time.
const BUFFER_PAGES_MAX: usize = 512;

/// Bytes of a keyspace's memory for each byte of such buffers, which bounds them where memory is
/// small. A smaller number takes memory from the caches of small keyspaces.
const BUFFERS_SHARE: u64 = 32;

/// Buffers that wait in bursts of writes, as a multiple of those that wait otherwise; they count as
/// I/O under way. With a larger number bursts exceed what is set aside for I/O.
pub(crate) const BUFFERS_BURST: usize = 2;

/// The heap grows by one part in this many more than the index asks for, because the general
/// allocator keeps what the index's many small allocations give back. Measured: 15.0 MiB of heap
/// for 11.4 MiB of index. Too large a number lets the process exceed its budget, too small a one
/// wastes memory.
const INDEX_HEAP_PART: u64 = 3;

/// Whether a keyspace with this many bytes of memory forecasts inserts.
pub(crate) fn has_memory_for_forecasts(memory: u64) -> bool {
    memory >= FORECAST_MEMORY_MIN
}

/// Pages of buffers that a keyspace with this many bytes of memory keeps when nothing is written.
pub(crate) fn buffer_pages(memory: u64) -> usize {
    let pages = usize::try_from(memory / BUFFERS_SHARE).unwrap_or(usize::MAX) / PAGE_BYTES;
    pages.min(BUFFER_PAGES_MAX)
}

/// Bytes of memory that an index takes which has asked for `bytes` of it at most.
pub(crate) fn index_taken(bytes: u64) -> u64 {
    bytes + bytes / INDEX_HEAP_PART
}

/// Whether a cache with `bytes` has filled its share: all but an eighth of it, since shards are not
/// equally full.
pub(crate) fn is_filled(bytes: u64, share: u64) -> bool {
    bytes >= share / 8 * 7
}

/// Bits of a page filter for each key of its page: one absent key in 200 passes. With fewer bits
/// more pass; with more, the filters of fewer pages fit.
pub(crate) const FILTER_BITS_PER_KEY: u32 = 12;

/// Bytes of a keyspace's memory for each shard of its page filters, at most [`FILTER_SHARDS_MAX`].
/// With more bytes, more threads meet in one shard; with fewer, small keyspaces have shards that
/// hold nothing.
const BYTES_PER_FILTER_SHARD: u64 = 512 << 10;
const FILTER_SHARDS_MAX: u64 = 64;

/// Bytes that a keyspace's memory may reach for each shard of its page cache, at most
/// [`PAGE_SHARDS_MAX`]. With more bytes, more scans meet in one shard; with fewer, the least size
/// of the cache grows.
const BYTES_PER_PAGE_SHARD: u64 = 4 << 20;
const PAGE_SHARDS_MAX: u64 = 16;

/// Bytes that a keyspace's memory may reach for each stripe of its locks: what has little memory
/// has little at once that could be locked. With more bytes, unrelated pages wait for each other;
/// with fewer, small keyspaces pay for locks that they do not need.
const BYTES_PER_STRIPE: u64 = 4096;

/// Fewest and most stripes of locks. Few where schedules are tried, because every lock costs there.
pub(crate) const STRIPES_MIN: usize = 64;
const STRIPES_MAX: usize = if cfg!(feature = "shuttle") { 64 } else { 4096 };

/// Shards of the page filters of a keyspace with `memory` bytes: a power of two.
pub(crate) fn filter_shards(memory: u64) -> usize {
    1 << (memory / BYTES_PER_FILTER_SHARD).clamp(1, FILTER_SHARDS_MAX).ilog2()
}

/// Shards of the page cache of a keyspace that may get `memory` bytes: a power of two.
pub(crate) fn page_shards(memory: u64) -> usize {
    1 << (memory / BYTES_PER_PAGE_SHARD).clamp(1, PAGE_SHARDS_MAX).ilog2()
}

/// Stripes of the locks of a keyspace that may get `memory` bytes: a power of two.
pub(crate) fn lock_stripes(memory: u64) -> usize {
    let stripes = usize::try_from(memory / BYTES_PER_STRIPE).unwrap_or(STRIPES_MAX);
    stripes.clamp(STRIPES_MIN, STRIPES_MAX).next_power_of_two()
}

// ---- Forecasts ----

/// Inserts of one epoch of forecasting. A hot place must be known when its first records are
/// written back, a thousand or so: then they get their room at once. Longer epochs know it too
/// late, shorter ones take chance for a trend.
pub(crate) const FORECAST_EPOCH_INSERTS: u64 = 2_000;

/// Epochs of inserts that room is left for. With more, hot places that moved on leave it unused: 25
/// took 58 % more pages for `drift`, for the same number of reorganizations.
pub(crate) const FORECAST_EPOCHS: u32 = 8;

/// Records that share one forecast of the room beside them: what a page holds or so. With more, a
/// hot place shares its room with cold neighbours; with fewer, forecasts take longer.
pub(crate) const FORECAST_RECORDS: usize = 32;

/// Most room that is left, in times of what the records take. A forecast that is wrong costs no
/// more space than that; with a smaller number hot places are full again soon.
pub(crate) const ROOM_TIMES_MAX: f64 = 8.0;

/// Most inserts that room is left for, as a share of the records that there are. However wrong
/// forecasts are, no more space is left unused; with a smaller share small keyspaces that grow get
/// little room.
const FORECAST_SHARE_MAX: f64 = 0.25;

/// How many times the bytes of `now` records they need with those that are expected.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(crate) fn room_for(now: usize, expected: f64) -> f64 {
    ((now as f64 + expected.max(0.0)) / now.max(1) as f64).clamp(1.0, ROOM_TIMES_MAX)
}

/// The share of a forecast that room is left for, where `expected` inserts are forecast for a
/// keyspace of about `records` records: all of it, unless that is much beside these.
pub(crate) fn believed(records: f64, expected: f64) -> f64 {
    if expected > 0.0 { (records * FORECAST_SHARE_MAX / expected).min(1.0) } else { 0.0 }
}

/// The share of new keys among `dirty` records that were written back to a region, of which `new`
/// had keys that were not there. All were counted as inserts when they were put; without any, those
/// are believed.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(crate) fn new_share(new: usize, dirty: usize) -> f64 {
    ((new + 1) as f64 / (dirty + 1) as f64).min(1.0)
}

// ---- Layout of pages ----

/// How much of a page is filled where there is to be room for inserts, in percent. With more, pages
/// get overflow pages sooner; with less, every scan reads more pages.
const ROOM_FILL_PERCENT: usize = 82;

/// Where a page holds no more records than this it is filled whole: one place left free is too much
/// of it. Inserts get an overflow page there, and a page where they were forecast.
const FEW_RECORDS: usize = 4;

/// How much of a packed page is left free, in percent, in whole records, rounded down. With more,
/// scans read more pages; with less, the next update that grows needs an overflow page.
const PACKED_FREE_PERCENT: usize = 8;

/// How full the pages behind an append are made, in percent: nothing will be inserted there. With
/// less, space stays unused for good.
const FILL_APPEND_PERCENT: usize = 96;

/// Records that a page gets which could hold `fit` and is to have room for inserts.
pub(crate) fn filled_with_room(fit: usize) -> usize {
    if fit <= FEW_RECORDS { fit } else { (fit * ROOM_FILL_PERCENT + 50) / 100 }
}

/// Records that a page gets which could hold `fit` and is packed.
pub(crate) fn filled_packed(fit: usize) -> usize {
    fit - fit * PACKED_FREE_PERCENT / 100
}

/// Bytes that a page behind an append gets, of `room`.
pub(crate) fn filled_by_appends(room: usize) -> usize {
    room * FILL_APPEND_PERCENT / 100
}

// ---- Reorganization ----

/// Most pages, overflow pages included, that one reorganization reads; the segment that it is for
/// takes part in any case. More pages take more memory and lock neighbours for longer; with fewer,
/// one reorganization spares fewer others.
pub(crate) const REGION_PAGES_MAX: usize = 64;

/// Most segments that wait for a look whether they may take fewer pages. It bounds the list's
/// memory; segments beyond it are noticed again when they change.
pub(crate) const SPARSE_MAX: usize = 4096;

/// Segments that one writer may join for room that a full disk refused it. With fewer, writes fail
/// although room could be had; with more, a write takes longer to fail.
pub(crate) const ROOM_STEPS_MAX: usize = 64;

/// Attempts to compact a region that writers change meanwhile. With more a busy region holds a
/// compaction up, with fewer it is left as it is.
pub(crate) const COMPACT_TRIES_MAX: usize = 3;

/// Most neighbours on each side that take part in a reorganization. With more, segments are
/// rewritten that gain little; with fewer, the next ones are reorganized by themselves soon.
pub(crate) const REGION_RADIUS: usize = 5;

/// A segment of fewer pages is small: with staged pages it is better joined to its neighbours. With
/// a larger number more is rewritten, with a smaller one the index keeps many small segments.
pub(crate) const SMALL_SEGMENT_PAGES: usize = 4;

/// A reorganization with this many bytes of dirty records takes no more, which bounds its memory.
/// With less, segments with many dirty records are written again soon.
pub(crate) const REGION_DIRTY_BYTES_MAX: usize = 512 << 10;

/// Up to this many pages it is worth rewriting them to have one fewer; of more pages a fourth must
/// be saved, because rewriting the others costs as much as it saves later. With a larger number
/// more is rewritten, with a smaller one half empty segments stay.
const SHRUNK_PAGES_FEW: usize = 9;

/// Segments that are looked at whether they may shrink before other background work continues. With
/// fewer, the head of a queue, which leaves nearly empty segments behind as fast as they are
/// written, is not followed; with more, other work waits.
pub(crate) const SHRUNK_AT_ONCE: usize = 16;

/// Whether it is worth rewriting `now` pages that would become `then`, because they are half empty.
pub(crate) fn shrinking_pays(now: usize, then: usize) -> bool {
    if now > SHRUNK_PAGES_FEW { then * 4 <= now * 3 } else { then < now }
}

/// Whether it is worth packing `now` pages that would become `then`: a tenth fewer, once for all,
/// for every scan from then on.
pub(crate) fn packing_pays(now: usize, then: usize) -> bool {
    then < now && then * 10 <= now * 9
}

// ---- Scans ----

/// Most pages of one batch of a scan, without overflow pages: 256 KiB. A scan that wants this many
/// at a time continues to more of them, and would only drive the favourites of others out of the
/// page cache. With more, a scan takes more memory at a time; with fewer, it waits for the disk
/// more often.
pub(crate) const SCAN_PAGES_MAX: usize = 64;

/// Removals in one run of pages that are worth writing back once a scan met them, so that the next
/// one finds fewer. With fewer, pages are written for little; with more, each scan passes them.
pub(crate) const SCAN_REMOVED_MAX: usize = 16;

/// Records that a page is taken to hold before any was scanned. With more, a first scan reads its
/// pages in several steps; with fewer, it reads pages that it does not need.
pub(crate) const RECORDS_PER_PAGE_EXPECTED: u64 = 16;

/// Pages that are likely to hold what a scan still wants: `records` records, of which a page holds
/// `per_page`, and no more than `bytes` bytes.
pub(crate) fn pages_wanted(records: usize, per_page: usize, bytes: usize) -> usize {
    records.div_ceil(per_page).min(bytes.div_ceil(PAGE_BYTES)).clamp(1, SCAN_PAGES_MAX)
}

// ---- Tidying ----

/// Turns in a row in which the background must have found nothing to do before it tidies. With
/// fewer, tidying begins in the pauses of a load, whose next inserts undo it; with more, it begins
/// late.
pub(crate) const QUIET_ROUNDS: u32 = 4;

/// Shortest rest between two reorganizations of tidying. Without it a fast disk would be asked
/// without pause, beside readers.
pub(crate) const REST_MIN: Duration = Duration::from_millis(1);

/// Packing rests this many times shorter than a reorganization took. It ends, and what waits behind
/// it in the disk's queue for a moment has its pages back soon. With a larger number readers wait
/// more often, with a smaller one packing takes longer.
pub(crate) const PACKING_PER_REST: u32 = 4;

/// While inserts come, overflow pages are merged when there is one for this many pages. With a
/// larger number segments are rewritten for few overflow pages, with a smaller one scans read more
/// of these.
pub(crate) const OVERFLOW_SHARE: u64 = 128;

/// Pages are packed when one in this many was made since by others. With a larger number much is
/// read again that is packed already, with a smaller one more room stays unused.
pub(crate) const REMADE_SHARE: u64 = 8;

/// Most regions that are passed by behind one that is full enough. With more, what could be packed
/// is met late; with fewer, more is read that is packed already.
pub(crate) const PASSED_BY_MAX: usize = 31;

/// How long inserts and scans are watched before they count. A shorter time takes a pause for the
/// end of a load.
pub(crate) const WATCH_MIN: Duration = Duration::from_secs(1);

/// Inserts are few if there is one for each page in this many seconds: then room for them is of no
/// use. With a smaller number pages are packed that inserts fill again.
pub(crate) const FEW_SECONDS: u128 = 1000;

/// Inserts are many if there is one for each page in this many seconds: pages that were just made
/// would have overflow pages again. With a larger number hardly anything is merged while inserts
/// come.
pub(crate) const MANY_SECONDS: u128 = 16;

/// Scans outweigh inserts if they read this many pages for each. One insert costs as much as a page
/// read and a segment rewritten, and packing saves a scan a fourth of its pages. With a smaller
/// number inserts pay for scans, with a larger one scans read half empty pages.
pub(crate) const SCANNED_PER_INSERT: u64 = 16;

/// Whether `beside` pages beside an extent of `base_pages` are worth rewriting it: one for every
/// four.
pub(crate) fn is_untidy(beside: usize, base_pages: usize) -> bool {
    beside > 0 && 4 * beside >= base_pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_noticed_once_for_each_thousand() {
        let noticed: Vec<usize> = (1..=4096).filter(|entries| is_long_list(*entries)).collect();
        assert_eq!(noticed, [1024, 2048, 3072, 4096]);
    }

    #[test]
    fn buffers_follow_memory_up_to_two_mebibytes() {
        for (memory, pages) in [
            (0, 0),
            (128 << 10, 1),
            (1 << 20, 8),
            (63 << 20, 504),
            (64 << 20, 512),
            (u64::MAX, 512),
        ] {
            assert_eq!(buffer_pages(memory), pages, "{memory} bytes of memory");
        }
    }

    #[test]
    fn forecasts_need_memory() {
        for (memory, has) in [(0, false), ((240 << 10) - 1, false), (240 << 10, true)] {
            assert_eq!(has_memory_for_forecasts(memory), has, "{memory} bytes");
        }
    }

    #[test]
    fn an_index_takes_a_third_more_than_it_asks_for() {
        for (asked, taken) in [(0, 0), (2, 2), (3, 4), (12 << 20, 16 << 20)] {
            assert_eq!(index_taken(asked), taken);
        }
    }

    #[test]
    fn a_cache_is_filled_but_for_an_eighth() {
        for (bytes, share, filled) in
            [(0, 0, true), (0, 8, false), (6, 8, false), (7, 8, true), (700, 800, true)]
        {
            assert_eq!(is_filled(bytes, share), filled, "{bytes} of {share}");
        }
    }

    /// Pages of 4,000 bytes, as far as records can use them.
    const CAPACITY: usize = 4000;

    #[test]
    fn emptier_pages_make_segments_shrink() {
        for (used, needless) in [(0, true), (2400, true), (2401, false), (8000, false)] {
            assert_eq!(is_overflow_needless(used, CAPACITY), needless, "{used} bytes");
        }
        // Steps of 500 bytes, in the lower half.
        for (before, now, fell) in [
            (4000, 2000, false),
            (4000, 1999, true),
            (2000, 1999, true),
            (1999, 1500, false),
            (1500, 1499, true),
            (1499, 1500, false),
            (100, 0, false),
        ] {
            assert_eq!(fell_by_a_step(before, now, CAPACITY), fell, "{before} to {now}");
        }
    }

    #[test]
    fn long_new_records_are_staged() {
        // Records of 64 bytes, 128 bytes, half a KiB, 1 KiB.
        for (bytes, long) in [(64, false), (128, false), (499, false), (500, true), (1024, true)] {
            assert_eq!(are_long(10 * bytes, 10, CAPACITY), long, "{bytes} bytes");
        }
        for (records, pages, burst) in
            [(11, 16, false), (12, 16, true), (320, 16, true), (321, 16, false), (21, 1, false)]
        {
            assert_eq!(is_burst(records, pages), burst, "{records} records of {pages} pages");
        }
        for (base_pages, most) in [(0, 1), (1, 1), (2, 1), (4, 2), (16, 8)] {
            assert_eq!(staged_pages_max(base_pages), most, "{base_pages} pages");
        }
        for (new, all, high) in
            [(0, 0, false), (63, 63, false), (64, 64, true), (56, 64, true), (55, 64, false)]
        {
            assert_eq!(are_new(new, all), high, "{new} of {all}");
        }
    }

    #[test]
    fn shards_and_stripes_follow_memory() {
        for (memory, filters, pages) in
            [(0, 1, 1), (1 << 20, 2, 1), (10 << 20, 16, 2), (100 << 20, 64, 16), (u64::MAX, 64, 16)]
        {
            assert_eq!((filter_shards(memory), page_shards(memory)), (filters, pages), "{memory}");
        }
        for (memory, stripes) in [(0, 64), (1 << 20, 256), (5 << 20, 2048), (u64::MAX, 4096)] {
            assert_eq!(lock_stripes(memory), stripes.min(STRIPES_MAX), "{memory} bytes");
        }
    }

    #[test]
    fn pages_have_room_where_inserts_come() {
        // Records of 1 KiB, 700, 128 and 64 bytes.
        for (fit, room, packed) in [(3, 3, 3), (5, 4, 5), (29, 24, 27), (54, 44, 50)] {
            assert_eq!((filled_with_room(fit), filled_packed(fit)), (room, packed), "{fit}");
        }
        assert_eq!(filled_by_appends(CAPACITY), 3840);
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "powers of two")]
    fn forecasts_are_believed_up_to_a_share() {
        for (now, expected, times) in
            [(32, 0.0, 1.0), (32, -5.0, 1.0), (32, 32.0, 2.0), (32, 1e9, 8.0), (0, 0.0, 1.0)]
        {
            assert_eq!(room_for(now, expected), times, "{expected} beside {now}");
        }
        for (records, expected, share) in
            [(1000.0, 0.0, 0.0), (1000.0, 100.0, 1.0), (1000.0, 500.0, 0.5), (0.0, 1.0, 0.0)]
        {
            assert_eq!(believed(records, expected), share, "{expected} beside {records}");
        }
        for (new, dirty, share) in [(0, 0, 1.0), (0, 15, 1.0 / 16.0), (15, 15, 1.0), (7, 15, 0.5)] {
            assert_eq!(new_share(new, dirty), share, "{new} of {dirty}");
        }
    }

    #[test]
    fn rewriting_must_pay() {
        for (now, then, shrink, pack) in [
            (2, 1, true, true),
            (2, 2, false, false),
            (9, 8, true, true),
            (10, 8, false, true),
            (10, 9, false, true),
            (12, 9, true, true),
            (64, 58, false, false),
            (64, 57, false, true),
            (64, 48, true, true),
        ] {
            assert_eq!((shrinking_pays(now, then), packing_pays(now, then)), (shrink, pack));
        }
        for (beside, base_pages, untidy) in
            [(0, 0, false), (0, 16, false), (3, 16, false), (4, 16, true), (1, 0, true)]
        {
            assert_eq!(is_untidy(beside, base_pages), untidy, "{beside} beside {base_pages}");
        }
    }

    #[test]
    fn scans_read_what_they_are_likely_to_need() {
        for (records, per_page, bytes, pages) in [
            (0, 16, 1 << 20, 1),
            (1, 16, 1 << 20, 1),
            (100, 16, 1 << 20, 7),
            (100, 1, 1 << 20, 64),
            (100, 1, 10_000, 3),
            (usize::MAX, 50, usize::MAX, 64),
        ] {
            assert_eq!(pages_wanted(records, per_page, bytes), pages, "{records} in {bytes} bytes");
        }
    }
}
