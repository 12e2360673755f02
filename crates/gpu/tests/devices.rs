//! Opening GPUs. Tests that need one are skipped with a message where there is none.

use crate::common::{configs, gpu, gpu_number};
use forerun_core::SequenceId;
use forerun_formats::WeightType;
use forerun_formats::checkpoint::random::RandomTensors;
use forerun_gpu::{GpuDevice, GpuError, GpuModel, GpuOptions, GpuWeights};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use std::sync::Arc;

#[test]
fn a_number_without_a_gpu_is_an_error_that_lists_the_others() {
    let adapters = GpuDevice::adapters().unwrap();
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
    let adapters = GpuDevice::adapters().unwrap();
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

/// Direct3D and Metal compile WGSL. Here a Vulkan driver does, which may round otherwise.
#[test]
fn kernels_that_the_driver_compiles_from_wgsl_give_about_the_same_numbers() {
    let Some(exact) = gpu() else { return };
    let options = GpuOptions { forbid_contraction: false, ..GpuOptions::default() };
    let plain = GpuDevice::open_with(gpu_number(), options).unwrap();
    if plain.adapter().backend == "CUDA" {
        return println!("skipped: with CUDA, kernels are never compiled otherwise");
    }
    assert!(!plain.forbids_contraction());
    println!("compiled from WGSL: {}", plain.probe());
    for (config, weights) in configs().into_iter().zip([WeightType::F32, WeightType::Bf16]) {
        let architecture = config.architecture();
        let tensors = RandomTensors::new(&architecture, 5);
        let tokens: Vec<u32> = (0..40).map(|token| token * 7 % 250).collect();
        let logits = |device: &Arc<GpuDevice>| {
            let loaded =
                GpuWeights::load_architecture(device, architecture.clone(), &tensors, weights);
            let model = GpuModel::new(Arc::new(loaded.unwrap()));
            let request = ForwardRequest::next_token(SequenceId(0), &tokens);
            CachedTransformer::new(model).logits(&request).unwrap().logits
        };
        let (expected, found) = (logits(exact), logits(&plain));
        let largest = expected.iter().fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
        for (expected, found) in expected.iter().zip(&found) {
            assert!((expected - found).abs() <= largest * 1e-2, "{expected}, {found}");
        }
    }
}
