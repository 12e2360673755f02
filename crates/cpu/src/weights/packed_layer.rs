//! The packed weights of one layer.

use super::latent::PackedLatent;
use super::packer::Projection;
use crate::kernels::{AttentionShape, NormWeights, PackedMatrix, RecurrentWeights};
use crate::tensor_parallel::LayerWidths;
use forerun_formats::{Experts, Mlp};

/// What a layer adds because of its own input.
pub(crate) struct PackedOwnInput {
    /// The gated product, with the activation function of the gate.
    pub(crate) shape: Mlp,
    pub(crate) gate: PackedMatrix, // [width, hidden]
    pub(crate) up: PackedMatrix,   // [hidden, width]
    pub(crate) norm: NormWeights,
}

/// The packed weights of one layer: those of a share.
pub(crate) struct LayerWeights {
    /// How members share what they gather.
    pub(crate) widths: LayerWidths,
    pub(crate) attention_norm: PackedNorm,
    /// The shape of the attention, with its window. It has no heads if the layer has a recurrent
    /// mixer.
    pub(crate) shape: AttentionShape,
    /// The recurrent mixer, if the layer has one instead of attention.
    pub(crate) recurrent: Option<RecurrentWeights>,
    /// The index of the layer's position embedding, if it has one.
    pub(crate) rope: Option<usize>,
    /// What attention or the mixer reads: `[(n_heads + 2 · n_kv_heads) · head_dim, inputs]` for
    /// attention without gates and latent vectors.
    pub(crate) qkv: Projection,
    pub(crate) latent: Option<PackedLatent>,
    pub(crate) qk_norms: Option<PackedQkNorms>,
    /// The weights of the norm of each head's values, if there is one. All are 1: `[head_dim]`.
    pub(crate) value_norm: Option<Vec<f32>>,
    /// The layer to whose keys and values this one attends, if it has none of its own.
    pub(crate) keys_of: Option<usize>,
    /// Whether the rows of a block also attend to the later rows of their block.
    pub(crate) sees_block: bool,
    /// The limit of queries, keys and values, if there is one.
    pub(crate) qkv_limit: Option<f32>,
    /// The score of each head's attention sink, if the layer has any: `[n_heads]`.
    pub(crate) sinks: Option<Vec<f32>>,
    pub(crate) output: Projection, // [hidden, n_heads · head_dim], or [hidden, value width]
    /// Whether attention and the MLP add to what they read.
    pub(crate) post_norm: bool,
    pub(crate) attention_output_norm: Option<NormWeights>,
    /// The norm of what the MLP and the experts read, if there is one.
    pub(crate) mlp_norm: Option<NormWeights>,
    /// Whether the MLP and the experts read the hidden state before attention has been added.
    pub(crate) mlp_is_before_attention: bool,
    pub(crate) mlp: Option<PackedMlp>,
    pub(crate) experts: Option<PackedExperts>,
    pub(crate) mlp_output_norm: Option<NormWeights>,
    pub(crate) own_input: Option<PackedOwnInput>,
    /// The factor of the hidden state after the layer, if there is one.
    pub(crate) scalar: Option<f32>,
    /// The convolutions over blocks around attention and around the MLP, if there are any.
    pub(crate) attention_conv: Option<PackedBlockConv>,
    pub(crate) mlp_conv: Option<PackedBlockConv>,
}

/// The convolutions over blocks of what attention or the MLP reads and of what it adds.
pub(crate) struct PackedBlockConv {
    pub(crate) base: [Vec<f32>; 2],      // [taps, hidden] each
    pub(crate) projection: PackedMatrix, // [2 · taps · groups, hidden]
    pub(crate) group_size: usize,
}

impl LayerWeights {
    /// Returns the width of what attention or the mixer reads.
    pub(crate) fn row_width(&self) -> usize {
        let of_mixer = self.recurrent.as_ref().map(|mixer| mixer.shape.projected_width());
        of_mixer.unwrap_or_else(|| self.shape.row_width())
    }

