//! The parameters of a drafter: their names and shapes in checkpoints, their initial values, and
//! their layout in the trainer.
//!
//! Medusa (arXiv 2401.10774, §2.1.1) starts its heads from zeros, so that they equal the target's
//! head, and so do those of Hydra (arXiv 2402.05109) here. The layers of EAGLE (arXiv 2401.15077)
//! and ParallelSpec (arXiv 2410.05589) start from the target's first layer, and those of DFlash
//! (arXiv 2602.06036) and DSpark (arXiv 2607.05147) from its first ones.

use super::options::TrainedDrafterKind;
use super::shape::{BlockShape, DrafterShape};
use super::target::Target;
use crate::model::{INITIAL_DEVIATION, Parameter};
use crate::ops::elementwise::inner_product;
use candle_core::{Device, Result, Tensor, Var};
use forerun_formats::checkpoint::{LayerTensor, Tensor as CheckpointTensor};
use forerun_formats::{BlockHeadTensor, Config};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Normal};
use std::collections::BTreeMap;

/// The parameters of a drafter, in the layout that the operations use.
pub(super) struct Weights {
    specs: Vec<ParameterSpec>,
    vars: BTreeMap<String, Var>,
}

/// A tensor of a checkpoint: its name, shape and values.
pub(super) type NamedTensor = (String, Vec<usize>, Vec<f32>);

/// The definition of a parameter: one or several tensors of a checkpoint, concatenated.
#[derive(Clone, Debug)]
pub(super) struct ParameterSpec {
    /// The name for [`Weights::get`].
    name: String,
    /// Names and shapes of the tensors in checkpoints.
    pub(super) tensors: Vec<(String, Vec<usize>)>,
    initial: Initial,
}

/// The initial values of a parameter.
#[derive(Clone, Debug)]
enum Initial {
    Zeros,
    Ones,
    /// Normally distributed values of this standard deviation.
    Normal(f32),
    /// Normally distributed values in rows of this width, with one standard deviation for the first
    /// half of a row and another one for the second half.
    NormalHalves(usize, [f32; 2]),
    /// Normally distributed values of this standard deviation in rows of this width, and 1 more on
    /// the diagonal, which ends with the rows.
    Identity(usize, f32),
    /// The values of these tensors of the target, concatenated.
    Target(Vec<CheckpointTensor>),
}

impl ParameterSpec {
    fn one(
        name: impl Into<String>,
        stored: impl Into<String>,
        shape: &[usize],
        initial: Initial,
    ) -> Self {
        Self { name: name.into(), tensors: vec![(stored.into(), shape.to_vec())], initial }
    }

    fn shape(&self) -> Vec<usize> {
        match &self.tensors[..] {
            [(_, shape)] => shape.clone(),
            several => vec![several.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()],
        }
    }

    /// Returns the shapes of the matrices of layers; empty for mask embeddings, which are vectors,
    /// and for DSpark's heads.
    fn matrices(&self) -> Vec<[usize; 2]> {
        let others = [MASK_EMBEDDINGS, MASK_FEATURES, MARKOV_EMBEDDINGS, MARKOV_BIAS, CONFIDENCE];
        if others.contains(&&*self.name) {
            return Vec::new();
        }
        let matrix = |(_, shape): &(String, Vec<usize>)| match shape[..] {
            [rows, columns] => Some([rows, columns]),
            _ => None,
        };
        self.tensors.iter().filter_map(matrix).collect()
    }

