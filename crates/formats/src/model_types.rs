//! The types of a model in memory, and of its matrices in a file.

use crate::architecture::{Architecture, BlockHeads, DraftHeads};
use crate::checkpoint::{Dtype, LoadError, TensorSource};
use crate::mix::Mix;
use crate::tensor::{ExpertTensor, LayerTensor, Tensor};
use crate::weight_type::{CacheType, WeightType};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// The types that a model's matrices are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightTypes {
    /// One type for all matrices.
    All(WeightType),
    /// Each matrix has the type that a mix of llama.cpp gives it.
    Mix(Mix),
}

impl WeightTypes {
    /// All types, then all mixes.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let types = WeightType::all().into_iter().map(Self::All);
        types.chain(Mix::ALL.map(Self::Mix)).collect()
    }

    /// Whether matrices have block types.
    #[must_use]
    pub fn has_blocks(self) -> bool {
        matches!(self, Self::All(WeightType::Quantized(_)) | Self::Mix(_))
    }

    /// Returns the names of all types, as a list in words.
    fn names() -> String {
        let names: Vec<String> = Self::all().iter().map(Self::to_string).collect();
        let (last, others) = names.split_last().map_or(("", &[][..]), |(last, all)| (last, all));
        format!("{} or {last}", others.join(", "))
    }

    /// Returns the name as GGUF files use it, where int8 is `q8_0`.
    #[must_use]
    pub fn gguf_name(self) -> String {
        match self {
            Self::All(WeightType::Quantized(block_type)) => block_type.to_string(),
            other => other.to_string(),
        }
    }
}

impl From<WeightType> for WeightTypes {
    fn from(weight_type: WeightType) -> Self {
        Self::All(weight_type)
    }
}

impl From<Mix> for WeightTypes {
    fn from(mix: Mix) -> Self {
        Self::Mix(mix)
    }
}

impl fmt::Display for WeightTypes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(weight_type) => weight_type.fmt(formatter),
            Self::Mix(mix) => mix.fmt(formatter),
        }
    }
}

/// The error for an unknown name of a weight type or a mix.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a weight type; use auto, {names}", names = WeightTypes::names())]
pub struct UnknownWeightType(pub String);

impl FromStr for WeightTypes {
    type Err = UnknownWeightType;

    fn from_str(text: &str) -> Result<Self, UnknownWeightType> {
        let has_name = |types: &Self| text == types.to_string() || text == types.gguf_name();
        let found = Self::all().into_iter().find(has_name);
        found.ok_or_else(|| UnknownWeightType(text.to_owned()))
    }
}

impl FromStr for WeightType {
    type Err = UnknownWeightType;

    fn from_str(text: &str) -> Result<Self, UnknownWeightType> {
        match text.parse()? {
            WeightTypes::All(weight_type) => Ok(weight_type),
            WeightTypes::Mix(_) => Err(UnknownWeightType(text.to_owned())),
        }
    }
}

/// The types of a model in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModelTypes {
    /// The types of matrices. By default each matrix has the smallest type that loses nothing.
    pub weights: Option<WeightTypes>,
    /// The type of cached keys and values. By default [`CacheType::for_weights`].
    pub cache: Option<CacheType>,
}

impl<T: Into<WeightTypes>> From<T> for ModelTypes {
    fn from(weights: T) -> Self {
        Self { weights: Some(weights.into()), cache: None }
    }
}

/// The type of each matrix of a model. All devices, and the writer of GGUF files, ask it.
#[derive(Clone, Debug)]
pub struct MatrixTypes(HashMap<Tensor, WeightType>);

impl MatrixTypes {
    /// Chooses the types of a model's matrices. Without `types`, stored blocks stay as they are,
    /// and floats have the smallest type that loses nothing for any of them.
    ///
    /// # Errors
    /// When a matrix is missing, or has the wrong shape or an unsupported type.
    pub fn of_model(
        types: Option<WeightTypes>,
        model: &Architecture,
        source: &dyn TensorSource,
    ) -> Result<Self, LoadError> {
        let matrices = model.matrices().map(|tensor| (tensor, model.shape(tensor)));
        let mut chosen = match types {
            None => Self::stored(matrices, source)?,
            Some(WeightTypes::All(weight_type)) => {
                Self(matrices.map(|(tensor, _)| (tensor, weight_type)).collect())
            }
            Some(WeightTypes::Mix(mix)) => {
                let mixed = |(tensor, shape): (_, Vec<usize>)| {
                    (tensor, mix.of_model(model, tensor, shape[1]))
                };
                Self(matrices.map(mixed).collect())
            }
        };
        chosen.make_projections_uniform(model);
        chosen.make_expansions_float(model, source)?;
        Ok(chosen)
    }

