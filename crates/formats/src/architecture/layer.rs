//! A layer, its norms, and its tensors.

use super::{Activation, Attention, Experts, Latent, Mlp, QkNorms, Recurrent, RecurrentRule};
use crate::tensor::{ExpertTensor, LayerTensor};

/// A layer: `hidden += attention(norm(hidden)); hidden += mlp(norm(hidden))`. What is added may
/// have a norm of its own, and is multiplied by [`Factors::residual`](crate::Factors::residual). A
/// layer with a recurrent mixer has it in the place of attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The norm before attention.
    pub attention_norm: AttentionNorm,
    /// The attention, unless the layer has a recurrent mixer.
    pub attention: Option<Attention>,
    /// The recurrent mixer, unless the layer has attention.
    pub recurrent: Option<Recurrent>,
    /// Whether attention and the MLP add to what they read, which is normed, and not to the hidden
    /// state. The norm after the layer is then the next layer's first, or the final norm (BERT).
    pub post_norm: bool,
    /// Whether there is a norm of what attention adds (Gemma 2, OLMo 2).
    pub attention_output_norm: bool,
    /// What the MLP and the experts read.
    pub mlp_input: MlpInput,
    /// The dense MLP. If there are experts, it is added to them (a shared expert).
    pub mlp: Option<Mlp>,
    /// The experts.
    pub experts: Option<Experts>,
    /// Whether there is a norm of what the MLP and the experts add.
    pub mlp_output_norm: bool,
    /// The input that the layer has next to the hidden state, if it has one. All layers of a model
    /// have one, or none.
    pub own_input: Option<OwnInput>,
    /// Whether the hidden state after the layer is multiplied by a stored number (Gemma 4).
    pub scalar: bool,
    /// The convolutions of what attention and the MLP read and of what they add, if there are any
    /// (DFlash 2).
    pub block_conv: Option<BlockConv>,
}

/// Convolutions over the rows of a block: of what attention reads, of what it adds, and the same
/// for the MLP (DFlash 2). Row `i` of a convolution is `Σ_t (base[t] + own[t]) · x[i − t]`, where
/// `x` is zero before the block. `base` is stored, and the row's `own` numbers are a projection of
/// what attention or the MLP reads, before its convolution. All channels of a group share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockConv {
    /// The number of rows that are read: the row itself, and those before it.
    pub taps: usize,
    /// The number of channels of a group, which divides the hidden size.
    pub group_size: usize,
}

impl BlockConv {
    /// Returns the number of groups in a model with this hidden size.
    #[must_use]
    pub fn groups(self, hidden_size: usize) -> usize {
        hidden_size / self.group_size
    }

    /// Returns how many numbers a row has for the two convolutions of attention, or of the MLP:
    /// `[2, taps, groups]`.
    #[must_use]
    pub fn row_width(self, hidden_size: usize) -> usize {
        2 * self.taps * self.groups(hidden_size)
    }
}

/// A layer's own input: a function of the row's token (per-layer embeddings of Gemma 3n and 4).
/// With `width` numbers for each layer, a model computes
/// `(norm(project(embedding) / √hidden_size) + table[token] · √width) / √2`. The layer adds
/// `norm(up(activation(gate(hidden)) · input))` to the hidden state after the MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnInput {
    /// The width of the input.
    pub width: usize,
    /// The activation function of the gate.
    pub activation: Activation,
}

/// The norm of a model's hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// RMS norm: `x / rms(x) · weight` (Zhang & Sennrich 2019).
    Rms,
    /// Layer norm: `(x − mean(x)) / deviation(x) · weight` (Ba et al. 2016).
    Layer {
        /// Whether a bias is added.
        bias: bool,
    },
    /// Layer norm without weights and bias: `(x − mean(x)) / deviation(x)` (OLMo 1).
    UnweightedLayer,
}

impl Norm {
    /// Whether the mean is subtracted.
    #[must_use]
    pub fn is_layer_norm(self) -> bool {
        self != Self::Rms
    }

    /// Whether norms of hidden states have weights.
    #[must_use]
    pub fn has_weights(self) -> bool {
        self != Self::UnweightedLayer
    }
}

/// The norm before a layer's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionNorm {
    /// No norm: attention reads the hidden state (EAGLE, OLMo 2).
    None,
    /// Attention reads the normed hidden state.
    Hidden,
    /// Attention reads the normed embedding, concatenated with the normed hidden state (EAGLE-3).
    EmbeddingAndHidden {
        /// Whether the layer adds to the normed hidden state, instead of the hidden state itself.
        normed_residual: bool,
    },
}

