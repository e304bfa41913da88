//! What transactions see at their begin stamps, and the overwriters of that.
//!
//! ```text
//!   record   no cell                     nobody wrote it since any of them began: the image in the leaf
//!            cell, version <= begin      the image in the leaf
//!            cell, version >  begin      an image of the cell
//!            its owner commits           wait, unless it draws a stamp above the begin stamp
//! ```
//!
//! **Invariants**
//! 1. The latch of the leaf is validated after the cells were looked at, so they were the cells of these records, and
//!    the images those of the versions: an owner marks its cell before it changes the leaf.
//! 2. A reader waits only for commits whose stamps may be at or below its own, and holds no latch meanwhile.

use std::ops::Bound;
use std::task::Poll;

use spinney_base::Result;
use spinney_base::shim::thread;
use spinney_engine::{Chunk, Found, ScanRequest, SeenAt, Whereabouts};
use spinney_ssn::{NEVER, Sees, Sight, Stamp, Successor};

use crate::engine::Iot;
use crate::leaf::{Data, Leaf};
use crate::near::{Near, find};
use crate::older::follow;
use crate::scan::{Eyes, See, behind};

/// Sees what a transaction sees.
struct At<'a> {
    keyspace: &'a Iot,
    sight: Sight,
    note: &'a mut dyn FnMut(u64),
    /// The gap that was noted last.
    noted: Option<u64>,
    /// The least stamps of overwriters met so far.
    successor: Option<Successor>,
}

fn least(one: Option<Successor>, other: Successor) -> Successor {
    // The least of both: what ended first, and what comes before the most.
    one.map_or(other, |one| Successor { end: one.end.min(other.end), pi: one.pi.min(other.pi) })
}

impl Eyes for At<'_> {
    fn enter(&mut self, leaf: Leaf<'_>) {
        let gap = leaf.gap();
        if self.noted.replace(gap) != Some(gap) {
            (self.note)(self.keyspace.tree.gaps.place(gap));
        }
    }

    fn see(&mut self, leaf: Leaf<'_>, index: usize, data: Data) -> See {
        let newest = || if data.is_absent() { See::Absent } else { See::Newest };
        let Some(cell) = leaf.cell(index) else { return newest() };
        let (cells, certifier) = (&self.keyspace.tree.cells, &self.keyspace.context.certifier);
        match cells.see(cell, (self.sight, certifier), |images| follow(images, leaf, data)) {
            Poll::Pending => See::Wait,
            Poll::Ready(Sees::Newest) => newest(),
            Poll::Ready(Sees::Older(value, successor)) => {
                // Of a leaf that is read again it may be one too many.
                self.successor = Some(least(self.successor, successor));
                See::Older(value)
            }
        }
    }

    fn wait(&mut self) -> Result<()> {
        self.keyspace.wait_for_commit(self.sight)
    }
}

impl Iot {
    /// Lets others commit.
    ///
    /// # Errors
    /// `Conflict` when the transaction was ended: what it may see is gone.
    fn wait_for_commit(&self, sight: Sight) -> Result<()> {
        thread::yield_now();
        self.context.certifier.check(sight.me)
    }

    pub(crate) fn read_version(
        &self,
        key: &[u8],
        sight: Sight,
        out: &mut Vec<u8>,
    ) -> Result<SeenAt> {
        let start = out.len();
        let mut eyes =
            At { keyspace: self, sight, note: &mut |_| {}, noted: None, successor: None };
        loop {
            let see = self.tree.read_home(
                |index| index.floor(key),
                |leaf, home| {
                    out.truncate(start);
                    eyes.successor = None;
                    let Ok(index) = leaf.search(key) else { return (See::Absent, false, None) };
                    let data = leaf.data(index);
                    let see = eyes.see(leaf, index, data);
                    if see == See::Newest {
                        leaf.value(data, out);
                    }
                    (see, data.is_large(), Some(Near::seen(home, index)))
                },
            );
            let (see, is_large, near) = see.expect("the first leaf begins before all keys");
            let found = |large| if large { Found::Large } else { Found::Inline };
            let found = match see {
                See::Absent | See::Older(None) => Found::Absent,
                See::Newest => found(is_large),
                See::Older(Some(older)) => {
                    out.extend_from_slice(&older.bytes);
                    found(older.large)
                }
                See::Wait => {
                    eyes.wait()?;
                    continue;
                }
            };
            let place = near.map_or(Whereabouts::default(), Near::whereabouts);
            return Ok(SeenAt { found, successor: eyes.successor, place });
        }
    }

