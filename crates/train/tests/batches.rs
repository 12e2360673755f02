//! Batches: every token is a target once per epoch, and the order is a function of seed and step.
use std::path::Path;

use crate::common::{books, quiet, tokenizer, write_books};
use forerun_train::data::{Batches, Dataset, PrepareOptions, Split, Validation, bits_per_byte};
use proptest::prelude::*;

/// A small data set, in shards of an odd size.
fn dataset(folder: &Path, words: usize) -> Dataset {
    let training = write_books(&folder.join("training.txt"), &books(31, 2, words));
    let validation = write_books(&folder.join("validation.txt"), &books(32, 3, words));
    let tokenizer = tokenizer(folder, 1);
    let options = PrepareOptions {
        validation_files: vec![validation],
        shard_tokens: 333,
        ..PrepareOptions::default()
    };
    let folder = folder.join("set");
    Dataset::prepare(&[training], &tokenizer, &folder, &options, &mut quiet).unwrap()
}

/// A data set that all test cases share.
fn shared() -> &'static Dataset {
    static SHARED: std::sync::OnceLock<Dataset> = std::sync::OnceLock::new();
    SHARED.get_or_init(|| dataset(tempfile::tempdir().unwrap().path(), 400))
}

fn all(dataset: &Dataset, split: Split) -> Vec<u32> {
    let stream = dataset.tokens(split);
    let mut tokens = Vec::new();
    stream.read(0, stream.len() as usize, &mut tokens);
    tokens
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_epoch_visits_each_window_once(
        rows in 1_usize..7, context in 1_usize..90, seed: u64, epoch in 0_u64..1000, same: bool,
    ) {
        let tokens = all(shared(), Split::Training);
        let batches =
            Batches::new(shared(), rows, context, seed).unwrap().with_same_windows(same);
        let windows = batches.windows();
        prop_assert!(windows as usize * context + 2 * context > tokens.len());
        // Collect the epoch's windows from all batches that contain some.
        let (first, last) = (epoch * windows, (epoch + 1) * windows);
        let mut found = Vec::new();
        for step in first / rows as u64..last.div_ceil(rows as u64) {
            let batch = batches.batch(step);
            prop_assert_eq!((batch.rows, batch.context), (rows, context));
            let inputs = batch.inputs.chunks(context);
            for (row, (inputs, targets)) in inputs.zip(batch.targets.chunks(context)).enumerate() {
                prop_assert_eq!(&inputs[1..], &targets[..context - 1]);
                if (first..last).contains(&(step * rows as u64 + row as u64)) {
                    found.push([inputs, &targets[context - 1..]].concat());
                }
            }
        }
        prop_assert_eq!(found.len() as u64, windows);
        // They are the windows of the text, starting at some offset, or at its beginning.
        found.sort();
        let fits = (0..if same { 1 } else { context }).any(|offset| {
            let cut = |window: usize| tokens[offset + window * context..][..=context].to_vec();
            let mut expected: Vec<Vec<u32>> = (0..windows as usize).map(cut).collect();
            expected.sort();
            expected == found
        });
        prop_assert!(fits);
    }

    #[test]
    fn a_batch_is_a_function_of_seed_and_step(
        steps in prop::collection::vec(0_u64..10_000, 1..20), seed: u64,
    ) {
        let batches = Batches::new(shared(), 4, 16, seed).unwrap();
        for step in steps {
            let fresh = Batches::new(shared(), 4, 16, seed).unwrap();
            prop_assert_eq!(batches.batch(step), fresh.batch(step));
        }
    }
}

#[test]
fn batches_differ_between_seeds_and_epochs() {
    let batch = |seed, step| Batches::new(shared(), 4, 16, seed).unwrap().batch(step);
    assert_ne!(batch(1, 0), batch(2, 0));
    let batches = Batches::new(shared(), 1, 16, 1).unwrap();
    assert_ne!(batch(1, 0), batch(1, batches.epoch_steps()));
    assert_eq!(batches.epoch_steps(), batches.windows());
    let four_rows = Batches::new(shared(), 4, 16, 1).unwrap();
    assert_eq!(four_rows.epoch_steps(), four_rows.windows().div_ceil(4));
    // The largest step does not overflow.
    assert_eq!(four_rows.batch(u64::MAX).inputs.len(), 64);
}

#[test]
fn validation_windows_are_fixed_and_spread() {
    let tokens = all(shared(), Split::HeldOut);
    for (context, max_tokens) in [(16, u64::MAX), (16, 320), (33, 1000), (7, 0), (500, 1)] {
        let windows = Validation::windows(shared(), context, max_tokens).unwrap();
        assert_eq!(windows, Validation::windows(shared(), context, max_tokens).unwrap());
        let targets = (windows.len() * context) as u64;
        assert!(targets <= max_tokens.max(context as u64));
        let mut from = 0;
        let mut positions = Vec::new();
        for window in &windows {
            let text = [&window.inputs[..1], &window.targets[..]].concat();
            assert_eq!(window.inputs[..], text[..context]);
            assert_eq!(window.target_bytes, shared().bytes_of(&window.targets));
            // The windows are in order, and no token is a target twice.
            let position = (from..tokens.len()).step_by(context);
            let position =
                position.into_iter().find(|&at| tokens[at..].starts_with(&text)).unwrap();
            positions.push(position);
            from = position + context;
        }
        if max_tokens == u64::MAX {
            assert_eq!(windows.len(), (tokens.len() - 1) / context);
            // Together, the targets are all tokens except the first one and the last few.
            let bytes: u64 = windows.iter().map(|window| window.target_bytes).sum();
            let end = windows.len() * context + 1;
            assert_eq!(bytes, shared().bytes_of(&tokens[1..end]));
        } else if windows.len() > 2 {
            let middle = positions[positions.len() / 2] as f64 / tokens.len() as f64;
            assert!((0.4..0.6).contains(&middle), "{middle}");
        }
    }
}

#[test]
fn short_held_out_text_is_one_window() {
    let tokens = all(shared(), Split::HeldOut);
    let windows = Validation::windows(shared(), 1 << 20, 1).unwrap();
    let [window] = &windows[..] else { panic!("{} windows", windows.len()) };
    assert_eq!(
        (&window.inputs[..], &window.targets[..]),
        (&tokens[..tokens.len() - 1], &tokens[1..])
    );
}

#[test]
fn bits_per_byte_of_a_fair_coin() {
    // Eight tokens of four bytes, each with a probability of one half.
    let bits = bits_per_byte(8.0 * std::f64::consts::LN_2, 32);
    assert!((bits - 0.25).abs() < 1e-12);
}

#[test]
fn too_little_text_is_rejected() {
    let tokens = shared().tokens(Split::Training).len() as usize;
    assert!(Batches::new(shared(), 1, tokens / 2, 0).is_ok());
    let error =
        |result: Result<_, forerun_train::data::DataError>| result.err().unwrap().to_string();
    let message = error(Batches::new(shared(), 1, tokens / 2 + 1, 0).map(|_| ()));
    assert!(message.contains("the training tokens of") && message.contains("too few"), "{message}");
    assert!(message.contains("a smaller `context`"), "{message}");
    assert!(error(Batches::new(shared(), 0, 4, 0).map(|_| ())).contains("`rows` is 0"));
    assert!(error(Batches::new(shared(), 4, 0, 0).map(|_| ())).contains("`context` is 0"));
}
