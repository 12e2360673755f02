//! The names and shapes of a model's tensors.

use crate::table_enum::table_enum;
use std::fmt;

/// One weight tensor of a model, independent of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tensor {
    /// Token embedding, `[vocab_size, hidden_size]`.
    Embedding,
    /// Embeddings of positions, `[rows, hidden_size]` ([`PositionTable`](crate::PositionTable)).
    Positions,
    /// Embeddings of token types, `[types, hidden_size]`
    /// ([`PositionTable::token_types`](crate::PositionTable::token_types)).
    TokenTypes,
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
    /// Weight of the RMS norm of a whole feature before its projection, `[feature width]`, or of
    /// the part of it that is projected.
    FeatureNorm,
    /// Weight of the RMS norm of the part of a feature with this index, `[feature width / parts]`.
    FeaturePartNorm(usize),
    /// Weight of the RMS norm of a projected feature, `[hidden_size]`
    /// ([`Input::Block`](crate::Input::Block)).
    ContextNorm,
    /// Projection of a hidden state to what the row after it reads in place of the target's,
    /// `[target's hidden_size, hidden_size]` ([`Input::TargetKeys`](crate::Input::TargetKeys)).
    Prediction,
    /// A tensor of the draft head with this index.
    DraftHead(usize, HeadTensor),
    /// A tensor of the heads after a block drafter's layers ([`BlockHeads`](crate::BlockHeads)).
    BlockHead(BlockHeadTensor),
}

