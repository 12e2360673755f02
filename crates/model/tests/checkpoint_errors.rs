//! Damaged checkpoints are refused with a message that says what is wrong with which file, and
//! sound ones open.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

use forerun_model::checkpoint::random::{
    RandomDtype, example_config, example_families, write_random_checkpoint,
};
use forerun_model::checkpoint::{Checkpoint, Dtype, LayerTensor, LoadError, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
const QUERY: &str = "model.layers.1.self_attn.q_proj.weight";

/// A sound checkpoint in one file.
fn write_single(directory: &Path) {
    write_random_checkpoint(directory, &example_config(), 5, RandomDtype::F32).unwrap();
}

/// A sound checkpoint in two shards: the layers, and the rest.
fn write_sharded(directory: &Path) {
    write_single(directory);
    let single = directory.join(SINGLE);
    let bytes = fs::read(&single).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let shard_of = |name: &str| usize::from(name.contains("layers"));
    for (shard, file) in SHARDS.iter().enumerate() {
        let part = tensors.iter().filter(|(name, _)| shard_of(name) == shard);
        let part = part.map(|(name, view)| (name, view));
        safetensors::serialize_to_file(part, None, &directory.join(file)).unwrap();
    }
    let weight_map: serde_json::Map<String, Value> =
        tensors.iter().map(|(name, _)| (name.clone(), json!(SHARDS[shard_of(name)]))).collect();
    let index = json!({"metadata": {}, "weight_map": weight_map});
    fs::write(directory.join(INDEX), index.to_string()).unwrap();
    fs::remove_file(single).unwrap();
}

/// A sound llama2.c file, all of its weights 0.5: dim 8, hidden_dim 6, 2 layers, 2 heads, 1 kv
/// head, vocabulary 5, 3 positions.
fn write_llama2c(directory: &Path) {
    let elements = 40 + 2 * (16 + 64 + 64 + 64 + 144) + 8 + 12;
    let header = [8i32, 6, 2, 2, 1, 5, 3].into_iter().flat_map(i32::to_le_bytes);
    let bytes: Vec<u8> = header
        .chain([0.5f32; 4].repeat(elements / 4).into_iter().flat_map(f32::to_le_bytes))
        .collect();
    fs::write(directory.join("model.bin"), bytes).unwrap();
    fs::write(directory.join("tok5.bin"), [0; 8]).unwrap();
}

/// Changes the options of a JSON file.
fn set(directory: &Path, file: &str, option: &str, value: Value) {
    let file = directory.join(file);
    let mut options: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    options[option] = value;
    fs::write(file, options.to_string()).unwrap();
}

/// Rewrites a safetensors file with one tensor changed, or left out.
fn replace_tensor(
    directory: &Path,
    tensor: &str,
    change: impl FnOnce(&TensorView<'_>) -> Option<(safetensors::Dtype, Vec<usize>, Vec<u8>)>,
) {
    let file = directory.join(SINGLE);
    let bytes = fs::read(&file).unwrap();
    let mut tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let position = tensors.iter().position(|(name, _)| name == tensor).unwrap();
    let (_, old) = tensors.remove(position);
    let changed = change(&old);
    if let Some((dtype, shape, data)) = &changed {
        let view = TensorView::new(*dtype, shape.clone(), data).unwrap();
        tensors.push((tensor.to_owned(), view));
    }
    safetensors::serialize_to_file(tensors, None, &file).unwrap();
}

/// Cuts a file, or with a negative number lengthens it.
fn cut(directory: &Path, file: &str, bytes: i64) {
    let file = fs::OpenOptions::new().write(true).open(directory.join(file)).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len((length as i64 - bytes) as u64).unwrap();
}

/// Opens the checkpoint and reads every tensor.
fn read_all(path: &Path) -> Result<Checkpoint, LoadError> {
    let checkpoint = Checkpoint::open(path)?;
    for tensor in Tensor::all(checkpoint.config()).chain([Tensor::Head]) {
        checkpoint.tensor(tensor)?;
    }
    Ok(checkpoint)
}

/// Writes a sound checkpoint, damages it, and checks that the message has all the words.
fn refused(write: impl FnOnce(&Path), damage: impl FnOnce(&Path), words: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    damage(directory.path());
    let message = read_all(directory.path()).unwrap_err().to_string();
    for word in words {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

#[test]
fn sound_checkpoints_open() {
    for write in [write_single, write_sharded, write_llama2c] {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path());
        let checkpoint = read_all(directory.path()).unwrap();
        assert!(checkpoint.weights_bytes() > 0);
    }
}

#[test]
fn shards_and_a_single_file_hold_the_same() {
    let (single, sharded) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_single(single.path());
    write_sharded(sharded.path());
    let (single, sharded) = (read_all(single.path()).unwrap(), read_all(sharded.path()).unwrap());
    assert_eq!(single.weights_bytes(), sharded.weights_bytes());
    for tensor in Tensor::all(single.config()) {
        assert_eq!(single.tensor(tensor).unwrap(), sharded.tensor(tensor).unwrap(), "{tensor}");
    }
}

#[test]
fn a_tied_head_is_the_embedding_whatever_its_name() {
    let directory = tempfile::tempdir().unwrap();
    write_single(directory.path());
    set(directory.path(), "config.json", "tie_word_embeddings", json!(true));
    let both = read_all(directory.path()).unwrap();
    let embedding = both.tensor(Tensor::Embedding).unwrap();
    assert_eq!(both.tensor(Tensor::Head).unwrap(), embedding);

    replace_tensor(directory.path(), "model.embed_tokens.weight", |_| None);
    let head_only = read_all(directory.path()).unwrap();
    assert_ne!(head_only.tensor(Tensor::Embedding).unwrap(), embedding);
    assert_eq!(
        head_only.tensor(Tensor::Embedding).unwrap(),
        head_only.tensor(Tensor::Head).unwrap()
    );
}

#[test]
fn paths_without_a_checkpoint() {
    let missing = Path::new("no/such/checkpoint");
    let message = Checkpoint::open(missing).unwrap_err().to_string();
    assert!(message.contains("no/such/checkpoint: no such file or directory"), "{message}");
    assert!(message.contains("a hub id (owner/name"), "{message}");

    refused(|_| (), |_| (), &["expected a directory with config.json", "found neither"]);
    let second = |at: &Path| fs::write(at.join("second.bin"), "").unwrap();
    refused(write_llama2c, second, &["several .bin files", "model.bin", "second.bin"]);
    refused(|at| fs::write(at.join("model.bin"), "").unwrap(), |_| (), &["model.bin", "28 bytes"]);
}

#[test]
fn files_that_are_missing_or_unreadable() {
    let remove = |file: &'static str| move |at: &Path| fs::remove_file(at.join(file)).unwrap();
    refused(write_single, remove(SINGLE), &[SINGLE, "missing", INDEX, "converted"]);
    refused(write_sharded, remove(SHARDS[1]), &[SHARDS[1], "file is missing", "download"]);
    refused(write_sharded, remove(SHARDS[0]), &[SHARDS[0], "file is missing"]);

    // A directory in a file's place cannot be read even by a privileged user.
    let obstruct = |file: &'static str| {
        move |at: &Path| {
            fs::remove_file(at.join(file)).unwrap();
            fs::create_dir(at.join(file)).unwrap();
        }
    };
    for file in ["config.json", "generation_config.json", SINGLE] {
        refused(write_single, obstruct(file), &[file, "cannot be read", "regular file"]);
    }
    refused(write_sharded, obstruct(INDEX), &[INDEX, "cannot be read"]);
    refused(write_sharded, obstruct(SHARDS[0]), &[SHARDS[0], "cannot be read"]);
    let not_text = |at: &Path| fs::write(at.join("config.json"), [0xff, 0xfe]).unwrap();
    refused(write_single, not_text, &["config.json", "cannot be read", "UTF-8"]);
}

#[cfg(unix)]
#[test]
fn a_file_without_permission_is_unreadable() {
    use std::os::unix::fs::PermissionsExt;

    let directory = tempfile::tempdir().unwrap();
    write_single(directory.path());
    let file = directory.path().join("config.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&file).is_ok() {
        eprintln!("skipped: this user may read everything");
        return;
    }
    let message = Checkpoint::open(directory.path()).unwrap_err().to_string();
    assert!(message.contains("config.json: cannot be read: Permission denied"), "{message}");
}

#[test]
fn files_of_the_wrong_length() {
    let words = |file| [file, "expected", "bytes from its header, found", "cut off or damaged"];
    for bytes in [1, 5_000, -1] {
        refused(write_single, |at| cut(at, SINGLE, bytes), &words(SINGLE));
        refused(write_sharded, |at| cut(at, SHARDS[1], bytes), &words(SHARDS[1]));
    }
    let empty = |at: &Path| fs::write(at.join(SINGLE), "").unwrap();
    refused(write_single, empty, &[SINGLE, "expected 8 bytes", "found 0"]);

    let length = 28 + 4 * (40 + 2 * (16 + 64 + 64 + 64 + 144) + 8 + 12);
    for bytes in [1, 100, -4] {
        let expected = format!("expected {length} bytes");
        let found = format!("found {}", length - bytes);
        let damage = |at: &Path| cut(at, "model.bin", bytes);
        refused(write_llama2c, damage, &["model.bin", &expected, &found]);
    }
}

#[test]
fn tensors_that_are_missing_or_not_as_configured() {
    let missing = |at: &Path| replace_tensor(at, QUERY, |_| None);
    refused(write_single, missing, &[SINGLE, QUERY, "missing"]);
    let no_head = |at: &Path| replace_tensor(at, "lm_head.weight", |_| None);
    refused(write_single, no_head, &["lm_head.weight", "missing", "tie_word_embeddings"]);

    let transposed_shape = |at: &Path| {
        replace_tensor(at, "model.layers.0.mlp.down_proj.weight", |old| {
            Some((old.dtype(), vec![100, 48], old.data().to_vec()))
        });
    };
    let words = ["mlp.down_proj.weight", "has shape [100, 48]", "expected [48, 100]"];
    refused(write_single, transposed_shape, &words);

    let bytes = |at: &Path| {
        replace_tensor(at, QUERY, |old| {
            Some((safetensors::Dtype::I8, vec![48, 48], old.data()[..48 * 48].to_vec()))
        });
    };
    refused(write_single, bytes, &[SINGLE, QUERY, "dtype I8", "expected F32, BF16 or F16"]);

    let fewer_layers = |at: &Path| set(at, "config.json", "num_hidden_layers", json!(1));
    refused(write_single, fewer_layers, &[SINGLE, "model.layers.1.", "Llama with 1 layers"]);
    let more_layers = |at: &Path| set(at, "config.json", "num_hidden_layers", json!(3));
    refused(write_single, more_layers, &["model.layers.2.", "missing", "another model"]);
    let biased = |at: &Path| set(at, "config.json", "attention_bias", json!(true));
    refused(write_single, biased, &["layers.0.self_attn.q_proj.bias", "missing"]);
    let larger = |at: &Path| set(at, "config.json", "hidden_size", json!(1 << 27));
    refused(write_single, larger, &["shape [259, 48]", "expected [259, 134217728]"]);
}

#[test]
fn weights_that_are_not_finite() {
    let poisoned = |value: f32, index: usize| {
        move |at: &Path| {
            replace_tensor(at, QUERY, |old| {
                let mut data = old.data().to_vec();
                data[4 * index..][..4].copy_from_slice(&value.to_le_bytes());
                Some((old.dtype(), old.shape().to_vec(), data))
            });
        }
    };
    refused(write_single, poisoned(f32::NAN, 77), &[SINGLE, QUERY, "NaN", "flat index 77;"]);
    refused(write_single, poisoned(f32::NEG_INFINITY, 0), &[QUERY, "-inf", "flat index 0;"]);

    let in_llama2c = |at: &Path| {
        let file = at.join("model.bin");
        let mut bytes = fs::read(&file).unwrap();
        bytes[28..32].copy_from_slice(&f32::INFINITY.to_le_bytes());
        fs::write(file, bytes).unwrap();
    };
    refused(write_llama2c, in_llama2c, &["model.bin", "embed_tokens", "inf", "flat index 0"]);
}

#[test]
fn configurations_of_other_models() {
    let option =
        |option: &'static str, value: Value| move |at: &Path| set(at, "config.json", option, value);
    let cases = [
        ("model_type", json!("mamba"), "\"mamba\""),
        ("architectures", json!(["MistralForCausalLM"]), "MistralForCausalLM"),
        ("rope_scaling", json!({"type": "dynamic", "factor": 2.0}), "dynamic"),
        ("rope_parameters", json!({"rope_type": "yarn"}), "yarn"),
        ("rope_scaling", json!({"rope_type": "longrope", "factor": 8.0}), "longrope"),
        ("hidden_act", json!("relu"), "relu"),
        ("partial_rotary_factor", json!(0.25), "0.25"),
        ("layer_types", json!(["sliding_attention", "full_attention"]), "sliding_attention"),
        ("quantization_config", json!({"quant_method": "gptq"}), "gptq"),
    ];
    for (name, value, found) in cases {
        let words = ["config.json: option", found, "not supported yet"];
        refused(write_single, option(name, value), &words);
    }
    let incomplete = option("rope_scaling", json!({"rope_type": "llama3", "factor": 8.0}));
    refused(write_single, incomplete, &["config.json: option `low_freq_factor` is missing"]);
    let eos = |at: &Path| set(at, "generation_config.json", "eos_token_id", json!([257, 900]));
    refused(write_single, eos, &["generation_config.json", "`eos_token_id` is 900", "259"]);
}

#[test]
fn json_that_is_none() {
    for file in ["config.json", "generation_config.json"] {
        let broken = |at: &Path| fs::write(at.join(file), "{\"hidden_size\": ").unwrap();
        refused(write_single, broken, &[file, "invalid JSON", "line 1"]);
    }
    let broken = |at: &Path| fs::write(at.join(INDEX), "{}").unwrap();
    refused(write_sharded, broken, &[INDEX, "invalid JSON", "weight_map"]);
    let header = |at: &Path| {
        let file = at.join(SINGLE);
        let mut bytes = fs::read(&file).unwrap();
        bytes[8] = b'[';
        fs::write(file, bytes).unwrap();
    };
    refused(write_single, header, &[SINGLE, "invalid safetensors header"]);
    let huge_header = |at: &Path| fs::write(at.join(SINGLE), [0xff; 64]).unwrap();
    refused(write_single, huge_header, &[SINGLE, "header length of 18446744073709551615"]);
}

#[test]
fn an_index_that_misleads() {
    let map_query_to = |shard: Value| {
        move |at: &Path| {
            let file = at.join(INDEX);
            let mut index: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            index["weight_map"][QUERY] = shard;
            fs::write(file, index.to_string()).unwrap();
        }
    };
    for outside in ["../model.safetensors", "/etc/passwd", "a/b", ".."] {
        let words = [INDEX, QUERY, outside, "not a plain file name"];
        refused(write_sharded, map_query_to(json!(outside)), &words);
    }
    refused(write_sharded, map_query_to(json!("other")), &["other", "file is missing"]);
    let wrong_shard = map_query_to(json!(SHARDS[0]));
    refused(write_sharded, wrong_shard, &[SHARDS[0], QUERY, "missing"]);
    let in_both = |at: &Path| {
        let (one, other) = (at.join(SHARDS[0]), at.join(SHARDS[1]));
        fs::copy(one, other).unwrap();
    };
    let words = [SHARDS[1], "stored in", SHARDS[0], "not of one checkpoint"];
    refused(write_sharded, in_both, &words);
    let of_the_whole = |at: &Path| {
        write_single(at);
        fs::rename(at.join(SINGLE), at.join(SHARDS[0])).unwrap();
    };
    refused(write_sharded, of_the_whole, &words);
    let unlisted = |at: &Path| set(at, INDEX, "weight_map", json!({}));
    refused(write_sharded, unlisted, &[INDEX, "model.embed_tokens.weight", "missing"]);
}

#[test]
fn files_of_other_formats() {
    let refused_file = |content: &[u8], words: &[&str]| {
        let content = content.to_vec();
        let write = |at: &Path| fs::write(at.join("model.bin"), content).unwrap();
        refused(|_| (), write, words);
    };
    let mut newer = 0x616b_3432_u32.to_le_bytes().to_vec();
    newer.extend_from_slice(&1u32.to_le_bytes());
    refused_file(&newer, &["model.bin", "llama2.c version 1", "ak42", "--version 0"]);
    refused_file(b"GGUF\x03\0\0\0", &["model.bin", "GGUF", "not supported"]);
}

#[test]
fn layers_beyond_the_last_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    write_single(directory.path());
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let beyond = Tensor::Layer(2, LayerTensor::Up);
    let message = checkpoint.tensor(beyond).unwrap_err().to_string();
    assert!(message.contains("model.layers.2.mlp.up_proj.weight"), "{message}");
    assert!(message.contains("a Llama, has 2 layers"), "{message}");
    let bias = Tensor::Layer(0, LayerTensor::UpBias);
    let message = checkpoint.tensor(bias).unwrap_err().to_string();
    assert!(message.contains("model.layers.0.mlp.up_proj.bias"), "{message}");
}

/// Every family's tensors are asked for and none more are allowed.
#[test]
fn tensors_of_another_family() {
    let write = |family: usize| {
        move |at: &Path| {
            write_random_checkpoint(at, &example_families()[family], 5, RandomDtype::F32).unwrap();
        }
    };
    let (llama, mistral, qwen2, qwen3) = (write(0), write(1), write(2), write(3));
    let lose = |tensor: &'static str| move |at: &Path| replace_tensor(at, tensor, |_| None);
    for (family, tensor) in [
        (&llama as &dyn Fn(&Path), "model.layers.0.mlp.gate_proj.bias"),
        (&llama, "model.layers.1.self_attn.o_proj.bias"),
        (&qwen2, "model.layers.1.self_attn.k_proj.bias"),
        (&qwen3, "model.layers.0.self_attn.q_norm.weight"),
    ] {
        refused(family, lose(tensor), &[SINGLE, tensor, "is missing"]);
    }
    let rename = |family: &'static str, architecture: &'static str| {
        move |at: &Path| {
            set(at, "config.json", "model_type", json!(family));
            set(at, "config.json", "architectures", json!([architecture]));
        }
    };
    let as_mistral = rename("mistral", "MistralForCausalLM");
    let words = ["model.layers.0.self_attn.k_proj.bias", "not part of a Mistral with 2 layers"];
    refused(qwen2, as_mistral, &words);
    let as_qwen2 = rename("qwen2", "Qwen2ForCausalLM");
    refused(mistral, as_qwen2, &["model.layers.0.self_attn.q_proj.bias", "missing"]);
}

/// The folder of third-party checkpoints, which is beside the repository and no part of it.
fn data() -> Option<PathBuf> {
    let shared_data = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let data = std::env::var_os("FORERUN_DATA").map_or_else(shared_data, PathBuf::from);
    if data.is_dir() {
        return Some(data);
    }
    assert!(std::env::var_os("CI").is_none(), "{} is missing, and CI needs it", data.display());
    eprintln!("skipped: no {}; set FORERUN_DATA", data.display());
    None
}

#[test]
fn a_real_hugging_face_checkpoint_opens() {
    let Some(data) = data() else { return };
    let checkpoint = read_all(&data.join("models/tinystories656k")).unwrap();
    let config = checkpoint.config();
    assert_eq!((config.hidden_size, config.num_hidden_layers, config.head_dim), (128, 2, 16));
    assert_eq!((config.rms_norm_eps, config.eos_token_ids.as_slice()), (1e-6, [2].as_slice()));
    assert!(config.tie_word_embeddings);
    assert_eq!(checkpoint.dtype(Tensor::Head).unwrap(), Dtype::F32);
    assert_eq!(checkpoint.weights_bytes(), 656_000 * 4);
}

#[test]
fn real_llama2c_checkpoints_open() {
    let Some(data) = data() else { return };
    for (name, intermediate_size, positions) in
        [("models/stories260K", 172, 512), ("models/stories280K-b", 192, 256)]
    {
        let checkpoint = read_all(&data.join(name)).unwrap();
        let config = checkpoint.config();
        assert_eq!((config.hidden_size, config.intermediate_size), (64, intermediate_size));
        assert_eq!((config.max_position_embeddings, config.vocab_size), (positions, 512));
        assert_eq!((config.num_attention_heads, config.num_key_value_heads), (8, 4));
        assert_eq!(checkpoint.shape(Tensor::Layer(4, LayerTensor::Key)), [32, 64]);
    }
}
