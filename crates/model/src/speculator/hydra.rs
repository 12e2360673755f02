//! Hydra heads as their authors store them.
//!
//! Head `h` begins with `hydra_mlp.{h}.0.linear` and `hydra_mlp.{h}.0.res_connection`, which read the
//! target's feature and `h + 1` embeddings one behind the other; residual layers
//! `hydra_mlp.{h}.{layer}.linear` and a head of its own, `hydra_lm_head.{h}`, follow. With dropout, as in
//! Hydra++, layers are at every second place, and the head's matrix is `hydra_lm_head.{h}.1`. Hydra++ has
//! a layer of the target's shape in front of all heads, under `prefix_embeding_layer` (sic), beside a
//! copy of the embedding that nobody reads. Heads that read no tokens are refused: they are Medusa's.

use super::layers::{ShortNames, short_name};
use super::{Speculator, SpeculatorKind};
use crate::checkpoint::{LoadError, NamedTensors, Tensor};
use crate::config::Config;
use crate::kernels::{PackedMatrix, WeightType};
use crate::weights::{Packing, Weights, pack};
use std::sync::Arc;

/// What the names of Hydra++'s layer begin with.
const PREFIX: &str = "prefix_embeding_layer.";

/// What stands where, and how much of it.
pub(super) struct Layout {
    dropout: bool,
    n_heads: usize,
    n_layers: usize,
    pub(super) hidden_size: usize,
    /// Whether a layer stands in front of the heads.
    has_prefix: bool,
}

impl Layout {
    /// `None` for tensors that are no Hydra heads.
    pub(super) fn of(tensors: &NamedTensors) -> Option<Self> {
        let norm = format!("{PREFIX}{}", short_name(Tensor::FinalNorm));
        let has_prefix = tensors.has(&norm);
        [false, true].into_iter().find_map(|dropout| {
            let empty = Self { dropout, n_heads: 0, n_layers: 0, hidden_size: 0, has_prefix };
            let shape = tensors.shape(&empty.layer(0, 0, "linear.weight"))?;
            let counted = |name: &dyn Fn(usize) -> String| {
                (0..).take_while(|&index| tensors.has(&name(index))).count()
            };
            let n_heads = counted(&|head| empty.layer(head, 0, "linear.weight"));
            let n_layers = counted(&|layer| empty.layer(0, layer, "linear.weight"));
            let hidden_size = shape.first().copied().unwrap_or(0);
            Some(Self { n_heads, n_layers, hidden_size, ..empty })
        })
    }

    fn layer(&self, head: usize, layer: usize, part: &str) -> String {
        let place = if self.dropout { 2 * layer + 1 } else { layer };
        format!("hydra_mlp.{head}.{place}.{part}")
    }

    fn head(&self, head: usize, part: &str) -> String {
        let place = if self.dropout { "1." } else { "" };
        format!("hydra_lm_head.{head}.{place}{part}")
    }

    /// The names of all tensors that there may be.
    fn names(&self, target: &Config) -> Vec<String> {
        let parts =
            ["linear.weight", "linear.bias", "res_connection.weight", "res_connection.bias"];
        let mut names = Vec::new();
        for head in 0..self.n_heads {
            for layer in 0..self.n_layers {
                let parts = if layer == 0 { &parts[..] } else { &parts[..2] };
                names.extend(parts.iter().map(|part| self.layer(head, layer, part)));
            }
            names.extend(["weight", "bias"].map(|part| self.head(head, part)));
        }
        if self.has_prefix {
            let of_layer = Tensor::all(target).filter(|tensor| *tensor != Tensor::Head);
            names.extend(of_layer.map(|tensor| format!("{PREFIX}{}", short_name(tensor))));
        }
        names
    }
}

/// Hydra heads, packed.
pub struct HydraWeights {
    pub(crate) heads: Vec<HydraHead>,
    /// The target's.
    pub(crate) embedding: Arc<PackedMatrix>,
    /// Hydra++'s layer in front of the heads.
    pub(crate) prefix: Option<Arc<Weights>>,
    pub(crate) hidden_size: usize,
    pub(crate) vocab_size: usize,
    /// Tokens that the target can see.
    pub(crate) context_length: usize,
}