    /// Returns the types of all matrices.
    pub fn all(&self) -> impl Iterator<Item = WeightType> {
        self.0.values().copied()
    }

    /// Makes the expansions of compressed keys and values floats: devices transpose those of keys,
    /// which would quantise them a second time in other blocks. No 16-bit type holds the values of
    /// stored blocks exactly.
    fn make_expansions_float(
        &mut self,
        model: &Architecture,
        source: &dyn TensorSource,
    ) -> Result<(), LoadError> {
        let is_expansion =
            |tensor: &Tensor| matches!(tensor, Tensor::Layer(_, LayerTensor::LatentUp));
        for (tensor, weight_type) in self.0.iter_mut().filter(|(tensor, _)| is_expansion(tensor)) {
            if matches!(weight_type, WeightType::Quantized(_)) {
                let stored = source.rows(*tensor, &model.shape(*tensor))?.block_type();
                *weight_type = match stored {
                    Some(_) => WeightType::F32,
                    None => source.float_type()?,
                };
            }
        }
        Ok(())
    }

    /// Chooses the types of the matrices of draft heads, without those of their prefix layer.
    ///
    /// # Errors
    /// As [`Self::of_model`].
    pub fn of_heads(
        types: Option<WeightTypes>,
        heads: &DraftHeads,
        source: &dyn TensorSource,
    ) -> Result<Self, LoadError> {
        let matrices = heads.tensors().filter_map(|tensor| match tensor {
            Tensor::DraftHead(head, part) => Some((tensor, part, heads.shape(head, part))),
            _ => None,
        });
        Ok(match types {
            None => Self::stored(matrices.map(|(tensor, _, shape)| (tensor, shape)), source)?,
            Some(WeightTypes::All(weight_type)) => {
                Self(matrices.map(|(tensor, ..)| (tensor, weight_type)).collect())
            }
            Some(WeightTypes::Mix(mix)) => {
                let mixed = |(tensor, part, shape): (_, _, Vec<usize>)| {
                    (tensor, mix.of_draft_head(part, shape[1]))
                };
                Self(matrices.map(mixed).collect())
            }
        })
    }

    /// Chooses the types of the matrices of the heads after a block drafter's layers.
    ///
    /// # Errors
    /// As [`Self::of_model`].
    pub fn of_block_heads(
        types: Option<WeightTypes>,
        heads: &BlockHeads,
        source: &dyn TensorSource,
    ) -> Result<Self, LoadError> {
        let matrices = heads.matrices().map(|part| (part, heads.shape(part)));
        let named = |(part, shape)| (Tensor::BlockHead(part), shape);
        Ok(match types {
            None => Self::stored(matrices.map(named), source)?,
            Some(WeightTypes::All(weight_type)) => {
                Self(matrices.map(|(part, _)| (Tensor::BlockHead(part), weight_type)).collect())
            }
            Some(WeightTypes::Mix(mix)) => {
                let mixed = |(part, shape): (_, Vec<usize>)| {
                    (Tensor::BlockHead(part), mix.of_block_head(part, shape[1]))
                };
                Self(matrices.map(mixed).collect())
            }
        })
    }

    fn stored(
        matrices: impl Iterator<Item = (Tensor, Vec<usize>)>,
        source: &dyn TensorSource,
    ) -> Result<Self, LoadError> {
        let float_type = source.float_type()?;
        let stored = |(tensor, shape): (Tensor, Vec<usize>)| {
            let block_type = source.rows(tensor, &shape)?.block_type();
            Ok((tensor, block_type.map_or(float_type, WeightType::Quantized)))
        };
        Ok(Self(matrices.map(stored).collect::<Result<_, LoadError>>()?))
    }

    /// Makes projections f32 that mix floats and blocks. Kernels read activations either as floats
    /// or quantised, and f32 holds both exactly.
    fn make_projections_uniform(&mut self, model: &Architecture) {
        for (index, layer) in model.layers.iter().enumerate() {
            for parts in LayerTensor::PROJECTIONS {
                self.make_uniform(parts.iter().map(|part| Tensor::Layer(index, *part)));
            }
            for expert in 0..layer.experts.map_or(0, |experts| experts.n_experts) {
                for parts in ExpertTensor::PROJECTIONS {
                    self.make_uniform(
                        parts.iter().map(|part| Tensor::Expert(index, expert, *part)),
                    );
                }
            }
        }
    }

