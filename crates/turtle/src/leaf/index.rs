//! The order in which the nodes of a leaf's index lie: van Emde Boas order, so that a search reads
//! few pages, and in them few cache lines, whatever the sizes of either are.
//!
//! ```text
//!          7                     a tree of height 4 is cut in the middle: the upper half (7 3 11)
//!      /       \                 lies first, then each lower one, each cut again the same way
//!     3         11
//!   /   \      /   \             7 3 11 | 1 0 2 | 5 4 6 | 9 8 10 | 13 12 14
//!  1     5    9     13
//! 0 2   4 6  8 10  12 14
//! ```
//!
//! The search tree is the balanced one over the separators between groups. A half that is no larger
//! than a page is never laid across a border, so that a path of 2^13 groups (16 MiB of records of
//! 128 bytes) crosses two pages; what this skips is less than the half itself.
//!
//! A *separator* is the shortest string above the last key of a group and not above the first of
//! the next.

use std::ops::Range;

use super::format::{GroupAt, NODE_BYTES, PAYLOAD, Target};

/// The nodes of an index that is being built.
#[derive(Debug)]
pub(crate) struct Nodes<'a> {
    /// Separator `i` is between groups `i` and `i + 1`; without the prefix.
    separators: Vec<&'a [u8]>,
    groups: Vec<GroupAt>,
    addresses: Vec<usize>,
    /// The address behind the last node.
    end: usize,
}

impl<'a> Nodes<'a> {
    /// Lays the nodes out from address `start` on. There is one separator less than groups, and one
    /// group at least.
    pub(crate) fn lay_out(separators: Vec<&'a [u8]>, groups: Vec<GroupAt>, start: usize) -> Self {
        debug_assert_eq!(separators.len() + 1, groups.len());
        let count = separators.len();
        let mut nodes = Nodes { separators, groups, addresses: vec![0; count], end: start };
        if count > 0 {
            nodes.place(0..count, height(count), &mut Vec::new());
        }
        nodes
    }

    /// The address behind the last node.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// Where searches begin.
    pub(crate) fn root(&self) -> Target {
        self.target(0..self.separators.len())
    }

    /// Each node's address and bytes.
    pub(crate) fn encode(&self, mut write: impl FnMut(usize, &[u8])) {
        let mut pending = Vec::from([Range { start: 0, end: self.separators.len() }]);
        let mut node = Vec::new();
        while let Some(range) = pending.pop() {
            if range.is_empty() {
                continue;
            }
            let [left, right] = halves(&range);
            let separator = self.separators[left.end];
            let length = u16::try_from(separator.len()).expect("a part of a key");
            node.clear();
            node.extend_from_slice(&self.target(left.clone()).encode().to_le_bytes());
            node.extend_from_slice(&self.target(right.clone()).encode().to_le_bytes());
            node.extend_from_slice(&length.to_le_bytes());
            node.extend_from_slice(separator);
            write(self.addresses[left.end], &node);
            pending.extend([left, right]);
        }
    }

    /// What stands for the tree over these separators.
    fn target(&self, range: Range<usize>) -> Target {
        if range.is_empty() {
            return Target::Group(self.groups[range.start]);
        }
        let address = self.addresses[halves(&range)[0].end];
        Target::Node(u32::try_from(address).expect("a leaf has at most 2^15 pages"))
    }

    /// Places the upper `height` levels of the tree over `range` and appends what hangs below them.
    fn place(&mut self, range: Range<usize>, height: u32, below: &mut Vec<Range<usize>>) {
        let room = PAYLOAD - self.end % PAYLOAD;
        let bytes = self.bytes(&range, height);
        if bytes > room && bytes <= PAYLOAD {
            self.end += room;
        }
        let [left, right] = halves(&range);
        if height == 1 {
            self.addresses[left.end] = self.end;
            self.end += NODE_BYTES + self.separators[left.end].len();
            below.extend([left, right].into_iter().filter(|half| !half.is_empty()));
            return;
        }
        let mut middle = Vec::new();
        self.place(range, height / 2, &mut middle);
        for range in middle {
            self.place(range, height - height / 2, below);
        }
    }

    /// Bytes of the upper `levels` levels of the tree over `range`.
    fn bytes(&self, range: &Range<usize>, levels: u32) -> usize {
        if range.is_empty() || levels == 0 {
            return 0;
        }
        let [left, right] = halves(range);
        let own = NODE_BYTES + self.separators[left.end].len();
        own + self.bytes(&left, levels - 1) + self.bytes(&right, levels - 1)
    }
}

/// What is left and right of the middle, which is the node of the range.
fn halves(range: &Range<usize>) -> [Range<usize>; 2] {
    let middle = usize::midpoint(range.start, range.end);
    [range.start..middle, middle + 1..range.end]
}

/// Levels of the balanced tree of so many nodes.
fn height(nodes: usize) -> u32 {
    usize::BITS - nodes.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_lie_in_the_order_of_the_picture() {
        let groups = vec![GroupAt { page: 0, group: 0 }; 16];
        let nodes = Nodes::lay_out(vec![&[]; 15], groups, 100);
        let mut order: Vec<usize> = (0..15).collect();
        order.sort_by_key(|node| nodes.addresses[*node]);
        assert_eq!(order, [7, 3, 11, 1, 0, 2, 5, 4, 6, 9, 8, 10, 13, 12, 14]);
        assert_eq!((nodes.addresses[7], nodes.end()), (100, 250));
    }

    #[test]
    fn a_path_crosses_two_pages_and_no_node_a_border() {
        for groups in [1, 2, 3, 100, 1000, 8192] {
            let separator = [1u8; 4];
            let list = vec![GroupAt { page: 0, group: 0 }; groups];
            let nodes = Nodes::lay_out(vec![&separator[..]; groups - 1], list, 48);
            let mut pending = vec![(0..groups - 1, Vec::new())];
            while let Some((range, mut path)) = pending.pop() {
                path.dedup();
                if range.is_empty() {
                    assert!(path.len() <= 2, "{groups} groups: {path:?}");
                    continue;
                }
                let [left, right] = halves(&range);
                let address = nodes.addresses[left.end];
                assert!(address % PAYLOAD + NODE_BYTES + 4 <= PAYLOAD);
                path.push(address / PAYLOAD);
                pending.extend([(left, path.clone()), (right, path)]);
            }
            assert!(nodes.end() < 48 + groups * 14 * 5 / 4 + PAYLOAD);
        }
    }
}
