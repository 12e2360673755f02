//! What the architectures of llama.cpp compute without an option, and with their own options.

use super::builder::*;
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{Activation, Config, Family, NormPlacement, RopeScaling, Yarn};

const NORMS_AROUND: [&str; 2] = ["blk.0.post_attention_norm.weight", "blk.0.post_ffw_norm.weight"];

/// A model of an architecture, with the tensors that a Llama does not have.
fn model(architecture: &str) -> Builder {
    let mut builder = Builder::model(architecture);
    let mut norms = |names: &[&str], size| names.iter().for_each(|name| builder.add(name, &[size]));
    match architecture {
        "gemma2" => norms(&NORMS_AROUND, 4),
        "gemma3" | "gemma4" => {
            norms(&NORMS_AROUND, 4);
            norms(&["blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight"], 2);
        }
        "olmo2" => {
            norms(&NORMS_AROUND, 4);
            norms(&["blk.0.attn_q_norm.weight"], 4);
            norms(&["blk.0.attn_k_norm.weight"], 2);
            let unused = [&b"blk.0.attn_norm.weight"[..], b"blk.0.ffn_norm.weight"];
            builder.tensors.retain(|tensor| !unused.contains(&&*tensor.name));
        }
        "phi3" => {
            builder.tensors.retain(|tensor| tensor.name != b"blk.0.ffn_gate.weight");
            builder.tensors.retain(|tensor| tensor.name != b"blk.0.ffn_up.weight");
            builder.add("blk.0.ffn_up.weight", &[4, 12]);
        }
        _ => {}
    }
    builder
}

fn read(architecture: &str, options: &[(&str, Value)]) -> Result<Config, String> {
    let mut builder = model(architecture);
    for (name, value) in options {
        builder.set(&format!("{architecture}.{name}"), value.clone());
    }
    let checkpoint = builder.read().map_err(|error| error.to_string())?;
    Ok(checkpoint.config().clone())
}

