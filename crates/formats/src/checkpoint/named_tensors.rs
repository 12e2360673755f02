//! The tensors of a checkpoint that is not a complete model, by their names in its files.

use super::Dtype;
use super::huggingface::{WeightIndex, stored_dtype};
use super::pickle;
use super::safetensors_file::{SafetensorsFile, StoredTensor};
use super::stored_names::StoredAs;
use super::tensor_rows::TensorRows;
use super::weight_file::{WeightFile, read_text};
use crate::load_error::{LoadError, shortened};
use std::path::{Path, PathBuf};

/// The weight files that such a checkpoint may have instead of an index with shards: the usual
/// file, then the files of Medusa's and Hydra's authors.
pub const DRAFTER_FILES: [&str; 3] =
    ["model.safetensors", "medusa_lm_head.safetensors", "hydra_lm_head.safetensors"];

/// Tensors by name, opened for reading.
pub(crate) struct NamedTensors {
    files: Vec<(WeightFile, SafetensorsFile)>,
}

impl NamedTensors {
    /// Opens the weight files of a directory. Returns `None` if it has no file with a known name.
    /// Fails when a file is missing, unreadable or broken, or when all weights are pickled.
    pub(crate) fn open(directory: &Path) -> Result<Option<Self>, LoadError> {
        let index = directory.join("model.safetensors.index.json");
        let single = DRAFTER_FILES.map(|name| directory.join(name));
        let paths: Vec<PathBuf> = match single.into_iter().find(|path| path.exists()) {
            Some(path) => vec![path],
            None if index.exists() => {
                let shards = WeightIndex::parse(&read_text(&index)?, &index)?;
                shards.shards().iter().map(|name| directory.join(name)).collect()
            }
            None => match pickle::find_pickled_weights(directory) {
                Some(file) => return Err(pickle::pickle_error(file)),
                None => return Ok(None),
            },
        };
        Self::of_files(paths).map(Some)
    }

    /// Opens weight files. Fails when a file is missing, unreadable or broken.
    pub(crate) fn of_files(paths: Vec<PathBuf>) -> Result<Self, LoadError> {
        let open = |path| {
            let file = WeightFile::map(path)?;
            let parsed = SafetensorsFile::parse(file.bytes(), file.path())?;
            Ok((file, parsed))
        };
        let files = paths.into_iter().map(open).collect::<Result<_, LoadError>>()?;
        Ok(Self { files })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().flat_map(|(_, parsed)| parsed.tensors.keys().map(String::as_str))
    }

    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.find(name).map(|(_, stored)| &stored.shape[..])
    }

    /// Returns the types of all matrices with names that are `among` those asked for. A tensor with
    /// more than two dimensions has several matrices.
    ///
    /// # Errors
    /// [`LoadError::Dtype`] if one has an unsupported type.
    pub(crate) fn matrix_dtypes(
        &self,
        among: impl Fn(&str) -> bool,
    ) -> Result<Vec<Dtype>, LoadError> {
        let tensors = self.files.iter().flat_map(|(file, parsed)| {
            let matrices = parsed.tensors.iter().filter(|(_, stored)| stored.shape.len() > 1);
            let matrices = matrices.filter(|(name, _)| among(name));
            matrices.map(|(name, stored)| stored_dtype(stored, file.path(), name))
        });
        tensors.collect()
    }

    /// Whether one of these tensors has a type of quantised weights.
    pub(crate) fn any_is_quantized(&self, among: impl Fn(&str) -> bool) -> bool {
        let mut tensors = self.files.iter().flat_map(|(file, parsed)| {
            parsed.tensors.iter().map(move |(name, stored)| (file, name, stored))
        });
        tensors.any(|(file, name, stored)| {
            among(name) && stored_dtype(stored, file.path(), name).is_err()
        })
    }

    /// Returns the rows of a tensor with this shape. Fails when the tensor is missing (`hint` is
    /// the probable cause in the message), or has the wrong dtype or shape.
    pub(crate) fn rows(
        &self,
        name: &str,
        shape: &[usize],
        hint: &'static str,
    ) -> Result<TensorRows<'_>, LoadError> {
        let Some((file, stored)) = self.find(name) else {
            let file = self.files.first().map_or(Path::new(""), |(file, _)| file.path());
            let (file, tensor) = (file.to_owned(), name.to_owned());
            return Err(LoadError::MissingTensor { file, tensor, hint });
        };
        if stored.shape != shape {
            return Err(LoadError::Shape {
                file: file.path().to_owned(),
                tensor: name.to_owned(),
                expected: shape.to_vec(),
                found: stored.shape.clone(),
            });
        }
        let dtype = stored_dtype(stored, file.path(), name)?;
        Ok(TensorRows::plain(file, name.to_owned(), stored.bytes.clone(), dtype, shape))
    }

    /// Returns the rows of a tensor of this shape that is stored with its rows in some order, or as
    /// a part of a larger one.
    ///
    /// # Errors
    /// As [`Self::rows`].
    pub(crate) fn rows_of(
        &self,
        stored: &StoredAs,
        shape: &[usize],
        hint: &'static str,
    ) -> Result<TensorRows<'_>, LoadError> {
        let whole = self.rows(&stored.name, &stored.shape, hint)?;
        let bytes = stored.part_of(whole.bytes.clone());
        let rows = shape.iter().rev().skip(1).product();
        let columns = shape.last().copied().unwrap_or(0);
        Ok(TensorRows { bytes, rows, columns, layout: stored.layout, ..whole })
    }

    /// Returns the values of a vector of 64-bit integers, if there is one with this name.
    ///
    /// # Errors
    /// [`LoadError::Dtype`] if it has another type.
    pub(crate) fn integers(&self, name: &str) -> Result<Option<Vec<i64>>, LoadError> {
        let Some((file, stored)) = self.find(name) else { return Ok(None) };
        if stored.dtype != safetensors::Dtype::I64 {
            let (file, tensor) = (file.path().to_owned(), name.to_owned());
            return Err(LoadError::Dtype { file, tensor, found: stored.dtype.to_string() });
        }
        let numbers = file.bytes()[stored.bytes.clone()].as_chunks::<8>().0.iter();
        Ok(Some(numbers.map(|bytes| i64::from_le_bytes(*bytes)).collect()))
    }

    /// Rejects tensors for which `is_known` is false: ignoring them would change the computation.
    ///
    /// # Errors
    /// [`LoadError::UnusedTensor`] naming the first such tensor; `drafter` describes what it does
    /// not belong to.
    pub(crate) fn reject_unknown(
        &self,
        drafter: &'static str,
        is_known: impl Fn(&str) -> bool,
    ) -> Result<(), LoadError> {
        for (file, parsed) in &self.files {
            // Old writers stored RoPE's frequencies, which follow from the configuration.
            let unused = |name: &&String| !is_known(name) && !name.ends_with("rotary_emb.inv_freq");
            if let Some(name) = parsed.tensors.keys().find(unused) {
                let (file, tensor) = (file.path().to_owned(), shortened(name));
                return Err(LoadError::UnusedTensor { file, tensor, drafter });
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Option<(&WeightFile, &StoredTensor)> {
        self.files.iter().find_map(|(file, parsed)| Some((file, parsed.tensors.get(name)?)))
    }
}
