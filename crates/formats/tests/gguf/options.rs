//! The configurations that follow from metadata.

use super::builder::*;
use forerun_formats::{Config, Family, QkNorms, RopeScaling};

fn config(change: impl Fn(&mut Builder)) -> Config {
    let mut builder = Builder::llama();
    change(&mut builder);
    builder.read().unwrap().config().clone()
}

#[test]
fn absent_options_have_llama_cpps_defaults() {
    let llama = config(|_| ());
    let expected = Config {
        hidden_size: 4,
        intermediate_size: 6,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 2,
        vocab_size: 5,
        max_position_embeddings: 16,
        ..Config::plain_llama()
    };
    assert_eq!(llama, expected);
    let tied = config(|builder| drop(builder.tensors.pop()));
    assert_eq!(tied, Config { tie_word_embeddings: true, ..expected });
}

#[test]
fn the_vocabulary_may_be_that_of_the_tokenizer() {
    let config = config(|builder| {
        builder.remove("llama.vocab_size");
        let tokens = ["a", "b", "c", "d", "e"].map(|token| sized(token.as_bytes())).concat();
        builder.set("tokenizer.ggml.tokens", array_of(TEXT, 5, &tokens));
        builder.set("tokenizer.ggml.bos_token_id", u32_value(1));
        builder.set("tokenizer.ggml.eos_token_id", u32_value(2));
        builder.set("tokenizer.ggml.eot_token_id", u32_value(4));
        builder.set("tokenizer.ggml.eom_token_id", u32_value(2));
    });
    assert_eq!(config.vocab_size, 5);
    assert_eq!((config.bos_token_id, &config.eos_token_ids[..]), (Some(1), &[2, 4][..]));
}

#[test]
fn sizes_may_be_given_for_each_layer_and_in_any_integer_type() {
    let same = config(|builder| {
        builder.set("llama.attention.head_count", u32s(&[2]));
        builder.set("llama.attention.head_count_kv", array_of(U64, 1, &1_u64.to_le_bytes()));
        builder.set("llama.feed_forward_length", u32s(&[6]));
        builder.set("llama.embedding_length", (U64, 4_u64.to_le_bytes().into()));
        builder.set("llama.attention.layer_norm_rms_epsilon", (F64, 1e-5_f64.to_le_bytes().into()));
    });
    assert_eq!(same, config(|_| ()));
}

#[test]
fn rope_is_scaled_as_in_llama_cpp() {
    let scaling = |options: &[(&str, Value)]| {
        let set = |builder: &mut Builder| {
            for (name, value) in options {
                builder.set(&format!("llama.rope.{name}"), value.clone());
            }
        };
        config(set).rope_scaling
    };
    let linear = RopeScaling::Linear { factor: 4.0 };
    let factor = ("scaling.factor", f32_value(4.0));
    assert_eq!(scaling(&[("scaling.type", text("linear")), factor.clone()]), linear);
    assert_eq!(scaling(std::slice::from_ref(&factor)), linear);
    assert_eq!(scaling(&[("scale_linear", f32_value(4.0))]), linear);
    assert_eq!(scaling(&[("scaling.type", text("none")), factor]), RopeScaling::None);
    assert_eq!(scaling(&[("scaling.factor", f32_value(0.0))]), RopeScaling::None);
    assert_eq!(scaling(&[("scaling.original_context_length", u32_value(8))]), RopeScaling::None);
    let divided = config(|builder| {
        builder.add("rope_freqs.weight", &[1]);
        builder.tensor("rope_freqs.weight").bytes = 2.5_f32.to_le_bytes().into();
        builder.set("llama.rope.freq_base", f32_value(500_000.0));
    });
    let divisors = RopeScaling::Divisors { divisors: [2.5].into(), attention_factor: 1.0 };
    assert_eq!(divided.rope_scaling, divisors);
    assert_eq!((divided.rope_theta, divided.rope(0).frequency(0)), (500_000.0, 0.4));
}

#[test]
fn windows_apply_to_the_layers_of_the_pattern() {
    const WINDOW: &str = "llama.attention.sliding_window";
    let all = config(|builder| builder.set(WINDOW, u32_value(8)));
    assert_eq!(all.window(0), Some(8));
    assert_eq!(config(|builder| builder.set(WINDOW, u32_value(0))), config(|_| ()));
    for slides in [true, false] {
        let listed = config(|builder| {
            builder.set(WINDOW, u32_value(8));
            builder.set("llama.attention.sliding_window_pattern", bools(&[slides]));
        });
        assert_eq!(listed.window(0), slides.then_some(8));
    }
}

#[test]
fn families_have_their_own_tensors() {
    let read = |architecture: &str, tensors: &[(&str, &[u64])]| {
        let mut builder = Builder::model(architecture);
        tensors.iter().for_each(|(name, dimensions)| builder.add(name, dimensions));
        builder.read().map(|checkpoint| checkpoint.config().clone())
    };
    let biases =
        [("blk.0.attn_q.bias", &[4][..]), ("blk.0.attn_k.bias", &[2]), ("blk.0.attn_v.bias", &[2])];
    let norms = [("blk.0.attn_q_norm.weight", &[2][..]), ("blk.0.attn_k_norm.weight", &[2])];
    let qwen2 = read("qwen2", &biases).unwrap();
    assert_eq!(
        (qwen2.family, qwen2.qkv_bias, qwen2.qk_norms),
        (Family::Qwen2, true, QkNorms::None)
    );
    let qwen3 = read("qwen3", &norms).unwrap();
    assert_eq!(
        (qwen3.family, qwen3.qkv_bias, qwen3.qk_norms),
        (Family::Qwen3, false, QkNorms::Heads)
    );
    assert!(read("qwen3", &[]).unwrap_err().to_string().contains("attn_q_norm.weight` is missing"));
    let llama = read("llama", &biases).unwrap();
    assert_eq!((llama.qkv_bias, llama.output_bias, llama.mlp_bias), (true, false, false));
}

#[test]
fn neutral_values_of_other_options_are_accepted() {
    for (name, value) in [
        ("expert_count", u32_value(0)),
        ("logit_scale", f32_value(1.0)),
        ("attention.scale", f32_value(std::f32::consts::FRAC_1_SQRT_2)),
        ("attention.causal", bool_value(true)),
        ("use_parallel_residual", bool_value(false)),
        ("rope.dimension_sections", u32s(&[0, 0])),
        ("rope.dimension_count", u32_value(2)),
        ("rope.freq_base_swa", f32_value(10_000.0)),
        ("tensor_data_layout", text("Meta AI original pth")),
    ] {
        assert_eq!(
            config(|builder| builder.set(&format!("llama.{name}"), value.clone())),
            config(|_| ()),
            "{name}"
        );
    }
    let old = config(|builder| builder.add("blk.0.attn_rot_embd", &[1]));
    assert_eq!(old, config(|_| ()));
}

#[test]
fn sampling_is_suggested_by_metadata() {
    let suggested = config(|builder| {
        builder.set("general.sampling.temp", f32_value(0.6));
        builder.set("general.sampling.top_k", u32_value(20));
        builder.set("general.sampling.sequence", text("temp"));
    })
    .suggested_sampling
    .unwrap();
    assert_eq!((suggested.temperature, suggested.top_k, suggested.top_p), (0.6, 20, 1.0));
    assert_eq!(config(|_| ()).suggested_sampling, None);
}
