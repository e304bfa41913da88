//! The tail: records that the kernel, or persistent memory, has before any run holds them. A commit
//! that waits only for the kernel ([`Durability::Buffered`](crate::Durability::Buffered)) then
//! writes no block, and where the file can be mapped it makes no system call. Where the mapping is
//! persistent memory this holds for [`Durability::Sync`](crate::Durability::Sync) too.
//!
//! A file beside the log, with one of three media. It is mapped into memory where a store never needs
//! room of the file system; elsewhere, and where that is unknown, each frame is written to the page
//! cache, by one call. The third is a mapping of persistent memory, below. Frames and recovery are
//! the same with all. Each buffer of the log has two areas of it, one for what gathers and one for
//! what is being written, and each record that comes into the buffer is stored in the area as well,
//! in a frame:
//!
//! ```text
//! wal-tail:   page 0   | buffer 0, area 0 | buffer 0, area 1 | buffer 1, area 0 | ...
//!             header   | frame frame frame ... what is left of earlier frames
//!
//! header                                              frame, at a multiple of 8, or of 64
//! offset size field                                   offset size field
//!      0    8 checksum  of bytes 8..32, by the tag         0    8 checksum  of the record, by tag, epoch, LSN, length
//!      8    4 magic     "SPWT": frames at multiples of 8   8    8 LSN
//!                       "SPWL": at multiples of 64        16    8 length    of the record in bytes
//!     12    4 epoch     the life whose frames count       24    n record    as in a run's stream, then zeros up to 8
//!     16    4 areas     how many there are
//!     20    4 pages     of each area
//!     24    4 kind      1: each frame was on stable storage before the next one of its area; else 0
//!     28    4 reserved  zero
//!   2048   32 the same once more
//! ```
//!
//! The header stands twice in its page, so that a damaged byte is distinguished from a header that was never
//! written: with both damaged the file is refused, for frames that were promised may lie behind it
//! (rule P28). Released formats have it once. Programs that do not know a magic refuse the file.
//!
//! When the buffers are stolen and written as a run, the areas change places; what an area held is
//! stored over only after its run was given to the kernel. So at any moment runs and frames
//! together have every record that was kept.
//!
//! **Recovery** takes the log's runs first, and behind them the frames whose LSNs continue without
//! a gap. It appends these to the log and makes them durable, and only then does the header get the
//! new life's epoch, with a sync. A crash before that finds the same frames again, less those that
//! the log has by then. A frame that was half stored, or lost with the power, ends what is taken:
//! no commit acknowledged it, or only that it survives the end of the process.
//!
//! **Persistent memory** (Index-Organized, section 5.3). Frames begin on cache lines, so that no
//! line is written back for two records:
//!
//! ```text
//! line      0               1               2               3               4
//! area      | checksum LSN length record ... | frame         | frame ...     | an earlier frame
//!           <-- one commit: store, write back ceil((24 + n) / 64) lines, fence -->
//! ```
//!
//! An append stores the frame, writes back its lines and fences once, before it unlocks its buffer.
//! So a `Sync` commit is done when every record up to its own is in a frame, or in a run that was
//! synced. Two things are stricter than on other media: the header is durable before the first
//! frame counts, and an area is stored over only after its run was *synced*
//! ([`Log::write_out`](crate::Log)), because its frames are the durable copy until then. Pages still
//! wait for runs (rule P10). The header's two copies are written one after the other, because memory
//! may tear any of them at 8 bytes.
//!
//! So a frame that is damaged although a later one follows in its area was promised: the file is
//! refused. Only damage to the last frame of an area looks like a frame that was on its way (as in the
//! last run, rule P7).
//!
//! Differs from the paper: it keeps LSNs in segment files of their own, an entry of 8 bytes for each
//! record, which are one more line to write back. Our frames name their LSN, and LSNs have no gaps.
//! Its blocks belong to threads and are never emptied; our areas belong to buffers and are emptied by
//! runs. See decision 0029.
//!
//! Invariants: (1) frames of a life that ended never count again: their checksums are of another
//! epoch than the header's. (2) In an area LSNs grow; where they do not, older frames begin. (3) A
//! record that no area had room for, or that could not be written to one, is written in a run
//! before any commit at or behind it answers ([`Buffers::holds`](crate::buffers::Buffers::holds)).
//! (4) In persistent memory a frame is on the medium before the next one of its area is stored.
//!
//! Except in persistent memory the file is never synced but for the header, and a disk without it has
//! lost nothing that was promised to be on stable storage. It has no room of its own before the
//! first commit that wants it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Epoch, Error, Lsn, Result};
use spinney_io::{AlignedBuf, File, LINE_BYTES, Mapping, Purpose};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::bytes::{put_u32, put_u64, u32_at, u64_at};
use crate::options::LogMemory;

