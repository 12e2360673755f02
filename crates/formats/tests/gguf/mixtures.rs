//! Mixtures of experts.

use super::builder::*;
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{Config, ExpertTensor};

fn config(change: impl Fn(&mut Builder)) -> Config {
    let mut builder = Builder::mixture();
    change(&mut builder);
    builder.read().unwrap().config().clone()
}

/// Checks that a changed mixture is refused with these words.
fn rejected(change: impl Fn(&mut Builder), words: &[&str]) {
    let mut builder = Builder::mixture();
    change(&mut builder);
    let message = builder.read().unwrap_err().to_string();
    for word in words {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

#[test]
fn an_expert_is_a_part_of_a_stored_tensor() {
    let checkpoint = Builder::mixture().read().unwrap();
    // The builder numbers the values of a tensor, in eighths.
    let numbers = |start: u8, length: u8| -> Vec<f32> {
        (start..start + length).map(|value| f32::from(value) / 8.0).collect()
    };
    for expert in 0..3 {
        for part in [ExpertTensor::Gate, ExpertTensor::Up, ExpertTensor::Down] {
            let values = checkpoint.tensor(Tensor::Expert(0, expert, part)).unwrap();
            assert_eq!(values, numbers(8 * expert as u8, 8));
        }
    }
    let gate = Tensor::Layer(0, LayerTensor::SharedGate);
    assert_eq!(checkpoint.tensor(gate).unwrap(), numbers(0, 4));
    assert_eq!(checkpoint.shape(gate), [1, 4]);
    assert_eq!(checkpoint.shape(Tensor::Layer(0, LayerTensor::Up)), [8, 4]);
}

/// Returns the values of all tensors of a changed mixture's experts.
fn experts(change: impl Fn(&mut Builder)) -> Vec<Vec<f32>> {
    let mut builder = Builder::mixture();
    change(&mut builder);
    let checkpoint = builder.read().unwrap();
    let tensors = checkpoint.architecture().tensors();
    let experts = tensors.filter(|tensor| matches!(tensor, Tensor::Expert(..)));
    experts.map(|tensor| checkpoint.tensor(tensor).unwrap()).collect()
}

/// Removes a tensor, and returns its bytes.
fn take(builder: &mut Builder, name: &str) -> Vec<u8> {
    let index = builder.tensors.iter().position(|tensor| tensor.name == name.as_bytes()).unwrap();
    builder.tensors.remove(index).bytes
}

/// Makes the values of two tensors different, which the builder numbers in the same way.
fn double(builder: &mut Builder, name: &str) {
    let values = builder.tensor(name).bytes.as_chunks::<4>().0.iter();
    let values = values.flat_map(|value| (2.0 * f32::from_le_bytes(*value)).to_le_bytes());
    builder.tensor(name).bytes = values.collect();
}

#[test]
fn experts_may_be_stored_in_other_ways() {
    let plain = experts(|builder| double(builder, "blk.0.ffn_up_exps.weight"));
    let of_each = experts(|builder| {
        double(builder, "blk.0.ffn_up_exps.weight");
        for (projection, dimensions) in [("gate", [4, 2]), ("up", [4, 2]), ("down", [2, 4])] {
            let bytes = take(builder, &format!("blk.0.ffn_{projection}_exps.weight"));
            for (expert, bytes) in bytes.chunks(32).enumerate() {
                let name = format!("blk.0.ffn_{projection}.{expert}.weight");
                builder.add(&name, &dimensions);
                builder.tensor(&name).bytes = bytes.to_vec();
            }
        }
    });
    assert_eq!(of_each, plain);
    let fused = experts(|builder| {
        double(builder, "blk.0.ffn_up_exps.weight");
        let gate = take(builder, "blk.0.ffn_gate_exps.weight");
        let up = take(builder, "blk.0.ffn_up_exps.weight");
        let name = "blk.0.ffn_gate_up_exps.weight";
        builder.add(name, &[4, 4, 3]);
        let pairs = gate.chunks(32).zip(up.chunks(32));
        builder.tensor(name).bytes = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
    });
    assert_eq!(fused, plain);
}

#[test]
fn absent_widths_follow_from_that_of_the_dense_layers() {
    let layers = config(|_| ()).experts.unwrap();
    let router = layers.experts.router;
    assert_eq!((layers.experts.n_experts, router.experts_per_token), (3, 2));
    assert_eq!((layers.experts.mlp.intermediate_size, layers.shared_size), (2, Some(8)));
    assert!(!router.normalised && layers.experts.shared_gate);
    // 4 / 2 for each expert of a token.
    let derived = config(|builder| {
        builder.set("qwen2moe.feed_forward_length", u32_value(4));
        builder.remove("qwen2moe.expert_feed_forward_length");
    });
    assert_eq!(derived.experts.unwrap().experts.mlp.intermediate_size, 2);
    let shared = config(|builder| {
        builder.set("qwen2moe.feed_forward_length", u32_value(8));
        builder.remove("qwen2moe.expert_shared_feed_forward_length");
    });
    assert_eq!(shared.experts.unwrap().shared_size, Some(8));
    let only_experts = config(|builder| builder.set("qwen2moe.feed_forward_length", u32_value(0)));
    assert_eq!(only_experts.intermediate_size, 2);
    let stated = config(|builder| {
        builder.set("qwen2moe.expert_weights_norm", bool_value(false));
        builder.set("qwen2moe.expert_gating_func", u32_value(1));
        builder.set("qwen2moe.expert_weights_scale", f32_value(1.0));
    });
    assert_eq!(stated, config(|_| ()));
}

#[test]
fn damaged_numbers_of_experts_are_named() {
    let option = |name: &str, value: Value, words: &[&str]| {
        let key = format!("qwen2moe.{name}");
        rejected(|builder| builder.set(&key, value.clone()), &[&[&*key], words].concat());
    };
    for count in [0, 1 << 13, u32::MAX] {
        option("expert_count", u32_value(count), &["a size from 1 to 4096"]);
    }
    option("expert_count", text("3"), &["an integer"]);
    for count in [0, 4, u32::MAX] {
        option("expert_used_count", u32_value(count), &["a size from 1 to 3"]);
    }
    for name in ["expert_count", "expert_used_count"] {
        let key = format!("qwen2moe.{name}");
        rejected(|builder| builder.remove(&key), &[&key, "absent"]);
    }
    option("expert_weights_norm", bool_value(true), &["not supported yet"]);
    option("expert_gating_func", u32_value(2), &["not supported yet"]);
    option("expert_weights_scale", f32_value(2.5), &["not supported yet; supported: 1"]);
    option("expert_group_count", u32_value(4), &["not supported yet"]);
    for count in [2, 4, 4096] {
        let set = |builder: &mut Builder| builder.set("qwen2moe.expert_count", u32_value(count));
        rejected(set, &["`blk.0.ffn_gate_inp.weight` has shape [3, 4]"]);
    }
    let width = |builder: &mut Builder| {
        builder.set("qwen2moe.expert_feed_forward_length", u32_value(3));
    };
    rejected(width, &["`blk.0.ffn_gate_exps.weight` has shape [3, 2, 4]; expected [3, 3, 4]"]);
    let missing = |builder: &mut Builder| {
        builder.tensors.retain(|tensor| tensor.name != b"blk.0.ffn_up_exps.weight");
    };
    rejected(missing, &["`blk.0.ffn_up_exps.weight` is missing"]);
    rejected(|builder| builder.add("blk.0.ffn_up_exps.bias", &[2, 3]), &["ffn_up_exps.bias"]);
}

/// The same architecture has dense models, too.
#[test]
fn a_llama_may_have_experts() {
    let mut builder = Builder::llama();
    builder.set("llama.expert_count", u32_value(8));
    let message = builder.read().unwrap_err().to_string();
    assert!(message.contains("\"llama.expert_used_count\" is absent"), "{message}");
    builder.set("llama.expert_used_count", u32_value(2));
    let message = builder.read().unwrap_err().to_string();
    assert!(message.contains("`blk.0.ffn_gate_inp.weight` is missing"), "{message}");
}