table_enum! {
    /// One weight tensor of a layer. Matrices are `[outputs, inputs]`; `q_size` is
    /// `num_attention_heads × head_dim` and `kv_size` is `num_key_value_heads × head_dim`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum LayerTensor;

    /// Returns the names in Hugging Face's checkpoints and in GGUF files, without the layer. In
    /// GGUF files, some are parts of other tensors, and those of drafters do not occur.
    pub(crate) fn names() -> [&'static str; 2];

    /// Weight of the norm before attention, `[hidden_size]`.
    AttentionNorm = ["input_layernorm.weight", "attn_norm.weight"],
    /// Bias of that norm, `[hidden_size]`.
    AttentionNormBias = ["input_layernorm.bias", "attn_norm.bias"],
    /// Weight of the RMS norm of the hidden state, if attention also reads the embedding (EAGLE-3).
    /// [`Self::AttentionNorm`] is that of the embedding then.
    HiddenNorm = ["hidden_norm.weight", "attn_norm_2.weight"],
    /// Query projection, `[q_size, hidden_size]`; each head's rows in the half-split order of RoPE.
    Query = ["self_attn.q_proj.weight", "attn_q.weight"],
    /// Key projection, `[kv_size, hidden_size]`; each head's rows in the half-split order of RoPE.
    Key = ["self_attn.k_proj.weight", "attn_k.weight"],
    /// Value projection, `[kv_size, hidden_size]`.
    Value = ["self_attn.v_proj.weight", "attn_v.weight"],
    /// Projection to the latent vector of queries, `[query_rank, hidden_size]`
    /// ([`Latent`](crate::Latent)).
    QueryDown = ["self_attn.q_a_proj.weight", "attn_q_a.weight"],
    /// Its bias, `[query_rank]`.
    QueryDownBias = ["self_attn.q_a_proj.bias", "attn_q_a.bias"],
    /// Weight of the RMS norm of the latent vector of queries, `[query_rank]`.
    QueryLatentNorm = ["self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"],
    /// Expansion to queries, `[heads · (plain_dim + rope_dim), query_rank]`: each head's rows
    /// without RoPE, then those with RoPE in its half-split order. [`Self::Query`] has this order,
    /// too, if only keys and values are compressed.
    QueryUp = ["self_attn.q_b_proj.weight", "attn_q_b.weight"],
    /// Projection to the latent vector of keys and values, and to the part of the keys with RoPE:
    /// `[rank + rope_dim, hidden_size]`, the latter in the half-split order.
    LatentDown = ["self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"],
    /// Its bias, `[rank + rope_dim]`.
    LatentDownBias = ["self_attn.kv_a_proj_with_mqa.bias", "attn_kv_a_mqa.bias"],
    /// Weight of the RMS norm of the latent vector of keys and values, `[rank]`.
    LatentNorm = ["self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"],
    /// Expansion to keys and values, `[heads · (plain_dim + value_dim), rank]`: each head's keys,
    /// then its values.
    LatentUp = ["self_attn.kv_b_proj.weight", "attn_kv_b.weight"],
    /// Bias of the query projection, `[q_size]`, in the order of its rows.
    QueryBias = ["self_attn.q_proj.bias", "attn_q.bias"],
    /// Bias of the key projection, `[kv_size]`, in the order of its rows.
    KeyBias = ["self_attn.k_proj.bias", "attn_k.bias"],
    /// Bias of the value projection, `[kv_size]`.
    ValueBias = ["self_attn.v_proj.bias", "attn_v.bias"],
    /// Weight of the norm of queries: `[head_dim]` for each head, or `[q_size]`
    /// ([`QkNorms`](crate::QkNorms)).
    QueryNorm = ["self_attn.q_norm.weight", "attn_q_norm.weight"],
    /// Weight of the norm of keys: `[head_dim]` for each head, or `[kv_size]`.
    KeyNorm = ["self_attn.k_norm.weight", "attn_k_norm.weight"],
    /// The score of each head's attention sink, `[num_attention_heads]`.
    Sinks = ["self_attn.sinks", "attn_sinks.weight"],
    /// Projection whose sigmoid multiplies the output of attention, `[q_size, hidden_size]`.
    AttentionGate = ["self_attn.gate_proj.weight", "attn_q_gate.weight"],
    /// Its bias, `[q_size]`.
    AttentionGateBias = ["self_attn.gate_proj.bias", "attn_q_gate.bias"],
    /// Output projection of attention, `[hidden_size, q_size]`.
    Output = ["self_attn.o_proj.weight", "attn_output.weight"],
    /// Bias of attention's output projection, `[hidden_size]`.
    OutputBias = ["self_attn.o_proj.bias", "attn_output.bias"],
    /// Query projection of a recurrent mixer, `[key_width, hidden_size]`
    /// ([`Recurrent`](crate::Recurrent)).
    MixerQuery = ["linear_attn.in_proj_q.weight", "ssm_in_q.weight"],
    /// Key projection of a recurrent mixer, `[key_width, hidden_size]`.
    MixerKey = ["linear_attn.in_proj_k.weight", "ssm_in_k.weight"],
    /// Value projection of a recurrent mixer, `[value_width, hidden_size]`.
    MixerValue = ["linear_attn.in_proj_v.weight", "ssm_in_v.weight"],
    /// Projection to the gates of a recurrent mixer, `[value_width, hidden_size]`.
    MixerGate = ["linear_attn.in_proj_z.weight", "ssm_in_z.weight"],
    /// Projection to the `β` of a recurrent mixer, `[beta_width, hidden_size]`.
    MixerBeta = ["linear_attn.in_proj_b.weight", "ssm_beta.weight"],
    /// Projection to the decays of a recurrent mixer, `[value heads, hidden_size]`.
    MixerDecay = ["linear_attn.in_proj_a.weight", "ssm_alpha.weight"],
    /// Convolution of queries, `[key_width, kernel]`; the last column applies to the row itself.
    QueryConv = ["linear_attn.conv_q.weight", "ssm_conv1d_q.weight"],
    /// Convolution of keys, `[key_width, kernel]`.
    KeyConv = ["linear_attn.conv_k.weight", "ssm_conv1d_k.weight"],
    /// Convolution of values, `[value_width, kernel]`.
    ValueConv = ["linear_attn.conv_v.weight", "ssm_conv1d_v.weight"],
    /// Bias of the convolution of queries, `[key_width]`.
    QueryConvBias = ["linear_attn.conv_q.bias", "ssm_conv1d_q.bias"],
    /// Bias of the convolution of keys, `[key_width]`.
    KeyConvBias = ["linear_attn.conv_k.bias", "ssm_conv1d_k.bias"],
    /// Bias of the convolution of values, `[value_width]`.
    ValueConvBias = ["linear_attn.conv_v.bias", "ssm_conv1d_v.bias"],
    /// Logarithm of the rate of each head's decay, `[value heads]`.
    DecayRate = ["linear_attn.A_log", "ssm_a"],
    /// What is added to the projection to decays, `[value heads]`.
    DecayBias = ["linear_attn.dt_bias", "ssm_dt.bias"],
    /// The factor with which each head's values are added to its output, `[value heads]`.
    Skip = ["linear_attn.D", "ssm_d"],
    /// Weight of the norm of a recurrent mixer's output: `[value_dim]` for each head, or
    /// `[value_width]`.
    MixerNorm = ["linear_attn.norm.weight", "ssm_norm.weight"],
    /// Output projection of a recurrent mixer, `[hidden_size, value_width]`.
    MixerOutput = ["linear_attn.out_proj.weight", "ssm_out.weight"],
    /// Weight of the norm of what attention adds, `[hidden_size]`.
    AttentionOutputNorm = ["post_self_attn_layernorm.weight", "post_attention_norm.weight"],
    /// Weight of the norm before the MLP, `[hidden_size]`.
    MlpNorm = ["post_attention_layernorm.weight", "ffn_norm.weight"],
    /// Bias of that norm, `[hidden_size]`.
    MlpNormBias = ["post_attention_layernorm.bias", "ffn_norm.bias"],
    /// Weight of the norm of what the router reads, `[hidden_size]`
    /// ([`Router::own_norm`](crate::Router::own_norm)).
    RouterNorm = ["router.scale", "ffn_gate_inp.scale"],
    /// Projection to the scores of the experts, `[experts, hidden_size]`.
    Router = ["mlp.gate.weight", "ffn_gate_inp.weight"],
    /// Its bias, `[experts]`.
    RouterBias = ["mlp.gate.bias", "ffn_gate_inp.bias"],
    /// What is added to the experts' weights to choose some of them, `[experts]`.
    RouterCorrection = ["mlp.gate.e_score_correction_bias", "exp_probs_b.bias"],
    /// The factors of the experts' weights, `[experts]`.
    ExpertScales = ["router.per_expert_scale", "ffn_down_exps.scale"],
    /// Weight of the norm of what the experts read, `[hidden_size]`
    /// ([`Experts::own_norms`](crate::Experts::own_norms)).
    ExpertsNorm = ["pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"],
    /// Weight of the norm of what the experts add, `[hidden_size]`.
    ExpertsOutputNorm = ["post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"],
    /// Weight of the norm of what the dense MLP next to the experts adds, `[hidden_size]`.
    DenseOutputNorm = ["post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"],
    /// Projection whose sigmoid is the factor of the dense MLP next to experts, `[1, hidden_size]`.
    SharedGate = ["mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"],
    /// Gate projection of the MLP (input of the activation), `[intermediate_size, hidden_size]`.
    Gate = ["mlp.gate_proj.weight", "ffn_gate.weight"],
    /// Up projection of the MLP, `[intermediate_size, hidden_size]`.
    Up = ["mlp.up_proj.weight", "ffn_up.weight"],
    /// Bias of the gate projection, `[intermediate_size]`.
    GateBias = ["mlp.gate_proj.bias", "ffn_gate.bias"],
    /// Bias of the up projection, `[intermediate_size]`.
    UpBias = ["mlp.up_proj.bias", "ffn_up.bias"],
    /// Down projection of the MLP, `[hidden_size, intermediate_size]`.
    Down = ["mlp.down_proj.weight", "ffn_down.weight"],
    /// Bias of the down projection, `[hidden_size]`.
    DownBias = ["mlp.down_proj.bias", "ffn_down.bias"],
    /// Weight of the norm of what the MLP adds, `[hidden_size]`.
    MlpOutputNorm = ["post_mlp_layernorm.weight", "post_ffw_norm.weight"],
    /// Projection to the gate of the layer's own input, `[width, hidden_size]`
    /// ([`OwnInput`](crate::OwnInput)).
    InputGate = ["per_layer_input_gate.weight", "inp_gate.weight"],
    /// Projection of the gated input, `[hidden_size, width]`.
    InputUp = ["per_layer_projection.weight", "proj.weight"],
    /// Weight of the norm of what it adds, `[hidden_size]`.
    InputNorm = ["post_per_layer_input_norm.weight", "post_norm.weight"],
    /// The factor of the hidden state after the layer, `[1]`.
    Scalar = ["layer_scalar", "layer_output_scale.weight"],
    /// The convolutions of what attention reads and of what it adds, over the rows of a block:
    /// `[2, taps, hidden_size]` ([`BlockConv`](crate::BlockConv)).
    AttentionConv = ["attention_conv.base_kernel", "attn_conv.weight"],
    /// Projection to what a row adds to both of them, `[2 · taps · groups, hidden_size]`.
    AttentionConvProjection = ["attention_conv.kernel_projection.weight", "attn_conv_proj.weight"],
    /// The convolutions of what the MLP reads and of what it adds, `[2, taps, hidden_size]`.
    MlpConv = ["mlp_conv.base_kernel", "ffn_conv.weight"],
    /// Projection to what a row adds to both of them, `[2 · taps · groups, hidden_size]`.
    MlpConvProjection = ["mlp_conv.kernel_projection.weight", "ffn_conv_proj.weight"],
}

impl LayerTensor {
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

    pub(crate) fn is_bias(self) -> bool {
        self.name().ends_with(".bias")
    }

    /// Whether the tensor holds the weights of a convolution.
    pub(crate) fn is_convolution(self) -> bool {
        matches!(self, Self::QueryConv | Self::KeyConv | Self::ValueConv)
    }

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

    /// Returns the name in Hugging Face's checkpoints, without the layer.
    pub(crate) fn name(self) -> &'static str {
        let [name, _] = self.names();
        name
    }
}

