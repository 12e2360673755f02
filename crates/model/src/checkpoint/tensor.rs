//! The names and shapes of a model's tensors.

use std::fmt;

use crate::config::Config;

/// One weight tensor of a model, independent of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tensor {
    /// Token embedding, `[vocab_size, hidden_size]`.
    Embedding,
    /// Weight of the RMS norm after the last layer, `[hidden_size]`.
    FinalNorm,
    /// Output projection to logits, `[vocab_size, hidden_size]`. If the two are tied, this is the
    /// embedding.
    Head,
    /// A tensor of the layer with this index.
    Layer(usize, LayerTensor),
}

/// One weight tensor of a layer. Matrices are `[outputs, inputs]`; `q_size` is
/// `num_attention_heads × head_dim` and `kv_size` is `num_key_value_heads × head_dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerTensor {
    /// Weight of the RMS norm before attention, `[hidden_size]`.
    AttentionNorm,
    /// Query projection, `[q_size, hidden_size]`; each head's rows in the half-split order of RoPE.
    Query,
    /// Key projection, `[kv_size, hidden_size]`; each head's rows in the half-split order of RoPE.
    Key,
    /// Value projection, `[kv_size, hidden_size]`.
    Value,
    /// Bias of the query projection, `[q_size]`, in the order of its rows.
    QueryBias,
    /// Bias of the key projection, `[kv_size]`, in the order of its rows.
    KeyBias,
    /// Bias of the value projection, `[kv_size]`.
    ValueBias,
    /// Weight of the RMS norm of each query head, `[head_dim]`.
    QueryNorm,
    /// Weight of the RMS norm of each key head, `[head_dim]`.
    KeyNorm,
    /// Output projection of attention, `[hidden_size, q_size]`.
    Output,
    /// Bias of attention's output projection, `[hidden_size]`.
    OutputBias,
    /// Weight of the RMS norm before the MLP, `[hidden_size]`.
    MlpNorm,
    /// Gate projection of the MLP (input of SiLU), `[intermediate_size, hidden_size]`.
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
}

impl LayerTensor {
    /// All tensors that a layer can have, in the order of the forward pass.
    pub const ALL: [Self; 18] = [
        Self::AttentionNorm,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::QueryBias,
        Self::KeyBias,
        Self::ValueBias,
        Self::QueryNorm,
        Self::KeyNorm,
        Self::Output,
        Self::OutputBias,
        Self::MlpNorm,
        Self::Gate,
        Self::Up,
        Self::GateBias,
        Self::UpBias,
        Self::Down,
        Self::DownBias,
    ];

    /// Whether the layers of a model with this configuration have this tensor.
    pub fn is_in(self, config: &Config) -> bool {
        match self {
            Self::QueryBias | Self::KeyBias | Self::ValueBias => config.qkv_bias,
            Self::QueryNorm | Self::KeyNorm => config.qk_norm,
            Self::OutputBias => config.output_bias,
            Self::GateBias | Self::UpBias | Self::DownBias => config.mlp_bias,
            _ => true,
        }
    }

    /// Whether the tensor is the bias of a projection.
    pub(super) fn is_bias(self) -> bool {
        self.name().ends_with(".bias")
    }

    fn name(self) -> &'static str {
        match self {
            Self::AttentionNorm => "input_layernorm.weight",
            Self::Query => "self_attn.q_proj.weight",
            Self::Key => "self_attn.k_proj.weight",
            Self::Value => "self_attn.v_proj.weight",
            Self::QueryBias => "self_attn.q_proj.bias",
            Self::KeyBias => "self_attn.k_proj.bias",
            Self::ValueBias => "self_attn.v_proj.bias",
            Self::QueryNorm => "self_attn.q_norm.weight",
            Self::KeyNorm => "self_attn.k_norm.weight",
            Self::Output => "self_attn.o_proj.weight",
            Self::OutputBias => "self_attn.o_proj.bias",
            Self::MlpNorm => "post_attention_layernorm.weight",
            Self::Gate => "mlp.gate_proj.weight",
            Self::Up => "mlp.up_proj.weight",
            Self::GateBias => "mlp.gate_proj.bias",
            Self::UpBias => "mlp.up_proj.bias",
            Self::Down => "mlp.down_proj.weight",
            Self::DownBias => "mlp.down_proj.bias",
        }
    }
}