/// Where frames begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Words,
    Lines,
}

impl Align {
    fn magic(self) -> u32 {
        u32::from_le_bytes(match self {
            Align::Words => *b"SPWT",
            Align::Lines => *b"SPWL",
        })
    }

    fn of_magic(magic: u32) -> Option<Align> {
        [Align::Words, Align::Lines].into_iter().find(|align| align.magic() == magic)
    }

    /// Returns the bytes from the beginning of a frame to where the next one may begin.
    fn frame_bytes(self, record: usize) -> usize {
        (FRAME_HEADER_BYTES + record).next_multiple_of(match self {
            Align::Words => WORD_BYTES,
            Align::Lines => LINE_BYTES,
        })
    }
}

const CHECKSUM_AT: usize = 0;
const MAGIC_AT: usize = 8;
const EPOCH_AT: usize = 12;
const AREAS_AT: usize = 16;
const PAGES_AT: usize = 20;
const KIND_AT: usize = 24;
const HEADER_BYTES: usize = 32;
const HEADERS_AT: [usize; 2] = [0, PAGE_BYTES / 2];

const LSN_AT: usize = 8;
const LENGTH_AT: usize = 16;
const FRAME_HEADER_BYTES: usize = 24;
const WORD_BYTES: usize = 8;

/// How a tail is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) areas: u32,
    /// Pages of each area.
    pub(crate) pages: u32,
}

impl Shape {
    fn area_bytes(self) -> usize {
        self.pages as usize * PAGE_BYTES
    }

    /// Returns the bytes of the whole file.
    fn bytes(self) -> usize {
        self.begin(self.areas as usize)
    }

    fn begin(self, area: usize) -> usize {
        PAGE_BYTES + area * self.area_bytes()
    }

    /// Returns whether a file of `bytes` bytes has all areas.
    fn fits(self, bytes: u64) -> bool {
        let pages = u64::from(self.areas) * u64::from(self.pages);
        self.pages > 0 && pages < bytes / PAGE_BYTES as u64
    }
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    /// The life whose frames count.
    epoch: Epoch,
    shape: Shape,
    align: Align,
    /// Whether each frame was on stable storage before the next one of its area.
    is_persistent: bool,
}

/// How frames get into the file.
#[derive(Debug)]
enum Medium {
    Mapped(Box<dyn Mapping>),
    /// Mapped, and each frame is written back and fenced.
    WrittenBack(Box<dyn Mapping>),
    Written(Arc<dyn File>),
}

/// What was written back of one area. It changes under the lock of the area's buffer.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counts {
    lines: AtomicU64,
    fences: AtomicU64,
}

/// The tail of the current life.
#[derive(Debug)]
pub(crate) struct Tail {
    medium: Medium,
    shape: Shape,
    align: Align,
    tag: u64,
    epoch: Epoch,
    counts: Box<[Counts]>,
}

impl Tail {
    /// Allocates the file, maps it where possible, and records there whose frames will count. In
    /// persistent memory that is durable on return.
    ///
    /// # Errors
    /// `Full` or `Io`; frames of this life do not count then.
    pub(crate) fn make(
        file: &Arc<dyn File>,
        (tag, epoch): (u64, Epoch),
        shape: Shape,
        memory: LogMemory,
    ) -> Result<Tail> {
        file.allocate(shape.bytes() as u64)?;
        let medium = match file.map(shape.bytes()) {
            Some(mapping) if memory.writes_back(mapping.is_persistent()) => {
                Medium::WrittenBack(mapping)
            }
            Some(mapping) => Medium::Mapped(mapping),
            None => Medium::Written(file.clone()),
        };
        let align = match medium {
            Medium::WrittenBack(_) => Align::Lines,
            Medium::Mapped(_) | Medium::Written(_) => Align::Words,
        };
        let counts = (0..shape.areas).map(|_| Counts::default()).collect();
        let tail = Tail { medium, shape, align, tag, epoch, counts };
        let is_persistent = tail.is_persistent();
        write_header(&**file, tag, Header { epoch, shape, align, is_persistent })?;
        Ok(tail)
    }

