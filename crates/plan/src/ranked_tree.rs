//! Trees of ranked candidates that are grown node by node, while the next node pays.
//!
//! Medusa (arXiv 2401.10774, section 2.3.3) and Sequoia (arXiv 2402.12374) choose a tree by the
//! acceptance of ranks and positions that was measured before, OPT-Tree (arXiv 2406.17276) by the
//! drafter's probabilities. Here the acceptance is measured online, and the tree has as many nodes
//! and depths as give the most tokens a second.

use crate::acceptance::Acceptance;
use crate::outlook::{Outlook, PathStates};
use crate::ranks::RANKS;
use forerun_core::{DraftShape, Node, TokenTree};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The largest tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLimits {
    /// The number of depths.
    pub depth: usize,
    /// The number of nodes.
    pub nodes: usize,
}

/// What the time of a draft depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DraftSize {
    pub(crate) nodes: usize,
    pub(crate) depth: usize,
    /// The number of rows with children, which a drafter computes.
    pub(crate) parents: usize,
}

impl DraftSize {
    pub(crate) fn of_chain(length: usize) -> Self {
        Self { nodes: length, depth: length, parents: length }
    }

    pub(crate) fn of(tree: &TokenTree) -> Self {
        let is_first = |&node: &Node| tree.children(tree.parent(node)).next() == Some(node);
        let parents = (0..tree.len()).filter(is_first).count();
        Self { nodes: tree.len(), depth: tree.max_depth(), parents }
    }
}

/// A tree of ranked candidates, with the expected tokens and time of a round with it.
#[derive(Clone, Debug)]
pub(crate) struct GrownTree {
    /// The number of children of each row, as in [`DraftShape::Ranked`].
    pub(crate) children: Vec<usize>,
    pub(crate) size: DraftSize,
    pub(crate) tokens: f64,
    pub(crate) ns: f64,
}

/// Returns the tree with the most expected tokens per nanosecond. `round_ns` is the time of a round
/// with a draft of a size, which more nodes never make shorter; `depths` are the depths to try.
pub(crate) fn fastest_tree(
    outlook: &Outlook,
    limits: TreeLimits,
    depths: impl Iterator<Item = usize>,
    round_ns: impl Fn(DraftSize) -> f64,
) -> GrownTree {
    let nothing = DraftSize::default();
    let mut best =
        GrownTree { children: Vec::new(), size: nothing, tokens: 0.0, ns: f64::INFINITY };
    for depth in depths {
        let mut growing = GrowingTree::new(outlook, depth);
        let mut improved = None;
        while let Some(next) = growing.next_probability()
            && growing.nodes.len() < limits.nodes
        {
            let left = (limits.nodes - growing.nodes.len()) as f64;
            let at_best = (growing.tokens + left * next) / round_ns(growing.size);
            if at_best <= best.tokens / best.ns {
                break;
            }
            growing.push();
            let (size, tokens, ns) = (growing.size, growing.tokens, round_ns(growing.size));
            if tokens / ns > best.tokens / best.ns {
                (best.size, best.tokens, best.ns) = (size, tokens, ns);
                improved = Some(size.nodes);
            }
        }
        if let Some(nodes) = improved {
            best.children = children_by_row(&growing.nodes[..nodes]);
        }
    }
    best
}

/// Returns the tree of the nodes that are accepted most often for a drafter about which nothing is
/// known.
#[must_use]
pub fn typical_tree(limits: TreeLimits) -> DraftShape {
    let outlook = Acceptance::default().outlook(false, limits.depth, usize::MAX);
    let mut growing = GrowingTree::new(&outlook, limits.depth);
    while growing.nodes.len() < limits.nodes && growing.next_probability().is_some() {
        growing.push();
    }
    DraftShape::Ranked { children: children_by_row(&growing.nodes) }
}

/// A tree that grows by the candidate that is accepted most often, of those whose parents and
/// better siblings it has.
struct GrowingTree<'a> {
    outlook: &'a Outlook,
    depth: usize,
    frontier: BinaryHeap<Candidate>,
    /// For each node, the row of its parent.
    nodes: Vec<usize>,
    size: DraftSize,
    tokens: f64,
}

struct Candidate {
    probability: f64,
    path: PathStates,
    /// The row of the parent.
    parent: usize,
    parent_path: PathStates,
    position: usize,
    rank: usize,
}

impl<'a> GrowingTree<'a> {
    fn new(outlook: &'a Outlook, depth: usize) -> Self {
        let (frontier, nodes, size) = (BinaryHeap::new(), Vec::new(), DraftSize::default());
        let mut tree = Self { outlook, depth, frontier, nodes, size, tokens: 1.0 };
        tree.consider(0, outlook.states, 0, 0);
        tree
    }

    /// Returns the probability that the next node is accepted, if there is one.
    fn next_probability(&self) -> Option<f64> {
        self.frontier.peek().map(|candidate| candidate.probability)
    }

    fn consider(&mut self, parent: usize, parent_path: PathStates, position: usize, rank: usize) {
        if position < self.depth && rank < RANKS {
            let path = self.outlook.with_candidate(parent_path, position, rank);
            let probability = path[0] + path[1];
            self.frontier.push(Candidate {
                probability,
                path,
                parent,
                parent_path,
                position,
                rank,
            });
        }
    }

