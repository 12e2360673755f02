//! The names and shapes of a model's tensors.

use std::fmt;

/// One weight tensor of a model, independent of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tensor {
    /// Token embedding, `[vocab_size, hidden_size]`.
    Embedding,
    /// Embeddings of positions, `[rows, hidden_size]` ([`PositionTable`](crate::PositionTable)).
    Positions,
    /// The parts of the layers' own inputs that follow from the token alone,
    /// `[vocab_size, layers · width]` ([`OwnInput`](crate::OwnInput)).
    LayerInputs,
    /// Projection of the embedding to the layers' own inputs, `[layers · width, hidden_size]`.
    LayerInputProjection,
    /// Weight of the norm of each layer's part of that projection, `[width]`.
    LayerInputNorm,
    /// Weight of the norm after the last layer, `[hidden_size]`.
    FinalNorm,
    /// Its bias, `[hidden_size]`.
    FinalNormBias,
    /// Output projection to logits, `[vocab_size, hidden_size]`. If the two are tied, this is the
    /// embedding.
    Head,
    /// Bias of the output projection, `[vocab_size]`.
    HeadBias,
    /// A tensor of the layer with this index.
    Layer(usize, LayerTensor),
    /// A tensor of an expert: the layer, the expert, and the tensor.
    Expert(usize, usize, ExpertTensor),
    /// Embeddings of the mask tokens, `[mask_tokens, hidden_size]`.
    MaskEmbeddings,
    /// What rows of mask tokens read instead of the target's features,
    /// `[mask_tokens, hidden_size]`.
    MaskFeatures,
    /// Projection of features, or of an embedding and a feature, to the first layer's input,
    /// `[hidden_size, inputs]`.
    Fusion,
    /// Its bias, `[hidden_size]`.
    FusionBias,
    /// Weight of the RMS norm of the embedding before the projection of it and a feature,
    /// `[hidden_size]`.
    EmbeddingNorm,
    /// Weight of the RMS norm of a whole feature before its projection, `[feature width]`.
    FeatureNorm,
    /// Weight of the RMS norm of the part of a feature with this index, `[feature width / parts]`.
    FeaturePartNorm(usize),
    /// Weight of the RMS norm of a projected feature, `[hidden_size]`
    /// ([`Input::Block`](crate::Input::Block)).
    ContextNorm,
    /// A tensor of the draft head with this index.
    DraftHead(usize, HeadTensor),
    /// A tensor of the heads after a block drafter's layers ([`BlockHeads`](crate::BlockHeads)).
    BlockHead(BlockHeadTensor),
}

