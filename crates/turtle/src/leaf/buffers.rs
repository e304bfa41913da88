//! Buffers that leaves are built in, kept for the next leaf while a checkpoint is written: memory that
//! the system gives anew costs more than what is done with it.
//!
//! **Invariant**: a few are kept at most, and none once [`Buffers::clear`] was called and nobody builds.

use spinney_base::shim::Mutex;
use spinney_io::AlignedBuf;

/// As many are kept: the two of a leaf, for each of four threads.
const KEPT_MAX: usize = 8;

/// Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    kept: Mutex<Vec<AlignedBuf>>,
}

impl Buffers {
    /// A buffer of zeroed pages.
    pub(crate) fn take(&self, pages: usize) -> AlignedBuf {
        // Leaves differ a little, and a head is much smaller than a body.
        let capacity = pages + pages / 4;
        let fits = |buf: &AlignedBuf| (pages..=2 * capacity).contains(&buf.capacity());
        let kept = {
            let mut kept = self.kept.lock();
            kept.iter().rposition(fits).map(|at| kept.swap_remove(at))
        };
        let Some(mut buf) = kept else {
            let mut buf = AlignedBuf::new(capacity);
            buf.set_pages(pages);
            return buf;
        };
        buf.set_pages(pages);
        buf.bytes_mut().fill(0);
        buf
    }

    /// Keeps a buffer for the next that takes one.
    pub(crate) fn give(&self, buf: AlignedBuf) {
        let mut kept = self.kept.lock();
        if kept.len() < KEPT_MAX {
            kept.push(buf);
        }
    }

    /// Gives back what is kept.
    pub(crate) fn clear(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(kept);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_taken_again_and_zeroed() {
        let buffers = Buffers::default();
        let mut buf = buffers.take(100);
        buf.bytes_mut().fill(7);
        let address = buf.bytes().as_ptr().addr();
        buffers.give(buf);
        assert_ne!(buffers.take(10).bytes().as_ptr().addr(), address, "far too large");
        assert_ne!(buffers.take(200).bytes().as_ptr().addr(), address, "too small");
        let buf = buffers.take(110);
        assert_eq!((buf.bytes().as_ptr().addr(), buf.pages()), (address, 110));
        assert!(buf.bytes().iter().all(|byte| *byte == 0));
        (0..9).for_each(|_| buffers.give(AlignedBuf::new(1)));
        assert_eq!(buffers.kept.lock().len(), KEPT_MAX);
        buffers.clear();
        assert!(buffers.kept.lock().is_empty());
    }
}
