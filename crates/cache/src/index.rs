//! Which tokens a cache holds. A cache is rolled back by comparing tokens, never by index.

use forerun_core::{Node, TokenId, TokenTree};

/// The tokens of a sequence's cache slots: a prefix of tokens, and a token tree after it.
///
/// Slot `i` of the prefix is position `i`; the tree's nodes follow in node order. There is no
/// command to roll a cache back: [`CacheIndex::seek`] compares the tokens of a job with the tokens
/// that the cache holds, keeps the part that agrees, and lists the rows of an accepted path to
/// gather into place. Keys are stored after RoPE at their own position, so moving a row never
/// rotates it again.
#[derive(Default)]
pub struct CacheIndex {
    prefix: Vec<TokenId>,
    /// Number of exact rows at the start of the prefix. All later rows are approximate, because
    /// they have attended to an approximate row.
    exact: usize,
    tree: TokenTree,
    /// For each node, whether its row is exact.
    exact_nodes: Vec<bool>,
    /// The moves of rows, from slot to earlier slot, that the last seek requires.
    moves: Vec<(usize, usize)>,
}

/// Which rows of a cache [`CacheIndex::seek`] may keep.
///
/// A row is approximate if it was computed with layers in groups, if it was computed from a
/// predicted feature, or if it attends to an approximate row. The cache keeps track of this itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Only exact rows, with the values that a fresh exact forward pass would compute.
    Exact,
    /// Also approximate rows, provided that the rows of the first `exact` tokens are exact.
    /// Otherwise all approximate rows are dropped, so that they can be computed again (EasySpec's
    /// calibration).
    Approximate {
        /// Number of leading tokens whose rows must be exact.
        exact: usize,
    },
}

/// How much of a job's tokens and tree a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHit {
    /// Number of leading tokens that are held.
    pub tokens: usize,
    /// Number of leading nodes of the tree that are held; 0 unless all tokens are held.
    pub nodes: usize,
}

impl CacheIndex {
    /// Creates the index of an empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the longest prefix of `tokens`, then the leading nodes of `tree` after it, for which
    /// the cache holds rows that `keep` allows. Drops all other rows. Returns how much it has kept.
    /// Rows have to be moved as [`CacheIndex::moves`] lists.
    pub fn seek(&mut self, tokens: &[TokenId], tree: &TokenTree, keep: Keep) -> CacheHit {
        self.moves.clear();
        let agreeing = self.prefix.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let (mut path, mut at) = (Vec::new(), None);
        if agreeing == self.prefix.len() {
            (path, at) = self.follow_path(&tokens[agreeing..]);
        }
        let exact = self.exact_among(agreeing, &path);
        let required = match keep {
            Keep::Exact => tokens.len(),
            Keep::Approximate { exact } => exact.min(tokens.len()),
        };
        let held = if exact < required { exact } else { agreeing + path.len() };
        if held < self.prefix.len() {
            self.prefix.truncate(held);
            self.exact = self.exact.min(held);
            self.set_tree(tree, &[]);
            return CacheHit { tokens: held, nodes: 0 };
        }
        path.truncate(held - agreeing);
        let mut kept =
            if held == tokens.len() { self.matching_nodes(at, tree) } else { Vec::new() };
        if keep == Keep::Exact {
            let exact = kept.iter().take_while(|&&node| self.exact_nodes[node]).count();
            kept.truncate(exact);
        }
        let old_prefix = self.prefix.len();
        for (index, &node) in path.iter().chain(&kept).enumerate() {
            if node != index {
                self.moves.push((old_prefix + node, old_prefix + index));
            }
        }
        self.prefix.extend(path.iter().map(|&node| self.tree.token(node)));
        self.exact = exact;
        self.set_tree(tree, &kept);
        CacheHit { tokens: self.prefix.len(), nodes: kept.len() }
    }

    /// Returns the number of exact rows among the first `agreeing` tokens and the `path` after
    /// them.
    fn exact_among(&self, agreeing: usize, path: &[Node]) -> usize {
        // A node can be exact only if the whole prefix is exact.
        let on_path = path.iter().take_while(|&&node| self.exact_nodes[node]).count();
        self.exact.min(agreeing) + on_path
    }

