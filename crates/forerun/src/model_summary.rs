//! What a checkpoint contains, and whether it can run, without loading its weights.

use crate::error::ForerunError;
use crate::loader::Loader;
use crate::memory;
use crate::model_source::ModelSource;
use forerun_cpu::CorePart;
use forerun_formats::{Config, MatrixTypes, ModelTypes, WeightTypes};
use forerun_text::{ChatTemplate, ChatTemplateError};
use std::fmt;
use std::path::{Path, PathBuf};

/// How a checkpoint stores its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelFormat {
    /// Hugging Face's layout.
    Safetensors,
    /// A file of llama.cpp.
    Gguf,
    /// A file of llama2.c.
    Llama2c,
}

impl fmt::Display for ModelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "GGUF",
            Self::Llama2c => "llama2.c",
        })
    }
}

/// What a checkpoint contains.
#[derive(Debug)]
pub struct ModelSummary {
    /// The folder or file.
    pub path: PathBuf,
    /// How the weights are stored.
    pub format: ModelFormat,
    /// The shape, the family, and the suggested sampling.
    pub config: Config,
    /// The number of weights, those of all experts included.
    pub parameters: u64,
    /// The size of the stored weights in bytes.
    pub stored_bytes: u64,
    /// The types of the matrices in memory, such as `q4_0 and bf16`.
    pub types: String,
    /// The memory that the model needs at least, in bytes: weights in these types, and a small
    /// cache.
    pub memory_bytes: u64,
    /// The model's own chat template, if it has one.
    pub chat_template: Result<Option<String>, ChatTemplateError>,
}

impl ModelSummary {
    /// Opens a model, and reads everything but its weights. `types` are those of the matrices in
    /// memory; `None` stands for the checkpoint's own. A hub model is downloaded if the loader is
    /// not offline.
    ///
    /// # Errors
    /// If the model cannot be found, or cannot run.
    pub fn read(
        model: &ModelSource,
        types: Option<WeightTypes>,
        loader: &mut Loader<'_>,
    ) -> Result<Self, ForerunError> {
        let checkpoint = loader.open(model)?.checkpoint;
        let architecture = checkpoint.architecture();
        let matrices = MatrixTypes::of_model(types, architecture, &checkpoint)?;
        let size = |tensor| architecture.shape(tensor).iter().product::<usize>() as u64;
        let template = match model {
            ModelSource::Embedded(model) => ChatTemplate::from_embedded(model),
            _ => ChatTemplate::from_checkpoint(checkpoint.path()),
        };
        let model_types = ModelTypes { weights: types, cache: None };
        Ok(Self {
            path: checkpoint.path().to_owned(),
            format: match checkpoint.gguf() {
                Some(_) => ModelFormat::Gguf,
                None if is_llama2c(checkpoint.path()) => ModelFormat::Llama2c,
                None => ModelFormat::Safetensors,
            },
            config: checkpoint.config().clone(),
            parameters: architecture.tensors().map(size).sum(),
            stored_bytes: checkpoint.weights_bytes(),
            types: matrices.names(architecture),
            memory_bytes: memory::of_model(&checkpoint, model_types, CorePart::Whole)? as u64,
            chat_template: template
                .map(|template| (!template.is_plain()).then(|| template.text().to_owned())),
        })
    }

    /// Checks that there is memory for the model.
    ///
    /// # Errors
    /// If there is not.
    pub fn check_memory(&self) -> Result<(), ForerunError> {
        memory::check(usize::try_from(self.memory_bytes).unwrap_or(usize::MAX))
    }
}

fn is_llama2c(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "bin")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::RandomPair;

    #[test]
    fn a_summary_agrees_with_the_loaded_model() {
        let pair = RandomPair::make().unwrap();
        let source = ModelSource::from(pair.target());
        let summary = ModelSummary::read(&source, None, &mut Loader::new()).unwrap();
        assert_eq!(summary.format, ModelFormat::Safetensors);
        assert_eq!(summary.config.family.model_type(), "llama");
        // The stored weights are f32.
        assert_eq!(summary.types, "f32");
        assert_eq!(summary.stored_bytes, 4 * summary.parameters);
        assert!(summary.memory_bytes > summary.stored_bytes);
        assert_eq!(summary.chat_template.as_ref().unwrap(), &None);
        summary.check_memory().unwrap();
        let huge = ModelSummary { memory_bytes: u64::MAX, ..summary };
        assert!(huge.check_memory().is_err() || forerun_runtime::available_memory().is_none());
    }
}
