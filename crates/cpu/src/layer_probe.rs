//! Measures the error of computing layers in groups: the similarity of approximate rows' states to
//! the exact ones (EasySpec, table 5), and the overlap of their distributions.
//!
//! A text is processed in rounds, as in drafting. The first row of a round is exact, as after
//! calibration. The rows after it are approximate, with an exact prefix. All strategies get the
//! same rows.

use crate::quality::LogProbabilities;
use crate::team::Team;
use crate::transformer::{Observed, STATES, Transformer};
use crate::weights::Weights;
use forerun_cache::Keep;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_formats::Architecture;
use forerun_lm::{ForwardRequest, LanguageModel, LayerGroups, LayerOrder, ModelError};
use forerun_model::{CachedTransformer, Forward, SequenceRunner};
use std::sync::Arc;

const SEQUENCE: SequenceId = SequenceId(0);

/// A choice of the layers that are computed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// The groups of layers.
    pub groups: LayerGroups,
    /// Whether the MLPs also read the group's hidden state. Drafters do not do this, because it
    /// loses more than it gains.
    pub whole_layers: bool,
}

/// Mean cosine similarities of a layer's states between approximate and exact rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Similarities {
    /// The hidden state that attention reads.
    pub hidden: f64,
    /// The output of attention.
    pub attention: f64,
    /// Queries, all heads as one vector.
    pub queries: f64,
    /// Keys.
    pub keys: f64,
    /// Values.
    pub values: f64,
}

/// The results of a strategy, averaged over all approximate rows.
#[derive(Clone, Debug, PartialEq)]
pub struct StrategyScore {
    /// The similarities of each layer.
    pub layers: Vec<Similarities>,
    /// `1 − TV` between approximate and exact rows at temperature 1: the probability that a token
    /// sampled from the approximate row is accepted by the exact one.
    pub overlap: f64,
    /// Share of rows with the same most probable token as the exact row.
    pub top1_agreement: f64,
    /// The acceptance rate, if there is a target: the overlap with the target's rows.
    pub acceptance: Option<f64>,
}

impl StrategyScore {
    /// Returns the mean over all layers.
    #[must_use]
    pub fn mean(&self) -> Similarities {
        self.mean_of(|_| true)
    }

    /// Returns the mean over the layers for which `is_included` is true.
    #[must_use]
    pub fn mean_of(&self, is_included: impl Fn(usize) -> bool) -> Similarities {
        let layers = (0..).zip(&self.layers).filter(|(index, _)| is_included(*index));
        let layers: Vec<_> = layers.map(|(_, layer)| layer).collect();
        let mean = |state: fn(&Similarities) -> f64| {
            layers.iter().map(|layer| state(layer)).sum::<f64>() / layers.len() as f64
        };
        Similarities {
            hidden: mean(|layer| layer.hidden),
            attention: mean(|layer| layer.attention),
            queries: mean(|layer| layer.queries),
            keys: mean(|layer| layer.keys),
            values: mean(|layer| layer.values),
        }
    }
}

/// A model and optionally its target, for comparing strategies on texts.
pub struct LayerProbe {
    runner: SequenceRunner<Transformer>,
    target: Option<CachedTransformer<Transformer>>,
    /// The number of approximate rows in a round.
    depth: usize,
    strategies: Vec<Strategy>,
    sums: Vec<StrategySums>,
    rows: usize,
    exact_acceptance: f64,
}

/// A [`StrategyScore`] summed over rows, not yet divided by their number.
#[derive(Clone)]
struct StrategySums {
    layers: Vec<[f64; STATES]>,
    overlap: f64,
    agreements: usize,
    acceptance: f64,
}

/// Checks that a text fits the model's context, and that its tokens are in the vocabulary.
pub(crate) fn check_tokens(model: &Architecture, tokens: &[TokenId]) -> Result<(), ModelError> {
    let (context, vocab_size) = (model.context_length, model.vocab_size);
    if tokens.len() > context {
        return Err(ModelError::Context { position: tokens.len() - 1, context });
    }
    match tokens.iter().find(|&&token| token as usize >= vocab_size) {
        Some(&token) => Err(ModelError::Token { token, vocab_size }),
        None => Ok(()),
    }
}

