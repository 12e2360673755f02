//! The parameters of kernels, as their shaders declare them.

use bytemuck::{Pod, Zeroable};

/// Declares the parameters of shaders, field by field in their order there.
macro_rules! parameters {
    ($($name:ident, $shader:literal { $($field:ident: $number:ty),* $(,)? })*) => {$(
        #[doc = concat!("The parameters of `", $shader, "`.")]
        #[repr(C)]
        #[derive(Clone, Copy, Default, Pod, Zeroable)]
        pub(crate) struct $name {
            $(pub(crate) $field: $number,)*
        }
    )*};
}

parameters! {
    Embed, "embed.wgsl" {
        quarters: u32, first_token: u32, tokens: u32, has_positions: u32, first_position: u32,
        factor: f32, stride: u32,
    }
    Norm, "norm.wgsl" {
        width: u32, flags: u32, epsilon: f32, factor: f32, first_output: u32, first_row: u32,
        input_stride: u32, output_start: u32, output_stride: u32, weight_rows: u32,
    }
    Linear, "linear.wgsl" {
        quarters: u32, outputs: u32, x_offset: u32, x_stride: u32, x_head: u32, y_offset: u32,
        y_stride: u32, y_head: u32, rows: u32, flags: u32, factor: f32,
    }
    Round, "round.cu" { first: u32, quarters: u32 }
    Heads, "heads.wgsl" {
        query_heads: u32, key_heads: u32, head_dim: u32, flags: u32, half_rotated: u32,
        epsilon: f32, limit: f32, layer: u32, table: u32, row_width: u32,
    }
    LatentQuery, "latent_query.wgsl" {
        heads: u32, plain_dim: u32, plain_stride: u32, rope_dim: u32, key_dim: u32,
        half_rotated: u32, table: u32,
    }
    LatentKey, "latent_key.wgsl" {
        rank: u32, rope_dim: u32, half_rotated: u32, table: u32, epsilon: f32, layer: u32,
    }
    Convolve, "convolve.wgsl" {
        rows: u32, channels: u32, row_width: u32, first_factor: u32, flags: u32,
    }
    ConvolveBlock, "convolve_block.wgsl" { width: u32, taps: u32, group_size: u32, half: u32 }
    Lengths, "lengths.wgsl" { channels: u32, key_dim: u32, query_heads: u32, scale: f32 }
    Recur, "recur.wgsl" {
        rows: u32, channels: u32, row_width: u32, key_heads: u32, value_heads: u32, value_dim: u32,
        first_beta: u32, first_decay: u32, flags: u32,
    }
    Finish, "finish.wgsl" {
        width: u32, values: u32, row_width: u32, first_gate: u32, epsilon: f32, rule: u32,
    }
    Attention, "attention.wgsl" {
        query_heads: u32, key_heads: u32, head_dim: u32, window: u32, score_scale: f32,
        score_cap: f32, splits: u32, first_row: u32, value_first: u32, value_dim: u32,
        sees_block: u32,
    }
    Combine, "combine.wgsl" {
        query_heads: u32, value_dim: u32, window: u32, splits: u32, first_row: u32, has_sinks: u32,
        sees_block: u32,
    }
    Activation, "activation.wgsl" {
        width: u32, gate_stride: u32, up_stride: u32, up_offset: u32, activation: u32,
        is_gated: u32, limit: f32,
    }
    OwnInput, "own_input.wgsl" { width: u32, layers: u32, scale: f32, epsilon: f32 }
    Scale, "scale.wgsl" { len: u32, factor: f32 }
    Add, "add.wgsl" { len: u32, factor: f32 }
    Route, "route.wgsl" {
        experts: u32, chosen: u32, weighting: u32, flags: u32, scale: f32, groups: u32,
        chosen_groups: u32, scored: u32,
    }
    Tiles, "tiles.wgsl" { experts: u32, choices: u32, tile: u32, tiles: u32, layer: u32 }
    Experts, "experts.wgsl" {
        quarters: u32, first_expert: u32, experts: u32, outputs: u32, y_offset: u32, y_stride: u32,
        sharing: u32, has_bias: u32,
    }
    Mix, "mix.wgsl" { width: u32, chosen: u32, adds: u32, factor: f32 }
    Gate, "gate.wgsl" { width: u32, gates: u32 }
    Logits, "logits.wgsl" { len: u32, divisor: f32, cap: f32 }
    Best, "best.wgsl" {
        candidates: u32, count: u32, reads_logits: u32, first: u32, stride: u32, slices: u32,
        to: u32,
    }
    CopyRows, "copy_rows.wgsl" { words: u32, copies: u32 }
    Read, "read.wgsl" { vectors: u32, threads: u32 }
}