/// One weight tensor of a layer. Matrices are `[outputs, inputs]`; `q_size` is
/// `num_attention_heads × head_dim` and `kv_size` is `num_key_value_heads × head_dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerTensor {
    /// Weight of the norm before attention, `[hidden_size]`.
    AttentionNorm,
    /// Bias of that norm, `[hidden_size]`.
    AttentionNormBias,
    /// Weight of the RMS norm of the hidden state, if attention also reads the embedding (EAGLE-3).
    /// [`Self::AttentionNorm`] is that of the embedding then.
    HiddenNorm,
    /// Query projection, `[q_size, hidden_size]`; each head's rows in the half-split order of RoPE.
    Query,
    /// Key projection, `[kv_size, hidden_size]`; each head's rows in the half-split order of RoPE.
    Key,
    /// Value projection, `[kv_size, hidden_size]`.
    Value,
    /// Projection to the latent vector of queries, `[query_rank, hidden_size]`
    /// ([`Latent`](crate::Latent)).
    QueryDown,
    /// Its bias, `[query_rank]`.
    QueryDownBias,
    /// Weight of the RMS norm of the latent vector of queries, `[query_rank]`.
    QueryLatentNorm,
    /// Expansion to queries, `[heads · (plain_dim + rope_dim), query_rank]`: each head's rows
    /// without RoPE, then those with RoPE in its half-split order. [`Self::Query`] has this order,
    /// too, if only keys and values are compressed.
    QueryUp,
    /// Projection to the latent vector of keys and values, and to the part of the keys with RoPE:
    /// `[rank + rope_dim, hidden_size]`, the latter in the half-split order.
    LatentDown,
    /// Its bias, `[rank + rope_dim]`.
    LatentDownBias,
    /// Weight of the RMS norm of the latent vector of keys and values, `[rank]`.
    LatentNorm,
    /// Expansion to keys and values, `[heads · (plain_dim + value_dim), rank]`: each head's keys,
    /// then its values.
    LatentUp,
    /// Bias of the query projection, `[q_size]`, in the order of its rows.
    QueryBias,
    /// Bias of the key projection, `[kv_size]`, in the order of its rows.
    KeyBias,
    /// Bias of the value projection, `[kv_size]`.
    ValueBias,
    /// Weight of the norm of queries: `[head_dim]` for each head, or `[q_size]`
    /// ([`QkNorms`](crate::QkNorms)).
    QueryNorm,
    /// Weight of the norm of keys: `[head_dim]` for each head, or `[kv_size]`.
    KeyNorm,
    /// The score of each head's attention sink, `[num_attention_heads]`.
    Sinks,
    /// Projection whose sigmoid multiplies the output of attention, `[q_size, hidden_size]`.
    AttentionGate,
    /// Its bias, `[q_size]`.
    AttentionGateBias,
    /// Output projection of attention, `[hidden_size, q_size]`.
    Output,
    /// Bias of attention's output projection, `[hidden_size]`.
    OutputBias,
    /// Query projection of a recurrent mixer, `[key_width, hidden_size]`
    /// ([`Recurrent`](crate::Recurrent)).
    MixerQuery,
    /// Key projection of a recurrent mixer, `[key_width, hidden_size]`.
    MixerKey,
    /// Value projection of a recurrent mixer, `[value_width, hidden_size]`.
    MixerValue,
    /// Projection to the gates of a recurrent mixer, `[value_width, hidden_size]`.
    MixerGate,
    /// Projection to the `β` of a recurrent mixer, `[beta_width, hidden_size]`.
    MixerBeta,
    /// Projection to the decays of a recurrent mixer, `[value heads, hidden_size]`.
    MixerDecay,
    /// Convolution of queries, `[key_width, kernel]`; the last column applies to the row itself.
    QueryConv,
    /// Convolution of keys, `[key_width, kernel]`.
    KeyConv,
    /// Convolution of values, `[value_width, kernel]`.
    ValueConv,
    /// Bias of the convolution of queries, `[key_width]`.
    QueryConvBias,
    /// Bias of the convolution of keys, `[key_width]`.
    KeyConvBias,
    /// Bias of the convolution of values, `[value_width]`.
    ValueConvBias,
    /// Logarithm of the rate of each head's decay, `[value heads]`.
    DecayRate,
    /// What is added to the projection to decays, `[value heads]`.
    DecayBias,
    /// The factor with which each head's values are added to its output, `[value heads]`.
    Skip,
    /// Weight of the norm of a recurrent mixer's output: `[value_dim]` for each head, or
    /// `[value_width]`.
    MixerNorm,
    /// Output projection of a recurrent mixer, `[hidden_size, value_width]`.
    MixerOutput,
    /// Weight of the norm of what attention adds, `[hidden_size]`.
    AttentionOutputNorm,
    /// Weight of the norm before the MLP, `[hidden_size]`.
    MlpNorm,
    /// Bias of that norm, `[hidden_size]`.
    MlpNormBias,
    /// Weight of the norm of what the router reads, `[hidden_size]`
    /// ([`Router::own_norm`](crate::Router::own_norm)).
    RouterNorm,
    /// Projection to the scores of the experts, `[experts, hidden_size]`.
    Router,
    /// Its bias, `[experts]`.
    RouterBias,
    /// What is added to the experts' weights to choose some of them, `[experts]`.
    RouterCorrection,
    /// The factors of the experts' weights, `[experts]`.
    ExpertScales,
    /// Weight of the norm of what the experts read, `[hidden_size]`
    /// ([`Experts::own_norms`](crate::Experts::own_norms)).
    ExpertsNorm,
    /// Weight of the norm of what the experts add, `[hidden_size]`.
    ExpertsOutputNorm,
    /// Weight of the norm of what the dense MLP next to the experts adds, `[hidden_size]`.
    DenseOutputNorm,
    /// Projection whose sigmoid is the factor of the dense MLP next to experts, `[1, hidden_size]`.
    SharedGate,
    /// Gate projection of the MLP (input of the activation), `[intermediate_size, hidden_size]`.
    Gate,
    /// Up projection of the MLP, `[intermediate_size, hidden_size]`.
    Up,
    /// Bias of the gate projection, `[intermediate_size]`.
    GateBias,
    /// Bias of the up projection, `[intermediate_size]`.
    UpBias,
    /// Down projection of the MLP, `[hidden_size, intermediate_size]`.
    Down,
    /// Bias of the down projection, `[hidden_size]`.
    DownBias,
    /// Weight of the norm of what the MLP adds, `[hidden_size]`.
    MlpOutputNorm,
    /// Projection to the gate of the layer's own input, `[width, hidden_size]`
    /// ([`OwnInput`](crate::OwnInput)).
    InputGate,
    /// Projection of the gated input, `[hidden_size, width]`.
    InputUp,
    /// Weight of the norm of what it adds, `[hidden_size]`.
    InputNorm,
    /// The factor of the hidden state after the layer, `[1]`.
    Scalar,
    /// The convolutions of what attention reads and of what it adds, over the rows of a block:
    /// `[2, taps, hidden_size]` ([`BlockConv`](crate::BlockConv)).
    AttentionConv,
    /// Projection to what a row adds to both of them, `[2 · taps · groups, hidden_size]`.
    AttentionConvProjection,
    /// The convolutions of what the MLP reads and of what it adds, `[2, taps, hidden_size]`.
    MlpConv,
    /// Projection to what a row adds to both of them, `[2 · taps · groups, hidden_size]`.
    MlpConvProjection,
}

