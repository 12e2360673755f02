//! Quantised matrices of safetensors files. `scripts/goldens/make_quantized.py` makes a checkpoint
//! of each format, and restores its matrices by the format's definition.

use forerun_formats::BlockType;
use forerun_formats::checkpoint::{Checkpoint, Dtype, LoadError, SerializedTensor, WeightFile};
use forerun_formats::config::Config;
use proptest::prelude::*;
use safetensors::{Dtype as StoredDtype, SafeTensors};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// The formats, and the type that holds their weights exactly.
const FORMATS: [(&str, Dtype); 19] = [
    ("awq", Dtype::Block(BlockType::Q5_0)),
    ("awq-small", Dtype::F32),
    ("compressed-fp8-block", Dtype::F32),
    ("compressed-fp8-channel", Dtype::F32),
    ("compressed-fp8-tensor", Dtype::F32),
    ("compressed-int4", Dtype::Block(BlockType::Q4_0)),
    ("compressed-int4-zeros", Dtype::F32),
    ("compressed-int8", Dtype::Block(BlockType::Q8_0)),
    ("compressed-int8-packed", Dtype::F32),
    ("fp8-block", Dtype::F32),
    ("fp8-power", Dtype::Bf16),
    ("fp8-tensor", Dtype::F32),
    ("gptq", Dtype::Block(BlockType::Q4_0)),
    ("gptq-int8", Dtype::Block(BlockType::Q8_0)),
    ("gptq-int8-v2", Dtype::F32),
    ("gptq-order", Dtype::F32),
    ("gptq-phi3", Dtype::Block(BlockType::Q4_0)),
    ("gptq-zeros", Dtype::Block(BlockType::Q5_0)),
    ("mxfp4", Dtype::Block(BlockType::MXFP4)),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/quantized")
}

