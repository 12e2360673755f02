//! The weights of layers in a GPU's memory.

use crate::block_conv::BlockConvWeights;
use crate::expert_matrix::ExpertMatrix;
use crate::head_matrix::HeadMatrix;
use crate::matrix::GpuMatrix;
use forerun_formats::{Attention, Experts, Latent, Mlp, MlpInput, OwnInput, Recurrent};
use wgpu::Buffer;

/// The weights of a norm: `[width]` each.
#[derive(Clone)]
pub(crate) struct NormWeights {
    pub(crate) weight: Option<Buffer>,
    pub(crate) bias: Option<Buffer>,
}

/// The norms before a layer's attention.
pub(crate) enum AttentionNormWeights {
    /// Attention reads the hidden state.
    None,
    /// Attention reads the normed hidden state.
    Hidden(NormWeights),
    /// Attention reads the normed embedding, then the normed hidden state.
    EmbeddingAndHidden {
        embedding: NormWeights,
        hidden: NormWeights,
        /// Whether the layer adds to the normed hidden state.
        normed_residual: bool,
    },
}

pub(crate) struct LayerWeights {
    pub(crate) attention_norm: AttentionNormWeights,
    /// The convolutions of what attention reads and adds.
    pub(crate) attention_conv: Option<BlockConvWeights>,
    pub(crate) mixer: MixerWeights,
    /// What turns the results of attention or of a recurrent mixer into what is added:
    /// `[hidden, …]`.
    pub(crate) output: GpuMatrix,
    pub(crate) attention_output_norm: Option<NormWeights>,
    pub(crate) mlp_input: MlpInput,
    /// The norm of what the MLP reads, unless that is the hidden state.
    pub(crate) mlp_norm: Option<NormWeights>,
    /// The convolutions of what the MLP reads and adds.
    pub(crate) mlp_conv: Option<BlockConvWeights>,
    /// The dense MLP, the experts, or both.
    pub(crate) dense: Option<DenseWeights>,
    pub(crate) experts: Option<ExpertWeights>,
    pub(crate) mlp_output_norm: Option<NormWeights>,
    pub(crate) own_input: Option<OwnInputWeights>,
    /// What the hidden state after the layer is multiplied by.
    pub(crate) scalar: Option<f32>,
}

pub(crate) struct OwnInputWeights {
    pub(crate) shape: OwnInput,
    pub(crate) gate: GpuMatrix, // [width, hidden]
    pub(crate) up: GpuMatrix,   // [hidden, width]
    pub(crate) norm: NormWeights,
}

/// What mixes the rows of a layer.
pub(crate) enum MixerWeights {
    Attention(Box<AttentionWeights>),
    Recurrent(Box<RecurrentWeights>),
}

/// The weights of attention, without its output projection.
pub(crate) struct AttentionWeights {
    pub(crate) shape: Attention,
    /// Queries, keys and values: `[(n_heads + 2 · n_kv_heads) · head_dim, hidden]`; queries only if
    /// the layer has no keys of its own. With compressed keys: queries, or their latent vector.
    pub(crate) projection: GpuMatrix,
    /// The norms of queries and of keys, one after another.
    pub(crate) head_norms: Option<Buffer>,
    pub(crate) sinks: Option<Buffer>, // [n_heads]
    /// The index of the layer's position embedding.
    pub(crate) rope: Option<usize>,
    pub(crate) gate: Option<GpuMatrix>, // [n_heads · head_dim, hidden]
    pub(crate) latent: Option<LatentWeights>,
}

impl AttentionWeights {
    /// Returns the number of key heads of the layer's own: 0 if it attends to those of another
    /// layer.
    pub(crate) fn own_key_heads(&self) -> usize {
        if self.shape.keys_of.is_some() { 0 } else { self.shape.n_kv_heads }
    }

    pub(crate) fn value_dim(&self) -> usize {
        self.latent.as_ref().map_or(self.shape.head_dim, |latent| latent.shape.rank)
    }

    fn matrices(&self) -> impl Iterator<Item = &GpuMatrix> {
        let of_latent = self.latent.iter().flat_map(LatentWeights::matrices);
        [&self.projection].into_iter().chain(&self.gate).chain(of_latent)
    }

    fn bytes(&self) -> u64 {
        let expansions = self.latent.iter().flat_map(|latent| [&latent.keys, &latent.values]);
        self.matrices().map(GpuMatrix::bytes).sum::<u64>()
            + expansions.map(HeadMatrix::bytes).sum::<u64>()
    }
}

/// The weights of compressed keys and values, without the projection of queries.
pub(crate) struct LatentWeights {
    pub(crate) shape: Latent,
    /// The norm of the latent vector of queries and their expansion, if queries are compressed.
    pub(crate) queries: Option<(Buffer, GpuMatrix)>, // [query_rank]; [n_heads · query_dim, query_rank]
    /// The latent vector of keys and values, then the part of keys with RoPE.
    pub(crate) down: GpuMatrix, // [rank + rope_dim, hidden]
    pub(crate) norm: Buffer, // [rank]
    /// What turns each head's queries into queries of the latent vector.
    pub(crate) keys: HeadMatrix, // [n_heads, rank, plain_dim]
    /// The expansion of each head's values.
    pub(crate) values: HeadMatrix, // [n_heads, value_dim, rank]
}

