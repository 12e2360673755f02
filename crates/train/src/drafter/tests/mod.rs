//! Compares the training of each kind of drafter with a slow reference of its inference and with
//! finite differences, and overfits each on a short text.

mod inference;
mod learning;

use super::objective::Pair;
use super::target::Text;
use super::{Drafter, DrafterOptions, Target, TrainedDrafterKind};
use crate::data::Batch;
use candle_core::{Device, Tensor};
use forerun_formats::Config;
use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use std::path::Path;

const MASKS: usize = 3;

/// A target with random weights.
fn target(folder: &Path, seed: u64) -> Target {
    let config = Config { tie_word_embeddings: seed.is_multiple_of(2), ..example_config() };
    write_random_checkpoint(folder, &config, seed, RandomDtype::F32).unwrap();
    Target::open(folder).unwrap()
}

/// A target with random weights for a kind of drafter.
fn target_of(kind: TrainedDrafterKind, folder: &Path, seed: u64) -> Target {
    let target = target(folder, seed);
    match kind {
        TrainedDrafterKind::Dflash => target.with_feature_layers(&[1, 2]).unwrap(),
        TrainedDrafterKind::Dspark => target.with_feature_layers(&[1]).unwrap(),
        _ => target,
    }
}

fn token(index: usize) -> u32 {
    ((index * 7919 + 13) % 259) as u32
}

/// A text of arbitrary tokens.
fn batch(rows: usize, context: usize) -> Batch {
    let inputs = (0..rows * context).map(token).collect();
    Batch { inputs, targets: (1..=rows * context).map(token).collect(), rows, context }
}

fn text(target: &Target, rows: usize, context: usize) -> Text {
    target.read(&batch(rows, context)).unwrap()
}

/// A drafter with all parameters moved away from their initial values.
fn drafter(kind: TrainedDrafterKind, target: &Target) -> Drafter {
    let drafter = Drafter::random(&DrafterOptions::of(kind, MASKS), target, 5).unwrap();
    for (number, parameter) in drafter.parameters().iter().enumerate() {
        let values = parameter.values.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let shift = |index: usize| (token(index * 31 + number) as f32 / 259.0 - 0.5) * 0.2;
        let moved = values.iter().enumerate().map(|(index, value)| value + shift(index));
        let shape = parameter.values.shape();
        let moved = Tensor::from_vec(moved.collect::<Vec<_>>(), shape, &Device::Cpu).unwrap();
        parameter.values.set(&moved).unwrap();
    }
    drafter
}

fn pair<'a>(drafter: &'a Drafter, target: &'a Target, options: &'a DrafterOptions) -> Pair<'a> {
    Pair { drafter, target, options }
}
