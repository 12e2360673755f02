//! The shape of an attention layer.

use forerun_formats::{Attention, Layer};

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
    /// Whether the output has a gate.
    pub(crate) gate: bool,
}

impl AttentionShape {
    /// Returns the shape of a layer's attention. Without attention, it has no heads.
    pub(crate) fn of_layer(layer: &Layer) -> Self {
        let none = Attention::plain(0, 0, 1);
        Self::new(layer.attention.as_ref().unwrap_or(&none))
    }

    /// Returns the shape of attention.
    pub(crate) fn new(attention: &Attention) -> Self {
        let Attention {
            n_heads, n_kv_heads, head_dim, score_scale, score_cap, window, gate, ..
        } = *attention;
        Self { n_heads, n_kv_heads, head_dim, score_scale, score_cap, window, gate }
    }

    /// Returns the width of a query row.
    pub(crate) fn q_width(self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Returns the width of the projections of a row: queries, keys, values, and gates if there are any.
    pub(crate) fn projected_width(self) -> usize {
        let gates = if self.gate { self.q_width() } else { 0 };
        self.q_width() + 2 * self.kv_width() + gates
    }

    /// Returns the width of a key or value row.
    pub(crate) fn kv_width(self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}
