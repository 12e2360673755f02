//! The names and shapes of a Llama's tensors.

use std::fmt;

use crate::config::Config;

/// One weight tensor of the model, whatever file format it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tensor {
    /// Token embedding, `[vocab_size, hidden_size]`.
    Embedding,
    /// Weight of the RMS norm after the last layer, `[hidden_size]`.
    FinalNorm,
    /// Output projection to logits, `[vocab_size, hidden_size]`; the embedding itself where the two
    /// are tied.
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
    /// Output projection of attention, `[hidden_size, q_size]`.
    Output,
    /// Weight of the RMS norm before the MLP, `[hidden_size]`.
    MlpNorm,
    /// Gate projection of the MLP (under SiLU), `[intermediate_size, hidden_size]`.
    Gate,
    /// Up projection of the MLP, `[intermediate_size, hidden_size]`.
    Up,
    /// Down projection of the MLP, `[hidden_size, intermediate_size]`.
    Down,
}

impl LayerTensor {
    /// Every tensor of a layer, in the order of the forward pass.
    pub const ALL: [Self; 9] = [
        Self::AttentionNorm,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::Output,
        Self::MlpNorm,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::AttentionNorm => "input_layernorm",
            Self::Query => "self_attn.q_proj",
            Self::Key => "self_attn.k_proj",
            Self::Value => "self_attn.v_proj",
            Self::Output => "self_attn.o_proj",
            Self::MlpNorm => "post_attention_layernorm",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }
}

impl Tensor {
    /// Every tensor that a model of this configuration stores, in the order of the forward pass. A
    /// tied head is not among them: it is the embedding.
    pub fn all(config: &Config) -> impl Iterator<Item = Self> + use<> {
        let layers = (0..config.num_hidden_layers)
            .flat_map(|layer| LayerTensor::ALL.map(|tensor| Self::Layer(layer, tensor)));
        let head = (!config.tie_word_embeddings).then_some(Self::Head);
        [Self::Embedding].into_iter().chain(layers).chain([Self::FinalNorm]).chain(head)
    }

    /// The shape that follows from the configuration: `[outputs, inputs]` of a matrix, `[size]` of
    /// a norm.
    pub fn shape(self, config: &Config) -> Vec<usize> {
        let hidden = config.hidden_size;
        match self {
            Self::Embedding | Self::Head => vec![config.vocab_size, hidden],
            Self::FinalNorm => vec![hidden],
            Self::Layer(_, tensor) => match tensor {
                LayerTensor::AttentionNorm | LayerTensor::MlpNorm => vec![hidden],
                LayerTensor::Query => vec![config.q_size(), hidden],
                LayerTensor::Key | LayerTensor::Value => vec![config.kv_size(), hidden],
                LayerTensor::Output => vec![hidden, config.q_size()],
                LayerTensor::Gate | LayerTensor::Up => vec![config.intermediate_size, hidden],
                LayerTensor::Down => vec![hidden, config.intermediate_size],
            },
        }
    }
}

/// The name that Hugging Face's Llama checkpoints give the tensor; errors use it for every format.
impl fmt::Display for Tensor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding => formatter.write_str("model.embed_tokens.weight"),
            Self::FinalNorm => formatter.write_str("model.norm.weight"),
            Self::Head => formatter.write_str("lm_head.weight"),
            Self::Layer(layer, tensor) => {
                write!(formatter, "model.layers.{layer}.{}.weight", tensor.name())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::random::example_config;

    #[test]
    fn names_and_shapes_are_those_of_hugging_face() {
        let config = example_config();
        let query = Tensor::Layer(1, LayerTensor::Query);
        assert_eq!(query.to_string(), "model.layers.1.self_attn.q_proj.weight");
        assert_eq!(query.shape(&config), [48, 48]);
        assert_eq!(Tensor::Layer(0, LayerTensor::Key).shape(&config), [24, 48]);
        assert_eq!(Tensor::Layer(0, LayerTensor::Down).shape(&config), [48, 100]);
        assert_eq!(Tensor::Head.shape(&config), [259, 48]);
    }

    #[test]
    fn a_tied_head_is_not_stored() {
        let mut config = example_config();
        assert_eq!(Tensor::all(&config).count(), 2 * 9 + 3);
        config.tie_word_embeddings = true;
        assert_eq!(Tensor::all(&config).count(), 2 * 9 + 2);
    }
}