impl LayerTensor {
    /// All tensors that a layer can have, in the order of the forward pass.
    pub const ALL: [Self; 68] = [
        Self::AttentionNorm,
        Self::AttentionNormBias,
        Self::HiddenNorm,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::QueryDown,
        Self::QueryDownBias,
        Self::QueryLatentNorm,
        Self::QueryUp,
        Self::LatentDown,
        Self::LatentDownBias,
        Self::LatentNorm,
        Self::LatentUp,
        Self::QueryBias,
        Self::KeyBias,
        Self::ValueBias,
        Self::QueryNorm,
        Self::KeyNorm,
        Self::Sinks,
        Self::AttentionGate,
        Self::AttentionGateBias,
        Self::Output,
        Self::OutputBias,
        Self::MixerQuery,
        Self::MixerKey,
        Self::MixerValue,
        Self::MixerGate,
        Self::MixerBeta,
        Self::MixerDecay,
        Self::QueryConv,
        Self::KeyConv,
        Self::ValueConv,
        Self::QueryConvBias,
        Self::KeyConvBias,
        Self::ValueConvBias,
        Self::DecayRate,
        Self::DecayBias,
        Self::Skip,
        Self::MixerNorm,
        Self::MixerOutput,
        Self::AttentionOutputNorm,
        Self::MlpNorm,
        Self::MlpNormBias,
        Self::RouterNorm,
        Self::Router,
        Self::RouterBias,
        Self::RouterCorrection,
        Self::ExpertScales,
        Self::ExpertsNorm,
        Self::ExpertsOutputNorm,
        Self::DenseOutputNorm,
        Self::SharedGate,
        Self::Gate,
        Self::Up,
        Self::GateBias,
        Self::UpBias,
        Self::Down,
        Self::DownBias,
        Self::MlpOutputNorm,
        Self::InputGate,
        Self::InputUp,
        Self::InputNorm,
        Self::Scalar,
        Self::AttentionConv,
        Self::AttentionConvProjection,
        Self::MlpConv,
        Self::MlpConvProjection,
    ];

    /// The matrices of a layer. Those of one projection have the same inputs, and are computed
    /// together.
    pub const PROJECTIONS: [&'static [Self]; 11] = [
        &[
            Self::Query,
            Self::Key,
            Self::Value,
            Self::AttentionGate,
            Self::QueryDown,
            Self::LatentDown,
        ],
        &[Self::Output],
        &[Self::Gate, Self::Up],
        &[Self::Down],
        &[Self::QueryUp],
        &[
            Self::MixerQuery,
            Self::MixerKey,
            Self::MixerValue,
            Self::MixerGate,
            Self::MixerBeta,
            Self::MixerDecay,
        ],
        &[Self::MixerOutput],
        &[Self::InputGate],
        &[Self::InputUp],
        &[Self::AttentionConvProjection],
        &[Self::MlpConvProjection],
    ];

