//! Opening GPUs. Tests that need one are skipped with a message where there is none.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_gpu::{GpuDevice, GpuError};

#[test]
fn a_number_without_a_gpu_is_an_error_that_lists_the_others() {
    let adapters = GpuDevice::adapters();
    let error = GpuDevice::open(adapters.len()).err().unwrap();
    assert!(matches!(error, GpuError::NoAdapter { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("no GPU {}", adapters.len())), "{text}");
    for adapter in adapters {
        assert!(text.contains(&adapter.name), "{text}");
    }
}

#[test]
fn every_gpu_opens_and_is_probed() {
    let adapters = GpuDevice::adapters();
    if adapters.is_empty() {
        println!("skipped: there is no GPU and no software driver");
    }
    for adapter in adapters {
        let device = GpuDevice::open(adapter.index).unwrap();
        println!("{adapter}, driver {}: {:?}", adapter.driver, device.probe());
        assert_eq!(*device.adapter(), adapter);
        assert!(!device.forbids_contraction() || device.probe().has_defined_bits());
    }
}
