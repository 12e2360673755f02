//! The sizes of an attention layer.

/// Sizes of one attention layer.
#[derive(Clone, Copy)]
pub(crate) struct AttentionShape {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    /// How many positions a row sees, the last of them its own; `None` is all.
    pub(crate) window: Option<usize>,
}

impl AttentionShape {
    /// Width of a key or value row.
    pub(crate) fn kv_width(self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}
