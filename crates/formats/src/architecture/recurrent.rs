//! Recurrent mixers: layers that keep a state of a fixed size instead of keys and values.

/// A recurrent mixer: a short causal convolution of some projections, and then a linear recurrence
/// over the positions.
///
/// A row's projections are queries and keys, `[n_key_heads, key_dim]`, values and gates,
/// `[n_value_heads, value_dim]`, and what the rule needs in addition. The convolution applies to
/// queries, keys and values, channel by channel. Value head `h` belongs to key head
/// `h / (n_value_heads / n_key_heads)`, or to `h % n_key_heads` if value heads are tiled.
///
/// The state after a row is the convolution's last `kernel − 1` inputs and, for each value head, a
/// matrix `S`, `[key_dim, value_dim]`. Both are f32, and zero before the first row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrent {
    /// What is computed after the convolution.
    pub rule: RecurrentRule,
    /// Number of key heads. It divides `n_value_heads`; 0 if the rule has no keys.
    pub n_key_heads: usize,
    /// Width of a key head; 0 if the rule has no keys.
    pub key_dim: usize,
    /// Number of value heads.
    pub n_value_heads: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Number of positions that the convolution reads, including the row's own.
    pub kernel: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether value heads are in turn those of all key heads, rather than all those of one key
    /// head after another (GGUF files of Qwen3.5).
    pub tiled: bool,
    /// Whether the stored rates of decays are `−exp(rate)` (GGUF files).
    pub negative_rates: bool,
}

/// What a recurrent mixer computes after its convolution. `α` is a row's decay of a head,
/// `exp(−exp(rate) · softplus(decay projection + bias))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentRule {
    /// The gated delta rule (Yang et al. 2024, arXiv 2412.06464): `S ← αS`, then
    /// `S ← S + k ⊗ β(v − Sᵀk)`, and `o = Sᵀq / √key_dim`. The convolution has SiLU, `q` and `k`
    /// are divided by their lengths, and `β` is a sigmoid. The output is `norm(o) · silu(gate)`,
    /// with an RMS norm of each head.
    GatedDelta,
    /// Mamba-2's state space (Dao & Gu 2024, arXiv 2405.21060): `S ← αS + k ⊗ Δv` and
    /// `o = Sᵀq + skip · v`, with `Δ = softplus(decay projection + bias)`. The convolution has
    /// SiLU. The output is `norm(o · silu(gate))`, with one RMS norm of all heads.
    StateSpace,
    /// The convolution alone, of `β · v` with a projection `β` as wide as the values: the output is
    /// `gate · convolution` (LFM2).
    Convolution,
}

impl Recurrent {
    /// Returns the key head of a value head.
    #[must_use]
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.tiled {
            true => value_head % self.n_key_heads,
            false => value_head / (self.n_value_heads / self.n_key_heads),
        }
    }

    /// Returns the factor of a head's steps in the logarithm of its decay, `−exp(rate)`, from the
    /// stored rate.
    #[must_use]
    pub fn decay_rate(&self, stored: f32) -> f32 {
        if self.negative_rates { stored } else { -f64::from(stored).exp() as f32 }
    }

    /// Returns the width of all queries (or keys).
    #[must_use]
    pub fn key_width(&self) -> usize {
        self.n_key_heads.saturating_mul(self.key_dim)
    }

    /// Returns the width of all values (or gates).
    #[must_use]
    pub fn value_width(&self) -> usize {
        self.n_value_heads.saturating_mul(self.value_dim)
    }

    /// Returns the number of channels of the convolution: those of queries, keys and values.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.key_width().saturating_mul(2).saturating_add(self.value_width())
    }

    /// Whether the mixer has the matrices `S`, and not only a convolution.
    #[must_use]
    pub fn has_matrices(&self) -> bool {
        self.rule != RecurrentRule::Convolution
    }

    /// Returns the width of the projection `β`; 0 if the rule has none.
    #[must_use]
    pub fn beta_width(&self) -> usize {
        match self.rule {
            RecurrentRule::GatedDelta => self.n_value_heads,
            RecurrentRule::StateSpace => 0,
            RecurrentRule::Convolution => self.value_width(),
        }
    }

    /// Returns the width of the projection to decays; 0 if the rule has none.
    #[must_use]
    pub fn decay_width(&self) -> usize {
        if self.has_matrices() { self.n_value_heads } else { 0 }
    }

    /// Returns the width of all projections together.
    #[must_use]
    pub fn projected_width(&self) -> usize {
        self.channels() + self.value_width() + self.beta_width() + self.decay_width()
    }

    /// Returns the number of f32 values of the matrices in a state.
    #[must_use]
    pub fn matrix_values(&self) -> usize {
        if self.has_matrices() { self.value_width().saturating_mul(self.key_dim) } else { 0 }
    }

    /// Returns the number of f32 values of the convolution's inputs in a state.
    #[must_use]
    pub fn conv_values(&self) -> usize {
        self.kernel.saturating_sub(1).saturating_mul(self.channels())
    }

    /// Returns the bytes of a state.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        let values = self.matrix_values().saturating_add(self.conv_values());
        values.saturating_mul(size_of::<f32>())
    }
}
