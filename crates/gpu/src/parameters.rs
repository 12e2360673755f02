//! The parameters of kernels, as their shaders declare them.

use bytemuck::{Pod, Zeroable};

/// The parameters of `embed.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Embed {
    pub(crate) quarters: u32,
    pub(crate) first_token: u32,
    pub(crate) tokens: u32,
    pub(crate) has_positions: u32,
    pub(crate) first_position: u32,
    pub(crate) factor: f32,
    pub(crate) stride: u32,
}

/// The parameters of `norm.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Norm {
    pub(crate) width: u32,
    pub(crate) flags: u32,
    pub(crate) epsilon: f32,
    pub(crate) factor: f32,
    pub(crate) first_output: u32,
    pub(crate) first_row: u32,
    pub(crate) input_stride: u32,
    pub(crate) output_start: u32,
    pub(crate) output_stride: u32,
    pub(crate) weight_rows: u32,
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
        Self {
            width,
            flags,
            epsilon,
            factor: 1.0,
            first_output: 0,
            first_row: 0,
            input_stride: width,
            output_start: 0,
            output_stride: width,
            weight_rows: 1,
        }
    }
}

/// The parameters of `linear.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct Linear {
    pub(crate) quarters: u32,
    pub(crate) outputs: u32,
    pub(crate) x_offset: u32,
    pub(crate) x_stride: u32,
    pub(crate) x_head: u32,
    pub(crate) y_offset: u32,
    pub(crate) y_stride: u32,
    pub(crate) y_head: u32,
    pub(crate) rows: u32,
    pub(crate) flags: u32,
    pub(crate) factor: f32,
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

/// The parameters of `heads.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Heads {
    pub(crate) query_heads: u32,
    pub(crate) key_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) flags: u32,
    pub(crate) half_rotated: u32,
    pub(crate) epsilon: f32,
    pub(crate) limit: f32,
    pub(crate) layer: u32,
    pub(crate) table: u32,
    pub(crate) row_width: u32,
}

impl Heads {
    pub(crate) const SUBTRACTS_MEAN: u32 = 1;
    pub(crate) const HAS_NORMS: u32 = 2;
    pub(crate) const NORMS_WHOLE: u32 = 4;
    pub(crate) const HAS_OWN_WEIGHTS: u32 = 8;
    pub(crate) const NORMS_VALUES: u32 = 16;
    pub(crate) const HAS_LIMIT: u32 = 32;
}

/// The parameters of `latent_query.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct LatentQuery {
    pub(crate) heads: u32,
    pub(crate) plain_dim: u32,
    pub(crate) plain_stride: u32,
    pub(crate) rope_dim: u32,
    pub(crate) key_dim: u32,
    pub(crate) half_rotated: u32,
    pub(crate) table: u32,
}

/// The parameters of `latent_key.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct LatentKey {
    pub(crate) rank: u32,
    pub(crate) rope_dim: u32,
    pub(crate) half_rotated: u32,
    pub(crate) table: u32,
    pub(crate) epsilon: f32,
    pub(crate) layer: u32,
}

/// The parameters of `convolve.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Convolve {
    pub(crate) rows: u32,
    pub(crate) channels: u32,
    pub(crate) row_width: u32,
    pub(crate) first_factor: u32,
    pub(crate) flags: u32,
}

impl Convolve {
    pub(crate) const HAS_BIAS: u32 = 1;
    pub(crate) const HAS_SILU: u32 = 2;
}

/// The parameters of `convolve_block.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct ConvolveBlock {
    pub(crate) width: u32,
    pub(crate) taps: u32,
    pub(crate) group_size: u32,
    pub(crate) half: u32,
}

/// The parameters of `lengths.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Lengths {
    pub(crate) channels: u32,
    pub(crate) key_dim: u32,
    pub(crate) query_heads: u32,
    pub(crate) scale: f32,
}

/// The parameters of `recur.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Recur {
    pub(crate) rows: u32,
    pub(crate) channels: u32,
    pub(crate) row_width: u32,
    pub(crate) key_heads: u32,
    pub(crate) value_heads: u32,
    pub(crate) value_dim: u32,
    pub(crate) first_beta: u32,
    pub(crate) first_decay: u32,
    pub(crate) flags: u32,
}

impl Recur {
    pub(crate) const IS_DELTA: u32 = 1;
    pub(crate) const IS_TILED: u32 = 2;
}