impl Tensor {
    /// Returns the tensors that a model with this configuration stores, in the order of the forward
    /// pass. A tied head is not included, because it is the embedding.
    pub fn all(config: &Config) -> impl Iterator<Item = Self> + use<> {
        let mut layer_tensors = LayerTensor::ALL.to_vec();
        layer_tensors.retain(|tensor| tensor.is_in(config));
        let layers = (0..config.num_hidden_layers).flat_map(move |layer| {
            layer_tensors.clone().into_iter().map(move |tensor| Self::Layer(layer, tensor))
        });
        let head = (!config.tie_word_embeddings).then_some(Self::Head);
        [Self::Embedding].into_iter().chain(layers).chain([Self::FinalNorm]).chain(head)
    }

    /// Returns the shape according to the configuration: `[outputs, inputs]` for a matrix, `[size]` for
    /// a norm or a bias.
    pub fn shape(self, config: &Config) -> Vec<usize> {
        let hidden = config.hidden_size;
        match self {
            Self::Embedding | Self::Head => vec![config.vocab_size, hidden],
            Self::FinalNorm => vec![hidden],
            Self::Layer(_, tensor) => match tensor {
                LayerTensor::AttentionNorm
                | LayerTensor::MlpNorm
                | LayerTensor::OutputBias
                | LayerTensor::DownBias => vec![hidden],
                LayerTensor::QueryBias => vec![config.q_size()],
                LayerTensor::KeyBias | LayerTensor::ValueBias => vec![config.kv_size()],
                LayerTensor::QueryNorm | LayerTensor::KeyNorm => vec![config.head_dim],
                LayerTensor::GateBias | LayerTensor::UpBias => vec![config.intermediate_size],
                LayerTensor::Query => vec![config.q_size(), hidden],
                LayerTensor::Key | LayerTensor::Value => vec![config.kv_size(), hidden],
                LayerTensor::Output => vec![hidden, config.q_size()],
                LayerTensor::Gate | LayerTensor::Up => vec![config.intermediate_size, hidden],
                LayerTensor::Down => vec![hidden, config.intermediate_size],
            },
        }
    }
}

/// Formats the tensor's name in Hugging Face checkpoints. Errors use it for every format.
impl fmt::Display for Tensor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding => formatter.write_str("model.embed_tokens.weight"),
            Self::FinalNorm => formatter.write_str("model.norm.weight"),
            Self::Head => formatter.write_str("lm_head.weight"),
            Self::Layer(layer, tensor) => {
                write!(formatter, "model.layers.{layer}.{}", tensor.name())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::random::example_config;

    #[test]
    fn names_and_shapes_match_hugging_face() {
        let config = example_config();
        let query = Tensor::Layer(1, LayerTensor::Query);
        assert_eq!(query.to_string(), "model.layers.1.self_attn.q_proj.weight");
        assert_eq!(query.shape(&config), [48, 48]);
        assert_eq!(Tensor::Layer(0, LayerTensor::Key).shape(&config), [24, 48]);
        assert_eq!(Tensor::Layer(0, LayerTensor::Down).shape(&config), [48, 100]);
        assert_eq!(Tensor::Head.shape(&config), [259, 48]);
        let bias = Tensor::Layer(0, LayerTensor::KeyBias);
        assert_eq!(bias.to_string(), "model.layers.0.self_attn.k_proj.bias");
        assert_eq!(bias.shape(&config), [24]);
    }

    #[test]
    fn layers_have_the_tensors_that_the_configuration_requires() {
        let mut config = example_config();
        let count = |config: &Config| Tensor::all(config).count();
        assert_eq!(count(&config), 2 * 9 + 3);
        config.qkv_bias = true;
        assert_eq!(count(&config), 2 * 12 + 3);
        config.qk_norm = true;
        assert_eq!(count(&config), 2 * 14 + 3);
        (config.output_bias, config.mlp_bias) = (true, true);
        assert_eq!(count(&config), 2 * LayerTensor::ALL.len() + 3);
    }

    #[test]
    fn a_tied_head_is_not_stored() {
        let mut config = example_config();
        assert_eq!(Tensor::all(&config).count(), 2 * 9 + 3);
        config.tie_word_embeddings = true;
        assert_eq!(Tensor::all(&config).count(), 2 * 9 + 2);
    }
}
