//! The files of a model that Dynamo's front end reads: the tokenizer, the chat template and the
//! configuration.

use forerun::{ChatTemplate, Loader, ModelSource};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A folder with the files that the front end needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCard {
    /// The folder.
    pub folder: PathBuf,
    /// Whether the model has a chat template.
    pub has_template: bool,
}

/// A model whose files the front end cannot read.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// The model cannot be found.
    #[error(transparent)]
    Locate(#[from] forerun::ForerunError),
    /// The folder does not exist.
    #[error("there is nothing at {}", .0.display())]
    Nothing(PathBuf),
    /// A file of the front end is missing.
    #[error(
        "Dynamo's front end needs {file}, which {} does not have: give --model-card DIR, a folder with the \
         config.json, tokenizer.json and tokenizer_config.json of this model",
        folder.display()
    )]
    Missing {
        /// The file.
        file: &'static str,
        /// The folder.
        folder: PathBuf,
    },
    /// The files of a built-in model cannot be written.
    #[error("cannot write the files of the built-in model to {}: {cause}", folder.display())]
    Write {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The chat template cannot be read.
    #[error(transparent)]
    Template(#[from] forerun::text::ChatTemplateError),
}

impl ModelCard {
    /// Returns the card of a model: its own folder, or `given`. The files of a built-in model are
    /// written to a folder in `cache`, which is the same for all workers of a machine, because the
    /// front end compares the cards of workers.
    ///
    /// # Errors
    /// If the model cannot be found, or has no tokenizer that the front end can read.
    pub fn find(
        model: &ModelSource,
        given: Option<&Path>,
        cache: &Path,
        loader: &mut Loader<'_>,
    ) -> Result<Self, CardError> {
        let folder = match (given, model) {
            (Some(folder), _) => folder.to_owned(),
            (None, ModelSource::Embedded(model)) => {
                let folder = cache.join(model.name);
                for (name, content) in model.files {
                    // The front end does not read weights.
                    if Path::new(name).extension().is_some_and(|extension| extension == "json") {
                        write(&folder, name, content).map_err(|cause| {
                            let folder = folder.clone();
                            CardError::Write { folder, cause }
                        })?;
                    }
                }
                folder
            }
            (None, model) => {
                let path = loader.locate(model)?;
                match path.parent() {
                    Some(folder) if path.is_file() => folder.to_owned(),
                    _ => path,
                }
            }
        };
        if !folder.exists() {
            return Err(CardError::Nothing(folder));
        }
        for file in ["config.json", "tokenizer.json"] {
            if !folder.join(file).exists() {
                return Err(CardError::Missing { file, folder });
            }
        }
        let has_template = !ChatTemplate::from_checkpoint(&folder)?.is_plain();
        Ok(Self { folder, has_template })
    }
}

/// Writes a file unless it is there already. Other workers may do the same.
fn write(folder: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let path = folder.join(name);
    if fs::read(&path).is_ok_and(|written| written == content) {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(content)?;
    file.persist(path)?;
    Ok(())
}
