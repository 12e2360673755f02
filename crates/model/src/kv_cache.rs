//! The key/value cache of one sequence: what it holds, and how it finds that out by itself.

use crate::features::FeatureSlots;
use crate::kernels::{AttentionShape, KeysValues, WeightType};
use forerun_core::{FeatureRows, Node, TokenId, TokenTree};
use std::ops::Range;

/// Keys and values of a prefix and of a tree of tokens behind it.
///
/// Slot `i` of the prefix is position `i`; the tree's nodes follow in node order. Nothing tells a
/// cache to roll back: [`KvCache::seek`] compares the tokens of a job with those that it holds and
/// keeps what agrees, gathering an accepted path into place. Keys were rotated at their own
/// position, so nothing is rotated again.
pub struct KvCache {
    layers: Vec<KeysValues>,
    prefix: Vec<TokenId>,
    /// So many first tokens of the prefix are held exactly: a row that follows a fuzzy one has read
    /// it, and is fuzzy itself.
    exact: usize,
    tree: TokenTree,
    /// Whether each node is held exactly.
    exact_nodes: Vec<bool>,
    /// The slots' features, where the model is asked for some.
    features: Option<FeatureSlots>,
}

/// What counts as held. An entry is fuzzy if it was computed by groups of layers or from a feature that
/// was only predicted, or read one that was; the cache notes that by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// What a fresh exact forward would compute.
    Exact,
    /// Fuzzy entries, too, as long as the first `exact` tokens are held exactly. Where they are not,
    /// all approximate entries are dropped, so that they can be computed anew (EasySpec's calibration).
    Approximate {
        /// Tokens that have to be exact.
        exact: usize,
    },
}

/// What a cache holds of a job's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Tokens of the prefix.
    pub tokens: usize,
    /// Nodes of the tree, counted from the first; 0 unless the whole prefix is held.
    pub nodes: usize,
}

impl KvCache {
    /// An empty cache for `n_layers` layers, in the precision that goes with the weights.
    pub(crate) fn new(n_layers: usize, shape: AttentionShape, weight_type: WeightType) -> Self {
        let layers = (0..n_layers).map(|_| KeysValues::new(shape, weight_type)).collect();
        Self {
            layers,
            prefix: Vec::new(),
            exact: 0,
            tree: TokenTree::new(),
            exact_nodes: Vec::new(),
            features: None,
        }
    }

    /// The same cache, which keeps features of that width beside keys and values.
    pub(crate) fn with_features(self, width: usize) -> Self {
        Self { features: Some(FeatureSlots::new(width)), ..self }
    }

    /// Keeps the longest part of `tokens`, then of `tree`, that is held as `keep` says, forgets the
    /// rest, and tells how much that is. Of the tree a number of first nodes is kept.
    pub fn seek(&mut self, tokens: &[TokenId], tree: &TokenTree, keep: Keep) -> Held {
        let agreeing = self.prefix.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let (mut path, mut at) = (Vec::new(), None);
        if agreeing == self.prefix.len() {
            (path, at) = self.follow(&tokens[agreeing..]);
        }
        let exact = self.exact_among(agreeing, &path);
        let wanted = match keep {
            Keep::Exact => tokens.len(),
            Keep::Approximate { exact } => exact.min(tokens.len()),
        };
        let held = if exact < wanted { exact } else { agreeing + path.len() };
        if held < self.prefix.len() {
            self.prefix.truncate(held);
            self.exact = self.exact.min(held);
            self.hold_nodes(tree, &[]);
            return Held { tokens: held, nodes: 0 };
        }
        path.truncate(held - agreeing);
        let mut kept = if held == tokens.len() { self.matching(at, tree) } else { Vec::new() };
        if keep == Keep::Exact {
            let exact = kept.iter().take_while(|&&node| self.exact_nodes[node]).count();
            kept.truncate(exact);
        }
        let old_prefix = self.prefix.len();
        for (index, &node) in path.iter().chain(&kept).enumerate() {
            self.move_row(old_prefix + node, old_prefix + index);
        }
        self.prefix.extend(path.iter().map(|&node| self.tree.token(node)));
        self.exact = exact;
        self.hold_nodes(tree, &kept);
        Held { tokens: self.prefix.len(), nodes: kept.len() }
    }

