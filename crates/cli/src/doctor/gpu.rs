//! GPUs.

use super::Check;

/// Lists the GPUs, and whether their drivers keep the rules that define the bits of a text.
#[cfg(feature = "gpu")]
pub(super) fn checks() -> Vec<Check> {
    let adapters = forerun::GpuDevice::adapters();
    let unusable = forerun::GpuDevice::unusable().into_iter();
    let unusable: Vec<_> = unusable.map(|reason| Check::unknown("gpu", reason)).collect();
    if adapters.is_empty() && unusable.is_empty() {
        return vec![Check::ok(
            "gpu",
            "none found (a GPU needs a driver for Vulkan, Direct3D 12, Metal, or CUDA with `--features cuda`)",
        )];
    }
    let check = |adapter: &forerun::GpuAdapter| match forerun::GpuDevice::open(adapter.index) {
        Ok(device)
            if adapter.kind == forerun::AdapterKind::Software
                && device.probe().has_defined_bits() =>
        {
            Check::ok("gpu", format!("{adapter}; for tests (FORERUN_GPU_SOFTWARE=1)"))
        }
        Ok(device) if device.probe().has_defined_bits() && adapter.is_untried() => Check::advice(
            "gpu",
            format!("{adapter}; {}", device.probe()),
            format!(
                "forerun has never run on a GPU through {}: check it with `forerun certify`",
                adapter.backend
            ),
        ),
        Ok(device) if device.probe().has_defined_bits() => {
            Check::ok("gpu", format!("{adapter}; {}", device.probe()))
        }
        Ok(device) => Check::advice(
            "gpu",
            format!("{adapter}; {}", device.probe()),
            "the driver computes other bits than the guide defines: update it (FORERUN_GPU_INEXACT=1 uses it nevertheless; \
             run `forerun certify` there)",
        ),
        Err(error) => Check::unknown("gpu", error.to_string()),
    };
    adapters.iter().map(check).chain(unusable).collect()
}

/// Says that this build has no GPU support.
#[cfg(not(feature = "gpu"))]
pub(super) fn checks() -> Vec<Check> {
    vec![Check::ok("gpu", "this build runs on the CPU only (`--features gpu` adds GPUs)")]
}