table_enum! {
    /// One weight tensor of an expert.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum ExpertTensor;

    /// Returns the tensor with the same meaning in a dense MLP.
    #[must_use]
    pub fn dense() -> LayerTensor;

    /// Gate projection (input of the activation), `[intermediate_size, hidden_size]`.
    Gate = LayerTensor::Gate,
    /// Up projection, `[intermediate_size, hidden_size]`.
    Up = LayerTensor::Up,
    /// Bias of the gate projection, `[intermediate_size]`.
    GateBias = LayerTensor::GateBias,
    /// Bias of the up projection, `[intermediate_size]`.
    UpBias = LayerTensor::UpBias,
    /// Down projection, `[hidden_size, intermediate_size]`.
    Down = LayerTensor::Down,
    /// Bias of the down projection, `[hidden_size]`.
    DownBias = LayerTensor::DownBias,
}

impl ExpertTensor {
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

table_enum! {
    /// One weight tensor of the heads after a block drafter's layers (DSpark, DFlash 2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum BlockHeadTensor;

    /// Returns the name in checkpoints.
    fn name() -> &'static str;

    /// The embedding of the token before a position, `[vocab_size, rank]`.
    Previous = "markov_head.markov_w1.weight",
    /// Matrix to the bias of logits, `[head outputs, rank]`.
    LogitBias = "markov_head.markov_w2.weight",
    /// Projection whose sigmoid multiplies the embedding, `[rank, hidden_size + rank]`.
    Gate = "markov_head.gate_proj.weight",
    /// Its bias, `[rank]`.
    GateBias = "markov_head.gate_proj.bias",
    /// Projection to the gate, the candidate and the output of a recurrent state,
    /// `[3 · rank, 2 · rank + hidden_size]`.
    Joint = "markov_head.joint_proj.weight",
    /// Its bias, `[3 · rank]`.
    JointBias = "markov_head.joint_proj.bias",
    /// Projection to the logit of the confidence, `[1, hidden_size]` or `[1, hidden_size + rank]`.
    Confidence = "confidence_head.proj.weight",
    /// Its bias, `[1]`.
    ConfidenceBias = "confidence_head.proj.bias",
    /// What the selector knows of the token before a position, `[vocab_size, rank]`.
    Predecessor = "candidate_selector.predecessor_codebook",
    /// What the selector knows of a candidate, `[vocab_size, rank]`.
    Successor = "candidate_selector.successor_codebook",
    /// Projection of the hidden state for the selector, `[rank, hidden_size]`.
    SelectorProjection = "candidate_selector.hidden_projection.weight",
}

/// Formats the tensor's name in Hugging Face checkpoints. Errors use it for every format.
impl fmt::Display for Tensor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Embedding => "model.embed_tokens.weight",
            Self::Positions => "model.embed_positions.weight",
            Self::TokenTypes => "embeddings.token_type_embeddings.weight",
            Self::LayerInputs => "model.embed_tokens_per_layer.weight",
            Self::LayerInputProjection => "model.per_layer_model_projection.weight",
            Self::LayerInputNorm => "model.per_layer_projection_norm.weight",
            Self::FinalNorm => "model.norm.weight",
            Self::FinalNormBias => "model.norm.bias",
            Self::Head => "lm_head.weight",
            Self::HeadBias => "lm_head.bias",
            Self::Layer(layer, tensor) => {
                return write!(formatter, "model.layers.{layer}.{}", tensor.name());
            }
            Self::Expert(layer, expert, tensor) => {
                let part = tensor.dense().name().trim_start_matches("mlp.");
                return write!(formatter, "model.layers.{layer}.mlp.experts.{expert}.{part}");
            }
            Self::MaskEmbeddings => "mask_embeddings.weight",
            Self::MaskFeatures => "mask_features.weight",
            Self::Fusion => "fc.weight",
            Self::FusionBias => "fc.bias",
            Self::EmbeddingNorm => "enorm.weight",
            Self::FeatureNorm => "input_norm.weight",
            Self::FeaturePartNorm(part) => return write!(formatter, "fc_norm.{part}.weight"),
            Self::ContextNorm => "hidden_norm.weight",
            Self::Prediction => "post_projection.weight",
            Self::DraftHead(head, tensor) => return write!(formatter, "heads.{head}.{tensor:?}"),
            Self::BlockHead(tensor) => tensor.name(),
        };
        formatter.write_str(name)
    }
}