fn assert_rejected(architecture: &str, options: &[(&str, Value)], words: &[&str]) {
    let message = read(architecture, options).unwrap_err();
    for word in words {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

#[test]
fn yarn_has_llama_cpps_defaults() {
    let yarn = ("rope.scaling.type", text("yarn"));
    let factor = |factor| ("rope.scaling.factor", f32_value(factor));
    let expected = Yarn {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: (0.1 * 4_f64.ln() + 1.0) as f32,
        original_max_position_embeddings: 16,
    };
    let plain = read("llama", &[yarn.clone(), factor(4.0)]).unwrap();
    assert_eq!(plain.rope_scaling, RopeScaling::Yarn(expected));
    let options = [
        yarn.clone(),
        factor(4.0),
        ("rope.scaling.original_context_length", u32_value(8)),
        ("rope.scaling.yarn_beta_fast", f32_value(8.0)),
        ("rope.scaling.yarn_beta_slow", f32_value(0.5)),
    ];
    let changed =
        Yarn { beta_fast: 8.0, beta_slow: 0.5, original_max_position_embeddings: 8, ..expected };
    assert_eq!(read("llama", &options).unwrap().rope_scaling, RopeScaling::Yarn(changed));
    assert_rejected("llama", std::slice::from_ref(&yarn), &["scaling.factor", "absent"]);
    for value in [0.0, 0.5, f32::NAN, f32::INFINITY] {
        assert_rejected(
            "llama",
            &[yarn.clone(), factor(value)],
            &["\"llama.rope.scaling.factor\""],
        );
    }
    let recommended = ("rope.scaling.attn_factor", f32_value(expected.attention_factor));
    let stated = read("llama", &[yarn.clone(), factor(4.0), recommended]).unwrap();
    assert_eq!(stated.rope_scaling, plain.rope_scaling);
    let attention = ("rope.scaling.yarn_attn_factor", f32_value(1.2));
    assert_rejected(
        "llama",
        &[yarn, factor(4.0), attention],
        &["yarn_attn_factor", "supported: 1"],
    );
}

#[test]
fn gemma_2_has_limits_and_windows() {
    let plain = read("gemma2", &[]).unwrap();
    assert_eq!(
        (plain.attn_logit_softcapping, plain.final_logit_softcapping),
        (Some(50.0), Some(30.0))
    );
    assert_eq!(plain.window(0), Some(4096));
    assert_eq!(
        (plain.norm_placement, plain.hidden_act),
        (NormPlacement::Around, Activation::GeluTanh)
    );
    assert_eq!((plain.embedding_multiplier, plain.score_scale()), (2.0, 1.0 / 2_f32.sqrt()));
    let options = [
        ("attn_logit_softcapping", f32_value(0.0)),
        ("final_logit_softcapping", f32_value(7.0)),
        ("attention.scale", f32_value(0.25)),
        ("attention.sliding_window", u32_value(8)),
        ("attention.sliding_window_pattern", u32_value(1)),
    ];
    let changed = read("gemma2", &options).unwrap();
    assert_eq!(
        (changed.attn_logit_softcapping, changed.final_logit_softcapping),
        (None, Some(7.0))
    );
    assert_eq!((changed.score_scale(), changed.window(0)), (0.25, None));
    assert_rejected(
        "gemma2",
        &[("final_logit_softcapping", f32_value(-1.0))],
        &["is -1", "positive"],
    );
    let period = ("attention.sliding_window_pattern", u32_value(0));
    assert_rejected("gemma2", &[period], &["gemma2.attention.sliding_window_pattern\" is 0"]);
}

#[test]
fn gemma_3_has_two_kinds_of_rope() {
    let window = ("attention.sliding_window", u32_value(8));
    let theta = ("rope.freq_base", f32_value(1e6));
    let plain = read("gemma3", &[window.clone(), theta.clone()]).unwrap();
    assert_eq!((plain.window(0), plain.rope(0).theta, plain.rope_theta), (Some(8), 10_000.0, 1e6));
    assert_eq!((plain.attn_logit_softcapping, plain.final_logit_softcapping), (None, None));
    let local = ("rope.freq_base_swa", f32_value(500.0));
    assert_eq!(read("gemma3", &[window, theta, local]).unwrap().rope(0).theta, 500.0);
    let cap = ("attn_logit_softcapping", f32_value(50.0));
    assert_rejected(
        "gemma3",
        &[cap],
        &["\"gemma3.attn_logit_softcapping\" is 50", "not supported"],
    );
}

#[test]
fn gemma_4_has_sizes_for_layers_with_and_without_a_window() {
    let required = [
        ("attention.key_length", u32_value(2)),
        ("attention.sliding_window", u32_value(8)),
        ("attention.sliding_window_pattern", bools(&[false])),
        ("attention.key_length_swa", u32_value(2)),
    ];
    let with = |more: &[(&'static str, Value)]| [&required[..], more].concat();
    let plain = read("gemma4", &required).unwrap();
    let heads = plain.global_heads.unwrap();
    assert_eq!((heads.head_dim, heads.num_key_value_heads, heads.values_are_keys), (2, 1, false));
    assert_eq!((plain.embedding_multiplier, plain.score_scale()), (2.0, 1.0));
    assert_eq!((plain.window(0), plain.shared_keys, plain.per_layer_input), (None, None, None));
    assert!(plain.experts.is_none());
    assert!(!plain.layer_scalar);
    assert_rejected("gemma4", &required[..2], &["sliding_window_pattern", "a flag for each"]);
    assert_rejected("gemma4", &required[..3], &["gemma4.attention.key_length_swa"]);
    let pattern = ("attention.sliding_window_pattern", bools(&[true]));
    let words = &["sliding_window_pattern", "one layer without a window"];
    assert_rejected("gemma4", &with(&[pattern]), words);
    for (name, value, word) in [
        ("attention.value_length_swa", u32_value(4), "the size of a head"),
        ("rope.dimension_count_swa", u32_value(4), "the size of a head"),
        ("attention.head_count_kv", u32s(&[1, 1]), "each of the 1 layers"),
        ("feed_forward_length", u32s(&[0]), "each of the 1 layers"),
        ("attention.shared_kv_layers", u32_value(1), "num_kv_shared_layers"),
        ("expert_count", u32_value(3), "expert_used_count"),
    ] {
        assert_rejected("gemma4", &with(&[(name, value)]), &[word]);
    }
    let experts = [("expert_count", u32_value(3)), ("expert_used_count", u32_value(2))];
    assert_rejected("gemma4", &with(&experts), &["gemma4.expert_feed_forward_length"]);
}

#[test]
fn gemma_4_may_rotate_a_part_of_the_pairs() {
    let read = |divisor: f32| {
        let mut builder = model("gemma4");
        for (name, value) in [
            ("attention.sliding_window", u32_value(8)),
            ("attention.sliding_window_pattern", bools(&[false])),
            ("attention.key_length_swa", u32_value(2)),
        ] {
            builder.set(&format!("gemma4.{name}"), value);
        }
        builder.add("rope_freqs.weight", &[1]);
        builder.tensor("rope_freqs.weight").bytes = divisor.to_le_bytes().to_vec();
        builder.read().map(|checkpoint| checkpoint.config().rope_scaling.clone())
    };
    let share = |share| RopeScaling::Proportional { share, factor: 1.0 };
    assert_eq!(read(1.0).unwrap(), share(1.0));
    let message = read(2.0).unwrap_err().to_string();
    assert!(message.contains("rope_freqs.weight") && message.contains("1e30"), "{message}");
}

#[test]
fn olmo_3_is_an_olmo_2_with_windows() {
    let plain = read("olmo2", &[]).unwrap();
    assert_eq!((plain.family, plain.norm_placement), (Family::Olmo2, NormPlacement::After));
    let scaled = [
        ("attention.sliding_window", u32_value(8)),
        ("rope.freq_base", f32_value(5e5)),
        ("rope.scaling.type", text("linear")),
        ("rope.scaling.factor", f32_value(2.0)),
    ];
    let windowed = read("olmo2", &scaled).unwrap();
    assert_eq!((windowed.family, windowed.window(0)), (Family::Olmo3, Some(8)));
    assert_eq!(windowed.rope_scaling, RopeScaling::Linear { factor: 2.0 });
    // Layers with a window have unscaled RoPE.
    assert_eq!((windowed.rope(0).theta, windowed.rope(0).scaling), (5e5, RopeScaling::None));
}

#[test]
fn longrope_has_the_factors_of_short_texts() {
    let longrope = |shape: u64| {
        let mut builder = model("phi3");
        for name in ["rope_factors_short.weight", "rope_factors_long.weight"] {
            builder.add(name, &[shape]);
            let value: f32 = if name.contains("short") { 1.5 } else { 9.0 };
            builder.tensor(name).bytes = value.to_le_bytes().repeat(shape as usize);
        }
        builder.set("phi3.rope.scaling.attn_factor", f32_value(1.19));
        builder.set("phi3.rope.scaling.original_context_length", u32_value(8));
        builder.read().map(|checkpoint| checkpoint.config().clone())
    };
    let config = longrope(1).unwrap();
    let expected = RopeScaling::Divisors { divisors: [1.5].into(), attention_factor: 1.19 };
    assert_eq!((config.rope_scaling, config.max_position_embeddings), (expected, 8));
    let message = longrope(2).unwrap_err().to_string();
    assert!(
        message.contains("`rope_factors_short.weight` has shape [2]; expected [1]"),
        "{message}"
    );
    assert_rejected("phi3", &[("rope.scaling.type", text("longrope"))], &["\"longrope\""]);
    let factor = ("rope.scaling.attn_factor", f32_value(1.19));
    assert_rejected("phi3", &[factor], &["phi3.rope.scaling.attn_factor", "supported: 1"]);
    for dims in [1, 4] {
        let dims = ("rope.dimension_count", u32_value(dims));
        assert_rejected("phi3", &[dims], &["an even number up to the size of a head, 2"]);
    }
}

/// They are the halves of a stored matrix, also in blocks.
#[test]
fn gate_and_up_may_have_one_row_each() {
    let mut narrow = model("phi3");
    narrow.set("phi3.feed_forward_length", u32_value(1));
    narrow.set("phi3.embedding_length", u32_value(32));
    narrow.set("phi3.attention.key_length", u32_value(2));
    for stored in &mut narrow.tensors {
        let dimensions = match &*String::from_utf8_lossy(&stored.name) {
            "blk.0.ffn_up.weight" => vec![32, 2],
            "blk.0.ffn_down.weight" => vec![1, 32],
            "blk.0.attn_output.weight" => vec![4, 32],
            _ if stored.dimensions.len() == 1 => vec![32],
            _ => vec![32, stored.dimensions[1]],
        };
        stored.bytes = vec![0; 4 * dimensions.iter().product::<u64>() as usize];
        stored.dimensions = dimensions;
    }
    let up = narrow.tensor("blk.0.ffn_up.weight");
    // Q8_0: scales of 1, and quants of 1 and 2.
    let block = |quant: u8| [&[0, 0x3c][..], &[quant; 32]].concat();
    (up.code, up.bytes) = (8, [block(1), block(2)].concat());
    let narrow = narrow.read().unwrap();
    for (part, value) in [(LayerTensor::Gate, 1.0), (LayerTensor::Up, 2.0)] {
        assert_eq!(narrow.tensor(Tensor::Layer(0, part)).unwrap(), [value; 32]);
    }
}

#[test]
fn own_options_are_named_when_they_are_missing_or_not_supported() {
    let finetuned = ("rope.scaling.finetuned", bool_value(false));
    assert_rejected("granite", &[finetuned], &["\"granite.rope.scaling.finetuned\"", "no RoPE"]);
    assert_rejected("granite", &[("logit_scale", f32_value(f32::NAN))], &["granite.logit_scale"]);
    let epsilon = ("attention.layer_norm_epsilon", f32_value(1e-5));
    for architecture in ["command-r", "gptneox", "phi2", "stablelm", "starcoder2"] {
        assert_rejected(architecture, &[], &["attention.layer_norm_epsilon\" is absent"]);
    }
    let scale = ("logit_scale", f32_value(0.25));
    for (architecture, options, words) in [
        ("command-r", vec![epsilon.clone()], "\"command-r.logit_scale\" is absent"),
        ("cohere2", vec![epsilon.clone(), scale], "\"cohere2.attention.sliding_window\" is absent"),
        ("gptneox", vec![epsilon], "\"gptneox.use_parallel_residual\" is absent"),
    ] {
        assert_rejected(architecture, &options, &[words]);
    }
}

/// An answer of gpt-oss has several messages, and goes on after the end of one.
#[test]
fn ends_of_messages_are_no_ends_of_answers_in_gpt_oss_format() {
    let ends = |texts: [&str; 5]| {
        let mut builder = Builder::llama();
        let tokens = texts.map(|token| sized(token.as_bytes())).concat();
        builder.set("tokenizer.ggml.tokens", array_of(TEXT, 5, &tokens));
        builder.set("tokenizer.ggml.token_type", u32s(&[1, 3, 3, 3, 3]));
        builder.read().unwrap().config().eos_token_ids.clone()
    };
    assert_eq!(ends(["a", "<|return|>", "<|call|>", "<|end|>", "<|endoftext|>"]), [1, 2, 4]);
    assert_eq!(ends(["a", "<|user|>", "<|call|>", "<|end|>", "<|endoftext|>"]), [3, 4]);
}

#[test]
fn mixers_of_other_forms_are_refused_by_name() {
    let sizes = |groups, heads: u32| {
        [
            ("attention.head_count_kv", u32s(&[0])),
            ("ssm.conv_kernel", u32_value(4)),
            ("ssm.state_size", u32_value(3)),
            ("ssm.group_count", u32_value(groups)),
            ("ssm.time_step_rank", u32_value(heads)),
            ("ssm.inner_size", u32_value(8)),
        ]
    };
    // transformers has one norm of all groups, and llama.cpp one of each.
    assert_rejected("granitehybrid", &sizes(2, 4), &["ssm.group_count\" is 2", "supported: 1"]);
    assert_rejected("granitehybrid", &sizes(1, 3), &["ssm.inner_size\" is 8", "a multiple of"]);
    assert_rejected("granitehybrid", &sizes(1, 4)[..5], &["ssm.inner_size\"", "absent"]);
    assert_rejected("granitehybrid", &sizes(1, 4)[1..], &["attention.head_count_kv\""]);
    assert_rejected("lfm2", &sizes(1, 4)[..1], &["shortconv.l_cache\"", "absent"]);
    let heads = ("attention.head_count_kv", u32s(&[0, 2]));
    assert_rejected("lfm2", &[heads], &["attention.head_count_kv\"", "each of the 1 layers"]);
    let listed = ("attention.recurrent_layers", bools(&[]));
    assert_rejected("qwen35", &[listed], &["attention.recurrent_layers\"", "each of the 1 layers"]);
    // The file has no tensors of mixers.
    assert_rejected("granitehybrid", &sizes(1, 4), &["blk.0.ssm_in.weight"]);
}

#[test]
fn compressed_keys_and_values_need_their_sizes() {
    let all = [
        ("rope.dimension_count", u32_value(2)),
        ("attention.kv_lora_rank", u32_value(6)),
        ("attention.key_length_mla", u32_value(5)),
        ("attention.value_length_mla", u32_value(4)),
        ("expert_count", u32_value(4)),
        ("expert_used_count", u32_value(2)),
    ];
    for (index, (name, _)) in all.iter().enumerate() {
        let mut options = all.to_vec();
        options.remove(index);
        let name = if *name == "attention.key_length_mla" { "attention.key_length" } else { name };
        assert_rejected("deepseek2", &options, &[&format!("\"deepseek2.{name}\"")]);
    }
    let key = |size| [&all[..2], &[("attention.key_length_mla", u32_value(size))]].concat();
    assert_rejected("deepseek2", &key(2), &["key_length_mla\" is 2", "above that of RoPE, 2"]);
    let normed = [&all[..], &[("expert_weights_norm", bool_value(true))]].concat();
    assert_rejected("deepseek2", &normed, &["expert_weights_norm\" is true"]);
    let groups = [&all[..], &[("expert_group_count", u32_value(2))]].concat();
    assert_rejected("deepseek2", &groups, &["expert_group_used_count"]);
    assert_rejected("deepseek2", &all, &["blk.0.attn_"]);
}