/// What a layer's MLP reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpInput {
    /// The normed hidden state after attention.
    Hidden,
    /// The hidden state after attention (OLMo 2).
    Unnormed,
    /// The normed hidden state before attention, with a norm of its own (GPT-NeoX).
    BeforeAttention,
    /// The normed hidden state before attention, with the norm of attention (Cohere, Phi-2).
    AttentionInput,
}

impl MlpInput {
    /// Whether the MLP reads the hidden state before attention has been added.
    #[must_use]
    pub fn is_before_attention(self) -> bool {
        matches!(self, Self::BeforeAttention | Self::AttentionInput)
    }

    /// Returns the tensor that holds the weights of the norm, if there is one.
    #[must_use]
    pub fn norm(self) -> Option<LayerTensor> {
        match self {
            Self::Hidden | Self::BeforeAttention => Some(LayerTensor::MlpNorm),
            Self::AttentionInput => Some(LayerTensor::AttentionNorm),
            Self::Unnormed => None,
        }
    }
}

impl Layer {
    /// Returns a layer as in a plain Llama: norms before attention and MLP only.
    #[must_use]
    pub fn plain(attention: Attention, mlp: Mlp) -> Self {
        Self {
            attention_norm: AttentionNorm::Hidden,
            attention: Some(attention),
            recurrent: None,
            post_norm: false,
            attention_output_norm: false,
            mlp_input: MlpInput::Hidden,
            mlp: Some(mlp),
            experts: None,
            mlp_output_norm: false,
            own_input: None,
            scalar: false,
            block_conv: None,
        }
    }

    /// Returns whether the layer has only keys and values, to which later layers attend.
    #[must_use]
    pub fn has_only_keys(&self) -> bool {
        self.attention.as_ref().is_some_and(|attention| attention.n_heads == 0)
    }

