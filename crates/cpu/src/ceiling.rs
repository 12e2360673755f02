//! Measures the ceiling of drafters that draft several tokens in one pass.
//!
//! Such a drafter does not see the tokens that are sampled between the text and the place that it
//! drafts for. At best it knows the target's marginal distribution of that place: the mean of the
//! target's distributions after all texts that may come between, weighted by their probability. The
//! overlap of this mean with the target's distribution after one of them is the highest acceptance
//! rate that it can reach by rejection sampling, up to the small gain of a proposal that is not the
//! mean.

use crate::team::Team;
use crate::transformer::Transformer;
use crate::weights::Weights;
use forerun_core::{Key, KeyedRandomness, Node, Purpose, SequenceId, TokenId, TokenTree, row_of};
use forerun_lm::{ForwardRequest, LanguageModel, ModelError};
use forerun_model::CachedTransformer;
use std::collections::BTreeMap;
use std::sync::Arc;

const SEQUENCE: SequenceId = SequenceId(0);

/// The options of [`CeilingProbe`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CeilingOptions {
    /// The number of places after the text. At the first one, the overlap is 1.
    pub places: usize,
    /// The number of continuations that are sampled after a text, at least two. The marginal of a
    /// continuation is the mean over all others, which makes the result slightly too low for few of
    /// them.
    pub continuations: usize,
    /// The sampling temperature, above 0.
    pub temperature: f64,
    /// The seed of the samples.
    pub seed: u64,
}

/// A target whose continuations are sampled.
pub struct CeilingProbe {
    model: CachedTransformer<Transformer>,
    options: CeilingOptions,
    random: KeyedRandomness,
    /// The number of sampled tokens.
    sampled: u32,
    /// The overlap of each measured text, by place.
    overlaps: Vec<Vec<f64>>,
}

impl CeilingProbe {
    /// Creates a probe of a target.
    ///
    /// # Panics
    /// If there is no place, there are fewer than two continuations, or the temperature is not
    /// above 0.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: &Arc<Team>, options: CeilingOptions) -> Self {
        assert!(options.places > 0 && options.continuations > 1 && options.temperature > 0.0);
        Self {
            model: CachedTransformer::new(Transformer::new(weights, Arc::clone(team))),
            options,
            random: KeyedRandomness { seed: options.seed, sample: 0 },
            sampled: 0,
            overlaps: vec![Vec::new(); options.places],
        }
    }

    /// Samples continuations of a text and adds their overlaps.
    ///
    /// # Errors
    /// If the text and its continuations are longer than the model's context, or a token is not in
    /// its vocabulary.
    pub fn measure(&mut self, text: &[TokenId]) -> Result<(), ModelError> {
        let mut tree = TokenTree::default();
        // The continuations' last nodes, with the number of continuations that end there.
        let mut ends = BTreeMap::from([(None, self.options.continuations)]);
        for place in 0..self.options.places {
            let rows: Vec<Vec<f64>> = {
                let output = self.model.logits(&ForwardRequest::new(SEQUENCE, text, &tree))?;
                let all: Vec<&[f32]> = output.rows().collect();
                let temperature = self.options.temperature;
                ends.keys().map(|&end| probabilities(all[row_of(end)], temperature)).collect()
            };
            self.overlaps[place].push(mean_overlap(&rows, ends.values()));
            let mut next = BTreeMap::new();
            for ((&end, &count), row) in ends.iter().zip(&rows) {
                for _ in 0..count {
                    self.sampled += 1;
                    let key =
                        Key { position: 0, purpose: Purpose::Sample, candidate: self.sampled };
                    let token = sample(row, self.random.uniform(key));
                    let node = child(&mut tree, end, token);
                    *next.entry(Some(node)).or_insert(0) += 1;
                }
            }
            ends = next;
        }
        Ok(())
    }

    /// Forgets the cached text. Call this between texts that do not continue each other.
    pub fn release(&mut self) {
        self.model.release(SEQUENCE);
    }

    /// Returns the mean overlap at each place, and its standard error. They are NaN if no text, or
    /// a single one, was measured.
    #[must_use]
    pub fn overlaps(&self) -> Vec<(f64, f64)> {
        let mean_and_error = |values: &Vec<f64>| {
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            let square: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            (mean, (square / (count - 1.0) / count).sqrt())
        };
        self.overlaps.iter().map(mean_and_error).collect()
    }
}

