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
    /// Size of the sliding window: the number of positions visible to a row, including its own.
    /// `None` for all positions.
    pub(crate) window: Option<usize>,
    /// Whether the output has a gate.
    pub(crate) gate: bool,
    /// If values are a part of the keys, as with a latent vector: the index of their first number.
    /// Each head's value has all numbers of its key from there on, and none is stored by itself.
    pub(crate) first_value: Option<usize>,
    /// Whether the layer has keys and values of its own.
    pub(crate) has_keys: bool,
}

impl AttentionShape {
    /// Returns the shape of a layer's attention. Without attention, it has no heads.
    pub(crate) fn of_layer(layer: &Layer) -> Self {
        Self::new(layer.attention.as_ref().unwrap_or(&Attention::plain(0, 0, 1)))
    }

    /// Returns the shape of the keys and values that a layer keeps: those of no heads if it has
    /// none of its own.
    pub(crate) fn of_cache(layer: &Layer) -> Self {
        let shape = Self::of_layer(layer);
        if shape.has_keys { shape } else { Self::new(&Attention::plain(0, 0, 1)) }
    }

    /// Returns the shape of attention.
    pub(crate) fn new(attention: &Attention) -> Self {
        let Attention {
            n_heads, n_kv_heads, head_dim, score_scale, score_cap, window, gate, ..
        } = *attention;
        let first_value = attention.latent.as_ref().map(|latent| latent.rope_dim);
        let has_keys = attention.keys_of.is_none();
        Self {
            n_heads,
            n_kv_heads,
            head_dim,
            score_scale,
            score_cap,
            window,
            gate,
            first_value,
            has_keys,
        }
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
        let gates = if self.gate { self.q_width() } else { 0 };
        let keys_values = match (self.has_keys, self.first_value) {
            (false, _) => 0,
            (true, Some(_)) => self.kv_width(),
            (true, None) => 2 * self.kv_width(),
        };
        self.q_width() + keys_values + gates
    }

    /// Returns the width of a key row, and of a value row that is stored by itself.
    pub(crate) fn kv_width(self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}
