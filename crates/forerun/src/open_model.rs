//! Checkpoints opened with their tokenizers.

use crate::error::ForerunError;
use crate::loader::Loader;
use crate::tokenizer::{Tokenizer, TokenizerError};
use forerun_model::{Checkpoint, LoadError};
use std::path::Path;
use std::sync::Arc;

/// A checkpoint with its tokenizer.
pub(crate) struct OpenModel {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) tokenizer: Arc<Tokenizer>,
}

pub(crate) fn open_model(model: &Path, loader: &mut Loader<'_>) -> Result<OpenModel, ForerunError> {
    let path = loader.locate(model)?;
    open_located(&path, model)
}

/// The model of that name, which lies at `path`.
#[cfg_attr(
    not(feature = "hub"),
    expect(unused_variables, reason = "without a hub a model lies where its name says")
)]
pub(crate) fn open_located(path: &Path, model: &Path) -> Result<OpenModel, ForerunError> {
    let opened = open_files(path);
    #[cfg(feature = "hub")]
    let opened = opened.map_err(|error| if path == model { error } else { cached(error) });
    opened
}

/// What to do about a file of the cache that cannot be read as what it is.
#[cfg(feature = "hub")]
fn cached(cause: ForerunError) -> ForerunError {
    let file = match &cause {
        ForerunError::Load(LoadError::Json { file, .. })
        | ForerunError::Tokenizer(TokenizerError::Broken { file, .. }) => file,
        _ => return cause,
    };
    // A file there is a link to its content: without that, it is not there.
    let file = file.canonicalize().unwrap_or_else(|_| file.clone());
    ForerunError::Cached { cause: Box::new(cause), file }
}

fn open_files(path: &Path) -> Result<OpenModel, ForerunError> {
    let checkpoint = Checkpoint::open(path)?;
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(path)?);
    let (largest, expected) = (tokenizer.largest_ordinary(), checkpoint.config().vocab_size);
    // Tokens that were added, as padding is, may lie beyond: no text of the model's own has them.
    if largest as usize >= expected {
        let (tokenizer, model) = (tokenizer.file().to_owned(), path.to_owned());
        return Err(ForerunError::TokenizerSize { tokenizer, model, largest, expected });
    }
    Ok(OpenModel { checkpoint, tokenizer })
}
