//! Reads the written files back with an independent reader.

use super::*;
use crate::architecture::QkNorms;
use crate::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use crate::tensor::LayerTensor;
use std::collections::BTreeMap;

/// A reader that follows the format's specification and shares nothing with the writer.
struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        self.position += count;
        &self.bytes[self.position - count..self.position]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let length = self.u64() as usize;
        String::from_utf8(self.take(length).to_vec()).unwrap()
    }

    /// Reads a value and formats it as text.
    fn value(&mut self, code: u32) -> String {
        match code {
            4 => self.u32().to_string(),
            5 => (self.u32() as i32).to_string(),
            6 => f32::from_bits(self.u32()).to_string(),
            7 => (self.take(1)[0] == 1).to_string(),
            8 => self.text(),
            9 => {
                let (element, length) = (self.u32(), self.u64());
                let values: Vec<String> = (0..length).map(|_| self.value(element)).collect();
                format!("[{}]", values.join(", "))
            }
            code => panic!("unexpected value type {code}"),
        }
    }
}

/// Name → (dimensions, type, the file's bytes from the tensor's offset on).
type Tensors = BTreeMap<String, (Vec<u64>, u32, Vec<u8>)>;

fn read(file: &Path) -> (BTreeMap<String, String>, Tensors) {
    let bytes = std::fs::read(file).unwrap();
    let mut reader = Reader { bytes: &bytes, position: 0 };
    assert_eq!(reader.take(4), b"GGUF");
    assert_eq!(reader.u32(), 3);
    let (tensors, values) = (reader.u64(), reader.u64());
    let metadata = (0..values)
        .map(|_| {
            let (key, code) = (reader.text(), reader.u32());
            (key, reader.value(code))
        })
        .collect();
    let mut infos = Vec::new();
    for _ in 0..tensors {
        let (name, dimensions) = (reader.text(), reader.u32());
        let dimensions: Vec<u64> = (0..dimensions).map(|_| reader.u64()).collect();
        infos.push((name, dimensions, reader.u32(), reader.u64()));
    }
    let start = reader.position.next_multiple_of(32) as u64;
    let tensor = |(name, dimensions, code, offset): (String, Vec<u64>, u32, u64)| {
        assert_eq!(offset % 32, 0, "{name}");
        (name, (dimensions, code, bytes[(start + offset) as usize..].to_vec()))
    };
    (metadata, infos.into_iter().map(tensor).collect())
}

fn floats(bytes: &[u8], count: usize) -> Vec<f32> {
    let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    bytes.chunks_exact(4).take(count).map(float).collect()
}

/// A model with rows that divide into blocks.
fn config() -> Config {
    Config {
        hidden_size: 64,
        intermediate_size: 96,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 16,
        ..example_config()
    }
}

fn write_and_read(
    config: &Config,
    types: impl Into<GgufWeights<'static>>,
) -> (Checkpoint, BTreeMap<String, String>, Tensors) {
    let folder = tempfile::tempdir().unwrap();
    write_random_checkpoint(folder.path(), config, 4, RandomDtype::Bf16).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let file = folder.path().join("model.gguf");
    let tokenizer = [
        ("tokenizer.ggml.tokens", GgufValue::Texts(vec!["a".into(), "é".into()])),
        ("tokenizer.ggml.token_type", GgufValue::I32s(vec![1, -3])),
        ("tokenizer.ggml.add_bos_token", GgufValue::Bool(true)),
    ]
    .map(|(key, value)| (key.to_owned(), value));
    write_gguf(&checkpoint, &file, types, &tokenizer).unwrap();
    let (metadata, tensors) = read(&file);
    (checkpoint, metadata, tensors)
}

