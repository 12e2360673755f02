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
    /// If values are a part of the keys, as with a latent vector: the index of their first number. Each head's
    /// value has all numbers of its key from there on, and none is stored by itself.
    pub(crate) first_value: Option<usize>,
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
        let first_value = attention.latent.as_ref().map(|latent| latent.rope_dim);
        Self { n_heads, n_kv_heads, head_dim, score_scale, score_cap, window, gate, first_value }
    }

    /// Returns the width of a query row.
    pub(crate) fn q_width(self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Returns the width of a head's value.
    pub(crate) fn value_dim(self) -> usize {
        self.head_dim - self.first_value.unwrap_or(0)
    }

    /// Returns the width of the result of all heads.
    pub(crate) fn out_width(self) -> usize {
        self.n_heads * self.value_dim()
    }

    /// Returns the width of a row of queries, keys and values, and gates if there are any.
    pub(crate) fn row_width(self) -> usize {
        let values = if self.first_value.is_some() { 0 } else { self.kv_width() };
        let gates = if self.gate { self.q_width() } else { 0 };
        self.q_width() + self.kv_width() + values + gates
    }

    /// Returns the width of a key row, and of a value row that is stored by itself.
    pub(crate) fn kv_width(self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}
