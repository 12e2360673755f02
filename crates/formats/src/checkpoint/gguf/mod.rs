//! GGUF, the file format of llama.cpp: reads models from GGUF files, and writes them.
//!
//! Source: `docs/gguf.md` of ggml (version 3), and llama.cpp's names of architectures, options and
//! tensors. In written files, norms and biases are f32, as in llama.cpp.

mod adapter;
mod architectures;
mod config;
mod file;
mod gemma4;
mod latent;
mod layout;
mod metadata;
mod mixer;
mod mixture;
mod names;
mod options;
mod parse;
mod places;
mod reader;
mod rope;
mod unread;
mod value;

use super::{Checkpoint, Dtype, LoadError};
use crate::architecture::Activation;
use crate::config::{Config, Family, RopeScaling};
use crate::tensor::Tensor;
use crate::{
    BlockType, Importance, MatrixTypes, Mix, QUANT_BLOCK, WeightType, WeightTypes, blocks,
};
use half::{bf16, f16};
use layout::{GgufWriter, TensorInfo};
use names::{ROPE_DIVISORS, architecture, gguf_name, is_rotated, rotates_neighbours};
use std::io::Write;
use std::path::Path;

pub(crate) use adapter::GgufAdapter;
pub use file::{GgufFile, is_model_name, part_names};
pub(super) use file::{is_gguf, model_name, with_other_parts};
pub use layout::GgufValue;
pub use metadata::GgufMetadata;
pub(super) use reader::{GgufModel, StoredMetadata};

/// Returns the code of a tensor's type (`ggml_type`).
fn type_code(weight_type: WeightType) -> u32 {
    match weight_type {
        WeightType::F32 => 0,
        WeightType::F16 => 1,
        WeightType::Bf16 => 30,
        WeightType::Quantized(block_type) => block_type.code(),
    }
}

/// Returns the code of a file's types (`llama_ftype`). If all matrices have a type that llama.cpp
/// only mixes with others, it is the code of the smallest of these mixes.
fn file_type(types: WeightTypes) -> u32 {
    let block_type = match types {
        WeightTypes::Mix(mix) => return mix.file_type(),
        WeightTypes::All(WeightType::F32) => return 0,
        WeightTypes::All(WeightType::F16) => return 1,
        WeightTypes::All(WeightType::Bf16) => return 32,
        WeightTypes::All(WeightType::Quantized(block_type)) => block_type,
    };
    match block_type {
        BlockType::Q4_0 => 2,
        BlockType::Q4_1 => 3,
        BlockType::Q8_0 => 7,
        BlockType::Q5_0 => 8,
        BlockType::Q5_1 => 9,
        BlockType::Q2_K => Mix::Q2_K_S.file_type(),
        BlockType::Q3_K => Mix::Q3_K_S.file_type(),
        BlockType::Q4_K => Mix::Q4_K_S.file_type(),
        BlockType::Q5_K => Mix::Q5_K_S.file_type(),
        BlockType::Q6_K => 18,
        BlockType::IQ4_NL => 25,
        BlockType::IQ4_XS => 30,
        BlockType::MXFP4 => 38,
    }
}

/// How the matrices of a written file are stored.
#[derive(Clone, Copy, Debug)]
pub struct GgufWeights<'a> {
    /// Their types.
    pub types: WeightTypes,
    /// The importance of their inputs, for block types. Without it, all inputs count equally.
    pub importance: Option<&'a Importance>,
}

impl<T: Into<WeightTypes>> From<T> for GgufWeights<'_> {
    fn from(types: T) -> Self {
        Self { types: types.into(), importance: None }
    }
}

/// Appends the stored form of a row to `out`.
fn encode(weight_type: WeightType, row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    match weight_type {
        WeightType::F32 => out.extend(row.iter().flat_map(|value| value.to_le_bytes())),
        WeightType::Bf16 => {
            out.extend(row.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()));
        }
        WeightType::F16 => {
            out.extend(row.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()));
        }
        WeightType::Quantized(block_type) => blocks::quantize(block_type, row, importance, out),
    }
}

/// Writes a checkpoint as a GGUF file, with its matrices in these types ([`WeightTypes`], or one
/// type). Stored blocks of the same type are copied. `metadata` holds additional entries, such as
/// the tokenizer. They follow the entries that are derived from the configuration.
///
/// # Errors
/// [`LoadError::UnsupportedOption`] if llama.cpp cannot compute the model, or if its rows do not
/// divide into blocks. Other errors if weights cannot be read or the file cannot be written.
pub fn write_gguf<'a>(
    checkpoint: &Checkpoint,
    file: &Path,
    weights: impl Into<GgufWeights<'a>>,
    metadata: &[(String, GgufValue)],
) -> Result<(), LoadError> {
    write_gguf_with(checkpoint, file, weights.into(), metadata, &mut |_, _| ())
}