    /// Returns whether what it keeps is on stable storage.
    pub(crate) fn is_persistent(&self) -> bool {
        matches!(&self.medium, Medium::WrittenBack(memory) if memory.is_persistent())
    }

    /// Stores a record after the `used` bytes of an area, if it fits, and, where it is written, if
    /// the disk has space.
    pub(crate) fn keep(&self, area: usize, used: &mut usize, lsn: Lsn, record: &[u8]) -> bool {
        let bytes = self.align.frame_bytes(record.len());
        if *used + bytes > self.shape.area_bytes() {
            return false;
        }
        let mut header = [0; FRAME_HEADER_BYTES];
        put_u64(&mut header, CHECKSUM_AT, checksum(self.tag, self.epoch, lsn, record));
        put_u64(&mut header, LSN_AT, lsn.0);
        put_u64(&mut header, LENGTH_AT, record.len() as u64);
        let at = self.shape.begin(area) + *used;
        match &self.medium {
            Medium::Mapped(memory) => {
                memory.store(at, &header);
                memory.store(at + FRAME_HEADER_BYTES, record);
            }
            Medium::WrittenBack(memory) => {
                memory.store(at, &header);
                memory.store(at + FRAME_HEADER_BYTES, record);
                memory.write_back(at..at + FRAME_HEADER_BYTES + record.len());
                memory.fence();
                self.counts[area].count((bytes / LINE_BYTES) as u64);
            }
            Medium::Written(file) => {
                let mut frame = Vec::with_capacity(bytes);
                frame.extend_from_slice(&header);
                frame.extend_from_slice(record);
                frame.resize(bytes, 0);
                // Half a frame does not count; the next one overwrites it.
                if file.write_bytes(&frame, at as u64, Purpose::LOG).is_err() {
                    return false;
                }
            }
        }
        *used += bytes;
        true
    }

    /// Returns the bytes of memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self.medium {
            Medium::WrittenBack(_) if self.is_persistent() => 0,
            Medium::Mapped(_) | Medium::WrittenBack(_) => self.shape.bytes(),
            Medium::Written(_) => 0,
        }
    }

    /// Returns how many lines it has written back, and how often it has fenced.
    pub(crate) fn lines_and_fences(&self) -> (u64, u64) {
        let sum = |of: fn(&Counts) -> &AtomicU64| {
            self.counts.iter().map(|counts| of(counts).load(Relaxed)).sum()
        };
        (sum(|counts| &counts.lines), sum(|counts| &counts.fences))
    }

    /// Returns what it is kept in, for statistics.
    pub(crate) fn memory(&self) -> &'static str {
        match self.medium {
            Medium::WrittenBack(_) if self.is_persistent() => "persistent",
            Medium::WrittenBack(_) => "emulated",
            Medium::Mapped(_) => "mapped",
            Medium::Written(_) => "written",
        }
    }
}

impl Counts {
    fn count(&self, lines: u64) {
        // One thread at a time, so that no instruction needs to lock anything.
        self.lines.store(self.lines.load(Relaxed) + lines, Relaxed);
        self.fences.store(self.fences.load(Relaxed) + 1, Relaxed);
    }
}

/// Records that a tail has beyond the runs of its log.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The records behind the log's last one, as they were encoded.
    pub(crate) records: Vec<Vec<u8>>,
    /// Whether the file has a header that must be renewed.
    is_made: bool,
}