#[test]
fn files_follow_the_specification() {
    let config = config();
    let (checkpoint, metadata, tensors) = write_and_read(&config, WeightType::F32);
    for (key, value) in [
        ("general.architecture", "llama"),
        ("general.file_type", "0"),
        ("llama.block_count", "2"),
        ("llama.attention.head_count_kv", "2"),
        ("llama.rope.dimension_count", "16"),
        ("llama.attention.layer_norm_rms_epsilon", "0.00001"),
        ("tokenizer.ggml.tokens", "[a, é]"),
        ("tokenizer.ggml.token_type", "[1, -3]"),
        ("tokenizer.ggml.add_bos_token", "true"),
    ] {
        assert_eq!(metadata[key], value, "{key}");
    }
    assert_eq!(tensors.len(), config.architecture().tensors().count());
    let (dimensions, code, bytes) = &tensors["blk.1.ffn_down.weight"];
    assert_eq!((&dimensions[..], *code), (&[96, 64][..], 0));
    let down = checkpoint.tensor(Tensor::Layer(1, LayerTensor::Down)).unwrap();
    assert_eq!(floats(bytes, down.len()), down);
    let (_, _, bytes) = &tensors["output.weight"];
    let head = checkpoint.tensor(Tensor::Head).unwrap();
    assert_eq!(floats(bytes, head.len()), head);
}

/// An interrupted write keeps the earlier file and leaves no other file in the directory.
#[test]
fn a_file_appears_only_when_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    std::fs::write(&file, "earlier").unwrap();
    let infos = || [tensor_info("weight".to_owned(), &[8], WeightType::F32)];
    let files = || std::fs::read_dir(folder.path()).unwrap().count();

    let mut writer = GgufWriter::create(&file, &[], &infos()).unwrap();
    writer.write_all(&[7; 32]).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"earlier");
    drop(writer);
    assert_eq!((std::fs::read(&file).unwrap(), files()), (b"earlier".to_vec(), 1));

    let mut writer = GgufWriter::create(&file, &[], &infos()).unwrap();
    writer.write_all(&[7; 32]).unwrap();
    writer.end_tensor().unwrap();
    writer.finish().unwrap();
    assert_eq!((read(&file).1["weight"].0.clone(), files()), (vec![8], 1));
    // Its directory does not exist.
    assert!(GgufWriter::create(&folder.path().join("no/such.gguf"), &[], &infos()).is_err());
}

#[test]
fn rotated_rows_are_interleaved() {
    assert_eq!([0, 1, 2, 3, 4, 5].map(|row| half_split_row(row, 6)), [0, 3, 1, 4, 2, 5]);
    let config = Config { qkv_bias: true, output_bias: true, ..config() };
    let (checkpoint, _, tensors) = write_and_read(&config, WeightType::F32);
    for (name, tensor) in [("attn_q", LayerTensor::Query), ("attn_k", LayerTensor::Key)] {
        let values = checkpoint.tensor(Tensor::Layer(0, tensor)).unwrap();
        let stored = floats(&tensors[&format!("blk.0.{name}.weight")].2, values.len());
        for (row, stored) in stored.chunks(64).enumerate() {
            // Pair i of a head of 16 rows: rows i and i + 8 in half-split order.
            let source = row / 16 * 16 + row % 2 * 8 + row % 16 / 2;
            assert_eq!(stored, &values[source * 64..][..64], "{name} {row}");
        }
    }
    let bias = checkpoint.tensor(Tensor::Layer(0, LayerTensor::QueryBias)).unwrap();
    let stored = floats(&tensors["blk.0.attn_q.bias"].2, bias.len());
    assert_eq!(stored[..4], [bias[0], bias[8], bias[1], bias[9]]);
    let bias = checkpoint.tensor(Tensor::Layer(0, LayerTensor::ValueBias)).unwrap();
    assert_eq!(floats(&tensors["blk.0.attn_v.bias"].2, bias.len()), bias);
}