    fn initial_values(&self, target: &Target, random: &mut StdRng) -> Result<Vec<f32>> {
        let count: usize = self.shape().iter().product();
        let mut normal = |deviation: f32, count: usize| {
            let normal = Normal::new(0.0, deviation).map_err(candle_core::Error::wrap)?;
            Ok(normal.sample_iter(&mut *random).take(count).collect::<Vec<f32>>())
        };
        match &self.initial {
            Initial::Zeros => Ok(vec![0.0; count]),
            Initial::Ones => Ok(vec![1.0; count]),
            &Initial::Normal(deviation) => normal(deviation, count),
            &Initial::NormalHalves(width, deviations) => {
                let mut values = Vec::with_capacity(count);
                while values.len() < count {
                    for deviation in deviations {
                        values.extend(normal(deviation, width / 2)?);
                    }
                }
                Ok(values)
            }
            &Initial::Identity(width, deviation) => {
                let mut values =
                    if deviation > 0.0 { normal(deviation, count)? } else { vec![0.0; count] };
                values.iter_mut().step_by(width + 1).for_each(|value| *value += 1.0);
                Ok(values)
            }
            Initial::Target(tensors) => {
                let mut values = Vec::with_capacity(count);
                for &tensor in tensors {
                    values.extend(target.tensor(tensor)?);
                }
                Ok(values)
            }
        }
    }
}

// The names of parameters, for [`Weights::get`].
pub(super) const ATTENTION_NORM: &str = "attention_norm";
pub(super) const ATTENTION: &str = "attention";
pub(super) const MLP_NORM: &str = "mlp_norm";
pub(super) const MLP: &str = "mlp";
pub(super) const FINAL_NORM: &str = "final_norm";
pub(super) const FIRST: &str = "first";
pub(super) const FIRST_BIAS: &str = "first_bias";
pub(super) const RESIDUAL: &str = "residual";
pub(super) const RESIDUAL_BIAS: &str = "residual_bias";
pub(super) const FC: &str = "fc";
pub(super) const FC_BIAS: &str = "fc_bias";
pub(super) const CONTEXT_NORM: &str = "context_norm";
pub(super) const QUERY_NORM: &str = "query_norm";
pub(super) const KEY_NORM: &str = "key_norm";
pub(super) const MASK_EMBEDDINGS: &str = "mask_embeddings";
pub(super) const MASK_FEATURES: &str = "mask_features";
pub(super) const MARKOV_EMBEDDINGS: &str = "markov_embeddings";
pub(super) const MARKOV_BIAS: &str = "markov_bias";
pub(super) const CONFIDENCE: &str = "confidence";
pub(super) const CONFIDENCE_BIAS: &str = "confidence_bias";

/// Returns the name of a parameter of one of several layers or heads.
pub(super) fn of_layer(name: &str, layer: usize) -> String {
    format!("{name}.{layer}")
}

const ATTENTION_TENSORS: [LayerTensor; 4] =
    [LayerTensor::Query, LayerTensor::Key, LayerTensor::Value, LayerTensor::Output];
const MLP_TENSORS: [LayerTensor; 3] = [LayerTensor::Gate, LayerTensor::Up, LayerTensor::Down];

/// Root mean squares of a drafter's inputs. Masks start with the same scale, and the two halves of
/// the inputs of `fc` start with equal influence.
#[derive(Clone, Copy, Debug)]
struct RmsScales {
    embedding: f32,
    feature: f32,
}

impl RmsScales {
    /// No scales, for parameters whose initial values are not used.
    const UNKNOWN: Self = Self { embedding: 1.0, feature: 1.0 };

    /// Returns the scales of a target. Features are results of the final norm, so they have the
    /// scale of that norm's weights.
    fn of(target: &Target) -> Self {
        let rms = |values: &[f32]| (inner_product(values, values) / values.len() as f32).sqrt();
        Self { embedding: rms(target.embedding()), feature: rms(target.final_norm()) }
    }
}

