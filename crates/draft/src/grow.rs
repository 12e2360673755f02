//! Grows drafts of every shape from a drafter's rows.
//!
//! * Chains: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
//! * Trees of siblings drawn independently: SpecInfer (arXiv 2305.09781).
//! * Trees of the most probable nodes: EasySpec (arXiv 2502.02493), EAGLE-2 (arXiv 2406.16858).
//! * Product trees, in which all nodes of a depth share one row: Medusa (arXiv 2401.10774) and
//!   ParallelSpec (arXiv 2410.05589, algorithm 1).
//!
//! Sampled candidates are never dropped or reordered depending on their values, because that would
//! change the distribution of the output.

use crate::DraftContext;
use forerun_core::{
    Distribution, Draft, DraftShape, Key, Proposal, Purpose, Sampling, TokenId, TokenTree,
    node_of_row, row_of,
};
use forerun_model::{Logits, ModelError};
use std::borrow::Cow;
use std::ops::Range;
use std::ptr;

/// A source of the rows that a tree grows from.
pub(crate) trait RowSource {
    /// Returns the logits of the rows from `first_row` on ([`row_of`]). They cover only the tokens
    /// that may be candidates.
    fn rows(&mut self, tree: &TokenTree, first_row: usize) -> Result<Vec<&[f32]>, ModelError>;
}

/// Rows that depend only on the depth of a node. The first one is for the prefix.
pub(crate) struct DepthRows<'a> {
    pub(crate) logits: &'a Logits,
    /// Only tokens below this number are candidates.
    pub(crate) vocab_size: usize,
}

impl RowSource for DepthRows<'_> {
    fn rows(&mut self, tree: &TokenTree, first_row: usize) -> Result<Vec<&[f32]>, ModelError> {
        let by_depth: Vec<&[f32]> = self.logits.rows_truncated_to(self.vocab_size).collect();
        let depth_of = |row| node_of_row(row).map_or(0, |node| tree.depth(node));
        let depths = (first_row..=tree.len()).map(depth_of);
        Ok(depths.filter_map(|depth| by_depth.get(depth).copied()).collect())
    }
}

/// Grows a draft of this shape. The source must have rows for all its depths.
pub(crate) fn grow(
    context: &DraftContext<'_>,
    shape: &DraftShape,
    rows: &mut dyn RowSource,
) -> Result<Draft, ModelError> {
    match shape {
        // Drafters without phrases draft only the chain.
        DraftShape::Chain { length } | DraftShape::Phrases { length, .. } => {
            sampled_tree(context, &vec![1; *length], rows)
        }
        // Deterministic draws give equal siblings, so one is enough.
        DraftShape::Sampled { branching } if context.sampling.is_deterministic() => {
            sampled_tree(context, &vec![1; branching.len()], rows)
        }
        DraftShape::Sampled { branching } => sampled_tree(context, branching, rows),
        DraftShape::Top { width, depth, budget } => {
            top_tree(context, *width, *depth, *budget, rows)
        }
    }
}

/// Returns the sampling options without biases for tokens from `vocab_size` on.
pub(crate) fn sampling_within_vocab(sampling: &Sampling, vocab_size: usize) -> Cow<'_, Sampling> {
    let is_candidate = |token: TokenId| (token as usize) < vocab_size;
    match sampling.logit_bias.last_key_value() {
        Some((&token, _)) if !is_candidate(token) => {
            let mut restricted = sampling.clone();
            restricted.options.logit_bias.retain(|&token, _| is_candidate(token));
            Cow::Owned(restricted)
        }
        _ => Cow::Borrowed(sampling),
    }
}