impl Kept {
    /// Reads the records in a file that follow record `last` without a gap.
    ///
    /// # Errors
    /// `Corruption` when it is of a later life than `newest`, the log's; `Io`.
    pub(crate) fn read(file: &dyn File, tag: u64, newest: Epoch, last: Lsn) -> Result<Kept> {
        let length = file.len()?;
        if length < PAGE_BYTES as u64 {
            return Ok(Kept::default());
        }
        let mut buf = AlignedBuf::new(1);
        file.read_at(buf.bytes_mut(), 0, Purpose::RECOVERY)?;
        let header = read_header(tag, buf.page(0)).map_err(|damaged| {
            let path = file.path().display();
            Error::corruption(path, damaged as u64, "the header of a tail", "something else")
        })?;
        // Without a header, the power failed before the header of a first life's tail was on the
        // media.
        let Some(header) = header else {
            return Ok(Kept { records: Vec::new(), is_made: true });
        };
        let Header { epoch, shape, .. } = header;
        if epoch > newest {
            let path = file.path().display();
            let found: &dyn Display = &format!("that of life {epoch}");
            return Err(Error::corruption(path, 0, format!("no tail after life {newest}"), found));
        }
        let mut frames = BTreeMap::new();
        // Otherwise the growth of the file was not on the media at the power loss, or nothing was
        // kept.
        if shape.fits(length) {
            let mut area = AlignedBuf::new(shape.pages as usize);
            for index in 0..shape.areas as usize {
                let begin = shape.begin(index) as u64;
                file.read_at(area.bytes_mut(), begin, Purpose::RECOVERY)?;
                let end = take_frames(area.bytes(), tag, &header, &mut frames);
                if header.is_persistent && is_hole(&area.bytes()[end..], (tag, epoch), last) {
                    let (path, at) = (file.path().display(), begin + end as u64);
                    let found = "a damaged one before whole ones";
                    return Err(Error::corruption(path, at, "a frame that was promised", found));
                }
            }
        } else if header.is_persistent {
            // Its size was durable before the header.
            let (path, found) = (file.path().display(), "its end");
            return Err(Error::corruption(path, length, "the areas of a tail", found));
        }
        let mut records = Vec::new();
        while let Some(record) = frames.remove(&Lsn(last.0 + 1 + records.len() as u64)) {
            records.push(record);
        }
        Ok(Kept { records, is_made: true })
    }

    /// Returns the bytes of all records.
    pub(crate) fn bytes(&self) -> u64 {
        self.records.iter().map(|record| record.len() as u64).sum()
    }

    /// Records durably that no frame of an earlier life than `epoch` counts.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub(crate) fn renew(&self, file: &dyn File, tag: u64, epoch: Epoch) -> Result<()> {
        if !self.is_made {
            return Ok(());
        }
        let (shape, align) = (Shape { areas: 0, pages: 0 }, Align::Words);
        write_header(file, tag, Header { epoch, shape, align, is_persistent: false })?;
        file.sync(Purpose::RECOVERY)
    }
}

/// Writes both copies of the header. Media tear a page in units of 512 bytes or more, so that none of
/// them is half written. Memory may tear each, so there the copy that counts is written last, when
/// the other one is durable. On return all is durable there, with the size of the file.
fn write_header(file: &dyn File, tag: u64, new: Header) -> Result<()> {
    let mut buf = AlignedBuf::new(1);
    for at in HEADERS_AT {
        let header = &mut buf.page_mut(0)[at..at + HEADER_BYTES];
        put_u32(header, MAGIC_AT, new.align.magic());
        put_u32(header, EPOCH_AT, new.epoch.0);
        put_u32(header, AREAS_AT, new.shape.areas);
        put_u32(header, PAGES_AT, new.shape.pages);
        put_u32(header, KIND_AT, u32::from(new.is_persistent));
        let checksum = xxh3_64_with_seed(&header[MAGIC_AT..], tag);
        put_u64(header, CHECKSUM_AT, checksum);
    }
    if !new.is_persistent && !file.is_persistent() {
        return file.write_at(buf.bytes(), 0, Purpose::LOG);
    }
    let mut page = AlignedBuf::new(1);
    file.read_at(page.bytes_mut(), 0, Purpose::LOG)?;
    for at in order(tag, page.page(0)) {
        file.write_bytes(&buf.page(0)[at..at + HEADER_BYTES], at as u64, Purpose::LOG)?;
        file.sync(Purpose::LOG)?;
    }
    Ok(())
}

