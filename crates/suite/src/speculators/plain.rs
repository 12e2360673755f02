//! The tensors of drafters, and what papers compute with them, in plain loops.

use crate::prelude::*;
use forerun_formats::checkpoint::DRAFTER_FILES;
use safetensors::SafeTensors;
use std::collections::HashMap;

/// The name of the target's embedding.
const EMBEDDING: &str = "model.embed_tokens.weight";

/// The first layer of drafters other than EAGLE-3.
pub(super) const PLAIN: (&str, bool) = ("layers.0", false);

/// Row-major matrices and vectors, by name.
pub(super) struct Tensors(pub(super) HashMap<String, Vec<f64>>);

/// Rows of a position and an input each, and their embeddings.
pub(super) type Inputs<'a> = (&'a [(usize, Vec<f64>)], &'a [Vec<f64>]);

pub(super) fn plus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

pub(super) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

impl Tensors {
    fn read(folder: &Path) -> Self {
        let file =
            DRAFTER_FILES.map(|name| folder.join(name)).into_iter().find(|path| path.exists());
        let bytes = std::fs::read(file.unwrap()).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let values = |data: &[u8]| {
            let numbers = data.as_chunks::<4>().0.iter();
            numbers.map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
        };
        let floats = tensors.iter().filter(|(_, view)| view.dtype() == safetensors::Dtype::F32);
        let all = floats.map(|(name, view)| (name.to_owned(), values(view.data())));
        Self(all.collect())
    }

    /// Reads the tensors of a drafter, with the embedding and the head of its target where it has
    /// none of its own.
    pub(super) fn of_drafter(drafter: &Path, target: &Path) -> Self {
        let (mut tensors, of_target) = (Self::read(drafter), Self::read(target));
        for (name, short) in
            [(EMBEDDING, "embed_tokens.weight"), ("lm_head.weight", "lm_head.weight")]
        {
            let own = tensors.0.entry(short.into());
            // A tied head is the embedding.
            let stored = || of_target.0.get(name).unwrap_or(&of_target.0[EMBEDDING]);
            own.or_insert_with(|| stored().clone());
        }
        tensors
    }

    pub(super) fn times(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let rows = self.0[name].chunks_exact(x.len());
        rows.map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    /// Computes the product of `x` and a weight, plus the bias of the same name.
    pub(super) fn times_plus_bias(&self, name: &str, x: &[f64]) -> Vec<f64> {
        plus(&self.times(&format!("{name}.weight"), x), &self.0[&format!("{name}.bias")])
    }

    pub(super) fn row(&self, name: &str, index: usize, size: usize) -> &[f64] {
        &self.0[name][index * size..][..size]
    }

    /// Applies the norm of this name; returns the vector unchanged if there is none.
    pub(super) fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let Some(weight) = self.0.get(name) else { return x.to_vec() };
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        x.iter().zip(weight).map(|(x, w)| x / (mean + 1e-5).sqrt() * w).collect()
    }

    /// Computes the queries, the keys or the values of a layer, of which the first two are rotated.
    fn projected(
        &self,
        config: &Config,
        layer: &str,
        (part, with_rope): (&str, bool),
        (rows, embeddings): Inputs<'_>,
    ) -> Vec<Vec<f64>> {
        let name = |part: &str| format!("{layer}.{part}.weight");
        let dim = config.head_dim;
        let of_row = |(index, (position, row)): (usize, &(usize, Vec<f64>))| {
            let normed = match embeddings.get(index) {
                None => self.norm(&name("input_layernorm"), row),
                Some(embeddings) => {
                    let embeddings = self.norm(&name("input_layernorm"), embeddings);
                    [embeddings, self.norm(&name("hidden_norm"), row)].concat()
                }
            };
            let mut heads = self.times(&name(&format!("self_attn.{part}_proj")), &normed);
            for head in heads.chunks_exact_mut(dim).filter(|_| with_rope) {
                for pair in 0..dim / 2 {
                    let frequency = f64::from(config.rope(0).frequency(pair));
                    let (sine, cosine) = (*position as f64 * frequency).sin_cos();
                    let (a, b) = (head[pair], head[pair + dim / 2]);
                    head[pair] = a * cosine - b * sine;
                    head[pair + dim / 2] = b * cosine + a * sine;
                }
            }
            heads
        };
        rows.iter().enumerate().map(of_row).collect()
    }