    /// Whether the tensor is the bias of a projection.
    pub(crate) fn is_bias(self) -> bool {
        self.name().ends_with(".bias")
    }

    /// Whether the tensor holds the weights of a convolution.
    pub(crate) fn is_convolution(self) -> bool {
        matches!(self, Self::QueryConv | Self::KeyConv | Self::ValueConv)
    }

    /// Whether the tensor holds the weights of a norm.
    pub(crate) fn is_norm_weight(self) -> bool {
        matches!(
            self,
            Self::AttentionNorm
                | Self::HiddenNorm
                | Self::QueryLatentNorm
                | Self::LatentNorm
                | Self::QueryNorm
                | Self::KeyNorm
                | Self::AttentionOutputNorm
                | Self::MlpNorm
                | Self::MlpOutputNorm
                | Self::RouterNorm
                | Self::ExpertsNorm
                | Self::ExpertsOutputNorm
                | Self::DenseOutputNorm
                | Self::InputNorm
        )
    }

    fn name(self) -> &'static str {
        match self {
            Self::AttentionNorm => "input_layernorm.weight",
            Self::AttentionNormBias => "input_layernorm.bias",
            Self::HiddenNorm => "hidden_norm.weight",
            Self::Query => "self_attn.q_proj.weight",
            Self::Key => "self_attn.k_proj.weight",
            Self::Value => "self_attn.v_proj.weight",
            Self::QueryDown => "self_attn.q_a_proj.weight",
            Self::QueryDownBias => "self_attn.q_a_proj.bias",
            Self::QueryLatentNorm => "self_attn.q_a_layernorm.weight",
            Self::QueryUp => "self_attn.q_b_proj.weight",
            Self::LatentDown => "self_attn.kv_a_proj_with_mqa.weight",
            Self::LatentDownBias => "self_attn.kv_a_proj_with_mqa.bias",
            Self::LatentNorm => "self_attn.kv_a_layernorm.weight",
            Self::LatentUp => "self_attn.kv_b_proj.weight",
            Self::QueryBias => "self_attn.q_proj.bias",
            Self::KeyBias => "self_attn.k_proj.bias",
            Self::ValueBias => "self_attn.v_proj.bias",
            Self::QueryNorm => "self_attn.q_norm.weight",
            Self::KeyNorm => "self_attn.k_norm.weight",
            Self::Sinks => "self_attn.sinks",
            Self::AttentionGate => "self_attn.gate_proj.weight",
            Self::AttentionGateBias => "self_attn.gate_proj.bias",
            Self::Output => "self_attn.o_proj.weight",
            Self::OutputBias => "self_attn.o_proj.bias",
            Self::MixerQuery => "linear_attn.in_proj_q.weight",
            Self::MixerKey => "linear_attn.in_proj_k.weight",
            Self::MixerValue => "linear_attn.in_proj_v.weight",
            Self::MixerGate => "linear_attn.in_proj_z.weight",
            Self::MixerBeta => "linear_attn.in_proj_b.weight",
            Self::MixerDecay => "linear_attn.in_proj_a.weight",
            Self::QueryConv => "linear_attn.conv_q.weight",
            Self::KeyConv => "linear_attn.conv_k.weight",
            Self::ValueConv => "linear_attn.conv_v.weight",
            Self::QueryConvBias => "linear_attn.conv_q.bias",
            Self::KeyConvBias => "linear_attn.conv_k.bias",
            Self::ValueConvBias => "linear_attn.conv_v.bias",
            Self::DecayRate => "linear_attn.A_log",
            Self::DecayBias => "linear_attn.dt_bias",
            Self::Skip => "linear_attn.D",
            Self::MixerNorm => "linear_attn.norm.weight",
            Self::MixerOutput => "linear_attn.out_proj.weight",
            Self::AttentionOutputNorm => "post_self_attn_layernorm.weight",
            Self::MlpNorm => "post_attention_layernorm.weight",
            Self::MlpNormBias => "post_attention_layernorm.bias",
            Self::Router => "mlp.gate.weight",
            Self::RouterBias => "mlp.gate.bias",
            Self::RouterCorrection => "mlp.gate.e_score_correction_bias",
            Self::RouterNorm => "router.scale",
            Self::ExpertScales => "router.per_expert_scale",
            Self::ExpertsNorm => "pre_feedforward_layernorm_2.weight",
            Self::ExpertsOutputNorm => "post_feedforward_layernorm_2.weight",
            Self::DenseOutputNorm => "post_feedforward_layernorm_1.weight",
            Self::SharedGate => "mlp.shared_expert_gate.weight",
            Self::Gate => "mlp.gate_proj.weight",
            Self::Up => "mlp.up_proj.weight",
            Self::GateBias => "mlp.gate_proj.bias",
            Self::UpBias => "mlp.up_proj.bias",
            Self::Down => "mlp.down_proj.weight",
            Self::DownBias => "mlp.down_proj.bias",
            Self::MlpOutputNorm => "post_mlp_layernorm.weight",
            Self::InputGate => "per_layer_input_gate.weight",
            Self::InputUp => "per_layer_projection.weight",
            Self::InputNorm => "post_per_layer_input_norm.weight",
            Self::Scalar => "layer_scalar",
            Self::AttentionConv => "attention_conv.base_kernel",
            Self::AttentionConvProjection => "attention_conv.kernel_projection.weight",
            Self::MlpConv => "mlp_conv.base_kernel",
            Self::MlpConvProjection => "mlp_conv.kernel_projection.weight",
        }
    }
}

