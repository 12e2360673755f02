//! How drafts grow from a drafter's rows: chains, independent siblings, trees of the most probable nodes.
//!
//! Chains are those of Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (2302.01318);
//! independently drawn siblings those of SpecInfer (2305.09781); trees of the most probable nodes
//! those of EasySpec (2502.02493) and EAGLE-2 (2406.16858). Nothing is dropped or reordered by what
//! was sampled, which would change the output's distribution.
//!
//! Where all nodes of a depth have one row, as with Medusa's heads and ParallelSpec's masks, these are
//! product trees (Medusa, 2401.10774; ParallelSpec, 2410.05589, algorithm 1).

use crate::DraftContext;
use forerun_core::{
    Distribution, Draft, DraftShape, Key, Node, Proposal, Purpose, Sampling, TokenId, TokenTree,
};
use forerun_model::{Logits, ModelError};
use std::borrow::Cow;
use std::ops::Range;
use std::ptr;

/// What a tree grows from.
pub(crate) trait RowSource {
    /// Logits of the rows from `first_row` on, of the candidates' tokens alone: row 0 proposes the
    /// token behind the prefix, row `node + 1` the one behind a node.
    fn rows(&mut self, tree: &TokenTree, first_row: usize) -> Result<Vec<&[f32]>, ModelError>;
}

/// Rows that depend on a node's depth alone: the first is the prefix's.
pub(crate) struct DepthRows<'a> {
    pub(crate) logits: &'a Logits,
    /// Tokens that may be candidates: all below this.
    pub(crate) vocab_size: usize,
}

impl RowSource for DepthRows<'_> {
    fn rows(&mut self, tree: &TokenTree, first_row: usize) -> Result<Vec<&[f32]>, ModelError> {
        let by_depth: Vec<&[f32]> = self.logits.rows_below(self.vocab_size).collect();
        let depths = (first_row..=tree.len()).map(|row| node_of(row).map_or(0, |n| tree.depth(n)));
        Ok(depths.filter_map(|depth| by_depth.get(depth).copied()).collect())
    }
}

/// Grows a draft of that shape, whose depth the rows must reach.
pub(crate) fn grow(
    context: &DraftContext<'_>,
    shape: &DraftShape,
    rows: &mut dyn RowSource,
) -> Result<Draft, ModelError> {
    match shape {
        // Who has no phrases drafts the chain alone.
        DraftShape::Chain { length } | DraftShape::Phrases { length, .. } => {
            sampled(context, &vec![1; *length], rows)
        }
        // Equal draws would be equal siblings: one is enough where draws are determined.
        DraftShape::Sampled { branching } if context.sampling.is_deterministic() => {
            sampled(context, &vec![1; branching.len()], rows)
        }
        DraftShape::Sampled { branching } => sampled(context, branching, rows),
        DraftShape::Top { width, depth, budget } => top(context, *width, *depth, *budget, rows),
    }
}

/// The options of a drafter whose candidates are the tokens below `vocab_size`: without the biases of
/// others.
pub(crate) fn own_sampling(sampling: &Sampling, vocab_size: usize) -> Cow<'_, Sampling> {
    let is_candidate = |token: TokenId| (token as usize) < vocab_size;
    match sampling.logit_bias.last_key_value() {
        Some((&token, _)) if !is_candidate(token) => {
            let mut own = sampling.clone();
            own.logit_bias.retain(|&token, _| is_candidate(token));
            Cow::Owned(own)
        }
        _ => Cow::Borrowed(sampling),
    }
}

