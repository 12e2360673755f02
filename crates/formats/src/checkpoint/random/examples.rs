//! Small configurations for tests.

use super::{BOS, EOS, families};
use crate::architecture::QkNorms;
use crate::config::{Config, Family, RopeScaling, SlidingLayers, SlidingWindow};

/// Returns a small configuration with 2 layers, grouped queries, sizes that are not multiples of a
/// SIMD width, and a vocabulary one token larger than the tokenizer's.
pub fn example_config() -> Config {
    Config {
        hidden_size: 48,
        intermediate_size: 100,
        num_hidden_layers: 2,
        num_attention_heads: 6,
        num_key_value_heads: 3,
        head_dim: 8,
        vocab_size: 259,
        max_position_embeddings: 512,
        bos_token_id: Some(BOS),
        eos_token_ids: vec![EOS],
        ..Config::plain_llama()
    }
}

/// Returns variants of [`example_config`] of every family that together have every supported
/// feature: both kinds of scaled RoPE, layers without RoPE, every bias, norms of queries and keys,
/// constant factors, and sliding windows (shorter than a SIMD width, and not a multiple of one) in
/// some and in all layers.
pub fn example_families() -> Vec<Config> {
    let llama = Config {
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        rope_scaling: RopeScaling::Linear { factor: 4.0 },
        ..example_config()
    };
    let mistral = Config {
        family: Family::Mistral,
        sliding_window: Some(SlidingWindow { size: 21, layers: SlidingLayers::From(0) }),
        ..example_config()
    };
    let qwen2 = Config {
        family: Family::Qwen2,
        qkv_bias: true,
        tie_word_embeddings: true,
        sliding_window: Some(SlidingWindow { size: 5, layers: SlidingLayers::From(1) }),
        ..example_config()
    };
    let layers = SlidingLayers::Listed(vec![true, false]);
    let qwen3 = Config {
        family: Family::Qwen3,
        head_dim: 10,
        qkv_bias: true,
        output_bias: true,
        qk_norms: QkNorms::Heads,
        rope_scaling: RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 32,
        },
        sliding_window: Some(SlidingWindow { size: 33, layers }),
        ..example_config()
    };
    let granite = Config {
        family: Family::Granite,
        attention_multiplier: Some(0.21),
        embedding_multiplier: 1.7,
        residual_multiplier: 0.6,
        logits_scaling: 0.7,
        mlp_bias: true,
        ..example_config()
    };
    let smollm3 = Config {
        family: Family::SmolLm3,
        tie_word_embeddings: true,
        rope_layers: Some(vec![true, false]),
        sliding_window: Some(SlidingWindow {
            size: 19,
            layers: SlidingLayers::Listed(vec![false, true]),
        }),
        ..example_config()
    };
    let mut families = vec![llama, mistral, qwen2, qwen3, granite, smollm3];
    families.extend(families::dense());
    families.extend(families::mixtures());
    families.extend(families::hybrids());
    families
}