/// Returns the SHA-256 of numbers, in hexadecimal.
fn digest(values: &[f32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_golden_folder_is_tested() {
    let names = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, FORMATS.map(|(name, _)| name));
}

#[test]
fn weights_are_bit_equal_to_the_definition() {
    for (name, _) in FORMATS {
        let checkpoint = Checkpoint::open(&folder().join(name)).unwrap();
        let golden = fs::read(folder().join(name).join("golden.json")).unwrap();
        let golden: Value = serde_json::from_slice(&golden).unwrap();
        let expected = golden["weights"].as_object().unwrap();
        let mut compared = 0;
        for tensor in checkpoint.architecture().matrices() {
            let values = checkpoint.tensor(tensor).unwrap();
            assert_eq!(digest(&values), expected[&tensor.to_string()], "{name}: {tensor}");
            compared += 1;
        }
        assert_eq!(compared, expected.len(), "{name}");
    }
}

#[test]
fn blocks_have_the_same_weights() {
    for (name, dtype) in FORMATS {
        let checkpoint = Checkpoint::open(&folder().join(name)).unwrap();
        let config = fs::read_to_string(folder().join(name).join("config.json")).unwrap();
        assert!(config.contains("quantization_config"));
        let in_layers = |name: String| name.contains(".self_attn.") || name.contains(".mlp.");
        let mut found = 0;
        for tensor in checkpoint.architecture().matrices() {
            let is_expert = tensor.to_string().contains(".experts.");
            if !in_layers(tensor.to_string()) || (name == "mxfp4" && !is_expert) {
                continue;
            }
            let rows = checkpoint.rows(tensor).unwrap();
            assert_eq!(checkpoint.dtype(tensor).unwrap(), dtype, "{name}: {tensor}");
            found += 1;
            let mut values = vec![0.0; rows.columns()];
            for row in 0..rows.len() {
                rows.read(row, &mut values).unwrap();
                if let Some(stored) = rows.stored(row).unwrap() {
                    let mut restored = vec![0.0; rows.columns()];
                    rows.block_type().unwrap().dequantize(&stored, &mut restored);
                    assert_eq!(restored, values, "{name}: row {row} of {tensor}");
                } else if dtype == Dtype::Bf16 {
                    assert!(values.iter().all(|value| value.to_bits() & 0xffff == 0));
                }
            }
        }
        assert!(found >= 7, "{name}: {found} matrices");
    }
}

/// The files of a checkpoint in memory, to change them.
struct Files {
    config: Value,
    tensors: BTreeMap<String, SerializedTensor>,
}

impl Files {
    fn of(name: &str) -> Self {
        let read = |file: &str| fs::read(folder().join(name).join(file)).unwrap();
        let bytes = read("model.safetensors");
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = tensors.iter().map(|(name, view)| {
            let (dtype, shape) = (view.dtype(), view.shape().to_vec());
            (name.to_owned(), SerializedTensor { dtype, shape, bytes: view.data().to_vec() })
        });
        let config = serde_json::from_slice(&read("config.json")).unwrap();
        Self { config, tensors: tensors.collect() }
    }

    fn option(mut self, pointer: &str, option: &str, value: Value) -> Self {
        let options = self.config.pointer_mut(&format!("/quantization_config{pointer}")).unwrap();
        options.as_object_mut().unwrap().insert(option.to_owned(), value);
        self
    }

    /// Changes a tensor of the first layer's attention.
    fn tensor(mut self, part: &str, change: impl Fn(&mut SerializedTensor)) -> Self {
        change(self.tensors.get_mut(&Self::name(part)).unwrap());
        self
    }

    fn without(mut self, part: &str) -> Self {
        self.tensors.remove(&Self::name(part)).unwrap();
        self
    }

    fn name(part: &str) -> String {
        match part.starts_with("model.") {
            true => part.to_owned(),
            false => format!("model.layers.0.self_attn.q_proj.{part}"),
        }
    }

    fn open(&self) -> Result<Checkpoint, LoadError> {
        let config = Config::parse(&self.config.to_string(), Path::new("config.json"))?;
        let view = |tensor: &SerializedTensor| {
            let (shape, bytes) = (tensor.shape.clone(), tensor.bytes.clone());
            SerializedTensor { dtype: tensor.dtype, shape, bytes }
        };
        let tensors = self.tensors.iter().map(|(name, tensor)| (name, view(tensor)));
        let bytes = safetensors::serialize(tensors, None).unwrap();
        let file = WeightFile::from_bytes("model.safetensors".into(), bytes);
        Checkpoint::from_safetensors(Path::new("test"), config, None, vec![file])
    }

    fn message(&self) -> String {
        self.open().err().unwrap().to_string()
    }
}

#[test]
fn other_formats_are_refused_by_name() {
    let weights = "/config_groups/group_0/weights";
    let cases: &[(&str, &str, &str, Value, &str)] = &[
        ("awq", "", "quant_method", json!("bitnet"), "\"quant_method\" is \"bitnet\""),
        ("awq", "", "quant_method", Value::Null, "\"quant_method\" is absent"),
        ("awq", "", "version", json!("gemv"), "\"version\" is \"gemv\""),
        ("awq", "", "bits", json!(3), "\"bits\" is 3"),
        ("awq", "", "zero_point", json!(false), "\"zero_point\" is false"),
        ("awq", "", "group_size", json!(0), "\"group_size\" is 0"),
        ("awq", "", "group_size", Value::Null, "\"group_size\" is missing"),
        ("awq", "", "group_size", json!(16), "qzeros` has shape"),
        ("gptq", "", "bits", json!(2), "\"bits\" is 2"),
        ("gptq", "", "bits", json!(8), "qweight` has shape"),
        ("gptq", "", "checkpoint_format", json!("marlin"), "\"checkpoint_format\" is \"marlin\""),
        ("gptq", "", "is_marlin_format", json!(true), "\"is_marlin_format\" is true"),
        ("gptq", "", "dynamic", json!({"+:lm_head": {"bits": 8}}), "\"dynamic\" is"),
        ("fp8-block", "", "fmt", json!("e5m2"), "\"fmt\" is \"e5m2\""),
        ("fp8-block", "", "weight_block_size", json!([16]), "\"weight_block_size\" is [16]"),
        ("fp8-block", "", "weight_block_size", json!([0, 24]), "\"weight_block_size\" is [0,24]"),
        ("fp8-block", "", "weight_block_size", json!([16, 16]), "weight_scale_inv` has shape"),
        ("fp8-block", "", "kv_cache_scheme", json!("static"), "\"kv_cache_scheme\" is"),
        ("compressed-int4", "", "format", json!("marlin-24"), "\"format\" is \"marlin-24\""),
        ("compressed-int4", "", "format", json!("nvfp4-pack-quantized"), "\"format\" is"),
        ("compressed-int4", "", "transform_config", json!({"r1": {}}), "\"transform_config\" is"),
        ("compressed-int4", "", "sparsity_config", json!({"format": "sparse-bitmask"}), "bitmask"),
        ("compressed-int4", "", "quantization_status", json!("initialized"), "\"initialized\""),
        ("compressed-int4", weights, "num_bits", json!(3), "\"num_bits\" is 3"),
        ("compressed-int4", weights, "type", json!("float"), "\"num_bits\" is 4"),
        ("compressed-int4", weights, "strategy", json!("block"), "\"strategy\" is \"block\""),
        ("compressed-int4", weights, "actorder", json!("group"), "\"actorder\" is \"group\""),
        ("compressed-int4", weights, "dynamic", json!(true), "\"dynamic\" is true"),
        ("compressed-fp8-channel", weights, "strategy", json!("group"), "\"strategy\" is"),
        ("compressed-fp8-channel", weights, "symmetric", json!(false), "\"symmetric\" is false"),
        ("compressed-fp8-block", weights, "block_structure", Value::Null, "\"block_structure\" is"),
    ];
    for (name, pointer, option, value, words) in cases {
        let message = Files::of(name).option(pointer, option, value.clone()).message();
        assert!(message.contains(words), "{name}, {option}: {message}");
    }
    let mut mixed = Files::of("compressed-int4");
    let mut other = mixed.config["quantization_config"]["config_groups"]["group_0"].clone();
    other["weights"]["num_bits"] = json!(8);
    mixed.config["quantization_config"]["config_groups"]["group_1"] = other;
    assert!(mixed.message().contains("one format for all matrices"));
    let mut llama = Files::of("fp8-block");
    llama.config["quantization_config"] = json!({"quant_method": "mxfp4"});
    assert!(llama.message().contains("\"mxfp4\" only for gpt_oss"));
    // Without the configuration, quants are no weights.
    let mut plain = Files::of("fp8-block");
    plain.config["quantization_config"] = Value::Null;
    assert!(plain.message().contains("F8_E4M3"), "{}", plain.message());
}

#[test]
fn damaged_parts_are_refused() {
    let set = |bytes: &'static [u8], at: usize| {
        move |tensor: &mut SerializedTensor| {
            tensor.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        }
    };
    let cases: Vec<(&str, &str, Files, &[&str])> = vec![
        ("f32", "weight_scale_inv", Files::of("fp8-block"), &["NaN", "index 1;"]),
        ("f16", "scales", Files::of("awq"), &["inf", "index 1;"]),
        ("bf16", "weight_scale", Files::of("compressed-int8"), &["inf", "index 1;"]),
        ("power", "weight_scale_inv", Files::of("fp8-power"), &["NaN", "index 1;"]),
    ];
    for (kind, part, files, words) in cases {
        let (bytes, size): (&'static [u8], usize) = match kind {
            "f32" => (&[0, 0, 0xc0, 0x7f], 4),
            "f16" => (&[0, 0x7c], 2),
            "bf16" => (&[0x80, 0x7f], 2),
            _ => (&[0xff], 1),
        };
        let message = files.tensor(part, set(bytes, size)).message();
        let all = [words, &[part]].concat();
        assert!(all.iter().all(|word| message.contains(word)), "{message}");
    }
    let experts = "model.layers.0.mlp.experts.down_proj_scales";
    let message = Files::of("mxfp4").tensor(experts, set(&[254], 0)).message();
    assert!(message.contains(experts) && message.contains("inf"), "{message}");
    let last = "model.layers.0.mlp.experts.down_proj_scales";
    assert!(Files::of("mxfp4").tensor(last, set(&[252], 0)).open().is_ok());

    // A quant that is NaN is found when the row is read.
    let nan = Files::of("fp8-block").tensor("weight", set(&[0x7f], 41)).open().unwrap();
    let query = nan.architecture().matrices().find(|t| t.to_string().contains("q_proj")).unwrap();
    let message = nan.tensor(query).unwrap_err().to_string();
    assert!(message.contains("q_proj.weight") && message.contains("index 41;"), "{message}");

    let message = Files::of("gptq-order").tensor("g_idx", set(&[3, 0, 0, 0], 8)).message();
    assert!(message.contains("g_idx") && message.contains("from 0 to 2"), "{message}");
    let message = Files::of("gptq-order").tensor("g_idx", set(&[0xff; 4], 8)).message();
    assert!(message.contains("value -1 at index 2"), "{message}");
    let message = Files::of("compressed-int4").tensor("weight_shape", set(&[65], 0)).message();
    assert!(message.contains("shape [65, 64]; expected [64, 64]"), "{message}");

    for (name, part) in [
        ("fp8-block", "weight_scale_inv"),
        ("awq", "qzeros"),
        ("awq", "scales"),
        ("gptq", "qzeros"),
        ("gptq-order", "g_idx"),
        ("compressed-int4", "weight_shape"),
        ("compressed-int4-zeros", "weight_zero_point"),
        ("mxfp4", experts),
    ] {
        let message = Files::of(name).without(part).message();
        assert!(message.contains(part) && message.contains("is missing"), "{name}: {message}");
    }
    let message = Files::of("gptq").without("qweight").message();
    assert!(message.contains("q_proj.weight` is missing"), "{message}");
    // The table of groups of a matrix in order follows from the size.
    assert!(Files::of("gptq").without("g_idx").open().is_ok());

    let retyped = |tensor: &mut SerializedTensor| tensor.dtype = StoredDtype::U32;
    let message = Files::of("awq").tensor("qweight", retyped).message();
    assert!(message.contains("type U32; expected one of [I32]"), "{message}");
    // Zeros of a bias are no bias; other values are.
    let message = Files::of("gptq").tensor("bias", set(&[1], 3)).message();
    assert!(message.contains("q_proj.bias"), "{message}");
}

