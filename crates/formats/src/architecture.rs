//! Architectures: what a model computes, as data.
//!
//! An architecture is a list of layers made of pieces. A checkpoint's options are translated into
//! one ([`Config::architecture`](crate::Config::architecture) for complete models,
//! [`Speculator::layers`](crate::Speculator::layers) and
//! [`Speculator::heads`](crate::Speculator::heads) for drafters), and devices compute it. So a new
//! family changes no device unless it brings a new piece, and a new device changes no family.

mod attention;
mod block_heads;
mod latent;
mod layer;
mod mlp;
mod recurrent;

use crate::tensor::{HeadTensor, LayerTensor, Tensor};
use forerun_core::TokenId;
use std::ops::Range;
use std::sync::Arc;

pub use attention::{Attention, QkNorms, Rope};
pub use block_heads::{BlockHeads, CandidateSelector, ConfidenceInput, MarkovHead, MarkovKind};
pub use latent::Latent;
pub use layer::{AttentionNorm, BlockConv, Layer, MlpInput, Norm, OwnInput};
pub use mlp::{Activation, ExpertGroups, Experts, Mlp, Router, Weighting};
pub use recurrent::{Recurrent, RecurrentRule};

/// What a decoder-only Transformer computes, from input rows to logits.
///
/// For an architecture that no configuration expresses, change another one:
/// `Architecture { layers, ..config.architecture() }`.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Maximum length of a sequence in tokens.
    pub context_length: usize,
    /// The norm of hidden states.
    pub norm: Norm,
    /// The constant that norms add to the mean square.
    pub norm_epsilon: f32,
    /// The constant factors of embeddings, residuals and logits.
    pub factors: Factors,
    /// What the first layer reads.
    pub input: Input,
    /// The table of positions whose rows are added to embeddings, if there is one (GPT-2, OPT).
    pub positions: Option<PositionTable>,
    /// Number of mask tokens. They have the ids after the vocabulary, and their own embeddings.
    pub mask_tokens: usize,
    /// Whether the embedding is the target's. It is not stored then.
    pub shares_embedding: bool,
    /// The layers, in the order of the forward pass.
    pub layers: Vec<Layer>,
    /// Whether a norm is applied to the last hidden state before the head.
    pub final_norm: bool,
    /// The matrix that converts hidden states to logits.
    pub head: Head,
    /// Whether the head has a bias (Phi-2).
    pub head_bias: bool,
    /// A limit of logits: each becomes `cap · tanh(logit / cap)` (Gemma 2).
    pub logit_cap: Option<f32>,
    /// The vocabulary's tokens in the order of the head's outputs, if the head does not have all of
    /// them (EAGLE-3). If the head is the target's, these are the rows of it that are used.
    pub head_tokens: Option<Arc<[TokenId]>>,
}

/// Learned position embeddings: the row `first + p` is added to the embedding of the token at
/// position `p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionTable {
    /// The row of position 0. Earlier rows are not used (OPT has two).
    pub first: usize,
    /// The number of rows.
    pub rows: usize,
    /// The number of token types, of which the first is that of all tokens: its embedding is added
    /// to every row (BERT). 0 if there are none.
    pub token_types: usize,
}

/// Constant factors of a model (Granite). All are 1 in most models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// The factor of embeddings.
    pub embedding: f32,
    /// The factor of what attention and the MLP add to the residual stream.
    pub residual: f32,
    /// The divisor of logits.
    pub logit_divisor: f32,
}

impl Factors {
    /// All factors are 1.
    pub const ONE: Self = Self { embedding: 1.0, residual: 1.0, logit_divisor: 1.0 };
}

