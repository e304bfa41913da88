//! Keys that were linked again after the map with their first link had been written out.
//!
//! A writer looks for a key in the map that takes links, and in no run: that would be a read. So a key that is
//! written all the time is linked once in each map. The oldest link counts, so when a map is written out and runs take
//! more than half of what they may, the others are left behind. What runs of a table take is then bounded by the
//! data, and not by the number of writes. Merges leave them behind, too.

use spinney_base::Result;

use crate::run::{Run, see_pages};
use crate::table::{Layer, LinkMap};

/// Keys that are looked up together: the pages that may have them are read side by side.
const TOGETHER: usize = 128;

/// Says of each link of a map, in the order of the keys, whether one of these older layers has its key.
pub(crate) fn linked_before(
    map: &LinkMap,
    older: &[Layer],
    hash: impl Fn(&[u8]) -> u64,
) -> Result<Vec<bool>> {
    let mut before = Vec::new();
    let mut some: Vec<(Vec<u8>, u64)> = Vec::new();
    map.each(super::spill::ALL, true, &mut |key, _| {
        some.push((key.to_vec(), hash(key)));
        if some.len() == TOGETHER {
            look(&some, older, &mut before)?;
            some.clear();
        }
        Ok(true)
    })?;
    look(&some, older, &mut before)?;
    Ok(before)
}

/// Appends whether a layer has each of these keys, which ascend.
fn look(keys: &[(Vec<u8>, u64)], older: &[Layer], before: &mut Vec<bool>) -> Result<()> {
    let start = before.len();
    let in_maps = |key: &[u8]| {
        older.iter().any(|layer| matches!(layer, Layer::Map(map) if map.contains(key)))
    };
    before.extend(keys.iter().map(|(key, _)| in_maps(key)));
    let before = &mut before[start..];
    // The pages of all runs are read at once: a spill that takes long lets maps grow meanwhile.
    let mut pages: Vec<(&Run, usize)> = Vec::new();
    let mut asked: Vec<Vec<usize>> = Vec::new();
    for layer in older {
        let Layer::Run(run) = layer else { continue };
        let mut last = None;
        for (index, (key, hash)) in keys.iter().enumerate().filter(|(index, _)| !before[*index]) {
            let Some(page) = run.page_that_may_have(key, *hash) else { continue };
            if last != Some(page) {
                pages.push((run, page));
                asked.push(Vec::new());
                last = Some(page);
            }
            asked.last_mut().expect("one was pushed").push(index);
        }
    }
    see_pages(&pages, &mut |place, view| {
        for index in &asked[place] {
            before[*index] |= view.find(&keys[*index].0).is_some();
        }
    })
}
