//! Parses the head of a GGUF file: metadata, and the descriptions of the tensors.
//!
//! Source: `docs/gguf.md` of ggml, versions 2 and 3, which differ only in the byte orders that they
//! allow. Nothing is allocated by a length or count that the file only claims.

use super::value::{Scalar, StoredValue, ValueType};
use crate::block_type::BlockType;
use crate::load_error::{LoadError, shortened};
use crate::weight_type::Dtype;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// The first bytes of every GGUF file.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// The alignment of tensors in bytes, unless the metadata gives another one.
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;

/// A hundred times as many entries as real files have.
const MAX_ENTRIES: u64 = 1 << 16;
/// More tensors than 2,048 layers have.
const MAX_TENSORS: u64 = 1 << 17;
/// The format's limit for keys.
const MAX_KEY_BYTES: u64 = u16::MAX as u64;
/// The format's limit for the names of tensors.
const MAX_NAME_BYTES: u64 = 64;
/// The format's limit for the dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;
/// Arrays of arrays: llama.cpp writes none.
const MAX_NESTING: usize = 4;

pub(super) struct GgufHead {
    pub(super) metadata: BTreeMap<String, StoredValue>,
    /// By name. The order is fixed, so if there are several errors, the same one is always
    /// reported.
    pub(super) tensors: BTreeMap<String, StoredTensor>,
}

pub(super) struct StoredTensor {
    pub(super) dtype: Dtype,
    /// `[outputs, inputs]` or `[size]`, as everywhere in this crate. The file has the reverse
    /// order.
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Range<usize>,
}

impl GgufHead {
    /// Parses the head of a file, and checks that the tensors are within `bytes` and do not
    /// overlap. Fails when a field is invalid or cut off, or a tensor has an unsupported type.
    pub(super) fn parse(bytes: &[u8], file: &Path) -> Result<Self, LoadError> {
        let mut cursor = Cursor { bytes, position: 0, file };
        cursor.check_version()?;
        let tensors = cursor.count("the number of tensors", MAX_TENSORS)?;
        let entries = cursor.count("the number of metadata entries", MAX_ENTRIES)?;
        let mut metadata = BTreeMap::new();
        for index in 0..entries {
            let (key, value) = cursor.entry(index)?;
            if metadata.insert(key.to_owned(), value).is_some() {
                let key = option(key);
                return Err(cursor.invalid(key, "stored twice", "each option once"));
            }
        }
        let alignment = cursor.alignment(&metadata)?;
        let mut infos = Vec::new();
        for index in 0..tensors {
            infos.push(cursor.tensor_info(index)?);
        }
        let start = (cursor.position as u64).next_multiple_of(alignment);
        let mut stored = BTreeMap::new();
        for info in &infos {
            let tensor = cursor.locate(info, start, alignment)?;
            if stored.insert(info.name.to_owned(), tensor).is_some() {
                let name = tensor_name(info.name);
                return Err(cursor.invalid(name, "stored twice", "each tensor once"));
            }
        }
        cursor.reject_overlaps(&stored)?;
        Ok(Self { metadata, tensors: stored })
    }
}

/// Returns the name of an option of the metadata, for errors.
pub(super) fn option(key: &str) -> String {
    format!("option \"{}\"", shortened(key))
}

pub(super) fn tensor_name(name: &str) -> String {
    format!("tensor `{}`", shortened(name))
}

/// Creates the error for an invalid field.
pub(super) fn invalid(
    file: &Path,
    field: impl fmt::Display,
    found: impl fmt::Display,
    expected: impl fmt::Display,
) -> LoadError {
    LoadError::GgufField {
        file: file.to_owned(),
        field: field.to_string(),
        found: found.to_string(),
        expected: expected.to_string(),
    }
}

/// Creates the error for a field with a valid value that this engine does not support.
pub(super) fn unsupported(
    file: &Path,
    field: impl fmt::Display,
    found: impl fmt::Display,
    supported: impl fmt::Display,
) -> LoadError {
    LoadError::GgufUnsupported {
        file: file.to_owned(),
        field: field.to_string(),
        found: found.to_string(),
        supported: supported.to_string(),
    }
}

