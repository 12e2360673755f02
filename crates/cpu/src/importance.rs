//! Measures how large the inputs of a model's matrices are on a text, for quantisation.

use crate::layer_probe::check_tokens;
use crate::team::Team;
use crate::transformer::Transformer;
use crate::weights::Weights;
use forerun_cache::Keep;
use forerun_core::{TokenId, TokenTree};
use forerun_formats::checkpoint::Tensor;
use forerun_formats::{Head, Importance};
use forerun_lm::{LayerOrder, ModelError};
use forerun_model::{Forward, SequenceRunner};
use std::collections::HashMap;
use std::sync::Arc;

/// Rows of a forward pass.
const ROWS: usize = 32;

/// A model that sums the squares of its matrices' inputs.
pub struct ImportanceProbe {
    runner: SequenceRunner<Transformer>,
    squares: HashMap<Tensor, Vec<f64>>,
    rows: usize,
}

impl ImportanceProbe {
    /// Creates a probe of a model that reads tokens only.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: &Arc<Team>) -> Self {
        let runner = SequenceRunner::new(Transformer::new(weights, Arc::clone(team)));
        Self { runner, squares: HashMap::new(), rows: 0 }
    }

    /// Adds the inputs of the tokens of a window.
    ///
    /// # Errors
    /// If the window is longer than the model's context, or a token is not in its vocabulary.
    pub fn add(&mut self, window: &[TokenId]) -> Result<(), ModelError> {
        let Self { runner, squares, rows } = self;
        let architecture = runner.transformer().architecture();
        check_tokens(architecture, window)?;
        let has_own_head = architecture.head == Head::Own;
        for start in (0..window.len()).step_by(ROWS) {
            let end = window.len().min(start + ROWS);
            runner.seek(&window[..start], &TokenTree::new(), Keep::Exact);
            let tree = TokenTree::chain(&window[start..end]);
            let mut see = |tensor: Tensor, inputs: &[f32]| {
                // A tied head is the embedding.
                let is_tied = tensor == Tensor::Head && !has_own_head;
                let tensor = if is_tied { Tensor::Embedding } else { tensor };
                let width = inputs.len() / (end - start);
                let sums = squares.entry(tensor).or_insert_with(|| vec![0.0; width]);
                for row in inputs.chunks_exact(width) {
                    for (sum, &value) in sums.iter_mut().zip(row) {
                        *sum += f64::from(value) * f64::from(value);
                    }
                }
            };
            runner.with_pass(&tree, LayerOrder::Sequential, |transformer, pass, storage| {
                transformer.forward_with_inputs(pass, storage, &mut see);
            })?;
            *rows += end - start;
        }
        Ok(())
    }

    /// Returns the mean squares of the inputs of all rows so far.
    #[must_use]
    pub fn importance(&self) -> Importance {
        let mut importance = Importance::default();
        for (&tensor, sums) in &self.squares {
            // Finite also if activations are not.
            let mean =
                |sum: &f64| (sum / self.rows as f64).min(f64::from(f32::MAX)).max(0.0) as f32;
            importance.insert(tensor, sums.iter().map(mean).collect());
        }
        importance
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_formats::checkpoint::LayerTensor;
    use forerun_formats::checkpoint::random::{
        RandomDtype, example_config, write_random_checkpoint,
    };
    use forerun_formats::{Checkpoint, Config};

    fn importance(config: &Config, windows: &[&[TokenId]]) -> Importance {
        let folder = tempfile::tempdir().unwrap();
        write_random_checkpoint(folder.path(), config, 5, RandomDtype::F32).unwrap();
        let weights = Weights::load(&Checkpoint::open(folder.path()).unwrap()).unwrap();
        let mut probe = ImportanceProbe::new(Arc::new(weights), &Arc::new(Team::single_thread()));
        windows.iter().for_each(|window| probe.add(window).unwrap());
        probe.importance()
    }

    #[test]
    fn all_matrices_have_the_mean_squares_of_their_inputs() {
        let config = example_config();
        let window: Vec<TokenId> = (0..70).collect();
        let found = importance(&config, &[&window]);
        let architecture = config.architecture();
        for tensor in architecture.matrices().filter(|tensor| *tensor != Tensor::Embedding) {
            let inputs = found.of(tensor, architecture.shape(tensor)[1]).unwrap();
            assert!(inputs.iter().all(|value| value.is_finite() && *value > 0.0), "{tensor}");
        }
        let [key, gate] = [LayerTensor::Key, LayerTensor::Gate].map(|part| Tensor::Layer(1, part));
        assert_eq!(found.of(key, 48), found.of(Tensor::Layer(1, LayerTensor::Query), 48));
        assert_ne!(found.of(key, 48), found.of(gate, 48));
        assert_eq!((found.of(key, 49), found.of(Tensor::Embedding, 48)), (None, None));
        // Norms have inputs of mean square 1, times weights near 1.
        let mean = found.of(gate, 48).unwrap().iter().sum::<f32>() / 48.0;
        assert!((0.7..1.4).contains(&mean), "{mean}");
    }

    #[test]
    fn windows_are_independent_and_a_tied_head_is_the_embedding() {
        let config = Config { tie_word_embeddings: true, ..example_config() };
        let (first, second): (&[TokenId], &[TokenId]) = (&[1, 2, 3], &[7, 5, 4]);
        let head = |windows: &[&[TokenId]]| {
            importance(&config, windows).of(Tensor::Embedding, 48).unwrap().to_vec()
        };
        let [a, b, both] = [head(&[first]), head(&[second]), head(&[first, second])];
        for ((a, b), both) in a.iter().zip(&b).zip(&both) {
            assert!(((a + b) / 2.0 - both).abs() < 1e-5);
        }
    }
}