/// What the first layer of a model reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input {
    /// The embedding of the row's token.
    Embedding,
    /// A projection of the token's embedding and a feature: `fc(cat(embedding, feature))` (EAGLE).
    EmbeddingAndFeature,
    /// The same with norms, `fc(cat(norm(embedding), norm(feature)))`, where a predicted hidden
    /// state counts after the final norm, as the target's features do (MTP).
    NormedEmbeddingAndFeature,
    /// A projection of a feature, `fc(feature)`, or a predicted hidden state as it is. The
    /// attention reads the embedding (EAGLE-3).
    Feature {
        /// Width of a feature.
        width: usize,
        /// The norm of a feature before its projection.
        norm: FeatureNorm,
        /// Whether the final norm is applied to a predicted hidden state before the first layer
        /// reads it (EAGLE-3.1).
        normed_predictions: bool,
    },
    /// A feature as it is (Hydra++'s prefix layer).
    UnprojectedFeature,
    /// The embedding of the row's token, for the rows of a block. The tokens before the block have
    /// features and no hidden states: `norm(fc(feature))` is what every layer computes their keys
    /// and values from (DFlash).
    Block {
        /// Width of a feature.
        width: usize,
    },
    /// The embedding of the row's token plus a projection of a feature:
    /// `embedding + scale · fc(feature)` (PARD-2).
    EmbeddingPlusFeature {
        /// Width of a feature.
        width: usize,
        /// Factor of the projection.
        scale: f32,
        /// The epsilon of the target's final norm, an RMS norm, if it is applied to the first part
        /// of a feature. That part has the width of the target's hidden state.
        final_norm: Option<f32>,
    },
    /// A projection of the token's embedding and the last part of a feature,
    /// `fc(cat(embedding, norm(part)))`, both of the target's width, or of the embedding and a
    /// prediction, `fc(cat(embedding, predict(norm(hidden))))`. The first layers are the target's,
    /// and have no queries ([`Layer::has_only_keys`]): they compute the keys and values of the tokens
    /// before a row from the other parts of a feature, one each. Rows have no keys and values, and
    /// are at the position after those tokens (Gemma 4's assistants).
    TargetKeys {
        /// Width of the target's hidden state.
        width: usize,
    },
}

/// The RMS norm of a feature before its projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureNorm {
    /// No norm.
    None,
    /// One norm of the whole feature.
    Whole,
    /// A norm of each of this number of parts, which have the same width (EAGLE-3.1).
    Parts(usize),
}

/// The matrix that converts hidden states to logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The model's own.
    Own,
    /// The embedding.
    Embedding,
    /// The target's head.
    Target,
}

/// Heads that read hidden states of the target: Medusa's and Hydra's.
///
/// Head `h` predicts the token `h + 1` positions after the last token that the target has read. It
/// computes `x = state` (Medusa) or `x = residual(cat) + silu(first(cat))`, with `cat` the state
/// and the embeddings of the `h + 1` tokens after it (Hydra). Then come residual layers
/// `x += silu(layer(x))`, and a matrix to logits. Biases of these layers are optional.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftHeads {
    /// Width of a state.
    pub hidden_size: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Maximum length of a sequence in tokens.
    pub context_length: usize,
    /// Number of heads.
    pub n_heads: usize,
    /// Number of residual layers of each head.
    pub n_layers: usize,
    /// Whether the heads read the tokens after the state (Hydra). Their embeddings are the
    /// target's.
    pub reads_tokens: bool,
    /// Whether each head has its own matrix to logits, or all use the target's head.
    pub own_matrices: bool,
    /// The vocabulary's tokens in the order of the outputs of these matrices, if they do not have
    /// all of them. Of the target's head, these rows are used.
    pub head_tokens: Option<Arc<[TokenId]>>,
    /// The layer that computes the state from the target's features (Hydra++). Without it, the
    /// state is the feature of the last token that the target has read.
    pub prefix: Option<Architecture>,
}

/// The hidden states that drafters read as a token's features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeatureSource {
    /// The input of the head: the last hidden state, after the final norm (Medusa, EAGLE).
    LastHidden,
    /// The residual stream after each of these numbers of layers, concatenated (EAGLE-3).
    Layers(Vec<usize>),
}

impl FeatureSource {
    /// Returns the width of a token's features in a model with this hidden size.
    #[must_use]
    pub fn width(&self, hidden_size: usize) -> usize {
        match self {
            Self::LastHidden => hidden_size,
            Self::Layers(layers) => layers.len() * hidden_size,
        }
    }
}