    pub(crate) fn scan_versions(
        &self,
        request: &ScanRequest<'_>,
        sight: Sight,
        note: &mut dyn FnMut(u64),
        chunk: &mut Chunk,
    ) -> Result<Option<Successor>> {
        let mut eyes = At { keyspace: self, sight, note, noted: None, successor: None };
        self.tree.scan_by(request, &mut eyes, chunk)?;
        Ok(eyes.successor)
    }

    pub(crate) fn overwritten_in(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        sight: Sight,
        limit: Stamp,
    ) -> Stamp {
        let mut from: Bound<Vec<u8>> = lower.map(<[u8]>::to_vec);
        let mut pi = NEVER;
        loop {
            let key: &[u8] = match &from {
                Bound::Included(key) | Bound::Excluded(key) => key,
                Bound::Unbounded => &[],
            };
            let part = (from.as_ref().map(Vec::as_slice), upper);
            let found = self.tree.read(
                |index| index.floor(key),
                |leaf| {
                    let of_leaf = self.overwritten_of(leaf, part, sight, limit);
                    of_leaf.map(|pi| (pi, next(leaf, upper)))
                },
            );
            match found.expect("the first leaf begins before all keys") {
                Poll::Pending => thread::yield_now(),
                Poll::Ready((of_leaf, next)) => {
                    pi = pi.min(of_leaf);
                    match next {
                        Some(next) => from = Bound::Included(next),
                        None => return pi,
                    }
                }
            }
        }
    }

    /// Does the same for one key, which may still be where it was.
    pub(crate) fn overwritten_key(
        &self,
        key: &[u8],
        near: Option<Near>,
        sight: Sight,
        limit: Stamp,
    ) -> Stamp {
        loop {
            let look = |leaf: Leaf<'_>| {
                let is_any = leaf.cells() > 0;
                let index = is_any.then(|| find(leaf, near, key).ok()).flatten();
                let Some(cell) = index.and_then(|index| leaf.cell(index)) else {
                    return Poll::Ready(None);
                };
                self.tree.cells.overwriter(cell, (sight, limit), &self.context.certifier)
            };
            let found = near.and_then(|near| self.tree.try_read(near.home, look));
            let found = found.or_else(|| self.tree.read(|index| index.floor(key), look));
            match found.expect("the first leaf begins before all keys") {
                Poll::Pending => thread::yield_now(),
                Poll::Ready(successor) => return successor.map_or(NEVER, |successor| successor.pi),
            }
        }
    }

    /// Looks at the cells of a leaf in a range.
    fn overwritten_of(
        &self,
        leaf: Leaf<'_>,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        sight: Sight,
        limit: Stamp,
    ) -> Poll<Stamp> {
        let mut pi = NEVER;
        if leaf.cells() == 0 {
            return Poll::Ready(pi);
        }
        let mut key = Vec::new();
        for index in behind(leaf, lower)..leaf.len() {
            let Some(cell) = leaf.cell(index) else { continue };
            key.clear();
            leaf.key(index, &mut key);
            let is_past = match upper {
                Bound::Included(last) => &key[..] > last,
                Bound::Excluded(end) => &key[..] >= end,
                Bound::Unbounded => false,
            };
            if is_past {
                break;
            }
            match self.tree.cells.overwriter(cell, (sight, limit), &self.context.certifier) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(successor)) => pi = pi.min(successor.pi),
                Poll::Ready(None) => {}
            }
        }
        Poll::Ready(pi)
    }
}

/// Returns where the range goes on behind a leaf.
fn next(leaf: Leaf<'_>, to: Bound<&[u8]>) -> Option<Vec<u8>> {
    let mut upper = Vec::new();
    let has_more = leaf.upper(&mut upper)
        && match to {
            Bound::Included(last) => &upper[..] <= last,
            Bound::Excluded(end) => &upper[..] < end,
            Bound::Unbounded => true,
        };
    has_more.then_some(upper)
}
