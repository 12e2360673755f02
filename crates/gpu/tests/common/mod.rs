//! What the tests of GPUs share.

use forerun_formats::{Config, RecurrentLayers};
use forerun_gpu::GpuDevice;
use forerun_suite::examples;
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
                assert!(GpuDevice::adapters().is_ok_and(|all| all.is_empty()), "{error}");
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

/// A plain Llama model, then the features of other families. Those with sizes that GPUs do not
/// compute are there again with the next larger ones.
pub(crate) fn configs() -> Vec<Config> {
    let with_aligned = |config: Config| {
        let aligned = aligned(&config);
        let aligned = (aligned != config).then_some(aligned);
        [config].into_iter().chain(aligned)
    };
    examples().into_iter().flat_map(with_aligned).collect()
}

/// Returns a configuration in which matrices have multiples of four inputs.
pub(crate) fn aligned(config: &Config) -> Config {
    let mut config = config.clone();
    if let Some(latent) = &mut config.latent {
        latent.query_rank = latent.query_rank.map(|rank| rank.next_multiple_of(4));
        latent.rank = latent.rank.next_multiple_of(4);
        latent.value_dim = latent.value_dim.next_multiple_of(2);
    }
    config.per_layer_input = config.per_layer_input.map(|width| width.next_multiple_of(4));
    if let Some(RecurrentLayers { mixer, .. }) = &mut config.recurrent {
        while !mixer.value_width().is_multiple_of(4) {
            mixer.value_dim += 1;
        }
    }
    config
}
