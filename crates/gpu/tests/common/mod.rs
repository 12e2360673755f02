//! What the tests of GPUs share.

use forerun_formats::Config;
use forerun_formats::checkpoint::random::{example_config, example_families};
use forerun_gpu::GpuDevice;
use std::sync::{Arc, OnceLock};

/// Returns the GPU of the tests. Prints a message if there is none.
pub(crate) fn gpu() -> Option<&'static Arc<GpuDevice>> {
    static GPU: OnceLock<Option<Arc<GpuDevice>>> = OnceLock::new();
    let open = || {
        let device = GpuDevice::open(gpu_number());
        match &device {
            Ok(device) => {
                let adapter = device.adapter();
                let [smallest, largest] = adapter.subgroup_sizes;
                println!("{adapter}: {}, subgroups of {smallest} to {largest}", device.probe());
            }
            Err(error) => {
                assert!(GpuDevice::adapters().is_empty(), "{error}");
                println!("skipped: {error}");
            }
        }
        device.ok()
    };
    GPU.get_or_init(open).as_ref()
}

/// Returns the number of the tests' GPU: `FORERUN_GPU`, or 0.
pub(crate) fn gpu_number() -> usize {
    std::env::var("FORERUN_GPU").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// A plain Llama model, then the features of other families.
pub(crate) fn configs() -> Vec<Config> {
    let all = [example_config()].into_iter().chain(example_families());
    all.map(|config| Config { max_position_embeddings: 700, ..config }).collect()
}
