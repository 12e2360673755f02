//! The layout of a GGUF file: header, metadata, names and offsets of the tensors, then their bytes.

use super::parse::{DEFAULT_ALIGNMENT as ALIGNMENT, MAGIC};
use super::value::ValueType;
use forerun_output::OutputFile;
use std::io::{self, Write};
use std::path::Path;

/// The format version of the files that are written.
const VERSION: u32 = 3;

/// A value in a GGUF file's metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// An unsigned integer.
    U32(u32),
    /// A float.
    F32(f32),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// An array of integers.
    I32s(Vec<i32>),
    /// An array of floats.
    F32s(Vec<f32>),
    /// An array of strings.
    Texts(Vec<String>),
    /// A value of any type, as another file stores it.
    Stored(Vec<u8>),
}

impl GgufValue {
    /// Appends the type code and the value to `out`.
    fn encode(&self, out: &mut Vec<u8>) {
        let mut array = |element: ValueType, length: usize| {
            let codes = [ValueType::Array, element].map(ValueType::code);
            out.extend(codes.iter().flat_map(|code| code.to_le_bytes()));
            out.extend((length as u64).to_le_bytes());
        };
        match self {
            Self::U32(value) => {
                out.extend(ValueType::U32.code().to_le_bytes());
                out.extend(value.to_le_bytes());
            }
            Self::Stored(bytes) => out.extend(bytes),
            Self::F32(value) => {
                out.extend(ValueType::F32.code().to_le_bytes());
                out.extend(value.to_le_bytes());
            }
            Self::Bool(value) => {
                out.extend(ValueType::Bool.code().to_le_bytes());
                out.push(u8::from(*value));
            }
            Self::Text(text) => {
                out.extend(ValueType::Text.code().to_le_bytes());
                encode_text(text, out);
            }
            Self::I32s(values) => {
                array(ValueType::I32, values.len());
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Self::F32s(values) => {
                array(ValueType::F32, values.len());
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Self::Texts(texts) => {
                array(ValueType::Text, texts.len());
                texts.iter().for_each(|text| encode_text(text, out));
            }
        }
    }
}

fn encode_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The description of a tensor, stored before the tensors' bytes.
pub(super) struct TensorInfo {
    pub(super) name: String,
    /// `[outputs, inputs]` or `[size]`, as everywhere in this crate. The file reverses the order.
    pub(super) shape: Vec<usize>,
    /// The code of its type (`ggml_type`).
    pub(super) code: u32,
    pub(super) bytes: usize,
}

/// A writer of one GGUF file. The tensors' bytes must follow in the order of their descriptions.
pub(super) struct GgufWriter {
    out: OutputFile,
    /// Bytes written since the offset of the first tensor.
    written: u64,
}

impl GgufWriter {
    /// Creates the file and writes everything that precedes the tensors' bytes.
    pub(super) fn create(
        file: &Path,
        metadata: &[(String, GgufValue)],
        tensors: &[TensorInfo],
    ) -> io::Result<Self> {
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        head.extend((tensors.len() as u64).to_le_bytes());
        head.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            encode_text(key, &mut head);
            value.encode(&mut head);
        }
        let mut offset: u64 = 0;
        for TensorInfo { name, shape, code, bytes } in tensors {
            encode_text(name, &mut head);
            head.extend((shape.len() as u32).to_le_bytes());
            head.extend(shape.iter().rev().flat_map(|size| (*size as u64).to_le_bytes()));
            head.extend(code.to_le_bytes());
            head.extend(offset.to_le_bytes());
            offset = (offset + *bytes as u64).next_multiple_of(ALIGNMENT);
        }
        head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
        let mut out = OutputFile::create(file)?;
        out.reserve(head.len() as u64 + offset)?;
        out.write_all(&head)?;
        Ok(Self { out, written: 0 })
    }

    /// Pads the file up to the offset of the next tensor.
    pub(super) fn end_tensor(&mut self) -> io::Result<()> {
        let padding = self.written.next_multiple_of(ALIGNMENT) - self.written;
        self.write_all(&[0; ALIGNMENT as usize][..padding as usize])
    }

    /// Completes the file.
    pub(super) fn finish(self) -> io::Result<()> {
        self.out.finish()
    }
}

impl Write for GgufWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