    /// How many of the first `agreeing` tokens and of a path behind them are held exactly.
    fn exact_among(&self, agreeing: usize, path: &[Node]) -> usize {
        // Nodes are exact only behind a prefix that is exact as a whole.
        let on_path = path.iter().take_while(|&&node| self.exact_nodes[node]).count();
        self.exact.min(agreeing) + on_path
    }

    /// The tree becomes the first nodes of `tree`, whose rows are those of the nodes `from`, which
    /// ascend.
    fn hold_nodes(&mut self, tree: &TokenTree, from: &[Node]) {
        for (index, &node) in from.iter().enumerate() {
            self.exact_nodes[index] = self.exact_nodes[node];
        }
        self.exact_nodes.truncate(from.len());
        self.tree.copy_from(tree, from.len());
    }

    /// The nodes that spell `tokens` as far as they go, and the last of them.
    fn follow(&self, tokens: &[TokenId]) -> (Vec<Node>, Option<Node>) {
        let (mut path, mut at) = (Vec::new(), None);
        for &token in tokens {
            let Some(node) = self.tree.child_with(at, token) else { break };
            path.push(node);
            at = Some(node);
        }
        (path, at)
    }

    /// The held nodes below `root` that equal the first nodes of `tree`. They ascend, so that rows
    /// can be gathered in place.
    fn matching(&self, root: Option<Node>, tree: &TokenTree) -> Vec<Node> {
        let mut held: Vec<Node> = Vec::new();
        for node in 0..tree.len() {
            let parent = tree.parent(node).map_or(root, |parent| Some(held[parent]));
            let mut twins =
                self.tree.children(parent).filter(|&own| self.tree.token(own) == tree.token(node));
            // Equal siblings have equal rows, but each keeps its own.
            let after = held.last().copied();
            match twins.find(|&own| after.is_none_or(|last| own > last)) {
                Some(own) => held.push(own),
                None => break,
            }
        }
        held
    }

    fn move_row(&mut self, from: usize, to: usize) {
        if from != to {
            self.layers.iter_mut().for_each(|layer| layer.copy(from, to));
            self.features.iter_mut().for_each(|features| features.copy(from, to));
        }
    }

    /// Number of tokens of the prefix that are held.
    #[must_use]
    pub fn prefix_len(&self) -> usize {
        self.prefix.len()
    }

    /// Number of tokens of the prefix that are held exactly: all those before them are, too.
    #[must_use]
    pub fn exact_len(&self) -> usize {
        self.exact
    }

    /// Number of tree nodes that are held.
    pub(crate) fn tree_len(&self) -> usize {
        self.tree.len()
    }

    /// Makes room for the prefix and `nodes` tree nodes. Rows beyond those held count for nothing
    /// until [`KvCache::record`].
    pub(crate) fn reserve(&mut self, nodes: usize) {
        let slots = self.prefix.len() + nodes;
        self.layers.iter_mut().for_each(|layer| layer.reserve(slots));
        self.features.iter_mut().for_each(|features| features.reserve(slots));
    }

    /// The slots' features, to be written with their keys and values.
    pub(crate) fn features_mut(&mut self) -> Option<&mut FeatureSlots> {
        self.features.as_mut()
    }

    /// The features of the slots in a range, as far as they are held: those of the prefix, then those
    /// of the tree's nodes. `None` if the model was not asked for any.
    #[must_use]
    pub fn features(&self, slots: Range<usize>) -> Option<FeatureRows> {
        let features = self.features.as_ref()?;
        let end = slots.end.min(self.prefix.len() + self.tree.len());
        let rows = features.rows(slots.start.min(end)..end);
        Some(FeatureRows::new(features.width(), rows.to_vec()))
    }

    /// Several layers' rows.
    pub(crate) fn layers_mut(&mut self, layers: Range<usize>) -> &mut [KeysValues] {
        &mut self.layers[layers]
    }

