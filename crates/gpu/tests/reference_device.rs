//! A GPU and the slow reference compute the same bits for every architecture that GPUs compute and
//! every type. What they do not compute is refused.

use crate::common::{configs, gpu, gpu_number};
use crate::device::{Gpu, REFUSED};
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_formats::checkpoint::random::RandomTensors;
use forerun_formats::{Architecture, BlockType, CacheType, ModelTypes, TensorSource, WeightType};
use forerun_gpu::{AdapterKind, GpuDevice, GpuLoadError, GpuOptions, GpuWeights};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use forerun_reference::ReferenceDevice;
use forerun_suite::{Device, Models, all_layers};
use std::process::Command;
use std::sync::Arc;

forerun_suite::reference_device!(Gpu);

/// Returns what of a model a GPU does not compute, if there is something.
pub(crate) fn unsupported(
    device: &Arc<GpuDevice>,
    architecture: &Architecture,
    source: &dyn TensorSource,
    types: impl Into<ModelTypes>,
) -> Option<String> {
    match GpuWeights::load_architecture(device, architecture.clone(), source, types) {
        Err(GpuLoadError::Unsupported { piece }) => Some(piece),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    }
}

/// Only examples with odd sizes. The same families with the next larger sizes are computed.
#[test]
fn families_with_odd_sizes_are_refused_by_name() {
    let Some(device) = gpu() else { return };
    let refused = configs().into_iter().filter_map(|config| {
        let architecture = config.architecture();
        let tensors = RandomTensors::new(&architecture, 5);
        Some((config.family, unsupported(device, &architecture, &tensors, WeightType::F32)?))
    });
    let refused: Vec<_> = refused.collect();
    assert_eq!(refused.len(), REFUSED.len(), "{refused:?}");
    for ((family, piece), (expected, reason)) in refused.into_iter().zip(REFUSED) {
        assert!(family == expected && piece.starts_with(reason), "{family}: {piece}");
    }
}

/// On a GPU whose kernels address 24 KiB of a buffer, the embedding and the head have three parts
/// each, and logits are computed 23 rows at a time.
#[test]
fn split_matrices_have_the_bits_of_the_reference() {
    if gpu().is_none() {
        return;
    }
    let options = GpuOptions { max_binding_bytes: 24 << 10, ..GpuOptions::default() };
    let device = Gpu(GpuDevice::open_with(gpu_number(), options).unwrap());
    let architecture = configs()[0].architecture();
    let tensors = RandomTensors::new(&architecture, 5);
    let models = Models::load(&device, &architecture, &tensors, WeightType::F32, ());
    models.assert_same(&device, device.best(), (&all_layers(&architecture), 40), "split matrices");
    let tokens: Vec<TokenId> = (0..3).collect();
    let tree = TokenTree::chain(&(0..45).collect::<Vec<TokenId>>());
    let request = ForwardRequest::new(SequenceId(0), &tokens, &tree);
    let found = CachedTransformer::new(device.model(&models.weights, device.best()))
        .logits(&request)
        .unwrap()
        .logits;
    let reference = ReferenceDevice::new(Arc::clone(&models.reference));
    let expected = CachedTransformer::new(reference).logits(&request).unwrap().logits;
    assert_eq!(found.len(), 46 * architecture.vocab_size);
    assert!(found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
}

/// What a GPU does not compute is refused by name.
#[test]
fn other_types_are_refused_by_name() {
    let Some(device) = gpu() else { return };
    let architecture = configs()[0].architecture();
    let tensors = RandomTensors::new(&architecture, 5);
    let error = |types: ModelTypes| unsupported(device, &architecture, &tensors, types).unwrap();
    let in_blocks = error(WeightType::Quantized(BlockType::Q5_0).into());
    assert!(in_blocks.starts_with("weights in q5_0 (model.embed_tokens"), "{in_blocks}");
    for cache in [CacheType::Q8, CacheType::Q4] {
        let found = error(ModelTypes { cache: Some(cache), ..ModelTypes::default() });
        assert_eq!(found, format!("caches in {cache}"));
    }
}

/// A software driver runs 4, 8 or 16 invocations in lockstep, as a variable says that it reads when
/// a process starts. So the tests above run in processes of their own, but for the width that they
/// have anyway.
#[test]
fn subgroups_of_all_widths_have_the_bits_of_the_reference() {
    let Some(device) = gpu() else { return };
    if device.adapter().kind != AdapterKind::Software {
        return println!("skipped: the width of a GPU's subgroups cannot be chosen");
    }
    let own = device.adapter().subgroup_sizes;
    for width in [4, 8, 16].into_iter().filter(|&width| own != [width; 2]) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "reference_device::families_have_the_bits_of_the_reference",
                "--exact",
                "--nocapture",
            ])
            .env("LP_NATIVE_VECTOR_WIDTH", (32 * width).to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "subgroups of {width}: {text}");
        // Other software drivers do not know the variable.
        println!("{}", text.lines().find(|line| line.contains("subgroups of")).unwrap_or_default());
    }
}