    /// Computes the outputs of one layer for rows of a position and an input each. Row `r` attends
    /// to itself and to the earlier rows `o` for which `is_visible(r, o)` is true. EAGLE-3's first
    /// layer also reads embeddings, which are empty for other layers, and adds to its normed input
    /// if it is `normed_residual`.
    pub(super) fn layer(
        &self,
        config: &Config,
        (layer, normed_residual): (&str, bool),
        (rows, embeddings): Inputs<'_>,
        is_visible: impl Fn(usize, usize) -> bool,
    ) -> Vec<Vec<f64>> {
        let dim = config.head_dim;
        let name = |part: &str| format!("{layer}.{part}.weight");
        let project = |part| self.projected(config, layer, part, (rows, embeddings));
        let [queries, keys, values] = [("q", true), ("k", true), ("v", false)].map(project);
        let group = config.num_attention_heads / config.num_key_value_heads;
        let one = |row: usize| {
            let visible: Vec<usize> = (0..=row).filter(|&other| is_visible(row, other)).collect();
            let mut attended = Vec::new();
            for head in 0..config.num_attention_heads {
                let query = &queries[row][head * dim..][..dim];
                let shared = head / group * dim..(head / group + 1) * dim;
                let score = |&other: &usize| {
                    let key = &keys[other][shared.clone()];
                    query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() / (dim as f64).sqrt()
                };
                let weights: Vec<f64> = visible.iter().map(score).map(f64::exp).collect();
                let total: f64 = weights.iter().sum();
                attended.extend(shared.clone().map(|at| {
                    let weighted = visible.iter().zip(&weights).map(|(&o, w)| values[o][at] * w);
                    weighted.sum::<f64>() / total
                }));
            }
            let residual = match normed_residual {
                true => self.norm(&name("hidden_norm"), &rows[row].1),
                false => rows[row].1.clone(),
            };
            let hidden = plus(&residual, &self.times(&name("self_attn.o_proj"), &attended));
            let normed = self.norm(&name("post_attention_layernorm"), &hidden);
            let gate = self.times(&name("mlp.gate_proj"), &normed);
            let up = self.times(&name("mlp.up_proj"), &normed);
            let inner: Vec<f64> = gate.iter().zip(&up).map(|(gate, up)| silu(*gate) * up).collect();
            plus(&hidden, &self.times(&name("mlp.down_proj"), &inner))
        };
        (0..rows.len()).map(one).collect()
    }

    /// Computes the logits of states, after the norm if there is one.
    pub(super) fn logits(&self, states: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let of_state =
            |state: &Vec<f64>| self.times("lm_head.weight", &self.norm("norm.weight", state));
        states.iter().map(of_state).collect()
    }

    /// Computes `fc(cat(a, b))`.
    pub(super) fn fused(&self, a: &[f64], b: &[f64]) -> Vec<f64> {
        self.times_plus_bias("fc", &[a, b].concat())
    }

    /// Computes EAGLE-3's layers.
    pub(super) fn eagle3_layers(
        &self,
        config: &Config,
        options: &Eagle3Options,
        inputs: Inputs<'_>,
        is_visible: impl Fn(usize, usize) -> bool,
    ) -> Vec<Vec<f64>> {
        let first = if options.speculators { "layers.0" } else { "midlayer" };
        let first = (first, options.norm_before_residual);
        let mut states = self.layer(config, first, inputs, &is_visible);
        for layer in 1..options.layers {
            let positions = inputs.0.iter().map(|(position, _)| *position);
            let rows: Vec<_> = positions.zip(states).collect();
            let layer = format!("layers.{layer}");
            states = self.layer(config, (&layer, false), (&rows, &[]), &is_visible);
        }
        states
    }

    /// Computes EAGLE-3's input from a feature of hidden states.
    pub(super) fn eagle3_input(&self, options: &Eagle3Options, feature: &[f64]) -> Vec<f64> {
        let normed = match options.feature_norm {
            FeatureNorm::None => feature.to_vec(),
            FeatureNorm::Whole => self.norm("input_norm.weight", feature),
            FeatureNorm::Parts(parts) => {
                let parts = feature.chunks(feature.len() / parts).enumerate();
                let norm = |(part, x)| self.norm(&format!("fc_norm.{part}.weight"), x);
                parts.flat_map(norm).collect()
            }
        };
        self.times("fc.weight", &normed)
    }
}
