//! Damaged checkpoints are rejected with a message that names the file and the problem. Valid
//! checkpoints open.

use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, example_families, write_random_checkpoint,
};
use forerun_formats::checkpoint::{Checkpoint, Dtype, LayerTensor, LoadError, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
const QUERY: &str = "model.layers.1.self_attn.q_proj.weight";

/// Writes a valid checkpoint in one file.
fn write_single(directory: &Path) {
    write_random_checkpoint(directory, &example_config(), 5, RandomDtype::F32).unwrap();
}

/// Writes a valid checkpoint in two shards: the layers, and the other tensors.
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

/// Writes a valid llama2.c file with all weights 0.5: dim 8, hidden_dim 6, 2 layers, 2 heads, 1 kv
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

fn set(directory: &Path, file: &str, option: &str, value: Value) {
    let file = directory.join(file);
    let mut options: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    options[option] = value;
    fs::write(file, options.to_string()).unwrap();
}

/// Rewrites a safetensors file with one tensor changed. If `change` returns `None`, the tensor is
/// removed.
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

/// Truncates a file by a number of bytes. A negative number extends it.
fn truncate(directory: &Path, file: &str, bytes: i64) {
    let file = fs::OpenOptions::new().write(true).open(directory.join(file)).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len((length as i64 - bytes) as u64).unwrap();
}

/// Opens the checkpoint and reads every tensor.
fn read_all(path: &Path) -> Result<Checkpoint, LoadError> {
    let checkpoint = Checkpoint::open(path)?;
    for tensor in checkpoint.architecture().tensors().chain([Tensor::Head]) {
        checkpoint.tensor(tensor)?;
    }
    Ok(checkpoint)
}

/// Writes a valid checkpoint, damages it, and checks that it is rejected with a message that
/// contains all the words.
fn assert_rejected(write: impl FnOnce(&Path), damage: impl FnOnce(&Path), words: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    damage(directory.path());
    let message = read_all(directory.path()).unwrap_err().to_string();
    for word in words {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

#[test]
fn valid_checkpoints_open() {
    for write in [write_single, write_sharded, write_llama2c] {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path());
        let checkpoint = read_all(directory.path()).unwrap();
        assert!(checkpoint.weights_bytes() > 0);
    }
}

#[test]
fn shards_and_a_single_file_load_the_same_tensors() {
    let (single, sharded) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_single(single.path());
    write_sharded(sharded.path());
    let (single, sharded) = (read_all(single.path()).unwrap(), read_all(sharded.path()).unwrap());
    assert_eq!(single.weights_bytes(), sharded.weights_bytes());
    for tensor in single.architecture().tensors() {
        assert_eq!(single.tensor(tensor).unwrap(), sharded.tensor(tensor).unwrap(), "{tensor}");
    }
}

#[test]
fn a_stored_head_counts_even_if_the_configuration_ties_it() {
    let (single, sharded) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_single(single.path());
    write_sharded(sharded.path());
    let untied = read_all(single.path()).unwrap();
    let head = untied.tensor(Tensor::Head).unwrap();
    for directory in [&single, &sharded] {
        set(directory.path(), "config.json", "tie_word_embeddings", json!(true));
        let tied = read_all(directory.path()).unwrap();
        assert_ne!(tied.tensor(Tensor::Embedding).unwrap(), head);
        assert_eq!(tied.tensor(Tensor::Head).unwrap(), head);
        assert_eq!((tied.config(), tied.architecture()), (untied.config(), untied.architecture()));
        assert_eq!(tied.weights_bytes(), untied.weights_bytes());
    }
    // A head of another shape is an error, although the configuration would not need it.
    let narrow = |dir: &Path| {
        set(dir, "config.json", "tie_word_embeddings", json!(true));
        replace_tensor(dir, "lm_head.weight", |old| {
            Some((old.dtype(), vec![48, 259], old.data().to_vec()))
        });
    };
    assert_rejected(write_single, narrow, &["lm_head.weight", "shape [48, 259]", "[259, 48]"]);
}

#[test]
fn tied_embeddings_may_be_stored_under_either_name_or_both() {
    let directory = tempfile::tempdir().unwrap();
    write_single(directory.path());
    set(directory.path(), "config.json", "tie_word_embeddings", json!(true));
    let embedding = read_all(directory.path()).unwrap().tensor(Tensor::Embedding).unwrap();
    let bytes: Vec<u8> = embedding.iter().flat_map(|value| value.to_le_bytes()).collect();
    replace_tensor(directory.path(), "lm_head.weight", |old| {
        Some((old.dtype(), old.shape().to_vec(), bytes))
    });
    let both = read_all(directory.path()).unwrap();
    assert!(both.config().tie_word_embeddings);
    assert_eq!(both.tensor(Tensor::Head).unwrap(), embedding);
    replace_tensor(directory.path(), "lm_head.weight", |old| {
        let other = old.data().iter().map(|byte| byte ^ 1).collect();
        Some((old.dtype(), old.shape().to_vec(), other))
    });

    replace_tensor(directory.path(), "model.embed_tokens.weight", |_| None);
    let head_only = read_all(directory.path()).unwrap();
    assert_ne!(head_only.tensor(Tensor::Embedding).unwrap(), embedding);
    assert_eq!(
        head_only.tensor(Tensor::Embedding).unwrap(),
        head_only.tensor(Tensor::Head).unwrap()
    );
}

#[test]
fn paths_without_a_checkpoint_are_rejected() {
    let missing = Path::new("no/such/checkpoint");
    let message = Checkpoint::open(missing).unwrap_err().to_string();
    assert!(message.contains("no/such/checkpoint: no such file or directory"), "{message}");
    assert!(message.contains("a hub id (owner/name"), "{message}");

    assert_rejected(|_| (), |_| (), &["expected a directory with config.json", "found neither"]);
    let second = |dir: &Path| fs::write(dir.join("second.bin"), "").unwrap();
    assert_rejected(write_llama2c, second, &["several models", "model.bin", "second.bin"]);
    assert_rejected(
        |dir| fs::write(dir.join("model.bin"), "").unwrap(),
        |_| (),
        &["model.bin", "28 bytes"],
    );
}

#[test]
fn missing_and_unreadable_files_are_rejected() {
    let remove = |file: &'static str| move |dir: &Path| fs::remove_file(dir.join(file)).unwrap();
    assert_rejected(write_single, remove(SINGLE), &[SINGLE, "missing", INDEX, "converted"]);
    assert_rejected(write_sharded, remove(SHARDS[1]), &[SHARDS[1], "file is missing", "download"]);
    assert_rejected(write_sharded, remove(SHARDS[0]), &[SHARDS[0], "file is missing"]);

    // Even a privileged user cannot read a directory as a file.
    let replace_by_directory = |file: &'static str| {
        move |dir: &Path| {
            fs::remove_file(dir.join(file)).unwrap();
            fs::create_dir(dir.join(file)).unwrap();
        }
    };
    for file in ["config.json", "generation_config.json", SINGLE] {
        assert_rejected(
            write_single,
            replace_by_directory(file),
            &[file, "cannot be read", "regular file"],
        );
    }
    assert_rejected(write_sharded, replace_by_directory(INDEX), &[INDEX, "cannot be read"]);
    assert_rejected(write_sharded, replace_by_directory(SHARDS[0]), &[SHARDS[0], "cannot be read"]);
    let not_text = |dir: &Path| fs::write(dir.join("config.json"), [0xff, 0xfe]).unwrap();
    assert_rejected(write_single, not_text, &["config.json", "cannot be read", "UTF-8"]);
}

#[cfg(unix)]
#[test]
fn a_file_without_read_permission_is_rejected() {
    use std::os::unix::fs::PermissionsExt;

    let directory = tempfile::tempdir().unwrap();
    write_single(directory.path());
    let file = directory.path().join("config.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&file).is_ok() {
        eprintln!("skipped: this user can read files without permission");
        return;
    }
    let message = Checkpoint::open(directory.path()).unwrap_err().to_string();
    assert!(message.contains("config.json: cannot be read: Permission denied"), "{message}");
}

#[test]
fn files_of_the_wrong_length_are_rejected() {
    let words = |file| [file, "expected", "bytes from its header, found", "truncated or damaged"];
    for bytes in [1, 5_000, -1] {
        assert_rejected(write_single, |dir| truncate(dir, SINGLE, bytes), &words(SINGLE));
        assert_rejected(write_sharded, |dir| truncate(dir, SHARDS[1], bytes), &words(SHARDS[1]));
    }
    let empty = |dir: &Path| fs::write(dir.join(SINGLE), "").unwrap();
    assert_rejected(write_single, empty, &[SINGLE, "expected 8 bytes", "found 0"]);

    let length = 28 + 4 * (40 + 2 * (16 + 64 + 64 + 64 + 144) + 8 + 12);
    for bytes in [1, 100, -4] {
        let expected = format!("expected {length} bytes");
        let found = format!("found {}", length - bytes);
        let damage = |dir: &Path| truncate(dir, "model.bin", bytes);
        assert_rejected(write_llama2c, damage, &["model.bin", &expected, &found]);
    }
}

#[test]
fn tensors_that_do_not_match_the_configuration_are_rejected() {
    let missing = |dir: &Path| replace_tensor(dir, QUERY, |_| None);
    assert_rejected(write_single, missing, &[SINGLE, QUERY, "missing"]);
    let no_head = |dir: &Path| replace_tensor(dir, "lm_head.weight", |_| None);
    assert_rejected(write_single, no_head, &["lm_head.weight", "missing", "tie_word_embeddings"]);

    let transposed_shape = |dir: &Path| {
        replace_tensor(dir, "model.layers.0.mlp.down_proj.weight", |old| {
            Some((old.dtype(), vec![100, 48], old.data().to_vec()))
        });
    };
    let words = ["mlp.down_proj.weight", "has shape [100, 48]", "expected [48, 100]"];
    assert_rejected(write_single, transposed_shape, &words);

    let bytes = |dir: &Path| {
        replace_tensor(dir, QUERY, |old| {
            Some((safetensors::Dtype::I8, vec![48, 48], old.data()[..48 * 48].to_vec()))
        });
    };
    assert_rejected(write_single, bytes, &[SINGLE, QUERY, "dtype I8", "expected F32, BF16 or F16"]);

    let fewer_layers = |dir: &Path| set(dir, "config.json", "num_hidden_layers", json!(1));
    assert_rejected(
        write_single,
        fewer_layers,
        &[SINGLE, "model.layers.1.", "Llama with 1 layers"],
    );
    let more_layers = |dir: &Path| set(dir, "config.json", "num_hidden_layers", json!(3));
    assert_rejected(write_single, more_layers, &["model.layers.2.", "missing", "another model"]);
    let biased = |dir: &Path| set(dir, "config.json", "attention_bias", json!(true));
    assert_rejected(write_single, biased, &["layers.0.self_attn.q_proj.bias", "missing"]);
    let larger = |dir: &Path| set(dir, "config.json", "hidden_size", json!(1 << 27));
    assert_rejected(write_single, larger, &["shape [259, 48]", "expected [259, 134217728]"]);
}

#[test]
fn non_finite_weights_are_rejected() {
    let set_value = |value: f32, index: usize| {
        move |dir: &Path| {
            replace_tensor(dir, QUERY, |old| {
                let mut data = old.data().to_vec();
                data[4 * index..][..4].copy_from_slice(&value.to_le_bytes());
                Some((old.dtype(), old.shape().to_vec(), data))
            });
        }
    };
    assert_rejected(
        write_single,
        set_value(f32::NAN, 77),
        &[SINGLE, QUERY, "NaN", "flat index 77;"],
    );
    assert_rejected(
        write_single,
        set_value(f32::NEG_INFINITY, 0),
        &[QUERY, "-inf", "flat index 0;"],
    );

    let in_llama2c = |dir: &Path| {
        let file = dir.join("model.bin");
        let mut bytes = fs::read(&file).unwrap();
        bytes[28..32].copy_from_slice(&f32::INFINITY.to_le_bytes());
        fs::write(file, bytes).unwrap();
    };
    assert_rejected(
        write_llama2c,
        in_llama2c,
        &["model.bin", "embed_tokens", "inf", "flat index 0"],
    );
}

#[test]
fn unsupported_configurations_are_rejected() {
    let option = |option: &'static str, value: Value| {
        move |dir: &Path| set(dir, "config.json", option, value)
    };
    let cases = [
        ("model_type", json!("mamba"), "\"mamba\""),
        ("architectures", json!(["MistralForCausalLM"]), "MistralForCausalLM"),
        ("rope_scaling", json!({"type": "mrope", "factor": 2.0}), "mrope"),
        ("rope_parameters", json!({"rope_type": "proportional"}), "proportional"),
        ("hidden_act", json!("relu2"), "relu2"),
        ("partial_rotary_factor", json!(0.25), "0.25"),
        ("layer_types", json!(["sliding_attention", "full_attention"]), "sliding_attention"),
        ("quantization_config", json!({"quant_method": "aqlm"}), "aqlm"),
    ];
    for (name, value, found) in cases {
        let words = ["config.json: option", found, "not supported yet"];
        assert_rejected(write_single, option(name, value), &words);
    }
    for (scaling, missing) in [
        (json!({"rope_type": "yarn"}), "\"factor\" is missing"),
        (json!({"rope_type": "longrope", "factor": 8.0}), "\"short_factor\" is missing"),
    ] {
        assert_rejected(write_single, option("rope_scaling", scaling), &[missing]);
    }
    let incomplete = option("rope_scaling", json!({"rope_type": "llama3", "factor": 8.0}));
    assert_rejected(
        write_single,
        incomplete,
        &["config.json: option \"low_freq_factor\" is missing"],
    );
    let eos = |dir: &Path| set(dir, "generation_config.json", "eos_token_id", json!([257, 900]));
    assert_rejected(
        write_single,
        eos,
        &["generation_config.json", "\"eos_token_id\" is 900", "259"],
    );
}

