//! Writes a pair of random models that agree on some tokens, for measurements without a trained pair:
//! `cargo run --release -p forerun-model --example made_pair -- FOLDER LAYERS EXTRA EPSILON`.
//!
//! The target is the drafter with EXTRA layers behind its LAYERS, which count EPSILON times: the less,
//! the more often both agree. Hidden size 1024, 8,192 tokens; FOLDER/target and FOLDER/drafter still
//! need some model's tokenizer beside them.

use forerun_model::checkpoint::random::{example_config, write_random_pair};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, layers, extra, epsilon] = &arguments[..] else {
        return Err(
            "give a folder, the drafter's layers, the target's further layers, and how much \
                    these count"
                .into(),
        );
    };
    let mut config = example_config();
    config.hidden_size = 1024;
    config.intermediate_size = 2816;
    config.num_attention_heads = 16;
    config.num_key_value_heads = 16;
    config.head_dim = 64;
    config.vocab_size = 8192;
    config.max_position_embeddings = 1024;
    config.num_hidden_layers = layers.parse()?;
    let (target, drafter) = (Path::new(folder).join("target"), Path::new(folder).join("drafter"));
    write_random_pair(&target, &drafter, &config, extra.parse()?, epsilon.parse()?, 1)?;
    Ok(())
}
