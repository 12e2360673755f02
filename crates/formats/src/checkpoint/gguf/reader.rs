//! Reads a GGUF file, or the parts of a split one, as a model.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::config::{TensorFacts, add_divisors, read_config};
use super::metadata::GgufMetadata;
use super::names::{ROPE_DIVISORS, gguf_name, is_rotated, rotates_neighbours};
use super::parse::{GgufHead, StoredTensor, invalid, tensor_name};
use super::value::StoredValue;
use crate::architecture::Architecture;
use crate::checkpoint::row_layout::{Interleaved, RowLayout};
use crate::checkpoint::{Location, WeightFile};
use crate::config::Config;
use crate::load_error::{LoadError, shortened};
use crate::tensor::{LayerTensor, Tensor};
use crate::weight_type::Dtype;

/// The metadata of a GGUF file, to be read together with the file.
pub(crate) struct StoredMetadata(pub(super) BTreeMap<String, StoredValue>);

impl StoredMetadata {
    /// Returns the metadata of `file`, in which they are stored.
    pub(crate) fn of<'a>(&'a self, file: &'a WeightFile) -> GgufMetadata<'a> {
        GgufMetadata::new(file, &self.0)
    }
}

/// A model in a GGUF file, or in the parts of a split one.
pub(crate) struct GgufModel {
    pub(crate) config: Config,
    pub(crate) locations: HashMap<Tensor, Location>,
    /// The metadata of the first part.
    pub(crate) metadata: StoredMetadata,
}

impl GgufModel {
    /// Reads a model from all its parts, in their order.
    ///
    /// # Errors
    ///
    /// When a part is broken or belongs to another file, the model is not supported, or a tensor is
    /// missing, unexpected, or has the wrong shape.
    pub(crate) fn read(files: &[WeightFile]) -> Result<Self, LoadError> {
        let heads = files
            .iter()
            .map(|file| GgufHead::parse(file.bytes(), file.path()))
            .collect::<Result<Vec<_>, _>>()?;
        if files.is_empty() {
            let (expected, found) = ("at least one GGUF file", "none".to_owned());
            return Err(LoadError::Format { file: PathBuf::new(), expected, found });
        }
        let mut parts = Parts { files, heads };
        parts.check_split()?;
        parts.reject_duplicates()?;
        let metadata = parts.metadata(0);
        let mut config = read_config(metadata, &parts.facts())?;
        if let Some(divisors) = parts.divisors(config.head_dim)? {
            add_divisors(&mut config, divisors, metadata)?;
        }
        let architecture = config.architecture();
        let mut locations = HashMap::new();
        for tensor in architecture.tensors() {
            locations.insert(tensor, parts.locate(tensor, &config, &architecture)?);
        }
        parts.reject_unexpected(&architecture, &config)?;
        let metadata = StoredMetadata(std::mem::take(&mut parts.heads[0].metadata));
        Ok(Self { config, locations, metadata })
    }
}

/// The place of a file among the parts of a split one.
pub(super) struct Split {
    /// The number of this part, from 0.
    pub(super) number: u32,
    pub(super) count: u32,
    /// The number of tensors of all parts.
    tensors: Option<u32>,
}

impl Split {
    const NUMBER: &str = "split.no";
    const COUNT: &str = "split.count";
    const TENSORS: &str = "split.tensors.count";

    /// Reads the place. A file without such metadata is its only part.
    pub(super) fn read(metadata: GgufMetadata<'_>) -> Result<Self, LoadError> {
        // llama.cpp writes a count of 0 into merged files.
        let count = metadata.u32(Self::COUNT)?.unwrap_or(0).max(1);
        if count > u32::from(u16::MAX) {
            return Err(metadata.invalid(Self::COUNT, "at most 65535 parts"));
        }
        if count == 1 {
            return Ok(Self { number: 0, count, tensors: None });
        }
        let number = metadata.u32(Self::NUMBER)?.filter(|number| *number < count);
        let expected = || metadata.invalid(Self::NUMBER, &format!("a number below {count}"));
        let number = number.ok_or_else(expected)?;
        Ok(Self { number, count, tensors: metadata.u32(Self::TENSORS)? })
    }
}

/// The parts of a model, in their order. There is at least one.
struct Parts<'a> {
    files: &'a [WeightFile],
    heads: Vec<GgufHead>,
}

