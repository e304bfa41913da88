//! Verification: reads every page, checks every record's place, and accounts for every page of the
//! file. Records are counted as a scan finds them, segment by segment: dirty records over pages.

use std::sync::atomic::Ordering;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Result};
use spinney_engine::{VerifyReport, Watch};
use spinney_extent::{Extent, LargePointer};
use spinney_io::Purpose;
use spinney_page::PageView;

use crate::merge::Records;
use crate::scan::Run;
use crate::segment::{Located, PageRef};
use crate::tree::TreeLine;

impl TreeLine {
    pub(crate) fn verify_all(&self, watch: &mut Watch<'_>) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        self.shape.store.verify_checkpoint()?;
        report.free_pages = self.account_for_pages()?;
        let _pin = self.large.pin();
        let mut next = Some(Vec::new());
        let mut large = Vec::new();
        while let Some(key) = next {
            let before = report.pages;
            next = self.verify_segment(&key, &mut report, &mut large)?;
            watch(report.pages - before)?;
            for pointer in large.drain(..) {
                watch(self.large.verify(&pointer)?)?;
                report.large_values += 1;
            }
        }
        Ok(report)
    }

    /// Checks the pages of the segment that a key belongs to; returns where the next segment
    /// begins. Adds the large values that it names.
    fn verify_segment(
        &self,
        key: &[u8],
        report: &mut VerifyReport,
        large: &mut Vec<LargePointer>,
    ) -> Result<Option<Vec<u8>>> {
        loop {
            let located = self.shape.index.find(key);
            let segment = &located.segment;
            let _segment = self.shape.segment_locks.read(segment.base.page);
            let pages = (0..segment.base_pages()).map(|index| segment.base_page(index).page);
            let _pages = self.shape.page_locks.read_many(pages);
            if self.shape.index.find(key) != located {
                continue;
            }
            let refs: Vec<PageRef> = segment.all().collect();
            let run = Run { pages: 0..segment.base_pages().max(1), located: located.clone() };
            let dirty = self.copy_dirty(&run, |_| true);
            let mut buf = self.memory.buffers.lend(refs.len().max(1));
            self.shape.read_pages(&refs, &mut buf, Purpose::TOOL)?;
            let base = 0..segment.base_pages();
            let owners = base.chain(segment.overflows.iter().map(|one| usize::from(one.index)));
            let owners = owners.map(Some).chain(segment.staged.iter().map(|_| None));
            for ((at, page), owner) in refs.iter().enumerate().zip(owners) {
                self.verify_places(&located, owner, *page, buf.page(at))?;
                let above = refs.len() - segment.staged.len()..refs.len();
                let above = if owner.is_some() { above } else { 0..0 };
                let above: Vec<_> = above.map(|at| PageView::trusted(buf.page(at))).collect();
                self.verify_pointers(buf.page(at), &above, large)?;
                report.pages += 1;
                if at < segment.base_pages() {
                    let records = PageView::trusted(buf.page(at)).len() as u64;
                    report.page_records_max = report.page_records_max.max(records);
                }
            }
            let (pages, staged) = run.parse(&buf, 0..refs.len());
            report.records += Records::merge_staged(&pages, &staged, &dirty.records()).len() as u64;
            return Ok(located.upper.map(|upper| upper.bytes().to_vec()));
        }
    }

    /// Checks that the extents which a page names are owned. What a page `above` it has another
    /// value for may be gone.
    fn verify_pointers(
        &self,
        block: &[u8; PAGE_BYTES],
        above: &[PageView<'_>],
        large: &mut Vec<LargePointer>,
    ) -> Result<()> {
        let view = PageView::trusted(block);
        for index in (0..view.len()).filter(|index| view.value(*index).large) {
            let (key, value) = (view.key(index), view.value(index));
            if above.iter().any(|above| above.find(&key).is_some()) {
                continue;
            }
            let pointer = self.large.decode(value.bytes)?;
            self.large.check_owned(&pointer)?;
            large.push(pointer);
        }
        Ok(())
    }

    /// Checks that a page holds only keys that page `owner` of the segment is for; a staged page,
    /// which has no owner, any of the segment.
    fn verify_places(
        &self,
        located: &Located,
        owner: Option<usize>,
        page: PageRef,
        block: &[u8; PAGE_BYTES],
    ) -> Result<()> {
        let view = PageView::trusted(block);
        for index in 0..view.len() {
            let key = view.key(index);
            let elsewhere = owner.is_some_and(|owner| located.page_of(&key) != owner);
            if !located.contains(&key) || elsewhere {
                return Err(Error::corruption(
                    self.shape.store.path().display(),
                    page.page.offset(),
                    format!(
                        "keys of page {owner:?} of the segment from {:?} up to {:?}",
                        located.lower, located.upper
                    ),
                    format!("key {}", key.escape_ascii()),
                ));
            }
        }
        Ok(())
    }

    /// Proves that every page is owned once or free, while no write-back and no checkpoint is under
    /// way.
    fn account_for_pages(&self) -> Result<u64> {
        let _no_write_back = self.shape.gate.write();
        let _no_publishing = self.shape.journal.still();
        let _still = self.large.still();
        let mut owned: Vec<Extent> = self.large.owned().map(|(extent, _)| extent).collect();
        self.shape
            .index
            .for_each(|_, segment| owned.extend(segment.extents().map(|(extent, _)| extent)));
        let of_runs = self.pre_images.hold_run_pages();
        let others = self.shape.journal.freed_pages()
            + self.background.loading_pages.load(Ordering::Relaxed)
            + *of_runs;
        self.shape.store.audit(owned, others)
    }
}
