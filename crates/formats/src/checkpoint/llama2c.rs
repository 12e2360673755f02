//! The layout of a llama2.c checkpoint of version 0 (github.com/karpathy/llama2.c, `run.c`).
//!
//! The file holds seven little-endian i32, then f32 tensors in a fixed order. RoPE rotates
//! neighbouring rows of a head in this format, so queries and keys are marked as interleaved.

use super::row_layout::{Interleaved, RowLayout};
use super::{Dtype, Location};
use crate::config::Config;
use crate::load_error::LoadError;
use crate::tensor::{LayerTensor, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// The size of the header in bytes.
const HEADER: usize = 7 * size_of::<i32>();

/// What to do about a file that is no model.
const GIVE_A_MODEL: &str = "give a directory with config.json and model.safetensors, a GGUF file, or a \
                            llama2.c .bin file";

/// The layers' tensors in the file's order. The file holds each tensor for all layers, then the
/// next.
const FILE_ORDER: [LayerTensor; 9] = [
    LayerTensor::AttentionNorm,
    LayerTensor::Query,
    LayerTensor::Key,
    LayerTensor::Value,
    LayerTensor::Output,
    LayerTensor::MlpNorm,
    LayerTensor::Gate,
    LayerTensor::Down,
    LayerTensor::Up,
];

/// The configuration and the tensors of a llama2.c file.
pub(super) struct Llama2c {
    pub(super) config: Config,
    pub(super) locations: HashMap<Tensor, Location>,
}

impl Llama2c {
    /// Reads the header and computes the location of each tensor. Fails when the bytes have another
    /// format, the header does not describe a valid model, or the file does not end exactly after
    /// the last tensor.
    pub(super) fn parse(bytes: &[u8], file: &Path) -> Result<Self, LoadError> {
        reject_other_formats(bytes, file)?;
        let config = read_header(bytes, file)?;
        let expected = file_length(&config);
        if expected != bytes.len() as u128 {
            let hint = "the file is truncated, or it is not a llama2.c v0 checkpoint";
            let (file, found) = (file.to_owned(), bytes.len());
            return Err(LoadError::Length { file, expected, found, hint });
        }
        // From here on everything fits in the file, so no size can overflow.
        let locations = locate(&config);
        Ok(Self { config, locations })
    }
}

/// Rejects other formats. Version 0 has no magic number, so the other formats are recognised by
/// theirs.
fn reject_other_formats(bytes: &[u8], file: &Path) -> Result<(), LoadError> {
    let found = if let Some(rest) = bytes.strip_prefix(&0x616b_3432_u32.to_le_bytes()) {
        let version = rest.first_chunk().map_or(0, |version| u32::from_le_bytes(*version));
        format!("llama2.c version {version} (magic \"ak42\"): export the model with `--version 0`")
    } else if bytes.starts_with(b"GGUF") {
        "a GGUF file".to_owned()
    } else if bytes.starts_with(b"PK\x03\x04") {
        "a zip archive, probably written by PyTorch: convert it to safetensors".to_owned()
    } else if bytes.get(8..10) == Some(b"{\"") {
        "a file that looks like safetensors: give the directory that holds its config.json"
            .to_owned()
    } else if is_image(bytes) {
        format!("an image: {GIVE_A_MODEL}")
    } else if is_text(bytes) {
        match bytes.trim_ascii_start().first() {
            Some(b'{' | b'[') => {
                "a JSON file: give the directory that holds it and the weights".into()
            }
            _ => format!("a text: {GIVE_A_MODEL}"),
        }
    } else {
        return Ok(());
    };
    Err(LoadError::Format { file: file.to_owned(), expected: "a model", found })
}

fn is_image(bytes: &[u8]) -> bool {
    let signatures: [&[u8]; 3] = [b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8"];
    signatures.iter().any(|signature| bytes.starts_with(signature))
}

/// Returns whether the bytes that would be the header are text. The sizes in a real header are far
/// below 2^24, so it holds zeros.
fn is_text(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(HEADER)];
    let is_control = |byte: &u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    !start.is_empty() && !start.iter().any(is_control)
}

fn read_header(bytes: &[u8], file: &Path) -> Result<Config, LoadError> {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Err(LoadError::Length {
            file: file.to_owned(),
            expected: HEADER as u128,
            found: bytes.len(),
            hint: "a llama2.c v0 checkpoint begins with seven 32-bit numbers",
        });
    };
    let (fields, _) = header.as_chunks::<4>();
    let field = |index: usize| i64::from(i32::from_le_bytes(fields[index]));
    let positive = |option: &'static str, value: i64| match usize::try_from(value) {
        Ok(size) if size > 0 => Ok(size),
        _ => {
            let expected = "a positive number: is this a llama2.c v0 checkpoint?";
            Err(LoadError::invalid_option(file, option, &value, expected))
        }
    };
    let hidden_size = positive("dim", field(0))?;
    let num_attention_heads = positive("n_heads", field(3))?;
    // The vocabulary's size is negative if the head is a separate tensor.
    let signed_vocab_size = field(5);
    let config = Config {
        hidden_size,
        intermediate_size: positive("hidden_dim", field(1))?,
        num_hidden_layers: positive("n_layers", field(2))?,
        num_attention_heads,
        num_key_value_heads: positive("n_kv_heads", field(4))?,
        head_dim: hidden_size / num_attention_heads,
        vocab_size: positive("vocab_size", signed_vocab_size.abs())?,
        max_position_embeddings: positive("seq_len", field(6))?,
        tie_word_embeddings: signed_vocab_size > 0,
        bos_token_id: Some(1),
        // These models are trained on texts that begin with token 1, and `run.c` stops at this
        // token.
        eos_token_ids: vec![1, 2],
        ..Config::plain_llama()
    };
    if !hidden_size.is_multiple_of(num_attention_heads) {
        let expected = format!("a divisor of \"dim\", {hidden_size}");
        return Err(LoadError::invalid_option(file, "n_heads", &num_attention_heads, expected));
    }
    config.validate(file)?;
    Ok(config)
}