/// The parameters of `finish.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Finish {
    pub(crate) width: u32,
    pub(crate) values: u32,
    pub(crate) row_width: u32,
    pub(crate) first_gate: u32,
    pub(crate) epsilon: f32,
    pub(crate) rule: u32,
}

/// The parameters of `attention.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Attention {
    pub(crate) query_heads: u32,
    pub(crate) key_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) window: u32,
    pub(crate) score_scale: f32,
    pub(crate) score_cap: f32,
    pub(crate) splits: u32,
    pub(crate) first_row: u32,
    pub(crate) value_first: u32,
    pub(crate) value_dim: u32,
    pub(crate) sees_block: u32,
}

/// The parameters of `combine.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Combine {
    pub(crate) query_heads: u32,
    pub(crate) value_dim: u32,
    pub(crate) window: u32,
    pub(crate) splits: u32,
    pub(crate) first_row: u32,
    pub(crate) has_sinks: u32,
    pub(crate) sees_block: u32,
}

/// The parameters of `activation.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Activation {
    pub(crate) width: u32,
    pub(crate) gate_stride: u32,
    pub(crate) up_stride: u32,
    pub(crate) up_offset: u32,
    pub(crate) activation: u32,
    pub(crate) is_gated: u32,
    pub(crate) limit: f32,
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
        Self { width, activation, limit, ..Self::zeroed() }
    }
}

/// The parameters of `own_input.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct OwnInput {
    pub(crate) width: u32,
    pub(crate) layers: u32,
    pub(crate) scale: f32,
    pub(crate) epsilon: f32,
}

/// The parameters of `scale.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Scale {
    pub(crate) len: u32,
    pub(crate) factor: f32,
}

/// The parameters of `add.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Add {
    pub(crate) len: u32,
    pub(crate) factor: f32,
}

/// The parameters of `route.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Route {
    pub(crate) experts: u32,
    pub(crate) chosen: u32,
    pub(crate) weighting: u32,
    pub(crate) flags: u32,
    pub(crate) scale: f32,
    pub(crate) groups: u32,
    pub(crate) chosen_groups: u32,
    pub(crate) scored: u32,
}

impl Route {
    pub(crate) const NORMALISED: u32 = 1;
    pub(crate) const HAS_CORRECTION: u32 = 2;
    pub(crate) const HAS_FACTORS: u32 = 4;
}

/// The parameters of `tiles.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Tiles {
    pub(crate) experts: u32,
    pub(crate) choices: u32,
    pub(crate) tile: u32,
    pub(crate) tiles: u32,
    pub(crate) layer: u32,
}

/// The parameters of `experts.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Experts {
    pub(crate) quarters: u32,
    pub(crate) first_expert: u32,
    pub(crate) experts: u32,
    pub(crate) outputs: u32,
    pub(crate) y_offset: u32,
    pub(crate) y_stride: u32,
    pub(crate) sharing: u32,
    pub(crate) has_bias: u32,
}

/// The parameters of `mix.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Mix {
    pub(crate) width: u32,
    pub(crate) chosen: u32,
    pub(crate) adds: u32,
    pub(crate) factor: f32,
}

/// The parameters of `gate.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Gate {
    pub(crate) width: u32,
    pub(crate) gates: u32,
}

/// The parameters of `logits.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Logits {
    pub(crate) len: u32,
    pub(crate) divisor: f32,
    pub(crate) cap: f32,
}

/// The parameters of `best.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Best {
    pub(crate) candidates: u32,
    pub(crate) count: u32,
    pub(crate) reads_logits: u32,
    pub(crate) first: u32,
    pub(crate) stride: u32,
    pub(crate) slices: u32,
    pub(crate) to: u32,
}

/// The parameters of `copy_rows.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct CopyRows {
    pub(crate) words: u32,
    pub(crate) copies: u32,
}

/// The parameters of `read.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Read {
    pub(crate) vectors: u32,
    pub(crate) threads: u32,
}

/// Returns the workgroups of a kernel with 64 elements in each, where `y` counts full rows of
/// workgroups.
pub(crate) fn groups_of_elements(len: u32) -> [u32; 3] {
    let groups = len.div_ceil(64);
    let max = crate::matrix::MAX_WORKGROUPS;
    [groups.min(max), groups.div_ceil(max).max(1), 1]
}
