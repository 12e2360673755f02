//! Locates the tensors of a Hugging Face checkpoint: one safetensors file, or shards with an index.

use super::assembled::{Assembled, StoredPart};
use super::quantized::LocatedMatrix;
use super::row_layout::RowLayout;
use super::safetensors_file::{SafetensorsFile, StoredTensor};
use super::stored_names::StoredAs;
use super::weight_file::WeightFile;
use super::{Dtype, Location};
use crate::architecture::Architecture;
use crate::config::{Config, Family};
use crate::load_error::LoadError;
use crate::tensor::{ExpertTensor, Tensor};
use safetensors::Dtype as StoredDtype;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

/// A `model.safetensors.index.json`: the shard of each tensor.
pub struct WeightIndex {
    file: PathBuf,
    shards: Vec<String>,
    /// From a tensor's name to an index in `shards`.
    shard_of: HashMap<String, usize>,
}

impl WeightIndex {
    /// Parses the text of an index. Errors refer to it as `file`.
    ///
    /// # Errors
    /// When the text is not JSON with a `weight_map`, or a shard's name leads out of the directory.
    pub fn parse(text: &str, file: &Path) -> Result<Self, LoadError> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let index: Index = serde_json::from_str(text)
            .map_err(|cause| LoadError::Json { file: file.to_owned(), cause })?;

        let mut shards = Vec::new();
        let mut index_of = HashMap::new();
        let mut shard_of = HashMap::new();
        for (tensor, name) in index.weight_map {
            if !is_plain_file_name(&name) {
                return Err(LoadError::ShardName { file: file.to_owned(), tensor, name });
            }
            let shard = *index_of.entry(name.clone()).or_insert_with(|| {
                shards.push(name);
                shards.len() - 1
            });
            shard_of.insert(tensor, shard);
        }
        Ok(Self { file: file.to_owned(), shards, shard_of })
    }

    /// Returns the shards' file names, in the order that
    /// [`Checkpoint::from_safetensors`](super::Checkpoint::from_safetensors) expects.
    pub fn shards(&self) -> &[String] {
        &self.shards
    }
}

fn is_plain_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let only = (components.next(), components.next());
    // The comparison rejects what `Path` tolerates, such as a trailing slash.
    matches!(only, (Some(Component::Normal(part)), None) if part == name)
        && !name.contains(['\\', '\0'])
}

/// Locates every tensor of the model in `files` and checks its dtype and shape. If the
/// configuration ties the head to the embedding, but the head is stored with other values, the
/// stored head counts, as in transformers 5: the configuration becomes one without a tie.
pub(super) fn locate(
    config: &mut Config,
    index: Option<&WeightIndex>,
    files: &[WeightFile],
) -> Result<HashMap<Tensor, Location>, LoadError> {
    let parse = |file: &WeightFile| SafetensorsFile::parse(file.bytes(), file.path());
    let parsed = files.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let prefix = match config.family {
        Family::Gpt2 | Family::Falcon => Some("transformer."),
        // Models for embeddings are stored without their head.
        _ => Some("model."),
    };
    let shards = Shards { index, files, parsed, multimodal: config.multimodal, prefix };
    shards.reject_duplicates()?;
    config.tie_word_embeddings &= !shards.has_another_head(config);
    // A model for embeddings does not use its head.
    config.tie_word_embeddings |= config.pooling.is_some() && !shards.has_head(config);
    let config = &*config;
    let mut locations = HashMap::new();
    let architecture = config.architecture();
    let mut used = HashSet::new();
    for tensor in architecture.tensors() {
        if let Some(names) = StoredAs::of_heads(tensor, config, &architecture) {
            locations.insert(tensor, shards.locate_heads(tensor, &names, config.head_dim)?);
            used.extend(names);
            continue;
        }
        let stored_as = shards.stored_as(tensor, config, &architecture);
        let quantized = match config.quantization {
            Some(format) => shards.locate_quantized(format, &stored_as)?,
            None => None,
        };
        match quantized {
            Some(LocatedMatrix { location, names }) => {
                locations.insert(tensor, location);
                used.extend(names);
            }
            None => {
                locations.insert(tensor, shards.locate(tensor, &stored_as)?);
                used.insert(stored_as.name);
            }
        }
    }
    shards.reject_unexpected(&used, config)?;
    Ok(locations)
}

