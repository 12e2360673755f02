//! The frozen target of a drafter in training.

use super::feature_cache::FeatureCache;
use crate::data::Batch;
use crate::model::{Llama, ModelError};
use crate::ops::draft_head::FrozenHead;
use candle_core::Result;
use forerun_formats::Config;
use forerun_formats::checkpoint::{Checkpoint, Tensor as CheckpointTensor};
use std::path::Path;
use std::sync::Arc;

/// A target model. Drafters share its embedding and head, and learn from its features and
/// distributions.
pub struct Target {
    model: Llama,
    /// `[vocabulary, hidden]`.
    embedding: Vec<f32>,
    head: Arc<FrozenHead>,
    final_norm: Vec<f32>,
    name: String,
    embedding_sha256: String,
    cache: Option<FeatureCache>,
}

impl Target {
    /// Opens the checkpoint of a target.
    ///
    /// # Errors
    /// If the checkpoint cannot be read, or this crate does not implement its architecture.
    pub fn open(path: &Path) -> std::result::Result<Self, ModelError> {
        let checkpoint = Checkpoint::open(path)?;
        let embedding = checkpoint.tensor(CheckpointTensor::Embedding)?;
        let embedding_sha256 = checkpoint.embedding_sha256()?;
        let model = Llama::load(&checkpoint)?;
        let hidden = checkpoint.config().hidden_size;
        let head = Arc::new(FrozenHead::new(model.tensor(CheckpointTensor::Head)?, hidden));
        let final_norm = model.tensor(CheckpointTensor::FinalNorm)?;
        // A path such as `.` has a name only in its canonical form.
        let canonical = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name = canonical.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { model, embedding, head, final_norm, name, embedding_sha256, cache: None })
    }

    /// Returns the target with a folder for its features. Sequences that it has read before, also for another drafter,
    /// are not computed again.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn with_feature_cache(self, folder: &Path) -> std::io::Result<Self> {
        let cache = Some(FeatureCache::open(folder, &self.model)?);
        Ok(Self { cache, ..self })
    }

    /// Returns the configuration of the model.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.model.config()
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
        self.model.tensor(tensor)
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
    /// If a token is not in the vocabulary, or a tensor operation fails.
    pub(crate) fn read(&self, batch: &Batch) -> Result<Text> {
        Ok(Text {
            inputs: batch.inputs.clone().into(),
            targets: batch.targets.clone().into(),
            features: self.features(&batch.inputs, batch.context)?.into(),
            context: batch.context,
        })
    }

    /// Returns the features of sequences, `[sequences · context, hidden]`.
    fn features(&self, tokens: &[u32], context: usize) -> Result<Vec<f32>> {
        let hidden = self.config().hidden_size;
        if let Some(cache) = &self.cache
            && let Some(features) = cache.read(tokens, context, hidden)?
        {
            return Ok(features);
        }
        let features = self.model.apply_final_norm(&self.model.hidden_frozen(tokens, context)?)?;
        if let Some(cache) = &self.cache {
            cache.write(tokens, context, &features)?;
        }
        Ok(features)
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
