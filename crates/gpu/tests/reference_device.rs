//! A GPU and the slow reference compute the same bits for every architecture that GPUs compute and every type, in
//! passes over several sequences, trees, features and layer groups.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{configs, gpu, gpu_number};
use crate::comparison::{TYPES, all_layers, assert_same};
use crate::models::Models;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_formats::checkpoint::gguf::write_gguf;
use forerun_formats::checkpoint::random::{RandomDtype, RandomTensors, write_random_checkpoint};
use forerun_formats::{
    BlockType, CacheType, Checkpoint, Config, Family, FeatureSource, Mix, ModelTypes, WeightType,
};
use forerun_gpu::{AdapterKind, GpuDevice, GpuLoadError, GpuOptions};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use forerun_reference::ReferenceDevice;
use std::process::Command;
use std::sync::Arc;

/// The examples that GPUs do not compute, and how the reason begins.
const REFUSED: [(Family, &str); 4] = [
    (Family::Gemma4, "a matrix with 22 inputs, no multiple of 4"),
    (Family::DeepseekV3, "heads of 45 numbers in attention"),
    (Family::Glm4MoeLite, "a matrix with 18 inputs, no multiple of 4"),
    (Family::Qwen35, "a matrix with 27 inputs, no multiple of 4"),
];

#[test]
fn families_have_the_bits_of_the_reference_or_are_refused() {
    let Some(device) = gpu() else { return };
    let (mut computed, mut refused) = (Vec::new(), Vec::new());
    for (number, config) in configs().into_iter().enumerate() {
        let architecture = config.architecture();
        let tensors = RandomTensors::new(&architecture, 5);
        // The plain model in all types; the others take turns.
        let types = TYPES.into_iter().cycle().skip(number);
        for weight_type in types.take(if number == 0 { TYPES.len() } else { 1 }) {
            match Models::load(device, &architecture, &tensors, weight_type) {
                Ok(models) => {
                    let name = format!("{} ({number}) in {weight_type}", config.family);
                    assert_same(&models, &all_layers(&architecture), 40, &name);
                    computed.push(name);
                }
                Err(GpuLoadError::Unsupported { piece }) => {
                    refused.push((config.family, piece));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    println!("computed: {computed:#?}\nrefused: {refused:#?}");
    // Only examples with odd sizes. The same families with the next larger sizes are computed.
    let is_expected =
        |((family, piece), (expected, reason)): (&(Family, String), (Family, &str))| {
            *family == expected && piece.starts_with(reason)
        };
    assert_eq!(refused.len(), REFUSED.len());
    assert!(refused.iter().zip(REFUSED).all(is_expected));
}

#[test]
fn all_types_of_caches_have_the_bits_of_the_reference() {
    let Some(device) = gpu() else { return };
    let architecture = configs()[0].architecture();
    let tensors = RandomTensors::new(&architecture, 5);
    for cache in [CacheType::F32, CacheType::F16, CacheType::Bf16] {
        let types = ModelTypes { cache: Some(cache), ..ModelTypes::default() };
        let models = Models::load(device, &architecture, &tensors, types).unwrap();
        assert_same(&models, &FeatureSource::LastHidden, 40, &format!("a cache in {cache}"));
    }
}

/// Stored blocks stay as they are, and a mix of llama.cpp has several types in a projection. Rows of 288 inputs end
/// within a block.
#[test]
fn blocks_of_gguf_files_have_the_bits_of_the_reference() {
    let Some(device) = gpu() else { return };
    let config = Config {
        hidden_size: 256,
        intermediate_size: 512,
        num_attention_heads: 4,
        num_key_value_heads: 1,
        head_dim: 64,
        ..configs().remove(0)
    };
    let folder = tempfile::tempdir().unwrap();
    write_random_checkpoint(folder.path(), &config, 5, RandomDtype::F32).unwrap();
    let floats = Checkpoint::open(folder.path()).unwrap();
    let file = folder.path().join("mixed.gguf");
    write_gguf(&floats, &file, Mix::Q4_K_M, &[]).unwrap();
    let mixed = Checkpoint::open(&file).unwrap();
    let architecture = mixed.architecture();
    let models = Models::load(device, architecture, &mixed, ModelTypes::default()).unwrap();
    assert_same(&models, &all_layers(architecture), 40, "a mix");
    // Quantised at load, with rows that end within a block.
    let config = Config { intermediate_size: 288, ..config };
    let architecture = config.architecture();
    let tensors = RandomTensors::new(&architecture, 7);
    for block_type in [BlockType::Q8_0, BlockType::Q4_K, BlockType::Q6_K] {
        let weights = WeightType::Quantized(block_type);
        let models = Models::load(device, &architecture, &tensors, weights).unwrap();
        assert_same(&models, &all_layers(&architecture), 40, &block_type.to_string());
    }
}

/// On a GPU whose kernels address 24 KiB of a buffer, the embedding and the head have three parts each, and logits are
/// computed 23 rows at a time.
#[test]
fn split_matrices_have_the_bits_of_the_reference() {
    if gpu().is_none() {
        return;
    }
    let options = GpuOptions { max_binding_bytes: 24 << 10, ..GpuOptions::default() };
    let device = GpuDevice::open_with(gpu_number(), options).unwrap();
    let architecture = configs()[0].architecture();
    let tensors = RandomTensors::new(&architecture, 5);
    let models = Models::load(&device, &architecture, &tensors, WeightType::F32).unwrap();
    assert_same(&models, &all_layers(&architecture), 40, "split matrices");
    let tokens: Vec<TokenId> = (0..3).collect();
    let tree = TokenTree::chain(&(0..45).collect::<Vec<TokenId>>());
    let request = ForwardRequest::new(SequenceId(0), &tokens, &tree);
    let found = CachedTransformer::new(models.gpu()).logits(&request).unwrap().logits;
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
    let error = |types: ModelTypes| match Models::load(device, &architecture, &tensors, types) {
        Err(GpuLoadError::Unsupported { piece }) => piece,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("loaded in {types:?}"),
    };
    let in_blocks = error(WeightType::Quantized(BlockType::Q5_0).into());
    assert!(in_blocks.starts_with("weights in q5_0 (model.embed_tokens"), "{in_blocks}");
    let cache = error(ModelTypes { cache: Some(CacheType::Q8), ..ModelTypes::default() });
    assert_eq!(cache, "caches in q8");
}

/// Attention takes 256 positions at a time.
#[test]
fn texts_of_several_splits_have_the_bits_of_the_reference() {
    let Some(device) = gpu() else { return };
    let with_window = |config: &&Config| {
        let layers = config.architecture().layers;
        layers.iter().flat_map(|layer| &layer.attention).any(|layer| layer.window.is_some())
    };
    let configs = configs();
    let windowed = configs.iter().find(with_window).unwrap();
    for config in [&configs[0], windowed] {
        let mut architecture = config.architecture();
        for layer in architecture.layers.iter_mut().flat_map(|layer| &mut layer.attention) {
            layer.window = layer.window.map(|_| 300);
        }
        let tensors = RandomTensors::new(&architecture, 5);
        let models = Models::load(device, &architecture, &tensors, WeightType::F32).unwrap();
        assert_same(&models, &all_layers(&architecture), 600, &config.family.to_string());
    }
}

/// A software driver runs 4, 8 or 16 invocations in lockstep, as a variable says that it reads when a process starts.
/// So the tests above run in processes of their own, but for the width that they have anyway.
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
                "reference_device::families_have_the_bits_of_the_reference_or_are_refused",
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
