//! Peak memory: loading and running a model takes little more than its packed weights and its
//! cache. The pages of the mapped file count, too: they are released as they are packed.
//!
//! The test writes the files in small pieces, so that creating them takes no memory. There is only
//! one test, because memory is counted for the whole process. The test runs on Linux only, which
//! reports how much memory belongs to the process alone.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_cpu::{Team, Transformer, Weights};
use forerun_formats::checkpoint::WeightFile;
use forerun_formats::checkpoint::random::{RandomDtype, example_config};
use forerun_formats::{Checkpoint, Config, WeightType};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The maximum of a process's peak memory, relative to packed weights and cache.
const LIMIT: f64 = 1.2;
/// The maximum of a process's resident memory while it loads, relative to packed weights. This
/// includes the pages of the mapped file.
const RESIDENT_LIMIT: f64 = 1.1;
/// The smallest packed weights for which the limit is meant, in bytes.
const MIN_WEIGHTS: usize = 100_000_000;
/// The number of tokens in the prompt: more than a prefill pass takes.
const PROMPT: usize = 300;
const STEPS: usize = 4;
/// The number of rows of a step that verifies a draft.
const ROWS: usize = 8;

#[test]
fn peak_memory_is_little_more_than_packed_weights_and_cache() {
    // Quantising must not keep the floats in addition to the integers, and packing must not keep
    // its input. Most of these weights are in two matrices, so a copy of one exceeds the limit.
    check(RandomDtype::F32, WeightType::INT8, 4);
    check(RandomDtype::Bf16, WeightType::Bf16, 2);
}

fn check(stored: RandomDtype, weight_type: WeightType, layers: usize) {
    let config = Config {
        hidden_size: 1024,
        intermediate_size: 2816,
        num_hidden_layers: layers,
        num_attention_heads: 16,
        num_key_value_heads: 4,
        head_dim: 64,
        vocab_size: 32_000,
        ..example_config()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    write_model(&file, &config, stored);
    let before = resident_memory();
    let monitor = MemoryMonitor::start();
    let checkpoint = {
        let file = WeightFile::map(file).unwrap();
        Checkpoint::from_safetensors(folder.path(), config.clone(), None, vec![file]).unwrap()
    };
    let weights = Arc::new(Weights::load_as(&checkpoint, weight_type).unwrap());
    drop(checkpoint);
    let (loaded, resident) = (monitor.peak(), monitor.resident_peak() - before);
    run(&weights);
    let peak = monitor.peak().max(own_memory());
    drop(monitor);

    let packed = weights.bytes();
    assert!(packed >= MIN_WEIGHTS, "{packed}");
    let slots = PROMPT + STEPS + ROWS;
    // With such weights, keys and values are in half precision.
    let cache = layers * 2 * slots * config.kv_size() * 2;
    let share = peak as f64 / (packed + cache) as f64;
    let figures = format!(
        "{stored:?} as {weight_type}: peak {peak} bytes ({loaded} after loading), {share:.3} of packed \
         weights ({packed}) and cache ({cache}); {resident} bytes resident while loading"
    );
    println!("{figures}");
    // A smaller peak would mean that the measurement is wrong.
    assert!(peak as usize >= packed, "{figures}");
    assert!(share <= LIMIT, "{figures}");
    assert!(resident as f64 <= RESIDENT_LIMIT * packed as f64, "{figures}");
}

/// Computes a prompt and some steps that score drafts.
fn run(weights: &Arc<Weights>) {
    let team = Arc::new(Team::unpinned(2).unwrap());
    let mut model = CachedTransformer::new(Transformer::new(Arc::clone(weights), team));
    let mut tokens: Vec<TokenId> =
        (0..PROMPT as TokenId).map(|index| index * 97 % 32_000).collect();
    let draft = TokenTree::chain(&[5; ROWS - 1]);
    for _ in 0..STEPS {
        let prompt = ForwardRequest::next_token(SequenceId(0), &tokens);
        let logits = model.logits(&ForwardRequest { tree: &draft, ..prompt }).unwrap();
        assert!(logits.logits.iter().all(|logit| logit.is_finite()));
        assert_eq!(logits.rows().count(), ROWS);
        tokens.push(7);
    }
}

/// Writes a safetensors file that repeats a few thousand values.
fn write_model(file: &Path, config: &Config, stored: RandomDtype) {
    let (name, element) = match stored {
        RandomDtype::F32 => ("F32", 4),
        RandomDtype::Bf16 => ("BF16", 2),
        RandomDtype::F16 | RandomDtype::Block(_) => panic!("the values below are not f16"),
    };
    let (mut header, mut end) = (Map::<String, Value>::new(), 0);
    let architecture = config.architecture();
    for tensor in architecture.tensors() {
        let shape = architecture.shape(tensor);
        let start = end;
        end += shape.iter().product::<usize>() * element;
        let tensor_header = json!({ "dtype": name, "shape": shape, "data_offsets": [start, end] });
        header.insert(tensor.to_string(), tensor_header);
    }
    // A prime number of values, so that no two rows of a matrix are equal.
    let value =
        |index: u32| (index.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    let values = (0..8191).map(|index| value(index) * 0.05);
    // A bf16 is the upper half of an f32, and the bytes are little-endian.
    let values: Vec<u8> =
        values.flat_map(|value| value.to_le_bytes()[4 - element..].to_vec()).collect();
    let header = Value::from(header).to_string();
    let mut out = BufWriter::new(File::create(file).unwrap());
    out.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    out.write_all(header.as_bytes()).unwrap();
    for start in (0..end).step_by(values.len()) {
        out.write_all(&values[..values.len().min(end - start)]).unwrap();
    }
    out.flush().unwrap();
}

/// Samples the process's own memory every millisecond.
struct MemoryMonitor {
    peak: Arc<AtomicU64>,
    resident_peak: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl MemoryMonitor {
    fn start() -> Self {
        let now = [own_memory(), resident_memory()];
        let [peak, resident_peak] = now.map(|bytes| Arc::new(AtomicU64::new(bytes)));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared_peak, shared_stop) = (Arc::clone(&peak), Arc::clone(&stop));
        let shared_resident_peak = Arc::clone(&resident_peak);
        let sample = move || {
            while !shared_stop.load(Ordering::Relaxed) {
                shared_peak.fetch_max(own_memory(), Ordering::Relaxed);
                shared_resident_peak.fetch_max(resident_memory(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        };
        Self { peak, resident_peak, stop, thread: Some(thread::spawn(sample)) }
    }

    /// Returns the peak so far in bytes.
    fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Returns the peak of the resident memory so far in bytes.
    fn resident_peak(&self) -> u64 {
        self.resident_peak.load(Ordering::Relaxed)
    }
}

impl Drop for MemoryMonitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Returns the anonymous and locked memory of this process in bytes. This excludes the pages of
/// mapped files, which the system reclaims when it needs them.
fn own_memory() -> u64 {
    status("RssAnon:") + status("VmLck:")
}

/// Returns the resident memory of this process in bytes, with the pages of mapped files.
fn resident_memory() -> u64 {
    status("VmRSS:")
}

/// Returns a size of this process's status in bytes.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}
