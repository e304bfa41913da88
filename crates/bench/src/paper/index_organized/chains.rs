//! Figure 8 of *Index-Organized storage model* (section 4.6) as a measurement: readers that follow a chain of versions to
//! its oldest, with and without what lets the processor fetch versions ahead.
//!
//! ```text
//!   list     head -> [end next jump | bytes] -> [..] -> [..]      each address comes from the version before
//!                          \________________________^             jump: two ahead
//!   cell     [stamps, image] [stamps, image] [stamps, image]      all addresses lie side by side
//! ```
//!
//! The lists are the paper's, made here for comparison: a line each, in random order. The cells are those of `iot`, filled by
//! transactions, beside one that began before them and reads. Every version is the part of the value that it
//! replaced, 8 of 100 bytes; in a cell one of sixteen is a whole value, and the search begins there.

use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use spinney_base::runtime::SplitMix;
use spinney_base::size::display_bytes;
use spinney_base::{Error, ErrorKind, Result, Runtime};
use spinney_engine::{OlderImage, OwnedValue, Patch, UndoBytes};
use spinney_ssn::{CellRef, Cells, Certifier, Image, Images, Sees, Sight, Transaction, Version};

use super::plan::IndexOrganized;
use crate::paper::{draw, say};
use crate::parent::interrupted;
use crate::permutation::Permutation;

/// Bytes of a value, and of the part that versions differ in.
const VALUE_BYTES: usize = 100;
const PART_BYTES: usize = 8;
/// Bytes of a patch of one part.
const PATCH_BYTES: usize = Patch::PART_BYTES + PART_BYTES;
/// Versions that a jump pointer leads ahead (figure 8).
const JUMP: usize = 2;
/// Walks between two looks at the clock.
const WALKS: u64 = 256;
/// In place of a link at the end of a chain.
const END: u32 = u32::MAX;

/// The part that a version replaced: it tells which version that was.
fn patch_of(chain: u32, version: usize) -> [u8; PATCH_BYTES] {
    let (mut patch, number) = (Vec::with_capacity(PATCH_BYTES), version as u64);
    let bytes = (u64::from(chain) << 32 | number).to_le_bytes();
    Patch::push(&mut patch, 16, &bytes);
    patch.try_into().expect("it is one part")
}

/// Which version a value is of.
fn version_of(value: &[u8]) -> (u32, usize) {
    let number = u64::from_le_bytes(value[16..24].try_into().expect("eight bytes"));
    ((number >> 32) as u32, (number & u64::from(u32::MAX)) as usize)
}

/// A version of a list: one line.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Node {
    /// The stamp from which on it is not seen.
    end: u64,
    next: u32,
    jump: u32,
    patch: [u8; PATCH_BYTES],
}

/// Chains as lists.
struct Lists {
    nodes: Vec<Node>,
    heads: Vec<u32>,
}

impl Lists {
    fn new(chains: u32, length: usize, seed: u64) -> Lists {
        let all = u64::from(chains) * length as u64;
        let place = Permutation::new(all, seed);
        let at = |chain: u32, back: usize| {
            let is_there = back < length;
            let index = u64::from(chain) * length as u64 + back as u64;
            if is_there { u32::try_from(place.at(index)).expect("nodes are few") } else { END }
        };
        let empty = Node { end: 0, next: END, jump: END, patch: [0; PATCH_BYTES] };
        let mut nodes = vec![empty; usize::try_from(all).expect("it fits into memory")];
        for chain in 0..chains {
            for back in 0..length {
                // The newest version is `length`, and replaced at the stamp behind it.
                let version = length - back;
                nodes[at(chain, back) as usize] = Node {
                    end: version as u64 + 1,
                    next: at(chain, back + 1),
                    jump: at(chain, back + JUMP),
                    patch: patch_of(chain, version),
                };
            }
        }
        Lists { nodes, heads: (0..chains).map(|chain| at(chain, 0)).collect() }
    }

    /// Follows a chain to its oldest version.
    #[inline(never)]
    fn walk(&self, chain: u32, begin: u64, value: &mut [u8]) {
        let mut at = self.heads[chain as usize];
        while let Some(node) = self.nodes.get(at as usize).filter(|node| node.end > begin) {
            lay(&node.patch, value);
            at = node.next;
        }
    }

    /// Does the same by jump pointers.
    #[inline(never)]
    fn walk_ahead(&self, chain: u32, begin: u64, value: &mut [u8]) {
        let mut at = self.heads[chain as usize];
        while let Some(node) = self.nodes.get(at as usize).filter(|node| node.end > begin) {
            if let Some(ahead) = self.nodes.get(node.jump as usize) {
                spinney_sync::prefetch(ahead);
            }
            lay(&node.patch, value);
            at = node.next;
        }
    }
}

fn lay(patch: &[u8], value: &mut [u8]) {
    let is_laid = Patch::parse(patch).is_some_and(|patch| patch.lay_over(value));
    debug_assert!(is_laid, "it is of this value");
}

/// Chains in cells.
struct InCells {
    certifier: Certifier,
    cells: Arc<Cells<OlderImage>>,
    handles: Vec<CellRef<OlderImage>>,
    /// Sees the oldest version of all.
    early: Transaction<CellRef<OlderImage>>,
}