#[test]
fn invalid_json_is_rejected() {
    for file in ["config.json", "generation_config.json"] {
        let broken = |dir: &Path| fs::write(dir.join(file), "{\"hidden_size\": ").unwrap();
        assert_rejected(write_single, broken, &[file, "invalid JSON", "line 1"]);
    }
    let broken = |dir: &Path| fs::write(dir.join(INDEX), "{}").unwrap();
    assert_rejected(write_sharded, broken, &[INDEX, "invalid JSON", "weight_map"]);
    let header = |dir: &Path| {
        let file = dir.join(SINGLE);
        let mut bytes = fs::read(&file).unwrap();
        bytes[8] = b'[';
        fs::write(file, bytes).unwrap();
    };
    assert_rejected(write_single, header, &[SINGLE, "invalid safetensors header"]);
    let huge_header = |dir: &Path| fs::write(dir.join(SINGLE), [0xff; 64]).unwrap();
    assert_rejected(write_single, huge_header, &[SINGLE, "header length of 18446744073709551615"]);
}

#[test]
fn wrong_indexes_are_rejected() {
    let map_query_to = |shard: Value| {
        move |dir: &Path| {
            let file = dir.join(INDEX);
            let mut index: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            index["weight_map"][QUERY] = shard;
            fs::write(file, index.to_string()).unwrap();
        }
    };
    for outside in ["../model.safetensors", "/etc/passwd", "a/b", ".."] {
        let words = [INDEX, QUERY, outside, "not a plain file name"];
        assert_rejected(write_sharded, map_query_to(json!(outside)), &words);
    }
    assert_rejected(write_sharded, map_query_to(json!("other")), &["other", "file is missing"]);
    let wrong_shard = map_query_to(json!(SHARDS[0]));
    assert_rejected(write_sharded, wrong_shard, &[SHARDS[0], QUERY, "missing"]);
    let in_both = |dir: &Path| {
        let (first, second) = (dir.join(SHARDS[0]), dir.join(SHARDS[1]));
        fs::copy(first, second).unwrap();
    };
    let words = [SHARDS[1], "stored in", SHARDS[0], "belong to different checkpoints"];
    assert_rejected(write_sharded, in_both, &words);
    let whole_checkpoint_in_first = |dir: &Path| {
        write_single(dir);
        fs::rename(dir.join(SINGLE), dir.join(SHARDS[0])).unwrap();
    };
    assert_rejected(write_sharded, whole_checkpoint_in_first, &words);
    let unlisted = |dir: &Path| set(dir, INDEX, "weight_map", json!({}));
    assert_rejected(write_sharded, unlisted, &[INDEX, "model.embed_tokens.weight", "missing"]);
}