/// Siblings drawn independently, level by level; a chain is the case of one child a node.
fn sampled(
    context: &DraftContext<'_>,
    branching: &[usize],
    rows: &mut dyn RowSource,
) -> Result<Draft, ModelError> {
    let sampler = context.sampling.sampler(context.tokens, context.prompt_len);
    let mut tree = TokenTree::new();
    let mut proposed: Vec<Distribution> = Vec::new();
    for (depth, &children) in branching.iter().enumerate() {
        // The rows of the newest level: they are the ones not proposed from yet.
        let first_row = proposed.len();
        let logits = rows.rows(&tree, first_row)?;
        let position = context.tokens.len() + depth;
        let mut candidate = 0;
        for (row, logits) in (first_row..).zip(logits) {
            let distribution = sampler.distribution(logits, &tree, node_of(row))?;
            for _ in 0..children {
                let key = Key { position, purpose: Purpose::Draft, candidate };
                tree.push(node_of(row), distribution.pick(context.randomness, key));
                candidate += 1;
            }
            proposed.push(distribution);
        }
    }
    proposed.resize(tree.len() + 1, Distribution::default());
    Ok(Draft { tree, proposal: Proposal::Sampled(proposed) })
}

/// Each depth expands the `width` nodes of the highest cumulative probability among the `width`
/// best children of each node of the depth above. A budget chooses among all these children,
/// expanded or not.
fn top(
    context: &DraftContext<'_>,
    width: usize,
    depth: usize,
    budget: Option<usize>,
    rows: &mut dyn RowSource,
) -> Result<Draft, ModelError> {
    let sampler = context.sampling.sampler(context.tokens, context.prompt_len);
    let mut expanded = TokenTree::new();
    let mut considered: Vec<Candidate> = Vec::new();
    // The newest level: rows, each with its path's logarithmic probability and its candidate.
    let mut level: Vec<(usize, f64, Option<usize>)> = vec![(0, 0.0, None)];
    for _ in 0..depth {
        let Some(&(first_row, ..)) = level.first() else { break };
        let logits = rows.rows(&expanded, first_row)?;
        let new = considered.len();
        let (mut last, mut children): (Option<&[f32]>, _) = (None, Vec::new());
        for (&(row, score, parent), logits) in level.iter().zip(logits) {
            // Nodes that share a row share its best tokens, unless penalties tell their paths apart.
            let shared = last.is_some_and(|last| ptr::eq(last, logits));
            if !shared || !sampler.is_path_independent() {
                (last, children) =
                    (Some(logits), sampler.candidates(logits, &expanded, node_of(row), width)?);
            }
            considered.extend(children.iter().map(|&(token, own)| {
                // Never above its parent's, whatever rounding does.
                Candidate { row, parent, token, score: score + own.min(0.0) }
            }));
        }
        let best = best(&considered, new..considered.len(), width).into_iter();
        level = best
            .map(|place| {
                let Candidate { row, token, score, .. } = considered[place];
                (expanded.push(node_of(row), token) + 1, score, Some(place))
            })
            .collect();
    }
    let tree = budget.map_or(expanded, |budget| rerank(&considered, budget));
    Ok(Draft { tree, proposal: Proposal::Deterministic })
}

/// A child that a tree of the most probable nodes may get.
struct Candidate {
    /// The row that it was proposed from, among the expanded nodes.
    row: usize,
    /// Its parent among the candidates; `None` is the prefix.
    parent: Option<usize>,
    token: TokenId,
    /// The logarithm of its path's probability.
    score: f64,
}

/// The places of the `count` best candidates of a range, best first; among equals the earlier one.
fn best(considered: &[Candidate], range: Range<usize>, count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = range.collect();
    places.sort_by(|&a, &b| considered[b].score.total_cmp(&considered[a].score));
    places.truncate(count);
    places
}

/// The tree of the `budget` best candidates. A parent is among them whenever its child is: it is at
/// least as probable, and came earlier.
fn rerank(considered: &[Candidate], budget: usize) -> TokenTree {
    let mut kept = best(considered, 0..considered.len(), budget);
    kept.sort_unstable();
    let mut tree = TokenTree::new();
    for &place in &kept {
        let Candidate { parent, token, .. } = considered[place];
        // Nodes stand in the order of their places.
        let parent = parent.and_then(|parent| kept.binary_search(&parent).ok());
        tree.push(parent, token);
    }
    tree
}

/// The node of a row; row 0 is the prefix.
pub(crate) fn node_of(row: usize) -> Option<Node> {
    row.checked_sub(1)
}