    /// Declares the rows of all nodes of `tree` written, in all layers. Of those that were not held
    /// before, the ones among the first `exact` nodes were computed exactly from what they follow.
    pub(crate) fn record(&mut self, tree: &TokenTree, exact: usize) {
        let prefix = self.exact == self.prefix.len();
        for node in self.tree.len()..tree.len() {
            let behind_exact = tree.parent(node).map_or(prefix, |parent| self.exact_nodes[parent]);
            self.exact_nodes.push(behind_exact && node < exact);
        }
        self.tree.copy_from(tree, tree.len());
    }

    /// Bytes of memory for keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(KeysValues::bytes).sum()
    }

    /// Bytes of one slot's keys and values, without what fills them up.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.layers.iter().map(KeysValues::slot_bytes).sum()
    }

    /// The bits of everything held: prefix, tree, and each layer's keys and values, slot by slot.
    /// Tests compare caches by it.
    #[must_use]
    pub fn snapshot(&self) -> (Vec<TokenId>, TokenTree, Vec<Vec<u32>>) {
        let slots = self.prefix.len() + self.tree.len();
        let bits = |layer: &KeysValues| {
            let rows = (0..slots).flat_map(|slot| layer.row(slot));
            rows.map(f32::to_bits).collect()
        };
        (self.prefix.clone(), self.tree.clone(), self.layers.iter().map(bits).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Isa;
    use crate::layers::{LayerGroups, LayerOrder};

    const SHAPE: AttentionShape =
        AttentionShape { n_heads: 1, n_kv_heads: 1, head_dim: 1, window: None };

    /// A cache of one layer whose row for a token is the token itself.
    fn cache(prefix: &[TokenId], tree: &TokenTree) -> KvCache {
        let mut cache = KvCache::new(1, SHAPE, WeightType::F32);
        write(&mut cache, &TokenTree::chain(prefix));
        cache.seek(prefix, &TokenTree::new(), Keep::Exact);
        write(&mut cache, tree);
        cache
    }

    fn write(cache: &mut KvCache, tree: &TokenTree) {
        write_by(cache, tree, LayerOrder::Sequential);
    }

    fn write_by(cache: &mut KvCache, tree: &TokenTree, order: LayerOrder<'_>) {
        cache.reserve(tree.len());
        let first = cache.prefix_len();
        let layer = &mut cache.layers[0];
        for (index, &token) in tree.tokens().iter().enumerate() {
            layer.write(Isa::Portable, first + index, &[token as f32], &[-(token as f32)]);
        }
        cache.record(tree, order.exact_among(tree.len()));
    }

    /// Every held row must still belong to its token.
    fn check(cache: &mut KvCache) {
        let (prefix, tree, _) = cache.snapshot();
        for (slot, &token) in prefix.iter().chain(tree.tokens()).enumerate() {
            assert_eq!(cache.layers[0].row(slot), [token as f32, -(token as f32)]);
        }
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
    fn seeking_keeps_what_agrees() {
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
                Held { tokens: held, nodes: 0 },
                "{tokens:?}"
            );
            assert_eq!(cache.snapshot().0, tokens[..held]);
            check(&mut cache);
            assert_eq!(cache.seek(tokens, &none, Keep::Exact).tokens, held, "again: {tokens:?}");
        }
    }

    #[test]
    fn seeking_keeps_the_first_nodes_of_a_tree() {
        // Below 3: the nodes 4 and 5, then 7 under 4, and 8 that is not held.
        let mut wanted = TokenTree::new();
        let four = wanted.push(None, 4);
        wanted.push(None, 5);
        wanted.push(Some(four), 7);
        wanted.push(Some(four), 8);
        let mut cache = cache(&[1, 2], &sample());
        assert_eq!(cache.seek(&[1, 2, 3], &wanted, Keep::Exact), Held { tokens: 3, nodes: 3 });
        assert_eq!(cache.snapshot().1.tokens(), [4, 5, 7]);
        check(&mut cache);
        // Another order stops where gathering in place would overwrite rows.
        let mut swapped = TokenTree::new();
        swapped.push(None, 5);
        swapped.push(None, 4);
        assert_eq!(cache.seek(&[1, 2, 3], &swapped, Keep::Exact), Held { tokens: 3, nodes: 1 });
        check(&mut cache);
    }

    #[test]
    fn equal_siblings_are_two_rows() {
        let mut twins = TokenTree::new();
        twins.push(None, 3);
        twins.push(None, 3);
        let mut cache = cache(&[1], &twins);
        assert_eq!(cache.seek(&[1], &twins, Keep::Exact), Held { tokens: 1, nodes: 2 });
        check(&mut cache);
    }

    #[test]
    fn a_prefix_that_ends_inside_the_held_prefix_keeps_no_tree() {
        let mut cache = cache(&[1, 2, 3], &TokenTree::chain(&[4]));
        let held = cache.seek(&[1, 2], &TokenTree::chain(&[3]), Keep::Exact);
        assert_eq!(held, Held { tokens: 2, nodes: 0 });
        check(&mut cache);
    }

    /// Adds rows that were computed by groups of layers.
    fn write_approximately(cache: &mut KvCache, tree: &TokenTree) {
        let groups = LayerGroups::of_sizes(&[2]);
        write_by(cache, tree, LayerOrder::Groups(&groups));
    }

    /// Exact `[1, 2]`, then what [`sample`] has, exact down to its second node, the rest fuzzy.
    fn half_approximate() -> KvCache {
        let mut cache = cache(&[1, 2], &sample().first(2));
        write_approximately(&mut cache, &sample());
        cache
    }

    #[test]
    fn approximate_rows_are_never_held_exactly() {
        let none = TokenTree::new();
        // Tokens; what is kept of them if approximate rows may be; if all must be exact; if the first three
        // must.
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
                let mut cache = half_approximate();
                let held = cache.seek(tokens, &none, keep);
                assert_eq!(held, Held { tokens: tokens_kept, nodes: 0 }, "{tokens:?} {keep:?}");
                assert_eq!(cache.exact_len(), kept[1], "{tokens:?} {keep:?}");
                check(&mut cache);
                // What was kept is still known for what it is.
                assert_eq!(cache.seek(tokens, &none, Keep::Exact).tokens, kept[1]);
                check(&mut cache);
            }
        }
    }

    #[test]
    fn a_calibration_drops_all_approximate_rows() {
        // Four tokens must be exact, three are: nothing fuzzy stays, though the path agrees.
        let mut cache = half_approximate();
        let held = cache.seek(&[1, 2, 3, 4, 7], &TokenTree::new(), Keep::Approximate { exact: 4 });
        assert_eq!(held, Held { tokens: 3, nodes: 0 });
        check(&mut cache);
        // Of a tree the approximate nodes stay while the prefix is as exact as it must be.
        let mut wanted = TokenTree::chain(&[4, 7]);
        wanted.push(None, 5);
        for (keep, nodes) in [(Keep::Exact, 0), (Keep::Approximate { exact: 3 }, 2)] {
            let mut cache = half_approximate();
            assert_eq!(cache.seek(&[1, 2, 3], &wanted.first(2), keep), Held { tokens: 3, nodes });
            check(&mut cache);
        }
        let mut cache = half_approximate();
        let held = cache.seek(&[1, 2], &sample(), Keep::Exact);
        assert_eq!(held, Held { tokens: 2, nodes: 2 }, "the exact nodes");
    }

    #[test]
    fn an_exact_forward_after_an_approximate_row_is_approximate() {
        let none = TokenTree::new();
        let mut cache = cache(&[1, 2], &none);
        write_approximately(&mut cache, &TokenTree::chain(&[3]));
        write(&mut cache, &TokenTree::chain(&[3, 4]));
        assert_eq!(cache.seek(&[1, 2, 3, 4], &none, Keep::Approximate { exact: 2 }).tokens, 4);
        write(&mut cache, &TokenTree::chain(&[5]));
        assert_eq!(cache.seek(&[1, 2, 3, 4, 5], &none, Keep::Exact).tokens, 2);
        // Layers that are alone are exact, however they are called.
        let alone = LayerGroups::of_sizes(&[1]);
        write_by(&mut cache, &TokenTree::chain(&[3]), LayerOrder::Groups(&alone));
        assert_eq!(cache.seek(&[1, 2, 3], &none, Keep::Exact).tokens, 3);
    }
}