/// Does the same as [`write_gguf`]. `on_tensor` receives the number of tensors written and the
/// number of all tensors.
///
/// # Errors
/// See [`write_gguf`].
pub fn write_gguf_with(
    checkpoint: &Checkpoint,
    file: &Path,
    weights: GgufWeights<'_>,
    metadata: &[(String, GgufValue)],
    on_tensor: &mut dyn FnMut(usize, usize),
) -> Result<(), LoadError> {
    let GgufWeights { types, importance } = weights;
    let config = checkpoint.config();
    check_supported(config, checkpoint.path())?;
    check_whole_blocks(config, checkpoint.path(), types)?;
    let failed = |cause| LoadError::Write { path: file.to_owned(), cause };
    let divisors = rope_divisors(config);
    let architecture = config.architecture();
    let matrix_types = MatrixTypes::of_model(Some(types), &architecture, checkpoint)?;
    let info = |tensor| {
        tensor_info(gguf_name(tensor), &architecture.shape(tensor), matrix_types.of(tensor))
    };
    let mut infos: Vec<TensorInfo> = architecture.tensors().map(info).collect();
    infos.extend(
        divisors.iter().map(|divisors| {
            tensor_info(ROPE_DIVISORS.to_owned(), &[divisors.len()], WeightType::F32)
        }),
    );
    let mut all_metadata = model_metadata(config, types);
    all_metadata.extend(metadata.iter().cloned());

    let mut writer = GgufWriter::create(file, &all_metadata, &infos).map_err(failed)?;
    for (number, tensor) in architecture.tensors().enumerate() {
        on_tensor(number, infos.len());
        let write = |bytes: &[u8]| writer.write_all(bytes).map_err(failed);
        let stored = StoredTensor { checkpoint, tensor, weight_type: matrix_types.of(tensor) };
        stored.write(importance, write)?;
        writer.end_tensor().map_err(failed)?;
    }
    if let Some(divisors) = divisors {
        let mut bytes = Vec::new();
        encode(WeightType::F32, &divisors, None, &mut bytes);
        writer.write_all(&bytes).and_then(|()| writer.end_tensor()).map_err(failed)?;
    }
    writer.finish().map_err(failed)?;
    on_tensor(infos.len(), infos.len());
    Ok(())
}

/// Rejects models that llama.cpp would compute differently.
fn check_supported(config: &Config, path: &Path) -> Result<(), LoadError> {
    let unsupported = |option, found: String, supported| {
        Err(LoadError::UnsupportedOption { file: path.to_owned(), option, found, supported })
    };
    if !names::is_supported(config.family) {
        let found = config.family.model_type().to_owned();
        return unsupported("model_type", found, names::WRITTEN_ARCHITECTURES);
    }
    if !matches!(config.rope_scaling, RopeScaling::None | RopeScaling::Linear { .. })
        && rope_divisors(config).is_none()
        || config.rope(0).amplitude() != 1.0
    {
        let supported = "\"default\", \"linear\" and \"llama3\" in a GGUF file";
        return unsupported("rope_scaling", "yarn or longrope".to_owned(), supported);
    }
    if config.hidden_act != Activation::Silu {
        let supported = "\"silu\" in a GGUF file";
        return unsupported("hidden_act", format!("{:?}", config.hidden_act), supported);
    }
    if config.family == Family::Qwen3 && (config.qkv_bias || config.output_bias) {
        let supported = "no biases of a Qwen3 in a GGUF file";
        return unsupported("attention_bias", "true".to_owned(), supported);
    }
    if !rotates_neighbours(config.family) && rope_divisors(config).is_some() {
        let supported = "\"default\" and \"linear\" for a Qwen in a GGUF file";
        return unsupported("rope_scaling", "llama3".to_owned(), supported);
    }
    if let Some(window) = &config.sliding_window
        && window.size < config.max_position_embeddings
    {
        let found = window.size.to_string();
        return unsupported("sliding_window", found, "no sliding window in a GGUF file");
    }
    Ok(())
}

/// Rejects models whose rows are not whole blocks of the type of all matrices. A mix chooses types
/// that fit.
fn check_whole_blocks(config: &Config, path: &Path, types: WeightTypes) -> Result<(), LoadError> {
    let WeightTypes::All(WeightType::Quantized(block_type)) = types else { return Ok(()) };
    let rows = [
        ("hidden_size", config.hidden_size),
        ("intermediate_size", config.intermediate_size),
        ("head_dim", config.q_size()),
    ];
    let size = block_type.weights();
    match rows.into_iter().find(|(_, inputs)| !inputs.is_multiple_of(size)) {
        None => Ok(()),
        Some((option, inputs)) => Err(LoadError::UnsupportedOption {
            file: path.to_owned(),
            option,
            found: format!("{inputs} inputs of a matrix"),
            supported: match size {
                QUANT_BLOCK => "multiples of 32 in a GGUF file of this type",
                _ => {
                    "multiples of 256 in a GGUF file of this type (mixes such as q4_k_m fit any model)"
                }
            },
        }),
    }
}

