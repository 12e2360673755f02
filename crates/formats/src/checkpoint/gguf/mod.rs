//! GGUF, the file format of llama.cpp: reads models from GGUF files, and writes them.
//!
//! Source: `docs/gguf.md` of ggml (version 3), and llama.cpp's names of architectures, options and
//! tensors. In written files, all matrices have one type. Norms and biases are f32, as in llama.cpp.

mod config;
mod file;
mod layout;
mod metadata;
mod names;
mod parse;
mod reader;
mod unread;
mod value;

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;

use half::bf16;

use super::{Checkpoint, LoadError};
use crate::config::{Config, Family, RopeScaling};
use crate::tensor::Tensor;
use crate::weight_type::QUANT_BLOCK as BLOCK;
use crate::{BlockType, blocks};
use layout::{GgufWriter, TensorInfo};
use names::{ROPE_DIVISORS, architecture, gguf_name, is_rotated, rotates_neighbours};

pub use file::{GgufFile, is_model_name, part_names};
pub(super) use file::{is_gguf, model_name, with_other_parts};
pub use layout::GgufValue;
pub use metadata::GgufMetadata;
pub(super) use reader::{GgufModel, StoredMetadata};

/// The type of the matrices in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufType {
    /// 32-bit floats: exact.
    F32,
    /// bfloat16, rounded to nearest: exact for checkpoints in bfloat16.
    Bf16,
    /// 8-bit integers in blocks of 32 inputs with one half-precision scale each: the same numbers as
    /// in [`WeightType::INT8`](crate::WeightType::INT8).
    Q8_0,
}

impl GgufType {
    /// Returns the code of a tensor's type (`ggml_type`).
    fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::Q8_0 => 8,
            Self::Bf16 => 30,
        }
    }

    /// Returns the code of a file's matrix type (`llama_ftype`).
    fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    /// Returns the number of bytes that a row of `values` values takes.
    fn row_bytes(self, values: usize) -> usize {
        match self {
            Self::F32 => values * size_of::<f32>(),
            Self::Bf16 => values * size_of::<u16>(),
            Self::Q8_0 => values / BLOCK * (size_of::<u16>() + BLOCK),
        }
    }

    /// Appends the stored form of a row to `out`.
    fn encode(self, row: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::F32 => out.extend(row.iter().flat_map(|value| value.to_le_bytes())),
            Self::Bf16 => {
                out.extend(row.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()));
            }
            Self::Q8_0 => {
                blocks::quantize(BlockType::Q8_0, row, None, out);
            }
        }
    }
}

impl fmt::Display for GgufType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        })
    }
}

impl FromStr for GgufType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::F32, Self::Bf16, Self::Q8_0];
        let found = all.into_iter().find(|gguf_type| gguf_type.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is not one of f32, bf16, q8_0"))
    }
}

/// Writes a checkpoint as a GGUF file. `metadata` holds additional entries, such as the tokenizer. They
/// follow the entries that are derived from the configuration.
///
/// # Errors
///
/// [`LoadError::UnsupportedOption`] if llama.cpp cannot compute the model, or if its rows do not divide
/// into blocks. Other errors if weights cannot be read or the file cannot be written.
pub fn write_gguf(
    checkpoint: &Checkpoint,
    file: &Path,
    gguf_type: GgufType,
    metadata: &[(String, GgufValue)],
) -> Result<(), LoadError> {
    write_gguf_with(checkpoint, file, gguf_type, metadata, &mut |_, _| ())
}

/// Does the same as [`write_gguf`]. `on_tensor` receives the number of tensors written and the number of
/// all tensors.
///
/// # Errors
///
/// See [`write_gguf`].
pub fn write_gguf_with(
    checkpoint: &Checkpoint,
    file: &Path,
    gguf_type: GgufType,
    metadata: &[(String, GgufValue)],
    on_tensor: &mut dyn FnMut(usize, usize),
) -> Result<(), LoadError> {
    let config = checkpoint.config();
    check_supported(config, checkpoint.path(), gguf_type)?;
    let failed = |cause| LoadError::Write { path: file.to_owned(), cause };
    let divisors = rope_divisors(config);
    let architecture = config.architecture();
    let mut infos: Vec<TensorInfo> = architecture
        .tensors()
        .map(|tensor| tensor_info(gguf_name(tensor), &architecture.shape(tensor), gguf_type))
        .collect();
    infos.extend(
        divisors.iter().map(|divisors| {
            tensor_info(ROPE_DIVISORS.to_owned(), &[divisors.len()], GgufType::F32)
        }),
    );
    let mut all_metadata = model_metadata(config, gguf_type);
    all_metadata.extend(metadata.iter().cloned());

    let mut writer = GgufWriter::create(file, &all_metadata, &infos).map_err(failed)?;
    for (number, tensor) in architecture.tensors().enumerate() {
        on_tensor(number, infos.len());
        write_tensor(checkpoint, tensor, gguf_type, &mut writer, file)?;
        writer.end_tensor().map_err(failed)?;
    }
    if let Some(divisors) = divisors {
        let mut bytes = Vec::new();
        GgufType::F32.encode(&divisors, &mut bytes);
        writer.write_all(&bytes).and_then(|()| writer.end_tensor()).map_err(failed)?;
    }
    writer.finish().map_err(failed)?;
    on_tensor(infos.len(), infos.len());
    Ok(())
}