/// Returns the definitions of a drafter's parameters, in the order of its forward pass. `outputs`
/// is the number of tokens that it can draft.
fn specs(
    shape: &DrafterShape,
    config: &Config,
    outputs: usize,
    scales: RmsScales,
) -> Vec<ParameterSpec> {
    let (kind, slots, hidden) = (shape.kind, shape.slots, config.hidden_size);
    if kind.has_draft_heads() {
        return (0..slots).flat_map(|head| draft_head_specs(kind, head, hidden)).collect();
    }
    if let Some(block) = &shape.block {
        return block_specs(block, config, outputs);
    }
    let mut specs = Vec::new();
    let mut masks = |name, stored, scale| {
        let initial = Initial::Normal(scale);
        specs.push(ParameterSpec::one(name, stored, &[slots, hidden], initial));
    };
    if kind.has_masks() {
        masks(MASK_EMBEDDINGS, "mask_embeddings.weight", scales.embedding);
    }
    if kind == TrainedDrafterKind::ParallelspecEagle {
        masks(MASK_FEATURES, "mask_features.weight", scales.feature);
    }
    if kind.predicts_features() {
        let deviation = (2.0 * hidden as f32).powf(-0.5);
        let embedding_deviation =
            deviation * scales.feature / scales.embedding.max(f32::MIN_POSITIVE);
        let initial = Initial::NormalHalves(2 * hidden, [embedding_deviation, deviation]);
        specs.push(ParameterSpec::one(FC, "fc.weight", &[hidden, 2 * hidden], initial));
        specs.push(ParameterSpec::one(FC_BIAS, "fc.bias", &[hidden], Initial::Zeros));
    }
    // The layer starts as a copy of the target's first layer, which reads embeddings, too. Its
    // heads already attend to nearby tokens. Masks learn this only slowly from random weights
    // (docs/experiments/drafters-and-training.md). EAGLE's published layer has no norm here. The
    // copied attention expects one: without it, its softmax may saturate.
    let layer = |name: &str, parts: &[LayerTensor]| copied_layer(name.to_owned(), parts, 0, config);
    specs.push(layer(ATTENTION_NORM, &[LayerTensor::AttentionNorm]));
    specs.push(layer(ATTENTION, &ATTENTION_TENSORS));
    specs.push(layer(MLP_NORM, &[LayerTensor::MlpNorm]));
    specs.push(layer(MLP, &MLP_TENSORS));
    if kind == TrainedDrafterKind::ParallelspecMedusa {
        specs.push(copied(FINAL_NORM.to_owned(), vec![CheckpointTensor::FinalNorm], config));
    }
    specs
}

/// Returns the definitions of the parameters of a head on a feature. It equals the target's head at
/// first (Medusa, §2.1.1).
fn draft_head_specs(kind: TrainedDrafterKind, head: usize, hidden: usize) -> Vec<ParameterSpec> {
    let is_hydra = kind == TrainedDrafterKind::Hydra;
    let module = if is_hydra { format!("hydra_mlp.{head}.0") } else { format!("{head}.0") };
    let width = if is_hydra { (head + 2) * hidden } else { hidden };
    let linear = |[weight, bias]: [&str; 2], part: &str, initial| {
        let name = |name| of_layer(name, head);
        let stored = |what| format!("{module}.{part}.{what}");
        [
            ParameterSpec::one(name(weight), stored("weight"), &[hidden, width], initial),
            ParameterSpec::one(name(bias), stored("bias"), &[hidden], Initial::Zeros),
        ]
    };
    let first = linear([FIRST, FIRST_BIAS], "linear", Initial::Zeros);
    let residual = [RESIDUAL, RESIDUAL_BIAS];
    let residual =
        is_hydra.then(|| linear(residual, "res_connection", Initial::Identity(width, 0.0)));
    first.into_iter().chain(residual.into_iter().flatten()).collect()
}

