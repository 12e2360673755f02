//! Medusa heads as they are stored.
//!
//! The authors' layout: `{head}.{layer}.linear.weight` and `.bias`, then `{head}.{layers}.weight`.
//! vLLM's: `blocks.{head}.layers.{layer}.weight` (its layers may have a bias), then
//! `lm_heads.{head}.weight`. Where the last is stored for no head, as in version 2 and in our own, all
//! heads share their target's. Heads and layers are counted: what configurations say of them is often
//! wrong.

use super::{Speculator, SpeculatorKind};
use crate::checkpoint::{LoadError, NamedTensors};
use crate::kernels::{PackedMatrix, WeightType};
use crate::weights::{Weights, pack};
use std::sync::Arc;

/// What stands where, and how much of it.
pub(super) struct Layout {
    of_vllm: bool,
    n_heads: usize,
    n_layers: usize,
    pub(super) hidden_size: usize,
    /// Whether every head has a matrix of its own.
    own_heads: bool,
}

impl Layout {
    /// `None` for tensors that are no Medusa heads.
    pub(super) fn of(tensors: &NamedTensors) -> Option<Self> {
        [false, true].into_iter().find_map(|of_vllm| {
            let empty = Self { of_vllm, n_heads: 0, n_layers: 0, hidden_size: 0, own_heads: false };
            let shape = tensors.shape(&empty.layer(0, 0, "weight"))?;
            let counted = |name: &dyn Fn(usize) -> String| {
                (0..).take_while(|&index| tensors.has(&name(index))).count()
            };
            let n_heads = counted(&|head| empty.layer(head, 0, "weight"));
            let n_layers = counted(&|layer| empty.layer(0, layer, "weight"));
            let hidden_size = shape.last().copied().unwrap_or(0);
            let layout = Self { n_heads, n_layers, hidden_size, ..empty };
            Some(Self { own_heads: tensors.has(&layout.head(0)), ..layout })
        })
    }

    fn layer(&self, head: usize, layer: usize, part: &str) -> String {
        match self.of_vllm {
            false => format!("{head}.{layer}.linear.{part}"),
            true => format!("blocks.{head}.layers.{layer}.{part}"),
        }
    }

    fn head(&self, head: usize) -> String {
        match self.of_vllm {
            false => format!("{head}.{}.weight", self.n_layers),
            true => format!("lm_heads.{head}.weight"),
        }
    }

    /// The names of all tensors that there may be.
    fn names(&self) -> Vec<String> {
        let of_head = |head| {
            let layers = (0..self.n_layers).flat_map(move |layer| {
                ["weight", "bias"].map(|part| self.layer(head, layer, part))
            });
            layers.chain([self.head(head)])
        };
        (0..self.n_heads).flat_map(of_head).collect()
    }
}

/// Medusa heads, packed.
pub struct MedusaWeights {
    /// By head, then by layer: `[hidden, hidden]` with its bias.
    pub(crate) layers: Vec<Vec<PackedMatrix>>,
    /// `[vocab, hidden]`: each head's, or one for all.
    pub(crate) heads: Vec<Arc<PackedMatrix>>,
    pub(crate) hidden_size: usize,
    pub(crate) vocab_size: usize,
}

impl MedusaWeights {
    /// Number of heads.
    #[must_use]
    pub fn n_heads(&self) -> usize {
        self.layers.len()
    }
}

impl Speculator {
    /// Reads Medusa heads for the target that they were opened for, in a type or else their own.
    ///
    /// # Errors
    ///
    /// When it is another drafter, a tensor is missing, unexpected, or of the wrong dtype or shape, or
    /// a value is not finite.
    pub fn medusa(
        &self,
        target: &Weights,
        weight_type: Option<WeightType>,
    ) -> Result<MedusaWeights, LoadError> {
        let layout = match self.kind {
            SpeculatorKind::Medusa => Layout::of(&self.tensors),
            _ => None,
        };
        let layout = layout.ok_or_else(|| self.not_that("Medusa heads"))?;
        let names = layout.names();
        self.tensors
            .reject_others("these Medusa heads", |name| names.iter().any(|known| known == name))?;
        let weight_type = self.weight_type(weight_type)?;
        let hint = "all heads have the same layers: the checkpoint is incomplete";
        let (size, vocab_size) = (layout.hidden_size, target.config().vocab_size);
        let matrix = |name: &str, outputs: usize| {
            pack(weight_type, &[self.tensors.rows(name, &[outputs, size], hint)?])
        };
        let layer = |head: usize, layer: usize| {
            let bias = layout.layer(head, layer, "bias");
            let bias = match self.tensors.has(&bias) {
                true => Some(self.tensors.rows(&bias, &[size], hint)?.read_all()?),
                false => None,
            };
            let weights = matrix(&layout.layer(head, layer, "weight"), size)?;
            Ok::<_, LoadError>(weights.with_bias(bias))
        };
        let layers = (0..layout.n_heads).map(|head| {
            (0..layout.n_layers).map(|index| layer(head, index)).collect::<Result<Vec<_>, _>>()
        });
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let heads = match layout.own_heads {
            false => vec![Arc::clone(target.head())],
            true => (0..layout.n_heads)
                .map(|head| Ok(Arc::new(matrix(&layout.head(head), vocab_size)?)))
                .collect::<Result<_, LoadError>>()?,
        };
        Ok(MedusaWeights { layers, heads, hidden_size: size, vocab_size })
    }
}