/// Rejects models that llama.cpp would compute differently.
fn check_supported(config: &Config, path: &Path, gguf_type: GgufType) -> Result<(), LoadError> {
    let unsupported = |option, found: String, supported| {
        Err(LoadError::UnsupportedOption { file: path.to_owned(), option, found, supported })
    };
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
    let rows = [
        ("hidden_size", config.hidden_size),
        ("intermediate_size", config.intermediate_size),
        ("head_dim", config.q_size()),
    ];
    let indivisible = rows.into_iter().find(|(_, inputs)| !inputs.is_multiple_of(BLOCK));
    if let Some((option, inputs)) = indivisible.filter(|_| gguf_type == GgufType::Q8_0) {
        let found = format!("{inputs} inputs of a matrix");
        return unsupported(option, found, "multiples of 32 in a GGUF file of type q8_0");
    }
    Ok(())
}

/// Returns the metadata that follow from a model's configuration.
fn model_metadata(config: &Config, gguf_type: GgufType) -> Vec<(String, GgufValue)> {
    let size = |size: usize| GgufValue::U32(u32::try_from(size).unwrap_or(u32::MAX));
    let float = GgufValue::F32;
    let architecture = architecture(config.family);
    let general = [
        ("general.architecture", GgufValue::Text(architecture.into())),
        ("general.type", GgufValue::Text("model".into())),
        ("general.file_type", GgufValue::U32(gguf_type.file_type())),
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

/// Returns the divisor of each frequency, `[head_dim / 2]`, if the frequencies are scaled one by one.
fn rope_divisors(config: &Config) -> Option<Vec<f32>> {
    match &config.rope_scaling {
        RopeScaling::None | RopeScaling::Linear { .. } => None,
        RopeScaling::Divisors(divisors) => Some(divisors.to_vec()),
        RopeScaling::Llama3 { .. } => {
            let divisor = |pair| config.rope().divisor(pair, config.head_dim);
            Some((0..config.head_dim / 2).map(divisor).collect())
        }
    }
}

/// Describes a tensor. Vectors are stored as f32, matrices in the file's type.
fn tensor_info(name: String, shape: &[usize], gguf_type: GgufType) -> TensorInfo {
    let columns = shape[shape.len() - 1];
    let stored = if shape.len() == 1 { GgufType::F32 } else { gguf_type };
    let rows: usize = shape[..shape.len() - 1].iter().product();
    let bytes = rows * stored.row_bytes(columns);
    TensorInfo { name, shape: shape.to_vec(), code: stored.code(), bytes }
}

/// Writes a tensor's rows. The rows of queries and keys are in half-split order here. They are reordered
/// for an architecture that rotates neighbouring values of a head.
fn write_tensor(
    checkpoint: &Checkpoint,
    tensor: Tensor,
    gguf_type: GgufType,
    writer: &mut GgufWriter,
    file: &Path,
) -> Result<(), LoadError> {
    let failed = |cause| LoadError::Write { path: file.to_owned(), cause };
    let config = checkpoint.config();
    let reordered = rotates_neighbours(config.family) && is_rotated(tensor);
    let head_dim = reordered.then_some(config.head_dim);
    let source_row = |row| head_dim.map_or(row, |head_dim| half_split_row(row, head_dim));
    let mut bytes = Vec::new();
    if checkpoint.shape(tensor).len() == 1 {
        let values = checkpoint.tensor(tensor)?;
        let values: Vec<f32> = (0..values.len()).map(|row| values[source_row(row)]).collect();
        GgufType::F32.encode(&values, &mut bytes);
        return writer.write_all(&bytes).map_err(failed);
    }
    let rows = checkpoint.rows(tensor)?;
    let mut values = vec![0.0; rows.columns()];
    for row in 0..rows.len() {
        rows.read(source_row(row), &mut values)?;
        bytes.clear();
        gguf_type.encode(&values, &mut bytes);
        writer.write_all(&bytes).map_err(failed)?;
    }
    Ok(())
}

/// Converts a row index of the interleaved order (RoPE rotates neighbours) to the index of the same
/// row in the half-split order (RoPE rotates halves).
fn half_split_row(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    head * head_dim + within % 2 * (head_dim / 2) + within / 2
}

#[cfg(test)]
mod tests;
