//! Opened checkpoints, together with their tokenizers.

use crate::error::ForerunError;
use crate::model_source::ModelSource;
use forerun_formats::{Checkpoint, EmbeddedModel, LoadError};
use forerun_text::Tokenizer;
use std::path::Path;
use std::sync::Arc;

/// An open checkpoint and its tokenizer.
pub struct OpenModel {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
}

/// Opens a model that is part of the program.
pub(crate) fn open_embedded(model: &EmbeddedModel) -> Result<OpenModel, ForerunError> {
    let checkpoint = Checkpoint::open_embedded(model)?;
    with_tokenizer(checkpoint, Tokenizer::from_embedded(model)?)
}

/// Opens the checkpoint at `path`, which the user named as `model`.
pub(crate) fn open_located(path: &Path, model: &ModelSource) -> Result<OpenModel, ForerunError> {
    open_files(path).map_err(|error| match (model, error) {
        #[cfg(feature = "hub")]
        (ModelSource::Hub(_), error) => in_cache(error),
        #[cfg(not(feature = "hub"))]
        (ModelSource::Path(_), ForerunError::Load(LoadError::NotFound { path })) => {
            ForerunError::NoHub { path }
        }
        (_, error) => error,
    })
}

/// Adds advice to an error about a malformed file in the hub's cache.
#[cfg(feature = "hub")]
fn in_cache(cause: ForerunError) -> ForerunError {
    use forerun_text::TokenizerError;

    let file = match &cause {
        ForerunError::Load(LoadError::Json { file, .. })
        | ForerunError::Tokenizer(TokenizerError::Broken { file, .. }) => file,
        _ => return cause,
    };
    // Files of a snapshot are links to their content. Deleting the content makes them missing.
    let file = file.canonicalize().unwrap_or_else(|_| file.clone());
    ForerunError::Cached { cause: Box::new(cause), file }
}

fn open_files(path: &Path) -> Result<OpenModel, ForerunError> {
    let checkpoint = Checkpoint::open(path)?;
    let tokenizer = Tokenizer::of_checkpoint(&checkpoint)?;
    with_tokenizer(checkpoint, tokenizer)
}

fn with_tokenizer(
    mut checkpoint: Checkpoint,
    tokenizer: Tokenizer,
) -> Result<OpenModel, ForerunError> {
    let (largest, expected) = (tokenizer.largest_ordinary(), checkpoint.config().vocab_size);
    // Added tokens, such as padding, may lie beyond the model's vocabulary: the model never
    // generates them.
    if largest as usize >= expected {
        let (tokenizer, model) = (tokenizer.file().to_owned(), checkpoint.path().to_owned());
        return Err(ForerunError::TokenizerSize { tokenizer, model, largest, expected });
    }
    checkpoint.add_end_tokens(tokenizer.ends());
    Ok(OpenModel { checkpoint, tokenizer: Arc::new(tokenizer) })
}
