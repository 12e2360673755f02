//! The target that a drafter is made for, frozen.

use crate::data::Batch;
use crate::export::as_stored;
use crate::files::sha256_of;
use crate::model::{Llama, ModelError};
use crate::ops::draft_head::FrozenHead;
use candle_core::Result;
use forerun_model::checkpoint::{Checkpoint, Tensor as Stored};
use forerun_model::{Config, LoadError};
use std::path::Path;
use std::sync::Arc;

/// A target: its features and its head teach drafters, its embedding is theirs.
pub struct Target {
    model: Llama,
    /// `[vocabulary, hidden]`.
    embedding: Vec<f32>,
    head: Arc<FrozenHead>,
    final_norm: Vec<f32>,
    name: String,
    embedding_sha256: String,
}

impl Target {
    /// Opens a target's checkpoint.
    ///
    /// # Errors
    /// If it cannot be read, or is of a kind of which the trainer does not know the forward pass.
    pub fn open(path: &Path) -> std::result::Result<Self, ModelError> {
        let checkpoint = Checkpoint::open(path)?;
        let dtype = checkpoint.dtype(Stored::Embedding)?;
        let embedding = checkpoint.tensor(Stored::Embedding)?;
        // What was widened narrows to the very bytes that are stored.
        let bytes = as_stored(&embedding, dtype);
        let read = |cause| LoadError::Read { path: path.to_owned(), cause };
        let embedding_sha256 = sha256_of(&bytes[..]).map_err(read)?;
        let model = Llama::load(&checkpoint)?;
        let hidden = checkpoint.config().hidden_size;
        let head = Arc::new(FrozenHead::new(model.tensor(Stored::Head)?, hidden));
        let final_norm = model.tensor(Stored::FinalNorm)?;
        // A path such as `.` has a name only once it is spelt out.
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name = whole.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { model, embedding, head, final_norm, name, embedding_sha256 })
    }

    /// What it is.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.model.config()
    }

    /// The last part of its path.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// SHA-256 of its embedding's bytes as stored, in hexadecimal.
    #[must_use]
    pub fn embedding_sha256(&self) -> &str {
        &self.embedding_sha256
    }

    pub(crate) fn head(&self) -> &Arc<FrozenHead> {
        &self.head
    }

    /// One of its tensors, as checkpoints store them.
    pub(crate) fn tensor(&self, tensor: Stored) -> Result<Vec<f32>> {
        self.model.tensor(tensor)
    }

    pub(crate) fn final_norm(&self) -> &[f32] {
        &self.final_norm
    }

    pub(crate) fn embedding(&self) -> &[f32] {
        &self.embedding
    }

    /// The embedding of a token: `[hidden]`.
    pub(crate) fn embedding_of(&self, token: u32) -> &[f32] {
        let hidden = self.config().hidden_size;
        &self.embedding[token as usize * hidden..][..hidden]
    }

    /// A text with its features.
    ///
    /// # Errors
    /// Where the library fails; for a token that there is not.
    pub(crate) fn read(&self, batch: &Batch) -> Result<Text> {
        let hidden = self.model.frozen(&batch.inputs, batch.context)?;
        Ok(Text {
            inputs: batch.inputs.clone().into(),
            targets: batch.targets.clone().into(),
            features: self.model.normed(&hidden)?.into(),
            context: batch.context,
        })
    }
}

/// Sequences of tokens as the target sees them. A place is a token's index among all of them.
#[derive(Clone)]
pub(crate) struct Text {
    /// `[sequences, context]`.
    pub(crate) inputs: Arc<[u32]>,
    /// The token behind each place.
    pub(crate) targets: Arc<[u32]>,
    /// The target's feature at each place, `[sequences · context, hidden]`.
    pub(crate) features: Arc<[f32]>,
    /// Tokens of a sequence.
    pub(crate) context: usize,
}

impl Text {
    pub(crate) fn sequences(&self) -> usize {
        self.inputs.len() / self.context
    }
}
