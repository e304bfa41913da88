//! Background work, checks, and room on the disk.

use std::ops::Bound;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Next, PageNumber, Result, ValueRef};
use spinney_engine::{
    Bulk, Chunk, Compacted, Engine as _, IDLE, KeyspaceBackup, Maintain, ScanRequest, Scrubbed,
    VerifyReport, Watch, scrub,
};
use spinney_extent::GiveBack;
use spinney_io::{Directory, Purpose};

use crate::backup::Copying;
use crate::bulk::Loading;
use crate::engine::Iot;
use crate::image::decode;
use crate::leaf::BLOCK_BYTES;
use crate::read::{READ_AT_ONCE, read_block, read_images};
use crate::shape::Joined;

/// Records of a scan of a check.
const CHECKED_AT_ONCE: usize = 1000;
/// Leaves that a piece of a compaction looks at.
const COMPACTED_AT_ONCE: usize = 64;

impl Iot {
    /// Calls `see` with each record there is, in the order of the keys, and `rest` now and then.
    fn each_record(
        &self,
        see: &mut dyn FnMut(&[u8], ValueRef<'_>) -> Result<()>,
        rest: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let (mut chunk, mut lower) = (Chunk::default(), Bound::Unbounded);
        loop {
            chunk.clear();
            let request = ScanRequest {
                lower: lower.as_ref().map(Vec::as_slice),
                records_wanted: CHECKED_AT_ONCE,
                records_max: CHECKED_AT_ONCE,
                bytes_max: usize::MAX,
                keys_only: false,
                ..ScanRequest::FIRST_KEY
            };
            self.scan(&request, &mut chunk)?;
            (0..chunk.len()).map(|index| chunk.get(index)).try_for_each(|(k, v)| see(k, v))?;
            rest()?;
            let last = chunk.len().checked_sub(1).map(|last| chunk.get(last).0.to_vec());
            match last.filter(|_| !chunk.finished) {
                Some(last) => lower = Bound::Excluded(last),
                None => return Ok(()),
            }
        }
    }

    /// Reads and checks all images that the newest slot names, and that each page has one owner. Returns the number of
    /// pages, and of free ones.
    fn verify_images(&self) -> Result<(u64, u64)> {
        let _no_checkpoint = self.publishing.lock();
        self.store().verify_checkpoint()?;
        let named = self.named.lock().clone();
        for places in named.iter().flat_map(|payload| payload.places.chunks(READ_AT_ONCE)) {
            read_images(self.store(), places, Purpose::TOOL)?;
        }
        self.tree.check().map_err(|text| {
            let path = self.context.path();
            Error::new(ErrorKind::Corruption, format!("{}: in memory: {text}", path.display()))
        })?;
        let mut owned = self.image_extents();
        let _still = self.values.still();
        owned.extend(self.values.owned().map(|(extent, _)| extent));
        let of_runs = self.pre_images.hold_run_pages();
        let free = self.store().audit(owned, *of_runs)?;
        Ok((self.store().payload_pages() + self.named_pages(), free))
    }
}

impl Maintain for Iot {
    fn background(&self) -> Result<Next> {
        self.follow_memory();
        if self.context.poison.is_set() || self.is_replaying() {
            return Ok(Next::Wait(IDLE));
        }
        self.values.reuse();
        let mut worked = self.pre_images.background()?;
        worked |= self.store().give_back(GiveBack::Much)? > 0;
        Ok(if worked { Next::Again } else { Next::Wait(IDLE) })
    }

    fn memory_floor(&self) -> u64 {
        self.floor()
    }

    fn takes_wish(&self) -> bool {
        false
    }

    fn end_oldest_snapshot(&self, cause: &Error) -> bool {
        self.pre_images.run_pages() > 0 && self.pre_images.end_oldest(cause)
    }

