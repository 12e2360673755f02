//! The storage layout of Hydra heads, as their authors store them.
//!
//! Head `h` begins with `hydra_mlp.{h}.0.linear` and `hydra_mlp.{h}.0.res_connection`. They read
//! the concatenation of the target's feature and `h + 1` embeddings. Residual layers
//! `hydra_mlp.{h}.{layer}.linear` and an output matrix `hydra_lm_head.{h}` follow. With dropout, as
//! in Hydra++, only odd indices are layers, and the output matrix is `hydra_lm_head.{h}.1`. Hydra++
//! has a layer of the target's shape before all heads, under `prefix_embeding_layer` (sic),
//! together with a copy of the embedding that is never read. Heads that read no tokens are
//! rejected, because they are Medusa heads. Heads without output matrices, which forerun trains,
//! use the target's head. With `d2t`, matrices have rows for some tokens only.

use super::Speculator;
use super::draft_vocabulary::DRAFT_TO_TARGET;
use super::layers::short_name;
use crate::architecture::{Architecture, DraftHeads, Head, Input};
use crate::checkpoint::{LoadError, NamedTensors};
use crate::config::Config;
use crate::tensor::{HeadTensor, Tensor};

pub(super) const PREFIX: &str = "prefix_embeding_layer.";

/// The names and the numbers of the tensors.
pub(super) struct Layout {
    dropout: bool,
    n_heads: usize,
    n_layers: usize,
    pub(super) hidden_size: usize,
    /// Whether there is a layer before the heads.
    has_prefix_layer: bool,
}

impl Layout {
    /// Detects the layout. Returns `None` for tensors that are not Hydra heads.
    pub(super) fn of(tensors: &NamedTensors) -> Option<Self> {
        let norm = format!("{PREFIX}{}", short_name(Tensor::FinalNorm));
        let has_prefix_layer = tensors.has(&norm);
        [false, true].into_iter().find_map(|dropout| {
            let empty = Self { dropout, n_heads: 0, n_layers: 0, hidden_size: 0, has_prefix_layer };
            let shape = tensors.shape(&empty.layer_name(0, 0, "linear.weight"))?;
            let count = |name: &dyn Fn(usize) -> String| {
                (0..).take_while(|&index| tensors.has(&name(index))).count()
            };
            let n_heads = count(&|head| empty.layer_name(head, 0, "linear.weight"));
            let n_layers = count(&|layer| empty.layer_name(0, layer, "linear.weight"));
            let hidden_size = shape.first().copied().unwrap_or(0);
            Some(Self { n_heads, n_layers, hidden_size, ..empty })
        })
    }

    fn layer_name(&self, head: usize, layer: usize, part: &str) -> String {
        let module = if self.dropout { 2 * layer + 1 } else { layer };
        format!("hydra_mlp.{head}.{module}.{part}")
    }

    fn head_name(&self, head: usize, part: &str) -> String {
        let module = if self.dropout { "1." } else { "" };
        format!("hydra_lm_head.{head}.{module}{part}")
    }

    pub(super) fn name(&self, head: usize, tensor: HeadTensor) -> String {
        match tensor {
            HeadTensor::First => self.layer_name(head, 0, "linear.weight"),
            HeadTensor::FirstBias => self.layer_name(head, 0, "linear.bias"),
            HeadTensor::FirstResidual => self.layer_name(head, 0, "res_connection.weight"),
            HeadTensor::FirstResidualBias => self.layer_name(head, 0, "res_connection.bias"),
            HeadTensor::Layer(layer) => self.layer_name(head, layer + 1, "linear.weight"),
            HeadTensor::LayerBias(layer) => self.layer_name(head, layer + 1, "linear.bias"),
            HeadTensor::Matrix => self.head_name(head, "weight"),
            HeadTensor::MatrixBias => self.head_name(head, "bias"),
        }
    }
}

impl Speculator {
    /// Returns the heads, which must read drafted tokens.
    pub(super) fn hydra(&self, layout: &Layout, target: &Config) -> Result<DraftHeads, LoadError> {
        if !self.tensors.has(&layout.name(0, HeadTensor::FirstResidual)) {
            return Err(self.wrong_kind("heads that read drafted tokens (\"grounded_heads\")"));
        }
        let layer_config = Config { num_hidden_layers: 1, ..target.clone() };
        let layer = layer_config.architecture();
        let matrix = self.tensors.shape(&layout.name(0, HeadTensor::Matrix));
        let outputs = matrix.and_then(<[usize]>::first).copied();
        let heads = DraftHeads {
            hidden_size: layout.hidden_size,
            vocab_size: target.vocab_size,
            context_length: target.max_position_embeddings,
            n_heads: layout.n_heads,
            n_layers: layout.n_layers - 1,
            reads_tokens: true,
            own_matrices: matrix.is_some(),
            head_tokens: self.tokens_of_draft_heads(outputs, target.vocab_size)?,
            // The layer has the target's shape and is followed by a norm.
            prefix: layout.has_prefix_layer.then(|| Architecture {
                input: Input::UnprojectedFeature,
                shares_embedding: true,
                head: Head::Target,
                head_bias: false,
                ..layer.clone()
            }),
        };
        let mut names: Vec<String> = Vec::new();
        for tensor in heads.tensors() {
            match tensor {
                Tensor::DraftHead(head, tensor) => {
                    names.extend([tensor, tensor.bias()].map(|part| layout.name(head, part)));
                }
                tensor => names.push(format!("{PREFIX}{}", short_name(tensor))),
            }
        }
        // The copy of the embedding is not read.
        names.push(format!("{PREFIX}{}", short_name(Tensor::Embedding)));
        names.push(DRAFT_TO_TARGET.to_owned());
        let is_known = |name: &str| names.iter().any(|known| known == name);
        self.tensors.reject_unknown("these Hydra heads", is_known)?;
        Ok(heads)
    }
}