/// Returns where the copies of the header are, the one that counts last. Without one, the second is
/// the first to be written.
fn order(tag: u64, page: &[u8]) -> [usize; 2] {
    let [first, second] = HEADERS_AT;
    let epoch = |at| read_copy(tag, page, at).map(|header| header.epoch);
    if epoch(second) > epoch(first) { [first, second] } else { [second, first] }
}

/// Returns a copy of the header, if it is whole.
fn read_copy(tag: u64, page: &[u8], at: usize) -> Option<Header> {
    let header = &page[at..at + HEADER_BYTES];
    let align = Align::of_magic(u32_at(header, MAGIC_AT))?;
    let shape = Shape { areas: u32_at(header, AREAS_AT), pages: u32_at(header, PAGES_AT) };
    let epoch = Epoch(u32_at(header, EPOCH_AT));
    let is_persistent = u32_at(header, KIND_AT) == 1;
    let fits = u64_at(header, CHECKSUM_AT) == xxh3_64_with_seed(&header[MAGIC_AT..], tag);
    fits.then_some(Header { epoch, shape, align, is_persistent })
}

/// Returns the newer of the two headers in a page; `None` if none was ever written, or if the second
/// copy was half written before there was a first.
///
/// # Errors
/// Where the first one is, if both are damaged or one is and the other was never written.
fn read_header(tag: u64, page: &[u8]) -> Result<Option<Header>, usize> {
    let mut newest: Option<Header> = None;
    let mut damaged = None;
    for at in HEADERS_AT {
        if let Some(copy) = read_copy(tag, page, at) {
            newest = newest.filter(|newest| newest.epoch >= copy.epoch).or(Some(copy));
        } else if page[at..at + HEADER_BYTES].iter().any(|byte| *byte != 0) {
            damaged = damaged.or(Some(at));
        }
    }
    match (newest, damaged) {
        (None, Some(at)) if at == HEADERS_AT[0] => Err(at),
        (newest, _) => Ok(newest),
    }
}

/// Takes the frames of an area, from its beginning to where older ones or none follow. Returns that
/// place.
fn take_frames(
    area: &[u8],
    tag: u64,
    header: &Header,
    frames: &mut BTreeMap<Lsn, Vec<u8>>,
) -> usize {
    let (mut at, mut before) = (0, Lsn::ZERO);
    while let Some((lsn, record)) = frame(area.get(at..).unwrap_or_default(), tag, header.epoch)
        && lsn > before
    {
        before = lsn;
        frames.insert(lsn, record.to_vec());
        at += header.align.frame_bytes(record.len());
    }
    at.min(area.len())
}

/// Returns the frame at the beginning of some bytes, if there is a whole one of this life.
fn frame(bytes: &[u8], tag: u64, epoch: Epoch) -> Option<(Lsn, &[u8])> {
    let (header, behind) = bytes.split_at_checked(FRAME_HEADER_BYTES)?;
    let lsn = Lsn(u64_at(header, LSN_AT));
    let length = usize::try_from(u64_at(header, LENGTH_AT)).ok().filter(|length| *length > 0)?;
    let record = behind.get(..length)?;
    let fits = u64_at(header, CHECKSUM_AT) == checksum(tag, epoch, lsn, record);
    fits.then_some((lsn, record))
}

/// Returns whether a frame that no run up to `last` has lies anywhere in the rest of an area. Older
/// frames, over which newer ones were stored, are in runs.
fn is_hole(rest: &[u8], (tag, epoch): (u64, Epoch), last: Lsn) -> bool {
    (0..rest.len()).step_by(LINE_BYTES).any(|at| {
        let bytes = &rest[at..];
        bytes.len() > FRAME_HEADER_BYTES
            && u64_at(bytes, LSN_AT) > last.0
            && frame(bytes, tag, epoch).is_some()
    })
}