/// Mutated files never make the loader panic.
#[test]
fn mutated_checkpoints_do_not_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |limit: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let mut opened = 0;
    for (name, _) in FORMATS {
        let config = fs::read(folder().join(name).join("config.json")).unwrap();
        let weights = fs::read(folder().join(name).join("model.safetensors")).unwrap();
        for _ in 0..30 {
            let (mut config, mut weights) = (config.clone(), weights.clone());
            let header = usize::from(u16::from_le_bytes([weights[0], weights[1]]));
            for _ in 0..=random(3) {
                match random(3) {
                    0 => {
                        let at = random(config.len());
                        config[at] = b"0123456789,:-nxe"[random(16)];
                    }
                    1 => {
                        let at = 8 + random(header);
                        weights[at] = b"0123456789,F8IU"[random(15)];
                    }
                    _ => {
                        let at = random(weights.len());
                        weights[at] = random(256) as u8;
                    }
                }
            }
            let read = || -> Result<(), LoadError> {
                let text = String::from_utf8_lossy(&config);
                let config = Config::parse(&text, Path::new("config.json"))?;
                let file = WeightFile::from_bytes("model.safetensors".into(), weights.clone());
                let checkpoint =
                    Checkpoint::from_safetensors(Path::new("test"), config, None, vec![file])?;
                for tensor in checkpoint.architecture().matrices() {
                    checkpoint.tensor(tensor)?;
                    let rows = checkpoint.rows(tensor)?;
                    (0..rows.len()).try_for_each(|row| rows.stored(row).map(drop))?;
                }
                Ok(())
            };
            match catch_unwind(AssertUnwindSafe(read)) {
                Ok(result) => opened += usize::from(result.is_ok()),
                Err(_) => panic!("{name}: {}", String::from_utf8_lossy(&config)),
            }
        }
    }
    assert!(opened > 0);
}