/// A tensor's description as stored.
struct TensorInfo<'a> {
    name: &'a str,
    /// The first is the length of a row.
    dimensions: Vec<u64>,
    code: u32,
    offset: u64,
}

/// A position in the head of a file.
struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
    file: &'a Path,
}

impl<'a> Cursor<'a> {
    fn invalid(
        &self,
        field: impl fmt::Display,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> LoadError {
        invalid(self.file, field, found, expected)
    }

    fn truncated(&self, field: impl fmt::Display, found: String, expected: String) -> LoadError {
        let (file, field) = (self.file.to_owned(), field.to_string());
        LoadError::GgufTruncated { file, field, found, expected }
    }

    /// Takes the next bytes. `field` names them in errors.
    fn take(&mut self, count: u64, field: &dyn fmt::Display) -> Result<&'a [u8], LoadError> {
        let rest = &self.bytes[self.position..];
        let taken = usize::try_from(count).ok().and_then(|count| rest.get(..count));
        let taken = taken.ok_or_else(|| {
            let expected = format!("at most the {} that follow", rest.len());
            self.truncated(field, format!("{count} bytes long"), expected)
        })?;
        self.position += taken.len();
        Ok(taken)
    }

    fn u32(&mut self, field: &dyn fmt::Display) -> Result<u32, LoadError> {
        // `take` returns as many bytes as it is asked for.
        Ok(self.take(4, field)?.try_into().map_or(0, u32::from_le_bytes))
    }

    fn u64(&mut self, field: &dyn fmt::Display) -> Result<u64, LoadError> {
        Ok(self.take(8, field)?.try_into().map_or(0, u64::from_le_bytes))
    }

    /// Reads a count that may not be larger than `limit`.
    fn count(&mut self, field: &str, limit: u64) -> Result<u64, LoadError> {
        let count = self.u64(&field)?;
        if count > limit {
            return Err(self.invalid(field, count, format_args!("at most {limit}")));
        }
        Ok(count)
    }

