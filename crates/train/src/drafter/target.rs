//! The frozen target of a drafter in training.
//!
//! The engine that generates text also computes the features here, with the types of the stored
//! weights. So a drafter learns from the features that it reads later, and a pass takes as long as
//! one over a prompt.

use super::feature_cache::FeatureCache;
use crate::data::Batch;
use crate::model::ModelError;
use crate::ops::draft_head::FrozenHead;
use crate::ops::elementwise::{inner_product, rms_norm};
use candle_core::{Error, Result, bail};
use forerun_core::SequenceId;
use forerun_cpu::{Team, Transformer, Weights};
use forerun_formats::checkpoint::{Checkpoint, Tensor as CheckpointTensor};
use forerun_formats::{Config, FeatureSource};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A target model. Drafters share its embedding and head, and learn from its features and
/// distributions.
pub struct Target {
    checkpoint: Checkpoint,
    weights: Arc<Weights>,
    engine: Mutex<CachedTransformer<Transformer>>,
    /// The numbers of layers after which block drafters read hidden states; empty for other
    /// drafters.
    feature_layers: Vec<usize>,
    /// `[vocabulary, hidden]`.
    embedding: Vec<f32>,
    head: Arc<FrozenHead>,
    final_norm: Vec<f32>,
    name: String,
    embedding_sha256: String,
    cache: Option<FeatureCache>,
}