/// Packs integers in words, bit by bit: that at `[row, column]` begins at the bit that `place`
/// says.
fn pack(words: usize, bits: usize, integers: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = vec![0; 4 * words];
    for (start, integer) in integers {
        for bit in 0..bits {
            let at = start + bit;
            bytes[at / 8] |= (integer >> bit & 1) << (at % 8);
        }
    }
    bytes
}

/// Returns a checkpoint whose only quantised matrix is an MLP's `[rows, columns]`, with parts of
/// these names.
fn with_matrix(
    quantization: &Value,
    [rows, columns]: [usize; 2],
    parts: Vec<(&str, StoredDtype, Vec<usize>, Vec<u8>)>,
) -> Checkpoint {
    let config = json!({
        "model_type": "llama", "hidden_size": columns, "intermediate_size": rows, "head_dim": 2,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 3,
        "bos_token_id": 1, "eos_token_id": 2, "quantization_config": quantization,
    });
    let config = Config::parse(&config.to_string(), Path::new("config.json")).unwrap();
    let architecture = config.architecture();
    const MODULE: &str = "model.layers.0.mlp.up_proj";
    let floats = architecture.tensors().filter(|tensor| !tensor.to_string().starts_with(MODULE));
    let mut tensors: Vec<(String, SerializedTensor)> = floats
        .map(|tensor| {
            let shape = architecture.shape(tensor);
            let bytes = vec![0; 4 * shape.iter().product::<usize>()];
            let dtype = StoredDtype::F32;
            (tensor.to_string(), SerializedTensor { dtype, shape, bytes })
        })
        .collect();
    tensors.extend(parts.into_iter().map(|(part, dtype, shape, bytes)| {
        (format!("{MODULE}.{part}"), SerializedTensor { dtype, shape, bytes })
    }));
    let bytes = safetensors::serialize(tensors, None).unwrap();
    let file = WeightFile::from_bytes("model.safetensors".into(), bytes);
    Checkpoint::from_safetensors(Path::new("test"), config, None, vec![file]).unwrap()
}