pub(super) fn stored_dtype(
    stored: &StoredTensor,
    file: &Path,
    name: &str,
) -> Result<Dtype, LoadError> {
    match stored.dtype {
        StoredDtype::F32 => Ok(Dtype::F32),
        StoredDtype::BF16 => Ok(Dtype::Bf16),
        StoredDtype::F16 => Ok(Dtype::F16),
        other => {
            let (file, tensor) = (file.to_owned(), name.to_owned());
            Err(LoadError::Dtype { file, tensor, found: other.to_string() })
        }
    }
}

/// The bytes of two tensors that are compared at a time, before their pages are released.
const COMPARED: usize = 4 << 20;

/// The files of a checkpoint and their parsed headers.
pub(super) struct Shards<'a> {
    index: Option<&'a WeightIndex>,
    pub(super) files: &'a [WeightFile],
    parsed: Vec<SafetensorsFile>,
    /// Whether the language model is a part of a model that also reads images.
    multimodal: bool,
    /// What names begin with in files of the whole class, but not in those of its base class.
    prefix: Option<&'static str>,
}

/// Returns the names of a tensor of a language model that is a part of a model with images: as in
/// published files, and as transformers 5 writes them.
pub(crate) fn names_in_multimodal(name: &str) -> [String; 2] {
    let new = match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name.to_owned(),
    };
    [format!("language_model.{name}"), new]
}

/// Whether a tensor does not change the model's outputs: it belongs to a layer after those of the
/// model, where DeepSeek-V3, GLM-4.5 and others have a layer that predicts a further token, to keys
/// that no layer attends to, or to an indexer that chooses all positions.
fn is_unused(name: &str, config: &Config) -> bool {
    let in_part = ["language_model.model.", "model.language_model."];
    let of_part = in_part.iter().find_map(|part| name.strip_prefix(part));
    let in_model = of_part.or_else(|| name.strip_prefix("model."));
    let layer = in_model.and_then(|name| name.strip_prefix("layers."));
    let layer = layer.and_then(|rest| rest.split('.').next());
    let layer: Option<usize> = layer.and_then(|layer| layer.parse().ok());
    match config.family {
        Family::Glm4Moe | Family::Glm4MoeLite | Family::DeepseekV3 => {
            layer >= Some(config.num_hidden_layers)
        }
        family if family.is_sparse() => {
            layer >= Some(config.num_hidden_layers) || name.contains(".self_attn.indexer.")
        }
        Family::Ernie45Moe => name.starts_with("model.mtp_"),
        // Published files store the keys of layers that attend to those of others.
        Family::Gemma4 => {
            let is_of_keys = ["k_proj", "v_proj", "k_norm", "v_norm"]
                .iter()
                .any(|part| name.contains(&format!(".self_attn.{part}.")));
            is_of_keys && layer.is_some_and(|layer| config.keys_of(layer).is_some())
        }
        family if family.is_hybrid_qwen() => name.starts_with("mtp."),
        Family::Bert => name.starts_with("pooler.") || name == "embeddings.position_ids",
        _ => false,
    }
}

/// Whether a tensor belongs to the part of a model that reads images.
fn is_of_images(name: &str) -> bool {
    [
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
        "model.embed_vision.",
        "model.vision_embedder.",
        "model.audio_tower.",
        "model.embed_audio.",
        "model.visual.",
    ]
    .into_iter()
    .any(|part| name.starts_with(part))
}

