//! Grows drafts of every shape from a drafter's rows.
//!
//! * Chains: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
//! * Trees of siblings drawn independently: SpecInfer (arXiv 2305.09781).
//! * Trees of the most probable nodes: EasySpec (arXiv 2502.02493), EAGLE-2 (arXiv 2406.16858), and
//!   of all nodes that the rows of one pass allow: DDTree (arXiv 2604.12989), if no width limits it.
//! * Product trees, in which all nodes of a depth share one row: Medusa (arXiv 2401.10774) and
//!   ParallelSpec (arXiv 2410.05589, algorithm 1).
//! * Trees of given ranks: the static trees of Medusa and EAGLE (arXiv 2401.15077).
//!
//! Sampled candidates are never dropped or reordered depending on their values, because that would
//! change the distribution of the output. So a model that fails after some of them ends the draft
//! there.

use crate::DraftContext;
use forerun_core::{
    Distribution, Draft, DraftShape, Proposal, RowLogits, RowUse, Sampler, Sampling, StopRule,
    TokenId, TokenTree, draft_key, node_of_row, row_of,
};
use forerun_lm::{BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, ModelError, Progress};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

/// A draft that grows depth by depth.
pub(crate) struct Growth<'a> {
    context: DraftContext<'a>,
    sampler: Sampler<'a>,
    tree: TokenTree,
    kind: GrowthKind,
}

enum GrowthKind {
    /// Siblings drawn independently. A chain has one child for each node.
    Sampled {
        /// The number of children of each node of the remaining depths.
        branching: VecDeque<usize>,
        proposed: Vec<Distribution>,
        /// Where a chain stops, and how sure the drafter is of its tokens so far.
        stop: Option<StopRule>,
        confidences: Vec<f32>,
    },
    /// The most probable nodes.
    ///
    /// Each depth expands the `width` nodes with the highest cumulative probability among the
    /// `width` best children of every node of the depth above. A budget chooses among all these
    /// children, expanded or not. Those that it cannot choose any more are not considered.
    Top {
        width: usize,
        remaining_depths: usize,
        budget: Option<usize>,
        considered: Vec<Candidate>,
        /// The score that a candidate must exceed.
        least: Option<f64>,
        /// The newest nodes: their rows, the log-probabilities of their paths, and their
        /// candidates.
        level: Vec<(usize, f64, Option<usize>)>,
    },
    /// The candidates of given ranks. The tree so far holds the nodes with children.
    Ranked {
        /// The number of children of each row of the shape.
        children: Vec<usize>,
        /// The first row of the shape's next depth.
        next: usize,
        considered: Vec<Candidate>,
        /// The newest nodes with children: their rows in the shape and in the tree, and their
        /// candidates.
        level: Vec<(usize, usize, Option<usize>)>,
    },
}

impl<'a> Growth<'a> {
    /// Starts a draft of this shape. `context` must have the sampling options of the drafter.
    pub(crate) fn new(context: DraftContext<'a>, shape: &DraftShape) -> Self {
        let kind = match &*simplified(shape) {
            // Drafters without phrases draft only the chain.
            DraftShape::Chain { length } | DraftShape::Phrases { length, .. } => {
                GrowthKind::sampled(vec![1; *length])
            }
            DraftShape::ConfidentChain { length, stop } => {
                GrowthKind::sampled(vec![1; *length]).stopping_by(*stop)
            }
            // Deterministic draws give equal siblings, so one is enough.
            DraftShape::Sampled { branching } if context.sampling.is_deterministic() => {
                GrowthKind::sampled(vec![1; branching.len()])
            }
            DraftShape::Sampled { branching } => GrowthKind::sampled(branching.clone()),
            DraftShape::Top { width, depth, budget } => GrowthKind::Top {
                width: *width,
                remaining_depths: *depth,
                budget: *budget,
                considered: Vec::new(),
                least: None,
                level: vec![(0, 0.0, None)],
            },
            DraftShape::Ranked { children } => GrowthKind::Ranked {
                children: children.clone(),
                next: 1,
                considered: Vec::new(),
                level: children
                    .first()
                    .filter(|&&count| count > 0)
                    .map(|_| (0, 0, None))
                    .into_iter()
                    .collect(),
            },
        };
        let sampler = Sampler::new(context.sampling, context.tokens, context.prompt_len);
        Self { context, sampler, tree: TokenTree::new(), kind }
    }