    fn verify(&self, watch: &mut Watch<'_>) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        (report.pages, report.free_pages) = self.verify_images()?;
        watch(report.pages)?;
        let _pin = self.values.pin();
        let (mut records, mut pointers) = (0, Vec::new());
        let mut see = |_: &[u8], value: ValueRef<'_>| {
            records += 1;
            if value.large {
                pointers.push(self.values.decode(value.bytes)?);
            }
            Ok(())
        };
        // Images are counted already; this is a chance to end.
        self.each_record(&mut see, &mut || watch(0))?;
        report.records = records;
        for pointer in pointers {
            self.values.check_owned(&pointer)?;
            watch(self.values.verify(&pointer)?)?;
            report.large_values += 1;
        }
        Ok(report)
    }

    fn bulk(&self) -> Result<Box<dyn Bulk + '_>> {
        self.context.poison.check()?;
        Ok(Box::new(Loading::new(self)?))
    }

    fn scrub(&self, from: &[u8]) -> Scrubbed {
        scrub(&self.values, from, |from, seen| {
            // What is let go from here on stays as it is until the piece was read.
            let _hold = self.store().hold();
            let named = self.named.lock().clone();
            let payload = named.as_ref().as_ref()?;
            let first = from.first_chunk().map_or(0, |index| u64::from_le_bytes(*index));
            let first = usize::try_from(first).unwrap_or(usize::MAX);
            let mut buf = spinney_io::AlignedBuf::new(1 << spinney_extent::WIDE_ORDER_MAX);
            for place in payload.places.iter().skip(first).take(READ_AT_ONCE) {
                let read = read_block(self.store(), *place, &mut buf).and_then(|()| {
                    let block = &buf.bytes()[..PAGE_BYTES << place.order];
                    let path = self.store().path();
                    decode(block).map(drop).map_err(|damage| damage.at(path, place.page))
                });
                let rest = 1..u32::try_from(place.pages()).expect("blocks are short");
                seen.note(self.store().path(), place.page, read);
                rest.for_each(|page| {
                    seen.note(self.store().path(), PageNumber(place.page.0 + page), Ok(()));
                });
            }
            let next = first.saturating_add(READ_AT_ONCE);
            (next < payload.places.len()).then(|| (next as u64).to_le_bytes().to_vec())
        })
    }

    fn compact(&self, from: &[u8], upper: Bound<&[u8]>) -> Result<Compacted> {
        self.context.poison.check()?;
        let Joined { next, looked, joined } = self.tree.join_some(from, COMPACTED_AT_ONCE);
        if joined > 0 {
            self.set_dirty(true);
        }
        let is_within = |next: &Vec<u8>| match upper {
            Bound::Included(upper) => &next[..] <= upper,
            Bound::Excluded(upper) => &next[..] < upper,
            Bound::Unbounded => true,
        };
        Ok(Compacted { bytes: (looked * BLOCK_BYTES) as u64, next: next.filter(is_within) })
    }

    fn compact_bytes(&self, from: &[u8], upper: Bound<&[u8]>) -> u64 {
        let upper = match upper {
            Bound::Included(upper) | Bound::Excluded(upper) => Some(upper),
            Bound::Unbounded => None,
        };
        // As `compact` counts them, the leaf in which the range begins with them.
        (self.tree.index.homes(from, upper).len() as u64 + 1) * BLOCK_BYTES as u64
    }

    fn begin_backup(
        &self,
        directory: &dyn Directory,
        name: &str,
    ) -> Result<Box<dyn KeyspaceBackup + '_>> {
        let state = || {
            let _no_checkpoint = self.publishing.lock();
            (self.redo(), self.named.lock().clone())
        };
        Ok(Box::new(Copying::begin(self, directory, name, state)?))
    }

    fn data_bytes(&self) -> u64 {
        let pages = self.store().payload_pages() + self.named_pages() + self.values.live_pages();
        pages * PAGE_BYTES as u64
    }

    fn unwritten_bytes(&self) -> u64 {
        self.tree.changed() * BLOCK_BYTES as u64
    }

    fn step_bytes(&self) -> u64 {
        self.bytes_of_step()
    }

    fn make_room(&self) -> Result<()> {
        self.give_room()
    }
}
