//! The contents of caches, for tests.

use crate::cpu_pages::CpuPages;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_model::{CachedTransformer, Forward};

/// Returns the tokens and the tree of a sequence's cache, and the bits of each layer's keys and
/// values, slot by slot. Tests compare caches with it.
#[must_use]
pub fn snapshot<F: Forward<Storage = CpuPages>>(
    model: &CachedTransformer<F>,
    sequence: SequenceId,
) -> Option<(Vec<TokenId>, TokenTree, Vec<Vec<u32>>)> {
    let cache = model.cache(sequence)?;
    let index = cache.index();
    let bits = model.pool().storage().bits(cache.table(), 0..index.slots());
    Some((index.prefix().to_vec(), index.tree().clone(), bits))
}
