//! Verification and scrubbing: reads what is owned, and accounts for every page of the file. Records are
//! counted as a scan finds them: what memtables say over the tree.

use spinney_base::shim::atomic::Ordering::SeqCst;
use spinney_base::{Error, ErrorKind, PageNumber, Result};
use spinney_engine::{DamagedPage, Scrubbed, VerifyReport, Watch};
use spinney_extent::store::DATA_PAGE_FIRST;
use spinney_extent::{BlockKind, LargePointer, PageRun};
use spinney_io::{AlignedBuf, Purpose};

use crate::core::Core;

/// Pages of the tree that one piece of a scrub looks at.
const PIECE_PAGES: u32 = 64;

/// How often pages are counted while others come and go, before a difference counts.
const COUNTS_MAX: u32 = 200;

impl Core {
    pub(crate) fn verify_all(&self, watch: &mut Watch<'_>) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        // No checkpoint is published and no tree written meanwhile.
        let work = self.work.lock();
        self.files.store.verify_checkpoint()?;
        self.account_for_pages(&mut report)?;
        let pin = self.large.pin();
        let view = self.view.load();
        // This view and the pin keep what is looked at from here on.
        drop(work);
        let mut pointers = Vec::new();
        let found = view.verify(&mut report, watch, &mut |pointer| {
            pointers.push(pointer.clone());
            Ok(())
        });
        let large = |pointer: &LargePointer| {
            if !self.large.owns(pointer) {
                let text = format!("large values that somebody owns, found {pointer:?}");
                let path = self.context.path();
                let path = path.display();
                return Err(Error::new(ErrorKind::Corruption, format!("{path}: expected {text}")));
            }
            self.verify_large(pointer)?;
            report.large_values += 1;
            watch(pointer.extents.iter().map(|(one, _)| u64::from(one.pages())).sum())
        };
        let result = found.and_then(|()| pointers.iter().try_for_each(large));
        self.large.unpin(pin);
        result.map(|()| report)
    }

    /// Checks that every page is owned once or free. Large values and old versions come and go
    /// beside it, so it counts again where that does not come out.
    fn account_for_pages(&self, report: &mut VerifyReport) -> Result<()> {
        let mut counted = (0, 0);
        for attempt in 0..COUNTS_MAX {
            let space = self.files.store.space();
            let large = self.large.owned();
            let large: u64 = large.iter().map(|one| u64::from(one.extent.pages())).sum();
            let owned = self.files.pages() + large + space.checkpoint_pages;
            report.free_pages = space.free_pages;
            let all = u64::from(space.end_page - DATA_PAGE_FIRST);
            counted = (owned + space.free_pages + space.retired_pages, all);
            if counted.0 == counted.1 {
                return Ok(());
            }
            if attempt > 0 {
                self.context.runtime.sleep(std::time::Duration::from_millis(1));
            }
        }
        let (counted, all) = counted;
        Err(Error::corruption(
            self.context.path().display(),
            0,
            format!("{all} pages that are owned once or free"),
            counted,
        ))
    }

    /// Reads a large value to its end and checks it, without keeping it.
    fn verify_large(&self, pointer: &LargePointer) -> Result<()> {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        let (mut offset, mut piece) = (0, Vec::new());
        while offset < pointer.length {
            piece.clear();
            self.files.store.read_large(pointer, offset, &mut piece)?;
            hasher.update(&piece);
            offset += piece.len() as u64;
        }
        if hasher.digest() == pointer.hash {
            return Ok(());
        }
        let page = pointer.extents.first().map_or(PageNumber::NONE, |(extent, _)| extent.page);
        Err(Error::corruption(
            self.context.path().display(),
            page.offset(),
            format!("a large value with hash {:016x}", pointer.hash),
            format!("{:016x}", hasher.digest()),
        ))
    }

    /// Reads the extent that lies at a place or behind it: the number of a page, nothing for the
    /// start.
    pub(crate) fn scrub_piece(&self, from: &[u8]) -> Scrubbed {
        let mut seen = Scrubbed::default();
        let from = from.first_chunk().map_or(0, |page| u32::from_be_bytes(*page));
        if from == 0 {
            self.scrub_checkpoint(&mut seen);
        }
        // While this version and the pin are held, what they own is not reused.
        let pin = self.large.pin();
        let tree = self.view.load().tree.clone();
        let of_tree = tree.runs().into_iter().filter(|(run, _)| run.first.0 + run.pages > from);
        let of_tree = of_tree.min_by_key(|(run, _)| run.first);
        let large = self.large.live_from(PageNumber(from));
        let is_large = match (&of_tree, &large) {
            (Some((run, _)), Some(large)) => large.extent.page < run.first,
            (tree, _) => tree.is_none(),
        };
        let next = if is_large {
            large.map(|large| {
                let first = from.max(large.extent.page.0);
                let owned = (large.extent, large.generation);
                let show = |page, result| note(self, &mut seen, page, result);
                let within = first - large.extent.page.0;
                first + self.files.store.check_large(owned, within, show).max(1)
            })
        } else {
            of_tree.map(|(run, kind)| self.scrub_run(&run, kind, from, &mut seen))
        };
        seen.next = next.map(|next| next.to_be_bytes().to_vec());
        self.large.unpin(pin);
        seen
    }

    /// Checks some pages of a run from a page of the file on; answers where they end.
    fn scrub_run(&self, run: &PageRun, kind: BlockKind, from: u32, seen: &mut Scrubbed) -> u32 {
        let mut buf = AlignedBuf::new(1);
        let first = from.saturating_sub(run.first.0);
        let end = run.pages.min(first + PIECE_PAGES);
        for index in first..end {
            let store = &self.files.store;
            let read = store.read_run_page(run, index, kind, buf.page_mut(0), Purpose::Tool);
            note(self, seen, run.page(index), read.map(|_| ()));
        }
        run.first.0 + end
    }

    fn scrub_checkpoint(&self, seen: &mut Scrubbed) {
        let before = self.counters.checkpoints.load(SeqCst);
        let result = self.files.store.verify_checkpoint().map(|_| ());
        // One that ended meanwhile has given the pages to others.
        if self.counters.checkpoints.load(SeqCst) == before {
            note(self, seen, PageNumber(0), result);
        }
    }
}

fn note(core: &Core, seen: &mut Scrubbed, page: PageNumber, result: Result<()>) {
    seen.pages += 1;
    if let Err(error) = result {
        let (file, what) = (core.context.path(), error.to_string());
        seen.damaged.push(DamagedPage { file, offset: page.offset(), what });
    }
}