    fn make_uniform(&mut self, projection: impl Iterator<Item = Tensor>) {
        // A layer may have no gate.
        let tensors: Vec<Tensor> =
            projection.filter(|tensor| self.0.contains_key(tensor)).collect();
        let is_quantised = |tensor: &&Tensor| matches!(self.of(**tensor), WeightType::Quantized(_));
        let quantised = tensors.iter().filter(is_quantised).count();
        if (1..tensors.len()).contains(&quantised) {
            self.0.extend(tensors.into_iter().map(|tensor| (tensor, WeightType::F32)));
        }
    }

    /// Returns the type of a tensor. Tensors that are no matrices are f32.
    #[must_use]
    pub fn of(&self, tensor: Tensor) -> WeightType {
        self.0.get(&tensor).copied().unwrap_or(WeightType::F32)
    }

    /// Returns the names of all types, that of the most weights first, such as `q4_0 and bf16`.
    #[must_use]
    pub fn names(&self, model: &Architecture) -> String {
        let mut weights: Vec<(WeightType, usize)> = Vec::new();
        for (&tensor, &weight_type) in &self.0 {
            let size = model.shape(tensor).iter().product::<usize>();
            match weights.iter_mut().find(|(other, _)| *other == weight_type) {
                Some((_, total)) => *total += size,
                None => weights.push((weight_type, size)),
            }
        }
        let mut names: Vec<_> =
            weights.into_iter().map(|(kind, size)| (size, kind.to_string())).collect();
        names.sort_by(|one, other| other.cmp(one));
        names.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(" and ")
    }

    /// Returns the mean size of a weight of a model's matrices in a file, in bits.
    #[must_use]
    pub fn bits_per_weight(&self, model: &Architecture) -> f64 {
        let (mut bytes, mut weights) = (0, 0);
        for (&tensor, &weight_type) in &self.0 {
            let shape = model.shape(tensor);
            if let [outputs, inputs] = shape[..] {
                weights += outputs * inputs;
                bytes += outputs * Dtype::from(weight_type).row_bytes(inputs);
            }
        }
        8.0 * bytes as f64 / weights as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockType;
    use crate::checkpoint::random::{RandomTensors, example_config};

    #[test]
    fn every_name_is_that_of_one_choice() {
        for types in WeightTypes::all() {
            assert_eq!(types.to_string().parse(), Ok(types));
            assert_eq!(types.gguf_name().parse(), Ok(types));
        }
        assert_eq!("q8_0".parse(), Ok(WeightType::INT8));
        assert!("q4_k_m".parse::<WeightType>().is_err());
        let error = "q4".parse::<WeightTypes>().unwrap_err().to_string();
        assert!(error.ends_with("q5_k_s or q5_k_m"), "{error}");
    }

    #[test]
    fn a_projection_of_floats_and_blocks_is_f32() {
        let tensor = |part| Tensor::Layer(0, part);
        let q4_k = WeightType::Quantized(BlockType::Q4_K);
        let mut types = MatrixTypes(HashMap::from([
            (tensor(LayerTensor::Query), WeightType::Bf16),
            (tensor(LayerTensor::Key), q4_k),
            (tensor(LayerTensor::Value), WeightType::Bf16),
            (tensor(LayerTensor::Gate), q4_k),
            (tensor(LayerTensor::Up), WeightType::INT8),
            (tensor(LayerTensor::Output), WeightType::Bf16),
        ]));
        types.make_projections_uniform(&example_config().architecture());
        for part in [LayerTensor::Query, LayerTensor::Key, LayerTensor::Value] {
            assert_eq!(types.of(tensor(part)), WeightType::F32);
        }
        let others = [LayerTensor::Gate, LayerTensor::Up, LayerTensor::Output];
        let others = others.map(|part| types.of(tensor(part)));
        assert_eq!(others, [q4_k, WeightType::INT8, WeightType::Bf16]);
    }

    #[test]
    fn bits_per_weight_count_whole_blocks() {
        let model = example_config().architecture();
        let source = RandomTensors::new(&model, 1);
        let bits = |types| {
            MatrixTypes::of_model(Some(types), &model, &source).unwrap().bits_per_weight(&model)
        };
        assert_eq!(bits(WeightType::Bf16.into()), 16.0);
        // Rows of 48 and 100 inputs are one block of 256.
        assert!(bits(WeightType::Quantized(BlockType::Q4_K).into()) > 11.0);
    }
}