fn up_projection(checkpoint: &Checkpoint) -> Vec<f32> {
    let is_up = |tensor: &forerun_formats::checkpoint::Tensor| {
        tensor.to_string() == "model.layers.0.mlp.up_proj.weight"
    };
    checkpoint.tensor(checkpoint.architecture().matrices().find(is_up).unwrap()).unwrap()
}

#[derive(Clone, Debug)]
struct Matrix {
    rows: usize,
    columns: usize,
    group: usize,
    quants: Vec<u8>,  // [rows][columns]
    zeros: Vec<u8>,   // [rows][groups]
    scales: Vec<f32>, // [rows][groups]
}

impl Matrix {
    fn groups(&self) -> usize {
        self.columns.div_ceil(self.group)
    }

    /// Returns the definition's weights, given the group of each column.
    fn weights(&self, group_of: impl Fn(usize) -> usize) -> Vec<f32> {
        let weight = |row: usize, column: usize| {
            let part = row * self.groups() + group_of(column);
            let quant = self.quants[row * self.columns + column];
            (f32::from(quant) - f32::from(self.zeros[part])) * self.scales[part]
        };
        let rows = (0..self.rows).map(|row| (0..self.columns).map(move |column| (row, column)));
        rows.flatten().map(|(row, column)| weight(row, column)).collect()
    }

    /// Returns the scales as `[groups, rows]`.
    fn scales_by_group(&self) -> Vec<u8> {
        let (rows, groups) = (self.rows, self.groups());
        let pairs = (0..groups).flat_map(|group| (0..rows).map(move |row| (row, group)));
        pairs.flat_map(|(row, group)| self.scales[row * groups + group].to_le_bytes()).collect()
    }
}

