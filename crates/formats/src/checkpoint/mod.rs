//! Checkpoints: a model's weights and configuration, read from a Hugging Face directory, a GGUF
//! file or a llama2.c file. [`gguf`] also writes them for other engines.
//!
//! Opening a checkpoint maps its files, reads only their headers, and checks that every tensor
//! exists with the right dtype and shape. [`Checkpoint::rows`] then reads one tensor row by row,
//! and [`Checkpoint::tensor`] reads it as a whole. No input makes this module panic, and no
//! allocation depends on a size that a file only claims. This module may access files. It does not
//! depend on how weights are packed or used.

mod assembled;
pub mod gguf;
mod huggingface;
mod llama2c;
mod named_tensors;
mod padded;
pub(crate) mod pickle;
mod quantized;
pub mod random;
pub mod random_speculator;
mod row_layout;
mod safetensors_file;
mod safetensors_writer;
mod stored_names;
mod tensor_rows;
mod weight_file;

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

pub use crate::load_error::LoadError;
pub use crate::tensor::{LayerTensor, Tensor};
pub use crate::weight_type::Dtype;
pub(crate) use gguf::GgufFile;
pub use huggingface::WeightIndex;
pub(crate) use huggingface::names_in_multimodal;
pub use named_tensors::DRAFTER_FILES;
pub(crate) use named_tensors::NamedTensors;
pub(crate) use row_layout::RowLayout;
pub use safetensors_writer::{SerializedTensor, write_safetensors};
pub(crate) use stored_names::StoredAs;
pub use tensor_rows::TensorRows;
pub use weight_file::WeightFile;

use crate::architecture::{Architecture, Input};
use crate::config::{Config, Pooling};
use crate::embedded_model::EmbeddedModel;
use crate::speculator::mtp;
use crate::weight_type::WeightType;
use assembled::{Assembled, AssembledRows};
use gguf::{GgufMetadata, GgufModel};
use llama2c::Llama2c;
use quantized::{QuantizedMatrix, QuantizedRows};
use sha2::{Digest, Sha256};
pub(crate) use weight_file::read_text;

/// The tensors of an architecture, independent of their stored names.
pub trait TensorSource: Sync {
    /// Returns whether a tensor is stored.
    fn has(&self, tensor: Tensor) -> bool;

    /// Returns the rows of a tensor, which must have this shape.
    ///
    /// # Errors
    /// When the tensor is missing, or has the wrong dtype or shape.
    fn rows(&self, tensor: Tensor, shape: &[usize]) -> Result<TensorRows<'_>, LoadError>;

    /// Returns the smallest float type that represents all matrices exactly that are stored as
    /// floats.
    ///
    /// # Errors
    /// When a matrix has an unsupported type.
    fn float_type(&self) -> Result<WeightType, LoadError>;
}

impl TensorSource for Checkpoint {
    fn has(&self, tensor: Tensor) -> bool {
        self.locations.contains_key(&tensor)
    }

    fn rows(&self, tensor: Tensor, _shape: &[usize]) -> Result<TensorRows<'_>, LoadError> {
        // Shapes have been checked when the checkpoint was opened.
        self.rows(tensor)
    }

    fn float_type(&self) -> Result<WeightType, LoadError> {
        let matrices = self.architecture.matrices();
        let dtypes = matrices.map(|tensor| self.dtype(tensor)).collect::<Result<Vec<_>, _>>()?;
        Ok(WeightType::lossless(dtypes))
    }
}

/// The location and the storage format of a tensor.
struct Location {
    /// Index of the file.
    file: usize,
    bytes: Range<usize>,
    /// The type of the elements, or one that holds the weights of a quantised matrix exactly.
    dtype: Dtype,
    layout: RowLayout,
    /// The parts of a quantised matrix. `bytes` are its quants.
    quantized: Option<Box<QuantizedMatrix>>,
    /// The stored tensors of which it consists, if they are several. `bytes` and `dtype` are those
    /// of one of them.
    assembled: Option<Box<Assembled>>,
}

impl Location {
    /// Returns the number of stored bytes of the whole tensor.
    fn stored_bytes(&self) -> usize {
        let other = self.quantized.as_ref().map_or(0, |matrix| matrix.other_bytes());
        let whole = self.assembled.as_ref().map(|tensor| tensor.stored_bytes());
        whole.unwrap_or(self.bytes.len() + other)
    }
}

/// A model's configuration and weights, opened for reading.
pub struct Checkpoint {
    path: PathBuf,
    config: Config,
    architecture: Architecture,
    files: Vec<WeightFile>,
    locations: HashMap<Tensor, Location>,
    /// The metadata of the first file, if it is a GGUF file.
    gguf: Option<gguf::StoredMetadata>,
}