impl Architecture {
    /// Returns the tensors that are stored for the model, in the order of the forward pass. A bias
    /// of the input projection is optional, and not included.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor> + '_ {
        let embedding = (!self.shares_embedding).then_some(Tensor::Embedding);
        let positions = self.positions.map(|_| Tensor::Positions);
        let has_types = |table: &PositionTable| table.token_types > 0;
        let token_types = self.positions.filter(has_types).map(|_| Tensor::TokenTypes);
        let own_inputs = self
            .own_input()
            .map(|_| [Tensor::LayerInputs, Tensor::LayerInputProjection, Tensor::LayerInputNorm]);
        let masks = (self.mask_tokens > 0).then_some(Tensor::MaskEmbeddings);
        let fusion = self.fusion_inputs().map(|_| Tensor::Fusion);
        let mask_features = fusion.and(masks).map(|_| Tensor::MaskFeatures);
        let layers = (0..).zip(&self.layers).flat_map(|(index, layer)| {
            let own = layer.tensors(self.norm).map(move |tensor| Tensor::Layer(index, tensor));
            let experts = layer.expert_tensors();
            own.chain(experts.map(move |(expert, part)| Tensor::Expert(index, expert, part)))
        });
        let has_final_norm = self.final_norm && self.norm.has_weights();
        let final_norm = has_final_norm.then_some(Tensor::FinalNorm);
        let has_norm_bias = self.norm == Norm::Layer { bias: true };
        let final_norm_bias = final_norm.and(has_norm_bias.then_some(Tensor::FinalNormBias));
        let head = (self.head == Head::Own).then_some(Tensor::Head);
        let head_bias = self.head_bias.then_some(Tensor::HeadBias);
        let normed = self.input == Input::NormedEmbeddingAndFeature;
        let embedding_norm = normed.then_some(Tensor::EmbeddingNorm);
        let is_block = matches!(self.input, Input::Block { .. });
        let context_norm = is_block.then_some(Tensor::ContextNorm);
        let on_keys = matches!(self.input, Input::TargetKeys { .. });
        let prediction = on_keys.then_some(Tensor::Prediction);
        let before = [
            embedding,
            positions,
            token_types,
            masks,
            embedding_norm,
            fusion,
            context_norm,
            mask_features,
            prediction,
        ];
        let after = [final_norm, final_norm_bias, head, head_bias];
        let own_inputs = own_inputs.into_iter().flatten();
        let before = before.into_iter().flatten().chain(own_inputs).chain(self.feature_norms());
        before.chain(layers).chain(after.into_iter().flatten())
    }

    /// Returns the norms of features before their projection, in the order of the parts that they
    /// apply to.
    pub fn feature_norms(&self) -> impl Iterator<Item = Tensor> + '_ {
        let (whole, parts) = match self.input {
            Input::NormedEmbeddingAndFeature
            | Input::Feature { norm: FeatureNorm::Whole, .. }
            | Input::TargetKeys { .. } => (Some(Tensor::FeatureNorm), 0),
            Input::Feature { norm: FeatureNorm::Parts(parts), .. } => (None, parts),
            _ => (None, 0),
        };
        whole.into_iter().chain((0..parts).map(Tensor::FeaturePartNorm))
    }

    /// Returns the matrices that are stored for the model, in the order of the forward pass. What
    /// mask tokens read is no matrix, and neither is the table of positions, whose rows are only
    /// added. Routers are none either: they are always f32, because a rounded score may choose
    /// another expert. Nor are the weights of convolutions.
    pub fn matrices(&self) -> impl Iterator<Item = Tensor> + '_ {
        use LayerTensor::{Router, SharedGate};
        self.tensors().filter(|tensor| {
            let is_other = match tensor {
                Tensor::Positions
                | Tensor::TokenTypes
                | Tensor::MaskEmbeddings
                | Tensor::MaskFeatures
                | Tensor::Layer(_, Router | SharedGate) => true,
                Tensor::Layer(_, part) => part.is_convolution(),
                _ => false,
            };
            !is_other && self.shape(*tensor).len() == 2
        })
    }

    /// Returns the shape of a tensor: `[outputs, inputs]` for a matrix, `[size]` for a norm or a
    /// bias. It is empty for a layer or a draft head that does not exist. The head and the
    /// embedding have a shape also if they are the same matrix, or the target's.
    #[must_use]
    pub fn shape(&self, tensor: Tensor) -> Vec<usize> {
        let hidden = self.hidden_size;
        match tensor {
            Tensor::Embedding => vec![self.vocab_size, hidden],
            Tensor::Positions => vec![self.positions.map_or(0, |table| table.rows), hidden],
            Tensor::TokenTypes => vec![self.positions.map_or(0, |table| table.token_types), hidden],
            Tensor::LayerInputs => vec![self.vocab_size, self.own_inputs_width()],
            Tensor::LayerInputProjection => vec![self.own_inputs_width(), hidden],
            Tensor::LayerInputNorm => vec![self.own_input().map_or(0, |input| input.width)],
            Tensor::Head => vec![self.head_size(), hidden],
            Tensor::FinalNorm
            | Tensor::FinalNormBias
            | Tensor::FusionBias
            | Tensor::EmbeddingNorm
            | Tensor::ContextNorm => vec![hidden],
            Tensor::HeadBias => vec![self.head_size()],
            Tensor::MaskEmbeddings => vec![self.mask_tokens, hidden],
            Tensor::MaskFeatures => vec![self.mask_tokens, self.feature_width()],
            Tensor::Fusion => vec![hidden, self.fusion_inputs().unwrap_or(0)],
            Tensor::FeatureNorm => match self.input {
                Input::TargetKeys { width } => vec![width],
                _ => vec![self.feature_width()],
            },
            Tensor::Prediction => vec![self.embedding_width(), hidden],
            Tensor::FeaturePartNorm(_) => {
                vec![self.feature_width() / self.feature_norms().count().max(1)]
            }
            Tensor::Layer(index, tensor) => {
                let shape = |layer: &Layer| match self.input {
                    Input::TargetKeys { width } if layer.has_only_keys() => {
                        layer.shape(tensor, width)
                    }
                    _ => layer.shape(tensor, hidden),
                };
                self.layers.get(index).map_or(Vec::new(), shape)
            }
            Tensor::Expert(index, expert, part) => match self.layers.get(index) {
                Some(layer) if layer.experts.is_some_and(|experts| expert < experts.n_experts) => {
                    layer.expert_shape(part, hidden)
                }
                _ => Vec::new(),
            },
            Tensor::DraftHead(..) | Tensor::BlockHead(_) => Vec::new(),
        }
    }

    /// Returns whether rows attend to later rows of their text, so that a text is one pass (BERT).
    #[must_use]
    pub fn is_encoder(&self) -> bool {
        let sees_block = |layer: &Layer| layer.attention.as_ref().is_some_and(|it| it.sees_block);
        self.input == Input::Embedding && self.layers.iter().any(sees_block)
    }

    /// Returns the number of first layers that have only keys and values, which are of the tokens
    /// before a row ([`Input::TargetKeys`]).
    #[must_use]
    pub fn key_layers(&self) -> usize {
        self.layers.iter().take_while(|layer| layer.has_only_keys()).count()
    }

    /// Returns the width of embeddings.
    #[must_use]
    pub fn embedding_width(&self) -> usize {
        match self.input {
            Input::TargetKeys { width } => width,
            _ => self.hidden_size,
        }
    }

    /// Returns the input that each layer has next to the hidden state, if layers have one.
    #[must_use]
    pub fn own_input(&self) -> Option<OwnInput> {
        self.layers.first().and_then(|layer| layer.own_input)
    }

    /// Returns the width of the layers' own inputs together.
    #[must_use]
    pub fn own_inputs_width(&self) -> usize {
        self.own_input().map_or(0, |input| input.width * self.layers.len())
    }

    /// Returns the bytes of the state that the recurrent layers keep after a row; 0 without such
    /// layers.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        let mixers = self.layers.iter().filter_map(|layer| layer.recurrent.as_ref());
        mixers.fold(0, |sum, mixer| sum.saturating_add(mixer.state_bytes()))
    }

    /// Returns the number of outputs of the head.
    #[must_use]
    pub fn head_size(&self) -> usize {
        self.head_tokens.as_ref().map_or(self.vocab_size, |tokens| tokens.len())
    }

    /// Returns the number of tokens that have an embedding: the vocabulary and the mask tokens.
    #[must_use]
    pub fn embedded_tokens(&self) -> usize {
        self.vocab_size + self.mask_tokens
    }

    /// Returns the ids of the mask tokens.
    #[must_use]
    pub fn mask_ids(&self) -> Range<TokenId> {
        self.vocab_size as TokenId..self.embedded_tokens() as TokenId
    }

    /// Returns the width of the features that a row reads; 0 if it reads only its token.
    #[must_use]
    pub fn feature_width(&self) -> usize {
        match self.input {
            Input::Embedding => 0,
            Input::EmbeddingAndFeature
            | Input::NormedEmbeddingAndFeature
            | Input::UnprojectedFeature => self.hidden_size,
            Input::Feature { width, .. }
            | Input::Block { width }
            | Input::EmbeddingPlusFeature { width, .. } => width,
            Input::TargetKeys { width } => (self.key_layers() + 1) * width,
        }
    }

    /// Returns the number of inputs of the projection before the first layer, if there is one.
    #[must_use]
    pub fn fusion_inputs(&self) -> Option<usize> {
        match self.input {
            Input::Embedding | Input::UnprojectedFeature => None,
            Input::EmbeddingAndFeature | Input::NormedEmbeddingAndFeature => {
                Some(2 * self.hidden_size)
            }
            Input::Feature { width, .. }
            | Input::Block { width }
            | Input::EmbeddingPlusFeature { width, .. } => Some(width),
            Input::TargetKeys { width } => Some(2 * width),
        }
    }
}

