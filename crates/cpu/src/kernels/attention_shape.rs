//! The shape of an attention layer.

use forerun_formats::Attention;

/// The shape of one attention layer.
#[derive(Clone, Copy)]
pub(crate) struct AttentionShape {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    /// The factor of scores.
    pub(crate) score_scale: f32,
    /// The limit of scores, if there is one.
    pub(crate) score_cap: Option<f32>,
    /// Size of the sliding window: the number of positions visible to a row, including its own. `None`
    /// for all positions.
    pub(crate) window: Option<usize>,
}

impl AttentionShape {
    /// Returns the shape of a layer's attention.
    pub(crate) fn new(attention: &Attention) -> Self {
        let Attention { n_heads, n_kv_heads, head_dim, score_scale, score_cap, window, .. } =
            *attention;
        Self { n_heads, n_kv_heads, head_dim, score_scale, score_cap, window }
    }

    /// Returns the width of a query row.
    pub(crate) fn q_width(self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Returns the width of a key or value row.
    pub(crate) fn kv_width(self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}
