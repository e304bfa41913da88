//! Figure 4: traversal of a linked list whose nodes and payloads are 4 KiB apart.
//!
//! ```text
//!   0 KiB  node: next | payload     4 KiB  payload     8 KiB  node: next | payload   ..
//! ```
//!
//! The list follows the addresses, as in the paper, and then a shuffled order: no hardware prefetches
//! that, and a node is mostly on a page that the TLB does not have.

use std::io::Write;
use std::time::Duration;

use spinney_base::{Error, ErrorKind, Result, Runtime};

use super::lines::number;
use super::plan::{APART, IndexOrganized, LoadOrder};
use crate::paper::{draw, say};
use crate::parent::interrupted;
use crate::permutation::Permutation;

/// Words from a node to its payload.
const STEP: usize = APART / size_of::<u64>();

/// A list in one piece of memory.
struct List {
    words: Vec<u64>,
    nodes: usize,
}

impl List {
    /// Makes a list. The words of a node's payload are its number.
    fn new(nodes: usize, order: LoadOrder, seed: u64) -> List {
        let shuffled = Permutation::new(nodes as u64, seed);
        let at = |number: usize| match order {
            LoadOrder::Key => number,
            LoadOrder::Random => usize::try_from(shuffled.at(number as u64)).unwrap_or(0),
        };
        let mut words = vec![0; nodes * 2 * STEP];
        for number in 0..nodes {
            let node = at(number) * 2 * STEP;
            words[node] = (at((number + 1) % nodes) * 2 * STEP) as u64;
            words[node + 1] = (node + STEP) as u64;
            words[node + STEP..node + 2 * STEP].fill(number as u64);
        }
        List { words, nodes }
    }

    /// Visits every node once, and reads this many bytes of its payload. Returns the sum of the words.
    #[expect(clippy::cast_possible_truncation, reason = "places in a vector")]
    fn traverse(&self, payload: usize, first: usize) -> (u64, usize) {
        let (mut sum, mut node) = (0_u64, first);
        for _ in 0..self.nodes {
            let begin = self.words[node + 1] as usize;
            let words = &self.words[begin..begin + payload / size_of::<u64>()];
            sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(*word));
            node = self.words[node] as usize;
        }
        (sum, node)
    }

    /// Returns the seconds of one traversal, the mean of as many as fit.
    fn measure(&self, payload: usize, how: &IndexOrganized) -> Result<f64> {
        let nodes = self.nodes as u64;
        let words = (payload / size_of::<u64>()) as u64;
        let right = nodes.wrapping_mul(nodes - 1) / 2 * words;
        let (mut count, mut first) = (0_u32, 0);
        let mut traverse = |time: f64| {
            let clock = Runtime::threads();
            loop {
                let (sum, last) = self.traverse(payload, first);
                if sum != right {
                    return Err(Error::new(ErrorKind::Corruption, "a list lost a node"));
                }
                (count, first) = (count + 1, last);
                if (how.interrupted)() {
                    return Err(interrupted("the run was interrupted"));
                }
                if clock.now() >= Duration::from_secs_f64(time) {
                    return Ok((clock.now().as_secs_f64(), std::mem::take(&mut count)));
                }
            }
        };
        traverse(how.seconds[0])?;
        let (seconds, count) = traverse(how.seconds[1])?;
        Ok(seconds / f64::from(count))
    }
}

/// Measures the figure.
pub(super) fn run(how: &IndexOrganized, out: &mut dyn Write) -> Result<()> {
    let plan = &how.list;
    say(out, "\nfig4: one thread traverses a list, nodes and payloads 4 KiB apart; no store")?;
    let mut rows = Vec::new();
    let mut row = |list: &List, order: LoadOrder, payload: usize| {
        let seconds = list.measure(payload, how)?;
        #[expect(clippy::cast_precision_loss, reason = "a time with few digits")]
        let each = seconds * 1e6 / list.nodes as f64;
        let place = if order == LoadOrder::Key { "address" } else { "shuffled" };
        let names = [place.to_owned(), list.nodes.to_string(), payload.to_string()];
        let numbers = [number(Some(seconds * 1e3), 3), number(Some(each), 4)];
        rows.push(names.into_iter().chain(numbers).collect());
        Ok::<(), Error>(())
    };
    for order in [LoadOrder::Key, LoadOrder::Random] {
        for nodes in &plan.nodes {
            let list = List::new(*nodes, order, how.seed);
            row(&list, order, plan.payloads[0])?;
            if plan.nodes.last() == Some(nodes) {
                plan.payloads[1..].iter().try_for_each(|payload| row(&list, order, *payload))?;
            }
        }
    }
    say(out, &draw(&["order", "nodes", "payload B", "ms", "us a node"], 1, rows))?;
    say(
        out,
        "The paper says that time grows linearly with nodes, and with payload; it has no ratio.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::index_organized::plan::small;

    #[test]
    fn lists_are_traversed_whole() {
        for order in [LoadOrder::Key, LoadOrder::Random] {
            let list = List::new(10, order, 3);
            let (sum, end) = list.traverse(16, 0);
            assert_eq!((sum, end), (90, 0), "{order}");
        }
        let mut out = Vec::new();
        run(&small(std::path::Path::new(".")), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().filter(|line| line.starts_with("| shuffled")).count(), 3);
        assert!(text.contains("2048"), "{text}");
    }

    #[test]
    fn a_lost_node_is_found() {
        let how = small(std::path::Path::new("."));
        let mut list = List::new(10, LoadOrder::Key, 3);
        list.words[2 * STEP] = 0;
        assert!(list.measure(64, &how).is_err());
    }
}
