//! Dirty records of a segment: how a write-back takes them, gives them back or makes them clean,
//! and how far the log must be durable before pages hold them.

use spinney_base::{Lsn, Result, ValueRef};
use spinney_records::{RecordId, Scratch, Visit};

use crate::index::Listed;
use crate::policy::{TARGET_RECORDS_MAX, TARGET_RECORDS_MIN};
use crate::segment::Located;
use crate::taken::{Bytes, Taken};
use crate::tree::TreeLine;

impl TreeLine {
    /// Number of the oldest entries of a segment's dirty list whose records take no more than
    /// `room` bytes, or are few. `room` becomes what is left of it. Shows the keys.
    pub(crate) fn oldest_within(
        &self,
        located: &Located,
        room: &mut usize,
        mut key_of: impl FnMut(&[u8]),
    ) -> usize {
        let listed = self.shape.index.oldest_dirty(located.lower.bytes(), TARGET_RECORDS_MAX);
        let mut most = 0;
        for some in listed.chunks(TARGET_RECORDS_MIN) {
            let ids: Vec<RecordId> = some.iter().map(|listed| listed.id()).collect();
            self.memory.cache.visit_all_dirty(&ids, Visit::Look, &mut |_, key, value| {
                if located.contains(key) {
                    *room = room.saturating_sub(key.len() + value.map_or(0, ValueRef::len));
                    key_of(key);
                }
                false
            });
            most += some.len();
            if *room == 0 {
                break;
            }
        }
        most
    }

    /// Marks records of a segment as being written: of the oldest `most` entries of its dirty list
    /// those for which `page` names a page. Returns the entries, and copies of the records,
    /// ascending.
    pub(crate) fn mark_dirty(
        &self,
        located: &Located,
        most: usize,
        bytes: &mut Bytes<'_>,
        mut page: impl FnMut(RecordId, &[u8]) -> Option<usize>,
    ) -> (Vec<Listed>, Vec<Taken>) {
        let shown = self.shape.index.oldest_dirty(located.lower.bytes(), most);
        let mut ids: Vec<RecordId> = shown.iter().map(|listed| listed.id()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut taken = Vec::with_capacity(ids.len());
        self.memory.cache.visit_all_dirty(&ids, Visit::BeginWrite, &mut |id, key, value| {
            let page = if located.contains(key) { page(id, key) } else { None };
            taken.extend(page.map(|page| bytes.push(key, value, page)));
            page.is_some()
        });
        bytes.sort(&mut taken);
        (shown, taken)
    }

    /// The keys of dirty records that bear an id.
    pub(crate) fn dirty_keys(&self, id: RecordId) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        self.memory.cache.visit_dirty(id, Visit::Look, &mut Scratch::default(), &mut |key, _| {
            keys.push(key.to_vec());
            false
        });
        keys
    }

    /// Makes records dirty again that were taken, and lists them.
    pub(crate) fn give_back(&self, bytes: &Bytes<'_>, lower: &[u8], taken: &[Taken]) {
        self.end_write(bytes, taken, false);
        if taken.is_empty() {
            return;
        }
        let taken = taken.iter().map(|taken| bytes.key(taken)).map(|key| (key, self.id_of(key)));
        self.shape.index.return_dirty(lower, taken);
    }

    pub(crate) fn end_write(&self, bytes: &Bytes<'_>, taken: &[Taken], written: bool) {
        for taken in taken {
            let key = bytes.key(taken);
            self.memory.cache.end_write(self.id_of(key), key, written);
        }
    }

    /// Every record taken was applied, so it has been appended: its LSN is at most this.
    pub(crate) fn lsn_of_taken(&self) -> Lsn {
        if self.context.logged { self.context.log.last_lsn() } else { Lsn::ZERO }
    }

    /// Waits until the log is durable as far as pages with these records need it (P10).
    /// `superseded` are the large values that they name no more (P17).
    pub(crate) fn ensure_durable<'a>(
        &self,
        lsn: Lsn,
        mut taken: impl Iterator<Item = &'a Taken>,
        superseded: &[Vec<u8>],
    ) -> Result<()> {
        let superseded = self.log_superseded_large(superseded)?;
        let log = &self.context.log;
        // The extents of large values are in the log even when their records are not (P16).
        let needed = match self.context.logged {
            true => lsn.max(superseded),
            false if taken.any(|taken| taken.large) => log.last_lsn(),
            false => superseded,
        };
        if needed > Lsn::ZERO { log.ensure_durable(needed) } else { Ok(()) }
    }
}