    /// Reads a name: a length from 1 to `limit`, then UTF-8.
    fn name(&mut self, field: &dyn fmt::Display, limit: u64) -> Result<&'a str, LoadError> {
        let length = self.u64(field)?;
        if length > limit {
            let found = format!("{length} bytes long");
            return Err(self.invalid(field, found, format_args!("at most {limit} bytes")));
        }
        if length == 0 {
            return Err(self.invalid(field, "empty", "a name"));
        }
        let bytes = self.take(length, field)?;
        str::from_utf8(bytes).map_err(|_| self.invalid(field, "not UTF-8", "a name in UTF-8"))
    }

    fn check_version(&mut self) -> Result<(), LoadError> {
        let format = |found: String| LoadError::Format {
            file: self.file.to_owned(),
            expected: "a GGUF file of version 2 or 3, little-endian",
            found,
        };
        let Some((head, _)) = self.bytes.split_first_chunk::<8>() else {
            let found = format!("{} bytes: the file is truncated", self.bytes.len());
            return Err(format(found));
        };
        let [magic @ .., v0, v1, v2, v3] = *head;
        if magic != MAGIC {
            return Err(format(format!("a file that begins with \"{}\"", magic.escape_ascii())));
        }
        let version = [v0, v1, v2, v3];
        match (u32::from_le_bytes(version), u32::from_be_bytes(version)) {
            (2 | 3, _) => {}
            (_, 2 | 3) => {
                let found =
                    "a big-endian file: convert it with gguf_convert_endian.py of llama.cpp";
                return Err(format(found.to_owned()));
            }
            (other, _) => return Err(format(format!("version {other}"))),
        }
        self.position = head.len();
        Ok(())
    }

    /// Reads a key and skips its value.
    fn entry(&mut self, index: u64) -> Result<(&'a str, StoredValue), LoadError> {
        let key = self.name(&format_args!("the key of metadata entry {index}"), MAX_KEY_BYTES)?;
        let value_type = self.value_type(key)?;
        Ok((key, self.value(key, value_type)?))
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType, LoadError> {
        let code = self.u32(&format_args!("the type of {}", option(key)))?;
        ValueType::from_code(code).ok_or_else(|| {
            let field = format!("the type of {}", option(key));
            self.invalid(field, code, "a type of values, 0 to 12")
        })
    }

    /// Skips a value.
    fn value(&mut self, key: &str, value_type: ValueType) -> Result<StoredValue, LoadError> {
        if value_type != ValueType::Array {
            let bytes = self.element(key, value_type, 0)?;
            return Ok(StoredValue { value_type, array_length: None, bytes });
        }
        let (value_type, length) = self.array_head(key)?;
        let bytes = self.elements(key, value_type, length, 1)?;
        // Every element has at least one byte, so the number of elements fits.
        Ok(StoredValue { value_type, array_length: Some(length as usize), bytes })
    }

    fn array_head(&mut self, key: &str) -> Result<(ValueType, u64), LoadError> {
        let value_type = self.value_type(key)?;
        Ok((value_type, self.u64(&format_args!("the length of {}", option(key)))?))
    }

    /// Skips the elements of an array. Returns their bytes.
    fn elements(
        &mut self,
        key: &str,
        value_type: ValueType,
        length: u64,
        depth: usize,
    ) -> Result<Range<usize>, LoadError> {
        let start = self.position;
        if let Some(width) = value_type.width() {
            self.take(length.saturating_mul(width as u64), &Quoted(key))?;
        } else {
            for _ in 0..length {
                self.element(key, value_type, depth)?;
            }
        }
        Ok(start..self.position)
    }

    /// Skips a value or an element of an array. Returns the bytes of its content.
    fn element(
        &mut self,
        key: &str,
        value_type: ValueType,
        depth: usize,
    ) -> Result<Range<usize>, LoadError> {
        if value_type == ValueType::Array {
            if depth == MAX_NESTING {
                let expected = format!("at most {MAX_NESTING} levels");
                return Err(self.invalid(option(key), "an array in many arrays", expected));
            }
            let (value_type, length) = self.array_head(key)?;
            return self.elements(key, value_type, length, depth + 1);
        }
        let length = match value_type.width() {
            Some(width) => width as u64,
            None => self.u64(&Quoted(key))?,
        };
        let start = self.position;
        self.take(length, &Quoted(key))?;
        Ok(start..self.position)
    }

    fn alignment(&self, metadata: &BTreeMap<String, StoredValue>) -> Result<u64, LoadError> {
        const KEY: &str = "general.alignment";
        let Some(value) = metadata.get(KEY) else { return Ok(DEFAULT_ALIGNMENT) };
        let scalar = match value.array_length {
            None => Scalar::decode(value.value_type, &self.bytes[value.bytes.clone()]),
            Some(_) => None,
        };
        let alignment = scalar.and_then(Scalar::integer::<u32>);
        match alignment.filter(|alignment| alignment.is_power_of_two()) {
            Some(alignment) => Ok(alignment.into()),
            None => {
                let found =
                    scalar.map_or_else(|| "no number".to_owned(), |value| value.to_string());
                Err(self.invalid(option(KEY), found, "a power of two"))
            }
        }
    }

    fn tensor_info(&mut self, index: u64) -> Result<TensorInfo<'a>, LoadError> {
        let name = self.name(&format_args!("the name of tensor {index}"), MAX_NAME_BYTES)?;
        let of = |field: &str| format!("the {field} of {}", tensor_name(name));
        let count = self.u32(&of("number of dimensions"))?;
        if count == 0 || count > MAX_DIMENSIONS {
            let expected = format!("1 to {MAX_DIMENSIONS}");
            return Err(self.invalid(of("number of dimensions"), count, expected));
        }
        let mut dimensions = Vec::new();
        for _ in 0..count {
            dimensions.push(self.u64(&of("dimension"))?);
        }
        let code = self.u32(&of("type"))?;
        let offset = self.u64(&of("offset"))?;
        Ok(TensorInfo { name, dimensions, code, offset })
    }

    /// Returns the place of a tensor, if it is in the file.
    fn locate(
        &self,
        info: &TensorInfo<'_>,
        start: u64,
        alignment: u64,
    ) -> Result<StoredTensor, LoadError> {
        let TensorInfo { name, dimensions, code, offset } = info;
        let of = |field: &str| format!("the {field} of {}", tensor_name(name));
        let dtype = self.dtype(*code, of("type"))?;
        if !offset.is_multiple_of(alignment) {
            let expected = format!("a multiple of the alignment, {alignment}");
            return Err(self.invalid(of("offset"), offset, expected));
        }
        let absurd = || {
            let expected = "sizes above 0 that fit in memory";
            self.invalid(of("shape"), format_args!("{dimensions:?}"), expected)
        };
        let sizes: Option<Vec<usize>> =
            dimensions.iter().rev().map(|size| usize::try_from(*size).ok()).collect();
        let shape = sizes.ok_or_else(absurd)?;
        // As f32, the elements must be addressable. Afterwards no product below can overflow.
        let most =
            shape.iter().try_fold(size_of::<f32>(), |product, size| product.checked_mul(*size));
        if most.is_none_or(|bytes| bytes == 0 || isize::try_from(bytes).is_err()) {
            return Err(absurd());
        }
        let columns = shape[shape.len() - 1];
        let rows: usize = shape[..shape.len() - 1].iter().product();
        if let Dtype::Block(block) = dtype
            && !columns.is_multiple_of(block.weights())
        {
            let expected = format!("rows of whole {block} blocks of {} values", block.weights());
            return Err(self.invalid(of("row length"), columns, expected));
        }
        let length = dtype.row_bytes(columns) * rows;
        let range = start.checked_add(*offset).and_then(|start| {
            let start = usize::try_from(start).ok()?;
            let end = start.checked_add(length)?;
            (end <= self.bytes.len()).then_some(start..end)
        });
        let bytes = range.ok_or_else(|| {
            let found = format!("{length} bytes from {start} + {offset}");
            let expected = format!("a place within the file's {} bytes", self.bytes.len());
            self.truncated(of("place"), found, expected)
        })?;
        Ok(StoredTensor { dtype, shape, bytes })
    }

    fn dtype(&self, code: u32, field: String) -> Result<Dtype, LoadError> {
        let dtype = match code {
            0 => Some(Dtype::F32),
            1 => Some(Dtype::F16),
            30 => Some(Dtype::Bf16),
            _ => BlockType::ALL.into_iter().find(|block| block.code() == code).map(Dtype::Block),
        };
        dtype.ok_or_else(|| match unsupported_type(code) {
            Some(name) => {
                let supported = "floats, q4_0 to q6_k, iq4_nl, iq4_xs and mxfp4: use a Q4_K_M file \
                                 of the model, or its original safetensors";
                unsupported(self.file, field, name, supported)
            }
            None => self.invalid(field, code, "a type of ggml: is the file damaged or too new?"),
        })
    }

    fn reject_overlaps(&self, tensors: &BTreeMap<String, StoredTensor>) -> Result<(), LoadError> {
        let mut ranges: Vec<_> =
            tensors.iter().map(|(name, tensor)| (&tensor.bytes, name)).collect();
        ranges.sort_by_key(|(bytes, _)| bytes.start);
        let overlap = ranges.windows(2).find(|pair| pair[0].0.end > pair[1].0.start);
        let Some([(_, one), (_, other)]) = overlap else { return Ok(()) };
        let field = format!("the place of {}", tensor_name(other));
        let found = format!("inside {}", tensor_name(one));
        Err(self.invalid(field, found, "bytes of its own"))
    }
}

/// Formats the name of an option only if an error needs it.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&option(self.0))
    }
}

/// Returns the name of a tensor type of ggml that is not supported.
fn unsupported_type(code: u32) -> Option<&'static str> {
    Some(match code {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return None,
    })
}