/// One weight tensor of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertTensor {
    /// Gate projection (input of the activation), `[intermediate_size, hidden_size]`.
    Gate,
    /// Up projection, `[intermediate_size, hidden_size]`.
    Up,
    /// Bias of the gate projection, `[intermediate_size]`.
    GateBias,
    /// Bias of the up projection, `[intermediate_size]`.
    UpBias,
    /// Down projection, `[hidden_size, intermediate_size]`.
    Down,
    /// Bias of the down projection, `[hidden_size]`.
    DownBias,
}

impl ExpertTensor {
    /// All tensors that an expert can have, in the order of the forward pass.
    pub const ALL: [Self; 6] =
        [Self::Gate, Self::Up, Self::GateBias, Self::UpBias, Self::Down, Self::DownBias];

    /// The matrices of an expert. Those of one projection have the same inputs, and are computed
    /// together.
    pub const PROJECTIONS: [&'static [Self]; 2] = [&[Self::Gate, Self::Up], &[Self::Down]];

    /// Returns the index of the projection: 0 for the gate, 1 for up, 2 for down.
    pub(crate) fn projection(self) -> usize {
        match self {
            Self::Gate | Self::GateBias => 0,
            Self::Up | Self::UpBias => 1,
            Self::Down | Self::DownBias => 2,
        }
    }

    /// Returns the tensor with the same meaning in a dense MLP.
    #[must_use]
    pub fn dense(self) -> LayerTensor {
        match self {
            Self::Gate => LayerTensor::Gate,
            Self::Up => LayerTensor::Up,
            Self::GateBias => LayerTensor::GateBias,
            Self::UpBias => LayerTensor::UpBias,
            Self::Down => LayerTensor::Down,
            Self::DownBias => LayerTensor::DownBias,
        }
    }
}

/// One weight tensor of a draft head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadTensor {
    /// The layer on the state and the tokens whose output is activated,
    /// `[hidden_size, (1 + tokens) · hidden_size]`.
    First,
    /// Its bias, `[hidden_size]`.
    FirstBias,
    /// The residual connection of the first layer, of the same shape.
    FirstResidual,
    /// Its bias, `[hidden_size]`.
    FirstResidualBias,
    /// The residual layer with this index, `[hidden_size, hidden_size]`.
    Layer(usize),
    /// Its bias, `[hidden_size]`.
    LayerBias(usize),
    /// The matrix to logits, `[vocab_size, hidden_size]`.
    Matrix,
    /// Its bias, `[vocab_size]`.
    MatrixBias,
}