    /// Adds the next node.
    fn push(&mut self) {
        let Some(candidate) = self.frontier.pop() else { return };
        let Candidate { probability, path, parent, parent_path, position, rank } = candidate;
        self.nodes.push(parent);
        self.size.nodes += 1;
        self.size.depth = self.size.depth.max(position + 1);
        self.size.parents += usize::from(rank == 0);
        self.tokens += probability;
        self.consider(self.nodes.len(), path, position + 1, 0);
        self.consider(parent, parent_path, position, rank + 1);
    }
}

/// Returns the number of children of each row in the order of depths. `parents`: for each node, the
/// row of its parent.
fn children_by_row(parents: &[usize]) -> Vec<usize> {
    let mut rows_below = vec![Vec::new(); parents.len() + 1];
    for (node, &parent) in parents.iter().enumerate() {
        rows_below[parent].push(node + 1);
    }
    let (mut rows, mut children) = (vec![0], Vec::new());
    while let Some(&row) = rows.get(children.len()) {
        children.push(rows_below[row].len());
        rows.extend(&rows_below[row]);
    }
    while children.pop_if(|count| *count == 0).is_some() {}
    children
}

// By probability; of equals, the one that is closer to the prefix and better.
impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let earlier = |candidate: &Self| (candidate.position, candidate.rank, candidate.parent);
        let by_probability = self.probability.total_cmp(&other.probability);
        by_probability.then_with(|| earlier(other).cmp(&earlier(self)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: TreeLimits = TreeLimits { depth: 6, nodes: 40 };

    /// The best candidate is right with this probability; then the others share half of the rest, a
    /// quarter, and so on.
    fn outlook(best: f64) -> Outlook {
        let others = std::array::from_fn(|rank| 0.5_f64.powi(rank as i32));
        Outlook {
            states: [0.0, 1.0],
            stays: [1.0; 2],
            best: vec![[best; 2]; 6],
            others: vec![others; 6],
        }
    }

    fn grow(best: f64, row_ns: f64, pass_ns: f64) -> GrownTree {
        let round_ns =
            |size: DraftSize| 100.0 + row_ns * size.nodes as f64 + pass_ns * size.depth as f64;
        fastest_tree(&outlook(best), LIMITS, 1..=6, round_ns)
    }

    #[test]
    fn a_tree_grows_while_the_next_node_pays() {
        let cheap = grow(0.6, 0.1, 5.0);
        let dear = grow(0.6, 8.0, 5.0);
        assert!(cheap.size.nodes > 25 && dear.size.nodes < 8, "{cheap:?} {dear:?}");
        // Good candidates make deep trees, and slow drafters make wide ones.
        assert!(grow(0.9, 1.0, 1.0).size.depth > grow(0.3, 1.0, 1.0).size.depth);
        let (fast, slow) = (grow(0.5, 1.0, 1.0), grow(0.5, 1.0, 60.0));
        assert!(fast.size.depth > slow.size.depth && slow.children[0] > 2, "{fast:?} {slow:?}");
    }

    #[test]
    fn no_other_tree_is_faster() {
        let (row_ns, pass_ns) = (3.0, 12.0);
        let grown = grow(0.55, row_ns, pass_ns);
        let outlook = outlook(0.55);
        assert!((outlook.tokens_of_ranked(&grown.children) - grown.tokens).abs() < 1e-9);
        // All trees of up to four rows with children, and up to three children each.
        let counts = |digit: usize| {
            (0..4_usize.pow(4)).map(move |code| code / 4_usize.pow(digit as u32) % 4)
        };
        for code in 0..4_usize.pow(4) {
            let children: Vec<usize> = (0..4).filter_map(|digit| counts(digit).nth(code)).collect();
            let shape = DraftShape::Ranked { children: children.clone() };
            let ns = 100.0 + row_ns * shape.max_nodes() as f64 + pass_ns * shape.depth() as f64;
            let speed = outlook.tokens_of_ranked(&children) / ns;
            assert!(speed <= grown.tokens / grown.ns + 1e-12, "{children:?} beats {grown:?}");
        }
    }

    #[test]
    fn the_size_is_that_of_the_tree() {
        let grown = grow(0.6, 2.0, 5.0);
        let shape = DraftShape::Ranked { children: grown.children.clone() };
        assert_eq!((shape.max_nodes(), shape.depth()), (grown.size.nodes, grown.size.depth));
        let parents = grown.children.iter().filter(|&&count| count > 0).count();
        assert_eq!(parents, grown.size.parents);
        // 1 2 and 1 3 and 4.
        let mut tree = TokenTree::chain(&[1, 2]);
        tree.push(Some(0), 3);
        tree.push(None, 4);
        assert_eq!(DraftSize::of(&tree), DraftSize { nodes: 4, depth: 2, parents: 2 });
        assert_eq!(DraftSize::of(&TokenTree::chain(&[1, 2, 3])), DraftSize::of_chain(3));
    }

    #[test]
    fn typical_trees_have_the_requested_size() {
        for (depth, nodes) in [(4, 8), (16, 64), (1, 3), (3, 1)] {
            let shape = typical_tree(TreeLimits { depth, nodes });
            assert!(shape.max_nodes() == nodes && shape.depth() <= depth, "{shape:?}");
        }
        assert_eq!(typical_tree(TreeLimits { depth: 1, nodes: 99 }).max_nodes(), RANKS);
    }
}
