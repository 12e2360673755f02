//! Which GPUs may be used.

use crate::adapter::{AdapterKind, GpuAdapter};
use crate::arithmetic::Arithmetic;
use crate::device::{GpuDevice, GpuOptions};
use crate::error::GpuError;
use crate::pipeline_store::folder_from_environment;
use crate::probe::Probe;
use std::fmt;
use std::sync::Arc;

/// The environment variable that allows drivers which compute on the processor.
pub(crate) const SOFTWARE: &str = "FORERUN_GPU_SOFTWARE";

/// The environment variable that allows drivers with other bits.
pub(crate) const INEXACT: &str = "FORERUN_GPU_INEXACT";

/// Which GPUs may be used for models. By default, only hardware whose arithmetic has the defined
/// bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuRules {
    /// Whether drivers may be used that compute on the processor, such as lavapipe. They are for
    /// tests.
    pub software: bool,
    /// Whether drivers may be used that compute other bits than those that the guide defines.
    pub inexact: bool,
}

impl GpuRules {
    /// Returns the rules that the environment variables `FORERUN_GPU_SOFTWARE` and
    /// `FORERUN_GPU_INEXACT` set, each to 1.
    #[must_use]
    pub fn from_environment() -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| value == "1");
        Self { software: is_set(SOFTWARE), inexact: is_set(INEXACT) }
    }

    /// Opens a GPU, as [`GpuDevice::open`] does. Its compiled pipelines are kept in the user's
    /// folder of caches, or where the environment variable `FORERUN_GPU_CACHE` says.
    ///
    /// # Errors
    /// As [`GpuDevice::open`], and if the rules exclude the GPU.
    pub fn open(self, index: usize) -> Result<Arc<GpuDevice>, GpuError> {
        let adapters = GpuDevice::adapters()?;
        self.check_adapter(&adapters, index)?;
        let kind = adapters.get(index).map(|adapter| adapter.kind);
        let pipeline_folder = folder_from_environment(kind == Some(AdapterKind::Software));
        let options = GpuOptions { pipeline_folder, ..GpuOptions::default() };
        let device = GpuDevice::open_with(index, options)?;
        self.check_bits(&Examined::of(&device))?;
        Ok(device)
    }

    fn check_adapter(self, adapters: &[GpuAdapter], index: usize) -> Result<(), GpuError> {
        let is_software = |adapter: &GpuAdapter| adapter.kind == AdapterKind::Software;
        match adapters.get(index) {
            _ if self.software => Ok(()),
            Some(adapter) if !is_software(adapter) => Ok(()),
            software if adapters.iter().all(is_software) => {
                Err(GpuError::NoGpu { index, software: software.map(|it| it.name.clone()) })
            }
            Some(software) => Err(GpuError::Software { index, name: software.name.clone() }),
            // The error of opening it lists the others.
            None => Ok(()),
        }
    }

    fn check_bits(self, examined: &Examined) -> Result<(), GpuError> {
        let Examined { adapter, probe, forbids_contraction, .. } = examined;
        match self.inexact || probe.has_defined_bits() {
            true => Ok(()),
            false => Err(GpuError::OtherBits {
                adapter: adapter.name.clone(),
                found: probe.to_string(),
                lax_interface: (!forbids_contraction).then(|| adapter.backend.clone()),
            }),
        }
    }

    /// Checks that all GPUs compute the same bits, so that each can have a replica of a model.
    ///
    /// # Errors
    /// [`GpuError::DifferentBits`] with two GPUs whose arithmetic differs.
    pub fn check_replicas(devices: &[Arc<GpuDevice>]) -> Result<(), GpuError> {
        let Some((first, others)) = devices.split_first() else { return Ok(()) };
        let first = Examined::of(first);
        let mut others = others.iter().map(|device| Examined::of(device));
        match others.find(|other| !first.has_bits_of(other)) {
            Some(other) => {
                Err(GpuError::DifferentBits { first: first.to_string(), second: other.to_string() })
            }
            None => Ok(()),
        }
    }
}

/// What is known of a GPU's arithmetic.
struct Examined {
    adapter: GpuAdapter,
    probe: Probe,
    arithmetic: Arithmetic,
    forbids_contraction: bool,
}

impl Examined {
    fn of(device: &GpuDevice) -> Self {
        Self {
            adapter: device.adapter().clone(),
            probe: *device.probe(),
            arithmetic: device.arithmetic(),
            forbids_contraction: device.forbids_contraction(),
        }
    }

    /// Whether two GPUs have given the same results, and can be expected to give the same ones
    /// everywhere: because their shaders leave the driver no choice and it follows the rules, or
    /// because they are the same GPU with the same driver.
    fn has_bits_of(&self, other: &Self) -> bool {
        let follows_rules = |it: &Self| it.forbids_contraction && it.probe.has_defined_bits();
        let is_same_driver = self.adapter.name == other.adapter.name
            && self.adapter.backend == other.adapter.backend
            && self.adapter.driver == other.adapter.driver;
        self.arithmetic == other.arithmetic
            && self.probe.fingerprint == other.probe.fingerprint
            && (follows_rules(self) && follows_rules(other) || is_same_driver)
    }
}

