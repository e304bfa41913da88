//! Policy: the numbers by which the engine decides, and the decisions that are arithmetic alone.
//!
//! A number that follows from a format, or from how one module works inside, stays in that module.

use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_records::Rules;

// ---- Write-back ----

/// Pages of one batch of background write-back. One half of a double-write area protects so many: with
/// more a batch would need two syncs of the area, with fewer each sync would serve fewer pages.
pub(crate) const BATCH_PAGES: usize = spinney_extent::double_write::HALF_PAGES;

/// Pages that a writer writes back itself when it finds no clean record to evict, and segments that a
/// checkpoint with time does at once. A compromise: with more the writer waits longer, with fewer it has
/// to do so more often. Where each batch costs a sync, [`BATCH_PAGES`] applies instead.
pub(crate) const FEW_PAGES: usize = 8;

/// Entries of a dirty list after each multiple of which its segment is written back soon. Keys that arrive
/// in order all belong to the last segment, which must not wait for the CLOCK hand. Too small a number
/// writes pages back for few records each, too large a one makes lists that a batch cannot take.
const LONG_LIST: usize = 1024;

/// Long dirty lists that the background may be behind with before writers help. With more, lists grow
/// while the background is busy; with fewer, writers wait for what the background would do.
pub(crate) const LONG_LISTS_MAX: usize = 2;

/// Whether a dirty list that has just reached this many entries is to be written back soon.
#[inline]
pub(crate) fn is_long_list(entries: usize) -> bool {
    entries.is_multiple_of(LONG_LIST)
}

/// Most dirty records that one batch takes of one segment. It bounds the batch's memory; with fewer, a
/// segment with many is written more often.
pub(crate) const TARGET_RECORDS_MAX: usize = 2048;

/// Oldest entries of a dirty list that a batch takes however long the records are: 500 KiB of the longest.
/// With more, long records take more memory than [`BATCH_BYTES_MAX`] bounds; with fewer, more batches are
/// needed.
pub(crate) const TARGET_RECORDS_MIN: usize = 128;

/// A batch with this many bytes of dirty records takes no more. It bounds the batch's memory; with less, a
/// batch writes fewer pages for its sync.
pub(crate) const BATCH_BYTES_MAX: usize = 256 << 10;

// ---- Memory ----

/// How records and pages share memory, in sixteenths. Pages, the second, have three quarters at most: new
/// records need room whatever is read. With a higher limit scans would leave writers no clean records to
/// evict.
pub(crate) const SHARES: Rules = Rules { ratio: 2.0, step: 4, most: 12 };

/// How page filters, the second, share memory with records and pages, in sixteenths. They have half at
/// most: those of 64 byte records take a 20th of what the pages take, so more would belong to data that
/// no memory helps much.
pub(crate) const FILTER_SHARES: Rules = Rules { ratio: 2.0, step: 2, most: 8 };

/// Least memory of a keyspace whose inserts are forecast, in bytes. What forecasting keeps, about 88 KiB,
/// would be more than a third of less, and most of the floor of a small keyspace among many. With a higher
/// limit keyspaces of medium size get no room where their inserts come.
const FORECAST_MEMORY_MIN: u64 = 240 << 10;

/// Most pages of buffers that wait for the next batch: 2 MiB. With more, memory waits that the caches
/// could use; with fewer, batches allocate their buffers each time.
const BUFFER_PAGES_MAX: usize = 512;

/// Bytes of a keyspace's memory for each byte of such buffers, which bounds them where memory is small. A
/// smaller number takes memory from the caches of small keyspaces.
const BUFFERS_SHARE: u64 = 32;

/// Buffers that wait in bursts of writes, as a multiple of those that wait otherwise; they count as I/O
/// under way. With a larger number bursts exceed what is set aside for I/O.
pub(crate) const BUFFERS_BURST: usize = 2;

