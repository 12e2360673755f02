//! The frozen target of a drafter in training.
//!
//! The engine that generates text also computes the features here, with the types of the stored weights. So a drafter
//! learns from the features that it reads later, and a pass takes as long as one over a prompt.

use super::feature_cache::FeatureCache;
use crate::data::Batch;
use crate::model::ModelError;
use crate::ops::draft_head::FrozenHead;
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
    engine: Mutex<CachedTransformer<Transformer>>,
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
    /// If the checkpoint cannot be read, this crate does not implement its architecture, or a thread cannot be started.
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
        let team = Arc::new(Team::unpinned(rayon::current_num_threads())?);
        let engine = Transformer::new(Arc::new(Weights::load(&checkpoint)?), team);
        let engine = CachedTransformer::new(engine.with_features(FeatureSource::LastHidden));
        // A path such as `.` has a name only in its canonical form.
        let canonical = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name = canonical.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let engine = Mutex::new(engine);
        let cache = None;
        Ok(Self { checkpoint, engine, embedding, head, final_norm, name, embedding_sha256, cache })
    }

    /// Returns the target with a folder for its features. Sequences that it has read before, also for another drafter,
    /// are not computed again.
    ///
    /// # Errors
    /// If a weight cannot be read, or the folder cannot be created.
    pub fn with_feature_cache(self, folder: &Path) -> std::result::Result<Self, ModelError> {
        let cache = Some(FeatureCache::open(folder, &self.checkpoint)?);
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
    /// If a token is not in the vocabulary, a file of the cache cannot be read or written, or a tensor operation fails.
    pub(crate) fn read(&self, batch: &Batch) -> Result<Text> {
        let mut features = Vec::with_capacity(batch.inputs.len() * self.config().hidden_size);
        for sequence in batch.inputs.chunks_exact(batch.context) {
            features.extend(self.features(sequence)?);
        }
        Ok(Text {
            inputs: batch.inputs.clone().into(),
            targets: batch.targets.clone().into(),
            features: features.into(),
            context: batch.context,
        })
    }

    /// Returns the features of a sequence, `[tokens, hidden]`.
    fn features(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let Some(cache) = &self.cache else { return self.compute_features(tokens) };
        if let Some(features) = cache.read(tokens, self.config().hidden_size)? {
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
    /// Number of tokens of a sequence.
    pub(crate) context: usize,
}

impl Text {
    pub(crate) fn sequences(&self) -> usize {
        self.inputs.len() / self.context
    }
}