    /// Returns the tree so far and the first row that the next depth grows from; all later rows are
    /// needed, too. `None` if the draft is complete.
    pub(crate) fn next_rows(&self) -> Option<(&TokenTree, usize)> {
        let first_row = match &self.kind {
            // The rows after the newest nodes, which have no children yet.
            GrowthKind::Sampled { branching, proposed, .. } => {
                (!branching.is_empty()).then_some(proposed.len())?
            }
            GrowthKind::Top { remaining_depths, level, .. } => {
                level.first().filter(|_| *remaining_depths > 0)?.0
            }
            GrowthKind::Ranked { level, .. } => level.first()?.1,
        };
        (first_row <= self.tree.len()).then_some((&self.tree, first_row))
    }

    /// Grows the next depth from its rows, of which it reads what [`row_use`] says. They cover only
    /// the tokens that may be candidates.
    pub(crate) fn advance(&mut self, rows: &[RowLogits<'_>]) -> Result<(), ModelError> {
        let Self { context, sampler, tree, kind } = self;
        match kind {
            GrowthKind::Sampled { branching, proposed, stop, confidences } => {
                let (mut candidate, first_row) = (0, proposed.len());
                let children = branching.pop_front().unwrap_or(0);
                for (row, &logits) in (first_row..).zip(rows) {
                    let parent = node_of_row(row);
                    let distribution = sampler.distribution(logits, tree, parent)?;
                    let depth = parent.map_or(0, |node| tree.depth(node));
                    let rule = context.sampling.verification;
                    if stop.is_some() {
                        confidences.push(sampler.confidence(logits, tree, parent)?);
                    }
                    for _ in 0..children {
                        let prefix = context.tokens.len();
                        let key = draft_key(rule, prefix, tree, depth, candidate);
                        tree.push(parent, distribution.pick(context.randomness, key));
                        candidate += 1;
                    }
                    proposed.push(distribution);
                }
                if stop.is_some_and(|stop| !stop.goes_on(confidences)) {
                    branching.clear();
                }
            }
            GrowthKind::Top { width, remaining_depths, budget, considered, least, level } => {
                *remaining_depths -= 1;
                let new = considered.len();
                let (mut last, mut children): (Option<RowLogits<'_>>, _) = (None, Vec::new());
                for (&(row, score, parent), &logits) in level.iter().zip(rows) {
                    // Nodes that share a row share its best tokens, unless penalties depend on
                    // their paths.
                    let shared = last.is_some_and(|last| last.is_same(&logits));
                    if !shared || !sampler.is_path_independent() {
                        let node = node_of_row(row);
                        (last, children) =
                            (Some(logits), sampler.candidates(logits, tree, node, *width)?);
                    }
                    let children = children.iter().map(|&(token, log_probability)| {
                        // Rounding must not raise the score above the parent's.
                        Candidate { row, parent, token, score: score + log_probability.min(0.0) }
                    });
                    let can_stay = |child: &Candidate| least.is_none_or(|it| child.score > it);
                    considered.extend(children.take_while(can_stay));
                }
                *least = budget.and_then(|budget| score_of_rank(considered, budget));
                let best = best_candidates(considered, new..considered.len(), *width).into_iter();
                *level = best
                    .take_while(|&index| least.is_none_or(|it| considered[index].score >= it))
                    .map(|index| {
                        let Candidate { row, token, score, .. } = considered[index];
                        let node = tree.push(node_of_row(row), token);
                        (row_of(Some(node)), score, Some(index))
                    })
                    .collect();
            }
            GrowthKind::Ranked { children, next, considered, level } => {
                let mut deeper = Vec::new();
                for (&(at, row, parent), &logits) in level.iter().zip(rows) {
                    let count = children[at];
                    let best = sampler.best_tokens(logits, tree, node_of_row(row), count)?;
                    for (rank, token) in best.into_iter().enumerate() {
                        let at = next.saturating_add(rank);
                        if children.get(at).is_some_and(|&count| count > 0) {
                            let node = tree.push(node_of_row(row), token);
                            deeper.push((at, row_of(Some(node)), Some(considered.len())));
                        }
                        considered.push(Candidate { row, parent, token, score: 0.0 });
                    }
                    *next = next.saturating_add(count);
                }
                *level = deeper;
            }
        }
        Ok(())
    }

    /// Returns the draft before a depth that the model failed to compute. Candidates that were
    /// drawn stay, because the failure may depend on them.
    pub(crate) fn finish_after(self, error: ModelError) -> Result<Draft, ModelError> {
        match self.tree.is_empty() || error == ModelError::Cancelled {
            true => Err(error),
            false => Ok(self.finish()),
        }
    }

    /// Returns the draft.
    pub(crate) fn finish(self) -> Draft {
        match self.kind {
            GrowthKind::Sampled { mut proposed, confidences, .. } => {
                proposed.resize(self.tree.len() + 1, Distribution::default());
                Draft { confidences, ..Draft::new(self.tree, Proposal::Sampled(proposed)) }
            }
            GrowthKind::Top { budget, considered, .. } => {
                let tree = budget.map_or(self.tree, |budget| rerank(&considered, budget));
                Draft::deterministic(tree)
            }
            GrowthKind::Ranked { considered, .. } => {
                let mut tree = TokenTree::new();
                for Candidate { parent, token, .. } in considered {
                    tree.push(parent, token);
                }
                Draft::deterministic(tree)
            }
        }
    }
}

impl GrowthKind {
    fn sampled(branching: Vec<usize>) -> Self {
        let branching = branching.into();
        Self::Sampled { branching, proposed: Vec::new(), stop: None, confidences: Vec::new() }
    }

    /// Returns a chain that stops by this rule.
    fn stopping_by(mut self, rule: StopRule) -> Self {
        if let Self::Sampled { stop, .. } = &mut self {
            *stop = Some(rule);
        }
        self
    }
}

/// Returns a shape that gives the same drafts. The candidates of a single row are in the order of
/// their ranks, so their probabilities are not needed.
fn simplified(shape: &DraftShape) -> Cow<'_, DraftShape> {
    match shape {
        DraftShape::Top { width, depth: 1, budget } => {
            let children = vec![budget.map_or(*width, |budget| budget.min(*width))];
            Cow::Owned(DraftShape::Ranked { children })
        }
        _ => Cow::Borrowed(shape),
    }
}

/// Returns what drafts of a shape read of rows over so many tokens. `sampling` are the options of
/// the drafter.
pub(crate) fn row_use(shape: &DraftShape, sampling: &Sampling, tokens: usize) -> RowUse {
    match &*simplified(shape) {
        DraftShape::ConfidentChain { .. } => {
            sampling.row_use(tokens).and(sampling.confidence_use(tokens))
        }
        DraftShape::Chain { .. } | DraftShape::Phrases { .. } | DraftShape::Sampled { .. } => {
            sampling.row_use(tokens)
        }
        DraftShape::Top { .. } => sampling.candidates_use(tokens),
        DraftShape::Ranked { children } => {
            sampling.best_tokens_use(children.iter().copied().max().unwrap_or(0), tokens)
        }
    }
}

/// Grows a draft from rows that depend only on the depth of a node; the first one is for the
/// prefix. Only tokens below `vocab_size` are candidates. There must be a row for each depth.
pub(crate) fn grow_from_depth_rows(
    mut growth: Growth<'_>,
    output: &ForwardOutput,
    vocab_size: usize,
) -> Result<Draft, ModelError> {
    let by_depth: Vec<RowLogits<'_>> = output.rows_for_sampling(vocab_size).collect();
    while let Some((tree, first_row)) = growth.next_rows() {
        let depth_of = |row| node_of_row(row).map_or(0, |node| tree.depth(node));
        let depths = (first_row..=tree.len()).map(depth_of);
        let rows: Vec<RowLogits<'_>> =
            depths.filter_map(|depth| by_depth.get(depth).copied()).collect();
        growth.advance(&rows)?;
    }
    Ok(growth.finish())
}

/// A draft that grows from a model's rows, as one of several that share forward passes.
pub(crate) struct ModelGrowth<'a> {
    /// The index of its context.
    pub(crate) index: usize,
    pub(crate) growth: Growth<'a>,
    /// The options of its requests, with the tokens that are not part of their trees.
    pub(crate) request: ForwardRequest<'a>,
    /// The context's further tokens as a chain, and the draft's nodes after it.
    tree: TokenTree,
    progress: Progress,
}