impl Shards<'_> {
    /// Finds a tensor by its name, or by its name as a part of a model that also reads images.
    pub(super) fn find(&self, name: &str) -> Option<(usize, &StoredTensor)> {
        let of_part = || {
            let names = names_in_multimodal(name);
            names.into_iter().find_map(|name| self.find_exactly(&name))
        };
        let of_base = || self.find_exactly(name.strip_prefix(self.prefix?)?);
        let found = self.find_exactly(name).or_else(of_base);
        found.or_else(|| if self.multimodal { of_part() } else { None })
    }

    fn find_exactly(&self, name: &str) -> Option<(usize, &StoredTensor)> {
        let shard = match self.index {
            Some(index) => *index.shard_of.get(name)?,
            None => 0,
        };
        Some((shard, self.parsed.get(shard)?.tensors.get(name)?))
    }

    fn has_head(&self, config: &Config) -> bool {
        self.find(&StoredAs::of(Tensor::Head, config, &config.architecture()).name).is_some()
    }

    /// Whether both the embedding and the head are stored, and differ. Equal ones are read as a
    /// whole.
    fn has_another_head(&self, config: &Config) -> bool {
        let architecture = config.architecture();
        let [embedding, head] = [Tensor::Embedding, Tensor::Head]
            .map(|tensor| self.find(&StoredAs::of(tensor, config, &architecture).name));
        let (Some((first, embedding)), Some((second, head))) = (embedding, head) else {
            return false;
        };
        if (embedding.dtype, &embedding.shape) != (head.dtype, &head.shape) {
            return true;
        }
        let bytes = |file: usize, stored: &StoredTensor| {
            let file = &self.files[file];
            file.bytes()[stored.bytes.clone()].chunks(COMPARED)
        };
        let mut pairs = bytes(first, embedding).zip(bytes(second, head)).enumerate();
        pairs.any(|(index, (one, other))| {
            let differ = one != other;
            for (file, stored) in [(first, embedding), (second, head)] {
                let start = stored.bytes.start + index * COMPARED;
                self.files[file].release(start..start + one.len());
            }
            differ
        })
    }

    /// Returns how a tensor is stored. Tied embeddings are stored once, and some writers store them
    /// under the head's name. Experts are stored one by one, or all those of a layer as one tensor.
    fn stored_as(&self, tensor: Tensor, config: &Config, architecture: &Architecture) -> StoredAs {
        let stored = StoredAs::of(tensor, config, architecture);
        let may_be_head = tensor == Tensor::Embedding && config.tie_word_embeddings;
        if may_be_head && self.find(&stored.name).is_none() {
            let head = StoredAs::of(Tensor::Head, config, architecture);
            if self.find(&head.name).is_some() {
                return head;
            }
        }
        let fused = StoredAs::in_all_experts(tensor, config, architecture);
        if let (Some(fused), Tensor::Expert(layer, expert, part)) = (&fused, tensor)
            && (&fused.name, &fused.shape) == (&stored.name, &stored.shape)
        {
            // Square matrices have the layout of the layer's other ones, which are not square.
            let other =
                if part == ExpertTensor::Down { ExpertTensor::Gate } else { ExpertTensor::Down };
            let other = Tensor::Expert(layer, expert, other);
            let is_transposed =
                self.stored_as(other, config, architecture).layout.transposed.is_some();
            return if is_transposed { stored } else { fused.clone() };
        }
        let shape = |form: &StoredAs| self.find(&form.name).map(|(_, tensor)| &tensor.shape);
        let is_fused =
            |fused: &StoredAs| shape(fused).is_some() && shape(&stored) != Some(&stored.shape);
        fused.filter(is_fused).unwrap_or(stored)
    }

    fn locate(&self, tensor: Tensor, stored_as: &StoredAs) -> Result<Location, LoadError> {
        let name = &stored_as.name;
        let Some((file, stored)) = self.find(name) else {
            return Err(self.missing(name.clone(), tensor));
        };
        let path = || self.files[file].path().to_owned();
        if stored.shape != stored_as.shape {
            let (expected, found) = (stored_as.shape.clone(), stored.shape.clone());
            return Err(LoadError::Shape { file: path(), tensor: name.clone(), expected, found });
        }
        let dtype = stored_dtype(stored, self.files[file].path(), name)?;
        Ok(Location {
            file,
            bytes: stored_as.part_of(stored.bytes.clone()),
            dtype,
            layout: stored_as.layout,
            quantized: None,
            assembled: None,
        })
    }

    /// Locates a vector whose parts, one for each head, have these names.
    fn locate_heads(
        &self,
        tensor: Tensor,
        names: &[String],
        head_dim: usize,
    ) -> Result<Location, LoadError> {
        let part = |name: &String| {
            let (name, layout) = (name.clone(), RowLayout::PLAIN);
            let stored_as = StoredAs { name, shape: vec![head_dim], expert: None, layout };
            let Location { file, bytes, dtype, .. } = self.locate(tensor, &stored_as)?;
            Ok::<_, LoadError>(StoredPart { file, bytes, dtype })
        };
        let parts = names.iter().map(part).collect::<Result<Vec<_>, _>>()?;
        let (file, bytes, dtype) = match parts.first() {
            Some(part) => (part.file, part.bytes.clone(), part.dtype),
            None => (0, 0..0, Dtype::F32),
        };
        let (layout, quantized) = (RowLayout::PLAIN, None);
        let assembled = Some(Box::new(Assembled::Vector(parts)));
        Ok(Location { file, bytes, dtype, layout, quantized, assembled })
    }

    fn missing(&self, name: String, tensor: Tensor) -> LoadError {
        let hint = match tensor {
            Tensor::Head => {
                "if the head is the embedding, set `\"tie_word_embeddings\": true` in config.json"
            }
            _ => "the checkpoint is incomplete, or config.json belongs to another model",
        };
        self.missing_with(name, hint)
    }

    pub(super) fn missing_with(&self, name: String, hint: &'static str) -> LoadError {
        let shard = self.index.and_then(|index| index.shard_of.get(&name)).copied();
        let file = match (self.index, shard) {
            (Some(index), None) => Some(index.file.as_path()),
            (_, shard) => self.files.get(shard.unwrap_or(0)).map(WeightFile::path),
        };
        LoadError::MissingTensor {
            file: file.unwrap_or(Path::new("")).to_owned(),
            tensor: name,
            hint,
        }
    }

    /// Rejects tensors that are stored twice. A tensor in two shards means that the shards belong
    /// to different checkpoints, or that the index belongs to another one.
    fn reject_duplicates(&self) -> Result<(), LoadError> {
        let mut first_in = HashMap::new();
        for (file, parsed) in self.files.iter().zip(&self.parsed) {
            for name in parsed.tensors.keys() {
                if let Some(other) = first_in.insert(name, file.path()) {
                    return Err(LoadError::DuplicateTensor {
                        file: file.path().to_owned(),
                        tensor: crate::load_error::shortened(name),
                        other: other.to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether a tensor is a bias of zeros next to quants. Old versions of AutoGPTQ store one for
    /// each matrix.
    fn is_empty_bias(&self, name: &str, config: &Config) -> bool {
        let module = name.strip_suffix(".bias").filter(|_| config.quantization.is_some());
        let is_quantized = |module: &str| self.find(&format!("{module}.qweight")).is_some();
        let is_zero = || {
            self.find_exactly(name).is_some_and(|(file, stored)| {
                self.files[file].bytes()[stored.bytes.clone()].iter().all(|byte| *byte == 0)
            })
        };
        module.is_some_and(is_quantized) && is_zero()
    }

    /// Rejects stored tensors that the model does not use. Such a tensor (a bias, a norm of the
    /// queries, an additional layer) means that the configuration does not describe this model.
    fn reject_unexpected(&self, used: &HashSet<String>, config: &Config) -> Result<(), LoadError> {
        let head = StoredAs::of(Tensor::Head, config, &config.architecture()).name;
        let heads_in_multimodal = names_in_multimodal(&head);
        let harmless = |name: &str| {
            let is_head =
                name == head || self.multimodal && heads_in_multimodal.iter().any(|n| n == name);
            let is_tied_head = config.tie_word_embeddings && is_head;
            // Old writers stored RoPE's frequencies and the causal mask, which follow from the
            // configuration.
            let buffers = [
                "rotary_emb.inv_freq",
                "attention.bias",
                "attention.masked_bias",
                ".attn.bias",
                ".attn.masked_bias",
            ];
            is_tied_head
                || is_unused(name, config)
                || self.is_empty_bias(name, config)
                || buffers.iter().any(|buffer| name.ends_with(buffer))
        };
        let in_base = |name: &str| {
            let whole = self.prefix.map(|prefix| format!("{prefix}{name}"));
            whole.is_some_and(|name| used.contains(&name) && self.find_exactly(&name).is_none())
        };
        let in_multimodal = used.iter().filter(|_| self.multimodal);
        let used_in_multimodal: HashSet<String> =
            in_multimodal.flat_map(|name| names_in_multimodal(name)).collect();
        for (file, parsed) in self.files.iter().zip(&self.parsed) {
            for name in parsed.tensors.keys() {
                let is_of_whole =
                    self.multimodal && (used_in_multimodal.contains(name) || is_of_images(name));
                if !used.contains(name) && !harmless(name) && !is_of_whole && !in_base(name) {
                    return Err(LoadError::UnexpectedTensor {
                        file: file.path().to_owned(),
                        tensor: crate::load_error::shortened(name),
                        family: config.family,
                        layers: config.num_hidden_layers,
                    });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_names_must_stay_in_the_directory() {
        for name in ["model-00001-of-00002.safetensors", "a", "..a"] {
            assert!(is_plain_file_name(name), "{name}");
        }
        for name in ["", ".", "..", "../a", "a/b", "/a", "a/", "./a", "a\\b", "a\0"] {
            assert!(!is_plain_file_name(name), "{name}");
        }
    }

    #[test]
    fn an_index_lists_each_shard_once() {
        let text = r#"{"metadata": {}, "weight_map": {"b": "2", "a": "2", "c": "1"}}"#;
        let index = WeightIndex::parse(text, Path::new("index.json")).unwrap();
        assert_eq!(index.shards(), ["2", "1"]);
        assert_eq!(index.shard_of["c"], 1);
    }
}
