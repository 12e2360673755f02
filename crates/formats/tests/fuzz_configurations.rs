//! Configurations of every family with random damage: each is an error that names an option, or a
//! model that can be described.
//!
//! `FORERUN_CASES` sets the number of cases (`just fuzz` runs a million).

use forerun_formats::checkpoint::Dtype;
use forerun_formats::checkpoint::random::{example_config, example_families};
use forerun_formats::{Config, LoadError};
use serde_json::{Value, json};
use std::path::Path;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) as usize % end
    }

    /// Returns a value that some option might have, or that none should have.
    fn value(&mut self, depth: usize) -> Value {
        let numbers = [
            json!(0),
            json!(1),
            json!(2),
            json!(3),
            json!(4),
            json!(6),
            json!(8),
            json!(64),
            json!(-1),
            json!(0.5),
            json!(0.25),
            json!(1.0),
            json!(1e-40),
            json!(1e300),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(1_u64 << 28),
            json!((1_u64 << 28) + 1),
            json!(4096),
        ];
        let words = [
            "default",
            "linear",
            "dynamic",
            "yarn",
            "longrope",
            "su",
            "llama3",
            "silu",
            "gelu",
            "relu",
            "gelu_pytorch_tanh",
            "full_attention",
            "sliding_attention",
            "linear_attention",
            "rope_gptj",
            "",
        ];
        match self.below(if depth == 0 { 6 } else { 9 }) {
            0..=2 => numbers[self.below(numbers.len())].clone(),
            3 => json!(words[self.below(words.len())]),
            4 => json!(self.below(2) == 0),
            5 => Value::Null,
            6 | 7 => (0..self.below(5)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let entries = (0..self.below(4)).map(|_| {
                    (OPTIONS[self.below(OPTIONS.len())].to_owned(), self.value(depth - 1))
                });
                Value::Object(entries.collect())
            }
        }
    }
}

/// Options that are added or changed, beyond those that a configuration has.
const OPTIONS: &[&str] = &[
    "rope_scaling",
    "rope_parameters",
    "rope_type",
    "type",
    "factor",
    "short_factor",
    "long_factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "full_attention",
    "sliding_attention",
    "rope_theta",
    "partial_rotary_factor",
    "layer_types",
    "sliding_window",
    "sliding_window_pattern",
    "head_dim",
    "num_key_value_heads",
    "num_local_experts",
    "num_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "decoder_sparse_step",
    "mlp_only_layers",
    "first_k_dense_replace",
    "n_shared_experts",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "logit_scale",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "swiglu_limit",
    "rope_local_base_freq",
    "rotary_pct",
    "hidden_act",
    "model_type",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "hidden_size",
    "vocab_size",
    "qkv_bias",
    "attention_bias",
    "use_qk_norm",
    "routed_scaling_factor",
    "norm_topk_prob",
    "no_rope_layers",
    "full_attention_interval",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "mamba_n_heads",
    "mamba_n_groups",
    "mamba_d_state",
    "mamba_d_head",
    "mamba_d_conv",
    "mamba_expand",
    "time_step_limit",
    "shared_intermediate_size",
    "conv_L_cache",
    "full_attn_idxs",
    "block_multiple_of",
    "block_ffn_dim_multiplier",
];

/// Describes a model as loaders and devices do. Its tensors may be very many.
fn describe(config: &Config) {
    let architecture = config.architecture();
    assert_eq!(architecture.layers.len(), config.num_hidden_layers);
    for tensor in architecture.tensors().take(2_000) {
        let sizes = architecture.shape(tensor).into_iter();
        let elements = sizes.map(|size| size as u128).product::<u128>();
        assert!(elements > 0 && !tensor.to_string().is_empty(), "{tensor}");
    }
    for layer in architecture.layers.iter().take(50) {
        let Some(attention) = &layer.attention else { continue };
        assert!(attention.score_scale.is_finite());
        let Some(rope) = &attention.rope else { continue };
        assert!(rope.amplitude().is_finite() && rope.dims <= attention.head_dim);
        for pair in (0..rope.dims / 2).take(50) {
            assert!(rope.frequency(pair).is_finite(), "{rope:?}");
        }
    }
}

#[test]
fn damaged_configurations_are_errors_or_models() {
    let cases = std::env::var("FORERUN_CASES").map_or(20_000, |cases| cases.parse().unwrap());
    let file = Path::new("config.json");
    let configs: Vec<Value> = [example_config()]
        .into_iter()
        .chain(example_families())
        .map(|config| config.to_json(Dtype::F32))
        .collect();
    let mut accepted = 0;
    for case in 0..cases {
        let mut random = Random(case);
        let mut options = configs[random.below(configs.len())].clone();
        let object = options.as_object_mut().unwrap();
        for _ in 0..=random.below(3) {
            let known: Vec<String> = object.keys().cloned().collect();
            let name = match random.below(2) {
                0 => known[random.below(known.len())].clone(),
                _ => OPTIONS[random.below(OPTIONS.len())].to_owned(),
            };
            match random.below(6) {
                0 => drop(object.remove(&name)),
                _ => drop(object.insert(name, random.value(2))),
            }
        }
        let text = options.to_string();
        match Config::parse(&text, file) {
            Ok(config) => {
                describe(&config);
                accepted += 1;
            }
            Err(error) => {
                let message = error.to_string();
                let names_option = message.starts_with("config.json: option \"");
                assert!(
                    names_option || matches!(error, LoadError::Json { .. }),
                    "{message}: {text}"
                );
            }
        }
    }
    assert!((cases / 10..cases).contains(&accepted), "{accepted} of {cases} are accepted");
}

/// What a family writes is what it reads.
#[test]
fn written_configurations_are_read_back() {
    for config in [example_config()].into_iter().chain(example_families()) {
        let text = config.to_json(Dtype::F32).to_string();
        assert_eq!(Config::parse(&text, Path::new("config.json")).unwrap(), config);
    }
}
