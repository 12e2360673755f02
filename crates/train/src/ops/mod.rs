//! The layers of a language model as single operations, forward and backward.
//!
//! An autograd library records one operation at a time, and on a processor's cores each costs a pass
//! through memory. Here an operation is half a Transformer layer, or the head with its loss: a thread
//! takes a few sequences through all of it while they are in its cache, and the intermediate results
//! that the backward pass needs are kept. What is left to the library is to connect the operations.
//!
//! The kernels work on slices; [`composed`] says the same in the library's own operations, for tests.
//! With one thread, the same input gives the same bits.

pub(crate) mod attention;
pub(crate) mod attention_block;
#[cfg(test)]
pub(crate) mod composed;
pub(crate) mod elementwise;
pub(crate) mod head;
pub(crate) mod matrix;
pub(crate) mod mlp_block;
mod split;
#[cfg(test)]
mod tests;

pub(crate) use attention_block::AttentionShape;
pub use head::{LossParts, Targets, Teacher};
pub(crate) use mlp_block::MlpShape;

use candle_core::{CpuStorage, Device, Layout, Result, Shape, Storage, Tensor};

/// Rows that a thread takes through a block at once: few enough for its cache, and enough that
/// rearranging the weights for a product does not count.
const CHUNK_ROWS: usize = 512;

/// The numbers of an operation's argument.
fn argument<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        candle_core::bail!("this operation takes contiguous tensors")
    };
    Ok(&storage.as_slice::<f32>()?[start..end])
}

/// Looks into tensors, which lie on the processor.
fn with_slices<const N: usize, R>(
    tensors: [&Tensor; N],
    work: impl FnOnce([&[f32]; N]) -> Result<R>,
) -> Result<R> {
    let contiguous = tensors.map(Tensor::contiguous);
    let mut held = Vec::with_capacity(N);
    for tensor in contiguous {
        held.push(tensor?);
    }
    let guards: Vec<_> = held.iter().map(Tensor::storage_and_layout).collect();
    let mut slices = [&[][..]; N];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&guards) {
        let Storage::Cpu(storage) = &**storage else {
            candle_core::bail!("this operation runs on the processor only")
        };
        *slice = argument(storage, layout)?;
    }
    work(slices)
}

/// A tensor on the processor.
fn tensor(values: Vec<f32>, shape: &Shape) -> Result<Tensor> {
    Tensor::from_vec(values, shape, &Device::Cpu)
}
