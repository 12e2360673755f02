//! A layer, its norms, and its tensors.

use super::{Attention, Experts, Mlp, QkNorms};
use crate::tensor::{ExpertTensor, LayerTensor};

/// A layer: `hidden += attention(norm(hidden)); hidden += mlp(norm(hidden))`. What is added may have a norm
/// of its own, and is multiplied by [`Factors::residual`](crate::Factors::residual).
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The norm before attention.
    pub attention_norm: AttentionNorm,
    /// The attention.
    pub attention: Attention,
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
            attention,
            attention_output_norm: false,
            mlp_input: MlpInput::Hidden,
            mlp: Some(mlp),
            experts: None,
            mlp_output_norm: false,
        }
    }

    /// Returns the tensors that the layer has, in the order of the forward pass, without those of experts.
    /// `norm` is the model's.
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
        match tensor {
            T::AttentionNorm => norm.has_weights() && self.attention_norm != AttentionNorm::None,
            T::AttentionNormBias => norm_bias && self.attention_norm != AttentionNorm::None,
            T::HiddenNorm => {
                matches!(self.attention_norm, AttentionNorm::EmbeddingAndHidden { .. })
            }
            T::QueryBias | T::KeyBias | T::ValueBias => self.attention.qkv_bias,
            T::QueryNorm | T::KeyNorm => self.attention.qk_norms != QkNorms::None,
            T::Sinks => self.attention.sinks,
            T::OutputBias => self.attention.output_bias,
            T::AttentionOutputNorm => self.attention_output_norm,
            T::MlpNorm => norm.has_weights() && self.mlp_input.norm() == Some(T::MlpNorm),
            T::MlpNormBias => norm_bias && self.mlp_input.norm() == Some(T::MlpNorm),
            T::Router => experts.is_some(),
            T::RouterBias => experts.is_some_and(|experts| experts.router.bias),
            T::RouterCorrection => experts.is_some_and(|experts| experts.router.correction),
            T::SharedGate => experts.is_some_and(|experts| experts.shared_gate),
            T::GateBias => mlp_bias && is_gated,
            T::UpBias | T::DownBias => mlp_bias,
            T::Gate => is_gated,
            T::Up | T::Down => self.mlp.is_some(),
            T::MlpOutputNorm => self.mlp_output_norm,
            T::Query | T::Key | T::Value | T::Output => true,
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
        let Self { attention, .. } = self;
        let inner = self.mlp.map_or(0, |mlp| mlp.intermediate_size);
        let experts = self.experts.map_or(0, |experts| experts.n_experts);
        let attention_input = match self.attention_norm {
            AttentionNorm::None | AttentionNorm::Hidden => hidden,
            AttentionNorm::EmbeddingAndHidden { .. } => 2 * hidden,
        };
        let qk_norm = |width| match attention.qk_norms {
            QkNorms::None | QkNorms::Heads => vec![attention.head_dim],
            QkNorms::OwnHeads | QkNorms::Whole => vec![width],
        };
        match tensor {
            T::AttentionNorm
            | T::AttentionNormBias
            | T::HiddenNorm
            | T::AttentionOutputNorm
            | T::MlpNorm
            | T::MlpNormBias
            | T::MlpOutputNorm
            | T::OutputBias
            | T::DownBias => vec![hidden],
            T::QueryBias => vec![attention.q_size()],
            T::KeyBias | T::ValueBias => vec![attention.kv_size()],
            T::QueryNorm => qk_norm(attention.q_size()),
            T::KeyNorm => qk_norm(attention.kv_size()),
            T::Sinks => vec![attention.n_heads],
            T::GateBias | T::UpBias => vec![inner],
            T::Query => vec![attention.q_size(), attention_input],
            T::Key | T::Value => vec![attention.kv_size(), attention_input],
            T::Output => vec![hidden, attention.q_size()],
            T::Gate | T::Up => vec![inner, hidden],
            T::Down => vec![hidden, inner],
            T::Router => vec![experts, hidden],
            T::RouterBias | T::RouterCorrection => vec![experts],
            T::SharedGate => vec![1, hidden],
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
