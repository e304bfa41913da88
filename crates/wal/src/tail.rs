//! The tail: records that the kernel has before any run holds them. A commit that waits only for
//! the kernel ([`Durability::Buffered`](crate::Durability::Buffered)) then writes no block, and
//! where the file can be mapped it makes no system call.
//!
//! A file beside the log, with one of two media. It is mapped into memory where a store never needs
//! room of the file system; elsewhere, and where that is unknown, each frame is written to the page
//! cache, by one call. Frames and recovery are the same with both. Each buffer of the log has two
//! areas of it, one for what gathers and one for what is being written, and each record that comes
//! into the buffer is stored in the area as well, in a frame:
//!
//! ```text
//! wal-tail:   page 0   | buffer 0, area 0 | buffer 0, area 1 | buffer 1, area 0 | ...
//!             header   | frame frame frame ... what is left of earlier frames
//!
//! header                                              frame, at a multiple of 8
//! offset size field                                   offset size field
//!      0    8 checksum  of bytes 8..32, by the tag         0    8 checksum  of the record, by tag, epoch, LSN, length
//!      8    4 magic     "SPWT"                             8    8 LSN
//!     12    4 epoch     the life whose frames count       16    8 length    of the record in bytes
//!     16    4 areas     how many there are                24    n record    as in a run's stream, then zeros up to 8
//!     20    4 pages     of each area
//!     24    8 reserved  zero
//!   2048   32 the same once more
//! ```
//!
//! The header stands twice in its page, so that a damaged byte is distinguished from a header that was never
//! written: with both damaged the file is refused, for frames that were promised may lie behind it
//! (rule P28). Released formats have it once.
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
//! Invariants: (1) frames of a life that ended never count again: their checksums are of another
//! epoch than the header's. (2) In an area LSNs grow; where they do not, older frames begin. (3) A
//! record that no area had room for, or that could not be written to one, is written in a run
//! before any commit at or behind it answers ([`Buffers::holds`](crate::buffers::Buffers::holds)).
//!
//! The file is never synced but for the header, and a disk without it has lost nothing that was
//! promised to be on stable storage. It has no room of its own before the first commit that wants
//! it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Epoch, Error, Lsn, Result};
use spinney_io::{AlignedBuf, File, Mapping, Purpose};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::bytes::{put_u32, put_u64, u32_at, u64_at};

const MAGIC: u32 = u32::from_le_bytes(*b"SPWT");

const CHECKSUM_AT: usize = 0;
const MAGIC_AT: usize = 8;
const EPOCH_AT: usize = 12;
const AREAS_AT: usize = 16;
const PAGES_AT: usize = 20;
const HEADER_BYTES: usize = 32;
const HEADERS_AT: [usize; 2] = [0, PAGE_BYTES / 2];

const LSN_AT: usize = 8;
const LENGTH_AT: usize = 16;
const FRAME_HEADER_BYTES: usize = 24;
const ALIGN: usize = 8;

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

/// How frames get into the file.
#[derive(Debug)]
enum Medium {
    Mapped(Box<dyn Mapping>),
    Written(Arc<dyn File>),
}

/// The tail of the current life.
#[derive(Debug)]
pub(crate) struct Tail {
    medium: Medium,
    shape: Shape,
    tag: u64,
    epoch: Epoch,
}

impl Tail {
    /// Allocates the file, maps it where possible, and records there whose frames will count.
    ///
    /// # Errors
    /// `Full` or `Io`; frames of this life do not count then.
    pub(crate) fn make(file: &Arc<dyn File>, tag: u64, epoch: Epoch, shape: Shape) -> Result<Tail> {
        file.allocate(shape.bytes() as u64)?;
        let medium = match file.map(shape.bytes()) {
            Some(memory) => Medium::Mapped(memory),
            None => Medium::Written(file.clone()),
        };
        write_header(&**file, tag, epoch, shape)?;
        Ok(Tail { medium, shape, tag, epoch })
    }

    /// Stores a record after the `used` bytes of an area, if it fits, and, where it is written, if
    /// the disk has space.
    pub(crate) fn keep(&self, area: usize, used: &mut usize, lsn: Lsn, record: &[u8]) -> bool {
        let bytes = FRAME_HEADER_BYTES + record.len().next_multiple_of(ALIGN);
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
            Medium::Mapped(_) => self.shape.bytes(),
            Medium::Written(_) => 0,
        }
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
        let Some((epoch, shape)) = header else {
            return Ok(Kept { records: Vec::new(), is_made: true });
        };
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
                file.read_at(area.bytes_mut(), shape.begin(index) as u64, Purpose::RECOVERY)?;
                take_frames(area.bytes(), tag, epoch, &mut frames);
            }
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
        write_header(file, tag, epoch, Shape { areas: 0, pages: 0 })?;
        file.sync(Purpose::RECOVERY)
    }
}