/// Returns the size in bytes of a file with this header. 128 bits do not overflow for any header.
fn file_length(config: &Config) -> u128 {
    let architecture = config.architecture();
    let elements = |tensor: Tensor| {
        architecture.shape(tensor).iter().map(|size| *size as u128).product::<u128>()
    };
    let layer: u128 = FILE_ORDER.iter().map(|tensor| elements(Tensor::Layer(0, *tensor))).sum();
    let head = if config.tie_word_embeddings { 0 } else { elements(Tensor::Head) };
    let total = elements(Tensor::Embedding)
        + config.num_hidden_layers as u128 * layer
        + elements(Tensor::FinalNorm)
        + rope_elements(config)
        + head;
    HEADER as u128 + total * size_of::<f32>() as u128
}

/// Returns the number of elements in the tables of cosines and sines. They are stored, but not
/// read, because they follow from the header.
fn rope_elements(config: &Config) -> u128 {
    2 * config.max_position_embeddings as u128 * (config.head_dim / 2) as u128
}

/// Computes the tensors' locations, one after another. The file must be long enough for all of
/// them.
fn locate(config: &Config) -> HashMap<Tensor, Location> {
    let layers = FILE_ORDER.into_iter().flat_map(|tensor| {
        (0..config.num_hidden_layers).map(move |layer| Tensor::Layer(layer, tensor))
    });
    let before_rope = [Tensor::Embedding].into_iter().chain(layers).chain([Tensor::FinalNorm]);
    let head = (!config.tie_word_embeddings).then_some(Tensor::Head);

    let architecture = config.architecture();
    let mut locations = HashMap::new();
    let mut start = HEADER;
    for tensor in before_rope.chain(head) {
        if tensor == Tensor::Head {
            start += rope_elements(config) as usize * size_of::<f32>();
        }
        let elements: usize = architecture.shape(tensor).iter().product();
        let bytes = start..start + elements * size_of::<f32>();
        start = bytes.end;
        let is_rotated = matches!(tensor, Tensor::Layer(_, LayerTensor::Query | LayerTensor::Key));
        let interleaved = is_rotated.then(|| Interleaved::whole(config.head_dim));
        let layout = RowLayout { interleaved, ..RowLayout::PLAIN };
        locations.insert(
            tensor,
            Location {
                file: 0,
                bytes,
                dtype: Dtype::F32,
                layout,
                quantized: None,
                assembled: None,
            },
        );
    }
    locations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(fields: [i32; 7]) -> Vec<u8> {
        fields.iter().flat_map(|field| field.to_le_bytes()).collect()
    }

    fn parse(bytes: &[u8]) -> Result<Llama2c, LoadError> {
        Llama2c::parse(bytes, Path::new("model.bin"))
    }

    fn message(bytes: &[u8]) -> String {
        match parse(bytes) {
            Ok(_) => panic!("expected an error"),
            Err(error) => error.to_string(),
        }
    }

    /// dim 8, hidden_dim 6, 2 layers, 2 heads, 1 kv head, vocabulary 5, 3 positions.
    const TINY: [i32; 7] = [8, 6, 2, 2, 1, 5, 3];
    /// Elements of the embedding, the layers (norms, q, k and v, o, MLP), the final norm and RoPE.
    const TINY_ELEMENTS: usize = 40 + 2 * (16 + 64 + 64 + 64 + 144) + 8 + 12;

    #[test]
    fn tensors_are_in_the_order_of_run_c() {
        let mut bytes = header(TINY);
        bytes.resize(HEADER + 4 * TINY_ELEMENTS, 0);
        let parsed = parse(&bytes).unwrap();
        let config = &parsed.config;
        assert_eq!((config.head_dim, config.tie_word_embeddings), (4, true));
        assert_eq!(config.eos_token_ids, [1, 2]);
        let start = |tensor| (parsed.locations[&tensor].bytes.start - HEADER) / 4;
        assert_eq!(start(Tensor::Embedding), 0);
        assert_eq!(start(Tensor::Layer(1, LayerTensor::AttentionNorm)), 48);
        assert_eq!(start(Tensor::Layer(0, LayerTensor::Query)), 56);
        assert_eq!(start(Tensor::Layer(1, LayerTensor::Down)), 56 + 2 * (64 + 128 + 8 + 48) + 48);
        assert_eq!(start(Tensor::FinalNorm), TINY_ELEMENTS - 20);
        assert!(!parsed.locations.contains_key(&Tensor::Head));
    }

    #[test]
    fn a_negative_vocabulary_means_a_head_after_the_rope_tables() {
        let mut bytes = header([8, 6, 2, 2, 1, -5, 3]);
        bytes.resize(HEADER + 4 * (TINY_ELEMENTS + 40), 0);
        let parsed = parse(&bytes).unwrap();
        assert_eq!(parsed.config.vocab_size, 5);
        assert_eq!(parsed.locations[&Tensor::Head].bytes, HEADER + 4 * TINY_ELEMENTS..bytes.len());
    }

    #[test]
    fn the_length_must_be_exact() {
        let length = HEADER + 4 * TINY_ELEMENTS;
        for found in [length - 1, length + 1, HEADER] {
            let mut bytes = header(TINY);
            bytes.resize(found, 0);
            let message = message(&bytes);
            assert!(message.contains(&format!("expected {length} bytes")), "{message}");
            assert!(message.contains(&format!("found {found}")), "{message}");
        }
        assert!(message(&[0; 27]).contains("expected 28 bytes"));
    }

    #[test]
    fn headers_of_invalid_models_are_rejected() {
        let with_field = |field: usize, value: i32| {
            let mut fields = TINY;
            fields[field] = value;
            message(&header(fields))
        };
        assert!(with_field(0, -8).contains("\"dim\" is -8"));
        assert!(with_field(1, i32::MAX).contains("\"intermediate_size\" is 2147483647"));
        assert!(with_field(3, 3).contains("\"n_heads\" is 3; expected a divisor of \"dim\", 8"));
        assert!(with_field(3, 8).contains("\"head_dim\" is 1"));
        assert!(with_field(5, i32::MIN).contains("\"vocab_size\" is 2147483648"));
        assert!(with_field(5, 0).contains("\"vocab_size\" is 0"));
        let large = 1 << 28;
        assert!(with_field(1, large).contains("found 28"));
        let largest = message(&header([large, large, 1 << 11, 1 << 27, 1, large, large]));
        assert!(largest.contains("expected 2951767295367040729116 bytes"), "{largest}");
        assert!(with_field(2, large).contains("expected a size from 1 to 2048"));
    }

    #[test]
    fn other_formats_are_recognised() {
        let mut newer = 0x616b_3432_u32.to_le_bytes().to_vec();
        newer.extend_from_slice(&header([2, 8, 6, 2, 2, 1, 5]));
        assert!(message(&newer).contains("llama2.c version 2 (magic \"ak42\")"));
        assert!(message(b"GGUF\x03\0\0\0").contains("GGUF"));
        assert!(message(b"PK\x03\x04").contains("PyTorch"));
        assert!(message(b"\x02\0\0\0\0\0\0\0{\"}").contains("safetensors"));
    }
}
