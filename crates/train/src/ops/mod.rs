//! Fused layers of a language model, forward and backward.
//!
//! An autograd library records many small operations, and on a CPU each of them costs a pass
//! through memory. Here one operation is half a Transformer layer, or the head with its loss. A
//! thread runs a few sequences through the whole operation while they are in its cache, and the
//! operation keeps the intermediate results that the backward pass needs. The autograd library
//! (candle) only connects the operations.
//!
//! The kernels work on slices. The module `reference` implements the same operations with candle's
//! own, for tests. With one thread, the same input gives the same bits.

pub(crate) mod attention;
pub(crate) mod attention_block;
pub(crate) mod block_head_loss;
pub(crate) mod context_attention;
pub(crate) mod draft_head;
pub(crate) mod elementwise;
pub(crate) mod feature_loss;
pub(crate) mod groups;
pub(crate) mod head;
pub(crate) mod matrix;
pub(crate) mod mlp_block;
mod projection;
#[cfg(test)]
pub(crate) mod reference;
mod split;
#[cfg(test)]
mod tests;

pub(crate) use attention_block::AttentionShape;
pub use head::{LossParts, Targets, Teacher};
pub(crate) use mlp_block::MlpShape;

use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Result, Shape, Storage, Tensor};
use std::sync::{Mutex, PoisonError};

/// Rows that a thread runs through a block at once: few enough to fit its cache, and enough to make
/// the cost of packing the weights for a matrix product negligible.
const CHUNK_ROWS: usize = 512;

/// A differentiable operation on three inputs: rows, the weights of a norm, and other weights.
/// [`none`] stands for an input that an operation does not have.
pub(crate) trait Operation: Send + Sync + 'static {
    /// The operation's name in error messages.
    const NAME: &'static str;
    /// Intermediate results that the backward pass needs.
    type Saved: Send;

    /// Computes the result, and the intermediate results for the backward pass.
    fn forward(&self, inputs: [&[f32]; 3]) -> (Vec<f32>, Self::Saved);

    /// Returns the shape of the result, given that of the first input.
    fn shape(&self, input: &Shape) -> Shape {
        input.clone()
    }

    /// Computes the gradients of the inputs, given the gradient of the result. The gradient of an
    /// input that the operation does not have is empty.
    fn backward(
        &self,
        saved: Self::Saved,
        inputs: [&[f32]; 3],
        gradient: &[f32],
    ) -> Result<[Vec<f32>; 3]>;
}

/// A loss of three inputs, which computes its gradients together with its value.
pub(crate) trait Loss: Send + Sync + 'static {
    /// The loss's name in error messages.
    const NAME: &'static str;

    /// Computes the loss and the gradients of the inputs. Those of an input that the loss does not
    /// have are empty.
    fn compute(&self, inputs: [&[f32]; 3]) -> (f32, [Vec<f32>; 3]);

    /// Returns whether it computes gradients.
    fn has_gradients(&self) -> bool;
}

impl<L: Loss> Operation for L {
    const NAME: &'static str = <L as Loss>::NAME;
    type Saved = [Vec<f32>; 3];

    fn forward(&self, inputs: [&[f32]; 3]) -> (Vec<f32>, Self::Saved) {
        let (loss, gradients) = self.compute(inputs);
        (vec![loss], gradients)
    }

    fn shape(&self, _: &Shape) -> Shape {
        Shape::from(())
    }

    fn backward(
        &self,
        mut saved: Self::Saved,
        _: [&[f32]; 3],
        gradient: &[f32],
    ) -> Result<[Vec<f32>; 3]> {
        let ([factor], true) = (gradient, self.has_gradients()) else {
            candle_core::bail!(
                "this loss was computed without gradients: compute it with `train` set"
            )
        };
        if *factor != 1.0 {
            saved.iter_mut().for_each(|values| elementwise::scale_by(values, *factor));
        }
        Ok(saved)
    }
}

/// Applies an operation to tensors. The result can be differentiated once.
pub(crate) fn apply(operation: impl Operation, inputs: [&Tensor; 3]) -> Result<Tensor> {
    let [x, norm, weights] = inputs;
    x.apply_op3(norm, weights, Applied { operation, saved: Mutex::new(None) })
}

/// Returns an empty tensor, which stands for an input that an operation does not have. It gets no
/// gradient.
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
        let Some(saved) = saved else {
            candle_core::bail!("{} can be differentiated only once per forward pass", O::NAME)
        };
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

/// Returns the values of an operation's input.
fn argument<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        candle_core::bail!("an input of this operation is not contiguous: make it contiguous first")
    };
    Ok(&storage.as_slice::<f32>()?[start..end])
}

/// Calls `work` with the values of tensors, which must be on the CPU.
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
            candle_core::bail!("this operation runs only on the CPU: move its inputs there")
        };
        *slice = argument(storage, layout)?;
    }
    work(slices)
}

/// Creates a tensor on the CPU.
fn tensor(values: Vec<f32>, shape: &Shape) -> Result<Tensor> {
    Tensor::from_vec(values, shape, &Device::Cpu)
}