fn child(tree: &mut TokenTree, parent: Option<Node>, token: TokenId) -> Node {
    tree.child_with(parent, token).unwrap_or_else(|| tree.push(parent, token))
}

/// Computes the mean overlap of each continuation's distribution with the mean over all others.
fn mean_overlap<'a>(rows: &[Vec<f64>], counts: impl Iterator<Item = &'a usize> + Clone) -> f64 {
    let Some(first) = rows.first() else { return f64::NAN };
    let all: usize = counts.clone().sum();
    let mut sum = vec![0.0; first.len()];
    for (row, &count) in rows.iter().zip(counts.clone()) {
        for (sum, p) in sum.iter_mut().zip(row) {
            *sum += count as f64 * p;
        }
    }
    let overlap = |row: &Vec<f64>| {
        let of_others = |sum: f64, p: f64| (sum - p) / (all - 1) as f64;
        sum.iter().zip(row).map(|(&sum, &p)| of_others(sum, p).min(p)).sum::<f64>()
    };
    rows.iter().zip(counts).map(|(row, &count)| count as f64 * overlap(row)).sum::<f64>()
        / all as f64
}

fn probabilities(logits: &[f32], temperature: f64) -> Vec<f64> {
    let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponential = |&logit: &f32| (f64::from(logit - peak) / temperature).exp();
    let mut row: Vec<f64> = logits.iter().map(exponential).collect();
    let total: f64 = row.iter().sum();
    row.iter_mut().for_each(|p| *p /= total);
    row
}

/// Returns the token in whose share of `[0, 1)` the number lies.
fn sample(row: &[f64], number: f64) -> TokenId {
    let mut cumulative = 0.0;
    let inside = |p: &f64| {
        cumulative += p;
        number < cumulative
    };
    row.iter().position(inside).unwrap_or(row.len() - 1) as TokenId
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_formats::Checkpoint;
    use forerun_formats::checkpoint::random::{
        RandomDtype, example_config, write_random_checkpoint,
    };

    #[test]
    fn the_overlap_of_known_distributions_is_correct() {
        let (a, b) = (vec![0.5, 0.5, 0.0], vec![0.0, 0.5, 0.5]);
        // Two continuations: each is compared with the other.
        assert!((mean_overlap(&[a.clone(), b.clone()], [1, 1].iter()) - 0.5).abs() < 1e-12);
        // Three: a with (a + b) / 2 twice, and b with a.
        let expected = (0.75 + 0.75 + 0.5) / 3.0;
        assert!((mean_overlap(&[a, b], [2, 1].iter()) - expected).abs() < 1e-12);
    }

    #[test]
    fn the_first_place_is_known_and_later_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        write_random_checkpoint(folder.path(), &example_config(), 5, RandomDtype::F32).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let weights = Arc::new(Weights::load(&checkpoint).unwrap());
        let options = CeilingOptions { places: 3, continuations: 8, temperature: 0.7, seed: 1 };
        let mut probe = CeilingProbe::new(weights, &Arc::new(Team::single_thread()), options);
        probe.measure(&[1, 2, 3]).unwrap();
        probe.measure(&[1, 2, 3, 4]).unwrap();
        let overlaps = probe.overlaps();
        assert!((overlaps[0].0 - 1.0).abs() < 1e-9 && overlaps[0].1 < 1e-9);
        assert!(overlaps[1..].iter().all(|&(mean, _)| (0.0..1.0).contains(&mean)), "{overlaps:?}");
    }
}