    /// Returns the width of what attention or the mixer computes.
    pub(crate) fn mixed_width(&self) -> usize {
        let of_mixer = self.recurrent.as_ref().map(|mixer| mixer.shape.value_width());
        of_mixer.unwrap_or_else(|| self.shape.out_width())
    }

    pub(super) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let Self { qkv, latent, output, mlp, experts, .. } = self;
        let attention = [qkv, output].into_iter().flat_map(Projection::matrices);
        let attention = attention.chain(latent.iter().flat_map(PackedLatent::matrices));
        let experts = experts.iter().flat_map(PackedExperts::matrices);
        let mlps = mlp.iter().flat_map(PackedMlp::matrices).chain(experts);
        let own_input = self.own_input.iter().flat_map(|input| [&input.gate, &input.up]);
        let convs = self.attention_conv.iter().chain(&self.mlp_conv);
        let convs = convs.map(|conv| &conv.projection);
        attention.chain(mlps).chain(own_input).chain(convs)
    }

    /// Returns the number of bytes of weights that a pass over some rows reads, as
    /// [`Weights::bytes_read`] does.
    pub(crate) fn bytes_read(&self, rows: usize) -> usize {
        let all: usize = self.matrices().map(PackedMatrix::bytes).sum();
        all - self.experts.as_ref().map_or(0, |experts| experts.unread_bytes(rows))
    }
}

/// The norms of queries and keys.
pub(crate) struct PackedQkNorms {
    pub(crate) queries: Vec<f32>,
    pub(crate) keys: Vec<f32>,
    /// Whether all heads have one norm together, rather than one each.
    pub(crate) whole: bool,
}

pub(crate) struct PackedMlp {
    pub(crate) shape: Mlp,
    /// Gate, if there is one, and up: `[2 · intermediate, hidden]`.
    pub(crate) gate_up: Projection,
    pub(crate) down: Projection, // [hidden, intermediate]
}

impl PackedMlp {
    pub(super) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        self.gate_up.matrices().iter().chain(self.down.matrices())
    }
}

pub(crate) struct PackedExperts {
    pub(crate) shape: Experts,
    pub(crate) router: PackedMatrix, // [experts, hidden], f32
    /// What is added to the experts' weights to choose some of them: `[experts]`.
    pub(crate) correction: Option<Vec<f32>>,
    /// The factors of the experts' weights, if they have any: `[experts]`.
    pub(crate) scales: Option<Vec<f32>>,
    /// The norm of what the router reads, if it has one of its own.
    pub(crate) router_norm: Option<NormWeights>,
    pub(crate) norms: Option<ExpertNorms>,
    /// The projection whose sigmoid is the factor of the dense MLP: `[1, hidden]`, f32.
    pub(crate) shared_gate: Option<PackedMatrix>,
    pub(crate) experts: Vec<PackedMlp>,
}

impl PackedExperts {
    pub(super) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let experts = self.experts.iter().flat_map(PackedMlp::matrices);
        std::iter::once(&self.router).chain(&self.shared_gate).chain(experts)
    }

    /// Returns the bytes of the experts that no row of a pass chooses: the expected number.
    pub(super) fn unread_bytes(&self, rows: usize) -> usize {
        let all = self.experts.iter().flat_map(PackedMlp::matrices);
        let bytes: usize = all.map(PackedMatrix::bytes).sum();
        let n_experts = self.shape.n_experts as f64;
        let unread = n_experts - self.shape.expected_distinct(rows);
        (bytes as f64 / n_experts * unread) as usize
    }
}

/// The norms that experts have next to a dense MLP.
pub(crate) struct ExpertNorms {
    pub(crate) input: NormWeights,
    pub(crate) output: NormWeights,
    /// That of what the dense MLP adds.
    pub(crate) dense_output: NormWeights,
}

/// The weights of the norm before a layer's attention: `[hidden]` each.
pub(crate) enum PackedNorm {
    None,
    Hidden(NormWeights),
    EmbeddingAndHidden { embedding: NormWeights, hidden: NormWeights, normed_residual: bool },
}
