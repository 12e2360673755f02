//! Export of models and tokenizers as GGUF files, for llama.cpp and compatible engines.

use crate::error::ForerunError;
use crate::loader::Loader;
use crate::model_source::ModelSource;
use crate::open_model::OpenModel;
use crate::progress::Step;
use forerun_cpu::importance::ImportanceProbe;
use forerun_cpu::{Isa, Team, TeamError, Weights};
use forerun_formats::checkpoint::gguf::{GgufValue, GgufWeights, write_gguf_with};
use forerun_formats::{Importance, LoadError, WeightTypes};
use forerun_lm::ModelError;
use forerun_runtime::default_cores;
use forerun_text::{DEFAULT_WINDOW, GgufTokenizer, GgufTokenizerError, text_windows};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of tokens of a text for importance that are used.
const MOST_IMPORTANCE_TOKENS: usize = 16_384;

/// The result of [`export_gguf`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufExport {
    /// The size of the file in bytes.
    pub bytes: u64,
    /// Whether llama.cpp lacks this tokenizer's rule of splitting text into words. It then splits
    /// as for GPT-2, so that some texts have other tokens. The model itself is the same.
    pub pre_tokenizer_unsupported: bool,
}

/// Why a model cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The model or its tokenizer cannot be opened.
    #[error(transparent)]
    Open(#[from] ForerunError),
    /// The model cannot be read, or the file cannot be written.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The file cannot describe the tokenizer or the chat template.
    #[error(transparent)]
    Tokenizer(#[from] GgufTokenizerError),
    /// The text for importance is empty or too short.
    #[error(
        "the text for importance has fewer than two tokens for {tokenizer}: give a longer text, like those \
         that the model is for"
    )]
    ShortText {
        /// The tokenizer's file.
        tokenizer: PathBuf,
    },
    /// The text for importance has no effect on floats.
    #[error("importance has no effect on {types}: choose a type with blocks, such as q4_k_m")]
    UselessText {
        /// The types.
        types: WeightTypes,
    },
    /// The threads for a forward pass over the text for importance cannot be started.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// A forward pass over the text for importance failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// How a model is exported: its types, and a text that shows which inputs matter.
#[derive(Clone, Copy, Debug)]
pub struct GgufOptions<'a> {
    /// The types of matrices.
    pub types: WeightTypes,
    /// A text. Block types are then chosen so that the outputs of matrices have the least expected
    /// error on texts like its first 16,384 tokens. Without it, the weights have the least error.
    pub importance: Option<&'a str>,
}

impl<T: Into<WeightTypes>> From<T> for GgufOptions<'_> {
    fn from(types: T) -> Self {
        Self { types: types.into(), importance: None }
    }
}

/// Exports a model (a Hugging Face directory with a byte-level BPE tokenizer, a llama2.c file, or
/// another GGUF file) as a GGUF file, with its matrices in these types and its default chat
/// template.
///
/// # Errors
/// If the model cannot be opened, has an option that llama.cpp does not compute, has an unsupported
/// tokenizer, or if the file cannot be written.
///
/// ```no_run
/// use forerun::{Loader, ModelSource};
/// use forerun::checkpoint::{Mix, export_gguf};
/// use std::path::Path;
///
/// let model = ModelSource::from("models/target");
/// let file = Path::new("target-q4_k_m.gguf");
/// let export = export_gguf(&model, file, Mix::Q4_K_M, &mut Loader::new())?;
/// println!("{} bytes", export.bytes);
/// # Ok::<(), forerun::checkpoint::ExportError>(())
/// ```
pub fn export_gguf<'a>(
    model: &ModelSource,
    file: &Path,
    options: impl Into<GgufOptions<'a>>,
    loader: &mut Loader<'_>,
) -> Result<GgufExport, ExportError> {
    let GgufOptions { types, importance: text } = options.into();
    if text.is_some() && !types.has_blocks() {
        return Err(ExportError::UselessText { types });
    }
    let opened = loader.open(model)?;
    let GgufTokenizer { entries, pre_tokenizer_unsupported } =
        GgufTokenizer::new(&opened.tokenizer, &opened.checkpoint)?;
    let name = ("general.name".to_owned(), GgufValue::Text(model.name()));
    let metadata: Vec<_> = std::iter::once(name).chain(entries).collect();
    let importance = text.map(|text| importance(&opened, text)).transpose()?;
    let weights = GgufWeights { types, importance: importance.as_ref() };
    let name = model.to_string();
    let on_tensor = &mut |done: usize, total: usize| {
        loader.report(Step::Export { model: &name }, done, total);
    };
    write_gguf_with(&opened.checkpoint, file, weights, &metadata, on_tensor)?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    Ok(GgufExport { bytes, pre_tokenizer_unsupported })
}

/// Computes the importance of a model's inputs on a text, with the weights as stored.
fn importance(model: &OpenModel, text: &str) -> Result<Importance, ExportError> {
    let OpenModel { checkpoint, tokenizer } = model;
    let window = DEFAULT_WINDOW.min(checkpoint.config().max_position_embeddings);
    let windows = text_windows(tokenizer, text, MOST_IMPORTANCE_TOKENS, window);
    let windows = windows.map_err(ForerunError::from)?;
    if windows.is_empty() {
        return Err(ExportError::ShortText { tokenizer: tokenizer.file().to_owned() });
    }
    Isa::from_environment().map_err(ForerunError::from)?;
    let team = Team::unpinned(default_cores().len())?;
    let mut probe = ImportanceProbe::new(Arc::new(Weights::load(checkpoint)?), &Arc::new(team));
    for window in &windows {
        probe.add(window)?;
    }
    Ok(probe.importance())
}
