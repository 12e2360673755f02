//! Passes that come again: with CUDA, most of them are graphs. Their bits stay those of the
//! reference, also when other passes run in between.

use crate::common::{configs, gpu, gpu_number};
use crate::device::{Gpu, config_of};
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_formats::checkpoint::random::{RandomTensors, example_config};
use forerun_formats::{Config, Family, WeightType};
use forerun_gpu::{CudaLaunches, GpuDevice, GpuModel};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use forerun_reference::ReferenceDevice;
use forerun_suite::Models;
use std::sync::Arc;

/// The same model on a GPU and as the reference.
struct Pair {
    gpu: CachedTransformer<GpuModel>,
    reference: CachedTransformer<ReferenceDevice>,
}

impl Pair {
    fn load(device: &Arc<GpuDevice>, config: &Config, types: WeightType, seed: u64) -> Self {
        let architecture = config.architecture();
        let tensors = RandomTensors::new(&architecture, seed);
        let device = Gpu(Arc::clone(device));
        let models = Models::load(&device, &architecture, &tensors, types, ());
        Self {
            gpu: CachedTransformer::new(GpuModel::new(models.weights)),
            reference: CachedTransformer::new(ReferenceDevice::new(models.reference)),
        }
    }

    /// Asserts that all rows after `tokens` have the same bits.
    fn check(&mut self, sequence: u64, tokens: &[TokenId], tree: &TokenTree) {
        let request = ForwardRequest::new(SequenceId(sequence), tokens, tree);
        let [found, expected] = [
            self.gpu.logits(&request).unwrap().logits,
            self.reference.logits(&request).unwrap().logits,
        ]
        .map(|logits| logits.into_iter().map(f32::to_bits).collect::<Vec<_>>());
        let rows = tree.len() + 1;
        assert!(found == expected, "{rows} rows after {} tokens", tokens.len());
    }
}

fn text(len: usize, step: u32) -> Vec<TokenId> {
    (0..len as u32).map(|at| (at * step + at / 5) % 250).collect()
}

/// Returns what the GPU was asked to run since `before`: single operations and graphs. `None`
/// without graphs.
fn launches_since(device: &GpuDevice, before: Option<&CudaLaunches>) -> Option<[u64; 2]> {
    let (before, after) = (before?, device.cuda_launches()?);
    if let Some(reason) = after.no_graphs {
        assert_eq!((reason.as_str(), after.graphs), ("FORERUN_CUDA_GRAPHS is 0", 0));
        return None;
    }
    Some([after.operations - before.operations, after.graphs - before.graphs])
}

/// Passes of one to eight rows follow one another, as chains and as trees, of which a part is kept.
/// The context grows, also to more pages and to more splits of attention, and another text goes on
/// from an earlier place.
fn check_decoding(config: &Config, types: WeightType, start: usize) {
    let Some(device) = gpu() else { return };
    let mut pair = Pair::load(device, config, types, 5);
    let before = device.cuda_launches();
    let (one, mut other) = (text(start + 90, 7), text(start + 90, 7));
    other[start + 2..].iter_mut().for_each(|token| *token = (*token + 3) % 250);
    let none = TokenTree::new();
    for round in 0..4 {
        let mut held = start + round % 2;
        for (step, rows) in [1, 2, 3, 4, 1, 5, 6, 7, 8, 1, 1, 4].into_iter().enumerate() {
            let text = if (step + round) % 4 == 3 { &other } else { &one };
            let mut tree = TokenTree::chain(&text[held..held + rows - 1]);
            if step % 3 == 2 {
                // Siblings come before the chain, so that accepted rows are moved.
                tree = TokenTree::new();
                tree.push(None, 249);
                tree.extend_chain(None, &text[held..held + rows - 1]);
            }
            pair.check(0, &text[..held], &tree);
            // One or several tokens are accepted.
            held += 1 + step % rows;
        }
        pair.check(1, &one[..40 + round], &none);
    }
    for len in start + 60..start + 66 {
        pair.check(0, &one[..len], &none);
    }
    if let Some([operations, graphs]) = launches_since(device, before.as_ref()) {
        println!("{}: {graphs} graphs, {operations} single operations", config.family);
        assert!(graphs >= 10, "{graphs} graphs, {operations} single operations");
    }
}

#[test]
fn decoding_has_the_same_bits_as_its_contexts_grow() {
    for (family, types) in [
        (Family::Llama, WeightType::F32),
        (Family::Gemma3, WeightType::Bf16),
        (Family::Qwen2Moe, WeightType::INT8),
        (Family::Qwen3Next, WeightType::F32),
        (Family::DeepseekV3, WeightType::F16),
    ] {
        let config = match family {
            Family::Llama => configs().remove(0),
            _ => config_of(family),
        };
        check_decoding(&config, types, 50);
    }
}

/// Attention takes 256 positions at a time.
#[test]
fn decoding_has_the_same_bits_when_attention_has_more_parts() {
    check_decoding(&configs()[0], WeightType::F32, 240);
}

/// A model takes the place of another one of the same shape, so that its memory may have the same
/// addresses.
#[test]
fn models_that_come_and_go_have_their_own_bits() {
    let Some(device) = gpu() else { return };
    let config = configs().remove(0);
    let before = device.cuda_launches();
    let mut lasting = Pair::load(device, &config, WeightType::F32, 1);
    let tokens = text(30, 11);
    let none = TokenTree::new();
    for seed in 2..5 {
        let mut passing = Pair::load(device, &config, WeightType::F32, seed);
        for len in 10..15 {
            passing.check(0, &tokens[..len], &none);
            lasting.check(seed, &tokens[..len], &none);
        }
    }
    if let Some([_, graphs]) = launches_since(device, before.as_ref()) {
        assert!(graphs >= 15, "{graphs} graphs");
    }
}

/// A token of a model with 30 layers is two submissions, each of which is one launch.
#[test]
fn a_decoded_token_is_two_launches() {
    if gpu().is_none() {
        return;
    }
    let device = GpuDevice::open(gpu_number()).unwrap();
    let config = Config { num_hidden_layers: 30, ..example_config() };
    let mut pair = Pair::load(&device, &config, WeightType::F32, 5);
    let (tokens, none) = (text(12, 7), TokenTree::new());
    pair.check(0, &tokens[..4], &none);
    for len in 5..=tokens.len() {
        let before = device.cuda_launches();
        pair.check(0, &tokens[..len], &none);
        let dispatches = pair.gpu.device().last_cost().dispatches;
        assert_eq!(dispatches, 10 * 30 + 3);
        if let Some([operations, graphs]) = launches_since(&device, before.as_ref()) {
            println!("a token: {operations} single operations, {graphs} graphs");
            match len {
                // The logits and what says whether keys and values fit are copied.
                5 => assert_eq!([operations, graphs], [dispatches as u64 + 2, 0]),
                _ => assert_eq!([operations, graphs], [0, 2]),
            }
        }
    }
}
