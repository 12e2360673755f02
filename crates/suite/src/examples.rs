//! Models for tests.

use crate::prelude::*;
use forerun_formats::checkpoint::gguf::write_gguf;
use forerun_formats::checkpoint::random::example_families;

/// The context length of the [`examples`].
pub const LONGEST_TEXT: usize = 800;

/// Returns a plain Llama model, then the features of other families: biases, norms of queries and
/// keys, sliding windows, scaled RoPE, experts, recurrent layers.
#[must_use]
pub fn examples() -> Vec<Config> {
    let all = [example_config()].into_iter().chain(example_families());
    all.map(|config| Config { max_position_embeddings: LONGEST_TEXT, ..config }).collect()
}

/// Writes a random checkpoint in f32, and opens it.
pub(crate) fn random_checkpoint(folder: &Path, config: &Config) -> Checkpoint {
    write_random_checkpoint(folder, config, 5, RandomDtype::F32).unwrap();
    Checkpoint::open(folder).unwrap()
}

/// Opens a GGUF file of a model with a mix of block types.
pub(crate) fn mixed_file(folder: &Path, config: &Config, mix: Mix) -> Checkpoint {
    let floats = random_checkpoint(folder, config);
    let file = folder.join("mixed.gguf");
    write_gguf(&floats, &file, mix, &[]).unwrap();
    Checkpoint::open(&file).unwrap()
}

/// Returns a configuration whose matrices have whole blocks of 256.
pub(crate) fn blocks_config() -> Config {
    Config {
        hidden_size: 256,
        intermediate_size: 512,
        num_attention_heads: 4,
        num_key_value_heads: 1,
        head_dim: 64,
        ..examples().remove(0)
    }
}

/// Returns a text of a vocabulary of 250 tokens. Texts with different steps differ early.
pub(crate) fn text(len: usize, step: u32) -> Vec<TokenId> {
    (0..len as u32).map(|index| index * step % 250).collect()
}

/// Makes a tree of nodes with these parents and tokens.
pub(crate) fn tree_of<const N: usize>(nodes: [(Option<usize>, TokenId); N]) -> TokenTree {
    let mut tree = TokenTree::new();
    for (parent, token) in nodes {
        tree.push(parent, token);
    }
    tree
}
