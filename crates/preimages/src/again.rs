//! Keys that were linked again after the map with their first link had been written out.
//!
//! A writer looks for a key in the map that takes links, and in no run: that would be a read. So a key that is
//! written all the time is linked once in each map. The oldest link counts, so when a map is written out and runs take
//! more than half of what they may, the others are left behind. What runs of a table take is then bounded by the
//! data, and not by the number of writes. Merges leave them behind, too.

use spinney_base::Result;

use crate::run::{Run, see_pages};
use crate::table::{Layer, LinkMap};

/// Keys that are looked up together.
const TOGETHER: usize = 128;

/// Pages that are read side by side. A key that is written all the time may be in every run: it is found in one of
/// the first, and no page of the others is read for it.
const PAGES_TOGETHER: usize = 64;

/// Says of each link of a map, in the order of the keys, whether one of these older layers has its key.
pub(crate) fn linked_before(
    map: &LinkMap,
    older: &[Layer],
    hash: impl Fn(&[u8]) -> u64,
) -> Result<Vec<bool>> {
    if older.is_empty() {
        return Ok(vec![false; usize::try_from(map.len()).unwrap_or(usize::MAX)]);
    }
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
    // Pages of several runs are read at once: a spill that takes long lets maps grow meanwhile.
    let mut pages: Vec<(&Run, usize)> = Vec::with_capacity(PAGES_TOGETHER);
    let mut asked: Vec<Vec<usize>> = Vec::with_capacity(PAGES_TOGETHER);
    for layer in older {
        let Layer::Run(run) = layer else { continue };
        for (index, (key, hash)) in keys.iter().enumerate() {
            if before[index] {
                continue;
            }
            let Some(page) = run.page_that_may_have(key, *hash) else { continue };
            let is_last =
                |(last, number): &(&Run, usize)| std::ptr::eq(*last, &**run) && *number == page;
            if pages.last().is_some_and(is_last)
                && let Some(of_last) = asked.last_mut()
            {
                of_last.push(index);
                continue;
            }
            if pages.len() == PAGES_TOGETHER {
                look_in_pages(keys, &mut pages, &mut asked, before)?;
                if before[index] {
                    continue;
                }
            }
            pages.push((run, page));
            asked.push(vec![index]);
        }
    }
    look_in_pages(keys, &mut pages, &mut asked, before)
}

/// Reads pages, and looks in each for the keys that it was chosen for.
fn look_in_pages(
    keys: &[(Vec<u8>, u64)],
    pages: &mut Vec<(&Run, usize)>,
    asked: &mut Vec<Vec<usize>>,
    before: &mut [bool],
) -> Result<()> {
    see_pages(pages, &mut |place, view| {
        for index in &asked[place] {
            before[*index] |= view.find(&keys[*index].0).is_some();
        }
    })?;
    pages.clear();
    asked.clear();
    Ok(())
}