#[test]
fn other_file_formats_are_rejected() {
    let assert_file_rejected = |content: &[u8], words: &[&str]| {
        let content = content.to_vec();
        let write = |dir: &Path| fs::write(dir.join("model.bin"), content).unwrap();
        assert_rejected(|_| (), write, words);
    };
    let mut newer = 0x616b_3432_u32.to_le_bytes().to_vec();
    newer.extend_from_slice(&1u32.to_le_bytes());
    assert_file_rejected(&newer, &["model.bin", "llama2.c version 1", "ak42", "--version 0"]);
    // The content of a file counts, not its name.
    assert_file_rejected(
        b"GGUF\x03\0\0\0",
        &["model.bin", "the number of tensors is 8 bytes long"],
    );
}

#[test]
fn tensors_that_the_model_lacks_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    write_single(directory.path());
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let beyond = Tensor::Layer(2, LayerTensor::Up);
    let message = checkpoint.tensor(beyond).unwrap_err().to_string();
    assert!(message.contains("model.layers.2.mlp.up_proj.weight"), "{message}");
    assert!(message.contains("a Llama with 2 layers"), "{message}");
    let bias = Tensor::Layer(0, LayerTensor::UpBias);
    let message = checkpoint.tensor(bias).unwrap_err().to_string();
    assert!(message.contains("model.layers.0.mlp.up_proj.bias"), "{message}");
}

