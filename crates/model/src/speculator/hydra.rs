//! The storage layout of Hydra heads, as their authors store them.
//!
//! Head `h` begins with `hydra_mlp.{h}.0.linear` and `hydra_mlp.{h}.0.res_connection`. They read the
//! concatenation of the target's feature and `h + 1` embeddings. Residual layers
//! `hydra_mlp.{h}.{layer}.linear` and an output matrix `hydra_lm_head.{h}` follow. With dropout, as in
//! Hydra++, only odd indices are layers, and the output matrix is `hydra_lm_head.{h}.1`. Hydra++ has a
//! layer of the target's shape before all heads, under `prefix_embeding_layer` (sic), together with a
//! copy of the embedding that is never read. Heads that read no tokens are rejected, because they are
//! Medusa heads.

use super::layers::{ShortNamedTensors, short_name};
use super::{Speculator, SpeculatorKind};
use crate::checkpoint::{LoadError, NamedTensors, Tensor};
use crate::config::Config;
use crate::kernels::{PackedMatrix, WeightType};
use crate::weights::{WeightPacker, Weights, pack};
use std::sync::Arc;

/// The prefix of the names of Hydra++'s layer.
const PREFIX: &str = "prefix_embeding_layer.";

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

    /// Returns the names of all tensors that the layout allows.
    fn names(&self, target: &Config) -> Vec<String> {
        let parts =
            ["linear.weight", "linear.bias", "res_connection.weight", "res_connection.bias"];
        let mut names = Vec::new();
        for head in 0..self.n_heads {
            for layer in 0..self.n_layers {
                let parts = if layer == 0 { &parts[..] } else { &parts[..2] };
                names.extend(parts.iter().map(|part| self.layer_name(head, layer, part)));
            }
            names.extend(["weight", "bias"].map(|part| self.head_name(head, part)));
        }
        if self.has_prefix_layer {
            let tensors = Tensor::all(target).filter(|tensor| *tensor != Tensor::Head);
            names.extend(tensors.map(|tensor| format!("{PREFIX}{}", short_name(tensor))));
        }
        names
    }
}

/// Packed Hydra heads.
pub struct HydraWeights {
    pub(crate) heads: Vec<HydraHead>,
    /// The target's embedding.
    pub(crate) embedding: Arc<PackedMatrix>,
    /// Hydra++'s layer before the heads.
    pub(crate) prefix: Option<Arc<Weights>>,
    pub(crate) hidden_size: usize,
    pub(crate) vocab_size: usize,
    /// The target's context length in tokens.
    pub(crate) context_length: usize,
}

/// A Hydra head. It reads a feature and the `n` tokens after the feature's, and predicts the next token.
pub(crate) struct HydraHead {
    /// The first layer (the activation's input) and its residual connection:
    /// `[hidden, (1 + n) · hidden]` each.
    pub(crate) first: [PackedMatrix; 2],
    /// Residual layers, `[hidden, hidden]` each.
    pub(crate) layers: Vec<PackedMatrix>,
    pub(crate) head: PackedMatrix, // [vocab, hidden]
}

impl HydraWeights {
    /// Returns the number of heads.
    #[must_use]
    pub fn n_heads(&self) -> usize {
        self.heads.len()
    }
}

impl Speculator {
    /// Reads and packs Hydra heads. `target` must be the target that they were opened for. Without a
    /// weight type, they keep their stored type.
    ///
    /// # Errors
    ///
    /// When the drafter has another kind, its heads do not read drafted tokens, a tensor is missing,
    /// unexpected, or has the wrong dtype or shape, or a value is not finite.
    pub fn hydra(
        &self,
        target: &Weights,
        weight_type: Option<WeightType>,
    ) -> Result<HydraWeights, LoadError> {
        let layout = match self.kind {
            SpeculatorKind::Hydra => Layout::of(&self.tensors),
            _ => None,
        };
        let layout = layout.ok_or_else(|| self.wrong_kind("Hydra heads"))?;
        if !self.tensors.has(&layout.layer_name(0, 0, "res_connection.weight")) {
            return Err(self.wrong_kind("heads that read drafted tokens (\"grounded_heads\")"));
        }
        let layer_config = Config { num_hidden_layers: 1, ..target.config().clone() };
        let names = layout.names(&layer_config);
        let is_known = |name: &str| names.iter().any(|known| known == name);
        self.tensors.reject_unknown("these Hydra heads", is_known)?;
        let weight_type = self.weight_type(weight_type)?;
        let heads = (0..layout.n_heads)
            .map(|head| self.hydra_head(&layout, head, layer_config.vocab_size, weight_type));
        let heads = heads.collect::<Result<Vec<_>, _>>()?;
        let prefix_layer = || self.hydra_prefix_layer(target, &layer_config, weight_type);
        Ok(HydraWeights {
            heads,
            embedding: Arc::clone(&target.embedding),
            prefix: layout.has_prefix_layer.then(prefix_layer).transpose()?.map(Arc::new),
            hidden_size: layout.hidden_size,
            vocab_size: layer_config.vocab_size,
            context_length: layer_config.max_position_embeddings,
        })
    }

    fn hydra_head(
        &self,
        layout: &Layout,
        head: usize,
        vocab_size: usize,
        weight_type: WeightType,
    ) -> Result<HydraHead, LoadError> {
        let (size, tensors) = (layout.hidden_size, &self.tensors);
        let hint = "the checkpoint is incomplete: all heads must have the same layers";
        let matrix = |name: &dyn Fn(&str) -> String, outputs: usize, inputs: usize| {
            let weights = tensors.rows(&name("weight"), &[outputs, inputs], hint)?;
            let bias = match tensors.has(&name("bias")) {
                true => Some(tensors.rows(&name("bias"), &[outputs], hint)?.read_all()?),
                false => None,
            };
            Ok::<_, LoadError>(pack(weight_type, &[weights])?.with_bias(bias))
        };
        let layer = |layer: usize, kind: &str, inputs: usize| {
            let name = |part: &str| layout.layer_name(head, layer, &format!("{kind}.{part}"));
            matrix(&name, size, inputs)
        };
        let wide = (head + 2) * size;
        let layers = (1..layout.n_layers).map(|index| layer(index, "linear", size));
        Ok(HydraHead {
            first: [layer(0, "linear", wide)?, layer(0, "res_connection", wide)?],
            layers: layers.collect::<Result<_, _>>()?,
            head: matrix(&|part: &str| layout.head_name(head, part), vocab_size, size)?,
        })
    }

    /// Reads the layer before the heads. It has the target's shape and is followed by a norm.
    fn hydra_prefix_layer(
        &self,
        target: &Weights,
        config: &Config,
        weight_type: WeightType,
    ) -> Result<Weights, LoadError> {
        let source = ShortNamedTensors { tensors: &self.tensors, config, prefix: PREFIX };
        let packer = WeightPacker { source: &source, config, weight_type };
        let layers = vec![packer.layer(0, true)?];
        let final_norm = Some(packer.vector(Tensor::FinalNorm)?);
        let embedding = Arc::clone(&target.embedding);
        let head = Some(Arc::clone(target.head()));
        let config = Config { tie_word_embeddings: false, ..config.clone() };
        Ok(Weights { config, weight_type, embedding, masks: Vec::new(), layers, final_norm, head })
    }
}