fn write_header(file: &dyn File, tag: u64, epoch: Epoch, shape: Shape) -> Result<()> {
    let mut buf = AlignedBuf::new(1);
    for at in HEADERS_AT {
        let header = &mut buf.page_mut(0)[at..at + HEADER_BYTES];
        put_u32(header, MAGIC_AT, MAGIC);
        put_u32(header, EPOCH_AT, epoch.0);
        put_u32(header, AREAS_AT, shape.areas);
        put_u32(header, PAGES_AT, shape.pages);
        let checksum = xxh3_64_with_seed(&header[MAGIC_AT..], tag);
        put_u64(header, CHECKSUM_AT, checksum);
    }
    file.write_at(buf.bytes(), 0, Purpose::LOG)
}

/// Returns the newer of the two headers in a page; `None` if none was ever written.
///
/// # Errors
/// Where the first one is, if both are damaged or one is and the other was never written.
fn read_header(tag: u64, page: &[u8]) -> Result<Option<(Epoch, Shape)>, usize> {
    let mut newest = None;
    let mut damaged = None;
    for at in HEADERS_AT {
        let header = &page[at..at + HEADER_BYTES];
        let checksum = xxh3_64_with_seed(&header[MAGIC_AT..], tag);
        if u32_at(header, MAGIC_AT) == MAGIC && u64_at(header, CHECKSUM_AT) == checksum {
            let shape = Shape { areas: u32_at(header, AREAS_AT), pages: u32_at(header, PAGES_AT) };
            let epoch = Epoch(u32_at(header, EPOCH_AT));
            newest = newest.filter(|(newest, _)| *newest >= epoch).or(Some((epoch, shape)));
        } else if header.iter().any(|byte| *byte != 0) {
            damaged = damaged.or(Some(at));
        }
    }
    match (newest, damaged) {
        (None, Some(at)) => Err(at),
        (newest, _) => Ok(newest),
    }
}

/// Takes the frames of an area, from its beginning to where older ones or none follow.
fn take_frames(area: &[u8], tag: u64, epoch: Epoch, frames: &mut BTreeMap<Lsn, Vec<u8>>) {
    let mut rest = area;
    let mut before = Lsn::ZERO;
    while let Some((header, behind)) = rest.split_at_checked(FRAME_HEADER_BYTES) {
        let lsn = Lsn(u64_at(header, LSN_AT));
        let Some(record) = usize::try_from(u64_at(header, LENGTH_AT))
            .ok()
            .filter(|length| *length > 0)
            .and_then(|length| behind.get(..length))
        else {
            return;
        };
        let fits = u64_at(header, CHECKSUM_AT) == checksum(tag, epoch, lsn, record);
        if !fits || lsn <= before {
            return;
        }
        before = lsn;
        frames.insert(lsn, record.to_vec());
        rest = behind.get(record.len().next_multiple_of(ALIGN)..).unwrap_or_default();
    }
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
        let frame = |lsn: u64, epoch: u32, record: &[u8]| {
            let mut bytes = vec![0; FRAME_HEADER_BYTES];
            put_u64(&mut bytes, CHECKSUM_AT, checksum(7, Epoch(epoch), Lsn(lsn), record));
            put_u64(&mut bytes, LSN_AT, lsn);
            put_u64(&mut bytes, LENGTH_AT, record.len() as u64);
            bytes.extend_from_slice(record);
            bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
            bytes
        };
        let taken = |parts: &[Vec<u8>]| {
            let mut frames = BTreeMap::new();
            take_frames(&parts.concat(), 7, Epoch(3), &mut frames);
            frames.into_iter().map(|(lsn, record)| (lsn.0, record)).collect::<Vec<_>>()
        };
        let (a, b) = (frame(5, 3, b"a"), frame(9, 3, b"longer than eight"));
        let both = [(5, b"a".to_vec()), (9, b"longer than eight".to_vec())];
        assert_eq!(taken(&[a.clone(), b.clone()]), both);
        assert_eq!(taken(&[a.clone(), b.clone(), frame(7, 3, b"c")]), both, "an older frame");
        assert_eq!(taken(&[a.clone(), frame(9, 2, b"b")]), both[..1], "of an earlier life");
        for cut in a.len()..a.len() + b.len() - ALIGN {
            let torn = [&a[..], &b[..cut - a.len()]].concat();
            assert_eq!(taken(&[torn]), both[..1], "cut off at {cut}");
        }
        let at = a.len();
        for byte in at..at + FRAME_HEADER_BYTES + 17 {
            let mut rotten = [&a[..], &b[..]].concat();
            rotten[byte] ^= 1;
            assert_eq!(taken(&[rotten]), both[..1], "a flipped bit at {byte}");
        }
    }
}