impl DraftHeads {
    /// Returns the number of tokens that a head reads after the state.
    #[must_use]
    pub fn tokens_read(&self, head: usize) -> usize {
        if self.reads_tokens { head + 1 } else { 0 }
    }

    /// Returns the number of outputs of a matrix to logits.
    #[must_use]
    pub fn head_size(&self) -> usize {
        self.head_tokens.as_ref().map_or(self.vocab_size, |tokens| tokens.len())
    }

    /// Returns the divisor and the limit of logits: those of the target's head if the heads use it,
    /// and none if they have matrices of their own.
    #[must_use]
    pub fn logit_divisor_and_cap(&self, target: &Architecture) -> (f32, Option<f32>) {
        match self.own_matrices {
            true => (Factors::ONE.logit_divisor, None),
            false => (target.factors.logit_divisor, target.logit_cap),
        }
    }

    /// Returns the tensors that are stored for the heads. Biases are optional, and not included.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor> + '_ {
        let first = self.reads_tokens.then_some([HeadTensor::First, HeadTensor::FirstResidual]);
        let layers = (0..self.n_layers).map(HeadTensor::Layer);
        let matrix = self.own_matrices.then_some(HeadTensor::Matrix);
        let of_head = first.into_iter().flatten().chain(layers).chain(matrix);
        let of_head: Vec<HeadTensor> = of_head.collect();
        let heads = (0..self.n_heads).flat_map(move |head| {
            of_head.clone().into_iter().map(move |tensor| Tensor::DraftHead(head, tensor))
        });
        heads.chain(self.prefix.iter().flat_map(Architecture::tensors))
    }

    /// Returns the shape of a head's tensor: `[outputs, inputs]` for a matrix, `[outputs]` for a
    /// bias.
    #[must_use]
    pub fn shape(&self, head: usize, tensor: HeadTensor) -> Vec<usize> {
        let size = self.hidden_size;
        let first_inputs = (1 + self.tokens_read(head)) * size;
        match tensor {
            HeadTensor::First | HeadTensor::FirstResidual => vec![size, first_inputs],
            HeadTensor::Layer(_) => vec![size, size],
            HeadTensor::Matrix => vec![self.head_size(), size],
            HeadTensor::FirstBias | HeadTensor::FirstResidualBias | HeadTensor::LayerBias(_) => {
                vec![size]
            }
            HeadTensor::MatrixBias => vec![self.head_size()],
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::architecture::QkNorms;
    use crate::checkpoint::random::example_config;
    use crate::checkpoint::{LayerTensor, Tensor};
    use crate::config::Config;

    #[test]
    fn names_and_shapes_match_hugging_face() {
        let config = example_config();
        let query = Tensor::Layer(1, LayerTensor::Query);
        assert_eq!(query.to_string(), "model.layers.1.self_attn.q_proj.weight");
        assert_eq!(config.architecture().shape(query), [48, 48]);
        assert_eq!(config.architecture().shape(Tensor::Layer(0, LayerTensor::Key)), [24, 48]);
        assert_eq!(config.architecture().shape(Tensor::Layer(0, LayerTensor::Down)), [48, 100]);
        assert_eq!(config.architecture().shape(Tensor::Head), [259, 48]);
        let bias = Tensor::Layer(0, LayerTensor::KeyBias);
        assert_eq!(bias.to_string(), "model.layers.0.self_attn.k_proj.bias");
        assert_eq!(config.architecture().shape(bias), [24]);
    }

    #[test]
    fn layers_have_the_tensors_that_the_configuration_requires() {
        let mut config = example_config();
        let count = |config: &Config| config.architecture().tensors().count();
        assert_eq!(count(&config), 2 * 9 + 3);
        config.qkv_bias = true;
        assert_eq!(count(&config), 2 * 12 + 3);
        config.qk_norms = QkNorms::Heads;
        assert_eq!(count(&config), 2 * 14 + 3);
        (config.output_bias, config.mlp_bias) = (true, true);
        assert_eq!(count(&config), 2 * 18 + 3);
    }

    #[test]
    fn a_tied_head_is_not_stored() {
        let mut config = example_config();
        assert_eq!(config.architecture().tensors().count(), 2 * 9 + 3);
        config.tie_word_embeddings = true;
        assert_eq!(config.architecture().tensors().count(), 2 * 9 + 2);
    }
}
