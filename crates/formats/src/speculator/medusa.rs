//! The storage layouts of Medusa heads.
//!
//! The authors' layout has `{head}.{layer}.linear.weight` and `.bias`, then
//! `{head}.{layers}.weight`. vLLM's layout has `blocks.{head}.layers.{layer}.weight` (its layers
//! may have a bias), then `lm_heads.{head}.weight`. If no head has an output matrix, as in version
//! 2 and in heads trained by forerun, all heads share the target's. With `d2t`, matrices have rows
//! for some tokens only. The numbers of heads and layers are counted from the tensors, because
//! configurations often give wrong numbers.

use super::Speculator;
use super::draft_vocabulary::DRAFT_TO_TARGET;
use crate::architecture::DraftHeads;
use crate::checkpoint::{LoadError, NamedTensors};
use crate::config::Config;
use crate::tensor::HeadTensor;

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

    pub(super) fn name(&self, head: usize, tensor: HeadTensor) -> Option<String> {
        match tensor {
            HeadTensor::Layer(layer) => Some(self.layer_name(head, layer, "weight")),
            HeadTensor::LayerBias(layer) => Some(self.layer_name(head, layer, "bias")),
            HeadTensor::Matrix => Some(self.head_name(head)),
            _ => None,
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

impl Speculator {
    pub(super) fn medusa(&self, layout: &Layout, target: &Config) -> Result<DraftHeads, LoadError> {
        let names = layout.names();
        let is_known =
            |name: &str| names.iter().any(|known| known == name) || name == DRAFT_TO_TARGET;
        self.tensors.reject_unknown("these Medusa heads", is_known)?;
        let matrix = self.tensors.shape(&layout.head_name(0));
        let outputs = matrix.and_then(<[usize]>::first).copied();
        Ok(DraftHeads {
            hidden_size: layout.hidden_size,
            vocab_size: target.vocab_size,
            // Heads on the last hidden state have no context of their own.
            context_length: usize::MAX,
            n_heads: layout.n_heads,
            n_layers: layout.n_layers,
            reads_tokens: false,
            own_matrices: layout.own_heads,
            head_tokens: self.tokens_of_draft_heads(outputs, target.vocab_size)?,
            prefix: None,
        })
    }
}
