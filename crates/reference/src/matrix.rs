//! Row-major matrices with the values that a weight type can hold.

use forerun_formats::blocks::quantize;
use forerun_formats::checkpoint::TensorRows;
use forerun_formats::{BlockType, LoadError, WeightType};
use half::{bf16, f16};

/// A matrix `[outputs, inputs]`, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    weight_type: WeightType,
    inputs: usize,
    values: Values,
}

#[derive(Clone, Debug, PartialEq)]
enum Values {
    Floats(Vec<f32>),
    Blocks(BlockType, Vec<u8>),
}

/// One row of a matrix.
pub(crate) enum MatrixRow<'a> {
    Floats(&'a [f32]),
    Blocks(BlockType, &'a [u8]),
}

impl Matrix {
    /// Rounds or quantises row-major weights. Rows of a block type are padded with zeros to whole
    /// blocks.
    #[must_use]
    pub fn new(weight_type: WeightType, mut weights: Vec<f32>, inputs: usize) -> Self {
        let round = |weights: &mut Vec<f32>, round: fn(f32) -> f32| {
            weights.iter_mut().for_each(|weight| *weight = round(*weight));
        };
        match weight_type {
            WeightType::F32 => {}
            WeightType::Bf16 => round(&mut weights, |weight| bf16::from_f32(weight).to_f32()),
            WeightType::F16 => round(&mut weights, |weight| f16::from_f32(weight).to_f32()),
            WeightType::Quantized(block_type) => {
                let mut bytes = Vec::new();
                for row in weights.chunks(inputs) {
                    let mut row = row.to_vec();
                    row.resize(inputs.next_multiple_of(block_type.weights()), 0.0);
                    quantize(block_type, &row, None, &mut bytes);
                }
                return Self::from_blocks(block_type, bytes, inputs);
            }
        }
        Self { weight_type, inputs, values: Values::Floats(weights) }
    }

    /// Reads a matrix. Stored blocks of this type stay as they are. Fails if a value is not finite.
    pub(crate) fn read(rows: &TensorRows<'_>, weight_type: WeightType) -> Result<Self, LoadError> {
        match rows.block_type() {
            Some(block_type) if weight_type == WeightType::Quantized(block_type) => {
                let stored = |row| Ok(rows.stored(row)?.unwrap_or_default());
                let blocks = (0..rows.len()).map(stored).collect::<Result<Vec<_>, LoadError>>()?;
                Ok(Self::from_blocks(block_type, blocks.concat(), rows.columns()))
            }
            _ => Ok(Self::new(weight_type, rows.read_all()?, rows.columns())),
        }
    }

    /// Returns the type.
    #[must_use]
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// Creates a matrix from the stored blocks of its rows. Each row has whole blocks.
    #[must_use]
    pub fn from_blocks(block_type: BlockType, bytes: Vec<u8>, inputs: usize) -> Self {
        let weight_type = WeightType::Quantized(block_type);
        Self { weight_type, inputs, values: Values::Blocks(block_type, bytes) }
    }

    /// Returns the number of inputs.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the number of outputs.
    #[must_use]
    pub fn outputs(&self) -> usize {
        match &self.values {
            Values::Floats(values) => values.len() / self.inputs,
            Values::Blocks(block_type, bytes) => bytes.len() / self.row_bytes(*block_type),
        }
    }

    /// Returns the weights of an output: `[inputs]`.
    #[must_use]
    pub fn weights(&self, output: usize) -> Vec<f32> {
        match self.row(output) {
            MatrixRow::Floats(row) => row.to_vec(),
            MatrixRow::Blocks(block_type, bytes) => {
                let mut row = vec![0.0; self.inputs.next_multiple_of(block_type.weights())];
                block_type.dequantize(bytes, &mut row);
                row.truncate(self.inputs);
                row
            }
        }
    }

    /// Returns some outputs as they are, in the given order.
    pub(crate) fn select(&self, outputs: impl Iterator<Item = usize>) -> Self {
        let values = match &self.values {
            Values::Floats(values) => {
                let row = |output| &values[output * self.inputs..][..self.inputs];
                Values::Floats(outputs.flat_map(row).copied().collect())
            }
            Values::Blocks(block_type, bytes) => {
                let size = self.row_bytes(*block_type);
                let row = |output| &bytes[output * size..][..size];
                Values::Blocks(*block_type, outputs.flat_map(row).copied().collect())
            }
        };
        Self { values, ..*self }
    }

    pub(crate) fn row(&self, output: usize) -> MatrixRow<'_> {
        match &self.values {
            Values::Floats(values) => {
                MatrixRow::Floats(&values[output * self.inputs..][..self.inputs])
            }
            Values::Blocks(block_type, bytes) => {
                let size = self.row_bytes(*block_type);
                MatrixRow::Blocks(*block_type, &bytes[output * size..][..size])
            }
        }
    }

    fn row_bytes(&self, block_type: BlockType) -> usize {
        self.inputs.div_ceil(block_type.weights()) * block_type.bytes()
    }
}