/// Draws siblings independently, depth by depth. A chain has one child for each node.
fn sampled_tree(
    context: &DraftContext<'_>,
    branching: &[usize],
    rows: &mut dyn RowSource,
) -> Result<Draft, ModelError> {
    let sampler = context.sampling.sampler(context.tokens, context.prompt_len);
    let mut tree = TokenTree::new();
    let mut proposed: Vec<Distribution> = Vec::new();
    for (depth, &children) in branching.iter().enumerate() {
        // The rows after the newest nodes, which have no children yet.
        let first_row = proposed.len();
        let logits = rows.rows(&tree, first_row)?;
        let position = context.tokens.len() + depth;
        let mut candidate = 0;
        for (row, logits) in (first_row..).zip(logits) {
            let parent = node_of_row(row);
            let distribution = sampler.distribution(logits, &tree, parent)?;
            for _ in 0..children {
                let key = Key { position, purpose: Purpose::Draft, candidate };
                tree.push(parent, distribution.pick(context.randomness, key));
                candidate += 1;
            }
            proposed.push(distribution);
        }
    }
    proposed.resize(tree.len() + 1, Distribution::default());
    Ok(Draft { tree, proposal: Proposal::Sampled(proposed) })
}

/// Grows a tree of the most probable nodes.
///
/// Each depth expands the `width` nodes with the highest cumulative probability among the `width`
/// best children of every node of the depth above. A budget chooses among all these children,
/// expanded or not.
fn top_tree(
    context: &DraftContext<'_>,
    width: usize,
    depth: usize,
    budget: Option<usize>,
    rows: &mut dyn RowSource,
) -> Result<Draft, ModelError> {
    let sampler = context.sampling.sampler(context.tokens, context.prompt_len);
    let mut expanded = TokenTree::new();
    let mut considered: Vec<Candidate> = Vec::new();
    // The newest nodes: their rows, the log-probabilities of their paths, and their candidates.
    let mut level: Vec<(usize, f64, Option<usize>)> = vec![(0, 0.0, None)];
    for _ in 0..depth {
        let Some(&(first_row, ..)) = level.first() else { break };
        let logits = rows.rows(&expanded, first_row)?;
        let new = considered.len();
        let (mut last, mut children): (Option<&[f32]>, _) = (None, Vec::new());
        for (&(row, score, parent), logits) in level.iter().zip(logits) {
            // Nodes that share a row share its best tokens, unless penalties depend on their paths.
            let shared = last.is_some_and(|last| ptr::eq(last, logits));
            if !shared || !sampler.is_path_independent() {
                let node = node_of_row(row);
                (last, children) =
                    (Some(logits), sampler.candidates(logits, &expanded, node, width)?);
            }
            considered.extend(children.iter().map(|&(token, log_probability)| {
                // Rounding must not raise the score above the parent's.
                Candidate { row, parent, token, score: score + log_probability.min(0.0) }
            }));
        }
        let best = best_candidates(&considered, new..considered.len(), width).into_iter();
        level = best
            .map(|index| {
                let Candidate { row, token, score, .. } = considered[index];
                let node = expanded.push(node_of_row(row), token);
                (row_of(Some(node)), score, Some(index))
            })
            .collect();
    }
    let tree = budget.map_or(expanded, |budget| rerank(&considered, budget));
    Ok(Draft { tree, proposal: Proposal::Deterministic })
}

/// A possible node of a tree of the most probable nodes.
struct Candidate {
    /// The row of the expanded tree that proposed it.
    row: usize,
    /// The index of its parent among the candidates; `None` for the prefix.
    parent: Option<usize>,
    token: TokenId,
    /// The logarithm of the probability of its path.
    score: f64,
}

/// Returns the indices of the `count` best candidates in a range, best first. Ties go to the
/// earlier candidate.
fn best_candidates(considered: &[Candidate], range: Range<usize>, count: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = range.collect();
    indices.sort_by(|&a, &b| considered[b].score.total_cmp(&considered[a].score));
    indices.truncate(count);
    indices
}

/// Returns the tree of the `budget` best candidates. It contains the parent of each of its nodes,
/// because a parent is at least as probable as its child, and earlier in the list.
fn rerank(considered: &[Candidate], budget: usize) -> TokenTree {
    let mut kept = best_candidates(considered, 0..considered.len(), budget);
    kept.sort_unstable();
    let mut tree = TokenTree::new();
    for &index in &kept {
        let Candidate { parent, token, .. } = considered[index];
        // Nodes are in the order of the kept indices.
        let parent = parent.and_then(|parent| kept.binary_search(&parent).ok());
        tree.push(parent, token);
    }
    tree
}
