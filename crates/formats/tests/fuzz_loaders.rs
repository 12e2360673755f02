//! Mutated checkpoints never make the loaders panic or allocate more than the input justifies.
//!
//! `FORERUN_CASES` sets the number of cases, which are new ones in each run, and
//! `FORERUN_CASE_SEED` repeats a run. Without them, the cases are always the same. Each case
//! mutates one file of a tiny valid checkpoint. If the result still opens, it is read completely.
#![expect(clippy::unwrap_used, reason = "tests")]

#[expect(dead_code, reason = "tests of GGUF files use all of it")]
#[path = "gguf/builder.rs"]
mod builder;

use forerun_formats::checkpoint::gguf::GgufMetadata;
use forerun_formats::checkpoint::{
    Checkpoint, LayerTensor, LoadError, Tensor, WeightFile, WeightIndex,
};
use forerun_formats::config::Config;
use safetensors::{Dtype, tensor::TensorView};
use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// An allocator that records the largest allocation, to detect unchecked sizes from files.
struct RecordingAllocator;

static LARGEST_ALLOCATION: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are forwarded to `System`. In addition, only a number is updated.
unsafe impl GlobalAlloc for RecordingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST_ALLOCATION.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is the same for `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator;

/// Held by the tests that look at the largest allocation.
static ALONE: Mutex<()> = Mutex::new(());

/// A limit far above the needs of the tiny files and far below the sizes in corrupted files.
const ALLOCATION_LIMIT: usize = 1 << 20;

/// The files of a checkpoint of each format.
#[derive(Clone)]
struct Files {
    config: Vec<u8>,
    generation_config: Vec<u8>,
    index: Vec<u8>,
    single: Vec<u8>,
    shards: [Vec<u8>; 2],
    llama2c: Vec<u8>,
    /// A tiny file, which is mostly metadata, one with blocks, and one with experts.
    gguf: [Vec<u8>; 3],
    gguf_parts: [Vec<u8>; 2],
}

/// A Llama, and a Qwen3 with all its options.
const CONFIGS: [&str; 2] = [
    r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 5, "max_position_embeddings": 3,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": null, "hidden_act": "silu",
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "attention_bias": false,
    "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": [2, 3]}"#,
    r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 5, "max_position_embeddings": 3,
    "rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "attention_bias": true, "use_sliding_window": true, "sliding_window": 2,
    "max_window_layers": 1, "layer_types": ["full_attention", "sliding_attention"],
    "eos_token_id": [2, 3]}"#,
];

impl Files {
    fn valid(text: &str) -> Self {
        let config = Config::parse(text, Path::new("config.json")).unwrap();
        let is_in_second = |tensor: Tensor| matches!(tensor, Tensor::Layer(1, _));
        let architecture = config.architecture();
        let names: Vec<String> = architecture
            .tensors()
            .map(|tensor| format!("\"{tensor}\": \"{}\"", u8::from(is_in_second(tensor))))
            .collect();
        let header = [4i32, 6, 2, 2, 1, -5, 3].into_iter().flat_map(i32::to_le_bytes);
        let elements = 40 + 2 * (8 + 16 + 8 + 8 + 16 + 72) + 4 + 6;
        let weights = (0..elements).flat_map(|value| (value as f32).to_le_bytes());
        Self {
            config: text.into(),
            generation_config: br#"{"bos_token_id": 1, "eos_token_id": [2, 4], "do_sample": true,
                "temperature": 0.6, "top_k": 20, "top_p": 0.95}"#
                .into(),
            index: format!("{{\"weight_map\": {{{}}}}}", names.join(", ")).into(),
            single: safetensors_file(&config, |_| true),
            shards: [
                safetensors_file(&config, |tensor| !is_in_second(tensor)),
                safetensors_file(&config, is_in_second),
            ],
            llama2c: header.chain(weights).collect(),
            gguf: [
                gguf_model(config.family.model_type()).bytes(),
                include_bytes!("gguf/goldens/llama.gguf").to_vec(),
                builder::Builder::mixture().bytes(),
            ],
            gguf_parts: gguf_parts(),
        }
    }

    /// Chooses the file that a case mutates. Returns its kind and its bytes.
    fn choose(&mut self, random: &mut Random) -> (&'static str, &mut Vec<u8>) {
        match random.below(14) {
            0 => ("config", &mut self.config),
            1 => ("generation config", &mut self.generation_config),
            2 | 3 => ("index", &mut self.index),
            4 | 5 => ("single", &mut self.single),
            6 => ("shard", &mut self.shards[random.below(2)]),
            7 => ("llama2.c", &mut self.llama2c),
            8 | 9 => ("tiny GGUF", &mut self.gguf[0]),
            10 => ("GGUF with blocks", &mut self.gguf[1]),
            11 | 12 => ("GGUF with experts", &mut self.gguf[2]),
            _ => ("GGUF part", &mut self.gguf_parts[random.below(2)]),
        }
    }

    /// Reads a checkpoint that contains the mutated file.
    fn read(&self, mutated: &str) -> Result<(), LoadError> {
        let gguf = |files: &[Vec<u8>]| {
            let parts = files.iter().map(|bytes| weight_file(bytes)).collect();
            read_all(&Checkpoint::from_gguf(parts)?)
        };
        match mutated {
            "llama2.c" => {
                return read_all(&Checkpoint::from_llama2c(weight_file(&self.llama2c))?);
            }
            "tiny GGUF" => return gguf(&self.gguf[..1]),
            "GGUF with blocks" => return gguf(&self.gguf[1..2]),
            "GGUF with experts" => return gguf(&self.gguf[2..]),
            "GGUF part" => return gguf(&self.gguf_parts),
            _ => {}
        }
        let path = Path::new("directory");
        let mut config = Config::parse(&String::from_utf8_lossy(&self.config), path)?;
        config.apply_generation_config(&String::from_utf8_lossy(&self.generation_config), path)?;
        if !matches!(mutated, "index" | "shard") {
            let single = vec![weight_file(&self.single)];
            return read_all(&Checkpoint::from_safetensors(path, config, None, single)?);
        }
        let index = WeightIndex::parse(&String::from_utf8_lossy(&self.index), path)?;
        // A shard with a mutated name does not exist, so it is empty.
        let shard = |name: &String| match name.as_str() {
            "0" => weight_file(&self.shards[0]),
            "1" => weight_file(&self.shards[1]),
            _ => weight_file(&[]),
        };
        let shards = index.shards().iter().map(shard).collect();
        read_all(&Checkpoint::from_safetensors(path, config, Some(&index), shards)?)
    }
}

/// Returns a model with options of every type, biases, and divisors of RoPE's frequencies.
fn gguf_model(architecture: &str) -> builder::Builder {
    let mut model = builder::Builder::model(architecture);
    let tokens = ["a", "b", "é", "<s>", "</s>"].map(|token| builder::sized(token.as_bytes()));
    model.set("tokenizer.ggml.tokens", builder::array_of(builder::TEXT, 5, &tokens.concat()));
    model.set("tokenizer.ggml.token_type", builder::u32s(&[1, 1, 1, 3, 3]));
    model.set("tokenizer.ggml.eos_token_id", builder::u32_value(4));
    model.set("tokenizer.ggml.add_bos_token", builder::bool_value(true));
    model.set("general.alignment", builder::u32_value(32));
    model.set("general.sampling.temp", builder::f32_value(0.5));
    model.set(&format!("{architecture}.rope.freq_base"), builder::f32_value(1e4));
    model.set(&format!("{architecture}.rope.scaling.type"), builder::text("linear"));
    model.set(&format!("{architecture}.attention.head_count"), builder::u32s(&[2]));
    model.set(&format!("{architecture}.attention.sliding_window"), builder::u32_value(8));
    let pattern = format!("{architecture}.attention.sliding_window_pattern");
    model.set(&pattern, builder::bools(&[true]));
    let nested = builder::array_of(builder::ARRAY, 1, &builder::u32s(&[1, 2]).1);
    model.set("nested", nested);
    for (name, dimensions) in [
        ("blk.0.attn_q.bias", &[4][..]),
        ("blk.0.attn_k.bias", &[2]),
        ("blk.0.attn_v.bias", &[2]),
        ("rope_freqs.weight", &[1]),
    ] {
        model.add(name, dimensions);
    }
    model.tensor("rope_freqs.weight").bytes = 2.0_f32.to_le_bytes().into();
    if architecture == "qwen3" {
        model.add("blk.0.attn_q_norm.weight", &[2]);
        model.add("blk.0.attn_k_norm.weight", &[2]);
    }
    model
}

/// Returns the two parts of a split model.
fn gguf_parts() -> [Vec<u8>; 2] {
    let whole = gguf_model("llama");
    let part = |number: u16, tensors: std::ops::Range<usize>| {
        let mut part = whole.clone();
        part.tensors = whole.tensors[tensors].to_vec();
        part.set("split.no", (builder::U16, number.to_le_bytes().into()));
        part.set("split.count", (builder::U16, 2_u16.to_le_bytes().into()));
        part.set("split.tensors.count", builder::u32_value(whole.tensors.len() as u32));
        part.bytes()
    };
    [part(0, 0..7), part(1, 7..whole.tensors.len())]
}

fn weight_file(bytes: &[u8]) -> WeightFile {
    WeightFile::from_bytes(PathBuf::from("weights"), bytes.to_vec())
}

/// Creates a file with the tensors for which `contains` is true: norms and biases as bf16, one
/// matrix as f16 and the others as f32.
fn safetensors_file(config: &Config, contains: impl Fn(Tensor) -> bool) -> Vec<u8> {
    let architecture = config.architecture();
    let stored = architecture.tensors().filter(|tensor| contains(*tensor)).map(|tensor| {
        let shape = architecture.shape(tensor);
        let dtype = match tensor {
            _ if shape.len() == 1 => Dtype::BF16,
            Tensor::Layer(1, LayerTensor::Up) => Dtype::F16,
            _ => Dtype::F32,
        };
        let bytes = vec![0x3e; shape.iter().product::<usize>() * dtype.bitsize() / 8];
        (tensor.to_string(), dtype, shape, bytes)
    });
    let stored: Vec<_> = stored.collect();
    let views = stored.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

fn read_all(checkpoint: &Checkpoint) -> Result<(), LoadError> {
    for tensor in checkpoint.architecture().tensors().chain([Tensor::Head]) {
        let elements = checkpoint.tensor(tensor)?.len();
        assert_eq!(elements, checkpoint.shape(tensor).iter().product::<usize>());
        checkpoint.dtype(tensor)?;
    }
    let layers = checkpoint.config().num_hidden_layers;
    let beyond = Tensor::Layer(layers, LayerTensor::Up);
    assert!(checkpoint.tensor(beyond).is_err());
    let config = checkpoint.config();
    assert!((0..layers).all(|layer| config.window(layer).is_none_or(|window| window > 0)));
    let pairs = config.head_dim / 2;
    assert!((0..pairs).all(|pair| config.rope(0).frequency(pair).is_finite()));
    assert!(checkpoint.weights_bytes() > 0);
    if let Some(metadata) = checkpoint.gguf() {
        metadata.keys().for_each(|key| read_option(metadata, key));
    }
    Ok(())
}

/// Reads an option as every type. At most one of them fits.
fn read_option(metadata: GgufMetadata<'_>, key: &str) {
    let read = [
        metadata.text(key).is_ok_and(|text| text.is_some()),
        metadata.u32(key).is_ok_and(|number| number.is_some()),
        metadata.f32(key).is_ok_and(|number| number.is_some()),
        metadata.bool(key).is_ok_and(|flag| flag.is_some()),
    ];
    let arrays = [
        metadata.strings(key).ok().flatten().map(|all| (all.len(), all.count())),
        metadata.f32s(key).ok().flatten().map(|all| (all.len(), all.count())),
        metadata.i32s(key).ok().flatten().map(|all| (all.len(), all.count())),
        metadata.bools(key).ok().flatten().map(|all| (all.len(), all.count())),
    ];
    assert!(arrays.iter().flatten().all(|(length, count)| length == count), "{key}");
    assert!(read.iter().filter(|read| **read).count() <= 1, "{key}");
}

/// A SplitMix64 generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns a position to damage, often in the first bytes, which hold lengths and headers.
    fn position(&mut self, length: usize) -> usize {
        let near_start = self.below(3) == 0;
        self.below(if near_start { length.min(40) } else { length })
    }

    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.position(length);
        let longest = self.pick(&[4, 32, 400]);
        start..(start + 1 + self.below(longest)).min(length)
    }
}

const INTEGERS: [u64; 12] = [
    0,
    1,
    7,
    i32::MAX as u64,
    i32::MIN as u32 as u64,
    u32::MAX as u64,
    1 << 28,
    i64::MAX as u64,
    1 << 61,
    u64::MAX - 7,
    u64::MAX,
    99_999_999,
];

const JSON_VALUES: [&str; 24] = [
    "0",
    "1",
    "2",
    "3",
    "-1",
    "4",
    "6",
    "2147483647",
    "-2147483648",
    "268435456",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "2305843009213693952",
    "0.5",
    "-0.0",
    "1e39",
    "1e400",
    "1e-400",
    "NaN",
    "null",
    "true",
    "\"x\"",
    "[1, [2]]",
];

/// Applies one random mutation to a file. Foreign chunks are taken from `other`.
fn mutate(file: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    if file.is_empty() {
        file.extend_from_slice(&other[..random.below(other.len())]);
        return;
    }
    let offset = random.position(file.len());
    match random.below(10) {
        0 => file[offset] ^= 1 << random.below(8),
        1 => file[offset] = random.pick(b"\0\x01\x7f\x80\xff\"\\{}[],:-.eE019 u/"),
        2 => file.truncate(offset),
        3 => drop(file.drain(random.range(file.len()))),
        4 => {
            let chunk = file[random.range(file.len())].to_vec();
            drop(file.splice(offset..offset, chunk));
        }
        5 => {
            let chunk = other[random.range(other.len())].to_vec();
            let end = (offset + random.below(chunk.len() + 1)).min(file.len());
            drop(file.splice(offset..end, chunk));
        }
        6 => {
            let bytes = random.pick(&INTEGERS).to_le_bytes();
            let width = random.pick(&[4, 8]).min(file.len() - offset);
            file[offset..offset + width].copy_from_slice(&bytes[..width]);
        }
        7 => {
            let more = random.below(64);
            file.resize(file.len() + more, 0);
        }
        _ => substitute_number(file, random),
    }
}

/// Replaces a number in JSON by a boundary value. In a safetensors file, the length of the header
/// is usually corrected, so that the case tests more than this length.
fn substitute_number(file: &mut Vec<u8>, random: &mut Random) {
    let header = file.first_chunk::<8>().map(|length| u64::from_le_bytes(*length));
    let header = header.filter(|length| *length < file.len() as u64).map(|length| length as usize);
    let json_end = header.map_or(file.len(), |length| (8 + length).min(file.len()));
    let is_digit = |index: usize| file[index].is_ascii_digit();
    let starts: Vec<usize> = (0..json_end)
        .filter(|offset| is_digit(*offset) && (*offset == 0 || !is_digit(offset - 1)))
        .collect();
    if starts.is_empty() {
        return;
    }
    let start = random.pick(&starts);
    let end = (start..json_end).find(|offset| !is_digit(*offset)).unwrap_or(json_end);
    let value = random.pick(&JSON_VALUES);
    file.splice(start..end, value.bytes());
    if let Some(length) = header
        && random.below(8) > 0
        && start >= 8
    {
        let length = (length + value.len()).saturating_sub(end - start) as u64;
        file[..8].copy_from_slice(&length.to_le_bytes());
    }
}

fn environment_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}; expected a number")))
}

/// A vocabulary of 150,000 tokens is neither copied nor indexed.
#[test]
fn large_arrays_are_read_in_place() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let token = |index: u64| builder::sized(format!("token {index}").as_bytes());
    let tokens: Vec<u8> = (0..150_000).flat_map(token).collect();
    let mut model = builder::Builder::llama();
    model.set("tokenizer.ggml.tokens", builder::array_of(builder::TEXT, 150_000, &tokens));
    let file = weight_file(&model.bytes());
    LARGEST_ALLOCATION.store(0, Ordering::Relaxed);
    let checkpoint = Checkpoint::from_gguf(vec![file]).unwrap();
    let tokens = checkpoint.gguf().unwrap().strings("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(tokens.last(), Some("token 149999"));
    let allocated = LARGEST_ALLOCATION.load(Ordering::Relaxed);
    assert!(allocated <= 1 << 16, "allocated {allocated} bytes");
}

#[test]
fn mutated_checkpoints_never_make_the_loaders_panic() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cases = environment_number("FORERUN_CASES");
    let from_clock = |_| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = environment_number("FORERUN_CASE_SEED").or_else(|| cases.map(from_clock));
    let (seed, cases) = (seed.unwrap_or(0), cases.unwrap_or(20_000));
    println!("FORERUN_CASE_SEED={seed} FORERUN_CASES={cases}");

    let all = CONFIGS.map(Files::valid);
    for valid in &all {
        for kind in [
            "config",
            "index",
            "llama2.c",
            "tiny GGUF",
            "GGUF with blocks",
            "GGUF with experts",
            "GGUF part",
        ] {
            valid.read(kind).unwrap();
        }
    }
    let mut opened = 0;
    let mut largest = 0;
    for case in 0..cases {
        let mut random = Random(seed ^ case.wrapping_mul(0xd134_2543_de82_ef95));
        let valid = &all[random.below(all.len())];
        let mut files = valid.clone();
        let (kind, file) = files.choose(&mut random);
        for _ in 0..random.pick(&[1, 1, 2, 3, 8]) {
            let other = random.pick(&[
                &valid.single,
                &valid.config,
                &valid.index,
                &valid.llama2c,
                &valid.gguf[0],
            ]);
            mutate(file, other, &mut random);
        }
        let input = file.clone();
        LARGEST_ALLOCATION.store(0, Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| match files.read(kind) {
            Ok(()) => true,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        }));
        let allocated = LARGEST_ALLOCATION.load(Ordering::Relaxed);
        largest = largest.max(allocated);
        let describe = || format!("case {case} of seed {seed}, {kind}: {}", input.escape_ascii());
        match result {
            Ok(success) => opened += u64::from(success),
            Err(_) => panic!("panicked: {}", describe()),
        }
        assert!(allocated <= ALLOCATION_LIMIT, "allocated {allocated} bytes: {}", describe());
    }
    println!("{opened} of {cases} mutated checkpoints opened; largest allocation {largest} bytes");
}