/// Matrices of integers of this many bits, of any size.
fn any_matrix(bits: usize) -> impl Strategy<Value = Matrix> {
    (1..20_usize, 1..70_usize, 1..40_usize).prop_flat_map(move |(rows, columns, group)| {
        let groups = columns.div_ceil(group);
        let integers = move |count| prop::collection::vec(0..=(0xff_u8 >> (8 - bits)), count);
        let scales = prop::collection::vec(-4.0_f32..4.0, rows * groups);
        (integers(rows * columns), integers(rows * groups), scales).prop_map(
            move |(quants, zeros, scales)| Matrix { rows, columns, group, quants, zeros, scales },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn integers_of_gptq_have_their_definitions_values(
        (bits, matrix) in prop_oneof![
            any_matrix(4).prop_map(|matrix| (4, matrix)),
            any_matrix(8).prop_map(|matrix| (8, matrix)),
        ],
        version in 1..=2_u8,
        rotated in 0..70_usize,
    ) {
        let Matrix { rows, columns, group, .. } = matrix;
        let (per_word, groups) = (32 / bits, matrix.groups());
        let group_of = |column: usize| (column + rotated) % columns / group;
        let mut quants = Vec::new();
        for (index, quant) in matrix.quants.iter().enumerate() {
            let (row, column) = (index / columns, index % columns);
            quants.push((32 * (column / per_word * rows + row) + column % per_word * bits, *quant));
        }
        let words = rows.div_ceil(per_word);
        let mut zeros = Vec::new();
        for (index, zero) in matrix.zeros.iter().enumerate() {
            let (row, group) = (index / groups, index % groups);
            zeros.push((32 * (group * words + row / per_word) + row % per_word * bits, *zero));
        }
        let quants = pack(columns.div_ceil(per_word) * rows, bits, &quants);
        let mut zeros = pack(groups * words, bits, &zeros);
        if version == 1 {
            let ones = if bits == 4 { 0x1111_1111_u32 } else { 0x0101_0101 };
            for word in zeros.as_chunks_mut::<4>().0 {
                *word = u32::from_le_bytes(*word).wrapping_sub(ones).to_le_bytes();
            }
        }
        let table = (0..columns).flat_map(|column| (group_of(column) as i32).to_le_bytes());
        let format = if version == 1 { "gptq" } else { "gptq_v2" };
        let options = json!({"quant_method": "gptq", "bits": bits, "group_size": group,
            "desc_act": true, "checkpoint_format": format});
        let checkpoint = with_matrix(&options, [rows, columns], vec![
            ("qweight", StoredDtype::I32, vec![columns.div_ceil(per_word), rows], quants),
            ("qzeros", StoredDtype::I32, vec![groups, words], zeros),
            ("scales", StoredDtype::F32, vec![groups, rows], matrix.scales_by_group()),
            ("g_idx", StoredDtype::I32, vec![columns], table.collect()),
        ]);
        prop_assert_eq!(up_projection(&checkpoint), matrix.weights(group_of));
    }

    #[test]
    fn integers_of_awq_have_their_definitions_values(matrix in any_matrix(4)) {
        const PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
        let Matrix { rows, columns, group, .. } = matrix;
        let (groups, words) = (matrix.groups(), rows.div_ceil(8));
        let place = |row: usize, line: usize| 32 * (line * words + row / 8) + 4 * PLACES[row % 8];
        let by = |values: &[u8], width: usize| {
            let integers = values.iter().enumerate();
            let places = integers.map(|(index, value)| (place(index / width, index % width), *value));
            pack(width * words, 4, &places.collect::<Vec<_>>())
        };
        let options = json!({"quant_method": "awq", "bits": 4, "group_size": group});
        let checkpoint = with_matrix(&options, [rows, columns], vec![
            ("qweight", StoredDtype::I32, vec![columns, words], by(&matrix.quants, columns)),
            ("qzeros", StoredDtype::I32, vec![groups, words], by(&matrix.zeros, groups)),
            ("scales", StoredDtype::F32, vec![groups, rows], matrix.scales_by_group()),
        ]);
        prop_assert_eq!(up_projection(&checkpoint), matrix.weights(|column| column / group));
    }

    #[test]
    fn integers_of_compressed_tensors_have_their_definitions_values(
        (bits, matrix) in prop_oneof![
            any_matrix(4).prop_map(|matrix| (4, matrix)),
            any_matrix(8).prop_map(|matrix| (8, matrix)),
        ],
    ) {
        let Matrix { rows, columns, group, .. } = matrix;
        let (per_word, groups) = (32 / bits, matrix.groups());
        let words = columns.div_ceil(per_word);
        let mut quants = Vec::new();
        for (index, quant) in matrix.quants.iter().enumerate() {
            let (row, column) = (index / columns, index % columns);
            quants.push((32 * (row * words + column / per_word) + column % per_word * bits, *quant));
        }
        let mut zeros = Vec::new();
        for (index, zero) in matrix.zeros.iter().enumerate() {
            let (row, group) = (index / groups, index % groups);
            zeros.push((32 * (row / per_word * groups + group) + row % per_word * bits, *zero));
        }
        let zero_words = rows.div_ceil(per_word);
        let shape = [rows, columns].map(|size| (size as i64).to_le_bytes()).concat();
        let scales = matrix.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let weights = json!({"num_bits": bits, "type": "int", "symmetric": false,
            "strategy": "group", "group_size": group});
        let options = json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}});
        let checkpoint = with_matrix(&options, [rows, columns], vec![
            ("weight_packed", StoredDtype::I32, vec![rows, words],
                pack(rows * words, bits, &quants)),
            ("weight_zero_point", StoredDtype::I32, vec![zero_words, groups],
                pack(zero_words * groups, bits, &zeros)),
            ("weight_scale", StoredDtype::F32, vec![rows, groups], scales),
            ("weight_shape", StoredDtype::I64, vec![2], shape),
        ]);
        prop_assert_eq!(up_projection(&checkpoint), matrix.weights(|column| column / group));
    }
}
