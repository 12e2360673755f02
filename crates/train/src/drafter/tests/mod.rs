//! Each drafter against a slow, plain computation of what it does when it drafts, against finite
//! differences, and on a text that it can learn by heart.

#![expect(clippy::unwrap_used, reason = "tests")]

mod inference;
mod learning;

use super::objective::Pair;
use super::target::Text;
use super::{Drafter, DrafterOptions, Target, TrainedDrafterKind};
use crate::data::Batch;
use candle_core::{Device, Tensor};
use forerun_model::Config;
use forerun_model::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use std::path::Path;

const MASKS: usize = 3;

/// A random target.
fn target(folder: &Path, seed: u64) -> Target {
    let config = Config { tie_word_embeddings: seed.is_multiple_of(2), ..example_config() };
    write_random_checkpoint(folder, &config, seed, RandomDtype::F32).unwrap();
    Target::open(folder).unwrap()
}

fn token(place: usize) -> u32 {
    ((place * 7919 + 13) % 259) as u32
}

/// A text of tokens that mean nothing.
fn batch(rows: usize, context: usize) -> Batch {
    let inputs = (0..rows * context).map(token).collect();
    Batch { inputs, targets: (1..=rows * context).map(token).collect(), rows, context }
}

fn text(target: &Target, rows: usize, context: usize) -> Text {
    target.read(&batch(rows, context)).unwrap()
}

/// A drafter whose parameters are all away from their first values.
fn drafter(kind: TrainedDrafterKind, target: &Target) -> Drafter {
    let drafter = Drafter::random(kind, MASKS, target, 5).unwrap();
    for (number, parameter) in drafter.parameters().iter().enumerate() {
        let values = parameter.values.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let shift = |place: usize| (token(place * 31 + number) as f32 / 259.0 - 0.5) * 0.2;
        let moved = values.iter().enumerate().map(|(place, value)| value + shift(place));
        let shape = parameter.values.shape();
        let moved = Tensor::from_vec(moved.collect::<Vec<_>>(), shape, &Device::Cpu).unwrap();
        parameter.values.set(&moved).unwrap();
    }
    drafter
}

fn pair<'a>(drafter: &'a Drafter, target: &'a Target, options: &'a DrafterOptions) -> Pair<'a> {
    Pair { drafter, target, options }
}