    /// Replaces the held tree by the leading nodes of `tree`. Their rows are those of the held
    /// nodes `from`, which must ascend.
    fn set_tree(&mut self, tree: &TokenTree, from: &[Node]) {
        for (index, &node) in from.iter().enumerate() {
            self.exact_nodes[index] = self.exact_nodes[node];
        }
        self.exact_nodes.truncate(from.len());
        self.tree.copy_from(tree, from.len());
    }

    /// Follows `tokens` down the held tree as far as possible. Returns the path and its last node.
    fn follow_path(&self, tokens: &[TokenId]) -> (Vec<Node>, Option<Node>) {
        let (mut path, mut at) = (Vec::new(), None);
        for &token in tokens {
            let Some(node) = self.tree.child_with(at, token) else { break };
            path.push(node);
            at = Some(node);
        }
        (path, at)
    }

    /// Returns the held nodes below `root` that match the leading nodes of `tree`, one for each.
    /// They ascend, so that their rows can be gathered in place.
    fn matching_nodes(&self, root: Option<Node>, tree: &TokenTree) -> Vec<Node> {
        let mut held: Vec<Node> = Vec::new();
        for node in 0..tree.len() {
            let parent = tree.parent(node).map_or(root, |parent| Some(held[parent]));
            let mut twins =
                self.tree.children(parent).filter(|&own| self.tree.token(own) == tree.token(node));
            // Siblings with the same token have equal rows, but each matches a row of its own.
            let after = held.last().copied();
            match twins.find(|&own| after.is_none_or(|last| own > last)) {
                Some(own) => held.push(own),
                None => break,
            }
        }
        held
    }

    /// Returns the moves of rows that the last [`CacheIndex::seek`] requires, in order: from a slot
    /// to an earlier slot.
    #[must_use]
    pub fn moves(&self) -> &[(usize, usize)] {
        &self.moves
    }

    /// Returns the held prefix.
    #[must_use]
    pub fn prefix(&self) -> &[TokenId] {
        &self.prefix
    }

    /// Returns the held tree.
    #[must_use]
    pub fn tree(&self) -> &TokenTree {
        &self.tree
    }