/// Runs an observed pass that outputs all its rows.
fn observe(
    runner: &mut SequenceRunner<Transformer>,
    rows: &TokenTree,
    order: LayerOrder<'_>,
    whole_layers: bool,
) -> Result<Observed, ModelError> {
    let observed = runner.with_pass(rows, order, |transformer, pass, storage| {
        transformer.forward_observed(pass, whole_layers, storage)
    });
    observed.map_err(ModelError::from)
}

impl LayerProbe {
    /// Creates a probe that uses rounds of one exact row and `depth` approximate rows.
    ///
    /// # Panics
    /// If a strategy's groups do not match the model's layers.
    #[must_use]
    pub fn new(
        weights: Arc<Weights>,
        target: Option<Arc<Weights>>,
        team: &Arc<Team>,
        depth: usize,
        strategies: Vec<Strategy>,
    ) -> Self {
        let n_layers = weights.architecture().layers.len();
        let groups = strategies.iter().map(|strategy| strategy.groups.check(n_layers));
        groups.for_each(|check| assert_eq!(check, Ok(()), "groups must match the model's layers"));
        let target = target
            .map(|weights| CachedTransformer::new(Transformer::new(weights, Arc::clone(team))));
        let zero = StrategySums {
            layers: vec![[0.0; STATES]; n_layers],
            overlap: 0.0,
            agreements: 0,
            acceptance: 0.0,
        };
        Self {
            runner: SequenceRunner::new(Transformer::new(weights, Arc::clone(team))),
            target,
            depth: depth.max(1),
            sums: vec![zero; strategies.len()],
            strategies,
            rows: 0,
            exact_acceptance: 0.0,
        }
    }

    /// Scores the strategies on a text.
    ///
    /// # Errors
    /// If the text is longer than a model's context, or a token is not in a model's vocabulary.
    pub fn score(&mut self, tokens: &[TokenId]) -> Result<(), ModelError> {
        check_tokens(self.runner.transformer().architecture(), tokens)?;
        self.runner.seek(&[], &TokenTree::new(), Keep::Exact);
        for first in (0..tokens.len().saturating_sub(1)).step_by(self.depth + 1) {
            let end = tokens.len().min(first + 1 + self.depth);
            self.round(tokens, first, end)?;
        }
        if let Some(target) = &mut self.target {
            target.release(SEQUENCE);
        }
        Ok(())
    }
    /// Runs one round: the token `first` exactly, and the tokens after it, up to `end`, with every
    /// strategy.
    fn round(&mut self, tokens: &[TokenId], first: usize, end: usize) -> Result<(), ModelError> {
        let no_tree = TokenTree::new();
        let approximate_rows = TokenTree::chain(&tokens[first + 1..end]);
        let runner = &mut self.runner;
        let forward_exactly = |runner: &mut SequenceRunner<Transformer>, from: usize| {
            runner.seek(&tokens[..from], &no_tree, Keep::Exact);
            let rows = TokenTree::chain(&tokens[from..end]);
            observe(runner, &rows, LayerOrder::Sequential, false)
        };
        if approximate_rows.is_empty() {
            return Ok(());
        }
        drop(forward_exactly(runner, first)?);
        let exact = forward_exactly(runner, first + 1)?;
        let target = self.target.as_mut().map(|target| {
            let (prefix, rest) = tokens[..end].split_at(first + 2);
            let tree = &TokenTree::chain(rest);
            target.logits(&ForwardRequest::new(SEQUENCE, prefix, tree))
        });
        let target = target.transpose()?.map(|output| output.logits);
        let vocab_size = runner.transformer().architecture().vocab_size;
        let acceptance = |logits: &[f32]| {
            target.as_ref().map_or(0.0, |target| overlap(target, logits, vocab_size).0)
        };
        self.exact_acceptance += acceptance(&exact.logits);
        for (strategy, sums) in self.strategies.iter().zip(&mut self.sums) {
            runner.seek(&tokens[..=first], &no_tree, Keep::Exact);
            let order = LayerOrder::Groups(&strategy.groups);
            let approximate = observe(runner, &approximate_rows, order, strategy.whole_layers)?;
            sums.add(&exact, &approximate, approximate_rows.len(), vocab_size);
            sums.acceptance += acceptance(&approximate.logits);
        }
        // Replaces the last strategy's rows in the cache by exact ones.
        runner.seek(&tokens[..=first], &no_tree, Keep::Exact);
        observe(runner, &approximate_rows, LayerOrder::Sequential, false)?;
        self.rows += approximate_rows.len();
        Ok(())
    }

