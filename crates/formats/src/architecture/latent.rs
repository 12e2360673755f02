//! Multi-head latent attention.

use crate::config::RopeScaling;

/// The sizes of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).
///
/// A token's keys and values are compressed to one latent vector, `rank` numbers, which all heads
/// share. Each head expands it by matrices of its own: `key = up_k · latent` and
/// `value = up_v · latent`. A part of each query and key has RoPE instead, and this part of the key
/// is the same for all heads.
///
/// Devices absorb the expansion ("absorbed" form in the paper): as
/// `query · (up_k · latent) = (up_kᵀ · query) · latent`, and as the expansion of values can follow
/// their weighted sum, each head attends to the same cached row, `[rotated key, latent]`. That is
/// attention with one key head of `rope_dim + rank` numbers whose last `rank` numbers are the
/// value.
///
/// They do so whatever the number of rows. Expanding would be faster for passes of hundreds of
/// rows, but the two ways round differently. The expansion is float under every weight type:
/// absorbing transposes the part of the keys, and blocks would have to be quantised again along the
/// other axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latent {
    /// Width of the latent vector from which queries are expanded; `None` if they are projected in
    /// one step.
    pub query_rank: Option<usize>,
    /// Width of the latent vector of keys and values.
    pub rank: usize,
    /// The part of a head's queries and keys without RoPE.
    pub plain_dim: usize,
    /// The part of a head's queries and keys with RoPE. It is even.
    pub rope_dim: usize,
    /// Width of a head's values.
    pub value_dim: usize,
    /// The weight of YaRN's factor in that of scores, `mscale_all_dim` of `config.json`; 0 for
    /// none.
    pub mscale: f32,
    /// The constant that the norms of latent vectors add to the mean square.
    pub norm_epsilon: f32,
}

impl Latent {
    /// Returns the width of a head's queries before they are absorbed.
    #[must_use]
    pub fn query_dim(&self) -> usize {
        self.plain_dim.saturating_add(self.rope_dim)
    }

    /// Returns the factor of scores: `(0.1 · mscale · ln(factor) + 1)² / √query_dim`, with YaRN's
    /// factor of the length.
    #[must_use]
    pub fn score_scale(&self, scaling: &RopeScaling) -> f32 {
        let length = match scaling {
            RopeScaling::Yarn(yarn) => f64::from(yarn.factor).max(1.0),
            _ => 1.0,
        };
        let mscale = 0.1 * f64::from(self.mscale) * length.ln() + 1.0;
        (mscale * mscale / (self.query_dim() as f64).sqrt()) as f32
    }

    /// Returns the number of cached numbers of a token: the width of keys in the absorbed form.
    #[must_use]
    pub fn key_dim(&self) -> usize {
        self.rank.saturating_add(self.rope_dim)
    }
}
