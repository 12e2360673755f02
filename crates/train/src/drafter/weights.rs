//! The tensors of a drafter: their names and shapes in checkpoints, their first values, and how the
//! trainer holds them.

use super::options::TrainedDrafterKind;
use super::target::Target;
use crate::model::Parameter;
use crate::ops::elementwise::inner;
use candle_core::{Device, Result, Tensor, Var};
use forerun_model::Config;
use forerun_model::checkpoint::{LayerTensor, Tensor as Stored};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Normal};
use std::collections::BTreeMap;

/// The parameters of a drafter by name, as the operations take them.
pub(super) struct Weights {
    parts: Vec<Part>,
    vars: BTreeMap<&'static str, Var>,
    heads: Vec<[Var; 2]>,
}

/// A tensor of a checkpoint: name, shape, values.
pub(super) type StoredTensor = (String, Vec<usize>, Vec<f32>);

/// A parameter: one or several tensors of a checkpoint, one behind the other.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// As [`Weights::get`] knows it; empty for Medusa's heads.
    name: &'static str,
    pub(super) tensors: Vec<(String, Vec<usize>)>,
    first: First,
}

/// What a parameter begins with.
#[derive(Clone, Copy, Debug)]
enum First {
    Zeros,
    /// Normal numbers of this deviation.
    Random(f32),
    /// Normal numbers: rows of this width have another deviation in their first half than in their second.
    Halves(usize, [f32; 2]),
    /// The target's own tensors, one behind the other.
    Target(&'static [Stored]),
}

impl Part {
    fn one(name: &'static str, stored: impl Into<String>, shape: &[usize], first: First) -> Self {
        Self { name, tensors: vec![(stored.into(), shape.to_vec())], first }
    }

    fn shape(&self) -> Vec<usize> {
        match &self.tensors[..] {
            [(_, shape)] => shape.clone(),
            several => vec![several.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()],
        }
    }

    fn first_values(&self, target: &Target, random: &mut StdRng) -> Result<Vec<f32>> {
        let count: usize = self.shape().iter().product();
        let mut normal = |deviation: f32, count: usize| {
            let normal = Normal::new(0.0, deviation).map_err(candle_core::Error::wrap)?;
            Ok(normal.sample_iter(&mut *random).take(count).collect::<Vec<f32>>())
        };
        match self.first {
            First::Zeros => Ok(vec![0.0; count]),
            First::Random(deviation) => normal(deviation, count),
            First::Halves(width, deviations) => {
                let mut values = Vec::with_capacity(count);
                while values.len() < count {
                    for deviation in deviations {
                        values.extend(normal(deviation, width / 2)?);
                    }
                }
                Ok(values)
            }
            First::Target(tensors) => {
                let mut values = Vec::with_capacity(count);
                for &tensor in tensors {
                    values.extend(target.tensor(tensor)?);
                }
                Ok(values)
            }
        }
    }
}

/// The names that [`Weights::get`] knows.
pub(super) const ATTENTION_NORM: &str = "attention_norm";
pub(super) const ATTENTION: &str = "attention";
pub(super) const MLP_NORM: &str = "mlp_norm";
pub(super) const MLP: &str = "mlp";
pub(super) const FINAL_NORM: &str = "final_norm";
pub(super) const FC: &str = "fc";
pub(super) const FC_BIAS: &str = "fc_bias";
pub(super) const MASK_EMBEDDINGS: &str = "mask_embeddings";
pub(super) const MASK_FEATURES: &str = "mask_features";

const ATTENTION_TENSORS: [Stored; 4] = [
    Stored::Layer(0, LayerTensor::Query),
    Stored::Layer(0, LayerTensor::Key),
    Stored::Layer(0, LayerTensor::Value),
    Stored::Layer(0, LayerTensor::Output),
];
const MLP_TENSORS: [Stored; 3] = [
    Stored::Layer(0, LayerTensor::Gate),
    Stored::Layer(0, LayerTensor::Up),
    Stored::Layer(0, LayerTensor::Down),
];

/// Root mean squares of what a drafter reads: masks should be as large, and neither half of what `fc`
/// reads should drown the other.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    embedding: f32,
    feature: f32,
}

impl Sizes {
    /// Those of a target. A feature comes out of the final norm, so it is as large as that norm's weights.
    fn of(target: &Target) -> Self {
        let size = |values: &[f32]| (inner(values, values) / values.len() as f32).sqrt();
        Self { embedding: size(target.embedding()), feature: size(target.final_norm()) }
    }
}