    /// Returns the number of slots: those of the prefix and of the tree.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.prefix.len() + self.tree.len()
    }

    /// Appends tokens to the prefix whose exact rows have been written by another sequence.
    ///
    /// # Panics
    /// If the cache holds a tree or approximate rows: a programming error.
    pub fn extend_exact(&mut self, tokens: &[TokenId]) {
        assert!(self.tree.is_empty() && self.exact == self.prefix.len(), "exact rows and no tree");
        self.prefix.extend_from_slice(tokens);
        self.exact = self.prefix.len();
    }

    /// Drops all slots from `len` on, because their rows have been lost.
    pub fn truncate(&mut self, len: usize) {
        if len < self.slots() {
            self.prefix.truncate(len);
            self.exact = self.exact.min(len);
            self.set_tree(&TokenTree::new(), &[]);
        }
    }

    /// Returns the number of tokens in the held prefix.
    #[must_use]
    pub fn prefix_len(&self) -> usize {
        self.prefix.len()
    }

    /// Returns the number of exact rows at the start of the prefix.
    #[must_use]
    pub fn exact_len(&self) -> usize {
        self.exact
    }

    /// Returns the number of tree nodes that are held.
    #[must_use]
    pub fn tree_len(&self) -> usize {
        self.tree.len()
    }

    /// Records that the rows of all nodes of `tree` have been written in all layers. Among the new
    /// rows, those of the first `exact` nodes were computed exactly; each is exact if its ancestors
    /// are, too.
    pub fn record(&mut self, tree: &TokenTree, exact: usize) {
        let prefix = self.exact == self.prefix.len();
        for node in self.tree.len()..tree.len() {
            let after_exact = tree.parent(node).map_or(prefix, |parent| self.exact_nodes[parent]);
            self.exact_nodes.push(after_exact && node < exact);
        }
        self.tree.copy_from(tree, tree.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index whose slots hold their token as a row, so that moves can be checked.
    struct Rows {
        index: CacheIndex,
        rows: Vec<TokenId>,
    }

    impl Rows {
        fn seek(&mut self, tokens: &[TokenId], tree: &TokenTree, keep: Keep) -> CacheHit {
            let hit = self.index.seek(tokens, tree, keep);
            for &(from, to) in self.index.moves() {
                self.rows[to] = self.rows[from];
            }
            self.rows.truncate(self.index.slots());
            hit
        }

        fn write(&mut self, tree: &TokenTree, exact: usize) {
            self.rows.extend(&tree.tokens()[self.index.tree_len()..]);
            self.index.record(tree, exact);
        }

        /// Asserts that every held row still belongs to its token.
        fn check(&self) {
            let held = self.index.prefix().iter().chain(self.index.tree().tokens());
            assert!(held.eq(&self.rows), "{:?}", self.rows);
        }
    }

    fn cache(prefix: &[TokenId], tree: &TokenTree) -> Rows {
        let mut cache = Rows { index: CacheIndex::new(), rows: Vec::new() };
        cache.write(&TokenTree::chain(prefix), prefix.len());
        cache.seek(prefix, &TokenTree::new(), Keep::Exact);
        cache.write(tree, tree.len());
        cache
    }

    /// ```text
    /// 1 2 ─ 3 ─ 4 ─ 7
    ///     │   └ 5
    ///     └ 6 ─ 4
    /// ```
    fn sample() -> TokenTree {
        let mut tree = TokenTree::new();
        let three = tree.push(None, 3);
        let six = tree.push(None, 6);
        let four = tree.push(Some(three), 4);
        tree.push(Some(three), 5);
        tree.push(Some(six), 4);
        tree.push(Some(four), 7);
        tree
    }

    #[test]
    fn seek_keeps_the_longest_matching_prefix() {
        let none = TokenTree::new();
        let table: &[(&[TokenId], usize)] = &[
            (&[1, 2, 3, 4, 7, 9], 5),
            (&[1, 2, 3, 5, 7], 4),
            (&[1, 2, 6, 4], 4),
            (&[1, 2, 6, 5], 3),
            (&[1, 2, 8], 2),
            (&[1, 2], 2),
            (&[1], 1),
            (&[1, 9, 3], 1),
            (&[9], 0),
            (&[], 0),
        ];
        for &(tokens, held) in table {
            let mut cache = cache(&[1, 2], &sample());
            assert_eq!(
                cache.seek(tokens, &none, Keep::Exact),
                CacheHit { tokens: held, nodes: 0 },
                "{tokens:?}"
            );
            assert_eq!(cache.index.prefix(), &tokens[..held]);
            cache.check();
            assert_eq!(cache.seek(tokens, &none, Keep::Exact).tokens, held, "again: {tokens:?}");
        }
    }

    #[test]
    fn seek_keeps_the_leading_nodes_of_a_tree() {
        // After token 3: the nodes 4 and 5, then 7 below 4, and 8, which is not held.
        let mut request = TokenTree::new();
        let four = request.push(None, 4);
        request.push(None, 5);
        request.push(Some(four), 7);
        request.push(Some(four), 8);
        let mut cache = cache(&[1, 2], &sample());
        assert_eq!(cache.seek(&[1, 2, 3], &request, Keep::Exact), CacheHit { tokens: 3, nodes: 3 });
        assert_eq!(cache.index.tree().tokens(), [4, 5, 7]);
        cache.check();
        // In another order, only those nodes match whose rows can be gathered in place.
        let mut swapped = TokenTree::new();
        swapped.push(None, 5);
        swapped.push(None, 4);
        assert_eq!(cache.seek(&[1, 2, 3], &swapped, Keep::Exact), CacheHit { tokens: 3, nodes: 1 });
        cache.check();
    }

    #[test]
    fn siblings_with_the_same_token_keep_two_rows() {
        let mut twins = TokenTree::new();
        twins.push(None, 3);
        twins.push(None, 3);
        let mut cache = cache(&[1], &twins);
        assert_eq!(cache.seek(&[1], &twins, Keep::Exact), CacheHit { tokens: 1, nodes: 2 });
        cache.check();
    }

    #[test]
    fn a_prefix_that_ends_inside_the_held_prefix_keeps_no_tree() {
        let mut cache = cache(&[1, 2, 3], &TokenTree::chain(&[4]));
        let held = cache.seek(&[1, 2], &TokenTree::chain(&[3]), Keep::Exact);
        assert_eq!(held, CacheHit { tokens: 2, nodes: 0 });
        cache.check();
    }

    /// A cache of the exact prefix `[1, 2]` and the tree [`sample`], of which the first two nodes
    /// are exact and the others approximate.
    fn partly_approximate() -> Rows {
        let mut cache = cache(&[1, 2], &sample().first(2));
        cache.write(&sample(), 0);
        cache
    }

    #[test]
    fn approximate_rows_never_count_as_exact() {
        let none = TokenTree::new();
        // Tokens, and how many are kept if all rows may be approximate, if all must be exact, and
        // if the first three must be exact.
        let table: &[(&[TokenId], [usize; 3])] = &[
            (&[1, 2, 3, 4, 7, 9], [5, 3, 5]),
            (&[1, 2, 3, 5], [4, 3, 4]),
            (&[1, 2, 6, 4], [4, 3, 4]),
            (&[1, 2, 3], [3, 3, 3]),
            (&[1, 2, 8], [2, 2, 2]),
            (&[1, 9], [1, 1, 1]),
        ];
        for &(tokens, kept) in table {
            let keeps =
                [Keep::Approximate { exact: 0 }, Keep::Exact, Keep::Approximate { exact: 3 }];
            for (keep, tokens_kept) in keeps.into_iter().zip(kept) {
                let mut cache = partly_approximate();
                let held = cache.seek(tokens, &none, keep);
                assert_eq!(held, CacheHit { tokens: tokens_kept, nodes: 0 }, "{tokens:?} {keep:?}");
                assert_eq!(cache.index.exact_len(), kept[1], "{tokens:?} {keep:?}");
                cache.check();
                // The cache still knows which of the kept rows are exact.
                assert_eq!(cache.seek(tokens, &none, Keep::Exact).tokens, kept[1]);
                cache.check();
            }
        }
    }

    #[test]
    fn calibration_drops_all_approximate_rows() {
        // Four tokens must be exact but only three are: no approximate row stays, though the path
        // agrees.
        let mut cache = partly_approximate();
        let held = cache.seek(&[1, 2, 3, 4, 7], &TokenTree::new(), Keep::Approximate { exact: 4 });
        assert_eq!(held, CacheHit { tokens: 3, nodes: 0 });
        cache.check();
        // Approximate nodes of a tree stay if the prefix has the required exact rows.
        let mut request = TokenTree::chain(&[4, 7]);
        request.push(None, 5);
        for (keep, nodes) in [(Keep::Exact, 0), (Keep::Approximate { exact: 3 }, 2)] {
            let mut cache = partly_approximate();
            assert_eq!(
                cache.seek(&[1, 2, 3], &request.first(2), keep),
                CacheHit { tokens: 3, nodes }
            );
            cache.check();
        }
        let mut cache = partly_approximate();
        let held = cache.seek(&[1, 2], &sample(), Keep::Exact);
        assert_eq!(held, CacheHit { tokens: 2, nodes: 2 }, "the exact nodes");
    }

    #[test]
    fn an_exact_forward_after_an_approximate_row_is_approximate() {
        let none = TokenTree::new();
        let mut cache = cache(&[1, 2], &none);
        cache.write(&TokenTree::chain(&[3]), 0);
        cache.write(&TokenTree::chain(&[3, 4]), 2);
        assert_eq!(cache.seek(&[1, 2, 3, 4], &none, Keep::Approximate { exact: 2 }).tokens, 4);
        cache.write(&TokenTree::chain(&[5]), 1);
        assert_eq!(cache.seek(&[1, 2, 3, 4, 5], &none, Keep::Exact).tokens, 2);
    }
}