impl Checkpoint {
    /// Opens a Hugging Face directory, a GGUF file of any name, a llama2.c `.bin` file, or a
    /// directory that contains exactly one GGUF model or llama2.c `.bin` file (not counting
    /// tokenizers, `tok*.bin`, and projectors of images, `mmproj*.gguf`). A split GGUF model opens
    /// by any of its parts; the others must be beside it.
    ///
    /// # Errors
    /// When a file is missing, unreadable or broken, the configuration needs something unsupported,
    /// or a tensor is missing or has the wrong dtype or shape.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        match model_file(path)? {
            Some(file) => Self::open_file(&file),
            None => Self::open_huggingface(path),
        }
    }

    /// Opens a model that is one file, or a part of a split one.
    fn open_file(path: &Path) -> Result<Self, LoadError> {
        if pickle::is_pickle(path) {
            return Err(pickle::pickle_error(path.to_owned()));
        }
        let file = WeightFile::map(path.to_owned())?;
        let is_named_gguf = path.extension().is_some_and(|ending| ending == "gguf");
        match is_named_gguf || gguf::is_gguf(&file) {
            true => Self::from_gguf(gguf::with_other_parts(file)?),
            false => Self::from_llama2c(file),
        }
    }

    /// Opens a model that is part of the program. Its weights are read in place.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_embedded(model: &EmbeddedModel) -> Result<Self, LoadError> {
        let (file, text) = model.required_text("config.json")?;
        let mut config = Config::parse(text, &file)?;
        if model.file("generation_config.json").is_some() {
            let (file, text) = model.required_text("generation_config.json")?;
            config.apply_generation_config(text, &file)?;
        }
        let file = model.path().join("model.safetensors");
        let Some(bytes) = model.file("model.safetensors") else {
            let hint = "it is not part of this program";
            return Err(LoadError::MissingFile { path: file, hint });
        };
        let weights = match model.padding {
            0 => WeightFile::embedded(file, bytes),
            units => {
                config.intermediate_size += units;
                WeightFile::from_bytes(file.clone(), padded::pad(bytes, &file, units)?)
            }
        };
        Self::from_safetensors(model.path(), config, None, vec![weights])
    }

    fn open_huggingface(directory: &Path) -> Result<Self, LoadError> {
        let file = directory.join("config.json");
        let pooling = Pooling::read(directory)?;
        let mut config = Config::parse_with(&read_text(&file)?, &file, pooling)?;
        let file = directory.join("generation_config.json");
        if file.exists() {
            config.apply_generation_config(&read_text(&file)?, &file)?;
        }

        let single = directory.join("model.safetensors");
        let index_file = directory.join("model.safetensors.index.json");
        if !single.exists() && !index_file.exists() {
            if let Some(file) = pickle::find_pickled_weights(directory) {
                return Err(pickle::pickle_error(file));
            }
            let hint = "there is no model.safetensors.index.json either; weights in other formats \
                        must be converted to safetensors first";
            return Err(LoadError::MissingFile { path: single, hint });
        }
        if single.exists() {
            let shards = vec![WeightFile::map(single)?];
            return Self::from_safetensors(directory, config, None, shards);
        }
        let index = WeightIndex::parse(&read_text(&index_file)?, &index_file)?;
        let shards = index.shards().iter().map(|name| WeightFile::map(directory.join(name)));
        let shards = shards.collect::<Result<_, _>>()?;
        Self::from_safetensors(directory, config, Some(&index), shards)
    }

    /// Creates a checkpoint from the files of a Hugging Face directory: one safetensors file, or,
    /// with an index, its shards in the order of [`WeightIndex::shards`]. Errors refer to the
    /// checkpoint as `path`.
    ///
    /// If `config` ties the head to the embedding, but a head with other values is stored, the
    /// model has the stored head, and [`Self::config`] says so.
    ///
    /// # Errors
    /// When the configuration is not a valid model, a file is broken, or a tensor is missing,
    /// unexpected, or has the wrong dtype or shape.
    pub fn from_safetensors(
        path: &Path,
        mut config: Config,
        index: Option<&WeightIndex>,
        shards: Vec<WeightFile>,
    ) -> Result<Self, LoadError> {
        config.validate(path)?;
        let locations = huggingface::locate(&mut config, index, &shards)?;
        let architecture = config.architecture();
        let (path, files) = (path.to_owned(), shards);
        Ok(Self { path, config, architecture, files, locations, gguf: None })
    }

    /// Creates a checkpoint from a llama2.c file of version 0.
    ///
    /// # Errors
    /// When the file has another format or version, or its length does not match its header.
    pub fn from_llama2c(file: WeightFile) -> Result<Self, LoadError> {
        let Llama2c { config, locations } = Llama2c::parse(file.bytes(), file.path())?;
        let (path, architecture) = (file.path().to_owned(), config.architecture());
        Ok(Self { path, config, architecture, files: vec![file], locations, gguf: None })
    }

    /// Creates a checkpoint from a GGUF file, or from all parts of a split one in their order.
    ///
    /// # Errors
    /// When a file is broken, the model is not supported, or a tensor is missing, unexpected, or
    /// has the wrong type or shape.
    pub fn from_gguf(parts: Vec<WeightFile>) -> Result<Self, LoadError> {
        let read = Self::read_gguf(parts)?;
        match read.architecture.input {
            Input::Embedding => Ok(read),
            _ => Err(LoadError::AssistantAlone { path: read.path }),
        }
    }

    /// Opens an assistant of Gemma 4 in a GGUF file, without what it shares with its target.
    pub(crate) fn open_assistant(path: &Path) -> Result<Self, LoadError> {
        let file = model_file(path)?.unwrap_or_else(|| path.to_owned());
        Self::read_gguf(gguf::with_other_parts(WeightFile::map(file)?)?)
    }

    fn read_gguf(parts: Vec<WeightFile>) -> Result<Self, LoadError> {
        let GgufModel { config, architecture, locations, metadata } = GgufModel::read(&parts)?;
        let path = parts.first().map_or(Path::new(""), WeightFile::path).to_owned();
        Ok(Self { path, config, architecture, files: parts, locations, gguf: Some(metadata) })
    }

    /// Opens the layer for multi-token prediction of this GGUF model as a model of its own.
    pub(crate) fn open_mtp(&self, layout: &mtp::Layout) -> Result<Self, LoadError> {
        let map = |file: &WeightFile| WeightFile::map(file.path().to_owned());
        let files = self.files.iter().map(map).collect::<Result<Vec<_>, _>>()?;
        let locations = GgufModel::locate_mtp(&files, layout)?;
        let (path, config) = (self.path.clone(), self.config.clone());
        let architecture = layout.architecture();
        Ok(Self { path, config, architecture, files, locations, gguf: None })
    }

    /// Returns the metadata of a GGUF file, such as its tokenizer; `None` for other formats.
    pub fn gguf(&self) -> Option<GgufMetadata<'_>> {
        Some(self.gguf.as_ref()?.of(self.files.first()?))
    }

    /// Returns the model's sizes and constants.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Adds tokens that end a text, as far as they are in the vocabulary. The model's tokenizer may
    /// know more of them than its configuration names.
    pub fn add_end_tokens(&mut self, tokens: &[u32]) {
        let Config { vocab_size, eos_token_ids, .. } = &mut self.config;
        for token in tokens.iter().filter(|token| (**token as usize) < *vocab_size) {
            if !eos_token_ids.contains(token) {
                eos_token_ids.push(*token);
            }
        }
    }

    /// Returns the directory or file of the checkpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of bytes of all weights as stored. Tied embeddings count once.
    pub fn weights_bytes(&self) -> u64 {
        self.locations.values().map(|location| location.stored_bytes() as u64).sum()
    }

    /// Returns the number of stored bytes that a pass over one row reads: all weights except tables
    /// of which it reads a row, and the experts that the row does not choose.
    pub fn pass_bytes(&self) -> u64 {
        let read = |(tensor, location): (&Tensor, &Location)| {
            let share = match *tensor {
                Tensor::Embedding if self.architecture.head != crate::Head::Embedding => 0.0,
                Tensor::Positions | Tensor::TokenTypes | Tensor::LayerInputs => 0.0,
                Tensor::Expert(layer, ..) => {
                    let experts = self.architecture.layers.get(layer)?.experts?;
                    experts.expected_distinct(1) / experts.n_experts as f64
                }
                _ => 1.0,
            };
            Some((share * location.stored_bytes() as f64).round() as u64)
        };
        self.locations.iter().filter_map(read).sum()
    }

    /// Returns the shape of a tensor: `[outputs, inputs]` for a matrix, `[size]` for a norm or a
    /// bias.
    pub fn shape(&self, tensor: Tensor) -> Vec<usize> {
        self.architecture.shape(tensor)
    }

    /// Returns what the model computes.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Returns the type in which a tensor's elements are stored. For a quantised matrix of a
    /// safetensors file this is the smallest type that holds its weights exactly, or f32.
    ///
    /// # Errors
    /// [`LoadError::NoSuchTensor`] if the model does not have this tensor.
    pub fn dtype(&self, tensor: Tensor) -> Result<Dtype, LoadError> {
        Ok(self.location(tensor)?.dtype)
    }

    /// Returns the rows of a tensor, for reading one at a time. A tied head is the embedding.
    ///
    /// # Errors
    /// [`LoadError::NoSuchTensor`] if the model does not have this tensor.
    pub fn rows(&self, tensor: Tensor) -> Result<TensorRows<'_>, LoadError> {
        let location = self.location(tensor)?;
        let file = &self.files[location.file];
        let bytes = location.bytes.clone();
        Ok(TensorRows {
            layout: location.layout,
            quantized: location
                .quantized
                .as_deref()
                .map(|matrix| QuantizedRows { matrix, files: &self.files }),
            assembled: location
                .assembled
                .as_deref()
                .map(|tensor| AssembledRows { tensor, files: &self.files }),
            ..TensorRows::plain(
                file,
                tensor.to_string(),
                bytes,
                location.dtype,
                &self.shape(tensor),
            )
        })
    }

    /// Reads a whole tensor. The values are row-major, in the shape of [`Self::shape`], and
    /// converted as by [`TensorRows::read`].
    ///
    /// # Errors
    /// [`LoadError::NonFinite`] if a value is NaN or infinite, and [`LoadError::NoSuchTensor`] if
    /// the model does not have this tensor.
    pub fn tensor(&self, tensor: Tensor) -> Result<Vec<f32>, LoadError> {
        self.rows(tensor)?.read_all()
    }

    /// Computes the SHA-256 of the embedding's bytes as stored, in hexadecimal. A drafter that
    /// shares its target's embedding uses it to recognise the target.
    ///
    /// # Errors
    /// None for a checkpoint that opened, because every model has an embedding.
    pub fn embedding_sha256(&self) -> Result<String, LoadError> {
        let TensorRows { file, bytes, .. } = self.rows(Tensor::Embedding)?;
        let digest = Sha256::digest(&file.bytes()[bytes.clone()]);
        file.release(bytes);
        Ok(hexadecimal(&digest))
    }

    fn location(&self, tensor: Tensor) -> Result<&Location, LoadError> {
        let tied = tensor == Tensor::Head && self.config.tie_word_embeddings;
        let stored = if tied { Tensor::Embedding } else { tensor };
        self.locations.get(&stored).ok_or_else(|| LoadError::NoSuchTensor {
            path: self.path.clone(),
            tensor: tensor.to_string(),
            family: self.config.family,
            layers: self.config.num_hidden_layers,
        })
    }
}