/// Returns the metadata that follow from a model's configuration.
fn model_metadata(config: &Config, types: WeightTypes) -> Vec<(String, GgufValue)> {
    let size = |size: usize| GgufValue::U32(u32::try_from(size).unwrap_or(u32::MAX));
    let float = GgufValue::F32;
    let architecture = architecture(config.family);
    let general = [
        ("general.architecture", GgufValue::Text(architecture.into())),
        ("general.type", GgufValue::Text("model".into())),
        ("general.file_type", GgufValue::U32(file_type(types))),
        ("general.quantization_version", GgufValue::U32(2)),
    ];
    let mut model = vec![
        ("context_length", size(config.max_position_embeddings)),
        ("embedding_length", size(config.hidden_size)),
        ("block_count", size(config.num_hidden_layers)),
        ("feed_forward_length", size(config.intermediate_size)),
        ("attention.head_count", size(config.num_attention_heads)),
        ("attention.head_count_kv", size(config.num_key_value_heads)),
        ("attention.key_length", size(config.head_dim)),
        ("attention.value_length", size(config.head_dim)),
        ("attention.layer_norm_rms_epsilon", float(config.rms_norm_eps)),
        ("rope.dimension_count", size(config.head_dim)),
        ("rope.freq_base", float(config.rope_theta)),
        ("vocab_size", size(config.vocab_size)),
    ];
    if let RopeScaling::Linear { factor } = config.rope_scaling {
        model.push(("rope.scaling.type", GgufValue::Text("linear".into())));
        model.push(("rope.scaling.factor", float(factor)));
    }
    let general = general.into_iter().map(|(key, value)| (key.to_owned(), value));
    let model = model.into_iter().map(|(name, value)| (format!("{architecture}.{name}"), value));
    general.chain(model).collect()
}

/// Returns the divisor of each frequency, `[head_dim / 2]`, if the frequencies are scaled one by
/// one.
fn rope_divisors(config: &Config) -> Option<Vec<f32>> {
    match &config.rope_scaling {
        // A model with YaRN or proportional RoPE is not written.
        RopeScaling::None
        | RopeScaling::Linear { .. }
        | RopeScaling::Yarn(_)
        | RopeScaling::Proportional { .. } => None,
        RopeScaling::Divisors { divisors, .. } => Some(divisors.to_vec()),
        RopeScaling::Llama3 { .. } => {
            let rope = config.rope(0);
            Some((0..rope.dims / 2).map(|pair| rope.divisor(pair)).collect())
        }
    }
}

/// Describes a tensor of a type that its rows fit.
fn tensor_info(name: String, shape: &[usize], weight_type: WeightType) -> TensorInfo {
    let columns = shape[shape.len() - 1];
    let rows: usize = shape[..shape.len() - 1].iter().product();
    let bytes = rows * Dtype::from(weight_type).row_bytes(columns);
    TensorInfo { name, shape: shape.to_vec(), code: type_code(weight_type), bytes }
}

/// A tensor that is written in a type.
struct StoredTensor<'a> {
    checkpoint: &'a Checkpoint,
    tensor: Tensor,
    weight_type: WeightType,
}

impl StoredTensor<'_> {
    /// Writes the tensor's rows. The rows of queries and keys are in half-split order here. They
    /// are reordered for an architecture that rotates neighbouring values of a head.
    fn write(
        &self,
        importance: Option<&Importance>,
        mut write: impl FnMut(&[u8]) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let Self { checkpoint, tensor, weight_type } = *self;
        let config = checkpoint.config();
        let reordered = rotates_neighbours(config.family) && is_rotated(tensor);
        let head_dim = reordered.then_some(config.head_dim);
        let source_row = |row| head_dim.map_or(row, |head_dim| half_split_row(row, head_dim));
        let mut bytes = Vec::new();
        if checkpoint.shape(tensor).len() == 1 {
            let values = checkpoint.tensor(tensor)?;
            let values: Vec<f32> = (0..values.len()).map(|row| values[source_row(row)]).collect();
            encode(weight_type, &values, None, &mut bytes);
            return write(&bytes);
        }
        let rows = checkpoint.rows(tensor)?;
        let is_stored = rows.block_type().map(WeightType::Quantized) == Some(weight_type);
        let importance = importance.and_then(|all| all.of(tensor, rows.columns()));
        let mut values = vec![0.0; rows.columns()];
        for row in (0..rows.len()).map(source_row) {
            if is_stored && let Some(blocks) = rows.stored(row)? {
                write(&blocks)?;
                continue;
            }
            rows.read(row, &mut values)?;
            bytes.clear();
            encode(weight_type, &values, importance, &mut bytes);
            write(&bytes)?;
        }
        rows.release();
        Ok(())
    }
}

/// Converts a row index of the interleaved order (RoPE rotates neighbours) to the index of the same
/// row in the half-split order (RoPE rotates halves).
fn half_split_row(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    head * head_dim + within % 2 * (head_dim / 2) + within / 2
}

#[cfg(test)]
mod tests;
