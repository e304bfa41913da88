//! Verification and scrubbing: reads what is owned, and accounts for every page of the file.
//! Records are counted as a scan finds them: memtables over the tree.

use spinney_base::Result;
use spinney_engine::{Scrubbed, VerifyReport, Watch, scrub};
use spinney_extent::Extent;
use spinney_io::{AlignedBuf, Purpose};

use crate::core::Core;

/// Pages of the tree that one piece of a scrub reads. With more, a piece holds the disk for longer;
/// with fewer, a scrub takes more turns.
const PIECE_PAGES: u32 = 64;

/// Most audits that fail, a millisecond apart, before the failure counts: old versions come and go
/// meanwhile. With fewer, a busy keyspace is reported as damaged; with more, damage is found late.
const AUDITS_MAX: u32 = 200;

impl Core {
    pub(crate) fn verify_all(&self, watch: &mut Watch<'_>) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        // No checkpoint is published and no tree written meanwhile.
        let work = self.progress.work.lock();
        self.files.store.verify_checkpoint()?;
        self.account_for_pages(&mut report)?;
        let _pin = self.large.pin();
        let view = self.view.load();
        // This view and the pin keep what is looked at from here on.
        drop(work);
        let mut pointers = Vec::new();
        view.verify(&mut report, watch, &mut |pointer| {
            pointers.push(pointer.clone());
            Ok(())
        })?;
        for pointer in pointers {
            self.large.check_owned(&pointer)?;
            watch(self.large.verify(&pointer)?)?;
            report.large_values += 1;
        }
        Ok(report)
    }

    /// Checks that every page is owned once or free. Old versions come and go beside it.
    fn account_for_pages(&self, report: &mut VerifyReport) -> Result<()> {
        let tree = self.view.load().tree.clone();
        let of_tree: Vec<Extent> = tree.owned().into_iter().map(|(extent, _)| extent).collect();
        let pages: u64 = of_tree.iter().map(|extent| u64::from(extent.pages())).sum();
        for attempt in 1.. {
            let audited = {
                let _still = self.large.still();
                let large = self.large.owned().map(|(extent, _)| extent);
                let owned = of_tree.iter().copied().chain(large).collect();
                let others = self.files.pages().saturating_sub(pages);
                self.files.store.audit(owned, others)
            };
            if audited.is_ok() || attempt == AUDITS_MAX {
                report.free_pages = audited?;
                break;
            }
            self.context.runtime.sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    }

    /// Reads a piece of the tree from a page of the file on: its number, nothing for the start.
    pub(crate) fn scrub_piece(&self, from: &[u8]) -> Scrubbed {
        scrub(&self.large, from, |from, seen| {
            let from = from.first_chunk().map_or(0, |page| u32::from_be_bytes(*page));
            // While this version is held, what it owns is not reused.
            let tree = self.view.load().tree.clone();
            let left = tree.runs().into_iter().filter(|(run, _)| run.first.0 + run.pages > from);
            let (run, kind) = left.min_by_key(|(run, _)| run.first)?;
            let (store, mut buf) = (&self.files.store, AlignedBuf::new(1));
            let first = from.saturating_sub(run.first.0);
            let end = run.pages.min(first + PIECE_PAGES);
            for index in first..end {
                let read = store.read_run_page(&run, index, kind, buf.page_mut(0), Purpose::TOOL);
                seen.note(store.path(), run.page(index), read);
            }
            Some((run.first.0 + end).to_be_bytes().to_vec())
        })
    }
}