/// All parameters of a drafter, in the order of its forward pass.
fn parts(
    kind: TrainedDrafterKind,
    draft_tokens: usize,
    config: &Config,
    sizes: Sizes,
) -> Vec<Part> {
    let hidden = config.hidden_size;
    if kind == TrainedDrafterKind::Medusa {
        // Zeros: at first every head is the target's own (Medusa, §2.1.1).
        let head = |head: usize| {
            let name = |what| format!("{head}.0.linear.{what}");
            [
                Part::one("", name("weight"), &[hidden, hidden], First::Zeros),
                Part::one("", name("bias"), &[hidden], First::Zeros),
            ]
        };
        return (0..draft_tokens).flat_map(head).collect();
    }
    let mut parts = Vec::new();
    let mut masks = |name, stored, size| {
        let first = First::Random(size);
        parts.push(Part::one(name, stored, &[draft_tokens, hidden], first));
    };
    if kind.has_masks() {
        masks(MASK_EMBEDDINGS, "mask_embeddings.weight", sizes.embedding);
    }
    if kind == TrainedDrafterKind::ParallelspecEagle {
        masks(MASK_FEATURES, "mask_features.weight", sizes.feature);
    }
    if kind.predicts_features() {
        let deviation = (2.0 * hidden as f32).powf(-0.5);
        let of_embedding = deviation * sizes.feature / sizes.embedding.max(f32::MIN_POSITIVE);
        let first = First::Halves(2 * hidden, [of_embedding, deviation]);
        parts.push(Part::one(FC, "fc.weight", &[hidden, 2 * hidden], first));
        parts.push(Part::one(FC_BIAS, "fc.bias", &[hidden], First::Zeros));
    }
    // The layer begins as the target's first one, which reads embeddings as this one does: its heads look at
    // near tokens already, which masks would have to find out from nothing (LOG.md).
    let mut layer = |name, tensors: &'static [Stored]| {
        // A drafter's names have no `model.` in front.
        let stored = |tensor: &Stored| {
            (tensor.to_string().trim_start_matches("model.").to_owned(), tensor.shape(config))
        };
        let stored = tensors.iter().map(stored).collect();
        parts.push(Part { name, tensors: stored, first: First::Target(tensors) });
    };
    if !kind.predicts_features() {
        layer(ATTENTION_NORM, &[Stored::Layer(0, LayerTensor::AttentionNorm)]);
    }
    layer(ATTENTION, &ATTENTION_TENSORS);
    layer(MLP_NORM, &[Stored::Layer(0, LayerTensor::MlpNorm)]);
    layer(MLP, &MLP_TENSORS);
    if kind == TrainedDrafterKind::ParallelspecMedusa {
        layer(FINAL_NORM, &[Stored::FinalNorm]);
    }
    parts
}

impl Weights {
    /// First values: the layer is the target's first one, heads are the target's own, and what else there is
    /// is normal.
    pub(super) fn random(
        kind: TrainedDrafterKind,
        draft_tokens: usize,
        target: &Target,
        seed: u64,
    ) -> Result<Self> {
        let mut number = 0;
        Self::build(parts(kind, draft_tokens, target.config(), Sizes::of(target)), |part| {
            number += 1;
            // A generator for each parameter: its values depend on nothing else.
            let mut random =
                StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9).wrapping_add(number));
            part.first_values(target, &mut random)
        })
    }

    /// Values of tensors of these names and shapes, as `tensor` gives them.
    pub(super) fn read<E: From<candle_core::Error>>(
        kind: TrainedDrafterKind,
        draft_tokens: usize,
        config: &Config,
        mut tensor: impl FnMut(&str, &[usize]) -> std::result::Result<Vec<f32>, E>,
    ) -> std::result::Result<Self, E> {
        // What it would begin with does not matter.
        let sizes = Sizes { embedding: 1.0, feature: 1.0 };
        Self::build(parts(kind, draft_tokens, config, sizes), |part| {
            let mut values = Vec::new();
            for (name, shape) in &part.tensors {
                values.extend(tensor(name, shape)?);
            }
            Ok(values)
        })
    }

    fn build<E: From<candle_core::Error>>(
        parts: Vec<Part>,
        mut values: impl FnMut(&Part) -> std::result::Result<Vec<f32>, E>,
    ) -> std::result::Result<Self, E> {
        let (mut vars, mut unnamed) = (BTreeMap::new(), Vec::new());
        for part in &parts {
            let var = Var::from_vec(values(part)?, part.shape(), &Device::Cpu)?;
            if part.name.is_empty() {
                unnamed.push(var);
            } else {
                vars.insert(part.name, var);
            }
        }
        let (heads, _) = unnamed.as_chunks::<2>();
        Ok(Self { parts, vars, heads: heads.to_vec() })
    }

    /// A parameter by its name, if the drafter has it.
    pub(super) fn get(&self, name: &str) -> Option<&Tensor> {
        self.vars.get(name).map(Var::as_tensor)
    }

    /// A parameter by its name.
    pub(super) fn of(&self, name: &str) -> Result<&Tensor> {
        match self.get(name) {
            Some(tensor) => Ok(tensor),
            None => candle_core::bail!("this drafter has no {name}"),
        }
    }

    /// Medusa's heads, each a matrix `[hidden, hidden]` and a bias `[hidden]`.
    pub(super) fn heads(&self) -> &[[Var; 2]] {
        &self.heads
    }

    fn each(&self) -> impl Iterator<Item = (&Part, &Var)> {
        let mut heads = self.heads.iter().flatten();
        self.parts.iter().filter_map(move |part| match part.name {
            "" => heads.next().map(|var| (part, var)),
            name => self.vars.get(name).map(|var| (part, var)),
        })
    }

    /// All of them, as the optimizer sees them.
    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let parameter = |(part, values): (&Part, &Var)| Parameter {
            name: part.tensors[0].0.clone(),
            values: values.clone(),
            decays: part.tensors[0].1.len() > 1,
        };
        self.each().map(parameter).collect()
    }

    /// Every tensor as checkpoints have it.
    pub(super) fn tensors(&self) -> Result<Vec<StoredTensor>> {
        let mut all = Vec::new();
        for (part, var) in self.each() {
            let values = var.flatten_all()?.to_vec1::<f32>()?;
            let mut rest = &values[..];
            for (name, shape) in &part.tensors {
                let (own, behind) = rest.split_at(shape.iter().product());
                all.push((name.clone(), shape.clone(), own.to_vec()));
                rest = behind;
            }
        }
        Ok(all)
    }
}