/// Formats bytes, such as those of a hash, as lower-case hexadecimal digits.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut checkpoint = formatter.debug_struct("Checkpoint");
        checkpoint.field("path", &self.path).field("config", &self.config).finish_non_exhaustive()
    }
}

/// Returns the file of the model that `path` names: the path itself, or the only model in a
/// directory. `None` for a Hugging Face directory.
fn model_file(path: &Path) -> Result<Option<PathBuf>, LoadError> {
    let metadata = fs::metadata(path).map_err(|cause| match cause.kind() {
        io::ErrorKind::NotFound => LoadError::NotFound { path: path.to_owned() },
        _ => LoadError::Read { path: path.to_owned(), cause },
    })?;
    if !metadata.is_dir() {
        return Ok(Some(path.to_owned()));
    }
    if path.join("config.json").exists() && (has_safetensors(path) || !has_gguf(path)) {
        return Ok(None);
    }
    only_model_file(path).map(Some)
}

/// Whether a directory has the weights of a Hugging Face directory.
fn has_safetensors(directory: &Path) -> bool {
    let names = ["model.safetensors", "model.safetensors.index.json"];
    names.iter().any(|name| directory.join(name).exists())
}

/// Whether a directory has a GGUF model. Its `config.json`, if there is one, is not needed then.
fn has_gguf(directory: &Path) -> bool {
    file_names(directory).is_ok_and(|names| names.iter().any(|name| gguf::is_model_name(name)))
}

/// Returns the names of a directory's files that are UTF-8, sorted.
fn file_names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    let mut names: Vec<String> =
        entries.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// Returns the only GGUF model, or its first part, or the only llama2.c file of a directory.
fn only_model_file(directory: &Path) -> Result<PathBuf, LoadError> {
    let mut models = file_names(directory)
        .map_err(|cause| LoadError::Read { path: directory.to_owned(), cause })?;
    models.retain(|name| {
        gguf::is_model_name(name) || name.ends_with(".bin") && !name.starts_with("tok")
    });
    models.dedup_by(|other, first| gguf::model_name(other) == gguf::model_name(first));
    let found = match models.as_slice() {
        [model] => return Ok(directory.join(model)),
        [] => "neither".to_owned(),
        names => crate::load_error::shortened(&format!("several models: {names:?}")),
    };
    Err(LoadError::NotACheckpoint { path: directory.to_owned(), found })
}
