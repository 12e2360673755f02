//! Measures a GPU: bandwidth, and passes of made models of Llama's shapes by rows. Prints JSON.
//!
//! `scripts/gpu_first_run.sh` runs it. `--toy` measures models that an emulator computes.

use forerun_formats::checkpoint::random::RepeatedTensors;
use forerun_formats::{BlockType, Config, WeightType};
use forerun_gpu::{GpuModel, GpuRules, GpuWeights};
use forerun_model::ModelProbe;
use std::error::Error;
use std::io::Write;
use std::sync::Arc;

/// The tokens before the measured rows.
const PAST: usize = 128;

/// Returns the shape of Llama 3 with 1 or 8 billion weights, or of toys.
fn config([hidden, intermediate, layers, heads]: [usize; 4], vocab_size: usize) -> Config {
    Config {
        hidden_size: hidden,
        intermediate_size: intermediate,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: (heads / 4).max(1),
        head_dim: hidden / heads,
        vocab_size,
        max_position_embeddings: 4096,
        ..Config::plain_llama()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let is_toy = std::env::args().any(|argument| argument == "--toy");
    let device = GpuRules::from_environment().open(0)?;
    let adapter = device.adapter();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{{\"gpu\": {:?}, \"interface\": {:?}, \"driver\": {:?}, \"probe\": {:?}, \"arithmetic\": {:?},",
        adapter.name,
        adapter.backend,
        adapter.driver,
        device.probe().to_string(),
        device.arithmetic().to_string(),
    )?;
    writeln!(out, " \"bandwidth_gb_s\": {:.1}, \"passes\": [", device.measure_bandwidth()? / 1e9)?;
    let (models, rows) = match is_toy {
        true => (vec![("toy", config([256, 512, 1, 4], 300))], vec![1, 9, 65]),
        false => {
            let models = vec![
                ("1B", config([2048, 8192, 16, 32], 128_256)),
                ("8B", config([4096, 14_336, 32, 32], 128_256)),
            ];
            (models, vec![1, 2, 4, 8, 16, 64, 256, 2048])
        }
    };
    let mut separator = "";
    for (name, config) in &models {
        for block_type in [None, Some(BlockType::Q4_K)] {
            let weight_type = block_type.map_or(WeightType::Bf16, WeightType::Quantized);
            let architecture = config.architecture();
            let tensors = RepeatedTensors::new(&architecture, block_type);
            let weights =
                GpuWeights::load_architecture(&device, architecture, &tensors, weight_type)?;
            drop(tensors);
            let most_rows = rows.iter().copied().max().unwrap_or(1);
            let mut probe = ModelProbe::new(GpuModel::new(Arc::new(weights)), PAST, most_rows);
            for &rows in &rows {
                // The first passes compile kernels and record graphs.
                let (unmeasured, measured) = if rows > 64 { (1, 3) } else { (3, 9) };
                let times = (0..unmeasured + measured).map(|_| probe.run(rows));
                let mut times: Vec<f64> = times.skip(unmeasured).collect();
                times.sort_by(f64::total_cmp);
                let bytes = probe.model().last_cost().weight_bytes;
                write!(
                    out,
                    "{separator}  {{\"model\": {name:?}, \"weights\": \"{weight_type}\", \"rows\": {rows}, \
                     \"median_ms\": {:.4}, \"least_ms\": {:.4}, \"weight_bytes\": {bytes}}}",
                    times[times.len() / 2] * 1e3,
                    times[0] * 1e3,
                )?;
                separator = ",\n";
                out.flush()?;
            }
        }
    }
    writeln!(out, "\n]}}")?;
    Ok(())
}