#[test]
fn each_type_has_its_stored_form() {
    let (checkpoint, metadata, tensors) = write_and_read(&config(), WeightType::Bf16);
    let gate = checkpoint.tensor(Tensor::Layer(0, LayerTensor::Gate)).unwrap();
    assert_eq!(metadata["general.file_type"], "32");
    let (_, code, bytes) = &tensors["blk.0.ffn_gate.weight"];
    let widened: Vec<f32> = bytes
        .chunks_exact(2)
        .take(gate.len())
        .map(|half| f32::from_bits(u32::from(u16::from_le_bytes(half.try_into().unwrap())) << 16))
        .collect();
    assert_eq!((*code, widened), (30, gate.clone()));

    let (_, metadata, tensors) = write_and_read(&config(), WeightType::INT8);
    assert_eq!(metadata["general.file_type"], "7");
    let (_, code, bytes) = &tensors["blk.0.ffn_gate.weight"];
    assert_eq!(*code, 8);
    for (block, stored) in gate.chunks(32).zip(bytes.chunks_exact(34)) {
        let scale = f16::from_le_bytes([stored[0], stored[1]]).to_f32();
        let peak = block.iter().fold(0.0_f32, |peak, value| peak.max(value.abs()));
        assert_eq!(scale, f16::from_f32(peak / 127.0).to_f32());
        for (value, quant) in block.iter().zip(&stored[2..]) {
            // As in ggml, the nearest step of the scale before it is rounded to f16.
            let steps = (value * (1.0 / (peak / 127.0))).round();
            assert_eq!(f32::from(*quant as i8), steps, "{value} in steps of {scale}");
        }
    }
    for (types, code) in [("q4_1", "3"), ("mxfp4", "38"), ("q4_k_m", "15"), ("q2_k_m", "10")] {
        let (_, metadata, _) = write_and_read(&config(), types.parse::<WeightTypes>().unwrap());
        assert_eq!(metadata["general.file_type"], code, "{types}");
        assert_eq!(metadata["general.quantization_version"], "2");
    }
    let (_, code, bytes) = &tensors["blk.0.attn_norm.weight"];
    let norm = checkpoint.tensor(Tensor::Layer(0, LayerTensor::AttentionNorm)).unwrap();
    assert_eq!((*code, floats(bytes, norm.len())), (0, norm));
}

#[test]
fn rope_scaling_is_written() {
    let linear = Config { rope_scaling: RopeScaling::Linear { factor: 4.0 }, ..config() };
    let (_, metadata, _) = write_and_read(&linear, WeightType::F32);
    assert_eq!(metadata["llama.rope.scaling.type"], "linear");
    assert_eq!(metadata["llama.rope.scaling.factor"], "4");
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 32,
    };
    let llama3 = Config { rope_scaling: scaling, ..config() };
    let (_, metadata, tensors) = write_and_read(&llama3, WeightType::INT8);
    assert!(!metadata.contains_key("llama.rope.scaling.type"));
    let (dimensions, code, bytes) = &tensors["rope_freqs.weight"];
    assert_eq!((&dimensions[..], *code), (&[8][..], 0));
    let divisors = floats(bytes, 8);
    // The first pair turns 5 times over 32 positions and keeps its frequency; the slowest pairs'
    // are divided by 8.
    assert_eq!((divisors[0], divisors[7]), (1.0, 8.0));
    assert!(divisors[1] > 1.0 && divisors[1] < 8.0, "{divisors:?}");
}

#[test]
fn models_that_llama_cpp_would_compute_differently_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let message = |config: Config, weight_type: WeightType| {
        write_random_checkpoint(folder.path(), &config, 4, RandomDtype::F32).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let file = folder.path().join("model.gguf");
        let error = write_gguf(&checkpoint, &file, weight_type, &[]).unwrap_err().to_string();
        assert!(!file.exists());
        error
    };
    let qwen = Config { family: Family::Qwen3, qk_norms: QkNorms::Heads, ..config() };
    let biased = Config { qkv_bias: true, output_bias: true, ..qwen };
    assert!(message(biased, WeightType::F32).contains("\"attention_bias\" is true"));
    let scaled = crate::checkpoint::random::example_families().remove(3);
    let scaled = Config { qkv_bias: false, output_bias: false, ..scaled };
    assert!(message(scaled, WeightType::F32).contains("\"rope_scaling\" is llama3"));
    let window = crate::checkpoint::random::example_families().remove(1);
    assert!(message(window, WeightType::F32).contains("\"sliding_window\" is 21"));
    for (index, name) in [(4, "granite"), (5, "smollm3")] {
        let other = crate::checkpoint::random::example_families().remove(index);
        let error = message(other, WeightType::F32);
        assert!(error.contains(&format!("\"model_type\" is {name}")), "{error}");
    }
    let error = message(example_config(), WeightType::INT8);
    assert!(
        error.contains("\"hidden_size\" is 48 inputs") && error.contains("multiples of 32"),
        "{error}"
    );
    let error = message(config(), WeightType::Quantized(BlockType::Q4_K));
    assert!(error.contains("\"hidden_size\" is 64 inputs") && error.contains("q4_k_m"), "{error}");
}