/// Returns the checksum of a frame: its record's, seeded with everything that identifies the
/// record.
fn checksum(tag: u64, epoch: Epoch, lsn: Lsn, record: &[u8]) -> u64 {
    let mut seed = [0; 24];
    put_u64(&mut seed, 0, tag);
    put_u64(&mut seed, 8, lsn.0);
    put_u32(&mut seed, 16, epoch.0);
    // Records are far shorter than 2^32 bytes. A wrong length is found by the record's own bytes.
    xxh3_64_with_seed(record, xxh3_64_with_seed(&seed, record.len() as u64))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn frames_end_where_older_ones_begin() {
        for align in [Align::Words, Align::Lines] {
            frames_end_where_older_ones_begin_at(align);
        }
    }

    fn frames_end_where_older_ones_begin_at(align: Align) {
        let frame = |lsn: u64, epoch: u32, record: &[u8]| {
            let mut bytes = vec![0; FRAME_HEADER_BYTES];
            put_u64(&mut bytes, CHECKSUM_AT, checksum(7, Epoch(epoch), Lsn(lsn), record));
            put_u64(&mut bytes, LSN_AT, lsn);
            put_u64(&mut bytes, LENGTH_AT, record.len() as u64);
            bytes.extend_from_slice(record);
            bytes.resize(align.frame_bytes(record.len()), 0);
            bytes
        };
        let taken = |parts: &[Vec<u8>]| {
            let mut frames = BTreeMap::new();
            let shape = Shape { areas: 8, pages: 1 };
            let header = Header { epoch: Epoch(3), shape, align, is_persistent: false };
            take_frames(&parts.concat(), 7, &header, &mut frames);
            frames.into_iter().map(|(lsn, record)| (lsn.0, record)).collect::<Vec<_>>()
        };
        let (a, b) = (frame(5, 3, b"a"), frame(9, 3, b"longer than eight"));
        let both = [(5, b"a".to_vec()), (9, b"longer than eight".to_vec())];
        assert_eq!(taken(&[a.clone(), b.clone()]), both);
        assert_eq!(taken(&[a.clone(), b.clone(), frame(7, 3, b"c")]), both, "an older frame");
        assert_eq!(taken(&[a.clone(), frame(9, 2, b"b")]), both[..1], "of an earlier life");
        let end = FRAME_HEADER_BYTES + b"longer than eight".len();
        for cut in 0..end {
            let torn = [&a[..], &b[..cut]].concat();
            assert_eq!(taken(&[torn]), both[..1], "cut off at {cut}");
        }
        for byte in a.len()..a.len() + end {
            let mut rotten = [&a[..], &b[..]].concat();
            rotten[byte] ^= 1;
            assert_eq!(taken(&[rotten]), both[..1], "a flipped bit at {byte}");
        }
    }

    /// A header is written copy by copy where memory may tear each: at each moment one of them, or
    /// none, is what counts, also while one is torn already.
    #[test]
    fn p28_headers_torn_in_memory_are_no_damage() {
        const WORDS: usize = HEADER_BYTES / WORD_BYTES;
        let page = |epoch: u32| {
            let disk = spinney_io::sim::SimDisk::new(1);
            disk.create_dir(std::path::Path::new("/db")).unwrap();
            let file = disk.at("/db").open("f", spinney_io::OpenMode::CREATE.cached()).unwrap();
            let shape = Shape { areas: 8, pages: 1 };
            let (epoch, align) = (Epoch(epoch), Align::Lines);
            write_header(&*file, 7, Header { epoch, shape, align, is_persistent: false }).unwrap();
            disk.contents(std::path::Path::new("/db/f")).unwrap()
        };
        let epoch = |page: &[u8]| read_header(7, page).unwrap().map_or(0, |header| header.epoch.0);
        // Every state that a torn write of `epoch` over `page` leaves.
        let torn = |before: &[u8], new: &[u8]| {
            let mut now = before.to_vec();
            let mut states = Vec::new();
            for at in order(7, before) {
                for end in (0..=WORDS).map(|words| at + words * WORD_BYTES) {
                    now[at..end].copy_from_slice(&new[at..end]);
                    states.push(now.clone());
                }
            }
            states
        };
        let (mut states, mut tears) = (vec![vec![0; PAGE_BYTES]], 0);
        for next in 1..4 {
            let new = page(next);
            let mut after = std::collections::BTreeSet::new();
            for before in &states {
                for now in torn(before, &new) {
                    assert!([epoch(before), next].contains(&epoch(&now)));
                    after.insert(now);
                    tears += 1;
                }
            }
            states.extend(after);
        }
        assert!(tears > 100, "{tears}");
    }
}
