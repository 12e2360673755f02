//! BERT: an encoder, whose hidden states become the embedding of a text.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{Config, MAX_LAYERS, NormPlacement, PoolingMode};
use crate::architecture::{Activation, Norm};
use serde_json::json;

pub(in super::super) const BERT: Description = Description {
    name: "BERT",
    model_type: "bert",
    class: "BertModel",
    defaults: Defaults {
        vocab_size: Some(30_522),
        max_position_embeddings: 512,
        // The head is not part of an encoder.
        tie_word_embeddings: true,
        bos_token_id: None,
        eos_token_id: None,
        epsilon: ("layer_norm_eps", 1e-12),
        activation: ("hidden_act", Activation::Gelu),
        ..LLAMA
    },
    reads: &["position_embedding_type"],
    read: |options, config| {
        options.check_supported("position_embedding_type", "\"absolute\"", |found| {
            *found == "absolute"
        })?;
        for option in ["is_decoder", "add_cross_attention"] {
            options.check_supported(option, "false", |flag| *flag == false)?;
        }
        config.set_bert(options.size("type_vocab_size")?.unwrap_or(2));
        Ok(())
    },
    write: |config, options| {
        options.insert("type_vocab_size".to_owned(), json!(config.token_types));
    },
};

impl Config {
    /// Sets what BERT computes beyond a plain Llama. Embeddings are means unless files say
    /// otherwise.
    pub(crate) fn set_bert(&mut self, token_types: usize) {
        self.norm = Norm::Layer { bias: true };
        self.norm_placement = NormPlacement::OfSums;
        self.gated_mlp = false;
        (self.qkv_bias, self.output_bias, self.mlp_bias) = (true, true, true);
        self.learned_positions = Some(0);
        self.token_types = token_types;
        self.rope_layers = Some(vec![false; self.num_hidden_layers.min(MAX_LAYERS)]);
        self.bidirectional = true;
        self.pooling = Some(PoolingMode::Mean.into());
    }
}
