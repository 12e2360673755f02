//! Builds GGUF files, also invalid ones. Shares nothing with the writer.

use forerun_formats::Checkpoint;
use forerun_formats::checkpoint::{LoadError, WeightFile};
use std::path::PathBuf;

pub(crate) const U8: u32 = 0;
pub(crate) const U16: u32 = 2;
pub(crate) const U32: u32 = 4;
pub(crate) const I32: u32 = 5;
pub(crate) const F32: u32 = 6;
pub(crate) const BOOL: u32 = 7;
pub(crate) const TEXT: u32 = 8;
pub(crate) const ARRAY: u32 = 9;
pub(crate) const U64: u32 = 10;
pub(crate) const F64: u32 = 12;

/// A value: the code of its type, and its bytes.
pub(crate) type Value = (u32, Vec<u8>);

pub(crate) fn u32_value(value: u32) -> Value {
    (U32, value.to_le_bytes().into())
}

pub(crate) fn f32_value(value: f32) -> Value {
    (F32, value.to_le_bytes().into())
}

pub(crate) fn bool_value(value: bool) -> Value {
    (BOOL, vec![value.into()])
}

pub(crate) fn text(text: &str) -> Value {
    (TEXT, sized(text.as_bytes()))
}

/// An array of elements of one type. It claims to have `length` of them.
pub(crate) fn array_of(element: u32, length: u64, elements: &[u8]) -> Value {
    let head = element.to_le_bytes().into_iter().chain(length.to_le_bytes());
    (ARRAY, head.chain(elements.iter().copied()).collect())
}

pub(crate) fn u32s(values: &[u32]) -> Value {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    array_of(U32, values.len() as u64, &bytes)
}

pub(crate) fn bools(values: &[bool]) -> Value {
    let bytes: Vec<u8> = values.iter().map(|value| u8::from(*value)).collect();
    array_of(BOOL, values.len() as u64, &bytes)
}

/// Bytes after their length.
pub(crate) fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

/// A tensor as described and as stored.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) name: Vec<u8>,
    /// The first is the length of a row.
    pub(crate) dimensions: Vec<u64>,
    pub(crate) code: u32,
    /// The offset in the description, if it is not that of the bytes.
    pub(crate) offset: Option<u64>,
    pub(crate) bytes: Vec<u8>,
}

/// The content of a file. Fields that are not set follow from the others.
#[derive(Clone)]
pub(crate) struct Builder {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) tensor_count: Option<u64>,
    pub(crate) entry_count: Option<u64>,
    pub(crate) metadata: Vec<(Vec<u8>, Value)>,
    pub(crate) tensors: Vec<Stored>,
    pub(crate) alignment: usize,
}

impl Builder {
    /// A Llama with one layer: hidden size 4, MLP 6, 2 heads, 1 key/value head, vocabulary 5.
    pub(crate) fn llama() -> Self {
        Self::model("llama")
    }

    /// The same model of another architecture.
    pub(crate) fn model(architecture: &str) -> Self {
        let mut builder = Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            entry_count: None,
            metadata: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
        };
        builder.set("general.architecture", text(architecture));
        for (name, value) in [
            ("context_length", 16),
            ("embedding_length", 4),
            ("block_count", 1),
            ("feed_forward_length", 6),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("vocab_size", 5),
        ] {
            builder.set(&format!("{architecture}.{name}"), u32_value(value));
        }
        let epsilon = format!("{architecture}.attention.layer_norm_rms_epsilon");
        builder.set(&epsilon, f32_value(1e-5));
        for (name, dimensions) in [
            ("token_embd.weight", &[4, 5][..]),
            ("blk.0.attn_norm.weight", &[4]),
            ("blk.0.attn_q.weight", &[4, 4]),
            ("blk.0.attn_k.weight", &[4, 2]),
            ("blk.0.attn_v.weight", &[4, 2]),
            ("blk.0.attn_output.weight", &[4, 4]),
            ("blk.0.ffn_norm.weight", &[4]),
            ("blk.0.ffn_gate.weight", &[4, 6]),
            ("blk.0.ffn_up.weight", &[4, 6]),
            ("blk.0.ffn_down.weight", &[6, 4]),
            ("output_norm.weight", &[4]),
            ("output.weight", &[4, 5]),
        ] {
            builder.add(name, dimensions);
        }
        builder
    }

    /// A model of Qwen2's mixtures: 3 experts of width 2, of which a token uses 2, and a shared one
    /// of width 8.
    pub(crate) fn mixture() -> Self {
        let mut builder = Self::model("qwen2moe");
        builder.tensors.retain(|tensor| !tensor.name.starts_with(b"blk.0.ffn_g"));
        builder.tensors.retain(|tensor| !tensor.name.starts_with(b"blk.0.ffn_u"));
        builder.tensors.retain(|tensor| !tensor.name.starts_with(b"blk.0.ffn_d"));
        for (name, value) in [
            ("expert_count", 3),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", 2),
            ("expert_shared_feed_forward_length", 8),
        ] {
            builder.set(&format!("qwen2moe.{name}"), u32_value(value));
        }
        for (name, dimensions) in [
            ("ffn_gate_inp.weight", &[4, 3][..]),
            ("ffn_gate_exps.weight", &[4, 2, 3]),
            ("ffn_up_exps.weight", &[4, 2, 3]),
            ("ffn_down_exps.weight", &[2, 4, 3]),
            ("ffn_gate_inp_shexp.weight", &[4]),
            ("ffn_gate_shexp.weight", &[4, 8]),
            ("ffn_up_shexp.weight", &[4, 8]),
            ("ffn_down_shexp.weight", &[8, 4]),
        ] {
            builder.add(&format!("blk.0.{name}"), dimensions);
        }
        builder
    }

    /// Sets an option, or replaces it.
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.remove(key);
        self.metadata.push((key.into(), value));
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.metadata.retain(|(other, _)| other != key.as_bytes());
    }

    /// Adds a tensor of f32.
    pub(crate) fn add(&mut self, name: &str, dimensions: &[u64]) {
        let count: u64 = dimensions.iter().product();
        let bytes = (0..count).flat_map(|value| (value as f32 / 8.0).to_le_bytes()).collect();
        let (name, dimensions) = (name.into(), dimensions.to_vec());
        self.tensors.push(Stored { name, dimensions, code: 0, offset: None, bytes });
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Stored {
        self.tensors.iter_mut().find(|tensor| tensor.name == name.as_bytes()).unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.entry_count.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        for (key, (code, value)) in &self.metadata {
            out.extend(sized(key));
            out.extend(code.to_le_bytes());
            out.extend(value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            out.extend(sized(&tensor.name));
            out.extend((tensor.dimensions.len() as u32).to_le_bytes());
            out.extend(tensor.dimensions.iter().flat_map(|size| size.to_le_bytes()));
            out.extend(tensor.code.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset).to_le_bytes());
            offset = (offset + tensor.bytes.len() as u64).next_multiple_of(self.alignment as u64);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.bytes);
        }
        out
    }

    /// Opens the file and reads every tensor.
    pub(crate) fn read(&self) -> Result<Checkpoint, LoadError> {
        read_bytes(self.bytes())
    }
}

pub(crate) fn read_bytes(bytes: Vec<u8>) -> Result<Checkpoint, LoadError> {
    let file = WeightFile::from_bytes(PathBuf::from("a.gguf"), bytes);
    let checkpoint = Checkpoint::from_gguf(vec![file])?;
    super::read_all(&checkpoint)?;
    Ok(checkpoint)
}
