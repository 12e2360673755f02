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
pub(crate) mod draft_head;
pub(crate) mod elementwise;
pub(crate) mod feature_loss;
pub(crate) mod groups;
pub(crate) mod head;
pub(crate) mod matrix;
pub(crate) mod mlp_block;
mod projection;
mod split;
#[cfg(test)]
mod tests;

pub(crate) use attention_block::AttentionShape;
pub use head::{LossParts, Targets, Teacher};
pub(crate) use mlp_block::MlpShape;

use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Result, Shape, Storage, Tensor};
use std::sync::{Mutex, PoisonError};

/// Rows that a thread takes through a block at once: few enough for its cache, and enough that
/// rearranging the weights for a product does not count.
const CHUNK_ROWS: usize = 512;

/// An operation on a tensor, a norm's weights and other weights. What it does without is [`none`].
pub(crate) trait Operation: Send + Sync + 'static {
    /// What messages call it.
    const NAME: &'static str;
    /// What the backward pass needs of the forward pass.
    type Saved: Send;

    /// The result, and what is kept of it.
    fn forward(&self, inputs: [&[f32]; 3]) -> (Vec<f32>, Self::Saved);

    /// The result's shape, given the first input's.
    fn shape(&self, input: &Shape) -> Shape {
        input.clone()
    }

    /// The inputs' gradients, given the result's.
    fn backward(
        &self,
        saved: Self::Saved,
        inputs: [&[f32]; 3],
        gradient: &[f32],
    ) -> Result<[Vec<f32>; 3]>;
}

/// Applies an operation so that the library can differentiate it, once.
pub(crate) fn apply(operation: impl Operation, inputs: [&Tensor; 3]) -> Result<Tensor> {
    let [x, norm, weights] = inputs;
    x.apply_op3(norm, weights, Applied { operation, saved: Mutex::new(None) })
}

/// In the place of an argument that an operation does without. It has no gradient.
pub(crate) fn none() -> Result<Tensor> {
    Tensor::zeros(0, DType::F32, &Device::Cpu)
}

struct Applied<O: Operation> {
    operation: O,
    saved: Mutex<Option<O::Saved>>,
}

impl<O: Operation> CustomOp3 for Applied<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        norm: &CpuStorage,
        norm_layout: &Layout,
        weights: &CpuStorage,
        weights_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (result, saved) = self.operation.forward([
            argument(x, x_layout)?,
            argument(norm, norm_layout)?,
            argument(weights, weights_layout)?,
        ]);
        *self.saved.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
        Ok((CpuStorage::F32(result), self.operation.shape(x_layout.shape())))
    }

    fn bwd(
        &self,
        x: &Tensor,
        norm: &Tensor,
        weights: &Tensor,
        _result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(saved) = saved else { candle_core::bail!("one backward pass per forward pass") };
        let inputs = [x, norm, weights, gradient];
        let [dx, dnorm, dweights] = with_slices(inputs, |[x, norm, weights, gradient]| {
            self.operation.backward(saved, [x, norm, weights], gradient)
        })?;
        let gradient = |values, of: &Tensor| match of.elem_count() {
            0 => Ok(None),
            _ => tensor(values, of.shape()).map(Some),
        };
        Ok((gradient(dx, x)?, gradient(dnorm, norm)?, gradient(dweights, weights)?))
    }
}

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