impl Target {
    /// Opens the checkpoint of a target. Its passes use as many threads as rayon.
    ///
    /// # Errors
    /// If the checkpoint cannot be read, this crate does not implement its architecture, or a
    /// thread cannot be started.
    pub fn open(path: &Path) -> std::result::Result<Self, ModelError> {
        let checkpoint = Checkpoint::open(path)?;
        let config = checkpoint.config();
        config.validate(path)?;
        if let Some(piece) = config.unusual_piece() {
            return Err(ModelError::Unsupported(piece));
        }
        let embedding = checkpoint.tensor(CheckpointTensor::Embedding)?;
        let embedding_sha256 = checkpoint.embedding_sha256()?;
        let head = match config.tie_word_embeddings {
            true => embedding.clone(),
            false => checkpoint.tensor(CheckpointTensor::Head)?,
        };
        let head = Arc::new(FrozenHead::new(head, config.hidden_size));
        let final_norm = checkpoint.tensor(CheckpointTensor::FinalNorm)?;
        let weights = Arc::new(Weights::load(&checkpoint)?);
        let engine = engine(&weights, FeatureSource::LastHidden)?;
        // A path such as `.` has a name only in its canonical form.
        let canonical = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name = canonical.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self {
            checkpoint,
            weights,
            engine,
            feature_layers: Vec::new(),
            embedding,
            head,
            final_norm,
            name,
            embedding_sha256,
            cache: None,
        })
    }

    /// Returns the target for block drafters, which read its hidden states after these numbers of
    /// layers. Its folder for features, if there is one, is then that of these hidden states.
    ///
    /// # Errors
    /// If there are no numbers, one is not from 1 to the number of the target's layers, a thread
    /// cannot be started, or a folder cannot be created.
    pub fn with_feature_layers(self, layers: &[usize]) -> std::result::Result<Self, ModelError> {
        let count = self.config().num_hidden_layers;
        if layers.is_empty() || layers.iter().any(|layer| !(1..=count).contains(layer)) {
            return Err(ModelError::FeatureLayers { layers: layers.to_vec(), count });
        }
        // The hidden state after the last layer gives the target's distributions.
        let read = FeatureSource::Layers(layers.iter().copied().chain([count]).collect());
        let engine = engine(&self.weights, read)?;
        let cache = self.cache.as_ref().map(|cache| cache.of_layers(layers)).transpose()?;
        Ok(Self { engine, feature_layers: layers.to_vec(), cache, ..self })
    }

    /// Returns layers that are evenly spread from the second to the third from last, as DFlash's
    /// authors choose them (arXiv 2602.06036): five, or as many as there are.
    #[must_use]
    pub fn default_feature_layers(&self) -> Vec<usize> {
        const COUNT: usize = 5;
        let last = self.config().num_hidden_layers.saturating_sub(2).max(1);
        let first = 2.min(last);
        let count = COUNT.min(last - first + 1);
        let span = last - first;
        let step = span as f64 / (count - 1).max(1) as f64;
        (0..count).map(|number| first + (number as f64 * step).round_ties_even() as usize).collect()
    }

    /// Returns the token that stands for masks: the last one whose embedding has at least half of
    /// the usual size. Rows of tokens that do not exist may be zero, and would make all masks
    /// equal.
    #[must_use]
    pub fn mask_token(&self) -> u32 {
        let hidden = self.config().hidden_size;
        let square = |row: &[f32]| inner_product(row, row) / row.len() as f32;
        let least = 0.25 * square(&self.embedding);
        let found = self.embedding.chunks_exact(hidden).rposition(|row| square(row) >= least);
        found.unwrap_or(0) as u32
    }

    /// Returns the numbers of layers after which block drafters read hidden states; none for other
    /// drafters.
    pub(crate) fn feature_layers(&self) -> &[usize] {
        &self.feature_layers
    }

    /// Returns the target with a folder for its features. Sequences that it has read before, also
    /// for another drafter on the same hidden states, are not computed again.
    ///
    /// # Errors
    /// If a weight cannot be read, or the folder cannot be created.
    pub fn with_feature_cache(self, folder: &Path) -> std::result::Result<Self, ModelError> {
        let cache = Some(FeatureCache::open(folder, &self.checkpoint, &self.feature_layers)?);
        Ok(Self { cache, ..self })
    }

    /// Returns the configuration of the model.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.checkpoint.config()
    }

    /// Returns the name of the target: the last part of its path.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the SHA-256 of the embedding's bytes as stored in the checkpoint, in hexadecimal.
    #[must_use]
    pub fn embedding_sha256(&self) -> &str {
        &self.embedding_sha256
    }

    pub(crate) fn head(&self) -> &Arc<FrozenHead> {
        &self.head
    }

    /// Returns one of the model's tensors, in the layout of checkpoints.
    pub(crate) fn tensor(&self, tensor: CheckpointTensor) -> Result<Vec<f32>> {
        self.checkpoint.tensor(tensor).map_err(Error::wrap)
    }

    pub(crate) fn final_norm(&self) -> &[f32] {
        &self.final_norm
    }

    pub(crate) fn embedding(&self) -> &[f32] {
        &self.embedding
    }

    /// Returns the embedding of a token: `[hidden]`.
    pub(crate) fn embedding_of(&self, token: u32) -> &[f32] {
        let hidden = self.config().hidden_size;
        &self.embedding[token as usize * hidden..][..hidden]
    }

    /// Runs the target over a batch and returns the text with its features.
    ///
    /// # Errors
    /// If a token is not in the vocabulary, a file of the cache cannot be read or written, or a
    /// tensor operation fails.
    pub(crate) fn read(&self, batch: &Batch) -> Result<Text> {
        let Config { hidden_size, rms_norm_eps, .. } = *self.config();
        let mut features = Vec::with_capacity(batch.inputs.len() * hidden_size);
        let mut layer_features = Vec::new();
        for sequence in batch.inputs.chunks_exact(batch.context) {
            let stored = self.features(sequence)?;
            if self.feature_layers.is_empty() {
                features.extend(stored);
                continue;
            }
            for row in stored.chunks_exact(self.stored_width()) {
                let (read, last) = row.split_at(self.feature_layers.len() * hidden_size);
                layer_features.extend_from_slice(read);
                let first = features.len();
                features.resize(first + hidden_size, 0.0);
                let normed = &mut features[first..];
                rms_norm(last, &self.final_norm, rms_norm_eps, normed, &mut [0.0]);
            }
        }
        Ok(Text {
            inputs: batch.inputs.clone().into(),
            targets: batch.targets.clone().into(),
            features: features.into(),
            layer_features: layer_features.into(),
            context: batch.context,
        })
    }

    /// Returns the width of a row of [`Self::features`].
    fn stored_width(&self) -> usize {
        match self.feature_layers.len() {
            0 => self.config().hidden_size,
            layers => (layers + 1) * self.config().hidden_size,
        }
    }

    /// Returns what the engine computes for a sequence: its features, `[tokens, hidden]`, or the
    /// hidden states after each of the layers that are read and after the last one,
    /// `[tokens, (layers + 1) · hidden]`.
    fn features(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let Some(cache) = &self.cache else { return self.compute_features(tokens) };
        if let Some(features) = cache.read(tokens, self.stored_width())? {
            return Ok(features);
        }
        let features = self.compute_features(tokens)?;
        cache.write(tokens, &features)?;
        Ok(features)
    }

    fn compute_features(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let sequence = SequenceId(0);
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let request = ForwardRequest::next_token(sequence, tokens);
        let output = engine.logits(&ForwardRequest { features_from: Some(0), ..request });
        engine.release(sequence);
        match output.map_err(Error::wrap)?.features {
            Some(features) => Ok(features.values().to_vec()),
            None => bail!("the target computed no features"),
        }
    }
}

/// Creates the engine that computes a target's features. Its passes use as many threads as rayon.
fn engine(
    weights: &Arc<Weights>,
    features: FeatureSource,
) -> std::result::Result<Mutex<CachedTransformer<Transformer>>, ModelError> {
    let team = Arc::new(Team::unpinned(rayon::current_num_threads())?);
    let engine = Transformer::new(Arc::clone(weights), team).with_features(features);
    Ok(Mutex::new(CachedTransformer::new(engine)))
}

/// A text of several sequences, with the target's features. A *target row* is the index of a token
/// among the tokens of all sequences.
#[derive(Clone)]
pub(crate) struct Text {
    /// `[sequences, context]`.
    pub(crate) inputs: Arc<[u32]>,
    /// The token after each target row: `[sequences, context]`.
    pub(crate) targets: Arc<[u32]>,
    /// The target's feature of each target row: `[sequences · context, hidden]`.
    pub(crate) features: Arc<[f32]>,
    /// The hidden states that a block drafter reads: `[sequences · context, layers · hidden]`.
    pub(crate) layer_features: Arc<[f32]>,
    /// Number of tokens of a sequence.
    pub(crate) context: usize,
}

impl Text {
    pub(crate) fn sequences(&self) -> usize {
        self.inputs.len() / self.context
    }
}
