//! The dispatches of attention.

use crate::kernel::Kernel;
use crate::layer_weights::AttentionWeights;
use crate::pages::number_bytes;
use crate::parameters;
use crate::pass::PassRun;
use crate::product::Store;
use crate::tensor_tiles::{HEAD_MULTIPLE, HEADS_AT_ONCE};
use forerun_formats::{Attention, QkNorms};
use wgpu::Buffer;

/// The largest size of the partial results of attention.
const PARTIAL_BYTES: u64 = 64 << 20;

impl<'a> PassRun<'a> {
    /// Records attention without its output projection, and returns the buffer with the result.
    pub(crate) fn attention(
        &mut self,
        index: usize,
        weights: &AttentionWeights,
        input: &Buffer,
    ) -> &'a Buffer {
        let scratch = self.scratch;
        self.project_heads(index, weights, input);
        self.attend(index, weights);
        let attended = scratch.attended.get();
        if let Some(gate) = &weights.gate {
            let gates = scratch.gates.get();
            self.linear(gate, input, gates, Store::Set);
            let width = weights.shape.q_size() as u32;
            self.gate((gates, width), attended, width);
        }
        match &weights.latent {
            None => attended,
            Some(latent) => self.latent_values(latent),
        }
    }

    /// Records a layer's queries, and the rows of its cache.
    pub(crate) fn project_heads(
        &mut self,
        index: usize,
        weights: &AttentionWeights,
        input: &Buffer,
    ) {
        self.linear(&weights.projection, input, self.scratch.projected.get(), Store::Set);
        match &weights.latent {
            None => self.heads(index, weights),
            Some(latent) => self.latent_heads(index, (weights, latent), input),
        }
    }

    /// Records `y[row] *= sigmoid(gates[row])`, with one gate for a row, or one for each number.
    pub(crate) fn gate(&mut self, (gates, count): (&Buffer, u32), y: &Buffer, width: u32) {
        let parameters = parameters::Gate { width, gates: count };
        let groups = [width.div_ceil(64), self.row_count(), 1];
        self.recorder.dispatch(Kernel::Gate, &[gates, y], &parameters, groups);
    }

    /// Returns where the table of a layer's position embedding begins.
    pub(crate) fn rope_table(&self, weights: &AttentionWeights) -> u32 {
        weights.rope.map_or(0, |rope| self.rows.table_starts[rope]) as u32
    }

    /// Records norms, limits and rotations of a layer's heads, and the writes to the cache.
    pub(crate) fn heads(&mut self, index: usize, weights: &AttentionWeights) {
        let (attention, scratch) = (&weights.shape, self.scratch);
        let architecture = self.weights.architecture();
        let key_heads = weights.own_key_heads();
        let parameters = parameters::Heads {
            query_heads: attention.n_heads as u32,
            key_heads: key_heads as u32,
            head_dim: attention.head_dim as u32,
            flags: head_flags(attention, architecture.norm.is_layer_norm()),
            half_rotated: half_rotated(attention),
            epsilon: architecture.norm_epsilon,
            limit: attention.qkv_limit.unwrap_or(0.0),
            layer: index as u32,
            table: self.rope_table(weights),
            row_width: weights.projection.outputs as u32,
        };
        let [keys, values] = self.pages.layer(index);
        let buffers = [
            scratch.projected.get(),
            scratch.tables.get(),
            weights.head_norms.as_ref().unwrap_or(&self.weights.unused),
            scratch.rows.get(),
            scratch.queries.get(),
            keys,
            values,
            scratch.overflows.get(),
        ];
        let heads = (attention.n_heads + 2 * key_heads) as u32;
        let kernel = Kernel::Heads(self.weights.cache_type());
        self.recorder.dispatch(kernel, &buffers, &parameters, [heads, self.row_count(), 1]);
    }

    /// Returns the kernel of a layer's attention, and its workgroups for a split of a row.
    fn attention_kernel(&self, weights: &AttentionWeights, value_first: u32) -> (Kernel, u32) {
        let (attention, cache) = (&weights.shape, self.weights.cache_type());
        let sizes = [attention.head_dim, weights.value_dim(), value_first as usize];
        let is_tensor = self.weights.device().has_tensor_arithmetic()
            && number_bytes(cache) == 2
            && sizes.iter().all(|size| size.is_multiple_of(HEAD_MULTIPLE));
        let (heads, key_heads) = (attention.n_heads as u32, attention.n_kv_heads as u32);
        if is_tensor {
            let groups = key_heads * (heads / key_heads).div_ceil(HEADS_AT_ONCE);
            return (Kernel::TensorAttention(cache), groups);
        }
        let has_wide_reads = (attention.head_dim * number_bytes(cache)).is_multiple_of(16);
        (Kernel::Attention { cache, has_wide_reads }, heads)
    }

    /// Records attention over the cache.
    fn attend(&mut self, index: usize, weights: &AttentionWeights) {
        let (attention, scratch) = (&weights.shape, self.scratch);
        let source = attention.keys_of.unwrap_or(index);
        let [keys, values] = self.pages.layer(source);
        // Compressed values are a part of the keys.
        let (values, value_first) = match &weights.latent {
            None => (values, 0),
            Some(latent) => (keys, latent.shape.rope_dim as u32),
        };
        let (window, sees_block) = (window(attention), self.rows.see_block(attention));
        let splits = self.rows.splits(attention);
        let chunk = rows_of_partials(weights, splits);
        let (rows, query_heads) = (self.row_count(), attention.n_heads as u32);
        let value_dim = weights.value_dim() as u32;
        for first_row in (0..rows).step_by(chunk as usize) {
            let chunk = chunk.min(rows - first_row);
            let parameters = parameters::Attention {
                query_heads,
                key_heads: attention.n_kv_heads as u32,
                head_dim: attention.head_dim as u32,
                window,
                score_scale: attention.score_scale,
                score_cap: attention.score_cap.unwrap_or(0.0),
                splits,
                first_row,
                value_first,
                value_dim,
                sees_block: sees_block.into(),
            };
            let partials = scratch.partials.get();
            let buffers = [
                scratch.queries.get(),
                keys,
                values,
                scratch.rows.get(),
                scratch.places.get(),
                partials,
            ];
            let (kernel, groups) = self.attention_kernel(weights, value_first);
            self.recorder.dispatch(kernel, &buffers, &parameters, [groups, chunk, splits]);
            let parameters = parameters::Combine {
                query_heads,
                value_dim,
                window,
                splits,
                first_row,
                has_sinks: weights.sinks.is_some().into(),
                sees_block: sees_block.into(),
            };
            let sinks = weights.sinks.as_ref().unwrap_or(&self.weights.unused);
            let buffers = [partials, sinks, scratch.rows.get(), scratch.attended.get()];
            self.recorder.dispatch(Kernel::Combine, &buffers, &parameters, [query_heads, chunk, 1]);
        }
        let group = (attention.n_heads / attention.n_kv_heads) as u64;
        let bytes = self.rows.visible(attention) * self.pages.row_bytes(source) * group;
        self.recorder.cost.cache_bytes += bytes;
        self.recorder.add_work(bytes);
    }
}