/// The heap grows by one part in this many more than the index asks for, because the general allocator
/// keeps what the index's many small allocations give back. Measured: 15.0 MiB of heap for 11.4 MiB of
/// index. Too large a number lets the process exceed its budget, too small a one wastes memory.
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

// ---- Forecasts ----

/// Inserts of one epoch of forecasting. A hot place must be known when its first records are written
/// back, a thousand or so: then they get their room at once. Longer epochs know it too late, shorter ones
/// take chance for a trend.
pub(crate) const FORECAST_EPOCH_INSERTS: u64 = 2_000;

/// Epochs of inserts that room is left for. With more, hot places that moved on leave it unused: 25 took
/// 58 % more pages for `drift`, for the same number of reorganizations.
pub(crate) const FORECAST_EPOCHS: u32 = 8;

// ---- Reorganization ----

/// Most pages, overflow pages included, that one reorganization reads; the segment that it is for takes
/// part in any case. More pages take more memory and lock neighbours for longer; with fewer, one
/// reorganization spares fewer others.
pub(crate) const REGION_PAGES_MAX: usize = 64;

/// Most segments that wait for a look whether they may take fewer pages. It bounds the list's memory;
/// segments beyond it are noticed again when they change.
pub(crate) const SPARSE_MAX: usize = 4096;

/// Segments that one writer may join for room that a full disk refused it. With fewer, writes fail
/// although room could be had; with more, a write takes longer to fail.
pub(crate) const ROOM_STEPS_MAX: usize = 64;

/// Attempts to compact a region that writers change meanwhile. With more a busy region holds a compaction
/// up, with fewer it is left as it is.
pub(crate) const COMPACT_TRIES_MAX: usize = 3;

// ---- Tidying ----

/// Turns in a row in which the background must have found nothing to do before it tidies. With fewer,
/// tidying begins in the pauses of a load, whose next inserts undo it; with more, it begins late.
pub(crate) const QUIET_ROUNDS: u32 = 4;

/// Shortest rest between two reorganizations of tidying. Without it a fast disk would be asked without
/// pause, beside readers.
pub(crate) const REST_MIN: Duration = Duration::from_millis(1);

/// Packing rests this many times shorter than a reorganization took. It ends, and what waits behind it in
/// the disk's queue for a moment has its pages back soon. With a larger number readers wait more often,
/// with a smaller one packing takes longer.
pub(crate) const PACKING_PER_REST: u32 = 4;

/// While inserts come, overflow pages are merged when there is one for this many pages. With a larger
/// number segments are rewritten for few overflow pages, with a smaller one scans read more of these.
pub(crate) const OVERFLOW_SHARE: u64 = 128;

/// Pages are packed when one in this many was made since by others. With a larger number much is read
/// again that is packed already, with a smaller one more room stays unused.
pub(crate) const REMADE_SHARE: u64 = 8;

/// Most regions that are passed by behind one that is full enough. With more, what could be packed is met
/// late; with fewer, more is read that is packed already.
pub(crate) const PASSED_BY_MAX: usize = 31;

/// How long inserts and scans are watched before they count. A shorter time takes a pause for the end of
/// a load.
pub(crate) const WATCH_MIN: Duration = Duration::from_secs(1);

/// Inserts are few if there is one for each page in this many seconds: then room for them is of no use.
/// With a smaller number pages are packed that inserts fill again.
pub(crate) const FEW_SECONDS: u128 = 1000;

/// Inserts are many if there is one for each page in this many seconds: pages that were just made would
/// have overflow pages again. With a larger number hardly anything is merged while inserts come.
pub(crate) const MANY_SECONDS: u128 = 16;

/// Scans outweigh inserts if they read this many pages for each. One insert costs as much as a page read
/// and a segment rewritten, and packing saves a scan a fourth of its pages. With a smaller number inserts
/// pay for scans, with a larger one scans read half empty pages.
pub(crate) const SCANNED_PER_INSERT: u64 = 16;

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
}
