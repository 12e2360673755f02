//! The storage layouts of Medusa heads.
//!
//! The authors' layout has `{head}.{layer}.linear.weight` and `.bias`, then `{head}.{layers}.weight`.
//! vLLM's layout has `blocks.{head}.layers.{layer}.weight` (its layers may have a bias), then
//! `lm_heads.{head}.weight`. If no head has an output matrix, as in version 2 and in heads trained by
//! forerun, all heads share the target's. The numbers of heads and layers are counted from the tensors,
//! because configurations often give wrong numbers.

use super::{Speculator, SpeculatorKind};
use crate::checkpoint::{LoadError, NamedTensors};
use crate::kernels::{PackedMatrix, WeightType};
use crate::weights::{Weights, pack};
use std::sync::Arc;

/// The names and the numbers of the tensors.
pub(super) struct Layout {
    /// Whether the names are vLLM's.
    vllm: bool,
    n_heads: usize,
    n_layers: usize,
    pub(super) hidden_size: usize,
    /// Whether every head has its own output matrix.
    own_heads: bool,
}

impl Layout {
    /// Detects the layout. Returns `None` for tensors that are not Medusa heads.
    pub(super) fn of(tensors: &NamedTensors) -> Option<Self> {
        [false, true].into_iter().find_map(|vllm| {
            let empty = Self { vllm, n_heads: 0, n_layers: 0, hidden_size: 0, own_heads: false };
            let shape = tensors.shape(&empty.layer_name(0, 0, "weight"))?;
            let count = |name: &dyn Fn(usize) -> String| {
                (0..).take_while(|&index| tensors.has(&name(index))).count()
            };
            let n_heads = count(&|head| empty.layer_name(head, 0, "weight"));
            let n_layers = count(&|layer| empty.layer_name(0, layer, "weight"));
            let hidden_size = shape.last().copied().unwrap_or(0);
            let layout = Self { n_heads, n_layers, hidden_size, ..empty };
            Some(Self { own_heads: tensors.has(&layout.head_name(0)), ..layout })
        })
    }

    fn layer_name(&self, head: usize, layer: usize, part: &str) -> String {
        match self.vllm {
            false => format!("{head}.{layer}.linear.{part}"),
            true => format!("blocks.{head}.layers.{layer}.{part}"),
        }
    }

    fn head_name(&self, head: usize) -> String {
        match self.vllm {
            false => format!("{head}.{}.weight", self.n_layers),
            true => format!("lm_heads.{head}.weight"),
        }
    }

    /// Returns the names of all tensors that the layout allows.
    fn names(&self) -> Vec<String> {
        let head_names = |head| {
            let layers = (0..self.n_layers).flat_map(move |layer| {
                ["weight", "bias"].map(|part| self.layer_name(head, layer, part))
            });
            layers.chain([self.head_name(head)])
        };
        (0..self.n_heads).flat_map(head_names).collect()
    }
}

/// Packed Medusa heads.
pub struct MedusaWeights {
    /// By head, then by layer: `[hidden, hidden]` with its bias.
    pub(crate) layers: Vec<Vec<PackedMatrix>>,
    /// Output matrices, `[vocab, hidden]`: one for each head, or one for all.
    pub(crate) heads: Vec<Arc<PackedMatrix>>,
    pub(crate) hidden_size: usize,
    pub(crate) vocab_size: usize,
}

impl MedusaWeights {
    /// Returns the number of heads.
    #[must_use]
    pub fn n_heads(&self) -> usize {
        self.layers.len()
    }
}

impl Speculator {
    /// Reads and packs Medusa heads. `target` must be the target that they were opened for. Without a
    /// weight type, they keep their stored type.
    ///
    /// # Errors
    ///
    /// When the drafter has another kind, a tensor is missing, unexpected, or has the wrong dtype or
    /// shape, or a value is not finite.
    pub fn medusa(
        &self,
        target: &Weights,
        weight_type: Option<WeightType>,
    ) -> Result<MedusaWeights, LoadError> {
        let layout = match self.kind {
            SpeculatorKind::Medusa => Layout::of(&self.tensors),
            _ => None,
        };
        let layout = layout.ok_or_else(|| self.wrong_kind("Medusa heads"))?;
        let names = layout.names();
        let is_known = |name: &str| names.iter().any(|known| known == name);
        self.tensors.reject_unknown("these Medusa heads", is_known)?;
        let weight_type = self.weight_type(weight_type)?;
        let hint = "the checkpoint is incomplete: all heads must have the same layers";
        let (size, vocab_size) = (layout.hidden_size, target.config().vocab_size);
        let matrix = |name: &str, outputs: usize| {
            pack(weight_type, &[self.tensors.rows(name, &[outputs, size], hint)?])
        };
        let layer = |head: usize, layer: usize| {
            let bias = layout.layer_name(head, layer, "bias");
            let bias = match self.tensors.has(&bias) {
                true => Some(self.tensors.rows(&bias, &[size], hint)?.read_all()?),
                false => None,
            };
            let weights = matrix(&layout.layer_name(head, layer, "weight"), size)?;
            Ok::<_, LoadError>(weights.with_bias(bias))
        };
        let layers = (0..layout.n_heads).map(|head| {
            (0..layout.n_layers).map(|index| layer(head, index)).collect::<Result<Vec<_>, _>>()
        });
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let heads = match layout.own_heads {
            false => vec![Arc::clone(target.head())],
            true => (0..layout.n_heads)
                .map(|head| Ok(Arc::new(matrix(&layout.head_name(head), vocab_size)?)))
                .collect::<Result<_, LoadError>>()?,
        };
        Ok(MedusaWeights { layers, heads, hidden_size: size, vocab_size })
    }
}
