//! Measures how well models predict tokens, and how far their distributions are from those of the
//! first model. The other models are the same model in another weight type, or its drafters.

use crate::team::Team;
use crate::transformer::Transformer;
use crate::weights::Weights;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_lm::{ForwardOutput, ForwardRequest, LanguageModel, ModelError};
use forerun_model::CachedTransformer;
use std::sync::Arc;

/// Rows of a forward pass. Their logits are in memory for all models at the same time.
const ROWS: usize = 32;

/// The only sequence that is scored.
const SEQUENCE: SequenceId = SequenceId(0);

/// Several models that predict the same tokens. The first model is the reference.
pub struct QualityProbe {
    models: Vec<CachedTransformer<Transformer>>,
    sums: Vec<QualitySums>,
    tokens: usize,
}

/// A model's prediction quality, averaged over all scored tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Negative log-likelihood of a token, in nats.
    pub loss: f64,
    /// Kullback–Leibler divergence of a row from the reference's, KL(reference ‖ model), in nats.
    pub kl_divergence: f64,
    /// Share of rows with the same most probable token as the reference.
    pub top1_agreement: f64,
    /// Overlap of a row with the reference's, `Σ min(p, q) = 1 − TV`. For a drafter, this is the
    /// probability that a sampled token is accepted (Leviathan 2023, theorem 3.5).
    pub overlap: f64,
}

impl Quality {
    /// Returns the perplexity: the exponential of the loss.
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }
}

/// [`Quality`] summed over tokens, not yet divided by their number.
#[derive(Clone, Copy, Default)]
struct QualitySums {
    loss: f64,
    kl_divergence: f64,
    agreements: usize,
    overlap: f64,
}

impl QualityProbe {
    /// Creates a probe of models with these weights, which share a team. The first is the
    /// reference.
    #[must_use]
    pub fn new(weights: impl IntoIterator<Item = Arc<Weights>>, team: &Arc<Team>) -> Self {
        let model = |weights| CachedTransformer::new(Transformer::new(weights, Arc::clone(team)));
        let models: Vec<_> = weights.into_iter().map(model).collect();
        Self { sums: vec![QualitySums::default(); models.len()], models, tokens: 0 }
    }

    /// Scores the models' predictions of all tokens of a window except the first, each from the
    /// tokens before it.
    ///
    /// # Errors
    /// If the window is longer than a model's context, or a token is not in its vocabulary.
    pub fn score(&mut self, window: &[TokenId]) -> Result<(), ModelError> {
        let last = window.len().saturating_sub(1);
        for start in (0..last).step_by(ROWS) {
            self.score_rows(window, start, last.min(start + ROWS))?;
        }
        for model in &mut self.models {
            model.release(SEQUENCE);
        }
        Ok(())
    }

    /// Scores the predictions of the tokens after index `start`, up to and including `end`.
    fn score_rows(
        &mut self,
        window: &[TokenId],
        start: usize,
        end: usize,
    ) -> Result<(), ModelError> {
        let (prefix, rest) = (&window[..=start], TokenTree::chain(&window[start + 1..end]));
        let context = ForwardRequest::new(SEQUENCE, prefix, &rest);
        let logits = self.models.iter_mut().map(|model| model.logits(&context));
        let logits = logits.collect::<Result<Vec<_>, _>>()?;
        let mut rows: Vec<_> = logits.iter().map(ForwardOutput::rows).collect();
        for &token in &window[start + 1..=end] {
            // Each model has a row for every token.
            let rows = rows.iter_mut().filter_map(Iterator::next).map(LogProbabilities::of);
            let rows: Vec<_> = rows.collect();
            for (sums, row) in self.sums.iter_mut().zip(&rows) {
                sums.loss -= row.log_probability(token as usize);
                sums.kl_divergence += rows[0].divergence_of(row);
                sums.overlap += rows[0].overlap_with(row);
                sums.agreements += usize::from(rows[0].top() == row.top());
            }
        }
        self.tokens += end - start;
        Ok(())
    }

    /// Returns the number of scored tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the models' qualities, in the order of the models. They are NaN if no token was
    /// scored.
    #[must_use]
    pub fn qualities(&self) -> Vec<Quality> {
        let tokens = self.tokens as f64;
        let quality = |sums: &QualitySums| Quality {
            loss: sums.loss / tokens,
            kl_divergence: sums.kl_divergence / tokens,
            top1_agreement: sums.agreements as f64 / tokens,
            overlap: sums.overlap / tokens,
        };
        self.sums.iter().map(quality).collect()
    }
}

/// The log-probabilities of a row of logits.
pub(crate) struct LogProbabilities<'a> {
    logits: &'a [f32],
    /// The logarithm of the sum of the logits' exponentials.
    log_total: f64,
}