impl HeadTensor {
    /// Returns the tensor of a matrix's bias.
    #[must_use]
    pub fn bias(self) -> Self {
        match self {
            Self::First => Self::FirstBias,
            Self::FirstResidual => Self::FirstResidualBias,
            Self::Layer(index) => Self::LayerBias(index),
            Self::Matrix => Self::MatrixBias,
            bias => bias,
        }
    }
}

/// One weight tensor of the heads after a block drafter's layers (DSpark, DFlash 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockHeadTensor {
    /// The embedding of the token before a position, `[vocab_size, rank]`.
    Previous,
    /// Matrix to the bias of logits, `[head outputs, rank]`.
    LogitBias,
    /// Projection whose sigmoid multiplies the embedding, `[rank, hidden_size + rank]`.
    Gate,
    /// Its bias, `[rank]`.
    GateBias,
    /// Projection to the gate, the candidate and the output of a recurrent state,
    /// `[3 · rank, 2 · rank + hidden_size]`.
    Joint,
    /// Its bias, `[3 · rank]`.
    JointBias,
    /// Projection to the logit of the confidence, `[1, hidden_size]` or `[1, hidden_size + rank]`.
    Confidence,
    /// Its bias, `[1]`.
    ConfidenceBias,
    /// What the selector knows of the token before a position, `[vocab_size, rank]`.
    Predecessor,
    /// What the selector knows of a candidate, `[vocab_size, rank]`.
    Successor,
    /// Projection of the hidden state for the selector, `[rank, hidden_size]`.
    SelectorProjection,
}

impl BlockHeadTensor {
    fn name(self) -> &'static str {
        match self {
            Self::Previous => "markov_head.markov_w1.weight",
            Self::LogitBias => "markov_head.markov_w2.weight",
            Self::Gate => "markov_head.gate_proj.weight",
            Self::GateBias => "markov_head.gate_proj.bias",
            Self::Joint => "markov_head.joint_proj.weight",
            Self::JointBias => "markov_head.joint_proj.bias",
            Self::Confidence => "confidence_head.proj.weight",
            Self::ConfidenceBias => "confidence_head.proj.bias",
            Self::Predecessor => "candidate_selector.predecessor_codebook",
            Self::Successor => "candidate_selector.successor_codebook",
            Self::SelectorProjection => "candidate_selector.hidden_projection.weight",
        }
    }
}

/// Formats the tensor's name in Hugging Face checkpoints. Errors use it for every format.
impl fmt::Display for Tensor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding => formatter.write_str("model.embed_tokens.weight"),
            Self::Positions => formatter.write_str("model.embed_positions.weight"),
            Self::LayerInputs => formatter.write_str("model.embed_tokens_per_layer.weight"),
            Self::LayerInputProjection => {
                formatter.write_str("model.per_layer_model_projection.weight")
            }
            Self::LayerInputNorm => formatter.write_str("model.per_layer_projection_norm.weight"),
            Self::FinalNorm => formatter.write_str("model.norm.weight"),
            Self::FinalNormBias => formatter.write_str("model.norm.bias"),
            Self::Head => formatter.write_str("lm_head.weight"),
            Self::HeadBias => formatter.write_str("lm_head.bias"),
            Self::Layer(layer, tensor) => {
                write!(formatter, "model.layers.{layer}.{}", tensor.name())
            }
            Self::Expert(layer, expert, tensor) => {
                let part = tensor.dense().name().trim_start_matches("mlp.");
                write!(formatter, "model.layers.{layer}.mlp.experts.{expert}.{part}")
            }
            Self::MaskEmbeddings => formatter.write_str("mask_embeddings.weight"),
            Self::MaskFeatures => formatter.write_str("mask_features.weight"),
            Self::Fusion => formatter.write_str("fc.weight"),
            Self::FusionBias => formatter.write_str("fc.bias"),
            Self::EmbeddingNorm => formatter.write_str("enorm.weight"),
            Self::FeatureNorm => formatter.write_str("input_norm.weight"),
            Self::FeaturePartNorm(part) => write!(formatter, "fc_norm.{part}.weight"),
            Self::ContextNorm => formatter.write_str("hidden_norm.weight"),
            Self::DraftHead(head, tensor) => write!(formatter, "heads.{head}.{tensor:?}"),
            Self::BlockHead(tensor) => formatter.write_str(tensor.name()),
        }
    }
}
