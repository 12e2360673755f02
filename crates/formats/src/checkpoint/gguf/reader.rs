//! Reads a GGUF file, or the parts of a split one, as a model.

use super::architectures::{ASSISTANT, NEXT_TOKEN_LAYERS, TARGET_SIZE};
use super::config::read_config;
use super::gemma4;
use super::metadata::GgufMetadata;
use super::names::{LONG_DIVISORS, ROPE_DIVISORS, SHORT_DIVISORS};
use super::options::ModelOptions;
use super::parse::{GgufHead, StoredTensor, invalid, tensor_name};
use super::places::Places;
use super::rope::{Divisors, add_divisors};
use super::value::StoredValue;
use crate::architecture::Architecture;
use crate::checkpoint::assembled::{Assembled, SplitExpansion, StoredPart};
use crate::checkpoint::row_layout::RowLayout;
use crate::checkpoint::stored_names::StoredAs;
use crate::checkpoint::{Location, WeightFile};
use crate::config::{Config, GlobalHeads, MAX_LAYERS, RopeScaling};
use crate::json_options::MAX_SIZE;
use crate::load_error::{LoadError, shortened};
use crate::speculator::{assistant, mtp};
use crate::tensor::Tensor;
use crate::weight_type::Dtype;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    pub(crate) architecture: Architecture,
    pub(crate) locations: HashMap<Tensor, Location>,
    /// The metadata of the first part.
    pub(crate) metadata: StoredMetadata,
}

impl GgufModel {
    /// Reads a model from all its parts, in their order. Fails when a part is broken or belongs to
    /// another file, the model is not supported, or a tensor is missing, unexpected, or has the
    /// wrong shape.
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
        let has = |name: &str| parts.find(name).is_some();
        let (mut config, gguf) = read_config(metadata, &has)?;
        let options = ModelOptions { metadata, architecture: gguf.name };
        if let Some(GlobalHeads { head_dim, .. }) = config.global_heads {
            parts.add_share_of_rope(&mut config, head_dim / 2, &options)?;
        } else if let Some(divisors) = parts.divisors(config.rotary_dims() / 2)? {
            add_divisors(&mut config, divisors, &options)?;
        }
        let architecture = match gguf.name {
            ASSISTANT => assistant::alone(&config, options.required_size(TARGET_SIZE, MAX_SIZE)?),
            _ => config.architecture(),
        };
        let places = Places { gguf, config: &config, architecture: &architecture, has: &has };
        let mut located = Located::default();
        // The norm of features is that of an assistant's target.
        for tensor in architecture.tensors().filter(|tensor| *tensor != Tensor::FeatureNorm) {
            parts.locate_in(&places, [tensor; 2], &mut located)?;
        }
        let Located { locations, used } = located;
        let layers = options.required_size("block_count", MAX_LAYERS)?;
        parts.reject_unexpected(&used, &config, config.num_hidden_layers..layers)?;
        let metadata = StoredMetadata(std::mem::take(&mut parts.heads[0].metadata));
        Ok(Self { config, architecture, locations, metadata })
    }

    /// Locates the tensors of the layer for multi-token prediction of a model that was read from
    /// these files. Fails when there is none, or it has tensors that are not computed.
    pub(crate) fn locate_mtp(
        files: &[WeightFile],
        layout: &mtp::Layout,
    ) -> Result<HashMap<Tensor, Location>, LoadError> {
        let parse = |file: &WeightFile| GgufHead::parse(file.bytes(), file.path());
        let heads = files.iter().map(parse).collect::<Result<_, _>>()?;
        let parts = Parts { files, heads };
        let has = |name: &str| parts.find(name).is_some();
        let (_, gguf) = read_config(parts.metadata(0), &has)?;
        let (config, architecture) = (layout.config(), layout.model());
        let options = ModelOptions { metadata: parts.metadata(0), architecture: gguf.name };
        if options.required_size("block_count", MAX_LAYERS)? != config.num_hidden_layers {
            let expected = format!("one with \"{NEXT_TOKEN_LAYERS}\" 1");
            return Err(LoadError::NoMtpHead { path: files[0].path().to_owned(), expected });
        }
        let places = Places { gguf, config, architecture, has: &has };
        let (head, prefix) =
            (layout.architecture(), format!("blk.{}.", config.num_hidden_layers - 1));
        let mut located = Located::default();
        for tensor in head.tensors() {
            let own = match tensor {
                Tensor::Fusion => "eh_proj",
                Tensor::EmbeddingNorm => "enorm",
                Tensor::FeatureNorm => "hnorm",
                Tensor::FinalNorm => "shared_head_norm",
                layer => {
                    parts.locate_in(&places, [layer, layout.in_target(layer)], &mut located)?;
                    continue;
                }
            };
            let (name, shape) = (format!("{prefix}nextn.{own}.weight"), head.shape(tensor));
            let is_vector = shape.len() == 1;
            let stored_as = StoredAs { name, shape, expert: None, layout: RowLayout::PLAIN };
            located.locations.insert(tensor, parts.locate(&stored_as, is_vector)?);
            located.used.insert(stored_as.name);
        }
        let copies = ["nextn.embed_tokens.weight", "nextn.shared_head_head.weight"];
        let is_unknown = |name: &&String| {
            let of_head = name.strip_prefix(&prefix);
            of_head.is_some_and(|part| !copies.contains(&part)) && !located.used.contains(*name)
        };
        for (file, head) in files.iter().zip(&parts.heads) {
            if let Some(name) = head.tensors.keys().find(is_unknown) {
                let (file, tensor) = (file.path().to_owned(), shortened(name));
                return Err(LoadError::UnusedTensor { file, tensor, drafter: "this MTP head" });
            }
        }
        Ok(located.locations)
    }
}