impl<'a> LogProbabilities<'a> {
    pub(crate) fn of(logits: &'a [f32]) -> Self {
        let peak = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - peak).exp()).sum();
        Self { logits, log_total: peak + total.ln() }
    }

    fn log_probability(&self, token: usize) -> f64 {
        f64::from(self.logits[token]) - self.log_total
    }

    /// Computes KL(self ‖ other).
    fn divergence_of(&self, other: &Self) -> f64 {
        let term = |token: usize| {
            let log_probability = self.log_probability(token);
            log_probability.exp() * (log_probability - other.log_probability(token))
        };
        (0..self.logits.len()).map(term).sum()
    }

    /// Computes the overlap `Σ min(self, other)`.
    pub(crate) fn overlap_with(&self, other: &Self) -> f64 {
        let minimum =
            |token: usize| self.log_probability(token).min(other.log_probability(token)).exp();
        (0..self.logits.len()).map(minimum).sum()
    }

    /// Returns the most probable token. If there are several, returns the first.
    pub(crate) fn top(&self) -> usize {
        let better = |best: usize, token: usize| match self.logits[token] > self.logits[best] {
            true => token,
            false => best,
        };
        (0..self.logits.len()).fold(0, better)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_formats::checkpoint::random::{
        RandomDtype, example_config, write_random_checkpoint,
    };
    use forerun_formats::{Checkpoint, WeightType};
    use forerun_reference::ReferenceModel;

    #[test]
    fn divergences_of_known_distributions_are_correct() {
        // Only the differences of logits count, so the rows have arbitrary shifts.
        let row = |probabilities: [f32; 3], shift: f32| probabilities.map(|p| p.ln() + shift);
        let (even, skewed) = (row([0.25, 0.25, 0.5], 300.0), row([0.5, 0.25, 0.25], -7.0));
        let (even, skewed) = (LogProbabilities::of(&even), LogProbabilities::of(&skewed));
        assert!((even.log_probability(2) - 0.5_f64.ln()).abs() < 1e-4);
        let expected = 0.25 * 0.5_f64.ln() + 0.5 * 2.0_f64.ln();
        assert!((even.divergence_of(&skewed) - expected).abs() < 1e-4);
        assert_eq!(even.divergence_of(&even), 0.0);
        assert!((even.overlap_with(&skewed) - 0.75).abs() < 1e-4);
        assert!((even.overlap_with(&even) - 1.0).abs() < 1e-4);
        assert_eq!((even.top(), skewed.top()), (2, 0));
    }

    /// Compares windows of less than one pass and of several passes with the slow reference model.
    #[test]
    fn qualities_match_the_reference_model() {
        let folder = tempfile::tempdir().unwrap();
        write_random_checkpoint(folder.path(), &example_config(), 5, RandomDtype::F32).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let types = [WeightType::F32, WeightType::INT8, WeightType::F32];
        let weights = types.map(|dtype| Arc::new(Weights::load_as(&checkpoint, dtype).unwrap()));
        let team = Arc::new(Team::single_thread());
        let mut probe = QualityProbe::new(weights, &team);
        let slow = [WeightType::F32, WeightType::INT8]
            .map(|dtype| ReferenceModel::load_as(&checkpoint, dtype, team.isa()).unwrap());

        let (mut loss, mut divergence, mut agreements, mut tokens) = ([0.0; 2], 0.0, 0.0, 0.0);
        for len in [0, 1, 2, ROWS, ROWS + 1, 2 * ROWS + 9] {
            let window: Vec<TokenId> =
                (0..len as u32).map(|index| (index * index * 7 + index) % 256).collect();
            probe.score(&window).unwrap();
            let rows = slow.each_ref().map(|model| model.logits(&window));
            for (index, &next) in window.iter().enumerate().skip(1) {
                let probabilities = rows.each_ref().map(|rows| softmax(&rows[index - 1]));
                for (loss, row) in loss.iter_mut().zip(&probabilities) {
                    *loss -= row[next as usize].ln();
                }
                let [exact, rounded] = probabilities;
                let pairs = exact.iter().zip(&rounded);
                divergence += pairs.map(|(p, q)| p * (p / q).ln()).sum::<f64>();
                agreements += f64::from(top(&exact) == top(&rounded));
                tokens += 1.0;
            }
        }
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        let [exact, int8, again] = probe.qualities()[..] else { panic!("three models") };
        assert_eq!((probe.tokens() as f64, again), (tokens, exact));
        assert_eq!((exact.kl_divergence, exact.top1_agreement), (0.0, 1.0));
        near(exact.loss, loss[0] / tokens);
        near(exact.perplexity(), (loss[0] / tokens).exp());
        near(int8.loss, loss[1] / tokens);
        near(int8.kl_divergence, divergence / tokens);
        near(int8.top1_agreement, agreements / tokens);
        assert!(int8.kl_divergence > 0.0 && int8.loss != exact.loss);
    }

    fn softmax(logits: &[f32]) -> Vec<f64> {
        let weights = logits.iter().map(|&logit| f64::from(logit).exp());
        let total: f64 = weights.clone().sum();
        weights.map(|weight| weight / total).collect()
    }

    fn top(row: &[f64]) -> usize {
        row.iter().position(|p| *p == row.iter().copied().fold(0.0, f64::max)).unwrap()
    }

    #[test]
    fn a_window_longer_than_the_context_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        write_random_checkpoint(folder.path(), &example_config(), 5, RandomDtype::F32).unwrap();
        let weights = Weights::load(&Checkpoint::open(folder.path()).unwrap()).unwrap();
        let mut probe = QualityProbe::new([Arc::new(weights)], &Arc::new(Team::single_thread()));
        let error = probe.score(&[1; 514]).unwrap_err();
        assert!(matches!(error, ModelError::Context { context: 512, .. }), "{error}");
    }
}
