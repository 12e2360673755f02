//! The tensors of a drafter: their names and shapes in checkpoints, their first values, and how the
//! trainer holds them.

use super::options::DrafterKind;
use super::target::Target;
use crate::model::{INITIAL_DEVIATION, Parameter};
use candle_core::{Device, Result, Tensor, Var};
use forerun_model::Config;
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
    /// Deviation of first values by tensor; where there is none, they are those of [`Self::first`].
    deviations: Vec<f32>,
    first: f32,
}

impl Part {
    fn constant(
        name: &'static str,
        stored: impl Into<String>,
        shape: &[usize],
        first: f32,
    ) -> Self {
        let tensors = vec![(stored.into(), shape.to_vec())];
        Self { name, tensors, deviations: Vec::new(), first }
    }

    fn random(name: &'static str, tensors: &[(&str, [usize; 2], f32)]) -> Self {
        let of =
            |&(stored, shape, _): &(&str, [usize; 2], f32)| (stored.to_owned(), shape.to_vec());
        let deviations = tensors.iter().map(|tensor| tensor.2).collect();
        Self { name, tensors: tensors.iter().map(of).collect(), deviations, first: 0.0 }
    }

    fn shape(&self) -> Vec<usize> {
        match &self.tensors[..] {
            [(_, shape)] => shape.clone(),
            several => vec![several.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()],
        }
    }

    fn first_values(&self, random: &mut StdRng) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        for (number, (_, shape)) in self.tensors.iter().enumerate() {
            let count = shape.iter().product();
            match self.deviations.get(number) {
                None => values.resize(values.len() + count, self.first),
                Some(&deviation) => {
                    let normal = Normal::new(0.0, deviation).map_err(candle_core::Error::wrap)?;
                    values.extend(normal.sample_iter(&mut *random).take(count));
                }
            }
        }
        Ok(values)
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

/// All parameters of a drafter, in the order of its forward pass. `spread` is the deviation of the
/// target's embedding, as that of masks should be.
fn parts(kind: DrafterKind, draft_tokens: usize, config: &Config, spread: f32) -> Vec<Part> {
    let hidden = config.hidden_size;
    if kind == DrafterKind::Medusa {
        // Zeros: at first every head is the target's own (Medusa, §2.1.1).
        let head = |head: usize| {
            let name = |what| format!("{head}.0.linear.{what}");
            [
                Part::constant("", name("weight"), &[hidden, hidden], 0.0),
                Part::constant("", name("bias"), &[hidden], 0.0),
            ]
        };
        return (0..draft_tokens).flat_map(head).collect();
    }
    let mut parts = Vec::new();
    if kind.has_masks() {
        let masks = ("mask_embeddings.weight", [draft_tokens, hidden], spread);
        parts.push(Part::random(MASK_EMBEDDINGS, &[masks]));
    }
    if kind == DrafterKind::ParallelspecEagle {
        let masks = ("mask_features.weight", [draft_tokens, hidden], spread);
        parts.push(Part::random(MASK_FEATURES, &[masks]));
    }
    if kind.predicts_features() {
        let fc = ("fc.weight", [hidden, 2 * hidden], (2.0 * hidden as f32).powf(-0.5));
        parts.push(Part::random(FC, &[fc]));
        parts.push(Part::constant(FC_BIAS, "fc.bias", &[hidden], 0.0));
    } else {
        let name = "layers.0.input_layernorm.weight";
        parts.push(Part::constant(ATTENTION_NORM, name, &[hidden], 1.0));
    }
    let (q_size, kv_size) = (config.q_size(), config.kv_size());
    // What adds to the residual stream of two half layers begins smaller (GPT-2).
    let (into, out_of) = (INITIAL_DEVIATION, INITIAL_DEVIATION / std::f32::consts::SQRT_2);
    parts.push(Part::random(
        ATTENTION,
        &[
            ("layers.0.self_attn.q_proj.weight", [q_size, hidden], into),
            ("layers.0.self_attn.k_proj.weight", [kv_size, hidden], into),
            ("layers.0.self_attn.v_proj.weight", [kv_size, hidden], into),
            ("layers.0.self_attn.o_proj.weight", [hidden, q_size], out_of),
        ],
    ));
    let name = "layers.0.post_attention_layernorm.weight";
    parts.push(Part::constant(MLP_NORM, name, &[hidden], 1.0));
    let intermediate = config.intermediate_size;
    parts.push(Part::random(
        MLP,
        &[
            ("layers.0.mlp.gate_proj.weight", [intermediate, hidden], into),
            ("layers.0.mlp.up_proj.weight", [intermediate, hidden], into),
            ("layers.0.mlp.down_proj.weight", [hidden, intermediate], out_of),
        ],
    ));
    if kind == DrafterKind::ParallelspecMedusa {
        parts.push(Part::constant(FINAL_NORM, "norm.weight", &[hidden], 1.0));
    }
    parts
}

impl Weights {
    /// First values: normal with deviation 0.02 or what suits the tensor, masks as far apart as the
    /// target's embedding, the final norm the target's.
    pub(super) fn random(
        kind: DrafterKind,
        draft_tokens: usize,
        target: &Target,
        seed: u64,
    ) -> Result<Self> {
        let square = crate::ops::elementwise::inner(target.embedding(), target.embedding());
        let spread = (square / target.embedding().len() as f32).sqrt();
        let mut number = 0;
        Self::build(parts(kind, draft_tokens, target.config(), spread), |part| {
            number += 1;
            // A generator for each parameter: its values depend on nothing else.
            let mut random =
                StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9).wrapping_add(number));
            match part.name {
                FINAL_NORM => Ok(target.final_norm().to_vec()),
                _ => part.first_values(&mut random),
            }
        })
    }

    /// Values of tensors of these names and shapes, as `tensor` gives them.
    pub(super) fn read<E: From<candle_core::Error>>(
        kind: DrafterKind,
        draft_tokens: usize,
        config: &Config,
        mut tensor: impl FnMut(&str, &[usize]) -> std::result::Result<Vec<f32>, E>,
    ) -> std::result::Result<Self, E> {
        Self::build(parts(kind, draft_tokens, config, 0.0), |part| {
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
