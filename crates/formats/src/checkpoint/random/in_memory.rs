//! Random tensors without files, of any architecture.

use super::random_tensor::Normal;
use crate::architecture::Architecture;
use crate::block_type::BlockType;
use crate::blocks::quantize;
use crate::checkpoint::tensor_rows::TensorRows;
use crate::checkpoint::weight_file::WeightFile;
use crate::checkpoint::{Dtype, TensorSource};
use crate::load_error::LoadError;
use crate::tensor::{LayerTensor, Tensor};
use crate::weight_type::WeightType;
use half::bf16;
use std::collections::{HashMap, HashSet};

/// What errors call the file of random tensors.
const RANDOM_TENSORS: &str = "random tensors";

/// Random tensors of any architecture, in memory: for tests of devices.
pub struct RandomTensors {
    tensors: HashMap<Tensor, (Vec<usize>, WeightFile)>,
}

impl RandomTensors {
    /// Creates the tensors of an architecture. They depend on the seed.
    #[must_use]
    pub fn new(architecture: &Architecture, seed: u64) -> Self {
        let tensor = |(index, tensor): (u64, Tensor)| {
            let shape = architecture.shape(tensor);
            let (mean, deviation) = match (tensor, &shape[..]) {
                (Tensor::Layer(_, part), [_]) if part.is_bias() => (0.0, 0.3),
                (Tensor::Expert(..) | Tensor::FinalNormBias | Tensor::HeadBias, [_])
                | (
                    Tensor::Layer(
                        _,
                        LayerTensor::RouterCorrection | LayerTensor::Sinks | LayerTensor::DecayBias,
                    ),
                    [_],
                ) => (0.0, 0.3),
                (Tensor::Layer(_, LayerTensor::Router), _) => (0.0, 0.4),
                (Tensor::Layer(_, LayerTensor::DecayRate), _) => (-1.5, 1.0),
                (_, [_]) => (1.0, 0.1),
                (
                    Tensor::Embedding
                    | Tensor::Positions
                    | Tensor::TokenTypes
                    | Tensor::LayerInputs
                    | Tensor::MaskEmbeddings
                    | Tensor::MaskFeatures,
                    _,
                ) => (0.0, 1.0),
                (_, shape) => (0.0, 1.0 / (shape.last().copied().unwrap_or(1) as f32).sqrt()),
            };
            let state = seed.wrapping_add(index).wrapping_mul(0x2545_f491_4f6c_dd1d);
            let mut normal = Normal { state };
            let values = (0..shape.iter().product()).map(|_| mean + deviation * normal.next());
            let bytes = values.flat_map(f32::to_le_bytes).collect();
            (tensor, (shape, WeightFile::from_bytes(RANDOM_TENSORS.into(), bytes)))
        };
        Self { tensors: (0..).zip(architecture.tensors()).map(tensor).collect() }
    }
}

impl TensorSource for RandomTensors {
    fn has(&self, tensor: Tensor) -> bool {
        self.tensors.contains_key(&tensor)
    }

    fn rows(&self, tensor: Tensor, _shape: &[usize]) -> Result<TensorRows<'_>, LoadError> {
        let missing = || LoadError::MissingTensor {
            file: RANDOM_TENSORS.into(),
            tensor: tensor.to_string(),
            hint: "the architecture does not have it",
        };
        let (shape, file) = self.tensors.get(&tensor).ok_or_else(missing)?;
        let bytes = 0..file.bytes().len();
        Ok(TensorRows::plain(file, tensor.to_string(), bytes, Dtype::F32, shape))
    }

    fn float_type(&self) -> Result<WeightType, LoadError> {
        Ok(WeightType::F32)
    }
}

/// Tensors of any architecture whose matrices begin with the same random weights, so that models of
/// billions of weights are made at once: for measurements.
pub struct RepeatedTensors {
    tensors: HashSet<Tensor>,
    matrices: WeightFile,
    vectors: WeightFile,
    dtype: Dtype,
}

impl RepeatedTensors {
    /// The number of different weights.
    const WEIGHTS: usize = 1 << 20;

    /// Creates the tensors of an architecture: matrices in blocks of a type, or bf16, and vectors of
    /// ones.
    #[must_use]
    pub fn new(architecture: &Architecture, block_type: Option<BlockType>) -> Self {
        let mut normal = Normal { state: 5 };
        let weights: Vec<f32> = (0..Self::WEIGHTS).map(|_| 0.02 * normal.next()).collect();
        let (mut bytes, dtype) = (Vec::new(), block_type.map_or(Dtype::Bf16, Dtype::Block));
        match block_type {
            Some(block_type) => quantize(block_type, &weights, None, &mut bytes),
            None => {
                let weights = weights.into_iter().map(bf16::from_f32);
                bytes.extend(weights.flat_map(bf16::to_le_bytes));
            }
        }
        let (mut most_weights, mut longest) = (0, 0);
        for tensor in architecture.tensors() {
            match architecture.shape(tensor)[..] {
                [length] => longest = length.max(longest),
                ref shape => most_weights = shape.iter().product::<usize>().max(most_weights),
            }
        }
        let file = |bytes| WeightFile::from_bytes(RANDOM_TENSORS.into(), bytes);
        Self {
            tensors: architecture.tensors().collect(),
            matrices: file(bytes.repeat(most_weights.div_ceil(Self::WEIGHTS))),
            vectors: file(1.0_f32.to_le_bytes().repeat(longest)),
            dtype,
        }
    }
}

impl TensorSource for RepeatedTensors {
    fn has(&self, tensor: Tensor) -> bool {
        self.tensors.contains(&tensor)
    }

    fn rows(&self, tensor: Tensor, shape: &[usize]) -> Result<TensorRows<'_>, LoadError> {
        let (file, dtype) = match shape.len() {
            1 => (&self.vectors, Dtype::F32),
            _ => (&self.matrices, self.dtype),
        };
        let bytes = 0..file.bytes().len();
        Ok(TensorRows::plain(file, tensor.to_string(), bytes, dtype, shape))
    }

    fn float_type(&self) -> Result<WeightType, LoadError> {
        Ok(WeightType::Bf16)
    }
}
