//! The engine computes the same logits as the trainer, from the weights that the trainer exports.

use candle_core::Device;
use forerun_core::SequenceId;
use forerun_cpu::{Team, Transformer, Weights};
use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_formats::{Checkpoint, Config};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use forerun_train::{Dtype, Llama, Targets, export};
use std::path::Path;
use std::sync::Arc;

const CONTEXT: usize = 75;

fn configs() -> Vec<Config> {
    let base = Config { max_position_embeddings: 100, ..example_config() };
    vec![
        Config { tie_word_embeddings: true, ..base.clone() },
        Config { tie_word_embeddings: false, rope_theta: 500_000.0, ..base.clone() },
        Config { num_attention_heads: 6, num_key_value_heads: 2, head_dim: 10, ..base },
    ]
}

fn token(index: usize, config: &Config) -> u32 {
    ((index * 7919 + 13) % config.vocab_size) as u32
}

/// Computes logits, `[rows, vocabulary]`, with the engine: each row in a separate call with its
/// prefix.
fn engine_logits(folder: &Path, tokens: &[u32]) -> Vec<Vec<f32>> {
    let weights = Arc::new(Weights::load(&Checkpoint::open(folder).unwrap()).unwrap());
    let team = Arc::new(Team::unpinned(1).unwrap());
    let mut model = CachedTransformer::new(Transformer::new(weights, team));
    let mut row = |end: usize| {
        model.logits(&ForwardRequest::next_token(SequenceId(0), &tokens[..end])).unwrap().logits
    };
    (1..=tokens.len()).map(&mut row).collect()
}

fn trainer_logits(model: &Llama, tokens: &[u32]) -> Vec<Vec<f32>> {
    let hidden = model.hidden(tokens, CONTEXT).unwrap();
    let normed = model.apply_final_norm(&hidden).unwrap();
    let size = (tokens.len(), model.config().hidden_size);
    let normed = candle_core::Tensor::from_vec(normed, size, &Device::Cpu).unwrap();
    normed.matmul(&model.head_weights().t().unwrap()).unwrap().to_vec2().unwrap()
}

#[test]
fn the_engine_computes_the_trainers_logits() {
    for config in configs() {
        let folder = tempfile::tempdir().unwrap();
        // The weights are further from their initial values than those of `Llama::random`, and
        // there is a tokenizer.
        write_random_checkpoint(folder.path(), &config, 3, RandomDtype::F32).unwrap();
        let model = Llama::load(&Checkpoint::open(folder.path()).unwrap()).unwrap();
        let written = tempfile::tempdir().unwrap();
        export(&model, &folder.path().join("tokenizer.json"), written.path(), Dtype::F32).unwrap();
        let read_back = Checkpoint::open(written.path()).unwrap();
        assert_eq!(read_back.config(), model.config());
        let tokens: Vec<u32> = (0..2 * CONTEXT).map(|index| token(index, &config)).collect();
        let trainer = trainer_logits(&model, &tokens);
        for (sequence, tokens) in tokens.chunks(CONTEXT).enumerate() {
            let engine = engine_logits(written.path(), tokens);
            for (row, engine) in engine.iter().enumerate() {
                for (a, b) in engine.iter().zip(&trainer[sequence * CONTEXT + row]) {
                    assert!((a - b).abs() < 1e-4, "row {row}: {a} against {b}");
                }
            }
        }
    }
}

#[test]
fn the_loss_matches_the_logits() {
    let config = &configs()[0];
    let model = Llama::random(config, 5).unwrap();
    let tokens: Vec<u32> = (0..CONTEXT).map(|index| token(index, config)).collect();
    let targets: Vec<u32> = (1..=CONTEXT).map(|index| token(index, config)).collect();
    let hidden = model.hidden(&tokens, CONTEXT).unwrap();
    let (_, parts) = model.loss(&hidden, Targets::mean_of(targets.clone()), false).unwrap();
    let nll = |(row, &target): (&Vec<f32>, &u32)| {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        sum.ln() - f64::from(row[target as usize])
    };
    let expected: f64 = trainer_logits(&model, &tokens).iter().zip(&targets).map(nll).sum();
    assert!((parts.loss - expected / CONTEXT as f64).abs() < 1e-5);
}
