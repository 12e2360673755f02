//! Finds the parts of quantised matrices by the names and shapes that each format gives them.

use super::{Groups, Part, QuantizedMatrix, Quants, ScaleType, Scales, Words, Zeros};
use crate::checkpoint::Location;
use crate::checkpoint::huggingface::Shards;
use crate::checkpoint::row_layout::RowLayout;
use crate::checkpoint::safetensors_file::StoredTensor;
use crate::checkpoint::stored_names::StoredAs;
use crate::config::{Quantization, ScaleSharing};
use crate::load_error::LoadError;
use safetensors::Dtype as StoredDtype;

/// A quantised matrix in a checkpoint.
pub(crate) struct LocatedMatrix {
    pub(crate) location: Location,
    /// The names of its parts.
    pub(crate) names: Vec<String>,
}

/// Names that a format may give to the scales of a matrix, after the matrix's module. Activations
/// are not quantised, so the others are not needed.
const SCALES: [&str; 2] = ["weight_scale_inv", "weight_scale"];
const ACTIVATION_SCALES: [&str; 3] = ["input_scale", "activation_scale", "output_scale"];

impl Shards<'_> {
    /// Finds the parts of a matrix, if it is stored in this format; `None` if it is not quantised.
    /// Fails when a part is missing, has the wrong type or shape, or contains something invalid.
    pub(crate) fn locate_quantized(
        &self,
        format: Quantization,
        stored_as: &StoredAs,
    ) -> Result<Option<LocatedMatrix>, LoadError> {
        if format == Quantization::Mxfp4 {
            return self.locate_mxfp4(stored_as);
        }
        let plain = stored_as.expert.is_none() && stored_as.layout.transposed.is_none();
        let Some(module) = stored_as.name.strip_suffix(".weight").filter(|_| plain) else {
            return Ok(None);
        };
        let [rows, columns] = stored_as.shape[..] else { return Ok(None) };
        let mut parts = Parts { shards: self, module, names: Vec::new() };
        let is_stored = |part: &str| self.find(&format!("{module}.{part}")).is_some();
        let matrix = match format {
            Quantization::Fp8 { block } => {
                let sharing = block.map_or(ScaleSharing::Matrix, ScaleSharing::Blocks);
                parts.bytes(true, sharing, [rows, columns])?
            }
            Quantization::Bytes { floats, scales } => {
                parts.bytes(floats, scales, [rows, columns])?
            }
            Quantization::Packed { bits, group_size, symmetric } if is_stored("weight_packed") => {
                Some(parts.packed(bits, group_size, symmetric, [rows, columns])?)
            }
            Quantization::Awq { group_size } if is_stored("qweight") => {
                Some(parts.awq(group_size, [rows, columns])?)
            }
            Quantization::Gptq { bits, group_size, zeros_less_one, ordered_by_activation }
                if is_stored("qweight") =>
            {
                // Version 1 stores zero points less one, and a zero point of 0 as −1 with a borrow
                // from the next integer of its word. So ones are added to whole words, as GPTQModel
                // does.
                let added = match (zeros_less_one, bits) {
                    (false, _) => 0,
                    (true, 4) => 0x1111_1111,
                    (true, _) => 0x0101_0101,
                };
                let matrix = parts.gptq(bits, group_size, added, [rows, columns])?;
                if ordered_by_activation && !is_stored("g_idx") {
                    return Err(parts.missing("g_idx"));
                }
                Some(matrix)
            }
            _ => None,
        };
        let Some(matrix) = matrix else { return Ok(None) };
        self.finish(matrix, parts.names, columns, stored_as.layout)
    }

    /// Finds the experts of gpt-oss. Their outputs are rows, whereas unquantised ones are columns.
    fn locate_mxfp4(&self, stored_as: &StoredAs) -> Result<Option<LocatedMatrix>, LoadError> {
        let (Some([expert, n_experts]), Some(_)) = (stored_as.expert, stored_as.layout.transposed)
        else {
            return Ok(None);
        };
        let [_, columns, rows] = stored_as.shape[..] else { return Ok(None) };
        let name = &stored_as.name;
        let has_blocks = self.find(&format!("{name}_blocks")).is_some();
        if !has_blocks || !columns.is_multiple_of(32) {
            return Ok(None);
        }
        let names = vec![format!("{name}_blocks"), format!("{name}_scales")];
        let of_expert = |name: &str, shape: &[usize]| {
            let (mut part, _) = self.part(name, &[StoredDtype::U8], shape)?;
            let size = part.bytes.len() / n_experts;
            let start = part.bytes.start + expert * size;
            part.bytes = start..start + size;
            Ok::<_, LoadError>(part)
        };
        let blocks = columns / 32;
        let matrix = QuantizedMatrix {
            quants: Quants::TinyFloats(of_expert(&names[0], &[n_experts, rows, blocks, 16])?),
            scales: Scales {
                part: of_expert(&names[1], &[n_experts, rows, blocks])?,
                kind: ScaleType::Power,
                rows: 1,
                strides: [blocks, 1],
            },
            zeros: Zeros::All(0),
            groups: Groups { size: 32, table: None },
        };
        let layout = RowLayout { transposed: None, ..stored_as.layout };
        self.finish(matrix, names, columns, layout)
    }

    /// Checks the scales, and returns the location of a matrix with this number of columns.
    fn finish(
        &self,
        matrix: QuantizedMatrix,
        names: Vec<String>,
        columns: usize,
        layout: RowLayout,
    ) -> Result<Option<LocatedMatrix>, LoadError> {
        // The largest product of a 4-bit float is 6 times its scale.
        let largest = if matches!(matrix.quants, Quants::TinyFloats(_)) { 6.0 } else { 1.0 };
        let mut scales = matrix.scales.all(self.files);
        if let Some(index) = scales.position(|scale| !(scale * largest).is_finite()) {
            let found = matrix.scales.all(self.files).nth(index).unwrap_or(f32::NAN) * largest;
            let part = &matrix.scales.part;
            let is_scale = |name: &&String| name.contains("scale");
            let tensor = names.iter().find(is_scale).cloned().unwrap_or_default();
            let file = self.files[part.file].path().to_owned();
            return Err(LoadError::NonFinite { file, tensor, index, found });
        }
        let part = match &matrix.quants {
            Quants::Floats(part) | Quants::Integers(part) | Quants::TinyFloats(part) => part,
            Quants::Words(words) => &words.part,
        };
        let Part { file, bytes } = part.clone();
        let dtype = matrix.exact_type(self.files, columns);
        let quantized = Some(Box::new(matrix));
        Ok(Some(LocatedMatrix {
            location: Location { file, bytes, dtype, layout, quantized, assembled: None },
            names,
        }))
    }

    /// Finds a stored tensor with one of these types and with this shape.
    fn part(
        &self,
        name: &str,
        dtypes: &[StoredDtype],
        shape: &[usize],
    ) -> Result<(Part, StoredDtype), LoadError> {
        let (file, stored) = self.find(name).ok_or_else(|| self.missing_part(name))?;
        let path = || self.files[file].path().to_owned();
        if !dtypes.contains(&stored.dtype) {
            let (found, expected) = (stored.dtype.to_string(), format!("{dtypes:?}"));
            let tensor = name.to_owned();
            return Err(LoadError::PartDtype { file: path(), tensor, expected, found });
        }
        if stored.shape != shape {
            let (expected, found) = (shape.to_vec(), stored.shape.clone());
            let tensor = name.to_owned();
            return Err(LoadError::Shape { file: path(), tensor, expected, found });
        }
        Ok((Part { file, bytes: stored.bytes.clone() }, stored.dtype))
    }

    fn missing_part(&self, name: &str) -> LoadError {
        let hint = "it is a part of a quantised matrix: the checkpoint is incomplete, or its \
                    `quantization_config` belongs to another one";
        self.missing_with(name.to_owned(), hint)
    }
}