impl<'a> ModelGrowth<'a> {
    /// Creates a growth whose requests have the first tokens of the context, and the others as
    /// nodes.
    pub(crate) fn new(index: usize, growth: Growth<'a>, request: ForwardRequest<'a>) -> Self {
        Self { index, growth, request, tree: TokenTree::new(), progress: Progress::default() }
    }

    /// Returns the entry of the next pass, unless the draft is complete.
    fn entry(&mut self) -> Option<BatchEntry<'_>> {
        let Self { growth, request, tree: extended, progress, .. } = self;
        let (mut tree, mut first_row) = growth.next_rows()?;
        let device = growth.context.device(tree, first_row);
        let ahead = &growth.context.tokens[request.tokens.len()..];
        if let Some(last) = ahead.len().checked_sub(1) {
            *extended = TokenTree::chain(ahead);
            extended.graft(Some(last), tree);
            (tree, first_row) = (extended, first_row + ahead.len());
        }
        let request = ForwardRequest { tree, first_row, device, ..*request };
        Some(BatchEntry { request, progress })
    }
}

/// Grows drafts from a model's rows. The drafts share forward passes: each pass computes the next
/// depth of all of them. Only tokens below `vocab_size` are candidates.
pub(crate) fn grow_from_model(
    model: &mut impl LanguageModel,
    mut growths: Vec<ModelGrowth<'_>>,
    vocab_size: usize,
    done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
) {
    while !growths.is_empty() {
        let mut batch: Vec<_> = growths.iter_mut().filter_map(ModelGrowth::entry).collect();
        if !batch.is_empty() {
            model.forward(&mut batch);
        }
        for mut growing in std::mem::take(&mut growths) {
            let advanced = match growing.progress.result.take() {
                Some(Ok(output)) => {
                    growing.progress = Progress::default();
                    let rows: Vec<_> = output.rows_for_sampling(vocab_size).collect();
                    growing.growth.advance(&rows)
                }
                Some(Err(error)) => Err(error),
                None => Ok(()),
            };
            match advanced {
                Err(error) => done(growing.index, growing.growth.finish_after(error)),
                Ok(()) if growing.growth.next_rows().is_none() => {
                    done(growing.index, Ok(growing.growth.finish()));
                }
                Ok(()) => growths.push(growing),
            }
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

/// Returns the score of the last of the `count` best candidates, if there are so many.
fn score_of_rank(considered: &[Candidate], count: usize) -> Option<f64> {
    let last = count.checked_sub(1).filter(|&last| last < considered.len())?;
    let mut scores: Vec<f64> = considered.iter().map(|candidate| candidate.score).collect();
    Some(*scores.select_nth_unstable_by(last, |a, b| b.total_cmp(a)).1)
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