impl Parts<'_> {
    fn metadata(&self, part: usize) -> GgufMetadata<'_> {
        GgufMetadata::new(&self.files[part], &self.heads[part].metadata)
    }

    fn find(&self, name: &str) -> Option<(usize, &StoredTensor)> {
        (0..).zip(&self.heads).find_map(|(part, head)| Some((part, head.tensors.get(name)?)))
    }

    fn has(&self, tensor: Tensor) -> bool {
        self.find(&gguf_name(tensor)).is_some()
    }

    /// Checks that the files are all parts of one model.
    fn check_split(&self) -> Result<(), LoadError> {
        let parts = self.files.len();
        for part in 0..parts {
            let metadata = self.metadata(part);
            let split = Split::read(metadata)?;
            if split.count as usize != parts {
                let expected = format!("{parts}, the number of parts");
                return Err(metadata.invalid(Split::COUNT, &expected));
            }
            if split.number as usize != part {
                return Err(metadata.invalid(Split::NUMBER, &part.to_string()));
            }
            let tensors: usize = self.heads.iter().map(|head| head.tensors.len()).sum();
            if split.tensors.is_some_and(|expected| expected as usize != tensors) {
                let expected = format!("{tensors}, the number of tensors in all parts");
                return Err(metadata.invalid(Split::TENSORS, &expected));
            }
        }
        Ok(())
    }

    fn reject_duplicates(&self) -> Result<(), LoadError> {
        let mut first_in = HashMap::new();
        for (file, head) in self.files.iter().zip(&self.heads) {
            for name in head.tensors.keys() {
                if let Some(other) = first_in.insert(name, file.path()) {
                    return Err(LoadError::DuplicateTensor {
                        file: file.path().to_owned(),
                        tensor: shortened(name),
                        other: other.to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    fn facts(&self) -> TensorFacts {
        let first_layer = |part| self.has(Tensor::Layer(0, part));
        TensorFacts {
            qkv_bias: first_layer(LayerTensor::QueryBias),
            output_bias: first_layer(LayerTensor::OutputBias),
            mlp_bias: first_layer(LayerTensor::GateBias),
            has_head: self.has(Tensor::Head),
        }
    }

    /// Reads the divisors of RoPE's frequencies, `[head_dim / 2]`, if they are stored.
    fn divisors(&self, head_dim: usize) -> Result<Option<Arc<[f32]>>, LoadError> {
        let Some((part, stored)) = self.find(ROPE_DIVISORS) else { return Ok(None) };
        let file = &self.files[part];
        check_shape(file.path(), ROPE_DIVISORS, stored, vec![head_dim / 2])?;
        if stored.dtype != Dtype::F32 {
            let field = format!("the type of {}", tensor_name(ROPE_DIVISORS));
            return Err(invalid(file.path(), field, stored.dtype, "f32"));
        }
        let values = file.bytes()[stored.bytes.clone()].as_chunks::<4>().0;
        Ok(Some(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
    }

    fn locate(
        &self,
        tensor: Tensor,
        config: &Config,
        architecture: &Architecture,
    ) -> Result<Location, LoadError> {
        let name = gguf_name(tensor);
        let Some((part, stored)) = self.find(&name) else {
            let file = self.files[0].path().to_owned();
            let hint = "the file is incomplete, or its metadata belong to another model";
            return Err(LoadError::MissingTensor { file, tensor: name, hint });
        };
        let path = self.files[part].path();
        check_shape(path, &name, stored, architecture.shape(tensor))?;
        if let (Dtype::Block(_), [_]) = (stored.dtype, &stored.shape[..]) {
            let field = format!("the type of {}", tensor_name(&name));
            return Err(invalid(path, field, stored.dtype, "f32, bf16 or f16 for a vector"));
        }
        let is_interleaved = rotates_neighbours(config.family) && is_rotated(tensor);
        let interleaved = is_interleaved.then(|| Interleaved::whole(config.head_dim));
        let layout = RowLayout { interleaved, ..RowLayout::PLAIN };
        let (bytes, dtype) = (stored.bytes.clone(), stored.dtype);
        Ok(Location { file: part, bytes, dtype, layout })
    }

    /// Rejects stored tensors that the model does not use. Such a tensor (a bias, a mixture of experts)
    /// means that the configuration does not describe this model.
    fn reject_unexpected(
        &self,
        architecture: &Architecture,
        config: &Config,
    ) -> Result<(), LoadError> {
        let used: HashSet<String> = architecture.tensors().map(gguf_name).collect();
        let known = |name: &String| {
            // Old writers stored RoPE's frequencies, which follow from the configuration.
            used.contains(name) || name == ROPE_DIVISORS || name.ends_with(".attn_rot_embd")
        };
        for (file, head) in self.files.iter().zip(&self.heads) {
            if let Some(name) = head.tensors.keys().find(|name| !known(name)) {
                return Err(LoadError::UnexpectedTensor {
                    file: file.path().to_owned(),
                    tensor: shortened(name),
                    family: config.family,
                    layers: config.num_hidden_layers,
                });
            }
        }
        Ok(())
    }
}

fn check_shape(
    file: &Path,
    name: &str,
    stored: &StoredTensor,
    expected: Vec<usize>,
) -> Result<(), LoadError> {
    if stored.shape == expected {
        return Ok(());
    }
    let (file, tensor, found) = (file.to_owned(), name.to_owned(), stored.shape.clone());
    Err(LoadError::Shape { file, tensor, expected, found })
}