struct Parts<'a> {
    shards: &'a Shards<'a>,
    /// The name that all parts begin with.
    module: &'a str,
    /// The names of the parts that have been found.
    names: Vec<String>,
}

impl Parts<'_> {
    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.module)
    }

    fn missing(&self, part: &str) -> LoadError {
        self.shards.missing_part(&self.name(part))
    }

    fn stored(&self, part: &str) -> Option<&StoredTensor> {
        Some(self.shards.find(&self.name(part))?.1)
    }

    fn part(
        &mut self,
        part: &str,
        dtypes: &[StoredDtype],
        shape: &[usize],
    ) -> Result<(Part, StoredDtype), LoadError> {
        let name = self.name(part);
        let found = self.shards.part(&name, dtypes, shape)?;
        self.names.push(name);
        Ok(found)
    }

    fn words(&mut self, part: &str, shape: [usize; 2]) -> Result<Part, LoadError> {
        Ok(self.part(part, &[StoredDtype::I32], &shape)?.0)
    }

    fn scales(
        &mut self,
        part: &str,
        shape: &[usize],
        rows: usize,
        strides: [usize; 2],
    ) -> Result<Scales, LoadError> {
        use StoredDtype as D;
        let (part, dtype) = self.part(part, &[D::F16, D::BF16, D::F32, D::F8_E8M0], shape)?;
        let kind = match dtype {
            D::F16 => ScaleType::F16,
            D::BF16 => ScaleType::Bf16,
            D::F8_E8M0 => ScaleType::Power,
            _ => ScaleType::F32,
        };
        Ok(Scales { part, kind, rows, strides })
    }

    /// Finds quants of 8 bits, one after another; `None` if the matrix is not stored as such.
    fn bytes(
        &mut self,
        floats: bool,
        sharing: ScaleSharing,
        [rows, columns]: [usize; 2],
    ) -> Result<Option<QuantizedMatrix>, LoadError> {
        let dtype = if floats { StoredDtype::F8_E4M3 } else { StoredDtype::I8 };
        if self.stored("weight").is_none_or(|stored| stored.dtype != dtype) {
            return Ok(None);
        }
        let (part, _) = self.part("weight", &[dtype], &[rows, columns])?;
        let found = SCALES.into_iter().find(|name| self.stored(name).is_some());
        let scale = found.ok_or_else(|| self.missing(SCALES[0]))?;
        let stored = self.stored(scale).map(|stored| stored.shape.clone()).unwrap_or_default();
        // One scale has no dimension that says so, whatever the configuration says of other
        // matrices.
        let sharing = if stored.is_empty() { ScaleSharing::Matrix } else { sharing };
        let whole = usize::MAX;
        let (shape, size, strides) = match sharing {
            ScaleSharing::Matrix if stored.is_empty() => (vec![], [whole, whole], [0, 0]),
            ScaleSharing::Matrix if stored.len() == 2 => (vec![1, 1], [whole, whole], [0, 0]),
            ScaleSharing::Matrix => (vec![1], [whole, whole], [0, 0]),
            ScaleSharing::Outputs if stored.len() == 1 => (vec![rows], [1, whole], [1, 0]),
            ScaleSharing::Outputs => (vec![rows, 1], [1, whole], [1, 0]),
            ScaleSharing::Blocks([of_rows, of_columns]) => {
                let shape = [rows.div_ceil(of_rows), columns.div_ceil(of_columns)];
                (shape.to_vec(), [of_rows, of_columns], [shape[1], 1])
            }
        };
        let scales = self.scales(scale, &shape, size[0], strides)?;
        let unused = ACTIVATION_SCALES.map(|name| self.name(name));
        self.names.extend(unused);
        let quants = if floats { Quants::Floats(part) } else { Quants::Integers(part) };
        let groups = Groups { size: size[1], table: None };
        Ok(Some(QuantizedMatrix { quants, scales, zeros: Zeros::All(0), groups }))
    }

    /// Finds the parts that compressed-tensors writes as `pack-quantized`.
    fn packed(
        &mut self,
        bits: usize,
        group_size: Option<usize>,
        symmetric: bool,
        [rows, columns]: [usize; 2],
    ) -> Result<QuantizedMatrix, LoadError> {
        let per_word = 32 / bits;
        let size = group_size.unwrap_or(usize::MAX);
        let groups = columns.div_ceil(size);
        let words = columns.div_ceil(per_word);
        let quants = self.words("weight_packed", [rows, words])?;
        let words = |part, along_rows, strides| Words {
            part,
            bits,
            along_rows,
            strides,
            interleaved: false,
            added: 0,
        };
        let quants = words(quants, false, [columns.div_ceil(per_word), 1]);
        let scales = self.scales("weight_scale", &[rows, groups], 1, [groups, 1])?;
        let zeros = match symmetric {
            true => Zeros::All(1 << (bits - 1)),
            false => {
                let shape = [rows.div_ceil(per_word), groups];
                Zeros::Stored(words(self.words("weight_zero_point", shape)?, true, [groups, 1]))
            }
        };
        self.check_shape([rows, columns])?;
        let groups = Groups { size, table: None };
        Ok(QuantizedMatrix { quants: Quants::Words(quants), scales, zeros, groups })
    }

    /// Checks the shape that compressed-tensors stores next to a packed matrix.
    fn check_shape(&mut self, expected: [usize; 2]) -> Result<(), LoadError> {
        const PART: &str = "weight_shape";
        let (part, dtype) = self.part(PART, &[StoredDtype::I64, StoredDtype::I32], &[2])?;
        let bytes = part.bytes(self.shards.files);
        let found: Vec<usize> = match dtype {
            StoredDtype::I64 => {
                let sizes = bytes.as_chunks::<8>().0.iter().map(|size| i64::from_le_bytes(*size));
                sizes.map(|size| usize::try_from(size).unwrap_or(0)).collect()
            }
            _ => {
                let sizes = bytes.as_chunks::<4>().0.iter().map(|size| i32::from_le_bytes(*size));
                sizes.map(|size| usize::try_from(size).unwrap_or(0)).collect()
            }
        };
        if found == expected {
            return Ok(());
        }
        let file = self.shards.files[part.file].path().to_owned();
        let (tensor, expected) = (self.name("weight"), expected.to_vec());
        Err(LoadError::Shape { file, tensor, expected, found })
    }

    /// Finds the parts of AutoAWQ's GEMM layout, in which a word has quants of successive outputs.
    fn awq(
        &mut self,
        group_size: Option<usize>,
        [rows, columns]: [usize; 2],
    ) -> Result<QuantizedMatrix, LoadError> {
        let size = group_size.unwrap_or(usize::MAX);
        let (groups, row_words) = (columns.div_ceil(size), rows.div_ceil(8));
        let words = |part| Words {
            part,
            bits: 4,
            along_rows: true,
            strides: [1, row_words],
            interleaved: true,
            added: 0,
        };
        let quants = Quants::Words(words(self.words("qweight", [columns, row_words])?));
        let zeros = Zeros::Stored(words(self.words("qzeros", [groups, row_words])?));
        let scales = self.scales("scales", &[groups, rows], 1, [1, rows])?;
        let groups = Groups { size, table: None };
        Ok(QuantizedMatrix { quants, scales, zeros, groups })
    }

    /// Finds the parts that AutoGPTQ and GPTQModel write.
    fn gptq(
        &mut self,
        bits: usize,
        group_size: Option<usize>,
        added: u32,
        [rows, columns]: [usize; 2],
    ) -> Result<QuantizedMatrix, LoadError> {
        let per_word = 32 / bits;
        let size = group_size.unwrap_or(usize::MAX);
        let (groups, row_words) = (columns.div_ceil(size), rows.div_ceil(per_word));
        let quants = Words {
            part: self.words("qweight", [columns.div_ceil(per_word), rows])?,
            bits,
            along_rows: false,
            strides: [1, rows],
            interleaved: false,
            added: 0,
        };
        let zeros = Words {
            part: self.words("qzeros", [groups, row_words])?,
            bits,
            along_rows: true,
            strides: [1, row_words],
            interleaved: false,
            added,
        };
        let scales = self.scales("scales", &[groups, rows], 1, [1, rows])?;
        let table = match self.stored("g_idx") {
            None => None,
            Some(_) => self.group_table(columns, groups, size)?,
        };
        let (quants, zeros) = (Quants::Words(quants), Zeros::Stored(zeros));
        Ok(QuantizedMatrix { quants, scales, zeros, groups: Groups { size, table } })
    }

    /// Finds the groups of the columns; `None` if they follow from the size of a group.
    fn group_table(
        &mut self,
        columns: usize,
        groups: usize,
        size: usize,
    ) -> Result<Option<Part>, LoadError> {
        const PART: &str = "g_idx";
        let (table, _) = self.part(PART, &[StoredDtype::I32], &[columns])?;
        let numbers = table.bytes(self.shards.files).as_chunks::<4>().0.iter();
        let numbers = numbers.map(|bytes| i32::from_le_bytes(*bytes));
        let is_group = |group: i32| usize::try_from(group).is_ok_and(|group| group < groups);
        if let Some((index, group)) =
            numbers.clone().enumerate().find(|(_, group)| !is_group(*group))
        {
            let (file, tensor) = (self.shards.files[table.file].path().to_owned(), self.name(PART));
            return Err(LoadError::GroupIndex { file, tensor, index, found: group, groups });
        }
        let mut ordered = numbers.enumerate();
        let follows = ordered.all(|(column, group)| group as usize == column / size);
        Ok((!follows).then_some(table))
    }
}