/// Where tensors are, and the names of those that hold them.
#[derive(Default)]
struct Located {
    locations: HashMap<Tensor, Location>,
    used: HashSet<String>,
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

    /// Reads the divisors of RoPE's frequencies, one for each pair, if they are stored.
    fn divisors(&self, pairs: usize) -> Result<Option<Divisors>, LoadError> {
        match self.floats(SHORT_DIVISORS, pairs)? {
            Some(divisors) => Ok(Some(Divisors::Short(divisors))),
            None => Ok(self.floats(ROPE_DIVISORS, pairs)?.map(Divisors::All)),
        }
    }

    /// Reads which pairs RoPE rotates in the layers without a window, if the file says so (Gemma
    /// 4).
    fn add_share_of_rope(
        &self,
        config: &mut Config,
        pairs: usize,
        options: &ModelOptions<'_>,
    ) -> Result<(), LoadError> {
        let Some(divisors) = self.floats(ROPE_DIVISORS, pairs)? else { return Ok(()) };
        if config.rope_scaling != RopeScaling::None {
            return Err(options.invalid("rope.scaling.type", "\"none\" with stored divisors"));
        }
        let share = gemma4::rotated_share(&divisors).ok_or_else(|| {
            let expected = "1 for the first pairs, and at least 1e30 for the others";
            invalid(self.files[0].path(), tensor_name(ROPE_DIVISORS), "others", expected)
        })?;
        config.rope_scaling = RopeScaling::Proportional { share, factor: 1.0 };
        config.validate(self.files[0].path())
    }

