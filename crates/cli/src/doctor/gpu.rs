//! GPUs.

use super::Check;
#[cfg(feature = "gpu")]
use forerun::gpu::{AdapterKind, GpuAdapter, GpuDevice, GpuError};

/// Lists the GPUs, and whether their drivers keep the rules that define the bits of a text.
#[cfg(feature = "gpu")]
pub(super) fn checks() -> Vec<Check> {
    found().unwrap_or_else(|error| vec![Check::unknown("gpu", error.to_string())])
}

#[cfg(feature = "gpu")]
fn found() -> Result<Vec<Check>, GpuError> {
    let adapters = GpuDevice::adapters()?;
    let unusable = GpuDevice::unusable()?.into_iter();
    let unusable: Vec<_> = unusable.map(|reason| Check::unknown("gpu", reason)).collect();
    if adapters.is_empty() && unusable.is_empty() {
        return Ok(vec![Check::ok(
            "gpu",
            "none found (a GPU needs a driver for Vulkan, Direct3D 12, Metal, or CUDA with `--features cuda`)",
        )]);
    }
    let check = |adapter: &GpuAdapter| match GpuDevice::open(adapter.index) {
        Ok(device)
            if adapter.kind == AdapterKind::Software && device.probe().has_defined_bits() =>
        {
            Check::ok("gpu", format!("{adapter}; for tests (FORERUN_GPU_SOFTWARE=1)"))
        }
        Ok(device) if device.probe().has_defined_bits() && adapter.is_untried() => Check::advice(
            "gpu",
            format!("{adapter}; {}, {}", device.probe(), device.arithmetic()),
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
    Ok(adapters.iter().map(check).chain(unusable).collect())
}

/// Says that this build has no GPU support.
#[cfg(not(feature = "gpu"))]
pub(super) fn checks() -> Vec<Check> {
    vec![Check::ok("gpu", "this build runs on the CPU only (`--features gpu` adds GPUs)")]
}
