//! Reader bits: the transactions that read a version and have not ended.
//!
//! ```text
//!   63  62             1   0
//!   +---+---+--- ... +---+---+
//!   | S | bits of contexts    |     S = shared by all contexts from 63 on
//!   +---+---+--- ... +---+---+
//!
//!   reader      set bit ........ draw c ........ raise pstamp, clear bit
//!   overwriter         draw c', look at bits, look at pstamp
//! ```
//!
//! **Invariants**
//! 1. A reader that committed with c < c' has its bit set, or has raised pstamp to c, when an
//!    overwriter looks at them in this order after its draw. A reader that sets its bit after that
//!    look draws c > c' and finds the overwriter by the owner word.
//! 2. Bit S is never cleared while the version lasts, for it may stand for many. An overwriter that
//!    sees it looks at all shared contexts, so it may take a transaction for a reader that is none.
//!
//! After ERMIA's bitmap of readers; the paper's reader list exists only while an update is pending.

use std::task::{Poll, ready};

use spinney_base::shim::atomic::Ordering;

use crate::clock::Stamp;
use crate::context::{Contexts, Owner};
use crate::stamps::Readable;

/// Contexts with a reader bit of their own: a word has 64, and one is shared.
pub(crate) const OWN_BITS: usize = 63;

fn bit(contexts: &Contexts, reader: Owner) -> u64 {
    1 << reader.index().min(contexts.own_bits)
}

/// Sets the bit of a reader.
pub(crate) fn enter<R: Readable>(contexts: &Contexts, me: Owner, place: &R) {
    let bit = bit(contexts, me);
    place.visit(&mut |marks| {
        marks.readers.fetch_or(bit, Ordering::SeqCst);
    });
}

/// Raises pstamp to the commit stamp of a reader.
pub(crate) fn raise<R: Readable>(place: &R, cstamp: Stamp) {
    place.visit(&mut |marks| {
        marks.pstamp.fetch_max(cstamp, Ordering::SeqCst);
    });
}

/// Clears the bit of a reader that has raised pstamp or aborted.
pub(crate) fn leave<R: Readable>(contexts: &Contexts, me: Owner, place: &R) {
    if me.index() < contexts.own_bits {
        let bit = bit(contexts, me);
        place.visit(&mut |marks| {
            marks.readers.fetch_and(!bit, Ordering::SeqCst);
        });
    }
}

/// Returns the greatest c up to `limit` of transactions other than `me` whose bits are set and which have drawn it, or 0. One
/// that has not decided counts as committed: nobody waits for what it has read, which may be much. `Pending`: one of
/// them draws its c now.
pub(crate) fn latest<R: Readable>(
    contexts: &Contexts,
    me: Owner,
    place: &R,
    limit: Stamp,
) -> Poll<Stamp> {
    let mut bits = 0;
    place.visit(&mut |marks| bits |= marks.readers.load(Ordering::Acquire));
    let mut latest = 0;
    let mut look = |index: usize| -> Poll<()> {
        let reader = contexts.at(index);
        if reader != me {
            latest = latest.max(ready!(contexts.drawn(reader, limit)));
        }
        Poll::Ready(())
    };
    // Mostly there is none.
    while bits != 0 {
        let index = bits.trailing_zeros() as usize;
        bits &= bits - 1;
        if index < contexts.own_bits {
            ready!(look(index));
        } else {
            for index in contexts.own_bits..contexts.high() {
                ready!(look(index));
            }
        }
    }
    Poll::Ready(latest)
}

/// Whether no running transaction has a bit here.
pub(crate) fn is_unread<R: Readable>(contexts: &Contexts, place: &R) -> bool {
    let mut bits = 0;
    place.visit(&mut |marks| bits |= marks.readers.load(Ordering::SeqCst));
    let own = (1_u64 << contexts.own_bits) - 1;
    bits & own == 0 && (bits == 0 || !contexts.are_shared_used())
}

/// Returns the greatest commit stamp of the creator and of readers that have left.
pub(crate) fn pstamp<R: Readable>(place: &R) -> Stamp {
    let mut greatest = 0;
    place.visit(&mut |marks| greatest = greatest.max(marks.pstamp.load(Ordering::Acquire)));
    greatest
}