    /// Reads a vector of f32, if it is stored.
    fn floats(&self, name: &str, length: usize) -> Result<Option<Arc<[f32]>>, LoadError> {
        let Some((part, stored)) = self.find(name) else { return Ok(None) };
        let file = &self.files[part];
        check_shape(file.path(), name, stored, &[length])?;
        if stored.dtype != Dtype::F32 {
            let field = format!("the type of {}", tensor_name(name));
            return Err(invalid(file.path(), field, stored.dtype, "f32"));
        }
        let values = file.bytes()[stored.bytes.clone()].as_chunks::<4>().0;
        Ok(Some(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
    }

    /// Locates a tensor by its place as another one: that of the model with a head's layer.
    fn locate_in(
        &self,
        places: &Places<'_>,
        [tensor, in_model]: [Tensor; 2],
        located: &mut Located,
    ) -> Result<(), LoadError> {
        let architecture = places.architecture;
        let location = if let Some(names) = places.split_expansion(in_model) {
            let location = self.locate_expansion(&names, architecture, in_model)?;
            located.used.extend(names);
            location
        } else {
            let stored_as = places.of(in_model);
            let location = self.locate(&stored_as, architecture.shape(in_model).len() == 1)?;
            located.used.insert(stored_as.name);
            location
        };
        located.locations.insert(tensor, location);
        Ok(())
    }

    fn locate(&self, stored_as: &StoredAs, is_vector: bool) -> Result<Location, LoadError> {
        let name = &stored_as.name;
        let Some((file, stored)) = self.find(name) else {
            let file = self.files[0].path().to_owned();
            let hint = "the file is incomplete, or its metadata belong to another model";
            return Err(LoadError::MissingTensor { file, tensor: name.clone(), hint });
        };
        let path = self.files[file].path();
        check_shape(path, name, stored, &stored_as.shape)?;
        if matches!(stored.dtype, Dtype::Block(_)) && is_vector {
            let field = format!("the type of {}", tensor_name(name));
            return Err(invalid(path, field, stored.dtype, "f32, bf16 or f16 for a vector"));
        }
        let mut bytes = stored.bytes.clone();
        if let Some([expert, n_experts]) = stored_as.expert {
            let size = bytes.len() / n_experts;
            bytes = bytes.start + expert * size..bytes.start + (expert + 1) * size;
        }
        Ok(Location {
            file,
            bytes,
            dtype: stored.dtype,
            layout: stored_as.layout,
            quantized: None,
            assembled: None,
        })
    }

    /// Locates the expansion of compressed keys and values, stored as two tensors with these names.
    fn locate_expansion(
        &self,
        [keys, values]: &[String; 2],
        architecture: &Architecture,
        tensor: Tensor,
    ) -> Result<Location, LoadError> {
        let attention = match tensor {
            Tensor::Layer(layer, _) => architecture.layers[layer].attention.as_ref(),
            _ => None,
        };
        let n_heads = attention.map_or(0, |attention| attention.n_heads);
        let sizes = attention.and_then(|attention| attention.latent.as_deref());
        let [rank, plain_dim, value_dim] =
            sizes.map_or([0; 3], |latent| [latent.rank, latent.plain_dim, latent.value_dim]);
        let part = |name: &String, shape: Vec<usize>| {
            let (name, layout) = (name.clone(), RowLayout::PLAIN);
            let stored_as = StoredAs { name, shape, expert: None, layout };
            let Location { file, bytes, dtype, .. } = self.locate(&stored_as, false)?;
            Ok::<_, LoadError>(StoredPart { file, bytes, dtype })
        };
        let keys = part(keys, vec![n_heads, rank, plain_dim])?;
        let values = part(values, vec![n_heads, value_dim, rank])?;
        // A type that holds the values of both, if there is one.
        let of_blocks =
            [&keys, &values].into_iter().find(|part| matches!(part.dtype, Dtype::Block(_)));
        let (file, bytes) = (keys.file, keys.bytes.clone());
        let dtype = match of_blocks {
            Some(part) => part.dtype,
            None if keys.dtype == values.dtype => keys.dtype,
            None => Dtype::F32,
        };
        let expansion = SplitExpansion { keys, values, rank, plain_dim, value_dim };
        let (layout, quantized) = (RowLayout::PLAIN, None);
        let assembled = Some(Box::new(Assembled::Expansion(expansion)));
        Ok(Location { file, bytes, dtype, layout, quantized, assembled })
    }

    /// Rejects stored tensors that the model does not use. Such a tensor (a bias, a mixture of
    /// experts) means that the configuration does not describe this model. Layers for multi-token
    /// prediction are skipped.
    fn reject_unexpected(
        &self,
        used: &HashSet<String>,
        config: &Config,
        skipped: Range<usize>,
    ) -> Result<(), LoadError> {
        // Of LongRoPE's divisors, only the short ones count.
        let divisors = if self.find(SHORT_DIVISORS).is_some() {
            [SHORT_DIVISORS, LONG_DIVISORS]
        } else {
            [ROPE_DIVISORS; 2]
        };
        let known = |name: &String| {
            // Old writers stored RoPE's frequencies, which follow from the configuration.
            used.contains(name)
                || divisors.contains(&name.as_str())
                || name.ends_with(".attn_rot_embd")
                || is_unused_key(name, config)
                || config.family.is_sparse() && name.contains(".indexer.")
                || layer_of(name).is_some_and(|layer| skipped.contains(&layer))
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

/// Whether a tensor belongs to keys and values of a layer that attends to those of another one.
fn is_unused_key(name: &str, config: &Config) -> bool {
    const PARTS: [&str; 3] = [".attn_k.weight", ".attn_v.weight", ".attn_k_norm.weight"];
    let attends_to_others = |layer| config.keys_of(layer).is_some();
    PARTS.iter().any(|part| name.ends_with(part)) && layer_of(name).is_some_and(attends_to_others)
}

fn layer_of(name: &str) -> Option<usize> {
    let (layer, _) = name.strip_prefix("blk.")?.split_once('.')?;
    layer.parse().ok()
}

/// Checks a stored shape. As in ggml, outer dimensions of 1 do not count.
fn check_shape(
    file: &Path,
    name: &str,
    stored: &StoredTensor,
    expected: &[usize],
) -> Result<(), LoadError> {
    let significant = |shape: &[usize]| {
        let ones = shape.iter().take(shape.len().saturating_sub(1));
        ones.take_while(|size| **size == 1).count()
    };
    let found = &stored.shape;
    if found[significant(found)..] == expected[significant(expected)..] {
        return Ok(());
    }
    let (file, tensor) = (file.to_owned(), name.to_owned());
    let (expected, found) = (expected.to_vec(), found.clone());
    Err(LoadError::Shape { file, tensor, expected, found })
}