    /// Returns the tensors that the layer has, in the order of the forward pass, without those of
    /// experts. `norm` is the model's.
    pub fn tensors(&self, norm: Norm) -> impl Iterator<Item = LayerTensor> + '_ {
        LayerTensor::ALL.into_iter().filter(move |tensor| self.has(*tensor, norm))
    }

    /// Returns whether the layer has a tensor. `norm` is the model's.
    #[must_use]
    pub fn has(&self, tensor: LayerTensor, norm: Norm) -> bool {
        use LayerTensor as T;
        let norm_bias = norm == Norm::Layer { bias: true };
        let mlp_bias = self.mlp.is_some_and(|mlp| mlp.bias);
        let is_gated = self.mlp.is_some_and(|mlp| mlp.gated);
        let experts = self.experts.as_ref();
        let attends = |piece: fn(&Attention) -> bool| self.attention.as_ref().is_some_and(piece);
        let mixes = |piece: fn(&Recurrent) -> bool| self.recurrent.as_ref().is_some_and(piece);
        let latent = self.attention.as_ref().and_then(|attention| attention.latent.as_deref());
        let has_query_rank = latent.is_some_and(|latent| latent.query_rank.is_some());
        let has_bias = attends(|attention| attention.qkv_bias);
        let has_keys = attends(|attention| attention.keys_of.is_none()) && latent.is_none();
        let has_queries = attends(|attention| attention.n_heads > 0);
        match tensor {
            T::AttentionNorm => norm.has_weights() && self.attention_norm != AttentionNorm::None,
            T::AttentionNormBias => norm_bias && self.attention_norm != AttentionNorm::None,
            T::HiddenNorm => {
                matches!(self.attention_norm, AttentionNorm::EmbeddingAndHidden { .. })
            }
            T::QueryBias => has_bias && has_queries && latent.is_none(),
            T::KeyBias | T::ValueBias => has_bias && has_keys,
            T::QueryNorm => has_queries && attends(|attention| attention.qk_norms != QkNorms::None),
            T::KeyNorm => has_keys && attends(|attention| attention.qk_norms != QkNorms::None),
            T::Sinks => attends(|attention| attention.sinks),
            T::AttentionGate => attends(|attention| attention.gate),
            T::AttentionGateBias => has_bias && attends(|attention| attention.gate),
            T::OutputBias => has_queries && attends(|attention| attention.output_bias),
            T::AttentionOutputNorm => self.attention_output_norm,
            T::MlpNorm => norm.has_weights() && self.mlp_input.norm() == Some(T::MlpNorm),
            T::MlpNormBias => norm_bias && self.mlp_input.norm() == Some(T::MlpNorm),
            T::Router => experts.is_some(),
            T::RouterBias => experts.is_some_and(|experts| experts.router.bias),
            T::RouterCorrection => experts.is_some_and(|experts| experts.router.correction),
            T::RouterNorm => experts.is_some_and(|experts| experts.router.own_norm),
            T::ExpertScales => experts.is_some_and(|experts| experts.router.expert_scales),
            T::ExpertsNorm | T::ExpertsOutputNorm | T::DenseOutputNorm => {
                experts.is_some_and(|experts| experts.own_norms)
            }
            T::SharedGate => experts.is_some_and(|experts| experts.shared_gate),
            T::GateBias => mlp_bias && is_gated,
            T::UpBias | T::DownBias => mlp_bias,
            T::Gate => is_gated,
            T::Up | T::Down => self.mlp.is_some(),
            T::MlpOutputNorm => self.mlp_output_norm,
            T::Query => has_queries && !has_query_rank,
            T::Key | T::Value => has_keys,
            T::InputGate | T::InputUp | T::InputNorm => self.own_input.is_some(),
            T::Scalar => self.scalar,
            T::AttentionConv | T::AttentionConvProjection => self.block_conv.is_some(),
            T::MlpConv | T::MlpConvProjection => self.block_conv.is_some(),
            T::QueryDown | T::QueryLatentNorm | T::QueryUp => has_query_rank,
            T::QueryDownBias => has_query_rank && has_bias,
            T::LatentDown | T::LatentNorm | T::LatentUp => latent.is_some(),
            T::LatentDownBias => latent.is_some() && has_bias,
            T::Output => has_queries,
            T::MixerValue | T::MixerGate | T::ValueConv | T::MixerOutput => {
                self.recurrent.is_some()
            }
            T::MixerQuery
            | T::MixerKey
            | T::MixerDecay
            | T::QueryConv
            | T::KeyConv
            | T::DecayRate
            | T::DecayBias
            | T::MixerNorm => mixes(Recurrent::has_matrices),
            T::MixerBeta => mixes(|mixer| mixer.beta_width() > 0),
            T::QueryConvBias | T::KeyConvBias => {
                mixes(|mixer| mixer.conv_bias && mixer.has_matrices())
            }
            T::ValueConvBias => mixes(|mixer| mixer.conv_bias),
            T::Skip => mixes(|mixer| mixer.rule == RecurrentRule::StateSpace),
        }
    }

    /// Returns the tensors of the layer's experts, expert by expert.
    pub fn expert_tensors(&self) -> impl Iterator<Item = (usize, ExpertTensor)> + '_ {
        self.experts.iter().flat_map(|experts| {
            (0..experts.n_experts).flat_map(move |expert| {
                let parts = ExpertTensor::ALL.into_iter().filter(move |part| match part {
                    ExpertTensor::Gate => experts.mlp.gated,
                    ExpertTensor::GateBias => experts.mlp.gated && experts.mlp.bias,
                    ExpertTensor::UpBias | ExpertTensor::DownBias => experts.mlp.bias,
                    ExpertTensor::Up | ExpertTensor::Down => true,
                });
                parts.map(move |part| (expert, part))
            })
        })
    }

    /// Returns the shape of a tensor in a model with this hidden size.
    pub(super) fn shape(&self, tensor: LayerTensor, hidden: usize) -> Vec<usize> {
        use LayerTensor as T;
        let attention = self.attention.as_ref();
        let (q_size, kv_size) =
            attention.map_or((0, 0), |attention| (attention.q_size(), attention.kv_size()));
        let mixer = |width: fn(&Recurrent) -> usize| self.recurrent.as_ref().map_or(0, width);
        let n_heads = attention.map_or(0, |attention| attention.n_heads);
        let latents = attention.and_then(|attention| attention.latent.as_deref());
        let latent = |size: fn(&Latent) -> usize| latents.map_or(0, size);
        let query_rank = latent(|latent| latent.query_rank.unwrap_or(0));
        let inner = self.mlp.map_or(0, |mlp| mlp.intermediate_size);
        let experts = self.experts.map_or(0, |experts| experts.n_experts);
        let own_input = self.own_input.map_or(0, |input| input.width);
        let attention_input = match self.attention_norm {
            AttentionNorm::None | AttentionNorm::Hidden => hidden,
            AttentionNorm::EmbeddingAndHidden { .. } => 2 * hidden,
        };
        let qk_norm = |width| match attention {
            Some(Attention { qk_norms: QkNorms::OwnHeads | QkNorms::Whole, .. }) => vec![width],
            _ => vec![attention.map_or(0, |attention| attention.head_dim)],
        };
        match tensor {
            T::AttentionNorm
            | T::AttentionNormBias
            | T::HiddenNorm
            | T::AttentionOutputNorm
            | T::MlpNorm
            | T::MlpNormBias
            | T::MlpOutputNorm
            | T::RouterNorm
            | T::ExpertsNorm
            | T::ExpertsOutputNorm
            | T::DenseOutputNorm
            | T::InputNorm
            | T::OutputBias
            | T::DownBias => vec![hidden],
            T::InputGate => vec![own_input, hidden],
            T::InputUp => vec![hidden, own_input],
            T::Scalar => vec![1],
            T::AttentionConv | T::MlpConv => {
                vec![2, self.block_conv.map_or(0, |conv| conv.taps), hidden]
            }
            T::AttentionConvProjection | T::MlpConvProjection => {
                vec![self.block_conv.map_or(0, |conv| conv.row_width(hidden)), hidden]
            }
            T::QueryBias | T::AttentionGateBias => vec![q_size],
            T::KeyBias | T::ValueBias => vec![kv_size],
            T::QueryNorm => qk_norm(q_size),
            T::KeyNorm => qk_norm(kv_size),
            T::Sinks => vec![n_heads],
            T::GateBias | T::UpBias => vec![inner],
            T::AttentionGate => vec![q_size, attention_input],
            T::Query if latents.is_some() => {
                vec![n_heads * latent(Latent::query_dim), attention_input]
            }
            T::Query => vec![q_size, attention_input],
            T::QueryDown => vec![query_rank, attention_input],
            T::QueryDownBias | T::QueryLatentNorm => vec![query_rank],
            T::QueryUp => vec![n_heads * latent(Latent::query_dim), query_rank],
            T::LatentDown => vec![latent(Latent::key_dim), attention_input],
            T::LatentDownBias => vec![latent(Latent::key_dim)],
            T::LatentNorm => vec![latent(|latent| latent.rank)],
            T::LatentUp => {
                let outputs = latent(|latent| latent.plain_dim + latent.value_dim);
                vec![n_heads * outputs, latent(|latent| latent.rank)]
            }
            T::Key | T::Value => vec![kv_size, attention_input],
            T::Output => vec![hidden, attention.map_or(0, Attention::output_inputs)],
            T::Gate | T::Up => vec![inner, hidden],
            T::Down => vec![hidden, inner],
            T::Router => vec![experts, hidden],
            T::RouterBias | T::RouterCorrection | T::ExpertScales => vec![experts],
            T::SharedGate => vec![1, hidden],
            T::MixerQuery | T::MixerKey => vec![mixer(Recurrent::key_width), hidden],
            T::MixerValue | T::MixerGate => vec![mixer(Recurrent::value_width), hidden],
            T::MixerBeta => vec![mixer(Recurrent::beta_width), hidden],
            T::MixerDecay => vec![mixer(Recurrent::decay_width), hidden],
            T::QueryConv | T::KeyConv => {
                vec![mixer(Recurrent::key_width), mixer(|mixer| mixer.kernel)]
            }
            T::ValueConv => vec![mixer(Recurrent::value_width), mixer(|mixer| mixer.kernel)],
            T::QueryConvBias | T::KeyConvBias => vec![mixer(Recurrent::key_width)],
            T::ValueConvBias => vec![mixer(Recurrent::value_width)],
            T::DecayRate | T::DecayBias | T::Skip => vec![mixer(|mixer| mixer.n_value_heads)],
            T::MixerNorm => vec![mixer(|mixer| match mixer.rule {
                RecurrentRule::GatedDelta => mixer.value_dim,
                _ => mixer.value_width(),
            })],
            T::MixerOutput => vec![hidden, mixer(Recurrent::value_width)],
        }
    }

    /// Returns the shape of a tensor of an expert in a model with this hidden size.
    pub(super) fn expert_shape(&self, tensor: ExpertTensor, hidden: usize) -> Vec<usize> {
        use ExpertTensor as T;
        let inner = self.experts.map_or(0, |experts| experts.mlp.intermediate_size);
        match tensor {
            T::Gate | T::Up => vec![inner, hidden],
            T::GateBias | T::UpBias => vec![inner],
            T::Down => vec![hidden, inner],
            T::DownBias => vec![hidden],
        }
    }
}
