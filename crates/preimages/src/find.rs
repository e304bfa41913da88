//! Looking a key up as of a snapshot.

use spinney_base::Result;
use spinney_base::shim::atomic::Ordering::SeqCst;
use spinney_engine::Found;

use crate::keep::PreImages;
use crate::marks::Mark;
use crate::table::Link;

/// What tables say of a key as of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It was not written since: what the engine has counts.
    Unchanged,
    /// It had this value, or none.
    Link(Link),
    /// Its page counts, if it still has this mark while the page is locked.
    Page(Mark),
}

impl PreImages {
    /// Looks a key up as of snapshot `number`. The engine was asked before (S7).
    pub(crate) fn find(&self, number: u64, key: &[u8], hash: u64) -> Result<Seen> {
        let tables = self.tables.load_full();
        let mut seen = Seen::Unchanged;
        // The oldest wins (S6).
        for table in tables.iter().rev().take_while(|table| table.number >= number) {
            if table.is_rest_absent.load(SeqCst) {
                seen = Seen::Link(None);
            }
            // Looked up again for each table, before its map and its layers (S7).
            if let Some(mark) = self.marks.get(key, hash)
                && mark.table == table.number
            {
                seen = Seen::Page(mark);
            }
            let parts = table.parts.load_full();
            if let Some(link) = parts.map.get(key) {
                seen = Seen::Link(link);
            }
            for layer in parts.layers.iter().rev() {
                if let Some(link) = layer.get(key, hash)? {
                    seen = Seen::Link(link);
                }
            }
        }
        Ok(seen)
    }
}

/// Appends a link's value; says what it is.
pub(crate) fn deliver(link: Link, out: &mut Vec<u8>) -> Found {
    match link {
        None => Found::Absent,
        Some(value) => {
            out.extend_from_slice(&value.bytes);
            if value.large { Found::Large } else { Found::Inline }
        }
    }
}
