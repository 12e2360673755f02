//! Multi-head latent attention.

/// The sizes of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).
///
/// A token's keys and values are compressed to one latent vector, `rank` numbers, which all heads share. Each
/// head expands it by matrices of its own: `key = up_k · latent` and `value = up_v · latent`. A part of each
/// query and key has RoPE instead, and this part of the key is the same for all heads.
///
/// Devices absorb the expansion ("absorbed" form in the paper): as `query · (up_k · latent) = (up_kᵀ · query) · latent`,
/// and as the expansion of values can follow their weighted sum, each head attends to the same cached row,
/// `[rotated key, latent]`. That is attention with one key head of `rope_dim + rank` numbers whose last `rank`
/// numbers are the value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latent {
    /// Width of the latent vector from which queries are expanded; `None` if they are projected in one step.
    pub query_rank: Option<usize>,
    /// Width of the latent vector of keys and values.
    pub rank: usize,
    /// The part of a head's queries and keys without RoPE.
    pub plain_dim: usize,
    /// The part of a head's queries and keys with RoPE. It is even.
    pub rope_dim: usize,
    /// Width of a head's values.
    pub value_dim: usize,
    /// The constant that the norms of latent vectors add to the mean square.
    pub norm_epsilon: f32,
}

impl Latent {
    /// Returns the width of a head's queries before they are absorbed.
    #[must_use]
    pub fn query_dim(&self) -> usize {
        self.plain_dim.saturating_add(self.rope_dim)
    }

    /// Returns the number of cached numbers of a token: the width of keys in the absorbed form.
    #[must_use]
    pub fn key_dim(&self) -> usize {
        self.rank.saturating_add(self.rope_dim)
    }
}
