//! CUDA, if this crate is built with it.

use crate::error::GpuError;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use wgpu::{Adapter, AdapterInfo, Device, ShaderModule};

/// The environment variable that names the only interface to GPUs that is used: `cuda`. Without it,
/// a GPU that has another driver is not used through CUDA.
pub(crate) const API: &str = "FORERUN_GPU_API";

/// The environment variable with the folder of compiled kernels for CUDA's emulator. If it is set,
/// the emulated device is the only one.
pub(crate) const EMULATOR: &str = "FORERUN_CUDA_EMULATOR";

/// The only adapters that are used.
#[derive(Debug, PartialEq, Eq)]
enum Chosen {
    /// CUDA's.
    Cuda,
    /// The emulator, with the folder of its kernels.
    Emulator(PathBuf),
}

impl Chosen {
    /// Returns what the values of [`EMULATOR`] and [`API`] choose, if they choose anything. An
    /// empty value is none.
    fn of([emulator, api]: [Option<OsString>; 2]) -> Result<Option<Self>, GpuError> {
        let is_set = |value: &OsString| !value.is_empty();
        let (variable, chosen) = match (emulator.filter(is_set), api.filter(is_set)) {
            (_, Some(api)) if api != "cuda" => {
                return Err(GpuError::UnknownApi(api.to_string_lossy().into_owned()));
            }
            (Some(folder), _) => (EMULATOR, Self::Emulator(folder.into())),
            (None, Some(_)) => (API, Self::Cuda),
            (None, None) => return Ok(None),
        };
        match cfg!(feature = "cuda") {
            true => Ok(Some(chosen)),
            false => Err(GpuError::WithoutCuda { variable }),
        }
    }
}

/// Returns the adapters that [`EMULATOR`] or [`API`] choose. `None` if they choose none. Fails if
/// [`API`] has an unknown value, or one of the two is set and this crate is built without CUDA.
pub(crate) fn chosen_adapters() -> Result<Option<Vec<Adapter>>, GpuError> {
    let chosen = Chosen::of([EMULATOR, API].map(std::env::var_os))?;
    Ok(chosen.map(|chosen| match chosen {
        Chosen::Cuda => adapters(),
        Chosen::Emulator(folder) => emulated_adapters(&folder),
    }))
}

/// Returns CUDA's devices. Empty without the feature `cuda`.
pub(crate) fn adapters() -> Vec<Adapter> {
    #[cfg(feature = "cuda")]
    return forerun_cuda::adapters();
    #[cfg(not(feature = "cuda"))]
    Vec::new()
}

/// Returns the GPUs that would be used through CUDA if kernels could be compiled for them, and why
/// they cannot.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are none"))]
pub(crate) fn unusable(used: &[Adapter]) -> Vec<String> {
    #[cfg(feature = "cuda")]
    {
        let is_emulated = std::env::var_os(EMULATOR).is_some_and(|folder| !folder.is_empty());
        let used: Vec<_> = used.iter().map(Adapter::get_info).collect();
        let all = if is_emulated { Vec::new() } else { forerun_cuda::unusable() };
        let others = all.into_iter().filter(|(info, _)| !is_offered_by(info, &used));
        others.map(|(info, reason)| format!("{}: {reason}", info.name)).collect()
    }
    #[cfg(not(feature = "cuda"))]
    Vec::new()
}

/// Returns a CUDA device that the processor emulates. Empty without a C++ compiler, or without the
/// feature `cuda`.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are none"))]
fn emulated_adapters(folder: &Path) -> Vec<Adapter> {
    #[cfg(feature = "cuda")]
    return forerun_cuda::emulated_adapter(folder, 0).into_iter().collect();
    #[cfg(not(feature = "cuda"))]
    Vec::new()
}

#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are none"))]
pub(crate) fn is_cuda(adapter: &Adapter) -> bool {
    #[cfg(feature = "cuda")]
    return forerun_cuda::is_cuda(adapter);
    #[cfg(not(feature = "cuda"))]
    false
}

/// Returns the free memory and all memory in bytes of a device of CUDA's. `None` for others.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are none"))]
pub(crate) fn memory(device: &Device) -> Option<[u64; 2]> {
    #[cfg(feature = "cuda")]
    return forerun_cuda::memory(device);
    #[cfg(not(feature = "cuda"))]
    None
}

/// What a GPU was asked to run through CUDA since it was opened.
///
/// Operations that come again are launched together, as a graph: most passes with the same number
/// of rows have the same ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaLaunches {
    /// Number of kernels and copies that were launched one by one.
    pub operations: u64,
    /// Number of launches of graphs.
    pub graphs: u64,
    /// Number of graphs that were created.
    pub created_graphs: u64,
    /// Why no graphs are created any more, if so: they are turned off, or the driver has refused
    /// one.
    pub no_graphs: Option<String>,
}

