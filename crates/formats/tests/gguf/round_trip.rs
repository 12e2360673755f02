//! Written files have the configuration and the values of the checkpoint that they were written
//! from.

use forerun_formats::checkpoint::gguf::{GgufValue, write_gguf};
use forerun_formats::checkpoint::random::{
    BOS, EOS, RandomDtype, example_config, example_families, write_random_checkpoint,
};
use forerun_formats::checkpoint::{Dtype, LayerTensor, Tensor};
use forerun_formats::{BlockType, Checkpoint, Config, Family, RopeScaling, WeightType};
use tempfile::TempDir;

/// Writes a random checkpoint and a GGUF file of it. Returns both.
fn write_and_read(
    folder: &TempDir,
    config: &Config,
    dtype: RandomDtype,
    weight_type: WeightType,
) -> (Checkpoint, Checkpoint) {
    write_random_checkpoint(folder.path(), config, 4, dtype).unwrap();
    let original = Checkpoint::open(folder.path()).unwrap();
    let file = folder.path().join("model.gguf");
    let tokenizer = [("bos", BOS), ("eos", EOS), ("eot", EOS)]
        .map(|(name, id)| (format!("tokenizer.ggml.{name}_token_id"), GgufValue::U32(id)));
    write_gguf(&original, &file, weight_type, &tokenizer).unwrap();
    (original, Checkpoint::open(&file).unwrap())
}

/// The families of which GGUF files are written, with what llama.cpp computes: no windows, and a
/// Qwen3 without biases and divisors.
fn families() -> Vec<Config> {
    let mut families = example_families();
    let written = [Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3];
    families.retain(|config| written.contains(&config.family));
    families.push(example_config());
    for config in &mut families {
        config.sliding_window = None;
        if config.family == Family::Qwen3 {
            (config.qkv_bias, config.output_bias) = (false, false);
            config.rope_scaling = RopeScaling::None;
        }
    }
    families
}

#[test]
fn values_of_every_family_are_equal() {
    for config in families() {
        for (dtype, weight_type, stored) in [
            (RandomDtype::F32, WeightType::F32, Dtype::F32),
            (RandomDtype::Bf16, WeightType::Bf16, Dtype::Bf16),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let (original, read) = write_and_read(&folder, &config, dtype, weight_type);
            for tensor in original.architecture().tensors() {
                assert_eq!(
                    read.tensor(tensor).unwrap(),
                    original.tensor(tensor).unwrap(),
                    "{tensor}"
                );
                let is_matrix = read.shape(tensor).len() == 2;
                let expected = if is_matrix { stored } else { Dtype::F32 };
                assert_eq!(read.dtype(tensor).unwrap(), expected);
            }
            // Mistral is a Llama for llama.cpp.
            let family = match config.family {
                Family::Mistral => Family::Llama,
                family => family,
            };
            assert_eq!(*read.config(), Config { family, ..config.clone() });
        }
    }
}

#[test]
fn stored_divisors_are_written_and_read_exactly() {
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 32,
    };
    let config = Config { rope_scaling: scaling, ..example_config() };
    let folder = tempfile::tempdir().unwrap();
    let (_, first) = write_and_read(&folder, &config, RandomDtype::F32, WeightType::F32);
    let file = folder.path().join("again.gguf");
    write_gguf(&first, &file, WeightType::F32, &[]).unwrap();
    let second = Checkpoint::open(&file).unwrap();
    assert!(
        matches!(&second.config().rope_scaling, RopeScaling::Divisors { divisors, .. } if divisors.len() == 4)
    );
    assert_eq!(first.config().rope_scaling, second.config().rope_scaling);
    for pair in 0..4 {
        let frequency = |config: &Config| config.rope(0).frequency(pair);
        let (found, expected) = (frequency(second.config()), frequency(&config));
        assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
    }
}

#[test]
fn blocks_are_given_as_stored_and_in_the_order_of_rows() {
    let config = Config {
        hidden_size: 64,
        intermediate_size: 96,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 16,
        ..example_config()
    };
    let folder = tempfile::tempdir().unwrap();
    let (original, read) = write_and_read(&folder, &config, RandomDtype::F32, WeightType::INT8);
    assert!(read.weights_bytes() < original.weights_bytes() / 3);
    for tensor in original.architecture().tensors() {
        let rows = read.rows(tensor).unwrap();
        if read.shape(tensor).len() == 1 {
            assert_eq!((rows.block_type(), rows.stored(0).unwrap()), (None, None));
            continue;
        }
        assert_eq!(rows.block_type(), Some(BlockType::Q8_0));
        let exact = original.tensor(tensor).unwrap();
        let mut values = vec![0.0; rows.columns()];
        for (row, exact) in exact.chunks(rows.columns()).enumerate() {
            rows.read(row, &mut values).unwrap();
            let peak = exact.iter().fold(0.0_f32, |peak, value| peak.max(value.abs()));
            for (value, exact) in values.iter().zip(exact) {
                assert!((value - exact).abs() <= peak / 200.0, "{tensor} {row}");
            }
            let stored = rows.stored(row).unwrap().unwrap();
            assert_eq!(stored.len(), rows.columns() / 32 * 34);
            let scale = half::f16::from_le_bytes([stored[0], stored[1]]).to_f32();
            assert_eq!(values[0], scale * f32::from(stored[2] as i8));
        }
    }
    let query = read.rows(Tensor::Layer(1, LayerTensor::Query)).unwrap();
    assert_ne!(query.stored(0).unwrap(), query.stored(1).unwrap());
}

#[test]
fn metadata_are_reachable() {
    let folder = tempfile::tempdir().unwrap();
    write_random_checkpoint(folder.path(), &example_config(), 4, RandomDtype::F32).unwrap();
    let original = Checkpoint::open(folder.path()).unwrap();
    assert!(original.gguf().is_none());
    let file = folder.path().join("model.gguf");
    let tokens: Vec<String> = (0..259).map(|token| format!("token {token}")).collect();
    let tokenizer = [
        ("tokenizer.ggml.model", GgufValue::Text("gpt2".into())),
        ("tokenizer.ggml.tokens", GgufValue::Texts(tokens.clone())),
        ("tokenizer.ggml.token_type", GgufValue::I32s(vec![1, -3])),
        ("tokenizer.ggml.add_bos_token", GgufValue::Bool(true)),
    ];
    let tokenizer = tokenizer.map(|(key, value)| (key.to_owned(), value));
    write_gguf(&original, &file, WeightType::F32, &tokenizer).unwrap();
    let checkpoint = Checkpoint::open(&file).unwrap();
    let metadata = checkpoint.gguf().unwrap();
    assert_eq!(metadata.path(), file);
    assert_eq!(metadata.text("tokenizer.ggml.model").unwrap(), Some("gpt2"));
    assert_eq!(metadata.bool("tokenizer.ggml.add_bos_token").unwrap(), Some(true));
    assert_eq!(metadata.u32("llama.block_count").unwrap(), Some(2));
    assert_eq!(metadata.f32("llama.rope.freq_base").unwrap(), Some(10_000.0));
    let types = metadata.i32s("tokenizer.ggml.token_type").unwrap().unwrap();
    assert_eq!(types.collect::<Vec<_>>(), [1, -3]);
    let strings = metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(strings.len(), 259);
    assert!(strings.eq(tokens.iter().map(String::as_str)));
    assert!(metadata.f32s("tokenizer.ggml.scores").unwrap().is_none());
    assert!(!metadata.contains("tokenizer.ggml.scores"));
    assert!(metadata.keys().any(|key| key == "general.architecture"));
}