impl fmt::Display for Examined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.adapter, self.probe, self.arithmetic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(index: usize, kind: AdapterKind) -> GpuAdapter {
        GpuAdapter {
            index,
            name: format!("card {index}"),
            backend: "Vulkan".into(),
            driver: "1.0".into(),
            kind,
            max_buffer_bytes: 1 << 30,
            max_binding_bytes: 1 << 30,
            subgroup_sizes: [32, 32],
        }
    }

    fn probe(has_defined_bits: bool, fingerprint: u64) -> Probe {
        Probe {
            contracts: !has_defined_bits,
            reorders: false,
            fma_is_fused: true,
            flushes_subnormals: false,
            functions_are_exact: true,
            fingerprint,
        }
    }

    #[test]
    fn software_drivers_are_used_only_if_they_are_allowed() {
        let check = |rules: GpuRules, kinds: &[AdapterKind], index| {
            let kinds = kinds.iter().enumerate();
            let adapters: Vec<_> = kinds.map(|(index, kind)| adapter(index, *kind)).collect();
            rules.check_adapter(&adapters, index).map_err(|error| error.to_string())
        };
        use AdapterKind::{Discrete, Software};
        let (strict, tests) =
            (GpuRules::default(), GpuRules { software: true, ..Default::default() });
        assert_eq!(check(strict, &[Discrete, Software], 0), Ok(()));
        for (kinds, words) in [
            (&[Software][..], ["no GPU was found for gpu:0", "card 0", SOFTWARE]),
            (&[Software, Discrete], ["gpu:0 is card 0", "the others", SOFTWARE]),
        ] {
            assert!(check(tests, kinds, 0).is_ok());
            let error = check(strict, kinds, 0).unwrap_err();
            assert!(words.iter().all(|words| error.contains(words)), "{error}");
        }
        for kinds in [&[][..], &[Software]] {
            let error = check(strict, kinds, 7).unwrap_err();
            assert!(error.contains("no GPU was found") && !error.contains(SOFTWARE), "{error}");
        }
        // A number that is too large is the error of opening it, which lists the others.
        assert_eq!(check(strict, &[Discrete], 3), Ok(()));
    }

    #[test]
    fn drivers_with_other_bits_are_used_only_if_they_are_allowed() {
        let strict = GpuRules::default();
        let card = |has_defined_bits, forbids_contraction| Examined {
            adapter: GpuAdapter { backend: "Metal".into(), ..adapter(0, AdapterKind::Discrete) },
            probe: probe(has_defined_bits, 1),
            arithmetic: Arithmetic::Exact,
            forbids_contraction,
        };
        assert!(strict.check_bits(&card(true, true)).is_ok());
        assert!(strict.check_bits(&card(true, false)).is_ok());
        for (forbids_contraction, advice) in [(true, "update the driver"), (false, "through Metal")]
        {
            let error =
                strict.check_bits(&card(false, forbids_contraction)).unwrap_err().to_string();
            let words = ["card 0", "contracts", advice, INEXACT];
            assert!(words.iter().all(|words| error.contains(words)), "{error}");
        }
        let inexact = GpuRules { inexact: true, ..strict };
        assert!(inexact.check_bits(&card(false, true)).is_ok());
    }

    #[test]
    fn replicas_need_equal_bits() {
        let card = |index| adapter(index, AdapterKind::Discrete);
        let twin = GpuAdapter { index: 1, ..card(0) };
        let examined = |(adapter, probe), forbids_contraction| Examined {
            adapter,
            probe,
            arithmetic: Arithmetic::Exact,
            forbids_contraction,
        };
        let equal = |one, other| examined(one, true).has_bits_of(&examined(other, true));
        let exact = || (card(0), probe(true, 1));
        assert!(examined(exact(), false).has_bits_of(&examined(exact(), false)));
        let tensor = |fingerprint| Examined {
            arithmetic: Arithmetic::Tensor { capability: 90, fingerprint },
            ..examined(exact(), true)
        };
        assert!(tensor(1).has_bits_of(&tensor(1)));
        assert!(!tensor(1).has_bits_of(&tensor(2)));
        assert!(!tensor(1).has_bits_of(&examined(exact(), true)));
        let another = (card(1), probe(true, 1));
        assert!(!examined(exact(), true).has_bits_of(&examined(another, false)));
        assert!(equal((card(0), probe(true, 1)), (card(1), probe(true, 1))));
        assert!(!equal((card(0), probe(true, 1)), (card(1), probe(true, 2))));
        assert!(!equal((card(0), probe(false, 1)), (card(1), probe(false, 1))));
        assert!(equal((card(0), probe(false, 1)), (twin.clone(), probe(false, 1))));
        let updated = GpuAdapter { driver: "1.1".into(), ..twin };
        assert!(!equal((card(0), probe(false, 1)), (updated, probe(false, 1))));
    }
}