impl LatentWeights {
    fn matrices(&self) -> impl Iterator<Item = &GpuMatrix> {
        [&self.down].into_iter().chain(self.queries.iter().map(|(_, up)| up))
    }
}

/// The weights of a recurrent mixer, without its output projection.
pub(crate) struct RecurrentWeights {
    pub(crate) shape: Recurrent,
    /// Queries, keys, values, gates, `β` and decays: `[projected width, hidden]`.
    pub(crate) projection: GpuMatrix,
    /// For each position, from the oldest to the row's own: `[kernel, channels]`.
    pub(crate) convolution: Buffer,
    pub(crate) convolution_bias: Option<Buffer>, // [channels]
    /// Rates of decays, biases of decays, and factors of values in the output:
    /// `[3, n_value_heads]`.
    pub(crate) heads: Option<Buffer>,
    pub(crate) norm: Option<Buffer>, // [value_dim] or [n_value_heads · value_dim]
}

pub(crate) struct DenseWeights {
    pub(crate) mlp: Mlp,
    pub(crate) gate_up: GpuMatrix, // [2 · intermediate, hidden], or [intermediate, hidden]
    pub(crate) down: GpuMatrix,    // [hidden, intermediate]
}

pub(crate) struct ExpertWeights {
    pub(crate) shape: Experts,
    pub(crate) router: GpuMatrix, // [experts, hidden], f32
    /// What is added to the experts' weights to choose some of them, then what the weights of the
    /// chosen ones are multiplied by.
    pub(crate) adjustments: Option<Buffer>, // [2, experts]
    /// The norm of what the router reads, which is the hidden state then.
    pub(crate) router_norm: Option<NormWeights>,
    pub(crate) norms: Option<ExpertNorms>,
    /// The gate of the dense MLP's output.
    pub(crate) shared_gate: Option<GpuMatrix>, // [1, hidden], f32
    pub(crate) gate_up: ExpertMatrix, // [experts, 2 · intermediate, hidden], or [experts, intermediate, hidden]
    pub(crate) down: ExpertMatrix,    // [experts, hidden, intermediate]
}

/// The norms of experts that do not read what the dense MLP next to them reads.
pub(crate) struct ExpertNorms {
    /// The norm of the hidden state that experts read.
    pub(crate) input: NormWeights,
    /// The norms of what experts add, and of what the dense MLP adds.
    pub(crate) output: NormWeights,
    pub(crate) dense_output: NormWeights,
}

impl ExpertWeights {
    /// Returns whether another device has the experts and chooses among them. Only the gate of the
    /// dense MLP and the norms are here then.
    pub(crate) fn are_elsewhere(&self) -> bool {
        self.gate_up.parts.is_empty()
    }

    pub(crate) fn expert_bytes(&self) -> u64 {
        (self.gate_up.bytes() + self.down.bytes()) / self.shape.n_experts as u64
    }

    fn bytes(&self) -> u64 {
        let matrices = [Some(&self.router), self.shared_gate.as_ref()];
        let matrices = matrices.into_iter().flatten().map(GpuMatrix::bytes).sum::<u64>();
        matrices + self.gate_up.bytes() + self.down.bytes()
    }
}

impl LayerWeights {
    /// Returns the layer's attention, unless it has a recurrent mixer.
    pub(crate) fn attention(&self) -> Option<&AttentionWeights> {
        match &self.mixer {
            MixerWeights::Attention(attention) => Some(attention),
            MixerWeights::Recurrent(_) => None,
        }
    }

    /// Returns the layer's recurrent mixer, unless it has attention.
    pub(crate) fn recurrent(&self) -> Option<&RecurrentWeights> {
        match &self.mixer {
            MixerWeights::Attention(_) => None,
            MixerWeights::Recurrent(mixer) => Some(mixer),
        }
    }

    /// Returns the size of all matrices in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let dense = self.dense.iter().flat_map(|dense| [&dense.gate_up, &dense.down]);
        let matrices = [&self.output].into_iter().chain(dense);
        let mixer = match &self.mixer {
            MixerWeights::Attention(attention) => attention.bytes(),
            MixerWeights::Recurrent(mixer) => mixer.projection.bytes(),
        };
        let experts = self.experts.as_ref().map_or(0, ExpertWeights::bytes);
        let own_input = self.own_input.iter().flat_map(|input| [&input.gate, &input.up]);
        let convs = self.attention_conv.iter().chain(&self.mlp_conv);
        let convs = convs.map(|conv| &conv.projection);
        let matrices = matrices.chain(own_input).chain(convs);
        matrices.map(GpuMatrix::bytes).sum::<u64>() + mixer + experts
    }
}