impl Norm {
    pub(crate) const SUBTRACTS_MEAN: u32 = 1;
    pub(crate) const HAS_WEIGHTS: u32 = 2;
    pub(crate) const HAS_BIAS: u32 = 4;
    pub(crate) const ADDS: u32 = 8;
    pub(crate) const READS_OUTPUTS: u32 = 16;

    /// Returns the parameters of norms of rows of this width, one after another, with the same
    /// weights for all.
    pub(crate) fn new(width: u32, flags: u32, epsilon: f32) -> Self {
        let (input_stride, output_stride) = (width, width);
        let (factor, weight_rows) = (1.0, 1);
        let strides = Self { input_stride, output_stride, ..Self::default() };
        Self { width, flags, epsilon, factor, weight_rows, ..strides }
    }
}

impl Linear {
    pub(crate) const HAS_BIAS: u32 = 1;
    pub(crate) const ADDS: u32 = 2;

    /// Returns the parameters of a product that replaces what is there.
    pub(crate) fn new([rows, outputs, inputs]: [u32; 3]) -> Self {
        let quarters = inputs.div_ceil(4);
        let (x_stride, y_stride) = (quarters, outputs);
        Self { quarters, outputs, x_stride, y_stride, rows, factor: 1.0, ..Self::default() }
    }
}

impl Heads {
    pub(crate) const SUBTRACTS_MEAN: u32 = 1;
    pub(crate) const HAS_NORMS: u32 = 2;
    pub(crate) const NORMS_WHOLE: u32 = 4;
    pub(crate) const HAS_OWN_WEIGHTS: u32 = 8;
    pub(crate) const NORMS_VALUES: u32 = 16;
    pub(crate) const HAS_LIMIT: u32 = 32;
}

impl Convolve {
    pub(crate) const HAS_BIAS: u32 = 1;
    pub(crate) const HAS_SILU: u32 = 2;
}

impl Recur {
    pub(crate) const IS_DELTA: u32 = 1;
    pub(crate) const IS_TILED: u32 = 2;
}

impl Activation {
    /// Returns the parameters of an activation of so many numbers of a row.
    pub(crate) fn new(activation: forerun_formats::Activation, width: u32) -> Self {
        use forerun_formats::Activation as A;
        let (activation, limit) = match activation {
            A::Silu => (0, 0.0),
            A::Gelu => (1, 0.0),
            A::GeluTanh => (2, 0.0),
            A::Relu => (3, 0.0),
            A::ClampedSwiglu { limit } => (4, limit),
        };
        Self { width, activation, limit, ..Self::default() }
    }
}

impl Route {
    pub(crate) const NORMALISED: u32 = 1;
    pub(crate) const HAS_CORRECTION: u32 = 2;
    pub(crate) const HAS_FACTORS: u32 = 4;
}

/// Returns the workgroups of a kernel with 64 elements in each, where `y` counts full rows of
/// workgroups.
pub(crate) fn groups_of_elements(len: u32) -> [u32; 3] {
    let groups = len.div_ceil(64);
    let max = crate::matrix::MAX_WORKGROUPS;
    [groups.min(max), groups.div_ceil(max).max(1), 1]
}