impl InCells {
    fn new(chains: u32, length: usize, ahead: Option<usize>, seed: u64) -> Result<InCells> {
        let certifier = Certifier::above(0);
        let cells = Arc::new(ahead.map_or_else(Cells::default, Cells::fetching));
        let handles: Vec<_> = (0..chains).map(|_| cells.take(Version::present(0))).collect();
        let early = certifier.begin()?;
        for version in 1..=length {
            // Versions of a chain do not lie side by side.
            let order = Permutation::new(u64::from(chains), seed + version as u64);
            for at in 0..u64::from(chains) {
                let chain = u32::try_from(order.at(at)).expect("it is a chain");
                let cell = &handles[chain as usize];
                let mut writer = certifier.begin_plain()?;
                assert!(
                    matches!(writer.poll_own(cell, None), Poll::Ready(Ok(()))),
                    "nobody else writes"
                );
                writer.certify()?;
                writer.decide();
                writer.publish(|cell| {
                    cells.keep_image(cell.index(), |is_whole| image_of(chain, version, is_whole));
                    Image::Value
                });
                writer.finish();
            }
        }
        Ok(InCells { certifier, cells, handles, early })
    }

    /// Reads the oldest version.
    #[inline(never)]
    fn read(&self, chain: u32, sight: Sight, value: &mut [u8]) {
        let index = self.handles[chain as usize].index();
        let seen = self.cells.see(index, (sight, &self.certifier), |images| follow(images, value));
        debug_assert!(matches!(seen, Poll::Ready(Sees::Older(..))), "it was overwritten");
    }
}

/// What a version leaves of the one before.
fn image_of(chain: u32, version: usize, is_whole: bool) -> OlderImage {
    let patch = patch_of(chain, version);
    if !is_whole {
        return OlderImage::Undo(UndoBytes::from_slice(&patch));
    }
    let mut bytes = vec![0; VALUE_BYTES];
    lay(&patch, &mut bytes);
    OlderImage::Whole(OwnedValue { bytes, large: false })
}

fn follow(images: Images<'_, OlderImage>, value: &mut [u8]) {
    for image in images {
        match image {
            OlderImage::Absent => {}
            OlderImage::Whole(whole) => value.copy_from_slice(&whole.bytes),
            OlderImage::Undo(undo) => lay(undo, value),
        }
    }
}

/// Calls `read` with random chains for a while. Returns nanoseconds a chain.
///
/// # Errors
/// `Corruption` when it is not the oldest version that was read.
fn time(how: &IndexOrganized, chains: u32, mut read: impl FnMut(u32, &mut [u8])) -> Result<f64> {
    let mut random = SplitMix(how.seed);
    let mut value = vec![0; VALUE_BYTES];
    let (clock, long) = (Runtime::threads(), Duration::from_secs_f64(how.seconds[1]));
    let (mut walks, begun) = (0, clock.now());
    while clock.now() - begun < long {
        for _ in 0..WALKS {
            let chain = u32::try_from(random.next_u64() % u64::from(chains)).expect("it is one");
            read(chain, black_box(&mut value));
            if version_of(&value) != (chain, 1) {
                let message = format!("chain {chain} ends at {:?}", version_of(&value));
                return Err(Error::new(ErrorKind::Corruption, message));
            }
        }
        walks += WALKS;
        if (how.interrupted)() {
            return Err(interrupted("the run was interrupted"));
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a time with few digits")]
    Ok((clock.now() - begun).as_nanos() as f64 / walks as f64)
}

const COLUMNS: [&str; 8] =
    ["chain", "chains", "list ns", "jump ns", "list/jump", "cell ns", "fetched ns", "cell/fetched"];

/// Measures and prints the table.
///
/// # Errors
/// `Corruption` for a wrong answer; `Cancelled`.
pub(super) fn run(how: &IndexOrganized, out: &mut dyn Write) -> Result<()> {
    say(
        out,
        &format!(
            "\nfig8: chains of versions of at least {}, read to the oldest: nanoseconds a chain. list: linked, a line a\n\
             version; jump: with jump pointers two ahead (the paper's); cell: as iot keeps them; fetched: with\n\
             versions fetched ahead, as iot reads them. Instructions: `valgrind --tool=callgrind`, of the\n\
             functions walk, walk_ahead and read.",
            display_bytes(how.chains.bytes)
        ),
    )?;
    let mut rows = Vec::new();
    for length in how.chains.lengths.iter().copied() {
        let chains = how.chains.bytes.div_ceil((length * size_of::<Node>()) as u64);
        let chains =
            u32::try_from(chains).ok().filter(|_| chains * (length as u64) < u64::from(END));
        let chains = chains.ok_or_else(|| Error::invalid("--versions are too many"))?;
        let lists = Lists::new(chains, length, how.seed);
        let list = time(how, chains, |chain, value| lists.walk(chain, 0, value))?;
        let jump = time(how, chains, |chain, value| lists.walk_ahead(chain, 0, value))?;
        drop(lists);
        let mut times = [0.0; 2];
        for (time_of, ahead) in times.iter_mut().zip([Some(0), None]) {
            let cells = InCells::new(chains, length, ahead, how.seed)?;
            let sight = cells.early.sight();
            *time_of = time(how, chains, |chain, value| cells.read(chain, sight, value))?;
        }
        let [cell, fetched] = times;
        let ns = |time: f64| format!("{time:.0}");
        let ratio = |one: f64, other: f64| format!("{:.2}", one / other.max(1e-9));
        let ratios = [ratio(list, jump), ratio(cell, fetched)];
        let [of_list, of_cell] = ratios;
        rows.push(vec![
            length.to_string(),
            chains.to_string(),
            ns(list),
            ns(jump),
            of_list,
            ns(cell),
            ns(fetched),
            of_cell,
        ]);
    }
    say(out, &draw(&COLUMNS, 0, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_followed_to_the_oldest() {
        let mut how = crate::paper::index_organized::plan::small(std::path::Path::new("."));
        how.seconds[1] = 0.001;
        let mut out = Vec::new();
        run(&how, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("    30 |") && text.contains("fetched"), "{text}");
    }
}
