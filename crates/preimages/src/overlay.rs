//! The links of a part of a range, to be laid over what the engine shows of it.
//!
//! The engine has delivered its part, without dirty records of marked keys. Then (S12) all tables from
//! the newest to the oldest are looked through, and of each key the oldest link is kept. Marks are no
//! part of that, because they are in no order; so they are looked up for the keys that were found. Where
//! an older table has a mark for a key, its page counts, which the engine delivered. A mark that was
//! resolved meanwhile has become a link, in the map of its table, perhaps after that was looked at: then
//! the maps of older tables are looked at once more for the keys that were found, and everything if one
//! of them was replaced.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use spinney_base::shim::atomic::Ordering::SeqCst;
use spinney_base::{Result, ValueRef};
use spinney_engine::overlay::Edits;
use spinney_engine::{OwnedValue, ScanRequest};
use spinney_sync::hash_key;

use crate::find::Seen;
use crate::keep::PreImages;
use crate::table::{Age, Layer, Link, LinkMap, Table};

/// Most links of one source that are gathered at once, and most bytes.
const LINKS_MAX: usize = 4096;
const LINKS_BYTES_MAX: usize = 256 << 10;

/// Links of a part of a range, in the direction of the request.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    links: Vec<(Vec<u8>, Link)>,
    next: usize,
    /// The last key of the part, if that ends before what was asked for.
    pub(crate) end: Option<Vec<u8>>,
    /// Whether what the engine shows of other keys was not there.
    pub(crate) hides_rest: bool,
}

impl Edits for Overlay {
    fn peek(&mut self) -> Option<(&[u8], Option<ValueRef<'_>>)> {
        let (key, link) = self.links.get(self.next)?;
        Some((key, link.as_ref().map(OwnedValue::as_value)))
    }

    fn advance(&mut self) {
        self.next += 1;
    }
}

/// What gathering has found.
struct Gathered {
    forward: bool,
    links: BTreeMap<Vec<u8>, (Age, Link)>,
    /// The nearest of the last keys of sources that have more.
    end: Option<Vec<u8>>,
}

impl Gathered {
    fn is_beyond(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_some_and(|end| if self.forward { key > end } else { key < end })
    }

    fn note(&mut self, key: &[u8], age: Age, value: Option<ValueRef<'_>>) {
        let link = || value.map(OwnedValue::from);
        match self.links.get_mut(key) {
            None => _ = self.links.insert(key.to_vec(), (age, link())),
            Some(found) if age < found.0 => *found = (age, link()),
            Some(_) => {}
        }
    }

    fn note_end(&mut self, key: Vec<u8>) {
        if self.end.is_none() || !self.is_beyond(&key) {
            self.end = Some(key);
        }
    }
}

impl PreImages {
    /// Gathers the links of snapshot `number` from one bound to another, in the direction of the
    /// request.
    pub(crate) fn overlay(
        &self,
        number: u64,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        forward: bool,
    ) -> Result<Overlay> {
        let resolved = self.resolved.load(SeqCst);
        let tables = self.tables.load_full();
        let needed: Vec<_> = tables.iter().filter(|table| table.number >= number).collect();
        let hidden = needed.iter().position(|table| table.is_rest_absent.load(SeqCst));
        let needed = &needed[..hidden.map_or(needed.len(), |index| index + 1)];
        let mut gathered = Gathered { forward, links: BTreeMap::new(), end: None };
        let mut looked = Vec::with_capacity(needed.len());
        for table in needed.iter().rev() {
            let parts = table.parts.load_full();
            looked.push((Arc::clone(table), parts.map.clone()));
            let map = Layer::Map(parts.map.clone());
            for layer in std::iter::once(&map).chain(parts.layers.iter().rev()) {
                gather(&mut gathered, layer, range)?;
            }
        }
        let Gathered { mut links, end, .. } = gathered;
        if let Some(end) = &end {
            links.retain(|key, _| if forward { key <= end } else { key >= end });
        }
        self.heed_marks((number, resolved), &looked, &mut links)?;
        let mut links: Vec<_> = links.into_iter().map(|(key, (_, link))| (key, link)).collect();
        if !forward {
            links.reverse();
        }
        Ok(Overlay { links, next: 0, end, hides_rest: hidden.is_some() })
    }

    /// Takes those out whose pages count, and looks again if a mark went meanwhile: since `resolved` had
    /// gone. `looked` are the tables, newest first, with the maps that were looked at.
    fn heed_marks(
        &self,
        (number, resolved): (u64, u64),
        looked: &[(Arc<Table>, Arc<LinkMap>)],
        links: &mut BTreeMap<Vec<u8>, (Age, Link)>,
    ) -> Result<()> {
        let hash = |key: &[u8]| hash_key(self.context.keyspace, key);
        if self.has_marks() {
            links.retain(|key, (age, _)| {
                let mark = self.marks.get(key, hash(key));
                // Its own table's links are older than its mark, if they are there at all.
                !mark.is_some_and(|mark| (number..age.0).contains(&mark.table))
            });
        }
        let Some((oldest, _)) = looked.last() else { return Ok(()) };
        if self.resolved.load(SeqCst) == resolved {
            return Ok(());
        }
        let is_in_maps =
            looked.iter().all(|(table, map)| Arc::ptr_eq(&table.parts.load().map, map));
        let mut gone = Vec::new();
        // No mark is older than links of the oldest table.
        for (key, (age, link)) in links.iter_mut().filter(|(_, (age, _))| age.0 > oldest.number) {
            if is_in_maps {
                let older = looked.iter().rev().take_while(|(table, _)| table.number < age.0);
                if let Some(found) = older.into_iter().find_map(|(_, map)| map.get(key)) {
                    *link = found;
                }
                continue;
            }
            match self.find(number, key, hash(key))? {
                Seen::Link(found) => *link = found,
                _ => gone.push(key.clone()),
            }
        }
        gone.iter().for_each(|key| _ = links.remove(key));
        Ok(())
    }

    /// Returns whether a dirty record of this key is to be passed over by a scan of a snapshot.
    pub(crate) fn hides(&self, number: u64, key: &[u8]) -> bool {
        let mark = self.marks.get(key, hash_key(self.context.keyspace, key));
        mark.is_some_and(|mark| mark.table >= number)
    }
}

fn gather(
    gathered: &mut Gathered,
    layer: &Layer,
    range: (Bound<&[u8]>, Bound<&[u8]>),
) -> Result<()> {
    let (age, forward) = (layer.age(), gathered.forward);
    let (mut count, mut bytes) = (0, 0);
    let mut last = None;
    layer.each(range, forward, &mut |key, value| {
        if gathered.is_beyond(key) {
            return Ok(false);
        }
        if let Some(last) = last.take() {
            gathered.note_end(last);
            return Ok(false);
        }
        count += 1;
        bytes += key.len() + value.map_or(0, ValueRef::len);
        if count == LINKS_MAX || bytes >= LINKS_BYTES_MAX {
            last = Some(key.to_vec());
        }
        gathered.note(key, age, value);
        Ok(true)
    })
}

/// Bounds of a request, from the end that is read first.
pub(crate) fn ends<'a>(
    request: &ScanRequest<'a>,
    forward: bool,
) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    if forward { (request.lower, request.upper) } else { (request.upper, request.lower) }
}
