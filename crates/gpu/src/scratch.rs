//! The buffers of passes, which are kept and grow.

use crate::device::GpuDevice;
use crate::error::GpuFailure;
use wgpu::Buffer;

/// A buffer that grows.
#[derive(Default)]
pub(crate) struct GrowingBuffer(Option<Buffer>);

impl GrowingBuffer {
    /// Makes the buffer at least this large. Returns whether it was replaced; its content is lost
    /// then. Fails if there is no memory. The buffer is unchanged then.
    pub(crate) fn reserve(&mut self, device: &GpuDevice, bytes: u64) -> Result<bool, GpuFailure> {
        let held = self.0.as_ref().map_or(0, Buffer::size);
        if self.0.is_some() && held >= bytes {
            return Ok(false);
        }
        // Room for more, so that slowly growing passes replace it rarely.
        let roomy = bytes.next_power_of_two().min(device.max_binding_bytes()).max(bytes);
        let allocate = |bytes| device.allocate("the buffers of a pass", bytes);
        self.0 = Some(allocate(roomy).or_else(|_| allocate(bytes))?);
        Ok(true)
    }

    /// Returns the buffer, which has been reserved.
    pub(crate) fn get(&self) -> &Buffer {
        self.0.as_ref().expect("a reserved buffer")
    }
}

/// The buffers of passes.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) rows: GrowingBuffer,
    pub(crate) places: GrowingBuffer,
    pub(crate) tables: GrowingBuffer,
    pub(crate) overflows: GrowingBuffer, // [rows]
    pub(crate) hidden: GrowingBuffer,    // [rows, hidden]
    pub(crate) normed: GrowingBuffer,    // [rows, hidden]
    /// What drafters read in addition to tokens, the embeddings, and what joins both.
    pub(crate) features: GrowingBuffer, // [rows, feature width]
    pub(crate) embeddings: GrowingBuffer, // [rows, hidden]
    pub(crate) joined: GrowingBuffer,    // [rows, inputs]
    pub(crate) mlp_input: GrowingBuffer, // [rows, hidden]
    pub(crate) projected: GrowingBuffer, // [rows, queries, keys, values], or [rows or choices, gate, up]
    pub(crate) queries: GrowingBuffer,   // [rows, queries]
    pub(crate) partials: GrowingBuffer,  // [rows, query heads, splits, 2 + head_dim]
    pub(crate) attended: GrowingBuffer,  // [rows, queries]
    pub(crate) inner: GrowingBuffer,     // [rows or choices, intermediate]
    pub(crate) latent: LatentScratch,
    pub(crate) block: BlockScratch,
    /// The inputs of layers next to the hidden state.
    pub(crate) own_inputs: GrowingBuffer, // [rows, layers, width]
    /// Where the recurrence of rows starts and ends, the results of convolutions, and those of
    /// recurrences.
    pub(crate) steps: GrowingBuffer, // [rows, 2]
    pub(crate) convolved: GrowingBuffer, // [rows, channels]
    pub(crate) recurred: GrowingBuffer,  // [rows, values]
    /// The output of a dense MLP next to experts.
    pub(crate) dense: GrowingBuffer, // [rows, hidden]
    pub(crate) scores: GrowingBuffer,    // [rows, experts]
    /// The gates of dense MLPs next to experts, and of attention.
    pub(crate) gates: GrowingBuffer, // [rows], or [rows, queries]
    /// The chosen experts with their weights, their order by expert, and the tiles of products with
    /// them.
    pub(crate) choices: GrowingBuffer, // [rows, chosen, 2]
    pub(crate) members: GrowingBuffer,   // [rows, chosen]
    pub(crate) tiles: GrowingBuffer,     // [tiles, 4]
    pub(crate) expert_outputs: GrowingBuffer, // [rows, chosen, hidden]
    /// Number of experts that some row has chosen.
    pub(crate) loads: GrowingBuffer, // [layers]
    /// What the attention of each layer of a group adds.
    pub(crate) deltas: Vec<GrowingBuffer>, // [rows, hidden]
    pub(crate) logits: GrowingBuffer,    // [rows, head outputs]
    /// The best tokens of rows with the bits of their logits, and candidates for them.
    pub(crate) best: GrowingBuffer, // [tokens, 2]
}

/// The buffers of convolutions over the rows of blocks.
#[derive(Default)]
pub(crate) struct BlockScratch {
    pub(crate) own: GrowingBuffer,    // [rows, 2, taps, groups]
    pub(crate) input: GrowingBuffer,  // [rows, hidden]
    pub(crate) output: GrowingBuffer, // [rows, hidden]: before its convolution
}

/// The buffers of compressed keys and values.
#[derive(Default)]
pub(crate) struct LatentScratch {
    pub(crate) normed: GrowingBuffer,  // [rows, query_rank]
    pub(crate) queries: GrowingBuffer, // [rows, heads, query_dim]
    pub(crate) plain: GrowingBuffer,   // [rows, heads, plain_dim], filled up
    pub(crate) down: GrowingBuffer,    // [rows, rank + rope_dim]
    pub(crate) values: GrowingBuffer,  // [rows, heads, value_dim]
}
