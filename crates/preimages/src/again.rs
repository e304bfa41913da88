//! Keys that were linked again after the map with their first link had been written out.
//!
//! A writer looks for a key in the map that takes links, and in no run: that would be a read. So a key that is
//! written all the time is linked once in each map. The oldest link counts, so when a map is written out and runs take
//! more than half of what they may, the others are left behind. What runs of a table take is then bounded by the
//! data, and not by the number of writes. Merges leave them behind, too.

use std::collections::BTreeMap;

use spinney_base::Result;

use crate::run::Run;
use crate::table::{Layer, LinkMap};

/// Keys that are looked up together: the pages that may have them are read side by side.
const TOGETHER: usize = 256;

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
    before.resize(start + keys.len(), false);
    let before = &mut before[start..];
    for layer in older {
        match layer {
            Layer::Map(map) => {
                let of_map = keys.iter().zip(&mut *before);
                of_map.for_each(|((key, _), before)| *before |= map.contains(key));
            }
            Layer::Run(run) => look_in_run(keys, run, before)?,
        }
    }
    Ok(())
}

fn look_in_run(keys: &[(Vec<u8>, u64)], run: &Run, before: &mut [bool]) -> Result<()> {
    let mut pages: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, (key, hash)) in keys.iter().enumerate().filter(|(index, _)| !before[*index]) {
        if let Some(page) = run.page_that_may_have(key, *hash) {
            pages.entry(page).or_default().push(index);
        }
    }
    let numbers: Vec<usize> = pages.keys().copied().collect();
    run.see_pages(&numbers, &mut |page, view| {
        for index in &pages[&page] {
            before[*index] = view.find(&keys[*index].0).is_some();
        }
    })
}
