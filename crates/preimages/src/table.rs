//! Tables: the pre-images of one snapshot, in a map that takes links, sealed maps and runs.
//!
//! ```text
//!   list    [ table 3 ] [ table 7 ] [ table 9 ]         ascending, swapped whole
//!   parts   layers: run, run, sealed map   map          oldest first, swapped whole
//! ```

use std::sync::Arc;

use arc_swap::ArcSwap;
use spinney_art::{Appended, AppendedMap, Direction, Pinned};
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use spinney_base::{Result, ValueRef};
use spinney_engine::OwnedValue;
use std::ops::Bound;

use crate::run::Run;

/// What a link takes beside key and value, about.
const LINK_BYTES: u64 = 40;

/// Bytes of the first chunk of a map.
const ROOM_BYTES: usize = 4 << 10;

/// When a map began to take links: the number of its table, and a count. The lesser is the older.
pub(crate) type Age = (u64, u64);

/// A pre-image: the value or pointer that a key had, or that it had none.
pub(crate) type Link = Option<OwnedValue>;

/// Receives links; answers whether it wants more.
pub(crate) type Show<'a> = &'a mut dyn FnMut(&[u8], Option<ValueRef<'_>>) -> Result<bool>;

const INLINE: u8 = 0;
const LARGE: u8 = 1;
const ABSENT: u8 = 2;

/// Links of one table, as they come.
#[derive(Debug)]
pub(crate) struct LinkMap {
    pub(crate) age: Age,
    map: AppendedMap,
    bytes: AtomicU64,
}

/// The value that an entry of a map stands for.
fn value<'a>(entry: &Appended<'a>) -> Option<ValueRef<'a>> {
    match entry.tag() {
        ABSENT => None,
        tag => Some(ValueRef { bytes: entry.value(), large: tag == LARGE }),
    }
}

impl LinkMap {
    fn new(age: Age) -> Arc<LinkMap> {
        let map = AppendedMap::with_room(ROOM_BYTES);
        Arc::new(LinkMap { age, map, bytes: AtomicU64::new(0) })
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        !self.map.is_empty() && self.map.get(key, &Pinned::new()).is_some()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Link> {
        if self.map.is_empty() {
            return None;
        }
        let pinned = Pinned::new();
        let entry = self.map.get(key, &pinned)?;
        Some(value(&entry).map(OwnedValue::from))
    }

    /// Adds a link, unless the map is sealed. Returns its bytes, if it did.
    pub(crate) fn link(&self, key: &[u8], value: Option<ValueRef<'_>>) -> Option<u64> {
        let tag = value.map_or(ABSENT, |value| if value.large { LARGE } else { INLINE });
        let value = value.unwrap_or(ValueRef::EMPTY).bytes;
        self.map.put(key, tag, value, &Pinned::new()).ok()?;
        let bytes = (key.len() + value.len()) as u64 + LINK_BYTES;
        self.bytes.fetch_add(bytes, SeqCst);
        Some(bytes)
    }

    /// Bytes of its links.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Takes no more links. One under way may still come: see [`crate::spill`].
    pub(crate) fn seal(&self) {
        drop(self.map.seal());
    }

    /// Shows links from one bound to another until `show` returns false. Backward, `from` is the
    /// greater bound.
    pub(crate) fn each(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        forward: bool,
        show: Show<'_>,
    ) -> Result<()> {
        let pinned = Pinned::new();
        let direction = if forward { Direction::Forward } else { Direction::Backward };
        for entry in self.map.range(from, to, direction, &pinned) {
            if !show(entry.key(), value(&entry))? {
                break;
            }
        }
        Ok(())
    }
}

/// Links that come no more, or hardly.
#[derive(Clone, Debug)]
pub(crate) enum Layer {
    /// Sealed and not written yet; or, of a table that was folded, the map that it had.
    Map(Arc<LinkMap>),
    Run(Arc<Run>),
}

impl Layer {
    pub(crate) fn age(&self) -> Age {
        match self {
            Layer::Map(map) => map.age,
            Layer::Run(run) => run.age(),
        }
    }

    /// Number of its links.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Layer::Map(map) => map.len(),
            Layer::Run(run) => run.len(),
        }
    }

    /// Number of its pages on disk.
    pub(crate) fn pages(&self) -> u64 {
        match self {
            Layer::Map(_) => 0,
            Layer::Run(run) => run.page_count(),
        }
    }

    pub(crate) fn get(&self, key: &[u8], hash: u64) -> Result<Option<Link>> {
        match self {
            Layer::Map(map) => Ok(map.get(key)),
            Layer::Run(run) => run.get(key, hash),
        }
    }

    pub(crate) fn each(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        forward: bool,
        show: Show<'_>,
    ) -> Result<()> {
        match self {
            Layer::Map(map) => map.each(range, forward, show),
            Layer::Run(run) => run.each(range, forward, show),
        }
    }

    /// Whether both are one layer.
    pub(crate) fn is(&self, other: &Layer) -> bool {
        match (self, other) {
            (Layer::Map(one), Layer::Map(other)) => Arc::ptr_eq(one, other),
            (Layer::Run(one), Layer::Run(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// What a table is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Oldest first.
    pub(crate) layers: Vec<Layer>,
    /// Takes links.
    pub(crate) map: Arc<LinkMap>,
}

/// The pre-images of one snapshot.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) number: u64,
    pub(crate) parts: ArcSwap<Parts>,
    /// Whether keys that it has nothing of were absent: a load came into an empty keyspace (S17).
    pub(crate) is_rest_absent: AtomicBool,
    /// Marks for this table.
    pub(crate) marks: AtomicU64,
}

impl Table {
    pub(crate) fn new(number: u64) -> Arc<Table> {
        let parts = Parts { layers: Vec::new(), map: LinkMap::new((number, 0)) };
        Arc::new(Table {
            number,
            parts: ArcSwap::from_pointee(parts),
            is_rest_absent: AtomicBool::new(false),
            marks: AtomicU64::new(0),
        })
    }

    /// Replaces the map that takes links, which becomes a layer. The caller alone changes parts.
    pub(crate) fn renew_map(&self) -> Arc<LinkMap> {
        let parts = self.parts.load_full();
        let old = parts.map.clone();
        let mut layers = parts.layers.clone();
        layers.push(Layer::Map(old.clone()));
        let map = LinkMap::new((self.number, old.age.1 + 1));
        self.parts.store(Arc::new(Parts { layers, map }));
        old
    }

    /// Changes the layers. The caller alone changes parts.
    pub(crate) fn change_layers(&self, change: impl FnOnce(&mut Vec<Layer>)) {
        let parts = self.parts.load_full();
        let mut layers = parts.layers.clone();
        change(&mut layers);
        self.parts.store(Arc::new(Parts { layers, map: parts.map.clone() }));
    }
}
