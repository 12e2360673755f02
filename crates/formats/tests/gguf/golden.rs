//! Files of llama.cpp's Python package are read with the values that it restores from them.
//! `scripts/goldens/make_gguf.py` makes the files.

use forerun_formats::config::{SlidingLayers, SlidingWindow};
use forerun_formats::{
    Activation, Checkpoint, Config, Experts, Family, MixtureLayers, Mlp, QkNorms, RopeScaling,
    Router, Weighting,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;

fn expected_config(architecture: &str, has: impl Fn(&str) -> bool) -> Config {
    let family = match architecture {
        "llama" => Family::Llama,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        "qwen3moe" => Family::Qwen3Moe,
        "gpt-oss" => Family::GptOss,
        other => panic!("unexpected architecture {other}"),
    };
    let unscaled = has("parts") || has("experts");
    let rope_scaling = match (has("divisors"), unscaled) {
        (true, _) => {
            RopeScaling::Divisors { divisors: [1.0, 1.5, 8.0, 8.0].into(), attention_factor: 1.0 }
        }
        (false, true) => RopeScaling::None,
        (false, false) => RopeScaling::Linear { factor: 4.0 },
    };
    Config {
        family,
        hidden_size: 32,
        intermediate_size: 32,
        num_hidden_layers: 1,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 8,
        vocab_size: 7,
        max_position_embeddings: 64,
        rms_norm_eps: 1e-6,
        rope_theta: 500_000.0,
        rope_scaling,
        qkv_bias: has("biases"),
        output_bias: has("sinks"),
        sinks: has("sinks"),
        sliding_window: has("sinks")
            .then(|| SlidingWindow { size: 16, layers: SlidingLayers::Listed(vec![true]) }),
        experts: has("experts").then(|| expected_experts(has("sinks"))),
        qk_norms: if has("norms") { QkNorms::Heads } else { QkNorms::None },
        tie_word_embeddings: !has("head"),
        bos_token_id: Some(1),
        eos_token_ids: vec![2, 3],
        ..Config::plain_llama()
    }
}

/// The experts of a Qwen3, or of gpt-oss.
fn expected_experts(is_gpt_oss: bool) -> MixtureLayers {
    let mlp = Mlp { bias: is_gpt_oss, ..Mlp::gated(32) };
    let router = Router { normalised: !is_gpt_oss, bias: is_gpt_oss, ..Router::softmax(2) };
    let mut experts = Experts::plain(3, mlp, router);
    if is_gpt_oss {
        experts.mlp.activation = Activation::ClampedSwiglu { limit: 7.0 };
        experts.router.weighting = Weighting::SoftmaxOfChosen;
    }
    MixtureLayers { experts, shared_size: None, dense: Vec::new() }
}

#[test]
fn files_of_llama_cpps_package_have_the_same_values() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf/goldens");
    let golden = fs::read(folder.join("golden.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let models = golden["models"].as_object().unwrap();
    assert_eq!(models.len(), 6);
    for (name, model) in models {
        let file = folder.join(model["files"][0].as_str().unwrap());
        let checkpoint = Checkpoint::open(&file).unwrap();
        let features = model["features"].as_array().unwrap();
        let architecture = model["architecture"].as_str().unwrap();
        let has = |feature: &str| features.iter().any(|other| other == feature);
        assert_eq!(*checkpoint.config(), expected_config(architecture, has), "{name}");

        let hashes = model["sha256"].as_object().unwrap();
        assert_eq!(checkpoint.architecture().tensors().count(), hashes.len(), "{name}");
        for tensor in checkpoint.architecture().tensors() {
            let values = checkpoint.tensor(tensor).unwrap();
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let hash: String =
                Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hashes[&tensor.to_string()], hash, "{name} {tensor}");
        }

        let metadata = checkpoint.gguf().unwrap();
        let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap();
        assert!(tokens.eq(["é0", "é1", "é2", "é3", "é4", "é5", "é6"]), "{name}");
        assert_eq!(metadata.bool("tokenizer.ggml.add_bos_token").unwrap(), Some(true));
        assert_eq!(metadata.text("tokenizer.chat_template").unwrap(), Some("{{ messages }}"));
    }
}