/// Returns the number of pairs of a head that are rotated.
pub(crate) fn half_rotated(attention: &Attention) -> u32 {
    attention.rope.as_ref().map_or(0, |rope| rope.dims / 2) as u32
}

/// Returns the number of positions that a row sees.
pub(crate) fn window(attention: &Attention) -> u32 {
    attention.window.and_then(|window| u32::try_from(window).ok()).unwrap_or(u32::MAX)
}

fn partial_row_bytes(weights: &AttentionWeights, splits: u32) -> u64 {
    4 * weights.shape.n_heads as u64 * u64::from(splits) * (2 + weights.value_dim() as u64)
}

/// Returns the number of rows whose partial results are held at once.
fn rows_of_partials(weights: &AttentionWeights, splits: u32) -> u32 {
    (PARTIAL_BYTES / partial_row_bytes(weights, splits).max(1)).max(1) as u32
}

/// Returns the bytes of the partial results that are held at once.
pub(crate) fn partial_bytes(weights: &AttentionWeights, splits: u32, rows: usize) -> u64 {
    let rows = (rows as u32).min(rows_of_partials(weights, splits));
    u64::from(rows) * partial_row_bytes(weights, splits)
}

fn head_flags(attention: &Attention, is_layer_norm: bool) -> u32 {
    use parameters::Heads;
    let norms = match attention.qk_norms {
        QkNorms::None => 0,
        QkNorms::Heads => Heads::HAS_NORMS,
        QkNorms::OwnHeads => Heads::HAS_NORMS | Heads::HAS_OWN_WEIGHTS,
        QkNorms::Whole => Heads::HAS_NORMS | Heads::NORMS_WHOLE,
    };
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    norms
        | flag(is_layer_norm, Heads::SUBTRACTS_MEAN)
        | flag(attention.value_norm, Heads::NORMS_VALUES)
        | flag(attention.qkv_limit.is_some(), Heads::HAS_LIMIT)
}
