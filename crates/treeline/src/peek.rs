//! The pages that looks at one end of a range read last, so that a queue whose first element is
//! asked for again and again reads its page once.
//!
//! **Invariant**: what is said of a page is true as long as nobody has locked it exclusively since:
//! [`PageLocks::writes`](crate::locks::PageLocks::writes) tells, and is asked while the page is
//! locked shared.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;

use crate::segment::PageRef;

/// How many pages are kept.
const PAGES_MAX: usize = 8;

#[derive(Debug)]
struct Kept {
    page: PageRef,
    writes: u64,
    block: Box<[u8; PAGE_BYTES]>,
}

/// Pages, the one used last at the end. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Peek {
    kept: Mutex<Vec<Kept>>,
}

impl Peek {
    /// Bytes of memory that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        (self.kept.lock().len() * PAGE_BYTES) as u64
    }

    /// Copies a page to `to` if it is here as it was after so many exclusive locks.
    pub(crate) fn get(&self, page: PageRef, writes: u64, to: &mut [u8; PAGE_BYTES]) -> bool {
        let mut kept = self.kept.lock();
        let same = |kept: &Kept| kept.page == page && kept.writes == writes;
        let Some(found) = kept.iter().position(same) else { return false };
        let found = kept.remove(found);
        to.copy_from_slice(&*found.block);
        kept.push(found);
        true
    }

    /// Keeps a page in the place of the one that was not used for longest.
    pub(crate) fn put(&self, page: PageRef, writes: u64, block: &[u8; PAGE_BYTES]) {
        let mut kept = self.kept.lock();
        let old = kept.iter().position(|kept| kept.page == page);
        let full = kept.len() == PAGES_MAX;
        let mut entry = match old.or(full.then_some(0)) {
            Some(old) => kept.remove(old),
            None => Kept { page, writes, block: Box::new([0; PAGE_BYTES]) },
        };
        entry.block.copy_from_slice(block);
        kept.push(Kept { page, writes, ..entry });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spinney_base::{Generation, PageNumber};

    #[test]
    fn pages_are_kept_until_they_are_written() {
        let peek = Peek::default();
        let page = |number| PageRef { page: PageNumber(number), generation: Generation(1) };
        let mut buf = [0; PAGE_BYTES];
        for number in 1..10u8 {
            peek.put(page(number.into()), 7, &[number; PAGE_BYTES]);
        }
        assert!(!peek.get(page(1), 7, &mut buf), "more than are kept");
        assert!(peek.get(page(2), 7, &mut buf) && buf == [2; PAGE_BYTES]);
        assert!(!peek.get(page(2), 8, &mut buf), "it was written since");
        peek.put(page(10), 7, &[10; PAGE_BYTES]);
        assert!(peek.get(page(2), 7, &mut buf), "it was used last");
        assert!(!peek.get(page(3), 7, &mut buf));
    }
}