/// A head that guesses the token `reads` places behind the feature's; it reads those between.
pub(crate) struct HydraHead {
    /// What is acted upon, and what it is added to: `[hidden, (1 + reads) · hidden]` each.
    pub(crate) first: [PackedMatrix; 2],
    /// Residual layers, `[hidden, hidden]` each.
    pub(crate) layers: Vec<PackedMatrix>,
    pub(crate) head: PackedMatrix, // [vocab, hidden]
}

impl HydraWeights {
    /// Number of heads.
    #[must_use]
    pub fn n_heads(&self) -> usize {
        self.heads.len()
    }
}

impl Speculator {
    /// Reads Hydra heads for the target that they were opened for, in a type or else their own.
    ///
    /// # Errors
    ///
    /// When it is another drafter, its heads read no drafted tokens, a tensor is missing, unexpected, or
    /// of the wrong dtype or shape, or a value is not finite.
    pub fn hydra(
        &self,
        target: &Weights,
        weight_type: Option<WeightType>,
    ) -> Result<HydraWeights, LoadError> {
        let layout = match self.kind {
            SpeculatorKind::Hydra => Layout::of(&self.tensors),
            _ => None,
        };
        let layout = layout.ok_or_else(|| self.not_that("Hydra heads"))?;
        if !self.tensors.has(&layout.layer(0, 0, "res_connection.weight")) {
            return Err(self.not_that("heads that read drafted tokens (`grounded_heads`)"));
        }
        let of_target = Config { num_hidden_layers: 1, ..target.config().clone() };
        let names = layout.names(&of_target);
        self.tensors
            .reject_others("these Hydra heads", |name| names.iter().any(|known| known == name))?;
        let weight_type = self.weight_type(weight_type)?;
        let heads = (0..layout.n_heads)
            .map(|head| self.hydra_head(&layout, head, of_target.vocab_size, weight_type));
        let heads = heads.collect::<Result<Vec<_>, _>>()?;
        let prefix = || self.hydra_prefix(target, &of_target, weight_type);
        Ok(HydraWeights {
            heads,
            embedding: Arc::clone(&target.embedding),
            prefix: layout.has_prefix.then(prefix).transpose()?.map(Arc::new),
            hidden_size: layout.hidden_size,
            vocab_size: of_target.vocab_size,
            context_length: of_target.max_position_embeddings,
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
        let hint = "all heads have the same layers: the checkpoint is incomplete";
        let matrix = |name: &dyn Fn(&str) -> String, outputs: usize, inputs: usize| {
            let weights = tensors.rows(&name("weight"), &[outputs, inputs], hint)?;
            let bias = match tensors.has(&name("bias")) {
                true => Some(tensors.rows(&name("bias"), &[outputs], hint)?.read_all()?),
                false => None,
            };
            Ok::<_, LoadError>(pack(weight_type, &[weights])?.with_bias(bias))
        };
        let layer = |layer: usize, kind: &str, inputs: usize| {
            let name = |part: &str| layout.layer(head, layer, &format!("{kind}.{part}"));
            matrix(&name, size, inputs)
        };
        let wide = (head + 2) * size;
        let layers = (1..layout.n_layers).map(|index| layer(index, "linear", size));
        Ok(HydraHead {
            first: [layer(0, "linear", wide)?, layer(0, "res_connection", wide)?],
            layers: layers.collect::<Result<_, _>>()?,
            head: matrix(&|part: &str| layout.head(head, part), vocab_size, size)?,
        })
    }

    /// A layer of the target's shape with a norm behind it.
    fn hydra_prefix(
        &self,
        target: &Weights,
        config: &Config,
        weight_type: WeightType,
    ) -> Result<Weights, LoadError> {
        let source = ShortNames { tensors: &self.tensors, config, prefix: PREFIX };
        let packing = Packing { source: &source, config, weight_type };
        let layers = vec![packing.layer(0, true)?];
        let final_norm = Some(packing.vector(Tensor::FinalNorm)?);
        let embedding = Arc::clone(&target.embedding);
        let head = Some(Arc::clone(target.head()));
        let config = Config { tie_word_embeddings: false, ..config.clone() };
        Ok(Weights { config, weight_type, embedding, masks: Vec::new(), layers, final_norm, head })
    }
}