/// Returns what a device of CUDA's was asked to run. `None` for others.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are none"))]
pub(crate) fn launches(device: &Device) -> Option<CudaLaunches> {
    #[cfg(feature = "cuda")]
    return forerun_cuda::launches(device).map(|launches| {
        let forerun_cuda::Launches { operations, graphs, created_graphs, no_graphs } = launches;
        CudaLaunches { operations, graphs, created_graphs, no_graphs }
    });
    #[cfg(not(feature = "cuda"))]
    None
}

/// Returns the compute capability of a device of CUDA's, such as 90 for 9.0. `None` for others.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are none"))]
pub(crate) fn capability(device: &Device) -> Option<u32> {
    #[cfg(feature = "cuda")]
    return forerun_cuda::capability(device);
    #[cfg(not(feature = "cuda"))]
    None
}

/// Creates the shader of a kernel in CUDA C for a device of CUDA's.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are none"))]
pub(crate) fn module(device: &Device, source: &str, threads: u32) -> ShaderModule {
    #[cfg(feature = "cuda")]
    return forerun_cuda::cuda_c_module(device, source.to_owned(), threads);
    #[cfg(not(feature = "cuda"))]
    unreachable!("only devices of CUDA's have tensor cores")
}

/// Returns the name of the file with compiled kernels for a device of CUDA's. `None` for others.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are none"))]
pub(crate) fn cache_key(device: &Device) -> Option<String> {
    #[cfg(feature = "cuda")]
    return forerun_cuda::code_key(device).map(|key| {
        let of_name = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
        format!("cuda_{}", key.chars().map(of_name).collect::<String>())
    });
    #[cfg(not(feature = "cuda"))]
    None
}

/// Returns the numbers in a place such as `0000:3B:00.0`. Drivers differ in their digits.
fn pci_numbers(place: &str) -> Option<Vec<u32>> {
    place.split([':', '.']).map(|number| u32::from_str_radix(number, 16).ok()).collect()
}

/// Returns whether a device of CUDA's is a GPU that another driver offers, too.
pub(crate) fn is_offered_by(cuda: &AdapterInfo, others: &[AdapterInfo]) -> bool {
    others.iter().any(|other| {
        let places = [cuda, other].map(|info| pci_numbers(&info.device_pci_bus_id));
        let is_same = match places {
            [Some(one), Some(other)] => one == other,
            _ => cuda.name == other.name,
        };
        cuda.vendor == other.vendor && is_same
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgpu::{Backend, DeviceType};

    #[test]
    fn variables_choose_cuda_or_are_errors() {
        let chosen =
            |emulator: &str, api: &str| Chosen::of([emulator, api].map(|it| Some(it.into())));
        assert_eq!(Chosen::of([None, None]).unwrap(), None);
        assert_eq!(chosen("", "").unwrap(), None);
        for (emulator, api, expected) in [
            ("", "cuda", Chosen::Cuda),
            ("folder", "", Chosen::Emulator("folder".into())),
            ("folder", "cuda", Chosen::Emulator("folder".into())),
        ] {
            let found = chosen(emulator, api).map_err(|error| error.to_string());
            match cfg!(feature = "cuda") {
                true => assert_eq!(found.unwrap(), Some(expected)),
                false => {
                    let error = found.unwrap_err();
                    let variable = if emulator.is_empty() { API } else { EMULATOR };
                    assert!(
                        error.contains(variable) && error.contains("feature `cuda`"),
                        "{error}"
                    );
                }
            }
        }
        for (emulator, api) in [("", "vulkan"), ("", "CUDA"), ("folder", "metal")] {
            let error = chosen(emulator, api).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("{API} is {api:?}, but must be cuda: set it to that, or unset it")
            );
        }
    }

    #[test]
    fn a_gpu_with_another_driver_counts_once() {
        let card = |name: &str, place: &str, vendor| AdapterInfo {
            name: name.into(),
            device_pci_bus_id: place.into(),
            vendor,
            ..AdapterInfo::new(DeviceType::DiscreteGpu, Backend::Vulkan)
        };
        let others = [card("a", "0000:0a:00.0", 1), card("b", "", 1), card("llvmpipe", "", 2)];
        for (cuda, expected) in [
            (card("x", "00000000:0A:00.0", 1), true),
            (card("a", "0000:0b:00.0", 1), false),
            (card("a", "0000:0a:00.0", 2), false),
            (card("b", "0000:0b:00.0", 1), true),
            (card("b", "", 1), true),
            (card("c", "", 1), false),
        ] {
            assert_eq!(is_offered_by(&cuda, &others), expected, "{cuda:?}");
        }
    }
}