/// Every family requires its own tensors and allows no others.
#[test]
fn tensors_of_another_family_are_rejected() {
    let write = |family: usize| {
        move |dir: &Path| {
            write_random_checkpoint(dir, &example_families()[family], 5, RandomDtype::F32).unwrap();
        }
    };
    let (llama, mistral, qwen2, qwen3) = (write(0), write(1), write(2), write(3));
    let remove = |tensor: &'static str| move |dir: &Path| replace_tensor(dir, tensor, |_| None);
    for (family, tensor) in [
        (&llama as &dyn Fn(&Path), "model.layers.0.mlp.gate_proj.bias"),
        (&llama, "model.layers.1.self_attn.o_proj.bias"),
        (&qwen2, "model.layers.1.self_attn.k_proj.bias"),
        (&qwen3, "model.layers.0.self_attn.q_norm.weight"),
    ] {
        assert_rejected(family, remove(tensor), &[SINGLE, tensor, "is missing"]);
    }
    let rename = |family: &'static str, architecture: &'static str| {
        move |dir: &Path| {
            set(dir, "config.json", "model_type", json!(family));
            set(dir, "config.json", "architectures", json!([architecture]));
        }
    };
    let as_mistral = rename("mistral", "MistralForCausalLM");
    let words = ["model.layers.0.self_attn.k_proj.bias", "not part of a Mistral with 2 layers"];
    assert_rejected(qwen2, as_mistral, &words);
    let as_qwen2 = rename("qwen2", "Qwen2ForCausalLM");
    assert_rejected(mistral, as_qwen2, &["model.layers.0.self_attn.q_proj.bias", "missing"]);
}

/// Returns the folder of third-party checkpoints, which is not part of the repository.
fn data() -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let data = std::env::var_os("FORERUN_DATA").map_or_else(default, PathBuf::from);
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