/// Returns the definitions of a block drafter's parameters. Its layers start as copies of the
/// target's first ones, as the layers of the other drafters do. They expect normed embeddings. So
/// the context starts as the first of the hidden states that are read, which resembles the
/// embedding most, with the norm of the target's first layer.
fn block_specs(block: &BlockShape, config: &Config, outputs: usize) -> Vec<ParameterSpec> {
    let (hidden, head_dim) = (config.hidden_size, [config.head_dim]);
    let width = block.target_layers.len() * hidden;
    let fc = Initial::Identity(width, 0.1 * (width as f32).powf(-0.5));
    let first_norm = CheckpointTensor::Layer(0, LayerTensor::AttentionNorm);
    let mut context_norm = copied(CONTEXT_NORM.to_owned(), vec![first_norm], config);
    context_norm.tensors[0].0 = "hidden_norm.weight".to_owned();
    let mut specs = vec![ParameterSpec::one(FC, "fc.weight", &[hidden, width], fc), context_norm];
    for layer in 0..block.layers {
        let name = |name| of_layer(name, layer);
        let stored = |norm| format!("layers.{layer}.self_attn.{norm}.weight");
        let part = |of, parts: &[LayerTensor]| copied_layer(name(of), parts, layer, config);
        specs.extend([
            part(ATTENTION_NORM, &[LayerTensor::AttentionNorm]),
            part(ATTENTION, &ATTENTION_TENSORS),
            ParameterSpec::one(name(QUERY_NORM), stored("q_norm"), &head_dim, Initial::Ones),
            ParameterSpec::one(name(KEY_NORM), stored("k_norm"), &head_dim, Initial::Ones),
            part(MLP_NORM, &[LayerTensor::MlpNorm]),
            part(MLP, &MLP_TENSORS),
        ]);
    }
    specs.push(copied(FINAL_NORM.to_owned(), vec![CheckpointTensor::FinalNorm], config));
    if let Some(rank) = block.markov_rank {
        specs.extend(head_specs(rank, config, outputs));
    }
    specs
}

/// Returns the definitions of the parameters of DSpark's heads. They start without effect: a bias
/// of 0 and a confidence of one half.
fn head_specs(rank: usize, config: &Config, outputs: usize) -> [ParameterSpec; 4] {
    let embeddings = Initial::Normal(INITIAL_DEVIATION);
    let stored = |tensor| short_name(CheckpointTensor::BlockHead(tensor));
    let previous = [config.vocab_size, rank];
    let read = [1, config.hidden_size + rank];
    [
        ParameterSpec::one(
            MARKOV_EMBEDDINGS,
            stored(BlockHeadTensor::Previous),
            &previous,
            embeddings,
        ),
        ParameterSpec::one(
            MARKOV_BIAS,
            stored(BlockHeadTensor::LogitBias),
            &[outputs, rank],
            Initial::Zeros,
        ),
        ParameterSpec::one(CONFIDENCE, stored(BlockHeadTensor::Confidence), &read, Initial::Zeros),
        ParameterSpec::one(
            CONFIDENCE_BIAS,
            stored(BlockHeadTensor::ConfidenceBias),
            &[1],
            Initial::Zeros,
        ),
    ]
}

/// Returns the definition of a parameter that is a part of a layer and starts as a copy of the
/// target's. A drafter with more layers than the target repeats its last one.
fn copied_layer(
    name: String,
    parts: &[LayerTensor],
    layer: usize,
    config: &Config,
) -> ParameterSpec {
    let source = layer.min(config.num_hidden_layers - 1);
    let tensors = parts.iter().map(|&part| CheckpointTensor::Layer(source, part)).collect();
    let mut spec = copied(name, tensors, config);
    for ((stored, _), &part) in spec.tensors.iter_mut().zip(parts) {
        *stored = short_name(CheckpointTensor::Layer(layer, part));
    }
    spec
}

/// Returns the definition of a parameter that starts as a copy of the target's tensors.
fn copied(name: String, tensors: Vec<CheckpointTensor>, config: &Config) -> ParameterSpec {
    let architecture = config.architecture();
    let stored = |&tensor: &CheckpointTensor| (short_name(tensor), architecture.shape(tensor));
    let stored = tensors.iter().map(stored).collect();
    ParameterSpec { name, tensors: stored, initial: Initial::Target(tensors) }
}

/// Returns the name of a drafter's tensor, which has no prefix `model.`.
fn short_name(tensor: CheckpointTensor) -> String {
    tensor.to_string().trim_start_matches("model.").to_owned()
}