    /// Returns the number of approximate rows so far.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the acceptance rate of exact rows, if there is a target.
    #[must_use]
    pub fn exact_acceptance(&self) -> Option<f64> {
        self.target.as_ref().map(|_| self.exact_acceptance / self.rows as f64)
    }

    /// Returns the strategies' results, in the order of the strategies. They are NaN without any
    /// rows.
    #[must_use]
    pub fn scores(&self) -> Vec<StrategyScore> {
        let rows = self.rows as f64;
        let score = |sums: &StrategySums| StrategyScore {
            layers: sums
                .layers
                .iter()
                .map(|layer| {
                    let [hidden, attention, queries, keys, values] = layer.map(|sum| sum / rows);
                    Similarities { hidden, attention, queries, keys, values }
                })
                .collect(),
            overlap: sums.overlap / rows,
            top1_agreement: sums.agreements as f64 / rows,
            acceptance: self.target.as_ref().map(|_| sums.acceptance / rows),
        };
        self.sums.iter().map(score).collect()
    }
}

impl StrategySums {
    fn add(&mut self, exact: &Observed, approximate: &Observed, rows: usize, vocab_size: usize) {
        for (sums, (exact, approximate)) in
            self.layers.iter_mut().zip(exact.layers.iter().zip(&approximate.layers))
        {
            for (sum, (exact, approximate)) in sums.iter_mut().zip(exact.iter().zip(approximate)) {
                let width = exact.len() / rows;
                let pairs = exact.chunks_exact(width).zip(approximate.chunks_exact(width));
                *sum += pairs.map(|(a, b)| cosine(a, b)).sum::<f64>();
            }
        }
        let (overlap, agreements) = overlap(&exact.logits, &approximate.logits, vocab_size);
        self.overlap += overlap;
        self.agreements += agreements;
    }
}