impl Weights {
    /// Creates initial weights: layers are copies of the target's first ones, Medusa's heads equal
    /// the target's head, and all other matrices are normally distributed.
    pub(super) fn random(shape: &DrafterShape, target: &Target, seed: u64) -> Result<Self> {
        let mut number = 0;
        let (config, scales) = (target.config(), RmsScales::of(target));
        Self::build(specs(shape, config, config.vocab_size, scales), |spec| {
            number += 1;
            // Each parameter has a generator of its own, so its values do not depend on the others.
            let mut random =
                StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9).wrapping_add(number));
            spec.initial_values(target, &mut random)
        })
    }

    /// Reads the weights of a drafter that can draft `outputs` tokens. `tensor` returns the values
    /// of the tensor of a given name and shape.
    pub(super) fn read<E: From<candle_core::Error>>(
        shape: &DrafterShape,
        config: &Config,
        outputs: usize,
        mut tensor: impl FnMut(&str, &[usize]) -> std::result::Result<Vec<f32>, E>,
    ) -> std::result::Result<Self, E> {
        Self::build(specs(shape, config, outputs, RmsScales::UNKNOWN), |spec| {
            let mut values = Vec::new();
            for (name, shape) in &spec.tensors {
                values.extend(tensor(name, shape)?);
            }
            Ok(values)
        })
    }

    fn build<E: From<candle_core::Error>>(
        specs: Vec<ParameterSpec>,
        mut values: impl FnMut(&ParameterSpec) -> std::result::Result<Vec<f32>, E>,
    ) -> std::result::Result<Self, E> {
        let mut vars = BTreeMap::new();
        for spec in &specs {
            let var = Var::from_vec(values(spec)?, spec.shape(), &Device::Cpu)?;
            vars.insert(spec.name.clone(), var);
        }
        Ok(Self { specs, vars })
    }

    /// Replaces a parameter that is a matrix by one of other rows.
    pub(super) fn set_rows(&mut self, name: &str, rows: Vec<Vec<f32>>) -> Result<()> {
        let size = [rows.len(), rows.first().map_or(0, Vec::len)];
        let values: Vec<f32> = rows.into_iter().flatten().collect();
        let var = Var::from_vec(values, &size[..], &Device::Cpu)?;
        if let Some(spec) = self.specs.iter_mut().find(|spec| spec.name == name) {
            spec.tensors[0].1 = size.to_vec();
        }
        self.vars.insert(name.to_owned(), var);
        Ok(())
    }

    /// Returns a parameter by its name; `None` if the drafter does not have it.
    pub(super) fn get(&self, name: &str) -> Option<&Tensor> {
        self.vars.get(name).map(Var::as_tensor)
    }

    /// Returns a parameter by its name.
    ///
    /// # Errors
    /// If the drafter does not have it.
    pub(super) fn require(&self, name: &str) -> Result<&Tensor> {
        match self.get(name) {
            Some(tensor) => Ok(tensor),
            None => candle_core::bail!("this kind of drafter has no parameter {name}"),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&ParameterSpec, &Var)> {
        self.specs.iter().filter_map(|spec| self.vars.get(&spec.name).map(|var| (spec, var)))
    }

    /// Returns all parameters for the optimizer.
    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let parameter = |(spec, values): (&ParameterSpec, &Var)| Parameter {
            name: spec.tensors[0].0.clone(),
            values: values.clone(),
            decays: spec.tensors[0].1.len() > 1,
            matrices: spec.matrices(),
        };
        self.iter().map(parameter).collect()
    }

    /// Returns all tensors in the layout of checkpoints.
    pub(super) fn tensors(&self) -> Result<Vec<NamedTensor>> {
        let mut all = Vec::new();
        for (spec, var) in self.iter() {
            let values = var.flatten_all()?.to_vec1::<f32>()?;
            let mut rest = &values[..];
            for (name, shape) in &spec.tensors {
                let (head, tail) = rest.split_at(shape.iter().product());
                all.push((name.clone(), shape.clone(), head.to_vec()));
                rest = tail;
            }
        }
        Ok(all)
    }
}