/// Returns the sum of `Σ min(p, q)` over all rows, and the number of rows with the same most
/// probable token in both.
fn overlap(a: &[f32], b: &[f32], vocab_size: usize) -> (f64, usize) {
    let rows = a.chunks_exact(vocab_size).zip(b.chunks_exact(vocab_size));
    rows.map(|(a, b)| (LogProbabilities::of(a), LogProbabilities::of(b)))
        .map(|(a, b)| (a.overlap_with(&b), usize::from(a.top() == b.top())))
        .fold((0.0, 0), |(overlap, same), row| (overlap + row.0, same + row.1))
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    // Two zero vectors are equal. A zero vector has no similarity to any other vector.
    if norms > 0.0 { dot(a, b) / norms } else { f64::from(u8::from(a == b)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_formats::checkpoint::random::{
        RandomDtype, example_config, write_random_checkpoint,
    };
    use forerun_formats::{Checkpoint, Config};
    use forerun_reference::ReferenceModel;

    const LAYERS: usize = 6;

    fn checkpoint() -> Checkpoint {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { num_hidden_layers: LAYERS, ..example_config() };
        write_random_checkpoint(dir.path(), &config, 5, RandomDtype::F32).unwrap();
        Checkpoint::open(dir.path()).unwrap()
    }

    fn tokens() -> Vec<TokenId> {
        (0..23).map(|index| index * 31 % 250).collect()
    }

    fn scores(strategies: &[Strategy], target: bool) -> (Vec<StrategyScore>, Option<f64>) {
        let weights = Arc::new(Weights::load(&checkpoint()).unwrap());
        let target = target.then(|| Arc::clone(&weights));
        let team = Arc::new(Team::unpinned(2).unwrap());
        let mut probe = LayerProbe::new(weights, target, &team, 4, strategies.to_vec());
        probe.score(&tokens()).unwrap();
        // Rounds begin at 0, 5, 10, 15, 20.
        assert_eq!(probe.rows(), 4 * 4 + 2);
        (probe.scores(), probe.exact_acceptance())
    }

    fn strategy(sizes: &[usize], whole_layers: bool) -> Strategy {
        Strategy { groups: LayerGroups::of_sizes(sizes), whole_layers }
    }

    #[test]
    fn groups_of_one_layer_are_exact_and_larger_groups_lose_more() {
        let strategies = [
            strategy(&[1; LAYERS], false),
            strategy(&[1; LAYERS], true),
            strategy(&[1, 2, 2, 1], false),
            strategy(&[1, 4, 1], false),
        ];
        let (scores, exact) = scores(&strategies, true);
        for single in &scores[..2] {
            let Similarities { hidden, attention, queries, keys, values } = single.mean();
            for similarity in [hidden, attention, queries, keys, values, single.overlap] {
                assert!((similarity - 1.0).abs() < 1e-5, "{single:?}");
            }
            let lost = exact.unwrap() - single.acceptance.unwrap();
            assert!(single.top1_agreement == 1.0 && lost.abs() < 1e-5, "{single:?}");
        }
        assert!((exact.unwrap() - 1.0).abs() < 1e-9, "the target is the model itself");
        for (large, small) in [(&scores[2], &scores[0]), (&scores[3], &scores[2])] {
            assert!(large.mean().hidden < small.mean().hidden && large.overlap < small.overlap);
            assert!((large.acceptance.unwrap() - large.overlap).abs() < 1e-9);
        }
        // The inputs of the first two layers are exact with any groups after them.
        for layer in &scores[3].layers[..2] {
            assert!((layer.hidden - 1.0).abs() < 1e-9 && (layer.attention - 1.0).abs() < 1e-9);
        }
        assert!(scores[3].layers[2].hidden < 1.0 - 1e-6);
        let third = scores[3].mean_of(|layer| layer == 2);
        assert_eq!(third, scores[3].layers[2]);
    }

    /// Compares with the reference model's approximate rows after an exact prefix.
    #[test]
    fn overlaps_match_the_reference_model() {
        let strategies = [strategy(&[1, 3, 2], false)];
        let (scores, _) = scores(&strategies, false);
        let (reference, tokens) = (ReferenceModel::load(&checkpoint()).unwrap(), tokens());
        let exact = reference.logits(&tokens);
        let (mut sum, mut rows) = (0.0, 0);
        for first in (0..tokens.len()).step_by(5) {
            let end = tokens.len().min(first + 5);
            let order = LayerOrder::Groups(&strategies[0].groups);
            let approximate = reference.logits_in_order(&tokens[..end], order, first + 1);
            for row in first + 1..end {
                sum += LogProbabilities::of(&exact[row])
                    .overlap_with(&LogProbabilities::of(&approximate[row]));
                rows += 1;
            }
        }
        assert!((scores[0].overlap - sum / f64::from(rows)).abs() < 1e-9);
        assert_eq!((scores[0].acceptance, rows), (None, 18));
    }

    #[test]
    fn grouping_whole_layers_loses_more_than_grouping_attention() {
        let strategies = [2, 4].map(|size| strategy(&[1, size, 5 - size], false));
        let whole = strategies.clone().map(|strategy| Strategy { whole_layers: true, ..strategy });
        let (scores, _) = scores(&[strategies, whole].concat(), false);
        for (attention_only, whole) in scores[..2].iter().zip(&scores[2..]) {
            assert!(whole.mean().hidden < attention_only.mean().hidden, "{whole:?}");
        }
    }

    #[test]
    fn unknown_tokens_and_long_texts_are_rejected() {
        let weights = Arc::new(Weights::load(&checkpoint()).unwrap());
        let team = Arc::new(Team::single_thread());
        let mut probe = LayerProbe::new(weights, None, &team, 4, Vec::new());
        assert!(probe.score(&[1, 999]).unwrap_err().to_string().contains("token 999"));
        assert!(probe.score(&vec![1; 513]).unwrap_err().to_string().contains("512"));
        probe.score(&[]).unwrap();
        probe.score(&[1]).unwrap();
        assert_eq!(probe.rows(), 0);
    }
}
